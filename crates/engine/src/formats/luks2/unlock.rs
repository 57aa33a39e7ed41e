//! Gets from a passphrase to a volume key: the keyslots that may hold it, the cost of each, and the digest that verifies the key
//! (LUKS2 On-Disk Format Specification 1.1.1, sections 3.2 and 3.4).

use claviger_crypto::Secret;
use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::hash::{self, Hash};
use claviger_crypto::secret::wipe_stack;

use super::binary;
use super::derivation::{self, known_hash};
use super::metadata::{Digest, Keyslot, Metadata};
use super::read::ReadHeader;
use super::recovery::{self, Typed};
use super::validate::{digests_of, printable, unknown};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::AreaReport;
use crate::formats::luks::kdf::Kdf;
use crate::formats::luks::{self, Area, cipher_error, passphrase};
use crate::formats::plan::{PlannedSlot, UnlockPlan};
use crate::store::Store;

/// How many stripes a key is split into, whatever the header says: cryptsetup's `LUKS_STRIPES`, the only number it uses.
const STRIPES: u32 = 4000;

/// The size of a digest from LUKS1, in bytes (`LUKS_DIGESTSIZE`). Converted volumes keep it.
const SHORT_DIGEST: usize = 20;

/// The largest size of a digest, in bytes: that of the largest hash.
const LONG_DIGEST: usize = 64;

/// A volume key, and where it was found.
pub struct OpenedKey {
    /// The keyslot; `None` if the volume key itself was given.
    pub keyslot: Option<u32>,
    /// The number of the key's digest.
    pub digest: u32,
    /// The key.
    pub key: Secret,
    /// The canonical form of the recovery key that opened a keyslot marked as one's.
    pub recovery_key: Option<Secret>,
    /// How many keyslots were tried, this one included.
    pub trials: u64,
    /// The keyslots that could not be tried, with the reasons.
    pub left_out: Vec<(u32, Error)>,
}

/// Returns the keyslots of the key with this digest in the order of trials: preferred ones, then the others, each by number.
/// Keyslots with priority 0 are tried only if `only` names them (specification, section 3.2, `priority`).
pub fn keyslots_of(metadata: &Metadata, digest: u32, only: Option<u32>) -> Vec<u32> {
    let holds = |n: &u32| digests_of(*n, metadata, |digest| &digest.keyslots).contains(&digest);
    let wanted = |n: u32, slot: &Keyslot| match only {
        Some(only) => n == only,
        None => slot.priority != Some(0),
    };
    let slots = metadata.keyslots.iter().filter(|(n, slot)| slot.kind == "luks2" && holds(n) && wanted(**n, slot));
    let mut slots: Vec<_> = slots.map(|(n, slot)| (3 - slot.priority.unwrap_or(1), *n)).collect();
    slots.sort_unstable();
    slots.into_iter().map(|(_, n)| n).collect()
}

/// Estimates the cost of trying `keyslots`, without deriving anything.
pub fn plan(header: &ReadHeader, keyslots: &[u32], with: &Unlock<'_>) -> UnlockPlan {
    let slot = |number: &u32| {
        let keyslot = header.metadata.keyslots.get(number)?;
        let kdf = derivation::of(keyslot.kdf.as_ref()?).ok()?;
        let memory = Some(kdf.memory()).filter(|memory| *memory > 0);
        let derived = kdf.effort(keyslot.area.key_size.unwrap_or(0) as usize);
        let verified = digests_of(*number, &header.metadata, |d| &d.keyslots)
            .first()
            .map_or(0, |n| effort(&header.metadata.digests[n]));
        let microseconds = derived.saturating_add(verified);
        Some(PlannedSlot { keyslot: *number, memory, microseconds })
    };
    UnlockPlan::new(keyslots.iter().filter_map(slot).collect(), with.memory)
}

/// Finds the volume key with the digest `digest`. Tries its keyslots one after the other, so that two derivations never use memory
/// at once.
///
/// # Errors
/// `WrongCredential`; `TooLittleMemory` if there was not enough memory to try a keyslot and no other one opened; `Malformed` and
/// `Unsupported` if none could be tried; `Misuse` and `CredentialKind` for credentials that do not fit; `Cancelled`; `Io`.
pub fn open_key(header: &ReadHeader, store: &dyn Store, with: &Unlock<'_>, digest: u32) -> Result<OpenedKey> {
    if let [Credential::VolumeKey(key)] = with.credentials {
        return with_volume_key(header, key, digest, with);
    }
    if let Some(number) = with.keyslot {
        must_hold(&header.metadata, number, digest)?;
    }
    let slots = keyslots_of(&header.metadata, digest, with.keyslot);
    try_keyslots(header, store, with, &slots)
}

/// Finds the key in the first of `keyslots` that opens, whatever the key is for.
///
/// # Errors
/// Those of [`open_key`].
pub fn try_keyslots(header: &ReadHeader, store: &dyn Store, with: &Unlock<'_>, keyslots: &[u32]) -> Result<OpenedKey> {
    let passphrase = passphrase(with.credentials)?;
    let plan = plan(header, keyslots, with);
    let total = plan.microseconds();
    with.ask(total)?;
    let mut before = 0;
    let mut left_out = Vec::new();
    let typed = recovery::read(passphrase);
    for (place, &number) in keyslots.iter().enumerate() {
        let effort = plan.of(number).map_or(0, |slot| slot.microseconds);
        let show = |done: u64, all: u64| {
            // The progress of one derivation, scaled to all of them. The final call is made here.
            let part = (u128::from(effort) * u128::from(done) / u128::from(all.max(1))) as u64;
            if let Some(progress) = with.progress {
                progress(before + part.min(effort), total);
            }
        };
        let with_progress = Unlock { progress: Some(&show), ..*with };
        let try_with = |passphrase: &[u8]| open_keyslot(header, store, &with_progress, number, passphrase);
        let mut recovery_key = None;
        let opened = match &typed {
            Typed::Key(key) if recovery::is_marked(&header.metadata, number) => match try_with(key) {
                // Another program may have put a password there, which only looks like a recovery key.
                Ok(None) if !key.same_as(passphrase) => try_with(passphrase),
                opened => {
                    recovery_key = Some(Secret::copy_from(key));
                    opened
                }
            },
            _ => try_with(passphrase),
        };
        before += effort;
        match opened {
            Ok(Some((digest, key))) => {
                finish(with, total);
                let trials = place as u64 + 1;
                return Ok(OpenedKey { keyslot: Some(number), digest, key, recovery_key, trials, left_out });
            }
            Ok(None) => {}
            Err(e) if says_nothing_of_others(&e.kind) => left_out.push((number, e)),
            Err(e) => return Err(e),
        }
    }
    finish(with, total);
    let marked = keyslots.iter().any(|number| recovery::is_marked(&header.metadata, *number));
    let wrong = if let Typed::Wrong(what) = typed { Some(format!("this {what}")).filter(|_| marked) } else { None };
    Err(none_opened(header, store, keyslots, left_out, wrong))
}

/// The estimated time to compare a key with the digest, in microseconds: a header may ask for any number of iterations.
pub(super) fn effort(digest: &Digest) -> u64 {
    let hash = digest.hash.as_deref().and_then(hash::by_name);
    let kdf = hash.zip(digest.iterations).map(|(hash, iterations)| Kdf::Pbkdf2 { hash, iterations });
    kdf.map_or(0, |kdf| kdf.effort(digest.digest.0.len()))
}

/// Whether the digest belongs to `key`. Compares in constant time. Calls `go_on` now and then, and stops if it returns false.
///
/// # Errors
/// `Malformed` and `Unsupported`, at byte `at`, for an impossible digest; `Cancelled`.
pub fn verify(digest: &Digest, key: &[u8], at: u64, go_on: &dyn Fn() -> bool) -> Result<bool> {
    if digest.kind != "pbkdf2" {
        return Err(unknown("digests of type", &digest.kind));
    }
    let hash = known_hash(digest.hash.as_deref().unwrap_or_default())?;
    let (len, iterations) = (digest.digest.0.len(), digest.iterations.unwrap_or(0));
    let fits = len == SHORT_DIGEST || len == hash.size && (SHORT_DIGEST..=LONG_DIGEST).contains(&len);
    if !fits || iterations == 0 {
        let what = format!("a digest cannot have {len} bytes of {} after {iterations} iterations", hash.name);
        return Err(ErrorKind::Malformed { field: "digests", offset: at, what }.into());
    }
    let mut derived = Secret::zeroed(len);
    if !hash.pbkdf2(key, &digest.salt.0, iterations, &mut derived, go_on) {
        return Err(ErrorKind::Cancelled.into());
    }
    Ok(derived.same_as(&digest.digest.0))
}

/// The offset of the JSON area of the copy in use, in bytes. Errors in the metadata refer to it.
pub fn json_at(header: &ReadHeader) -> u64 {
    header.which.offset(header.binary.hdr_size) + binary::LEN as u64
}

/// A key that one keyslot may hold, and everything needed to try it.
struct Slot<'a> {
    kdf: Kdf,
    salt: &'a [u8],
    cipher: Specification,
    cipher_key: usize,
    hash: &'static Hash,
    keyslot: &'a Keyslot,
    digest: u32,
}

/// Returns the key in a keyslot, and its digest, if the passphrase opens it.
fn open_keyslot(
    header: &ReadHeader,
    store: &dyn Store,
    with: &Unlock<'_>,
    number: u32,
    passphrase: &[u8],
) -> Result<Option<(u32, Secret)>> {
    let at = json_at(header);
    let slot = Slot::of(&header.metadata, number, at)?;
    let derived = slot.kdf.derive(passphrase, slot.salt, slot.cipher_key, with)?;
    let key = slot.area().read(store, &derived, with.acceleration);
    let key = key.and_then(|key| {
        let is_it = verify(&header.metadata.digests[&slot.digest], &key, at, &|| !with.cancelled())?;
        Ok(is_it.then_some((slot.digest, key)))
    });
    wipe_stack();
    key
}

impl<'a> Slot<'a> {
    /// Reads the keyslot's metadata, if they are valid.
    fn of(metadata: &'a Metadata, number: u32, at: u64) -> Result<Self> {
        let wrong = |field, what: String| Error::from(ErrorKind::Malformed { field, offset: at, what });
        let lacks = || wrong("keyslots", format!("keyslot {number} does not open with a passphrase"));
        let keyslot =
            metadata.keyslots.get(&number).ok_or_else(|| Error::misuse(format!("there is no keyslot {number}")))?;
        if keyslot.kind != "luks2" {
            return Err(unknown("keyslots of type", &keyslot.kind));
        }
        let (kdf, af) = keyslot.kdf.as_ref().zip(keyslot.af.as_ref()).ok_or_else(lacks)?;
        let digest = *digests_of(number, metadata, |d| &d.keyslots).first().ok_or_else(lacks)?;
        if af.stripes != Some(STRIPES) {
            let what = format!("keyslot {number} has {} stripes, not {STRIPES}", af.stripes.unwrap_or(0));
            return Err(wrong("af", what));
        }
        let area = &keyslot.area;
        let (Some(encryption), Some(cipher_key)) = (&area.encryption, area.key_size) else { return Err(lacks()) };
        let needed = (u64::from(keyslot.key_size) * u64::from(STRIPES)).next_multiple_of(512);
        if keyslot.key_size == 0 || needed > area.size.0 {
            let what = format!(
                "that of keyslot {number} has {} bytes, but a {}-byte key needs {needed}",
                area.size.0, keyslot.key_size
            );
            return Err(wrong("area", what));
        }
        let cipher = Specification::parse(encryption).map_err(|e| cipher_error(e, at))?;
        if !cipher.key_sizes().contains(&(cipher_key as usize)) {
            let what = format!("{} takes no {cipher_key}-byte key in keyslot {number}", printable(encryption));
            return Err(wrong("area", what));
        }
        let salt = &kdf.salt.0;
        let kdf = derivation::of(kdf).map_err(|e| match e.kind {
            ErrorKind::Malformed { field, what, .. } => wrong(field, format!("keyslot {number}: {what}")),
            _ => e,
        })?;
        let hash = known_hash(af.hash.as_deref().unwrap_or_default())?;
        Ok(Self { kdf, salt, cipher, cipher_key: cipher_key as usize, hash, keyslot, digest })
    }

    fn area(&self) -> Area<'_> {
        Area {
            at: self.keyslot.area.offset.0,
            key_len: self.keyslot.key_size as usize,
            stripes: STRIPES as usize,
            hash: self.hash,
            cipher: &self.cipher,
        }
    }
}

/// Warns of the keyslots with damaged areas.
pub(super) fn damage(header: &ReadHeader, store: &dyn Store) -> Vec<Warning> {
    let warning = |number: &u32| Some(luks::warning(*number, &damage_of(header, store, *number)?));
    header.metadata.keyslots.keys().filter_map(warning).collect()
}

/// The damage in the area of a keyslot, in words. Keyslots of a reencryption have other contents and are not judged.
pub(super) fn damage_of(header: &ReadHeader, store: &dyn Store, number: u32) -> Option<String> {
    luks::damage_shown(look_at_area(header, store, number))
}

/// Looks at the area of a keyslot: it should look random.
///
/// # Errors
/// `Misuse`, `Malformed` and `Unsupported` for keyslots that cannot open; `Io`.
pub(super) fn look_at_area(header: &ReadHeader, store: &dyn Store, number: u32) -> Result<AreaReport> {
    let slot = Slot::of(&header.metadata, number, json_at(header))?;
    let area = slot.area();
    luks::look_at_area(store, number, area.at, area.key_len * area.stripes)
}

fn with_volume_key(header: &ReadHeader, key: &Secret, digest: u32, with: &Unlock<'_>) -> Result<OpenedKey> {
    with.ask(effort(&header.metadata.digests[&digest]))?;
    if !verify(&header.metadata.digests[&digest], key, json_at(header), &|| !with.cancelled())? {
        return Err(ErrorKind::WrongCredential("this is not the volume key of this volume".into()).into());
    }
    let key = Secret::copy_from(key);
    Ok(OpenedKey { keyslot: None, digest, key, recovery_key: None, trials: 1, left_out: Vec::new() })
}

/// Checks that the named keyslot can open the volume at all.
fn must_hold(metadata: &Metadata, number: u32, digest: u32) -> Result<()> {
    if !metadata.keyslots.contains_key(&number) {
        let all: Vec<_> = metadata.keyslots.keys().map(u32::to_string).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        return Err(Error::misuse(format!("there is no keyslot {number}; there are: {all}")));
    }
    if !digests_of(number, metadata, |d| &d.keyslots).contains(&digest) {
        return Err(Error::misuse(format!("keyslot {number} is unbound: its key is not that of the volume")));
    }
    Ok(())
}

fn finish(with: &Unlock<'_>, total: u64) {
    if let Some(progress) = with.progress {
        progress(total, total);
    }
}

/// Whether another keyslot may open although one could not be tried.
fn says_nothing_of_others(kind: &ErrorKind) -> bool {
    use ErrorKind::{Malformed, TooLittleMemory, Unsupported};
    matches!(kind, TooLittleMemory { .. } | Malformed { .. } | Unsupported { .. })
}

/// The error if no keyslot opened. Lack of memory comes first, since the passphrase may be right then.
/// `wrong` is the mistake in what looks like a recovery key.
fn none_opened(
    header: &ReadHeader,
    store: &dyn Store,
    keyslots: &[u32],
    mut left_out: Vec<(u32, Error)>,
    wrong: Option<String>,
) -> Error {
    let tried = keyslots.len();
    let memory = left_out.iter().position(|(_, e)| matches!(e.kind, ErrorKind::TooLittleMemory { .. }));
    if let Some(place) = memory {
        let (number, error) = left_out.swap_remove(place);
        return error.hint(format!(
            "Keyslot {number} was not tried because memory is short; the passphrase may be right. Free some memory, \
             or allow more."
        ));
    }
    if tried == 0 {
        return Error::from(ErrorKind::WrongCredential("no keyslot opens with a passphrase".into()))
            .hint(
                "Give the volume key, or restore a header backup with keyslots. A keyslot with priority \"ignore\" \
                 opens only if you give its number.",
            )
            .advise(Advice::NameKeyslot);
    }
    if left_out.len() == tried {
        return left_out.remove(0).1;
    }
    let what = match tried - left_out.len() {
        1 => "the keyslot does not open with this passphrase".to_owned(),
        n => format!("none of {n} keyslots opens with this passphrase"),
    };
    let error = Error::from(ErrorKind::WrongCredential(wrong.unwrap_or(what)));
    let also: Vec<_> = left_out.iter().map(|(n, e)| format!("keyslot {n} ({})", e.kind)).collect();
    let also = (!also.is_empty()).then(|| format!("Could not be tried: {}.", also.join(", ")));
    let look = |number: &u32| Some(luks::no_longer_opens(*number, &damage_of(header, store, *number)?));
    let overwritten: Vec<_> = keyslots.iter().filter_map(look).collect();
    let error = if overwritten.is_empty() { error } else { error.advise(Advice::RestoreHeader) };
    let may_be_right = luks::may_be_right(overwritten.len(), tried);
    let hints: Vec<_> = also.into_iter().chain(overwritten).chain(may_be_right).collect();
    if hints.is_empty() { error } else { error.hint(hints.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::luks2::metadata::Base64;

    /// A header may demand more time than anybody would wait.
    #[test]
    fn a_digest_of_hours_is_told_of_and_can_be_cancelled() {
        let digest = Digest {
            kind: "pbkdf2".into(),
            keyslots: Vec::new(),
            segments: Vec::new(),
            salt: Base64(vec![1; 32]),
            digest: Base64(vec![2; 32]),
            hash: Some("sha256".into()),
            iterations: Some(u32::MAX),
            other: serde_json::Map::new(),
        };
        assert!(effort(&digest) > 60_000_000, "more than a minute");
        let error = verify(&digest, &[3; 64], 0, &|| false).expect_err("it is cancelled");
        assert!(matches!(error.kind, ErrorKind::Cancelled), "{error}");
    }
}
