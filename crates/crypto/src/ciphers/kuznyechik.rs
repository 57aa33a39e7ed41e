//! Kuznyechik (RFC 7801) with AVX-512 VBMI and GFNI, 64 blocks at a time, in constant time.
//!
//! Vector `p` holds byte `p` of each block. In this form the S-box takes two permutations. The linear transformation is 16 steps of
//! its shift register. A multiplication by a constant is one GFNI instruction; most constants occur twice, so their operands are
//! added first. The register does not shift; its beginning moves.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

use super::BlockCipher;
use super::wide::{block_cipher, groups, padded};
use crate::gf256::matrix;
use crate::hash::network::PI;
use crate::secret::LockedBox;
use crate::tweak::Masks;
use crate::vbmi::{Bytes, GROUP, join, sliced, substitute, xor3};

/// The field's polynomial, x^8 + x^7 + x^6 + x + 1.
const MODULUS: u16 = 0x1c3;

/// Round keys, each byte four times.
type Keys = [[u32; 16]; 10];

pub(super) fn with_key(key: &[u8]) -> Box<dyn BlockCipher> {
    // SAFETY: the kernel is only made where it is usable.
    Box::new(Kuznyechik(LockedBox::build(|keys| unsafe { schedule(key, keys) })))
}

struct Kuznyechik(LockedBox<Keys>);

block_cipher!([] Kuznyechik);

impl Kuznyechik {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        // SAFETY: the kernel is only made where it is usable.
        unsafe { crypt::<DECRYPT, MASKED>(&self.0, masks, run) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn crypt<const DECRYPT: bool, const MASKED: bool>(keys: &Keys, mut masks: Masks<'_>, run: &mut [u8]) {
    let rest = groups::<GROUP, MASKED>(&mut masks, run, |masks, blocks| group::<DECRYPT, MASKED>(keys, masks, blocks));
    padded::<GROUP, MASKED>(&mut masks, rest, |masks, blocks| group::<DECRYPT, MASKED>(keys, masks, blocks));
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn group<const DECRYPT: bool, const MASKED: bool>(keys: &Keys, masks: &[u8; GROUP], blocks: &mut [u8; GROUP]) {
    let mut x = sliced::<MASKED>(masks, blocks);
    if DECRYPT {
        for key in keys[1..].iter().rev() {
            add(&mut x, key);
            linear::<true>(&mut x);
            x.iter_mut().for_each(|x| *x = substitute(&PI_INVERSE, *x));
        }
        add(&mut x, &keys[0]);
    } else {
        for key in &keys[..9] {
            round(&mut x, key);
        }
        add(&mut x, &keys[9]);
    }
    join::<MASKED>(x, masks, blocks);
}

/// Makes the round keys (section 4.3). The first two are the key, and each further pair comes from the previous one by eight rounds
/// of a Feistel network. This runs in the vectors of a group whose blocks are all the same.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn schedule(key: &[u8], keys: &mut Keys) {
    let splat = |byte: u8| u32::from(byte) * 0x0101_0101;
    for (words, bytes) in keys.iter_mut().zip(key.as_chunks::<16>().0) {
        *words = bytes.map(splat);
    }
    for pair in 1..5 {
        let (mut left, mut right) = (keys[2 * pair - 2], keys[2 * pair - 1]);
        for number in 8 * pair - 7..=8 * pair {
            let mut constant = [_mm512_setzero_si512(); 16];
            constant[15] = _mm512_set1_epi8(number as i8);
            linear::<false>(&mut constant);
            let mut x = constant;
            round(&mut x, &left);
            for (word, x) in right.iter_mut().zip(x) {
                *word ^= _mm512_cvtsi512_si32(x).cast_unsigned();
            }
            std::mem::swap(&mut left, &mut right);
        }
        (keys[2 * pair], keys[2 * pair + 1]) = (left, right);
        zeroize::Zeroize::zeroize(&mut left);
        zeroize::Zeroize::zeroize(&mut right);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn round(x: &mut Bytes, key: &[u32; 16]) {
    add(x, key);
    x.iter_mut().for_each(|x| *x = substitute(&PI, *x));
    linear::<false>(x);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn add(x: &mut Bytes, key: &[u32; 16]) {
    x.iter_mut().zip(key).for_each(|(x, key)| *x = _mm512_xor_si512(*x, _mm512_set1_epi32(key.cast_signed())));
}

/// L, 16 steps R of the shift register, or their inverse. In step `n` byte `p` is in vector `p - n`, or `p + n`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn linear<const INVERSE: bool>(x: &mut Bytes) {
    macro_rules! step {
        ($($n:literal)*) => {
            $({
                const N: usize = $n;
                let at = |p: usize| if INVERSE { (p + N + 1) % 16 } else { (p + 16 - N) % 16 };
                let twice = |p: usize| _mm512_xor_si512(x[at(p)], x[at(14 - p)]);
                let (a, b, c) = (times::<148>(twice(0)), times::<32>(twice(1)), times::<133>(twice(2)));
                let (d, e, f) = (times::<16>(twice(3)), times::<194>(twice(4)), times::<192>(twice(5)));
                let g = times::<251>(x[at(7)]);
                let sum = xor3(xor3(a, b, c), xor3(d, e, f), g);
                x[at(15)] = xor3(sum, twice(6), x[at(15)]);
            })*
        };
    }
    step!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn times<const FACTOR: u8>(x: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(x, _mm512_set1_epi64(const { matrix(FACTOR, MODULUS).cast_signed() }))
}

static PI_INVERSE: [u8; 256] = {
    let mut inverse = [0; 256];
    let mut x = 0;
    while x < 256 {
        inverse[PI[x] as usize] = x as u8;
        x += 1;
    }
    inverse
};
