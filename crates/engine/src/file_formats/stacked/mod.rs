//! The plaintext of a tree of encrypted files.

mod names;

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, SystemTime};

use claviger_crypto::pool::Pool;
use rustix::io::Errno;

use names::Names;
pub(crate) use names::Shown;

use super::{FileKeys, FileKind, FileLayout, NotShown, Salvage, StoredFile};
use crate::error::{Error, Result};
use crate::key_process::folder::{FolderKeys, KeylessFolder};
use crate::store::{Counters, Store, Traffic};
use crate::trees::{
    Attributes, Entry, Listing, NewNode, Node, NodeKind, NodeStore, ReadOnly, Renaming, Setting, Space, Special, Tree,
    Use, damaged, shrink,
};
use crate::volume::{Layout, SealedBlocks, Volume};

/// Bytes of zeros encrypted at a time when a file grows without being written.
const PIECE: u64 = 1 << 20;

/// From this many bytes of zeros on, free space is checked first.
const LARGE_GAP: u64 = 64 << 20;

/// The most files whose headers stay loaded, however many are open: their keys fit into a user's limit of locked memory.
const MOST_LOADED: usize = 1024;

/// The most files in each of the two generations of remembered sizes.
const MOST_SIZES: usize = 1 << 15;

/// File systems store change times to within two seconds. A file that changed longer ago gets another time with its next change.
const RESTED: Duration = Duration::from_secs(3);

/// Both uses: a partial write reads first, and the header is always read.
const BOTH: Use = Use { read: true, write: true };

/// A tree over a tree: contents through volumes, names through keys, everything else unchanged. Nodes are those of the tree below.
///
/// A program killed at any moment leaves a file with its old or its new size. New bytes are written before the header counts them,
/// and bytes are removed after the header stops counting them. After a power cut a header may count unsynced bytes that never
/// reached the disk. The file is then reported as cut short, and all synced data are there. Partially written sectors are as safe
/// as in any volume.
pub struct Stacked {
    lower: Arc<dyn Tree>,
    keys: Box<dyn FileKeys>,
    pool: Option<Arc<Pool>>,
    /// The files in use, or open.
    used: Mutex<HashMap<Node, UsedFile>>,
    /// The files in use whose headers are loaded, the latest last.
    loaded: Mutex<VecDeque<Weak<RwLock<Option<Contents>>>>>,
    names: Names,
    sizes: Mutex<Sizes>,
    /// Locked for reading while a file is created: it has no header yet.
    creating: RwLock<()>,
    counters: Counters,
}

/// File sizes from headers, so that listing a folder again does not open every file again.
#[derive(Default)]
struct Sizes {
    /// By the file's number in the tree below.
    latest: HashMap<u64, KnownSize>,
    /// The previous generation.
    earlier: HashMap<u64, KnownSize>,
}

#[derive(Clone, Copy)]
struct KnownSize {
    /// The change time and stored size at that moment. The entry is valid while both stay the same.
    version: (SystemTime, u64),
    size: Option<u64>,
}

impl Sizes {
    fn get(&self, number: u64, version: (SystemTime, u64)) -> Option<Option<u64>> {
        let known = self.latest.get(&number).or_else(|| self.earlier.get(&number))?;
        (known.version == version).then_some(known.size)
    }

    fn learn(&mut self, number: u64, known: KnownSize) {
        if self.latest.len() == MOST_SIZES {
            self.earlier = std::mem::take(&mut self.latest);
        }
        self.latest.insert(number, known);
    }
}

#[derive(Default)]
struct UsedFile {
    users: u64,
    contents: Shared,
}

/// Locked for reading by reads and by writes within the size; locked for writing to load the header and to change the size.
type Shared = Arc<RwLock<Option<Contents>>>;

enum Contents {
    Clear,
    Unfinished,
    Encrypted(Box<Encrypted>),
    Sealed(Box<SealedBlocks>),
}

struct Encrypted {
    volume: Volume,
    size: u64,
    /// Bytes written together.
    sector: u64,
    /// Whether all of its ciphertext is stored.
    whole: bool,
}

impl Encrypted {
    fn layout(&self) -> Arc<Layout> {
        self.volume.layout()
    }

    /// The stored size of `size` bytes of plaintext.
    fn stored_end(&self, size: u64) -> u64 {
        FileLayout::stored_end(&self.layout(), size)
    }

    /// Writes `data` from `at` on, with nothing valid after it: the rest of the last sector becomes zero. What precedes `at` in
    /// the first sector stays. Whole sectors are encrypted in place.
    fn append(&self, at: u64, data: &mut [u8]) -> io::Result<()> {
        let whole = if at.is_multiple_of(self.sector) { data.len() - data.len() % self.sector as usize } else { 0 };
        let (whole, rest) = data.split_at_mut(whole);
        self.volume.write_clobbering(at, whole)?;
        let at = at + whole.len() as u64;
        let lead = at % self.sector;
        let len = (lead + rest.len() as u64).next_multiple_of(self.sector);
        let mut buffer = vec![0; len as usize];
        self.volume.read_at(at - lead, &mut buffer[..lead as usize])?;
        buffer[lead as usize..][..rest.len()].copy_from_slice(rest);
        self.volume.write_clobbering(at - lead, &mut buffer)
    }
}

/// Ends the use of a file on drop.
struct Using<'a> {
    of: &'a Stacked,
    node: Node,
    contents: Shared,
}

impl Using<'_> {
    fn read(&self) -> RwLockReadGuard<'_, Option<Contents>> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Contents>> {
        self.contents.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        self.of.end_use(self.node);
    }
}

impl Stacked {
    /// The tree `lower`, decrypted with `keys`.
    pub fn new(lower: Arc<dyn Tree>, keys: Box<dyn FileKeys>) -> Self {
        let lower = keys.arranged(lower);
        let lower = if keys.read_only() { Arc::new(ReadOnly(lower)) } else { lower };
        Self {
            lower,
            keys,
            pool: None,
            used: Mutex::default(),
            loaded: Mutex::default(),
            names: Names::default(),
            sizes: Mutex::default(),
            creating: RwLock::default(),
            counters: Counters::default(),
        }
    }

    /// Splits large reads and writes over the threads of `pool`.
    pub fn with_pool(mut self, pool: Arc<Pool>) -> Self {
        self.pool = Some(pool);
        self
    }

    /// See [`FileKeys::not_shown`].
    pub(super) fn not_shown(&self) -> io::Result<Vec<NotShown>> {
        self.keys.not_shown()
    }

    /// Whether names are encrypted as well.
    pub fn encrypts_names(&self) -> bool {
        self.keys.encrypts_names()
    }

    /// Whether reading a file verifies it, if the format [can](super::FileFormat::verifies).
    pub fn verifies(&self) -> bool {
        self.keys.verifies()
    }

    /// The tree that is decrypted: not that of the folder, if the format [arranges](FileKeys::arranged) it in another way.
    pub(super) fn lower(&self) -> &(dyn Tree + 'static) {
        &*self.lower
    }

    /// Whether data in the folder proved the keys right.
    pub fn proven(&self) -> bool {
        self.keys.proven()
    }

    /// Bytes of contents transferred so far, and failed flushes. A failed write is reported to its program instead.
    pub fn traffic(&self) -> Traffic {
        self.counters.traffic()
    }

    /// The error of the first failed flush.
    pub fn failure(&self) -> Option<&str> {
        self.counters.failure()
    }

    /// The signatures of the keys: see [`FileKeys::signatures`].
    pub fn signatures(&self) -> Vec<String> {
        self.keys.signatures()
    }

    /// Splits off the keys, for the key process: see [`FileKeys::split_keys`].
    ///
    /// # Errors
    /// `Unsupported` if the format does not support a key process.
    pub fn split_keys(self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        self.keys.split_keys()
    }

    /// Checks that the keys open this file, by its header alone.
    ///
    /// # Errors
    /// Those of [`FileKeys::layout`].
    pub fn opens(&self, file: Node) -> io::Result<()> {
        self.keys.layout(self.stored(file)).map(drop)
    }

    /// The readable part of a file that was cut short. `None` for a file that is not encrypted, or whose parts can be read anyway.
    ///
    /// # Errors
    /// Those of [`FileKeys::layout`].
    pub fn salvage(&self, file: Node) -> io::Result<Option<Salvage>> {
        match self.keys.layout(self.stored(file))? {
            FileKind::Encrypted(layout) => Salvage::of(&self.lower, file, layout).map(Some),
            // Blocks of sealed files can be read whatever became of the others.
            FileKind::Clear | FileKind::Sealed(_) | FileKind::Unfinished => Ok(None),
        }
    }

    fn stored(&self, file: Node) -> StoredFile<'_> {
        StoredFile { tree: &*self.lower, file, contents: file }
    }

    fn visible(&self, attribute: &OsStr) -> io::Result<()> {
        match self.keys.hides(attribute) {
            true => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "this attribute is reserved for the \
                 encryption",
            )),
            false => Ok(()),
        }
    }

    // Files in use

    fn used(&self) -> MutexGuard<'_, HashMap<Node, UsedFile>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_use(&self, node: Node) -> Shared {
        let mut used = self.used();
        let file = used.entry(node).or_default();
        file.users += 1;
        file.contents.clone()
    }

    fn end_use(&self, node: Node) {
        let mut used = self.used();
        if let Some(file) = used.get_mut(&node) {
            file.users -= 1;
            if file.users == 0 {
                used.remove(&node);
                shrink(&mut used);
            }
        }
    }

    fn using(&self, node: Node) -> Using<'_> {
        Using { of: self, node, contents: self.begin_use(node) }
    }

    // Contents of files

    fn contents(&self, node: Node, found: FileKind) -> io::Result<Contents> {
        let layout = match found {
            FileKind::Clear => return Ok(Contents::Clear),
            FileKind::Unfinished => return Ok(Contents::Unfinished),
            FileKind::Sealed(layout) => {
                let store = NodeStore::new(self.lower.clone(), node);
                let stored = self.lower.attributes(node)?.size;
                let blocks = SealedBlocks::new(Arc::new(store), layout, stored).with_pool(self.pool.clone());
                return Ok(Contents::Sealed(Box::new(blocks)));
            }
            FileKind::Encrypted(layout) => layout,
        };
        let stored = self.lower.attributes(node)?.size;
        let size = layout.size();
        let layout = layout.into_layout();
        let whole = FileLayout::stored_end(&layout, size) <= stored;
        let sector = layout.segments().iter().map(|s| s.payload.sector_size()).max().unwrap_or(1);
        let mut volume = Volume::of_file(Arc::new(NodeStore::new(self.lower.clone(), node)), layout);
        if let Some(pool) = &self.pool {
            volume = volume.with_pool(pool.clone());
        }
        Ok(Contents::Encrypted(Box::new(Encrypted { volume, size, sector, whole })))
    }

    fn load(&self, node: Node) -> io::Result<Contents> {
        self.contents(node, self.keys.layout(self.stored(node))?)
    }

    /// Records that a file's header was loaded. If there are too many, unloads the one loaded first; it is loaded again on its next
    /// use.
    fn loaded(&self, file: &Shared) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.push_back(Arc::downgrade(file));
        // Two per new file, so that files in use, which stay, do not add up.
        for _ in 0..loaded.len().saturating_sub(MOST_LOADED).min(2) {
            let Some(first) = loaded.pop_front() else { break };
            let Some(file) = first.upgrade() else { continue };
            match file.try_write() {
                Ok(mut contents) => *contents = None,
                Err(_) => loaded.push_back(first),
            }
        }
    }

    /// Calls `each` with the contents of the file.
    fn with<T>(&self, node: Node, each: impl FnOnce(&Contents) -> io::Result<T>) -> io::Result<T> {
        let file = self.using(node);
        loop {
            if let Some(contents) = &*file.read() {
                return each(contents);
            }
            let mut contents = file.write();
            if contents.is_some() {
                continue;
            }
            let loaded = self.load(node)?;
            if matches!(loaded, Contents::Unfinished) && self.keys.empty_needs_header() {
                // The thread that creates the file needs the lock.
                drop(contents);
                self.must_get_header(node)?;
                continue;
            }
            *contents = Some(loaded);
            self.loaded(&file.contents);
        }
    }

    /// Fails for a file without a header, unless somebody is creating it right now.
    fn must_get_header(&self, node: Node) -> io::Result<()> {
        drop(self.creating.write().unwrap_or_else(PoisonError::into_inner));
        match self.keys.layout(self.stored(node))? {
            FileKind::Unfinished => Err(damaged("header", 0, "the file is empty, even without its header")),
            FileKind::Clear | FileKind::Encrypted(_) | FileKind::Sealed(_) => Ok(()),
        }
    }

    /// Fails for a damaged file that looks empty. A program would not read it, and so not notice.
    fn check_empty(&self, node: Node) -> io::Result<()> {
        match self.keys.empty_needs_header() && self.lower.attributes(node)?.size == 0 {
            true => self.must_get_header(node),
            false => Ok(()),
        }
    }

    /// Calls `each` with exclusive access to the contents, to change the size. Begins an unfinished file first.
    fn exclusively<T>(&self, node: Node, each: impl FnOnce(&mut Contents) -> io::Result<T>) -> io::Result<T> {
        let file = self.using(node);
        let mut contents = file.write();
        let loaded = match contents.take() {
            None => self.load(node).inspect(|_| self.loaded(&file.contents))?,
            Some(contents) => contents,
        };
        let begun = match loaded {
            Contents::Unfinished => self.contents(node, self.keys.begin(self.stored(node))?)?,
            other => other,
        };
        let done = each(contents.insert(begun));
        // What could not be undone is stored. The file's size says from now on how much that is.
        if done.is_err() && matches!(*contents, Some(Contents::Sealed(_))) {
            *contents = None;
        }
        done
    }

    /// Whether the file has no header, and will not get one before its first byte.
    fn is_empty_without_header(&self, node: Node) -> io::Result<bool> {
        Ok(!self.keys.begins_at_once() && self.with(node, |contents| Ok(matches!(contents, Contents::Unfinished)))?)
    }

    /// Changes the size of a file of sealed blocks. One that becomes empty loses its header, too, unless new files have one.
    fn resize_sealed(&self, node: Node, contents: &mut Contents, len: u64) -> io::Result<()> {
        match contents {
            Contents::Sealed(_) if len == 0 && !self.keys.begins_at_once() => {
                self.lower.set_len(node, 0)?;
                *contents = Contents::Unfinished;
                Ok(())
            }
            Contents::Sealed(file) => file.set_size(len),
            Contents::Clear | Contents::Unfinished | Contents::Encrypted(_) => Ok(()),
        }
    }

    /// The plaintext size of a file, if it differs from the stored size. `stored` are its attributes in the tree below.
    fn size(&self, node: Node, stored: &Attributes) -> io::Result<Option<u64>> {
        let known = self.used().get(&node).map(|file| file.contents.clone());
        match known.as_ref().map(|known| known.read().unwrap_or_else(PoisonError::into_inner)).as_deref() {
            Some(Some(Contents::Clear)) => Ok(None),
            Some(Some(Contents::Unfinished)) => Ok(Some(0)),
            Some(Some(Contents::Encrypted(file))) => Ok(Some(file.size)),
            Some(Some(Contents::Sealed(file))) => Ok(Some(file.size())),
            Some(None) | None => self.size_by_header(node, stored),
        }
    }

    fn size_by_header(&self, node: Node, stored: &Attributes) -> io::Result<Option<u64>> {
        let rested = |time: &SystemTime| time.elapsed().is_ok_and(|elapsed| elapsed > RESTED);
        // Only folders of this machine have reliable change times.
        let Some(changed) = stored.changed.filter(rested).filter(|_| self.lower.changes_elsewhere()) else {
            return self.keys.size(self.stored(node));
        };
        let sizes = || self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let version = (changed, stored.size);
        if let Some(size) = sizes().get(stored.number, version) {
            return Ok(size);
        }
        let size = self.keys.size(self.stored(node))?;
        sizes().learn(stored.number, KnownSize { version, size });
        Ok(size)
    }

    /// Writes `data` at `offset`, which becomes the end of the file. The gap between the old end and `offset` is zero.
    fn grow(&self, node: Node, file: &mut Encrypted, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= file.layout().len());
        let end = end.ok_or(io::ErrorKind::FileTooLarge)?;
        if !file.whole {
            return Err(cut_short(file));
        }
        self.has_room(offset.saturating_sub(file.size))?;
        // Fail before writing anything that would have to be undone.
        if file.layout().segments().iter().any(|segment| !segment.writable) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut fill = || -> io::Result<()> {
            let (mut at, piece) = (file.size, PIECE.next_multiple_of(file.sector));
            while at < offset {
                let to = offset.min((at / piece + 1) * piece);
                file.append(at, &mut vec![0; (to - at) as usize])?;
                at = to;
            }
            if data.is_empty() { Ok(()) } else { file.append(offset, data) }
        };
        let grown = fill().and_then(|()| self.keys.set_size(self.stored(node), end));
        match &grown {
            Ok(()) => file.size = end,
            // Bytes after the end do not count; they only take space.
            Err(_) => drop(self.lower.set_len(node, file.stored_end(file.size))),
        }
        grown
    }

    /// Checks that `zeros` bytes fit. They are written one by one, because encrypted files have no holes.
    ///
    /// # Errors
    /// `FileTooLarge` for more than the file system could ever hold, `StorageFull` for more than it can hold now.
    fn has_room(&self, zeros: u64) -> io::Result<()> {
        if zeros < LARGE_GAP {
            return Ok(());
        }
        let space = self.lower.space()?;
        match space.total {
            0 => Ok(()),
            total if zeros > total => Err(io::ErrorKind::FileTooLarge.into()),
            _ if zeros > space.free => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn shrink(&self, node: Node, file: &mut Encrypted, len: u64) -> io::Result<()> {
        if self.lower.attributes(node)?.size < file.stored_end(len) {
            return Err(cut_short(file));
        }
        self.keys.set_size(self.stored(node), len)?;
        (file.size, file.whole) = (len, true);
        // Clear the rest of the last sector, in case another program extends the file.
        if !len.is_multiple_of(file.sector) {
            file.append(len, &mut [])?;
        }
        self.lower.set_len(node, file.stored_end(len))
    }

    /// Writes the header of a new file, if the format wants it at once. Unless root writes, that clears the set-user-ID and set-group-ID bits; they are restored.
    fn begin_new(&self, node: Node, new: &NewNode) -> io::Result<()> {
        const SET_IDS: u16 = 0o6000;
        if !self.keys.begins_at_once() {
            return Ok(());
        }
        let asked = new.mode.is_some_and(|mode| mode & SET_IDS != 0);
        let before = if asked { self.lower.attributes(node)?.mode } else { None };
        let file = self.using(node);
        let mut contents = file.write();
        // Another user may have written to it already.
        if matches!(*contents, None | Some(Contents::Unfinished)) {
            *contents = Some(self.contents(node, self.keys.begin(self.stored(node))?)?);
            self.loaded(&file.contents);
        }
        if let Some(mode) = before.filter(|mode| mode & SET_IDS != 0) {
            self.lower.set_mode(node, mode)?;
        }
        Ok(())
    }
}

/// Whether this process or the system has run out of descriptors or memory.
fn is_short_of_something(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

fn cut_short(file: &Encrypted) -> io::Error {
    damaged(
        "contents",
        file.stored_end(file.size),
        "the file was cut short: it stores fewer bytes than its header says",
    )
}

impl Tree for Stacked {
    fn root(&self) -> Node {
        self.lower.root()
    }

    fn writable(&self) -> bool {
        self.lower.writable()
    }

    fn folds_case(&self) -> bool {
        self.lower.folds_case()
    }

    fn changes_elsewhere(&self) -> bool {
        self.lower.changes_elsewhere()
    }

    fn warnings(&self) -> Vec<String> {
        self.lower.warnings().into_iter().chain(self.keys.warnings()).chain(self.name_warnings()).collect()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.find_stored(folder, name, |stored| self.lower.lookup(folder, stored))
    }

    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        let stored = |name: &OsStr| Entry { name: name.to_owned(), node: entry.node, kind: entry.kind };
        self.find_stored(folder, &entry.name, |name| self.lower.take(folder, &stored(name)))
    }

    fn forget(&self, node: Node, times: u64) {
        self.names.forget(node);
        self.lower.forget(node, times);
    }

    /// A file whose header cannot be read has its stored size: it can still be seen and removed.
    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        let mut of = self.lower.attributes(node)?;
        match of.kind {
            NodeKind::File => match self.size(node, &of) {
                Ok(size) => of.size = size.unwrap_or(of.size),
                // This says nothing about the file.
                Err(e) if is_short_of_something(&e) => return Err(e),
                Err(_) => {}
            },
            NodeKind::Link => of.size = self.link_target(node).map_or(of.size, |target| target.len() as u64),
            NodeKind::Folder | NodeKind::Special => {}
        }
        Ok(of)
    }

    /// Fails for a folder without readable names: an empty one would look as if nothing were wrong.
    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        if !self.names.shows_stored() {
            self.name_iv(folder)?;
        }
        Ok(self.list_all(folder)?.entries)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        self.listing(folder)
    }

    fn lost(&self) -> io::Result<Vec<(PathBuf, Error)>> {
        let lost = self.keys.not_shown()?.into_iter().filter(|not_shown| not_shown.lost);
        Ok(lost
            .map(|NotShown { path, what, .. }| (path, damaged("folder", 0, what.trim_end_matches('.')).into()))
            .collect())
    }

    fn read_at(&self, node: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let read = self.with(node, |contents| match contents {
            Contents::Clear => self.lower.read_at(node, offset, out),
            Contents::Unfinished => Ok(0),
            Contents::Encrypted(file) => {
                let len = file.size.saturating_sub(offset).min(out.len() as u64) as usize;
                file.volume.read_at(offset, &mut out[..len]).map_err(|e| match e.kind() {
                    io::ErrorKind::UnexpectedEof => cut_short(file),
                    _ => e,
                })?;
                Ok(len)
            }
            Contents::Sealed(file) => {
                let len = file.size().saturating_sub(offset).min(out.len() as u64) as usize;
                if len > 0 {
                    file.read_at(offset, &mut out[..len])?;
                }
                Ok(len)
            }
        })?;
        self.counters.read(read);
        Ok(read)
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        self.keys.plain_target(self.lower.link_target(link)?)
    }

    fn write_at(&self, node: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_in_place(node, offset, &mut data.to_vec())
    }

    fn write_in_place(&self, node: Node, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.counters.written(data.len());
        let end = offset.checked_add(data.len() as u64);
        let within = |size: u64| end.is_some_and(|end| end <= size);
        let overwrite = |file: &Encrypted, data: &mut [u8]| {
            // Missing data stay missing: a hole before this write would decrypt to garbage.
            let end = file.stored_end(offset + data.len() as u64);
            if !file.whole && end > self.lower.attributes(node)?.size {
                return Err(cut_short(file));
            }
            file.volume.write_clobbering(offset, data)
        };
        let written = self.with(node, |contents| match contents {
            Contents::Clear => self.lower.write_at(node, offset, data).map(|()| true),
            Contents::Encrypted(file) if within(file.size) => overwrite(file, data).map(|()| true),
            // A read must not see half of a block.
            Contents::Encrypted(_) | Contents::Sealed(_) | Contents::Unfinished => Ok(data.is_empty()),
        })?;
        if written {
            return Ok(());
        }
        self.exclusively(node, |contents| match contents {
            Contents::Encrypted(file) if within(file.size) => overwrite(file, data),
            Contents::Encrypted(file) => self.grow(node, file, offset, data),
            Contents::Sealed(file) => file.write_at(offset, data),
            Contents::Clear | Contents::Unfinished => self.lower.write_at(node, offset, data),
        })
    }

    fn append(&self, node: Node, data: &[u8]) -> io::Result<()> {
        self.counters.written(data.len());
        self.check_empty(node)?;
        if data.is_empty() && self.is_empty_without_header(node)? {
            return Ok(());
        }
        self.exclusively(node, |contents| match contents {
            Contents::Encrypted(file) => self.grow(node, file, file.size, &mut data.to_vec()),
            Contents::Sealed(file) => file.write_at(file.size(), &mut data.to_vec()),
            Contents::Clear | Contents::Unfinished => self.lower.append(node, data),
        })
    }

    fn set_len(&self, node: Node, len: u64) -> io::Result<()> {
        if len == 0 && self.is_empty_without_header(node)? {
            // An interrupted first write may have left a header.
            return self.lower.set_len(node, 0);
        }
        if len > 0 {
            self.check_empty(node)?;
        }
        self.exclusively(node, |contents| match contents {
            Contents::Sealed(_) => self.resize_sealed(node, contents, len),
            Contents::Encrypted(file) if len > file.size => self.grow(node, file, len, &mut []),
            Contents::Encrypted(file) if len < file.size => self.shrink(node, file, len),
            Contents::Encrypted(_) => Ok(()),
            Contents::Clear | Contents::Unfinished => self.lower.set_len(node, len),
        })
    }

    fn set_times(&self, node: Node, modified: Option<SystemTime>, accessed: Option<SystemTime>) -> io::Result<()> {
        self.lower.set_times(node, modified, accessed)
    }

    fn set_mode(&self, node: Node, mode: u16) -> io::Result<()> {
        self.lower.set_mode(node, mode)
    }

    fn set_owner(&self, node: Node, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        self.lower.set_owner(node, user, group)
    }

    fn create(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        let node = self.create_open(folder, name, new, BOTH)?;
        self.release(node).inspect_err(|_| self.forget(node, 1)).map(|()| node)
    }

    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, _usage: Use) -> io::Result<Node> {
        self.name_new(folder, name, new, |name| {
            let _creating = self.creating.read().unwrap_or_else(PoisonError::into_inner);
            let node = self.lower.create_open(folder, name, new, BOTH)?;
            self.begin_use(node);
            self.begin_new(node, new).inspect_err(|_| {
                // Best effort: report the original error, not a failed clean-up.
                let _ = self.release(node);
                self.forget(node, 1);
                let _ = self.lower.remove(folder, name);
            })?;
            Ok(node)
        })
    }

    fn make_folder(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.name_new(folder, name, new, |name| self.new_folder(folder, name, new))
    }

    fn make_link(&self, folder: Node, name: &OsStr, target: &OsStr, new: &NewNode) -> io::Result<Node> {
        let target = self.keys.stored_target(target)?;
        self.name_new(folder, name, new, |name| self.lower.make_link(folder, name, &target, new))
    }

    fn make_special(&self, folder: Node, name: &OsStr, special: Special, new: &NewNode) -> io::Result<Node> {
        self.name_new(folder, name, new, |name| self.lower.make_special(folder, name, special, new))
    }

    fn add_name(&self, node: Node, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.name_new(folder, name, &NewNode::default(), |name| self.lower.add_name(node, folder, name))
    }

    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to_name: &OsStr, how: Renaming) -> io::Result<()> {
        self.rename_stored((folder, name), (to_folder, to_name), how)
    }

    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        self.remove_stored(folder, name)
    }

    fn stream(&self, file: Node, name: &OsStr) -> io::Result<Node> {
        self.lower.stream(file, name)
    }

    fn streams(&self, file: Node) -> io::Result<Vec<OsString>> {
        self.lower.streams(file)
    }

    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        if self.keys.hides(name) {
            return Ok(None);
        }
        let stored = self.lower.extended(node, &self.keys.stored_attribute(name)?)?;
        stored.map(|value| self.keys.plain_value(name, value)).transpose()
    }

    fn list_extended(&self, node: Node) -> io::Result<Vec<OsString>> {
        let names = self.lower.list_extended(node)?.into_iter().filter(|name| !self.keys.hides(name));
        names.filter_map(|name| self.keys.plain_attribute(name).transpose()).collect()
    }

    fn set_extended(&self, node: Node, name: &OsStr, value: &[u8], how: Setting) -> io::Result<()> {
        self.visible(name)?;
        let value = self.keys.stored_value(name, value)?;
        self.lower.set_extended(node, &self.keys.stored_attribute(name)?, &value, how)
    }

    fn remove_extended(&self, node: Node, name: &OsStr) -> io::Result<()> {
        self.visible(name)?;
        self.lower.remove_extended(node, &self.keys.stored_attribute(name)?)
    }

    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        self.lower.open(file, Use { read: true, write: usage.write }).or_else(|e| match e.kind() {
            // A file in clear can still be written.
            io::ErrorKind::PermissionDenied if !usage.read => self.lower.open(file, usage),
            _ => Err(e),
        })?;
        if usage.read && !usage.write {
            self.check_empty(file).inspect_err(|_| drop(self.lower.release(file)))?;
        }
        self.begin_use(file);
        Ok(())
    }

    fn release(&self, file: Node) -> io::Result<()> {
        self.end_use(file);
        self.lower.release(file)
    }

    fn sync(&self, node: Node, contents_only: bool) -> io::Result<()> {
        self.sync_names()?;
        self.lower.sync(node, contents_only)
    }

    fn flush(&self) -> io::Result<()> {
        self.lower.flush().inspect_err(|e| self.counters.failed(e))
    }

    fn finish(&self) -> io::Result<()> {
        self.lower.finish().inspect_err(|e| self.counters.failed(e))
    }

    fn space(&self) -> io::Result<Space> {
        let of = self.lower.space()?;
        Ok(Space { longest_name: self.keys.longest_name(of.longest_name), ..of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_holds_until_the_file_changes_and_is_not_remembered_for_ever() {
        let (then, later) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_nanos(1));
        let mut sizes = Sizes::default();
        sizes.learn(7, KnownSize { version: (then, 12288), size: Some(5) });
        assert_eq!(sizes.get(7, (then, 12288)), Some(Some(5)));
        assert_eq!(
            (sizes.get(7, (later, 12288)), sizes.get(7, (then, 16384)), sizes.get(8, (then, 12288))),
            (None, None, None)
        );
        sizes.learn(7, KnownSize { version: (later, 12288), size: None });
        assert_eq!((sizes.get(7, (then, 12288)), sizes.get(7, (later, 12288))), (None, Some(None)));
        for number in 100..100 + 3 * MOST_SIZES as u64 {
            sizes.learn(number, KnownSize { version: (then, 0), size: None });
        }
        assert_eq!(sizes.get(7, (later, 12288)), None);
        assert!(sizes.latest.len() + sizes.earlier.len() <= 2 * MOST_SIZES);
    }
}
