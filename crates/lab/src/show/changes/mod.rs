//! Compares two runs, cell by cell: what became faster or slower.
//!
//! Speeds are compared if both runs used the same machine and plan; otherwise only each facility's loss against its own
//! baseline is, because that is what two machines have in common. Each cell is judged by Welch's test on the logarithms
//! of its samples, so that a change is a factor, and all of them together by their rate of false discoveries: hundreds
//! of cells at 5 % each would give dozens of changes by chance. A change below a limit is not reported, however
//! certain: two runs of the same thing differ slightly more than each of them shows (where files are, which memory is
//! used), and no statistics of one run can reveal that.

mod contrast;

use serde::Serialize;

use crate::model::case::{Case, Unit};
use crate::model::figures::Run;
use crate::model::machine::Machine;
use crate::model::plan::{Backing, Plan};
use crate::model::statistics::{ENOUGH, LossVerdict, median};
use crate::model::words::word;
use crate::show::summary::{Cell, Summary};
use contrast::{contrast, false_discovery_rates};

/// The rate of false changes among those reported.
pub const FALSE_CHANGES: f64 = 0.05;

/// The smallest change that is reported by default: the precision to which figures are repeated.
pub const LEAST: f64 = 0.03;

/// What changed from one run to another.
#[derive(Clone, Debug, Serialize)]
pub struct RunChanges {
    /// What was compared.
    pub basis: Basis,
    /// Why only losses were compared, in whole sentences; empty if speeds were.
    pub because: Vec<String>,
    /// What else differs between the runs.
    pub differences: Vec<RunDifference>,
    /// The smallest change that counts: 0.03 is 3 %.
    pub least: f64,
    /// The cells both runs have: first those that changed, then the others, the largest change first.
    pub cells: Vec<FigureChange>,
    /// Cells that only the old run has.
    pub only_old: Vec<CellName>,
    /// Cells that only the new run has.
    pub only_new: Vec<CellName>,
    /// Cells that both have but that cannot be compared, and why.
    pub not_compared: Vec<(CellName, String)>,
}

/// What can be compared between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Speeds, times and costs: the same machine, the same plan.
    Speeds,
    /// What is left of the baseline's performance.
    Losses,
}

/// A difference between the runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunDifference {
    /// What it is.
    pub what: String,
    /// In the old run.
    pub old: String,
    /// In the new run.
    pub new: String,
}

/// Which cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellName {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload.
    pub workload: String,
    /// Of what.
    pub case: Case,
}

/// One cell in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct FigureChange {
    /// Which.
    #[serde(flatten)]
    pub place: CellName,
    /// What `old` and `new` are counted in, if speeds are compared.
    pub unit: Unit,
    /// The median, or the loss.
    pub old: f64,
    /// The median, or the loss.
    pub new: f64,
    /// How much more performance there is now: -0.1 is 10 % less. If losses are compared, it applies to the share of
    /// the baseline's performance that is left. It is the change of the geometric mean.
    pub change: f64,
    /// Lower end of its 95 % interval, which is not corrected for the number of cells.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The false discovery rate at which this change would be reported.
    pub false_discovery_rate: f64,
    /// The verdict, after the correction and the limit.
    pub verdict: LossVerdict,
}

impl RunChanges {
    /// What changed by at least `least` (0.03 is 3 %).
    pub fn between(old: &Run, new: &Run, least: f64) -> Self {
        let because = why_not_speeds(old, new);
        let basis = if because.is_empty() { Basis::Speeds } else { Basis::Losses };
        let (before, after) = (Summary::of(old), Summary::of(new));
        let (only_old, only_new, differences) =
            (missing(&before, &after), missing(&after, &before), differences(old, new));
        let (cells, not_compared) = (Vec::new(), Vec::new());
        let mut changes = Self { basis, because, differences, least, cells, only_old, only_new, not_compared };
        for cell in &before.cells {
            let Some(now) = find(&after, cell) else { continue };
            match compared(basis, (&before, cell), (&after, now)) {
                Ok(Some(change)) => changes.cells.push(change),
                Ok(None) => {}
                Err(why) => changes.not_compared.push((CellName::of(cell), why)),
            }
        }
        changes.judge();
        changes
    }

    /// The numbers of cells that became slower, and faster.
    pub fn counts(&self) -> (usize, usize) {
        let count = |verdict| self.cells.iter().filter(|c| c.verdict == verdict).count();
        (count(LossVerdict::Slower), count(LossVerdict::Faster))
    }

    /// The cells that became slower by this share or more.
    pub fn slower_by(&self, share: f64) -> impl Iterator<Item = &FigureChange> {
        self.cells.iter().filter(move |c| c.verdict == LossVerdict::Slower && c.change <= -share)
    }

    /// Judges all cells together, from the probability of each single one. Also sorts them.
    fn judge(&mut self) {
        let rates = false_discovery_rates(&self.cells.iter().map(|c| c.false_discovery_rate).collect::<Vec<_>>());
        for (cell, rate) in self.cells.iter_mut().zip(rates) {
            cell.false_discovery_rate = rate;
            cell.verdict = match () {
                () if rate > FALSE_CHANGES || cell.change.abs() < self.least => LossVerdict::Same,
                () if cell.change < 0.0 => LossVerdict::Slower,
                () => LossVerdict::Faster,
            };
        }
        let size = |c: &FigureChange| (c.verdict == LossVerdict::Same, -c.change.ln_1p().abs());
        self.cells.sort_by(|a, b| size(a).0.cmp(&size(b).0).then(size(a).1.total_cmp(&size(b).1)));
    }
}

impl CellName {
    pub(crate) fn of(cell: &Cell) -> Self {
        Self { facility: cell.facility.clone(), workload: cell.workload.clone(), case: cell.case.clone() }
    }
}

fn find<'a>(summary: &'a Summary, like: &Cell) -> Option<&'a Cell> {
    summary.cell(&like.facility, &like.workload, &like.case).filter(|cell| cell.unit == like.unit)
}

fn missing(here: &Summary, there: &Summary) -> Vec<CellName> {
    here.cells.iter().filter(|cell| find(there, cell).is_none()).map(CellName::of).collect()
}

/// A change before all are judged: `false_discovery_rate` is still the probability of this one alone. `None` if losses
/// are compared and the cell has none: a baseline, or a cost.
///
/// # Errors
/// Why it cannot be compared.
fn compared(basis: Basis, old: (&Summary, &Cell), new: (&Summary, &Cell)) -> Result<Option<FigureChange>, String> {
    let groups = match basis {
        Basis::Speeds => vec![(1.0, logs(new.1)?), (-1.0, logs(old.1)?)],
        Basis::Losses => {
            let (Some(now), Some(before)) = (baseline(new), baseline(old)) else { return Ok(None) };
            vec![(1.0, logs(new.1)?), (-1.0, logs(now)?), (-1.0, logs(old.1)?), (1.0, logs(before)?)]
        }
    };
    let unit = old.1.unit;
    let sign = if unit.more_is_better() { 1.0 } else { -1.0 };
    let groups: Vec<_> = groups.into_iter().map(|(weight, logs)| (weight * sign, logs)).collect();
    let contrast = contrast(&groups);
    let value = |(_, cell): (&Summary, &Cell)| match (basis, &cell.loss) {
        (Basis::Losses, Some(loss)) => loss.loss,
        _ => median(&cell.samples),
    };
    Ok(Some(FigureChange {
        place: CellName::of(old.1),
        unit,
        old: value(old),
        new: value(new),
        change: contrast.estimate.exp_m1(),
        low: contrast.low.exp_m1(),
        high: contrast.high.exp_m1(),
        false_discovery_rate: contrast.p,
        verdict: LossVerdict::Same,
    }))
}

/// The cell of the baseline, for a cell that has a loss.
fn baseline<'a>((summary, cell): (&'a Summary, &Cell)) -> Option<&'a Cell> {
    cell.loss.as_ref()?;
    summary.cell(cell.baseline.as_deref()?, &cell.workload, &cell.case)
}

fn logs(cell: &Cell) -> Result<Vec<f64>, String> {
    if cell.samples.len() < ENOUGH {
        return Err(format!("{} has {} samples, but {ENOUGH} are required", cell.facility, cell.samples.len()));
    }
    if cell.samples.iter().any(|&sample| sample <= 0.0 || !sample.is_finite()) {
        return Err(format!("a sample of {} is 0, so it has no ratio to another", cell.facility));
    }
    Ok(cell.samples.iter().map(|sample| sample.ln()).collect())
}

/// Why speeds cannot be compared, in whole sentences.
fn why_not_speeds(old: &Run, new: &Run) -> Vec<String> {
    let mut because = Vec::new();
    if !same_machine(&old.machine, &new.machine) {
        because.push("The runs were made on different machines.".into());
    }
    let (a, b) = (&old.plan, &new.plan);
    if !same_work(a, b) {
        because.push("The plans differ in how much is measured, where, or in what is done with the page cache.".into());
    }
    because
}

fn same_machine(a: &Machine, b: &Machine) -> bool {
    let memory = a.memory_bytes as f64 / b.memory_bytes as f64;
    // What the kernel keeps for itself differs from version to version.
    a.cpu_model == b.cpu_model && a.cpus == b.cpus && (memory - 1.0).abs() < 0.05
}

fn same_work(a: &Plan, b: &Plan) -> bool {
    let kind = |backing: &Backing| match backing {
        Backing::Tmpfs(_) => 0,
        Backing::Folder(_) => 1,
        Backing::Device(_) => 2,
    };
    a.level == b.level
        && a.scale == b.scale
        && a.size == b.size
        && a.caches == b.caches
        && a.media().map(kind).eq(b.media().map(kind))
}

/// Everything about machine, plan and versions that is not the same.
fn differences(old: &Run, new: &Run) -> Vec<RunDifference> {
    let mut all = machines(&old.machine, &new.machine);
    all.extend(plans(&old.plan, &new.plan));
    for facility in &old.facilities {
        let Some(now) = new.facilities.iter().find(|f| f.name == facility.name) else { continue };
        all.push(of(format!("version of {}", facility.name), version(&facility.version), version(&now.version)));
        all.push(of(format!("commands of {}", facility.name), facility.commands.join("; "), now.commands.join("; ")));
    }
    for workload in &old.workloads {
        let Some(now) = new.workloads.iter().find(|w| w.name == workload.name) else { continue };
        all.push(of(format!("version of {}", workload.name), version(&workload.version), version(&now.version)));
    }
    all.into_iter().filter(|difference| difference.old != difference.new).collect()
}

fn of(what: impl Into<String>, old: impl ToString, new: impl ToString) -> RunDifference {
    RunDifference { what: what.into(), old: old.to_string(), new: new.to_string() }
}

fn version(version: &Option<String>) -> String {
    version.clone().unwrap_or_else(|| "not known".into())
}

fn machines(old: &Machine, new: &Machine) -> Vec<RunDifference> {
    vec![
        of("processor", &old.cpu_model, &new.cpu_model),
        of("processors", old.cpus, new.cpus),
        of("processor features", old.cpu_features.join(" "), new.cpu_features.join(" ")),
        of("memory, bytes", old.memory_bytes, new.memory_bytes),
        of("kernel", &old.kernel, &new.kernel),
        of("governor", &old.governor, &new.governor),
        of("huge pages", &old.huge_pages, &new.huge_pages),
        of("claviger", &old.program_version, &new.program_version),
    ]
}

fn plans(old: &Plan, new: &Plan) -> Vec<RunDifference> {
    let repeats = |plan: &Plan| format!("{} to {}", plan.min_repeats, plan.max_repeats);
    vec![
        of("level", word(&old.level), word(&new.level)),
        of("scale", old.scale, new.scale),
        of("size of a volume, bytes", old.size, new.size),
        of("backing", media(old), media(new)),
        of("page cache", word(&old.caches), word(&new.caches)),
        of("repeats", repeats(old), repeats(new)),
    ]
}

/// All of its media, as JSON has them.
fn media(plan: &Plan) -> String {
    plan.media().map(word).collect::<Vec<_>>().join(", ")
}
