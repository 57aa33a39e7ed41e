//! If the disk is full, says how much space is needed and how much is free.

use std::io;
use std::path::Path;

use claviger_engine::{Error, ErrorKind, Result};
use rustix::fs::statvfs;
use rustix::process::geteuid;

use crate::terminal::{output, size};

/// Adds both to the error if the disk of `path` is full. Call it after removing everything that was written.
pub fn explained(error: Error, path: &Path, needed: u64) -> Error {
    match &error.kind {
        ErrorKind::Io(e) if e.kind() == io::ErrorKind::StorageFull => {}
        _ => return error,
    }
    let Ok(stat) = statvfs(folder_of(path)) else { return error };
    with_sizes(error, path, needed, stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Fails if the disk of a new file at `path` surely lacks space for it.
///
/// # Errors
/// `Io`.
pub fn check(path: &Path, needed: u64) -> Result<()> {
    // Some file systems have no numbers.
    let Some(stat) = statvfs(folder_of(path)).ok().filter(|stat| stat.f_blocks > 0) else { return Ok(()) };
    // Root may fill what is reserved for it.
    let free = stat.f_frsize.saturating_mul(if geteuid().is_root() { stat.f_bfree } else { stat.f_bavail });
    match free < needed {
        true => Err(with_sizes(io::Error::from(io::ErrorKind::StorageFull).into(), path, needed, free)),
        false => Ok(()),
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    }
}

fn with_sizes(error: Error, path: &Path, needed: u64, free: u64) -> Error {
    let before = error.hint.as_ref().map(|hint| format!("{hint} ")).unwrap_or_default();
    let df = output::command(["df".as_ref(), "-h".as_ref(), folder_of(path).as_os_str()]);
    Error { kind: ErrorKind::Io(of_sizes(needed, free)), ..error }.hint(format!("{before}To see what is free: {df}"))
}

/// The error of a disk with too little space.
pub fn of_sizes(needed: u64, free: u64) -> io::Error {
    let (needed, free) = (size::short(needed), size::short(free));
    io::Error::new(io::ErrorKind::StorageFull, format!("No space left on the disk: needs {needed}, {free} free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_gets_numbers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("v.tc");
        let other = explained(io::Error::from(io::ErrorKind::PermissionDenied).into(), &path, 7);
        assert!(!other.to_string().contains("needs"), "{other}");
        let full = || Error::from(io::Error::from(io::ErrorKind::StorageFull)).hint("The old file is unchanged.");
        let full = explained(full(), &path, 64 << 20).to_string();
        for words in ["needs 64 MiB, ", " free\nThe old file is unchanged.", "df -h"] {
            assert!(full.contains(words), "{full}");
        }
        assert!(of_sizes(3 << 30, 12 << 20).to_string().ends_with("needs 3 GiB, 12 MiB free"));
    }
}
