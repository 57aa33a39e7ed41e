//! From credentials to the volume key: tries each form of the passphrase with each user, on all processors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use claviger_crypto::pool::Pool;
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Secret, hash, key_wrap};

use super::NAME;
use super::context::{Context, KEY, UserBox};
use super::metadata::Metadata;
use crate::copied_text::{BETWEEN, OTHER, simplified};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks::kdf::Kdf;

/// The number of characters in a recovery key, and in each of its groups: `35AJ-AC98-TI1H-N4M3-HDUQ-UQFG`.
const RECOVERY_KEY: usize = 24;
const GROUP: usize = 4;

/// The volume key, and how it was found.
pub(super) struct OpenedKey {
    /// The data key, then the tweak key.
    pub key: Secret,
    /// The user's index in the context. `None` if the key itself was given.
    pub user: Option<usize>,
    /// Whether anything proves that it is the right key.
    pub checked: bool,
    /// How many derivations were begun.
    pub trials: u64,
}

/// Finds the volume key.
///
/// # Errors
/// `WrongCredential`; `Malformed` and `Unsupported` if none opens and one could not be tried; `CredentialKind`, `Misuse`,
/// `Cancelled`.
pub(super) fn open_key(metadata: &Metadata, with: &Unlock<'_>) -> Result<OpenedKey> {
    let family = &metadata.volume.family;
    match with.credentials {
        [Credential::VolumeKey(key)] => given_key(family, key),
        [Credential::Passphrase(passphrase)] => {
            let context = metadata.context()?.ok_or_else(no_users)?;
            let (user, key, trials) = by_passphrase(context, passphrase, with)?;
            Ok(OpenedKey { key: whole_key(family, &key), user: Some(user), checked: true, trials })
        }
        [] => Err(Error::misuse("a passphrase or a recovery key is needed")),
        [other] => Err(ErrorKind::CredentialKind { format: NAME, kind: other.kind() }.into()),
        _ => Err(Error::misuse("FileVault2 takes one passphrase and nothing else")),
    }
}

/// The estimated time to try a passphrase on one thread, in microseconds.
pub(super) fn effort(context: &Context, with: &Unlock<'_>) -> u64 {
    let [Credential::Passphrase(passphrase)] = with.credentials else { return 1 };
    let forms = 1 + u64::from(recovery_key(passphrase).is_some());
    usable(context).fold(0, |sum: u64, (_, user)| sum.saturating_add(cost(user))).saturating_mul(forms).max(1)
}

/// Uses the given key: the whole key, or the half from which the other one is derived.
fn given_key(family: &[u8; 16], key: &Secret) -> Result<OpenedKey> {
    let wrong = |what: String| Error::from(ErrorKind::WrongCredential(what));
    if ![KEY, 2 * KEY].contains(&key.len()) {
        return Err(wrong(format!("the volume key has {} or {KEY} bytes, not {}", 2 * KEY, key.len())));
    }
    let whole = whole_key(family, &key[..KEY]);
    if key.len() == 2 * KEY && !whole.same_as(key) {
        let what = "this is not the volume key: its halves do not match".to_owned();
        return Err(wrong(what));
    }
    Ok(OpenedKey { key: whole, user: None, checked: key.len() == 2 * KEY, trials: 0 })
}

/// Returns the data key followed by the tweak key, which is derived from it (libfvde, "FileVault Drive Encryption (FVDE)", section
/// "Volume tweak key").
fn whole_key(family: &[u8; 16], key: &[u8]) -> Secret {
    let mut digest = Secret::zeroed(hash::SHA256.size);
    hash::SHA256.digest(&[key, family], &mut digest);
    let mut whole = Secret::zeroed(2 * KEY);
    whole[..KEY].copy_from_slice(key);
    whole[KEY..].copy_from_slice(&digest[..KEY]);
    whole
}

fn no_users() -> Error {
    Error::unsupported("a Core Storage volume without passphrases in its metadata").hint(
        "If it is a system volume, its passphrases are in EncryptedRoot.plist.wipekey on the Recovery HD partition: \
         give the volume key instead. Or the volume is not encrypted at all.",
    )
}

/// Returns the users that can be tried, with their indices.
fn usable(context: &Context) -> impl Iterator<Item = (usize, &UserBox)> {
    context.users.iter().enumerate().filter_map(|(place, user)| Some((place, user.wrapped.as_ref().ok()?)))
}

fn kdf(user: &UserBox) -> Kdf {
    Kdf::Pbkdf2 { hash: &hash::SHA256, iterations: user.iterations }
}

fn cost(user: &UserBox) -> u64 {
    kdf(user).effort(KEY).max(1)
}

/// Returns the user whose passphrase it is, the volume key without the tweak key, and how many derivations it took.
fn by_passphrase(context: &Context, passphrase: &Secret, with: &Unlock<'_>) -> Result<(usize, Secret, u64)> {
    if context.keys.is_empty() {
        return Err(Error::unsupported("an encryption context without an AES-wrapped volume key"));
    }
    let total = effort(context, with);
    with.ask(total)?;
    let recovery = recovery_key(passphrase);
    let forms = [Some(passphrase), recovery.as_ref()];
    let users = |form| usable(context).map(move |(place, user)| (form, place, user));
    let mut all: Vec<_> = forms.into_iter().flatten().flat_map(users).collect();
    // Cheap derivations do not wait for expensive ones.
    all.sort_by_key(|(_, _, user)| user.iterations);
    let trials = Trials {
        context,
        with,
        all,
        best: AtomicUsize::new(usize::MAX),
        found: Mutex::new(None),
        done: Mutex::new(0),
        total,
        pool: Pool::for_this_machine(Duration::ZERO),
    };
    trials.pool.run(trials.all.len(), &|rank| {
        trials.try_user(rank);
        wipe_stack();
    });
    if with.cancelled() {
        return Err(ErrorKind::Cancelled.into());
    }
    if let Some(progress) = with.progress {
        progress(total, total);
    }
    let found = lock(&trials.found).take();
    let count = trials.all.len() as u64;
    found.map(|(rank, key)| (trials.all[rank].1, key, count)).ok_or_else(|| none_opens(context))
}

/// The state shared by the threads.
struct Trials<'a> {
    context: &'a Context,
    with: &'a Unlock<'a>,
    /// Forms of the passphrase, each with a user and the user's index.
    all: Vec<(&'a Secret, usize, &'a UserBox)>,
    /// The first one that opened: those after it no longer matter.
    best: AtomicUsize,
    found: Mutex<Option<(usize, Secret)>>,
    /// Microseconds of finished work. The lock is held while progress is reported, which keeps the reports in order.
    done: Mutex<u64>,
    total: u64,
    pool: Pool,
}

impl Trials<'_> {
    fn try_user(&self, rank: usize) {
        let go_on = || rank < self.best.load(Ordering::Relaxed) && !self.with.cancelled();
        let (passphrase, _, user) = self.all[rank];
        if !go_on() {
            return;
        }
        // Only cancelled derivations fail.
        let Ok(derived) = kdf(user).derive_on(&self.pool, passphrase, &user.salt, KEY, self.with, &go_on) else {
            return;
        };
        if let Some(key) = self.volume_key(&derived, user) {
            self.best.fetch_min(rank, Ordering::Relaxed);
            let mut found = lock(&self.found);
            if found.as_ref().is_none_or(|(before, _)| rank < *before) {
                *found = Some((rank, key));
            }
        }
        let mut done = lock(&self.done);
        *done = done.saturating_add(cost(user)).min(self.total);
        if let Some(progress) = self.with.progress {
            progress(*done, self.total);
        }
    }

    /// Returns the volume key, if the derived key is the user's. Of several keys it is the last one that opens: earlier ones are
    /// old keys.
    fn volume_key(&self, derived: &[u8], user: &UserBox) -> Option<Secret> {
        let acceleration = self.with.acceleration;
        let kek = key_wrap::unwrap(derived, &user.key, acceleration)?;
        self.context.keys.iter().rev().find_map(|key| key_wrap::unwrap(&kek, key, acceleration))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error if nothing opened.
fn none_opens(context: &Context) -> Error {
    let untried = context.users.iter().filter_map(|user| user.wrapped.as_ref().err()).next();
    if let Some(trouble) = untried {
        let error = trouble.clone().error();
        return match usable(context).count() {
            0 => error,
            _ => error.hint("The passphrase belongs to none of the other users."),
        };
    }
    let what = match context.users.len() {
        1 => "wrong passphrase or recovery key".to_owned(),
        users => format!("wrong passphrase or recovery key: it belongs to none of the {users} users"),
    };
    ErrorKind::WrongCredential(what).into()
}

/// Returns a recovery key in its canonical form, capitals in groups with hyphens between them, if the passphrase looks like one
/// that was typed differently (libfvde, "FileVault Drive Encryption (FVDE)", section "Recovery key").
fn recovery_key(typed: &Secret) -> Option<Secret> {
    let text = simplified(typed);
    let len = text.iter().filter(|byte| **byte != BETWEEN).count();
    if len != RECOVERY_KEY || text.contains(&OTHER) {
        return None;
    }
    let mut key = Secret::zeroed(RECOVERY_KEY + RECOVERY_KEY / GROUP - 1);
    key.fill(b'-');
    for (place, byte) in text.iter().filter(|byte| **byte != BETWEEN).enumerate() {
        key[place + place / GROUP] = byte.to_ascii_uppercase();
    }
    (!key.same_as(typed)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_key_may_be_typed_in_any_form() {
        const KEY: &[u8] = b"35AJ-AC98-TI1H-N4M3-HDUQ-UQFG";
        let form = |typed: &[u8]| recovery_key(&Secret::copy_from(typed));
        for typed in [
            &b"35AJAC98TI1HN4M3HDUQUQFG"[..],
            b"35aj-ac98-ti1h-n4m3-hduq-uqfg",
            b"35aj ac98 ti1hn4m3 HDUQ--uqfg ",
            b"\xef\xbb\xbf35AJ\xe2\x80\x93AC98\xc2\xa0TI1H\r\nN4M3\tHDUQ UQFG\r\n",
        ] {
            assert!(form(typed).is_some_and(|form| form.same_as(KEY)), "{typed:?}");
        }
        for other in
            [KEY, b"", b"35AJAC98TI1HN4M3HDUQUQF", b"35AJAC98TI1HN4M3HDUQUQFGG", b"35AJ_AC98-TI1H-N4M3-HDUQ-UQF"]
        {
            assert!(form(other).is_none(), "{other:?}");
        }
    }
}
