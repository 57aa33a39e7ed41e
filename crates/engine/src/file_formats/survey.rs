//! What the files of a folder are, by what is kept of each.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{FileFacts, FileFormat, FileState, Stacked, Stored};
use crate::error::{Error, Result};
use crate::trees::{Entry, Held, Node, NodeKind, Tree};

/// Folders in folders that are looked into. A damaged file system may have no end.
const DEEPEST: usize = 256;

/// How many files a folder has, for whom they are encrypted, and what is wrong with some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Survey {
    /// Files.
    pub files: u64,
    /// Folders, without the outermost.
    pub folders: u64,
    /// Bytes of plaintext that the files should have.
    pub bytes: u64,
    /// Files that nothing encrypts.
    pub clear: u64,
    /// How many files each key opens, by signature or thumbprint.
    pub keys: BTreeMap<String, u64>,
    /// How many files each cipher encrypts, with the bits of its key: `AES-256`.
    pub ciphers: BTreeMap<String, u64>,
    /// Names that the key does not decrypt. Always none without a key.
    pub foreign_names: u64,
    /// What is wrong, file by file.
    pub problems: Vec<Problem>,
}

/// A file that cannot be read, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// Where it is in the folder, as people see it where the key is there, and as it is stored otherwise.
    pub path: PathBuf,
    /// What its metadata say, and what is wrong with it.
    #[serde(flatten)]
    pub facts: FileFacts,
    /// Whether another key than the one that was given may open it.
    pub other_key: bool,
}

impl Survey {
    /// Looks at each file of `lower`, a folder of this format; with `upper`, its plaintext, also whether the key opens it. Contents
    /// are not read. `each` is told of the progress after each file, and its error ends it.
    ///
    /// # Errors
    /// Those of the tree, and of `each`.
    pub fn of(
        format: &dyn FileFormat,
        lower: &(dyn Tree + 'static),
        upper: Option<&Stacked>,
        each: &mut dyn FnMut(&Self) -> Result<()>,
    ) -> Result<Self> {
        let mut walk = Walk { format, lower, upper, each, survey: Self::default() };
        walk.folder(lower.root(), Path::new("/"), &mut Vec::new())?;
        Ok(walk.survey)
    }
}

struct Walk<'a> {
    format: &'a dyn FileFormat,
    lower: &'a (dyn Tree + 'static),
    upper: Option<&'a Stacked>,
    each: &'a mut dyn FnMut(&Survey) -> Result<()>,
    survey: Survey,
}

impl Walk<'_> {
    /// `above` are the folders that it is in: one that holds itself is not looked into again.
    fn folder(&mut self, folder: Node, path: &Path, above: &mut Vec<Node>) -> Result<()> {
        if above.contains(&folder) || above.len() >= DEEPEST {
            return Ok(());
        }
        above.push(folder);
        let at = |e: std::io::Error| Error::from(e).at(path);
        let mut entries = self.lower.list(folder).map_err(at)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let path = path.join(self.shown(&entry)?);
            let found = Held::take(self.lower, folder, &entry).map_err(|e| Error::from(e).at(&path))?;
            match entry.kind {
                NodeKind::Folder => {
                    self.survey.folders += 1;
                    self.folder(found.node(), &path, above)?;
                }
                NodeKind::File => self.file(found.node(), path)?,
                NodeKind::Link | NodeKind::Special => {}
            }
        }
        above.pop();
        Ok(())
    }

    /// The name that people see of an entry.
    fn shown(&mut self, entry: &Entry) -> std::io::Result<std::ffi::OsString> {
        let plain = |upper: &Stacked, name: &OsStr| upper.plain_name(name);
        Ok(match self.upper.map(|upper| plain(upper, &entry.name)).transpose()? {
            Some(Some(name)) => name,
            Some(None) => {
                self.survey.foreign_names += 1;
                entry.name.clone()
            }
            None => entry.name.clone(),
        })
    }

    fn file(&mut self, file: Node, path: PathBuf) -> Result<()> {
        let of = Stored { tree: self.lower, file, contents: file };
        let mut facts = self.format.facts(of).map_err(|e| e.at(&path))?;
        let survey = &mut self.survey;
        survey.files += 1;
        survey.bytes = survey.bytes.saturating_add(facts.size.unwrap_or(0));
        survey.clear += u64::from(facts.state == FileState::Clear);
        for key in &facts.keys {
            *survey.keys.entry(key.clone()).or_default() += 1;
        }
        if let Some(cipher) = &facts.cipher {
            let bits = facts.key_bits.map(|bits| format!("-{bits}")).unwrap_or_default();
            *survey.ciphers.entry(format!("{cipher}{bits}")).or_default() += 1;
        }
        // What is wrong whatever the key counts first.
        let refused = match &facts.problem {
            None if facts.state == FileState::Encrypted => self.upper.and_then(|upper| upper.opens(file).err()),
            _ => None,
        };
        let other_key = refused.is_some();
        if let Some(error) = refused {
            facts.problem = Some(format!("{}.", Error::from(error).kind));
        }
        if facts.problem.is_some() {
            survey.problems.push(Problem { path, facts, other_key });
        }
        (self.each)(&self.survey)
    }
}
