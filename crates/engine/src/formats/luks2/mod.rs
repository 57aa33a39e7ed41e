//! LUKS2 (LUKS2 On-Disk Format Specification 1.1.x): two copies of a binary header with metadata in JSON, keyslots that hold the
//! volume key, and segments that say where the data are.
//!
//! Reading never writes: cryptsetup repairs a damaged copy when it opens a volume; here the damage is reported and left unchanged.

mod backup;
#[doc(hidden)]
pub mod binary;
mod change;
pub(super) mod convert;
mod create;
mod derivation;
pub(super) mod describe;
mod editor;
mod keyslots;
mod layout;
#[doc(hidden)]
pub mod metadata;
#[doc(hidden)]
pub mod read;
pub(crate) mod recovery;
pub mod reencrypt;
mod slots;
mod tokens;
mod unlock;
mod validate;
mod write;

use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::Secret;

pub use describe::{
    Luks2Copy, Luks2Digest, Luks2Facts, Luks2Kdf, Luks2Keyslot, Luks2Opens, Luks2Priority, Luks2Segment, Luks2Size,
    Luks2Soundness, Luks2Token,
};
#[doc(hidden)]
pub use read::{Luks2CopyState, ReadHeader, read, read_secondary};

use super::header_facts::{FormatFacts, HeaderFacts, KeyslotFacts};
use super::luks::{Stored, opened_by};
use super::plan::UnlockPlan;
use super::takes::{Parameter, Takes, check_opening};
use super::{
    Choices, Creator, Facts, Format, Header, HeaderEditor, HeaderTrace, InPlaceConverter, KeyMark, Sealed, Unlocked,
    Verdict,
};
use crate::advice::Warning;
use crate::credential::{Credential, HeaderChoice, Unlock};
use crate::error::{Error, Result};
use crate::filesystems::magic;
use crate::password_strength::GuessWork;
use crate::spec::Spec;
use crate::store::Store;
use binary::Which;
use unlock::OpenedKey;

/// The format's name.
pub(super) const NAME: &str = "LUKS2";

/// How many bytes at the beginning are searched for signatures of other formats.
const START: u64 = 0x11000;

/// LUKS2.
pub static LUKS2: Luks2 = Luks2;

/// LUKS2, as a row of the format table.
pub struct Luks2;

impl Format for Luks2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traces(&self) -> &'static [HeaderTrace] {
        const SECOND: HeaderTrace = HeaderTrace {
            name: "its second header",
            at: 0,
            bytes: b"SKUL\xba\xbe",
            offsets: |sector| binary::claimed_offset(sector).into_iter().collect(),
            intact: |store, at| Ok(read_secondary(store).map_or(0, |header| usize::from(header.binary.hdr_size == at))),
        };
        const { &[HeaderTrace::first(0, b"LUKS\xba\xbe"), SECOND] }
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        let mut start = vec![0; store.len().min(START) as usize];
        store.read_at(0, &mut start)?;
        let marked = start.starts_with(Which::Primary.magic());
        if marked && start.get(6..8) == Some(&[0, 1]) {
            return Ok(Verdict::No(vec!["it is a LUKS1 volume".into()]));
        }
        Ok(match (read(store), marked) {
            (Ok(header), true) => Verdict::Yes(described(&header)),
            (Err(e), true) => Verdict::Yes(vec![format!("it begins like a LUKS2 header, but {}", e.kind)]),
            (Ok(header), false) => lost(&header, &start),
            (Err(e), false) if matches!(e.kind, crate::error::ErrorKind::Io(_)) => return Err(e),
            (Err(e), false) => Verdict::No(vec![e.kind.to_string()]),
        })
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Luks2Header::read(Stored::whole(store))
    }

    fn open_detached(&self, header: &Arc<dyn Store>, data: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Luks2Header::read(Stored::apart(header, data))
    }

    fn takes(&self) -> Takes {
        use Parameter::*;
        Takes {
            creating: &[
                Hash,
                Cipher,
                KeySize,
                SectorSize,
                Offset,
                VolumeKey,
                DetachedHeader,
                Uuid,
                Label,
                Subsystem,
                Integrity,
                Kdf,
                Time,
                Iterations,
                Memory,
                Lanes,
                MetadataSize,
                KeyslotsSize,
                RecoveryKey,
                Token,
                Tpm,
            ],
            // A hash and a cipher would narrow the trials. The header names them, but tables of mounts have lines with both.
            opening: &[Hash, Cipher, Keyfile, VolumeKey, Keyslot, BackupHeader, DetachedHeader],
        }
    }

    fn creator(&self) -> Option<&dyn Creator> {
        Some(self)
    }

    fn choose_cost(&self, spec: &Spec<'_>) -> Result<()> {
        keyslots::choose_cost(spec).map_err(|e| e.in_format(NAME))
    }

    fn guess_work(&self, spec: &Spec<'_>) -> Option<GuessWork> {
        keyslots::guess_work(spec)
    }

    fn editor(&self) -> Option<&dyn HeaderEditor> {
        Some(&editor::Editor)
    }

    fn in_place_converter(&self) -> Option<&dyn InPlaceConverter> {
        Some(self)
    }
}

impl Creator for Luks2 {
    fn choices(&self) -> Choices {
        create::choices()
    }

    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        create::create(store, spec, first).map_err(|e| e.in_format(NAME))
    }

    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64> {
        create::stored_len(plain, spec).map_err(|e| e.in_format(NAME))
    }

    fn check_spec(&self, len: u64, spec: &Spec<'_>) -> Result<()> {
        create::check_spec(len, spec).map_err(|e| e.in_format(NAME))
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        keyfiles.is_empty()
    }

    fn fresh_recovery_key(&self) -> Result<Secret> {
        recovery::fresh()
    }
}

fn marks_of(header: &ReadHeader) -> Vec<KeyMark> {
    header.metadata.digests.values().map(|digest| (digest.salt.0.clone(), digest.digest.0.clone())).collect()
}

/// Describes a sound header at the beginning.
fn described(header: &ReadHeader) -> Vec<String> {
    let slots = header.metadata.keyslots.len();
    let plural = if slots == 1 { "" } else { "s" };
    let uuid = validate::printable(&String::from_utf8_lossy(&header.binary.uuid));
    let damage = match (header.primary.is_current(), header.secondary.is_current()) {
        (true, true) => None,
        (false, false) => Some("both copies are damaged, but `header repair` can restore them"),
        _ => Some("one of its two copies is damaged"),
    };
    let header = format!("it has a LUKS2 header with {slots} keyslot{plural}, UUID {uuid}");
    [header].into_iter().chain(damage.map(str::to_owned)).collect()
}

/// The verdict if the primary header is gone but a checksum proves a reconstruction, or a secondary header is sound, which may
/// belong to an earlier volume.
fn lost(header: &ReadHeader, start: &[u8]) -> Verdict {
    let at = header.binary.hdr_size;
    if header.which == Which::Primary {
        let what = "its LUKS2 signature is missing, but the rest of the header is intact";
        return Verdict::Yes(vec![format!("{what}: `header repair` rewrites it")]);
    }
    match magic::known(start) {
        Some(other) => Verdict::No(vec![
            format!("it begins with {other}, but a second LUKS2 header at byte {at} is intact"),
            "to get the LUKS2 volume back, use `header repair` with the format and the passphrase".into(),
        ]),
        None => Verdict::Yes(vec![format!(
            "its beginning is overwritten, but the second LUKS2 header at byte {at} is intact: `header repair` \
             rewrites the first"
        )]),
    }
}

/// A header that has been read but not unlocked.
struct Luks2Header {
    header: ReadHeader,
    stored: Stored,
}

impl Luks2Header {
    fn read(stored: Stored) -> Result<Box<dyn Header>> {
        let header = read(&*stored.header).map_err(|e| e.in_format(NAME))?;
        Ok(Box::new(Self { header, stored }))
    }
}

impl Header for Luks2Header {
    /// A keyfile replaces the passphrase.
    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        keyfiles.is_empty()
    }

    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let stored = &self.stored;
        let unlocked = || {
            check_opening(LUKS2.name(), &LUKS2.takes(), with)?;
            match with.header {
                HeaderChoice::Any | HeaderChoice::One { backup: false, .. } => unlocked(&self.header, stored, with),
                HeaderChoice::Backup | HeaderChoice::One { backup: true, .. } => {
                    unlocked(&read_secondary(&*stored.header)?, stored, with)
                }
            }
        };
        unlocked().map_err(|e| e.in_format(NAME))
    }

    fn key_marks(&self) -> Vec<KeyMark> {
        marks_of(&self.header)
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(LUKS2.name(), LUKS2.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        self.stored.data()
    }

    fn describe(&self) -> Option<HeaderFacts> {
        let keyslots = describe::keyslots(&self.header, &*self.stored.header)
            .map(|slot| KeyslotFacts::Luks2(Box::new(slot)))
            .collect();
        Some(HeaderFacts::new(Some(keyslots), FormatFacts::Luks2(describe::facts(&self.header))))
    }

    fn damage(&self) -> Vec<Warning> {
        unlock::damage(&self.header, &*self.stored.header)
    }

    fn sealed(&self) -> Vec<Sealed> {
        tokens::sealed(&self.header.metadata)
    }

    fn plan(&self, with: &Unlock<'_>) -> Option<UnlockPlan> {
        let digests = layout::digests(&self.header);
        let slots = digests.iter().flat_map(|d| unlock::keyslots_of(&self.header.metadata, *d, with.keyslot));
        Some(unlock::plan(&self.header, &slots.collect::<Vec<_>>(), with))
    }

    fn effort(&self, with: &Unlock<'_>) -> u64 {
        self.plan(with).map_or(1, |plan| plan.microseconds())
    }
}

fn unlocked(header: &ReadHeader, stored: &Stored, with: &Unlock<'_>) -> Result<Unlocked> {
    let begun = Instant::now();
    if let Some(unmet) = validate::unmet(&header.metadata) {
        return Err(unmet);
    }
    if reencrypt::goes_on(&header.metadata) {
        return being_reencrypted(header, stored, with, begun);
    }
    let digest = match layout::digests(header)[..] {
        [digest] => digest,
        [] => return Err(Error::unsupported("an entirely unencrypted LUKS2 volume")),
        _ => return Err(Error::unsupported("several volume keys without a reencryption in progress")),
    };
    layout::no_header_alone(header, &**stored.data(), stored.detached.is_some())?;
    let opened = unlock::open_key(header, &*stored.header, with, digest)?;
    with.has_opened();
    let key = |wanted| (wanted == digest).then_some(&opened.key);
    let laid_out = layout::lay_out(header, &**stored.data(), stored.detached.is_some(), key, with)?;
    let mut warnings = header.warnings();
    warnings.extend(laid_out.warnings);
    warnings.extend(opened.left_out.iter().map(|(n, e)| format!("Keyslot {n} could not be tried: {e}.").into()));
    let facts = facts(header, &opened, laid_out.layout.len())?;
    Ok(Unlocked {
        layout: laid_out.layout,
        facts,
        warnings,
        trials: opened.trials,
        derivations: opened.trials,
        took: begun.elapsed(),
        recognised: true,
    })
}

/// Unlocks a volume during reencryption: an interrupted zone is read as it would be after recovery.
fn being_reencrypted(header: &ReadHeader, stored: &Stored, with: &Unlock<'_>, begun: Instant) -> Result<Unlocked> {
    let stores = reencrypt::HeaderAndData::new(&*stored.header, stored.detached.as_deref());
    let opened = reencrypt::open(header, &stores, with)?;
    let mut warnings = header.warnings();
    warnings.push(opened.warning());
    Ok(Unlocked {
        facts: facts(header, &opened.key, opened.layout.len())?,
        layout: opened.layout,
        warnings,
        trials: opened.key.trials,
        derivations: opened.key.trials,
        took: begun.elapsed(),
        recognised: true,
    })
}

fn facts(header: &ReadHeader, opened: &OpenedKey, size: u64) -> Result<Facts> {
    let parts = layout::parts(header);
    let encrypted = parts.iter().map(|(_, s)| *s).find(|s| s.kind == "crypt");
    let specification = encrypted.and_then(|s| s.encryption.as_deref()).unwrap_or_default();
    let (cipher, mode) = specification.split_once('-').unwrap_or((specification, ""));
    let kdf = opened.keyslot.and_then(|n| header.metadata.keyslots[&n].kdf.as_ref());
    // With the volume key itself, nothing is derived.
    let derivation = kdf.map(|kdf| derivation::of(kdf).map(|kdf| kdf.derivation())).transpose()?;
    let text = |bytes: &[u8]| (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned());
    Ok(Facts {
        format: NAME,
        cipher: cipher.to_owned(),
        mode: mode.to_owned(),
        key_bits: opened.key.len() as u32 * 8,
        hash: derivation.as_ref().map(|derivation| derivation.hash.into()),
        iterations: derivation.as_ref().map_or(0, |derivation| derivation.iterations),
        derivation: None,
        memory: derivation.and_then(|derivation| derivation.memory),
        pim: None,
        header_version: 2,
        header: header.which.copy(),
        opened_by: Some(opened_by(opened.keyslot)),
        hidden: false,
        keyslot: opened.keyslot,
        uuid: text(&header.binary.uuid),
        label: text(&header.binary.label),
        integrity: encrypted.and_then(|s| s.integrity.as_ref()).map(|i| i.kind.clone()),
        sector_size: encrypted.and_then(|s| s.sector_size).unwrap_or(512),
        size,
        data_offset: parts.first().map_or(0, |(_, s)| s.offset.0),
        created: None,
        header_written: None,
    })
}
