//! The GUID partition table: a header and an array of entries after the first sector, with a copy of both at the end.

use super::{Partition, PartitionTable, TableKind, malformed};
use crate::error::{ErrorKind, Result};
use crate::hex;
use crate::store::Store;

// The header. Numbers are little-endian; source: UEFI specification 2.10, 5.3.2.
//
//   0 ┌──────────────────┬────────────┬─────────────┬────────────────┐
//     │ "EFI PART"     8 │ revision 4 │ its size  4 │ its CRC-32   4 │
//  20 ├──────────────────┼────────────┴─────────────┼────────────────┤
//     │ zero           4 │ sector it is in        8 │ of the other 8 │
//  40 ├──────────────────┴──────┬───────────────────┴────────────────┤
//     │ first usable sector   8 │ last usable sector               8 │
//  56 ├─────────────────────────┼────────────────────────────────────┤
//     │ GUID of the disk     16 │ first sector of the entries      8 │
//  80 ├─────────────────────────┼─────────────────┬──────────────────┤
//     │ number of entries     4 │ size of each  4 │ their CRC-32   4 │
//  92 └─────────────────────────┴─────────────────┴──────────────────┘
const MARK: &[u8; 8] = b"EFI PART";
const REVISION: u32 = 0x0001_0000;
const SMALLEST_HEADER: usize = 92;

// An entry, 5.3.3.
//
// 0 type's GUID 16 │ 16 its own GUID 16 │ 32 first sector 8 │ 40 last sector 8 │ 48 attributes 8 │ 56 name, UTF-16, 72
const SMALLEST_ENTRY: usize = 128;

/// Sector sizes of disks.
const SECTOR_SIZES: [u64; 2] = [512, 4096];

/// The most bytes of entries that are read: sixty-four times what every program writes.
const MOST_BYTES_OF_ENTRIES: u64 = 1 << 20;

/// A header and its entries, with correct checksums.
#[derive(PartialEq, Eq)]
struct Copy {
    first_usable: u64,
    last_usable: u64,
    entries: Vec<u8>,
    entry_size: usize,
    /// Sector of the other copy's header.
    other: u64,
}

/// Reads the table of a disk whose first sector announces a GPT.
pub(super) fn read(store: &dyn Store) -> Result<PartitionTable> {
    let mut wrong = None;
    // The header's location reveals the sector size. Among several errors, that of an existing header takes precedence.
    for size in SECTOR_SIZES {
        match copy(store, size, 1) {
            Ok(primary) => return table(size, &primary, second(store, size, &primary)),
            Err(e) if !matches!(e.kind, ErrorKind::Malformed { .. }) => return Err(e),
            Err(e) => wrong = if marked(store, size)? { Some(e) } else { wrong.or(Some(e)) },
        }
    }
    for size in SECTOR_SIZES {
        let Some(last) = (store.len() / size).checked_sub(1) else { continue };
        if let Ok(backup) = copy(store, size, last) {
            let why = wrong.map(|e| e.kind.to_string()).unwrap_or_default();
            return table(size, &backup, Some(format!("The partition table was read from its backup: {why}.")));
        }
    }
    let wrong = wrong.expect("no copy is valid");
    Err(wrong.hint("The backup at the end of the disk is damaged or missing, too. Repair the table with gdisk."))
}

/// Reads the table of a disk whose first sector was cleared.
pub(super) fn read_unprotected(store: &dyn Store) -> Result<Option<PartitionTable>> {
    for size in SECTOR_SIZES {
        if marked(store, size)? {
            let mut table = read(store)?;
            table.warnings.push("The protective master boot record before the partition table is missing.".into());
            return Ok(Some(table));
        }
    }
    Ok(None)
}

fn marked(store: &dyn Store, size: u64) -> Result<bool> {
    let mut mark = [0; MARK.len()];
    if store.len() < 2 * size {
        return Ok(false);
    }
    store.read_at(size, &mut mark)?;
    Ok(mark == *MARK)
}

/// The warning about the second copy, if any.
fn second(store: &dyn Store, size: u64, primary: &Copy) -> Option<String> {
    match copy(store, size, primary.other) {
        Ok(backup) if backup.entries == primary.entries => None,
        Ok(_) => Some("The two copies of the partition table differ; the first is used.".to_owned()),
        Err(e) => Some(format!("The backup of the partition table cannot be used: {}.", e.kind)),
    }
}

/// The copy whose header is in sector `at`.
fn copy(store: &dyn Store, size: u64, at: u64) -> Result<Copy> {
    let offset = at.saturating_mul(size);
    let wrong = |field, what: String| malformed(field, offset, what);
    let sectors = store.len() / size;
    if at == 0 || at >= sectors {
        return Err(wrong("GPT header", format!("there is no sector {at} with {size} bytes per sector")));
    }
    let mut sector = vec![0; size as usize];
    store.read_at(offset, &mut sector)?;
    let le32 = |at: usize| u32::from_le_bytes(sector[at..at + 4].try_into().expect("four bytes"));
    let le64 = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"));
    if !sector.starts_with(MARK) {
        return Err(wrong("GPT header", "no GPT header is there".into()));
    }
    let header_size = le32(12) as usize;
    if le32(8) != REVISION || !(SMALLEST_HEADER..=sector.len()).contains(&header_size) {
        return Err(wrong("GPT header", format!("a header of revision {:#x} with {header_size} bytes", le32(8))));
    }
    let mut summed = sector[..header_size].to_vec();
    summed[16..20].fill(0);
    if crc32fast::hash(&summed) != le32(16) {
        return Err(wrong("checksum of the GPT header", "it does not match".into()));
    }
    if le64(24) != at {
        return Err(wrong("position of the GPT header", format!("it claims to be in sector {}", le64(24))));
    }
    let (first_usable, last_usable, entries_at) = (le64(40), le64(48), le64(72));
    let (count, entry_size) = (u64::from(le32(80)), le32(84) as usize);
    if first_usable > last_usable || last_usable >= sectors {
        let what = format!("{first_usable} to {last_usable}, but the disk has {sectors} sectors");
        return Err(wrong("usable sectors of the GPT", what));
    }
    let bytes = count.checked_mul(entry_size as u64).filter(|bytes| *bytes <= MOST_BYTES_OF_ENTRIES);
    let Some(bytes) = bytes.filter(|_| entry_size >= SMALLEST_ENTRY && entry_size.is_power_of_two()) else {
        return Err(wrong("entries of the GPT", format!("{count} entries of {entry_size} bytes")));
    };
    let entries_end = entries_at.checked_mul(size).and_then(|start| start.checked_add(bytes));
    if entries_at < 2 || entries_end.is_none_or(|end| end > store.len()) {
        return Err(wrong("entries of the GPT", format!("they cannot begin in sector {entries_at}")));
    }
    let mut entries = vec![0; bytes as usize];
    store.read_at(entries_at * size, &mut entries)?;
    if crc32fast::hash(&entries) != le32(88) {
        return Err(wrong("checksum of the GPT's entries", "it does not match".into()));
    }
    Ok(Copy { first_usable, last_usable, entries, entry_size, other: le64(32) })
}

fn table(size: u64, copy: &Copy, warning: Option<String>) -> Result<PartitionTable> {
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(copy.entries.chunks_exact(copy.entry_size)) {
        if entry[..16] == [0; 16] {
            continue;
        }
        let le64 = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        let (first, last) = (le64(32), le64(40));
        if first > last || first < copy.first_usable || last > copy.last_usable {
            let what = format!(
                "partition {number} has sectors {first} to {last}, outside the usable {} to {}",
                copy.first_usable, copy.last_usable
            );
            return Err(malformed("position of a partition", first.saturating_mul(size), what));
        }
        let kind = hex::guid(entry.first_chunk().expect("an entry is longer")).to_uppercase();
        let name: Vec<u16> =
            entry[56..128].as_chunks::<2>().0.iter().map(|c| u16::from_le_bytes(*c)).take_while(|c| *c != 0).collect();
        partitions.push(Partition {
            number,
            // Within the disk, because the usable sectors are.
            start: first * size,
            len: (last - first + 1) * size,
            usual: usual(&kind),
            kind,
            name: (!name.is_empty()).then(|| String::from_utf16_lossy(&name)),
            extended: false,
        });
    }
    let warnings = warning.into_iter().collect();
    Ok(PartitionTable { kind: TableKind::Gpt, sector_size: size as u32, partitions, warnings })
}

fn usual(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "C12A7328-F81F-11D2-BA4B-00A0C93EC93B" => "EFI system",
        "21686148-6449-6E6F-744E-656564454649" => "BIOS boot",
        "E3C9E316-0B5C-4DB8-817D-F92DF00215AE" => "Microsoft reserved",
        "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7" => "Microsoft basic data",
        "DE94BBA4-06D1-4D40-A16A-BFD50179D6AC" => "Windows recovery",
        "0FC63DAF-8483-4772-8E79-3D69D8477DE4" => "Linux",
        "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F" => "Linux swap",
        "E6D6D379-F507-44C2-A23C-238F2A3DF928" => "Linux LVM",
        "A19D880F-05FC-4D3B-A006-743F0F84911E" => "Linux RAID",
        "CA7D7CCB-63ED-4C53-861C-1742536059CC" => "Linux LUKS",
        "7FFEC5C9-2D00-49B7-8941-3EA10A5586B7" => "Linux dm-crypt",
        "48465300-0000-11AA-AA11-00306543ECAC" => "Apple HFS+",
        "53746F72-6167-11AA-AA11-00306543ECAC" => "Apple Core Storage",
        "7C3457EF-0000-11AA-AA11-00306543ECAC" => "Apple APFS",
        _ => return None,
    })
}
