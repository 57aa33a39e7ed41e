//! Twofish with AVX-512 VBMI and GFNI, 32 blocks at a time, in constant time.
//!
//! The bytes for one S-box are gathered in one vector. In this form the S-box takes two permutations, and the MDS matrix a few
//! multiplications by constants. Those are linear maps of bits, so each is one GFNI instruction. Additions and rotations work on
//! 32-bit words again.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

use super::key::{self, Key, MDS_MODULUS};
use crate::ciphers::BlockCipher;
use crate::ciphers::wide::{block_cipher, groups, padded};
use crate::gf256::matrix;
use crate::secret::LockedBox;
use crate::tweak::Masks;
use crate::vbmi::{load, store, substitute, xor3};

pub(super) fn with_key(key: &[u8]) -> Box<dyn BlockCipher> {
    Box::new(Vbmi(key::expand(key)))
}

struct Vbmi(LockedBox<Key>);

block_cipher!([] Vbmi);

/// Bytes of the 32 blocks of a group.
const GROUP: usize = 512;

/// One word of each of 32 blocks.
type Words = [__m512i; 2];

impl Vbmi {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        // SAFETY: the kernel is only made where `usable`.
        unsafe { crypt::<DECRYPT, MASKED>(&self.0, masks, run) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn crypt<const DECRYPT: bool, const MASKED: bool>(key: &Key, mut masks: Masks<'_>, run: &mut [u8]) {
    let rest = groups::<{ 2 * GROUP }, MASKED>(&mut masks, run, |masks, blocks| {
        group::<2, DECRYPT, MASKED>(key, masks.as_chunks().0, blocks.as_chunks_mut().0);
    });
    let rest = groups::<GROUP, MASKED>(&mut masks, rest, |masks, blocks| {
        group::<1, DECRYPT, MASKED>(key, masks.as_chunks().0, blocks.as_chunks_mut().0);
    });
    padded::<GROUP, MASKED>(&mut masks, rest, |masks, blocks| {
        group::<1, DECRYPT, MASKED>(key, masks.as_chunks().0, blocks.as_chunks_mut().0);
    });
}

/// `GROUPS` times 32 blocks, interleaved by rounds, so that one group's work hides the latencies of another.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn group<const GROUPS: usize, const DECRYPT: bool, const MASKED: bool>(
    key: &Key,
    masks: &[[u8; 64]],
    blocks: &mut [[u8; 64]],
) {
    assert!(blocks.len() == 8 * GROUPS && masks.len() == blocks.len());
    let k = &key.subkeys;
    let (before, after) = if DECRYPT { (4, 0) } else { (0, 4) };
    let zero = _mm512_setzero_si512();
    let mut state = [[[zero; 2]; 4]; GROUPS];
    for (n, state) in state.iter_mut().enumerate() {
        for half in 0..2 {
            let mut rows = [zero; 4];
            for (i, row) in rows.iter_mut().enumerate() {
                let at = 8 * n + 4 * half + i;
                *row = load(&blocks[at]);
                if MASKED {
                    *row = _mm512_xor_si512(*row, load(&masks[at]));
                }
            }
            for ((words, row), k) in state.iter_mut().zip(transpose(rows)).zip(&k[before..]) {
                words[half] = _mm512_xor_si512(row, splat(*k));
            }
        }
    }
    // Two rounds per iteration, so that the halves need not be swapped.
    for turn in 0..8 {
        let turn = if DECRYPT { 7 - turn } else { turn };
        let k = &k[8 + 4 * turn..12 + 4 * turn];
        let (first, second) = if DECRYPT { ([k[2], k[3]], [k[0], k[1]]) } else { ([k[0], k[1]], [k[2], k[3]]) };
        for [a, b, c, d] in &mut state {
            round::<DECRYPT>(key, first, *a, *b, c, d);
        }
        for [a, b, c, d] in &mut state {
            round::<DECRYPT>(key, second, *c, *d, a, b);
        }
    }
    for (n, [a, b, c, d]) in state.into_iter().enumerate() {
        for half in 0..2 {
            let mut words = [c[half], d[half], a[half], b[half]];
            for (i, word) in words.iter_mut().enumerate() {
                *word = _mm512_xor_si512(*word, splat(k[after + i]));
            }
            for (i, mut row) in transpose(words).into_iter().enumerate() {
                let at = 8 * n + 4 * half + i;
                if MASKED {
                    row = _mm512_xor_si512(row, load(&masks[at]));
                }
                store(row, &mut blocks[at]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn round<const DECRYPT: bool>(key: &Key, k: [u32; 2], a: Words, b: Words, c: &mut Words, d: &mut Words) {
    let (t, u) = g(key, a, b);
    for half in 0..2 {
        let sum = _mm512_add_epi32(t[half], u[half]);
        let f = _mm512_add_epi32(sum, splat(k[0]));
        let g = _mm512_add_epi32(_mm512_add_epi32(sum, u[half]), splat(k[1]));
        if DECRYPT {
            c[half] = _mm512_xor_si512(_mm512_rol_epi32::<1>(c[half]), f);
            d[half] = _mm512_ror_epi32::<1>(_mm512_xor_si512(d[half], g));
        } else {
            c[half] = _mm512_ror_epi32::<1>(_mm512_xor_si512(c[half], f));
            d[half] = _mm512_xor_si512(_mm512_rol_epi32::<1>(d[half]), g);
        }
    }
}

/// g of `a`, and g of `b` rotated left by eight bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn g(key: &Key, a: Words, b: Words) -> (Words, Words) {
    // Each quarter of 128 bits of a plane holds the same byte of four words of a[0], of a[1], of b[0] and of b[1].
    static A01: [u8; 64] = gather(0, 1);
    static A23: [u8; 64] = gather(2, 3);
    static B01: [u8; 64] = gather(3, 0);
    static B23: [u8; 64] = gather(1, 2);
    let a01 = _mm512_permutex2var_epi8(a[0], load(&A01), a[1]);
    let a23 = _mm512_permutex2var_epi8(a[0], load(&A23), a[1]);
    let b01 = _mm512_permutex2var_epi8(b[0], load(&B01), b[1]);
    let b23 = _mm512_permutex2var_epi8(b[0], load(&B23), b[1]);
    let [s0, s1, s2, s3] = &key.sboxes;
    let y0 = substitute(s0, _mm512_unpacklo_epi64(a01, b01));
    let y1 = substitute(s1, _mm512_unpackhi_epi64(a01, b01));
    let y2 = substitute(s2, _mm512_unpacklo_epi64(a23, b23));
    let y3 = substitute(s3, _mm512_unpackhi_epi64(a23, b23));

    // The rows of the MDS matrix, with equal factors taken out.
    let z0 = xor3(y0, times_ef(y1), times_5b(_mm512_xor_si512(y2, y3)));
    let z1 = xor3(y3, times_5b(y0), times_ef(_mm512_xor_si512(y1, y2)));
    let z2 = xor3(y2, times_5b(y1), times_ef(_mm512_xor_si512(y0, y3)));
    let z3 = xor3(y1, times_5b(y3), times_ef(_mm512_xor_si512(y0, y2)));

    // Interleaving bytes, then pairs, restores the words' positions.
    let (z01, z23) = (_mm512_unpacklo_epi8(z0, z1), _mm512_unpacklo_epi8(z2, z3));
    let t = [_mm512_unpacklo_epi16(z01, z23), _mm512_unpackhi_epi16(z01, z23)];
    let (z01, z23) = (_mm512_unpackhi_epi8(z0, z1), _mm512_unpackhi_epi8(z2, z3));
    let u = [_mm512_unpacklo_epi16(z01, z23), _mm512_unpackhi_epi16(z01, z23)];
    (t, u)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn times_5b(x: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(x, _mm512_set1_epi64(const { matrix(0x5B, MDS_MODULUS) as i64 }))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn times_ef(x: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(x, _mm512_set1_epi64(const { matrix(0xEF, MDS_MODULUS) as i64 }))
}

/// Within each quarter of 128 bits: byte `low` of the four words of the first vector, of the second one, then byte
/// `high` of both.
const fn gather(low: usize, high: usize) -> [u8; 64] {
    let mut indices = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (quarter, place, word) = (i / 16, i / 4 % 4, i % 4);
        let byte = if place < 2 { low } else { high };
        indices[i] = (place % 2 * 64 + quarter * 16 + word * 4 + byte) as u8;
        i += 1;
    }
    indices
}

/// From blocks to words and back, within each quarter of 128 bits: an involution.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn transpose([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let ab = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab.0, cd.0),
        _mm512_unpackhi_epi64(ab.0, cd.0),
        _mm512_unpacklo_epi64(ab.1, cd.1),
        _mm512_unpackhi_epi64(ab.1, cd.1),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn splat(word: u32) -> __m512i {
    _mm512_set1_epi32(word as i32)
}
