//! `claviger unmount`: flushes and unmounts a volume.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use claviger_engine::{Error, Result};
use claviger_serve::key_process::locking;
use claviger_serve::mount::{self, Ended};
use claviger_serve::sessions::{Runtime, Session, escape};
use serde::Serialize;

use crate::terminal::exit::{self, Silent};
use crate::terminal::output::{self, Report};
use crate::terminal::{cancel, duration};

/// Unmount a volume, or stop serving it
///
/// Writes everything, waits until the volume is closed, and names processes that still use it. Cleans up after a
/// killed server.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger unmount /mnt/old
  claviger unmount old.tc
  claviger unmount --all")]
pub struct Args {
    /// The folder where it is mounted, or the file or device that holds the volume
    #[arg(value_name = "DIR|VOLUME", required_unless_present = "all")]
    targets: Vec<PathBuf>,

    /// All volumes that you have mounted or serve
    #[arg(long, conflicts_with = "targets")]
    all: bool,

    /// Detach the mount even if it is in use; it ends with its last user
    #[arg(long)]
    force: bool,

    /// How long to wait for pending writes
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Unmounted {
    unmounted: Vec<One>,
}

#[derive(Serialize)]
struct One {
    volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<String>,
    /// `done`, `lazily` (still in use), or `cleaned-up` (the server had been killed).
    how: &'static str,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    cancel::install()?;
    // Other processes do the work: a signal ends only the wait.
    cancel::end_at_once();
    let runtime = Runtime::of_this_user()?;
    let sessions = runtime.sessions()?;
    let mut chosen: Vec<&Session> = Vec::new();
    for target in &args.targets {
        let session = find(&sessions, target)?;
        if !chosen.iter().any(|other| other.folder == session.folder) {
            chosen.push(session);
        }
    }
    if args.all {
        // The last mount first: it may lie inside an earlier one.
        chosen.extend(sessions.iter().rev());
    }
    let mut unmounted = Vec::new();
    let mut failed = None;
    for session in chosen {
        match unlocked(session, args.force).and_then(|()| mount::end(session, args.force, args.timeout)) {
            Ok(how) => {
                // `claviger attach` created the folder.
                if let Some(dir) = session.record.dir.as_ref().filter(|dir| dir.starts_with(runtime.path())) {
                    let _ = std::fs::remove_dir(dir);
                }
                unmounted.push(One::new(session, how));
            }
            Err(e) => {
                let e = e.into();
                exit::report(&e, args.json);
                failed = failed.or(Some(Silent::after(&e)));
            }
        }
    }
    if args.all {
        mount::clean_all(&runtime)?;
    }
    output::print(&Unmounted { unmounted }, args.json)?;
    failed.map_or(Ok(()), |silent| Err(silent.into()))
}

/// Fails if the volume is locked, because its pending data cannot be written. `force` gives these up.
fn unlocked(session: &Session, force: bool) -> Result<()> {
    match session.status() {
        Some(status) if status.locked && force => Ok(locking::give_up(&session.folder)?),
        Some(status) if status.locked => Err(Error::misuse("it is locked")
            .at(&session.record.volume)
            .hint("Run `claviger unlock` first. Or add --force, which loses data not written before the lock.")),
        _ => Ok(()),
    }
}

/// The session for the target: by folder first, then by volume; the latest one first.
///
/// # Errors
/// `Misuse` if there is no such session.
pub fn find<'a>(sessions: &'a [Session], target: &Path) -> Result<&'a Session> {
    let means = |path: &Path| {
        let of = |s: &&Session| s.record.dir.as_deref() == Some(path) || s.record.uri.as_deref() == path.to_str();
        let at_dir = sessions.iter().rev().find(of);
        at_dir.or_else(|| sessions.iter().rev().find(|s| s.record.volume == path))
    };
    // The path as given is compared first: resolving it may query a server that does not answer.
    let written = std::path::absolute(target).ok();
    let found = means(target).or_else(|| means(&written?)).or_else(|| means(&target.canonicalize().ok()?));
    found.ok_or_else(|| {
        Error::misuse("you have not mounted or served this").at(target).hint("To list them: claviger list")
    })
}

impl One {
    fn new(session: &Session, how: Ended) -> Self {
        let how = match how {
            Ended::Done => "done",
            Ended::Lazily => "lazily",
            Ended::CleanedUp => "cleaned-up",
        };
        Self { volume: escape(&session.record.volume), dir: session.record.dir.as_deref().map(escape), how }
    }
}

impl Report for Unmounted {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for One { volume, dir, how } in &self.unmounted {
            let place = dir.as_ref().map(|dir| format!(" at {dir}")).unwrap_or_default();
            let how = match *how {
                "lazily" => "is detached; its server runs until its last user is gone",
                "cleaned-up" => "had lost its server and was cleaned up",
                _ => "is closed",
            };
            writeln!(out, "{volume}{place} {how}.")?;
        }
        Ok(())
    }
}
