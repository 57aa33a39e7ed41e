//! `claviger lab report`

use std::path::{Path, PathBuf};

use claviger_lab::report::{RunReport, Text};
use claviger_lab::run::stored;
use claviger_lab::summary::Summary;

use crate::{new_file, output};

/// Show what a run of the lab found
///
/// Medians, intervals, losses and verdicts are computed anew from the raw figures of the run, so that a run of an older version
/// can be shown too.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  claviger lab report claviger-lab-2026-11-22-0300\n  claviger lab report run.json --html \
                        report.html\n  claviger lab report run.json --csv --raw > samples.csv"
)]
pub struct Args {
    /// The run: its folder, or its run.json or run.jsonl
    #[arg(value_name = "RUN", required = true, num_args = 1)]
    runs: Vec<PathBuf>,
    /// Write one self-contained page with charts to this new file; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"])]
    html: Option<PathBuf>,
    /// Print the raw figures and what they show as JSON
    #[arg(long)]
    pub json: bool,
    /// Print a line of comma-separated values for each figure
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// With --csv, print a line for each sample
    #[arg(long, requires = "csv")]
    raw: bool,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = args.page() {
        new_file::must_be_new(file)?;
    }
    let run = stored::load(&args.runs[0])?;
    let summary = Summary::of(&run);
    let report = RunReport { run: &run, summary: &summary, extras: &[] };
    let text = match () {
        () if args.html.is_some() => report.html()?,
        () if args.json => report.json()?,
        () if args.raw => report.samples_csv(),
        () if args.csv => report.cells_csv(),
        () => report.text(),
    };
    match args.page() {
        Some(file) => Ok(new_file::write(file, text.as_bytes())?),
        None => output::write(&mut output::raw()?, text.as_bytes()),
    }
}

impl Args {
    /// The file for the page, if there is to be one.
    fn page(&self) -> Option<&Path> {
        self.html.as_deref().filter(|file| *file != Path::new("-"))
    }
}
