//! What LUKS1 and LUKS2 have in common: the areas of keyslots, in which the volume key lies split and encrypted.

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

/// What opened a volume, as a person calls it: a keyslot, or else the volume key itself.
pub(super) fn opened_by(keyslot: Option<u32>) -> String {
    keyslot.map_or("volume key".to_owned(), |number| format!("keyslot {number}"))
}

/// What a keyslot is opened with: a key file is a passphrase of any bytes.
///
/// # Errors
/// `Misuse` for none or several of them; `CredentialKind`.
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

/// How the area of a keyslot is laid out. It is encrypted in sectors of 512 bytes that count from 0 on at its beginning (LUKS1
/// On-Disk Format Specification 1.2.3, section 4.2; LUKS2 On-Disk Format Specification 1.1.1, section 3.2.4).
pub(super) struct Area<'a> {
    /// Where it begins in the store, in bytes.
    pub at: u64,
    /// Size of the volume key in it, in bytes.
    pub key_len: usize,
    /// How often the key is split.
    pub stripes: usize,
    /// The splitter's hash.
    pub hash: &'static Hash,
    /// What it is encrypted with.
    pub cipher: &'a Specification,
}

impl Area<'_> {
    /// The volume key, if `derived` is the right key: nothing in the area tells.
    ///
    /// # Errors
    /// `Io`; `Unsupported` and `Malformed` where the cipher does not fit the key.
    pub fn read(&self, store: &dyn Store, derived: &[u8], with: Acceleration) -> Result<Secret> {
        let mut material = Secret::zeroed(self.len());
        store.read_at(self.at, &mut material)?;
        let cipher = self.cipher.with_key(derived, Sectors::default(), with).map_err(|e| cipher_error(e, self.at))?;
        cipher.decrypt(0, &mut material);
        Ok(afsplit::merge(&material[..self.key_len * self.stripes], self.stripes, self.hash))
    }

    /// What is to be written at `at` so that `derived` opens `key`.
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

    /// Bytes that are encrypted: whole sectors.
    pub fn len(&self) -> usize {
        (self.key_len * self.stripes).next_multiple_of(512)
    }
}

/// What to say of a header whose data are not where it is.
pub(super) fn data_elsewhere() -> Error {
    Error::misuse("this is a detached header: the data are in another file or device").advise(Advice::NameHeader)
}

/// What to say of a file that ends before its data begin, and is a header alone, of `header` bytes: all of it, as backups and detached
/// headers are, or a part. Nothing for one that may have had data.
pub(super) fn header_alone(there: u64, header: u64, data: u64) -> Option<Error> {
    /// What programs align data at: a detached header may be so long.
    const ALIGNMENT: u64 = 1 << 20;
    if there < header {
        let missing = header - there;
        let what = format!(
            "{missing} bytes of the header are missing: it needs {header}, but only {there} are \
             present"
        );
        let cut = ErrorKind::Malformed { field: "length of the file", offset: there, what };
        let hint = "It was cut short, and keyslots may be lost. Look for a longer copy or a header backup.";
        return Some(Error::from(cut).hint(hint));
    }
    (there <= header.checked_next_multiple_of(ALIGNMENT)?).then(|| {
        Error::misuse(format!(
            "this is a header backup or detached header: it has {there} bytes, but the data begin at byte {data}"
        ))
        .advise(Advice::NameHeader)
    })
}

/// What a volume is in: one store, or two where its header is detached.
pub(super) struct Stored {
    /// That of the header.
    pub header: Arc<dyn Store>,
    /// That of the data, if it is another one.
    pub detached: Option<Arc<dyn Store>>,
}

impl Stored {
    /// Header and data in one.
    pub fn whole(store: &Arc<dyn Store>) -> Self {
        Self { header: Arc::clone(store), detached: None }
    }

    /// A detached header, and its data.
    pub fn apart(header: &Arc<dyn Store>, data: &Arc<dyn Store>) -> Self {
        Self { header: Arc::clone(header), detached: Some(Arc::clone(data)) }
    }

    /// That of the data.
    pub fn data(&self) -> &Arc<dyn Store> {
        self.detached.as_ref().unwrap_or(&self.header)
    }
}

/// Why a header backup is not known to be that of the volume: refused, unless somebody insists.
pub(super) struct Doubt {
    /// What is in doubt, without an end.
    pub what: String,
    pub hint: &'static str,
}

impl Doubt {
    /// Nothing if it is known.
    ///
    /// # Errors
    /// `Misuse`, unless it is `forced`: then it is a warning.
    pub fn settle(doubt: Option<Self>, forced: bool) -> Result<Option<Warning>> {
        match doubt {
            None => Ok(None),
            Some(Self { what, .. }) if forced => Ok(Some(format!("Forced, even though {what}.").into())),
            Some(Self { what, hint }) => Err(Error::misuse(format!("{what}. Nothing was changed")).hint(hint)),
        }
    }
}

/// Whether something in the first 64 KiB of the data at byte `at`, decrypted, does not look random: a boot sector, a superblock,
/// zeros. Then the cipher has the right key.
///
/// # Errors
/// `Io`.
pub(super) fn makes_sense(data: &dyn Store, at: u64, cipher: &dyn SectorCipher) -> Result<bool> {
    Ok(sensible(data, at, cipher)? > 0)
}

/// How many units of 512 bytes in the first 64 KiB of the data do so.
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
    // Sectors that were never written prove nothing: in CBC zeros decrypt to a pattern under any key.
    let makes_sense = |(stored, bytes): (&[u8], &[u8])| magic::looks_random(stored) && !magic::looks_random(bytes);
    Ok(stored.chunks(512).zip(bytes.chunks(512)).filter(|both| makes_sense(*both)).count())
}

/// What a cipher specification in a header comes to that this program cannot use.
pub(super) fn cipher_error(error: dmcrypt::DmCryptError, offset: u64) -> Error {
    match error {
        dmcrypt::DmCryptError::Unsupported(what) => Error::unsupported(format!("the cipher specification {what}")),
        other => ErrorKind::Malformed { field: "cipher specification", offset, what: other.to_string() }.into(),
    }
}
