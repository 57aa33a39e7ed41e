//! Positioned bytes: files, block devices, memory, and layers over other stores such as slices and counters.

mod around;
mod counted;
mod direct;
mod ewf;
mod file;
mod header_lock;
mod joined;
mod mapped;
mod memory;
mod slice;

use std::io;
use std::sync::Arc;

pub(crate) use crate::internal::files;
pub use around::AroundStore;
pub(crate) use counted::Counters;
pub use counted::{CountedStore, Traffic};
pub(crate) use direct::Pages;
pub use ewf::EwfStore;
pub use file::{Access, Borrow, BorrowRemote, ConvertedInUse, FileStore, Handover, Lender, Lent, Loan};
pub use header_lock::HeaderLock;
pub use joined::JoinedStore;
pub use mapped::{Extent, MappedStore};
pub use memory::MemoryStore;
pub use slice::SliceStore;

use crate::error::Result;
use crate::volume::Volume;

/// The smallest sector size of any disk, in bytes.
pub const SMALLEST_SECTOR: u64 = 512;

/// The requests that bypass the system's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass {
    /// All requests, because another cache holds the data.
    All,
    /// Writes of at least 1 MiB: the data were read ahead once and are rewritten.
    LargeWrites,
}

/// The growth of a volume in use.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Growth {
    /// Where its data begin in the file, in bytes: a hidden volume in it begins elsewhere.
    pub start: u64,
    /// The new size of the plaintext, in bytes.
    pub len: u64,
    /// Whether this only asks if it could grow.
    pub rehearse: bool,
}

/// The in-place conversion of a volume in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InUseConversion {
    /// The size of the plaintext, in bytes.
    pub len: u64,
    /// The maximum size of a zone, in bytes.
    pub zone: Option<u64>,
    /// The highest rate, in bytes per second. Without it, other requests have priority.
    pub rate: Option<u64>,
}

/// Positioned bytes. Each call is exact or an error. Offsets and lengths are in bytes.
pub trait Store: Send + Sync {
    /// The store below this layer. By default it answers for the layer: whether the store is whole and writable, its sector size,
    /// and the page cache. A layer must forward the rest itself, if its bytes have the same offsets: locking the header, changing
    /// the size, discarding.
    fn below(&self) -> Option<&dyn Store> {
        None
    }

    /// The file or device of this machine at the bottom, if there is one.
    fn file(&self) -> Option<&FileStore> {
        self.below().and_then(Store::file)
    }

    /// The volume at the bottom, directly in its file, if there is one.
    fn volume(&self) -> Option<&Volume> {
        self.below().and_then(Store::volume)
    }

    /// The size in bytes.
    fn len(&self) -> u64;

    /// Whether the size is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range reaches past the end, or whatever the backing reports.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`. The contents of `data` are unspecified on return, because a volume encrypts in place.
    /// [`Tree::write_at`](crate::trees::Tree::write_at) does not change its data.
    ///
    /// # Errors
    /// `PermissionDenied` if it is read-only, `UnexpectedEof` past the end, or whatever the backing reports.
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// Whatever the backing reports. Writes since the last successful flush may be lost.
    fn flush(&self) -> io::Result<()>;

    /// Fails if the store is now shorter than [`Store::len`] because its file was truncated while open. Check this before storing
    /// data temporarily elsewhere in the store, as a journal does.
    ///
    /// # Errors
    /// An error that says so, or whatever the backing reports.
    fn still_whole(&self) -> io::Result<()> {
        self.below().map_or(Ok(()), Store::still_whole)
    }

    /// The sector size to use for file systems in this store, in bytes: a power of two, at least 512. Smaller requests work, but
    /// other programs that open the same volume may refuse a file system with smaller sectors.
    fn sector_size(&self) -> u64 {
        self.below().map_or(SMALLEST_SECTOR, Store::sector_size)
    }

    /// Whether writes are possible at all.
    fn writable(&self) -> bool {
        self.below().is_none_or(Store::writable)
    }

    /// Whether a write was refused because it would have damaged a hidden volume. After that, every write is refused.
    fn damage_prevented(&self) -> bool {
        self.below().is_some_and(Store::damage_prevented)
    }

    /// The process that lends the store and goes on using it, if it is borrowed.
    fn lender(&self) -> Option<&dyn Lender> {
        self.below().and_then(Store::lender)
    }

    /// Takes note of the present size of the file, device or remote store at the bottom, if that has grown since it was opened.
    ///
    /// # Errors
    /// `Unsupported` if that is only possible by opening it again; whatever the backing reports.
    fn measure(&self) -> io::Result<()> {
        self.below().map_or(Ok(()), Store::measure)
    }

    /// Keeps other programs from changing the header, if there is a lock that they honour. `None` if there is no such lock, or this
    /// user may not take it. Dropping it releases the lock.
    ///
    /// # Errors
    /// `InUse` if another program holds it.
    fn lock_header(&self) -> Result<Option<HeaderLock>> {
        Ok(None)
    }

    /// From now on bypasses the system's page cache, if the backing supports that. Returns whether it does. Only the first call
    /// counts. Must be called before the store is shared: no write may be in progress.
    fn bypass_cache(&self, what: Bypass) -> bool {
        self.below().is_some_and(|below| below.bypass_cache(what))
    }

    /// Whether all requests bypass the page cache. Then each request waits for a disk, and a few large ones are faster than many
    /// small ones.
    fn bypasses_cache(&self) -> bool {
        self.below().is_some_and(Store::bypasses_cache)
    }

    /// Changes the size, if the store can.
    ///
    /// # Errors
    /// `Unsupported` by default.
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes note that the volume in the file below has grown, while this store is in use.
    ///
    /// # Errors
    /// `Unsupported` if the store keeps its size.
    fn grow(&self, _growth: &Growth) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "it keeps its size while in use"))
    }

    /// Makes sure, where the backing can, that a write of these bytes does not fail for lack of space.
    ///
    /// # Errors
    /// `StorageFull`; whatever the backing reports.
    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Marks a range as no longer needed; its contents are unspecified afterwards. Doing nothing is allowed.
    ///
    /// # Errors
    /// Whatever the backing reports.
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn below(&self) -> Option<&dyn Store> {
        (**self).below()
    }
    fn file(&self) -> Option<&FileStore> {
        (**self).file()
    }
    fn volume(&self) -> Option<&Volume> {
        (**self).volume()
    }
    fn len(&self) -> u64 {
        (**self).len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        (**self).write_clobbering(offset, data)
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
    fn lender(&self) -> Option<&dyn Lender> {
        (**self).lender()
    }
    fn measure(&self) -> io::Result<()> {
        (**self).measure()
    }
    fn lock_header(&self) -> Result<Option<HeaderLock>> {
        (**self).lock_header()
    }
    fn bypass_cache(&self, what: Bypass) -> bool {
        (**self).bypass_cache(what)
    }
    fn bypasses_cache(&self) -> bool {
        (**self).bypasses_cache()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        (**self).set_len(len)
    }
    fn grow(&self, growth: &Growth) -> io::Result<()> {
        (**self).grow(growth)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).reserve(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).discard(offset, len)
    }
}

/// The largest sector size that divides `len` and is at most `at_most`; [`SMALLEST_SECTOR`] if there is none.
pub(crate) fn largest_sector(at_most: u64, len: u64) -> u64 {
    at_most.min(len & len.wrapping_neg()).max(SMALLEST_SECTOR)
}

/// Fails unless the `len` bytes at `offset` lie within `size`.
///
/// # Errors
/// `UnexpectedEof`, with the range and the size.
pub fn check_range(offset: u64, len: usize, size: u64) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{len} bytes at {offset} reach past the end at {size}"),
        )),
    }
}
