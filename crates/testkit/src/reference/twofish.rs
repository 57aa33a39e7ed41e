//! Twofish ("Twofish: A 128-Bit Block Cipher", 1998) without any table that was computed beforehand: each q goes
//! through its nibble tables, each MDS product is multiplied out, for each block anew.

use super::{Block, Reference, multiply};

/// Twofish with a key of 16, 24 or 32 bytes.
pub struct Twofish {
    subkeys: [u32; 40],
    /// S_(k-1) … S_0.
    s: Vec<u32>,
}

impl Twofish {
    /// Expands the key (4.3).
    pub fn new(key: &[u8]) -> Self {
        let words: Vec<u32> = key.chunks(4).map(|b| u32::from_le_bytes(b.try_into().expect("whole words"))).collect();
        let even: Vec<u32> = words.iter().step_by(2).copied().collect();
        let odd: Vec<u32> = words.iter().skip(1).step_by(2).copied().collect();
        let mut s: Vec<u32> = key.chunks(8).map(reed_solomon).collect();
        s.reverse();
        let mut subkeys = [0; 40];
        for i in 0..20 {
            let rho = 0x0101_0101u32;
            let a = h(2 * i as u32 * rho, &even);
            let b = h((2 * i as u32 + 1) * rho, &odd).rotate_left(8);
            subkeys[2 * i] = a.wrapping_add(b);
            subkeys[2 * i + 1] = a.wrapping_add(b.wrapping_mul(2)).rotate_left(9);
        }
        Self { subkeys, s }
    }

    /// F of a round (4.1).
    fn f(&self, r0: u32, r1: u32, round: usize) -> (u32, u32) {
        let t0 = h(r0, &self.s);
        let t1 = h(r1.rotate_left(8), &self.s);
        let f0 = t0.wrapping_add(t1).wrapping_add(self.subkeys[2 * round + 8]);
        let f1 = t0.wrapping_add(t1.wrapping_mul(2)).wrapping_add(self.subkeys[2 * round + 9]);
        (f0, f1)
    }

    fn whiten(&self, words: [u32; 4], first: usize) -> [u32; 4] {
        std::array::from_fn(|i| words[i] ^ self.subkeys[first + i])
    }
}

impl Reference for Twofish {
    fn encrypt(&self, block: Block) -> Block {
        let mut r = self.whiten(split(block), 0);
        for round in 0..16 {
            let (f0, f1) = self.f(r[0], r[1], round);
            r = [(r[2] ^ f0).rotate_right(1), r[3].rotate_left(1) ^ f1, r[0], r[1]];
        }
        join(self.whiten([r[2], r[3], r[0], r[1]], 4))
    }

    fn decrypt(&self, block: Block) -> Block {
        let c = self.whiten(split(block), 4);
        let mut r = [c[2], c[3], c[0], c[1]];
        for round in (0..16).rev() {
            let (f0, f1) = self.f(r[2], r[3], round);
            r = [r[2], r[3], r[0].rotate_left(1) ^ f0, (r[1] ^ f1).rotate_right(1)];
        }
        join(self.whiten(r, 0))
    }
}

/// h (4.3.2, figure 2): g is h with the list S.
fn h(x: u32, list: &[u32]) -> u32 {
    let mut y = x.to_le_bytes();
    let l: Vec<[u8; 4]> = list.iter().map(|word| word.to_le_bytes()).collect();
    if l.len() == 4 {
        y = [q1(y[0]) ^ l[3][0], q0(y[1]) ^ l[3][1], q0(y[2]) ^ l[3][2], q1(y[3]) ^ l[3][3]];
    }
    if l.len() >= 3 {
        y = [q1(y[0]) ^ l[2][0], q1(y[1]) ^ l[2][1], q0(y[2]) ^ l[2][2], q0(y[3]) ^ l[2][3]];
    }
    y = [
        q1(q0(q0(y[0]) ^ l[1][0]) ^ l[0][0]),
        q0(q0(q1(y[1]) ^ l[1][1]) ^ l[0][1]),
        q1(q1(q0(y[2]) ^ l[1][2]) ^ l[0][2]),
        q0(q1(q1(y[3]) ^ l[1][3]) ^ l[0][3]),
    ];
    let mds = [[0x01, 0xEF, 0x5B, 0x5B], [0x5B, 0xEF, 0xEF, 0x01], [0xEF, 0x5B, 0x01, 0xEF], [0xEF, 0x01, 0xEF, 0x5B]];
    u32::from_le_bytes(mds.map(|row| row.iter().zip(y).fold(0, |z, (&m, y)| z ^ multiply(y, m, 0x169))))
}

/// One word of S (4.3).
fn reed_solomon(bytes: &[u8]) -> u32 {
    let rs = [
        [0x01, 0xA4, 0x55, 0x87, 0x5A, 0x58, 0xDB, 0x9E],
        [0xA4, 0x56, 0x82, 0xF3, 0x1E, 0xC6, 0x68, 0xE5],
        [0x02, 0xA1, 0xFC, 0xC1, 0x47, 0xAE, 0x3D, 0x19],
        [0xA4, 0x55, 0x87, 0x5A, 0x58, 0xDB, 0x9E, 0x03],
    ];
    u32::from_le_bytes(rs.map(|row| row.iter().zip(bytes).fold(0, |s, (&r, &m)| s ^ multiply(m, r, 0x14D))))
}

fn q0(x: u8) -> u8 {
    q(x, ["817D6F320B59ECA4", "ECB81235F4A6709D", "BA5E6D90C8F32471", "D7F4126E9B3085CA"])
}

fn q1(x: u8) -> u8 {
    q(x, ["28BDF76E31940AC5", "1E2B4C376DA5F908", "4C75169A0ED82B3F", "B951C3DE647F208A"])
}

/// A permutation of bytes by four of nibbles (4.3.5), these given as hexadecimal digits.
fn q(x: u8, t: [&str; 4]) -> u8 {
    let t = |i: usize, x: u8| char::from(t[i].as_bytes()[usize::from(x)]).to_digit(16).expect("digits") as u8;
    let mix = |a: u8, b: u8| (a ^ b, a ^ (b >> 1 | b << 3) & 15 ^ a << 3 & 8);
    let (a, b) = mix(x / 16, x % 16);
    let (a, b) = mix(t(0, a), t(1, b));
    16 * t(3, b) + t(2, a)
}

fn split(block: Block) -> [u32; 4] {
    std::array::from_fn(|i| u32::from_le_bytes(block[4 * i..4 * i + 4].try_into().expect("four bytes")))
}

fn join(words: [u32; 4]) -> Block {
    std::array::from_fn(|i| words[i / 4].to_le_bytes()[i % 4])
}
