//! From credentials to the volume key: tries the keyslots on all processors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use claviger_crypto::Secret;
use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::hash::Hash;
use claviger_crypto::pool::Pool;
use claviger_crypto::secret::wipe_stack;

use super::header::{DIGEST, Phdr, SLOTS, Slot, Trouble};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::AreaReport;
use crate::formats::luks::kdf::Kdf;
use crate::formats::luks::{self, passphrase};
use crate::formats::plan::{PlannedSlot, UnlockPlan};
use crate::store::Store;

/// The volume key, and how it was found.
pub(super) struct OpenedKey {
    /// `None` if the key itself was given.
    pub keyslot: Option<usize>,
    pub key: Secret,
    /// How many keyslots were tried.
    pub trials: u64,
    /// Warnings, in whole sentences.
    pub warnings: Vec<Warning>,
}

/// Finds the volume key: the credentials are the key itself, or open a keyslot. If several open, the cheapest one counts, and of
/// equally cheap ones the first.
///
/// # Errors
/// `WrongCredential`; `Malformed` if none opens and one could not be tried; `CredentialKind`, `Misuse`, `Unsupported`,
/// `Cancelled`, `Io`.
pub(super) fn open_key(header: &Phdr, store: &dyn Store, with: &Unlock<'_>) -> Result<OpenedKey> {
    let (hash, cipher) = (header.hash()?, header.cipher()?);
    if let [Credential::VolumeKey(key)] = with.credentials {
        return with_volume_key(header, hash, key, with);
    }
    let passphrase = passphrase(with.credentials)?;
    let (slots, left_out) = to_try(header, with.keyslot)?;
    let total = effort(header, with);
    with.ask(total)?;
    let trials = Trials {
        header,
        hash,
        cipher: &cipher,
        store,
        passphrase,
        with,
        slots: &slots,
        best: AtomicUsize::new(usize::MAX),
        found: Mutex::new(None),
        failed: Mutex::new(None),
        done: Mutex::new(0),
        total,
        pool: Pool::for_this_machine(Duration::ZERO),
    };
    trials.pool.run(slots.len(), &|rank| {
        trials.try_slot(rank);
        wipe_stack();
    });
    let found = trials.outcome()?;
    let warnings = left_out.iter().map(|t| format!("Could not be tried: {}.", t.what).into()).collect();
    match found {
        Some((rank, key)) => Ok(OpenedKey { keyslot: Some(slots[rank].0), key, trials: slots.len() as u64, warnings }),
        None => Err(none_opens(header, store, &slots, &left_out)),
    }
}

/// The estimated time to try all keyslots on one thread, in microseconds.
pub(super) fn effort(header: &Phdr, with: &Unlock<'_>) -> u64 {
    plan(header, with).microseconds()
}

/// Estimates the cost of trying the keyslots, without deriving anything.
pub(super) fn plan(header: &Phdr, with: &Unlock<'_>) -> UnlockPlan {
    let slots = header.hash().and_then(|hash| Ok((hash, to_try(header, with.keyslot)?.0)));
    let planned = |(hash, slots): (_, Vec<Numbered<'_>>)| {
        let of = |(number, slot): &Numbered<'_>| PlannedSlot {
            keyslot: *number as u32,
            memory: None,
            microseconds: slot_effort(header, hash, slot),
        };
        slots.iter().map(of).collect()
    };
    UnlockPlan::new(slots.map(planned).unwrap_or_default(), with.memory)
}

/// Whether `key` is the volume key.
///
/// # Errors
/// `Cancelled`.
pub(super) fn is_key(header: &Phdr, hash: &Hash, key: &[u8], go_on: &dyn Fn() -> bool) -> Result<bool> {
    let mut digest = Secret::zeroed(DIGEST);
    if !hash.pbkdf2(key, header.digest_salt(), header.digest_iterations, &mut digest, go_on) {
        return Err(ErrorKind::Cancelled.into());
    }
    Ok(digest.same_as(header.digest()))
}

fn with_volume_key(header: &Phdr, hash: &'static Hash, key: &Secret, with: &Unlock<'_>) -> Result<OpenedKey> {
    if key.len() != header.key_len {
        let what = format!("the volume key has {} bytes, not {}", header.key_len, key.len());
        return Err(ErrorKind::WrongCredential(what).into());
    }
    with.ask(digest_effort(header, hash))?;
    if !is_key(header, hash, key, &|| !with.cancelled())? {
        let what = "this is not the volume key: it does not match the digest in the header".to_owned();
        return Err(
            Error::new(ErrorKind::WrongCredential(what)).hint("A damaged digest looks the same as a wrong key.")
        );
    }
    Ok(OpenedKey { keyslot: None, key: Secret::copy_from(key), trials: 0, warnings: Vec::new() })
}

type Numbered<'a> = (usize, &'a Slot);

/// Returns the keyslots to try, in order of preference, and the damage of those that cannot be tried.
fn to_try(header: &Phdr, only: Option<u32>) -> Result<(Vec<Numbered<'_>>, Vec<&Trouble>)> {
    if let Some(number) = only {
        let slot = header.slots.get(number as usize);
        let slot = slot.ok_or_else(|| Error::misuse(format!("LUKS1 has keyslots 0 to {}, not {number}", SLOTS - 1)))?;
        if !slot.active {
            return Err(ErrorKind::WrongCredential(format!("keyslot {number} is not in use")).into());
        }
    }
    let wanted = |number: usize| only.is_none_or(|only| number == only as usize);
    let unreadable = |slot: &Slot| slot.trouble.as_ref().is_some_and(|t| !t.readable);
    let all = || header.active().filter(|(number, _)| wanted(*number));
    let left_out = all().filter(|(_, slot)| unreadable(slot)).filter_map(|(_, slot)| slot.trouble.as_ref()).collect();
    let mut slots: Vec<_> = all().filter(|(_, slot)| !unreadable(slot)).collect();
    slots.sort_by_key(|(number, slot)| (slot.iterations, *number));
    Ok((slots, left_out))
}

fn slot_effort(header: &Phdr, hash: &'static Hash, slot: &Slot) -> u64 {
    let derived = Kdf::Pbkdf2 { hash, iterations: slot.iterations }.effort(header.key_len);
    derived.saturating_add(digest_effort(header, hash)).max(1)
}

fn digest_effort(header: &Phdr, hash: &'static Hash) -> u64 {
    Kdf::Pbkdf2 { hash, iterations: header.digest_iterations }.effort(DIGEST)
}

/// The state shared by the threads.
struct Trials<'a> {
    header: &'a Phdr,
    hash: &'static Hash,
    cipher: &'a Specification,
    store: &'a dyn Store,
    passphrase: &'a [u8],
    with: &'a Unlock<'a>,
    slots: &'a [Numbered<'a>],
    /// The rank of the keyslot that opened: those after it no longer matter.
    best: AtomicUsize,
    found: Mutex<Option<(usize, Secret)>>,
    failed: Mutex<Option<Error>>,
    /// Microseconds of finished work. The lock is held while progress is reported, which keeps the reports in order.
    done: Mutex<u64>,
    total: u64,
    pool: Pool,
}

impl Trials<'_> {
    fn try_slot(&self, rank: usize) {
        let go_on = || rank < self.best.load(Ordering::Relaxed) && !self.with.cancelled();
        if !go_on() {
            return;
        }
        let (_, slot) = self.slots[rank];
        match self.key_in(slot, &go_on) {
            Ok(Some(key)) => self.opened(rank, key),
            Ok(None) => {}
            // Stopped, because another keyslot opened or the caller has cancelled.
            Err(Error { kind: ErrorKind::Cancelled, .. }) => return,
            Err(error) => {
                lock(&self.failed).get_or_insert(error);
            }
        }
        self.tell_progress(slot_effort(self.header, self.hash, slot));
    }

    /// Returns the volume key, if the passphrase opens this keyslot.
    fn key_in(&self, slot: &Slot, go_on: &(dyn Fn() -> bool + Sync)) -> Result<Option<Secret>> {
        let kdf = Kdf::Pbkdf2 { hash: self.hash, iterations: slot.iterations };
        let len = self.header.key_len;
        let derived = kdf.derive_on(&self.pool, self.passphrase, &slot.salt, len, self.with, go_on)?;
        let area = self.header.area(slot, self.hash, self.cipher);
        let key = area.read(self.store, &derived, self.with.acceleration)?;
        Ok(is_key(self.header, self.hash, &key, &|| go_on())?.then_some(key))
    }

    fn opened(&self, rank: usize, key: Secret) {
        self.best.fetch_min(rank, Ordering::Relaxed);
        let mut found = lock(&self.found);
        if found.as_ref().is_none_or(|(before, _)| rank < *before) {
            *found = Some((rank, key));
        }
    }

    fn tell_progress(&self, effort: u64) {
        let mut done = lock(&self.done);
        *done = done.saturating_add(effort).min(self.total);
        if let Some(progress) = self.with.progress {
            progress(*done, self.total);
        }
    }

    fn outcome(&self) -> Result<Option<(usize, Secret)>> {
        if self.with.cancelled() {
            return Err(ErrorKind::Cancelled.into());
        }
        if let Some(progress) = self.with.progress {
            progress(self.total, self.total);
        }
        let found = lock(&self.found).take();
        match lock(&self.failed).take() {
            Some(error) if found.is_none() => Err(error),
            _ => Ok(found),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error if nothing opened. A keyslot that could not be tried says nothing about the passphrase.
fn none_opens(header: &Phdr, store: &dyn Store, slots: &[Numbered<'_>], left_out: &[&Trouble]) -> Error {
    if let ([], [trouble, ..]) = (slots, left_out) {
        return trouble.error();
    }
    let overwritten = |(number, slot): &Numbered<'_>| {
        let damage = luks::damage_shown(looked_at(header, store, *number, slot))?;
        Some(luks::no_longer_opens(*number as u32, &damage))
    };
    let overwritten: Vec<_> = slots.iter().filter_map(overwritten).collect();
    let wrong = match overwritten[..] {
        [] => "wrong passphrase or keyfile: it",
        _ => "the passphrase or keyfile",
    };
    let numbers: Vec<_> = slots.iter().map(|(number, _)| number.to_string()).collect();
    let what = match &numbers[..] {
        [] => "no keyslot is in use; only the volume key opens it".to_owned(),
        [one] => format!("{wrong} does not open keyslot {one}, the only one tried"),
        all => format!("{wrong} opens none of the {} keyslots tried ({})", all.len(), all.join(", ")),
    };
    let sentence = |begin: &str, Trouble { field, at, what, .. }: &Trouble| {
        format!("{begin}: {what} (field {field}, at byte {at}).")
    };
    let damaged: Vec<_> = slots.iter().filter_map(|(_, slot)| slot.trouble.as_ref()).collect();
    let not_tried = left_out.iter().map(|trouble| sentence("Not tried because it is damaged", trouble));
    let not_tried = not_tried.chain(damaged.iter().map(|trouble| sentence("Tried even though it is damaged", trouble)));
    let may_be_right = luks::may_be_right(overwritten.len(), slots.len());
    let hints: Vec<_> = not_tried.chain(overwritten).chain(may_be_right).collect();
    let error = Error::new(ErrorKind::WrongCredential(what));
    match &hints[..] {
        [] => error.hint("A keyslot with a single damaged bit looks the same as a wrong passphrase."),
        hints if left_out.is_empty() && damaged.is_empty() => error.hint(hints.join(" ")).advise(Advice::RestoreHeader),
        hints => error.hint(hints.join(" ")).advise(Advice::RepairHeader),
    }
}

/// Warns of the keyslots with damaged areas.
pub(super) fn damage(header: &Phdr, store: &dyn Store) -> Vec<Warning> {
    let intact = header.active().filter(|(_, slot)| slot.trouble.is_none());
    let shown = |(number, slot): Numbered<'_>| {
        let damage = luks::damage_shown(looked_at(header, store, number, slot))?;
        Some(luks::warning(number as u32, &damage))
    };
    intact.filter_map(shown).collect()
}

/// Looks at the area of a keyslot: it should look random.
pub(super) fn looked_at(header: &Phdr, store: &dyn Store, number: usize, slot: &Slot) -> Result<AreaReport> {
    let area = slot.area(header.key_len);
    luks::look_at_area(store, number as u32, area.start, header.key_len * slot.stripes as usize)
}
