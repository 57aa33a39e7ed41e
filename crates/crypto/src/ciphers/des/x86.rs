//! DES in vectors: SSE2 with 128 blocks, AVX2 with 256, AVX-512 with 512.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::ops::{BitAnd, BitOr, BitXor, Not};

use super::circuits::Lanes;
use super::sliced::Sliced;
use super::{Keys, Width, circuits, few, sliced};

pub(super) static SSE2: Width =
    Width { blocks: 128, worth: 8, few: few::crypt, expand: Sliced::new, sliced: sliced::crypt::<X> };
pub(super) static AVX2: Width =
    Width { blocks: 256, worth: 8, few: few_avx2, expand: expand_avx2, sliced: sliced_avx2 };
pub(super) static AVX512: Width =
    Width { blocks: 512, worth: 8, few: few_avx2, expand: expand_avx2, sliced: sliced_avx512 };

pub(super) fn avx2_usable() -> bool {
    is_x86_feature_detected!("avx2")
}

pub(super) fn avx512_usable() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avx512f")
}

#[target_feature(enable = "avx2")]
fn few_avx2(keys: &Keys, decrypt: bool, blocks: &mut [u8]) {
    few::crypt(keys, decrypt, blocks);
}

#[target_feature(enable = "avx2")]
fn expand_avx2(keys: &Keys, decrypt: bool) -> Sliced {
    Sliced::new(keys, decrypt)
}

#[target_feature(enable = "avx2")]
fn sliced_avx2(keys: &Sliced, blocks: &mut [u8]) {
    sliced::crypt::<Y>(keys, blocks);
}

#[target_feature(enable = "avx512f")]
fn sliced_avx512(keys: &Sliced, blocks: &mut [u8]) {
    sliced::crypt::<Z>(keys, blocks);
}

/// Two words. Every x86-64 has SSE2.
#[derive(Clone, Copy)]
struct X(__m128i);

/// Four words. Values only come from the functions above, so AVX2 is available.
#[derive(Clone, Copy)]
struct Y(__m256i);

/// Eight words. Values only come from the functions above, so AVX-512F is available.
#[derive(Clone, Copy)]
struct Z(__m512i);

// SAFETY of every block: a value of the type exists, or is about to be made by one of the functions above, so that the processor has
// the instructions; what is loaded or stored is as long as the vector, and may have any alignment.

/// Implements a vector by its intrinsics.
macro_rules! vector {
    ($vector:ident, $words:literal, $xor:ident, $and:ident, $or:ident, $set:ident, $mask:ident, $left:ident, $right:ident,
        $load:ident, $store:ident, $pointer:ty, {$($more:tt)*}) => {
        impl BitXor for $vector {
            type Output = Self;
            #[inline(always)]
            fn bitxor(self, other: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $xor(self.0, other.0) })
            }
        }

        impl BitAnd for $vector {
            type Output = Self;
            #[inline(always)]
            fn bitand(self, other: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $and(self.0, other.0) })
            }
        }

        impl BitOr for $vector {
            type Output = Self;
            #[inline(always)]
            fn bitor(self, other: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $or(self.0, other.0) })
            }
        }

        impl Not for $vector {
            type Output = Self;
            #[inline(always)]
            fn not(self) -> Self {
                self ^ Self::splat(u64::MAX)
            }
        }

        impl Lanes for $vector {
            const WORDS: usize = $words;

            #[inline(always)]
            fn splat(word: u64) -> Self {
                // SAFETY: see above.
                Self(unsafe { $set(word.cast_signed()) })
            }

            #[inline(always)]
            fn mask(mask: i32) -> Self {
                // SAFETY: see above.
                Self(unsafe { $mask(mask) })
            }

            #[inline(always)]
            fn shl<const N: i32>(self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $left(self.0, _mm_cvtsi32_si128(N)) })
            }

            #[inline(always)]
            fn shr<const N: i32>(self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $right(self.0, _mm_cvtsi32_si128(N)) })
            }

            #[inline(always)]
            fn load(blocks: &[[u8; 8]]) -> Self {
                let blocks: &[[u8; 8]; $words] = blocks.first_chunk().expect("as many as words");
                // SAFETY: see above.
                Self(unsafe { $load(blocks.as_ptr().cast::<$pointer>()) })
            }

            #[inline(always)]
            fn store(self, blocks: &mut [[u8; 8]]) {
                let blocks: &mut [[u8; 8]; $words] = blocks.first_chunk_mut().expect("as many as words");
                // SAFETY: see above.
                unsafe { $store(blocks.as_mut_ptr().cast::<$pointer>(), self.0) }
            }

            $($more)*
        }
    };
}

vector!(
    X,
    2,
    _mm_xor_si128,
    _mm_and_si128,
    _mm_or_si128,
    _mm_set1_epi64x,
    _mm_set1_epi32,
    _mm_sll_epi64,
    _mm_srl_epi64,
    _mm_loadu_si128,
    _mm_storeu_si128,
    __m128i,
    {}
);
vector!(
    Y,
    4,
    _mm256_xor_si256,
    _mm256_and_si256,
    _mm256_or_si256,
    _mm256_set1_epi64x,
    _mm256_set1_epi32,
    _mm256_sll_epi64,
    _mm256_srl_epi64,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    __m256i,
    {}
);
vector!(
    Z,
    8,
    _mm512_xor_si512,
    _mm512_and_si512,
    _mm512_or_si512,
    _mm512_set1_epi64,
    _mm512_set1_epi32,
    _mm512_sll_epi64,
    _mm512_srl_epi64,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    __m512i,
    {
        #[inline(always)]
        fn s_box<const BOX: usize>(x: [Self; 6]) -> [Self; 4] {
            circuits::ternary::s_box::<Self, BOX>(x)
        }
    }
);

impl circuits::ternary::Ternary for Z {
    #[inline(always)]
    fn ternary<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_ternarylogic_epi64::<TABLE>(a.0, b.0, c.0) })
    }
}
