//! Sectors of NTFS's EFS: 512 bytes each, CBC, with initialisation vectors that follow from the offset in the file.
//!
//! After the sources of ntfs-3g (ntfsprogs/ntfsdecrypt.c): an IV is a constant plus the offset, in words of eight bytes,
//! little-endian. Windows' DESX takes a key of 16 bytes. MD5 of this key and a text, with both halves xored, gives the DES key. MD5
//! of this key and another text gives the whitening. To encrypt, Windows runs DES *backwards*.

use super::{Cbc, IvMode, SectorCipher, assert_whole, wipe};
use crate::ciphers::{Acceleration, aes, legacy};
use crate::hash;
use crate::secret::LockedBox;

/// Bytes of a sector.
const SECTOR: usize = 512;

/// Sectors whose IVs are made at a time: enough to fill most of the vectors of bit-sliced DES.
const BATCH: usize = 256;

/// The value that AES's IVs count from: both words.
const AES_START: [u64; 2] = [0x5816_657b_e916_1312, 0x1989_adbe_4491_8961];

/// The value that the IVs of ciphers with 64-bit blocks count from. The second word is not used.
const DES_START: [u64; 2] = [0x1691_1962_9891_ad13, 0];

/// The texts hashed after the key, including the final zero: for the DES key, and for the whitening.
const DESX_TEXTS: [&[u8; 12]; 2] = [b"Dan Simon  \0", b"Scott Field\0"];

/// The ciphers of EFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EfsCipher {
    /// AES with keys of 32 bytes.
    Aes256,
    /// Triple DES with keys of 24 bytes.
    TripleDes,
    /// Windows' DESX with keys of 16 bytes.
    Desx,
}

impl EfsCipher {
    /// Size of the cipher's keys, in bytes.
    pub fn key_size(self) -> usize {
        match self {
            Self::Aes256 => 32,
            Self::TripleDes => 24,
            Self::Desx => 16,
        }
    }
}

/// The sectors of a file or stream. They are counted from its beginning.
pub struct EfsSectors {
    cbc: Cbc,
    start: [u64; 2],
}

impl EfsSectors {
    /// The sectors under `key`.
    ///
    /// # Panics
    /// If the key does not have [`EfsCipher::key_size`] bytes.
    pub fn new(cipher: EfsCipher, key: &[u8], with: Acceleration) -> Self {
        assert_eq!(key.len(), cipher.key_size(), "{cipher:?} has keys of one size");
        let (cipher, start) = match cipher {
            EfsCipher::Aes256 => (aes::AES.with_key(key, with), AES_START),
            EfsCipher::TripleDes => (legacy::TRIPLE_DES.with_key(key, with), DES_START),
            EfsCipher::Desx => (legacy::WINDOWS_DESX.with_key(&*desx_key(key), with), DES_START),
        };
        Self { cbc: Cbc(cipher), start }
    }

    /// Calls `each` with groups of sectors and their IVs.
    fn batches(&self, first: u64, run: &mut [u8], each: impl Fn(&[[u8; 16]], &mut [u8])) {
        assert_whole(run, SECTOR);
        let mut ivs = [[0; 16]; BATCH];
        let mut offset = first.wrapping_mul(SECTOR as u64);
        for batch in run.chunks_mut(BATCH * SECTOR) {
            let ivs = &mut ivs[..batch.len() / SECTOR];
            for iv in &mut *ivs {
                let [low, high] = self.start.map(|word| word.wrapping_add(offset).to_le_bytes());
                iv[..8].copy_from_slice(&low);
                iv[8..].copy_from_slice(&high);
                offset = offset.wrapping_add(SECTOR as u64);
            }
            each(ivs, batch);
        }
    }
}

impl SectorCipher for EfsSectors {
    fn sector_size(&self) -> usize {
        SECTOR
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |ivs, batch| self.cbc.encrypt_sectors(ivs, batch));
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |ivs, batch| self.cbc.decrypt_sectors(ivs, batch));
    }
}

/// The key of DES, then what is added to the plaintext, then what is added to the ciphertext.
fn desx_key(key: &[u8]) -> LockedBox<[u8; 24]> {
    LockedBox::build(|out: &mut [u8; 24]| {
        let [mut of_des, mut of_whitening] = DESX_TEXTS.map(|text| {
            let mut digest = [0; 16];
            hash::MD5.digest(&[key, text], &mut digest);
            digest
        });
        let (des, whitening) = out.split_at_mut(8);
        for (half, pair) in des.as_chunks_mut::<4>().0.iter_mut().zip(of_des.as_chunks::<8>().0) {
            *half = std::array::from_fn(|i| pair[i] ^ pair[i + 4]);
        }
        of_whitening.rotate_left(8);
        whitening.copy_from_slice(&of_whitening);
        wipe(&mut of_des, 0);
        wipe(&mut of_whitening, 0);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn desx_is_that_of_windows() {
        // The vectors in ntfs-3g's ntfsprogs/ntfsdecrypt.c.
        let key = [0xa1, 0xf9, 0xe0, 0xb2, 0x53, 0x23, 0x9e, 0x8f, 0x0f, 0x91, 0x45, 0xd9, 0x8e, 0x20, 0xec, 0x30];
        let (output, input) = (0x8ddb_4960_474c_daed_u64, 0x1e28_cac0_1aa0_f675_u64);
        let desx = desx_key(&key);
        assert_eq!(desx[8..], [input.to_le_bytes(), output.to_le_bytes()].concat());
        // DES alone encrypts where DESX decrypts, and adds the whitenings at the other ends.
        let plain = 0x0f53_48af_2a68_f7dc_u64;
        let mut block = (plain ^ output).to_le_bytes();
        legacy::WINDOWS_DESX.with_key(&*desx, Acceleration::On).decrypt_blocks(&mut block);
        assert_eq!((u64::from_le_bytes(block) ^ input).to_le_bytes(), [0xd8, 0xd9, 0x15, 0x23, 0x5b, 0x88, 0x0e, 0x09]);
    }

    #[test]
    fn sectors_do_not_depend_on_their_neighbours() {
        for cipher in [EfsCipher::Aes256, EfsCipher::TripleDes, EfsCipher::Desx] {
            let key: Vec<u8> = (1..=cipher.key_size() as u8).collect();
            let sectors = EfsSectors::new(cipher, &key, Acceleration::On);
            let plain: Vec<u8> = (0..100 * SECTOR).map(|i| (i / 7) as u8).collect();
            let mut all = plain.clone();
            sectors.encrypt(5, &mut all);
            for (i, sector) in plain.chunks(SECTOR).enumerate() {
                let mut one = sector.to_vec();
                sectors.encrypt(5 + i as u64, &mut one);
                assert!(one == all[i * SECTOR..][..SECTOR], "{cipher:?}, sector {i}");
            }
            sectors.decrypt(5, &mut all);
            assert!(all == plain, "{cipher:?}");
        }
    }
}
