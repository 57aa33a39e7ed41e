//! Adiantum (P. Crowley, E. Biggers, "Adiantum: length-preserving encryption for entry-level processors", 2018) as
//! Linux has it (crypto/adiantum.c, crypto/nhpoly1305.c): XChaCha with 12 or 20 rounds, AES-256 for one block,
//! NHPoly1305 as the hash.
//!
//! A sector is a left part, and a last block on its right. Every bit of it depends on every other:
//!
//! ```text
//! middle    = right + hash(tweak, left)
//! middle    = AES(middle)
//! left     ^= XChaCha(nonce = middle, 1)
//! right     = middle - hash(tweak, left)
//! ```
//!
//! All of it runs in constant time where AES does: there are no tables.

use chacha20::{Key, KeyIvInit, XChaCha12, XChaCha20, XNonce};
use cipher::StreamCipher;

use super::IvMode;
use crate::ciphers::{Acceleration, BlockCipher, aes};
use crate::secret::{LockedBox, Secret};

/// Size of the key in bytes; all other keys are derived from it.
pub const KEY: usize = 32;

/// Sectors whose middle blocks are encrypted together.
const BATCH: usize = 32;

/// Bytes of the left part per NH call, words of its key, and words that the key advances for each 16 bytes.
const NH_MESSAGE: usize = 1024;
const NH_KEY: usize = NH_MESSAGE / 4 + NH_STEP * (NH_PASSES - 1);
const NH_STEP: usize = 4;

/// Sums that NH computes.
const NH_PASSES: usize = 4;

/// Rounds of XChaCha.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// The recommended number.
    Twelve,
    /// A larger security margin.
    Twenty,
}

/// Adiantum under a key.
pub struct Adiantum {
    rounds: Rounds,
    key: Secret,
    block: Box<dyn BlockCipher>,
    /// Poly1305 keys for the tweak and for NH's output on the left part.
    header: LockedBox<[u64; 2]>,
    message: LockedBox<[u64; 2]>,
    nh: LockedBox<[u32; NH_KEY]>,
    /// IVs fill the last 16 of the 32 tweak bytes, not the first.
    at_end: bool,
}

impl Adiantum {
    /// If `at_end`, IVs of 16 bytes fill the end of the 32-byte tweak, otherwise its beginning; the rest is zeros.
    ///
    /// # Panics
    /// If `key` is not 32 bytes long.
    pub fn new(rounds: Rounds, key: &[u8], at_end: bool, with: Acceleration) -> Self {
        // AES's key, Poly1305's two, NH's.
        let mut keys = Secret::zeroed(32 + 16 + 16 + 4 * NH_KEY);
        let mut nonce = [0; 24];
        nonce[0] = 1;
        stream(rounds, key, &nonce, &mut keys);
        let (block, rest) = keys.split_at(32);
        let (header, rest) = rest.split_at(16);
        let (message, nh) = rest.split_at(16);
        let poly = |key: &[u8]| {
            LockedBox::build(|words: &mut [u64; 2]| {
                words.iter_mut().zip(key.as_chunks().0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
                words.iter_mut().zip(CLAMP).for_each(|(word, clamp)| *word &= clamp);
            })
        };
        Self {
            rounds,
            key: Secret::copy_from(key),
            block: aes::AES.with_key(block, with),
            header: poly(header),
            message: poly(message),
            nh: LockedBox::build(|words: &mut [u32; NH_KEY]| {
                words.iter_mut().zip(nh.as_chunks().0).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
            }),
            at_end,
        }
    }

    /// The hash of a tweak and of a left part.
    fn hash(&self, iv: &[u8; 16], left: &[u8]) -> u128 {
        let mut header = [[0; 16]; 3];
        header[0][..8].copy_from_slice(&(8 * left.len() as u64).to_le_bytes());
        header[if self.at_end { 2 } else { 1 }] = *iv;
        poly1305(&self.header, &header).wrapping_add(self.nh_poly1305(left))
    }

    /// NHPoly1305 of up to 4 KiB.
    fn nh_poly1305(&self, left: &[u8]) -> u128 {
        let mut sums = [[0; 16]; 2 * 4096 / NH_MESSAGE];
        let parts = left.chunks(NH_MESSAGE);
        let sums = &mut sums[..2 * parts.len()];
        for (part, sums) in parts.zip(sums.as_chunks_mut::<2>().0) {
            for (bytes, sum) in sums.as_flattened_mut().as_chunks_mut().0.iter_mut().zip(nh(&self.nh, part)) {
                *bytes = sum.to_le_bytes();
            }
        }
        poly1305(&self.message, sums)
    }

    /// Works on sectors whose middle blocks go through AES together.
    fn run(&self, encrypt: bool, ivs: &[[u8; 16]], run: &mut [u8]) {
        let size = super::sector_of(ivs, run);
        assert!(size > 16 && size.is_multiple_of(16) && size <= 4096, "Adiantum has no sectors of {size} bytes here");
        for (ivs, run) in ivs.chunks(BATCH).zip(run.chunks_mut(BATCH * size)) {
            let mut before = [[0; 16]; BATCH];
            for ((iv, sector), middle) in ivs.iter().zip(run.chunks_exact(size)).zip(&mut before) {
                let (left, right) = sector.split_last_chunk().expect("a sector has more than a block");
                *middle = u128::from_le_bytes(*right).wrapping_add(self.hash(iv, left)).to_le_bytes();
            }
            let mut after = before;
            let blocks = after[..ivs.len()].as_flattened_mut();
            match encrypt {
                true => self.block.encrypt_blocks(blocks),
                false => self.block.decrypt_blocks(blocks),
            }
            // The nonce is the encrypted middle block.
            let nonces = if encrypt { after } else { before };
            let middles = nonces.iter().zip(&after);
            for ((iv, sector), (nonce, middle)) in ivs.iter().zip(run.chunks_exact_mut(size)).zip(middles) {
                let (left, right) = sector.split_last_chunk_mut().expect("as above");
                let mut whole = [0; 24];
                whole[..16].copy_from_slice(nonce);
                whole[16] = 1;
                stream(self.rounds, &self.key, &whole, left);
                *right = u128::from_le_bytes(*middle).wrapping_sub(self.hash(iv, left)).to_le_bytes();
            }
        }
    }
}

impl IvMode for Adiantum {
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        self.run(true, ivs, run);
    }

    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        self.run(false, ivs, run);
    }
}

/// Xors `data` with XChaCha's key stream.
fn stream(rounds: Rounds, key: &[u8], nonce: &[u8; 24], data: &mut [u8]) {
    // In place: a copy would stay on the stack.
    let key = <&Key>::try_from(key).expect("a key of 32 bytes");
    let nonce = XNonce::from(*nonce);
    match rounds {
        Rounds::Twelve => XChaCha12::new(key, &nonce).apply_keystream(data),
        Rounds::Twenty => XChaCha20::new(key, &nonce).apply_keystream(data),
    }
}

/// The precomputed form of a Poly1305 key (RFC 8439, 2.5).
const CLAMP: [u64; 2] = [0x0fff_fffc_0fff_ffff, 0x0fff_fffc_0fff_fffc];

/// Poly1305 of whole blocks (RFC 8439, 2.5), modulo 2^128 and without the value that an authenticator adds at the end. There are
/// only a few blocks, and the crate's code would prepare for many.
fn poly1305(key: &[u64; 2], blocks: &[[u8; 16]]) -> u128 {
    let [r0, r1] = key.map(u128::from);
    // 5/4 of the upper word: its lowest two bits are clear, and 2^130 is 5.
    let s1 = r1 + (r1 >> 2);
    let (mut low, mut high, mut top) = (0u64, 0u64, 0u64);
    for block in blocks {
        let block = u128::from_le_bytes(*block);
        let (sum, carry) = (u128::from(high) << 64 | u128::from(low)).overflowing_add(block);
        let (h0, h1) = (u128::from(sum as u64), sum >> 64);
        // The bit after the block.
        let h2 = u128::from(top) + u128::from(carry) + 1;
        // h2 is at most 7, r0 and r1 have 60 bits: no sum reaches 2^128.
        let d0 = h0 * r0 + h1 * s1;
        let d1 = h0 * r1 + h1 * r0 + h2 * s1 + (d0 >> 64);
        let d2 = h2 * r0 + (d1 >> 64);
        // Bits beyond 2^130 come back five times.
        let back = (d2 >> 2) * 5;
        let low_words = u128::from(d1 as u64) << 64 | u128::from(d0 as u64);
        let (sum, carry) = low_words.overflowing_add(back);
        (low, high) = (sum as u64, (sum >> 64) as u64);
        top = (d2 & 3) as u64 + u64::from(carry);
    }
    // Subtracts the prime 2^130 - 5 if the value is not less, in constant time.
    let h = u128::from(high) << 64 | u128::from(low);
    let (reduced, carry) = h.overflowing_add(5);
    let beyond = (top + u64::from(carry)) >> 2;
    let mask = 0u128.wrapping_sub(u128::from(beyond & 1));
    h & !mask | reduced & mask
}

/// NH of at most 1024 bytes, whole blocks: four sums of products of 32-bit words, each with the key four words further
/// on.
fn nh(key: &[u32; NH_KEY], part: &[u8]) -> [u64; NH_PASSES] {
    let mut sums = [0u64; NH_PASSES];
    for (unit, key) in part.as_chunks::<16>().0.iter().zip(key.windows(NH_STEP * NH_PASSES).step_by(NH_STEP)) {
        let word = |i: usize| u32::from_le_bytes(unit[4 * i..][..4].try_into().expect("four bytes"));
        let [m0, m1, m2, m3] = [word(0), word(1), word(2), word(3)];
        for (sum, k) in sums.iter_mut().zip(key.as_chunks::<NH_STEP>().0) {
            let product =
                |a: u32, i: usize, b: u32, j: usize| u64::from(a.wrapping_add(k[i])) * u64::from(b.wrapping_add(k[j]));
            *sum = sum.wrapping_add(product(m0, 0, m2, 2)).wrapping_add(product(m1, 1, m3, 3));
        }
    }
    sums
}
