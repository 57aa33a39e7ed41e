//! Serpent (Anderson, Biham, Knudsen, "Serpent: A Proposal for the Advanced Encryption Standard", 1998), in the
//! bit-slice description of its section 3, S-boxes looked up bit by bit.
//!
//! Blocks and keys are little-endian words, the first word first: the byte order of the NESSIE vectors, of TrueCrypt
//! and of Linux. (The vectors of the AES submission write every 128-bit value with its bytes in the opposite order.)

use super::{Block, Keyed};

/// Section 3: S0 to S7.
const S_BOXES: [[u8; 16]; 8] = [
    [3, 8, 15, 1, 10, 6, 5, 11, 14, 13, 4, 2, 7, 0, 9, 12],
    [15, 12, 2, 7, 9, 0, 5, 10, 1, 11, 14, 8, 6, 13, 3, 4],
    [8, 6, 7, 9, 3, 12, 10, 15, 13, 1, 14, 4, 0, 11, 5, 2],
    [0, 15, 11, 8, 12, 9, 6, 3, 13, 1, 2, 4, 10, 7, 5, 14],
    [1, 15, 8, 3, 12, 0, 11, 6, 2, 5, 4, 10, 9, 14, 7, 13],
    [15, 5, 2, 11, 4, 10, 9, 12, 0, 3, 14, 8, 13, 6, 7, 1],
    [7, 2, 12, 5, 8, 4, 6, 11, 14, 9, 1, 15, 13, 3, 10, 0],
    [1, 13, 15, 0, 14, 8, 2, 11, 7, 4, 12, 10, 9, 3, 5, 6],
];

/// The fractional part of the golden ratio.
const PHI: u32 = 0x9e37_79b9;

type Words = [u32; 4];

/// Serpent with keys of 16, 24 or 32 bytes.
pub struct Serpent {
    round_keys: [Words; 33],
}

impl Serpent {
    /// The key schedule (section 4).
    pub fn new(key: &[u8]) -> Self {
        assert!(matches!(key.len(), 16 | 24 | 32), "Serpent takes no key of {} bytes", key.len());
        // Shorter keys are padded with a one bit and then zeros.
        let mut padded = [0u8; 32];
        padded[..key.len()].copy_from_slice(key);
        if key.len() < 32 {
            padded[key.len()] = 1;
        }
        // w[-8] … w[-1], then w[0] … w[131].
        let mut w: Vec<u32> = padded.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        for i in 0..132 {
            let word = w[i] ^ w[i + 3] ^ w[i + 5] ^ w[i + 7] ^ PHI ^ i as u32;
            w.push(word.rotate_left(11));
        }
        let mut round_keys = [[0; 4]; 33];
        for (i, (key, words)) in round_keys.iter_mut().zip(w[8..].as_chunks().0).enumerate() {
            *key = substitute(&S_BOXES[(35 - i) % 8], *words);
        }
        Self { round_keys }
    }
}

impl Keyed for Serpent {
    fn encrypt(&self, block: &mut Block) {
        let mut x = load(block);
        for round in 0..32 {
            x = substitute(&S_BOXES[round % 8], xor(x, self.round_keys[round]));
            if round < 31 {
                x = linear(x);
            }
        }
        store(xor(x, self.round_keys[32]), block);
    }

    fn decrypt(&self, block: &mut Block) {
        let mut x = xor(load(block), self.round_keys[32]);
        for round in (0..32).rev() {
            if round < 31 {
                x = inverse_linear(x);
            }
            x = xor(substitute(&inverse(&S_BOXES[round % 8]), x), self.round_keys[round]);
        }
        store(x, block);
    }
}

fn load(block: &Block) -> Words {
    std::array::from_fn(|i| u32::from_le_bytes(block.as_chunks().0[i]))
}

fn store(x: Words, block: &mut Block) {
    block.copy_from_slice(x.map(u32::to_le_bytes).as_flattened());
}

fn xor(a: Words, b: Words) -> Words {
    std::array::from_fn(|i| a[i] ^ b[i])
}

/// 32 copies of an S-box: copy j works on bit j of the four words, and word 0 has the lowest bit.
fn substitute(s_box: &[u8; 16], x: Words) -> Words {
    let mut out = [0; 4];
    for j in 0..32 {
        let input = (0..4).fold(0, |nibble, i| nibble | (x[i] >> j & 1) << i);
        let output = u32::from(s_box[input as usize]);
        (0..4).for_each(|i| out[i] |= (output >> i & 1) << j);
    }
    out
}

fn inverse(s_box: &[u8; 16]) -> [u8; 16] {
    let mut inverse = [0; 16];
    (0..).zip(s_box).for_each(|(input, output)| inverse[usize::from(*output)] = input);
    inverse
}

/// The linear transformation.
fn linear(mut x: Words) -> Words {
    x[0] = x[0].rotate_left(13);
    x[2] = x[2].rotate_left(3);
    x[1] ^= x[0] ^ x[2];
    x[3] ^= x[2] ^ (x[0] << 3);
    x[1] = x[1].rotate_left(1);
    x[3] = x[3].rotate_left(7);
    x[0] ^= x[1] ^ x[3];
    x[2] ^= x[3] ^ (x[1] << 7);
    x[0] = x[0].rotate_left(5);
    x[2] = x[2].rotate_left(22);
    x
}

/// The inverse of [`linear`]: its steps undone in reverse order.
fn inverse_linear(mut x: Words) -> Words {
    x[2] = x[2].rotate_right(22);
    x[0] = x[0].rotate_right(5);
    x[2] ^= x[3] ^ (x[1] << 7);
    x[0] ^= x[1] ^ x[3];
    x[3] = x[3].rotate_right(7);
    x[1] = x[1].rotate_right(1);
    x[3] ^= x[2] ^ (x[0] << 3);
    x[1] ^= x[0] ^ x[2];
    x[2] = x[2].rotate_right(3);
    x[0] = x[0].rotate_right(13);
    x
}
