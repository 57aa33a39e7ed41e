//! Camellia (RFC 3713) with AVX-512 VBMI and GFNI, 64 blocks at a time, in constant time.
//!
//! Vector `p` holds byte `p` of each block. There an S-box takes two permutations, the function P a few additions of three
//! terms each, and rotations of words, which only the functions FL have, two GFNI instructions for each byte.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::BlockCipher;
use super::wide::{block_cipher, groups, padded};
use crate::secret::LockedBox;
use crate::tweak::Masks;
use crate::vbmi::{Bytes, GROUP, join, sliced, substitute, xor3};

/// One byte of each of 64 halves of blocks in a vector.
type Half = [__m512i; 8];

/// A subkey of 64 bits, each byte four times.
type Subkey = [u32; 8];

/// Subkeys at most, of which a key of 128 bits has fewer.
const MOST: usize = 34;
const FEWER: usize = 26;

/// Subkeys in order of use, of encryption and of decryption: two for the beginning, six for rounds, two for FL and its inverse,
/// six for rounds … and two for the end.
type Keys = [[u32; 8 * MOST]; 2];

pub(super) fn with_key(key: &[u8]) -> Box<dyn BlockCipher> {
    // SAFETY: the kernel is only made where it is usable.
    let keys = LockedBox::build(|keys| unsafe { schedule(key, keys) });
    Box::new(Camellia { keys, count: if key.len() == 16 { FEWER } else { MOST } })
}

struct Camellia {
    keys: LockedBox<Keys>,
    count: usize,
}

block_cipher!([] Camellia);

impl Camellia {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        let (subkeys, _) = self.keys[usize::from(DECRYPT)].as_chunks();
        // SAFETY: the kernel is only made where it is usable.
        unsafe { crypt::<MASKED>(&subkeys[..self.count], masks, run) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn crypt<const MASKED: bool>(keys: &[Subkey], mut masks: Masks<'_>, run: &mut [u8]) {
    let rest = groups::<GROUP, MASKED>(&mut masks, run, |masks, blocks| group::<MASKED>(keys, masks, blocks));
    padded::<GROUP, MASKED>(&mut masks, rest, |masks, blocks| group::<MASKED>(keys, masks, blocks));
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn group<const MASKED: bool>(keys: &[Subkey], masks: &[u8; GROUP], blocks: &mut [u8; GROUP]) {
    let x: Bytes = sliced::<MASKED>(masks, blocks);
    let (halves, _) = x.as_chunks();
    let (mut one, mut other): (Half, Half) = (halves[0], halves[1]);
    let ([first, second], mut keys) = keys.split_first_chunk().expect("subkeys");
    add(&mut one, first);
    add(&mut other, second);
    while let Some((of_rounds, rest)) = keys.split_first_chunk::<6>() {
        for [first, second] in of_rounds.as_chunks().0 {
            round(&one, first, &mut other);
            round(&other, second, &mut one);
        }
        let ([first, second], rest) = rest.split_first_chunk().expect("pairs of subkeys");
        if rest.is_empty() {
            add(&mut other, first);
            add(&mut one, second);
        } else {
            fl(&mut one, first);
            fl_inverse(&mut other, second);
        }
        keys = rest;
    }
    let mut x = [_mm512_setzero_si512(); 16];
    x[..8].copy_from_slice(&other);
    x[8..].copy_from_slice(&one);
    join::<MASKED>(x, masks, blocks);
}

/// The function F of `x` (section 2.4.1), added to `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn round(x: &Half, key: &Subkey, to: &mut Half) {
    let mut t = *x;
    add(&mut t, key);
    for (t, s_box) in t.iter_mut().zip([&S1, &S2, &S3, &S4, &S2, &S3, &S4, &S1]) {
        *t = substitute(s_box, *t);
    }
    let [a, b, c, d, e, f, g, h] = t;
    to[0] = xor3(xor3(a, c, d), xor3(f, g, h), to[0]);
    to[1] = xor3(xor3(a, b, d), xor3(e, g, h), to[1]);
    to[2] = xor3(xor3(a, b, c), xor3(e, f, h), to[2]);
    to[3] = xor3(xor3(b, c, d), xor3(e, f, g), to[3]);
    to[4] = xor3(xor3(a, b, f), _mm512_xor_si512(g, h), to[4]);
    to[5] = xor3(xor3(b, c, e), _mm512_xor_si512(g, h), to[5]);
    to[6] = xor3(xor3(c, d, e), _mm512_xor_si512(f, h), to[6]);
    to[7] = xor3(xor3(a, d, e), _mm512_xor_si512(f, g), to[7]);
}

/// A bit to the left in each byte, and the highest bit of each as its lowest.
const SHIFT: i64 = bits([0, 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6]);
const CARRY: i64 = bits([1 << 7, 0, 0, 0, 0, 0, 0, 0]);

/// For each bit of the result the bits of the input that it is the sum of, as GF2P8AFFINEQB wants them: the last byte first.
const fn bits(of: [u8; 8]) -> i64 {
    i64::from_be_bytes(of)
}

/// FL (section 2.4.2): of a half's words, each four bytes from the highest on, first the lower is changed, then the higher.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn fl(x: &mut Half, key: &Subkey) {
    lower(x, key);
    higher(x, key);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn fl_inverse(x: &mut Half, key: &Subkey) {
    higher(x, key);
    lower(x, key);
}

/// The higher word and a key, rotated to the left by a bit, is added to the lower.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn lower(x: &mut Half, key: &Subkey) {
    let (shift, carry) = (_mm512_set1_epi64(SHIFT), _mm512_set1_epi64(CARRY));
    let mut kept = [_mm512_setzero_si512(); 4];
    for (kept, (x, key)) in kept.iter_mut().zip(x.iter().zip(key)) {
        *kept = _mm512_and_si512(*x, splat(*key));
    }
    for i in 0..4 {
        let shifted = _mm512_gf2p8affine_epi64_epi8::<0>(kept[i], shift);
        let carried = _mm512_gf2p8affine_epi64_epi8::<0>(kept[(i + 1) % 4], carry);
        x[4 + i] = xor3(x[4 + i], shifted, carried);
    }
}

/// The lower word or a key is added to the higher.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn higher(x: &mut Half, key: &Subkey) {
    for i in 0..4 {
        x[i] = _mm512_xor_si512(x[i], _mm512_or_si512(x[4 + i], splat(key[4 + i])));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn add(x: &mut Half, key: &Subkey) {
    x.iter_mut().zip(key).for_each(|(x, key)| *x = _mm512_xor_si512(*x, splat(*key)));
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn splat(word: u32) -> __m512i {
    _mm512_set1_epi32(word.cast_signed())
}

/// Where the 128 bits of a pair of subkeys come from, and how far they are rotated to the left.
type Source = (Of, u32);

#[derive(Clone, Copy)]
enum Of {
    Left,
    Right,
    A,
    B,
    /// The higher half of A rotated by 45, and the lower half of the left part rotated by 60.
    Both,
}

/// Section 2.2, in order of use.
const OF_128: [Source; FEWER / 2] = {
    use Of::*;
    [
        (Left, 0),
        (A, 0),
        (Left, 15),
        (A, 15),
        (A, 30),
        (Left, 45),
        (Both, 0),
        (A, 60),
        (Left, 77),
        (Left, 94),
        (A, 94),
        (Left, 111),
        (A, 111),
    ]
};
const OF_MORE: [Source; MOST / 2] = {
    use Of::*;
    [
        (Left, 0),
        (B, 0),
        (Right, 15),
        (A, 15),
        (Right, 30),
        (B, 30),
        (Left, 45),
        (A, 45),
        (Left, 60),
        (Right, 60),
        (B, 60),
        (Left, 77),
        (A, 77),
        (Right, 94),
        (A, 94),
        (Left, 111),
        (B, 111),
    ]
};

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn schedule(key: &[u8], keys: &mut Keys) {
    let number = |bytes: &[u8]| bytes.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    let mut left = number(&key[..16]);
    let mut right = match key.len() {
        16 => 0,
        24 => number(&key[16..]) << 64 | u128::from(!(number(&key[16..]) as u64)),
        _ => number(&key[16..]),
    };
    let mut a = feistel(feistel(left ^ right, SIGMA[0], SIGMA[1]) ^ left, SIGMA[2], SIGMA[3]);
    let mut b = feistel(a ^ right, SIGMA[4], SIGMA[5]);
    let high = u128::from(u64::MAX) << 64;
    let pair = |(of, by): Source| match of {
        Of::Left => left.rotate_left(by),
        Of::Right => right.rotate_left(by),
        Of::A => a.rotate_left(by),
        Of::B => b.rotate_left(by),
        Of::Both => a.rotate_left(45) & high | left.rotate_left(60) & !high,
    };
    let sources: &[Source] = if key.len() == 16 { &OF_128 } else { &OF_MORE };
    let [encrypt, decrypt] = keys;
    let (encrypt, decrypt) = (encrypt.as_chunks_mut::<16>().0, decrypt.as_chunks_mut::<16>().0);
    for (i, source) in sources.iter().enumerate() {
        let mut bytes = pair(*source).to_be_bytes();
        let words = bytes.map(|byte| u32::from(byte) * 0x0101_0101);
        encrypt[i] = words;
        // The other way round, but for the pairs at both ends.
        let turned = &mut decrypt[sources.len() - 1 - i];
        *turned = words;
        if i > 0 && i < sources.len() - 1 {
            turned.rotate_left(8);
        }
        bytes.zeroize();
    }
    [&mut left, &mut right, &mut a, &mut b].into_iter().for_each(|number| number.zeroize());
}

/// Two rounds with constants for keys, on vectors all of whose blocks are the same.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn feistel(x: u128, first: u64, second: u64) -> u128 {
    let subkey = |constant: u64| constant.to_be_bytes().map(|byte| u32::from(byte) * 0x0101_0101);
    let bytes = x.to_be_bytes();
    let mut halves = [[_mm512_setzero_si512(); 8]; 2];
    for (vector, byte) in halves.as_flattened_mut().iter_mut().zip(bytes) {
        *vector = _mm512_set1_epi8(byte.cast_signed());
    }
    let [mut one, mut other] = halves;
    round(&one, &subkey(first), &mut other);
    round(&other, &subkey(second), &mut one);
    let byte = |x: &__m512i| u128::from(_mm512_cvtsi512_si32(*x).cast_unsigned() & 0xff);
    one.iter().chain(&other).fold(0, |number, x| number << 8 | byte(x))
}

/// Section 2.2.
const SIGMA: [u64; 6] = [
    0xa09e_667f_3bcc_908b,
    0xb67a_e858_4caa_73b2,
    0xc6ef_372f_e94f_82be,
    0x54ff_53a5_f1d3_6f1c,
    0x10e5_27fa_de68_2d1d,
    0xb056_88c2_b3e6_c1fd,
];

static S2: [u8; 256] = turned(0, 1);
static S3: [u8; 256] = turned(0, 7);
static S4: [u8; 256] = turned(1, 0);

/// S1 with inputs and outputs rotated to the left.
const fn turned(input: u32, output: u32) -> [u8; 256] {
    let mut s_box = [0; 256];
    let mut x = 0;
    while x < 256 {
        s_box[x] = S1[(x as u8).rotate_left(input) as usize].rotate_left(output);
        x += 1;
    }
    s_box
}

/// Section 2.4.1.
#[rustfmt::skip]
static S1: [u8; 256] = [
    0x70, 0x82, 0x2c, 0xec, 0xb3, 0x27, 0xc0, 0xe5, 0xe4, 0x85, 0x57, 0x35, 0xea, 0x0c, 0xae, 0x41,
    0x23, 0xef, 0x6b, 0x93, 0x45, 0x19, 0xa5, 0x21, 0xed, 0x0e, 0x4f, 0x4e, 0x1d, 0x65, 0x92, 0xbd,
    0x86, 0xb8, 0xaf, 0x8f, 0x7c, 0xeb, 0x1f, 0xce, 0x3e, 0x30, 0xdc, 0x5f, 0x5e, 0xc5, 0x0b, 0x1a,
    0xa6, 0xe1, 0x39, 0xca, 0xd5, 0x47, 0x5d, 0x3d, 0xd9, 0x01, 0x5a, 0xd6, 0x51, 0x56, 0x6c, 0x4d,
    0x8b, 0x0d, 0x9a, 0x66, 0xfb, 0xcc, 0xb0, 0x2d, 0x74, 0x12, 0x2b, 0x20, 0xf0, 0xb1, 0x84, 0x99,
    0xdf, 0x4c, 0xcb, 0xc2, 0x34, 0x7e, 0x76, 0x05, 0x6d, 0xb7, 0xa9, 0x31, 0xd1, 0x17, 0x04, 0xd7,
    0x14, 0x58, 0x3a, 0x61, 0xde, 0x1b, 0x11, 0x1c, 0x32, 0x0f, 0x9c, 0x16, 0x53, 0x18, 0xf2, 0x22,
    0xfe, 0x44, 0xcf, 0xb2, 0xc3, 0xb5, 0x7a, 0x91, 0x24, 0x08, 0xe8, 0xa8, 0x60, 0xfc, 0x69, 0x50,
    0xaa, 0xd0, 0xa0, 0x7d, 0xa1, 0x89, 0x62, 0x97, 0x54, 0x5b, 0x1e, 0x95, 0xe0, 0xff, 0x64, 0xd2,
    0x10, 0xc4, 0x00, 0x48, 0xa3, 0xf7, 0x75, 0xdb, 0x8a, 0x03, 0xe6, 0xda, 0x09, 0x3f, 0xdd, 0x94,
    0x87, 0x5c, 0x83, 0x02, 0xcd, 0x4a, 0x90, 0x33, 0x73, 0x67, 0xf6, 0xf3, 0x9d, 0x7f, 0xbf, 0xe2,
    0x52, 0x9b, 0xd8, 0x26, 0xc8, 0x37, 0xc6, 0x3b, 0x81, 0x96, 0x6f, 0x4b, 0x13, 0xbe, 0x63, 0x2e,
    0xe9, 0x79, 0xa7, 0x8c, 0x9f, 0x6e, 0xbc, 0x8e, 0x29, 0xf5, 0xf9, 0xb6, 0x2f, 0xfd, 0xb4, 0x59,
    0x78, 0x98, 0x06, 0x6a, 0xe7, 0x46, 0x71, 0xba, 0xd4, 0x25, 0xab, 0x42, 0x88, 0xa2, 0x8d, 0xfa,
    0x72, 0x07, 0xb9, 0x55, 0xf8, 0xee, 0xac, 0x0a, 0x36, 0x49, 0x2a, 0x68, 0x3c, 0x38, 0xf1, 0xa4,
    0x40, 0x28, 0xd3, 0x7b, 0xbb, 0xc9, 0x43, 0xc1, 0x15, 0xe3, 0xad, 0xf4, 0x77, 0xc7, 0x80, 0x9e,
];
