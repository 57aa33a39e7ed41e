//! The encryption context of a volume: its users, and the volume key wrapped with their keys (libfvde, "FileVault Drive Encryption
//! (FVDE)", section "The encryption context plist").
//!
//! ```text
//! passphrase ──PBKDF2──▶ key ──unwraps──▶ key-encrypting key ──unwraps──▶ volume key
//!              salt, iterations: PassphraseWrappedKEKStruct      KEKWrappedVolumeKeyStruct
//! ```

use claviger_crypto::key_wrap;
use serde::Serialize;

use super::header::{array, number};
use super::plist::{Dict, Plist};
use crate::error::{Error, ErrorKind};

/// The size of every key, in bytes.
pub(super) const KEY: usize = 16;

/// The size of a wrapped key, in bytes.
const WRAPPED: usize = KEY + key_wrap::OVERHEAD;

/// The size of a salt, in bytes.
pub(super) const SALT: usize = 16;

/// The size of a `PassphraseWrappedKEKStruct` in bytes, and the offsets of its fields (lib/fvault2/fvault2.c of cryptsetup, `struct
/// passphrase_wrapped_kek`).
const USER_BOX: usize = 284;
const AT_SALT_SIZE: usize = 4;
const AT_SALT: usize = 8;
const AT_KEY_SIZE: usize = 28;
const AT_KEY: usize = 32;
const AT_ITERATIONS: usize = 168;

/// The size of a `KEKWrappedVolumeKeyStruct` in bytes, and the offsets of its fields (`struct kek_wrapped_volume_key`).
const KEY_BOX: usize = 256;
const AT_VOLUME_KEY_SIZE: usize = 4;
const AT_VOLUME_KEY: usize = 8;

/// The encryption context.
pub(super) struct Context {
    /// The users that can open it.
    pub users: Vec<User>,
    /// The volume keys, each wrapped.
    pub keys: Vec<[u8; WRAPPED]>,
    /// How far the volume is encrypted.
    pub conversion: Option<FileVault2Conversion>,
}

/// How far a FileVault 2 volume is encrypted, in Core Storage's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum FileVault2Conversion {
    /// Encrypted from the start.
    NoConversion,
    /// Encrypted by a conversion that is complete.
    Complete,
    /// Another state: only a part is encrypted.
    #[serde(untagged)]
    Other(String),
}

impl From<&str> for FileVault2Conversion {
    fn from(word: &str) -> Self {
        match word {
            "NoConversion" => Self::NoConversion,
            "Complete" => Self::Complete,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// A user that can open it, by a passphrase or recovery key.
pub(super) struct User {
    /// Its UUID.
    pub uuid: Option<String>,
    /// The person's name.
    pub name: Option<String>,
    /// The passphrase hint.
    pub hint: Option<String>,
    /// The kind of user: an undocumented number.
    pub kind: Option<u64>,
    /// The key that its passphrase opens, or its damage.
    pub wrapped: Result<UserBox, Trouble>,
}

/// Damaged or unknown data, reported as an error only if they are needed.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub field: &'static str,
    /// The offset, in bytes of the store.
    pub at: u64,
    pub what: String,
    /// Whether the data are unknown to this program rather than damaged.
    pub unknown: bool,
}

impl Trouble {
    pub fn error(self) -> Error {
        let Self { field, at, what, unknown } = self;
        match unknown {
            true => Error::unsupported(what),
            false => ErrorKind::Malformed { field, offset: at, what }.into(),
        }
    }
}

/// The wrapped key of a user.
pub(super) struct UserBox {
    pub salt: [u8; SALT],
    pub iterations: u32,
    pub key: [u8; WRAPPED],
}

impl Context {
    /// Returns the context in a property list that was read at the offset `at`. `None` if it has no users: then the volume is not
    /// encrypted, or the context is elsewhere.
    pub fn of(list: &Plist, at: u64) -> Option<Self> {
        let user = |dict: Dict<'_>| {
            let bytes = dict.text("PassphraseWrappedKEKStruct").map(|_| dict.data("PassphraseWrappedKEKStruct"))?;
            let text = |key| dict.text(key).filter(|text| !text.is_empty()).map(str::to_owned);
            Some(User {
                uuid: text("UserIdent"),
                name: text("UserFullName"),
                hint: text("PassphraseHint"),
                kind: dict.number("UserType"),
                wrapped: UserBox::parse(bytes.as_deref().unwrap_or_default(), at),
            })
        };
        let users: Vec<_> = list.dicts().filter_map(user).collect();
        let keys = list.dicts().filter_map(|dict| volume_key(&dict.data("KEKWrappedVolumeKeyStruct")?)).collect();
        let conversion = list.text("ConversionStatus").map(Into::into);
        (!users.is_empty()).then_some(Self { users, keys, conversion })
    }

    /// Whether only a part of the volume is encrypted.
    pub fn half_way(&self) -> bool {
        matches!(self.conversion, Some(FileVault2Conversion::Other(_)))
    }
}

impl UserBox {
    fn parse(bytes: &[u8], at: u64) -> Result<Self, Trouble> {
        let trouble = |what, unknown| Trouble { field: "PassphraseWrappedKEKStruct", at, what, unknown };
        if bytes.len() != USER_BOX {
            return Err(trouble(format!("{} bytes, not {USER_BOX}", bytes.len()), false));
        }
        // cryptsetup ignores the sizes; 0 means nothing.
        let [salt, key] = [AT_SALT_SIZE, AT_KEY_SIZE].map(|at| number(bytes, at, 4));
        if ![0, SALT as u64].contains(&salt) || ![0, WRAPPED as u64].contains(&key) {
            return Err(trouble(format!("a salt of {salt} bytes and a wrapped key of {key} bytes"), true));
        }
        let iterations = number(bytes, AT_ITERATIONS, 4) as u32;
        if iterations == 0 {
            return Err(trouble("PBKDF2 without iterations".to_owned(), false));
        }
        Ok(Self { salt: array(bytes, AT_SALT), iterations, key: array(bytes, AT_KEY) })
    }
}

/// Returns a wrapped volume key. Others belong to unencrypted volumes, or have an unknown form.
fn volume_key(bytes: &[u8]) -> Option<[u8; WRAPPED]> {
    let known = bytes.len() == KEY_BOX && [0, WRAPPED as u64].contains(&number(bytes, AT_VOLUME_KEY_SIZE, 4));
    known.then(|| array(bytes, AT_VOLUME_KEY))
}
