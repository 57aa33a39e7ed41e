//! The file in which a folder's passphrase is wrapped by another one, as a login's: `~/.ecryptfs/wrapped-passphrase` (ecryptfs-utils 111,
//! src/libecryptfs/key_management.c).
//!
//! Version 2 begins with `:` and the number 2, then the salt (8 bytes). Then, as in all of version 1, follow the signature of the wrapping
//! key in 16 hexadecimal digits, and the passphrase, filled up with zeros and in AES-128-ECB.
//!
//! crouton, which puts Linux beside ChromeOS, has two of them in one file, behind a line of text: the passphrase of contents, and that of
//! names. A Synology NAS exports the passphrase of an encrypted shared folder so, in a file `.key`, under a passphrase that is the same on
//! all of them and known since people have written scripts that use it.

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

/// The longest line in front of passphrases, in bytes.
const LINE_MOST: usize = 256;

/// What wraps the passphrase in the key file of every Synology NAS.
const SYNOLOGY: &[u8] = b"$1$5YN01o9y";

/// The passphrases that were wrapped in a file.
pub(super) struct Unwrapped {
    pub contents: Secret,
    /// That of names, where it has one of its own.
    pub names: Option<Secret>,
}

/// The passphrases in `file`, which any of these wraps: a password that was given, or that of Synology.
///
/// # Errors
/// Those of [`unwrap_passphrase`].
pub(super) fn unwrap(file: &[u8], wrapping: Option<&Secret>) -> Result<Unwrapped> {
    let (_, contents, names) = Parts::all(file)?;
    let synology = Secret::copy_from(SYNOLOGY);
    let wrong = |e: &Error| matches!(e.kind, ErrorKind::WrongCredential(_));
    let opened = |with: &Secret| contents.unwrap(with).map(|contents| (contents, Secret::copy_from(with)));
    let (contents, with) = match wrapping.map(opened) {
        None => opened(&synology)?,
        Some(Err(e)) if wrong(&e) => opened(&synology).map_err(|_| e)?,
        Some(done) => done?,
    };
    let names = names.map(|names| names.unwrap(&with)).transpose()?;
    Ok(Unwrapped { contents, names })
}

/// Whether `file` is the key file of a Synology NAS, which needs no password.
///
/// # Errors
/// `Malformed` if it holds no wrapped passphrase.
pub fn is_synology_key(file: &[u8]) -> Result<bool> {
    let (_, contents, _) = Parts::all(file)?;
    Ok(contents.unwrap(&Secret::copy_from(SYNOLOGY)).is_ok())
}

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
    let (_, contents, _) = Parts::all(file)?;
    contents.unwrap(wrapping)
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
        let file = read_wrapped(path)?;
        let (line, contents, names) = Parts::all(&file)?;
        let mut fresh = line.to_vec();
        for part in [Some(contents), names].into_iter().flatten() {
            fresh.extend(wrap_passphrase(&part.unwrap(old)?, new)?);
        }
        Ok(store::files::replace_as_owned(path, &fresh)?)
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
        bytes.ok_or_else(|| malformed("file", 0, "it is not a wrapped passphrase"))
    };
    read().map_err(|e| e.at(path))
}

/// See [`crate::fuzzing`]: all but the derivation of a key.
pub(crate) fn fuzz_wrapped(file: &[u8]) {
    let _ = Parts::all(file);
}

impl<'a> Parts<'a> {
    /// The line in front, if there is one, the passphrase for contents, and that for names, if they have their own.
    fn all(file: &'a [u8]) -> Result<(&'a [u8], Self, Option<Self>)> {
        let whole = match Self::several(file) {
            Ok((contents, names)) => return Ok((&[], contents, names)),
            Err(e) => e,
        };
        let line = file.iter().take(LINE_MOST).position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (line, rest) = file.split_at(line);
        Self::several(rest).map(|(contents, names)| (line, contents, names)).map_err(|_| whole)
    }

    /// Two passphrases, where a second one begins, or one. That encrypted bytes look like a beginning is as good as impossible.
    fn several(bytes: &'a [u8]) -> Result<(Self, Option<Self>)> {
        let mut ends = (0..bytes.len()).rev().filter(|at| bytes.len() - at > SIGNATURE);
        let two = ends.find_map(|at| {
            let (first, second) = bytes.split_at(at);
            Some((Self::of(first).ok()?, Some(Self::of(second).ok()?)))
        });
        two.map_or_else(|| Ok((Self::of(bytes)?, None)), Ok)
    }

    fn unwrap(&self, wrapping: &Secret) -> Result<Secret> {
        let Self { salt, signature, sealed } = self;
        let token = Token::derive(wrapping, *salt)?;
        if !hex::digits(&token.signature).as_bytes().eq_ignore_ascii_case(signature) {
            let what = "this passphrase does not unwrap the folder's passphrase";
            return Err(Error::new(ErrorKind::WrongCredential(what.into()))
                .hint("Use the login passphrase of the time when the folder's passphrase was wrapped."));
        }
        let mut passphrase = Secret::copy_from(sealed);
        token.cipher(Suite::default(), Acceleration::On).decrypt_blocks(&mut passphrase);
        let len = passphrase.iter().position(|byte| *byte == 0).unwrap_or(passphrase.len());
        let passphrase = Secret::copy_from(&passphrase[..len]);
        wipe_stack();
        Ok(passphrase)
    }

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
            return Err(malformed("signature", at, "it is not hexadecimal"));
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
