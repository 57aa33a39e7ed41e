//! Creates a volume as cryptsetup does (2.6.1, lib/luks1/keymanage.c, `LUKS_generate_phdr`, and lib/setup.c,
//! `_crypt_format_luks1`).

use std::sync::atomic::AtomicBool;

use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::hash::{self, Hash};
use claviger_crypto::{Acceleration, Secret};

use super::header::{DIGEST, New, Phdr, SALT, SECTOR, SIZE, SLOTS, STRIPES, Slot, area_len};
use super::not_in_luks1;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::filling::{self, not_cancelled};
use crate::formats::luks::kdf::{self, Kdf, MIN_ITERATIONS};
use crate::formats::luks::{Area, cipher_error, passphrase, uuid};
use crate::formats::stored_behind;
use crate::password_strength::GuessWork;
use crate::random;
use crate::spec::{Cost, Spec};
use crate::store::{MemoryStore, Store};

/// Ciphers of new volumes, the default first. Any other specification is accepted too.
pub(super) const CIPHERS: &[&str] = &["aes-xts-plain64", "serpent-xts-plain64", "twofish-xts-plain64"];

/// Hashes of new volumes, the default first, by their names in headers.
pub(super) const HASHES: &[&str] = &["sha256", "sha512", "sha1", "ripemd160", "whirlpool"];

/// The offset of the first keyslot's area, and the alignment of all areas, in bytes (`LUKS_ALIGN_KEYSLOTS`).
pub(super) const ALIGNMENT: u64 = 4096;

/// The alignment of the data, in bytes (cryptsetup 2.6.1, lib/internal.h, `DEFAULT_DISK_ALIGNMENT`).
const DATA_ALIGNMENT: u64 = 1 << 20;

/// The smallest volume with the default cipher, in bytes: 2 MiB of header and keyslots, and a sector.
pub(super) const MIN_LEN: u64 = (2 << 20) + SECTOR;

/// The default size of a key, in bits: two keys of 256 bits for XTS, one for other modes.
const DEFAULT_KEY: usize = 256;

/// The part of a keyslot's time that goes into the volume key's digest, in milliseconds (`LUKS_MKD_ITERATIONS_MS`).
const DIGEST_MS: u64 = 125;

/// Creates a volume that fills `store`, or a detached header there.
///
/// The old header is erased first, and the new one written last. So an interrupted creation leaves nothing that opens.
pub(super) fn create(store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
    let passphrase = passphrase(first)?;
    let plan = NewLuks1::of(store.len(), spec)?;
    let key = plan.volume_key(spec)?;
    let kdf = choose(&spec.cost, plan.hash, plan.key_len, spec.cancel)?;
    let with = Unlock { cancel: spec.cancel, ..Unlock::with(&[]) };
    let (slot, area) = sealed(&plan.area(0), &kdf, &key, passphrase, &with)?;
    let header = plan.header(&key, slot, &kdf, spec)?;
    let header = Phdr::parse(&header, store.len())?;
    header.sound()?;

    write_clean(store, plan.areas_end().max(if spec.data.is_none() { plan.data_start } else { 0 }), &plan)?;
    if !spec.quick {
        plan.fill_data(store, spec)?;
    }
    not_cancelled(spec)?;
    store.write_clobbering(header.slots[0].area(plan.key_len).start, &mut area.clone())?;
    store.flush()?;
    let mut bytes = header.bytes;
    store.write_clobbering(0, &mut bytes).and_then(|()| store.flush()).map_err(|error| {
        // An error here is ignored: the store may be gone.
        let _ = store.write_clobbering(0, &mut [0; SIZE]).and_then(|()| store.flush());
        Error::from(error)
    })
}

/// Checks everything but the credentials.
pub(super) fn check_spec(len: u64, spec: &Spec<'_>) -> Result<()> {
    NewLuks1::of(len, spec)?.volume_key(spec)?;
    spec.uuid.map_or(Ok(()), |uuid| uuid::parse(uuid).map(drop))
}

/// The store size for `plain` bytes of plaintext after the header and the keyslots, in bytes.
pub(super) fn stored_len(plain: u64, spec: &Spec<'_>) -> Result<u64> {
    stored_behind(NewLuks1::new(spec)?.data_start, plain, spec)
}

/// Decisions made before anything is written.
struct NewLuks1 {
    cipher: Specification,
    cipher_name: String,
    cipher_mode: String,
    hash: &'static Hash,
    hash_name: String,
    key_len: usize,
    /// The offset of the data in their store, in bytes.
    data_start: u64,
}

impl NewLuks1 {
    fn of(store_len: u64, spec: &Spec<'_>) -> Result<Self> {
        let plan = Self::new(spec)?;
        plan.check_room(store_len, spec)?;
        Ok(plan)
    }

    fn new(spec: &Spec<'_>) -> Result<Self> {
        let text = spec.cipher.unwrap_or(CIPHERS[0]);
        let (name, mode) = text.split_once('-').ok_or_else(|| {
            Error::misuse(format!("{text} is not a cipher specification"))
                .hint("Use cipher-mode-IV, such as aes-xts-plain64.")
        })?;
        // The fields have 32 bytes, including a zero byte at the end.
        if name.len() > 31 || mode.len() > 31 || name.contains(':') {
            return Err(Error::misuse(format!("the cipher specification {text} does not fit a LUKS1 header")));
        }
        let cipher = Specification::parse(text).map_err(|e| misuse(cipher_error(e, 0)))?;
        let (hash, hash_name) = hash_named(spec.hash.unwrap_or(HASHES[0]))?;
        let key_len = key_len(&cipher, spec)?;
        let mut plan = Self {
            cipher_name: name.to_owned(),
            cipher_mode: mode.to_owned(),
            cipher,
            hash,
            hash_name,
            key_len,
            data_start: 0,
        };
        plan.data_start = plan.data_start(spec)?;
        Ok(plan)
    }

    /// The offset of a keyslot's area, in sectors.
    fn offset(&self, number: usize) -> u32 {
        standard_offset(self.key_len, number)
    }

    fn areas_end(&self) -> u64 {
        u64::from(self.offset(SLOTS - 1)) * SECTOR + area_len(self.key_len, STRIPES)
    }

    fn area(&self, number: usize) -> Area<'_> {
        let at = u64::from(self.offset(number)) * SECTOR;
        Area { at, key_len: self.key_len, stripes: STRIPES as usize, hash: self.hash, cipher: &self.cipher }
    }

    fn data_start(&self, spec: &Spec<'_>) -> Result<u64> {
        let end = self.areas_end();
        match spec.data_offset {
            Some(at) if !at.is_multiple_of(SECTOR) || at / SECTOR > u64::from(u32::MAX) => {
                Err(Error::misuse(format!("data cannot begin at byte {at}: LUKS1 counts in sectors of {SECTOR} bytes")))
            }
            Some(at) if spec.data.is_none() && at < end => {
                Err(Error::misuse(format!("data cannot begin at byte {at}: the keyslots end at byte {end}")))
            }
            Some(at) => Ok(at),
            None if spec.data.is_some() => Ok(0),
            None => Ok(end.next_multiple_of(DATA_ALIGNMENT)),
        }
    }

    fn check_room(&self, store_len: u64, spec: &Spec<'_>) -> Result<()> {
        let needed = if spec.data.is_some() { self.areas_end() } else { self.data_start + SECTOR };
        if store_len < needed {
            let what = if spec.data.is_some() { "detached header" } else { "volume" };
            return Err(Error::misuse(format!("{store_len} bytes are too few: such a LUKS1 {what} needs {needed}")));
        }
        match spec.data {
            Some(data) if data.len() < self.data_start + SECTOR => {
                Err(Error::misuse(format!("{} bytes are too few for the data", data.len())))
            }
            _ => Ok(()),
        }
    }

    fn volume_key(&self, spec: &Spec<'_>) -> Result<Secret> {
        match spec.volume_key {
            Some(key) if key.len() != self.key_len => Err(Error::misuse(format!(
                "the volume key has {} bytes, but the cipher takes {}",
                key.len(),
                self.key_len
            ))),
            Some(key) => Ok(Secret::copy_from(key)),
            None => random::secret(self.key_len),
        }
    }

    fn header(&self, key: &[u8], first: Slot, kdf: &Kdf, spec: &Spec<'_>) -> Result<[u8; SIZE]> {
        let mut digest_salt = [0; SALT];
        random::fill(&mut digest_salt)?;
        let digest_iterations = digest_iterations(kdf, &spec.cost);
        let mut digest = [0; DIGEST];
        let go_on = || not_cancelled(spec).is_ok();
        if !self.hash.pbkdf2(key, &digest_salt, digest_iterations, &mut digest, &go_on) {
            return Err(ErrorKind::Cancelled.into());
        }
        let mut slots: [Slot; SLOTS] = std::array::from_fn(|number| Slot::unused(self.offset(number)));
        slots[0] = first;
        let uuid = spec.uuid.map_or_else(uuid::random, uuid::parse)?;
        Ok(New {
            cipher_name: &self.cipher_name,
            cipher_mode: &self.cipher_mode,
            hash_name: &self.hash_name,
            payload: (self.data_start / SECTOR) as u32,
            key_len: self.key_len,
            digest: &digest,
            digest_salt: &digest_salt,
            digest_iterations,
            uuid: &uuid,
            slots: &slots,
        }
        .bytes())
    }

    fn fill_data(&self, store: &dyn Store, spec: &Spec<'_>) -> Result<()> {
        let store = spec.data.unwrap_or(store);
        filling::fill(store, self.data_start..store.len(), spec)?;
        Ok(store.flush()?)
    }
}

/// The offset of a keyslot's area in a new header, in sectors.
pub(super) fn standard_offset(key_len: usize, number: usize) -> u32 {
    let each = area_len(key_len, STRIPES).next_multiple_of(ALIGNMENT);
    ((ALIGNMENT + each * number as u64) / SECTOR) as u32
}

/// Returns a keyslot that `passphrase` opens, and the contents of its area.
pub(super) fn sealed(
    area: &Area<'_>,
    kdf: &Kdf,
    key: &[u8],
    passphrase: &[u8],
    with: &Unlock<'_>,
) -> Result<(Slot, Vec<u8>)> {
    let Kdf::Pbkdf2 { iterations, .. } = *kdf else { return Err(not_in_luks1("Argon2")) };
    let mut salt = [0; SALT];
    random::fill(&mut salt)?;
    let derived = kdf.derive(passphrase, &salt, key.len(), with)?;
    let bytes = area.seal(key, &derived, Acceleration::On)?;
    // The volume depends on these bytes: errors of memory or the processor must show before anything is written.
    let written = Area { at: 0, key_len: area.key_len, stripes: area.stripes, hash: area.hash, cipher: area.cipher };
    if !written.read(&MemoryStore::new(bytes.clone()), &derived, Acceleration::On)?.same_as(key) {
        return Err(std::io::Error::other("the new keyslot does not decrypt to what was encrypted").into());
    }
    let offset = (area.at / SECTOR) as u32;
    Ok((Slot { active: true, iterations, salt, offset, stripes: area.stripes as u32, trouble: None }, bytes))
}

/// Chooses the derivation of a new keyslot.
pub(super) fn choose(cost: &Cost<'_>, hash: &'static Hash, key_len: usize, cancel: Option<&AtomicBool>) -> Result<Kdf> {
    if cost.kdf.is_some_and(|name| !crate::formats::same_name(name, "pbkdf2")) {
        return Err(not_in_luks1("key derivation other than PBKDF2"));
    }
    Kdf::choose(cost, kdf::LUKS1, hash, key_len, cancel)
}

/// The size of the volume key, in bytes: a keyslot's key is as long.
fn usual_key(spec: &Spec<'_>) -> usize {
    let given = spec.key_bits.map(|bits| bits as usize / 8);
    given.or_else(|| Some(NewLuks1::new(spec).ok()?.key_len)).unwrap_or(2 * DEFAULT_KEY / 8)
}

/// Chooses the derivation of a new keyslot's key before there is a passphrase.
pub(super) fn choose_cost(spec: &Spec<'_>) -> Result<()> {
    let (hash, _) = hash_named(spec.hash.unwrap_or(HASHES[0]))?;
    choose(&spec.cost, hash, usual_key(spec), spec.cancel).map(drop)
}

/// The work of one guess of a new keyslot's passphrase.
pub(super) fn guess_work(spec: &Spec<'_>) -> Option<GuessWork> {
    let (hash, _) = hash_named(spec.hash.unwrap_or(HASHES[0])).ok()?;
    let len = usual_key(spec);
    Some(kdf::expected(&spec.cost, kdf::LUKS1, hash, len)?.guess_work(len))
}

/// The iterations of the digest: as many as fit its part of a keyslot's time.
fn digest_iterations(kdf: &Kdf, cost: &Cost<'_>) -> u32 {
    let Kdf::Pbkdf2 { iterations, .. } = kdf else { return MIN_ITERATIONS };
    let time_ms = u64::from(cost.time_ms.unwrap_or(kdf::LUKS1.time_ms).max(1));
    u32::try_from(u64::from(*iterations) * DIGEST_MS / time_ms).unwrap_or(u32::MAX).max(MIN_ITERATIONS)
}

/// Erases the old contents: zeros for the header and the gaps between and after the areas, random bytes for the areas.
fn write_clean(store: &dyn Store, end: u64, plan: &NewLuks1) -> Result<()> {
    store.write_clobbering(0, &mut vec![0; u64::from(plan.offset(0)) as usize * SECTOR as usize])?;
    store.flush()?;
    let each = area_len(plan.key_len, STRIPES).next_multiple_of(ALIGNMENT);
    let mut area = vec![0; each as usize];
    let mut at = u64::from(plan.offset(0)) * SECTOR;
    for _ in 0..SLOTS {
        random::fill(&mut area)?;
        let len = each.min(store.len().min(end.max(plan.areas_end())) - at) as usize;
        store.write_clobbering(at, &mut area[..len])?;
        at += len as u64;
    }
    let mut zeros = vec![0; 64 << 10];
    while at < end {
        let len = (end - at).min(zeros.len() as u64) as usize;
        zeros[..len].fill(0);
        store.write_clobbering(at, &mut zeros[..len])?;
        at += len as u64;
    }
    Ok(store.flush()?)
}

fn key_len(cipher: &Specification, spec: &Spec<'_>) -> Result<usize> {
    let sizes = cipher.key_sizes();
    let asked = match spec.key_bits {
        Some(bits) if bits % 8 != 0 => {
            return Err(Error::misuse(format!("{bits} bits is not a whole number of bytes")));
        }
        Some(bits) => Some(bits as usize / 8),
        None => spec.volume_key.map(|key| key.len()),
    };
    let default = if cipher.is_xts() { 2 * DEFAULT_KEY } else { DEFAULT_KEY } / 8;
    match asked {
        Some(len) if sizes.contains(&len) => Ok(len),
        Some(len) => {
            let sizes: Vec<_> = sizes.iter().map(|size| (size * 8).to_string()).collect();
            Err(Error::misuse(format!("{cipher} takes no {}-bit key; it takes {}", len * 8, sizes.join(", "))))
        }
        None if sizes.contains(&default) => Ok(default),
        None => sizes.into_iter().max().ok_or_else(|| Error::misuse(format!("{cipher} takes no key"))),
    }
}

/// Returns the hash, and its name in headers.
fn hash_named(name: &str) -> Result<(&'static Hash, String)> {
    let known = hash::by_name(name).filter(|hash| hash.size >= DIGEST);
    let in_headers = HASHES.iter().find(|h| crate::formats::same_name(h, name));
    match (known, in_headers) {
        (Some(hash), Some(name)) => Ok((hash, (*name).to_owned())),
        // A hash whose kernel name is the given name.
        (Some(hash), None) if name.len() < 32 => Ok((hash, name.to_ascii_lowercase())),
        _ => Err(Error::misuse(format!("LUKS1 has no hash called {name}; use one of: {}", HASHES.join(", ")))),
    }
}

/// Invalid parameters are the caller's fault, not the file's.
fn misuse(error: Error) -> Error {
    match error.kind {
        ErrorKind::Malformed { what, .. } => Error::misuse(what),
        _ => error,
    }
}
