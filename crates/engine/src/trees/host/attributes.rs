//! Attributes of host nodes.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, FileType, Statx, StatxAttributes, StatxFlags, StatxTimestamp, Timespec, UTIME_OMIT, makedev,
};

use crate::trees::{Attributes, NodeKind, Special};

/// Calls statx(2) on the node's own descriptor.
pub(super) fn of(node: &impl AsFd) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(node, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, wanted)?)
}

pub(super) fn kind(of: FileType) -> NodeKind {
    match of {
        FileType::RegularFile => NodeKind::File,
        FileType::Directory => NodeKind::Folder,
        FileType::Symlink => NodeKind::Link,
        _ => NodeKind::Special,
    }
}

pub(super) fn device(of: &Statx) -> u64 {
    makedev(of.stx_dev_major, of.stx_dev_minor)
}

/// When the node was created, in seconds and nanoseconds, if the file system records it.
pub(super) fn created(of: &Statx) -> Option<(i64, u32)> {
    (of.stx_mask & StatxFlags::BTIME.bits() != 0).then_some((of.stx_btime.tv_sec, of.stx_btime.tv_nsec))
}

/// The attributes of a node. `device` is that of the root folder. Btrfs subvolumes number their files separately, under a device number of their own.
pub(super) fn read(node: &impl AsFd, device: u64) -> io::Result<Attributes> {
    let of = of(node)?;
    let file_type = FileType::from_raw_mode(of.stx_mode.into());
    let kind = kind(file_type);
    let has_size = matches!(kind, NodeKind::File | NodeKind::Link);
    let (own, rdev) = (self::device(&of), makedev(of.stx_rdev_major, of.stx_rdev_minor));
    Ok(Attributes {
        kind,
        special: match file_type {
            FileType::Fifo => Some(Special::Pipe),
            FileType::Socket => Some(Special::Socket),
            FileType::BlockDevice => Some(Special::BlockDevice(rdev)),
            FileType::CharacterDevice => Some(Special::CharacterDevice(rdev)),
            _ => None,
        },
        number: of.stx_ino ^ (own ^ device).rotate_left(32),
        links: of.stx_nlink,
        size: if has_size { of.stx_size } else { 0 },
        stored: Some(of.stx_blocks.saturating_mul(512)),
        mode: Some(of.stx_mode & 0o7777),
        owner: Some((of.stx_uid, of.stx_gid)),
        modified: time(of.stx_mtime),
        changed: time(of.stx_ctime),
        accessed: time(of.stx_atime),
        created: created(&of).and_then(|_| time(of.stx_btime)),
        read_only: of.stx_attributes.contains(StatxAttributes::IMMUTABLE),
        encrypted: of.stx_attributes.contains(StatxAttributes::ENCRYPTED),
    })
}

fn time(of: StatxTimestamp) -> Option<SystemTime> {
    let seconds = Duration::from_secs(of.tv_sec.unsigned_abs());
    let whole = match of.tv_sec < 0 {
        true => UNIX_EPOCH.checked_sub(seconds),
        false => UNIX_EPOCH.checked_add(seconds),
    };
    whole?.checked_add(Duration::from_nanos(of.tv_nsec.into()))
}

/// Converts a time for utimensat(2). `None` leaves the time unchanged.
pub(super) fn timespec(time: Option<SystemTime>) -> Timespec {
    let Some(time) = time else { return Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT } };
    let (seconds, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs().cast_signed(), after.subsec_nanos()),
        Err(e) => {
            let before = e.duration();
            match before.subsec_nanos() {
                0 => (-before.as_secs().cast_signed(), 0),
                nanos => (-before.as_secs().cast_signed() - 1, 1_000_000_000 - nanos),
            }
        }
    };
    Timespec { tv_sec: seconds, tv_nsec: nanos.into() }
}
