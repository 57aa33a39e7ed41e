//! Repairs the first sector, which locates the copies of the metadata, and damaged copies, from one intact copy.
//!
//! A checksum reveals damage, but not who wrote a copy. So if intact copies differ, a credential must prove which one is valid, and
//! nothing is written without it.

use claviger_crypto::Secret;

use super::boot::{self, Boot};
use super::convert::log::block_room;
use super::layout::Places;
use super::metadata::{Copy, Metadata, SIGNATURE, VISTA};
use super::{FoundCopies, NAME, VMK, cut_short, find, first_sector, is_decrypted, read_copies, unlock, write};
use crate::advice::Warning;
use crate::credential::Unlock;
use crate::edit::{Edit, Seen, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::detect::{self, Kind};
use crate::filesystems::magic;
use crate::formats::Prepared;
use crate::store::Store;

/// How many bytes of the beginning are checked for other formats.
const LOOKED_AT: u64 = 128 << 10;

/// The number of the sector with FAT's boot sector backup, and To Go's backup of the discovery volume's boot sector.
const BACKUP_SECTOR: u64 = 6;

/// Prepares the steps that bring all copies and the first sector in line with the valid copy.
///
/// # Errors
/// `Malformed` if no copy is intact, or none is proven; `Misuse` if a credential is needed to find the valid one; those of
/// [`unlock::open`], `Cancelled`, `Io`.
pub(super) fn repair(store: &dyn Store, with: &Unlock<'_>) -> Result<Prepared> {
    let mut sector = [0; boot::LEN];
    if store.len() < sector.len() as u64 {
        return Err(ErrorKind::NotThisFormat("there is no room for a volume".to_owned()).into());
    }
    store.read_at(0, &mut sector)?;
    let there = Boot::parse(&sector);
    if there.is_none() {
        refuse_another(store)?;
    }
    let (found, copies, _) = located(store, &sector, with)?;
    // Copies to which no first sector points may belong to an earlier volume.
    let led = there.is_some_and(|boot| boot.leads_to(&copies[0].metadata));
    let (counts, proven) = counting(&copies, led, with)?;
    let metadata = &counts.metadata;
    let places = Places::of(&found, metadata, store.len())?;
    if places.size > store.len() {
        return Err(cut_short(places.size, store.len()));
    }
    let right = whole(store, counts)?;
    let mut steps = Vec::new();
    for (what, at) in write::STEPS.iter().zip(metadata.copies) {
        let mut there = vec![0; right.len()];
        store.read_at(at, &mut there)?;
        if there != right {
            if !proven && !was_a_copy(&there, &right, counts.block.len()) {
                return Err(something_else(what, at, metadata));
            }
            steps.push(Step { what: (*what).to_owned(), at, bytes: right.clone() });
        }
    }
    let mut warnings = Vec::new();
    match first_sector(store, &sector, &found, metadata)? {
        FirstSector::Right => {}
        FirstSector::New(bytes, about) => {
            warnings.extend(about);
            steps.push(Step { what: "the first sector".to_owned(), at: 0, bytes: bytes.to_vec() });
        }
        FirstSector::Unknown(what) => warnings.push(what),
    }
    let seen = vec![Seen { at: counts.at, bytes: counts.block.clone() }, Seen { at: 0, bytes: sector.to_vec() }];
    let edit = Edit::new(steps).made_for(seen);
    Ok(Prepared { edit, format: NAME, hidden: false, keyslot: None, derivation: None, warnings })
}

/// Returns the copies to which the first sector points, or else those found in the whole store.
fn located(store: &dyn Store, sector: &[u8; boot::LEN], with: &Unlock<'_>) -> Result<FoundCopies> {
    let error = match Boot::parse(sector).map(|boot| read_copies(store, boot)) {
        Some(Ok(found)) => return Ok(found),
        Some(Err(error)) if matches!(error.kind, ErrorKind::Io(_)) => return Err(error),
        Some(Err(error)) => error,
        None => ErrorKind::NotThisFormat("it has no intact BitLocker metadata".to_owned()).into(),
    };
    let go_on = |at| {
        if let Some(progress) = with.progress {
            progress(at, store.len());
        }
        !with.cancelled()
    };
    read_copies(store, find::anywhere(store, &go_on)?.ok_or(error)?)
}

/// Refuses to overwrite another format's first sector.
fn refuse_another(store: &dyn Store) -> Result<()> {
    let mut start = vec![0; store.len().min(LOOKED_AT) as usize];
    store.read_at(0, &mut start)?;
    let other = detect::kind(&start).map(Kind::described).or_else(|| magic::compressed_or_encrypted(&start));
    other.map_or(Ok(()), |what| {
        Err(Error::misuse(format!("it begins with {what}, which a repair would destroy"))
            .hint("Nothing was changed. To keep the BitLocker volume instead, overwrite the first sectors with zeros."))
    })
}

/// Whether the bytes in a copy's place are a damaged copy. An unsealed place may belong to anything else.
fn was_a_copy(there: &[u8], right: &[u8], block: usize) -> bool {
    let same = there.iter().zip(right).take(block).filter(|(there, right)| there == right).count();
    there.starts_with(SIGNATURE) || same > block / 2
}

fn something_else(what: &str, at: u64, metadata: &Metadata) -> Error {
    let what = format!(
        "writing {what} at byte {at} would overwrite something else; only a credential proves that it belongs there"
    );
    let hint = match metadata.version == VISTA || is_decrypted(metadata) {
        true => "Nothing was changed. These metadata are not sealed, so no credential proves them.",
        false => GIVE_ONE,
    };
    Error::misuse(what).hint(hint)
}

/// The hint if a credential is needed.
const GIVE_ONE: &str =
    "Give a password, a recovery password, a startup key or the volume master key. Nothing was changed.";

/// Returns the valid copy, and whether it is proven to be sealed with the key: the first one if all are equal and the first sector
/// points there, else the first one that is proven.
fn counting<'a>(copies: &'a [Copy], led: bool, with: &Unlock<'_>) -> Result<(&'a Copy, bool)> {
    let first = &copies[0];
    if led && copies.iter().all(|copy| copy.block == first.block && copy.validation == first.validation) {
        let given = !with.credentials.is_empty() || unlock::is_suspended(&first.metadata);
        if !given || is_decrypted(&first.metadata) {
            return Ok((first, false));
        }
        let vmk = match unlock::open(&first.metadata, with) {
            Err(e) if !with.credentials.is_empty() => return Err(e),
            opened => opened.ok().and_then(|opened| opened.vmk),
        };
        return Ok((first, vmk.is_some_and(|vmk| unlock::sealed_by(first, &vmk))));
    }
    // Anybody can write a copy that needs no key, and an older copy may be one: it proves nothing if another copy is sealed.
    let open = |copy: &Copy| unlock::is_open(&copy.metadata);
    let sealed = copies.iter().any(|copy| !open(copy));
    let mut error = None;
    for copy in copies.iter().filter(|copy| !sealed || !open(copy)) {
        let vmk = match is_decrypted(&copy.metadata) {
            // Its hash is not encrypted and needs no key.
            true => Ok(Some(Secret::zeroed(VMK))),
            false if with.credentials.is_empty() && !unlock::is_open(&copy.metadata) => continue,
            false => unlock::open(&copy.metadata, with).map(|opened| opened.vmk),
        };
        match vmk {
            Ok(Some(vmk)) => {
                if let Some(proven) = copies.iter().find(|copy| unlock::proven(copy, &vmk)) {
                    return Ok((proven, unlock::sealed_by(proven, &vmk)));
                }
                if copy.seals_nothing() {
                    return Ok((copy, false));
                }
            }
            Ok(None) => {}
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => return Err(e),
            Err(e) => error = error.or(Some(e)),
        }
    }
    if with.credentials.is_empty() {
        let what = match led {
            true => "the copies of the metadata differ; a credential is needed to tell which one is valid",
            false => "the first sector does not point to the metadata; a credential is needed to prove them",
        };
        return Err(Error::misuse(what).hint(GIVE_ONE));
    }
    let none = || ErrorKind::Malformed {
        field: "hash of the metadata",
        offset: first.at,
        what: "no copy matches the sealed hash".to_owned(),
    };
    Err(error.unwrap_or_else(|| none().into()))
}

/// The contents of a copy's area: the block, its validation, and zeros up to where a conversion may put its log.
fn whole(store: &dyn Store, copy: &Copy) -> Result<Vec<u8>> {
    let written = copy.block.len() + copy.validation.bytes(&copy.block).len();
    let mut bytes = vec![0; written];
    store.read_at(copy.at, &mut bytes)?;
    bytes.resize(written.max(block_room(&copy.metadata) as usize), 0);
    Ok(bytes)
}

/// The intended first sector.
enum FirstSector {
    Right,
    New(Box<[u8; boot::LEN]>, Option<Warning>),
    /// It cannot be determined.
    Unknown(Warning),
}

fn first_sector(store: &dyn Store, sector: &[u8; boot::LEN], found: &Boot, metadata: &Metadata) -> Result<FirstSector> {
    if let Some(there) = Boot::parse(sector) {
        if there.leads_to(metadata) {
            return Ok(FirstSector::Right);
        }
        if let Some(led) = boot::leading_to(sector, metadata) {
            return Ok(FirstSector::New(Box::new(led), None));
        }
    }
    let mut backup = [0; boot::LEN];
    let at = BACKUP_SECTOR * u64::from(found.sector_size);
    if at + boot::LEN as u64 <= store.len() {
        store.read_at(at, &mut backup)?;
        if Boot::parse(&backup).is_some_and(|backup| backup.kind == boot::Kind::ToGo && backup.leads_to(metadata)) {
            return Ok(FirstSector::New(Box::new(backup), None));
        }
    }
    let unknown = |what: &str| Ok(FirstSector::Unknown(Warning::from(what)));
    match (found.kind, found.eow) {
        (boot::Kind::Vista, _) => {
            unknown("The first sector cannot be rebuilt: on Windows Vista it is the only copy of the file system's.")
        }
        (boot::Kind::EncryptOnWrite, None) => {
            unknown("The first sector cannot be rebuilt: the record of what is encrypted was not found.")
        }
        (kind, eow) => {
            let about = (kind == boot::Kind::ToGo).then(|| {
                Warning::from(
                    "The first sector will be rebuilt without the discovery volume, which computers without \
                     BitLocker show.",
                )
            });
            Ok(FirstSector::New(Box::new(first_sector::plain(found.sector_size, metadata.copies, eow)), about))
        }
    }
}
