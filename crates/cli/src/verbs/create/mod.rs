//! `claviger create`: creates a volume in a file or on a block device.

mod args;
mod choose;
mod filesystem;
pub mod folder;
mod hidden;
mod program;
pub(super) mod protectors;
mod report;
mod target;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

pub use args::Args;
pub use choose::choose;
use claviger_engine::formats::takes::{self, Parameter, Purpose, Takes};
use claviger_engine::formats::{self, Creator, Facts};
use claviger_engine::internal::files;
use claviger_engine::spec::ReservedAt;
use claviger_engine::{Credential, Error, ErrorKind, Format, Secret, Spec, Store, Volume, file_formats};
use filesystem::{FileSystem, NewFileSystem};
use program::Program;
use report::Created;
use target::{NewHeader, NewVolume};

use crate::opening::strength::StrengthMeter;
use crate::opening::{new_file, remote};
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, output};

/// The format of a new volume, if none is named.
const DEFAULT_FORMAT: &str = "VeraCrypt";

pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        return output::print(&report::listed(), args.json);
    }
    let path = args.path.as_deref().expect("clap requires it without --list");
    if args.hidden.hidden {
        return hidden::run(args, path);
    }
    guard::no_dumps();
    cancel::install()?;
    let name = args.format.as_deref().unwrap_or(args.made_for.map_or(DEFAULT_FORMAT, |_| Program::FORMAT));
    let begins = |program: Program| program.data_offset(name, args.cipher.as_deref(), args.layout.offset);
    let data_offset = args.made_for.map(begins).transpose()?.or(args.layout.offset);
    if let Ok(format) = file_formats::named(name) {
        return folder::run(args, format, path);
    }
    if args.home {
        return Err(Error::misuse("only an encrypted folder can be a home folder")
            .hint("Add --format eCryptfs.")
            .into());
    }
    if args.reverse {
        return Err(Error::misuse("only a folder can be shown encrypted").hint("Add --format gocryptfs.").into());
    }
    let format = formats::by_name(name).map_err(|_| {
        let all: Vec<_> = creatable().collect();
        Error::misuse(format!("there is no format called {name}; use one of: {}", all.join(", ")))
    })?;
    let key = args.credentials.new_volume_key()?;
    let plan = Plan::of(args, format, key.as_ref(), data_offset)?;
    make(args, path, plan)
}

/// The names of the formats in which this verb creates a volume or a folder.
pub fn creatable() -> impl Iterator<Item = &'static str> {
    report::listed().into_iter().map(|listed| listed.format)
}

/// A checked plan for a new volume. Nothing has been written yet, and the user has not been asked.
struct Plan<'a> {
    format: &'static dyn Format,
    creator: &'static dyn Creator,
    takes: Takes,
    spec: Spec<'a>,
    /// The file system to create in the volume.
    filesystem: Option<NewFileSystem<'a>>,
    /// True if the format reserves areas in the plaintext, which the file system must leave free.
    reserves: bool,
    /// The smallest size of the file or device, in bytes.
    min_len: u64,
}

impl<'a> Plan<'a> {
    fn of(
        args: &'a Args,
        format: &'static dyn Format,
        volume_key: Option<&'a Secret>,
        data_offset: Option<u64>,
    ) -> claviger_engine::Result<Self> {
        let (creator, takes) = (formats::creator_of(format)?, format.takes());
        let choices = creator.choices();
        let may = |parameter| takes.creating.contains(&parameter);
        let reserves = may(Parameter::FileSystem);
        let sector_size = args.sector_size.or_else(|| args.filesystem?.sector().filter(|_| may(Parameter::SectorSize)));
        let label = args.label.as_deref();
        let filesystem = args.filesystem.map(|kind| NewFileSystem { kind, sector: sector_size.unwrap_or(512), label });
        let spec = Spec {
            cipher: choose("cipher", args.cipher.as_deref(), &choices.ciphers, choices.complete)?,
            hash: choose("hash", args.hash.as_deref(), &choices.hashes, choices.complete)?,
            pim: args.pim,
            cost: args.cost.cost()?,
            integrity: args.integrity.as_deref(),
            uuid: args.layout.uuid.as_deref(),
            label: label.filter(|_| filesystem.is_none() || may(Parameter::Label)),
            subsystem: args.layout.subsystem.as_deref(),
            volume_key,
            data_offset,
            metadata_size: args.layout.metadata_size,
            keyslots_size: args.layout.keyslots_size,
            key_bits: args.key_size,
            sector_size,
            quick: args.quick,
            discovery: args.layout.to_go,
            reserved_at: filesystem
                .filter(|_| reserves)
                .map_or_else(ReservedAt::default, |filesystem| filesystem.kind.reserved_at()),
            cancel: Some(cancel::flag()),
            ..Spec::default()
        };
        let mut asked = spec.parameters();
        asked.extend(args.layout.header.is_some().then_some(Parameter::DetachedHeader));
        asked.extend(args.fresh_keyfile.is_some().then_some(Parameter::FreshKeyfile));
        asked.extend(args.protectors.parameters());
        asked.extend(args.layout.to_go.then_some(Parameter::DiscoveryVolume));
        takes::check(format.name(), &takes, Purpose::Creating, &asked)?;
        args.protectors.check(&takes, args.json)?;
        filesystem.iter().try_for_each(|filesystem| filesystem.check(reserves))?;
        let min_len = match (&args.layout.header, data_offset) {
            (None, None) => choices.min_len,
            (_, offset) => offset.unwrap_or(0).saturating_add(512),
        };
        if let Some(header) = &args.layout.header {
            remote::must_be_here(header, "a new header")?;
            new_file::must_be_new(header)?;
        }
        Ok(Self { format, creator, takes, spec, filesystem, reserves, min_len })
    }
}

/// Creates the volume and everything that belongs to it.
fn make(args: &Args, path: &Path, plan: Plan<'_>) -> anyhow::Result<()> {
    let Plan { format, creator, takes, spec, filesystem, reserves, min_len } = plan;
    let at = |e: Error| e.at(path);
    let place = NewVolume::find(path, args.size, args.overwrite, min_len)?;
    // A quickly made file may have holes.
    if !args.quick {
        place.fits_on_disk().map_err(at)?;
    }
    if args.layout.header.is_none() {
        creator.check_spec(place.len(), &spec).map_err(at)?;
    }
    filesystem.iter().try_for_each(|filesystem| filesystem.check_room(place.len())).map_err(at)?;
    let credentials = match &args.fresh_keyfile {
        None => {
            let meter = StrengthMeter::of(format, &spec);
            args.credentials.read_new(|keyfiles| creator.asks_passphrase(keyfiles), &meter)?
        }
        Some(path) => fresh_keyfile(args, creator, &StrengthMeter::of(format, &spec), path)?,
    };
    cancel::check()?;
    let target = place.make()?;
    let store = &*target.store;
    let before = filesystem.filter(|_| reserves);
    let made =
        before.map(|filesystem| filesystem.make(creator, store.len(), &spec, &target.temporary_folder())).transpose();
    let left = target.left();
    let made = made.map_err(|e| at(leaving(e, left)))?;
    let spec = match (&made, before) {
        (Some(made), Some(filesystem)) => Spec { reserved_at: made.reserved_at(filesystem.kind), ..spec },
        _ => spec,
    };
    let reserved = creator.reserved(store.len(), &spec).map_err(at)?;
    let by_password = matches!(&credentials[..], [Credential::Passphrase(_)]);
    let mut protectors = args.protectors.make(&takes, creator, credentials)?;
    let credentials = &protectors.credentials[..];

    let mut new_header = args.layout.header.as_deref().map(|path| NewHeader::create(path, &args.layout)).transpose()?;
    let header_store =
        new_header.as_ref().and_then(|header| header.store.clone()).map(|header| header as Arc<dyn Store>);
    let header_store = header_store.unwrap_or_else(|| Arc::clone(&target.store));

    let begin = Instant::now();
    let bar = Progress::bytes(if args.quick { "Creating" } else { "Filling" });
    // Key derivation comes first and does not count for the rate.
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
        ErrorKind::Cancelled => at(leaving(e, left)),
        _ => at(e),
    })?;
    let end = Instant::now();
    let (facts, volume) = reopened(format, &target.store, &header_store, &spec, credentials).map_err(at)?;
    match (&made, filesystem) {
        (Some(made), _) => made.write_to(volume).map_err(at)?,
        (None, Some(filesystem)) => {
            let filesystem = NewFileSystem { sector: facts.sector_size, ..filesystem };
            filesystem.make_in(volume).map_err(|e| at(leaving(e, left)))?
        }
        (None, None) => drop(volume),
    }
    if let Some(header) = &args.layout.header {
        // Before the volume is final: without its header it would be lost.
        files::sync_folder(header).map_err(|e| Error::from(e).at(header))?;
    }
    let opened_with = if format.headerless() { options_for(creator, &facts, &spec) } else { Vec::new() };
    let stored = store.len();
    // With anything else, the command would lack options.
    let by_password = by_password && opened_with.is_empty();
    let mountable = by_password && args.filesystem.is_some() && args.layout.header.is_none() && spec.pim.is_none();
    let mount = mountable.then(|| output::command(["claviger".as_ref(), "mount".as_ref(), path.as_os_str()]));
    target.keep()?;
    if let Some(header) = &mut new_header {
        header.store = None;
    }
    let created = Created {
        path: FileName::path(path),
        format: facts.format,
        hash: facts.hash_name(),
        cipher: facts.cipher,
        stored,
        size: facts.size,
        quick: args.quick,
        seconds: (end - begin).as_secs_f64(),
        filling_seconds: filling.get().map(|begin| (end - *begin).as_secs_f64()),
        opened_with,
        keyfile: args.fresh_keyfile.as_ref().map(|path| FileName::new("keyfile", path)),
        protectors: protectors.keep(),
        filesystem: args.filesystem.map(FileSystem::name),
        kept: reserved,
        mount,
    };
    output::print(&created, args.json)
}

/// The error, whose hint also says what is left.
fn leaving(error: Error, left: &str) -> Error {
    let hint = error.hint.iter().map(String::as_str).chain([left]).collect::<Vec<_>>().join(" ");
    error.hint(hint)
}

/// Opens the new volume with the same credentials, as a check.
fn reopened(
    format: &dyn Format,
    data: &Arc<dyn Store>,
    header: &Arc<dyn Store>,
    spec: &Spec<'_>,
    credentials: &[Credential],
) -> claviger_engine::Result<(Facts, Volume)> {
    let header = match spec.data {
        Some(_) => format.open_detached(header, data)?,
        None => format.open(data)?,
    };
    let unlocked = header.unlock(&format.takes().reopening(spec, credentials))?;
    Ok((unlocked.facts, Volume::new(Arc::clone(data), unlocked.layout)))
}

/// The options needed to open a headerless volume.
fn options_for(creator: &dyn Creator, facts: &Facts, spec: &Spec<'_>) -> Vec<String> {
    let mut options = vec![format!("--format={}", facts.format), format!("--key-size={}", facts.key_bits)];
    let (cipher, hash) = creator.opened_with(facts, spec);
    options.push(format!("--cipher={cipher}"));
    options.extend(hash.map(|hash| format!("--hash={hash}")));
    options.extend(spec.sector_size.map(|size| format!("--sector-size={size}")));
    options.extend(spec.data_offset.map(|offset| format!("--data-offset={offset}")));
    options
}

/// Creates a key file and returns its credentials.
fn fresh_keyfile(
    args: &Args,
    creator: &dyn Creator,
    meter: &StrengthMeter<'_>,
    path: &Path,
) -> anyhow::Result<Vec<Credential>> {
    new_file::must_be_new(path)?;
    let text = creator.fresh_keyfile()?;
    if args.unencrypted_keyfile {
        new_file::write(path, &text)?;
        return Ok(vec![Credential::Keyfile(text)]);
    }
    let mut credentials = args.credentials.read_new(|_| true, meter)?;
    let [Credential::Passphrase(passphrase)] = &credentials[..] else {
        return Err(Error::misuse("gpg needs a password to encrypt the key file").into());
    };
    let file = creator.locked_keyfile(&text, passphrase)?;
    new_file::write(path, &file)?;
    credentials.push(Credential::Keyfile(Secret::from_vec(file)));
    Ok(credentials)
}
