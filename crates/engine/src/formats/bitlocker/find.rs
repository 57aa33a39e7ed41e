//! Finds metadata to which no boot sector points any more, as Windows' repair tool does: by their signature, a matching checksum,
//! and their own offset among those that they list.

use super::boot::{Boot, Kind, SIGNATURE};
use super::datum::{kind, role};
use super::eow::Information;
use super::layout::recorded_sector_size;
use super::metadata::{Copy, Metadata, VISTA};
use crate::error::{ErrorKind, Result};
use crate::little_endian::u64_at;
use crate::store::Store;

/// How many bytes are searched when a volume is only identified.
pub(super) const NEAR: u64 = 64 << 20;

/// How many bytes are read at a time.
const PIECE: usize = 1 << 20;
/// The maximum number of false signatures that are checked: each takes time.
const MOST_FALSE: usize = 4096;
/// The alignment of metadata, in bytes.
const ALIGNMENT: usize = 512;

/// The offset in the datum of the volume's header: flags for the kind of volume.
const FLAGS: usize = 24;
const TO_GO: u64 = 0x800;
/// Also set in [`TO_GO`].
const ENCRYPT_ON_WRITE: u64 = 0x40;

/// Returns a substitute for the boot sector, from the first intact metadata within `reach` bytes. `go_on` receives the progress and
/// can end the search.
///
/// # Errors
/// `Io`; `Cancelled`.
pub(super) fn find(store: &dyn Store, reach: u64, go_on: &dyn Fn(u64) -> bool) -> Result<Option<Boot>> {
    let copy = search(store, reach, go_on, SIGNATURE, |at| Ok(Copy::read(store, at).ok()))?;
    let Some(copy) = copy else { return Ok(None) };
    let mut boot = boot_of(&copy.metadata);
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

/// Returns a substitute for the boot sector, made from the metadata.
pub(super) fn boot_of(metadata: &Metadata) -> Boot {
    let header = metadata.datum(role::HEADER, kind::HEADER_PLACE).map_or(&[][..], |datum| &datum.value);
    let flags = if header.len() >= FLAGS + 8 { u64_at(header, FLAGS) } else { 0 };
    let kind = match metadata.version {
        VISTA => Kind::Vista,
        _ if flags & TO_GO != 0 => Kind::ToGo,
        _ if flags & ENCRYPT_ON_WRITE != 0 => Kind::EncryptOnWrite,
        _ => Kind::Windows7,
    };
    // The size of the same beginning in bytes, divided by its number of sectors.
    let divided = || u32::try_from(u64_at(header.get(8..16)?, 0).checked_div(metadata.header_sectors.into())?).ok();
    let sector_size =
        recorded_sector_size(metadata).or_else(divided).filter(|size| matches!(size, 512 | 4096)).unwrap_or(512);
    Boot {
        kind,
        sector_size,
        says_sector_size: true,
        cluster: sector_size.into(),
        metadata: metadata.copies.to_vec(),
        eow: None,
    }
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
