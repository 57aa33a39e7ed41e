//! The digest that protects the state of a reencryption: it proves that somebody with the keys began it. Without it, anyone who can
//! write to the header could make a program treat ciphertext as plaintext (CVE-2021-4122). cryptsetup's luks2_reencrypt_digest.c
//! and section 5.4 of the specification define its input.

use claviger_crypto::{Secret, hash};
use serde_json::Value;

use super::keys::VolumeKeys;
use super::state::{FINAL, MOVED, PREVIOUS, wrong};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks2::metadata::{Base64, Digest, Id, Keyslot, Metadata, MetadataSegment, Size};
use crate::formats::luks2::unlock::effort;
use crate::random;

/// The requirement of a reencryption, and the version of its digest (cryptsetup's luks2_json_metadata.c, `requirements_flags`).
const VERSIONS: [(&str, u8); 3] = [("online-reencrypt", 1), ("online-reencrypt-v2", 2), ("online-reencrypt-v3", 3)];

/// The iterations of a new digest. Its input contains full-strength keys, so the minimum suffices (cryptsetup's
/// luks2_digest_pbkdf2.c measures at least 1000).
const ITERATIONS: u32 = 1000;

/// The longest text that goes into the digest, in bytes (`MAX_STR`).
const TEXT: usize = 64;

/// The requirement to set during a reencryption: data that move forward need version 3.
pub(super) fn requirement(moves_forward: bool) -> &'static str {
    VERSIONS[if moves_forward { 2 } else { 1 }].0
}

/// Whether this requirement stands for a reencryption.
pub(super) fn is_requirement(name: &str) -> bool {
    VERSIONS.iter().any(|(known, _)| *known == name)
}

/// Verifies the digest.
///
/// # Errors
/// `Malformed` if it does not match; `Unsupported` for reencryptions without one, which cryptsetup before 2.4.3 created;
/// `Cancelled`; that of [`Unlock::may_take`].
pub(super) fn check(metadata: &Metadata, keyslot: u32, keys: &VolumeKeys, with: &Unlock<'_>) -> Result<()> {
    let version = version(metadata)?;
    if version < 2 {
        return Err(Error::unsupported("a reencryption that is not protected against tampering").hint(
            "It was started by cryptsetup before 2.4.3. Finish it with `cryptsetup repair` and `cryptsetup \
                 reencrypt`.",
        ));
    }
    let digest = metadata.digests.values().find(|digest| digest.keyslots.contains(&Id(keyslot)));
    let digest = digest.ok_or_else(|| wrong("digests", "the state of the reencryption has none"))?;
    with.ask(effort(digest))?;
    let mut sum = Secret::zeroed(digest.digest.0.len());
    derive(digest, &material(metadata, keyslot, keys, version)?, &mut sum, &|| !with.cancelled())?;
    if !sum.is_empty() && sum.same_as(&digest.digest.0) {
        return Ok(());
    }
    Err(wrong("digests", "the digest of the reencryption is wrong: its state was tampered with")
        .hint("Nothing was changed. Restore a header backup, or use the program that changed the header."))
}

/// Replaces the digest in the metadata with a new one.
///
/// # Errors
/// `Malformed`; `Io` if the system has no random bytes.
pub(super) fn seal(metadata: &mut Metadata, keyslot: u32, keys: &VolumeKeys) -> Result<()> {
    let mut salt = vec![0; 32];
    random::fill(&mut salt)?;
    let mut digest = Digest {
        kind: "pbkdf2".into(),
        keyslots: vec![Id(keyslot)],
        segments: Vec::new(),
        salt: Base64(salt),
        digest: Base64::default(),
        hash: Some("sha256".into()),
        iterations: Some(ITERATIONS),
        other: serde_json::Map::new(),
    };
    let mut sum = vec![0; 32];
    derive(&digest, &material(metadata, keyslot, keys, version(metadata)?)?, &mut sum, &|| true)?;
    digest.digest = Base64(sum);
    metadata.digests.retain(|_, digest| !digest.keyslots.contains(&Id(keyslot)));
    let number = (0..).find(|n| !metadata.digests.contains_key(n)).unwrap_or_default();
    metadata.digests.insert(number, digest);
    Ok(())
}

fn version(metadata: &Metadata) -> Result<u8> {
    let required = metadata.config.requirements.as_ref().map_or(&[][..], |r| &r.mandatory);
    let version = required.iter().find_map(|name| VERSIONS.iter().find(|(known, _)| known == name));
    version.map(|(_, version)| *version).ok_or_else(|| wrong("requirements", "no reencryption is in progress"))
}

fn derive(digest: &Digest, material: &[u8], out: &mut [u8], go_on: &dyn Fn() -> bool) -> Result<()> {
    if digest.kind != "pbkdf2" {
        return Err(Error::unsupported(format!("digests of the kind {}", digest.kind.escape_debug())));
    }
    let hash = digest.hash.as_deref().unwrap_or_default();
    let hash = hash::by_name(hash).ok_or_else(|| Error::unsupported(format!("digests by {}", hash.escape_debug())))?;
    let iterations =
        digest.iterations.filter(|i| *i > 0).ok_or_else(|| wrong("digests", "a digest has no iterations"))?;
    if out.len() > hash.size {
        return Err(wrong("digests", format!("one has {} bytes", out.len())));
    }
    match hash.pbkdf2(material, &digest.salt.0, iterations, out, go_on) {
        true => Ok(()),
        false => Err(ErrorKind::Cancelled.into()),
    }
}

/// The digest's input: the version, the keys, the keyslot, and the segments before and after the reencryption.
fn material(metadata: &Metadata, keyslot: u32, keys: &VolumeKeys, version: u8) -> Result<Secret> {
    let slot =
        metadata.keyslots.get(&keyslot).ok_or_else(|| wrong("keyslots", "that of the reencryption is missing"))?;
    let mut state = Vec::new();
    put_keyslot(&mut state, slot)?;
    for flag in [PREVIOUS, FINAL, MOVED] {
        let segment = metadata.segments.values().find(|segment| segment.flags.iter().any(|f| f == flag));
        match segment {
            Some(segment) => put_segment(&mut state, segment)?,
            None if flag == MOVED => {}
            None => return Err(wrong("segments", format!("none has the flag {flag}"))),
        }
    }
    Ok(Secret::concat(&[&[0x76, 0x30 + version], keys.previous(), keys.last_if_other(), &state]))
}

fn put_keyslot(out: &mut Vec<u8>, slot: &Keyslot) -> Result<()> {
    let text = |out: &mut Vec<u8>, value: Option<&Value>| put_text(out, value.and_then(Value::as_str));
    text(out, slot.other.get("mode"))?;
    text(out, slot.other.get("direction"))?;
    put_text(out, Some(&slot.area.kind))?;
    out.extend(slot.area.offset.0.to_be_bytes());
    out.extend(slot.area.size.0.to_be_bytes());
    if slot.area.kind.ends_with("checksum") {
        text(out, slot.area.other.get("hash"))?;
        let block = slot.area.other.get("sector_size").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        out.extend(block.ok_or_else(|| wrong("sector_size", "the checksums have no blocks"))?.to_be_bytes());
    }
    if slot.area.kind.starts_with("datashift") {
        let shift = slot.area.other.get("shift_size").and_then(Value::as_str).and_then(|text| text.parse::<u64>().ok());
        out.extend(shift.ok_or_else(|| wrong("shift_size", "it is missing"))?.to_be_bytes());
    }
    Ok(())
}

fn put_segment(out: &mut Vec<u8>, segment: &MetadataSegment) -> Result<()> {
    put_text(out, Some(&segment.kind))?;
    out.extend(segment.offset.0.to_be_bytes());
    match segment.size {
        Size::Dynamic => out.extend(b"dynamic"),
        Size::Fixed(size) => out.extend(size.to_be_bytes()),
    }
    if segment.kind == "crypt" {
        let (Some(tweak), Some(sector)) = (segment.iv_tweak, segment.sector_size) else {
            return Err(wrong("segments", "one does not say how it is encrypted"));
        };
        out.extend(tweak.0.to_be_bytes());
        put_text(out, segment.encryption.as_deref())?;
        out.extend(sector.to_be_bytes());
    }
    Ok(())
}

fn put_text(out: &mut Vec<u8>, text: Option<&str>) -> Result<()> {
    let text = text.filter(|text| (1..=TEXT).contains(&text.len()));
    out.extend(text.ok_or_else(|| wrong("keyslots", "the state of the reencryption is not text"))?.bytes());
    Ok(())
}
