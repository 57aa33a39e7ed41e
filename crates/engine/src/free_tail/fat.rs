//! FAT12, FAT16 and FAT32.
//!
//! Source: Microsoft, "FAT: General Overview of On-Disk Format", 1.03; where it and practice differ, Linux,
//! fs/fat/inode.c (`fat_fill_super`).

use super::{TailReport, in_store, malformed, not_clean, not_understood, pieces, read};
use crate::error::Result;
use crate::little_endian::{u16_at, u32_at};
use crate::store::Store;

// The boot sector.
//
// 0 jump  3 OEM name  11 bytes per sector  13 sectors per cluster  14 reserved sectors  16 number of FATs  17 entries
// of the root directory  19 sectors (16 bits)  21 media  22 sectors per FAT (16 bits)  32 sectors (32 bits)  FAT12,
// FAT16:  37 state   FAT32:  36 sectors per FAT  40 flags  42 version  44 cluster of the root directory  65 state 510
// 55 AA

/// The bit Linux sets while the file system is mounted (uapi/linux/msdos_fs.h, `FAT_STATE_DIRTY`).
const STATE_DIRTY: u8 = 1;

/// Bytes of FAT read at a time: whole entries of 12, 16 and 32 bits.
const PIECE: u64 = 3 << 18;

/// FAT12 and FAT16 have fewer clusters than this.
const FAT12_CLUSTERS: u64 = 4085;
const FAT16_CLUSTERS: u64 = 65525;

pub(super) fn find(store: &dyn Store) -> Result<Option<TailReport>> {
    if store.len() < 512 {
        return Ok(None);
    }
    let boot = read(store, "boot sector", 0, 512)?;
    let Some(geometry) = Geometry::of(&boot) else { return Ok(None) };
    geometry.check(store, &boot)?;
    let last = geometry.last_used(store)?;
    let name = geometry.name();
    if geometry.bits == 32 && last.is_none_or(|last| last < u64::from(u32_at(&boot, 44))) {
        return Err(malformed("cluster of the root directory", 44, "it is marked as free"));
    }
    let used = geometry.data + last.map_or(0, |last| last - 1) * geometry.cluster;
    let end = geometry.data + geometry.clusters * geometry.cluster;
    Ok(Some(TailReport { filesystem: name, used, end, keeps_rest: false }))
}

/// Offsets and sizes in bytes.
struct Geometry {
    /// Bits of an entry.
    bits: u64,
    /// Where the first FAT begins.
    fats: u64,
    fat_len: u64,
    fat_count: u64,
    /// Where cluster 2 begins.
    data: u64,
    /// Bytes of a cluster.
    cluster: u64,
    clusters: u64,
    total: u64,
}

impl Geometry {
    /// Parses the boot sector, if it is one of FAT.
    fn of(boot: &[u8]) -> Option<Self> {
        let sector = u64::from(u16_at(boot, 11));
        let per_cluster = u64::from(boot[13]);
        let reserved = u64::from(u16_at(boot, 14));
        let fat_count = u64::from(boot[16]);
        let jump = boot[0] == 0xeb || boot[0] == 0xe9;
        let media = boot[21] == 0xf0 || boot[21] >= 0xf8;
        let sizes = matches!(sector, 512 | 1024 | 2048 | 4096) && per_cluster.is_power_of_two();
        if !(jump && media && sizes && boot[510..] == [0x55, 0xaa] && (1..=2).contains(&fat_count) && reserved > 0) {
            return None;
        }
        let (sectors16, fat16) = (u64::from(u16_at(boot, 19)), u64::from(u16_at(boot, 22)));
        let sectors = if sectors16 != 0 { sectors16 } else { u64::from(u32_at(boot, 32)) };
        // The number of clusters distinguishes FAT12 from FAT16. FAT32 is recognised by where it keeps the size of its
        // FAT: small ones have fewer clusters than the specification requires, and are treated as FAT32 everywhere.
        let fat_sectors = if fat16 != 0 { fat16 } else { u64::from(u32_at(boot, 36)) };
        let root_sectors = (u64::from(u16_at(boot, 17)) * 32).div_ceil(sector);
        let before = reserved + fat_count * fat_sectors + root_sectors;
        let clusters = sectors.checked_sub(before)? / per_cluster;
        let bits = match clusters {
            _ if fat16 == 0 => 32,
            ..FAT12_CLUSTERS => 12,
            _ => 16,
        };
        Some(Self {
            bits,
            fats: reserved * sector,
            fat_len: fat_sectors * sector,
            fat_count,
            data: before * sector,
            cluster: per_cluster * sector,
            clusters,
            total: sectors * sector,
        })
    }

    fn name(&self) -> &'static str {
        match self.bits {
            12 => "FAT12",
            16 => "FAT16",
            _ => "FAT32",
        }
    }

    fn check(&self, store: &dyn Store, boot: &[u8]) -> Result<()> {
        in_store(store, "number of sectors", 0, self.total)?;
        // Two entries precede those of the clusters.
        if self.fat_len * 8 / self.bits < self.clusters + 2 {
            return Err(malformed("sectors per FAT", 22, format!("too few for {} clusters", self.clusters)));
        }
        if self.clusters == 0 || self.bits == 16 && self.clusters >= FAT16_CLUSTERS {
            return Err(malformed("number of sectors", 19, format!("{} clusters are not possible", self.clusters)));
        }
        if self.bits == 32 {
            if u16_at(boot, 40) & 0x80 != 0 {
                return Err(not_understood(self.name(), "only one FAT in use"));
            }
            if u16_at(boot, 42) != 0 {
                return Err(not_understood(self.name(), format_args!("version {:#06x}", u16_at(boot, 42))));
            }
        }
        if boot[if self.bits == 32 { 65 } else { 37 }] & STATE_DIRTY != 0 {
            return Err(not_clean(self.name(), "it was not unmounted"));
        }
        self.check_first_entries(store)
    }

    /// Entry 0 repeats the media byte; the two highest bits of entry 1 say that it was unmounted and that no error
    /// occurred.
    fn check_first_entries(&self, store: &dyn Store) -> Result<()> {
        let start = read(store, "FAT", self.fats, 8)?;
        let (media, fine) = match self.bits {
            12 => (start[0], true),
            16 => (start[0], u16_at(&start, 2) & 0xc000 == 0xc000),
            _ => (start[0], u32_at(&start, 4) & 0x0c00_0000 == 0x0c00_0000),
        };
        if media != 0xf0 && media < 0xf8 {
            return Err(malformed("FAT", self.fats, "it does not begin with a media byte"));
        }
        if fine { Ok(()) } else { Err(not_clean(self.name(), "it was not unmounted, or an error occurred")) }
    }

    /// The last cluster in use; clusters are numbered from 2 on. All copies of the FAT must agree.
    fn last_used(&self, store: &dyn Store) -> Result<Option<u64>> {
        let len = ((self.clusters + 2) * self.bits).div_ceil(8);
        let mut last = None;
        for piece in pieces(0..len, PIECE) {
            let size = (piece.end - piece.start) as usize;
            let fat = read(store, "FAT", self.fats + piece.start, size)?;
            for copy in 1..self.fat_count {
                if read(store, "FAT", self.fats + copy * self.fat_len + piece.start, size)? != fat {
                    return Err(not_clean(self.name(), "its FATs differ"));
                }
            }
            let first = piece.start * 8 / self.bits;
            let entries = (size as u64 * 8 / self.bits).min(self.clusters + 2 - first);
            let used = (0..entries).rev().find(|i| first + i >= 2 && self.entry(&fat, *i as usize) != 0);
            last = used.map(|i| first + i).or(last);
        }
        Ok(last)
    }

    /// Entry `i` of a piece.
    fn entry(&self, fat: &[u8], i: usize) -> u32 {
        match self.bits {
            12 if i.is_multiple_of(2) => u32::from(u16_at(fat, i / 2 * 3)) & 0xfff,
            12 => u32::from(u16_at(fat, i / 2 * 3 + 1)) >> 4,
            16 => u32::from(u16_at(fat, i * 2)),
            // The four highest bits are reserved.
            _ => u32_at(fat, i * 4) & 0x0fff_ffff,
        }
    }
}
