//! If the disk is full, says how much space is needed and how much is free.

use std::io;
use std::path::Path;

use claviger_engine::{Error, ErrorKind};
use rustix::fs::statvfs;

use crate::terminal::{output, size};

/// Adds both to the error if the disk of `path` is full. Call it after removing everything that was written.
pub fn explained(error: Error, path: &Path, needed: u64) -> Error {
    match &error.kind {
        ErrorKind::Io(e) if e.kind() == io::ErrorKind::StorageFull => {}
        _ => return error,
    }
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    };
    let Ok(stat) = statvfs(folder) else { return error };
    let full = of_sizes(needed, stat.f_bavail.saturating_mul(stat.f_frsize));
    let before = error.hint.as_ref().map(|hint| format!("{hint} ")).unwrap_or_default();
    let hint =
        format!("{before}To see what is free: {}", output::command(["df".as_ref(), "-h".as_ref(), folder.as_os_str()]));
    Error { kind: ErrorKind::Io(full), ..error }.hint(hint)
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
