//! `claviger lab published`

use claviger_engine::Error;
use claviger_lab::measure::benchmark::{BenchmarkPlan, DEFAULT_BUFFER};
use claviger_lab::measure::{benchmark, suites};
use claviger_lab::show::published::{self, PublishedLoss, Query};
use claviger_lab::show::report::{Text, csv};

use crate::terminal::output::json_list;
use crate::terminal::progress::Progress;
use crate::verbs::benchmark::print;

/// Samples of each cipher for `--ciphers`.
const REPEATS: usize = 5;

/// Search the figures of five published studies on the cost of disk encryption
///
/// The studies: BSI (2010), Zhan (2010), Ahlstedt and Karlsson (2013), Rantanen (2013), TresorSGX (2016). Values are as
/// printed, each with its table.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  claviger lab published --study linux2013 --workload dbench\n  claviger lab published --losses \
                        --platform EliteBook --table 8\n  claviger lab published --ciphers"
)]
pub struct Args {
    /// Only this study: bsi2010, zhan2010, linux2013, rantanen2013 or tresorsgx2016
    #[arg(long, value_name = "NAME")]
    study: Option<String>,
    /// Only this facility or cipher; a part of its name
    #[arg(long, value_name = "NAME")]
    facility: Option<String>,
    /// Only this workload; a part of its name
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Only this machine or disk; a part of its name
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// Only this table, section or appendix
    #[arg(long, value_name = "NUMBER")]
    table: Option<String>,
    /// Show losses instead of figures: each figure against the unencrypted one of the same test
    #[arg(long)]
    losses: bool,
    /// Measure the ciphers here, in a buffer of 5 MiB, and compare them with the studies' TrueCrypt benchmark windows
    #[arg(long, conflicts_with_all = ["study", "facility", "workload", "platform", "table", "losses", "csv"])]
    ciphers: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Runs the verb.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.ciphers {
        return ciphers(args);
    }
    let query = Query {
        study: args.study.clone(),
        facility: args.facility.clone(),
        workload: args.workload.clone(),
        platform: args.platform.clone(),
        table: args.table.clone(),
    };
    let figures = query.figures()?;
    if !args.losses {
        return print(args.json, args.csv, || json_list(&figures), || figures.text(), || csv(&figures));
    }
    let losses: Vec<&PublishedLoss> = published::losses().iter().filter(|loss| query.finds(&loss.figure)).collect();
    if losses.is_empty() {
        return Err(Error::misuse("none of these figures has an unencrypted counterpart in the same test").into());
    }
    print(args.json, args.csv, || json_list(&losses), || losses.text(), || csv(&losses))
}

fn ciphers(args: &Args) -> anyhow::Result<()> {
    let plan = BenchmarkPlan::new(suites::all(), &[DEFAULT_BUFFER]);
    let plan = BenchmarkPlan { repeats: REPEATS, ..plan };
    let progress = Progress::steps("measuring");
    let rows = benchmark::measure(&plan, &|done, total| progress.at(done, total))?;
    progress.clear();
    let beside = published::ciphers_beside(&rows);
    print(args.json, args.csv, || json_list(&beside), || beside.text(), String::new)
}
