//! Twofish (Schneier, Kelsey, Whiting, Wagner, Hall, Ferguson, "Twofish: A 128-Bit Block Cipher", 1998). Computes q0
//! and q1 from their 4-bit tables and the matrices by polynomial arithmetic, for every byte of every block; nothing is
//! precomputed.

use std::array;

use super::{Block, Keyed, multiply_mod};

/// Section 4.3.5: t0 to t3 of q0 and of q1.
const Q: [[[u8; 16]; 4]; 2] = [
    [
        [0x8, 0x1, 0x7, 0xd, 0x6, 0xf, 0x3, 0x2, 0x0, 0xb, 0x5, 0x9, 0xe, 0xc, 0xa, 0x4],
        [0xe, 0xc, 0xb, 0x8, 0x1, 0x2, 0x3, 0x5, 0xf, 0x4, 0xa, 0x6, 0x7, 0x0, 0x9, 0xd],
        [0xb, 0xa, 0x5, 0xe, 0x6, 0xd, 0x9, 0x0, 0xc, 0x8, 0xf, 0x3, 0x2, 0x4, 0x7, 0x1],
        [0xd, 0x7, 0xf, 0x4, 0x1, 0x2, 0x6, 0xe, 0x9, 0xb, 0x3, 0x0, 0x8, 0x5, 0xc, 0xa],
    ],
    [
        [0x2, 0x8, 0xb, 0xd, 0xf, 0x7, 0x6, 0xe, 0x3, 0x1, 0x9, 0x4, 0x0, 0xa, 0xc, 0x5],
        [0x1, 0xe, 0x2, 0xb, 0x4, 0xc, 0x3, 0x7, 0x6, 0xd, 0xa, 0x5, 0xf, 0x9, 0x0, 0x8],
        [0x4, 0xc, 0x7, 0x5, 0x1, 0x6, 0x9, 0xa, 0x0, 0xe, 0xd, 0x8, 0x2, 0xb, 0x3, 0xf],
        [0xb, 0x9, 0x5, 0x1, 0xc, 0x3, 0xd, 0xe, 0x6, 0x4, 0x7, 0xf, 0x2, 0x0, 0x8, 0xa],
    ],
];

/// Section 4.3.2, over GF(2^8) modulo x^8 + x^6 + x^5 + x^3 + 1.
const MDS: [[u8; 4]; 4] =
    [[0x01, 0xef, 0x5b, 0x5b], [0x5b, 0xef, 0xef, 0x01], [0xef, 0x5b, 0x01, 0xef], [0xef, 0x01, 0xef, 0x5b]];
const MDS_MODULUS: u16 = 0x169;

/// Section 4.3, over GF(2^8) modulo x^8 + x^6 + x^3 + x^2 + 1.
const RS: [[u8; 8]; 4] = [
    [0x01, 0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e],
    [0xa4, 0x56, 0x82, 0xf3, 0x1e, 0xc6, 0x68, 0xe5],
    [0x02, 0xa1, 0xfc, 0xc1, 0x47, 0xae, 0x3d, 0x19],
    [0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e, 0x03],
];
const RS_MODULUS: u16 = 0x14d;

/// Which of q0 and q1 comes at each step of h, for the four bytes of a word (section 4.3.2, figure 2): before the key
/// words 3, 2, 1 and 0, and after them.
const H_STEPS: [[usize; 4]; 5] = [[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [1, 0, 1, 0]];

/// Twofish with keys of 16, 24 or 32 bytes.
pub struct Twofish {
    /// K0 … K39.
    round_keys: [u32; 40],
    /// The vector S, in the order that h uses.
    s: Vec<[u8; 4]>,
}

impl Twofish {
    /// The key schedule (section 4.3).
    pub fn new(key: &[u8]) -> Self {
        assert!(matches!(key.len(), 16 | 24 | 32), "Twofish takes no key of {} bytes", key.len());
        let words: &[[u8; 4]] = key.as_chunks().0;
        let even: Vec<_> = words.iter().step_by(2).copied().collect();
        let odd: Vec<_> = words.iter().skip(1).step_by(2).copied().collect();
        let s = key.as_chunks::<8>().0.iter().rev().map(reed_solomon).collect();
        let mut round_keys = [0; 40];
        for (i, pair) in (0..).zip(round_keys.chunks_exact_mut(2)) {
            let rho = 0x0101_0101;
            let a = h(2 * i * rho, &even);
            let b = h((2 * i + 1) * rho, &odd).rotate_left(8);
            pair[0] = a.wrapping_add(b);
            pair[1] = a.wrapping_add(b).wrapping_add(b).rotate_left(9);
        }
        Self { round_keys, s }
    }

    /// Section 4.1.
    fn f(&self, r0: u32, r1: u32, round: usize) -> (u32, u32) {
        let t0 = h(r0, &self.s);
        let t1 = h(r1.rotate_left(8), &self.s);
        let f0 = t0.wrapping_add(t1).wrapping_add(self.round_keys[2 * round + 8]);
        let f1 = t0.wrapping_add(t1).wrapping_add(t1).wrapping_add(self.round_keys[2 * round + 9]);
        (f0, f1)
    }
}

impl Keyed for Twofish {
    fn encrypt(&self, block: &mut Block) {
        let mut r: [u32; 4] = array::from_fn(|i| word(block, i) ^ self.round_keys[i]);
        for round in 0..16 {
            let (f0, f1) = self.f(r[0], r[1], round);
            r = [(r[2] ^ f0).rotate_right(1), r[3].rotate_left(1) ^ f1, r[0], r[1]];
        }
        // The last swap is undone.
        let c: [u32; 4] = array::from_fn(|i| r[(i + 2) % 4] ^ self.round_keys[i + 4]);
        block.copy_from_slice(c.map(u32::to_le_bytes).as_flattened());
    }

    fn decrypt(&self, block: &mut Block) {
        let mut r = [0; 4];
        (0..4).for_each(|i| r[(i + 2) % 4] = word(block, i) ^ self.round_keys[i + 4]);
        for round in (0..16).rev() {
            let (f0, f1) = self.f(r[2], r[3], round);
            r = [r[2], r[3], r[0].rotate_left(1) ^ f0, (r[1] ^ f1).rotate_right(1)];
        }
        let p: [u32; 4] = array::from_fn(|i| r[i] ^ self.round_keys[i]);
        block.copy_from_slice(p.map(u32::to_le_bytes).as_flattened());
    }
}

fn word(block: &Block, i: usize) -> u32 {
    u32::from_le_bytes(block.as_chunks().0[i])
}

/// A word of S from 8 bytes of the key.
fn reed_solomon(key: &[u8; 8]) -> [u8; 4] {
    RS.map(|row| row.iter().zip(key).fold(0, |sum, (a, b)| sum ^ multiply_mod(*a, *b, RS_MODULUS)))
}

/// The function h of a word and a list of words (section 4.3.2).
fn h(x: u32, l: &[[u8; 4]]) -> u32 {
    let mut y = x.to_le_bytes();
    for (step, key) in H_STEPS.iter().zip((0..4).rev()).filter_map(|(step, i)| Some((step, l.get(i)?))) {
        y = array::from_fn(|byte| q(step[byte], y[byte]) ^ key[byte]);
    }
    y = array::from_fn(|byte| q(H_STEPS[4][byte], y[byte]));
    let z = MDS.map(|row| row.iter().zip(y).fold(0, |sum, (a, b)| sum ^ multiply_mod(*a, b, MDS_MODULUS)));
    u32::from_le_bytes(z)
}

/// The fixed permutation q0 or q1 (section 4.3.5).
fn q(which: usize, x: u8) -> u8 {
    let [t0, t1, t2, t3] = &Q[which];
    let (a0, b0) = (x >> 4, x & 15);
    let (a1, b1) = mix_nibbles(a0, b0);
    let (a2, b2) = (t0[usize::from(a1)], t1[usize::from(b1)]);
    let (a3, b3) = mix_nibbles(a2, b2);
    let (a4, b4) = (t2[usize::from(a3)], t3[usize::from(b3)]);
    b4 << 4 | a4
}

fn mix_nibbles(a: u8, b: u8) -> (u8, u8) {
    let rotated = (b >> 1 | b << 3) & 15;
    (a ^ b, a ^ rotated ^ (a << 3 & 15))
}
