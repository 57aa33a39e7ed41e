//! `claviger verify --deniability`: what an observer can tell from a volume, its file, its times and its host.
//!
//! Each finding is a claim that others could measure as well. Nothing is opened for writing. Only the password of a hidden
//! volume reveals that there is one.

mod finding;
mod host;
mod outer;
mod stored;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::opening::OpenVolume;
use claviger_engine::store::Access;
use claviger_engine::{Credential, Opened, Store, Unlock};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::process::guard;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, prompt};
use finding::{Finding, View};
use host::Host;

/// What an audit examines besides the volume.
#[derive(clap::Args)]
#[command(next_help_heading = "What an observer can tell", end_heading())]
pub struct DeniabilityArgs {
    /// List what an observer can tell from the volume, the surrounding file system and this machine. Asks for no password
    #[arg(long, conflicts_with = "inside")]
    pub deniability: bool,

    /// An older copy of the volume, to list what was changed since
    #[arg(long, value_name = "COPY", requires = "deniability")]
    earlier: Option<PathBuf>,

    /// Ask for the password, and list what it reveals as well. Giving a password by another option does the same
    #[arg(long, requires = "deniability")]
    open: bool,
}

#[derive(Serialize)]
struct Audit {
    #[serde(flatten)]
    path: FileName,
    findings: Vec<Finding>,
}

pub fn run(open: &OpenArgs, args: &DeniabilityArgs, json: bool) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    let path = &open.path;
    let store = open.raw(Access::ReadOnly)?;
    let mut findings = Vec::new();
    match stored::says_what_it_is(&store).map_err(|e| e.at(path))? {
        Some(finding) => findings.push(finding),
        None => {
            // Of a remote store, or a disk in an image, only the bytes are known here.
            findings.extend(stored::one_copy(path, store.file(), &*store).map_err(|e| e.at(path))?);
            copies_and_password(open, args, &store, &mut findings)?;
            findings.extend(Host::here().findings(path)?);
        }
    }
    output::print(&Audit { path: FileName::path(path), findings }, json)
}

fn copies_and_password(
    open: &OpenArgs,
    args: &DeniabilityArgs,
    store: &Arc<dyn Store>,
    findings: &mut Vec<Finding>,
) -> anyhow::Result<()> {
    let at = |e: claviger_engine::Error| e.at(&open.path);
    let earlier = args.earlier.as_deref().map(|path| open.how.opening(path)?.access(Access::ReadOnly).stored());
    let earlier = earlier.transpose()?;
    let mut free = None;
    if args.open || open.credentials.given() {
        prompt::about(&open.path);
        let mut credentials = open.read_credentials()?;
        let opened = |path: &Path, credentials: &[Credential]| -> claviger_engine::Result<OpenVolume> {
            let bar = Progress::trials("Opening");
            let show = |done, all| bar.at(done, all);
            let trying = |format| bar.trying(format);
            let (progress, trying) = (Some(&show as _), Some(&trying as _));
            let with = Unlock { cancel: Some(cancel::flag()), progress, trying, ..open.unlock_with(credentials) };
            open.how.opening(path)?.find()?.unlock(&with).and_then(Opened::bytes).map_err(|e| e.at(path))
        };
        let OpenVolume { volume, facts, .. } = credentials.open(|credentials| opened(&open.path, credentials))?;
        let volume = Arc::new(volume);
        let before = args.earlier.as_deref().map(|path| opened(path, &credentials));
        let before = before.transpose()?.map(|before| before.volume);
        findings.extend(outer::findings(&open.path, &volume, &facts).map_err(at)?);
        free = outer::Free::of(volume, &facts, before.as_ref()).map_err(at)?;
    }
    if let Some(earlier) = earlier {
        findings.extend(stored::two_copies(&*earlier, &**store, free)?);
    }
    Ok(())
}

impl Report for Audit {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", output::printable(&self.path))?;
        for (from, heading) in [
            (View::OneCopy, "From a copy of the volume"),
            (View::TwoCopies, "From two copies of different times"),
            (View::Password, "With the password"),
            (View::FileSystem, "From the surrounding file system"),
            (View::Host, "From this machine"),
        ] {
            let mut seen = self.findings.iter().filter(|finding| finding.seen_from == from).peekable();
            if seen.peek().is_some() {
                writeln!(out, "{heading}:")?;
            }
            seen.try_for_each(|finding| finding.text(out))?;
        }
        let (shown, all) = (self.findings.iter().filter(|f| f.gives_away.is_some()).count(), self.findings.len());
        writeln!(out, "{shown} of {all} findings give something away. Only its password reveals a hidden volume.")
    }
}
