//! A look through a folder: which keys its files and names need.

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

/// How much is looked at, at most: there are folders with millions of files.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub names: usize,
    pub files: usize,
    /// Folders that wait to be looked at.
    pub folders: usize,
}

/// The most different keys that are remembered.
const KEYS: usize = 64;

/// What a look found.
#[derive(Default)]
pub(super) struct Survey {
    /// Files with a header.
    pub headers: usize,
    /// The keys of passphrases that files have.
    pub keys: Vec<FileKey>,
    /// The public keys that files have.
    pub public: Vec<Signature>,
    /// Keys of encrypted names, with a name each.
    pub names: Vec<(NameKey, OsString)>,
    /// Names that are not encrypted, of files that are.
    pub clear_names: bool,
    /// What is wrong with the first file whose header cannot be read.
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
    /// Looks through a folder, level by level, until `each` breaks it off, which is called with every new key of a file.
    pub fn of(
        tree: &(dyn Tree + 'static),
        limits: Limits,
        mut each: impl FnMut(&FileKey) -> Result<ControlFlow<()>>,
    ) -> Result<Self> {
        let mut survey = Self::default();
        let (mut names, mut files) = (0, 0);
        let mut folders = VecDeque::from([HeldNode::new(tree, tree.root())]);
        while let Some(folder) = folders.pop_front() {
            // One that is not ours to read says nothing.
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
                // A file that is not ours to read says nothing.
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

    /// Whether the name is encrypted.
    fn note_name(&mut self, name: &OsStr) -> bool {
        let Some(key) = names::key_of(name) else { return false };
        if self.names.len() < KEYS && self.names.iter().all(|(known, _)| *known != key) {
            self.names.push((key, name.to_owned()));
        }
        true
    }

    /// The keys that were not seen before.
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
