use std::fs::{self, File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use claviger_crypto::Secret;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, seek};
use rustix::io::{Errno, retry_on_intr};

use super::direct::Direct;
use super::header_lock::{self, HeaderLock};
use super::{Bypass, Growth, InUseConversion, Store, check_range, files};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::volume::ConversionKind;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Never writes a byte; shares the file with other readers.
    ReadOnly,
    /// Reads and writes; locks the file exclusively.
    ReadWrite,
}

/// A regular file or a block device.
///
/// It holds an advisory lock (`flock`) for its lifetime: shared for reading, exclusive for writing. So two programs of this project
/// never write to the same volume at once. For a loop device, the backing file is locked too.
pub struct FileStore {
    file: File,
    path: PathBuf,
    /// The length at opening, or after the last change through this store.
    len: AtomicU64,
    access: Access,
    regular: bool,
    /// The backing file of a loop device, and its length at opening. It is locked too, because it is the same volume under another
    /// name.
    behind: Option<(File, u64)>,
    /// The descriptor that bypasses the page cache, if that was requested and is possible.
    direct: OnceLock<Option<Direct>>,
    /// The times to restore on closing.
    times: OnceLock<FileTimes>,
    /// Whether the lock is shared with another process: lent to it, or borrowed from it. Closing must not release it then.
    shares_lock: AtomicBool,
    /// Whether the next flush has to fail: somebody else got the error of a failed write-back, which the system reports once.
    owes_error: AtomicBool,
    /// If the file is borrowed: who lends it, and the descriptor with its lock if `file` is another one.
    loan: Option<(Box<dyn Lender>, Option<File>)>,
}

/// A file that another process has opened and locked, borrowed from it.
pub struct Loan {
    /// Shares its lock with the lender's descriptor.
    pub file: File,
    /// The backing file of a loop device, which is locked, too.
    pub behind: Option<File>,
    /// Gets the file back on drop.
    pub lender: Box<dyn Lender>,
}

/// How to get a store from the process that uses it. Both return `None` if no such process lends it.
#[derive(Clone, Copy)]
pub struct Borrow {
    /// Borrows the file at a path from the process that has locked it.
    pub file: fn(&Path) -> Result<Option<Loan>>,
    /// Borrows the remote store of a name. All its bytes go through the process that lends it.
    pub remote: BorrowRemote,
}

/// Borrows the remote store of a name.
pub type BorrowRemote = fn(&Path, Access) -> Result<Option<Arc<dyn Store>>>;

/// What the process that uses a volume needs for converting it.
#[derive(Clone, Copy)]
pub struct Handover<'a> {
    /// The volume keys: those of both sides, if they differ.
    pub keys: &'a [&'a Secret],
    /// The file of a detached header, open for writing.
    pub header: Option<&'a FileStore>,
}

/// The process that lends a file and goes on using it.
pub trait Lender: Send + Sync {
    /// Says that the volume grows.
    ///
    /// # Errors
    /// `Unsupported`, with the reason; others if the lender does not answer.
    fn grow(&self, growth: &Growth) -> io::Result<()>;

    /// Asks whether it can convert the volume in place, before anything is changed.
    ///
    /// # Errors
    /// `Unsupported`, with the reason; others if the lender does not answer.
    fn may_convert(&self, request: &InUseConversion, with: &Handover<'_>) -> Result<()>;

    /// Has it convert the volume in place, as the header says by now.
    ///
    /// # Errors
    /// `Cancelled`; those of the lender; `Io` if it ends meanwhile.
    fn convert(
        &self,
        request: &InUseConversion,
        with: &Handover<'_>,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()>;

    /// Has it convert the volume in place with the key process that `start` starts with the ends of its channel: socket and memory. That
    /// process begins or resumes the conversion, and takes the place of the volume's key process. `header` is as in [`Handover`].
    ///
    /// # Errors
    /// `Unsupported`, also if the keys are not in a key process; those of `start` and of [`Lender::convert`].
    fn convert_with_key_process(
        &self,
        _header: Option<&FileStore>,
        _start: &mut dyn FnMut([OwnedFd; 2]) -> Result<()>,
        _progress: &dyn Fn(u64, u64),
        _cancel: &AtomicBool,
    ) -> Result<ConvertedInUse> {
        Err(Error::unsupported("converting it with a key process while it is in use"))
    }
}

/// What a conversion in use has done.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ConvertedInUse {
    /// What it did.
    pub kind: ConversionKind,
    /// The size of the plaintext, in bytes.
    pub size: u64,
    /// The keyslots that were removed with the old key.
    pub ended_keyslots: Vec<u32>,
}

impl AsFd for FileStore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl FileStore {
    /// Opens the file or block device at `path`.
    ///
    /// # Errors
    /// `Io` if it cannot be opened, `InUse` if another process holds the lock, `Misuse` if it is neither a regular file
    /// nor a block device.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        Self::opened(path, access).map_err(|e| match &e.kind {
            ErrorKind::Io(io)
                if io.kind() == io::ErrorKind::PermissionDenied
                    && rustix::fs::access(path, rustix::fs::Access::READ_OK).is_err() =>
            {
                e.at(path).hint("You have no permission to read or write it. Ask its owner, or run as root.")
            }
            ErrorKind::Io(io)
                if access == Access::ReadWrite
                    && matches!(io.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                e.at(path).advise(Advice::OpenReadOnly)
            }
            _ => e.at(path),
        })
    }

    /// Creates the file with mode 0600 and allocates `len` bytes at once, so that a full file system is detected now, not later.
    /// The file must not exist.
    ///
    /// # Errors
    /// `Io`. If the space cannot be allocated, the new file is removed again.
    pub fn create(path: &Path, len: u64) -> Result<Self> {
        Self::created(path, len, |store| store.allocate(len))
    }

    /// Like [`FileStore::create`], without allocating space: the file is one hole, which reads as zeros.
    ///
    /// # Errors
    /// `Io`. If the length cannot be set, the new file is removed again.
    pub fn create_sparse(path: &Path, len: u64) -> Result<Self> {
        Self::created(path, len, |store| Ok(store.file.set_len(len)?))
    }

    fn created(path: &Path, len: u64, fill: impl FnOnce(&Self) -> Result<()>) -> Result<Self> {
        let create = || -> Result<Self> {
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
            let store = Self::of(file, path, len, Access::ReadWrite, true);
            // Locked first: allocation may take long, and no other program may lock the file in the meantime.
            store.lock().and_then(|()| fill(&store)).inspect_err(|_| {
                if store.is_at(&store.path) {
                    let _ = fs::remove_file(&store.path);
                }
            })?;
            Ok(store)
        };
        create().map_err(|e| e.at(path))
    }

    /// A file that another process has opened, locked and handed over.
    ///
    /// # Errors
    /// `Misuse` if it is neither a regular file nor a block device, or not open for writing; `Io`.
    pub fn handed_over(mut file: File) -> Result<Self> {
        let kind = file.metadata()?.file_type();
        let mode = fcntl_getfl(&file).map_err(io::Error::from)? & OFlags::ACCMODE;
        if !(kind.is_file() || kind.is_block_device()) || mode != OFlags::RDWR {
            return Err(Error::misuse("not a file or block device that is open for writing"));
        }
        let len = file.seek(SeekFrom::End(0))?;
        let mut store = Self::of(file, Path::new(""), len, Access::ReadWrite, kind.is_file());
        store.shares_lock = true.into();
        Ok(store)
    }

    /// The path at opening.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The numbers of its device and inode, which identify a file whatever its name.
    ///
    /// # Errors
    /// `Io`.
    pub fn number(&self) -> io::Result<(u64, u64)> {
        self.file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        !self.regular
    }

    /// Whether `path` itself (without following a symbolic link) is still this file, and not a replacement.
    pub fn is_at(&self, path: &Path) -> bool {
        Self::same(self.file.metadata(), fs::symlink_metadata(path))
    }

    /// Renames this file from `from` to `to`. `to` must be unused, or the name of the `old` file, which is then removed. Any other
    /// file that has appeared at `to` is kept.
    ///
    /// # Errors
    /// `InUse` if it is no longer at `from`, or `to` is another file; `Io`.
    pub fn rename(&self, from: &Path, to: &Path, old: Option<&Self>) -> Result<()> {
        let moved = match old {
            _ if !self.is_at(from) => Ok(false),
            None if from == to => Ok(true),
            None => match files::rename_new(from, to) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                renamed => renamed.map(|()| true),
            },
            Some(old) => old.give_way(from, to),
        };
        match moved.map_err(|e| Error::from(e).at(to))? {
            true => Ok(()),
            false => {
                let holder = Some("another file has replaced it".to_owned());
                Err(Error::new(ErrorKind::InUse { holder }).at(to))
            }
        }
    }

    /// Replaces this file with the file `from`, if this file is at `to`.
    fn give_way(&self, from: &Path, to: &Path) -> io::Result<bool> {
        if !files::exchange(from, to)? {
            // The best option if the file system cannot exchange names.
            return if self.is_at(to) { fs::rename(from, to).map(|()| true) } else { Ok(false) };
        }
        if !self.is_at(from) {
            return files::exchange(from, to).map(|_| false);
        }
        // Sync the new name before the old file is removed. If syncing fails, the old file is removed anyway.
        let _ = files::sync_folder(to);
        fs::remove_file(from).map(|()| true)
    }

    /// Drops the file's pages from the page cache, so that the next read comes from the disk.
    pub fn forget_cached(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// From now on, reads and writes leave no trace in the file's times: closing restores its current access and modification
    /// times. Programs that rely on these times, such as backups, then miss the changes.
    ///
    /// # Errors
    /// `Io`.
    pub fn keep_times(&self) -> Result<()> {
        if self.regular && self.access == Access::ReadWrite {
            let now = self.file.metadata()?;
            let _ = self.times.set(FileTimes::new().set_accessed(now.accessed()?).set_modified(now.modified()?));
        }
        Ok(())
    }

    /// The ranges that were never written: holes and merely allocated space, as the file system reports them (lseek(2),
    /// `SEEK_HOLE`). Empty for a device, and if the file system does not report holes.
    ///
    /// # Errors
    /// `Io`.
    pub fn unwritten(&self) -> Result<Vec<Range<u64>>> {
        let mut holes = Vec::new();
        let mut at = 0;
        while self.regular && at < self.len() {
            let data = match seek(&self.file, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => data,
                // Only a hole is left.
                Err(Errno::NXIO) => self.len(),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
                Err(e) => return Err(io::Error::from(e).into()),
            };
            if data > at {
                holes.push(at..data);
            }
            at = if data < self.len() {
                seek(&self.file, rustix::fs::SeekFrom::Hole(data)).map_err(io::Error::from)?
            } else {
                data
            };
        }
        Ok(holes)
    }

    fn same(a: io::Result<fs::Metadata>, b: io::Result<fs::Metadata>) -> bool {
        a.is_ok_and(|a| b.is_ok_and(|b| (a.dev(), a.ino()) == (b.dev(), b.ino())))
    }

    fn of(file: File, path: &Path, len: u64, access: Access, regular: bool) -> Self {
        let (path, len) = (path.to_owned(), len.into());
        let (shares_lock, owes_error) = (false.into(), false.into());
        let (direct, times) = (OnceLock::new(), OnceLock::new());
        Self { file, path, len, access, regular, behind: None, direct, times, shares_lock, owes_error, loan: None }
    }

    /// Opens the file or block device at `path` for a short look: without a lock, so that nobody finds it in use.
    ///
    /// # Errors
    /// Those of [`FileStore::open`], except `InUse`.
    pub(crate) fn unlocked(path: &Path) -> Result<Self> {
        let open = || -> Result<Self> {
            let regular = is_regular(path)?;
            let mut file = untouched(path)?;
            let len = file.seek(SeekFrom::End(0))?;
            Ok(Self::of(file, path, len, Access::ReadOnly, regular))
        };
        open().map_err(|e| e.at(path))
    }

    fn opened(path: &Path, access: Access) -> Result<Self> {
        let regular = is_regular(path)?;
        let mut file = match access {
            Access::ReadOnly => untouched(path)?,
            Access::ReadWrite => OpenOptions::new().read(true).write(true).open(path)?,
        };
        if !regular && access == Access::ReadWrite {
            file = exclusive(path)?;
        }
        // A block device's metadata gives no size; seeking to its end does.
        let len = file.seek(SeekFrom::End(0))?;
        let mut store = Self::of(file, path, len, access, regular);
        store.behind = if !regular { behind(&store.file) } else { None };
        store.lock()?;
        store.check_path()?;
        if access == Access::ReadWrite {
            store.not_a_loop_device()?;
        }
        Ok(store)
    }

    /// Fails if the file backs a loop device, because the kernel writes to it without taking a lock.
    fn not_a_loop_device(&self) -> Result<()> {
        self.loop_device().map_or(Ok(()), |device| {
            let holder = Some(format!("attached to {device}"));
            Err(Error::new(ErrorKind::InUse { holder }).hint("Detach it there first. Nothing was changed."))
        })
    }

    /// Fails if the path leads to another file: a process may have replaced it between open and lock.
    fn check_path(&self) -> Result<()> {
        if Self::same(self.file.metadata(), fs::metadata(&self.path)) {
            return Ok(());
        }
        let holder = Some("another file has just replaced it".into());
        Err(Error::new(ErrorKind::InUse { holder }).hint("Try again."))
    }

    /// The file at `path`: opened, or borrowed if it is in use.
    ///
    /// # Errors
    /// Those of [`FileStore::open`] and [`FileStore::borrow`].
    pub fn open_or_borrow(path: &Path, access: Access, borrow: Borrow) -> Result<Self> {
        match Self::open(path, access) {
            Err(e) if matches!(e.kind, ErrorKind::InUse { .. }) => match (borrow.file)(path).map_err(|e| e.at(path))? {
                Some(loan) => Self::borrow(path, access, loan),
                None => Err(e),
            },
            opened => opened,
        }
    }

    /// The file at `path`, borrowed from the process that has locked it. Borrowed for writing, it is locked exclusively.
    ///
    /// # Errors
    /// `InUse` if others share the lock, or the path leads to another file; `Io`.
    pub fn borrow(path: &Path, access: Access, loan: Loan) -> Result<Self> {
        Self::borrowed(path, access, loan).map_err(|e| e.at(path))
    }

    fn borrowed(path: &Path, access: Access, Loan { mut file, behind: locked, lender }: Loan) -> Result<Self> {
        let (len, regular) = (file.seek(SeekFrom::End(0))?, file.metadata()?.is_file());
        let mut store = Self::of(file, path, len, access, regular);
        store.behind = locked.and_then(|locked| Some((locked, behind(&store.file)?.1)));
        store.shares_lock = true.into();
        store.loan = Some((lender, None));
        store.check_path()?;
        if access == Access::ReadOnly {
            return Ok(store);
        }
        store.not_a_loop_device()?;
        // The kernel gives the old lock up before it tries for the new one (flock(2)).
        store.lock().inspect_err(|_| store.files().for_each(|file| drop(file.try_lock_shared())))?;
        let mode = fcntl_getfl(&store.file).map_err(io::Error::from)? & OFlags::ACCMODE;
        if mode != OFlags::RDWR {
            let this = PathBuf::from(format!("/proc/self/fd/{}", store.file.as_raw_fd()));
            let file = if regular { OpenOptions::new().read(true).write(true).open(this)? } else { exclusive(&this)? };
            // The lock lasts until both descriptors are closed.
            let locked = std::mem::replace(&mut store.file, file);
            store.loan = store.loan.take().map(|(lender, _)| (lender, Some(locked)));
        }
        Ok(store)
    }

    /// Lets the next flush fail: writes before it may be lost.
    pub(crate) fn next_flush_fails(&self) {
        self.owes_error.store(true, Ordering::Release);
    }

    /// Lends the file and its lock to another process, which gets the descriptors returned here: the file, and the backing file of a
    /// loop device. Until the loan ends, all writes go through the page cache, as the borrower's do.
    ///
    /// # Errors
    /// `Io` if there is no descriptor left.
    pub fn lend(&self) -> io::Result<(File, Option<File>, Lent<'_>)> {
        let file = self.file.try_clone()?;
        let behind = self.behind.as_ref().map(|(behind, _)| behind.try_clone()).transpose()?;
        self.shares_lock.store(true, Ordering::Release);
        if let Some(direct) = self.direct() {
            direct.pause(true);
        }
        Ok((file, behind, Lent(self)))
    }

    fn lock(&self) -> Result<()> {
        self.files().try_for_each(|file| self.lock_file(file))
    }

    /// All files that are locked.
    fn files(&self) -> impl Iterator<Item = &File> {
        std::iter::once(&self.file).chain(self.behind.as_ref().map(|(file, _)| file))
    }

    fn lock_file(&self, file: &File) -> Result<()> {
        let locked = match self.access {
            Access::ReadOnly => file.try_lock_shared(),
            Access::ReadWrite => file.try_lock(),
        };
        match locked {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(Error::new(ErrorKind::InUse { holder: holder(file) })
                .hint("Close it there first. Nothing was changed.")),
            Err(TryLockError::Error(e)) => Err(e.into()),
        }
    }

    /// The loop device that this file backs.
    fn loop_device(&self) -> Option<String> {
        let backs = |device: &fs::DirEntry| {
            let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
            Self::same(self.file.metadata(), fs::metadata(file.trim_end_matches('\n')))
        };
        let device = fs::read_dir("/sys/block").ok()?.flatten().find(backs)?;
        Some(format!("/dev/{}", device.file_name().display()))
    }

    fn allocate(&self, len: u64) -> Result<()> {
        if len > 0 && !self.fallocate(FallocateFlags::empty(), 0, len)? {
            self.file.set_len(len)?;
        }
        Ok(())
    }

    /// Returns false if the file system does not support it. A signal interrupts the call, which takes long for a large file; the
    /// call is then repeated.
    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> io::Result<bool> {
        match retry_on_intr(|| fallocate(&self.file, flags, offset, len)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Allocates space for growing to `len` bytes, without changing the length. Returns false if the file system does not support
    /// that; then only writing shows whether there is enough space.
    ///
    /// # Errors
    /// `Io` if there is not enough space. [`FileStore::change_len`] releases what was allocated.
    pub(crate) fn reserve(&self, len: u64) -> io::Result<bool> {
        let old = self.len();
        self.fallocate(FallocateFlags::KEEP_SIZE, old, len.saturating_sub(old))
    }

    /// A view of the file while it grows to `len` bytes. A write that begins inside the file or at its end may extend it up to
    /// `len`.
    pub(crate) fn growing(&self, len: u64) -> impl Store + '_ {
        Growing { file: self, len }
    }

    /// Changes the file's length, durably: truncates it, or extends it with a hole.
    ///
    /// # Errors
    /// `Misuse` for a block device; `Io`.
    pub fn change_len(&self, len: u64) -> Result<()> {
        if !self.regular {
            return Err(Error::misuse("a block device cannot be resized"));
        }
        self.file.set_len(len)?;
        self.len.store(len, Ordering::Release);
        Ok(self.file.sync_all()?)
    }

    fn direct(&self) -> Option<&Direct> {
        self.direct.get()?.as_ref()
    }

    /// Fails if the file was truncated while open and byte `end` no longer exists: a write would extend it again. For a loop
    /// device, only the length of the backing file is compared, because the device's range in that file is unknown.
    fn reaches(&self, end: u64) -> io::Result<()> {
        let (file, needed) = match &self.behind {
            Some((file, len)) => (file, *len),
            None if self.regular => (&self.file, end),
            None => return Ok(()),
        };
        let now = file.metadata()?.len();
        if now >= needed {
            return Ok(());
        }
        let what = format!("the file was cut short while open: {now} of {needed} bytes are left");
        Err(io::Error::other(what))
    }
}

/// A file that grows as it is written.
struct Growing<'a> {
    file: &'a FileStore,
    /// The length up to which it may grow.
    len: u64,
}

impl Store for Growing<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        check_range(offset, data.len(), self.len)?;
        self.file.reaches(offset)?;
        self.file.file.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The process that holds a lock on the file, from /proc/locks (proc_locks(5)).
fn holder(file: &File) -> Option<String> {
    let metadata = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let inode = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let of_it = |line: &&str| line.contains("FLOCK") && line.split_whitespace().any(|word| word == inode);
    let pid = |locks: &str| locks.lines().find(of_it)?.split_whitespace().nth(4).map(str::to_owned);
    // Concurrent changes to /proc/locks can hide a line from a single read.
    let pid = (0..3).find_map(|_| pid(&fs::read_to_string("/proc/locks").ok()?))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("process {pid}, {}", name.trim_end()))
}

/// The backing file of a loop device or of a partition on one, if it is visible, and the offset in it where the device ends, in
/// bytes. Every write to the device is a write to that file (sysfs, /sys/block/loopN/loop).
fn behind(device: &File) -> Option<(File, u64)> {
    let device = device.metadata().ok()?.rdev();
    let node = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let attribute = |at: &str, what: &str| fs::read(Path::new(&node).join(at).join("loop").join(what)).ok();
    let (of, name) = [".", ".."].into_iter().find_map(|at| Some((at, attribute(at, "backing_file")?)))?;
    let number = |what: &str| String::from_utf8(attribute(of, what)?).ok()?.trim().parse::<u64>().ok();
    let path = Path::new(std::ffi::OsStr::from_bytes(name.strip_suffix(b"\n").unwrap_or(&name)));
    let file = fs::metadata(path).is_ok_and(|m| m.is_file()).then(|| untouched(path))?.ok()?;
    let len = file.metadata().ok()?.len();
    // Without a limit, the device ends with the file.
    let end = number("sizelimit").filter(|size| *size > 0).map_or(len, |size| number("offset").unwrap_or(0) + size);
    Some((file, end.min(len)))
}

/// Opens a block device exclusively: it must not be in use by a file system, as a swap area or by device mapper. The kernel refuses
/// O_EXCL for a device in use, and refuses these uses while the device is open with O_EXCL (open(2)).
fn exclusive(path: &Path) -> Result<File> {
    let flags = OFlags::EXCL.bits().cast_signed();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(|e| match e.kind() {
        io::ErrorKind::ResourceBusy => {
            Error::new(ErrorKind::InUse { holder: Some("mounted, or part of another device".into()) })
                .hint("Unmount it first. Nothing was changed.")
        }
        _ => e.into(),
    })
}

/// Whether the path leads to a regular file, and not to a block device. Checked before it is opened: opening a FIFO would block, and
/// opening some devices has side effects.
fn is_regular(path: &Path) -> Result<bool> {
    let kind = fs::metadata(path)?.file_type();
    match kind.is_file() || kind.is_block_device() {
        true => Ok(kind.is_file()),
        false => Err(Error::misuse("neither a regular file nor a block device")),
    }
}

/// Opens for reading without updating the access time, if permitted: only the owner and root may do that (open(2)).
fn untouched(path: &Path) -> io::Result<File> {
    let no_time = OFlags::NOATIME.bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(no_time).open(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

/// A file that is lent. The loan ends on drop.
pub struct Lent<'a>(&'a FileStore);

impl Lent<'_> {
    /// The file stays lent, because the lender ends before the borrower: the borrower then has the only descriptor and the lock.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Self(store) = self;
        // The borrower may have made a shared lock exclusive.
        let _ = store.lock();
        // Nothing that a killed borrower wrote may be written back over a direct write.
        if store.file.sync_data().is_err() {
            store.next_flush_fails();
        }
        store.shares_lock.store(false, Ordering::Release);
        if let Some(direct) = store.direct() {
            direct.pause(false);
        }
    }
}

impl Drop for FileStore {
    /// A newly started process shares the descriptor until it calls exec. Closing ours would then not release the lock. But
    /// releasing a lock that is shared with another process would release it for both.
    fn drop(&mut self) {
        if let Some(times) = self.times.get() {
            let _ = self.file.set_times(*times);
        }
        if !self.shares_lock.load(Ordering::Acquire) {
            self.files().for_each(|file| drop(file.unlock()));
        }
    }
}

impl Store for FileStore {
    fn file(&self) -> Option<&FileStore> {
        Some(self)
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let read = match self.direct() {
            Some(direct) => direct.read_at(&self.file, self.len(), offset, out),
            None => self.file.read_exact_at(out, offset),
        };
        read.map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                let what = format!("{} bytes at {offset} reach past the end of the file", out.len());
                io::Error::new(io::ErrorKind::UnexpectedEof, what)
            }
            _ => e,
        })
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if self.access == Access::ReadOnly {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "opened read-only"));
        }
        // A container must not grow: bytes past its end are not part of the volume. A container that was truncated while open must
        // not be extended again.
        check_range(offset, data.len(), self.len())?;
        self.reaches(offset + data.len() as u64)?;
        match self.direct() {
            Some(direct) => direct.write_at(&self.file, self.len(), offset, data),
            None => self.file.write_all_at(data, offset),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.access {
            Access::ReadOnly => Ok(()),
            // Truncation also lost what had been written to the part that was cut off.
            Access::ReadWrite => {
                self.file.sync_data()?;
                if self.owes_error.swap(false, Ordering::AcqRel) {
                    return Err(io::Error::other("the system could not write earlier data to the disk"));
                }
                self.still_whole()
            }
        }
    }

    fn still_whole(&self) -> io::Result<()> {
        self.reaches(self.len())
    }

    fn writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    fn bypass_cache(&self, what: Bypass) -> bool {
        self.direct.get_or_init(|| Direct::beside(&self.file, what)).is_some()
    }

    fn bypasses_cache(&self) -> bool {
        self.direct().is_some_and(|direct| direct.what() == Bypass::All)
    }

    fn lender(&self) -> Option<&dyn Lender> {
        self.loan.as_ref().map(|(lender, _)| &**lender)
    }

    fn measure(&self) -> io::Result<()> {
        let len = (&self.file).seek(SeekFrom::End(0))?;
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    /// For block devices only: a file is locked already, and cryptsetup uses the same lock for it.
    fn lock_header(&self) -> Result<Option<HeaderLock>> {
        if self.regular {
            return Ok(None);
        }
        header_lock::take(self.file.metadata()?.rdev())
    }
}
