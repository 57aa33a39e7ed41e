//! Nodes without a descriptor. A process can have only so many descriptors, so of nodes that were not used for long, only the path is
//! kept. It is never trusted: what it leads to must have the same number and time of creation.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use super::nodes::{HostNode, Identity};
use super::{NODE, open_below};

/// A node as it can be found again.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    /// Where it was, below the root folder.
    path: PathBuf,
    pub(super) identity: Identity,
}

impl Parked {
    /// `None` if it could not be found again: it has no name any more, or its file system does not record when it was created.
    pub(super) fn new(node: &HostNode, top: &Path) -> Option<Self> {
        node.identity.created?;
        let path = path_of(node)?;
        let path = path.strip_prefix(top).ok().filter(|path| path.file_name().is_some())?;
        Some(Self { path: path.to_owned(), identity: node.identity })
    }

    /// Opens the node again.
    ///
    /// # Errors
    /// `ESTALE` if another node has its name now, or none.
    pub(super) fn open(&self, root: &HostNode) -> io::Result<HostNode> {
        let found = open_below(root, self.path.as_os_str(), NODE, Mode::empty());
        let found = found.map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Errno::STALE.into(),
            _ => e,
        })?;
        let node = HostNode::new(found, false)?;
        if node.identity == self.identity { Ok(node) } else { Err(Errno::STALE.into()) }
    }

    /// Follows a folder that was moved from one path below the root to another.
    pub(super) fn follow(&mut self, from: &Path, to: &Path) -> bool {
        let Ok(below) = self.path.strip_prefix(from) else { return false };
        self.path = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
        true
    }
}

/// The path by which a node was opened, as it is now; `None` if it has none.
pub(super) fn path_of(node: &HostNode) -> Option<PathBuf> {
    /// What the kernel adds to the path of a removed node (proc_pid_fd(5)).
    const REMOVED: &[u8] = b" (deleted)";
    let path = rustix::fs::readlinkat(CWD, node.path(), Vec::new()).ok()?.into_bytes();
    let path: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&path);
    let has_name = !path.as_encoded_bytes().ends_with(REMOVED);
    has_name.then(|| path.into())
}
