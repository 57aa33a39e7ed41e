//! BitLocker (libbde, "BitLocker Drive Encryption (BDE) format"; cryptsetup 2.7, lib/bitlk; dislocker 0.7.3): three copies of
//! metadata in the volume, to which the first sector points. Protectors open the volume master key (VMK), which opens the full
//! volume encryption key (FVEK).

mod boot;
mod convert;
mod create;
mod datum;
pub(super) mod describe;
mod discovery;
mod editor;
mod eow;
mod find;
mod first_sector;
mod guid;
mod layout;
mod metadata;
mod method;
mod noise;
mod protect;
mod protectors;
pub(crate) mod recovery;
mod renew;
mod repair;
mod sealed;
mod startup;
mod tpm;
mod unlock;
mod write;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::{Secret, SectorCipher, hash, stretch};

use super::header_facts::{FormatFacts, HeaderFacts, KeyslotFacts};
use super::takes::{Parameter, Takes, check_opening};
use super::{
    Choices, Creator, Facts, Format, Header, HeaderEditor, HeaderTrace, InPlaceConverter, Sealed, Unlocked, Verdict,
    WhichHeader, wiped,
};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::password_strength::GuessWork;
use crate::spec::{Reserved, Spec};
use crate::store::{MemoryStore, Store};
use crate::volume::Layout;
use boot::{Boot, Kind};
pub use describe::{BitLockerCopy, BitLockerFacts, BitLockerKeyslot};
use eow::Eow;
use guid::filetime;
use layout::{Part, Places, ZoneState};
pub use metadata::BitLockerState;
use metadata::{COPIES, Copy, Metadata, SIGNATURE, State};
use method::{METHODS, Method};
use protectors::Protector;
use startup::StartupKey;
pub use tpm::{SealedMasterKey, TpmSealing};
use unlock::OpenedKeys;

/// The type of [`BITLOCKER`].
pub struct BitLocker(());

/// BitLocker.
pub static BITLOCKER: BitLocker = BitLocker(());

const NAME: &str = "BitLocker";

/// The names of the metadata copies.
const HEADER_COPIES: [WhichHeader; COPIES] = [WhichHeader::Primary, WhichHeader::SecondCopy, WhichHeader::ThirdCopy];

/// The warning if no copy of the metadata matches its sealed hash.
const UNPROVEN: &str = "The metadata do not match their sealed hash. They are damaged or were changed without the key, so data may \
    read wrong. This cannot be repaired: copy the data to a new volume.";

/// The size of a volume master key, in bytes.
const VMK: usize = 32;

impl Format for BitLocker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traces(&self) -> &'static [HeaderTrace] {
        const COPY: HeaderTrace = HeaderTrace {
            name: "a copy of its metadata",
            at: 0,
            bytes: SIGNATURE,
            offsets: |sector| metadata::claimed_offsets(sector).to_vec(),
            intact: |store, at| {
                let Ok(copy) = Copy::read(store, at) else { return Ok(0) };
                Ok(copy.metadata.copies.iter().filter(|at| Copy::read(store, **at).is_ok()).count())
            },
        };
        // The first sector of To Go is that of a FAT.
        const { &[HeaderTrace::first(3, SIGNATURE), HeaderTrace::first(3, b"MSWIN4.1"), COPY] }
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        Ok(match Boot::read(store)? {
            Some(boot) => Verdict::Yes(vec![format!("its first sector is BitLocker's ({})", boot.kind.name())]),
            None => Verdict::No(vec![NO_FIRST_SECTOR.into()]),
        })
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Ok(Box::new(wiped(NAME, BitLockerHeader::read(store))?))
    }

    fn remains(&self, store: &dyn Store) -> Result<Option<String>> {
        let found = find::near(store)?;
        Ok(found.map(|boot| format!("BitLocker metadata found at byte {}", boot.metadata[0])))
    }

    fn takes(&self) -> Takes {
        use Parameter::*;
        Takes {
            creating: &[Cipher, SectorSize, Label, RecoveryPassword, StartupKey, Tpm, DiscoveryVolume, FileSystem],
            opening: &[Hash, Cipher, Keyfile, VolumeKey, Keyslot],
        }
    }

    fn creator(&self) -> Option<&dyn Creator> {
        Some(self)
    }

    fn check_new_passphrase(&self, passphrase: &Secret) -> Result<()> {
        protect::Opener::of_typed(passphrase).map(drop).map_err(|e| e.in_format(NAME))
    }

    fn guess_work(&self, _spec: &Spec<'_>) -> Option<GuessWork> {
        // 88 bytes are hashed each time (`stretch`): two blocks.
        Some(GuessWork::Hash { hash: hash::SHA256.name, times: stretch::ITERATIONS, compressions: 2 })
    }

    fn editor(&self) -> Option<&dyn HeaderEditor> {
        Some(self)
    }

    fn in_place_converter(&self) -> Option<&dyn InPlaceConverter> {
        Some(self)
    }
}

impl Creator for BitLocker {
    fn choices(&self) -> Choices {
        let ciphers = METHODS.iter().map(|method| method.name).collect();
        Choices { ciphers, hashes: Vec::new(), complete: true, min_len: create::MIN_LEN }
    }

    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        wiped(NAME, create::create(store, spec, first))
    }

    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64> {
        create::stored_len(plain, spec)
    }

    fn check_spec(&self, len: u64, spec: &Spec<'_>) -> Result<()> {
        self.reserved(len, spec).map(drop)
    }

    fn reserved(&self, len: u64, spec: &Spec<'_>) -> Result<Vec<Reserved>> {
        create::reserved(len, spec)
    }

    /// A startup key opens a volume without a passphrase.
    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        keyfiles.is_empty()
    }

    fn fresh_recovery_password(&self) -> Result<Secret> {
        recovery::random()
    }

    fn fresh_startup_key(&self) -> Result<(String, Secret)> {
        let key = StartupKey::random()?;
        Ok((key.name(), key.contents(filetime::now())))
    }
}

/// A header that has been read.
struct BitLockerHeader {
    store: Arc<dyn Store>,
    boot: Boot,
    /// The intact copies of the metadata, in order.
    copies: Vec<Copy>,
    /// The damaged copies: number and error.
    damaged: Vec<Damaged>,
    /// The damage of the first sector.
    first_sector: Option<&'static str>,
}

impl BitLockerHeader {
    fn read(store: &Arc<dyn Store>) -> Result<Self> {
        let (boot, copies, damaged, first_sector) = match Boot::read(&**store)? {
            Some(boot) => match read_copies(&**store, boot) {
                Ok((boot, copies, damaged)) => (boot, copies, damaged, None),
                Err(error) => {
                    let (boot, copies, damaged) = search(&**store)?.ok_or(error)?;
                    (
                        boot,
                        copies,
                        damaged,
                        Some("The first sector does not point to the metadata; they were found by searching."),
                    )
                }
            },
            None => {
                let (boot, copies, damaged) = search(&**store)?.ok_or_else(no_first_sector)?;
                (boot, copies, damaged, Some("The first sector was overwritten; the metadata were found by searching."))
            }
        };
        Ok(Self { store: Arc::clone(store), boot, copies, damaged, first_sector })
    }

    /// The copy to trust: the first intact one, since it is written first.
    fn first(&self) -> &Copy {
        &self.copies[0]
    }

    fn unlocked(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        check_opening(NAME, &BITLOCKER.takes(), with)?;
        let (copy, opened) = match is_decrypted(&self.first().metadata) {
            true => self.said_to_be_decrypted(with)?,
            false => self.opened(with)?,
        };
        if with.prove && opened.vmk.is_none() && is_decrypted(&copy.metadata) {
            let what = "the volume is decrypted and opens without a password: there is nothing to test";
            return Err(Error::misuse(what));
        }
        with.has_opened();
        let metadata = &copy.metadata;
        let mut warnings = self.warnings();
        let mut read_only = self.first_sector.is_some();
        if let Some(vmk) = &opened.vmk
            && !unlock::proven(copy, vmk)
            && let Some(warning) = self.unproven(copy)
        {
            read_only = true;
            warnings.push(warning);
        }
        if opened.vmk.is_none() && !is_decrypted(metadata) {
            read_only = true;
            warnings.push("Read-only: the volume key cannot prove the metadata.".into());
        }
        if !std::ptr::eq(copy, self.first()) {
            read_only = true;
            warnings.push(
                Warning::from(format!(
                    "Read-only: the copy of the metadata at byte {} was used instead of the first sound \
                     one.",
                    copy.at
                ))
                .advise(Advice::RepairHeader),
            );
        }
        let mut places = Places::of(&self.boot, metadata, self.store.len())?;
        if places.size > self.store.len() {
            if !with.truncated {
                return Err(cut_short(places.size, self.store.len()));
            }
            read_only = true;
        }
        let method = OpenedKeys::method(metadata)?;
        let cipher = method.cipher(&opened.fvek, self.boot.sector_size, with.acceleration)?;
        let guessed = self.watermark_of_zero(metadata, &mut places, &cipher)?;
        let on_write = self.written_encrypted(metadata, &mut places, &cipher)?;
        let interrupted = convert::interrupted(&*self.store, metadata, &places, &opened.fvek, &cipher)?;
        let ours = interrupted.is_some();
        places.apart.extend(interrupted.unwrap_or_default());
        let mut layout = places.layout(&cipher, metadata, &*self.store)?;
        for state in [about_state(copy, with, ours), guessed, on_write] {
            read_only |= state.read_only;
            warnings.extend(state.warnings);
        }
        if read_only {
            layout = layout.read_only();
        }
        let facts = self.facts(copy, &opened, method, &layout);
        let (trials, derivations) = (opened.trials, opened.trials);
        let recognised = opened.vmk.is_some() || is_decrypted(metadata);
        Ok(Unlocked { layout, facts, warnings, trials, derivations, took: begun.elapsed(), recognised })
    }

    /// Returns a warning if nothing proves that a copy was written with the key. Vista seals no hash: such a volume is written as
    /// if it were entirely encrypted, so that no manipulated metadata cause plaintext to be written.
    fn unproven(&self, copy: &Copy) -> Option<Warning> {
        let metadata = &copy.metadata;
        let encrypted = is_encrypted(metadata);
        match self.boot.kind == Kind::Vista && copy.seals_nothing() {
            true if encrypted => None,
            true => Some("Read-only: nothing proves the metadata, and the volume is only partly encrypted.".into()),
            false => Some(format!("{UNPROVEN} The volume is read-only.").into()),
        }
    }

    /// Applies the bitmaps of a volume with encrypt-on-write to `places`. Its state alone says that all of it is encrypted.
    fn written_encrypted(
        &self,
        metadata: &Metadata,
        places: &mut Places,
        cipher: &Arc<dyn SectorCipher>,
    ) -> Result<AboutState> {
        let Some(at) = self.boot.eow.filter(|_| !is_decrypted(metadata)) else {
            return Ok(match Boot::of(metadata).kind == Kind::EncryptOnWrite && !is_decrypted(metadata) {
                true => AboutState::read_only(
                    "Read-only: the volume is encrypted as it is written, but the record of what is encrypted is \
                     missing. Unencrypted parts read as noise.",
                ),
                false => AboutState::default(),
            });
        };
        let (sector, size) = (places.sector, places.size.min(self.store.len()));
        let decrypting = metadata.next_state == State::DECRYPTED;
        let found = Eow::read(&*self.store, &eow::About { at, sector, size, decrypting })?;
        places.encrypted = places.size;
        let Some(eow) = found.filter(|eow| !eow.is_lost(size)) else {
            if places.beginning(&*self.store, cipher)? == Some(ZoneState::Plain) {
                places.apart.push(in_clear(places.header_place..places.header_place + places.header));
            }
            return Ok(AboutState::read_only(
                "Read-only: the encryption bitmaps are lost. All but the header is treated as encrypted; \
                 unencrypted parts read as noise.",
            ));
        };
        for range in &eow.structures {
            places.reserve(range.start, range.end - range.start, "record of what is encrypted")?;
        }
        places.check()?;
        let mut state = AboutState {
            read_only: !(eow.is_done() && is_encrypted(metadata)),
            warnings: eow.lost.iter().map(bitmap_lost).collect(),
        };
        if eow.log_lost {
            let what = "Read-only: an encryption log cannot be read. Sectors that were being encrypted may read \
                 wrong.";
            state.warnings.push(what.into());
        }
        if eow.under_way || !eow.plain.is_empty() {
            let open: u64 = eow.plain.iter().map(|range| range.end - range.start).sum();
            let what = format!(
                "Read-only: the volume is only partly encrypted ({open} of {size} bytes are in the clear). Only \
                 Windows can write to it in this state."
            );
            state.warnings.push(what.into());
        }
        places.apart = eow.plain.into_iter().map(in_clear).collect();
        Ok(state)
    }

    /// Nothing proves that a volume is decrypted. If its keys still open it and decrypt its data, it is read as encrypted.
    fn said_to_be_decrypted(&self, with: &Unlock<'_>) -> Result<(&Copy, OpenedKeys)> {
        let decrypted = || Ok((self.first(), OpenedKeys::decrypted(&self.first().metadata)));
        let (copy, opened) = match self.opened(with) {
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => return Err(e),
            Err(_) => return decrypted(),
            Ok(opened) => opened,
        };
        let Ok(method) = Method::numbered(copy.metadata.method) else { return decrypted() };
        let places = Places::of(&self.boot, &copy.metadata, self.store.len())?;
        let cipher = method.cipher(&opened.fvek, self.boot.sector_size, with.acceleration)?;
        match opened.vmk.is_some() && places.beginning(&*self.store, &cipher)? == Some(ZoneState::Encrypted) {
            true => Ok((copy, opened)),
            false => decrypted(),
        }
    }

    /// Checks the data of a volume whose metadata say that nothing is encrypted. Other programs read everything as encrypted if
    /// only the offset says so, and anybody can write that a volume is decrypted. If the data do not confirm it, the volume is
    /// read-only.
    fn watermark_of_zero(
        &self,
        metadata: &Metadata,
        places: &mut Places,
        cipher: &Arc<dyn SectorCipher>,
    ) -> Result<AboutState> {
        if self.boot.eow.is_some() || !(metadata.state_offset == 0 || is_decrypted(metadata)) {
            return Ok(AboutState::default());
        }
        let beginning = places.beginning(&*self.store, cipher)?;
        let what = match (beginning, is_encrypted(metadata)) {
            (Some(ZoneState::Plain), false) => return Ok(AboutState::default()),
            (Some(ZoneState::Plain), true) => {
                places.encrypted = 0;
                "The metadata do not say how much is encrypted. The file system is readable, so everything is read \
                 as plaintext."
            }
            (Some(_), _) => {
                places.encrypted = places.size;
                "The metadata say that nothing is encrypted, but the file system is. Everything is read as encrypted."
            }
            (None, true) => {
                "The metadata do not say how much is encrypted, and no file system is readable. Everything is read \
                 as encrypted."
            }
            (None, false) => {
                "The metadata say that nothing is encrypted, but no file system is readable. Reads may return \
                 ciphertext."
            }
        };
        Ok(AboutState::read_only(&format!("{what} The volume is read-only.")))
    }

    /// Returns the copy that the credentials open, preferring the first one proven by its hash, and the keys.
    fn opened(&self, with: &Unlock<'_>) -> Result<(&Copy, OpenedKeys)> {
        first_opened(self.copies.iter(), with).map(|(copy, opened)| self.proven(copy, opened))
    }

    /// Returns `copy`, unless its hash is wrong and another copy's is right.
    fn proven<'a>(&'a self, copy: &'a Copy, opened: OpenedKeys) -> (&'a Copy, OpenedKeys) {
        let Some(vmk) = opened.vmk.as_ref().filter(|vmk| !unlock::proven(copy, vmk)) else { return (copy, opened) };
        let right = self.copies.iter().find(|other| unlock::proven(other, vmk));
        let fvek = right.and_then(|other| unlock::volume_key(&other.metadata, vmk).ok());
        match (right, fvek) {
            (Some(other), Some(fvek)) => (other, OpenedKeys { fvek, ..opened }),
            _ => (copy, opened),
        }
    }

    /// Warnings about damaged copies that do not keep the volume from being opened.
    fn warnings(&self) -> Vec<Warning> {
        let first_sector = self
            .first_sector
            .map(|what| Warning::from(format!("{what} The volume is read-only.")).advise(Advice::RepairHeader));
        let damaged = self.damaged.iter().map(|(number, error)| {
            Warning::from(format!("Copy {} of the metadata is damaged: {}.", number + 1, error.kind))
                .advise(Advice::RepairHeader)
        });
        let first = self.first();
        let differ = self.copies.iter().any(|copy| copy.block != first.block);
        let differ = differ.then(|| {
            Warning::from("The copies of the metadata differ: a change was interrupted.").advise(Advice::RepairHeader)
        });
        first_sector.into_iter().chain(damaged).chain(differ).collect()
    }

    fn facts(&self, copy: &Copy, opened: &OpenedKeys, method: &Method, layout: &Layout) -> Facts {
        let metadata = &copy.metadata;
        let number = metadata.copies.iter().position(|at| *at == copy.at).unwrap_or_default();
        let (protector, opened_by) = match &opened.protector {
            Some((number, name)) => (Some(*number), name.clone()),
            None if opened.vmk.is_some() => (None, "volume master key".to_owned()),
            None if is_decrypted(metadata) => (None, "no key needed: the volume is decrypted".to_owned()),
            None => (None, "volume key".to_owned()),
        };
        let stretched = opened.trials > 0;
        let opened_clear = opened.protector.as_ref().is_some_and(|(number, _)| {
            Protector::all(metadata).0.iter().any(|p| p.number == *number && p.kind == protectors::Kind::CLEAR)
        });
        let derivation = match (stretched, opened_clear) {
            (true, _) => Some("BitLocker's stretch"),
            (_, true) => Some("none: the volume stores its key in the clear"),
            _ => None,
        };
        Facts {
            key_bits: method.bits * if method.mode == "CBC" { 1 } else { 2 },
            hash: stretched.then(|| "SHA-256".into()),
            iterations: if stretched { stretch::ITERATIONS as u32 } else { 0 },
            derivation,
            header_version: metadata.version,
            header: HEADER_COPIES[number],
            opened_by: Some(opened_by),
            keyslot: protector,
            uuid: Some(metadata.volume.to_string()),
            label: metadata.label(),
            sector_size: self.boot.sector_size,
            created: Some(filetime::seconds(metadata.created)),
            ..Facts::new(NAME, "AES", method.mode, layout)
        }
    }
}

impl Header for BitLockerHeader {
    /// A startup key replaces the password, and a clear key needs none.
    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        keyfiles.is_empty() && !unlock::is_open(&self.first().metadata)
    }

    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        wiped(NAME, self.unlocked(with))
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(NAME, BITLOCKER.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn describe(&self) -> Option<HeaderFacts> {
        let protectors = Protector::all(&self.first().metadata).0;
        let keyslots = protectors.iter().map(describe::keyslot).map(KeyslotFacts::BitLocker).collect();
        Some(HeaderFacts::new(Some(keyslots), FormatFacts::BitLocker(describe::facts(self))))
    }

    fn damage(&self) -> Vec<Warning> {
        self.warnings()
    }

    fn effort(&self, with: &Unlock<'_>) -> u64 {
        unlock::effort(&self.first().metadata, with)
    }

    fn sealed(&self) -> Vec<Sealed> {
        tpm::sealed(&self.first().metadata)
    }
}

/// Returns a substitute for the boot sector, and the intact copies of the metadata near the beginning or the end.
fn search(store: &dyn Store) -> Result<Option<FoundCopies>> {
    find::near(store)?.map(|boot| read_copies(store, boot)).transpose()
}

type Damaged = (usize, Error);
type FoundCopies = (Boot, Vec<Copy>, Vec<Damaged>);

/// Returns the intact copies, the errors of the others, and the boot sector, completed from the first intact copy.
///
/// # Errors
/// The first copy's error if none is intact.
fn read_copies(store: &dyn Store, boot: Boot) -> Result<FoundCopies> {
    // A copy lists the offsets of all. Vista's boot sector does not, and a damaged one lists wrong offsets.
    let known = boot.metadata.iter().find_map(|at| Copy::read(store, *at).ok());
    let places = known.map_or_else(|| boot.metadata.clone(), |copy| copy.metadata.copies.to_vec());
    let (mut copies, mut damaged): (Vec<Copy>, Vec<Damaged>) = (Vec::new(), Vec::new());
    for (number, at) in places.into_iter().enumerate() {
        match Copy::read(store, at) {
            Ok(copy) => copies.push(copy),
            // A copy that the disk cannot read counts as damaged.
            Err(error) => damaged.push((number, error)),
        }
    }
    match copies.first() {
        Some(first) => Ok((boot.settled(&first.metadata), copies, damaged)),
        None => Err(damaged.into_iter().next().map_or_else(no_copy, |(_, error)| error)),
    }
}

/// Reads the copies to which the first sector points.
///
/// # Errors
/// `NotThisFormat` if it is not BitLocker's; those of [`read_copies`].
fn led_to(store: &dyn Store) -> Result<FoundCopies> {
    read_copies(store, Boot::read(store)?.ok_or_else(no_first_sector)?)
}

/// Returns the first copy that the credentials open, and the keys. Identical copies are tried once.
fn first_opened<'a>(copies: impl Iterator<Item = &'a Copy>, with: &Unlock<'_>) -> Result<(&'a Copy, OpenedKeys)> {
    let mut error = None;
    let mut tried: Vec<&Copy> = Vec::new();
    for copy in copies {
        if tried.iter().any(|other| other.block == copy.block && other.validation == copy.validation) {
            continue;
        }
        tried.push(copy);
        match unlock::open(&copy.metadata, with) {
            Ok(opened) => return Ok((copy, opened)),
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => return Err(e),
            Err(e) => error = error.or(Some(e)),
        }
    }
    Err(error.unwrap_or_else(no_copy))
}

/// Whether nothing is encrypted, so that no key is needed.
fn is_decrypted(metadata: &Metadata) -> bool {
    (metadata.state, metadata.next_state) == (State::DECRYPTED, State::DECRYPTED)
}

/// Whether everything is encrypted.
fn is_encrypted(metadata: &Metadata) -> bool {
    (metadata.state, metadata.next_state) == (State::ENCRYPTED, State::ENCRYPTED)
}

/// Why the store is not a BitLocker volume.
const NO_FIRST_SECTOR: &str = "no BitLocker signature in the first sector";

fn no_first_sector() -> Error {
    ErrorKind::NotThisFormat(NO_FIRST_SECTOR.to_owned()).into()
}

fn no_copy() -> Error {
    ErrorKind::Malformed { field: "metadata", offset: 0, what: "no copy is intact".to_owned() }.into()
}

/// What the state of the data means for opening the volume.
#[derive(Default)]
struct AboutState {
    read_only: bool,
    warnings: Vec<Warning>,
}

impl AboutState {
    fn read_only(why: &str) -> Self {
        Self { read_only: true, warnings: vec![why.into()] }
    }
}

fn in_clear(at: Range<u64>) -> Part {
    Part { at, found: ZoneState::Plain }
}

fn bitmap_lost(range: &Range<u64>) -> Warning {
    format!(
        "Read-only: the bitmaps for bytes {} to {} are lost. They are treated as encrypted; unencrypted parts read \
         as noise.",
        range.start, range.end
    )
    .into()
}

/// `ours` means that a log of this program records the state of each sector in a dirty volume.
fn about_state(copy: &Copy, with: &Unlock<'_>, ours: bool) -> AboutState {
    let metadata = &copy.metadata;
    let name = metadata.state.towards(metadata.next_state);
    let mut warnings: Vec<Warning> = Vec::new();
    let mut read_only = false;
    match (metadata.state, metadata.next_state) {
        (State::ENCRYPTED, State::ENCRYPTED) => {}
        (State::DECRYPTED, State::DECRYPTED) => {
            read_only = !with.write_unencrypted;
            let what = "The volume is decrypted: anybody can read and change it.";
            warnings.push(match read_only {
                true => Warning::from(format!("{what} It is read-only.")).advise(Advice::AllowUnencrypted),
                false => what.into(),
            });
        }
        (State::DIRTY, _) if ours => {
            read_only = true;
            let what = format!(
                "The conversion was interrupted ({name}). The volume is read-only until it resumes; all data read \
                 correctly."
            );
            warnings.push(Warning::from(what).advise(Advice::ResumeReencryption));
        }
        (State::DIRTY, _) => {
            read_only = true;
            let what = format!(
                "Read-only: a conversion was interrupted ({name}). Data near byte {} may read wrong.",
                metadata.state_offset
            );
            warnings.push(what.into());
        }
        _ => warnings.push(
            format!(
                "The volume is only partly encrypted ({name}): everything after byte {} is in the clear.",
                metadata.state_offset
            )
            .into(),
        ),
    }
    if unlock::is_suspended(metadata) {
        warnings
            .push("Protection is suspended: the volume stores its key in the clear, so anybody can open it.".into());
    }
    AboutState { read_only, warnings }
}

fn cut_short(size: u64, there: u64) -> Error {
    let what = format!("the volume has {size} bytes, but the file or device has only {there}");
    Error::new(ErrorKind::Malformed { field: "state offset", offset: 16, what })
        .hint("If it was cut short, find a complete copy.")
        .advise(Advice::OpenTruncated)
}

/// See [`crate::fuzzing::bitlocker_metadata`].
pub(crate) fn fuzz_metadata(bytes: &[u8]) {
    let Ok(metadata) = Metadata::parse(bytes, 0) else { return };
    let (protectors, _) = Protector::all(&metadata);
    protectors.iter().for_each(|protector| drop(describe::keyslot(protector)));
    let _ = metadata.block().map(|block| Metadata::parse(&block, 0).map(|again| assert_eq!(again, metadata)));
    let _ = unlock::open(&metadata, &Unlock::with(&[]));
    for (kind, sector_size) in [(Kind::Windows7, 512), (Kind::Vista, 512), (Kind::ToGo, 4096)] {
        let boot = Boot {
            kind,
            sector_size,
            says_sector_size: true,
            cluster: 4096,
            metadata: metadata.copies.to_vec(),
            eow: None,
        };
        let _ = Places::of(&boot, &metadata, 1 << 30);
    }
}

/// See [`crate::fuzzing::bitlocker_on_write`].
pub(crate) fn fuzz_on_write(bytes: &[u8]) {
    let store = MemoryStore::new(bytes.to_vec());
    for decrypting in [false, true] {
        let about = eow::About { at: [0, 512], sector: 512, size: 2 << 20, decrypting };
        let Ok(Some(found)) = Eow::read(&store, &about) else { continue };
        for ranges in [found.plain, found.structures, found.lost] {
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "they are in order: {ranges:x?}");
        }
    }
}

/// See [`crate::fuzzing::bitlocker_startup_key`].
pub(crate) fn fuzz_startup_key(bytes: &[u8]) {
    let _ = StartupKey::read(&Secret::copy_from(bytes));
}
