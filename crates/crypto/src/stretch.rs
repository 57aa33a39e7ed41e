//! BitLocker's key stretch, which turns a password or a recovery password into a key (J. Metz, libbde, "BitLocker Drive
//! Encryption (BDE) format specification", on stretch keys):
//!
//! ```text
//! h = 32 zero bytes
//! for i in 0 .. 2^20:  h = SHA-256(h ‖ secret ‖ salt ‖ i, 64 bits, little-endian)
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sha2::block_api::compress256;
use zeroize::Zeroize;

use crate::pool::Pool;
use crate::secret::{Secret, wipe_stack};

/// Iterations of every stretch.
pub const ITERATIONS: u64 = 1 << 20;

/// Bytes of a secret's hash and of the key that it is stretched to.
pub const KEY: usize = 32;

/// Iterations between two checks for cancellation: a millisecond or two.
const CHECK_EVERY: u64 = 4096;

/// SHA-256's initial state (FIPS 180-4, section 5.3.3).
const BEGIN: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Bytes that each iteration hashes.
const MESSAGE: usize = 88;
/// The offset of its counter.
const COUNTER: usize = 80;

/// A secret to stretch.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// The hash of the password or recovery password: 32 bytes.
    pub secret: &'a [u8],
    /// The salt beside it in the volume's metadata.
    pub salt: &'a [u8; 16],
}

/// Stretches one secret. Every few thousand iterations, `go_on` gets the number of them that are done, and returns whether to
/// continue. `None` if it returns false.
///
/// # Panics
/// If the secret does not have 32 bytes.
pub fn stretch(task: Task<'_>, go_on: &dyn Fn(u64) -> bool) -> Option<Secret> {
    let key = stretched(task, go_on);
    wipe_stack();
    key
}

/// Stretches several secrets on the threads of `pool`. `done` gets the index and the key of each as soon as it is ready, on the
/// thread that derived it. `go_on` gets the total number of iterations so far, possibly from several threads at once. Returns false
/// if it said no; then some keys are missing.
///
/// # Panics
/// If a secret does not have 32 bytes.
pub fn stretch_all(
    tasks: &[Task<'_>],
    pool: &Pool,
    go_on: &(dyn Fn(u64) -> bool + Sync),
    done: &(dyn Fn(usize, Secret) + Sync),
) -> bool {
    let (all, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
    let step = |done: u64| {
        let more = done.min(CHECK_EVERY);
        let all = all.fetch_add(more, Ordering::Relaxed) + more;
        !stopped.load(Ordering::Relaxed) && go_on(all)
    };
    pool.run(tasks.len(), &|i| match stretch(tasks[i], &step) {
        Some(key) => done(i, key),
        None => stopped.store(true, Ordering::Relaxed),
    });
    !stopped.load(Ordering::Relaxed)
}

/// The messages of two iterations differ only in the hash and the counter, so the message is padded once, in two blocks.
fn stretched(task: Task<'_>, go_on: &dyn Fn(u64) -> bool) -> Option<Secret> {
    let mut blocks = Secret::zeroed(128);
    blocks[KEY..][..KEY].copy_from_slice(task.secret);
    blocks[2 * KEY..COUNTER].copy_from_slice(task.salt);
    blocks[MESSAGE] = 0x80;
    blocks[120..].copy_from_slice(&(8 * MESSAGE as u64).to_be_bytes());
    for i in 0..ITERATIONS {
        if i % CHECK_EVERY == 0 && !go_on(i) {
            return None;
        }
        blocks[COUNTER..MESSAGE].copy_from_slice(&i.to_le_bytes());
        hash_into_itself(&mut blocks);
    }
    Some(Secret::copy_from(&blocks[..KEY]))
}

/// Replaces the first 32 bytes of the padded message by its digest.
fn hash_into_itself(blocks: &mut [u8]) {
    let mut state = BEGIN;
    compress256(&mut state, blocks.as_chunks().0);
    for (bytes, word) in blocks[..KEY].as_chunks_mut().0.iter_mut().zip(&state) {
        *bytes = word.to_be_bytes();
    }
    state.zeroize();
}
