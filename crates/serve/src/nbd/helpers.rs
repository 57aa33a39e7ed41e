//! Threads that work on requests of one connection side by side, where the store is slow.
//!
//! A store in memory, or in the page cache, answers sooner than another thread could be woken: then the thread that receives requests
//! carries them out, one after another. A disk takes many at a time, and each of them waits. So where requests have taken long of late
//! and more than one is there, each goes to a thread of its own, up to [`MOST`]. They are started as they are needed, and end when
//! they have had nothing to do for a while.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

/// Requests of a connection that the store works on at a time. The protocol knows no limit; this is the depth that disks profit from.
const MOST: usize = 64;

/// A store is slow if a request takes that much longer than its bytes would from memory: about what waking a thread costs.
const SLOW: Duration = Duration::from_micros(30);

/// Bytes that memory gives in a nanosecond, at least: read and deciphered.
const MEMORY: usize = 2;

/// Stack size of a thread, in bytes, as for a connection.
const STACK: usize = 256 << 10;

/// The threads, and what they are to do.
pub struct WorkerThreads<J> {
    state: Mutex<State<J>>,
    /// Notified when there is more to do, or all is over.
    more: Condvar,
    /// Notified when something is done.
    done: Condvar,
    /// Which requests the store was slow at, a bit for each, the newest one lowest. An average would not do: one request during which
    /// its thread had to make room for another counts as much there as a hundred that did not.
    slow: AtomicU64,
    /// How long a thread waits for work before it ends.
    patience: Duration,
}

struct State<J> {
    jobs: VecDeque<J>,
    threads: usize,
    waiting: usize,
    over: bool,
}

impl<J: Send> WorkerThreads<J> {
    pub fn new(patience: Duration) -> Self {
        let state = State { jobs: VecDeque::new(), threads: 0, waiting: 0, over: false };
        let (more, done) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), more, done, slow: AtomicU64::new(0), patience }
    }

    /// Calls the store for `len` bytes, and remembers whether it was slow.
    pub fn timed<T>(&self, len: usize, call: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = call();
        let slow = begin.elapsed() > SLOW + Duration::from_nanos((len / MEMORY) as u64);
        // Others may have changed it: then one of the two is lost, which does not matter.
        self.slow.store(self.slow.load(Ordering::Relaxed) << 1 | u64::from(slow), Ordering::Relaxed);
        result
    }

    /// Whether the store has been slow of late: at three of eight requests.
    pub fn worthwhile(&self) -> bool {
        (self.slow.load(Ordering::Relaxed) & 0xff).count_ones() >= 3
    }

    /// Whether any of them has something to do.
    pub fn busy(&self) -> bool {
        self.state().busy()
    }

    /// Gives a job to a thread, which calls `work` with it and with what the thread has for itself. Waits while all are busy. Gives
    /// the job back if no thread can be started.
    pub fn take<'scope, 'env, Own: Default>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        job: J,
        work: impl Fn(J, &mut Own) + Send + 'scope,
    ) -> Result<(), J>
    where
        J: 'scope,
    {
        let full = |state: &mut State<J>| state.jobs.len() + state.threads - state.waiting >= MOST;
        let mut state = self.done.wait_while(self.state(), full).unwrap_or_else(PoisonError::into_inner);
        if state.jobs.len() >= state.waiting && state.threads < MOST {
            let new = Builder::new().name("nbd-helper".into()).stack_size(STACK);
            match new.spawn_scoped(scope, move || self.help(work)) {
                Ok(_) => state.threads += 1,
                Err(_) if state.threads == 0 => return Err(job),
                Err(_) => {}
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.more.notify_one();
        Ok(())
    }

    /// Waits until all that was given to them is done.
    pub fn wait(&self) {
        let busy = |state: &mut State<J>| state.busy();
        drop(self.done.wait_while(self.state(), busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Has all of them end once their work is done.
    pub fn end(&self) {
        self.state().over = true;
        self.more.notify_all();
    }

    fn help<Own: Default>(&self, work: impl Fn(J, &mut Own)) {
        let mut own = Own::default();
        loop {
            let mut state = self.state();
            state.waiting += 1;
            self.done.notify_all();
            let nothing = |state: &mut State<J>| state.jobs.is_empty() && !state.over;
            state =
                self.more.wait_timeout_while(state, self.patience, nothing).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
            let Some(job) = state.jobs.pop_front() else {
                // In the same breath: nobody relies on a thread that is about to end.
                state.threads -= 1;
                return;
            };
            drop(state);
            let _missed = Missed(self);
            work(job, &mut own);
        }
    }

    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    fn busy(&self) -> bool {
        !self.jobs.is_empty() || self.threads > self.waiting
    }
}

/// Counts a thread out whose work panics.
struct Missed<'a, J: Send>(&'a WorkerThreads<J>);

impl<J: Send> Drop for Missed<'_, J> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state().threads -= 1;
            self.0.done.notify_all();
        }
    }
}
