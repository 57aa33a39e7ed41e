//! What encryption takes away from reads and writes of a given block size.
//!
//! The method is that of the study of TrueCrypt by the BSI (*Untersuchung TrueCrypt, Arbeitspaket 6*, 2010): sequential
//! transfers of 500 MB in blocks of 512 bytes to 32 KiB, on a RAM disk, with and without encryption through the same
//! layers. Besides, the targets take turns in random order within each round, medians and intervals are reported, and
//! what was written is read back and compared.

pub mod kernel;
pub mod targets;

use std::time::Duration;

use claviger_engine::formats::Creator;
use claviger_engine::formats::truecrypt::TRUECRYPT;
use claviger_engine::{Acceleration, Error, ErrorKind, Result};
use serde::Serialize;

use crate::compare::kernel::Beside;
use crate::compare::targets::{Path, Target, Verified, check_room};
use crate::machine::{Machine, Moment};
use crate::random::Random;
use crate::run::GeneratorRate;
use crate::statistics::{self, Loss, Spread, median};
use crate::suites::{self, AesAcceleration};
use crate::transfer::{Data, Direction, Moved, SECTOR, Transfer};

/// The block sizes of the study, in bytes.
pub const BLOCKS: &[usize] = &[512, 1024, 2048, 4096, 8192, 16384, 32768];

/// What `--quick` measures: the ends of the study's range and the sector size of today's disks.
pub const QUICK_BLOCKS: &[usize] = &[512, 4096, 32768];

/// The largest block, in bytes: the largest request of the NBD protocol that every server takes.
const MAX_BLOCK: usize = 32 << 20;

/// Name of the target that all others are compared with.
pub const BASELINE: &str = "plain";

/// Name of the target that those in the kernel are compared with.
pub const KERNEL_BASELINE: &str = "kernel plain";

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Layers between the workload and the container.
    pub path: Path,
    /// Requests that are under way at a time.
    pub queue_depth: usize,
    /// Ciphers and cascades; the volume without encryption is always measured too.
    pub suites: Vec<&'static str>,
    /// Block sizes in bytes.
    pub blocks: Vec<usize>,
    /// Bytes of each transfer.
    pub size: u64,
    /// Seconds after which a transfer ends even if not all bytes have moved.
    pub limit_s: f64,
    /// Rounds, each of which measures everything once.
    pub repeats: usize,
    /// Where the order of the targets and the bootstrap samples come from.
    pub seed: u64,
    /// Whether ciphers may use AES instructions.
    #[serde(skip)]
    pub acceleration: Acceleration,
    /// Whether the kernel's dm-crypt is measured beside.
    pub kernel: Beside,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What these figures are, and what they are not.
    pub method: Vec<String>,
    /// What was to be measured.
    pub plan: Plan,
    /// TrueCrypt's line `Hardware-accelerated AES`.
    pub acceleration: AesAcceleration,
    /// On what.
    pub machine: Machine,
    /// Date, load and steal time before.
    pub before: Moment,
    /// Date, load and steal time after.
    pub after: Moment,
    /// Share of the processors' time that a hypervisor took meanwhile.
    pub steal_share: f64,
    /// How fast the data to write was made.
    pub data: Vec<GeneratorRate>,
    /// What was checked of each target.
    pub verified: Vec<Verified>,
    /// The order of the targets, for each round and block size.
    pub order: Vec<Order>,
    /// The results, by direction, block size and target.
    pub cells: Vec<Cell>,
    /// What was found, in whole sentences.
    pub findings: Vec<String>,
}

/// The order of the targets in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Order {
    /// From 0.
    pub round: usize,
    /// Block size in bytes.
    pub block_bytes: usize,
    /// Names, the first one measured first.
    pub targets: Vec<String>,
}

/// One target, one direction, one block size.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// `plain`, or the cipher or cascade; those in the kernel say so.
    pub target: String,
    /// `write` or `read`.
    pub direction: Direction,
    /// Block size in bytes.
    pub block_bytes: usize,
    /// Median rate.
    pub bytes_per_s: f64,
    /// Median rate without encryption.
    pub baseline_bytes_per_s: f64,
    /// What was lost against the baseline; absent for the baseline.
    pub loss: Option<Loss>,
    /// Spread of the rate.
    pub spread: Spread,
    /// Processor seconds per 10^9 bytes, median. See `cpu_of` for whose.
    pub cpu_s_per_gb: f64,
    /// Whose processor time that is.
    pub cpu_of: &'static str,
    /// Every sample, in the order of rounds.
    pub samples: Vec<Sample>,
}

/// One transfer.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// From 0.
    pub round: usize,
    /// Place of the target in the order of the round, from 0.
    pub position: usize,
    /// Bytes that moved.
    pub bytes: u64,
    /// Seconds that they took, the flush after writes included.
    pub seconds: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Processor seconds of the whole process.
    pub cpu_process_s: f64,
    /// Processor seconds of the thread that made the requests, part of the above.
    pub cpu_client_s: f64,
}

impl Plan {
    /// The paths on which everything is measured.
    fn paths(&self) -> Vec<Path> {
        match self.kernel {
            Beside::Yes => vec![self.path, Path::Kernel],
            Beside::No(_) => vec![self.path],
        }
    }

    /// Volumes, those without encryption included.
    pub fn volumes(&self) -> usize {
        (self.suites.len() + 1) * self.paths().len()
    }

    /// The time that measuring takes at most. Making and verifying the volumes comes on top.
    pub fn at_most(&self) -> Duration {
        let transfers = self.volumes() * self.blocks.len() * Direction::BOTH.len() * self.repeats;
        Duration::from_secs_f64(transfers as f64 * self.limit_s)
    }

    /// Fails where this plan makes no sense or does not fit into memory.
    ///
    /// # Errors
    /// `Misuse`, `Unsupported`, `Io`.
    pub fn check(&self) -> Result<()> {
        let sound = |block: &usize| block.is_multiple_of(SECTOR) && (SECTOR..=MAX_BLOCK).contains(block);
        let reason = match () {
            () if self.repeats == 0 => "at least one repeat is needed",
            () if self.path == Path::Kernel => "the kernel is measured beside another path",
            () if self.queue_depth == 0 => "at least one request must be under way",
            () if self.queue_depth > 1 && self.path == Path::Engine => {
                "the engine's calls return when they are done: a queue needs --path nbd"
            }
            () if self.blocks.is_empty() || !self.blocks.iter().all(sound) => {
                "blocks are multiples of 512 bytes, up to 32 MiB"
            }
            () if self.size < *self.blocks.iter().max().unwrap_or(&0) as u64 => "the size is smaller than a block",
            () if !(self.limit_s > 0.0 && self.limit_s <= 86400.0) => "the limit is between 0 and 86400 seconds",
            () => return check_room(self.volumes(), self.size),
        };
        Err(Error::misuse(reason))
    }
}

/// Makes the volumes, measures, verifies, and sums up. Tells `progress` how many of how many steps are done.
///
/// # Errors
/// Those of [`Plan::check`], those of creating the volumes, and `Io` where a volume fails or what was written is not there.
pub fn measure(plan: &Plan, progress: &dyn Fn(u64, u64)) -> Result<Report> {
    plan.check()?;
    let mut steps = Steps { done: 0, total: plan.volumes() * (2 + plan.blocks.len() * plan.repeats), progress };
    let data = Data::new(plan.seed);
    let rate = |&block: &usize| GeneratorRate { block_bytes: block as u64, bytes_per_s: data.rate(block) };
    let rates = plan.blocks.iter().map(rate).collect();
    // Whole blocks of every size, so that all of them move the same bytes.
    let size = plan.size / SECTOR as u64 * SECTOR as u64;
    let (mut targets, mut left_out) = (Vec::new(), Vec::new());
    for path in plan.paths() {
        for suite in std::iter::once(None).chain(plan.suites.iter().map(Some)) {
            let made = match suite {
                None => Target::plain(size, path, plan.queue_depth),
                Some(suite) => Target::encrypted(suite, size, plan.acceleration, path, plan.queue_depth),
            };
            steps.next();
            let mut target = match made {
                // A cipher that the kernel has not, mostly.
                Err(e) if path == Path::Kernel && suite.is_some() && is_unsupported(&e) => {
                    left_out.push(format!("{} is not measured in the kernel: {}.", suite.unwrap_or(&BASELINE), e.kind));
                    continue;
                }
                made => made?,
            };
            target.fill(&data, size)?;
            targets.push(target);
        }
    }

    let before = Moment::now();
    let mut rounds =
        Rounds { plan, size, data: &data, random: Random::new(plan.seed), order: Vec::new(), runs: Vec::new() };
    for round in 0..plan.repeats {
        rounds.run(round, &mut targets, &mut steps)?;
    }
    let Rounds { order, runs, .. } = rounds;
    let after = Moment::now();

    let mut verified = Vec::new();
    for target in &mut targets {
        verified.push(target.verify(&data)?);
        steps.next();
    }
    let cells = cells(plan, &targets, &runs);
    let machine = Machine::this();
    let measured_s: f64 = runs.iter().map(|r| r.sample.seconds).sum();
    Ok(Report {
        method: method(plan).into_iter().chain(left_out).collect(),
        plan: plan.clone(),
        acceleration: AesAcceleration::here(plan.acceleration),
        steal_share: (after.steal_s - before.steal_s) / (measured_s * machine.cpus as f64),
        machine,
        before,
        after,
        data: rates,
        verified,
        order,
        findings: crate::report::findings(&cells, plan.path),
        cells,
    })
}

/// The suites of these names, or all.
///
/// # Errors
/// `Misuse` if there is none of some name.
pub fn suites_named(names: &[String]) -> Result<Vec<&'static str>> {
    let wanted = suites::named(names)?;
    let all = TRUECRYPT.choices().ciphers.into_iter();
    Ok(all.filter(|name| wanted.iter().any(|suite| suite.name == *name)).collect())
}

fn is_unsupported(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unsupported { .. })
}

/// Whose processor time is counted on a path.
fn cpu_of(path: Path) -> &'static str {
    match path {
        Path::Nbd => "server threads (the process without the thread of the client)",
        Path::Engine => "the whole process (making the data included)",
        Path::Kernel => "the process that measures (the kernel's own threads, which encrypt, are not in it)",
    }
}

const KERNEL_PATH: &str = "Rows with \"kernel\": volumes of the same kind opened by the kernel's dm-crypt, over a loop device on a container in \
     memory; direct I/O on its block device, one request at a time; the baseline is a linear mapping over such a loop device. \
     These layers are others than those of our rows: losses can be compared, rates only as what a user of either gets.";

fn method(plan: &Plan) -> Vec<String> {
    let path = match plan.path {
        Path::Nbd if plan.queue_depth == 1 => {
            "Path: one client, one request at a time, over a Unix socket to an NBD server in the same process; the \
             server's volume; a container in memory (tmpfs). Server and client look for new messages for 100 µs before \
             they sleep, which counts as processor time."
        }
        Path::Nbd => {
            "Path: one client with several requests under way, over a Unix socket to an NBD server in the same process; the \
             server's volume; a container in memory (tmpfs). Server and client look for new messages for 100 µs before \
             they sleep, which counts as processor time."
        }
        Path::Engine => {
            "Path: calls of the engine's volume from one thread, without a transport; a container in memory (tmpfs)."
        }
        Path::Kernel => KERNEL_PATH,
    };
    let kernel = match &plan.kernel {
        Beside::Yes => KERNEL_PATH,
        Beside::No(why) => why,
    };
    [
        path,
        kernel,
        "The baseline is a volume without encryption of the same size through the same layers.",
        "Not measured: a page cache above the volume, which dd on a mounted file system has and which gathers small writes \
         into large ones; a file system; a real disk, against whose slowness encryption would cost a smaller share.",
        "Writes end with a flush inside the time. Nothing is extrapolated: a transfer that reaches its time limit counts \
         with the bytes that it moved.",
        "The loss is 1 - median / median of the baseline; the interval is a 95 % percentile bootstrap of the medians.",
    ]
    .map(str::to_string)
    .to_vec()
}

/// Counts what is done.
struct Steps<'a> {
    done: usize,
    total: usize,
    progress: &'a dyn Fn(u64, u64),
}

impl Steps<'_> {
    fn next(&mut self) {
        self.done += 1;
        (self.progress)(self.done as u64, self.total as u64);
    }
}

struct Run {
    target: String,
    direction: Direction,
    block: usize,
    sample: Sample,
}

struct Rounds<'a> {
    plan: &'a Plan,
    size: u64,
    data: &'a Data,
    random: Random,
    order: Vec<Order>,
    runs: Vec<Run>,
}

impl Rounds<'_> {
    /// Measures everything once. What is compared with each other is measured close together in time: all targets at one
    /// block size, then the next.
    fn run(&mut self, round: usize, targets: &mut [Target], steps: &mut Steps<'_>) -> Result<()> {
        for &block in &self.plan.blocks {
            let mut order: Vec<usize> = (0..targets.len()).collect();
            self.random.shuffle(&mut order);
            for (position, &index) in order.iter().enumerate() {
                let target = &mut targets[index];
                for direction in Direction::BOTH {
                    let limit = Duration::from_secs_f64(self.plan.limit_s);
                    let transfer = Transfer { direction, block, size: self.size, limit };
                    let moved = target.run(self.data, &transfer)?;
                    let sample = sample(round, position, &moved);
                    self.runs.push(Run { target: target.name.clone(), direction, block, sample });
                }
                steps.next();
            }
            let targets = order.iter().map(|&i| targets[i].name.clone()).collect();
            self.order.push(Order { round, block_bytes: block, targets });
        }
        Ok(())
    }
}

fn sample(round: usize, position: usize, moved: &Moved) -> Sample {
    let seconds = moved.took.as_secs_f64();
    Sample {
        round,
        position,
        bytes: moved.bytes,
        seconds,
        bytes_per_s: moved.bytes as f64 / seconds,
        cpu_process_s: moved.cpu.process.as_secs_f64(),
        cpu_client_s: moved.cpu.thread.as_secs_f64(),
    }
}

fn cells(plan: &Plan, targets: &[Target], runs: &[Run]) -> Vec<Cell> {
    let samples = |target: &str, direction, block| -> Vec<Sample> {
        let of_cell = |r: &&Run| r.target == target && r.direction == direction && r.block == block;
        runs.iter().filter(of_cell).map(|r| r.sample.clone()).collect()
    };
    let rates = |samples: &[Sample]| -> Vec<f64> { samples.iter().map(|s| s.bytes_per_s).collect() };
    let mut cells = Vec::new();
    for direction in Direction::BOTH {
        for &block in &plan.blocks {
            for target in targets {
                let baseline = rates(&samples(target.baseline(), direction, block));
                let samples = samples(&target.name, direction, block);
                let own = rates(&samples);
                let cpu: Vec<f64> = samples.iter().map(|s| cpu_s_per_gb(target.path, s)).collect();
                let seed = plan.seed ^ cells.len() as u64;
                cells.push(Cell {
                    target: target.name.clone(),
                    direction,
                    block_bytes: block,
                    bytes_per_s: median(&own),
                    baseline_bytes_per_s: median(&baseline),
                    loss: (target.name != target.baseline()).then(|| statistics::loss(&baseline, &own, seed)),
                    spread: Spread::of(&own),
                    cpu_s_per_gb: median(&cpu),
                    cpu_of: cpu_of(target.path),
                    samples,
                });
            }
        }
    }
    cells
}

/// Processor seconds per 10^9 bytes.
fn cpu_s_per_gb(path: Path, sample: &Sample) -> f64 {
    let seconds = match path {
        Path::Nbd => sample.cpu_process_s - sample.cpu_client_s,
        Path::Engine | Path::Kernel => sample.cpu_process_s,
    };
    seconds.max(0.0) * 1e9 / sample.bytes as f64
}
