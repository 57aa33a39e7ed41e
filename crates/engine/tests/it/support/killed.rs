//! A program that is killed at some step.

use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{Attributes, Entry, NewNode, Node, Renaming, Space, Tree, Use};

/// A folder that can be changed only so often: the program is killed then.
pub struct Killed {
    folder: HostFolder,
    left: AtomicUsize,
}

impl Killed {
    /// Allows so many changes.
    pub fn new(folder: HostFolder, left: usize) -> Self {
        Self { folder, left: AtomicUsize::new(left) }
    }

    /// Whether more changes would be possible.
    pub fn lives(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    fn step<T>(&self, what: impl FnOnce(&HostFolder) -> io::Result<T>) -> io::Result<T> {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| io::Error::other("killed")).and_then(|_| what(&self.folder))
    }
}

impl Tree for Killed {
    fn root(&self) -> Node {
        self.folder.root()
    }
    fn writable(&self) -> bool {
        true
    }
    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.folder.lookup(folder, name)
    }
    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        self.folder.take(folder, entry)
    }
    fn forget(&self, node: Node, times: u64) {
        self.folder.forget(node, times);
    }
    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.folder.attributes(node)
    }
    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        self.folder.list(folder)
    }
    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.folder.read_at(file, offset, out)
    }
    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        self.folder.open(file, usage)
    }
    fn release(&self, file: Node) -> io::Result<()> {
        self.folder.release(file)
    }
    fn space(&self) -> io::Result<Space> {
        self.folder.space()
    }
    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, usage: Use) -> io::Result<Node> {
        self.step(|tree| tree.create_open(folder, name, new, usage))
    }
    fn make_folder(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.step(|tree| tree.make_folder(folder, name, new))
    }
    fn make_link(&self, folder: Node, name: &OsStr, target: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.step(|tree| tree.make_link(folder, name, target, new))
    }
    fn add_name(&self, node: Node, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.step(|tree| tree.add_name(node, folder, name))
    }
    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        // Half of it comes.
        self.step(|tree| tree.write_at(file, offset, &data[..data.len() / 2]))?;
        self.step(|tree| tree.write_at(file, offset, data))
    }
    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
        self.step(|tree| tree.set_len(file, len))
    }
    fn set_mode(&self, node: Node, mode: u16) -> io::Result<()> {
        self.step(|tree| tree.set_mode(node, mode))
    }
    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to: &OsStr, how: Renaming) -> io::Result<()> {
        self.step(|tree| tree.rename(folder, name, to_folder, to, how))
    }
    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        self.step(|tree| tree.remove(folder, name))
    }
}
