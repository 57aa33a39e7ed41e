//! `claviger convert`: copies a volume's contents into a new volume.

mod args;
mod folder;
mod place;
mod state;

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
pub use args::Args;
use claviger_crypto::pool::Pool;
use claviger_engine::copy_volume::VolumeCopy;
use claviger_engine::formats::takes::{self, Purpose};
use claviger_engine::formats::{self, Creator};
use claviger_engine::key_process::volume::{KeylessLayout, Keys};
use claviger_engine::opening::Stores;
use claviger_engine::store::{Access, SliceStore};
use claviger_engine::{Credential, Error, ErrorKind, Format, Layout, Spec, Store, Volume};
use claviger_serve::inherited;
use claviger_serve::key_process::Terms;
use serde::{Deserialize, Serialize};

use crate::opening::credentials::{ReadCredentials, one_on_stdin};
use crate::opening::plaintext::with_threads;
use crate::opening::strength::StrengthMeter;
use crate::process::guard;
use crate::process::key_process::{self, RegisterArgs, Started, Which};
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, size};
use crate::verbs::create::choose;
use place::{Destination, Target};
use state::{State, What};

/// The format of a new volume, if none is named.
const DEFAULT_FORMAT: &str = "VeraCrypt";

#[derive(Serialize)]
struct Converted {
    #[serde(flatten)]
    source: FileName,
    #[serde(flatten)]
    destination: FileName,
    /// The formats; `None` for plaintext.
    from: Option<&'static str>,
    to: Option<&'static str>,
    /// Size of the plaintext that was copied, in bytes.
    size: u64,
    /// Size of the new plaintext, in bytes.
    new_size: u64,
    /// Size of the new file or device, in bytes.
    stored: u64,
    /// The bytes left as holes.
    holes: u64,
    /// The offset at which an interrupted copy resumed, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_at: Option<u64>,
    /// The seconds for copying, then for reading and comparing both.
    copying_seconds: f64,
    comparing_seconds: f64,
}

/// The task of the key process of a new volume.
#[derive(Serialize, Deserialize)]
enum DestinationTask {
    /// Create the volume.
    Make,
    /// Open the existing volume.
    Open,
}

/// The report of the key process of the new volume.
#[derive(Serialize, Deserialize)]
struct OpenedReport {
    outline: KeylessLayout,
    warnings: Vec<String>,
}

/// The key processes, one per encrypted side.
#[derive(Default)]
struct KeyProcesses {
    source: Option<Started>,
    destination: Option<Started>,
}

/// The source volume.
struct Source {
    store: Volume,
    format: Option<&'static str>,
}

/// The parameters of the new volume; there is no `Kind` for plaintext.
struct Kind<'a> {
    format: &'static dyn Format,
    creator: &'static dyn Creator,
    spec: Spec<'a>,
}

/// Runs the verb. `words` is the command line, as this verb sees it.
pub fn run(args: &Args, words: &[OsString]) -> anyhow::Result<()> {
    match args.key_process.which() {
        Some(Which::Opened) => {
            return args.key_process.run_key_process(
                &args.open,
                Some(Access::ReadOnly),
                None,
                &RegisterArgs::default(),
            );
        }
        Some(Which::Made) => return args.serve_destination(),
        None => {}
    }
    if args.open.path.is_dir() {
        if args.key_process.asked() {
            return Err(key_process::no_folders().at(&args.open.path).into());
        }
        return folder::run(args);
    }
    guard::no_dumps();
    let cancel = cancel::install()?;
    one_on_stdin(args.open.password_on_stdin(), args.new.source().on_stdin())?;
    let kind = args.kind()?;
    let place = Destination::find(&args.destination, args.state.as_deref(), args.overwrite, args.resume)?;
    let earlier = place.earlier(args.resume, words)?;
    let key_processes = args.key_processes(words)?;
    let source = args.source(key_processes.source)?;
    let at = |e: Error| e.at(&args.destination);

    let (stored, new_size) = args.sizes(&source, &place, kind.as_ref()).map_err(at)?;
    let what = What {
        source: crate::opening::remote::absolute(&args.open.path)?,
        source_size: source.store.len(),
        destination: place.to.clone(),
        format: kind.as_ref().map(|kind| kind.format.name().to_owned()),
        stored,
    };
    let done = match &earlier {
        Some(state) if state.what != what => return Err(another(state).at(&args.destination).into()),
        Some(state) => state.done,
        None => None,
    };
    let mut credentials = match (&kind, done) {
        (None, _) => ReadCredentials::default(),
        _ if key_processes.destination.is_some() => ReadCredentials::default(),
        (Some(kind), None) => args.new.source().judged(&StrengthMeter::of(kind.format, &kind.spec)).read_new()?.into(),
        (Some(_), Some(_)) => args.new.source().read()?,
    };
    cancel::check()?;

    let mut state = State::new(what);
    state.done = done;
    let sparse = kind.is_none() && place.device_len().is_none();
    let target = match done {
        Some(done) => place.reopen(&state.what, done, sparse)?,
        None => {
            place.note(&state)?;
            let target = place.make(stored, sparse)?;
            let create = |kind: &Kind<'_>| kind.format.create(&*target.store, &kind.spec, &credentials);
            // With a key process, that process creates the volume.
            let kind = kind.as_ref().filter(|_| key_processes.destination.is_none());
            if let Err(e) = kind.map_or(Ok(()), create) {
                target.discard();
                return Err(at(e).into());
            }
            target
        }
    };
    let destination = match key_processes.destination {
        Some(started) => match made(started, &target, done.is_none()) {
            Ok(destination) => destination,
            Err(e) => {
                if done.is_none() {
                    target.discard();
                }
                return Err(e);
            }
        },
        None => {
            let opened = credentials.open(|credentials| plaintext(&target, kind.as_ref(), credentials, new_size));
            opened.map_err(at)?
        }
    };
    drop(credentials);

    let copying = Copying { source: &source.store, destination: &destination, target: &target, sparse };
    let explained = |e: Error| match &e.kind {
        // If the key process was lost, that is the reason for the error.
        ErrorKind::Cancelled | ErrorKind::Io(_) => at(key_process::lost_keys().unwrap_or(e)).hint(target.left()),
        _ => at(e),
    };
    let begin = Instant::now();
    if let Some(done) = done.filter(|done| *done > 0) {
        copying.compare(0..done, "Checking", cancel).map_err(explained)?;
    } else {
        state.done = Some(0);
        target.note(&state)?;
    }
    let from = done.unwrap_or(0);
    let copied = copying.copy(from, &mut state, cancel);
    let rest = stored.saturating_sub(state.done.unwrap_or(0));
    let holes = copied.map_err(|e| explained(target.full(e, rest)))?;
    let copied = Instant::now();
    target.forget_cached();
    copying.compare(from..destination.len(), "Comparing", cancel).map_err(explained)?;
    let converted = Converted {
        source: FileName::new("source", &args.open.path),
        destination: FileName::new("destination", &args.destination),
        from: source.format,
        to: kind.as_ref().map(|kind| kind.format.name()),
        size: source.store.len(),
        new_size: destination.len(),
        stored,
        holes,
        resumed_at: done,
        copying_seconds: (copied - begin).as_secs_f64(),
        comparing_seconds: copied.elapsed().as_secs_f64(),
    };
    drop(destination);
    target.finish()?;
    output::print(&converted, args.json)
}

impl Args {
    /// The parameters of the new volume; `None` for plaintext.
    fn kind(&self) -> claviger_engine::Result<Option<Kind<'_>>> {
        if self.raw {
            return Ok(None);
        }
        let format = formats::by_name(self.new_format.as_deref().unwrap_or(DEFAULT_FORMAT))?;
        let creator = formats::creator_of(format)?;
        let choices = creator.choices();
        let spec = Spec {
            cipher: choose("cipher", self.new_cipher.as_deref(), &choices.ciphers, choices.complete)?,
            hash: choose("hash", self.new_hash.as_deref(), &choices.hashes, choices.complete)?,
            pim: self.new_pim,
            label: self.new_label.as_deref(),
            sector_size: self.new_sector_size,
            key_bits: self.new_key_size,
            cost: self.cost.cost()?,
            // The copy overwrites every byte of the new volume anyway.
            quick: true,
            cancel: Some(cancel::flag()),
            ..Spec::default()
        };
        takes::check(format.name(), &format.takes(), Purpose::Creating, &spec.parameters())?;
        Ok(Some(Kind { format, creator, spec }))
    }

    /// Starts the key processes before anything of a volume is read.
    fn key_processes(&self, words: &[OsString]) -> anyhow::Result<KeyProcesses> {
        if !self.key_process.asked() {
            return Ok(KeyProcesses::default());
        }
        let start = |wanted: bool, which| wanted.then(|| Started::new(words, which, Stdio::null())).transpose();
        let source = start(!self.raw_source, Which::Opened)?;
        let destination = start(!self.raw, Which::Made)?;
        inherited::hide_all()?;
        Ok(KeyProcesses { source, destination })
    }

    /// Creates or opens the new volume in this key process, and holds its keys.
    fn serve_destination(&self) -> anyhow::Result<()> {
        let in_key_process = self.key_process.accept()?;
        let kind = self.kind()?.ok_or_else(|| Error::misuse("plaintext has no keys"))?;
        let make = matches!(in_key_process.key_side.task()?, DestinationTask::Make);
        let meter = StrengthMeter::of(kind.format, &kind.spec);
        let source = self.new.source().judged(&meter);
        let mut credentials = if make { source.read_new()?.into() } else { source.read()? };
        in_key_process.enter_sandbox(credentials.terminal()).context("the key process")?;
        let disk = in_key_process.key_side.disk();
        let opened = |credentials: &[Credential]| {
            if make {
                kind.format.create(&*disk, &kind.spec, credentials)?;
            }
            let with = kind.format.takes().reopening(&kind.spec, credentials);
            let unlocked = kind.format.open(&disk)?.unlock(&with)?;
            let keys = Keys::of(&unlocked.layout, true);
            Ok((
                keys,
                OpenedReport {
                    outline: KeylessLayout::of(&unlocked.layout, &*disk)?,
                    warnings: advice::texts(&unlocked.warnings),
                },
            ))
        };
        let opened =
            credentials.open(opened).map_err(|e: Error| key_process::or_cancelled(e.at(&self.destination).into()));
        let (keys, report) = opened?;
        drop(credentials);
        // If both sides have a key process, only the source's reports missing protections.
        let missing = |missing| if self.raw_source { missing } else { Vec::new() };
        in_key_process.serve_keys(keys, |of_machine| OpenedReport {
            warnings: [report.warnings, missing(of_machine)].concat(),
            ..report
        })
    }

    /// Opens the source.
    fn source(&self, key_process: Option<Started>) -> anyhow::Result<Source> {
        if self.raw_source {
            let store = self.open.raw(Access::ReadOnly)?;
            let layout = Layout::clear(store.len()).map_err(|e| e.at(&self.open.path))?;
            return Ok(Source { store: Volume::new(store, layout), format: None });
        }
        let opened = match key_process {
            Some(started) => started.open(&self.open, Access::ReadOnly)?.0,
            None => self.open.open(Access::ReadOnly)?,
        };
        advice::warn(&opened.warnings);
        Ok(Source { store: with_threads(opened.volume), format: Some(opened.facts.format) })
    }

    /// The sizes of the new file or device and of its plaintext, in bytes; minimum sizes for a volume that fills a device.
    fn sizes(
        &self,
        source: &Source,
        place: &Destination,
        kind: Option<&Kind<'_>>,
    ) -> claviger_engine::Result<(u64, u64)> {
        let len = source.store.len();
        let wanted = self.new_size.unwrap_or(len);
        if wanted < len {
            let (wanted, len) = (size::exact(wanted), size::exact(len));
            return Err(Error::misuse(format!("--new-size {wanted} is too small for {len} of data"))
                .hint("Create a smaller new volume, and copy the files to it."));
        }
        let needed = kind.map_or(Ok(wanted), |kind| kind.creator.stored_len(wanted, &kind.spec))?;
        match place.device_len() {
            None => Ok((needed, wanted)),
            Some(_) if self.new_size.is_some() => {
                Err(Error::misuse("the size of a block device is fixed: omit --new-size"))
            }
            Some(device) if device >= needed => Ok((device, wanted)),
            Some(device) => Err(Error::misuse(format!(
                "the device is too small: {} of the needed {}",
                size::exact(device),
                size::exact(needed)
            ))),
        }
    }
}

/// The new plaintext, opened as a later user will open it.
fn plaintext(
    target: &Target,
    kind: Option<&Kind<'_>>,
    credentials: &[Credential],
    size: u64,
) -> claviger_engine::Result<Volume> {
    let store = Arc::clone(&target.store);
    let volume = match kind {
        None => {
            let store = Arc::new(SliceStore::new(store, 0, size)?);
            Volume::new(store, Layout::clear(size)?)
        }
        Some(Kind { format, spec, .. }) => {
            let with = format.takes().reopening(spec, credentials);
            let unlocked = format.open(&store)?.unlock(&with)?;
            advice::warn(&unlocked.warnings);
            Volume::new(store, unlocked.layout)
        }
    };
    Ok(volume.with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO))))
}

/// The new plaintext through the key process, which creates or opens the volume. While creating, it may write to the whole target.
fn made(started: Started, target: &Target, make: bool) -> anyhow::Result<Volume> {
    let data = Arc::clone(&target.store);
    let stores = Stores { disk: Arc::clone(&data), header: None, data };
    let task = serde_json::to_value(if make { DestinationTask::Make } else { DestinationTask::Open })?;
    let terms = Terms { writes: make, task, ..Terms::reading(&cancel::cancelled) };
    inherited::forget_files(&[])?;
    let (OpenedReport { outline, warnings }, io_side) = started.serve_until_open(&stores, &terms)?;
    warnings.iter().for_each(|warning| output::warn(warning));
    let layout = key_process::layout(io_side, outline, &stores.data)?;
    Ok(Volume::new(stores.data, layout).with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO))))
}

/// The error for a state file of another conversion.
fn another(state: &State) -> Error {
    let What { source, format, .. } = &state.what;
    let format = format.as_deref().unwrap_or("plaintext");
    Error::misuse(format!("the interrupted conversion is another one: from {} to {format}", source.display()))
        .hint("To continue, give the same options; the source must still have its size.")
}

/// Both open volumes.
struct Copying<'a> {
    source: &'a dyn Store,
    destination: &'a dyn Store,
    target: &'a Target,
    sparse: bool,
}

impl Copying<'_> {
    fn copy(&self, from: u64, state: &mut State, cancel: &AtomicBool) -> claviger_engine::Result<u64> {
        let bar = Progress::bytes("Converting");
        let show = |done, all| bar.at(done, all);
        let mut note = |done| {
            state.done = Some(done);
            self.target.note(state)
        };
        self.conversion(cancel, &show).copy(from, &mut note)
    }

    fn compare(&self, range: Range<u64>, what: &'static str, cancel: &AtomicBool) -> claviger_engine::Result<()> {
        let bar = Progress::bytes(what);
        self.conversion(cancel, &|done, all| bar.at(done, all)).compare(range)
    }

    fn conversion<'a>(&'a self, cancel: &'a AtomicBool, progress: &'a (dyn Fn(u64, u64) + Sync)) -> VolumeCopy<'a> {
        let Self { source, destination, sparse, .. } = self;
        VolumeCopy { source: *source, destination: *destination, holes: *sparse, cancel: Some(cancel), progress }
    }
}

impl Report for Converted {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { source, destination, from, to, size, new_size, stored: _, holes, .. } = self;
        let name = |format: &Option<&'static str>| format.unwrap_or("plaintext");
        let [source, destination] = [source, destination].map(|path| output::printable(path));
        writeln!(out, "{destination}: {}, holds all {} of {source} ({})", name(to), size::exact(*size), name(from))?;
        if new_size > size {
            writeln!(out, "They are followed by {} of zeros.", size::exact(new_size - size))?;
        }
        if *holes > 0 {
            writeln!(out, "{} of them are zeros and were left as holes.", size::short(*holes))?;
        }
        let rate = |seconds: f64| size::rate(*new_size, Duration::from_secs_f64(seconds));
        writeln!(
            out,
            "Copied at {}, then compared: both are identical ({}). The source is unchanged.",
            rate(self.copying_seconds),
            rate(self.comparing_seconds)
        )
    }
}
