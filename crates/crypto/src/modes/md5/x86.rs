//! MD5 on vectors of 8 or 16 sectors, two of them interleaved: each step of MD5 waits for the previous one, so a single vector
//! would leave the units idle half of the time.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

use super::{Kernel, Row, SHIFTS, SINES, WORDS, last_block};
use crate::transpose;

/// Vectors of 16 sectors.
pub(super) const AVX512: Kernel = Kernel {
    name: "avx512",
    usable: || is_x86_feature_detected!("avx512f"),
    lanes: 32,
    run: |start, rows, out| {
        // SAFETY: `usable` was asked.
        unsafe { avx512(start, rows, out) }
    },
    blocks: |start, blocks, out| {
        // SAFETY: `usable` was asked.
        unsafe { avx512_blocks(start, blocks, out) }
    },
};

/// Vectors of 8 sectors.
pub(super) const AVX2: Kernel = Kernel {
    name: "avx2",
    usable: || is_x86_feature_detected!("avx2"),
    lanes: 16,
    run: |start, rows, out| {
        // SAFETY: `usable` was asked.
        unsafe { avx2(start, rows, out) }
    },
    blocks: |start, blocks, out| {
        // SAFETY: `usable` was asked.
        unsafe { avx2_blocks(start, blocks, out) }
    },
};

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx512f")]
unsafe fn avx512(start: &[u32; 4], rows: &[Row<'_>], out: &mut [[u8; 16]]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { sectors::<__m512i, 16>(start, rows, out) }
}

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx2")]
unsafe fn avx2(start: &[u32; 4], rows: &[Row<'_>], out: &mut [[u8; 16]]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { sectors::<__m256i, 8>(start, rows, out) }
}

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx512f")]
unsafe fn avx512_blocks(start: &[u32; 4], blocks: &[&[u8; 64]], out: &mut [[u8; 16]]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { single_blocks::<__m512i, 16>(start, blocks, out) }
}

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx2")]
unsafe fn avx2_blocks(start: &[u32; 4], blocks: &[&[u8; 64]], out: &mut [[u8; 16]]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { single_blocks::<__m256i, 8>(start, blocks, out) }
}

/// A vector with one word from each of `N` sectors. Each method may only be called if the processor has the
/// instructions.
trait Vector<const N: usize>: Copy {
    unsafe fn all(word: u32) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn rotate<const BY: u32>(self) -> Self;
    /// The function of a round (RFC 1321, 3.4).
    unsafe fn mix<const ROUND: usize>(b: Self, c: Self, d: Self) -> Self;
    /// The words of the blocks, each vector with one word of all blocks.
    unsafe fn transpose(blocks: [&[u8; 64]; N], out: &mut [Self; 16]);
    unsafe fn words(self) -> [u32; N];
}

/// Vectors side by side.
const ABREAST: usize = 2;

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn sectors<V: Vector<N>, const N: usize>(start: &[u32; 4], rows: &[Row<'_>], out: &mut [[u8; 16]]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mut state = [[V::all(start[0]), V::all(start[1]), V::all(start[2]), V::all(start[3])]; ABREAST];
        let mut words = [[V::all(0); 16]; ABREAST];
        for block in 0..8 {
            for (words, rows) in words.iter_mut().zip(rows.as_chunks::<N>().0) {
                if block == 7 {
                    let last: [[u8; 64]; N] = std::array::from_fn(|i| last_block(&rows[i].0[464..], rows[i].1));
                    V::transpose(std::array::from_fn(|i| &last[i]), words);
                    continue;
                }
                let at =
                    |i: usize| rows[i].0[16 + 64 * block..].first_chunk().expect("seven whole blocks follow byte 16");
                V::transpose(std::array::from_fn(at), words);
            }
            compress::<V, N>(&mut state, &words);
        }
        store::<V, N>(&state, out);
    }
}

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn single_blocks<V: Vector<N>, const N: usize>(start: &[u32; 4], blocks: &[&[u8; 64]], out: &mut [[u8; 16]]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mut state = [[V::all(start[0]), V::all(start[1]), V::all(start[2]), V::all(start[3])]; ABREAST];
        let mut words = [[V::all(0); 16]; ABREAST];
        for (words, blocks) in words.iter_mut().zip(blocks.as_chunks::<N>().0) {
            V::transpose(*blocks, words);
        }
        compress::<V, N>(&mut state, &words);
        store::<V, N>(&state, out);
    }
}

/// Compresses one block in each lane.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn compress<V: Vector<N>, const N: usize>(state: &mut [[V; 4]; ABREAST], words: &[[V; 16]; ABREAST]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let before = *state;
        round::<V, N, 0>(state, words);
        round::<V, N, 1>(state, words);
        round::<V, N, 2>(state, words);
        round::<V, N, 3>(state, words);
        for (state, before) in state.as_flattened_mut().iter_mut().zip(before.as_flattened()) {
            *state = state.add(*before);
        }
    }
}

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn store<V: Vector<N>, const N: usize>(state: &[[V; 4]; ABREAST], out: &mut [[u8; 16]]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        for (state, out) in state.iter().zip(out.chunks_mut(N)) {
            let words = [state[0].words(), state[1].words(), state[2].words(), state[3].words()];
            for (i, out) in out.iter_mut().enumerate() {
                for (bytes, words) in out.as_chunks_mut().0.iter_mut().zip(&words) {
                    *bytes = words[i].to_le_bytes();
                }
            }
        }
    }
}

/// 16 steps.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn round<V: Vector<N>, const N: usize, const ROUND: usize>(
    state: &mut [[V; 4]; ABREAST],
    words: &[[V; 16]; ABREAST],
) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        steps::<V, N, ROUND, 0>(state, words);
        steps::<V, N, ROUND, 4>(state, words);
        steps::<V, N, ROUND, 8>(state, words);
        steps::<V, N, ROUND, 12>(state, words);
    }
}

/// Four steps from step `FIRST` of a round on. Each has its own code, with the positions of the words as constants.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn steps<V: Vector<N>, const N: usize, const ROUND: usize, const FIRST: usize>(
    state: &mut [[V; 4]; ABREAST],
    words: &[[V; 16]; ABREAST],
) {
    let (first, step) = WORDS[ROUND];
    let word = |j: usize| (first + step * (FIRST + j)) % 16;
    let sine = |j: usize| SINES[16 * ROUND + FIRST + j];
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        for (s, w) in state.iter_mut().zip(words) {
            let [a, b, c, d] = *s;
            let a = shift::<V, N, ROUND, 0>(mixed::<V, N, ROUND>(a, b, c, d, w[word(0)], sine(0))).add(b);
            let d = shift::<V, N, ROUND, 1>(mixed::<V, N, ROUND>(d, a, b, c, w[word(1)], sine(1))).add(a);
            let c = shift::<V, N, ROUND, 2>(mixed::<V, N, ROUND>(c, d, a, b, w[word(2)], sine(2))).add(d);
            let b = shift::<V, N, ROUND, 3>(mixed::<V, N, ROUND>(b, c, d, a, w[word(3)], sine(3))).add(c);
            *s = [a, b, c, d];
        }
    }
}

/// The rotation of a step.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn mixed<V: Vector<N>, const N: usize, const ROUND: usize>(a: V, b: V, c: V, d: V, word: V, sine: u32) -> V {
    // The word and the sine do not depend on the previous step. SAFETY: the caller vouches for the instructions.
    unsafe { a.add(word.add(V::all(sine))).add(V::mix::<ROUND>(b, c, d)) }
}

/// Rotates as step `4 n + STEP` of a round does: `SHIFTS` as constants.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn shift<V: Vector<N>, const N: usize, const ROUND: usize, const STEP: usize>(x: V) -> V {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        match const { SHIFTS[ROUND][STEP] } {
            4 => x.rotate::<4>(),
            5 => x.rotate::<5>(),
            6 => x.rotate::<6>(),
            7 => x.rotate::<7>(),
            9 => x.rotate::<9>(),
            10 => x.rotate::<10>(),
            11 => x.rotate::<11>(),
            12 => x.rotate::<12>(),
            14 => x.rotate::<14>(),
            15 => x.rotate::<15>(),
            16 => x.rotate::<16>(),
            17 => x.rotate::<17>(),
            20 => x.rotate::<20>(),
            21 => x.rotate::<21>(),
            22 => x.rotate::<22>(),
            23 => x.rotate::<23>(),
            _ => unreachable!("these are all that there are"),
        }
    }
}

// In both implementations, loads and stores are unaligned and within the named arrays, and everything else works on
// registers. SAFETY of every block: the trait's promise about instructions.

impl Vector<16> for __m512i {
    #[inline(always)]
    unsafe fn all(word: u32) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn rotate<const BY: u32>(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_rolv_epi32(self, _mm512_set1_epi32(BY as i32)) }
    }
    #[inline(always)]
    unsafe fn mix<const ROUND: usize>(b: Self, c: Self, d: Self) -> Self {
        // The functions as 8-bit tables, indexed by b, c and d. SAFETY: see above.
        unsafe {
            match ROUND {
                0 => _mm512_ternarylogic_epi32::<0xca>(b, c, d),
                1 => _mm512_ternarylogic_epi32::<0xe4>(b, c, d),
                2 => _mm512_ternarylogic_epi32::<0x96>(b, c, d),
                _ => _mm512_ternarylogic_epi32::<0x39>(b, c, d),
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose(blocks: [&[u8; 64]; 16], out: &mut [Self; 16]) {
        // SAFETY: see above.
        unsafe { *out = transpose::of_16(blocks.map(|block| _mm512_loadu_si512(block.as_ptr().cast()))) };
    }
    #[inline(always)]
    unsafe fn words(self) -> [u32; 16] {
        let mut words = [0; 16];
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self) };
        words
    }
}

impl Vector<8> for __m256i {
    #[inline(always)]
    unsafe fn all(word: u32) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn rotate<const BY: u32>(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let (left, right) = (_mm256_set1_epi32(BY as i32), _mm256_set1_epi32(32 - BY as i32));
            _mm256_or_si256(_mm256_sllv_epi32(self, left), _mm256_srlv_epi32(self, right))
        }
    }
    #[inline(always)]
    unsafe fn mix<const ROUND: usize>(b: Self, c: Self, d: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            match ROUND {
                0 => _mm256_xor_si256(d, _mm256_and_si256(b, _mm256_xor_si256(c, d))),
                1 => _mm256_xor_si256(c, _mm256_and_si256(d, _mm256_xor_si256(b, c))),
                2 => _mm256_xor_si256(b, _mm256_xor_si256(c, d)),
                _ => _mm256_xor_si256(c, _mm256_or_si256(b, _mm256_xor_si256(d, Self::all(u32::MAX)))),
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose(blocks: [&[u8; 64]; 8], out: &mut [Self; 16]) {
        // SAFETY: see above.
        unsafe {
            for (half, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *out =
                    transpose::of_8(blocks.map(|block| _mm256_loadu_si256(block[32 * half..][..32].as_ptr().cast())));
            }
        }
    }
    #[inline(always)]
    unsafe fn words(self) -> [u32; 8] {
        let mut words = [0; 8];
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self) };
        words
    }
}
