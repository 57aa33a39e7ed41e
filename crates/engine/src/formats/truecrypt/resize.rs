//! A longer or a shorter volume: both headers say its new size, and the areas of the backups lie at the new end.
//!
//! VeraCrypt's Expander (src/ExpandVolume/ExpandVolume.c, `ExpandVolume`) does the same for volumes that grow: new space, the
//! backup at the new end, the header in front, each with a salt of its own, and the old backup wiped. Data begin where they did,
//! so their sectors keep their numbers. A volume from before TrueCrypt 6.0 has no size in its header: it fills its file.
//!
//! A hidden volume's data begin where its own header says, in bytes from the beginning of the file (Volume/VolumeLayout.cpp,
//! `VolumeLayoutV2Hidden::GetDataOffset`), and that header stays in front: in an outer volume that has grown it opens, without
//! the backup of its header, which lay at the old end. One from before 6.0 has its only header near the end of the file, and is gone.

use std::ops::Range;

use super::create;
use super::editor::{OpenedVolumeHeader, restore_first, step};
use super::seal::Seal;
use super::suites::UNIT;
use super::{Family, HEADER_GROUP, OLD_HEADER, SMALLEST, header, keyfiles};
use crate::credential::{HeaderChoice, Unlock};
use crate::edit::{Seen, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Resizing;
use crate::random;
use crate::store::Store;

/// What is to be done so that the data have `size` bytes.
///
/// The header in front is written while a backup is where it is looked for, at the end of the file. So where the file has become
/// longer the backup comes first; whoever goes on after a crash finds the old size in front, and does all of it again. Where it is to
/// be cut, the old backup is still at its end, and the header in front comes first: what is cut off is whole until then.
pub(super) fn resize(family: &Family, store: &dyn Store, with: &Unlock<'_>, size: u64) -> Result<Resizing> {
    let mut front = vec![0; header::SIZE];
    store.read_at(0, &mut front)?;
    let opened = OpenedVolumeHeader::of(family, store, &Unlock { truncated: false, protect: None, ..*with })?;
    refuse(family, store, &opened, with)?;
    let len = stored_len(family, &opened, size)?;
    let before = opened.data.len;
    let derivation = opened.found.derivation;
    if !opened.found.fields.has_backups {
        let end = opened.data_end();
        return Ok(Resizing { prepared: opened.prepared(family, &derivation, Vec::new()), len, end, before });
    }
    let end = opened.data_end().saturating_add(HEADER_GROUP);
    let steps = if (size, len) == (before, store.len()) {
        Vec::new()
    } else {
        steps(family, store, with, &opened, Sizes { data: size, store: len })?
    };
    let mut prepared = opened.prepared(family, &derivation, steps);
    prepared.edit = prepared.edit.made_for(vec![Seen { at: 0, bytes: front }]);
    Ok(Resizing { prepared, len, end, before })
}

/// The sizes that are to be, in bytes.
struct Sizes {
    data: u64,
    store: u64,
}

/// Refuses what has another header than that in front to go by, and what would lose a volume.
fn refuse(family: &Family, store: &dyn Store, opened: &OpenedVolumeHeader, with: &Unlock<'_>) -> Result<()> {
    if opened.data_end() > store.len() {
        return Err(
            Error::misuse("the file was cut short; nothing was changed").hint("Find a complete copy of the file.")
        );
    }
    if opened.position.hidden {
        return Err(Error::unsupported("resizing a hidden volume")
            .hint("Nothing was changed. A hidden volume lies between the outer volume's files and its end."));
    }
    if opened.position.backup {
        return Err(restore_first(opened.position).hint("Restore it from the embedded backup first."));
    }
    // Sizes that count have been in headers since version 4 (7.1a, Volumes.c, `ReadVolumeHeader`).
    if opened.found.fields.has_backups && opened.found.fields.version < 4 {
        let version = opened.found.fields.version;
        return Err(Error::unsupported(format!("resizing volumes with header version {version}")));
    }
    if let Some(protect) = &with.protect {
        family.locked(store)?.protection(protect, with, &opened.data, store.len())?;
        return Err(Error::misuse("this volume contains a hidden volume; nothing was changed").hint(
            "Enlarging the outer volume would lose the hidden volume's backup header; shrinking would cut it off. \
             Create a new volume of the right size and copy the files of both.",
        ));
    }
    Ok(())
}

/// Bytes of the store that a volume with `size` bytes of data takes.
fn stored_len(family: &Family, opened: &OpenedVolumeHeader, size: u64) -> Result<u64> {
    let sector = u64::from(opened.found.fields.sector_size).max(UNIT);
    if !size.is_multiple_of(sector) {
        return Err(Error::misuse(format!("{size} bytes is not a whole number of {sector}-byte sectors")));
    }
    let has_backups = opened.found.fields.has_backups;
    let around = if has_backups { opened.data.start + HEADER_GROUP } else { OLD_HEADER };
    let len = size.checked_add(around).ok_or_else(|| Error::misuse(format!("{size} bytes are too many")))?;
    match has_backups {
        true => create::data_size(family, len).map(|_| len),
        false if (SMALLEST..=create::MAX_LEN).contains(&len) => Ok(len),
        false => Err(Error::misuse(format!(
            "a volume from before TrueCrypt 6.0 has {SMALLEST} to {} bytes with its header, not {size}",
            create::MAX_LEN
        ))),
    }
}

fn steps(
    family: &Family,
    store: &dyn Store,
    with: &Unlock<'_>,
    opened: &OpenedVolumeHeader,
    to: Sizes,
) -> Result<Vec<Step>> {
    let password = keyfiles::password(family, with.credentials)?;
    let (suite, mode, derivation) = (opened.found.suite, opened.found.mode, opened.found.derivation);
    let cancelled = || with.cancelled();
    let seal = Seal { suite, mode, derivation, password: &password, memory: with.memory, cancelled: &cancelled };
    let mut plain = claviger_crypto::Secret::copy_from(&opened.found.plain);
    header::set_size(&mut plain, to.data);
    let new = to.store - HEADER_GROUP..to.store;
    let wipes = old_groups(family, store, with, opened)?;
    let wipes = wipes.into_iter().flat_map(|old| without(old, &new)).map(wipe).collect::<Result<Vec<_>>>()?;
    let primary = step(opened.position, 0, &plain, &seal)?;
    // All of the area: what is there may be data that are cut off, or a hole.
    let mut backup = Step { what: "the backup header at the new end".into(), ..random_bytes(new)? };
    backup.bytes[..header::SIZE].copy_from_slice(&seal.close(&plain)?);
    Ok(match to.store >= store.len() {
        true => [vec![backup], wipes, vec![primary]].concat(),
        false => [vec![primary, backup], wipes].concat(),
    })
}

/// Where backup headers are that the password opens and nobody is to find again: right behind the data, and at the end of a file that
/// is longer, if it is one of the same keys that is there.
fn old_groups(
    family: &Family,
    store: &dyn Store,
    with: &Unlock<'_>,
    opened: &OpenedVolumeHeader,
) -> Result<Vec<Range<u64>>> {
    let (len, end) = (store.len(), opened.data_end());
    let behind = end..end.saturating_add(HEADER_GROUP).min(len);
    let last = len.saturating_sub(HEADER_GROUP)..len;
    let another = last.start > end && its_backup_opens(family, store, with, opened)?;
    Ok(std::iter::once(behind).chain(another.then_some(last)).collect())
}

/// Whether the backup header at the end of the store has the same keys, whatever size it says.
fn its_backup_opens(
    family: &Family,
    store: &dyn Store,
    with: &Unlock<'_>,
    opened: &OpenedVolumeHeader,
) -> Result<bool> {
    let backup = HeaderChoice::One { hidden: false, backup: true };
    match OpenedVolumeHeader::of(family, store, &Unlock { protect: None, ..opened.narrowed(with, backup) }) {
        Ok(twin) => Ok(opened.same_keys_as(&twin)),
        Err(e) if matches!(e.kind, ErrorKind::Cancelled | ErrorKind::Io(_)) => Err(e),
        Err(_) => Ok(false),
    }
}

/// What is left of a range without another one.
fn without(range: Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let before = range.start..range.end.min(other.start);
    let behind = range.start.max(other.end)..range.end;
    [before, behind].into_iter().filter(|part| part.start < part.end)
}

fn wipe(range: Range<u64>) -> Result<Step> {
    random_bytes(range).map(|step| Step { what: "random bytes over the old backup header".into(), ..step })
}

fn random_bytes(range: Range<u64>) -> Result<Step> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    random::fill(&mut bytes)?;
    Ok(Step { what: String::new(), at: range.start, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_range_lies_on_both_sides() {
        let left = |range, other: Range<u64>| {
            let parts = without(range, &other).map(|part| (part.start, part.end));
            parts.collect::<Vec<_>>()
        };
        assert_eq!(left(10..20, 30..40), [(10, 20)]);
        assert_eq!(left(10..20, 0..10), [(10, 20)]);
        assert_eq!(left(10..20, 15..25), [(10, 15)]);
        assert_eq!(left(10..20, 5..15), [(15, 20)]);
        assert_eq!(left(10..20, 12..18), [(10, 12), (18, 20)]);
        assert_eq!(left(10..20, 10..20), []);
    }
}
