//! `claviger unlock`: gives a locked volume its keys again.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::Stdio;

use claviger_engine::Error;
use claviger_serve::key_process::locking::Reopening;
use claviger_serve::sessions::{Runtime, escape};
use serde::Serialize;

use crate::opening::{OpenArgs, ProtectArgs};
use crate::process::key_process::{self, KeyProcessArgs, RegisterArgs, Which};
use crate::terminal::cancel;
use crate::terminal::output::{self, Report};
use crate::verbs::{lock, unmount};

/// Unlock a volume that `claviger lock` has locked
///
/// Give the same options as when it was opened, or type its password. A new key process then holds the keys, and
/// waiting programs continue.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger unlock /mnt/old
  claviger unlock --keyfile key old.tc")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    protect: ProtectArgs,

    #[command(flatten)]
    registers: RegisterArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The channel to the key process. Internal.
    #[arg(long, hide = true, value_name = "SOCKET,MEMORY,WHICH", value_delimiter = ',')]
    key_process: Vec<i32>,
}

#[derive(Serialize)]
struct Unlocked {
    volume: String,
}

/// Runs the verb. `words` is the command line, as this verb sees it.
pub fn run(args: &Args, words: &[OsString]) -> anyhow::Result<()> {
    let sessions = Runtime::of_this_user()?.sessions()?;
    let session = unmount::find(&sessions, &args.open.path)?;
    // Programs on the mount may wait for this very process.
    let open = OpenArgs { path: session.record.volume.clone(), ..args.open.clone() };
    if !args.key_process.is_empty() {
        return KeyProcessArgs::in_key_process(&args.key_process).run_key_process(
            &open,
            None,
            Some(&args.protect),
            &args.registers,
        );
    }
    if session.status().is_some_and(|status| !status.locked) {
        return Err(Error::misuse("it is not locked").at(&session.record.volume).into());
    }
    cancel::install()?;
    cancel::end_at_once();
    let begun = Reopening::begin(&session.folder).map_err(|e| lock::with_hint(e, session))?;
    let (reopening, [socket, memory]) = begun;
    let child = key_process::start([socket.as_fd(), memory.as_fd()], words, Which::Opened, Stdio::null())?;
    drop((socket, memory));
    match reopening.finish() {
        Ok(Some(warnings)) => {
            warnings.iter().for_each(|warning| output::warn(warning));
            output::print(&Unlocked { volume: escape(&session.record.volume) }, args.json)
        }
        Ok(None) => Err(key_process::ended(child)?),
        Err(e) => Err(lock::with_hint(e, session).hint("It stays locked.").into()),
    }
}

impl Report for Unlocked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} is open again.", self.volume)
    }
}
