//! eCryptfs, the kernel's stacked file system: each file has its own key, stored with the file and encrypted with a passphrase.
//!
//! Facts are from Linux 6.1, fs/ecryptfs, and ecryptfs-utils 111. Both can read what this module writes, and vice versa.

mod beside;
mod header;
mod keys;
mod names;
mod stored;
mod suite;
mod survey;
mod token;
mod wrapped;

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

pub use beside::{AUTO_MOUNT, MOUNT_POINT, SIGNATURES, WRAPPED};
use claviger_crypto::Secret;
use claviger_crypto::hash::SHA512;
pub use suite::ciphers;
pub(crate) use wrapped::fuzz_wrapped;
pub use wrapped::{is_synology_key, read_wrapped, rewrap_passphrase, unwrap_passphrase, wrap_passphrase};

use self::header::HeaderLocation;
use self::keys::{Keys, NewFiles, Secrets, View};
use self::names::{NameKey, Names};
use self::suite::Suite;
use self::survey::{Limits, Survey};
use self::token::{NAME_SALTS, SALT, Salt, Signature, Token};
use super::{Beside, FileFacts, FileFormat, FileKeys, StoredFile};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::hex;
use crate::key_process::folder::{FolderKeyProcess, KeylessFolder};
use crate::parameters::{Parameter, Takes};
use crate::password_strength::GuessWork;
use crate::trees::Tree;
use crate::verdict::Verdict;

/// See the module.
pub static ECRYPTFS: Ecryptfs = Ecryptfs;

/// See [`ECRYPTFS`].
pub struct Ecryptfs;

/// How much of a folder is read to recognise the format.
const A_LOOK: Limits = Limits { names: 1000, files: 64, folders: 256 };

/// How much of a folder is searched for a file that a passphrase opens.
const A_SEARCH: Limits = Limits { names: 100_000, files: 4096, folders: 256 };

/// How many salts a passphrase is tried with. A folder has one salt, or two if somebody changed it. A hostile folder may have any
/// number, and each try takes a while.
const SALTS: usize = 8;

/// The signatures of a passphrase in hex, as in `Private.sig` and in mount options: for contents, and for names.
///
/// # Errors
/// `WrongCredential` if the passphrase is too long.
pub fn signatures(passphrase: &Secret) -> Result<[String; 2]> {
    let of = |salt| Token::derive(passphrase, salt).map(|token| hex::digits(&token.signature));
    Ok([of(SALT)?, of(NAME_SALTS[0])?])
}

impl FileFormat for Ecryptfs {
    fn name(&self) -> &'static str {
        "eCryptfs"
    }

    fn takes(&self) -> Takes {
        let opening = &[
            Parameter::Cipher,
            Parameter::KeySize,
            Parameter::NamePassphrase,
            Parameter::ClearNames,
            Parameter::WrappedPassphrase,
            Parameter::Passthrough,
            Parameter::EncryptedView,
            Parameter::MetadataInAttributes,
        ];
        Takes { creating: &[], opening }
    }

    fn ciphers(&self) -> Vec<&'static str> {
        ciphers()
    }

    /// Nothing is written: the first file is.
    fn create(&self, _lower: &(dyn Tree + 'static), _passphrase: &Secret, with: &Unlock<'_>) -> Result<()> {
        new_suite(with, None).map(drop)
    }

    fn check_new_passphrase(&self, passphrase: &Secret) -> Result<()> {
        token::check_len(passphrase)
    }

    fn guess_work(&self) -> Option<GuessWork> {
        Some(GuessWork::Hash { hash: SHA512.name, times: token::ITERATIONS as u64, compressions: 1 })
    }

    fn identify(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        Ok(match (self.glance(lower)?, &verdict(lower, A_LOOK)?) {
            (Verdict::No(_), (Verdict::Yes(_), true)) => Verdict::No(vec![
                "only its subfolders have encrypted names: one of those is the eCryptfs folder".into(),
            ]),
            (Verdict::No(_), (deep, _)) => deep.clone(),
            (top, _) => top,
        })
    }

    fn glance(&self, lower: &(dyn Tree + 'static)) -> Result<Verdict> {
        Ok(verdict(lower, Limits { folders: 0, ..A_LOOK })?.0)
    }

    fn beside(&self, parent: &(dyn Tree + 'static), name: &OsStr) -> io::Result<Beside> {
        if name == beside::ENCRYPTED { beside::look(parent) } else { Ok(Beside::default()) }
    }

    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        let (folder, acceleration) = (&with.folder, with.acceleration);
        if folder.encrypted_view {
            return Ok(Box::new(Keys::new(Secrets::none(acceleration), View::Encrypted, false)));
        }
        let Passphrases { contents, names } = passphrases(with)?;
        let of_names = folder.name_passphrase.or(names.as_ref());
        let mut ring = Ring { passphrases: &contents, of_names, with, tokens: Vec::new(), salts: Vec::new() };
        ring.try_salt(SALT)?;
        let mut known = None;
        let survey = Survey::of(&**lower, A_SEARCH, |key| {
            ring.try_salt(key.salt)?;
            if ring.token(&key.signature).is_none() {
                return Ok(ControlFlow::Continue(()));
            }
            known = Some(*key);
            Ok(ControlFlow::Break(()))
        })?;
        if known.is_none() {
            judge(&survey, folder.wrapped_passphrase.is_some())?;
        }
        let old_names = if folder.clear_names { None } else { ring.names(&survey)? };
        let suite = new_suite(with, known.map(|key| key.suite).or(old_names.as_ref().map(|(_, suite)| *suite)))?;
        let clear_so_far = survey.clear_names && survey.names.is_empty();
        let all_clear = folder.clear_names || clear_so_far && of_names.is_none();
        let names = match old_names {
            None if all_clear => None,
            None => Some((ring.name_token(NAME_SALTS[0])?, suite)),
            some => some,
        };
        let in_attribute = folder.metadata_in_attributes || known.is_some_and(|key| key.in_attribute);
        // New files open with each given passphrase, with the salt that this folder uses.
        let salt = known.map_or(SALT, |key| key.salt);
        let (mut tokens, others): (Vec<_>, Vec<_>) = ring.tokens.into_iter().partition(|token| token.salt == salt);
        let place = if in_attribute { HeaderLocation::Attribute } else { HeaderLocation::File };
        let new_files = NewFiles { suite, place, tokens: tokens.len() };
        tokens.extend(others);
        let unproven = known.is_none() && survey.names.is_empty();
        let names = names.map(|(token, suite)| Names::new(&token, suite, acceleration));
        let secrets = Secrets { tokens, names, new_files, ..Secrets::none(acceleration) };
        let view = if folder.passthrough { View::Passthrough } else { View::Plain };
        Ok(Box::new(Keys::new(secrets, view, unproven)))
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

    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        Ok(stored::facts(of)?)
    }

    fn check_contents(&self, of: StoredFile<'_>, each: &mut dyn FnMut() -> Result<()>) -> Result<Option<String>> {
        stored::check_contents(of, each)
    }

    fn unwraps(&self, file: &[u8], credentials: &[Credential]) -> bool {
        let unwraps = |credential: &Credential| match credential {
            Credential::Passphrase(passphrase) => unwrap_passphrase(file, passphrase).is_ok(),
            _ => false,
        };
        credentials.iter().any(unwraps)
    }
}

/// The result of a survey for the format, and whether names are encrypted.
fn verdict(lower: &(dyn Tree + 'static), limits: Limits) -> Result<(Verdict, bool)> {
    let survey = Survey::of(lower, limits, |_| Ok(ControlFlow::Break(())))?;
    let verdict = if !survey.names.is_empty() {
        Verdict::Yes(vec!["its names are encrypted by eCryptfs".into()])
    } else if survey.headers > 0 {
        Verdict::Yes(vec!["its files have eCryptfs headers".into()])
    } else if survey.damaged.is_some() {
        Verdict::Possible(vec!["its files look like eCryptfs files, but their headers cannot be read".into()])
    } else {
        Verdict::No(vec!["no eCryptfs names or files in it".into()])
    };
    Ok((verdict, !survey.names.is_empty()))
}

/// The hint for an unwrapped passphrase that does not open the folder.
const OLDER_FILE: &str = "Look for an older wrapped-passphrase file, for example in a backup of that home. The \
     folder may have had another passphrase before, or the file is from another installation.";

/// The warning for a folder without encrypted files.
const UNPROVEN: &str = "The passphrase could not be checked: the folder has no encrypted file or name.";

/// The folder's passphrases.
#[derive(Default)]
struct Passphrases {
    contents: Vec<Secret>,
    /// The passphrase for names, if the wrapped file has a separate one.
    names: Option<Secret>,
}

/// The folder's passphrases, unwrapped if necessary.
fn passphrases(with: &Unlock<'_>) -> Result<Passphrases> {
    let mut all = Passphrases::default();
    let mut unwrap = |file: &[u8], wrapping: Option<&Secret>| -> Result<()> {
        let wrapped::Unwrapped { contents, names } = wrapped::unwrap(file, wrapping)?;
        all.contents.push(contents);
        all.names = all.names.take().or(names);
        Ok(())
    };
    let mut given = Vec::new();
    for credential in with.credentials {
        match credential {
            Credential::Passphrase(passphrase) => given.push(passphrase),
            other => return Err(ErrorKind::CredentialKind { format: ECRYPTFS.name(), kind: other.kind() }.into()),
        }
    }
    match (with.folder.wrapped_passphrase, &given[..]) {
        // The key file of a Synology NAS needs no password.
        (Some(file), []) => unwrap(file, None)?,
        (Some(file), given) => given.iter().try_for_each(|wrapping| unwrap(file, Some(wrapping)))?,
        (None, given) => all.contents.extend(given.iter().map(|passphrase| Secret::copy_from(passphrase))),
    }
    if all.contents.is_empty() {
        return Err(ErrorKind::WrongCredential("eCryptfs opens with a passphrase, and none was given".into()).into());
    }
    Ok(all)
}

/// Explains why a folder cannot be opened if no file has a key of ours.
fn judge(survey: &Survey, unwrapped: bool) -> Result<()> {
    if !survey.keys.is_empty() {
        let signatures = token::listed(survey.keys.iter().map(|key| &key.signature));
        let (which, hint) = match unwrapped {
            true => ("the unwrapped passphrase", OLDER_FILE),
            false => (
                "the passphrase",
                "A login passphrase only unwraps the folder's passphrase, which is stored in the file \
                 wrapped-passphrase.",
            ),
        };
        let what = format!("{which} opens no file of the folder; their key signatures: {signatures}");
        return Err(Error::new(ErrorKind::WrongCredential(what)).hint(hint));
    }
    if !survey.public.is_empty() {
        let public = token::listed(&survey.public);
        return Err(keys::public_keys("the files are", &public));
    }
    match &survey.damaged {
        Some(why) => Err(why.clone().into()),
        None => Ok(()),
    }
}

/// The cipher for new files: the requested one, or the one that existing files use.
fn new_suite(with: &Unlock<'_>, known: Option<Suite>) -> Result<Suite> {
    let cipher = with.cipher.or(with.folder.cipher);
    let key_bytes = with.folder.key_bytes.or(with.headerless.key_bits.map(|bits| bits as usize / 8));
    match known {
        Some(known) if (cipher, key_bytes) == (None, None) => Ok(known),
        _ => Suite::asked(cipher, key_bytes),
    }
}

/// The keys derived from the passphrases.
struct Ring<'a> {
    passphrases: &'a [Secret],
    /// The passphrase for names, if there is a separate one.
    of_names: Option<&'a Secret>,
    with: &'a Unlock<'a>,
    tokens: Vec<Token>,
    salts: Vec<Salt>,
}

impl Ring<'_> {
    /// Derives the keys for this salt, unless that was done before.
    fn try_salt(&mut self, salt: Salt) -> Result<()> {
        if self.salts.contains(&salt) || self.salts.len() == SALTS {
            return Ok(());
        }
        self.salts.push(salt);
        for passphrase in self.passphrases {
            self.tokens.push(self.derive(passphrase, salt)?);
        }
        Ok(())
    }

    fn derive(&self, passphrase: &Secret, salt: Salt) -> Result<Token> {
        if self.with.cancelled() {
            return Err(ErrorKind::Cancelled.into());
        }
        Token::derive(passphrase, salt)
    }

    fn token(&self, signature: &Signature) -> Option<&Token> {
        self.tokens.iter().find(|token| token.signature == *signature)
    }

    /// The name key for this salt, derived from the passphrase for names, or from the first passphrase.
    fn name_token(&self, salt: Salt) -> Result<Token> {
        self.derive(self.of_names.unwrap_or(&self.passphrases[0]), salt)
    }

    /// The key and cipher of the folder's encrypted names; `None` if no name is encrypted.
    fn names(&self, survey: &Survey) -> Result<Option<(Token, Suite)>> {
        if survey.names.is_empty() {
            return Ok(None);
        }
        let asked = new_suite(self.with, None).ok();
        let salts =
            [NAME_SALTS[0], SALT, NAME_SALTS[1]].into_iter().chain(self.salts.iter().copied().filter(|s| *s != SALT));
        let passphrases = match self.of_names {
            Some(passphrase) => std::slice::from_ref(passphrase),
            None => self.passphrases,
        };
        let mut undeciphered = false;
        for salt in salts {
            for passphrase in passphrases {
                let token = self.derive(passphrase, salt)?;
                let of_it = survey.names.iter().filter(|(key, _)| key.signature == token.signature);
                let fits: Vec<_> = of_it.filter_map(|(key, name)| self.name_suite(&token, *key, name)).collect();
                undeciphered |= survey.names.iter().any(|(key, _)| key.signature == token.signature);
                let chosen = fits.iter().find(|suite| Some(**suite) == asked).or(fits.first());
                if let Some(suite) = chosen.copied() {
                    return Ok(Some((token, suite)));
                }
            }
        }
        if undeciphered {
            let what = "encrypted names carry this key's signature, but do not decrypt with it";
            return Err(ErrorKind::Malformed { field: "name", offset: 0, what: what.into() }.into());
        }
        let signatures = token::listed(survey.names.iter().map(|(key, _)| &key.signature));
        let what = format!("the passphrase opens no name of the folder; their key signatures: {signatures}");
        Err(Error::new(ErrorKind::WrongCredential(what))
            .hint("Names may have a different passphrase than contents. Without it, names can be shown as stored."))
    }

    /// The cipher of this name, if `token` decrypts it.
    fn name_suite(&self, token: &Token, key: NameKey, name: &OsString) -> Option<Suite> {
        let decrypts = |suite: &Suite| Names::new(token, *suite, self.with.acceleration).plain(name).is_some();
        Suite::of_name(key.code).into_iter().find(decrypts)
    }
}
