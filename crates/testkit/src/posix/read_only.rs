//! A folder on a read-only mount.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{Access, RenameFlags, access, fchmod};
use rustix::io::Errno;

use super::context::{make, mode, name, open, rename_with};
use super::paths::{CALLS, Call, Needs};

/// Calls that only read.
const LOOK: [&str; 9] =
    ["open", "stat", "lstat", "access", "statfs", "readlink", "getxattr", "listxattr", "open with O_EXCL"];

/// Writes the contents that [`read_only`] expects into an empty folder.
///
/// # Errors
/// Those of writing.
pub fn read_only_contents(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder.join("folder"))?;
    fs::write(folder.join("file"), "contents")?;
    symlink("file", folder.join("link"))
}

/// Checks that `folder`, which holds [`read_only_contents`] and is mounted read-only, refuses all changes with EROFS
/// and can be read.
///
/// # Errors
/// All deviations.
pub fn read_only(folder: &Path) -> Result<(), String> {
    let (file, dir, new) = (folder.join("file"), folder.join("folder"), folder.join("new"));
    let mut wrong = Vec::new();
    let mut refused = |what: &str, seen: rustix::io::Result<()>| {
        if seen != Err(Errno::ROFS) {
            wrong.push(format!("{what}: expected EROFS, saw {}", seen.err().map_or("success".into(), name)));
        }
    };
    let changes = |call: &&Call| !LOOK.contains(&call.name);
    for call in CALLS.iter().filter(changes) {
        let path = match call.needs {
            Needs::Nothing => &new,
            _ if call.name == "rmdir" => &dir,
            _ => &file,
        };
        // The second path of `rename from` is new; that of other calls exists.
        let other = if call.needs == Needs::Removes { &new } else { &file };
        refused(call.name, (call.run)(path, other));
    }
    refused("renameat2", rename_with(&file, &dir.join("file"), RenameFlags::NOREPLACE));
    refused("access for writing", access(&file, Access::WRITE_OK));
    refused("mkfifo", make("fifo", &new));
    refused("fchmod", open(&file, rustix::fs::OFlags::RDONLY).and_then(|fd| fchmod(fd, mode(0o644))));
    let read = fs::read(folder.join("link")).map_err(|e| wrong.push(format!("reading: {e}")));
    if read.is_ok_and(|bytes| bytes != b"contents") {
        wrong.push("the contents are others".into());
    }
    if fs::read_dir(folder).is_err() {
        wrong.push("it cannot be listed".into());
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}
