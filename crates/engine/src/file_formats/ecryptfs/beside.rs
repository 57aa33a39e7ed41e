//! The files that ecryptfs-utils keep beside an encrypted folder: in `.ecryptfs` in a home, or beside `.Private` in
//! /home/.ecryptfs/USER (ecryptfs-utils 111, src/utils/ecryptfs-setup-private and mount.ecryptfs_private.c).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::file_formats::Beside;
use crate::trees::{HeldNode, NodeKind, Tree};

/// The encrypted folder that these files belong to. Other encrypted folders in the same home do not use them.
pub const ENCRYPTED: &str = ".Private";

/// The folder that holds these files.
const FOLDER: &str = ".ecryptfs";

/// The passphrase for contents and names, wrapped with the login password.
pub const WRAPPED: &str = "wrapped-passphrase";

/// The key signatures, one a line: for contents, then for names. Older systems lack the second.
pub const SIGNATURES: &str = "Private.sig";

/// The path of the mount point.
pub const MOUNT_POINT: &str = "Private.mnt";

/// An empty file: if it exists, the folder is mounted whenever its owner logs in.
pub const AUTO_MOUNT: &str = "auto-mount";

/// The most bytes read of one of these files.
const MOST: usize = 4096;

/// Looks for `.ecryptfs` in `beside`, the parent of the encrypted folder.
pub(super) fn look(beside: &(dyn Tree + 'static)) -> io::Result<Beside> {
    let folder = match HeldNode::lookup(beside, beside.root(), OsStr::new(FOLDER)) {
        Ok(folder) if beside.attributes(folder.node())?.kind == NodeKind::Folder => folder,
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Ok(_) | Err(_) => return Ok(Beside::default()),
    };
    let mut missing = Vec::new();
    let mut read = |name: &str| {
        let read = contents(beside, folder.node(), name).ok().flatten();
        if read.is_none() {
            missing.push(name.to_owned());
        }
        read
    };
    let wrapped_passphrase = read(WRAPPED);
    let signatures = read(SIGNATURES).unwrap_or_default();
    let mount_point = read(MOUNT_POINT);
    let mount_point = mount_point.map(|text| PathBuf::from(OsStr::from_bytes(text.trim_ascii_end())));
    let auto_mount = HeldNode::lookup(beside, folder.node(), OsStr::new(AUTO_MOUNT)).is_ok();
    Ok(Beside {
        folder: Some(FOLDER.into()),
        wrapped_passphrase,
        signatures: signatures.split(u8::is_ascii_whitespace).filter_map(signature).collect(),
        mount_point,
        auto_mount,
        missing,
    })
}

/// The contents of a file; `None` if it is not a file or too long.
fn contents(tree: &(dyn Tree + 'static), folder: u64, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = HeldNode::lookup(tree, folder, OsStr::new(name))?;
    if tree.attributes(file.node())?.kind != NodeKind::File {
        return Ok(None);
    }
    let mut bytes = vec![0; MOST + 1];
    let len = tree.read_at(file.node(), 0, &mut bytes)?;
    bytes.truncate(len);
    Ok((1..=MOST).contains(&len).then_some(bytes))
}

/// The signature in `word`, if it consists of sixteen hexadecimal digits.
fn signature(word: &[u8]) -> Option<String> {
    let digits = word.len() == 16 && word.iter().all(u8::is_ascii_hexdigit);
    digits.then(|| String::from_utf8_lossy(word).to_lowercase())
}
