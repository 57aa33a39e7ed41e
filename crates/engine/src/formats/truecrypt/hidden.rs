//! Hidden volumes: a volume in the free space at the end of another, with headers of its own after those of the outer volume. Only
//! its password shows that it exists.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::Secret;
use claviger_crypto::pool::Pool;

use super::create::{fill, not_too_cheap};
use super::positions::Position;
use super::seal::Seal;
use super::suites::{Mode, UNIT};
use super::{
    DataArea, Family, HEADER_AREA, HEADER_GROUP, HeaderCopies, HiddenRoom, OpenedHeader, Tried, header, keyfiles,
};
use crate::credential::{Credential, HeaderChoice, Protect, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::free_tail::{FreeTail, free_tail};
use crate::filesystems::magic;
use crate::formats::filling::{cancelled, not_cancelled};
use crate::random;
use crate::spec::Spec;
use crate::store::Store;
use crate::volume::Volume;

/// The smallest hidden volume, in bytes: the smallest FAT file system that 7.1a makes (Volumes.h, `TC_MIN_HIDDEN_VOLUME_SIZE`
/// less what is reserved after it).
const MIN_SIZE: u64 = 9 * 4096;

/// Hidden volumes smaller than this, in bytes and including the reserved space after them, reserve less of it
/// (`TC_VOLUME_SMALL_SIZE_THRESHOLD`).
const SMALL: u64 = 2 << 20;

/// The space between the end of a hidden volume and that of the outer one, in bytes. Some programs write to the last sectors of a
/// file system although those are free, which would trigger the protection for nothing (Format.c, `GetVolumeDataAreaSize`).
const RESERVED_SMALL: u64 = 4096;
const RESERVED: u64 = HEADER_GROUP;

/// The multiple to which the largest possible size is rounded down, in bytes.
const ROUND: u64 = 4096;

// ---- Creation

/// Returns how large a hidden volume can be.
pub(super) fn room(family: &Family, store: &Arc<dyn Store>, outer: &Unlock<'_>) -> Result<HiddenRoom> {
    Ok(Outer::open(family, store, outer)?.room())
}

/// Makes a hidden volume.
///
/// The headers of an earlier hidden volume are erased first, and the new ones written last. So an interrupted creation leaves
/// nothing that opens. Only between the last two writes the volume is already complete and opens by its backup header.
pub(super) fn create(
    family: &Family,
    store: &Arc<dyn Store>,
    outer: &Unlock<'_>,
    spec: &Spec<'_>,
    first: &[Credential],
) -> Result<()> {
    let (suite, derivation) = family.chosen(spec)?;
    let password = keyfiles::password(family, first)?;
    not_too_cheap(&derivation, spec.pim, first, false)?;
    let memory = outer.memory;
    let outer = Outer::open(family, store, outer)?;
    let area = outer.area(spec.hidden_size)?;
    outer.refuse_its_own(first, spec)?;

    let keys = random::secret(suite.key_len(Mode::Xts))?;
    let data = header::Extent { start: area.start, size: area.end - area.start, hidden: true };
    let plain = header::compose(family.rules, &[0; header::SALT], data, &keys);
    let cancelled = || cancelled(spec);
    let seal = Seal { suite, mode: Mode::Xts, derivation, password: &password, memory, cancelled: &cancelled };
    let (primary, backup) = (seal.close(&plain)?, seal.close(&plain)?);
    not_cancelled(spec)?;

    let store = &**store;
    let places = HeaderPlaces { primary: HEADER_AREA, backup: store.len() - HEADER_AREA };
    places.erase(store)?;
    if !spec.quick {
        fill(store, area, suite, spec, &Pool::for_this_machine(Duration::from_micros(50)))?;
        store.flush()?;
    }
    not_cancelled(spec)?;
    places.write(store, primary, backup).inspect_err(|_| {
        // An error here is ignored: the store may be gone.
        let _ = places.erase(store);
    })
}

/// Whether the backup header at the end of the store belongs to the volume of `found`: then the end is the volume's own.
fn its_backup_opens(locked: &HeaderCopies, found: &OpenedHeader, with: &Unlock<'_>) -> Result<bool> {
    let header = HeaderChoice::One { hidden: false, backup: true };
    match locked.tried(&Unlock { header, ..*with }) {
        Ok(twin) => Ok(Secret::copy_from(header::keys(&twin.found.plain)).same_as(header::keys(&found.plain))),
        Err(e) if matches!(e.kind, ErrorKind::Cancelled | ErrorKind::Io(_)) => Err(e),
        Err(_) => Ok(false),
    }
}

/// Whether sectors from all over a range of the store look random.
fn looks_random(store: &dyn Store, range: Range<u64>) -> Result<bool> {
    /// How many sectors are sampled.
    const SAMPLES: u64 = 128;
    let sectors = (range.end - range.start) / UNIT;
    let mut sector = [0; UNIT as usize];
    for i in 0..SAMPLES.min(sectors) {
        store.read_at(
            range.start + (u128::from(sectors) * u128::from(i) / u128::from(SAMPLES)) as u64 * UNIT,
            &mut sector,
        )?;
        if !magic::looks_random(&sector) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The offsets of a hidden volume's two headers, in bytes.
struct HeaderPlaces {
    primary: u64,
    backup: u64,
}

impl HeaderPlaces {
    /// Overwrites both headers with random bytes, which look the same as headers.
    fn erase(&self, store: &dyn Store) -> Result<()> {
        for at in [self.primary, self.backup] {
            let mut bytes = [0; header::SIZE];
            random::fill(&mut bytes)?;
            store.write_clobbering(at, &mut bytes)?;
        }
        Ok(store.flush()?)
    }

    fn write(&self, store: &dyn Store, mut primary: Vec<u8>, mut backup: Vec<u8>) -> Result<()> {
        store.write_clobbering(self.backup, &mut backup)?;
        store.flush()?;
        store.write_clobbering(self.primary, &mut primary)?;
        Ok(store.flush()?)
    }
}

/// An outer volume that can contain a hidden one.
struct Outer {
    locked: HeaderCopies,
    data: DataArea,
    /// In bytes of the outer volume.
    tail: FreeTail,
    /// Whether the stored bytes of the tail look random.
    looks_random: bool,
}

impl Outer {
    fn open(family: &Family, store: &Arc<dyn Store>, with: &Unlock<'_>) -> Result<Self> {
        let locked = family.locked(&**store)?;
        let with = &Unlock { protect: None, truncated: false, ..*with };
        let Tried { found, .. } = locked.tried(with)?;
        let copy = &locked.copies[found.copy];
        if copy.position.hidden {
            return Err(Error::misuse("this password opens a hidden volume, which cannot contain another")
                .hint("Give the outer volume's password. Nothing was changed."));
        }
        if !found.fields.has_backups {
            return Err(Error::unsupported("new hidden volumes in volumes made before TrueCrypt 6.0"));
        }
        let data = DataArea::of(&found.fields, copy, store.len())?;
        if copy.position.system || data.end().checked_add(HEADER_GROUP).is_none_or(|end| end > store.len()) {
            return Err(Error::unsupported("hidden volumes in a volume without room for their headers"));
        }
        if data.end() + HEADER_GROUP < store.len() && !its_backup_opens(&locked, &found, with)? {
            let ends = data.end() + HEADER_GROUP;
            return Err(Error::unsupported(format!(
                "hidden volumes in a volume that is shorter than its file ({ends} of {} bytes)",
                store.len()
            ))
            .hint("Nothing was changed. Copy the volume to a file or partition of exactly its size."));
        }
        let layout = data.layout(&found, copy, &**store, with, &mut Vec::new())?.read_only();
        let tail = free_tail(&Volume::new(Arc::clone(store), layout))?;
        let looks_random = looks_random(&**store, data.start + tail.at..data.start + tail.end)?;
        Ok(Self { locked, data, tail, looks_random })
    }

    fn room(&self) -> HiddenRoom {
        let space = self.end(u64::MAX).saturating_sub(self.start());
        let small = self.end(0).saturating_sub(self.start()).min(SMALL - RESERVED_SMALL - UNIT);
        // A small volume reserves less after it, so it can be larger than the smallest of the others.
        let largest = space.max(small);
        HiddenRoom {
            largest: largest - largest % ROUND,
            smallest: MIN_SIZE,
            filesystem: self.tail.filesystem,
            free_at: self.tail.at,
            outer_size: self.data.len,
            looks_random: self.looks_random,
        }
    }

    /// Where a hidden volume can begin, in bytes of the outer volume.
    fn start(&self) -> u64 {
        self.tail.at.next_multiple_of(UNIT)
    }

    /// Where a hidden volume of `size` bytes ends, in bytes of the outer volume.
    fn end(&self, size: u64) -> u64 {
        let reserved = if size.saturating_add(RESERVED_SMALL) < SMALL { RESERVED_SMALL } else { RESERVED };
        let end = self.data.len.saturating_sub(reserved).min(self.tail.end);
        end - end % UNIT
    }

    /// Where the data of a hidden volume go, in bytes of the store.
    fn area(&self, size: Option<u64>) -> Result<Range<u64>> {
        let room = self.room();
        let size = size.unwrap_or(room.largest);
        room.check(size)?;
        let end = self.end(size);
        Ok(self.data.start + end - size..self.data.start + end)
    }

    /// Refuses a password that opens a hidden volume already, if one derivation can tell.
    fn refuse_its_own(&self, first: &[Credential], spec: &Spec<'_>) -> Result<()> {
        let chosen = self.locked.family.chosen(spec)?;
        let with = Unlock { hash: Some(chosen.1.kdf.name), pim: spec.pim, cancel: spec.cancel, ..Unlock::with(first) };
        match self.locked.hidden_only().tried(&with).map_err(|e| e.kind) {
            Ok(_) => Err(Error::misuse("this password already opens an existing hidden volume")
                .hint("Nothing was changed. To replace that volume, create the new one with another password.")),
            Err(ErrorKind::Cancelled) => Err(ErrorKind::Cancelled.into()),
            Err(_) => Ok(()),
        }
    }
}

// ---- Protection

/// The error for a first password that opened the hidden volume instead of the outer one.
pub(super) fn swapped() -> Error {
    Error::new(ErrorKind::WrongHiddenCredential("the credential given for the outer volume opens it".into()))
        .hint("Give the outer volume's password to open it, and the hidden volume's to protect that.")
}

impl HeaderCopies {
    /// Returns only the headers of hidden volumes.
    fn hidden_only(&self) -> Self {
        Self { family: self.family, copies: self.copies.iter().filter(|c| c.position.hidden).cloned().collect() }
    }

    /// Finds the hidden volume to protect, and the ranges of the outer volume that must not change.
    pub(super) fn protection(
        &self,
        protect: &Protect<'_>,
        with: &Unlock<'_>,
        outer: &DataArea,
        store_len: u64,
    ) -> Result<(Tried, Vec<Range<u64>>)> {
        let Protect { credentials, hash, pim } = *protect;
        let header = HeaderChoice::Any;
        let with = Unlock { credentials, hash, pim, cipher: None, header, protect: None, ..*with };
        let hidden = self.hidden_only();
        let tried = hidden.tried(&with).map_err(|error| match error.kind {
            ErrorKind::WrongCredential(why) => Error { kind: ErrorKind::WrongHiddenCredential(why), ..error },
            _ => error,
        })?;
        let ranges = hidden.ranges(&tried.found, outer, store_len)?;
        Ok((tried, ranges))
    }

    /// The ranges of the outer volume that must not change: those parts of the hidden volume's data and headers that lie in it.
    /// (7.1a, Volume.cpp, `Open`: the data, and the header of an old hidden volume.)
    fn ranges(&self, found: &OpenedHeader, outer: &DataArea, store_len: u64) -> Result<Vec<Range<u64>>> {
        let copy = &self.copies[found.copy];
        let hidden = DataArea::of(&found.fields, copy, store_len)?;
        if hidden.start < outer.start || hidden.end() > outer.end() {
            return Err(Error::new(ErrorKind::Malformed {
                field: "beginning of the data",
                offset: copy.at,
                what: "the hidden volume does not lie within the outer one".into(),
            }));
        }
        // The ranges of the header and its backup, whichever of them opened.
        let same_age = |p: &&Position| p.hidden && p.old != found.fields.has_backups;
        let places = self.family.positions.iter().filter(same_age).filter_map(|p| p.in_store(store_len));
        let headers = places.map(|at| at..at + header::SIZE as u64);
        let within = |range: Range<u64>| {
            let (start, end) = (range.start.max(outer.start), range.end.min(outer.end()));
            (start < end).then(|| start - outer.start..end - outer.start)
        };
        Ok(headers.chain(std::iter::once(hidden.start..hidden.end())).filter_map(within).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::TRUECRYPT;
    use super::*;

    fn outer(len: u64, at: u64, end: u64) -> Outer {
        let locked = HeaderCopies { family: TRUECRYPT, copies: Vec::new() };
        Outer {
            locked,
            data: DataArea { start: HEADER_GROUP, len },
            tail: FreeTail { at, end, filesystem: "FAT16" },
            looks_random: true,
        }
    }

    #[test]
    fn the_largest_hidden_volume_lies_in_the_free_tail_and_leaves_what_is_reserved() {
        for len in [1 << 20, (2 << 20) + 4096, (2 << 20) + 512, 5 << 20, (5 << 20) + 512] {
            for at in (0..len).step_by(12_800) {
                for end in [len, len - 512, len - 300_000] {
                    let outer = outer(len, at, end.max(at));
                    let HiddenRoom { largest, smallest, .. } = outer.room();
                    assert_eq!(outer.area(None).is_ok(), largest >= smallest);
                    for size in [smallest, largest / 2 - largest / 2 % UNIT, largest] {
                        let Ok(area) = outer.area(Some(size)) else { continue };
                        assert_eq!(area.end - area.start, size);
                        assert!(area.start >= HEADER_GROUP + at, "{len} {at} {end} {size}");
                        assert!(area.end <= HEADER_GROUP + end.min(len - RESERVED_SMALL), "{len} {at} {end} {size}");
                    }
                    // Only a little space is left unused.
                    assert!(at + largest + RESERVED + ROUND + UNIT >= end.min(len), "{len} {at} {end}: {largest}");
                    for size in [largest + ROUND, largest + (1 << 20), u64::MAX - 511, smallest - 512, smallest + 1] {
                        assert!(outer.area(Some(size)).is_err() || size < largest, "{len} {at} {end}: {size}");
                    }
                }
            }
        }
    }
}
