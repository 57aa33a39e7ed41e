//! Headers that opened, to be backed up, restored, or written anew to all their places.

use claviger_crypto::Secret;

use super::kdfs::Derivation;
use super::positions::{self, Position};
use super::seal::Seal;
use super::shifted::Shift;
use super::trials::OpenedHeader;
use super::{DataArea, Family, HEADER_GROUP, HeaderCopies, HeaderCopy, UNIT, header, system};
use crate::advice::{Advice, Warning};
use crate::credential::{HeaderChoice, Unlock};
use crate::edit::{Edit, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{self, Prepared};
use crate::store::Store;

/// The largest gap between a hidden volume and the end of the outer volume's data, in bytes (7.1a, Volumes.h,
/// `TC_HIDDEN_VOLUME_HOST_FS_RESERVED_END_AREA_SIZE_HIGH`).
const HIDDEN_GAP: u64 = HEADER_GROUP;

/// A header that opened, and the data that it describes.
pub(super) struct OpenedVolumeHeader {
    pub position: &'static Position,
    /// The offset of the header, in bytes.
    pub at: u64,
    pub found: OpenedHeader,
    pub data: DataArea,
    pub warnings: Vec<Warning>,
}

impl OpenedVolumeHeader {
    /// Opens a header of a volume in the store.
    ///
    /// # Errors
    /// `Unsupported` if it is a system's header; those of the trials.
    pub fn of(family: &Family, store: &dyn Store, with: &Unlock<'_>) -> Result<Self> {
        let opened = Self::of_volume_or_system(family, store, with)?;
        match opened.position.system {
            true => Err(Error::unsupported("this operation on an encrypted system")),
            false => Ok(opened),
        }
    }

    /// Opens a header in the store, which may be a system's.
    pub fn of_volume_or_system(family: &Family, store: &dyn Store, with: &Unlock<'_>) -> Result<Self> {
        Self::among(family.locked(store)?, store.len(), with)
    }

    /// Opens one of the copies. `len` is the length of the store that contains the volume.
    pub fn among(locked: HeaderCopies, len: u64, with: &Unlock<'_>) -> Result<Self> {
        let tried = locked.tried(with)?;
        let copy = &locked.copies[tried.found.copy];
        let data = DataArea::of(&tried.found.fields, copy, len)?;
        Ok(Self { position: copy.position, at: copy.at, found: tried.found, data, warnings: tried.warnings })
    }

    /// Returns how far the data are displaced in the store.
    pub fn shift(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Shift> {
        let cipher = self.found.suite.data_cipher(self.found.mode, header::keys(&self.found.plain), with.acceleration);
        Shift::of((self.position, &self.found.fields, self.at), &*cipher, self.data.start / UNIT, store)
    }

    /// Prepares the steps after which the header opens by `derivation`.
    pub fn prepared(self, family: &Family, derivation: &Derivation, steps: Vec<Step>) -> Prepared {
        Prepared {
            edit: Edit::new(steps),
            format: family.name,
            hidden: self.position.hidden,
            keyslot: None,
            derivation: Some(formats::Derivation {
                hash: derivation.kdf.name,
                iterations: derivation.iterations,
                memory: derivation.memory,
            }),
            warnings: self.warnings,
        }
    }

    /// Where the data end, in bytes.
    pub fn data_end(&self) -> u64 {
        self.data.start + self.data.len
    }

    /// Whether both headers hold the same keys and describe the same data.
    pub fn same_volume_as(&self, other: &Self) -> bool {
        self.same_keys_as(other) && (self.data.start, self.data.len) == (other.data.start, other.data.len)
    }

    /// Whether both headers hold the same keys.
    pub fn same_keys_as(&self, other: &Self) -> bool {
        Secret::copy_from(header::keys(&self.found.plain)).same_as(header::keys(&other.found.plain))
    }

    /// The steps that write this header to all its places in the volume, encrypted anew each time. The copy in front comes first,
    /// so that one copy opens after each step.
    pub fn steps(
        &mut self,
        family: &Family,
        store: &dyn Store,
        with: &Unlock<'_>,
        seal: &Seal<'_>,
    ) -> Result<Vec<Step>> {
        let main = self.place(family, store.len(), false).ok_or_else(|| Error::misuse("the store is too short"))?;
        let mut places = vec![main];
        places.extend(self.backup_place(family, store, with)?);
        places.into_iter().map(|(position, at)| step(position, at, &self.found.plain, seal)).collect()
    }

    /// The position and offset of this volume's header in front, or of its backup.
    pub fn place(&self, family: &Family, len: u64, backup: bool) -> Option<(&'static Position, u64)> {
        if self.position.system {
            return positions::SYSTEM.in_store(len).filter(|_| !backup).map(|at| (&positions::SYSTEM, at));
        }
        let of_old = !self.found.fields.has_backups;
        let mut fitting = family.positions.iter().filter(|p| {
            // A normal volume's position serves old and new ones; that of an old hidden volume serves old ones only.
            let generation = if p.hidden { p.old == of_old } else { p.old || !of_old };
            !p.system && p.hidden == self.position.hidden && p.backup == backup && generation
        });
        fitting.find_map(|p| Some((p, p.in_store(len)?)))
    }

    /// The offset of this header's backup, if that place is surely the volume's own: right after its data, or with a backup header
    /// that opens. Behind a volume that does not fill its store, other places may hold anything.
    fn backup_place(
        &mut self,
        family: &Family,
        store: &dyn Store,
        with: &Unlock<'_>,
    ) -> Result<Option<(&'static Position, u64)>> {
        if self.position.system {
            self.warnings.push(system::ONE_HEADER.to_owned().into());
            return Ok(None);
        }
        if !self.found.fields.has_backups {
            self.warnings.push(
                "Volumes made before TrueCrypt 6.0 have one header and no embedded backup. Keep a header backup in \
                 a file."
                    .into(),
            );
            return Ok(None);
        }
        let len = store.len();
        let group = len.saturating_sub(HEADER_GROUP);
        let place = self.place(family, len, true).filter(|_| self.data_end() <= group);
        let Some(place) = place else {
            self.warnings.push("The file is cut short after the data: there is no backup header to write.".into());
            return Ok(None);
        };
        // Hidden volumes may end before the outer one, so that the outer file system does not overwrite them.
        let gap = if self.position.hidden { HIDDEN_GAP } else { 0 };
        if group - self.data_end() <= gap || self.twin_opens(family, store, with)? {
            return Ok(Some(place));
        }
        self.warnings.push(
            format!(
                "No backup header was written: the volume's data end at byte {}, and its backup's position, byte {}, \
             does not open with this password.",
                self.data_end(),
                place.1
            )
            .into(),
        );
        Ok(None)
    }

    /// Whether the backup opens with the same credentials and belongs to the same volume.
    fn twin_opens(&self, family: &Family, store: &dyn Store, with: &Unlock<'_>) -> Result<bool> {
        let header = HeaderChoice::One { hidden: self.position.hidden, backup: true };
        match Self::of(family, store, &self.narrowed(with, header)) {
            Ok(twin) => Ok(twin.same_volume_as(self)),
            Err(e) if matches!(e.kind, ErrorKind::Cancelled | ErrorKind::Io(_)) => Err(e),
            Err(_) => Ok(false),
        }
    }

    /// Returns the credentials, restricted to this header's key derivation and cipher.
    pub fn narrowed<'a>(&self, with: &Unlock<'a>, header: HeaderChoice) -> Unlock<'a> {
        let hash = Some(self.found.derivation.kdf.name);
        Unlock { hash, cipher: Some(self.found.suite.name), header, progress: None, ..*with }
    }
}

/// The step that encrypts the header `plain` anew and writes it.
pub(super) fn step(position: &Position, at: u64, plain: &[u8], seal: &Seal<'_>) -> Result<Step> {
    Ok(Step { what: format!("the {} header", position.name), at, bytes: seal.close(plain)? })
}

/// The error for a change that must wait until the header in front is sound.
pub(super) fn restore_first(position: &Position) -> Error {
    Error::misuse(format!(
        "only the {} header opens with this password: the one in front is damaged or has another password. Nothing was \
         changed",
        position.name
    ))
    .advise(Advice::RestoreEmbedded)
}

/// A header at a position in a store or in its backup.
pub(super) fn copy_at(position: &'static Position, at: u64, bytes: &[u8]) -> HeaderCopy {
    HeaderCopy { position, at, bytes: *bytes.first_chunk().expect("a whole header") }
}
