//! The JSON area of a LUKS2 header (LUKS2 On-Disk Format Specification, section 3), as it is on the disk. Fields unknown to this
//! program, such as a newer program's, stay in `other` and are written back unchanged.

use std::collections::BTreeMap;

use claviger_crypto::dmcrypt::Sectors;
use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::formats::unencrypted;

/// The whole JSON area.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Metadata {
    /// Keyslots by their number, 0 to 31.
    pub keyslots: BTreeMap<u32, Keyslot>,
    /// Tokens by their number, 0 to 31, unchanged.
    pub tokens: BTreeMap<u32, Map<String, Value>>,
    /// Segments of the volume by their number.
    pub segments: BTreeMap<u32, MetadataSegment>,
    /// Digests of volume keys by their number.
    pub digests: BTreeMap<u32, Digest>,
    /// Sizes, flags and requirements.
    pub config: Config,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A keyslot.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Keyslot {
    /// `luks2`, or `reencrypt` for one that stores the state of a reencryption.
    #[serde(rename = "type")]
    pub kind: String,
    /// The size of the stored key, in bytes.
    pub key_size: u32,
    /// 0 if it is tried only when its number is given, 1 normally, 2 if it is tried first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Its area, and how that is encrypted.
    pub area: Area,
    /// The derivation of its area's key, for keyslots of type `luks2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdf: Option<Kdf>,
    /// The splitting of its key, for keyslots of type `luks2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub af: Option<Af>,
    /// Unknown fields; `mode` and `direction` for type `reencrypt`.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The area of a keyslot's binary data.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Area {
    /// `raw`; for reencryption `none`, `journal`, `checksum`, `datashift`, `datashift-journal`, `datashift-checksum`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its offset in the header's store, in bytes.
    pub offset: Decimal,
    /// Its size, in bytes.
    pub size: Decimal,
    /// The cipher specification, for type `raw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
    /// Size of the key of that cipher, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_size: Option<u32>,
    /// Unknown fields; `hash`, `sector_size`, `shift_size` for reencryption.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A key derivation.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Kdf {
    /// `pbkdf2`, `argon2i`, `argon2id`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The salt.
    pub salt: Base64,
    /// PBKDF2's hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// PBKDF2's iterations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,
    /// Argon2's passes over its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<u32>,
    /// Argon2's memory, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
    /// Argon2's lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The anti-forensic splitter.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Af {
    /// `luks1`.
    #[serde(rename = "type")]
    pub kind: String,
    /// How many stripes the key is split into: 4000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripes: Option<u32>,
    /// The splitter's hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A segment of the volume.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct MetadataSegment {
    /// `crypt`, `linear`, `hw-opal`, `hw-opal-crypt`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its offset in the data's store, in bytes.
    pub offset: Decimal,
    /// Its size.
    pub size: Size,
    /// The number of its first sector, in units of 512 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iv_tweak: Option<Decimal>,
    /// Cipher specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
    /// Size of an encryption sector, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sector_size: Option<u32>,
    /// What protects it from modification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integrity: Option<Integrity>,
    /// `in-reencryption`, `backup-previous`, `backup-final`, `backup-moved-segment`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl MetadataSegment {
    /// Whether it stores plaintext.
    pub fn in_clear(&self) -> bool {
        self.kind == "linear" || self.encryption.as_deref().is_some_and(unencrypted::is_null)
    }

    /// Whether it is encrypted with a volume key. A self-encrypting drive's own key does not count.
    pub fn is_encrypted(&self) -> bool {
        self.kind == "crypt" && !self.in_clear()
    }

    /// The size and numbering of its sectors, for its cipher.
    pub fn sectors(&self) -> Sectors {
        Sectors {
            size: self.sector_size.unwrap_or(512) as usize,
            // Sector numbers count units of 512 bytes, whatever the sector size (lib/setup.c, `LUKS2_activate`).
            large_iv: false,
            iv_offset: self.iv_tweak.unwrap_or_default().0,
        }
    }
}

/// What protects a segment from modification.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Integrity {
    /// In dm-crypt's notation: `hmac(sha256)`, `aead`, `poly1305`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `none`.
    pub journal_encryption: String,
    /// `none`.
    pub journal_integrity: String,
    /// Unknown fields; `key_size`.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A digest, which verifies a volume key.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Digest {
    /// `pbkdf2`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Keyslots that hold the key.
    pub keyslots: Vec<Id>,
    /// Segments that the key encrypts.
    pub segments: Vec<Id>,
    /// The salt.
    pub salt: Base64,
    /// The digest.
    pub digest: Base64,
    /// PBKDF2's hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// PBKDF2's iterations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Sizes, flags and requirements.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Config {
    /// Size of the JSON area, in bytes.
    pub json_size: Decimal,
    /// The size of the keyslots area, in bytes.
    pub keyslots_size: Decimal,
    /// Flags for opening: `allow-discards`, `no-journal` …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// The features that a program must support to use the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirements: Option<Requirements>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The features that a program must support to use the volume.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Requirements {
    /// `online-reencrypt-v2`, `inline-hw-tags`, `opal` …
    #[serde(default)]
    pub mandatory: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A number of 64 bits as a string of decimal digits, since JSON numbers may lose precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decimal(pub u64);

/// The number of an object, as a string of decimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(pub u32);

/// The size of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Up to the end of the store.
    Dynamic,
    /// In bytes.
    Fixed(u64),
}

/// Bytes, in Base64 (RFC 4648, section 4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

/// Accepts only digits: no sign, no blank. Leading zeros are accepted, as in cryptsetup.
fn decimal(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn text<'de, D: Deserializer<'de>, T>(
    from: D,
    what: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| de::Error::custom(format!("\"{}\" is not a {what}", text.escape_debug())))
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        text(from, "number of 64 bits", |text| decimal(text).map(Self))
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // A reference matches the object's name, without leading zeros.
        text(from, "number of an object", |text| {
            decimal(text)?.try_into().ok().map(Self).filter(|_| text == "0" || !text.starts_with('0'))
        })
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        text(from, "size", |text| match text {
            "dynamic" => Some(Self::Dynamic),
            text => decimal(text).map(Self::Fixed),
        })
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Dynamic => to.serialize_str("dynamic"),
            Self::Fixed(size) => to.collect_str(size),
        }
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use base64::Engine;
        text(from, "Base64", |text| base64::engine::general_purpose::STANDARD.decode(text).ok().map(Self))
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use base64::Engine;
        to.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}
