//! Folders of other programs, which are recognised and not opened.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use super::{FileFacts, FileFormat, FileKeys, FileState, StoredFile, StoredFolder};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::parameters::Takes;
use crate::trees::Tree;
use crate::verdict::Verdict;

/// The most bytes that are read of a configuration.
const MOST: usize = 64 << 10;

/// CryFS. Its configuration begins with its own name (CryFS 0.11, src/cryfs/impl/config/crypto/outer/OuterConfig.cpp).
pub static CRYFS: Unopened = Unopened {
    name: "CryFS",
    config: "cryfs.config",
    is_config: |bytes| bytes.starts_with(b"cryfs.config;"),
    program: "cryfs opens it: `cryfs FOLDER MOUNTPOINT`",
};

/// securefs. Its configuration is JSON with its key (securefs 0.13, sources/commands.cpp).
pub static SECUREFS: Unopened = Unopened {
    name: "securefs",
    config: ".securefs.json",
    is_config: |bytes| bytes.windows(15).any(|window| window == b"\"encrypted_key\""),
    program: "securefs opens it: `securefs mount FOLDER MOUNTPOINT`",
};

/// A format that another program opens.
pub struct Unopened {
    name: &'static str,
    /// The file in the root folder that shows the format.
    config: &'static str,
    /// Whether these bytes are such a file.
    is_config: fn(&[u8]) -> bool,
    /// What opens it, as a hint.
    program: &'static str,
}

impl FileFormat for Unopened {
    fn name(&self) -> &'static str {
        self.name
    }

    fn opens(&self) -> bool {
        false
    }

    fn key_file(&self) -> Option<&'static str> {
        Some(self.config)
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[] }
    }

    /// Nobody needs to type one.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        false
    }

    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        let root = StoredFolder { tree: lower, folder: lower.root() };
        Ok(match root.read(self.config.as_ref(), MOST) {
            Ok(Some(bytes)) if (self.is_config)(&bytes) => Verdict::Yes(vec![format!("it has a {}", self.config)]),
            Ok(_) => Verdict::Possible(vec![format!("its {} cannot be read", self.config)]),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Verdict::No(vec![format!("no {} in it", self.config)]),
            Err(e) => return Err(e.into()),
        })
    }

    fn unlock(&self, _lower: &Arc<dyn Tree>, _with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        Err(Error::unsupported(format!("{} folders", self.name)).hint(self.program))
    }

    fn owns(&self, name: &OsStr, in_root: bool) -> bool {
        in_root && name == self.config
    }

    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        let stored = of.tree.attributes(of.contents)?.size;
        Ok(FileFacts { state: FileState::Unsupported, size: None, ..FileFacts::clear(stored) })
    }
}
