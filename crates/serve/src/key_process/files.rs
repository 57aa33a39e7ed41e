//! Requests to a folder's keys other than encrypting and decrypting, for both sides. The argument and the answer lie in
//! the slot, the answer with its length in front.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use claviger_engine::key_process::Refused;
use claviger_engine::key_process::folder::{FolderKeyProcess, FolderKeyTable};
use claviger_engine::key_process::volume::Keys;

use super::FOLDER_MOST;
use super::client::KeyClient;

/// [`super::shared_sys::KeyRequest::order`]: opens a file with the given key. The answer is the file's number, or empty if the keys do
/// not open it.
pub(super) const OPEN: u32 = 16;
/// Creates a file. The answer is its number and its header.
pub(super) const CREATE: u32 = 17;
/// Closes the file of this number.
pub(super) const CLOSE: u32 = 18;
/// Decrypts a name, which follows its IV. The answer is empty, or a one and the name.
pub(super) const PLAIN_NAME: u32 = 19;
/// Encrypts a name, which follows its IV. The answer is the stored name.
pub(super) const STORED_NAME: u32 = 20;
/// Finds the place of the folder with the given ID.
pub(super) const PLACE: u32 = 21;

/// Whether this is an order for a folder's keys.
pub(super) fn is_order(order: u32) -> bool {
    (OPEN..=PLACE).contains(&order)
}

/// Carries out such an order. `said` is a private copy of the argument.
///
/// # Errors
/// If the order is invalid, the keys are not a folder's, or the operation itself fails.
pub(super) fn carry_out(keys: &Keys, order: u32, file: u32, said: &[u8]) -> Result<Vec<u8>, Refused> {
    let folder: &FolderKeyTable = keys.folder().ok_or(Refused)?;
    let answer = match order {
        OPEN => folder.open(said)?.map_or(Vec::new(), |file| file.to_le_bytes().to_vec()),
        CREATE => {
            let (file, header) = folder.create()?;
            [&file.to_le_bytes()[..], &header].concat()
        }
        CLOSE => {
            folder.close(file);
            Vec::new()
        }
        PLAIN_NAME => {
            let (iv, stored) = with_iv(said).ok_or(Refused)?;
            folder.plain_name(iv, stored).map_or(Vec::new(), |name| [&[1], name.as_bytes()].concat())
        }
        STORED_NAME => {
            let (iv, plain) = with_iv(said).ok_or(Refused)?;
            folder.stored_name(iv, plain)?.into_vec()
        }
        PLACE => folder.place(said)?,
        _ => return Err(Refused),
    };
    if answer.len() <= FOLDER_MOST { Ok(answer) } else { Err(Refused) }
}

/// An IV with its length in front, and the name after it.
fn with_iv(said: &[u8]) -> Option<(&[u8], &OsStr)> {
    let (len, rest) = said.split_first()?;
    let (iv, name) = rest.split_at_checked((*len).into())?;
    Some((iv, OsStr::from_bytes(name)))
}

impl KeyClient {
    /// Sends a request about a name.
    fn ask_of_name(&self, order: u32, iv: &[u8], name: &OsStr) -> io::Result<Vec<u8>> {
        let len = u8::try_from(iv.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.ask_of_folder(order, 0, &[&[len], iv, name.as_bytes()].concat())
    }
}

impl FolderKeyProcess for KeyClient {
    fn open(&self, sealed: &[u8]) -> io::Result<Option<u32>> {
        let answer = self.ask_of_folder(OPEN, 0, sealed)?;
        if answer.is_empty() { Ok(None) } else { Ok(Some(number(&answer)?.0)) }
    }

    fn create(&self) -> io::Result<(u32, Vec<u8>)> {
        let answer = self.ask_of_folder(CREATE, 0, &[])?;
        number(&answer).map(|(file, header)| (file, header.to_vec()))
    }

    fn close(&self, file: u32) {
        // A key process that has ended has closed the file already.
        let _ = self.ask_of_folder(CLOSE, file, &[]);
    }

    fn plain_name(&self, iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>> {
        let answer = self.ask_of_name(PLAIN_NAME, iv, stored)?;
        Ok(answer.split_first().map(|(_, name)| OsString::from_vec(name.to_vec())))
    }

    fn stored_name(&self, iv: &[u8], plain: &OsStr) -> io::Result<OsString> {
        self.ask_of_name(STORED_NAME, iv, plain).map(OsString::from_vec)
    }

    fn place(&self, id: &[u8]) -> io::Result<Vec<u8>> {
        self.ask_of_folder(PLACE, 0, id)
    }
}

fn number(answer: &[u8]) -> io::Result<(u32, &[u8])> {
    let (number, rest) = answer.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    Ok((u32::from_le_bytes(*number), rest))
}
