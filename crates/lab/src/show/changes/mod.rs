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

use crate::model::figures::{Case, Run, Unit};
use crate::model::machine::Machine;
use crate::model::plan::{Backing, Plan};
use crate::model::statistics::{ENOUGH, LossVerdict, median};
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
    /// How much more performance there is now: -0.1 is 10 % less. Of losses, it is the performance that is left beside
    /// the baseline that is compared. It is the change of the geometric mean.
    pub change: f64,
    /// Lower end of its 95 % interval, which is not corrected for the number of cells.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The false discovery rate at which this change would be reported.
    pub false_discovery_rate: f64,
    /// What it comes to, with the correction and the limit.
    pub verdict: LossVerdict,
}

impl RunChanges {
    /// What changed by at least `least` (0.03 is 3 %).
    pub fn between(old: &Run, new: &Run, least: f64) -> Self {
        let because = why_not_speeds(old, new);
        let basis = if because.is_empty() { Basis::Speeds } else { Basis::Losses };
        let (before, after) = (Summary::of(old), Summary::of(new));
        let mut changes = Self {
            basis,
            because,
            differences: differences(old, new),
            least,
            cells: Vec::new(),
            only_old: missing(&before, &after),
            only_new: missing(&after, &before),
            not_compared: Vec::new(),
        };
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

    /// Those that became slower, and faster.
    pub fn counts(&self) -> (usize, usize) {
        let count = |verdict| self.cells.iter().filter(|c| c.verdict == verdict).count();
        (count(LossVerdict::Slower), count(LossVerdict::Faster))
    }

    /// Those that became slower by this share or more.
    pub fn slower_by(&self, share: f64) -> impl Iterator<Item = &FigureChange> {
        self.cells.iter().filter(move |c| c.verdict == LossVerdict::Slower && c.change <= -share)
    }

    /// Of a single cell it is known how likely it differs by chance: all together decide. Sorts as well.
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
    fn of(cell: &Cell) -> Self {
        Self { facility: cell.facility.clone(), workload: cell.workload.clone(), case: cell.case.clone() }
    }
}

fn find<'a>(summary: &'a Summary, like: &Cell) -> Option<&'a Cell> {
    summary.cell(&like.facility, &like.workload, &like.case).filter(|cell| cell.unit == like.unit)
}

fn missing(here: &Summary, there: &Summary) -> Vec<CellName> {
    here.cells.iter().filter(|cell| find(there, cell).is_none()).map(CellName::of).collect()
}

/// A change before all are judged: `false_discovery_rate` is still the probability of this one alone. Nothing for a
/// cell that has no loss, where losses are compared: a baseline, or a cost.
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
        return Err(format!("a sample of {} is 0, which has no ratio to another", cell.facility));
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
        of("huge pages", &old.huge_pages, &new.huge_pages),
        of("claviger", &old.program_version, &new.program_version),
    ]
}

fn plans(old: &Plan, new: &Plan) -> Vec<RunDifference> {
    vec![
        of("level", words(&old.level), words(&new.level)),
        of("scale", old.scale, new.scale),
        of("size of a volume, bytes", old.size, new.size),
        of("backing", media(old), media(new)),
        of("page cache", words(&old.caches), words(&new.caches)),
        of(
            "repeats",
            format!("{} to {}", old.min_repeats, old.max_repeats),
            format!("{} to {}", new.min_repeats, new.max_repeats),
        ),
    ]
}

/// All of its media, as JSON has them.
fn media(plan: &Plan) -> String {
    plan.media().map(words).collect::<Vec<_>>().join(", ")
}

/// As JSON has it: `"quick"`, `{"kind":"folder","path":"/x"}`.
fn words(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(e) => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::figures::RunPlan;
    use crate::model::figures::{Axis, FacilityRecord, Measure, Pass, SCHEMA, Sitting};
    use crate::model::machine::{Conditions, Moment};
    use crate::model::plan::{Caches, Level};
    use crate::model::random::Random;

    const FACILITIES: [&str; 3] = ["plain", "LUKS2", "VeraCrypt"];
    const CASES: usize = 24;
    const ROUNDS: usize = 5;

    /// What a run would find on a machine of this speed: each facility's share of it, 2 % of noise, and in one of 20
    /// passes something else takes up to a third of the time.
    fn simulated(seed: u64, speed: f64, shares: [f64; 3]) -> Run {
        let mut random = Random::new(seed);
        let mut pass = |round: usize, facility: usize| {
            let stall = if random.below(20) == 0 { 1.0 - random.below(33) as f64 / 100.0 } else { 1.0 };
            let mut measure = |case: usize| {
                let noise: f64 = (0..12).map(|_| random.below(1_000_000) as f64 / 1e6).sum::<f64>() - 6.0;
                let rate = speed * (case + 1) as f64 * shares[facility] * (1.0 + 0.02 * noise) * stall;
                let (value, unit) = match case % 3 {
                    0 => (1e9 / rate, Unit::Seconds),
                    _ => (rate, Unit::BytesPerS),
                };
                let case = Case::new("write").at(Axis::Block, (512 << (case % 12)) as f64).of(format!("{}", case / 12));
                Measure { case, value, unit, bytes: 1 << 20, seconds: 1.0, cpu_s: None }
            };
            Pass {
                facility: FACILITIES[facility].into(),
                workload: "dd".into(),
                round: Some(round),
                position: facility,
                at: "2026-01-01T00:00:00Z".into(),
                conditions: Conditions::default(),
                measures: (0..CASES).map(&mut measure).collect(),
            }
        };
        let mut passes = Vec::new();
        for round in 0..ROUNDS {
            passes.extend((0..FACILITIES.len()).map(|facility| pass(round, facility)));
        }
        let record = |name: &str| FacilityRecord {
            name: name.into(),
            title: name.into(),
            baseline: (name != "plain").then(|| "plain".into()),
            about: String::new(),
            version: Some("1".into()),
            commands: Vec::new(),
            left_out: None,
        };
        let plan = Plan {
            level: Level::Quick,
            scale: 1.0,
            backing: Backing::Tmpfs("/dev/shm".into()),
            more: Vec::new(),
            size: 1 << 26,
            facilities: FACILITIES.map(String::from).to_vec(),
            workloads: vec!["dd".into()],
            min_repeats: ROUNDS,
            max_repeats: ROUNDS,
            steady: 0.03,
            seed,
            caches: Caches::Dropped,
            repeated: None,
        };
        Run {
            schema: SCHEMA,
            plan: RunPlan::new(plan, None),
            machine: Machine::this(),
            facilities: FACILITIES.map(record).to_vec(),
            workloads: Vec::new(),
            generator: Vec::new(),
            ciphers: Vec::new(),
            sittings: vec![Sitting { before: Moment::now(), after: None, idle_cpu: 0.0 }],
            passes,
            failures: Vec::new(),
            traces: Vec::new(),
            notes: Vec::new(),
        }
    }

    const SHARES: [f64; 3] = [1.0, 0.8, 0.5];

    #[test]
    fn two_runs_of_the_same_thing_show_next_to_nothing() {
        const TRIALS: u64 = 30;
        let alarms: Vec<usize> = (0..TRIALS)
            .map(|seed| {
                let changes =
                    RunChanges::between(&simulated(2 * seed, 1e9, SHARES), &simulated(2 * seed + 1, 1e9, SHARES), 0.0);
                assert_eq!((changes.basis, changes.cells.len()), (Basis::Speeds, CASES * FACILITIES.len()));
                let (slower, faster) = changes.counts();
                slower + faster
            })
            .collect();
        // Even without a limit: with a rate of 5 %, one comparison in 20 may show anything at all.
        let with_any = alarms.iter().filter(|&&n| n > 0).count();
        println!("false alarms by trial: {alarms:?}");
        assert!(with_any <= 4, "{with_any} of {TRIALS} comparisons show a change: {alarms:?}");
    }

    #[test]
    fn a_slowdown_of_ten_per_cent_is_found_where_it_is() {
        const TRIALS: u64 = 10;
        let (mut found, mut elsewhere) = (0, 0);
        for seed in 0..TRIALS {
            let old = simulated(1000 + seed, 1e9, SHARES);
            let new = simulated(2000 + seed, 1e9, [SHARES[0], SHARES[1] * 0.9, SHARES[2]]);
            let changes = RunChanges::between(&old, &new, LEAST);
            let slower = changes.slower_by(0.0);
            found += slower.filter(|c| c.place.facility == "LUKS2" && (c.change + 0.1).abs() < 0.08).count();
            elsewhere +=
                changes.cells.iter().filter(|c| c.verdict != LossVerdict::Same && c.place.facility != "LUKS2").count();
        }
        let share = found as f64 / (TRIALS as usize * CASES) as f64;
        println!("found {share}, elsewhere {elsewhere}");
        assert!(share > 0.7, "10 % is found in {share} of the cells");
        assert!(elsewhere as f64 <= 0.1 * found as f64, "{elsewhere} changes where there are none, beside {found}");
    }

    #[test]
    fn on_another_machine_only_losses_are_compared() {
        let old = simulated(1, 1e9, SHARES);
        let mut new = simulated(2, 3e9, [SHARES[0], SHARES[1], SHARES[2] * 0.8]);
        new.machine.cpu_model = "another".into();
        let changes = RunChanges::between(&old, &new, LEAST);
        assert_eq!(changes.basis, Basis::Losses);
        assert!(changes.because[0].contains("different machines"), "{:?}", changes.because);
        assert_eq!(changes.cells.len(), 2 * CASES, "a baseline has no loss");
        assert!(changes.differences.iter().any(|d| d.what == "processor" && d.new == "another"));
        // Three times as fast, and yet: LUKS2 loses as before, VeraCrypt more.
        let slower: Vec<&FigureChange> = changes.slower_by(0.1).collect();
        assert!(slower.len() > CASES / 2 && slower.iter().all(|c| c.place.facility == "VeraCrypt"), "{slower:?}");
        assert!((slower[0].old - 0.5).abs() < 0.1 && (slower[0].new - 0.6).abs() < 0.1, "{:?}", slower[0]);
    }

    #[test]
    fn another_plan_is_not_the_same_work() {
        let old = simulated(1, 1e9, SHARES);
        let mut new = simulated(2, 1e9, SHARES);
        new.plan.scale = 0.1;
        new.facilities[1].version = Some("2".into());
        let changes = RunChanges::between(&old, &new, LEAST);
        assert_eq!(changes.basis, Basis::Losses);
        let what: Vec<&str> = changes.differences.iter().map(|d| d.what.as_str()).collect();
        assert_eq!(what, ["scale", "version of LUKS2"]);
        new.plan.scale = 1.0;
        assert_eq!(RunChanges::between(&old, &new, LEAST).basis, Basis::Speeds);
    }

    #[test]
    fn what_is_missing_or_too_little_is_said() {
        let old = simulated(1, 1e9, SHARES);
        let mut new = simulated(1, 1e9, SHARES);
        for pass in new.passes.iter_mut().filter(|p| p.facility == "LUKS2") {
            pass.measures.retain(|m| m.case.x != Some(512.0));
        }
        new.passes.retain(|p| p.facility != "VeraCrypt" || p.round != Some(0));
        let zero = new.passes.iter_mut().find(|p| p.facility == "plain").expect("a pass");
        zero.measures[0].value = 0.0;
        let changes = RunChanges::between(&old, &new, LEAST);
        assert_eq!((changes.only_old.len(), changes.only_new.len()), (2, 0));
        assert!(changes.only_old.iter().all(|p| p.facility == "LUKS2" && p.case.x == Some(512.0)));
        let too_few =
            changes.not_compared.iter().filter(|(p, why)| p.facility == "VeraCrypt" && why.contains("4 samples"));
        assert_eq!(too_few.count(), CASES);
        assert!(changes.not_compared.iter().any(|(p, why)| p.facility == "plain" && why.contains("is 0")));
        // Of the rest, nothing changed at all.
        assert!(changes.cells.iter().all(|c| c.change == 0.0 && c.verdict == LossVerdict::Same));
    }
}
