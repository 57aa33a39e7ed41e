//! How many threads of a server wait for requests.
//!
//! The kernel wakes whoever has slept longest. With many threads asleep each request comes to a cold one, and two are woken while
//! one still looks for its next. So a few wait, and the others rest until these are all busy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many threads wait for requests, if there are as many.
const ENOUGH: usize = 2;

/// A thread beyond [`ENOUGH`] that has waited for so long rests.
pub const LONG: Duration = Duration::from_millis(10);

/// Who waits and who rests.
pub struct Listening {
    /// Threads that wait for a request, or are about to. Each request changes it, and so takes no lock.
    listening: AtomicUsize,
    state: Mutex<State>,
    relief: Condvar,
}

#[derive(Default)]
struct State {
    resting: usize,
    /// Threads that rest and are to wait for requests again: they count as waiting already.
    called: usize,
    over: bool,
}

impl Listening {
    /// So many threads, all of which wait.
    pub fn new(threads: usize) -> Self {
        Self { listening: threads.into(), state: Mutex::default(), relief: Condvar::new() }
    }

    /// Whether more threads wait than are needed: they wait for [`LONG`] only, and [`rest`](Self::rest) then.
    pub fn more_than_enough(&self) -> bool {
        self.listening.load(Ordering::SeqCst) > ENOUGH
    }

    /// A thread that waited works now. If no other waits, one that rests does.
    pub fn begin(&self) {
        if self.listening.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.call();
        }
    }

    /// A thread that worked waits again.
    pub fn end(&self) {
        self.listening.fetch_add(1, Ordering::SeqCst);
    }

    fn call(&self) {
        let mut state = self.state();
        if self.listening.load(Ordering::SeqCst) == 0 && state.resting > state.called {
            state.called += 1;
            self.listening.fetch_add(1, Ordering::SeqCst);
            self.relief.notify_one();
        }
    }

    /// Rests until it is called or all is over, unless too few would wait then.
    pub fn rest(&self) {
        let mut state = self.state();
        if state.over {
            return;
        }
        // Whoever begins now and sees that nobody is left has to wait for the lock, and finds this one at rest or back.
        if self.listening.fetch_sub(1, Ordering::SeqCst) <= ENOUGH {
            self.listening.fetch_add(1, Ordering::SeqCst);
            return;
        }
        state.resting += 1;
        state = self.relief.wait_while(state, |s| s.called == 0 && !s.over).unwrap_or_else(PoisonError::into_inner);
        state.resting -= 1;
        match state.called {
            0 => self.end(),
            _ => state.called -= 1,
        }
    }

    /// Nobody rests from now on: all are to see that it ends.
    pub fn over(&self) {
        self.state().over = true;
        self.relief.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    impl Listening {
        fn now(&self) -> usize {
            self.listening.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn who_rests_is_called_as_soon_as_nobody_waits() {
        let listening = Listening::new(3);
        let back = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                listening.rest();
                back.fetch_add(1, Ordering::SeqCst);
            });
            while listening.state().resting == 0 {
                thread::yield_now();
            }
            assert!(!listening.more_than_enough());
            // Too few would be left.
            listening.rest();
            listening.begin();
            assert_eq!((back.load(Ordering::SeqCst), listening.now()), (0, 1));
            listening.begin();
            while back.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            assert_eq!(listening.now(), 1);
            // Nobody is left to be called.
            listening.begin();
            listening.end();
            listening.end();
            listening.end();
            assert_eq!(listening.now(), 3);
        });
    }

    #[test]
    fn nobody_rests_when_all_is_over() {
        let listening = Listening::new(16);
        thread::scope(|scope| {
            for _ in 0..14 {
                scope.spawn(|| listening.rest());
            }
            while listening.state().resting < 14 {
                thread::yield_now();
            }
            listening.over();
        });
        assert_eq!(listening.now(), 16);
        listening.rest();
    }

    #[test]
    fn nobody_rests_while_nobody_waits() {
        let (listening, begun) = (Listening::new(6), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    // Each works and waits by turns, and would rest each time; without a call the last ones would for ever.
                    for _ in 0..2000 {
                        listening.rest();
                        listening.begin();
                        begun.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        listening.end();
                    }
                    listening.over();
                });
            }
        });
        assert_eq!((begun.into_inner(), listening.now()), (12_000, 6));
    }
}
