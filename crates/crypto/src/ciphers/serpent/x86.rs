//! Serpent with SSE2, four blocks in four vectors; with AVX2, eight; and with AVX-512, sixteen.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::ops::{BitAnd, BitOr, BitXor, Not};

use super::binary::Lanes;
use super::rounds::{RoundKeys, run};
use super::ternary::{self, Ternary};
use crate::ciphers::wide::block_cipher;
use crate::secret::LockedBox;
use crate::tweak::Masks;

/// Two sets of four blocks: for every x86-64.
pub(super) struct Sse2(pub(super) LockedBox<RoundKeys>);

/// Four sets of eight blocks. One set alone waits for its own results half of the time; four are faster than two, even
/// though some words spill to memory.
pub(super) struct Avx2(pub(super) LockedBox<RoundKeys>);

/// Four sets of sixteen blocks, which fit the 32 registers.
pub(super) struct Avx512(pub(super) LockedBox<RoundKeys>);

pub(super) fn avx2_usable() -> bool {
    is_x86_feature_detected!("avx2")
}

pub(super) fn avx512_usable() -> bool {
    is_x86_feature_detected!("avx512f")
}

block_cipher!([] Sse2);
block_cipher!([] Avx2);
block_cipher!([] Avx512);

impl Sse2 {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        run::crypt::<X, 2, DECRYPT, MASKED>(&self.0, masks, run);
    }
}

impl Avx2 {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        #[target_feature(enable = "avx2")]
        fn with_avx2<const DECRYPT: bool, const MASKED: bool>(keys: &RoundKeys, masks: Masks<'_>, run: &mut [u8]) {
            run::crypt::<Y, 4, DECRYPT, MASKED>(keys, masks, run);
        }
        // SAFETY: the kernel is only made where `avx2_usable`.
        unsafe { with_avx2::<DECRYPT, MASKED>(&self.0, masks, run) }
    }
}

impl Avx512 {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        #[target_feature(enable = "avx512f")]
        fn with_avx512<const DECRYPT: bool, const MASKED: bool>(keys: &RoundKeys, masks: Masks<'_>, run: &mut [u8]) {
            run::crypt::<Z, 4, DECRYPT, MASKED>(keys, masks, run);
        }
        // SAFETY: the kernel is only made where `avx512_usable`.
        unsafe { with_avx512::<DECRYPT, MASKED>(&self.0, masks, run) }
    }
}

/// Four lanes. Every x86-64 has SSE2.
#[derive(Clone, Copy)]
pub(super) struct X(__m128i);

/// Eight lanes. Values only come from the functions above, so AVX2 is available.
#[derive(Clone, Copy)]
pub(super) struct Y(__m256i);

/// Sixteen lanes. Values only come from the functions above, so AVX-512F is available.
#[derive(Clone, Copy)]
pub(super) struct Z(__m512i);

impl Ternary for Z {
    #[inline(always)]
    fn ternary<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: a value of this type exists, so the processor has AVX-512F.
        Self(unsafe { _mm512_ternarylogic_epi32::<TABLE>(a.0, b.0, c.0) })
    }
}

/// Implements the operators of a vector by its intrinsics.
macro_rules! operators {
    ($vector:ident, $xor:ident, $and:ident, $or:ident, $ones:expr) => {
        impl BitXor for $vector {
            type Output = Self;
            #[inline(always)]
            fn bitxor(self, other: Self) -> Self {
                // SAFETY: a value of this type exists, so the processor has the instructions.
                Self(unsafe { $xor(self.0, other.0) })
            }
        }

        impl BitAnd for $vector {
            type Output = Self;
            #[inline(always)]
            fn bitand(self, other: Self) -> Self {
                // SAFETY: a value of this type exists, so the processor has the instructions.
                Self(unsafe { $and(self.0, other.0) })
            }
        }

        impl BitOr for $vector {
            type Output = Self;
            #[inline(always)]
            fn bitor(self, other: Self) -> Self {
                // SAFETY: a value of this type exists, so the processor has the instructions.
                Self(unsafe { $or(self.0, other.0) })
            }
        }

        impl Not for $vector {
            type Output = Self;
            #[inline(always)]
            fn not(self) -> Self {
                // SAFETY: a value of this type exists, so the processor has the instructions.
                Self(unsafe { $xor(self.0, $ones) })
            }
        }
    };
}

operators!(X, _mm_xor_si128, _mm_and_si128, _mm_or_si128, _mm_set1_epi32(-1));
operators!(Y, _mm256_xor_si256, _mm256_and_si256, _mm256_or_si256, _mm256_set1_epi32(-1));
operators!(Z, _mm512_xor_si512, _mm512_and_si512, _mm512_or_si512, _mm512_set1_epi32(-1));

/// Implements [`Lanes`] for a vector that has neither rotations nor functions of three inputs.
macro_rules! plain_lanes {
    ($vector:ident, $lanes:literal, $splat:ident, $shl:ident, $srl:ident, $load:ident, $store:ident,
        [$lo32:ident, $hi32:ident, $lo64:ident, $hi64:ident]) => {
        impl Lanes for $vector {
            const LANES: usize = $lanes;

            #[inline(always)]
            fn splat(word: u32) -> Self {
                // SAFETY: the type is used only where the processor has the instructions.
                Self(unsafe { $splat(word as i32) })
            }

            #[inline(always)]
            fn shl<const N: i32>(self) -> Self {
                // SAFETY: as in `splat`.
                Self(unsafe { $shl::<N>(self.0) })
            }

            #[inline(always)]
            fn rotl<const N: i32>(self) -> Self {
                // The count of the right shift is not a constant expression in N; the compiler still folds it.
                // SAFETY: as in `splat`.
                let right = unsafe { $srl(self.0, _mm_cvtsi32_si128(32 - N)) };
                self.shl::<N>() | Self(right)
            }

            #[inline(always)]
            fn load(bytes: &[u8]) -> Self {
                assert!(bytes.len() == 4 * $lanes);
                // SAFETY: as in `splat`; the slice is long enough and the load takes any alignment.
                Self(unsafe { $load(bytes.as_ptr().cast()) })
            }

            #[inline(always)]
            fn store(self, bytes: &mut [u8]) {
                assert!(bytes.len() == 4 * $lanes);
                // SAFETY: as in `splat`; the slice is long enough and the store takes any alignment.
                unsafe { $store(bytes.as_mut_ptr().cast(), self.0) }
            }

            /// Within each part of 128 bits a matrix of four by four words.
            #[inline(always)]
            fn transpose([a, b, c, d]: [Self; 4]) -> [Self; 4] {
                // SAFETY: as in `splat`.
                unsafe {
                    let ab = ($lo32(a.0, b.0), $hi32(a.0, b.0));
                    let cd = ($lo32(c.0, d.0), $hi32(c.0, d.0));
                    [Self($lo64(ab.0, cd.0)), Self($hi64(ab.0, cd.0)), Self($lo64(ab.1, cd.1)), Self($hi64(ab.1, cd.1))]
                }
            }
        }
    };
}

plain_lanes!(
    X,
    4,
    _mm_set1_epi32,
    _mm_slli_epi32,
    _mm_srl_epi32,
    _mm_loadu_si128,
    _mm_storeu_si128,
    [_mm_unpacklo_epi32, _mm_unpackhi_epi32, _mm_unpacklo_epi64, _mm_unpackhi_epi64]
);
plain_lanes!(
    Y,
    8,
    _mm256_set1_epi32,
    _mm256_slli_epi32,
    _mm256_srl_epi32,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    [_mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64]
);

impl Lanes for Z {
    const LANES: usize = 16;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: the type is used under AVX-512F only.
        Self(unsafe { _mm512_set1_epi32(word as i32) })
    }

    #[inline(always)]
    fn shl<const N: i32>(self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_sll_epi32(self.0, _mm_cvtsi32_si128(N)) })
    }

    #[inline(always)]
    fn rotl<const N: i32>(self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_rol_epi32::<N>(self.0) })
    }

    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        assert!(bytes.len() == 64);
        // SAFETY: as in `splat`; the slice is long enough and the load takes any alignment.
        Self(unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8]) {
        assert!(bytes.len() == 64);
        // SAFETY: as in `splat`; the slice is long enough and the store takes any alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), self.0) }
    }

    /// Within each quarter of 128 bits a matrix of four by four words.
    #[inline(always)]
    fn transpose([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        // SAFETY: as in `splat`.
        unsafe {
            let ab = (_mm512_unpacklo_epi32(a.0, b.0), _mm512_unpackhi_epi32(a.0, b.0));
            let cd = (_mm512_unpacklo_epi32(c.0, d.0), _mm512_unpackhi_epi32(c.0, d.0));
            [
                Self(_mm512_unpacklo_epi64(ab.0, cd.0)),
                Self(_mm512_unpackhi_epi64(ab.0, cd.0)),
                Self(_mm512_unpacklo_epi64(ab.1, cd.1)),
                Self(_mm512_unpackhi_epi64(ab.1, cd.1)),
            ]
        }
    }

    #[inline(always)]
    fn substitute<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        ternary::forward::<_, BOX>(x)
    }

    #[inline(always)]
    fn unsubstitute<const BOX: usize>(y: [Self; 4]) -> [Self; 4] {
        ternary::inverse::<_, BOX>(y)
    }
}
