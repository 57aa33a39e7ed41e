//! A run from beginning to end, or from where it was interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::{Error, Result};

use crate::measure::benchmark::{BenchmarkPlan, Sort};
use crate::measure::facility::{Catalogue, Scratch, tidy};
use crate::measure::lab::Lab;
use crate::measure::processes;
use crate::measure::run::bench::Real;
use crate::measure::run::journal::{Journal, JournalEntry, RunState};
use crate::measure::run::plan::PreparedRun;
use crate::measure::run::schedule::{Attempt, Bench, ScheduledPass};
use crate::measure::run::watch::idle_cpu;
use crate::measure::run::{plan, schedule};
use crate::measure::transfer::Data;
use crate::measure::workloads::Workload;
use crate::measure::{benchmark, suites};
use crate::model::ciphers::CipherSpeed;
use crate::model::figures::{GeneratorRate, Run, SCHEMA, Sitting};
use crate::model::machine::{Machine, Moment};
use crate::model::plan::{Backing, Level, Plan};

/// Blocks in bytes for which the generator of data is measured.
const GENERATED: &[usize] = &[512, 4096, 32 << 10, 1 << 20];

/// How long the idle machine is observed before anything is measured.
const IDLE: Duration = Duration::from_secs(1);

/// How long a facility that failed is left alone before it is tried again: a disk that is full for half a minute is no
/// reason to go without it.
const ALONE: Duration = Duration::from_secs(31);

/// What the lab needs besides a plan.
pub struct Hands<'a> {
    /// The program that opens our own formats.
    pub program: &'a Path,
    /// Whether the run was cancelled.
    pub cancelled: fn() -> bool,
    /// Called with what is done next.
    pub tell: &'a dyn Fn(&Tick),
}

/// What is done now.
#[derive(Clone, Debug)]
pub struct Tick<'a> {
    /// The step that begins.
    pub step: &'a ScheduledPass,
    /// Passes before it in this sitting.
    pub done: usize,
    /// Estimated seconds left, if no figure needs more than the minimum number of passes.
    pub left_s: f64,
}

/// Begins a run in a new folder: measures what is measured once, and records everything known.
///
/// # Errors
/// `Io`, also where the folder is there already; `Cancelled`, before the folder is made.
pub fn begin(prepared: &PreparedRun, folder: &Path, cancelled: fn() -> bool) -> Result<(Journal, RunState)> {
    let data = Data::new(prepared.plan.seed);
    let rate = |&block: &usize| GeneratorRate { block_bytes: block as u64, bytes_per_s: data.rate(block) };
    let run = Run {
        schema: SCHEMA,
        plan: prepared.plan.clone(),
        machine: Machine::this(),
        facilities: prepared.facility_records.clone(),
        workloads: prepared.workload_records.clone(),
        generator: GENERATED.iter().map(rate).collect(),
        sittings: Vec::new(),
        passes: Vec::new(),
        failures: Vec::new(),
        traces: Vec::new(),
        ciphers: ciphers(prepared.plan.level, cancelled)?,
        notes: Vec::new(),
    };
    let journal = Journal::begin(folder, &run)?;
    Ok((journal, RunState::new(run)))
}

/// Opens an interrupted run to resume it.
///
/// # Errors
/// Those of [`Journal::resume`] and [`PreparedRun::of`]; `Misuse` where the machine or a facility is another one now.
pub fn resume(folder: &Path, catalogue: &Catalogue, program: &Path) -> Result<(PreparedRun, Journal, RunState)> {
    let (journal, state) = Journal::resume(folder)?;
    let prepared = PreparedRun::of(state.run.plan.clone(), catalogue, program)?;
    if let Some(other) = difference(&state.run, &prepared, &Machine::this()) {
        let hint = "Figures from before and after could not be compared. Begin a new run.";
        return Err(Error::misuse(format!("this run cannot continue here: {other}")).at(folder).hint(hint));
    }
    Ok((prepared, journal, state))
}

/// Measures what is left. What was measured is in the journal and in `state`, whatever happens.
///
/// # Errors
/// `Cancelled`; `Io` where there is no room for stores or for the journal.
pub fn measure(prepared: &PreparedRun, journal: &mut Journal, state: &mut RunState, hands: &Hands<'_>) -> Result<()> {
    processes::adopt_orphans();
    let sitting = Sitting { before: Moment::now(), after: None, idle_cpu: idle_cpu(IDLE) };
    note(journal, state, JournalEntry::Sitting(sitting))?;
    {
        let places = RunFolders::new(&prepared.plan)?;
        let lab = |(medium, stores): (usize, &Scratch)| Lab {
            plan: prepared.plan.at_medium(medium),
            program: hands.program.to_owned(),
            stores: stores.path().to_owned(),
            scratch: places.scratch.path().to_owned(),
            data: Data::new(prepared.plan.seed),
            cancelled: hands.cancelled,
        };
        let labs: Vec<Lab> = places.stores.iter().enumerate().map(lab).collect();
        let real = Real::new(&labs, &prepared.facilities, &prepared.workloads, prepared.stores_at_once);
        let &Hands { tell, cancelled, .. } = hands;
        let (took, failed) = (BTreeMap::new(), BTreeMap::new());
        let mut bench = ReportingBench { real, prepared, tell, done: 0, took, failed, cancelled };
        schedule::carry_out(state, &mut bench, cancelled, &mut |_, entry| journal.add(entry))?;
    }
    note(journal, state, JournalEntry::End(Moment::now()))
}

fn note(journal: &mut Journal, state: &mut RunState, entry: JournalEntry) -> Result<()> {
    journal.add(&entry)?;
    state.add(entry);
    Ok(())
}

/// What has changed since the run began, in words.
fn difference(run: &Run, prepared: &PreparedRun, here: &Machine) -> Option<String> {
    let there = &run.machine;
    let facts = [
        ("the processor", &there.cpu_model, &here.cpu_model),
        ("the kernel", &there.kernel, &here.kernel),
        ("the version of this program", &there.program_version, &here.program_version),
    ];
    let changed = facts.iter().find(|(_, before, now)| before != now);
    let changed = changed.map(|(what, before, now)| format!("{what} was {before} and is now {now}"));
    let processors =
        || (there.cpus != here.cpus).then(|| format!("there were {} processors and are now {}", there.cpus, here.cpus));
    let facility = || {
        let mut pairs = run.facilities.iter().zip(&prepared.facility_records);
        let (before, _) = pairs.find(|(before, now)| {
            (&before.version, &before.commands, &before.left_out) != (&now.version, &now.commands, &now.left_out)
        })?;
        Some(format!("the facility {} has a different version or different commands", before.name))
    };
    let workload = || {
        let mut pairs = run.workloads.iter().zip(&prepared.workload_records);
        let (before, _) =
            pairs.find(|(before, now)| (&before.version, &before.left_out) != (&now.version, &now.left_out))?;
        Some(format!("the workload {} has a different version or is no longer possible", before.name))
    };
    changed.or_else(processors).or_else(facility).or_else(workload)
}

/// How fast the ciphers are in memory, as `claviger benchmark` measures it.
fn ciphers(level: Level, cancelled: fn() -> bool) -> Result<Vec<CipherSpeed>> {
    let buffers: [&[usize]; 3] = [&[100 << 10, 1 << 20], &[100 << 10, 1 << 20, 5 << 20], &benchmark::BUFFERS[..7]];
    let plan = BenchmarkPlan::new(suites::all(), level.choose(buffers));
    let mut rows = benchmark::measure_unless(&plan, &cancelled, &|_, _| {})?;
    benchmark::sort(&mut rows, Sort::Mean);
    Ok(rows)
}

/// Folders that go with the run.
struct RunFolders {
    /// One for each medium.
    stores: Vec<Scratch>,
    scratch: Scratch,
}

impl RunFolders {
    fn new(plan: &Plan) -> Result<Self> {
        let stores = plan.media().map(|medium| Scratch::below(&place(medium))).collect::<Result<_>>()?;
        Ok(Self { stores, scratch: Scratch::below(&scratch(plan))? })
    }
}

/// Removes what killed labs have left where this run will work. Returns a sentence for each.
pub fn tidy_up(plan: &Plan) -> Vec<String> {
    let places: BTreeSet<PathBuf> = plan.media().map(place).chain([scratch(plan)]).collect();
    places.iter().flat_map(|place| tidy(place)).collect()
}

/// The folder for stores. With a device, the folder only holds mount points.
fn place(medium: &Backing) -> PathBuf {
    match medium {
        Backing::Tmpfs(folder) | Backing::Folder(folder) => folder.clone(),
        Backing::Device(_) => std::env::temp_dir(),
    }
}

/// Where sources of data lie: in memory where there is some, so that reading them does not disturb a disk that is
/// measured.
fn scratch(plan: &Plan) -> PathBuf {
    let memory = Path::new(plan::MEMORY);
    match &plan.backing {
        Backing::Tmpfs(folder) => folder.clone(),
        Backing::Folder(_) | Backing::Device(_) if memory.is_dir() => memory.to_owned(),
        Backing::Folder(_) | Backing::Device(_) => std::env::temp_dir(),
    }
}

/// Waits this long, or until the run is cancelled.
fn wait(time: Duration, cancelled: fn() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end && !cancelled() {
        thread::sleep(Duration::from_millis(50));
    }
}

/// Reports each step before it is done.
struct ReportingBench<'a> {
    real: Real<'a>,
    prepared: &'a PreparedRun,
    tell: &'a dyn Fn(&Tick),
    /// Passes so far.
    done: usize,
    /// How often a workload was done, and the seconds that took.
    took: BTreeMap<&'static str, (usize, f64)>,
    /// When each facility failed, for those that have not worked since.
    failed: BTreeMap<String, Instant>,
    cancelled: fn() -> bool,
}

impl ReportingBench<'_> {
    /// Seconds that are left from this step on.
    fn left_s(&self, step: &ScheduledPass) -> f64 {
        let PreparedRun { plan, workloads, .. } = self.prepared;
        let here = workloads.iter().position(|w| w.name == step.workload).unwrap_or(0);
        let left = |(place, workload): (usize, &&'static Workload)| {
            let (times, seconds) = self.took.get(workload.name).copied().unwrap_or_default();
            let rounds = match (place == here, step.round) {
                (true, Some(round)) => plan.min_repeats.saturating_sub(round),
                _ => plan.min_repeats + 1,
            };
            let facilities = self.prepared.facilities_of(workload.name).count();
            let passes = (rounds * facilities).saturating_sub(if place == here { step.position } else { 0 });
            let pass_s = if times == 0 { (workload.estimate_s)(plan) } else { seconds / times as f64 };
            passes as f64 * pass_s
        };
        workloads.iter().enumerate().skip(here).map(left).sum()
    }
}

impl Bench for ReportingBench<'_> {
    fn pass(&mut self, step: &ScheduledPass) -> Attempt {
        let pause = self.failed.get(&step.facility).map(|failed| ALONE.saturating_sub(failed.elapsed()));
        wait(pause.unwrap_or_default(), self.cancelled);
        (self.tell)(&Tick { step, done: self.done, left_s: self.left_s(step) });
        let start = Instant::now();
        let attempt = self.real.pass(step);
        self.done += 1;
        match &attempt {
            Err(_) => drop(self.failed.insert(step.facility.clone(), Instant::now())),
            Ok(_) => drop(self.failed.remove(&step.facility)),
        }
        if let Some(workload) = self.prepared.workloads.iter().find(|w| w.name == step.workload) {
            let (times, seconds) = self.took.entry(workload.name).or_default();
            *times += 1;
            *seconds += start.elapsed().as_secs_f64();
        }
        attempt
    }
}
