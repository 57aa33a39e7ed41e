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
use crate::volume::Payload;

/// Files that can be open at a time in the process that holds the keys: twice as many as [`Stacked`](crate::file_formats::Stacked) keeps open.
const MOST_OPEN: usize = 2048;

/// Names that are remembered at the most, twice over.
const MOST_NAMES: usize = 1024;

/// Bytes that any file can have, in whole sectors.
const LARGEST: u64 = i64::MAX as u64 & !0xfff;

/// What the keys of a folder are used for. All methods may be called from several threads.
pub trait FolderKeys: Send + Sync {
    /// What encrypts the contents of a file. `sealed` is its key as the file's header keeps it, in the format's own form.
    ///
    /// # Errors
    /// If these keys do not open it; where another process has them, if it refuses, or has gone.
    fn open(&self, sealed: &[u8]) -> io::Result<Payload>;

    /// The header of a new file, and what encrypts its contents.
    ///
    /// # Errors
    /// If the system has no random bytes, and as for [`FolderKeys::open`].
    fn create(&self) -> io::Result<(Vec<u8>, Payload)>;

    /// The name that people see; none for what is not encrypted with these keys. No two stored names have the same one.
    ///
    /// # Errors
    /// As for [`FolderKeys::open`].
    fn plain_name(&self, stored: &OsStr) -> io::Result<Option<OsString>>;

    /// The name as it is stored, of whatever length.
    ///
    /// # Errors
    /// As for [`FolderKeys::open`].
    fn stored_name(&self, plain: &OsStr) -> io::Result<OsString>;
}

/// The keys of a folder without the keys, as plain data for another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeylessFolder {
    /// The format's own.
    pub(crate) of_format: Value,
    /// Size of the sectors of contents, in bytes.
    pub(crate) sector: usize,
}

/// Who has the keys of a folder, such as another process: what is encrypted and decrypted as [`KeyProcess`] is what is in files, whose
/// numbers are those of segments.
pub trait FolderKeyProcess: KeyProcess {
    /// Opens a file by what its header keeps of its key, and gives it a number.
    ///
    /// # Errors
    /// If the key process refuses, or has gone.
    fn open(&self, sealed: &[u8]) -> io::Result<u32>;

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
    fn plain_name(&self, stored: &OsStr) -> io::Result<Option<OsString>>;

    /// See [`FolderKeys::stored_name`].
    ///
    /// # Errors
    /// As above.
    fn stored_name(&self, plain: &OsStr) -> io::Result<OsString>;
}

/// The keys of a folder, which a key process has.
pub(crate) struct FolderKeyHandle {
    key_process: Arc<dyn FolderKeyProcess>,
    sector: usize,
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
    stored: HashMap<OsString, OsString>,
    plain: HashMap<OsString, OsString>,
}

impl Names {
    fn get(&self, name: &OsStr, of: fn(&Pairs) -> &HashMap<OsString, OsString>) -> Option<OsString> {
        of(&self.latest).get(name).or_else(|| of(&self.earlier).get(name)).cloned()
    }

    fn learn(&mut self, plain: &OsStr, stored: &OsStr) {
        if self.latest.stored.len() == MOST_NAMES {
            self.earlier = std::mem::take(&mut self.latest);
        }
        self.latest.stored.insert(plain.to_owned(), stored.to_owned());
        self.latest.plain.insert(stored.to_owned(), plain.to_owned());
    }
}

impl FolderKeyHandle {
    /// Sectors are those of the folder's outline.
    pub fn new(key_process: Arc<dyn FolderKeyProcess>, outline: &KeylessFolder) -> Self {
        Self { key_process, sector: outline.sector, names: Mutex::default() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn payload(&self, number: u32) -> Payload {
        let open = OpenThere { key_process: Arc::clone(&self.key_process), number };
        let key_process = Arc::clone(&self.key_process) as Arc<dyn KeyProcess>;
        Payload::KeyProcess(KeyHandle::new(key_process, number, self.sector, Some(Arc::new(open))))
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
    fn open(&self, sealed: &[u8]) -> io::Result<Payload> {
        self.key_process.open(sealed).map(|number| self.payload(number))
    }

    fn create(&self) -> io::Result<(Vec<u8>, Payload)> {
        let (number, header) = self.key_process.create()?;
        Ok((header, self.payload(number)))
    }

    fn plain_name(&self, stored: &OsStr) -> io::Result<Option<OsString>> {
        let known = self.names().get(stored, |pairs| &pairs.plain);
        if known.is_some() {
            return Ok(known);
        }
        let plain = self.key_process.plain_name(stored)?;
        plain.iter().for_each(|plain| self.names().learn(plain, stored));
        Ok(plain)
    }

    fn stored_name(&self, plain: &OsStr) -> io::Result<OsString> {
        if let Some(known) = self.names().get(plain, |pairs| &pairs.stored) {
            return Ok(known);
        }
        let stored = self.key_process.stored_name(plain)?;
        self.names().learn(plain, &stored);
        Ok(stored)
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

    fn opened(&self, payload: Payload) -> Result<u32, Refused> {
        let Payload::Crypt { cipher, first: 0, .. } = payload else { return Err(Refused) };
        let key = Arc::new(Key::of_file(cipher, LARGEST, self.write));
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
    /// If these keys do not open it, or too many files are open.
    pub fn open(&self, sealed: &[u8]) -> Result<u32, Refused> {
        self.opened(self.keys.open(sealed).map_err(|_| Refused)?)
    }

    /// See [`FolderKeyProcess::create`].
    ///
    /// # Errors
    /// If nothing is to be written, or too many files are open.
    pub fn create(&self) -> Result<(u32, Vec<u8>), Refused> {
        if !self.write {
            return Err(Refused);
        }
        let (header, payload) = self.keys.create().map_err(|_| Refused)?;
        Ok((self.opened(payload)?, header))
    }

    /// See [`FolderKeyProcess::close`]. Does nothing where there is no such file.
    pub fn close(&self, file: u32) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = open.get_mut(file as usize) {
            *key = None;
        }
    }

    /// See [`FolderKeys::plain_name`].
    pub fn plain_name(&self, stored: &OsStr) -> Option<OsString> {
        self.keys.plain_name(stored).ok().flatten()
    }

    /// See [`FolderKeys::stored_name`].
    ///
    /// # Errors
    /// If names are not encrypted.
    pub fn stored_name(&self, plain: &OsStr) -> Result<OsString, Refused> {
        self.keys.stored_name(plain).map_err(|_| Refused)
    }
}
