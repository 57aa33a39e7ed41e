//! Creates a volume as TrueCrypt 7.1a and VeraCrypt do.

use std::ops::Range;
use std::time::Duration;

use claviger_crypto::Acceleration;
use claviger_crypto::pool::Pool;

use super::kdfs::Derivation;
use super::seal::Seal;
use super::suites::{Mode, Suite, UNIT};
use super::{Family, HEADER_GROUP, header, keyfiles};
use crate::credential::Credential;
use crate::error::{Error, Result};
use crate::formats::filling::{self, cancelled, not_cancelled};
use crate::random;
use crate::spec::Spec;
use crate::store::Store;

/// The smallest volume, in bytes: four header areas and nine sectors of 4,096 bytes, the smallest FAT file system that 7.1a
/// makes (Volumes.h, `TC_MIN_VOLUME_SIZE`).
pub(super) const MIN_LEN: u64 = 2 * HEADER_GROUP + 9 * 4096;

/// The largest volume, in bytes: 1 PiB, which is 7.1a's limit for XTS with blocks of 128 bits (`TC_MAX_VOLUME_SIZE`).
pub(super) const MAX_LEN: u64 = 1 << 50;

/// Creates a volume that fills `store`.
///
/// Old headers in the store are overwritten first. The new headers are written last, the primary one at the very end. So an
/// interrupted creation leaves nothing that opens. Only between the last two writes the volume lacks nothing but the primary
/// header, and opens with the backup.
pub(super) fn create(family: &Family, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
    let (suite, derivation) = family.chosen(spec)?;
    let password = keyfiles::password(family, first)?;
    not_too_cheap(&derivation, spec.pim, first, false)?;
    let size = data_size(family, store.len())?;
    let pool = Pool::for_this_machine(Duration::from_micros(50));

    let keys = random::secret(suite.key_len(Mode::Xts))?;
    let data = header::Extent { start: HEADER_GROUP, size, hidden: false };
    let plain = header::compose(family.rules, &[0; header::SALT], data, &keys);
    let cancelled = || cancelled(spec);
    let seal = Seal { suite, mode: Mode::Xts, derivation, password: &password, memory: None, cancelled: &cancelled };
    let (primary, backup) = (seal.close(&plain)?, seal.close(&plain)?);

    write_random_group(store, 0)?;
    write_random_group(store, HEADER_GROUP + size)?;
    store.flush()?;
    if !spec.quick {
        fill(store, HEADER_GROUP..HEADER_GROUP + size, suite, spec, &pool)?;
    }
    store.flush()?;
    not_cancelled(spec)?;
    write_headers(store, size, backup, primary).inspect_err(|_| {
        // An error here is ignored: the store may be gone.
        let _ = write_random_group(store, HEADER_GROUP + size);
        let _ = write_random_group(store, 0);
        let _ = store.flush();
    })
}

/// Refuses a short passphrase with a PIM that makes it cheap to guess, as VeraCrypt does. Keyfiles do not make up for it.
pub(super) fn not_too_cheap(
    derivation: &Derivation,
    pim: Option<u32>,
    credentials: &[Credential],
    system: bool,
) -> Result<()> {
    let len = credentials.iter().map(|c| if let Credential::Passphrase(text) = c { text.len() } else { 0 }).sum();
    let least = derivation.kdf.least_pim(len, system);
    match pim.filter(|pim| (1..least).contains(pim)) {
        None => Ok(()),
        Some(pim) => Err(Error::misuse(format!(
            "the PIM {pim} is too low for a {len}-byte passphrase: with {} use at least 20 bytes or a PIM of at \
             least {least}",
            derivation.kdf.name
        ))
        .hint("VeraCrypt refuses it too. Omit the PIM to use the default cost.")),
    }
}

/// The size of the data area in a store of `len` bytes, in bytes.
pub(super) fn data_size(family: &Family, len: u64) -> Result<u64> {
    if !(MIN_LEN..=MAX_LEN).contains(&len) {
        return Err(Error::misuse(format!(
            "a {} volume has {MIN_LEN} to {MAX_LEN} bytes with headers, not {len}",
            family.name
        )));
    }
    if !len.is_multiple_of(UNIT) {
        let name = family.name;
        return Err(Error::misuse(format!(
            "{len} bytes is not a whole number of {UNIT}-byte sectors, as {name} needs"
        )));
    }
    Ok(len - 2 * HEADER_GROUP)
}

/// The store size for `plain` bytes of plaintext: the inverse of [`data_size`].
pub(super) fn stored_len(plain: u64) -> Result<u64> {
    let len = plain.checked_next_multiple_of(UNIT).and_then(|len| len.checked_add(2 * HEADER_GROUP));
    let len = len.filter(|len| *len <= MAX_LEN);
    let len = len.ok_or_else(|| {
        Error::misuse(format!(
            "{plain} bytes do not fit into the largest volume ({MAX_LEN} \
         bytes)"
        ))
    })?;
    Ok(len.max(MIN_LEN))
}

/// Fills the two header areas from `at` on with random bytes, which look like headers. A hidden volume's salt and header cannot be
/// told from random bytes, so these must be there even without one (7.1a does the same).
fn write_random_group(store: &dyn Store, at: u64) -> Result<()> {
    let mut bytes = vec![0; HEADER_GROUP as usize];
    random::fill(&mut bytes)?;
    Ok(store.write_clobbering(at, &mut bytes)?)
}

/// Fills a data area with bytes that look like the volume's ciphertext, under keys that are discarded.
pub(super) fn fill(store: &dyn Store, area: Range<u64>, suite: &Suite, spec: &Spec<'_>, pool: &Pool) -> Result<()> {
    let throw_away = random::secret(suite.key_len(Mode::Xts))?;
    let cipher = suite.data_cipher(Mode::Xts, &throw_away, Acceleration::On);
    filling::fill_with(store, area, &*cipher, spec, pool)
}

fn write_headers(store: &dyn Store, size: u64, mut backup: Vec<u8>, mut primary: Vec<u8>) -> Result<()> {
    store.write_clobbering(HEADER_GROUP + size, &mut backup)?;
    store.flush()?;
    store.write_clobbering(0, &mut primary)?;
    Ok(store.flush()?)
}
