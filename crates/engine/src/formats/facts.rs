//! Facts about an unlocked volume, for people, and what the facts of all headers share.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::{Serialize, Serializer};

use crate::volume::{Layout, VolumeEncryption};

/// Facts about an unlocked volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Facts {
    /// The format's name.
    pub format: &'static str,
    /// Cipher or cascade: `AES-Twofish-Serpent`.
    pub cipher: String,
    /// The mode of operation, in the format's own notation, some with initialisation vectors: `XTS`, `LRW`, `CBC`, `xts-plain64`.
    pub mode: String,
    /// The size of the key, in bits, as the format's own programs count it. LUKS, plain, cryptoloop, BitLocker and FileVault 2
    /// count the whole volume key: AES-256 in XTS has 512, since XTS has two keys; a key for integrity tags is part of it. TrueCrypt
    /// and VeraCrypt count the ciphers' keys for data only: AES-256 in XTS has 256, and a cascade the sum of its ciphers. loop-AES
    /// counts one of its keys, dm-integrity the key of its tags.
    pub key_bits: u32,
    /// The hash of the key derivation, or the derivation's own name. `None` if the key itself was given: `none` in JSON.
    #[serde(serialize_with = "hash_or_none")]
    pub hash: Option<Cow<'static, str>>,
    /// Iterations of the key derivation, or passes over its memory.
    pub iterations: u32,
    /// A description of how the key was derived, if the format has its own way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub derivation: Option<&'static str>,
    /// How much memory the key derivation fills, in bytes, where that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The PIM, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pim: Option<u32>,
    /// Version of the header.
    pub header_version: u16,
    /// The copy of the header that opened.
    #[serde(serialize_with = "as_text")]
    pub header: WhichHeader,
    /// The part of it that the credentials opened, as people call it: `keyslot 3`, `backup header`, `volume key`. `None` if there
    /// is no header.
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
    /// The integrity protection of the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integrity: Option<String>,
    /// The sector size of the cipher, in bytes.
    pub sector_size: u32,
    /// Size of the plaintext, in bytes.
    pub size: u64,
    /// The offset of the data in the store, in bytes.
    pub data_offset: u64,
    /// When the volume was created, in seconds since 1970, if the header says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// When the header was written, in seconds since 1970, if the header says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_written: Option<i64>,
}

/// A copy of a header, by its usual name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhichHeader {
    /// The volume has no header.
    None,
    /// The copy that programs look for first.
    Primary,
    /// The second copy of LUKS2.
    Secondary,
    /// The second of BitLocker's three copies.
    SecondCopy,
    /// The third of BitLocker's three copies.
    ThirdCopy,
    /// The copy at the end.
    Backup,
    /// The header of a hidden volume.
    Hidden,
    /// The copy of a hidden volume's header at the end.
    HiddenBackup,
    /// The header of an encrypted system.
    System,
}

impl WhichHeader {
    /// Its name for people, as in JSON: `hidden backup`.
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

    /// Whether it is a backup copy that the format opens only if the other one is lost.
    pub fn is_backup(self) -> bool {
        matches!(self, Self::Backup | Self::HiddenBackup)
    }
}

impl Display for WhichHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text for people if there is no hash or header.
const NONE: &str = "none";

fn hash_or_none<S: Serializer>(hash: &Option<Cow<'static, str>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(hash.as_deref().unwrap_or(NONE))
}

impl Facts {
    /// [`Facts::hash`] for people: `none` if there is none.
    pub fn hash_name(&self) -> Cow<'static, str> {
        self.hash.clone().unwrap_or(NONE.into())
    }

    /// How the volume is encrypted.
    pub fn encryption(&self) -> VolumeEncryption {
        VolumeEncryption { format: self.format.to_owned(), cipher: self.cipher.clone(), mode: self.mode.clone() }
    }

    /// The facts that every volume has; the others are unset. `layout` describes the plaintext.
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

/// Serialises a value to JSON as its text for people.
pub(super) fn as_text<S: Serializer>(what: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(what)
}
