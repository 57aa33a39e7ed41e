//! From credentials to the volume key: a protector gives the volume master key (VMK), and that opens the full volume encryption key
//! (FVEK).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use claviger_crypto::Secret;
use claviger_crypto::pool::Pool;
use claviger_crypto::stretch::{ITERATIONS, Task, stretch_all};

use super::datum::{Key, key, kind, role};
use super::metadata::{Copy, Metadata, State};
use super::method::{METHODS, Method};
use super::protectors::{Candidate, Kind, Protector, hashed, kinds, startup_keys};
use super::{VMK, is_decrypted, sealed};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};

/// The estimated time for one key stretching on one thread, in microseconds.
const STRETCH_MICROSECONDS: u64 = 400_000;

/// The keys of an opened volume.
pub(super) struct OpenedKeys {
    /// `None` if the volume key itself was given.
    pub vmk: Option<Secret>,
    /// The volume key, as it is stored.
    pub fvek: Secret,
    /// The protector that opened: its number, and its name for people.
    pub protector: Option<(u32, String)>,
    /// How many stretched secrets were tried.
    pub trials: u64,
}

impl OpenedKeys {
    /// The keys of a volume that is not encrypted and needs none.
    pub fn decrypted(metadata: &Metadata) -> Self {
        let fvek = Secret::zeroed(Self::former_method(metadata).stored_key);
        Self { vmk: None, fvek, protector: None, trials: 0 }
    }

    /// The encryption method of the data; for a decrypted volume, the one it may have had.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn method(metadata: &Metadata) -> Result<&'static Method> {
        match is_decrypted(metadata) {
            true => Ok(Self::former_method(metadata)),
            false => Method::numbered(metadata.method),
        }
    }

    fn former_method(metadata: &Metadata) -> &'static Method {
        Method::numbered(metadata.method).unwrap_or(&METHODS[0])
    }
}

/// Finds the volume key: the credentials are a key itself, or any of them opens a protector. A clear key needs none.
///
/// # Errors
/// `WrongCredential`, `Malformed`, `Unsupported`, `Cancelled`.
pub(super) fn open(metadata: &Metadata, with: &Unlock<'_>) -> Result<OpenedKeys> {
    let (protectors, mut wrong) = wanted(metadata, with);
    if let (Some(number), true) = (with.keyslot, protectors.is_empty()) {
        return Err(Error::misuse(format!("there is no protector {number}")));
    }
    if let Some(Credential::VolumeKey(key)) = with.credentials.iter().find(|c| matches!(c, Credential::VolumeKey(_))) {
        return with_volume_key(metadata, key);
    }
    let mut trials = 0;
    let mut mistyped = None;
    let found = match if with.prove { None } else { open_for_all(&protectors)? } {
        Some(found) => Some(found),
        None => match by_startup_key(&protectors, with.credentials)? {
            Some(found) => Some(found),
            None => {
                let typed = by_typing(&protectors, with)?;
                (trials, mistyped) = (typed.trials, typed.mistyped);
                typed.found
            }
        },
    };
    let Some((protector, vmk)) = found else {
        // Nothing opens; the right protector may be an invalid one.
        return Err(wrong.pop().unwrap_or_else(|| nothing_opens(&protectors, with, trials, mistyped)));
    };
    // From here on every error is the volume's.
    with.has_opened();
    let fvek = volume_key(metadata, &vmk)?;
    Ok(OpenedKeys { vmk: Some(vmk), fvek, protector: Some((protector.number, protector.name())), trials })
}

/// Returns the protectors to try, and the errors of the invalid ones.
fn wanted(metadata: &Metadata, with: &Unlock<'_>) -> (Vec<Protector>, Vec<Error>) {
    let (mut all, wrong) = Protector::all(metadata);
    all.retain(|protector| with.keyslot.is_none_or(|only| only == protector.number));
    (all, wrong)
}

/// The estimated time to try the credentials on one thread, in microseconds.
pub(super) fn effort(metadata: &Metadata, with: &Unlock<'_>) -> u64 {
    let (protectors, _) = wanted(metadata, with);
    let (candidates, _) = candidates(with.credentials);
    (tasks(&protectors, &candidates).len() as u64).max(1) * STRETCH_MICROSECONDS
}

/// Whether there is a clear key.
pub(super) fn is_suspended(metadata: &Metadata) -> bool {
    Protector::all(metadata).0.iter().any(|protector| protector.clear_key().is_some())
}

/// Whether anybody can open it without a secret.
pub(super) fn is_open(metadata: &Metadata) -> bool {
    is_decrypted(metadata) || is_suspended(metadata)
}

/// A protector, and the volume master key that it holds.
type OpenedProtector<'a> = (&'a Protector, Secret);

/// Opens with a clear key.
fn open_for_all(protectors: &[Protector]) -> Result<Option<OpenedProtector<'_>>> {
    for protector in protectors {
        if let Some(key) = protector.clear_key()
            && let Some(vmk) = protector.open(&key)?
        {
            return Ok(Some((protector, vmk)));
        }
    }
    Ok(None)
}

/// Opens with a startup key: the protector has the same GUID.
fn by_startup_key<'a>(protectors: &'a [Protector], credentials: &[Credential]) -> Result<Option<OpenedProtector<'a>>> {
    for key in startup_keys(credentials)? {
        for protector in protectors.iter().filter(|p| p.kind == Kind::STARTUP_KEY && p.guid == key.protector) {
            if let Some(vmk) = protector.open(&key.key)? {
                return Ok(Some((protector, vmk)));
            }
        }
    }
    Ok(None)
}

/// The result of trying typed secrets.
struct Typing<'a> {
    found: Option<OpenedProtector<'a>>,
    trials: u64,
    /// The mistake in a recovery password.
    mistyped: Option<String>,
}

/// Opens with a password or a recovery password, which is recognised by its form. All are stretched in parallel.
fn by_typing<'a>(protectors: &'a [Protector], with: &Unlock<'_>) -> Result<Typing<'a>> {
    let (candidates, mistyped) = candidates(with.credentials);
    let tasks = tasks(protectors, &candidates);
    if tasks.is_empty() {
        return Ok(Typing { found: None, trials: 0, mistyped });
    }
    with.ask(tasks.len() as u64 * STRETCH_MICROSECONDS)?;
    let stretches: Vec<_> =
        tasks.iter().map(|(_, candidate, salt)| Task { secret: &candidate.hash()[..], salt }).collect();
    let (found, failed) = (Mutex::new(None), Mutex::new(None));
    let trials = AtomicUsize::new(0);
    let total = tasks.len() as u64 * ITERATIONS;
    let go_on = |done: u64| {
        if let Some(progress) = with.progress {
            let microseconds = |iterations| iterations * STRETCH_MICROSECONDS / ITERATIONS;
            progress(microseconds(done.min(total)), microseconds(total));
        }
        !with.cancelled() && found.lock().is_ok_and(|found: std::sync::MutexGuard<'_, Option<_>>| found.is_none())
    };
    let done = |rank: usize, key: Secret| {
        trials.fetch_add(1, Ordering::Relaxed);
        let protector = tasks[rank].0;
        match protector.open(&key) {
            Ok(Some(vmk)) => drop(found.lock().map(|mut found| *found = Some((protector, vmk)))),
            Ok(None) => {}
            Err(error) => drop(failed.lock().map(|mut failed| *failed = Some(error))),
        }
    };
    stretch_all(&stretches, &Pool::for_this_machine(Duration::ZERO), &go_on, &done);
    if with.cancelled() {
        return Err(ErrorKind::Cancelled.into());
    }
    let found = found.into_inner().unwrap_or_default();
    if let (None, Some(error)) = (&found, failed.into_inner().unwrap_or_default()) {
        return Err(error);
    }
    Ok(Typing { found, trials: trials.into_inner() as u64, mistyped })
}

/// Returns everything that the passphrases may be, and the mistake in one that looks like a recovery password.
fn candidates(credentials: &[Credential]) -> (Vec<Candidate>, Option<String>) {
    let (mut all, mut mistyped) = (Vec::new(), None);
    for credential in credentials {
        if let Credential::Passphrase(typed) = credential {
            let (candidates, mistake) = Candidate::of(typed);
            all.extend(candidates);
            mistyped = mistyped.or(mistake);
        }
    }
    (all, mistyped)
}

type Attempt<'a, 'b> = (&'a Protector, &'b Candidate, [u8; 16]);

/// Returns what to stretch for which protector.
fn tasks<'a, 'b>(protectors: &'a [Protector], candidates: &'b [Candidate]) -> Vec<Attempt<'a, 'b>> {
    let of = |candidate: &'b Candidate| {
        protectors
            .iter()
            .filter(|protector| protector.kind == candidate.kind())
            .filter_map(move |protector| Some((protector, candidate, protector.salt()?)))
    };
    candidates.iter().flat_map(of).collect()
}

/// Opens with a volume master key, which opens the box of the volume key, or with the volume key itself, which the metadata cannot
/// verify.
fn with_volume_key(metadata: &Metadata, given: &Secret) -> Result<OpenedKeys> {
    let key = &volume_key_in(given, metadata.method)?;
    if key.len() == VMK
        && let Ok(fvek) = volume_key(metadata, key)
    {
        let vmk = Some(Secret::copy_from(key));
        return Ok(OpenedKeys { vmk, fvek, protector: None, trials: 0 });
    }
    let method = Method::numbered(metadata.method)?;
    if key.len() != method.stored_key {
        let what = format!(
            "this key has {2} bytes: the volume key (FVEK) of {0} has {1}, a volume master key {VMK}",
            method.name,
            method.stored_key,
            key.len()
        );
        return Err(ErrorKind::WrongCredential(what).into());
    }
    Ok(OpenedKeys { vmk: None, fvek: Secret::copy_from(key), protector: None, trials: 0 })
}

/// Returns the volume key in a file: binary, in hexadecimal digits, or in dislocker's format, which puts the method's number in
/// front and pads the key to 64 bytes (dislocker 0.7.3, man page of dislocker-fuse, "FVEK FILE").
fn volume_key_in(given: &Secret, method: u16) -> Result<Secret> {
    const OF_DISLOCKER: usize = 2 + 64;
    let key = from_hex(given).unwrap_or_else(|| Secret::copy_from(given));
    if key.len() != OF_DISLOCKER {
        return Ok(key);
    }
    let of = u16::from_le_bytes([key[0], key[1]]);
    if of != method {
        let named = |number| Method::numbered(number).map_or_else(|_| format!("{number:#06x}"), |m| m.name.to_owned());
        let what = format!("this volume key is for {}, and the volume has {}", named(of), named(method));
        return Err(ErrorKind::WrongCredential(what).into());
    }
    Ok(Secret::copy_from(&key[2..2 + Method::numbered(method)?.stored_key]))
}

/// Decodes hexadecimal digits, with optional white space or colons between them. `None` for other text.
fn from_hex(text: &[u8]) -> Option<Secret> {
    let between = |byte: &&u8| !byte.is_ascii_whitespace() && **byte != b':';
    let digits = || text.strip_prefix(b"0x").unwrap_or(text).iter().filter(between);
    let count = digits().count();
    if count == 0 || !count.is_multiple_of(2) || !digits().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = Secret::zeroed(count / 2);
    for (place, digit) in digits().enumerate() {
        bytes[place / 2] = bytes[place / 2] << 4 | char::from(*digit).to_digit(16)? as u8;
    }
    Some(bytes)
}

/// Opens the volume key with the volume master key.
///
/// # Errors
/// `Malformed` if it is missing, or does not open.
pub(super) fn volume_key(metadata: &Metadata, vmk: &Secret) -> Result<Secret> {
    let malformed = |what: &str| ErrorKind::Malformed { field: "volume key (FVEK)", offset: 0, what: what.to_owned() };
    let sealed = metadata.datum(role::FVEK, kind::SEALED).ok_or_else(|| malformed("there is none"))?;
    let opened = sealed::open_key(sealed, vmk)?.ok_or_else(|| malformed("it does not open"))?;
    // The method beside it is not always sealed.
    match opened.kind == metadata.method {
        true => Ok(opened.key),
        false => Err(malformed(&format!("it is for method {:#06x}, not {:#06x}", opened.kind, metadata.method)).into()),
    }
}

/// Whether a copy was sealed with the volume master key. Only then may its metadata direct writes.
pub(super) fn sealed_by(copy: &Copy, vmk: &Secret) -> bool {
    copy.validation.hash.as_ref().is_some_and(|hash| hash.kind == kind::SEALED) && proven(copy, vmk)
}

/// Whether the sealed hash matches the copy's block, which proves that it was written with the volume master key.
pub(super) fn proven(copy: &Copy, vmk: &Secret) -> bool {
    let Some(hash) = &copy.validation.hash else { return false };
    let sealed_hash = match hash.kind {
        kind::SEALED => sealed::open_key(hash, vmk).ok().flatten(),
        // The key of a volume that is not encrypted at all.
        kind::KEY if copy.metadata.state == State::DECRYPTED => Key::of(hash).ok(),
        _ => None,
    };
    sealed_hash.is_some_and(|sealed_hash| {
        sealed_hash.kind == key::SEALED_HASH && sealed_hash.key.same_as(&hashed(&copy.block))
    })
}

/// The error if nothing opens.
fn nothing_opens(protectors: &[Protector], with: &Unlock<'_>, trials: u64, mistyped: Option<String>) -> Error {
    let wrong = |what: String| Error::new(ErrorKind::WrongCredential(what));
    let there = kinds(protectors);
    let needs: Vec<_> = protectors.iter().filter_map(|p| Some((p.name(), p.kind.needs()?))).collect();
    let needs = needs.iter().map(|(name, needs)| format!("{name} needs {needs}.")).collect::<Vec<_>>().join(" ");
    if let Some(mistyped) = mistyped {
        let also = if trials > 0 { ", nor is it the password" } else { "" };
        return wrong(format!("this looks like a recovery password, but {mistyped}{also}"));
    }
    if with.credentials.is_empty() {
        return Error::misuse(format!(
            "give a password, recovery password or startup key: the volume opens with {there}"
        ))
        .hint(needs);
    }
    if trials > 0 {
        let tried = if trials == 1 { "the protector".to_owned() } else { format!("the {trials} protectors") };
        return wrong(format!("wrong password or recovery password: it does not open {tried}"))
            .hint("A damaged protector looks the same as a wrong password.");
    }
    let given = if with.credentials.iter().any(|c| matches!(c, Credential::Keyfile(_))) {
        "this startup key is for another volume or another protector"
    } else {
        "no protector of this volume takes such a credential"
    };
    let error = wrong(format!("{given}: it opens with {there}"));
    if needs.is_empty() { error } else { error.hint(needs) }
}
