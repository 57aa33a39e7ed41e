//! The keys of both sides of a reencryption, and the ciphers that use them.

use std::io;
use std::sync::Arc;

use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::{Acceleration, Secret, SectorCipher};

use super::state::{ReencryptionState, Side, What};
use crate::error::Result;
use crate::formats::luks::cipher_error;
use crate::key_process::volume::Keys;
use crate::key_process::{KeyHandle, KeyProcess};
use crate::volume::Payload;

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

/// The ciphers of all states of a part. Their sectors are numbered from byte 0 of the plaintext.
#[derive(Clone)]
pub(super) struct Ciphers {
    previous: Option<SideCipher>,
    moved: Option<SideCipher>,
    last: Option<SideCipher>,
}

/// The cipher of one side: here, or in a key process.
#[derive(Clone)]
pub(super) enum SideCipher {
    Here(Arc<dyn SectorCipher>),
    KeyProcess(KeyHandle),
}

impl Ciphers {
    /// The ciphers of both sides.
    ///
    /// # Errors
    /// `Unsupported` and `Malformed` if a cipher is unknown or does not fit its key.
    pub fn new(state: &ReencryptionState, keys: &VolumeKeys, with: Acceleration) -> Result<Self> {
        let cipher = |side: Option<&Side>, key: &Option<Secret>| -> Result<_> {
            match (side, key) {
                (Some(side), Some(key)) => Ok(side_cipher(side, key, with)?.map(SideCipher::Here)),
                _ => Ok(None),
            }
        };
        Ok(Self {
            previous: cipher(Some(&state.previous), &keys.previous)?,
            moved: cipher(state.moved.as_ref(), &keys.previous)?,
            last: cipher(Some(&state.last), &keys.last)?,
        })
    }

    /// The ciphers of both sides if `key_process` has [`Ciphers::keys`].
    pub fn in_key_process(state: &ReencryptionState, key_process: &Arc<dyn KeyProcess>) -> Self {
        let cipher = |number, side: Option<&Side>| {
            let side = side.filter(|side| side.segment.encryption.is_some() && side.segment.iv_tweak.is_some())?;
            let handle = KeyHandle::new(Arc::clone(key_process), number, side.sector() as usize, None);
            Some(SideCipher::KeyProcess(handle))
        };
        Self {
            previous: cipher(0, Some(&state.previous)),
            moved: cipher(1, state.moved.as_ref()),
            last: cipher(2, Some(&state.last)),
        }
    }

    /// The keys for a process that holds them for others.
    pub fn keys(&self) -> Keys {
        let cipher = |side: &Option<SideCipher>| match side {
            Some(SideCipher::Here(cipher)) => Some(Arc::clone(cipher)),
            Some(SideCipher::KeyProcess(_)) | None => None,
        };
        Keys::of_ciphers([&self.previous, &self.moved, &self.last].map(cipher))
    }

    /// The cipher of a part; `None` for plaintext.
    pub fn of(&self, what: What) -> Option<&SideCipher> {
        match what {
            What::Previous => self.previous.as_ref(),
            What::Moved => self.moved.as_ref().or(self.previous.as_ref()),
            What::Hot | What::Last => self.last.as_ref(),
        }
    }

    /// Converts from the old to the new side.
    ///
    /// # Errors
    /// Those of the key process. Then `piece` has no meaning.
    pub fn convert(&self, state: &ReencryptionState, at: u64, piece: &mut [u8]) -> io::Result<()> {
        self.recipher((state.was(at), What::Last), at, piece)
    }

    /// Converts from the new back to the old side.
    ///
    /// # Errors
    /// Those of the key process. Then `piece` has no meaning.
    pub fn convert_back(&self, state: &ReencryptionState, at: u64, piece: &mut [u8]) -> io::Result<()> {
        self.recipher((What::Last, state.was(at)), at, piece)
    }

    fn recipher(&self, (from, to): (What, What), at: u64, piece: &mut [u8]) -> io::Result<()> {
        // 128 KiB at a time, which stay in the L2 cache between both ciphers.
        let converted = piece.chunks_mut(128 << 10).enumerate().try_for_each(|(i, part)| {
            let at = at + (i * (128 << 10)) as u64;
            self.of(from).map_or(Ok(()), |cipher| cipher.decrypt(at, part))?;
            self.of(to).map_or(Ok(()), |cipher| cipher.encrypt(at, part))
        });
        // Wipes key material before the system call that follows.
        claviger_crypto::secret::wipe_after_sectors();
        converted
    }
}

impl SideCipher {
    /// Decrypts whole sectors, which begin at byte `at` of the plaintext.
    ///
    /// # Errors
    /// Those of the key process.
    pub fn decrypt(&self, at: u64, part: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Here(cipher) => cipher.decrypt(at / cipher.sector_size() as u64, part),
            Self::KeyProcess(handle) => {
                let stored = part.to_vec();
                handle.decrypt(at, part, &mut |past, out| {
                    out.copy_from_slice(&stored[past..][..out.len()]);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Encrypts whole sectors, which begin at byte `at` of the plaintext.
    ///
    /// # Errors
    /// Those of the key process.
    pub fn encrypt(&self, at: u64, part: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Here(cipher) => cipher.encrypt(at / cipher.sector_size() as u64, part),
            Self::KeyProcess(handle) => {
                let mut stored = vec![0; part.len()];
                handle.encrypt(at, part, &mut |past, encrypted| {
                    stored[past..][..encrypted.len()].copy_from_slice(encrypted);
                    Ok(())
                })?;
                part.copy_from_slice(&stored);
            }
        }
        Ok(())
    }

    /// A segment's payload that begins at byte `at` of the plaintext.
    pub fn payload(&self, at: u64) -> Payload {
        match self {
            Self::Here(cipher) => Payload::crypt(Arc::clone(cipher), at / cipher.sector_size() as u64),
            Self::KeyProcess(handle) => Payload::KeyProcess(handle.clone().cut(at)),
        }
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
