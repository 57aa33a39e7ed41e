//! ext2, ext3 and ext4, for reading, through the crate `ext4-view`.
//!
//! The crate reads an unreplayed journal as if it were replayed, without writing. Its types cannot move to another thread, so a
//! dedicated thread does all the reading. It ends with the tree.

pub(super) mod free_tail;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ext4_view::{Ext4, Ext4Error, Ext4Read, File, FileType, Metadata, Path};

use super::guard::guarded;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::trees::{Attributes, Entry, LeftOut, Listing, Node, NodeKind, Space, Tree, damaged, is_name};

/// The offset of the superblock, and the number of bytes examined.
const SUPERBLOCK: u64 = 1024;
const JOURNAL_TO_REPLAY: u32 = 0x4;

/// Files kept open, so that sequential reads are fast.
const OPEN_FILES: usize = 64;

/// The number of nodes whose attributes are cached: about 2 MB.
const KNOWN: usize = 16 << 10;

/// The longest symlink target, in bytes (`PATH_MAX` of linux/limits.h).
const LINK_MAX: u64 = 4096;

/// The crate seeks block by block, and takes a second or two for a hole of this many bytes.
const FAR: u64 = 1 << 28;

/// A store's ext2, ext3 or ext4 file system. A node is a path.
pub struct Ext {
    thread: Thread,
    paths: Mutex<Paths>,
    /// A cache of attributes, valid forever because the file system is read-only. A request to the thread costs more than the rest
    /// of a lookup.
    known: Mutex<HashMap<Node, Attributes>>,
    space: Space,
    warnings: Vec<String>,
}

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The thread and its jobs. Dropping this ends the thread and releases the store, so that a remote store is disconnected before the
/// process ends.
struct Thread {
    /// `None` when no more jobs follow.
    jobs: Mutex<Option<Sender<Job>>>,
    handle: Option<JoinHandle<()>>,
}

/// Paths by node and nodes by path. The root is node 0.
struct Paths {
    paths: Vec<Arc<Vec<u8>>>,
    nodes: HashMap<Arc<Vec<u8>>, Node>,
}

/// The state of the thread.
struct Worker {
    ext: Ext4,
    /// Open files.
    files: HashMap<Node, Open>,
    /// Size of the store, in bytes.
    len: u64,
    /// Size of a block, in bytes.
    unit: u64,
}

struct Open {
    file: File,
    /// The offset of the next read, in bytes.
    at: u64,
    /// The size of the file, in bytes.
    len: u64,
}

impl Ext {
    /// Opens the file system.
    ///
    /// # Errors
    /// `Malformed`, `Unsupported`, `Io`.
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        let (space, replay) = superblock(&*store)?;
        let (jobs, work) = channel();
        let (opened, has_opened) = channel();
        let thread = std::thread::Builder::new().name("ext".into());
        let handle = thread.spawn(move || serve(store, space.unit.into(), &opened, &work))?;
        let thread = Thread { jobs: Mutex::new(Some(jobs)), handle: Some(handle) };
        has_opened.recv().map_err(|_| gone())??;
        let warning = "the journal was not replayed: its changes are shown, but the file system is read-only";
        let root = Arc::new(b"/".to_vec());
        let paths = Paths { nodes: HashMap::from([(root.clone(), 0)]), paths: vec![root] };
        let warnings = replay.then(|| warning.to_owned()).into_iter().collect();
        Ok(Self { thread, paths: Mutex::new(paths), known: Mutex::default(), space, warnings })
    }

    /// Runs a job on the thread.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (answer, answered) = channel();
        let job: Job = Box::new(move |worker| drop(answer.send(guarded(|| work(worker)))));
        self.thread.give(job).ok_or_else(gone)?;
        answered.recv().map_err(|_| gone())?
    }

    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Node, Attributes>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, node: Node) -> io::Result<Arc<Vec<u8>>> {
        self.paths().paths.get(node as usize).cloned().ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// The path of a folder; links are not followed.
    fn folder(&self, node: Node) -> io::Result<Arc<Vec<u8>>> {
        match self.attributes(node)?.kind {
            NodeKind::Folder => self.path(node),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }
}

impl Thread {
    /// Gives a job to the thread. `None` if the thread has ended.
    fn give(&self, job: Job) -> Option<()> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.send(job).ok()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        *self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        // A panic of the thread was already reported to the caller whose job it ran.
        let _ = self.handle.take().map(JoinHandle::join);
    }
}

impl Tree for Ext {
    fn root(&self) -> Node {
        0
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        let path = Arc::new(below(&self.folder(folder)?, name.as_bytes()));
        let asked = path.clone();
        self.ask(move |worker| worker.metadata(&asked).map(drop))?;
        Ok(self.paths().node(path))
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        if let Some(known) = self.known().get(&node) {
            return Ok(*known);
        }
        let path = self.path(node)?;
        let asked = self.ask(move |worker| {
            let metadata = worker.metadata(&path)?;
            let kind = kind(metadata.file_type());
            let size = if matches!(kind, NodeKind::File | NodeKind::Link) { metadata.len() } else { 0 };
            Ok(Attributes {
                mode: Some(metadata.mode() & 0o7777),
                owner: Some((metadata.uid(), metadata.gid())),
                modified: time(metadata.modified()),
                accessed: time(metadata.accessed()),
                created: metadata.created().and_then(time),
                ..Attributes::new(kind, size, node)
            })
        })?;
        let mut known = self.known();
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(node, asked);
        Ok(asked)
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        Ok(self.list_all(folder)?.entries)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        let path = self.folder(folder)?;
        let asked = path.clone();
        let listed = self.ask(move |worker| {
            if worker.metadata(&asked)?.len() > worker.len {
                return Err(damaged("inode", 0, "a folder is larger than the volume"));
            }
            let mut list = Vec::new();
            for entry in worker.ext.read_dir(parse(&asked)?).map_err(io_error)? {
                let entry = entry.map_err(io_error)?;
                let name = entry.file_name();
                let name: &[u8] = name.as_ref();
                if name != b"." && name != b".." {
                    list.push((OsString::from_vec(name.to_vec()), kind(entry.file_type().map_err(io_error)?)));
                }
            }
            Ok(list)
        })?;
        let mut paths = self.paths();
        let mut listing = Listing::default();
        for (name, kind) in listed {
            if is_name(&name) {
                let node = paths.node(Arc::new(below(&path, name.as_bytes())));
                listing.entries.push(Entry { name, node, kind });
            } else {
                let why = damaged("name", 0, "no file can have this name").into();
                listing.left_out.push(LeftOut { name, kind, why, listed: false });
            }
        }
        Ok(listing)
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let path = self.path(file)?;
        let len = out.len();
        let bytes = self.ask(move |worker| worker.read(file, &path, offset, len))?;
        out[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        let path = self.path(link)?;
        self.ask(move |worker| {
            let metadata = worker.metadata(&path)?;
            // The crate allocates as much memory as the size says.
            if metadata.file_type().is_symlink() && metadata.len() > LINK_MAX {
                return Err(damaged("inode", 0, "the target of a symbolic link is too long"));
            }
            let target = worker.ext.read_link(parse(&path)?).map_err(io_error)?;
            Ok(OsString::from_vec(AsRef::<[u8]>::as_ref(&target).to_vec()))
        })
    }

    fn space(&self) -> io::Result<Space> {
        Ok(self.space)
    }
}

impl Paths {
    fn node(&mut self, path: Arc<Vec<u8>>) -> Node {
        if let Some(node) = self.nodes.get(&path) {
            return *node;
        }
        let node = self.paths.len() as Node;
        self.paths.push(path.clone());
        self.nodes.insert(path, node);
        node
    }
}

impl Worker {
    fn metadata(&self, path: &[u8]) -> io::Result<Metadata> {
        self.ext.symlink_metadata(parse(path)?).map_err(io_error)
    }

    fn read(&mut self, node: Node, path: &[u8], offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut open = match self.files.remove(&node) {
            Some(open) => open,
            None => self.open(path)?,
        };
        let len = open.len.saturating_sub(offset).min(len as u64) as usize;
        if len > 0 && open.at != offset {
            self.within_reach(offset)?;
            open.file.seek_to(offset).map_err(io_error)?;
        }
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match open.file.read_bytes(&mut bytes[done..]).map_err(told_of_reading)? {
                0 => return Err(damaged("inode", 0, "a file is shorter than its recorded size")),
                read => done += read,
            }
        }
        if self.files.len() >= OPEN_FILES {
            self.files.clear();
        }
        if len > 0 {
            open.at = offset + len as u64;
        }
        self.files.insert(node, open);
        Ok(bytes)
    }

    fn open(&self, path: &[u8]) -> io::Result<Open> {
        let metadata = self.metadata(path)?;
        match kind(metadata.file_type()) {
            NodeKind::File => {}
            NodeKind::Folder => return Err(ErrorKind::IsADirectory.into()),
            NodeKind::Link | NodeKind::Special => return Err(ErrorKind::InvalidInput.into()),
        }
        Ok(Open { file: self.ext.open(parse(path)?).map_err(io_error)?, at: 0, len: metadata.len() })
    }

    /// Fails if seeking to `offset` would take very long, because all other requests would have to wait.
    fn within_reach(&self, offset: u64) -> io::Result<()> {
        if offset / self.unit > (self.len / self.unit).max(FAR) {
            let what = "reading this far into a file whose holes exceed the volume";
            return Err(Error::unsupported(what).into());
        }
        Ok(())
    }
}

/// The thread's main function: opens the file system, reports the result, and runs jobs until the tree is dropped.
fn serve(store: Arc<dyn Store>, unit: u64, opened: &Sender<io::Result<()>>, work: &Receiver<Job>) {
    let len = store.len();
    let ext = match guarded(|| Ext4::load(Box::new(Source(store))).map_err(io_error)) {
        Ok(ext) => ext,
        Err(e) => return drop(opened.send(Err(e))),
    };
    let mut worker = Worker { ext, files: HashMap::new(), len, unit };
    if opened.send(Ok(())).is_ok() {
        work.iter().for_each(|job| job(&mut worker));
    }
}

struct Source(Arc<dyn Store>);

impl Ext4Read for Source {
    fn read(
        &mut self,
        start_byte: u64,
        dst: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.read_at(start_byte, dst)?)
    }
}

/// The sizes, and whether a journal must be replayed (section "The Super Block" of the kernel's ext4 documentation).
fn superblock(store: &dyn Store) -> io::Result<(Space, bool)> {
    let mut bytes = [0; 1024];
    store.read_at(SUPERBLOCK, &mut bytes)?;
    let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let log = u32_at(0x18);
    if log > 6 {
        return Err(damaged("block size", SUPERBLOCK + 0x18, format!("2 to the power of {}", 10 + u64::from(log))));
    }
    let unit = 1024 << log;
    let incompatible = u32_at(0x60);
    const WIDE: u32 = 0x80;
    let high = |at| if incompatible & WIDE != 0 { u64::from(u32_at(at)) << 32 } else { 0 };
    let of = |blocks: u64| blocks.saturating_mul(u64::from(unit));
    let total = of(high(0x150) | u64::from(u32_at(0x4)));
    let free = of(high(0x158) | u64::from(u32_at(0xc)));
    // The number of groups as the kernel computes it. The crate allocates memory for every group.
    if total > store.len() {
        return Err(damaged("number of blocks", SUPERBLOCK + 0x4, format!("{total} bytes do not fit")));
    }
    Ok((Space::new(total, free, unit), incompatible & JOURNAL_TO_REPLAY != 0))
}

fn parse(path: &[u8]) -> io::Result<Path<'_>> {
    Path::try_from(path).map_err(|_| ErrorKind::NotFound.into())
}

fn below(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.ends_with(b"/") { b"" } else { b"/" };
    [folder, slash, name].concat()
}

fn kind(kind: FileType) -> NodeKind {
    if kind.is_dir() {
        NodeKind::Folder
    } else if kind.is_regular_file() {
        NodeKind::File
    } else if kind.is_symlink() {
        NodeKind::Link
    } else {
        NodeKind::Special
    }
}

fn time(time: ext4_view::Timestamp) -> Option<SystemTime> {
    let nanoseconds = Duration::from_nanos(time.nanoseconds().into());
    let seconds = Duration::from_secs(time.seconds().unsigned_abs());
    let whole = if time.seconds() < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole?.checked_add(nanoseconds)
}

/// ext2 and ext3 store a large hole by omitting a whole block of block numbers. The crate then reads block 0 instead, and reports
/// corruption.
fn told_of_reading(error: Ext4Error) -> io::Error {
    match &error {
        Ext4Error::Corrupt(what) if what.to_string().contains("from block 0 (originally 0)") => {
            Error::unsupported("reading a file with a large hole and no extents").into()
        }
        _ => io_error(error),
    }
}

/// Converts the crate's error.
fn io_error(error: Ext4Error) -> io::Error {
    match error {
        Ext4Error::Io(e) => match e.downcast() {
            Ok(e) => *e,
            Err(e) => io::Error::other(e),
        },
        Ext4Error::Encrypted => Error::unsupported("reading a file encrypted by fscrypt").into(),
        Ext4Error::Incompatible(what) => Error::unsupported(format!("this ext file system: {what}")).into(),
        Ext4Error::Corrupt(what) => damaged("ext", 0, what.to_string()),
        other => other.into(),
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that reads the file system has stopped")
}
