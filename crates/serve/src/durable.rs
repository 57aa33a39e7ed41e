//! Flushing that does not forget a failure.

use std::io;
use std::sync::{Mutex, PoisonError};

use claviger_engine::Store;

/// Makes what was written durable, and fails for ever once it has failed: the kernel reports lost writes once only
/// (fsync(2)), and other clients, who were promised that any flush covers their writes, must hear of it too.
#[derive(Default)]
pub struct Durable {
    lossy: Mutex<bool>,
}

impl Durable {
    /// Makes durable what was written to `store`, always the same.
    ///
    /// # Errors
    /// Whatever the store reports, and then each time.
    pub fn flush(&self, store: &dyn Store) -> io::Result<()> {
        // Held all the while: the kernel tells one fsync of a lost write, and another that runs beside it nothing.
        let mut lossy = self.lossy.lock().unwrap_or_else(PoisonError::into_inner);
        let flushed = store.flush();
        if *lossy && flushed.is_ok() {
            return Err(io::Error::other("an earlier flush failed: writes may have been lost"));
        }
        *lossy |= flushed.is_err();
        flushed
    }
}
