//! Unencrypted data in a volume of an encrypting format: dm-crypt's `cipher_null`.
//!
//! cryptsetup creates such volumes for tests and as the first step of an in-place encryption. Anyone who can write to a header can
//! turn any volume into one, since no key protects the header; the owner's new data would then be stored in the clear. So such
//! volumes are read-only, unless the user explicitly allows writing.

use crate::advice::{Advice, Warning};
use crate::credential::Unlock;

/// Whether a cipher specification encrypts nothing (Linux, crypto/crypto_null.c, `ecb-cipher_null`; cryptsetup, lib/utils_crypt.c,
/// `crypt_is_cipher_null`).
pub(super) fn is_null(specification: &str) -> bool {
    specification.starts_with("cipher_null")
}

/// The warning about such a volume.
pub(super) fn warning(with: &Unlock<'_>) -> Warning {
    const WHAT: &str = "The cipher is cipher_null, which encrypts nothing: anybody can read and change this volume.";
    match with.write_unencrypted {
        true => format!("{WHAT} Writes to it are stored unencrypted.").into(),
        false => Warning::from(format!("{WHAT} It is read-only.")).advise(Advice::AllowUnencrypted),
    }
}
