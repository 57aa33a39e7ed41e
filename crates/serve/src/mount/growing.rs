//! A mounted volume has grown: the loop device and the file system on it follow.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use claviger_engine::{Error, Result};
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::{drivers, image, loop_sys, said};
use crate::sessions::{Session, SessionRecord};

/// Lets the kernel know the size of a volume that has grown to `len` bytes: that of the file that shows it, and of the loop device on
/// that file. `folder` is the session's. Other mounts do not notice, and there is nothing to do.
///
/// # Errors
/// `Io`.
pub fn follow_size(folder: &Path, len: u64) -> io::Result<()> {
    let Some(session) = Session::read(folder) else { return Ok(()) };
    let SessionRecord { loop_device, filesystem, dir, .. } = &session.record;
    match (loop_device, dir) {
        (Some(device), _) => {
            follow_file(&session.image_dir().join(image::NAME), len)?;
            loop_sys::follow_size(&OpenOptions::new().read(true).write(true).open(device)?)
        }
        (None, Some(dir)) if filesystem.as_deref() == Some("none") => follow_file(&dir.join(image::NAME), len),
        _ => Ok(()),
    }
}

/// Asks for the file's size until the kernel takes note of it. It ignores an answer if a write has ended since the question
/// (linux/fs/fuse/inode.c, `fuse_change_attributes`), and then reads nothing beyond the old end.
fn follow_file(path: &Path, len: u64) -> io::Result<()> {
    const TIMES: u32 = 5000;
    let mut file = File::open(path)?;
    for _ in 0..TIMES {
        statx(&file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE)?;
        if file.seek(SeekFrom::End(0))? == len {
            return Ok(());
        }
        thread::sleep(Duration::from_micros(200));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel has not taken note of the new size"))
}

/// The command that grows the mounted file system of a session to the size of its volume.
///
/// # Errors
/// `Unsupported` if that is not possible while it is mounted.
pub fn filesystem_growth(record: &SessionRecord) -> Result<Vec<OsString>> {
    let words = |first: &[&str], last: &Path| first.iter().map(OsString::from).chain([last.into()]).collect();
    let refused = |why: String, hint: &str| Err(Error::unsupported(why).at(&record.volume).hint(hint));
    let (Some(dir), Some(filesystem)) = (&record.dir, record.filesystem.as_deref()) else {
        let hint = "Mount the volume as root first, or grow its file system where it is used.";
        return refused("growing a file system that is not mounted by claviger".to_owned(), hint);
    };
    match (filesystem, &record.loop_device) {
        ("none", _) => refused(
            "growing a file system in a volume that is mounted as a file".to_owned(),
            "Grow it with its own program, as in `resize2fs DIR/volume`.",
        ),
        ("ext3" | "ext4", Some(device)) => Ok(words(&["resize2fs"], device)),
        ("xfs", Some(_)) => Ok(words(&["xfs_growfs"], dir)),
        ("btrfs", Some(device)) if has_other_devices(device) => refused(
            "growing a Btrfs of several devices".to_owned(),
            "Grow it with its own program: `btrfs filesystem resize NUMBER:max DIR`.",
        ),
        ("btrfs", Some(_)) => Ok(words(&["btrfs", "filesystem", "resize", "max"], dir)),
        ("ext2" | "ext3" | "ext4" | "xfs" | "btrfs", None) => refused(
            format!("growing {filesystem} while a program in user space has it mounted"),
            "The kernel can, if root mounts the volume.",
        ),
        _ => refused(
            format!("growing {filesystem} while it is mounted"),
            "Only ext3, ext4, XFS and Btrfs can. Unmount the volume, and resize it without --filesystem.",
        ),
    }
}

/// Whether the Btrfs on this loop device has other devices, too: its program means the first one if none is named.
fn has_other_devices(device: &Path) -> bool {
    let filesystems = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
    let devices = filesystems.filter_map(|filesystem| fs::read_dir(filesystem.path().join("devices")).ok());
    let mut names = devices.map(|devices| devices.flatten().map(|device| device.file_name()).collect::<Vec<_>>());
    names.any(|names| names.len() > 1 && device.file_name().is_some_and(|name| names.iter().any(|one| one == name)))
}

/// Fails if the program of such a command is missing.
///
/// # Errors
/// `Io`, with what to install.
pub fn can_grow(command: &[OsString]) -> Result<()> {
    let name = command[0].to_string_lossy();
    let package = match &*name {
        "resize2fs" => "e2fsprogs",
        "xfs_growfs" => "xfsprogs",
        _ => "btrfs-progs",
    };
    let missing = || Error::not_installed("growing the file system", (&name, package), "");
    drivers::find(&name).map(drop).ok_or_else(missing)
}

/// Runs such a command.
///
/// # Errors
/// `Io`, with the program's own words.
pub fn grow_filesystem(command: &[OsString]) -> Result<()> {
    let (program, words) = command.split_first().expect("a command has a name");
    let name = program.to_string_lossy();
    let path = drivers::find(&name).unwrap_or_else(|| (&*name).into());
    let mut command = Command::new(&path);
    command.args(words).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|e| Error::from(e).at(&path))?;
    if output.status.success() { Ok(()) } else { Err(said(&name, &output.stderr)) }
}
