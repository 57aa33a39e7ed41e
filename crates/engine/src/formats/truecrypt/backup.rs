//! Header backups: in a file, or the copy at the end of the volume.
//!
//! The file has the format of TrueCrypt and VeraCrypt, which is that of a volume's beginning: the normal volume's header area, then
//! the hidden volume's. Each header is encrypted with a new salt; random bytes stand in for a missing one (7.1a, CommandLine and
//! UserInterface.cpp, `UserInterface::BackupVolumeHeaders`).
//!
//! A system's backup is only its header of 512 bytes, as in `EFI/VeraCrypt/svh_bak` on VeraCrypt's rescue disk for EFI (VeraCrypt
//! 1.26, BootEncryption.cpp, `CreateRescueIsoImage`).

use claviger_crypto::Secret;

use super::kdfs::Derivation;
use super::opened::{OpenedVolumeHeader, copy_at, step};
use super::seal::Seal;
use super::shifted::Shift;
use super::{
    Family, HEADER_AREA, HEADER_GROUP, HeaderCopies, HeaderCopy, OLD_HEADER, UNIT, header, keyfiles, positions, system,
};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, HeaderChoice, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
use crate::formats::{HeaderBackup, Prepared, RestoreFrom};
use crate::random;
use crate::store::Store;
use crate::volume::Payload;

/// The size of a backup of a volume made before TrueCrypt 6.0: two headers, in bytes (7.1a, `TC_VOLUME_HEADER_SIZE_LEGACY * 2`).
const OLD_GROUP: u64 = 2 * OLD_HEADER;

/// The number of data sectors sampled to see whether keys belong to them.
const LOOKED_AT: u64 = 128;

pub(super) fn back_up(
    family: &Family,
    store: &dyn Store,
    with: &Unlock<'_>,
    hidden: Option<&Unlock<'_>>,
) -> Result<HeaderBackup> {
    let first = OpenedVolumeHeader::of_volume_or_system(family, store, with)?;
    let second = hidden.map(|with| hidden_beside(family, store, &first, with).map(|h| (h, with))).transpose()?;
    let keyed = |(opened, with): (OpenedVolumeHeader, &Unlock<'_>)| {
        let (password, derivation) = (keyfiles::password(family, with.credentials)?, opened.found.derivation);
        Ok((opened, password, derivation))
    };
    let headers = [(first, with)].into_iter().chain(second).map(keyed).collect::<Result<Vec<_>>>()?;
    written(family, with, headers)
}

/// A backup of the header that `with` opens, encrypted for other credentials.
pub(super) fn back_up_under(
    family: &Family,
    store: &dyn Store,
    with: &Unlock<'_>,
    new: &[Credential],
) -> Result<HeaderBackup> {
    let opened = OpenedVolumeHeader::of_volume_or_system(family, store, with)?;
    let password = keyfiles::password(family, new)?;
    let derivation = opened.found.derivation.kdf.derivation(None, opened.position.system);
    written(family, with, vec![(opened, password, derivation)])
}

/// Writes a backup with these headers, the outer volume's first, each encrypted for its password.
fn written(
    family: &Family,
    with: &Unlock<'_>,
    all: Vec<(OpenedVolumeHeader, Secret, Derivation)>,
) -> Result<HeaderBackup> {
    let first = &all[0].0;
    let area = if first.found.fields.has_backups { HEADER_AREA } else { OLD_HEADER } as usize;
    let mut bytes = vec![0; if first.position.system { header::SIZE } else { 2 * area }];
    random::fill(&mut bytes)?;
    let mut headers = Vec::new();
    let mut warnings = Vec::new();
    for (opened, password, derivation) in all {
        let plain = opened.found.plain;
        let (suite, mode) = (opened.found.suite, opened.found.mode);
        let seal =
            Seal { suite, mode, derivation, password: &password, memory: with.memory, cancelled: &|| with.cancelled() };
        let at = if opened.position.hidden { area } else { 0 };
        bytes[at..][..header::SIZE].copy_from_slice(&seal.close(&plain)?);
        headers.push(match opened.position {
            position if position.system => position.name.name(),
            position if position.hidden => "hidden",
            _ => "primary",
        });
        warnings.extend(opened.warnings);
    }
    Ok(HeaderBackup { bytes, format: family.name, headers, warnings })
}

/// The hidden volume inside the volume that `first` is the header of.
fn hidden_beside(
    family: &Family,
    store: &dyn Store,
    first: &OpenedVolumeHeader,
    with: &Unlock<'_>,
) -> Result<OpenedVolumeHeader> {
    let second = OpenedVolumeHeader::of_volume_or_system(family, store, with)?;
    if !second.position.hidden || first.position.hidden {
        return Err(Error::misuse("give the outer volume's password first, then the hidden volume's"));
    }
    if second.found.fields.has_backups != first.found.fields.has_backups {
        return Err(Error::unsupported("a backup with headers of two generations in one file"));
    }
    Ok(second)
}

pub(super) fn restore(
    family: &Family,
    store: &dyn Store,
    from: RestoreFrom<'_>,
    with: &Unlock<'_>,
    unproven: bool,
) -> Result<Prepared> {
    let mut opened = match from {
        RestoreFrom::Backup(file) => in_backup(family, store, file, with)?,
        RestoreFrom::Embedded => {
            OpenedVolumeHeader::of(family, store, &Unlock { header: embedded(with.header), truncated: false, ..*with })?
        }
    };
    // The trials' warnings that other copies do not open are dropped: that is why the backup is used.
    opened.warnings.clear();
    if let RestoreFrom::Embedded = from
        && let Shift::By(shift) | Shift::Unclear(shift) = opened.shift(store, with)?
    {
        return Err(elsewhere(shift));
    }
    let len = store.len();
    if opened.data_end() > len {
        return Err(Error::misuse(format!(
            "this header belongs to a volume whose data end at byte {}, but the file has {len} bytes; nothing was \
             changed",
            opened.data_end()
        ))
        .hint("The backup may be another volume's, or the file was cut short."));
    }
    let proof = proof(family, store, &opened, with)?;
    let in_place = matches!(from, RestoreFrom::Embedded) && opened.data_end() == len.saturating_sub(HEADER_GROUP);
    match proof {
        Proof::OtherVolume if !unproven => {
            return Err(Error::misuse(
                "the current header opens with this password too but holds other keys: the backup is another \
                 volume's or an older one's; nothing was changed",
            )
            .hint("Restoring it would make the current volume unreadable. If that is intended, force it."));
        }
        Proof::OtherBorder(present) if !unproven => return Err(other_border(&opened, present)),
        Proof::Data if !unproven && opened.position.system && ends_in_the_clear(store, &opened)? => {
            return Err(Error::misuse(
                "the backup's header describes a larger encrypted part than there is: its end is in the clear; \
                 nothing was changed",
            )
            .hint(
                "Rescue disks made before the encryption and old backups look like this. If the backup is right, \
                 force it.",
            ));
        }
        Proof::None if !unproven && !in_place => {
            return Err(Error::misuse(
                "nothing shows that this header belongs to this volume: its keys decrypt the data to noise; nothing \
                 was changed",
            )
            .hint("The volume is empty, or it is the wrong one. If you are sure that it is the right one, force it."));
        }
        _ => {}
    }
    let password = keyfiles::password(family, with.credentials)?;
    let (suite, mode, derivation) = (opened.found.suite, opened.found.mode, opened.found.derivation);
    let seal =
        Seal { suite, mode, derivation, password: &password, memory: with.memory, cancelled: &|| with.cancelled() };
    opened.warnings.extend(overwritten(store, &opened)?.map(Warning::from));
    let steps = match from {
        RestoreFrom::Backup(_) => opened.steps(family, store, with, &seal)?,
        RestoreFrom::Embedded if proof == Proof::SameVolume => Vec::new(),
        RestoreFrom::Embedded => {
            let (position, at) = opened.place(family, len, false).expect("a volume with a backup has a front");
            vec![step(position, at, &opened.found.plain, &seal)?]
        }
    };
    Ok(opened.prepared(family, &derivation, steps))
}

/// The error for a header that would not be written at the volume's beginning.
fn elsewhere(shift: i64) -> Error {
    let by = shift.unsigned_abs();
    Error::misuse(match shift {
        ..0 => {
            format!("{by} bytes are missing at the front of the file, so the header does not fit; nothing was changed")
        }
        _ => format!("the file has {by} extra bytes in front of the volume; nothing was changed"),
    })
    .advise(Advice::CompleteCopy { shift })
}

/// Whether the end of the part that the header calls encrypted is in the clear. Discarded sectors of a solid-state disk count as
/// neither.
fn ends_in_the_clear(store: &dyn Store, opened: &OpenedVolumeHeader) -> Result<bool> {
    let encrypted = header::encrypted_size(&opened.found.plain).min(opened.data.len);
    let len = encrypted.min(LOOKED_AT * UNIT);
    let mut bytes = vec![0; len as usize];
    store.read_at(opened.data.start + encrypted - len, &mut bytes)?;
    let clear = |sector: &&[u8]| !magic::looks_random(sector) && sector.iter().any(|byte| *byte != sector[0]);
    Ok(bytes.chunks(UNIT as usize).filter(clear).count() as u64 > len / UNIT / 8)
}

/// The error for a backup whose header gives another encrypted part of the system than the header on the disk.
fn other_border(opened: &OpenedVolumeHeader, present: u64) -> Error {
    Error::misuse(format!(
        "the current header records {present} encrypted bytes, the backup {}: the difference would become \
         unreadable; nothing was changed",
        header::encrypted_size(&opened.found.plain)
    ))
    .hint("The current header is sound. If the backup is right nevertheless, force it.")
}

/// Returns what a header in front would overwrite, if that has a signature: a partition table that an installer wrote over a
/// volume, or a disk that is not a volume.
fn overwritten(store: &dyn Store, opened: &OpenedVolumeHeader) -> Result<Option<String>> {
    let mut start = vec![0; store.len().min(1 << 17) as usize];
    store.read_at(0, &mut start)?;
    let known = magic::known(&start).filter(|_| !opened.position.hidden && !opened.position.system);
    Ok(known.map(|what| format!("The header's position at the beginning holds {what}.")))
}

/// The embedded copies among the requested headers.
fn embedded(wanted: HeaderChoice) -> HeaderChoice {
    match wanted {
        HeaderChoice::One { hidden, .. } => HeaderChoice::One { hidden, backup: true },
        HeaderChoice::Any | HeaderChoice::Backup => HeaderChoice::Backup,
    }
}

/// Opens a header in a backup file as a header of the volume in `store`.
fn in_backup(family: &Family, store: &dyn Store, file: &dyn Store, with: &Unlock<'_>) -> Result<OpenedVolumeHeader> {
    if let Some(at) = system::in_backup(family, file)? {
        return system_in_backup(family, store, file, at, with);
    }
    let area = match file.len() {
        HEADER_GROUP => HEADER_AREA,
        OLD_GROUP if family.rules.before_backups => OLD_HEADER,
        other => {
            let mut sizes = format!("{HEADER_GROUP} bytes");
            if family.rules.before_backups {
                sizes += &format!(", or {OLD_GROUP} for an old volume");
            }
            sizes += &format!(", or {} for a system, and it is not a rescue disk image", header::SIZE);
            return Err(
                ErrorKind::NotThisFormat(format!("not a header backup: it has {other} bytes, not {sizes}")).into()
            );
        }
    };
    let old = area == OLD_HEADER;
    let mut copies: Vec<HeaderCopy> = Vec::new();
    for position in family.positions.iter().filter(|p| !p.backup && !p.system && (!p.hidden || p.old == old)) {
        let Some(at) = position.in_store(store.len()) else { continue };
        let mut bytes = [0; header::SIZE];
        file.read_at(if position.hidden { area } else { 0 }, &mut bytes)?;
        copies.push(copy_at(position, at, &bytes));
    }
    let header = match with.header {
        HeaderChoice::One { hidden, .. } => HeaderChoice::One { hidden, backup: false },
        HeaderChoice::Any | HeaderChoice::Backup => HeaderChoice::Any,
    };
    let opened =
        OpenedVolumeHeader::among(HeaderCopies { family: *family, copies }, store.len(), &Unlock { header, ..*with })?;
    if opened.found.fields.has_backups == old {
        return Err(Error::new(ErrorKind::NotThisFormat(
            "not a header backup: its headers are of different generations".into(),
        )));
    }
    Ok(opened)
}

/// Opens a system's header at the offset `at` of a file as that of the disk `store`.
fn system_in_backup(
    family: &Family,
    store: &dyn Store,
    file: &dyn Store,
    at: u64,
    with: &Unlock<'_>,
) -> Result<OpenedVolumeHeader> {
    let position = &positions::SYSTEM;
    let short = || ErrorKind::NotThisFormat("the backup belongs to a system on a larger disk".into());
    let place = position.in_store(store.len()).ok_or_else(short)?;
    system::check_disk(family, store)?;
    let mut bytes = [0; header::SIZE];
    file.read_at(at, &mut bytes)?;
    let copies = vec![copy_at(position, place, &bytes)];
    let with = Unlock { header: HeaderChoice::Any, ..*with };
    OpenedVolumeHeader::among(HeaderCopies { family: *family, copies }, store.len(), &with)
}

/// The evidence that a header belongs to the volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// The header in front opens with the same password and holds the same keys.
    SameVolume,
    /// The same, but the two headers differ in how many bytes of the system are encrypted. This is the number on the disk.
    OtherBorder(u64),
    /// The header in front opens, but holds other keys.
    OtherVolume,
    /// The data decrypted with its keys are not noise.
    Data,
    /// There is no evidence.
    None,
}

fn proof(family: &Family, store: &dyn Store, opened: &OpenedVolumeHeader, with: &Unlock<'_>) -> Result<Proof> {
    let encrypted = |of: &OpenedVolumeHeader| header::encrypted_size(&of.found.plain);
    match present(family, store, opened, with) {
        Ok(present) if present.same_volume_as(opened) && encrypted(&present) != encrypted(opened) => {
            return Ok(Proof::OtherBorder(encrypted(&present)));
        }
        Ok(present) if present.same_volume_as(opened) => return Ok(Proof::SameVolume),
        Ok(_) => return Ok(Proof::OtherVolume),
        Err(e) if matches!(e.kind, ErrorKind::Io(_) | ErrorKind::Cancelled) => return Err(e),
        Err(_) => {}
    }
    Ok(if makes_sense(store, opened, with)? { Proof::Data } else { Proof::None })
}

/// Returns the header in the place that the backup's header would take, if it opens with the same password.
fn present(
    family: &Family,
    store: &dyn Store,
    opened: &OpenedVolumeHeader,
    with: &Unlock<'_>,
) -> Result<OpenedVolumeHeader> {
    let header = HeaderChoice::One { hidden: opened.position.hidden, backup: false };
    let with = Unlock { header, hash: None, cipher: None, progress: None, ..*with };
    if !opened.position.system {
        return OpenedVolumeHeader::of(family, store, &with);
    }
    let none = || ErrorKind::NotThisFormat("this disk has no system header".into());
    let copies = vec![system::header(family, store)?.ok_or_else(none)?];
    OpenedVolumeHeader::among(HeaderCopies { family: *family, copies }, store.len(), &with)
}

/// Whether anything in the first decrypted data does not look random: a boot sector, a superblock, zeros.
fn makes_sense(store: &dyn Store, opened: &OpenedVolumeHeader, with: &Unlock<'_>) -> Result<bool> {
    let copy = copy_at(opened.position, 0, &opened.found.plain);
    let Ok(layout) = opened.data.layout(&opened.found, &copy, store, with, &mut Vec::new()) else { return Ok(false) };
    let segment = &layout.segments()[0];
    let Payload::Crypt { cipher, first, .. } = &segment.payload else { return Ok(false) };
    // Nothing is encrypted after the border of a system.
    let encrypted = if opened.position.system { header::encrypted_size(&opened.found.plain) } else { segment.len };
    let mut bytes = vec![0; (LOOKED_AT * UNIT).min(segment.len).min(encrypted) as usize];
    store.read_at(segment.stored_at, &mut bytes)?;
    cipher.decrypt(*first, &mut bytes);
    let makes_sense = bytes.chunks(UNIT as usize).any(|sector| !magic::looks_random(sector));
    zeroize::Zeroize::zeroize(&mut bytes);
    Ok(makes_sense)
}
