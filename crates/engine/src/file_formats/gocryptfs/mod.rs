//! gocryptfs: each file is sealed in blocks, and names are encrypted with an IV for each folder.
//!
//! Facts are from gocryptfs 2.3 (github.com/rfjakob/gocryptfs) and its Documentation/file-format.md; the modules name the files. Both
//! can read what this module writes, and vice versa. Reverse mode and FIDO2 tokens are not supported.
//!
//! What the format cannot show: a file that was cut between two blocks, a block that was replaced by zeros (a hole), or by an older
//! one of the same file and place, and a name or a whole file that was moved or exchanged.

mod config;
mod keys;
mod stored;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use claviger_crypto::Secret;
pub use config::{CONFIG, ContentCipher, NameEncryption, NewFolder};

use self::config::{Config, KEY, MOST, NEW_CONFIG};
use self::keys::{FOLDER_FILE, Keys, SHORTENED, WHOLE};
use super::{FileFacts, FileFormat, FileKeys, NameRole, StoredFile, StoredFolder};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::hex;
use crate::parameters::{Parameter, Takes};
use crate::password_strength::GuessWork;
use crate::random;
use crate::trees::{HeldNode, NewNode, NodeKind, Renaming, Tree, Use};
use crate::verdict::Verdict;

/// See the module.
pub static GOCRYPTFS: Gocryptfs = Gocryptfs;

/// See [`GOCRYPTFS`].
pub struct Gocryptfs;

/// How many entries of the root folder are tried with a master key that nothing else proves.
const MOST_TRIED: usize = 64;

impl FileFormat for Gocryptfs {
    fn name(&self) -> &'static str {
        "gocryptfs"
    }

    fn key_file(&self) -> Option<&'static str> {
        Some(CONFIG)
    }

    fn ciphers(&self) -> Vec<&'static str> {
        ContentCipher::ALL.iter().map(|cipher| cipher.name().0).collect()
    }

    fn guess_work(&self) -> Option<GuessWork> {
        Some(NewFolder::default().guess_work())
    }

    fn create(&self, lower: &(dyn Tree + 'static), passphrase: &Secret, with: &Unlock<'_>) -> Result<()> {
        create(lower, passphrase, &NewFolder::asked(&with.folder)?, with)
    }

    fn change_passphrase(&self, lower: &(dyn Tree + 'static), new: &Secret, with: &Unlock<'_>) -> Result<()> {
        change_passphrase(lower, new, None, with)
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[Parameter::VolumeKey] }
    }

    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        let root = StoredFolder { tree: lower, folder: lower.root() };
        Ok(match root.read(CONFIG.as_ref(), MOST) {
            Ok(Some(bytes)) if config::is_config(&bytes) => Verdict::Yes(vec![format!("it has a {CONFIG}")]),
            Ok(_) => Verdict::Possible(vec![format!("its {CONFIG} cannot be read")]),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match root.read(FOLDER_FILE.name.as_ref(), FOLDER_FILE.len) {
                    Ok(_) => Verdict::Possible(vec![format!("it has a {}, but no {CONFIG}", FOLDER_FILE.name)]),
                    Err(_) => Verdict::No(vec![format!("no {CONFIG} in it")]),
                }
            }
            Err(e) => return Err(e.into()),
        })
    }

    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        let config = read_config(&**lower)?;
        let (master, proven) = master_key(&config, with)?;
        let mut keys = Keys::new(&config, &master, with.acceleration);
        if !proven {
            keys.unproven = !prove(&**lower, &keys)?;
        }
        with.has_opened();
        Ok(Box::new(keys))
    }

    fn owns(&self, name: &OsStr, in_root: bool) -> bool {
        let name = name.as_encoded_bytes();
        let long = name.starts_with(SHORTENED.as_bytes()) && name.ends_with(WHOLE.as_bytes());
        let of_root = in_root && (name == CONFIG.as_bytes() || is_left_over(OsStr::from_bytes(name)));
        of_root || name == FOLDER_FILE.name.as_bytes() || long
    }

    fn verifies(&self) -> bool {
        true
    }

    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        Ok(stored::facts(of)?)
    }
}

/// Parses a configuration and a master key: [`crate::fuzzing`].
pub(crate) fn fuzz_config(bytes: &[u8]) {
    let _ = (config::is_config(bytes), Config::parse(bytes), written_key(&Secret::copy_from(bytes)));
}

/// The configuration of a folder.
fn read_config(lower: &(dyn Tree + 'static)) -> Result<Config> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    match root.read(CONFIG.as_ref(), MOST) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let what = format!("not a gocryptfs folder: no {CONFIG} in it");
            Err(Error::new(ErrorKind::NotThisFormat(what)).hint(
                "If it was one, look for a copy of that file in a backup. Without it, only gocryptfs itself opens the folder, with \
                 -masterkey.",
            ))
        }
        read => match read? {
            Some(bytes) => Config::parse(&bytes),
            None => {
                let what = format!("it has more than {MOST} bytes, or is not a file: a symbolic link is not followed");
                Err(ErrorKind::Malformed { field: CONFIG, offset: 0, what }.into())
            }
        },
    }
}

/// The master key, and whether it is proven to be that of the configuration.
fn master_key(config: &Config, with: &Unlock<'_>) -> Result<(Secret, bool)> {
    match with.credentials {
        [Credential::Passphrase(passphrase)] => Ok((config.master_key(passphrase, with)?, true)),
        [Credential::VolumeKey(key)] => Ok((written_key(key)?, false)),
        [] | [_, _, ..] => {
            let what = "gocryptfs opens with one passphrase, or with the master key";
            Err(ErrorKind::WrongCredential(what.into()).into())
        }
        [other] => Err(ErrorKind::CredentialKind { format: GOCRYPTFS.name(), kind: other.kind() }.into()),
    }
}

/// A master key: 32 bytes, or as gocryptfs prints it, 64 hexadecimal digits with dashes and spaces between them.
fn written_key(given: &Secret) -> Result<Secret> {
    if given.len() == KEY {
        return Ok(Secret::copy_from(given));
    }
    let mut digits = Secret::zeroed(given.len());
    let mut len = 0;
    for byte in given.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != b'-') {
        digits[len] = *byte;
        len += 1;
    }
    let mut key = Secret::zeroed(KEY);
    if len != 2 * KEY || hex::decode(&digits[..len], &mut key).is_err() {
        let what = "a master key of gocryptfs is 32 bytes, or 64 hexadecimal digits";
        return Err(ErrorKind::WrongCredential(what.into()).into());
    }
    Ok(key)
}

/// How often a key was right and wrong.
#[derive(Default)]
struct Evidence {
    right: usize,
    wrong: usize,
}

impl Evidence {
    fn add(&mut self, right: bool) {
        *(if right { &mut self.right } else { &mut self.wrong }) += 1;
    }
}

/// Tries the keys on files and names of the root folder. Returns whether something proves them. A block of a file has a tag; one
/// name in 256 also decrypts with a wrong key.
fn prove(lower: &(dyn Tree + 'static), keys: &Keys) -> Result<bool> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    let iv = keys.name_iv(root).ok();
    let (mut blocks, mut names) = (Evidence::default(), Evidence::default());
    for entry in lower.list(root.folder)?.iter().take(MOST_TRIED) {
        if keys.role(&entry.name, true) != NameRole::Name {
            continue;
        }
        if let Some(iv) = iv.as_ref().filter(|_| keys.encrypts_names()) {
            names.add(keys.plain_name(&entry.name, iv)?.is_some());
        }
        if entry.kind == NodeKind::File {
            let file = HeldNode::take(lower, root.folder, entry)?;
            let of = StoredFile { tree: lower, file: file.node(), contents: file.node() };
            // Skip files that may not be read.
            keys.opens(of).unwrap_or_default().into_iter().for_each(|right| blocks.add(right));
        }
    }
    let by_names = names.right > 1 && names.right > names.wrong;
    // A damaged block does not outweigh many names.
    if blocks.right == 0 && !by_names && (blocks.wrong > 0 || names.right == 0 && names.wrong > 0) {
        return Err(ErrorKind::WrongCredential("the master key opens no file and no name of the folder".into()).into());
    }
    Ok(blocks.right > 0 || by_names)
}

/// Makes an empty folder one of gocryptfs, whose master key is random.
///
/// # Errors
/// `Misuse` if the folder is not empty, or `new` is impossible; `TooLittleMemory`, `Cancelled`; those of the tree.
pub fn create(folder: &(dyn Tree + 'static), passphrase: &Secret, new: &NewFolder, with: &Unlock<'_>) -> Result<()> {
    let root = folder.root();
    let entries = folder.list(root)?;
    if entries.iter().any(|entry| !is_left_over(&entry.name)) {
        return Err(Error::misuse("the folder is not empty").hint("Give a new or an empty folder."));
    }
    let config = new.config(passphrase, with)?;
    for entry in entries {
        folder.remove(root, &entry.name)?;
    }
    if new.names == NameEncryption::PerFolder {
        let mut iv = vec![0; FOLDER_FILE.len];
        random::fill(&mut iv)?;
        write(folder, FOLDER_FILE.name.as_ref(), &iv, &NewNode { mode: Some(0o444), owner: None })?;
    }
    replace_config(folder, &config, NewNode { mode: Some(0o400), owner: None })
}

/// Whether an interrupted [`create`] or [`change_passphrase`] leaves a file of this name in the root.
fn is_left_over(name: &OsStr) -> bool {
    let digits = name.as_encoded_bytes().strip_prefix(NEW_CONFIG.as_bytes());
    let is_new_config = digits.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit));
    name == FOLDER_FILE.name || is_new_config
}

/// Gives a folder another passphrase. `with` opens it now. The new cost is the logarithm of scrypt's N; by default it stays.
///
/// A copy of the old file still opens with the old passphrase.
///
/// # Errors
/// Those of opening it, and those of [`create`].
pub fn change_passphrase(
    folder: &(dyn Tree + 'static),
    passphrase: &Secret,
    log_n: Option<u8>,
    with: &Unlock<'_>,
) -> Result<()> {
    let config = read_config(folder)?;
    let (master, proven) = master_key(&config, with)?;
    if !proven && !prove(folder, &Keys::new(&config, &master, with.acceleration))? {
        return Err(Error::misuse("nothing in the folder shows that this is its master key")
            .hint("Give the passphrase, or add a file with the right key first."));
    }
    let log_n = log_n.unwrap_or(config.log_n());
    let new = config.resealed(&master, passphrase, log_n, with)?;
    // The old file is the only copy of the key.
    if *Config::parse(&new)?.master_key(passphrase, with)? != *master {
        return Err(io::Error::other("the new configuration does not open: the old one stays").into());
    }
    let held = HeldNode::lookup(folder, folder.root(), CONFIG.as_ref())?;
    let of = folder.attributes(held.node())?;
    replace_config(folder, &new, NewNode { mode: of.mode, owner: of.owner })
}

/// Replaces the configuration, with one that is complete under another name first.
fn replace_config(folder: &(dyn Tree + 'static), config: &[u8], of: NewNode) -> Result<()> {
    let mut number = [0; 8];
    random::fill(&mut number)?;
    let temporary = OsString::from(format!("{NEW_CONFIG}{}", hex::digits(&number)));
    let root = StoredFolder { tree: folder, folder: folder.root() };
    let replaced = write(folder, &temporary, config, &of).and_then(|()| {
        let there = root.read(&temporary, MOST)?;
        if there.as_deref() != Some(config) {
            return Err(io::Error::other("the new configuration could not be read back: the old one stays").into());
        }
        Ok(folder.rename(root.folder, &temporary, root.folder, CONFIG.as_ref(), Renaming::Replace)?)
    });
    replaced.inspect_err(|_| drop(folder.remove(root.folder, &temporary)))?;
    Ok(folder.sync(root.folder, false)?)
}

/// Writes a new file of the root folder, durably.
fn write(folder: &(dyn Tree + 'static), name: &OsStr, contents: &[u8], new: &NewNode) -> Result<()> {
    let root = folder.root();
    let usage = Use { read: true, write: true };
    let file = HeldNode::new(folder, folder.create_open(root, name, new, usage)?);
    let written = folder.write_at(file.node(), 0, contents).and_then(|()| folder.sync(file.node(), false));
    Ok(written.and(folder.release(file.node()))?)
}
