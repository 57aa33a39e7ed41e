//! Polls for the next request for a while before sleeping: waking up on another CPU costs more than most requests.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// If one turn of the loop takes this long, another program ran in the meantime. It needs the CPU, so polling stops.
const ELSEWHERE: Duration = Duration::from_micros(50);

/// Counts the threads of a server that are not asleep.
pub struct Awake {
    threads: AtomicUsize,
    processors: usize,
}

impl Awake {
    pub fn new() -> Self {
        Self { threads: AtomicUsize::new(0), processors: thread::available_parallelism().map_or(1, usize::from) }
    }

    /// Whether this server leaves a CPU to its clients.
    fn leaves_one(&self) -> bool {
        self.threads.load(Ordering::Relaxed) < self.processors
    }
}

/// Counts a thread as awake for its lifetime.
pub struct Running<'a>(&'a Awake);

impl<'a> Running<'a> {
    pub fn new(awake: &'a Awake) -> Self {
        awake.threads.fetch_add(1, Ordering::Relaxed);
        Self(awake)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removes a running thread from that count for its lifetime.
pub struct Sleeping<'a>(&'a Awake);

impl<'a> Sleeping<'a> {
    pub fn new(awake: &'a Awake) -> Self {
        awake.threads.fetch_sub(1, Ordering::Relaxed);
        Self(awake)
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.threads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Remembers whether spinning paid off for a thread.
#[derive(Default)]
pub struct Spinner {
    /// Consecutive spins without a result.
    fruitless: u32,
}

impl Spinner {
    /// Calls `look` until it finds something, for at most `time`, if that is likely to pay off and leaves a CPU to the
    /// clients.
    ///
    /// # Errors
    /// Those of `look`.
    pub fn spin<T>(
        &mut self,
        awake: &Awake,
        time: Duration,
        mut look: impl FnMut() -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        // After several vain polls, only try occasionally: the client may have become faster.
        let worth_it = self.fruitless < 4 || self.fruitless.is_multiple_of(16);
        if time.is_zero() || !worth_it || !awake.leaves_one() {
            self.fruitless = self.fruitless.wrapping_add(u32::from(!worth_it));
            return Ok(None);
        }
        let start = Instant::now();
        let mut last = start;
        while awake.leaves_one() && last - start < time {
            if let Some(found) = look()? {
                self.fruitless = 0;
                return Ok(Some(found));
            }
            // The kernel may have woken the client on this CPU, expecting this thread to sleep now.
            thread::yield_now();
            let now = Instant::now();
            if now - last > ELSEWHERE {
                break;
            }
            last = now;
        }
        self.fruitless = self.fruitless.wrapping_add(1);
        Ok(None)
    }
}
