//! The table of nodes in use.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::attributes;
use super::parked::{Parked, path_of};
use crate::trees::{Attributes, Node, NodeKind, shrink};

/// The root folder.
pub(super) const ROOT: Node = 1;

/// How many nodes are parked at a time. The thread that needs a descriptor does it.
const BATCH: usize = 64;

/// The host's key of a node: device and number. Stable while a descriptor is open. Later, another node may get the same.
type Key = (u64, u64);

/// What tells a node from all others, also later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    key: Key,
    /// When it was created, in seconds and nanoseconds, if the file system records it.
    pub(super) created: Option<(i64, u32)>,
}

/// A node in use. Its open files are closed with it.
pub(super) struct HostNode {
    /// Opened only as a reference (`O_PATH`), or for reading.
    descriptor: Arc<File>,
    /// Whether the descriptor can be read, without a change of the access time.
    readable: bool,
    pub(super) identity: Identity,
    pub(super) kind: NodeKind,
    /// Whether it was used since somebody looked last.
    used: AtomicBool,
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
    pub(super) fn new(descriptor: OwnedFd, readable: bool) -> io::Result<Self> {
        let of = attributes::of(&descriptor)?;
        let kind = attributes::kind(FileType::from_raw_mode(of.stx_mode.into()));
        let identity = Identity { key: (attributes::device(&of), of.stx_ino), created: attributes::created(&of) };
        let (descriptor, used) = (Arc::new(descriptor.into()), AtomicBool::new(false));
        Ok(Self { descriptor, readable, identity, kind, used, open: RwLock::default() })
    }

    /// Whether nobody needs its descriptor now.
    fn is_unused(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.open().times == 0
    }

    /// Whether it is unused, and nobody has used it since the last call.
    fn is_idle(self: &Arc<Self>) -> bool {
        self.is_unused() && !self.used.swap(false, Ordering::Relaxed)
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
    root: Arc<HostNode>,
    /// How many of them have descriptors. Files that are open have more.
    most: usize,
}

struct Table {
    nodes: HashMap<Node, Known>,
    numbers: HashMap<Key, Node>,
    next: Node,
    /// Number of nodes with a descriptor, without the root.
    descriptors: usize,
    /// These nodes, the next to be parked first. Some may be gone.
    order: VecDeque<Node>,
}

struct Known {
    state: State,
    /// How often it was returned and not yet given back.
    returned: u64,
}

/// Which of two descriptors of an unused node stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefer {
    Known,
    New,
}

enum State {
    Here(Arc<HostNode>),
    Parked(Arc<Parked>),
}

impl Nodes {
    /// Leaves two thirds of this process's descriptors to files that are open, and to others.
    pub(super) fn new(root: OwnedFd) -> io::Result<Self> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = if has_lasting_numbers(&root)? { limit / 3 } else { u64::MAX };
        Self::with_room(root, usize::try_from(most).unwrap_or(usize::MAX))
    }

    pub(super) fn with_room(root: OwnedFd, most: usize) -> io::Result<Self> {
        let root = Arc::new(HostNode::new(root, false)?);
        let numbers = HashMap::from([(root.identity.key, ROOT)]);
        // The root is never given back, and never parked.
        let nodes = HashMap::from([(ROOT, Known { state: State::Here(root.clone()), returned: u64::MAX })]);
        let table = Table { nodes, numbers, next: ROOT + 1, descriptors: 0, order: VecDeque::new() };
        Ok(Self { table: RwLock::new(table), root, most })
    }

    /// The device of the root folder.
    pub(super) fn device(&self) -> u64 {
        self.root.identity.key.0
    }

    pub(super) fn get(&self, node: Node) -> io::Result<Arc<HostNode>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let parked = match &table.nodes.get(&node).ok_or(Errno::NOENT)?.state {
            State::Here(node) => {
                // Most were: this memory then stays shared between processors.
                if !node.used.load(Ordering::Relaxed) {
                    node.used.store(true, Ordering::Relaxed);
                }
                return Ok(node.clone());
            }
            State::Parked(parked) => parked.clone(),
        };
        drop(table);
        let opened = parked.open(&self.root)?;
        let mut table = self.table_mut();
        let opened = table.unpark(node, opened).ok_or(Errno::NOENT)?;
        self.make_room(table);
        Ok(opened)
    }

    /// Returns the node of a descriptor; a known node counts once more.
    pub(super) fn add(&self, descriptor: OwnedFd) -> io::Result<Node> {
        Ok(self.returned(HostNode::new(descriptor, false)?, Prefer::Known).0)
    }

    /// Like [`Nodes::add`], for a descriptor of a node's new name: the old one is often removed next.
    pub(super) fn add_renamed(&self, descriptor: OwnedFd) -> io::Result<Node> {
        Ok(self.returned(HostNode::new(descriptor, false)?, Prefer::New).0)
    }

    /// Like [`Nodes::add`], for a descriptor that can be read. `None` if it is not that of a file.
    pub(super) fn add_readable(&self, descriptor: OwnedFd) -> io::Result<Option<Node>> {
        let node = HostNode::new(descriptor, true)?;
        Ok((node.kind == NodeKind::File).then(|| self.returned(node, Prefer::Known).0))
    }

    /// Like [`Nodes::add`], for a new file that stays open.
    pub(super) fn add_open(&self, file: File) -> io::Result<Node> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let node = HostNode::new(rustix::fs::openat(CWD, path(&file), flags, Mode::empty())?, false)?;
        let (number, node) = self.returned(node, Prefer::Known);
        node.keep(file, true, true);
        Ok(number)
    }

    fn returned(&self, node: HostNode, prefer: Prefer) -> (Node, Arc<HostNode>) {
        let mut table = self.table_mut();
        let returned = table.returned(node, prefer);
        self.make_room(table);
        returned
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

    /// Parks idle nodes if too many have descriptors.
    fn make_room(&self, mut table: RwLockWriteGuard<'_, Table>) {
        if table.descriptors > self.most
            && let Some(top) = path_of(&self.root)
        {
            let parked = table.park(self.most.saturating_sub(BATCH), |node| Parked::new(node, &top));
            // Closing may take long on a network.
            drop(table);
            drop(parked);
        }
    }

    /// Parked nodes follow a folder that has just been moved. Two were exchanged if `exchanged`. A file is found when its new name is
    /// looked up.
    pub(super) fn moved(&self, from: (&HostNode, &OsStr), to: (&HostNode, &OsStr), exchanged: bool) {
        let any_parked = |table: &Table| table.descriptors + 1 < table.nodes.len();
        if !any_parked(&self.table.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let of_folder = is_folder(to) || exchanged && is_folder(from);
        if !of_folder {
            return;
        }
        let mut table = self.table_mut();
        let Some(top) = path_of(&self.root) else { return };
        let below = |(folder, name): (&HostNode, &OsStr)| Some(path_of(folder)?.strip_prefix(&top).ok()?.join(name));
        let (Some(from), Some(to)) = (below(from), below(to)) else { return };
        for known in table.nodes.values_mut() {
            if let State::Parked(parked) = &mut known.state
                && let parked = Arc::make_mut(parked)
                && !parked.follow(&from, &to)
                && exchanged
            {
                parked.follow(&to, &from);
            }
        }
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a node of this file system keeps its number when the system forgets it, as with those that store numbers. FAT makes new ones.
fn has_lasting_numbers(root: &OwnedFd) -> io::Result<bool> {
    /// ext2 to ext4, XFS, btrfs, F2FS, bcachefs, ZFS, tmpfs (include/uapi/linux/magic.h).
    const LASTING: [u64; 7] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0xCA45_1A4E, 0x2FC1_2FC1, 0x0102_1994];
    Ok(LASTING.contains(&(rustix::fs::fstatfs(root)?.f_type as u64)))
}

fn is_folder((folder, name): (&HostNode, &OsStr)) -> bool {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

impl Table {
    fn returned(&mut self, node: HostNode, prefer: Prefer) -> (Node, Arc<HostNode>) {
        let key = node.identity.key;
        let same = self.numbers.get(&key).copied().filter(|number| self.is_same(*number, &node));
        let number = same.unwrap_or(self.next);
        let node = match self.nodes.get(&number).map(|known| &known.state) {
            Some(State::Here(before)) if prefer == Prefer::Known || !before.is_unused() => before.clone(),
            _ => Arc::new(node),
        };
        let state = State::Here(node.clone());
        let had_descriptor = match self.nodes.get_mut(&number) {
            Some(known) => {
                known.returned = known.returned.saturating_add(1);
                matches!(std::mem::replace(&mut known.state, state), State::Here(_))
            }
            None => {
                self.next += 1;
                self.numbers.insert(key, number);
                self.nodes.insert(number, Known { state, returned: 1 });
                false
            }
        };
        if !had_descriptor {
            self.has_descriptor(number);
        }
        (number, node)
    }

    /// Whether this number is that of the same node. While that was parked, another one may have got its key.
    fn is_same(&self, number: Node, node: &HostNode) -> bool {
        match self.nodes.get(&number).map(|known| &known.state) {
            Some(State::Here(_)) => true,
            Some(State::Parked(parked)) => parked.identity == node.identity,
            None => false,
        }
    }

    /// Gives a parked node a descriptor. `None` if it was forgotten meanwhile.
    fn unpark(&mut self, number: Node, opened: HostNode) -> Option<Arc<HostNode>> {
        let known = self.nodes.get_mut(&number)?;
        if let State::Here(node) = &known.state {
            return Some(node.clone());
        }
        let node = Arc::new(opened);
        known.state = State::Here(node.clone());
        self.has_descriptor(number);
        Some(node)
    }

    fn has_descriptor(&mut self, number: Node) {
        self.descriptors += 1;
        self.order.push_back(number);
        if self.order.len() > 2 * self.descriptors + BATCH {
            self.order
                .retain(|number| self.nodes.get(number).is_some_and(|known| matches!(known.state, State::Here(_))));
        }
    }

    /// Parks idle nodes until only this many have descriptors, or enough have been looked at. Returns them.
    fn park(&mut self, most: usize, parked: impl Fn(&HostNode) -> Option<Parked>) -> Vec<State> {
        let mut before = Vec::new();
        for _ in 0..4 * BATCH {
            if self.descriptors <= most {
                break;
            }
            let Some(number) = self.order.pop_front() else { break };
            let Some(known) = self.nodes.get_mut(&number) else { continue };
            let State::Here(node) = &known.state else { continue };
            match Some(node).filter(|node| node.is_idle()).and_then(|node| parked(node)) {
                Some(parked) => {
                    before.push(std::mem::replace(&mut known.state, State::Parked(Arc::new(parked))));
                    self.descriptors -= 1;
                }
                None => self.order.push_back(number),
            }
        }
        before
    }

    /// Removes a node that is neither held nor open.
    fn remove_unused(&mut self, number: Node) {
        let Some(known) = self.nodes.get(&number).filter(|known| known.returned == 0) else { return };
        let key = match &known.state {
            State::Here(node) if node.open().times > 0 => return,
            State::Here(node) => {
                self.descriptors -= 1;
                node.identity.key
            }
            State::Parked(parked) => parked.identity.key,
        };
        // Another node may have its key by now.
        if self.numbers.get(&key) == Some(&number) {
            self.numbers.remove(&key);
        }
        self.nodes.remove(&number);
        shrink(&mut self.numbers);
        shrink(&mut self.nodes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{NODE, open_below};
    use super::*;

    /// A folder with the files `0` to `199` in `a`, and its nodes, ten of which may have descriptors.
    fn folder() -> (tempfile::TempDir, Nodes, Node, Vec<Node>) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(dir.path().join("a")).expect("it is new");
        let root = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("it is there");
        let nodes = Nodes::with_room(root, 10).expect("a table");
        let look_up = |folder: Node, name: &str| {
            let folder = nodes.get(folder).expect("a folder");
            nodes.add(open_below(&folder, name.as_ref(), NODE, Mode::empty()).expect("it is there")).expect("a node")
        };
        let a = look_up(ROOT, "a");
        let files = (0..200).map(|number| {
            fs::write(dir.path().join(format!("a/{number}")), number.to_string()).expect("there is room");
            look_up(a, &number.to_string())
        });
        let files: Vec<Node> = files.collect();
        (dir, nodes, a, files)
    }

    fn contents(nodes: &Nodes, node: Node) -> io::Result<String> {
        io::read_to_string(nodes.get(node)?.reopen(OFlags::RDONLY)?)
    }

    fn descriptors(nodes: &Nodes) -> usize {
        let table = nodes.table_mut();
        let here = table.nodes.values().filter(|known| matches!(known.state, State::Here(_))).count();
        assert_eq!(here, table.descriptors + 1);
        here
    }

    #[test]
    fn there_are_more_nodes_than_descriptors() {
        let (_dir, nodes, a, files) = folder();
        for _ in 0..2 {
            for (number, file) in files.iter().enumerate() {
                assert_eq!(contents(&nodes, *file).expect("it is the same file"), number.to_string());
                assert!(descriptors(&nodes) < 20);
            }
        }
        for file in files {
            nodes.forget(file, 1);
        }
        nodes.forget(a, 1);
        let table = nodes.table_mut();
        assert_eq!((table.nodes.len(), table.numbers.len(), table.descriptors), (1, 1, 0));
    }

    #[test]
    fn a_parked_node_follows_its_folder_and_is_never_another_one() {
        let (dir, nodes, _, files) = folder();
        fs::rename(dir.path().join("a"), dir.path().join("b")).expect("it is ours");
        assert_eq!(
            contents(&nodes, files[0]).expect_err("the move was not reported").raw_os_error(),
            Some(Errno::STALE.raw_os_error())
        );
        nodes.moved((&nodes.root, "a".as_ref()), (&nodes.root, "b".as_ref()), false);
        assert_eq!(contents(&nodes, files[0]).expect("it was found"), "0");
        fs::write(dir.path().join("b/other"), "other").expect("there is room");
        fs::rename(dir.path().join("b/other"), dir.path().join("b/7")).expect("it is ours");
        assert_eq!(
            contents(&nodes, files[7]).expect_err("another file").raw_os_error(),
            Some(Errno::STALE.raw_os_error())
        );
        let found = nodes.add(open_below(&nodes.root, "b/7".as_ref(), NODE, Mode::empty()).expect("it is there"));
        let found = found.expect("a node");
        assert_ne!(found, files[7]);
        assert_eq!(contents(&nodes, found).expect("it is new"), "other");
    }

    #[test]
    fn what_is_open_or_has_no_name_keeps_its_descriptor() {
        let (dir, nodes, a, files) = folder();
        let open = nodes.get(files[3]).expect("it is there");
        open.keep(open.reopen(OFlags::RDONLY).expect("it opens"), true, false);
        drop(open);
        let removed = nodes.get(files[4]).expect("it is there");
        fs::remove_file(dir.path().join("a/3")).expect("it is ours");
        fs::remove_file(dir.path().join("a/4")).expect("it is ours");
        drop(removed);
        for file in files.iter().skip(5).chain([&a]) {
            nodes.get(*file).expect("it is there");
        }
        assert_eq!(contents(&nodes, files[3]).expect("it is open"), "3");
        assert_eq!(contents(&nodes, files[4]).expect("it is held"), "4");
        nodes.release(files[3]).expect("it is open");
        assert!(descriptors(&nodes) < 20);
    }
}
