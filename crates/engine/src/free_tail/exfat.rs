//! exFAT.
//!
//! Source: Microsoft, "exFAT file system specification", 1.00; sections are named.

use super::{TailReport, count_bits, in_store, last_bit, malformed, not_clean, not_understood, pieces, read};
use crate::error::Result;
use crate::little_endian::{u16_at, u32_at, u64_at};
use crate::store::Store;

const NAME: &str = "exFAT";

// The boot sector (3.1).
//
//   3 "EXFAT   "  11 zeros  64 offset of the partition  72 sectors  80 first sector of the FAT  84 its sectors
//  88 first sector of the clusters  92 number of clusters  96 cluster of the root directory  104 revision  106 flags
// 108 log2 of bytes per sector  109 log2 of sectors per cluster  110 number of FATs  112 percent in use  510 55 AA
const MARK: &[u8] = b"EXFAT   ";

/// Flags: the second FAT is in use; not unmounted; the medium fails (3.1.13).
const SECOND_FAT: u16 = 1;
const DIRTY: u16 = 2;
const FAILURE: u16 = 4;

/// Sectors of the boot region before the one with its checksum (3.4).
const BOOT_SECTORS: usize = 11;

/// Size of a directory entry, and the type of the one that locates the bitmap (6, 7.1).
const ENTRY: usize = 32;
const BITMAP: u8 = 0x81;
/// The type that ends a directory.
const END: u8 = 0;

/// FAT values: the lowest that is not a cluster (4.1).
const NO_CLUSTER: u32 = 0xffff_fff7;

/// The most bytes of the bitmap that are read at a time.
const PIECE: u64 = 1 << 20;

pub(super) fn find(store: &dyn Store) -> Result<Option<TailReport>> {
    if store.len() < 512 {
        return Ok(None);
    }
    let boot = read(store, "boot sector", 0, 512)?;
    if &boot[3..11] != MARK || boot[510..] != [0x55, 0xaa] {
        return Ok(None);
    }
    let fs = Fs::of(store, &boot)?;
    let (bitmap, len) = fs.bitmap()?;
    if len < u64::from(fs.clusters).div_ceil(8) {
        return Err(malformed("size of the bitmap", fs.at(fs.root), format!("{len} bytes are too few")));
    }
    let last = fs.last_used(bitmap, len)?;
    if last < fs.root.max(bitmap) {
        return Err(malformed("bitmap", fs.at(bitmap), "it marks the root directory or itself as free"));
    }
    let end = fs.heap + u64::from(fs.clusters) * fs.cluster;
    Ok(Some(TailReport { filesystem: NAME, used: fs.at(last) + fs.cluster, end, keeps_rest: false }))
}

/// Offsets and sizes in bytes.
struct Fs<'a> {
    store: &'a dyn Store,
    fat: u64,
    /// Where cluster 2 begins.
    heap: u64,
    cluster: u64,
    /// Number of clusters; they are numbered from 2 on.
    clusters: u32,
    root: u32,
}

impl<'a> Fs<'a> {
    fn of(store: &'a dyn Store, boot: &[u8]) -> Result<Self> {
        let (sector, per_cluster) = (u32::from(boot[108]), u32::from(boot[109]));
        if !(9..=12).contains(&sector) || per_cluster > 25 - sector {
            return Err(malformed("sizes of sectors and clusters", 108, format!("2^{sector}, 2^{per_cluster}")));
        }
        check_sum(store, 1 << sector)?;
        let flags = u16_at(boot, 106);
        if flags & (DIRTY | FAILURE) != 0 {
            return Err(not_clean(NAME, "it was not unmounted, or the medium failed"));
        }
        if flags & SECOND_FAT != 0 || boot[110] != 1 {
            return Err(not_understood(NAME, "two FATs"));
        }
        if boot[105] != 1 {
            return Err(not_understood(NAME, format_args!("revision {}.{:02}", boot[105], boot[104])));
        }
        let sectors = |at: usize| u64::from(u32_at(boot, at)) << sector;
        let total = u64_at(boot, 72).checked_mul(1 << sector);
        let total = total.ok_or_else(|| malformed("number of sectors", 72, "too large for any volume"))?;
        in_store(store, "number of sectors", 0, total)?;
        let fs = Self {
            store,
            fat: sectors(80),
            heap: sectors(88),
            cluster: 1 << (sector + per_cluster),
            clusters: u32_at(boot, 92),
            root: u32_at(boot, 96),
        };
        let end = fs.heap + u64::from(fs.clusters) * fs.cluster;
        if end > total || fs.clusters == 0 || fs.clusters > NO_CLUSTER - 2 {
            let what = format!("{} clusters end at byte {end} of {total}", fs.clusters);
            return Err(malformed("number of clusters", 92, what));
        }
        if (u64::from(fs.clusters) + 2) * 4 > sectors(84) || fs.fat + sectors(84) > fs.heap {
            return Err(malformed("sectors of the FAT", 84, "it does not fit the clusters"));
        }
        fs.known(fs.root)?;
        Ok(fs)
    }

    /// The offset of a cluster.
    fn at(&self, cluster: u32) -> u64 {
        self.heap + u64::from(cluster - 2) * self.cluster
    }

    /// Fails if the cluster does not exist.
    fn known(&self, cluster: u32) -> Result<()> {
        if (2..self.clusters + 2).contains(&cluster) {
            return Ok(());
        }
        Err(malformed("cluster", self.fat, format!("cluster {cluster} does not exist")))
    }

    /// The cluster after this one in its file, or `None`.
    fn next(&self, cluster: u32) -> Result<Option<u32>> {
        let at = self.fat + u64::from(cluster) * 4;
        let next = u32_at(&read(self.store, "FAT", at, 4)?, 0);
        if next == u32::MAX {
            return Ok(None);
        }
        self.known(next).map(|()| Some(next))
    }

    /// The first cluster of the bitmap and its size in bytes, from the root directory.
    fn bitmap(&self) -> Result<(u32, u64)> {
        let mut cluster = Some(self.root);
        // A directory has at most 256 MiB (6.1): a longer chain is a loop.
        let mut left = (256 << 20) / self.cluster.min(256 << 20);
        while let Some(number) = cluster {
            for part in pieces(0..self.cluster, PIECE) {
                let at = self.at(number) + part.start;
                let entries = read(self.store, "root directory", at, (part.end - part.start) as usize)?;
                for entry in entries.chunks(ENTRY) {
                    match entry[0] {
                        BITMAP if entry[1] & 1 == 0 => {
                            let first = u32_at(entry, 20);
                            return self.known(first).map(|()| (first, u64_at(entry, 24)));
                        }
                        END => return Err(malformed("root directory", at, "it has no bitmap entry")),
                        _ => {}
                    }
                }
            }
            left = left.checked_sub(1).ok_or_else(|| malformed("root directory", self.fat, "it does not end"))?;
            cluster = self.next(number)?;
        }
        Err(malformed("root directory", self.at(self.root), "it has no bitmap entry"))
    }

    /// The last cluster that the bitmap marks as in use.
    fn last_used(&self, bitmap: u32, len: u64) -> Result<u32> {
        let mut last = 0;
        let mut first_bit = 0;
        let mut cluster = Some(bitmap);
        let mut used = 0;
        for part in pieces(0..u64::from(self.clusters).div_ceil(8).min(len), self.cluster) {
            let number = cluster.ok_or_else(|| malformed("FAT", self.fat, "the bitmap ends too early"))?;
            let bits = (u64::from(self.clusters) - first_bit).min((part.end - part.start) * 8);
            for piece in pieces(0..part.end - part.start, PIECE) {
                let bytes =
                    read(self.store, "bitmap", self.at(number) + piece.start, (piece.end - piece.start) as usize)?;
                let bits = (bits - piece.start * 8).min(bytes.len() as u64 * 8);
                used += count_bits(&bytes, bits);
                if let Some(bit) = last_bit(&bytes, bits) {
                    last = first_bit + piece.start * 8 + bit;
                }
            }
            first_bit += bits;
            cluster = if first_bit < u64::from(self.clusters) { self.next(number)? } else { None };
        }
        if used == 0 {
            return Err(malformed("bitmap", self.at(bitmap), "nothing is in use, not even the bitmap itself"));
        }
        Ok(last as u32 + 2)
    }
}

/// Verifies the checksum of the boot region (3.4): everything but the flags and the percentage.
fn check_sum(store: &dyn Store, sector: usize) -> Result<()> {
    let region = read(store, "boot region", 0, sector * (BOOT_SECTORS + 1))?;
    let (summed, sums) = region.split_at(sector * BOOT_SECTORS);
    let counted = summed.iter().enumerate().filter(|(i, _)| !matches!(i, 106 | 107 | 112));
    let sum = counted.fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
    if sums.chunks(4).all(|stored| stored == sum.to_le_bytes()) {
        return Ok(());
    }
    Err(malformed("checksum of the boot region", (sector * BOOT_SECTORS) as u64, "it does not match"))
}
