//! Entry points into the servers for this project's fuzz targets, without a kernel or another process. Not a stable interface.

use std::sync::Arc;

use claviger_engine::key_process::volume::Keys;
use claviger_engine::store::FileStore;
use claviger_engine::trees::Tree;
use claviger_engine::{Result, Store};

use crate::fuse::tree::{self, Showing};
use crate::fuse::{self, Image};
use crate::nbd::{self, Export};
use crate::{key_process, sessions};

/// Serves `exports` to an NBD client that sends the first 64 KiB of `bytes` and then hangs up. Returns how many bytes it received.
///
/// # Errors
/// `Misuse` for invalid exports, and `Io` if the system has no more sockets.
pub fn nbd(exports: Vec<Export>, bytes: &[u8]) -> Result<u64> {
    nbd::fuzz(exports, bytes)
}

/// Lends `file`, which holds the volume `store`, to a command that sends the first 64 KiB of `bytes` and then hangs up. Returns how many
/// bytes it received.
///
/// # Errors
/// `Io` if the system has no more sockets.
pub fn loans(store: &dyn Store, file: &FileStore, bytes: &[u8]) -> Result<u64> {
    Ok(sessions::fuzz(store, file, bytes)?)
}

/// Carries out consecutive requests to a key process: the order, the segment or file, length, offset in the memory (both 4 bytes) and
/// offset in the file (8 bytes), a byte that is ignored, then the length of the data that follow. Returns how many were carried out.
///
/// # Errors
/// `Io` if the system has no memory.
pub fn key_requests(keys: Keys, requests: &[u8]) -> Result<usize> {
    Ok(key_process::fuzz(keys, requests)?)
}

/// Answers consecutive messages, as the kernel sends them over /dev/fuse, for a mounted image.
pub fn fuse_image(image: Image, messages: &[u8]) {
    fuse::fuzz(image, messages);
}

/// The same for a mounted tree. Returns how many messages were carried out.
pub fn fuse_tree(tree: Arc<dyn Tree>, showing: Showing, messages: &[u8]) -> usize {
    tree::fuzz(tree, showing, messages)
}
