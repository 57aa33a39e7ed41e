//! `claviger reencrypt`: another key, cipher or sector size for a LUKS2 volume, where it lies; encryption and decryption in place.

mod conversion;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use claviger_engine::filesystems;
use claviger_engine::formats;
use claviger_engine::formats::luks2::reencrypt::{self, HeaderAndData, Reencryption, ReencryptionRequest};
use claviger_engine::formats::takes::{self, Purpose};
use claviger_engine::internal::files;
use claviger_engine::store::{Access, Bypass, FileStore};
use claviger_engine::{Credential, Error, ErrorKind, Opening, Result, Secret, Spec, Store, Unlock};
use claviger_serve::inherited;
use serde::Serialize;

use crate::opening::cost::NewCostArgs;
use crate::opening::credentials::CredentialArgs;
use crate::opening::direct::DirectArgs;
use crate::opening::patience::{self, PatienceArgs};
use crate::opening::remote;
use crate::process::guard;
use crate::process::key_process::{InKeyProcess, KeyProcessArgs, Started, Which};
use crate::terminal::exit::Silent;
use crate::terminal::output::{self, Report, warn};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, prompt, size};
use crate::verbs::create::protectors::{ProtectorArgs, ProtectorReport};

/// Size of the file of a new detached header, in bytes: as cryptsetup makes it.
const HEADER: u64 = 16 << 20;

/// Change the key, cipher or sector size of a LUKS2 volume in place; encrypt and decrypt in place
///
/// The volume is rewritten zone by zone. After an interruption by Ctrl-C or a power cut, the volume still opens, and
/// --resume continues. Claviger and cryptsetup can resume each other's reencryptions. Nobody else may use the volume
/// meanwhile.
///
/// The new key gets a keyslot for the given password. Keyslots with other passwords will be removed with the old key.
///
/// --encrypt turns plaintext into a volume. With --header FILE, the header goes to a new file, and the data keep
/// their size. Otherwise, first shrink the file system; --reduce-device-size then makes room for the header from
/// unused bytes at the end. --decrypt leaves only plaintext. A header in front of the data moves to a new file,
/// --header FILE, and the plaintext then begins at byte 0.
///
/// For BitLocker, --decrypt leaves only the file system. If Windows or an interruption left a conversion unfinished,
/// --resume continues it, and --encrypt or --decrypt sets its direction. Its log needs no options, and a crash loses
/// nothing. --encrypt --format BitLocker also creates a recovery password, like `claviger create`.
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

/// What it is about, open for writing.
struct ReencryptionTarget {
    data: Arc<dyn Store>,
    /// What the header is in, if that is not the volume itself.
    header: Option<Arc<dyn Store>>,
    /// Whether that was made just now, which was asked about.
    new: bool,
}

/// What a detached header is in, and its file if that was made just now.
type DetachedHeader = (Arc<dyn Store>, Option<Arc<FileStore>>);

#[derive(Serialize)]
struct Reencrypted {
    path: String,
    /// Whether all is done.
    finished: bool,
    /// Size of what was rewritten, in bytes.
    size: u64,
    /// How long that took, in seconds.
    seconds: f64,
    /// Keyslots that have ended with the old key.
    ended_keyslots: Vec<u32>,
    /// What was made that opens a new volume, which people were told when it was.
    #[serde(flatten)]
    protectors: ProtectorReport,
}

/// Carries the verb out. `words` is the command line, as this verb sees it.
pub fn run(args: &Args, words: &[OsString]) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    if args.key_process.which().is_some() {
        return args.keep();
    }
    if args.key_process.asked() {
        return args.work_for_key_process(words);
    }
    let data = remote::open(&args.path, Access::ReadWrite)?;
    args.direct.apply(Bypass::LargeWrites, true, &args.path, &*data);
    let (opened, made) = args.opened(data)?;
    carry_out(args, opened, None, &|| args.forget_header(made.as_deref()))
}

/// Carries it out on the open stores; `in_key_process` is set in the key process. Calls `forget` if it could not begin.
fn carry_out(
    args: &Args,
    opened: ReencryptionTarget,
    in_key_process: Option<&InKeyProcess>,
    forget: &dyn Fn(),
) -> anyhow::Result<()> {
    let at = |e: Error| e.at(&args.path);
    let ReencryptionTarget { data, header, new } = opened;
    if let Some(found) = args.convertible(&*data).map_err(at)? {
        return args.convert(data, found, in_key_process);
    }
    let stores = match &header {
        Some(header) => HeaderAndData::new(&**header, Some(&*data)),
        None => HeaderAndData::new(&*data, None),
    };
    if args.encrypt {
        filesystems::must_not_be_hibernated(&data).inspect_err(|_| forget()).map_err(at)?;
    }
    if args.resume && reencrypt::status(&**header.as_ref().unwrap_or(&data)).is_ok_and(|status| status.is_none()) {
        return Err(at(args.nothing_begun(&*data)).into());
    }
    args.announce(header.as_ref().unwrap_or(&data)).map_err(at)?;
    let credentials = match args.encrypt {
        // A keyfile is a passphrase.
        true => args.credentials.read_new(|keyfiles| keyfiles.is_empty())?,
        false => args.credentials.read_for(|keyfiles| keyfiles.is_empty())?,
    };
    let volume_key = if args.encrypt { args.credentials.new_volume_key()? } else { None };
    alone(in_key_process)?;
    let ended = match args.resume {
        true => Vec::new(),
        false => args.begin(&stores, &credentials, volume_key.as_ref(), new).inspect_err(|_| forget())?,
    };
    let with = args.unlock(&credentials);
    let reencryption = Reencryption::resume(stores, &with, args.hotzone_size).map_err(at)?;
    let size = reencryption.progress().size;
    let begun = Instant::now();
    if !args.init_only {
        let bar = Progress::bytes("Reencrypting");
        let done = reencryption.run(&|done, all| bar.at(done, all), cancel::flag());
        bar.clear();
        done.map_err(at)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let path = args.path.display().to_string();
    let (finished, protectors) = (!args.init_only, ProtectorReport::default());
    output::print(&Reencrypted { path, finished, size, seconds, ended_keyslots: ended, protectors }, args.json)
}

/// All secrets are there: a process that has them for another one can do nothing else from now on.
fn alone(in_key_process: Option<&InKeyProcess>) -> anyhow::Result<()> {
    let Some(keeping) = in_key_process else { return Ok(()) };
    keeping.alone().context("the key process")?;
    keeping.without().iter().for_each(|missing| warn(missing));
    Ok(())
}

impl Args {
    /// Opens what it is about, and makes the file of a new header. That file is returned, too, if it was made.
    fn opened(&self, data: Arc<dyn Store>) -> Result<(ReencryptionTarget, Option<Arc<FileStore>>)> {
        let at = |e: Error| e.at(&self.path);
        // Those have no detached header, and say so themselves.
        if self.convertible(&*data).map_err(at)?.is_some() {
            return Ok((ReencryptionTarget { data, header: None, new: false }, None));
        }
        let luks2 = formats::by_name("LUKS2")?;
        takes::check(luks2.name(), &luks2.takes(), Purpose::Creating, &self.protectors.parameters()).map_err(at)?;
        let (header, made) = self.header_store(&*data).map_err(at)?.map_or((None, None), |(h, made)| (Some(h), made));
        Ok((ReencryptionTarget { data, header, new: made.is_some() }, made))
    }

    /// Opens the files for the process that has the keys, reads and writes there for it, and has no key itself.
    fn work_for_key_process(&self, words: &[OsString]) -> anyhow::Result<()> {
        // Files are made by whoever has the secrets, and can be removed again only here.
        let there = self.protectors.there();
        let started = Started::new(words, Which::Opened, Stdio::inherit())?;
        inherited::hide_all()?;
        let opened = remote::open(&self.path, Access::ReadWrite).and_then(|data| {
            self.direct.apply(Bypass::LargeWrites, true, &self.path, &*data);
            self.opened(data)
        });
        let (ReencryptionTarget { data, header, new }, made) = match opened {
            Ok(opened) => opened,
            Err(e) => return Err(started.give_up(e.into())),
        };
        inherited::forget_files(
            &[Some(&*self.path), self.header.as_deref()].into_iter().flatten().collect::<Vec<_>>(),
        )?;
        let lent = claviger_engine::opening::Stores { disk: Arc::clone(&data), header, data };
        let worked = started.work_for(&lent, new.into(), &|path, file| self.protectors.remove(path, file, &there));
        // Where it was killed, the next one finds what it has left.
        worked.inspect_err(|e| {
            if e.is::<Silent>() {
                self.forget_header(made.as_deref())
            }
        })
    }

    /// Does all of it in the process that has the keys, over what the other one lends.
    fn keep(&self) -> anyhow::Result<()> {
        let keeping = self.key_process.accept()?;
        let key_side = &keeping.key_side;
        let opened = ReencryptionTarget { data: key_side.disk(), header: key_side.header(), new: key_side.told()? };
        prompt::ask_elsewhere(key_side.asker());
        carry_out(self, opened, Some(&keeping), &|| ())
    }

    /// Tells what trying the keyslots costs, and asks where it takes long, before anybody types a password. Where there is no header
    /// yet, or half of one, there is nothing to tell.
    fn announce(&self, header: &Arc<dyn Store>) -> Result<()> {
        match Opening::store(Arc::clone(header)).format("LUKS2").find_header() {
            Ok(found) if !self.encrypt && !self.credentials.gives_volume_key() => {
                let with = self.unlock(&[]);
                patience::announce(found.header.plan(&with), &with)
            }
            _ => Ok(()),
        }
    }

    fn unlock<'a>(&self, credentials: &'a [Credential]) -> Unlock<'a> {
        Unlock { cancel: Some(cancel::flag()), may_take: self.patience.may_take(), ..Unlock::with(credentials) }
    }

    /// What the header is in, if that is not the volume itself. It is made where there is none, and the reencryption is to make one. An
    /// empty file is none: an interruption may leave it between the making and the allocating.
    fn header_store(&self, data: &dyn Store) -> Result<Option<DetachedHeader>> {
        let Some(path) = &self.header else { return Ok(None) };
        if remote::is_remote(path) {
            let store = remote::open(path, Access::ReadWrite)?;
            if reencrypt::status(&*store)?.is_none() {
                remote::must_be_here(path, "a new header")?;
            }
            return Ok(Some((store, None)));
        }
        let existing = if path.exists() { Some(FileStore::open(path, Access::ReadWrite)?) } else { None };
        if existing.as_ref().is_some_and(|store| !store.is_empty() || !store.is_at(path)) {
            return Ok(existing.map(|store| (Arc::new(store) as Arc<dyn Store>, None)));
        }
        let len = match () {
            () if self.encrypt => HEADER,
            () if self.decrypt => reencrypt::header_len(data)?,
            () => return Ok(Some((Arc::new(FileStore::open(path, Access::ReadWrite)?) as Arc<dyn Store>, None))),
        };
        self.consent()?;
        if existing.is_some() {
            fs::remove_file(path).map_err(|e| Error::from(e).at(path))?;
        }
        let store = Arc::new(FileStore::create(path, len)?);
        files::sync_folder(path)?;
        Ok(Some((Arc::clone(&store) as Arc<dyn Store>, Some(store))))
    }

    /// Removes the file that was made for a new header, if there is still none in it.
    fn forget_header(&self, made: Option<&FileStore>) {
        let (Some(path), Some(store)) = (&self.header, made) else { return };
        if store.is_at(path) && matches!(formats::occupied(store), Ok(None)) {
            let _ = fs::remove_file(path);
        }
    }

    /// Begins it, after a question if it was not `asked` before. Which keyslots end with the old key.
    fn begin(
        &self,
        stores: &HeaderAndData<'_>,
        credentials: &[Credential],
        volume_key: Option<&Secret>,
        asked: bool,
    ) -> anyhow::Result<Vec<u32>> {
        let at = |e: Error| e.at(&self.path);
        let request = self.request()?;
        let with = self.unlock(credentials);
        // Asked first: half a header, which an interruption has left, is none that has a status.
        if self.decrypt && stores.detached && reencrypt::moves_header(stores.header, stores.data).map_err(at)? {
            self.consent_unless(asked)?;
            reencrypt::begin_decryption(stores.header, stores.data, &with, &request).map_err(at)?;
            return Ok(Vec::new());
        }
        match reencrypt::status(stores.header).map_err(at)? {
            Some(true) => {
                let begun = Error::misuse("its reencryption has already begun").hint("To continue it, add --resume.");
                return Err(at(begun).into());
            }
            _ if self.encrypt => {
                self.encryption(stores, &request, credentials, volume_key, asked)?;
                return Ok(Vec::new());
            }
            Some(false) => {}
            None => return Err(at(self.no_luks2(stores)).into()),
        }
        let beginning = reencrypt::begin(stores, &with, &request, self.decrypt).map_err(at)?;
        if !beginning.ending.is_empty() {
            let slots: Vec<_> = beginning.ending.iter().map(u32::to_string).collect();
            warn(&format!(
                "keyslots {} will be removed with the old key. Add their passwords again afterwards.",
                slots.join(", ")
            ));
        }
        self.consent_unless(false)?;
        beginning.edit.carry_out(stores.header).map_err(at)?;
        Ok(beginning.ending)
    }

    fn encryption(
        &self,
        stores: &HeaderAndData<'_>,
        request: &ReencryptionRequest<'_>,
        credentials: &[Credential],
        volume_key: Option<&Secret>,
        asked: bool,
    ) -> anyhow::Result<()> {
        let at = |e: Error| e.at(&self.path);
        let spec = Spec {
            volume_key,
            cipher: self.new_cipher.as_deref(),
            key_bits: self.new_key_size,
            sector_size: self.new_sector_size,
            cost: self.cost.cost()?,
            cancel: Some(cancel::flag()),
            ..Spec::default()
        };
        if stores.detached {
            let beginning = reencrypt::begin_detached_encryption(stores, &spec, credentials, request).map_err(at)?;
            self.consent_unless(asked)?;
            beginning.edit.carry_out(stores.header).map_err(at)?;
            return Ok(());
        }
        let Some(reduce) = self.reduce_device_size else {
            return Err(at(Error::misuse("the header needs room")
                .hint("Shrink the file system by 32 MiB and add --reduce-device-size 32M, or add --header FILE."))
            .into());
        };
        self.consent_unless(asked)?;
        Ok(reencrypt::begin_encryption(stores.data, reduce, &spec, credentials, request).map_err(at)?)
    }

    /// What is there where nothing was ever begun.
    fn nothing_begun(&self, data: &dyn Store) -> Error {
        let holds = filesystems::detect(data).ok().flatten();
        let what =
            holds.map_or("its contents are unknown".to_owned(), |found| format!("it holds {}", found.kind.described()));
        Error::new(ErrorKind::NotThisFormat(format!("there is no reencryption to resume: {what}")))
            .hint("To encrypt it in place: `claviger reencrypt --encrypt`, with --format BitLocker for BitLocker.")
    }

    fn no_luks2(&self, stores: &HeaderAndData<'_>) -> Error {
        let mut start = [0; 8];
        let read = stores.header.read_at(0, &mut start);
        let error = Error::new(ErrorKind::NotThisFormat("it has no LUKS2 header".into()));
        if read.is_ok() && start == *b"LUKS\xba\xbe\0\x01" {
            return error.hint("It is a LUKS1 volume. To convert its header: claviger header convert --to LUKS2");
        }
        error.hint("To encrypt plaintext, add --encrypt.")
    }

    fn request(&self) -> Result<ReencryptionRequest<'_>> {
        Ok(ReencryptionRequest {
            cipher: self.new_cipher.as_deref(),
            key_bits: self.new_key_size,
            sector_size: self.new_sector_size,
            resilience: self.resilience.as_deref(),
            checksum: self.resilience_hash.as_deref(),
            backward: self.backward,
            hash: None,
            cost: self.cost.cost()?,
        })
    }

    fn consent_unless(&self, asked: bool) -> Result<()> {
        if !asked {
            self.consent()?;
        }
        cancel::check()
    }

    fn consent(&self) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        let path = output::printable(&self.path.to_string_lossy());
        let question = match () {
            () if self.encrypt => format!("{path}: its contents will be encrypted in place. Continue? (yes/no) "),
            () if self.decrypt => format!("{path}: its data will be decrypted in place. Continue? (yes/no) "),
            () => format!("{path}: all of it will be rewritten with a new key. Continue? (yes/no) "),
        };
        prompt::consent(&question, "--yes", |why| Error::misuse(format!("nothing was changed{why}")).at(&self.path))
    }
}

impl Report for Reencrypted {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, finished, size, seconds, ended_keyslots, protectors: _ } = self;
        let path = output::printable(path);
        if !finished {
            return writeln!(out, "{path}: started. To continue: claviger reencrypt --resume");
        }
        let rate = *size as f64 / seconds.max(1e-3) / 1e6;
        writeln!(out, "{path}: done, {} in {seconds:.1} s, {rate:.0} MB/s.", size::short(*size))?;
        if !ended_keyslots.is_empty() {
            let slots: Vec<_> = ended_keyslots.iter().map(u32::to_string).collect();
            writeln!(out, "Keyslots {} were removed with the old key.", slots.join(", "))?;
        }
        writeln!(out, "Earlier header backups no longer work. Destroy them, and make a new one.")
    }
}
