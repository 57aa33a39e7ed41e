//! A pool of threads that share out the pieces of one task.
//!
//! It lives in this crate because lending a borrowed task to a thread that outlives the call takes `unsafe`.
#![allow(unsafe_code)]

use std::hint;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::secret::{wipe_after_sectors, wipe_stack};

/// Threads that help the caller of [`Pool::run`].
///
/// Pieces are claimed one by one, so a helper that wakes late costs nothing: the caller has then done its share. When two
/// threads call at once, the second works alone, because then no processor is idle anyway.
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Counts the tasks posted; helpers that spin watch it without taking the lock.
    posted: AtomicUsize,
    /// The next piece to claim.
    next: AtomicUsize,
    /// Helpers that work on the present task. Raised under the lock while there is a task; lowered without it.
    inside: AtomicUsize,
    panicked: AtomicBool,
    spin: Duration,
}

struct State {
    task: Option<Task>,
    asleep: usize,
    closing: bool,
}

/// A borrowed task with its lifetime taken off. See `Pool::run` for why that is sound.
#[derive(Clone, Copy)]
struct Task {
    call: *const (dyn Fn(usize) + Sync),
    pieces: usize,
}

// SAFETY: what it points to is `Sync`, and `Pool::run` keeps it alive while any helper may use it.
unsafe impl Send for Task {}

impl Pool {
    /// A pool in which `threads` threads work, the caller among them. An idle helper looks for new tasks for the time
    /// `spin` before it sleeps: waking a sleeping thread can take 100 µs, spinning takes a processor.
    pub fn new(threads: usize, spin: Duration) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { task: None, asleep: 0, closing: false }),
            wake: Condvar::new(),
            posted: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            spin,
        });
        // A thread that cannot be had is one helper less, not a failure.
        let helper = |i| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("pool-{i}")).spawn(move || shared.help()).ok()
        };
        let helpers = (1..threads).filter_map(helper).collect();
        Self { shared, helpers }
    }

    /// A pool of as many threads as there are processors for this process.
    pub fn for_this_machine(spin: Duration) -> Self {
        Self::new(thread::available_parallelism().map_or(1, usize::from), spin)
    }

    /// Threads that work on a task, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `task` once with each number below `pieces`, on this thread and on idle helpers, and returns when all
    /// calls have. A panic in any of them is passed on.
    pub fn run(&self, pieces: usize, task: &(dyn Fn(usize) + Sync)) {
        if pieces < 2 || self.helpers.is_empty() || !self.shared.post(task, pieces) {
            return (0..pieces).for_each(task);
        }
        let _taken_back_on_unwind = Posted(&self.shared);
        self.shared.claim(pieces, task);
    }
}

/// Cuts `run` into pieces of `piece` bytes (the last may be shorter) and calls `each` with the offset and bytes of every
/// one, on the threads of `pool`. Keys that it had on their stacks and in vector registers are wiped after each.
pub fn for_each_piece(pool: &Pool, run: &mut [u8], piece: usize, each: impl Fn(usize, &mut [u8]) + Sync) {
    let pieces: Vec<Mutex<&mut [u8]>> = run.chunks_mut(piece).map(Mutex::new).collect();
    pool.run(pieces.len(), &|i| {
        each(i * piece, &mut lock(&pieces[i]));
        wipe_after_sectors();
    });
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.posted.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

/// A task that helpers may be working on. Dropping it, on return or unwinding, takes it back and waits for them.
struct Posted<'a>(&'a Shared);

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // No piece is left for a helper to begin: matters when the caller's own piece panicked.
        self.0.next.swap(usize::MAX / 2, Ordering::SeqCst);
        let mut spins = 0u32;
        while self.0.inside.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < 10_000 { hint::spin_loop() } else { thread::yield_now() }
        }
        // From the lock on, no helper enters; one that entered since the loop above is waited for here.
        let mut state = lock(&self.0.state);
        while self.0.inside.load(Ordering::Acquire) != 0 {
            hint::spin_loop();
        }
        state.task = None;
        drop(state);
        if self.0.panicked.swap(false, Ordering::Relaxed) && !thread::panicking() {
            resume_unwind(Box::new("a piece of the task panicked on another thread"));
        }
    }
}

impl Shared {
    /// Offers a task to the helpers, unless they have one.
    fn post(&self, task: &(dyn Fn(usize) + Sync), pieces: usize) -> bool {
        let mut state = lock(&self.state);
        if state.task.is_some() {
            return false;
        }
        // SAFETY: only the lifetime changes. A helper copies the pointer only under the lock while `state.task` is
        // set, and raises `inside` before it lets go of the lock. `Posted::drop`, which `run` cannot leave without,
        // clears `state.task` under the lock and does so only with `inside` at zero. So no helper holds the pointer
        // after `run` returns.
        let call = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(task)
        };
        self.next.store(0, Ordering::Relaxed);
        state.task = Some(Task { call, pieces });
        self.posted.fetch_add(1, Ordering::Release);
        if state.asleep > 0 {
            self.wake.notify_all();
        }
        true
    }

    /// Claims pieces and does them until none is left.
    fn claim(&self, pieces: usize, call: &dyn Fn(usize)) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return;
            }
            call(piece);
        }
    }

    /// The life of a helper.
    fn help(&self) {
        let mut seen = 0;
        loop {
            self.spin_while(|| self.posted.load(Ordering::Acquire) == seen);
            if self.posted.load(Ordering::Acquire) == seen {
                wipe_stack(); // before a sleep that may be long
            }
            let mut state = lock(&self.state);
            while !state.closing && self.posted.load(Ordering::Acquire) == seen {
                state.asleep += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep -= 1;
            }
            if state.closing {
                return;
            }
            seen = self.posted.load(Ordering::Acquire);
            let Some(task) = state.task else { continue };
            self.inside.fetch_add(1, Ordering::SeqCst);
            drop(state);
            // SAFETY: this helper is inside, so the caller of `run`, which has the task borrowed, is still waiting.
            let call = unsafe { &*task.call };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.claim(task.pieces, call))) {
                forget(payload); // dropping it could panic again, and the caller would wait for ever
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.inside.fetch_sub(1, Ordering::Release);
        }
    }

    fn spin_while(&self, nothing_new: impl Fn() -> bool) {
        let start = Instant::now();
        while nothing_new() && start.elapsed() < self.spin {
            hint::spin_loop();
        }
    }
}

/// A panic of another thread leaves nothing half-changed under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once() {
        for threads in 1..5 {
            let pool = Pool::new(threads, Duration::from_micros(50));
            for pieces in [0, 1, 2, 3, 100] {
                for _ in 0..200 {
                    let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(pieces, &|i| {
                        done[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn callers_may_collide() {
        let pool = Pool::new(3, Duration::ZERO);
        let sum = AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..500 {
                        pool.run(7, &|i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 500 * 21);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2, Duration::ZERO);
        for bad in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| pool.run(20, &|i| assert_ne!(i, bad, "planted"))));
            assert!(result.is_err());
        }
        let count = AtomicUsize::new(0);
        pool.run(20, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 20);
    }

    #[test]
    fn pieces_cover_the_run() {
        let pool = Pool::new(2, Duration::ZERO);
        let mut run: Vec<u8> = vec![0; 1000];
        for_each_piece(&pool, &mut run, 64, |at, piece| {
            piece.iter_mut().enumerate().for_each(|(i, b)| *b = ((at + i) % 251) as u8);
        });
        assert!(run.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
    }
}
