//! Repairs that need no passphrase, and what the keyslots show.
//!
//! The method is cryptsetup's (2.6.1, lib/luks1/keymanage.c, `_keyslot_repair`): all programs use the same offsets for keyslot
//! areas, so damaged offsets and stripes can be reconstructed. An invalid state may be that of a keyslot in use. cryptsetup takes
//! such a keyslot out of use and wipes its salt. Here it stays in use if all its other fields are plausible, and is given up only
//! at the user's request.

use super::create::standard_offset;
use super::header::{ACTIVE, MAGIC, Phdr, SIZE, STRIPES, Slot, Trouble, at};
use super::unlock::{damage, looked_at, open_key};
use super::{NAME, header_warnings};
use crate::advice::{Advice, Warning};
use crate::credential::Unlock;
use crate::edit::{Edit, Seen};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks::{KeyslotAreas, kdf::MIN_ITERATIONS};
use crate::formats::{CopyReport, CopyState, Prepared, Verified};
use crate::store::Store;

/// The most iterations accepted for a damaged keyslot: no machine does more in two seconds.
const ITERATIONS_MAX: u32 = 50_000_000;

/// Repairs everything that can be reconstructed or that the credentials prove. Keyslots that cannot be reconstructed are taken out
/// of use if `lost` names them.
pub(super) fn repair(store: &dyn Store, with: &Unlock<'_>, lost: &[u32]) -> Result<Prepared> {
    let mut warnings = Vec::new();
    let (header, guessed) = with_marks(store, &mut warnings)?;
    let old = header_bytes(store)?;
    let mut new = header.clone();
    let mut given_up = Vec::new();
    for (number, slot) in header.slots.iter().enumerate() {
        let Some(trouble) = &slot.trouble else { continue };
        let mut mended = standard(&header, number, slot);
        warnings.push(format!("Keyslot {number} was damaged ({}): {}.", trouble.field, trouble.what).into());
        if let Some(why) = why_lost(store, &header, number, slot, &mended)? {
            if !lost.contains(&(number as u32)) {
                return Err(is_lost(number, trouble, &why));
            }
            mended = Slot::unused(mended.offset);
            given_up.push(number as u32);
            warnings.push(format!("Keyslot {number} was lost ({why}) and has been disabled.").into());
        }
        new = new.with_slot(number, mended);
    }
    if let Some(number) = lost.iter().find(|number| !given_up.contains(number)) {
        return Err(Error::misuse(format!("keyslot {number} is not lost; nothing was changed"))
            .hint("To remove a working keyslot, use `claviger keyslot remove VOLUME`."));
    }
    // The reconstructed fields must be consistent.
    let repaired = Phdr::parse(&new.bytes, store.len())?;
    repaired.sound().map_err(|e| e.hint("The other values cannot be derived: restore the header from a backup."))?;
    prove(&repaired, store, with, guessed)?;
    warnings.extend(damage(&repaired, store));
    let steps = repaired.steps(&old, store)?;
    let edit = Edit::new(steps).made_for(vec![Seen { at: 0, bytes: old.to_vec() }]);
    Ok(Prepared { edit, format: NAME, hidden: false, keyslot: None, derivation: None, warnings })
}

/// A header without its magic is written only once its digest has proven it: LUKS1 has no checksum.
fn prove(repaired: &Phdr, store: &dyn Store, with: &Unlock<'_>, guessed: bool) -> Result<()> {
    match with.credentials {
        [] if guessed => Err(Error::misuse(
            "the LUKS signature is missing, and LUKS1 has no checksum that proves the rest; nothing was changed",
        )
        .advise(Advice::GiveCredential)),
        [] => Ok(()),
        _ => open_key(repaired, store, with).map(drop),
    }
}

/// Returns why the record of a damaged keyslot cannot be true, although it would have to be in use.
fn why_lost(store: &dyn Store, header: &Phdr, number: usize, slot: &Slot, mended: &Slot) -> Result<Option<String>> {
    if !mended.active {
        return Ok(None);
    }
    let begin = at::SLOTS + number * at::SLOT;
    let state_known = header.bytes[begin..begin + 4] == ACTIVE.to_be_bytes();
    let wrong = [!state_known, slot.offset != mended.offset, slot.stripes != mended.stripes];
    Ok(if !(MIN_ITERATIONS..=ITERATIONS_MAX).contains(&slot.iterations) {
        Some(format!("it claims {} iterations", slot.iterations))
    } else if slot.salt.iter().all(|byte| *byte == slot.salt[0]) {
        Some("its salt was overwritten".to_owned())
    } else if wrong.iter().filter(|wrong| **wrong).count() > 1 {
        Some("more than one of its fields was overwritten".to_owned())
    } else if mended.area(header.key_len).end > store.len() {
        Some("its area lies past the end".to_owned())
    } else {
        looked_at(header, store, number, mended)?.damage_in_words().map(|damage| format!("in its area, {damage}"))
    })
}

fn is_lost(number: usize, trouble: &Trouble, why: &str) -> Error {
    let what = format!("{}; it cannot be repaired: {why}", trouble.what);
    Error::new(ErrorKind::Malformed { field: trouble.field, offset: trouble.at, what }).hint(format!(
        "Nothing was changed. Restore the keyslot from a header backup. Or give it up, so that other programs can open the \
         volume again: `claviger header repair --disable-slot {number} VOLUME`."
    ))
}

/// Returns the header, with its first bytes restored if they are damaged and everything else is valid, and whether they were.
fn with_marks(store: &dyn Store, warnings: &mut Vec<Warning>) -> Result<(Phdr, bool)> {
    let error = match Phdr::read(store) {
        Ok(header) => return Ok((header, false)),
        Err(e) if matches!(e.kind, ErrorKind::NotThisFormat(_) | ErrorKind::Unsupported { .. }) => e,
        Err(e) => return Err(e),
    };
    let bytes = header_bytes(store).map_err(|_| error)?;
    let luks2 = bytes.starts_with(MAGIC) && bytes[at::VERSION..at::CIPHER_NAME] == [0, 2];
    match Phdr::with_marks(bytes, store.len()).filter(|_| !luks2) {
        Some(header) => {
            warnings.push("The magic or the version at the beginning of the header was damaged.".into());
            Ok((header, true))
        }
        None => Err(Error::new(ErrorKind::NotThisFormat("there is no LUKS1 header to repair".into()))
            .hint("If you have a header backup, restore it.")),
    }
}

fn header_bytes(store: &dyn Store) -> Result<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    store.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Returns the keyslot with the layout that all programs use.
fn standard(header: &Phdr, number: usize, slot: &Slot) -> Slot {
    // A keyslot that was never used has neither iterations nor a salt.
    let active = slot.active && (slot.iterations > 0 || slot.salt.iter().any(|byte| *byte != 0));
    let offset = standard_offset(header.key_len, number);
    Slot { active, offset, stripes: STRIPES, trouble: None, ..slot.clone() }
}

/// Checks whether the header is sound, a keyslot opens, and all areas look as they should.
pub(super) fn verify(store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
    let header = Phdr::find(store)?;
    let mut warnings = header_warnings(&header);
    let opened = if with.credentials.is_empty() { None } else { Some(open_key(&header, store, with)?) };
    let keyslot = opened.as_ref().and_then(|opened| opened.keyslot).map(|number| number as u32);
    warnings.extend(opened.into_iter().flat_map(|opened| opened.warnings));
    let state = match header.slots.iter().find_map(|slot| slot.trouble.as_ref()) {
        None if !header.marked => CopyState::Damaged("its signature is missing".to_owned()),
        Some(trouble) => CopyState::Damaged(trouble.what.clone()),
        None => CopyState::Opens,
    };
    let mut areas = KeyslotAreas::default();
    for (number, slot) in header.active().filter(|(_, slot)| slot.trouble.is_none()) {
        areas.add(number as u32, looked_at(&header, store, number, slot)?, keyslot);
    }
    let (areas, overwritten) = areas.finish(&mut warnings);
    let damaged = overwritten || state != CopyState::Opens || header.uuid.is_none();
    let copies = vec![CopyReport { name: "primary", at: 0, state }];
    Ok(Verified { format: NAME, copies, areas, damaged, warnings })
}
