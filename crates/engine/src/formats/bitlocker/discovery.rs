//! The discovery volume in front of a To Go volume: a small FAT32 with a text file that explains the rest. It spans the whole
//! volume, and its table marks everything encrypted as unusable, so that nothing is ever written there.

use super::boot::LEN;
use crate::error::{Error, Result};
use crate::random;
use crate::store::Store;

/// The text, in a single file.
const TEXT: &str = "This drive is encrypted with BitLocker To Go. Without its password, only this\r\ntext is \
     visible.\r\n\r\nPrograms that open BitLocker drives ask for the password, the recovery password\r\nor the \
     startup key. On Linux, use for example claviger, cryptsetup or dislocker.\r\n\r\nDo not format or repair the \
     drive: its contents would be lost.\r\n";
const NAME: &[u8; 11] = b"README  TXT";
/// Read-only, with the archive bit set: not backed up yet.
const ATTRIBUTES: u8 = 0x21;
/// 1 January 1980: the first possible date.
const DATE: u16 = 0x21;

/// The minimum number of clusters in a FAT32, with a margin for programs that count differently (Microsoft, "FAT32 File System
/// Specification", 2000).
const CLUSTERS_MIN: u64 = 65_525 + 16;
/// The largest cluster, in bytes.
const CLUSTER_MAX: u64 = 32 << 10;
/// The alignment of the encrypted data, in bytes.
const ALIGNMENT: u64 = 4096;

/// Entries of the table.
const LAST: u32 = 0x0fff_ffff;
const UNUSABLE: u32 = 0x0fff_fff7;

/// The parameters of the FAT32.
pub(super) struct Discovery {
    /// The size of a sector, in bytes.
    pub sector: u64,
    /// The number of sectors in the whole volume.
    pub sectors: u64,
    pub cluster_sectors: u64,
    /// The number of sectors in its only table.
    pub fat_sectors: u64,
    /// The volume's serial number.
    pub serial: [u8; 4],
}

impl Discovery {
    /// The number of sectors in front of the table, and those of them that are in use.
    pub const RESERVED: u64 = 32;
    pub const INFO: u64 = 1;
    pub const BACKUP: u64 = 6;
    /// The cluster of the root folder.
    pub const ROOT: u32 = 2;

    /// Calculates it for a volume of `size` bytes.
    ///
    /// # Errors
    /// `Misuse` if no FAT32 can have that size; `Io`.
    pub fn of(size: u64, sector: u64) -> Result<Self> {
        let sectors = size / sector;
        let mut serial = [0; 4];
        random::fill(&mut serial)?;
        let with = |cluster_sectors: u64| {
            let clusters = sectors.saturating_sub(Self::RESERVED) / cluster_sectors;
            let fat_sectors = (4 * (clusters + 2)).div_ceil(sector);
            Self { sector, sectors, cluster_sectors, fat_sectors, serial }
        };
        let sizes = (0..8).rev().map(|bits| 1 << bits).filter(|sectors| sectors * sector <= CLUSTER_MAX);
        let fits = |fat: &Self| fat.clusters() >= CLUSTERS_MIN && sectors <= u64::from(u32::MAX);
        sizes.map(with).find(fits).ok_or_else(|| {
            let least = (CLUSTERS_MIN + Self::RESERVED + (4 * (CLUSTERS_MIN + 2)).div_ceil(sector)) * sector;
            let most = u64::from(u32::MAX) * sector;
            Error::misuse(format!("a To Go volume with {sector}-byte sectors has {least} to {most} bytes, not {size}"))
        })
    }

    fn clusters(&self) -> u64 {
        self.sectors.saturating_sub(Self::RESERVED + self.fat_sectors) / self.cluster_sectors
    }

    /// The number of clusters of the text.
    fn text_clusters(&self) -> u64 {
        (TEXT.len() as u64).div_ceil(self.cluster_sectors * self.sector)
    }

    fn data_at(&self) -> u64 {
        (Self::RESERVED + self.fat_sectors) * self.sector
    }

    /// The size of its part in front of the encrypted data, in bytes.
    pub fn len(&self) -> u64 {
        let data = (1 + self.text_clusters()) * self.cluster_sectors * self.sector;
        (self.data_at() + data).next_multiple_of(ALIGNMENT)
    }

    /// Writes everything except the first sector, `boot`, which comes last. Its backup is written here.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(&self, store: &dyn Store, boot: &[u8; LEN]) -> Result<()> {
        let mut front = vec![0; ((Self::RESERVED - 1) * self.sector) as usize];
        let info = self.info();
        let mut put = |sector: u64, bytes: &[u8; LEN]| {
            front[((sector - 1) * self.sector) as usize..][..LEN].copy_from_slice(bytes);
        };
        put(Self::INFO, &info);
        put(Self::BACKUP, boot);
        put(Self::BACKUP + 1, &info);
        store.write_clobbering(self.sector, &mut front)?;
        self.write_table(store)?;
        let mut data = vec![0; (self.len() - self.data_at()) as usize];
        data[..32].copy_from_slice(&self.entry());
        let cluster = (self.cluster_sectors * self.sector) as usize;
        data[cluster..][..TEXT.len()].copy_from_slice(TEXT.as_bytes());
        Ok(store.write_clobbering(self.data_at(), &mut data)?)
    }

    /// FAT32's sector with free space information: no free clusters.
    fn info(&self) -> [u8; LEN] {
        let mut info = [0; LEN];
        info[..4].copy_from_slice(b"RRaA");
        info[484..488].copy_from_slice(b"rrAa");
        info[492..496].copy_from_slice(&Self::ROOT.to_le_bytes());
        info[510..].copy_from_slice(&[0x55, 0xaa]);
        info
    }

    /// The text's entry in the root folder.
    fn entry(&self) -> [u8; 32] {
        let mut entry = [0; 32];
        entry[..11].copy_from_slice(NAME);
        entry[11] = ATTRIBUTES;
        for at in [16, 18, 24] {
            entry[at..at + 2].copy_from_slice(&DATE.to_le_bytes());
        }
        entry[26..28].copy_from_slice(&(Self::ROOT as u16 + 1).to_le_bytes());
        entry[28..].copy_from_slice(&(TEXT.len() as u32).to_le_bytes());
        entry
    }

    fn write_table(&self, store: &dyn Store) -> Result<()> {
        /// How many bytes are written at a time.
        const PIECE: u64 = 1 << 20;
        let (begin, end) = (Self::RESERVED * self.sector, self.data_at());
        let mut at = begin;
        while at < end {
            let first = (at - begin) / 4;
            let count = PIECE.min(end - at) / 4;
            let mut piece: Vec<u8> = (first..first + count).flat_map(|n| self.table_entry(n).to_le_bytes()).collect();
            store.write_clobbering(at, &mut piece)?;
            at += count * 4;
        }
        Ok(())
    }

    /// The table's entry for a cluster.
    fn table_entry(&self, cluster: u64) -> u32 {
        let text = u64::from(Self::ROOT) + 1;
        match cluster {
            0 => 0x0fff_fff8,
            1 => LAST,
            root if root < text => LAST,
            part if part + 1 < text + self.text_clusters() => part as u32 + 1,
            last if last < text + self.text_clusters() => LAST,
            taken if taken < self.clusters() + 2 => UNUSABLE,
            _ => 0,
        }
    }
}
