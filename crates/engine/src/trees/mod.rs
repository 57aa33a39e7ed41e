//! Names over bytes: what a file system holds, as folders and files.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::SystemTime;

use crate::error::{Error, ErrorKind};

/// A file or folder of a tree: a number that the tree gives out, and that means the same as long as the tree lives.
pub type Node = u64;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// Bytes.
    File,
    /// Names of other nodes.
    Folder,
    /// A symbolic link.
    Link,
    /// A device, a socket, a pipe, and what else is no data.
    Special,
}

/// What is known about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: NodeKind,
    /// Size of a file, or length of a link's target, in bytes; 0 for all else.
    pub size: u64,
    /// Permission bits, where the file system has them (the lower twelve of Unix's `st_mode`).
    pub mode: Option<u16>,
    /// User and group, where the file system has them.
    pub owner: Option<(u32, u32)>,
    /// When the contents changed.
    pub modified: Option<SystemTime>,
    /// When it was last read, as precisely as the file system keeps that.
    pub accessed: Option<SystemTime>,
    /// When it was made.
    pub created: Option<SystemTime>,
    /// Whether the file system says that it must not be written.
    pub read_only: bool,
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, as bytes of the file system where they are not Unicode. It may hold anything but NUL and `/`.
    pub name: OsString,
    /// What it names.
    pub node: Node,
    /// What that is.
    pub kind: NodeKind,
}

/// How much a file system holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Space {
    /// All that could hold files.
    pub total: u64,
    /// What of it is free.
    pub free: u64,
    /// The unit in which files are stored.
    pub unit: u32,
}

/// Folders and files. All methods may be called from several threads. Errors are those that the system's calls of the
/// same purpose have (`NotFound`, `NotADirectory`, `StorageFull` …); what is damaged is `InvalidData` with an
/// [`ErrorKind::Malformed`] inside (see [`damaged`]); a tree that cannot be written answers `ReadOnlyFilesystem`.
pub trait Tree: Send + Sync {
    /// The outermost folder.
    fn root(&self) -> Node;

    /// Whether anything can be changed.
    fn writable(&self) -> bool {
        false
    }

    /// What people should know before they rely on what they see, such as a journal that was not replayed.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The node of that name in `folder`.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`.
    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node>;

    /// What is known about a node.
    ///
    /// # Errors
    /// `NotFound` if it is no node of this tree.
    fn attributes(&self, node: Node) -> io::Result<Attributes>;

    /// All names in a folder, except `.` and `..`.
    ///
    /// # Errors
    /// `NotADirectory`.
    fn list(&self, folder: Node) -> io::Result<Vec<Entry>>;

    /// Reads from byte `offset` of a file on. The number of bytes read is less than asked for only at the file's end.
    ///
    /// # Errors
    /// `IsADirectory`; `Unsupported` for contents that the file system keeps encrypted or compressed in an unknown way.
    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidInput` if it is none.
    fn link_target(&self, _link: Node) -> io::Result<OsString> {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a symbolic link"))
    }

    /// Writes all of `data` from byte `offset` of a file on, which grows where that is needed.
    ///
    /// # Errors
    /// `StorageFull`, `FileTooLarge`; nothing has changed then.
    fn write_at(&self, _file: Node, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(read_only())
    }

    /// Changes the size of a file; what is new is zero.
    ///
    /// # Errors
    /// `StorageFull`, `FileTooLarge`; nothing has changed then.
    fn set_len(&self, _file: Node, _len: u64) -> io::Result<()> {
        Err(read_only())
    }

    /// Changes the time when the contents changed, and when they were read, as precisely as the file system can.
    ///
    /// # Errors
    /// Those of the store.
    fn set_times(&self, _node: Node, _modified: Option<SystemTime>, _accessed: Option<SystemTime>) -> io::Result<()> {
        Err(read_only())
    }

    /// Makes an empty file.
    ///
    /// # Errors
    /// `AlreadyExists`, `StorageFull`, `InvalidFilename` for a name that the file system cannot hold.
    fn create(&self, _folder: Node, _name: &OsStr) -> io::Result<Node> {
        Err(read_only())
    }

    /// Makes an empty folder.
    ///
    /// # Errors
    /// Those of [`Tree::create`].
    fn make_folder(&self, _folder: Node, _name: &OsStr) -> io::Result<Node> {
        Err(read_only())
    }

    /// Gives a node another name, or another folder. A file, or an empty folder, that has the new name is replaced if
    /// `replace` says so.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `DirectoryNotEmpty`, `InvalidInput` for a folder that would lie in itself.
    fn rename(
        &self,
        _folder: Node,
        _name: &OsStr,
        _to_folder: Node,
        _to_name: &OsStr,
        _replace: bool,
    ) -> io::Result<()> {
        Err(read_only())
    }

    /// Removes a file or an empty folder.
    ///
    /// # Errors
    /// `NotFound`, `DirectoryNotEmpty`.
    fn remove(&self, _folder: Node, _name: &OsStr) -> io::Result<()> {
        Err(read_only())
    }

    /// Keeps the contents of a file until [`Tree::release`] is called as often, although it may be removed meanwhile.
    fn hold(&self, _file: Node) {}

    /// Ends what [`Tree::hold`] began.
    ///
    /// # Errors
    /// Those of the store.
    fn release(&self, _file: Node) -> io::Result<()> {
        Ok(())
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// Those of the store. What was not durable before may be lost.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Makes all changes durable and marks the file system as cleanly unmounted. Changes after it are possible.
    ///
    /// # Errors
    /// Those of [`Tree::flush`].
    fn finish(&self) -> io::Result<()> {
        self.flush()
    }

    /// How much the file system holds.
    ///
    /// # Errors
    /// Those of the store.
    fn space(&self) -> io::Result<Space>;
}

/// The node at `path` below the root. Empty steps and `.` mean nothing; `..` is no name.
///
/// # Errors
/// Those of [`Tree::lookup`].
pub fn find(tree: &dyn Tree, path: &OsStr) -> io::Result<Node> {
    use std::os::unix::ffi::OsStrExt;
    let steps = path.as_bytes().split(|b| *b == b'/').filter(|step| !step.is_empty() && *step != b".");
    steps.into_iter().try_fold(tree.root(), |folder, step| tree.lookup(folder, OsStr::from_bytes(step)))
}

/// A file system that contradicts itself: `what` is wrong with `field`, at byte `offset` of it.
pub fn damaged(field: &'static str, offset: u64, what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Error::new(ErrorKind::Malformed { field, offset, what: what.into() }))
}

/// The answer of a tree that cannot be written.
pub fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "this file system can only be read")
}
