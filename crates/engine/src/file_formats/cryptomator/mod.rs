//! Cryptomator vaults of the formats 7 and 8, and 6 for reading: each file is sealed in blocks, names are encrypted with the ID of their
//! folder, and the tree of folders is stored flat.
//!
//! Facts are from docs.cryptomator.org ("Vault Cryptography") and from Cryptomator's libraries cryptolib 2.2 and cryptofs 2.9
//! (github.com/cryptomator); the modules name the files. Vaults of Cryptomator Hub and older formats are not supported.
//!
//! What the format cannot show: a file that was cut between two blocks, an older version of a block or of a whole file, and a file
//! that is missing.

mod changes;
mod check;
mod config;
mod keys;
mod lost;
mod old;
mod stored;
mod tree;
mod vault;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use claviger_crypto::Secret;
pub use config::{CONFIG, CipherCombo, MASTERKEY};

use self::config::{COST, Config, KEY, KeyFile, MOST, Token, malformed};
use self::keys::Keys;
use self::tree::{DATA, DIR_ID, NAME, Part, VaultTree};
use self::vault::Vault;
use super::new_files::{is_numbered, write, write_key_file};
use super::{FileFacts, FileFormat, FileKeys, NameIv, StoredFile, StoredFolder};
use crate::credential::{Credential, FolderOptions, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::key_process::folder::{FolderKeyProcess, KeylessFolder};
use crate::parameters::{Parameter, Takes};
use crate::password_strength::GuessWork;
use crate::trees::{HeldNode, NewNode, Node, NodeKind, Renaming, Tree};
use crate::verdict::Verdict;
use crate::{hex, random};

/// See the module.
pub static CRYPTOMATOR: Cryptomator = Cryptomator;

/// See [`CRYPTOMATOR`].
pub struct Cryptomator;

impl FileFormat for Cryptomator {
    fn name(&self) -> &'static str {
        "Cryptomator"
    }

    fn key_file(&self) -> Option<&'static str> {
        Some(MASTERKEY)
    }

    fn key_file_copies(&self, lower: &(dyn Tree + 'static)) -> Result<Vec<OsString>> {
        key_file_copies(lower)
    }

    fn ciphers(&self) -> Vec<&'static str> {
        CipherCombo::ALL.iter().map(|combo| combo.name()).collect()
    }

    fn guess_work(&self) -> Option<GuessWork> {
        Some(GuessWork::Scrypt { n: COST.n, r: COST.r.into() })
    }

    fn create(&self, lower: &(dyn Tree + 'static), passphrase: &Secret, with: &Unlock<'_>) -> Result<()> {
        create(lower, passphrase, asked(&with.folder)?, with)
    }

    fn change_passphrase(&self, lower: &(dyn Tree + 'static), new: &Secret, with: &Unlock<'_>) -> Result<()> {
        change_passphrase(lower, new, with)
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[Parameter::VolumeKey] }
    }

    fn check_new_passphrase(&self, passphrase: &Secret) -> Result<()> {
        config::normalised(passphrase).map(drop)
    }

    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        let root = StoredFolder { tree: lower, folder: lower.root() };
        let read = |name: &str| match root.read(name.as_ref(), MOST) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::from(e)),
        };
        Ok(match (read(CONFIG)?, read(MASTERKEY)?) {
            (Some(Some(bytes)), _) if config::is_token(&bytes) => Verdict::Yes(vec![format!("it has a {CONFIG}")]),
            (_, Some(Some(bytes))) if config::is_key_file(&bytes) => {
                let old = KeyFile::parse(&bytes).ok().and_then(|file| file.about_version());
                let old = old.map_or(String::new(), |about| format!(" of {about}"));
                Verdict::Yes(vec![format!("it has a {MASTERKEY}{old}")])
            }
            (None, None) => Verdict::No(vec![format!("neither {CONFIG} nor {MASTERKEY} in it")]),
            _ => Verdict::Possible(vec![format!("its {CONFIG} or {MASTERKEY} cannot be read")]),
        })
    }

    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        let (config, master) = opened(&**lower, with)?;
        let vault = Vault::new(config, &master, with.acceleration);
        let tree = VaultTree::new(lower.clone(), vault)?;
        with.has_opened();
        Ok(Box::new(Keys { tree: Arc::new(tree) }))
    }

    fn check_key_process(&self) -> Result<()> {
        Ok(())
    }

    fn with_key_process(
        &self,
        lower: &Arc<dyn Tree>,
        outline: KeylessFolder,
        key_process: Arc<dyn FolderKeyProcess>,
    ) -> Result<Box<dyn FileKeys>> {
        let tree = VaultTree::new(lower.clone(), Vault::with_key_process(outline, key_process)?)?;
        Ok(Box::new(Keys { tree: Arc::new(tree) }))
    }

    fn owns(&self, name: &OsStr, in_root: bool) -> bool {
        let beside_contents = [DIR_ID, NAME].iter().any(|own| name == *own) || name == Part::Folder.file();
        in_root && (is_of_root(name) || name == DATA || left_over(name)) || beside_contents
    }

    fn verifies(&self) -> bool {
        true
    }

    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        Ok(stored::facts(of)?)
    }
}

/// Parses a configuration, a key file and a master key: [`crate::fuzzing`].
pub(crate) fn fuzz_vault(bytes: &[u8]) {
    let _ = (config::is_token(bytes), config::is_key_file(bytes));
    if let Ok(token) = Token::parse(bytes) {
        let _ = token.verify(&Secret::zeroed(2 * KEY));
    }
    let _ = (KeyFile::parse(bytes).and_then(|file| file.config()), written_key(&Secret::copy_from(bytes)));
}

/// Whether a file of this name in the vault's folder belongs to it.
fn is_of_root(name: &OsStr) -> bool {
    const OWN: [&str; 3] = [CONFIG, MASTERKEY, "IMPORTANT.rtf"];
    OWN.iter().any(|own| name == *own) || is_backup(name)
}

/// Whether this is a copy that Cryptomator made: `masterkey.cryptomator.12AB34CD.bkup` (cryptofs, BackupHelper.java).
fn is_backup(name: &OsStr) -> bool {
    let of = |own: &str| {
        let digits = name.as_bytes().strip_prefix(own.as_bytes())?.strip_prefix(b".")?.strip_suffix(b".bkup")?;
        Some(digits.len() == 8 && digits.iter().all(u8::is_ascii_hexdigit))
    };
    [CONFIG, MASTERKEY].into_iter().any(|own| of(own) == Some(true))
}

/// How a new key file is called until it is complete.
const NEW_MASTERKEY: &str = "masterkey.cryptomator.new.";

/// Whether an interrupted [`create`] or [`change_passphrase`] leaves a file of this name in the root.
fn left_over(name: &OsStr) -> bool {
    is_numbered(name, NEW_MASTERKEY)
}

/// Files in the root that hold the keys, too: Cryptomator's copies, and those of sync programs.
fn key_file_copies(lower: &(dyn Tree + 'static)) -> Result<Vec<OsString>> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    let mut copies = Vec::new();
    for entry in lower.list(root.folder)? {
        let may_be = entry.kind == NodeKind::File && entry.name != MASTERKEY;
        let named_so = entry.name.as_bytes().starts_with(b"masterkey");
        if may_be
            && named_so
            && root.read(&entry.name, MOST).is_ok_and(|read| read.is_some_and(|bytes| config::is_key_file(&bytes)))
        {
            copies.push(entry.name);
        }
    }
    copies.sort();
    Ok(copies)
}

/// Whether an interrupted [`create`] leaves a node of this name in the root.
fn of_creation(name: &OsStr) -> bool {
    name == CONFIG || name == DATA || left_over(name)
}

/// A file of the vault. `None` if it is missing.
fn read_own(lower: &(dyn Tree + 'static), name: &'static str) -> Result<Option<Vec<u8>>> {
    let root = StoredFolder { tree: lower, folder: lower.root() };
    match root.read(name.as_ref(), MOST) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        read => match read? {
            Some(bytes) => Ok(Some(bytes)),
            None => {
                let what = format!("it has more than {MOST} bytes, or is not a file: a symbolic link is not followed");
                Err(malformed(name, what))
            }
        },
    }
}

/// The configuration of a vault, which nothing proves yet.
fn read_config(lower: &(dyn Tree + 'static)) -> Result<Config> {
    match read_own(lower, CONFIG)? {
        Some(bytes) => Ok(Token::parse(&bytes)?.config),
        None => read_key_file(lower)?.config(),
    }
}

fn read_key_file(lower: &(dyn Tree + 'static)) -> Result<KeyFile> {
    match read_own(lower, MASTERKEY)? {
        Some(bytes) => KeyFile::parse(&bytes),
        None => {
            let what = format!("not a Cryptomator vault that a passphrase opens: no {MASTERKEY} in it");
            Err(Error::new(ErrorKind::NotThisFormat(what)).hint(
                "If it was one, look for a copy of that file: masterkey.cryptomator.….bkup beside it, or in a backup. With the 64 \
                 bytes of the keys, --volume-key-file opens the vault without it.",
            ))
        }
    }
}

/// The configuration of a vault and its keys, each proven by the other.
fn opened(lower: &(dyn Tree + 'static), with: &Unlock<'_>) -> Result<(Config, Secret)> {
    let token = read_own(lower, CONFIG)?.map(|bytes| Token::parse(&bytes)).transpose()?;
    match (token, with.credentials) {
        (token, [Credential::Passphrase(passphrase)]) => {
            let file = read_key_file(lower)?;
            let config = token.as_ref().map_or_else(|| file.config(), |token| Ok(token.config))?;
            let master = file.master_key(passphrase, with)?;
            match token {
                Some(token) if !token.verify(&master) => {
                    let what = format!("its signature is wrong: it was changed, or belongs to another {MASTERKEY}");
                    Err(malformed(CONFIG, what))
                }
                None if !file.verifies_version(&master) => Err(malformed(MASTERKEY, "its version was changed")),
                Some(_) | None => Ok((config, master)),
            }
        }
        (Some(token), [Credential::VolumeKey(key)]) => {
            let master = written_key(key)?;
            if !token.verify(&master) {
                return Err(ErrorKind::WrongCredential(format!("the keys did not sign {CONFIG}")).into());
            }
            Ok((token.config, master))
        }
        (None, [Credential::VolumeKey(key)]) => {
            let (file, master) = (read_key_file(lower)?, written_key(key)?);
            if !file.verifies_version(&master) {
                return Err(ErrorKind::WrongCredential(format!("the keys are not those of {MASTERKEY}")).into());
            }
            Ok((file.config()?, master))
        }
        (_, [] | [_, _, ..]) => {
            Err(ErrorKind::WrongCredential("Cryptomator opens with one passphrase, or with its keys".into()).into())
        }
        (_, [other]) => Err(ErrorKind::CredentialKind { format: CRYPTOMATOR.name(), kind: other.kind() }.into()),
    }
}

/// The two keys: 64 bytes, the one for contents first, or 128 hexadecimal digits, or two keys in Base64.
fn written_key(given: &Secret) -> Result<Secret> {
    if given.len() == 2 * KEY {
        return Ok(Secret::copy_from(given));
    }
    let mut text = Secret::zeroed(given.len());
    let mut len = 0;
    for byte in given.iter().filter(|byte| !byte.is_ascii_whitespace()) {
        text[len] = *byte;
        len += 1;
    }
    let (text, mut key) = (&text[..len], Secret::zeroed(2 * KEY));
    let half = |text: &[u8]| {
        let mut half = Secret::zeroed(KEY + 2);
        let decoded = STANDARD.decode_slice(text, &mut half).or_else(|_| URL_SAFE.decode_slice(text, &mut half));
        let len = decoded.ok()?;
        (len == KEY).then(|| Secret::copy_from(&half[..KEY]))
    };
    let digits = len == 4 * KEY && hex::decode(text, &mut key).is_ok();
    if !digits {
        let halves =
            (len == 2 * BASE64_KEY).then(|| text.split_at(BASE64_KEY)).map(|(enc, mac)| (half(enc), half(mac)));
        let Some((Some(enc), Some(mac))) = halves else {
            let what = "the keys of Cryptomator are 64 bytes, 128 hexadecimal digits, or two keys in Base64";
            return Err(ErrorKind::WrongCredential(what.into()).into());
        };
        key = Secret::concat(&[&enc, &mac]);
    }
    Ok(key)
}

/// Characters of a key in Base64.
const BASE64_KEY: usize = KEY.div_ceil(3) * 4;

/// The cipher that the options ask for.
///
/// # Errors
/// `Misuse` for what Cryptomator does not have.
fn asked(options: &FolderOptions<'_>) -> Result<CipherCombo> {
    if options.key_bytes.is_some() {
        return Err(Error::misuse("the keys of Cryptomator have a fixed size").hint("Omit --key-size."));
    }
    if options.clear_names {
        return Err(Error::misuse("Cryptomator always encrypts names"));
    }
    let Some(name) = options.cipher else { return Ok(CipherCombo::default()) };
    CipherCombo::ALL.into_iter().find(|combo| combo.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        let known = CipherCombo::ALL.map(CipherCombo::name).join(", ");
        Error::misuse(format!("Cryptomator has no cipher {name:?}")).hint(format!("It has {known}."))
    })
}

/// Makes an empty folder a vault of format 8, whose keys are random.
///
/// # Errors
/// `Misuse` if the folder is not empty; `TooLittleMemory`, `Cancelled`; those of the tree.
pub fn create(
    folder: &(dyn Tree + 'static),
    passphrase: &Secret,
    cipher: CipherCombo,
    with: &Unlock<'_>,
) -> Result<()> {
    must_be_unused(folder)?;
    // An empty vault of Cryptomator Hub has no key file either.
    if let Some(Err(e)) = read_own(folder, CONFIG)?.map(|bytes| Token::parse(&bytes))
        && matches!(e.kind, ErrorKind::Unsupported { .. })
    {
        return Err(e);
    }
    let (config, master) = (Config::new(cipher), random::secret(2 * KEY)?);
    let key_file = KeyFile::new().rewrapped(&master, passphrase, with)?;
    // Somebody may have put something into it in the meantime.
    must_be_unused(folder)?;
    remove_left_over(folder)?;
    let vault = Vault::new(config, &master, with.acceleration);
    make_root(folder, &vault)?;
    // A vault without its key file is unfinished: that is the last one.
    write(folder, folder.root(), CONFIG.as_ref(), &config.signed(&master)?, &NewNode::default())?;
    write_key_file(folder, MASTERKEY, &key_file, &NewNode { mode: Some(0o600), owner: None }, Renaming::Replace)
}

/// Makes the vault's root folder.
fn make_root(lower: &(dyn Tree + 'static), vault: &Vault) -> Result<()> {
    let [first, second] = vault.place(&NameIv::default())?;
    let mut at = lower.root();
    let mut held = Vec::new();
    for name in [DATA, &first, &second] {
        at = lower.make_folder(at, name.as_ref(), &NewNode::default())?;
        held.push(HeldNode::new(lower, at));
    }
    write(lower, at, DIR_ID.as_ref(), &vault.seal_small(&[])?, &NewNode::default())
}

/// Fails if a folder holds more than an interrupted [`create`] leaves.
fn must_be_unused(lower: &(dyn Tree + 'static)) -> Result<()> {
    let entries = lower.list(lower.root())?;
    if entries.iter().any(|entry| !of_creation(&entry.name)) || !is_unused(lower)? {
        return Err(Error::misuse("the folder is not empty").hint("Give a new or an empty folder."));
    }
    Ok(())
}

/// Whether a vault's data are at most what an interrupted [`create`] leaves: folders, and one file that holds nothing.
fn is_unused(lower: &(dyn Tree + 'static)) -> Result<bool> {
    fn empty(lower: &(dyn Tree + 'static), folder: Node, depth: usize) -> io::Result<bool> {
        for entry in lower.list(folder)? {
            let is_empty = match entry.kind {
                NodeKind::Folder if depth < 2 => {
                    empty(lower, HeldNode::take(lower, folder, &entry)?.node(), depth + 1)?
                }
                NodeKind::File => depth == 2 && entry.name == DIR_ID,
                NodeKind::Folder | NodeKind::Link | NodeKind::Special => false,
            };
            if !is_empty {
                return Ok(false);
            }
        }
        Ok(true)
    }
    match HeldNode::lookup(lower, lower.root(), DATA.as_ref()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        data => Ok(empty(lower, data?.node(), 0)?),
    }
}

/// Removes what an interrupted [`create`] left, and nothing else: a folder with anything else in it cannot be removed.
fn remove_left_over(lower: &(dyn Tree + 'static)) -> Result<()> {
    fn remove(lower: &(dyn Tree + 'static), folder: Node, depth: usize) -> io::Result<()> {
        for entry in lower.list(folder)? {
            let ours = match depth {
                0 => of_creation(&entry.name),
                3 => entry.name == DIR_ID,
                _ => entry.kind == NodeKind::Folder,
            };
            if ours && entry.kind == NodeKind::Folder {
                remove(lower, HeldNode::take(lower, folder, &entry)?.node(), depth + 1)?;
            }
            if ours {
                lower.remove(folder, &entry.name)?;
            }
        }
        Ok(())
    }
    Ok(remove(lower, lower.root(), 0)?)
}

/// Gives a vault another passphrase. `with` opens it now.
///
/// A copy of the old file still opens with the old passphrase.
///
/// # Errors
/// Those of opening it, and those of [`create`].
pub fn change_passphrase(folder: &(dyn Tree + 'static), passphrase: &Secret, with: &Unlock<'_>) -> Result<()> {
    let (_, master) = opened(folder, with)?;
    let new = read_key_file(folder)?.rewrapped(&master, passphrase, with)?;
    // The old file is the only copy of the keys.
    if *KeyFile::parse(&new)?.master_key(passphrase, with)? != *master {
        return Err(io::Error::other("the new key file does not open: the old one stays").into());
    }
    let held = HeldNode::lookup(folder, folder.root(), MASTERKEY.as_ref())?;
    let of = folder.attributes(held.node())?;
    write_key_file(folder, MASTERKEY, &new, &NewNode { mode: of.mode, owner: of.owner }, Renaming::Replace)
}
