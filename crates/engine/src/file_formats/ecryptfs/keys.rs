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
use crate::file_formats::{FileKeys, FileKind, FileLayout, NameIv, StoredFile, no_name};
use crate::key_process::folder::{
    ContentKey, FolderKeyHandle, FolderKeyProcess, FolderKeys, KeylessContents, KeylessFolder,
};
use crate::trees::{Setting, damaged};
use crate::volume::{Layout, Payload, Segment};
use crate::{hex, random};

/// An unlocked folder: the public facts about its keys, and the keys or a handle to them.
pub(super) struct Keys {
    keys: Arc<dyn FolderKeys>,
    public: Public,
}

/// The public facts about the keys.
#[derive(Clone, Serialize, Deserialize)]
struct Public {
    /// The signatures of the content keys. Empty only where files are shown as stored.
    signatures: Vec<Signature>,
    /// None where names are in clear.
    names: Option<PublicNames>,
    /// Where the headers of new files are stored.
    place: HeaderLocation,
    view: View,
    /// Whether no file or name was there to check the keys against.
    unproven: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct PublicNames {
    signature: Signature,
    /// The block size of the cipher, in bytes.
    block: usize,
}

/// The keys themselves.
pub(super) struct Secrets {
    /// Empty only where files are shown as stored.
    pub tokens: Vec<Token>,
    /// The ciphers that decrypt the keys of files, created on first use: key expansion costs more than one decryption.
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
    /// How many tokens, from the first, can open a new file.
    pub tokens: usize,
}

/// How files are shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum View {
    /// In clear. Files and names that eCryptfs did not write are refused.
    Plain,
    /// In clear. Files and names that eCryptfs did not write are passed through.
    Passthrough,
    /// As stored, with the header in front.
    Encrypted,
}

/// Ciphers keyed with tokens, by the token's index.
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
    /// No keys: the folder is shown as stored.
    pub fn none(acceleration: Acceleration) -> Self {
        let new_files = NewFiles { suite: Suite::default(), place: HeaderLocation::File, tokens: 0 };
        Self { tokens: Vec::new(), sealers: Sealers::default(), names: None, new_files, acceleration }
    }

    fn sealer(&self, at: usize, suite: Suite) -> Arc<dyn BlockCipher> {
        self.sealers.get(at, suite, || self.tokens[at].cipher(suite, self.acceleration))
    }

    /// The cipher for the contents of a file with this key.
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
    fn open(&self, sealed: &[u8]) -> io::Result<Option<ContentKey>> {
        let none = || io::Error::from(io::ErrorKind::InvalidInput);
        let ([signature @ .., code], sealed) = sealed.split_first_chunk::<9>().ok_or_else(none)?;
        let suite = Suite::of_file(*code, sealed.len()).map_err(|_| none())?;
        let at = self.tokens.iter().position(|token| token.signature == *signature).ok_or_else(none)?;
        let mut opened = Secret::copy_from(sealed);
        self.sealer(at, suite).decrypt_blocks(&mut opened);
        Ok(Some(ContentKey::Sectors(self.payload(&opened[..suite.key_bytes], suite))))
    }

    fn create(&self) -> io::Result<(Vec<u8>, ContentKey)> {
        let NewFiles { suite, place, tokens } = self.new_files;
        // An AES-192 key is stored with zeros after its own bytes.
        let mut key = Secret::zeroed(suite.sealed_bytes());
        random::fill(&mut key[..suite.key_bytes])?;
        let seal = |(at, token): (usize, &Token)| {
            // Encrypt within a `Secret`: the key never lies in other memory in clear.
            let mut sealed = Secret::copy_from(&key);
            self.sealer(at, suite).encrypt_blocks(&mut sealed);
            (token.salt, token.signature, sealed.to_vec())
        };
        let keys: Vec<_> = self.tokens[..tokens].iter().enumerate().map(seal).collect();
        let mut marker = [0; 4];
        random::fill(&mut marker)?;
        let header = New { place, encrypted_names: self.names.is_some(), marker, suite, keys: &keys }.bytes();
        Ok((header, ContentKey::Sectors(self.payload(&key[..suite.key_bytes], suite))))
    }

    fn plain_name(&self, _iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>> {
        self.names().map(|names| names.plain(stored))
    }

    fn stored_name(&self, _iv: &[u8], plain: &OsStr) -> io::Result<OsString> {
        self.names().map(|names| names.stored(plain))
    }
}

impl Keys {
    /// Keys held in this process.
    pub fn new(secrets: Secrets, view: View, unproven: bool) -> Self {
        let signatures = secrets.tokens.iter().map(|token| token.signature).collect();
        let names = secrets.names.as_ref();
        let names = names.map(|names| PublicNames { signature: names.signature(), block: names.block() });
        let public = Public { signatures, names, place: secrets.new_files.place, view, unproven };
        Self { keys: Arc::new(secrets), public }
    }

    /// Keys held in the key process.
    pub fn with_key_process(outline: KeylessFolder, key_process: Arc<dyn FolderKeyProcess>) -> Result<Self> {
        let keys = Arc::new(FolderKeyHandle::new(key_process, &outline)?);
        let public = Public::deserialize(outline.of_format).map_err(io::Error::from)?;
        Ok(Self { keys, public })
    }

    /// The kind of a file whose header the keys open. A file that ends before its contents begin is unfinished.
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
        let opened = self.keys.open(&key.sealed())?.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        layout_of(opened.sectors()?, header.data_at, header.size)
    }

    /// Shows a file whose header is in an attribute as stored, with the header in front.
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

    /// The stored form of a name, of at most `most` bytes.
    fn stored(&self, plain: &OsStr, most: usize) -> io::Result<OsString> {
        if self.public.names.is_none() {
            return Ok(plain.to_owned());
        }
        let stored = self.keys.stored_name(&[], plain)?;
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

/// The layout of a file whose encrypted contents begin at `stored_at`.
fn layout_of(payload: Payload, stored_at: u64, size: u64) -> Result<FileLayout> {
    let len = header::largest(stored_at);
    let layout = Layout::new(vec![Segment { at: 0, len, stored_at, payload, writable: true }])?;
    Ok(FileLayout::new(layout, size)?)
}

/// The error for a file or folder encrypted for public keys.
pub(super) fn public_keys(what: &str, signatures: &str) -> Error {
    Error::unsupported(format!("public keys (eCryptfs's openssl module): {what} encrypted for {signatures}"))
        .hint("ecryptfs-utils open it: `mount -t ecryptfs -o key=openssl FOLDER MOUNTPOINT`, with the key.")
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
        let (bytes, key) = self.keys.create()?;
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
        Ok(FileKind::Encrypted(layout_of(key.sectors()?, data_at, 0)?))
    }

    fn set_size(&self, of: StoredFile<'_>, size: u64) -> io::Result<()> {
        let attribute = stored::look(of, |file| match file {
            File::Encrypted(HeaderLocation::File, ..) => Ok(None),
            // The whole attribute, including what follows the part that is parsed.
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

    fn plain_name(&self, stored: &OsStr, _iv: &NameIv) -> io::Result<Option<OsString>> {
        if self.public.names.is_none() { Ok(Some(stored.to_owned())) } else { self.keys.plain_name(&[], stored) }
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

    fn stored_name(&self, plain: &OsStr, _iv: &NameIv) -> io::Result<OsString> {
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
        let plain = self.keys.plain_name(&[], &stored)?;
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
        Ok((
            KeylessFolder { of_format, contents: KeylessContents::Sectors(header::EXTENT as usize) },
            Arc::clone(&self.keys),
        ))
    }
}
