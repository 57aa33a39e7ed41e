//! SHA-3 (FIPS 202) in the lanes of a vector, for PBKDF2. A state has 25 words, more than a processor has general registers, but 32
//! vector registers hold it. With AVX-512's rotations and functions of three inputs, four states in vectors take half the time of
//! one in general registers. So a single block is computed this way, too.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::array::from_fn;

use super::lanes::{Four, SideBySide, for_each};

/// SHA-3 with digests of `WORDS` words.
pub(super) struct Sha3<const WORDS: usize>;

impl<const WORDS: usize> Sha3<WORDS> {
    /// Words of the state that a message's block is added to: all except the capacity, which is as long as two digests.
    const RATE: usize = 25 - 2 * WORDS;
}

/// Whether a single block is faster this way, too.
pub(super) fn even_alone() -> bool {
    is_x86_feature_detected!("avx512vl")
}

impl<const WORDS: usize> SideBySide for Sha3<WORDS> {
    type Vector = Four;
    type State = [Four; 25];
    type Digest = [Four; WORDS];
    const BLOCK: usize = 8 * Self::RATE;
    const BIG_ENDIAN: bool = false;

    #[inline(always)]
    fn digests(word: impl Fn(usize) -> Four) -> Self::Digest {
        from_fn(word)
    }

    #[inline(always)]
    unsafe fn after(word: impl Fn(usize) -> Four) -> [Four; 25] {
        // SAFETY: the caller vouches for the instructions.
        unsafe { permuted(from_fn(|i| if i < Self::RATE { word(i) } else { Four(_mm256_setzero_si256()) })) }
    }

    #[inline(always)]
    unsafe fn end(mut state: [Four; 25], digest: [Four; WORDS]) -> [Four; WORDS] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let add = |to: &mut Four, word: __m256i| to.0 = _mm256_xor_si256(to.0, word);
            state.iter_mut().zip(digest).for_each(|(to, word)| add(to, word.0));
            // The suffix of SHA-3 and the padding (sections 6.1 and 5.1).
            add(&mut state[WORDS], _mm256_set1_epi64x(0x06));
            add(&mut state[Self::RATE - 1], _mm256_set1_epi64x(i64::MIN));
            let after = permuted(state);
            from_fn(|i| after[i])
        }
    }
}

/// Keccak-f[1600] (section 3.3). Word `x + 5 * y` is lane (x, y).
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn permuted(state: [Four; 25]) -> [Four; 25] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let xor = |a, b| _mm256_xor_si256(a, b);
        let mut a = state.map(|word| word.0);
        for constant in &CONSTANTS {
            let c: [__m256i; 5] = from_fn(|x| xor(xor(xor(a[x], a[x + 5]), a[x + 10]), xor(a[x + 15], a[x + 20])));
            let turned: [__m256i; 5] = from_fn(|x| rotated::<1>(c[x]));
            let mut b = a;
            for_each!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24] {
                const X: usize = I % 5;
                const TO: usize = I / 5 + 5 * ((2 * X + 3 * (I / 5)) % 5);
                b[TO] = rotated::<{ ROTATIONS[I] }>(xor(xor(a[I], c[(X + 4) % 5]), turned[(X + 1) % 5]));
            });
            for_each!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24] {
                const ROW: usize = I / 5 * 5;
                a[I] = xor(b[I], _mm256_andnot_si256(b[ROW + (I + 1) % 5], b[ROW + (I + 2) % 5]));
            });
            a[0] = xor(a[0], _mm256_set1_epi64x(*constant as i64));
        }
        a.map(Four)
    }
}

/// Every word rotated left.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn rotated<const BY: i32>(word: __m256i) -> __m256i {
    // The count of the right shift is not a constant expression in BY; the compiler still folds it.
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let right = _mm256_srl_epi64(word, _mm_cvtsi32_si128(64 - BY));
        _mm256_or_si256(_mm256_slli_epi64::<BY>(word), right)
    }
}

/// How far each word is rotated to the left (section 3.2.2, table 2, modulo 64).
const ROTATIONS: [i32; 25] =
    [0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14];

/// The constant added in each round (section 3.2.5).
const CONSTANTS: [u64; 24] = {
    let (mut constants, mut register) = ([0; 24], 1u8);
    let mut i = 0;
    while i < 24 * 7 {
        constants[i / 7] |= ((register & 1) as u64) << ((1 << (i % 7)) - 1);
        let carry = register >> 7;
        register = (register << 1) ^ (carry * 0x71);
        i += 1;
    }
    constants
};
