//! The table of nodes in use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::attributes;
use crate::trees::{Attributes, Node, NodeKind, shrink};

/// The root folder.
pub(super) const ROOT: Node = 1;

/// The host's identity of a node: device and number. Stable while a descriptor is open.
type Key = (u64, u64);

/// A node in use. Its open files are closed with it.
pub(super) struct HostNode {
    /// Opened only as a reference (`O_PATH`), or for reading.
    descriptor: Arc<File>,
    /// Whether the descriptor can be read, without a change of the access time.
    readable: bool,
    key: Key,
    pub(super) kind: NodeKind,
    open: RwLock<Open>,
}

/// A file's open descriptors, while somebody has it open.
#[derive(Default)]
struct Open {
    times: u64,
    reading: Option<Arc<File>>,
    writing: Option<Arc<File>>,
}

/// The direction of data.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    Read,
    Write,
}

impl Open {
    fn of(&mut self, direction: Direction) -> &mut Option<Arc<File>> {
        match direction {
            Direction::Read => &mut self.reading,
            Direction::Write => &mut self.writing,
        }
    }
}

impl AsFd for HostNode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl HostNode {
    fn new(descriptor: OwnedFd, readable: bool) -> io::Result<Self> {
        let of = attributes::of(&descriptor)?;
        let kind = attributes::kind(FileType::from_raw_mode(of.stx_mode.into()));
        let (descriptor, key) = (Arc::new(descriptor.into()), (attributes::device(&of), of.stx_ino));
        Ok(Self { descriptor, readable, key, kind, open: RwLock::default() })
    }

    /// See [`attributes::read`].
    pub(super) fn attributes(&self, device: u64) -> io::Result<Attributes> {
        attributes::read(self, device)
    }

    /// A path to the node itself, for calls that take no such descriptor. It leads to this node only, and a link is not followed
    /// further (proc_pid_fd(5)).
    pub(super) fn path(&self) -> String {
        path(&*self.descriptor)
    }

    pub(super) fn reopen(&self, flags: OFlags) -> io::Result<File> {
        let open = |flags| rustix::fs::openat(CWD, self.path(), flags | OFlags::CLOEXEC, Mode::empty());
        let opened = match open(flags) {
            // Only the owner and root may use this flag (open(2)).
            Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => open(flags - OFlags::NOATIME),
            opened => opened,
        };
        Ok(opened?.into())
    }

    pub(super) fn must_be_file(&self) -> io::Result<()> {
        match self.kind {
            NodeKind::File => Ok(()),
            NodeKind::Folder => Err(Errno::ISDIR.into()),
            NodeKind::Link | NodeKind::Special => Err(Errno::INVAL.into()),
        }
    }

    pub(super) fn set_mode(&self, mode: u16) -> io::Result<()> {
        Ok(rustix::fs::chmodat(CWD, self.path(), super::mode_bits(mode), AtFlags::empty())?)
    }

    /// A descriptor that can be read, if there is one.
    pub(super) fn readable(&self) -> Option<&Arc<File>> {
        Some(&self.descriptor).filter(|_| self.readable)
    }

    /// The file open in that direction, otherwise the one that `open` opens. It is kept if the node is open.
    pub(super) fn opened(
        &self,
        direction: Direction,
        open: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<Arc<File>> {
        let kept = self.open();
        let file = match direction {
            Direction::Read => &kept.reading,
            Direction::Write => &kept.writing,
        };
        let unopened = || self.readable().filter(|_| kept.times == 0 && matches!(direction, Direction::Read));
        if let Some(file) = file.as_ref().or_else(unopened) {
            return Ok(file.clone());
        }
        drop(kept);
        let file = Arc::new(open()?);
        let mut kept = self.open_mut();
        if kept.times > 0 {
            kept.of(direction).get_or_insert_with(|| file.clone());
        }
        Ok(file)
    }

    /// Counts one more open of the node, with `file`, which can be read and written as given.
    pub(super) fn keep(&self, file: File, reads: bool, writes: bool) {
        let (file, mut open) = (Arc::new(file), self.open_mut());
        open.times += 1;
        if reads {
            open.reading.get_or_insert_with(|| file.clone());
        }
        if writes {
            open.writing.get_or_insert(file);
        }
    }

    fn open(&self) -> RwLockReadGuard<'_, Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_mut(&self) -> RwLockWriteGuard<'_, Open> {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A path through this thread: a thread may have its own descriptor table, with other numbers.
fn path(descriptor: &impl AsRawFd) -> String {
    format!("/proc/thread-self/fd/{}", descriptor.as_raw_fd())
}

/// All nodes returned and not yet given back.
pub(super) struct Nodes {
    table: RwLock<Table>,
    device: u64,
}

struct Table {
    nodes: HashMap<Node, Known>,
    numbers: HashMap<Key, Node>,
    next: Node,
}

struct Known {
    node: Arc<HostNode>,
    /// How often it was returned and not yet given back.
    returned: u64,
}

impl Nodes {
    pub(super) fn new(root: OwnedFd) -> io::Result<Self> {
        let node = HostNode::new(root, false)?;
        let device = node.key.0;
        let numbers = HashMap::from([(node.key, ROOT)]);
        // The root is never given back.
        let nodes = HashMap::from([(ROOT, Known { node: Arc::new(node), returned: u64::MAX })]);
        Ok(Self { table: RwLock::new(Table { nodes, numbers, next: ROOT + 1 }), device })
    }

    /// The device of the root folder.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    pub(super) fn get(&self, node: Node) -> io::Result<Arc<HostNode>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.nodes.get(&node).map(|known| known.node.clone()).ok_or_else(|| Errno::NOENT.into())
    }

    /// Returns the node of a descriptor; a known node counts once more.
    pub(super) fn add(&self, descriptor: OwnedFd) -> io::Result<Node> {
        Ok(self.table_mut().returned(HostNode::new(descriptor, false)?).0)
    }

    /// Like [`Nodes::add`], for a descriptor that can be read. `None` if it is not that of a file.
    pub(super) fn add_readable(&self, descriptor: OwnedFd) -> io::Result<Option<Node>> {
        let node = HostNode::new(descriptor, true)?;
        Ok((node.kind == NodeKind::File).then(|| self.table_mut().returned(node).0))
    }

    /// Like [`Nodes::add`], for a new file that stays open.
    pub(super) fn add_open(&self, file: File) -> io::Result<Node> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let node = HostNode::new(rustix::fs::openat(CWD, path(&file), flags, Mode::empty())?, false)?;
        let (number, node) = self.table_mut().returned(node);
        node.keep(file, true, true);
        Ok(number)
    }

    /// Returns a node once more.
    pub(super) fn again(&self, node: Node) -> io::Result<Node> {
        let mut table = self.table_mut();
        let known = table.nodes.get_mut(&node).ok_or(Errno::NOENT)?;
        known.returned = known.returned.saturating_add(1);
        Ok(node)
    }

    pub(super) fn forget(&self, node: Node, times: u64) {
        let mut table = self.table_mut();
        if let Some(known) = table.nodes.get_mut(&node).filter(|_| node != ROOT) {
            known.returned = known.returned.saturating_sub(times);
            table.remove_unused(node);
        }
    }

    pub(super) fn release(&self, node: Node) -> io::Result<()> {
        let known = self.get(node)?;
        let mut open = known.open_mut();
        open.times = open.times.saturating_sub(1);
        if open.times == 0 {
            *open = Open::default();
            drop(open);
            self.table_mut().remove_unused(node);
        }
        Ok(())
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn returned(&mut self, node: HostNode) -> (Node, Arc<HostNode>) {
        let number = match self.numbers.entry(node.key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                let number = *free.insert(self.next);
                self.next += 1;
                number
            }
        };
        let known = self.nodes.entry(number).or_insert_with(|| Known { node: Arc::new(node), returned: 0 });
        known.returned = known.returned.saturating_add(1);
        (number, known.node.clone())
    }

    /// Removes a node that is neither held nor open.
    fn remove_unused(&mut self, number: Node) {
        let unused = |known: &&Known| known.returned == 0 && known.node.open().times == 0;
        if let Some(known) = self.nodes.get(&number).filter(unused) {
            self.numbers.remove(&known.node.key);
            self.nodes.remove(&number);
            shrink(&mut self.numbers);
            shrink(&mut self.nodes);
        }
    }
}
