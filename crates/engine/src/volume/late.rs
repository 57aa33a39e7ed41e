//! Writes collected data of volumes with tags shortly after they were written.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::integrity::TaggedSectors;
use crate::store::Store;

/// How long a write may stay in memory only. Without a flush, a killed program loses that much. It is long enough for a busy volume
/// to fill many sections of the journal, so little is written twice because of this limit.
const MOMENT: Duration = Duration::from_millis(50);

/// A thread that sleeps until data were collected, and writes them a moment later.
pub(super) struct Late {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    store: Arc<dyn Store>,
    /// The areas, with their offsets in the store.
    areas: Vec<(Arc<TaggedSectors>, u64)>,
    /// Whether data may have been collected since the thread last looked.
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

    /// Notifies the thread that data were collected.
    pub fn collected(&self) {
        let Shared { collected, woken, .. } = &*self.shared;
        if !collected.load(Ordering::Relaxed) && !collected.swap(true, Ordering::Relaxed) {
            // The thread holds this lock except while it waits. So it cannot miss the notification between its check and its sleep.
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
                // Data collected from here on start another moment.
                self.collected.swap(false, Ordering::AcqRel);
                for (area, base) in &self.areas {
                    // The area remembers an error and returns it from every later flush and write.
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
