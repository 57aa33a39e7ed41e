//! The label of a physical volume, and its metadata areas with the current text. This module does not parse the text.

use std::ops::Range;

use super::malformed;
use super::metadata::On;
use crate::error::{Error, ErrorKind, Result};
use crate::little_endian::{u32_at, u64_at};
use crate::store::Store;

/// The unit of LVM2's numbers, whatever the disk's sector size.
pub(super) const SECTOR: u64 = 512;

/// How many sectors are searched for the label, which is nearly always in the second one.
const SECTORS_LOOKED_AT: u64 = 4;

// The label, and after it in the same sector the header of the physical volume. Numbers are little-endian; sources: lvm2,
// lib/label/label.h, lib/label/label.c, lib/format_text/layout.h, lib/misc/crc.c.
//
//   0 ┌──────────────────┬──────────────────┬─────────────────────┬──────────────────────┬──────────────────┐
//     │ "LABELONE"     8 │ sector it is in 8│ CRC from 20 to 512 4│ where the rest is  4 │ "LVM2 001"     8 │
//  32 ├──────────────────┴──────┬───────────┴─────────────────────┴──────────────────────┴──────────────────┤
//     │ UUID, 32 characters     │ size of the device 8 │ data areas │ 16 zeros │ metadata areas │ 16 zeros … │
//     └─────────────────────────┴────────────────────────────────────────────────────────────────────────────┘
//
// An area: offset 8, size 8, in bytes from the beginning of the device.
const LABEL: &[u8; 8] = b"LABELONE";
const KIND: &[u8; 8] = b"LVM2 001";
const UUID: usize = 32;
const AREA: usize = 16;

// The header of a metadata area, one sector; then the text in a ring: past the end of the area it continues after the header.
//
//   0 ┌──────────────────┬──────────────────────┬────────────────┬───────────────────┬─────────────────────┐
//     │ CRC from 4 to 512│ " LVM2 x[5A%r0N*>" 16│ version, 1   4 │ where it is     8 │ size of the area  8 │
//  40 ├──────────────────┴──────────────────────┴────────────────┴───────────────────┴─────────────────────┤
//     │ the text that counts: offset from here 8 │ size 8 │ CRC 4 │ flags 4 │ one that is not yet valid … │
//     └──────────────────────────────────────────────────────────────────────────────────────────────────────┘
const MARK: &[u8; 16] = b" LVM2 x[5A%r0N*>";
const VERSION: u32 = 1;
const IGNORED: u32 = 1;

/// The most bytes of text that are read: sixteen times what lvm2 reserves.
const MOST_TEXT: u64 = 16 << 20;

/// The contents of the label.
pub(super) struct Label {
    /// The UUID of the physical volume, 32 characters without hyphens.
    pub uuid: String,
    areas: Vec<Range<u64>>,
}

/// A text with a valid checksum.
pub(super) struct Text {
    pub bytes: Vec<u8>,
    /// Its offset in the store, in bytes.
    pub at: u64,
}

/// LVM2's CRC: that of zlib without the two inversions, and with its own initial value.
fn crc(bytes: &[u8]) -> u32 {
    const INITIAL: u32 = 0xf597_a6cf;
    let mut crc = crc32fast::Hasher::new_with_initial(!INITIAL);
    crc.update(bytes);
    !crc.finalize()
}

/// Whether a UUID may contain this character (lvm2, lib/uuid/uuid.c).
pub(super) fn of_uuid(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"!#".contains(&c)
}

/// Reads the label. `None` if nothing looks like one.
pub(super) fn read(store: &dyn Store) -> Result<Option<Label>> {
    let mut wrong = None;
    for number in 0..SECTORS_LOOKED_AT.min(store.len() / SECTOR) {
        let at = number * SECTOR;
        let mut sector = [0; SECTOR as usize];
        store.read_at(at, &mut sector)?;
        if !sector.starts_with(LABEL) || sector[24..32] != *KIND {
            continue;
        }
        match label(&sector, number, store.len()) {
            Ok(label) => return Ok(Some(label)),
            Err(e) => wrong = wrong.or(Some(e)),
        }
    }
    wrong.map_or(Ok(None), Err)
}

fn label(sector: &[u8; SECTOR as usize], number: u64, len: u64) -> Result<Label> {
    let at = number * SECTOR;
    if crc(&sector[20..]) != u32_at(sector, 16) {
        return Err(malformed("checksum of the label", at, "it does not match"));
    }
    if u64_at(sector, 8) != number {
        let what = format!("it claims to be in sector {}", u64_at(sector, 8));
        return Err(malformed("position of the label", at, what));
    }
    let rest = u32_at(sector, 20) as usize;
    let body = Some(rest).filter(|rest| *rest >= 32).and_then(|rest| sector.get(rest..));
    let Some(body) = body.filter(|body| body.len() >= UUID + 8) else {
        return Err(malformed("label", at, format!("its contents cannot begin at byte {rest}")));
    };
    let uuid = &body[..UUID];
    if !uuid.iter().all(|c| of_uuid(*c)) {
        return Err(malformed("UUID of the physical volume", at + rest as u64, "it has invalid characters"));
    }
    let mut lists = areas(&body[UUID + 8..], at)?.into_iter();
    let (_data, metadata) = (lists.next(), lists.next().unwrap_or_default());
    let first = SECTORS_LOOKED_AT * SECTOR;
    for area in &metadata {
        if area.start < first || area.end > len || area.end - area.start < 2 * SECTOR {
            let what = format!("bytes {} to {}, and the volume has {len}", area.start, area.end);
            return Err(malformed("metadata areas", at, what));
        }
    }
    Ok(Label { uuid: String::from_utf8_lossy(uuid).into_owned(), areas: metadata })
}

/// The two lists: data areas and metadata areas.
fn areas(bytes: &[u8], at: u64) -> Result<[Vec<Range<u64>>; 2]> {
    let mut lists = [Vec::new(), Vec::new()];
    let mut entries = bytes.chunks_exact(AREA);
    for list in &mut lists {
        loop {
            let Some(entry) = entries.next() else {
                return Err(malformed("areas of the physical volume", at, "the list has no end"));
            };
            let (start, len) = (u64_at(entry, 0), u64_at(entry, 8));
            if start == 0 {
                break;
            }
            let Some(end) = start.checked_add(len) else {
                return Err(malformed(
                    "areas of the physical volume",
                    at,
                    format!("an area of {len} bytes at byte {start} is too large"),
                ));
            };
            list.push(start..end);
        }
    }
    Ok(lists)
}

impl Label {
    /// The physical volume, of `len` bytes, which begins at byte `base` of the store of several.
    pub fn on(&self, base: u64, len: u64) -> On<'_> {
        // Ranges outside all logical volumes: the sectors of the label, and the metadata areas.
        let reserved = std::iter::once(0..SECTORS_LOOKED_AT * SECTOR).chain(self.areas.iter().cloned()).collect();
        On { uuid: &self.uuid, base, len, reserved }
    }

    /// The error for a physical volume whose group is not known by itself.
    pub fn without_group(&self) -> Error {
        match self.areas.is_empty() {
            true => Error::unsupported("an LVM2 physical volume whose metadata are only on others")
                .hint("Give the group's other disks, too: lvm:GROUP/VOLUME@DISK,DISK."),
            false => ErrorKind::NotThisFormat("it is an LVM2 physical volume without a volume group".into()).into(),
        }
    }

    /// The text of each metadata area, in order. An unused area has none.
    ///
    /// # Errors
    /// Those of the store.
    pub fn texts(&self, store: &dyn Store) -> Result<Vec<Result<Text>>> {
        let mut texts = Vec::new();
        for area in &self.areas {
            match text(store, area) {
                Ok(text) => texts.extend(text.map(Ok)),
                Err(e) if matches!(e.kind, ErrorKind::Io(_)) => return Err(e),
                Err(e) => texts.push(Err(e)),
            }
        }
        Ok(texts)
    }
}

fn text(store: &dyn Store, area: &Range<u64>) -> Result<Option<Text>> {
    let at = area.start;
    let mut header = [0; SECTOR as usize];
    store.read_at(at, &mut header)?;
    if header[4..20] != *MARK {
        return Err(malformed("header of the metadata area", at, "its signature is missing"));
    }
    if crc(&header[4..]) != u32_at(&header, 0) {
        return Err(malformed("checksum of the metadata area's header", at, "it does not match"));
    }
    let (version, start, size) = (u32_at(&header, 20), u64_at(&header, 24), u64_at(&header, 32));
    if version != VERSION {
        return Err(Error::unsupported(format!("LVM2 metadata version {version}")));
    }
    if start != at || size > area.end - at || size < 2 * SECTOR {
        let what = format!("{size} bytes at byte {start}; the label has bytes {at} to {}", area.end);
        return Err(malformed("place of the metadata area", at, what));
    }
    let (offset, len, flags) = (u64_at(&header, 40), u64_at(&header, 48), u32_at(&header, 60));
    if offset == 0 || flags & IGNORED != 0 {
        return Ok(None);
    }
    if offset < SECTOR || offset >= size || len == 0 || len > (size - SECTOR).min(MOST_TEXT) {
        return Err(malformed("place of the metadata", at + 40, format!("{len} bytes at {offset} of {size}")));
    }
    let mut bytes = vec![0; len as usize];
    let (first, wrapped) = bytes.split_at_mut(len.min(size - offset) as usize);
    store.read_at(at + offset, first)?;
    store.read_at(at + SECTOR, wrapped)?;
    if crc(&bytes) != u32_at(&header, 56) {
        return Err(malformed("checksum of the metadata", at + offset, "it does not match"));
    }
    Ok(Some(Text { bytes, at: at + offset }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_division() {
        let slow = |bytes: &[u8]| {
            bytes.iter().fold(0xf597_a6cfu32, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
            })
        };
        for text in [&b""[..], b"a", b"LVM2 001", &[0xff; 300]] {
            assert_eq!(crc(text), slow(text));
        }
    }
}
