//! Kuznyechik (RFC 7801, GOST R 34.12-2015), in the terms of its section 4.

use super::{Block, Keyed, multiply_mod};

/// Section 4.1.1: Pi'.
#[rustfmt::skip]
const PI: [u8; 256] = [
    252, 238, 221, 17, 207, 110, 49, 22, 251, 196, 250, 218, 35, 197, 4, 77,
    233, 119, 240, 219, 147, 46, 153, 186, 23, 54, 241, 187, 20, 205, 95, 193,
    249, 24, 101, 90, 226, 92, 239, 33, 129, 28, 60, 66, 139, 1, 142, 79,
    5, 132, 2, 174, 227, 106, 143, 160, 6, 11, 237, 152, 127, 212, 211, 31,
    235, 52, 44, 81, 234, 200, 72, 171, 242, 42, 104, 162, 253, 58, 206, 204,
    181, 112, 14, 86, 8, 12, 118, 18, 191, 114, 19, 71, 156, 183, 93, 135,
    21, 161, 150, 41, 16, 123, 154, 199, 243, 145, 120, 111, 157, 158, 178, 177,
    50, 117, 25, 61, 255, 53, 138, 126, 109, 84, 198, 128, 195, 189, 13, 87,
    223, 245, 36, 169, 62, 168, 67, 201, 215, 121, 214, 246, 124, 34, 185, 3,
    224, 15, 236, 222, 122, 148, 176, 188, 220, 232, 40, 80, 78, 51, 10, 74,
    167, 151, 96, 115, 30, 0, 98, 68, 26, 184, 56, 130, 100, 159, 38, 65,
    173, 69, 70, 146, 39, 94, 85, 47, 140, 163, 165, 125, 105, 213, 149, 59,
    7, 88, 179, 64, 134, 172, 29, 247, 48, 55, 107, 228, 136, 217, 231, 137,
    225, 27, 131, 73, 76, 63, 248, 254, 141, 83, 170, 144, 202, 216, 133, 97,
    32, 113, 103, 164, 45, 43, 9, 91, 203, 155, 37, 208, 190, 229, 108, 82,
    89, 166, 116, 210, 230, 244, 180, 192, 209, 102, 175, 194, 57, 75, 99, 182,
];

/// Section 4.1.2: the factors of a_15 to a_0.
const FACTORS: Block = [148, 32, 133, 16, 194, 192, 1, 251, 1, 192, 194, 16, 133, 32, 148, 1];

/// The polynomial x^8 + x^7 + x^6 + x + 1.
const MODULUS: u16 = 0x1c3;

/// Kuznyechik with a key of 32 bytes.
pub struct Kuznyechik {
    round_keys: Vec<Block>,
}

impl Kuznyechik {
    /// The key schedule (section 4.3).
    pub fn new(key: &[u8]) -> Self {
        let (halves, _) = key.as_chunks();
        let [mut a1, mut a0]: [Block; 2] = halves.try_into().expect("a key of 32 bytes");
        let mut round_keys = vec![a1, a0];
        for i in 1..=32 {
            let mut constant = u128::to_be_bytes(i);
            l(&mut constant);
            let mut next = a1;
            lsx(&constant, &mut next);
            x(&a0, &mut next);
            (a1, a0) = (next, a1);
            if i % 8 == 0 {
                round_keys.extend([a1, a0]);
            }
        }
        Self { round_keys }
    }
}

impl Keyed for Kuznyechik {
    fn encrypt(&self, block: &mut Block) {
        let (last, keys) = self.round_keys.split_last().expect("ten keys");
        keys.iter().for_each(|key| lsx(key, block));
        x(last, block);
    }

    fn decrypt(&self, block: &mut Block) {
        let (last, keys) = self.round_keys.split_last().expect("ten keys");
        x(last, block);
        for key in keys.iter().rev() {
            (0..16).for_each(|_| r_inverse(block));
            for byte in block.iter_mut() {
                *byte = PI.iter().position(|s| s == byte).expect("Pi is a permutation") as u8;
            }
            x(key, block);
        }
    }
}

fn lsx(key: &Block, block: &mut Block) {
    x(key, block);
    block.iter_mut().for_each(|byte| *byte = PI[usize::from(*byte)]);
    l(block);
}

fn x(key: &Block, block: &mut Block) {
    block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
}

fn l(block: &mut Block) {
    for _ in 0..16 {
        let sum = sum(block);
        block.rotate_right(1);
        block[0] = sum;
    }
}

fn r_inverse(block: &mut Block) {
    block.rotate_left(1);
    block[15] = sum(block);
}

/// The function l of section 4.1.2. A block's first byte is a_15.
fn sum(block: &Block) -> u8 {
    block.iter().zip(FACTORS).fold(0, |sum, (byte, factor)| sum ^ multiply_mod(*byte, factor, MODULUS))
}
