//! How many threads of a server wait for requests.
//!
//! The kernel wakes whoever has slept longest. With many threads asleep each request comes to a cold one, and two are woken while
//! one still looks for its next. So a few wait, and the others rest until these are all busy.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many threads wait for requests, if there are as many.
const ENOUGH: usize = 2;

/// A thread beyond [`ENOUGH`] that has waited for so long rests.
pub const LONG: Duration = Duration::from_millis(10);

/// Who waits and who rests.
pub struct Listening {
    state: Mutex<State>,
    relief: Condvar,
}

struct State {
    /// Threads that wait for a request, or are about to.
    listening: usize,
    resting: usize,
    /// Threads that rest and are to wait for requests again.
    called: usize,
    over: bool,
}

impl Listening {
    /// So many threads, all of which wait.
    pub fn new(threads: usize) -> Self {
        let state = State { listening: threads, resting: 0, called: 0, over: false };
        Self { state: Mutex::new(state), relief: Condvar::new() }
    }

    /// Whether more threads wait than are needed: they wait for [`LONG`] only, and [`rest`](Self::rest) then.
    pub fn more_than_enough(&self) -> bool {
        self.state().listening > ENOUGH
    }

    /// A thread that waited works now. If no other waits, one that rests does.
    pub fn begin(&self) {
        let mut state = self.state();
        state.listening -= 1;
        if state.listening == 0 && state.resting > state.called {
            state.called += 1;
            state.listening += 1;
            self.relief.notify_one();
        }
    }

    /// A thread that worked waits again.
    pub fn end(&self) {
        self.state().listening += 1;
    }

    /// Rests until it is called or all is over, unless too few would wait then.
    pub fn rest(&self) {
        let mut state = self.state();
        if state.listening <= ENOUGH || state.over {
            return;
        }
        state.listening -= 1;
        state.resting += 1;
        state = self.relief.wait_while(state, |s| s.called == 0 && !s.over).unwrap_or_else(PoisonError::into_inner);
        state.resting -= 1;
        match state.called {
            0 => state.listening += 1,
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

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
            assert_eq!((back.load(Ordering::SeqCst), listening.state().listening), (0, 1));
            listening.begin();
            while back.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            assert_eq!(listening.state().listening, 1);
            // Nobody is left to be called.
            listening.begin();
            listening.end();
            listening.end();
            listening.end();
            assert_eq!(listening.state().listening, 3);
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
        assert_eq!(listening.state().listening, 16);
        listening.rest();
    }
}
