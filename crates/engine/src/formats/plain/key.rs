//! Keys from passphrases that are hashed once, and from files.

use claviger_crypto::Secret;
use claviger_crypto::hash::{self, HASHES, Hash};

use crate::error::{Error, Result};

/// The derivation of a key from a passphrase: `sha256`, `ripemd160:20`, `plain` (cryptsetup(8), `--hash`).
pub(super) struct Hashing {
    /// `None` for `plain`: the passphrase itself.
    hash: Option<&'static Hash>,
    /// How many bytes of the key come from the passphrase, if that is given; the others are zeros.
    len: Option<usize>,
}

impl Hashing {
    /// # Errors
    /// `Misuse` for an unknown hash or an invalid length.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, len) = match text.split_once(':') {
            None => (text, None),
            Some((name, len)) => {
                let len = len.parse().ok().filter(|len| *len > 0);
                (
                    name,
                    Some(len.ok_or_else(|| Error::misuse(format!("the length of the hash {text} is not a number")))?),
                )
            }
        };
        if matches!(name, "plain" | "none") {
            return Ok(Self { hash: None, len });
        }
        let hash = hash::by_name(name).ok_or_else(|| {
            let all: Vec<_> = HASHES.iter().map(|h| h.name).collect();
            Error::misuse(format!("no hash is called {name}; there are: {}, plain", all.join(", ")))
        })?;
        Ok(Self { hash: Some(hash), len })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.hash.map_or("plain", |hash| hash.name)
    }

    /// Returns a key of `len` bytes. A passphrase or hash that is too long is truncated, and a short passphrase is padded with
    /// zeros. A short hash is extended by hashes of the passphrase with one `A` in front, two, and so on (cryptsetup,
    /// lib/crypt_plain.c, `hash` and `crypt_plain_hash`).
    ///
    /// # Errors
    /// `Misuse` if the requested part of the hash is longer than the key.
    pub fn key(&self, passphrase: &[u8], len: usize) -> Result<Secret> {
        let hashed = self.len.unwrap_or(len);
        if hashed > len {
            return Err(Error::misuse(format!("the hash should have {hashed} bytes, but the key has only {len}")));
        }
        let mut key = Secret::zeroed(len);
        match self.hash {
            None => {
                let used = passphrase.len().min(hashed);
                key[..used].copy_from_slice(&passphrase[..used]);
            }
            Some(hash) => expand(hash, passphrase, &mut key[..hashed]),
        }
        Ok(key)
    }
}

/// Fills `key` with consecutive hashes, each with one more `A`.
pub(super) fn expand(hash: &Hash, passphrase: &[u8], key: &mut [u8]) {
    let mut digest = Secret::zeroed(hash.size);
    let prefix = vec![b'A'; key.len() / hash.size + 1];
    for (round, part) in key.chunks_mut(hash.size).enumerate() {
        hash.digest(&[&prefix[..round], passphrase], &mut digest);
        part.copy_from_slice(&digest[..part.len()]);
    }
}

/// Returns the key at the beginning of a key file.
///
/// # Errors
/// `Misuse` if the file is shorter: cryptsetup refuses that too.
pub(super) fn of_file(contents: &Secret, len: usize) -> Result<Secret> {
    match contents.get(..len) {
        Some(key) => Ok(Secret::copy_from(key)),
        None => Err(Error::misuse(format!("the key file has {} bytes, but the key has {len}", contents.len()))
            .hint("Give the key size if it is not the default.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(hash: &str, passphrase: &[u8], len: usize) -> Vec<u8> {
        Hashing::parse(hash).and_then(|h| h.key(passphrase, len)).expect("a key").to_vec()
    }

    fn digest(name: &str, of: &[u8]) -> Vec<u8> {
        let hash = hash::by_name(name).expect("it is there");
        let mut out = vec![0; hash.size];
        hash.digest(&[of], &mut out);
        out
    }

    #[test]
    fn passphrases_are_hashed_as_often_as_needed_and_padded_where_a_length_is_given() {
        let long = [digest("sha256", b"pw"), digest("sha256", b"Apw"), digest("sha256", b"AApw")].concat();
        assert_eq!(key("sha256", b"pw", 80), long[..80]);
        assert_eq!(key("SHA-256", b"pw", 32), long[..32]);
        assert_eq!(key("sha256:16", b"pw", 32), [&long[..16], &[0; 16]].concat());
        assert_eq!(key("sha256:40", b"pw", 64), [&long[..40], &[0; 24]].concat());
        let doubled = [digest("ripemd160", b"pw"), digest("ripemd160", b"Apw")].concat();
        assert_eq!(key("ripemd160", b"pw", 32), doubled[..32]);
        assert_eq!(key("plain", b"pw", 4), b"pw\0\0");
        assert_eq!(key("plain", b"password", 4), b"pass");
        assert_eq!(key("plain:2", b"password", 4), b"pa\0\0");
        for wrong in ["sha256:33", "sha999", "sha256:", "sha256:0", "sha256:-1", ""] {
            assert!(Hashing::parse(wrong).and_then(|h| h.key(b"pw", 32)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn key_files_are_cut_and_never_padded() {
        let file = Secret::copy_from(b"0123456789");
        assert_eq!(&of_file(&file, 4).expect("it is long enough")[..], b"0123");
        assert!(of_file(&file, 11).is_err());
    }
}
