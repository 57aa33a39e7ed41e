//! Contains faults in third-party code: a panic over a hostile file system becomes an error, and the number of bytes read is
//! limited.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

use crate::store::Store;
use crate::trees::damaged;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. A panic counts as damage that the code did not expect.
///
/// # Errors
/// Those of `work`, and `InvalidData` for a panic.
pub fn guarded<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    silence();
    let before = GUARDED.replace(true);
    // A panic can leave only caches of read-only data half changed.
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    done.unwrap_or_else(|_| Err(damaged("file system", 0, "its structures contradict each other")))
}

/// Suppresses the message on standard error for panics that are caught here.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                usual(info);
            }
        }));
    });
}

/// A store as a seekable file. The number of bytes read is limited, so that loops in the data structures end.
pub struct StoreReader {
    store: Arc<dyn Store>,
    at: u64,
    left: u64,
}

impl StoreReader {
    /// Reads nothing until [`StoreReader::allow`] sets a limit.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, at: 0, left: 0 }
    }

    /// Allows reading this many bytes from now on.
    pub fn allow(&mut self, bytes: u64) {
        self.left = bytes;
    }
}

impl Read for StoreReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = (out.len() as u64).min(self.store.len().saturating_sub(self.at));
        self.left = self
            .left
            .checked_sub(len.max(1))
            .ok_or_else(|| damaged("file system", self.at, "its structures form a loop"))?;
        self.store.read_at(self.at, &mut out[..len as usize])?;
        self.at += len;
        Ok(len as usize)
    }
}

impl Seek for StoreReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.store.len().checked_add_signed(by),
        };
        self.at = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::store::MemoryStore;

    #[test]
    fn a_panic_becomes_damage() {
        let error = guarded(|| -> io::Result<()> { panic!("planted") }).expect_err("it is caught");
        assert!(matches!(Error::from(error).kind, ErrorKind::Malformed { .. }));
        assert_eq!(guarded(|| Ok(5)).expect("nothing wrong"), 5);
    }

    #[test]
    fn no_more_is_read_than_allowed() {
        let mut reader = StoreReader::new(Arc::new(MemoryStore::new(vec![7; 100])));
        assert!(reader.read(&mut [0; 10]).is_err());
        reader.allow(150);
        let mut bytes = Vec::new();
        assert_eq!(reader.read_to_end(&mut bytes).expect("allowed"), 100);
        reader.seek(SeekFrom::Start(50)).expect("within");
        assert!(reader.read_to_end(&mut bytes).is_err());
    }
}
