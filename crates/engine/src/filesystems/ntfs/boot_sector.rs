//! The boot sector, which locates the master file table (ntfs-3g, include/ntfs-3g/layout.h, `NTFS_BOOT_SECTOR`).
//!
//! ```text
//!   3 "NTFS    "               40 number of sectors, 8    64 clusters of a record, or -log2 of its bytes, 1
//!  11 bytes of a sector, 2     48 cluster of the MFT, 8  510 55 AA
//!  13 sectors of a cluster, 1  56 that of its mirror, 8
//! ```

use crate::error::{ErrorKind, Result};
use crate::filesystems::fat::boot_sector::{LEN, SIGNATURE};
use crate::little_endian::{u16_at, u64_at};

/// The name near the beginning of a boot sector, and its offset.
pub const NAME: (usize, &[u8]) = (3, b"NTFS    ");
/// The offset of the field with the cluster of the MFT's mirror.
pub const MIRROR: usize = 56;

/// Whether 512 bytes are a boot sector of NTFS.
pub fn is_one(sector: &[u8]) -> bool {
    sector[NAME.0..].starts_with(NAME.1) && sector[510..] == SIGNATURE
}

/// The contents of a boot sector. Offsets and lengths are in bytes of the store.
pub struct NtfsBootSector {
    /// Size of a sector.
    pub sector: u64,
    /// Size of a cluster.
    pub cluster: u64,
    /// Number of clusters.
    pub clusters: u64,
    /// The offset of the MFT, which is not 0.
    pub mft: u64,
    /// Size of a record in the MFT: a power of two from 512 to 65536.
    pub record: u64,
    /// The length of the file system, without the copy of the boot sector after it.
    pub len: u64,
}

impl NtfsBootSector {
    /// Parses a boot sector, without checking its name: [`LEN`] bytes are enough.
    ///
    /// # Errors
    /// `Malformed` if it contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = |field, offset, what| ErrorKind::Malformed { field, offset, what };
        if bytes.len() < LEN {
            return Err(wrong("boot sector", 0, "cut short".to_owned()).into());
        }
        let sector = u64::from(u16_at(bytes, 11));
        // For clusters over 64 KiB, this byte is -log2 of the number of sectors (Windows 10).
        let per_cluster = match bytes[13] {
            n @ 0..=0x80 => u64::from(n),
            n => 1u64.checked_shl(256 - u32::from(n)).unwrap_or(0),
        };
        if !matches!(sector, 512 | 1024 | 2048 | 4096) || !per_cluster.is_power_of_two() || per_cluster > 4096 {
            return Err(wrong("sizes of sectors and clusters", 11, format!("{sector}, {per_cluster}")).into());
        }
        let cluster = sector * per_cluster;
        let record = match bytes[64].cast_signed() {
            n @ 0.. => u64::from(n.cast_unsigned()) * cluster,
            n @ -31..=-1 => 1 << -n,
            _ => 0,
        };
        if !(512..=65536).contains(&record) || !record.is_power_of_two() {
            return Err(wrong("size of a record", 64, format!("{record} bytes")).into());
        }
        let sectors = u64_at(bytes, 40);
        let len = sectors.checked_mul(sector);
        let len = len.ok_or_else(|| wrong("number of sectors", 40, "too large for any volume".to_owned()))?;
        let mft = u64_at(bytes, 48).checked_mul(cluster).filter(|mft| *mft > 0);
        let mft = mft.ok_or_else(|| wrong("cluster of the MFT", 48, "outside the volume".to_owned()))?;
        Ok(Self { sector, cluster, clusters: sectors / per_cluster, mft, record, len })
    }
}
