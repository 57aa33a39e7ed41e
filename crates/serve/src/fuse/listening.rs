//! Limits how many threads of a server wait for requests.
//!
//! The kernel wakes the thread that slept longest. With many threads asleep, each request reaches a cold one, and a
//! second wakes while the first still looks for its next request. So a few threads wait, and the others rest until
//! these are all busy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many threads wait for requests, if there are that many.
const ENOUGH: usize = 2;

/// How long a thread beyond [`ENOUGH`] waits before it rests.
pub const LONG: Duration = Duration::from_millis(10);

/// Counts the threads that wait and those that rest.
pub struct Listening {
    /// Threads that wait for a request, or are about to. Every request changes this, so it is not behind the lock.
    listening: AtomicUsize,
    state: Mutex<State>,
    relief: Condvar,
}

#[derive(Default)]
struct State {
    resting: usize,
    /// Resting threads that were called to wait for requests again. They already count as waiting.
    called: usize,
    over: bool,
}

impl Listening {
    /// Starts with this many threads, all of them waiting.
    pub fn new(threads: usize) -> Self {
        Self { listening: threads.into(), state: Mutex::default(), relief: Condvar::new() }
    }

    /// Whether more threads wait than needed. These wait only for [`LONG`] and then [`rest`](Self::rest).
    pub fn more_than_enough(&self) -> bool {
        self.listening.load(Ordering::SeqCst) > ENOUGH
    }

    /// A waiting thread begins to work. If no other thread waits, a resting one is called.
    pub fn begin(&self) {
        if self.listening.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.call();
        }
    }

    /// A working thread waits again.
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

    /// Rests until called or until the server ends, unless too few threads would be left waiting.
    pub fn rest(&self) {
        let mut state = self.state();
        if state.over {
            return;
        }
        // A thread that begins now and sees nobody waiting must take the lock first, and then finds this thread resting or back.
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

    /// Wakes all threads, which then see that the server ends. None rests from now on.
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
            // Too few threads would be left waiting.
            listening.rest();
            listening.begin();
            assert_eq!((back.load(Ordering::SeqCst), listening.now()), (0, 1));
            listening.begin();
            while back.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            assert_eq!(listening.now(), 1);
            // No thread is left to call.
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
                    // The threads work and wait in turn, and would rest each time. Without calls, the last ones would
                    // rest forever.
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
