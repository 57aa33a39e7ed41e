//! What a header says without any credential, typed until somebody prints it.

use std::fmt::Display;

use serde::{Serialize, Serializer};

use super::bitlocker::{BitLockerFacts, BitLockerKeyslot};
use super::filevault2::FileVault2Facts;
use super::integritysetup::DmIntegrityFacts;
use super::luks1::{Luks1Facts, Luks1Keyslot};
use super::luks2::{Luks2Facts, Luks2Keyslot};

/// What a header says without any credential. No secret is in it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HeaderFacts {
    /// The keyslots in the header, in use or not. Nothing where the format has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyslots: Option<Vec<KeyslotFacts>>,
    /// The rest, which each format says in its own way.
    #[serde(flatten)]
    pub of_format: FormatFacts,
}

impl HeaderFacts {
    pub(super) fn new(keyslots: Option<Vec<KeyslotFacts>>, of_format: FormatFacts) -> Self {
        Self { keyslots, of_format }
    }

    /// The keyslots that are in use. Nothing where the format has none.
    pub fn used_keyslots(&self) -> Option<impl Iterator<Item = &KeyslotFacts>> {
        Some(self.keyslots.as_ref()?.iter().filter(|slot| slot.is_used()))
    }
}

/// What the headers of each format say beside their keyslots.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum FormatFacts {
    /// Of LUKS1.
    Luks1(Luks1Facts),
    /// Of LUKS2.
    Luks2(Luks2Facts),
    /// Of BitLocker.
    BitLocker(BitLockerFacts),
    /// Of FileVault 2.
    FileVault2(FileVault2Facts),
    /// Of dm-integrity alone.
    DmIntegrity(DmIntegrityFacts),
}

/// What a header says of a keyslot.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum KeyslotFacts {
    /// One of LUKS1.
    Luks1(Luks1Keyslot),
    /// One of LUKS2.
    Luks2(Box<Luks2Keyslot>),
    /// A protector of BitLocker.
    BitLocker(BitLockerKeyslot),
}

impl KeyslotFacts {
    /// Its number, as people name it.
    pub fn number(&self) -> u32 {
        match self {
            Self::Luks1(slot) => slot.keyslot,
            Self::Luks2(slot) => slot.number,
            Self::BitLocker(slot) => slot.keyslot,
        }
    }

    /// LUKS1 has all eight in its header, the others those that there are.
    fn is_used(&self) -> bool {
        !matches!(self, Self::Luks1(Luks1Keyslot { active: false, .. }))
    }
}

/// A key derivation by PBKDF2.
#[derive(Clone, Debug, Serialize)]
pub struct Pbkdf2Facts {
    /// `pbkdf2`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The name of its hash, as the header spells it.
    pub hash: String,
    /// Its iterations.
    pub iterations: u32,
}

impl Pbkdf2Facts {
    pub(super) fn new(hash: impl Into<String>, iterations: u32) -> Self {
        Self { kind: "pbkdf2", hash: hash.into(), iterations }
    }
}

/// What a number in facts counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FactUnit {
    /// A size, in bytes.
    Bytes,
    /// A place in the store, in bytes from its beginning.
    Offset,
    /// A time, in seconds since 1970.
    Time,
    /// What a derivation costs one processor, in microseconds.
    Microseconds,
}

impl FactUnit {
    /// What the numbers in the field of this name count, in the JSON of all [`HeaderFacts`]. Nothing where they are mere numbers.
    pub fn of_field(name: &str) -> Option<Self> {
        Some(match name {
            "area_size" | "block_size" | "header_size" | "keyslots_size" | "memory" | "sector_size" | "size"
            | "tag_size" => Self::Bytes,
            "area_offset" | "at" | "offset" | "payload_offset" => Self::Offset,
            "changed" | "created" => Self::Time,
            "microseconds" => Self::Microseconds,
            _ => return None,
        })
    }
}

/// Something in JSON as people read it.
pub(super) fn as_text<S: Serializer>(what: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(what)
}
