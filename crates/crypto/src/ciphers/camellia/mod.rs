//! Camellia (RFC 3713) in vectors of bytes, in constant time.
//!
//! Vector `p` holds byte `p` of each block. In this form the function P takes a few additions. Rotations of words, which only the
//! functions FL have, take three or four instructions for each byte. The S-boxes are inversions in a field, like that of AES: see
//! [`s_boxes`].

mod s_boxes;
mod x86;

use zeroize::Zeroize;

use super::BlockCipher;
use super::wide::block_cipher;
use crate::secret::LockedBox;
use crate::tweak::Masks;

pub(super) use self::x86::{AESNI, GFNI256, VAES256, VBMI};

/// A vector with a byte of each of as many blocks.
trait Bytes: Copy {
    /// The number of blocks, which is also the number of bytes in the vector.
    const BLOCKS: usize;

    /// Every four bytes are `word`.
    fn splat(word: u32) -> Self;
    fn xor(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// Each byte, shifted to the left by a bit.
    fn doubled(self) -> Self;
    /// The highest bit of each byte, as its lowest.
    fn highest(self) -> Self;
    /// The lowest byte.
    fn first(self) -> u8;

    /// `BLOCKS` bytes, at any alignment.
    fn load(bytes: &[u8]) -> Self;
    /// The inverse of `load`.
    fn store(self, bytes: &mut [u8]);
    /// The bytes of the lower halves of each 16 by turns, and those of the higher halves.
    fn interleave(self, other: Self) -> [Self; 2];

    /// Applies the S-boxes to a half's bytes. Each byte stays in its place, or moves as [`Bytes::moved`] moves it. The second time,
    /// with `BACK`, it moves back.
    fn substitute<const BACK: bool>(x: Half<Self>) -> Half<Self>;
    /// Moves bytes as [`Bytes::substitute`] does.
    fn moved<const BACK: bool>(self) -> Self;

    /// The function P, whose result is added to `to`. Each half's bytes are added to the other's, three times, each time in another
    /// order: this takes the fewest additions.
    #[inline(always)]
    fn mix([mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h]: Half<Self>, to: &mut Half<Self>) {
        (a, b, c, d) = (a.xor(f), b.xor(g), c.xor(h), d.xor(e));
        (e, f, g, h) = (e.xor(c), f.xor(d), g.xor(a), h.xor(b));
        (a, b, c, d) = (a.xor(h), b.xor(e), c.xor(f), d.xor(g));
        (e, f, g, h) = (e.xor(d), f.xor(a), g.xor(b), h.xor(c));
        for (to, sum) in to.iter_mut().zip([e, f, g, h, a, b, c, d]) {
            *to = to.xor(sum);
        }
    }
}

/// One byte of each half of a block in a vector.
type Half<V> = [V; 8];

/// A subkey of 64 bits, each byte four times.
type Subkey = [u32; 8];

/// The most subkeys; a key of 128 bits has fewer.
const MOST: usize = 34;
const FEWER: usize = 26;

/// Subkeys in order of use, of encryption and of decryption: two for the beginning, six for rounds, two for FL and its inverse,
/// six for rounds … and two for the end.
type Keys = [[u32; 8 * MOST]; 2];

/// The functions that enter code for this processor's vectors.
struct Entries {
    schedule: unsafe fn(&[u8], &mut Keys),
    crypt: unsafe fn(&[Subkey], Masks<'_>, &mut [u8]),
    masked: unsafe fn(&[Subkey], Masks<'_>, &mut [u8]),
}

struct Camellia {
    keys: LockedBox<Keys>,
    count: usize,
    entries: &'static Entries,
}

block_cipher!([] Camellia);

#[allow(unsafe_code, reason = "it calls functions for the instructions of this processor")]
impl Camellia {
    fn with_key(key: &[u8], entries: &'static Entries) -> Box<dyn BlockCipher> {
        // SAFETY: the kernel is only made where it is usable.
        let keys = LockedBox::build(|keys| unsafe { (entries.schedule)(key, keys) });
        Box::new(Self { keys, count: if key.len() == 16 { FEWER } else { MOST }, entries })
    }

    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        let subkeys = &self.keys[usize::from(DECRYPT)].as_chunks().0[..self.count];
        let enter = if MASKED { self.entries.masked } else { self.entries.crypt };
        // SAFETY: the kernel is only made where it is usable.
        unsafe { enter(subkeys, masks, run) }
    }
}

/// `V::BLOCKS` blocks.
#[inline(always)]
fn group<V: Bytes, const MASKED: bool>(keys: &[Subkey], masks: &[u8], blocks: &mut [u8]) {
    let mut x = [V::splat(0); 16];
    for ((x, mask), some) in x.iter_mut().zip(masks.chunks_exact(V::BLOCKS)).zip(blocks.chunks_exact(V::BLOCKS)) {
        *x = if MASKED { V::load(some).xor(V::load(mask)) } else { V::load(some) };
    }
    let x = transpose(x);
    let mut one: Half<V> = std::array::from_fn(|i| x[i]);
    let mut other: Half<V> = std::array::from_fn(|i| x[8 + i].moved::<false>());
    let ([first, second], mut keys) = keys.split_first_chunk().expect("subkeys");
    add(&mut one, first);
    add(&mut other, second);
    while let Some((of_rounds, rest)) = keys.split_first_chunk::<6>() {
        for [first, second] in of_rounds.as_chunks().0 {
            round::<V, false>(&one, first, &mut other);
            round::<V, true>(&other, second, &mut one);
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
    let x = std::array::from_fn(|i| if i < 8 { other[i].moved::<true>() } else { one[i - 8] });
    let chunks = masks.chunks_exact(V::BLOCKS).zip(blocks.chunks_exact_mut(V::BLOCKS));
    for (x, (mask, some)) in transpose(x).into_iter().zip(chunks) {
        if MASKED { x.xor(V::load(mask)) } else { x }.store(some);
    }
}

/// Converts whole blocks in each vector to one byte of each block, and back, by transposing squares of 16 bytes. Interleaving the
/// first half of the vectors with the second moves a bit of the row's number into the column's; four times moves all.
#[inline(always)]
fn transpose<V: Bytes>(mut x: [V; 16]) -> [V; 16] {
    for _ in 0..4 {
        let mut next = x;
        for i in 0..8 {
            [next[2 * i], next[2 * i + 1]] = x[i].interleave(x[i + 8]);
        }
        x = next;
    }
    x
}

/// The function F of `x` (section 2.4.1), added to `to`.
#[inline(always)]
fn round<V: Bytes, const BACK: bool>(x: &Half<V>, key: &Subkey, to: &mut Half<V>) {
    let mut t = *x;
    add(&mut t, key);
    V::mix(V::substitute::<BACK>(t), to);
}

/// FL (section 2.4.2): changes first the lower word of a half, then the higher one. A word is four bytes, the highest first.
#[inline(always)]
fn fl<V: Bytes>(x: &mut Half<V>, key: &Subkey) {
    lower(x, key);
    higher(x, key);
}

#[inline(always)]
fn fl_inverse<V: Bytes>(x: &mut Half<V>, key: &Subkey) {
    higher(x, key);
    lower(x, key);
}

/// Adds the AND of the higher word and a key, rotated to the left by a bit, to the lower word.
#[inline(always)]
fn lower<V: Bytes>(x: &mut Half<V>, key: &Subkey) {
    let kept: [V; 4] = std::array::from_fn(|i| x[i].and(V::splat(key[i])));
    for i in 0..4 {
        x[4 + i] = x[4 + i].xor(kept[i].doubled()).xor(kept[(i + 1) % 4].highest());
    }
}

/// Adds the OR of the lower word and a key to the higher word.
#[inline(always)]
fn higher<V: Bytes>(x: &mut Half<V>, key: &Subkey) {
    for i in 0..4 {
        x[i] = x[i].xor(x[4 + i].or(V::splat(key[4 + i])));
    }
}

#[inline(always)]
fn add<V: Bytes>(x: &mut Half<V>, key: &Subkey) {
    x.iter_mut().zip(key).for_each(|(x, key)| *x = x.xor(V::splat(*key)));
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

#[inline(always)]
fn schedule<V: Bytes>(key: &[u8], keys: &mut Keys) {
    let number = |bytes: &[u8]| bytes.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    let mut left = number(&key[..16]);
    let mut right = match key.len() {
        16 => 0,
        24 => number(&key[16..]) << 64 | u128::from(!(number(&key[16..]) as u64)),
        _ => number(&key[16..]),
    };
    let mut a = feistel::<V>(feistel::<V>(left ^ right, SIGMA[0], SIGMA[1]) ^ left, SIGMA[2], SIGMA[3]);
    let mut b = feistel::<V>(a ^ right, SIGMA[4], SIGMA[5]);
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
        // Decryption uses the pairs in reverse order, with both keys of a pair swapped except in the first and the
        // last.
        let turned = &mut decrypt[sources.len() - 1 - i];
        *turned = words;
        if i > 0 && i < sources.len() - 1 {
            turned.rotate_left(8);
        }
        bytes.zeroize();
    }
    [&mut left, &mut right, &mut a, &mut b].into_iter().for_each(|number| number.zeroize());
}

/// Two rounds with constants as keys, on vectors whose blocks are all the same.
#[inline(always)]
fn feistel<V: Bytes>(x: u128, first: u64, second: u64) -> u128 {
    let splat = |byte: u8| u32::from(byte) * 0x0101_0101;
    let subkey = |constant: u64| constant.to_be_bytes().map(splat);
    let bytes = x.to_be_bytes().map(|byte| V::splat(splat(byte)));
    let mut one: Half<V> = std::array::from_fn(|i| bytes[i]);
    let mut other: Half<V> = std::array::from_fn(|i| bytes[8 + i]);
    round::<V, false>(&one, &subkey(first), &mut other);
    round::<V, true>(&other, &subkey(second), &mut one);
    one.iter().chain(&other).fold(0, |number, x| number << 8 | u128::from(x.first()))
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
