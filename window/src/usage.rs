//! The space used in the file systems of open volumes. A thread asks, so that one that does not answer delays nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::home::{Mounted, State};

/// Bytes that are used, and all.
pub type Used = (u64, u64);

#[derive(Clone, Default)]
pub struct Usage {
    known: Arc<Mutex<BTreeMap<String, Used>>>,
    asking: Arc<AtomicBool>,
}

impl Usage {
    pub fn of(&self, mounted: &Mounted) -> Option<Used> {
        let dir = mounted.dir.as_ref()?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(dir).copied()
    }

    /// Asks again, unless an answer is still pending; calls `done` when it arrives.
    pub fn ask(&self, all: &[Mounted], done: impl FnOnce() + Send + 'static) {
        let open = all.iter().filter(|mounted| mounted.state == State::Open);
        let dirs: Vec<String> = open.filter_map(|mounted| mounted.dir.clone()).collect();
        if dirs.is_empty() || self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let it = self.clone();
        thread::spawn(move || {
            let used = |dir: String| {
                let stat = rustix::fs::statvfs(&dir).ok().filter(|stat| stat.f_blocks > 0)?;
                let all = stat.f_blocks.saturating_mul(stat.f_frsize);
                Some((dir, (all.saturating_sub(stat.f_bfree.saturating_mul(stat.f_frsize)), all)))
            };
            let known = dirs.into_iter().filter_map(used).collect();
            *it.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
            it.asking.store(false, Ordering::Release);
            done();
        });
    }
}
