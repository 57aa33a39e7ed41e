//! Positioned bytes: files, block devices, memory, and what is put over other stores: slices, counters.

mod counted;
mod file;
pub mod files;
mod header_lock;
mod memory;
mod slice;

use std::io;
use std::sync::Arc;

pub use counted::{CountedStore, Traffic};
pub use file::{Access, FileStore};
pub use header_lock::HeaderLock;
pub use memory::MemoryStore;
pub use slice::SliceStore;

use crate::error::Result;

/// The smallest sector that a disk has, in bytes.
pub const SMALLEST_SECTOR: u64 = 512;

/// Positioned bytes. Each call is exact or an error. Offsets and lengths are in bytes.
pub trait Store: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// Whether there is not a byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` where the store ends sooner, or whatever the backing reports.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` from `offset` on. Consumes `data`: its contents are unspecified on return, so that a volume may
    /// encrypt in place.
    ///
    /// # Errors
    /// `PermissionDenied` where nothing may be written, `UnexpectedEof` past the end, or whatever the backing reports.
    fn write_at(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Makes all writes that have returned durable.
    ///
    /// # Errors
    /// Whatever the backing reports. What was not durable before may be lost.
    fn flush(&self) -> io::Result<()>;

    /// Fails where it is shorter than [`Store::len`] by now: somebody cut its file short while it was open. Who puts data aside
    /// that belong elsewhere in it, as a journal does, looks first.
    ///
    /// # Errors
    /// One that says so, or whatever the backing reports.
    fn still_whole(&self) -> io::Result<()> {
        Ok(())
    }

    /// Size of the sectors that file systems in it should be made for, in bytes: a power of two, at least 512. What is smaller
    /// can be read and written, but other programs that open the same volume may refuse it.
    fn sector_size(&self) -> u64 {
        SMALLEST_SECTOR
    }

    /// Whether writes are possible at all.
    fn writable(&self) -> bool {
        true
    }

    /// Whether a write was refused because it would have damaged a hidden volume. From then on nothing can be written.
    fn damage_prevented(&self) -> bool {
        false
    }

    /// Keeps other programs from changing the header, where there is a lock for that which they know; `None` where there is
    /// none, or it is not for this user. It ends when it is dropped.
    ///
    /// # Errors
    /// `InUse` if another program holds it.
    fn lock_header(&self) -> Result<Option<HeaderLock>> {
        Ok(None)
    }

    /// Changes the size, where the store can.
    ///
    /// # Errors
    /// `Unsupported` by default.
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Says that a range is not needed any more; what it reads as afterwards is unspecified. Doing nothing is right.
    ///
    /// # Errors
    /// Whatever the backing reports.
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn len(&self) -> u64 {
        (**self).len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, out)
    }
    fn write_at(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        (**self).write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }
    fn still_whole(&self) -> io::Result<()> {
        (**self).still_whole()
    }
    fn sector_size(&self) -> u64 {
        (**self).sector_size()
    }
    fn writable(&self) -> bool {
        (**self).writable()
    }
    fn damage_prevented(&self) -> bool {
        (**self).damage_prevented()
    }
    fn lock_header(&self) -> Result<Option<HeaderLock>> {
        (**self).lock_header()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        (**self).set_len(len)
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).discard(offset, len)
    }
}

/// The largest size of a sector up to `at_most` that `len` bytes are whole sectors of; [`SMALLEST_SECTOR`] if there is none.
pub(crate) fn largest_sector(at_most: u64, len: u64) -> u64 {
    at_most.min(len & len.wrapping_neg()).max(SMALLEST_SECTOR)
}

/// Fails unless `len` bytes from `offset` on lie within `size`.
pub(crate) fn check_range(offset: u64, len: usize, size: u64) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{len} bytes at {offset} reach past the end at {size}"),
        )),
    }
}
