//! Camellia (RFC 3713), in the terms of its section 2.

use super::{Block, Keyed};

/// Section 2.4.1.
#[rustfmt::skip]
const SBOX1: [u8; 256] = [
    112, 130, 44, 236, 179, 39, 192, 229, 228, 133, 87, 53, 234, 12, 174, 65,
    35, 239, 107, 147, 69, 25, 165, 33, 237, 14, 79, 78, 29, 101, 146, 189,
    134, 184, 175, 143, 124, 235, 31, 206, 62, 48, 220, 95, 94, 197, 11, 26,
    166, 225, 57, 202, 213, 71, 93, 61, 217, 1, 90, 214, 81, 86, 108, 77,
    139, 13, 154, 102, 251, 204, 176, 45, 116, 18, 43, 32, 240, 177, 132, 153,
    223, 76, 203, 194, 52, 126, 118, 5, 109, 183, 169, 49, 209, 23, 4, 215,
    20, 88, 58, 97, 222, 27, 17, 28, 50, 15, 156, 22, 83, 24, 242, 34,
    254, 68, 207, 178, 195, 181, 122, 145, 36, 8, 232, 168, 96, 252, 105, 80,
    170, 208, 160, 125, 161, 137, 98, 151, 84, 91, 30, 149, 224, 255, 100, 210,
    16, 196, 0, 72, 163, 247, 117, 219, 138, 3, 230, 218, 9, 63, 221, 148,
    135, 92, 131, 2, 205, 74, 144, 51, 115, 103, 246, 243, 157, 127, 191, 226,
    82, 155, 216, 38, 200, 55, 198, 59, 129, 150, 111, 75, 19, 190, 99, 46,
    233, 121, 167, 140, 159, 110, 188, 142, 41, 245, 249, 182, 47, 253, 180, 89,
    120, 152, 6, 106, 231, 70, 113, 186, 212, 37, 171, 66, 136, 162, 141, 250,
    114, 7, 185, 85, 248, 238, 172, 10, 54, 73, 42, 104, 60, 56, 241, 164,
    64, 40, 211, 123, 187, 201, 67, 193, 21, 227, 173, 244, 119, 199, 128, 158,
];

/// Section 2.2.
const SIGMA: [u64; 6] = [
    0xa09e_667f_3bcc_908b,
    0xb67a_e858_4caa_73b2,
    0xc6ef_372f_e94f_82be,
    0x54ff_53a5_f1d3_6f1c,
    0x10e5_27fa_de68_2d1d,
    0xb056_88c2_b3e6_c1fd,
];

/// Camellia with keys of 16, 24 or 32 bytes.
pub struct Camellia {
    /// kw1 to kw4.
    whitening: [u64; 4],
    /// k1 to k18 or k24.
    rounds: Vec<u64>,
    /// ke1 to ke4 or ke6.
    layers: Vec<u64>,
}

impl Camellia {
    /// The key schedule (section 2.2).
    pub fn new(key: &[u8]) -> Self {
        let part = |range: std::ops::Range<usize>| key[range].iter().fold(0u128, |sum, b| sum << 8 | u128::from(*b));
        let kl = part(0..16);
        let kr = match key.len() {
            16 => 0,
            24 => part(16..24) << 64 | !part(16..24) & u128::from(u64::MAX),
            32 => part(16..32),
            other => panic!("Camellia takes no key of {other} bytes"),
        };
        let two_rounds = |d: u128, sigma: usize| {
            let (mut d1, mut d2) = halves(d);
            d2 ^= f(d1, SIGMA[sigma]);
            d1 ^= f(d2, SIGMA[sigma + 1]);
            u128::from(d1) << 64 | u128::from(d2)
        };
        let ka = two_rounds(two_rounds(kl ^ kr, 0) ^ kl, 2);
        let kb = two_rounds(ka ^ kr, 4);
        let all = |list: &[(u128, u32)]| -> Vec<u64> {
            list.iter().flat_map(|(k, by)| <[u64; 2]>::from(halves(k.rotate_left(*by)))).collect()
        };
        let (whitening, rounds, layers) = if key.len() == 16 {
            // These two rotations contribute only one half each: k9 and k10.
            let mut rounds = all(&[(ka, 0), (kl, 15), (ka, 15), (kl, 45)]);
            rounds.push(halves(ka.rotate_left(45)).0);
            rounds.push(halves(kl.rotate_left(60)).1);
            rounds.extend(all(&[(ka, 60), (kl, 94), (ka, 94), (kl, 111)]));
            (all(&[(kl, 0), (ka, 111)]), rounds, all(&[(ka, 30), (kl, 77)]))
        } else {
            #[rustfmt::skip]
            let rounds = all(&[
                (kb, 0), (kr, 15), (ka, 15), (kb, 30), (kl, 45), (ka, 45),
                (kr, 60), (kb, 60), (kl, 77), (kr, 94), (ka, 94), (kl, 111),
            ]);
            (all(&[(kl, 0), (kb, 111)]), rounds, all(&[(kr, 30), (kl, 60), (ka, 77)]))
        };
        Self { whitening: whitening.try_into().expect("four of them"), rounds, layers }
    }
}

impl Keyed for Camellia {
    fn encrypt(&self, block: &mut Block) {
        let [kw1, kw2, kw3, kw4] = self.whitening;
        crypt([kw1, kw2, kw3, kw4], self.rounds.iter().copied(), self.layers.iter().copied(), block);
    }

    /// The same with the keys in the opposite order (section 2.3.3).
    fn decrypt(&self, block: &mut Block) {
        let [kw1, kw2, kw3, kw4] = self.whitening;
        crypt([kw3, kw4, kw1, kw2], self.rounds.iter().rev().copied(), self.layers.iter().rev().copied(), block);
    }
}

/// Section 2.3.1.
fn crypt(kw: [u64; 4], rounds: impl Iterator<Item = u64>, mut layers: impl Iterator<Item = u64>, block: &mut Block) {
    let (d1, d2) = halves(u128::from_be_bytes(*block));
    let (mut d1, mut d2) = (d1 ^ kw[0], d2 ^ kw[1]);
    let rounds: Vec<u64> = rounds.collect();
    for (i, six) in rounds.chunks(6).enumerate() {
        if i > 0 {
            d1 = fl(d1, layers.next().expect("two for every six rounds"));
            d2 = fl_inverse(d2, layers.next().expect("two for every six rounds"));
        }
        for two in six.as_chunks::<2>().0 {
            d2 ^= f(d1, two[0]);
            d1 ^= f(d2, two[1]);
        }
    }
    *block = (u128::from(d2 ^ kw[2]) << 64 | u128::from(d1 ^ kw[3])).to_be_bytes();
}

/// Section 2.4.1: applies the S-boxes, then replaces each byte by the sum of the bytes that the specification lists for it.
fn f(input: u64, key: u64) -> u64 {
    #[rustfmt::skip]
    const SUMS: [&[usize]; 8] = [
        &[1, 3, 4, 6, 7, 8], &[1, 2, 4, 5, 7, 8], &[1, 2, 3, 5, 6, 8], &[2, 3, 4, 5, 6, 7],
        &[1, 2, 6, 7, 8], &[2, 3, 5, 7, 8], &[3, 4, 5, 6, 8], &[1, 4, 5, 6, 7],
    ];
    let s1 = |x: u8| SBOX1[usize::from(x)];
    let s2 = |x: u8| s1(x).rotate_left(1);
    let s3 = |x: u8| s1(x).rotate_left(7);
    let s4 = |x: u8| s1(x.rotate_left(1));
    let [a, b, c, d, e, f, g, h] = (input ^ key).to_be_bytes();
    let t = [s1(a), s2(b), s3(c), s4(d), s2(e), s3(f), s4(g), s1(h)];
    u64::from_be_bytes(SUMS.map(|sum| sum.iter().fold(0, |y, i| y ^ t[i - 1])))
}

/// Section 2.4.2.
fn fl(input: u64, key: u64) -> u64 {
    let ((mut x1, mut x2), (k1, k2)) = (words(input), words(key));
    x2 ^= (x1 & k1).rotate_left(1);
    x1 ^= x2 | k2;
    u64::from(x1) << 32 | u64::from(x2)
}

/// Section 2.4.3.
fn fl_inverse(input: u64, key: u64) -> u64 {
    let ((mut y1, mut y2), (k1, k2)) = (words(input), words(key));
    y1 ^= y2 | k2;
    y2 ^= (y1 & k1).rotate_left(1);
    u64::from(y1) << 32 | u64::from(y2)
}

fn halves(x: u128) -> (u64, u64) {
    ((x >> 64) as u64, x as u64)
}

fn words(x: u64) -> (u32, u32) {
    ((x >> 32) as u32, x as u32)
}
