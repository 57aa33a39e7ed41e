//! Common parts of LUKS1 and LUKS2: the areas of keyslots, in which the volume key is stored split and encrypted.

mod areas;
pub(in crate::formats) mod kdf;
pub(in crate::formats) mod uuid;

use std::sync::Arc;

use claviger_crypto::dmcrypt::{self, Sectors, Specification};
use claviger_crypto::hash::Hash;
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, Secret, SectorCipher, afsplit};

use crate::advice::{Advice, Warning};
use crate::credential::{Credential, whole_keyfile};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
use crate::random;
use crate::store::Store;
pub(super) use areas::{KeyslotAreas, damage_shown, look_at_area, may_be_right, no_longer_opens, warning};

/// What opened a volume, in words: a keyslot, or else the volume key itself.
pub(super) fn opened_by(keyslot: Option<u32>) -> String {
    keyslot.map_or("volume key".to_owned(), |number| format!("keyslot {number}"))
}

/// Returns the passphrase for a keyslot: a keyfile is a passphrase of arbitrary bytes.
///
/// # Errors
/// `Misuse` for none or several credentials; `CredentialKind`.
pub(super) fn passphrase(credentials: &[Credential]) -> Result<&Secret> {
    match credentials {
        [Credential::Passphrase(bytes)] => Ok(bytes),
        [Credential::Keyfile(bytes)] => whole_keyfile(bytes),
        [] => Err(Error::misuse("a passphrase or a keyfile is needed")),
        [other] => Err(ErrorKind::CredentialKind { format: "LUKS", kind: other.kind() }.into()),
        _ => Err(Error::misuse("a LUKS keyslot takes a single passphrase or keyfile")
            .hint("A keyfile takes the place of the passphrase.")),
    }
}

/// The layout of a keyslot's area. It is encrypted in sectors of 512 bytes, numbered from its beginning (LUKS1 On-Disk Format
/// Specification 1.2.3, section 4.2; LUKS2 On-Disk Format Specification 1.1.1, section 3.2.4).
pub(super) struct Area<'a> {
    /// Its offset in the store, in bytes.
    pub at: u64,
    /// Size of the volume key in it, in bytes.
    pub key_len: usize,
    /// How many stripes the key is split into.
    pub stripes: usize,
    /// The splitter's hash.
    pub hash: &'static Hash,
    /// The cipher of the area.
    pub cipher: &'a Specification,
}

impl Area<'_> {
    /// Returns the volume key if `derived` is the right key, and noise otherwise: nothing in the area shows which.
    ///
    /// # Errors
    /// `Io`; `Unsupported` and `Malformed` if the cipher does not fit the key.
    pub fn read(&self, store: &dyn Store, derived: &[u8], with: Acceleration) -> Result<Secret> {
        let mut material = Secret::zeroed(self.len());
        store.read_at(self.at, &mut material)?;
        let cipher = self.cipher.with_key(derived, Sectors::default(), with).map_err(|e| cipher_error(e, self.at))?;
        cipher.decrypt(0, &mut material);
        Ok(afsplit::merge(&material[..self.key_len * self.stripes], self.stripes, self.hash))
    }

    /// Returns the contents to write at `at`, so that `derived` opens `key`.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes, and those of [`Area::read`].
    pub fn seal(&self, key: &[u8], derived: &[u8], with: Acceleration) -> Result<Vec<u8>> {
        let cipher = self.cipher.with_key(derived, Sectors::default(), with).map_err(|e| cipher_error(e, self.at))?;
        let mut material = Secret::zeroed(self.len());
        random::fill(&mut material)?;
        afsplit::split(key, self.stripes, self.hash, &mut material[..self.key_len * self.stripes]);
        cipher.encrypt(0, &mut material);
        wipe_stack();
        Ok(material.to_vec())
    }

    /// The size of the encrypted part, in bytes: whole sectors.
    pub fn len(&self) -> usize {
        (self.key_len * self.stripes).next_multiple_of(512)
    }
}

/// The error for removing the last keyslot.
pub(super) fn last_keyslot(number: u32) -> Error {
    Error::misuse(format!("keyslot {number} is the last one; without it the data are lost"))
        .hint("Add another one first.")
        .advise(Advice::AllowRemovingLast)
}

/// The error for removing a keyslot with its own credential, which does not prove that another one remains.
pub(super) fn opens_itself(number: u32) -> Error {
    Error::misuse(format!("the given passphrase opens keyslot {number}, the one to remove"))
        .hint("Give the passphrase of a keyslot that stays.")
}

/// The error for a detached header that is given without its data.
pub(super) fn data_elsewhere() -> Error {
    Error::misuse("this is a detached header: the data are in another file or device").advise(Advice::NameHeader)
}

/// Returns the error for a file that ends before its data begin. Such a file is only a header of `header` bytes, complete like
/// backups and detached headers, or incomplete. `None` for a file that may have had data.
pub(super) fn header_alone(there: u64, header: u64, data: u64) -> Option<Error> {
    /// The usual alignment of data, in bytes: a detached header may be padded to it.
    const ALIGNMENT: u64 = 1 << 20;
    if there < header {
        let missing = header - there;
        let what = format!(
            "{missing} bytes of the header are missing: it needs {header}, but only {there} are \
             present"
        );
        let cut = ErrorKind::Malformed { field: "length of the file", offset: there, what };
        let hint = "Look for a longer copy or a header backup: this one was cut short, and keyslots may be lost.";
        return Some(Error::from(cut).hint(hint));
    }
    (there <= header.checked_next_multiple_of(ALIGNMENT)?).then(|| {
        Error::misuse(format!(
            "this is a header backup or detached header: it has {there} bytes, but the data begin at byte {data}"
        ))
        .advise(Advice::NameHeader)
    })
}

/// The stores of a volume: one, or two if its header is detached.
pub(super) struct Stored {
    /// The header's store.
    pub header: Arc<dyn Store>,
    /// The data's store, if it is another one.
    pub detached: Option<Arc<dyn Store>>,
}

impl Stored {
    /// One store for header and data.
    pub fn whole(store: &Arc<dyn Store>) -> Self {
        Self { header: Arc::clone(store), detached: None }
    }

    /// A detached header and its data.
    pub fn apart(header: &Arc<dyn Store>, data: &Arc<dyn Store>) -> Self {
        Self { header: Arc::clone(header), detached: Some(Arc::clone(data)) }
    }

    /// Returns the data's store.
    pub fn data(&self) -> &Arc<dyn Store> {
        self.detached.as_ref().unwrap_or(&self.header)
    }
}

/// Why a header backup may belong to another volume: it is refused, unless the restore is forced.
pub(super) struct Doubt {
    /// The doubt, as the beginning of a sentence.
    pub what: String,
    pub hint: &'static str,
}

impl Doubt {
    /// Returns nothing if there is no doubt.
    ///
    /// # Errors
    /// `Misuse` for a doubt, unless the restore is `forced`: then it is a warning.
    pub fn settle(doubt: Option<Self>, forced: bool) -> Result<Option<Warning>> {
        match doubt {
            None => Ok(None),
            Some(Self { what, .. }) if forced => Ok(Some(format!("Forced, even though {what}.").into())),
            Some(Self { what, hint }) => Err(Error::misuse(format!("{what}. Nothing was changed")).hint(hint)),
        }
    }
}

/// Whether anything in the first 64 KiB of the data at `at`, decrypted, does not look random: a boot sector, a superblock, zeros.
/// Then the cipher has the right key.
///
/// # Errors
/// `Io`.
pub(super) fn makes_sense(data: &dyn Store, at: u64, cipher: &dyn SectorCipher) -> Result<bool> {
    Ok(sensible(data, at, cipher)? > 0)
}

/// Returns how many units of 512 bytes in the first 64 KiB of the data do not look random.
///
/// # Errors
/// `Io`.
pub(super) fn sensible(data: &dyn Store, at: u64, cipher: &dyn SectorCipher) -> Result<usize> {
    const LOOKED_AT: u64 = 64 << 10;
    let sector = cipher.sector_size() as u64;
    let len = data.len().saturating_sub(at).min(LOOKED_AT) / sector * sector;
    let mut stored = vec![0; len as usize];
    data.read_at(at, &mut stored)?;
    let mut bytes = Secret::copy_from(&stored);
    cipher.decrypt(0, &mut bytes);
    // Sectors that were never written prove nothing: with CBC, zeros decrypt to a pattern under any key.
    let makes_sense = |(stored, bytes): (&[u8], &[u8])| magic::looks_random(stored) && !magic::looks_random(bytes);
    Ok(stored.chunks(512).zip(bytes.chunks(512)).filter(|both| makes_sense(*both)).count())
}

/// The error for a cipher specification in a header that this program cannot use.
pub(super) fn cipher_error(error: dmcrypt::DmCryptError, offset: u64) -> Error {
    match error {
        dmcrypt::DmCryptError::Unsupported(what) => Error::unsupported(format!("the cipher specification {what}")),
        other => ErrorKind::Malformed { field: "cipher specification", offset, what: other.to_string() }.into(),
    }
}
