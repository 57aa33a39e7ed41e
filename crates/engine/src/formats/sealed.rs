//! Passphrases that lie encrypted in a header, until something that people have releases them: tokens of LUKS2, and protectors of
//! BitLocker.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::Secret;

use super::bitlocker::SealedMasterKey;
use crate::credential::Credential;
use crate::error::Result;
use crate::private_keys::{PrivateKey, not_for_this_key};
use crate::{clevis, tpm2};

/// A sealed passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sealed {
    /// The number of its token.
    pub token: u32,
    /// The keyslots that it opens.
    pub keyslots: Vec<u32>,
    /// What releases it, for people.
    pub needs: String,
    /// How it is released.
    pub by: Releaser,
}

/// What releases a sealed passphrase. It is all read from the header, and nobody vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Releaser {
    /// An RSA key of a smart card.
    SmartCard {
        /// The card's label, where the header names it.
        label: Option<String>,
        /// What the key decrypts.
        ciphertext: Vec<u8>,
    },
    /// A TPM, and perhaps a PIN.
    Tpm(Box<tpm2::Envelope>),
    /// What clevis has bound it to.
    Clevis(Box<clevis::Jwe>),
    /// A TPM, which has sealed BitLocker's volume master key itself.
    MasterKey(Box<SealedMasterKey>),
    /// Something that is not known here.
    Other,
}

impl Sealed {
    /// The passphrase, if one of `keys` decrypts it. systemd makes it text by Base64 (systemd, src/cryptenroll/cryptenroll-pkcs11.c).
    ///
    /// # Errors
    /// [`not_for_this_key`] if none does; `Io` and `Unsupported` where a card fails.
    pub fn release(&self, keys: &[Arc<dyn PrivateKey>]) -> Result<Credential> {
        let Releaser::SmartCard { ciphertext, .. } = &self.by else { return Err(not_for_this_key()) };
        let mut said = not_for_this_key();
        for key in keys {
            match key.decrypt(ciphertext) {
                Ok(plain) => {
                    let text = STANDARD.encode(&*plain).into_bytes();
                    return Ok(Credential::Passphrase(Secret::from_vec(text)));
                }
                Err(e) => said = e,
            }
        }
        Err(said)
    }
}
