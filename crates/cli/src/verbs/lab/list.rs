//! `claviger lab list`: lists what can be measured here.

use std::io::{self, Write};
use std::path::PathBuf;

use claviger_lab::measure::facility::{Catalogue, Facility, NBD};
use claviger_lab::measure::{studies, workloads};
use claviger_lab::show::report::hanging;
use serde::Serialize;

use crate::terminal::output::{self, Report};

/// List what the lab can measure: facilities and workloads
///
/// Shows what each one is and its version. Lists those that cannot be measured here, with the reason.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger lab list
  claviger lab list --json")]
pub struct Args {
    /// Folder of TOML files with facilities of your own
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct List {
    facilities: Vec<One>,
    workloads: Vec<One>,
    studies: Vec<One>,
}

#[derive(Serialize)]
struct One {
    name: String,
    title: String,
    /// The unencrypted facility in the same layer, for facilities that encrypt.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<String>,
    version: Option<String>,
    /// Whether the facility is part of this program.
    #[serde(skip)]
    ours: bool,
    /// Why the facility cannot be measured here.
    missing: Option<String>,
}

/// Runs the verb.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let catalogue = Catalogue::load(args.peers.as_deref())?;
    // All of our facilities have the same version.
    let ours = env!("CARGO_PKG_VERSION");
    let facility = |facility: &Facility| {
        let missing = facility.missing();
        let is_ours = facility.is_ours();
        let version = match is_ours {
            true => Some(ours.to_owned()),
            false if missing.is_none() => facility.version_here(&program),
            false => None,
        };
        let Facility { name, title, baseline, .. } = facility.clone();
        One { name, title, baseline, version, ours: is_ours, missing }
    };
    let facilities = catalogue.all().iter().map(facility).collect();
    let workloads = workloads::all().map(|workload| {
        let missing = (workload.missing)();
        let version = if missing.is_none() { (workload.version)() } else { None };
        let (name, title) = (workload.name.into(), workload.title.into());
        One { name, title, baseline: None, version, ours: false, missing }
    });
    let study = |name: &str| {
        let study = studies::find(name, &catalogue)?;
        Ok(One { name: study.name, title: study.title, baseline: None, version: None, ours: false, missing: None })
    };
    let studies = studies::names().map(study).collect::<claviger_engine::Result<_>>()?;
    output::print(&List { facilities, workloads: workloads.collect(), studies }, args.json)
}

impl Report for List {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (here, absent): (Vec<&One>, Vec<&One>) = self.facilities.iter().partition(|one| one.missing.is_none());
        let (ours, others): (Vec<&One>, Vec<&One>) = here.into_iter().partition(|one| one.ours);
        let formats = families(&ours);
        let (workloads, undoable): (Vec<&One>, Vec<&One>) =
            self.workloads.iter().partition(|one| one.missing.is_none());
        let described = |one: &&One| (one.name.clone(), one.described());
        let sections = [
            ("This program's formats. To serve one over NBD, put nbd/ in front of its name", formats),
            ("Other programs, and layers without encryption", others.iter().map(described).collect()),
            ("Workloads", workloads.iter().map(described).collect()),
            (
                "Studies that --study repeats",
                self.studies.iter().map(|one| (one.name.clone(), one.described())).collect(),
            ),
            ("Not available here", refused(&absent).into_iter().chain(refused(&undoable)).collect()),
        ];
        let width = sections.iter().flat_map(|(_, lines)| lines).map(|(name, _)| name.len()).max().unwrap_or(0);
        for (heading, lines) in sections.iter().filter(|(_, lines)| !lines.is_empty()) {
            writeln!(out, "{heading}:")?;
            for (name, text) in lines {
                write!(out, "{}", hanging(&format!("  {name:width$}  "), &" ".repeat(width + 4), text))?;
            }
            writeln!(out)?;
        }
        writeln!(
            out,
            "To try one: `claviger lab check FACILITY`. To measure: `claviger lab run --facility NAME --workload NAME`."
        )
    }
}

impl One {
    /// The description, with the version of other programs.
    fn described(&self) -> String {
        match self.version.as_ref().filter(|_| !self.ours) {
            Some(version) => format!("{} [{version}]", self.title),
            None => self.title.clone(),
        }
    }

    /// The name without the cipher, and the cipher.
    fn family(&self) -> (&str, Option<&str>) {
        match self.name.split_once(':') {
            Some((family, cipher)) => (family, Some(cipher)),
            None => (&self.name, None),
        }
    }
}

/// One entry per format, with its ciphers. Does not mention that each is also available over NBD.
fn families(ours: &[&One]) -> Vec<(String, String)> {
    let among = |name: &str| ours.iter().any(|one| one.name == name);
    let mut all: Vec<(String, String)> = Vec::new();
    for one in ours.iter().filter(|one| one.name.strip_prefix(NBD).is_none_or(|name| !among(name))) {
        let (family, cipher) = one.family();
        match (all.iter_mut().find(|(name, _)| name == family), cipher) {
            (Some((_, text)), Some(cipher)) if text.contains(VARIANTS) => *text += &format!(", {cipher}"),
            (Some((name, text)), Some(cipher)) => *text += &format!("; {name}{VARIANTS}{cipher}"),
            _ => all.push((one.name.clone(), one.described())),
        }
    }
    all
}

/// Separates a format's name from its non-default ciphers.
const VARIANTS: &str = ":… with ";

/// Why facilities cannot be measured: one entry per reason.
fn refused(absent: &[&One]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for one in absent {
        let (family, why) = (one.family().0, one.missing.clone().unwrap_or_default());
        if !all.contains(&(family.to_owned(), why.clone())) {
            all.push((family.to_owned(), why));
        }
    }
    all
}
