//! The file that holds a folder's passphrase wrapped with another one, such as a login password: `~/.ecryptfs/wrapped-passphrase`
//! (ecryptfs-utils 111, src/libecryptfs/key_management.c).
//!
//! Version 2 begins with `:`, the number 2 and the salt (8 bytes). The rest is the same as the whole of version 1: the signature of
//! the wrapping key in 16 hexadecimal digits, then the passphrase, padded with zeros and encrypted with AES-128-ECB.
//!
//! crouton, which installs Linux beside ChromeOS, has two passphrases in one file, behind a line of text: for contents and for
//! names. A Synology NAS exports the passphrase of an encrypted shared folder in this format, as a `.key` file. Its wrapping
//! passphrase is the same on all devices, and published scripts use it.

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

/// The largest such file, in bytes.
const FILE_MOST: u64 = 4096;

/// The longest line in front of passphrases, in bytes.
const LINE_MOST: usize = 256;

/// The passphrase that wraps the key file of every Synology NAS.
const SYNOLOGY: &[u8] = b"$1$5YN01o9y";

/// The passphrases in a file, unwrapped.
pub(super) struct Unwrapped {
    pub contents: Secret,
    /// The passphrase for names, if there is a separate one.
    pub names: Option<Secret>,
}

/// Unwraps the passphrases in `file` with the given password, or with Synology's.
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

/// One wrapped passphrase in a file.
struct Parts<'a> {
    salt: Salt,
    signature: &'a [u8],
    sealed: &'a [u8],
}

/// Unwraps the passphrase in `file`, the contents of a `wrapped-passphrase` file of version 1 or 2.
///
/// # Errors
/// `Malformed`; `WrongCredential` if `wrapping` is not the wrapping passphrase.
pub fn unwrap_passphrase(file: &[u8], wrapping: &Secret) -> Result<Secret> {
    let (_, contents, _) = Parts::all(file)?;
    contents.unwrap(wrapping)
}

/// Returns the contents of a `wrapped-passphrase` file of version 2, in which `wrapping` wraps `passphrase`.
///
/// # Errors
/// `Misuse` if the passphrase is empty, is longer than 64 bytes or contains a zero, which would end it; `Io` if the system has no
/// random bytes.
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

/// Rewrites the file at `path` with `new` in place of `old`. At every moment the file is whole, either old or new. It keeps its
/// owner and permissions.
///
/// # Errors
/// Those of [`unwrap_passphrase`] and [`wrap_passphrase`]; `Io`.
pub fn rewrap_passphrase(path: &Path, old: &Secret, new: &Secret) -> Result<()> {
    let rewrap = || {
        // The target of a link, so that the link itself stays.
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

/// Reads the file at `path`, if its size and type fit.
///
/// # Errors
/// `Io`; `Malformed` if the file is too long or is not a regular file.
pub fn read_wrapped(path: &Path) -> Result<Vec<u8>> {
    let read = || -> Result<Vec<u8>> {
        let file = store::files::open_regular(path)?;
        let bytes = file.map(|file| store::files::read_at_most(file, FILE_MOST)).transpose()?.flatten();
        bytes.ok_or_else(|| malformed("file", 0, "it is not a wrapped passphrase"))
    };
    read().map_err(|e| e.at(path))
}

/// See [`crate::fuzzing`]: everything except key derivation.
pub(crate) fn fuzz_wrapped(file: &[u8]) {
    let _ = Parts::all(file);
}

impl<'a> Parts<'a> {
    /// The line in front, if any, the passphrase for contents, and the one for names, if separate.
    fn all(file: &'a [u8]) -> Result<(&'a [u8], Self, Option<Self>)> {
        let whole = match Self::several(file) {
            Ok((contents, names)) => return Ok((&[], contents, names)),
            Err(e) => e,
        };
        let line = file.iter().take(LINE_MOST).position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (line, rest) = file.split_at(line);
        Self::several(rest).map(|(contents, names)| (line, contents, names)).map_err(|_| whole)
    }

    /// One passphrase, or two if a second one begins in `bytes`. Encrypted bytes practically never look like a beginning.
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
