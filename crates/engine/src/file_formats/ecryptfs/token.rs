//! Keys and signatures from passphrases (ecryptfs-utils 111, src/libecryptfs/main.c, `generate_passphrase_sig`).

use claviger_crypto::hash::SHA512;
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, BlockCipher, Secret};

use super::suite::Suite;
use crate::error::{ErrorKind, Result};

/// The longest passphrase, in bytes.
pub(super) const LONGEST: usize = 64;

/// How often the hash is computed.
pub(super) const ITERATIONS: usize = 65_536;

/// A salt of a passphrase.
pub(super) type Salt = [u8; 8];

/// The identifier of a key; it reveals nothing about the key.
pub(super) type Signature = [u8; 8];

/// The default salt for contents and for wrapped passphrases.
pub(super) const SALT: Salt = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77];

/// Salts for names. ecryptfs-utils takes the hexadecimal digits themselves as the salt; the second salt is what was intended.
pub(super) const NAME_SALTS: [Salt; 2] = [*b"99887766", [0x99, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22]];

/// # Errors
/// `WrongCredential` if the passphrase is too long.
pub(super) fn check_len(passphrase: &Secret) -> Result<()> {
    match passphrase.len() {
        0..=LONGEST => Ok(()),
        len => {
            let what = format!("an eCryptfs passphrase has at most {LONGEST} bytes, this one has {len}");
            Err(ErrorKind::WrongCredential(what).into())
        }
    }
}

/// A key derived from a passphrase. It encrypts the keys of files, or names.
pub(super) struct Token {
    /// 64 bytes. A cipher uses as many of them as it needs.
    key: Secret,
    pub signature: Signature,
    pub salt: Salt,
}

impl Token {
    /// # Errors
    /// `WrongCredential` if the passphrase is too long.
    pub fn derive(passphrase: &Secret, salt: Salt) -> Result<Self> {
        check_len(passphrase)?;
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

    /// The whole key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The cipher, keyed with the first bytes of the key.
    pub fn cipher(&self, suite: Suite, acceleration: Acceleration) -> Box<dyn BlockCipher> {
        suite.cipher().with_key(&self.key[..suite.key_bytes], acceleration)
    }
}

/// Signatures in hex, as in the kernel's mount options and keyrings.
pub(super) fn listed<'a>(signatures: impl IntoIterator<Item = &'a Signature>) -> String {
    let all: Vec<_> = signatures.into_iter().map(|signature| crate::hex::digits(signature)).collect();
    all.join(", ")
}
