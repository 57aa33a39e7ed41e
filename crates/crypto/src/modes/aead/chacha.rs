//! ChaCha20 (RFC 8439, 2.4) of many sectors, with a block in each lane of a vector; the blocks may belong to different sectors.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::array::from_fn;

use super::sealer::{Beside, NUMBER};
use crate::transpose;

/// Bytes of a key and of a nonce.
pub(super) const KEY: usize = 32;
pub(super) const NONCE: usize = 12;

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// The most blocks side by side.
const LANES: usize = 16;

/// Blocks side by side that are in one sector.
const ROW: usize = 8;

/// "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// For each lane the last four words of its state: the number of the block, and the nonce.
#[repr(C, align(64))]
struct Starts([[u32; LANES]; 4]);

impl Starts {
    fn set(&mut self, lanes: std::ops::Range<usize>, first: u32, beside: &Beside) {
        let nonce = beside[NUMBER..NUMBER + NONCE].as_chunks().0;
        let [numbers, nonces @ ..] = &mut self.0;
        numbers[lanes.clone()].iter_mut().zip(first..).for_each(|(lane, number)| *lane = number);
        for (to, word) in nonces.iter_mut().zip(nonce) {
            to[lanes.clone()].fill(u32::from_le_bytes(*word));
        }
    }
}

pub(super) struct Kernel {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    pub name: &'static str,
    pub usable: fn() -> bool,
    lanes: usize,
    /// May only be called on a processor that can run the kernel, with as many blocks as it has lanes.
    add: unsafe fn(&[u8; KEY], &Starts, *mut u8),
}

/// The fastest first. Some processors can run none of them.
pub(super) const KERNELS: &[Kernel] = &[
    Kernel { name: "avx512", usable: || is_x86_feature_detected!("avx512f"), lanes: 16, add: avx512 },
    Kernel { name: "avx2", usable: || is_x86_feature_detected!("avx2"), lanes: 8, add: avx2 },
];

impl Kernel {
    /// The first block of each sector's stream.
    pub fn first_blocks(&self, key: &[u8; KEY], beside: &[Beside], blocks: &mut [[u8; BLOCK]]) {
        let mut starts = Starts([[0; LANES]; 4]);
        for (beside, blocks) in beside.chunks(self.lanes).zip(blocks.chunks_mut(self.lanes)) {
            beside.iter().enumerate().for_each(|(lane, beside)| starts.set(lane..lane + 1, 0, beside));
            let mut room = [0; LANES * BLOCK];
            self.add(key, &starts, &mut room[..self.lanes * BLOCK]);
            blocks.copy_from_slice(&room.as_chunks().0[..blocks.len()]);
        }
    }

    /// Adds the rest of its stream to each sector of `size` bytes.
    ///
    /// # Panics
    /// Unless sectors are whole multiples of 512 bytes.
    pub fn add_rest(&self, key: &[u8; KEY], beside: &[Beside], size: usize, run: &mut [u8]) {
        const BYTES: usize = ROW * BLOCK;
        assert!(size > 0 && size.is_multiple_of(BYTES), "sectors of {size} bytes");
        let numbers = || (1..).step_by(ROW).take(size / BYTES);
        let mut rows = beside.iter().flat_map(|beside| numbers().map(move |number| (number, beside)));
        let mut starts = Starts([[0; LANES]; 4]);
        for blocks in run.chunks_mut(self.lanes * BLOCK) {
            for (lane, (number, beside)) in (0..blocks.len() / BLOCK).step_by(ROW).zip(&mut rows) {
                starts.set(lane..lane + ROW, number, beside);
            }
            if blocks.len() == self.lanes * BLOCK {
                self.add(key, &starts, blocks);
            } else {
                let mut room = [0; LANES * BLOCK];
                room[..blocks.len()].copy_from_slice(blocks);
                self.add(key, &starts, &mut room[..self.lanes * BLOCK]);
                blocks.copy_from_slice(&room[..blocks.len()]);
            }
        }
    }

    fn add(&self, key: &[u8; KEY], starts: &Starts, blocks: &mut [u8]) {
        assert!((self.usable)() && blocks.len() == self.lanes * BLOCK);
        // SAFETY: it was asked, and there are as many blocks.
        unsafe { (self.add)(key, starts, blocks.as_mut_ptr()) }
    }
}

/// # Safety
/// The processor has the feature named here, and `blocks` are 16.
#[target_feature(enable = "avx512f")]
unsafe fn avx512(key: &[u8; KEY], starts: &Starts, blocks: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { add_stream::<__m512i>(key, starts, blocks) }
}

/// # Safety
/// The processor has the feature named here, and `blocks` are 8.
#[target_feature(enable = "avx2")]
unsafe fn avx2(key: &[u8; KEY], starts: &Starts, blocks: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { add_stream::<__m256i>(key, starts, blocks) }
}

/// # Safety
/// There is a block for each lane; the processor has the vector's instructions.
#[inline(always)]
unsafe fn add_stream<V: Vector>(key: &[u8; KEY], starts: &Starts, blocks: *mut u8) {
    let key: &[[u8; 4]] = key.as_chunks().0;
    // SAFETY: the caller's promise.
    unsafe {
        let begin: [V; 16] = from_fn(|i| match i {
            0..4 => V::splat(CONSTANTS[i]),
            4..12 => V::splat(u32::from_le_bytes(key[i - 4])),
            _ => V::load(&starts.0[i - 12]),
        });
        let mut state = begin;
        for _ in 0..10 {
            quarters::<V, 0>(&mut state);
            quarters::<V, 1>(&mut state);
        }
        V::add_words(from_fn(|i| state[i].plus(begin[i])), blocks);
    }
}

/// Four quarter rounds beside each other: of columns, or of diagonals, on which each row is shifted by one more.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn quarters<V: Vector, const SHIFT: usize>(state: &mut [V; 16]) {
    let [a, b, c, d]: [[usize; 4]; 4] = from_fn(|row| from_fn(|i| 4 * row + (i + SHIFT * row) % 4));
    /// `to += with; turned = (turned ^ to) <<< BY`.
    macro_rules! step {
        ($to:ident, $with:ident, $turned:ident, $by:literal) => {
            (0..4).for_each(|i| state[$to[i]] = state[$to[i]].plus(state[$with[i]]));
            (0..4).for_each(|i| state[$turned[i]] = state[$turned[i]].xor(state[$to[i]]).rotate::<$by>());
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        step!(a, b, d, 16);
        step!(c, d, b, 12);
        step!(a, b, d, 8);
        step!(c, d, b, 7);
    }
}

/// A word of each of several blocks. Each method may only be called if the processor has the instructions that the implementation
/// names, and that a kernel is entered with.
trait Vector: Copy {
    unsafe fn splat(word: u32) -> Self;
    unsafe fn load(words: &[u32; LANES]) -> Self;
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Left.
    unsafe fn rotate<const BY: i32>(self) -> Self;
    /// Adds the words of all blocks to these, one block after the other.
    unsafe fn add_words(words: [Self; 16], blocks: *mut u8);
}

// SAFETY of every block below: the trait's promise about instructions, and for memory the caller's about places. Loads and stores
// are unaligned.

impl Vector for __m512i {
    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn load(words: &[u32; LANES]) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn rotate<const BY: i32>(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_rol_epi32::<BY>(self) }
    }
    #[inline(always)]
    unsafe fn add_words(words: [Self; 16], blocks: *mut u8) {
        // SAFETY: see above.
        unsafe {
            for (i, stream) in transpose::of_16(words).into_iter().enumerate() {
                let at = blocks.add(BLOCK * i).cast();
                _mm512_storeu_si512(at, _mm512_xor_si512(stream, _mm512_loadu_si512(at)));
            }
        }
    }
}

impl Vector for __m256i {
    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn load(words: &[u32; LANES]) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn rotate<const BY: i32>(self) -> Self {
        // SAFETY: see above.
        unsafe {
            match BY {
                16 => _mm256_shuffle_epi8(self, in_both([0x0504_0706_0100_0302, 0x0d0c_0f0e_0908_0b0a])),
                8 => _mm256_shuffle_epi8(self, in_both([0x0605_0407_0201_0003, 0x0e0d_0c0f_0a09_080b])),
                _ => {
                    let (left, right) = (_mm_cvtsi32_si128(BY), _mm_cvtsi32_si128(32 - BY));
                    _mm256_or_si256(_mm256_sll_epi32(self, left), _mm256_srl_epi32(self, right))
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn add_words(words: [Self; 16], blocks: *mut u8) {
        // SAFETY: see above.
        unsafe {
            for (half, words) in words.as_chunks::<8>().0.iter().enumerate() {
                for (i, stream) in transpose::of_8(*words).into_iter().enumerate() {
                    let at = blocks.add(BLOCK * i + 32 * half).cast();
                    _mm256_storeu_si256(at, _mm256_xor_si256(stream, _mm256_loadu_si256(at)));
                }
            }
        }
    }
}

/// Two words in both halves of a vector.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn in_both([low, high]: [i64; 2]) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_set_epi64x(high, low, high, low) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20;
    use cipher::{KeyIvInit, StreamCipher};
    use claviger_testkit::random::Random;

    use super::super::sealer::BESIDE;

    #[test]
    fn every_kernel_gives_the_streams_of_the_crate() {
        let mut random = Random::new(1);
        for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for size in [512, 1536, 4096] {
                for count in 0..=2 * LANES + 2 {
                    let key: [u8; KEY] = random.bytes(KEY).try_into().expect("a key");
                    let beside: Vec<Beside> =
                        (0..count).map(|_| random.bytes(BESIDE).try_into().expect("as many")).collect();
                    let plain = random.bytes(count * size);
                    let (mut blocks, mut run) = (vec![[0; BLOCK]; count], plain.clone());
                    kernel.first_blocks(&key, &beside, &mut blocks);
                    kernel.add_rest(&key, &beside, size, &mut run);
                    let (mut right_blocks, mut right) = (vec![[0; BLOCK]; count], plain);
                    for ((block, sector), beside) in right_blocks.iter_mut().zip(right.chunks_mut(size)).zip(&beside) {
                        let nonce = &beside[NUMBER..NUMBER + NONCE];
                        let mut stream = ChaCha20::new_from_slices(&key, nonce).expect("they fit");
                        stream.apply_keystream(block);
                        stream.apply_keystream(sector);
                    }
                    let what = format!("{}, {count} sectors of {size}", kernel.name);
                    assert!(blocks == right_blocks && run == right, "{what}");
                }
            }
        }
    }
}
