//! Finds the header, the key derivation, the cipher and the mode that a password belongs to, by trying them all.
//!
//! The work is divided among threads in pieces: a block of PBKDF2's output, or a whole Argon2id. Preferred headers come first. For
//! each header, the pieces that single ciphers need precede those that only cascades need, and cheaper derivations precede
//! expensive ones. So the most likely volumes open soonest, and no thread idles at the end because a long piece was begun last. The
//! winning header does not depend on thread speed: a header that opens ends only the work on those after it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use claviger_crypto::Secret;
use claviger_crypto::pool::Pool;
use claviger_crypto::secret::wipe_stack;

use super::HeaderCopy;
use super::header::{self, Fields, Rules};
use super::kdfs::Derivation;
use super::positions::Position;
use super::suites::{Mode, SharedKeys, Suite, SuiteInMode};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};

/// A header that opened.
pub(super) struct OpenedHeader {
    pub copy: usize,
    pub derivation: Derivation,
    pub suite: &'static Suite,
    pub mode: Mode,
    pub plain: Secret,
    pub fields: Fields,
}

/// The result of the trials.
pub(super) struct Outcome {
    /// The header that opened. If several would, it is the one that comes first in the table of positions.
    pub found: Option<OpenedHeader>,
    /// A header that has the magic under this password but is damaged or unsupported, and the error. If there are several, it is
    /// the first.
    pub spoilt: Option<(usize, Error)>,
    /// Why a derivation could not be tried.
    pub left_out: Option<Error>,
    /// How many header decryptions were tried.
    pub trials: u64,
    /// How many key derivations were begun.
    pub derivations: u64,
}

/// Everything to try.
pub(super) struct HeaderTrials<'a> {
    rules: &'static Rules,
    tasks: Vec<Task<'a>>,
    pieces: Vec<Piece>,
}

/// One key derivation, whose pieces several threads may compute.
struct Task<'a> {
    derivation: Derivation,
    /// The headers with this salt, preferred ones first. There are several only where a file repeats itself.
    copies: Vec<(usize, &'a HeaderCopy)>,
    /// The suites and modes to try the key with, shortest keys first.
    ways: Vec<SuiteInMode>,
    key_len: usize,
}

/// A part of a key that can be derived independently.
#[derive(Clone, Copy)]
struct Piece {
    task: usize,
    index: usize,
}

impl<'a> HeaderTrials<'a> {
    /// Builds the trials for all `copies`: each key derivation of each copy's position, with each suite in each mode.
    pub fn new(
        rules: &'static Rules,
        copies: &'a [HeaderCopy],
        derivations: impl Fn(&'static Position) -> Vec<Derivation>,
        ways: impl Fn(&'static Position) -> Vec<SuiteInMode>,
    ) -> Self {
        let mut tasks: Vec<Task<'a>> = Vec::new();
        for (rank, copy) in copies.iter().enumerate() {
            let mut ways = ways(copy.position);
            ways.sort_by_key(|(suite, mode)| suite.key_len(*mode));
            let Some((suite, mode)) = ways.last() else { continue };
            let longest = suite.key_len(*mode);
            for derivation in derivations(copy.position) {
                let same = |t: &&mut Task<'_>| {
                    let first = t.copies[0].1;
                    t.derivation.same_as(&derivation)
                        && first.salt() == copy.salt()
                        && first.position.old == copy.position.old
                };
                match tasks.iter_mut().find(same) {
                    Some(task) => task.copies.push((rank, copy)),
                    None => {
                        let key_len = derivation.output(longest);
                        tasks.push(Task { derivation, copies: vec![(rank, copy)], ways: ways.clone(), key_len });
                    }
                }
            }
        }
        let mut pieces: Vec<Piece> = tasks
            .iter()
            .enumerate()
            .flat_map(|(task, t)| (0..t.pieces()).map(move |index| Piece { task, index }))
            .collect();
        pieces.sort_by_key(|p| {
            let task = &tasks[p.task];
            (task.rank(), task.needed_for(p.index), task.effort_for(p.index), p.task, p.index)
        });
        Self { rules, tasks, pieces }
    }

    /// The estimated time for everything on one thread, in microseconds.
    pub fn effort(&self) -> u64 {
        self.tasks.iter().map(Task::effort).sum()
    }
}

impl Task<'_> {
    /// The header's rank among all headers: a lower rank is preferred.
    fn rank(&self) -> usize {
        self.copies[0].0
    }

    fn piece_len(&self) -> usize {
        self.derivation.piece(self.key_len)
    }

    fn pieces(&self) -> usize {
        self.key_len.div_ceil(self.piece_len())
    }

    /// The size of the shortest key that needs this piece, in bytes.
    fn needed_for(&self, index: usize) -> usize {
        let lens = self.ways.iter().map(|(suite, mode)| suite.key_len(*mode));
        lens.filter(|len| *len > index * self.piece_len()).min().unwrap_or(usize::MAX)
    }

    /// The estimated time for all pieces that the same key needs.
    fn effort_for(&self, index: usize) -> u64 {
        let needed = self.needed_for(index);
        self.piece_effort() * (0..self.pieces()).filter(|i| self.needed_for(*i) == needed).count() as u64
    }

    /// The estimated time for one piece on one thread, in microseconds.
    fn piece_effort(&self) -> u64 {
        (self.derivation.effort() / 1000).max(1)
    }

    fn effort(&self) -> u64 {
        self.piece_effort() * self.pieces() as u64
    }
}

/// Tries `password` in every way of the plan.
///
/// # Errors
/// `Cancelled`.
pub(super) fn run(plan: &HeaderTrials<'_>, password: &[u8], with: &Unlock<'_>) -> Result<Outcome> {
    let search = Search {
        plan,
        password,
        with,
        keys: plan.tasks.iter().map(|t| Mutex::new(Key::new(t))).collect(),
        best: AtomicUsize::new(usize::MAX),
        found: Mutex::new(None),
        spoilt: Mutex::new(None),
        left_out: Mutex::new(None),
        memory: Mutex::new(0),
        memory_given_back: Condvar::new(),
        trials: AtomicU64::new(0),
        derivations: AtomicU64::new(0),
        done: Mutex::new(0),
        total: plan.effort(),
    };
    // Threads do not spin: this is the pool's only task.
    let pool = Pool::for_this_machine(Duration::ZERO);
    pool.run(plan.pieces.len(), &|i| {
        search.derive(plan.pieces[i]);
        wipe_stack();
    });
    search.outcome()
}

/// A key, possibly derived only in part.
struct Key {
    bytes: Secret,
    begun: bool,
    /// Which pieces have been derived.
    there: Vec<bool>,
    /// How many of the task's ways have been tried.
    tried: usize,
}

impl Key {
    fn new(task: &Task<'_>) -> Self {
        Self { bytes: Secret::zeroed(task.key_len), begun: false, there: vec![false; task.pieces()], tried: 0 }
    }
}

/// The state shared by the threads.
struct Search<'a> {
    plan: &'a HeaderTrials<'a>,
    password: &'a [u8],
    with: &'a Unlock<'a>,
    /// One key for each task.
    keys: Vec<Mutex<Key>>,
    /// The rank of the copy that opened: equal and higher ranks no longer matter.
    best: AtomicUsize,
    found: Mutex<Option<OpenedHeader>>,
    spoilt: Mutex<Option<(usize, Error)>>,
    left_out: Mutex<Option<Error>>,
    /// How many bytes of memory derivations use now.
    memory: Mutex<u64>,
    memory_given_back: Condvar,
    trials: AtomicU64,
    derivations: AtomicU64,
    /// Microseconds of finished work. The lock is held while progress is reported, which keeps the reports in order.
    done: Mutex<u64>,
    total: u64,
}

impl Search<'_> {
    /// Derives one piece of a key, and tries the part of the key that is complete.
    fn derive(&self, Piece { task: number, index }: Piece) {
        let task = &self.plan.tasks[number];
        let go_on = || task.rank() < self.best.load(Ordering::Relaxed) && !self.with.cancelled();
        if !go_on() {
            return;
        }
        if !std::mem::replace(&mut lock(&self.keys[number]).begun, true) {
            self.derivations.fetch_add(1, Ordering::Relaxed);
        }
        let at = index * task.piece_len();
        let mut piece = Secret::zeroed(task.piece_len().min(task.key_len - at));
        let memory = self.take_memory(task.derivation.memory.unwrap_or(0));
        if !go_on() {
            return;
        }
        let salt = task.copies[0].1.salt();
        let derived = task.derivation.derive(self.password, salt, index, &mut piece, self.with.memory, &go_on);
        drop(memory);
        match derived {
            Ok(false) => return,
            Ok(true) => {
                let mut key = lock(&self.keys[number]);
                key.bytes[at..][..piece.len()].copy_from_slice(&piece);
                key.there[index] = true;
                self.try_key(task, &mut key, &go_on);
            }
            Err(error) => {
                lock(&self.left_out).get_or_insert(error);
            }
        }
        self.tell_progress(task.piece_effort());
    }

    /// Waits until this many bytes are available besides those that other threads use. A further derivation starts only while all
    /// of them stay within the memory limit and half of the available memory.
    fn take_memory(&self, bytes: u64) -> Memory<'_> {
        let mut taken = lock(&self.memory);
        let limit = || self.with.memory.unwrap_or(u64::MAX).min(crate::memory::available() / 2);
        let fits = |taken: u64| bytes == 0 || taken == 0 || taken.saturating_add(bytes) <= limit();
        while !fits(*taken) {
            taken = self.memory_given_back.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += bytes;
        self.show_memory(*taken);
        Memory { search: self, bytes }
    }

    fn show_memory(&self, bytes: u64) {
        if let Some(shown) = self.with.memory_in_use {
            shown.store(bytes, Ordering::Relaxed);
        }
    }

    /// Tries every way for which enough pieces have been derived.
    fn try_key(&self, task: &Task<'_>, key: &mut Key, go_on: &dyn Fn() -> bool) {
        let whole = key.there.iter().take_while(|there| **there).count() * task.piece_len();
        let keys = SharedKeys::new(&key.bytes, self.with.acceleration);
        while let Some(&(suite, mode)) = task.ways.get(key.tried).filter(|(suite, mode)| suite.key_len(*mode) <= whole)
        {
            for &(rank, copy) in &task.copies {
                if !go_on() {
                    return;
                }
                self.try_way(task.derivation, rank, copy, (suite, mode), &keys);
            }
            key.tried += 1;
        }
    }

    fn try_way(&self, derivation: Derivation, rank: usize, copy: &HeaderCopy, way: SuiteInMode, keys: &SharedKeys<'_>) {
        let (suite, mode) = way;
        self.trials.fetch_add(1, Ordering::Relaxed);
        let encrypted = &copy.bytes[header::SALT..];
        // In every mode a block's plaintext depends on nothing after it, and all trials but one end with the first block.
        let mut first: [u8; 16] = *encrypted.first_chunk().expect("a header is longer");
        suite.decrypt_header(mode, keys, &mut first);
        if !header::has_magic(&first, self.plan.rules) {
            return;
        }
        let mut plain = Secret::copy_from(&copy.bytes);
        suite.decrypt_header(mode, keys, &mut plain[header::SALT..]);
        match header::parse(&plain, copy.at, copy.position, self.plan.rules) {
            Ok(fields) => self.report(rank, OpenedHeader { copy: rank, derivation, suite, mode, plain, fields }),
            Err(error) => {
                let mut spoilt = lock(&self.spoilt);
                if spoilt.as_ref().is_none_or(|(before, _)| rank < *before) {
                    *spoilt = Some((rank, error));
                }
            }
        }
    }

    fn report(&self, rank: usize, found: OpenedHeader) {
        let mut best = lock(&self.found);
        if best.as_ref().is_none_or(|b| rank < b.copy) {
            *best = Some(found);
            self.best.store(rank, Ordering::Relaxed);
        }
    }

    fn tell_progress(&self, microseconds: u64) {
        let mut done = lock(&self.done);
        *done += microseconds;
        if let Some(progress) = self.with.progress {
            progress(*done, self.total);
        }
    }

    fn outcome(self) -> Result<Outcome> {
        let found = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() && self.with.cancelled() {
            return Err(ErrorKind::Cancelled.into());
        }
        let done = self.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let (Some(progress), true) = (self.with.progress, done < self.total) {
            // Work that was skipped counts as done.
            progress(self.total, self.total);
        }
        Ok(Outcome {
            found,
            spoilt: self.spoilt.into_inner().unwrap_or_else(PoisonError::into_inner),
            left_out: self.left_out.into_inner().unwrap_or_else(PoisonError::into_inner),
            trials: self.trials.into_inner(),
            derivations: self.derivations.into_inner(),
        })
    }
}

/// Memory that a derivation uses, released on drop.
struct Memory<'a> {
    search: &'a Search<'a>,
    bytes: u64,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let mut taken = lock(&self.search.memory);
        *taken -= self.bytes;
        self.search.show_memory(*taken);
        self.search.memory_given_back.notify_all();
    }
}

/// The pool passes on another thread's panic, so the data that it left behind the lock are never used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
