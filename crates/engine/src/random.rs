//! The system's random bytes.

use std::io;

use crate::error::Result;

/// Fills `bytes` with random ones.
///
/// # Errors
/// `Io` if the system has none.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| io::Error::other(e.to_string()).into())
}
