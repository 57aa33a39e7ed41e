//! File systems without the kernel: detecting the one in a store, and reading its folders and files.

pub(crate) mod detect;
pub(crate) mod disk_images;
mod exfat;
pub mod ext;
pub mod fat;
pub mod free_tail;
mod guard;
pub(crate) mod magic;
pub mod ntfs;
pub mod swap;
mod tail;

use std::sync::Arc;

pub use detect::{Filesystem, Kind, detect};

use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::logical_volumes::{self, Group};
use crate::partitions::{self, Partition, PartitionTable, TableKind};
use crate::store::{AroundStore, SMALLEST_SECTOR, Store};
use crate::trees::Tree;

/// Opens the file system of a store.
type Open = fn(Arc<dyn Store>) -> Result<Box<dyn Tree>>;

/// The file systems this program reads itself. FAT and exFAT can also be written.
static TREES: &[(Kind, Open)] = &[
    (Kind::Fat12, |store| Ok(Box::new(fat::Fat::open(store)?))),
    (Kind::Fat16, |store| Ok(Box::new(fat::Fat::open(store)?))),
    (Kind::Fat32, |store| Ok(Box::new(fat::Fat::open(store)?))),
    (Kind::ExFat, |store| Ok(Box::new(exfat::open(store)?))),
    (Kind::Ntfs, |store| Ok(Box::new(ntfs::Ntfs::open(store)?))),
    (Kind::Ext2, |store| Ok(Box::new(ext::Ext::open(store)?))),
    (Kind::Ext3, |store| Ok(Box::new(ext::Ext::open(store)?))),
    (Kind::Ext4, |store| Ok(Box::new(ext::Ext::open(store)?))),
];

/// Opens the file system in `store` and returns its kind as well. Nothing is written before the first change.
///
/// # Errors
/// `NotThisFormat` if there is no file system, with what was found instead; `Unsupported` for one that cannot be read; `Malformed`,
/// `Io`. For a store with logical volumes, `NotThisFormat` with [`Advice::ChooseLogicalVolume`].
pub fn open(store: Arc<dyn Store>) -> Result<(Filesystem, Box<dyn Tree>)> {
    // File systems read little at a time, and each read would wait for the disk.
    let store: Arc<dyn Store> = if store.bypasses_cache() { Arc::new(AroundStore::new(store)) } else { store };
    let Some(found) = detect(&*store)? else { return Err(nothing(&*store)) };
    let open = TREES.iter().find(|(kind, _)| *kind == found.kind).map(|(_, open)| open);
    let Some(open) = open else {
        if found.kind == Kind::Lvm {
            return Err(instead_of_files(&*store));
        }
        let what = format!("reading {}", found.kind.described());
        let known = "Supported without the kernel: FAT, exFAT, NTFS, ext2, ext3, ext4.";
        return Err(Error::unsupported(what).hint(known));
    };
    let tree = open(store).map_err(|e| e.in_format(found.kind.name()))?;
    Ok((found, tree))
}

/// Refuses a file system in which Windows is hibernated. When it resumes, Windows relies on its cached state, whatever has changed
/// on the disk.
///
/// # Errors
/// `Unsupported`, with advice; `Io`.
pub fn must_not_be_hibernated(store: &Arc<dyn Store>) -> Result<()> {
    if !is_hibernated(store)? {
        return Ok(());
    }
    Err(Error::unsupported(
        "changing the NTFS file system of a hibernated Windows, or of one shut down with fast startup",
    )
    .hint(
        "Start Windows and shut it down fully: `shutdown /s /f /t 0` (`powercfg /h off` disables hibernation). \
         Nothing was changed.",
    ))
}

/// Whether `store` holds an NTFS file system in which Windows is hibernated. False if it cannot be read.
///
/// # Errors
/// `Io`.
pub fn is_hibernated(store: &Arc<dyn Store>) -> Result<bool> {
    if detect(&**store)?.is_none_or(|found| found.kind != Kind::Ntfs) {
        return Ok(false);
    }
    Ok(ntfs::Ntfs::open(Arc::clone(store)).is_ok_and(|ntfs| ntfs.is_hibernated().unwrap_or(false)))
}

/// The error for an LVM2 physical volume where a file system is expected. It lists the logical volumes that can be opened, or says
/// what is wrong.
pub fn instead_of_files(store: &dyn Store) -> Error {
    let names = match logical_volumes::read(store) {
        Ok(group) => group.as_ref().map(Group::openable).unwrap_or_default(),
        Err(e) => return e,
    };
    let what = format!("it holds {}, not a file system", Kind::Lvm.described());
    Error::new(ErrorKind::NotThisFormat(what)).advise(Advice::ChooseLogicalVolume(names))
}

/// The sector size, in bytes, that the file system or partition table in `store` was made for. It does not work on a disk with
/// larger sectors. `None` if `store` holds neither.
///
/// # Errors
/// Those of the store.
pub fn sector_size(store: &dyn Store) -> Result<Option<u64>> {
    if let Some(size) = detect::sector_size(store)? {
        return Ok(Some(size));
    }
    // A malformed table has no sector size either.
    let Some(table) = partitions::read(store).ok().flatten() else { return Ok(None) };
    match table.kind {
        TableKind::Gpt => Ok(Some(table.sector_size.into())),
        TableKind::Mbr => may_count_smaller(store, &table),
    }
}

/// A master boot record does not record its sector size. It may use the larger size that `store` reports, if its partitions fit
/// then and nothing is recognised at their offsets for the smaller size.
fn may_count_smaller(store: &dyn Store, table: &PartitionTable) -> Result<Option<u64>> {
    let (own, small) = (store.sector_size(), SMALLEST_SECTOR);
    if own == small {
        return Ok(Some(small));
    }
    for Partition { start, len, .. } in &table.partitions {
        let mut begins = vec![0; store.len().saturating_sub(*start).min(detect::LOOKED_AT as u64) as usize];
        store.read_at(*start, &mut begins)?;
        let end = start.checked_add(*len).and_then(|end| (end / small).checked_mul(own));
        if detect::kind(&begins).is_some() || end.is_none_or(|end| end > store.len()) {
            return Ok(Some(small));
        }
    }
    Ok(None)
}

/// The error for a store without a file system: it says what is there instead.
pub fn nothing(store: &dyn Store) -> Error {
    if let Some(image) = image_at_the_end(store) {
        let what = format!("no file system was found: it holds {image}");
        return Error::new(ErrorKind::NotThisFormat(what))
            .hint("Copy the contents to a file, which opens as the disk in it.");
    }
    let holds = match detect::beginning(store) {
        Err(e) => return e.into(),
        Ok(start) if start.iter().all(|b| *b == 0) => "it begins with zeros",
        Ok(start) => match magic::known(&start) {
            Some(what) => &format!("it holds {what}"),
            None if magic::looks_random(&start) => "it looks random",
            None => "its contents are of an unknown kind",
        },
    };
    ErrorKind::NotThisFormat(format!("no file system was found: {holds}")).into()
}

/// A disk image that is described by its last sector.
fn image_at_the_end(store: &dyn Store) -> Option<&'static str> {
    let mut last = [0; SMALLEST_SECTOR as usize];
    store.read_at(store.len().checked_sub(SMALLEST_SECTOR)?, &mut last).ok()?;
    magic::at_the_end(&last).filter(|(.., way)| way.is_some()).map(|(what, ..)| what)
}
