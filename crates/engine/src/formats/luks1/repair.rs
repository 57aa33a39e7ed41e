//! What can be put right without a passphrase, and what a look at the keyslots tells.
//!
//! As cryptsetup does (2.6.1, lib/luks1/keymanage.c, `_keyslot_repair`): all programs put the areas of keyslots at the same places,
//! so that offsets and stripes that were damaged can be told. A state that is neither in use nor not may be that of a keyslot in
//! use: cryptsetup gives it up; here it stays in use, as nothing is lost by trying it.

use super::create::standard_offset;
use super::header::{self, MAGIC, Phdr, SIZE, STRIPES, Slot, at};
use super::unlock::{looked_at, open_key};
use super::{NAME, header_warnings};
use crate::advice::Warning;
use crate::credential::Unlock;
use crate::edit::{Edit, Seen};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{AreaReport, CopyReport, CopyState, Prepared, Verified};
use crate::store::Store;

/// Puts right what can be told.
pub(super) fn repair(store: &dyn Store) -> Result<Prepared> {
    let mut warnings = Vec::new();
    let header = with_marks(store, &mut warnings)?;
    let old = header_bytes(store)?;
    let mut new = header.clone();
    for (number, slot) in header.slots.iter().enumerate() {
        if let Some(trouble) = &slot.trouble {
            new = new.with_slot(number, standard(&header, number, slot));
            warnings.push(format!("Keyslot {number} was damaged ({}): {}.", trouble.field, trouble.what).into());
        }
    }
    // What was guessed has to make sense together.
    let repaired = Phdr::parse(&new.bytes, store.len())?;
    repaired.sound().map_err(|e| e.hint("The other values are not known: restore the header from a backup."))?;
    let steps = repaired.steps(&old, store)?;
    let edit = Edit::new(steps).made_for(vec![Seen { at: 0, bytes: old.to_vec() }]);
    Ok(Prepared { edit, format: NAME, hidden: false, keyslot: None, derivation: None, warnings })
}

/// The header, with its first bytes put right if they are damaged and all else makes sense.
fn with_marks(store: &dyn Store, warnings: &mut Vec<Warning>) -> Result<Phdr> {
    let error = match Phdr::read(store) {
        Ok(header) => return Ok(header),
        Err(e) if matches!(e.kind, ErrorKind::NotThisFormat(_) | ErrorKind::Unsupported { .. }) => e,
        Err(e) => return Err(e),
    };
    let mut bytes = header_bytes(store).map_err(|_| error)?;
    let luks2 = bytes.starts_with(MAGIC) && bytes[at::VERSION..at::CIPHER_NAME] == [0, 2];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[at::VERSION..at::CIPHER_NAME].copy_from_slice(&[0, 1]);
    let convincing = |h: &Phdr| !luks2 && h.cipher().is_ok() && h.hash().is_ok() && h.sound().is_ok();
    match Phdr::parse(&bytes, store.len()) {
        Ok(header) if convincing(&header) => {
            warnings.push("The magic or the version at the beginning of the header was damaged.".into());
            Ok(header)
        }
        _ => Err(Error::new(ErrorKind::NotThisFormat("there is no LUKS1 header that could be repaired".into()))
            .hint("If there is a header backup, restore it.")),
    }
}

fn header_bytes(store: &dyn Store) -> Result<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    store.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// The keyslot as all programs lay it out.
fn standard(header: &Phdr, number: usize, slot: &Slot) -> Slot {
    // No iterations at all: it cannot be opened any more.
    let active = slot.active && slot.iterations > 0;
    let offset = standard_offset(header.key_len, number);
    Slot { active, offset, stripes: STRIPES, trouble: None, ..slot.clone() }
}

/// Whether the header is sound and a keyslot opens, and whether the areas of all look as they should.
pub(super) fn verify(store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
    let header = Phdr::read(store)?;
    let mut warnings = header_warnings(&header);
    if !with.credentials.is_empty() {
        warnings.extend(open_key(&header, store, with)?.warnings);
    }
    let state = match header.slots.iter().find_map(|slot| slot.trouble.as_ref()) {
        Some(trouble) => CopyState::Damaged(trouble.what.clone()),
        None => CopyState::Opens,
    };
    let mut damaged = state != CopyState::Opens || header.uuid.is_none();
    let mut areas = Vec::new();
    for (number, slot) in header.active().filter(|(_, slot)| slot.trouble.is_none()) {
        let (sectors, not_random) = looked_at(&header, store, slot)?;
        areas.push(AreaReport { name: AREAS[number], sectors, not_random, zeros: 0 });
        if not_random > 0 {
            damaged = true;
            warnings.push(format!(
                "Keyslot {number} is damaged: {not_random} of the {sectors} sectors of its area do not look random, so that it \
                 opens with no passphrase any more."
            ).into());
        }
    }
    let copies = vec![CopyReport { name: "primary", at: 0, state }];
    Ok(Verified { format: NAME, copies, areas, damaged, warnings })
}

const AREAS: [&str; header::SLOTS] =
    ["keyslot 0", "keyslot 1", "keyslot 2", "keyslot 3", "keyslot 4", "keyslot 5", "keyslot 6", "keyslot 7"];
