//! Suggests commands for a file that is not a volume, but an image or archive that may hold one, which other programs open.

use std::path::Path;

use claviger_engine::diagnosis::{DiskAccess, Mark};

use crate::terminal::output;

/// Sentences, each with a command, that lead from the recognised file at `path` to its contents, which the verb `then` examines.
/// No command writes to the file.
pub fn steps(mark: &Mark, path: &str, then: &str) -> Vec<(String, Option<String>)> {
    let Mark { what, opened_by: Some(by), way, .. } = mark else { return Vec::new() };
    let then = |path: &str| Some(output::command(["claviger", then, path]));
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
