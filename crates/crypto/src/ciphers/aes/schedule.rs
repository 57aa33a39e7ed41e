//! The key schedule (FIPS 197, 5.2), without tables.
#![allow(unsafe_code)]

use super::s_box::sub_word;
use crate::secret::{Locked, Plain};

/// Round keys for both directions.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct RoundKeys {
    /// Keys of the cipher, in order of use.
    pub encrypt: [[u8; 16]; MAX_KEYS],
    /// Keys of the equivalent inverse cipher (FIPS 197, 5.3.5), in order of use.
    pub decrypt: [[u8; 16]; MAX_KEYS],
}

/// AES-256 has 14 rounds and a key before the first.
const MAX_KEYS: usize = 15;

// SAFETY: arrays of bytes; 2 * 15 * 16 = 480, and the padding up to 512 is only ever zero.
unsafe impl Plain for RoundKeys {}

/// A key schedule in locked memory.
pub(super) struct Schedule {
    pub keys: Locked<RoundKeys>,
    /// 10, 12 or 14.
    pub rounds: usize,
}

impl Schedule {
    /// Expands a key of 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Self {
        let rounds = key.len() / 4 + 6;
        let keys = Locked::build(|keys: &mut RoundKeys| {
            expand(key, keys.encrypt[..=rounds].as_flattened_mut());
            for (inverse, forward) in keys.decrypt[..=rounds].iter_mut().zip(keys.encrypt[..=rounds].iter().rev()) {
                *inverse = *forward;
            }
            keys.decrypt[1..rounds].as_flattened_mut().chunks_exact_mut(4).for_each(inverse_mix_column);
        });
        Self { keys, rounds }
    }
}

fn expand(key: &[u8], out: &mut [u8]) {
    out[..key.len()].copy_from_slice(key);
    let mut round_constant = 1u8;
    for at in (key.len()..out.len()).step_by(4) {
        let mut word: [u8; 4] = out[at - 4..at].try_into().expect("4 bytes");
        if at % key.len() == 0 {
            word.rotate_left(1);
            word = sub_word(word);
            word[0] ^= round_constant;
            round_constant = times_x(round_constant);
        } else if key.len() == 32 && at % 32 == 16 {
            word = sub_word(word);
        }
        for i in 0..4 {
            out[at + i] = out[at + i - key.len()] ^ word[i];
        }
    }
}

/// Multiplies by x in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1.
fn times_x(byte: u8) -> u8 {
    (byte << 1) ^ (0x1b & (byte >> 7).wrapping_neg())
}

/// FIPS 197, 5.3.3, for one column.
fn inverse_mix_column(column: &mut [u8]) {
    let [a, b, c, d]: [u8; 4] = (&*column).try_into().expect("4 bytes");
    // 0e 0b 0d 09 is 02 03 01 01 after 05 00 04 00 (Daemen and Rijmen, The Design of Rijndael, 4.1.3).
    let even = times_x(times_x(a ^ c));
    let odd = times_x(times_x(b ^ d));
    let [a, b, c, d] = [a ^ even, b ^ odd, c ^ even, d ^ odd];
    let all = a ^ b ^ c ^ d;
    column[0] = a ^ all ^ times_x(a ^ b);
    column[1] = b ^ all ^ times_x(b ^ c);
    column[2] = c ^ all ^ times_x(c ^ d);
    column[3] = d ^ all ^ times_x(d ^ a);
}
