//! Ways into the servers that need no kernel and no other process, for the fuzz targets of this project. No promise is made about them.

use std::sync::Arc;

use claviger_engine::Result;
use claviger_engine::trees::Tree;

use crate::fuse::tree::{self, Showing};
use crate::fuse::{self, Image};
use crate::nbd::{self, Export};

/// Serves `exports` to a client of NBD that has sent `bytes`, of which the first 64 KiB count, and ends there. How many bytes it is sent.
///
/// # Errors
/// `Misuse` for invalid exports, and `Io` if the system has no more sockets.
pub fn nbd(exports: Vec<Export>, bytes: &[u8]) -> Result<u64> {
    nbd::fuzz(exports, bytes)
}

/// Answers messages as the kernel sends them over /dev/fuse, one behind the other, to a mounted image.
pub fn fuse_image(image: Image, messages: &[u8]) {
    fuse::fuzz(image, messages);
}

/// The same, to a mounted tree. How many are carried out.
pub fn fuse_tree(tree: Arc<dyn Tree>, showing: Showing, messages: &[u8]) -> usize {
    tree::fuzz(tree, showing, messages)
}
