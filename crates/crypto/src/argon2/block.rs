//! Argon2's compression function G (RFC 9106, section 3.5) and the permutation P (section 3.6), in portable code, with AVX2 and
//! with AVX-512.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::ops::{Index, IndexMut};

/// Size of a block in bytes.
pub(super) const BLOCK: usize = 1024;

/// A block: eight rows of eight registers, each of which is two words.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block(pub [u64; BLOCK / 8]);

/// Combines the first two blocks into the third; xors into it if the last argument is true.
pub(super) type Compress = fn(&Block, &Block, &mut Block, bool);

impl Block {
    pub const ZERO: Self = Self([0; BLOCK / 8]);

    /// Reads 1024 bytes.
    pub fn load(&mut self, bytes: &[u8]) {
        for (word, bytes) in self.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
    }
}

/// The fastest version that this processor can run.
pub(super) fn best() -> Compress {
    usable().next().expect("one runs everywhere")
}

/// The versions that this processor can run, the fastest first.
fn usable() -> impl Iterator<Item = Compress> {
    #[cfg(target_arch = "x86_64")]
    let vectors = [avx512::compress(), avx2::compress()];
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = [None];
    vectors.into_iter().flatten().chain([portable as Compress])
}

/// Prefetches a block that is needed soon. Any address is allowed.
pub(super) fn prefetch(block: *const Block) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..BLOCK / 64 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, which reads nothing that can be observed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(block.cast::<i8>().wrapping_add(64 * line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

/// The version for any processor.
fn portable(one: &Block, other: &Block, out: &mut Block, add: bool) {
    let mut r = *one;
    r.0.iter_mut().zip(&other.0).for_each(|(r, o)| *r ^= o);
    match add {
        true => out.0.iter_mut().zip(&r.0).for_each(|(out, r)| *out ^= r),
        false => *out = r,
    }
    for row in 0..8 {
        permute(&mut Words { block: &mut r, word: |i, row| 16 * row + i, which: row });
    }
    for column in 0..8 {
        permute(&mut Words { block: &mut r, word: |i, column| 16 * (i / 2) + 2 * column + i % 2, which: column });
    }
    out.0.iter_mut().zip(&r.0).for_each(|(out, r)| *out ^= r);
}

/// The sixteen words of a row or a column.
struct Words<'a> {
    block: &'a mut Block,
    /// Gives a word's index in the block, from `which` row or column this is and the word's place in it.
    word: fn(usize, usize) -> usize,
    which: usize,
}

impl Index<usize> for Words<'_> {
    type Output = u64;
    fn index(&self, i: usize) -> &u64 {
        &self.block.0[(self.word)(i, self.which)]
    }
}

impl IndexMut<usize> for Words<'_> {
    fn index_mut(&mut self, i: usize) -> &mut u64 {
        &mut self.block.0[(self.word)(i, self.which)]
    }
}

/// P: BLAKE2b's round with multiplications added.
fn permute(v: &mut Words<'_>) {
    for [a, b, c, d] in [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]] {
        mix(v, a, b, c, d);
    }
    for [a, b, c, d] in [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]] {
        mix(v, a, b, c, d);
    }
}

fn mix(v: &mut Words<'_>, a: usize, b: usize, c: usize, d: usize) {
    let sum = |x: u64, y: u64| {
        let product = (x & 0xffff_ffff).wrapping_mul(y & 0xffff_ffff);
        x.wrapping_add(y).wrapping_add(product.wrapping_mul(2))
    };
    for [right, left] in [[32, 24], [16, 63]] {
        v[a] = sum(v[a], v[b]);
        v[d] = (v[d] ^ v[a]).rotate_right(right);
        v[c] = sum(v[c], v[d]);
        v[b] = (v[b] ^ v[c]).rotate_right(left);
    }
}

/// With vectors of four words. Two permutations run interleaved, because the steps of each depend on each other.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Block, Compress};

    const VECTORS: usize = 32;

    /// `None` if the processor lacks AVX2.
    pub(super) fn compress() -> Option<Compress> {
        // SAFETY: the function is only returned if the processor has AVX2.
        is_x86_feature_detected!("avx2").then_some(|one, other, out, add| unsafe { with_avx2(one, other, out, add) })
    }

    #[target_feature(enable = "avx2")]
    fn with_avx2(one: &Block, other: &Block, out: &mut Block, add: bool) {
        let (one, other, out) = (vectors(one), vectors(other), vectors_mut(out));
        let mut r = [_mm256_setzero_si256(); VECTORS];
        for i in 0..VECTORS {
            r[i] = _mm256_xor_si256(one[i], other[i]);
            out[i] = if add { _mm256_xor_si256(out[i], r[i]) } else { r[i] };
        }
        for pair in r.as_chunks_mut::<8>().0 {
            rows(pair);
        }
        for column in 0..4 {
            // Two columns: each vector holds one register of both.
            let mut pair = [0, 1, 2, 3, 4, 5, 6, 7].map(|row| r[4 * row + column]);
            columns(&mut pair);
            (0..8).for_each(|row| r[4 * row + column] = pair[row]);
        }
        for i in 0..VECTORS {
            out[i] = _mm256_xor_si256(out[i], r[i]);
        }
    }

    fn vectors(block: &Block) -> &[__m256i; VECTORS] {
        // SAFETY: a block is as large as 32 vectors and more strictly aligned.
        unsafe { &*std::ptr::from_ref(block).cast() }
    }

    fn vectors_mut(block: &mut Block) -> &mut [__m256i; VECTORS] {
        // SAFETY: as above.
        unsafe { &mut *std::ptr::from_mut(block).cast() }
    }

    /// P on two rows, of four vectors each.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn rows(v: &mut [__m256i; 8]) {
        let [a0, b0, c0, d0, a1, b1, c1, d1] = v;
        mix([a0, a1], [b0, b1], [c0, c1], [d0, d1]);
        (*b0, *b1) = (_mm256_permute4x64_epi64::<0x39>(*b0), _mm256_permute4x64_epi64::<0x39>(*b1));
        (*c0, *c1) = (_mm256_permute4x64_epi64::<0x4e>(*c0), _mm256_permute4x64_epi64::<0x4e>(*c1));
        (*d0, *d1) = (_mm256_permute4x64_epi64::<0x93>(*d0), _mm256_permute4x64_epi64::<0x93>(*d1));
        mix([a0, a1], [b0, b1], [c0, c1], [d0, d1]);
        (*b0, *b1) = (_mm256_permute4x64_epi64::<0x93>(*b0), _mm256_permute4x64_epi64::<0x93>(*b1));
        (*c0, *c1) = (_mm256_permute4x64_epi64::<0x4e>(*c0), _mm256_permute4x64_epi64::<0x4e>(*c1));
        (*d0, *d1) = (_mm256_permute4x64_epi64::<0x39>(*d0), _mm256_permute4x64_epi64::<0x39>(*d1));
    }

    /// P on two columns: vector `i` holds words 2i and 2i + 1 of both.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn columns(v: &mut [__m256i; 8]) {
        let [a0, a1, b0, b1, c0, c1, d0, d1] = v;
        mix([a0, a1], [b0, b1], [c0, c1], [d0, d1]);
        (*b0, *b1) = (_mm256_alignr_epi8::<8>(*b1, *b0), _mm256_alignr_epi8::<8>(*b0, *b1));
        (*c0, *c1) = (*c1, *c0);
        (*d0, *d1) = (_mm256_alignr_epi8::<8>(*d0, *d1), _mm256_alignr_epi8::<8>(*d1, *d0));
        mix([a0, a1], [b0, b1], [c0, c1], [d0, d1]);
        (*b0, *b1) = (_mm256_alignr_epi8::<8>(*b0, *b1), _mm256_alignr_epi8::<8>(*b1, *b0));
        (*c0, *c1) = (*c1, *c0);
        (*d0, *d1) = (_mm256_alignr_epi8::<8>(*d1, *d0), _mm256_alignr_epi8::<8>(*d0, *d1));
    }

    type Pair<'a> = [&'a mut __m256i; 2];

    #[inline]
    #[target_feature(enable = "avx2")]
    fn mix(a: Pair<'_>, b: Pair<'_>, c: Pair<'_>, d: Pair<'_>) {
        let by_24 = _mm256_setr_epi8(
            3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10, 3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10,
        );
        let by_16 = _mm256_setr_epi8(
            2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9, 2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9,
        );
        for i in 0..2 {
            *a[i] = sum(*a[i], *b[i]);
            *d[i] = _mm256_shuffle_epi32::<0xb1>(_mm256_xor_si256(*d[i], *a[i]));
        }
        for i in 0..2 {
            *c[i] = sum(*c[i], *d[i]);
            *b[i] = _mm256_shuffle_epi8(_mm256_xor_si256(*b[i], *c[i]), by_24);
        }
        for i in 0..2 {
            *a[i] = sum(*a[i], *b[i]);
            *d[i] = _mm256_shuffle_epi8(_mm256_xor_si256(*d[i], *a[i]), by_16);
        }
        for i in 0..2 {
            *c[i] = sum(*c[i], *d[i]);
            let x = _mm256_xor_si256(*b[i], *c[i]);
            *b[i] = _mm256_or_si256(_mm256_srli_epi64::<63>(x), _mm256_add_epi64(x, x));
        }
    }

    /// x + y + 2 · low(x) · low(y).
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum(x: __m256i, y: __m256i) -> __m256i {
        let product = _mm256_mul_epu32(x, y);
        _mm256_add_epi64(_mm256_add_epi64(x, y), _mm256_add_epi64(product, product))
    }
}

/// With vectors of eight words: a block is sixteen, and stays in registers from the first permutation to the last.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{Block, Compress};

    const VECTORS: usize = 16;

    /// `None` if the processor lacks AVX-512F.
    pub(super) fn compress() -> Option<Compress> {
        // SAFETY: the function is only returned if the processor has AVX-512F.
        is_x86_feature_detected!("avx512f")
            .then_some(|one, other, out, add| unsafe { with_avx512(one, other, out, add) })
    }

    #[target_feature(enable = "avx512f")]
    fn with_avx512(one: &Block, other: &Block, out: &mut Block, add: bool) {
        let (one, other, out) = (vectors(one), vectors(other), vectors_mut(out));
        let mut r: [__m512i; VECTORS] = std::array::from_fn(|i| _mm512_xor_si512(one[i], other[i]));
        // Each vector gets four words of each of two rows.
        for [p, q, r, s] in r.as_chunks_mut::<4>().0 {
            (*p, *q, *r, *s) = (
                _mm512_shuffle_i64x2::<0x44>(*p, *r),
                _mm512_shuffle_i64x2::<0xee>(*p, *r),
                _mm512_shuffle_i64x2::<0x44>(*q, *s),
                _mm512_shuffle_i64x2::<0xee>(*q, *s),
            );
        }
        // SAFETY: the caller vouches for the instructions.
        r = unsafe { permuted(r, |i, which| 4 * which + i) };
        // Then each vector gets four words of each of two columns.
        for vector in &mut r {
            *vector = _mm512_shuffle_i64x2::<0xd8>(*vector, *vector);
        }
        // SAFETY: as above.
        r = unsafe { permuted(r, |i, which| 4 * i + which) };
        for [p, q, r, s] in r.as_chunks_mut::<4>().0 {
            (*p, *q, *r, *s) = (
                _mm512_shuffle_i64x2::<0x88>(*p, *q),
                _mm512_shuffle_i64x2::<0x88>(*r, *s),
                _mm512_shuffle_i64x2::<0xdd>(*p, *q),
                _mm512_shuffle_i64x2::<0xdd>(*r, *s),
            );
        }
        for i in 0..VECTORS {
            let sum = _mm512_xor_si512(r[i], _mm512_xor_si512(one[i], other[i]));
            out[i] = if add { _mm512_xor_si512(out[i], sum) } else { sum };
        }
    }

    fn vectors(block: &Block) -> &[__m512i; VECTORS] {
        // SAFETY: a block is as large as 16 vectors, and as strictly aligned.
        unsafe { &*std::ptr::from_ref(block).cast() }
    }

    fn vectors_mut(block: &mut Block) -> &mut [__m512i; VECTORS] {
        // SAFETY: as above.
        unsafe { &mut *std::ptr::from_mut(block).cast() }
    }

    /// P on eight rows or columns, two in each vector; `at` returns the index of each of a pair's four vectors.
    ///
    /// # Safety
    /// The processor has AVX-512F, as for all that follows.
    #[inline(always)]
    unsafe fn permuted(mut v: [__m512i; VECTORS], at: impl Fn(usize, usize) -> usize) -> [__m512i; VECTORS] {
        // SAFETY: the caller's promise.
        unsafe {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| [0, 1, 2, 3].map(|which| v[at(i, which)]));
            let [a, b, c, d] = mixed([a, b, c, d]);
            let b = b.map(|x| _mm512_permutex_epi64::<0x39>(x));
            let c = c.map(|x| _mm512_permutex_epi64::<0x4e>(x));
            let d = d.map(|x| _mm512_permutex_epi64::<0x93>(x));
            let [a, b, c, d] = mixed([a, b, c, d]);
            let b = b.map(|x| _mm512_permutex_epi64::<0x93>(x));
            let c = c.map(|x| _mm512_permutex_epi64::<0x4e>(x));
            let d = d.map(|x| _mm512_permutex_epi64::<0x39>(x));
            for (i, four) in [a, b, c, d].into_iter().enumerate() {
                (0..4).for_each(|which| v[at(i, which)] = four[which]);
            }
            v
        }
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn mixed([mut a, mut b, mut c, mut d]: [[__m512i; 4]; 4]) -> [[__m512i; 4]; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..4 {
                a[i] = sum(a[i], b[i]);
                d[i] = _mm512_ror_epi64::<32>(_mm512_xor_si512(d[i], a[i]));
            }
            for i in 0..4 {
                c[i] = sum(c[i], d[i]);
                b[i] = _mm512_ror_epi64::<24>(_mm512_xor_si512(b[i], c[i]));
            }
            for i in 0..4 {
                a[i] = sum(a[i], b[i]);
                d[i] = _mm512_ror_epi64::<16>(_mm512_xor_si512(d[i], a[i]));
            }
            for i in 0..4 {
                c[i] = sum(c[i], d[i]);
                b[i] = _mm512_ror_epi64::<63>(_mm512_xor_si512(b[i], c[i]));
            }
            [a, b, c, d]
        }
    }

    /// x + y + 2 · low(x) · low(y).
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn sum(x: __m512i, y: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let product = _mm512_mul_epu32(x, y);
            _mm512_add_epi64(_mm512_add_epi64(x, y), _mm512_add_epi64(product, product))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_ones_are_the_portable_one() {
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        let mut block = || {
            Block(std::array::from_fn(|_| {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word
            }))
        };
        for add in [false, true] {
            for _ in 0..20 {
                let (one, other, out) = (block(), block(), block());
                let mut expected = out;
                portable(&one, &other, &mut expected, add);
                for compress in usable() {
                    let mut ours = out;
                    compress(&one, &other, &mut ours, add);
                    assert!(ours.0 == expected.0, "adding: {add}");
                }
            }
        }
    }
}
