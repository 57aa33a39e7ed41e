//! DES block by block, in constant time: see [`super`].

use super::{Keys, PLACE, s_box};

#[inline(always)]
pub(super) fn crypt(keys: &Keys, decrypt: bool, blocks: &mut [u8]) {
    let [mut before, mut after] = keys.whitening;
    if decrypt {
        std::mem::swap(&mut before, &mut after);
    }
    for block in blocks.as_chunks_mut::<8>().0 {
        let (mut one, mut other) = halves(u64::from_le_bytes(*block) ^ before);
        for turn in 0..keys.rounds.len() / 16 {
            for pair in 0..8 {
                let at = 16 * turn + 2 * pair;
                let key = |i: usize| if decrypt { keys.rounds[keys.rounds.len() - 1 - i] } else { keys.rounds[i] };
                one ^= f(other, key(at));
                other ^= f(one, key(at + 1));
            }
            (one, other) = (other, one);
        }
        *block = (join(one, other) ^ after).to_le_bytes();
    }
}

/// A half, rotated to the right by a bit, so that the six input bits of each S-box begin every four bits. It is stored twice, so
/// that the last six bits do not wrap around.
type Half = u64;

/// The initial permutation: transposes a square of eight by eight bits, and reorders its rows. The first half has the even bits.
#[inline(always)]
fn halves(block: u64) -> (Half, Half) {
    let b = turned(block).to_le_bytes();
    let half = |bytes| {
        let half = u64::from(u32::from_be_bytes(bytes).rotate_right(1));
        half << 32 | half
    };
    (half([b[6], b[4], b[2], b[0]]), half([b[7], b[5], b[3], b[1]]))
}

/// The inverse of [`halves`].
#[inline(always)]
fn join(one: Half, other: Half) -> u64 {
    let [a, b] = [one, other].map(|half| (half as u32).rotate_left(1).to_be_bytes());
    turned(u64::from_le_bytes([a[3], b[3], a[2], b[2], a[1], b[1], a[0], b[0]]))
}

/// A square of eight bits by eight, transposed.
#[inline(always)]
fn turned(mut square: u64) -> u64 {
    for (shift, mask) in [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)] {
        let swapped = (square >> shift ^ square) & mask;
        square ^= swapped ^ swapped << shift;
    }
    square
}

/// The function f. The compiler vectorises the loops over S-boxes if each lane of a vector can be shifted by its own count.
#[inline(always)]
fn f(half: Half, key: u64) -> Half {
    let index: [u32; 8] = std::array::from_fn(|s| ((half >> (58 - 4 * s) ^ key >> (8 * s)) & 63) as u32);
    let mut sum = [0; 8];
    for (tables, places) in TABLES.iter().zip(&PLACES) {
        for s in 0..8 {
            // The bit that is looked up becomes the sign, and the sign becomes a mask.
            let bit = tables[s].wrapping_shl(index[s]).cast_signed() >> 63;
            sum[s] |= bit.cast_unsigned() & places[s];
        }
    }
    sum.iter().fold(0, |sum, part| sum | part)
}

/// The truth table for each output bit and each S-box; its highest bit is the output for zeros.
static TABLES: [[u64; 8]; 4] = {
    let mut tables = [[0; 8]; 4];
    let mut i = 0;
    while i < 64 * 8 {
        let (s, x) = (i / 64, i % 64);
        let mut bit = 0;
        while bit < 4 {
            tables[bit][s] |= ((s_box(s, x) >> (3 - bit) & 1) as u64) << (63 - x);
            bit += 1;
        }
        i += 1;
    }
    tables
};

/// The two places in a [`Half`] for each output bit and each S-box.
static PLACES: [[u64; 8]; 4] = {
    let mut places = [[0; 8]; 4];
    let mut i = 0;
    while i < 32 {
        places[i % 4][i / 4] = 0x1_0000_0001 << (31 - (PLACE[i] + 1) % 32);
        i += 1;
    }
    places
};
