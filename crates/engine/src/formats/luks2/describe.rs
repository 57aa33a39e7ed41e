//! The parts of a header that need no passphrase, for people and programs: what `cryptsetup luksDump` shows, and what its tokens
//! mean.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::{Map, Value};

use super::binary::Which;
use super::metadata::{self, Digest, Id, Keyslot, MetadataSegment, Size};
use super::read::{Luks2CopyState, ReadHeader};
use super::validate::{digests_of, printable, requirements};
use super::{derivation, layout, unlock};
use crate::formats::facts::as_text;
use crate::hex;
use crate::store::Store;

/// The facts in a LUKS2 header apart from its keyslots.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks2Facts {
    /// `LUKS2`.
    pub format: &'static str,
    /// 2.
    pub version: u32,
    /// The UUID.
    pub uuid: String,
    /// The label.
    pub label: String,
    /// The subsystem, which is a second label.
    pub subsystem: String,
    /// The sequence number, which grows with each change of the header.
    pub sequence_number: u64,
    /// The size of one copy of the header, in bytes.
    pub header_size: u64,
    /// The size of the keyslots area, in bytes.
    pub keyslots_size: u64,
    /// The hash of the header's checksums.
    pub checksum: String,
    /// Persistent flags of the volume.
    pub flags: Vec<String>,
    /// Features that a program must support to open the volume.
    pub requirements: Vec<String>,
    /// The copies of the header.
    pub copies: [Luks2Copy; 2],
    /// The segments of the volume.
    pub segments: Vec<Luks2Segment>,
    /// The tokens, in which other programs store what they need to find a passphrase.
    pub tokens: Vec<Luks2Token>,
    /// The digests that identify volume keys.
    pub digests: Vec<Luks2Digest>,
}

/// The condition of one copy of a LUKS2 header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Luks2Soundness {
    /// Sound, and the newest.
    Sound,
    /// Sound, but older. The number is its sequence number.
    Stale(u64),
    /// Sound and equally new, but different.
    Differs,
    /// Damaged, with the reason.
    Damaged(String),
}

impl fmt::Display for Luks2Soundness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sound => f.write_str("sound"),
            Self::Stale(number) => write!(f, "sound, but older: sequence number {number}"),
            Self::Differs => f.write_str("sound, but not the same"),
            Self::Damaged(why) => f.write_str(why),
        }
    }
}

/// A copy of a LUKS2 header.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks2Copy {
    /// `primary` or `secondary`.
    pub name: &'static str,
    /// Its offset, in bytes.
    pub at: u64,
    /// Its condition.
    #[serde(serialize_with = "as_text")]
    pub state: Luks2Soundness,
    /// Whether this copy was used.
    pub used: bool,
}

/// A segment of a LUKS2 volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks2Segment {
    /// Its number.
    pub number: u32,
    /// `crypt`, `linear`, `hw-opal`, `hw-opal-crypt`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its offset in the data's store, in bytes.
    pub offset: u64,
    /// Its size.
    pub size: Luks2Size,
    /// The cipher as dm-crypt writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// The size of an encryption sector, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sector_size: Option<u32>,
    /// The number of its first sector, in units of 512 bytes. `None` for 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iv_tweak: Option<u64>,
    /// What protects it from modification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integrity: Option<String>,
    /// Its flags, such as `backup-final`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

/// The size of a segment of a LUKS2 volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Luks2Size {
    /// Up to the end of the store.
    Dynamic,
    /// In bytes.
    #[serde(untagged)]
    Fixed(u64),
}

/// A keyslot of LUKS2.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks2Keyslot {
    /// Its number, from 0 to 31.
    pub number: u32,
    /// `luks2`, or `reencrypt` for one that stores the state of a reencryption.
    #[serde(rename = "type")]
    pub kind: String,
    /// The size of the stored key, in bits.
    pub key_bits: u64,
    /// When it is tried.
    pub priority: Luks2Priority,
    /// The offset of its area, in bytes.
    pub area_offset: u64,
    /// Size of its area, in bytes.
    pub area_size: u64,
    /// What it opens, if its type is `luks2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens: Option<Luks2Opens>,
    /// The resilience mode of a reencryption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resilience: Option<String>,
    /// The kind of reencryption: `encrypt`, `reencrypt`, `decrypt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Value>,
    /// The direction of a reencryption: `forward`, `backward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Value>,
    /// The cipher of its area as dm-crypt writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// The size of that cipher's key, in bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipher_key_bits: Option<u64>,
    /// The first digest that its key has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<u32>,
    /// The derivation of its area's key.
    #[serde(flatten)]
    pub kdf: Option<Luks2Kdf>,
    /// The hash function of the anti-forensic splitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub af_hash: Option<String>,
    /// The number of stripes that the key is split into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub af_stripes: Option<u32>,
    /// What in its area does not look random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// When a keyslot of LUKS2 is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Luks2Priority {
    /// Only if its number is given.
    Ignored,
    /// In numerical order.
    Normal,
    /// Before the others.
    Preferred,
}

impl Luks2Priority {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::Normal => "normal",
            Self::Preferred => "preferred",
        }
    }
}

/// What a keyslot of LUKS2 opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Luks2Opens {
    /// The volume.
    #[serde(rename = "the volume")]
    Volume,
    /// No volume: it is an unbound keyslot.
    #[serde(rename = "nothing (unbound)")]
    Nothing,
}

/// The key derivation of a LUKS2 keyslot.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks2Kdf {
    /// `pbkdf2`, `argon2i`, `argon2id`.
    pub kdf: String,
    /// The salt, in hexadecimal digits.
    pub salt: String,
    /// PBKDF2's hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// PBKDF2's iterations, or Argon2's passes over its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,
    /// Argon2's memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Argon2's lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// The cost for one processor of this machine, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microseconds: Option<u64>,
}

/// A token: what other programs store in a LUKS2 header to find a passphrase.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks2Token {
    /// Its number.
    pub number: u32,
    /// Its type: `systemd-tpm2`, `clevis`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The numbers of its keyslots, as strings.
    pub keyslots: Value,
    /// Its purpose, in words.
    pub means: String,
}

/// A digest, which identifies a LUKS2 volume key.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks2Digest {
    /// Its number.
    pub number: u32,
    /// `pbkdf2`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The keyslots that hold the key.
    pub keyslots: Vec<u32>,
    /// The segments that the key encrypts.
    pub segments: Vec<u32>,
    /// The salt, in hexadecimal digits.
    pub salt: String,
    /// The digest, in hexadecimal digits.
    pub digest: String,
    /// PBKDF2's hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// PBKDF2's iterations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,
}

/// Describes the header apart from its keyslots. It includes salts and digests, which are not secret, but no keys.
pub(super) fn facts(header: &ReadHeader) -> Luks2Facts {
    let metadata = &header.metadata;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Luks2Facts {
        format: "LUKS2",
        version: 2,
        uuid: text(&header.binary.uuid),
        label: text(&header.binary.label),
        subsystem: text(&header.binary.subsystem),
        sequence_number: header.binary.seqid,
        header_size: header.binary.hdr_size,
        keyslots_size: metadata.config.keyslots_size.0,
        checksum: header.binary.csum_alg.clone(),
        flags: metadata.config.flags.clone(),
        requirements: requirements(metadata).to_vec(),
        copies: [copy(header, Which::Primary, &header.primary), copy(header, Which::Secondary, &header.secondary)],
        segments: metadata.segments.iter().map(|(number, one)| segment(*number, one)).collect(),
        tokens: metadata.tokens.iter().map(|(number, one)| token(*number, one)).collect(),
        digests: metadata.digests.iter().map(|(number, one)| digest(*number, one)).collect(),
    }
}

pub(super) fn keyslots(header: &ReadHeader, store: &dyn Store) -> impl Iterator<Item = Luks2Keyslot> {
    header.metadata.keyslots.iter().map(move |(number, one)| {
        let damaged = unlock::damage_of(header, store, *number);
        Luks2Keyslot { damaged, ..keyslot(header, *number, one) }
    })
}

fn copy(header: &ReadHeader, which: Which, state: &Luks2CopyState) -> Luks2Copy {
    let state = match state {
        Luks2CopyState::Current => Luks2Soundness::Sound,
        Luks2CopyState::Stale { seqid } => Luks2Soundness::Stale(*seqid),
        Luks2CopyState::Differs => Luks2Soundness::Differs,
        Luks2CopyState::Damaged(error) => Luks2Soundness::Damaged(error.to_string()),
    };
    Luks2Copy { name: which.name(), at: which.offset(header.binary.hdr_size), state, used: which == header.which }
}

fn segment(number: u32, segment: &MetadataSegment) -> Luks2Segment {
    let MetadataSegment { kind, offset, size, iv_tweak, encryption, sector_size, integrity, flags, other: _ } = segment;
    Luks2Segment {
        number,
        kind: kind.clone(),
        offset: offset.0,
        size: match size {
            Size::Dynamic => Luks2Size::Dynamic,
            Size::Fixed(size) => Luks2Size::Fixed(*size),
        },
        cipher: encryption.clone(),
        sector_size: *sector_size,
        iv_tweak: iv_tweak.map(|n| n.0).filter(|n| *n > 0),
        integrity: integrity.as_ref().map(|integrity| integrity.kind.clone()),
        flags: flags.clone(),
    }
}

fn keyslot(header: &ReadHeader, number: u32, keyslot: &Keyslot) -> Luks2Keyslot {
    let Keyslot { kind, key_size, priority, area, kdf, af, other } = keyslot;
    let digests = digests_of(number, &header.metadata, |d| &d.keyslots);
    let bound = digests.iter().any(|d| layout::digests(header).contains(d));
    let opens = if bound { Luks2Opens::Volume } else { Luks2Opens::Nothing };
    let is_luks2 = kind == "luks2";
    let of_reencryption = |name: &str| other.get(name).filter(|_| !is_luks2).cloned();
    Luks2Keyslot {
        number,
        kind: kind.clone(),
        key_bits: u64::from(*key_size) * 8,
        priority: match priority {
            Some(0) => Luks2Priority::Ignored,
            Some(2) => Luks2Priority::Preferred,
            _ => Luks2Priority::Normal,
        },
        area_offset: area.offset.0,
        area_size: area.size.0,
        opens: is_luks2.then_some(opens),
        resilience: (!is_luks2).then(|| area.kind.clone()),
        mode: of_reencryption("mode"),
        direction: of_reencryption("direction"),
        cipher: area.encryption.clone(),
        cipher_key_bits: area.key_size.map(|bytes| u64::from(bytes) * 8),
        digest: digests.first().copied(),
        kdf: kdf.as_ref().map(|kdf| derived(kdf, area.key_size)),
        af_hash: af.as_ref().and_then(|af| af.hash.clone()),
        af_stripes: af.as_ref().and_then(|af| af.stripes),
        damaged: None,
    }
}

fn derived(kdf: &metadata::Kdf, key_size: Option<u32>) -> Luks2Kdf {
    Luks2Kdf {
        kdf: kdf.kind.clone(),
        salt: hex::digits(&kdf.salt.0),
        hash: kdf.hash.clone(),
        iterations: kdf.iterations.or(kdf.time),
        memory: kdf.memory.map(|kib| u64::from(kib) << 10),
        lanes: kdf.cpus,
        microseconds: derivation::of(kdf).ok().map(|kdf| kdf.effort(key_size.unwrap_or(0) as usize)),
    }
}

fn digest(number: u32, digest: &Digest) -> Luks2Digest {
    let Digest { kind, keyslots, segments, salt, digest, hash, iterations, other: _ } = digest;
    let ids = |ids: &[Id]| ids.iter().map(|id| id.0).collect();
    Luks2Digest {
        number,
        kind: kind.clone(),
        keyslots: ids(keyslots),
        segments: ids(segments),
        salt: hex::digits(&salt.0),
        digest: hex::digits(&digest.0),
        hash: hash.clone(),
        iterations: *iterations,
    }
}

fn token(number: u32, token: &Map<String, Value>) -> Luks2Token {
    let kind = token.get("type").and_then(Value::as_str).unwrap_or_default();
    let keyslots = token.get("keyslots").cloned().unwrap_or_default();
    Luks2Token { number, kind: kind.to_owned(), keyslots, means: meaning(kind, token) }
}

/// Describes the purpose of a token. The fields are those of systemd (src/shared/cryptsetup-tpm2.c, cryptsetup-fido2.c of
/// cryptenroll and the manual page of systemd-cryptenroll), of cryptsetup (specification, section 3.6) and of clevis (its luks2
/// token, `clevis-luks-bind`).
pub(super) fn meaning(kind: &str, token: &Map<String, Value>) -> String {
    let text = |name: &str| token.get(name).and_then(Value::as_str).unwrap_or("?");
    let yes = |name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
    match kind {
        "luks2-keyring" => {
            format!("the passphrase is in the kernel's keyring, as the key \"{}\"", text("key_description"))
        }
        "systemd-tpm2" => {
            let pcrs = |name: &str, how: &str| {
                let pcrs = token.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                let pcrs: Vec<_> = pcrs.iter().map(Value::to_string).collect();
                let plural = if pcrs.len() == 1 { "" } else { "s" };
                if pcrs.is_empty() { String::new() } else { format!(", {how} PCR{plural} {}", pcrs.join(", ")) }
            };
            let lock = if yes("tpm2_pcrlock") { ", by its systemd-pcrlock policy" } else { "" };
            let bound = pcrs("tpm2-pcrs", "bound to") + &pcrs("tpm2_pubkey_pcrs", "with signatures of") + lock;
            let pin = if yes("tpm2-pin") { ", with a PIN" } else { "" };
            format!("the TPM of one machine releases the passphrase{bound}{pin} (systemd-cryptenroll --tpm2-device)")
        }
        "systemd-fido2" => {
            let pin = if yes("fido2-clientPin-required") { ", with its PIN" } else { "" };
            let touch = if yes("fido2-up-required") { ", when touched" } else { "" };
            let party = text("fido2-rp").escape_debug();
            format!(
                "a FIDO2 security key with a credential for {party} produces the passphrase{pin}{touch} \
                 (systemd-cryptenroll --fido2-device)"
            )
        }
        "systemd-recovery" => "the passphrase is a recovery key (systemd-cryptenroll --recovery-key)".to_owned(),
        "systemd-pkcs11" => format!("the smart card {} decrypts the passphrase", text("pkcs11-uri")),
        "clevis" => {
            let protected = token.get("jwe").and_then(|jwe| jwe.get("protected")).and_then(Value::as_str);
            let with = protected.and_then(|protected| pin(protected, 0));
            format!("clevis obtains the passphrase from {}", with.as_deref().unwrap_or("a server or a TPM"))
        }
        _ => "reserved for another program".to_owned(),
    }
}

/// Describes what a clevis pin requires, from the protected header of its JWE (clevis, src/pins; RFC 7516, section 3). A pin for
/// secret sharing contains further pins.
fn pin(protected: &str, depth: usize) -> Option<String> {
    /// Nobody nests pins deeper.
    const DEEPEST: usize = 4;
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(protected).ok()?).ok()?;
    let clevis = header.get("clevis")?;
    let kind = clevis.get("pin")?.as_str()?;
    let text = |name: &str| Some(printable(clevis.get(kind)?.get(name)?.as_str()?));
    match kind {
        "tang" => Some(format!("the tang server {}", text("url")?)),
        "tpm2" => {
            let bound = text("pcr_ids").map(|pcrs| format!(", bound to PCRs {pcrs}"));
            Some(format!("the TPM of one machine{}", bound.unwrap_or_default()))
        }
        "sss" if depth < DEEPEST => {
            let threshold = clevis.get(kind)?.get("t")?.as_u64()?;
            let parts = clevis.get(kind)?.get("jwe")?.as_array()?.iter();
            let named = |jwe: &Value| pin(jwe.as_str()?.split('.').next()?, depth + 1);
            let parts: Vec<_> = parts.map(|jwe| named(jwe).unwrap_or_else(|| "something else".to_owned())).collect();
            Some(format!("{threshold} of {}: ({})", parts.len(), parts.join("; ")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn protected(header: &Value) -> String {
        URL_SAFE_NO_PAD.encode(header.to_string())
    }

    #[test]
    fn clevis_pins_are_named_with_what_they_take() {
        let tang = protected(&json!({ "clevis": { "pin": "tang", "tang": { "url": "http://tang\n:7500" } } }));
        let tpm2 = protected(&json!({ "clevis": { "pin": "tpm2", "tpm2": { "pcr_ids": "1,7" } } }));
        assert_eq!(pin(&tang, 0).as_deref(), Some("the tang server http://tang\\n:7500"));
        assert_eq!(pin(&tpm2, 0).as_deref(), Some("the TPM of one machine, bound to PCRs 1,7"));
        let parts = [format!("{tang}.a.b.c.d"), tpm2, "?".to_owned()];
        let mut sss = protected(&json!({ "clevis": { "pin": "sss", "sss": { "t": 2, "jwe": parts } } }));
        let text = pin(&sss, 0).expect("it has parts");
        assert!(text.starts_with("2 of 3: (the tang server") && text.ends_with("; something else)"), "{text}");
        for _ in 0..10 {
            sss = protected(&json!({ "clevis": { "pin": "sss", "sss": { "t": 1, "jwe": [sss] } } }));
        }
        assert!(pin(&sss, 0).is_some_and(|text| text.contains("something else")));
        for wrong in
            [json!({}), json!({ "clevis": { "pin": "tang" } }), json!({ "clevis": { "pin": "null", "null": {} } })]
        {
            assert_eq!(pin(&protected(&wrong), 0), None);
        }
        assert_eq!(pin("%", 0), None);
    }
}
