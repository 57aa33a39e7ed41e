//! fscrypt, the encryption of ext4, F2FS and others by the kernel (Documentation/filesystems/fscrypt.rst). A folder is recognised while
//! its key is missing. With the key it is like any other folder.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::io::Errno;

use super::{FileFormat, FileKeys};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::parameters::Takes;
use crate::trees::{HeldNode, Node, NodeKind, Tree, Use};
use crate::verdict::Verdict;

/// See the module.
pub static FSCRYPT: Fscrypt = Fscrypt;

/// See [`FSCRYPT`].
pub struct Fscrypt;

/// The folder in the root of a file system in which the program fscrypt keeps its metadata, and what is in it
/// (github.com/google/fscrypt, filesystem/filesystem.go).
const METADATA: &str = ".fscrypt";
const IN_METADATA: [&str; 2] = ["policies", "protectors"];

/// The shortest name that a folder without its key shows: eight bytes and one block in Base64 (Linux, fs/crypto/fname.c,
/// `struct fscrypt_nokey_name`).
const SHORTEST: usize = 32;

/// The most entries that are tried.
const TRIED: usize = 16;

impl FileFormat for Fscrypt {
    fn name(&self) -> &'static str {
        "fscrypt"
    }

    fn opens(&self) -> bool {
        false
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[] }
    }

    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        false
    }

    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        let root = lower.root();
        if lower.attributes(root)?.encrypted {
            return is_locked(lower);
        }
        let metadata = HeldNode::lookup(lower, root, METADATA.as_ref());
        let has = |name: &str| metadata.as_ref().is_ok_and(|it| is_folder(lower, it.node(), name).unwrap_or(false));
        Ok(match IN_METADATA.into_iter().all(has) {
            true => {
                let what = format!("{METADATA} holds fscrypt's metadata: folders of this file system may be encrypted");
                Verdict::Possible(vec![what])
            }
            false => Verdict::No(vec!["the file system does not encrypt it".into()]),
        })
    }

    fn unlock(&self, _lower: &Arc<dyn Tree>, _with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        Err(Error::unsupported("folders that the kernel encrypts (fscrypt)")
            .hint("fscrypt opens it: `fscrypt unlock FOLDER`. Then it is like any other folder."))
    }
}

fn is_folder(lower: &(dyn Tree + 'static), folder: Node, name: &str) -> io::Result<bool> {
    let found = HeldNode::lookup(lower, folder, name.as_ref())?;
    Ok(lower.attributes(found.node())?.kind == NodeKind::Folder)
}

/// Whether the key of an encrypted folder is missing. An empty folder does not show that, and names alone prove nothing.
fn is_locked(lower: &(dyn Tree + 'static)) -> Result<Verdict> {
    let unlocked = || Verdict::No(vec!["the file system encrypts it, but nothing in it is locked".into()]);
    let entries = lower.list(lower.root())?;
    for entry in entries.iter().filter(|entry| entry.kind == NodeKind::File).take(TRIED) {
        let Ok(file) = HeldNode::take(lower, lower.root(), entry) else { continue };
        match lower.open(file.node(), Use { read: true, write: false }) {
            Ok(()) => {
                lower.release(file.node())?;
                return Ok(unlocked());
            }
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NOKEY) => {
                return Ok(Verdict::Yes(vec!["the file system encrypts it, and its key is missing".into()]));
            }
            Err(_) => {}
        }
    }
    Ok(match !entries.is_empty() && entries.iter().all(|entry| is_without_key(&entry.name)) {
        true => {
            Verdict::Possible(vec!["the file system encrypts it, and its names look as if its key were missing".into()])
        }
        false => unlocked(),
    })
}

/// Whether a name may be one that is shown without the key.
fn is_without_key(name: &OsStr) -> bool {
    // The last two are of kernels before 5.16.
    let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'+' | b',');
    name.len() >= SHORTEST && name.as_bytes().iter().all(digit)
}
