//! A study's tables and conclusions, filled from a run.

use serde::Serialize;

use crate::measure::workloads::filesystems::not_done;
use crate::model::case::Unit;
use crate::model::figures::{FEW, Run};
use crate::model::machine::OtherLoad;
use crate::model::plan::Backing;
use crate::model::published::Figure;
use crate::model::statistics::{self, Loss, LossVerdict};
use crate::model::study::{
    ConclusionCheck, ShownPart, Study, StudyColumn, StudyConclusion, StudyMedium, StudyRow, StudyTable,
};
use crate::model::words::percent;
use crate::show::published::losses_of;
use crate::show::summary::{self, Summary};

/// The model of the processor, as user-mode Linux tells it.
const USER_MODE_LINUX: &str = "UML";

/// Why a run there has no figures: system calls and disk accesses cost much more than elsewhere.
const NO_MACHINE: &str =
    "This run was made in user-mode Linux, which shows whether something works, and not how fast it is.";

/// The beginning of a reason that is an error.
pub(crate) const FAILED: &str = "It failed: ";

/// Why a figure is missing, if nothing else gives a reason.
const NONE: &str = "This run has no figure for it.";

/// The figure that belongs in a row and a column of a table.
#[derive(Clone, Copy, Debug)]
struct Meant<'a> {
    workload: &'a str,
    operation: &'a str,
    series: &'a str,
    x: Option<f64>,
    facility: &'a str,
    /// Counted from 0.
    medium: usize,
}

impl<'a> Meant<'a> {
    /// `None` if only the study has a figure.
    fn of(table: &'a StudyTable, row: &'a StudyRow, column: &'a StudyColumn) -> Option<Self> {
        let either = |row: &'a String, column: &'a String| if row.is_empty() { column } else { row };
        Some(Self {
            workload: row.workload.as_ref().or(column.workload.as_ref())?,
            operation: either(&row.operation, &column.operation),
            series: either(&row.series, &column.series),
            x: row.x,
            facility: column.facility.as_ref()?,
            medium: column.medium_in(table),
        })
    }
}

/// A table with what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilledTable<'a> {
    /// The study's table.
    #[serde(skip)]
    pub table: &'a StudyTable,
    /// Row by row, each with its columns. Those that neither the study nor this run can have are left out.
    pub cells: Vec<StudyCell<'a>>,
}

/// One figure, and the published one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyCell<'a> {
    /// Title of the row.
    pub row: &'a str,
    /// Title of the column.
    pub column: &'a str,
    /// Name of the workload.
    pub workload: Option<&'a str>,
    /// Name of the facility, with its medium where it is not the first.
    pub facility: Option<String>,
    /// What the figures count, here and there; `None` if the study's could not be converted.
    pub unit: Option<Unit>,
    /// What was measured here.
    pub here: OwnFigure,
    /// What the study published.
    pub theirs: Option<PublishedCell>,
}

/// A figure of this run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnFigure {
    /// It was measured.
    Figure {
        /// In the unit of the cell.
        median: f64,
        /// Lower end of its 95 % interval.
        low: f64,
        /// Upper end.
        high: f64,
        /// How many samples.
        samples: usize,
        /// What is lost against the baseline.
        loss: Option<Loss>,
    },
    /// It was not measured: why.
    Missing(String),
    /// Only the study has it.
    Nothing,
}

impl OwnFigure {
    /// The median and the ends of its interval.
    pub(crate) fn ends(&self) -> Option<[f64; 3]> {
        match self {
            Self::Figure { median, low, high, .. } => Some([*median, *low, *high]),
            Self::Missing(_) | Self::Nothing => None,
        }
    }
}

/// A published figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedCell {
    /// In the unit of the cell; `None` if the figure cannot be converted, is in doubt, or is a time for more work than
    /// this run did.
    pub value: Option<f64>,
    /// The figure as printed, and a remark if it looks wrong: a figure in doubt has neither a value nor a loss.
    pub printed: String,
    /// The loss against the study's own figure without encryption; `None` if the figure measures no performance.
    pub loss: Option<f64>,
}

/// The tables of the study that this run repeats.
pub fn filled<'a>(study: &'a Study, run: &Run, summary: &Summary) -> Vec<FilledTable<'a>> {
    let fill = |table: &'a StudyTable| {
        let pairs = table.rows.iter().flat_map(|row| table.columns.iter().map(move |column| (row, column)));
        let cells = pairs.filter_map(|(row, column)| cell(study, table, row, column, (run, summary))).collect();
        FilledTable { table, cells }
    };
    study.tables.iter().map(fill).collect()
}

fn cell<'a>(
    study: &Study,
    table: &StudyTable,
    row: &'a StudyRow,
    column: &'a StudyColumn,
    (run, summary): (&Run, &Summary),
) -> Option<StudyCell<'a>> {
    let facility = column.facility.as_ref().and_then(|name| run.plan.on_medium(name, column.medium_in(table)));
    let (here, measured) = match Meant::of(table, row, column) {
        None => (OwnFigure::Nothing, None),
        Some(meant) => match found(run, summary, meant).and_then(|cell| shown(cell, row.show)) {
            Ok((here, unit)) => (here, Some(unit)),
            Err(why) => (OwnFigure::Missing(why), None),
        },
    };
    let (theirs, printed) = published((study, run), table, row, column, measured).unzip();
    let nothing = here == OwnFigure::Nothing && theirs.is_none();
    let unit = measured.or(printed.flatten());
    let workload = row.workload.as_deref().or(column.workload.as_deref());
    (!nothing).then_some(StudyCell { row: &row.title, column: &column.title, workload, facility, unit, here, theirs })
}

/// The published figure and its unit, `None` if the unit differs from that of the measured figure.
fn published(
    (study, run): (&Study, &Run),
    table: &StudyTable,
    row: &StudyRow,
    column: &StudyColumn,
    measured: Option<Unit>,
) -> Option<(PublishedCell, Option<Unit>)> {
    let figure = study.published(table, row, column)?;
    let doubtful = figure.is_doubtful();
    let own = figure.in_our_units();
    let of_all = |unit: Unit| run.plan.scale == 1.0 || !matches!(unit, Unit::Seconds | Unit::CostSeconds);
    // The time to make a volume counts as a cost here, and as a time in the studies.
    let same = |measured: Unit, unit: Unit| measured == unit || (measured, unit) == (Unit::CostSeconds, Unit::Seconds);
    let ours = own.filter(|(_, unit)| measured.is_none_or(|measured| same(measured, *unit) && of_all(measured)));
    let printed = format!("{} {}{}", figure.value, figure.unit, if doubtful { " (suspect)" } else { "" });
    let value = ours.map(|(value, _)| value).filter(|_| !doubtful);
    let loss = published_loss(study, table, row, column, &figure);
    Some((PublishedCell { value, printed, loss }, ours.map(|(_, unit)| unit)))
}

/// The loss of a published figure against that of the unencrypted column. `None` if one of them is in doubt or measures no
/// performance.
fn published_loss(
    study: &Study,
    table: &StudyTable,
    row: &StudyRow,
    column: &StudyColumn,
    figure: &Figure,
) -> Option<f64> {
    let unit = figure.in_our_units().map(|(_, unit)| unit);
    let Some(title) = &column.against else { return printed_loss(figure) };
    let base = study.published(table, row, table.columns.iter().find(|c| c.title == *title)?)?;
    let loss = match unit {
        Some(Unit::Seconds) => 1.0 - base.value / figure.value,
        _ => 1.0 - figure.value / base.value,
    };
    let counts = unit.is_none_or(Unit::is_performance) && !figure.is_doubtful() && !base.is_doubtful();
    Some(loss).filter(|loss| counts && loss.is_finite())
}

/// The loss of a figure that is printed as a share of what there is without encryption.
fn printed_loss(figure: &Figure) -> Option<f64> {
    losses_of(std::slice::from_ref(figure)).first().filter(|loss| loss.share_only).map(|loss| loss.loss)
}

/// This run's figure of a case; if no place is named, at any place on its axis.
///
/// # Errors
/// Why there is none.
fn found<'a>(run: &Run, summary: &'a Summary, meant: Meant<'_>) -> Result<&'a summary::Cell, String> {
    let Meant { workload, operation, series, x, facility, medium } = meant;
    let Some(facility) = run.plan.on_medium(facility, medium) else { return Err(no_medium(medium)) };
    if run.machine.cpu_model == USER_MODE_LINUX {
        return Err(NO_MACHINE.into());
    }
    let is = |cell: &&summary::Cell| {
        cell.workload == workload
            && cell.facility == facility
            && cell.case.operation == operation
            && cell.case.series == series
            && (x.is_none() || cell.case.x == x)
    };
    let mut all = summary.cells.iter().filter(is);
    all.next().filter(|_| all.next().is_none()).ok_or_else(|| why(run, meant, &facility))
}

/// Why there is no figure of a medium that was not measured. `medium` is counted from 0.
fn no_medium(medium: usize) -> String {
    let number = medium + 1;
    format!("It needs a medium number {number}: name each medium with its own --dir or --device (folders come first).")
}

/// The value of a cell that the row shows.
///
/// # Errors
/// Why there is none.
fn shown(cell: &summary::Cell, show: ShownPart) -> Result<(OwnFigure, Unit), String> {
    let (samples, of_loss) = (cell.samples.len(), cell.loss.clone());
    match show {
        ShownPart::Figure => {
            let here =
                OwnFigure::Figure { median: cell.median, low: cell.low, high: cell.high, samples, loss: of_loss };
            Ok((here, cell.unit))
        }
        ShownPart::Processor => {
            let seconds = cell.cpu_s_per_gb.ok_or(NONE)?;
            let here = OwnFigure::Figure { median: seconds, low: seconds, high: seconds, samples, loss: None };
            Ok((here, Unit::CostSeconds))
        }
    }
}

/// Why there is no figure.
fn why(run: &Run, Meant { workload, series, .. }: Meant<'_>, facility: &str) -> String {
    let of_facility = run.facilities.iter().find(|f| f.name == facility).and_then(|f| f.left_out.clone());
    let of_workload = run.workloads.iter().find(|w| w.name == workload).and_then(|w| w.left_out.clone());
    let pair = format!("{facility} is not measured with {workload}: ");
    let filesystem = series.rsplit(", ").next().unwrap_or_default();
    let starts = [pair, not_done(workload, filesystem, "")];
    let of_pair = run.notes.iter().find_map(|note| starts.iter().find_map(|start| note.strip_prefix(start)));
    let of_pair = of_pair.map(str::to_owned);
    let failed = |f: &&crate::model::figures::RunFailure| {
        f.facility == facility && f.workload.as_deref().is_none_or(|of| of == workload)
    };
    let failure = run.failures.iter().find(failed).map(|f| format!("{FAILED}{}", f.error.replace('\n', " ")));
    let reason = of_facility.or(of_workload).or(of_pair).or(failure);
    reason.unwrap_or_else(|| match run.plan.scale {
        // What is too large for such a run is left out.
        scale if scale < 1.0 => {
            format!("This run has no figure for it, at {:.0} % of the study's size.", scale * 100.0)
        }
        _ => NONE.into(),
    })
}

/// The verdict on a conclusion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedConclusion<'a> {
    /// What the study says.
    pub text: &'a str,
    /// Where in the document it says so.
    pub source: &'a str,
    /// `Still true`, `No longer` or `Cannot be said`.
    pub verdict: &'static str,
    /// The figures that decide, or why there are none.
    pub why: String,
}

/// The study's conclusions, by this run.
pub fn conclusions<'a>(study: &'a Study, run: &Run, summary: &Summary) -> Vec<JudgedConclusion<'a>> {
    let here = Here { study, run, summary };
    study.conclusions.iter().map(|claim| here.judge(claim)).collect()
}

/// A verdict considers other programs if they kept at least this many processors busy.
const BUSY: f64 = 0.1;

/// The same for the share of the processors' time that a hypervisor took on average.
const STEAL: f64 = 0.02;

/// Baselines that this program serves, and the same layers without a server.
const SERVED: &[(&str, &str)] = &[("plain", "loop"), ("plain-files", "folder")];

/// A run, and the study whose conclusions it judges.
#[derive(Clone, Copy)]
struct Here<'a> {
    study: &'a Study,
    run: &'a Run,
    summary: &'a Summary,
}

/// A share of performance, and the ends of its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Between {
    share: f64,
    low: f64,
    high: f64,
}

impl Between {
    /// Whether the interval meets the check as a whole: `None` if only a part of it does.
    fn decides(self, check: &ConclusionCheck) -> Option<bool> {
        let ConclusionCheck { at_least, at_most, .. } = check;
        let within =
            |share: f64| at_least.is_none_or(|least| share >= least) && at_most.is_none_or(|most| share <= most);
        let outside = at_least.is_some_and(|least| self.high < least) || at_most.is_some_and(|most| self.low > most);
        match () {
            () if !self.share.is_finite() => None,
            () if within(self.low) && within(self.high) => Some(true),
            () if outside => Some(false),
            () => None,
        }
    }

    fn wider(self, low: f64, high: f64) -> Self {
        Self { low: self.low.min(low), high: self.high.max(high), ..self }
    }
}

impl<'r> Here<'r> {
    fn judge<'a>(self, claim: &'a StudyConclusion) -> JudgedConclusion<'a> {
        let all = |checks: &[ConclusionCheck]| checks.iter().map(|check| self.holds(check)).collect::<Vec<_>>();
        let (premises, judged) = (all(&claim.premises), all(&claim.checks));
        let premise = premises.iter().find(|(holds, _)| *holds != Some(true));
        let forbidden = claim.unless.clone().or_else(|| self.other_extent(claim)).or_else(|| self.other_medium(claim));
        let forbidden = forbidden.or_else(|| {
            let (_, why) = premise?;
            Some(format!("Its premise is not certain here: {why}"))
        });
        let verdict = match () {
            () if forbidden.is_some() || judged.is_empty() => "Cannot be said",
            () if judged.iter().any(|(holds, _)| *holds == Some(false)) => "No longer",
            () if judged.iter().any(|(holds, _)| holds.is_none()) => "Cannot be said",
            () => "Still true",
        };
        let reasons = forbidden.into_iter().chain(judged.into_iter().map(|(_, why)| why));
        let why = reasons.collect::<Vec<_>>().join(" ");
        JudgedConclusion { text: &claim.text, source: &claim.source, verdict, why }
    }

    /// Why a run of this size cannot judge it.
    fn other_extent(self, claim: &StudyConclusion) -> Option<String> {
        let (moved, least) = (self.run.plan.scale, claim.scale.unwrap_or(self.study.standard.scale));
        (moved < least).then(|| {
            format!("This run moved {} % of the study's data; a verdict takes {} %.", percent(moved), percent(least))
        })
    }

    /// Why a run on these media cannot judge it.
    fn other_medium(self, claim: &StudyConclusion) -> Option<String> {
        let theirs = claim.medium.or(self.study.medium)?;
        let media = claim.comparisons().map(|check| check.medium.unwrap_or(1).saturating_sub(1));
        let of = |medium| match self.run.plan.media().nth(medium)? {
            Backing::Tmpfs(_) => Some(StudyMedium::Memory),
            Backing::Folder(_) | Backing::Device(_) => Some(StudyMedium::Disk),
        };
        let words = |medium| match medium {
            StudyMedium::Memory => "in memory",
            StudyMedium::Disk => "on a disk",
        };
        let other = media.filter_map(of).find(|ours| *ours != theirs)?;
        Some(format!("The study's data were {}; this run's are {}.", words(theirs), words(other)))
    }

    /// Whether the whole interval meets the check, or none of it; and the figure in words.
    fn holds(self, check: &ConclusionCheck) -> (Option<bool>, String) {
        let (own_meant, base_meant) = (Meant::own(check), Meant::base(check));
        let (own, base) = match (self.cell(own_meant), self.base(check, base_meant)) {
            (Ok(own), Ok(base)) => (own, base),
            (Err(why), _) => {
                return (None, format!("{} in {}: {why}", own_meant.words(base_meant), own_meant.workload));
            }
            (_, Err(why)) => {
                return (None, format!("{} in {}: {why}", base_meant.words(own_meant), base_meant.workload));
            }
        };
        let facility: &str = if check.against_best.is_empty() { base_meant.facility } else { &base.facility };
        let base_meant = Meant { facility, ..base_meant };
        if !check.against_best.is_empty() && std::ptr::eq(own, base) {
            let (workload, operation, facility) = (&check.workload, &check.operation, &check.facility);
            let within = Between { share: 1.0, low: 1.0, high: 1.0 };
            return (within.decides(check), format!("{workload}, {operation}: {facility} is the best itself."));
        }
        let (between, few) = self.share(own, base);
        let mut sentence = format!(
            "{}, {}: {} is at {} % of {} ({} … {}{}).",
            check.workload,
            check.operation,
            own_meant.words(base_meant),
            percent(between.share),
            base_meant.words(own_meant),
            percent(between.low),
            percent(between.high),
            if few { ", from too few passes" } else { "" }
        );
        if few || between.decides(check).is_none() {
            return (None, sentence);
        }
        let mut doubted = between;
        for doubt in
            [self.unsteady(own, base, between), self.disturbed(check, between), self.served(own, base_meant, between)]
        {
            let Some((ends, why)) = doubt else { continue };
            doubted = doubted.wider(ends.low, ends.high);
            if doubted.decides(check).is_none() {
                sentence = format!("{sentence} {why}");
                return (None, sentence);
            }
        }
        (doubted.decides(check), sentence)
    }

    fn cell(self, meant: Meant<'_>) -> Result<&'r summary::Cell, String> {
        found(self.run, self.summary, meant)
    }

    /// What a figure is compared with: that of one facility, or the best of several.
    fn base(self, check: &ConclusionCheck, meant: Meant<'_>) -> Result<&'r summary::Cell, String> {
        if check.against_best.is_empty() {
            return self.cell(meant);
        }
        let of = |facility: &String| found(self.run, self.summary, Meant { facility, ..meant });
        let all = check.against_best.iter().map(of).collect::<Result<Vec<_>, String>>()?;
        let good = |cell: &summary::Cell| if cell.unit.more_is_better() { cell.median } else { -cell.median };
        all.into_iter().max_by(|a, b| good(a).total_cmp(&good(b))).ok_or_else(|| NONE.into())
    }

    /// A share of performance with its 95 % interval, and whether it comes from too few passes. If something takes
    /// twice as long, its performance is half. Figures of one workload are compared within their rounds, which other
    /// load slows down alike; figures of two were measured at different times.
    fn share(self, own: &summary::Cell, base: &summary::Cell) -> (Between, bool) {
        let seed = self.run.plan.seed;
        let loss = match (own.workload == base.workload, own.unit) {
            (true, Unit::Seconds) => statistics::loss_of_paired_times(&base.paired_with(own), seed),
            (true, _) => statistics::loss_of_pairs(&base.paired_with(own), seed),
            (false, Unit::Seconds) => statistics::loss_of_times(&base.samples, &own.samples, seed),
            (false, _) => statistics::loss(&base.samples, &own.samples, seed),
        };
        let between = Between { share: 1.0 - loss.loss, low: 1.0 - loss.high, high: 1.0 - loss.low };
        (between, loss.verdict == LossVerdict::TooFew)
    }

    /// For figures that are not steady: the range that single samples span, and a sentence about it. Samples are
    /// compared within a round, or, if the workloads differ, at any time.
    fn unsteady(self, own: &summary::Cell, base: &summary::Cell, between: Between) -> Option<(Between, String)> {
        let worst = own.relative_deviation.max(base.relative_deviation);
        let of_times = own.unit == Unit::Seconds;
        let share = |(base, own): (f64, f64)| if of_times { base / own } else { own / base };
        let pairs = match own.workload == base.workload {
            true => base.paired_with(own),
            false => vec![(base.spread.min, own.spread.max), (base.spread.max, own.spread.min)],
        };
        let shares = || pairs.iter().map(|pair| share(*pair));
        let (low, high) = (shares().fold(f64::INFINITY, f64::min), shares().fold(0.0, f64::max));
        (!own.steady || !base.steady).then(|| {
            let why = format!(
                "The figures are not steady ({} %): single samples give {} to {} %.",
                percent(worst),
                percent(low),
                percent(high)
            );
            (between.wider(low, high), why)
        })
    }

    /// The range that is possible because of other load on the machine: sharing processors may have slowed a program
    /// down by as much as the others used.
    fn disturbed(self, check: &ConclusionCheck, between: Between) -> Option<(Between, String)> {
        let cpus = self.run.machine.cpus.max(1);
        let most = |loads: &mut dyn Iterator<Item = f64>| loads.filter(|busy| busy.is_finite()).fold(0.0, f64::max);
        let passes = self.run.passes.iter().filter(|pass| pass.workload == check.workload && pass.round.is_some());
        let watched: Vec<OtherLoad> = passes.clone().filter_map(|pass| pass.conditions.others).collect();
        // In an older run, passes were not watched: only the load before it is known.
        let busy = match watched.is_empty() {
            true => most(&mut self.run.sittings.iter().map(|sitting| sitting.idle_cpu)),
            false => {
                let disturbed: Vec<&OtherLoad> = watched.iter().filter(|others| others.disturbs()).collect();
                let few = disturbed.len() as f64 <= FEW * watched.len() as f64;
                if few { 0.0 } else { most(&mut disturbed.into_iter().map(OtherLoad::processors)) }
            }
        };
        let stolen: Vec<f64> =
            passes.map(|pass| pass.conditions.steal_share).filter(|share| share.is_finite()).collect();
        let steal = stolen.iter().sum::<f64>() / stolen.len().max(1) as f64;
        let times = (1.0 + busy / cpus as f64) / (1.0 - steal.clamp(0.0, 0.9));
        (busy > BUSY || steal > STEAL).then(|| {
            let why = format!(
                "Other programs kept {busy:.1} of {cpus} processors busy, and a hypervisor took {} % of their time: either figure \
                 may be wrong by {times:.1} times.",
                percent(steal)
            );
            (between.wider(between.low / times, between.high * times), why)
        })
    }

    /// The range without the server in front of this baseline, if the study's baselines had none. A server takes a part
    /// of the time with and without encryption, so the loss seems smaller.
    fn served(self, own: &summary::Cell, base: Meant<'_>, between: Between) -> Option<(Between, String)> {
        let (served, bare) = SERVED.iter().find(|(served, _)| *served == base.facility)?;
        if !self.study.bare || own.facility.split('@').next() == Some(served) {
            return None;
        }
        let without = self.cell(Meant { facility: bare, ..base }).ok().map(|bare| self.share(own, bare).0);
        let why = match without {
            Some(without) => format!(
                "Unlike {served}, the study's baseline had no server in front of it. Against {bare}, which has none, \
                 the figure is {} %.",
                percent(without.share)
            ),
            None => format!(
                "Unlike {served}, the study's baseline had no server in front of it, and {bare} was not measured."
            ),
        };
        Some((between.wider(without.map_or(0.0, |without| without.low), between.high), why))
    }
}

impl<'a> Meant<'a> {
    /// The figure that a check is about.
    fn own(check: &'a ConclusionCheck) -> Self {
        let ConclusionCheck { workload, operation, series, x, facility, medium, .. } = check;
        Self { workload, operation, series, x: *x, facility, medium: medium.unwrap_or(1).saturating_sub(1) }
    }

    /// The figure that it is compared with. Another workload has other places and series, too.
    fn base(check: &'a ConclusionCheck) -> Self {
        let own = Self::own(check);
        let same = check.against_workload.is_none();
        Self {
            workload: check.against_workload.as_ref().map_or(own.workload, String::as_str),
            operation: check.against_operation.as_ref().map_or(own.operation, String::as_str),
            series: check.against_series.as_ref().map_or(if same { own.series } else { "" }, String::as_str),
            x: check.against_x.or(own.x.filter(|_| same)),
            facility: check.against.as_ref().map_or(own.facility, String::as_str),
            medium: check.against_medium.map_or(own.medium, |medium| medium.saturating_sub(1)),
        }
    }
}

impl Meant<'_> {
    /// Its name beside the other figure: the facility, and all parts in which the two differ.
    fn words(self, other: Self) -> String {
        let x = |x: Option<f64>| x.map(|x| format!("at {x}")).unwrap_or_default();
        let parts = [
            (self.workload.to_owned(), self.workload != other.workload),
            (self.operation.to_owned(), self.operation != other.operation),
            (self.series.to_owned(), self.series != other.series),
            (x(self.x), self.x != other.x),
        ];
        let differ = parts.into_iter().filter(|(text, differ)| *differ && !text.is_empty()).map(|(text, _)| text);
        [self.facility.to_owned()].into_iter().chain(differ).collect::<Vec<_>>().join(", ")
    }
}
