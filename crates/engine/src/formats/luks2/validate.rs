//! The rules for the metadata of a LUKS2 header (LUKS2 On-Disk Format Specification 1.1.1, section 3; cryptsetup's
//! luks2_json_metadata.c, `LUKS2_hdr_validate`, and luks2_keyslot.c, `LUKS2_keyslots_validate`). As in cryptsetup, any violation
//! makes the whole copy unusable. Parameters that affect only one keyslot are checked when that keyslot is tried.

use std::collections::BTreeSet;

use serde_json::Value;

use super::binary;
use super::metadata::{Config, Digest, Id, Keyslot, Metadata, MetadataSegment, Size};
use crate::error::{Error, ErrorKind, Result};

/// The limit for numbers of keyslots, tokens, digests and segments (`LUKS2_KEYSLOTS_MAX` and similar constants in luks2.h).
pub const NUMBERS: u32 = 32;

/// The largest size of the keyslots area, in bytes (`LUKS2_MAX_KEYSLOTS_SIZE`).
pub const KEYSLOTS_SIZE: u64 = 128 << 20;

/// The multiple for offsets and sizes of segments, in bytes.
const SECTOR: u64 = 512;

/// Sizes of encryption sectors, in bytes (dm-crypt's option `sector_size`).
const SECTOR_SIZES: [u32; 4] = [512, 1024, 2048, 4096];

/// Requirements during a reencryption (`requirements_flags` in luks2_json_metadata.c).
const REENCRYPTION: [&str; 3] = ["online-reencrypt", "online-reencrypt-v2", "online-reencrypt-v3"];

/// Validates metadata from the JSON area at the offset `at`, in a header whose copies have `hdr_size` bytes each.
///
/// # Errors
/// `Malformed`.
pub fn metadata(metadata: &Metadata, hdr_size: u64, at: u64) -> Result<()> {
    let checked = config(&metadata.config, hdr_size)
        .and_then(|()| numbers(metadata))
        .and_then(|()| tokens(metadata))
        .and_then(|()| digests(metadata))
        .and_then(|()| segments(metadata, hdr_size))
        .and_then(|()| keyslots(metadata, hdr_size));
    checked.map_err(|Wrong(field, what)| {
        // Metadata with unknown requirements may follow unknown rules.
        unmet(metadata).unwrap_or_else(|| ErrorKind::Malformed { field, offset: at, what }.into())
    })
}

/// Returns the first requirement of the volume that this program does not support (specification, section 3.5, `requirements`).
/// Reencryption is a requirement too, and is supported.
pub fn unmet(metadata: &Metadata) -> Option<Error> {
    let known = |name: &&String| REENCRYPTION.contains(&name.as_str());
    let name = requirements(metadata).iter().find(|name| !known(name))?;
    Some(match name.as_str() {
        "offline-reencrypt" => Error::unsupported("a volume being reencrypted offline by cryptsetup-reencrypt")
            .hint("Finish it with that program and the log file it left."),
        "opal" => Error::unsupported("data encrypted by the drive itself (OPAL)")
            .hint("Only that drive can decrypt them: use cryptsetup 2.7 or newer on its machine."),
        "inline-hw-tags" => Error::unsupported("integrity tags stored by the drive beside its sectors"),
        other => unknown("the requirement", other)
            .hint("A newer program created or changed the volume and asks older ones not to touch it."),
    })
}

/// Whether a segment is stored for the end of a reencryption and not a part of the volume (specification, section 3.3).
pub fn is_backup(segment: &MetadataSegment) -> bool {
    segment.flags.iter().any(|flag| flag.starts_with("backup-"))
}

/// Where headers and keyslots end, in bytes.
pub fn header_end(metadata: &Metadata, hdr_size: u64) -> u64 {
    hdr_size.saturating_mul(2).saturating_add(metadata.config.keyslots_size.0)
}

/// Returns the digests of a segment or keyslot.
pub fn digests_of(number: u32, metadata: &Metadata, of: impl Fn(&Digest) -> &[Id]) -> Vec<u32> {
    let digests = metadata.digests.iter().filter(|(_, digest)| of(digest).contains(&Id(number)));
    digests.map(|(digest, _)| *digest).collect()
}

/// Whether a reencryption has begun and has not ended.
pub fn is_being_reencrypted(metadata: &Metadata) -> bool {
    requirements(metadata).iter().any(|name| REENCRYPTION.contains(&name.as_str()))
}

/// The requirements that a program must know.
pub fn requirements(metadata: &Metadata) -> &[String] {
    metadata.config.requirements.as_ref().map_or(&[], |r| &r.mandatory)
}

/// A member of the metadata, and the error in it.
struct Wrong(&'static str, String);

type Checked = std::result::Result<(), Wrong>;

fn wrong(field: &'static str, what: impl Into<String>) -> Checked {
    Err(Wrong(field, what.into()))
}

/// Checks that a name is not empty (`json_contains_string`).
fn named(field: &'static str, of: impl Fn() -> String, member: &str, text: &str) -> Checked {
    if text.is_empty() { wrong(field, format!("the {member} of {} is empty", of())) } else { Ok(()) }
}

fn config(config: &Config, hdr_size: u64) -> Checked {
    let room = hdr_size - binary::LEN as u64;
    if config.json_size.0 != room {
        return wrong("json_size", format!("it claims {} bytes, but the JSON area has {room}", config.json_size.0));
    }
    let size = config.keyslots_size.0;
    if size > KEYSLOTS_SIZE || !size.is_multiple_of(4096) {
        return wrong("keyslots_size", format!("the keyslots area cannot have {size} bytes"));
    }
    Ok(())
}

fn numbers(metadata: &Metadata) -> Checked {
    let Metadata { keyslots, tokens, segments, digests, config: _, other: _ } = metadata;
    let largest = |field, number: Option<&u32>| match number {
        Some(number) if *number >= NUMBERS => {
            wrong(field, format!("{number} is not a valid number, 31 is the largest"))
        }
        _ => Ok(()),
    };
    largest("keyslots", keyslots.keys().next_back())?;
    largest("tokens", tokens.keys().next_back())?;
    largest("segments", segments.keys().next_back())?;
    largest("digests", digests.keys().next_back())
}

fn tokens(metadata: &Metadata) -> Checked {
    for (number, token) in &metadata.tokens {
        if !matches!(token.get("type"), Some(Value::String(kind)) if !kind.is_empty()) {
            return wrong("tokens", format!("token {number} has no type"));
        }
        let Some(Value::Array(keyslots)) = token.get("keyslots") else {
            return wrong("tokens", format!("token {number} has no list of keyslots"));
        };
        let known = |id: &Value| {
            let id: Option<Id> = serde_json::from_value(id.clone()).ok();
            id.is_some_and(|id| metadata.keyslots.contains_key(&id.0))
        };
        if let Some(unknown) = keyslots.iter().find(|id| !known(id)) {
            return wrong("tokens", format!("token {number} is for keyslot {unknown}, which does not exist"));
        }
    }
    Ok(())
}

fn digests(metadata: &Metadata) -> Checked {
    for (number, digest) in &metadata.digests {
        named("digests", || format!("digest {number}"), "type", &digest.kind)?;
        if let Some(Id(id)) = digest.keyslots.iter().find(|id| !metadata.keyslots.contains_key(&id.0)) {
            return wrong("digests", format!("digest {number} is for keyslot {id}, which does not exist"));
        }
        if let Some(Id(id)) = digest.segments.iter().find(|id| !metadata.segments.contains_key(&id.0)) {
            return wrong("digests", format!("digest {number} is for segment {id}, which does not exist"));
        }
    }
    Ok(())
}

fn segments(metadata: &Metadata, hdr_size: u64) -> Checked {
    for (number, segment) in &metadata.segments {
        one_segment(*number, segment, metadata)?;
    }
    let parts = regular_segments(metadata)?;
    let header_end = header_end(metadata, hdr_size);
    let reencrypted = is_being_reencrypted(metadata);
    for (place, (number, one)) in parts.iter().enumerate() {
        if one.size == Size::Dynamic && place + 1 != parts.len() {
            return wrong("segments", format!("segment {number} has a dynamic size, which only the last one may have"));
        }
        // A single segment may: then it is just too long for any store.
        if let Size::Fixed(size) = one.size
            && one.offset.0.checked_add(size).is_none()
            && parts.len() > 1
        {
            let what = format!("segment {number} of {size} bytes at byte {} has no valid end", one.offset.0);
            return wrong("segments", what);
        }
        // Data at offset 0 are in another store: the header is detached. During a reencryption, the first segment in place can be a
        // later part of the volume; `reencrypt` checks that.
        if !reencrypted && (1..header_end).contains(&one.offset.0) {
            let what =
                format!("segment {number} begins at byte {}, inside the header of {header_end} bytes", one.offset.0);
            return wrong("segments", what);
        }
        if let Some((other, _)) = parts[..place].iter().find(|(_, other)| overlap(one, other)) {
            return wrong("segments", format!("segments {other} and {number} overlap"));
        }
    }
    Ok(())
}

/// Returns the segments that make up the volume: they come before all backup segments and are numbered from 0 without gaps.
fn regular_segments(metadata: &Metadata) -> std::result::Result<Vec<(u32, &MetadataSegment)>, Wrong> {
    let parts: Vec<_> = metadata.segments.iter().map(|(n, s)| (*n, s)).take_while(|(_, s)| !is_backup(s)).collect();
    if parts.is_empty() {
        return Err(Wrong("segments", "there is no segment".into()));
    }
    if let Some((number, _)) = (0..).zip(metadata.segments.keys()).find(|(expected, number)| expected != *number) {
        return Err(Wrong("segments", format!("segment {number} is missing, but later ones exist")));
    }
    let behind = metadata.segments.values().skip(parts.len());
    if behind.into_iter().any(|segment| !is_backup(segment)) {
        return Err(Wrong("segments", "a segment's number follows that of a backup".into()));
    }
    Ok(parts)
}

fn one_segment(number: u32, segment: &MetadataSegment, metadata: &Metadata) -> Checked {
    let offset = segment.offset.0;
    if !offset.is_multiple_of(SECTOR) {
        return wrong("segments", format!("segment {number} begins at byte {offset}, inside a sector"));
    }
    if let Size::Fixed(size) = segment.size
        && (size == 0 || !size.is_multiple_of(SECTOR))
    {
        return wrong("segments", format!("segment {number} has {size} bytes, which is not a whole number of sectors"));
    }
    named("segments", || format!("segment {number}"), "type", &segment.kind)?;
    if segment.kind != "crypt" {
        return Ok(());
    }
    let (Some(_), Some(cipher), Some(sector_size)) = (segment.iv_tweak, &segment.encryption, segment.sector_size)
    else {
        let what = "it needs iv_tweak, encryption and sector_size";
        return wrong("segments", format!("segment {number} does not say how it is encrypted: {what}"));
    };
    named("segments", || format!("segment {number}"), "encryption", cipher)?;
    if !SECTOR_SIZES.contains(&sector_size) {
        return wrong("sector_size", format!("segment {number} has sectors of {sector_size} bytes"));
    }
    if let Size::Fixed(size) = segment.size
        && !size.is_multiple_of(u64::from(sector_size))
    {
        return wrong(
            "segments",
            format!(
                "segment {number} has {size} bytes, which is not a whole number of \
             {sector_size}-byte sectors"
            ),
        );
    }
    if digests_of(number, metadata, |digest| &digest.segments).is_empty() {
        return wrong("digests", format!("there is none for segment {number}"));
    }
    Ok(())
}

fn overlap(one: &MetadataSegment, other: &MetadataSegment) -> bool {
    let end = |s: &MetadataSegment| match s.size {
        Size::Dynamic => u64::MAX,
        Size::Fixed(size) => s.offset.0.saturating_add(size),
    };
    one.offset.0 < end(other) && other.offset.0 < end(one)
}

fn keyslots(metadata: &Metadata, hdr_size: u64) -> Checked {
    let mut areas = BTreeSet::new();
    for (number, keyslot) in &metadata.keyslots {
        let (start, size) = (keyslot.area.offset.0, keyslot.area.size.0);
        let (first, last) = (2 * hdr_size, header_end(metadata, hdr_size));
        let end = start.checked_add(size).filter(|end| size > 0 && start >= first && *end <= last);
        let Some(end) = end else {
            let what =
                format!("that of keyslot {number}, {size} bytes at byte {start}, is not between {first} and {last}");
            return wrong("area", what);
        };
        areas.insert((start, end, *number));
        one_keyslot(*number, keyslot, metadata)?;
    }
    for ((_, end, one), (start, _, other)) in areas.iter().zip(areas.iter().skip(1)) {
        if start < end {
            return wrong("area", format!("those of keyslots {one} and {other} overlap"));
        }
    }
    let reencryptions = metadata.keyslots.values().filter(|k| k.kind == "reencrypt").count();
    let required = is_being_reencrypted(metadata);
    match (reencryptions, required) {
        (0, false) | (1, true) => Ok(()),
        (0, true) => wrong("keyslots", "a reencryption is in progress, but no keyslot records its state"),
        (1, false) => wrong("requirements", "a keyslot records a reencryption, but none is in progress"),
        _ => wrong("keyslots", "more than one keyslot records a reencryption"),
    }
}

fn one_keyslot(number: u32, keyslot: &Keyslot, metadata: &Metadata) -> Checked {
    if let Some(priority @ 3..) = keyslot.priority {
        return wrong("priority", format!("that of keyslot {number} is {priority}, and 2 is the highest"));
    }
    let named = |field, member, text: &str| named(field, || format!("keyslot {number}"), member, text);
    named("keyslots", "type", &keyslot.kind)?;
    if keyslot.kind != "luks2" {
        return Ok(());
    }
    let Some(kdf) = &keyslot.kdf else {
        return wrong("kdf", format!("keyslot {number} has none"));
    };
    let complete = match kdf.kind.as_str() {
        "pbkdf2" => kdf.hash.is_some() && kdf.iterations.is_some(),
        "argon2i" | "argon2id" => kdf.time.is_some() && kdf.memory.is_some() && kdf.cpus.is_some(),
        _ => true,
    };
    if !complete {
        return wrong("kdf", format!("that of keyslot {number}, {}, lacks parameters", printable(&kdf.kind)));
    }
    named("kdf", "type", &kdf.kind)?;
    named("kdf", "hash", kdf.hash.as_deref().unwrap_or("none"))?;
    if kdf.salt.0.is_empty() {
        return wrong("kdf", format!("the salt of keyslot {number} is empty"));
    }
    match &keyslot.af {
        Some(af) if af.kind == "luks1" && af.hash.is_some() && af.stripes.is_some() => {}
        _ => return wrong("af", format!("keyslot {number} has an unknown anti-forensic splitter")),
    }
    let area = &keyslot.area;
    if area.kind != "raw" || area.encryption.is_none() || area.key_size.is_none() {
        return wrong("area", format!("that of keyslot {number} does not say how it is encrypted"));
    }
    named("af", "hash", keyslot.af.as_ref().and_then(|af| af.hash.as_deref()).unwrap_or_default())?;
    named("area", "encryption", area.encryption.as_deref().unwrap_or_default())?;
    match digests_of(number, metadata, |digest| &digest.keyslots)[..] {
        [_] => Ok(()),
        [] => wrong("digests", format!("there is none for keyslot {number}")),
        _ => wrong("digests", format!("there are several for keyslot {number}")),
    }
}

/// Makes text from a header printable.
pub fn printable(text: &str) -> String {
    /// No program uses a longer name.
    const MOST: usize = 64;
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

/// The error for a feature in the header that this program does not support.
pub fn unknown(what: &str, name: &str) -> Error {
    Error::unsupported(format!("{what} \"{}\"", printable(name)))
}
