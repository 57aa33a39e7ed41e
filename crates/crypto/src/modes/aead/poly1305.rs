//! Poly1305 (RFC 8439, 2.5) of many sectors, with a sector in each lane of vectors. If there are few sectors, each lane has a part
//! of one, and the parts are combined: the value of a polynomial is the sum of its parts' values, each times a power.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::array::from_fn;

use super::sealer::{Beside, NUMBER, TAG};
use crate::transpose;

/// Bytes of a key. The first half is the point r at which polynomials are evaluated, and the second half is added.
pub(super) const KEY: usize = 32;

/// Bytes authenticated besides a sector: its number, and its nonce of 12 bytes.
const HASHED: usize = NUMBER + 12;

/// Bytes of a block.
const BLOCK: usize = 16;

/// The most lanes in a vector.
const LANES: usize = 8;

/// The most blocks of a lane that are read together.
const ROW: usize = 4;

/// Parts are whole multiples of this: no sector is cut into more of them than a vector has lanes.
const GRAIN: usize = ROW * BLOCK;

/// Bits of r that may be set (section 2.5).
const CLAMP: u128 = 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;

pub(super) struct Kernel {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    pub name: &'static str,
    pub usable: fn() -> bool,
    lanes: usize,
    /// The values of the polynomials of one vector of parts. May only be called on a processor that can run the kernel, with a part
    /// in each lane.
    one: unsafe fn(&[Lanes]) -> [[Value; LANES]; 1],
    /// The same for two vectors.
    two: unsafe fn(&[Lanes]) -> [[Value; LANES]; 2],
}

/// The fastest first. Some processors can run none of them.
pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "avx512ifma",
        usable: || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512ifma"),
        lanes: 8,
        one: ifma::<1>,
        two: ifma::<2>,
    },
    Kernel { name: "avx2", usable: || is_x86_feature_detected!("avx2"), lanes: 4, one: avx2::<1>, two: avx2::<2> },
];

/// The work of each lane of a vector: a sector, or a part of one.
#[derive(Clone, Copy)]
struct Lanes {
    r: [[u64; 2]; LANES],
    /// The data authenticated besides the sector, padded.
    heads: [[u8; GRAIN]; LANES],
    /// All ones if the part is the first one of its sector, which follows the head.
    first: [u64; LANES],
    parts: [*const u8; LANES],
    /// Bytes of a part and of a sector. If they are the same, the block of lengths follows.
    part: usize,
    size: usize,
}

impl Kernel {
    /// The tags of sectors of `size` bytes, each with its own key.
    ///
    /// # Panics
    /// Unless `run` is a sector for each key, tag and entry of `beside`, and sectors are whole multiples of 512 bytes.
    pub fn tags(&self, keys: &[[u8; KEY]], beside: &[Beside], size: usize, run: &[u8], tags: &mut [[u8; TAG]]) {
        let count = tags.len();
        assert!((self.usable)() && size > 0 && size.is_multiple_of(512), "sectors of {size} bytes");
        assert!(keys.len() == count && beside.len() == count && run.len() == count * size, "a key for each sector");
        let mut at = 0;
        while at < count {
            let end = count.min(at + 2 * self.lanes);
            self.together(&keys[at..end], &beside[at..end], &run[at * size..end * size], &mut tags[at..end]);
            at = end;
        }
    }

    /// Tags of no more sectors than two vectors have lanes.
    fn together(&self, keys: &[[u8; KEY]], beside: &[Beside], run: &[u8], tags: &mut [[u8; TAG]]) {
        let (count, size) = (tags.len(), run.len() / tags.len());
        let parts = match self.lanes / count.next_power_of_two() {
            parts @ 2.. if size.is_power_of_two() => parts,
            _ => 1,
        };
        let part = size / parts;
        // Unused lanes repeat the first part.
        let mut lanes = [Lanes {
            r: [[0; 2]; LANES],
            heads: [[0; GRAIN]; LANES],
            first: [0; LANES],
            parts: [run.as_ptr(); LANES],
            part,
            size,
        }; 2];
        for (i, bytes) in run.chunks_exact(part).enumerate() {
            let (to, lane, sector) = (&mut lanes[i / self.lanes], i % self.lanes, i / parts);
            let r = r_of(&keys[sector]);
            to.r[lane] = [r as u64, (r >> 64) as u64];
            to.heads[lane][..HASHED].copy_from_slice(&beside[sector][..HASHED]);
            to.first[lane] = if i % parts == 0 { u64::MAX } else { 0 };
            to.parts[lane] = bytes.as_ptr();
        }
        let mut values = [[Value::default(); LANES]; 2];
        // SAFETY: `usable` was asked, and every lane has a part.
        unsafe {
            match count * parts > self.lanes {
                true => values = (self.two)(&lanes),
                false => [values[0]] = (self.one)(&lanes),
            }
        }
        let value = |i: usize| values[i / self.lanes][i % self.lanes];
        for (sector, (tag, key)) in tags.iter_mut().zip(keys).enumerate() {
            let whole = match parts {
                1 => value(sector),
                _ => put_together(r_of(key), (0..parts).map(|i| value(sector * parts + i)), part, size),
            };
            *tag = whole.tag(key);
        }
    }
}

fn r_of(key: &[u8; KEY]) -> u128 {
    u128::from_le_bytes(*key.first_chunk().expect("16 bytes")) & CLAMP
}

/// Combines the values of a sector's parts. The sector has `size` bytes, and a part has a power of two of blocks.
fn put_together(r: u128, parts: impl Iterator<Item = Value>, part: usize, size: usize) -> Value {
    let r = Value::of(r, 0);
    let power = (0..(part / BLOCK).ilog2()).fold(r, |power, _| power.times(power));
    let sector = parts.fold(Value::default(), |sum, part| sum.times(power).plus(part));
    sector.plus(Value::of(lengths(size), 1)).times(r)
}

/// The last block: the lengths of both kinds of data in bytes.
fn lengths(size: usize) -> u128 {
    (size as u128) << 64 | HASHED as u128
}

/// A number modulo 2^130 - 5, as limbs of 44 bits, which may have a few more bits.
#[derive(Clone, Copy, Default)]
struct Value([u64; 3]);

const LIMB: u32 = 44;
const LOW: u64 = (1 << LIMB) - 1;
/// Bits of the highest limb.
const TOP: u32 = 130 - 2 * LIMB;

impl Value {
    /// Makes a value from the low 128 bits and the bits above them.
    fn of(low: u128, above: u64) -> Self {
        let limb = |i: u32| (low >> (LIMB * i)) as u64 & LOW;
        Self([limb(0), limb(1), limb(2) | above << (128 - 2 * LIMB)])
    }

    fn plus(self, other: Self) -> Self {
        Self(from_fn(|i| self.0[i] + other.0[i]))
    }

    fn times(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0.map(u128::from), other.0.map(u128::from));
        // 2^132 is 20.
        let mut low = a * d + 20 * (b * f + c * e);
        let mut middle = a * e + b * d + 20 * (c * f);
        let mut high = a * f + b * e + c * d;
        middle += low >> LIMB;
        high += middle >> LIMB;
        low = (low & u128::from(LOW)) + 5 * (high >> TOP);
        let middle = (middle & u128::from(LOW)) + (low >> LIMB);
        Self([low as u64 & LOW, middle as u64, high as u64 & ((1 << TOP) - 1)])
    }

    /// Carries, and reduces modulo the prime, though not fully.
    fn carried(self) -> Self {
        let [low, middle, high] = self.0;
        let middle = middle + (low >> LIMB);
        let high = high + (middle >> LIMB);
        Self([(low & LOW) + 5 * (high >> TOP), middle & LOW, high & ((1 << TOP) - 1)])
    }

    /// Fully reduced, with the second half of the key added.
    fn tag(self, key: &[u8; KEY]) -> [u8; TAG] {
        // The third pass only moves a carry that the second may have added to the lowest limb.
        let [low, middle, high] = self.carried().carried().carried().0;
        let number = |low: u64, middle: u64, high: u64| {
            u128::from(low).wrapping_add(u128::from(middle) << LIMB).wrapping_add(u128::from(high) << (2 * LIMB))
        };
        // Whether adding 5 reaches 2^130: then the number is not less than the prime.
        let carry = (middle + ((low + 5) >> LIMB)) >> LIMB;
        let reached = u128::from((high + carry) >> TOP).wrapping_neg();
        let value = number(low, middle, high).wrapping_add(5 & reached);
        let added = u128::from_le_bytes(*key.last_chunk().expect("16 bytes"));
        value.wrapping_add(added).to_le_bytes()
    }
}

/// # Safety
/// The processor has the features named here, and each of the lanes of `N` vectors a part.
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn ifma<const N: usize>(lanes: &[Lanes]) -> [[Value; LANES]; N] {
    // SAFETY: the caller's promise.
    unsafe { evaluate::<Eight, N>(lanes) }
}

/// # Safety
/// The processor has the feature named here, and each of the lanes of `N` vectors a part.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const N: usize>(lanes: &[Lanes]) -> [[Value; LANES]; N] {
    // SAFETY: the caller's promise.
    unsafe { evaluate::<Four, N>(lanes) }
}

/// # Safety
/// Each of the lanes of `N` vectors has a part; the processor has the vector's instructions.
#[inline(always)]
unsafe fn evaluate<F: Field, const N: usize>(lanes: &[Lanes]) -> [[Value; LANES]; N] {
    let Lanes { part, size, .. } = lanes[0];
    // SAFETY: the caller's promise.
    unsafe {
        let keys: [F::Key; N] = from_fn(|i| F::key(&lanes[i].r));
        let mut sums: [F; N] = from_fn(|i| {
            let heads = lanes[i].heads.each_ref().map(|head| head.as_ptr());
            let [one, two, ..] = F::read(&heads, 0);
            F::zero().absorb(&keys[i], one).absorb(&keys[i], two).kept(&lanes[i].first)
        });
        for at in (0..part).step_by(F::ROW * BLOCK) {
            let rows: [_; N] = from_fn(|i| F::read(&lanes[i].parts, at));
            (0..F::ROW).for_each(|block| sums = from_fn(|i| sums[i].absorb(&keys[i], rows[i][block])));
        }
        if part == size {
            let lengths = [lengths(size) as u64, (lengths(size) >> 64) as u64].map(|word| F::splat(word));
            sums = from_fn(|i| sums[i].absorb(&keys[i], lengths));
        }
        sums.map(|sum| sum.values())
    }
}

/// A number modulo 2^130 - 5 in each lane. Each method may only be called if the processor has the instructions that the
/// implementation names, and that a kernel is entered with.
trait Field: Copy {
    /// Blocks of a lane that are read together, two or [`ROW`].
    const ROW: usize;
    /// A word of each lane.
    type Word: Copy;
    /// The point of each lane.
    type Key: Copy;
    unsafe fn zero() -> Self;
    unsafe fn key(r: &[[u64; 2]; LANES]) -> Self::Key;
    unsafe fn splat(word: u64) -> Self::Word;
    /// The two words of each block of a row, which begins `at` bytes after each of the addresses.
    unsafe fn read(from: &[*const u8; LANES], at: usize) -> [[Self::Word; 2]; ROW];
    /// Adds a block, with a one above it, and multiplies.
    unsafe fn absorb(self, key: &Self::Key, block: [Self::Word; 2]) -> Self;
    /// The number in each lane, or zero if the lane is zero in `lanes`.
    unsafe fn kept(self, lanes: &[u64; LANES]) -> Self;
    unsafe fn values(self) -> [Value; LANES];
}

// SAFETY of every block below: the trait's promise about instructions, and for memory the caller's about places. Loads and stores
// are unaligned.

/// Eight numbers, as limbs of 44 bits.
#[derive(Clone, Copy)]
struct Eight([__m512i; 3]);

/// The limbs of r, and those above the lowest times 20.
#[derive(Clone, Copy)]
struct EightKey {
    r: [__m512i; 3],
    wrapped: [__m512i; 3],
}

impl Field for Eight {
    const ROW: usize = 4;
    type Word = __m512i;
    type Key = EightKey;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        Self([unsafe { _mm512_setzero_si512() }; 3])
    }
    #[inline(always)]
    unsafe fn key(r: &[[u64; 2]; LANES]) -> EightKey {
        let limbs = r.map(|[low, high]| Value::of(u128::from(high) << 64 | u128::from(low), 0).0);
        let of = |i: usize, times: u64| -> __m512i {
            let words: [u64; LANES] = from_fn(|lane| times * limbs[lane][i]);
            // SAFETY: see above.
            unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
        };
        EightKey { r: from_fn(|i| of(i, 1)), wrapped: from_fn(|i| of(i, 20)) }
    }
    #[inline(always)]
    unsafe fn splat(word: u64) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi64(word as i64) }
    }
    #[inline(always)]
    unsafe fn read(from: &[*const u8; LANES], at: usize) -> [[__m512i; 2]; ROW] {
        // SAFETY: see above.
        unsafe {
            let lines = from.map(|from| _mm512_loadu_si512(from.add(at).cast()));
            let [a, b, c, d, e, f, g, h] = transpose::of_8_long(lines);
            [[a, b], [c, d], [e, f], [g, h]]
        }
    }
    #[inline(always)]
    unsafe fn absorb(self, key: &EightKey, [low, high]: [__m512i; 2]) -> Self {
        let EightKey { r, wrapped } = key;
        // SAFETY: see above.
        unsafe {
            let (limb, top) = (_mm512_set1_epi64(LOW as i64), _mm512_set1_epi64((1 << TOP) - 1));
            let add = |a, b| _mm512_add_epi64(a, b);
            let middle = _mm512_or_si512(_mm512_srli_epi64::<44>(low), _mm512_slli_epi64::<20>(high));
            let above = _mm512_or_si512(_mm512_srli_epi64::<24>(high), _mm512_set1_epi64(1 << 40));
            let a = add(self.0[0], _mm512_and_si512(low, limb));
            let b = add(self.0[1], _mm512_and_si512(middle, limb));
            let c = add(self.0[2], above);
            // Bits below 2^52 of the products, and those above.
            let zero = _mm512_setzero_si512();
            let factors = [[r[0], r[1], r[2]], [wrapped[2], r[0], r[1]], [wrapped[1], wrapped[2], r[0]]];
            let mut lows = [zero; 3];
            let mut highs = [zero; 3];
            for (number, factors) in [b, c, a].into_iter().zip([factors[1], factors[2], factors[0]]) {
                for i in 0..3 {
                    lows[i] = _mm512_madd52lo_epu64(lows[i], number, factors[i]);
                    highs[i] = _mm512_madd52hi_epu64(highs[i], number, factors[i]);
                }
            }
            // 2^52 is 8 bits above the next limb, or 10 above 2^130, which is 5.
            let one = add(lows[1], _mm512_slli_epi64::<8>(highs[0]));
            let two = add(lows[2], _mm512_slli_epi64::<8>(highs[1]));
            let one = add(one, _mm512_srli_epi64::<44>(lows[0]));
            let two = add(two, _mm512_srli_epi64::<44>(one));
            let over = add(_mm512_slli_epi64::<10>(highs[2]), _mm512_srli_epi64::<42>(two));
            let five = add(over, _mm512_slli_epi64::<2>(over));
            let zero = add(_mm512_and_si512(lows[0], limb), five);
            let one = add(_mm512_and_si512(one, limb), _mm512_srli_epi64::<44>(zero));
            Self([_mm512_and_si512(zero, limb), one, _mm512_and_si512(two, top)])
        }
    }
    #[inline(always)]
    unsafe fn kept(self, lanes: &[u64; LANES]) -> Self {
        // SAFETY: see above.
        unsafe {
            let lanes = _mm512_loadu_si512(lanes.as_ptr().cast());
            Self(self.0.map(|limb| _mm512_and_si512(limb, lanes)))
        }
    }
    #[inline(always)]
    unsafe fn values(self) -> [Value; LANES] {
        let mut limbs = [[0u64; LANES]; 3];
        for (words, limb) in limbs.iter_mut().zip(self.0) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), limb) };
        }
        from_fn(|lane| Value(limbs.map(|limb| limb[lane])))
    }
}

/// Four numbers, as limbs of 26 bits.
#[derive(Clone, Copy)]
struct Four([__m256i; 5]);

/// The limbs of r, and the same times 5.
#[derive(Clone, Copy)]
struct FourKey {
    r: [__m256i; 5],
    wrapped: [__m256i; 5],
}

/// Bits of such a limb.
const NARROW: u64 = (1 << 26) - 1;

impl Field for Four {
    const ROW: usize = 2;
    type Word = __m256i;
    type Key = FourKey;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        Self([unsafe { _mm256_setzero_si256() }; 5])
    }
    #[inline(always)]
    unsafe fn key(r: &[[u64; 2]; LANES]) -> FourKey {
        let of = |i: usize, times: u64| -> __m256i {
            let words: [u64; 4] = from_fn(|lane| {
                let r = u128::from(r[lane][1]) << 64 | u128::from(r[lane][0]);
                times * ((r >> (26 * i)) as u64 & NARROW)
            });
            // SAFETY: see above.
            unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
        };
        FourKey { r: from_fn(|i| of(i, 1)), wrapped: from_fn(|i| of(i, 5)) }
    }
    #[inline(always)]
    unsafe fn splat(word: u64) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi64x(word as i64) }
    }
    #[inline(always)]
    unsafe fn read(from: &[*const u8; LANES], at: usize) -> [[__m256i; 2]; ROW] {
        // SAFETY: see above.
        unsafe {
            let lines = from_fn(|lane| _mm256_loadu_si256(from[lane].add(at).cast()));
            let [a, b, c, d] = transpose::of_4_long(lines);
            [[a, b], [c, d], [a, b], [c, d]]
        }
    }
    #[inline(always)]
    unsafe fn absorb(self, key: &FourKey, [low, high]: [__m256i; 2]) -> Self {
        // SAFETY: see above.
        unsafe {
            let limb = _mm256_set1_epi64x(NARROW as i64);
            let (add, and) = (|a, b| _mm256_add_epi64(a, b), |a, b| _mm256_and_si256(a, b));
            let across = _mm256_or_si256(_mm256_srli_epi64::<52>(low), _mm256_slli_epi64::<12>(high));
            let block = [
                and(low, limb),
                and(_mm256_srli_epi64::<26>(low), limb),
                and(across, limb),
                and(_mm256_srli_epi64::<14>(high), limb),
                _mm256_or_si256(_mm256_srli_epi64::<40>(high), _mm256_set1_epi64x(1 << 24)),
            ];
            let number: [__m256i; 5] = from_fn(|i| add(self.0[i], block[i]));
            let mut sums: [__m256i; 5] = from_fn(|i| _mm256_mul_epu32(number[0], key.r[i]));
            for (j, number) in number.into_iter().enumerate().skip(1) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    // 2^130 is 5.
                    let factor = if i >= j { key.r[i - j] } else { key.wrapped[5 + i - j] };
                    *sum = add(*sum, _mm256_mul_epu32(number, factor));
                }
            }
            // Two chains of carries, so that neither waits for the other.
            let carry = |sums: &mut [__m256i; 5], from: usize| {
                let over = _mm256_srli_epi64::<26>(sums[from]);
                sums[from] = and(sums[from], limb);
                match from {
                    4 => sums[0] = add(sums[0], add(over, _mm256_slli_epi64::<2>(over))),
                    _ => sums[from + 1] = add(sums[from + 1], over),
                }
            };
            carry(&mut sums, 0);
            carry(&mut sums, 3);
            carry(&mut sums, 1);
            carry(&mut sums, 4);
            carry(&mut sums, 2);
            carry(&mut sums, 0);
            carry(&mut sums, 3);
            Self(sums)
        }
    }
    #[inline(always)]
    unsafe fn kept(self, lanes: &[u64; LANES]) -> Self {
        // SAFETY: see above.
        unsafe {
            let lanes = _mm256_loadu_si256(lanes.as_ptr().cast());
            Self(self.0.map(|limb| _mm256_and_si256(limb, lanes)))
        }
    }
    #[inline(always)]
    unsafe fn values(self) -> [Value; LANES] {
        let mut limbs = [[0u64; LANES]; 5];
        for (words, limb) in limbs.iter_mut().zip(self.0) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), limb) };
        }
        from_fn(|lane| {
            let [low, high] = [0, 2].map(|i| limbs[i][lane] + (limbs[i + 1][lane] << 26));
            let low = u128::from(low) + (u128::from(high) << 52);
            let limb = |i: u32| (low >> (LIMB * i)) as u64;
            Value([limb(0) & LOW, limb(1) & LOW, limb(2) + (limbs[4][lane] << (104 - 2 * LIMB))])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::sealer::BESIDE;
    use super::*;
    use ::poly1305::universal_hash::UniversalHash;
    use claviger_testkit::random::Random;
    use digest::KeyInit;

    /// Checks every number of sectors, with random keys and sectors, and with ones that have as many bits set as possible.
    #[test]
    fn every_kernel_gives_the_tags_of_the_crate() {
        let mut random = Random::new(1);
        for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for size in [512, 1024, 1536, 4096] {
                for count in 0..=4 * LANES + 3 {
                    let all = [count % 5 == 0, count % 3 == 0];
                    let mut bytes = |set: bool, len: usize| if set { vec![0xff; len] } else { random.bytes(len) };
                    let keys: Vec<[u8; KEY]> =
                        (0..count).map(|_| bytes(all[0], KEY).try_into().expect("as many")).collect();
                    let beside: Vec<Beside> =
                        (0..count).map(|_| bytes(all[1], BESIDE).try_into().expect("as many")).collect();
                    let run = bytes(all[1], count * size);
                    let mut tags = vec![[0; TAG]; count];
                    kernel.tags(&keys, &beside, size, &run, &mut tags);
                    let sectors = keys.iter().zip(&beside).zip(run.chunks(size));
                    let right: Vec<[u8; TAG]> = sectors.map(|((k, b), s)| of_the_crate(k, b, s)).collect();
                    assert_eq!(tags, right, "{}, {count} sectors of {size}", kernel.name);
                }
            }
        }
    }

    /// Values around the prime are reduced.
    #[test]
    fn a_tag_is_below_the_prime() {
        for (limbs, tag) in [
            ([LOW - 5, LOW, (1 << TOP) - 1], u128::MAX - 5),
            ([LOW - 4, LOW, (1 << TOP) - 1], 0),
            ([LOW, LOW, (1 << TOP) - 1], 4),
            ([LOW + 2, LOW, (1 << TOP) - 1], 6),
            ([5, 0, 1 << TOP], 10),
        ] {
            assert_eq!(Value(limbs).tag(&[0; KEY]), tag.to_le_bytes(), "{limbs:x?}");
        }
    }

    fn of_the_crate(key: &[u8; KEY], beside: &Beside, sector: &[u8]) -> [u8; TAG] {
        let mut poly = ::poly1305::Poly1305::new(key.into());
        poly.update_padded(&beside[..HASHED]);
        poly.update_padded(sector);
        poly.update(&[lengths(sector.len()).to_le_bytes().into()]);
        poly.finalize().into()
    }
}
