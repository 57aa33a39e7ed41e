//! A survey of the files in a folder, from their metadata.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::stacked::Shown as ShownName;
use super::{FileFacts, FileFormat, FileState, NotShown, Stacked, StoredFile};
use crate::error::{Error, ErrorKind, Result};
use crate::trees::{Entry, HeldNode, Listing, Node, NodeKind, Tree};

/// The deepest nesting of folders that is followed. A damaged file system may have loops.
const DEEPEST: usize = 256;

/// How many files a folder has, which keys open them, and which files have problems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FolderSurvey {
    /// Files.
    pub files: u64,
    /// Folders, without the root.
    pub folders: u64,
    /// The plaintext size that the metadata record, in bytes.
    pub bytes: u64,
    /// Files in clear.
    pub clear: u64,
    /// The number of files that each key opens, by signature or thumbprint.
    pub keys: BTreeMap<String, u64>,
    /// The number of files per cipher and key size: `AES-256`.
    pub ciphers: BTreeMap<String, u64>,
    /// Names that the key does not decrypt. Always 0 without a key.
    pub foreign_names: u64,
    /// The problems found.
    pub problems: Vec<Problem>,
}

/// A problem with a file, folder, link or name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// Its path in the folder: decrypted if the key is there, as stored otherwise.
    pub path: PathBuf,
    /// The facts in its metadata, with the problem.
    #[serde(flatten)]
    pub facts: FileFacts,
    /// Whether a different key may open it.
    pub other_key: bool,
    /// Whether only a survey with the key finds it.
    #[serde(skip)]
    pub needs_key: bool,
}

impl Problem {
    /// Whether anything is wrong. Leftovers of an interrupted change do no harm.
    pub fn is_damage(&self) -> bool {
        self.facts.state != FileState::LeftOver
    }
}

impl FolderSurvey {
    /// Examines the metadata of each file of `lower`, a folder of this format. With `upper`, its plaintext, also checks that the
    /// key opens files, names and links. Contents are not read. `each` gets the progress after each file, and its error ends the
    /// survey.
    ///
    /// # Errors
    /// Those of the tree, and of `each`.
    pub fn of(
        format: &dyn FileFormat,
        lower: &(dyn Tree + 'static),
        upper: Option<&Stacked>,
        each: &mut dyn FnMut(&Self) -> Result<()>,
    ) -> Result<Self> {
        Self::walked(Walk { format, lower, upper, each, reads_contents: false, survey: Self::default() })
    }

    /// Like [`FolderSurvey::of`], and reads all stored contents.
    ///
    /// # Errors
    /// Those of [`FolderSurvey::of`].
    pub fn with_contents(
        format: &dyn FileFormat,
        lower: &(dyn Tree + 'static),
        upper: &Stacked,
        each: &mut dyn FnMut(&Self) -> Result<()>,
    ) -> Result<Self> {
        let (upper, survey) = (Some(upper), Self::default());
        Self::walked(Walk { format, lower, upper, each, reads_contents: true, survey })
    }

    fn walked(mut walk: Walk<'_>) -> Result<Self> {
        // The stored files may be arranged in another way than they are shown.
        walk.lower = walk.upper.map_or(walk.lower, Stacked::lower);
        walk.folder(walk.lower.root(), Path::new("/"), &mut Vec::new())?;
        for NotShown { path, what, left_over, .. } in walk.upper.map_or_else(|| Ok(Vec::new()), Stacked::not_shown)? {
            let state = if left_over { FileState::LeftOver } else { FileState::Damaged };
            walk.found(&Path::new("/").join(path), what, state);
        }
        Ok(walk.survey)
    }
}

struct Walk<'a> {
    format: &'a dyn FileFormat,
    lower: &'a (dyn Tree + 'static),
    upper: Option<&'a Stacked>,
    each: &'a mut dyn FnMut(&FolderSurvey) -> Result<()>,
    /// Whether stored contents are read.
    reads_contents: bool,
    survey: FolderSurvey,
}

/// The name of an entry.
struct Shown {
    /// Decrypted; as stored if it does not decrypt.
    name: OsString,
    /// Whether the name is encrypted and decrypts.
    decrypted: bool,
}

impl Walk<'_> {
    /// `above` are its ancestors: a folder that contains itself is not entered again.
    fn folder(&mut self, folder: Node, path: &Path, above: &mut Vec<Node>) -> Result<()> {
        if above.contains(&folder) || above.len() >= DEEPEST {
            self.wrong(path, "The folder contains itself or is nested too deep; it was skipped.");
            return Ok(());
        }
        let Listing { mut entries, left_out } = match self.lower.list_all(folder) {
            Ok(listing) => listing,
            Err(e) => {
                self.wrong(path, format!("It cannot be listed: {}.", Error::from(e).kind));
                return Ok(());
            }
        };
        for name in left_out {
            self.wrong(&path.join(&name.name), format!("It cannot be shown: {}.", name.why.kind));
        }
        if let Some(Err(e)) = self.upper.map(|upper| upper.name_iv(folder)) {
            self.wrong(path, format!("Its names cannot be read: {}.", Error::from(e).kind));
        }
        above.push(folder);
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut names = HashSet::new();
        for entry in entries {
            let Some(shown) = self.shown(folder, &entry, path)? else { continue };
            let path = path.join(&shown.name);
            if !names.insert(shown.name.clone()) {
                self.wrong(&path, "Another name in this folder decrypts to the same name.");
            }
            match HeldNode::take(self.lower, folder, &entry) {
                Ok(found) => {
                    self.attributes(found.node(), &path);
                    self.entry(found.node(), entry.kind, path, &shown, above)?;
                }
                Err(e) => self.wrong(&path, format!("It cannot be opened: {}.", Error::from(e).kind)),
            }
        }
        above.pop();
        if let Some(upper) = self.upper {
            upper.forget_names(folder);
        }
        Ok(())
    }

    fn entry(&mut self, node: Node, kind: NodeKind, path: PathBuf, shown: &Shown, above: &mut Vec<Node>) -> Result<()> {
        match kind {
            NodeKind::Folder => {
                self.survey.folders += 1;
                self.folder(node, &path, above)
            }
            NodeKind::File => self.file(node, path, shown),
            NodeKind::Link => {
                if let Some(Err(e)) = self.upper.map(|upper| upper.link_target(node)) {
                    self.wrong(&path, format!("The link's target cannot be read: {}.", Error::from(e).kind));
                }
                Ok(())
            }
            NodeKind::Special => Ok(()),
        }
    }

    /// Reads all extended attributes, if that verifies them.
    fn attributes(&mut self, node: Node, path: &Path) {
        let Some(upper) = self.upper.filter(|_| self.reads_contents && self.format.verifies()) else { return };
        // File systems without attributes have nothing to verify.
        for name in upper.list_extended(node).unwrap_or_default() {
            if let Err(e) = upper.extended(node, &name) {
                let name = name.display().to_string();
                self.wrong(path, format!("Its attribute {name:?} cannot be read: {}.", Error::from(e).kind));
            }
        }
    }

    /// Records a problem with something that has no metadata.
    fn wrong(&mut self, path: &Path, what: impl Into<String>) {
        self.found(path, what.into(), FileState::Damaged);
    }

    fn found(&mut self, path: &Path, what: String, state: FileState) {
        let facts = FileFacts { state, size: None, problem: Some(what), ..FileFacts::clear(0) };
        let problem = Problem { path: path.to_owned(), facts, other_key: false, needs_key: self.upper.is_some() };
        self.survey.problems.push(problem);
    }

    /// The name to show for an entry of the folder at `path`; `None` for a file of the format itself.
    fn shown(&mut self, folder: Node, entry: &Entry, path: &Path) -> std::io::Result<Option<Shown>> {
        let own = self.format.owns(&entry.name, folder == self.lower.root());
        let as_stored = Shown { name: entry.name.clone(), decrypted: false };
        let Some(upper) = self.upper else { return Ok((!own).then_some(as_stored)) };
        match upper.shown(folder, &entry.name)? {
            ShownName::Name(name) => Ok(Some(Shown { decrypted: upper.encrypts_names(), name })),
            ShownName::Hidden => Ok(None),
            ShownName::Without(why) | ShownName::Unfit(why) => {
                self.survey.foreign_names += 1;
                self.wrong(&path.join(&entry.name), format!("Its name cannot be shown: {}.", why.kind));
                Ok((!own).then_some(as_stored))
            }
        }
    }

    fn file(&mut self, file: Node, path: PathBuf, shown: &Shown) -> Result<()> {
        let of = StoredFile { tree: self.lower, file, contents: file };
        let mut facts = match self.format.facts(of) {
            Ok(facts) => facts,
            Err(e) => {
                self.survey.files += 1;
                self.wrong(&path, format!("It cannot be read: {}.", e.kind));
                return (self.each)(&self.survey);
            }
        };
        let survey = &mut self.survey;
        survey.files += 1;
        let by_key = || Some(self.upper?.attributes(file).ok()?.size);
        survey.bytes = survey.bytes.saturating_add(facts.size.or_else(by_key).unwrap_or(0));
        survey.clear += u64::from(facts.state == FileState::Clear);
        for key in &facts.keys {
            *survey.keys.entry(key.clone()).or_default() += 1;
        }
        if let Some(cipher) = &facts.cipher {
            let bits = facts.key_bits.map(|bits| format!("-{bits}")).unwrap_or_default();
            *survey.ciphers.entry(format!("{cipher}{bits}")).or_default() += 1;
        }
        // Problems that do not depend on the key come first.
        if self.reads_contents && facts.problem.is_none() && facts.state == FileState::Encrypted {
            facts.problem = self.format.check_contents(of, &mut || (self.each)(survey)).map_err(|e| e.at(&path))?;
        }
        let needs_key = facts.problem.is_none();
        if let Some(upper) = self.upper.filter(|_| needs_key && self.reads_contents && self.format.verifies()) {
            facts.problem = verified(upper, file, &mut || (self.each)(survey)).map_err(|e| e.at(&path))?;
        }
        let other_key = match self.upper.filter(|_| facts.problem.is_none()) {
            Some(upper) => with_key(upper, file, shown, &mut facts),
            None => false,
        };
        if facts.problem.is_some() {
            survey.problems.push(Problem { path, facts, other_key, needs_key });
        }
        (self.each)(&self.survey)
    }
}

/// Reads all of a file, which verifies it. Returns what is wrong with the first part that cannot be read, in a whole sentence.
fn verified(upper: &Stacked, file: Node, each: &mut dyn FnMut() -> Result<()>) -> Result<Option<String>> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match upper.read_at(file, at, &mut buffer) {
            Ok(0) => return Ok(None),
            Ok(read) => at += read as u64,
            Err(e) => return Ok(Some(format!("Its contents cannot be read: {}.", Error::from(e).kind))),
        }
        each()?;
    }
}

/// Records problems that only the key reveals. Returns whether a different key may open the file.
fn with_key(upper: &Stacked, file: Node, shown: &Shown, facts: &mut FileFacts) -> bool {
    if facts.state == FileState::Clear && shown.decrypted {
        facts.state = FileState::Damaged;
        facts.problem =
            Some("Its name is encrypted, but its header is missing: the start was destroyed or overwritten.".into());
        return false;
    }
    let Err(error) = upper.opens(file) else { return false };
    let error = Error::from(error).kind;
    let other_key = matches!(error, ErrorKind::WrongCredential(_));
    facts.problem = Some(match facts.state {
        FileState::Clear => "It is not encrypted: it has no header.".to_owned(),
        _ => format!("{error}."),
    });
    other_key
}
