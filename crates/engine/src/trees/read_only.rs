use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;

use super::{Attributes, Ciphertext, Entry, Listing, Node, Space, Tree, Use, read_only};

/// Another tree, made read-only.
pub struct ReadOnly(pub Arc<dyn Tree>);

impl Tree for ReadOnly {
    fn root(&self) -> Node {
        self.0.root()
    }

    fn folds_case(&self) -> bool {
        self.0.folds_case()
    }

    fn changes_elsewhere(&self) -> bool {
        self.0.changes_elsewhere()
    }

    fn warnings(&self) -> Vec<String> {
        self.0.warnings()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.0.lookup(folder, name)
    }

    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        self.0.take(folder, entry)
    }

    fn forget(&self, node: Node, times: u64) {
        self.0.forget(node, times);
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.0.attributes(node)
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        self.0.list(folder)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        self.0.list_all(folder)
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(file, offset, out)
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        self.0.link_target(link)
    }

    fn show_ciphertext(&self) {
        self.0.show_ciphertext();
    }

    fn ciphertext(&self, file: Node) -> io::Result<Option<Ciphertext>> {
        self.0.ciphertext(file)
    }

    fn stream(&self, file: Node, name: &OsStr) -> io::Result<Node> {
        self.0.stream(file, name)
    }

    fn streams(&self, file: Node) -> io::Result<Vec<OsString>> {
        self.0.streams(file)
    }

    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        self.0.extended(node, name)
    }

    fn list_extended(&self, node: Node) -> io::Result<Vec<OsString>> {
        self.0.list_extended(node)
    }

    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        if usage.write { Err(read_only()) } else { self.0.open(file, usage) }
    }

    fn release(&self, file: Node) -> io::Result<()> {
        self.0.release(file)
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
}
