//! A new volume master key (VMK), without anybody's password. The VMK opens the keys nested in the protectors, and each of these
//! keys seals the new VMK. So a removed protector opens nothing any more, even for somebody who kept the old VMK.

use claviger_crypto::Secret;

use super::datum::{Datum, Key, key, kind};
use super::metadata::Metadata;
use super::protect::stretch_for;
use super::protectors::{Protector, hashed};
use super::sealed::{self, Sealer};
use super::{VMK, unlock};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::random;

/// Replaces the VMK `old` with a new one everywhere in the metadata, and returns it.
///
/// # Errors
/// `Misuse`, with the protector's name, if a protector cannot get the new one; `Malformed`, `Cancelled`, `Io`.
pub(super) fn renew(metadata: &mut Metadata, old: &Secret, with: &Unlock<'_>) -> Result<Secret> {
    let keys = keys(metadata, old, with)?;
    let fvek = unlock::volume_key(metadata, old)?;
    let new = random::secret(VMK)?;
    let mut next = metadata.next_nonce;
    let mut sealer = Sealer::new(&mut next);
    for (place, datum) in metadata.datums.iter_mut().enumerate() {
        let own = keys.iter().find(|(protector, _)| *protector == place).map(|(_, key)| key);
        *datum = datum.with_boxes(&mut |sealed| Ok(resealed(sealed, old, &new, own, &mut sealer)))?;
    }
    metadata.next_nonce = next;
    match unlock::volume_key(metadata, &new)?.same_as(&fvek) {
        true => Ok(new),
        false => Err(ErrorKind::Malformed {
            field: "volume key (FVEK)",
            offset: 0,
            what: "sealed with the new volume master key, it reads back as a different key".to_owned(),
        }
        .into()),
    }
}

/// Seals a box anew: contents sealed with the old VMK are sealed with the new one, and an old VMK sealed with a protector's `own`
/// key is replaced. Everything else stays the same, with its key and nonce.
fn resealed(sealed: &Datum, old: &Secret, new: &Secret, own: Option<&Secret>, sealer: &mut Sealer<'_>) -> Datum {
    let open = |key: &Secret| sealed::open(sealed, key).ok().flatten();
    if let Some(plain) = open(old) {
        return Datum { version: sealed.version, ..sealer.seal_bytes(sealed.role, new, &plain) };
    }
    let vmk = |plain: &Secret| Key::unsealed(plain).is_ok_and(|key| key.key.same_as(old));
    match own.filter(|own| open(own).as_ref().is_some_and(vmk)) {
        Some(own) => {
            let new = Key { kind: key::VMK, key: Secret::copy_from(new) };
            Datum { version: sealed.version, ..sealer.seal(sealed.role, own, &new) }
        }
        None => sealed.clone(),
    }
}

/// Returns the key of each protector that seals the VMK, with the protector's index.
///
/// # Errors
/// `Misuse` for protectors whose keys the VMK does not open.
fn keys(metadata: &Metadata, vmk: &Secret, with: &Unlock<'_>) -> Result<Vec<(usize, Secret)>> {
    let (protectors, wrong) = Protector::all(metadata);
    let mut keys = Vec::new();
    let mut without = Vec::new();
    for protector in &protectors {
        match key_of(protector, &metadata.datums[protector.place], vmk, with)? {
            Some(key) => keys.push((protector.place, key)),
            None => without.push(format!("{} {}", protector.number, protector.name())),
        }
    }
    without.extend(wrong.iter().map(|error| format!("a damaged one ({})", error.kind)));
    match without.is_empty() {
        true => Ok(keys),
        false => Err(Error::misuse(format!(
            "the volume master key must change, but these protectors cannot take the new one: {}",
            without.join(", ")
        ))
        .hint(
            "Nothing was changed. Remove these protectors first, or make the change in Windows, which can \
             recreate them.",
        )),
    }
}

/// Returns the key with which a protector seals the VMK.
fn key_of(protector: &Protector, datum: &Datum, vmk: &Secret, with: &Unlock<'_>) -> Result<Option<Secret>> {
    let opens = |key: &Secret| key.len() == 32 && matches!(protector.open(key), Ok(Some(found)) if found.same_as(vmk));
    let nested = nested_keys(datum, vmk);
    let stretched = nested.iter().filter(|key| key.kind != key::RECOVERY).map(|key| Secret::copy_from(&key.key));
    if let Some(key) = protector.clear_key().into_iter().chain(stretched).find(opens) {
        return Ok(Some(key));
    }
    // Windows 7 stores only the recovery password itself.
    for typed in nested.iter().filter(|key| key.kind == key::RECOVERY) {
        if let Some(salt) = protector.salt() {
            let key = stretch_for(&hashed(&typed.key), &salt, with)?;
            if opens(&key) {
                return Ok(Some(key));
            }
        }
    }
    Ok(None)
}

/// The recovery password of a protector, if it has one: its key of 16 bytes.
pub(super) fn recovery_key(datum: &Datum, vmk: &Secret) -> Option<Secret> {
    let mut keys = nested_keys(datum, vmk).into_iter();
    keys.find(|key| key.kind == key::RECOVERY && key.key.len() == super::recovery::LEN).map(|key| key.key)
}

/// Returns the keys in a protector that are sealed with the VMK.
fn nested_keys(datum: &Datum, vmk: &Secret) -> Vec<Key> {
    boxes(datum).iter().filter_map(|sealed| sealed::open_key(sealed, vmk).ok().flatten()).collect()
}

/// Returns all sealed boxes in a datum.
pub(super) fn boxes(datum: &Datum) -> Vec<Datum> {
    let mut boxes = Vec::new();
    let kept = datum.with_boxes(&mut |sealed| {
        boxes.push(sealed.clone());
        Ok(sealed.clone())
    });
    debug_assert!(kept.is_ok_and(|kept| kept == *datum) && boxes.iter().all(|sealed| sealed.kind == kind::SEALED));
    boxes
}
