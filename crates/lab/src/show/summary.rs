//! What a run shows: medians, intervals, losses against the baseline of the same layer, verdicts.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::case::{Axis, Case, Unit};
use crate::model::figures::{Measure, Pass, Run, RunFailure};
use crate::model::plan::Caches;
use crate::model::statistics::{self, CONFIDENCE, Loss, LossVerdict, Spread};
use crate::model::words::{case_words, percent};
use crate::show::grouped;

/// What a run shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// By workload, case and facility, in the order of the run.
    pub cells: Vec<Cell>,
    /// Findings, in whole sentences, the most significant first.
    pub findings: Vec<String>,
    /// What a reader must know before trusting the figures: throttling, steal, unsteady figures.
    pub warnings: Vec<String>,
}

/// One facility, one case of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload.
    pub workload: String,
    /// Of what.
    pub case: Case,
    /// What is counted.
    pub unit: Unit,
    /// The median.
    pub median: f64,
    /// The 95 % interval of the median, by bootstrap: lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Standard deviation as a share of the mean.
    pub relative_deviation: f64,
    /// Whether that became small enough within the allowed repeats.
    pub steady: bool,
    /// Where the samples lie.
    pub spread: Spread,
    /// Every sample, in the order of rounds.
    pub samples: Vec<f64>,
    /// The round of each sample: what was measured in the same round was measured at about the same time.
    #[serde(skip)]
    pub(crate) rounds: Vec<Option<usize>>,
    /// The outliers among them, by index. They are kept and count.
    pub outliers: Vec<usize>,
    /// Name of the baseline.
    pub baseline: Option<String>,
    /// What is lost against it: the share of the performance, which is 1 / time where times are measured. `None` for
    /// memory and processor time, which are costs and not performance, and if the baseline has no figure.
    pub loss: Option<Loss>,
    /// Seconds that the processors were busy per 10^9 bytes, median; `None` if no bytes are counted.
    pub cpu_s_per_gb: Option<f64>,
}

impl Cell {
    /// The samples of both in each round that has both.
    pub(crate) fn paired_with(&self, other: &Self) -> Vec<(f64, f64)> {
        paired((&self.rounds, &self.samples), (&other.rounds, &other.samples))
    }
}

/// The pairs of values from rounds that both have. Each side is a list of rounds and a list of values.
fn paired(one: (&[Option<usize>], &[f64]), other: (&[Option<usize>], &[f64])) -> Vec<(f64, f64)> {
    let in_round = |(rounds, values): (&[Option<usize>], &[f64]), round| -> Vec<f64> {
        rounds.iter().zip(values).filter(|(r, _)| **r == round).map(|(_, value)| *value).collect()
    };
    let rounds: BTreeSet<Option<usize>> = other.0.iter().copied().collect();
    rounds.into_iter().flat_map(|round| in_round(one, round).into_iter().zip(in_round(other, round))).collect()
}

impl Summary {
    /// What this run shows. Warm-up passes do not count.
    pub fn of(run: &Run) -> Self {
        let cells = cells(run);
        Self { findings: findings(run, &cells), warnings: warnings(run, &cells), cells }
    }

    /// The cell of this facility.
    pub fn cell(&self, facility: &str, workload: &str, case: &Case) -> Option<&Cell> {
        self.cells.iter().find(|c| c.facility == facility && c.workload == workload && c.case == *case)
    }
}

/// Above this share of the processors' time, steal time is reported.
const STEAL: f64 = 0.02;

/// The same for what the machine did when nothing was measured, in processors.
const IDLE: f64 = 0.1;

/// The same for the clock frequency, as a share of the middle one.
const CLOCK: f64 = 0.1;

/// If the data generator is less than this many times as fast as a write, it takes a good part of the write's time.
const GENERATOR: f64 = 3.0;

/// Sentences about single figures, for each facility and in all.
const TELLING: (usize, usize) = (3, 20);

/// Facilities, workloads and cases in the order in which they are reported.
fn cells(run: &Run) -> Vec<Cell> {
    let mut cells = Vec::new();
    for workload in &run.plan.workloads {
        let groups = groups(run, workload);
        for (case, unit, of_facilities) in &groups {
            for facility in &run.plan.on_all_media() {
                let Some(samples) = of_facilities.get(facility.as_str()) else { continue };
                let baseline = baseline_of(run, facility);
                let base = baseline.and_then(|b| of_facilities.get(b));
                let seed = run.plan.seed ^ cells.len() as u64;
                let (rounds, own) = samples.rounds_and_values();
                let of_base = base.map(Samples::rounds_and_values);
                let pairs = of_base.map(|(of, base)| paired((&of, &base), (&rounds, &own)));
                let loss = pairs.and_then(|pairs| loss(*unit, &pairs, seed));
                let (low, high) = statistics::median_interval(&own, seed);
                let relative_deviation = statistics::relative_deviation(&own);
                cells.push(Cell {
                    facility: facility.clone(),
                    workload: workload.clone(),
                    case: case.clone(),
                    unit: *unit,
                    median: statistics::median(&own),
                    low,
                    high,
                    relative_deviation: if relative_deviation.is_nan() { 0.0 } else { relative_deviation },
                    steady: own.len() >= run.plan.min_repeats && relative_deviation <= run.plan.steady,
                    spread: Spread::of(&own),
                    outliers: statistics::outliers(&own),
                    samples: own,
                    rounds,
                    baseline: baseline.map(String::from),
                    loss,
                    cpu_s_per_gb: samples.cpu_s_per_gb(),
                });
            }
        }
    }
    cells
}

/// The name of the facility's baseline.
fn baseline_of<'a>(run: &'a Run, facility: &str) -> Option<&'a str> {
    run.facilities.iter().find(|f| f.name == facility)?.baseline.as_deref()
}

/// One case: what it is, its unit, and the figures of each facility.
type Group<'a> = (Case, Unit, BTreeMap<&'a str, Samples<'a>>);

/// The figures of one facility in one case, each with its round, in the order of rounds.
#[derive(Default)]
struct Samples<'a>(Vec<(Option<usize>, &'a Measure)>);

impl Samples<'_> {
    fn rounds_and_values(&self) -> (Vec<Option<usize>>, Vec<f64>) {
        self.0.iter().map(|(round, measure)| (*round, measure.value)).unzip()
    }

    fn cpu_s_per_gb(&self) -> Option<f64> {
        let of = |(_, m): &(Option<usize>, &Measure)| Some(m.cpu_s? * 1e9 / m.bytes as f64).filter(|_| m.bytes > 0);
        let all: Vec<f64> = self.0.iter().filter_map(of).collect();
        (!all.is_empty()).then(|| statistics::median(&all))
    }
}

/// The cases of a workload, in the order in which they were first met.
fn groups<'a>(run: &'a Run, workload: &str) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places = BTreeMap::new();
    let mut passes: Vec<&Pass> = run.passes.iter().filter(|p| p.workload == workload && p.round.is_some()).collect();
    passes.sort_by_key(|p| p.round);
    for pass in passes {
        for measure in &pass.measures {
            let case = &measure.case;
            let axis = case.axis as u8;
            let key = (&case.operation, &case.series, case.x.map(f64::to_bits), axis, measure.unit as u8);
            let place = *places.entry(key).or_insert_with(|| {
                groups.push((case.clone(), measure.unit, BTreeMap::new()));
                groups.len() - 1
            });
            groups[place].2.entry(&pass.facility).or_default().0.push((pass.round, measure));
        }
    }
    groups
}

fn loss(unit: Unit, pairs: &[(f64, f64)], seed: u64) -> Option<Loss> {
    let loss = match unit {
        Unit::BytesPerS | Unit::PerS => statistics::loss_of_pairs(pairs, seed),
        Unit::Seconds => statistics::loss_of_paired_times(pairs, seed),
        Unit::CostSeconds | Unit::Bytes | Unit::Share | Unit::Count => return None,
    };
    [loss.loss, loss.low, loss.high].iter().all(|x| x.is_finite()).then_some(loss)
}

/// First each facility's median loss, then the figures with the most certain differences.
fn findings(run: &Run, cells: &[Cell]) -> Vec<String> {
    let mut overviews: Vec<(f64, String)> =
        run.plan.on_all_media().iter().filter_map(|name| overview(run, name, cells)).collect();
    overviews.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut telling: Vec<&Cell> = cells.iter().filter(|cell| certain(cell) > 0.0).collect();
    telling.sort_by(|a, b| certain(b).total_cmp(&certain(a)));
    let mut of_facility: BTreeMap<&str, usize> = BTreeMap::new();
    telling.retain(|cell| {
        let of_facility = of_facility.entry(&cell.facility).or_default();
        *of_facility += 1;
        *of_facility <= TELLING.0
    });
    let telling = telling.into_iter().take(TELLING.1).filter_map(|cell| finding(run, cell));
    overviews.into_iter().map(|(_, sentence)| sentence).chain(telling).collect()
}

/// The end of the interval that is closer to zero; 0 if the interval contains zero. For a gain, it is the loss of the
/// baseline against the facility: gains have no upper limit, and would all come before the losses.
fn certain(cell: &Cell) -> f64 {
    match &cell.loss {
        Some(Loss { verdict: LossVerdict::Slower, low, .. }) => *low,
        Some(Loss { verdict: LossVerdict::Faster, high, .. }) => 1.0 - 1.0 / (1.0 - high),
        _ => 0.0,
    }
}

/// A facility's median loss, and a sentence about it.
fn overview(run: &Run, facility: &str, cells: &[Cell]) -> Option<(f64, String)> {
    let losses: Vec<&Loss> = cells.iter().filter(|c| c.facility == facility).filter_map(|c| c.loss.as_ref()).collect();
    let judged = losses.iter().filter(|l| l.verdict != LossVerdict::TooFew).count();
    if judged == 0 {
        return None;
    }
    let count = |verdict| losses.iter().filter(|l| l.verdict == verdict).count();
    let middle = statistics::median(&losses.iter().map(|l| l.loss).collect::<Vec<_>>());
    let sentence = format!(
        "{} against {}: slower in {} of {judged} figures, faster in {}, no measurable difference in {}; the median loss is {} %.",
        called(run, facility),
        baseline_of(run, facility).unwrap_or("its baseline"),
        count(LossVerdict::Slower),
        count(LossVerdict::Faster),
        count(LossVerdict::Same),
        percent(middle),
    );
    Some((middle, sentence))
}

/// `luks2 (this engine, LUKS2 format, aes-xts-plain64)`.
fn called(run: &Run, facility: &str) -> String {
    match run.facilities.iter().find(|f| f.name == facility) {
        Some(record) if record.title != facility => format!("{facility} ({})", record.title),
        _ => facility.to_owned(),
    }
}

fn finding(run: &Run, cell: &Cell) -> Option<String> {
    let Loss { loss, low, high, verdict } = cell.loss.as_ref()?;
    // A gain has the opposite sign, so the ends change places.
    let (verb, [loss, low, high]) = match verdict {
        LossVerdict::Faster => ("gains", [-loss, -high, -low]),
        _ => ("loses", [*loss, *low, *high]),
    };
    let figures = format!("{} % ({} … {})", percent(loss), percent(low), percent(high));
    let name = called(run, &cell.facility);
    Some(format!("{name} {verb} {figures} in {}, {}.", cell.workload, case_words(&cell.case)))
}

fn warnings(run: &Run, cells: &[Cell]) -> Vec<String> {
    let of_machine = [run.disturbance().message, steal(run), throttled(run), clock(run), idle(run), warm(run)];
    let of_figures = [too_few(run, cells), unsteady(run, cells), generator(run, cells), chance(cells), faster(cells)];
    let all = of_machine.into_iter().chain(of_figures).flatten();
    all.chain(failed(run)).chain(missing_baselines(run, cells)).chain(unfinished(run)).collect()
}

fn steal(run: &Run) -> Option<String> {
    let shares: Vec<f64> = run.passes.iter().map(|p| p.conditions.steal_share).collect();
    let (mean, most) = (shares.iter().sum::<f64>() / shares.len() as f64, shares.iter().copied().fold(0.0, f64::max));
    (most > STEAL).then(|| {
        format!(
            "A hypervisor took {} % of the processors' time on average, and {} % in the worst pass: that time is missing \
             from the figures.",
            percent(mean),
            percent(most)
        )
    })
}

fn throttled(run: &Run) -> Option<String> {
    let passes = run.passes.iter().filter(|p| p.conditions.throttled.is_some_and(|times| times > 0)).count();
    (passes > 0).then(|| format!("A processor was thermally throttled in {passes} of {} passes.", run.passes.len()))
}

fn clock(run: &Run) -> Option<String> {
    let mhz: Vec<f64> = run.passes.iter().filter_map(|p| p.conditions.mhz).collect();
    let spread = Spread::of(&mhz);
    (spread.relative() > CLOCK).then(|| {
        format!(
            "The processors' clock was between {:.0} and {:.0} MHz. Facilities took turns, so this widens intervals but \
             favours none of them.",
            spread.min, spread.max
        )
    })
}

fn idle(run: &Run) -> Option<String> {
    let most = run.sittings.iter().map(|s| s.idle_cpu).fold(0.0, f64::max);
    (most > IDLE).then(|| {
        format!(
            "Before anything was measured, {} % of one processor was busy with something else; processor time is counted over \
             the whole machine.",
            percent(most)
        )
    })
}

fn warm(run: &Run) -> Option<String> {
    (run.plan.caches == Caches::Warm).then(|| {
        "The page cache was not dropped, which requires root: reads may come from memory, without being decrypted."
            .into()
    })
}

/// Figures with too few passes to tell whether they are steady: a single one has no deviation.
fn too_few(run: &Run, cells: &[Cell]) -> Option<String> {
    let few = cells.iter().filter(|cell| is_of_too_few(run, cell)).count();
    let passes = run.plan.min_repeats.max(2);
    (few > 0).then(|| {
        let all = cells.len();
        format!("{few} of {all} figures come from fewer than {passes} passes: too few to tell whether they are steady.")
    })
}

fn is_of_too_few(run: &Run, cell: &Cell) -> bool {
    cell.samples.len() < run.plan.min_repeats.max(2)
}

fn unsteady(run: &Run, cells: &[Cell]) -> Option<String> {
    let unsteady: Vec<&Cell> = cells.iter().filter(|c| !c.steady && !is_of_too_few(run, c)).collect();
    let worst = unsteady.iter().max_by(|a, b| a.relative_deviation.total_cmp(&b.relative_deviation))?;
    Some(format!(
        "{} of {} figures are not steady to {} % after at most {} passes; the worst is {} in {}, {}, with {} %.",
        unsteady.len(),
        cells.len(),
        percent(run.plan.steady),
        run.plan.max_repeats,
        worst.facility,
        worst.workload,
        case_words(&worst.case),
        percent(worst.relative_deviation)
    ))
}

/// Writes for which generating the data takes a good part of the time.
fn generator(run: &Run, cells: &[Cell]) -> Option<String> {
    let slow = |cell: &&Cell| {
        let writes = cell.unit == Unit::BytesPerS && cell.case.operation.contains("write");
        let block = match (cell.case.axis, cell.case.x) {
            (Axis::Block, Some(x)) => x as u64,
            _ => u64::MAX,
        };
        let smaller = run.generator.iter().filter(|g| g.block_bytes <= block).max_by_key(|g| g.block_bytes);
        writes && smaller.or(run.generator.first()).is_some_and(|g| g.bytes_per_s < GENERATOR * cell.median)
    };
    let slow: Vec<&Cell> = cells.iter().filter(slow).collect();
    let first = slow.iter().max_by(|a, b| a.median.total_cmp(&b.median))?;
    Some(format!(
        "In {} write figures (the fastest: {} in {}, {}), generating the data takes more than a third of the time, so losses \
         look smaller than they are.",
        slow.len(),
        first.facility,
        first.workload,
        case_words(&first.case)
    ))
}

/// Intervals of 95 % miss in one case of twenty.
fn chance(cells: &[Cell]) -> Option<String> {
    let judged = cells.iter().filter(|c| c.loss.as_ref().is_some_and(|l| l.verdict != LossVerdict::TooFew)).count();
    let by_chance = (judged as f64 * (1.0 - CONFIDENCE)).round();
    (by_chance >= 1.0).then(|| {
        format!(
            "{judged} differences were judged, each with a 95 % interval: where there is no difference, about one in twenty is \
             still called faster or slower."
        )
    })
}

/// Gains, which encryption cannot cause.
fn faster(cells: &[Cell]) -> Option<String> {
    let faster = cells.iter().filter(|c| c.loss.as_ref().is_some_and(|l| l.verdict == LossVerdict::Faster)).count();
    (faster > 0).then(|| {
        format!(
            "{} faster than without encryption. Encryption cannot cause that, but a cache, another data path, other load on \
             the machine or chance can.",
            if faster == 1 { "1 figure is".to_owned() } else { format!("{faster} figures are") }
        )
    })
}

fn failed(run: &Run) -> Vec<String> {
    let missing = run.missing();
    let sentence = |failure: &RunFailure| {
        // A failure that was followed by a measurement is over.
        let lost = |workload: &str| missing.contains(&(&*failure.facility, workload));
        let passed = match &failure.workload {
            Some(workload) => !lost(workload),
            None => !run.workloads.iter().any(|w| lost(&w.name)),
        };
        let doing = failure.workload.as_deref().unwrap_or("setup");
        // The list of failures has the reasons.
        let then = if passed { " and was measured all the same" } else { "" };
        format!("{} failed in {doing}{then}", failure.facility)
    };
    let counted = |same: Vec<String>| match same.len() {
        1 => format!("{}: see the failures.", same[0]),
        times => format!("{}, {times} times: see the failures.", same[0]),
    };
    grouped(run.failures.iter().map(sentence), |a, b| a == b).into_iter().map(counted).collect()
}

fn missing_baselines(run: &Run, cells: &[Cell]) -> Vec<String> {
    let lacks = |name: &&String| {
        baseline_of(run, name).is_some_and(|baseline| {
            cells.iter().any(|c| c.facility == **name) && !cells.iter().any(|c| c.facility == baseline)
        })
    };
    let sentence = |name: &String| {
        format!(
            "The loss of {name} is unknown: its baseline {} was not measured.",
            baseline_of(run, name).unwrap_or_default()
        )
    };
    run.plan.on_all_media().iter().filter(lacks).map(sentence).collect()
}

fn unfinished(run: &Run) -> Option<String> {
    let interrupted = run.sittings.last().is_none_or(|s| s.after.is_none());
    interrupted.then(|| "The run was interrupted: there are fewer passes than planned.".into())
}
