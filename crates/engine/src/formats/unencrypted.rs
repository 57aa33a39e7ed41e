//! Data that nothing encrypts, although the volume is one of a format that encrypts: dm-crypt's `cipher_null`.
//!
//! cryptsetup makes such volumes for tests and as the first step of an encryption in place. Whoever can write to a header can make
//! one of any volume, since no key protects the header; what its owner writes then lies on the disk in clear. So it can only be
//! read, unless somebody says that it is wanted.

use crate::advice::{Advice, Warning};
use crate::credential::Unlock;

/// Whether a cipher specification is one that encrypts nothing (Linux, crypto/crypto_null.c, `ecb-cipher_null`; cryptsetup,
/// lib/utils_crypt.c, `crypt_is_cipher_null`).
pub(super) fn is_null(specification: &str) -> bool {
    specification.starts_with("cipher_null")
}

/// What a person must know of such a volume.
pub(super) fn warning(with: &Unlock<'_>) -> Warning {
    const WHAT: &str = "The cipher is cipher_null, which encrypts nothing: anybody can read and change this volume.";
    match with.write_unencrypted {
        true => format!("{WHAT} Writes to it are stored unencrypted.").into(),
        false => Warning::from(format!("{WHAT} It is read-only.")).advise(Advice::AllowUnencrypted),
    }
}
