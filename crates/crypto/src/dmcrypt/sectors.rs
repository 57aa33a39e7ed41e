//! Sectors under one or several keys, with IVs made in batches.

use super::iv::{Generator, Numbers};
use crate::ciphers::BlockCipher;
use crate::modes::{self, IvMode, SectorCipher, TrueCryptCbc};

/// Sectors per batch: as many as CBC encrypts in parallel.
pub(super) const BATCH: usize = 32;

/// The same for long runs: bit-sliced ciphers encrypt more chains in parallel.
const LARGE_BATCH: usize = 256;

/// A mode under one key.
pub(super) struct Key {
    pub mode: Box<dyn IvMode>,
    /// ESSIV's cipher, under a hash of the key.
    pub salt: Option<Box<dyn BlockCipher>>,
}

/// Sectors whose IVs do not depend on their contents.
pub(super) struct Keyed {
    keys: Vec<Key>,
    generator: Generator,
    numbers: Numbers,
}

impl Keyed {
    /// The number of `keys` is a power of two.
    pub fn new(keys: Vec<Key>, generator: Generator, numbers: Numbers) -> Self {
        debug_assert!(keys.len().is_power_of_two());
        Self { keys, generator, numbers }
    }

    /// Calls `each` with a key and the IVs and bytes of the sectors under it.
    fn batches(&self, first: u64, run: &mut [u8], each: impl Fn(&Key, &[[u8; 16]], &mut [u8])) {
        modes::assert_whole(run, self.sector_size());
        match run.len() > BATCH * self.sector_size() {
            true => self.batches_of::<LARGE_BATCH>(first, run, each),
            false => self.batches_of::<BATCH>(first, run, each),
        }
    }

    /// The same, at most `MOST` sectors at a time.
    fn batches_of<const MOST: usize>(&self, first: u64, run: &mut [u8], each: impl Fn(&Key, &[[u8; 16]], &mut [u8])) {
        let size = self.sector_size();
        let mut ivs = [[0; 16]; MOST];
        let mut sector = first;
        let mut rest = run;
        while !rest.is_empty() {
            let key = &self.keys[self.numbers.unit(sector) as usize & (self.keys.len() - 1)];
            let count = if self.keys.len() == 1 { MOST.min(rest.len() / size) } else { 1 };
            let batch = rest.split_off_mut(..count * size).expect("that many sectors are left");
            let ivs = &mut ivs[..count];
            self.generator.fill(&self.numbers, sector, ivs);
            self.finish::<MOST>(key, ivs);
            each(key, ivs, batch);
            sector = sector.wrapping_add(count as u64);
        }
    }

    /// Encrypts the IVs, at most `MOST`, if required.
    fn finish<const MOST: usize>(&self, key: &Key, ivs: &mut [[u8; 16]]) {
        if self.generator.encrypted() {
            // The result of encrypting a zero block in this mode with such an IV (`crypt_iv_eboiv_gen`).
            let mut zeros = [[0; 16]; MOST];
            let zeros = &mut zeros[..ivs.len()];
            key.mode.encrypt_sectors(ivs, zeros.as_flattened_mut());
            ivs.copy_from_slice(zeros);
        }
        match &key.salt {
            Some(salt) if salt.block_size() == 8 => {
                ivs.iter_mut().for_each(|iv| salt.encrypt_blocks(&mut iv[..8]));
            }
            Some(salt) => salt.encrypt_blocks(ivs.as_flattened_mut()),
            None => {}
        }
    }
}

impl SectorCipher for Keyed {
    fn sector_size(&self) -> usize {
        self.numbers.sectors.size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |key, ivs, batch| key.mode.encrypt_sectors(ivs, batch));
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |key, ivs, batch| key.mode.decrypt_sectors(ivs, batch));
    }

    fn in_registers(&self) -> bool {
        self.keys.iter().all(|key| key.mode.in_registers())
    }
}

/// TrueCrypt's CBC, whose sector numbers may begin anywhere. Sectors have 512 bytes, so numbers count up by one.
pub(super) struct Tcw {
    cbc: TrueCryptCbc,
    numbers: Numbers,
}

impl Tcw {
    pub fn new(cbc: TrueCryptCbc, numbers: Numbers) -> Self {
        Self { cbc, numbers }
    }
}

impl SectorCipher for Tcw {
    fn sector_size(&self) -> usize {
        self.cbc.sector_size()
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.cbc.encrypt(self.numbers.iv(first), run);
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.cbc.decrypt(self.numbers.iv(first), run);
    }
}
