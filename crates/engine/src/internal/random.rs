//! The system's random bytes.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::Secret;

use crate::error::Result;

/// Fills `bytes` with random ones.
///
/// # Errors
/// `Io` if the system has none.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| io::Error::other(e.to_string()).into())
}

/// A new passphrase that nobody types: random bytes as text.
///
/// # Errors
/// `Io` if the system has none.
pub(crate) fn passphrase() -> Result<Secret> {
    Ok(as_passphrase(&secret(32)?))
}

/// The passphrase that systemd makes of a secret: its Base64.
pub fn as_passphrase(secret: &[u8]) -> Secret {
    Secret::from_vec(STANDARD.encode(secret).into_bytes())
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
