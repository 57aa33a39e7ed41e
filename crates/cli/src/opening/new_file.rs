//! New files that must neither get lost nor replace others: keyfiles and header backups.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use claviger_engine::internal::files::{rename_new, sync_folder};
use claviger_engine::{Error, Result, Secret};
use claviger_serve::key_process::FileNumber;

use crate::opening::full_disk;

/// Fails if the path exists. Verbs call this before they ask for a password.
pub fn must_be_new(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Err(exists(path)),
        Err(_) => Ok(()),
    }
}

fn exists(path: &Path) -> Error {
    Error::misuse("already exists and is not overwritten").at(path).hint("Choose another name.")
}

/// Writes a new file, for its owner only (0600), and makes the file and its name durable. The file is complete before it gets
/// its name, because half a keyfile would pass for a whole one. Callers may append to it. A file that could not be written is
/// removed.
///
/// # Errors
/// `Misuse` if the path exists; `Io`.
pub fn write(path: &Path, bytes: &[u8]) -> Result<File> {
    must_be_new(path)?;
    written(path, bytes).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => full_disk::explained(Error::from(e).at(path), path, bytes.len() as u64),
    })
}

fn written(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (mut file, new) = tempfile::Builder::new().prefix(".claviger-").tempfile_in(folder)?.into_parts();
    file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| rename_new(&new, path))?;
    // The temporary name is gone.
    let _ = new.keep();
    sync_folder(path).inspect_err(|_| remove(&file, path))?;
    Ok(file)
}

/// The content of a text file with one line.
pub fn line(text: &Secret) -> Secret {
    Secret::concat(&[text, b"\n"])
}

/// Removes the file unless another has taken its place.
pub fn remove(file: &File, path: &Path) {
    let _ = number(file).and_then(|number| remove_numbered(path, number));
}

/// The file's device and inode numbers.
pub fn number(file: &File) -> io::Result<FileNumber> {
    file.metadata().map(|of| (of.dev(), of.ino()))
}

/// Removes the file with this `number` unless another has taken its place.
pub fn remove_numbered(path: &Path, number: FileNumber) -> io::Result<()> {
    let of = std::fs::symlink_metadata(path)?;
    if (of.dev(), of.ino()) == number { std::fs::remove_file(path) } else { Ok(()) }
}
