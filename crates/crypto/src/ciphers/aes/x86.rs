//! AES with the processor's AES instructions, on vectors of one, two or four blocks.
//!
//! One kernel serves all three widths. It keeps 8 vectors in flight, which hides the latency of an AES round. XTS processes as many
//! sectors side by side as a vector has blocks, 8 consecutive blocks of each at a time. A sector that is left over or has an odd
//! size is processed alone.
//!
//! XTS is slower than ECB, but not because of the number of instructions. A vector takes 14 AES instructions, which start two a
//! cycle, and 7 others, for which a processor has room. Those stall it if they come late, or run on the units that do AES. So
//! - a vector's next tweak is the last one times a power of x: a shift by bytes and one carry-less product. Doubling the tweaks of
//!   several sectors in a vector takes as many instructions, but transposing those takes two more shuffles, on a unit that does
//!   AES;
//! - tweaks are made between the rounds of the previous vectors: 8 vectors of 14 rounds are more than a processor looks ahead. The
//!   compiler would move all of this to the front;
//! - tweaks are in memory, which is idle otherwise. The compiler would fill all registers with tweaks and spill vectors in flight
//!   between two rounds, differently in each build: XTS with AVX2 varied by a fifth.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;
use std::mem::MaybeUninit;

use super::schedule::Schedule;
use crate::chain::assert_chains;
use crate::ciphers::{BlockCipher, Kernel, Sums, assert_blocks, assert_masks, assert_sectors};
use crate::hash::lanes::for_each;

/// VAES on 512-bit vectors.
pub(super) const VAES512: Kernel = Kernel {
    name: "vaes512",
    usable: || {
        is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
    },
    aes_instructions: true,
    constant_time: true,
    expand: |key| {
        Box::new(Aes {
            schedule: Schedule::new(key),
            ecb: ecb_512,
            xts: xts_512,
            cbc: cbc_512,
            abreast: abreast_512,
            masked: masked_512,
        })
    },
};

/// VAES on 256-bit vectors.
pub(super) const VAES256: Kernel = Kernel {
    name: "vaes256",
    usable: || {
        is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx2")
    },
    aes_instructions: true,
    constant_time: true,
    expand: |key| {
        Box::new(Aes {
            schedule: Schedule::new(key),
            ecb: ecb_256,
            xts: xts_256,
            cbc: cbc_256,
            abreast: abreast_256,
            masked: masked_256,
        })
    },
};

/// AES-NI.
pub(super) const AESNI: Kernel = Kernel {
    name: "aesni",
    usable: || is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq"),
    aes_instructions: true,
    constant_time: true,
    expand: |key| {
        Box::new(Aes {
            schedule: Schedule::new(key),
            ecb: ecb_128,
            xts: xts_128,
            cbc: cbc_128,
            abreast: abreast_128,
            masked: masked_128,
        })
    },
};

/// Round keys in order of use, whether to decrypt, the blocks.
type Ecb = unsafe fn(&[[u8; 16]], bool, &mut [u8]);
/// Round keys, whether to decrypt, the tweak of each sector, the size of a sector in bytes, the sectors.
type XtsFn = unsafe fn(&[[u8; 16]], bool, &[[u8; 16]], usize, &mut [u8]);
/// Round keys of decryption, the initialisation vector, the chain.
type CbcFn = unsafe fn(&[[u8; 16]], &[u8; 16], &mut [u8]);

/// Round keys, the initialisation vector of each chain, their size in bytes, the chains.
type AbreastFn = unsafe fn(&[[u8; 16]], &[[u8; 16]], usize, &mut [u8]);

/// Round keys, whether to decrypt, the masks of the blocks, the blocks.
type MaskedFn = unsafe fn(&[[u8; 16]], bool, &Sums<'_>, &mut [u8]);

struct Aes {
    schedule: Schedule,
    ecb: Ecb,
    xts: XtsFn,
    cbc: CbcFn,
    abreast: AbreastFn,
    masked: MaskedFn,
}

impl Aes {
    fn encrypt_keys(&self) -> &[[u8; 16]] {
        &self.schedule.keys.encrypt[..=self.schedule.rounds]
    }
    fn decrypt_keys(&self) -> &[[u8; 16]] {
        &self.schedule.keys.decrypt[..=self.schedule.rounds]
    }
}

impl BlockCipher for Aes {
    fn block_size(&self) -> usize {
        16
    }
    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        // SAFETY: `Kernel::with_key` asks `usable`.
        unsafe { (self.ecb)(self.encrypt_keys(), false, blocks) }
    }
    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        // SAFETY: as above.
        unsafe { (self.ecb)(self.decrypt_keys(), true, blocks) }
    }
    fn xts_encrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_sectors(16, tweaks, sector, run);
        // SAFETY: as above; the run is what the tweaks are for.
        unsafe { (self.xts)(self.encrypt_keys(), false, tweaks, sector, run) }
    }
    fn xts_decrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_sectors(16, tweaks, sector, run);
        // SAFETY: as above; the run is what the tweaks are for.
        unsafe { (self.xts)(self.decrypt_keys(), true, tweaks, sector, run) }
    }
    fn xts_in_registers(&self) -> bool {
        true
    }
    fn masked_encrypt(&self, masks: &Sums<'_>, run: &mut [u8]) {
        assert_masks(16, masks, run);
        // SAFETY: as above; each block has a mask.
        unsafe { (self.masked)(self.encrypt_keys(), false, masks, run) }
    }
    fn masked_decrypt(&self, masks: &Sums<'_>, run: &mut [u8]) {
        assert_masks(16, masks, run);
        // SAFETY: as above; each block has a mask.
        unsafe { (self.masked)(self.decrypt_keys(), true, masks, run) }
    }
    fn cbc_decrypt(&self, iv: &[u8; 16], chain: &mut [u8]) {
        assert_blocks(16, chain);
        // SAFETY: as above; the chain is whole blocks.
        unsafe { (self.cbc)(self.decrypt_keys(), iv, chain) }
    }
    fn cbc_encrypt(&self, iv: &[u8; 16], chain: &mut [u8]) {
        assert_blocks(16, chain);
        // SAFETY: as above; every kernel here takes a processor that has these instructions.
        unsafe { cbc_encrypt(self.encrypt_keys(), iv, chain) }
    }
    fn cbc_decrypt_abreast(&self, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_chains(16, ivs, sector, run);
        let chains = ivs.iter().zip(run.chunks_mut(sector.max(1)));
        // SAFETY: as above; each chain is whole blocks.
        chains.for_each(|(iv, chain)| unsafe { (self.cbc)(self.decrypt_keys(), iv, chain) });
    }
    fn cbc_encrypt_abreast(&self, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_chains(16, ivs, sector, run);
        // SAFETY: as above; the run has a chain for each IV.
        unsafe { (self.abreast)(self.encrypt_keys(), ivs, sector, run) }
    }
}

/// A vector of one or more blocks. Each method may only be called if the processor has the instructions that the
/// implementation names, which the entry functions below ensure.
pub(super) trait Vector: Copy {
    /// Blocks in a vector.
    const BLOCKS: usize;
    unsafe fn zero() -> Self;
    /// Reads `16 * BLOCKS` bytes, at any alignment.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes `16 * BLOCKS` bytes, at any alignment.
    unsafe fn store(self, to: *mut u8);
    /// The round key in every block.
    unsafe fn key(key: &[u8; 16]) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn xor3(self, second: Self, third: Self) -> Self;
    unsafe fn round<const DECRYPT: bool>(self, key: Self) -> Self;
    unsafe fn last<const DECRYPT: bool>(self, key: Self) -> Self;
    /// The tweaks of a sector's vector `number` (0..8), from the tweak of the sector's first block.
    unsafe fn tweaks(first: &[u8; 16], number: usize) -> Self;
    /// The tweaks 8 blocks later: every block times x^8 in GF(2^128), by a shift by a byte and a carry-less product.
    unsafe fn eight_blocks_on(self) -> Self;
    /// The tweaks 8 vectors later: every block times x^8, x^16 or x^32.
    unsafe fn eight_vectors_on(self) -> Self;
    /// Transposes a square of blocks: reads as many vectors as each has blocks, `apart` bytes apart, and writes them `to_apart`
    /// bytes apart.
    unsafe fn turn(from: *const u8, apart: usize, to: *mut u8, to_apart: usize);
}

/// The instructions for each width, and the functions that enter the kernel with them.
macro_rules! entries {
    ($vector:ty, $features:literal, $ecb:ident, $xts:ident, $cbc:ident, $abreast:ident, $masked:ident) => {
        /// # Safety
        /// The processor must have the features named here.
        #[target_feature(enable = $features)]
        unsafe fn $ecb(keys: &[[u8; 16]], decrypt: bool, blocks: &mut [u8]) {
            // SAFETY: the caller vouches for the processor's features.
            unsafe {
                match decrypt {
                    false => ecb::<$vector, false>(keys, blocks),
                    true => ecb::<$vector, true>(keys, blocks),
                }
            }
        }

        /// # Safety
        /// The processor must have the features named here, and `run` be a sector of `sector` bytes for each tweak.
        #[target_feature(enable = $features)]
        unsafe fn $xts(keys: &[[u8; 16]], decrypt: bool, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
            // SAFETY: the caller vouches for the processor's features and the sizes.
            unsafe {
                match decrypt {
                    false => xts::<$vector, false>(keys, tweaks, sector, run),
                    true => xts::<$vector, true>(keys, tweaks, sector, run),
                }
            }
        }

        /// # Safety
        /// The processor must have the features named here, and the chain be whole blocks.
        #[target_feature(enable = $features)]
        unsafe fn $cbc(keys: &[[u8; 16]], iv: &[u8; 16], chain: &mut [u8]) {
            // SAFETY: the caller vouches for the processor's features and the chain.
            unsafe { cbc::<$vector>(keys, iv, chain) }
        }

        /// # Safety
        /// The processor must have the features named here, and `run` a chain of `sector` bytes, whole blocks, for each IV.
        #[target_feature(enable = $features)]
        unsafe fn $abreast(keys: &[[u8; 16]], ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
            // SAFETY: the caller vouches for the processor's features and the chains.
            unsafe { cbc_encrypt_abreast::<$vector>(keys, ivs, sector, run) }
        }

        /// # Safety
        /// The processor must have the features named here, and `run` be whole blocks, each with a mask.
        #[target_feature(enable = $features)]
        unsafe fn $masked(keys: &[[u8; 16]], decrypt: bool, masks: &Sums<'_>, run: &mut [u8]) {
            // SAFETY: the caller vouches for the processor's features and the masks.
            unsafe {
                match decrypt {
                    false => masked::<$vector, false>(keys, masks, run),
                    true => masked::<$vector, true>(keys, masks, run),
                }
            }
        }
    };
}
entries!(__m128i, "aes,pclmulqdq,sse2", ecb_128, xts_128, cbc_128, abreast_128, masked_128);
entries!(__m256i, "aes,vaes,vpclmulqdq,avx2", ecb_256, xts_256, cbc_256, abreast_256, masked_256);
entries!(__m512i, "aes,vaes,vpclmulqdq,avx512f,avx512bw", ecb_512, xts_512, cbc_512, abreast_512, masked_512);

/// Vectors in flight: a round takes 4 cycles, and most processors can start two per cycle.
const IN_FLIGHT: usize = 8;

/// Blocks of each sector that are processed together, where sectors go side by side.
const STEP: usize = 8;

#[inline(always)]
unsafe fn ecb<V: Vector, const DECRYPT: bool>(keys: &[[u8; 16]], blocks: &mut [u8]) {
    // SAFETY: chunks are as long as the vectors they are read into; the caller vouches for the instructions.
    unsafe {
        let mut groups = blocks.chunks_exact_mut(16 * V::BLOCKS * IN_FLIGHT);
        for group in &mut groups {
            ecb_group::<V, IN_FLIGHT, DECRYPT>(keys, group);
        }
        let mut halves = groups.into_remainder().chunks_exact_mut(16 * V::BLOCKS * IN_FLIGHT / 2);
        for half in &mut halves {
            ecb_group::<V, { IN_FLIGHT / 2 }, DECRYPT>(keys, half);
        }
        for vector in halves.into_remainder().chunks_mut(16 * V::BLOCKS) {
            let mut padded = [0u8; 64];
            padded[..vector.len()].copy_from_slice(vector);
            ecb_group::<V, 1, DECRYPT>(keys, &mut padded[..16 * V::BLOCKS]);
            vector.copy_from_slice(&padded[..vector.len()]);
        }
    }
}

/// # Safety
/// `group` holds `N` vectors; the processor has the vector's instructions.
#[inline(always)]
unsafe fn ecb_group<V: Vector, const N: usize, const DECRYPT: bool>(keys: &[[u8; 16]], group: &mut [u8]) {
    debug_assert_eq!(group.len(), 16 * V::BLOCKS * N);
    // SAFETY: the caller's promise.
    unsafe {
        let mut state = [V::zero(); N];
        for (i, s) in state.iter_mut().enumerate() {
            *s = V::load(group.as_ptr().add(16 * V::BLOCKS * i));
        }
        rounds::<V, N, DECRYPT>(keys, &mut state);
        for (i, s) in state.iter().enumerate() {
            s.store(group.as_mut_ptr().add(16 * V::BLOCKS * i));
        }
    }
}

/// ECB between two additions of masks. A vector of masks is made only when it is needed, so it is never stored.
///
/// # Safety
/// `run` is whole blocks, each with a mask; the processor has the vector's instructions.
#[inline(always)]
unsafe fn masked<V: Vector, const DECRYPT: bool>(keys: &[[u8; 16]], masks: &Sums<'_>, mut run: &mut [u8]) {
    let mut at = masks.first;
    for group in masks.groups {
        let now = run.split_off_mut(..run.len().min((Sums::GROUP - at) * 16)).expect("it is not longer");
        // SAFETY: there are as many places from `at` on as blocks; the caller vouches for the instructions.
        unsafe { masked_blocks::<V, DECRYPT>(keys, &group.to_ne_bytes(), &masks.places[at..], now) };
        at = 0;
    }
}

/// Processes the blocks of one group.
///
/// # Safety
/// There is a place for each block; the processor has the vector's instructions.
#[inline(always)]
unsafe fn masked_blocks<V: Vector, const DECRYPT: bool>(
    keys: &[[u8; 16]],
    group: &[u8; 16],
    places: &[u128],
    blocks: &mut [u8],
) {
    let size = 16 * V::BLOCKS;
    // SAFETY: chunks are as long as the vectors they are read into, as are their masks; the caller vouches for the instructions.
    unsafe {
        let sum = V::key(group);
        let mut places = places.as_ptr();
        let mut many = blocks.chunks_exact_mut(size * IN_FLIGHT);
        for blocks in &mut many {
            masked_vectors::<V, IN_FLIGHT, DECRYPT>(keys, sum, places.cast(), blocks.as_mut_ptr());
            places = places.add(V::BLOCKS * IN_FLIGHT);
        }
        let mut half = many.into_remainder().chunks_exact_mut(size * IN_FLIGHT / 2);
        for blocks in &mut half {
            masked_vectors::<V, { IN_FLIGHT / 2 }, DECRYPT>(keys, sum, places.cast(), blocks.as_mut_ptr());
            places = places.add(V::BLOCKS * IN_FLIGHT / 2);
        }
        for vector in half.into_remainder().chunks_mut(size) {
            let mut padded = [[0u8; 64]; 2];
            let [mask, block] = padded.each_mut().map(|padded| &mut padded[..vector.len()]);
            std::ptr::copy_nonoverlapping(places.cast(), mask.as_mut_ptr(), vector.len());
            block.copy_from_slice(vector);
            let [mask, block] = &mut padded;
            masked_vectors::<V, 1, DECRYPT>(keys, sum, mask.as_ptr(), block.as_mut_ptr());
            vector.copy_from_slice(&block[..vector.len()]);
            places = places.add(vector.len() / 16);
        }
    }
}

/// # Safety
/// `N` vectors can be read at `places`, and read and written at `blocks`; the processor has the vector's instructions.
#[inline(always)]
unsafe fn masked_vectors<V: Vector, const N: usize, const DECRYPT: bool>(
    keys: &[[u8; 16]],
    sum: V,
    places: *const u8,
    blocks: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mask = |i: usize| V::load(places.add(16 * V::BLOCKS * i)).xor(sum);
        let mut state = [V::zero(); N];
        for (i, s) in state.iter_mut().enumerate() {
            *s = V::load(blocks.add(16 * V::BLOCKS * i)).xor(mask(i));
        }
        rounds::<V, N, DECRYPT>(keys, &mut state);
        for (i, s) in state.iter().enumerate() {
            s.xor(mask(i)).store(blocks.add(16 * V::BLOCKS * i));
        }
    }
}

/// Decrypts one chain from its end to its beginning, so that the ciphertext before a group is still there. A beginning that is too
/// short for a group is processed block by block.
///
/// # Safety
/// The chain is whole blocks; the processor has the vector's instructions.
#[inline(always)]
unsafe fn cbc<V: Vector>(keys: &[[u8; 16]], iv: &[u8; 16], chain: &mut [u8]) {
    let group = 16 * V::BLOCKS * IN_FLIGHT;
    let mut end = chain.len();
    // SAFETY: each group begins a block or more after the chain's beginning, each block within it; the caller vouches
    // for the instructions.
    unsafe {
        while end >= group + 16 {
            end -= group;
            cbc_group::<V, IN_FLIGHT>(keys, chain.as_ptr().add(end - 16), chain.as_mut_ptr().add(end));
        }
        if end == group {
            // The first group, with the IV before its ciphertext.
            let mut before = [0u8; 16 * 4];
            before[..16].copy_from_slice(iv);
            before[16..].copy_from_slice(&chain[..48]);
            return cbc_group::<V, IN_FLIGHT>(keys, before.as_ptr(), chain.as_mut_ptr());
        }
        while end > 0 {
            end -= 16;
            let before = if end == 0 { iv.as_ptr() } else { chain.as_ptr().add(end - 16) };
            cbc_group::<__m128i, 1>(keys, before, chain.as_mut_ptr().add(end));
        }
    }
}

/// Encrypts one chain, in which each block waits for the previous one.
///
/// # Safety
/// The processor must have the features named here.
#[target_feature(enable = "aes,sse2")]
unsafe fn cbc_encrypt(keys: &[[u8; 16]], iv: &[u8; 16], chain: &mut [u8]) {
    // SAFETY: each block is 16 bytes; the caller vouches for the processor's features.
    unsafe {
        let mut state = [__m128i::load(iv.as_ptr())];
        for block in chain.as_chunks_mut::<16>().0 {
            state = [state[0].xor(__m128i::load(block.as_ptr()))];
            rounds::<__m128i, 1, false>(keys, &mut state);
            state[0].store(block.as_mut_ptr());
        }
    }
}

/// Encrypts many chains, with a block of each chain in a vector: as many chains at a time as fill the pipeline, then fewer.
///
/// # Safety
/// `run` has a chain of `sector` bytes, whole blocks, for each IV; the processor has the vector's instructions.
#[inline(always)]
unsafe fn cbc_encrypt_abreast<V: Vector>(keys: &[[u8; 16]], mut ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
    let mut run = run.as_mut_ptr();
    // SAFETY: the caller's promise; as many chains are taken as there are vectors for.
    unsafe {
        if V::BLOCKS > 1 && sector > 0 && sector.is_multiple_of(16 * ROWS) {
            let (many, few) = ivs.split_at(ivs.len() / (V::BLOCKS * IN_FLIGHT) * (V::BLOCKS * IN_FLIGHT));
            if !many.is_empty() {
                cbc_lanes::<V, IN_FLIGHT>(keys, many, sector, run);
            }
            (ivs, run) = (few, run.wrapping_add(many.len() * sector));
            if let Some((some, rest)) = ivs.split_at_checked(V::BLOCKS * IN_FLIGHT / 2) {
                cbc_lanes::<V, { IN_FLIGHT / 2 }>(keys, some, sector, run);
                (ivs, run) = (rest, run.wrapping_add(V::BLOCKS * IN_FLIGHT / 2 * sector));
            }
        }
        while let Some((some, rest)) = ivs.split_at_checked(8) {
            cbc_few::<8>(keys, some, sector, run);
            (ivs, run) = (rest, run.wrapping_add(8 * sector));
        }
        match ivs.len() {
            7 => cbc_few::<7>(keys, ivs, sector, run),
            6 => cbc_few::<6>(keys, ivs, sector, run),
            5 => cbc_few::<5>(keys, ivs, sector, run),
            4 => cbc_few::<4>(keys, ivs, sector, run),
            3 => cbc_few::<3>(keys, ivs, sector, run),
            2 => cbc_few::<2>(keys, ivs, sector, run),
            1 => cbc_few::<1>(keys, ivs, sector, run),
            _ => {}
        }
    }
}

/// Encrypts `N` chains, a block of each at a time.
///
/// # Safety
/// There are `N` IVs, and at `run` as many chains of `sector` bytes, whole blocks. The processor has AES instructions.
#[inline(always)]
unsafe fn cbc_few<const N: usize>(keys: &[[u8; 16]], ivs: &[[u8; 16]], sector: usize, run: *mut u8) {
    debug_assert!(ivs.len() == N);
    // SAFETY: the caller's promise.
    unsafe {
        let mut last: [__m128i; N] = std::array::from_fn(|i| __m128i::load(ivs[i].as_ptr()));
        for at in (0..sector).step_by(16) {
            let place = |chain: usize| run.add(chain * sector + at);
            for (i, last) in last.iter_mut().enumerate() {
                *last = last.xor(__m128i::load(place(i)));
            }
            rounds::<__m128i, N, false>(keys, &mut last);
            for (i, last) in last.iter().enumerate() {
                last.store(place(i));
            }
        }
    }
}

/// Blocks of a chain in a step of CBC.
const ROWS: usize = 8;

/// Encrypts many chains, `N` vectors of them at a time. A step is 8 blocks of each chain. They are read and transposed into rows of
/// one block of each chain; each row waits for the previous one. Between the rounds of a step, the previous step is written and the
/// next one read, which may belong to other chains. The last round of a block also adds the value that the first round of the next
/// block would add, so a chain waits only for AES. A step takes two cache lines of each chain at once. Sectors of 4096 bytes have
/// all their lines in one set of the first-level cache, which holds fewer lines, so no line stays for a second use.
///
/// # Safety
/// The number of `ivs` is a multiple of `N * V::BLOCKS` and not 0. At `run` are as many chains of `sector` bytes, a multiple of a
/// step and not 0. `N` is 4 or 8. The processor has the vector's instructions.
#[inline(always)]
unsafe fn cbc_lanes<V: Vector, const N: usize>(keys: &[[u8; 16]], ivs: &[[u8; 16]], sector: usize, run: *mut u8) {
    let (size, chains) = (16 * ROWS, N * V::BLOCKS);
    let [whitening, middle @ .., last] = keys else { unreachable!("at least 11 round keys") };
    let (first, middle) = middle.split_first_chunk::<8>().expect("at least 9 rounds");
    // SAFETY: the caller's promise: each chain has all steps.
    unsafe {
        // The step being encrypted; the previous step, then the next one.
        let mut room = MaybeUninit::<[[[V; N]; ROWS]; 2]>::uninit();
        let mut now = black_box(room.as_mut_ptr()).cast::<[V; N]>();
        let mut other = now.add(ROWS);
        for i in 0..N {
            read_rows(run, sector, i, now);
        }
        let mut state = [V::zero(); N];
        for (i, s) in state.iter_mut().enumerate() {
            *s = V::load(ivs.as_ptr().add(V::BLOCKS * i).cast()).xor3(V::key(whitening), (*now)[i]);
        }
        let (mut before, mut at) = (std::ptr::null_mut::<u8>(), run);
        let mut rest = ivs;
        while !rest.is_empty() {
            rest = &rest[chains..];
            for left in (0..sector / size).rev() {
                let next = at.wrapping_add(if left > 0 { size } else { size + (chains - 1) * sector });
                for row in 0..ROWS {
                    let (i, due) = (row * N / ROWS, (row * N).is_multiple_of(ROWS));
                    for_each!(I in [0 1 2 3 4 5 6 7] {
                        let key = V::key(&first[I]);
                        state.iter_mut().for_each(|s| *s = s.round::<false>(key));
                        if I == 1 && due && !before.is_null() {
                            write_rows(before, sector, i, other);
                        }
                        if I == 4 && due && (left > 0 || !rest.is_empty()) {
                            read_rows(next, sector, i, other);
                        }
                    });
                    for key in middle {
                        let key = V::key(key);
                        state.iter_mut().for_each(|s| *s = s.round::<false>(key));
                    }
                    let (key, last) = (V::key(whitening), V::key(last));
                    let blocks = &mut *now.add(row);
                    if row + 1 < ROWS || left > 0 {
                        let plain = if row + 1 < ROWS { now.add(row + 1) } else { other };
                        let both = key.xor(last);
                        for (i, s) in state.iter_mut().enumerate() {
                            *s = s.last::<false>(both.xor((*plain)[i]));
                            blocks[i] = s.xor3((*plain)[i], key);
                        }
                    } else {
                        for (i, s) in state.iter_mut().enumerate() {
                            blocks[i] = s.last::<false>(last);
                            if !rest.is_empty() {
                                *s = V::load(rest.as_ptr().add(V::BLOCKS * i).cast()).xor3(key, (*other)[i]);
                            }
                        }
                    }
                }
                (now, other) = (other, now);
                (before, at) = (at, next);
            }
        }
        for i in 0..N {
            write_rows(before, sector, i, other);
        }
    }
}

/// Reads a vector from each of the chains of vector `i`, into rows of one block of each chain.
///
/// # Safety
/// Chains are `sector` bytes apart, and a vector can be read from each; the processor has the vector's instructions.
#[inline(always)]
unsafe fn read_rows<V: Vector, const N: usize>(step: *const u8, sector: usize, i: usize, rows: *mut [V; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        let from = step.wrapping_add(i * V::BLOCKS * sector);
        for row in (0..ROWS).step_by(V::BLOCKS) {
            let to = rows.add(row).cast::<V>().add(i);
            V::turn(from.wrapping_add(16 * row), sector, to.cast(), size_of::<[V; N]>());
        }
    }
}

/// The inverse of [`read_rows`].
///
/// # Safety
/// Chains are `sector` bytes apart, and a vector can be written to each; the processor has the vector's instructions.
#[inline(always)]
unsafe fn write_rows<V: Vector, const N: usize>(step: *mut u8, sector: usize, i: usize, rows: *const [V; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        let to = step.wrapping_add(i * V::BLOCKS * sector);
        for row in (0..ROWS).step_by(V::BLOCKS) {
            let from = rows.add(row).cast::<V>().add(i);
            V::turn(from.cast(), size_of::<[V; N]>(), to.wrapping_add(16 * row), sector);
        }
    }
}

/// # Safety
/// A vector can be read from `before`, which is what its first block is chained to, and `N` vectors at `group` read and written; the
/// processor has the vector's instructions.
#[inline(always)]
unsafe fn cbc_group<V: Vector, const N: usize>(keys: &[[u8; 16]], before: *const u8, group: *mut u8) {
    // SAFETY: the caller's promise. All is read before anything is written.
    unsafe {
        let mut state = [V::zero(); N];
        for (i, s) in state.iter_mut().enumerate() {
            *s = V::load(group.add(16 * V::BLOCKS * i));
        }
        let first = V::load(before);
        rounds::<V, N, true>(keys, &mut state);
        state[0] = state[0].xor(first);
        for (i, s) in state.iter_mut().enumerate().skip(1) {
            *s = s.xor(V::load(group.add(16 * V::BLOCKS * i - 16)));
        }
        for (i, s) in state.iter().enumerate() {
            s.store(group.add(16 * V::BLOCKS * i));
        }
    }
}

/// # Safety
/// `run` is a sector of `sector` bytes for each tweak; the processor has the vector's instructions.
#[inline(always)]
unsafe fn xts<V: Vector, const DECRYPT: bool>(keys: &[[u8; 16]], tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
    let abreast = if sector.is_multiple_of(16 * STEP) { tweaks.len() / V::BLOCKS * V::BLOCKS } else { 0 };
    let (together, alone) = run.split_at_mut(abreast * sector);
    // SAFETY: as many sectors as vectors have blocks, each with its tweak; the caller vouches for the instructions.
    unsafe {
        if abreast > 0 {
            xts_abreast::<V, DECRYPT>(keys, &tweaks[..abreast], sector, together);
        }
        for (t, s) in tweaks[abreast..].iter().zip(alone.chunks_exact_mut(sector)) {
            xts_alone::<V, DECRYPT>(keys, t, s);
        }
    }
}

/// Processes as many sectors at a time as a vector has blocks, 8 blocks of each.
///
/// # Safety
/// `tweaks` has as many entries as `run` has sectors, a multiple of `V::BLOCKS` and not 0, and `sector` is a multiple of 128;
/// the processor has the vector's instructions.
#[inline(always)]
unsafe fn xts_abreast<V: Vector, const DECRYPT: bool>(
    keys: &[[u8; 16]],
    tweaks: &[[u8; 16]],
    sector: usize,
    run: &mut [u8],
) {
    let per_sector = STEP / V::BLOCKS;
    let mut run = run.as_mut_ptr();
    // SAFETY: the caller's promise. Vector `i` is within sector `i / per_sector`, at most 128 bytes past `at`.
    unsafe {
        let mut groups = tweaks.chunks_exact(V::BLOCKS).peekable();
        let mut room = Tweaks::<V>::room();
        let mut tweaks = Tweaks::at(&mut room);
        tweaks.begin(&FirstTweaks { of: groups.peek().expect("some sectors"), per_sector });
        while let Some(group) = groups.next() {
            // After the last group, any tweaks will do.
            let after = FirstTweaks { of: groups.peek().unwrap_or(&group), per_sector };
            for at in (0..sector).step_by(16 * STEP) {
                let place = |i: usize| run.add(i / per_sector * sector + at + i % per_sector * 16 * V::BLOCKS);
                match at + 16 * STEP < sector {
                    true => xts_group::<V, DECRYPT>(keys, &mut tweaks, place, &EightBlocksOn),
                    false => xts_group::<V, DECRYPT>(keys, &mut tweaks, place, &after),
                }
            }
            run = run.add(V::BLOCKS * sector);
        }
    }
}

/// Works on one sector of any size, 8 vectors at a time.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn xts_alone<V: Vector, const DECRYPT: bool>(keys: &[[u8; 16]], tweak: &[u8; 16], sector: &mut [u8]) {
    // SAFETY: groups are as long as the 8 vectors they are read into, at most 512 bytes; the caller vouches for the
    // instructions.
    unsafe {
        let mut room = Tweaks::<V>::room();
        let mut tweaks = Tweaks::at(&mut room);
        tweaks.begin(&FirstTweaks { of: std::slice::from_ref(tweak), per_sector: IN_FLIGHT });
        let mut groups = sector.chunks_exact_mut(16 * V::BLOCKS * IN_FLIGHT);
        for group in &mut groups {
            let start = group.as_mut_ptr();
            let place = |i: usize| start.add(16 * V::BLOCKS * i);
            xts_group::<V, DECRYPT>(keys, &mut tweaks, place, &EightVectorsOn);
        }
        let rest = groups.into_remainder();
        if !rest.is_empty() {
            let mut padded = [0u8; 512];
            padded[..rest.len()].copy_from_slice(rest);
            let start = padded.as_mut_ptr();
            let place = |i: usize| start.add(16 * V::BLOCKS * i);
            xts_group::<V, DECRYPT>(keys, &mut tweaks, place, &EightVectorsOn);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// The tweaks of 8 vectors, and of the next 8.
struct Tweaks<V> {
    now: *mut V,
    next: *mut V,
}

impl<V: Vector> Tweaks<V> {
    /// # Safety
    /// The processor has the vector's instructions.
    #[inline(always)]
    unsafe fn room() -> [[V; IN_FLIGHT]; 2] {
        // SAFETY: the caller's promise.
        [[unsafe { V::zero() }; IN_FLIGHT]; 2]
    }

    /// Hides from the compiler where the pointers point, so that it leaves the tweaks in memory.
    #[inline(always)]
    fn at(room: &mut [[V; IN_FLIGHT]; 2]) -> Self {
        let [now, next] = room.each_mut().map(|eight| black_box(eight.as_mut_ptr()));
        Self { now, next }
    }

    /// # Safety
    /// The room is still there, and the processor has the vector's instructions.
    #[inline(always)]
    unsafe fn begin(&mut self, first: &impl Beside<V>) {
        // SAFETY: the caller's promise.
        unsafe {
            for_each!(I in [0 1 2 3 4 5 6 7] { self.now.add(I).write(first.make::<I>(self.now)); });
        }
    }
}

/// Makes the tweaks of the next 8 vectors between rounds. This is a trait, because each vector is compiled with its number as a
/// constant, and a closure that is not inlined would be compiled without the vector's instructions.
trait Beside<V> {
    /// The next tweaks of vector `I`, from the current tweaks of all 8 vectors, `now`.
    ///
    /// # Safety
    /// `now` points to 8 vectors, and the processor has their instructions.
    unsafe fn make<const I: usize>(&self, now: *const V) -> V;
}

/// The tweaks of the next blocks of the same sectors, several side by side.
struct EightBlocksOn;
/// The tweaks of the next blocks of one sector.
struct EightVectorsOn;
/// The tweaks of the first vectors of each sector, 8 vectors in all.
struct FirstTweaks<'a> {
    of: &'a [[u8; 16]],
    per_sector: usize,
}

impl<V: Vector> Beside<V> for EightBlocksOn {
    #[inline(always)]
    unsafe fn make<const I: usize>(&self, now: *const V) -> V {
        // SAFETY: the caller's promise.
        unsafe { now.add(I).read().eight_blocks_on() }
    }
}

impl<V: Vector> Beside<V> for EightVectorsOn {
    #[inline(always)]
    unsafe fn make<const I: usize>(&self, now: *const V) -> V {
        // SAFETY: the caller's promise.
        unsafe { now.add(I).read().eight_vectors_on() }
    }
}

impl<V: Vector> Beside<V> for FirstTweaks<'_> {
    #[inline(always)]
    unsafe fn make<const I: usize>(&self, _: *const V) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::tweaks(&self.of[I / self.per_sector], I % self.per_sector) }
    }
}

/// Processes 8 vectors, and moves on to the tweaks of the next 8.
///
/// # Safety
/// A vector can be read and written at each of the 8 places; the processor has the vector's instructions.
#[inline(always)]
unsafe fn xts_group<V: Vector, const DECRYPT: bool>(
    keys: &[[u8; 16]],
    tweaks: &mut Tweaks<V>,
    place: impl Fn(usize) -> *mut u8,
    after: &impl Beside<V>,
) {
    let [whitening, middle @ .., last] = keys else { unreachable!("at least 11 round keys") };
    let (first, middle) = middle.split_first_chunk::<IN_FLIGHT>().expect("at least 9 rounds");
    // SAFETY: the caller's promise.
    unsafe {
        let mut state = [V::zero(); IN_FLIGHT];
        let key = V::key(whitening);
        for (i, s) in state.iter_mut().enumerate() {
            *s = V::load(place(i)).xor(key).xor(tweaks.now.add(i).read());
        }
        for_each!(I in [0 1 2 3 4 5 6 7] {
            let key = V::key(&first[I]);
            state.iter_mut().for_each(|s| *s = s.round::<DECRYPT>(key));
            tweaks.next.add(I).write(after.make::<I>(tweaks.now));
            // This emits no instruction, but the compiler moves no memory access across it.
            asm!("", options(nostack, preserves_flags));
        });
        for key in middle {
            let key = V::key(key);
            state.iter_mut().for_each(|s| *s = s.round::<DECRYPT>(key));
        }
        let key = V::key(last);
        for (i, s) in state.iter().enumerate() {
            s.last::<DECRYPT>(key).xor(tweaks.now.add(i).read()).store(place(i));
        }
        std::mem::swap(&mut tweaks.now, &mut tweaks.next);
    }
}

#[inline(always)]
unsafe fn rounds<V: Vector, const N: usize, const DECRYPT: bool>(keys: &[[u8; 16]], state: &mut [V; N]) {
    let [whitening, middle @ .., last] = keys else { unreachable!("at least 11 round keys") };
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let key = V::key(whitening);
        state.iter_mut().for_each(|s| *s = s.xor(key));
        for key in middle {
            let key = V::key(key);
            state.iter_mut().for_each(|s| *s = s.round::<DECRYPT>(key));
        }
        let key = V::key(last);
        state.iter_mut().for_each(|s| *s = s.last::<DECRYPT>(key));
    }
}

// In the three implementations, loads and stores are unaligned and of the vector's size, and everything else works on
// registers. SAFETY of every block: the trait's promise about instructions, and for memory the caller's about sizes.

impl Vector for __m128i {
    const BLOCKS: usize = 1;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { _mm_setzero_si128() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe { _mm_loadu_si128(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn key(key: &[u8; 16]) -> Self {
        // SAFETY: see above.
        unsafe { _mm_loadu_si128(key.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm_xor_si128(self, other) }
    }
    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: see above.
        unsafe { self.xor(second).xor(third) }
    }
    #[inline(always)]
    unsafe fn round<const DECRYPT: bool>(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { if DECRYPT { _mm_aesdec_si128(self, key) } else { _mm_aesenc_si128(self, key) } }
    }
    #[inline(always)]
    unsafe fn last<const DECRYPT: bool>(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { if DECRYPT { _mm_aesdeclast_si128(self, key) } else { _mm_aesenclast_si128(self, key) } }
    }
    #[inline(always)]
    unsafe fn tweaks(first: &[u8; 16], number: usize) -> Self {
        // SAFETY: see above.
        unsafe {
            let first = Self::load(first.as_ptr());
            if number == 0 {
                return first;
            }
            let (left, right) = (_mm_cvtsi32_si128(number as i32), _mm_cvtsi32_si128(64 - number as i32));
            let carry = _mm_srl_epi64(first, right);
            let carried = _mm_clmulepi64_si128::<0x01>(carry, _mm_set1_epi64x(0x87));
            _mm_sll_epi64(first, left).xor(_mm_slli_si128::<8>(carry)).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn eight_blocks_on(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let carry = _mm_srli_si128::<15>(self);
            let carried = _mm_clmulepi64_si128::<0>(carry, _mm_set1_epi64x(0x87));
            _mm_slli_si128::<1>(self).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn eight_vectors_on(self) -> Self {
        // SAFETY: see above.
        unsafe { self.eight_blocks_on() }
    }
    #[inline(always)]
    unsafe fn turn(from: *const u8, _: usize, to: *mut u8, _: usize) {
        // SAFETY: see above.
        unsafe { Self::load(from).store(to) }
    }
}

impl Vector for __m256i {
    const BLOCKS: usize = 2;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn key(key: &[u8; 16]) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(key.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: see above.
        unsafe { self.xor(second).xor(third) }
    }
    #[inline(always)]
    unsafe fn round<const DECRYPT: bool>(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { if DECRYPT { _mm256_aesdec_epi128(self, key) } else { _mm256_aesenc_epi128(self, key) } }
    }
    #[inline(always)]
    unsafe fn last<const DECRYPT: bool>(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { if DECRYPT { _mm256_aesdeclast_epi128(self, key) } else { _mm256_aesenclast_epi128(self, key) } }
    }
    #[inline(always)]
    unsafe fn tweaks(first: &[u8; 16], number: usize) -> Self {
        // SAFETY: see above.
        unsafe {
            let first = Self::key(first);
            let n = 2 * number as i64;
            let power = _mm256_set_epi64x(n + 1, n + 1, n, n);
            // A shift by 64 gives zero.
            let carry = _mm256_srlv_epi64(first, _mm256_sub_epi64(_mm256_set1_epi64x(64), power));
            let carried = _mm256_clmulepi64_epi128::<0x01>(carry, _mm256_set1_epi64x(0x87));
            _mm256_sllv_epi64(first, power).xor(_mm256_slli_si256::<8>(carry)).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn eight_blocks_on(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let carry = _mm256_srli_si256::<15>(self);
            let carried = _mm256_clmulepi64_epi128::<0>(carry, _mm256_set1_epi64x(0x87));
            _mm256_slli_si256::<1>(self).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn eight_vectors_on(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let carry = _mm256_srli_si256::<14>(self);
            let carried = _mm256_clmulepi64_epi128::<0>(carry, _mm256_set1_epi64x(0x87));
            _mm256_slli_si256::<2>(self).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn turn(from: *const u8, apart: usize, to: *mut u8, to_apart: usize) {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (Self::load(from), Self::load(from.wrapping_add(apart)));
            _mm256_permute2x128_si256::<0x20>(a, b).store(to);
            _mm256_permute2x128_si256::<0x31>(a, b).store(to.wrapping_add(to_apart));
        }
    }
}

impl Vector for __m512i {
    const BLOCKS: usize = 4;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn key(key: &[u8; 16]) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(key.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_ternarylogic_epi64::<0x96>(self, second, third) }
    }
    #[inline(always)]
    unsafe fn round<const DECRYPT: bool>(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { if DECRYPT { _mm512_aesdec_epi128(self, key) } else { _mm512_aesenc_epi128(self, key) } }
    }
    #[inline(always)]
    unsafe fn last<const DECRYPT: bool>(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { if DECRYPT { _mm512_aesdeclast_epi128(self, key) } else { _mm512_aesenclast_epi128(self, key) } }
    }
    #[inline(always)]
    unsafe fn tweaks(first: &[u8; 16], number: usize) -> Self {
        // SAFETY: see above.
        unsafe {
            let first = Self::key(first);
            let n = 4 * number as i64;
            let power = _mm512_set_epi64(n + 3, n + 3, n + 2, n + 2, n + 1, n + 1, n, n);
            // A shift by 64 gives zero.
            let carry = _mm512_srlv_epi64(first, _mm512_sub_epi64(_mm512_set1_epi64(64), power));
            let carried = _mm512_clmulepi64_epi128::<0x01>(carry, _mm512_set1_epi64(0x87));
            _mm512_sllv_epi64(first, power).xor(_mm512_bslli_epi128::<8>(carry)).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn eight_blocks_on(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let carry = _mm512_bsrli_epi128::<15>(self);
            let carried = _mm512_clmulepi64_epi128::<0>(carry, _mm512_set1_epi64(0x87));
            _mm512_bslli_epi128::<1>(self).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn eight_vectors_on(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let carry = _mm512_bsrli_epi128::<12>(self);
            let carried = _mm512_clmulepi64_epi128::<0>(carry, _mm512_set1_epi64(0x87));
            _mm512_bslli_epi128::<4>(self).xor(carried)
        }
    }
    #[inline(always)]
    unsafe fn turn(from: *const u8, apart: usize, to: *mut u8, to_apart: usize) {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (Self::load(from), Self::load(from.wrapping_add(apart)));
            let (c, d) = (Self::load(from.wrapping_add(2 * apart)), Self::load(from.wrapping_add(3 * apart)));
            let (ab02, cd02) = (_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0x88>(c, d));
            let (ab13, cd13) = (_mm512_shuffle_i64x2::<0xdd>(a, b), _mm512_shuffle_i64x2::<0xdd>(c, d));
            _mm512_shuffle_i64x2::<0x88>(ab02, cd02).store(to);
            _mm512_shuffle_i64x2::<0x88>(ab13, cd13).store(to.wrapping_add(to_apart));
            _mm512_shuffle_i64x2::<0xdd>(ab02, cd02).store(to.wrapping_add(2 * to_apart));
            _mm512_shuffle_i64x2::<0xdd>(ab13, cd13).store(to.wrapping_add(3 * to_apart));
        }
    }
}
