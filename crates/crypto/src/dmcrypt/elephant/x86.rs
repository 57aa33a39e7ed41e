//! The diffusers on vectors of 4, 8 or 16 sectors.

use std::arch::x86_64::*;

use super::diffuser::{Kernel, Vector, sectors};
use crate::transpose;

/// Vectors of 16 sectors.
pub(super) const AVX512: Kernel = Kernel {
    name: "avx512",
    usable: || is_x86_feature_detected!("avx512f"),
    lanes: 16,
    // SAFETY: `usable` was asked.
    run: |decrypt, size, run| unsafe { avx512(decrypt, size, run) },
};

/// Vectors of 8 sectors.
pub(super) const AVX2: Kernel = Kernel {
    name: "avx2",
    usable: || is_x86_feature_detected!("avx2"),
    lanes: 8,
    // SAFETY: `usable` was asked.
    run: |decrypt, size, run| unsafe { avx2(decrypt, size, run) },
};

/// Vectors of 4 sectors.
pub(super) const SSE2: Kernel = Kernel {
    name: "sse2",
    usable: || true,
    lanes: 4,
    // SAFETY: every x86-64 has SSE2.
    run: |decrypt, size, run| unsafe { sectors::<__m128i, 4>(decrypt, size, run) },
};

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx512f")]
unsafe fn avx512(decrypt: bool, size: usize, run: &mut [u8]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { sectors::<__m512i, 16>(decrypt, size, run) }
}

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx2")]
unsafe fn avx2(decrypt: bool, size: usize, run: &mut [u8]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { sectors::<__m256i, 8>(decrypt, size, run) }
}

/// Implements [`Vector`] with these intrinsics. Loads and stores are unaligned and within the named arrays, and everything else
/// works on registers. x86 is little-endian.
macro_rules! vector {
    (
        $vector:ty, $lanes:literal, $load:ident, $store:ident, $transpose:ident, $add:ident, $sub:ident, $xor:ident,
        |$x:ident, $by:ident| $rotate:expr
    ) => {
        // SAFETY of every block: the trait's promise about instructions.
        impl Vector<$lanes> for $vector {
            #[inline(always)]
            unsafe fn read(from: &[[u8; 4]; $lanes]) -> Self {
                // SAFETY: see above.
                unsafe { $load(from.as_ptr().cast()) }
            }
            #[inline(always)]
            unsafe fn write(self, to: &mut [[u8; 4]; $lanes]) {
                // SAFETY: see above.
                unsafe { $store(to.as_mut_ptr().cast(), self) }
            }
            #[inline(always)]
            unsafe fn transpose(rows: [Self; $lanes]) -> [Self; $lanes] {
                // SAFETY: see above.
                unsafe { transpose::$transpose(rows) }
            }
            #[inline(always)]
            unsafe fn load(from: &[u32; $lanes]) -> Self {
                // SAFETY: see above.
                unsafe { $load(from.as_ptr().cast()) }
            }
            #[inline(always)]
            unsafe fn store(self, to: &mut [u32; $lanes]) {
                // SAFETY: see above.
                unsafe { $store(to.as_mut_ptr().cast(), self) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $add(self, other) }
            }
            #[inline(always)]
            unsafe fn sub(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $sub(self, other) }
            }
            #[inline(always)]
            unsafe fn xor(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $xor(self, other) }
            }
            #[inline(always)]
            unsafe fn rotate(self, by: u32) -> Self {
                let ($x, $by) = (self, by as i32);
                // SAFETY: see above.
                unsafe { $rotate }
            }
        }
    };
}

vector!(
    __m512i,
    16,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    of_16,
    _mm512_add_epi32,
    _mm512_sub_epi32,
    _mm512_xor_si512,
    |x, by| _mm512_rolv_epi32(x, _mm512_set1_epi32(by))
);
vector!(
    __m256i,
    8,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    of_8,
    _mm256_add_epi32,
    _mm256_sub_epi32,
    _mm256_xor_si256,
    |x, by| _mm256_or_si256(
        _mm256_sll_epi32(x, _mm_cvtsi32_si128(by)),
        _mm256_srl_epi32(x, _mm_cvtsi32_si128(32 - by))
    )
);
vector!(__m128i, 4, _mm_loadu_si128, _mm_storeu_si128, of_4, _mm_add_epi32, _mm_sub_epi32, _mm_xor_si128, |x, by| {
    _mm_or_si128(_mm_sll_epi32(x, _mm_cvtsi32_si128(by)), _mm_srl_epi32(x, _mm_cvtsi32_si128(32 - by)))
});
