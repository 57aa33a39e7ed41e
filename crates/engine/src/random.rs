//! The system's random bytes.

use std::io;

use claviger_crypto::Secret;

use crate::error::Result;

/// Fills `bytes` with random ones.
///
/// # Errors
/// `Io` if the system has none.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| io::Error::other(e.to_string()).into())
}

/// A secret of `len` random bytes.
///
/// # Errors
/// `Io` if the system has none.
pub(crate) fn secret(len: usize) -> Result<Secret> {
    let mut secret = Secret::zeroed(len);
    fill(&mut secret)?;
    Ok(secret)
}
