//! A key in the process that holds it.

use std::sync::Arc;

use claviger_crypto::SectorCipher;
use claviger_crypto::modes::AuthenticatedCipher;

use super::folder::ContentKey;
use crate::volume::{Payload, SealedLayout};

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
    /// Blocks that are stored with their nonces and tags. The last one may be shorter.
    Sealed(SealedLayout),
}

impl Cipher {
    pub(super) fn sector_size(&self) -> usize {
        match self {
            Self::Plain(cipher) => cipher.sector_size(),
            Self::Tagged(cipher) => cipher.sector_size(),
            Self::Sealed(layout) => layout.block,
        }
    }
}

impl Key {
    /// The key of a file that can have `len` bytes; its first sector or block has the number 0. `None` if another process has the key.
    pub(crate) fn of_file(key: ContentKey, len: u64, writable: bool) -> Option<Self> {
        let cipher = match key {
            ContentKey::Sectors(Payload::Crypt { cipher, first: 0, .. }) => Cipher::Plain(cipher),
            ContentKey::Blocks(layout) if layout.is_here() => Cipher::Sealed(layout),
            ContentKey::Sectors(_) | ContentKey::Blocks(_) => return None,
        };
        Some(Self { cipher, first: 0, len, writable })
    }
}

/// A request that is none: it names no encrypted segment, or no whole sectors in it, or what must not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;
