//! Messages for the servers, over volumes and file systems that nobody else sees.

use std::sync::Arc;

use claviger_engine::filesystems;
use claviger_engine::store::MemoryStore;
use claviger_serve::fuse::Image;
use claviger_serve::fuse::tree::Showing;
use claviger_serve::fuzzing;
use claviger_serve::nbd::Export;

use crate::corpus;
use crate::volumes::Sparse;

/// A little more than is read at a time, so that a part is left over.
const EXPORTED: u64 = (1 << 20) + 512;

/// What a client sends from the handshake on. How many bytes are sent back.
pub fn nbd(bytes: &[u8]) -> u64 {
    let export = |name: &str, len| Export::new(name, Arc::new(Sparse { len, ..Sparse::default() }));
    let read_only = Export { read_only: true, description: "for reading".into(), ..export("b", 700) };
    fuzzing::nbd(vec![export("a", EXPORTED), read_only], bytes).expect("there are sockets")
}

/// What the kernel sends to a mounted image.
pub fn fuse_image(messages: &[u8]) {
    let image = |read_only| Image { read_only, uid: 0, gid: 0, store: Arc::new(MemoryStore::new(vec![5; 10_000])) };
    [false, true].map(image).into_iter().for_each(|image| fuzzing::fuse_image(image, messages));
}

/// What the kernel sends to a mounted FAT with a file in it. How many messages are carried out.
pub fn fuse_tree(messages: &[u8]) -> usize {
    let fat = Arc::new(MemoryStore::new(corpus::filesystems().swap_remove(0)));
    let (_, tree) = filesystems::open(fat).expect("it opens");
    fuzzing::fuse_tree(tree.into(), Showing::volume(false), messages)
}
