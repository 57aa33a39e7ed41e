//! HMAC of Streebog and Whirlpool, for PBKDF2, which calls it half a million times. Both hashes have blocks and digests of 64 bytes
//! and are slow with tables.
#![allow(unsafe_code, reason = "calls of vector code")]

use zeroize::Zeroize;

use super::network;
use crate::kdf::Prf;

/// A hash after whole blocks.
pub(super) trait Wide: Clone {
    fn new() -> Self;
    fn block(&mut self, block: &[u8; 64]);
    /// The digest after `rest`, which is less than a block.
    fn end(self, rest: &[u8]) -> [u8; 64];

    fn digest(mut self, parts: &[&[u8]]) -> [u8; 64] {
        let (mut buffer, mut filled) = ([0; 64], 0);
        for mut part in parts.iter().copied() {
            while filled + part.len() >= 64 {
                let (now, later) = part.split_at(64 - filled);
                buffer[filled..].copy_from_slice(now);
                self.block(&buffer);
                (part, filled) = (later, 0);
            }
            buffer[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        self.end(&buffer[..filled])
    }
}

/// Streebog with digests of 512 bits (RFC 6986).
#[derive(Clone)]
pub(super) struct Streebog {
    h: [u8; 64],
    /// The number of bits hashed before, and the sum of all blocks: numbers of 512 bits, the lowest word first.
    n: [u64; 8],
    sum: [u64; 8],
}

/// Whirlpool, the final version (ISO/IEC 10118-3).
#[derive(Clone)]
pub(super) struct Whirlpool {
    h: [u8; 64],
    /// The number of bytes hashed before.
    len: u64,
}

/// HMAC (RFC 2104).
pub(super) struct WideHmac<H> {
    inner: H,
    outer: H,
}

impl Streebog {
    fn compress(&mut self, n: &[u8; 64], m: &[u8; 64]) {
        // SAFETY: who calls this made sure that it is usable.
        unsafe { network::streebog(&mut self.h, n, m) }
    }

    fn add(&mut self, block: &[u8; 64], bytes: usize) {
        self.compress(&bytes_of(self.n), block);
        add(&mut self.n, words_of(&number(8 * bytes as u64)));
        add(&mut self.sum, words_of(block));
    }
}

impl Wide for Streebog {
    fn new() -> Self {
        Self { h: [0; 64], n: [0; 8], sum: [0; 8] }
    }

    fn block(&mut self, block: &[u8; 64]) {
        self.add(block, 64);
    }

    fn end(mut self, rest: &[u8]) -> [u8; 64] {
        let mut block = [0; 64];
        block[..rest.len()].copy_from_slice(rest);
        block[rest.len()] = 1;
        self.add(&block, rest.len());
        let (n, sum) = (bytes_of(self.n), bytes_of(self.sum));
        self.compress(&[0; 64], &n);
        self.compress(&[0; 64], &sum);
        self.h
    }
}

impl Wide for Whirlpool {
    fn new() -> Self {
        Self { h: [0; 64], len: 0 }
    }

    fn block(&mut self, block: &[u8; 64]) {
        self.len += 64;
        // SAFETY: who calls this made sure that it is usable.
        unsafe { network::whirlpool(&mut self.h, block) }
    }

    fn end(mut self, rest: &[u8]) -> [u8; 64] {
        /// Where the length begins, in bits, the highest byte first.
        const LENGTH: usize = 32;
        let bits = 8 * (self.len + rest.len() as u64);
        let mut block = [0; 64];
        block[..rest.len()].copy_from_slice(rest);
        block[rest.len()] = 0x80;
        if rest.len() >= LENGTH {
            self.block(&block);
            block = [0; 64];
        }
        block[56..].copy_from_slice(&bits.to_be_bytes());
        self.block(&block);
        self.h
    }
}

impl<H: Wide> Prf for WideHmac<H> {
    type Output = [u8; 64];

    fn new(key: &[u8]) -> Self {
        let mut block = [0; 64];
        if key.len() > block.len() {
            block = H::new().digest(&[key]);
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let mut keyed = |pad: u8| {
            let mut hash = H::new();
            block.iter_mut().for_each(|byte| *byte ^= pad);
            hash.block(&block);
            block.iter_mut().for_each(|byte| *byte ^= pad);
            hash
        };
        let (inner, outer) = (keyed(0x36), keyed(0x5c));
        block.zeroize();
        Self { inner, outer }
    }

    fn of(&self, parts: &[&[u8]]) -> [u8; 64] {
        self.outer.clone().digest(&[&self.inner.clone().digest(parts)])
    }
}

/// Adds modulo 2^512.
fn add(sum: &mut [u64; 8], more: [u64; 8]) {
    let mut carry = false;
    for (word, more) in sum.iter_mut().zip(more) {
        (*word, carry) = word.carrying_add(more, carry);
    }
}

fn number(low: u64) -> [u8; 64] {
    bytes_of([low, 0, 0, 0, 0, 0, 0, 0])
}

fn bytes_of(words: [u64; 8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(eight, word)| *eight = word.to_le_bytes());
    bytes
}

fn words_of(bytes: &[u8; 64]) -> [u64; 8] {
    let mut words = [0; 8];
    words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, eight)| *word = u64::from_le_bytes(*eight));
    words
}

#[cfg(test)]
mod tests {
    use digest::Digest;
    use hmac::{EagerHash, Hmac};

    use super::*;

    /// Compares with the crates, for every length around one and two blocks, with keys of each kind.
    fn same<H: Wide, D: EagerHash + Digest>() {
        if !crate::vbmi::usable() {
            return;
        }
        let text: Vec<u8> = (0..200).map(|i| (i * 7 + i / 9) as u8).collect();
        for len in 0..text.len() {
            let message = &text[..len];
            let (head, tail) = message.split_at(len / 3);
            assert_eq!(H::new().digest(&[head, tail])[..], D::digest(message)[..], "{len} bytes");
        }
        for (key, len) in [(0, 0), (5, 68), (63, 64), (64, 64), (65, 3), (199, 130)] {
            let (key, message) = (&text[..key], &text[1..=len]);
            let ours = WideHmac::<H>::new(key).of(&[message]);
            assert_eq!(ours[..], Prf::of(&<Hmac<D> as Prf>::new(key), &[message])[..], "{} {len}", key.len());
        }
    }

    #[test]
    fn streebog_is_streebog() {
        same::<Streebog, streebog::Streebog512>();
    }

    #[test]
    fn whirlpool_is_whirlpool() {
        same::<Whirlpool, whirlpool::Whirlpool>();
    }

    /// Bits of N beyond a word, and a sum that carries all the way.
    #[test]
    fn a_sum_carries_through_all_words() {
        let mut sum = [u64::MAX; 8];
        add(&mut sum, [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sum, [0; 8]);
        let mut sum = [u64::MAX, 0, 5, 0, 0, 0, 0, 0];
        add(&mut sum, [1, u64::MAX, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sum, [0, 0, 6, 0, 0, 0, 0, 0]);
    }
}
