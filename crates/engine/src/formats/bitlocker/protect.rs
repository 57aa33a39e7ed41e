//! Creates protectors. Each holds the volume master key (VMK) encrypted with a key of its own, and this key encrypted with the VMK.
//! So all of them can get a new VMK without anybody's password.

use claviger_crypto::Secret;
use claviger_crypto::stretch::{Task, stretch};

use super::datum::{Datum, Key, SALT, key, kind, role};
use super::guid::{Guid, filetime};
use super::protectors::{Kind, password_hash};
use super::recovery::{self, Typed};
use super::sealed::Sealer;
use super::startup::StartupKey;
use super::tpm::TpmOpener;
use super::{NAME, protectors};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::random;

/// The number of characters in the shortest password that Windows accepts.
const SHORTEST_PASSWORD: usize = 8;

/// The kind of a stretched secret, stored in front of the salt.
mod stretched {
    pub const RECOVERY: u16 = 0x1000;
    pub const PASSWORD: u16 = 0x1001;
}

/// What opens a new protector.
pub(super) enum Opener<'a> {
    /// The hash of a password.
    Password(Secret),
    /// The key of a recovery password.
    Recovery(Secret),
    StartupKey(StartupKey),
    /// A TPM, perhaps with a PIN or a startup key.
    Tpm(TpmOpener<'a>),
    /// Nothing: a new clear key.
    Clear,
}

impl Opener<'_> {
    /// Converts a credential for a new protector. A recovery password is recognised by its form.
    ///
    /// # Errors
    /// `Misuse` for a password that is too short, a recovery password with a mistake, and for more or less than one credential;
    /// `CredentialKind`; those of [`StartupKey::read`].
    pub fn of(credentials: &[Credential]) -> Result<Self> {
        let [credential] = credentials else {
            let what = "a protector takes one password, recovery password or startup key";
            return Err(Error::misuse(format!("{what}; {} were given", credentials.len())));
        };
        match credential {
            Credential::Passphrase(typed) => Self::of_typed(typed),
            Credential::Keyfile(contents) => StartupKey::read(contents).map(Self::StartupKey),
            Credential::VolumeKey(_) | Credential::PrivateKey(_) => {
                Err(ErrorKind::CredentialKind { format: NAME, kind: credential.kind() }.into())
            }
        }
    }

    /// The startup key that is, or is a part of, what opens it.
    pub fn startup_key(&self) -> Option<&StartupKey> {
        match self {
            Self::StartupKey(key) => Some(key),
            Self::Tpm(tpm) => tpm.startup_key.as_ref(),
            Self::Password(_) | Self::Recovery(_) | Self::Clear => None,
        }
    }

    /// Converts a password or recovery password.
    ///
    /// # Errors
    /// `Misuse` for one that is too short or mistyped.
    pub fn of_typed(typed: &Secret) -> Result<Self> {
        match recovery::read(typed) {
            Typed::Keys(mut keys) if keys.len() == 1 => Ok(Self::Recovery(keys.remove(0))),
            Typed::Keys(keys) => Err(Error::misuse(format!(
                "this text has {} recovery passwords, but a protector takes one",
                keys.len()
            ))),
            Typed::Mistyped(what) => Err(Error::misuse(format!("this looks like a recovery password, but {what}"))),
            Typed::Other => password(typed),
        }
    }

    /// The kind of the protectors that it opens.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Password(_) => Kind::PASSWORD,
            Self::Recovery(_) => Kind::RECOVERY,
            Self::StartupKey(_) => Kind::STARTUP_KEY,
            Self::Tpm(tpm) => tpm.kind(),
            Self::Clear => Kind::CLEAR,
        }
    }

    /// Returns a protector that it opens, identified by `guid`, or by the startup key's own GUID.
    ///
    /// # Errors
    /// `Cancelled`; `Io` if the system has no random bytes; those of [`TpmOpener::protector`].
    pub fn protector(&self, guid: Guid, vmk: &Secret, sealer: &mut Sealer<'_>, with: &Unlock<'_>) -> Result<Datum> {
        let mut seal = |role, under: &Secret, kind, key: &Secret| {
            sealer.seal(role, under, &Key { kind, key: Secret::copy_from(key) })
        };
        let (guid, properties, key) = match self {
            Self::Password(hash) => {
                let salt = salt()?;
                let key = stretch_for(hash, &salt, with)?;
                let nested = [seal(role::NONE, vmk, key::STRETCHED_PASSWORD, &key)];
                (guid, vec![of_stretch(stretched::PASSWORD, &salt, &nested)], key)
            }
            Self::Recovery(typed) => {
                let salt = salt()?;
                let key = stretch_for(&protectors::hashed(typed), &salt, with)?;
                let nested = [
                    seal(role::RECOVERY_PASSWORD, vmk, key::RECOVERY, typed),
                    seal(role::STRETCHED_RECOVERY, vmk, key::STRETCHED_RECOVERY, &key),
                ];
                (guid, vec![of_stretch(stretched::RECOVERY, &salt, &nested)], key)
            }
            Self::StartupKey(startup) => {
                let nested = [seal(role::NONE, vmk, key::EXTERNAL, &startup.key)];
                let properties = vec![Datum::of_text(role::NONE, "ExternalKey"), of_use(key::EXTERNAL, &nested)];
                (startup.protector, properties, Secret::copy_from(&startup.key))
            }
            Self::Tpm(tpm) => return tpm.protector(guid, vmk, sealer, with),
            Self::Clear => {
                let key = random::secret(32)?;
                let open = Key { kind: key::CLEAR, key: Secret::copy_from(&key) }.in_clear();
                (guid, vec![open], key)
            }
        };
        let sealed = seal(role::NONE, &key, key::VMK, vmk);
        Ok(of_protector(guid, self.kind(), properties.into_iter().chain([sealed])))
    }
}

/// Stretches the 32 bytes to a key.
///
/// # Errors
/// `Cancelled`.
pub(super) fn stretch_for(secret: &Secret, salt: &[u8; SALT], with: &Unlock<'_>) -> Result<Secret> {
    stretch(Task { secret, salt }, &|_| !with.cancelled()).ok_or_else(|| ErrorKind::Cancelled.into())
}

fn password(typed: &Secret) -> Result<Opener<'static>> {
    let text = std::str::from_utf8(typed).map_err(|_| Error::misuse("a BitLocker password must be UTF-8 text"))?;
    let len = text.chars().count();
    if len < SHORTEST_PASSWORD {
        return Err(Error::misuse(format!(
            "a BitLocker password has at least {SHORTEST_PASSWORD} characters, this one has {len}"
        ))
        .hint("Windows does not accept a shorter one."));
    }
    let hash = password_hash(typed).ok_or_else(|| Error::misuse("a BitLocker password must be UTF-8 text"))?;
    Ok(Opener::Password(hash))
}

pub(super) fn salt() -> Result<[u8; SALT]> {
    let mut salt = [0; SALT];
    random::fill(&mut salt)?;
    Ok(salt)
}

pub(super) fn of_protector(guid: Guid, of_kind: Kind, properties: impl Iterator<Item = Datum>) -> Datum {
    let mut value = guid.0.to_vec();
    value.extend(filetime::now().to_le_bytes());
    value.extend([0, of_kind.0].map(u16::to_le_bytes).as_flattened());
    properties.for_each(|property| property.put(&mut value));
    Datum::new(role::PROTECTOR, kind::PROTECTOR, value)
}

pub(super) fn of_stretch(of_kind: u16, salt: &[u8; SALT], nested: &[Datum]) -> Datum {
    let mut value = [of_kind, 0].map(u16::to_le_bytes).as_flattened().to_vec();
    value.extend(salt);
    nested.iter().for_each(|datum| datum.put(&mut value));
    Datum::new(role::NONE, kind::STRETCH, value)
}

pub(super) fn of_use(of_kind: u16, nested: &[Datum]) -> Datum {
    let mut value = [of_kind, 0].map(u16::to_le_bytes).as_flattened().to_vec();
    nested.iter().for_each(|datum| datum.put(&mut value));
    Datum::new(role::NONE, kind::USE, value)
}
