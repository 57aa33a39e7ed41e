//! A folder without encryption, passed through.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;

use super::{FileFormat, FileKeys, FileKind, NameIv, StoredFile};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::parameters::Takes;
use crate::trees::Tree;
use crate::verdict::Verdict;

/// Passes files and names through unchanged: the baseline for the cost of the layer itself.
pub static CLEAR: Clear = Clear;

/// See [`CLEAR`].
pub struct Clear;

impl FileFormat for Clear {
    fn name(&self) -> &'static str {
        "clear"
    }

    fn encrypts(&self) -> bool {
        false
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[] }
    }

    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        false
    }

    fn identify(&self, _lower: &dyn Tree) -> Result<Verdict> {
        Ok(Verdict::No(vec!["an unencrypted folder has no marks".into(), "it opens only if named as one".into()]))
    }

    fn unlock(&self, _lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        match with.credentials.first() {
            Some(given) => Err(ErrorKind::CredentialKind { format: "clear", kind: given.kind() }.into()),
            None => Ok(Box::new(Nothing)),
        }
    }
}

/// The keys of a folder without encryption: none.
struct Nothing;

impl FileKeys for Nothing {
    fn layout(&self, _of: StoredFile<'_>) -> io::Result<FileKind> {
        Ok(FileKind::Clear)
    }

    fn begin(&self, _of: StoredFile<'_>) -> io::Result<FileKind> {
        Ok(FileKind::Clear)
    }

    fn set_size(&self, _of: StoredFile<'_>, _size: u64) -> io::Result<()> {
        Err(Error::misuse("an unencrypted file has no header").into())
    }

    fn plain_name(&self, stored: &OsStr, _iv: &NameIv) -> io::Result<Option<OsString>> {
        Ok(Some(stored.to_owned()))
    }

    fn stored_name(&self, plain: &OsStr, _iv: &NameIv) -> io::Result<OsString> {
        Ok(plain.to_owned())
    }
}
