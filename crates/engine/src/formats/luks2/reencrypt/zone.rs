//! Rewrites one zone: reads it, computes its protection, decrypts and encrypts it, then writes protection and zone.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use claviger_crypto::pool::{Pool, for_each_piece};

use super::HeaderAndData;
use super::keys::Ciphers;
use super::recovery::{Run, Source};
use super::state::{Checksums, ReencryptionState, Resilience, wrong};
use crate::error::Result;
use crate::store::Pages;

/// How many bytes a thread processes at a time: a multiple of every sector and block size.
const PIECE: usize = 1 << 20;

/// How many bytes are written at a time: enough for several parallel requests to a disk where the page cache is bypassed.
const WRITTEN: usize = 4 << 20;

/// A converted zone, and its protection.
pub(super) struct Zone {
    /// Its range, in bytes of the plaintext.
    pub at: Range<u64>,
    room: Room,
}

/// The memory of a zone, which the zone after the next reuses: a system can take longer to provide fresh memory than a disk to fill
/// it.
#[derive(Default)]
pub(super) struct Room {
    /// The zone's contents: ciphertext or plaintext of one side.
    bytes: Pages,
    /// The protection, to be written to the keyslot's area before the zone.
    protection: Pages,
}

impl Zone {
    /// Reads a zone, and converts it in memory.
    ///
    /// # Errors
    /// `Io`.
    pub fn prepare(
        state: &ReencryptionState,
        stores: &HeaderAndData<'_>,
        ciphers: &Ciphers,
        at: Range<u64>,
        mut room: Room,
        pool: &Pool,
    ) -> Result<Self> {
        let Room { bytes, protection } = &mut room;
        bytes.resize((at.end - at.start) as usize);
        let resilience = state.resilience_at(at.start);
        protection.resize(protected_by(&resilience, bytes.len()));
        let by_a_piece = protected_by(&resilience, PIECE).max(1);
        let parts: Vec<Mutex<&mut [u8]>> = protection.chunks_mut(by_a_piece).map(Mutex::new).collect();
        let from = state.read_at(&at).start;
        pieces(pool, bytes, |offset, piece| {
            stores.data.read_at(from + offset as u64, piece)?;
            if let Some(part) = parts.get(offset / PIECE) {
                protect(&resilience, piece, &mut part.lock().unwrap_or_else(PoisonError::into_inner));
            }
            ciphers.convert(state, at.start + offset as u64, piece)
        })?;
        Ok(Self { at, room })
    }

    /// Writes what protects the zone, and flushes it.
    ///
    /// Unlike a header, it is not read back: in some modes it is as large as the data, and is trusted like them.
    ///
    /// # Errors
    /// `Malformed` if the keyslot's area is too small for it; `Io`.
    pub fn write_protection(&mut self, state: &ReencryptionState, stores: &HeaderAndData<'_>) -> Result<()> {
        let protection = &mut self.room.protection;
        if protection.len() as u64 > state.area.end - state.area.start {
            return Err(wrong("area", "it is too small to protect a zone"));
        }
        if protection.is_empty() {
            return Ok(());
        }
        stores.header.write_clobbering(state.area.start, protection)?;
        Ok(stores.header.flush()?)
    }

    /// Writes the zone without flushing, and returns its memory. Only one thread writes, since file systems serialise writes to a
    /// file.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(mut self, state: &ReencryptionState, stores: &HeaderAndData<'_>) -> Result<Room> {
        let to = state.written_at(&self.at).start;
        for (piece, at) in self.room.bytes.chunks_mut(WRITTEN).zip((to..).step_by(WRITTEN)) {
            stores.data.write_clobbering(at, piece)?;
        }
        Ok(self.room)
    }
}

/// Finishes a hot zone after an interruption.
///
/// Rewritten blocks are written once more: they may have been read from a cache that never reached the disk, since the system
/// treats pages as written after a failed write-back (fsync(2)). The flush that follows is reliable.
///
/// # Errors
/// `Io`.
pub(super) fn recover(
    state: &ReencryptionState,
    stores: &HeaderAndData<'_>,
    ciphers: &Ciphers,
    runs: &[Run],
    pool: &Pool,
) -> Result<()> {
    let zone = state.hot.as_ref().map_or(0, |hot| hot.start);
    for run in runs {
        let to = state.last.offset() + run.at.start;
        let (store, base) = match &run.source {
            Source::Torn(bytes) => {
                let mut bytes = bytes.to_vec();
                ciphers.convert(state, run.at.start, &mut bytes)?;
                stores.data.write_clobbering(to, &mut bytes)?;
                continue;
            }
            Source::Rewritten => (stores.data, to),
            Source::Before => (stores.data, state.side(state.was(run.at.start)).offset() + run.at.start),
            Source::Journal => (stores.header, state.area.start + (run.at.start - zone)),
        };
        for start in (0..run.at.end - run.at.start).step_by(16 * PIECE) {
            let mut bytes = Pages::new((run.at.end - run.at.start - start).min(16 * PIECE as u64) as usize);
            pieces(pool, &mut bytes, |offset, piece| {
                let offset = start + offset as u64;
                store.read_at(base + offset, piece)?;
                if run.source != Source::Rewritten {
                    ciphers.convert(state, run.at.start + offset, piece)?;
                }
                stores.data.write_clobbering(to + offset, piece)
            })?;
        }
    }
    Ok(())
}

/// The size of the protection for `len` bytes of a zone, in bytes.
fn protected_by(resilience: &Resilience, len: usize) -> usize {
    match resilience {
        Resilience::Checksum(Checksums { hash, block }) => len / *block as usize * hash.size,
        Resilience::Journal => len,
        Resilience::None | Resilience::Shift => 0,
    }
}

/// Computes the protection of a piece of a zone, with the size that [`protected_by`] returns.
fn protect(resilience: &Resilience, piece: &[u8], out: &mut [u8]) {
    match resilience {
        Resilience::Checksum(Checksums { hash, block }) => hash.checksums(*block as usize, piece, out),
        Resilience::Journal => out.copy_from_slice(piece),
        Resilience::None | Resilience::Shift => {}
    }
}

/// Calls `each` with the pieces of a buffer and their offsets, on all threads. Pieces already begun are finished after an error,
/// and the first error is returned.
fn pieces(pool: &Pool, bytes: &mut [u8], each: impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync) -> Result<()> {
    let failed = Mutex::new(None);
    for_each_piece(pool, bytes, PIECE, |offset, piece| {
        if let Err(error) = each(offset, piece) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
