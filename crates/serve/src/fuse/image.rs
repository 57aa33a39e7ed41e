//! Answers the kernel's requests for the folder and its one file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use claviger_engine::Store;

use super::Image;
use super::answers::{Answer, Answers};
use super::protocol::{Errno, FuseRequest, Writer, init, opcode, opened, set, split_name};
use crate::durable::Durable;

/// The file's name.
pub const NAME: &str = "volume";

/// Node of the folder (`FUSE_ROOT_ID`).
const FOLDER: u64 = 1;

/// Node of the file.
const FILE: u64 = 2;

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// Seconds for which the kernel may cache names and attributes. Only the time of the last write ever changes, and the
/// kernel maintains that itself.
const VALID: u64 = 3600;

/// Recommended minimum size of reads and writes, in bytes.
const PAGE: u32 = 4096;

/// Maximum error of the last write's time, in nanoseconds.
const COARSE: u64 = 1_000_000;

/// Bytes of `struct fuse_attr`.
const ATTRIBUTES: usize = 88;

/// The folder with its file.
pub struct ServedImage {
    store: Arc<dyn Store>,
    sector_size: u32,
    read_only: bool,
    uid: u32,
    gid: u32,
    durable: Durable,
    since: Duration,
    /// Time of the last write, in nanoseconds since `since`.
    written: AtomicU64,
}

impl ServedImage {
    pub fn new(Image { store, read_only, uid, gid }: Image) -> Self {
        let read_only = read_only || !store.writable();
        let since = now();
        let sector_size = u32::try_from(store.sector_size()).unwrap_or(PAGE);
        let (durable, written) = (Durable::default(), AtomicU64::new(0));
        Self { store, sector_size, read_only, uid, gid, durable, since, written }
    }
}

impl Answers for ServedImage {
    fn wants(&self) -> u64 {
        init::DIRECT_IO_ALLOW_MMAP
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only { Ok(()) } else { self.durable.flush(&*self.store) }
    }

    fn answer(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answer {
        let answered = match request.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => return Answer::None,
            opcode::READ => self.read(request, payload),
            opcode::WRITE => self.write(request, payload, data),
            opcode::LOOKUP => self.look_up(request, payload, data),
            opcode::GETATTR => self.attributes(request.node, payload),
            opcode::SETATTR => self.change(request).and_then(|()| self.attributes(request.node, payload)),
            opcode::OPEN => self.open(request, payload),
            opcode::OPENDIR => Ok(Writer::new(payload).u64(0).u64(0).len()),
            opcode::READDIR => self.list(request, payload),
            opcode::STATFS => Ok(self.statistics(payload)),
            opcode::FSYNC => self.flush().map_err(|e| self.errno(&e)).map(|()| 0),
            opcode::LSEEK => self.seek(request, payload),
            // Closing a file loses nothing: no data are held back.
            opcode::FLUSH | opcode::RELEASE | opcode::RELEASEDIR | opcode::FSYNCDIR | opcode::DESTROY => Ok(0),
            // The folder holds only this file while it is mounted.
            opcode::CREATE | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK => Err(self.fixed()),
            opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2 => Err(self.fixed()),
            // The kernel never sends an unsupported request again. This includes ACCESS, as the kernel checks modes
            // itself; INTERRUPT, as requests here end soon; and FALLOCATE, as a hole would reveal unused sectors.
            _ => Err(Errno::ENOSYS),
        };
        answered.map_or_else(Answer::Refused, Answer::Done)
    }
}

impl ServedImage {
    /// READ (`struct fuse_read_in`).
    fn read(&self, request: &FuseRequest, payload: &mut [u8]) -> Result<usize, Errno> {
        let (offset, size) = (request.u64(8), request.u32(16) as usize);
        let size = size.min(usize::try_from(self.store.len().saturating_sub(offset)).unwrap_or(usize::MAX));
        let out = payload.get_mut(..size).ok_or(Errno::EINVAL)?;
        if request.node != FILE {
            return Err(Errno::EISDIR);
        }
        if !out.is_empty() {
            self.store.read_at(offset, out).map_err(|e| self.errno(&e))?;
        }
        Ok(size)
    }

    /// WRITE (`struct fuse_write_in`). Data beyond the end are cut off, as on a disk.
    fn write(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Result<usize, Errno> {
        let (offset, size) = (request.u64(8), request.u32(16) as usize);
        if size != data || request.node != FILE {
            return Err(Errno::EINVAL);
        }
        if self.read_only {
            return Err(Errno::EROFS);
        }
        let room = usize::try_from(self.store.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        if room == 0 && size > 0 {
            return Err(Errno::ENOSPC);
        }
        let size = size.min(room);
        if size > 0 {
            self.store.write_clobbering(offset, &mut payload[..size]).map_err(|e| self.errno(&e))?;
            let after = u64::try_from(now().saturating_sub(self.since).as_nanos()).unwrap_or(u64::MAX);
            // Not updated by every write, because all processors share this cache line. File times are as coarse anyway.
            if after.saturating_sub(self.written.load(Ordering::Relaxed)) >= COARSE {
                self.written.fetch_max(after, Ordering::Relaxed);
            }
        }
        Ok(Writer::new(payload).u32(size as u32).u32(0).len())
    }

    /// LOOKUP, with the name: `struct fuse_entry_out`.
    fn look_up(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Result<usize, Errno> {
        if request.node != FOLDER {
            return Err(Errno::ENOTDIR);
        }
        if split_name(&payload[..data])?.0 != NAME.as_bytes() {
            return Err(Errno::ENOENT);
        }
        let mut out = Writer::new(payload);
        out.u64(FILE).u64(0).u64(VALID).u64(VALID).u32(0).u32(0).bytes(&self.attributes_of(FILE));
        Ok(out.len())
    }

    /// `struct fuse_attr_out`.
    fn attributes(&self, node: u64, payload: &mut [u8]) -> Result<usize, Errno> {
        if !matches!(node, FOLDER | FILE) {
            return Err(Errno::ENOENT);
        }
        Ok(Writer::new(payload).u64(VALID).u64(0).bytes(&self.attributes_of(node)).len())
    }

    /// `struct fuse_attr`.
    fn attributes_of(&self, node: u64) -> [u8; ATTRIBUTES] {
        let (size, links, written) = match node {
            FILE => (self.store.len(), 1, self.written.load(Ordering::Relaxed)),
            _ => (0, 2, 0),
        };
        let changed = self.since + Duration::from_nanos(written);
        let mut attributes = [0; ATTRIBUTES];
        let mut out = Writer::new(&mut attributes);
        out.u64(node).u64(size).u64(size.div_ceil(512));
        out.u64(changed.as_secs()).u64(changed.as_secs()).u64(changed.as_secs());
        out.u32(changed.subsec_nanos()).u32(changed.subsec_nanos()).u32(changed.subsec_nanos());
        out.u32(self.mode(node)).u32(links).u32(self.uid).u32(self.gid).u32(0).u32(PAGE.max(self.sector_size)).u32(0);
        attributes
    }

    fn mode(&self, node: u64) -> u32 {
        match node {
            FILE if self.read_only => S_IFREG | 0o400,
            FILE => S_IFREG | 0o600,
            _ => S_IFDIR | 0o500,
        }
    }

    /// SETATTR (`struct fuse_setattr_in`): times are accepted and forgotten, all else stays.
    fn change(&self, request: &FuseRequest) -> Result<(), Errno> {
        let (what, size) = (request.u32(0), request.u64(16));
        if what & set::SIZE != 0 && size != self.store.len() {
            return Err(if size > self.store.len() { Errno::EFBIG } else { self.fixed() });
        }
        let differs = |flag, at, current| what & flag != 0 && request.u32(at) != current;
        if differs(set::MODE, 68, self.mode(request.node))
            || differs(set::UID, 76, self.uid)
            || differs(set::GID, 80, self.gid)
        {
            return Err(self.fixed());
        }
        Ok(())
    }

    /// OPEN (`struct fuse_open_in`, `struct fuse_open_out`).
    fn open(&self, request: &FuseRequest, payload: &mut [u8]) -> Result<usize, Errno> {
        const O_ACCMODE: u32 = 3;
        if request.node != FILE {
            return Err(Errno::EISDIR);
        }
        if self.read_only && request.u32(0) & O_ACCMODE != 0 {
            return Err(Errno::EROFS);
        }
        // Keeps the plaintext out of the page cache and requests at the size that programs chose.
        let flags = opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES;
        Ok(Writer::new(payload).u64(0).u32(flags).u32(0).len())
    }

    /// READDIR (`struct fuse_read_in`): as many `struct fuse_dirent` as fit.
    fn list(&self, request: &FuseRequest, payload: &mut [u8]) -> Result<usize, Errno> {
        if request.node != FOLDER {
            return Err(Errno::ENOTDIR);
        }
        let (offset, size) = (request.u64(8), request.u32(16) as usize);
        let entries = [(FOLDER, S_IFDIR, "."), (FOLDER, S_IFDIR, ".."), (FILE, S_IFREG, NAME)];
        let mut out = Writer::new(payload.get_mut(..size).ok_or(Errno::EINVAL)?);
        for (next, (node, kind, name)) in (1..).zip(entries).skip(offset.min(3) as usize) {
            let padding = name.len().next_multiple_of(8) - name.len();
            if !out.has_room(24 + name.len() + padding) {
                break;
            }
            out.u64(node).u64(next).u32(name.len() as u32).u32(kind >> 12);
            out.bytes(name.as_bytes()).bytes(&[0; 8][..padding]);
        }
        Ok(out.len())
    }

    /// `struct fuse_kstatfs`: one file, which takes up all space.
    fn statistics(&self, payload: &mut [u8]) -> usize {
        let block = self.sector_size;
        let mut out = Writer::new(payload);
        out.u64(self.store.len().div_ceil(u64::from(block))).u64(0).u64(0).u64(1).u64(0);
        out.u32(block).u32(255).u32(block).u32(0).bytes(&[0; 24]);
        out.len()
    }

    /// LSEEK (`struct fuse_lseek_in`, `struct fuse_lseek_out`): data everywhere, and a hole at the end.
    fn seek(&self, request: &FuseRequest, payload: &mut [u8]) -> Result<usize, Errno> {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let offset = request.u64(8);
        let found = match request.u32(16) {
            SEEK_DATA | SEEK_HOLE if offset >= self.store.len() => return Err(Errno::ENXIO),
            SEEK_DATA => offset,
            SEEK_HOLE => self.store.len(),
            _ => return Err(Errno::EINVAL),
        };
        Ok(Writer::new(payload).u64(found).len())
    }

    /// The error for changes to what never changes.
    fn fixed(&self) -> Errno {
        if self.read_only { Errno::EROFS } else { Errno::EPERM }
    }

    /// A write that is not allowed here is an I/O error to the program, which has already opened the file for writing.
    fn errno(&self, error: &io::Error) -> Errno {
        match error.kind() {
            io::ErrorKind::PermissionDenied if !self.store.writable() => Errno::EROFS,
            io::ErrorKind::PermissionDenied => Errno::EIO,
            _ => Errno::of(error),
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
