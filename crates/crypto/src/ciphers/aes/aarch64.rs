//! AES with the AES instructions of ARMv8, 8 blocks in flight.
//!
//! AESE xors a round key, then does SubBytes and ShiftRows; AESMC does MixColumns. So a round here begins with the key that ends
//! the previous round in FIPS 197, and the last key is xored separately. AESD and AESIMC do the same with the keys of the
//! equivalent inverse cipher, and both directions share one function.
//!
//! XTS keeps the tweaks of 8 consecutive blocks in 8 registers. The first 8 tweaks are the sector's tweak times 1, x, x^2 … x^7,
//! each by its own shift. Then each is multiplied by x^8, a shift by a byte. That makes 8 short chains; doubling would make one
//! long chain, and the AES units would wait for it. One byte carries out of the 128 bits. PMULL on bytes, which every AArch64 has,
//! multiplies it by the polynomial; PMULL on words of 64 bits is an extension and not needed.
//!
//! This code was tested only in an emulator, and never timed. The optimised program has this many instructions per block, counted
//! in the loops over 8 blocks, with keys of 256 (128) bits: ECB 34.6 (25.1), XTS 40.9 (31.4), decryption of CBC 38.0 (28.5),
//! encryption of 8 chains 39.9 (30.4). Of these 27 (19) are AES instructions. Each AESMC or AESIMC stands right after its AESE or
//! AESD, on the same register: many processors run such a pair as one instruction. The loops access only round keys and data in
//! memory.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use super::schedule::Schedule;
use crate::chain::assert_chains;
use crate::ciphers::{BlockCipher, Kernel, assert_blocks, assert_sectors};

/// The AES instructions of ARMv8.
pub(super) const ARMV8: Kernel = Kernel {
    name: "armv8",
    // Bytes are read as wider words and vice versa, which assumes a little-endian processor.
    usable: || cfg!(target_endian = "little") && is_aarch64_feature_detected!("aes"),
    aes_instructions: true,
    constant_time: true,
    expand: |key| Box::new(Aes(Schedule::new(key))),
};

type Block = [u8; 16];

/// Only [`ARMV8`] makes one, and only on a processor with the instructions.
struct Aes(Schedule);

impl Aes {
    fn encrypt_keys(&self) -> &[Block] {
        &self.0.keys.encrypt[..=self.0.rounds]
    }
    fn decrypt_keys(&self) -> &[Block] {
        &self.0.keys.decrypt[..=self.0.rounds]
    }
}

impl BlockCipher for Aes {
    fn block_size(&self) -> usize {
        16
    }
    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        // SAFETY: `Kernel::with_key` asks `usable`.
        unsafe { ecb::<false>(self.encrypt_keys(), blocks) }
    }
    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        // SAFETY: as above.
        unsafe { ecb::<true>(self.decrypt_keys(), blocks) }
    }
    fn xts_encrypt(&self, tweaks: &[Block], sector: usize, run: &mut [u8]) {
        assert_sectors(16, tweaks, sector, run);
        // SAFETY: as above.
        unsafe { xts::<false>(self.encrypt_keys(), tweaks, sector, run) }
    }
    fn xts_decrypt(&self, tweaks: &[Block], sector: usize, run: &mut [u8]) {
        assert_sectors(16, tweaks, sector, run);
        // SAFETY: as above.
        unsafe { xts::<true>(self.decrypt_keys(), tweaks, sector, run) }
    }
    fn xts_in_registers(&self) -> bool {
        true
    }
    fn cbc_decrypt(&self, iv: &Block, chain: &mut [u8]) {
        assert_blocks(16, chain);
        // SAFETY: as above.
        unsafe { cbc_decrypt(self.decrypt_keys(), iv, chain) }
    }
    fn cbc_encrypt(&self, iv: &Block, chain: &mut [u8]) {
        assert_blocks(16, chain);
        // SAFETY: as above.
        unsafe { cbc_lanes(self.encrypt_keys(), &[*iv], chain) }
    }
    fn cbc_decrypt_abreast(&self, ivs: &[Block], sector: usize, run: &mut [u8]) {
        assert_chains(16, ivs, sector, run);
        let chains = ivs.iter().zip(run.chunks_mut(sector.max(1)));
        // SAFETY: as above.
        chains.for_each(|(iv, chain)| unsafe { cbc_decrypt(self.decrypt_keys(), iv, chain) });
    }
    fn cbc_encrypt_abreast(&self, ivs: &[Block], sector: usize, run: &mut [u8]) {
        assert_chains(16, ivs, sector, run);
        // SAFETY: as above.
        unsafe { cbc_encrypt_abreast(self.encrypt_keys(), ivs, sector, run) }
    }
}

/// Blocks in flight: with fewer, fast processors would wait for one round before they begin the next.
const IN_FLIGHT: usize = 8;

#[target_feature(enable = "aes,neon")]
fn ecb<const DECRYPT: bool>(keys: &[Block], blocks: &mut [u8]) {
    let rest = ecb_groups::<IN_FLIGHT, DECRYPT>(keys, blocks.as_chunks_mut().0);
    let rest = ecb_groups::<{ IN_FLIGHT / 2 }, DECRYPT>(keys, rest);
    ecb_groups::<1, DECRYPT>(keys, rest);
}

/// Encrypts or decrypts as many groups of `N` blocks as there are. Returns the rest.
#[inline]
#[target_feature(enable = "aes,neon")]
fn ecb_groups<'a, const N: usize, const DECRYPT: bool>(keys: &[Block], blocks: &'a mut [Block]) -> &'a mut [Block] {
    let (groups, rest) = blocks.as_chunks_mut::<N>();
    for group in groups {
        let state = crypt::<N, DECRYPT>(keys, load(group));
        store(group, state);
    }
    rest
}

/// One sector after the other; a rest of less than 8 blocks is padded.
#[target_feature(enable = "aes,neon")]
fn xts<const DECRYPT: bool>(keys: &[Block], tweaks: &[Block], sector: usize, run: &mut [u8]) {
    for (tweak, sector) in tweaks.iter().zip(run.chunks_exact_mut(sector)) {
        let mut masks = first_masks(tweak);
        let (groups, rest) = sector.as_chunks_mut().0.as_chunks_mut::<IN_FLIGHT>();
        for group in groups {
            xts_group::<DECRYPT>(keys, &masks, group);
            for mask in &mut masks {
                *mask = times_x8(*mask);
            }
        }
        if !rest.is_empty() {
            let mut padded = [[0; 16]; IN_FLIGHT];
            padded[..rest.len()].copy_from_slice(rest);
            xts_group::<DECRYPT>(keys, &masks, &mut padded);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

#[inline]
#[target_feature(enable = "aes,neon")]
fn xts_group<const DECRYPT: bool>(keys: &[Block], masks: &[uint8x16_t; IN_FLIGHT], group: &mut [Block; IN_FLIGHT]) {
    let state = crypt::<IN_FLIGHT, DECRYPT>(keys, xor(load(group), masks));
    store(group, xor(state, masks));
}

/// The tweak times 1, x … x^7 in GF(2^128).
#[inline]
#[target_feature(enable = "neon")]
fn first_masks(tweak: &Block) -> [uint8x16_t; IN_FLIGHT] {
    let [tweak] = load(&[*tweak]);
    let (zero, halves) = (vdupq_n_u8(0), vreinterpretq_u64_u8(tweak));
    let mut masks = [tweak; IN_FLIGHT];
    for (power, mask) in masks.iter_mut().enumerate().skip(1) {
        // A shift to the left, and the bits that fall out of each half: a negative count shifts to the right.
        let power = power as i64;
        let shifted = vreinterpretq_u8_u64(vshlq_u64(halves, vdupq_n_s64(power)));
        let carries = vreinterpretq_u8_u64(vshlq_u64(halves, vdupq_n_s64(power - 64)));
        let between = vextq_u8::<8>(zero, carries);
        *mask = veorq_u8(veorq_u8(shifted, between), reduced(vextq_u8::<8>(carries, zero)));
    }
    masks
}

/// Times x^8 in GF(2^128).
#[inline]
#[target_feature(enable = "neon")]
fn times_x8(mask: uint8x16_t) -> uint8x16_t {
    let zero = vdupq_n_u8(0);
    veorq_u8(vextq_u8::<15>(zero, mask), reduced(vextq_u8::<15>(mask, zero)))
}

/// x^128 times the lowest byte modulo x^128 + x^7 + x^2 + x + 1; the others are zero.
#[inline]
#[target_feature(enable = "neon")]
fn reduced(carry: uint8x16_t) -> uint8x16_t {
    let product = vmull_p8(vreinterpret_p8_u8(vget_low_u8(carry)), vdup_n_p8(0x87));
    vreinterpretq_u8_p16(product)
}

#[target_feature(enable = "aes,neon")]
fn cbc_decrypt(keys: &[Block], iv: &Block, chain: &mut [u8]) {
    let [mut before] = load(&[*iv]);
    let rest = cbc_groups::<IN_FLIGHT>(keys, &mut before, chain.as_chunks_mut().0);
    let rest = cbc_groups::<{ IN_FLIGHT / 2 }>(keys, &mut before, rest);
    cbc_groups::<1>(keys, &mut before, rest);
}

/// Decrypts as many groups of `N` blocks as there are, and returns the rest. `before` is the ciphertext before the groups, then
/// that before the rest.
#[inline]
#[target_feature(enable = "aes,neon")]
fn cbc_groups<'a, const N: usize>(keys: &[Block], before: &mut uint8x16_t, blocks: &'a mut [Block]) -> &'a mut [Block] {
    let (groups, rest) = blocks.as_chunks_mut::<N>();
    for group in groups {
        let stored = load(group);
        let chained = std::array::from_fn(|i| if i == 0 { *before } else { stored[i - 1] });
        *before = stored[N - 1];
        store(group, xor(crypt::<N, true>(keys, stored), &chained));
    }
    rest
}

/// Encrypts many chains, `sector` bytes for each IV: 8 at a time, then the rest at once.
#[target_feature(enable = "aes,neon")]
fn cbc_encrypt_abreast(keys: &[Block], mut ivs: &[Block], sector: usize, mut run: &mut [u8]) {
    while let Some((some, rest)) = ivs.split_first_chunk::<IN_FLIGHT>() {
        let (now, later) = run.split_at_mut(IN_FLIGHT * sector);
        cbc_lanes(keys, some, now);
        (ivs, run) = (rest, later);
    }
    match *ivs {
        [a, b, c, d, e, f, g] => cbc_lanes(keys, &[a, b, c, d, e, f, g], run),
        [a, b, c, d, e, f] => cbc_lanes(keys, &[a, b, c, d, e, f], run),
        [a, b, c, d, e] => cbc_lanes(keys, &[a, b, c, d, e], run),
        [a, b, c, d] => cbc_lanes(keys, &[a, b, c, d], run),
        [a, b, c] => cbc_lanes(keys, &[a, b, c], run),
        [a, b] => cbc_lanes(keys, &[a, b], run),
        [a] => cbc_lanes(keys, &[a], run),
        _ => {}
    }
}

/// Encrypts the `N` chains that make up `run`, one block of each at a time.
#[inline]
#[target_feature(enable = "aes,neon")]
fn cbc_lanes<const N: usize>(keys: &[Block], ivs: &[Block; N], run: &mut [u8]) {
    let blocks = run.as_chunks_mut::<16>().0;
    let each = blocks.len() / N;
    let mut last = load(ivs);
    for at in 0..each {
        let mut row = [[0; 16]; N];
        for (i, block) in row.iter_mut().enumerate() {
            *block = blocks[i * each + at];
        }
        last = crypt::<N, false>(keys, xor(load(&row), &last));
        store(&mut row, last);
        for (i, block) in row.into_iter().enumerate() {
            blocks[i * each + at] = block;
        }
    }
}

/// All rounds, with the keys in order of use.
#[inline]
#[target_feature(enable = "aes,neon")]
fn crypt<const N: usize, const DECRYPT: bool>(keys: &[Block], mut state: [uint8x16_t; N]) -> [uint8x16_t; N] {
    let [middle @ .., last, whitening] = keys else { unreachable!("at least 11 round keys") };
    for key in middle {
        let [key] = load(&[*key]);
        for s in &mut state {
            *s = match DECRYPT {
                false => vaesmcq_u8(vaeseq_u8(*s, key)),
                true => vaesimcq_u8(vaesdq_u8(*s, key)),
            };
        }
    }
    let [last, whitening] = load(&[*last, *whitening]);
    for s in &mut state {
        let round = if DECRYPT { vaesdq_u8(*s, last) } else { vaeseq_u8(*s, last) };
        *s = veorq_u8(round, whitening);
    }
    state
}

#[inline]
#[target_feature(enable = "neon")]
fn xor<const N: usize>(mut state: [uint8x16_t; N], masks: &[uint8x16_t; N]) -> [uint8x16_t; N] {
    for (s, mask) in state.iter_mut().zip(masks) {
        *s = veorq_u8(*s, *mask);
    }
    state
}

#[inline]
#[target_feature(enable = "neon")]
fn load<const N: usize>(blocks: &[Block; N]) -> [uint8x16_t; N] {
    let mut state = [vdupq_n_u8(0); N];
    for (s, block) in state.iter_mut().zip(blocks) {
        // SAFETY: a block is as long as a register, and any alignment will do.
        *s = unsafe { vld1q_u8(block.as_ptr()) };
    }
    state
}

#[inline]
#[target_feature(enable = "neon")]
fn store<const N: usize>(blocks: &mut [Block; N], state: [uint8x16_t; N]) {
    for (block, s) in blocks.iter_mut().zip(state) {
        // SAFETY: as above.
        unsafe { vst1q_u8(block.as_mut_ptr(), s) };
    }
}
