//! Flushing that remembers failures.

use std::io;
use std::sync::{Mutex, PoisonError};

use claviger_engine::Store;

/// Flushes a store, and keeps failing after the first failure. The kernel reports lost writes only once (fsync(2)), but
/// other clients, who were promised that any flush covers their writes, must learn of them too.
#[derive(Default)]
pub struct Durable {
    lossy: Mutex<bool>,
}

impl Durable {
    /// Flushes `store`, which must be the same each time.
    ///
    /// # Errors
    /// The store's error; after the first error, every call fails.
    pub fn flush(&self, store: &dyn Store) -> io::Result<()> {
        // Held throughout: the kernel reports a lost write to only one of several fsync calls that run in parallel.
        let mut lossy = self.lossy.lock().unwrap_or_else(PoisonError::into_inner);
        let flushed = store.flush();
        if *lossy && flushed.is_ok() {
            return Err(io::Error::other("an earlier flush failed: writes may have been lost"));
        }
        *lossy |= flushed.is_err();
        flushed
    }
}
