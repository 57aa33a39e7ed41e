//! Serpent ("Serpent: A Proposal for the Advanced Encryption Standard", 1998), not bit-sliced: initial and final
//! permutation, S-boxes a nibble at a time, and the linear transformation between permutations.

use super::{Block, Reference};

/// Serpent with a key of 16, 24 or 32 bytes, all words little-endian.
pub struct Serpent {
    /// The specification's hatted keys: after the initial permutation.
    round_keys: Vec<u128>,
}

impl Serpent {
    /// Expands the key.
    pub fn new(key: &[u8]) -> Self {
        let mut padded = key.to_vec();
        padded.push(1);
        padded.resize(33, 0);
        let mut w: Vec<u32> =
            padded[..32].chunks(4).map(|b| u32::from_le_bytes(b.try_into().expect("whole words"))).collect();
        for i in 0..132 {
            let word = w[i] ^ w[i + 3] ^ w[i + 5] ^ w[i + 7] ^ 0x9E37_79B9 ^ i as u32;
            w.push(word.rotate_left(11));
        }
        let round_keys = w[8..].chunks(4).enumerate().map(|(i, words)| {
            let key = words.iter().rev().fold(0u128, |key, &word| key << 32 | u128::from(word));
            nibbles(initial(key), &S[(35 - i) % 8])
        });
        Self { round_keys: round_keys.collect() }
    }
}

impl Reference for Serpent {
    fn encrypt(&self, block: Block) -> Block {
        let mut b = initial(u128::from_le_bytes(block));
        for round in 0..32 {
            b = nibbles(b ^ self.round_keys[round], &S[round % 8]);
            b = if round < 31 { initial(linear(last(b))) } else { b ^ self.round_keys[32] };
        }
        last(b).to_le_bytes()
    }

    fn decrypt(&self, block: Block) -> Block {
        let mut b = initial(u128::from_le_bytes(block));
        for round in (0..32).rev() {
            b = if round < 31 { initial(unlinear(last(b))) } else { b ^ self.round_keys[32] };
            let mut inverse = [0; 16];
            for (x, &y) in S[round % 8].iter().enumerate() {
                inverse[usize::from(y)] = x as u8;
            }
            b = nibbles(b, &inverse) ^ self.round_keys[round];
        }
        last(b).to_le_bytes()
    }
}

const S: [[u8; 16]; 8] = [
    [3, 8, 15, 1, 10, 6, 5, 11, 14, 13, 4, 2, 7, 0, 9, 12],
    [15, 12, 2, 7, 9, 0, 5, 10, 1, 11, 14, 8, 6, 13, 3, 4],
    [8, 6, 7, 9, 3, 12, 10, 15, 13, 1, 14, 4, 0, 11, 5, 2],
    [0, 15, 11, 8, 12, 9, 6, 3, 13, 1, 2, 4, 10, 7, 5, 14],
    [1, 15, 8, 3, 12, 0, 11, 6, 2, 5, 4, 10, 9, 14, 7, 13],
    [15, 5, 2, 11, 4, 10, 9, 12, 0, 3, 14, 8, 13, 6, 7, 1],
    [7, 2, 12, 5, 8, 4, 6, 11, 14, 9, 1, 15, 13, 3, 10, 0],
    [1, 13, 15, 0, 14, 8, 2, 11, 7, 4, 12, 10, 9, 3, 5, 6],
];

/// IP: bit i of the output is bit 32 * (i mod 4) + i / 4 of the input.
fn initial(x: u128) -> u128 {
    (0..128).fold(0, |y, i| y | (x >> (32 * (i % 4) + i / 4) & 1) << i)
}

/// FP, the inverse of IP.
fn last(x: u128) -> u128 {
    (0..128).fold(0, |y, i| y | (x >> i & 1) << (32 * (i % 4) + i / 4))
}

fn nibbles(x: u128, sbox: &[u8; 16]) -> u128 {
    (0..32).fold(0, |y, i| y | u128::from(sbox[(x >> (4 * i) & 15) as usize]) << (4 * i))
}

/// The linear transformation, on words.
fn linear(x: u128) -> u128 {
    let [mut x0, mut x1, mut x2, mut x3] = split(x);
    x0 = x0.rotate_left(13);
    x2 = x2.rotate_left(3);
    x1 ^= x0 ^ x2;
    x3 ^= x2 ^ x0 << 3;
    x1 = x1.rotate_left(1);
    x3 = x3.rotate_left(7);
    x0 ^= x1 ^ x3;
    x2 ^= x3 ^ x1 << 7;
    x0 = x0.rotate_left(5);
    x2 = x2.rotate_left(22);
    join([x0, x1, x2, x3])
}

fn unlinear(x: u128) -> u128 {
    let [mut x0, mut x1, mut x2, mut x3] = split(x);
    x2 = x2.rotate_right(22);
    x0 = x0.rotate_right(5);
    x2 ^= x3 ^ x1 << 7;
    x0 ^= x1 ^ x3;
    x3 = x3.rotate_right(7);
    x1 = x1.rotate_right(1);
    x3 ^= x2 ^ x0 << 3;
    x1 ^= x0 ^ x2;
    x2 = x2.rotate_right(3);
    x0 = x0.rotate_right(13);
    join([x0, x1, x2, x3])
}

fn split(x: u128) -> [u32; 4] {
    std::array::from_fn(|i| (x >> (32 * i)) as u32)
}

fn join(words: [u32; 4]) -> u128 {
    words.iter().rev().fold(0, |x, &word| x << 32 | u128::from(word))
}
