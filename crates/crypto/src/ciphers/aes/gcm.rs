//! AES-GCM (NIST SP 800-38D) of many sectors, with the processor's AES instructions and carry-less products, on vectors of one, two
//! or four blocks.
//!
//! GHASH is computed between the rounds of AES, so that neither waits for its own results. 32 blocks are multiplied by as many
//! powers of the hash key, and their sum is reduced once. The parts before and after a sector's blocks (its number, IV, lengths and
//! the mask of its tag) are made for all sectors at once, in the lanes of the same vectors.
//!
//! Blocks have their bytes reversed. The carry-less product of two such blocks is the product in GCM's field with its bits
//! reversed, except for one shift, which the powers already contain (Gueron, Kounavis, "Intel Carry-Less Multiplication Instruction
//! and its Usage for Computing the GCM Mode", 2010).
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::array::from_fn;

use super::fresh::FRESH;
use super::schedule::Schedule;
use super::x86::Vector;
use crate::ciphers::Acceleration;
use crate::modes::aead::{Beside, NUMBER, Sectors};
use crate::secret::{LockedBox, Plain};

/// Bytes of a block and of a tag.
const BLOCK: usize = 16;

/// Bytes of a nonce.
pub(crate) const NONCE: usize = 12;

/// Bytes authenticated besides a sector: its number and its nonce.
const HASHED: usize = NUMBER + NONCE;

/// Blocks that are reduced together.
const TOGETHER: usize = 32;

/// Sectors are whole multiples of this.
const GRAIN: usize = TOGETHER * BLOCK;

/// The longest sector in bytes.
const LONGEST: usize = 4096;

/// Sectors whose beginnings and ends are made together.
const MOST: usize = 32;

/// Vectors in flight.
const IN_FLIGHT: usize = 8;

/// AES-GCM with its key in place.
pub(crate) struct AesGcm {
    schedule: Schedule,
    powers: LockedBox<Powers>,
    kernel: &'static Kernel,
}

/// Powers of the hash key H, each divided by x.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Powers {
    /// From H^32 down to H.
    inner: [[u8; BLOCK]; TOGETHER],
    /// From H^33 down to H^2: for a sector's last blocks, which the block of lengths follows.
    last: [[u8; BLOCK]; TOGETHER],
}

// SAFETY: two arrays of bytes, and 1024 bytes need no padding.
unsafe impl Plain for Powers {}

struct Kernel {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    name: &'static str,
    usable: fn() -> bool,
    encrypt: Run,
    decrypt: Run,
}

/// May only be called on a processor that can run the kernel, with at most [`MOST`] sectors that fit.
type Run = unsafe fn(Work<'_>);

/// The fastest first.
const KERNELS: &[Kernel] = &[
    Kernel {
        name: "vaes512",
        usable: || {
            is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("vaes")
                && is_x86_feature_detected!("vpclmulqdq")
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
        },
        encrypt: vaes512::<false>,
        decrypt: vaes512::<true>,
    },
    Kernel {
        name: "vaes256",
        usable: || {
            is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("vaes")
                && is_x86_feature_detected!("vpclmulqdq")
                && is_x86_feature_detected!("avx2")
        },
        encrypt: vaes256::<false>,
        decrypt: vaes256::<true>,
    },
    Kernel {
        name: "aesni",
        usable: || {
            is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("pclmulqdq")
                && is_x86_feature_detected!("sse4.1")
        },
        encrypt: aesni::<false>,
        decrypt: aesni::<true>,
    },
];

impl AesGcm {
    /// Makes one from a key of 16, 24 or 32 bytes. `None` if this processor lacks the instructions or must not use them, or if
    /// round keys must stay out of memory.
    pub fn new(key: &[u8], with: Acceleration) -> Option<Self> {
        if with == Acceleration::Off || (FRESH.usable)() {
            return None;
        }
        KERNELS.iter().find(|kernel| (kernel.usable)()).map(|kernel| Self::with_kernel(kernel, key))
    }

    fn with_kernel(kernel: &'static Kernel, key: &[u8]) -> Self {
        assert!((kernel.usable)(), "this processor cannot run it");
        let schedule = Schedule::new(key);
        // SAFETY: each kernel takes what this takes.
        let powers = LockedBox::build(|powers| unsafe { powers_of_hash_key(round_keys(&schedule), powers) });
        Self { schedule, powers, kernel }
    }

    /// Encrypts or decrypts sectors in place, and writes their tags.
    ///
    /// # Panics
    /// Unless `run` is a sector for each tag and each entry of `beside`, and sectors are whole multiples of [`GRAIN`], and no longer
    /// than [`LONGEST`].
    pub fn process<const DECRYPT: bool>(&self, sectors: Sectors<'_>, tags: &mut [[u8; BLOCK]]) {
        let Sectors { beside, size, run } = sectors;
        let count = tags.len();
        assert!(beside.len() == count && Some(run.len()) == count.checked_mul(size), "a tag for each sector");
        assert!(size > 0 && size.is_multiple_of(GRAIN) && size <= LONGEST, "no sectors have {size} bytes");
        let kernel = if DECRYPT { self.kernel.decrypt } else { self.kernel.encrypt };
        let batches = beside.chunks(MOST).zip(run.chunks_mut(MOST * size)).zip(tags.chunks_mut(MOST));
        for ((beside, run), tags) in batches {
            let work = Work { keys: round_keys(&self.schedule), powers: &self.powers, beside, size, run, tags };
            // SAFETY: `usable` was asked, and the sectors fit.
            unsafe { kernel(work) };
        }
    }
}

fn round_keys(schedule: &Schedule) -> &[[u8; BLOCK]] {
    &schedule.keys.encrypt[..=schedule.rounds]
}

/// Sectors, and all keys and buffers to process them.
struct Work<'a> {
    /// Round keys in order of use.
    keys: &'a [[u8; BLOCK]],
    powers: &'a Powers,
    beside: &'a [Beside],
    size: usize,
    run: &'a mut [u8],
    tags: &'a mut [[u8; BLOCK]],
}

/// # Safety
/// The processor has the features named here, and the sectors fit.
#[target_feature(enable = "aes,vaes,vpclmulqdq,avx512f,avx512bw")]
unsafe fn vaes512<const DECRYPT: bool>(work: Work<'_>) {
    // SAFETY: the caller's promise.
    unsafe { process::<__m512i, DECRYPT>(work) }
}

/// # Safety
/// The processor has the features named here, and the sectors fit.
#[target_feature(enable = "aes,vaes,vpclmulqdq,avx2")]
unsafe fn vaes256<const DECRYPT: bool>(work: Work<'_>) {
    // SAFETY: the caller's promise.
    unsafe { process::<__m256i, DECRYPT>(work) }
}

/// # Safety
/// The processor has the features named here, and the sectors fit.
#[target_feature(enable = "aes,pclmulqdq,sse4.1")]
unsafe fn aesni<const DECRYPT: bool>(work: Work<'_>) {
    // SAFETY: the caller's promise.
    unsafe { process::<__m128i, DECRYPT>(work) }
}

/// # Safety
/// The processor has the features named here.
#[target_feature(enable = "aes,pclmulqdq,sse4.1")]
unsafe fn powers_of_hash_key(keys: &[[u8; BLOCK]], powers: &mut Powers) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut block = [_mm_setzero_si128(); 1];
        rounds(keys, &mut block, |_| ());
        let mut h = [0; BLOCK];
        block[0].reversed().store(h.as_mut_ptr());
        // Division by x: the bit that falls out is x^-1, which is x^127 + x^6 + x + 1.
        let reversed = u128::from_le_bytes(h);
        let divided = reversed << 1 ^ ((0xc2 << 120 | 1) & (reversed >> 127).wrapping_neg());
        powers.inner[TOGETHER - 1] = divided.to_le_bytes();
        let h = __m128i::load(powers.inner[TOGETHER - 1].as_ptr());
        let mut power = h;
        for i in (0..TOGETHER).rev() {
            power.store(powers.inner[i].as_mut_ptr());
            let mut product = Sum::zero();
            product.add(power, h);
            power = product.reduced();
            power.store(powers.last[i].as_mut_ptr());
        }
    }
}

/// The counter blocks of a sector, without a nonce, added to the one that masks its tag. Counting begins at 2.
static COUNTERS: [[u8; BLOCK]; LONGEST / BLOCK] = {
    let mut counters = [[0; BLOCK]; LONGEST / BLOCK];
    let mut i = 0;
    while i < counters.len() {
        let number = (i as u16 + 2) ^ TAG_COUNTER as u16;
        [counters[i][BLOCK - 2], counters[i][BLOCK - 1]] = number.to_be_bytes();
        i += 1;
    }
    counters
};

/// The counter of the block that masks a tag.
const TAG_COUNTER: u8 = 1;

/// Processes the sectors one after the other, 8 vectors at a time. Meanwhile encryption hashes the previous 8 vectors, and
/// decryption the current ones.
///
/// # Safety
/// The sectors fit and are no more than [`MOST`]; the processor has the vector's instructions.
#[inline(always)]
unsafe fn process<V: Product, const DECRYPT: bool>(work: Work<'_>) {
    let Work { keys, powers, beside, size, run, tags } = work;
    let group = IN_FLIGHT * V::BLOCKS;
    // SAFETY: the caller's promise.
    unsafe {
        let ends = Ends::new::<V>(keys, powers, beside, size);
        let start = run.as_mut_ptr();
        let mut hash = Hash::<V>::new(powers, size, start, &ends);
        let mut at = start;
        for sector in 0..tags.len() {
            let nonce = V::key(&ends.masked[sector]);
            for counters in COUNTERS[..size / BLOCK].chunks_exact(group) {
                let place = |i: usize| at.add(i * V::BLOCKS * BLOCK);
                let mut state: [V; IN_FLIGHT] = from_fn(|i| nonce.xor(V::load(counters[i * V::BLOCKS].as_ptr())));
                // Before the first group, encryption has nothing to hash yet, and the result of hashing is discarded.
                rounds(keys, &mut state, |i| hash.absorb(i));
                for (i, state) in state.iter().enumerate() {
                    state.xor(V::load(place(i))).store(place(i));
                }
                at = at.add(group * BLOCK);
                match DECRYPT || at != start.add(group * BLOCK) {
                    true => hash.next_group(&ends, tags),
                    false => hash = Hash::<V>::new(powers, size, start, &ends),
                }
            }
        }
        if !DECRYPT {
            (0..IN_FLIGHT).for_each(|i| hash.absorb(i));
            hash.next_group(&ends, tags);
        }
    }
}

/// The parts before and after the blocks of each sector.
#[repr(C, align(64))]
struct Ends {
    /// The counter blocks whose encryption masks a tag.
    masked: [[u8; BLOCK]; MOST],
    /// GHASH of the data authenticated besides each sector, bytes reversed. There is room for an entry after the last sector's.
    begin: [[u8; BLOCK]; MOST + 4],
    /// The value added to GHASH of everything except the lengths, bytes reversed.
    end: [[u8; BLOCK]; MOST],
}

impl Ends {
    /// # Safety
    /// There are at most [`MOST`] sectors; the processor has the vector's instructions.
    #[inline(always)]
    unsafe fn new<V: Product>(keys: &[[u8; BLOCK]], powers: &Powers, beside: &[Beside], size: usize) -> Self {
        let zeros = [[0; BLOCK]; MOST];
        let mut ends = Self { masked: zeros, begin: [[0; BLOCK]; MOST + 4], end: zeros };
        let mut padded = [zeros; 2];
        for (i, beside) in beside.iter().enumerate() {
            ends.masked[i][..NONCE].copy_from_slice(&beside[NUMBER..HASHED]);
            ends.masked[i][BLOCK - 1] = TAG_COUNTER;
            padded[0][i].copy_from_slice(&beside[..BLOCK]);
            padded[1][i][..HASHED - BLOCK].copy_from_slice(&beside[BLOCK..HASHED]);
        }
        let lengths = (8 * HASHED as u128) << 64 | (8 * size as u128);
        let [square, h] = [TOGETHER - 2, TOGETHER - 1].map(|i| &powers.inner[i]);
        // SAFETY: the caller's promise; 8 vectors are no more than there is room for.
        unsafe {
            let (square, h) = (V::key(square), V::key(h));
            let mut of_lengths = Sum::zero();
            of_lengths.add(V::key(&lengths.to_le_bytes()), h);
            let of_lengths = of_lengths.reduced();
            for first in (0..beside.len()).step_by(IN_FLIGHT * V::BLOCKS) {
                let at = |i: usize| first + i * V::BLOCKS;
                let mut masks: [V; IN_FLIGHT] = from_fn(|i| V::load(ends.masked[at(i)].as_ptr()));
                rounds(keys, &mut masks, |i| {
                    let [one, two] = padded.each_ref().map(|padded| V::load(padded[at(i)].as_ptr()).reversed());
                    let mut sum = Sum::zero();
                    sum.add(one, square);
                    sum.add(two, h);
                    sum.reduced().store(ends.begin[at(i)].as_mut_ptr());
                });
                for (i, mask) in masks.iter().enumerate() {
                    mask.reversed().xor(of_lengths).store(ends.end[at(i)].as_mut_ptr());
                }
            }
        }
        ends
    }
}

/// GHASH over the sectors, one after the other.
struct Hash<'a, V> {
    powers: &'a Powers,
    /// Groups of 8 vectors in a sector.
    groups: usize,
    /// The next sector and group.
    sector: usize,
    group: usize,
    /// Where the next group is.
    at: *const u8,
    sum: Sum<V>,
    /// GHASH of everything before the group if a sum begins there, otherwise zero.
    before: __m128i,
}

/// For all that follows: the processor has the vector's instructions.
impl<'a, V: Product> Hash<'a, V> {
    /// Groups whose products are summed up.
    const SUMMED: usize = TOGETHER / (IN_FLIGHT * V::BLOCKS);

    #[inline(always)]
    unsafe fn new(powers: &'a Powers, size: usize, at: *const u8, ends: &Ends) -> Self {
        let groups = size / (IN_FLIGHT * V::BLOCKS * BLOCK);
        // SAFETY: the caller's promise.
        let (sum, before) = unsafe { (Sum::zero(), __m128i::load(ends.begin[0].as_ptr())) };
        Self { powers, groups, sector: 0, group: 0, at, sum, before }
    }

    /// Absorbs one of the group's 8 vectors. The first one comes last, since it waits for the previous sum.
    #[inline(always)]
    unsafe fn absorb(&mut self, i: usize) {
        let i = (i + 1) % IN_FLIGHT;
        let powers = if self.group + Self::SUMMED < self.groups { &self.powers.inner } else { &self.powers.last };
        // SAFETY: the group is within the run, and there is a power for each block.
        unsafe {
            let vector = self.group % Self::SUMMED * IN_FLIGHT + i;
            let power = V::load(powers.as_ptr().add(vector * V::BLOCKS).cast());
            let mut blocks = V::load(self.at.add(i * V::BLOCKS * BLOCK)).reversed();
            if i == 0 {
                blocks = blocks.xor(V::first(self.before));
            }
            self.sum.add(blocks, power);
        }
    }

    /// Moves on to the next group, after all 8 vectors were absorbed.
    #[inline(always)]
    unsafe fn next_group(&mut self, ends: &Ends, tags: &mut [[u8; BLOCK]]) {
        self.at = self.at.wrapping_add(IN_FLIGHT * V::BLOCKS * BLOCK);
        self.group += 1;
        // SAFETY: the caller's promise.
        unsafe {
            if !self.group.is_multiple_of(Self::SUMMED) {
                self.before = _mm_setzero_si128();
                return;
            }
            self.before = std::mem::replace(&mut self.sum, Sum::zero()).reduced().folded();
            if self.group == self.groups {
                let end = __m128i::load(ends.end[self.sector].as_ptr());
                self.before.xor(end).reversed().store(tags[self.sector].as_mut_ptr());
                (self.sector, self.group) = (self.sector + 1, 0);
                self.before = __m128i::load(ends.begin[self.sector].as_ptr());
            }
        }
    }
}

/// A sum of carry-less products: the parts of 128 bits that begin at bits 0, 64 and 128.
#[derive(Clone, Copy)]
struct Sum<V>([V; 3]);

/// For all that follows: the processor has the vector's instructions.
impl<V: Product> Sum<V> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        Self([unsafe { V::zero() }; 3])
    }

    /// Adds `a` times `b`, block by block.
    #[inline(always)]
    unsafe fn add(&mut self, a: V, b: V) {
        let [low, middle, high] = &mut self.0;
        // SAFETY: the caller's promise.
        unsafe {
            *low = low.xor(a.times::<0x00>(b));
            *middle = middle.xor(a.times::<0x01>(b).xor(a.times::<0x10>(b)));
            *high = high.xor(a.times::<0x11>(b));
        }
    }

    /// Reduces modulo GCM's polynomial: one multiple of it clears the lowest 64 bits, another one the next 64.
    #[inline(always)]
    unsafe fn reduced(self) -> V {
        let Self([low, middle, high]) = self;
        // SAFETY: the caller's promise.
        unsafe {
            let polynomial = V::key(&(0xc2_u128 << 56).to_le_bytes());
            let middle = middle.xor(low.swapped()).xor(low.times::<0x00>(polynomial));
            high.xor(middle.swapped()).xor(middle.times::<0x00>(polynomial))
        }
    }
}

/// All rounds of encryption, with something else done after each of the first 8.
///
/// # Safety
/// There are at least 11 round keys; the processor has the vector's instructions.
#[inline(always)]
unsafe fn rounds<V: Vector, const N: usize>(keys: &[[u8; BLOCK]], state: &mut [V; N], mut beside: impl FnMut(usize)) {
    let [whitening, middle @ .., last] = keys else { unreachable!("at least 11 round keys") };
    let (first, middle) = middle.split_first_chunk::<IN_FLIGHT>().expect("at least 9 rounds");
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let key = V::key(whitening);
        state.iter_mut().for_each(|s| *s = s.xor(key));
        for (i, key) in first.iter().enumerate() {
            let key = V::key(key);
            state.iter_mut().for_each(|s| *s = s.round::<false>(key));
            beside(i);
        }
        for key in middle {
            let key = V::key(key);
            state.iter_mut().for_each(|s| *s = s.round::<false>(key));
        }
        let key = V::key(last);
        state.iter_mut().for_each(|s| *s = s.last::<false>(key));
    }
}

/// The operations on vectors that GHASH needs. Each method may only be called if the processor has the instructions that the
/// implementation names, and that a kernel is entered with.
trait Product: Vector {
    /// Carry-less products of the halves that `HALVES` names.
    unsafe fn times<const HALVES: i32>(self, other: Self) -> Self;
    /// Each block with its bytes reversed.
    unsafe fn reversed(self) -> Self;
    /// Each block with its halves swapped.
    unsafe fn swapped(self) -> Self;
    /// The sum of all blocks.
    unsafe fn folded(self) -> __m128i;
    /// A vector of one block, then zeros.
    unsafe fn first(block: __m128i) -> Self;
}

// In the three implementations everything works on registers. SAFETY of every block: the trait's promise about instructions.

impl Product for __m128i {
    #[inline(always)]
    unsafe fn times<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm_clmulepi64_si128::<HALVES>(self, other) }
    }
    #[inline(always)]
    unsafe fn reversed(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm_shuffle_epi8(self, _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f)) }
    }
    #[inline(always)]
    unsafe fn swapped(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm_shuffle_epi32::<0x4e>(self) }
    }
    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        self
    }
    #[inline(always)]
    unsafe fn first(block: __m128i) -> Self {
        block
    }
}

impl Product for __m256i {
    #[inline(always)]
    unsafe fn times<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_clmulepi64_epi128::<HALVES>(self, other) }
    }
    #[inline(always)]
    unsafe fn reversed(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let order = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
            _mm256_shuffle_epi8(self, _mm256_broadcastsi128_si256(order))
        }
    }
    #[inline(always)]
    unsafe fn swapped(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_shuffle_epi32::<0x4e>(self) }
    }
    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        // SAFETY: see above.
        unsafe { _mm_xor_si128(_mm256_castsi256_si128(self), _mm256_extracti128_si256::<1>(self)) }
    }
    #[inline(always)]
    unsafe fn first(block: __m128i) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_zextsi128_si256(block) }
    }
}

impl Product for __m512i {
    #[inline(always)]
    unsafe fn times<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_clmulepi64_epi128::<HALVES>(self, other) }
    }
    #[inline(always)]
    unsafe fn reversed(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let order = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
            _mm512_shuffle_epi8(self, _mm512_broadcast_i32x4(order))
        }
    }
    #[inline(always)]
    unsafe fn swapped(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_shuffle_epi32::<0x4e>(self) }
    }
    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        // SAFETY: see above.
        unsafe {
            let halves = _mm256_xor_si256(_mm512_castsi512_si256(self), _mm512_extracti64x4_epi64::<1>(self));
            halves.folded()
        }
    }
    #[inline(always)]
    unsafe fn first(block: __m128i) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_zextsi128_si512(block) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AES;
    use super::*;
    use crate::modes::aead::{BESIDE, Gcm, MessageCipher};
    use claviger_testkit::random::Random;

    /// Every kernel agrees with the crates `aes` and `ghash`, used on one sector after the other.
    #[test]
    fn all_kernels_agree_with_the_crates() {
        let mut random = Random::new(1);
        for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for (key, size) in [(16, 512), (24, 1536), (32, 512), (32, 1024), (32, 2048), (32, 4096)] {
                let key = random.bytes(key);
                let one_by_one = Gcm::new(AES.with_key(&key, Acceleration::Off));
                let gcm = AesGcm::with_kernel(kernel, &key);
                for count in 0..=2 * MOST + 6 {
                    let what = format!("{}, {count} sectors of {size}, keys of {}", kernel.name, key.len());
                    let beside: Vec<Beside> =
                        (0..count).map(|_| random.bytes(BESIDE).try_into().expect("as many")).collect();
                    let plain = random.bytes(count * size);
                    let mut right = plain.clone();
                    let mut right_tags = vec![[0; BLOCK]; count];
                    for ((sector, beside), tag) in right.chunks_mut(size).zip(&beside).zip(&mut right_tags) {
                        one_by_one.seal(&beside[NUMBER..HASHED], &beside[..HASHED], sector, tag);
                    }
                    let (mut run, mut tags) = (plain.clone(), vec![[0xee; BLOCK]; count]);
                    gcm.process::<false>(Sectors { beside: &beside, size, run: &mut run }, &mut tags);
                    assert!(run == right && tags == right_tags, "{what}");
                    tags.fill([0xee; BLOCK]);
                    gcm.process::<true>(Sectors { beside: &beside, size, run: &mut run }, &mut tags);
                    assert!(run == plain && tags == right_tags, "{what}, decrypting");
                }
            }
        }
    }
}
