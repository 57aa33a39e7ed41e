//! Reading and writing past the page cache (O_DIRECT, open(2)), beside a descriptor that goes through it.
//!
//! A program that reads from a server has a cache of its own. A second cache below it would hold ciphertext that nobody reads
//! again. O_DIRECT accepts only whole blocks in aligned memory. Blocks in unaligned memory are copied through an aligned buffer.
//! Parts of blocks, and the rest of a file after its last whole block, still go through the page cache.
//!
//! Both kinds of requests use the same pages, and the kernel keeps them coherent one after the other: a direct request first writes
//! back dirty pages in its range, and a direct write drops them before and after. The kernel does not guarantee the order of
//! concurrent requests. A cached write makes a whole page dirty, and writing that page back can overwrite a direct write to another
//! block of the page. So a cached write here is exclusive: no direct write begins before it has ended. Reads need no lock: a page
//! filled from the disk during a direct write is dropped when the write returns. A flush is one fdatasync, which concerns the file
//! and the disk's cache, not a descriptor.
//!
//! The locks on the other descriptor keep other programs out, as usual.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fcntl_getfl, open, statx};

use super::Bypass;
use crate::shards::SharedLock;

/// Size of a page, in bytes: enough alignment for every file that does not report its own.
const PAGE: usize = 4096;

/// The size of the aligned buffer, in bytes.
const BOUNCED: usize = 256 << 10;

/// A large write, in bytes.
const LARGE: usize = 1 << 20;

/// A descriptor that bypasses the page cache.
pub(super) struct Direct {
    file: File,
    /// Offsets and lengths must be multiples of this, in bytes.
    block: u64,
    /// Addresses must be multiples of this.
    memory: usize,
    what: Bypass,
    /// Shared by writes that bypass the cache, and held alone by writes through it.
    writers: SharedLock,
    /// Whether the file system has refused a direct request.
    refused: AtomicBool,
    /// Whether another process writes through the page cache.
    paused: AtomicBool,
}

impl Direct {
    /// Opens another descriptor of the same file, with the same access. `None` if the page cache cannot be bypassed.
    pub fn beside(cached: &File, what: Bypass) -> Option<Self> {
        let (block, memory) = alignment(cached)?;
        // Not by name, because the name may refer to another file by now.
        let this = format!("/proc/self/fd/{}", cached.as_raw_fd());
        let kept = fcntl_getfl(cached).ok()? & (OFlags::ACCMODE | OFlags::NOATIME);
        // tmpfs and many FUSE file systems refuse O_DIRECT here.
        let file = open(this, kept | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let (file, refused, paused) = (file.into(), AtomicBool::new(false), AtomicBool::new(false));
        Some(Self { file, block, memory, what, writers: SharedLock::default(), refused, paused })
    }

    /// Whether all writes go through the page cache, because another process writes to the file, too.
    pub fn pause(&self, paused: bool) {
        // Direct writes in progress end first.
        let _exclusive = self.writers.exclusive();
        self.paused.store(paused, Ordering::Release);
    }

    /// The requests that bypass the cache.
    pub fn what(&self) -> Bypass {
        self.what
    }

    /// Reads from a file of `size` bytes: directly where possible, otherwise through the page cache.
    pub fn read_at(&self, cached: &File, size: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let goes = self.what == Bypass::All && self.takes(size, offset, out.len());
        let n = if goes { self.read(offset, out)? } else { 0 };
        if n == out.len() { Ok(()) } else { cached.read_exact_at(&mut out[n..], offset + n as u64) }
    }

    /// Writes within a file of `size` bytes.
    pub fn write_at(&self, cached: &File, size: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let goes = self.what == Bypass::All || data.len() >= LARGE;
        let n = if goes && self.takes(size, offset, data.len()) {
            let _others_too = self.writers.share();
            if self.paused.load(Ordering::Acquire) { 0 } else { self.write(offset, data)? }
        } else {
            0
        };
        if n == data.len() {
            return Ok(());
        }
        let _exclusive = self.writers.exclusive();
        cached.write_all_at(&data[n..], offset + n as u64)
    }

    /// Whether the request consists of whole blocks within the file.
    fn takes(&self, size: u64, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        (offset | len as u64).is_multiple_of(self.block) && end <= size && !self.refused.load(Ordering::Relaxed)
    }

    /// Reads as much as possible: nothing if the file system refuses, and less at the end of a truncated file.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        if self.is_aligned(out) {
            return self.tried(|| self.file.read_at(out, offset));
        }
        let mut bounce = Pages::new(out.len().min(BOUNCED));
        let mut done = 0;
        for part in out.chunks_mut(BOUNCED) {
            let buffer = &mut bounce[..part.len()];
            let n = self.tried(|| self.file.read_at(buffer, offset + done as u64))?;
            part[..n].copy_from_slice(&buffer[..n]);
            done += n;
            if n < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes as much as possible.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        if self.is_aligned(data) {
            return self.tried(|| self.file.write_at(data, offset));
        }
        let mut bounce = Pages::new(data.len().min(BOUNCED));
        let mut done = 0;
        for part in data.chunks(BOUNCED) {
            let buffer = &mut bounce[..part.len()];
            buffer.copy_from_slice(part);
            let n = self.tried(|| self.file.write_at(buffer, offset + done as u64))?;
            done += n;
            if n < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn is_aligned(&self, memory: &[u8]) -> bool {
        (memory.as_ptr() as usize).is_multiple_of(self.memory)
    }

    /// The result of a system call. If the file system refuses direct requests, returns 0 and does not try again.
    fn tried(&self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                    self.refused.store(true, Ordering::Relaxed);
                    return Ok(0);
                }
                done => return done,
            }
        }
    }
}

/// The alignment that the kernel reports for blocks and memory. `None` if it reports that the page cache cannot be bypassed.
/// Kernels before Linux 6.1 report nothing; a page is then always enough.
fn alignment(file: &File) -> Option<(u64, usize)> {
    let Ok(alignment) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some((PAGE as u64, PAGE));
    };
    if alignment.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Some((PAGE as u64, PAGE));
    }
    let (block, memory) = (alignment.stx_dio_offset_align, alignment.stx_dio_mem_align as usize);
    let known = block.is_power_of_two() && memory.is_power_of_two() && block as usize <= PAGE && memory <= PAGE;
    known.then_some((block.into(), memory))
}

/// Bytes that begin at a page boundary.
#[derive(Default)]
pub(crate) struct Pages {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Pages {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let mut new = Self::default();
        new.resize(len);
        new
    }

    /// Changes the length to `len` bytes. Growing beyond the largest length so far discards the contents.
    pub fn resize(&mut self, len: usize) {
        if self.skip + len > self.bytes.len() {
            self.bytes = Vec::new(); // freed first
            self.bytes = vec![0; len + PAGE];
            self.skip = (self.bytes.as_ptr() as usize).wrapping_neg() % PAGE;
        }
        self.len = len;
    }
}

impl Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.skip..self.skip + self.len]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_at_a_page() {
        let mut pages = Pages::default();
        assert!(pages.is_empty());
        for len in [1, 4096, 100_000, 5, (1 << 20) + 1] {
            pages.resize(len);
            assert_eq!((pages.len(), pages.as_ptr() as usize % PAGE), (len, 0));
        }
    }
}
