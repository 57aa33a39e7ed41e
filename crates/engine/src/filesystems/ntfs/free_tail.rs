//! Where the free space at the end of an NTFS begins.
//!
//! Source: Linux-NTFS project, "NTFS Documentation", and the structures of ntfs-3g (include/ntfs-3g/layout.h,
//! logfile.h).

use super::boot_sector::{self, NtfsBootSector};
use crate::error::Result;
use crate::filesystems::tail::{
    TailReport, checked, in_store, last_bit, malformed, not_clean, not_understood, pieces, read,
};
use crate::little_endian::{u16_at, u32_at, u64_at};
use crate::store::Store;

const NAME: &str = "NTFS";

/// Record numbers in the MFT.
const MFT: u64 = 0;
const LOG_FILE: u64 = 2;
const VOLUME: u64 = 3;
const BITMAP: u64 = 6;

/// Types of attributes.
const ATTRIBUTE_LIST: u32 = 0x20;
const VOLUME_INFORMATION: u32 = 0x70;
const DATA: u32 = 0x80;
const NO_MORE: u32 = 0xffff_ffff;

/// Volume flags: not unmounted, or needs chkdsk (layout.h, `VOLUME_FLAGS`).
const NOT_CLEAN: u16 = 0x0001 | 0x4000 | 0x8000;

/// The size of a piece of the bitmap that is read at a time, in bytes.
const PIECE: u64 = 1 << 20;

pub fn find(store: &dyn Store, first: &[u8]) -> Result<Option<TailReport>> {
    if !boot_sector::is_one(first) {
        return Ok(None);
    }
    let NtfsBootSector { cluster, clusters, mft, record, len, .. } = checked(NtfsBootSector::parse(first))?;
    in_store(store, "number of sectors", 0, len)?;
    let fs = Fs { store, cluster, clusters, mft, record };
    fs.check_volume()?;
    fs.check_log()?;
    let used = fs.last_used()? * fs.cluster;
    // The last whole cluster is followed by a copy of the boot sector.
    Ok(Some(TailReport { filesystem: NAME, used, end: fs.clusters * fs.cluster, keeps_rest: true }))
}

/// The file system. Offsets and sizes are in bytes, unless noted otherwise.
struct Fs<'a> {
    store: &'a dyn Store,
    cluster: u64,
    clusters: u64,
    mft: u64,
    record: u64,
}

/// The contents of an attribute.
enum Contents {
    Resident(Vec<u8>),
    /// The length in bytes, and the locations of the data.
    Runs(u64, Vec<Run>),
}

/// Contiguous clusters, in bytes of the store; a hole has no offset.
struct Run {
    at: Option<u64>,
    len: u64,
}

impl Fs<'_> {
    fn check_volume(&self) -> Result<()> {
        let (at, record) = self.record(VOLUME)?;
        let Some(Contents::Resident(info)) = self.attribute(at, &record, VOLUME_INFORMATION)? else {
            return Err(malformed("$Volume", at, "it has no flags"));
        };
        if info.len() < 12 {
            return Err(malformed("$Volume", at, "its flags are cut short"));
        }
        if !matches!(info[8], 1 | 3) {
            return Err(not_understood(NAME, format_args!("version {}.{}", info[8], info[9])));
        }
        match u16_at(&info, 10) & NOT_CLEAN {
            0 => Ok(()),
            _ => Err(not_clean(NAME, "it was not unmounted, or is marked for a check by Windows")),
        }
    }

    /// Fails unless the journal is empty or closed (ntfs-3g, libntfs-3g/logfile.c, `ntfs_is_logfile_clean`).
    fn check_log(&self) -> Result<()> {
        let (at, record) = self.record(LOG_FILE)?;
        let Some(Contents::Runs(len, runs)) = self.attribute(at, &record, DATA)? else {
            return Err(malformed("$LogFile", at, "it has no data"));
        };
        let in_doubt = || not_clean(NAME, "its journal may not have been replayed");
        // The two pages at the beginning record whether it was closed; the newer one is valid.
        let first = self.page(&runs, len, 0)?;
        if first.iter().all(|b| *b == 0xff) {
            return Ok(());
        }
        let page_len = match restart(&first) {
            Some((_, _, page_len)) => page_len,
            None => return Err(in_doubt()),
        };
        let second = self.page(&runs, len, page_len)?;
        let newest = [restart(&first), restart(&second)].into_iter().flatten().max_by_key(|(lsn, ..)| *lsn);
        match newest {
            Some((_, true, _)) => Ok(()),
            _ => Err(in_doubt()),
        }
    }

    /// The beginning of a page of the journal.
    fn page(&self, runs: &[Run], len: u64, offset: u64) -> Result<Vec<u8>> {
        let mut before = 0;
        for run in runs {
            if offset < before + run.len {
                let at = run.at.ok_or_else(|| malformed("$LogFile", self.mft, "it has a hole"))? + (offset - before);
                let size = 512.min(before + run.len - offset).min(len.saturating_sub(offset));
                return match size {
                    512 => read(self.store, "$LogFile", at, 512),
                    _ => break,
                };
            }
            before += run.len;
        }
        Err(malformed("$LogFile", self.mft, "it is too short"))
    }

    /// One more than the number of the last cluster in use.
    fn last_used(&self) -> Result<u64> {
        let (at, record) = self.record(BITMAP)?;
        let contents = self.attribute(at, &record, DATA)?;
        let too_short = || malformed("$Bitmap", at, format!("too few bits for {} clusters", self.clusters));
        let contents = contents.ok_or_else(too_short)?;
        let needed = self.clusters.div_ceil(8);
        let (len, runs) = match contents {
            Contents::Resident(bytes) if bytes.len() as u64 >= needed => {
                return last_bit(&bytes, self.clusters).map_or_else(|| Err(too_short()), |bit| Ok(bit + 1));
            }
            Contents::Resident(_) => return Err(too_short()),
            Contents::Runs(len, runs) => (len, runs),
        };
        if len < needed || runs.iter().map(|r| r.len).sum::<u64>() < needed {
            return Err(too_short());
        }
        let mut used = 0;
        let mut first = 0;
        for run in runs {
            let bitmap = run.at.ok_or_else(|| malformed("$Bitmap", at, "it has a hole"))?;
            for piece in pieces(0..run.len.min(needed - first / 8), PIECE) {
                let bytes = read(self.store, "$Bitmap", bitmap + piece.start, (piece.end - piece.start) as usize)?;
                let before = first + piece.start * 8;
                if let Some(bit) = last_bit(&bytes, (bytes.len() as u64 * 8).min(self.clusters - before)) {
                    used = before + bit + 1;
                }
            }
            first += run.len * 8;
            if first / 8 >= needed {
                break;
            }
        }
        // The boot sector, the MFT and the bitmap itself are in use.
        if used * self.cluster <= self.mft {
            return Err(malformed("$Bitmap", at, "it marks the MFT as free"));
        }
        Ok(used)
    }

    /// An MFT record with its update sequence undone, and its offset.
    fn record(&self, number: u64) -> Result<(u64, Vec<u8>)> {
        let at = match number {
            MFT => self.mft,
            _ => self.record_at(number * self.record)?,
        };
        let mut record = read(self.store, "MFT", at, self.record as usize)?;
        if &record[..4] != b"FILE" {
            return Err(malformed("MFT", at, format!("record {number} has no FILE mark")));
        }
        // A number at the end of each 512 bytes proves that all of them were written. An array holds the bytes that it replaced.
        let (array, count) = (u16_at(&record, 4) as usize, u16_at(&record, 6) as usize);
        if count != record.len() / 512 + 1 || array + count * 2 > 510 {
            return Err(malformed("MFT", at + 4, "its update sequence does not fit"));
        }
        for i in 1..count {
            let end = i * 512 - 2;
            if record[end..end + 2] != record[array..array + 2] {
                return Err(malformed("MFT", at + end as u64, format!("record {number} was not written whole")));
            }
            record.copy_within(array + i * 2..array + i * 2 + 2, end);
        }
        if u16_at(&record, 22) & 1 == 0 {
            return Err(malformed("MFT", at + 22, format!("record {number} is not in use")));
        }
        Ok((at, record))
    }

    /// The offset in the store of byte `offset` of the MFT. Only the first records are needed, and the first run holds them.
    fn record_at(&self, offset: u64) -> Result<u64> {
        let (at, mft) = self.record(MFT)?;
        let Some(Contents::Runs(_, runs)) = self.first_extent(at, &mft, DATA)? else {
            return Err(malformed("$MFT", at, "it has no data"));
        };
        let mut before = 0;
        for run in runs {
            if offset + self.record <= before + run.len
                && let Some(start) = run.at.filter(|_| offset >= before)
            {
                return Ok(start + offset - before);
            }
            before += run.len;
        }
        Err(malformed("$MFT", at, "its first records are not where they should be"))
    }

    /// The whole unnamed attribute of a type.
    fn attribute(&self, at: u64, record: &[u8], kind: u32) -> Result<Option<Contents>> {
        if self.first_extent(at, record, ATTRIBUTE_LIST)?.is_some() {
            return Err(not_understood(NAME, "a system file split over several records"));
        }
        self.first_extent(at, record, kind)
    }

    /// The unnamed attribute of a type, or the part of it in this record.
    fn first_extent(&self, at: u64, record: &[u8], kind: u32) -> Result<Option<Contents>> {
        let wrong = |offset: usize| malformed("MFT", at + offset as u64, "an attribute does not fit its record");
        let mut offset = u16_at(record, 20) as usize;
        loop {
            let head = record.get(offset..).filter(|rest| rest.len() >= 4).ok_or_else(|| wrong(offset))?;
            if u32_at(head, 0) == NO_MORE {
                return Ok(None);
            }
            let len = head.get(4..8).map_or(0, |len| u32_at(len, 0) as usize);
            let attribute = head.get(..len).filter(|a| a.len() >= 24).ok_or_else(|| wrong(offset))?;
            if u32_at(attribute, 0) == kind && attribute[9] == 0 {
                return self.contents(attribute, at + offset as u64).map(Some);
            }
            offset += len;
        }
    }

    fn contents(&self, attribute: &[u8], at: u64) -> Result<Contents> {
        let wrong = || malformed("MFT", at, "an attribute's contents do not fit");
        if attribute[8] == 0 {
            let (len, start) = (u32_at(attribute, 16) as usize, u16_at(attribute, 20) as usize);
            let value = attribute.get(start..).and_then(|rest| rest.get(..len)).ok_or_else(wrong)?;
            return Ok(Contents::Resident(value.to_vec()));
        }
        if attribute.len() < 64 || u64_at(attribute, 16) != 0 {
            return Err(wrong());
        }
        if u16_at(attribute, 12) != 0 {
            return Err(not_understood(NAME, "a compressed, encrypted or sparse system file"));
        }
        let runs = attribute.get(u16_at(attribute, 32) as usize..).ok_or_else(wrong)?;
        Ok(Contents::Runs(u64_at(attribute, 48), self.runs(runs).ok_or_else(wrong)?))
    }

    /// Decodes a run list. Each run is a byte with the sizes of two numbers, then the length and the signed distance from the
    /// previous run, both in clusters.
    fn runs(&self, mut list: &[u8]) -> Option<Vec<Run>> {
        let mut runs = Vec::new();
        let mut lcn = 0i64;
        let mut total = 0u64;
        while let Some((&sizes, rest)) = list.split_first().filter(|(sizes, _)| **sizes != 0) {
            let (len_size, distance_size) = (usize::from(sizes & 15), usize::from(sizes >> 4));
            if len_size == 0 || len_size > 8 || distance_size > 8 || rest.len() < len_size + distance_size {
                return None;
            }
            let len = u64::try_from(signed(&rest[..len_size])).ok().filter(|len| (1..=self.clusters).contains(len))?;
            total = total.checked_add(len).filter(|total| *total <= self.clusters)?;
            let at = if distance_size == 0 {
                None
            } else {
                lcn = lcn.checked_add(signed(&rest[len_size..][..distance_size]))?;
                Some(u64::try_from(lcn).ok().filter(|lcn| *lcn <= self.clusters - len)? * self.cluster)
            };
            runs.push(Run { at, len: len * self.cluster });
            list = &rest[len_size + distance_size..];
        }
        Some(runs)
    }
}

/// A signed little-endian number of one to eight bytes.
fn signed(bytes: &[u8]) -> i64 {
    let mut all = if bytes[bytes.len() - 1] & 0x80 == 0 { [0; 8] } else { [0xff; 8] };
    all[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(all)
}

/// Parses a restart page of the journal: its sequence number, whether the journal was closed cleanly, and the page size in bytes.
/// (logfile.h: `RESTART_PAGE_HEADER`, `RESTART_AREA`)
fn restart(page: &[u8]) -> Option<(u64, bool, u64)> {
    if &page[..4] != b"RSTR" {
        return None;
    }
    let page_len = u64::from(u32_at(page, 16));
    let area = page.get(u16_at(page, 24) as usize..).filter(|area| area.len() >= 16)?;
    // The update sequence does not affect the first 510 bytes.
    if u16_at(page, 24) as usize + 16 > 510 || !(512..=65536).contains(&page_len) {
        return None;
    }
    let (in_use, flags) = (u16_at(area, 12), u16_at(area, 14));
    Some((u64_at(area, 0), in_use == 0xffff || flags & 2 != 0, page_len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn runs_are_decoded() {
        let store = MemoryStore::default();
        let fs = Fs { store: &store, cluster: 4096, clusters: 1 << 32, mft: 4096, record: 1024 };
        // 0x30 clusters at 0x20, 0x50 clusters shortly before them, and a hole.
        let runs = fs.runs(&[0x21, 0x30, 0x20, 0x00, 0x11, 0x50, 0xf0, 0x01, 0x02, 0]).expect("a good list");
        let plain: Vec<_> = runs.iter().map(|r| (r.at.map(|at| at / 4096), r.len / 4096)).collect();
        assert_eq!(plain, [(Some(0x20), 0x30), (Some(0x10), 0x50), (None, 2)]);
        for bad in [&[0x21, 0x30, 0x20][..], &[0x11, 0x30, 0xf0], &[0x10, 0x30], &[0xff; 20], &[0x11, 0x80, 1]] {
            assert!(fs.runs(bad).is_none(), "{bad:x?}");
        }
        assert_eq!([signed(&[0xff]), signed(&[0, 0x80]), signed(&[5, 0, 0])], [-1, -32768, 5]);
    }

    #[test]
    fn the_newer_page_of_the_journal_counts() {
        let mut page = vec![0; 512];
        page[..4].copy_from_slice(b"RSTR");
        page[16..20].copy_from_slice(&4096u32.to_le_bytes());
        page[24] = 48;
        page[48] = 7;
        page[60..62].copy_from_slice(&[0, 0]);
        assert_eq!(restart(&page), Some((7, false, 4096)), "open, and not marked as clean");
        page[62] = 2;
        assert_eq!(restart(&page), Some((7, true, 4096)));
        page[60..64].copy_from_slice(&[0xff, 0xff, 0, 0]);
        assert_eq!(restart(&page), Some((7, true, 4096)), "nobody has it open");
        page[24..26].copy_from_slice(&510u16.to_le_bytes());
        assert_eq!(restart(&page), None);
    }
}
