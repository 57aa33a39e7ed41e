//! `claviger verify`: whether all copies of a header are sound, and whether the volume looks as random as it should.

mod folder;

use std::ffi::OsString;
use std::io::{self, Write};

use claviger_engine::formats::{AreaReport, CopyReport, CopyState, Verified};
use claviger_engine::store::Access;
use claviger_engine::{Advice, Unlock};
use serde::Serialize;

use crate::opening::{OpenArgs, files};
use crate::terminal::advice;
use crate::terminal::exit::Silent;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::verbs::deniability::{self, DeniabilityArgs};

/// Check every copy of a volume's header, and whether its parts look random
///
/// Tries the password on each copy and checks that it opens, its checksums are right and it agrees with its twin. Then
/// samples sectors all over the volume for zeros and patterns, which would show anybody where data lie. Nothing is
/// written.
///
/// Copies that do not open are tried in every way; --hash and --cipher speed that up.
///
/// Of an encrypted folder, every name and every file's header is checked, and whether all of its contents are there
/// and can be read.
///
/// With --deniability it says instead what an observer can tell: from a copy of the volume, from two of different times, with its
/// password, and from the file system and the machine around it. Of each claim it says how sure it is.
///
/// Ends with 4 if a copy of the header that opens is damaged or missing its twin, or a file is damaged.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger verify old.tc
  claviger verify ~/.Private
  claviger verify --deniability secrets.hc
  claviger verify --deniability --open --earlier backup/secrets.hc secrets.hc
  claviger verify --json --password-file password.txt old.tc")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    open: OpenArgs,

    /// The encrypted folder inside
    #[arg(value_name = "PATH")]
    inside: Option<OsString>,

    #[command(flatten)]
    deniability: DeniabilityArgs,
}

#[derive(Serialize)]
struct Checked {
    path: String,
    format: &'static str,
    copies: Vec<CopyReport>,
    areas: Vec<AreaReport>,
    damaged: bool,
    warnings: Vec<String>,
    /// Whether a warning says how the header is repaired.
    #[serde(skip)]
    repair_told: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.deniability.deniability {
        return deniability::run(&args.open, &args.deniability, args.json);
    }
    if args.inside.is_some() || args.open.path.is_dir() {
        return folder::run(&args.open, args.inside.as_deref().map(files::inside), args.json);
    }
    let editing = args.open.edit(Access::ReadOnly)?;
    let bar = Progress::trials("Checking");
    let show = |done, all| bar.at(done, all);
    let with = Unlock { progress: Some(&show), ..editing.wide() };
    let verified = editing.editor.verify(&*editing.store, &with).map_err(|e| e.at(editing.path()))?;
    bar.clear();
    let Verified { format, copies, areas, damaged, warnings, .. } = verified;
    let path = editing.path().display().to_string();
    let repair_told = warnings.iter().any(|warning| warning.advice == Some(Advice::RepairHeader));
    let warnings = advice::texts(&warnings);
    output::print(&Checked { path, format, copies, areas, damaged, warnings, repair_told }, args.json)?;
    if damaged { Err(Silent::damaged().into()) } else { Ok(()) }
}

impl Report for Checked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, copies, areas, damaged, warnings, repair_told } = self;
        writeln!(out, "{}: {format}", output::printable(path))?;
        for copy in copies {
            let state = match &copy.state {
                CopyState::Opens => "opens; checksums are right".to_owned(),
                CopyState::Differs(what) => format!("OPENS, BUT DIFFERS: {what}"),
                CopyState::Damaged(what) => format!("DAMAGED: {what}"),
                CopyState::DoesNotOpen => "does not open with this password; looks random".to_owned(),
                CopyState::NoHeader => "no header: what is there does not look random".to_owned(),
            };
            writeln!(out, "  {:<14} at byte {:<12} {state}", copy.name, copy.at)?;
        }
        for area in areas {
            writeln!(
                out,
                "  {}: {} of {} sectors look random",
                area.name,
                area.sectors - area.not_random,
                area.sectors
            )?;
        }
        for warning in warnings {
            writeln!(out, "{warning}")?;
        }
        let end = match damaged {
            true if *repair_told => "Damaged.",
            true => {
                "Damaged. `claviger header restore --embedded` repairs the header in front from the backup at the end; where the \
                 backup is the damaged one, `claviger change` writes both anew."
            }
            false => "All headers are sound.",
        };
        writeln!(out, "{end}")
    }
}
