//! The files of an unlocked folder.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use claviger_crypto::modes::EcryptfsCbc;
use claviger_crypto::secret::wipe_after_sectors;
use claviger_crypto::{Acceleration, BlockCipher, Secret, SectorCipher};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::UNPROVEN;
use super::header::{self, Header, HeaderLocation, New};
use super::names::{self, Names};
use super::stored::{self, ATTRIBUTE, File};
use super::suite::Suite;
use super::token::{self, Signature, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::file_formats::{FileKeys, FileKind, FileLayout, StoredFile, no_name};
use crate::key_process::folder::{FolderKeyHandle, FolderKeyProcess, FolderKeys, KeylessFolder};
use crate::trees::{Setting, damaged};
use crate::volume::{Layout, Payload, Segment};
use crate::{hex, random};

/// A folder that was unlocked: what is known of its keys, and what uses them.
pub(super) struct Keys {
    keys: Arc<dyn FolderKeys>,
    public: Public,
}

/// What anybody may know of them.
#[derive(Clone, Serialize, Deserialize)]
struct Public {
    /// Those of contents. None only where files are shown as they are stored.
    signatures: Vec<Signature>,
    /// None where names are in clear.
    names: Option<PublicNames>,
    /// Where headers of new files are.
    place: HeaderLocation,
    view: View,
    /// Whether there was no file or name that shows them to be right.
    unproven: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct PublicNames {
    signature: Signature,
    /// Size of their cipher's blocks, in bytes.
    block: usize,
}

/// The keys themselves.
pub(super) struct Secrets {
    /// None only where files are shown as they are stored.
    pub tokens: Vec<Token>,
    /// What keys of files are under, made when it is needed: expanding a key takes longer than using it once.
    pub sealers: Sealers,
    /// None where names are in clear.
    pub names: Option<Names>,
    pub new_files: NewFiles,
    pub acceleration: Acceleration,
}

/// How new files are made.
#[derive(Clone, Copy)]
pub(super) struct NewFiles {
    pub suite: Suite,
    pub place: HeaderLocation,
    /// They open with the first ones of the tokens, so many of them.
    pub tokens: usize,
}

/// How files are shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum View {
    /// In clear; what is none of the format's is refused.
    Plain,
    /// In clear; what is none of the format's as it is.
    Passthrough,
    /// As they are stored, with the header in front.
    Encrypted,
}

/// Ciphers under tokens, by the token's place in the list.
#[derive(Default)]
pub(super) struct Sealers(RwLock<Vec<Sealer>>);

type Sealer = (usize, Suite, Arc<dyn BlockCipher>);

impl Sealers {
    fn get(&self, at: usize, suite: Suite, make: impl FnOnce() -> Box<dyn BlockCipher>) -> Arc<dyn BlockCipher> {
        let known = |all: &[Sealer]| {
            all.iter().find(|(of, with, _)| (*of, *with) == (at, suite)).map(|(_, _, cipher)| cipher.clone())
        };
        if let Some(cipher) = known(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return cipher;
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known(&all).unwrap_or_else(|| {
            let cipher: Arc<dyn BlockCipher> = make().into();
            all.push((at, suite, cipher.clone()));
            cipher
        })
    }
}

impl Secrets {
    /// None at all: they show a folder as it is stored.
    pub fn none(acceleration: Acceleration) -> Self {
        let new_files = NewFiles { suite: Suite::default(), place: HeaderLocation::File, tokens: 0 };
        Self { tokens: Vec::new(), sealers: Sealers::default(), names: None, new_files, acceleration }
    }

    fn sealer(&self, at: usize, suite: Suite) -> Arc<dyn BlockCipher> {
        self.sealers.get(at, suite, || self.tokens[at].cipher(suite, self.acceleration))
    }

    /// What encrypts a file with this key.
    fn payload(&self, key: &[u8], suite: Suite) -> Payload {
        let cipher = EcryptfsCbc::new(suite.cipher().with_key(key, self.acceleration), key);
        wipe_after_sectors();
        let cipher: Arc<dyn SectorCipher> = Arc::new(cipher);
        Payload::crypt(cipher, 0)
    }

    fn names(&self) -> io::Result<&Names> {
        self.names.as_ref().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl FolderKeys for Secrets {
    fn open(&self, sealed: &[u8]) -> io::Result<Payload> {
        let none = || io::Error::from(io::ErrorKind::InvalidInput);
        let ([signature @ .., code], sealed) = sealed.split_first_chunk::<9>().ok_or_else(none)?;
        let suite = Suite::of_file(*code, sealed.len()).map_err(|_| none())?;
        let at = self.tokens.iter().position(|token| token.signature == *signature).ok_or_else(none)?;
        let mut opened = Secret::copy_from(sealed);
        self.sealer(at, suite).decrypt_blocks(&mut opened);
        Ok(self.payload(&opened[..suite.key_bytes], suite))
    }

    fn create(&self) -> io::Result<(Vec<u8>, Payload)> {
        let NewFiles { suite, place, tokens } = self.new_files;
        // What is stored beyond the key's own bytes, of AES-192, is zero.
        let mut key = Secret::zeroed(suite.sealed_bytes());
        random::fill(&mut key[..suite.key_bytes])?;
        let seal = |(at, token): (usize, &Token)| {
            // Encrypted where nothing is written of it in clear.
            let mut sealed = Secret::copy_from(&key);
            self.sealer(at, suite).encrypt_blocks(&mut sealed);
            (token.salt, token.signature, sealed.to_vec())
        };
        let keys: Vec<_> = self.tokens[..tokens].iter().enumerate().map(seal).collect();
        let mut marker = [0; 4];
        random::fill(&mut marker)?;
        let header = New { place, encrypted_names: self.names.is_some(), marker, suite, keys: &keys }.bytes();
        Ok((header, self.payload(&key[..suite.key_bytes], suite)))
    }

    fn plain_name(&self, stored: &OsStr) -> io::Result<Option<OsString>> {
        self.names().map(|names| names.plain(stored))
    }

    fn stored_name(&self, plain: &OsStr) -> io::Result<OsString> {
        self.names().map(|names| names.stored(plain))
    }
}

impl Keys {
    /// With the keys in this process.
    pub fn new(secrets: Secrets, view: View, unproven: bool) -> Self {
        let signatures = secrets.tokens.iter().map(|token| token.signature).collect();
        let names = secrets.names.as_ref();
        let names = names.map(|names| PublicNames { signature: names.signature(), block: names.block() });
        let public = Public { signatures, names, place: secrets.new_files.place, view, unproven };
        Self { keys: Arc::new(secrets), public }
    }

    /// With the keys in another one.
    pub fn with_key_process(outline: KeylessFolder, key_process: Arc<dyn FolderKeyProcess>) -> Result<Self> {
        let keys = Arc::new(FolderKeyHandle::new(key_process, &outline));
        let public = Public::deserialize(outline.of_format).map_err(io::Error::from)?;
        Ok(Self { keys, public })
    }

    /// A file with this header, which opens. If it ends before its contents would begin, its making was cut short.
    fn found(&self, of: StoredFile<'_>, place: HeaderLocation, header: &Header<'_>) -> Result<FileKind> {
        let layout = self.open(header)?;
        let empty = place == HeaderLocation::File && header.size == 0;
        let unfinished = empty && of.tree.attributes(of.contents)?.size < header.data_at;
        Ok(if unfinished { FileKind::Unfinished } else { FileKind::Encrypted(layout) })
    }

    /// The layout of a file with this header.
    fn open(&self, header: &Header<'_>) -> Result<FileLayout> {
        let key = header.keys.iter().find(|key| self.public.signatures.contains(&key.signature));
        let key = key.ok_or_else(|| not_for_us(header))?;
        layout_of(self.keys.open(&key.sealed())?, header.data_at, header.size)
    }

    /// A file as it is stored, whose header is in an attribute: in front of it.
    fn with_header_in_front(of: StoredFile<'_>, attribute: &[u8]) -> Result<FileKind> {
        let stored = of.tree.attributes(of.contents)?.size;
        let header = header::in_front(attribute);
        let front = header.len() as u64;
        let fixed = Payload::Fixed(header.into());
        let mut segments = vec![Segment { at: 0, len: front, stored_at: 0, payload: fixed, writable: false }];
        if stored > 0 {
            let payload = Payload::Clear;
            segments.push(Segment { at: front, len: stored, stored_at: 0, payload, writable: false });
        }
        Ok(FileKind::Encrypted(FileLayout::new(Layout::new(segments)?, front + stored)?))
    }

    /// A name as it is stored, of at most so many bytes.
    fn stored(&self, plain: &OsStr, most: usize) -> io::Result<OsString> {
        if self.public.names.is_none() {
            return Ok(plain.to_owned());
        }
        let stored = self.keys.stored_name(plain)?;
        if stored.len() > most { Err(Errno::NAMETOOLONG.into()) } else { Ok(stored) }
    }

    fn foreign(&self) -> Result<FileKind> {
        match self.public.view {
            View::Passthrough | View::Encrypted => Ok(FileKind::Clear),
            View::Plain => {
                let what = "not an eCryptfs file: no header in front or in an extended attribute";
                Err(Error::new(ErrorKind::NotThisFormat(what.into()))
                    .hint("Unencrypted files can be shown on request."))
            }
        }
    }
}

/// The layout of a file whose contents, encrypted so, begin at `stored_at`.
fn layout_of(payload: Payload, stored_at: u64, size: u64) -> Result<FileLayout> {
    let len = header::largest(stored_at);
    let layout = Layout::new(vec![Segment { at: 0, len, stored_at, payload, writable: true }])?;
    Ok(FileLayout::new(layout, size)?)
}

/// A file or folder of a mode that is not supported.
pub(super) fn public_keys(what: &str, signatures: &str) -> Error {
    Error::unsupported(format!("public keys (eCryptfs's openssl module): {what} encrypted for {signatures}"))
}

fn not_for_us(header: &Header<'_>) -> Error {
    if header.keys.is_empty() {
        let public = token::listed(&header.public);
        return public_keys("this file is", &public);
    }
    let signatures = token::listed(header.keys.iter().map(|key| &key.signature));
    ErrorKind::WrongCredential(format!("the file is encrypted with another key, whose signature is {signatures}"))
        .into()
}

impl FileKeys for Keys {
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        let found = stored::look(of, |file| match (file, self.public.view) {
            (File::Encrypted(HeaderLocation::Attribute, _, bytes), View::Encrypted) => {
                Self::with_header_in_front(of, bytes)
            }
            (_, View::Encrypted) | (File::Blank, View::Passthrough) => Ok(FileKind::Clear),
            (File::Encrypted(place, header, _), _) => self.found(of, place, &header),
            (File::Unfinished | File::Blank, _) => Ok(FileKind::Unfinished),
            (File::Foreign, _) => self.foreign(),
            (File::Bad(why), _) => Err(why.into()),
        })?;
        Ok(found?)
    }

    fn size(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        stored::look(of, |file| match (file, self.public.view) {
            (File::Encrypted(HeaderLocation::Attribute, ..), View::Encrypted) => {
                of.tree.attributes(of.contents).map(|stored| Some(header::HEADER + stored.size))
            }
            (_, View::Encrypted) | (File::Blank, View::Passthrough) | (File::Foreign, _) => Ok(None),
            (File::Encrypted(_, header, _), _) => Ok(Some(header.size)),
            (File::Unfinished | File::Blank, _) => Ok(Some(0)),
            (File::Bad(why), _) => Err(Error::from(why).into()),
        })?
    }

    fn begin(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        let (bytes, payload) = self.keys.create()?;
        let data_at = match self.public.place {
            HeaderLocation::File => {
                of.tree.write_at(of.contents, 0, &bytes)?;
                header::HEADER
            }
            HeaderLocation::Attribute => {
                of.tree.set_extended(of.file, ATTRIBUTE.as_ref(), &bytes, Setting::Any)?;
                0
            }
        };
        Ok(FileKind::Encrypted(layout_of(payload, data_at, 0)?))
    }

    fn set_size(&self, of: StoredFile<'_>, size: u64) -> io::Result<()> {
        let attribute = stored::look(of, |file| match file {
            File::Encrypted(HeaderLocation::File, ..) => Ok(None),
            // All of it, also what is behind what is read of it.
            File::Encrypted(HeaderLocation::Attribute, ..) => stored::attribute(of),
            _ => Err(damaged("header", 0, "it was there when the file was opened, but is gone")),
        })??;
        match attribute {
            None => of.tree.write_at(of.contents, 0, &size.to_be_bytes()),
            Some(mut bytes) => {
                bytes[..8].copy_from_slice(&size.to_be_bytes());
                of.tree.set_extended(of.file, ATTRIBUTE.as_ref(), &bytes, Setting::Replace)
            }
        }
    }

    fn plain_name(&self, stored: &OsStr) -> io::Result<Option<OsString>> {
        if self.public.names.is_none() { Ok(Some(stored.to_owned())) } else { self.keys.plain_name(stored) }
    }

    fn why_no_name(&self, stored: &OsStr) -> Error {
        let ours = self.public.names.as_ref().map(|names| names.signature);
        match names::key_of(stored) {
            Some(key) if Some(key.signature) != ours => {
                let signature = hex::digits(&key.signature);
                let what = format!("the name is encrypted with another key, whose signature is {signature}");
                ErrorKind::WrongCredential(what).into()
            }
            Some(_) => no_name("the name does not decrypt: some of its characters have changed"),
            None if names::begins(stored) => no_name(
                "the encrypted name was altered, perhaps by a copying program: shortened, extended or in a \
                 different letter case",
            ),
            None => no_name("the name is not encrypted"),
        }
    }

    fn encrypts_names(&self) -> bool {
        self.public.names.is_some()
    }

    fn stored_name(&self, plain: &OsStr) -> io::Result<OsString> {
        self.stored(plain, names::LONGEST)
    }

    fn longest_name(&self, stored: u32) -> u32 {
        let longest = |names: &PublicNames| names::longest(names.block, stored as usize) as u32;
        self.public.names.as_ref().map_or(stored, longest)
    }

    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        if self.public.names.is_none() {
            return Ok(stored);
        }
        let plain = self.keys.plain_name(&stored)?;
        plain.ok_or_else(|| damaged("target", 0, "it does not decrypt with the name key"))
    }

    fn stored_target(&self, plain: &OsStr) -> io::Result<OsString> {
        self.stored(plain, names::TARGET_MOST)
    }

    fn hides(&self, attribute: &OsStr) -> bool {
        attribute == ATTRIBUTE
    }

    fn read_only(&self) -> bool {
        self.public.view == View::Encrypted
    }

    fn signatures(&self) -> Vec<String> {
        let Public { signatures, names, .. } = &self.public;
        let names = names.as_ref().map(|names| &names.signature);
        signatures.iter().chain(names).map(|signature| hex::digits(signature)).collect()
    }

    fn proven(&self) -> bool {
        !self.public.unproven
    }

    fn warnings(&self) -> Vec<String> {
        Vec::from_iter(self.public.unproven.then(|| UNPROVEN.to_owned()))
    }

    fn split_keys(&self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        let of_format = serde_json::to_value(&self.public).map_err(io::Error::from)?;
        Ok((KeylessFolder { of_format, sector: header::EXTENT as usize }, Arc::clone(&self.keys)))
    }
}
