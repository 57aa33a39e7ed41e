//! A study's tables and conclusions, filled from a run.

use serde::Serialize;

use crate::measure::workloads::filesystems::not_done;
use crate::model::figures::{Run, Unit};
use crate::model::published::Figure;
use crate::model::statistics::{self, LossVerdict};
use crate::model::study::{ConclusionCheck, ShownPart, Study, StudyColumn, StudyConclusion, StudyRow, StudyTable};
use crate::model::words::percent;
use crate::show::published::losses_of;
use crate::show::summary::{self, Summary};

/// The model of the processor, as user-mode Linux tells it.
const USER_MODE_LINUX: &str = "UML";

/// Why a run there has no figures: its system calls and its disk cost what they do nowhere else.
const NO_MACHINE: &str =
    "This run was made in user-mode Linux, which shows whether something works, and not how fast it is.";

/// Why a figure is missing where nothing else says so.
const NONE: &str = "This run has no figure for it.";

/// What a row and a column of a table together are a figure of.
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
    /// Nothing where only the study has a figure.
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
    /// Name of the facility, with its medium where it is not the first.
    pub facility: Option<String>,
    /// What the figures count, here and there; nothing where the study's could not be converted.
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
        loss: Option<f64>,
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
    /// In the unit of the cell; nothing where it cannot be converted, or is a time for more than this run did.
    pub value: Option<f64>,
    /// As it is printed.
    pub printed: String,
    /// What is lost against the study's own figure without encryption.
    pub loss: Option<f64>,
}

/// The tables of the study that this run repeats.
pub fn filled<'a>(study: &'a Study, run: &Run, summary: &Summary) -> Vec<FilledTable<'a>> {
    let fill = |table: &'a StudyTable| {
        let pairs = table.rows.iter().flat_map(|row| table.columns.iter().map(move |column| (row, column)));
        FilledTable {
            table,
            cells: pairs.filter_map(|(row, column)| cell(study, table, row, column, (run, summary))).collect(),
        }
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
    (!nothing).then_some(StudyCell { row: &row.title, column: &column.title, facility, unit, here, theirs })
}

/// The published figure and its unit, which is none where it has another one than what was measured.
fn published(
    (study, run): (&Study, &Run),
    table: &StudyTable,
    row: &StudyRow,
    column: &StudyColumn,
    measured: Option<Unit>,
) -> Option<(PublishedCell, Option<Unit>)> {
    let figure = study.published(table, row, column)?;
    let base = column.against.as_ref().and_then(|title| {
        let against = table.columns.iter().find(|c| c.title == *title)?;
        study.published(table, row, against)
    });
    let loss = base.map(|base| match figure.in_our_units() {
        Some((_, Unit::Seconds)) => 1.0 - base.value / figure.value,
        _ => 1.0 - figure.value / base.value,
    });
    let loss = loss.or_else(|| printed_loss(&figure));
    let of_all = |unit: Unit| run.plan.scale == 1.0 || !matches!(unit, Unit::Seconds | Unit::CostSeconds);
    // What it takes to make a volume is a cost here and a time there.
    let same = |measured: Unit, unit: Unit| measured == unit || (measured, unit) == (Unit::CostSeconds, Unit::Seconds);
    let ours = figure
        .in_our_units()
        .filter(|(_, unit)| measured.is_none_or(|measured| same(measured, *unit) && of_all(measured)));
    let printed = format!("{} {}", figure.value, figure.unit);
    let value = ours.map(|(value, _)| value);
    Some((PublishedCell { value, printed, loss }, ours.map(|(_, unit)| unit)))
}

/// The loss of a figure that is printed as a share of what there is without encryption.
fn printed_loss(figure: &Figure) -> Option<f64> {
    losses_of(std::slice::from_ref(figure)).first().filter(|loss| loss.share_only).map(|loss| loss.loss)
}

/// What this run has of a case, wherever its axis lies if no place is named.
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

/// Why there is no figure of a medium, counted from 0, that was not measured.
fn no_medium(medium: usize) -> String {
    let number = medium + 1;
    format!("It needs a medium number {number}: name each medium with its own --dir or --device (folders come first).")
}

/// What of it the row shows.
///
/// # Errors
/// Why there is none.
fn shown(cell: &summary::Cell, show: ShownPart) -> Result<(OwnFigure, Unit), String> {
    let (samples, of_loss) = (cell.samples.len(), cell.loss.as_ref().map(|l| l.loss));
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
    let failure = run.failures.iter().find(failed).map(|f| format!("It failed: {}", f.error.replace('\n', " ")));
    let reason = of_facility.or(of_workload).or(of_pair).or(failure);
    reason.unwrap_or_else(|| NONE.into())
}

/// What a conclusion comes to here.
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
    study.conclusions.iter().map(|claim| judge(claim, run, summary)).collect()
}

fn judge<'a>(claim: &'a StudyConclusion, run: &Run, summary: &Summary) -> JudgedConclusion<'a> {
    let judged: Vec<(Option<bool>, String)> = claim.checks.iter().map(|check| holds(check, run, summary)).collect();
    let verdict = match () {
        () if judged.iter().any(|(holds, _)| *holds == Some(false)) => "No longer",
        () if judged.is_empty() || judged.iter().any(|(holds, _)| holds.is_none()) => "Cannot be said",
        () => "Still true",
    };
    let said = claim.unless.iter().cloned().chain(judged.into_iter().map(|(_, said)| said));
    JudgedConclusion { text: &claim.text, source: &claim.source, verdict, why: said.collect::<Vec<_>>().join(" ") }
}

/// Whether it holds with the whole of its interval, or fails with the whole of it; and the figure in words.
fn holds(check: &ConclusionCheck, run: &Run, summary: &Summary) -> (Option<bool>, String) {
    let ConclusionCheck { workload, operation, series, x, facility, at_least, at_most, .. } = check;
    let own = Meant { workload, operation, series, x: *x, facility, medium: 0 };
    let base = Meant {
        operation: check.against_operation.as_ref().unwrap_or(operation),
        series: check.against_series.as_ref().unwrap_or(series),
        x: check.against_x.or(*x),
        facility: check.against.as_ref().unwrap_or(facility),
        ..own
    };
    let (own_words, base_words) = (own.words(base), base.words(own));
    let one = |meant| found(run, summary, meant);
    let (own, base) = match (one(own), one(base)) {
        (Ok(own), Ok(base)) => (own, base),
        (Err(why), _) => return (None, format!("{own_words} in {workload}: {why}")),
        (_, Err(why)) => return (None, format!("{base_words} in {workload}: {why}")),
    };
    // A share of performance: what takes twice as long has half of it.
    let loss = match own.unit {
        Unit::Seconds => statistics::loss_of_times(&base.samples, &own.samples, run.plan.seed),
        _ => statistics::loss(&base.samples, &own.samples, run.plan.seed),
    };
    let (share, low, high) = (1.0 - loss.loss, 1.0 - loss.high, 1.0 - loss.low);
    let within = |share: f64| at_least.is_none_or(|least| share >= least) && at_most.is_none_or(|most| share <= most);
    let outside = at_least.is_some_and(|least| high < least) || at_most.is_some_and(|most| low > most);
    let holds = match () {
        () if loss.verdict == LossVerdict::TooFew || !share.is_finite() => None,
        () if within(low) && within(high) => Some(true),
        () if outside => Some(false),
        () => None,
    };
    let few = if loss.verdict == LossVerdict::TooFew { ", from too few passes" } else { "" };
    let of = format!("{workload}, {operation}: {own_words} is at {} % of {base_words}", percent(share));
    (holds, format!("{of} ({} … {}{few}).", percent(low), percent(high)))
}

impl Meant<'_> {
    /// What it is beside another: the facility, and whatever else they differ in.
    fn words(self, other: Self) -> String {
        let x = |x: Option<f64>| x.map(|x| format!("at {x}")).unwrap_or_default();
        let parts = [
            (self.operation.to_owned(), self.operation != other.operation),
            (self.series.to_owned(), self.series != other.series),
            (x(self.x), self.x != other.x),
        ];
        let differ = parts.into_iter().filter(|(text, differ)| *differ && !text.is_empty()).map(|(text, _)| text);
        [self.facility.to_owned()].into_iter().chain(differ).collect::<Vec<_>>().join(", ")
    }
}
