//! Changes of LUKS1 headers.
//!
//! A new key is written to the area of an unused keyslot, and then the header is updated in a single sector. The old keyslot is
//! wiped once another one opens. An area in use is never overwritten in place: no disk writes its 500 sectors at once.

use claviger_crypto::Secret;

use super::create::{choose, sealed};
use super::header::{Phdr, SLOTS, Slot};
use super::unlock::{OpenedKey, open_key};
use super::{LUKS1, Luks1, NAME, backup, not_in_luks1, repair};
use crate::advice::Warning;
use crate::credential::{Credential, Unlock};
use crate::edit::{Edit, Seen, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks::kdf::Kdf;
use crate::formats::luks::{self, passphrase, uuid};
use crate::formats::luks2;
use crate::formats::takes::check_new;
use crate::formats::{
    Derivation, HeaderAttributes, HeaderBackup, HeaderEditor, NewCredential, Prepared, Removal, Resizing, RestoreFrom,
    Verified, same_name, wiped,
};
use crate::random;
use crate::store::Store;

impl HeaderEditor for Luks1 {
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
        wiped(NAME, change(store, with, new))
    }

    fn add(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, at: Option<u32>) -> Result<Prepared> {
        wiped(NAME, add(store, with, new, at))
    }

    fn remove(&self, store: &dyn Store, which: Removal<'_>, last: bool) -> Result<Prepared> {
        wiped(NAME, remove(store, which, last))
    }

    fn set(&self, store: &dyn Store, _with: Option<&Unlock<'_>>, to: &HeaderAttributes<'_>) -> Result<Prepared> {
        wiped(NAME, set(store, to))
    }

    fn repair(&self, store: &dyn Store, with: Option<&Unlock<'_>>, lost: &[u32]) -> Result<Prepared> {
        wiped(NAME, repair::repair(store, with.unwrap_or(&Unlock::with(&[])), lost))
    }

    fn back_up(&self, store: &dyn Store, _with: &Unlock<'_>, hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup> {
        wiped(NAME, if hidden.is_some() { Err(not_in_luks1("hidden volumes")) } else { backup::back_up(store) })
    }

    fn restore(&self, store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared> {
        wiped(NAME, backup::restore(store, from, with, unproven))
    }

    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
        wiped(NAME, repair::verify(store, with))
    }

    fn public(&self) -> bool {
        true
    }

    fn convert(&self, store: &dyn Store, to: &str, detached: bool) -> Result<Prepared> {
        wiped(NAME, luks2::convert::to_luks2(store, to, detached))
    }

    fn resize(
        &self,
        store: &dyn Store,
        data: Option<&dyn Store>,
        _with: Option<&Unlock<'_>>,
        size: u64,
    ) -> Result<Resizing> {
        wiped(NAME, resize(store, data, size))
    }
}

/// The steps of several header changes, in order.
pub(super) struct Change<'a> {
    store: &'a dyn Store,
    /// The header after the steps so far.
    pub header: Phdr,
    pub steps: Vec<Step>,
    /// The header before all steps.
    seen: Vec<Seen>,
}

impl<'a> Change<'a> {
    /// Reads the header in `store`.
    ///
    /// # Errors
    /// `Malformed` if it is damaged: it must be repaired first.
    pub fn of(store: &'a dyn Store) -> Result<Self> {
        let header = Phdr::find(store)?;
        header.sound()?;
        let seen = header.seen();
        Ok(Self { store, header, steps: Vec::new(), seen })
    }

    /// Adds the steps that replace the header with this one.
    pub fn header_becomes(&mut self, new: Phdr) -> Result<()> {
        self.steps.extend(new.steps(&self.header.bytes, self.store)?);
        self.header = new;
        Ok(())
    }

    pub fn prepared(self, keyslot: Option<usize>, derivation: Option<Derivation>, warnings: Vec<Warning>) -> Prepared {
        let keyslot = keyslot.map(|number| number as u32);
        let edit = Edit::new(self.steps).made_for(self.seen);
        Prepared { edit, format: NAME, hidden: false, keyslot, derivation, warnings }
    }

    /// Puts the key into an unused keyslot.
    fn put(&mut self, number: usize, key: &Secret, new: &NewCredential<'_>, with: &Unlock<'_>) -> Result<Kdf> {
        let passphrase = passphrase(new.credentials)?;
        let (hash, cipher) = (self.header.hash()?, self.header.cipher()?);
        let kdf = choose(&new.cost, hash, key.len(), with.cancel)?;
        let area = self.header.area(&self.header.slots[number], hash, &cipher);
        let (slot, bytes) = sealed(&area, &kdf, key, passphrase, with)?;
        self.steps.push(Step { what: format!("the area of keyslot {number}"), at: area.at, bytes });
        self.header_becomes(self.header.with_slot(number, slot))?;
        Ok(kdf)
    }

    /// Takes a keyslot out of use. Its area is overwritten first, so that the change can be repeated after an interruption.
    fn wipe(&mut self, number: usize) -> Result<()> {
        let slot = &self.header.slots[number];
        let area = slot.area(self.header.key_len);
        let mut bytes = vec![0; (area.end - area.start) as usize];
        random::fill(&mut bytes)?;
        self.steps.push(Step { what: format!("random bytes over keyslot {number}"), at: area.start, bytes });
        let unused = Slot { stripes: slot.stripes, ..Slot::unused(slot.offset) };
        self.header_becomes(self.header.with_slot(number, unused))
    }
}

fn change(store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    refuse_others(&change.header, new)?;
    let OpenedKey { keyslot, key, warnings, .. } = open_key(&change.header, store, with)?;
    let old = keyslot.ok_or_else(|| {
        Error::misuse("the volume key itself cannot be changed here").hint("Use it to add a keyslot instead.")
    })?;
    let free = free(&change.header).ok_or_else(|| {
        Error::misuse("all eight keyslots are in use; nothing was changed").hint(
            "Overwriting the old passphrase could leave none if interrupted. Remove a keyslot that is no longer \
             needed, then change this one.",
        )
    })?;
    let kdf = change.put(free, &key, new, with)?;
    change.wipe(old)?;
    Ok(change.prepared(Some(free), Some(kdf.derivation()), warnings))
}

fn add(store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, at: Option<u32>) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    refuse_others(&change.header, new)?;
    let number = match at {
        None => free(&change.header).ok_or_else(|| {
            Error::misuse("all eight keyslots are in use").hint("Remove one that is no longer needed.")
        })?,
        Some(number) => {
            let number = checked(number)?;
            if change.header.slots[number].active {
                return Err(Error::misuse(format!("keyslot {number} is in use")));
            }
            number
        }
    };
    let OpenedKey { key, warnings, .. } = open_key(&change.header, store, with)?;
    let kdf = change.put(number, &key, new, with)?;
    Ok(change.prepared(Some(number), Some(kdf.derivation()), warnings))
}

fn remove(store: &dyn Store, which: Removal<'_>, last: bool) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    let number = match which {
        Removal::Opened(with) => {
            let opened = open_key(&change.header, store, with)?.keyslot;
            opened.ok_or_else(|| Error::misuse("the volume key does not identify a keyslot to remove"))?
        }
        Removal::Number(number, _) => {
            let number = checked(number)?;
            if !change.header.slots[number].active {
                return Err(Error::misuse(format!("keyslot {number} is not in use")));
            }
            number
        }
    };
    let is_last = change.header.active().count() == 1;
    if is_last && !last {
        return Err(luks::last_keyslot(number as u32));
    }
    if let Removal::Number(_, Some(with)) = which {
        another_opens(&change.header, store, with, number)?;
    }
    change.wipe(number)?;
    let warning = "No keyslot opens the volume any more; only a header backup or the volume key does.";
    let warnings = is_last.then(|| warning.into()).into_iter().collect();
    Ok(change.prepared(Some(number), None, warnings))
}

/// Fails unless `with` opens a keyslot other than `number`, or is the volume key. Removing a keyslot requires proof that
/// another one remains.
fn another_opens(header: &Phdr, store: &dyn Store, with: &Unlock<'_>, number: usize) -> Result<()> {
    if with.keyslot == Some(number as u32) {
        return Err(luks::opens_itself(number as u32));
    }
    if let [Credential::VolumeKey(_)] = with.credentials {
        return open_key(header, store, with).map(drop);
    }
    // Tries without this keyslot, since another one may have the same passphrase.
    let others = header.with_slot(number, Slot { active: false, ..header.slots[number].clone() });
    match open_key(&others, store, with) {
        Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) => {
            // Only to describe it.
            let only = Unlock { keyslot: Some(number as u32), progress: None, ..*with };
            Err(if open_key(header, store, &only).is_ok() { luks::opens_itself(number as u32) } else { e })
        }
        other => other.map(drop),
    }
}

fn set(store: &dyn Store, to: &HeaderAttributes<'_>) -> Result<Prepared> {
    match to {
        HeaderAttributes { label: Some(_), .. } | HeaderAttributes { subsystem: Some(_), .. } => {
            return Err(not_in_luks1("labels"));
        }
        HeaderAttributes { priority: Some(_), .. } => return Err(not_in_luks1("priorities")),
        HeaderAttributes { flags: Some(_), .. } => return Err(not_in_luks1("flags")),
        _ => {}
    }
    let mut change = Change::of(store)?;
    if let Some(text) = to.uuid {
        let new = change.header.with_uuid(&uuid::parse(text)?);
        change.header_becomes(new)?;
    }
    Ok(change.prepared(None, None, Vec::new()))
}

/// The header does not contain the size, so only the store changes.
fn resize(store: &dyn Store, data: Option<&dyn Store>, size: u64) -> Result<Resizing> {
    let header = Phdr::find(store)?;
    header.sound()?;
    let start = header.data_start();
    if data.is_none() && (start == 0 || store.len() <= start) {
        return Err(Error::misuse("it is a detached header: the data are in another file or device")
            .hint("A LUKS1 volume follows the size of its file or device automatically."));
    }
    if size == 0 || !size.is_multiple_of(super::header::SECTOR) {
        return Err(Error::misuse(format!(
            "{size} bytes is not a whole number of {}-byte sectors",
            super::header::SECTOR
        )));
    }
    let len = start.checked_add(size).ok_or_else(|| Error::misuse(format!("{size} bytes are too many")))?;
    let before = data.unwrap_or(store).len().saturating_sub(start) / super::header::SECTOR * super::header::SECTOR;
    let prepared = Change { store, seen: header.seen(), header, steps: Vec::new() }.prepared(None, None, Vec::new());
    Ok(Resizing { prepared, len, end: start + before, before, size, start })
}

fn checked(number: u32) -> Result<usize> {
    let number = number as usize;
    if number < SLOTS { Ok(number) } else { Err(Error::misuse(format!("LUKS1 has keyslots 0 to 7, not {number}"))) }
}

/// The first unused keyslot.
fn free(header: &Phdr) -> Option<usize> {
    header.slots.iter().position(|slot| !slot.active)
}

/// Refuses parameters that LUKS1 has only once for all keyslots, or not at all.
fn refuse_others(header: &Phdr, new: &NewCredential<'_>) -> Result<()> {
    check_new(&LUKS1, new)?;
    match new {
        NewCredential { hash: Some(name), .. } if !same_name(name, &header.hash_name) => {
            Err(not_in_luks1(&format!("keyslots with hashes of their own: this volume's is {}", header.hash_name)))
        }
        NewCredential { unbound_bits: Some(_), .. } => Err(not_in_luks1("keyslots for other keys")),
        _ => Ok(()),
    }
}
