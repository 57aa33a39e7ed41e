//! Formats that encrypt file by file, in one table.
//!
//! A folder of such a format is a tree of files with ciphertext, and perhaps encrypted names. [`FileFormat::unlock`] turns the tree
//! and a credential into [`FileKeys`], which turn each file's header into a layout. Only a [`Stacked`] tree executes layouts.

mod clear;
pub mod cryptomator;
pub mod ecryptfs;
pub mod efs;
pub mod encfs;
mod fscrypt;
pub mod gocryptfs;
mod new_files;
mod salvage;
mod scrypt;
mod stacked;
mod survey;
mod unopened;

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_crypto::Secret;
pub use clear::CLEAR;
pub use cryptomator::CRYPTOMATOR;
pub use ecryptfs::ECRYPTFS;
pub use efs::EFS;
pub use encfs::ENCFS;
pub use fscrypt::FSCRYPT;
pub use gocryptfs::GOCRYPTFS;
pub use salvage::Salvage;
use serde::{Serialize, Serializer};
pub use stacked::Stacked;
pub use survey::{FolderSurvey, Problem};
pub use unopened::{CRYFS, SECUREFS, Unopened};

use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::fido2::Fido2Token;
use crate::key_process::folder::{FolderKeyProcess, FolderKeys, KeylessFolder};
use crate::parameters::{Purpose, Takes};
use crate::password_strength::GuessWork;
use crate::trees::{HeldNode, Node, NodeKind, Subtree, Tree, damaged};
use crate::verdict::Verdict;
use crate::volume::{Layout, SealedLayout, Segment};

/// All supported formats.
pub static FILE_FORMATS: &[&dyn FileFormat] =
    &[&CLEAR, &CRYFS, &CRYPTOMATOR, &ECRYPTFS, &EFS, &ENCFS, &FSCRYPT, &GOCRYPTFS, &SECUREFS];

/// A format that encrypts file by file.
pub trait FileFormat: Sync {
    /// The format's name: `eCryptfs`.
    fn name(&self) -> &'static str;

    /// Whether it encrypts at all. A folder of a format without encryption cannot be recognised.
    fn encrypts(&self) -> bool {
        true
    }

    /// Whether its folders can be opened. Others are only recognised, and another program opens them.
    fn opens(&self) -> bool {
        true
    }

    /// The file in a folder's root that holds its sealed key: without it, nothing in the folder opens. `None` if the format has no such
    /// file; any empty folder is then one of the format.
    fn key_file(&self) -> Option<&'static str> {
        None
    }

    /// The file in a plain folder that holds the sealed key for showing it [encrypted](crate::credential::FolderOptions::reverse). `None`
    /// if the format has no such view.
    fn reverse_key_file(&self) -> Option<&'static str> {
        None
    }

    /// Copies of the key file in a folder's root, which other programs made. They open the folder with the passphrase of their time.
    ///
    /// # Errors
    /// Those of the tree.
    fn key_file_copies(&self, _lower: &(dyn Tree + 'static)) -> Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    /// The ciphers of new folders, the default first. Empty if the format makes none.
    fn ciphers(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Makes the empty folder `lower` one of the format. `with` says how to encrypt its files.
    ///
    /// # Errors
    /// `Unsupported` if the format makes none; `Misuse` for options that exclude each other; `TooLittleMemory`, `Cancelled`; those of
    /// the tree.
    fn create(&self, _lower: &(dyn Tree + 'static), _passphrase: &Secret, _with: &Unlock<'_>) -> Result<()> {
        Err(Error::unsupported(format!("creating {} folders", self.name())))
    }

    /// Seals the key in the [key file](FileFormat::key_file) with another passphrase; `with` opens the folder now. The new file is
    /// checked before it replaces the old one.
    ///
    /// # Errors
    /// `Unsupported` without a key file; those of [`FileFormat::unlock`] and of the tree.
    fn change_passphrase(&self, _lower: &(dyn Tree + 'static), _new: &Secret, _with: &Unlock<'_>) -> Result<()> {
        Err(Error::unsupported(format!("changing the passphrase of {} folders", self.name())))
    }

    /// The credentials that open a folder, besides a passphrase.
    fn takes(&self) -> Takes;

    /// The FIDO2 key's credential whose secret opens this folder in place of a passphrase.
    ///
    /// # Errors
    /// Those of [`FileFormat::unlock`] for the folder's key file.
    fn fido2(&self, _lower: &(dyn Tree + 'static), _with: &Unlock<'_>) -> Result<Option<Fido2Token>> {
        Ok(None)
    }

    /// Whether these keyfiles need a passphrase as well.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// Refuses a passphrase that no folder can have.
    ///
    /// # Errors
    /// `WrongCredential`.
    fn check_new_passphrase(&self, _passphrase: &Secret) -> Result<()> {
        Ok(())
    }

    /// The work of one guess of a folder's passphrase; `None` if the format has none.
    fn guess_work(&self) -> Option<GuessWork> {
        None
    }

    /// Looks for the format in a folder. Reads little and needs no credential. `Possible` means that the folder may hold such files
    /// in places: it is opened as this format only if the user says so.
    ///
    /// # Errors
    /// `Io`.
    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict>;

    /// Like [`FileFormat::identify`], without searching subfolders.
    ///
    /// # Errors
    /// `Io`.
    fn glance(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        self.identify(lower)
    }

    /// Unlocks the folder: the keys that decrypt its files and names.
    ///
    /// # Errors
    /// `WrongCredential`, `CredentialKind`, `Malformed`, `Unsupported`, `Cancelled`, `Io`.
    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>>;

    /// Fails for a format whose keys the key process cannot hold.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_key_process(&self) -> Result<()> {
        Err(no_key_process())
    }

    /// Opens the folder `lower`, which [`FileFormat::unlock`] opened in another process. That process holds the keys, and `outline`
    /// describes the rest: [`FileKeys::split_keys`].
    ///
    /// # Errors
    /// `Unsupported`; `Io` for an outline of a different format.
    fn with_key_process(
        &self,
        _lower: &Arc<dyn Tree>,
        _outline: KeylessFolder,
        _key_process: Arc<dyn FolderKeyProcess>,
    ) -> Result<Box<dyn FileKeys>> {
        Err(no_key_process())
    }

    /// The files beside the folder `name` that belong to it. `parent` is its parent folder.
    ///
    /// # Errors
    /// Those of the tree.
    fn beside(&self, _parent: &(dyn Tree + 'static), _name: &OsStr) -> io::Result<Beside> {
        Ok(Beside::default())
    }

    /// Whether one of the credentials unwraps the passphrase in a file beside a folder.
    fn unwraps(&self, _file: &[u8], _credentials: &[Credential]) -> bool {
        false
    }

    /// Reads all stored contents of a file, and reports in a whole sentence what cannot be read or cannot be ciphertext. `each` is
    /// called after each piece, and its error ends the check.
    ///
    /// # Errors
    /// Those of `each`.
    fn check_contents(&self, _of: StoredFile<'_>, _each: &mut dyn FnMut() -> Result<()>) -> Result<Option<String>> {
        Ok(None)
    }

    /// Whether a file of this name in the root, or in any other folder, is one of the format itself.
    fn owns(&self, _name: &OsStr, _in_root: bool) -> bool {
        false
    }

    /// Whether reading a file with the key verifies it.
    fn verifies(&self) -> bool {
        false
    }

    /// The facts about one file that need no credential.
    ///
    /// # Errors
    /// `Io`. A damaged file is not an error: the facts say what is wrong.
    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        Ok(FileFacts::clear(of.tree.attributes(of.contents)?.size))
    }
}

/// The files beside a folder that belong to it: `.ecryptfs` beside eCryptfs's `.Private`. Fields are empty if nothing is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Beside {
    /// The folder with these files.
    #[serde(serialize_with = "as_shown")]
    pub folder: Option<PathBuf>,
    /// The contents of the file with the wrapped passphrase.
    #[serde(skip)]
    pub wrapped_passphrase: Option<Vec<u8>>,
    /// The signatures of the folder's keys in hex: for contents first, then for names.
    pub signatures: Vec<String>,
    /// The mount point of the folder.
    #[serde(serialize_with = "as_shown")]
    pub mount_point: Option<PathBuf>,
    /// Whether the folder is mounted whenever its owner logs in.
    pub auto_mount: bool,
    /// Files that are missing or cannot be read.
    pub missing: Vec<String>,
}

/// Serialises a path as it is shown: as a path, one that is not UTF-8 would be an error.
fn as_shown<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(serializer)
}

impl Beside {
    /// Whether they say that the folder is encrypted, even if it is empty.
    pub fn proves(&self) -> bool {
        self.wrapped_passphrase.is_some() || !self.signatures.is_empty()
    }
}

/// The facts in a file's metadata, and the problem with the file, if any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    /// The state of the file.
    pub state: FileState,
    /// The name of its cipher: `AES`.
    pub cipher: Option<String>,
    /// Size of the key, in bits.
    pub key_bits: Option<u32>,
    /// The keys that can open it: signatures or thumbprints, in hex.
    pub keys: Vec<String>,
    /// Where the metadata are, as the end of "its metadata are in …".
    pub metadata: Option<String>,
    /// Version of the metadata's format.
    pub version: Option<u32>,
    /// The plaintext size that the metadata record, in bytes.
    pub size: Option<u64>,
    /// The stored size, in bytes.
    pub stored: u64,
    /// The problem with the file, regardless of the key, in a whole sentence.
    pub problem: Option<String>,
}

/// The state of a file in an encrypted folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FileState {
    /// Not encrypted.
    Clear,
    /// Encrypted, and complete according to the metadata.
    Encrypted,
    /// Empty: its creation was interrupted.
    Unfinished,
    /// Encrypted, and shorter than its metadata say.
    CutShort,
    /// Encrypted, and longer than its metadata say.
    TooLong,
    /// Encrypted in an unsupported way.
    Unsupported,
    /// Its metadata are contradictory.
    Damaged,
    /// No file: an interrupted change left it, and nobody needs it.
    LeftOver,
}

impl FileFacts {
    /// The facts of a file in clear with `size` bytes.
    pub fn clear(size: u64) -> Self {
        let (cipher, key_bits, keys, metadata, version, problem) = (None, None, Vec::new(), None, None, None);
        let state = FileState::Clear;
        Self { state, cipher, key_bits, keys, metadata, version, size: Some(size), stored: size, problem }
    }
}

/// Where a file is stored.
#[derive(Clone, Copy)]
pub struct StoredFile<'a> {
    /// The tree below.
    pub tree: &'a (dyn Tree + 'static),
    /// The file: its extended attributes and streams hold what is stored beside its contents.
    pub file: Node,
    /// The node with the ciphertext: the file itself, or a stream of it.
    pub contents: Node,
}

/// A folder of the tree below.
#[derive(Clone, Copy)]
pub struct StoredFolder<'a> {
    /// The tree below.
    pub tree: &'a (dyn Tree + 'static),
    /// The folder.
    pub folder: Node,
}

impl StoredFolder<'_> {
    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.folder == self.tree.root()
    }

    /// The contents of one of its files; `None` if it is not a file, or has more than `most` bytes.
    ///
    /// # Errors
    /// Those of [`Tree::lookup`] and of [`Tree::read_at`].
    pub fn read(&self, name: &OsStr, most: usize) -> io::Result<Option<Vec<u8>>> {
        let file = HeldNode::lookup(self.tree, self.folder, name)?;
        if self.tree.attributes(file.node())?.kind != NodeKind::File {
            return Ok(None);
        }
        let mut bytes = vec![0; most + 1];
        let len = self.tree.read_at(file.node(), 0, &mut bytes)?;
        bytes.truncate(len);
        Ok((len <= most).then_some(bytes))
    }
}

/// What the names in a folder depend on besides the key: gocryptfs's directory IV, the ID of a folder of Cryptomator. By default
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameIv {
    /// Zero after its end.
    bytes: [u8; Self::LONGEST],
    len: u8,
}

impl NameIv {
    /// The longest one: a UUID as text.
    const LONGEST: usize = 36;

    /// `None` for more than 36 bytes.
    pub fn new(iv: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::LONGEST];
        bytes.get_mut(..iv.len())?.copy_from_slice(iv);
        Some(Self { bytes, len: iv.len() as u8 })
    }
}

impl Default for NameIv {
    fn default() -> Self {
        Self { bytes: [0; Self::LONGEST], len: 0 }
    }
}

impl<const LEN: usize> From<[u8; LEN]> for NameIv {
    fn from(iv: [u8; LEN]) -> Self {
        const { assert!(LEN <= Self::LONGEST) };
        let mut bytes = [0; Self::LONGEST];
        bytes[..LEN].copy_from_slice(&iv);
        Self { bytes, len: LEN as u8 }
    }
}

impl Deref for NameIv {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// The file that some formats keep in each folder, for its names.
#[derive(Clone, Copy, Debug)]
pub struct FolderFile {
    /// Its name.
    pub name: &'static str,
    /// Its size in bytes. All of them are random.
    pub len: usize,
    /// How the names of folders begin that are not finished yet, or that are being removed. No name of the format does.
    pub unfinished: &'static str,
}

/// Something stored that a tree does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotShown {
    /// Its path in the folder.
    pub path: PathBuf,
    /// What is wrong with it, in a whole sentence.
    pub what: String,
    /// Whether it holds contents, which a copy lacks.
    pub lost: bool,
    /// Whether an interrupted change left it, and nobody needs it.
    pub left_over: bool,
}

/// What a name in the tree below stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameRole {
    /// A node that is shown under its decrypted name.
    Name,
    /// A file of the format itself, which is not shown.
    Own,
    /// A node whose whole stored name would be too long. The file of this name beside it holds the whole one.
    Shortened {
        /// The name of that file.
        whole_in: OsString,
    },
    /// The file that holds the whole stored name of another node.
    WholeNameOf(OsString),
}

/// The kind of a file, from its header.
#[derive(Debug)]
pub enum FileKind {
    /// In clear; shown unchanged.
    Clear,
    /// Encrypted.
    Encrypted(FileLayout),
    /// Encrypted in blocks with a tag each. The stored size gives the size.
    Sealed(SealedLayout),
    /// Its creation was interrupted before its header was complete. Nothing has been written to it. It is shown as empty, and the
    /// first write begins it again, unless an empty file [needs a header](FileKeys::empty_needs_header).
    Unfinished,
}

/// Where the plaintext of a file is. Plain data, derived from a checked header.
#[derive(Debug)]
pub struct FileLayout {
    /// Covers the largest size that the file can have, so it does not change when the file grows.
    layout: Layout,
    size: u64,
}

impl FileLayout {
    /// A file of `size` bytes. `layout` says where they are stored, and where later bytes would be.
    ///
    /// # Errors
    /// `Malformed`, as a tree's error, if the layout is shorter than `size`.
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

    /// The stored size of `size` bytes of plaintext.
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
    /// The kind of a file, from its header.
    ///
    /// # Errors
    /// Those of the tree below; [`damaged`] for a header with an invalid value; `Unsupported`.
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind>;

    /// The plaintext size in bytes; `None` for a file in clear. A format may need less than the whole layout for it.
    ///
    /// # Errors
    /// Those of [`FileKeys::layout`].
    fn size(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        Ok(match self.layout(of)? {
            FileKind::Clear => None,
            FileKind::Encrypted(layout) => Some(layout.size()),
            FileKind::Sealed(layout) => Some(layout.size(of.tree.attributes(of.contents)?.size)),
            FileKind::Unfinished => Some(0),
        })
    }

    /// Whether a new file gets its header at once. Otherwise it gets it with its first byte, and loses it with its last.
    fn begins_at_once(&self) -> bool {
        true
    }

    /// Whether even an empty file has a header: one without is damaged, not empty.
    fn empty_needs_header(&self) -> bool {
        false
    }

    /// Writes the header of a new, empty file.
    ///
    /// # Errors
    /// Those of the tree below.
    fn begin(&self, of: StoredFile<'_>) -> io::Result<FileKind>;

    /// Records the plaintext size in the header. Called after bytes were added, or before they are removed; never for a file of
    /// sealed blocks.
    ///
    /// # Errors
    /// Those of the tree below. On an error the header is unchanged.
    fn set_size(&self, of: StoredFile<'_>, size: u64) -> io::Result<()>;

    /// The tree that is decrypted, if nodes are stored in another arrangement than they are shown in, or if names depend on their
    /// path. `lower` is the tree of the folder.
    fn arranged(&self, lower: Arc<dyn Tree>) -> Arc<dyn Tree> {
        lower
    }

    /// Stored files and folders that the tree does not show, and what is wrong with them. Called when every folder has been listed.
    ///
    /// # Errors
    /// Those of the tree below.
    fn not_shown(&self) -> io::Result<Vec<NotShown>> {
        Ok(Vec::new())
    }

    /// From now on shows folders that nothing leads to, in a folder of their own.
    fn show_lost(&self) {}

    /// What the names in a folder depend on.
    ///
    /// # Errors
    /// Those of the tree below; `InvalidData` if it is missing or damaged.
    fn name_iv(&self, _of: StoredFolder<'_>) -> io::Result<NameIv> {
        Ok(NameIv::default())
    }

    /// What a stored name in the root or in any other folder stands for.
    fn role(&self, _stored: &OsStr, _in_root: bool) -> NameRole {
        NameRole::Name
    }

    /// The name that replaces a stored name that would be too long; `None` if it is not too long. [`FileKeys::role`] says which file
    /// beside it holds the whole one.
    fn shortened(&self, _stored: &OsStr) -> Option<OsString> {
        None
    }

    /// The file that each folder has.
    fn folder_file(&self) -> Option<FolderFile> {
        None
    }

    /// The decrypted name. `None` if it is not a name of this format or of this key; such names are left out.
    ///
    /// # Errors
    /// `Io` if the key process has ended.
    fn plain_name(&self, stored: &OsStr, iv: &NameIv) -> io::Result<Option<OsString>>;

    /// Why [`FileKeys::plain_name`] returned no name for `stored`.
    fn why_no_name(&self, _stored: &OsStr) -> Error {
        no_name("it does not decrypt with this key")
    }

    /// Why a name that decrypts is not shown: [`FileKeys::stored_name`] makes another stored name of it.
    fn why_unfit(&self, _plain: &OsStr) -> Option<Error> {
        None
    }

    /// Whether names are encrypted as well.
    fn encrypts_names(&self) -> bool {
        false
    }

    /// The whole encrypted name, as stored.
    ///
    /// # Errors
    /// `InvalidFilename` (`ENAMETOOLONG`) if it would be too long.
    fn stored_name(&self, plain: &OsStr, iv: &NameIv) -> io::Result<OsString>;

    /// The longest decrypted name, if the tree below allows names of up to `stored` bytes.
    fn longest_name(&self, stored: u32) -> u32 {
        stored
    }

    /// Decrypts the target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidData` if it does not decrypt.
    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        Ok(stored)
    }

    /// Encrypts the target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidFilename` if it would be too long.
    fn stored_target(&self, plain: &OsStr) -> io::Result<OsString> {
        Ok(plain.to_owned())
    }

    /// The stored name of an extended attribute.
    ///
    /// # Errors
    /// `InvalidFilename` if it would be too long.
    fn stored_attribute(&self, plain: &OsStr) -> io::Result<OsString> {
        Ok(plain.to_owned())
    }

    /// The decrypted name of an extended attribute; `None` for one that is not shown.
    ///
    /// # Errors
    /// `Io` if the key process has ended.
    fn plain_attribute(&self, stored: OsString) -> io::Result<Option<OsString>> {
        Ok(Some(stored))
    }

    /// Encrypts the value of an extended attribute.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    fn stored_value(&self, _plain_name: &OsStr, value: &[u8]) -> io::Result<Vec<u8>> {
        Ok(value.to_vec())
    }

    /// Decrypts the value of an extended attribute.
    ///
    /// # Errors
    /// `InvalidData` if it does not decrypt.
    fn plain_value(&self, _plain_name: &OsStr, stored: Vec<u8>) -> io::Result<Vec<u8>> {
        Ok(stored)
    }

    /// Whether this extended attribute belongs to the format, and so is hidden.
    fn hides(&self, _attribute: &OsStr) -> bool {
        false
    }

    /// Whether reading a file verifies it, in a folder of a format that [can](FileFormat::verifies).
    fn verifies(&self) -> bool {
        true
    }

    /// Whether these keys allow reading only.
    fn read_only(&self) -> bool {
        false
    }

    /// The signatures of the keys in hex: for contents first, then for names. Empty if the format has no signatures.
    fn signatures(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether data that were read proved the keys right.
    fn proven(&self) -> bool {
        true
    }

    /// Warnings for the user, in whole sentences.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Splits the keys, for the key process, from everything else: see [`FileFormat::with_key_process`].
    ///
    /// # Errors
    /// `Unsupported`.
    fn split_keys(&self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        Err(no_key_process())
    }
}

/// The error for an invalid stored name.
fn no_name(what: &str) -> Error {
    ErrorKind::Malformed { field: "name", offset: 0, what: what.into() }.into()
}

/// The error for a file that was cut short in its header.
fn cut_header() -> io::Error {
    damaged("header", 0, "the file ends in its header")
}

fn no_key_process() -> Error {
    Error::unsupported("a key process for files of this format")
}

/// Opens the folder `lower` with the format called `name`, or with the format that is detected.
///
/// # Errors
/// `NotThisFormat`; `Misuse` if there is no format of that name; those of [`FileFormat::unlock`].
pub fn open(lower: Arc<dyn Tree>, name: Option<&str>, with: &Unlock<'_>) -> Result<Stacked> {
    unlock(find(&*lower, name)?, lower, with)
}

/// The format of the folder `lower`: the one called `name`, or the one that is detected.
///
/// # Errors
/// `NotThisFormat`; `Misuse` if there is no format of that name.
pub fn find(lower: &(dyn Tree + 'static), name: Option<&str>) -> Result<&'static dyn FileFormat> {
    name.map_or_else(|| identified(lower), named)
}

/// A folder in a tree, and its format.
pub struct Located {
    /// The folder, as a tree.
    pub folder: Subtree,
    /// Its path in the tree.
    pub path: OsString,
    /// Its format.
    pub format: &'static dyn FileFormat,
}

/// Finds the encrypted folder on the way to `path`: the outermost folder that is detected as the format called `name`, or as any
/// format. If the named format is not detected anywhere, the last folder on the way.
///
/// # Errors
/// `NotThisFormat` if no folder on the way is detected; `Misuse` if there is no format of that name; those of the tree.
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
            // A file, or a path that does not exist yet.
            Ok(_) | Err(_) => break,
        };
        if let Some(format) = shown(formats, named.is_some(), |format| format.glance(&folder))? {
            return Ok(Located { folder, path: path.to_owned(), format });
        }
        last = Some((folder, path));
    }
    let Some((folder, path)) = last else { return Err(nothing_shows()) };
    // Subfolders may hold the only evidence.
    let format = shown(formats, named.is_some(), |format| format.identify(&folder))?.or(named);
    let beside = || {
        let path = Path::new(path);
        empty_by_beside(&folder, &Subtree::find(tree, path.parent()?.as_os_str()).ok()?, path.file_name()?)
    };
    let format = format.or_else(beside).ok_or_else(nothing_shows)?;
    Ok(Located { folder, path: path.to_owned(), format })
}

/// The format of the empty `folder`, called `name` in `parent`, if the files beside it say that it is encrypted.
pub(crate) fn empty_by_beside(
    folder: &(dyn Tree + 'static),
    parent: &(dyn Tree + 'static),
    name: &OsStr,
) -> Option<&'static dyn FileFormat> {
    let empty = folder.list(folder.root()).is_ok_and(|entries| entries.is_empty());
    let proves = |format: &&&'static dyn FileFormat| format.beside(parent, name).is_ok_and(|beside| beside.proves());
    FILE_FORMATS.iter().filter(|_| empty).find(proves).copied()
}

/// The first format that is detected; for a named format, `Possible` is enough.
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

/// The folders on the way to `path`, from the root to `path` itself.
fn ways(path: &OsStr) -> impl Iterator<Item = &OsStr> {
    let mut all: Vec<_> = Path::new(path).ancestors().map(Path::as_os_str).collect();
    all.reverse();
    // The empty ancestor of a relative path is the root, too.
    all.into_iter()
}

/// Unlocks the folder `lower` of this format.
///
/// # Errors
/// `Misuse` for options that the format does not support; those of [`FileFormat::unlock`].
pub fn unlock(format: &dyn FileFormat, lower: Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Stacked> {
    let takes = format.takes();
    takes.check_kinds(format.name(), with.credentials)?;
    if let Some(missing) = takes.missing(Purpose::Opening, &with.parameters()) {
        return Err(missing.refused_by(format.name()));
    }
    let keys = format.unlock(&lower, with).map_err(|e| e.in_format(format.name()))?;
    Ok(Stacked::new(lower, keys))
}

/// The format of that name, in upper or lower case.
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
