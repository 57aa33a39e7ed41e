//! Files and their names: a file is written completely or not at all, and only replaces what it was meant to replace.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Makes the names in the folder of `path` durable: a file that was synced may still have no name after a power cut.
///
/// # Errors
/// Those of opening the folder and of fsync(2).
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Opens a regular file to read; `None` for anything else. The kind is checked before opening: a FIFO would wait for a writer.
///
/// # Errors
/// `Io`.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    if fs::metadata(path)?.is_file() { File::open(path).map(Some) } else { Ok(None) }
}

/// All that is left to read; nothing where that is more than `most` bytes.
///
/// # Errors
/// Those of reading.
pub fn read_at_most(from: impl Read, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Replaces a file durably and atomically: what was there before, even a link, stays until the new one is complete.
/// Only one process at a time may do this.
///
/// # Errors
/// `Io`.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_with(path, bytes, mode, |_| Ok(()))
}

/// The same, and the new file belongs to whom the old one does, with the same permissions.
///
/// # Errors
/// `Io`; `NotFound` where there is no file.
pub fn replace_as_owned(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let old = fs::metadata(path)?;
    replace_with(path, bytes, 0o600, |file| {
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(old.permissions())
    })
}

fn replace_with(path: &Path, bytes: &[u8], mode: u32, finish: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let new = beside(path)?;
    // Left by a process that was killed. It is neither opened nor followed: anybody may have put a link there.
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| finish(&file))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))?;
    sync_folder(path)
}

/// The name of the temporary file that [`replace`] writes.
pub fn beside(path: &Path) -> io::Result<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".claviger-new");
    Ok(path.with_file_name(name))
}

/// Renames `from` to `to`, which must not exist.
///
/// # Errors
/// `AlreadyExists` if it does; `Io`.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(e) if unknown(e) => {}
        renamed => return Ok(renamed?),
    }
    // A hard link fails too if the name is taken, but not every file system has hard links.
    match fs::hard_link(from, to) {
        Ok(()) => return fs::remove_file(from),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(e),
        Err(_) => {}
    }
    // Nobody else takes a name that exists, so the file that is replaced here is our own empty one.
    File::create_new(to)?;
    fs::rename(from, to).inspect_err(|_| drop(fs::remove_file(to)))
}

/// Swaps the names of two files. False if the file system cannot.
///
/// # Errors
/// `Io`.
pub(crate) fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Err(e) if unknown(e) => Ok(false),
        exchanged => Ok(exchanged.map(|()| true)?),
    }
}

/// What file systems return for an unknown flag of renameat2(2), and kernels without the call.
fn unknown(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_link_where_the_new_file_is_to_be_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, victim) = (folder.path().join("state"), folder.path().join("victim"));
        fs::write(&victim, "precious").expect("a file");
        symlink(&victim, beside(&path).expect("a name")).expect("a link");
        replace(&path, b"whole", 0o600).expect("written");
        assert_eq!(
            (fs::read(&path).expect("it"), fs::read(&victim).expect("it")),
            (b"whole".into(), b"precious".into())
        );
        assert_eq!(fs::metadata(&path).expect("it").permissions().mode() & 0o777, 0o600);
        // Nor is a link followed that has the file's own name.
        fs::remove_file(&path).and_then(|()| symlink(&victim, &path)).expect("a link");
        replace(&path, b"again", 0o644).expect("written");
        assert_eq!(
            (fs::read(&path).expect("it"), fs::read(&victim).expect("it")),
            (b"again".into(), b"precious".into())
        );
        assert!(fs::symlink_metadata(&path).expect("it").is_file() && !beside(&path).expect("a name").exists());
    }

    #[test]
    fn what_is_too_long_or_no_file_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "12345").expect("a file");
        let read =
            |most| read_at_most(open_regular(&path).expect("it opens").expect("a file"), most).expect("it reads");
        assert_eq!((read(4), read(5), read(u64::MAX)), (None, Some(b"12345".into()), Some(b"12345".into())));
        assert!(open_regular(folder.path()).expect("it is there").is_none());
        assert!(open_regular(&folder.path().join("nothing")).is_err());
    }

    #[test]
    fn a_name_is_not_taken_from_anybody() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&from, "new").and_then(|()| symlink("/nowhere", &to)).expect("a file, and a link to nothing");
        assert_eq!(rename_new(&from, &to).expect_err("it is taken").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_link(&to).expect("the link"), Path::new("/nowhere"));
        fs::remove_file(&to).expect("removed");
        rename_new(&from, &to).expect("it is free");
        assert!(!from.exists() && fs::read(&to).expect("it") == b"new");
    }
}
