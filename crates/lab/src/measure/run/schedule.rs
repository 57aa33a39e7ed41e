//! What is measured next, and what is done with the result.
//!
//! The order is a function of what has been recorded, and of the plan's seed: an interrupted run continues where it
//! stopped, as if nothing had happened. Each workload is done in rounds. The first is a warm-up, whose figures are kept
//! but do not count. In each of the others the facilities that are not steady yet take turns in a random order, and
//! every one of them has its baseline in the same round, so that a drift of the machine hits both.

use std::collections::BTreeMap;

use claviger_engine::{Error, ErrorKind, Result};

use crate::measure::run::journal::{JournalEntry, LeftOutPair, RunState};
use crate::measure::workloads::WorkloadOutcome;
use crate::model::figures::{Pass, Run, RunFailure, Trace};
use crate::model::machine::{Conditions, OtherLoad};
use crate::model::random::Random;
use crate::model::statistics::relative_deviation;

/// After this many consecutive failures of a workload on a facility, it is not tried again.
const PATIENCE: usize = 2;

/// How often a pass is repeated because other programs disturbed it.
const AGAIN: usize = 2;

/// After this many passes that stayed disturbed in all attempts, the machine counts as busy: each pass is then made only
/// once, until one is undisturbed.
const BUSY: usize = 3;

/// One workload, to be done once on one facility.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledPass {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload.
    pub workload: String,
    /// From 0; `None` for the warm-up.
    pub round: Option<usize>,
    /// How many facilities had their turn in this round before.
    pub position: usize,
}

/// The result of a step.
#[derive(Clone, Debug, Default)]
pub struct PassDone {
    /// When it began: UTC, ISO 8601.
    pub at: String,
    /// The state of the machine in the meantime.
    pub conditions: Conditions,
    /// What was found.
    pub outcome: WorkloadOutcome,
}

/// Why a step failed.
#[derive(Debug)]
pub enum Trouble {
    /// The facility could not be made or opened, so no workload can use it.
    Facility(Error),
    /// The workload failed on it.
    Workload(Error),
}

/// The result of a step, or why it failed.
pub type Attempt = std::result::Result<PassDone, Trouble>;

/// Carries out steps: the real thing, or a simulation.
pub trait Bench {
    /// Carries a step out.
    ///
    /// # Errors
    /// Any error. After `Unsupported`, the facility is left out of the workload; `Cancelled` ends the run.
    fn pass(&mut self, step: &ScheduledPass) -> Attempt;

    /// Waits, for a while, until other programs leave the machine alone.
    fn wait_for_calm(&mut self) {}
}

/// Carries out the rest of a run. Everything that happens goes to `record` first, and then to `state`.
///
/// # Errors
/// `Cancelled` where somebody wants it to end; those of `record`. That a facility or a workload fails is recorded.
pub fn carry_out(
    state: &mut RunState,
    bench: &mut dyn Bench,
    cancelled: fn() -> bool,
    record: &mut dyn FnMut(&RunState, &JournalEntry) -> Result<()>,
) -> Result<()> {
    while let Some(step) = next(state) {
        if cancelled() {
            return Err(ErrorKind::Cancelled.into());
        }
        let (done, trouble) = undisturbed(state, bench, &step);
        let failed = match trouble {
            None => None,
            // A signal reaches the facilities' processes too; failures caused by it do not count.
            Some(_) if cancelled() => return Err(ErrorKind::Cancelled.into()),
            Some(Trouble::Facility(e) | Trouble::Workload(e)) if matches!(e.kind, ErrorKind::Cancelled) => {
                return Err(e);
            }
            Some(Trouble::Facility(e)) => Some(failure(&step, None, &with_hint(&e))),
            Some(Trouble::Workload(e)) => Some(match e.kind {
                ErrorKind::Unsupported { .. } => left_out(&step, &with_hint(&e)),
                _ => failure(&step, Some(step.workload.clone()), &with_hint(&e)),
            }),
        };
        let done = done.map(|done| recorded(state, &step, done));
        for entry in done.into_iter().chain(failed) {
            record(state, &entry)?;
            state.add(entry);
        }
    }
    Ok(())
}

/// Carries a step out, and repeats it while other programs disturb it: the least disturbed attempt counts. The figures
/// themselves do not influence the choice. A repeat that fails is the last; the attempt before it still counts.
fn undisturbed(state: &RunState, bench: &mut dyn Bench, step: &ScheduledPass) -> (Option<PassDone>, Option<Trouble>) {
    let load = |done: &PassDone| done.conditions.others.unwrap_or_default();
    let disturbed = |pass: &Pass| pass.conditions.others.is_some_and(|others| others.disturbs());
    let last = state.run.passes.iter().filter(|p| p.round.is_some()).rev().take(BUSY);
    let busy = last.clone().count() == BUSY && last.into_iter().all(disturbed);
    let mut calmest = match bench.pass(step) {
        Ok(done) => done,
        Err(trouble) => return (None, Some(trouble)),
    };
    for again in 1..=AGAIN {
        if busy || step.round.is_none() || !load(&calmest).disturbs() {
            break;
        }
        bench.wait_for_calm();
        let next = match bench.pass(step) {
            Ok(next) => next,
            Err(trouble) => return (Some(calmest), Some(trouble)),
        };
        if load(&next).processors() < load(&calmest).processors() {
            calmest = next;
        }
        calmest.conditions.others = Some(OtherLoad { again, ..load(&calmest) });
    }
    (Some(calmest), None)
}

/// The next step; `None` when everything has been measured.
pub fn next(state: &RunState) -> Option<ScheduledPass> {
    state.run.plan.workloads.iter().find_map(|workload| {
        let left_out = state.run.workloads.iter().any(|w| w.name == *workload && w.left_out.is_some());
        if left_out { None } else { next_of(state, workload) }
    })
}

/// An error's message with its hint.
fn with_hint(error: &Error) -> String {
    match error.hint.as_deref() {
        Some(hint) => format!("{error} {hint}"),
        None => error.to_string(),
    }
}

fn failure(step: &ScheduledPass, workload: Option<String>, error: &str) -> JournalEntry {
    let (facility, error) = (step.facility.clone(), error.into());
    JournalEntry::Failure(RunFailure { facility, workload, round: step.round, error })
}

fn left_out(step: &ScheduledPass, reason: &str) -> JournalEntry {
    let ScheduledPass { facility, workload, .. } = step.clone();
    JournalEntry::LeftOut(LeftOutPair { facility, workload, reason: reason.into() })
}

/// A pass that gave figures, as it is recorded.
fn recorded(state: &RunState, step: &ScheduledPass, done: PassDone) -> JournalEntry {
    let ScheduledPass { facility, workload, round, position } = step.clone();
    let PassDone { at, conditions, outcome: WorkloadOutcome { measures, traces, notes } } = done;
    if let Some(bad) = measures.iter().find(|m| !m.value.is_finite()) {
        let error = format!("a figure of {} is not a number", bad.case.operation);
        return failure(step, Some(workload), &error);
    }
    let traces = if wants_trace(state, step) { traces } else { Vec::new() };
    let named = |trace| Trace { facility: facility.clone(), workload: workload.clone(), ..trace };
    let traces = traces.into_iter().map(named).collect();
    let pass = Pass { facility, workload, round, position, at, conditions, measures };
    JournalEntry::Pass { pass: Box::new(pass), traces, notes }
}

/// One trace of each workload on each facility is enough, from a pass that counts.
fn wants_trace(state: &RunState, step: &ScheduledPass) -> bool {
    let same = |trace: &Trace| trace.facility == step.facility && trace.workload == step.workload;
    step.round.is_some() && !state.run.traces.iter().any(same)
}

fn next_of(state: &RunState, workload: &str) -> Option<ScheduledPass> {
    let history = History::of(state, workload);
    for round in std::iter::once(None).chain((0..state.run.plan.max_repeats + PATIENCE).map(Some)) {
        let participants = history.participants(round);
        if participants.is_empty() {
            return None;
        }
        let tried = history.tried_in(round);
        if let Some(facility) = participants.into_iter().find(|f| !tried.contains(f)) {
            let position = tried.len();
            return Some(ScheduledPass { facility: facility.into(), workload: workload.into(), round, position });
        }
    }
    None
}

/// What was tried of one workload.
struct History<'a> {
    state: &'a RunState,
    workload: &'a str,
    /// Whether it succeeded, by round and facility.
    tried: BTreeMap<Option<usize>, BTreeMap<&'a str, bool>>,
    /// The figures by facility, then by case, then by round.
    figures: BTreeMap<&'a str, Vec<Vec<(usize, f64)>>>,
}

impl<'a> History<'a> {
    fn of(state: &'a RunState, workload: &'a str) -> Self {
        let mut tried: BTreeMap<Option<usize>, BTreeMap<&str, bool>> = BTreeMap::new();
        let mut figures: BTreeMap<&str, Vec<Vec<(usize, f64)>>> = BTreeMap::new();
        for failure in state.run.failures.iter().filter(|f| f.workload.as_deref() == Some(workload)) {
            tried.entry(failure.round).or_default().insert(&failure.facility, false);
        }
        for pass in state.run.passes.iter().filter(|p| p.workload == workload) {
            tried.entry(pass.round).or_default().insert(&pass.facility, true);
            let Some(round) = pass.round else { continue };
            // Extra costs are not judged, so nobody waits for them to become steady.
            let judged = pass.measures.iter().filter(|m| m.unit.is_performance());
            let cases = figures.entry(&pass.facility).or_default();
            // Every pass of a workload gives the same cases in the same order.
            for (place, measure) in judged.enumerate() {
                if place == cases.len() {
                    cases.push(Vec::new());
                }
                cases[place].push((round, measure.value));
            }
        }
        Self { state, workload, tried, figures }
    }

    /// Who had a turn in this round.
    fn tried_in(&self, round: Option<usize>) -> Vec<&str> {
        self.tried.get(&round).into_iter().flatten().map(|(facility, _)| *facility).collect()
    }

    /// Who takes part in this round, in the order of turns. It depends on earlier rounds only, so that the order stays
    /// the same in the middle of a round.
    fn participants(&self, round: Option<usize>) -> Vec<&'a str> {
        let Run { plan, facilities, .. } = &self.state.run;
        let eligible: Vec<&str> =
            facilities.iter().map(|f| f.name.as_str()).filter(|f| self.eligible(f, round)).collect();
        let wanting: Vec<&str> = eligible.iter().copied().filter(|f| self.wants(f, round, &eligible)).collect();
        let baselines: Vec<&str> = wanting.iter().filter_map(|f| self.state.baseline(f)).collect();
        let mut order: Vec<&str> =
            eligible.into_iter().filter(|f| wanting.contains(f) || baselines.contains(f)).collect();
        let place = plan.workloads.iter().position(|w| w == self.workload).unwrap_or(0) as u64;
        let number = round.map_or(0, |round| round as u64 + 1);
        Random::new(plan.seed ^ place << 32 ^ number).shuffle(&mut order);
        order
    }

    /// Whether a facility can do this workload at all.
    fn eligible(&self, facility: &str, round: Option<usize>) -> bool {
        let streak = self.tried.range(..round).rev().filter_map(|(_, tried)| tried.get(facility));
        let failures = streak.take_while(|succeeded| !**succeeded).count();
        let wanted = self.state.run.plan.does(self.workload, facility);
        wanted
            && failures < PATIENCE
            && !self.state.is_out(facility)
            && !self.state.is_left_out(facility, self.workload)
    }

    /// Whether a facility or its baseline still needs measuring before this round.
    fn wants(&self, facility: &str, round: Option<usize>, eligible: &[&str]) -> bool {
        let plan = &self.state.run.plan;
        let Some(round) = round.filter(|round| *round >= plan.min_repeats) else { return true };
        if round >= plan.max_repeats {
            // Marks a round in which the workload failed.
            return self.successes(facility, round) < plan.min_repeats;
        }
        let baseline = self.state.baseline(facility).filter(|b| eligible.contains(b));
        !self.steady(facility, round) || baseline.is_some_and(|b| !self.steady(b, round))
    }

    /// Rounds before this one in which the facility did the workload.
    fn successes(&self, facility: &str, round: usize) -> usize {
        let done = |(_, tried): &(_, &BTreeMap<&str, bool>)| tried.get(facility) == Some(&true);
        self.tried.range(Some(0)..Some(round)).filter(done).count()
    }

    /// Whether there are enough figures from before this round, and all vary little enough.
    fn steady(&self, facility: &str, round: usize) -> bool {
        let plan = &self.state.run.plan;
        let enough = self.successes(facility, round) >= plan.min_repeats;
        let steady = |figures: &Vec<(usize, f64)>| {
            let before: Vec<f64> = figures.iter().filter(|(r, _)| *r < round).map(|(_, value)| *value).collect();
            relative_deviation(&before) <= plan.steady
        };
        enough && self.figures.get(facility).into_iter().flatten().all(steady)
    }
}
