use std::io;
use std::sync::Arc;

use super::{Store, check_range, largest_sector};

/// A part of another store, such as a partition.
pub struct SliceStore {
    inner: Arc<dyn Store>,
    start: u64,
    len: u64,
}

impl SliceStore {
    /// `len` bytes of `inner`, starting at `start`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the slice reaches past the end of `inner`.
    pub fn new(inner: Arc<dyn Store>, start: u64, len: u64) -> io::Result<Self> {
        match start.checked_add(len) {
            Some(end) if end <= inner.len() => Ok(Self { inner, start, len }),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Store for SliceStore {
    fn below(&self) -> Option<&dyn Store> {
        Some(&self.inner)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.len)?;
        self.inner.read_at(self.start + offset, out)
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        check_range(offset, data.len(), self.len)?;
        self.inner.write_clobbering(self.start + offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    /// The sector size of the store below, if the slice consists of its whole sectors.
    fn sector_size(&self) -> u64 {
        largest_sector(self.inner.sector_size(), self.start | self.len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(offset, usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?, self.len)?;
        self.inner.discard(self.start + offset, len)
    }
}
