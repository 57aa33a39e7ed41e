//! Twofish by tables of 4 KiB for each key, several blocks side by side: while one block waits for its look-ups,
//! another one's proceed. Not constant time.
#![allow(unsafe_code)]

use super::key::{self, mds_column};
use crate::ciphers::BlockCipher;
use crate::ciphers::wide::{block_cipher, groups};
use crate::secret::{Locked, Plain};
use crate::tweak::Masks;

/// Blocks side by side in the kernel that is used, the best of 1 to 4 as measured by `examples/kernels.rs`.
pub(super) const BEST: usize = 4;

/// Twofish by tables with `N` blocks side by side, to measure what that brings.
pub fn interleaved<const N: usize>(key: &[u8]) -> Box<dyn BlockCipher> {
    Box::new(Tables::<N>(expand(key)))
}

/// Subkeys, and the S-boxes with the MDS matrix applied.
#[derive(Clone, Copy)]
#[repr(C)]
struct Expanded {
    tables: [[u32; 256]; 4],
    subkeys: [u32; 40],
}

// SAFETY: integers of one size, hence without padding.
unsafe impl Plain for Expanded {}

struct Tables<const N: usize>(Locked<Expanded>);

block_cipher!([const N: usize] Tables<N>);

impl<const N: usize> Tables<N> {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, mut masks: Masks<'_>, run: &mut [u8]) {
        let mut room = [[0; 16]; N];
        let (sides, rest) = run.split_at_mut(run.len() / (16 * N) * (16 * N));
        for side in sides.as_chunks_mut().0.as_chunks_mut().0 {
            if MASKED {
                masks.fill(room.as_flattened_mut());
            }
            self.0.blocks::<N, DECRYPT, MASKED>(&room, side);
        }
        groups::<16, MASKED>(&mut masks, rest, |mask, block| {
            self.0.blocks::<1, DECRYPT, MASKED>(&[*mask], std::array::from_mut(block));
        });
    }
}

impl Expanded {
    #[inline(always)]
    fn blocks<const N: usize, const DECRYPT: bool, const MASKED: bool>(
        &self,
        masks: &[[u8; 16]; N],
        blocks: &mut [[u8; 16]; N],
    ) {
        let k = &self.subkeys;
        let (before, after) = if DECRYPT { (4, 0) } else { (0, 4) };
        let mut state: [[u32; 4]; N] = std::array::from_fn(|n| {
            let (block, mask) = (words(&blocks[n]), words(&masks[n]));
            std::array::from_fn(|i| block[i] ^ k[before + i] ^ if MASKED { mask[i] } else { 0 })
        });
        // Two rounds a turn, so that the halves need not change places.
        for turn in 0..8 {
            let turn = if DECRYPT { 7 - turn } else { turn };
            let k = &k[8 + 4 * turn..12 + 4 * turn];
            let (first, second) = if DECRYPT { ([k[2], k[3]], [k[0], k[1]]) } else { ([k[0], k[1]], [k[2], k[3]]) };
            for [a, b, c, d] in &mut state {
                self.round::<DECRYPT>(first, *a, *b, c, d);
            }
            for [a, b, c, d] in &mut state {
                self.round::<DECRYPT>(second, *c, *d, a, b);
            }
        }
        for ((block, mask), [a, b, c, d]) in blocks.iter_mut().zip(masks).zip(state) {
            let mask = words(mask);
            for (i, (to, word)) in block.as_chunks_mut().0.iter_mut().zip([c, d, a, b]).enumerate() {
                *to = (word ^ k[after + i] ^ if MASKED { mask[i] } else { 0 }).to_le_bytes();
            }
        }
    }

    #[inline(always)]
    fn round<const DECRYPT: bool>(&self, k: [u32; 2], a: u32, b: u32, c: &mut u32, d: &mut u32) {
        let t = self.g(a.to_le_bytes());
        let [b0, b1, b2, b3] = b.to_le_bytes();
        // Rotated left by a byte.
        let u = self.g([b3, b0, b1, b2]);
        let sum = t.wrapping_add(u);
        let f = sum.wrapping_add(k[0]);
        let g = sum.wrapping_add(u).wrapping_add(k[1]);
        if DECRYPT {
            *c = c.rotate_left(1) ^ f;
            *d = (*d ^ g).rotate_right(1);
        } else {
            *c = (*c ^ f).rotate_right(1);
            *d = d.rotate_left(1) ^ g;
        }
    }

    #[inline(always)]
    fn g(&self, [a, b, c, d]: [u8; 4]) -> u32 {
        let [t0, t1, t2, t3] = &self.tables;
        t0[usize::from(a)] ^ t1[usize::from(b)] ^ t2[usize::from(c)] ^ t3[usize::from(d)]
    }
}

fn expand(bytes: &[u8]) -> Locked<Expanded> {
    static COLUMNS: [[u32; 256]; 4] = columns();
    let key = key::expand(bytes);
    Locked::build(|out: &mut Expanded| {
        out.subkeys = key.subkeys;
        for ((table, sbox), column) in out.tables.iter_mut().zip(&key.sboxes).zip(&COLUMNS) {
            for (to, y) in table.iter_mut().zip(sbox) {
                *to = column[usize::from(*y)];
            }
        }
    })
}

const fn columns() -> [[u32; 256]; 4] {
    let mut columns = [[0; 256]; 4];
    let mut i = 0;
    while i < 4 * 256 {
        columns[i / 256][i % 256] = mds_column(i / 256, (i % 256) as u8);
        i += 1;
    }
    columns
}

#[inline(always)]
fn words(block: &[u8; 16]) -> [u32; 4] {
    let (words, _) = block.as_chunks();
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}
