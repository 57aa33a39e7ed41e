//! BitLocker's diffuser "Elephant" around a mode (N. Ferguson, "AES-CBC + Elephant diffuser", 2006;
//! `crypt_iv_elephant`): the plaintext is first xored with a key for its sector and then mixed by two diffusers, A and
//! B.

use zeroize::Zeroize;

use super::iv::Numbers;
use super::sectors::Keyed;
use crate::ciphers::{Acceleration, BlockCipher, aes};
use crate::modes::SectorCipher;

/// Rotations and cycles of the two diffusers.
const A: ([u32; 4], usize) = ([9, 0, 13, 0], 5);
const B: ([u32; 4], usize) = ([0, 10, 0, 25], 3);

/// Words of the largest sector.
const MOST_WORDS: usize = 4096 / 4;

/// A mode with the diffuser in front.
pub(super) struct Elephant {
    mode: Keyed,
    /// AES under the second half of the key.
    sector_keys: Box<dyn BlockCipher>,
    numbers: Numbers,
}

impl Elephant {
    /// `key` is an AES key.
    pub fn new(mode: Keyed, key: &[u8], numbers: Numbers, with: Acceleration) -> Self {
        Self { mode, sector_keys: aes::AES.with_key(key, with), numbers }
    }

    /// Xors each 32 bytes of a sector with the sector's key.
    fn xor_key(&self, sector: u64, bytes: &mut [u8]) {
        let mut key = [0; 32];
        let offset = self.numbers.iv(sector).wrapping_mul(self.numbers.sectors.size as u64);
        key[..8].copy_from_slice(&offset.to_le_bytes());
        key[16..24].copy_from_slice(&offset.to_le_bytes());
        key[31] = 0x80;
        self.sector_keys.encrypt_blocks(&mut key);
        for (byte, key) in bytes.iter_mut().zip(key.iter().cycle()) {
            *byte ^= key;
        }
        key.zeroize();
    }
}

impl SectorCipher for Elephant {
    fn sector_size(&self) -> usize {
        self.mode.sector_size()
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        for (i, sector) in (0..).zip(run.chunks_exact_mut(self.sector_size())) {
            self.xor_key(first.wrapping_add(i), sector);
            with_words(sector, |words| {
                undo(words, A, |i, by, n| (i + n - by) % n);
                undo(words, B, |i, by, n| (i + by) % n);
            });
        }
        self.mode.encrypt(first, run);
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.mode.decrypt(first, run);
        for (i, sector) in (0..).zip(run.chunks_exact_mut(self.sector_size())) {
            with_words(sector, |words| {
                apply(words, B, |i, by, n| (i + by) % n);
                apply(words, A, |i, by, n| (i + n - by) % n);
            });
            self.xor_key(first.wrapping_add(i), sector);
        }
    }
}

/// A diffuser, in decryption direction. `other` gives the words that change word `i`: two and five away.
fn apply(words: &mut [u32], (rotations, cycles): ([u32; 4], usize), other: impl Fn(usize, usize, usize) -> usize) {
    let n = words.len();
    for _ in 0..cycles {
        for i in 0..n {
            let change = words[other(i, 2, n)] ^ words[other(i, 5, n)].rotate_left(rotations[i % 4]);
            words[i] = words[i].wrapping_add(change);
        }
    }
}

/// The inverse of [`apply`], from the last word to the first.
fn undo(words: &mut [u32], (rotations, cycles): ([u32; 4], usize), other: impl Fn(usize, usize, usize) -> usize) {
    let n = words.len();
    for _ in 0..cycles {
        for i in (0..n).rev() {
            let change = words[other(i, 2, n)] ^ words[other(i, 5, n)].rotate_left(rotations[i % 4]);
            words[i] = words[i].wrapping_sub(change);
        }
    }
}

/// Applies `change` to the little-endian words of a sector.
fn with_words(sector: &mut [u8], change: impl FnOnce(&mut [u32])) {
    let mut words = [0; MOST_WORDS];
    let words = &mut words[..sector.len() / 4];
    let bytes = sector.as_chunks_mut().0;
    words.iter_mut().zip(&*bytes).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
    change(words);
    bytes.iter_mut().zip(&*words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
}
