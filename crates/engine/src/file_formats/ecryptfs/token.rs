//! A passphrase as eCryptfs uses it (ecryptfs-utils 111, src/libecryptfs/main.c, `generate_passphrase_sig`).

use claviger_crypto::hash::SHA512;
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, BlockCipher, Secret};

use super::suite::Suite;
use crate::error::{ErrorKind, Result};

/// The longest passphrase, in bytes.
pub(super) const LONGEST: usize = 64;

/// How often the hash is computed.
const ITERATIONS: usize = 65_536;

/// What makes equal passphrases differ.
pub(super) type Salt = [u8; 8];

/// What tells keys apart; nothing of the key follows from it.
pub(super) type Signature = [u8; 8];

/// The salt of contents and of wrapped passphrases, where nobody chose another one.
pub(super) const SALT: Salt = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77];

/// Salts of names. ecryptfs-utils takes the digits of the hexadecimal text for the salt itself; the second one is what was meant.
pub(super) const NAME_SALTS: [Salt; 2] = [*b"99887766", [0x99, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22]];

/// The key of a passphrase, which encrypts the keys of files, or names.
pub(super) struct Token {
    /// 64 bytes. A cipher takes as many of them as its key has.
    key: Secret,
    pub signature: Signature,
    pub salt: Salt,
}

impl Token {
    /// # Errors
    /// `WrongCredential` for a passphrase that is too long to be one.
    pub fn derive(passphrase: &Secret, salt: Salt) -> Result<Self> {
        if passphrase.len() > LONGEST {
            let what = format!("an eCryptfs passphrase has at most {LONGEST} bytes, this one has {}", passphrase.len());
            return Err(ErrorKind::WrongCredential(what).into());
        }
        let (mut key, mut next) = (Secret::zeroed(SHA512.size), Secret::zeroed(SHA512.size));
        SHA512.digest(&[&salt, passphrase], &mut key);
        for _ in 1..ITERATIONS {
            SHA512.digest(&[&key], &mut next);
            std::mem::swap(&mut key, &mut next);
        }
        SHA512.digest(&[&key], &mut next);
        let mut signature = [0; 8];
        signature.copy_from_slice(&next[..8]);
        wipe_stack();
        Ok(Self { key, signature, salt })
    }

    /// All of the key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The cipher under as much of the key as it takes.
    pub fn cipher(&self, suite: Suite, acceleration: Acceleration) -> Box<dyn BlockCipher> {
        suite.cipher().with_key(&self.key[..suite.key_bytes], acceleration)
    }
}

/// Signatures as people see them, and the kernel's options and keyrings have them.
pub(super) fn listed<'a>(signatures: impl IntoIterator<Item = &'a Signature>) -> String {
    let all: Vec<_> = signatures.into_iter().map(|signature| crate::hex::digits(signature)).collect();
    all.join(", ")
}
