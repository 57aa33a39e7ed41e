//! Modes of operation: they turn keyed block ciphers into sector ciphers.

pub mod adiantum;
pub mod aead;
mod cascade;
pub mod cbc;
mod ecryptfs;
pub mod efs;
mod eme;
mod image_chunks;
mod lrw;
pub(crate) mod md5;
mod simple;
pub mod xts;

pub use adiantum::Adiantum;
pub use aead::{AuthenticatedCipher, MessageCipher};
pub use cascade::Cascade;
pub use cbc::{Cbc, TrueCryptCbc};
pub use ecryptfs::EcryptfsCbc;
pub use eme::Eme;
pub use image_chunks::ImageChunks;
pub use lrw::Lrw;
pub use simple::{Ctr, Ecb};
pub use xts::Xts;

/// Encrypts and decrypts whole sectors in place.
///
/// `first` is the tweak number of the run's first sector; the sectors that follow count up by one.
///
/// # Panics
/// Both methods panic unless the run is whole sectors.
pub trait SectorCipher: Send + Sync {
    /// Sector size in bytes.
    fn sector_size(&self) -> usize;
    /// Encrypts a run of whole sectors.
    fn encrypt(&self, first: u64, run: &mut [u8]);
    /// Decrypts a run of whole sectors.
    fn decrypt(&self, first: u64, run: &mut [u8]);

    /// The least bytes that a run to encrypt should have, if possible: sectors that can be encrypted side by side may lie far
    /// apart.
    fn wide_run(&self) -> usize {
        0
    }

    /// Whether a run is processed in registers. Each block is read, and written when it is done, so the run only ever holds blocks
    /// that are not begun or are done. The next step never depends on bytes of the run. So somebody who reads or changes the run
    /// in the meantime learns no more than by requesting the operation.
    fn in_registers(&self) -> bool {
        false
    }
}

/// Encrypts and decrypts whole sectors in place, with an IV for each.
///
/// `run` has one sector per IV, all of one size and at least one; the size is a multiple of the cipher's block. Only as
/// many bytes of each IV are used as a block has.
///
/// # Panics
/// Both methods panic otherwise.
pub trait IvMode: Send + Sync {
    /// Encrypts a run of whole sectors.
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]);
    /// Decrypts a run of whole sectors.
    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]);

    /// See [`SectorCipher::in_registers`].
    fn in_registers(&self) -> bool {
        false
    }
}

/// The sectors of a run, one per IV.
fn sectors<'a>(ivs: &[[u8; 16]], run: &'a mut [u8]) -> impl Iterator<Item = &'a mut [u8]> {
    let size = sector_of(ivs, run);
    run.chunks_exact_mut(size)
}

/// The size of a sector in such a run.
#[track_caller]
fn sector_of(ivs: &[[u8; 16]], run: &[u8]) -> usize {
    let (ivs, len) = (ivs.len(), run.len());
    assert!(ivs > 0 && len > 0 && len.is_multiple_of(ivs), "{len} bytes are no {ivs} sectors of one size");
    len / ivs
}

/// Panics unless `run` is whole sectors.
#[track_caller]
pub(crate) fn assert_whole(run: &[u8], sector: usize) {
    assert!(run.len().is_multiple_of(sector), "{} bytes are no whole sectors of {sector}", run.len());
}

/// Wipes a buffer on the stack that held something derived from a key.
pub(crate) fn wipe<T: Copy>(buffer: &mut [T], with: T) {
    buffer.fill(with);
    // The black box keeps the compiler from optimising the writes away.
    std::hint::black_box(buffer);
}
