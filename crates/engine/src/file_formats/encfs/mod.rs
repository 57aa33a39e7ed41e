//! EncFS 1.x: each file is encrypted in blocks, some with a checksum, and names may depend on the path. For reading only.
//!
//! Facts are from EncFS 1.9.5 (github.com/vgough/encfs); the modules name the files. It is no longer developed, and its format has
//! known weaknesses, so no folder is created or changed.
//!
//! What the format cannot show: without checksums, any change of contents; with them, a file that was cut between two blocks, a block
//! that was replaced by an older one of the same file and place, and a hole where there was none. Checksums do not depend on the block's
//! place, but its IV does.

mod binary;
mod chained;
mod coder;
mod config;
mod contents;
mod keys;
mod names;
mod stored;

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use claviger_crypto::{Acceleration, Secret};
pub use config::CONFIG;

use self::config::{CONFIGS, Config, MOST};
use self::keys::Keys;
use super::{FileFacts, FileFormat, FileKeys, StoredFile, StoredFolder};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::parameters::Takes;
use crate::trees::Tree;
use crate::verdict::Verdict;

/// See the module.
pub static ENCFS: EncFs = EncFs;

/// See [`ENCFS`].
pub struct EncFs;

/// Bytes of a file's header: its IV (CipherFileIO.cpp).
const HEADER: usize = 8;

impl FileFormat for EncFs {
    fn name(&self) -> &'static str {
        "EncFS"
    }

    fn key_file(&self) -> Option<&'static str> {
        Some(CONFIG)
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[] }
    }

    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        Ok(match stored_config(lower)? {
            Some((file, Some(bytes))) if config::is_config(file, &bytes) => {
                Verdict::Yes(vec![format!("it has a {file}")])
            }
            Some((CONFIG, _)) => Verdict::Possible(vec![format!("its {CONFIG} cannot be read")]),
            _ => Verdict::No(vec![format!("no {CONFIG} in it")]),
        })
    }

    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        let config = read_config(&**lower)?;
        let passphrase = match with.credentials {
            [Credential::Passphrase(passphrase)] => passphrase,
            [] | [_, _, ..] => {
                let what = "EncFS opens with one passphrase";
                return Err(ErrorKind::WrongCredential(what.into()).into());
            }
            [other] => return Err(ErrorKind::CredentialKind { format: self.name(), kind: other.kind() }.into()),
        };
        let coder = config.coder(passphrase, with)?;
        with.has_opened();
        Ok(Box::new(Keys::new(config, coder)))
    }

    fn change_passphrase(&self, _lower: &(dyn Tree + 'static), _new: &Secret, _with: &Unlock<'_>) -> Result<()> {
        Err(Error::unsupported("changing the passphrase of EncFS folders").hint("encfsctl passwd changes it."))
    }

    fn owns(&self, name: &OsStr, in_root: bool) -> bool {
        is_own(name, in_root)
    }

    fn verifies(&self) -> bool {
        true
    }

    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        Ok(stored::facts(of)?)
    }
}

/// Parses a configuration, and with what it says, names and targets of links: [`crate::fuzzing`].
pub(crate) fn fuzz_config(bytes: &[u8]) {
    let parse = |file| Config::parse(file, bytes).ok().filter(|_| config::is_config(file, bytes));
    let Some(config) = CONFIGS.into_iter().find_map(parse) else { return };
    let key = Secret::zeroed(config.suite.len());
    let coder = coder::Coder::new(&config.suite, &key, Acceleration::On);
    let names = config.names();
    for name in bytes.split(|byte| *byte == b'\n') {
        let _ = (names.decode(&coder, name, names.root()), names.decode_target(&coder, name));
        let stored = names.encode(&coder, name, names.root());
        let plain = names.decode(&coder, &stored, names.root());
        assert!(name.is_empty() || plain.is_some_and(|(plain, _)| plain == name), "a name changes on the way");
    }
}

/// Whether this is a configuration of the folder, and no file in it.
fn is_own(name: &OsStr, in_root: bool) -> bool {
    in_root && CONFIGS.iter().any(|file| name == *file)
}

/// The name and the bytes of the folder's configuration; no bytes if it is too long, or no file.
type StoredConfig = (&'static str, Option<Vec<u8>>);

/// The first configuration that the folder has.
fn stored_config(lower: &(dyn Tree + 'static)) -> io::Result<Option<StoredConfig>> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    for file in CONFIGS {
        match root.read(file.as_ref(), MOST) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            read => return Ok(Some((file, read?))),
        }
    }
    Ok(None)
}

/// The configuration of a folder.
fn read_config(lower: &(dyn Tree + 'static)) -> Result<Config> {
    match stored_config(lower)? {
        Some((file, Some(bytes))) => Config::parse(file, &bytes),
        Some((file, None)) => {
            let what = format!("it has more than {MOST} bytes, or is not a file: a symbolic link is not followed");
            Err(ErrorKind::Malformed { field: file, offset: 0, what }.into())
        }
        None => {
            let what = format!("not an EncFS folder: no {CONFIG} in it");
            Err(Error::new(ErrorKind::NotThisFormat(what)).hint(
                "EncFS may keep that file elsewhere (ENCFS6_CONFIG): copy it into the folder. Without it, nothing opens the folder.",
            ))
        }
    }
}
