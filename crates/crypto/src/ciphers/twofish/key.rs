//! Twofish's key schedule. Sections are those of "Twofish: A 128-Bit Block Cipher" (1998).

use zeroize::Zeroize;

use crate::gf256::multiply;
use crate::secret::{LockedBox, Plain};

/// The subkeys and the key-dependent S-boxes, before the MDS matrix.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Key {
    /// s0 to s3 (4.3.4): byte i of g's input goes through s_i. First in the struct, for alignment.
    pub sboxes: [[u8; 256]; 4],
    /// K0 to K39: eight for whitening, two for each round.
    pub subkeys: [u32; 40],
    /// Fills the last 64 bytes, so that there is no padding.
    filler: [u32; 8],
}

#[allow(unsafe_code, reason = "it vouches for its bytes")]
// SAFETY: integers without padding (1024 + 160 + 32 bytes are 19 times 64), aligned to less than a page.
unsafe impl Plain for Key {}

const _: () = assert!(size_of::<Key>() == 1024 + 160 + 32);

/// The MDS matrix (4.3.2), by rows.
pub(super) const MDS: [[u8; 4]; 4] =
    [[0x01, 0xEF, 0x5B, 0x5B], [0x5B, 0xEF, 0xEF, 0x01], [0xEF, 0x5B, 0x01, 0xEF], [0xEF, 0x01, 0xEF, 0x5B]];

/// The RS matrix (4.3), by rows.
const RS: [[u8; 8]; 4] = [
    [0x01, 0xA4, 0x55, 0x87, 0x5A, 0x58, 0xDB, 0x9E],
    [0xA4, 0x56, 0x82, 0xF3, 0x1E, 0xC6, 0x68, 0xE5],
    [0x02, 0xA1, 0xFC, 0xC1, 0x47, 0xAE, 0x3D, 0x19],
    [0xA4, 0x55, 0x87, 0x5A, 0x58, 0xDB, 0x9E, 0x03],
];

/// The permutations q0 and q1 (4.3.5).
static Q: [[u8; 256]; 2] = [
    permutation([
        [0x8, 0x1, 0x7, 0xD, 0x6, 0xF, 0x3, 0x2, 0x0, 0xB, 0x5, 0x9, 0xE, 0xC, 0xA, 0x4],
        [0xE, 0xC, 0xB, 0x8, 0x1, 0x2, 0x3, 0x5, 0xF, 0x4, 0xA, 0x6, 0x7, 0x0, 0x9, 0xD],
        [0xB, 0xA, 0x5, 0xE, 0x6, 0xD, 0x9, 0x0, 0xC, 0x8, 0xF, 0x3, 0x2, 0x4, 0x7, 0x1],
        [0xD, 0x7, 0xF, 0x4, 0x1, 0x2, 0x6, 0xE, 0x9, 0xB, 0x3, 0x0, 0x8, 0x5, 0xC, 0xA],
    ]),
    permutation([
        [0x2, 0x8, 0xB, 0xD, 0xF, 0x7, 0x6, 0xE, 0x3, 0x1, 0x9, 0x4, 0x0, 0xA, 0xC, 0x5],
        [0x1, 0xE, 0x2, 0xB, 0x4, 0xC, 0x3, 0x7, 0x6, 0xD, 0xA, 0x5, 0xF, 0x9, 0x0, 0x8],
        [0x4, 0xC, 0x7, 0x5, 0x1, 0x6, 0x9, 0xA, 0x0, 0xE, 0xD, 0x8, 0x2, 0xB, 0x3, 0xF],
        [0xB, 0x9, 0x5, 0x1, 0xC, 0x3, 0xD, 0xE, 0x6, 0x4, 0x7, 0xF, 0x2, 0x0, 0x8, 0xA],
    ]),
];

/// Which q each byte goes through (4.3.5, figure 2), from the innermost, which only keys of 32 bytes use, outwards.
const CHAINS: [[usize; 5]; 4] = [[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 0, 1, 1, 0]];

/// Expands a key of 16, 24 or 32 bytes.
pub(super) fn expand(key: &[u8]) -> LockedBox<Key> {
    assert!(matches!(key.len(), 16 | 24 | 32));
    let (words, _) = key.as_chunks::<4>();
    let pairs = words.len() / 2;
    LockedBox::build(|out: &mut Key| {
        // Lists of words l_0, l_1 ... as h takes them: the even words of the key, its odd words, and S, which is
        // in reverse order.
        let (mut even, mut odd, mut s) = ([[0u8; 4]; 4], [[0u8; 4]; 4], [[0u8; 4]; 4]);
        for i in 0..pairs {
            (even[i], odd[i]) = (words[2 * i], words[2 * i + 1]);
            s[pairs - 1 - i] = reed_solomon(&key[8 * i..8 * i + 8]);
        }
        for i in 0..20u8 {
            let a = h(2 * i, &even[..pairs]);
            let b = h(2 * i + 1, &odd[..pairs]).rotate_left(8);
            let at = 2 * usize::from(i);
            out.subkeys[at] = a.wrapping_add(b);
            out.subkeys[at + 1] = a.wrapping_add(b).wrapping_add(b).rotate_left(9);
        }
        for (byte, sbox) in out.sboxes.iter_mut().enumerate() {
            for (x, y) in (0..=255).zip(sbox) {
                *y = chain(byte, x, &s[..pairs]);
            }
        }
        for list in [&mut even, &mut odd, &mut s] {
            list.zeroize();
        }
    })
}

/// The polynomial of the MDS matrix: x^8 + x^6 + x^5 + x^3 + 1.
pub(super) const MDS_MODULUS: u16 = 0x169;

/// The contribution of byte `column` of the MDS matrix's input to its output word.
pub(super) const fn mds_column(column: usize, y: u8) -> u32 {
    u32::from_le_bytes([
        multiply(y, MDS[0][column], MDS_MODULUS),
        multiply(y, MDS[1][column], MDS_MODULUS),
        multiply(y, MDS[2][column], MDS_MODULUS),
        multiply(y, MDS[3][column], MDS_MODULUS),
    ])
}

/// The function h (4.3.5) of a word whose four bytes are all `x`.
fn h(x: u8, list: &[[u8; 4]]) -> u32 {
    (0..4).fold(0, |z, byte| z ^ mds_column(byte, chain(byte, x, list)))
}

/// One byte's path through h, up to the MDS matrix.
fn chain(byte: usize, x: u8, list: &[[u8; 4]]) -> u8 {
    let qs = &CHAINS[byte];
    let inner = list.iter().enumerate().rev().fold(x, |x, (i, word)| Q[qs[3 - i]][usize::from(x)] ^ word[byte]);
    Q[qs[4]][usize::from(inner)]
}

/// One word of S from eight bytes of the key, modulo x^8 + x^6 + x^3 + x^2 + 1 (4.3).
fn reed_solomon(bytes: &[u8]) -> [u8; 4] {
    RS.map(|row| row.iter().zip(bytes).fold(0, |sum, (&r, &m)| sum ^ multiply(m, r, 0x14D)))
}

const fn permutation(t: [[u8; 16]; 4]) -> [u8; 256] {
    let mut q = [0; 256];
    let mut x = 0;
    while x < 256 {
        let (a, b) = mix((x >> 4) as u8, (x & 15) as u8);
        let (a, b) = mix(t[0][a as usize], t[1][b as usize]);
        q[x] = t[3][b as usize] << 4 | t[2][a as usize];
        x += 1;
    }
    q
}

const fn mix(a: u8, b: u8) -> (u8, u8) {
    (a ^ b, a ^ (b >> 1 | b << 3 & 15) ^ a << 3 & 15)
}
