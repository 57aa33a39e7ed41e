//! Finds metadata to which no boot sector points any more, as Windows' repair tool does: by their signature, a matching checksum,
//! and their own offset among those that they list.

use std::ops::Range;

use super::boot::{Boot, Kind};
use super::eow::Information;
use super::metadata::{Copy, SIGNATURE};
use crate::error::{ErrorKind, Result};
use crate::store::Store;

/// How many bytes are searched at each end when a volume is only identified. In exFAT, the metadata may lie at the end.
const NEAR: u64 = 64 << 20;

/// How many bytes are read at a time.
const PIECE: usize = 1 << 20;
/// The maximum number of false signatures that are checked: each takes time.
const MOST_FALSE: usize = 4096;
/// The alignment of metadata, in bytes.
const ALIGNMENT: usize = 512;

/// Returns a substitute for the boot sector, from the first intact metadata near the beginning or the end.
///
/// # Errors
/// `Io`.
pub(super) fn near(store: &dyn Store) -> Result<Option<Boot>> {
    let len = store.len();
    let end = len.saturating_sub(NEAR).max(NEAR) / PIECE as u64 * PIECE as u64;
    for part in [0..NEAR.min(len), end..len] {
        if let Some(boot) = within(store, &part, &|_| true)? {
            return Ok(Some(boot));
        }
    }
    Ok(None)
}

/// Returns a substitute for the boot sector, from the first intact metadata anywhere. `go_on` receives the progress and can end the
/// search.
///
/// # Errors
/// `Io`; `Cancelled`.
pub(super) fn anywhere(store: &dyn Store, go_on: &dyn Fn(u64) -> bool) -> Result<Option<Boot>> {
    within(store, &(0..store.len()), go_on)
}

fn within(store: &dyn Store, part: &Range<u64>, go_on: &dyn Fn(u64) -> bool) -> Result<Option<Boot>> {
    let copy = search(store, part, go_on, SIGNATURE, |at| Ok(Copy::read(store, at).ok()))?;
    let Some(copy) = copy else { return Ok(None) };
    let mut boot = Boot::of(&copy.metadata);
    if boot.kind == Kind::EncryptOnWrite {
        let sector = u64::from(boot.sector_size);
        boot.eow = search(store, part, go_on, Information::SIGNATURE, |at| {
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
    part: &Range<u64>,
    go_on: &dyn Fn(u64) -> bool,
    signature: &[u8],
    found: impl Fn(u64) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let end = part.end;
    let mut piece = vec![0; PIECE];
    let mut left = MOST_FALSE;
    for start in part.clone().step_by(PIECE) {
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
