//! The parts of the metadata that need no credential: what `cryptsetup bitlkDump` and `manage-bde -status` show.

use serde::Serialize;

use super::datum::kind;
use super::guid::filetime;
use super::metadata::BitLockerState;
use super::method::Method;
use super::protectors::Protector;
use super::{BitLockerHeader, COPIES, unlock};
use crate::formats::facts::as_text;

/// The facts in a BitLocker volume's metadata apart from its protectors.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BitLockerFacts {
    /// The version of the metadata.
    pub version: u16,
    /// What made the volume, according to its first sector: `Windows 7 or later`.
    pub made_by: &'static str,
    /// The GUID of the volume.
    pub guid: String,
    /// The description that Windows wrote at encryption: the computer, the drive and the date.
    pub label: Option<String>,
    /// When the volume was created, in seconds since 1970.
    pub created: i64,
    /// How much is encrypted.
    #[serde(serialize_with = "as_text")]
    pub state: BitLockerState,
    /// Whether protection is suspended, with a clear key.
    pub suspended: bool,
    /// How far the data are encrypted, in bytes.
    pub encrypted_bytes: u64,
    /// Size of a sector, in bytes.
    pub sector_size: u32,
    /// The encryption method: `XTS-AES-128`; a number if it is unknown.
    pub method: String,
    /// The copies of the metadata.
    pub metadata: Vec<BitLockerCopy>,
    /// The errors of invalid protectors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged_protectors: Vec<String>,
}

/// A copy of the metadata of a BitLocker volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BitLockerCopy {
    /// Its offset, in bytes.
    pub offset: u64,
    /// Its damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// A protector of a BitLocker volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BitLockerKeyslot {
    /// Its number, counted from 0.
    pub keyslot: u32,
    /// Its GUID.
    pub guid: String,
    /// What it requires: `password`, `TPM and PIN`.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it was changed, in seconds since 1970.
    pub changed: i64,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The hint for its password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// A requirement that this program does not support.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<&'static str>,
}

/// The type of a hint.
const HINT: u16 = 0x18;

pub(super) fn facts(header: &BitLockerHeader) -> BitLockerFacts {
    let metadata = &header.first().metadata;
    let copies = (0..COPIES).map(|number| {
        let damaged = header.damaged.iter().find(|(damaged, _)| *damaged == number);
        let damaged = damaged.map(|(_, error)| error.kind.to_string());
        BitLockerCopy { offset: metadata.copies[number], damaged }
    });
    let method = Method::numbered(metadata.method);
    BitLockerFacts {
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
        damaged_protectors: Protector::all(metadata).1.iter().map(|error| error.kind.to_string()).collect(),
    }
}

/// Describes a protector without any key.
pub(super) fn keyslot(protector: &Protector) -> BitLockerKeyslot {
    BitLockerKeyslot {
        keyslot: protector.number,
        guid: protector.guid.to_string(),
        kind: protector.kind.name(),
        changed: filetime::seconds(protector.changed),
        name: protector.text(kind::TEXT),
        hint: protector.text(HINT),
        needs: protector.kind.needs(),
    }
}
