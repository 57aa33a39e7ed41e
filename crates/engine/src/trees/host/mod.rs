//! A folder of the host as a tree.
//!
//! No path is resolved twice. A node is a descriptor (`O_PATH`), opened relative to its folder's descriptor, and every operation
//! uses that descriptor. Moving folders or replacing one with a symbolic link changes what names mean from then on, but never what
//! a node is. If there are more nodes than descriptors, some are only found again when they are used (`parked.rs`).

mod attributes;
mod nodes;
mod owner;
mod parked;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, StatVfsMountFlags, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::nodes::{Direction, HostNode, Nodes, ROOT};
use super::{
    Attributes, Entry, NewNode, Node, NodeKind, Renaming, Setting, Space, Special, Tree, Use, is_name, read_only,
};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Access;

/// How names are resolved. A tree covers one file system; a mount point inside fails with `EXDEV`. A mount has its own numbers,
/// space and durability, and names cannot be moved or linked into it. If this very process serves the mount, looking inside would
/// deadlock.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a node without its contents. A symbolic link is opened itself, not followed.
const NODE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);

/// Opens a file for reading. If the name is suddenly that of a pipe, this does not wait for a writer.
const READABLE: OFlags = OFlags::RDONLY.union(OFlags::NOATIME).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// The longest value of an extended attribute, and the longest list of their names (`XATTR_SIZE_MAX` and `XATTR_LIST_MAX` of
/// linux/limits.h).
const LONGEST_EXTENDED: usize = 64 << 10;

/// A folder of the host, with everything below it on the same file system.
///
/// Everything happens with the rights of this process. If it is root, new nodes get the owner in [`NewNode::owner`]. Extended
/// attributes, including access control lists, pass through.
pub struct HostFolder {
    nodes: Nodes,
    /// The folder, opened again for syncfs(2) and flock(2).
    folder: File,
    access: Access,
}

impl HostFolder {
    /// Opens the folder at `path`. Raises this process's limit of open descriptors as high as possible: each node in use needs one.
    ///
    /// # Errors
    /// `Io` if it is not a folder or cannot be read; `Misuse` for writing if its file system is mounted read-only.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        Self::opened(path, access).map_err(|e| e.at(path))
    }

    fn opened(path: &Path, access: Access) -> Result<Self> {
        raise_descriptor_limit();
        let system = |e: Errno| Error::from(io::Error::from(e));
        let directory = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, OFlags::PATH | directory, Mode::empty()).map_err(system)?;
        let folder = rustix::fs::openat(&root, ".", OFlags::RDONLY | directory, Mode::empty()).map_err(system)?;
        let mounted = rustix::fs::fstatvfs(&folder).map_err(system)?.f_flag;
        if access == Access::ReadWrite && mounted.contains(StatVfsMountFlags::RDONLY) {
            return Err(Error::misuse("its file system is mounted read-only").hint("Open it read-only."));
        }
        Ok(Self { nodes: Nodes::new(root)?, folder: folder.into(), access })
    }

    /// Locks the folder against other programs of this project for as long as this lives. As with a file, readers share it and a
    /// writer has it alone.
    ///
    /// # Errors
    /// `InUse`.
    pub fn lock(&self) -> Result<()> {
        let locked = match self.access {
            Access::ReadOnly => self.folder.try_lock_shared(),
            Access::ReadWrite => self.folder.try_lock(),
        };
        locked.map_err(|e| match e {
            std::fs::TryLockError::WouldBlock => {
                Error::new(ErrorKind::InUse { holder: None }).hint("Close it there first. Nothing was changed.")
            }
            std::fs::TryLockError::Error(e) => e.into(),
        })
    }

    /// The folder's node, and the name after a check that it is a single name.
    fn place<'a>(&self, folder: Node, name: &'a OsStr) -> io::Result<(Arc<HostNode>, &'a OsStr)> {
        if !is_name(name) {
            return Err(Errno::INVAL.into());
        }
        Ok((self.nodes.get(folder)?, name))
    }

    /// Like [`HostFolder::place`], for a change.
    fn change<'a>(&self, folder: Node, name: &'a OsStr) -> io::Result<(Arc<HostNode>, &'a OsStr)> {
        self.changeable()?;
        self.place(folder, name)
    }

    fn changeable(&self) -> io::Result<()> {
        if self.writable() { Ok(()) } else { Err(read_only()) }
    }

    /// The node that a name currently refers to.
    fn found(&self, folder: &HostNode, name: &OsStr) -> io::Result<Node> {
        self.nodes.add(open_below(folder, name, NODE, Mode::empty())?)
    }

    /// The file if it is open in that direction, otherwise opened for this call. If nobody has it open for reading, other reads
    /// such as that of a size in a header leave the access time unchanged.
    fn file(&self, node: Node, direction: Direction) -> io::Result<Arc<File>> {
        let node = self.nodes.get(node)?;
        node.must_be_file()?;
        let flags = match direction {
            Direction::Read => self.flags(direction) | OFlags::NOATIME,
            Direction::Write => self.flags(direction),
        };
        node.opened(direction, || node.reopen(flags))
    }

    /// Flags for opening. A reader leaves the access time unchanged as well, if it has the right (open(2)).
    fn flags(&self, direction: Direction) -> OFlags {
        match (direction, self.access) {
            (Direction::Read, Access::ReadOnly) => OFlags::RDONLY | OFlags::NOATIME,
            (Direction::Read, Access::ReadWrite) => OFlags::RDONLY,
            (Direction::Write, _) => OFlags::WRONLY,
        }
    }

    fn made(&self, folder: &HostNode, name: &OsStr, kind: NodeKind, new: &NewNode) -> io::Result<Node> {
        let number = self.found(folder, name)?;
        let node = self.nodes.get(number)?;
        let as_meant = || -> io::Result<()> {
            let (now, mode) = (node.attributes(self.nodes.device())?, new.mode);
            let ours = now.kind == kind && now.owner.map(|(user, _)| user) == Some(owner::user(new.owner));
            match mode.filter(|_| ours).and_then(|mode| missing(mode, now.mode?)) {
                Some(mode) if !has_default_permissions(folder) => node.set_mode(mode),
                _ => Ok(()),
            }
        };
        as_meant().inspect_err(|_| self.forget(number, 1)).map(|()| number)
    }
}

/// The permission bits to restore because this process's umask(2) cleared them. The caller has already applied a mask, if any.
/// Changing this process's umask would change it for all threads.
fn missing(wanted: u16, have: u16) -> Option<u16> {
    let set = have & 0o7000 | wanted & 0o777;
    (set != have).then_some(set)
}

/// Whether the folder has default permissions for new nodes (acl(5)). The kernel then applies these, and no umask.
fn has_default_permissions(folder: &HostNode) -> bool {
    rustix::fs::getxattr_query(folder.path(), "system.posix_acl_default").is_ok_and(|len| len > 0)
}

fn open_below(folder: &HostNode, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    loop {
        match rustix::fs::openat2(folder, name, flags | OFlags::CLOEXEC, mode, RESOLVE) {
            // A concurrent rename made the kernel uncertain; try again (openat2(2)).
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
}

/// Raises the limit of open descriptors as high as possible. Root can exceed its hard limit, up to the system's (proc_sys_fs(5)).
fn raise_descriptor_limit() {
    let system = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|most| most.trim().parse::<u64>().ok());
    let given = getrlimit(Resource::Nofile);
    let wanted = [system.max(given.maximum), given.maximum];
    for most in wanted.into_iter().filter(|most| given.current != *most) {
        // If this is refused, the limit stays as it was.
        if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_ok() {
            break;
        }
    }
}

fn mode_bits(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode & 0o7777))
}

impl Tree for HostFolder {
    fn root(&self) -> Node {
        ROOT
    }

    fn writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    fn changes_elsewhere(&self) -> bool {
        true
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        let (folder, name) = self.place(folder, name)?;
        self.found(&folder, name)
    }

    /// Opens a file for reading at once, if that is allowed: what lists a folder of encrypted files reads their headers next.
    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        let (folder, name) = self.place(folder, &entry.name)?;
        if entry.kind == NodeKind::File
            && let Ok(file) = open_below(&folder, name, READABLE, Mode::empty())
            && let Some(node) = self.nodes.add_readable(file)?
        {
            return Ok(node);
        }
        self.found(&folder, name)
    }

    fn forget(&self, node: Node, times: u64) {
        self.nodes.forget(node, times);
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.nodes.get(node)?.attributes(self.nodes.device())
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        let folder = self.nodes.get(folder)?;
        if folder.kind != NodeKind::Folder {
            return Err(Errno::NOTDIR.into());
        }
        let mut entries = Vec::new();
        // Not through `.`, which needs permission to search the folder.
        for entry in Dir::new(folder.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let (name, number) = (entry.file_name(), entry.ino());
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => continue,
                    found => FileType::from_raw_mode(found?.st_mode),
                },
                known => known,
            };
            let name = OsStr::from_bytes(name.to_bytes()).to_owned();
            entries.push(Entry { name, node: number, kind: attributes::kind(kind) });
        }
        Ok(entries)
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let file = self.file(file, Direction::Read)?;
        let mut done = 0;
        while done < out.len() {
            match file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        let node = self.nodes.get(link)?;
        match rustix::fs::readlinkat(&*node, "", Vec::new()) {
            // For other kinds of nodes the kernel says ENOENT here, but EINVAL if it gets a path.
            Err(Errno::NOENT) => Err(Errno::INVAL.into()),
            target => Ok(OsString::from_vec(target?.into_bytes())),
        }
    }

    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changeable()?;
        self.file(file, Direction::Write)?.write_all_at(data, offset)
    }

    fn append(&self, file: Node, data: &[u8]) -> io::Result<()> {
        self.changeable()?;
        let file = self.file(file, Direction::Write)?;
        let mut done = 0;
        while done < data.len() {
            // The kernel finds the end atomically.
            match rustix::io::pwritev2(&*file, &[IoSlice::new(&data[done..])], 0, ReadWriteFlags::APPEND) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
        self.changeable()?;
        self.file(file, Direction::Write)?.set_len(len)
    }

    fn reserve(&self, file: Node, offset: u64, len: u64) -> io::Result<()> {
        self.changeable()?;
        let file = self.file(file, Direction::Write)?;
        match retry_on_intr(|| rustix::fs::fallocate(&*file, rustix::fs::FallocateFlags::KEEP_SIZE, offset, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            reserved => Ok(reserved?),
        }
    }

    fn set_times(&self, node: Node, modified: Option<SystemTime>, accessed: Option<SystemTime>) -> io::Result<()> {
        self.changeable()?;
        let (last_modification, last_access) = (attributes::timespec(modified), attributes::timespec(accessed));
        let times = Timestamps { last_access, last_modification };
        Ok(rustix::fs::utimensat(&*self.nodes.get(node)?, "", &times, AtFlags::EMPTY_PATH)?)
    }

    fn set_mode(&self, node: Node, mode: u16) -> io::Result<()> {
        self.changeable()?;
        self.nodes.get(node)?.set_mode(mode)
    }

    fn set_owner(&self, node: Node, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        self.changeable()?;
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        Ok(rustix::fs::chownat(&*self.nodes.get(node)?, "", user, group, AtFlags::EMPTY_PATH)?)
    }

    fn create(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        let node = self.create_open(folder, name, new, Use { read: true, write: true })?;
        self.release(node).inspect_err(|_| self.forget(node, 1)).map(|()| node)
    }

    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, _usage: Use) -> io::Result<Node> {
        let (folder, name) = self.change(folder, name)?;
        // Opens it for both directions, whatever the caller needs: its permissions may forbid that later, and a cache above may
        // read what surrounds a write.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = mode_bits(new.mode.unwrap_or(0o666));
        let file = owner::acting_as(new.owner, || open_below(&folder, name, flags, mode))?;
        let have = (rustix::fs::fstat(&file)?.st_mode & 0o7777) as u16;
        if let Some(mode) = new.mode.and_then(|mode| missing(mode, have)).filter(|_| !has_default_permissions(&folder))
        {
            rustix::fs::fchmod(&file, mode_bits(mode))?;
        }
        self.nodes.add_open(file.into())
    }

    fn make_folder(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        let (folder, name) = self.change(folder, name)?;
        let mode = mode_bits(new.mode.unwrap_or(0o777));
        owner::acting_as(new.owner, || Ok(rustix::fs::mkdirat(&*folder, name, mode)?))?;
        self.made(&folder, name, NodeKind::Folder, new)
    }

    fn make_link(&self, folder: Node, name: &OsStr, target: &OsStr, new: &NewNode) -> io::Result<Node> {
        let (folder, name) = self.change(folder, name)?;
        owner::acting_as(new.owner, || Ok(rustix::fs::symlinkat(target, &*folder, name)?))?;
        self.found(&folder, name)
    }

    fn make_special(&self, folder: Node, name: &OsStr, special: Special, new: &NewNode) -> io::Result<Node> {
        let (folder, name) = self.change(folder, name)?;
        let (kind, device) = match special {
            Special::Pipe => (FileType::Fifo, 0),
            Special::Socket => (FileType::Socket, 0),
            Special::BlockDevice(device) => (FileType::BlockDevice, device),
            Special::CharacterDevice(device) => (FileType::CharacterDevice, device),
        };
        let mode = mode_bits(new.mode.unwrap_or(0o666));
        owner::acting_as(new.owner, || Ok(rustix::fs::mknodat(&*folder, name, kind, mode, device)?))?;
        self.made(&folder, name, NodeKind::Special, new)
    }

    fn add_name(&self, node: Node, folder: Node, name: &OsStr) -> io::Result<Node> {
        let (folder, name) = self.change(folder, name)?;
        let linked = self.nodes.get(node)?;
        // Only root may link the descriptor directly (linkat(2), AT_EMPTY_PATH).
        rustix::fs::linkat(CWD, linked.path(), &*folder, name, AtFlags::SYMLINK_FOLLOW)?;
        drop(linked);
        match open_below(&folder, name, NODE, Mode::empty()).and_then(|found| self.nodes.add_renamed(found)) {
            Ok(found) if found == node => Ok(node),
            other => {
                other.into_iter().for_each(|other| self.forget(other, 1));
                self.nodes.again(node)
            }
        }
    }

    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to_name: &OsStr, how: Renaming) -> io::Result<()> {
        let (folder, name) = self.change(folder, name)?;
        let (to_folder, to_name) = self.change(to_folder, to_name)?;
        let flags = match how {
            Renaming::Replace => RenameFlags::empty(),
            Renaming::Keep => RenameFlags::NOREPLACE,
            Renaming::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(&*folder, name, &*to_folder, to_name, flags)?;
        self.nodes.moved((&folder, name), (&to_folder, to_name), how == Renaming::Exchange);
        Ok(())
    }

    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        let (folder, name) = self.change(folder, name)?;
        match rustix::fs::unlinkat(&*folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => Ok(rustix::fs::unlinkat(&*folder, name, AtFlags::REMOVEDIR)?),
            removed => Ok(removed?),
        }
    }

    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        let node = self.nodes.get(node)?;
        let value = match node.readable() {
            Some(file) => fitting(|out| rustix::fs::fgetxattr(file, name, out)),
            None => {
                let path = node.path();
                fitting(|out| rustix::fs::getxattr(&path, name, out))
            }
        };
        match value {
            Err(e) if e.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => Ok(None),
            value => value.map(Some),
        }
    }

    fn list_extended(&self, node: Node) -> io::Result<Vec<OsString>> {
        let path = self.nodes.get(node)?.path();
        let names = fitting(|out| rustix::fs::listxattr(&path, out))?;
        let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    fn set_extended(&self, node: Node, name: &OsStr, value: &[u8], how: Setting) -> io::Result<()> {
        self.changeable()?;
        let flags = match how {
            Setting::Any => XattrFlags::empty(),
            Setting::Create => XattrFlags::CREATE,
            Setting::Replace => XattrFlags::REPLACE,
        };
        Ok(rustix::fs::setxattr(self.nodes.get(node)?.path(), name, value, flags)?)
    }

    fn remove_extended(&self, node: Node, name: &OsStr) -> io::Result<()> {
        self.changeable()?;
        Ok(rustix::fs::removexattr(self.nodes.get(node)?.path(), name)?)
    }

    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        if usage.write {
            self.changeable()?;
        }
        let node = self.nodes.get(file)?;
        node.must_be_file()?;
        let flags = match (usage.read, usage.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => self.flags(Direction::Write),
            (_, false) => self.flags(Direction::Read),
        };
        // Opened again each time, because the permissions may have changed.
        node.keep(node.reopen(flags)?, usage.read || !usage.write, usage.write);
        Ok(())
    }

    fn release(&self, file: Node) -> io::Result<()> {
        self.nodes.release(file)
    }

    fn sync(&self, node: Node, contents_only: bool) -> io::Result<()> {
        let known = self.nodes.get(node)?;
        let file = match known.kind {
            NodeKind::File => self.file(node, Direction::Write).or_else(|_| self.file(node, Direction::Read))?,
            NodeKind::Folder => Arc::new(known.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?),
            // It cannot be opened, and there is no other way to sync it.
            NodeKind::Link | NodeKind::Special => return self.flush(),
        };
        if contents_only { file.sync_data() } else { file.sync_all() }
    }

    fn flush(&self) -> io::Result<()> {
        match self.access {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => Ok(rustix::fs::syncfs(&self.folder)?),
        }
    }

    fn space(&self) -> io::Result<Space> {
        let of = rustix::fs::fstatvfs(&self.folder)?;
        Ok(Space {
            total: of.f_blocks.saturating_mul(of.f_frsize),
            free: of.f_bavail.saturating_mul(of.f_frsize),
            unit: u32::try_from(of.f_frsize).unwrap_or(u32::MAX),
            files: (of.f_files > 0).then_some((of.f_files, of.f_favail)),
            longest_name: u32::try_from(of.f_namemax).unwrap_or(u32::MAX),
        })
    }
}

/// Calls with a growing buffer until there is no `ERANGE`. Begins small, because most values are short.
fn fitting(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut out = vec![0; 256];
    let len = match call(&mut out) {
        Err(Errno::RANGE) => {
            out.resize(LONGEST_EXTENDED, 0);
            call(&mut out)?
        }
        got => got?,
    };
    out.truncate(len);
    Ok(out)
}
