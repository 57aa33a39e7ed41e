//! New files that must not be lost, or take the place of others: keyfiles and header backups.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use claviger_engine::internal::files::{rename_new, sync_folder};
use claviger_engine::{Error, Result, Secret};
use claviger_serve::key_process::FileNumber;

/// Fails if there is something of that name: better before a password is asked for than after.
pub fn must_be_new(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Err(exists(path)),
        Err(_) => Ok(()),
    }
}

fn exists(path: &Path) -> Error {
    Error::misuse("already exists and is not overwritten").at(path).hint("Choose another name.")
}

/// Writes a file that does not exist yet, for its owner only (0600), and makes it and its name durable. It is whole before it has that
/// name: half a keyfile would pass for one. More can be written behind; a file that could not be written is removed again.
///
/// # Errors
/// `Misuse` if there is something of that name; `Io`.
pub fn write(path: &Path, bytes: &[u8]) -> Result<File> {
    let at = |e: io::Error| match e.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Error::from(e).at(path),
    };
    must_be_new(path)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = tempfile::Builder::new().prefix(".claviger-").tempfile_in(folder).map_err(at)?;
    let (mut file, new) = new.into_parts();
    file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| rename_new(&new, path)).map_err(at)?;
    // That name is gone.
    let _ = new.keep();
    sync_folder(path).inspect_err(|_| remove(&file, path)).map_err(at)?;
    Ok(file)
}

/// What a text file of one line holds.
pub fn line(text: &Secret) -> Secret {
    let mut line = Secret::zeroed(text.len() + 1);
    let (before, newline) = line.split_at_mut(text.len());
    before.copy_from_slice(text);
    newline.fill(b'\n');
    line
}

/// Removes the file unless another has taken its place.
pub fn remove(file: &File, path: &Path) {
    let _ = number(file).and_then(|number| remove_numbered(path, number));
}

/// Which file it is.
pub fn number(file: &File) -> io::Result<FileNumber> {
    file.metadata().map(|of| (of.dev(), of.ino()))
}

/// Removes this file unless another has taken its place.
pub fn remove_numbered(path: &Path, number: FileNumber) -> io::Result<()> {
    let of = std::fs::symlink_metadata(path)?;
    if (of.dev(), of.ino()) == number { std::fs::remove_file(path) } else { Ok(()) }
}
