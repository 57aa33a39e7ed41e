//! The file in which a folder's passphrase is wrapped by another one, as a login's: `~/.ecryptfs/wrapped-passphrase` (ecryptfs-utils 111,
//! src/libecryptfs/key_management.c).
//!
//! Version 2 begins with `:` and the number 2, then the salt (8 bytes). Then, as in all of version 1, follow the signature of the wrapping
//! key in 16 hexadecimal digits, and the passphrase, filled up with zeros and in AES-128-ECB.

use std::fs;
use std::path::Path;

use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, Secret};

use super::suite::Suite;
use super::token::{self, LONGEST, Salt, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::{hex, random, store};

const VERSION_2: [u8; 2] = [b':', 2];

/// Bytes of the signature's digits.
const SIGNATURE: usize = 16;

const BLOCK: usize = 16;

/// More than any such file has, in bytes.
const FILE_MOST: u64 = 4096;

/// The parts of such a file.
struct Parts<'a> {
    salt: Salt,
    signature: &'a [u8],
    sealed: &'a [u8],
}

/// The passphrase in `file`, the contents of a file `wrapped-passphrase` of version 1 or 2.
///
/// # Errors
/// `Malformed`; `WrongCredential` if it is wrapped by another passphrase than `wrapping`.
pub fn unwrap_passphrase(file: &[u8], wrapping: &Secret) -> Result<Secret> {
    let Parts { salt, signature, sealed } = Parts::of(file)?;
    let token = Token::derive(wrapping, salt)?;
    if !hex::digits(&token.signature).as_bytes().eq_ignore_ascii_case(signature) {
        let what = "the passphrase does not unwrap the one of the folder";
        return Err(Error::new(ErrorKind::WrongCredential(what.into()))
            .hint("It is the login's at the time when the folder's was wrapped."));
    }
    let mut passphrase = Secret::copy_from(sealed);
    token.cipher(Suite::default(), Acceleration::On).decrypt_blocks(&mut passphrase);
    let len = passphrase.iter().position(|byte| *byte == 0).unwrap_or(passphrase.len());
    let passphrase = Secret::copy_from(&passphrase[..len]);
    wipe_stack();
    Ok(passphrase)
}

/// The contents of a file `wrapped-passphrase` of version 2, in which `wrapping` wraps `passphrase`.
///
/// # Errors
/// `Misuse` for a passphrase that is empty or longer than 64 bytes, or has a zero in it, which would be its end; `Io` if the system
/// has no random bytes.
pub fn wrap_passphrase(passphrase: &Secret, wrapping: &Secret) -> Result<Vec<u8>> {
    for (what, passphrase) in [("passphrase", passphrase), ("new wrapping passphrase", wrapping)] {
        if !(1..=LONGEST).contains(&passphrase.len()) || passphrase.contains(&0) {
            return Err(Error::misuse(format!("the {what} must have 1 to {LONGEST} bytes, none of them zero")));
        }
    }
    let mut salt = Salt::default();
    random::fill(&mut salt)?;
    let token = Token::derive(wrapping, salt)?;
    let mut sealed = Secret::zeroed(passphrase.len().next_multiple_of(BLOCK));
    sealed[..passphrase.len()].copy_from_slice(passphrase);
    token.cipher(Suite::default(), Acceleration::On).encrypt_blocks(&mut sealed);
    wipe_stack();
    Ok([&VERSION_2[..], &salt, hex::digits(&token.signature).as_bytes(), &sealed].concat())
}

/// Writes the file at `path` anew, with `new` in the place of `old`. The file is whole at every moment, the old one or the new one, and keeps
/// its owner and its permissions.
///
/// # Errors
/// Those of [`unwrap_passphrase`] and [`wrap_passphrase`]; `Io`.
pub fn rewrap_passphrase(path: &Path, old: &Secret, new: &Secret) -> Result<()> {
    let rewrap = || {
        // Where a link leads to, so that it stays one.
        let path = &fs::canonicalize(path)?;
        let passphrase = unwrap_passphrase(&read_wrapped(path)?, old)?;
        Ok(store::files::replace_as_owned(path, &wrap_passphrase(&passphrase, new)?)?)
    };
    rewrap().map_err(|e: Error| e.at(path))
}

/// The contents of the file at `path`, if it can be such a file at all.
///
/// # Errors
/// `Io`; `Malformed` if it is too long, or none that could be read.
pub fn read_wrapped(path: &Path) -> Result<Vec<u8>> {
    let read = || -> Result<Vec<u8>> {
        let file = store::files::open_regular(path)?;
        let bytes = file.map(|file| store::files::read_at_most(file, FILE_MOST)).transpose()?.flatten();
        bytes.ok_or_else(|| malformed("file", 0, "it is no wrapped passphrase"))
    };
    read().map_err(|e| e.at(path))
}

/// See [`crate::fuzzing`]: all but the derivation of a key.
pub(crate) fn fuzz_wrapped(file: &[u8]) {
    let _ = Parts::of(file);
}

impl<'a> Parts<'a> {
    fn of(file: &'a [u8]) -> Result<Self> {
        let (salt, rest, at) = match file.strip_prefix(&VERSION_2) {
            Some(rest) => {
                let (salt, rest) =
                    rest.split_first_chunk().ok_or_else(|| malformed("salt", 2, "the file ends within it"))?;
                (*salt, rest, 10)
            }
            None => (token::SALT, file, 0),
        };
        let Some((signature, sealed)) = rest.split_at_checked(SIGNATURE) else {
            return Err(malformed("signature", at, "the file ends within it"));
        };
        if !signature.iter().all(u8::is_ascii_hexdigit) {
            return Err(malformed("signature", at, "it is not made of hexadecimal digits"));
        }
        if sealed.is_empty() || sealed.len() > LONGEST || !sealed.len().is_multiple_of(BLOCK) {
            let what = format!("it has {} bytes, not 16, 32, 48 or 64", sealed.len());
            return Err(malformed("passphrase", at + SIGNATURE as u64, what));
        }
        Ok(Self { salt, signature, sealed })
    }
}

fn malformed(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field, offset, what: what.into() }.into()
}
