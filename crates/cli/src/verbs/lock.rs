//! `claviger lock`: forgets the keys of a volume that stays mounted or served.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use claviger_engine::{Error, ErrorKind, Result};
use claviger_serve::fuse;
use claviger_serve::key_process::locking::{self, Meanwhile};
use claviger_serve::sessions::{Runtime, Session, escape};
use serde::Serialize;

use crate::process::served::FILES;
use crate::terminal::cancel;
use crate::terminal::exit::{self, Silent};
use crate::terminal::output::{self, Report};
use crate::verbs::unmount;

/// Forget the keys of volumes that stay mounted, until `claviger unlock`
///
/// For a machine that is suspended or left alone. Everything is written first; then the key process exits, and
/// further reads and writes wait. Works for volumes mounted or served with --isolate-keys. Data that programs have
/// read may remain in their memory and the kernel's.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger lock /mnt/old
  claviger lock --all
  claviger unlock /mnt/old")]
pub struct Args {
    /// The folder where it is mounted, or the file or device that holds the volume
    #[arg(value_name = "DIR|VOLUME", required_unless_present = "all")]
    targets: Vec<PathBuf>,

    /// All volumes that you have mounted or serve with --isolate-keys
    #[arg(long, conflicts_with = "targets")]
    all: bool,

    /// Let reads and writes fail instead of waiting. The file system may need remounting after failed writes
    #[arg(long)]
    fail: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Default, Serialize)]
struct Locked {
    locked: Vec<String>,
    /// Volumes whose keys stay: they have no key process, or are encrypted folders.
    open: Vec<String>,
    /// Volumes that are no longer encrypted: there is nothing to lock.
    plain: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    cancel::install()?;
    // Other processes do the work: a signal ends only the wait.
    cancel::end_at_once();
    let sessions = Runtime::of_this_user()?.sessions()?;
    let meanwhile = if args.fail { Meanwhile::Fail } else { Meanwhile::Wait };
    let mut chosen = args.targets.iter().map(|target| unmount::find(&sessions, target)).collect::<Result<Vec<_>>>()?;
    if args.all {
        // The last mount first: it may lie inside an earlier one, and must still be flushed there.
        chosen.extend(sessions.iter().rev().filter(|session| session.alive()));
    }
    let mut all = Locked::default();
    let mut failed = None;
    for session in chosen {
        match lock(session, meanwhile) {
            Ok(()) => all.locked.push(escape(&session.record.volume)),
            Err(e) if args.all && locking::is_missing(&e) => all.open.push(escape(&session.record.volume)),
            Err(e) if args.all && locking::is_plain(&e) => all.plain.push(escape(&session.record.volume)),
            Err(e) => {
                let e = with_hint(e, session).into();
                exit::report(&e, args.json);
                failed = failed.or(Some(Silent::after(&e)));
            }
        }
    }
    if failed.is_none() || !all.locked.is_empty() {
        output::print(&all, args.json)?;
    }
    failed.map_or(Ok(()), |silent| Err(silent.into()))
}

fn lock(session: &Session, meanwhile: Meanwhile) -> io::Result<()> {
    locking::look(&session.folder)?;
    // Pending writes would wait, or be lost.
    if !session.status().is_some_and(|status| status.locked) {
        settle(session)?;
    }
    locking::lock(&session.folder, meanwhile)
}

/// Flushes all pending writes.
fn settle(session: &Session) -> io::Result<()> {
    let Some(dir) = &session.record.dir else { return Ok(()) };
    rustix::fs::syncfs(File::open(dir)?)?;
    match session.record.filesystem.as_deref() {
        Some("none") => File::open(dir.join(fuse::NAME))?.sync_all(),
        _ => Ok(()),
    }
}

/// The error for a volume that cannot be locked or unlocked.
pub fn with_hint(error: io::Error, session: &Session) -> Error {
    let volume = &session.record.volume;
    match locking::is_missing(&error) {
        true if session.alive() && session.record.filesystem.as_deref() == Some(FILES) => {
            let what = "forgetting the keys of an encrypted folder while it is mounted";
            Error::unsupported(what).at(volume).hint("Unmount it instead.")
        }
        true if session.alive() => Error::misuse("its keys are in the process that serves it")
            .at(volume)
            .hint("Only volumes mounted or served with --isolate-keys can be locked. Unmount it instead."),
        true => Error::misuse("its server was killed")
            .at(volume)
            .hint(format!("To clean up: {}", output::suggested("unmount", volume))),
        false if locking::is_plain(&error) => {
            Error::misuse(error.to_string()).at(volume).hint("There is nothing to lock. Unmount it to close it.")
        }
        false if error.kind() == io::ErrorKind::PermissionDenied => {
            Error::new(ErrorKind::WrongCredential(error.to_string())).at(volume)
        }
        false if error.kind() == io::ErrorKind::InvalidInput => Error::misuse(error.to_string()).at(volume),
        false => Error::from(error).at(volume),
    }
}

impl Report for Locked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { locked, open, plain } = self;
        for volume in locked {
            let unlock = output::suggested("unlock", volume);
            writeln!(out, "{volume} is locked: its keys are forgotten until `{unlock}`.")?;
        }
        for volume in open {
            writeln!(out, "{volume} stays open: its keys cannot be forgotten while it is in use.")?;
        }
        for volume in plain {
            writeln!(out, "{volume} stays open: it is no longer encrypted.")?;
        }
        if locked.is_empty() && open.is_empty() && plain.is_empty() {
            writeln!(out, "Nothing to lock.")?;
        }
        Ok(())
    }
}
