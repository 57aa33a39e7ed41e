//! `claviger create`: a new volume in a file or on a block device.

mod filesystem;
mod folder;
mod hidden;
mod program;
pub(super) mod protectors;

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use claviger_engine::formats::takes::{self, Parameter, Purpose};
use claviger_engine::formats::{self, Choices, Creator, Facts};
use claviger_engine::internal::files;
use claviger_engine::spec::{Reserved, ReservedAt};
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Format, Secret, Spec, Store, Volume, file_formats};
use filesystem::{FileSystem, Wish};
use program::Program;
use serde::Serialize;

use crate::opening::cost::CostArgs;
use crate::opening::credentials::CredentialArgs;
use crate::opening::new_file;
use crate::opening::remote;
use crate::process::guard;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, prompt, size};

/// The format of new volumes, where none is named.
const DEFAULT_FORMAT: &str = "VeraCrypt";

/// Create an encrypted volume
///
/// Creates a new file, whose space is allocated at once, or uses a whole block device. The volume is filled with
/// random-looking bytes, so that nobody can tell how much of it is in use. Nothing that exists is overwritten without
/// --force and a confirmation.
///
/// With --hidden, the volume is made inside an existing one, in the free space after the files of its FAT, exFAT, NTFS
/// or ext file system. Without its password nobody can tell that it is there. Options without `hidden` in their names,
/// except --size and --quick, then say how to open the outer volume.
///
/// Of a format that encrypts file by file it is a new folder, which is empty.
///
/// Sizes are bytes, or a number with K, M, G, T or KiB, MiB … (powers of 1024) or KB, MB … (powers of 1000).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger create --size 100M secrets.hc
  claviger create --format eCryptfs secrets
  claviger create --size 1G --cipher AES-Twofish-Serpent --hash Whirlpool --pim 500 secrets.hc
  claviger create --size 1G --format TrueCrypt secrets.tc
  claviger create --size 1G --format LUKS2 --label photos secrets.luks
  claviger create --force --for rbd rbd:volumes/photos
  claviger create --size 10G --format BitLocker --filesystem ntfs stick.img
  claviger create --size 10G --format BitLocker --to-go --recovery-password-file stick.txt stick.img
  claviger create --list
  claviger create --hidden --size 20M secrets.hc

The new volume is empty; to make a file system in it:
  claviger serve secrets.hc --run 'nbdcopy fat.img \"$uri\"'")]
pub struct Args {
    /// The file to create, or a block device
    #[arg(value_name = "VOLUME", required_unless_present = "list")]
    pub(crate) path: Option<PathBuf>,

    /// Size of the file: 100M, 1.5GiB, 2GB. Rounded down to whole sectors of 512 bytes
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,

    /// Format of the volume [default: VeraCrypt]
    #[arg(long, value_name = "NAME")]
    pub(crate) format: Option<String>,

    /// Make a volume that this program opens, too. LUKS2 unless --format says LUKS1
    #[arg(long = "for", value_name = "PROGRAM", conflicts_with_all = ["hidden", "header", "integrity", "home", "to_go"])]
    made_for: Option<Program>,

    /// Cipher or cascade; see --list
    #[arg(long, value_name = "NAME")]
    pub(crate) cipher: Option<String>,

    /// Hash of the key derivation; see --list
    #[arg(long, value_name = "NAME")]
    pub(crate) hash: Option<String>,

    /// PIM of a VeraCrypt volume: more or fewer iterations than usual. It is needed each time the volume is opened
    #[arg(long, value_name = "N")]
    pub(crate) pim: Option<u32>,

    /// Size of the volume key, in bits, where the format has several
    #[arg(long, value_name = "BITS")]
    pub(crate) key_size: Option<u32>,

    /// Size of the sectors that are encrypted, in bytes, where the format has several
    #[arg(long, value_name = "BYTES")]
    pub(crate) sector_size: Option<u32>,

    /// Create a new key file for a loop-AES volume, encrypted by gpg with the password. Never overwrites a file
    #[arg(long, value_name = "FILE", conflicts_with = "keyfiles")]
    pub(crate) fresh_keyfile: Option<PathBuf>,

    /// Do not encrypt the new key file: whoever has it can open the volume
    #[arg(long, requires = "fresh_keyfile", conflicts_with = "password")]
    pub(crate) unencrypted_keyfile: bool,

    /// Do not fill the volume. Faster, but reveals which parts are in use, and old contents stay readable
    #[arg(long)]
    pub(crate) quick: bool,

    /// Replace what is there, after a confirmation
    #[arg(long)]
    pub(crate) force: bool,

    /// Do not ask for confirmation
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,

    /// List the available ciphers and hashes, the defaults first
    #[arg(long, conflicts_with_all = ["path", "size", "cipher", "hash", "pim", "quick", "force", "hidden"])]
    list: bool,

    /// Make a home's encrypted folder in VOLUME, as ecryptfs-setup-private does: .Private, .ecryptfs with a random passphrase that the
    /// password unwraps, and Private to mount it at. eCryptfs
    #[arg(long, conflicts_with_all = ["cipher", "key_size"])]
    pub(crate) home: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub(crate) credentials: CredentialArgs,

    #[command(flatten)]
    pub(crate) cost: CostArgs,

    #[command(flatten)]
    pub(crate) protectors: protectors::ProtectorArgs,

    /// Put a discovery volume in front: any system shows a text there that says what the volume is
    #[arg(long, help_heading = "BitLocker")]
    pub(crate) to_go: bool,

    /// Make this file system in the volume, with the label of --label. It takes mkfs.ext4, mkfs.xfs and so on; BitLocker volumes
    /// have ntfs, exfat or fat, with what BitLocker keeps to itself left out
    #[arg(long, value_name = "KIND")]
    pub(crate) filesystem: Option<FileSystem>,

    #[command(flatten)]
    pub(crate) luks: LuksArgs,

    #[command(flatten)]
    pub(crate) hidden: hidden::HiddenVolumeArgs,
}

/// What only LUKS volumes have.
#[derive(clap::Args)]
#[command(next_help_heading = "LUKS")]
pub(crate) struct LuksArgs {
    /// The label. LUKS2, BitLocker, and the file system of --filesystem
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// The subsystem, a second label. LUKS2 only
    #[arg(long, value_name = "TEXT")]
    subsystem: Option<String>,

    /// The UUID [default: random]
    #[arg(long, value_name = "UUID")]
    uuid: Option<String>,

    /// Integrity protection: hmac-sha256, hmac-sha512, aes-gcm-random, aes-ccm-random, chacha20-poly1305, aegis128-random; or, as in
    /// cryptsetup, aead or poly1305 with a --cipher. LUKS2 only
    #[arg(long, value_name = "NAME")]
    integrity: Option<String>,

    /// Put the header into this new file, and only data into the volume
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,

    /// Where the data begin: 16M, 4M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    offset: Option<u64>,

    /// Size of one copy of the header: 16K to 4M. LUKS2 only
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    metadata_size: Option<u64>,

    /// Size of the area of all keyslots: up to 128M. LUKS2 only
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    keyslots_size: Option<u64>,
}

/// A detached header, removed again unless the volume is made.
struct NewHeader {
    store: Option<Arc<FileStore>>,
    path: PathBuf,
}

impl NewHeader {
    /// Bytes of a new header file, whichever LUKS it is.
    fn create(path: &Path, args: &LuksArgs) -> claviger_engine::Result<Self> {
        const LEN: u64 = 16 << 20;
        let len = match (args.metadata_size, args.keyslots_size) {
            (None, None) => LEN,
            (metadata, keyslots) => {
                let metadata = metadata.unwrap_or(16 << 10).saturating_mul(2);
                metadata.saturating_add(keyslots.unwrap_or(LEN.saturating_sub(metadata).max(1 << 20))).min(256 << 20)
            }
        };
        Ok(Self { store: Some(Arc::new(FileStore::create(path, len)?)), path: path.to_owned() })
    }
}

impl Drop for NewHeader {
    fn drop(&mut self) {
        if self.store.as_ref().is_some_and(|store| store.is_at(&self.path)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[derive(Serialize)]
struct Listed {
    format: &'static str,
    #[serde(flatten)]
    choices: Choices,
}

#[derive(Serialize)]
struct Created {
    path: String,
    format: &'static str,
    cipher: String,
    hash: Cow<'static, str>,
    /// Size of the file or device, in bytes.
    stored: u64,
    /// Size of the plaintext, in bytes.
    size: u64,
    quick: bool,
    /// How long all of it took, in seconds.
    seconds: f64,
    /// Seconds that filling the data area took, until all was on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    filling_seconds: Option<f64>,
    /// Options without which it does not open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    opened_with: Vec<String>,
    /// The key file that was made for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    keyfile: Option<String>,
    /// What else opens it.
    #[serde(flatten)]
    protectors: protectors::ProtectorReport,
    /// The file system that was made in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    filesystem: Option<&'static str>,
    /// What no file system in it may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<Reserved>,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        let listed = |f: &&'static dyn Format| Some(Listed { format: f.name(), choices: f.creator()?.choices() });
        return output::print(&FORMATS.iter().filter_map(listed).collect::<Vec<_>>(), args.json);
    }
    let path = args.path.as_deref().expect("clap requires it without --list");
    if args.hidden.hidden {
        return hidden::run(args, path);
    }
    guard::no_dumps();
    let cancel = cancel::install()?;
    let name = args.format.as_deref().unwrap_or(args.made_for.map_or(DEFAULT_FORMAT, |_| Program::FORMAT));
    let data_offset = args.made_for.map(|program| program.data_offset(name, args)).transpose()?.or(args.luks.offset);
    if let Ok(format) = file_formats::named(name) {
        return folder::run(args, format, path);
    }
    if args.home {
        return Err(Error::misuse("only a folder can be a home's").hint("Name its format: --format eCryptfs.").into());
    }
    let format = formats::by_name(name)?;
    let creator = formats::creator_of(format)?;
    let choices = creator.choices();
    let takes = format.takes();
    let may = |parameter| takes.creating.contains(&parameter);
    // Such a format has a place in the plaintext, which the file system has to know of before the volume is made.
    let keeps = may(Parameter::FileSystem);
    let sector_size = args.sector_size.or_else(|| args.filesystem?.sector().filter(|_| may(Parameter::SectorSize)));
    let label = args.luks.label.as_deref();
    let wish = args.filesystem.map(|kind| Wish { kind, sector: sector_size.unwrap_or(512), label });
    let before = wish.filter(|_| keeps);
    let key = args.credentials.new_volume_key()?;
    let spec = Spec {
        cipher: choose("cipher", args.cipher.as_deref(), &choices.ciphers, choices.complete)?,
        hash: choose("hash", args.hash.as_deref(), &choices.hashes, choices.complete)?,
        pim: args.pim,
        cost: args.cost.cost()?,
        integrity: args.luks.integrity.as_deref(),
        uuid: args.luks.uuid.as_deref(),
        label: label.filter(|_| wish.is_none() || may(Parameter::Label)),
        subsystem: args.luks.subsystem.as_deref(),
        volume_key: key.as_ref(),
        data_offset,
        metadata_size: args.luks.metadata_size,
        keyslots_size: args.luks.keyslots_size,
        key_bits: args.key_size,
        sector_size,
        quick: args.quick,
        discovery: args.to_go,
        reserved_at: before.map_or_else(ReservedAt::default, |wish| wish.kind.reserved_at()),
        cancel: Some(cancel),
        ..Spec::default()
    };
    // Before a password is asked for, and before anything is there.
    let mut asked = spec.parameters();
    asked.extend(args.luks.header.is_some().then_some(Parameter::DetachedHeader));
    asked.extend(args.fresh_keyfile.is_some().then_some(Parameter::FreshKeyfile));
    asked.extend(args.protectors.parameters());
    asked.extend(args.to_go.then_some(Parameter::DiscoveryVolume));
    takes::check(format.name(), &takes, Purpose::Creating, &asked)?;
    args.protectors.check(&takes, args.json)?;
    if let Some(wish) = &wish {
        wish.check(keeps)?;
    }
    let min_len = match (&args.luks.header, data_offset) {
        (None, None) => choices.min_len,
        (_, offset) => offset.unwrap_or(0).saturating_add(512),
    };
    if let Some(header) = &args.luks.header {
        remote::must_be_here(header, "a new header")?;
        new_file::must_be_new(header)?;
    }
    let place = NewVolume::find(args, path, min_len)?;
    creator.kept(place.len(), &spec).map_err(|e| e.at(path))?;
    let credentials = match &args.fresh_keyfile {
        None => args.credentials.read_new(|keyfiles| creator.asks_passphrase(keyfiles))?,
        Some(path) => fresh_keyfile(args, creator, path)?,
    };
    cancel::check()?;
    let target = place.make()?;
    let store = &*target.store;
    let folder = temporary_folder(path, target.file.is_some());
    let made = before.map(|wish| wish.make(creator, store.len(), &spec, &folder)).transpose();
    let made = made.map_err(|e| e.at(path))?;
    let spec = match (&made, before) {
        (Some(made), Some(wish)) => Spec { reserved_at: made.reserved_at(wish.kind), ..spec },
        _ => spec,
    };
    let kept = creator.kept(store.len(), &spec).map_err(|e| e.at(path))?;
    let mut protectors = args.protectors.make(&takes, creator, credentials)?;
    let credentials = &protectors.credentials[..];

    let mut new_header = args.luks.header.as_deref().map(|path| NewHeader::create(path, &args.luks)).transpose()?;
    let header_store =
        new_header.as_ref().and_then(|header| header.store.clone()).map(|header| header as Arc<dyn Store>);
    let header_store = header_store.unwrap_or_else(|| Arc::clone(&target.store));

    let begin = Instant::now();
    let bar = Progress::bytes(if args.quick { "Creating" } else { "Filling" });
    // Keys are derived before; they do not count for the rate.
    let filling = OnceLock::new();
    let show = |done, all| {
        filling.get_or_init(Instant::now);
        bar.at(done, all);
    };
    let data = new_header.as_ref().map(|_| store as &dyn Store);
    let spec = Spec { data, progress: Some(&show), ..spec };
    let done = format.create(&*header_store, &spec, credentials).and_then(|()| Ok(store.flush()?));
    bar.clear();
    done.map_err(|e| match &e.kind {
        ErrorKind::Cancelled => e.at(path).hint(target.left()),
        _ => e.at(path),
    })?;
    let end = Instant::now();
    let mut created = Created {
        path: path.display().to_string(),
        stored: store.len(),
        seconds: (end - begin).as_secs_f64(),
        filling_seconds: filling.get().map(|begin| (end - *begin).as_secs_f64()),
        quick: args.quick,
        keyfile: args.fresh_keyfile.as_ref().map(|path| path.display().to_string()),
        filesystem: args.filesystem.map(FileSystem::name),
        kept,
        ..check(format, &target.store, &header_store, &spec, credentials, made.as_ref(), wish)
            .map_err(|e| e.at(path))?
    };
    if let Some(header) = &args.luks.header {
        // Before the volume is there for good: it is nothing without its header.
        files::sync_folder(header).map_err(|e| Error::from(e).at(header))?;
    }
    target.keep()?;
    created.protectors = protectors.keep();
    if let Some(header) = &mut new_header {
        header.store = None;
    }
    output::print(&created, args.json)
}

impl Args {
    /// Refuses what a new folder does not take.
    pub(crate) fn check_for_folder(&self) -> claviger_engine::Result<()> {
        let cost = self.cost.cost()?;
        let spec = Spec {
            hash: self.hash.as_deref(),
            pim: self.pim,
            cost,
            integrity: self.luks.integrity.as_deref(),
            uuid: self.luks.uuid.as_deref(),
            label: self.luks.label.as_deref(),
            subsystem: self.luks.subsystem.as_deref(),
            data_offset: self.luks.offset,
            metadata_size: self.luks.metadata_size,
            keyslots_size: self.luks.keyslots_size,
            sector_size: self.sector_size,
            discovery: self.to_go,
            ..Spec::default()
        };
        let refused = spec.parameters().first().map(|parameter| parameter.name());
        let flags = [
            (self.size.is_some(), "size"),
            (self.quick, "--quick"),
            (self.force, "--force"),
            (self.filesystem.is_some(), "file system"),
            (self.luks.header.is_some(), "detached header"),
            (self.fresh_keyfile.is_some(), "key file"),
            (!self.protectors.parameters().is_empty(), "recovery password or startup key"),
            (self.credentials.gives_volume_key(), "volume key"),
        ];
        let refused = refused.or(flags.into_iter().find(|(given, _)| *given).map(|(_, name)| name));
        refused.map_or(Ok(()), |name| Err(Error::misuse(format!("a new folder takes no {name}"))))
    }

    /// The options without which new files of a folder are encrypted in another way.
    pub(crate) fn opened_with(&self) -> Vec<String> {
        let cipher = self.cipher.as_ref().map(|cipher| format!("--cipher={cipher}"));
        let key_size = self.key_size.map(|bits| format!("--key-size={bits}"));
        cipher.into_iter().chain(key_size).collect()
    }
}

/// Where a file system is made before it is written to the volume: where there is room for it.
fn temporary_folder(path: &Path, is_file: bool) -> PathBuf {
    let beside = path.parent().filter(|_| is_file);
    match beside {
        Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
        Some(folder) => folder.to_owned(),
        None => std::env::temp_dir(),
    }
}

/// Opens what was made, as whoever wants its contents will, and puts the file system in it.
fn check(
    format: &'static dyn Format,
    data: &Arc<dyn Store>,
    header: &Arc<dyn Store>,
    spec: &Spec<'_>,
    credentials: &[Credential],
    made: Option<&filesystem::Made>,
    wish: Option<Wish<'_>>,
) -> claviger_engine::Result<Created> {
    let data = Arc::clone(data);
    let header = match spec.data {
        Some(_) => format.open_detached(header, &data)?,
        None => format.open(&data)?,
    };
    let unlocked = header.unlock(&format.takes().reopening(spec, credentials))?;
    let facts = unlocked.facts;
    match (made, wish) {
        (Some(made), _) => made.write_to(&Volume::new(data, unlocked.layout))?,
        (None, Some(wish)) => Wish { sector: facts.sector_size, ..wish }.make_in(Volume::new(data, unlocked.layout))?,
        (None, None) => {}
    }
    let opened_with = match format.creator().filter(|_| format.headerless()) {
        Some(creator) => options_for(creator, &facts, spec),
        None => Vec::new(),
    };
    Ok(Created {
        path: String::new(),
        format: facts.format,
        cipher: facts.cipher,
        hash: facts.hash,
        stored: 0,
        size: facts.size,
        quick: false,
        seconds: 0.0,
        filling_seconds: None,
        opened_with,
        keyfile: None,
        protectors: protectors::ProtectorReport::default(),
        filesystem: None,
        kept: Vec::new(),
    })
}

/// The options without which a volume that has no header does not open.
fn options_for(creator: &dyn Creator, facts: &Facts, spec: &Spec<'_>) -> Vec<String> {
    let mut options = vec![format!("--format={}", facts.format), format!("--key-size={}", facts.key_bits)];
    let (cipher, hash) = creator.opened_with(facts, spec);
    options.push(format!("--cipher={cipher}"));
    options.extend(hash.map(|hash| format!("--hash={hash}")));
    options.extend(spec.sector_size.map(|size| format!("--sector-size={size}")));
    options.extend(spec.data_offset.map(|offset| format!("--data-offset={offset}")));
    options
}

/// Makes a new key file, and what opens the volume with it.
fn fresh_keyfile(args: &Args, creator: &dyn Creator, path: &Path) -> anyhow::Result<Vec<Credential>> {
    new_file::must_be_new(path)?;
    let text = creator.fresh_keyfile()?;
    if args.unencrypted_keyfile {
        new_file::write(path, &text)?;
        return Ok(vec![Credential::Keyfile(text)]);
    }
    let mut credentials = args.credentials.read_new(|_| true)?;
    let [Credential::Passphrase(passphrase)] = &credentials[..] else {
        return Err(Error::misuse("gpg encrypts the key file with a password").into());
    };
    let file = creator.locked_keyfile(&text, passphrase)?;
    new_file::write(path, &file)?;
    credentials.push(Credential::Keyfile(Secret::from_vec(file)));
    Ok(credentials)
}

/// The name as the format spells it; the default where none is given. Where `all` is not complete, the format knows what there is
/// besides.
pub(crate) fn choose<'a>(
    what: &str,
    name: Option<&'a str>,
    all: &[&'static str],
    complete: bool,
) -> claviger_engine::Result<Option<&'a str>> {
    // What the format has no choice of it refuses itself.
    if !complete || all.is_empty() {
        return Ok(name);
    }
    let Some(name) = name else { return Ok(all.first().copied()) };
    let found = all.iter().copied().find(|n| formats::same_name(n, name));
    found
        .map(Some)
        .ok_or_else(|| Error::misuse(format!("there is no {what} called {name}; use one of: {}", all.join(", "))))
}

/// Where the volume goes, checked before a password is asked for.
enum NewVolume<'a> {
    /// A file that does not exist yet.
    New { path: &'a Path, len: u64 },
    /// A file that exists and may be replaced. It stays locked, and as it is, until its successor is whole.
    Instead { path: PathBuf, len: u64, old: FileStore },
    /// A block device.
    /// What has its size already: a block device, or something elsewhere.
    Device(Arc<dyn Store>),
}

/// A place with its store.
struct Target {
    store: Arc<dyn Store>,
    /// Removes the new file unless it is kept.
    file: Option<NewFile>,
}

/// A file that is removed on drop, or moved to where it belongs.
struct NewFile {
    at: PathBuf,
    to: PathBuf,
    store: Arc<FileStore>,
    /// What it replaces: locked until the new file has taken its place.
    old: Option<FileStore>,
}

impl<'a> NewVolume<'a> {
    fn find(args: &Args, path: &'a Path, min_len: u64) -> claviger_engine::Result<Self> {
        let fits = |len: u64| {
            if len >= min_len {
                return Ok(len);
            }
            let least = size::exact(min_len);
            Err(Error::misuse(format!("{} is too small: a volume needs {least}", size::exact(len))).at(path))
        };
        if remote::is_remote(path) {
            if args.size.is_some() {
                return Err(Error::misuse("the size of a remote store is fixed: leave out --size").at(path));
            }
            let old = remote::open(path, Access::ReadWrite)?;
            may_overwrite(Overwrite { force: args.force, yes: args.yes }, path, &*old, "device")?;
            fits(old.len())?;
            return Ok(Self::Device(old));
        }
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let need = || Error::misuse("the size is missing; for example --size 100M").at(path);
                return Ok(Self::New { path, len: fits(whole(args.size.ok_or_else(need)?))? });
            }
            Err(e) => return Err(Error::from(e).at(path)),
        };
        let device = metadata.file_type().is_block_device();
        if device && args.size.is_some() {
            return Err(Error::misuse("the size of a block device is fixed: leave out --size").at(path));
        }
        // Takes the lock: a volume that somebody has open is not replaced.
        let old = FileStore::open(path, Access::ReadWrite)?;
        let thing = if device { "device" } else { "file" };
        may_overwrite(Overwrite { force: args.force, yes: args.yes }, path, &old, thing)?;
        if device {
            fits(old.len())?;
            return Ok(Self::Device(Arc::new(old)));
        }
        let len = fits(whole(args.size.unwrap_or(old.len())))?;
        Ok(Self::Instead { path: path.canonicalize().map_err(|e| Error::from(e).at(path))?, len, old })
    }

    /// Bytes of it.
    fn len(&self) -> u64 {
        match self {
            Self::New { len, .. } | Self::Instead { len, .. } => *len,
            Self::Device(store) => store.len(),
        }
    }

    /// Creates the new file. What holds the lock on an old one goes along.
    fn make(self) -> claviger_engine::Result<Target> {
        match self {
            Self::New { path, len } => Target::new_file(path, path, len, None),
            Self::Instead { path, len, old } => {
                let mut name = std::ffi::OsString::from(".");
                name.push(path.file_name().unwrap_or_default());
                name.push(format!(".new-{}", std::process::id()));
                Target::new_file(&path.with_file_name(name), &path, len, Some(old))
            }
            Self::Device(store) => Ok(Target { store, file: None }),
        }
    }
}

impl Target {
    fn new_file(at: &Path, to: &Path, len: u64, old: Option<FileStore>) -> claviger_engine::Result<Self> {
        let store = FileStore::create(at, len).map_err(|e| Error { path: Some(to.to_owned()), ..e })?;
        let store = Arc::new(store);
        let file = NewFile { at: at.to_owned(), to: to.to_owned(), store: Arc::clone(&store), old };
        Ok(Self { store, file: Some(file) })
    }

    /// What is there after a failure.
    fn left(&self) -> &'static str {
        match &self.file {
            Some(file) if file.at == file.to => "No file was left behind.",
            Some(_) => "The old file is as it was.",
            None => "If writing had begun, the old contents of the device are lost.",
        }
    }

    /// The volume is whole.
    fn keep(self) -> claviger_engine::Result<()> {
        match self.file {
            Some(file) => file.keep(),
            None => Ok(()),
        }
    }
}

impl NewFile {
    fn keep(mut self) -> claviger_engine::Result<()> {
        let Self { at, to, store, old } = &self;
        store.rename(at, to, old.as_ref()).map_err(|e| e.hint("Nothing was replaced."))?;
        // It is in its place: nothing below may remove it, or pass for a failure.
        self.at.clear();
        if let Err(e) = files::sync_folder(&self.to) {
            output::warn(&format!("{}: its name may not survive a power cut: {e}", self.to.display()));
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.at.as_os_str().is_empty() && self.store.is_at(&self.at) {
            let _ = fs::remove_file(&self.at);
        }
    }
}

/// Whole sectors: 100MB, which is 195,312.5 of them, is no mistake worth an error.
fn whole(len: u64) -> u64 {
    len - len % 512
}

/// Whether what is there may be lost.
#[derive(Clone, Copy)]
pub(crate) struct Overwrite {
    /// It may, after a question.
    pub force: bool,
    /// The answer is yes.
    pub yes: bool,
}

/// Asks before something is lost.
pub(crate) fn may_overwrite(
    overwrite: Overwrite,
    path: &Path,
    old: &dyn Store,
    thing: &str,
) -> claviger_engine::Result<()> {
    let there = formats::occupied(old).map_err(|e| e.at(path))?;
    let holds = there.unwrap_or_else(|| "only zeros where it was examined".to_owned());
    let named = format!("a {thing} of {} that holds {holds}", size::exact(old.len()));
    if !overwrite.force {
        return Err(Error::misuse(format!("already exists, {named}")).at(path).hint("To replace it, add --force."));
    }
    if overwrite.yes {
        return Ok(());
    }
    let question = format!("{} is {named}.\nAll of it will be lost. Replace it? (yes/no) ", path.display());
    let refused = |why: &str| Error::misuse(format!("not replaced{why}; it is {named}")).at(path);
    prompt::consent(&question, "--force --yes", refused)
}

impl Report for Created {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, cipher, hash, size, seconds, filling_seconds, opened_with, keyfile, .. } = self;
        let shown = output::printable(path);
        writeln!(out, "{shown}: {format} volume, {cipher}, {hash}, {} for files", size::exact(*size))?;
        tell_filling(out, *size, *seconds, *filling_seconds)?;
        if let Some(keyfile) = keyfile {
            writeln!(
                out,
                "{keyfile}: its key file. Without it the volume cannot be opened: keep a copy somewhere else."
            )?;
        }
        self.protectors.text(out)?;
        self.tell_kept(out)?;
        if !opened_with.is_empty() {
            writeln!(
                out,
                "The volume does not record how it was made. To open it, use: {}",
                output::command(opened_with)
            )?;
        }
        Ok(())
    }
}

impl Created {
    fn tell_kept(&self, out: &mut dyn Write) -> io::Result<()> {
        match (self.filesystem, self.kept.iter().map(|part| part.offset).min()) {
            (Some(name), _) => writeln!(out, "It holds an empty {name} file system."),
            (None, Some(end)) => writeln!(
                out,
                "A file system in it may take the first {end} bytes ({}) and nothing behind them.",
                size::short(end)
            ),
            (None, None) => {
                writeln!(out, "There is no file system in it yet: --filesystem makes one together with a new volume.")
            }
        }
    }
}

/// How long it took, and at what rate the volume was filled.
pub(crate) fn tell_filling(out: &mut dyn Write, size: u64, seconds: f64, filling: Option<f64>) -> io::Result<()> {
    match filling {
        None => writeln!(out, "Created in {seconds:.1} s; not filled (--quick)."),
        Some(filling) => {
            let rate = size::rate(size, Duration::from_secs_f64(filling));
            writeln!(out, "Filled {} with random-looking bytes in {filling:.1} s: {rate}.", size::short(size))
        }
    }
}

impl Report for Vec<Listed> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for Listed { format, choices } in self {
            writeln!(out, "{format}, from {} on", size::exact(choices.min_len))?;
            writeln!(out, "  ciphers: {}", choices.ciphers.join(", "))?;
            if !choices.hashes.is_empty() {
                writeln!(out, "  hashes:  {}", choices.hashes.join(", "))?;
            }
        }
        writeln!(out, "The first of each is the default.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 4096;

    #[test]
    fn only_its_own_file_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new");
        drop(Target::new_file(&path, &path, LEN, None).expect("there is room"));
        assert!(!path.exists());
        let target = Target::new_file(&path, &path, LEN, None).expect("there is room");
        let other = folder.path().join("other");
        fs::write(&other, "precious").and_then(|()| fs::rename(&other, &path)).expect("it takes the place");
        assert!(matches!(target.keep().map_err(|e| e.kind), Err(ErrorKind::InUse { .. })));
        assert_eq!(fs::read(&path).expect("it is there"), b"precious");
    }

    #[test]
    fn only_the_file_that_was_asked_about_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, at) = (folder.path().join("v.tc"), folder.path().join(".v.tc.new"));
        fs::write(&path, "old").expect("a file");
        let open = || FileStore::open(&path, Access::ReadWrite).expect("nobody has it");
        let target = Target::new_file(&at, &path, LEN, Some(open())).expect("there is room");
        let newer = folder.path().join("newer");
        fs::write(&newer, "precious").and_then(|()| fs::rename(&newer, &path)).expect("it takes the place");
        assert!(target.keep().is_err());
        assert_eq!(fs::read(&path).expect("it is there"), b"precious");
        assert!(!at.exists(), "the new one is removed");
        Target::new_file(&at, &path, LEN, Some(open())).expect("there is room").keep().expect("it is the same file");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), LEN);
    }
}
