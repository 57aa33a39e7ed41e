//! AES (FIPS 197), a byte at a time and without tables: the S-box is computed where it is needed.

use super::{Block, Reference, multiply};

/// AES with a key of 16, 24 or 32 bytes.
pub struct Aes {
    round_keys: Vec<Block>,
}

impl Aes {
    /// Expands the key (FIPS 197, 5.2).
    pub fn new(key: &[u8]) -> Self {
        let nk = key.len() / 4;
        let mut words: Vec<[u8; 4]> = key.chunks(4).map(|w| w.try_into().expect("whole words")).collect();
        let mut constant = 1;
        for i in nk..4 * (nk + 7) {
            let mut word = words[i - 1];
            if i % nk == 0 {
                word.rotate_left(1);
                word = word.map(substitute);
                word[0] ^= constant;
                constant = multiply(constant, 2, MODULUS);
            } else if nk > 6 && i % nk == 4 {
                word = word.map(substitute);
            }
            words.push(std::array::from_fn(|b| word[b] ^ words[i - nk][b]));
        }
        Self { round_keys: words.chunks(4).map(|k| k.concat().try_into().expect("four words")).collect() }
    }
}

impl Reference for Aes {
    fn encrypt(&self, block: Block) -> Block {
        let (first, rest) = self.round_keys.split_first().expect("there are round keys");
        let (last, middle) = rest.split_last().expect("there are round keys");
        let state = middle
            .iter()
            .fold(add(block, first), |s, key| add(mix_columns(shift_rows(s.map(substitute)), [2, 3, 1, 1]), key));
        add(shift_rows(state.map(substitute)), last)
    }

    fn decrypt(&self, block: Block) -> Block {
        let (first, rest) = self.round_keys.split_first().expect("there are round keys");
        let (last, middle) = rest.split_last().expect("there are round keys");
        let state = middle.iter().rev().fold(unshift_rows(add(block, last)).map(unsubstitute), |s, key| {
            unshift_rows(mix_columns(add(s, key), [14, 11, 13, 9])).map(unsubstitute)
        });
        add(state, first)
    }
}

/// x^8 + x^4 + x^3 + x + 1 (4.2).
const MODULUS: u32 = 0x11B;

/// The inverse in the field, then the affine map of 5.1.1.
fn substitute(x: u8) -> u8 {
    // The field's group has 255 elements: x^254 is the inverse, and zero stays zero.
    let inverse = (0..254).fold(1, |power, _| multiply(power, x, MODULUS));
    (0..5).fold(0x63, |y, i| y ^ inverse.rotate_left(i))
}

/// The inverse affine map, then the inverse in the field (5.3.2).
fn unsubstitute(y: u8) -> u8 {
    let x = [1, 3, 6].iter().fold(0x05, |x, &i| x ^ y.rotate_left(i));
    (0..254).fold(1, |power, _| multiply(power, x, MODULUS))
}

fn shift_rows(s: Block) -> Block {
    std::array::from_fn(|i| s[(i + 4 * (i % 4)) % 16])
}

fn unshift_rows(s: Block) -> Block {
    std::array::from_fn(|i| s[(i + 12 * (i % 4)) % 16])
}

/// Multiplies each column by the matrix whose first row is `row`; each further row is the one above, turned by one.
fn mix_columns(s: Block, row: [u8; 4]) -> Block {
    std::array::from_fn(|i| {
        (0..4).fold(0, |sum, j| sum ^ multiply(s[i / 4 * 4 + j], row[(4 + j - i % 4) % 4], MODULUS))
    })
}

fn add(s: Block, key: &Block) -> Block {
    std::array::from_fn(|i| s[i] ^ key[i])
}
