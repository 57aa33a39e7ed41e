//! Tokens, in which other programs store what they need to find a passphrase. They are passed on unchanged. Passphrases that
//! systemd sealed for a smart card can be released here, too.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::change::Change;
use super::describe::meaning;
use super::metadata::Metadata;
use super::validate::NUMBERS;
use super::{keyslots, recovery, slots};
use crate::error::{Error, Result};
use crate::formats::{Prepared, Releaser, Sealed, TokenChange};
use crate::store::Store;
use crate::{clevis, fido2, tpm2};

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
            return Err(Error::misuse(format!("tokens are numbered 0 to {}", NUMBERS - 1)));
        }
        Some(number) if metadata.tokens.contains_key(&number) && !replace => {
            return Err(Error::misuse(format!("there is already a token {number}"))
                .hint("Choose another number, or replace it explicitly."));
        }
        Some(number) => number,
        None => {
            let free = slots::free_number(&metadata.tokens);
            free.ok_or_else(|| Error::misuse(format!("there are already {} tokens, the maximum", NUMBERS)))?
        }
    };
    metadata.tokens.insert(number, token);
    Ok(())
}

fn checked(metadata: &Metadata, token: &Value) -> Result<Map<String, Value>> {
    let no_token = |why: &str| Error::misuse(format!("not a token: {why}"));
    let token = token.as_object().ok_or_else(|| no_token("it is not a JSON object"))?;
    if token.get("type").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(no_token("it has no type"));
    }
    let keyslots = token.get("keyslots").and_then(Value::as_array);
    for keyslot in keyslots.ok_or_else(|| no_token("it has no array of keyslots"))? {
        let number = keyslot.as_str().and_then(|text| text.parse().ok());
        if number.is_none_or(|number: u32| !metadata.keyslots.contains_key(&number)) {
            return Err(no_token(&format!("it is for keyslot {keyslot}, which does not exist")));
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

/// The number of the only token of this keyslot, if it is for no other one.
pub(super) fn only_token(metadata: &Metadata, keyslot: u32) -> Result<u32> {
    let keyslots = |token: &Map<String, Value>| token.get("keyslots").and_then(Value::as_array).cloned();
    let id = Value::String(keyslot.to_string());
    let tokens = metadata.tokens.iter().filter_map(|(number, token)| Some((*number, keyslots(token)?)));
    let of_keyslot: Vec<_> = tokens.filter(|(_, keyslots)| keyslots.contains(&id)).collect();
    match &of_keyslot[..] {
        [(number, keyslots)] if keyslots.len() == 1 => Ok(*number),
        [(number, _)] => Err(Error::misuse(format!("token {number} is also for other keyslots than {keyslot}"))),
        [] => Err(Error::misuse(format!("keyslot {keyslot} has no token"))),
        [..] => {
            let numbers: Vec<_> = of_keyslot.iter().map(|(number, _)| number.to_string()).collect();
            Err(Error::misuse(format!("keyslot {keyslot} has several tokens: {}", numbers.join(", "))))
        }
    }
    .map_err(|e| e.hint("Nothing was changed. Add a new keyslot, then remove the old one."))
}

/// The tokens that seal a passphrase: all except those of recovery keys, which people type.
pub(super) fn sealed(metadata: &Metadata) -> Vec<Sealed> {
    let sealed = |(number, token): (&u32, &Map<String, Value>)| {
        let kind = token.get("type").and_then(Value::as_str).filter(|kind| *kind != recovery::TOKEN)?;
        let keyslots = token.get("keyslots").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Some(Sealed {
            token: *number,
            keyslots: keyslots.iter().filter_map(|id| id.as_str()?.parse().ok()).collect(),
            needs: meaning(kind, token),
            by: releaser(kind, token),
        })
    };
    metadata.tokens.iter().filter_map(sealed).collect()
}

/// A passphrase sealed in an unknown way is [`Releaser::Other`].
fn releaser(kind: &str, token: &Map<String, Value>) -> Releaser {
    let known = match kind {
        tpm2::TOKEN => tpm2::Envelope::parse(token).ok().map(|envelope| Releaser::Tpm(Box::new(envelope))),
        fido2::TOKEN => fido2::Fido2Token::parse(token).ok().map(|token| Releaser::Fido2(Box::new(token))),
        clevis::TOKEN => clevis::Jwe::parse(token).ok().map(|jwe| Releaser::Clevis(Box::new(jwe))),
        _ => smart_card(kind, token),
    };
    known.unwrap_or(Releaser::Other)
}

/// The fields of systemd's token (systemd, src/cryptenroll/cryptenroll-pkcs11.c).
fn smart_card(kind: &str, token: &Map<String, Value>) -> Option<Releaser> {
    let text = |name: &str| token.get(name).and_then(Value::as_str);
    if kind != "systemd-pkcs11" {
        return None;
    }
    let ciphertext = STANDARD.decode(text("pkcs11-key")?).ok()?;
    Some(Releaser::SmartCard { label: text("pkcs11-uri").and_then(label), ciphertext })
}

/// The label of the token in a URI of PKCS#11 (RFC 7512, section 2.3): `pkcs11:token=My%20card;object=key`.
fn label(uri: &str) -> Option<String> {
    let path = uri.strip_prefix("pkcs11:")?.split('?').next()?;
    let label = path.split(';').find_map(|part| part.strip_prefix("token="))?;
    let mut bytes = Vec::with_capacity(label.len());
    let mut rest = label.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        bytes.push(match (first, behind) {
            (b'%', [high, low, ..]) => {
                rest = &behind[2..];
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                (digit(high)? << 4 | digit(low)?) as u8
            }
            _ => *first,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_the_card_by_its_label() {
        for (uri, expected) in [
            ("pkcs11:token=one", Some("one")),
            ("pkcs11:model=x;token=My%20card;object=key?pin-value=1", Some("My card")),
            ("pkcs11:token=%C3%A4", Some("\u{e4}")),
            ("pkcs11:token=100%", Some("100%")),
            ("pkcs11:token=%zz", None),
            ("pkcs11:token=%ff", None),
            ("pkcs11:object=key", None),
            ("token=one", None),
        ] {
            assert_eq!(label(uri).as_deref(), expected, "{uri}");
        }
    }
}
