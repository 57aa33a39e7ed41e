use std::io;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Store, check_range};

/// A store in memory: for tests, benchmarks and headers that were already read.
#[derive(Default)]
pub struct MemoryStore(RwLock<Vec<u8>>);

impl MemoryStore {
    /// A store that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(RwLock::new(bytes))
    }

    /// A copy of the contents.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().clone()
    }

    fn bytes(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_mut(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes();
        check_range(offset, out.len(), bytes.len() as u64)?;
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let mut bytes = self.bytes_mut();
        check_range(offset, data.len(), bytes.len() as u64)?;
        bytes[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.bytes_mut().resize(len, 0);
        Ok(())
    }
}
