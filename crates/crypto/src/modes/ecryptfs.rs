//! The contents of eCryptfs's files: CBC, with IVs that are hashes of the file's key and the number of the extent (Linux 6.1,
//! fs/ecryptfs/crypto.c, `ecryptfs_derive_iv`, `ecryptfs_compute_root_iv`).
//!
//! The IV of an extent is MD5(root || number), cut to the cipher's block. The root is MD5 of the file's key. The number is in
//! decimal digits, padded with zero bytes to 16.

use super::{SectorCipher, assert_whole, cbc, md5, wipe};
use crate::ciphers::BlockCipher;
use crate::hash;
use crate::secret::LockedBox;

/// Bytes of an extent.
const EXTENT: usize = 4096;

/// Extents whose IVs are computed side by side.
const BATCH: usize = md5::LANES;

/// Digits that the kernel's buffer for a number holds before its final zero.
const DIGITS: usize = 15;

/// CBC over extents of 4096 bytes, with eCryptfs's IVs.
pub struct EcryptfsCbc {
    cipher: Box<dyn BlockCipher>,
    root: LockedBox<[u8; 16]>,
}

impl EcryptfsCbc {
    /// `key` is the key of `cipher`: the file's own key. Extents count from 0.
    pub fn new(cipher: Box<dyn BlockCipher>, key: &[u8]) -> Self {
        let root = LockedBox::build(|root: &mut [u8; 16]| hash::MD5.digest(&[key], root));
        Self { cipher, root }
    }

    /// The IVs of consecutive extents.
    fn ivs(&self, first: u64, ivs: &mut [[u8; 16]]) {
        let mut blocks = [[0; 64]; BATCH];
        let blocks = &mut blocks[..ivs.len()];
        for (number, block) in (first..).zip(&mut *blocks) {
            block[..16].copy_from_slice(&*self.root);
            write_decimal(number, block[16..][..DIGITS].first_chunk_mut().expect("room for digits"));
            // MD5's own padding, after 32 bytes.
            block[32] = 0x80;
            block[56..].copy_from_slice(&(32u64 * 8).to_le_bytes());
        }
        md5::blocks(&md5::START, blocks, ivs);
        wipe(blocks, [0; 64]);
    }

    fn batches(&self, first: u64, run: &mut [u8], each: impl Fn(&[[u8; 16]], &mut [u8])) {
        assert_whole(run, EXTENT);
        for (first, batch) in (first..).step_by(BATCH).zip(run.chunks_mut(BATCH * EXTENT)) {
            let mut ivs = [[0; 16]; BATCH];
            let ivs = &mut ivs[..batch.len() / EXTENT];
            self.ivs(first, ivs);
            each(ivs, batch);
        }
    }
}

impl SectorCipher for EcryptfsCbc {
    fn sector_size(&self) -> usize {
        EXTENT
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |ivs, batch| cbc::encrypt_sectors(&*self.cipher, ivs, EXTENT, batch));
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |ivs, batch| cbc::decrypt_sectors(&*self.cipher, ivs, EXTENT, batch));
    }
}

/// The digits of a number, as many as there is room for.
fn write_decimal(number: u64, out: &mut [u8; DIGITS]) {
    let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
    let mut rest = number / 10u64.pow(digits.saturating_sub(DIGITS) as u32);
    for digit in out[..digits.min(DIGITS)].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acceleration, CIPHERS};
    use claviger_testkit::random::Random;
    use digest::Digest;

    #[test]
    fn numbers_are_written_as_printf_does() {
        for number in [0, 1, 9, 10, 99, 100, 4_294_967_296, 999_999_999_999_999, 1_000_000_000_000_000, u64::MAX] {
            let mut found = [0; DIGITS];
            write_decimal(number, &mut found);
            let mut expected = number.to_string().into_bytes();
            expected.resize(expected.len().max(DIGITS), 0);
            assert_eq!(found, expected[..DIGITS], "{number}");
        }
    }

    /// Compares with MD5 and single chains, for ciphers of both block sizes and every number of extents around a batch.
    #[test]
    fn each_extent_is_a_chain_whose_iv_is_a_hash() {
        let mut random = Random::new(1);
        for name in ["AES", "Blowfish (big-endian)", "Triple DES"] {
            let cipher = CIPHERS.iter().find(|c| c.name == name).expect("a cipher");
            let key = random.bytes(*cipher.key_sizes.last().expect("a size"));
            let mode = EcryptfsCbc::new(cipher.with_key(&key, Acceleration::On), &key);
            let bare = cipher.with_key(&key, Acceleration::On);
            for (first, count) in [(0, 1), (0, 3), (7, 32), (95, 33), (999_990, 70), (1 << 51, 2)] {
                let plaintext = random.bytes(count * EXTENT);
                let mut run = plaintext.clone();
                mode.encrypt(first, &mut run);
                for (number, (stored, plain)) in (first..).zip(run.chunks(EXTENT).zip(plaintext.chunks(EXTENT))) {
                    let mut digits = number.to_string().into_bytes();
                    digits.truncate(15);
                    digits.resize(16, 0);
                    let iv = ::md5::Md5::digest([::md5::Md5::digest(&key).to_vec(), digits].concat());
                    let mut expected = plain.to_vec();
                    cbc::encrypt_sectors(&*bare, &[iv.into()], EXTENT, &mut expected);
                    assert!(stored == expected, "{name}, extent {number}");
                }
                mode.decrypt(first, &mut run);
                assert!(run == plaintext, "{name}, {count} extents from {first} on");
            }
        }
    }

    #[test]
    #[should_panic(expected = "no whole sectors")]
    fn half_an_extent_is_refused() {
        let cipher = CIPHERS[0].with_key(&[0; 16], Acceleration::On);
        EcryptfsCbc::new(cipher, &[0; 16]).decrypt(0, &mut [0; 2048]);
    }
}
