//! Argon2's compression function G (RFC 9106, section 3.5) and the permutation P (section 3.6), once for any processor and once
//! with AVX2.
#![allow(unsafe_code)]

use std::ops::{Index, IndexMut};

/// Size of a block in bytes.
pub(super) const BLOCK: usize = 1024;

/// A block: eight rows of eight registers, each of which is two words.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block(pub [u64; BLOCK / 8]);

/// Fills the third block from the first two; adds to what is in it if the last argument says so.
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

/// The fastest that this processor can run.
pub(super) fn best() -> Compress {
    #[cfg(target_arch = "x86_64")]
    if let Some(compress) = avx2::compress() {
        return compress;
    }
    portable
}

/// For any processor.
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
    /// Where a word of it is in the block.
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

/// P: BLAKE2b's round with multiplications.
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

/// With vectors of four words. Two permutations run at a time, because the steps of one wait for each other.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Block, Compress};

    const VECTORS: usize = 32;

    /// Where the processor has AVX2.
    pub(super) fn compress() -> Option<Compress> {
        // SAFETY: the function is given out only where the processor has AVX2.
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
            // Two columns: each vector holds a register of both.
            let mut pair = [0, 1, 2, 3, 4, 5, 6, 7].map(|row| r[4 * row + column]);
            columns(&mut pair);
            (0..8).for_each(|row| r[4 * row + column] = pair[row]);
        }
        for i in 0..VECTORS {
            out[i] = _mm256_xor_si256(out[i], r[i]);
        }
    }

    fn vectors(block: &Block) -> &[__m256i; VECTORS] {
        // SAFETY: a block is as large as 32 vectors, and aligned better.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_one_is_the_portable_one() {
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
                let (one, other, mut ours) = (block(), block(), block());
                let mut theirs = ours;
                best()(&one, &other, &mut ours, add);
                portable(&one, &other, &mut theirs, add);
                assert!(ours.0 == theirs.0, "adding: {add}");
            }
        }
    }
}
