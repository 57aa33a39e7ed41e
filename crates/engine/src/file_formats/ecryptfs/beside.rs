//! What ecryptfs-utils keep beside a folder: `.ecryptfs` in a home, or beside `.Private` in /home/.ecryptfs/USER (ecryptfs-utils 111,
//! src/utils/ecryptfs-setup-private and mount.ecryptfs_private.c).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::file_formats::Beside;
use crate::trees::{HeldNode, NodeKind, Tree};

/// The encrypted folder that it belongs to. Another one in a home has nothing to do with it.
pub const ENCRYPTED: &str = ".Private";

/// The folder.
const FOLDER: &str = ".ecryptfs";

/// The passphrase of contents and names, wrapped by the login's.
pub const WRAPPED: &str = "wrapped-passphrase";

/// The signatures of the keys, one a line: that of contents, and that of names, which older systems have not.
pub const SIGNATURES: &str = "Private.sig";

/// Where the plaintext is shown.
pub const MOUNT_POINT: &str = "Private.mnt";

/// Empty: says that it is shown whenever its owner logs in.
pub const AUTO_MOUNT: &str = "auto-mount";

/// More than any of them has, in bytes.
const MOST: usize = 4096;

/// Looks for it in the folder in which the encrypted one is.
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

/// The contents of a file, if there are any and not too many.
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

/// A word that is a signature: sixteen hexadecimal digits.
fn signature(word: &[u8]) -> Option<String> {
    let digits = word.len() == 16 && word.iter().all(u8::is_ascii_hexdigit);
    digits.then(|| String::from_utf8_lossy(word).to_lowercase())
}
