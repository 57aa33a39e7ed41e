//! Where the free space at the end of a file system begins: the room for a hidden volume.
//!
//! What lies there will be overwritten, so nothing is guessed: a file system that is unknown, not understood in every
//! respect that matters, damaged or not cleanly unmounted is an error.

use std::ops::Range;

use super::fat::boot_sector::{self, BootSector};
use super::{Kind, detect, exfat, ext, fat, ntfs};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// The free space at the end of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeTail {
    /// Where it begins, in bytes of the store: after the last block or cluster in use.
    pub at: u64,
    /// Where it ends: at the end of the store, or before what the file system keeps there.
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

/// What a finder reports.
pub(super) struct TailReport {
    pub filesystem: &'static str,
    /// The end of the last block in use, in bytes.
    pub used: u64,
    /// The end of the file system's blocks, in bytes.
    pub end: u64,
    /// Whether the bytes after its blocks belong to it.
    pub keeps_rest: bool,
}

/// Looks for a file system, of which it gets the first 512 bytes; `None` if the store does not hold one of its kind.
type Finder = fn(&dyn Store, &[u8]) -> Result<Option<TailReport>>;

/// Every supported file system. exFAT and NTFS come first: their boot sectors resemble that of FAT.
static FINDERS: &[Finder] =
    &[exfat::free_tail::find, ntfs::free_tail::find, ext::free_tail::find, fat::free_tail::find];

/// Finds the free space at the end of the file system in `store`, the plaintext of a volume.
///
/// # Errors
/// `Unsupported` for a file system that is unknown, not clean or has an unsupported feature; `Malformed` for a damaged
/// one; `Io`.
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

/// Bytes behind the end of the file system in `store`, where those are more than making it has rounded away.
///
/// # Errors
/// Those of [`free_tail`].
pub fn behind_its_end(store: &dyn Store) -> Result<Option<u64>> {
    let TailReport { end, .. } = found(store)?;
    Ok(ends_early(store.len(), end).then(|| store.len() - end))
}

/// Making a file system rounds its size down; one that is much smaller was made that way, perhaps to leave room for
/// something after it.
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

/// Where the file system in `store` ends by its boot sector, with all that belongs to it. `None` if it is not FAT, exFAT or NTFS.
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

/// The first 512 bytes of a store; nothing of one that is smaller.
fn first_sector(store: &dyn Store) -> Result<Vec<u8>> {
    let len = if store.len() < boot_sector::LEN as u64 { 0 } else { boot_sector::LEN };
    read(store, "boot sector", 0, len)
}

/// What to try if a file system is damaged or not clean.
const CHECK: &str = "Nothing was changed. Check the file system (fsck, chkdsk), or mount and unmount it once.";

/// A file system that its own programs have to repair first.
pub(super) fn not_clean(filesystem: &str, why: &str) -> Error {
    Error::unsupported(format!("{filesystem} that is not clean: {why}")).hint(CHECK)
}

/// A feature that is not supported here.
pub(super) fn not_understood(filesystem: &str, what: impl std::fmt::Display) -> Error {
    Error::unsupported(format!("{filesystem} with {what}: the blocks in use cannot be determined"))
}

/// A field with an impossible value.
pub(super) fn malformed(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed { field, offset, what: what.into() }).hint(CHECK)
}

/// What a parser says of a boot sector, with what to try if that is damaged.
pub(super) fn checked<T>(parsed: Result<T>) -> Result<T> {
    parsed.map_err(|e| if matches!(e.kind, ErrorKind::Malformed { .. }) { e.hint(CHECK) } else { e })
}

/// Reads a range that comes from the file system's own numbers.
pub(super) fn read(store: &dyn Store, field: &'static str, offset: u64, len: usize) -> Result<Vec<u8>> {
    in_store(store, field, offset, len as u64)?;
    let mut bytes = vec![0; len];
    store.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

/// Fails unless the range lies within the store.
pub(super) fn in_store(store: &dyn Store, field: &'static str, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= store.len() => Ok(()),
        _ => Err(malformed(field, offset, format!("{len} bytes there reach past the end of the volume"))),
    }
}

/// A long range in pieces, so that its length costs no memory.
pub(super) fn pieces(range: Range<u64>, piece: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    (0..(end - start).div_ceil(piece)).map(move |i| start + i * piece..end.min(start + (i + 1) * piece))
}

/// The last set bit below `bits` in a bitmap whose lowest bit comes first.
pub(super) fn last_bit(bitmap: &[u8], bits: u64) -> Option<u64> {
    (0..bits.div_ceil(8)).rev().find_map(|i| {
        let byte = bitmap[i as usize] & mask(bits - i * 8);
        (byte != 0).then(|| i * 8 + u64::from(byte.ilog2()))
    })
}

/// How many bits below `bits` are set.
pub(super) fn count_bits(bitmap: &[u8], bits: u64) -> u64 {
    let byte = |i: u64| u64::from((bitmap[i as usize] & mask(bits - i * 8)).count_ones());
    (0..bits.div_ceil(8)).map(byte).sum()
}

/// The lowest `bits` bits of a byte.
fn mask(bits: u64) -> u8 {
    if bits >= 8 { 0xff } else { (1 << bits) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_lowest_and_only_as_far_as_they_count() {
        for bits in 0..40u64 {
            for set in 0..40u64 {
                let mut bitmap = [0; 5];
                bitmap[set as usize / 8] |= 1 << (set % 8);
                let expected = (set < bits).then_some(set);
                assert_eq!(last_bit(&bitmap, bits), expected, "{set} of {bits}");
                assert_eq!(count_bits(&bitmap, bits), u64::from(set < bits));
            }
        }
        assert_eq!((last_bit(&[0xff, 0x0f], 16), count_bits(&[0xff, 0x0f], 16)), (Some(11), 12));
    }

    #[test]
    fn pieces_cover_a_range_once() {
        for (start, end) in [(0, 0), (3, 3), (0, 10), (5, 15), (7, 8), (0, 11)] {
            let all: Vec<u64> = pieces(start..end, 5).flatten().collect();
            assert_eq!(all, (start..end).collect::<Vec<_>>());
        }
    }
}
