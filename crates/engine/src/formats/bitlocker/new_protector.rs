//! New protectors, as Windows writes them since version 8. What opens each is kept under the volume master key (VMK), so that whoever has
//! that key can seal a new one for every protector.

use std::sync::Mutex;
use std::time::Duration;

use claviger_crypto::Secret;
use claviger_crypto::pool::Pool;
use claviger_crypto::stretch::{Task, stretch_all};

use super::NAME;
use super::datum::{Datum, Key, key, kind, role};
use super::guid::{Guid, filetime};
use super::protectors::{Kind, hashed, password_hash};
use super::recovery::{self, Typed};
use super::sealed::Sealer;
use super::startup::StartupKey;
use crate::credential::Credential;
use crate::error::{Error, ErrorKind, Result};
use crate::random;

/// Characters of the shortest password: Windows takes no shorter one.
const PASSWORD_MIN: usize = 8;

/// Salt of a stretch.
const SALT: usize = 16;
/// Kinds of stretches.
const STRETCHED_PASSWORD: u16 = 0x1001;
const STRETCHED_RECOVERY: u16 = 0x1000;

/// What a new protector is to be opened with.
pub(super) enum NewProtector {
    /// The hash of a password.
    Password(Secret),
    /// The key of a recovery password.
    Recovery(Secret),
    StartupKey(StartupKey),
}

impl NewProtector {
    /// What a credential is: a recovery password is known by its looks.
    ///
    /// # Errors
    /// `Misuse` for a password that is too short, no text, or a mistyped recovery password; `CredentialKind`; those of
    /// [`StartupKey::read`].
    pub fn of(credential: &Credential) -> Result<Self> {
        match credential {
            Credential::Passphrase(typed) => match recovery::read(typed) {
                Typed::Key(key) => Ok(Self::Recovery(key)),
                Typed::Mistyped(what) => Err(Error::misuse(format!("this looks like a recovery password, but {what}"))),
                Typed::Other => Self::password(typed),
            },
            Credential::Keyfile(file) => Ok(Self::StartupKey(StartupKey::read(file)?)),
            Credential::VolumeKey(_) => Err(ErrorKind::CredentialKind { format: NAME, kind: credential.kind() }.into()),
        }
    }

    fn password(typed: &Secret) -> Result<Self> {
        let Some(hash) = password_hash(typed) else {
            return Err(Error::misuse("the password is no text in UTF-8, and nobody could type it in Windows"));
        };
        let characters = std::str::from_utf8(typed).map_or(0, |text| text.chars().count());
        if characters < PASSWORD_MIN {
            return Err(Error::misuse(format!(
                "a password of {characters} characters: {NAME} takes {PASSWORD_MIN} at least"
            )));
        }
        Ok(Self::Password(hash))
    }

    /// The hash that is stretched.
    fn stretched(&self) -> Option<Secret> {
        match self {
            Self::Password(hash) => Some(Secret::copy_from(hash)),
            Self::Recovery(key) => Some(hashed(key)),
            Self::StartupKey(_) => None,
        }
    }
}

/// The datums of new protectors of `vmk`. Their secrets are stretched side by side; `cancelled` is asked now and then.
///
/// # Errors
/// `Cancelled`; `Io` if the system has no random bytes.
pub(super) fn datums(
    new: &[NewProtector],
    vmk: &Secret,
    sealer: &mut Sealer<'_>,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Datum>> {
    let stretched = stretch(new, cancelled)?;
    new.iter().zip(stretched).map(|(new, stretched)| datum(new, vmk, sealer, stretched)).collect()
}

/// A salt, and the key that the secret is stretched to with it.
type Stretched = ([u8; SALT], Secret);

fn stretch(new: &[NewProtector], cancelled: &(dyn Fn() -> bool + Sync)) -> Result<Vec<Option<Stretched>>> {
    let mut salted = Vec::new();
    for hash in new.iter().filter_map(NewProtector::stretched) {
        let mut salt = [0; SALT];
        random::fill(&mut salt)?;
        salted.push((hash, salt));
    }
    let tasks: Vec<_> = salted.iter().map(|(hash, salt)| Task { secret: &hash[..], salt }).collect();
    let keys = Mutex::new(Vec::new());
    let done = |rank: usize, key: Secret| drop(keys.lock().map(|mut keys| keys.push((rank, key))));
    if !stretch_all(&tasks, &Pool::for_this_machine(Duration::ZERO), &|_| !cancelled(), &done) {
        return Err(ErrorKind::Cancelled.into());
    }
    let mut keys = keys.into_inner().unwrap_or_default();
    keys.sort_by_key(|(rank, _)| *rank);
    let mut all = salted.iter().map(|(_, salt)| *salt).zip(keys.into_iter().map(|(_, key)| key));
    Ok(new.iter().map(|new| new.stretched().and_then(|_| all.next())).collect())
}

fn datum(new: &NewProtector, vmk: &Secret, sealer: &mut Sealer<'_>, stretched: Option<Stretched>) -> Result<Datum> {
    let vmk_key = Key { kind: key::VMK, key: Secret::copy_from(vmk) };
    let mut nested = Vec::new();
    let (guid, of_kind) = match (new, stretched) {
        (NewProtector::StartupKey(file), _) => {
            Datum::of_text(role::NONE, "ExternalKey").put(&mut nested);
            let copy = Key { kind: key::EXTERNAL, key: Secret::copy_from(&file.key) };
            let copy = sealer.seal(role::NONE, vmk, &copy);
            with_fields(kind::USE, &numbers(key::EXTERNAL), &[copy]).put(&mut nested);
            sealer.seal(role::NONE, &file.key, &vmk_key).put(&mut nested);
            (file.protector, Kind::STARTUP_KEY)
        }
        (NewProtector::Password(_), Some((salt, stretched))) => {
            let copy = Key { kind: key::STRETCHED_PASSWORD, key: Secret::copy_from(&stretched) };
            let copy = sealer.seal(role::NONE, vmk, &copy);
            let fields = [&numbers(STRETCHED_PASSWORD)[..], &salt].concat();
            with_fields(kind::STRETCH, &fields, &[copy]).put(&mut nested);
            sealer.seal(role::NONE, &stretched, &vmk_key).put(&mut nested);
            (Guid::random()?, Kind::PASSWORD)
        }
        (NewProtector::Recovery(password), Some((salt, stretched))) => {
            let password = Key { kind: key::RECOVERY, key: Secret::copy_from(password) };
            let password = sealer.seal(role::RECOVERY_PASSWORD, vmk, &password);
            let copy = Key { kind: key::STRETCHED_RECOVERY, key: Secret::copy_from(&stretched) };
            let copy = sealer.seal(role::STRETCHED_RECOVERY, vmk, &copy);
            let fields = [&numbers(STRETCHED_RECOVERY)[..], &salt].concat();
            with_fields(kind::STRETCH, &fields, &[password, copy]).put(&mut nested);
            sealer.seal(role::NONE, &stretched, &vmk_key).put(&mut nested);
            (Guid::random()?, Kind::RECOVERY)
        }
        (_, None) => return Err(ErrorKind::Cancelled.into()),
    };
    let mut value = guid.0.to_vec();
    value.extend(filetime::now().to_le_bytes());
    value.extend(0u16.to_le_bytes());
    value.extend(of_kind.0.to_le_bytes());
    value.extend(nested);
    Ok(Datum::new(role::PROTECTOR, kind::PROTECTOR, value))
}

/// A kind, and the 0 behind it.
fn numbers(of_kind: u16) -> [u8; 4] {
    u32::from(of_kind).to_le_bytes()
}

fn with_fields(of_kind: u16, fields: &[u8], nested: &[Datum]) -> Datum {
    let mut value = fields.to_vec();
    nested.iter().for_each(|datum| datum.put(&mut value));
    Datum::new(role::NONE, of_kind, value)
}
