//! What depends on the path of a node: the names in a folder, and in some folders the header of a file.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::coder::Coder;
use super::names::NameCoder;
use crate::trees::{Attributes, Ciphertext, Entry, Listing, Node, Space, Tree, Use};

/// The chains of all nodes that were handed out, until they are given back.
#[derive(Default)]
pub(super) struct Chains(Mutex<HashMap<Node, Held>>);

struct Held {
    /// What the names below it depend on; `None` if its own name, or one above, does not decrypt.
    chain: Option<Option<u64>>,
    times: u64,
}

impl Chains {
    fn held(&self) -> MutexGuard<'_, HashMap<Node, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chain of a node below the root. `None` if it has none.
    fn of(&self, node: Node) -> Option<Option<u64>> {
        self.held().get(&node).and_then(|held| held.chain)
    }

    fn remember(&self, node: Node, chain: Option<Option<u64>>) {
        let mut held = self.held();
        let times = held.get(&node).map_or(0, |held| held.times);
        held.insert(node, Held { chain, times: times + 1 });
    }

    fn forget(&self, node: Node, times: u64) {
        let mut held = self.held();
        if let Some(of) = held.get_mut(&node) {
            of.times = of.times.saturating_sub(times);
            if of.times == 0 {
                held.remove(&node);
            }
        }
    }
}

/// A folder's names, and the chains of its nodes.
pub(super) struct Paths {
    pub coder: Arc<Coder>,
    pub names: NameCoder,
    pub chains: Chains,
}

impl Paths {
    /// What the names in a folder, or the header of a file, depend on. `None` if that is unknown.
    pub fn chain(&self, tree: &dyn Tree, node: Node) -> Option<Option<u64>> {
        match node == tree.root() || !self.names.chained {
            true => Some(self.names.root()),
            false => self.chains.of(node),
        }
    }
}

/// The tree of a folder, which remembers the chain of each node that it hands out. It is for reading only.
pub(super) struct ChainedTree {
    pub lower: Arc<dyn Tree>,
    pub paths: Arc<Paths>,
}

impl ChainedTree {
    /// Remembers a node of this stored name.
    fn found(&self, folder: Node, stored: &OsStr, node: Node) -> Node {
        let Paths { coder, names, chains } = &*self.paths;
        let above = self.paths.chain(&*self.lower, folder);
        let own = above.and_then(|above| names.decode(coder, stored.as_bytes(), above));
        chains.remember(node, own.map(|(_, chain)| chain));
        node
    }
}

impl Tree for ChainedTree {
    fn root(&self) -> Node {
        self.lower.root()
    }

    fn folds_case(&self) -> bool {
        self.lower.folds_case()
    }

    fn changes_elsewhere(&self) -> bool {
        self.lower.changes_elsewhere()
    }

    fn warnings(&self) -> Vec<String> {
        self.lower.warnings()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.lower.lookup(folder, name).map(|node| self.found(folder, name, node))
    }

    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        self.lower.take(folder, entry).map(|node| self.found(folder, &entry.name, node))
    }

    fn forget(&self, node: Node, times: u64) {
        self.paths.chains.forget(node, times);
        self.lower.forget(node, times);
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.lower.attributes(node)
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        self.lower.list(folder)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        self.lower.list_all(folder)
    }

    fn read_at(&self, node: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.lower.read_at(node, offset, out)
    }

    fn show_ciphertext(&self) {
        self.lower.show_ciphertext();
    }

    fn ciphertext(&self, file: Node) -> io::Result<Option<Ciphertext>> {
        self.lower.ciphertext(file)
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        self.lower.link_target(link)
    }

    fn stream(&self, file: Node, name: &OsStr) -> io::Result<Node> {
        self.lower.stream(file, name)
    }

    fn streams(&self, file: Node) -> io::Result<Vec<OsString>> {
        self.lower.streams(file)
    }

    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        self.lower.extended(node, name)
    }

    fn list_extended(&self, node: Node) -> io::Result<Vec<OsString>> {
        self.lower.list_extended(node)
    }

    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        self.lower.open(file, usage)
    }

    fn release(&self, file: Node) -> io::Result<()> {
        self.lower.release(file)
    }

    fn space(&self) -> io::Result<Space> {
        self.lower.space()
    }
}
