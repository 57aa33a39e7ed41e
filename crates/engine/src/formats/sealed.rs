//! Sealed passphrases: encrypted in a header, and released by something that the user has. These are LUKS2 tokens and BitLocker
//! protectors.

use std::sync::Arc;

use super::bitlocker::SealedMasterKey;
use crate::credential::Credential;
use crate::error::Result;
use crate::private_keys::{PrivateKey, not_for_this_key};
use crate::{clevis, fido2, random, tpm2};

/// A sealed passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sealed {
    /// The number of its token.
    pub token: u32,
    /// The keyslots that it opens.
    pub keyslots: Vec<u32>,
    /// What releases it, in words.
    pub needs: String,
    /// How to release it.
    pub by: Releaser,
}

/// What releases a sealed passphrase. All of it is read from the header and unverified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Releaser {
    /// An RSA key of a smart card.
    SmartCard {
        /// The card's label, where the header names it.
        label: Option<String>,
        /// The ciphertext for that key.
        ciphertext: Vec<u8>,
    },
    /// A TPM, and perhaps a PIN.
    Tpm(Box<tpm2::Envelope>),
    /// A FIDO2 key, perhaps touched or with its PIN.
    Fido2(Box<fido2::Fido2Token>),
    /// A clevis binding.
    Clevis(Box<clevis::Jwe>),
    /// A TPM, perhaps with a PIN or a startup key, for a protector of BitLocker.
    MasterKey(Box<SealedMasterKey>),
    /// Something unknown to this program.
    Other,
}

impl Sealed {
    /// Whether it also takes a startup key of BitLocker.
    pub fn takes_startup_key(&self) -> bool {
        matches!(&self.by, Releaser::MasterKey(key) if key.takes_startup_key())
    }

    /// Checks that the TPM's PCRs are as at sealing, without a PIN. `None` if it is not a TPM alone that releases the passphrase.
    ///
    /// # Errors
    /// `WrongCredential`, which names the PCR that changed if known; `Io`.
    pub fn check(&self, tpm: &mut tpm2::Tpm) -> Option<Result<()>> {
        match &self.by {
            Releaser::Tpm(envelope) => Some(envelope.check(tpm)),
            Releaser::MasterKey(key) => Some(key.check(tpm)),
            Releaser::Clevis(jwe) => jwe.check(tpm),
            Releaser::SmartCard { .. } | Releaser::Fido2(_) | Releaser::Other => None,
        }
    }

    /// Returns the passphrase, if one of `keys` decrypts it. systemd uses the Base64 of the decrypted bytes (systemd,
    /// src/cryptenroll/cryptenroll-pkcs11.c).
    ///
    /// # Errors
    /// [`not_for_this_key`] if none does; `Io` and `Unsupported` if a card fails.
    pub fn release(&self, keys: &[Arc<dyn PrivateKey>]) -> Result<Credential> {
        let Releaser::SmartCard { ciphertext, .. } = &self.by else { return Err(not_for_this_key()) };
        let mut error = not_for_this_key();
        for key in keys {
            match key.decrypt(ciphertext) {
                Ok(plain) => return Ok(Credential::Passphrase(random::as_passphrase(&plain))),
                Err(e) => error = e,
            }
        }
        Err(error)
    }
}
