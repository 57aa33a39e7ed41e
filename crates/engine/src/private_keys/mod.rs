//! Private keys with which files open that were encrypted for a certificate: NTFS's EFS.
//!
//! A key may be in memory, or in a device that never hands it out, so it is a trait and not bytes. All that tells which file a key
//! is for is [`About`], plain data.

use std::fmt;

use claviger_crypto::Secret;

use crate::error::{Error, ErrorKind, Result};

/// A private key that decrypts what was encrypted for its public half. It may be used from several threads.
pub trait PrivateKey: Send + Sync + fmt::Debug {
    /// What is known of it without using it.
    fn about(&self) -> &About;

    /// Decrypts `ciphertext` with RSA and takes the padding of PKCS#1 v1.5 off (RFC 8017, 7.2.2). The bytes are in the order of
    /// PKCS#1, the most significant one first; Windows stores them the other way round. A ciphertext that is shorter than the
    /// modulus has zeros in front.
    ///
    /// **Promised** by keys in memory: there is one answer to everything that does not decrypt, be it the length, the number or the
    /// padding, and the time that takes depends on lengths alone, so that nobody who watches learns about the padding. What
    /// succeeds does show in the length of the result. A smart card promises what its maker does.
    ///
    /// # Errors
    /// [`not_for_this_key`], always the same. `Io` and `Unsupported` where a device fails, whatever the ciphertext is.
    fn decrypt(&self, ciphertext: &[u8]) -> Result<Secret>;

    /// SHA-1 of the whole certificate, by which Windows names it. None for a key whose certificate is not at hand.
    fn thumbprint(&self) -> Option<[u8; 20]> {
        self.about().thumbprint
    }

    /// What people call it: the subject of its certificate and the name that it was stored under.
    fn names(&self) -> &[String] {
        &self.about().names
    }
}

/// What tells private keys apart. Nothing in it is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// SHA-1 of the whole certificate, where there is one.
    pub thumbprint: Option<[u8; 20]>,
    /// What people call it: the subject of its certificate and the name that it was stored under.
    pub names: Vec<String>,
    /// The RSA modulus, the most significant byte first and not 0.
    pub modulus: Vec<u8>,
    /// The subject key identifier of its certificate, where that has one.
    pub key_identifier: Option<Vec<u8>>,
    /// The name of its container in Windows' key store, where it comes from there: old entries of EFS name that alone.
    pub container: Option<String>,
    /// Where it was found: a file, a profile, a smart card.
    pub origin: String,
}

/// The one answer where something does not decrypt with a private key.
pub fn not_for_this_key() -> Error {
    ErrorKind::WrongCredential("this private key does not decrypt it".to_owned()).into()
}
