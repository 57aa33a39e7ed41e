//! gocryptfs: each file is sealed in blocks, and names are encrypted with an IV for each folder.
//!
//! Facts are from gocryptfs 2.3 (github.com/rfjakob/gocryptfs) and its Documentation/file-format.md; the modules name the files. Both
//! can read what this module writes, and vice versa.
//!
//! What the format cannot show: a file that was cut between two blocks, a block that was replaced by zeros (a hole), or by an older
//! one of the same file and place, and a name or a whole file that was moved or exchanged.

mod config;
mod keys;
mod reverse;
mod stored;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;

use claviger_crypto::Secret;
pub use config::{CONFIG, ContentCipher, NameEncryption, NewFolder};

use self::config::{Config, KEY, LEAST_LONGEST_NAME, MOST, NEW_CONFIG};
use self::keys::{FOLDER_FILE, Keys, Proof, holds_whole_name};
use self::reverse::{REVERSE_CONFIG, ReverseKeys};
use super::new_files::{self, is_numbered, write_key_file};
use super::{FileFacts, FileFormat, FileKeys, NameRole, StoredFile, StoredFolder};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::fido2::Fido2Token;
use crate::hex;
use crate::key_process::folder::{FolderKeyProcess, KeylessFolder};
use crate::parameters::{Parameter, Takes};
use crate::password_strength::GuessWork;
use crate::random;
use crate::trees::{HeldNode, NewNode, Node, NodeKind, Renaming, Tree};
use crate::verdict::Verdict;

/// See the module.
pub static GOCRYPTFS: Gocryptfs = Gocryptfs;

/// See [`GOCRYPTFS`].
pub struct Gocryptfs;

/// How many entries are tried with a master key that nothing else proves.
const MOST_TRIED: usize = 64;

impl FileFormat for Gocryptfs {
    fn name(&self) -> &'static str {
        "gocryptfs"
    }

    fn key_file(&self) -> Option<&'static str> {
        Some(CONFIG)
    }

    fn reverse_key_file(&self) -> Option<&'static str> {
        Some(REVERSE_CONFIG)
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
        Takes { creating: &[], opening: &[Parameter::VolumeKey, Parameter::ReverseView] }
    }

    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        let root = StoredFolder { tree: lower, folder: lower.root() };
        Ok(match ConfigFile::read(lower, CONFIG)? {
            ConfigFile::Bytes(bytes) if config::is_config(&bytes) => {
                let by_fido2 = Config::parse(&bytes).is_ok_and(|config| config.by_fido2());
                let by_fido2 = by_fido2.then(|| "a FIDO2 key opens it".to_owned());
                Verdict::Yes([format!("it has a {CONFIG}")].into_iter().chain(by_fido2).collect())
            }
            ConfigFile::Link(_) => {
                Verdict::Possible(vec![format!("its {CONFIG} is a symbolic link, which is not followed")])
            }
            ConfigFile::Bytes(_) | ConfigFile::Other => Verdict::Possible(vec![format!("its {CONFIG} cannot be read")]),
            ConfigFile::Missing => match root.read(FOLDER_FILE.name.as_ref(), FOLDER_FILE.len) {
                Ok(_) => Verdict::Possible(vec![format!("it has a {}, but no {CONFIG}", FOLDER_FILE.name)]),
                Err(_) if !matches!(ConfigFile::read(lower, REVERSE_CONFIG)?, ConfigFile::Missing) => {
                    Verdict::Possible(vec![format!("a plain folder that {REVERSE_CONFIG} can show encrypted")])
                }
                Err(_) => Verdict::No(vec![format!("no {CONFIG} in it")]),
            },
        })
    }

    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        let Opened { config, master, proof } = opened(&**lower, with)?;
        with.has_opened();
        let keys = Keys::new(&config, &master, proof, with.acceleration);
        if !with.folder.reverse {
            return Ok(Box::new(keys));
        }
        let sealing = keys::sealing(&config, &master, with.acceleration);
        Ok(Box::new(ReverseKeys { keys: Arc::new(keys), sealing: Arc::new(sealing) }))
    }

    fn check_key_process(&self) -> Result<()> {
        Ok(())
    }

    fn with_key_process(
        &self,
        _lower: &Arc<dyn Tree>,
        outline: KeylessFolder,
        key_process: Arc<dyn FolderKeyProcess>,
    ) -> Result<Box<dyn FileKeys>> {
        Ok(Box::new(Keys::with_key_process(outline, key_process)?))
    }

    fn fido2(&self, lower: &(dyn Tree + 'static), with: &Unlock<'_>) -> Result<Option<Fido2Token>> {
        config_in(lower, config_name(with))?.map_or(Ok(None), |config| config.fido2())
    }

    fn owns(&self, name: &OsStr, in_root: bool) -> bool {
        in_root && (name == CONFIG || is_left_over(name)) || name == FOLDER_FILE.name || holds_whole_name(name)
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

/// What opens a folder.
struct Opened {
    config: Config,
    master: Secret,
    proof: Proof,
}

fn opened(lower: &(dyn Tree + 'static), with: &Unlock<'_>) -> Result<Opened> {
    if with.folder.reverse {
        return reverse_opened(lower, with);
    }
    let config = match (read_config(lower), with.credentials) {
        (Err(e), [Credential::VolumeKey(key)]) if matches!(e.kind, ErrorKind::NotThisFormat(_)) => {
            return without_config(lower, written_key(key)?, with);
        }
        (config, _) => config?,
    };
    let (master, proven) = master_key(&config, with)?;
    let proof = match proven {
        true => Proof::Given,
        false => match Evidence::of(lower, &Keys::new(&config, &master, Proof::None, with.acceleration))?.proves()? {
            true => Proof::Given,
            false => Proof::None,
        },
    };
    Ok(Opened { config, master, proof })
}

/// Opens a plain folder that is shown encrypted. Nothing in it proves a master key.
fn reverse_opened(lower: &(dyn Tree + 'static), with: &Unlock<'_>) -> Result<Opened> {
    let config = config_in(lower, REVERSE_CONFIG)?.ok_or_else(|| {
        Error::new(ErrorKind::NotThisFormat(format!("no {REVERSE_CONFIG} in this folder")))
            .hint("Make one first: claviger create --format gocryptfs --reverse.")
    })?;
    if config.cipher != ContentCipher::AesSiv {
        let what = format!("reverse mode with {}", config.cipher.name().0);
        return Err(Error::unsupported(what).hint("Only AES-SIV is safe in reverse mode. Make a new configuration."));
    }
    let (master, proven) = master_key(&config, with)?;
    Ok(Opened { config, master, proof: if proven { Proof::Given } else { Proof::None } })
}

/// Opens a folder whose configuration is lost. It was what the master key opens most of.
fn without_config(lower: &(dyn Tree + 'static), master: Secret, with: &Unlock<'_>) -> Result<Opened> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    let per_folder = root.read(FOLDER_FILE.name.as_ref(), FOLDER_FILE.len).is_ok();
    let mut best = None;
    for new in NewFolder::possible(per_folder) {
        let config = new.unsealed()?;
        let found = Evidence::of(lower, &Keys::new(&config, &master, Proof::None, with.acceleration))?;
        // Names do not show the cipher.
        if found.blocks.right > 0 && best.as_ref().is_none_or(|(most, _)| found.balance() > *most) {
            best = Some((found.balance(), new));
        }
    }
    let Some((_, new)) = best else {
        let what = format!("{CONFIG} is missing, and the master key opens none of the first files");
        return Err(ErrorKind::WrongCredential(what).into());
    };
    let limit = if new.names == NameEncryption::None { None } else { longest_name(lower) };
    let config = NewFolder { longest_name: limit, ..new }.unsealed()?;
    Ok(Opened { config, master, proof: Proof::Tried })
}

/// The limit for names, if it is not the usual one: all whole names that files hold are longer.
fn longest_name(lower: &(dyn Tree + 'static)) -> Option<u8> {
    let (mut shortest, mut folders) = (u64::MAX, vec![None]);
    while let Some(held) = folders.pop() {
        let folder = held.as_ref().map_or(lower.root(), HeldNode::node);
        // Skip folders that may not be read.
        for entry in lower.list(folder).unwrap_or_default() {
            let Some(node) = HeldNode::take(lower, folder, &entry).ok() else { continue };
            match entry.kind {
                NodeKind::Folder => folders.push(Some(node)),
                NodeKind::File if holds_whole_name(&entry.name) => {
                    // A shorter name was never shortened.
                    let size = lower.attributes(node.node()).map_or(u64::MAX, |of| of.size);
                    shortest = shortest.min(if size > LEAST_LONGEST_NAME.into() { size } else { u64::MAX });
                }
                NodeKind::File | NodeKind::Link | NodeKind::Special => {}
            }
        }
    }
    u8::try_from(shortest - 1).ok().filter(|limit| *limit < u8::MAX)
}

/// The configuration of a folder.
fn read_config(lower: &(dyn Tree + 'static)) -> Result<Config> {
    config_in(lower, CONFIG)?.ok_or_else(|| {
        let what = format!("not a gocryptfs folder: no {CONFIG} in it");
        Error::new(ErrorKind::NotThisFormat(what)).hint(
            "If it was one, look for a copy of that file in a backup. Without it, only the master key opens the folder, with \
             --volume-key-file and --format.",
        )
    })
}

/// The configuration in the root's file of this name.
fn config_in(lower: &(dyn Tree + 'static), file: &'static str) -> Result<Option<Config>> {
    let malformed = |what: String| Error::from(ErrorKind::Malformed { field: file, offset: 0, what });
    match ConfigFile::read(lower, file)? {
        ConfigFile::Missing => Ok(None),
        ConfigFile::Bytes(bytes) => Config::parse(&bytes).map(Some).map_err(|e| match e.kind {
            ErrorKind::Malformed { what, .. } => malformed(what),
            _ => e,
        }),
        ConfigFile::Link(target) => {
            let hint = format!("Replace the link with a copy of the file that it leads to: {}", target.display());
            Err(malformed("it is a symbolic link, which is not followed".to_owned()).hint(hint))
        }
        ConfigFile::Other => Err(malformed(format!("it is not a file, or has more than {MOST} bytes"))),
    }
}

/// The name of the configuration that is used.
fn config_name(with: &Unlock<'_>) -> &'static str {
    if with.folder.reverse { REVERSE_CONFIG } else { CONFIG }
}

/// What is in the place of a configuration.
enum ConfigFile {
    Bytes(Vec<u8>),
    /// A symbolic link to this target. It may lead out of the folder, to another folder's key.
    Link(OsString),
    /// A file that is too long, or no file.
    Other,
    Missing,
}

impl ConfigFile {
    fn read(lower: &(dyn Tree + 'static), name: &str) -> io::Result<Self> {
        let root = StoredFolder { tree: lower, folder: lower.root() };
        Ok(match root.read(name.as_ref(), MOST) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Self::Missing,
            read => match read? {
                Some(bytes) => Self::Bytes(bytes),
                None => {
                    let file = HeldNode::lookup(lower, root.folder, name.as_ref())?;
                    lower.link_target(file.node()).map_or(Self::Other, Self::Link)
                }
            },
        })
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
struct Tally {
    right: usize,
    wrong: usize,
}

impl Tally {
    fn add(&mut self, right: bool) {
        *(if right { &mut self.right } else { &mut self.wrong }) += 1;
    }
}

/// What a key opens. A block of a file has a tag; one name in 256 also decrypts with a wrong key.
#[derive(Default)]
struct Evidence {
    blocks: Tally,
    names: Tally,
}

impl Evidence {
    /// Tries keys on the first files and names.
    fn of(lower: &(dyn Tree + 'static), keys: &Keys) -> Result<Self> {
        let (mut found, mut left) = (Self::default(), MOST_TRIED);
        let mut folders = VecDeque::from([None]);
        while let Some(held) = folders.pop_front() {
            let folder = held.as_ref().map_or(lower.root(), HeldNode::node);
            let of = StoredFolder { tree: lower, folder };
            let iv = keys.name_iv(of).ok();
            let entries = match lower.list(folder) {
                // Skip folders that may not be read.
                Err(_) if !of.is_root() => continue,
                listed => listed?,
            };
            let names = entries.into_iter().filter(|entry| keys.role(&entry.name, of.is_root()) == NameRole::Name);
            for entry in names.take(left) {
                left -= 1;
                if let Some(iv) = iv.as_ref().filter(|_| keys.encrypts_names()) {
                    found.names.add(keys.plain_name(&entry.name, iv)?.is_some());
                }
                match entry.kind {
                    NodeKind::File => found.try_file(HeldNode::take(lower, folder, &entry)?.node(), lower, keys),
                    NodeKind::Folder => folders.extend(HeldNode::take(lower, folder, &entry).ok().map(Some)),
                    NodeKind::Link | NodeKind::Special => {}
                }
            }
        }
        Ok(found)
    }

    /// Tries keys on the first block of a file.
    fn try_file(&mut self, file: Node, lower: &(dyn Tree + 'static), keys: &Keys) {
        let of = StoredFile { tree: lower, file, contents: file };
        // Skip files that may not be read.
        keys.opens(of).unwrap_or_default().into_iter().for_each(|right| self.blocks.add(right));
    }

    /// Whether anything proves the key.
    ///
    /// # Errors
    /// `WrongCredential` if something disproves it.
    fn proves(&self) -> Result<bool> {
        let Self { blocks, names } = self;
        let by_names = names.right > 1 && names.right > names.wrong;
        // A damaged block does not outweigh many names.
        if blocks.right == 0 && !by_names && (blocks.wrong > 0 || names.right == 0 && names.wrong > 0) {
            return Err(
                ErrorKind::WrongCredential("the master key opens no file and no name of the folder".into()).into()
            );
        }
        Ok(blocks.right > 0 || by_names)
    }

    /// How much more was right than wrong.
    fn balance(&self) -> isize {
        let of = |tally: &Tally| tally.right.cast_signed() - tally.wrong.cast_signed();
        of(&self.blocks) + of(&self.names)
    }
}

/// Makes an empty folder one of gocryptfs, whose master key is random.
///
/// # Errors
/// `Misuse` if the folder is not empty, or `new` is impossible; `TooLittleMemory`, `Cancelled`; those of the tree.
pub fn create(folder: &(dyn Tree + 'static), passphrase: &Secret, new: &NewFolder, with: &Unlock<'_>) -> Result<()> {
    if with.folder.reverse {
        return create_reverse(folder, passphrase, new, with);
    }
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
        new_files::write(folder, root, FOLDER_FILE.name.as_ref(), &iv, &NewNode { mode: Some(0o444), owner: None })?;
    }
    write_key_file(folder, CONFIG, &config, &NEW_FILE, Renaming::Replace)
}

/// Gives a plain folder the configuration that shows it encrypted. Its files stay as they are.
fn create_reverse(
    folder: &(dyn Tree + 'static),
    passphrase: &Secret,
    new: &NewFolder,
    with: &Unlock<'_>,
) -> Result<()> {
    if new.cipher != ContentCipher::AesSiv {
        return Err(Error::misuse("only AES-SIV is safe in reverse mode").hint("Omit --cipher."));
    }
    if !matches!(ConfigFile::read(folder, REVERSE_CONFIG)?, ConfigFile::Missing) {
        return Err(Error::misuse(format!("the folder already has a {REVERSE_CONFIG}"))
            .hint("It stays. To change its password: claviger change --reverse"));
    }
    write_key_file(folder, REVERSE_CONFIG, &new.config(passphrase, with)?, &NEW_FILE, Renaming::Keep)
}

/// A new configuration.
const NEW_FILE: NewNode = NewNode { mode: Some(0o400), owner: None };

/// Whether an interrupted [`create`] or [`change_passphrase`] leaves a file of this name in the root.
fn is_left_over(name: &OsStr) -> bool {
    name == FOLDER_FILE.name || is_numbered(name, NEW_CONFIG)
}

/// Gives a folder another passphrase, and if its configuration is lost, another configuration. `with` opens it now. The new cost is the logarithm of scrypt's N; by default it stays.
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
    let Opened { config, master, proof } = opened(folder, with)?;
    if proof == Proof::None {
        return Err(Error::misuse("nothing in the folder shows that this is its master key")
            .hint("Give the passphrase, or add a file with the right key first."));
    }
    let log_n = log_n.unwrap_or(config.log_n());
    let new = config.resealed(&master, passphrase, log_n, with)?;
    // The old file is the only copy of the key.
    if *Config::parse(&new)?.master_key(passphrase, with)? != *master {
        return Err(io::Error::other("the new configuration does not open: the old one stays").into());
    }
    let name = config_name(with);
    let of = match HeldNode::lookup(folder, folder.root(), name.as_ref()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => NEW_FILE,
        held => {
            let of = folder.attributes(held?.node())?;
            NewNode { mode: of.mode, owner: of.owner }
        }
    };
    write_key_file(folder, name, &new, &of, Renaming::Replace)
}
