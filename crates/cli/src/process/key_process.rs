//! `--isolate-keys`: the program starts itself a second time, with the same command line. That process, the key process, asks
//! for the secrets, unlocks the volume and holds the keys. This process opens the file and serves the volume, without keys.
//!
//! The key process reports its own errors, and this process then ends with the same exit code.
//!
//! For verbs that serve nothing, such as `reencrypt`, the key process does the work, and this process reads and writes for it.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use claviger_crypto::ciphers::aes::keys_in_registers;
use claviger_crypto::secret::{hide_from_kernel, not_hidden};
use claviger_engine::file_formats::Stacked;
use claviger_engine::formats::{Facts, by_name};
use claviger_engine::key_process::KeyProcess;
use claviger_engine::key_process::folder::KeylessFolder;
use claviger_engine::key_process::volume::{KeylessLayout, Keys};
use claviger_engine::opening::{OpenFolder, OpenVolume, Stores};
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::{Error, ErrorKind, Layout, Opened, Result, Store, Volume, Warning, memory};
use claviger_serve::inherited;
use claviger_serve::key_process::locking::{Lockable, Locks};
use claviger_serve::key_process::{FileNumber, IoSide, KeySide, Terms, cage};
use claviger_serve::sessions::{Session, SessionSocket};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, chdir, getpid, getppid, kill_process, set_parent_process_death_signal, setsid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::opening::{OpenArgs, ProtectArgs};
use crate::terminal::exit::Silent;
use crate::terminal::{advice, cancel, output, progress, prompt};

/// Where the keys are.
#[derive(clap::Args, Clone)]
pub struct KeyProcessArgs {
    /// Keep the keys in a separate key process, which opens no files and runs no programs
    #[arg(long)]
    isolate_keys: bool,

    /// The channel to the key process, and the volume that its keys are for. Internal.
    #[arg(long, hide = true, value_name = "SOCKET,MEMORY,WHICH", value_delimiter = ',', requires = "isolate_keys")]
    key_process: Vec<i32>,
}

/// Where the round keys are.
#[derive(clap::Args, Clone, Default)]
pub struct RegisterArgs {
    /// With --isolate-keys: keep AES round keys only in vector registers, deriving them anew for each piece of data.
    /// For AES-128 and AES-256 in XTS and CBC
    #[arg(long, conflicts_with = "no_aes")]
    keys_in_registers: bool,
}

/// A key process that was started, and waits for the stores.
pub struct Started {
    io_side: IoSide,
    child: Child,
}

/// The volume of a key process, for verbs with two key processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The existing volume.
    Opened,
    /// The new volume.
    Made,
}

/// The key process before it enters its sandbox.
pub struct InKeyProcess {
    /// The key process's end of the channel.
    pub key_side: KeySide,
    null: File,
    /// Protections that this machine does not offer; printed once the volume is open.
    missing: RefCell<Vec<String>>,
}

/// True if the key process exited unexpectedly.
static LOST: AtomicBool = AtomicBool::new(false);

/// The report of the key process once the volume is open.
#[derive(Serialize, Deserialize)]
struct OpenedVolumeReport {
    outline: KeylessLayout,
    format: String,
    cipher: String,
    mode: String,
    stored: u64,
    warnings: Vec<String>,
    trials: u64,
    took: Duration,
}

/// The report of the key process once a folder is open.
#[derive(Serialize, Deserialize)]
struct OpenedFolderReport {
    outline: KeylessFolder,
    warnings: Vec<String>,
}

/// The error for encrypted folders in a verb that has no key process for them.
pub fn no_folders() -> Error {
    Error::unsupported("a key process for this encrypted folder")
}

impl RegisterArgs {
    /// Fails if the keys are not in a key process.
    pub fn check(&self, key_process: &KeyProcessArgs) -> Result<()> {
        match self.keys_in_registers && !key_process.asked() {
            true => Err(Error::misuse("only a key process can keep keys in registers").hint("Add --isolate-keys.")),
            false => Ok(()),
        }
    }

    /// Keeps round keys in registers from here on, if requested.
    ///
    /// # Errors
    /// `Unsupported` on this processor.
    fn begin(&self) -> Result<()> {
        match self.keys_in_registers && !keys_in_registers() {
            true => Err(Error::unsupported("round keys in registers on this processor (needs VAES and AVX-512)")
                .hint("Omit --keys-in-registers: the keys are then in locked or hidden memory.")),
            false => Ok(()),
        }
    }

    /// Fails for a volume whose round keys would still be in memory.
    fn check_volume(&self, facts: &Facts) -> Result<()> {
        let sizes: &[u32] = match facts.mode.to_ascii_lowercase().get(..3) {
            // XTS has two keys, of which TrueCrypt and VeraCrypt count one.
            Some("xts") => &[256, 512],
            Some("cbc") => &[128, 256],
            _ => &[],
        };
        let known = facts.cipher.eq_ignore_ascii_case("AES") && sizes.contains(&facts.key_bits);
        match self.keys_in_registers && !known {
            true => Err(Error::unsupported(format!(
                "keeping keys in registers for {}-{} with {} bits",
                facts.cipher, facts.mode, facts.key_bits
            ))
            .hint("Only AES-128 and AES-256 in XTS or CBC mode are supported. Omit --keys-in-registers.")),
            false => Ok(()),
        }
    }
}

impl KeyProcessArgs {
    /// Whether a key process was requested.
    pub fn asked(&self) -> bool {
        self.isolate_keys
    }

    /// The volume of this process, if this is a key process.
    pub fn which(&self) -> Option<Which> {
        let &[.., which] = &self.key_process[..] else { return None };
        Some(if which == Which::Made as i32 { Which::Made } else { Which::Opened })
    }

    /// Fails if the key process was lost during the work.
    pub fn check(&self) -> anyhow::Result<()> {
        lost_keys().map_or(Ok(()), |e| Err(e.hint("Unwritten data are lost, as in a crash.").into()))
    }

    /// The arguments of a key process with this channel.
    pub fn in_key_process(channel: &[i32]) -> Self {
        Self { isolate_keys: true, key_process: channel.to_vec() }
    }

    /// Opens a volume in a key process, with the means to lock it. `words` is the command line, as the verb sees it.
    pub fn open(&self, args: &OpenArgs, access: Access, words: &[OsString]) -> anyhow::Result<(OpenVolume, Locking)> {
        let started = Started::new(words, Which::Opened, Stdio::null())?;
        inherited::hide_all()?;
        started.open(args, access)
    }

    /// Opens an encrypted folder in a key process.
    pub fn open_folder(&self, args: &OpenArgs, access: Access, words: &[OsString]) -> anyhow::Result<OpenFolder> {
        let started = Started::new(words, Which::Opened, Stdio::null())?;
        inherited::hide_all()?;
        started.open_folder(args, access)
    }

    /// Does the key process's work. Without `access`, the volume is writable if its file is.
    pub fn run_key_process(
        &self,
        args: &OpenArgs,
        access: Option<Access>,
        protect: Option<&ProtectArgs>,
        registers: &RegisterArgs,
    ) -> anyhow::Result<()> {
        let in_key_process = self.accept()?;
        registers.begin()?;
        let writable = in_key_process.key_side.disk().writable();
        let access = args.access(access.unwrap_or(if writable { Access::ReadWrite } else { Access::ReadOnly }));
        let opened = args
            .open_in_key_process(&in_key_process.key_side, access, protect, &|terminal| {
                in_key_process.enter_sandbox(terminal)
            })
            .map_err(or_cancelled)?;
        if let Opened::Files(folder) = opened {
            return in_key_process.serve_folder_keys(folder.tree, access);
        }
        let opened = opened.bytes().map_err(|e| e.at(args.store_path()))?;
        let OpenVolume { volume, facts, stored, warnings, trials, took, .. } = opened;
        registers.check_volume(&facts)?;
        let keys = Keys::of(&volume.layout(), access == Access::ReadWrite && writable);
        let report = OpenedVolumeReport {
            outline: KeylessLayout::of(&volume.layout(), volume.store()).map_err(|e| e.at(args.store_path()))?,
            format: facts.format.to_owned(),
            cipher: facts.cipher,
            mode: facts.mode,
            stored,
            warnings: advice::texts(&warnings),
            trials,
            took,
        };
        drop(volume);
        in_key_process
            .serve_keys(keys, |missing| OpenedVolumeReport { warnings: [report.warnings, missing].concat(), ..report })
    }

    /// Takes its end of the channel and the stores. Ends this process if the other one has exited.
    pub fn accept(&self) -> anyhow::Result<InKeyProcess> {
        cage::prepare();
        cancel::install()?;
        // A process that waits at a password prompt notices its parent's exit only through this signal.
        let parent = getppid();
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        let &[socket, memory, _] = &self.key_process[..] else {
            return Err(Error::misuse("the channel has two descriptors").into());
        };
        let key_side = KeySide::accept(inherited::take(socket)?, inherited::take(memory)?)?;
        let Some(key_side) = key_side.filter(|_| getppid() == parent) else { return Err(Silent(0).into()) };
        let hidden = hide_from_kernel();
        let missing = (!hidden).then(|| "memory that root cannot read (memfd_secret)".to_owned());
        let missing = RefCell::new(missing.into_iter().collect());
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("/dev/null")?;
        Ok(InKeyProcess { key_side, null, missing })
    }
}

impl InKeyProcess {
    /// Enters the sandbox, once all secrets are there. The `terminal` stays open: a wrong password is asked for there again.
    ///
    /// # Errors
    /// Those of [`cage::enter`].
    pub fn enter_sandbox(&self, terminal: Option<BorrowedFd<'_>>) -> io::Result<()> {
        // Reads the free memory now, because the sandbox prevents it later.
        memory::available();
        // The current folder would keep its file system from being unmounted.
        chdir("/")?;
        let [socket, memory] = self.key_side.descriptors();
        // Trials of a password report their progress through that descriptor.
        let needed: Vec<_> =
            [socket, memory, self.null.as_fd()].into_iter().chain(progress::descriptor()).chain(terminal).collect();
        let walls = cage::enter(&needed)?;
        self.missing.borrow_mut().extend(walls.iter().map(ToString::to_string));
        Ok(())
    }

    /// The warning about protections that this machine does not offer.
    pub fn without(&self) -> Vec<String> {
        let missing = self.missing.borrow();
        let walls = (!missing.is_empty()).then(|| {
            let missing = missing.join(" and ");
            let harm = "The volume works as usual, but a flaw in the key process could do more harm.";
            format!("The key process runs without {missing}: this system does not allow it. {harm}")
        });
        let memory = (not_hidden() > 0).then(|| {
            "The key process may lock too little memory (ulimit -l): some secrets are or were in memory that root can read."
                .to_owned()
        });
        walls.into_iter().chain(memory).collect()
    }

    /// Like [`InKeyProcess::serve_keys`], for a folder, of which this process reads nothing from now on.
    fn serve_folder_keys(self, tree: Stacked, access: Access) -> anyhow::Result<()> {
        let write = access == Access::ReadWrite && tree.writable();
        let (outline, keys) = tree.split_keys()?;
        self.serve_keys(Keys::of_folder(keys, write), |warnings| OpenedFolderReport { outline, warnings })
    }

    /// Reports that the volume is open, with warnings about this machine. Then uses its keys for the other process until it ends.
    pub fn serve_keys<T: Serialize>(self, keys: Keys, opened: impl FnOnce(Vec<String>) -> T) -> anyhow::Result<()> {
        let opened = opened(self.without());
        let Self { key_side, null, .. } = self;
        // Releases the terminal and ignores Ctrl-C there: the other process handles it, and writes everything before it ends.
        let silent = || {
            let _ = setsid();
            cage::ignore(&cancel::HANDLED);
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
            Ok(rustix::stdio::dup2_stderr(&null)?)
        };
        Ok(key_side.serve_keys(keys, opened, silent)?)
    }
}

impl Started {
    /// Starts a key process with the same command line and its ends of the channel. If it does the work, its output goes to `out`.
    pub fn new(words: &[OsString], which: Which, out: Stdio) -> anyhow::Result<Self> {
        let (io_side, socket) = IoSide::new()?;
        let child = start([socket.as_fd(), io_side.memory()], words, which, out)?;
        Ok(Self { io_side, child })
    }

    /// Opens the volume with the key process. Call [`inherited::hide_all`] first: programs must not inherit the inputs of secrets.
    pub fn open(self, args: &OpenArgs, access: Access) -> anyhow::Result<(OpenVolume, Locking)> {
        let stores = match args.stores(access) {
            Ok(stores) => stores,
            Err(e) => return Err(self.give_up(e)),
        };
        inherited::forget_files(&args.files())?;
        let (report, io_side) =
            self.serve_until_open::<OpenedVolumeReport>(&stores, &Terms::reading(&cancel::cancelled))?;
        Ok(opened(io_side, stores, report)?)
    }

    /// Opens the folder with the key process.
    fn open_folder(self, args: &OpenArgs, access: Access) -> anyhow::Result<OpenFolder> {
        let locked = match args.find_here(access) {
            Ok(locked) => locked,
            Err(e) => return Err(self.give_up(e)),
        };
        inherited::forget_files(&args.files())?;
        let terms = Terms::reading(&cancel::cancelled);
        let (report, io_side): (OpenedFolderReport, _) =
            self.until_open(|io_side| io_side.serve_folder_until_open(&locked, &terms))?;
        report.warnings.iter().for_each(|w| output::warn(w));
        Ok(locked.with_key_process(report.outline, Arc::new(io_side.opened(lost)?))?)
    }

    /// Reads the stores for the key process until it reports that the volume is open.
    pub fn serve_until_open<T: DeserializeOwned>(
        self,
        stores: &Stores,
        terms: &Terms<'_>,
    ) -> anyhow::Result<(T, IoSide)> {
        self.until_open(|io_side| io_side.serve_until_open(stores, terms))
    }

    fn until_open<T>(self, serve: impl FnOnce(&IoSide) -> io::Result<Option<T>>) -> anyhow::Result<(T, IoSide)> {
        let Self { io_side, child } = self;
        let why = match serve(&io_side) {
            Ok(Some(opened)) => return Ok((opened, io_side)),
            Ok(None) => return Err(ended(child)?),
            Err(why) => why,
        };
        // The signal comes first, to tell the key process why its reads fail. Once `io_side` is dropped, the key
        // process waits for nothing and ends.
        signal(&child);
        drop(io_side);
        let ended = ended(child)?;
        Err(if why.kind() == io::ErrorKind::Interrupted { ended } else { why.into() })
    }

    /// Reads and writes the stores for the key process until it has done all of the work and exited. `remove` removes files
    /// that it created. A signal to this process is passed on.
    pub fn work_for(
        self,
        stores: &Stores,
        task: Value,
        remove: &dyn Fn(&Path, FileNumber) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { io_side, child } = self;
        let signalled = Cell::new(false);
        let cancelled = || {
            if cancel::cancelled() && !signalled.replace(true) {
                signal(&child);
            }
            false
        };
        let consent = |question: &str| Ok(prompt::says_yes(question)?);
        let terms = Terms { writes: true, task, consent: &consent, remove, ..Terms::reading(&cancelled) };
        let served = io_side.serve_until_open::<()>(stores, &terms);
        // Any further request fails, which leaves the data as a crash would.
        drop(io_side);
        let mut child = child;
        let status = child.wait()?;
        match (served, status.code()) {
            (Ok(None), Some(0)) => Ok(()),
            (Ok(_), _) => Err(how_ended(status)),
            (Err(e), _) => Err(e.into()),
        }
    }

    /// Ends the key process before it got any store, because of this error: it exits silently.
    pub fn give_up(self, error: anyhow::Error) -> anyhow::Error {
        let Self { io_side, mut child } = self;
        drop(io_side);
        let _ = child.wait();
        error
    }
}

/// Starts a key process with its ends of the channel: the socket and the memory.
pub fn start(ends: [BorrowedFd<'_>; 2], words: &[OsString], which: Which, out: Stdio) -> anyhow::Result<Child> {
    let own = std::env::current_exe().ok().filter(|path| path.is_file());
    let mut command = Command::new(own.unwrap_or_else(|| "/proc/self/exe".into()));
    command.args(&words[1..2]);
    command.arg(format!("--key-process={},{},{}", ends[0].as_raw_fd(), ends[1].as_raw_fd(), which as i32));
    command.args(&words[2..]).stdout(out);
    inherited::pass_on_all();
    ends.iter().try_for_each(|end| fcntl_setfd(end, FdFlags::empty()))?;
    let child = command.spawn().context("starting the key process");
    ends.iter().try_for_each(|end| fcntl_setfd(end, FdFlags::CLOEXEC))?;
    child
}

fn signal(child: &Child) {
    let _ = Pid::from_raw(child.id().cast_signed()).map(|pid| kill_process(pid, Signal::TERM));
}

/// `Cancelled` if a signal has come, otherwise this error: a cancelled key process only sees that its reads fail.
pub fn or_cancelled(error: anyhow::Error) -> anyhow::Error {
    cancel::check().err().map_or(error, Into::into)
}

/// Waits a second for the key process to exit, then signals it: it may be waiting for a password. Returns whether it was signalled.
pub fn end(child: &mut Child) -> io::Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_millis(20);
    for _ in 0..PATIENCE.as_millis() / TICK.as_millis() {
        if child.try_wait()?.is_some() {
            return Ok(false);
        }
        std::thread::sleep(TICK);
    }
    signal(child);
    Ok(true)
}

/// The error after the key process exited before the volume was open.
pub fn ended(mut child: Child) -> anyhow::Result<anyhow::Error> {
    Ok(how_ended(child.wait()?))
}

fn how_ended(status: ExitStatus) -> anyhow::Error {
    match (status.code(), status.signal()) {
        // The key process has already reported the error.
        (Some(code), _) if code != 0 => Silent(u8::try_from(code).unwrap_or(255)).into(),
        // Ctrl-C before the key process had a handler, or anything to report.
        (_, Some(signal)) if cancel::SIGNALS.contains(&signal) => Error::from(ErrorKind::Cancelled).into(),
        _ if cancel::cancelled() => Error::from(ErrorKind::Cancelled).into(),
        (_, signal) => {
            let how = signal.map_or("exited too early".to_owned(), |signal| format!("was killed by signal {signal}"));
            io::Error::other(format!("the key process {how}")).into()
        }
    }
}

/// The error, if the key process exited unexpectedly.
pub fn lost_keys() -> Option<Error> {
    let lost = || Error::from(io::Error::other("the key process has exited"));
    LOST.load(Ordering::SeqCst).then(lost)
}

/// The layout of a volume whose keys are in the key process.
pub fn layout(io_side: IoSide, outline: KeylessLayout, store: &dyn Store) -> Result<Layout> {
    let asking: Arc<dyn KeyProcess> = Arc::new(io_side.opened(lost)?);
    outline.with_key_process(&asking, store)
}

/// The open volume whose keys are in the key process.
fn opened(io_side: IoSide, stores: Stores, report: OpenedVolumeReport) -> Result<(OpenVolume, Locking)> {
    let OpenedVolumeReport { outline, format, cipher, mode, stored, warnings, trials, took } = report;
    // After a signal, reads of a locked volume fail instead of waiting: they would delay the end.
    let key_process = Arc::new(Lockable::new(io_side, outline.clone(), lost, cancel::cancelled)?);
    let layout = outline.with_key_process(&(Arc::clone(&key_process) as Arc<dyn KeyProcess>), &stores.data)?;
    let facts = Facts::new(by_name(&format)?.name(), cipher, mode, &layout);
    let volume = Volume::new(Arc::clone(&stores.data), layout);
    let mut open = OpenVolume::new(volume, facts, stored);
    (open.trials, open.took, open.header) = (trials, took, stores.header.clone());
    open.warnings = warnings.into_iter().map(Warning::from).collect();
    let locking =
        Locking(Locks { key_process, stores, of: |report: &OpenedVolumeReport| (&report.outline, &report.warnings) });
    Ok((open, locking))
}

/// Locks and unlocks an open volume.
pub struct Locking(Locks<OpenedVolumeReport>);

impl Locking {
    /// Returns whether the volume is locked. Keeps nothing open.
    pub fn locked(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let key_process = Arc::downgrade(&self.0.key_process);
        move || key_process.upgrade().is_some_and(|key_process| key_process.locked())
    }

    /// The key process that can be locked.
    pub fn key_process(&self) -> Weak<Lockable> {
        Arc::downgrade(&self.0.key_process)
    }

    /// The store of a detached header.
    pub fn header(&self) -> Option<&Arc<dyn Store>> {
        self.0.stores.header.as_ref()
    }

    /// Answers `claviger lock` and `claviger unlock` until the listener is dropped.
    pub fn listen(self, session: &Session) -> Result<SessionSocket> {
        self.0.listen(&session.folder).map_err(|e| Error::from(e).at(&session.folder))
    }
}

/// Ends this process as a signal would: in order, with all data written.
fn lost() {
    LOST.store(true, Ordering::SeqCst);
    output::warn("The key process has exited. All further reads and writes fail, and this program ends.");
    let _ = kill_process(getpid(), Signal::TERM);
}
