//! Protectors: each opens the volume master key (VMK) in its own way (libbde, "BitLocker Drive Encryption (BDE) format", section
//! "FVE Volume Master Key (VMK)").

use claviger_crypto::{Secret, hash};

use super::datum::{Datum, Key, ProtectorFields, SALT, STRETCH_FIELDS, first, key, kind};
use super::guid::Guid;
use super::metadata::Metadata;
use super::recovery::{self, Typed};
use super::sealed;
use crate::credential::Credential;
use crate::error::{Error, Result};

/// The kind of a protector, as combined bits: TPM and PIN are 0x500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(pub u16);

impl Kind {
    /// A clear key: protection is suspended.
    pub const CLEAR: Self = Self(0);
    pub const TPM: Self = Self(0x0100);
    pub const STARTUP_KEY: Self = Self(0x0200);
    /// Only with a TPM.
    pub const PIN: Self = Self(0x0400);
    pub const RECOVERY: Self = Self(0x0800);
    pub const PASSWORD: Self = Self(0x2000);

    /// Its name for people.
    pub fn name(self) -> String {
        const BITS: [(u16, &str); 6] = [
            (0x0100, "TPM"),
            (0x0400, "PIN"),
            (0x0200, "startup key"),
            (0x0800, "recovery password"),
            (0x1000, "smart card"),
            (0x2000, "password"),
        ];
        if self == Self::CLEAR {
            return "clear key".to_owned();
        }
        let names: Vec<_> = BITS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name).collect();
        match names.is_empty() {
            true => format!("unknown ({:#06x})", self.0),
            false => names.join(" and "),
        }
    }

    /// Whether a TPM opens it, perhaps together with a PIN or a startup key.
    pub fn is_by_tpm(self) -> bool {
        self.0 & !(Self::PIN.0 | Self::STARTUP_KEY.0) == Self::TPM.0
    }

    pub fn has_pin(self) -> bool {
        self.0 & Self::PIN.0 != 0
    }

    pub fn has_startup_key(self) -> bool {
        self.0 & Self::STARTUP_KEY.0 != 0
    }

    /// What it takes beside a password or a file that alone opens it.
    pub fn needs(self) -> Option<&'static str> {
        match (self.has_pin(), self.has_startup_key()) {
            _ if matches!(self, Self::CLEAR | Self::STARTUP_KEY | Self::RECOVERY | Self::PASSWORD) => None,
            (false, false) if self.is_by_tpm() => Some("the TPM of the computer that created it"),
            (true, false) if self.is_by_tpm() => Some("the TPM of the computer that created it and its PIN"),
            (false, true) if self.is_by_tpm() => Some("the TPM of the computer that created it and its startup key"),
            (true, true) if self.is_by_tpm() => {
                Some("the TPM of the computer that created it, its PIN and its startup key")
            }
            _ if self.0 & 0x1000 != 0 => Some("its smart card or certificate"),
            _ => Some("a newer version of this program"),
        }
    }
}

/// A protector in the metadata.
pub(super) struct Protector {
    /// Its number among the protectors, counted from 0.
    pub number: u32,
    /// Its index among the datums.
    pub place: usize,
    pub guid: Guid,
    /// When it was changed, as a Windows file time.
    pub changed: u64,
    pub kind: Kind,
    properties: Vec<Datum>,
}

impl Protector {
    /// Returns all valid protectors, and the errors of the invalid ones.
    pub fn all(metadata: &Metadata) -> (Vec<Self>, Vec<Error>) {
        let (mut all, mut wrong) = (Vec::new(), Vec::new());
        for (number, (place, datum)) in (0..).zip(metadata.protectors()) {
            match Self::of(number, place, datum) {
                Ok(protector) => all.push(protector),
                Err(error) => wrong.push(error),
            }
        }
        (all, wrong)
    }

    /// Reads the protector in a datum.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn of(number: u32, place: usize, datum: &Datum) -> Result<Self> {
        let ProtectorFields { guid, changed, kind } = ProtectorFields::of(datum)?;
        let properties = datum.nested(ProtectorFields::LEN)?;
        Ok(Self { number, place, guid, changed, kind: Kind(kind), properties })
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        format!("{} {{{}}}", self.kind.name(), self.guid)
    }

    /// The salt of its key stretching, if it uses any.
    pub fn salt(&self) -> Option<[u8; SALT]> {
        self.property(kind::STRETCH)?.value.get(4..STRETCH_FIELDS)?.try_into().ok()
    }

    /// Returns the volume master key, if `with` is the right key.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn open(&self, with: &[u8]) -> Result<Option<Secret>> {
        let Some(vmk) = self.property(kind::SEALED) else { return Ok(None) };
        let opened = sealed::open_key(vmk, with)?.map(|key| key.key);
        Ok(opened.filter(|vmk| vmk.len() == super::VMK))
    }

    /// Its first property of this type.
    pub fn property(&self, of_kind: u16) -> Option<&Datum> {
        first(&self.properties, of_kind)
    }

    /// Its clear key.
    pub fn clear_key(&self) -> Option<Secret> {
        let datum = self.property(kind::KEY).filter(|_| self.kind == Kind::CLEAR)?;
        Key::of(datum).ok().filter(|key| key.kind == key::CLEAR && key.key.len() == 32).map(|key| key.key)
    }

    /// Its text of this type.
    pub fn text(&self, kind: u16) -> Option<String> {
        self.properties.iter().find(|datum| datum.kind == kind).map(Datum::text)
    }
}

/// A typed or read secret, prepared for the protectors that it may open.
pub(super) enum Candidate {
    /// The hash of a password, to be stretched.
    Password(Secret),
    /// The hash of a recovery password's key, to be stretched.
    Recovery(Secret),
}

impl Candidate {
    /// Returns everything that a passphrase may be: a password, and a recovery password if it looks like one. The text describes a
    /// mistake in the latter.
    pub fn of(typed: &Secret) -> (Vec<Self>, Option<String>) {
        let mut all: Vec<_> = password_hash(typed).into_iter().map(Self::Password).collect();
        match recovery::read(typed) {
            Typed::Other => (all, None),
            Typed::Mistyped(what) => (all, Some(what)),
            Typed::Keys(keys) => {
                all.extend(keys.iter().map(|key| Self::Recovery(hashed(key))));
                (all, None)
            }
        }
    }

    /// The kind of protectors that it opens.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Password(_) => Kind::PASSWORD,
            Self::Recovery(_) => Kind::RECOVERY,
        }
    }

    /// The 32 bytes to stretch.
    pub fn hash(&self) -> &Secret {
        let (Self::Password(hash) | Self::Recovery(hash)) = self;
        hash
    }
}

/// Hashes a password for stretching: the double SHA-256 of its text in UTF-16. `None` if it is not text.
pub(super) fn password_hash(password: &Secret) -> Option<Secret> {
    utf16(password).map(|text| hashed(&hashed(&text)))
}

/// Returns a text in UTF-16. `None` if it is not text.
pub(super) fn utf16(typed: &[u8]) -> Option<Secret> {
    let text = std::str::from_utf8(typed).ok()?;
    let mut utf16 = Secret::zeroed(2 * text.encode_utf16().count());
    for (bytes, unit) in utf16.chunks_exact_mut(2).zip(text.encode_utf16()) {
        bytes.copy_from_slice(&unit.to_le_bytes());
    }
    Some(utf16)
}

/// Returns the SHA-256.
pub(super) fn hashed(bytes: &[u8]) -> Secret {
    let mut hash = Secret::zeroed(hash::SHA256.size);
    hash::SHA256.digest(&[bytes], &mut hash);
    hash
}

/// The kinds of a volume's protectors, for errors: `password, TPM`.
pub(super) fn kinds(protectors: &[Protector]) -> String {
    let mut names: Vec<_> = protectors.iter().map(|protector| protector.kind.name()).collect();
    names.sort();
    names.dedup();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Returns the startup keys among the credentials. Fails for a file that is not a startup key only if no other file is one.
///
/// # Errors
/// Those of [`super::startup::StartupKey::read`].
pub(super) fn startup_keys(credentials: &[Credential]) -> Result<Vec<super::startup::StartupKey>> {
    let files = credentials.iter().filter_map(|credential| match credential {
        Credential::Keyfile(contents) => Some(super::startup::StartupKey::read(contents)),
        _ => None,
    });
    let (mut keys, mut error) = (Vec::new(), None);
    for read in files {
        match read {
            Ok(key) => keys.push(key),
            Err(e) => error = error.or(Some(e)),
        }
    }
    error.filter(|_| keys.is_empty()).map_or(Ok(keys), Err)
}
