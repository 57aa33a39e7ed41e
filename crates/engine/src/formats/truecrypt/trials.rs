//! Finds the header, the key derivation, the cipher and the mode that a password belongs to, by trying them all.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use claviger_crypto::Secret;
use claviger_crypto::pool::Pool;
use claviger_crypto::secret::wipe_stack;
use zeroize::Zeroize;

use super::header::{self, Fields};
use super::suites::{Kdf, Mode, SharedKeys, Suite};
use super::{HeaderCopy, Position};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};

/// The largest digest of a hash, in bytes.
const LARGEST_DIGEST: usize = 64;

/// A header that opened.
pub(super) struct Found {
    pub copy: usize,
    pub kdf: &'static Kdf,
    pub suite: &'static Suite,
    pub mode: Mode,
    pub plain: Secret,
    pub fields: Fields,
}

/// What the trials came to.
pub(super) struct Outcome {
    /// The header that opened; where several would, the one that comes first in the table of positions.
    pub found: Option<Found>,
    /// The header that has the magic under this password and is wrong or not supported in some other way, and what is wrong
    /// with it. Of several, the first.
    pub spoilt: Option<(usize, Error)>,
    /// Header decryptions that were tried.
    pub trials: u64,
}

/// A suite in a mode.
pub(super) type Way = (&'static Suite, Mode);

/// Tries `password` on all `copies`: each key derivation of each copy's position, each suite in each mode.
///
/// # Errors
/// `Cancelled`.
pub(super) fn run(
    copies: &[HeaderCopy],
    password: &[u8],
    kdfs: impl Fn(&'static Position) -> Vec<&'static Kdf>,
    ways: impl Fn(&'static Position) -> Vec<Way>,
    with: &Unlock<'_>,
) -> Result<Outcome> {
    let derivations: Vec<Derivation<'_>> = copies
        .iter()
        .enumerate()
        .flat_map(|(rank, copy)| {
            let ways = ways(copy.position);
            kdfs(copy.position).into_iter().map(move |kdf| Derivation::new(rank, copy, kdf, ways.clone()))
        })
        .collect();
    // Blocks of PBKDF2's output are independent of each other, and all cost about the same: they are what threads share.
    let blocks: Vec<(usize, usize)> = derivations
        .iter()
        .enumerate()
        .flat_map(|(d, derivation)| (0..derivation.blocks()).map(move |b| (d, b)))
        .collect();
    let search = Search {
        password,
        with,
        best: AtomicUsize::new(usize::MAX),
        found: Mutex::new(None),
        spoilt: Mutex::new(None),
        trials: AtomicU64::new(0),
        done: Mutex::new(0),
        total: blocks.len() as u64,
    };
    // No spinning: this is the pool's only task.
    let pool = Pool::for_this_machine(Duration::ZERO);
    pool.run(blocks.len(), &|i| {
        let (derivation, block) = blocks[i];
        search.derive(&derivations[derivation], block);
        wipe_stack();
    });
    search.outcome()
}

/// One key derivation, whose blocks may be made by several threads.
struct Derivation<'a> {
    /// Place of the copy among all: a lower one is preferred.
    rank: usize,
    copy: &'a HeaderCopy,
    kdf: &'static Kdf,
    ways: Vec<Way>,
    key: Mutex<Secret>,
    blocks_left: AtomicUsize,
}

impl<'a> Derivation<'a> {
    fn new(rank: usize, copy: &'a HeaderCopy, kdf: &'static Kdf, ways: Vec<Way>) -> Self {
        let key_len = ways.iter().map(|(suite, mode)| suite.key_len(*mode)).max().unwrap_or(0);
        let key = Mutex::new(Secret::zeroed(key_len));
        Self { rank, copy, kdf, ways, key, blocks_left: AtomicUsize::new(key_len.div_ceil(kdf.hash.size)) }
    }

    fn blocks(&self) -> usize {
        lock(&self.key).len().div_ceil(self.kdf.hash.size)
    }
}

/// What the threads share.
struct Search<'a> {
    password: &'a [u8],
    with: &'a Unlock<'a>,
    /// Rank of the copy that opened: nothing of this or a higher rank matters any more.
    best: AtomicUsize,
    found: Mutex<Option<Found>>,
    spoilt: Mutex<Option<(usize, Error)>>,
    trials: AtomicU64,
    /// Blocks that are done. Held while progress is told, so that it is told in order.
    done: Mutex<u64>,
    total: u64,
}

impl Search<'_> {
    /// Makes one block of a key; whoever makes the last one tries the key.
    fn derive(&self, derivation: &Derivation<'_>, block: usize) {
        let go_on = || derivation.rank < self.best.load(Ordering::Relaxed) && !self.with.cancelled();
        if !go_on() {
            return;
        }
        let Kdf { hash, iterations } = *derivation.kdf;
        let mut digest = [0; LARGEST_DIGEST];
        let digest = &mut digest[..hash.size];
        let salt = &derivation.copy.bytes[..header::SALT];
        if hash.pbkdf2_block(self.password, salt, iterations, block as u32 + 1, digest, &go_on) {
            let mut key = lock(&derivation.key);
            let part = key.chunks_mut(hash.size).nth(block).expect("blocks are counted from the key's length");
            part.copy_from_slice(&digest[..part.len()]);
            // Counted under the lock: the last one sees all others' bytes.
            if derivation.blocks_left.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.try_all(derivation, &key, &go_on);
            }
            drop(key);
            self.tell_progress();
        }
        digest.zeroize();
    }

    /// Tries a derived key in every way.
    fn try_all(&self, derivation: &Derivation<'_>, key: &[u8], go_on: &dyn Fn() -> bool) {
        let keys = SharedKeys::new(key, self.with.acceleration);
        let mut plain = Secret::copy_from(&derivation.copy.bytes);
        for &(suite, mode) in &derivation.ways {
            if !go_on() {
                return;
            }
            self.trials.fetch_add(1, Ordering::Relaxed);
            let encrypted = &derivation.copy.bytes[header::SALT..];
            // In every mode a block's plaintext depends on nothing after it, and all but one trial end with the first.
            let mut first: [u8; 16] = *encrypted.first_chunk().expect("a header is longer");
            suite.decrypt_header(mode, &keys, &mut first);
            if !header::has_magic(&first) {
                continue;
            }
            let body = &mut plain[header::SALT..];
            body.copy_from_slice(encrypted);
            suite.decrypt_header(mode, &keys, body);
            match header::parse(&plain, derivation.copy.at) {
                Ok(fields) => {
                    return self.report(
                        derivation.rank,
                        Found { copy: derivation.rank, kdf: derivation.kdf, suite, mode, plain, fields },
                    );
                }
                Err(error) => {
                    let mut spoilt = lock(&self.spoilt);
                    if spoilt.as_ref().is_none_or(|(rank, _)| derivation.rank < *rank) {
                        *spoilt = Some((derivation.rank, error));
                    }
                }
            }
        }
    }

    fn report(&self, rank: usize, found: Found) {
        let mut best = lock(&self.found);
        if best.as_ref().is_none_or(|b| rank < b.copy) {
            *best = Some(found);
            self.best.store(rank, Ordering::Relaxed);
        }
    }

    fn tell_progress(&self) {
        let mut done = lock(&self.done);
        *done += 1;
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
            // What was left out need not be done any more.
            progress(self.total, self.total);
        }
        let spoilt = self.spoilt.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Outcome { found, spoilt, trials: self.trials.into_inner() })
    }
}

/// A panic of another thread is passed on by the pool: what it left here is not looked at.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
