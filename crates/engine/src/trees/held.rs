use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::{Entry, Node, Tree, Use};
use crate::store::Store;

/// A node that is given back on drop, with its tree: `&dyn Tree`, or an `Arc` or `Box` of one.
pub struct HeldNode<T: Deref<Target = dyn Tree>> {
    tree: T,
    node: Node,
}

impl<T: Deref<Target = dyn Tree>> HeldNode<T> {
    /// Takes over a node returned by `tree`.
    pub fn new(tree: T, node: Node) -> Self {
        Self { tree, node }
    }

    /// The node, valid as long as this lives.
    pub fn node(&self) -> Node {
        self.node
    }
}

impl<'a> HeldNode<&'a (dyn Tree + 'static)> {
    /// The node at `path` below the root. Empty steps and `.` are ignored; `..` is not a valid name.
    ///
    /// # Errors
    /// Those of [`Tree::lookup`].
    pub fn find(tree: &'a (dyn Tree + 'static), path: &OsStr) -> io::Result<Self> {
        super::find(tree, path).map(|node| Self::new(tree, node))
    }

    /// The node that an entry of `folder` names.
    ///
    /// # Errors
    /// Those of [`Tree::take`].
    pub fn take(tree: &'a (dyn Tree + 'static), folder: Node, entry: &Entry) -> io::Result<Self> {
        tree.take(folder, entry).map(|node| Self::new(tree, node))
    }

    /// The node of that name in `folder`.
    ///
    /// # Errors
    /// Those of [`Tree::lookup`].
    pub fn lookup(tree: &'a (dyn Tree + 'static), folder: Node, name: &OsStr) -> io::Result<Self> {
        tree.lookup(folder, name).map(|node| Self::new(tree, node))
    }
}

impl<T: Deref<Target = dyn Tree>> Drop for HeldNode<T> {
    fn drop(&mut self) {
        super::forget_but_root(&*self.tree, self.node);
    }
}

/// Keeps a file open for reading until dropped, so that preparations such as decrypting its key happen only once.
pub struct OpenFile<'a> {
    tree: &'a (dyn Tree + 'static),
    file: Node,
}

impl<'a> OpenFile<'a> {
    /// Opens a file whose node is held for as long as this lives.
    ///
    /// # Errors
    /// Those of [`Tree::open`].
    pub fn new(tree: &'a (dyn Tree + 'static), file: Node) -> io::Result<Self> {
        tree.open(file, Use { read: true, write: false }).map(|()| Self { tree, file })
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        // Nothing was written.
        let _ = self.tree.release(self.file);
    }
}

/// A file of a tree as a store. A write may extend the file if it begins at or before its end.
pub struct NodeStore {
    tree: Arc<dyn Tree>,
    node: Node,
}

impl NodeStore {
    /// The contents of `node`, which must be held for as long as this lives.
    pub fn new(tree: Arc<dyn Tree>, node: Node) -> Self {
        Self { tree, node }
    }
}

impl Store for NodeStore {
    /// The current size; 0 if the tree fails.
    fn len(&self) -> u64 {
        self.tree.attributes(self.node).map_or(0, |of| of.size)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.tree.read_at(self.node, offset, out)? {
            read if read == out.len() => Ok(()),
            read => {
                let what = format!("{} bytes at {offset} reach past the end of the file: it has {read}", out.len());
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
            }
        }
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.tree.write_in_place(self.node, offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.tree.sync(self.node, true)
    }

    fn writable(&self) -> bool {
        self.tree.writable()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.tree.set_len(self.node, len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.tree.reserve(self.node, offset, len)
    }
}
