//! Searches a folder for the keys that its files and names need.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;

use super::header::{HeaderLocation, NoHeader};
use super::names::{self, NameKey};
use super::stored::{self, File};
use super::suite::Suite;
use super::token::{Salt, Signature};
use crate::error::Result;
use crate::file_formats::StoredFile;
use crate::trees::{HeldNode, NodeKind, Tree};

/// Limits of a survey: some folders have millions of files.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub names: usize,
    pub files: usize,
    /// Folders waiting to be searched.
    pub folders: usize,
}

/// The most different keys that are remembered.
const KEYS: usize = 64;

/// The result of a survey.
#[derive(Default)]
pub(super) struct Survey {
    /// Files with a header.
    pub headers: usize,
    /// The passphrase keys that files use.
    pub keys: Vec<FileKey>,
    /// The public keys that files use.
    pub public: Vec<Signature>,
    /// Keys of encrypted names, each with one name.
    pub names: Vec<(NameKey, OsString)>,
    /// Whether an encrypted file has a name in clear.
    pub clear_names: bool,
    /// The fault of the first file whose header cannot be parsed.
    pub damaged: Option<NoHeader>,
}

/// The key of a file.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct FileKey {
    pub signature: Signature,
    pub salt: Salt,
    pub suite: Suite,
    pub in_attribute: bool,
}

impl Survey {
    /// Searches a folder level by level. Calls `each` with every new file key, until `each` breaks off.
    pub fn of(
        tree: &(dyn Tree + 'static),
        limits: Limits,
        mut each: impl FnMut(&FileKey) -> Result<ControlFlow<()>>,
    ) -> Result<Self> {
        let mut survey = Self::default();
        let (mut names, mut files) = (0, 0);
        let mut folders = VecDeque::from([HeldNode::new(tree, tree.root())]);
        while let Some(folder) = folders.pop_front() {
            // Skip folders that may not be read.
            let Ok(entries) = tree.list(folder.node()) else { continue };
            let mut broken_off = false;
            for entry in entries {
                names += 1;
                if names > limits.names || files >= limits.files {
                    return Ok(survey);
                }
                let encrypted = survey.note_name(&entry.name);
                if broken_off || entry.kind == NodeKind::Special || entry.kind == NodeKind::Link {
                    continue;
                }
                let Ok(held) = HeldNode::take(tree, folder.node(), &entry) else { continue };
                if entry.kind == NodeKind::Folder {
                    if folders.len() < limits.folders {
                        folders.push_back(held);
                    }
                    continue;
                }
                files += 1;
                let of = StoredFile { tree, file: held.node(), contents: held.node() };
                // Skip files that may not be read.
                let Ok(found) = stored::look(of, |file| survey.note_file(file, encrypted)) else { continue };
                for key in found {
                    broken_off |= each(&key)?.is_break();
                }
            }
            if broken_off {
                return Ok(survey);
            }
        }
        Ok(survey)
    }

    /// Notes the key of a name. Returns whether the name is encrypted.
    fn note_name(&mut self, name: &OsStr) -> bool {
        let Some(key) = names::key_of(name) else { return false };
        if self.names.len() < KEYS && self.names.iter().all(|(known, _)| *known != key) {
            self.names.push((key, name.to_owned()));
        }
        true
    }

    /// Notes the keys of a file. Returns those that are new.
    fn note_file(&mut self, file: File<'_>, encrypted_name: bool) -> Vec<FileKey> {
        let (place, header) = match file {
            File::Encrypted(place, header, _) => (place, header),
            File::Bad(why) => {
                self.damaged.get_or_insert(why);
                return Vec::new();
            }
            File::Unfinished | File::Blank | File::Foreign => return Vec::new(),
        };
        self.headers += 1;
        self.clear_names |= !encrypted_name;
        let in_attribute = place == HeaderLocation::Attribute;
        let mut new = Vec::new();
        for key in &header.keys {
            let key = FileKey { signature: key.signature, salt: key.salt, suite: key.suite, in_attribute };
            if self.keys.len() < KEYS && !self.keys.contains(&key) {
                self.keys.push(key);
                new.push(key);
            }
        }
        let fresh = header.public.iter().filter(|signature| !self.public.contains(signature)).take(KEYS);
        let fresh: Vec<_> = fresh.copied().collect();
        if self.public.len() < KEYS {
            self.public.extend(fresh);
        }
        new
    }
}
