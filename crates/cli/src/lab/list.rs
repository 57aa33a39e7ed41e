//! `claviger lab list`: what can be measured here, and with what.

use std::io::{self, Write};
use std::path::PathBuf;

use claviger_lab::facility::{Catalogue, Facility};
use claviger_lab::workloads;
use serde::Serialize;

use crate::output::{self, Report};

/// List what the lab can measure: facilities and workloads
///
/// Says of each what it is, its version, and why it cannot be measured here, if that is so.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger lab list
  claviger lab list --json")]
pub struct Args {
    /// Facilities of your own: a folder of TOML files
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct List {
    facilities: Vec<One>,
    workloads: Vec<One>,
}

#[derive(Serialize)]
struct One {
    name: String,
    title: String,
    /// Without encryption, in the same layer; of facilities that encrypt.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<String>,
    version: Option<String>,
    /// Why it cannot be measured here.
    missing: Option<String>,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let catalogue = Catalogue::load(args.peers.as_deref())?;
    // Ours all have one version, which is asked for once.
    let ours = env!("CARGO_PKG_VERSION");
    let facility = |facility: &Facility| {
        let missing = facility.missing();
        let version = match facility.is_ours() {
            true => Some(ours.to_owned()),
            false if missing.is_none() => facility.version_here(&program),
            false => None,
        };
        let Facility { name, title, baseline, .. } = facility.clone();
        One { name, title, baseline, version, missing }
    };
    let facilities = catalogue.all().iter().map(facility).collect();
    let workloads = workloads::all().map(|workload| {
        let missing = workload.missing();
        let version = if missing.is_none() { workload.version() } else { None };
        One { name: workload.name().into(), title: workload.title().into(), baseline: None, version, missing }
    });
    output::print(&List { facilities, workloads: workloads.collect() }, args.json)
}

impl Report for List {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.facilities.iter().chain(&self.workloads).map(|one| one.name.len()).max().unwrap_or(0);
        for (heading, all) in [("Facilities", &self.facilities), ("Workloads", &self.workloads)] {
            writeln!(out, "{heading}:")?;
            for one in all {
                let state = match (&one.missing, &one.version) {
                    (Some(missing), _) => format!(" [not here: {missing}]"),
                    (None, Some(version)) => format!(" [{version}]"),
                    (None, None) => String::new(),
                };
                writeln!(out, "  {:width$}  {}{state}", one.name, one.title)?;
            }
        }
        Ok(())
    }
}
