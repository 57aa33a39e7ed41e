//! The boot region, which locates everything else, and its copy (section 3 of the specification).
//!
//! ```text
//!   3 "EXFAT   "                  84 sectors of a table, 4          104 revision: minor, major, 2   112 percent in use, 1
//!  11 zeros, 53                   88 sector of the clusters, 4      106 flags, 2                    510 55 AA
//!  64 offset of the partition, 8  92 number of clusters, 4          108 log2 of bytes per sector, 1
//!  72 sectors, 8                  96 cluster of the root, 4         109 log2 of sectors per cluster, 1
//!  80 sector of the table, 4     100 serial number, 4               110 number of tables, 1
//! ```

use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::fat::boot_sector::{BootSector, Root, SIGNATURE, Width};
use crate::little_endian::{u32_at, u64_at};
use crate::store::Store;

/// The name near the beginning of a boot sector, and its offset.
pub const NAME: (usize, &[u8]) = (3, b"EXFAT   ");
/// The number of sectors before the checksum sector (3.4), and in the whole region (3.1.6 and 2).
const SUMMED: usize = 11;
const SECTORS: usize = 12;

/// The most clusters (3.1.9).
const MOST_CLUSTERS: u32 = 0xffff_fff5;
/// The lowest sector of the first table (3.1.6).
const FIRST_TABLE: u32 = 24;

/// The offset of the flags, whose bits follow (3.1.13).
pub const FLAGS: usize = 106;
/// Flag: the second table and the second bitmap are active.
pub const SECOND: u8 = 1;
/// Flag: the file system is mounted or was not unmounted cleanly.
pub const DIRTY: u8 = 2;
/// Flag: the medium has failed.
pub const FAILURE: u8 = 4;
/// The offset of the number of tables.
pub const TABLES: usize = 110;
/// The offset of the percentage of clusters in use (3.1.18).
pub const PERCENT: u64 = 112;

/// Reads the boot region. Also returns whether only its copy is intact.
///
/// # Errors
/// The fault of the first region, if neither is intact; `Unsupported` for a later version.
pub fn read(store: &dyn Store) -> Result<(BootSector, bool)> {
    let first = match region(store, None) {
        Ok(boot) => return Ok((boot, false)),
        Err(e) => e,
    };
    // The first region may have the wrong sector size, so all sizes are tried.
    let copy = (9..=12).find_map(|log2| region(store, Some(log2)).ok());
    copy.map(|boot| (boot, true)).ok_or(first)
}

/// The region at the beginning; with `copy`, the copy for sectors of this size, given as a power of two.
///
/// # Errors
/// `Malformed`; `Unsupported` for a later version; `Io`.
pub fn region(store: &dyn Store, copy: Option<u8>) -> Result<BootSector> {
    let begin = copy.map_or(0, |log2| (SECTORS as u64) << log2);
    let mut first = [0; 512];
    in_store(store, begin, &mut first)?;
    let log2 = first[108];
    if !(9..=12).contains(&log2) || copy.is_some_and(|copy| copy != log2) {
        return Err(wrong("bytes of a sector", 108, format!("2^{log2}")));
    }
    let sector = 1usize << log2;
    let mut bytes = vec![0; SECTORS * sector];
    in_store(store, begin, &mut bytes)?;
    let (summed, sums) = bytes.split_at(SUMMED * sector);
    let counted = summed.iter().enumerate().filter(|(i, _)| !matches!(i, 106 | 107 | 112));
    let sum = counted.fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
    if !sums.as_chunks().0.iter().all(|stored| *stored == sum.to_le_bytes()) {
        return Err(wrong("checksum of the boot region", (SUMMED * sector) as u64, "it does not match"));
    }
    parse(&first)
}

fn in_store(store: &dyn Store, at: u64, bytes: &mut [u8]) -> Result<()> {
    if at + bytes.len() as u64 > store.len() {
        return Err(wrong("boot region", at, "cut short"));
    }
    Ok(store.read_at(at, bytes)?)
}

/// Whether 512 bytes are a boot sector of exFAT.
pub fn is_one(sector: &[u8]) -> bool {
    sector[NAME.0..].starts_with(NAME.1) && sector[510..] == SIGNATURE
}

fn parse(bytes: &[u8; 512]) -> Result<BootSector> {
    if !is_one(bytes) {
        return Err(wrong("file system name", 3, "it is not EXFAT"));
    }
    if bytes[11..64].iter().any(|byte| *byte != 0) {
        return Err(wrong("must-be-zero area", 11, "it is not zero"));
    }
    if bytes[105] != 1 {
        return Err(Error::unsupported(format!("exFAT version {}.{:02}", bytes[105], bytes[104])));
    }
    let (sector, per_cluster, tables) = (u32::from(bytes[108]), u32::from(bytes[109]), bytes[TABLES]);
    if per_cluster > 25 - sector {
        return Err(wrong("sectors of a cluster", 109, format!("2^{per_cluster}")));
    }
    if !(1..=2).contains(&tables) {
        return Err(wrong("number of FATs", 110, format!("{tables}")));
    }
    let (all, table, table_sectors) = (u64_at(bytes, 72), u32_at(bytes, 80), u32_at(bytes, 84));
    let (heap, clusters, root) = (u32_at(bytes, 88), u32_at(bytes, 92), u32_at(bytes, 96));
    let sectors = |number: u32| u64::from(number) << sector;
    let Some(len) = all.checked_mul(1 << sector) else {
        return Err(wrong("all sectors", 72, format!("{all}, more than any volume has")));
    };
    let needed = u64::from(heap) + (u64::from(clusters) << per_cluster);
    if clusters == 0 || clusters > MOST_CLUSTERS || needed > all {
        return Err(wrong("number of clusters", 92, format!("{clusters} clusters end at sector {needed} of {all}")));
    }
    if sectors(table_sectors) < (u64::from(clusters) + 2) * 4 {
        return Err(wrong("sectors of a FAT", 84, format!("too few for {clusters} clusters")));
    }
    if table < FIRST_TABLE || u64::from(table) + u64::from(table_sectors) * u64::from(tables) > u64::from(heap) {
        return Err(wrong("first sector of the FAT", 80, "it overlaps its neighbours"));
    }
    let boot = BootSector {
        width: Width::ExFat,
        sector: 1 << sector,
        cluster: 1 << (sector + per_cluster),
        clusters,
        table: sectors(table),
        table_len: sectors(table_sectors),
        tables,
        only_table: Some(bytes[FLAGS] & SECOND),
        root: Root::Cluster(root),
        data: sectors(heap),
        info: None,
        state: FLAGS as u64,
        state_byte: bytes[FLAGS],
        serial: Some(u32_at(bytes, 100)),
        label: [b' '; 11],
        len,
    };
    if !boot.has(root) {
        return Err(wrong("first cluster of the root folder", 96, format!("{root}")));
    }
    if boot.only_table >= Some(tables) {
        return Err(wrong("active FAT", FLAGS as u64, "there is no second FAT"));
    }
    Ok(boot)
}

fn wrong(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field, offset, what: what.into() }.into()
}
