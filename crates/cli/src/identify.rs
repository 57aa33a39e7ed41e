//! `claviger identify`: what a file is, without a credential.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::store::Access;
use claviger_engine::{FORMATS, Store, Verdict};
use serde::Serialize;

use crate::exit::{self, Silent};
use crate::opening::open_file;
use crate::output::{self, Report};

/// Say what files and devices are, without a password
///
/// Some formats have no mark to know them by: without the password, such a volume looks like random bytes. It is then
/// "possibly" a volume. Nothing is written.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger identify old.tc
  claviger identify --json /dev/sd*")]
pub struct Args {
    /// Files or block devices
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Identified {
    path: String,
    /// Size in bytes.
    size: u64,
    /// The best of the verdicts.
    verdict: &'static str,
    /// The first format with that verdict.
    format: Option<&'static str>,
    /// All formats with that verdict.
    candidates: Vec<&'static str>,
    /// What each format says.
    formats: Vec<Opinion>,
}

#[derive(Serialize)]
struct Opinion {
    format: &'static str,
    #[serde(flatten)]
    verdict: Verdict,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut found = Vec::new();
    let mut end = None;
    for path in &args.files {
        match identify(path) {
            Ok(identified) => found.push(identified),
            // One bad file does not keep the others from being looked at.
            Err(e) => {
                let e = anyhow::Error::new(e);
                exit::report(&e, args.json);
                end.get_or_insert(Silent::after(&e));
            }
        }
    }
    output::print(&found, args.json)?;
    if found.iter().any(|f| f.format.is_none()) {
        end.get_or_insert(Silent::not_this_format());
    }
    end.map_or(Ok(()), |silent| Err(silent.into()))
}

fn identify(path: &Path) -> claviger_engine::Result<Identified> {
    let store = open_file(path, Access::ReadOnly)?;
    let mut formats = Vec::new();
    for format in FORMATS {
        let verdict = format.identify(&store).map_err(|e| e.at(path))?;
        formats.push(Opinion { format: format.name(), verdict });
    }
    let best = formats.iter().map(|o| rank(&o.verdict)).max().unwrap_or((0, "no"));
    let candidates: Vec<_> = match best {
        (0, _) => Vec::new(),
        best => formats.iter().filter(|o| rank(&o.verdict) == best).map(|o| o.format).collect(),
    };
    Ok(Identified {
        path: path.display().to_string(),
        size: store.len(),
        verdict: best.1,
        format: candidates.first().copied(),
        candidates,
        formats,
    })
}

fn rank(verdict: &Verdict) -> (u8, &'static str) {
    match verdict {
        Verdict::No(_) => (0, "no"),
        Verdict::Possible(_) => (1, "possible"),
        Verdict::Yes(_) => (2, "yes"),
    }
}

impl Report for Vec<Identified> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for file in self {
            let names = file.candidates.join(" or ");
            match (file.verdict, file.format) {
                ("yes", Some(_)) => writeln!(out, "{}: {names}", file.path)?,
                (_, Some(_)) => writeln!(out, "{}: possibly {names}", file.path)?,
                (_, None) => writeln!(out, "{}: not a volume of any known format", file.path)?,
            }
            for opinion in &file.formats {
                let (Verdict::No(why) | Verdict::Possible(why) | Verdict::Yes(why)) = &opinion.verdict;
                writeln!(out, "  {}: {why}", opinion.format)?;
            }
        }
        Ok(())
    }
}
