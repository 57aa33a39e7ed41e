//! DES bit-sliced, over any vector of bits: see [`super`].

use zeroize::Zeroize;

use super::circuits::Lanes;
use super::{Keys, MOST, PLACE};

/// Round keys in the order of their use: a mask for each bit, all zeros or all ones.
pub(super) struct Sliced {
    masks: [[i32; 48]; MOST],
    rounds: usize,
    whitening: [u64; 2],
}

impl Sliced {
    #[inline(always)]
    pub(super) fn new(keys: &Keys, decrypt: bool) -> Self {
        let rounds = keys.rounds.len();
        let mut sliced = Self { masks: [[0; 48]; MOST], rounds, whitening: keys.whitening };
        for (masks, key) in sliced.masks.iter_mut().zip(keys.rounds) {
            // A loop that the compiler turns into vectors.
            let (low, high) = (*key as u32, (key >> 32) as u32);
            for i in 0..24 {
                let shift = (8 * (i / 6) + 5 - i % 6) as u32;
                masks[i] = -((low >> shift & 1) as i32);
                masks[24 + i] = -((high >> shift & 1) as i32);
            }
        }
        if decrypt {
            sliced.masks[..rounds].reverse();
            sliced.whitening.reverse();
        }
        sliced
    }
}

impl Drop for Sliced {
    fn drop(&mut self) {
        self.masks.zeroize();
        self.whitening.zeroize();
    }
}

/// Bits of 32 lanes' halves, in DES's order.
type Half<L> = [L; 32];

#[inline(always)]
pub(super) fn crypt<L: Lanes>(keys: &Sliced, blocks: &mut [u8]) {
    let mut groups = blocks.as_chunks_mut::<8>().0.chunks_exact_mut(64 * L::WORDS);
    for blocks in &mut groups {
        group::<L>(keys, blocks);
    }
    let rest = groups.into_remainder();
    if !rest.is_empty() {
        // As many blocks as the widest vectors hold.
        let mut padded = [[0; 8]; 512];
        padded[..rest.len()].copy_from_slice(rest);
        group::<L>(keys, &mut padded[..64 * L::WORDS]);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// `64 * L::WORDS` blocks.
#[inline(always)]
fn group<L: Lanes>(keys: &Sliced, blocks: &mut [[u8; 8]]) {
    let [before, after] = keys.whitening.map(L::splat);
    let mut rows = [L::splat(0); 64];
    for (row, blocks) in rows.iter_mut().zip(blocks.chunks_exact(L::WORDS)) {
        *row = L::load(blocks) ^ before;
    }
    transpose(&mut rows);
    let mut halves: [Half<L>; 2] = [[L::splat(0); 32]; 2];
    for (bit, row) in halves.as_flattened_mut().iter_mut().zip(INITIAL) {
        *bit = rows[row];
    }
    let [mut one, mut other] = halves.each_mut();
    for des in keys.masks[..keys.rounds].chunks_exact(16) {
        for [first, second] in des.as_chunks().0 {
            round(other, first, one);
            round(one, second, other);
        }
        std::mem::swap(&mut one, &mut other);
    }
    for (bit, row) in one.iter().chain(&*other).zip(INITIAL) {
        rows[row] = *bit;
    }
    transpose(&mut rows);
    for (row, blocks) in rows.iter().zip(blocks.chunks_exact_mut(L::WORDS)) {
        (*row ^ after).store(blocks);
    }
}

/// Adds f of `from` to `to`.
#[inline(always)]
fn round<L: Lanes>(from: &Half<L>, key: &[i32; 48], to: &mut Half<L>) {
    substitute::<L, 0>(from, key, to);
    substitute::<L, 1>(from, key, to);
    substitute::<L, 2>(from, key, to);
    substitute::<L, 3>(from, key, to);
    substitute::<L, 4>(from, key, to);
    substitute::<L, 5>(from, key, to);
    substitute::<L, 6>(from, key, to);
    substitute::<L, 7>(from, key, to);
}

#[inline(always)]
fn substitute<L: Lanes, const BOX: usize>(from: &Half<L>, key: &[i32; 48], to: &mut Half<L>) {
    let x = std::array::from_fn(|i| from[(4 * BOX + i + 31) % 32] ^ L::mask(key[6 * BOX + i]));
    for (i, y) in L::s_box::<BOX>(x).into_iter().enumerate() {
        let place = PLACE[4 * BOX + i];
        to[place] = to[place] ^ y;
    }
}

/// Transposes squares of 64 by 64 bits, one in each word's lane.
#[inline(always)]
fn transpose<L: Lanes>(rows: &mut [L; 64]) {
    swap::<L, 32>(rows, 0x0000_0000_ffff_ffff);
    swap::<L, 16>(rows, 0x0000_ffff_0000_ffff);
    swap::<L, 8>(rows, 0x00ff_00ff_00ff_00ff);
    swap::<L, 4>(rows, 0x0f0f_0f0f_0f0f_0f0f);
    swap::<L, 2>(rows, 0x3333_3333_3333_3333);
    swap::<L, 1>(rows, 0x5555_5555_5555_5555);
}

/// Swaps the bits of the numbers of rows and of columns that have the value `N`.
#[inline(always)]
fn swap<L: Lanes, const N: i32>(rows: &mut [L; 64], mask: u64) {
    let mask = L::splat(mask);
    for i in 0..32 {
        let low = (i & !(N as usize - 1)) << 1 | i & (N as usize - 1);
        let high = low + N as usize;
        let swapped = (rows[low].shr::<N>() ^ rows[high]) & mask;
        rows[high] = rows[high] ^ swapped;
        rows[low] = rows[low] ^ swapped.shl::<N>();
    }
}

/// For each bit of the two halves, its number in the block as a little-endian word: the initial permutation.
const INITIAL: [usize; 64] = {
    let columns = [2, 4, 6, 8, 1, 3, 5, 7];
    let mut initial = [0; 64];
    let mut i = 0;
    while i < 64 {
        initial[i] = 8 * (7 - i % 8) + 8 - columns[i / 8];
        i += 1;
    }
    initial
};

impl Lanes for u64 {
    const WORDS: usize = 1;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        word
    }

    #[inline(always)]
    fn mask(mask: i32) -> Self {
        i64::from(mask).cast_unsigned()
    }

    #[inline(always)]
    fn shl<const N: i32>(self) -> Self {
        self << N
    }

    #[inline(always)]
    fn shr<const N: i32>(self) -> Self {
        self >> N
    }

    #[inline(always)]
    fn load(blocks: &[[u8; 8]]) -> Self {
        u64::from_le_bytes(blocks[0])
    }

    #[inline(always)]
    fn store(self, blocks: &mut [[u8; 8]]) {
        blocks[0] = self.to_le_bytes();
    }
}
