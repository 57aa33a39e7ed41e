//! Where the free space at the end of a file system begins, as room for a hidden volume.
//!
//! The space found will be overwritten, so nothing is guessed. A file system that is unknown, not fully supported, damaged or not
//! cleanly unmounted is an error.

use super::fat::boot_sector::{self, BootSector};
use super::tail::{CHECK, TailReport, checked, read};
use super::{Kind, detect, exfat, ext, fat, ntfs};
use crate::error::{Error, Result};
use crate::store::Store;

/// The free space at the end of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeTail {
    /// The offset of its beginning in the store, in bytes: after the last block or cluster in use.
    pub at: u64,
    /// The offset of its end, in bytes: the end of the store, or of the file system's last block if it uses the bytes after.
    pub end: u64,
    /// The file system's usual name: `FAT32`.
    pub filesystem: &'static str,
}

impl FreeTail {
    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.at
    }

    /// Whether there is no free space.
    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }
}

/// Looks for a file system, given its first 512 bytes. Returns `None` if it is of another kind.
type Finder = fn(&dyn Store, &[u8]) -> Result<Option<TailReport>>;

/// All supported file systems. exFAT and NTFS come first, because their boot sectors resemble FAT's.
static FINDERS: &[Finder] =
    &[exfat::free_tail::find, ntfs::free_tail::find, ext::free_tail::find, fat::free_tail::find];

/// Finds the free space at the end of the file system in `store`, the plaintext of a volume.
///
/// # Errors
/// `Unsupported` for a file system that is unknown, not clean or has an unsupported feature; `Malformed` for a damaged one; `Io`.
pub fn free_tail(store: &dyn Store) -> Result<FreeTail> {
    let TailReport { filesystem, used, end, keeps_rest } = found(store)?;
    let len = store.len();
    if ends_early(len, end) {
        let what = format!("a file system ({filesystem}) that ends {} bytes before the volume does", len - end);
        return Err(Error::unsupported(what)
            .hint("Something else may use the space after it. Grow the file system to the whole volume."));
    }
    Ok(FreeTail { at: used, end: if keeps_rest { end } else { len }, filesystem })
}

/// The number of bytes after the end of the file system in `store`; `None` if they are few enough to result from rounding.
///
/// # Errors
/// Those of [`free_tail`].
pub fn behind_its_end(store: &dyn Store) -> Result<Option<u64>> {
    let TailReport { end, .. } = found(store)?;
    Ok(ends_early(store.len(), end).then(|| store.len() - end))
}

/// Whether a file system ends well before its store. Formatting rounds the size down only a little. A much smaller one was made
/// that way, perhaps to leave room for something after it.
fn ends_early(len: u64, end: u64) -> bool {
    len - end > len / 8
}

fn found(store: &dyn Store) -> Result<TailReport> {
    let first = first_sector(store)?;
    for find in FINDERS.iter().filter(|_| !first.is_empty()) {
        let Some(found) = find(store, &first)? else { continue };
        let TailReport { filesystem, used, end, .. } = found;
        let len = store.len();
        if used > end || end > len {
            let what =
                format!("{filesystem}: its blocks end at byte {end}, the used ones at {used}, the volume at {len}");
            return Err(Error::unsupported(what).hint(CHECK));
        }
        return Ok(found);
    }
    Err(Error::unsupported("finding free space outside FAT, exFAT, NTFS and ext file systems")
        .hint("First create one of these in the volume, and put presentable files in it."))
}

/// The end of the file system in `store` according to its boot sector, including everything that belongs to it. `None` if it is not
/// FAT, exFAT or NTFS.
///
/// # Errors
/// `Malformed`; `Unsupported` for a later version; `Io`.
pub(crate) fn end_by_boot_sector(store: &dyn Store) -> Result<Option<u64>> {
    let first = first_sector(store)?;
    checked(match detect(store)?.map(|found| found.kind) {
        Some(Kind::Ntfs) => {
            ntfs::boot_sector::NtfsBootSector::parse(&first).map(|boot| boot.len.checked_add(boot.sector))
        }
        Some(Kind::ExFat) => exfat::boot_sector::region(store, None).map(|boot| Some(boot.len)),
        Some(Kind::Fat12 | Kind::Fat16 | Kind::Fat32) => BootSector::parse(&first).map(|boot| Some(boot.len)),
        _ => Ok(None),
    })
}

/// The first 512 bytes of a store; empty if the store is smaller.
fn first_sector(store: &dyn Store) -> Result<Vec<u8>> {
    let len = if store.len() < boot_sector::LEN as u64 { 0 } else { boot_sector::LEN };
    read(store, "boot sector", 0, len)
}
