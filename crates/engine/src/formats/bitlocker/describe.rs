//! What the metadata say without any credential: what `cryptsetup bitlkDump` and `manage-bde -status` show.

use std::fmt;

use serde::Serialize;

use super::guid::filetime;
use super::method::Method;
use super::protectors::Protector;
use super::{BitLockerHeader, COPIES, unlock};
use crate::formats::header_facts::{FormatFacts, HeaderFacts, KeyslotFacts, as_text};
use crate::formats::in_place::Towards;

/// What the metadata of a BitLocker volume say beside its protectors.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BitLockerFacts {
    /// Version of the metadata.
    pub version: u16,
    /// What made the volume, as its first sector tells: `Windows 7 or later`.
    pub made_by: &'static str,
    /// The GUID of the volume.
    pub guid: String,
    /// What Windows wrote when it was encrypted: the computer, the drive and the date.
    pub label: Option<String>,
    /// When the volume was made, in seconds since 1970.
    pub created: i64,
    /// How much of it is encrypted.
    #[serde(serialize_with = "as_text")]
    pub state: BitLockerState,
    /// Whether the key lies open.
    pub suspended: bool,
    /// How far the data are encrypted, in bytes.
    pub encrypted_bytes: u64,
    /// Size of a sector, in bytes.
    pub sector_size: u32,
    /// The encryption method: `XTS-AES-128`; a number where it is unknown.
    pub method: String,
    /// The copies of the metadata.
    pub metadata: Vec<BitLockerCopy>,
    /// What is wrong with protectors that make no sense.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged_protectors: Vec<String>,
}

/// How much of a BitLocker volume is encrypted, and where a conversion goes, if the metadata make sense there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BitLockerState {
    /// Nothing.
    Decrypted,
    /// All.
    Encrypted,
    /// A part, and more of it while Windows runs.
    InProgress(Option<Towards>),
    /// A part, since somebody stopped.
    Paused(Option<Towards>),
    /// A part, and one zone may hold sectors of both kinds.
    Interrupted(Option<Towards>),
    /// This number, which nobody knows.
    Unknown(u16),
}

impl fmt::Display for BitLockerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (towards, how) = match self {
            Self::Decrypted => return f.write_str("decrypted"),
            Self::Encrypted => return f.write_str("encrypted"),
            Self::Unknown(number) => return write!(f, "unknown ({number})"),
            Self::InProgress(towards) => (towards, "in progress"),
            Self::Paused(towards) => (towards, "paused"),
            Self::Interrupted(towards) => (towards, "interrupted"),
        };
        let towards = match towards {
            Some(Towards::Encrypted) => "encryption",
            Some(Towards::Plain) => "decryption",
            None => "conversion",
        };
        write!(f, "{towards} {how}")
    }
}

/// A copy of the metadata of a BitLocker volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BitLockerCopy {
    /// Where it is, in bytes.
    pub offset: u64,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// A protector of a BitLocker volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BitLockerKeyslot {
    /// Its number, from 0 on.
    pub keyslot: u32,
    /// Its GUID.
    pub guid: String,
    /// What it takes: `password`, `TPM and PIN`.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it was changed, in seconds since 1970.
    pub changed: i64,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A hint at its password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What it needs that this program does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<&'static str>,
}

pub(super) fn describe(header: &BitLockerHeader) -> HeaderFacts {
    let metadata = &header.first().metadata;
    let (protectors, wrong) = Protector::all(metadata);
    let copies = (0..COPIES).map(|number| {
        let damaged = header.damaged.iter().find(|(damaged, _)| *damaged == number);
        let damaged = damaged.map(|(_, error)| error.kind.to_string());
        BitLockerCopy { offset: metadata.copies[number], damaged }
    });
    let method = Method::numbered(metadata.method);
    let facts = BitLockerFacts {
        version: metadata.version,
        made_by: header.boot.kind.name(),
        guid: metadata.volume.to_string(),
        label: metadata.label(),
        created: filetime::seconds(metadata.created),
        state: metadata.state.towards(metadata.next_state),
        suspended: unlock::is_suspended(metadata),
        encrypted_bytes: metadata.state_offset,
        sector_size: header.boot.sector_size,
        method: method.map_or_else(|_| format!("{:#06x}", metadata.method), |method| method.name.to_owned()),
        metadata: copies.collect(),
        damaged_protectors: wrong.iter().map(|error| error.kind.to_string()).collect(),
    };
    let keyslots = protectors.iter().map(|protector| KeyslotFacts::BitLocker(protector.describe()));
    HeaderFacts::new(Some(keyslots.collect()), FormatFacts::BitLocker(facts))
}
