//! The encryption context of a volume: who opens it, and the volume key in boxes that their keys open (libfvde, "FileVault
//! Drive Encryption (FVDE)", section "The encryption context plist").
//!
//! ```text
//! passphrase ──PBKDF2──▶ key ──unwraps──▶ key-encrypting key ──unwraps──▶ volume key
//!              salt, iterations: PassphraseWrappedKEKStruct      KEKWrappedVolumeKeyStruct
//! ```

use super::describe::FileVault2Conversion;
use super::header::{array, number};
use super::keywrap::WRAPPED;
use super::plist::{Dict, Plist};
use crate::error::{Error, ErrorKind};

/// Bytes of a salt.
pub(super) const SALT: usize = 16;

/// Bytes of a `PassphraseWrappedKEKStruct`, and where its fields are (lib/fvault2/fvault2.c of cryptsetup,
/// `struct passphrase_wrapped_kek`).
const USER_BOX: usize = 284;
const AT_SALT_SIZE: usize = 4;
const AT_SALT: usize = 8;
const AT_KEY_SIZE: usize = 28;
const AT_KEY: usize = 32;
const AT_ITERATIONS: usize = 168;

/// Bytes of a `KEKWrappedVolumeKeyStruct`, and where its fields are (`struct kek_wrapped_volume_key`).
const KEY_BOX: usize = 256;
const AT_VOLUME_KEY_SIZE: usize = 4;
const AT_VOLUME_KEY: usize = 8;

/// The encryption context.
pub(super) struct Context {
    /// Who opens it.
    pub users: Vec<User>,
    /// The volume keys, each wrapped.
    pub keys: Vec<[u8; WRAPPED]>,
    /// How far the volume is encrypted.
    pub conversion: Option<FileVault2Conversion>,
}

/// A passphrase or recovery key that opens it.
pub(super) struct User {
    /// Its UUID.
    pub uuid: Option<String>,
    /// The name of the person.
    pub name: Option<String>,
    /// What is to remind of the passphrase.
    pub hint: Option<String>,
    /// What kind it is: a number that nothing documents.
    pub kind: Option<u64>,
    /// What its passphrase opens; or what is wrong with it.
    pub wrapped: Result<UserBox, Trouble>,
}

/// Something that is damaged or not known: an error that is told only to those whom it is in the way of.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub field: &'static str,
    /// Where it is, in bytes of the store.
    pub at: u64,
    pub what: String,
    /// Whether this program does not know it, rather than that it is damaged.
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

/// The box of a user.
pub(super) struct UserBox {
    pub salt: [u8; SALT],
    pub iterations: u32,
    pub key: [u8; WRAPPED],
}

impl Context {
    /// The context in a property list that was read at byte `at`. Nothing if nobody opens it: then it is not encrypted, or what
    /// opens it is elsewhere.
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
        // cryptsetup does not look at the sizes: 0 says nothing.
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

/// A wrapped volume key. Others are of volumes that are not encrypted, or of a form that is not known.
fn volume_key(bytes: &[u8]) -> Option<[u8; WRAPPED]> {
    let known = bytes.len() == KEY_BOX && [0, WRAPPED as u64].contains(&number(bytes, AT_VOLUME_KEY_SIZE, 4));
    known.then(|| array(bytes, AT_VOLUME_KEY))
}
