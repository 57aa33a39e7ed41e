//! The master boot record: four entries in the first sector of a disk, and a chain of sectors for logical partitions.

use super::{Partition, PartitionTable, SECTOR, TableKind, malformed};
use crate::error::Result;
use crate::filesystems::detect;
use crate::store::Store;

// The sector. Numbers are little-endian; source: UEFI specification 2.10, 5.2.1, and util-linux,
// libblkid/partitions/dos.c.
//
//   0 ┌──────────────────────────────────────────────────────────────┐
//     │ code, and since Windows NT the disk's number at 440          │
// 446 ├──────────────────────────────────────────────────────────────┤
//     │ four entries of 16 bytes:                                    │
//     │ 0 80 if active │ 1 cylinder, head, sector (not used) │ 4 type│
//     │ 5 the last cylinder, head, sector │ 8 start 4 │ 12 sectors 4 │
// 510 ├──────────────────────────────────────────────────────────────┤
//     │ 55 AA                                                        │
// 512 └──────────────────────────────────────────────────────────────┘
const ENTRIES: usize = 446;
const ENTRY: usize = 16;
const SIGNATURE: usize = 510;

/// The type of the entry that protects a GPT from programs that do not know it.
const PROTECTIVE: u8 = 0xee;

/// The types of extended partitions, which contain logical ones: DOS, Windows 95, and Linux.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// The most logical partitions that are read: a longer chain is not a table.
const MOST_LOGICAL: u32 = 256;

/// The contents of a disk's first sector.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No master boot record: a boot sector of a file system, or something else.
    None,
    /// A table without partitions.
    Empty,
    /// A table with partitions.
    Table,
    /// A protective entry: a GPT follows.
    Protective,
}

#[derive(Clone, Copy)]
struct Entry {
    active: u8,
    kind: u8,
    /// In sectors, relative to an offset that depends on the kind of entry.
    start: u32,
    /// In sectors.
    len: u32,
}

/// Classifies the first sector of a disk. A file system's boot sector ends with the same signature, and has code or
/// text in place of the entries.
pub(super) fn classify(sector: &[u8; SECTOR as usize]) -> Kind {
    if *sector == [0; SECTOR as usize] {
        return Kind::Empty;
    }
    let entries = entries(sector);
    if sector[SIGNATURE..] != [0x55, 0xaa] || entries.iter().any(|e| e.active & 0x7f != 0) {
        return Kind::None;
    }
    let used: Vec<&Entry> = entries.iter().filter(|e| e.kind != 0).collect();
    let sensible = used.iter().all(|e| e.start > 0 && e.len > 0);
    if !sensible && detect::names_itself(sector) {
        return Kind::None;
    }
    match used.iter().any(|e| e.kind == PROTECTIVE) {
        true => Kind::Protective,
        false if used.is_empty() => Kind::Empty,
        false => Kind::Table,
    }
}

pub(super) fn read(store: &dyn Store, sector: &[u8; SECTOR as usize]) -> Result<PartitionTable> {
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries(sector)).filter(|(_, e)| e.kind != 0) {
        partitions.push(entry.partition(number, 0));
    }
    let extended: Vec<Partition> = partitions.iter().filter(|p| p.extended).cloned().collect();
    match &extended[..] {
        [] => {}
        [one] => partitions.extend(logical(store, one)?),
        _ => return Err(malformed("partition types", ENTRIES as u64, "there are several extended partitions".into())),
    }
    Ok(PartitionTable { kind: TableKind::Mbr, sector_size: SECTOR as u32, partitions, warnings: Vec::new() })
}

/// The logical partitions: each has a sector like the first, with an entry for itself, relative to this sector, and one
/// for the next such sector, relative to the extended partition.
fn logical(store: &dyn Store, extended: &Partition) -> Result<Vec<Partition>> {
    let mut partitions: Vec<Partition> = Vec::new();
    let mut seen = Vec::new();
    let mut at = extended.start;
    let inside = |at: u64| at >= extended.start && at < extended.start + extended.len;
    while seen.len() < MOST_LOGICAL as usize {
        let wrong = |what: &str| malformed("chain of logical partitions", at, what.to_owned());
        if seen.contains(&at) {
            return Err(wrong("it forms a loop"));
        }
        if !inside(at) || at > store.len() - SECTOR {
            return Err(wrong("it leaves the extended partition or the disk"));
        }
        seen.push(at);
        let mut sector = [0; SECTOR as usize];
        store.read_at(at, &mut sector)?;
        if sector[SIGNATURE..] != [0x55, 0xaa] {
            // An empty extended partition's first sector may never have been written.
            let nothing = at == extended.start && sector == [0; SECTOR as usize];
            return if nothing { Ok(partitions) } else { Err(wrong("one of its sectors has no signature")) };
        }
        let [own, next, ..] = entries(&sector);
        if own.kind != 0 && !EXTENDED.contains(&own.kind) {
            let partition = own.partition(5 + partitions.len() as u32, at);
            let end = partition.start.saturating_add(partition.len);
            if partition.start <= at || end > extended.start + extended.len {
                return Err(wrong("a logical partition is outside the extended one, or before its own entry"));
            }
            partitions.push(partition);
        }
        if !EXTENDED.contains(&next.kind) {
            return Ok(partitions);
        }
        at = extended.start + u64::from(next.start) * SECTOR;
    }
    Err(malformed("chain of logical partitions", at, format!("more than {MOST_LOGICAL} logical partitions")))
}

fn entries(sector: &[u8; SECTOR as usize]) -> [Entry; 4] {
    std::array::from_fn(|i| {
        let entry: &[u8; ENTRY] = sector[ENTRIES + i * ENTRY..].first_chunk().expect("four entries");
        let le32 = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        Entry { active: entry[0], kind: entry[4], start: le32(8), len: le32(12) }
    })
}

impl Entry {
    /// `base` is the offset that the entry's sectors are relative to, in bytes.
    fn partition(&self, number: u32, base: u64) -> Partition {
        Partition {
            number,
            start: base + u64::from(self.start) * SECTOR,
            len: u64::from(self.len) * SECTOR,
            kind: format!("{:02x}", self.kind),
            usual: usual(self.kind),
            name: None,
            extended: EXTENDED.contains(&self.kind),
        }
    }
}

fn usual(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0x01 => "FAT12",
        0x04 | 0x06 | 0x0e => "FAT16",
        0x0b | 0x0c => "FAT32",
        0x05 | 0x0f | 0x85 => "extended",
        0x07 => "NTFS or exFAT",
        0x27 => "Windows recovery",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x8e => "Linux LVM",
        0xe8 => "Linux LUKS",
        0xef => "EFI system",
        0xfd => "Linux RAID",
        _ => return None,
    })
}
