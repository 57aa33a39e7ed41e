//! Recovery keys from `systemd-cryptenroll --recovery-key`. People type them from paper, so they are accepted with or without
//! hyphens and blanks, in upper or lower case. The keyslot uses one canonical form.

use claviger_crypto::Secret;
use serde_json::{Map, Value};

use super::metadata::Metadata;
use crate::error::Result;
use crate::random;

/// The type of the token that marks a keyslot as a recovery key's.
pub const TOKEN: &str = "systemd-recovery";

/// Modhex: letters that lie in the same place on most keyboards (systemd, src/shared/recovery-key.c).
const LETTERS: &[u8] = b"cbdefghijklnrtuv";

/// The number of letters in a key: two for each of its 32 bytes.
const LEN: usize = 64;

/// The number of letters between two hyphens.
const GROUP: usize = 8;

/// Returns the passphrase for a keyslot that a token marks as a recovery key's, if `typed` is a recovery key: in lower case, with
/// hyphens.
pub fn passphrase(metadata: &Metadata, keyslot: u32, typed: &[u8]) -> Option<Secret> {
    let number = Value::String(keyslot.to_string());
    let marks = |token: &Map<String, Value>| {
        let keyslots = token.get("keyslots").and_then(Value::as_array);
        token.get("type").is_some_and(|kind| kind == TOKEN) && keyslots.is_some_and(|all| all.contains(&number))
    };
    if metadata.tokens.values().any(marks) { normal(typed) } else { None }
}

/// Returns a new recovery key in its canonical form.
pub fn fresh() -> Result<Secret> {
    let bytes = random::secret(LEN / 2)?;
    let mut letters = Secret::zeroed(LEN);
    for (pair, byte) in letters.chunks_exact_mut(2).zip(&*bytes) {
        pair.copy_from_slice(&[LETTERS[usize::from(byte >> 4)], LETTERS[usize::from(byte & 15)]]);
    }
    Ok(normal(&letters).expect("all of them are letters of a key"))
}

/// Returns the token for a keyslot with this passphrase, if that is a recovery key in its canonical form.
pub fn token(passphrase: &[u8], keyslot: u32) -> Option<Map<String, Value>> {
    normal(passphrase).filter(|stored| stored.same_as(passphrase))?;
    let keyslots = Value::from(vec![keyslot.to_string()]);
    Some(Map::from_iter([("type".to_owned(), TOKEN.into()), ("keyslots".to_owned(), keyslots)]))
}

/// Returns the canonical form.
fn normal(typed: &[u8]) -> Option<Secret> {
    let mut stored = Secret::zeroed(LEN + LEN / GROUP - 1);
    stored.fill(b'-');
    let mut len = 0;
    for byte in typed.iter().filter(|byte| !b"- ".contains(byte)) {
        let letter = byte.to_ascii_lowercase();
        if len == LEN || !LETTERS.contains(&letter) {
            return None;
        }
        stored[len + len / GROUP] = letter;
        len += 1;
    }
    (len == LEN).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = "lhetbcnb-vlnfljci-jnvrtgfi-gfeblvjn-blgcrrjj-igkllvgb-btfdeuih-ijebigth";

    #[test]
    fn a_recovery_key_is_taken_as_it_is_typed() {
        let plain = STORED.replace('-', "");
        for typed in [STORED, &plain, &STORED.to_uppercase(), &STORED.replace('-', " "), &format!(" {STORED} ")] {
            assert!(normal(typed.as_bytes()).is_some_and(|key| key.same_as(STORED.as_bytes())), "{typed}");
        }
        for wrong in ["", "a passphrase", &plain[1..], &format!("{plain}c"), &STORED.replace('l', "a"), &"-".repeat(71)]
        {
            assert!(normal(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }
}
