//! A run of the lab: what was planned, the machine, and every raw figure.
//!
//! Nothing here is computed from anything else here: medians, intervals and verdicts belong to a summary, which is made
//! from a run when needed, so that a stored run can be evaluated again.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use crate::model::case::{Case, Unit};
use crate::model::ciphers::CipherSpeed;
use crate::model::machine::{Conditions, Machine, Moment, OTHERS_MAX, OtherLoad};
use crate::model::plan::Plan;
use crate::model::study::Study;
use crate::model::words::percent;

/// The format version of a stored run. A run of another version is refused.
pub const SCHEMA: u32 = 1;

/// A run, stored as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was planned.
    pub plan: RunPlan,
    /// On what.
    pub machine: Machine,
    /// The facilities, including those left out.
    pub facilities: Vec<FacilityRecord>,
    /// The workloads, including those left out.
    pub workloads: Vec<WorkloadRecord>,
    /// How fast the data to write was generated: no write can be faster.
    pub generator: Vec<GeneratorRate>,
    /// The sittings in which it was measured: more than one if it was interrupted and resumed.
    pub sittings: Vec<Sitting>,
    /// Every pass in order, including warm-ups.
    pub passes: Vec<Pass>,
    /// What failed. It did not stop the rest.
    pub failures: Vec<RunFailure>,
    /// Requests over time.
    pub traces: Vec<Trace>,
    /// How fast the ciphers are in memory, without any storage; empty if not requested.
    #[serde(default)]
    pub ciphers: Vec<CipherSpeed>,
    /// Other notes for the reader, in whole sentences.
    pub notes: Vec<String>,
}

/// What other programs did during the passes of a run that count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// What readers must know first, in whole sentences; `None` for an undisturbed run.
    pub message: Option<String>,
    /// Whether it may have changed figures. Documents do not show such a run.
    pub unfit: bool,
    /// Passes that count.
    pub passes: usize,
    /// The passes during which other programs were watched: none in a run of an older version.
    pub watched: usize,
    /// The passes that stayed disturbed after all repeats.
    pub disturbed: usize,
    /// Passes that do not count because they were disturbed, and were repeated.
    pub again: usize,
    /// Processors that other programs used on average; 1 is one of them.
    pub mean: f64,
    /// The same in the worst pass.
    pub worst: f64,
}

/// The share of a figure's passes that may be disturbed: its median is still an undisturbed one.
pub(crate) const FEW: f64 = 0.2;

impl Run {
    /// What other programs did.
    pub fn disturbance(&self) -> Disturbance {
        let passes: Vec<&Pass> = self.passes.iter().filter(|p| p.round.is_some()).collect();
        let loads: Vec<OtherLoad> = passes.iter().filter_map(|p| p.conditions.others).collect();
        let sum = |of: fn(&OtherLoad) -> f64| loads.iter().map(of).sum::<f64>();
        let all = OtherLoad { seconds: sum(|l| l.seconds), cpu_s: sum(|l| l.cpu_s), ..OtherLoad::default() };
        let mut found = Disturbance {
            message: None,
            unfit: all.disturbs() || self.most_disturbed() > FEW,
            passes: passes.len(),
            watched: loads.len(),
            disturbed: loads.iter().filter(|l| l.disturbs()).count(),
            again: loads.iter().map(|l| l.again).sum(),
            mean: all.processors(),
            worst: loads.iter().map(OtherLoad::processors).fold(0.0, f64::max),
        };
        found.message = (found.disturbed > 0 || all.disturbs()).then(|| {
            let advice = match found.unfit {
                true => "Measure again while nothing else runs.",
                false => "At most a fifth of any figure's passes were disturbed, which a median tolerates.",
            };
            format!(
                "The machine was busy with other programs in {} of {} passes. They used {} % of one processor on average and {} % \
                 in the worst pass; up to {} % counts as undisturbed. {advice}",
                found.disturbed,
                found.passes,
                percent(found.mean),
                percent(found.worst),
                percent(OTHERS_MAX)
            )
        });
        found
    }

    /// The share of disturbed passes of the facility and workload that have the largest.
    fn most_disturbed(&self) -> f64 {
        let mut passes: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
        for pass in self.passes.iter().filter(|pass| pass.round.is_some()) {
            let (all, disturbed) = passes.entry((&pass.facility, &pass.workload)).or_default();
            *all += 1;
            *disturbed += usize::from(pass.conditions.others.is_some_and(|others| others.disturbs()));
        }
        passes.values().map(|(all, disturbed)| *disturbed as f64 / *all as f64).fold(0.0, f64::max)
    }

    /// Requested facilities and workloads that failed and have fewer passes than planned.
    pub fn missing(&self) -> Vec<(&str, &str)> {
        let failed = |facility: &str, workload: &str| {
            let of = |f: &&RunFailure| f.facility == facility && f.workload.as_deref().is_none_or(|w| w == workload);
            self.failures.iter().any(|f| of(&f))
        };
        let measured = |facility: &str, workload: &str| {
            let of = |p: &&Pass| p.round.is_some() && p.facility == facility && p.workload == workload;
            self.passes.iter().filter(of).count() >= self.plan.min_repeats
        };
        let workloads = self.workloads.iter().filter(|w| w.left_out.is_none());
        let pairs = workloads.flat_map(|w| self.facilities.iter().map(move |f| (f.name.as_str(), w.name.as_str())));
        let asked = pairs.filter(|(facility, workload)| self.plan.does(workload, facility));
        asked.filter(|(facility, workload)| failed(facility, workload) && !measured(facility, workload)).collect()
    }

    /// Why this run is not shown in documents; `None` if other programs changed no figure.
    pub fn unfit_for_documents(&self) -> Option<String> {
        let Disturbance { message, unfit, passes, watched, .. } = self.disturbance();
        let unknown = || format!("Other programs were watched in only {watched} of {passes} passes. Measure again.");
        message.filter(|_| unfit).or_else(|| (passes == 0 || watched < passes).then(unknown))
    }
}

/// The plan of a run, and the study that it repeats: whole, so that a report of a stored run needs no file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "StoredPlan")]
pub struct RunPlan {
    #[serde(flatten)]
    plan: Plan,
    #[serde(skip_serializing_if = "Option::is_none")]
    study: Option<Box<Study>>,
}

/// The same in a file, where the plan does not repeat what the study sets.
#[derive(Deserialize)]
struct StoredPlan {
    #[serde(flatten)]
    plan: Plan,
    #[serde(default)]
    study: Option<Box<Study>>,
}

impl RunPlan {
    /// A plan that repeats this study, or none.
    pub fn new(plan: Plan, study: Option<Study>) -> Self {
        Self::from(StoredPlan { plan, study: study.map(Box::new) })
    }

    /// The study; `None` if none is repeated.
    pub fn study(&self) -> Option<&Study> {
        self.study.as_deref()
    }
}

impl From<StoredPlan> for RunPlan {
    fn from(StoredPlan { plan, study }: StoredPlan) -> Self {
        Self { plan: Plan { repeated: study.as_ref().map(|study| study.planned()), ..plan }, study }
    }
}

impl Deref for RunPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl DerefMut for RunPlan {
    fn deref_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }
}

/// A facility as it was found here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FacilityRecord {
    /// Its name in this run.
    pub name: String,
    /// Its title: `this engine, LUKS2 format, aes-xts-plain64`.
    pub title: String,
    /// The facility of the same layer without encryption; `None` for a baseline.
    pub baseline: Option<String>,
    /// What it does and does not do, in whole sentences.
    pub about: String,
    /// Its version, as it prints it.
    pub version: Option<String>,
    /// The commands that made, opened and closed it.
    pub commands: Vec<String>,
    /// Why it is not measured, if so.
    pub left_out: Option<String>,
}

/// A workload as it was done here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkloadRecord {
    /// What it is called.
    pub name: String,
    /// For people.
    pub title: String,
    /// What it measures, in whole sentences, with its settings in this run.
    pub measures: String,
    /// What it does not measure.
    pub not: String,
    /// The version of the program that does it, where that is another's.
    pub version: Option<String>,
    /// Why it was left out, if so.
    pub left_out: Option<String>,
}

/// The speed of the data generator, which is part of every write.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GeneratorRate {
    /// Block size in bytes.
    pub block_bytes: u64,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

/// A period during which the lab measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sitting {
    /// Date, load and steal time before.
    pub before: Moment,
    /// Date, load and steal time after; `None` if it was interrupted.
    pub after: Option<Moment>,
    /// Processor seconds that the machine used per second while nothing was measured.
    pub idle_cpu: f64,
}

/// One workload, done once on one facility.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pass {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload.
    pub workload: String,
    /// From 0; the warm-up has none.
    pub round: Option<usize>,
    /// Place of the facility in the order of the round, from 0.
    pub position: usize,
    /// When it began: UTC, ISO 8601.
    pub at: String,
    /// The state of the machine.
    pub conditions: Conditions,
    /// One figure for each case of the workload.
    pub measures: Vec<Measure>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Of what.
    pub case: Case,
    /// In the unit.
    pub value: f64,
    /// What it counts.
    pub unit: Unit,
    /// Bytes transferred; 0 if that does not apply.
    pub bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Seconds that all processors together were busy during that time, if measured.
    pub cpu_s: Option<f64>,
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Elapsed {
    /// Seconds.
    pub seconds: f64,
    /// Seconds that all processors together were busy with anything: the kernel and other processes may do part of the
    /// work. In steps of a hundredth of a second.
    pub cpu_s: f64,
}

impl Elapsed {
    /// From `earlier` up to this; both must have the same beginning.
    pub fn since(self, earlier: Self) -> Self {
        Self { seconds: self.seconds - earlier.seconds, cpu_s: (self.cpu_s - earlier.cpu_s).max(0.0) }
    }
}

impl Measure {
    /// Bytes per second.
    pub fn rate(case: Case, bytes: u64, took: Elapsed) -> Self {
        Self { bytes, ..Self::new(case, Unit::BytesPerS, bytes as f64 / took.seconds, took) }
    }

    /// Operations per second.
    pub fn per_s(case: Case, count: u64, took: Elapsed) -> Self {
        Self::new(case, Unit::PerS, count as f64 / took.seconds, took)
    }

    /// The seconds that a task took, in which so many bytes were moved (0 if that means nothing).
    pub fn time(case: Case, bytes: u64, took: Elapsed) -> Self {
        Self { bytes, ..Self::new(case, Unit::Seconds, took.seconds, took) }
    }

    /// The seconds of an extra cost.
    pub fn cost(case: Case, took: Elapsed) -> Self {
        Self::new(case, Unit::CostSeconds, took.seconds, took)
    }

    /// How busy all processors of the machine were together: 1 is one of them.
    pub fn cpu_share(case: Case, took: Elapsed) -> Self {
        Self::new(case, Unit::Share, took.cpu_s / took.seconds, took)
    }

    fn new(case: Case, unit: Unit, value: f64, took: Elapsed) -> Self {
        Self { case, value, unit, bytes: 0, seconds: took.seconds, cpu_s: Some(took.cpu_s) }
    }
}

/// What did not work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunFailure {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload; `None` if the failure came before any workload.
    pub workload: Option<String>,
    /// The round; `None` in the warm-up.
    pub round: Option<usize>,
    /// What was wrong.
    pub error: String,
}

/// The requests a server answered during one pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload.
    pub workload: String,
    /// What was done during the trace, for people.
    pub title: String,
    /// In the order of time.
    pub requests: Vec<TracedRequest>,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedRequest {
    /// Seconds since the beginning.
    pub at: f64,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// Whether it wrote.
    pub write: bool,
}

/// What a facility encrypts. Losses of different layers are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EncryptedLayer {
    /// Sectors of a disk, or of a file that stands for one.
    Volume,
    /// Files, each by itself.
    Files,
}
