//! Rewriting one zone: what is there is read and protected, deciphered, enciphered and written.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use claviger_crypto::pool::{Pool, for_each_piece};

use super::Stores;
use super::keys::Ciphers;
use super::recovery::{Run, Source};
use super::state::{Checksums, Resilience, State};
use crate::error::Result;

/// Bytes that a thread works on at a time: a multiple of every sector and block.
const PIECE: usize = 1 << 20;

/// A zone as it was before, and what protects it.
pub(super) struct Zone {
    /// Where it is, in bytes of the plaintext.
    pub at: Range<u64>,
    /// As it was before: one side's ciphertext, or plaintext.
    bytes: Vec<u8>,
    /// What is to be written to the keyslot's area before anything of the zone is.
    pub protection: Vec<u8>,
}

impl Zone {
    /// Reads a zone.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(state: &State, stores: &Stores<'_>, at: Range<u64>, pool: &Pool) -> Result<Self> {
        let mut bytes = vec![0; (at.end - at.start) as usize];
        let from = state.side(state.was(at.start)).offset() + at.start;
        let resilience = state.resilience_at(at.start);
        let sums = Sums::new(&resilience, bytes.len());
        pieces(pool, &mut bytes, |offset, piece| {
            stores.data.read_at(from + offset as u64, piece)?;
            sums.put(offset, piece);
            Ok(())
        })?;
        let protection = match resilience {
            Resilience::Checksum(_) => sums.all(),
            Resilience::Journal => bytes.clone(),
            Resilience::None | Resilience::Shift => Vec::new(),
        };
        Ok(Self { at, bytes, protection })
    }

    /// Writes the zone as it is to be, and leaves flushing to others.
    ///
    /// # Errors
    /// `Io`.
    pub fn rewrite(mut self, state: &State, stores: &Stores<'_>, ciphers: &Ciphers, pool: &Pool) -> Result<()> {
        let at = self.at.start;
        pieces(pool, &mut self.bytes, |offset, piece| {
            convert(state, ciphers, at + offset as u64, piece);
            stores.data.write_at(state.last.offset() + at + offset as u64, piece)
        })
    }
}

/// Brings a hot zone to its end after an interruption.
///
/// # Errors
/// `Io`.
pub(super) fn recover(state: &State, stores: &Stores<'_>, ciphers: &Ciphers, runs: &[Run], pool: &Pool) -> Result<()> {
    let zone = state.hot.as_ref().map_or(0, |hot| hot.start);
    for run in runs {
        let (store, base) = match run.source {
            Source::Rewritten => continue,
            Source::Before => (stores.data, state.side(state.was(run.at.start)).offset() + run.at.start),
            Source::Journal => (stores.header, state.area.start + (run.at.start - zone)),
        };
        for start in (run.at.start..run.at.end).step_by(16 * PIECE) {
            let mut bytes = vec![0; (run.at.end - start).min(16 * PIECE as u64) as usize];
            let from = base + (start - run.at.start);
            pieces(pool, &mut bytes, |offset, piece| {
                store.read_at(from + offset as u64, piece)?;
                convert(state, ciphers, start + offset as u64, piece);
                stores.data.write_at(state.last.offset() + start + offset as u64, piece)
            })?;
        }
    }
    Ok(())
}

/// From what it was to what it is to be.
fn convert(state: &State, ciphers: &Ciphers, at: u64, piece: &mut [u8]) {
    // 128 KiB at a time, which stay in the L2 cache from one cipher to the other.
    for (i, part) in piece.chunks_mut(128 << 10).enumerate() {
        let at = at + (i * (128 << 10)) as u64;
        if let Some(cipher) = ciphers.of(state.was(at)) {
            cipher.decrypt(at / cipher.sector_size() as u64, part);
        }
        if let Some(cipher) = ciphers.of(super::state::What::Last) {
            cipher.encrypt(at / cipher.sector_size() as u64, part);
        }
    }
}

/// Checksums, made on several threads.
struct Sums {
    sums: Option<Checksums>,
    all: Mutex<Vec<u8>>,
}

impl Sums {
    fn new(resilience: &Resilience, len: usize) -> Self {
        let sums = if let Resilience::Checksum(sums) = resilience { Some(*sums) } else { None };
        let size = sums.map_or(0, |sums| len / sums.block as usize * sums.hash.size);
        Self { sums, all: Mutex::new(vec![0; size]) }
    }

    fn put(&self, offset: usize, piece: &[u8]) {
        let Some(Checksums { hash, block }) = self.sums else { return };
        let block = block as usize;
        let mut made = vec![0; piece.len() / block * hash.size];
        for (bytes, sum) in piece.chunks(block).zip(made.chunks_mut(hash.size)) {
            hash.checksum(&[bytes], sum);
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all[offset / block * hash.size..][..made.len()].copy_from_slice(&made);
    }

    fn all(self) -> Vec<u8> {
        self.all.into_inner().unwrap_or_else(PoisonError::into_inner)
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
