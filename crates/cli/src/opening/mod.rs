//! Opening a volume: the options that several verbs share, and the way from a path to an open volume.

pub mod binding;
pub mod certificates;
pub mod cost;
pub mod credentials;
pub mod direct;
pub mod editing;
pub mod files;
pub mod folder;
pub mod found_folder;
pub mod headerless;
pub mod http;
pub mod images;
pub mod logical_volume;
pub mod mount_point;
pub mod new_file;
pub mod overwrite;
pub mod patience;
pub mod remote;
pub mod tokens;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use claviger_crypto::pool::Pool;
use claviger_engine::credential::{FolderOptions, HeaderChoice, Headerless};
use claviger_engine::formats::Facts;
use claviger_engine::opening::{Locked, OpenVolume, Stores};
use claviger_engine::store::{Access, SMALLEST_SECTOR};
use claviger_engine::volume::Mapping;
use claviger_engine::{
    Acceleration, Credential, Error, ErrorKind, Header, Opened, Opening, Protect, Store, Unlock, Volume,
};
use claviger_engine::{file_formats, filesystems};
use claviger_serve::key_process::KeySide;

use crate::opening::credentials::{CredentialArgs, HiddenCredentialArgs};
use crate::opening::folder::{FolderArgs, FolderGiven};
use crate::opening::headerless::HeaderlessArgs;
use crate::opening::logical_volume::{LogicalVolumeArgs, smaller_sectors};
use crate::opening::patience::PatienceArgs;
use crate::opening::tokens::{Released, TokenArgs};
use crate::process::guard;
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, output, prompt, size};

/// Which volume, what opens it, and what narrows the trials.
#[derive(clap::Args, Clone)]
pub struct OpenArgs {
    /// The file or block device that holds the volume, an encrypted folder, or a remote store:
    /// nbd://HOST/EXPORT, rbd:POOL/IMAGE …
    #[arg(value_name = "VOLUME")]
    pub path: PathBuf,

    #[command(flatten)]
    pub(crate) credentials: CredentialArgs,

    #[command(flatten)]
    pub(crate) how: UnlockArgs,
}

/// How to open it.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "How to open it")]
pub(crate) struct UnlockArgs {
    /// Treat it as a volume of this format
    #[arg(long, value_name = "NAME")]
    format: Option<String>,

    /// Treat it as a TrueCrypt volume: same as --format TrueCrypt
    #[arg(long, conflicts_with_all = ["format", "veracrypt"])]
    truecrypt: bool,

    /// Treat it as a VeraCrypt volume: same as --format VeraCrypt
    #[arg(long, conflicts_with = "format")]
    veracrypt: bool,

    /// Try only this hash, or Argon2id: opens faster
    #[arg(long, value_name = "NAME")]
    hash: Option<String>,

    /// The PIM of the VeraCrypt volume
    #[arg(long, value_name = "N")]
    pim: Option<u32>,

    /// Memory that a key derivation may use: 512M, 2GiB [default: what is available]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,

    #[command(flatten)]
    patience: PatienceArgs,

    /// Try only this cipher or cascade
    #[arg(long, value_name = "NAME")]
    cipher: Option<String>,

    /// Use the backup header at the end of the volume
    #[arg(long)]
    backup_header: bool,

    /// Use only this copy of the header (primary, hidden, backup or hidden-backup), or only the keyslot with this
    /// number
    #[arg(long, value_name = "SLOT", conflicts_with = "backup_header", value_parser = Slot::parse)]
    slot: Option<Slot>,

    /// The header is detached: it is in FILE, or elsewhere; the data are in VOLUME
    #[arg(long = "header", value_name = "FILE")]
    header_file: Option<PathBuf>,

    /// The volume in this partition of the disk, or this partition of an encrypted system
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub partition: Option<u32>,

    /// Do without the processor's AES instructions
    #[arg(long)]
    no_aes: bool,

    /// Open a truncated volume: what is left can be read, nothing can be written
    #[arg(long)]
    truncated: bool,

    /// Allow writing to a volume that is not encrypted (cipher_null); otherwise it is read-only
    #[arg(long)]
    write_unencrypted: bool,

    /// When the file is closed, put its times of access and modification back. Backups that go by these miss what was
    /// changed
    #[arg(long)]
    pub(crate) keep_times: bool,

    /// Whether to say what the kernel needs.
    #[arg(skip)]
    pub(crate) for_kernel: bool,

    #[command(flatten)]
    headerless: HeaderlessArgs,

    #[command(flatten)]
    tokens: TokenArgs,

    #[command(flatten)]
    pub(crate) folder: FolderArgs,
}

impl UnlockArgs {
    /// As the options of another verb say, which has some of these.
    pub fn new(format: Option<String>, cipher: Option<String>, hash: Option<String>, pim: Option<u32>) -> Self {
        Self { format, cipher, hash, pim, ..Self::default() }
    }

    /// Whether one of the options was given. All of them are named here, so that a new one does not compile before somebody has decided.
    pub fn given(&self) -> bool {
        let Self {
            format,
            truecrypt,
            veracrypt,
            hash,
            pim,
            memory,
            patience: PatienceArgs { allow_slow },
            cipher,
            backup_header,
            slot,
            header_file,
            partition,
            no_aes,
            truncated,
            write_unencrypted,
            keep_times,
            for_kernel: _,
            headerless,
            tokens,
            folder,
        } = self;
        let texts = [format, hash, cipher].into_iter().any(Option::is_some) || header_file.is_some();
        let numbers = pim.is_some() || memory.is_some() || slot.is_some() || partition.is_some();
        let flags = [truecrypt, veracrypt, allow_slow, backup_header, no_aes, truncated, write_unencrypted, keep_times];
        let flags = flags.into_iter().any(|flag| *flag);
        texts || numbers || flags || headerless.given() || tokens.given() || folder.given()
    }

    /// The credentials, tried as the options say.
    pub fn unlock<'a>(&'a self, credentials: &'a [Credential]) -> Unlock<'a> {
        let mut with = Unlock {
            acceleration: if self.no_aes { Acceleration::Off } else { Acceleration::On },
            hash: self.hash.as_deref(),
            cipher: self.cipher.as_deref(),
            pim: self.pim,
            memory: self.memory,
            header: self.header(),
            keyslot: self.keyslot(),
            truncated: self.truncated,
            write_unencrypted: self.write_unencrypted,
            may_take: self.patience.may_take(),
            for_kernel: self.for_kernel,
            ..Unlock::with(credentials)
        };
        self.headerless.apply(&mut with);
        with
    }

    /// The same for a folder of this machine: cipher and key size are those of new files.
    fn unlock_folder<'a>(&'a self, credentials: &'a [Credential], given: &'a FolderGiven) -> Unlock<'a> {
        let with = self.unlock(credentials);
        let Headerless { key_bits, .. } = with.headerless;
        let key_bytes = key_bits.map(|bits| bits.div_ceil(8) as usize);
        let folder = FolderOptions { cipher: with.cipher, key_bytes, ..self.folder.options(given) };
        Unlock { folder, cipher: None, headerless: Headerless { key_bits: None, ..with.headerless }, ..with }
    }

    /// The same for a folder that is inside something which most of the options are for.
    fn unlock_inner_folder<'a>(&'a self, credentials: &'a [Credential], given: &'a FolderGiven) -> Unlock<'a> {
        let Unlock { acceleration, memory, may_take, .. } = self.unlock(credentials);
        Unlock { acceleration, memory, may_take, folder: self.folder.options(given), ..Unlock::with(credentials) }
    }

    fn header(&self) -> HeaderChoice {
        match self.slot {
            _ if self.backup_header => HeaderChoice::Backup,
            Some(Slot::Copy { hidden, backup }) => HeaderChoice::One { hidden, backup },
            Some(Slot::Keyslot(_)) | None => HeaderChoice::Any,
        }
    }

    fn keyslot(&self) -> Option<u32> {
        match self.slot {
            Some(Slot::Keyslot(number)) => Some(number),
            _ => None,
        }
    }

    /// The file with the header, where it is detached.
    pub fn header_file(&self) -> Option<&Path> {
        self.header_file.as_deref()
    }

    /// Whether only backups are to be tried, so that it does not matter what the volume begins with.
    fn by_backup(&self) -> bool {
        matches!(self.header(), HeaderChoice::Backup | HeaderChoice::One { backup: true, .. })
    }

    /// The volume at `path`, as the options say.
    ///
    /// # Errors
    /// `Misuse` for options that the format does not have.
    pub fn opening(&self, path: &Path) -> claviger_engine::Result<Opening> {
        // What a folder does not take is refused with all else that it does not.
        if !path.is_dir() {
            self.headerless.check(self.format())?;
        }
        // Nothing in a folder shows that its files are encrypted for certificates.
        let format = self.format().or_else(|| self.folder.certificate_format().filter(|_| path.is_dir()));
        let opening = remote::opening(path, self.header_file())?.partition(self.partition).format(format);
        Ok(opening.keep_times(self.keep_times).by_backup(self.by_backup()))
    }

    /// The same for verbs that want files: what is not encrypted will do, and the format may be that of a folder in it.
    fn opening_for_files(&self, path: &Path) -> claviger_engine::Result<Opening> {
        match self.folder_format() {
            Some(_) if !path.is_dir() => {
                self.headerless.check(None)?;
                let opening = remote::opening(path, self.header_file())?.partition(self.partition);
                Ok(opening.or_clear(true).keep_times(self.keep_times).by_backup(self.by_backup()))
            }
            _ => Ok(self.opening(path)?.or_clear(true)),
        }
    }

    /// The format of folders that it is to be taken as, if it is one.
    fn folder_format(&self) -> Option<&str> {
        self.format().filter(|name| file_formats::named(name).is_ok())
    }

    /// The same for a key that nobody keeps, and how many bits that has: plain dm-crypt, AES in XTS mode unless another cipher is
    /// named.
    ///
    /// # Errors
    /// `Misuse` for another format, and for what such a key does not have.
    pub fn with_random_key(mut self) -> claviger_engine::Result<(Self, u32)> {
        if let Some(other) = self.format().filter(|name| !name.eq_ignore_ascii_case("plain")) {
            return Err(Error::misuse(format!("--random-key: a volume of the format {other} has a key of its own")));
        }
        if self.header_file.is_some() || self.hash.is_some() {
            return Err(Error::misuse("--random-key: there is neither a header nor a hash"));
        }
        self.format = Some("plain".to_owned());
        let cipher = self.cipher.get_or_insert_with(|| "aes-xts-plain64".to_owned());
        // XTS has two keys.
        let bits = self.headerless.key_bits_or(if cipher.contains("-xts-") { 512 } else { 256 });
        Ok((self, bits))
    }

    /// The partition that the options name.
    pub fn partition(&self) -> Option<u32> {
        self.partition
    }

    /// The format that it is to be taken as.
    pub fn format(&self) -> Option<&str> {
        match (self.truecrypt, self.veracrypt) {
            (true, _) => Some("TrueCrypt"),
            (_, true) => Some("VeraCrypt"),
            _ => self.format.as_deref(),
        }
    }
}

/// A copy of the header, or a keyslot in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Copy { hidden: bool, backup: bool },
    Keyslot(u32),
}

impl Slot {
    fn parse(text: &str) -> Result<Self, String> {
        let copy = |hidden, backup| Ok(Self::Copy { hidden, backup });
        match text {
            "primary" => copy(false, false),
            "hidden" => copy(true, false),
            "backup" => copy(false, true),
            "hidden-backup" => copy(true, true),
            _ => text
                .parse()
                .map(Self::Keyslot)
                .map_err(|_| "use primary, hidden, backup, hidden-backup, or the number of a keyslot".to_owned()),
        }
    }
}

/// What opens the hidden volume, for verbs with an option of the id `hidden`.
#[derive(clap::Args)]
#[command(next_help_heading = "Password and keyfiles of the hidden volume")]
pub struct HiddenArgs {
    #[command(flatten)]
    pub credentials: HiddenCredentialArgs,

    /// Hash of the hidden volume
    #[arg(long, value_name = "NAME", requires = "hidden")]
    pub hidden_hash: Option<String>,

    /// PIM of the hidden volume
    #[arg(long, value_name = "N", requires = "hidden")]
    pub hidden_pim: Option<u32>,
}

impl HiddenArgs {
    /// The hidden volume that these open.
    fn protect<'a>(&'a self, credentials: &'a [Credential]) -> Protect<'a> {
        Protect { credentials, hash: self.hidden_hash.as_deref(), pim: self.hidden_pim }
    }
}

/// Protection of a hidden volume in the one that is opened, for verbs that write.
#[derive(clap::Args)]
pub struct ProtectArgs {
    /// Protect the hidden volume in this one, with both passwords: a write that would damage it is refused, and the
    /// volume becomes read-only. Without this, writing to the outer volume may destroy the hidden one
    #[arg(long = "protect-hidden", id = "hidden")]
    protect: bool,

    #[command(flatten)]
    hidden: HiddenArgs,
}

impl ProtectArgs {
    /// Whether protection is asked for.
    pub fn asked(&self) -> bool {
        self.protect
    }

    /// What opens the hidden volume, asked where needed, if protection is asked for.
    pub fn read(&self) -> claviger_engine::Result<Option<Vec<Credential>>> {
        self.protect.then(|| self.hidden.credentials.source().read()).transpose()
    }

    /// The protection with what was read for it.
    pub fn protect<'a>(&'a self, credentials: Option<&'a [Credential]>) -> Option<Protect<'a>> {
        credentials.map(|credentials| self.hidden.protect(credentials))
    }

    /// Whether the hidden volume's password is read from standard input.
    pub fn on_stdin(&self) -> bool {
        self.hidden.credentials.source().on_stdin()
    }
}

/// A volume that has been opened.
pub struct OpenedVolume {
    /// Its plaintext.
    pub volume: Volume,
    /// What is known about it.
    pub facts: Facts,
    /// Size of the file or device.
    pub stored: u64,
    /// What a person must know.
    pub warnings: Vec<String>,
    /// Header decryptions that were tried.
    pub trials: u64,
    /// How long that took.
    pub took: Duration,
    /// What the kernel needs to do the same, if that was asked for and it can.
    pub mapping: Option<Mapping>,
    /// What the header is in, where it is detached: nobody changes it for as long as the volume is open.
    pub _header: Option<Arc<dyn Store>>,
}

impl From<OpenVolume> for OpenedVolume {
    fn from(open: OpenVolume) -> Self {
        let OpenVolume { volume, facts, stored, warnings, trials, took, mapping, header, .. } = open;
        Self { volume, facts, stored, warnings: advice::texts(&warnings), trials, took, mapping, _header: header }
    }
}

impl OpenArgs {
    /// The file as it is, or a partition in it, without decryption.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn raw(&self, access: Access) -> claviger_engine::Result<Arc<dyn Store>> {
        self.how.opening(&self.path)?.access(access).stored()
    }

    /// What may be asked for a passphrase.
    pub fn tokens(&self) -> &TokenArgs {
        &self.how.tokens
    }

    /// Where the data are.
    pub fn store_path(&self) -> &Path {
        &self.path
    }

    /// Whether the password is read from standard input.
    pub fn password_on_stdin(&self) -> bool {
        self.credentials.on_stdin()
    }

    /// The format that it is to be taken as, if that was said.
    pub fn format(&self) -> Option<&str> {
        self.how.format()
    }

    /// The password and the keyfiles, asked where needed.
    pub fn read_credentials(&self) -> claviger_engine::Result<Vec<Credential>> {
        self.credentials.read()
    }

    /// Whether the trials were narrowed.
    pub fn hinted(&self) -> bool {
        let UnlockArgs { hash, cipher, pim, .. } = &self.how;
        hash.is_some() || cipher.is_some() || pim.is_some() || self.how.slot.is_some() || self.how.backup_header
    }

    /// Whether one copy of the header was named, or the backups.
    pub fn names_header(&self) -> bool {
        self.how.header() != HeaderChoice::Any
    }

    /// What was given that is needed to open it, besides the credentials, as options: for commands that others are to run.
    pub fn needed(&self) -> Vec<String> {
        self.how.pim.map(|pim| ["--pim".to_owned(), pim.to_string()]).into_iter().flatten().collect()
    }

    /// The credentials, and how they are to be tried.
    pub fn unlock_with<'a>(&'a self, credentials: &'a [Credential]) -> Unlock<'a> {
        self.how.unlock(credentials)
    }

    /// Tells what trying the keyslots costs, and asks where it takes long, before anybody types a password.
    pub fn announce(&self, header: &dyn Header) -> claviger_engine::Result<()> {
        // A volume key opens none of them.
        if self.credentials.gives_volume_key() {
            return Ok(());
        }
        let with = self.how.unlock(&[]);
        patience::announce(header.plan(&with), &with)
    }

    /// What a token's device has released, where tokens are to open the volume, or are tried first.
    pub(super) fn released(&self, header: &dyn Header) -> claviger_engine::Result<Option<Released>> {
        let UnlockArgs { tokens, folder, .. } = &self.how;
        let released = match (tokens.only(), self.credentials.given()) {
            (true, true) => return Err(Error::misuse("--token-only takes no password, keyfile or volume key")),
            (true, false) => tokens.release(header, self.how.keyslot(), &folder.certificates).map(Some),
            (false, false) if tokens.first() => tokens.try_release(header, self.how.keyslot(), &folder.certificates),
            (false, _) => return Ok(None),
        };
        released.map_err(|e| if e.path.is_none() { e.at(&self.path) } else { e })
    }

    /// Opens a volume, for verbs that need its bytes. The password is asked once it is known that there is something to open.
    pub fn open(&self, access: Access) -> anyhow::Result<OpenedVolume> {
        self.bytes(access, None)
    }

    /// Opens a volume, and protects the hidden one in it if that is asked for.
    pub fn open_protecting(&self, access: Access, protect: &ProtectArgs) -> anyhow::Result<OpenedVolume> {
        self.bytes(access, self.protected(access, protect)?)
    }

    fn bytes(&self, access: Access, hidden: Option<&HiddenArgs>) -> anyhow::Result<OpenedVolume> {
        self.refuse_folder_options()?;
        let opened = self.open_with(self.how.opening(&self.path)?, access, hidden, None)?;
        Ok(opened.bytes().map_err(|e| e.at(&self.path))?.into())
    }

    /// Options of folders mean nothing to a volume, but that a smart card is a token's, too.
    fn refuse_folder_options(&self) -> claviger_engine::Result<()> {
        let card = self.how.tokens.only() && self.how.folder.only_smart_card();
        if self.path.is_dir() || card { Ok(()) } else { self.how.folder.refuse() }
    }

    /// Opens what has files in it: a volume, an encrypted folder, or what is not encrypted.
    pub fn open_for_files(&self, access: Access) -> anyhow::Result<Opened> {
        self.open_with(self.how.opening_for_files(&self.path)?, access, None, None)
    }

    /// The same, and protects the hidden volume in it if that is asked for.
    pub fn open_for_files_protecting(&self, access: Access, protect: &ProtectArgs) -> anyhow::Result<Opened> {
        self.open_with(self.how.opening_for_files(&self.path)?, access, self.protected(access, protect)?, None)
    }

    fn protected<'a>(
        &self,
        access: Access,
        protect: &'a ProtectArgs,
    ) -> claviger_engine::Result<Option<&'a HiddenArgs>> {
        if protect.protect && (access == Access::ReadOnly || self.how.truncated) {
            return Err(Error::misuse("a volume that is opened read-only needs no protection")
                .hint("Leave out --protect-hidden."));
        }
        if protect.on_stdin() && self.password_on_stdin() {
            return Err(Error::misuse("only one of the two passwords can come from standard input"));
        }
        Ok(protect.protect.then_some(&protect.hidden))
    }

    /// How it is really opened where this is wanted.
    pub fn access(&self, wanted: Access) -> Access {
        if self.how.truncated { Access::ReadOnly } else { wanted }
    }

    /// The files that are opened.
    pub fn files(&self) -> Vec<&Path> {
        [Some(&*self.path), self.how.header_file()].into_iter().flatten().collect()
    }

    /// What it is about, opened for another process that unlocks it.
    pub fn stores(&self, access: Access) -> anyhow::Result<Stores> {
        self.refuse_folder_options()?;
        Ok(self.how.opening(&self.path)?.access(self.access(access)).stores()?)
    }

    /// Finds the encrypted folder of this machine, for another process that unlocks it.
    pub fn find_here(&self, access: Access) -> anyhow::Result<Locked> {
        let locked = self.how.opening(&self.path)?.access(self.access(access)).find()?;
        locked.check_key_process(&[])?;
        Ok(locked)
    }

    /// Opens a volume whose bytes another process reads, or a folder that it looks through. Calls `alone` once all secrets are there: from then on no file can be opened
    /// any more.
    pub fn open_lent(
        &self,
        key_side: &KeySide,
        access: Access,
        protect: Option<&ProtectArgs>,
        alone: &dyn Fn() -> io::Result<()>,
    ) -> anyhow::Result<Opened> {
        let opening = self.how.opening(&self.path)?;
        let opening = match key_side.folder() {
            Some(folder) => opening.over_folder(folder),
            None => opening.over_stores(key_side.disk(), key_side.header()),
        };
        let hidden = protect.map(|protect| self.protected(access, protect)).transpose()?.flatten();
        self.open_with(opening, access, hidden, Some(alone))
    }

    fn open_with(
        &self,
        opening: Opening,
        access: Access,
        hidden: Option<&HiddenArgs>,
        alone: Option<&dyn Fn() -> io::Result<()>>,
    ) -> anyhow::Result<Opened> {
        let access = self.access(access);
        guard::no_dumps();
        prompt::about(&self.path);
        let cancel = cancel::install()?;
        let locked = opening.access(access).find();
        let locked = locked.map_err(|e| if self.path.is_dir() { e } else { with_explain(e) })?;
        let folder = locked.file_format().map(|_| self.how.folder.read()).transpose()?;
        let unlock = |credentials| match &folder {
            Some(given) => self.how.unlock_folder(credentials, given),
            None => self.how.unlock(credentials),
        };
        locked.check(&unlock(&[]))?;
        if alone.is_some() {
            locked.check_key_process(&[])?;
        }
        // A password is then that of a folder in it.
        if locked.is_clear() {
            return Ok(locked.unlock(&self.how.unlock(&[]))?);
        }
        if let Some(header) = locked.header() {
            self.announce(header).map_err(|e| e.at(&self.path))?;
        }
        let opens_itself = folder.as_ref().is_some_and(FolderGiven::opens_itself);
        let without = self.how.folder.as_stored() || opens_itself;
        let asks = |keyfiles: &[Credential]| !without && locked.asks_passphrase(keyfiles);
        let own = folder.is_some() && self.how.folder.gives_password();
        let released = locked.header().map(|header| self.released(header)).transpose()?.flatten();
        let keyslot = released.as_ref().and_then(|released| released.keyslot);
        let credentials = match (released, locked.headerless()) {
            (Some(released), _) => released.credentials,
            _ if own => self.how.folder.source().read()?,
            (None, true) => self.credentials.read_for_headerless(asks)?,
            (None, false) => self.credentials.read_for(asks)?,
        };
        let credentials = match locked.stored_files() {
            Some((tree, _)) => {
                [credentials, self.how.folder.certificates.read(&**tree)?].into_iter().flatten().collect()
            }
            None => credentials,
        };
        let hidden_credentials = hidden.map(|h| h.credentials.source().read()).transpose()?;
        let protect = hidden.zip(hidden_credentials.as_deref()).map(|(args, credentials)| args.protect(credentials));
        if let Some(alone) = alone {
            locked.check_key_process(&credentials)?;
            alone().context("the process that is to hold the keys")?;
        }
        let bar = Progress::trials("Opening");
        let in_use = AtomicU64::new(0);
        let show = |done, all| {
            bar.memory(in_use.load(Ordering::Relaxed));
            bar.at(done, all);
        };
        let with = unlock(&credentials);
        let with = Unlock {
            memory_in_use: Some(&in_use),
            cancel: Some(cancel),
            progress: Some(&show),
            protect,
            keyslot: keyslot.or(with.keyslot),
            ..with
        };
        let opened = locked.unlock(&with);
        drop(hidden_credentials);
        drop(credentials);
        drop(bar);
        Ok(opened.map_err(with_explain)?)
    }
}

/// Refuses the first option of these that was given.
pub fn takes_no(what: &str, options: impl IntoIterator<Item = (bool, &'static str)>) -> claviger_engine::Result<()> {
    match options.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Error::misuse(format!("{what} takes no {option}"))),
        None => Ok(()),
    }
}

/// The verb that says more, for verbs that open a volume and could not.
fn with_explain(mut error: Error) -> Error {
    let more = match &error.kind {
        ErrorKind::NotThisFormat(_) => "`claviger explain` says what it is.",
        ErrorKind::WrongCredential(_) => "`claviger explain` also tries other keyboard layouts and Unicode forms.",
        _ => return error,
    };
    let before = error.to_try(advice::say).map(|before| format!("{before} ")).unwrap_or_default();
    error.advice = None;
    error.hint(format!("{before}{more}"))
}

impl OpenedVolume {
    /// Tells the warnings.
    pub fn warn(&self) {
        self.warnings.iter().for_each(|w| output::warn(w));
    }

    /// Its plaintext for other programs, or that of the logical volume in it, and its warnings told. Sectors are shown as large
    /// as the volume has them, unless something is inside that was made for smaller ones, which no disk of larger ones could
    /// hold.
    pub fn into_served(
        mut self,
        within: &LogicalVolumeArgs,
        to_write: bool,
    ) -> claviger_engine::Result<Arc<dyn Store>> {
        if within.given() {
            self.warn();
            return within.within(Arc::new(self.with_threads().volume), to_write);
        }
        if let Some(inside) = self.smaller_inside() {
            self.volume = self.volume.with_sector_size(inside);
        }
        self.warn();
        Ok(Arc::new(self.with_threads().volume))
    }

    /// The size of sectors that what is inside was made for, if the volume has larger ones. Warns of it.
    pub fn smaller_inside(&mut self) -> Option<u64> {
        let own = self.volume.sector_size();
        if own == SMALLEST_SECTOR {
            return None;
        }
        // What cannot be read is no reason not to serve the rest: sectors with tags may never have been written.
        let inside = filesystems::sector_size(&self.volume).ok().flatten().filter(|inside| *inside < own);
        self.warnings.extend(inside.map(|inside| smaller_sectors(inside, own)));
        inside
    }

    /// With the threads of this machine, for large reads.
    pub fn with_threads(mut self) -> Self {
        // Between two large reads there is a write to standard output: an idle helper may sleep.
        let pool = Pool::for_this_machine(Duration::ZERO);
        self.volume = self.volume.with_pool(Arc::new(pool));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_copies_or_numbers() {
        assert_eq!(Slot::parse("hidden-backup"), Ok(Slot::Copy { hidden: true, backup: true }));
        assert_eq!(Slot::parse("7"), Ok(Slot::Keyslot(7)));
        for wrong in ["", "-1", "first", "4294967296"] {
            assert!(Slot::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Every option that clap knows, each by itself or beside those that it requires.
    #[test]
    fn each_option_counts_as_given() {
        use clap::{Args as _, FromArgMatches as _};
        let command = UnlockArgs::augment_args(clap::Command::new("unlock").no_binary_name(true));
        let parse = |words: &[&str]| {
            let matches = command.clone().try_get_matches_from(words)?;
            UnlockArgs::from_arg_matches(&matches)
        };
        assert!(!parse(&[]).expect("nothing is required").given());
        let required = ["--windows-profile=x", "--pkcs11-module=x", "--tpm2-device=/dev/tpmrm0"];
        for option in command.get_arguments() {
            let name = format!("--{}", option.get_long().expect("each has a name"));
            let of_values = ["1", "512", "primary", "xts-plain64", "Cargo.toml", "/dev/tpmrm0", "http://host"]
                .map(|value| format!("{name}={value}"));
            let mut forms = of_values.iter().chain([&name]);
            let given =
                forms.find_map(|form| parse(&[form]).or_else(|_| parse(&[&[&**form], &required[..]].concat())).ok());
            assert!(given.unwrap_or_else(|| panic!("{name} takes none of these values")).given(), "{name}");
        }
    }
}
