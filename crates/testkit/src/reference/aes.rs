//! AES byte by byte (FIPS 197). The S-box is computed from its definition, not typed in.

use std::array;
use std::sync::LazyLock;

use super::{Block, Keyed, multiply_mod};

/// AES with keys of 16, 24 or 32 bytes.
pub struct Aes {
    /// Nr + 1 round keys.
    round_keys: Vec<Block>,
}

impl Aes {
    /// Key expansion (FIPS 197, 5.2).
    pub fn new(key: &[u8]) -> Self {
        assert!(matches!(key.len(), 16 | 24 | 32), "AES takes no key of {} bytes", key.len());
        let nk = key.len() / 4;
        let rounds = nk + 6;
        let mut words: Vec<[u8; 4]> = key.as_chunks().0.to_vec();
        let mut rcon = 1;
        for i in nk..4 * (rounds + 1) {
            let mut temp = words[i - 1];
            if i % nk == 0 {
                temp.rotate_left(1);
                temp = temp.map(sub);
                temp[0] ^= rcon;
                rcon = multiply(rcon, 2);
            } else if nk > 6 && i % nk == 4 {
                temp = temp.map(sub);
            }
            words.push(array::from_fn(|b| words[i - nk][b] ^ temp[b]));
        }
        Self { round_keys: words.as_flattened().as_chunks().0.to_vec() }
    }

    /// The round keys in encryption order.
    pub fn round_keys(&self) -> &[Block] {
        &self.round_keys
    }
}

impl Keyed for Aes {
    /// FIPS 197, 5.1.
    fn encrypt(&self, block: &mut Block) {
        let last = self.round_keys.len() - 1;
        add_round_key(block, &self.round_keys[0]);
        for round in 1..=last {
            *block = block.map(sub);
            shift_rows(block);
            if round < last {
                mix_columns(block, [2, 3, 1, 1]);
            }
            add_round_key(block, &self.round_keys[round]);
        }
    }

    /// FIPS 197, 5.3.
    fn decrypt(&self, block: &mut Block) {
        let last = self.round_keys.len() - 1;
        add_round_key(block, &self.round_keys[last]);
        for round in (0..last).rev() {
            inverse_shift_rows(block);
            *block = block.map(inverse_sub);
            add_round_key(block, &self.round_keys[round]);
            if round > 0 {
                mix_columns(block, [0x0e, 0x0b, 0x0d, 0x09]);
            }
        }
    }
}

fn add_round_key(block: &mut Block, key: &Block) {
    block.iter_mut().zip(key).for_each(|(b, k)| *b ^= k);
}

/// Row r of the state has the bytes r, r + 4, r + 8, r + 12 (FIPS 197, 3.4), and is rotated left by r.
fn shift_rows(block: &mut Block) {
    *block = array::from_fn(|at| block[(at + 4 * (at % 4)) % 16]);
}

fn inverse_shift_rows(block: &mut Block) {
    *block = array::from_fn(|at| block[(at + 16 - 4 * (at % 4)) % 16]);
}

/// Multiplies each column by a circulant matrix with the first row `first`.
fn mix_columns(block: &mut Block, first: [u8; 4]) {
    for column in block.chunks_exact_mut(4) {
        let mixed: [u8; 4] =
            array::from_fn(|row| (0..4).fold(0, |sum, i| sum ^ multiply(first[(i + 4 - row) % 4], column[i])));
        column.copy_from_slice(&mixed);
    }
}

fn sub(byte: u8) -> u8 {
    S_BOX[usize::from(byte)]
}

fn inverse_sub(byte: u8) -> u8 {
    INVERSE_S_BOX[usize::from(byte)]
}

/// FIPS 197, 5.1.1: the inverse in GF(2^8), 0 for 0, then an affine transformation.
static S_BOX: LazyLock<[u8; 256]> = LazyLock::new(|| {
    array::from_fn(|byte| {
        let inverse = (1..=255).find(|i| multiply(byte as u8, *i) == 1).unwrap_or(0);
        (0..5).fold(0x63, |sum, shift| sum ^ inverse.rotate_left(shift))
    })
});

static INVERSE_S_BOX: LazyLock<[u8; 256]> = LazyLock::new(|| {
    let mut inverse = [0; 256];
    for (byte, sub) in (0..=255).zip(*S_BOX) {
        inverse[usize::from(sub)] = byte;
    }
    inverse
});

/// FIPS 197, 4.2: modulo x^8 + x^4 + x^3 + x + 1.
fn multiply(a: u8, b: u8) -> u8 {
    multiply_mod(a, b, 0x11b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_box_of_figure_7() {
        assert_eq!([0x00, 0x01, 0x53, 0xff].map(sub), [0x63, 0x7c, 0xed, 0x16]);
        assert!((0..=255).all(|byte| inverse_sub(sub(byte)) == byte));
    }
}
