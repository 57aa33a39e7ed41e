//! `claviger list`: lists mounted and served volumes.

use std::io::{self, Write};
use std::time::Duration;

use claviger_engine::file_formats;
use claviger_engine::volume::{ConversionKind, ConversionProgress, VolumeEncryption};
use claviger_serve::key_process::locking;
use claviger_serve::sessions::{Runtime, Session, SessionRecord, Status, escape};
use serde::Serialize;

use crate::terminal::date::date;
use crate::terminal::output::{self, Report};
use crate::terminal::size;

/// List the volumes that you have mounted or serve
///
/// Shows the place, format, cipher, opening time, and amount read and written of each one.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger list
  claviger list --json")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct List {
    volumes: Vec<One>,
}

#[derive(Serialize)]
struct One {
    #[serde(flatten)]
    record: SessionRecord,
    /// `alive`, `silent` (the server does not answer) or `dead` (it was killed without cleaning up).
    state: &'static str,
    /// Whether `claviger lock` works: the keys are in a key process.
    lockable: bool,
    /// The server's status, if it answers.
    #[serde(flatten)]
    status: Option<Status>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let volumes: Vec<_> = Runtime::of_this_user()?.sessions()?.into_iter().map(One::new).collect();
    if volumes.is_empty() && !args.json {
        output::note("you have no volumes mounted or served");
    }
    output::print(&List { volumes }, args.json)
}

impl One {
    fn new(session: Session) -> Self {
        let alive = session.alive();
        let mut status = if alive { session.status() } else { None };
        let state = match (alive, &status) {
            (false, _) => "dead",
            (true, None) => "silent",
            (true, Some(_)) => "alive",
        };
        let lockable = alive && locking::look(&session.folder).is_ok();
        // It may have grown or been converted since.
        let mut record = session.record;
        if let Some(Status { size, encryption, .. }) = &mut status {
            record.size = size.take().unwrap_or(record.size);
            if let Some(VolumeEncryption { format, cipher, mode }) = encryption.take() {
                (record.format, record.cipher, record.mode) = (format, cipher, mode);
            }
        }
        Self { record, state, lockable, status }
    }
}

fn kind_in_words(kind: ConversionKind) -> &'static str {
    match kind {
        ConversionKind::Reencrypt => "reencrypting",
        ConversionKind::Encrypt => "encrypting",
        ConversionKind::Decrypt => "decrypting",
    }
}

/// "43 %, 12 min left".
fn progress_in_words(ConversionProgress { kind: _, done, size, seconds_left }: ConversionProgress) -> String {
    let percent = u128::from(done) * 100 / u128::from(size.max(1));
    let left = seconds_left
        .filter(|seconds| *seconds > 0)
        .map(|seconds| format!(", {} left", size::duration(Duration::from_secs(seconds))));
    format!("{percent} %{}", left.unwrap_or_default())
}

impl Report for List {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for One { record, state, status, .. } in &self.volumes {
            let suggested = |verb| output::suggested(verb, &record.volume);
            writeln!(out, "{}", escape(&record.volume))?;
            let mut line = |name: &str, value: String| writeln!(out, "  {name:<11} {value}");
            if let Some(dir) = &record.dir {
                line("mounted at", escape(dir))?;
            }
            if let Some(uri) = &record.uri {
                line("served at", uri.clone())?;
            }
            if let Some(filesystem) = &record.filesystem {
                line("file system", filesystem.clone())?;
            }
            line("format", record.format.clone())?;
            match &*record.cipher {
                // Each file of an encrypted folder has its own.
                VolumeEncryption::NONE if file_formats::named(&record.format).is_ok_and(|format| format.encrypts()) => {
                }
                VolumeEncryption::NONE => line("cipher", "none: not encrypted".to_owned())?,
                cipher => line("cipher", format!("{cipher} in {} mode", record.mode))?,
            }
            let access = if record.read_only { ", read-only" } else { "" };
            line("size", format!("{}{access}", size::exact(record.size)))?;
            line("since", date(record.since.cast_signed()))?;
            if let Some(Status { traffic, damage_prevented, .. }) = status {
                line("read", size::exact(traffic.read))?;
                line("written", size::exact(traffic.written))?;
                if traffic.failed_writes > 0 {
                    line("failed", format!("{} writes; their data may be lost", traffic.failed_writes))?;
                }
                if *damage_prevented {
                    line("protection", "a write that would have damaged the hidden volume was refused".to_owned())?;
                }
            }
            if let Some(progress) = status.as_ref().and_then(|status| status.reencryption) {
                line(kind_in_words(progress.kind), progress_in_words(progress))?;
            }
            if status.as_ref().is_some_and(|status| status.locked) {
                line("locked", format!("its keys are forgotten; to unlock: {}", suggested("unlock")))?;
            }
            let left = record.dir.as_ref().unwrap_or(&record.volume);
            match *state {
                "dead" => line(
                    "state",
                    format!("its server was killed; to clean up: {}", output::suggested("unmount", left)),
                )?,
                "silent" => line("state", format!("its server, process {}, does not answer", record.server.pid))?,
                _ => {}
            }
        }
        Ok(())
    }
}
