//! `claviger lab compare`

use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use claviger_engine::Acceleration;
use claviger_lab::compare;
use claviger_lab::compare::kernel::Beside;
use claviger_lab::compare::targets::Path;
use claviger_lab::report::{Text, csv};

use crate::terminal::progress::Progress;
use crate::terminal::size;
use crate::verbs::benchmark::print;

/// What `--quick` measures.
const QUICK_SUITES: &[&str] = &["AES", "Serpent", "AES-Twofish-Serpent"];

/// Compare reads and writes of a volume with and without encryption
///
/// Makes volumes in memory, plain and encrypted, and transfers data to and from them in blocks of several sizes, through the
/// same layers: the block-size sweep of the BSI's study of TrueCrypt (2010). Needs as much memory as the volumes have. As root,
/// where there is a device-mapper, the kernel's dm-crypt is measured beside.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  claviger lab compare --quick\n  claviger lab compare --suite AES --block 4K --block \
                        32K\n  claviger lab compare --path engine --json > sweep.json"
)]
pub struct Args {
    /// Layers between the workload and the container
    #[arg(long, value_enum, default_value_t = Layers::Nbd)]
    path: Layers,
    /// Only this cipher or cascade besides the plain volume (may be given again)
    #[arg(long, value_name = "NAME")]
    suite: Vec<String>,
    /// Bytes of a request (may be given again) [default: 512, 1K, 2K, 4K, 8K, 16K and 32K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    block: Vec<u64>,
    /// Bytes of each transfer [default: 500MB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Seconds after which a transfer ends even if not all bytes have moved [default: 1]
    #[arg(long, value_name = "SECONDS")]
    limit: Option<f64>,
    /// Rounds, each of which measures everything once [default: 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: Option<u16>,
    /// Requests that are under way at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    queue_depth: u16,
    /// Where the random order comes from [default: the clock]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Do without the processor's AES instructions
    #[arg(long)]
    no_aes: bool,
    /// Three suites, three block sizes, 32 MiB, less than a minute in all; what is given besides has precedence
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Layers {
    /// An NBD server and one client over a Unix socket
    Nbd,
    /// Calls of the engine without a transport
    Engine,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let plan = args.plan()?;
    plan.check()?;
    eprintln!(
        "claviger: measuring takes {} at most; making and verifying {} volumes comes on top",
        minutes(plan.at_most().as_secs()),
        plan.volumes()
    );
    let progress = Progress::steps("measuring");
    let report = compare::measure(&plan, &|done, total| progress.at(done, total))?;
    progress.clear();
    print(args.json, args.csv, &report, || report.text(), || csv(&report.cells))
}

impl Args {
    fn plan(&self) -> anyhow::Result<compare::Plan> {
        let quick: Vec<String> = QUICK_SUITES.iter().map(ToString::to_string).collect();
        let names = if self.quick && self.suite.is_empty() { &quick } else { &self.suite };
        let (all_blocks, size, limit_s, repeats) = match self.quick {
            true => (compare::QUICK_BLOCKS, 32 << 20, 0.2, 7),
            false => (compare::BLOCKS, 500_000_000, 1.0, 7),
        };
        let mut blocks: Vec<usize> = self.block.iter().map(|&b| usize::try_from(b)).collect::<Result<_, _>>()?;
        blocks.sort_unstable();
        blocks.dedup();
        let acceleration = if self.no_aes { Acceleration::Off } else { Acceleration::On };
        Ok(compare::Plan {
            kernel: Beside::here(self.queue_depth.into(), acceleration),
            path: match self.path {
                Layers::Nbd => Path::Nbd,
                Layers::Engine => Path::Engine,
            },
            queue_depth: self.queue_depth.into(),
            suites: compare::suites_named(names)?,
            blocks: if blocks.is_empty() { all_blocks.to_vec() } else { blocks },
            size: self.size.unwrap_or(size),
            limit_s: self.limit.unwrap_or(limit_s),
            repeats: self.repeats.map_or(repeats, usize::from),
            seed: self
                .seed
                .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
            acceleration,
        })
    }
}

/// `45 seconds`, `12 minutes`.
fn minutes(seconds: u64) -> String {
    if seconds < 120 { format!("{seconds} seconds") } else { format!("{} minutes", seconds.div_ceil(60)) }
}
