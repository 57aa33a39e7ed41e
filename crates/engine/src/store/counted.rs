use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Store;

/// A store that counts the bytes that were read from and written to it, for those who want to know how busy it is.
pub struct CountedStore<S> {
    inner: S,
    read: AtomicU64,
    written: AtomicU64,
}

/// Bytes that went through a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl<S: Store> CountedStore<S> {
    /// Counts what goes through `inner` from now on.
    pub fn new(inner: S) -> Self {
        Self { inner, read: AtomicU64::new(0), written: AtomicU64::new(0) }
    }

    /// What has gone through: requests that failed do not count.
    pub fn traffic(&self) -> Traffic {
        Traffic { read: self.read.load(Ordering::Relaxed), written: self.written.load(Ordering::Relaxed) }
    }

    /// The store beneath.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Store> Store for CountedStore<S> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, out)?;
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)?;
        self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn damage_prevented(&self) -> bool {
        self.inner.damage_prevented()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemoryStore;
    use super::*;

    #[test]
    fn counts_what_went_through_and_not_what_failed() {
        let store = CountedStore::new(MemoryStore::new(vec![0; 100]));
        store.write_at(10, &mut [1; 30]).expect("written");
        store.read_at(0, &mut [0; 50]).expect("read");
        assert!(store.read_at(90, &mut [0; 50]).is_err() && store.write_at(90, &mut [0; 50]).is_err());
        assert_eq!(store.traffic(), Traffic { read: 50, written: 30 });
    }
}
