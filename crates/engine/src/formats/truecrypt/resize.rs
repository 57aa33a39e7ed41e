//! Growing and shrinking a volume: both headers get its new size, and the backup areas move to the new end.
//!
//! VeraCrypt's Expander (src/ExpandVolume/ExpandVolume.c, `ExpandVolume`) does the same for growing volumes. It adds space, writes
//! the backup at the new end and the header in front, each with its own salt, and wipes the old backup. The data's offset stays the
//! same, so sectors keep their numbers. A volume from before TrueCrypt 6.0 has no size in its header: it fills its file.
//!
//! A hidden volume's header gives the offset of its data, in bytes from the beginning of the file (Volume/VolumeLayout.cpp,
//! `VolumeLayoutV2Hidden::GetDataOffset`), and stays in front. So it still opens after the outer volume has grown, but the backup
//! of its header, at the old end, is lost. A hidden volume from before 6.0 is lost entirely: its only header is near the end of the
//! file.

use std::ops::Range;

use super::create;
use super::opened::{OpenedVolumeHeader, restore_first, step};
use super::seal::Seal;
use super::suites::UNIT;
use super::{Family, HEADER_GROUP, OLD_HEADER, SMALLEST, header, keyfiles};
use crate::credential::{HeaderChoice, Unlock};
use crate::edit::{Seen, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Resizing;
use crate::random;
use crate::store::Store;

/// Prepares the steps that give the data a size of `size` bytes.
///
/// The header in front is written while a backup is in its place at the end of the file. So when the file has grown, the backup is
/// written first. After a crash the header in front still has the old size, and everything is done again. When the file is to
/// shrink, the old backup is still at its end, and the header in front is written first. Until then the part to cut off stays
/// whole.
pub(super) fn resize(family: &Family, store: &dyn Store, with: &Unlock<'_>, size: u64) -> Result<Resizing> {
    let mut front = vec![0; header::SIZE];
    store.read_at(0, &mut front)?;
    let opened = OpenedVolumeHeader::of(family, store, &Unlock { truncated: false, protect: None, ..*with })?;
    refuse(family, store, &opened, with)?;
    let len = stored_len(family, &opened, size)?;
    let (start, before) = (opened.data.start, opened.data.len);
    let derivation = opened.found.derivation;
    if !opened.found.fields.has_backups {
        let end = opened.data_end();
        return Ok(Resizing {
            prepared: opened.prepared(family, &derivation, Vec::new()),
            len,
            end,
            before,
            size,
            start,
        });
    }
    let end = opened.data_end().saturating_add(HEADER_GROUP);
    let steps = if (size, len) == (before, store.len()) {
        Vec::new()
    } else {
        steps(family, store, with, &opened, Sizes { data: size, store: len })?
    };
    let mut prepared = opened.prepared(family, &derivation, steps);
    prepared.edit = prepared.edit.made_for(vec![Seen { at: 0, bytes: front }]);
    Ok(Resizing { prepared, len, end, before, size, start })
}

/// The new sizes, in bytes.
struct Sizes {
    data: u64,
    store: u64,
}

/// Refuses a volume that did not open with the header in front, and any resizing that would lose a volume.
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
        return Err(restore_first(opened.position));
    }
    // Sizes in headers are valid since version 4 (7.1a, Volumes.c, `ReadVolumeHeader`).
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

/// The size in the store of a volume with `size` bytes of data, in bytes.
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
    // The whole area is written: it may hold old data that are cut off, or a hole.
    let mut backup = Step { what: "the backup header at the new end".into(), ..random_bytes(new)? };
    backup.bytes[..header::SIZE].copy_from_slice(&seal.close(&plain)?);
    Ok(match to.store >= store.len() {
        true => [vec![backup], wipes, vec![primary]].concat(),
        false => [vec![primary, backup], wipes].concat(),
    })
}

/// The old backup headers that the password opens and that nobody must find again. They are right after the data and, if they have
/// the same keys, at the end of a longer file.
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

/// Whether the backup header at the end of the store has the same keys, whatever size it gives.
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

/// Returns the parts of a range that another range does not cover.
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
