//! The keys of both sides of a reencryption, and the ciphers that use them.

use std::sync::Arc;

use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::{Acceleration, Secret, SectorCipher};

use super::state::{ReencryptionState, Side, What};
use crate::error::Result;
use crate::formats::luks::cipher_error;

/// The volume keys before and after a reencryption. `None` if that side is plaintext.
pub struct VolumeKeys {
    /// The key before.
    pub previous: Option<Secret>,
    /// The key after.
    pub last: Option<Secret>,
    /// Whether both keys are the same, with the same digest.
    pub same: bool,
}

impl VolumeKeys {
    pub(super) fn previous(&self) -> &[u8] {
        self.previous.as_deref().unwrap_or_default()
    }

    /// The new key, unless it has the digest of the old one.
    pub(super) fn last_if_other(&self) -> &[u8] {
        if self.same { &[] } else { self.last.as_deref().unwrap_or_default() }
    }
}

/// The ciphers of all states of a part, with keys. Their sectors are numbered from byte 0 of the plaintext.
#[derive(Clone)]
pub(super) struct Ciphers {
    previous: Option<Arc<dyn SectorCipher>>,
    moved: Option<Arc<dyn SectorCipher>>,
    last: Option<Arc<dyn SectorCipher>>,
}

impl Ciphers {
    /// The ciphers of both sides.
    ///
    /// # Errors
    /// `Unsupported` and `Malformed` if a cipher is unknown or does not fit its key.
    pub fn new(state: &ReencryptionState, keys: &VolumeKeys, with: Acceleration) -> Result<Self> {
        let cipher = |side: Option<&Side>, key: &Option<Secret>| match (side, key) {
            (Some(side), Some(key)) => side_cipher(side, key, with),
            _ => Ok(None),
        };
        Ok(Self {
            previous: cipher(Some(&state.previous), &keys.previous)?,
            moved: cipher(state.moved.as_ref(), &keys.previous)?,
            last: cipher(Some(&state.last), &keys.last)?,
        })
    }

    /// The cipher of a part; `None` for plaintext.
    pub fn of(&self, what: What) -> Option<&Arc<dyn SectorCipher>> {
        match what {
            What::Previous => self.previous.as_ref(),
            What::Moved => self.moved.as_ref().or(self.previous.as_ref()),
            What::Hot | What::Last => self.last.as_ref(),
        }
    }

    /// Converts from the old to the new side.
    pub fn convert(&self, state: &ReencryptionState, at: u64, piece: &mut [u8]) {
        self.recipher((state.was(at), What::Last), at, piece);
    }

    /// Converts from the new back to the old side.
    pub fn convert_back(&self, state: &ReencryptionState, at: u64, piece: &mut [u8]) {
        self.recipher((What::Last, state.was(at)), at, piece);
    }

    fn recipher(&self, (from, to): (What, What), at: u64, piece: &mut [u8]) {
        // 128 KiB at a time, which stay in the L2 cache between both ciphers.
        for (i, part) in piece.chunks_mut(128 << 10).enumerate() {
            let at = at + (i * (128 << 10)) as u64;
            if let Some(cipher) = self.of(from) {
                cipher.decrypt(at / cipher.sector_size() as u64, part);
            }
            if let Some(cipher) = self.of(to) {
                cipher.encrypt(at / cipher.sector_size() as u64, part);
            }
        }
        // Wipes key material before the system call that follows.
        claviger_crypto::secret::wipe_after_sectors();
    }
}

fn side_cipher(side: &Side, key: &[u8], with: Acceleration) -> Result<Option<Arc<dyn SectorCipher>>> {
    let segment = &side.segment;
    let (Some(encryption), Some(tweak)) = (&segment.encryption, segment.iv_tweak) else { return Ok(None) };
    let wrap = |e| cipher_error(e, 4096);
    let sectors = Sectors { size: side.sector() as usize, large_iv: false, iv_offset: tweak.0 };
    let cipher = Specification::parse(encryption).and_then(|spec| spec.with_key(key, sectors, with)).map_err(wrap)?;
    Ok(Some(cipher))
}
