//! Filling the data area of a new volume with what looks like ciphertext.

use std::ops::Range;
use std::sync::atomic::Ordering;

use claviger_crypto::SectorCipher;
use claviger_crypto::pool::{Pool, for_each_piece};

use crate::error::{ErrorKind, Result};
use crate::spec::Spec;
use crate::store::Store;

/// Bytes that are filled at a time: enough to keep all threads busy, and to notice soon that the caller has cancelled.
const FILL: usize = 4 << 20;

/// Bytes that a thread encrypts at a time while filling.
const FILL_PIECE: usize = 128 << 10;

/// Fills `area`, in bytes of the store, with zeros that `cipher` encrypts, whose key the caller throws away and whose sectors
/// have 512 bytes. Whoever does not have the volume's key cannot tell this from used sectors, unless the cipher is broken. The
/// system's random bytes would do as well, only several times more slowly.
///
/// # Errors
/// `Cancelled`, `Io`.
pub(super) fn fill(
    store: &dyn Store,
    area: Range<u64>,
    cipher: &dyn SectorCipher,
    spec: &Spec<'_>,
    pool: &Pool,
) -> Result<()> {
    let unit = cipher.sector_size() as u64;
    let (start, size) = (area.start, area.end - area.start);
    let mut buffer = vec![0; FILL.min(size as usize)];
    let mut done = 0;
    tell(spec, done, size);
    while done < size {
        not_cancelled(spec)?;
        let part = &mut buffer[..usize::try_from(size - done).map_or(FILL, |left| left.min(FILL))];
        let first = (start + done) / unit;
        for_each_piece(pool, part, FILL_PIECE, |at, piece| {
            piece.fill(0);
            cipher.encrypt(first + at as u64 / unit, piece);
        });
        store.write_at(start + done, part)?;
        done += part.len() as u64;
        tell(spec, done, size);
    }
    Ok(())
}

fn tell(spec: &Spec<'_>, done: u64, total: u64) {
    if let Some(progress) = spec.progress {
        progress(done, total);
    }
}

/// Whether the caller has cancelled.
pub(super) fn cancelled(spec: &Spec<'_>) -> bool {
    spec.cancel.is_some_and(|c| c.load(Ordering::Relaxed))
}

/// # Errors
/// `Cancelled` if the caller has.
pub(super) fn not_cancelled(spec: &Spec<'_>) -> Result<()> {
    if cancelled(spec) { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
}
