//! Sealed boxes: AES-256-CCM with a nonce of a time and a counter, and a tag of 16 bytes (libbde, "BitLocker Drive Encryption (BDE)
//! format", section "FVE AES-CCM encrypted key").

use claviger_crypto::Secret;
use claviger_crypto::ccm::{self, NONCE, TAG};

use super::datum::{Datum, Key, kind};
use super::guid::filetime;
use crate::error::Result;
use crate::little_endian::u32_at;

/// Opens a box. `None` if the key is wrong or the box was changed: these cannot be told apart.
///
/// # Errors
/// `Malformed` for a box that is too short.
pub(super) fn open(sealed: &Datum, key: &[u8]) -> Result<Option<Secret>> {
    let data = sealed.behind(NONCE + TAG)?;
    let (nonce, tag) = sealed.value[..NONCE + TAG].split_at(NONCE);
    let (nonce, tag) = (nonce.try_into().expect("its length"), tag.try_into().expect("its length"));
    Ok(ccm::open(key, nonce, tag, data))
}

/// Opens the key in a box.
///
/// # Errors
/// `Malformed` for a box that is too short, or does not hold a key.
pub(super) fn open_key(sealed: &Datum, key: &[u8]) -> Result<Option<Key>> {
    open(sealed, key)?.as_ref().map(Key::unsealed).transpose()
}

/// The counter in a box's nonce.
pub(super) fn counter(sealed: &Datum) -> Option<u32> {
    sealed.value.get(..NONCE).map(|nonce| u32_at(nonce, 8))
}

/// Seals boxes of one volume. No two boxes get the same nonce: the metadata store the counter.
pub(super) struct Sealer<'a> {
    time: u64,
    next: &'a mut u32,
}

impl<'a> Sealer<'a> {
    /// `next` is the counter of the next box, from the metadata.
    pub fn new(next: &'a mut u32) -> Self {
        Self { time: filetime::now(), next }
    }

    /// A box with a key in it.
    pub fn seal(&mut self, role: u16, with: &[u8], key: &Key) -> Datum {
        self.seal_bytes(role, with, &key.datum(0))
    }

    /// A box with anything in it.
    pub fn seal_bytes(&mut self, role: u16, with: &[u8], plain: &[u8]) -> Datum {
        let mut value = self.time.to_le_bytes().to_vec();
        value.extend(self.next.to_le_bytes());
        *self.next = self.next.wrapping_add(1);
        let (tag, data) = ccm::seal(with, value[..].try_into().expect("a nonce"), plain);
        value.extend(tag);
        value.extend(data);
        Datum::new(role, kind::SEALED, value)
    }
}
