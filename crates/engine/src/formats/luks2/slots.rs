//! Keyslots in the metadata: which numbers and parts of the keyslots area are free, and what refers to a keyslot.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::metadata::{Digest, Id, Metadata};
use super::recovery;
use super::validate::NUMBERS;
use crate::error::{Error, Result};
use crate::formats::unencrypted;

/// How many stripes a key is split into (cryptsetup's luks.h, `LUKS_STRIPES`).
pub(super) const STRIPES: u32 = 4000;

/// The alignment of keyslot areas, in bytes.
pub(super) const BLOCK: u64 = 4096;

/// The size of a keyslot's area for a key of this size, in bytes (cryptsetup's luks2_json_format.c, `get_area_size`).
pub(super) fn area_len(key_len: usize) -> u64 {
    (key_len as u64 * u64::from(STRIPES)).next_multiple_of(BLOCK)
}

/// Returns the data's cipher for a keyslot's area, if cryptsetup can open such areas. It does so in user space, where it supports
/// only these initialisation vectors, and none with a redundant option, such as Tomb's `plain64:sha256` (2.6.1,
/// lib/crypto_backend/crypto_storage.c, `crypt_sector_iv_init`).
pub(super) fn area_cipher(specification: &str) -> Option<String> {
    let (cipher, mode) = specification.split_once('-')?;
    if cipher == "capi" || cipher.contains(':') || unencrypted::is_null(specification) {
        return None;
    }
    let Some((mode, iv)) = mode.split_once('-') else { return Some(specification.to_owned()) };
    match iv.split_once(':') {
        Some(("essiv", _)) => Some(specification.to_owned()),
        split => {
            let iv = split.map_or(iv, |(iv, _)| iv);
            let known = ["null", "plain", "plain64", "plain64be", "benbi", "eboiv"].contains(&iv);
            known.then(|| format!("{cipher}-{mode}-{iv}"))
        }
    }
}

/// The first free number of a keyslot, token or digest.
pub(super) fn free_number<T>(taken: &BTreeMap<u32, T>) -> Option<u32> {
    (0..NUMBERS).find(|number| !taken.contains_key(number))
}

/// Returns the offset of `len` free bytes in the keyslots area, from the beginning of the header. `hdr_size` is the size of one
/// copy of the header; the area begins after the second copy.
///
/// # Errors
/// `Misuse` if there is no such place.
pub(super) fn free_area(metadata: &Metadata, hdr_size: u64, len: u64) -> Result<u64> {
    let begin = 2 * hdr_size;
    let end = begin.saturating_add(metadata.config.keyslots_size.0);
    let mut taken: Vec<_> = metadata.keyslots.values().map(|slot| (slot.area.offset.0, slot.area.size.0)).collect();
    taken.sort_unstable();
    let mut free = begin;
    for (offset, size) in taken {
        if free.checked_add(len).is_some_and(|after| after <= offset) {
            break;
        }
        free = next_block(free.max(offset.saturating_add(size)));
    }
    if free.checked_add(len).is_some_and(|after| after <= end) {
        return Ok(free);
    }
    let what = format!("the keyslots area has no room for {len} more bytes");
    Err(Error::misuse(what).hint("Nothing was changed. Remove a keyslot that is no longer needed."))
}

/// Returns where the next block begins, or `u64::MAX` if there is none.
pub(super) fn next_block(at: u64) -> u64 {
    at.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

/// The digest of the data's key: that of the first segment with a digest.
pub(super) fn data_digest(metadata: &Metadata) -> Option<(u32, &Digest)> {
    let of = |segment: &u32| metadata.digests.iter().find(|(_, d)| d.segments.contains(&Id(*segment)));
    metadata.segments.keys().find_map(of).map(|(number, digest)| (*number, digest))
}

/// The keyslots that open the data.
pub(super) fn of_data(metadata: &Metadata) -> BTreeSet<u32> {
    data_digest(metadata).map(|(_, digest)| digest.keyslots.iter().map(|id| id.0).collect()).unwrap_or_default()
}

/// Removes the keyslot and all references to it. Tokens stay; digests without any reference are removed.
pub(super) fn take_out(metadata: &mut Metadata, keyslot: u32) {
    metadata.keyslots.remove(&keyslot);
    for digest in metadata.digests.values_mut() {
        digest.keyslots.retain(|id| id.0 != keyslot);
    }
    metadata.digests.retain(|_, digest| !digest.keyslots.is_empty() || !digest.segments.is_empty());
    for token in metadata.tokens.values_mut() {
        if let Some(Value::Array(keyslots)) = token.get_mut("keyslots") {
            keyslots.retain(|id| id.as_str() != Some(&keyslot.to_string()));
        }
    }
    // Other tokens may hold what their owner still needs.
    recovery::drop_empty_marks(metadata);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(areas: &[(u64, u64)]) -> Metadata {
        let slot = |(number, (offset, size)): (usize, &(u64, u64))| {
            let area = serde_json::json!({"type": "raw", "offset": offset.to_string(), "size": size.to_string()});
            (number.to_string(), serde_json::json!({"type": "luks2", "key_size": 64, "area": area}))
        };
        let keyslots: serde_json::Map<_, _> = areas.iter().enumerate().map(slot).collect();
        serde_json::from_value(serde_json::json!({
            "keyslots": keyslots,
            "tokens": {"0": {"type": "x", "keyslots": ["0", "1"]}, "1": {"type": "y", "keyslots": []}},
            "segments": {"0": {"type": "crypt", "offset": "0", "size": "dynamic"}},
            "digests": {
                "0": {"type": "pbkdf2", "keyslots": ["0", "2"], "segments": ["0"], "salt": "", "digest": ""},
                "1": {"type": "pbkdf2", "keyslots": ["1"], "segments": [], "salt": "", "digest": ""},
            },
            "config": {"json_size": "12288", "keyslots_size": "65536"},
        }))
        .expect("metadata")
    }

    #[test]
    fn areas_are_put_where_nothing_is() {
        let begin = 32768;
        let at = |areas: &[(u64, u64)], len| free_area(&metadata(areas), begin / 2, len).ok();
        assert_eq!(at(&[], 4096), Some(begin));
        assert_eq!(at(&[], 65536), Some(begin));
        assert_eq!(at(&[], 65537), None);
        assert_eq!(at(&[(begin, 4096)], 4096), Some(begin + 4096));
        assert_eq!(at(&[(begin + 8192, 4096), (begin, 4096)], 4096), Some(begin + 4096), "a gap between two");
        assert_eq!(at(&[(begin + 8192, 4096), (begin, 4096)], 8192), Some(begin + 12288));
        assert_eq!(at(&[(begin + 4096, 4096)], 4096), Some(begin), "before the first");
        assert_eq!(at(&[(begin, 100)], 4096), Some(begin + 4096), "in whole blocks");
        assert_eq!(at(&[(begin, u64::MAX)], 4096), None);
        assert_eq!(at(&[], u64::MAX), None);
        assert_eq!(area_len(64), 258_048);
    }

    #[test]
    fn what_is_taken_out_nobody_refers_to() {
        let mut metadata = metadata(&[(32768, 4096), (36864, 4096), (40960, 4096)]);
        assert_eq!(of_data(&metadata), BTreeSet::from([0, 2]));
        take_out(&mut metadata, 1);
        assert_eq!(metadata.digests.keys().collect::<Vec<_>>(), [&0], "a digest without keyslots and segments goes");
        assert_eq!(metadata.tokens[&0]["keyslots"], serde_json::json!(["0"]));
        take_out(&mut metadata, 0);
        take_out(&mut metadata, 2);
        assert!(metadata.digests[&0].keyslots.is_empty(), "that of the data stays");
        assert_eq!(metadata.tokens.len(), 2);
        assert_eq!(free_number(&metadata.keyslots), Some(0));
        assert_eq!(free_number(&metadata.tokens), Some(2));
    }
}
