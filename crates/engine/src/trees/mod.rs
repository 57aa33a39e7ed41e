//! Names over bytes: what a file system holds, as folders and files.

pub mod copy;
mod held;
pub mod host;
mod read_only;
mod subtree;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::io;
use std::ops::Range;
use std::time::SystemTime;

pub use held::{HeldNode, NodeStore, OpenFile};
pub use read_only::ReadOnly;
pub use subtree::Subtree;

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

/// What a node without data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Pipe,
    /// A Unix socket.
    Socket,
    /// A block device, with Unix's `st_rdev`.
    BlockDevice(u64),
    /// A character device, with Unix's `st_rdev`.
    CharacterDevice(u64),
}

/// The extended attribute in which NTFS's EFS keeps for whom a file is encrypted, as ntfs-3g names it.
pub const EFS_INFO: &str = "system.ntfs_efsinfo";

/// The extended attribute with a file's attributes in Windows, a little-endian number of four bytes, as ntfs-3g names it. It tells an
/// NTFS.
pub const NTFS_ATTRIBUTES: &str = "system.ntfs_attrib";

/// What is known about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: NodeKind,
    /// What exactly a [`NodeKind::Special`] is, where the file system tells.
    pub special: Option<Special>,
    /// The number that people see (Unix's `st_ino`). Two names with the same number are one file.
    pub number: u64,
    /// Names that it has.
    pub links: u32,
    /// Size of a file, or length of a link's target, in bytes; 0 for all else.
    pub size: u64,
    /// Bytes that it takes where it is stored, where the file system tells.
    pub stored: Option<u64>,
    /// Permission bits, where the file system has them (the lower twelve of Unix's `st_mode`).
    pub mode: Option<u16>,
    /// User and group, where the file system has them.
    pub owner: Option<(u32, u32)>,
    /// When the contents changed.
    pub modified: Option<SystemTime>,
    /// When the contents or the attributes changed (Unix's `st_ctime`).
    pub changed: Option<SystemTime>,
    /// When it was last read, as precisely as the file system keeps that.
    pub accessed: Option<SystemTime>,
    /// When it was made.
    pub created: Option<SystemTime>,
    /// Whether the file system says that it must not be written.
    pub read_only: bool,
    /// Whether an NTFS keeps it encrypted (EFS). Windows encrypts what it makes in such a folder.
    pub encrypted: bool,
}

impl Attributes {
    /// Those of a node of which nothing else is known: one name, no times, no owner.
    pub fn new(kind: NodeKind, size: u64, number: u64) -> Self {
        let (links, read_only, encrypted) = (1, false, false);
        let (special, stored, mode, owner) = (None, None, None, None);
        let (modified, changed, accessed, created) = (None, None, None, None);
        Self {
            kind,
            special,
            number,
            links,
            size,
            stored,
            mode,
            owner,
            modified,
            changed,
            accessed,
            created,
            read_only,
            encrypted,
        }
    }
}

/// How a file is kept that the file system itself keeps encrypted, without padding: it has whole sectors of ciphertext.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ciphertext {
    /// Bytes of plaintext.
    pub size: u64,
    /// Where there is ciphertext, in ascending order. All else of the plaintext is zeros.
    pub stored: Vec<Range<u64>>,
}

/// What a new node begins with, where the file system keeps such things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// Permission bits (the lower twelve of Unix's `st_mode`); the file system's own default if there are none.
    pub mode: Option<u16>,
    /// User and group; those of this process if there are none.
    pub owner: Option<(u32, u32)>,
}

/// What an open file is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// It is read.
    pub read: bool,
    /// It is written.
    pub write: bool,
}

/// What becomes of a node that has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renaming {
    /// A file, or an empty folder, is replaced.
    Replace,
    /// It stays, and the renaming fails.
    Keep,
    /// The two change names.
    Exchange,
}

/// How an extended attribute is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Whether it is there or not.
    Any,
    /// Only if it is not there yet.
    Create,
    /// Only if it is there.
    Replace,
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, as bytes of the file system where they are not Unicode. It may hold anything but NUL and `/`.
    pub name: OsString,
    /// What it names. Where a tree keeps something for each node, this is only its number: [`Tree::take`] gives a node.
    pub node: Node,
    /// What that is.
    pub kind: NodeKind,
}

/// All that a folder holds.
#[derive(Debug, Default)]
pub struct Listing {
    /// What can be shown.
    pub entries: Vec<Entry>,
    /// Names that cannot be shown as they should be.
    pub left_out: Vec<LeftOut>,
}

/// A name in a folder that cannot be shown as it should be: it does not decrypt, or no file of this machine can have it.
#[derive(Debug)]
pub struct LeftOut {
    /// The name as it is stored.
    pub name: OsString,
    /// What it names.
    pub kind: NodeKind,
    /// Why it cannot be shown.
    pub why: Error,
    /// Whether it is among the entries all the same, under this name.
    pub listed: bool,
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
    /// Files that there can be, and those that can still be made, where that has a limit.
    #[serde(skip)]
    pub files: Option<(u64, u64)>,
    /// The longest name, in bytes.
    #[serde(skip)]
    pub longest_name: u32,
}

impl Space {
    /// Without a limit for files, and with names of at most 255 bytes.
    pub fn new(total: u64, free: u64, unit: u32) -> Self {
        Self { total, free, unit, files: None, longest_name: 255 }
    }
}

/// Folders and files. All methods may be called from several threads. Errors are those that the system's calls of the
/// same purpose have (`NotFound`, `NotADirectory`, `StorageFull` …); what is damaged is `InvalidData` with an
/// [`ErrorKind::Malformed`] inside (see [`damaged`]); a tree that cannot be written answers `ReadOnlyFilesystem`, and what
/// its file system has not, `Unsupported`.
///
/// Each node that [`lookup`](Tree::lookup), [`take`](Tree::take), [`stream`](Tree::stream) or a method that makes one
/// returns, but for the root, is to be given back by [`forget`](Tree::forget), as often. Trees whose nodes cost nothing
/// have nothing to forget.
pub trait Tree: Send + Sync {
    /// The outermost folder.
    fn root(&self) -> Node;

    /// Whether anything can be changed.
    fn writable(&self) -> bool {
        false
    }

    /// Whether names that differ in case only are the same.
    fn folds_case(&self) -> bool {
        false
    }

    /// Whether it can change without a method of this being called: what was learned of it does not stay true.
    fn changes_elsewhere(&self) -> bool {
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

    /// The node that an entry of `folder` names.
    ///
    /// # Errors
    /// Those of [`Tree::lookup`].
    fn take(&self, _folder: Node, entry: &Entry) -> io::Result<Node> {
        Ok(entry.node)
    }

    /// Gives back a node that was returned `times` times. It must not be used any more once it is given back as often as it
    /// was returned.
    fn forget(&self, _node: Node, _times: u64) {}

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

    /// All names in a folder, and those that [`Tree::list`] leaves out. Who copies or checks a folder uses this one.
    ///
    /// # Errors
    /// Those of [`Tree::list`].
    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        Ok(Listing { entries: self.list(folder)?, left_out: Vec::new() })
    }

    /// Reads from byte `offset` of a file on. The number of bytes read is less than asked for only at the file's end.
    ///
    /// # Errors
    /// `IsADirectory`; `Unsupported` for contents that the file system keeps encrypted or compressed in an unknown way (see
    /// [`Tree::show_ciphertext`]).
    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// From now on, files that the file system itself keeps encrypted read as their ciphertext, to the end of its last sector. Until
    /// then it is an error to read them: nobody takes ciphertext for contents.
    fn show_ciphertext(&self) {}

    /// How a file is kept, if the file system itself keeps it encrypted.
    ///
    /// # Errors
    /// Those of [`Tree::read_at`].
    fn ciphertext(&self, _file: Node) -> io::Result<Option<Ciphertext>> {
        Ok(None)
    }

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

    /// The same out of a buffer that nobody needs any more: what is in it afterwards is anything.
    ///
    /// # Errors
    /// Those of [`Tree::write_at`].
    fn write_in_place(&self, file: Node, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.write_at(file, offset, data)
    }

    /// Writes all of `data` behind the end that the file has at that moment, whoever else makes it longer.
    ///
    /// # Errors
    /// Those of [`Tree::write_at`].
    fn append(&self, file: Node, data: &[u8]) -> io::Result<()> {
        self.write_at(file, self.attributes(file)?.size, data)
    }

    /// Whether [`Tree::fill`] has anything to write.
    ///
    /// # Errors
    /// If it is not a file.
    fn must_fill(&self, _file: Node, _to: u64, _writes: bool) -> io::Result<bool> {
        Ok(false)
    }

    /// Writes some of the zeros that a file has in front of `to` once something is written there (`writes`), or once it has that
    /// size, if there are very many. Whether there were: whoever calls this until there are none, and only then writes, can
    /// stop in between, and others get their turn.
    ///
    /// # Errors
    /// Those of [`Tree::write_at`]. What was filled in before stays.
    fn fill(&self, _file: Node, _to: u64, _writes: bool) -> io::Result<bool> {
        Ok(false)
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

    /// Changes the permission bits (the lower twelve of Unix's `st_mode`).
    ///
    /// # Errors
    /// `Unsupported` where the file system has none.
    fn set_mode(&self, _node: Node, _mode: u16) -> io::Result<()> {
        Err(self.without("permissions"))
    }

    /// Changes user and group, each if it is given.
    ///
    /// # Errors
    /// `PermissionDenied`; `Unsupported` where the file system has none.
    fn set_owner(&self, _node: Node, _user: Option<u32>, _group: Option<u32>) -> io::Result<()> {
        Err(self.without("owners"))
    }

    /// Makes an empty file.
    ///
    /// # Errors
    /// `AlreadyExists`, `StorageFull`, `InvalidFilename` for a name that the file system cannot hold.
    fn create(&self, _folder: Node, _name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        Err(read_only())
    }

    /// Makes an empty file and opens it, whatever its permissions then say: [`Tree::create`] and [`Tree::open`] in one.
    ///
    /// # Errors
    /// Those of [`Tree::create`].
    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, usage: Use) -> io::Result<Node> {
        let node = self.create(folder, name, new)?;
        self.open(node, usage)?;
        Ok(node)
    }

    /// Makes an empty folder.
    ///
    /// # Errors
    /// Those of [`Tree::create`].
    fn make_folder(&self, _folder: Node, _name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        Err(read_only())
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// Those of [`Tree::create`]; `Unsupported` where the file system has none.
    fn make_link(&self, _folder: Node, _name: &OsStr, _target: &OsStr, _new: &NewNode) -> io::Result<Node> {
        Err(self.without("symbolic links"))
    }

    /// Makes a pipe, a socket or a device.
    ///
    /// # Errors
    /// Those of [`Tree::create`]; `Unsupported` where the file system has none.
    fn make_special(&self, _folder: Node, _name: &OsStr, _special: Special, _new: &NewNode) -> io::Result<Node> {
        Err(self.without("pipes, sockets and devices"))
    }

    /// Gives a file one more name, a hard link. What is returned is the same node once more.
    ///
    /// # Errors
    /// Those of [`Tree::create`]; `PermissionDenied` for a folder; `Unsupported` where the file system has none.
    fn add_name(&self, _node: Node, _folder: Node, _name: &OsStr) -> io::Result<Node> {
        Err(self.without("hard links"))
    }

    /// Gives a node another name, or another folder.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `DirectoryNotEmpty`, `InvalidInput` for a folder that would lie in itself;
    /// `Unsupported` where the file system cannot exchange names.
    fn rename(
        &self,
        _folder: Node,
        _name: &OsStr,
        _to_folder: Node,
        _to_name: &OsStr,
        _how: Renaming,
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

    /// The stream of that name beside the contents of a file, as a node that is read and written as a file is: `$EFS` and
    /// the alternate data streams of NTFS.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` where the file system has none.
    fn stream(&self, _file: Node, _name: &OsStr) -> io::Result<Node> {
        Err(self.without("streams"))
    }

    /// The names of a file's streams.
    ///
    /// # Errors
    /// Those of the store.
    fn streams(&self, _file: Node) -> io::Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    /// The value of an extended attribute: `user.ecryptfs`. Nothing if there is none of that name.
    ///
    /// # Errors
    /// `Unsupported` where the file system has none.
    fn extended(&self, _node: Node, _name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        Err(self.without("extended attributes"))
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// `Unsupported` where the file system has none.
    fn list_extended(&self, _node: Node) -> io::Result<Vec<OsString>> {
        Err(self.without("extended attributes"))
    }

    /// Writes an extended attribute.
    ///
    /// # Errors
    /// `AlreadyExists`, `ENODATA`, as `how` says; `StorageFull`; `Unsupported` where the file system has none.
    fn set_extended(&self, _node: Node, _name: &OsStr, _value: &[u8], _how: Setting) -> io::Result<()> {
        Err(self.without("extended attributes"))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none; `Unsupported` where the file system has none.
    fn remove_extended(&self, _node: Node, _name: &OsStr) -> io::Result<()> {
        Err(self.without("extended attributes"))
    }

    /// Opens a file. Its contents stay until [`Tree::release`] is called as often, although it may be removed meanwhile.
    ///
    /// # Errors
    /// `PermissionDenied`, where the tree asks somebody who says so.
    fn open(&self, _file: Node, _usage: Use) -> io::Result<()> {
        Ok(())
    }

    /// Ends what [`Tree::open`] began.
    ///
    /// # Errors
    /// Those of the store.
    fn release(&self, _file: Node) -> io::Result<()> {
        Ok(())
    }

    /// Makes the changes of one node durable: its contents, and its attributes unless `contents_only` says that they do not
    /// matter. For a folder, its names.
    ///
    /// # Errors
    /// Those of [`Tree::flush`].
    fn sync(&self, _node: Node, _contents_only: bool) -> io::Result<()> {
        self.flush()
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

    /// The answer to what its file system has not: `EROFS` where nothing can be written anyway.
    fn without(&self, what: &str) -> io::Error {
        match self.writable() {
            true => io::Error::new(io::ErrorKind::Unsupported, format!("this file system has no {what}")),
            false => read_only(),
        }
    }
}

/// The node at `path` below the root. Empty steps and `.` mean nothing; `..` is no name. It is to be given back by
/// [`Tree::forget`] unless it is the root.
///
/// # Errors
/// Those of [`Tree::lookup`].
pub fn find(tree: &dyn Tree, path: &OsStr) -> io::Result<Node> {
    use std::os::unix::ffi::OsStrExt;
    let steps = path.as_bytes().split(|b| *b == b'/').filter(|step| !step.is_empty() && *step != b".");
    steps.into_iter().try_fold(tree.root(), |folder, step| {
        let found = tree.lookup(folder, OsStr::from_bytes(step));
        forget_but_root(tree, folder);
        found
    })
}

fn forget_but_root(tree: &dyn Tree, node: Node) {
    if node != tree.root() {
        tree.forget(node, 1);
    }
}

/// Gives back the memory of a table that has become almost empty: it would stay as large as it ever was.
pub(crate) fn shrink<K: Eq + Hash, V>(table: &mut HashMap<K, V>) {
    const SMALL: usize = 1024;
    if table.capacity() > SMALL && table.len() < table.capacity() / 8 {
        table.shrink_to(2 * table.len());
    }
}

/// Whether this can be the name of one node in a folder.
pub(crate) fn is_name(name: &OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let bytes = name.as_bytes();
    !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|b| matches!(b, b'/' | 0))
}

/// A file system that contradicts itself: `what` is wrong with `field`, at byte `offset` of it.
pub fn damaged(field: &'static str, offset: u64, what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Error::new(ErrorKind::Malformed { field, offset, what: what.into() }))
}

/// The answer of a tree that cannot be written.
pub fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "this file system is read-only")
}
