//! Where the free space at the end of a file system begins: the room for a hidden volume.
//!
//! What lies there will be overwritten, so nothing is guessed: a file system that is unknown, not understood in every
//! respect that matters, damaged or not cleanly unmounted is an error.

mod exfat;
mod ext;
mod fat;
mod ntfs;

use std::ops::Range;

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
struct TailReport {
    filesystem: &'static str,
    /// The end of the last block in use, in bytes.
    used: u64,
    /// The end of the file system's blocks, in bytes.
    end: u64,
    /// Whether the bytes after its blocks belong to it.
    keeps_rest: bool,
}

/// Looks for a file system; `None` if the store does not hold one of its kind.
type Finder = fn(&dyn Store) -> Result<Option<TailReport>>;

/// Every supported file system. exFAT and NTFS come first: their boot sectors resemble that of FAT.
static FINDERS: &[Finder] = &[exfat::find, ntfs::find, ext::find, fat::find];

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
    for find in FINDERS {
        let Some(found) = find(store)? else { continue };
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

/// What to try if a file system is damaged or not clean.
const CHECK: &str = "Nothing was changed. Check the file system (fsck, chkdsk), or mount and unmount it once.";

/// A file system that its own programs have to repair first.
fn not_clean(filesystem: &str, why: &str) -> Error {
    Error::unsupported(format!("{filesystem} that is not clean: {why}")).hint(CHECK)
}

/// A feature that is not supported here.
fn not_understood(filesystem: &str, what: impl std::fmt::Display) -> Error {
    Error::unsupported(format!("{filesystem} with {what}: the blocks in use cannot be determined"))
}

/// A field with an impossible value.
fn malformed(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed { field, offset, what: what.into() }).hint(CHECK)
}

/// Reads a range that comes from the file system's own numbers.
fn read(store: &dyn Store, field: &'static str, offset: u64, len: usize) -> Result<Vec<u8>> {
    in_store(store, field, offset, len as u64)?;
    let mut bytes = vec![0; len];
    store.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

/// Fails unless the range lies within the store.
fn in_store(store: &dyn Store, field: &'static str, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= store.len() => Ok(()),
        _ => Err(malformed(field, offset, format!("{len} bytes there reach past the end of the volume"))),
    }
}

/// A long range in pieces, so that its length costs no memory.
fn pieces(range: Range<u64>, piece: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    (0..(end - start).div_ceil(piece)).map(move |i| start + i * piece..end.min(start + (i + 1) * piece))
}

/// The last set bit below `bits` in a bitmap whose lowest bit comes first.
fn last_bit(bitmap: &[u8], bits: u64) -> Option<u64> {
    (0..bits.div_ceil(8)).rev().find_map(|i| {
        let byte = bitmap[i as usize] & mask(bits - i * 8);
        (byte != 0).then(|| i * 8 + u64::from(byte.ilog2()))
    })
}

/// How many bits below `bits` are set.
fn count_bits(bitmap: &[u8], bits: u64) -> u64 {
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
