//! The one way from a path to the contents of a volume: the file, the partition in it, the header, and what unlocks it; or an
//! encrypted folder, wherever it is.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::advice::{Advice, Warning};
use crate::arrays;
use crate::credential::{Credential, FolderOptions, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::fido2::Fido2Token;
use crate::file_formats::{self, Beside, FileFormat, Located, Stacked};
use crate::filesystems;
use crate::formats::takes;
use crate::formats::{self, Facts, Format, Header, HeaderEditor, UnlockPlan, Unlocked, partition};
use crate::key_process::folder::{FolderKeyProcess, KeylessFolder};
use crate::partitions;
use crate::store::{Access, Borrow, FileStore, Store};
use crate::trees::host::HostFolder;
use crate::trees::{Subtree, Tree};
use crate::volume::{Mapping, Volume};

/// A volume to open: where it is, and what is known about it in advance.
///
/// Opening takes two steps, with the password prompt in between. [`Opening::find`] finds the header and knows the cost of trying
/// it; [`Locked::unlock`] tries the credentials.
///
/// ```no_run
/// use claviger_engine::{Credential, Opening, Secret, Store, Unlock};
///
/// let locked = Opening::path("old.tc").find()?;
/// let passphrase = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
/// let opened = locked.unlock(&Unlock::with(&passphrase))?.bytes()?;
/// let mut start = vec![0; 512];
/// opened.volume.read_at(0, &mut start)?;
/// # Ok::<(), claviger_engine::Error>(())
/// ```
///
/// An encrypted folder opens in the same two steps. It may be on this machine ([`Opening::path`]), or in a file system within a
/// volume or an unencrypted image ([`Opening::tree`]). In that case the folder has its own secret.
///
/// ```no_run
/// use claviger_engine::{Credential, Opened, Opening, Secret, Unlock, filesystems};
///
/// let image = match Opening::path("disk.img").or_clear(true).find()?.unlock(&Unlock::with(&[]))? {
///     Opened::Clear(image) => image,
///     _ => panic!("it is encrypted"),
/// };
/// let (_, tree) = filesystems::open(image)?;
/// let locked = Opening::tree(tree.into()).at("/home/.ecryptfs/me/.Private").find()?;
/// let passphrase = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
/// let folder = locked.unlock(&Unlock::with(&passphrase))?.files()?;
/// println!("{}", folder.format.name());
/// # Ok::<(), claviger_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Opening {
    source: Source,
    access: Access,
    partition: Option<u32>,
    format: Option<String>,
    header: Option<Source>,
    by_backup: bool,
    or_clear: bool,
    keep_times: bool,
    borrow: Option<Borrow>,
    at: OsString,
}

/// Opens a store other than a file or device of this machine.
pub type Opener = Arc<dyn Fn(Access) -> Result<Arc<dyn Store>> + Send + Sync>;

/// Where the bytes or files are.
#[derive(Clone)]
enum Source {
    Path(PathBuf),
    /// A store other than a path, with a name.
    Remote(PathBuf, Opener),
    Store(Arc<dyn Store>),
    /// A path that another process has opened.
    Opened(PathBuf, Arc<dyn Store>),
    Tree(Arc<dyn Tree>),
    /// A folder that another process has opened and recognised.
    FoundFolder(PathBuf, FoundFolder),
}

/// An encrypted folder that one process found, for another one that unlocks it.
#[derive(Clone)]
pub struct FoundFolder {
    /// Its files as stored.
    pub tree: Arc<dyn Tree>,
    /// The name of its format.
    pub format: String,
    /// The files beside it that belong to it.
    pub beside: Beside,
}

impl Source {
    fn open(&self, access: Access) -> Result<Arc<dyn Store>> {
        match self {
            Self::Path(path) => Ok(Arc::new(FileStore::open(path, access)?)),
            Self::Remote(name, opener) => opener(access).map_err(|e| e.at(name)),
            Self::Store(store) | Self::Opened(_, store) => Ok(Arc::clone(store)),
            Self::Tree(_) | Self::FoundFolder(..) => {
                Err(Error::misuse("a tree has only files, not the bytes of a volume"))
            }
        }
    }

    /// Adds the path to an error.
    fn at(&self, error: Error) -> Error {
        match self {
            Self::Path(path) | Self::Remote(path, _) | Self::Opened(path, _) | Self::FoundFolder(path, _) => {
                error.at(path)
            }
            Self::Store(_) | Self::Tree(_) => error,
        }
    }
}

impl Opening {
    /// The volume in a file or block device, for reading.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self::of(Source::Path(path.into()))
    }

    /// The volume in the store that `opener` opens, called `name`.
    pub fn remote(name: impl Into<PathBuf>, opener: Opener) -> Self {
        Self::of(Source::Remote(name.into(), opener))
    }

    /// The volume in a store.
    pub fn store(store: Arc<dyn Store>) -> Self {
        Self::of(Source::Store(store))
    }

    /// The encrypted folder in a tree: see [`Opening::at`]. The tree determines whether it is writable.
    pub fn tree(tree: Arc<dyn Tree>) -> Self {
        Self::of(Source::Tree(tree))
    }

    fn of(source: Source) -> Self {
        let (access, at) = (Access::ReadOnly, OsString::new());
        let (by_backup, or_clear, keep_times, borrow) = (false, false, false, None);
        Self {
            source,
            access,
            partition: None,
            format: None,
            header: None,
            by_backup,
            or_clear,
            keep_times,
            borrow,
            at,
        }
    }

    /// The path in a tree: the folder is the outermost one on the way that is recognised as an encrypted folder. If a format is
    /// named and no folder is recognised, it is the last folder on the way. Without this, the tree itself is the folder.
    pub fn at(self, path: impl Into<OsString>) -> Self {
        Self { at: path.into(), ..self }
    }

    /// Whether an unencrypted store with a file system is opened as well, as [`Opened::Clear`]. Folders in it may be encrypted.
    pub fn or_clear(self, or_clear: bool) -> Self {
        Self { or_clear, ..self }
    }

    /// How a path is opened. A detached header is never written to.
    pub fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// The volume in this partition of the disk, counted from 1, or this partition of an encrypted system.
    pub fn partition(self, number: impl Into<Option<u32>>) -> Self {
        Self { partition: number.into(), ..self }
    }

    /// Treats it as a volume of this format, by name.
    pub fn format<'a>(self, name: impl Into<Option<&'a str>>) -> Self {
        Self { format: name.into().map(str::to_owned), ..self }
    }

    /// The header is detached: it is in this file or block device.
    pub fn detached_header<'a>(self, path: impl Into<Option<&'a Path>>) -> Self {
        Self { header: path.into().map(|path| Source::Path(path.to_owned())), ..self }
    }

    /// The header is detached: it is in the store that `opener` opens, called `name`.
    pub fn remote_detached_header(self, name: impl Into<PathBuf>, opener: Opener) -> Self {
        Self { header: Some(Source::Remote(name.into(), opener)), ..self }
    }

    /// Whether to try only backup headers, regardless of the beginning of the volume.
    pub fn by_backup(self, by_backup: bool) -> Self {
        Self { by_backup, ..self }
    }

    /// Whether to restore the times of a written file on closing: see [`FileStore::keep_times`].
    pub fn keep_times(self, keep_times: bool) -> Self {
        Self { keep_times, ..self }
    }

    /// How to get what is in use. Only for changes of the header: its owner goes on reading and writing the data.
    pub fn borrowing(self, borrow: Borrow) -> Self {
        Self { borrow: Some(borrow), ..self }
    }

    fn file(&self, path: &Path) -> Result<FileStore> {
        let file = match self.borrow {
            Some(borrow) => FileStore::open_or_borrow(path, self.access, borrow)?,
            None => FileStore::open(path, self.access)?,
        };
        if self.keep_times {
            file.keep_times().map_err(|e| e.at(path))?;
        }
        Ok(file)
    }

    fn disk(&self) -> Result<Arc<dyn Store>> {
        match &self.source {
            Source::Path(path) => Ok(Arc::new(self.file(path)?)),
            source => self.opened_or_borrowed(source),
        }
    }

    /// Borrows a remote store if a process that uses it lends it: most remote stores have no lock that would show the use.
    fn opened_or_borrowed(&self, source: &Source) -> Result<Arc<dyn Store>> {
        let borrowed = match (source, self.borrow) {
            (Source::Remote(name, _), Some(borrow)) => (borrow.remote)(name, self.access).map_err(|e| source.at(e))?,
            _ => None,
        };
        borrowed.map_or_else(|| source.open(self.access), Ok)
    }

    /// Finds and reads the header. Derives no keys and writes nothing.
    ///
    /// # Errors
    /// Those of [`FileStore::open`], [`partitions::find`] and [`formats::open`]; `Misuse` if the format has no detached headers.
    pub fn find(&self) -> Result<Locked> {
        let found = match &self.source {
            Source::Tree(tree) => self.find_in(tree).map(LockedSource::Folder),
            Source::FoundFolder(_, found) => self.find_in_found(found).map(LockedSource::Folder),
            Source::Path(path) if path.is_dir() => self.find_folder(path).map(LockedSource::Folder),
            _ => self.find_volume().map(LockedSource::Volume).or_else(|e| self.clear(e).map(LockedSource::Clear)),
        };
        Ok(Locked { opening: self.clone(), found: found? })
    }

    fn find_folder(&self, path: &Path) -> Result<LockedFolder> {
        self.no_volume().map_err(|e| e.at(path))?;
        let lower = HostFolder::open(path, self.access)?;
        let format = match (file_formats::find(&lower, self.format.as_deref()), &self.format) {
            (Err(e), None) => format_of_empty(path).ok_or(e),
            (found, _) => found,
        };
        let format = format.map_err(|e| e.at(path))?;
        lower.lock().map_err(|e| e.at(path))?;
        Ok(LockedFolder { lower: Arc::new(lower), format, path: OsString::new(), beside: beside_on_host(format, path) })
    }

    /// Uses a folder found by another process, without reading it.
    fn find_in_found(&self, found: &FoundFolder) -> Result<LockedFolder> {
        let FoundFolder { tree, format, beside } = found.clone();
        let format = file_formats::named(&format)?;
        self.no_volume().map_err(|e| self.source.at(e))?;
        Ok(LockedFolder { lower: tree, format, path: OsString::new(), beside })
    }

    fn find_in(&self, tree: &Arc<dyn Tree>) -> Result<LockedFolder> {
        self.no_volume()?;
        let Located { folder, path, format } = file_formats::locate(tree, &self.at, self.format.as_deref())?;
        let parent = Path::new(&path).parent().map(Path::to_owned);
        let beside = parent.and_then(|parent| {
            let name = Path::new(&path).file_name()?;
            let beside = format.beside(&Subtree::find(tree, parent.as_os_str()).ok()?, name).ok()?;
            Some(Beside { folder: beside.folder.map(|folder| parent.join(folder)), ..beside })
        });
        Ok(LockedFolder { lower: Arc::new(folder), format, path, beside: beside.unwrap_or_default() })
    }

    fn no_volume(&self) -> Result<()> {
        if self.partition.is_some() || self.header.is_some() || self.by_backup {
            let what = "an encrypted folder has no partitions, no detached header and no backup header";
            return Err(Error::misuse(what));
        }
        Ok(())
    }

    /// The store itself if it holds a file system and may be in clear; otherwise `error`, which says that it is not a volume.
    fn clear(&self, error: Error) -> Result<Arc<dyn Store>> {
        let named = self.format.is_some() || self.header.is_some() || self.by_backup;
        if !self.or_clear || named || !matches!(error.kind, ErrorKind::NotThisFormat(_)) {
            return Err(error);
        }
        let stored = self.stored()?;
        match filesystems::detect(&*stored).map_err(|e| self.source.at(e.into()))? {
            Some(found) if found.kind.holds_files() => Ok(stored),
            _ => Err(error),
        }
    }

    fn find_volume(&self) -> Result<LockedVolume> {
        let disk = self.disk()?;
        if self.access == Access::ReadWrite {
            self.must_be_no_member(&*self.part_of(&disk)?)?;
        }
        let format = self.format.as_deref();
        let (header, detached) = match (&self.header, self.partition) {
            (Some(source), _) => {
                let file = source.open(Access::ReadOnly)?;
                let (format, _) = formats::open(&file, format).map_err(|e| source.at(e))?;
                let data = self.part_of(&disk)?;
                (format.open_detached(&file, &data).map_err(|e| source.at(e))?, Some(file))
            }
            (None, Some(number)) => {
                let header = partition::open(&disk, number, format, self.by_backup);
                (header.map_err(|e| self.source.at(e))?, None)
            }
            (None, None) => {
                let found = match format {
                    None if self.by_backup => formats::open_by_backup(&disk),
                    _ => formats::open(&disk, format),
                };
                (found.map_err(|e| self.explained(e, &disk))?.1, None)
            }
        };
        Ok(LockedVolume { disk, header, detached })
    }

    /// The same volume for a process that opens no files: `disk` is the store at the path, `header` the store of a detached header.
    pub fn over_stores(self, disk: Arc<dyn Store>, header: Option<Arc<dyn Store>>) -> Self {
        let opened = |source, store| match source {
            Source::Path(path) | Source::Remote(path, _) => Source::Opened(path, store),
            other => other,
        };
        let header = match (self.header, header) {
            (Some(source), Some(store)) => Some(opened(source, store)),
            (source, _) => source,
        };
        Self { source: opened(self.source, disk), header, ..self }
    }

    /// The same folder for a process that opens no files.
    pub fn over_folder(self, folder: FoundFolder) -> Self {
        let source = match self.source {
            Source::Path(path) => Source::FoundFolder(path, folder),
            other => other,
        };
        Self { source, ..self }
    }

    /// Opens the stores without unlocking anything, and reads at most a partition table. For a process that opens files on behalf
    /// of the one that unlocks.
    ///
    /// # Errors
    /// Those of [`FileStore::open`] and [`partitions::find`]; `Unsupported` for a folder.
    pub fn stores(&self) -> Result<Stores> {
        if matches!(&self.source, Source::Path(path) if path.is_dir()) {
            let what = "a key process for this encrypted folder";
            return Err(self.source.at(Error::unsupported(what)));
        }
        let disk = self.disk()?;
        let header = self.header.as_ref().map(|source| source.open(Access::ReadOnly)).transpose()?;
        // Unless the header is detached, a layout always refers to the whole disk.
        let data = if header.is_some() { self.part_of(&disk)? } else { Arc::clone(&disk) };
        Ok(Stores { disk, header, data })
    }

    /// The file, or the partition in it, as stored.
    ///
    /// # Errors
    /// Those of [`FileStore::open`] and [`partitions::find`].
    pub fn stored(&self) -> Result<Arc<dyn Store>> {
        self.part_of(&self.disk()?)
    }

    /// Fails if a member of a RAID array would be written to. In a mirror, it holds the same as the others, and must stay so.
    fn must_be_no_member(&self, store: &dyn Store) -> Result<()> {
        // A damaged superblock is no member's.
        let Ok(Some(member)) = arrays::member(store) else { return Ok(()) };
        let what = format!("writing to {}: the other members would differ", member.describe());
        Err(self.source.at(Error::unsupported(what).hint(
            "Reading works. To write, assemble the array with mdadm. If this is no longer a member, `mdadm \
             --zero-superblock` removes the superblock.",
        )))
    }

    fn part_of(&self, disk: &Arc<dyn Store>) -> Result<Arc<dyn Store>> {
        match self.partition {
            Some(number) => Ok(Arc::new(partitions::slice(Arc::clone(disk), number).map_err(|e| self.source.at(e))?)),
            None => Ok(Arc::clone(disk)),
        }
    }

    /// Finds the header in order to save, change or repair it. The header's store is writable if the access allows it; the data are
    /// not. With [`Opening::by_backup`], also finds a volume whose beginning is lost.
    ///
    /// # Errors
    /// Those of [`Opening::find`].
    pub fn find_header(&self) -> Result<HeaderFound> {
        let (source, data) = match &self.header {
            Some(source) => (source, Some(Self { access: Access::ReadOnly, ..self.clone() }.stored()?)),
            None => (&self.source, None),
        };
        let (file, store): (_, Arc<dyn Store>) = match source {
            Source::Path(path) => {
                let file = Arc::new(self.file(path)?);
                (Some(Arc::clone(&file)), file)
            }
            Source::Store(store) | Source::Opened(_, store) => (None, Arc::clone(store)),
            Source::Remote(..) | Source::Tree(_) | Source::FoundFolder(..) => (None, self.opened_or_borrowed(source)?),
        };
        let store = if data.is_some() { store } else { self.part_of(&store)? };
        if self.access == Access::ReadWrite {
            self.must_be_no_member(&*store)?;
        }
        let (format, header) = match formats::open(&store, self.format.as_deref()) {
            Err(e) if self.by_backup && self.format.is_none() && matches!(e.kind, ErrorKind::NotThisFormat(_)) => {
                formats::open_by_backup(&store).map_err(|_| source.at(e))?
            }
            found => found.map_err(|e| source.at(e))?,
        };
        // For a detached header without its data only the header matters, so the size of the data does not count.
        let public = format.detachable() && format.editor().is_some_and(HeaderEditor::public);
        let data = data.or_else(|| public.then(|| Arc::clone(&store)));
        let detached = data.is_some();
        let header = match data {
            Some(data) => format.open_detached(&store, &data).map_err(|e| source.at(e))?,
            None => header,
        };
        Ok(HeaderFound { file, store, format, header, detached })
    }

    /// Explains why the volume does not open. For a whole disk, names the partitions that could be volumes.
    fn explained(&self, error: Error, disk: &Arc<dyn Store>) -> Error {
        let error = self.source.at(error);
        let looked_at_all = self.partition.is_some()
            || !matches!(error.kind, ErrorKind::NotThisFormat(_) | ErrorKind::WrongCredential(_));
        let candidates = (!looked_at_all).then(|| partition::candidates(disk).ok().flatten()).flatten();
        let Some(candidates) = candidates else { return error };
        let clear = |number| {
            let part = partitions::slice(Arc::clone(disk), number).ok();
            self.or_clear && part.is_some_and(|part| matches!(filesystems::detect(&part), Ok(Some(_))))
        };
        let could_be = candidates.iter().filter(|c| !c.formats.is_empty() || clear(c.partition.number));
        let could_be = could_be.map(|c| c.partition.number).collect();
        Error { hint: None, ..error }.advise(Advice::ChoosePartition(could_be))
    }
}

/// The format of an empty folder of this machine, if the files beside it say that it is encrypted.
pub(crate) fn format_of_empty(path: &Path) -> Option<&'static dyn FileFormat> {
    let path = path.canonicalize().ok()?;
    let open = |path| HostFolder::open(path, Access::ReadOnly).ok();
    file_formats::empty_by_beside(&open(&path)?, &open(path.parent()?)?, path.file_name()?)
}

/// The files beside a folder of this machine. Symbolic links to the folder are resolved first. Empty if these files cannot be read.
fn beside_on_host(format: &dyn FileFormat, path: &Path) -> Beside {
    let beside = || {
        let path = path.canonicalize().ok()?;
        let parent = path.parent()?;
        let beside = format.beside(&HostFolder::open(parent, Access::ReadOnly).ok()?, path.file_name()?).ok()?;
        Some(Beside { folder: beside.folder.map(|folder| parent.join(folder)), ..beside })
    };
    beside().unwrap_or_default()
}

/// The stores of an [`Opening`]: see [`Opening::stores`].
#[derive(Clone)]
pub struct Stores {
    /// The whole file or device.
    pub disk: Arc<dyn Store>,
    /// The store of the header, if it is detached.
    pub header: Option<Arc<dyn Store>>,
    /// The store that the volume's layout refers to: the disk, or the partition in it if the header is detached.
    pub data: Arc<dyn Store>,
}

/// What was found, still locked.
pub struct Locked {
    opening: Opening,
    found: LockedSource,
}

enum LockedSource {
    Volume(LockedVolume),
    Folder(LockedFolder),
    Clear(Arc<dyn Store>),
}

struct LockedFolder {
    lower: Arc<dyn Tree>,
    format: &'static dyn FileFormat,
    path: OsString,
    beside: Beside,
}

struct LockedVolume {
    /// The whole file or device.
    disk: Arc<dyn Store>,
    header: Box<dyn Header>,
    /// The store of the header, if it is detached.
    detached: Option<Arc<dyn Store>>,
}

impl Locked {
    /// Refuses options that none of the possible formats supports, before a secret is requested.
    ///
    /// # Errors
    /// `Misuse`, `CredentialKind`.
    pub fn check(&self, with: &Unlock<'_>) -> Result<()> {
        let checked = match &self.found {
            LockedSource::Volume(volume) => takes::check_any(&volume.header.takes(), with),
            LockedSource::Folder(folder) => takes::check_opening(folder.format.name(), &folder.format.takes(), with),
            LockedSource::Clear(_) => check_clear(with),
        };
        checked.map_err(|e| self.opening.source.at(e))
    }

    /// The cost of trying the credentials, if the header determines it.
    pub fn plan(&self, with: &Unlock<'_>) -> Option<UnlockPlan> {
        self.header()?.plan(with)
    }

    /// Whether to ask for a passphrase in addition to these keyfiles.
    pub fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        match &self.found {
            LockedSource::Volume(volume) => volume.header.asks_passphrase(keyfiles),
            LockedSource::Folder(folder) => folder.format.asks_passphrase(keyfiles),
            LockedSource::Clear(_) => false,
        }
    }

    /// The FIDO2 key's credential whose secret opens the folder in place of a passphrase; only some folders have one.
    ///
    /// # Errors
    /// Those of [`FileFormat::fido2`].
    pub fn fido2(&self, with: &Unlock<'_>) -> Result<Option<Fido2Token>> {
        match &self.found {
            LockedSource::Folder(folder) => {
                folder.format.fido2(&*folder.lower, with).map_err(|e| self.opening.source.at(e))
            }
            LockedSource::Volume(_) | LockedSource::Clear(_) => Ok(None),
        }
    }

    /// The format of an encrypted folder.
    pub fn file_format(&self) -> Option<&'static dyn FileFormat> {
        match &self.found {
            LockedSource::Folder(folder) => Some(folder.format),
            LockedSource::Volume(_) | LockedSource::Clear(_) => None,
        }
    }

    /// The files of an encrypted folder as stored, and the files beside it.
    pub fn stored_files(&self) -> Option<(&Arc<dyn Tree>, &Beside)> {
        match &self.found {
            LockedSource::Folder(folder) => Some((&folder.lower, &folder.beside)),
            LockedSource::Volume(_) | LockedSource::Clear(_) => None,
        }
    }

    /// The path of a folder in the tree where it was found: see [`Opening::at`].
    pub fn path_inside(&self) -> &OsStr {
        match &self.found {
            LockedSource::Folder(folder) => &folder.path,
            LockedSource::Volume(_) | LockedSource::Clear(_) => OsStr::new(""),
        }
    }

    /// Tries the credentials on a folder. It stays locked for further tries.
    ///
    /// # Errors
    /// Those of [`Locked::unlock`]; `Misuse` if it is not a folder.
    pub fn try_folder(&self, with: &Unlock<'_>) -> Result<Stacked> {
        match &self.found {
            LockedSource::Folder(folder) => folder.tree(with),
            LockedSource::Volume(_) | LockedSource::Clear(_) => Err(no_folder()),
        }
    }

    /// Whether it is not encrypted: see [`Opening::or_clear`].
    pub fn is_clear(&self) -> bool {
        matches!(self.found, LockedSource::Clear(_))
    }

    /// Whether the format has no header, so that any password opens it; a wrong one leads to noise.
    pub fn headerless(&self) -> bool {
        let named = self.opening.format.as_deref();
        named.is_some_and(|name| formats::by_name(name).is_ok_and(Format::headerless))
    }

    /// The header; only volumes have one.
    pub fn header(&self) -> Option<&dyn Header> {
        match &self.found {
            LockedSource::Volume(volume) => Some(&*volume.header),
            LockedSource::Folder(_) | LockedSource::Clear(_) => None,
        }
    }

    /// Fails if the keys cannot be held by a key process: see [`key_process`](crate::key_process).
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn check_key_process(&self, credentials: &[Credential]) -> Result<()> {
        let checked = match &self.found {
            LockedSource::Volume(volume) => volume.header.check_key_process(credentials),
            LockedSource::Folder(folder) => {
                folder.format.check_key_process().map_err(|e| e.in_format(folder.format.name()))
            }
            LockedSource::Clear(_) => Ok(()),
        };
        checked.map_err(|e| self.opening.source.at(e))
    }

    /// A folder unlocked by a key process that holds its keys. `outline` is the rest, without keys.
    ///
    /// # Errors
    /// Those of [`FileFormat::with_key_process`]; `Misuse` if it is not a folder.
    pub fn with_key_process(
        self,
        outline: KeylessFolder,
        key_process: Arc<dyn FolderKeyProcess>,
    ) -> Result<OpenFolder> {
        match self.found {
            LockedSource::Folder(LockedFolder { lower, format, path, beside }) => {
                let keys =
                    format.with_key_process(&lower, outline, key_process).map_err(|e| self.opening.source.at(e))?;
                Ok(OpenFolder { tree: Stacked::new(lower.clone(), keys), lower, format, path, beside })
            }
            LockedSource::Volume(_) | LockedSource::Clear(_) => Err(no_folder()),
        }
    }

    /// Tries the credentials. It stays locked for further tries, and keeps the file open, so that nobody else can open it for writing
    /// until this is dropped, too.
    ///
    /// # Errors
    /// Those of [`Header::unlock`] and [`file_formats::unlock`].
    pub fn unlock(&self, with: &Unlock<'_>) -> Result<Opened> {
        let Self { opening, found } = self;
        match found {
            LockedSource::Volume(volume) => volume.unlock(opening, with).map(Box::new).map(Opened::Bytes),
            LockedSource::Folder(folder) => folder.unlock(opening, with).map(Box::new).map(Opened::Files),
            LockedSource::Clear(store) => {
                check_clear(with).map_err(|e| opening.source.at(e)).map(|()| Opened::Clear(Arc::clone(store)))
            }
        }
    }
}

fn no_folder() -> Error {
    Error::misuse("this is not an encrypted folder")
}

/// Refuses credentials and options for an unencrypted store: a user who gives them believes that it is encrypted.
fn check_clear(with: &Unlock<'_>) -> Result<()> {
    let given = with.credentials.first().map(Credential::kind);
    let given = given.or_else(|| with.parameters().first().map(|parameter| parameter.name()));
    given.map_or(Ok(()), |given| {
        let what = format!("it holds an unencrypted file system, which takes no {given}");
        Err(ErrorKind::NotThisFormat(what).into())
    })
}

impl LockedFolder {
    fn unlock(&self, opening: &Opening, with: &Unlock<'_>) -> Result<OpenFolder> {
        let tree = self.tree(with).map_err(|e| opening.source.at(e))?;
        let Self { lower, format, path, beside } = self;
        Ok(OpenFolder { tree, lower: Arc::clone(lower), format: *format, path: path.clone(), beside: beside.clone() })
    }

    /// Opens the folder with the wrapped passphrase beside it, if that unwraps; otherwise with the credentials themselves.
    fn tree(&self, with: &Unlock<'_>) -> Result<Stacked> {
        let beside = self.beside.wrapped_passphrase.as_deref();
        let wrapped = beside.filter(|_| with.folder.wrapped_passphrase.is_none() && !with.credentials.is_empty());
        let Some(wrapped) = wrapped else { return self.opened_by(with) };
        let folder = FolderOptions { wrapped_passphrase: Some(wrapped), ..with.folder };
        let wrong = |e: &Error| matches!(e.kind, ErrorKind::WrongCredential(_));
        match self.opened_by(&Unlock { folder, ..*with }) {
            // A damaged wrapped passphrase says nothing about the folder.
            Err(e) if wrong(&e) || matches!(e.kind, ErrorKind::Malformed { .. }) => match self.opened_by(with) {
                // It unwraps to the passphrase of another folder, which explains more than a wrong passphrase for this one.
                Err(own) if wrong(&e) && wrong(&own) && self.format.unwraps(wrapped, with.credentials) => {
                    let what = "the wrapped passphrase beside the folder opens with it, but belongs to another folder";
                    let kind = ErrorKind::WrongCredential(format!("{what}: {}", e.kind));
                    Err(Error { hint: e.hint, ..Error::new(kind) })
                }
                Err(own) if wrong(&e) && wrong(&own) => {
                    let what = "it is neither the login passphrase nor the folder's own passphrase";
                    Err(ErrorKind::WrongCredential(format!("{what}: {}", own.kind)).into())
                }
                // An empty folder accepts any passphrase.
                Ok(tree) if wrong(&e) && self.beside.signatures.is_empty() && !tree.proven() => Err(e),
                opened => opened,
            },
            opened => opened,
        }
    }

    fn opened_by(&self, with: &Unlock<'_>) -> Result<Stacked> {
        // Unlike the folder's format, this names the formats that take an option.
        takes::check_opening(self.format.name(), &self.format.takes(), with)?;
        let tree = file_formats::unlock(self.format, self.lower.clone(), with)?;
        let (has, should) = (tree.signatures(), &self.beside.signatures);
        // If the folder has no files, only this signature can reveal a wrong passphrase.
        match should.first() {
            Some(should) if !has.is_empty() && !has.contains(should) => {
                let what = format!("the key's signature is {}, but the folder's is {should}", has[0]);
                Err(Error::new(ErrorKind::WrongCredential(what)).in_format(self.format.name()))
            }
            _ => Ok(tree),
        }
    }
}

impl LockedVolume {
    fn unlock(&self, opening: &Opening, with: &Unlock<'_>) -> Result<OpenVolume> {
        let Self { disk, header, detached } = self;
        let unlocked = header.unlock(with).map_err(|e| opening.explained(e, disk))?;
        let Unlocked { layout, facts, mut warnings, trials, derivations: _, took, recognised } = unlocked;
        if detached.is_some() {
            warnings.extend(other_header_in_front(&**header)?);
        }
        // The volume discards the kernel's parameters, because they contain keys.
        let mapping = Mapping::of(&layout);
        let volume = Volume::new(Arc::clone(header.data()), layout);
        let (stored, header) = (disk.len(), detached.clone());
        Ok(OpenVolume { volume, facts, stored, warnings, trials, took, recognised, mapping, header })
    }
}

/// A warning if a detached header is used although another header, with other keys, is in front of the data.
fn other_header_in_front(own: &dyn Header) -> Result<Option<Warning>> {
    let in_front = match formats::open(own.data(), None) {
        Ok((_, header)) => header.key_marks(),
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => return Err(e),
        Err(_) => Vec::new(),
    };
    let own = own.key_marks();
    Ok((!in_front.is_empty() && !in_front.iter().any(|mark| own.contains(mark))).then(|| {
        "The header in front of the data has a different volume key than this detached header. If the detached \
         header is outdated, reads return noise and writes destroy data. To use the header in front, omit the \
         detached header."
            .into()
    }))
}

/// An opened volume or folder.
pub enum Opened {
    /// A volume: its plaintext bytes.
    Bytes(Box<OpenVolume>),
    /// An encrypted folder.
    Files(Box<OpenFolder>),
    /// An unencrypted store, unchanged: see [`Opening::or_clear`].
    Clear(Arc<dyn Store>),
}

impl Opened {
    /// The volume, for callers that can only use bytes.
    ///
    /// # Errors
    /// `Unsupported` for a folder, which has only files.
    pub fn bytes(self) -> Result<OpenVolume> {
        match self {
            Self::Bytes(volume) => Ok(*volume),
            Self::Files(folder) => {
                let what = format!(
                    "reading an encrypted folder as one volume: {} encrypts file by file",
                    folder.format.name()
                );
                Err(Error::unsupported(what).advise(Advice::UseFiles))
            }
            Self::Clear(_) => Err(ErrorKind::NotThisFormat("it is not encrypted".into()).into()),
        }
    }

    /// The encrypted folder.
    ///
    /// # Errors
    /// `Misuse` if it is not an encrypted folder.
    pub fn files(self) -> Result<OpenFolder> {
        match self {
            Self::Files(folder) => Ok(*folder),
            Self::Bytes(_) | Self::Clear(_) => Err(no_folder()),
        }
    }
}

/// An open folder.
#[non_exhaustive]
pub struct OpenFolder {
    /// Its files in plaintext.
    pub tree: Stacked,
    /// Its files as stored.
    pub lower: Arc<dyn Tree>,
    /// Its format.
    pub format: &'static dyn FileFormat,
    /// Its path in the tree where it was found: see [`Opening::at`].
    pub path: OsString,
    /// The files beside it that belong to it.
    pub beside: Beside,
}

/// An open volume.
#[non_exhaustive]
pub struct OpenVolume {
    /// Its plaintext.
    pub volume: Volume,
    /// What is known about it.
    pub facts: Facts,
    /// Size of the file or device, in bytes.
    pub stored: u64,
    /// Warnings, in whole sentences.
    pub warnings: Vec<Warning>,
    /// The number of header decryptions that were tried.
    pub trials: u64,
    /// How long the trials took.
    pub took: Duration,
    /// Whether anything proves the credential right: see [`Unlocked::recognised`].
    pub recognised: bool,
    /// Parameters for device-mapper, keys included, if [`Unlock::for_kernel`] requests them and it supports the volume.
    pub mapping: Option<Mapping>,
    /// The store of a detached header. It cannot be changed while this is held.
    pub header: Option<Arc<dyn Store>>,
}

impl OpenVolume {
    /// A volume whose keys are in another process: there are no trials and no warnings here. `stored` is in bytes.
    pub fn new(volume: Volume, facts: Facts, stored: u64) -> Self {
        let (warnings, trials, took) = (Vec::new(), 0, Duration::ZERO);
        Self { volume, facts, stored, warnings, trials, took, recognised: true, mapping: None, header: None }
    }
}

/// A header, to save, change or repair it.
pub struct HeaderFound {
    /// The file or device itself, with its lock, if a path was given.
    pub file: Option<Arc<FileStore>>,
    /// The store of the header.
    pub store: Arc<dyn Store>,
    /// Its format.
    pub format: &'static dyn Format,
    /// The header, locked.
    pub header: Box<dyn Header>,
    detached: bool,
}

impl HeaderFound {
    /// Like [`Locked::check`].
    ///
    /// # Errors
    /// `Misuse`, `CredentialKind`.
    pub fn check(&self, with: &Unlock<'_>) -> Result<()> {
        takes::check_any(&self.header.takes(), with)
    }

    /// Reads the header again, after a change.
    ///
    /// # Errors
    /// Those of [`Format::open`].
    pub fn again(&self) -> Result<Box<dyn Header>> {
        match self.detached {
            true => self.format.open_detached(&self.store, self.header.data()),
            false => self.format.open(&self.store),
        }
    }
}
