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
    configs: &[Config { file: "cryfs.config", is: |bytes| bytes.starts_with(b"cryfs.config;") }],
    program: "cryfs opens it: `cryfs FOLDER MOUNTPOINT`",
};

/// securefs, lite and full. Its configuration is JSON with its key (securefs 0.13, sources/commands.cpp), and since 2.0 a message of
/// Protocol Buffers (protos/params.proto, `EncryptedSecurefsParams`).
pub static SECUREFS: Unopened = Unopened {
    name: "securefs",
    configs: &[
        Config { file: ".securefs.json", is: |bytes| bytes.windows(15).any(|window| window == b"\"encrypted_key\"") },
        Config { file: ".config.pb", is: is_encrypted_params },
    ],
    program: "securefs opens it: `securefs mount FOLDER MOUNTPOINT`",
};

/// A format that another program opens.
pub struct Unopened {
    name: &'static str,
    /// The files in the root folder that show the format: a folder has one of them.
    configs: &'static [Config],
    /// What opens it, as a hint.
    program: &'static str,
}

/// A file that shows a format.
struct Config {
    file: &'static str,
    /// Whether these bytes are such a file.
    is: fn(&[u8]) -> bool,
}

/// Whether these bytes are a message with the fields 1 to 4, and perhaps 5, all of them of bytes.
fn is_encrypted_params(bytes: &[u8]) -> bool {
    const BYTES: u8 = 2;
    let (mut left, mut seen) = (bytes, [false; 6]);
    while let [tag, rest @ ..] = left {
        // A length of two bytes is enough for every field.
        let (len, rest) = match rest {
            [len, rest @ ..] if *len < 0x80 => (usize::from(*len), rest),
            [low, high, rest @ ..] if *high < 0x80 => (usize::from(low & 0x7f) | usize::from(*high) << 7, rest),
            _ => return false,
        };
        match (tag & 7, seen.get_mut(usize::from(tag >> 3)), rest.get(len..)) {
            (BYTES, Some(seen), Some(after)) => (*seen, left) = (true, after),
            _ => return false,
        }
    }
    matches!(seen, [false, true, true, true, true, _])
}

impl FileFormat for Unopened {
    fn name(&self) -> &'static str {
        self.name
    }

    fn opens(&self) -> bool {
        false
    }

    fn key_file(&self) -> Option<&'static str> {
        self.configs.first().map(|config| config.file)
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
        let mut unreadable = None;
        for Config { file, is } in self.configs {
            match root.read(file.as_ref(), MOST) {
                Ok(Some(bytes)) if is(&bytes) => return Ok(Verdict::Yes(vec![format!("it has a {file}")])),
                Ok(_) => unreadable = Some(format!("its {file} cannot be read")),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e.into()),
            }
        }
        let files: Vec<_> = self.configs.iter().map(|config| config.file).collect();
        let no = || Verdict::No(vec![format!("no {} in it", files.join(" or "))]);
        Ok(unreadable.map_or_else(no, |what| Verdict::Possible(vec![what])))
    }

    fn unlock(&self, _lower: &Arc<dyn Tree>, _with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        Err(Error::unsupported(format!("{} folders", self.name)).hint(self.program))
    }

    fn owns(&self, name: &OsStr, in_root: bool) -> bool {
        in_root && self.configs.iter().any(|config| name == config.file)
    }

    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        let stored = of.tree.attributes(of.contents)?.size;
        Ok(FileFacts { state: FileState::Unsupported, size: None, ..FileFacts::clear(stored) })
    }
}
