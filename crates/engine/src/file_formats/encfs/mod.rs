//! EncFS 1.x: each file is encrypted in blocks, some with a checksum, and names may depend on the path. For reading only.
//!
//! Facts are from EncFS 1.9.5 (github.com/vgough/encfs); the modules name the files. It is no longer developed, and its format has
//! known weaknesses, so no folder is created or changed.
//!
//! What the format cannot show: without checksums, any change of contents; with them, a file that was cut between two blocks, a block
//! that was replaced by an older one of the same file and place, and a hole where there was none. Checksums do not depend on the block's
//! place, but its IV does.

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

use self::config::{Config, MOST, OLDER};
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
        let root = StoredFolder { tree: lower, folder: lower.root() };
        Ok(match root.read(CONFIG.as_ref(), MOST) {
            Ok(Some(bytes)) if config::is_config(&bytes) => Verdict::Yes(vec![format!("it has a {CONFIG}")]),
            Ok(_) => Verdict::Possible(vec![format!("its {CONFIG} cannot be read")]),
            Err(e) if e.kind() == io::ErrorKind::NotFound => match older_config(lower)? {
                Some(name) => Verdict::Yes(vec![format!("it has a {name}")]),
                None => Verdict::No(vec![format!("no {CONFIG} in it")]),
            },
            Err(e) => return Err(e.into()),
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
        in_root && (name == CONFIG || older(name))
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
    let _ = config::is_config(bytes);
    let Ok(config) = Config::parse(bytes) else { return };
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

/// Whether it is the name of an older version's configuration.
fn older(name: &OsStr) -> bool {
    OLDER.iter().any(|older| name == *older)
}

/// The name of an older version's configuration, if the folder has one.
fn older_config(lower: &(dyn Tree + 'static)) -> io::Result<Option<&'static str>> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    for name in OLDER {
        match root.read(name.as_ref(), MOST) {
            Ok(Some(bytes)) if config::is_older(&bytes) => return Ok(Some(name)),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// The configuration of a folder.
fn read_config(lower: &(dyn Tree + 'static)) -> Result<Config> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    match root.read(CONFIG.as_ref(), MOST) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(no_config(older_config(lower)?)),
        read => match read? {
            Some(bytes) => Config::parse(&bytes),
            None => {
                let what = format!("it has more than {MOST} bytes, or is not a file: a symbolic link is not followed");
                Err(ErrorKind::Malformed { field: CONFIG, offset: 0, what }.into())
            }
        },
    }
}

fn no_config(older: Option<&str>) -> Error {
    match older {
        Some(name) => Error::unsupported(format!("EncFS folders of before 2008, with a {name}"))
            .hint("encfs 1.9 opens it: mount it, and copy the files."),
        None => {
            let what = format!("not an EncFS folder: no {CONFIG} in it");
            Error::new(ErrorKind::NotThisFormat(what)).hint(
                "EncFS may keep that file elsewhere (ENCFS6_CONFIG): copy it into the folder. Without it, nothing opens the folder.",
            )
        }
    }
}
