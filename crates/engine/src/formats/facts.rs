//! What an unlocked volume is made of, for people.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};

use super::header_facts::as_text;
use crate::volume::Layout;

/// What is known about an unlocked volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Facts {
    /// The format's name.
    pub format: &'static str,
    /// Cipher or cascade: `AES-Twofish-Serpent`.
    pub cipher: String,
    /// Mode of operation, where it says so with its initialisation vectors: `XTS`, `LRW`, `CBC`, `xts-plain64`.
    pub mode: String,
    /// Bits of key per cipher and purpose, added up: 256 for AES-256 in XTS.
    pub key_bits: u32,
    /// Hash of the key derivation, or the derivation's own name. Nothing where what was given is the key itself: `none` in JSON.
    #[serde(serialize_with = "hash_or_none")]
    pub hash: Option<Cow<'static, str>>,
    /// Iterations of the key derivation, or passes over its memory.
    pub iterations: u32,
    /// How the key came about, as a person says it, where that is a way of the format's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub derivation: Option<&'static str>,
    /// Bytes of memory that the key derivation fills, where that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The PIM, where one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pim: Option<u32>,
    /// Version of the header.
    pub header_version: u16,
    /// Which copy of the header opened.
    #[serde(serialize_with = "as_text")]
    pub header: WhichHeader,
    /// What of it the credentials opened, as a person calls it: `keyslot 3`, `backup header`, `volume key`. Nothing where nothing is
    /// opened, since there is no header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
    /// Whether it is a hidden volume.
    pub hidden: bool,
    /// The keyslot that opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyslot: Option<u32>,
    /// The UUID in the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The label in the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What protects the data from changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integrity: Option<String>,
    /// Sector size of the cipher, in bytes.
    pub sector_size: u32,
    /// Size of the plaintext, in bytes.
    pub size: u64,
    /// Where the plaintext begins in the store, in bytes.
    pub data_offset: u64,
    /// When the volume was created, in seconds since 1970, where the header says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// When the header was written, in seconds since 1970, where the header says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_written: Option<i64>,
}

/// A copy of a header, as people call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhichHeader {
    /// The volume has no header.
    None,
    /// The one that programs look for first.
    Primary,
    /// LUKS2's other one.
    Secondary,
    /// The second of BitLocker's three.
    SecondCopy,
    /// The third of them.
    ThirdCopy,
    /// The copy at the end.
    Backup,
    /// A hidden volume's.
    Hidden,
    /// The copy of that.
    HiddenBackup,
    /// An encrypted system's.
    System,
}

impl WhichHeader {
    /// What people call it, as in JSON: `hidden backup`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => NONE,
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::SecondCopy => "second copy",
            Self::ThirdCopy => "third copy",
            Self::Backup => "backup",
            Self::Hidden => "hidden",
            Self::HiddenBackup => "hidden backup",
            Self::System => "system",
        }
    }

    /// Whether it is a copy in case another one is lost, of a format that opens it only then.
    pub fn is_backup(self) -> bool {
        matches!(self, Self::Backup | Self::HiddenBackup)
    }
}

impl fmt::Display for WhichHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What people read where there is no hash or header.
const NONE: &str = "none";

fn hash_or_none<S: Serializer>(hash: &Option<Cow<'static, str>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(hash.as_deref().unwrap_or(NONE))
}

impl Facts {
    /// [`Facts::hash`] for people: `none` where there is none.
    pub fn hash_name(&self) -> Cow<'static, str> {
        self.hash.clone().unwrap_or(NONE.into())
    }

    /// What every volume has; of the rest nothing is known. The plaintext is what `layout` describes.
    pub fn new(format: &'static str, cipher: impl Into<String>, mode: impl Into<String>, layout: &Layout) -> Self {
        let segment = layout.segments().first();
        let (sector_size, data_offset) = segment.map_or((1, 0), |s| (s.payload.sector_size(), s.stored_at));
        Self {
            format,
            cipher: cipher.into(),
            mode: mode.into(),
            key_bits: 0,
            hash: None,
            iterations: 0,
            derivation: None,
            memory: None,
            pim: None,
            header_version: 0,
            header: WhichHeader::Primary,
            opened_by: None,
            hidden: false,
            keyslot: None,
            uuid: None,
            label: None,
            integrity: None,
            sector_size: sector_size as u32,
            size: layout.len(),
            data_offset,
            created: None,
            header_written: None,
        }
    }
}
