//! BitLocker's diffuser "Elephant" around a mode (N. Ferguson, "AES-CBC + Elephant diffuser", 2006;
//! `crypt_iv_elephant`): the plaintext is first xored with a key for its sector and then mixed by two diffusers, A and
//! B.
#![allow(unsafe_code, reason = "vector intrinsics")]

mod diffuser;
mod kernels;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::iv::Numbers;
use super::sectors::{BATCH, Keyed};
use crate::chain::xor;
use crate::ciphers::{Acceleration, BlockCipher, aes};
use crate::modes::{SectorCipher, assert_whole, wipe};
use crate::secret::wipe_after_sectors;

/// A mode with the diffuser in front.
pub(super) struct Elephant {
    mode: Keyed,
    /// AES under the second half of the key.
    sector_keys: Box<dyn BlockCipher>,
    numbers: Numbers,
}

impl Elephant {
    /// `key` is an AES key.
    pub fn new(mode: Keyed, key: &[u8], numbers: Numbers, with: Acceleration) -> Self {
        Self { mode, sector_keys: aes::AES.with_key(key, with), numbers }
    }

    /// Calls `each` with parts of the run that stay in the cache, and their first sectors.
    fn batches(&self, first: u64, run: &mut [u8], each: impl Fn(u64, &mut [u8])) {
        let size = self.sector_size();
        assert_whole(run, size);
        for (i, batch) in (0..).step_by(BATCH).zip(run.chunks_mut(BATCH * size)) {
            each(first.wrapping_add(i), batch);
        }
        // The ciphers left secrets deeper in the stack than the caller wipes.
        wipe_after_sectors();
    }

    /// Xors each 32 bytes of a sector with the sector's key.
    fn xor_keys(&self, first: u64, batch: &mut [u8]) {
        let size = self.sector_size();
        let mut keys = [[[0; 16]; 2]; BATCH];
        for (i, [low, high]) in (0..).zip(&mut keys[..batch.len() / size]) {
            let offset = self.numbers.iv(first.wrapping_add(i)).wrapping_mul(size as u64);
            low[..8].copy_from_slice(&offset.to_le_bytes());
            *high = *low;
            high[15] = 0x80;
        }
        self.sector_keys.encrypt_blocks(keys[..batch.len() / size].as_flattened_mut().as_flattened_mut());
        for (sector, key) in batch.chunks_exact_mut(size).zip(&keys) {
            sector.as_chunks_mut::<32>().0.iter_mut().for_each(|part| xor(part, key.as_flattened()));
        }
        wipe(&mut keys, [[0; 16]; 2]);
    }
}

impl SectorCipher for Elephant {
    fn sector_size(&self) -> usize {
        self.mode.sector_size()
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |first, batch| {
            self.xor_keys(first, batch);
            kernels::diffuse(false, self.sector_size(), batch);
            self.mode.encrypt(first, batch);
        });
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |first, batch| {
            self.mode.decrypt(first, batch);
            kernels::diffuse(true, self.sector_size(), batch);
            self.xor_keys(first, batch);
        });
    }
}
