//! Detects a store's file system, its label and its UUID from its first bytes.
//!
//! Magic numbers and fields are where util-linux's libblkid looks for them. [`Kind::mount_type`] returns libblkid's names.

use std::io;
use std::sync::LazyLock;

use super::fat::boot_sector::{BootSector, NAMES, SIGNATURE};
use super::{exfat, ntfs};
use crate::hex;
use crate::store::{SMALLEST_SECTOR, Store};

/// A file system that was detected.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Filesystem {
    /// The kind of file system.
    pub kind: Kind,
    /// Its label, chosen by its owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Its UUID or serial number, formatted as the system does (`blkid`, `/dev/disk/by-uuid`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

macro_rules! kinds {
    ($($kind:ident, $name:literal, $mount:literal, $described:literal;)*) => {
        /// File systems, and other things found where a file system is expected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $(#[doc = $described] $kind,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// The display name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// The system's name for the kind: the type in `mount -t` and in blkid's `TYPE`.
            pub fn mount_type(self) -> &'static str {
                match self { $(Self::$kind => $mount,)* }
            }

            /// The name with an article, to follow "it holds".
            pub fn described(self) -> &'static str {
                match self { $(Self::$kind => $described,)* }
            }
        }
    };
}

kinds! {
    Fat12, "FAT12", "vfat", "a FAT12 file system";
    Fat16, "FAT16", "vfat", "a FAT16 file system";
    Fat32, "FAT32", "vfat", "a FAT32 file system";
    ExFat, "exFAT", "exfat", "an exFAT file system";
    Ntfs, "NTFS", "ntfs", "an NTFS file system";
    ReFs, "ReFS", "ReFS", "a ReFS file system";
    Ext2, "ext2", "ext2", "an ext2 file system";
    Ext3, "ext3", "ext3", "an ext3 file system";
    Ext4, "ext4", "ext4", "an ext4 file system";
    ExtJournal, "ext journal", "jbd", "the journal of an ext file system";
    Xfs, "XFS", "xfs", "an XFS file system";
    Btrfs, "btrfs", "btrfs", "a btrfs file system";
    F2fs, "F2FS", "f2fs", "an F2FS file system";
    HfsPlus, "HFS+", "hfsplus", "an HFS+ file system";
    Hfs, "HFS", "hfs", "an HFS file system";
    Apfs, "APFS", "apfs", "an APFS container";
    Iso9660, "ISO 9660", "iso9660", "an ISO 9660 file system";
    Udf, "UDF", "udf", "a UDF file system";
    Squashfs, "SquashFS", "squashfs", "a SquashFS file system";
    Erofs, "EROFS", "erofs", "an EROFS file system";
    Swap, "swap", "swap", "a swap area";
    Lvm, "LVM2", "LVM2_member", "a physical volume of LVM2";
}

impl serde::Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl Kind {
    /// Whether its first bytes say how large it is.
    pub(crate) fn has_size(self) -> bool {
        !matches!(self, Self::Hfs | Self::Udf | Self::Lvm)
    }

    /// Whether it holds files.
    pub fn holds_files(self) -> bool {
        !matches!(self, Self::Swap | Self::ExtJournal | Self::Lvm)
    }
}

/// The first bytes of a store, in which all magic numbers are.
pub const LOOKED_AT: usize = 0x10000 + 4096;

/// Magic numbers that identify a kind on their own, with their offsets.
static MARKS: &[(usize, &[u8], Kind)] = &[
    (ntfs::boot_sector::NAME.0, ntfs::boot_sector::NAME.1, Kind::Ntfs),
    (exfat::boot_sector::NAME.0, exfat::boot_sector::NAME.1, Kind::ExFat),
    (3, b"ReFS\0\0\0\0", Kind::ReFs),
    (0, b"XFSB", Kind::Xfs),
    (0x10040, b"_BHRfS_M", Kind::Btrfs),
    (0x400, b"\x10\x20\xf5\xf2", Kind::F2fs),
    (0x400, b"H+\0\x04", Kind::HfsPlus),
    (0x400, b"HX\0\x05", Kind::HfsPlus),
    (32, b"NXSB", Kind::Apfs),
    (0x8001, b"CD001", Kind::Iso9660),
    (0x8001, b"NSR02", Kind::Udf),
    (0x8001, b"NSR03", Kind::Udf),
    (0x8001, b"BEA01", Kind::Udf),
    (0, b"hsqs", Kind::Squashfs),
    (0x400, b"\xe2\xe1\xf5\xe0", Kind::Erofs),
    (4086, b"SWAPSPACE2", Kind::Swap),
    (8192 - 10, b"SWAPSPACE2", Kind::Swap),
    (16384 - 10, b"SWAPSPACE2", Kind::Swap),
    (65536 - 10, b"SWAPSPACE2", Kind::Swap),
    (512 + 24, b"LVM2 001", Kind::Lvm),
];

/// The offset of the superblock of ext file systems, in bytes.
const EXT_SUPERBLOCK: usize = 0x400;

/// The first [`LOOKED_AT`] bytes, or the whole store. If a truncated volume ends before, zeros follow.
///
/// # Errors
/// Those of the store.
pub(super) fn beginning(store: &dyn Store) -> io::Result<Vec<u8>> {
    const SECTOR: usize = 512;
    let mut start = vec![0; store.len().min(LOOKED_AT as u64) as usize];
    match store.read_at(0, &mut start) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
        read => return read.map(|()| start),
    }
    start.fill(0);
    for (sector, at) in start.chunks_mut(SECTOR).zip((0..).step_by(SECTOR)) {
        match store.read_at(at, sector) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                sector.fill(0);
                break;
            }
            read => read?,
        }
    }
    Ok(start)
}

/// The file system in `store`; `None` if no known one is found.
///
/// # Errors
/// Those of the store.
pub fn detect(store: &dyn Store) -> io::Result<Option<Filesystem>> {
    let start = beginning(store)?;
    let Some(kind) = kind(&start) else { return Ok(None) };
    let start = Start(&start);
    let (label, uuid) = match kind {
        Kind::Fat12 | Kind::Fat16 | Kind::Fat32 => fat(store, &start)?,
        Kind::ExFat => (exfat_label(store)?, start.u32(100).map(short_serial)),
        Kind::Ntfs => (ntfs_label(store, &start)?, start.u64(72).map(|serial| format!("{serial:016X}"))),
        Kind::Ext2 | Kind::Ext3 | Kind::Ext4 | Kind::ExtJournal => (start.text(0x478, 16), start.uuid(0x468)),
        Kind::Xfs => (start.text(108, 12), start.uuid(32)),
        Kind::Btrfs => (start.text(0x1012b, 256), start.uuid(0x10020)),
        Kind::F2fs => (start.utf16(0x400 + 124, 512), start.uuid(0x400 + 108)),
        Kind::Apfs => (None, start.uuid(72)),
        Kind::Iso9660 => (start.text(0x8028, 32), iso_number(&start)),
        Kind::Erofs => (start.text(0x400 + 64, 16), start.uuid(0x400 + 48)),
        Kind::Swap => (start.text(1024 + 28, 16), start.uuid(1024 + 12)),
        Kind::ReFs | Kind::HfsPlus | Kind::Hfs | Kind::Udf | Kind::Squashfs | Kind::Lvm => (None, None),
    };
    Ok(Some(Filesystem { kind, label, uuid }))
}

/// The sector size, in bytes, of the file system in `store`, or its block size if only that matters. The kernel does not mount it
/// from a disk with larger sectors. The result is 512 unless larger sectors are known to work, and `None` if there is no file
/// system.
///
/// Fields are where Linux's file systems look for them (fs/*/super.c and the headers beside them).
///
/// # Errors
/// Those of the store.
pub(super) fn sector_size(store: &dyn Store) -> io::Result<Option<u64>> {
    let start = read(store, 0, LOOKED_AT as u64)?;
    let Some(kind) = kind(&start) else { return Ok(None) };
    let start = Start(&start);
    let power = |log2: u32| 1u32.checked_shl(log2);
    let found = match kind {
        Kind::Fat12 | Kind::Fat16 | Kind::Fat32 | Kind::Ntfs => start.u16(11).map(u32::from),
        Kind::ExFat => start.bytes::<1>(108).and_then(|log2| power(log2[0].into())),
        Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => start.u32(0x418).and_then(|log2| power(log2.saturating_add(10))),
        Kind::Xfs => start.bytes(102).copied().map(u16::from_be_bytes).map(u32::from),
        Kind::Btrfs => start.u32(0x10090),
        // The blocks of F2FS are pages, and so are those of a swap area.
        Kind::F2fs | Kind::Swap => Some(4096),
        Kind::Erofs => start.bytes::<1>(0x40c).and_then(|log2| power(log2[0].into())),
        Kind::ExtJournal | Kind::ReFs | Kind::HfsPlus | Kind::Hfs | Kind::Apfs => None,
        Kind::Iso9660 | Kind::Udf | Kind::Squashfs => None,
        // LVM2 has no sector size of its own; the file systems in its logical volumes do.
        Kind::Lvm => return Ok(None),
    };
    Ok(Some(found.filter(|size| size.is_power_of_two()).map_or(SMALLEST_SECTOR, u64::from).max(SMALLEST_SECTOR)))
}

/// A signature in a sector of a file system.
pub(crate) struct FilesystemTrace {
    pub kind: Kind,
    /// The offset of the signature in its sector of 512 bytes.
    pub at: usize,
    pub bytes: &'static [u8],
    /// The offset of that sector in its file system, in bytes, unless it is a copy.
    pub usual: u64,
    /// The offset from the sector's contents; `None` if this is no such sector.
    pub offset: fn(&Self, &[u8]) -> Option<u64>,
}

/// The signatures that a search of a whole disk looks for: all but the weak one of HFS.
pub(crate) fn traces() -> &'static [FilesystemTrace] {
    static TRACES: LazyLock<Vec<FilesystemTrace>> = LazyLock::new(|| {
        const SECTOR: usize = SMALLEST_SECTOR as usize;
        // Swap areas of larger pages have the same signature further on.
        let marks = MARKS.iter().filter(|(at, _, kind)| *kind != Kind::Swap || *at < 4096).copied();
        let fat = NAMES.into_iter().map(|(at, name)| (at, name, Kind::Fat32));
        let usual = |(at, bytes, kind): (usize, &'static [u8], Kind)| FilesystemTrace {
            kind,
            at: at % SECTOR,
            bytes,
            usual: (at / SECTOR * SECTOR) as u64,
            offset: |trace, _| Some(trace.usual),
        };
        let ext = FilesystemTrace {
            kind: Kind::Ext4,
            at: 0x38,
            bytes: b"\x53\xef",
            usual: EXT_SUPERBLOCK as u64,
            offset: |_, sector| ext_superblock_offset(sector),
        };
        marks.chain(fat).map(usual).chain([ext]).collect()
    });
    &TRACES
}

/// Where a superblock is in its file system, in bytes: copies name their group of blocks (Linux, fs/ext4/ext4.h,
/// `struct ext4_super_block`). `None` if this is none.
fn ext_superblock_offset(superblock: &[u8]) -> Option<u64> {
    let mut start = vec![0; EXT_SUPERBLOCK + superblock.len()];
    start[EXT_SUPERBLOCK..].copy_from_slice(superblock);
    ext_kind(&Start(&start))?;
    let field = Start(superblock);
    let group = u64::from(field.u16(0x5a)?);
    if group == 0 {
        return Some(EXT_SUPERBLOCK as u64);
    }
    let (first, blocks) = (u64::from(field.u32(0x14)?), u64::from(field.u32(0x20)?));
    Some((first + group * blocks) * (1024 << field.u32(0x18)?))
}

/// The size of the file system in `store`, in bytes, as its superblock says. `None` if it says nothing plausible, or if there is no file
/// system.
///
/// Fields are where Linux's file systems and libblkid look for them, those of ReFS and APFS in libyal's and Apple's descriptions.
///
/// # Errors
/// Those of the store.
pub(crate) fn size(store: &dyn Store) -> io::Result<Option<u64>> {
    let start = beginning(store)?;
    Ok(kind(&start).and_then(|kind| size_of(kind, &Start(&start))))
}

/// How far before `store` a file system begins whose copy of a superblock `store` begins with, in bytes. `None` if nothing says so: most
/// copies do not differ from the first superblock.
///
/// # Errors
/// Those of the store.
pub(crate) fn before_copy(store: &dyn Store) -> io::Result<Option<u64>> {
    let start = beginning(store)?;
    Ok((kind(&start) == Some(Kind::Xfs)).then(|| xfs_group_offset(&Start(&start))).flatten())
}

/// The offset of an allocation group of XFS. The sector after its superblock has its number (Linux, fs/xfs/libxfs/xfs_format.h, `struct
/// xfs_dsb` and `struct xfs_agf`).
fn xfs_group_offset(start: &Start<'_>) -> Option<u64> {
    let be32 = |at| start.bytes(at).copied().map(u32::from_be_bytes).map(u64::from);
    let sector = usize::from(u16::from_be_bytes(*start.bytes(102)?));
    if !start.has(sector, b"XAGF") {
        return None;
    }
    be32(sector + 8)?.checked_mul(be32(84)?)?.checked_mul(be32(4)?)
}

fn size_of(kind: Kind, start: &Start<'_>) -> Option<u64> {
    const WIDE_BLOCK_NUMBERS: u32 = 0x80;
    let be32 = |at| start.bytes(at).copied().map(u32::from_be_bytes);
    let power = |log2: u32| 1u64.checked_shl(log2);
    let (units, unit) = match kind {
        Kind::Fat12 | Kind::Fat16 | Kind::Fat32 => {
            let few = start.u16(19).filter(|few| *few > 0).map(u32::from);
            (few.or(start.u32(32))?.into(), start.u16(11)?.into())
        }
        Kind::ExFat => (start.u64(72)?, power(start.bytes::<1>(108)?[0].into())?),
        // One more sector is a copy of the first.
        Kind::Ntfs => (start.u64(40)?.checked_add(1)?, start.u16(11)?.into()),
        Kind::ReFs => (start.u64(24)?, start.u32(32)?.into()),
        Kind::Ext2 | Kind::Ext3 | Kind::Ext4 | Kind::ExtJournal => {
            let wide = start.u32(0x460)? & WIDE_BLOCK_NUMBERS != 0;
            let high = if wide { start.u32(0x550)? } else { 0 };
            (u64::from(high) << 32 | u64::from(start.u32(0x404)?), power(start.u32(0x418)?.checked_add(10)?)?)
        }
        Kind::Xfs => (start.bytes(8).copied().map(u64::from_be_bytes)?, be32(4)?.into()),
        Kind::Btrfs => (start.u64(0x100d1)?, 1),
        Kind::F2fs => (start.u64(0x424)?, 4096),
        Kind::HfsPlus => (be32(0x42c)?.into(), be32(0x428)?.into()),
        Kind::Apfs => (start.u64(40)?, start.u32(36)?.into()),
        Kind::Iso9660 => (start.u32(0x8050)?.into(), start.u16(0x8080)?.into()),
        Kind::Squashfs => (start.u64(40)?, 1),
        Kind::Erofs => (start.u32(0x424)?.into(), power(start.bytes::<1>(0x40c)?[0].into())?),
        Kind::Swap => (u64::from(start.u32(1028)?) + 1, 4096),
        Kind::Hfs | Kind::Udf | Kind::Lvm => return None,
    };
    /// More than any file system has.
    const TOO_MUCH: u64 = 1 << 56;
    units.checked_mul(unit).filter(|size| unit.is_power_of_two() && (1..TOO_MUCH).contains(size))
}

/// The kind of file system that begins with these bytes: [`LOOKED_AT`] of them, or the whole store.
pub(crate) fn kind(start: &[u8]) -> Option<Kind> {
    let start = Start(start);
    let marked = MARKS.iter().find(|(at, bytes, _)| start.has(*at, bytes)).map(|(_, _, kind)| *kind);
    marked.or_else(|| ext_kind(&start)).or_else(|| fat_kind(&start)).or_else(|| hfs_kind(&start))
}

/// Whether a boot sector names its file system: FAT, exFAT or NTFS.
pub(crate) fn names_itself(sector: &[u8]) -> bool {
    let names = NAMES.into_iter().chain([ntfs::boot_sector::NAME, exfat::boot_sector::NAME]);
    names.into_iter().any(|(at, name)| Start(sector).has(at, name))
}

/// ext2, ext3 and ext4 differ in the features that their superblock lists (libblkid's ext.c). The magic number has only two bytes,
/// so other fields must be plausible too.
fn ext_kind(start: &Start<'_>) -> Option<Kind> {
    const SUPERBLOCK: usize = EXT_SUPERBLOCK;
    const JOURNAL_DEVICE: u32 = 0x8;
    let u32_at = |at| start.u32(SUPERBLOCK + at);
    if !start.has(SUPERBLOCK + 0x38, b"\x53\xef") || u32_at(0x18)? > 6 || u32_at(0x4c)? > 1 {
        return None;
    }
    let (compatible, incompatible, read_only) = (u32_at(0x5c)?, u32_at(0x60)?, u32_at(0x64)?);
    let inodes_of_a_group = u32_at(0x28)?;
    Some(if incompatible & JOURNAL_DEVICE != 0 {
        Kind::ExtJournal
    } else if inodes_of_a_group == 0 {
        return None;
    } else {
        ext_kind_of(compatible, incompatible, read_only)
    })
}

/// The version of ext that uses these features.
pub(super) fn ext_kind_of(compatible: u32, incompatible: u32, read_only: u32) -> Kind {
    const HAS_JOURNAL: u32 = 0x4;
    /// Read-only compatible features of ext3: sparse superblocks, large files, hashed directories.
    const EXT3_READ_ONLY: u32 = 0x7;
    /// Incompatible features of ext3: file types in directories, a journal to replay, meta groups.
    const EXT3_INCOMPATIBLE: u32 = 0x16;
    if read_only & !EXT3_READ_ONLY != 0 || incompatible & !EXT3_INCOMPATIBLE != 0 {
        Kind::Ext4
    } else if compatible & HAS_JOURNAL != 0 {
        Kind::Ext3
    } else {
        Kind::Ext2
    }
}

/// FAT has no common magic number: it is recognised by a jump instruction and consistent fields.
fn fat_kind(start: &Start<'_>) -> Option<Kind> {
    let jumps = start.has(0, b"\xeb") || start.has(0, b"\xe9");
    let named = NAMES.iter().any(|(at, name)| start.has(*at, name));
    let boots = jumps && start.has(510, &SIGNATURE);
    if !named && !boots {
        return None;
    }
    Some(BootSector::parse(start.0).ok()?.width.kind())
}

/// HFS has a magic number of only two bytes; its blocks are multiples of 512 bytes.
fn hfs_kind(start: &Start<'_>) -> Option<Kind> {
    let block = u32::from_be_bytes(*start.bytes(0x400 + 20)?);
    (start.has(0x400, b"BD") && block != 0 && block.is_multiple_of(512)).then_some(Kind::Hfs)
}

/// The label is in the root folder or, failing that, in the boot sector.
fn fat(store: &dyn Store, start: &Start<'_>) -> io::Result<(Option<String>, Option<String>)> {
    /// How much of the root folder is searched: the label is usually its first entry.
    const LOOKED_AT: u64 = 16 << 10;
    const VOLUME_LABEL: u8 = 0x08;
    const LONG_NAME: u8 = 0x0f;
    let Ok(boot) = BootSector::parse(start.0) else { return Ok((None, None)) };
    let (at, len) = boot.root_part();
    let folder = read(store, at, len.min(LOOKED_AT))?;
    let entries = folder.chunks_exact(32).take_while(|e| e[0] != 0).filter(|e| e[0] != 0xe5);
    let mut labels = entries.filter(|e| e[11] & LONG_NAME != LONG_NAME && e[11] & VOLUME_LABEL != 0);
    let label = labels.next().map(|e| &e[..11]);
    let boot_label = Some(&boot.label[..]).filter(|l| !l.starts_with(b"NO NAME"));
    let label = label.or(boot_label).map(|l| String::from_utf8_lossy(l).trim_end().to_owned());
    Ok((label.filter(|l| !l.is_empty()), boot.serial.map(short_serial)))
}

/// `1234-ABCD`.
fn short_serial(serial: u32) -> String {
    format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff)
}

/// The label is an entry of type 0x83 in the root folder (Microsoft's exFAT specification, section 7.3).
fn exfat_label(store: &dyn Store) -> io::Result<Option<String>> {
    const LABEL: u8 = 0x83;
    let Ok((boot, _)) = exfat::boot_sector::read(store) else { return Ok(None) };
    let (at, len) = boot.root_part();
    let folder = read(store, at, len.min(4096))?;
    let label = folder.chunks_exact(32).take_while(|e| e[0] != 0).find(|e| e[0] == LABEL);
    Ok(label.and_then(|e| Start(e).utf16(2, usize::from(e[1].min(11)) * 2)))
}

/// The label is attribute 0x60 of record 3 in the master file table: `$Volume`.
fn ntfs_label(store: &dyn Store, start: &Start<'_>) -> io::Result<Option<String>> {
    const NAME: u32 = 0x60;
    const END: u32 = 0xffff_ffff;
    let Ok(boot) = ntfs::boot_sector::NtfsBootSector::parse(start.0) else { return Ok(None) };
    let Some(at) = boot.mft.checked_add(3 * boot.record) else { return Ok(None) };
    let record = read(store, at, boot.record)?;
    let record = Start(&record);
    if !record.has(0, b"FILE") {
        return Ok(None);
    }
    let mut at = record.u16(20).unwrap_or(0) as usize;
    while let (Some(kind), Some(len)) = (record.u32(at), record.u32(at + 4)) {
        if kind == NAME {
            let value = record.u16(at + 20).unwrap_or(0) as usize;
            return Ok(record.utf16(at + value, record.u32(at + 16).unwrap_or(0).min(256) as usize));
        }
        if kind == END || len < 16 || len as u64 > boot.record {
            break;
        }
        at += len as usize;
    }
    Ok(None)
}

/// ISO 9660 has no UUID; the system uses the time of modification or creation, to a hundredth of a second.
fn iso_number(start: &Start<'_>) -> Option<String> {
    let digits =
        |at| start.bytes::<16>(at).filter(|d| d.iter().all(u8::is_ascii_digit) && d.iter().any(|b| *b != b'0'));
    let digits = std::str::from_utf8(digits(0x8000 + 830).or_else(|| digits(0x8000 + 813))?).ok()?;
    let parts =
        [&digits[..4], &digits[4..6], &digits[6..8], &digits[8..10], &digits[10..12], &digits[12..14], &digits[14..]];
    Some(parts.join("-"))
}

/// Reads the range, or as much of it as exists.
fn read(store: &dyn Store, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len.min(store.len().saturating_sub(at)) as usize];
    store.read_at(at.min(store.len()), &mut bytes)?;
    Ok(bytes)
}

/// The beginning of a store; it may be shorter than expected.
struct Start<'a>(&'a [u8]);

impl Start<'_> {
    fn has(&self, at: usize, mark: &[u8]) -> bool {
        self.0.get(at..).is_some_and(|from| from.starts_with(mark))
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        self.0.get(at..)?.first_chunk()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.bytes(at).copied().map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.bytes(at).copied().map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.bytes(at).copied().map(u64::from_le_bytes)
    }

    /// Text that ends at a NUL or after `len` bytes, without trailing padding.
    fn text(&self, at: usize, len: usize) -> Option<String> {
        let bytes = self.0.get(at..at + len)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(len);
        let text = String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Text of at most `len` bytes in little-endian UTF-16.
    fn utf16(&self, at: usize, len: usize) -> Option<String> {
        let units = self.0.get(at..at + len)?.chunks_exact(2).map(|u| u16::from_le_bytes([u[0], u[1]]));
        let text: String = char::decode_utf16(units.take_while(|u| *u != 0)).map(|c| c.unwrap_or('\u{fffd}')).collect();
        (!text.is_empty()).then_some(text)
    }

    fn uuid(&self, at: usize) -> Option<String> {
        let bytes: &[u8; 16] = self.bytes(at)?;
        (*bytes != [0; 16]).then(|| hex::uuid(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn a_volume_that_was_cut_short_is_recognised_by_what_is_left() {
        struct Cut(MemoryStore, u64);
        impl Store for Cut {
            fn len(&self) -> u64 {
                self.0.len()
            }
            fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
                crate::store::check_range(offset, out.len(), self.1)?;
                self.0.read_at(offset, out)
            }
            fn write_clobbering(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
                Err(io::ErrorKind::Unsupported.into())
            }
            fn flush(&self) -> io::Result<()> {
                Ok(())
            }
        }
        let (at, mark, kind) = MARKS.iter().find(|(at, ..)| *at < 1024).expect("a mark");
        let mut bytes = vec![7; 2 * LOOKED_AT];
        bytes[*at..][..mark.len()].copy_from_slice(mark);
        for left in [2048, 2048 + 100, LOOKED_AT as u64] {
            let cut = Cut(MemoryStore::new(bytes.clone()), left);
            let whole = left / 512 * 512;
            let start = beginning(&cut).expect("what is left");
            assert_eq!((start.len(), super::kind(&start)), (LOOKED_AT, Some(*kind)));
            assert!(start[..whole as usize] == bytes[..whole as usize]);
            assert!(start[whole as usize..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn every_mark_is_seen_and_no_part_of_it() {
        for (at, bytes, kind) in MARKS {
            assert!(at + bytes.len() <= LOOKED_AT);
            let mut start = vec![0; LOOKED_AT];
            start[*at..][..bytes.len()].copy_from_slice(bytes);
            assert_eq!(super::kind(&start), Some(*kind));
            assert_eq!(super::kind(&start[..at + bytes.len() - 1]), None);
            // Only the magic number is there: no label is found, and nothing panics.
            let found = detect(&MemoryStore::new(start)).expect("it can be read").expect("it is seen");
            assert_eq!((found.kind, found.label, found.uuid), (*kind, None, found_number(*kind)));
        }
    }

    /// Serial numbers of 32 and 64 bits may be zero.
    fn found_number(kind: Kind) -> Option<String> {
        match kind {
            Kind::Ntfs => Some("0".repeat(16)),
            Kind::ExFat => Some("0000-0000".into()),
            _ => None,
        }
    }

    #[test]
    fn zeros_noise_and_short_stores_are_nothing() {
        for len in [0, 1, 511, 512, 1080, 4096, LOOKED_AT] {
            assert_eq!(detect(&MemoryStore::new(vec![0; len])).expect("read"), None);
        }
        for _ in 0..200 {
            let mut noise = vec![0; LOOKED_AT];
            getrandom::fill(&mut noise).expect("random bytes");
            assert_eq!(detect(&MemoryStore::new(noise)).expect("read"), None);
        }
    }

    #[test]
    fn names_are_told_apart() {
        let names: std::collections::HashSet<_> = Kind::ALL.iter().map(|k| k.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
