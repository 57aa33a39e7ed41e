//! Finds metadata to which no boot sector points any more, as Windows' repair tool does: by their signature, a matching checksum,
//! and their own offset among those that they list.

use super::boot::{Boot, Kind};
use super::eow::Information;
use super::metadata::{Copy, SIGNATURE};
use crate::error::{ErrorKind, Result};
use crate::store::Store;

/// How many bytes are searched when a volume is only identified.
pub(super) const NEAR: u64 = 64 << 20;

/// How many bytes are read at a time.
const PIECE: usize = 1 << 20;
/// The maximum number of false signatures that are checked: each takes time.
const MOST_FALSE: usize = 4096;
/// The alignment of metadata, in bytes.
const ALIGNMENT: usize = 512;

/// Returns a substitute for the boot sector, from the first intact metadata within `reach` bytes. `go_on` receives the progress and
/// can end the search.
///
/// # Errors
/// `Io`; `Cancelled`.
pub(super) fn find(store: &dyn Store, reach: u64, go_on: &dyn Fn(u64) -> bool) -> Result<Option<Boot>> {
    let copy = search(store, reach, go_on, SIGNATURE, |at| Ok(Copy::read(store, at).ok()))?;
    let Some(copy) = copy else { return Ok(None) };
    let mut boot = Boot::of(&copy.metadata);
    if boot.kind == Kind::EncryptOnWrite {
        let sector = u64::from(boot.sector_size);
        boot.eow = search(store, reach, go_on, Information::SIGNATURE, |at| {
            Ok(Information::read(store, at, sector)?
                .map(|information| information.copies)
                .filter(|all| all.contains(&at)))
        })?;
    }
    Ok(Some(boot))
}

/// Returns the first place with the signature for which `found` succeeds.
fn search<T>(
    store: &dyn Store,
    reach: u64,
    go_on: &dyn Fn(u64) -> bool,
    signature: &[u8],
    found: impl Fn(u64) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let end = reach.min(store.len());
    let mut piece = vec![0; PIECE];
    let mut left = MOST_FALSE;
    for start in (0..end).step_by(PIECE) {
        if !go_on(start) {
            return Err(ErrorKind::Cancelled.into());
        }
        let piece = &mut piece[..(end - start).min(PIECE as u64) as usize];
        store.read_at(start, piece)?;
        for (number, sector) in piece.chunks(ALIGNMENT).enumerate() {
            if sector.starts_with(signature) && left > 0 {
                left -= 1;
                if let Some(found) = found(start + (number * ALIGNMENT) as u64)? {
                    return Ok(Some(found));
                }
            }
        }
    }
    Ok(None)
}
