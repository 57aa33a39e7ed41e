use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Growth, HeaderLock, Store};
use crate::error::Result;
use crate::shards::Shards;

/// A store that counts the bytes read from and written to it, for progress and status displays.
pub struct CountedStore<S> {
    inner: S,
    counters: Counters,
    tell: Option<Box<Tell>>,
}

/// Is called with a description of each failed request.
type Tell = dyn Fn(&str) + Send + Sync;

/// The counters behind [`Traffic`].
#[derive(Default)]
pub(crate) struct Counters {
    moved: Shards<Moved>,
    failed_writes: AtomicU64,
    failure: OnceLock<String>,
}

#[derive(Default)]
struct Moved {
    read: AtomicU64,
    written: AtomicU64,
}

impl Counters {
    pub(crate) fn traffic(&self) -> Traffic {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            read: self.moved.iter().map(|moved| now(&moved.read)).sum(),
            written: self.moved.iter().map(|moved| now(&moved.written)).sum(),
            failed_writes: now(&self.failed_writes),
        }
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.moved.mine().read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.moved.mine().written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, error: &io::Error) {
        self.failed_writes.fetch_add(1, Ordering::Relaxed);
        self.failure.get_or_init(|| error.to_string());
    }
}

/// Bytes transferred since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Writes that failed although the store is writable, and flushes that failed. A program may never learn of a failed write,
    /// because file systems write back later.
    pub failed_writes: u64,
}

impl<S: Store> CountedStore<S> {
    /// Counts every request to `inner` from now on.
    pub fn new(inner: S) -> Self {
        Self { inner, counters: Counters::default(), tell: None }
    }

    /// Calls `tell` for each valid request that fails, with a few words on what it was and why it failed.
    #[must_use]
    pub fn telling(self, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { tell: Some(Box::new(tell)), ..self }
    }

    /// Bytes transferred so far; requests that failed do not count.
    pub fn traffic(&self) -> Traffic {
        self.counters.traffic()
    }

    /// Why the first failed write failed.
    pub fn failure(&self) -> Option<&str> {
        self.counters.failure()
    }

    /// Notes a failed write. Writing past the end or to a read-only store is the caller's mistake and does not count.
    fn failed(&self, error: &io::Error, writable: bool, what: impl FnOnce() -> String) {
        if writable && error.kind() != io::ErrorKind::UnexpectedEof {
            self.counters.failed(error);
            self.tell(error, what);
        }
    }

    fn tell(&self, error: &io::Error, what: impl FnOnce() -> String) {
        if let Some(tell) = &self.tell {
            tell(&format!("{} failed: {error}", what()));
        }
    }

    /// The store below.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Store> Store for CountedStore<S> {
    fn below(&self) -> Option<&dyn Store> {
        Some(&self.inner)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let len = out.len();
        self.inner.read_at(offset, out).inspect_err(|e| {
            // Past the end is the caller's mistake.
            if offset.checked_add(len as u64).is_some_and(|end| end <= self.len()) {
                self.tell(e, || format!("reading {len} bytes at byte {offset}"));
            }
        })?;
        self.counters.read(out.len());
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let (writable, len) = (self.inner.writable(), data.len());
        let what = || format!("writing {len} bytes at byte {offset}");
        self.inner.write_clobbering(offset, data).inspect_err(|e| self.failed(e, writable, what))?;
        self.counters.written(data.len());
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        // After reporting a writeback error once, the kernel reports success for the next flush. The lost data stay lost.
        let what = || "flushing".to_owned();
        self.inner.flush().inspect_err(|e| self.failed(e, self.inner.writable(), what))
    }

    fn lock_header(&self) -> Result<Option<HeaderLock>> {
        self.inner.lock_header()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn grow(&self, growth: &Growth) -> io::Result<()> {
        self.inner.grow(growth)
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
        store.write_clobbering(10, &mut [1; 30]).expect("written");
        store.read_at(0, &mut [0; 50]).expect("read");
        assert!(store.read_at(90, &mut [0; 50]).is_err() && store.write_clobbering(90, &mut [0; 50]).is_err());
        assert_eq!(store.traffic(), Traffic { read: 50, written: 30, failed_writes: 0 });
        assert_eq!(store.failure(), None);
    }

    /// A full device: no write succeeds.
    struct Full(bool);

    impl Store for Full {
        fn len(&self) -> u64 {
            100
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }
        fn write_clobbering(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn writable(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn a_write_that_should_have_worked_is_noted() {
        let store = CountedStore::new(Full(true));
        assert!(store.write_clobbering(0, &mut [1]).is_err() && store.write_clobbering(0, &mut [1]).is_err());
        assert_eq!((store.traffic().failed_writes, store.failure()), (2, Some("no storage space")));
        let store = CountedStore::new(Full(true));
        assert!(store.flush().is_err());
        assert_eq!((store.traffic().failed_writes, store.failure()), (1, Some("no storage space")));
        let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let hears = std::sync::Arc::clone(&heard);
        let store =
            CountedStore::new(Full(true)).telling(move |what| hears.lock().expect("whole").push(what.to_owned()));
        assert!(store.write_clobbering(512, &mut [1; 7]).is_err() && store.flush().is_err());
        let expected = ["writing 7 bytes at byte 512", "flushing"];
        assert_eq!(*heard.lock().expect("whole"), expected.map(|what| format!("{what} failed: no storage space")));
        let store = CountedStore::new(Full(false));
        assert!(store.write_clobbering(0, &mut [1]).is_err(), "read-only");
        assert_eq!(store.traffic(), Traffic::default());
    }
}
