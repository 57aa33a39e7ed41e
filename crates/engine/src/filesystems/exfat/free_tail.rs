//! Where the free space at the end of an exFAT begins.
//!
//! Source: Microsoft, "exFAT file system specification", 1.00. Section numbers refer to it.

use super::boot_sector::{self, DIRTY, FAILURE, FLAGS, SECOND, TABLES};
use super::entry::LEN as ENTRY;
use super::{BITMAP, LARGEST_FOLDER};
use crate::error::Result;
use crate::filesystems::fat::boot_sector::{BootSector, Root};
use crate::filesystems::tail::{
    TailReport, checked, count_bits, in_store, last_bit, malformed, not_clean, not_understood, pieces, read,
};
use crate::little_endian::{u32_at, u64_at};
use crate::store::Store;

const NAME: &str = "exFAT";

/// The type of the entry that ends a directory (6.2.1).
const END: u8 = 0;

/// The size of a piece of the bitmap that is read at a time, in bytes.
const PIECE: u64 = 1 << 20;

pub fn find(store: &dyn Store, first: &[u8]) -> Result<Option<TailReport>> {
    if !boot_sector::is_one(first) {
        return Ok(None);
    }
    if first[FLAGS] & (DIRTY | FAILURE) != 0 {
        return Err(not_clean(NAME, "it was not unmounted, or the medium failed"));
    }
    if first[FLAGS] & SECOND != 0 || first[TABLES] != 1 {
        return Err(not_understood(NAME, "two FATs"));
    }
    let boot = checked(boot_sector::region(store, None))?;
    in_store(store, "number of sectors", 0, boot.len)?;
    let Root::Cluster(root) = boot.root else { return Ok(None) };
    let fs = Fs { store, boot: &boot };
    let (bitmap, len) = fs.bitmap(root)?;
    if len < u64::from(boot.clusters).div_ceil(8) {
        return Err(malformed("size of the bitmap", boot.cluster_at(root), format!("{len} bytes are too few")));
    }
    let last = fs.last_used(bitmap, len)?;
    if last < root.max(bitmap) {
        return Err(malformed("bitmap", boot.cluster_at(bitmap), "it marks the root directory or itself as free"));
    }
    let (used, end) = (boot.cluster_at(last + 1), boot.cluster_at(boot.clusters + 2));
    Ok(Some(TailReport { filesystem: NAME, used, end, keeps_rest: false }))
}

struct Fs<'a> {
    store: &'a dyn Store,
    boot: &'a BootSector,
}

impl Fs<'_> {
    /// Fails if the cluster does not exist.
    fn known(&self, cluster: u32) -> Result<()> {
        if self.boot.has(cluster) {
            return Ok(());
        }
        Err(malformed("cluster", self.boot.table, format!("cluster {cluster} does not exist")))
    }

    /// The cluster after this one in its file, or `None`.
    fn next(&self, cluster: u32) -> Result<Option<u32>> {
        let at = self.boot.table + u64::from(cluster) * 4;
        let next = u32_at(&read(self.store, "FAT", at, 4)?, 0);
        if next == u32::MAX {
            return Ok(None);
        }
        self.known(next).map(|()| Some(next))
    }

    /// The first cluster of the bitmap and its size in bytes, as the root directory records them.
    fn bitmap(&self, root: u32) -> Result<(u32, u64)> {
        let (mut cluster, cluster_len) = (Some(root), u64::from(self.boot.cluster));
        // A longer chain is a loop.
        let mut left = u64::from(LARGEST_FOLDER) / cluster_len;
        while let Some(number) = cluster {
            for part in pieces(0..cluster_len, PIECE) {
                let at = self.boot.cluster_at(number) + part.start;
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
            left =
                left.checked_sub(1).ok_or_else(|| malformed("root directory", self.boot.table, "it does not end"))?;
            cluster = self.next(number)?;
        }
        Err(malformed("root directory", self.boot.cluster_at(root), "it has no bitmap entry"))
    }

    /// The last cluster that the bitmap marks as in use.
    fn last_used(&self, bitmap: u32, len: u64) -> Result<u32> {
        let mut last = 0;
        let mut first_bit = 0;
        let mut cluster = Some(bitmap);
        let mut used = 0;
        for part in pieces(0..u64::from(self.boot.clusters).div_ceil(8).min(len), self.boot.cluster.into()) {
            let number = cluster.ok_or_else(|| malformed("FAT", self.boot.table, "the bitmap ends too early"))?;
            let bits = (u64::from(self.boot.clusters) - first_bit).min((part.end - part.start) * 8);
            for piece in pieces(0..part.end - part.start, PIECE) {
                let bytes = read(
                    self.store,
                    "bitmap",
                    self.boot.cluster_at(number) + piece.start,
                    (piece.end - piece.start) as usize,
                )?;
                let bits = (bits - piece.start * 8).min(bytes.len() as u64 * 8);
                used += count_bits(&bytes, bits);
                if let Some(bit) = last_bit(&bytes, bits) {
                    last = first_bit + piece.start * 8 + bit;
                }
            }
            first_bit += bits;
            cluster = if first_bit < u64::from(self.boot.clusters) { self.next(number)? } else { None };
        }
        if used == 0 {
            return Err(malformed(
                "bitmap",
                self.boot.cluster_at(bitmap),
                "nothing is in use, not even the bitmap itself",
            ));
        }
        Ok(last as u32 + 2)
    }
}
