//! ext2, ext3 and ext4, for reading, through the crate `ext4-view`.
//!
//! The crate reads an unreplayed journal as if it were replayed, without writing. Its types cannot leave the thread
//! that made them, so a dedicated thread does all the reading; it ends with the tree.

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

/// Offset of the superblock, and how much of it is examined.
const SUPERBLOCK: u64 = 1024;
const JOURNAL_TO_REPLAY: u32 = 0x4;

/// Files kept open, so that sequential reads are fast.
const OPEN_FILES: usize = 64;

/// Nodes whose attributes are kept: some 2 MB.
const KNOWN: usize = 16 << 10;

/// The longest symlink target, in bytes (`PATH_MAX` of linux/limits.h).
const LINK_MAX: u64 = 4096;

/// The crate seeks block by block; it gets past this many bytes of hole in a second or two.
const FAR: u64 = 1 << 28;

/// A store's ext2, ext3 or ext4 file system. A node is a path.
pub struct Ext {
    thread: Thread,
    paths: Mutex<Paths>,
    /// Attributes that were asked for: handing over to the thread takes longer than all else, and nothing changes.
    known: Mutex<HashMap<Node, Attributes>>,
    space: Space,
    warnings: Vec<String>,
}

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The thread and its jobs. It has ended, and let go of the store, when this is dropped: whoever is at the other end of a connection
/// hears so before the process ends.
struct Thread {
    /// Nothing once there are no more.
    jobs: Mutex<Option<Sender<Job>>>,
    handle: Option<JoinHandle<()>>,
}

/// Paths by node and nodes by path. The root is node 0.
struct Paths {
    paths: Vec<Arc<Vec<u8>>>,
    nodes: HashMap<Arc<Vec<u8>>, Node>,
}

/// What the thread works with.
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
    /// Where the next read begins, in bytes.
    at: u64,
    /// Size of the file, in bytes.
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
    /// Nothing if it has ended.
    fn give(&self, job: Job) -> Option<()> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.send(job).ok()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        *self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        // A panic in it is no news: whoever had asked for something heard of it.
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
                0 => return Err(damaged("inode", 0, "a file ends before its size")),
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

    /// Fails if seeking to `offset` would take very long, as every other request would have to wait.
    fn within_reach(&self, offset: u64) -> io::Result<()> {
        if offset / self.unit > (self.len / self.unit).max(FAR) {
            let what = "reading this far into a file whose holes exceed the volume";
            return Err(Error::unsupported(what).into());
        }
        Ok(())
    }
}

/// The thread's work: opens the file system, reports the result, and takes jobs until the tree is gone.
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

/// Sizes, and whether there is a journal to replay (section "The Super Block" of the kernel's ext4 documentation).
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
    // As the kernel computes it. The crate allocates memory for every group there would be.
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

/// Where a whole block of block numbers is missing, as ext2 and ext3 store a large hole, the crate reads block 0
/// instead, and notices.
fn told_of_reading(error: Ext4Error) -> io::Error {
    match &error {
        Ext4Error::Corrupt(what) if what.to_string().contains("from block 0 (originally 0)") => {
            Error::unsupported("reading a file with a large hole and no extents").into()
        }
        _ => io_error(error),
    }
}

/// The crate's error as ours.
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
