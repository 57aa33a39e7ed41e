//! DPAPI blobs: data encrypted with a master key.
//!
//! All numbers are little-endian. A blob holds: version (1), GUID of the provider, version and GUID of the master key, flags, a
//! description; cipher and its key's bits, salt; a second key, which is empty; hash and its bits, salt of the MAC; the ciphertext;
//! the MAC. Variable-length fields begin with their length in four bytes. The MAC covers everything from the version of the master
//! key to the ciphertext.

use claviger_crypto::Secret;
use claviger_crypto::secret::wipe_stack;

use super::Fields;
use super::algorithms::{self, CbcCipher, HashAlgorithm};
use crate::error::{Error, ErrorKind, Result};
use crate::private_keys::pbe;

/// The GUID of Windows' own provider.
const PROVIDER: &str = "df9d8cd0-1501-11d1-8c7a-00c04fc297eb";

/// A blob.
pub struct DpapiBlob<'a> {
    /// The GUID of its master key.
    pub master_key: String,
    cipher: CbcCipher,
    salt: &'a [u8],
    hash: HashAlgorithm,
    mac_salt: &'a [u8],
    ciphertext: &'a [u8],
    /// The bytes that the MAC covers, and the MAC.
    signed: &'a [u8],
    mac: &'a [u8],
}

impl<'a> DpapiBlob<'a> {
    /// Parses a blob.
    ///
    /// # Errors
    /// `Malformed`, `Unsupported`.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut fields = Fields::new(bytes);
        let version = fields.u32("version of the blob")?;
        let provider = fields.guid("provider")?;
        if (version, &provider[..]) != (1, PROVIDER) {
            return Err(Error::unsupported(format!("DPAPI blob version {version} by provider {provider}")));
        }
        let from = fields.at();
        fields.u32("version of the master key")?;
        let master_key = fields.guid("master key")?;
        fields.u32("flags")?;
        fields.counted("description")?;
        let cipher = CbcCipher::by_number(fields.u32("cipher")?)?;
        fields.u32("bits of the key")?;
        let salt = fields.counted("salt")?;
        fields.counted("second key")?;
        let hash = algorithms::hash(fields.u32("hash")?, algorithms::SHA512)?;
        fields.u32("bits of the hash")?;
        let mac_salt = fields.counted("salt of the MAC")?;
        let ciphertext = fields.counted("ciphertext")?;
        let signed = &bytes[from..fields.at()];
        let mac = fields.counted("MAC")?;
        Ok(Self { master_key, cipher, salt, hash, mac_salt, ciphertext, signed, mac })
    }

    /// Decrypts the contents with the master key and the entropy of the program that wrote the blob.
    ///
    /// # Errors
    /// `Malformed` if the blob was changed.
    pub fn open(&self, master_key: &[u8], entropy: &[u8]) -> Result<Secret> {
        let (hash, block) = self.hash;
        let mut hashed = Secret::zeroed(20);
        claviger_crypto::hash::SHA1.digest(&[master_key], &mut hashed);
        let mut mac = Secret::zeroed(hash.size);
        hash.hmac(&hashed, &[self.mac_salt, entropy, self.signed], &mut mac);
        if !mac.same_as(self.mac) {
            wipe_stack();
            return Err(damaged("its MAC is wrong"));
        }
        let mut session = Secret::zeroed(hash.size);
        hash.hmac(&hashed, &[self.salt, entropy], &mut session);
        wipe_stack();
        let key = self.key(session, block);
        pbe::decrypted(&*self.cipher.with_key(&key), &[0; 16], self.ciphertext)
            .map_err(|_| damaged("the decrypted data have no terminator"))
    }

    /// The cipher's key: the session key, lengthened like CryptDeriveKey if it is too short (see Microsoft's documentation of that
    /// function; DES parity bits do not matter).
    fn key(&self, session: Secret, block: usize) -> Secret {
        let (hash, _) = self.hash;
        if session.len() >= self.cipher.key {
            return session;
        }
        let mut longer = Secret::zeroed(2 * hash.size);
        for (half, pad) in longer.chunks_exact_mut(hash.size).zip([0x36, 0x5c]) {
            let mut padded = Secret::zeroed(block);
            padded[..session.len()].copy_from_slice(&session);
            padded.iter_mut().for_each(|byte| *byte ^= pad);
            hash.digest(&[&padded], half);
        }
        longer
    }
}

fn damaged(what: &str) -> Error {
    ErrorKind::Malformed { field: "DPAPI blob", offset: 0, what: what.to_owned() }.into()
}
