//! Transposes squares of words of 32 or 64 bits in vectors: from a row of words for each of several sectors to a vector for each
//! word, and back.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

/// # Safety
/// The processor has SSE2.
#[inline(always)]
pub(crate) unsafe fn of_4([p, q, r, s]: [__m128i; 4]) -> [__m128i; 4] {
    // SAFETY: the caller vouches for the instructions, which work on registers.
    unsafe {
        let (pq, rs) = (_mm_unpacklo_epi32(p, q), _mm_unpacklo_epi32(r, s));
        let (pq2, rs2) = (_mm_unpackhi_epi32(p, q), _mm_unpackhi_epi32(r, s));
        [
            _mm_unpacklo_epi64(pq, rs),
            _mm_unpackhi_epi64(pq, rs),
            _mm_unpacklo_epi64(pq2, rs2),
            _mm_unpackhi_epi64(pq2, rs2),
        ]
    }
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(crate) unsafe fn of_8(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller vouches for the instructions, which work on registers.
    unsafe {
        let mut out = [_mm256_setzero_si256(); 8];
        // Of each four rows, words k and k + 4 side by side.
        let mut fours = [[_mm256_setzero_si256(); 4]; 2];
        for (four, rows) in fours.iter_mut().zip(rows.as_chunks::<4>().0) {
            let [p, q, r, s] = *rows;
            let (pq, rs) = (_mm256_unpacklo_epi32(p, q), _mm256_unpacklo_epi32(r, s));
            let (pq2, rs2) = (_mm256_unpackhi_epi32(p, q), _mm256_unpackhi_epi32(r, s));
            *four = [
                _mm256_unpacklo_epi64(pq, rs),
                _mm256_unpackhi_epi64(pq, rs),
                _mm256_unpacklo_epi64(pq2, rs2),
                _mm256_unpackhi_epi64(pq2, rs2),
            ];
        }
        for k in 0..4 {
            out[k] = _mm256_permute2x128_si256::<0x20>(fours[0][k], fours[1][k]);
            out[k + 4] = _mm256_permute2x128_si256::<0x31>(fours[0][k], fours[1][k]);
        }
        out
    }
}

/// # Safety
/// The processor has AVX-512F.
#[inline(always)]
pub(crate) unsafe fn of_16(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller vouches for the instructions, which work on registers.
    unsafe {
        let mut out = [_mm512_setzero_si512(); 16];
        // Of each four rows, words k, k + 4, k + 8 and k + 12 side by side.
        let mut fours = [[_mm512_setzero_si512(); 4]; 4];
        for (four, rows) in fours.iter_mut().zip(rows.as_chunks::<4>().0) {
            let [p, q, r, s] = *rows;
            let (pq, rs) = (_mm512_unpacklo_epi32(p, q), _mm512_unpacklo_epi32(r, s));
            let (pq2, rs2) = (_mm512_unpackhi_epi32(p, q), _mm512_unpackhi_epi32(r, s));
            *four = [
                _mm512_unpacklo_epi64(pq, rs),
                _mm512_unpackhi_epi64(pq, rs),
                _mm512_unpacklo_epi64(pq2, rs2),
                _mm512_unpackhi_epi64(pq2, rs2),
            ];
        }
        for k in 0..4 {
            let [p, q, r, s] = [fours[0][k], fours[1][k], fours[2][k], fours[3][k]];
            let (even, even2) = (_mm512_shuffle_i32x4::<0x88>(p, q), _mm512_shuffle_i32x4::<0x88>(r, s));
            let (odd, odd2) = (_mm512_shuffle_i32x4::<0xdd>(p, q), _mm512_shuffle_i32x4::<0xdd>(r, s));
            out[k] = _mm512_shuffle_i32x4::<0x88>(even, even2);
            out[k + 8] = _mm512_shuffle_i32x4::<0xdd>(even, even2);
            out[k + 4] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
            out[k + 12] = _mm512_shuffle_i32x4::<0xdd>(odd, odd2);
        }
        out
    }
}

/// Words of 64 bits.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(crate) unsafe fn of_4_long([p, q, r, s]: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller vouches for the instructions, which work on registers.
    unsafe {
        let (even, even2) = (_mm256_unpacklo_epi64(p, q), _mm256_unpacklo_epi64(r, s));
        let (odd, odd2) = (_mm256_unpackhi_epi64(p, q), _mm256_unpackhi_epi64(r, s));
        [
            _mm256_permute2x128_si256::<0x20>(even, even2),
            _mm256_permute2x128_si256::<0x20>(odd, odd2),
            _mm256_permute2x128_si256::<0x31>(even, even2),
            _mm256_permute2x128_si256::<0x31>(odd, odd2),
        ]
    }
}

/// Words of 64 bits.
///
/// # Safety
/// The processor has AVX-512F.
#[inline(always)]
pub(crate) unsafe fn of_8_long(rows: [__m512i; 8]) -> [__m512i; 8] {
    // SAFETY: the caller vouches for the instructions, which work on registers.
    unsafe {
        let mut out = [_mm512_setzero_si512(); 8];
        // Of each two rows, words k, k + 2, k + 4 and k + 6 side by side.
        let mut twos = [[_mm512_setzero_si512(); 2]; 4];
        for (two, [p, q]) in twos.iter_mut().zip(rows.as_chunks::<2>().0) {
            *two = [_mm512_unpacklo_epi64(*p, *q), _mm512_unpackhi_epi64(*p, *q)];
        }
        for k in 0..2 {
            let [p, q, r, s] = [twos[0][k], twos[1][k], twos[2][k], twos[3][k]];
            let (even, even2) = (_mm512_shuffle_i64x2::<0x88>(p, q), _mm512_shuffle_i64x2::<0x88>(r, s));
            let (odd, odd2) = (_mm512_shuffle_i64x2::<0xdd>(p, q), _mm512_shuffle_i64x2::<0xdd>(r, s));
            out[k] = _mm512_shuffle_i64x2::<0x88>(even, even2);
            out[k + 4] = _mm512_shuffle_i64x2::<0xdd>(even, even2);
            out[k + 2] = _mm512_shuffle_i64x2::<0x88>(odd, odd2);
            out[k + 6] = _mm512_shuffle_i64x2::<0xdd>(odd, odd2);
        }
        out
    }
}
