//! Exercisers: random operations on a disk or in a folder, checked against a model in memory.
//!
//! Based on the idea of fsx, the "file system exerciser" (Avadis Tevanian at NeXT, 1991). The operations depend only on
//! the seed: a failure names the seed and the last operations, and can be reproduced with it.

mod disk;
mod folder;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use disk::{Disk, FileDisk, StoreDisk, exercise};
pub use folder::{Folder, exercise_folder};

use crate::random::Random;

/// The number of operations that a failure shows.
const SHOWN: usize = 40;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The seed: the same seed gives the same operations.
    pub seed: u64,
    /// When to stop.
    pub until: Until,
    /// The longest read or write, in bytes.
    pub longest: usize,
    /// Stops before the next operation once this is set.
    pub stop: Option<&'a AtomicBool>,
}

/// When an exerciser ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this many operations.
    Operations(u64),
    /// At that time.
    Time(Instant),
}

impl Plan<'_> {
    /// This many operations of up to 64 KiB.
    pub fn operations(seed: u64, operations: u64) -> Self {
        Self { seed, until: Until::Operations(operations), longest: 64 << 10, stop: None }
    }

    /// Operations of up to 64 KiB for this long.
    pub fn lasting(seed: u64, time: Duration) -> Self {
        Self { until: Until::Time(Instant::now() + time), ..Self::operations(seed, 0) }
    }

    fn goes_on(&self, done: u64) -> bool {
        let time_left = match self.until {
            Until::Operations(all) => done < all,
            Until::Time(end) => Instant::now() < end,
        };
        time_left && !self.stop.is_some_and(|s| s.load(Ordering::Relaxed))
    }
}

/// The seed from `FSX_SEED` in the environment, to reproduce a failure; otherwise one that differs from run to run.
///
/// # Panics
/// If `FSX_SEED` is not a number.
pub fn seed() -> u64 {
    match std::env::var("FSX_SEED") {
        Ok(text) => text.parse().expect("FSX_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64 & 0xffff_ffff),
    }
}

/// What went wrong, with everything needed to reproduce it.
#[derive(Debug)]
pub struct Failure {
    /// The seed of the plan.
    pub seed: u64,
    /// Operations completed before.
    pub done: u64,
    /// The failure.
    pub what: String,
    /// The last operations, oldest first, including the failed one.
    pub last: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (after {} operations with FSX_SEED={})", self.what, self.done, self.seed)?;
        self.last.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl std::error::Error for Failure {}

/// The last operations.
pub(crate) struct Log {
    seed: u64,
    done: u64,
    last: VecDeque<String>,
}

impl Log {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, done: 0, last: VecDeque::new() }
    }

    /// Records that an operation begins.
    pub(crate) fn note(&mut self, operation: String) {
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back(format!("{}: {operation}", self.done));
        self.done += 1;
    }

    pub(crate) fn failure(&self, what: impl fmt::Display) -> Failure {
        Failure { seed: self.seed, done: self.done, what: what.to_string(), last: self.last.iter().cloned().collect() }
    }
}

/// The first difference between two byte ranges, if any. `at` is their offset.
pub(crate) fn difference(expected: &[u8], found: &[u8], at: u64) -> Option<String> {
    if expected == found {
        return None;
    }
    if expected.len() != found.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let differs = |i: &usize| expected[*i] != found[*i];
    let first = (0..found.len()).find(differs)?;
    let last = (0..found.len()).rfind(differs)?;
    let count = (first..=last).filter(differs).count();
    let show = |bytes: &[u8]| crate::vectors::hex(&bytes[first..(first + 8).min(bytes.len())]);
    let (from, to) = (at + first as u64, at + last as u64);
    Some(format!(
        "{count} wrong bytes from {from} to {to} (there is {}, and should be {})",
        show(found),
        show(expected)
    ))
}

/// A length of up to `longest`: often short, sometimes long.
fn some_length(random: &mut Random, longest: usize) -> usize {
    let scale = *random.choose(&[64, 1024, 8192, longest, longest]);
    1 + random.below(scale.min(longest))
}

/// A range within `len` bytes, sometimes aligned to a sector or page, sometimes right after the previous one.
pub(crate) fn some_range(random: &mut Random, len: u64, longest: usize, before: &(u64, usize)) -> (u64, usize) {
    let count = some_length(random, longest);
    let anywhere = random.number() % len;
    let (offset, count) = match random.below(8) {
        0..=2 => (anywhere, count),
        3 | 4 => (anywhere / 4096 * 4096, count.next_multiple_of(4096)),
        5 => (anywhere / 512 * 512, count.next_multiple_of(512)),
        6 => (before.0 + before.1 as u64, count),
        _ => (before.0.saturating_sub(random.below(count) as u64), count),
    };
    let offset = offset.min(len - 1);
    (offset, (count as u64).min(len - offset).min(longest as u64) as usize)
}
