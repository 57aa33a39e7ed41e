//! A volume whose metadata say that it is decrypted. Their hash is not encrypted, so anybody can write it, and they prove nothing.
//! Removing the format destroys the keys in the volume. So it is removed only if no password protects a key, and the data are
//! visibly plaintext.

use claviger_crypto::{Secret, SectorCipher};

use super::{Towards, malformed_state, next_zone};
use crate::advice::Advice;
use crate::credential::Unlock;
use crate::error::{Error, Result};
use crate::formats::bitlocker::boot::Boot;
use crate::formats::bitlocker::layout::{Places, ZoneState};
use crate::formats::bitlocker::metadata::Copy;
use crate::formats::bitlocker::method::Method;
use crate::formats::bitlocker::noise::is_noise;
use crate::formats::bitlocker::protectors::{Kind, Protector};
use crate::formats::bitlocker::unlock::{self, OpenedKeys};
use crate::formats::bitlocker::{BitLockerHeader, VMK, is_decrypted};
use crate::random;
use crate::store::Store;

/// How many bytes after the first sectors are checked: encryption begins there.
const LOOKED_AT: u64 = 16 << 20;
/// How many bytes are read at a time.
const PIECE: u64 = 1 << 20;

/// Returns fresh keys for removing the format of such a volume: nothing was ever encrypted with them. The keys in the metadata open
/// nothing any more.
///
/// # Errors
/// Those of unlocking, for a credential that opens none of its protectors; `Misuse` if copies differ; `Malformed` if anything may
/// be encrypted.
pub(super) fn to_be_left(header: &BitLockerHeader, with: &Unlock<'_>, towards: Option<Towards>) -> Result<OpenedKeys> {
    let (copy, store) = (header.first(), &*header.store);
    if header.copies.iter().any(|copy| something_is_encrypted(&header.boot, copy, store.len())) {
        let what = "the copies of the metadata differ: one says that the volume is decrypted, another that it is not";
        return Err(Error::misuse(what).hint("Nothing was changed.").advise(Advice::RepairHeader));
    }
    if towards == Some(Towards::Encrypted) {
        return Err(Error::misuse("the metadata say that it is decrypted, but nothing proves the keys in them")
            .hint("Nothing was changed. Decrypt it first (claviger reencrypt --decrypt), then encrypt it anew."));
    }
    let (protectors, wrong) = Protector::all(&copy.metadata);
    if !wrong.is_empty() || protectors.iter().any(|protector| protector.kind != Kind::CLEAR) {
        if !with.credentials.is_empty() {
            unlock::open(&copy.metadata, with)?;
        }
        return Err(malformed_state(
            "the metadata say that the volume is decrypted, but still hold protected keys, and these do not confirm it",
        ));
    }
    let places = Places::of(&header.boot, &copy.metadata, store.len())?;
    let method = Method::numbered(copy.metadata.method)?;
    let fresh = OpenedKeys {
        vmk: Some(random::secret(VMK)?),
        fvek: random::secret(method.stored_key)?,
        protector: None,
        trials: 0,
    };
    let cipher = |key: &Secret| method.cipher(key, header.boot.sector_size, with.acceleration);
    if places.beginning(store, &cipher(&fresh.fvek)?)? != Some(ZoneState::Plain) {
        return Err(malformed_state("the metadata say that the volume is decrypted, but no file system is readable"));
    }
    let nothing = Unlock { credentials: &[], keyslot: None, ..*with };
    let there = unlock::open(&copy.metadata, &nothing).ok();
    match there.map(|there| begins_encrypted(&places, store, &*cipher(&there.fvek)?)).transpose()? {
        Some(true) => Err(malformed_state(
            "the metadata say that the volume is decrypted, but sectors are encrypted with its key",
        )),
        _ => Ok(fresh),
    }
}

/// Whether metadata say that anything is encrypted. While the format of a decrypted volume is removed, they may only say that it
/// was being decrypted.
fn something_is_encrypted(boot: &Boot, copy: &Copy, len: u64) -> bool {
    let left = |places: Places| next_zone(&places, places.encrypted, Towards::Plain, u64::MAX).is_some();
    !is_decrypted(&copy.metadata) && Places::of(boot, &copy.metadata, len).map_or(true, left)
}

/// Whether a sector near the beginning is noise that the key turns into something else.
fn begins_encrypted(places: &Places, store: &dyn Store, cipher: &dyn SectorCipher) -> Result<bool> {
    let sector = places.sector as usize;
    let end = places.size.min(places.header + LOOKED_AT);
    for at in (places.header..end).step_by(PIECE as usize) {
        let mut stored = vec![0; PIECE.min(end - at) as usize];
        store.read_at(at, &mut stored)?;
        let mut plain = stored.clone();
        cipher.decrypt(at / places.sector, &mut plain);
        if stored.chunks(sector).zip(plain.chunks(sector)).any(|(stored, plain)| is_noise(stored) && !is_noise(plain)) {
            return Ok(true);
        }
    }
    Ok(false)
}
