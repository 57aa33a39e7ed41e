//! Formats that encrypt file by file, and one table of them.
//!
//! A folder of such a format is a tree whose files hold ciphertext, and whose names may be encrypted. [`FileFormat::unlock`] turns
//! it and a credential into [`FileKeys`], which turn each file's header into a layout; a [`Stacked`] tree alone carries layouts
//! out.

mod clear;
pub mod ecryptfs;
pub mod efs;
mod salvage;
mod stacked;
mod survey;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use clear::CLEAR;
pub use ecryptfs::ECRYPTFS;
pub use efs::EFS;
pub use salvage::Salvage;
use serde::Serialize;
pub use stacked::Stacked;
pub use survey::{FolderSurvey, Problem};

use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Verdict;
use crate::formats::takes::{self, Takes};
use crate::key_process::folder::{FolderKeyProcess, FolderKeys, KeylessFolder};
use crate::trees::{Node, NodeKind, Subtree, Tree, damaged};
use crate::volume::{Layout, Segment};

/// Every format there is.
pub static FILE_FORMATS: &[&dyn FileFormat] = &[&CLEAR, &ECRYPTFS, &EFS];

/// A format that encrypts file by file.
pub trait FileFormat: Sync {
    /// Its name: `eCryptfs`.
    fn name(&self) -> &'static str;

    /// Whether it encrypts at all. A folder of one that does not shows nothing.
    fn encrypts(&self) -> bool {
        true
    }

    /// What a folder opens with, besides a passphrase.
    fn takes(&self) -> Takes;

    /// Whether a passphrase is asked for where these keyfiles are given.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// What a look at the folder tells. Reads little and needs no credential. `Possible` is for what may hold such files here and
    /// there: it is taken as this format only where somebody says so.
    ///
    /// # Errors
    /// `Io`.
    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict>;

    /// The same without a look into the folders in it.
    ///
    /// # Errors
    /// `Io`.
    fn glance(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        self.identify(lower)
    }

    /// What turns the files and names below into plaintext.
    ///
    /// # Errors
    /// `WrongCredential`, `CredentialKind`, `Malformed`, `Unsupported`, `Cancelled`, `Io`.
    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>>;

    /// Refuses a format whose keys no other process can hold.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_key_process(&self) -> Result<()> {
        Err(no_key_process())
    }

    /// The same as [`FileFormat::unlock`] has given to another process, which has the keys and says what is left without them:
    /// [`FileKeys::split_keys`].
    ///
    /// # Errors
    /// `Unsupported`; `Io` for an outline of something else.
    fn with_key_process(
        &self,
        _outline: KeylessFolder,
        _key_process: Arc<dyn FolderKeyProcess>,
    ) -> Result<Box<dyn FileKeys>> {
        Err(no_key_process())
    }

    /// What lies beside a folder of this format, `name`, and belongs to it. `parent` is the folder that it is in.
    ///
    /// # Errors
    /// Those of the tree.
    fn beside(&self, _parent: &(dyn Tree + 'static), _name: &OsStr) -> io::Result<Beside> {
        Ok(Beside::default())
    }

    /// Whether any of these unwraps the passphrase in a file that lies beside a folder, whosever that is.
    fn unwraps(&self, _file: &[u8], _credentials: &[Credential]) -> bool {
        false
    }

    /// Reads all that is stored of a file's contents. What is wrong with it, as a whole sentence: what cannot be read, or cannot have been
    /// encrypted. `each` is called after each piece, and its error ends it.
    ///
    /// # Errors
    /// Those of `each`.
    fn check_contents(&self, _of: StoredFile<'_>, _each: &mut dyn FnMut() -> Result<()>) -> Result<Option<String>> {
        Ok(None)
    }

    /// What is known of one file without any credential.
    ///
    /// # Errors
    /// `Io`. What is wrong with the file is no error, but one of the facts.
    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        Ok(FileFacts::clear(of.tree.attributes(of.contents)?.size))
    }
}

/// What lies beside a folder and belongs to it: `.ecryptfs` beside eCryptfs's `.Private`. None of it is there where nobody made it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Beside {
    /// The folder in which it is.
    pub folder: Option<PathBuf>,
    /// The contents of a file in which the folder's passphrase is wrapped.
    #[serde(skip)]
    pub wrapped_passphrase: Option<Vec<u8>>,
    /// The keys of the folder, by their signatures in hex: that of contents first, then that of names.
    pub signatures: Vec<String>,
    /// Where the folder is to be mounted.
    pub mount_point: Option<PathBuf>,
    /// Whether it is mounted whenever its owner logs in.
    pub auto_mount: bool,
    /// Files that should be there and are not, or cannot be read.
    pub missing: Vec<String>,
}

/// What the metadata of a file say, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    /// What it is.
    pub state: FileState,
    /// Its cipher, as people call it: `AES`.
    pub cipher: Option<String>,
    /// Size of the key, in bits.
    pub key_bits: Option<u32>,
    /// For whom it is encrypted: signatures or thumbprints, in hex. Whoever has one of these keys can read it.
    pub keys: Vec<String>,
    /// Where the metadata are, as the end of "its metadata are in …".
    pub metadata: Option<String>,
    /// Version of the metadata's format.
    pub version: Option<u32>,
    /// Bytes of plaintext that it should have.
    pub size: Option<u64>,
    /// Bytes that are stored of it.
    pub stored: u64,
    /// What is wrong with it, whatever the key. A whole sentence.
    pub problem: Option<String>,
}

/// What a file of an encrypted folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FileState {
    /// Not encrypted.
    Clear,
    /// Encrypted, and whole as far as that can be told without its key.
    Encrypted,
    /// Empty, since its making was cut short.
    Unfinished,
    /// Encrypted, and less is stored than its metadata count.
    CutShort,
    /// Encrypted, and more is stored than its metadata count.
    TooLong,
    /// Encrypted in a way that is not supported.
    Unsupported,
    /// Its metadata contradict themselves.
    Damaged,
}

impl FileFacts {
    /// Those of a file in clear of so many bytes.
    pub fn clear(size: u64) -> Self {
        let (cipher, key_bits, keys, metadata, version, problem) = (None, None, Vec::new(), None, None, None);
        let state = FileState::Clear;
        Self { state, cipher, key_bits, keys, metadata, version, size: Some(size), stored: size, problem }
    }
}

/// Where a file is kept.
#[derive(Clone, Copy)]
pub struct StoredFile<'a> {
    /// The tree below.
    pub tree: &'a dyn Tree,
    /// The file: what is kept beside its contents, in extended attributes or streams, is kept with it.
    pub file: Node,
    /// What holds the ciphertext: the file itself, or a stream of it.
    pub contents: Node,
}

/// What a file turns out to be.
#[derive(Debug)]
pub enum FileKind {
    /// In clear: it is shown as it is.
    Clear,
    /// Encrypted.
    Encrypted(FileLayout),
    /// One whose making was cut short before its header was whole. Nothing has been written to it; it is shown as empty, and
    /// begun anew by the first write.
    Unfinished,
}

/// Where the plaintext of a file is. Plain data, made from a header that was checked.
#[derive(Debug)]
pub struct FileLayout {
    /// For all that the file may ever hold, not just for what it holds now: it does not change when the file grows.
    layout: Layout,
    size: u64,
}

impl FileLayout {
    /// A file of `size` bytes, of which `layout` says where they are, and where more would be.
    ///
    /// # Errors
    /// `Malformed`, as an error of a tree, if the layout is shorter.
    pub fn new(layout: Layout, size: u64) -> io::Result<Self> {
        match layout.len() {
            len if size <= len => Ok(Self { layout, size }),
            len => Err(damaged("size", 0, format!("{size} bytes, more than a file can have ({len})"))),
        }
    }

    /// Bytes of plaintext.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where the ciphertext of `size` bytes ends in what holds it.
    pub(crate) fn stored_end(layout: &Layout, size: u64) -> u64 {
        let end = |s: &Segment| s.stored_at + (size - s.at).next_multiple_of(s.payload.sector_size()).min(s.len);
        layout.segments().iter().rev().find(|s| s.at < size || s.at == 0).map_or(0, end)
    }

    pub(crate) fn into_layout(self) -> Layout {
        self.layout
    }
}

/// The keys of an unlocked folder. All methods may be called from several threads.
pub trait FileKeys: Send + Sync {
    /// What a file is, from its header.
    ///
    /// # Errors
    /// Those of the tree below; [`damaged`] for a header with a value that it cannot have; `Unsupported`.
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind>;

    /// Bytes of plaintext, where the file is encrypted and that can be told with less than all of its layout.
    ///
    /// # Errors
    /// Those of [`FileKeys::layout`].
    fn size(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        Ok(match self.layout(of)? {
            FileKind::Clear => None,
            FileKind::Encrypted(layout) => Some(layout.size()),
            FileKind::Unfinished => Some(0),
        })
    }

    /// Writes the header of a new file, which is empty.
    ///
    /// # Errors
    /// Those of the tree below.
    fn begin(&self, of: StoredFile<'_>) -> io::Result<FileKind>;

    /// Notes in the header how many bytes of plaintext there are. Called when the bytes are there, or before they go.
    ///
    /// # Errors
    /// Those of the tree below. The header is as it was then.
    fn set_size(&self, of: StoredFile<'_>, size: u64) -> io::Result<()>;

    /// The name that people see. None for what is not a name of this format, or of another key: it is left out.
    ///
    /// # Errors
    /// If another process has the keys, and has gone.
    fn plain_name(&self, stored: &OsStr) -> io::Result<Option<OsString>>;

    /// Why [`FileKeys::plain_name`] has no name to show for `stored`.
    fn why_no_name(&self, _stored: &OsStr) -> Error {
        no_name("it does not decrypt with this key")
    }

    /// Whether names are encrypted, too.
    fn encrypts_names(&self) -> bool {
        false
    }

    /// The name as it is stored.
    ///
    /// # Errors
    /// `InvalidFilename` (`ENAMETOOLONG`) if it would be too long.
    fn stored_name(&self, plain: &OsStr) -> io::Result<OsString>;

    /// The longest name that people can give, where the tree below has names of up to `stored` bytes.
    fn longest_name(&self, stored: u32) -> u32 {
        stored
    }

    /// Where a symbolic link points to.
    ///
    /// # Errors
    /// `InvalidData` if it does not decrypt.
    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        Ok(stored)
    }

    /// The target of a symbolic link as it is stored.
    ///
    /// # Errors
    /// `InvalidFilename` if it would be too long.
    fn stored_target(&self, plain: &OsStr) -> io::Result<OsString> {
        Ok(plain.to_owned())
    }

    /// Whether the extended attribute of that name is the format's own. Nobody sees or changes it.
    fn hides(&self, _attribute: &OsStr) -> bool {
        false
    }

    /// Whether nothing may be written with these keys.
    fn read_only(&self) -> bool {
        false
    }

    /// The keys, by their signatures in hex: those of contents first, then that of names. None where the format has no such thing.
    fn signatures(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether something that was read has shown that they are right.
    fn proven(&self) -> bool {
        true
    }

    /// What people must know. Whole sentences.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The keys, for the process that is to hold them, and what is left without them: see [`FileFormat::with_key_process`].
    ///
    /// # Errors
    /// `Unsupported`.
    fn split_keys(&self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        Err(no_key_process())
    }
}

/// A stored name that is no name of a file here.
fn no_name(what: &str) -> Error {
    ErrorKind::Malformed { field: "name", offset: 0, what: what.into() }.into()
}

fn no_key_process() -> Error {
    Error::unsupported("a key process for files of this format")
}

/// The plaintext of what is in the folder `lower`: of the format `name`, or of the one that the folder shows to be of.
///
/// # Errors
/// `NotThisFormat`, `Misuse` if there is no format of that name, and those of [`FileFormat::unlock`].
pub fn open(lower: Arc<dyn Tree>, name: Option<&str>, with: &Unlock<'_>) -> Result<Stacked> {
    unlock(find(&*lower, name)?, lower, with)
}

/// The format of the folder `lower`: the one called `name`, or the one that the folder shows to be of.
///
/// # Errors
/// `NotThisFormat`, `Misuse` if there is no format of that name.
pub fn find(lower: &(dyn Tree + 'static), name: Option<&str>) -> Result<&'static dyn FileFormat> {
    name.map_or_else(|| identified(lower), named)
}

/// A folder in a tree, and its format.
pub struct Located {
    /// The folder, as a tree.
    pub folder: Subtree,
    /// Where it is in the tree.
    pub path: OsString,
    /// Its format.
    pub format: &'static dyn FileFormat,
}

/// The folder of encrypted files into which `path` leads: the outermost one on the way that shows to be of the format called
/// `name`, or of any. Of a format that is named and shows nowhere, the last folder on the way.
///
/// # Errors
/// `NotThisFormat` where nothing on the way shows a format, `Misuse` if there is no format of that name; those of the tree.
pub fn locate(tree: &Arc<dyn Tree>, path: &OsStr, name: Option<&str>) -> Result<Located> {
    let named = name.map(named).transpose()?;
    let formats = named.as_ref().map_or(FILE_FORMATS, std::slice::from_ref);
    let mut last = None;
    for path in ways(path) {
        let folder = match Subtree::find(tree, path) {
            Ok(folder) if folder.attributes(folder.root())?.kind == NodeKind::Folder => folder,
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(e.into());
            }
            // A file, or what is to be made.
            Ok(_) | Err(_) => break,
        };
        if let Some(format) = shown(formats, named.is_some(), |format| format.glance(&folder))? {
            return Ok(Located { folder, path: path.to_owned(), format });
        }
        last = Some((folder, path));
    }
    let Some((folder, path)) = last else { return Err(nothing_shows()) };
    // Only what is in its folders may show it.
    let format = shown(formats, named.is_some(), |format| format.identify(&folder))?.or(named);
    let format = format.ok_or_else(nothing_shows)?;
    Ok(Located { folder, path: path.to_owned(), format })
}

/// The first format that says so; where it is named, `Possible` will do.
fn shown(
    formats: &[&'static dyn FileFormat],
    named: bool,
    look: impl Fn(&'static dyn FileFormat) -> Result<Verdict>,
) -> Result<Option<&'static dyn FileFormat>> {
    for format in formats {
        match look(*format)? {
            Verdict::Yes(_) => return Ok(Some(*format)),
            Verdict::Possible(_) if named => return Ok(Some(*format)),
            Verdict::Possible(_) | Verdict::No(_) => {}
        }
    }
    Ok(None)
}

/// The folders on the way to `path`, from the root on, and itself.
fn ways(path: &OsStr) -> impl Iterator<Item = &OsStr> {
    let mut all: Vec<_> = Path::new(path).ancestors().map(Path::as_os_str).collect();
    all.reverse();
    // A relative path begins at the root, too: with no step.
    all.into_iter()
}

/// The plaintext of what is in the folder `lower`, which is of this format.
///
/// # Errors
/// `Misuse` for what the format does not take, and those of [`FileFormat::unlock`].
pub fn unlock(format: &dyn FileFormat, lower: Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Stacked> {
    takes::check_opening(format.name(), &format.takes(), with)?;
    let keys = format.unlock(&lower, with).map_err(|e| e.in_format(format.name()))?;
    Ok(Stacked::new(lower, keys))
}

/// The format of that name, however its letters are written.
///
/// # Errors
/// `Misuse` if there is none.
pub fn named(name: &str) -> Result<&'static dyn FileFormat> {
    let of_name = FILE_FORMATS.iter().find(|format| format.name().eq_ignore_ascii_case(name));
    of_name.copied().ok_or_else(|| {
        let names: Vec<_> = FILE_FORMATS.iter().map(|format| format.name()).collect();
        Error::misuse(format!("no encrypted folder format is called {name}"))
            .hint(format!("Known: {}.", names.join(", ")))
    })
}

fn identified(lower: &(dyn Tree + 'static)) -> Result<&'static dyn FileFormat> {
    for format in FILE_FORMATS {
        if let Verdict::Yes(_) = format.identify(lower)? {
            return Ok(*format);
        }
    }
    Err(nothing_shows())
}

fn nothing_shows() -> Error {
    let what = "this is not an encrypted folder".to_owned();
    Error::new(ErrorKind::NotThisFormat(what))
        .hint("To open a volume stored in this folder, give its file.")
        .advise(Advice::NameFormat)
}
