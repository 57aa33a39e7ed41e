//! Tokens: what other programs keep in the header to find a passphrase. They are passed on as they are.

use serde_json::{Map, Value};

use super::change::Change;
use super::metadata::Metadata;
use super::validate::NUMBERS;
use super::{keyslots, slots};
use crate::error::{Error, Result};
use crate::formats::{Prepared, TokenChange};
use crate::store::Store;

pub(super) fn change(store: &dyn Store, wanted: TokenChange<'_>) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    let metadata = &mut change.metadata;
    match wanted {
        TokenChange::Import { token, at, replace } => import(metadata, token, at, replace)?,
        TokenChange::Remove(number) => {
            at(metadata, number)?;
            metadata.tokens.remove(&number);
        }
        TokenChange::Assign { token, keyslot, assigned } => assign(metadata, token, keyslot, assigned)?,
    }
    change.prepared()
}

/// A token is an object with a type and the keyslots that it is for (LUKS2 On-Disk Format Specification, section 3.6).
fn import(metadata: &mut Metadata, token: &Value, at: Option<u32>, replace: bool) -> Result<()> {
    let token = checked(metadata, token)?;
    let number = match at {
        Some(number) if number >= NUMBERS => {
            return Err(Error::misuse(format!("tokens have the numbers 0 to {}", NUMBERS - 1)));
        }
        Some(number) if metadata.tokens.contains_key(&number) && !replace => {
            return Err(Error::misuse(format!("there is a token {number} already"))
                .hint("Choose another number, or say that it is to be replaced."));
        }
        Some(number) => number,
        None => {
            let free = slots::free_number(&metadata.tokens);
            free.ok_or_else(|| Error::misuse(format!("there are {} tokens, which is the most", NUMBERS)))?
        }
    };
    metadata.tokens.insert(number, token);
    Ok(())
}

fn checked(metadata: &Metadata, token: &Value) -> Result<Map<String, Value>> {
    let no_token = |why: &str| Error::misuse(format!("no token: {why}"));
    let token = token.as_object().ok_or_else(|| no_token("it is no JSON object"))?;
    if token.get("type").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(no_token("it has no type"));
    }
    let keyslots = token.get("keyslots").and_then(Value::as_array);
    for keyslot in keyslots.ok_or_else(|| no_token("it has no array of keyslots"))? {
        let number = keyslot.as_str().and_then(|text| text.parse().ok());
        if number.is_none_or(|number: u32| !metadata.keyslots.contains_key(&number)) {
            return Err(no_token(&format!("there is no keyslot {keyslot}, which it is for")));
        }
    }
    Ok(token.clone())
}

fn assign(metadata: &mut Metadata, token: u32, keyslot: u32, assigned: bool) -> Result<()> {
    keyslots::at(metadata, keyslot)?;
    let id = Value::String(keyslot.to_string());
    let token = at(metadata, token)?;
    let Some(Value::Array(keyslots)) = token.get_mut("keyslots") else {
        return Err(Error::misuse("this token has no array of keyslots"));
    };
    keyslots.retain(|there| *there != id);
    if assigned {
        keyslots.push(id);
    }
    Ok(())
}

fn at(metadata: &mut Metadata, number: u32) -> Result<&mut Map<String, Value>> {
    metadata.tokens.get_mut(&number).ok_or_else(|| Error::misuse(format!("there is no token {number}")))
}
