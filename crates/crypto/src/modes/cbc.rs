//! CBC: the bare chaining over whole sectors, for any format to build on, and the variant of TrueCrypt 1.0 to 4.0.
//!
//! TrueCrypt's variant, after its sources of 7.1a (Common/Crypto.c, `InitSectorIVAndWhitening`, `EncryptBufferCBC`,
//! `EncryptDataUnits`, `EncryptBuffer`) and Linux (drivers/md/dm-crypt.c, `tcw`). Its key material has an area of 32
//! bytes for the initialisation vectors; call its little-endian words of 8 bytes a0 … a3, and the number of the sector n.
//! - The IV of a sector is a0^n ‖ a1^n, or a0^n alone for blocks of 8 bytes.
//! - After each block was encrypted and handed on as the next IV, it is whitened: each of its halves of 8 bytes is
//!   xored with w0 ‖ w1, two little-endian words of 4 bytes, the same for the whole sector. Let b0 … b3 be the words of
//!   4 bytes in the 16 bytes of the area that follow the IV, each pair of them xored with n as a word of 8 bytes. Then
//!   w0 = crc32(b0) ^ crc32(b3) and w1 = crc32(b1) ^ crc32(b2).
//! - Outer CBC (all cascades of ciphers with blocks of 16 bytes): one chain around the whole cascade, one whitening.
//! - Inner CBC (`AES-Blowfish`, `AES-Blowfish-Serpent`): each cipher by itself passes over the whole sector, with an IV
//!   and a whitening of its own that depend on its block size, but not on which cipher it is.
//! - The header is one long chain with the area itself for everything: IV a0 ‖ a1 (or a0), whitening a1.

use super::{Cascade, IvMode, SectorCipher, wipe};
use crate::chain::{LANES, assert_chains};
use crate::ciphers::BlockCipher;
use crate::secret::LockedBox;

/// Encrypts `ivs.len()` sectors of `sector` bytes each, every one a chain of its own. Only the first bytes of each IV are used, as
/// many as a block has. `sector` is a multiple of the block size and `run.len()` is `ivs.len() * sector`.
pub fn encrypt_sectors(cipher: &dyn BlockCipher, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
    assert_chains(cipher.block_size(), ivs, sector, run);
    cipher.cbc_encrypt_abreast(ivs, sector, run);
}

/// The inverse of [`encrypt_sectors`].
pub fn decrypt_sectors(cipher: &dyn BlockCipher, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
    assert_chains(cipher.block_size(), ivs, sector, run);
    cipher.cbc_decrypt_abreast(ivs, sector, run);
}

/// CBC (NIST SP 800-38A), each sector a chain of its own.
pub struct Cbc(pub Box<dyn BlockCipher>);

impl IvMode for Cbc {
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        encrypt_sectors(&*self.0, ivs, super::sector_of(ivs, run), run);
    }

    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        decrypt_sectors(&*self.0, ivs, super::sector_of(ivs, run), run);
    }
}

/// TrueCrypt's CBC with whitening.
pub struct TrueCryptCbc {
    /// Passes over a whole sector, in the order in which they encrypt.
    passes: Vec<Box<dyn BlockCipher>>,
    /// The IV area, then the parts of w0 ‖ w1 that are the same for all sectors: for blocks of 8 and of 16 bytes. Words of 8 bytes,
    /// read as little-endian.
    area: LockedBox<[u64; 6]>,
    sector_size: usize,
}

impl TrueCryptCbc {
    /// One chain around all `ciphers`, which are in the order in which they encrypt. For a single cipher, too.
    /// `sector_size` in bytes (TrueCrypt's are 512).
    ///
    /// The `first` of [`SectorCipher`] counts sectors of the volume with its header as number 0, so that the data area
    /// starts with number 1. For hidden volumes the sources disagree: in the one image that there is (cryptsetup's
    /// `tc_2-ripemd160-cbc-aes-hidden`), as in cryptsetup itself, the data area starts with number 1 as well, but
    /// TrueCrypt 4.1 to 7.1a (Driver/NTVOL.C, `TCReadWrite`; Volume/Volume.cpp, `ReadSectors`) would start it with its
    /// sector's number in the *host*. dm-crypt's `tcw` takes the number that its table says.
    ///
    /// # Panics
    /// If there is no cipher, if block sizes differ or are neither 8 nor 16, or if `sector_size` is not a multiple of
    /// them. A format's code decides all of these.
    pub fn outer(ciphers: Vec<Box<dyn BlockCipher>>, iv_area: &[u8; 32], sector_size: usize) -> Self {
        Self::new(vec![Box::new(Cascade::new(ciphers))], iv_area, sector_size)
    }

    /// A chain for each of the `ciphers`, which are in the order in which they encrypt and may differ in block size.
    /// Sectors count as in [`TrueCryptCbc::outer`], with the same panics.
    pub fn inner(ciphers: Vec<Box<dyn BlockCipher>>, iv_area: &[u8; 32], sector_size: usize) -> Self {
        Self::new(ciphers, iv_area, sector_size)
    }

    /// Encrypts the 448 bytes of a header from offset 64 on, with `iv_area` from the *derived* key.
    pub fn encrypt_header(&self, header: &mut [u8]) {
        let (iv, whitening) = self.header_constants();
        for pass in &self.passes {
            encrypt_sectors(&**pass, &[iv], header.len(), header);
            whiten(header, whitening);
        }
    }

    /// The inverse of [`TrueCryptCbc::encrypt_header`].
    pub fn decrypt_header(&self, header: &mut [u8]) {
        let (iv, whitening) = self.header_constants();
        for pass in self.passes.iter().rev() {
            whiten(header, whitening);
            decrypt_sectors(&**pass, &[iv], header.len(), header);
        }
    }

    fn new(passes: Vec<Box<dyn BlockCipher>>, iv_area: &[u8; 32], sector_size: usize) -> Self {
        assert!(!passes.is_empty() && sector_size > 0);
        assert!(passes.iter().all(|p| matches!(p.block_size(), 8 | 16) && sector_size.is_multiple_of(p.block_size())));
        let area = LockedBox::build(|area: &mut [u64; 6]| {
            for (word, bytes) in area.iter_mut().zip(iv_area.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            area[4] = whitening_of(area[1], area[2]);
            area[5] = whitening_of(area[2], area[3]);
        });
        Self { passes, area, sector_size }
    }

    /// IV and whitening of the header.
    fn header_constants(&self) -> ([u8; 16], u64) {
        (join(self.area[0], self.area[1]), self.area[1])
    }

    /// Calls `each` with groups of sectors, the number of the first one, and their IVs.
    fn groups(&self, first: u64, run: &mut [u8], mut each: impl FnMut(u64, &[[u8; 16]], &mut [u8])) {
        super::assert_whole(run, self.sector_size);
        let mut ivs = [[0u8; 16]; LANES];
        let mut number = first;
        for group in run.chunks_mut(LANES * self.sector_size) {
            let ivs = &mut ivs[..group.len() / self.sector_size];
            for (n, iv) in (0..).map(|i| number.wrapping_add(i)).zip(ivs.iter_mut()) {
                *iv = join(self.area[0] ^ n, self.area[1] ^ n);
            }
            each(number, ivs, group);
            number = number.wrapping_add(LANES as u64);
        }
        wipe(&mut ivs, [0; 16]);
    }

    /// Whitens a group of sectors, or takes the whitening off.
    fn whiten_sectors(&self, block: usize, first: u64, group: &mut [u8]) {
        let constant = self.area[if block == 8 { 4 } else { 5 }];
        for (i, sector) in (0..).zip(group.chunks_exact_mut(self.sector_size)) {
            whiten(sector, constant ^ whitening_of_number(first.wrapping_add(i)));
        }
    }
}

impl SectorCipher for TrueCryptCbc {
    fn sector_size(&self) -> usize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.groups(first, run, |first, ivs, group| {
            for pass in &self.passes {
                encrypt_sectors(&**pass, ivs, self.sector_size, group);
                self.whiten_sectors(pass.block_size(), first, group);
            }
        });
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.groups(first, run, |first, ivs, group| {
            for pass in self.passes.iter().rev() {
                self.whiten_sectors(pass.block_size(), first, group);
                decrypt_sectors(&**pass, ivs, self.sector_size, group);
            }
        });
    }
}

fn whiten(run: &mut [u8], whitening: u64) {
    for word in run.as_chunks_mut::<8>().0 {
        *word = (u64::from_le_bytes(*word) ^ whitening).to_le_bytes();
    }
}

fn join(low: u64, high: u64) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

/// w0 ‖ w1 for b0 ‖ b1 and b2 ‖ b3. A CRC is linear except for its start and end values, and those cancel out in a sum of two:
/// crc32(x) ^ crc32(y) is the bare remainder of x ^ y. So the sector's number can be left out here and its own remainder added
/// later, which is public.
fn whitening_of(b01: u64, b23: u64) -> u64 {
    u64::from(remainder(b01 as u32 ^ (b23 >> 32) as u32)) | u64::from(remainder((b01 >> 32) as u32 ^ b23 as u32)) << 32
}

/// The contribution of a sector's number to w0 ‖ w1. The number is xored into b0 ‖ b1 and into b2 ‖ b3, so both its halves affect
/// both words.
fn whitening_of_number(number: u64) -> u64 {
    let r = u64::from(remainder(number as u32 ^ (number >> 32) as u32));
    r | r << 32
}

/// The bare remainder of CRC-32 (reflected, polynomial 0xedb88320) of a little-endian word. No table: words of the IV
/// area are secret.
fn remainder(word: u32) -> u32 {
    (0..32).fold(word, |r, _| r >> 1 ^ (0xedb8_8320 & (r & 1).wrapping_neg()))
}
