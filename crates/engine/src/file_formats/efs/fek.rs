//! The file encryption key (FEK) of a file: its encryption for a recipient, and its cipher.

use std::sync::Arc;

use claviger_crypto::modes::efs::{EfsCipher, EfsSectors};
use claviger_crypto::rsa::RsaPublicKey;
use claviger_crypto::{Acceleration, Secret, SectorCipher};

use super::info::{EfsInfo, KeyEntry};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::little_endian::u32_at;
use crate::private_keys::{PrivateKey, not_for_this_key};
use crate::random;

/// The ciphers with their numbers in Windows (MS-EFSR, 2.2.13) and the bits of entropy in their keys.
const CIPHERS: [(u32, EfsCipher, u32); 3] =
    [(0x6610, EfsCipher::Aes256, 256), (0x6603, EfsCipher::TripleDes, 168), (0x6604, EfsCipher::Desx, 128)];

/// The numbers and names of unsupported ciphers.
const OTHERS: [(u32, &str); 3] = [(0x6601, "DES"), (0x660e, "AES-128"), (0x660f, "AES-192")];

/// The header in front of the key: its length, bits of entropy, the cipher's number, and a zero.
const HEADER: usize = 16;

/// The key of a file.
pub struct Fek {
    /// The plaintext that is encrypted for recipients, including the header.
    bytes: Secret,
    cipher: EfsCipher,
}

impl Fek {
    /// Generates a new key.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn generate(cipher: EfsCipher) -> Result<Self> {
        let (number, _, entropy) = CIPHERS.iter().find(|(_, known, _)| *known == cipher).expect("all are there");
        let size = cipher.key_size();
        let mut bytes = Secret::zeroed(HEADER + size);
        for (field, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip([size as u32, *entropy, *number]) {
            *field = value.to_le_bytes();
        }
        random::fill(&mut bytes[HEADER..])?;
        Ok(Self { bytes, cipher })
    }

    /// Parses what a private key has decrypted.
    ///
    /// # Errors
    /// [`not_for_this_key`] if it is not a FEK, `Unsupported` for an unsupported cipher.
    fn parse(bytes: Secret) -> Result<Self> {
        if bytes.len() < HEADER || u32_at(&bytes, 0) as usize != bytes.len() - HEADER {
            return Err(not_for_this_key());
        }
        let number = u32_at(&bytes, 8);
        match CIPHERS.iter().find(|(known, ..)| *known == number) {
            Some((_, cipher, _)) if cipher.key_size() == bytes.len() - HEADER => Ok(Self { bytes, cipher: *cipher }),
            Some(_) => Err(not_for_this_key()),
            None => {
                let name = OTHERS.iter().find(|(known, _)| *known == number).map_or("an unknown one", |(_, name)| name);
                Err(Error::unsupported(format!("the cipher of this file, {name} (Windows' number 0x{number:04x})")))
            }
        }
    }

    /// Decrypts a file's key with any of these private keys.
    ///
    /// # Errors
    /// `WrongCredential` if none of them opens it, naming the recipients; those of [`PrivateKey::decrypt`].
    pub fn open(info: &EfsInfo, keys: &[Arc<dyn PrivateKey>]) -> Result<Self> {
        let mut unsupported = None;
        let pairs = info.entries().flat_map(|entry| keys.iter().map(move |key| (entry, key)));
        let mut pairs: Vec<_> = pairs.filter(|(entry, key)| may_open(entry, &***key)).collect();
        // A certificate may have been renewed in the meantime, so in the end only the key decides.
        pairs.sort_by_key(|(entry, key)| !is_named(entry, &***key));
        for (entry, key) in pairs {
            if entry.flags != 0 {
                let what = "files whose key a smart card derives by signing";
                unsupported = Some(Error::unsupported(what));
                continue;
            }
            // Windows stores RSA ciphertexts in reverse byte order.
            let reversed: Vec<u8> = entry.key().iter().rev().copied().collect();
            match key.decrypt(&reversed).and_then(Self::parse) {
                Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) => {}
                opened => return opened,
            }
        }
        Err(unsupported.unwrap_or_else(|| {
            let given = match keys.len() {
                0 => "it is encrypted, but no private key was given",
                1 => "the private key does not open it",
                _ => "none of the private keys opens it",
            };
            let what = format!("{given}: it is for {}", info.for_whom());
            Error::new(ErrorKind::WrongCredential(what)).advise(Advice::GivePrivateKey)
        }))
    }

    /// Encrypts the FEK for a public key, in the form that an entry stores.
    ///
    /// # Errors
    /// `Misuse` if the key is too short; `Io` if the system has no random bytes.
    pub fn encrypted_for(&self, key: &RsaPublicKey) -> Result<Vec<u8>> {
        let encrypted = key.encrypt(&self.bytes, random::fill)?;
        let mut encrypted = encrypted.ok_or_else(|| Error::misuse("the certificate's key is too short for EFS"))?;
        encrypted.reverse();
        Ok(encrypted)
    }

    /// The cipher for the file's sectors.
    pub fn sectors(&self, acceleration: Acceleration) -> Arc<dyn SectorCipher> {
        Arc::new(EfsSectors::new(self.cipher, &self.bytes[HEADER..], acceleration))
    }
}

/// Whether the key is worth trying: the entry names the key's certificate, or the sizes match.
fn may_open(entry: &KeyEntry, key: &dyn PrivateKey) -> bool {
    is_named(entry, key) || entry.key().len() == key.about().modulus.len()
}

fn is_named(entry: &KeyEntry, key: &dyn PrivateKey) -> bool {
    key.thumbprint().is_some_and(|of_key| entry.owner.thumbprint.as_deref() == Some(&of_key[..]))
}
