//! The contents of a header that need no credential, typed until they are printed.

use serde::Serialize;

use super::bitlocker::describe::{BitLockerFacts, BitLockerKeyslot};
use super::filevault2::describe::FileVault2Facts;
use super::integritysetup::describe::DmIntegrityFacts;
use super::luks1::describe::{Luks1Facts, Luks1Keyslot};
use super::luks2::describe::{Luks2Facts, Luks2Keyslot};

/// The contents of a header that need no credential. They include no secrets.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HeaderFacts {
    /// The keyslots in the header, in use or not. `None` if the format has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyslots: Option<Vec<KeyslotFacts>>,
    /// The other facts, specific to the format.
    #[serde(flatten)]
    pub of_format: FormatFacts,
}

impl HeaderFacts {
    pub(super) fn new(keyslots: Option<Vec<KeyslotFacts>>, of_format: FormatFacts) -> Self {
        Self { keyslots, of_format }
    }

    /// The keyslots in use. `None` if the format has none.
    pub fn used_keyslots(&self) -> Option<impl Iterator<Item = &KeyslotFacts>> {
        Some(self.keyslots.as_ref()?.iter().filter(|slot| slot.is_used()))
    }
}

/// The facts in the headers of each format apart from their keyslots.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum FormatFacts {
    /// LUKS1.
    Luks1(Luks1Facts),
    /// LUKS2.
    Luks2(Luks2Facts),
    /// BitLocker.
    BitLocker(BitLockerFacts),
    /// FileVault 2.
    FileVault2(FileVault2Facts),
    /// dm-integrity without encryption.
    DmIntegrity(DmIntegrityFacts),
}

/// The facts about a keyslot.
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
    /// Its number for people.
    pub fn number(&self) -> u32 {
        match self {
            Self::Luks1(slot) => slot.keyslot,
            Self::Luks2(slot) => slot.number,
            Self::BitLocker(slot) => slot.keyslot,
        }
    }

    /// LUKS1 lists all eight in its header; other formats only list existing ones.
    fn is_used(&self) -> bool {
        !matches!(self, Self::Luks1(Luks1Keyslot { active: false, .. }))
    }
}

/// The unit of a number in facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FactUnit {
    /// A size, in bytes.
    Bytes,
    /// An offset in the store, in bytes.
    Offset,
    /// A time, in seconds since 1970.
    Time,
    /// The cost of a derivation for one processor, in microseconds.
    Microseconds,
}

impl FactUnit {
    /// The unit of numbers in the field with this name, in the JSON of all [`HeaderFacts`]. `None` for plain numbers.
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
