//! The boot sector, which locates everything else.
//!
//! ```text
//!   0  jump to the boot code       14  reserved sectors, 2         36  FAT32: sectors of a FAT, 4
//!  11  bytes of a sector, 2        16  number of FATs, 1           40  FAT32: flags, 2
//!  13  sectors of a cluster, 1     17  entries of the root, 2      42  FAT32: version, 2
//!                                  19  all sectors, 2              44  FAT32: first cluster of the root, 4
//!  Numbers are little-endian.      21  kind of medium, 1           48  FAT32: sector of FSInfo, 2
//!                                  22  sectors of a FAT, 2         50  FAT32: sector of the second boot sector, 2
//!                                  32  all sectors, 4              64  FAT32: state, serial, label (FAT12/16: from 36)
//! ```
//! Section "Boot Sector and BPB" of the specification. The state byte, whose lowest bit says that the file system is
//! mounted, comes from Windows NT (`FAT_STATE_DIRTY` in Linux's msdos_fs.h).

use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::Kind;
use crate::little_endian::{u16_at, u32_at};

/// Size of the boot sector's fields, in bytes.
pub const LEN: usize = 512;
/// The last two bytes of a boot sector.
pub const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The names that most FAT boot sectors contain, and their offsets.
pub const NAMES: [(usize, &[u8]); 2] = [(82, b"FAT32   "), (54, b"FAT")];

/// The width of an entry in the file allocation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// FAT12.
    Bits12,
    /// FAT16.
    Bits16,
    /// FAT32, with 28 bits in use.
    Bits32,
    /// exFAT: all 32 bits in use.
    ExFat,
}

impl Width {
    /// The kind of file system whose table has entries of this width.
    pub fn kind(self) -> Kind {
        match self {
            Self::Bits12 => Kind::Fat12,
            Self::Bits16 => Kind::Fat16,
            Self::Bits32 => Kind::Fat32,
            Self::ExFat => Kind::ExFat,
        }
    }
}

/// The boot sector, validated. Offsets and lengths are in bytes of the store.
#[derive(Clone, Debug)]
pub struct BootSector {
    /// Width of the table's entries.
    pub width: Width,
    /// Size of a sector, in bytes: 512, 1024, 2048 or 4096.
    pub sector: u32,
    /// Size of a cluster, in bytes.
    pub cluster: u32,
    /// Number of data clusters; they are numbered from 2 on.
    pub clusters: u32,
    /// Offset of the first table.
    pub table: u64,
    /// Length of each table.
    pub table_len: u64,
    /// Number of tables.
    pub tables: u8,
    /// The only table in use, if the tables are not copies of each other (FAT32, exFAT).
    pub only_table: Option<u8>,
    /// Where the root folder is.
    pub root: Root,
    /// Offset of cluster 2.
    pub data: u64,
    /// Offset of the FSInfo sector (FAT32).
    pub info: Option<u64>,
    /// Offset of the state byte.
    pub state: u64,
    /// The state byte.
    pub state_byte: u8,
    /// Serial number, if it has one.
    pub serial: Option<u32>,
    /// The label in the boot sector; one in the root folder takes precedence.
    pub label: [u8; 11],
    /// The length of the file system, which may be less than the store's.
    pub len: u64,
}

/// The location of the root folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// In an area of its own (FAT12, FAT16).
    Fixed {
        /// Offset of that area.
        at: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// In clusters, like any folder, starting with this one (FAT32, exFAT).
    Cluster(u32),
}

/// The number of clusters from which a file system is no longer FAT12, or no longer FAT16 ("FAT Type Determination" of the
/// specification). Linux, Windows and dosfstools agree that 0 in the old field for the FAT's size means FAT32, however few clusters
/// there are.
const FAT12_END: u64 = 4085;
const FAT16_END: u64 = 65525;
/// FAT32 table entries from this number on have special meanings.
const FAT32_END: u64 = 0x0fff_fff6 - 2;

impl BootSector {
    /// Parses a boot sector; [`LEN`] bytes are enough.
    ///
    /// # Errors
    /// `Malformed` if the sector is not a boot sector or contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < LEN {
            return Err(wrong("boot sector", 0, "cut short"));
        }
        let (u16_at, u32_at) = (|at| u32::from(u16_at(bytes, at)), |at| u32_at(bytes, at));
        let sector = u16_at(11);
        if !matches!(sector, 512 | 1024 | 2048 | 4096) {
            return Err(wrong("bytes of a sector", 11, format!("{sector}")));
        }
        let per_cluster = u32::from(bytes[13]);
        if !per_cluster.is_power_of_two() {
            return Err(wrong("sectors of a cluster", 13, format!("{per_cluster}")));
        }
        let reserved = u16_at(14);
        if reserved == 0 {
            return Err(wrong("reserved sectors", 14, "none"));
        }
        let tables = bytes[16];
        if !(1..=4).contains(&tables) {
            return Err(wrong("number of FATs", 16, format!("{tables}")));
        }
        let medium = bytes[21];
        if medium != 0xf0 && medium < 0xf8 {
            return Err(wrong("media byte", 21, format!("{medium:#x}")));
        }
        let (old_table, new_table) = (u16_at(22), u32_at(36));
        let table_sectors = if old_table != 0 { old_table } else { new_table };
        if table_sectors == 0 {
            return Err(wrong("sectors of a FAT", 22, "none"));
        }
        let all = if u16_at(19) != 0 { u16_at(19) } else { u32_at(32) };
        let root_entries = u16_at(17);
        let root_sectors = (root_entries * 32).div_ceil(sector);
        let before_data = u64::from(reserved) + u64::from(tables) * u64::from(table_sectors) + u64::from(root_sectors);
        let data_sectors = u64::from(all).checked_sub(before_data).filter(|n| *n >= u64::from(per_cluster));
        let Some(data_sectors) = data_sectors else {
            return Err(wrong("number of sectors", 32, format!("{all} sectors leave no room for data")));
        };
        let bytes_of = |sectors: u64| sectors * u64::from(sector);
        let clusters = data_sectors / u64::from(per_cluster);
        let width = match clusters {
            _ if old_table == 0 => Width::Bits32,
            n if n < FAT12_END => Width::Bits12,
            n if n < FAT16_END => Width::Bits16,
            n => return Err(wrong("sectors of a FAT", 22, format!("too few for {n} clusters"))),
        };
        let table_len = bytes_of(u64::from(table_sectors));
        let held = match width {
            Width::Bits12 => table_len * 2 / 3,
            Width::Bits16 => table_len / 2,
            Width::Bits32 | Width::ExFat => table_len / 4,
        };
        // If the table is too short for all clusters, only the clusters that it covers are used, as in Linux.
        let clusters = clusters.min(held.saturating_sub(2)).min(FAT32_END);
        if clusters == 0 {
            return Err(wrong("sectors of a FAT", 22, "no room for a cluster"));
        }
        let clusters = clusters as u32;
        let new = width == Width::Bits32;
        let root = if new {
            let first = u32_at(44);
            if !(2..clusters + 2).contains(&first) {
                return Err(wrong("first cluster of the root folder", 44, format!("{first}")));
            }
            Root::Cluster(first)
        } else if root_entries == 0 {
            return Err(wrong("entries of the root folder", 17, "none"));
        } else {
            let at = u64::from(reserved) + u64::from(tables) * u64::from(table_sectors);
            Root::Fixed { at: bytes_of(at), len: u64::from(root_entries) * 32 }
        };
        let only_table = (new && bytes[40] & 0x80 != 0).then_some(bytes[40] & 0x0f);
        if only_table.is_some_and(|n| n >= tables) {
            return Err(wrong("active FAT", 40, format!("{} of {tables}", bytes[40] & 0x0f)));
        }
        if new && u16_at(42) != 0 {
            return Err(Error::unsupported(format!("FAT32 version {:#x}", u16_at(42))));
        }
        let info = u16_at(48);
        let extended = if new { 64 } else { 36 };
        // 0x29: a serial number, a label and a type follow. 0x28: only a serial number follows.
        let signature = bytes[extended + 2];
        let mut label = [b' '; 11];
        if signature == 0x29 {
            label.copy_from_slice(&bytes[extended + 7..extended + 18]);
        }
        Ok(Self {
            width,
            sector,
            cluster: sector * per_cluster,
            clusters,
            table: bytes_of(u64::from(reserved)),
            table_len,
            tables,
            only_table,
            root,
            data: bytes_of(before_data),
            info: (new && (1..reserved).contains(&info)).then(|| bytes_of(u64::from(info))),
            state: extended as u64 + 1,
            state_byte: bytes[extended + 1],
            serial: matches!(signature, 0x28 | 0x29).then(|| u32_at(extended + 3)),
            label,
            len: bytes_of(u64::from(all)),
        })
    }

    /// The offset of a cluster. `cluster` must be one of `2 .. 2 + clusters`; `2 + clusters` gives the end of the last one.
    pub fn cluster_at(&self, cluster: u32) -> u64 {
        self.data + u64::from(cluster - 2) * u64::from(self.cluster)
    }

    /// Whether a cluster of that number exists.
    pub fn has(&self, cluster: u32) -> bool {
        (2..self.clusters + 2).contains(&cluster)
    }

    /// The offset and length of the root folder, or of its first cluster.
    pub fn root_part(&self) -> (u64, u64) {
        match self.root {
            Root::Fixed { at, len } => (at, len),
            Root::Cluster(first) => (self.cluster_at(first), self.cluster.into()),
        }
    }
}

fn wrong(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field, offset, what: what.into() }.into()
}
