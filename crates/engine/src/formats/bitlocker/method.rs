//! The encryption methods of the data (libbde, "BitLocker Drive Encryption (BDE) format", section "Encryption methods").

use std::sync::Arc;

use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::{Acceleration, Secret, SectorCipher};

use crate::error::{Error, ErrorKind, Result};

/// A method, and its names in this program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Method {
    /// Its number in the metadata, which is also the type of its key.
    pub number: u16,
    /// Its name for creating a volume.
    pub name: &'static str,
    /// Its mode of operation.
    pub mode: &'static str,
    /// The size of its AES keys, in bits.
    pub bits: u32,
    /// dm-crypt's name for it.
    specification: &'static str,
    /// The size of the volume key as stored, in bytes.
    pub stored_key: usize,
    /// The size of each AES key in it, in bytes, and the keys' offsets.
    keys: (usize, &'static [usize]),
}

/// All methods, Windows' default first.
pub(super) static METHODS: &[Method] = &[
    of(0x8004, "XTS-AES-128", "XTS", 128, "aes-xts-plain64", 32, (16, &[0, 16])),
    of(0x8005, "XTS-AES-256", "XTS", 256, "aes-xts-plain64", 64, (32, &[0, 32])),
    of(0x8002, "AES-CBC-128", "CBC", 128, "aes-cbc-eboiv", 16, (16, &[0])),
    of(0x8003, "AES-CBC-256", "CBC", 256, "aes-cbc-eboiv", 32, (32, &[0])),
    // The diffuser's key, which derives the sector keys, is in the second half, whatever the key size.
    of(0x8000, "AES-CBC-128-Elephant", "CBC-Elephant", 128, "aes-cbc-elephant", 64, (16, &[0, 32])),
    of(0x8001, "AES-CBC-256-Elephant", "CBC-Elephant", 256, "aes-cbc-elephant", 64, (32, &[0, 32])),
];

const fn of(
    number: u16,
    name: &'static str,
    mode: &'static str,
    bits: u32,
    specification: &'static str,
    stored_key: usize,
    keys: (usize, &'static [usize]),
) -> Method {
    Method { number, name, mode, bits, specification, stored_key, keys }
}

impl Method {
    /// Returns the method with that number.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn numbered(number: u16) -> Result<&'static Self> {
        let known = METHODS.iter().find(|method| method.number == number);
        known.ok_or_else(|| Error::unsupported(format!("encryption method {number:#06x}")))
    }

    /// Returns the AES keys in a volume key, concatenated.
    ///
    /// # Errors
    /// `Malformed` for a key of another size.
    fn keys(&self, stored: &Secret) -> Result<Secret> {
        if stored.len() != self.stored_key {
            let what = format!("{} bytes, {} needs {}", stored.len(), self.name, self.stored_key);
            return Err(ErrorKind::Malformed { field: "volume key", offset: 0, what }.into());
        }
        let (len, places) = self.keys;
        let mut keys = Secret::zeroed(len * places.len());
        for (key, place) in keys.chunks_exact_mut(len).zip(places) {
            key.copy_from_slice(&stored[*place..][..len]);
        }
        Ok(keys)
    }

    /// Returns the cipher for a volume key.
    ///
    /// # Errors
    /// `Malformed` for a key of another size; `Unsupported` for an unsupported sector size.
    pub fn cipher(&self, stored: &Secret, sector_size: u32, with: Acceleration) -> Result<Arc<dyn SectorCipher>> {
        let key = self.keys(stored)?;
        let sectors = Sectors { size: sector_size as usize, large_iv: true, iv_offset: 0 };
        let unsupported = |e| Error::unsupported(format!("{}: {e}", self.name));
        let specification = Specification::parse(self.specification).map_err(unsupported)?;
        specification.with_key(&key, sectors, with).map_err(unsupported)
    }
}
