//! The keys of an unlocked vault, as a tree of encrypted files wants them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use rustix::io::Errno;
use unicode_normalization::is_nfc;

use super::old;
use super::tree::{DIR_ID, VaultTree};
use super::vault::WHOLE;
use crate::error::{Error, Result};
use crate::file_formats::{
    FileKeys, FileKind, NameIv, NameRole, NotShown, StoredFile, StoredFolder, cut_header, no_name,
};
use crate::key_process::folder::{FolderKeys, KeylessFolder};
use crate::trees::{Tree, damaged};

/// The longest new name, in bytes: that of Unix. Names from other systems may be longer.
pub(super) const LONGEST: usize = 255;

/// The longest target of a symbolic link, in bytes (cryptofs, Constants.java, `MAX_SYMLINK_LENGTH`).
const LONGEST_TARGET: usize = 32767;

/// See the module.
pub(super) struct Keys {
    pub tree: Arc<VaultTree>,
}

impl FileKeys for Keys {
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        let vault = self.tree.vault();
        let mut header = vec![0; vault.header_size()];
        match of.tree.read_at(of.contents, 0, &mut header)? {
            0 => Ok(FileKind::Unfinished),
            len if len < header.len() => Err(cut_header()),
            _ => {
                let layout = vault.open_header(&header)?;
                let layout = layout
                    .ok_or_else(|| damaged("header", 0, "it fails verification: it was changed, or has other keys"));
                layout.map(FileKind::Sealed)
            }
        }
    }

    /// Needs no header.
    fn size(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        match of.tree.attributes(of.contents)?.size {
            stored if (1..self.tree.vault().header_size() as u64).contains(&stored) => Err(cut_header()),
            stored => Ok(Some(self.tree.vault().size(stored))),
        }
    }

    /// A transfer that was interrupted leaves files without one.
    fn empty_needs_header(&self) -> bool {
        true
    }

    fn begin(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        let (header, layout) = self.tree.vault().new_header()?;
        of.tree.write_at(of.contents, 0, &header)?;
        Ok(FileKind::Sealed(layout))
    }

    fn set_size(&self, _of: StoredFile<'_>, _size: u64) -> io::Result<()> {
        Err(Error::misuse("a file of Cryptomator has no size in its header").into())
    }

    /// The arrangement of the folder that was unlocked.
    fn arranged(&self, _lower: Arc<dyn Tree>) -> Arc<dyn Tree> {
        self.tree.clone()
    }

    fn not_shown(&self) -> io::Result<Vec<NotShown>> {
        self.tree.not_shown()
    }

    fn show_lost(&self) {
        self.tree.show_lost();
    }

    fn name_iv(&self, of: StoredFolder<'_>) -> io::Result<NameIv> {
        self.tree.id(of.folder)
    }

    fn role(&self, stored: &OsStr, _in_root: bool) -> NameRole {
        if stored == DIR_ID { NameRole::Own } else { NameRole::Name }
    }

    fn plain_name(&self, stored: &OsStr, iv: &NameIv) -> io::Result<Option<OsString>> {
        self.tree.vault().plain_name(stored, iv)
    }

    fn why_no_name(&self, stored: &OsStr) -> Error {
        if self.tree.vault().config.is_old() {
            return no_name(old::why_no_name(stored));
        }
        no_name(match stored.as_bytes().strip_suffix(WHOLE.as_bytes()) {
            None => "name.c9s, the file with the whole name, is missing or damaged",
            Some(name) if is_whole(name) => NOT_DECRYPTED,
            Some(name) if begins_encrypted(name) => {
                "the name has an addition: a sync program kept this copy of another version"
            }
            Some(_) => "the name is not encrypted",
        })
    }

    /// Cryptomator encrypts names in form NFC only.
    fn why_unfit(&self, plain: &OsStr) -> Option<Error> {
        let composed = plain.to_str().is_some_and(is_nfc);
        let shown = plain.display();
        (!composed).then(|| {
            no_name(&format!(
                "it decrypts to {shown}, but not in Unicode's form NFC: Cryptomator does not find it either"
            ))
        })
    }

    /// Cryptomator upgrades a vault of format 6 before it writes to it.
    fn read_only(&self) -> bool {
        self.tree.vault().config.is_old()
    }

    fn encrypts_names(&self) -> bool {
        true
    }

    fn stored_name(&self, plain: &OsStr, iv: &NameIv) -> io::Result<OsString> {
        if plain.len() > MOST_NAME {
            return Err(Errno::NAMETOOLONG.into());
        }
        self.tree.vault().stored_name(plain, iv)
    }

    fn longest_name(&self, _stored: u32) -> u32 {
        LONGEST as u32
    }

    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        let plain = self.tree.vault().open_small(stored.as_bytes())?;
        plain.map(OsString::from_vec).ok_or_else(|| damaged("target", 0, "its file fails verification"))
    }

    fn stored_target(&self, plain: &OsStr) -> io::Result<OsString> {
        if plain.len() > LONGEST_TARGET {
            return Err(Errno::NAMETOOLONG.into());
        }
        self.tree.vault().seal_small(plain.as_bytes()).map(OsString::from_vec)
    }

    fn split_keys(&self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        self.tree.vault().split_keys()
    }
}

pub(super) const NOT_DECRYPTED: &str =
    "the name does not decrypt: it was changed, moved from another folder, or has other keys";

/// The longest name that is looked for, in bytes (Linux, fs/fuse/fuse_i.h, `FUSE_NAME_MAX`).
const MOST_NAME: usize = 1024;

/// Whether a name has the form of an encrypted one.
fn is_whole(name: &[u8]) -> bool {
    let digits = name.iter().take_while(|byte| is_digit(byte)).count();
    name.len().is_multiple_of(4) && digits + 2 >= name.len() && name[digits..].iter().all(|byte| *byte == b'=')
}

fn is_digit(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Whether a name begins as encrypted ones do: with a synthetic IV in Base64.
fn begins_encrypted(name: &[u8]) -> bool {
    name.iter().take_while(|byte| is_digit(byte)).count() >= 22
}
