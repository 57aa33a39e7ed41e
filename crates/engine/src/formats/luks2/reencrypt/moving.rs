//! The record of a header that moves from the front of the data to a store of its own. It is written to that store before anything
//! is copied over the header in front. After an interruption it shows that the store holds no mere header backup, and which data
//! belong to it.

use std::ops::Range;

use claviger_crypto::hash::SHA256;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::formats::luks2::metadata::Metadata;
use crate::formats::luks2::slots;
use crate::hex;
use crate::store::Store;

/// The type of the token that stores the record: other programs preserve unknown tokens.
const KIND: &str = "claviger-moving-header";

/// How many bytes are read at a time.
const PIECE: u64 = 1 << 20;

/// The record in the metadata, if there is one.
pub(in crate::formats::luks2) fn record(metadata: &Metadata) -> Option<&Map<String, Value>> {
    metadata.tokens.values().find(|token| token.get("type") == Some(&KIND.into()))
}

/// Adds a record to the metadata of a volume: this part of `data` is moved to the front.
///
/// # Errors
/// `Misuse` if there are too many tokens; `Io`.
pub(super) fn put(metadata: &mut Metadata, moved: Range<u64>, data: &dyn Store) -> Result<()> {
    let number = slots::free_number(&metadata.tokens);
    let number = number.ok_or_else(|| {
        Error::misuse("all token numbers are in use, but moving the header needs one")
            .hint("Remove a token that is no longer needed.")
    })?;
    let (from, len) = (moved.start, moved.end - moved.start);
    let sum = hex::digits(&digest(data, from, len)?);
    let record =
        json!({"type": KIND, "keyslots": [], "from": from.to_string(), "size": len.to_string(), "sha256": sum});
    if let Value::Object(record) = record {
        metadata.tokens.insert(number, record);
    }
    Ok(())
}

/// Removes the record from the metadata.
pub(super) fn take_out(metadata: &mut Metadata) {
    metadata.tokens.retain(|_, token| token.get("type") != Some(&KIND.into()));
}

/// Whether the record was made for these data: the part that is copied over the header is still in its old place.
///
/// # Errors
/// `Io`.
pub(super) fn tells_of(record: &Map<String, Value>, data: &dyn Store) -> Result<bool> {
    let (Some(from), Some(len)) = (number(record, "from"), len(record)) else { return Ok(false) };
    if len == 0 || len > first_part(data, from) {
        return Ok(false);
    }
    Ok(record.get("sha256").and_then(Value::as_str) == Some(&hex::digits(&digest(data, from, len)?)))
}

/// Returns how many bytes are copied to the front.
pub(super) fn len(record: &Map<String, Value>) -> Option<u64> {
    number(record, "size")
}

fn number(record: &Map<String, Value>, name: &str) -> Option<u64> {
    record.get(name)?.as_str()?.parse().ok()
}

/// Returns how many bytes after the header can be copied over it, if the data begin at the offset `from`.
pub(super) fn first_part(data: &dyn Store, from: u64) -> u64 {
    data.len().saturating_sub(from).min(from)
}

/// Hashes a part of the data as stored, which is ciphertext.
fn digest(data: &dyn Store, from: u64, len: u64) -> Result<[u8; 32]> {
    let mut pieces = Vec::new();
    for at in (0..len).step_by(PIECE as usize) {
        let mut bytes = vec![0; (len - at).min(PIECE) as usize];
        data.read_at(from + at, &mut bytes)?;
        let mut sum = [0; 32];
        SHA256.digest(&[&bytes], &mut sum);
        pieces.extend_from_slice(&sum);
    }
    let mut sum = [0; 32];
    SHA256.digest(&[&pieces], &mut sum);
    Ok(sum)
}
