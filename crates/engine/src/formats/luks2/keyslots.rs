//! Adding, changing and removing keyslots.
//!
//! A new key is written to a free part of the keyslots area first, then the header is updated, and the old area is wiped last. So
//! everything that the header lists always exists. Only when a keyslot is removed, its area is wiped before the header changes.
//! After a crash in between it can be removed again, while key material that no header lists would stay forever.

use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::hash::{self, Hash};
use claviger_crypto::{Acceleration, Secret};
use serde_json::Value;

use super::change::Change;
use super::metadata::{self, Base64, Decimal, Digest, Id, Keyslot, Metadata};
use super::unlock::{OpenedKey, keyslots_of, open_key, try_keyslots};
use super::{recovery, slots, tokens, validate, write};
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::edit::Step;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks;
use crate::formats::luks::kdf::{self, Kdf};
use crate::formats::luks::passphrase;
use crate::formats::{NewCredential, Prepared, Removal};
use crate::password_strength::GuessWork;
use crate::spec::Spec;
use crate::store::Store;

/// The size of the salt of a keyslot or digest, in bytes (cryptsetup's luks.h, `LUKS_SALTSIZE`).
pub(super) const SALT: usize = 32;

/// The cipher of keyslots if the data's cipher is unsuitable (cryptsetup's configure.ac, `luks2-keyslot-cipher`,
/// `luks2-keyslot-keybits`).
const CIPHER: (&str, usize) = ("aes-xts-plain64", 64);

/// How long the digest of a key takes, in milliseconds (cryptsetup's luks.h, `LUKS_MKD_ITERATIONS_MS`).
const DIGEST_MS: u32 = 125;

/// Returns the keyslot with this number.
pub(super) fn at(metadata: &mut Metadata, number: u32) -> Result<&mut Keyslot> {
    metadata.keyslots.get_mut(&number).ok_or_else(|| no_keyslot(number))
}

fn no_keyslot(number: u32) -> Error {
    Error::misuse(format!("there is no keyslot {number}")).advise(Advice::ListKeyslots)
}

/// Adds a keyslot.
pub(super) fn add(
    store: &dyn Store,
    with: &Unlock<'_>,
    new: &NewCredential<'_>,
    wanted: Option<u32>,
) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    let number = free(&change.metadata, wanted)?;
    let passphrase = passphrase(new.credentials)?;
    let (key, digest, like) = match new.unbound_bits {
        None => {
            let OpenedKey { keyslot, key, digest, .. } = opened(&change, with)?;
            (key, digest, keyslot)
        }
        Some(bits) => {
            let key = fresh_key(bits)?;
            let digest = slots::free_number(&change.metadata.digests);
            let digest = digest.ok_or_else(|| Error::misuse("there is no room for the digest of another key"))?;
            change.metadata.digests.insert(digest, digest_of(&key, hash_of(new.hash)?, &new.cost, with)?);
            (key, digest, None)
        }
    };
    let how = KeyslotParameters::like(&change.metadata, like, key.len(), new.hash)?;
    let (keyslot, step) = seal(&change, &key, passphrase, &how, new, with, number)?;
    change.metadata.keyslots.insert(number, keyslot.0);
    change.metadata.digests.get_mut(&digest).expect("it is there").keyslots.push(Id(number));
    let token = new.token.cloned().or_else(|| recovery::token(passphrase, number));
    if let Some(mut token) = token {
        let free = slots::free_number(&change.metadata.tokens);
        // A recovery key works without its token, too.
        if free.is_none() && new.token.is_some() {
            return Err(
                Error::misuse("there is no room for another token").hint("Remove one that is no longer needed.")
            );
        }
        token.insert("keyslots".to_owned(), Value::from(vec![number.to_string()]));
        change.metadata.tokens.extend(free.map(|free| (free, token)));
    }
    change.keyslot = Some(number);
    change.derivation = Some(keyslot.1.derivation());
    change.before.push(step);
    change.prepared()
}

/// Replaces the credential of the keyslot that opens.
pub(super) fn change(store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    let typed = passphrase(new.credentials)?;
    let OpenedKey { keyslot, key, recovery_key, .. } = opened(&change, with)?;
    let number = keyslot.ok_or_else(|| {
        Error::misuse("the volume key does not identify a keyslot to change").hint("Use it to add a keyslot instead.")
    })?;
    // A recovery key that stays keeps its form. Otherwise, the keyslot is a password's now, unless that is a recovery key, too.
    let stays = passphrase(with.credentials).is_ok_and(|old| Secret::copy_from(old).same_as(typed));
    let recovery_key = recovery_key.filter(|_| stays);
    let passphrase = recovery_key.as_deref().unwrap_or(typed);
    if recovery::token(passphrase, number).is_none() {
        recovery::unmark(&mut change.metadata, number);
    }
    renewed(change, number, &key, passphrase, new, with)
}

/// Replaces the passphrase of a keyslot and its token, whatever keyslot opens. One edit of the header names both.
pub(super) fn replace(store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, number: u32) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    let passphrase = passphrase(new.credentials)?;
    let mut token = new.token.cloned().ok_or_else(|| Error::misuse("a new token is missing"))?;
    let keyslot = change.metadata.keyslots.get(&number).ok_or_else(|| no_keyslot(number))?;
    if keyslot.kind != "luks2" || !slots::of_data(&change.metadata).contains(&number) {
        return Err(Error::unsupported(format!("replacing keyslot {number}, which does not open the data")));
    }
    let old = tokens::only_token(&change.metadata, number)?;
    token.insert("keyslots".to_owned(), Value::from(vec![number.to_string()]));
    change.metadata.tokens.insert(old, token);
    // A named keyslot may be another one, but never one of other data.
    let key = open_key(&change.header, store, with, data_digest(&change.metadata)?)?.key;
    renewed(change, number, &key, passphrase, new, with)
}

/// Seals `key` anew in keyslot `number`. The old area is wiped last.
fn renewed(
    mut change: Change<'_>,
    number: u32,
    key: &Secret,
    passphrase: &[u8],
    new: &NewCredential<'_>,
    with: &Unlock<'_>,
) -> Result<Prepared> {
    let old = change.metadata.keyslots[&number].clone();
    let how = KeyslotParameters::like(&change.metadata, Some(number), key.len(), new.hash)?;
    let ((mut keyslot, kdf), step) = seal(&change, key, passphrase, &how, new, with, number)?;
    keyslot.priority = old.priority;
    keyslot.other.clone_from(&old.other);
    change.after.push(wipe(&old, number)?);
    change.metadata.keyslots.insert(number, keyslot);
    change.keyslot = Some(number);
    change.derivation = Some(kdf.derivation());
    change.before.push(step);
    change.prepared()
}

/// Removes a keyslot.
pub(super) fn remove(store: &dyn Store, which: Removal<'_>, last: bool) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    let number = match which {
        Removal::Opened(with) => {
            let opened = opened(&change, with)?.keyslot;
            opened.ok_or_else(|| Error::misuse("the volume key does not identify a keyslot to remove"))?
        }
        Removal::Number(number, _) => {
            let keyslot = change.metadata.keyslots.get(&number).ok_or_else(|| no_keyslot(number))?;
            if keyslot.kind != "luks2" {
                let kind = validate::printable(&keyslot.kind);
                return Err(Error::unsupported(format!("removing a keyslot of the type {kind}")));
            }
            number
        }
    };
    let of_data = slots::of_data(&change.metadata);
    let is_last = of_data.contains(&number) && of_data.len() == 1;
    if is_last && !last {
        return Err(luks::last_keyslot(number));
    }
    if let Removal::Number(_, Some(with)) = which {
        another_opens(&change, with, number)?;
    }
    change.before.push(wipe(&change.metadata.keyslots[&number], number)?);
    slots::take_out(&mut change.metadata, number);
    if is_last {
        change
            .warnings
            .push("No keyslot opens the volume any more; only a header backup or the volume key does.".into());
    }
    change.keyslot = Some(number);
    change.prepared()
}

/// Returns the data's key, or that of an unbound keyslot if one is named.
fn opened(change: &Change<'_>, with: &Unlock<'_>) -> Result<OpenedKey> {
    let Change { store, header, .. } = change;
    let of_data = slots::of_data(&header.metadata);
    match with.keyslot {
        Some(named) if header.metadata.keyslots.contains_key(&named) && !of_data.contains(&named) => {
            try_keyslots(header, *store, with, &[named])
        }
        _ => open_key(header, *store, with, data_digest(&header.metadata)?),
    }
}

fn data_digest(metadata: &Metadata) -> Result<u32> {
    let digest = slots::data_digest(metadata).map(|(number, _)| number);
    digest.ok_or_else(|| Error::unsupported("changing keyslots of a volume that is not encrypted"))
}

/// Fails unless `with` opens a keyslot other than `number`: removing a keyslot requires proof that another one remains.
fn another_opens(change: &Change<'_>, with: &Unlock<'_>, number: u32) -> Result<()> {
    let Change { store, header, metadata, .. } = change;
    let digest = data_digest(metadata)?;
    if with.keyslot == Some(number) {
        return Err(luks::opens_itself(number));
    }
    if let [Credential::VolumeKey(_)] = with.credentials {
        return open_key(header, *store, with, digest).map(|_| ());
    }
    let mut others = keyslots_of(metadata, digest, with.keyslot);
    others.retain(|other| *other != number);
    match try_keyslots(header, *store, with, &others) {
        Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) => {
            // Only to describe it.
            let only = Unlock { progress: None, ..*with };
            Err(if try_keyslots(header, *store, &only, &[number]).is_ok() { luks::opens_itself(number) } else { e })
        }
        other => other.map(drop),
    }
}

fn free(metadata: &Metadata, wanted: Option<u32>) -> Result<u32> {
    match wanted {
        Some(number) if number >= validate::NUMBERS => {
            Err(Error::misuse(format!("keyslots are numbered 0 to {}", validate::NUMBERS - 1)))
        }
        Some(number) if metadata.keyslots.contains_key(&number) => {
            Err(Error::misuse(format!("keyslot {number} is in use")).hint("Choose another one, or remove it first."))
        }
        Some(number) => Ok(number),
        None => slots::free_number(&metadata.keyslots)
            .ok_or_else(|| Error::misuse("all keyslots are in use").hint("Remove one that is no longer needed.")),
    }
}

/// The parameters of a new keyslot.
pub(super) struct KeyslotParameters {
    /// The hash of PBKDF2 and the splitter.
    pub hash: &'static Hash,
    /// The cipher of its area.
    pub cipher: Specification,
    /// The size of that cipher's key, in bytes.
    pub cipher_key: usize,
}

impl KeyslotParameters {
    /// The encryption of the keyslot `like`, or one that suits a key of `key_len` bytes.
    fn like(metadata: &Metadata, like: Option<u32>, key_len: usize, hash: Option<&str>) -> Result<Self> {
        let area = like.and_then(|number| metadata.keyslots.get(&number)).map(|keyslot| &keyslot.area);
        let of_area = area.and_then(|area| Some((area.encryption.clone()?, area.key_size? as usize)));
        let of_data = || metadata.segments.values().find_map(|s| Some((s.encryption.clone()?, key_len)));
        let (cipher, cipher_key) = of_area.or_else(of_data).unwrap_or((CIPHER.0.into(), CIPHER.1));
        Self::new(&cipher, cipher_key, hash)
    }

    /// The data's cipher, if it is suitable for keyslots: without tags, and not a null cipher.
    pub fn new(cipher: &str, cipher_key: usize, hash: Option<&str>) -> Result<Self> {
        let fits = |text: &str, len| {
            let known =
                Specification::parse(&slots::area_cipher(text)?).ok().filter(|c| c.key_sizes().contains(&len))?;
            Some(Self { hash: &hash::SHA256, cipher: known, cipher_key: len })
        };
        let how = fits(cipher, cipher_key).or_else(|| fits(CIPHER.0, CIPHER.1)).expect("the default is known");
        Ok(Self { hash: hash_of(hash)?, ..how })
    }
}

/// Seals `key` in a free part of the area. Returns the keyslot, its key derivation, and the step that writes the area.
fn seal(
    change: &Change<'_>,
    key: &Secret,
    passphrase: &[u8],
    how: &KeyslotParameters,
    new: &NewCredential<'_>,
    with: &Unlock<'_>,
    number: u32,
) -> Result<((Keyslot, Kdf), Step)> {
    let at = slots::free_area(&change.metadata, change.binary.hdr_size, slots::area_len(key.len()))?;
    let kdf = Kdf::choose(&new.cost, kdf::LUKS2, how.hash, how.cipher_key, with.cancel)?;
    let (keyslot, step) = sealed(at, key, passphrase, how, &kdf, with, number)?;
    Ok(((keyslot, kdf), step))
}

/// Returns the keyslot `number` for `key`, with its area at the offset `at`, and the step that writes it.
pub(super) fn sealed(
    at: u64,
    key: &Secret,
    passphrase: &[u8],
    how: &KeyslotParameters,
    kdf: &Kdf,
    with: &Unlock<'_>,
    number: u32,
) -> Result<(Keyslot, Step)> {
    let salt = salt()?;
    let derived = kdf.derive(passphrase, &salt.0, how.cipher_key, with)?;
    let stripes = slots::STRIPES;
    let area = luks::Area { at, key_len: key.len(), stripes: stripes as usize, hash: how.hash, cipher: &how.cipher };
    let bytes = area.seal(key, &derived, Acceleration::On)?;
    let keyslot = Keyslot {
        kind: "luks2".into(),
        key_size: key.len() as u32,
        priority: None,
        area: metadata::Area {
            kind: "raw".into(),
            offset: Decimal(at),
            size: Decimal(slots::area_len(key.len())),
            encryption: Some(how.cipher.to_string()),
            key_size: Some(how.cipher_key as u32),
            other: Default::default(),
        },
        kdf: Some(kdf_metadata(kdf, salt)),
        af: Some(metadata::Af {
            kind: "luks1".into(),
            stripes: Some(stripes),
            hash: Some(header_name(how.hash)?),
            other: Default::default(),
        }),
        other: Default::default(),
    };
    Ok((keyslot, Step { what: format!("the key of keyslot {number}"), at, bytes }))
}

fn kdf_metadata(kdf: &Kdf, salt: Base64) -> metadata::Kdf {
    let none = metadata::Kdf {
        kind: kdf.name().into(),
        salt,
        hash: None,
        iterations: None,
        time: None,
        memory: None,
        cpus: None,
        other: Default::default(),
    };
    match *kdf {
        Kdf::Pbkdf2 { hash, iterations } => {
            metadata::Kdf { hash: header_name(hash).ok(), iterations: Some(iterations), ..none }
        }
        Kdf::Argon2 { passes, memory_kib, lanes, .. } => {
            metadata::Kdf { time: Some(passes), memory: Some(memory_kib), cpus: Some(lanes), ..none }
        }
    }
}

/// The step that overwrites a keyslot's area with random bytes.
fn wipe(keyslot: &Keyslot, number: u32) -> Result<Step> {
    let mut bytes = vec![0; keyslot.area.size.0 as usize];
    write::random(&mut bytes)?;
    Ok(Step { what: format!("random bytes over the old key of keyslot {number}"), at: keyslot.area.offset.0, bytes })
}

/// Returns a digest that identifies a key. If `cost` fixes the iterations, it gets the minimum; otherwise its cost is measured.
pub(super) fn digest_of(
    key: &Secret,
    hash: &'static Hash,
    cost: &crate::spec::Cost<'_>,
    with: &Unlock<'_>,
) -> Result<Digest> {
    // A caller that fixes the iterations does not want a benchmark; a random key needs no strengthening.
    let iterations = cost.iterations.map(|_| kdf::MIN_ITERATIONS);
    let cost = crate::spec::Cost { kdf: Some("pbkdf2"), time_ms: Some(DIGEST_MS), iterations, ..Default::default() };
    let kdf = Kdf::choose(&cost, kdf::LUKS2, hash, hash.size, with.cancel)?;
    let Kdf::Pbkdf2 { iterations, .. } = kdf else { unreachable!("it was asked for") };
    let salt = salt()?;
    let digest = kdf.derive(key, &salt.0, hash.size, with)?;
    Ok(Digest {
        kind: "pbkdf2".into(),
        keyslots: Vec::new(),
        segments: Vec::new(),
        salt,
        digest: Base64(digest.to_vec()),
        hash: Some(header_name(hash)?),
        iterations: Some(iterations),
        other: Default::default(),
    })
}

fn fresh_key(bits: u32) -> Result<Secret> {
    // cryptsetup's luks.h, `MAX_KEY_SIZE`, in bits.
    if bits == 0 || !bits.is_multiple_of(8) || bits > 4096 {
        return Err(Error::misuse(format!("a key of {bits} bits is not possible: 8 to 4096, in whole bytes")));
    }
    let mut key = Secret::zeroed(bits as usize / 8);
    write::random(&mut key)?;
    Ok(key)
}

fn salt() -> Result<Base64> {
    let mut salt = vec![0; SALT];
    write::random(&mut salt)?;
    Ok(Base64(salt))
}

/// The size of a new keyslot's key, in bytes: it usually encrypts the volume key with AES in XTS mode.
const USUAL_KEY: usize = 64;

/// The work of one guess of a new keyslot's passphrase.
pub(super) fn guess_work(spec: &Spec<'_>) -> Option<GuessWork> {
    let hash = hash_of(spec.hash).unwrap_or(&hash::SHA256);
    Some(kdf::expected(&spec.cost, kdf::LUKS2, hash, USUAL_KEY)?.guess_work(USUAL_KEY))
}

/// Chooses the derivation of a new keyslot's key before there is a passphrase.
pub(super) fn choose_cost(spec: &Spec<'_>) -> Result<()> {
    let hash = hash_of(spec.hash).unwrap_or(&hash::SHA256);
    Kdf::choose(&spec.cost, kdf::LUKS2, hash, USUAL_KEY, spec.cancel).map(drop)
}

/// The hash of a new keyslot: SHA-256 by default.
pub(super) fn hash_of(name: Option<&str>) -> Result<&'static Hash> {
    let Some(name) = name else { return Ok(&hash::SHA256) };
    let known = hash::by_name(name).filter(|hash| header_name(hash).is_ok());
    known.ok_or_else(|| Error::misuse(format!("LUKS headers know no hash called {name}")))
}

/// The hash's name in a header, which is the kernel's, if other programs know the hash by it.
pub(super) fn header_name(hash: &Hash) -> Result<String> {
    /// Hashes known by different names, or by hardly any program.
    const REFUSED: &[&str] =
        &["Streebog", "MD4", "RIPEMD-128", "RIPEMD-256", "RIPEMD-320", "SHA-512/224", "SHA-512/256"];
    match hash.name {
        name if REFUSED.contains(&name) || name.starts_with("Tiger") || name.starts_with("Whirlpool-") => {
            Err(Error::unsupported(format!("{name} in LUKS headers (programs disagree on its name or do not know it)")))
        }
        name if name.starts_with("BLAKE2") => Ok(name.to_ascii_lowercase()),
        name => Ok(name.replace('-', "").to_ascii_lowercase()),
    }
}
