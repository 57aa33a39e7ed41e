//! Opening a volume: the options that several verbs share, and the way from a path to an open volume.

pub mod assembled;
pub mod binding;
pub mod certificates;
pub mod cost;
pub mod credentials;
pub mod direct;
pub mod disk_in_file;
pub mod editing;
pub mod fido2;
pub mod files;
pub mod folder;
pub mod found_folder;
pub mod full_disk;
pub mod headerless;
pub mod http;
pub mod images;
pub mod logical_volume;
pub mod mount_point;
pub mod new_file;
pub mod overwrite;
pub mod parts;
pub mod patience;
pub mod plaintext;
mod protect;
pub mod remote;
mod segments;
pub mod strength;
pub mod tokens;
mod unlock_args;

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use claviger_engine::clevis::Helpers;
use claviger_engine::credential::HeaderChoice;
use claviger_engine::formats::Sealed;
use claviger_engine::opening::{Locked, OpenVolume, Stores};
use claviger_engine::store::Access;
use claviger_engine::{Credential, Error, ErrorKind, Header, Opened, Opening, Store, Unlock};
use claviger_serve::key_process::KeySide;
pub use protect::{HiddenArgs, ProtectArgs};
pub use unlock_args::UnlockArgs;

use crate::opening::credentials::{CredentialArgs, ReadCredentials};
use crate::opening::disk_in_file::DiskInFile;
use crate::opening::folder::FolderGiven;
use crate::opening::tokens::{Released, TokenArgs};
use crate::process::guard;
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt};

/// Which volume, what opens it, and what narrows the trials.
#[derive(clap::Args, Clone)]
pub struct OpenArgs {
    /// The file, block device or disk image that holds the volume, an encrypted folder, a remote store:
    /// nbd://HOST/EXPORT, rbd:POOL/IMAGE …, or disks out of a NAS: md:DISK,DISK …
    #[arg(value_name = "VOLUME")]
    pub path: PathBuf,

    #[command(flatten)]
    pub(crate) credentials: CredentialArgs,

    #[command(flatten)]
    pub(crate) how: UnlockArgs,

    /// Whether this is `claviger explain`, which errors need not suggest.
    #[arg(skip)]
    pub(crate) explains: bool,
}

impl OpenArgs {
    /// The file itself, or a partition in it, without decryption.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn raw(&self, access: Access) -> claviger_engine::Result<Arc<dyn Store>> {
        self.how.opening(&self.path)?.access(access).stored()
    }

    /// The disk in the file, if the file is not the disk itself: it is only read.
    ///
    /// # Errors
    /// Those of [`remote::disk_in_file`].
    pub fn disk_in_file(&self) -> claviger_engine::Result<Option<DiskInFile>> {
        remote::disk_in_file(&self.path)
    }

    /// Whether the volume is only read because of the file that it is in.
    pub fn in_disk_in_file(&self) -> bool {
        // An error comes from opening it.
        matches!(self.disk_in_file(), Ok(Some(_)))
    }

    /// Says that the volume is opened read-only because of the file that it is in, if that is so.
    pub fn note_read_only(&self) {
        if let Ok(Some(disk)) = self.disk_in_file() {
            disk.note_read_only(&self.path);
        }
    }

    /// The options for tokens.
    pub fn tokens(&self) -> &TokenArgs {
        &self.how.tokens
    }

    /// The path of the data.
    pub fn store_path(&self) -> &Path {
        remote::file(&self.path)
    }

    /// Whether the password is read from standard input.
    pub fn password_on_stdin(&self) -> bool {
        self.credentials.on_stdin()
    }

    /// The format that the options name.
    pub fn format(&self) -> Option<&str> {
        self.how.format()
    }

    /// The password and keyfiles; asks where needed.
    pub fn read_credentials(&self) -> claviger_engine::Result<ReadCredentials> {
        self.credentials.read()
    }

    /// Whether an option narrows the trials.
    pub fn hinted(&self) -> bool {
        let UnlockArgs { hash, cipher, pim, .. } = &self.how;
        hash.is_some() || cipher.is_some() || pim.is_some() || self.how.slot.is_some() || self.how.backup_header
    }

    /// Whether a try takes long because neither the volume nor an option says how it is encrypted.
    fn slow_to_try(&self, header: &dyn Header, credentials: &[Credential]) -> bool {
        const MICROSECONDS: u64 = 10_000_000;
        let with = self.how.unlock(credentials);
        !self.hinted() && header.plan(&with).is_none() && header.effort(&with) >= MICROSECONDS
    }

    /// Whether an option names one copy of the header, or the backups.
    pub fn names_header(&self) -> bool {
        self.how.header() != HeaderChoice::Any
    }

    /// The credentials, tried as the options say.
    pub fn unlock_with<'a>(&'a self, credentials: &'a [Credential]) -> Unlock<'a> {
        self.how.unlock(credentials)
    }

    /// Announces the cost of trying the keyslots, and asks before slow work, so that nobody types a password in vain.
    pub fn announce(&self, header: &dyn Header) -> claviger_engine::Result<()> {
        // A volume key opens no keyslot.
        if self.credentials.gives_volume_key() {
            return Ok(());
        }
        let with = self.how.unlock(&[]);
        patience::announce(header.plan(&with), &with)
    }

    /// Whether to try `variants` of a password, which take at most about that long.
    ///
    /// # Errors
    /// `Misuse` if the user declines, or nobody can be asked.
    pub fn may_try(&self, variants: &str, time: Duration) -> claviger_engine::Result<()> {
        let tried = self.how.patience.may_try(variants, time);
        tried.map_err(|e| if self.hinted() { e } else { patience::with_quicker(e) })
    }

    /// The passphrase that a token's device released, if the options use only tokens or try them first.
    pub(super) fn released(&self, header: &dyn Header) -> claviger_engine::Result<Option<Released>> {
        let UnlockArgs { tokens, folder, .. } = &self.how;
        let certificates = &folder.certificates;
        let keyfiles = match tokens.only() || tokens.first() {
            true if header.sealed().iter().any(Sealed::takes_startup_key) => self.credentials.only_keyfiles()?,
            _ => None,
        };
        let given = self.credentials.given() && keyfiles.is_none();
        let (keyfiles, keyslot) = (keyfiles.unwrap_or_default(), self.how.keyslot());
        let released = match (tokens.only(), given) {
            (true, true) => return Err(Error::misuse("--token-only takes no password, keyfile or volume key")),
            (true, false) => tokens.release(header, keyslot, certificates, &keyfiles).map(Some),
            (false, false) if tokens.first() => {
                let released = tokens.try_release(header, keyslot, certificates, &keyfiles);
                // They are read once: one may be a pipe.
                let alone = || (!keyfiles.is_empty()).then_some(Released { credentials: keyfiles, keyslot });
                released.map(|released| released.or_else(alone))
            }
            (false, _) => return Ok(None),
        };
        released.map_err(|e| if e.path.is_none() { e.at(&self.path) } else { e })
    }

    /// What a FIDO2 key computes for a folder that it opens instead of a password. `given`: options give credentials of the folder.
    pub(super) fn by_fido2(
        &self,
        locked: &Locked,
        with: &Unlock<'_>,
        given: bool,
    ) -> claviger_engine::Result<Option<ReadCredentials>> {
        let tokens = &self.how.tokens;
        let at = |e: Error| if e.path.is_none() { e.at(&self.path) } else { e };
        let Some(token) = locked.fido2(with).map_err(at)? else { return Ok(None) };
        let named = tokens.only() || tokens.fido2_args().fido2_device.is_some();
        if given || !named {
            let to_try = if named { "Omit the password." } else { "Plug in the key, and add --fido2-device auto." };
            let master_key = "Without the key, the master key opens it: put the 64 digits that gocryptfs printed into a file, and add \
                              --volume-key-file FILE.";
            let error = Error::misuse("a FIDO2 key opens this folder, and no password does");
            return Err(at(error.hint(format!("{to_try} {master_key}"))));
        }
        let secret = Helpers::fido2(tokens, &token).map_err(at)?;
        Ok(Some(vec![Credential::Passphrase(secret)].into()))
    }

    /// Opens a volume, for verbs that need its bytes. Asks for the password only after a volume was found.
    pub fn open(&self, access: Access) -> anyhow::Result<OpenVolume> {
        self.bytes(access, None)
    }

    /// Opens a volume, and protects the hidden volume if the options ask for it.
    pub fn open_protecting(&self, access: Access, protect: &ProtectArgs) -> anyhow::Result<OpenVolume> {
        self.bytes(access, self.protected(access, protect)?)
    }

    fn bytes(&self, access: Access, hidden: Option<&HiddenArgs>) -> anyhow::Result<OpenVolume> {
        self.refuse_folder_options()?;
        let opened = self.open_with(self.how.opening(&self.path)?, access, hidden, None)?;
        Ok(opened.bytes().map_err(|e| e.at(&self.path))?)
    }

    /// Refuses folder options for a volume, except those of a smart card, which tokens use, too.
    fn refuse_folder_options(&self) -> claviger_engine::Result<()> {
        let card = self.how.tokens.only() && self.how.folder.only_smart_card();
        if self.path.is_dir() || card { Ok(()) } else { self.how.folder.refuse() }
    }

    /// Opens a volume, an encrypted folder or an unencrypted file system, to reach its files.
    pub fn open_for_files(&self, access: Access) -> anyhow::Result<Opened> {
        self.open_with(self.how.opening_for_files(&self.path)?, access, None, None)
    }

    /// Like [`OpenArgs::open_for_files`], but also protects the hidden volume if the options ask for it.
    pub fn open_for_files_protecting(&self, access: Access, protect: &ProtectArgs) -> anyhow::Result<Opened> {
        self.open_with(self.how.opening_for_files(&self.path)?, access, self.protected(access, protect)?, None)
    }

    fn protected<'a>(
        &self,
        access: Access,
        protect: &'a ProtectArgs,
    ) -> claviger_engine::Result<Option<&'a HiddenArgs>> {
        if protect.protect && (access == Access::ReadOnly || self.how.truncated) {
            return Err(Error::misuse("a volume opened read-only needs no protection").hint("Omit --protect-hidden."));
        }
        if protect.on_stdin() && self.password_on_stdin() {
            return Err(Error::misuse("only one of the two passwords can come from standard input"));
        }
        Ok(protect.protect.then_some(&protect.hidden))
    }

    /// The access that is possible if `wanted` was requested: truncated volumes are read-only.
    pub fn access(&self, wanted: Access) -> Access {
        if self.how.truncated { Access::ReadOnly } else { wanted }
    }

    /// The files that will be opened.
    pub fn files(&self) -> Vec<&Path> {
        [Some(self.store_path()), self.how.header_file()].into_iter().flatten().collect()
    }

    /// The stores of the volume, opened for the key process, which unlocks it.
    pub fn stores(&self, access: Access) -> anyhow::Result<Stores> {
        self.refuse_folder_options()?;
        Ok(self.how.opening(&self.path)?.access(self.access(access)).stores()?)
    }

    /// Finds the encrypted folder on this machine, for the key process, which unlocks it.
    pub fn find_here(&self, access: Access) -> anyhow::Result<Locked> {
        let locked = self.how.opening(&self.path)?.access(self.access(access)).find()?;
        locked.check_key_process(&[])?;
        Ok(locked)
    }

    /// Opens, in the key process, a volume or folder that the other process reads for it.
    pub fn open_in_key_process(
        &self,
        key_side: &KeySide,
        access: Access,
        protect: Option<&ProtectArgs>,
        enter_sandbox: EnterSandbox<'_>,
    ) -> anyhow::Result<Opened> {
        let opening = self.how.opening(&self.path)?;
        let opening = match key_side.folder() {
            Some(folder) => opening.over_folder(folder),
            None => opening.over_stores(key_side.disk(), key_side.header()),
        };
        let hidden = protect.map(|protect| self.protected(access, protect)).transpose()?.flatten();
        self.open_with(opening, access, hidden, Some(enter_sandbox))
    }

    fn open_with(
        &self,
        opening: Opening,
        access: Access,
        hidden: Option<&HiddenArgs>,
        enter_sandbox: Option<EnterSandbox<'_>>,
    ) -> anyhow::Result<Opened> {
        let access = self.access(access);
        guard::no_dumps();
        prompt::about(&self.path);
        let cancel = cancel::install()?;
        let locked = opening.access(access).find();
        let locked = locked.map_err(|e| if self.path.is_dir() { e } else { self.with_explain(e, &[]) })?;
        let folder = locked.file_format().map(|_| self.how.folder.read()).transpose()?;
        locked.check(&self.unlock_found(&[], folder.as_ref()))?;
        if enter_sandbox.is_some() {
            locked.check_key_process(&[])?;
        }
        // Nothing to unlock here: a password is that of an encrypted folder inside.
        if locked.is_clear() {
            return Ok(locked.unlock(&self.how.unlock(&[]))?);
        }
        if let Some(header) = locked.header() {
            self.announce(header).map_err(|e| e.at(&self.path))?;
        }
        let by_fido2 = match &folder {
            // The master key opens it, too, and even without its configuration.
            Some(_) if !self.credentials.gives_volume_key() => {
                self.by_fido2(&locked, &self.unlock_found(&[], folder.as_ref()), self.credentials.given())?
            }
            _ => None,
        };
        let opens_itself = folder.as_ref().is_some_and(FolderGiven::opens_itself);
        let without = self.how.folder.as_stored() || opens_itself;
        let asks = |keyfiles: &[Credential]| !without && locked.asks_passphrase(keyfiles);
        let own = folder.is_some() && self.how.folder.gives_password();
        let released = locked.header().map(|header| self.released(header)).transpose()?.flatten();
        let keyslot = released.as_ref().and_then(|released| released.keyslot);
        let credentials = match (released, locked.headerless()) {
            (Some(released), _) => released.credentials.into(),
            _ if by_fido2.is_some() => by_fido2.unwrap_or_default(),
            _ if own => self.how.folder.source().read()?,
            (None, true) => self.credentials.read_for_headerless(asks)?,
            (None, false) => self.credentials.read_for(asks)?,
        };
        let credentials = match locked.stored_files() {
            Some((tree, _)) => credentials.and(self.how.folder.certificates.read(&**tree)?),
            None => credentials,
        };
        let slow = locked.header().is_some_and(|header| self.slow_to_try(header, &credentials));
        // Of two passwords, nobody could tell which one is wrong.
        let mut credentials = if hidden.is_some() { credentials.once() } else { credentials.with_slow_tries(slow) };
        let hidden_credentials = hidden.map(|h| h.credentials.source().read()).transpose()?;
        let protect = hidden.zip(hidden_credentials.as_deref()).map(|(args, credentials)| args.protect(credentials));
        if let Some(enter_sandbox) = enter_sandbox {
            locked.check_key_process(&credentials)?;
            enter_sandbox(credentials.terminal()).context("the key process")?;
        }
        let opened = credentials.open(|credentials| {
            let bar = Progress::trials("Opening");
            let in_use = AtomicU64::new(0);
            let show = |done, all| {
                bar.memory(in_use.load(Ordering::Relaxed));
                bar.at(done, all);
            };
            let trying = |format| bar.trying(format);
            let with = self.unlock_found(credentials, folder.as_ref());
            locked.unlock(&Unlock {
                memory_in_use: Some(&in_use),
                cancel: Some(cancel),
                progress: Some(&show),
                trying: Some(&trying),
                protect,
                keyslot: keyslot.or(with.keyslot),
                ..with
            })
        });
        Ok(opened.map_err(|e| self.with_explain(e, &[]))?)
    }

    /// The credentials for a volume, or for an encrypted folder with these options, tried as the options say.
    fn unlock_found<'a>(&'a self, credentials: &'a [Credential], folder: Option<&'a FolderGiven>) -> Unlock<'a> {
        match folder {
            Some(given) => self.how.unlock_folder(credentials, given),
            None => self.how.unlock(credentials),
        }
    }
}

/// Enters the key process's sandbox once all secrets are there, and keeps this terminal for another try. From then on the
/// process can open no files.
pub type EnterSandbox<'a> = &'a dyn Fn(Option<BorrowedFd<'_>>) -> io::Result<()>;

/// Fails if any of these options was given.
pub fn takes_no(what: &str, options: impl IntoIterator<Item = (bool, &'static str)>) -> claviger_engine::Result<()> {
    match options.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Error::misuse(format!("{what} takes no {option}"))),
        None => Ok(()),
    }
}

impl OpenArgs {
    /// Adds a hint to run `claviger explain` if a volume, or the folder `inside` it, could not be opened.
    pub(super) fn with_explain(&self, mut error: Error, inside: &[&str]) -> Error {
        let more = match &error.kind {
            _ if self.explains => return error,
            ErrorKind::NotThisFormat(_) => "To find out what it is:",
            ErrorKind::WrongCredential(_) => "To also try other keyboard layouts and Unicode forms:",
            _ => return error,
        };
        let before = error.to_try(advice::say).map(|before| format!("{before} ")).unwrap_or_default();
        error.advice = None;
        let command =
            advice::command("explain", [self.path.as_os_str()].into_iter().chain(inside.iter().map(OsStr::new)));
        error.hint(format!("{before}{more} {command}"))
    }
}
