//! loop-AES with several keys: CBC whose IV depends on the contents (dm-crypt's `lmk`, `crypt_iv_lmk_one`).
//!
//! Sector n is encrypted under key n modulo the number of keys. Its initialisation vector is the state of MD5, without
//! the final padding, after a seed of 64 bytes (16 from the extra key of loop-AES 3, then zeros; none in loop-AES 2),
//! the sector's plaintext from byte 16 on, its number in 56 bits (bit 63 set), and the number 4024 as 8 bytes. To
//! decrypt, the sector is first decrypted with an IV of zeros: this gives all blocks but the first, and from them the
//! IV.

use zeroize::Zeroize;

use super::iv::Numbers;
use crate::chain::LANES;
use crate::ciphers::BlockCipher;
use crate::modes::{self, SectorCipher, md5};
use crate::secret::{LockedBox, wipe_after_sectors};

/// Size of a sector, in bytes.
const SECTOR: usize = 512;

/// Sectors whose IVs are computed in parallel.
const BATCH: usize = md5::LANES;

/// CBC with IVs from the contents.
pub(super) struct Lmk {
    ciphers: Vec<Box<dyn BlockCipher>>,
    /// The state of MD5 after the seed.
    seed: LockedBox<[u32; 4]>,
    numbers: Numbers,
}

impl Lmk {
    /// The number of `ciphers` is a power of two; `seed` is that of loop-AES 3.
    pub fn new(ciphers: Vec<Box<dyn BlockCipher>>, seed: Option<&[u8; 16]>, numbers: Numbers) -> Self {
        let seed = LockedBox::build(|state: &mut [u32; 4]| {
            *state = md5::START;
            if let Some(seed) = seed {
                let mut block = [0; 64];
                block[..16].copy_from_slice(seed);
                md5::compress(state, &block);
                block.zeroize();
            }
        });
        Self { ciphers, seed, numbers }
    }

    fn cipher(&self, sector: u64) -> &dyn BlockCipher {
        &*self.ciphers[self.numbers.unit(sector) as usize & (self.ciphers.len() - 1)]
    }

    /// The IVs of consecutive plaintext sectors, whose first blocks do not matter.
    fn ivs(&self, first: u64, batch: &[u8], ivs: &mut [[u8; 16]]) {
        let mut tails = [[0; 16]; BATCH];
        for (i, tail) in (0..).zip(&mut tails) {
            let number = self.numbers.iv(first.wrapping_add(i));
            tail[..8].copy_from_slice(&(number & 0x00ff_ffff_ffff_ffff | 1 << 63).to_le_bytes());
            tail[8..].copy_from_slice(&4024u64.to_le_bytes());
        }
        md5::sectors(&self.seed, batch, &tails[..ivs.len()], ivs);
    }

    fn batches(&self, first: u64, run: &mut [u8], each: impl Fn(u64, &mut [u8], &mut [[u8; 16]])) {
        modes::assert_whole(run, SECTOR);
        let mut first = first;
        for batch in run.chunks_mut(BATCH * SECTOR) {
            let mut ivs = [[0; 16]; BATCH];
            each(first, batch, &mut ivs[..batch.len() / SECTOR]);
            first = first.wrapping_add(BATCH as u64);
        }
    }
}

impl SectorCipher for Lmk {
    fn sector_size(&self) -> usize {
        SECTOR
    }

    /// Sectors with the same key are as many sectors apart as there are keys. They are encrypted side by side.
    fn encrypt(&self, first: u64, run: &mut [u8]) {
        modes::assert_whole(run, SECTOR);
        let (keys, window) = (self.ciphers.len(), self.wide_run());
        let mut all = vec![[0; 16]; run.len().min(window) / SECTOR];
        for (n, window) in run.chunks_mut(window).enumerate() {
            let first = first.wrapping_add((n * keys * LANES) as u64);
            let all = &mut all[..window.len() / SECTOR];
            let batches = window.chunks(BATCH * SECTOR).zip(all.chunks_mut(BATCH));
            for (i, (batch, ivs)) in batches.enumerate() {
                self.ivs(first.wrapping_add((i * BATCH) as u64), batch, ivs);
            }
            let sectors = window.as_chunks_mut::<SECTOR>().0;
            for key in 0..keys.min(sectors.len()) {
                let (mut ivs, mut lanes) = ([[0; 16]; LANES], [[0; SECTOR]; LANES]);
                let mut count = 0;
                for at in (key..sectors.len()).step_by(keys) {
                    (ivs[count], lanes[count]) = (all[at], sectors[at]);
                    count += 1;
                }
                let cipher = self.cipher(first.wrapping_add(key as u64));
                cipher.cbc_encrypt_abreast(&ivs[..count], SECTOR, lanes[..count].as_flattened_mut());
                sectors[key..].iter_mut().step_by(keys).zip(&lanes).for_each(|(sector, lane)| *sector = *lane);
            }
        }
        // The lanes are so large that the cipher left secrets deeper in the stack than the caller wipes.
        wipe_after_sectors();
    }

    fn wide_run(&self) -> usize {
        self.ciphers.len() * LANES * SECTOR
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |first, batch, ivs| {
            for (i, sector) in (0..).zip(batch.chunks_exact_mut(SECTOR)) {
                self.cipher(first.wrapping_add(i)).cbc_decrypt(&[0; 16], sector);
            }
            self.ivs(first, batch, ivs);
            for ((i, sector), iv) in (0..).zip(batch.chunks_exact_mut(SECTOR)).zip(&*ivs) {
                let block = self.cipher(first.wrapping_add(i)).block_size();
                sector[..block].iter_mut().zip(iv).for_each(|(byte, iv)| *byte ^= iv);
            }
        });
        wipe_after_sectors();
    }
}
