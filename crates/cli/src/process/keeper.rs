//! `--isolate-keys`: the program starts itself a second time, with the same command line. That process asks for the secrets, unlocks
//! and holds the keys; this one opens the file and serves, and has none.
//!
//! Nothing has to be said twice: what goes wrong there, it tells there, and this process ends with the same exit code.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use claviger_crypto::secret::hide_from_kernel;
use claviger_engine::formats::{Facts, by_name};
use claviger_engine::opening::{OpenVolume, Stores};
use claviger_engine::store::Access;
use claviger_engine::volume::kept::{Keeper, Keys, Outline};
use claviger_engine::{Error, Result, Volume};
use claviger_serve::inherited;
use claviger_serve::keeper::{Borrowing, Lending, cage};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, chdir, getpid, kill_process, setsid};
use serde::{Deserialize, Serialize};

use crate::opening::{OpenArgs, OpenedVolume, ProtectArgs};
use crate::terminal::exit::Silent;
use crate::terminal::{advice, cancel, output};

/// Where the keys are.
#[derive(clap::Args, Clone)]
pub struct IsolationArgs {
    /// Keep the keys in a process of their own, which opens no files and runs no programs: the one that serves the volume never has
    /// them
    #[arg(long, conflicts_with = "raw")]
    isolate_keys: bool,

    /// The channel, for the process with the keys. Nothing for people.
    #[arg(long, hide = true, value_name = "SOCKET,MEMORY", value_delimiter = ',', requires = "isolate_keys")]
    keeper: Vec<i32>,
}

/// Whether the keeper went before it was let go.
static LOST: AtomicBool = AtomicBool::new(false);

/// What the keeper says of the volume once it is open.
#[derive(Serialize, Deserialize)]
struct Kept {
    outline: Outline,
    format: String,
    cipher: String,
    mode: String,
    stored: u64,
    warnings: Vec<String>,
    trials: u64,
    took: Duration,
}

/// What is to be said of folders.
pub fn no_folders() -> Error {
    Error::unsupported("keys in a process of their own for a folder whose files are encrypted one by one")
}

impl IsolationArgs {
    /// Whether the keys are to be in a process of their own.
    pub fn asked(&self) -> bool {
        self.isolate_keys
    }

    /// Whether this is that process.
    pub fn keeper(&self) -> bool {
        !self.keeper.is_empty()
    }

    /// Fails if the keys were lost on the way.
    pub fn check(&self) -> anyhow::Result<()> {
        match LOST.load(Ordering::SeqCst) {
            true => Err(Error::from(io::Error::other("the process that held the keys has ended"))
                .hint("What was not yet written is lost, as in a crash.")
                .into()),
            false => Ok(()),
        }
    }

    /// Opens a volume whose keys another process holds. `words` is the command line, as the verb sees it.
    pub fn open(&self, args: &OpenArgs, access: Access, words: &[OsString]) -> anyhow::Result<OpenedVolume> {
        let (lending, keepers) = Lending::new()?;
        let mut child = start(&lending, keepers, words)?;
        inherited::hide_all()?;
        let stores = match args.stores(access) {
            Ok(stores) => stores,
            Err(e) => {
                // It ends without a word: it was not told of anything yet.
                drop(lending);
                let _ = child.wait();
                return Err(e);
            }
        };
        let why = match lending.lend(&stores, &cancel::cancelled) {
            Ok(Some(kept)) => return Ok(opened(lending, stores, kept)?),
            Ok(None) => return Err(ended(child)?),
            Err(why) => why,
        };
        // It waits for nothing of this process any more, and this one for its end.
        drop(lending);
        let pid = Pid::from_raw(child.id().cast_signed()).context("a process has a number")?;
        let _ = kill_process(pid, Signal::TERM);
        let ended = ended(child)?;
        Err(if why.kind() == io::ErrorKind::Interrupted { ended } else { why.into() })
    }

    /// Does the keeper's work.
    pub fn keep(&self, args: &OpenArgs, access: Access, protect: &ProtectArgs) -> anyhow::Result<()> {
        cage::prepare();
        let &[socket, memory] = &self.keeper[..] else {
            return Err(Error::misuse("the channel has two descriptors").into());
        };
        let borrowing = Borrowing::accept(inherited::take(socket)?, inherited::take(memory)?)?;
        let Some(borrowing) = borrowing else { return Err(Silent(0).into()) };
        // What this machine does not let it have is told once the volume is open.
        let missing = RefCell::new(Vec::new());
        if !hide_from_kernel() {
            missing.borrow_mut().push("memory that root cannot read (memfd_secret)".to_owned());
        }
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("/dev/null")?;
        let alone = || {
            // The folder that it was started from is nobody's to hold.
            chdir("/")?;
            let [socket, memory] = borrowing.descriptors();
            let walls = cage::enter(&[socket, memory, null.as_fd()])?;
            missing.borrow_mut().extend(walls.iter().map(ToString::to_string));
            Ok(())
        };
        let opened = args.open_lent(&borrowing, access, protect, &alone)?;
        let OpenVolume { volume, facts, stored, warnings, trials, took, .. } = opened;
        let keys = Keys::of(volume.layout(), access == Access::ReadWrite && borrowing.disk().writable());
        let kept = Kept {
            outline: Outline::of(volume.layout(), volume.store()).map_err(|e| e.at(args.store_path()))?,
            format: facts.format.to_owned(),
            cipher: facts.cipher,
            mode: facts.mode,
            stored,
            warnings: [advice::texts(&warnings), without(&missing.into_inner())].concat(),
            trials,
            took,
        };
        drop(volume);
        // Nobody is to wait for the terminal, and Ctrl-C there is for the other process: it writes everything before it ends.
        let silent = || {
            let _ = setsid();
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
            Ok(rustix::stdio::dup2_stderr(&null)?)
        };
        Ok(borrowing.keep(keys, kept, silent)?)
    }
}

/// What is to be said of what the keeper does not have.
fn without(missing: &[String]) -> Vec<String> {
    let said = || format!("This machine does not let the process with the keys have {}.", missing.join(", "));
    if missing.is_empty() { Vec::new() } else { vec![said()] }
}

/// Starts the keeper: with the same command line, and its ends of the channel.
fn start(lending: &Lending, socket: OwnedFd, words: &[OsString]) -> anyhow::Result<Child> {
    let own = std::env::current_exe().ok().filter(|path| path.is_file());
    let mut command = Command::new(own.unwrap_or_else(|| "/proc/self/exe".into()));
    command.args(&words[1..2]);
    command.arg(format!("--keeper={},{}", socket.as_raw_fd(), lending.memory().as_raw_fd()));
    command.args(&words[2..]).stdout(Stdio::null());
    fcntl_setfd(&socket, FdFlags::empty())?;
    fcntl_setfd(lending.memory(), FdFlags::empty())?;
    inherited::pass_on_all();
    let child = command.spawn().context("starting the process that is to hold the keys");
    fcntl_setfd(lending.memory(), FdFlags::CLOEXEC)?;
    child
}

/// What this process ends with where the keeper has ended before the volume was open.
fn ended(mut child: Child) -> anyhow::Result<anyhow::Error> {
    let status = child.wait()?;
    Ok(match (status.code(), status.signal()) {
        // It has said why.
        (Some(code), _) if code != 0 => Silent(u8::try_from(code).unwrap_or(255)).into(),
        (_, signal) => {
            let how = signal.map(|signal| format!(" by signal {signal}")).unwrap_or_default();
            io::Error::other(format!("the process that was to hold the keys was ended{how}")).into()
        }
    })
}

/// The volume, of which the keeper has the keys.
fn opened(lending: Lending, stores: Stores, kept: Kept) -> Result<OpenedVolume> {
    let Kept { outline, format, cipher, mode, stored, warnings, trials, took } = kept;
    let asking: Arc<dyn Keeper> = Arc::new(lending.opened(lost)?);
    let layout = outline.kept_by(&asking, &stores.data)?;
    let facts = Facts::new(by_name(&format)?.name(), cipher, mode, &layout);
    let volume = Volume::new(stores.data, layout);
    Ok(OpenedVolume { volume, facts, stored, warnings, trials, took, mapping: None, _header: stores.header })
}

/// Ends this process as a signal would: politely, with everything below written.
fn lost() {
    LOST.store(true, Ordering::SeqCst);
    output::warn(
        "The process that held the keys has ended. Whatever is read or written from now on fails, and this ends.",
    );
    let _ = kill_process(getpid(), Signal::TERM);
}
