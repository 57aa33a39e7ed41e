//! System calls without a safe form.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, msync, munmap};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread its own umask and working folder.
pub fn own_umask() -> Result<()> {
    // SAFETY: descriptors stay shared; only what CLONE_FS names is copied, which no safe code relies on to be shared.
    unsafe { unshare_unsafe(UnshareFlags::FS) }
}

fn told(result: libc::c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// truncate(2), also with invalid lengths.
pub fn truncate(path: &Path, len: i64) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the path ends with a zero and lives until the call is over.
    told(unsafe { libc::truncate(path.as_ptr(), len) })
}

/// ftruncate(2), also with invalid lengths.
pub fn ftruncate(fd: impl AsFd, len: i64) -> Result<()> {
    // SAFETY: plain numbers; the descriptor is open.
    told(unsafe { libc::ftruncate(fd.as_fd().as_raw_fd(), len) })
}

/// The holder of a byte range lock: the process (F_SETLK), or the open file (F_OFD_SETLK).
#[derive(Clone, Copy)]
pub enum Holder {
    /// Released when the process closes any descriptor of the file.
    Process,
    /// Released with the last descriptor of that open file.
    OpenFile,
}

/// Takes (F_RDLCK, F_WRLCK) or releases (F_UNLCK) a lock of `len` bytes from `start`, without waiting.
pub fn lock(fd: impl AsFd, holder: Holder, kind: libc::c_int, start: i64, len: i64) -> Result<()> {
    let command = match holder {
        Holder::Process => libc::F_SETLK,
        Holder::OpenFile => libc::F_OFD_SETLK,
    };
    let lock = described(kind, start, len);
    // SAFETY: the kernel reads one `flock` through the pointer and keeps nothing.
    told(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw const lock) })
}

/// The kind and the first byte of a lock that conflicts with one that this open file requests (F_OFD_GETLK).
pub fn lock_in_the_way(fd: impl AsFd, kind: libc::c_int, start: i64, len: i64) -> Result<(libc::c_int, i64)> {
    let mut lock = described(kind, start, len);
    // SAFETY: the kernel reads and writes one `flock` through the pointer and keeps nothing.
    told(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok((lock.l_type.into(), lock.l_start))
}

fn described(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    let whence = libc::SEEK_SET as libc::c_short;
    libc::flock { l_type: kind as libc::c_short, l_whence: whence, l_start: start, l_len: len, l_pid: 0 }
}

/// A memory mapping of a file.
pub struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

impl Mapped {
    /// Maps the first `len` bytes of a file; changes to a `shared` mapping go to the file.
    pub fn new(fd: impl AsFd, len: usize, shared: bool) -> Result<Self> {
        let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        // SAFETY: a new mapping at a place that the kernel chooses touches no memory of others.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, 0) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// The `len` bytes from `at`.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: within the mapping. Others may change these bytes in the meantime, hence no slice of them.
        (at..at + len).map(|i| unsafe { self.start.add(i).read_volatile() }).collect()
    }

    /// Writes `bytes` at `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, &byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping, which may be written.
            unsafe { self.start.add(at + i).write_volatile(byte) }
        }
    }

    /// Waits until changes are in the file (MS_SYNC).
    pub fn sync(&self) -> Result<()> {
        // SAFETY: exactly the mapping, which nobody unmaps in the meantime.
        unsafe { msync(self.start.as_ptr().cast(), self.len, rustix::mm::MsyncFlags::SYNC) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
