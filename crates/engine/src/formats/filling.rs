//! Fills the space of a new volume, so that nobody sees how much of it is used.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use claviger_crypto::Acceleration;
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::modes::SectorCipher;
use claviger_crypto::pool::{Pool, for_each_piece};

use crate::error::{ErrorKind, Result};
use crate::random;
use crate::spec::Spec;
use crate::store::Store;

/// The sector size of the ciphers for filling, in bytes.
const UNIT: u64 = 512;

/// How many bytes are filled at a time: enough to keep all threads busy, and to react to cancellation soon.
const FILL: usize = 4 << 20;

/// How many bytes a thread encrypts at a time while filling.
const FILL_PIECE: usize = 128 << 10;

/// Fills the area with bytes that look like ciphertext: AES, with a key that is discarded.
pub(super) fn fill(store: &dyn Store, area: Range<u64>, spec: &Spec<'_>) -> Result<()> {
    let key = random::secret(64)?;
    let cipher = Specification::parse("aes-xts-plain64").expect("it is known");
    let cipher: Arc<dyn SectorCipher> =
        cipher.with_key(&key, Sectors::default(), Acceleration::On).expect("the key fits");
    fill_with(store, area, &*cipher, spec, &Pool::for_this_machine(Duration::from_micros(50)))
}

/// Fills the area with bytes that look like the volume's ciphertext: zeros encrypted with `cipher`, whose key must be discarded.
///
/// Without a password this cannot be told from used sectors, unless the cipher is broken. With a password it cannot be told from a
/// hidden volume, since it decrypts to noise with the volume's key. The system's random bytes would do as well, but several times
/// more slowly. (TrueCrypt 7.1a, VolumeCreator.cpp, does the same.)
pub(super) fn fill_with(
    store: &dyn Store,
    area: Range<u64>,
    cipher: &dyn SectorCipher,
    spec: &Spec<'_>,
    pool: &Pool,
) -> Result<()> {
    let (start, size) = (area.start, area.end - area.start);
    let mut buffer = vec![0; FILL.min(size as usize)];
    let mut done = 0;
    tell(spec, done, size);
    while done < size {
        not_cancelled(spec)?;
        let part = &mut buffer[..usize::try_from(size - done).map_or(FILL, |left| left.min(FILL))];
        // A partial sector at the end of a device is encrypted as the beginning of a sector.
        let whole = part.len() / UNIT as usize * UNIT as usize;
        let first = (start + done) / UNIT;
        for_each_piece(pool, &mut part[..whole], FILL_PIECE, |at, piece| {
            piece.fill(0);
            cipher.encrypt(first + at as u64 / UNIT, piece);
        });
        random::fill(&mut part[whole..])?;
        store.write_clobbering(start + done, part)?;
        done += part.len() as u64;
        tell(spec, done, size);
    }
    Ok(())
}

/// Fills the area with the system's random bytes, without reporting progress: for headers.
pub(super) fn random(store: &dyn Store, area: Range<u64>, spec: &Spec<'_>) -> Result<()> {
    let mut buffer = vec![0; FILL.min((area.end - area.start) as usize)];
    let mut at = area.start;
    while at < area.end {
        not_cancelled(spec)?;
        let len = usize::try_from(area.end - at).map_or(FILL, |left| left.min(FILL));
        random::fill(&mut buffer[..len])?;
        store.write_clobbering(at, &mut buffer[..len])?;
        at += len as u64;
    }
    Ok(())
}

pub(super) fn cancelled(spec: &Spec<'_>) -> bool {
    spec.cancel.is_some_and(|c| c.load(Ordering::Relaxed))
}

pub(super) fn not_cancelled(spec: &Spec<'_>) -> Result<()> {
    if cancelled(spec) { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
}

/// Reports the number of bytes filled so far, and fails if the caller has cancelled.
pub(super) fn progressed(spec: &Spec<'_>, done: u64, total: u64) -> Result<()> {
    tell(spec, done, total);
    not_cancelled(spec)
}

fn tell(spec: &Spec<'_>, done: u64, total: u64) {
    if let Some(progress) = spec.progress {
        progress(done, total);
    }
}
