//! Sectors that carry a tag: dm-crypt's authenticated modes (Linux, drivers/md/dm-crypt.c, `crypt_convert_block_aead`).
//!
//! A sector's tag on the disk is the authentication tag and, where the mode takes random initialisation vectors, the vector
//! behind it. What is authenticated besides the sector is its number, as 64 bits little-endian, and its initialisation vector.

mod aegis;
mod ciphers;
mod specification;

use std::fmt;

pub use specification::Specification;

/// Encrypts whole sectors in place and makes their tags; checks the tags and decrypts.
///
/// `first` is the number of the run's first sector; the sectors that follow count up by one.
///
/// # Panics
/// Both methods do unless the run is whole sectors and there is a tag for each.
pub trait AuthenticatedCipher: Send + Sync {
    /// Sector size in bytes.
    fn sector_size(&self) -> usize;

    /// Bytes that are stored beside each sector: its tag, and its initialisation vector if that is random.
    fn tag_size(&self) -> usize;

    /// Encrypts a run of whole sectors and fills `tags`. What `tags` holds before must be random and never used again: modes
    /// with random initialisation vectors take them from there.
    fn encrypt(&self, first: u64, run: &mut [u8], tags: &mut [u8]);

    /// Checks a run of whole sectors and decrypts it.
    ///
    /// # Errors
    /// The first sector whose tag is wrong. Then nothing of `run` is plaintext that may be used.
    fn decrypt(&self, first: u64, run: &mut [u8], tags: &[u8]) -> Result<(), WrongTag>;
}

/// The number of a sector whose tag is wrong: somebody changed the sector, its tag or the place where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongTag(pub u64);

impl fmt::Display for WrongTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {} is not what was written: its tag is wrong", self.0)
    }
}

impl std::error::Error for WrongTag {}
