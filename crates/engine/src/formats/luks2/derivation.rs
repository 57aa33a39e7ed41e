//! The key derivation of a keyslot, as described by its metadata (LUKS2 On-Disk Format Specification 1.1.1, section 3.2.2).

use claviger_crypto::hash::{self, Hash};

use super::metadata;
use super::validate::unknown;
use crate::error::{ErrorKind, Result};
use crate::formats::luks::kdf::{self, Kdf};

/// The shortest salt that Argon2 accepts, in bytes (RFC 9106, section 3.1). New ones have 32.
const SALT: usize = 8;

/// Returns the derivation with its costs.
///
/// # Errors
/// `Malformed` for impossible costs, at byte 0, since only the caller knows their offset; `Unsupported` for unknown kinds and
/// hashes.
pub(super) fn of(metadata: &metadata::Kdf) -> Result<Kdf> {
    let wrong = |what: String| Err(ErrorKind::Malformed { field: "kdf", offset: 0, what }.into());
    let costs = |cost: Option<u32>| cost.unwrap_or(0);
    match (metadata.kind.as_str(), kdf::variant_named(&metadata.kind)) {
        ("pbkdf2", _) => {
            let hash = known_hash(metadata.hash.as_deref().unwrap_or_default())?;
            match costs(metadata.iterations) {
                0 => wrong("PBKDF2 without an iteration".into()),
                iterations => Ok(Kdf::Pbkdf2 { hash, iterations }),
            }
        }
        (_, Some(variant)) => {
            let (passes, memory_kib, lanes) = (costs(metadata.time), costs(metadata.memory), costs(metadata.cpus));
            // RFC 9106, section 3.1.
            if passes == 0 || lanes == 0 || u64::from(memory_kib) < 8 * u64::from(lanes) || lanes > 0xff_ffff {
                return wrong(format!("Argon2 cannot have {passes} passes over {memory_kib} KiB in {lanes} lanes"));
            }
            if metadata.salt.0.len() < SALT {
                return wrong(format!("a salt of {} bytes is too short for Argon2", metadata.salt.0.len()));
            }
            Ok(Kdf::Argon2 { variant, passes, memory_kib, lanes })
        }
        (other, None) => Err(unknown("the key derivation", other)),
    }
}

/// Returns the hash with this name in a header.
pub(super) fn known_hash(name: &str) -> Result<&'static Hash> {
    hash::by_name(name).ok_or_else(|| unknown("the hash", name))
}
