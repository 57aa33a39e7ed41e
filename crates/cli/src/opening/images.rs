//! Suggests commands for a file that is not a volume, but an image or archive that may hold one.

use std::path::Path;

use claviger_engine::diagnosis::{DiskAccess, Mark};

use super::remote;
use crate::terminal::output;

/// Sentences, each with a command, that lead from the recognised file at `path` to its contents. No command writes to the file.
pub fn steps(mark: &Mark, path: &str) -> Vec<(String, Option<String>)> {
    let Mark { what, opened_by: Some(by), way, .. } = mark else { return Vec::new() };
    let explain = |path: &str| Some(output::command(["claviger", "explain", path]));
    match way {
        // An image scheme takes a local file, not the address of a remote store.
        Some(DiskAccess::Image(format)) if !remote::is_remote(Path::new(path)) => {
            vec![(format!("This is {what}. To open the disk in it:"), explain(&format!("{format}:{path}")))]
        }
        Some(DiskAccess::Mounted { program, inside }) => {
            let name = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
            let inside = inside.replace("IMAGE", &name);
            vec![
                (
                    format!("This is {what}, which is opened read-only as evidence. Mount it on an empty folder:"),
                    Some(output::command([program, path, "FOLDER"])),
                ),
                ("Then open the disk in it:".to_owned(), explain(&format!("FOLDER/{inside}"))),
            ]
        }
        Some(DiskAccess::Unpacked(command)) => {
            let words = command.split(' ').chain([path]);
            vec![
                (format!("This is {what}. Unpack it:"), Some(output::command(words) + " > COPY")),
                ("Then identify its contents:".to_owned(), explain("COPY")),
            ]
        }
        _ => vec![(format!("This is {what}, which claviger does not open. Use {by}."), None)],
    }
}
