//! Modes of operation: they turn keyed block ciphers into sector ciphers.

pub mod adiantum;
pub mod aead;
pub mod cascade;
pub mod cbc;
pub mod lrw;
pub(crate) mod md5;
mod simple;
pub mod xts;

pub use adiantum::Adiantum;
pub use aead::AuthenticatedCipher;
pub use cascade::Cascade;
pub use cbc::{Cbc, TrueCryptCbc};
pub use lrw::Lrw;
pub use simple::{Ctr, Ecb};
pub use xts::Xts;

/// Encrypts and decrypts whole sectors in place.
///
/// `first` is the tweak number of the run's first sector; the sectors that follow count up by one. Infallible: the
/// caller guarantees that the run is a multiple of the sector size.
pub trait SectorCipher: Send + Sync {
    /// Sector size in bytes.
    fn sector_size(&self) -> usize;
    /// Encrypts a run of whole sectors.
    fn encrypt(&self, first: u64, run: &mut [u8]);
    /// Decrypts a run of whole sectors.
    fn decrypt(&self, first: u64, run: &mut [u8]);
}

/// Encrypts and decrypts whole sectors in place, with an initialisation vector for each.
///
/// `run` is as many sectors of one size as there are vectors, and not none; the size is a multiple of the cipher's block. Of each
/// vector the first bytes count, as many as a block has.
pub trait IvMode: Send + Sync {
    /// Encrypts a run of whole sectors.
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]);
    /// Decrypts a run of whole sectors.
    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]);
}

/// The sectors of a run that has as many as there are vectors.
fn sectors<'a>(ivs: &[[u8; 16]], run: &'a mut [u8]) -> impl Iterator<Item = &'a mut [u8]> {
    debug_assert!(!ivs.is_empty() && run.len().is_multiple_of(ivs.len()));
    run.chunks_exact_mut(run.len() / ivs.len())
}

/// Overwrites a buffer on the stack that held something derived from a key.
fn wipe<T: Copy>(buffer: &mut [T], with: T) {
    buffer.fill(with);
    // The black box makes the compiler write all of it.
    std::hint::black_box(buffer);
}
