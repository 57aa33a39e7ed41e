//! Checks every copy of a volume's header, and whether everything that should look random does.

use super::opened::OpenedVolumeHeader;
use super::positions::Position;
use super::shifted::Shift;
use super::suites::UNIT;
use super::{
    Family, HEADER_GROUP, HeaderCopies, HeaderCopy, OLD_HEADER, header, positions, shifted_warning, unclear_warning,
};
use crate::advice::{Advice, Warning};
use crate::credential::{HeaderChoice, Unlock};
use crate::error::{ErrorKind, Result};
use crate::filesystems::magic;
use crate::formats::{AreaReport, CopyReport, CopyState, Verified};
use crate::store::Store;

/// The most sectors checked in an area, spread evenly over it.
const SECTORS: u64 = 8192;

/// The name of the area that holds the data.
const DATA: &str = "data area";

/// The area with the backup headers.
const AT_END: &str = "backup header areas at the end";

/// The name of a system's encrypted area.
const ENCRYPTED: &str = "encrypted part";

pub(super) fn verify(family: &Family, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
    let opened =
        OpenedVolumeHeader::of_volume_or_system(family, store, &Unlock { header: HeaderChoice::Any, ..*with })?;
    let mut warnings = opened.warnings.clone();
    let copies = copies(family, store, &opened, with)?;
    let areas = areas(store, &opened)?;
    let damaged = is_damaged(&copies, opened.position.hidden);
    let shift = opened.shift(store, with)?;
    if let Shift::By(shift) = shift {
        warnings.push(shifted_warning(shift, opened.data.missing(shift)).advise(Advice::CompleteCopy { shift }));
    } else if let Shift::Unclear(shift) = shift {
        warnings.push(unclear_warning(shift));
    } else if opened.data_end() > store.len() {
        warnings.push(format!("The file is cut short: its data end at byte {}.", opened.data_end()).into());
    } else if has_backup_areas(&opened) && opened.data_end() + HEADER_GROUP > store.len() {
        warnings.push("The file is cut short after the data: it has no complete backup headers.".into());
    } else if has_backup_areas(&opened) {
        warnings.extend(to_repair(&copies));
    }
    for area in &areas {
        let lost = copies.iter().any(|(position, copy)| {
            position.hidden && position.backup == (area.name == AT_END) && copy.state == CopyState::NoHeader
        });
        warnings.extend(what_shows(area, lost).map(Warning::from));
    }
    let damaged = damaged || opened.data_end() > store.len() || shift != Shift::None;
    Ok(Verified {
        format: family.name,
        copies: copies.into_iter().map(|(_, report)| report).collect(),
        areas,
        damaged,
        warnings,
    })
}

/// Whether there are header areas at the end of the store.
fn has_backup_areas(opened: &OpenedVolumeHeader) -> bool {
    opened.found.fields.has_backups && !opened.position.system
}

/// How a copy is repaired from the other copy of the same header.
fn to_repair(copies: &[(&Position, CopyReport)]) -> Option<Warning> {
    let opens = |hidden: bool, backup: bool| {
        let this = |(position, _): &&(&Position, CopyReport)| (position.hidden, position.backup) == (hidden, backup);
        copies.iter().filter(this).any(|(_, copy)| copy.state == CopyState::Opens)
    };
    [false, true].into_iter().find_map(|hidden| match (opens(hidden, false), opens(hidden, true)) {
        (false, true) => {
            let what = "The header in front is not sound, but the backup at the end of the volume is.";
            Some(Warning::from(what).advise(Advice::RestoreEmbedded))
        }
        (true, false) => Some(Warning::from("The backup of the header is not sound.").advise(Advice::RewriteHeader)),
        _ => None,
    })
}

/// Returns every header copy that volumes of this generation have, and its position.
fn copies(
    family: &Family,
    store: &dyn Store,
    opened: &OpenedVolumeHeader,
    with: &Unlock<'_>,
) -> Result<Vec<(&'static Position, CopyReport)>> {
    let mut reports = Vec::new();
    let mut before: Vec<OpenedVolumeHeader> = Vec::new();
    let of_volumes = family.positions.iter().filter(|position| match opened.found.fields.has_backups {
        true => !position.old || !position.hidden,
        false => position.old,
    });
    let of_system = [&positions::SYSTEM];
    let positions: Vec<_> = if opened.position.system { of_system.into() } else { of_volumes.collect() };
    for position in positions {
        let Some(at) = position.in_store(store.len()) else { continue };
        if position.backup && at < opened.data_end() {
            continue;
        }
        let mut bytes = [0; header::SIZE];
        store.read_at(at, &mut bytes)?;
        let name = position.name.name();
        if bytes.iter().all(|b| *b == bytes[0]) {
            reports.push((position, CopyReport { name, at, state: CopyState::NoHeader }));
            continue;
        }
        let looks_random = magic::looks_random(&bytes);
        let copy = HeaderCopy { position, at, bytes };
        let single = HeaderCopies { family: *family, copies: vec![copy] };
        let with = Unlock { header: HeaderChoice::Any, ..*with };
        let state = match OpenedVolumeHeader::among(single, store.len(), &with) {
            Ok(this) => {
                let twin = before.iter().find(|twin| twin.position.hidden == position.hidden);
                let state = twin.map_or(CopyState::Opens, |twin| compared(&this, twin));
                before.push(this);
                state
            }
            Err(e) => match e.kind {
                ErrorKind::Io(_) | ErrorKind::Cancelled | ErrorKind::TooLittleMemory { .. } => return Err(e),
                ErrorKind::WrongCredential(_) if looks_random => CopyState::DoesNotOpen,
                ErrorKind::WrongCredential(_) => CopyState::NoHeader,
                other => CopyState::Damaged(other.to_string()),
            },
        };
        reports.push((position, CopyReport { name, at, state }));
    }
    Ok(reports)
}

/// Compares a copy that opens with one that opened before.
fn compared(this: &OpenedVolumeHeader, twin: &OpenedVolumeHeader) -> CopyState {
    let (a, b) = (&this.found.plain, &twin.found.plain);
    let name = twin.position.name;
    if !claviger_crypto::Secret::copy_from(header::keys(a)).same_as(header::keys(b)) {
        CopyState::Differs(format!("its keys are not those of the {name} header"))
    } else if (this.data.start, this.data.len) != (twin.data.start, twin.data.len) {
        CopyState::Differs(format!("its data area is not that of the {name} header"))
    } else if this.found.derivation.same_as(&twin.found.derivation) {
        CopyState::Opens
    } else {
        let (this, twin) = (this.found.derivation, twin.found.derivation);
        CopyState::Differs(format!(
            "its key derivation is {} with {} iterations, that of the {name} header {} with {}",
            this.kdf.name, this.iterations, twin.kdf.name, twin.iterations
        ))
    }
}

/// Whether a copy of the opened volume is not sound, or one of the other volume's two copies is damaged.
fn is_damaged(copies: &[(&Position, CopyReport)], hidden: bool) -> bool {
    let bad = |state: &CopyState| matches!(state, CopyState::Differs(_) | CopyState::Damaged(_));
    let mine = copies.iter().filter(|(position, _)| position.hidden == hidden);
    let mut other = copies.iter().filter(|(position, _)| position.hidden != hidden);
    let other_opens = other.clone().any(|(_, c)| c.state == CopyState::Opens);
    mine.into_iter().any(|(_, c)| c.state != CopyState::Opens)
        || other.any(|(_, c)| bad(&c.state) || other_opens && c.state != CopyState::Opens)
}

/// The areas that TrueCrypt fills with random bytes or ciphertext, and how random they look.
fn areas(store: &dyn Store, opened: &OpenedVolumeHeader) -> Result<Vec<AreaReport>> {
    let len = store.len() / UNIT * UNIT;
    if opened.position.system {
        let encrypted = header::encrypted_size(&opened.found.plain).min(opened.data.len);
        let start = opened.data.start.min(len);
        return Ok(vec![looked_at(store, ENCRYPTED, start, (start + encrypted).min(len))?]);
    }
    if !opened.found.fields.has_backups {
        return Ok(vec![looked_at(store, DATA, OLD_HEADER, len)?]);
    }
    let end = len.saturating_sub(HEADER_GROUP).max(HEADER_GROUP);
    let mut areas = vec![
        looked_at(store, "header areas at the beginning", 0, HEADER_GROUP.min(len))?,
        looked_at(store, DATA, HEADER_GROUP, end)?,
    ];
    if end < len {
        areas.push(looked_at(store, AT_END, end, len)?);
    }
    Ok(areas)
}

fn looked_at(store: &dyn Store, name: &'static str, start: u64, end: u64) -> Result<AreaReport> {
    let all = end.saturating_sub(start) / UNIT;
    let sectors = all.min(SECTORS);
    let mut area = AreaReport { name: name.to_owned(), sectors, not_random: 0, zeros: 0, damage: Vec::new() };
    let mut sector = [0; UNIT as usize];
    for i in 0..area.sectors {
        let number = u128::from(i) * u128::from(all) / u128::from(area.sectors);
        store.read_at(start + number as u64 * UNIT, &mut sector)?;
        if !magic::looks_random(&sector) {
            area.not_random += 1;
            area.zeros += u64::from(sector.iter().all(|b| *b == 0));
        }
    }
    Ok(area)
}

/// Describes what an area reveals without a password. `no_hidden_header`: something else is where a hidden volume's header would be.
fn what_shows(area: &AreaReport, no_hidden_header: bool) -> Option<String> {
    let AreaReport { name, sectors, not_random, zeros, .. } = area;
    if *not_random == 0 {
        return None;
    }
    let what = match zeros {
        0 => "none of them zeros".to_owned(),
        n if n == not_random => "all of them zeros".to_owned(),
        n => format!("{n} of them zeros"),
    };
    let shows = if *name == ENCRYPTED {
        "Discarded blocks on a solid-state disk (TRIM) look like this; anything else bypassed the encryption."
    } else if *name != DATA {
        match no_hidden_header {
            true => "They were overwritten: if there was a hidden volume's header, it is lost.",
            false => "They were overwritten, but not the place of a hidden volume's header.",
        }
    } else {
        "The volume was quick-formatted or partly overwritten: the file shows which parts are in use, which may \
         reveal a hidden volume."
    };
    Some(format!("In the {name}, {not_random} of {sectors} sampled sectors do not look random ({what}). {shows}"))
}
