//! A key in the process that holds it.

use std::sync::Arc;

use claviger_crypto::SectorCipher;
use claviger_crypto::modes::AuthenticatedCipher;

/// The key of a segment, or of a file.
pub(crate) struct Key {
    pub(super) cipher: Cipher,
    pub(super) first: u64,
    pub(super) len: u64,
    /// Whether it may encrypt.
    pub(super) writable: bool,
}

pub(super) enum Cipher {
    Plain(Arc<dyn SectorCipher>),
    Tagged(Arc<dyn AuthenticatedCipher>),
}

impl Cipher {
    pub(super) fn sector_size(&self) -> usize {
        match self {
            Self::Plain(cipher) => cipher.sector_size(),
            Self::Tagged(cipher) => cipher.sector_size(),
        }
    }
}

impl Key {
    /// The key of `len` bytes of sectors without tags; the first sector has the number 0.
    pub(crate) fn of_file(cipher: Arc<dyn SectorCipher>, len: u64, writable: bool) -> Self {
        Self { cipher: Cipher::Plain(cipher), first: 0, len, writable }
    }
}

/// A request that is none: it names no encrypted segment, or no whole sectors in it, or what must not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;
