//! Combines concurrent flushes: one flush serves every caller that came before it began.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The flushes of one volume.
#[derive(Default)]
pub(super) struct Flushing {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    begun: u64,
    done: u64,
    /// The number of the last failed flush, and its error.
    failed: Option<(u64, io::ErrorKind, String)>,
}

impl Flushing {
    /// Runs `flush`, or waits for another caller's. Returns after a flush that began after this call has ended.
    pub fn flush(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state();
        let wanted = state.begun + 1;
        while state.running && state.done < wanted {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.done >= wanted {
            return state.of(wanted);
        }
        state.running = true;
        state.begun += 1;
        let this = state.begun;
        drop(state);
        let panicked = Some((io::ErrorKind::Other, "a flush did not end".to_owned()));
        let mut running = Running { flushing: self, number: this, failed: panicked };
        let result = flush();
        running.failed = result.as_ref().err().map(|error| (error.kind(), error.to_string()));
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The result of the wanted flush. If a later one failed, the result of the wanted one is unknown, so it counts as failed.
    fn of(&self, wanted: u64) -> io::Result<()> {
        match &self.failed {
            Some((failed, kind, why)) if *failed >= wanted => Err(io::Error::new(*kind, why.clone())),
            _ => Ok(()),
        }
    }
}

/// A running flush.
struct Running<'a> {
    flushing: &'a Flushing,
    number: u64,
    failed: Option<(io::ErrorKind, String)>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.flushing.state();
        (state.running, state.done) = (false, self.number);
        if let Some((kind, why)) = self.failed.take() {
            state.failed = Some((self.number, kind, why));
        }
        drop(state);
        self.flushing.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The first flush waits until four more callers came, which then share the second one.
    fn five(flush: impl Fn(usize) -> io::Result<()> + Sync) -> (usize, Vec<bool>) {
        let (flushing, count, asked) = (Flushing::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let one = || {
            flushing
                .flush(|| {
                    let nth = count.fetch_add(1, Ordering::SeqCst);
                    while nth == 0 && asked.load(Ordering::SeqCst) < 4 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    flush(nth)
                })
                .is_ok()
        };
        let results = thread::scope(|scope| {
            let first = scope.spawn(one);
            while count.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            let others: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        asked.fetch_add(1, Ordering::SeqCst);
                        one()
                    })
                })
                .collect();
            [first].into_iter().chain(others).map(|thread| thread.join().expect("no panic")).collect()
        });
        (count.into_inner(), results)
    }

    #[test]
    fn nobody_is_served_by_a_flush_that_had_begun() {
        let (count, results) = five(|_| Ok(()));
        assert!(count >= 2 && results.iter().all(|good| *good), "{count}");
        let (count, results) = five(|nth| if nth == 0 { Ok(()) } else { Err(io::Error::other("planted")) });
        assert!(count >= 2 && results[0] && results[1..].iter().all(|good| !good), "{count} {results:?}");
    }
}
