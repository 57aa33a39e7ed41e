//! Writes what volumes with tags collect, when nobody has asked for it for a moment.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::integrity::TaggedSectors;
use crate::store::Store;

/// How long a write may be in memory only: what a program that is killed may lose, unless there was a flush. Long enough for a busy
/// volume to fill many sections of the journal, so that little is written twice because of it.
const MOMENT: Duration = Duration::from_millis(50);

/// A thread that sleeps until something was collected, and writes it a moment later.
pub(super) struct Late {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    store: Arc<dyn Store>,
    /// With their offsets in the store.
    areas: Vec<(Arc<TaggedSectors>, u64)>,
    /// Whether something may have been collected that the thread has not seen to.
    collected: AtomicBool,
    ended: Mutex<bool>,
    woken: Condvar,
}

impl Late {
    /// # Errors
    /// Those of starting a thread.
    pub fn start(store: Arc<dyn Store>, areas: Vec<(Arc<TaggedSectors>, u64)>) -> io::Result<Self> {
        let (collected, ended, woken) = (AtomicBool::new(false), Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { store, areas, collected, ended, woken });
        let worker = Arc::clone(&shared);
        let thread = Builder::new().name("claviger-late".into()).spawn(move || worker.work())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Says that something was collected.
    pub fn collected(&self) {
        let Shared { collected, woken, .. } = &*self.shared;
        if !collected.load(Ordering::Relaxed) && !collected.swap(true, Ordering::Relaxed) {
            // The thread holds it but while it waits: so it does not miss the call between its look and its sleep.
            drop(self.shared.ended());
            woken.notify_one();
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        *self.shared.ended() = true;
        self.shared.woken.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn work(&self) {
        let mut ended = self.ended();
        while !*ended {
            if !self.collected.load(Ordering::Relaxed) {
                ended = self.woken.wait(ended).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let sleep = self.woken.wait_timeout_while(ended, MOMENT, |ended| !*ended);
            ended = sleep.unwrap_or_else(PoisonError::into_inner).0;
            if !*ended {
                drop(ended);
                // Whatever is collected from here on asks for another moment.
                self.collected.swap(false, Ordering::AcqRel);
                for (area, base) in &self.areas {
                    // The area remembers an error: every flush and every write from now on ends with it.
                    let _ = area.commit(&*self.store, *base);
                }
                ended = self.ended();
            }
        }
    }

    fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
