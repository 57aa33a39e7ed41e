//! `claviger verify`: checks all copies of a header, and whether the volume looks as random as it should.

mod folder;

use std::ffi::OsString;
use std::io::{self, Write};

use claviger_engine::Unlock;
use claviger_engine::formats::{AreaReport, CopyReport, CopyState, Verified};
use claviger_engine::store::Access;
use serde::Serialize;

use crate::opening::{OpenArgs, files};
use crate::terminal::advice;
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::verbs::deniability::{self, DeniabilityArgs};

/// Check all copies of a volume's header, and what should look random
///
/// Checks that each header copy opens with the password, has correct checksums and agrees with its twin. Nothing is
/// written.
///
/// TrueCrypt and VeraCrypt: also samples sectors across the volume for zeros and patterns, which would reveal where
/// data lie. LUKS: also checks that the area of every keyslot looks random, and names what does not; only a keyslot's
/// own credential proves more.
///
/// Copies that do not open are tried in every way; --hash and --cipher speed that up.
///
/// In an encrypted folder, checks every name and every file's header, and that its contents are complete and
/// readable.
///
/// With --deniability, reports instead what an observer can tell from one or two copies of the volume, with its
/// password, and from the file system and machine around it. Each finding has a degree of certainty.
///
/// Exits with 4 if a header copy that opens is damaged or lacks its twin, or a keyslot or a file is damaged.
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
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    copies: Vec<CopyReport>,
    areas: Vec<AreaReport>,
    damaged: bool,
    warnings: Vec<String>,
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
    let path = FileName::path(editing.path());
    let warnings = advice::texts(&warnings);
    output::print(&Checked { path, format, copies, areas, damaged, warnings }, args.json)?;
    if damaged { Err(Silent::damaged().into()) } else { Ok(()) }
}

impl Report for Checked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, copies, areas, damaged, warnings } = self;
        writeln!(out, "{}: {format}", output::printable(path))?;
        for copy in copies {
            let state = match &copy.state {
                CopyState::Opens => "opens; checksums are right".to_owned(),
                CopyState::Differs(what) => format!("OPENS, BUT DIFFERS: {what}"),
                CopyState::Damaged(what) => format!("DAMAGED: {what}"),
                CopyState::DoesNotOpen => "does not open with this password; looks random".to_owned(),
                CopyState::NoHeader => "no header: overwritten, erased or never written".to_owned(),
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
        writeln!(out, "{}", if *damaged { "Damaged." } else { "All headers are sound." })
    }
}
