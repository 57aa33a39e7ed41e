//! Rewriting one zone: what is there is read, its protection made, deciphered, enciphered; then both are written.

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

/// Bytes that a thread works on at a time: a multiple of every sector and block.
const PIECE: usize = 1 << 20;

/// Bytes that are written at a time: enough for several requests of a disk side by side where they do not go through the page cache.
const WRITTEN: usize = 4 << 20;

/// A zone as it is to be, and what protects it.
pub(super) struct Zone {
    /// Where it is, in bytes of the plaintext.
    pub at: Range<u64>,
    room: Room,
}

/// The memory of a zone, which the next but one takes over: a system can take longer to hand out fresh memory than a disk to fill
/// it.
#[derive(Default)]
pub(super) struct Room {
    /// The zone: one side's ciphertext, or plaintext.
    bytes: Pages,
    /// What is to be written to the keyslot's area before anything of the zone is.
    protection: Pages,
}

impl Zone {
    /// Reads a zone, and makes of it in memory what is to be written.
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
            ciphers.convert(state, at.start + offset as u64, piece);
            Ok(())
        })?;
        Ok(Self { at, room })
    }

    /// Writes what protects the zone, and flushes it.
    ///
    /// Unlike a header it is not read back: it is as large as the data in some modes, and trusted like them.
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

    /// Writes the zone, leaves flushing to others, and gives its memory back. One thread writes, since a file system lets no
    /// second one into a file.
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

/// Brings a hot zone to its end after an interruption.
///
/// What has been rewritten already is written once more: it may be read from a cache whose contents never reached the disk, since a
/// system takes what it failed to write back for written from then on (fsync(2)). The flush that follows is one that counts.
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
                ciphers.convert(state, run.at.start, &mut bytes);
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
                    ciphers.convert(state, run.at.start + offset, piece);
                }
                stores.data.write_clobbering(to + offset, piece)
            })?;
        }
    }
    Ok(())
}

/// Bytes that protect so many of a zone.
fn protected_by(resilience: &Resilience, len: usize) -> usize {
    match resilience {
        Resilience::Checksum(Checksums { hash, block }) => len / *block as usize * hash.size,
        Resilience::Journal => len,
        Resilience::None | Resilience::Shift => 0,
    }
}

/// What protects a piece of a zone, of the size that [`protected_by`] says.
fn protect(resilience: &Resilience, piece: &[u8], out: &mut [u8]) {
    match resilience {
        Resilience::Checksum(Checksums { hash, block }) => hash.checksums(*block as usize, piece, out),
        Resilience::Journal => out.copy_from_slice(piece),
        Resilience::None | Resilience::Shift => {}
    }
}

/// Calls `each` with the pieces of a buffer and their offsets, on all threads. The first error counts; what was begun is done.
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
