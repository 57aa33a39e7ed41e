//! PBKDF2 (RFC 8018), block by block. Callers use [`crate::hash::Hash::pbkdf2`].

use blake2::Blake2sVarCore;
use digest::block_api::{Block, BlockSizeUser, Buffer, UpdateCore, VariableOutputCore};
use digest::{Digest, FixedOutput, KeyInit, Output, OutputSizeUser, Update};
use hmac::{EagerHash, Hmac};
use zeroize::Zeroize;

/// Iterations between two checks for cancellation: well under a millisecond for every hash.
pub(crate) const CHECK_EVERY: u32 = 64;

/// A keyed pseudo-random function, with its key.
pub(crate) trait Prf {
    type Output: AsRef<[u8]> + AsMut<[u8]> + Clone;
    fn new(key: &[u8]) -> Self;
    /// The value for the concatenation of `parts`.
    fn of(&self, parts: &[&[u8]]) -> Self::Output;
}

impl<D: EagerHash> Prf for Hmac<D> {
    type Output = Output<Self>;

    fn new(key: &[u8]) -> Self {
        Self::new_from_slice(key).expect("HMAC takes keys of any length")
    }

    fn of(&self, parts: &[&[u8]]) -> Self::Output {
        let mut hmac = self.clone();
        parts.iter().for_each(|part| Update::update(&mut hmac, part));
        hmac.finalize_fixed()
    }
}

/// HMAC (RFC 2104) that keeps the states after the keys. For some hashes the crate `hmac` cannot keep them, and compresses the
/// outer key again for each message.
pub(crate) struct CachedHmac<D> {
    inner: D,
    outer: D,
}

impl<D: Digest + BlockSizeUser + Clone> Prf for CachedHmac<D> {
    type Output = Output<D>;

    fn new(key: &[u8]) -> Self {
        let mut block = Block::<D>::default();
        if key.len() > block.len() {
            let mut digest = D::digest(key);
            block[..digest.len()].copy_from_slice(&digest);
            digest.as_mut_slice().zeroize();
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let mut keyed = |pad: u8| {
            block.iter_mut().for_each(|byte| *byte ^= pad);
            let hash = D::new_with_prefix(&block);
            block.iter_mut().for_each(|byte| *byte ^= pad);
            hash
        };
        let (inner, outer) = (keyed(0x36), keyed(0x5c));
        block.as_mut_slice().zeroize();
        Self { inner, outer }
    }

    fn of(&self, parts: &[&[u8]]) -> Self::Output {
        let mut inner = self.inner.clone();
        parts.iter().for_each(|part| Digest::update(&mut inner, part));
        self.outer.clone().chain_update(inner.finalize()).finalize()
    }
}

/// HMAC (RFC 2104) with BLAKE2s-256. The crate `hmac` would compress the key again in each iteration, twice, because
/// BLAKE2s treats its last block differently; here the key is never the last block.
pub(crate) struct Blake2sHmac {
    inner: Blake2sVarCore,
    outer: Blake2sVarCore,
}

impl Prf for Blake2sHmac {
    type Output = Output<blake2::Blake2s256>;

    fn new(key: &[u8]) -> Self {
        let mut block = Block::<Blake2sVarCore>::default();
        if key.len() > block.len() {
            let mut digest = blake2::Blake2s256::digest(key);
            block[..digest.len()].copy_from_slice(&digest);
            digest.as_mut_slice().zeroize();
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let mut keyed = |pad: u8| {
            let mut core =
                Blake2sVarCore::new(<blake2::Blake2s256 as OutputSizeUser>::output_size()).expect("one of its sizes");
            block.iter_mut().for_each(|byte| *byte ^= pad);
            core.update_blocks(std::slice::from_ref(&block));
            block.iter_mut().for_each(|byte| *byte ^= pad);
            core
        };
        let (inner, outer) = (keyed(0x36), keyed(0x5c));
        block.as_mut_slice().zeroize();
        Self { inner, outer }
    }

    fn of(&self, parts: &[&[u8]]) -> Self::Output {
        let finish = |core: &Blake2sVarCore, parts: &[&[u8]]| {
            let mut core = core.clone();
            let mut buffer = Buffer::<Blake2sVarCore>::default();
            parts.iter().for_each(|part| buffer.digest_blocks(part, |blocks| core.update_blocks(blocks)));
            let mut out = Self::Output::default();
            core.finalize_variable_core(&mut buffer, &mut out);
            out
        };
        finish(&self.outer, &[&finish(&self.inner, parts)])
    }
}

/// One block of PBKDF2 (RFC 8018, 5.2): `index` counts from 1, `out` takes at most one digest. The crate `pbkdf2`
/// derives all blocks in a row; here they can be computed on several threads and cancelled. Returns false when `go_on`
/// said no.
pub(crate) fn pbkdf2_block<P: Prf>(
    password: &[u8],
    salt: &[u8],
    iterations: u32,
    index: u32,
    out: &mut [u8],
    go_on: &dyn Fn() -> bool,
) -> bool {
    let keyed = P::new(password);
    let mut u = keyed.of(&[salt, &index.to_be_bytes()]);
    let mut sum = u.clone();
    let mut done = 1;
    while done < iterations && go_on() {
        let next = iterations.min(done + CHECK_EVERY);
        for _ in done..next {
            u = keyed.of(&[u.as_ref()]);
            sum.as_mut().iter_mut().zip(u.as_ref()).for_each(|(s, u)| *s ^= u);
        }
        done = next;
    }
    let finished = done >= iterations;
    if finished {
        out.copy_from_slice(&sum.as_ref()[..out.len()]);
    }
    sum.as_mut().zeroize();
    u.as_mut().zeroize();
    finished
}
