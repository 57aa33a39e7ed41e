//! Helpers for finding the free space at the end of a file system.

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// The result of a finder.
pub(super) struct TailReport {
    pub filesystem: &'static str,
    /// The end of the last block in use, in bytes.
    pub used: u64,
    /// The end of the file system's blocks, in bytes.
    pub end: u64,
    /// Whether the bytes after its blocks belong to it.
    pub keeps_rest: bool,
}

/// The hint for a file system that is damaged or not clean.
pub(super) const CHECK: &str =
    "Nothing was changed. Check the file system (fsck, chkdsk), or mount and unmount it once.";

/// The error for a file system that its own programs must repair first.
pub(super) fn not_clean(filesystem: &str, why: &str) -> Error {
    Error::unsupported(format!("{filesystem} that is not clean: {why}")).hint(CHECK)
}

/// The error for an unsupported feature.
pub(super) fn not_understood(filesystem: &str, what: impl std::fmt::Display) -> Error {
    Error::unsupported(format!("{filesystem} with {what}: the blocks in use cannot be determined"))
}

/// The error for a field with an impossible value.
pub(super) fn malformed(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed { field, offset, what: what.into() }).hint(CHECK)
}

/// The result of parsing a boot sector, with a hint if it is damaged.
pub(super) fn checked<T>(parsed: Result<T>) -> Result<T> {
    parsed.map_err(|e| if matches!(e.kind, ErrorKind::Malformed { .. }) { e.hint(CHECK) } else { e })
}

/// Reads a range that the file system's own fields specify.
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

/// Splits a long range into pieces, so that its length costs no memory.
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
