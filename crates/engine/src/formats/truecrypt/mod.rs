//! TrueCrypt 1.0 to 7.1a and VeraCrypt up to 1.26: volumes without a signature, found by trying the password on everything that
//! could be a header.
//!
//! One family, since VeraCrypt grew out of TrueCrypt: two values of [`Family`] hold the differences. All facts come from the
//! sources of TrueCrypt 7.1a and VeraCrypt 1.26, and were compared with volumes that they and other programs made. Files and
//! symbols are named where they are used; where no program is named, they are those of 7.1a.

mod backup;
mod create;
mod editor;
mod header;
mod hidden;
mod kdfs;
mod keyfiles;
mod opened;
mod positions;
mod resize;
mod seal;
mod shifted;
mod suites;
mod system;
mod trials;
mod verify;

use std::sync::Arc;
use std::time::{Duration, Instant};

use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Secret, SectorCipher};

use super::takes::{Parameter, Takes, check_opening};
use super::{Choices, Creator, Facts, Format, Header, HeaderEditor, HiddenRoom, Unlocked, Verdict, same_name};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, HeaderChoice, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
use crate::password_strength::GuessWork;
use crate::spec::Spec;
use crate::store::Store;
use crate::volume::{KernelCipher, Layout, Payload, Segment};
use header::{Fields, Rules};
use kdfs::{Derivation, Kdf};
use positions::Position;
use shifted::Shift;
use suites::{Mode, Suite, UNIT};
use trials::{HeaderTrials, OpenedHeader, Outcome};

/// The size of the area reserved for each header, in bytes (Volumes.h, `TC_VOLUME_HEADER_SIZE`).
const HEADER_AREA: u64 = 64 << 10;

/// The size of a header area and the hidden volume's header area after it. The pair is at the beginning of the file, and its
/// backup at the end (`TC_VOLUME_HEADER_GROUP_SIZE`).
const HEADER_GROUP: u64 = 2 * HEADER_AREA;

/// The header in front of a volume of TrueCrypt 1.0 to 5.1a, in bytes (`TC_VOLUME_HEADER_SIZE_LEGACY`).
const OLD_HEADER: u64 = 512;

/// The offset of the header of a hidden volume of TrueCrypt 3.0 to 5.1a, in bytes from the end
/// (`TC_HIDDEN_VOLUME_HEADER_OFFSET_LEGACY`). The hidden volume ends where its header begins.
const OLD_HIDDEN_HEADER: u64 = 1536;

/// The smallest volume that TrueCrypt opens, in bytes (`TC_MIN_VOLUME_SIZE_LEGACY`).
const SMALLEST: u64 = 37 * 512;

/// cryptsetup's type for both programs' volumes in the kernel.
const KIND: &str = "TCRYPT";

/// A format of the family.
#[derive(Clone, Copy)]
pub struct Family {
    name: &'static str,
    rules: &'static Rules,
    positions: &'static [Position],
    /// The default first.
    kdfs: &'static [Kdf],
    /// The default first.
    suites: &'static [Suite],
    /// The longest passphrase, in bytes.
    password_max: usize,
    takes: Takes,
}

/// TrueCrypt 1.0 to 7.1a.
pub static TRUECRYPT: Family = Family {
    name: "TrueCrypt",
    rules: &header::TRUECRYPT,
    positions: positions::TRUECRYPT,
    kdfs: kdfs::TRUECRYPT,
    suites: suites::TRUECRYPT,
    password_max: keyfiles::PASSWORD_MAX,
    takes: Takes {
        creating: &[Parameter::Hash, Parameter::Cipher, Parameter::HiddenVolume],
        opening: &[
            Parameter::Hash,
            Parameter::Cipher,
            Parameter::Keyfile,
            Parameter::BackupHeader,
            Parameter::HiddenVolume,
        ],
    },
};

/// VeraCrypt 1.0b to 1.26.
pub static VERACRYPT: Family = Family {
    name: "VeraCrypt",
    rules: &header::VERACRYPT,
    positions: positions::VERACRYPT,
    kdfs: kdfs::VERACRYPT,
    suites: suites::VERACRYPT,
    password_max: keyfiles::LONG_PASSWORD_MAX,
    takes: Takes {
        creating: &[Parameter::Pim, Parameter::Hash, Parameter::Cipher, Parameter::HiddenVolume],
        opening: &[
            Parameter::Pim,
            Parameter::Hash,
            Parameter::Cipher,
            Parameter::Keyfile,
            Parameter::BackupHeader,
            Parameter::HiddenVolume,
        ],
    },
};

impl Format for Family {
    fn name(&self) -> &'static str {
        self.name
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        let len = store.len();
        if len < SMALLEST {
            return Ok(Verdict::No(vec![format!("{len} bytes are too few: the smallest volume has {SMALLEST}")]));
        }
        let mut start = [0; 512];
        store.read_at(0, &mut start)?;
        if let Some(other) = magic::compressed_or_encrypted(&start) {
            return Ok(Verdict::No(vec![format!("it begins with {other}")]));
        }
        // Only the first sector is checked: what follows may be sparse in a container that was formatted quickly.
        if !magic::looks_random(&start) {
            return system::identify(self, store, &start);
        }
        let mut why = vec![format!("it begins with random-looking bytes, the only sign of {} volumes", self.name)];
        if !len.is_multiple_of(UNIT) {
            why.push(format!("its {len} bytes are not whole sectors, so if it is a volume, it was cut short"));
        }
        Ok(Verdict::Possible(why))
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        let locked = self.locked(&**store)?;
        Ok(Box::new(Stored { store: Arc::clone(store), locked }))
    }

    fn open_system(&self, disk: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        let Some(copy) = system::header(self, &**disk)? else { return Ok(None) };
        let locked = HeaderCopies { family: *self, copies: vec![copy] };
        Ok(Some(Box::new(Stored { store: Arc::clone(disk), locked })))
    }

    fn open_overwritten(&self, store: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        let mut locked = self.locked(&**store)?;
        let like_system = locked.copies.iter().any(|copy| copy.position.system);
        locked.copies.retain(|copy| copy.position.backup);
        let found = like_system && !locked.copies.is_empty();
        Ok(found.then(|| Box::new(Stored { store: Arc::clone(store), locked }) as _))
    }

    fn editor(&self) -> Option<&dyn HeaderEditor> {
        Some(self)
    }

    fn takes(&self) -> Takes {
        self.takes
    }

    fn creator(&self) -> Option<&dyn Creator> {
        Some(self)
    }

    fn check_new_passphrase(&self, passphrase: &Secret) -> Result<()> {
        keyfiles::check_len(self, passphrase).map_err(|e| e.in_format(self.name))
    }

    fn guess_work(&self, spec: &Spec<'_>) -> Option<GuessWork> {
        let (suite, derivation) = self.chosen(spec).ok()?;
        Some(derivation.guess_work(suite.key_len(Mode::Xts)))
    }

    fn backups_before_end(&self) -> &'static [u64] {
        &[HEADER_GROUP, HEADER_AREA]
    }
}

impl Creator for Family {
    fn choices(&self) -> Choices {
        Choices {
            ciphers: self.suites.iter().filter(|s| s.creatable()).map(|s| s.name).collect(),
            hashes: self.kdfs.iter().filter(|k| k.creatable).map(|k| k.name).collect(),
            complete: true,
            min_len: create::MIN_LEN,
        }
    }

    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        create::create(self, store, spec, first).map_err(|e| e.in_format(self.name))
    }

    fn stored_len(&self, plain: u64, _spec: &Spec<'_>) -> Result<u64> {
        create::stored_len(plain).map_err(|e| e.in_format(self.name))
    }

    fn check_spec(&self, len: u64, spec: &Spec<'_>) -> Result<()> {
        let checked = self.chosen(spec).and_then(|_| create::data_size(self, len));
        checked.map(drop).map_err(|e| e.in_format(self.name))
    }

    fn room_for_hidden(&self, store: &Arc<dyn Store>, outer: &Unlock<'_>) -> Result<HiddenRoom> {
        hidden::room(self, store, outer).map_err(|e| e.in_format(self.name))
    }

    fn create_hidden_volume(
        &self,
        store: &Arc<dyn Store>,
        outer: &Unlock<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
    ) -> Result<()> {
        hidden::create(self, store, outer, spec, first).map_err(|e| e.in_format(self.name))
    }
}

impl Family {
    /// Returns everything in `store` that could be a header of a volume.
    fn locked(&self, store: &dyn Store) -> Result<HeaderCopies> {
        let mut copies: Vec<HeaderCopy> = Vec::new();
        for position in self.positions {
            let Some(at) = position.in_store(store.len()) else { continue };
            let mut bytes = [0; header::SIZE];
            match store.read_at(at, &mut bytes) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => continue,
                Err(e) => return Err(e.into()),
            }
            // A sector that repeats one byte, such as a hole in a sparse file, cannot be a salt. Skipping it saves key derivations.
            if bytes.iter().any(|b| *b != bytes[0]) && copies.iter().all(|c| c.at != at) {
                copies.push(HeaderCopy { position, at, bytes });
            }
        }
        copies.extend(system::header(self, store)?);
        if copies.is_empty() {
            return Err(ErrorKind::NotThisFormat("all sectors that could be headers are empty".into()).into());
        }
        Ok(HeaderCopies { family: *self, copies })
    }
}

/// The sector at a position: a salt and a possible header.
#[derive(Clone)]
struct HeaderCopy {
    position: &'static Position,
    at: u64,
    bytes: [u8; header::SIZE],
}

impl HeaderCopy {
    fn salt(&self) -> &[u8] {
        &self.bytes[..header::SALT]
    }
}

/// Everything that could be a header of the volume.
struct HeaderCopies {
    family: Family,
    copies: Vec<HeaderCopy>,
}

/// A header that opened, its warnings, and how many trials it took.
struct Tried {
    found: OpenedHeader,
    warnings: Vec<Warning>,
    trials: u64,
    derivations: u64,
}

/// The possible headers, with the store they are in.
struct Stored {
    store: Arc<dyn Store>,
    locked: HeaderCopies,
}

impl Header for Stored {
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let Self { store, locked } = self;
        let unlocked = locked.unlocked(&**store, with).map_err(|e| e.in_format(locked.family.name));
        wipe_stack();
        unlocked
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(self.locked.family.name(), self.locked.family.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn effort(&self, with: &Unlock<'_>) -> u64 {
        self.locked.plan(with).map_or(0, |plan| plan.effort())
    }
}

impl HeaderCopies {
    fn unlocked(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        let Tried { found, mut warnings, mut trials, mut derivations } = self.tried(with)?;
        let copy = &self.copies[found.copy];
        if copy.position.system {
            if with.protect.is_some() {
                return Err(Error::unsupported("protecting a hidden volume in an encrypted system"));
            }
            let (layout, data) = system::layout(&found, store, with, &mut warnings)?;
            let facts = Facts { size: layout.len(), ..self.facts(&found, &data, with) };
            return Ok(Unlocked {
                layout,
                facts,
                warnings,
                trials,
                derivations,
                took: begun.elapsed(),
                recognised: true,
            });
        }
        let data = DataArea::of(&found.fields, copy, store.len())?;
        let mut layout = data.layout(&found, copy, store, with, &mut warnings)?;
        // The missing part in front is a segment of its own.
        let data_offset = layout.segments().last().map_or(data.start, |segment| segment.stored_at);
        let facts = Facts { data_offset, ..self.facts(&found, &data, with) };
        if let Some(protect) = &with.protect {
            if copy.position.hidden {
                return Err(hidden::swapped());
            }
            let (tried, ranges) = self.protection(protect, with, &data, store.len())?;
            layout = ranges.into_iter().fold(layout, Layout::with_protected);
            warnings.extend(tried.warnings);
            trials += tried.trials;
            derivations += tried.derivations;
        }
        Ok(Unlocked { layout, facts, warnings, trials, derivations, took: begun.elapsed(), recognised: true })
    }

    /// Finds the header that opens.
    fn tried(&self, with: &Unlock<'_>) -> Result<Tried> {
        let begun = Instant::now();
        let family = &self.family;
        let plan = self.plan(with)?;
        let password = keyfiles::password(family, with.credentials)?;
        let outcome = trials::run(&plan, &password, with)?;
        let Outcome { found, spoilt, left_out, trials, derivations } = outcome;
        if found.is_some() || spoilt.is_some() {
            with.has_opened();
        }
        let Some(found) = found else {
            let wrong = || wrong_credential(family, with, trials, begun.elapsed());
            return Err(spoilt.map(|(_, error)| error).or(left_out).unwrap_or_else(wrong));
        };
        let spoilt = match spoilt {
            // A sound header that needs something unsupported is not damaged. A backup must not overrule it, for example a backup
            // made during an in-place encryption.
            Some((rank, error)) if rank < found.copy && matches!(error.kind, ErrorKind::Unsupported { .. }) => {
                return Err(error);
            }
            other => other,
        };
        let warnings = self.header_warnings(&found, spoilt, with);
        Ok(Tried { found, warnings, trials, derivations })
    }

    /// Everything to try, narrowed by what is known.
    fn plan(&self, with: &Unlock<'_>) -> Result<HeaderTrials<'_>> {
        let family = &self.family;
        check_opening(family.name(), &family.takes(), with)?;
        check_pim(with.pim)?;
        let kdf = with.hash.map(|name| by_name("hash", family.kdfs, |k| k.name, name)).transpose()?;
        let suite = with.cipher.map(|name| by_name("cipher", family.suites, |s| s.name, name)).transpose()?;
        // If a disk has a system's header, its other header positions belong to the boot loader or the partitions.
        let system = self.copies.iter().any(|copy| copy.position.system);
        let wanted = |position: &Position| {
            let asked_for = position.backup && with.header != HeaderChoice::Any;
            with.header.includes(position.hidden, position.backup) && (position.system == system || asked_for)
        };
        let derivations = |position: &Position| {
            let right = |k: &&Kdf| {
                kdf.is_none_or(|only| std::ptr::eq(only, *k))
                    && (position.old || !k.old)
                    && (!position.system || k.of_systems())
            };
            let kdfs = family.kdfs.iter().filter(|k| wanted(position) && right(k));
            kdfs.map(|k| k.derivation(with.pim, position.system)).collect()
        };
        let ways = |position: &Position| {
            let right = |(s, _): &suites::SuiteInMode| suite.is_none_or(|only| std::ptr::eq(only, *s));
            position.ways(family.suites).filter(right).collect()
        };
        Ok(HeaderTrials::new(family.rules, &self.copies, derivations, ways))
    }

    fn facts(&self, found: &OpenedHeader, data: &DataArea, with: &Unlock<'_>) -> Facts {
        let OpenedHeader { copy, derivation, suite, mode, plain: _, fields } = found;
        let position = self.copies[*copy].position;
        Facts {
            format: self.family.name,
            cipher: suite.name.to_owned(),
            mode: mode.name().to_owned(),
            key_bits: suite.data_key_len() as u32 * 8,
            hash: Some(derivation.kdf.name.into()),
            iterations: derivation.iterations,
            derivation: None,
            memory: derivation.memory,
            pim: with.pim.filter(|pim| *pim > 0),
            header_version: fields.version,
            header: position.name,
            opened_by: Some(format!("{} header", position.name)),
            hidden: position.hidden,
            keyslot: None,
            uuid: None,
            label: None,
            integrity: None,
            sector_size: fields.sector_size,
            size: data.len,
            data_offset: data.start,
            created: fields.created,
            header_written: fields.header_written,
        }
    }

    /// Warnings about headers that did not open although another did.
    fn header_warnings(&self, found: &OpenedHeader, spoilt: Option<(usize, Error)>, with: &Unlock<'_>) -> Vec<Warning> {
        let position = self.copies[found.copy].position;
        let mut warnings = Vec::new();
        if let Some((rank, error)) = spoilt.filter(|(rank, _)| *rank != found.copy) {
            let name = self.copies[rank].position.name;
            warnings.push(
                format!(
                    "The {name} header opens with this password, but is unusable: {}. The {} header was used instead.",
                    error.kind, position.name
                )
                .into(),
            );
        } else if position.backup && with.header == HeaderChoice::Any {
            let primary = if position.hidden { "hidden volume's own header" } else { "primary header" };
            warnings.push(
                format!(
                    "Only the {} header opens with this password: the {primary} is damaged or has another password. \
                     To make both open, restore the header from the backup.",
                    position.name
                )
                .into(),
            );
        }
        warnings
    }
}

/// Where a volume's data are, in bytes.
struct DataArea {
    start: u64,
    len: u64,
}

impl DataArea {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    fn of(fields: &Fields, copy: &HeaderCopy, store_len: u64) -> Result<Self> {
        if fields.has_backups {
            return Ok(Self { start: fields.data_start, len: fields.volume_size });
        }
        // Before 6.0 the header's sizes are not used: a volume fills its file, and a hidden one ends at its header
        // (VolumeLayout.cpp, `VolumeLayoutV1Normal` and `VolumeLayoutV1Hidden`).
        if !copy.position.hidden {
            let len = store_len.saturating_sub(OLD_HEADER) / UNIT * UNIT;
            return match len {
                0 => Err(ErrorKind::Malformed {
                    field: "length of the file",
                    offset: store_len,
                    what: "nothing follows the header".into(),
                }
                .into()),
                _ => Ok(Self { start: OLD_HEADER, len }),
            };
        }
        let start = copy.at.checked_sub(fields.hidden_size).filter(|s| *s >= OLD_HEADER && fields.hidden_size > 0);
        match start {
            Some(start) => Ok(Self { start, len: fields.hidden_size }),
            None => Err(ErrorKind::Malformed {
                field: "size of the hidden volume",
                offset: copy.at + header::HIDDEN_SIZE as u64,
                what: format!("{} bytes do not fit in front of its header", fields.hidden_size),
            }
            .into()),
        }
    }

    fn layout(
        &self,
        found: &OpenedHeader,
        copy: &HeaderCopy,
        store: &dyn Store,
        with: &Unlock<'_>,
        warnings: &mut Vec<Warning>,
    ) -> Result<Layout> {
        let Self { start, len } = *self;
        let cipher = found.suite.data_cipher(found.mode, header::keys(&found.plain), with.acceleration);
        let mut writable = true;
        let first = match found.mode {
            Mode::Xts => start / UNIT,
            // From the beginning of the data area (Crypto.c, `DataUnit2LRWIndex`).
            Mode::Lrw => 0,
            Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc if copy.position.hidden => {
                let counted = hidden_cbc_numbering(store, &*cipher, start, len)?;
                if counted.is_none() {
                    warnings.push(
                        "Read-only: hidden CBC volumes number their sectors in one of two ways, and the \
                         data do not show which. Data may read wrong."
                            .into(),
                    );
                    writable = false;
                }
                counted.unwrap_or(OLD_HEADER / UNIT)
            }
            Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => start / UNIT,
        };
        let shift = Shift::of((copy.position, &found.fields, copy.at), &*cipher, first, store)?;
        writable &= self.fits(shift, found, copy, store.len(), with.truncated, warnings)?;
        let shift = if let Shift::By(shift) = shift { shift } else { 0 };
        let missing = self.missing(shift);
        // Data that cannot be read are placed after the end of the store.
        let nowhere = (missing > 0).then(|| (0, missing, store.len().next_multiple_of(UNIT)));
        let there = (missing < len).then(|| (missing, len - missing, self.place(shift, missing)));
        let segments = nowhere.into_iter().chain(there).map(|(at, len, stored_at)| {
            let kernel = kernel_layers(found, with).filter(|_| stored_at.is_multiple_of(UNIT));
            let payload = Payload::crypt(Arc::clone(&cipher), first + at / UNIT).with_kernel(kernel);
            Segment { at, len, stored_at, payload, writable }
        });
        let layout = Layout::new(segments.collect())?;
        Ok(layout.for_kernel(with.for_kernel.then_some(KIND)))
    }

    /// Whether a store of `store_len` bytes holds the whole volume in its place. Adds a warning for whatever does not fit.
    ///
    /// # Errors
    /// `Malformed` where data are missing, unless the caller wants the volume opened anyway.
    fn fits(
        &self,
        shift: Shift,
        found: &OpenedHeader,
        copy: &HeaderCopy,
        store_len: u64,
        truncated: bool,
        warnings: &mut Vec<Warning>,
    ) -> Result<bool> {
        let moved = match shift {
            Shift::None => 0,
            Shift::By(shift) => {
                // The shift explains why no other header opens.
                warnings.clear();
                warnings.push(shifted_warning(shift, self.missing(shift)).advise(Advice::CompleteCopy { shift }));
                shift
            }
            Shift::Unclear(shift) => {
                warnings.push(unclear_warning(shift));
                0
            }
        };
        let end = i128::from(self.end()) + i128::from(moved);
        let (beginning, behind) = (self.missing(moved), end - i128::from(store_len));
        let what = match (beginning, behind) {
            (1.., _) => format!("the first {beginning} bytes of the volume's data are missing"),
            (_, 1..) => format!(
                "the volume ends at byte {end}, but the file is cut short at byte {store_len}: {behind} bytes are missing"
            ),
            _ => {
                warnings.extend(self.at_the_end(found, copy, moved, store_len));
                return Ok(shift == Shift::None);
            }
        };
        if !truncated {
            let offset = copy.at + header::VOLUME_SIZE as u64;
            return Err(Error::new(ErrorKind::Malformed { field: "size of the volume", offset, what })
                .hint("Find a complete copy of the file.")
                .advise(Advice::OpenTruncated));
        }
        warnings.push(format!("Read-only: {what}.").into());
        Ok(false)
    }

    /// Returns a warning about the end of a file that holds all the data. The backup headers belong right after the data; hidden
    /// volumes may end anywhere.
    fn at_the_end(&self, found: &OpenedHeader, copy: &HeaderCopy, moved: i64, store_len: u64) -> Option<Warning> {
        if !found.fields.has_backups || copy.position.backup {
            return None;
        }
        let end = i128::from(self.end()) + i128::from(moved) + i128::from(HEADER_GROUP);
        let beyond = i128::from(store_len) - end;
        match beyond {
            ..0 => Some(
                format!(
                    "The file is cut short after the data: {} bytes are missing, and it has no complete backup \
                     headers.",
                    -beyond
                )
                .into(),
            ),
            0 => None,
            _ if copy.position.hidden => None,
            _ => Some(
                Warning::from(format!(
                    "The file has {beyond} extra bytes after the volume. Programs look for backup headers at the \
                     end of the file, so they do not find them."
                ))
                .advise(Advice::CutOff { len: end as u64 }),
            ),
        }
    }

    /// Returns how many bytes of the data lie in front of the first byte of a shifted file, in whole sectors.
    fn missing(&self, shift: i64) -> u64 {
        let missing = -(i128::from(self.start) + i128::from(shift));
        (missing.max(0) as u64).next_multiple_of(UNIT).min(self.len)
    }

    /// Returns where byte `into` of the data is stored in a shifted file, unless it is [`Self::missing`].
    fn place(&self, shift: i64, into: u64) -> u64 {
        (i128::from(self.start) + i128::from(shift) + i128::from(into)).max(0) as u64
    }
}

fn shifted_warning(shift: i64, missing: u64) -> Warning {
    let by = shift.unsigned_abs();
    let what = match shift {
        ..0 => {
            format!("{by} bytes are missing at the front of the file, so the whole volume lies {by} bytes too early.")
        }
        _ => format!("The file has {by} extra bytes in front, so the whole volume lies {by} bytes too late."),
    };
    let whole = if missing == 0 { " All of its data are present." } else { "" };
    Warning::from(format!("{what}{whole} It is read from there and is read-only."))
}

fn unclear_warning(shift: i64) -> Warning {
    let (by, how) = (shift.unsigned_abs(), if shift < 0 { "shorter" } else { "longer" });
    Warning::from(format!(
        "Read-only: the file is {by} bytes {how} than its header says, and no data were recognised. Its middle \
         lacks or has extra bytes, or the volume is empty."
    ))
}

/// The kernel's specification of the data's encryption, if it was asked for and there is one.
fn kernel_layers(found: &OpenedHeader, with: &Unlock<'_>) -> Option<Vec<KernelCipher>> {
    with.for_kernel.then(|| found.suite.kernel_layers(found.mode, header::keys(&found.plain))).flatten()
}

/// Returns the number of the first sector of a hidden volume in CBC, if the volume's beginning shows it.
///
/// cryptsetup's image `tc_2-ripemd160-cbc-aes-hidden`, made by an old TrueCrypt, numbers sectors as if the hidden volume were a
/// file of its own, whose first sector after the header is number 1; so does cryptsetup. The surviving sources, 4.0
/// (Driver/Ntvol.c, `TCReadWrite`) to 7.1a, count from the beginning of the file. A wrong number turns every byte of a sector into
/// noise. So the right number is the one under which something at the beginning does not look random: a boot sector, a superblock,
/// zeros.
fn hidden_cbc_numbering(store: &dyn Store, cipher: &dyn SectorCipher, start: u64, len: u64) -> Result<Option<u64>> {
    let mut stored = vec![0; (16 * UNIT).min(len) as usize];
    store.read_at(start, &mut stored)?;
    let makes_sense = |first: &u64| {
        let mut plain = stored.clone();
        cipher.decrypt(*first, &mut plain);
        plain.chunks(UNIT as usize).any(|sector| !magic::looks_random(sector))
    };
    Ok([OLD_HEADER / UNIT, start / UNIT].into_iter().find(makes_sense))
}

fn wrong_credential(family: &Family, with: &Unlock<'_>, trials: u64, took: Duration) -> Error {
    let mut tries = vec!["check the passphrase, its keyboard layout and the keyfiles (exactly the right set)"];
    if with.hash.is_some() || with.cipher.is_some() {
        tries.push("omit the cipher and the hash");
    }
    if family.takes.opens_with(Parameter::Pim) && with.pim.is_none() {
        tries.push("give the PIM, if the volume has one");
    } else if with.pim.is_some() {
        tries.push("omit the PIM");
    }
    if with.header != HeaderChoice::Any {
        tries.push("try all copies of the header");
    }
    Error::new(ErrorKind::WrongCredential(format!(
        "nothing opens after {trials} trials in {:.2} s. {name} volumes have no signature: a wrong passphrase, \
         wrong keyfiles, damaged headers and a file of another kind look the same",
        took.as_secs_f64(),
        name = family.name
    )))
    .hint(format!("To try: {}; restore a header backup.", tries.join("; ")))
}

/// Returns the row of a table that has this name.
fn by_name<T>(kind: &str, table: &'static [T], name_of: impl Fn(&T) -> &'static str, name: &str) -> Result<&'static T> {
    table.iter().find(|row| same_name(name_of(row), name)).ok_or_else(|| {
        let all: Vec<_> = table.iter().map(name_of).collect();
        Error::misuse(format!("no {kind} is called {name}; known: {}", all.join(", ")))
    })
}

impl Family {
    /// Returns the suite and key derivation that `spec` asks for, if new volumes may use them.
    fn chosen(&self, spec: &Spec<'_>) -> Result<(&'static Suite, Derivation)> {
        let choices = self.choices();
        let suite = by_name("cipher", self.suites, |s| s.name, spec.cipher.unwrap_or(choices.ciphers[0]))?;
        let kdf = by_name("hash", self.kdfs, |k| k.name, spec.hash.unwrap_or(choices.hashes[0]))?;
        let refused = |name: &str, they_can: &[&str]| {
            Error::misuse(format!("new volumes cannot use {name}; use one of: {}", they_can.join(", ")))
        };
        if !suite.creatable() {
            return Err(refused(suite.name, &choices.ciphers));
        }
        if !kdf.creatable {
            return Err(refused(kdf.name, &choices.hashes));
        }
        check_pim(spec.pim)?;
        Ok((suite, kdf.derivation(spec.pim, false)))
    }
}

/// Refuses an impossible PIM.
fn check_pim(pim: Option<u32>) -> Result<()> {
    match pim {
        Some(pim) if pim > kdfs::PIM_MAX => {
            Err(Error::misuse(format!("the PIM {pim} is too large: at most {}", kdfs::PIM_MAX)))
        }
        _ => Ok(()),
    }
}

/// Reads a decrypted header by the rules of each program: [`crate::fuzzing`].
pub(crate) fn fuzz_header(bytes: &[u8]) {
    let mut plain = [0; header::SIZE];
    let len = bytes.len().min(header::SIZE - header::SALT);
    plain[header::SALT..][..len].copy_from_slice(&bytes[..len]);
    header::seal_checksums(&mut plain);
    for rules in [&header::TRUECRYPT, &header::VERACRYPT] {
        let _ = header::has_magic(&plain[header::SALT..], rules);
        for position in positions::TRUECRYPT.iter().chain([&positions::SYSTEM]) {
            let _ = header::parse(&plain, 0, position, rules);
        }
        let _ = header::encrypted_size(&plain);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use claviger_crypto::{Acceleration, Secret};
    use claviger_testkit::random::noise;
    use claviger_testkit::{tools, uml};

    use super::*;
    use crate::store::MemoryStore;
    use crate::volume::Volume;

    /// A header in an old format, which this program cannot create.
    struct Old {
        at: usize,
        suite: &'static Suite,
        mode: Mode,
        kdf: &'static Kdf,
        version: u16,
        required_program: u16,
        hidden_size: u64,
        sector_size: u32,
    }

    const PASSWORD: &[u8] = b"pw";

    impl Old {
        fn new(suite: &'static Suite, mode: Mode) -> Self {
            let required_program = if mode == Mode::Xts { 0x0500 } else { 0x0100 };
            let version = if mode == Mode::Xts { 3 } else { 2 };
            Self {
                at: 0,
                suite,
                mode,
                kdf: &kdfs::TRUECRYPT[1],
                version,
                required_program,
                hidden_size: 0,
                sector_size: 0,
            }
        }

        fn keys(&self) -> Vec<u8> {
            noise(self.suite.key_len(self.mode), 77)
        }

        fn data_cipher(&self) -> Arc<dyn SectorCipher> {
            self.suite.data_cipher(self.mode, &self.keys(), Acceleration::On)
        }

        /// Writes the header into the volume. If it is a new-style header, the data are in the usual place.
        fn put_into(&self, bytes: &mut [u8]) {
            let size = (bytes.len() as u64).saturating_sub(2 * HEADER_GROUP);
            let salt = noise(header::SALT, 5);
            let data = header::Extent { start: HEADER_GROUP, size, hidden: false };
            let mut plain = header::compose(&header::TRUECRYPT, &salt, data, &self.keys());
            header::change(&mut plain, self.version, self.required_program, self.hidden_size, self.sector_size);
            let mut key = vec![0; self.suite.key_len(self.mode)];
            let derivation = self.kdf.derivation(None, false);
            let piece = derivation.piece(key.len());
            for (index, out) in key.chunks_mut(piece).enumerate() {
                assert!(derivation.derive(PASSWORD, &salt, index, out, None, &|| true).expect("memory"));
            }
            let keys = suites::SharedKeys::new(&key, Acceleration::On);
            self.suite.encrypt_header(self.mode, &keys, &mut plain[header::SALT..]);
            bytes[self.at..][..header::SIZE].copy_from_slice(&plain);
        }
    }

    fn unlock(bytes: Vec<u8>, suite: &Suite) -> Result<(Unlocked, Arc<MemoryStore>)> {
        let credentials = [Credential::Passphrase(Secret::copy_from(PASSWORD))];
        let with = Unlock { hash: Some("SHA-512"), cipher: Some(suite.name), ..Unlock::with(&credentials) };
        let store = Arc::new(MemoryStore::new(bytes));
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        Ok((TRUECRYPT.open(&shared)?.unlock(&with)?, store))
    }

    fn all_ways() -> impl Iterator<Item = suites::SuiteInMode> {
        positions::TRUECRYPT[0].ways(suites::TRUECRYPT)
    }

    #[test]
    fn every_suite_opens_in_every_mode() {
        let plain = noise(64 << 10, 9);
        let mut ways = 0;
        for (suite, mode) in all_ways() {
            let old = Old::new(suite, mode);
            let mut data = plain.clone();
            let first = if mode == Mode::Lrw { 0 } else { 1 };
            old.data_cipher().encrypt(first, &mut data);
            let mut bytes = [vec![0; 512], data].concat();
            old.put_into(&mut bytes);
            let (unlocked, store) = unlock(bytes, suite).unwrap_or_else(|e| panic!("{} {mode:?}: {e}", suite.name));
            let facts = &unlocked.facts;
            assert_eq!((&*facts.cipher, &*facts.mode, facts.header_version), (suite.name, mode.name(), old.version));
            assert_eq!((facts.size, facts.data_offset), (plain.len() as u64, 512));
            let volume = Volume::new(store, unlocked.layout);
            let mut back = vec![0; plain.len() - 700];
            volume.read_at(333, &mut back).expect("it is read");
            assert!(back == plain[333..][..back.len()], "{} {mode:?}", suite.name);
            ways += 1;
        }
        assert_eq!(ways, 8 + 11 + 6 + 5 + 2);
    }

    #[test]
    fn a_volume_from_before_backups_is_as_long_as_its_file() {
        let with = [Credential::Passphrase(Secret::copy_from(PASSWORD))];
        let suite = &suites::TRUECRYPT[0];
        let with = Unlock { hash: Some("SHA-512"), cipher: Some(suite.name), ..Unlock::with(&with) };
        for mode in [Mode::Xts, Mode::Lrw, Mode::Cbc] {
            let mut bytes = noise(64 << 10, 3);
            Old::new(suite, mode).put_into(&mut bytes);
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("v");
            std::fs::write(&path, &bytes).expect("written");
            for size in [100 << 10, 40 << 10] {
                let file = crate::store::FileStore::open(&path, crate::store::Access::ReadWrite).expect("a file");
                let resizing = resize::resize(&TRUECRYPT, &file, &with, size).expect("prepared");
                assert!(resizing.prepared.edit.steps.is_empty());
                resizing.carry_out(&file, &Spec::default()).expect("carried out");
                drop(file);
                let now = std::fs::read(&path).expect("the file");
                let kept = now.len().min(bytes.len()).min(40 << 10);
                assert!(now.len() as u64 == size + 512 && now[..kept] == bytes[..kept], "{mode:?}");
                assert_eq!(unlock(now, suite).expect("it opens").0.facts.size, size);
            }
            assert!(resize::resize(&TRUECRYPT, &MemoryStore::new(bytes), &with, 512).is_err(), "too small to open");
        }
    }

    #[test]
    fn units_have_512_bytes_whatever_the_sectors_of_the_device() {
        for sector_size in [512, 1024, 2048, 4096] {
            let mut bytes = noise(1 << 20, 1);
            let new =
                Old { version: 5, required_program: 0x0700, sector_size, ..Old::new(&suites::TRUECRYPT[0], Mode::Xts) };
            new.put_into(&mut bytes);
            let (unlocked, _) = unlock(bytes, new.suite).expect("a good volume");
            assert_eq!(unlocked.facts.sector_size, sector_size);
            let Payload::Crypt { cipher, first, .. } = &unlocked.layout.segments()[0].payload else {
                panic!("encrypted")
            };
            assert_eq!((cipher.sector_size(), *first), (512, 256));
        }
    }

    #[test]
    fn impossible_and_newer_headers_are_told_apart() {
        let error = |old: Old, len: usize| {
            let mut bytes = noise(len, 1);
            old.put_into(&mut bytes);
            unlock(bytes, old.suite).err().expect("it does not open").kind
        };
        let new = || Old {
            version: 5,
            required_program: 0x0700,
            sector_size: 512,
            ..Old::new(&suites::TRUECRYPT[0], Mode::Xts)
        };
        let field = |kind| match kind {
            ErrorKind::Malformed { field, offset, .. } => (field, offset),
            other => panic!("{other}"),
        };
        assert_eq!(field(error(Old { sector_size: 100, ..new() }, 1 << 20)), ("sector size", 128));
        assert_eq!(field(error(Old { hidden_size: 512, ..new() }, 1 << 20)), ("size of the hidden volume", 92));
        assert_eq!(field(error(Old::new(&suites::TRUECRYPT[0], Mode::Cbc), 512)), ("length of the file", 512));
        let hidden = |hidden_size| Old { at: 65_536 - 1536, hidden_size, ..Old::new(&suites::TRUECRYPT[0], Mode::Cbc) };
        for size in [0, 65_536 - 1536, 512 << 40] {
            assert_eq!(field(error(hidden(size), 65_536)), ("size of the hidden volume", 64_000 + 92));
        }
        assert!(matches!(error(Old { version: 6, ..new() }, 1 << 20), ErrorKind::Unsupported { .. }));
        assert!(matches!(error(Old { required_program: 0x0800, ..new() }, 1 << 20), ErrorKind::Unsupported { .. }));
    }

    #[test]
    fn hidden_cbc_volumes_show_how_they_count() {
        let (len, size) = (64 << 10, 20 << 10);
        let start = len - 1536 - size;
        let at = len - 1536;
        let old = Old { at, hidden_size: size as u64, ..Old::new(&suites::TRUECRYPT[0], Mode::Cbc) };
        let open = |first: u64, plain: &[u8]| {
            let mut bytes = noise(len, 1);
            let data = &mut bytes[start..at];
            data.copy_from_slice(plain);
            old.data_cipher().encrypt(first, data);
            old.put_into(&mut bytes);
            let (unlocked, store) = unlock(bytes, old.suite).expect("it opens");
            assert!(unlocked.facts.hidden);
            let warned = !unlocked.warnings.is_empty();
            let volume = Volume::new(store, unlocked.layout);
            let mut back = vec![0; size];
            volume.read_at(0, &mut back).expect("it is read");
            (back == plain, volume.writable(), warned)
        };
        let mut plain = noise(size, 3);
        plain[1024..1536].fill(0);
        for first in [1, start as u64 / 512] {
            assert_eq!(open(first, &plain), (true, true, false));
        }
        let (_, writable, warned) = open(1, &noise(size, 3));
        assert!(!writable && warned, "nothing shows it");
    }

    #[test]
    fn a_backup_does_not_overrule_a_sound_header_of_a_newer_program() {
        let len = 1 << 20;
        let today = Old {
            version: 5,
            required_program: 0x0700,
            sector_size: 512,
            ..Old::new(&suites::TRUECRYPT[0], Mode::Xts)
        };
        let mut bytes = noise(len, 1);
        Old { at: len - HEADER_GROUP as usize, ..today }.put_into(&mut bytes);
        let (unlocked, _) = unlock(bytes.clone(), today.suite).expect("it opens by its backup");
        assert_eq!(unlocked.facts.header.name(), "backup");
        Old { required_program: 0x0800, ..today }.put_into(&mut bytes);
        let error = unlock(bytes, today.suite).err().expect("the primary header counts");
        assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    }

    /// Headers in modes that nothing here creates, as cryptsetup sees them, and the data of those that dm-crypt can open.
    #[test]
    fn old_volumes_open_in_cryptsetup() {
        let Some(_) = tools::program("cryptsetup") else { return };
        // The kernel does not implement GF(2^64), nor whitening around more than one cipher.
        let ways: Vec<_> = all_ways()
            .filter(|(suite, mode)| *mode != Mode::Xts && (*mode != Mode::Lrw || suite.creatable()))
            .collect();
        for ways in ways.chunks(15) {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let mut script = String::from("set -ex\n");
            let mut images = Vec::new();
            for ((suite, mode), letter) in ways.iter().zip('a'..) {
                let old = Old::new(suite, *mode);
                let plain = noise(40 << 10, 3);
                let mut data = plain.clone();
                old.data_cipher().encrypt(if *mode == Mode::Lrw { 0 } else { 1 }, &mut data);
                let mut bytes = [vec![0; 512], data].concat();
                old.put_into(&mut bytes);
                let image = dir.path().join(letter.to_string());
                let expected = dir.path().join("plain");
                std::fs::write(&image, bytes).expect("an image");
                std::fs::write(&expected, plain).expect("its plaintext");
                images.push(image);
                // The kernel's names list the ciphers in the order in which they encrypt.
                let names = suite.name.split('-').rev().map(|name| match name {
                    "Triple DES" => "des3_ede".to_owned(),
                    "Blowfish" => "blowfish_le".to_owned(),
                    name => name.to_lowercase(),
                });
                let cipher = names.collect::<Vec<_>>().join("-");
                let options = format!("--cipher {cipher} --hash sha512 /dev/ubd{letter}");
                script += &format!(
                    "printf %s pw | cryptsetup tcryptDump {options} >dump\ngrep -E '^Cipher chain:.{cipher}$' dump\n"
                );
                let opens = *mode == Mode::Lrw || *mode == Mode::Cbc && suite.name != "Blowfish";
                if opens {
                    script += &format!(
                        "printf %s pw | cryptsetup tcryptOpen {options} x\ncmp /dev/mapper/x {}\ncryptsetup close x\n",
                        expected.display()
                    );
                }
            }
            let images: Vec<&Path> = images.iter().map(|i| &**i).collect();
            let Some(done) = uml::run(&script, &images, 300) else { return };
            assert_eq!(done.status, 0, "{}", done.output);
        }
    }
}
