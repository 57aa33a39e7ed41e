//! Makes a volume as TrueCrypt 7.1a and VeraCrypt do.

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

/// The largest, in bytes: 1 PiB, where 7.1a draws the line for XTS with blocks of 128 bits (`TC_MAX_VOLUME_SIZE`).
pub(super) const MAX_LEN: u64 = 1 << 50;

/// Makes a volume that fills `store`.
///
/// First of all the old headers go, if the store had any; last of all come the new ones, the primary header at the very
/// end. So what an interruption leaves opens with nothing, unless it falls between the two last writes: then the volume is
/// complete but for the primary header, and opens by the backup.
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
        // As well as can be: the store may be gone.
        let _ = write_random_group(store, HEADER_GROUP + size);
        let _ = write_random_group(store, 0);
        let _ = store.flush();
    })
}

/// Refuses a short passphrase with a PIM that makes it cheap to guess, as VeraCrypt does. Keyfiles do not count.
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

/// Bytes of the data area in a store of `len` bytes.
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

/// Bytes of store for `plain` bytes of plaintext: the inverse of [`data_size`].
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

/// Makes the two header areas from `at` on look as if there were headers in them: the salt and the header of a hidden volume
/// cannot be told from random bytes, so random bytes have to be where there is none (7.1a does the same).
fn write_random_group(store: &dyn Store, at: u64) -> Result<()> {
    let mut bytes = vec![0; HEADER_GROUP as usize];
    random::fill(&mut bytes)?;
    Ok(store.write_clobbering(at, &mut bytes)?)
}

/// Fills a data area with what looks like ciphertext of the volume, under keys that are thrown away.
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
