use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::{
    Attributes, Ciphertext, Entry, HeldNode, Listing, NewNode, Node, Renaming, Setting, Space, Special, Tree, Use,
};

/// A folder of a tree as a tree of its own. Its nodes are those of the whole tree.
pub struct Subtree {
    /// Holds the folder's node for as long as this lives.
    root: HeldNode<Arc<dyn Tree>>,
    tree: Arc<dyn Tree>,
}

impl Subtree {
    /// The folder at `path` below the root of `tree`: see [`super::find`].
    ///
    /// # Errors
    /// Those of [`Tree::lookup`].
    pub fn find(tree: &Arc<dyn Tree>, path: &OsStr) -> io::Result<Self> {
        let root = super::find(&**tree, path)?;
        Ok(Self { root: HeldNode::new(tree.clone(), root), tree: tree.clone() })
    }
}

impl Tree for Subtree {
    fn root(&self) -> Node {
        self.root.node()
    }

    fn writable(&self) -> bool {
        self.tree.writable()
    }

    fn folds_case(&self) -> bool {
        self.tree.folds_case()
    }

    fn changes_elsewhere(&self) -> bool {
        self.tree.changes_elsewhere()
    }

    fn warnings(&self) -> Vec<String> {
        self.tree.warnings()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.tree.lookup(folder, name)
    }

    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        self.tree.take(folder, entry)
    }

    fn forget(&self, node: Node, times: u64) {
        self.tree.forget(node, times);
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.tree.attributes(node)
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        self.tree.list(folder)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        self.tree.list_all(folder)
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.tree.read_at(file, offset, out)
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        self.tree.link_target(link)
    }

    fn must_fill(&self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        self.tree.must_fill(file, to, writes)
    }

    fn fill(&self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        self.tree.fill(file, to, writes)
    }

    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.tree.write_at(file, offset, data)
    }

    fn write_in_place(&self, file: Node, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.tree.write_in_place(file, offset, data)
    }

    fn append(&self, file: Node, data: &[u8]) -> io::Result<()> {
        self.tree.append(file, data)
    }

    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
        self.tree.set_len(file, len)
    }

    fn reserve(&self, file: Node, offset: u64, len: u64) -> io::Result<()> {
        self.tree.reserve(file, offset, len)
    }

    fn set_times(&self, node: Node, modified: Option<SystemTime>, accessed: Option<SystemTime>) -> io::Result<()> {
        self.tree.set_times(node, modified, accessed)
    }

    fn set_mode(&self, node: Node, mode: u16) -> io::Result<()> {
        self.tree.set_mode(node, mode)
    }

    fn set_owner(&self, node: Node, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        self.tree.set_owner(node, user, group)
    }

    fn create(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.tree.create(folder, name, new)
    }

    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, usage: Use) -> io::Result<Node> {
        self.tree.create_open(folder, name, new, usage)
    }

    fn make_folder(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.tree.make_folder(folder, name, new)
    }

    fn make_link(&self, folder: Node, name: &OsStr, target: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.tree.make_link(folder, name, target, new)
    }

    fn make_special(&self, folder: Node, name: &OsStr, special: Special, new: &NewNode) -> io::Result<Node> {
        self.tree.make_special(folder, name, special, new)
    }

    fn add_name(&self, node: Node, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.tree.add_name(node, folder, name)
    }

    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to_name: &OsStr, how: Renaming) -> io::Result<()> {
        self.tree.rename(folder, name, to_folder, to_name, how)
    }

    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        self.tree.remove(folder, name)
    }

    fn show_ciphertext(&self) {
        self.tree.show_ciphertext();
    }

    fn ciphertext(&self, file: Node) -> io::Result<Option<Ciphertext>> {
        self.tree.ciphertext(file)
    }

    fn stream(&self, file: Node, name: &OsStr) -> io::Result<Node> {
        self.tree.stream(file, name)
    }

    fn streams(&self, file: Node) -> io::Result<Vec<OsString>> {
        self.tree.streams(file)
    }

    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        self.tree.extended(node, name)
    }

    fn list_extended(&self, node: Node) -> io::Result<Vec<OsString>> {
        self.tree.list_extended(node)
    }

    fn set_extended(&self, node: Node, name: &OsStr, value: &[u8], how: Setting) -> io::Result<()> {
        self.tree.set_extended(node, name, value, how)
    }

    fn remove_extended(&self, node: Node, name: &OsStr) -> io::Result<()> {
        self.tree.remove_extended(node, name)
    }

    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        self.tree.open(file, usage)
    }

    fn release(&self, file: Node) -> io::Result<()> {
        self.tree.release(file)
    }

    fn sync(&self, node: Node, contents_only: bool) -> io::Result<()> {
        self.tree.sync(node, contents_only)
    }

    fn flush(&self) -> io::Result<()> {
        self.tree.flush()
    }

    fn finish(&self) -> io::Result<()> {
        self.tree.finish()
    }

    fn space(&self) -> io::Result<Space> {
        self.tree.space()
    }
}
