//! `claviger lab report`

use std::path::{Path, PathBuf};

use claviger_engine::Error;
use claviger_lab::measure::run::stored;
use claviger_lab::model::figures::Run;
use claviger_lab::show::changes::{self, RunChanges};
use claviger_lab::show::pooled::PooledRuns;
use claviger_lab::show::report::{Extra, RunReport, Text, csv};
use claviger_lab::show::summary::Summary;

use crate::opening::new_file;
use crate::terminal::exit::Silent;
use crate::terminal::output;

/// Show the results of a lab run, or compare several runs
///
/// Medians, intervals, losses and verdicts are always computed from the raw figures, so runs of older versions work, too.
///
/// For two runs, shows which figures became faster or slower, corrected for the number of figures. Speeds are compared if
/// both runs have the same machine and plan, otherwise only losses against the baselines. For more runs, shows the losses
/// of each machine side by side.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  claviger lab report claviger-lab-2026-11-22-0300\n  claviger lab report run.json --html \
                        report.html\n  claviger lab report run.json --csv --raw > samples.csv\n  claviger lab report \
                        old.json new.json --fail-on-slower 5\n  claviger lab report laptop.json server.json \
                        nas.json"
)]
pub struct Args {
    /// A run: its folder, run.json or run.jsonl. Of two runs, give the old one first
    #[arg(value_name = "RUN", required = true, num_args = 1..=MOST_RUNS)]
    runs: Vec<PathBuf>,
    /// Also show figures of published studies that measured the same or something similar. A page always shows them
    #[arg(long)]
    published: bool,
    /// Show two runs as three or more are shown: each facility's loss in each run, side by side
    #[arg(long, conflicts_with_all = ["least", "fail_on_slower", "html", "published", "raw", "study", "markdown"])]
    together: bool,
    /// With two runs: the smallest change that is reported, in per cent [default: 3]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    least: Option<f64>,
    /// With two runs: exit with 1 if any figure became slower by this much or more, in per cent
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_on_slower: Option<f64>,
    /// Write a self-contained page with charts to this new file; `-` is standard output. With two runs, it shows the new
    /// one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"])]
    html: Option<PathBuf>,
    /// Print the raw figures and the results as JSON
    #[arg(long)]
    json: bool,
    /// Print a line of comma-separated values for each figure
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// With --csv, print a line for each sample
    #[arg(long, requires = "csv")]
    raw: bool,
    /// With --csv, print a line for each table cell of the repeated study
    #[arg(long, requires = "csv", conflicts_with = "raw")]
    study: bool,
    /// Refuse a run that was disturbed: other programs may use up to 5 % of one processor
    #[arg(long)]
    undisturbed: bool,
    /// Print the tables and conclusions of the repeated study as Markdown
    #[arg(long, conflicts_with_all = ["json", "csv", "html", "published"])]
    markdown: bool,
}

/// Runs the verb.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = args.page() {
        new_file::must_be_new(file)?;
    }
    match args.runs.as_slice() {
        [old, new] if !args.together => args.two(&args.load(old)?, &args.load(new)?),
        [run] => args.one(&args.load(run)?),
        runs => args.together(&runs.iter().map(|run| args.load(run)).collect::<claviger_engine::Result<Vec<_>>>()?),
    }
}

/// The most runs that are shown side by side: each is a column.
const MOST_RUNS: usize = 16;

/// Parses a percentage into a fraction.
fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a number from 0 to 100".into()),
    }
}

impl Args {
    /// A run, unless it was disturbed and must not be.
    fn load(&self, path: &Path) -> claviger_engine::Result<Run> {
        let run = stored::load(path)?;
        match run.unfit_for_documents().filter(|_| self.undisturbed) {
            Some(why) => Err(Error::misuse(format!("the run was disturbed, or may have been: {why}")).at(path)),
            None => Ok(run),
        }
    }

    /// Prints the results of one run.
    fn one(&self, run: &Run) -> anyhow::Result<()> {
        if self.together {
            return Err(Error::misuse("--together needs several runs").into());
        }
        if self.least.is_some() || self.fail_on_slower.is_some() {
            return Err(Error::misuse("--least and --fail-on-slower need two runs").into());
        }
        let summary = Summary::of(run);
        let extras = self.published_beside(run, &summary);
        let report = RunReport { run, summary: &summary, extras: &extras };
        self.tell(&match () {
            () if self.html.is_some() => report.html()?,
            () if self.json => output::json(&report)?,
            () if (self.study || self.markdown) && run.plan.study().is_none() => {
                return Err(Error::misuse("this run repeats no study").into());
            }
            () if self.markdown => report.study_markdown(),
            () if self.study => report.study_csv(),
            () if self.raw => report.samples_csv(),
            () if self.csv => report.cells_csv(),
            () => report.text(),
        })
    }

    /// Prints the changes between two runs.
    fn two(&self, old: &Run, new: &Run) -> anyhow::Result<()> {
        let options = [("--raw", self.raw), ("--study", self.study), ("--markdown", self.markdown)];
        if let Some((option, _)) = options.into_iter().find(|(_, given)| *given) {
            return Err(Error::misuse(format!("{option} works only with one run")).into());
        }
        let changes = RunChanges::between(old, new, self.least.unwrap_or(changes::LEAST));
        self.tell(&match () {
            () if self.html.is_some() => {
                let summary = Summary::of(new);
                let mut extras = self.published_beside(new, &summary);
                extras.insert(0, changes.extra());
                RunReport { run: new, summary: &summary, extras: &extras }.html()?
            }
            () if self.json => output::json(&changes)?,
            () if self.csv => csv(&changes.cells),
            () => changes.text(),
        })?;
        match self.fail_on_slower {
            Some(share) if changes.slower_by(share).next().is_some() => Err(Silent::slower().into()),
            _ => Ok(()),
        }
    }

    /// Prints what is lost in each of several runs.
    fn together(&self, runs: &[Run]) -> anyhow::Result<()> {
        let options = [
            ("--least", self.least.is_some()),
            ("--fail-on-slower", self.fail_on_slower.is_some()),
            ("--html", self.html.is_some()),
            ("--published", self.published),
            ("--raw", self.raw),
            ("--study", self.study),
            ("--markdown", self.markdown),
        ];
        if let Some((option, _)) = options.into_iter().find(|(_, given)| *given) {
            return Err(Error::misuse(format!("{option} works only with one or two runs")).into());
        }
        let pooled = PooledRuns::of(runs);
        if pooled.figures.is_empty() {
            let what = "no two of these runs measured the loss of the same facility in the same workload";
            return Err(Error::misuse(what).hint("Run the same plan on each machine.").into());
        }
        self.tell(&match () {
            () if self.json => output::json(&pooled)?,
            () if self.csv => csv(&pooled.figures),
            () => pooled.text(),
        })
    }

    fn published_beside(&self, run: &Run, summary: &Summary) -> Vec<Extra> {
        let published = if self.published || self.html.is_some() { Extra::published(run, summary) } else { Vec::new() };
        Extra::of_study(run, summary).into_iter().chain(published).collect()
    }

    fn tell(&self, text: &str) -> anyhow::Result<()> {
        match self.page() {
            Some(file) => Ok(new_file::write(file, text.as_bytes()).map(drop)?),
            None => output::write(&mut output::raw()?, text.as_bytes()),
        }
    }

    /// The file for the page, if one was requested.
    fn page(&self) -> Option<&Path> {
        self.html.as_deref().filter(|file| *file != Path::new("-"))
    }
}
