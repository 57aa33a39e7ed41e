//! A run without any facility: noise, drift and outliers that are known, and what the lab makes of them.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use claviger_engine::{Error, ErrorKind, Result};
use claviger_lab::measure::run::journal::{Journal, RunState};
use claviger_lab::measure::run::schedule::{Attempt, Bench, PassDone, ScheduledPass, Trouble};
use claviger_lab::measure::run::{journal, schedule, stored};
use claviger_lab::measure::workloads::WorkloadOutcome;
use claviger_lab::model::case::{Axis, Case, Unit};
use claviger_lab::model::figures::{FacilityRecord, Measure, Pass, Run, RunPlan, SCHEMA, Sitting, WorkloadRecord};
use claviger_lab::model::machine::{Conditions, Machine, Moment, OtherLoad};
use claviger_lab::model::plan::{Backing, Caches, Level, Plan};
use claviger_lab::model::random::Random;
use claviger_lab::model::statistics::LossVerdict;
use claviger_lab::show::report::{RunReport, Text};
use claviger_lab::show::summary::Summary;

/// Rates of simulated facilities, the first being the baseline.
const FACILITIES: [(&str, f64); 3] = [("plain", 1e9), ("same", 1e9), ("slow", 0.9e9)];

fn never() -> bool {
    false
}

pub fn facility(name: &str) -> FacilityRecord {
    FacilityRecord {
        name: name.into(),
        title: name.into(),
        baseline: (name != "plain").then(|| "plain".into()),
        about: String::new(),
        version: None,
        commands: Vec::new(),
        left_out: None,
    }
}

fn workload(name: &str) -> WorkloadRecord {
    WorkloadRecord {
        name: name.into(),
        title: name.into(),
        measures: String::new(),
        not: String::new(),
        version: None,
        left_out: None,
    }
}

/// A run of which nothing is measured yet.
pub fn run(workloads: &[&str], seed: u64) -> Run {
    let plan = Plan {
        level: Level::Quick,
        scale: 1.0,
        backing: Backing::Tmpfs(PathBuf::from("/dev/shm")),
        more: Vec::new(),
        size: 1 << 20,
        facilities: FACILITIES.iter().map(|(name, _)| (*name).into()).collect(),
        workloads: workloads.iter().map(|name| (*name).into()).collect(),
        min_repeats: 5,
        max_repeats: 15,
        steady: 0.03,
        seed,
        caches: Caches::Dropped,
        repeated: None,
    };
    let moment = || Moment { at: String::new(), load_1min: 0.0, steal_s: 0.0 };
    Run {
        schema: SCHEMA,
        machine: MACHINE.with(Clone::clone),
        facilities: FACILITIES.iter().map(|(name, _)| facility(name)).collect(),
        workloads: workloads.iter().copied().map(workload).collect(),
        plan: RunPlan::new(plan, None),
        generator: Vec::new(),
        sittings: vec![Sitting { before: moment(), after: Some(moment()), idle_cpu: 0.0 }],
        passes: Vec::new(),
        failures: Vec::new(),
        traces: Vec::new(),
        ciphers: Vec::new(),
        notes: Vec::new(),
    }
}

thread_local! {
    static MACHINE: Machine = Machine::this();
}

/// A machine with a clock that drifts, noise, and now and then something that takes its time.
struct Simulation {
    random: Random,
    noise: f64,
    /// Outliers in a hundred passes.
    outliers: usize,
    /// Passes so far: the clock falls by 4 % over thirty of them, and rises again.
    passes: usize,
    /// What goes wrong.
    fails: fn(&ScheduledPass) -> Option<Trouble>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        // Not the seed of the plan: the order of the facilities says nothing about the noise.
        Self { random: Random::new(seed ^ 0x5eed), noise: 0.025, outliers: 3, passes: 0, fails: |_| None }
    }

    fn normal(&mut self) -> f64 {
        let mut uniform = || (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let (u, v) = (1.0 - uniform(), uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

impl Bench for Simulation {
    fn pass(&mut self, step: &ScheduledPass) -> Attempt {
        if let Some(trouble) = (self.fails)(step) {
            return Err(trouble);
        }
        let (_, rate) = FACILITIES.iter().find(|(name, _)| *name == step.facility).expect("a facility of the plan");
        self.passes += 1;
        let drift = 1.0 + 0.02 * (self.passes as f64 * std::f64::consts::TAU / 60.0).cos();
        let stall = if self.random.below(100) < self.outliers { 0.7 } else { 1.0 };
        let value = rate * drift * stall * (1.0 + self.noise * self.normal());
        let measure = |operation: &str, value, unit| Measure {
            case: Case::new(operation).at(Axis::Block, 4096.0),
            value,
            unit,
            bytes: 1 << 20,
            seconds: 1.0,
            cpu_s: Some(0.5),
        };
        let measures = vec![measure("write", value, Unit::BytesPerS), measure("task", 1e9 / value, Unit::Seconds)];
        let conditions = Conditions { caches_dropped: true, ..Conditions::default() };
        Ok(PassDone {
            at: String::new(),
            conditions,
            outcome: WorkloadOutcome { measures, ..WorkloadOutcome::default() },
        })
    }
}

/// Carries out the whole run.
fn measured(run: Run, bench: &mut dyn Bench) -> RunState {
    let mut state = RunState::new(run);
    schedule::carry_out(&mut state, bench, never, &mut |_, _| Ok(())).expect("it comes to its end");
    state
}

fn verdict(summary: &Summary, facility: &str, operation: &str) -> LossVerdict {
    let case = Case::new(operation).at(Axis::Block, 4096.0);
    let cell = summary.cell(facility, "w", &case).expect("it was measured");
    cell.loss.as_ref().expect("it has a baseline").verdict
}

#[test]
fn a_planted_slowdown_of_10_percent_is_found_and_one_of_none_is_not() {
    const RUNS: u64 = 400;
    let (mut found, mut false_alarms, mut covered, mut more) = (0, 0, 0, 0);
    for seed in 0..RUNS {
        let state = measured(run(&["w"], seed), &mut Simulation::new(seed));
        let summary = Summary::of(&state.run);
        found += u64::from(verdict(&summary, "slow", "write") == LossVerdict::Slower);
        false_alarms += u64::from(verdict(&summary, "same", "write") != LossVerdict::Same);
        let slow = summary.cells.iter().find(|c| c.facility == "slow").and_then(|c| c.loss.clone()).expect("a loss");
        covered += u64::from((slow.low..=slow.high).contains(&0.1));
        more += u64::from(state.run.passes.len() > 3 * 6);
        // What takes 1 / rate has the same loss.
        assert_eq!(verdict(&summary, "slow", "task"), verdict(&summary, "slow", "write"));
    }
    let share = |count: u64| count as f64 / RUNS as f64;
    let (found, false_alarms, covered) = (share(found), share(false_alarms), share(covered));
    println!("found {found}, false alarms {false_alarms}, covered {covered}, more than the least {}", share(more));
    assert!(found > 0.97, "10 % are found in {found} of the runs");
    // The standard error of a share of 5 % in 400 runs is 1.1 %.
    assert!(false_alarms < 0.08, "{false_alarms} of the runs say that there is a difference where none is");
    assert!(covered > 0.92, "the interval held the truth in {covered} of the runs");
    assert!(share(more) > 0.2, "some need more repeats than the least");
}

/// Passes that other programs disturb: so many processors of theirs, by the number of the pass.
struct Disturbed {
    simulation: Simulation,
    processors: fn(usize) -> f64,
    made: usize,
}

impl Bench for Disturbed {
    fn pass(&mut self, step: &ScheduledPass) -> Attempt {
        let mut done = self.simulation.pass(step)?;
        let cpu_s = 10.0 * (self.processors)(self.made);
        done.conditions.others = Some(OtherLoad { seconds: 10.0, cpu_s, chance_s: 0.4, ..OtherLoad::default() });
        self.made += 1;
        Ok(done)
    }
}

fn disturbed(processors: fn(usize) -> f64) -> (Run, usize) {
    let quiet = Simulation { noise: 0.001, outliers: 0, ..Simulation::new(1) };
    let mut bench = Disturbed { simulation: quiet, processors, made: 0 };
    let state = measured(run(&["w"], 1), &mut bench);
    (state.run, bench.made)
}

#[test]
fn a_disturbed_pass_is_made_again_and_a_busy_machine_is_told_of_first() {
    // Below what disturbs, and then below what can be told from chance.
    for calm in [(|_| 0.04) as fn(usize) -> f64, |_| 0.05, |made| if made == 7 { 0.08 } else { 0.0 }] {
        let (run, made) = disturbed(calm);
        assert_eq!((made, run.passes.len(), run.disturbance().again), (18, 18, 0));
        assert_eq!((run.disturbance().message, run.unfit_for_documents()), (None, None));
    }
    // The warm-up is three passes; the fourth is disturbed, and less so when it is made again, and then not.
    let (run, made) = disturbed(|made| [0.0, 0.0, 0.9, 1.0, 0.5, 0.02].get(made).copied().unwrap_or(0.0));
    assert_eq!((made, run.passes.len(), run.disturbance().again), (20, 18, 2));
    let kept = run.passes[3].conditions.others.expect("it was watched");
    assert_eq!((kept.again, kept.cpu_s), (2, 0.2), "the calmest counts");
    assert_eq!((run.disturbance().message, run.unfit_for_documents()), (None, None));

    // One that stays disturbed is reported, and its figure is the median of five.
    let (run, made) = disturbed(|made| if (3..6).contains(&made) { 0.5 } else { 0.0 });
    assert_eq!((made, run.passes.len(), run.disturbance().disturbed), (20, 18, 1));
    let message = run.disturbance().message.expect("it was busy for a while");
    assert!(message.contains("in 1 of 15 passes") && message.ends_with("which a median tolerates."), "{message}");
    assert_eq!(run.unfit_for_documents(), None);

    // It is not worth while for ever.
    let (run, made) = disturbed(|made| 1.0 + made as f64 / 100.0);
    assert_eq!((made, run.passes.len(), run.disturbance().again), (18 + 3 * 2, 18, 6));
    let message = run.disturbance().message.expect("it was busy");
    assert!(message.starts_with("The machine was busy with other programs in 15 of 15 passes."), "{message}");
    let summary = Summary::of(&run);
    assert_eq!(summary.warnings[0], message);
    assert_eq!(run.unfit_for_documents(), Some(message.clone()));
    let report = RunReport { run: &run, summary: &summary, extras: &[] };
    let (text, json) = (report.text(), serde_json::to_string_pretty(&report).expect("JSON"));
    assert_eq!(text.lines().filter(|line| !line.is_empty()).nth(1), Some("Disturbed"), "{text}");
    assert_eq!(text.matches("was busy with other programs").count(), 1);
    assert!(
        json.trim_start_matches(['{', '\n', ' ']).starts_with("\"disturbance\": {\n    \"message\": \"The machine")
    );
    // A run of before is read, and nobody knows.
    let mut old: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    for pass in old["run"]["passes"].as_array_mut().expect("passes") {
        pass["conditions"].as_object_mut().expect("conditions").remove("others");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.json");
    std::fs::write(&file, old.to_string()).expect("written");
    let old = stored::load(&file).expect("a run");
    assert_eq!(old.disturbance().message, None);
    assert!(old.unfit_for_documents().is_some_and(|why| why.contains("watched in only 0 of 15 passes")));
}

/// Passes of which no repeat succeeds.
struct RepeatsFail {
    disturbed: Disturbed,
    last: Option<ScheduledPass>,
}

impl Bench for RepeatsFail {
    fn pass(&mut self, step: &ScheduledPass) -> Attempt {
        match self.last.replace(step.clone()) {
            Some(last) if last == *step => Err(Trouble::Workload(io::Error::other("it broke").into())),
            _ => self.disturbed.pass(step),
        }
    }
}

#[test]
fn a_disturbed_pass_counts_if_its_repeat_fails() {
    let quiet = Simulation { noise: 0.001, outliers: 0, ..Simulation::new(1) };
    let disturbed = Disturbed { simulation: quiet, processors: |made| if made == 3 { 0.9 } else { 0.0 }, made: 0 };
    let run = measured(run(&["w"], 1), &mut RepeatsFail { disturbed, last: None }).run;
    let first = &run.passes[3];
    assert_eq!((first.round, first.conditions.others.map(|others| others.cpu_s)), (Some(0), Some(9.0)));
    assert!(run.passes.len() == 18 && run.passes.iter().all(|pass| pass.round < Some(5)), "no round is made up for");
    assert_eq!((run.disturbance().disturbed, run.failures.len()), (1, 1));
    let warning = format!("{} failed in w and was measured all the same: see the failures.", first.facility);
    assert!(Summary::of(&run).warnings.contains(&warning), "{:?}", Summary::of(&run).warnings);
}

#[test]
fn what_is_steady_stops_early_and_what_is_not_goes_on_to_the_cap_and_says_so() {
    let quiet = Simulation { noise: 0.001, outliers: 0, ..Simulation::new(1) };
    let state = measured(run(&["w"], 1), &mut { quiet });
    // A warm-up and five rounds, of three facilities; the drift over them is small.
    assert_eq!(state.run.passes.len(), 18);
    assert!(Summary::of(&state.run).cells.iter().all(|cell| cell.steady && cell.samples.len() == 5));

    let state = measured(run(&["w"], 1), &mut Simulation { noise: 0.1, ..Simulation::new(1) });
    assert_eq!(state.run.passes.len(), 3 * 16);
    let summary = Summary::of(&state.run);
    assert!(summary.cells.iter().all(|cell| !cell.steady && cell.samples.len() == 15));
    assert!(
        summary.warnings.iter().any(|w| w.contains("6 of 6 figures are not steady to 3.0 %")),
        "{:?}",
        summary.warnings
    );
}

#[test]
fn one_pass_says_nothing_of_steadiness() {
    let mut planned = run(&["w"], 1);
    (planned.plan.min_repeats, planned.plan.max_repeats) = (1, 1);
    let summary = Summary::of(&measured(planned, &mut Simulation::new(1)).run);
    let said = |words: &str| summary.warnings.iter().any(|w| w.contains(words));
    assert!(said("6 of 6 figures come from fewer than 2 passes"), "{:?}", summary.warnings);
    assert!(!said("not steady"), "{:?}", summary.warnings);
}

#[test]
fn every_round_has_its_baseline_and_an_order_of_its_own() {
    let state = measured(run(&["v", "w"], 3), &mut Simulation { noise: 0.05, ..Simulation::new(3) });
    let mut orders = BTreeSet::new();
    for workload in ["v", "w"] {
        for round in std::iter::once(None).chain((0..15).map(Some)) {
            let in_round = state.run.passes.iter().filter(|p| p.workload == workload && p.round == round);
            let facilities: Vec<&str> = in_round.map(|p| p.facility.as_str()).collect();
            assert!(facilities.is_empty() || facilities.contains(&"plain"), "{workload}, {round:?}");
            orders.insert(facilities);
        }
    }
    assert!(orders.len() > 4, "{orders:?}");
    // Rounds follow each other, and workloads.
    let workloads: Vec<&str> = state.run.passes.iter().map(|p| p.workload.as_str()).collect();
    assert!(workloads.is_sorted());
}

#[test]
fn a_facility_that_fails_does_not_stop_the_others() {
    // From the third round on, the workload fails on it.
    let fails = |step: &ScheduledPass| {
        let fails = step.facility == "slow" && step.workload == "v" && step.round >= Some(2);
        fails.then(|| Trouble::Workload(io::Error::other("it broke").into()))
    };
    let state = measured(run(&["v", "w"], 4), &mut Simulation { fails, ..Simulation::new(4) });
    let failures: Vec<_> = state.run.failures.iter().map(|f| (f.facility.as_str(), f.round)).collect();
    assert_eq!(failures, [("slow", Some(2)), ("slow", Some(3))], "it is tried twice");
    let summary = Summary::of(&state.run);
    let samples = |facility: &str, workload: &str| {
        let cell = summary.cells.iter().find(|c| c.facility == facility && c.workload == workload);
        cell.map_or(0, |c| c.samples.len())
    };
    assert_eq!(samples("slow", "v"), 2, "what it gave before is kept");
    assert!(samples("same", "v") >= 5 && samples("slow", "w") >= 5);
    assert!(
        summary.warnings.iter().any(|w| w == "slow failed in v, 2 times: see the failures."),
        "{:?}",
        summary.warnings
    );

    // It cannot be opened any more: it is out of all that follows.
    let fails = |step: &ScheduledPass| {
        let fails = step.facility == "slow" && step.round == Some(1);
        fails.then(|| Trouble::Facility(io::Error::other("exit status 3: no such thing").into()))
    };
    let state = measured(run(&["v", "w"], 5), &mut Simulation { fails, ..Simulation::new(5) });
    assert_eq!(state.run.failures.len(), 2, "it is tried twice");
    assert_eq!(state.run.passes.iter().filter(|p| p.facility == "slow").count(), 2);
    assert_eq!(state.run.missing(), [("slow", "v"), ("slow", "w")]);
    assert!(state.run.passes.iter().filter(|p| p.facility == "same").count() >= 12);

    // A baseline that fails: the others are measured, and the report says what is missing.
    let fails = |step: &ScheduledPass| {
        (step.facility == "plain").then(|| Trouble::Facility(io::Error::other("no room").into()))
    };
    let state = measured(run(&["w"], 6), &mut Simulation { fails, ..Simulation::new(6) });
    let summary = Summary::of(&state.run);
    assert!(summary.cells.iter().all(|c| c.loss.is_none()) && summary.cells.len() == 4);
    assert!(summary.warnings.iter().any(|w| w.contains("loss of same is unknown")), "{:?}", summary.warnings);

    // What it cannot do is no failure.
    let fails = |step: &ScheduledPass| {
        let cannot = step.facility == "slow" && step.workload == "v";
        cannot.then(|| Trouble::Workload(Error::unsupported("there are no files over NBD")))
    };
    let state = measured(run(&["v", "w"], 7), &mut Simulation { fails, ..Simulation::new(7) });
    assert!(state.run.failures.is_empty());
    assert_eq!(state.left_out.len(), 1);
    assert_eq!(state.run.notes, ["slow is not measured with v: not supported: there are no files over NBD"]);
}

#[test]
fn a_failure_that_passes_drops_nothing() {
    /// The disk is full for one attempt, whatever is done then.
    struct Full {
        simulation: Simulation,
        trouble: Option<fn(Error) -> Trouble>,
    }
    impl Bench for Full {
        fn pass(&mut self, step: &ScheduledPass) -> Attempt {
            match self.trouble.take_if(|_| step.facility == "slow" && step.round == Some(1)) {
                Some(trouble) => Err(trouble(io::Error::other("no space left on device").into())),
                None => self.simulation.pass(step),
            }
        }
    }
    for trouble in [Trouble::Facility as fn(Error) -> Trouble, Trouble::Workload] {
        let mut planned = run(&["v", "w"], 10);
        planned.plan.max_repeats = 5;
        let mut bench = Full { simulation: Simulation::new(10), trouble: Some(trouble) };
        let state = measured(planned, &mut bench);
        assert_eq!((state.run.failures.len(), state.run.missing()), (1, vec![]));
        let summary = Summary::of(&state.run);
        assert!(summary.cells.iter().filter(|c| c.facility == "slow").all(|c| c.samples.len() == 5));
        assert!(
            summary.warnings.iter().any(|w| w.contains("and was measured all the same: see")),
            "{:?}",
            summary.warnings
        );
    }
}

#[test]
fn figures_that_are_no_numbers_are_failures() {
    struct Nothing;
    impl Bench for Nothing {
        fn pass(&mut self, _: &ScheduledPass) -> Attempt {
            let case = Case::new("write");
            let measure = Measure { case, value: f64::NAN, unit: Unit::PerS, bytes: 0, seconds: 0.0, cpu_s: None };
            let outcome = WorkloadOutcome { measures: vec![measure], ..WorkloadOutcome::default() };
            Ok(PassDone { outcome, ..PassDone::default() })
        }
    }
    let state = measured(run(&["w"], 8), &mut Nothing);
    assert!(state.run.passes.is_empty());
    assert_eq!(state.run.failures.len(), 6);
}

/// A simulation whose figures depend on the step alone, so that an interrupted run can be compared with a whole one.
struct Steps {
    /// Steps until a signal comes.
    left: usize,
}

impl Bench for Steps {
    fn pass(&mut self, step: &ScheduledPass) -> Attempt {
        if self.left == 0 {
            return Err(Trouble::Workload(ErrorKind::Cancelled.into()));
        }
        self.left -= 1;
        if step.facility == "slow" && step.round == Some(1) && step.workload == "v" {
            return Err(Trouble::Workload(io::Error::other("it broke").into()));
        }
        let bytes = format!("{}{}{:?}", step.facility, step.workload, step.round);
        let seed = bytes.bytes().fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let mut simulation = Simulation { outliers: 0, ..Simulation::new(seed) };
        simulation.pass(step)
    }
}

/// Begins or resumes the run in `folder`, and continues for so many steps.
fn sit(folder: &std::path::Path, steps: usize) -> Result<RunState> {
    let (mut journal, mut state) = match folder.exists() {
        true => Journal::resume(folder)?,
        false => {
            let run = run(&["v", "w"], 9);
            (Journal::begin(folder, &run)?, RunState::new(run))
        }
    };
    let mut bench = Steps { left: steps };
    schedule::carry_out(&mut state, &mut bench, never, &mut |_, entry| journal.add(entry))?;
    Ok(state)
}

#[test]
fn a_run_that_is_interrupted_at_any_pass_comes_to_the_same_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = sit(&folder.path().join("whole"), usize::MAX).expect("it comes to its end");
    let steps = whole.run.passes.len() + whole.run.failures.len();
    assert!(steps > 36);
    // To the unit: JSON may change the last bit of a figure.
    let figures = |state: &RunState| -> Vec<(String, String, Option<usize>, usize, u64)> {
        let of = |p: &Pass| {
            (p.facility.clone(), p.workload.clone(), p.round, p.position, p.measures[0].value.round() as u64)
        };
        state.run.passes.iter().map(of).collect()
    };
    for interrupted_after in 0..steps {
        let folder = folder.path().join(interrupted_after.to_string());
        let stopped = sit(&folder, interrupted_after).expect_err("it is interrupted");
        assert!(matches!(stopped.kind, ErrorKind::Cancelled), "{stopped}");
        sit(&folder, usize::MAX).expect("it goes on");
        let read = journal::read(&folder).expect("it can be read");
        assert_eq!(figures(&read), figures(&whole), "interrupted after {interrupted_after}");
    }
}

#[test]
fn a_journal_that_is_torn_anywhere_is_cut_to_whole_lines_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole");
    sit(&whole, 4).expect_err("it is interrupted");
    let bytes = std::fs::read(whole.join(journal::FILE)).expect("a journal");
    let first = bytes.iter().position(|&b| b == b'\n').expect("a line") + 1;
    let torn = folder.path().join("torn");
    std::fs::create_dir(&torn).expect("a folder");
    for len in 0..=bytes.len() {
        std::fs::write(torn.join(journal::FILE), &bytes[..len]).expect("written");
        match Journal::resume(&torn) {
            Ok((_, state)) => {
                let lines = bytes[..len].iter().filter(|&&b| b == b'\n').count();
                assert_eq!(state.run.passes.len(), lines - 1);
                let left = std::fs::read(torn.join(journal::FILE)).expect("a journal");
                assert!(bytes.starts_with(&left) && left.ends_with(b"\n"));
            }
            Err(e) => assert!(len < first && matches!(e.kind, ErrorKind::Malformed { .. }), "{len}: {e}"),
        }
    }
    // Torn in the middle of a pass, it continues.
    std::fs::write(torn.join(journal::FILE), &bytes[..bytes.len() - 7]).expect("written");
    sit(&torn, usize::MAX).expect("it goes on");
    // A line in the middle that makes no sense is no torn end.
    let mut broken = bytes.clone();
    broken[first + 3] ^= 0x80;
    std::fs::write(torn.join(journal::FILE), &broken).expect("written");
    let error = journal::read(&torn).expect_err("it makes no sense");
    assert!(matches!(error.kind, ErrorKind::Malformed { offset, .. } if offset == first as u64), "{error}");
}

#[test]
fn two_cannot_add_to_a_journal() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("run");
    let journal = Journal::begin(&folder, &run(&["w"], 1)).expect("a journal");
    let error = Journal::resume(&folder).expect_err("it is in use");
    assert!(matches!(error.kind, ErrorKind::InUse { .. }), "{error}");
    assert!(Journal::begin(&folder, &run(&["w"], 1)).is_err(), "it is there");
    drop(journal);
    Journal::resume(&folder).expect("it is free");
}
