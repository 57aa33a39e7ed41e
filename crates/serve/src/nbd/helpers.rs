//! Threads that carry out requests of one connection in parallel, for slow stores.
//!
//! A store in memory or in the page cache answers sooner than another thread could be woken, so the receiving thread
//! carries out requests one after another. A disk takes many requests at a time, each with a delay. If recent requests
//! were slow and more than one is waiting, each goes to its own thread, up to [`MOST`]. Threads are started when
//! needed, and end after some idle time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

/// Requests of a connection that the store works on at a time. The protocol has no limit; disks benefit up to this depth.
const MOST: usize = 64;

/// A request is slow if it takes this much longer than reading its bytes from memory: about the cost of waking a thread.
const SLOW: Duration = Duration::from_micros(30);

/// Minimum speed of memory, in bytes per nanosecond: reading and decrypting.
const MEMORY: usize = 2;

/// Stack size of a thread, in bytes, as for a connection.
const STACK: usize = 256 << 10;

/// The threads and their work.
pub struct WorkerThreads<J> {
    state: Mutex<State<J>>,
    /// Notified when there is more work, or at the end.
    more: Condvar,
    /// Notified when a job is done.
    done: Condvar,
    /// Whether the store was slow at recent requests: one bit per request, the newest one lowest. An average would be
    /// worse: in it, one request whose thread was preempted counts as much as a hundred others.
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

    /// Calls the store for `len` bytes, and records whether it was slow.
    pub fn timed<T>(&self, len: usize, call: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = call();
        let slow = begin.elapsed() > SLOW + Duration::from_nanos((len / MEMORY) as u64);
        // A concurrent change may be lost here, which does no harm.
        self.slow.store(self.slow.load(Ordering::Relaxed) << 1 | u64::from(slow), Ordering::Relaxed);
        result
    }

    /// Whether the store was slow recently: at three of the last eight requests.
    pub fn worthwhile(&self) -> bool {
        (self.slow.load(Ordering::Relaxed) & 0xff).count_ones() >= 3
    }

    /// Whether any thread has work.
    pub fn busy(&self) -> bool {
        self.state().busy()
    }

    /// Hands a job to a thread, which calls `work` with the job and the thread's own state. Waits while all threads are
    /// busy. Returns the job if no thread can be started.
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

    /// Waits until all jobs are done.
    pub fn wait(&self) {
        let busy = |state: &mut State<J>| state.busy();
        drop(self.done.wait_while(self.state(), busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Ends all threads once their work is done.
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
                // Under the same lock, so no job goes to a thread that is about to end.
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

/// Removes a thread from the count if its work panics.
struct Missed<'a, J: Send>(&'a WorkerThreads<J>);

impl<J: Send> Drop for Missed<'_, J> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state().threads -= 1;
            self.0.done.notify_all();
        }
    }
}
