//! Header backups, as `cryptsetup luksHeaderBackup` makes them: both copies of the header and the keyslots area, as they are in
//! front of the data (lib/luks2/luks2_json_metadata.c, `LUKS2_hdr_backup`). Also repairs and verifies headers.

use claviger_crypto::Secret;
use claviger_crypto::dmcrypt::Specification;

use super::NAME;
use super::binary::{Binary, Which};
use super::change::nothing_required;
use super::metadata::Metadata;
use super::read::{self, Luks2CopyState, ReadHeader};
use super::unlock::OpenedKey;
use super::{slots, unlock, validate, write};
use crate::advice::{Advice, Warning};
use crate::credential::Unlock;
use crate::edit::{Edit, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
use crate::formats::luks::{self, Doubt, KeyslotAreas};
use crate::formats::{self, CopyReport, HeaderBackup, Prepared, RestoreFrom, Verified};
use crate::store::Store;

/// How many bytes of the keyslots area one step writes. Only parts that differ are written.
const PIECE: usize = 1 << 20;

/// Returns the contents of a backup, in which a damaged copy of the header is repaired.
pub(super) fn back_up(store: &dyn Store) -> Result<HeaderBackup> {
    let header = read::read(store)?;
    let mut bytes = vec![0; end(&header) as usize];
    store.read_at(0, &mut bytes)?;
    for step in write::copy_anew(&header)? {
        bytes[step.at as usize..][..step.bytes.len()].copy_from_slice(&step.bytes);
    }
    let mut warnings = header.warnings();
    if !header.primary.is_current() || !header.secondary.is_current() {
        warnings.push("In the backup both copies of the header are sound.".into());
    }
    if validate::is_being_reencrypted(&header.metadata) {
        let what = "The reencryption of this volume is not finished. Once it continues, the backup opens nothing: make \
                    another one at its end.";
        warnings.push(Warning::from(what).advise(Advice::ResumeReencryption));
    }
    Ok(HeaderBackup { bytes, format: NAME, headers: vec!["primary", "secondary"], warnings })
}

/// Rewrites damaged or stale copies from the sound copy, or from a reconstruction that a checksum proves.
///
/// If something else was created in front of a sound secondary copy, only data that decrypt prove that the volume still exists.
pub(super) fn repair(store: &dyn Store, with: &Unlock<'_>) -> Result<Prepared> {
    let header = read::read(store)?;
    let key = key_in(store, &header, with)?;
    let steps = match (write::repair(store, &header), key) {
        (Err(e), Some(key)) if matches!(e.kind, ErrorKind::Misuse(_)) => {
            if !makes_sense(store, &header, &key, with)? {
                return Err(e.hint(
                    "With this header's key the data decrypt to noise: they were overwritten too, or never \
                     written.",
                ));
            }
            write::copy_anew(&header)?
        }
        (steps, _) => steps?,
    };
    let damage = unlock::damage(&header, store);
    Ok(prepared(Edit::new(steps).made_for(header.seen), damage))
}

/// Replaces the header with that of a backup.
///
/// Keyslots are written first, then the header. After an interruption, restore the same file again. If only the header was damaged,
/// the keyslots area stays the same, and some header opens at any moment.
pub(super) fn restore(store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared> {
    let RestoreFrom::Backup(file) = from else {
        read::read(store)?;
        return Err(Error::misuse("a LUKS2 volume has no backup header at its end: its second copy follows the first")
            .advise(Advice::RepairHeader));
    };
    let backup = read::read(file)?;
    if validate::is_being_reencrypted(&backup.metadata) {
        return Err(Error::unsupported("restoring a backup that was made during a reencryption")
            .hint("Nothing was changed. Use a backup from after the reencryption."));
    }
    nothing_required(&backup.metadata)?;
    fits(store, &backup)?;
    let key = key_in(file, &backup, with)?;
    let there = present(store)?;
    let doubt = doubt(store, &backup, there.as_ref(), key.as_ref(), with)?;
    let mut warnings: Vec<_> = Doubt::settle(doubt, unproven)?.into_iter().collect();
    let mut steps = keyslots_area(store, file, &backup)?;
    let seqid = there.as_ref().map_or(0, |there| there.binary.seqid).max(backup.binary.seqid);
    let seqid = seqid.checked_add(1).unwrap_or(seqid);
    let same = |there: &ReadHeader| {
        let all_but_number = Binary { seqid: backup.binary.seqid, salt: backup.binary.salt, ..there.binary.clone() };
        let sound = there.primary.is_current() && there.secondary.is_current();
        sound && there.metadata == backup.metadata && all_but_number == backup.binary
    };
    if !there.as_ref().is_some_and(same) {
        steps.extend(write::first_steps(&Binary { seqid, ..backup.binary.clone() }, &backup.metadata)?);
    }
    if !steps.is_empty() && there.is_some() {
        let lost = Warning::from("The current header and keyslots will be lost.");
        warnings.push(lost.advise(Advice::BackUpHeader));
    }
    let seen = there.map_or(Vec::new(), |there| there.seen);
    Ok(prepared(Edit::new(steps).made_for(seen), warnings))
}

/// Reports which copies of the header are sound, whether a keyslot opens, and whether the areas of all keyslots look random.
pub(super) fn verify(store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
    let header = read::read(store)?;
    let opened = opened(store, &header, with)?;
    let report = |which: Which, state: &Luks2CopyState| {
        let state = match state {
            Luks2CopyState::Current => formats::CopyState::Opens,
            Luks2CopyState::Stale { .. } | Luks2CopyState::Differs => {
                formats::CopyState::Differs("it differs from the other copy".to_owned())
            }
            Luks2CopyState::Damaged(e) if matches!(e.kind, ErrorKind::NotThisFormat(_)) => formats::CopyState::NoHeader,
            Luks2CopyState::Damaged(e) => formats::CopyState::Damaged(e.to_string()),
        };
        CopyReport { name: which.name(), at: which.offset(header.binary.hdr_size), state }
    };
    let copies = vec![report(Which::Primary, &header.primary), report(Which::Secondary, &header.secondary)];
    let unsound = copies.iter().any(|copy| copy.state != formats::CopyState::Opens);
    let mut warnings = header.warnings();
    if validate::is_being_reencrypted(&header.metadata) {
        let what = "The reencryption of this volume is not finished.";
        warnings.push(Warning::from(what).advise(Advice::ResumeReencryption));
    }
    let keyslot = opened.and_then(|opened| opened.keyslot);
    let mut areas = KeyslotAreas::default();
    for (number, _) in header.metadata.keyslots.iter().filter(|(_, keyslot)| keyslot.kind == "luks2") {
        match unlock::look_at_area(&header, store, *number) {
            Ok(area) => areas.add(*number, area, keyslot),
            Err(e) if matches!(e.kind, ErrorKind::Io(_)) => return Err(e),
            Err(e) => areas.warnings.push(format!("Keyslot {number} could not be checked: {}.", e.kind).into()),
        }
    }
    let (areas, overwritten) = areas.finish(&mut warnings);
    Ok(Verified { format: NAME, copies, areas, damaged: unsound || overwritten, warnings })
}

fn prepared(edit: Edit, warnings: Vec<Warning>) -> Prepared {
    Prepared { edit, format: NAME, hidden: false, keyslot: None, derivation: None, warnings }
}

/// Where headers and keyslots end, in whole blocks.
fn end(header: &ReadHeader) -> u64 {
    validate::header_end(&header.metadata, header.binary.hdr_size)
}

/// The header in front, if there is one.
fn present(store: &dyn Store) -> Result<Option<ReadHeader>> {
    match read::read(store) {
        Ok(header) => Ok(Some(header)),
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => Err(e),
        Err(_) => Ok(None),
    }
}

/// Checks that header and keyslots fit in front of the data, even if the restore is forced.
fn fits(store: &dyn Store, backup: &ReadHeader) -> Result<()> {
    let end = end(backup);
    if end > store.len() {
        let what = format!("the backup has {end} bytes, but only {} fit", store.len());
        return Err(Error::misuse(what).hint("Nothing was changed. The backup may be another volume's."));
    }
    Ok(())
}

/// Returns the volume key if a credential was given, which also shows whether it opens the backup.
fn key_in(file: &dyn Store, backup: &ReadHeader, with: &Unlock<'_>) -> Result<Option<Secret>> {
    Ok(opened(file, backup, with)?.map(|opened| opened.key))
}

fn opened(file: &dyn Store, header: &ReadHeader, with: &Unlock<'_>) -> Result<Option<OpenedKey>> {
    match (with.credentials, slots::data_digest(&header.metadata)) {
        ([], _) | (_, None) => Ok(None),
        (_, Some((digest, _))) => unlock::open_key(header, file, with, digest).map(Some),
    }
}

/// Why the backup may belong to another volume.
fn doubt(
    store: &dyn Store,
    backup: &ReadHeader,
    there: Option<&ReadHeader>,
    key: Option<&Secret>,
    with: &Unlock<'_>,
) -> Result<Option<Doubt>> {
    let doubt = |what: String, hint| Ok(Some(Doubt { what, hint }));
    let Some(there) = there else { return nothing_there(store, backup, key, with) };
    if there.binary.uuid != backup.binary.uuid {
        let uuid = |header: &ReadHeader| String::from_utf8_lossy(&header.binary.uuid).into_owned();
        let what = format!("the volume's UUID is {}, but the backup's is {}", uuid(there), uuid(backup));
        return doubt(what, "The backup is another volume's, or the UUID was changed. If that is intended, force it.");
    }
    if !same_key(&there.metadata, &backup.metadata) {
        let what = "the volume's key is not that of the header in the backup: the data would be unreadable".to_owned();
        return doubt(what, "The volume was reencrypted or recreated. If that is intended, force it.");
    }
    if places(&there.metadata) != places(&backup.metadata) || end(there) != end(backup) {
        let what = "the data or the keyslots have other positions in the volume than in the backup".to_owned();
        return doubt(what, "If that is intended, force it.");
    }
    Ok(None)
}

/// If there is no header any more, the data are the evidence: with a credential, they must decrypt to more than noise.
fn nothing_there(
    store: &dyn Store,
    backup: &ReadHeader,
    key: Option<&Secret>,
    with: &Unlock<'_>,
) -> Result<Option<Doubt>> {
    if let Some(key) = key
        && makes_sense(store, backup, key, with)?
    {
        return Ok(None);
    }
    let mut start = vec![0; store.len().min(1 << 17) as usize];
    store.read_at(0, &mut start)?;
    let is = magic::known(&start).unwrap_or("something other than a LUKS2 header");
    let what = match is_detached(backup) {
        true => format!("the header in the backup is a detached one, but the volume begins with {is}"),
        false => format!("nothing shows that the backup belongs here: the volume begins with {is}"),
    };
    let hint = match key {
        None => {
            "Give a passphrase to check it against the data. If you are sure that it is the right volume, force \
             it."
        }
        Some(_) => {
            "With the backup's key the data decrypt to noise: the volume is empty, or the wrong one. If you are sure \
             that it is the right volume, force it."
        }
    };
    Ok(Some(Doubt { what, hint }))
}

fn is_detached(backup: &ReadHeader) -> bool {
    backup.metadata.segments.values().any(|segment| segment.offset.0 == 0)
}

/// Whether the data decrypt to something under this key. Data with tags cannot be checked here, and those of a detached header are
/// in another store.
fn makes_sense(store: &dyn Store, backup: &ReadHeader, key: &Secret, with: &Unlock<'_>) -> Result<bool> {
    if is_detached(backup) {
        return Ok(false);
    }
    let Some(segment) = backup.metadata.segments.values().next().filter(|s| s.integrity.is_none()) else {
        return Ok(false);
    };
    let Ok(specification) = Specification::parse(segment.encryption.as_deref().unwrap_or_default()) else {
        return Ok(false);
    };
    match specification.with_key(key, segment.sectors(), with.acceleration) {
        Ok(cipher) => luks::makes_sense(store, segment.offset.0, &*cipher),
        Err(_) => Ok(false),
    }
}

/// Whether the data have the same key. Each digest has its own salt, and does not change while the key stays the same.
fn same_key(one: &Metadata, other: &Metadata) -> bool {
    let of = |metadata| slots::data_digest(metadata).map(|(_, digest)| (&digest.salt, &digest.digest));
    of(one) == of(other)
}

/// Returns where the data are, and how they are encrypted.
fn places(metadata: &Metadata) -> Vec<(u64, Option<&String>, Option<u32>)> {
    metadata.segments.values().map(|s| (s.offset.0, s.encryption.as_ref(), s.sector_size)).collect()
}

/// The steps that restore the keyslots area from the backup.
fn keyslots_area(store: &dyn Store, file: &dyn Store, backup: &ReadHeader) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let end = end(backup);
    let mut at = 2 * backup.binary.hdr_size;
    while at < end {
        let len = (end - at).min(PIECE as u64) as usize;
        let (mut now, mut then) = (vec![0; len], vec![0; len]);
        store.read_at(at, &mut now)?;
        file.read_at(at, &mut then)?;
        if now != then {
            steps.push(Step { what: format!("the keyslots from byte {at} on"), at, bytes: then });
        }
        at += len as u64;
    }
    Ok(steps)
}
