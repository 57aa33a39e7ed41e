//! Keys that scrypt derives from passphrases, for the formats whose key file says how.

use std::sync::OnceLock;
use std::time::Instant;

use claviger_crypto::Secret;
use claviger_crypto::scrypt::{ScryptError, ScryptParams};

use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of every key.
const KEY: usize = 32;

/// The cost whose time is measured.
const MEASURED: ScryptParams = ScryptParams { n: 1 << 10, r: 8, p: 1 };

/// The key of 32 bytes that the passphrase gives. `file` holds the cost, and is named if that is impossible.
///
/// # Errors
/// `TooLittleMemory`, `Cancelled`, `Malformed`; those of [`Unlock::may_take`].
pub(super) fn derive(
    cost: ScryptParams,
    passphrase: &[u8],
    salt: &[u8],
    file: &'static str,
    with: &Unlock<'_>,
) -> Result<Secret> {
    let error = |error| scrypt_error(error, file);
    cost.check().map_err(error)?;
    let available = crate::memory::available().min(with.memory.unwrap_or(u64::MAX));
    let needed = cost.memory().unwrap_or(u64::MAX);
    if needed > available {
        // Nobody needs to allow the time first.
        return Err(error(ScryptError::TooLittleMemory { needed, available }));
    }
    with.ask(microseconds(cost))?;
    let mut key = Secret::zeroed(KEY);
    let go_on = || !with.cancelled();
    cost.derive(passphrase, salt, available, &go_on, &mut key).map_err(error)?;
    Ok(key)
}

fn scrypt_error(error: ScryptError, file: &'static str) -> Error {
    match error {
        ScryptError::TooLittleMemory { needed, available } => {
            Error::new(ErrorKind::TooLittleMemory { needed, available }).hint(
                "The passphrase could not be tried, so it may be right. Free some memory, or use a machine with more.",
            )
        }
        ScryptError::Parameters(what) => {
            ErrorKind::Malformed { field: file, offset: 0, what: format!("scrypt cannot have {what}") }.into()
        }
        ScryptError::Stopped => ErrorKind::Cancelled.into(),
    }
}

/// The time that a derivation takes on this machine.
fn microseconds(cost: ScryptParams) -> u64 {
    static OF_MEASURED: OnceLock<u64> = OnceLock::new();
    let of_measured = *OF_MEASURED.get_or_init(|| {
        let start = Instant::now();
        // It has so little memory that only a system without any refuses it.
        let _ = MEASURED.derive(b"", b"", u64::MAX, &|| true, &mut [0; KEY]);
        start.elapsed().as_micros().try_into().unwrap_or(u64::MAX)
    });
    of_measured.max(1).saturating_mul(cost.steps() / MEASURED.steps())
}
