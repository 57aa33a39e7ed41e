//! Suggests commands for a file that is not a volume, but an image or archive that may hold one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use claviger_engine::diagnosis::{DiskAccess, Mark};

use super::remote;
use crate::terminal::output;

/// The disk in the image at `path`, as the remote store that a helper serves; `None` if no helper opens it.
pub fn disk_in(mark: &Mark, path: &Path) -> Option<PathBuf> {
    match mark.way {
        // An image scheme takes a local file, not the address of a remote store.
        Some(DiskAccess::Image(format)) if !remote::is_remote(path) => {
            let mut name = OsString::from(format!("{format}:"));
            name.push(path);
            Some(name.into())
        }
        _ => None,
    }
}

/// Sentences, each with a command, that lead from the recognised file at `path` to its contents, which the verb `then` examines.
/// No command writes to the file.
pub fn steps(mark: &Mark, path: &str, then: &str) -> Vec<(String, Option<String>)> {
    let Mark { what, opened_by: Some(by), way, .. } = mark else { return Vec::new() };
    let then = |path: &str| Some(output::command(["claviger", then, path]));
    if let Some(disk) = disk_in(mark, Path::new(path)) {
        return vec![(format!("This is {what}. To examine the disk in it:"), then(&disk.to_string_lossy()))];
    }
    match way {
        Some(DiskAccess::Mounted { program, inside }) => {
            let name = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
            let inside = inside.replace("IMAGE", &name);
            vec![
                (
                    format!("This is {what}, which is opened read-only as evidence. Mount it on an empty folder:"),
                    Some(output::command([program, path, "FOLDER"])),
                ),
                ("Then examine the disk in it:".to_owned(), then(&format!("FOLDER/{inside}"))),
            ]
        }
        Some(DiskAccess::Unpacked(command)) => {
            let words = command.split(' ').chain([path]);
            vec![
                (format!("This is {what}. Unpack it:"), Some(output::command(words) + " > COPY")),
                ("Then examine its contents:".to_owned(), then("COPY")),
            ]
        }
        _ => vec![(format!("This is {what}, which claviger does not open. Use {by}."), None)],
    }
}
