//! Windows' own key store in a user profile: private keys protected by DPAPI, and their certificates.
//!
//! Microsoft does not document these files. The structures are from mimikatz (modules/kull_m_key.h, kull_m_dpapi.h) and impacket
//! (dpapi.py). They lie in a profile (`C:\Users\NAME`), below `AppData\Roaming\Microsoft` or, before Vista, `Application
//! Data\Microsoft`. Any of these folders is accepted:
//! - `Protect\SID\GUID`: master keys, encrypted by the user's password and SID;
//! - `Crypto\RSA\SID\*` and `Crypto\Keys\*`: private keys, each in blobs under a master key;
//! - `SystemCertificates\My\Certificates\*`: certificates.
//!
//! If the user's password does not open a key, the error names the reason: a Microsoft account, whose password does not encrypt
//! keys; a password that another person reset; keys in a TPM.

mod algorithms;
mod blob;
mod certificates;
mod container;
mod master_key;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use claviger_crypto::Secret;

use super::key::SoftKey;
use super::{Certificate, Contents, PrivateKey};
use crate::error::{Error, ErrorKind, Result};
use crate::hex;
use crate::trees::{HeldNode, Node, NodeKind, Tree};

use master_key::{Candidates, MasterKeyFile};

/// The longest file of the key store that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The most files read from a folder.
const FILES_MAX: usize = 512;

/// Paths of the key store within a profile, or within a partial copy of one.
const KEY_STORES: &[&[&str]] = &[
    &["AppData", "Roaming", "Microsoft"],
    &["Application Data", "Microsoft"],
    &["Roaming", "Microsoft"],
    &["Microsoft"],
    &[],
];

/// The user's sign-in secret.
#[derive(Debug)]
pub enum Login {
    /// The password, in UTF-8.
    Password(Secret),
    /// The NT hash: 16 bytes, MD4 of the password. It opens the keys of domain accounts.
    NtHash(Secret),
}

impl Login {
    /// Parses an NT hash from 32 hexadecimal digits or from a line `LM:NT`, ignoring white space around it.
    ///
    /// # Errors
    /// `Misuse` if it is not an NT hash.
    pub fn nt_hash(text: &[u8]) -> Result<Self> {
        let text = text.trim_ascii();
        let digits = text.rsplit(|byte| *byte == b':').next().unwrap_or_default();
        let mut hash = Secret::zeroed(16);
        match hex::decode(digits, &mut hash) {
            Ok(_) if digits.len() == 32 => Ok(Self::NtHash(hash)),
            _ => Err(Error::misuse("an NT hash has 32 hexadecimal digits")),
        }
    }
}

/// The key store of a profile, still locked.
pub struct Profile {
    /// Its path: `/Users/NAME`.
    path: String,
    /// The security identifiers of the users with master keys, and the files of each.
    users: Vec<(String, Vec<MasterKeyFile>)>,
    /// Files of private keys, with their names.
    containers: Vec<(String, Secret)>,
    certificates: Vec<certificates::StoredCertificate>,
    refused: Vec<Error>,
}

impl Profile {
    /// Reads the key store of the profile at `path` in `tree`: on a disk, or in a copied folder.
    ///
    /// # Errors
    /// `NotThisFormat` if there is no key store; `Io`, `Malformed`.
    pub fn read(tree: &(dyn Tree + 'static), path: &OsStr) -> Result<Self> {
        let shown = path.to_string_lossy().into_owned();
        let profile = HeldNode::find(tree, path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => no_profile(&shown, "no such folder"),
            _ => Error::from(e).at(path.as_ref()),
        })?;
        let below = |steps: &[&str]| descend(tree, profile.node(), steps);
        let mut found = None;
        for steps in KEY_STORES.iter().copied() {
            found = below(&[steps, &["Protect"]].concat())?.map(|protect| (steps, protect));
            if found.is_some() {
                break;
            }
        }
        let Some((steps, protect)) = found else {
            return Err(no_profile(&shown, "no master key folder AppData/Roaming/Microsoft/Protect"));
        };
        let at = |more: &[&str]| below(&[steps, more].concat());
        let mut store = Self {
            path: shown,
            users: Vec::new(),
            containers: Vec::new(),
            certificates: Vec::new(),
            refused: Vec::new(),
        };
        for (sid, folder) in folders(tree, protect.node())? {
            if sid.starts_with("S-1-") {
                // `Preferred` names the key for the next encryption. It and copies of a domain's key are not named like GUIDs.
                let keys = files(tree, folder.node(), |name| name.len() == 36)?;
                let keys: Vec<_> =
                    keys.iter().filter_map(|(_, bytes)| store.or_refuse(MasterKeyFile::read(bytes))).collect();
                store.users.push((sid, keys));
            }
        }
        if store.users.iter().all(|(_, keys)| keys.is_empty()) {
            return Err(no_profile(&store.path, "no master key"));
        }
        if let Some(rsa) = at(&["Crypto", "RSA"])? {
            for (_, folder) in folders(tree, rsa.node())? {
                store.containers.extend(files(tree, folder.node(), |_| true)?);
            }
        }
        if let Some(keys) = at(&["Crypto", "Keys"])? {
            store.containers.extend(files(tree, keys.node(), |_| true)?);
        }
        if let Some(certificates) = at(&["SystemCertificates", "My", "Certificates"])? {
            for (_, bytes) in files(tree, certificates.node(), |_| true)? {
                let stored = certificates::read(&bytes);
                let stored = store.or_refuse(stored);
                store.certificates.extend(stored);
            }
        }
        Ok(store)
    }

    /// The user's certificates, which need no password.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.certificates.iter().map(|stored| &stored.certificate)
    }

    /// The private keys that open with this login.
    ///
    /// # Errors
    /// `WrongCredential` if it opens no master key; `Misuse` for a password that is not UTF-8, or if there is no private key;
    /// `Malformed`, `Unsupported` if there are only unreadable keys.
    pub fn unlock(mut self, login: &Login) -> Result<Vec<Arc<dyn PrivateKey>>> {
        let keys = self.master_keys(login)?;
        let mut contents = Contents::default();
        let (containers, certificates) = (std::mem::take(&mut self.containers), std::mem::take(&mut self.certificates));
        for (file, bytes) in &containers {
            let found = container::read(bytes, &keys, &self.path).map_err(|e| e.at(file.as_ref()));
            for key in self.or_refuse(found).unwrap_or_default() {
                // The certificate names the container, but the key's modulus decides.
                contents.keys.push(described(key, &certificates));
            }
        }
        contents.certificates = certificates.into_iter().map(|stored| stored.certificate).collect();
        contents.refused = self.refused;
        if contents.keys.is_empty() && contents.refused.is_empty() {
            return Err(Error::misuse("this profile has no private key")
                .hint("The EFS key may have been exported and removed, or be on a smart card."));
        }
        contents.into_keys()
    }

    /// The master keys that open with this login, by GUID.
    fn master_keys(&self, login: &Login) -> Result<MasterKeys> {
        let mut keys = MasterKeys::default();
        for (sid, files) in &self.users {
            let candidates = Candidates::new(login, sid)?;
            for file in files {
                match file.open(&candidates) {
                    Some(key) => drop(keys.open.insert(file.guid.clone(), key)),
                    None => keys.closed += 1,
                }
            }
        }
        if keys.open.is_empty() {
            let what = match login {
                Login::Password(_) => "password",
                Login::NtHash(_) => "NT hash",
            };
            let users: Vec<_> = self.users.iter().map(|(sid, _)| &sid[..]).collect();
            let what = format!("the {what} opens none of the {} master keys of {}", keys.closed, users.join(", "));
            return Err(Error::new(ErrorKind::WrongCredential(what)).hint(
                "Give the Windows password itself, not a PIN. The password of a Microsoft account, or one set by an \
                 administrator, does not open them. An NT hash opens only domain keys.",
            ));
        }
        Ok(keys)
    }

    /// Returns what could be read. Keeps the error in case nothing else is readable.
    fn or_refuse<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|e| self.refused.push(e)).ok()
    }
}

/// Master keys.
#[derive(Default)]
struct MasterKeys {
    /// The opened keys, by GUID.
    open: HashMap<String, Secret>,
    /// How many keys are still locked.
    closed: usize,
}

impl MasterKeys {
    /// Decrypts a blob.
    ///
    /// # Errors
    /// `WrongCredential` if its master key is locked, `Malformed`, `Unsupported`.
    fn open(&self, bytes: &[u8], entropy: &[u8]) -> Result<Secret> {
        let blob = blob::DpapiBlob::read(bytes)?;
        let Some(key) = self.open.get(&blob.master_key) else {
            let what = format!("it is encrypted with the master key {}, which does not open", blob.master_key);
            return Err(Error::new(ErrorKind::WrongCredential(what)).hint(format!(
                "{} open, {} do not.",
                self.open.len(),
                self.closed
            )));
        };
        blob.open(key, entropy)
    }
}

/// Adds the name that the key's certificate has in the store.
fn described(key: SoftKey, certificates: &[certificates::StoredCertificate]) -> SoftKey {
    let name = key.about().container.as_deref();
    let stored = certificates.iter().find(|stored| stored.container.is_some() && stored.container.as_deref() == name);
    let name = stored.and_then(|stored| stored.name.clone());
    key.named(name)
}

fn no_profile(path: &str, what: &str) -> Error {
    Error::new(ErrorKind::NotThisFormat(format!("not a Windows key store: {what}")))
        .at(path.as_ref())
        .hint("Give a user's folder: /Users/NAME, or Documents and Settings/NAME before Windows Vista.")
}

/// Descends into subfolders, ignoring case: a copy may be on a case-sensitive file system.
fn descend<'a>(
    tree: &'a (dyn Tree + 'static),
    from: Node,
    steps: &[&str],
) -> Result<Option<HeldNode<&'a (dyn Tree + 'static)>>> {
    let (mut node, mut held) = (from, None);
    for step in steps {
        let entries = tree.list(node)?;
        let folder = |kind| kind == NodeKind::Folder;
        let Some(entry) = entries.iter().find(|e| folder(e.kind) && e.name.eq_ignore_ascii_case(step)) else {
            return Ok(None);
        };
        let next = HeldNode::take(tree, node, entry)?;
        node = next.node();
        held = Some(next);
    }
    Ok(held)
}

/// The subfolders of a folder, with their names.
fn folders<'a>(
    tree: &'a (dyn Tree + 'static),
    folder: Node,
) -> Result<Vec<(String, HeldNode<&'a (dyn Tree + 'static)>)>> {
    let entries = tree.list(folder)?.into_iter().filter(|entry| entry.kind == NodeKind::Folder);
    entries
        .map(|entry| Ok((entry.name.to_string_lossy().into_owned(), HeldNode::take(tree, folder, &entry)?)))
        .collect()
}

/// The files of a folder that `wanted` accepts, without empty and overlong ones.
fn files(tree: &(dyn Tree + 'static), folder: Node, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Secret)>> {
    let mut all = Vec::new();
    for entry in tree.list(folder)?.into_iter().filter(|entry| entry.kind == NodeKind::File).take(FILES_MAX) {
        let name = entry.name.to_string_lossy().into_owned();
        if !wanted(&name) {
            continue;
        }
        let file = HeldNode::take(tree, folder, &entry)?;
        let size = tree.attributes(file.node())?.size;
        if (1..=FILE_MAX).contains(&size) {
            let mut bytes = Secret::zeroed(size as usize);
            let read = tree.read_at(file.node(), 0, &mut bytes)?;
            all.push((name, Secret::copy_from(&bytes[..read])));
        }
    }
    Ok(all)
}

/// A sequence of little-endian fields.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8]> {
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.get(..len));
        let bytes = bytes.ok_or_else(|| self.damaged(field, format!("{len} bytes, but the file is shorter")))?;
        self.at += len;
        Ok(bytes)
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        Ok(crate::little_endian::u32_at(self.take(4, field)?, 0))
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        Ok(crate::little_endian::u64_at(self.take(8, field)?, 0))
    }

    /// A length and that many bytes.
    pub fn counted(&mut self, field: &'static str) -> Result<&'a [u8]> {
        let len = self.u32(field)?;
        self.take(len as usize, field)
    }

    /// A GUID as text.
    pub fn guid(&mut self, field: &'static str) -> Result<String> {
        Ok(hex::guid(self.take(16, field)?.try_into().expect("16 bytes")))
    }

    /// The offset of the next field.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    pub fn damaged(&self, field: &'static str, what: impl Into<String>) -> Error {
        ErrorKind::Malformed { field, offset: self.at as u64, what: what.into() }.into()
    }
}

/// UTF-16 text up to its first zero. Control characters are replaced, because they could deceive a reader on a terminal.
fn wide_text(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).take_while(|unit| *unit != 0);
    char::decode_utf16(units).fold(String::new(), |mut text, unit| {
        let _ = text.write_char(unit.ok().filter(|c| !c.is_control()).unwrap_or(char::REPLACEMENT_CHARACTER));
        text
    })
}

/// Parses bytes as each kind of file, and as decrypted contents.
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(file) = MasterKeyFile::read(bytes)
        && file.quick()
    {
        let _ = file.open(&Candidates(vec![Secret::zeroed(20)]));
    }
    let _ = certificates::read(bytes);
    let keys = MasterKeys::default();
    let _ = container::read(bytes, &keys, "here");
    if let Ok(blob) = blob::DpapiBlob::read(bytes) {
        let _ = blob.open(&Secret::zeroed(64), &[]);
    }
    container::fuzz(bytes);
}
