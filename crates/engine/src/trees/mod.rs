//! Trees: the files and folders of a file system.

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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

pub use held::{HeldNode, NodeStore, OpenFile};
pub use read_only::ReadOnly;
pub use subtree::Subtree;

use crate::error::{Error, ErrorKind};

/// A file or folder of a tree: a number that the tree assigns, and that stays valid as long as the tree lives.
pub type Node = u64;

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// Bytes.
    File,
    /// Names of other nodes.
    Folder,
    /// A symbolic link.
    Link,
    /// A device, a socket, a pipe, or anything else without data.
    Special,
}

/// The kind of a special node.
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

/// The extended attribute with the recipients of an EFS-encrypted file on NTFS, by ntfs-3g's name.
pub const EFS_INFO: &str = "system.ntfs_efsinfo";

/// The extended attribute with a file's Windows attributes, a little-endian number of four bytes, by ntfs-3g's name. Its presence
/// identifies an NTFS file system.
pub const NTFS_ATTRIBUTES: &str = "system.ntfs_attrib";

/// The attributes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its kind.
    pub kind: NodeKind,
    /// The exact kind of a [`NodeKind::Special`], if the file system records it.
    pub special: Option<Special>,
    /// The number that people see (Unix's `st_ino`). Two names with the same number are one file.
    pub number: u64,
    /// The number of its names.
    pub links: u32,
    /// Size of a file, or length of a link's target, in bytes; 0 for other kinds.
    pub size: u64,
    /// Bytes that it occupies on disk, if the file system records that.
    pub stored: Option<u64>,
    /// Permission bits, if the file system has them (the lower twelve of Unix's `st_mode`).
    pub mode: Option<u16>,
    /// User and group, if the file system has them.
    pub owner: Option<(u32, u32)>,
    /// When the contents changed.
    pub modified: Option<SystemTime>,
    /// When the contents or the attributes changed (Unix's `st_ctime`).
    pub changed: Option<SystemTime>,
    /// When it was last read, to the precision of the file system.
    pub accessed: Option<SystemTime>,
    /// When it was created.
    pub created: Option<SystemTime>,
    /// Whether the file system marks it as read-only.
    pub read_only: bool,
    /// Whether the file system encrypts it: NTFS (EFS), or one of Linux (fscrypt). What is created in such a folder is encrypted, too.
    pub encrypted: bool,
}

impl Attributes {
    /// Attributes with only these values known: one name, no times, no owner.
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

/// The storage of a file that the file system itself encrypts: whole sectors of ciphertext, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ciphertext {
    /// Bytes of plaintext.
    pub size: u64,
    /// The ranges with ciphertext, in ascending order. The rest of the plaintext is zeros.
    pub stored: Vec<Range<u64>>,
}

/// The initial attributes of a new node, if the file system has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// Permission bits (the lower twelve of Unix's `st_mode`); by default those of the file system.
    pub mode: Option<u16>,
    /// User and group; by default those of this process.
    pub owner: Option<(u32, u32)>,
}

/// The use of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Whether it is read.
    pub read: bool,
    /// Whether it is written.
    pub write: bool,
}

/// What happens to a node that already has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renaming {
    /// It is replaced, if it is a file or an empty folder.
    Replace,
    /// It stays, and the renaming fails.
    Keep,
    /// The two nodes exchange names.
    Exchange,
}

/// How an extended attribute is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Whether it exists or not.
    Any,
    /// Only if it does not exist yet.
    Create,
    /// Only if it exists.
    Replace,
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, in the file system's own bytes if it is not Unicode. It may contain anything except NUL and `/`.
    pub name: OsString,
    /// The node that it names. If a tree holds state for each node, this is only a number: [`Tree::take`] returns the node.
    pub node: Node,
    /// The kind of that node.
    pub kind: NodeKind,
}

/// Whether files were written that names depend on, and that are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct Unsynced(AtomicBool);

impl Unsynced {
    /// Records that such a file was written.
    pub fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Makes these files durable.
    ///
    /// # Errors
    /// Those of [`Tree::flush`]. The next call then tries again.
    pub fn flush(&self, tree: &dyn Tree) -> io::Result<()> {
        match self.0.swap(false, Ordering::AcqRel) {
            true => tree.flush().inspect_err(|_| self.note()),
            false => Ok(()),
        }
    }
}

/// The contents of a folder.
#[derive(Debug, Default)]
pub struct Listing {
    /// The entries that can be shown.
    pub entries: Vec<Entry>,
    /// Names that cannot be shown properly.
    pub left_out: Vec<LeftOut>,
}

/// A name that cannot be shown properly: it does not decrypt, or is not a valid name on this machine.
#[derive(Debug)]
pub struct LeftOut {
    /// The name as stored; empty for the part of a folder that cannot be read.
    pub name: OsString,
    /// The kind of node that it names.
    pub kind: NodeKind,
    /// Why it cannot be shown.
    pub why: Error,
    /// Whether it is listed among the entries anyway, under this name.
    pub listed: bool,
}

/// The capacity of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Space {
    /// The total space for files.
    pub total: u64,
    /// The free part of it.
    pub free: u64,
    /// The allocation unit.
    pub unit: u32,
    /// The limit for the number of files, and how many more can be created, if there is a limit.
    #[serde(skip)]
    pub files: Option<(u64, u64)>,
    /// The longest name, in bytes.
    #[serde(skip)]
    pub longest_name: u32,
}

impl Space {
    /// A capacity without a limit for files, and with names of at most 255 bytes.
    pub fn new(total: u64, free: u64, unit: u32) -> Self {
        Self { total, free, unit, files: None, longest_name: 255 }
    }
}

/// Folders and files. Several threads may call all methods. Errors are those of the equivalent system calls (`NotFound`,
/// `NotADirectory`, `StorageFull` …). Damage is `InvalidData` with an [`ErrorKind::Malformed`] inside (see [`damaged`]). A
/// read-only tree returns `ReadOnlyFilesystem`, and `Unsupported` is for features that the file system lacks.
///
/// Every node returned by [`lookup`](Tree::lookup), [`take`](Tree::take), [`stream`](Tree::stream) or a method that creates one
/// must be given back with [`forget`](Tree::forget), as often as it was returned. The root is exempt. Trees whose nodes hold no
/// state have nothing to do.
pub trait Tree: Send + Sync {
    /// The root folder.
    fn root(&self) -> Node;

    /// Whether anything can be changed.
    fn writable(&self) -> bool {
        false
    }

    /// Whether names that differ only in case are the same.
    fn folds_case(&self) -> bool {
        false
    }

    /// Whether the tree can change other than through these methods, so that cached results may be outdated.
    fn changes_elsewhere(&self) -> bool {
        false
    }

    /// Warnings about what is shown, such as a journal that was not replayed.
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

    /// Gives back a node that was returned `times` times. A node must not be used after it was given back as often as it was
    /// returned.
    fn forget(&self, _node: Node, _times: u64) {}

    /// The attributes of a node.
    ///
    /// # Errors
    /// `NotFound` if it is not a node of this tree.
    fn attributes(&self, node: Node) -> io::Result<Attributes>;

    /// All names in a folder, except `.` and `..`.
    ///
    /// # Errors
    /// `NotADirectory`.
    fn list(&self, folder: Node) -> io::Result<Vec<Entry>>;

    /// All names in a folder, including those that [`Tree::list`] leaves out. For copies and checks.
    ///
    /// # Errors
    /// Those of [`Tree::list`].
    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        Ok(Listing { entries: self.list(folder)?, left_out: Vec::new() })
    }

    /// What is stored and holds contents, although no listing leads to it, by its path as it is stored. For copies, when every
    /// folder has been listed.
    ///
    /// # Errors
    /// Those of [`Tree::list`].
    fn lost(&self) -> io::Result<Vec<(std::path::PathBuf, Error)>> {
        Ok(Vec::new())
    }

    /// Reads from offset `offset` of a file. Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// `IsADirectory`; `Unsupported` for contents encrypted or compressed by the file system in an unknown way (see
    /// [`Tree::show_ciphertext`]).
    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// From now on, reading a file that the file system encrypts returns its ciphertext, to the end of its last sector. Before,
    /// reading it is an error, so that ciphertext is never mistaken for contents.
    fn show_ciphertext(&self) {}

    /// The storage of a file, if the file system itself encrypts it.
    ///
    /// # Errors
    /// Those of [`Tree::read_at`].
    fn ciphertext(&self, _file: Node) -> io::Result<Option<Ciphertext>> {
        Ok(None)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a symbolic link.
    fn link_target(&self, _link: Node) -> io::Result<OsString> {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a symbolic link"))
    }

    /// Writes all of `data` at offset `offset` of a file, which grows if necessary.
    ///
    /// # Errors
    /// `StorageFull`, `FileTooLarge`; nothing has changed in that case.
    fn write_at(&self, _file: Node, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(read_only())
    }

    /// Like [`Tree::write_at`], from a buffer that may be overwritten: its contents are undefined afterwards.
    ///
    /// # Errors
    /// Those of [`Tree::write_at`].
    fn write_in_place(&self, file: Node, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.write_at(file, offset, data)
    }

    /// Appends all of `data` to a file, at its end at that moment, even if others append as well.
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

    /// Writes some of the zeros that must precede `to` before data are written there (`writes`), or before the file has that size,
    /// if there are very many. Returns whether there were any. A caller that repeats this before it writes can stop in between and
    /// let others proceed.
    ///
    /// # Errors
    /// Those of [`Tree::write_at`]. Zeros written before stay.
    fn fill(&self, _file: Node, _to: u64, _writes: bool) -> io::Result<bool> {
        Ok(false)
    }

    /// Changes the size of a file; new bytes are zero.
    ///
    /// # Errors
    /// `StorageFull`, `FileTooLarge`; nothing has changed in that case.
    fn set_len(&self, _file: Node, _len: u64) -> io::Result<()> {
        Err(read_only())
    }

    /// Makes sure, where the file system can, that a write of these bytes does not fail for lack of space. The size stays.
    ///
    /// # Errors
    /// `StorageFull`; those of the store.
    fn reserve(&self, _file: Node, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Sets the times of the last change and of the last access, to the precision of the file system.
    ///
    /// # Errors
    /// Those of the store.
    fn set_times(&self, _node: Node, _modified: Option<SystemTime>, _accessed: Option<SystemTime>) -> io::Result<()> {
        Err(read_only())
    }

    /// Changes the permission bits (the lower twelve of Unix's `st_mode`).
    ///
    /// # Errors
    /// `Unsupported` if the file system has no permissions.
    fn set_mode(&self, _node: Node, _mode: u16) -> io::Result<()> {
        Err(self.without("permissions"))
    }

    /// Changes user and group, if given.
    ///
    /// # Errors
    /// `PermissionDenied`; `Unsupported` if the file system has no owners.
    fn set_owner(&self, _node: Node, _user: Option<u32>, _group: Option<u32>) -> io::Result<()> {
        Err(self.without("owners"))
    }

    /// Creates an empty file.
    ///
    /// # Errors
    /// `AlreadyExists`, `StorageFull`, `InvalidFilename` for a name that the file system cannot hold.
    fn create(&self, _folder: Node, _name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        Err(read_only())
    }

    /// Creates an empty file and opens it regardless of its new permissions: [`Tree::create`] and [`Tree::open`] in one.
    ///
    /// # Errors
    /// Those of [`Tree::create`].
    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, usage: Use) -> io::Result<Node> {
        let node = self.create(folder, name, new)?;
        self.open(node, usage)?;
        Ok(node)
    }

    /// Creates an empty folder.
    ///
    /// # Errors
    /// Those of [`Tree::create`].
    fn make_folder(&self, _folder: Node, _name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        Err(read_only())
    }

    /// Creates a symbolic link to `target`.
    ///
    /// # Errors
    /// Those of [`Tree::create`]; `Unsupported` if the file system has no symbolic links.
    fn make_link(&self, _folder: Node, _name: &OsStr, _target: &OsStr, _new: &NewNode) -> io::Result<Node> {
        Err(self.without("symbolic links"))
    }

    /// Creates a pipe, a socket or a device.
    ///
    /// # Errors
    /// Those of [`Tree::create`]; `Unsupported` if the file system has no such nodes.
    fn make_special(&self, _folder: Node, _name: &OsStr, _special: Special, _new: &NewNode) -> io::Result<Node> {
        Err(self.without("pipes, sockets and devices"))
    }

    /// Gives a file another name, a hard link. Returns the same node once more.
    ///
    /// # Errors
    /// Those of [`Tree::create`]; `PermissionDenied` for a folder; `Unsupported` if the file system has no hard links.
    fn add_name(&self, _node: Node, _folder: Node, _name: &OsStr) -> io::Result<Node> {
        Err(self.without("hard links"))
    }

    /// Renames a node, or moves it to another folder.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `DirectoryNotEmpty`, `InvalidInput` for moving a folder into itself; `Unsupported` if the file
    /// system cannot exchange names.
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

    /// A named stream of a file, as a node that is read and written like a file: `$EFS` and the alternate data streams of NTFS.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` if the file system has no streams.
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

    /// The value of an extended attribute: `user.ecryptfs`. `None` if there is no attribute of that name.
    ///
    /// # Errors
    /// `Unsupported` if the file system has no extended attributes.
    fn extended(&self, _node: Node, _name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        Err(self.without("extended attributes"))
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// `Unsupported` if the file system has no extended attributes.
    fn list_extended(&self, _node: Node) -> io::Result<Vec<OsString>> {
        Err(self.without("extended attributes"))
    }

    /// Writes an extended attribute.
    ///
    /// # Errors
    /// `AlreadyExists` or `ENODATA`, depending on `how`; `StorageFull`; `Unsupported` without extended attributes.
    fn set_extended(&self, _node: Node, _name: &OsStr, _value: &[u8], _how: Setting) -> io::Result<()> {
        Err(self.without("extended attributes"))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if it does not exist; `Unsupported` if the file system has no extended attributes.
    fn remove_extended(&self, _node: Node, _name: &OsStr) -> io::Result<()> {
        Err(self.without("extended attributes"))
    }

    /// Opens a file. Its contents stay until [`Tree::release`] was called as often, even if it is removed in the meantime.
    ///
    /// # Errors
    /// `PermissionDenied`, if the tree checks permissions.
    fn open(&self, _file: Node, _usage: Use) -> io::Result<()> {
        Ok(())
    }

    /// Closes a file opened by [`Tree::open`].
    ///
    /// # Errors
    /// Those of the store.
    fn release(&self, _file: Node) -> io::Result<()> {
        Ok(())
    }

    /// Makes changes to one node durable: its contents, and its attributes unless `contents_only` is set. For a folder, its names.
    ///
    /// # Errors
    /// Those of [`Tree::flush`].
    fn sync(&self, _node: Node, _contents_only: bool) -> io::Result<()> {
        self.flush()
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// Those of the store. Changes that were not yet durable may be lost.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Makes all changes durable and marks the file system as cleanly unmounted. Further changes are allowed.
    ///
    /// # Errors
    /// Those of [`Tree::flush`].
    fn finish(&self) -> io::Result<()> {
        self.flush()
    }

    /// The capacity of the file system.
    ///
    /// # Errors
    /// Those of the store.
    fn space(&self) -> io::Result<Space>;

    /// The error for a feature that the file system lacks: `EROFS` if it is read-only anyway.
    fn without(&self, what: &str) -> io::Error {
        match self.writable() {
            true => io::Error::new(io::ErrorKind::Unsupported, format!("this file system has no {what}")),
            false => read_only(),
        }
    }
}

/// The node at `path` below the root. Empty steps and `.` are ignored; `..` is not a valid name. The caller must give it back with
/// [`Tree::forget`], unless it is the root.
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

/// Shrinks a table that has become almost empty: its memory would never be freed otherwise.
pub(crate) fn shrink<K: Eq + Hash, V>(table: &mut HashMap<K, V>) {
    const SMALL: usize = 1024;
    if table.capacity() > SMALL && table.len() < table.capacity() / 8 {
        table.shrink_to(2 * table.len());
    }
}

/// Whether this is a valid name of a node in a folder.
pub(crate) fn is_name(name: &OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let bytes = name.as_bytes();
    !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|b| matches!(b, b'/' | 0))
}

/// The error for a damaged file system: `what` is wrong with `field`, at offset `offset`.
pub fn damaged(field: &'static str, offset: u64, what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Error::new(ErrorKind::Malformed { field, offset, what: what.into() }))
}

/// The error of a read-only tree.
pub fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "this file system is read-only")
}
