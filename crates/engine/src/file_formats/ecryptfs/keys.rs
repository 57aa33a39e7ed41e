//! The files of an unlocked folder.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use claviger_crypto::modes::EcryptfsCbc;
use claviger_crypto::secret::wipe_after_sectors;
use claviger_crypto::{Acceleration, BlockCipher, Secret, SectorCipher};
use rustix::io::Errno;

use super::UNPROVEN;
use super::header::{self, Header, New, Place};
use super::kept::{self, ATTRIBUTE, File};
use super::names::Names;
use super::suite::Suite;
use super::token::{self, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::file_formats::{FileKeys, FileLayout, Found, Stored};
use crate::trees::{Setting, damaged};
use crate::volume::{Layout, Payload, Segment};
use crate::{hex, random};

/// The keys of a folder.
pub(super) struct Keys {
    /// None only where files are shown as they are stored.
    pub tokens: Vec<Token>,
    /// What keys of files are under, made when it is needed: expanding a key takes longer than using it once.
    pub sealers: Sealers,
    /// None where names are in clear.
    pub names: Option<Names>,
    pub new_files: NewFiles,
    pub view: View,
    pub acceleration: Acceleration,
    /// Whether there was no file or name that shows them to be right.
    pub unproven: bool,
}

/// How new files are made.
#[derive(Clone, Copy)]
pub(super) struct NewFiles {
    pub suite: Suite,
    pub place: Place,
    /// They open with the first ones of the tokens, so many of them.
    pub tokens: usize,
}

/// How files are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
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

impl Keys {
    /// None at all: they show a folder as it is stored.
    pub fn none(acceleration: Acceleration) -> Self {
        let new_files = NewFiles { suite: Suite::default(), place: Place::File, tokens: 0 };
        let (tokens, sealers, names, unproven) = (Vec::new(), Sealers::default(), None, false);
        Self { tokens, sealers, names, new_files, view: View::Encrypted, acceleration, unproven }
    }

    fn sealer(&self, at: usize, suite: Suite) -> Arc<dyn BlockCipher> {
        self.sealers.get(at, suite, || self.tokens[at].cipher(suite, self.acceleration))
    }

    /// A file with this header, which opens. If it ends before its contents would begin, its making was cut short.
    fn found(&self, of: Stored<'_>, place: Place, header: &Header<'_>) -> Result<Found> {
        let layout = self.open(header)?;
        let empty = place == Place::File && header.size == 0;
        let unfinished = empty && of.tree.attributes(of.contents)?.size < header.data_at;
        Ok(if unfinished { Found::Unfinished } else { Found::Encrypted(layout) })
    }

    /// The layout of a file with this header.
    fn open(&self, header: &Header<'_>) -> Result<FileLayout> {
        let known = |signature| self.tokens.iter().position(|token| token.signature == signature);
        let mut sealed = header.keys.iter().filter_map(|key| known(key.signature).map(|at| (at, key)));
        let Some((at, key)) = sealed.next() else { return Err(not_for_us(header)) };
        let mut opened = Secret::copy_from(key.bytes);
        self.sealer(at, key.suite).decrypt_blocks(&mut opened);
        self.layout_of(&opened[..key.suite.key_bytes], key.suite, header.data_at, header.size)
    }

    /// The layout of a file with this key.
    fn layout_of(&self, key: &[u8], suite: Suite, stored_at: u64, size: u64) -> Result<FileLayout> {
        let cipher = EcryptfsCbc::new(suite.cipher().with_key(key, self.acceleration), key);
        wipe_after_sectors();
        let cipher: Arc<dyn SectorCipher> = Arc::new(cipher);
        let (len, payload) = (header::largest(stored_at), Payload::crypt(cipher, 0));
        let layout = Layout::new(vec![Segment { at: 0, len, stored_at, payload, writable: true }])?;
        Ok(FileLayout::new(layout, size)?)
    }

    /// A file as it is stored, whose header is in an attribute: in front of it.
    fn with_header_in_front(of: Stored<'_>, attribute: &[u8]) -> Result<Found> {
        let stored = of.tree.attributes(of.contents)?.size;
        let header = header::in_front(attribute);
        let front = header.len() as u64;
        let fixed = Payload::Fixed(header.into());
        let mut segments = vec![Segment { at: 0, len: front, stored_at: 0, payload: fixed, writable: false }];
        if stored > 0 {
            let payload = Payload::Clear;
            segments.push(Segment { at: front, len: stored, stored_at: 0, payload, writable: false });
        }
        Ok(Found::Encrypted(FileLayout::new(Layout::new(segments)?, front + stored)?))
    }

    fn foreign(&self) -> Result<Found> {
        match self.view {
            View::Passthrough | View::Encrypted => Ok(Found::Clear),
            View::Plain => {
                let what =
                    "the file is none of eCryptfs: it has no header, neither in front nor in an extended attribute";
                Err(Error::new(ErrorKind::NotThisFormat(what.into()))
                    .hint("Files in clear are shown if that is asked for."))
            }
        }
    }
}

/// A file or folder of a mode that is not supported.
pub(super) fn public_keys(what: &str, signatures: &str) -> Error {
    Error::unsupported(format!("public keys, as of eCryptfs's module openssl: {what} encrypted for {signatures}"))
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
    fn layout(&self, of: Stored<'_>) -> io::Result<Found> {
        let found = kept::look(of, |file| match (file, self.view) {
            (File::Encrypted(Place::Attribute, _, bytes), View::Encrypted) => Self::with_header_in_front(of, bytes),
            (_, View::Encrypted) | (File::Blank, View::Passthrough) => Ok(Found::Clear),
            (File::Encrypted(place, header, _), _) => self.found(of, place, &header),
            (File::Unfinished | File::Blank, _) => Ok(Found::Unfinished),
            (File::Foreign, _) => self.foreign(),
            (File::Bad(why), _) => Err(why.into()),
        })?;
        Ok(found?)
    }

    fn size(&self, of: Stored<'_>) -> io::Result<Option<u64>> {
        kept::look(of, |file| match (file, self.view) {
            (File::Encrypted(Place::Attribute, ..), View::Encrypted) => {
                of.tree.attributes(of.contents).map(|stored| Some(header::HEADER + stored.size))
            }
            (_, View::Encrypted) | (File::Blank, View::Passthrough) | (File::Foreign, _) => Ok(None),
            (File::Encrypted(_, header, _), _) => Ok(Some(header.size)),
            (File::Unfinished | File::Blank, _) => Ok(Some(0)),
            (File::Bad(why), _) => Err(Error::from(why).into()),
        })?
    }

    fn begin(&self, of: Stored<'_>) -> io::Result<Found> {
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
        let bytes = New { place, encrypted_names: self.names.is_some(), marker, suite, keys: &keys }.bytes();
        let data_at = match place {
            Place::File => {
                of.tree.write_at(of.contents, 0, &bytes)?;
                header::HEADER
            }
            Place::Attribute => {
                of.tree.set_extended(of.file, ATTRIBUTE.as_ref(), &bytes, Setting::Any)?;
                0
            }
        };
        Ok(Found::Encrypted(self.layout_of(&key[..suite.key_bytes], suite, data_at, 0)?))
    }

    fn set_size(&self, of: Stored<'_>, size: u64) -> io::Result<()> {
        let attribute = kept::look(of, |file| match file {
            File::Encrypted(Place::File, ..) => Ok(None),
            // All of it, also what is behind what is read of it.
            File::Encrypted(Place::Attribute, ..) => kept::attribute(of),
            _ => Err(damaged("header", 0, "it was there when the file was opened, and is not any more")),
        })??;
        match attribute {
            None => of.tree.write_at(of.contents, 0, &size.to_be_bytes()),
            Some(mut bytes) => {
                bytes[..8].copy_from_slice(&size.to_be_bytes());
                of.tree.set_extended(of.file, ATTRIBUTE.as_ref(), &bytes, Setting::Replace)
            }
        }
    }

    fn plain_name(&self, stored: &OsStr) -> Option<OsString> {
        self.names.as_ref().map_or_else(|| Some(stored.to_owned()), |names| names.plain(stored))
    }

    fn stored_name(&self, plain: &OsStr) -> io::Result<OsString> {
        let Some(names) = &self.names else { return Ok(plain.to_owned()) };
        let stored = names.stored(plain);
        // Longer than any file system has them; what the one below has, it says itself.
        if stored.len() > 255 { Err(Errno::NAMETOOLONG.into()) } else { Ok(stored) }
    }

    fn longest_name(&self, stored: u32) -> u32 {
        self.names.as_ref().map_or(stored, |names| names.longest(stored as usize) as u32)
    }

    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        let Some(names) = &self.names else { return Ok(stored) };
        names.plain(&stored).ok_or_else(|| damaged("target", 0, "it does not decrypt with the key of names"))
    }

    fn stored_target(&self, plain: &OsStr) -> io::Result<OsString> {
        let Some(names) = &self.names else { return Ok(plain.to_owned()) };
        names.stored_target(plain).ok_or_else(|| Errno::NAMETOOLONG.into())
    }

    fn hides(&self, attribute: &OsStr) -> bool {
        attribute == ATTRIBUTE
    }

    fn read_only(&self) -> bool {
        self.view == View::Encrypted
    }

    fn signatures(&self) -> Vec<String> {
        let contents = self.tokens.iter().map(|token| token.signature);
        let names = self.names.as_ref().map(Names::signature);
        contents.chain(names).map(|signature| hex::digits(&signature)).collect()
    }

    fn proven(&self) -> bool {
        !self.unproven
    }

    fn warnings(&self) -> Vec<String> {
        Vec::from_iter(self.unproven.then(|| UNPROVEN.to_owned()))
    }
}
