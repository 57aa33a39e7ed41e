//! Folders whose keys another process holds: what keys are used for, and both sides of using them over a channel.
//!
//! [`FolderKeys`] is all that is done with keys: here by a format, or by another process ([`FolderKeyProcess`]), which does it by the same
//! format ([`FolderKeyTable`]). A format's [`FileKeys`](crate::file_formats::FileKeys) read and write headers, and know nothing of which it is.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::handle::{KeyHandle, KeyProcess};
use super::key::{Key, Refused};
use crate::error::{Error, Result};
use crate::volume::{BlockSealing, Payload, SealedLayout};

/// Files that can be open at a time in the process that holds the keys: twice as many as [`Stacked`](crate::file_formats::Stacked) keeps open.
const MOST_OPEN: usize = 2048;

/// Names that are remembered at the most, twice over.
const MOST_NAMES: usize = 1024;

/// Bytes that any file can have, in whole sectors.
const LARGEST: u64 = i64::MAX as u64 & !0xfff;

/// What the keys of a folder are used for. All methods may be called from several threads.
pub trait FolderKeys: Send + Sync {
    /// What encrypts the contents of a file; none if these keys do not open it. `sealed` is its key as the file's header keeps it, in
    /// the format's own form.
    ///
    /// # Errors
    /// If it has no such form; where another process has the keys, if it refuses, or has gone.
    fn open(&self, sealed: &[u8]) -> io::Result<Option<ContentKey>>;

    /// The header of a new file, and what encrypts its contents.
    ///
    /// # Errors
    /// If the system has no random bytes, and as for [`FolderKeys::open`].
    fn create(&self) -> io::Result<(Vec<u8>, ContentKey)>;

    /// The name that people see; none for what is not encrypted with these keys. No two stored names with the same IV have the same
    /// one.
    ///
    /// # Errors
    /// As for [`FolderKeys::open`].
    fn plain_name(&self, iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>>;

    /// The name as it is stored.
    ///
    /// # Errors
    /// `InvalidFilename` if it is too long; as for [`FolderKeys::open`].
    fn stored_name(&self, iv: &[u8], plain: &OsStr) -> io::Result<OsString>;

    /// A hash that tells where the folder with this ID is stored, in formats that store folders by their IDs.
    ///
    /// # Errors
    /// `Unsupported` in other formats; as for [`FolderKeys::open`].
    fn place(&self, _id: &[u8]) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What encrypts the contents of a file.
#[derive(Debug)]
pub enum ContentKey {
    /// In sectors.
    Sectors(Payload),
    /// In sealed blocks.
    Blocks(SealedLayout),
}

impl ContentKey {
    pub(crate) fn sectors(self) -> io::Result<Payload> {
        match self {
            Self::Sectors(payload) => Ok(payload),
            Self::Blocks(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    pub(crate) fn blocks(self) -> io::Result<SealedLayout> {
        match self {
            Self::Blocks(layout) => Ok(layout),
            Self::Sectors(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The keys of a folder without the keys, as plain data for another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeylessFolder {
    /// The format's own.
    pub(crate) of_format: Value,
    pub(crate) contents: KeylessContents,
}

/// How the contents of its files are encrypted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum KeylessContents {
    /// In sectors of this size, in bytes.
    Sectors(usize),
    /// In sealed blocks: see [`SealedLayout`].
    Blocks { block: usize, overhead: usize, stored_at: u64, holes: bool },
}

impl KeylessContents {
    /// The contents of files with such a layout.
    pub fn of(layout: &SealedLayout) -> Self {
        let &SealedLayout { block, stored_at, holes, .. } = layout;
        Self::Blocks { block, overhead: layout.sealing.overhead(), stored_at, holes }
    }

    /// Bytes that are encrypted together, in clear.
    fn unit(&self) -> usize {
        match self {
            Self::Sectors(sector) => *sector,
            Self::Blocks { block, .. } => *block,
        }
    }

    /// Fails for sizes that no format has.
    fn check(&self) -> Result<()> {
        let overhead = if let Self::Blocks { overhead, .. } = self { *overhead } else { 0 };
        match (1..=LARGEST_BLOCK).contains(&self.unit()) && overhead <= LARGEST_BLOCK {
            true => Ok(()),
            false => Err(Error::misuse("a key process reported blocks of an impossible size")),
        }
    }
}

/// The largest block of any format, in bytes, with room to spare.
const LARGEST_BLOCK: usize = 128 << 10;

/// Who has the keys of a folder, such as another process: what is encrypted and decrypted as [`KeyProcess`] is what is in files, whose
/// numbers are those of segments.
pub trait FolderKeyProcess: KeyProcess {
    /// Opens a file by what its header keeps of its key, and gives it a number. None if the keys do not open it.
    ///
    /// # Errors
    /// If the key process refuses, or has gone.
    fn open(&self, sealed: &[u8]) -> io::Result<Option<u32>>;

    /// The number of a new file, and its header.
    ///
    /// # Errors
    /// As above.
    fn create(&self) -> io::Result<(u32, Vec<u8>)>;

    /// Closes a file: its number may be that of another one from then on. A key process that has gone has closed it.
    fn close(&self, file: u32);

    /// See [`FolderKeys::plain_name`].
    ///
    /// # Errors
    /// As above.
    fn plain_name(&self, iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>>;

    /// See [`FolderKeys::stored_name`].
    ///
    /// # Errors
    /// As above.
    fn stored_name(&self, iv: &[u8], plain: &OsStr) -> io::Result<OsString>;

    /// See [`FolderKeys::place`].
    ///
    /// # Errors
    /// As above.
    fn place(&self, id: &[u8]) -> io::Result<Vec<u8>>;
}

/// The keys of a folder, which a key process has.
pub(crate) struct FolderKeyHandle {
    key_process: Arc<dyn FolderKeyProcess>,
    contents: KeylessContents,
    names: Mutex<Names>,
}

/// Recently translated names: creating or opening a file needs its name several times, and a listing needs all of them.
#[derive(Default)]
struct Names {
    latest: Pairs,
    /// The pairs learned before the latest ones.
    earlier: Pairs,
}

#[derive(Default)]
struct Pairs {
    stored: Translations,
    plain: Translations,
}

/// Names by an IV and another name.
type Translations = HashMap<(Vec<u8>, OsString), OsString>;

impl Names {
    fn get(&self, iv: &[u8], name: &OsStr, of: fn(&Pairs) -> &Translations) -> Option<OsString> {
        let key = (iv.to_vec(), name.to_owned());
        of(&self.latest).get(&key).or_else(|| of(&self.earlier).get(&key)).cloned()
    }

    fn learn(&mut self, iv: &[u8], plain: &OsStr, stored: &OsStr) {
        if self.latest.stored.len() == MOST_NAMES {
            self.earlier = std::mem::take(&mut self.latest);
        }
        self.latest.stored.insert((iv.to_vec(), plain.to_owned()), stored.to_owned());
        self.latest.plain.insert((iv.to_vec(), stored.to_owned()), plain.to_owned());
    }
}

impl FolderKeyHandle {
    /// Contents are encrypted as the folder's outline says.
    ///
    /// # Errors
    /// `Misuse` for an outline that no format makes.
    pub fn new(key_process: Arc<dyn FolderKeyProcess>, outline: &KeylessFolder) -> Result<Self> {
        outline.contents.check()?;
        Ok(Self { key_process, contents: outline.contents, names: Mutex::default() })
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, number: u32) -> ContentKey {
        let open = OpenThere { key_process: Arc::clone(&self.key_process), number };
        let key_process = Arc::clone(&self.key_process) as Arc<dyn KeyProcess>;
        let handle = KeyHandle::new(key_process, number, self.contents.unit(), Some(Arc::new(open)));
        match self.contents {
            KeylessContents::Sectors(_) => ContentKey::Sectors(Payload::KeyProcess(handle)),
            KeylessContents::Blocks { block, overhead, stored_at, holes } => {
                let sealing = BlockSealing::KeyProcess { handle, overhead };
                ContentKey::Blocks(SealedLayout { sealing, block, stored_at, holes })
            }
        }
    }
}

/// A file that a key process has open. It is closed on drop, when no request for it can be on its way any more.
struct OpenThere {
    key_process: Arc<dyn FolderKeyProcess>,
    number: u32,
}

impl Drop for OpenThere {
    fn drop(&mut self) {
        self.key_process.close(self.number);
    }
}

impl FolderKeys for FolderKeyHandle {
    fn open(&self, sealed: &[u8]) -> io::Result<Option<ContentKey>> {
        Ok(self.key_process.open(sealed)?.map(|number| self.key(number)))
    }

    fn create(&self) -> io::Result<(Vec<u8>, ContentKey)> {
        let (number, header) = self.key_process.create()?;
        Ok((header, self.key(number)))
    }

    fn plain_name(&self, iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>> {
        let known = self.names().get(iv, stored, |pairs| &pairs.plain);
        if known.is_some() {
            return Ok(known);
        }
        let plain = self.key_process.plain_name(iv, stored)?;
        plain.iter().for_each(|plain| self.names().learn(iv, plain, stored));
        Ok(plain)
    }

    fn stored_name(&self, iv: &[u8], plain: &OsStr) -> io::Result<OsString> {
        if let Some(known) = self.names().get(iv, plain, |pairs| &pairs.stored) {
            return Ok(known);
        }
        let stored = self.key_process.stored_name(iv, plain)?;
        self.names().learn(iv, plain, &stored);
        Ok(stored)
    }

    fn place(&self, id: &[u8]) -> io::Result<Vec<u8>> {
        self.key_process.place(id)
    }
}

/// The keys of a folder and of its open files, for the process that holds them. It trusts no request.
pub struct FolderKeyTable {
    keys: Arc<dyn FolderKeys>,
    /// Whether it may encrypt anything but names.
    write: bool,
    /// By number. A number is reused only after the process that has the file has closed it, so a request never reaches the wrong
    /// file.
    open: RwLock<Vec<Option<Arc<Key>>>>,
}

impl FolderKeyTable {
    pub(crate) fn new(keys: Arc<dyn FolderKeys>, write: bool) -> Self {
        Self { keys, write, open: RwLock::default() }
    }

    pub(crate) fn key(&self, file: u32) -> Option<Arc<Key>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(file as usize)?.clone()
    }

    fn opened(&self, key: ContentKey) -> std::result::Result<u32, Refused> {
        let key = Arc::new(Key::of_file(key, LARGEST, self.write).ok_or(Refused)?);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let number = match open.iter().position(Option::is_none) {
            Some(free) => free,
            None if open.len() < MOST_OPEN => {
                open.push(None);
                open.len() - 1
            }
            None => return Err(Refused),
        };
        open[number] = Some(key);
        Ok(number as u32)
    }

    /// See [`FolderKeyProcess::open`].
    ///
    /// # Errors
    /// If it has no form of the format, or too many files are open.
    pub fn open(&self, sealed: &[u8]) -> std::result::Result<Option<u32>, Refused> {
        let key = self.keys.open(sealed).map_err(|_| Refused)?;
        key.map(|key| self.opened(key)).transpose()
    }

    /// See [`FolderKeyProcess::create`].
    ///
    /// # Errors
    /// If nothing is to be written, or too many files are open.
    pub fn create(&self) -> std::result::Result<(u32, Vec<u8>), Refused> {
        if !self.write {
            return Err(Refused);
        }
        let (header, key) = self.keys.create().map_err(|_| Refused)?;
        Ok((self.opened(key)?, header))
    }

    /// See [`FolderKeyProcess::close`]. Does nothing where there is no such file.
    pub fn close(&self, file: u32) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = open.get_mut(file as usize) {
            *key = None;
        }
    }

    /// See [`FolderKeys::plain_name`].
    pub fn plain_name(&self, iv: &[u8], stored: &OsStr) -> Option<OsString> {
        self.keys.plain_name(iv, stored).ok().flatten()
    }

    /// See [`FolderKeys::stored_name`].
    ///
    /// # Errors
    /// If names are not encrypted, or this one is too long.
    pub fn stored_name(&self, iv: &[u8], plain: &OsStr) -> std::result::Result<OsString, Refused> {
        self.keys.stored_name(iv, plain).map_err(|_| Refused)
    }

    /// See [`FolderKeys::place`].
    ///
    /// # Errors
    /// If the format has no places.
    pub fn place(&self, id: &[u8]) -> std::result::Result<Vec<u8>, Refused> {
        self.keys.place(id).map_err(|_| Refused)
    }
}
