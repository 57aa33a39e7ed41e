//! `claviger reencrypt`: changes key, cipher or sector size of a volume in place; encrypts and decrypts in place.

mod conversion;
mod in_use;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::Context;
use claviger_engine::filesystems;
use claviger_engine::formats::{self, InPlaceStores, Reencrypter};
use claviger_engine::internal::files;
use claviger_engine::store::{Access, Bypass, FileStore};
use claviger_engine::volume::ConversionKind;
use claviger_engine::{Credential, Error, ErrorKind, Result, Store, Unlock};
use claviger_serve::inherited;
use serde::Serialize;
use serde_json::Value;

use crate::opening::cost::NewCostArgs;
use crate::opening::credentials::CredentialArgs;
use crate::opening::direct::DirectArgs;
use crate::opening::full_disk;
use crate::opening::patience::PatienceArgs;
use crate::opening::remote;
use crate::process::guard;
use crate::process::key_process::{InKeyProcess, KeyProcessArgs, Started, Which};
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report, warn};
use crate::terminal::{advice, cancel, prompt, size};
use crate::verbs::create::protectors::{ProtectorArgs, ProtectorReport};
use conversion::{Convertible, carry_out};

/// The format of newly encrypted plaintext, and of a volume whose format is not recognised.
const DEFAULT_FORMAT: &str = "LUKS2";

/// Change the key, cipher or sector size of a LUKS2 volume in place; encrypt and decrypt in place
///
/// The volume is rewritten zone by zone. After an interruption by Ctrl-C or a power cut, the volume still opens, and
/// --resume continues. Claviger and cryptsetup can resume each other's reencryptions.
///
/// A volume that you have mounted or serve stays in use meanwhile. Its process does the work and gives way to other requests: they
/// wait only where a zone is just being rewritten. Ctrl-C pauses. Not possible in use: --resilience none, a header in a
/// remote store, and a zone that a crash interrupted. A LUKS2 volume that is in use with --isolate-keys needs --isolate-keys here,
/// too; volumes of other formats must be unmounted. An encryption, and a decryption that moves the header, cannot begin in
/// use: begin with --init-only, mount the volume, and continue with --resume.
///
/// The new key gets a keyslot for the given password. Keyslots with other passwords will be removed with the old key.
///
/// --encrypt turns plaintext into a volume. With --header FILE, the header goes to a new file, and the data keep
/// their size. Otherwise, first shrink the file system; --reduce-device-size then makes room for the header from
/// unused bytes at the end. --decrypt leaves only plaintext. A header in front of the data moves to a new file,
/// --header FILE, and the plaintext then begins at byte 0.
///
/// For BitLocker, --decrypt leaves only the file system. If Windows or an interruption left a conversion unfinished,
/// --resume continues it, and --encrypt or --decrypt sets its direction. A log protects it without any options: a crash
/// loses nothing. --encrypt --format BitLocker also creates a recovery password, like `claviger create`.
///
/// With the resilience modes checksum and journal, a crash loses nothing; with none, it loses the zone being
/// rewritten. Make a backup anyway.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger reencrypt disk.luks
  claviger reencrypt --new-cipher serpent-xts-plain64 --new-sector-size 4096 disk.luks
  claviger reencrypt --resume disk.luks
  claviger reencrypt --encrypt --reduce-device-size 32M /dev/sdx1
  claviger reencrypt --encrypt --header disk.header disk.img
  claviger reencrypt --decrypt --header disk.header disk.luks
  claviger reencrypt --decrypt bitlocker.img")]
pub struct Args {
    /// The file or block device that holds the volume
    #[arg(value_name = "VOLUME")]
    path: PathBuf,

    #[command(flatten)]
    credentials: CredentialArgs,

    /// The detached header in a file or a remote store, or a new file for it
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,

    /// Encrypt plaintext in place
    #[arg(long, group = "what")]
    encrypt: bool,

    /// Decrypt in place, leaving only plaintext
    #[arg(long, group = "what")]
    decrypt: bool,

    /// Resume an interrupted reencryption
    #[arg(long, group = "what")]
    resume: bool,

    /// Format of the new volume for --encrypt: LUKS2 or BitLocker
    #[arg(long, value_name = "FORMAT", requires = "encrypt")]
    format: Option<String>,

    #[command(flatten)]
    patience: PatienceArgs,

    /// Only start; --resume does the rest
    #[arg(long, conflicts_with = "resume")]
    init_only: bool,

    /// Unused bytes at the end that make room for the header: 32M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "encrypt", conflicts_with = "header")]
    reduce_device_size: Option<u64>,

    /// New cipher: aes, serpent-xts-plain64
    #[arg(long, value_name = "NAME", conflicts_with_all = ["resume", "decrypt"])]
    new_cipher: Option<String>,

    /// Size of the new volume key, in bits
    #[arg(long, value_name = "BITS", conflicts_with_all = ["resume", "decrypt"])]
    new_key_size: Option<u32>,

    /// New size of an encryption sector: 512, 1024, 2048, 4096
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["resume", "decrypt"])]
    new_sector_size: Option<u32>,

    /// Protection of the zone being rewritten: checksum, journal or none [default: checksum if it can repair a torn
    /// sector, else journal]
    #[arg(long, value_name = "MODE", conflicts_with = "resume")]
    resilience: Option<String>,

    /// Hash for resilience checksums
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    resilience_hash: Option<String>,

    /// Work backwards from the end
    #[arg(long, conflicts_with_all = ["resume", "decrypt"])]
    backward: bool,

    /// Maximum size of a zone: 16M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    hotzone_size: Option<u64>,

    /// Rewrite at most this much per second: 20M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    throttle: Option<u64>,

    #[command(flatten)]
    direct: DirectArgs,

    #[command(flatten)]
    cost: NewCostArgs,

    #[command(flatten)]
    protectors: ProtectorArgs,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    key_process: KeyProcessArgs,
}

/// The volume, identified and open for writing.
struct ReencryptionTarget {
    of: Convertible,
    data: Arc<dyn Store>,
    /// The store of a detached header.
    header: Option<Arc<dyn Store>>,
    /// Whether the header file is new; the user has then already agreed.
    new: bool,
}

impl ReencryptionTarget {
    fn stores(&self) -> InPlaceStores<'_> {
        InPlaceStores { data: &self.data, header: self.header.as_ref() }
    }
}

/// The store of a detached header, and its file if it was just created.
type DetachedHeader = (Arc<dyn Store>, Option<Arc<FileStore>>);

#[derive(Serialize)]
struct Reencrypted {
    #[serde(flatten)]
    path: FileName,
    /// Whether the reencryption is complete.
    finished: bool,
    /// What was done.
    kind: ConversionKind,
    /// Whether the format has header backups.
    #[serde(skip)]
    has_backups: bool,
    /// The size of the rewritten data, in bytes.
    size: u64,
    /// The time that took, in seconds.
    seconds: f64,
    /// Keyslots that were removed with the old key.
    ended_keyslots: Vec<u32>,
    /// The protectors of a new volume, which were reported when they were created.
    #[serde(flatten)]
    protectors: ProtectorReport,
}

/// Runs the verb. `words` is the command line, as this verb sees it.
pub fn run(args: &Args, words: &[OsString]) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    if args.key_process.which().is_some() {
        return args.work_in_key_process();
    }
    if let Some(disk) = remote::disk_in_file(&args.path)? {
        return Err(disk.only_read(&args.path).into());
    }
    if args.key_process.asked() {
        return args.work_for_key_process(words);
    }
    let data = remote::open_or_borrow(&args.path)?;
    args.direct.apply(Bypass::LargeWrites, true, &args.path, &*data);
    let (opened, made) = args.opened(data)?;
    carry_out(args, opened, None, &|| args.forget_header(made.as_deref()))
}

/// Enters the sandbox in a key process, once all secrets are there.
fn enter_sandbox(in_key_process: Option<&InKeyProcess>, terminal: Option<BorrowedFd<'_>>) -> anyhow::Result<()> {
    let Some(in_key_process) = in_key_process else { return Ok(()) };
    in_key_process.enter_sandbox(terminal).context("the key process")?;
    in_key_process.without().iter().for_each(|missing| warn(missing));
    Ok(())
}

impl Args {
    /// Opens the stores, and creates the file of a new header, which is also returned.
    fn opened(&self, data: Arc<dyn Store>) -> Result<(ReencryptionTarget, Option<Arc<FileStore>>)> {
        let identified = || -> Result<_> {
            let of = self.convertible(&*data)?;
            self.check(&of)?;
            self.check_in_use(&of, &*data)?;
            let reencrypter = of.converter.reencrypter();
            Ok((of, reencrypter.map_or(Ok(None), |reencrypter| self.header_store(reencrypter, &*data))?))
        };
        let (of, header) = identified().map_err(|e| e.at(&self.path))?;
        let (header, made) = header.unzip();
        let made = made.flatten();
        Ok((ReencryptionTarget { of, data, header, new: made.is_some() }, made))
    }

    /// Refuses to create a volume or a header from a file in use.
    fn check_in_use(&self, of: &Convertible, data: &dyn Store) -> Result<()> {
        let is_empty =
            |path: &Path| fs::metadata(path).map_or(true, |metadata| metadata.is_file() && metadata.len() == 0);
        let begun = |reencrypter: &dyn Reencrypter| matches!(reencrypter.status(data), Ok(Some(true)));
        let new = match &self.header {
            Some(path) => self.towards().is_some() && !remote::is_remote(path) && is_empty(path),
            None => of.new && !of.converter.reencrypter().is_some_and(begun),
        };
        if new && data.lender().is_some() {
            return Err(Error::unsupported("beginning this conversion while the volume is in use").hint(
                "Nothing was changed. Unmount it, and begin with --init-only. Then mount it again, and continue with --resume.",
            ));
        }
        Ok(())
    }

    /// Opens the files, and reads and writes them for the key process. This process has no keys.
    fn work_for_key_process(&self, words: &[OsString]) -> anyhow::Result<()> {
        if let Some(data) = remote::borrow(&self.path)? {
            return self.convert_in_use(&self.opened(data)?.0, words);
        }
        // The key process creates the files of protectors, but from its sandbox it cannot remove them: this process does.
        let there = self.protectors.there();
        let started = Started::new(words, Which::Opened, Stdio::inherit())?;
        inherited::hide_all()?;
        let opened = remote::open(&self.path, Access::ReadWrite).and_then(|data| {
            self.direct.apply(Bypass::LargeWrites, true, &self.path, &*data);
            self.opened(data)
        });
        let (ReencryptionTarget { data, header, new, of: _ }, made) = match opened {
            Ok(opened) => opened,
            Err(e) => return Err(started.give_up(e.into())),
        };
        inherited::forget_files(
            &[Some(&*self.path), self.header.as_deref()].into_iter().flatten().collect::<Vec<_>>(),
        )?;
        let stores = claviger_engine::opening::Stores { disk: Arc::clone(&data), header, data };
        let worked = started.work_for(&stores, new.into(), &|path, file| self.protectors.remove(path, file, &there));
        // If the key process was killed, the header file stays for the next run.
        worked.inspect_err(|e| {
            if e.is::<Silent>() {
                self.forget_header(made.as_deref())
            }
        })
    }

    /// Does all of the work in the key process, through the other process's stores.
    fn work_in_key_process(&self) -> anyhow::Result<()> {
        let in_key_process = self.key_process.accept()?;
        let key_side = &in_key_process.key_side;
        let (data, header, task): (_, _, Value) = (key_side.disk(), key_side.header(), key_side.task()?);
        let of = self.convertible(&*data).map_err(|e| e.at(&self.path))?;
        let opened = ReencryptionTarget { of, data, header, new: task == true };
        if in_use::is_task(&task) {
            return self.hold_keys_in_use(&opened, in_key_process);
        }
        prompt::ask_elsewhere(key_side.asker());
        carry_out(self, opened, Some(&in_key_process), &|| ())
    }

    fn unlock<'a>(&self, credentials: &'a [Credential]) -> Unlock<'a> {
        Unlock { cancel: Some(cancel::flag()), may_take: self.patience.may_take(), ..Unlock::with(credentials) }
    }

    /// The store of a detached header, which is created if the reencryption needs a new one. An empty file counts as missing:
    /// an interruption between creation and allocation may leave one.
    fn header_store(&self, reencrypter: &dyn Reencrypter, data: &dyn Store) -> Result<Option<DetachedHeader>> {
        let Some(path) = self.header.as_deref().map(remote::file) else { return Ok(None) };
        if remote::is_remote(path) {
            let store = remote::open(path, Access::ReadWrite)?;
            if reencrypter.status(&*store)?.is_none() {
                remote::must_be_here(path, "a new header")?;
            }
            return Ok(Some((store, None)));
        }
        // Only the header of the volume in use is borrowed, never that of another volume.
        let open = || match data.lender() {
            Some(_) => FileStore::open_or_borrow(path, Access::ReadWrite, remote::BORROW),
            None => FileStore::open(path, Access::ReadWrite),
        };
        let existing = path.exists().then(open).transpose()?;
        if existing.as_ref().is_some_and(|store| !store.is_empty() || !store.is_at(path)) {
            return Ok(existing.map(|store| (Arc::new(store) as Arc<dyn Store>, None)));
        }
        let Some(towards) = self.towards() else {
            return Ok(Some((Arc::new(FileStore::open(path, Access::ReadWrite)?) as Arc<dyn Store>, None)));
        };
        let len = reencrypter.new_header_len(data, towards)?;
        self.consent()?;
        if existing.is_some() {
            fs::remove_file(path).map_err(|e| Error::from(e).at(path))?;
        }
        let store = Arc::new(FileStore::create(path, len).map_err(|e| full_disk::explained(e, path, len))?);
        files::sync_folder(path)?;
        Ok(Some((Arc::clone(&store) as Arc<dyn Store>, Some(store))))
    }

    /// Removes the new header file if it still holds no header.
    fn forget_header(&self, made: Option<&FileStore>) {
        let (Some(path), Some(store)) = (&self.header, made) else { return };
        if store.is_at(path) && matches!(formats::occupied(store), Ok(None)) {
            let _ = fs::remove_file(path);
        }
    }

    /// The error if there is nothing to resume: says what the device holds.
    fn nothing_begun(&self, data: &dyn Store) -> Error {
        let holds = filesystems::detect(data).ok().flatten();
        let what =
            holds.map_or("its contents are unknown".to_owned(), |found| format!("it holds {}", found.kind.described()));
        Error::new(ErrorKind::NotThisFormat(format!("there is no reencryption to resume: {what}"))).hint(
            "To encrypt it in place: `claviger reencrypt --encrypt VOLUME`, with --format BitLocker for \
                 BitLocker.",
        )
    }

    fn consent(&self) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        let path = output::printable(&self.path.to_string_lossy());
        let question = match () {
            () if self.encrypt => format!("{path}: its contents will be encrypted in place. Continue?"),
            () if self.decrypt => format!("{path}: its data will be decrypted in place. Continue?"),
            () => format!("{path}: all of it will be rewritten with a new key. Continue?"),
        };
        prompt::consent(&question, "--yes", |why| Error::misuse(format!("nothing was changed{why}")).at(&self.path))
    }
}

impl Report for Reencrypted {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, finished, kind, has_backups, size, seconds, ended_keyslots, protectors: _ } = self;
        let path = output::printable(path);
        if !finished {
            let resume = advice::with_volume("To continue: `claviger reencrypt --resume VOLUME`.");
            return writeln!(out, "{path}: started. {resume}");
        }
        let rate = *size as f64 / seconds.max(1e-3) / 1e6;
        let what = match kind {
            ConversionKind::Encrypt => "encrypted",
            ConversionKind::Decrypt => "decrypted",
            ConversionKind::Reencrypt => "reencrypted",
        };
        writeln!(out, "{path}: {what}, {} in {seconds:.1} s, {rate:.0} MB/s.", size::short(*size))?;
        if !ended_keyslots.is_empty() {
            let slots: Vec<_> = ended_keyslots.iter().map(u32::to_string).collect();
            writeln!(out, "Keyslots {} were removed with the old key.", slots.join(", "))?;
        }
        let next = match kind {
            ConversionKind::Decrypt if *has_backups => {
                "It is plaintext now. Destroy its header backups: they hold the old key."
            }
            ConversionKind::Decrypt => "It is plaintext now.",
            ConversionKind::Encrypt if *has_backups => "Now back up the header: `claviger header backup VOLUME FILE`.",
            ConversionKind::Encrypt => return Ok(()),
            ConversionKind::Reencrypt => {
                "Earlier header backups no longer work. Destroy them, and make a new one: `claviger header backup VOLUME FILE`."
            }
        };
        writeln!(out, "{}", advice::with_header(next))
    }
}
