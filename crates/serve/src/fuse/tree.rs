//! Mounts a tree of names as a folder.
//!
//! The contents of a volume belong to one user; nobody else may use them, except root with [`FuseOptions::shared`]. A
//! folder of this machine keeps its owners and modes, which the kernel enforces ([`Showing`]).
//!
//! What the kernel may cache depends on whether anyone else changes the tree ([`Tree::changes_elsewhere`]). If not, it
//! caches everything except names in trees where `a` and `A` are the same: one of them would stay after the other is
//! removed. Writes are not held back, so a program learns from the write itself that the volume refused it; unless
//! [`Showing::writeback`] asks for it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use claviger_engine::trees::{Attributes, Entry, NewNode, Node, NodeKind, Renaming, Setting, Special, Tree, Use};
use rustix::process::{getegid, geteuid};

use super::answers::{Answer, Answers};
use super::mount::NewMount;
use super::protocol::{
    Errno, FuseRequest, WRITE_CACHE, WRITE_KILL_SUIDGID, Writer, init, opcode, opened, set, split_name, u64_at,
};
use super::{FuseMount, FuseOptions, sys};

/// The longest time for which a crash can lose written data.
const EVERY: Duration = Duration::from_secs(5);

/// How long the kernel may cache what only the kernel itself changes.
const ALONE: Duration = Duration::from_secs(3600);

/// How long the kernel may cache what others can also change: their changes are visible after this time.
const SHARED: Duration = Duration::from_secs(1);

/// Additional threads beyond [`FuseOptions::threads`]: this many programs may wait for a slow disk without delaying the
/// others. They rest while the first threads are not busy.
const WAITING: usize = 14;

/// A change that follows another within this time may keep the earlier time of change.
const TICK: Duration = Duration::from_millis(20);

/// Free memory goes back to the system each time the kernel has forgotten this many nodes.
const MANY: u64 = 4096;

/// The kernel's number for the root, and the offset that is added to all other node numbers.
const ROOT: u64 = 1;
const OTHERS: u64 = 2;

/// Bits of `st_mode` (inode(7)).
const S_IFMT: u32 = 0o170_000;
const S_IFSOCK: u32 = 0o140_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFREG: u32 = 0o100_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFIFO: u32 = 0o010_000;
const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_ISVTX: u16 = 0o1000;
const S_IXGRP: u16 = 0o0010;

/// Recommended minimum size of reads and writes, in bytes.
const PAGE: u32 = 4096;

/// Bytes of `struct fuse_attr` and of `struct fuse_entry_out`.
const ATTRIBUTES: usize = 88;
const ENTRY: usize = 40 + ATTRIBUTES;

/// How a tree is shown.
#[derive(Clone, Copy, Debug)]
pub struct Showing {
    /// Whether writes are refused even if the tree is writable.
    pub read_only: bool,
    /// Who owns the nodes.
    pub owners: Owners,
    /// Whether device nodes work; only where root mounts. Devices from an untrusted source would give access to this
    /// machine, so they are otherwise shown as pipes and cannot be made.
    pub devices: bool,
    /// Whether setuid bits take effect; only where root mounts.
    pub setuid: bool,
    /// Whether the kernel collects small writes and sends large ones later, at the latest when a program closes the file or
    /// synchronises it. A program then learns of a failed write only there. The kernel alone knows sizes and times of change,
    /// so it does not see what others change in the tree meanwhile.
    pub writeback: bool,
}

/// Who owns the nodes of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// The user of this process owns everything; others have no access.
    User,
    /// The tree's owners and modes apply; a new node belongs to its maker.
    Tree,
}

impl Showing {
    /// A file system in a volume: the user owns everything.
    pub fn volume(read_only: bool) -> Self {
        Self { read_only, owners: Owners::User, devices: false, setuid: false, writeback: false }
    }

    /// Files of this machine keep their owners and modes.
    pub fn folder(read_only: bool) -> Self {
        Self { read_only, owners: Owners::Tree, devices: false, setuid: false, writeback: false }
    }
}

/// Mounts `tree` on the folder `dir` for the user of this process. Programs that access it wait until [`FuseMount::run`] is called.
///
/// # Errors
/// `Io` if mounting fails; `Unsupported` if the kernel is too old or lacks the requested transport.
pub fn mount(
    tree: Arc<dyn Tree>,
    showing: Showing,
    dir: &Path,
    options: FuseOptions,
) -> claviger_engine::Result<FuseMount> {
    let shown = Shown::new(tree, showing);
    let (read_only, uid) = (shown.showing.read_only, shown.user.0);
    let Showing { devices, setuid, .. } = showing;
    let new = NewMount { dir, source: &options.source, read_only, uid, shared: options.shared, devices, setuid };
    let threads = options.threads + WAITING;
    super::serve(&new, Box::new(shown), FuseOptions { threads, ..options.clone() })
}

/// Answers the kernel's messages for a tree: [`crate::fuzzing`].
pub(crate) fn fuzz(tree: Arc<dyn Tree>, showing: Showing, messages: &[u8]) -> usize {
    super::device::fuzz(&Shown::new(tree, showing), messages)
}

/// How long the kernel may cache answers.
struct CacheTimes {
    names: Duration,
    /// For names that do not exist.
    absence: Duration,
    attributes: Duration,
}

impl CacheTimes {
    fn of(tree: &dyn Tree, read_only: bool) -> Self {
        if tree.changes_elsewhere() {
            Self { names: SHARED, absence: Duration::ZERO, attributes: SHARED }
        } else if tree.folds_case() && !read_only {
            Self { names: Duration::ZERO, absence: Duration::ZERO, attributes: ALONE }
        } else {
            Self { names: ALONE, absence: ALONE, attributes: ALONE }
        }
    }
}

/// The tree as the kernel sees it.
struct Shown {
    tree: Arc<dyn Tree>,
    showing: Showing,
    /// User and group of this process.
    user: (u32, u32),
    cache_times: CacheTimes,
    /// Open folders.
    listings: Mutex<HashMap<u64, Arc<Listing>>>,
    next: AtomicU64,
    /// Versions of files at their last opening, for files that others can change.
    seen: Mutex<HashMap<Node, Version>>,
    /// Number of nodes that the kernel has forgotten.
    forgotten: AtomicU64,
    /// Failures of writes that programs made some time before.
    late: Mutex<LateFailures>,
    /// Long requests, and whether the program that made each was interrupted.
    long: Mutex<HashMap<u64, bool>>,
}

/// The contents of a folder when it was opened or last rewound.
struct Listing {
    /// The folder's node number.
    number: u64,
    entries: Mutex<Arc<Vec<Entry>>>,
    read: AtomicBool,
}

/// What changes with a file's contents: their time, the attributes' time, and the size.
type Version = (Option<SystemTime>, Option<SystemTime>, u64);

/// The result of a request: the payload's length in bytes.
type Answered = Result<usize, Errno>;

impl Answers for Shown {
    fn wants(&self) -> u64 {
        let shared = self.tree.changes_elsewhere();
        let mut wanted = init::HANDLE_KILLPRIV_V2;
        wanted |= if shared { init::AUTO_INVAL_DATA } else { init::CACHE_SYMLINKS };
        if self.showing.writeback {
            wanted |= init::WRITEBACK_CACHE;
        }
        if !self.cache_times.names.is_zero() {
            wanted |= init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;
        }
        if self.showing.owners == Owners::Tree {
            wanted |= init::POSIX_ACL;
        }
        wanted
    }

    fn answer(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answer {
        let answered = match request.opcode {
            opcode::FORGET => {
                self.forget(request.node, request.u64(0));
                return Answer::None;
            }
            opcode::BATCH_FORGET => {
                let forgotten = payload[..data].as_chunks::<16>().0.iter().take(request.u32(0) as usize);
                forgotten.for_each(|one| self.forget(u64_at(one, 0), u64_at(one, 8)));
                return Answer::None;
            }
            // All other requests end soon by themselves.
            opcode::INTERRUPT => {
                lock(&self.long).entry(request.u64(0)).and_modify(|interrupted| *interrupted = true);
                return Answer::None;
            }
            opcode::LOOKUP => self.look_up(request, payload, data),
            opcode::GETATTR => self.write_attributes(self.node(request.node), payload),
            opcode::SETATTR => self.change(request, payload),
            opcode::READLINK => self.link_target(request, payload),
            opcode::MKNOD => self.make_node(request, payload, data),
            opcode::MKDIR => self.make_folder(request, payload, data),
            opcode::SYMLINK => self.make_link(request, payload, data),
            opcode::LINK => self.add_name(request, payload, data),
            opcode::CREATE => self.create(request, payload, data),
            opcode::UNLINK | opcode::RMDIR => self.remove(request, &payload[..data]),
            opcode::RENAME => self.rename(request, &payload[..data], 0),
            opcode::RENAME2 => self.rename(request, &payload[..data], request.u32(8)),
            opcode::OPEN => self.open(request, payload),
            opcode::READ => self.read(request, payload),
            opcode::WRITE => self.write(request, payload, data),
            opcode::RELEASE => done(self.tree.release(self.node(request.node))),
            opcode::FSYNC | opcode::FSYNCDIR => self.sync(request),
            opcode::OPENDIR => self.open_folder(request, payload),
            opcode::READDIR => self.list(request, payload, false),
            opcode::READDIRPLUS => self.list(request, payload, true),
            opcode::RELEASEDIR => {
                self.listings().remove(&request.u64(0));
                Ok(0)
            }
            opcode::STATFS => self.statistics(payload),
            opcode::GETXATTR => self.extended(request, payload, data),
            opcode::LISTXATTR => self.list_extended(request, payload),
            opcode::SETXATTR => self.set_extended(request, &payload[..data]),
            opcode::REMOVEXATTR => self.remove_extended(request, &payload[..data]),
            opcode::DESTROY => Ok(0),
            // The kernel never sends an unsupported request again. This includes FLUSH, as closing a file loses
            // nothing; ACCESS, as the kernel checks modes itself; and LSEEK, as there are no holes.
            _ => Err(Errno::ENOSYS),
        };
        answered.map_or_else(Answer::Refused, Answer::Done)
    }

    fn flushed_every(&self) -> Option<Duration> {
        // Files that others also write are written back by this machine's system.
        (!self.showing.read_only && !self.tree.changes_elsewhere()).then_some(EVERY)
    }

    fn flush(&self) -> io::Result<()> {
        self.tree.flush()
    }

    fn finish(&self) -> io::Result<()> {
        self.tree.finish().and(lock(&self.late).report())
    }
}

/// Failures of writes that the kernel collected. It reports each to one program that has the file open, not always to the one that
/// wrote.
#[derive(Default)]
struct LateFailures {
    count: u64,
    first: Option<Errno>,
}

impl LateFailures {
    fn note(&mut self, errno: Errno) {
        self.count += 1;
        self.first.get_or_insert(errno);
    }

    /// An error with their number and the first cause, if there were any.
    fn report(&self) -> io::Result<()> {
        let Some(Errno(number)) = self.first else { return Ok(()) };
        let (count, first) = (self.count, io::Error::from_raw_os_error(number));
        let what = format!("{count} collected writes failed, the first with: {first}; their data may be lost");
        Err(io::Error::other(what))
    }
}

/// Nodes and their attributes.
impl Shown {
    fn new(tree: Arc<dyn Tree>, showing: Showing) -> Self {
        let read_only = showing.read_only || !tree.writable();
        Self {
            showing: Showing { read_only, writeback: showing.writeback && !read_only, ..showing },
            user: (geteuid().as_raw(), getegid().as_raw()),
            cache_times: CacheTimes::of(&*tree, read_only),
            listings: Mutex::default(),
            next: AtomicU64::new(1),
            seen: Mutex::default(),
            forgotten: AtomicU64::new(0),
            late: Mutex::default(),
            long: Mutex::default(),
            tree,
        }
    }

    fn node(&self, number: u64) -> Node {
        if number == ROOT { self.tree.root() } else { number.wrapping_sub(OTHERS) }
    }

    fn number(&self, node: Node) -> u64 {
        if node == self.tree.root() { ROOT } else { node.wrapping_add(OTHERS) }
    }

    fn forget(&self, number: u64, times: u64) {
        if number != ROOT {
            let node = self.node(number);
            lock(&self.seen).remove(&node);
            self.tree.forget(node, times);
            if self.forgotten.fetch_add(1, Ordering::Relaxed) % MANY == MANY - 1 {
                lock(&self.seen).shrink_to_fit();
                sys::give_memory_back();
            }
        }
    }

    /// `struct fuse_attr`.
    fn attributes_of(&self, known: &Attributes) -> [u8; ATTRIBUTES] {
        let time = |time: Option<SystemTime>| since_1970(time.or(known.modified).unwrap_or(UNIX_EPOCH));
        let times = [time(known.accessed), time(known.modified), time(known.changed)];
        let (uid, gid) = self.owner(known);
        let (kind, device) = self.kind(known);
        let mut attributes = [0; ATTRIBUTES];
        let mut out = Writer::new(&mut attributes);
        out.u64(known.number).u64(known.size).u64(known.stored.unwrap_or(known.size).div_ceil(512));
        for (seconds, _) in times {
            out.u64(seconds.cast_unsigned());
        }
        for (_, nanoseconds) in times {
            out.u32(nanoseconds);
        }
        out.u32(kind | u32::from(self.permissions(known))).u32(known.links).u32(uid).u32(gid).u32(device).u32(PAGE);
        attributes
    }

    fn owner(&self, known: &Attributes) -> (u32, u32) {
        known.owner.filter(|_| self.showing.owners == Owners::Tree).unwrap_or(self.user)
    }

    /// The bits of `st_mode` for the node's type, and `st_rdev`.
    fn kind(&self, known: &Attributes) -> (u32, u32) {
        match (known.kind, known.special) {
            (NodeKind::File, _) => (S_IFREG, 0),
            (NodeKind::Folder, _) => (S_IFDIR, 0),
            (NodeKind::Link, _) => (S_IFLNK, 0),
            (NodeKind::Special, special) => self.special_kind(special),
        }
    }

    fn special_kind(&self, special: Option<Special>) -> (u32, u32) {
        match special {
            // The kernel packs device numbers into 32 bits, the lower ones of `st_rdev`.
            Some(Special::BlockDevice(number)) if self.showing.devices => (S_IFBLK, number as u32),
            Some(Special::CharacterDevice(number)) if self.showing.devices => (S_IFCHR, number as u32),
            Some(Special::Socket) if self.showing.owners == Owners::Tree => (S_IFSOCK, 0),
            _ => (S_IFIFO, 0),
        }
    }

    /// The permissions. Where the user owns everything, others have none.
    fn permissions(&self, known: &Attributes) -> u16 {
        if let (Owners::Tree, Some(mode)) = (self.showing.owners, known.mode) {
            return mode;
        }
        let usual = if known.kind == NodeKind::Folder { 0o700 } else { 0o600 };
        let may_not_write = self.showing.read_only || (known.read_only && known.kind == NodeKind::File);
        let mode = known.mode.map_or(usual, |mode| mode & 0o700 | usual & 0o400);
        if may_not_write { mode & !0o200 } else { mode }
    }

    /// `struct fuse_attr_out`.
    fn write_attributes(&self, node: Node, payload: &mut [u8]) -> Answered {
        let known = self.tree.attributes(node).map_err(errno)?;
        let valid = self.cache_times.attributes;
        let mut out = Writer::new(payload);
        Ok(out.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).bytes(&self.attributes_of(&known)).len())
    }

    /// `struct fuse_entry_out` for a node that was just looked up. The node is released if this fails.
    fn entry(&self, node: io::Result<Node>, payload: &mut [u8]) -> Answered {
        let node = node.map_err(errno)?;
        let known = self.tree.attributes(node).map_err(|e| {
            self.tree.forget(node, 1);
            errno(e)
        })?;
        let (names, attributes) = (self.cache_times.names, self.cache_times.attributes);
        let mut out = Writer::new(payload);
        out.u64(self.number(node)).u64(0).u64(names.as_secs()).u64(attributes.as_secs());
        out.u32(names.subsec_nanos()).u32(attributes.subsec_nanos());
        Ok(out.bytes(&self.attributes_of(&known)).len())
    }

    /// LOOKUP, with the name.
    fn look_up(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        let (name, _) = name(&payload[..data])?;
        match self.tree.lookup(self.node(request.node), name) {
            Err(e) if e.kind() == ErrorKind::NotFound && !self.cache_times.absence.is_zero() => {
                // The name does not exist.
                Ok(Writer::new(payload)
                    .u64(0)
                    .u64(0)
                    .u64(self.cache_times.absence.as_secs())
                    .bytes(&[0; ENTRY - 24])
                    .len())
            }
            found => self.entry(found, payload),
        }
    }

    /// SETATTR (`struct fuse_setattr_in`).
    fn change(&self, request: &FuseRequest, payload: &mut [u8]) -> Answered {
        let node = self.node(request.node);
        let what = request.u32(0);
        let wanted = |flag| what & flag != 0;
        let uid = wanted(set::UID).then(|| request.u32(76));
        let gid = wanted(set::GID).then(|| request.u32(80));
        match self.showing.owners {
            Owners::Tree if uid.is_some() || gid.is_some() => self.tree.set_owner(node, uid, gid).map_err(errno)?,
            Owners::Tree => {}
            // No other owner is possible.
            Owners::User if uid.is_some_and(|uid| uid != self.user.0) => return Err(Errno::EPERM),
            Owners::User if gid.is_some_and(|gid| gid != self.user.1) => return Err(Errno::EPERM),
            Owners::User => {}
        }
        // Where the user owns everything, a mode is accepted and ignored: programs set modes on everything they copy.
        if wanted(set::MODE) && self.showing.owners == Owners::Tree {
            self.tree.set_mode(node, request.u32(68) as u16 & 0o7777).map_err(errno)?;
        }
        if wanted(set::SIZE) {
            self.fill(request, node, request.u64(16), false)?;
            self.tree.set_len(node, request.u64(16)).map_err(errno)?;
        }
        let time = |given, now, seconds, nanoseconds| {
            let exactly = || at(request.u64(seconds).cast_signed(), request.u32(nanoseconds));
            if wanted(now) { Some(SystemTime::now()) } else { wanted(given).then(exactly) }
        };
        let accessed = time(set::ATIME, set::ATIME_NOW, 32, 56);
        let modified = time(set::MTIME, set::MTIME_NOW, 40, 60);
        if accessed.is_some() || modified.is_some() {
            match self.tree.set_times(node, modified, accessed).map_err(errno) {
                // The kernel tells when the file was last written or cut. A server that may do that, but does not own the file,
                // has changed that time by doing it.
                Err(Errno::EPERM) if self.showing.writeback && is_of_a_write(what) => {}
                done => done?,
            }
        }
        if wanted(set::KILL_SUIDGID) && !wanted(set::MODE) {
            self.take_privileges(node).map_err(errno)?;
        }
        self.write_attributes(node, payload)
    }

    /// Clears the setuid and setgid bits: otherwise a user who changes the file would decide what others run as its owner.
    fn take_privileges(&self, node: Node) -> io::Result<()> {
        let known = self.tree.attributes(node)?;
        let Some(mode) = known.mode.filter(|_| known.kind == NodeKind::File) else { return Ok(()) };
        let taken = S_ISUID | if mode & S_IXGRP != 0 { S_ISGID } else { 0 };
        if mode & taken == 0 { Ok(()) } else { self.tree.set_mode(node, mode & !taken) }
    }

    fn link_target(&self, request: &FuseRequest, payload: &mut [u8]) -> Answered {
        let target = self.tree.link_target(self.node(request.node)).map_err(errno)?;
        Ok(Writer::new(payload).bytes(target.as_bytes()).len())
    }

    /// STATFS: `struct fuse_kstatfs`.
    fn statistics(&self, payload: &mut [u8]) -> Answered {
        let space = self.tree.space().map_err(errno)?;
        let of = |bytes: u64| bytes / u64::from(space.unit.max(1));
        let (files, files_left) = space.files.unwrap_or_default();
        let mut out = Writer::new(payload);
        out.u64(of(space.total)).u64(of(space.free)).u64(of(space.free)).u64(files).u64(files_left);
        out.u32(space.unit).u32(space.longest_name).u32(space.unit).u32(0).bytes(&[0; 24]);
        Ok(out.len())
    }
}

/// Names.
impl Shown {
    /// The initial attributes of a node that the requesting program makes. The kernel has applied the umask.
    fn new_node(&self, request: &FuseRequest, mode: u32) -> NewNode {
        match self.showing.owners {
            Owners::User => NewNode::default(),
            Owners::Tree => NewNode { mode: Some(mode as u16 & 0o7777), owner: Some(request.owner) },
        }
    }

    /// MKNOD (`struct fuse_mknod_in`), with the name.
    fn make_node(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        let (folder, (name, _)) = (self.node(request.node), name(&payload[..data])?);
        let (mode, device) = (request.u32(0), u64::from(request.u32(4)));
        let new = self.new_node(request, mode);
        let special = match mode & S_IFMT {
            0 | S_IFREG => return self.entry(self.tree.create(folder, name, &new), payload),
            S_IFIFO => Special::Pipe,
            S_IFSOCK => Special::Socket,
            S_IFBLK => Special::BlockDevice(device),
            S_IFCHR => Special::CharacterDevice(device),
            _ => return Err(Errno::EINVAL),
        };
        // The kernel rejects a node that is shown as another type, but by then the node would exist.
        if self.special_kind(Some(special)).0 != mode & S_IFMT {
            return Err(Errno::EPERM);
        }
        let made = self.tree.make_special(folder, name, special, &new);
        self.entry(made, payload).map_err(not_permitted)
    }

    /// MKDIR (`struct fuse_mkdir_in`), with the name.
    fn make_folder(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        let (folder, (name, _)) = (self.node(request.node), name(&payload[..data])?);
        let new = self.new_node(request, request.u32(0));
        self.entry(self.tree.make_folder(folder, name, &new), payload)
    }

    /// SYMLINK, with the name and the target.
    fn make_link(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        let folder = self.node(request.node);
        let (link, rest) = name(&payload[..data])?;
        let (target, _) = name(rest)?;
        let new = NewNode { mode: None, ..self.new_node(request, 0) };
        let made = self.tree.make_link(folder, link, target, &new);
        self.entry(made, payload).map_err(not_permitted)
    }

    /// LINK (`struct fuse_link_in`), with the name.
    fn add_name(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        let (name, _) = name(&payload[..data])?;
        let made = self.tree.add_name(self.node(request.u64(0)), self.node(request.node), name);
        self.entry(made, payload).map_err(not_permitted)
    }

    fn remove(&self, request: &FuseRequest, data: &[u8]) -> Answered {
        let (folder, (name, _)) = (self.node(request.node), name(data)?);
        let known = self.as_it_is(request, folder, name)?;
        match known.map(|known| known.kind == NodeKind::Folder) {
            Some(true) if request.opcode == opcode::UNLINK => Err(Errno::EISDIR),
            Some(false) if request.opcode == opcode::RMDIR => Err(Errno::ENOTDIR),
            _ => done(self.tree.remove(folder, name)),
        }
    }

    /// The current attributes of a name that is about to be removed, if others also change the tree. The
    /// kernel's check may be a second old: in a folder like /tmp, the name may now belong to somebody else (inode(7),
    /// the sticky bit).
    fn as_it_is(&self, request: &FuseRequest, folder: Node, name: &OsStr) -> Result<Option<Attributes>, Errno> {
        if !self.tree.changes_elsewhere() {
            return Ok(None);
        }
        let node = self.tree.lookup(folder, name).map_err(errno)?;
        let known = self.tree.attributes(node);
        self.tree.forget(node, 1);
        let (known, around) = (known.map_err(errno)?, self.tree.attributes(folder).map_err(errno)?);
        let (user, _) = request.owner;
        let owns = |of: &Attributes| of.owner.is_none_or(|(owner, _)| owner == user);
        let sticky = self.showing.owners == Owners::Tree && around.mode.is_some_and(|mode| mode & S_ISVTX != 0);
        match sticky && user != 0 && !owns(&known) && !owns(&around) {
            true => Err(Errno::EPERM),
            false => Ok(Some(known)),
        }
    }

    /// RENAME (`struct fuse_rename_in`) and RENAME2 (`struct fuse_rename2_in`), with both names.
    fn rename(&self, request: &FuseRequest, data: &[u8], flags: u32) -> Answered {
        const NOREPLACE: u32 = 1 << 0;
        const EXCHANGE: u32 = 1 << 1;
        let (from, rest) = name(data)?;
        let (to, _) = name(rest)?;
        let how = match flags {
            0 => Renaming::Replace,
            NOREPLACE => Renaming::Keep,
            EXCHANGE => Renaming::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        let (folder, to_folder) = (self.node(request.node), self.node(request.u64(0)));
        self.as_it_is(request, folder, from)?;
        match self.as_it_is(request, to_folder, to) {
            Err(Errno::ENOENT) => {}
            replaced => drop(replaced?),
        }
        let renamed = self.tree.rename(folder, from, to_folder, to, how);
        renamed.map(|()| 0).map_err(|e| match errno(e) {
            Errno::EOPNOTSUPP => Errno::EINVAL,
            other => other,
        })
    }
}

/// Open files.
impl Shown {
    /// CREATE (`struct fuse_create_in`), with the name: `struct fuse_entry_out` and `struct fuse_open_out`.
    fn create(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        const O_EXCL: u32 = 0o200;
        let (folder, (name, _)) = (self.node(request.node), name(&payload[..data])?);
        let (flags, mode) = (request.u32(0), request.u32(4));
        let new = self.new_node(request, mode);
        let node = self.tree.create_open(folder, name, &new, self.usage(flags)).map_err(|e| match errno(e) {
            // Another program was quicker. The kernel opens the existing file if the program may.
            Errno::EEXIST if flags & O_EXCL == 0 => Errno::ESTALE,
            other => other,
        })?;
        let len = self.entry(Ok(node), payload).inspect_err(|_| drop(self.tree.release(node)))?;
        Ok(len + opened(&mut payload[len..], 0, opened::KEEP_CACHE))
    }

    /// OPEN (`struct fuse_open_in`).
    fn open(&self, request: &FuseRequest, payload: &mut [u8]) -> Answered {
        let node = self.node(request.node);
        self.tree.open(node, self.usage(request.u32(0))).map_err(errno)?;
        let flags = if self.is_as_it_was(node) { opened::KEEP_CACHE } else { 0 };
        Ok(opened(payload, 0, flags))
    }

    /// How a file is used that is opened with these flags of open(2). The kernel reads the rest of a page before it collects
    /// writes to a part of it.
    fn usage(&self, flags: u32) -> Use {
        const O_ACCMODE: u32 = 3;
        const O_RDONLY: u32 = 0;
        const O_WRONLY: u32 = 1;
        let write = flags & O_ACCMODE != O_RDONLY;
        Use { read: flags & O_ACCMODE != O_WRONLY || self.showing.writeback, write }
    }

    /// Whether nobody else has changed a file since its last opening. If so, the kernel may keep its contents.
    fn is_as_it_was(&self, node: Node) -> bool {
        if !self.tree.changes_elsewhere() {
            return true;
        }
        let Ok(known) = self.tree.attributes(node) else { return false };
        let version = (known.modified, known.changed, known.size);
        let rested = |time: SystemTime| time.elapsed().is_ok_and(|elapsed| elapsed > TICK);
        let mut seen = lock(&self.seen);
        if known.changed.is_some_and(rested) {
            seen.insert(node, version) == Some(version)
        } else {
            seen.remove(&node);
            false
        }
    }

    /// READ (`struct fuse_read_in`).
    fn read(&self, request: &FuseRequest, payload: &mut [u8]) -> Answered {
        let out = payload.get_mut(..request.u32(16) as usize).ok_or(Errno::EINVAL)?;
        self.tree.read_at(self.node(request.node), request.u64(8), out).map_err(errno)
    }

    /// WRITE (`struct fuse_write_in`): `struct fuse_write_out`.
    fn write(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        let (node, size, how) = (self.node(request.node), request.u32(16) as usize, request.u32(20));
        if size != data {
            return Err(Errno::EINVAL);
        }
        let late = |errno: &Errno| {
            if how & WRITE_CACHE != 0 {
                lock(&self.late).note(*errno)
            }
        };
        self.written(request, node, how, &mut payload[..size]).inspect_err(late)?;
        Ok(Writer::new(payload).u32(size as u32).u32(0).len())
    }

    fn written(&self, request: &FuseRequest, node: Node, how: u32, data: &mut [u8]) -> Result<(), Errno> {
        const O_APPEND: u32 = 0o2000;
        if how & WRITE_KILL_SUIDGID != 0 {
            self.take_privileges(node).map_err(errno)?;
        }
        // The kernel does not know the end of a file that others extend; with writeback, it alone knows it. Data from a memory
        // mapping have a fixed offset.
        let others_extend = self.tree.changes_elsewhere() && !self.showing.writeback;
        let appends = request.u32(32) & O_APPEND != 0 && how & WRITE_CACHE == 0 && others_extend;
        if !appends {
            self.fill(request, node, request.u64(8), true)?;
        }
        let written = match appends {
            true => self.tree.append(node, data),
            false => self.tree.write_in_place(node, request.u64(8), data),
        };
        written.map_err(errno)
    }

    /// Fills a file with zeros up to the offset of a write or up to its new size, until done or interrupted.
    fn fill(&self, request: &FuseRequest, node: Node, to: u64, writes: bool) -> Result<(), Errno> {
        if !self.tree.must_fill(node, to, writes).map_err(errno)? {
            return Ok(());
        }
        let known = self.tree.attributes(node).map_err(errno)?;
        lock(&self.long).insert(request.unique, false);
        let done = self.filled(request.unique, node, to, writes);
        lock(&self.long).remove(&request.unique);
        if done.is_err() && self.tree.attributes(node).is_ok_and(|now| now.size > known.size && now.size <= to) {
            // The earlier error is the one to report.
            let _ = self.tree.set_len(node, known.size);
        }
        done
    }

    fn filled(&self, unique: u64, node: Node, to: u64, writes: bool) -> Result<(), Errno> {
        while self.tree.fill(node, to, writes).map_err(errno)? {
            if lock(&self.long).get(&unique) == Some(&true) {
                return Err(Errno::EINTR);
            }
        }
        Ok(())
    }

    /// FSYNC and FSYNCDIR (`struct fuse_fsync_in`).
    fn sync(&self, request: &FuseRequest) -> Answered {
        const CONTENTS_ONLY: u32 = 1 << 0;
        done(self.tree.sync(self.node(request.node), request.u32(8) & CONTENTS_ONLY != 0))
    }
}

/// Open folders.
impl Shown {
    fn listings(&self) -> MutexGuard<'_, HashMap<u64, Arc<Listing>>> {
        lock(&self.listings)
    }

    fn open_folder(&self, request: &FuseRequest, payload: &mut [u8]) -> Answered {
        let folder = self.node(request.node);
        let number = self.tree.attributes(folder).map_err(errno)?.number;
        let entries = Mutex::new(Arc::new(self.tree.list(folder).map_err(errno)?));
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.listings().insert(handle, Arc::new(Listing { number, entries, read: AtomicBool::new(false) }));
        Ok(opened(payload, handle, 0))
    }

    /// READDIR and READDIRPLUS (`struct fuse_read_in`): as many `struct fuse_dirent` as fit. In READDIRPLUS, each
    /// follows a `struct fuse_entry_out`.
    fn list(&self, request: &FuseRequest, payload: &mut [u8], plus: bool) -> Answered {
        let folder = self.node(request.node);
        let (handle, offset, size) = (request.u64(0), request.u64(8), request.u32(16) as usize);
        let listing = self.listings().get(&handle).cloned().ok_or(Errno::EBADF)?;
        let entries = listing.entries(&*self.tree, folder, offset)?;
        let payload = payload.get_mut(..size).ok_or(Errno::EINVAL)?;
        let dots = [".", ".."].map(|name| (OsStr::new(name), listing.number, NodeKind::Folder, None));
        let held = entries.iter().map(|e| (e.name.as_os_str(), e.node, e.kind, Some(e)));
        let (before, mut at) = (usize::try_from(offset).unwrap_or(usize::MAX), 0);
        // Takes constant time, however long the listing.
        let dots_left = dots.into_iter().skip(before);
        let held_left = held.skip(before.saturating_sub(2));
        for (next, (name, number, kind, entry)) in (offset + 1..).zip(dots_left.chain(held_left)) {
            let about = if plus { ENTRY } else { 0 };
            let len = about + (24 + name.len()).next_multiple_of(8);
            let Some(out) = payload.get_mut(at..at + len) else { break };
            out.fill(0);
            if let Some(entry) = entry.filter(|_| plus) {
                // An entry without a node makes the kernel look the name up on use.
                let _ = self.entry(self.tree.take(folder, entry), out).inspect_err(|_| out[..ENTRY].fill(0));
            }
            let mut out = Writer::new(&mut out[about..]);
            out.u64(number).u64(next).u32(name.len() as u32).u32(self.listed_kind(kind)).bytes(name.as_bytes());
            at += len;
        }
        Ok(at)
    }

    /// `d_type`. The type of special files is unknown here.
    fn listed_kind(&self, kind: NodeKind) -> u32 {
        const UNKNOWN: u32 = 0;
        match kind {
            NodeKind::File => S_IFREG >> 12,
            NodeKind::Folder => S_IFDIR >> 12,
            NodeKind::Link => S_IFLNK >> 12,
            NodeKind::Special if self.showing.owners == Owners::Tree => UNKNOWN,
            NodeKind::Special => S_IFIFO >> 12,
        }
    }
}

impl Listing {
    /// The entries. A read from the beginning lists the folder again (rewinddir(3)).
    fn entries(&self, tree: &dyn Tree, folder: Node, offset: u64) -> Result<Arc<Vec<Entry>>, Errno> {
        let mut entries = lock(&self.entries);
        if offset == 0 && self.read.swap(true, Ordering::Relaxed) {
            *entries = Arc::new(tree.list(folder).map_err(errno)?);
        }
        Ok(Arc::clone(&entries))
    }
}

/// Extended attributes. ENOSYS if the tree has none at all: otherwise the kernel asks before each write.
impl Shown {
    /// GETXATTR (`struct fuse_getxattr_in`), with the name.
    fn extended(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answered {
        let (name, _) = name(&payload[..data])?;
        let value = self.tree.extended(self.node(request.node), name).map_err(none_at_all)?;
        sized(&value.ok_or(Errno::ENODATA)?, request.u32(0), payload)
    }

    /// LISTXATTR (`struct fuse_getxattr_in`).
    fn list_extended(&self, request: &FuseRequest, payload: &mut [u8]) -> Answered {
        let names = self.tree.list_extended(self.node(request.node)).map_err(none_at_all)?;
        // Only root may see these (xattr(7)).
        let all = request.owner.0 == 0;
        let shown = names.iter().map(|name| name.as_bytes()).filter(|name| all || !name.starts_with(b"trusted."));
        let names: Vec<u8> = shown.flat_map(|name| [name, b"\0"].concat()).collect();
        sized(&names, request.u32(0), payload)
    }

    /// SETXATTR (`struct fuse_setxattr_in` in its first version), with the name and the value.
    fn set_extended(&self, request: &FuseRequest, data: &[u8]) -> Answered {
        const CREATE: u32 = 1;
        const REPLACE: u32 = 2;
        let (name, rest) = name(data)?;
        let value = rest.get(..request.u32(0) as usize).ok_or(Errno::EINVAL)?;
        let how = match request.u32(4) {
            0 => Setting::Any,
            CREATE => Setting::Create,
            REPLACE => Setting::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let node = self.node(request.node);
        if name == "system.posix_acl_access" {
            self.take_group(node, request.owner).map_err(errno)?;
        }
        self.tree.set_extended(node, name, value, how).map(|()| 0).map_err(none_at_all)
    }

    /// Clears setgid if a user outside the file's group changes the ACL: otherwise that user could let others run the
    /// file as the group (inode(7), `S_ISGID`). The kernel would not do it, as this process sets the ACL as root. The
    /// user's supplementary groups are unknown here.
    fn take_group(&self, node: Node, (user, group): (u32, u32)) -> io::Result<()> {
        if self.showing.owners != Owners::Tree || user == 0 {
            return Ok(());
        }
        let known = self.tree.attributes(node)?;
        let of_group = known.owner.is_none_or(|(_, own)| own == group);
        match known.mode.filter(|mode| known.kind == NodeKind::File && mode & S_ISGID != 0 && !of_group) {
            Some(mode) => self.tree.set_mode(node, mode & !S_ISGID),
            None => Ok(()),
        }
    }

    fn remove_extended(&self, request: &FuseRequest, data: &[u8]) -> Answered {
        let (name, _) = name(data)?;
        self.tree.remove_extended(self.node(request.node), name).map(|()| 0).map_err(none_at_all)
    }
}

/// The value of an extended attribute, or only its length (`struct fuse_getxattr_out`) if the program gave no room.
fn sized(value: &[u8], room: u32, payload: &mut [u8]) -> Answered {
    match room as usize {
        0 => Ok(Writer::new(payload).u32(value.len() as u32).u32(0).len()),
        room if room < value.len() => Err(Errno::ERANGE),
        _ => Ok(Writer::new(payload).bytes(value).len()),
    }
}

/// `struct fuse_open_out`.
fn opened(payload: &mut [u8], handle: u64, flags: u32) -> usize {
    Writer::new(payload).u64(handle).u32(flags).u32(0).len()
}

/// Whether a SETATTR sets the times that a write or a change of size leads to, and not those or the owner that a program chose.
fn is_of_a_write(what: u32) -> bool {
    const CHOSEN: u32 = set::MODE | set::UID | set::GID | set::ATIME | set::ATIME_NOW | set::MTIME_NOW;
    what & (set::MTIME | set::CTIME) == set::MTIME | set::CTIME && what & CHOSEN == 0
}

/// A name and what follows it.
fn name(data: &[u8]) -> Result<(&OsStr, &[u8]), Errno> {
    split_name(data).map(|(name, rest)| (OsStr::from_bytes(name), rest))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whole seconds, which are negative before 1970, and nanoseconds to add.
fn since_1970(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs().cast_signed(), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let nanoseconds = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            (-before.as_secs().cast_signed() - i64::from(nanoseconds != 0), nanoseconds)
        }
    }
}

/// The inverse of [`since_1970`].
fn at(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    time.and_then(|time| time.checked_add(Duration::from_nanos(nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

fn done(result: io::Result<()>) -> Answered {
    result.map(|()| 0).map_err(errno)
}

/// The error number for programs. A refused write, for example by a protected hidden volume, is an I/O error.
fn errno(error: io::Error) -> Errno {
    match error.kind() {
        _ if error.raw_os_error().is_some() => Errno::of(&error),
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::AlreadyExists => Errno::EEXIST,
        ErrorKind::NotADirectory => Errno::ENOTDIR,
        ErrorKind::IsADirectory => Errno::EISDIR,
        ErrorKind::DirectoryNotEmpty => Errno::ENOTEMPTY,
        ErrorKind::StorageFull => Errno::ENOSPC,
        ErrorKind::FileTooLarge => Errno::EFBIG,
        ErrorKind::InvalidFilename | ErrorKind::InvalidInput => Errno::EINVAL,
        ErrorKind::ReadOnlyFilesystem => Errno::EROFS,
        ErrorKind::OutOfMemory => Errno::ENOMEM,
        ErrorKind::CrossesDevices => Errno::EXDEV,
        ErrorKind::TooManyLinks => Errno::EMLINK,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

/// An unsupported operation becomes EPERM (link(2), symlink(2), mknod(2)).
fn not_permitted(errno: Errno) -> Errno {
    if errno == Errno::EOPNOTSUPP { Errno::EPERM } else { errno }
}

/// ENOSYS only if the whole tree has no extended attributes, not just the file system of one node. Reserved attributes give EPERM.
fn none_at_all(error: io::Error) -> Errno {
    match (error.raw_os_error(), error.kind()) {
        (None, ErrorKind::Unsupported | ErrorKind::ReadOnlyFilesystem) => Errno::ENOSYS,
        (None, ErrorKind::PermissionDenied) => Errno::EPERM,
        _ => errno(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_come_back() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-100, 1), (i64::from(i32::MIN), 5)]
        {
            assert_eq!(since_1970(at(seconds, nanoseconds)), (seconds, nanoseconds));
        }
    }
}
