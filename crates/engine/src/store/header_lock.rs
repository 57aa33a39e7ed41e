//! The lock that cryptsetup holds while it reads or changes the LUKS2 header of a block device: a file in
//! /run/cryptsetup named after the device's number, locked with `flock` (cryptsetup's lib/utils_device_locking.c).
//!
//! Releasing the lock removes the file. So after locking a file, a process must check that others would still open the same one.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// The folder of the lock files (`DEFAULT_LUKS2_LOCK_PATH`).
const FOLDER: &str = "/run/cryptsetup";

/// The number of attempts, and the wait between them: others hold the lock only briefly.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// A held lock; dropping it releases it.
#[derive(Debug)]
pub struct HeaderLock {
    file: File,
    path: PathBuf,
}

/// Takes the lock of the block device with this number. `None` if this user may not take it.
pub(super) fn take(device: u64) -> Result<Option<HeaderLock>> {
    in_folder(Path::new(FOLDER), device)
}

fn in_folder(folder: &Path, device: u64) -> Result<Option<HeaderLock>> {
    // The folder may exist already; opening the file below shows whether it is usable.
    let _ = DirBuilder::new().mode(0o700).create(folder);
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = folder.join(format!("L_{major}:{minor}"));
    for nth in 0..TRIES {
        if nth > 0 {
            std::thread::sleep(PAUSE);
        }
        let file = match open(&path) {
            Ok(file) => file,
            // Only root can open the lock file. Another user may have access to the device, but then there is no lock that
            // cryptsetup honours.
            Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(e)) => return Err(e.into()),
        }
        let lock = HeaderLock { file, path: path.clone() };
        if lock.is_found() {
            return Ok(Some(lock));
        }
    }
    let holder = Some("cryptsetup, which is changing the header".to_owned());
    Err(Error::new(ErrorKind::InUse { holder }).hint("Nothing was changed. Try again when it is done."))
}

fn open(path: &Path) -> io::Result<File> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(no_link).open(path)
}

impl HeaderLock {
    /// Whether opening the path still yields this file.
    fn is_found(&self) -> bool {
        let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        self.file.metadata().is_ok_and(|a| symlink_metadata(&self.path).is_ok_and(|b| same(a, b)))
    }
}

impl Drop for HeaderLock {
    /// Removes the file while it is still locked. A waiting process then sees that the path no longer refers to it.
    fn drop(&mut self) {
        if self.is_found() {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("cryptsetup");
        let device = rustix::fs::makedev(7, 3);
        let path = inside.join("L_7:3");
        let lock = in_folder(&inside, device).expect("it is free").expect("it may be taken");
        assert!(path.exists());
        assert!(matches!(open(&path).expect("it is there").try_lock(), Err(TryLockError::WouldBlock)));
        let waiting = std::thread::spawn(move || in_folder(&inside, device).expect("it is free in the end").is_some());
        drop(lock);
        assert!(waiting.join().expect("no panic"));
        assert!(!path.exists());
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let victim = folder.path().join("victim");
        std::os::unix::fs::symlink(&victim, folder.path().join("L_7:4")).expect("a link");
        assert!(in_folder(folder.path(), rustix::fs::makedev(7, 4)).is_err());
        assert!(!victim.exists());
    }
}
