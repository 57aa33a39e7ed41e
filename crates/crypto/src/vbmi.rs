//! Vectors of 64 bytes with AVX-512 VBMI and GFNI: shared code of kernels that work on bytes.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

/// Whether this processor has the instructions.
pub(crate) fn usable() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("gfni")
}

/// Looks up 64 bytes in an S-box, whose 256 bytes are four vectors, in constant time: two permutations of 128 bytes each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(crate) fn substitute(s_box: &[u8; 256], x: __m512i) -> __m512i {
    let (quarters, _) = s_box.as_chunks();
    let low = _mm512_permutex2var_epi8(load(&quarters[0]), x, load(&quarters[1]));
    let high = _mm512_permutex2var_epi8(load(&quarters[2]), x, load(&quarters[3]));
    // The permutation ignores the top bit, which selects the half here.
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(crate) fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(crate) fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array is as long as the vector, and the load takes any alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(crate) fn store(vector: __m512i, bytes: &mut [u8; 64]) {
    // SAFETY: the array is as long as the vector, and the store takes any alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Bytes of 64 blocks.
pub(crate) const GROUP: usize = 1024;

/// One byte of each of 64 blocks in a vector.
pub(crate) type Bytes = [__m512i; 16];

/// Converts blocks to vectors of bytes. Adds masks if there are any.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(crate) fn sliced<const MASKED: bool>(masks: &[u8; GROUP], blocks: &[u8; GROUP]) -> Bytes {
    let mut x = [_mm512_setzero_si512(); 16];
    for ((x, mask), four) in x.iter_mut().zip(masks.as_chunks().0).zip(blocks.as_chunks().0) {
        *x = if MASKED { _mm512_xor_si512(load(four), load(mask)) } else { load(four) };
    }
    transpose(x)
}

/// The inverse of [`sliced`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(crate) fn join<const MASKED: bool>(x: Bytes, masks: &[u8; GROUP], blocks: &mut [u8; GROUP]) {
    for ((x, mask), four) in transpose(x).into_iter().zip(masks.as_chunks().0).zip(blocks.as_chunks_mut().0) {
        store(if MASKED { _mm512_xor_si512(x, load(mask)) } else { x }, four);
    }
}

/// Converts four blocks in each vector to one byte of each block, and back, by transposing a square of 16 bytes in each quarter.
/// Interleaving the first half of the vectors with the second moves a bit of the row's number into the column's; four times moves
/// all.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn transpose(mut x: Bytes) -> Bytes {
    for _ in 0..4 {
        let mut next = x;
        for i in 0..8 {
            next[2 * i] = _mm512_unpacklo_epi8(x[i], x[i + 8]);
            next[2 * i + 1] = _mm512_unpackhi_epi8(x[i], x[i + 8]);
        }
        x = next;
    }
    x
}
