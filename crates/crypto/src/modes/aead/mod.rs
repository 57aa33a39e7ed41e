//! Sectors that carry a tag: dm-crypt's authenticated modes (Linux, drivers/md/dm-crypt.c, `crypt_convert_block_aead`).
//!
//! A sector's tag on the disk is the authentication tag, followed by the IV in modes with random IVs. Besides the
//! sector, its number (64 bits, little-endian) and its IV are authenticated.

mod aegis;
mod ccm;
#[cfg(target_arch = "x86_64")]
mod chacha;
mod ciphers;
mod messages;
#[cfg(target_arch = "x86_64")]
mod poly1305;
mod sealer;
mod specification;

use std::fmt;

pub(crate) use ciphers::Gcm;
pub use messages::{Siv, ctr_hmac_sha256, gcm, siv, xchacha20_poly1305};
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use sealer::BESIDE;
pub use sealer::MessageCipher;
#[cfg(target_arch = "x86_64")]
pub(crate) use sealer::{Beside, NUMBER, Sectors};
pub use specification::AeadSpecification;

/// Encrypts whole sectors in place and computes their tags; verifies tags and decrypts.
///
/// `first` is the number of the run's first sector; the sectors that follow count up by one.
///
/// # Panics
/// Both methods panic unless the run is whole sectors and there is a tag for each.
pub trait AuthenticatedCipher: Send + Sync {
    /// Sector size in bytes.
    fn sector_size(&self) -> usize;

    /// Bytes stored beside each sector: its tag, and its IV if that is random.
    fn tag_size(&self) -> usize;

    /// Encrypts a run of whole sectors and fills `tags`. On entry `tags` must hold random bytes that are never used
    /// again: modes with random IVs take them from there.
    fn encrypt(&self, first: u64, run: &mut [u8], tags: &mut [u8]);

    /// Verifies a run of whole sectors and decrypts it.
    ///
    /// # Errors
    /// The first sector with a wrong tag. Then nothing in `run` may be used.
    fn decrypt(&self, first: u64, run: &mut [u8], tags: &[u8]) -> Result<(), WrongTag>;
}

/// The number of a sector with a wrong tag: somebody changed the sector or its tag, or moved them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongTag(pub u64);

impl fmt::Display for WrongTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {} has been changed or damaged: its tag is wrong", self.0)
    }
}

impl std::error::Error for WrongTag {}
