//! A tree of names as a mounted folder, through the crate `fuser`.
//!
//! All of it belongs to one user, who alone may use it, besides root where [`Options::shared`] says so. Names are looked up
//! each time they are used: file systems that make no difference between `a` and `A` would otherwise show names that are gone.
//! What was written is made durable when a program asks for that, when it ends, and every few seconds.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use claviger_engine::trees::{self, Attributes, NewNode, Node, NodeKind, Renaming, Tree, Use};
use claviger_engine::{Error, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;
use rustix::io::Errno as SystemErrno;
use rustix::process::{getegid, geteuid};

use super::mount::{self, MountedFolder, Wish};
use super::{Control, Handle, Leaving, Options};

/// What was written is lost by a crash for no longer than this.
const EVERY: Duration = Duration::from_secs(5);

/// How long the kernel may keep what it was told about a file. Nobody but the kernel changes it.
const KEPT: Duration = Duration::from_secs(1);

/// Names are never kept.
const NOT_KEPT: Duration = Duration::ZERO;

/// The number that the kernel has for the root, and what is added to nodes for all others.
const ROOT: u64 = 1;
const OTHERS: u64 = 2;

/// Requests that are served at a time.
const THREADS: usize = 2;

/// A tree that is mounted. Dropping it unmounts.
pub struct Mounted {
    // Unmounted before the connection is closed.
    place: MountedFolder,
    session: Mutex<Option<Session<Shown>>>,
    tree: Arc<dyn Tree>,
    control: Arc<Control>,
    grace: Duration,
}

/// Mounts `tree` on the folder `dir` for the user of this process. Programs that use it wait until [`Mounted::run`] is called.
///
/// Nothing can be written if the tree cannot be, or if `read_only` says so.
///
/// # Errors
/// `Io` where that is not possible.
pub fn mount(tree: Arc<dyn Tree>, read_only: bool, dir: &Path, options: Options) -> Result<Mounted> {
    let read_only = read_only || !tree.writable();
    let uid = geteuid().as_raw();
    let wish = Wish { dir, source: &options.source, read_only, uid, shared: options.shared };
    let control = Control::new()?;
    let (place, fd) = mount::mount(&wish)?;
    // The crate reads from a descriptor that blocks.
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(io::Error::from)?;
    rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK).map_err(io::Error::from)?;
    let shown = Shown {
        tree: Arc::clone(&tree),
        uid,
        gid: getegid().as_raw(),
        read_only,
        listings: Mutex::default(),
        next: AtomicU64::new(1),
    };
    let acl = if options.shared { SessionACL::All } else { SessionACL::Owner };
    let mut config = Config::default();
    config.acl = acl;
    config.n_threads = Some(THREADS);
    let session = Session::from_fd(shown, fd, acl, config).map_err(|e| Error::from(e).at(dir))?;
    let session = Mutex::new(Some(session));
    Ok(Mounted { place, session, tree, control: Arc::new(control), grace: options.grace })
}

impl Mounted {
    /// What stops it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.control))
    }

    /// Serves until it is unmounted or [`Handle::stop`] is called. On return it is not mounted any more, and what was written
    /// is durable, or this fails.
    ///
    /// # Errors
    /// `Io` if the connection breaks or something cannot be made durable at the end, `Misuse` for a second call.
    pub fn run(&self) -> Result<()> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        let session = session.ok_or_else(|| Error::misuse("this was served already"))?;
        self.control.state().working = 1;
        let served = thread::scope(|scope| {
            let leaving = Leaving(&self.control);
            let server =
                thread::Builder::new().name("tree".into()).spawn_scoped(scope, move || leaving.with(session.run()))?;
            let keeper = thread::Builder::new().name("flush".into()).spawn_scoped(scope, || self.keep_durable());
            self.control.supervise(&self.place, self.grace);
            let served = server.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the server has panicked")));
            drop(keeper?.join());
            served
        });
        self.tree.finish()?;
        Ok(served?)
    }

    /// Makes changes durable from time to time, until the server ends.
    fn keep_durable(&self) {
        while self.control.wait(Some(EVERY), |state| state.failed).working > 0 && !self.control.is_ending() {
            // A program that wants to know asks by fsync; the end of it all tells too.
            let _ = self.tree.flush();
        }
    }
}

/// The tree as the kernel sees it.
struct Shown {
    tree: Arc<dyn Tree>,
    uid: u32,
    gid: u32,
    read_only: bool,
    /// What folders held when they were opened.
    listings: Mutex<HashMap<u64, Vec<trees::Entry>>>,
    next: AtomicU64,
}

impl Shown {
    fn node(&self, number: INodeNo) -> Node {
        if number.0 == ROOT { self.tree.root() } else { number.0.wrapping_sub(OTHERS) }
    }

    fn number(&self, node: Node) -> INodeNo {
        INodeNo(if node == self.tree.root() { ROOT } else { node.wrapping_add(OTHERS) })
    }

    fn listings(&self) -> MutexGuard<'_, HashMap<u64, Vec<trees::Entry>>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attr(&self, node: Node) -> io::Result<FileAttr> {
        let attributes = self.tree.attributes(node)?;
        let known = |time: Option<SystemTime>| time.or(attributes.modified).unwrap_or(UNIX_EPOCH);
        Ok(FileAttr {
            ino: self.number(node),
            size: attributes.size,
            blocks: attributes.size.div_ceil(512),
            atime: known(attributes.accessed),
            mtime: known(attributes.modified),
            ctime: known(attributes.modified),
            crtime: known(attributes.created),
            kind: kind(attributes.kind),
            perm: self.permissions(&attributes),
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// What the owner may do; others may nothing.
    fn permissions(&self, attributes: &Attributes) -> u16 {
        let usual = if attributes.kind == NodeKind::Folder { 0o700 } else { 0o600 };
        let may_not_write = self.read_only || (attributes.read_only && attributes.kind == NodeKind::File);
        let mode = attributes.mode.map_or(usual, |mode| mode & 0o700 | usual & 0o400);
        if may_not_write { mode & !0o200 } else { mode }
    }

    fn entry(&self, node: io::Result<Node>, reply: ReplyEntry) {
        match node.and_then(|node| self.attr(node)) {
            Ok(attr) => reply.entry_with_ttls(&NOT_KEPT, &KEPT, &attr, Generation(0)),
            Err(e) => reply.error(errno(&e)),
        }
    }
}

impl Filesystem for Shown {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.tree.lookup(self.node(parent), name), reply);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(self.node(ino)) {
            Ok(attr) => reply.attr(&KEPT, &attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A mode is accepted and forgotten: programs set it on whatever they copy. An owner that nobody can be is not.
        if uid.is_some_and(|uid| uid != self.uid) || gid.is_some_and(|gid| gid != self.gid) {
            return reply.error(Errno::EPERM);
        }
        let node = self.node(ino);
        let set = || {
            if let Some(size) = size {
                self.tree.set_len(node, size)?;
            }
            if atime.is_some() || mtime.is_some() {
                self.tree.set_times(node, mtime.map(time), atime.map(time))?;
            }
            self.attr(node)
        };
        match set() {
            Ok(attr) => reply.attr(&KEPT, &attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.tree.link_target(self.node(ino)) {
            Ok(target) => reply.data(target.as_encoded_bytes()),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn mknod(&self, _req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: u32, reply: ReplyEntry) {
        /// What kind of node (inode(7)).
        const KIND: u32 = 0o170_000;
        const REGULAR: u32 = 0o100_000;
        match mode & KIND {
            0 | REGULAR => self.entry(self.tree.create(self.node(parent), name, &NewNode::default()), reply),
            _ => reply.error(Errno::EPERM),
        }
    }

    fn mkdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        self.entry(self.tree.make_folder(self.node(parent), name, &NewNode::default()), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.tree.remove(self.node(parent), name), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.tree.remove(self.node(parent), name), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let keep = flags.contains(RenameFlags::RENAME_NOREPLACE);
        let how = if keep { Renaming::Keep } else { Renaming::Replace };
        done(self.tree.rename(self.node(parent), name, self.node(newparent), newname, how), reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _ = self.tree.open(self.node(ino), Use { read: true, write: true });
        // Nobody but the kernel changes what is in its cache.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self
            .tree
            .create(self.node(parent), name, &NewNode::default())
            .and_then(|node| Ok((node, self.attr(node)?)));
        match made {
            Ok((node, attr)) => {
                let _ = self.tree.open(node, Use { read: true, write: true });
                reply.created(&NOT_KEPT, &attr, Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        match self.tree.read_at(self.node(ino), offset, &mut bytes) {
            Ok(read) => reply.data(&bytes[..read]),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.tree.write_at(self.node(ino), offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        done(self.tree.release(self.node(ino)), reply);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        done(self.tree.flush(), reply);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        done(self.tree.flush(), reply);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.tree.list(self.node(ino)) {
            Ok(listing) => {
                let handle = self.next.fetch_add(1, Ordering::Relaxed);
                self.listings().insert(handle, listing);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listings = self.listings();
        let Some(listing) = listings.get(&fh.0) else { return reply.error(Errno::EBADF) };
        let dots = [(ino, FileType::Directory, OsStr::new(".")), (ino, FileType::Directory, OsStr::new(".."))];
        let held = listing.iter().map(|e| (self.number(e.node), kind(e.kind), e.name.as_os_str()));
        for (next, (ino, kind, name)) in (1..).zip(dots.into_iter().chain(held)).skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.listings().remove(&fh.0);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.tree.space() {
            Ok(space) => {
                let of = |bytes: u64| bytes / u64::from(space.unit.max(1));
                reply.statfs(of(space.total), of(space.free), of(space.free), 0, 0, space.unit, 255, space.unit);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }
}

fn done(result: io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

fn time(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn kind(kind: NodeKind) -> FileType {
    match kind {
        NodeKind::File => FileType::RegularFile,
        NodeKind::Folder => FileType::Directory,
        NodeKind::Link => FileType::Symlink,
        // A device of the volume would be a door into this machine.
        NodeKind::Special => FileType::NamedPipe,
    }
}

/// The number that programs get. What a store refuses to have written, as a protected hidden volume does, is an I/O error.
fn errno(error: &io::Error) -> Errno {
    let number = match error.kind() {
        _ if error.raw_os_error().is_some() => return Errno::from_i32(error.raw_os_error().unwrap_or(0)),
        ErrorKind::NotFound => SystemErrno::NOENT,
        ErrorKind::AlreadyExists => SystemErrno::EXIST,
        ErrorKind::NotADirectory => SystemErrno::NOTDIR,
        ErrorKind::IsADirectory => SystemErrno::ISDIR,
        ErrorKind::DirectoryNotEmpty => SystemErrno::NOTEMPTY,
        ErrorKind::StorageFull => SystemErrno::NOSPC,
        ErrorKind::FileTooLarge => SystemErrno::FBIG,
        ErrorKind::InvalidFilename | ErrorKind::InvalidInput => SystemErrno::INVAL,
        ErrorKind::ReadOnlyFilesystem => SystemErrno::ROFS,
        ErrorKind::Unsupported => SystemErrno::OPNOTSUPP,
        _ => SystemErrno::IO,
    };
    Errno::from_i32(number.raw_os_error())
}
