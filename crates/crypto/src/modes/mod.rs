//! Modes of operation: they turn keyed block ciphers into sector ciphers.

pub mod aead;
pub mod cascade;
pub mod cbc;
pub mod lrw;
pub mod xts;

pub use aead::AuthenticatedCipher;
pub use cascade::Cascade;
pub use cbc::TrueCryptCbc;
pub use lrw::Lrw;
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

/// Overwrites a buffer on the stack that held something derived from a key.
fn wipe<T: Copy>(buffer: &mut [T], with: T) {
    buffer.fill(with);
    // The black box makes the compiler write all of it.
    std::hint::black_box(buffer);
}
