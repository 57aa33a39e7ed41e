//! Changes of the metadata: protectors, the volume master key (VMK), the label.
//!
//! All three copies are rewritten, the first one first. So after a crash at least one intact copy remains, old or new. The copies
//! are sealed with the VMK, so every change takes a credential.

use claviger_crypto::Secret;
use claviger_crypto::stretch::ITERATIONS;

use super::boot::{self, Boot};
use super::datum::{Datum, kind, role};
use super::guid::Guid;
use super::layout::Places;
use super::metadata::{BitLockerState, Copy, Metadata};
use super::protect::Opener;
use super::protectors::{Kind, Protector};
use super::renew::{boxes, recovery_key, renew};
use super::sealed::{self, Sealer};
use super::tpm::TpmOpener;
use super::unlock::{self, OpenedKeys};
use super::{
    BITLOCKER, BitLocker, HEADER_COPIES, NAME, UNPROVEN, first_opened, led_to, no_first_sector, recovery, repair, write,
};
use crate::advice::{Advice, Warning};
use crate::credential::Unlock;
use crate::edit::Edit;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::editor::none_lost;
use crate::formats::takes::{check_new, check_opening};
use crate::formats::{
    CopyReport, CopyState, Derivation, Format, HeaderAttributes, HeaderBackup, HeaderEditor, NewCredential, Prepared,
    Protection, RecoveryPassword, Removal, RestoreFrom, Verified, wiped,
};
use crate::store::Store;

impl HeaderEditor for BitLocker {
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
        wiped(NAME, change(store, with, new))
    }

    fn add(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, at: Option<u32>) -> Result<Prepared> {
        wiped(NAME, add(store, with, new, at))
    }

    fn replace(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, number: u32) -> Result<Prepared> {
        wiped(NAME, reseal(store, with, new, number))
    }

    fn remove(&self, store: &dyn Store, which: Removal<'_>, last: bool) -> Result<Prepared> {
        wiped(NAME, remove(store, which, last))
    }

    fn protect(&self, store: &dyn Store, with: &Unlock<'_>, how: Protection) -> Result<Prepared> {
        wiped(NAME, protect(store, with, how))
    }

    fn recovery_passwords(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Vec<RecoveryPassword>> {
        wiped(NAME, recovery_passwords(store, with))
    }

    fn recovery_keyslots(&self, store: &dyn Store) -> Result<Vec<u32>> {
        let (_, copies, _) = wiped(NAME, led_to(store))?;
        let protectors = copies.first().map(|copy| Protector::all(&copy.metadata).0).unwrap_or_default();
        let recovery = protectors.iter().filter(|protector| protector.kind == Kind::RECOVERY);
        Ok(recovery.map(|protector| protector.number).collect())
    }

    fn set(&self, store: &dyn Store, with: Option<&Unlock<'_>>, to: &HeaderAttributes<'_>) -> Result<Prepared> {
        wiped(NAME, set(store, with.unwrap_or(&Unlock::with(&[])), to))
    }

    fn repair(&self, store: &dyn Store, with: Option<&Unlock<'_>>, lost: &[u32]) -> Result<Prepared> {
        none_lost(lost)?;
        wiped(NAME, repair::repair(store, with.unwrap_or(&Unlock::with(&[]))))
    }

    fn sealed(&self) -> bool {
        true
    }

    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
        wiped(NAME, verify(store, with))
    }

    fn back_up(&self, _store: &dyn Store, _with: &Unlock<'_>, _hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup> {
        wiped(NAME, Err(no_backups()))
    }

    fn restore(
        &self,
        store: &dyn Store,
        from: RestoreFrom<'_>,
        _with: &Unlock<'_>,
        _unproven: bool,
    ) -> Result<Prepared> {
        let from = match from {
            RestoreFrom::Backup(file) => file,
            RestoreFrom::Embedded => store,
        };
        wiped(NAME, Err(Boot::read(from)?.map_or_else(no_first_sector, |_| no_backups())))
    }

    fn has_backups(&self) -> bool {
        false
    }

    fn public(&self) -> bool {
        true
    }
}

fn no_backups() -> Error {
    Error::unsupported("header backups of BitLocker")
        .hint("The volume itself has three copies of the metadata; any sound one repairs the others.")
        .advise(Advice::RepairHeader)
}

/// Metadata that are being changed, with their current state.
struct Change<'a> {
    with: &'a Unlock<'a>,
    /// The intact copies.
    copies: Vec<Copy>,
    /// The metadata before an interrupted change.
    before: Option<Metadata>,
    /// The numbers of the copies that are damaged.
    damaged: Vec<usize>,
    /// The new metadata.
    metadata: Metadata,
    vmk: Secret,
    /// The number and kind of the protector that opened; `None` if the VMK itself was given.
    opened: Option<(u32, Kind)>,
    warnings: Vec<Warning>,
}

impl<'a> Change<'a> {
    /// Prepares a change of the newest metadata.
    ///
    /// # Errors
    /// Those of [`Self::of_any`]; `Misuse` if the credentials open only the metadata from before an interrupted change.
    fn of(store: &dyn Store, with: &'a Unlock<'a>) -> Result<Self> {
        match Self::of_any(store, with)? {
            (change, true) => Ok(change),
            _ => Err(unsound("the copies differ, and the given credential does not prove the first one")),
        }
    }

    /// Prepares a change of the first copy that is proven to be written with the VMK and understood to the last byte. Also returns
    /// whether there is no newer copy. The others may be damaged or from before an interrupted change: all are rewritten.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if copies differ in more than the protectors: they must be repaired first.
    fn of_any(store: &dyn Store, with: &'a Unlock<'a>) -> Result<(Self, bool)> {
        check_opening(NAME, &BITLOCKER.takes(), with)?;
        let (boot, copies, damaged) = led_to(store)?;
        if boot.kind == boot::Kind::Vista {
            return Err(
                Error::unsupported("changing the metadata of Windows Vista volumes").hint("Change them in Windows.")
            );
        }
        let (opener, opened) = open_to_change(&copies, with)?;
        let vmk = opened.vmk.ok_or_else(|| {
            Error::misuse("the volume key (FVEK) opens the data, but cannot prove or change the metadata")
                .hint("Give a password, a recovery password, a startup key or the volume master key.")
        })?;
        let Some(number) = copies.iter().position(|copy| unlock::sealed_by(copy, &vmk)) else {
            return Err(unsound("their hash does not match the sealed one"));
        };
        let base = &copies[number];
        if !copies.iter().all(|copy| same_volume(&copy.metadata, &base.metadata)) {
            return Err(unsound("the copies differ in more than their protectors"));
        }
        understood(&boot, base, store)?;
        let mut metadata = base.metadata.clone();
        metadata.next_nonce =
            copies.iter().map(next_counter).collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        let opened = opened.protector.and_then(|(number, _)| same_protector(&opener.metadata, number, &metadata));
        let opened = opened.map(|protector| (protector.number, protector.kind));
        let before = copies[number..].iter().rfind(|copy| copy.block != base.block).map(|copy| copy.metadata.clone());
        let damaged: Vec<_> = damaged.into_iter().map(|(number, _)| number).collect();
        let mut warnings = Vec::new();
        if copies.iter().any(|copy| copy.block != base.block || copy.validation != base.validation) {
            warnings.push(Warning::from(
                "An earlier change of the metadata was interrupted. All copies are the same \
                 again.",
            ));
        }
        for copy in &damaged {
            warnings.push(format!("Copy {} of the metadata was damaged; it was rewritten.", copy + 1).into());
        }
        Ok((Self { with, copies, before, damaged, metadata, vmk, opened, warnings }, number == 0))
    }

    /// Whether the copies are damaged or out of date, so that they must be written even if nothing else changes.
    fn is_cut_short(&self) -> bool {
        !self.warnings.is_empty()
    }

    /// Returns the protector that a number means: in the numbering before an interrupted change, which may already have removed it.
    fn meant(&self, number: u32) -> Result<Option<u32>> {
        let last = HEADER_COPIES.len() - 1;
        match &self.before {
            None if self.damaged.contains(&last) => {
                Err(unsound("the last copy does not show if the protector was already removed"))
            }
            Some(before) if number < before.protectors().count() as u32 => {
                Ok(same_protector(before, number, &self.metadata).map(|protector| protector.number))
            }
            _ if number < self.count() => Ok(Some(number)),
            _ => Err(no_protector(number)),
        }
    }

    /// Returns the protector that the new credential already opens, if an interrupted change only has to be completed.
    fn added_already(&self, new: &NewCredential<'_>, opener: &Opener<'_>) -> Option<u32> {
        let with = Unlock { credentials: new.credentials, keyslot: None, progress: None, ..*self.with };
        let opens = |protector: &Protector| match opener {
            Opener::Tpm(tpm) => tpm.opens(protector, &self.vmk),
            _ => unlock::open(&self.metadata, &Unlock { keyslot: Some(protector.number), ..with }).is_ok(),
        };
        let of_kind = self.protectors().into_iter().filter(|protector| protector.kind == opener.kind());
        let mut of_kind = of_kind.filter(|_| self.is_cut_short());
        of_kind.find(opens).map(|protector| protector.number)
    }

    fn kind_of(&self, number: u32) -> Option<Kind> {
        self.protectors().iter().find(|protector| protector.number == number).map(|protector| protector.kind)
    }

    fn protectors(&self) -> Vec<Protector> {
        Protector::all(&self.metadata).0
    }

    /// The number of protectors, invalid ones included.
    fn count(&self) -> u32 {
        self.metadata.protectors().count() as u32
    }

    /// Returns a new protector's datum.
    fn made(&mut self, opener: &Opener<'_>, guid: Guid) -> Result<Datum> {
        let mut next = self.metadata.next_nonce;
        let made = opener.protector(guid, &self.vmk, &mut Sealer::new(&mut next), self.with)?;
        self.metadata.next_nonce = next;
        Ok(made)
    }

    /// Adds a protector after the others, and returns its number.
    fn add(&mut self, opener: &Opener<'_>) -> Result<u32> {
        let number = self.count();
        let made = self.made(opener, Guid::random()?)?;
        let is_key = |datum: &Datum| datum.role == role::FVEK || datum.kind == kind::PROTECTOR;
        let place = self.metadata.datums.iter().rposition(is_key).map_or(0, |last| last + 1);
        self.metadata.datums.insert(place, made);
        Ok(number)
    }

    /// Removes the protectors for which `which` returns true.
    fn remove(&mut self, which: impl Fn(u32, &Datum) -> bool) {
        let places: Vec<_> = (0..)
            .zip(self.metadata.protectors())
            .filter(|(number, (_, datum))| which(*number, datum))
            .map(|(_, (place, _))| place)
            .collect();
        for place in places.into_iter().rev() {
            self.metadata.datums.remove(place);
        }
    }

    fn renew(&mut self) -> Result<()> {
        self.vmk = renew(&mut self.metadata, &self.vmk, self.with)?;
        Ok(())
    }

    /// Whether this program can open one of the remaining protectors, not counting a clear key.
    fn is_kept(&self) -> bool {
        self.protectors().iter().any(|protector| protector.kind != Kind::CLEAR && protector.kind.needs().is_none())
    }

    fn prepared(mut self, keyslot: Option<u32>, derivation: Option<Derivation>) -> Result<Prepared> {
        mark_clear_keys(&mut self.metadata);
        let edit = write::rewritten(self.metadata, &self.vmk, &self.copies)?;
        Ok(Prepared { edit, format: NAME, hidden: false, keyslot, derivation, warnings: self.warnings })
    }

    /// Ends without further changes. Writes nothing if all copies are in order.
    fn nothing(self) -> Result<Prepared> {
        if self.is_cut_short() {
            return self.prepared(None, None);
        }
        let edit = Edit::default();
        let (keyslot, derivation) = (None, None);
        Ok(Prepared { edit, format: NAME, hidden: false, keyslot, derivation, warnings: self.warnings })
    }
}

fn unsound(what: &str) -> Error {
    Error::misuse(format!("the metadata are damaged ({what}); nothing was changed")).advise(Advice::RepairHeader)
}

/// Returns the first copy that the credentials open, and the keys. A copy that anybody can open is used only if no other copy is
/// sealed: anybody can have written it.
fn open_to_change<'a>(copies: &'a [Copy], with: &Unlock<'_>) -> Result<(&'a Copy, OpenedKeys)> {
    let sealed = copies.iter().any(|copy| !unlock::is_open(&copy.metadata));
    let counts = |copy: &&Copy| !sealed || !unlock::is_open(&copy.metadata);
    first_opened(copies.iter().filter(counts), with)
}

/// Whether any copy is damaged.
fn has_damage(store: &dyn Store) -> bool {
    led_to(store).is_ok_and(|(_, _, damaged)| !damaged.is_empty())
}

/// Whether both metadata describe the same volume in the same state, whatever the protectors.
fn same_volume(one: &Metadata, other: &Metadata) -> bool {
    let all = |of: &Metadata| Metadata { datums: Vec::new(), next_nonce: 0, ..of.clone() };
    all(one) == all(other)
}

/// Returns the current protector that replaced an older one, unless it was removed. A changed startup key has a new GUID; if none
/// was removed, the number identifies it.
fn same_protector(before: &Metadata, number: u32, now: &Metadata) -> Option<Protector> {
    let (old, new) = (Protector::all(before).0, Protector::all(now).0);
    let as_many = old.len() <= new.len();
    let old = old.into_iter().find(|protector| protector.number == number)?;
    let place = new.iter().position(|protector| protector.guid == old.guid);
    let changed = || new.iter().position(|new| as_many && (new.number, new.kind) == (number, old.kind));
    let place = place.or_else(changed)?;
    new.into_iter().nth(place)
}

/// Checks that the places are valid, and that writing unchanged metadata would reproduce the bytes that were read.
fn understood(boot: &Boot, copy: &Copy, store: &dyn Store) -> Result<()> {
    Places::of(boot, &copy.metadata, store.len())?;
    let same = copy.metadata.block().is_ok_and(|block| block == copy.block);
    match same && copy.validation.version == copy.metadata.version {
        true => Ok(()),
        false => Err(Error::unsupported("changing metadata with unknown entries")
            .hint("Nothing was changed. Change them in Windows.")),
    }
}

/// The counter of the next box: higher than all existing ones, whatever the metadata say.
pub(super) fn next_counter(copy: &Copy) -> Result<u32> {
    /// More than any change needs: metadata have space for fewer boxes.
    const MARGIN: u32 = 1 << 16;
    let sealed = copy.metadata.datums.iter().flat_map(boxes).chain(copy.validation.hash.clone());
    let highest = sealed.filter(|datum| datum.kind == kind::SEALED).filter_map(|sealed| sealed::counter(&sealed)).max();
    let next = highest.map_or(0, |highest| highest.saturating_add(1)).max(copy.metadata.next_nonce);
    match next.checked_add(MARGIN) {
        Some(_) => Ok(next),
        None => Err(Error::unsupported("changing these metadata: their nonce counter is exhausted")),
    }
}

/// Windows sets a flag in a clear key that is the only protector.
fn mark_clear_keys(metadata: &mut Metadata) {
    const BESIDE_OTHERS: u16 = 1;
    const ALONE: u16 = 3;
    let version = if metadata.protectors().count() == 1 { ALONE } else { BESIDE_OTHERS };
    for protector in Protector::all(metadata).0 {
        if protector.kind == Kind::CLEAR {
            metadata.datums[protector.place].version = version;
        }
    }
}

/// The key derivation for typed secrets.
fn derivation(opener: &Opener<'_>) -> Option<Derivation> {
    let stretched = match opener {
        Opener::Password(_) | Opener::Recovery(_) => true,
        Opener::Tpm(tpm) => tpm.kind().has_pin(),
        Opener::StartupKey(_) | Opener::Clear => false,
    };
    stretched.then_some(Derivation { hash: "SHA-256", iterations: ITERATIONS as u32, memory: None })
}

fn opener<'a>(new: &NewCredential<'a>) -> Result<Opener<'a>> {
    check_new(&BITLOCKER, new)?;
    if new.unbound_bits.is_some() {
        return Err(Error::misuse("BitLocker protectors hold only the volume's own key"));
    }
    match new.tpm {
        Some(sealing) => TpmOpener::new(sealing, new.credentials).map(Opener::Tpm),
        None => Opener::of(new.credentials),
    }
}

fn change(store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
    let opener = opener(new)?;
    let new_one = Unlock { credentials: new.credentials, keyslot: None, ..*with };
    let mut change = match Change::of(store, with) {
        // The new credential already opens all intact copies if only the last copy of an interrupted change is missing.
        Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) && has_damage(store) => {
            let Ok(change) = Change::of(store, &new_one) else { return Err(e) };
            let number = change.opened.map(|(number, _)| number);
            return change.prepared(number, derivation(&opener));
        }
        change => change?,
    };
    let protectors = change.protectors();
    let same_kind: Vec<_> = protectors.iter().filter(|protector| protector.kind == opener.kind()).collect();
    let opened = change.opened.and_then(|(number, _)| same_kind.iter().find(|protector| protector.number == number));
    // The credential may be of another kind: then it replaces a forgotten password.
    let old = match (opened, &same_kind[..]) {
        (Some(opened), _) => opened,
        (None, [only]) => only,
        (None, []) => {
            return Err(
                Error::misuse(format!("there is no {} to change", opener.kind().name())).hint("Add one instead.")
            );
        }
        (None, several) => {
            let numbers: Vec<_> = several.iter().map(|protector| protector.number.to_string()).collect();
            return Err(Error::misuse(format!(
                "there are several protectors of this kind, and the given credential opens none: {}",
                numbers.join(", ")
            ))
            .hint("Add a new one, then remove those no longer needed."));
        }
    };
    let (number, place, guid) = (old.number, old.place, old.guid);
    change.metadata.datums[place] = change.made(&opener, guid)?;
    change.prepared(Some(number), derivation(&opener))
}

fn add(store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, at: Option<u32>) -> Result<Prepared> {
    let opener = opener(new)?;
    let mut change = Change::of(store, with)?;
    if let Some(number) = change.added_already(new, &opener) {
        return change.prepared(Some(number), derivation(&opener));
    }
    let next = change.count();
    if at.is_some_and(|at| at != next) {
        return Err(Error::misuse(format!("BitLocker numbers its protectors in order: the new one is {next}")));
    }
    let protectors = change.protectors();
    if let Some(key) = opener.startup_key()
        && let Some(there) = protectors.iter().find(|protector| protector.guid == key.protector)
    {
        return Err(Error::misuse(format!("this startup key already belongs to protector {}", there.number)));
    }
    if opener.kind() == Kind::PASSWORD && protectors.iter().any(|protector| protector.kind == Kind::PASSWORD) {
        let what =
            "The volume already had a password. Both open it, but Windows allows one and may not show the other.";
        change.warnings.push(what.into());
    }
    let number = change.add(&opener)?;
    change.prepared(Some(number), derivation(&opener))
}

/// Seals protector `number` to the TPM in `new` anew, with the PIN and the startup key that it has.
fn reseal(store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, number: u32) -> Result<Prepared> {
    check_new(&BITLOCKER, new)?;
    let Some(sealing) = new.tpm else { return Err(Error::unsupported("tokens: BitLocker has protectors instead")) };
    let mut change = Change::of(store, with)?;
    let old = change.protectors().into_iter().find(|protector| protector.number == number);
    let old = old.ok_or_else(|| no_protector(number))?;
    let opener = Opener::Tpm(TpmOpener::like(&old, &change.vmk, sealing)?);
    change.metadata.datums[old.place] = change.made(&opener, old.guid)?;
    change.prepared(Some(number), derivation(&opener))
}

fn remove(store: &dyn Store, which: Removal<'_>, last: bool) -> Result<Prepared> {
    let nothing = Unlock::with(&[]);
    let (mut change, number) = match which {
        Removal::Opened(with) => {
            // A removed credential may open only the copies from before its interrupted removal.
            let (change, _) = Change::of_any(store, with)?;
            match (change.opened, with.keyslot) {
                // A TPM released the key, and its protector is named, perhaps for a removal that was interrupted.
                (None, Some(named)) => match change.meant(named)? {
                    Some(number) if change.kind_of(number).is_some_and(Kind::is_by_tpm) => (change, number),
                    Some(_) => return Err(not_identified()),
                    None => return change.prepared(Some(named), None),
                },
                _ => {
                    let number = removable(&change)?;
                    (change, number)
                }
            }
        }
        Removal::Number(number, with) => match opened_by_another(store, with.unwrap_or(&nothing), number)? {
            (change, Some(meant)) => (change, meant),
            (change, None) => return change.prepared(Some(number), None),
        },
    };
    let removes_tpm = change.kind_of(number).is_some_and(Kind::is_by_tpm);
    change.remove(|this, _| this == number);
    if !change.is_kept() {
        if change.protectors().iter().any(|protector| protector.kind.is_by_tpm()) {
            return Err(Error::misuse(format!(
                "protector {number} is the last one that opens without a TPM; if the TPM fails, the data are lost"
            ))
            .hint("Add another one first."));
        }
        if !last {
            return Err(Error::misuse(format!(
                "protector {number} is the last one that this program can open; without it the data are lost"
            ))
            .hint("Add another one first.")
            .advise(Advice::AllowRemovingLast));
        }
        change.warnings.push(match change.protectors().iter().any(|protector| protector.kind == Kind::CLEAR) {
            true => "Only the clear key is left: anybody can open the volume.".into(),
            false => "No protector opens the volume any more; only the volume key does.".into(),
        });
    }
    match change.renew() {
        // Otherwise, of two TPM protectors, none could ever be removed.
        Err(e) if removes_tpm && matches!(e.kind, ErrorKind::Misuse(_)) => {
            change.warnings.push(Warning::from(
                "The volume master key stays the same, because another protector with a TPM cannot take a new one. Old copies of \
                 the metadata still open with the removed protector. To replace the key, remove all protectors with a TPM.",
            ));
        }
        renewed => renewed?,
    }
    change.prepared(Some(number), None)
}

/// Returns the protector that the given credential opened.
fn removable(change: &Change<'_>) -> Result<u32> {
    match change.opened {
        Some((_, Kind::CLEAR)) => Err(Error::misuse("protection is suspended: the volume opens with any credential")
            .hint("Give the protector's number, or resume protection first.")),
        Some((number, _)) => Ok(number),
        None => Err(not_identified()),
    }
}

fn not_identified() -> Error {
    Error::misuse("the volume master key does not identify a protector to remove")
}

/// Opens with a protector other than `number`. Removing a protector requires proof that another one opens the volume.
fn opened_by_another<'a>(store: &dyn Store, with: &'a Unlock<'a>, number: u32) -> Result<(Change<'a>, Option<u32>)> {
    let change = Change::of(store, with).map_err(|error| match error.kind {
        ErrorKind::Misuse(_) if with.credentials.is_empty() && error.advice.is_none() => {
            error.hint("The metadata are sealed: changing them needs a credential that opens the volume.")
        }
        _ => error,
    })?;
    let Some(number) = change.meant(number)? else { return Ok((change, None)) };
    // Two protectors may have the same password.
    let opens = |other: &Protector| {
        let only = Unlock { keyslot: Some(other.number), progress: None, ..*with };
        other.number != number && with.keyslot.is_none() && unlock::open(&change.metadata, &only).is_ok()
    };
    let protectors = change.protectors();
    let itself = change.opened.is_some_and(|(opened, kind)| opened == number && kind != Kind::CLEAR);
    // If none stays, that is the reason to refuse.
    let stays = |other: &Protector| other.number != number && other.kind != Kind::CLEAR && other.kind.needs().is_none();
    if itself && protectors.iter().any(stays) && !protectors.iter().any(opens) {
        return Err(Error::misuse(format!("the given credential opens protector {number}, the one to remove"))
            .hint("Give a credential of a protector that stays."));
    }
    Ok((change, Some(number)))
}

fn no_protector(number: u32) -> Error {
    Error::misuse(format!("there is no protector {number}")).advise(Advice::ListKeyslots)
}

fn protect(store: &dyn Store, with: &Unlock<'_>, how: Protection) -> Result<Prepared> {
    let mut change = Change::of(store, with)?;
    let clear = change.protectors().into_iter().find(|protector| protector.kind == Kind::CLEAR);
    match (how, clear) {
        (Protection::Suspend, Some(_)) | (Protection::Resume, None) => change.nothing(),
        (Protection::Suspend, None) => {
            let number = change.add(&Opener::Clear)?;
            let what = "Protection is suspended: the volume stores its key in the clear, so anybody can open it.";
            change.warnings.push(what.into());
            change.prepared(Some(number), None)
        }
        (Protection::Resume, Some(clear)) => {
            let places: Vec<_> =
                change.protectors().iter().filter(|p| p.kind == Kind::CLEAR).map(|p| p.number).collect();
            change.remove(|number, _| places.contains(&number));
            // If a TPM opens it, the next step says why that is not enough.
            let by_tpm = change.protectors().iter().any(|protector| protector.kind.is_by_tpm());
            if !change.is_kept() && !by_tpm {
                return Err(Error::misuse("only the clear key opens the volume; without it the data would be lost")
                    .hint("Add a password or a recovery password first."));
            }
            change.renew()?;
            change.prepared(Some(clear.number), None)
        }
        (Protection::NewKey, _) => {
            change.renew()?;
            change.prepared(None, None)
        }
    }
}

fn set(store: &dyn Store, with: &Unlock<'_>, to: &HeaderAttributes<'_>) -> Result<Prepared> {
    let HeaderAttributes { uuid: None, label, subsystem: None, priority: None, flags: None } = to else {
        return Err(Error::unsupported("UUIDs, subsystems, priorities and flags: BitLocker has only a label"));
    };
    let mut change = Change::of(store, with)?;
    let is_label = |datum: &Datum| (datum.role, datum.kind) == (role::LABEL, kind::TEXT);
    let datums = &mut change.metadata.datums;
    let place = datums.iter().position(is_label);
    match (label.map(|text| Datum::of_text(role::LABEL, text)), place) {
        (None, _) => return change.nothing(),
        (Some(label), Some(place)) => datums[place] = label,
        // In front of the keys, where Windows puts it.
        (Some(label), None) => {
            let place = datums.iter().position(|datum| datum.kind != kind::HEADER_PLACE).unwrap_or(datums.len());
            datums.insert(place, label);
        }
    }
    change.prepared(None, None)
}

fn recovery_passwords(store: &dyn Store, with: &Unlock<'_>) -> Result<Vec<RecoveryPassword>> {
    check_opening(NAME, &BITLOCKER.takes(), with)?;
    let (_, copies, _) = led_to(store)?;
    let (copy, opened) = first_opened(copies.iter(), with)?;
    let vmk = opened.vmk.ok_or_else(|| Error::misuse("the volume key (FVEK) does not reveal recovery passwords"))?;
    let protectors = Protector::all(&copy.metadata).0;
    let recovery = protectors.iter().filter(|protector| protector.kind == Kind::RECOVERY);
    Ok(recovery
        .filter_map(|protector| {
            let key = recovery_key(&copy.metadata.datums[protector.place], &vmk)?;
            let (keyslot, guid) = (protector.number, protector.guid.to_string());
            Some(RecoveryPassword { keyslot, guid, password: recovery::text(&key) })
        })
        .collect())
}

fn verify(store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
    check_opening(NAME, &BITLOCKER.takes(), with)?;
    let (_, copies, damaged) = led_to(store)?;
    let (first, opened) = first_opened(copies.iter(), with)?;
    let unproven =
        |vmk: &Secret| copies.iter().all(|copy| copy.validation.hash.is_some() && !unlock::proven(copy, vmk));
    let unproven = opened.vmk.as_ref().is_some_and(unproven);
    let mut whole = copies.iter();
    let reports = HEADER_COPIES.into_iter().enumerate().map(|(number, name)| {
        let at = first.metadata.copies[number];
        let state = match damaged.iter().find(|(damaged, _)| *damaged == number) {
            Some((_, error)) => CopyState::Damaged(error.kind.to_string()),
            None => whole.next().map_or(CopyState::NoHeader, |copy| state_of(copy, first, opened.vmk.as_ref())),
        };
        CopyReport { name: name.name(), at, state }
    });
    let copies: Vec<_> = reports.collect();
    let damaged = copies.iter().any(|copy| copy.state != CopyState::Opens);
    let mut warnings = Vec::new();
    if unproven {
        warnings.push(UNPROVEN.into());
    } else if damaged {
        let what = "Some copies of the metadata are damaged or differ.";
        warnings.push(Warning::from(what).advise(Advice::RepairHeader));
    }
    let state = first.metadata.state.towards(first.metadata.next_state);
    if !matches!(state, BitLockerState::Encrypted | BitLockerState::Decrypted) {
        warnings.push(format!("The conversion of this volume is not finished ({state}).").into());
    }
    if opened.vmk.is_none() {
        warnings.push("The metadata hashes were not checked: the volume key (FVEK) cannot prove them.".into());
    }
    Ok(Verified { format: NAME, copies, areas: Vec::new(), damaged, warnings })
}

/// The condition of a copy whose CRC is right, compared with the one that opened.
fn state_of(copy: &Copy, opened: &Copy, vmk: Option<&Secret>) -> CopyState {
    let same = copy.block == opened.block;
    match vmk {
        // Vista's copies have no hash.
        Some(vmk) if same && copy.validation.hash.is_some() && !unlock::proven(copy, vmk) => {
            CopyState::Damaged("its hash (SHA-256) does not match the sealed one".to_owned())
        }
        Some(vmk) if !same && unlock::volume_key(&copy.metadata, vmk).is_err() => {
            CopyState::Differs("it has another volume master key".to_owned())
        }
        _ if !same => CopyState::Differs("it differs from the first copy that opens".to_owned()),
        _ => CopyState::Opens,
    }
}
