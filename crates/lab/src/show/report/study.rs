//! The tables and conclusions of a repeated study as sections of a report.

use std::collections::BTreeSet;

use crate::model::figures::Run;
use crate::model::plan::Backing;
use crate::model::study::{Scenario, Study, StudyTable};
use crate::model::words::{percent, printable, size, word};
use crate::show::recommend::{Measured, Recommendation, recommend};
use crate::show::study::{FilledTable, JudgedConclusion, OwnFigure, StudyCell, conclusions, filled};
use crate::show::summary::Summary;

use super::panels::{Scale, once};
use super::run::exact;
use super::table::optional;
use super::{BarChart, Chart, ChartBar, ChartPoint, CsvRecord, Extra, LineChart};

/// Sections of the study that this run repeats; none where it repeats no study.
pub(super) fn sections(run: &Run, summary: &Summary) -> Vec<Extra> {
    let Some(study) = run.plan.study() else { return Vec::new() };
    let tables = filled(study, run, summary);
    let judged = conclusions(study, run, summary);
    let tables = tables.iter().map(table);
    [about(study, run)].into_iter().chain(tables).chain((!judged.is_empty()).then(|| claims(&judged))).collect()
}

/// A line for each cell of the tables.
pub(super) fn records<'a>(run: &'a Run, summary: &Summary) -> Vec<StudyRecord<'a>> {
    let Some(study) = run.plan.study() else { return Vec::new() };
    let of =
        |FilledTable { table, cells }: FilledTable<'a>| cells.into_iter().map(move |cell| StudyRecord { table, cell });
    filled(study, run, summary).into_iter().flat_map(of).collect()
}

/// What is repeated, and how much of it.
fn about(study: &Study, run: &Run) -> Extra {
    let (extent, plan) = (study.extent(run.plan.level), &run.plan);
    let times = match plan.min_repeats == plan.max_repeats {
        true => plan.min_repeats.to_string(),
        false => format!("{} to {}", plan.min_repeats, plan.max_repeats),
    };
    let level = match () {
        () if plan.scale != extent.scale || plan.min_repeats != extent.repeats => "In a size of its own",
        () if extent == study.thorough => "As published",
        () if extent == study.standard => "Scaled down",
        () => "A smoke test, which shows that it runs and little else",
    };
    let theirs = study.passes.map(|passes| format!(" (the study: {passes})")).unwrap_or_default();
    let size = format!(
        "{level}: data of {} % of the study's size, volumes of {}, {times} passes after a warm-up{theirs}.",
        percent(plan.scale),
        size(plan.size),
    );
    Extra { title: format!("{ABOUT}{}", study.title), text: vec![study.about.clone(), size], ..Extra::default() }
}

/// What was found, and the tables with a column for each facility, in Markdown for the documentation.
pub(super) fn markdown(run: &Run, summary: &Summary) -> String {
    let Some(study) = run.plan.study() else { return String::new() };
    let machine = &run.machine;
    let on = format!("{}, {}, {}. {}.", machine.cpu_model, machine.kernel, media(run), super::facts::sittings(run));
    let judged = conclusions(study, run, summary);
    let head = about(study, run);
    let claims = claims(&judged);
    let title = head.title.trim_start_matches(ABOUT).to_owned();
    let mut text = section("##", &title, head.text.into_iter().chain([on]));
    if !judged.is_empty() {
        let (method, said) = claims.text.split_first().expect("the method comes first");
        text += &section("###", &claims.title, [method.clone()].into_iter());
        said.iter().for_each(|said| text += &format!("- {}\n", escaped(said)));
        text.push('\n');
    }
    filled(study, run, summary).iter().for_each(|filled| text += &markdown_table(filled));
    text
}

fn section(level: &str, title: &str, paragraphs: impl Iterator<Item = String>) -> String {
    let paragraphs: String = paragraphs.map(|paragraph| format!("{}\n\n", escaped(&paragraph))).collect();
    format!("{level} {}\n\n{paragraphs}", escaped(title))
}

/// The rows that have a figure of ours, each with its unit: what is here, what that is less than without encryption, and the
/// same of the study. What only the study has is counted.
fn markdown_table(filled: &FilledTable<'_>) -> String {
    let (title, text) = words(filled);
    let ours = |cell: &&StudyCell<'_>| matches!(cell.here, OwnFigure::Figure { .. });
    let rows = once(filled.cells.iter().filter(ours).map(|cell| cell.row));
    let shown = |cell: &&StudyCell<'_>| rows.contains(&cell.row) && (ours(cell) || cell.theirs.is_some());
    let columns = once(filled.cells.iter().filter(shown).map(|cell| cell.column));
    let others = filled.cells.iter().filter(|cell| cell.theirs.is_some() && !rows.contains(&cell.row)).count();
    let more = match others {
        1 => "The study prints 1 more figure in this table, which has no counterpart here; `claviger lab report` shows it.".into(),
        _ => format!(
            "The study prints {others} more figures in this table, which have no counterpart here; `claviger lab report` shows \
             them."
        ),
    };
    let mut text = section("###", &title, text.into_iter());
    let found = |row: &str, column: &str| filled.cells.iter().find(|c| (c.row, c.column) == (row, column));
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    if !filled.table.scenarios.is_empty() {
        let lines = [ADVISED.map(str::to_owned)].into_iter().chain(advised(filled));
        let mut lines = lines.map(|cells| line(cells.iter().map(|cell| escaped(cell)).collect()));
        let head = lines.next().unwrap_or_default();
        return format!("{text}{head}|{}\n{}\n", "---|".repeat(ADVISED.len()), lines.collect::<String>());
    }
    for (number, of) in rows.iter().enumerate() {
        if number == 0 {
            text += &line(["what"].into_iter().chain(columns.iter().copied()).map(escaped).collect());
            text += &format!("|{}\n", "---|".repeat(columns.len() + 1));
        }
        let first = columns.iter().find_map(|column| found(of, column).filter(|cell| ours(cell)));
        let unit = first.and_then(|cell| scale(filled, cell));
        let what = match unit {
            Some(unit) if !unit.name.is_empty() => format!("{of}, {}", unit.name),
            _ => (*of).to_owned(),
        };
        let of_row = |cell: &StudyCell<'_>| unit.filter(|_| first.is_some_and(|first| first.unit == cell.unit));
        let cells =
            columns.iter().map(|column| found(of, column).map(|cell| both(cell, of_row(cell))).unwrap_or_default());
        text += &line([escaped(&what)].into_iter().chain(cells).collect());
    }
    if !rows.is_empty() {
        text.push('\n');
    }
    if others > 0 { text + &more + "\n\n" } else { text }
}

/// A figure of ours, and below it that of the study: in the unit of the row, or each in a unit of its own.
fn both(cell: &StudyCell<'_>, of_row: Option<Scale>) -> String {
    let [_, _, unit, mut here, _, lost_here, theirs, lost_there, _] = row(cell, of_row);
    if cell.here.ends().is_some() && cell.theirs.as_ref().is_some_and(|theirs| theirs.value.is_none()) {
        here = format!("{here} {unit}");
    }
    let with = |figure: String, lost: String| if lost.is_empty() { figure } else { format!("{figure} (−{lost} %)") };
    let with = |figure, lost| escaped(&with(figure, lost)).replace("−-", "+");
    let theirs = if theirs.is_empty() { theirs } else { format!("<br>study: {}", with(theirs, lost_there)) };
    with(here, lost_here) + &theirs
}

/// What Markdown would take for its own, taken as it is.
fn escaped(text: &str) -> String {
    let special = |c: char| matches!(c, '\\' | '`' | '*' | '_' | '|' | '<' | '[' | '#');
    printable(text).chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

fn media(run: &Run) -> String {
    let kind = |medium: &Backing| match medium {
        Backing::Tmpfs(_) => "data in memory",
        Backing::Folder(_) => "data in files on a disk",
        Backing::Device(_) => "data on a device",
    };
    run.plan.media().map(kind).collect::<Vec<_>>().join(", then ")
}

/// What the title of the first section begins with.
const ABOUT: &str = "The study: ";

/// With fewer places there is no line.
const FEWEST: usize = 3;

const COLUMNS: [&str; 9] =
    ["what", "with", "unit", "here", "95 %", "lost here %", "the study", "lost there %", "times"];

fn table(filled: &FilledTable<'_>) -> Extra {
    let (title, text) = words(filled);
    if !filled.table.scenarios.is_empty() {
        let rows = advised(filled).map(|cells| cells.to_vec()).collect();
        return Extra { title, text, columns: ADVISED.map(str::to_owned).to_vec(), rows, chart: None };
    }
    let rows = filled.cells.iter().map(|cell| row(cell, scale(filled, cell)).to_vec()).collect();
    let chart =
        filled.table.chart.then(|| lines(&title, filled).unwrap_or_else(|| Chart::Bars(bar_chart(&title, filled))));
    Extra { title, text, columns: COLUMNS.map(str::to_owned).to_vec(), rows, chart }
}

/// What is advised in each scenario.
const ADVISED: [&str; 3] = ["who", "today", "what counts"];

/// Reasons that are told of each.
const TOLD: usize = 2;

/// For each scenario, the answer of `claviger lab recommend` by its rules alone. The run's figures are ignored: the run measured
/// only the study's facilities, and all others would lose for lack of figures.
fn advised(filled: &FilledTable<'_>) -> impl Iterator<Item = [String; 3]> {
    filled.table.scenarios.iter().map(|Scenario { title, answers }| {
        let Recommendation { first, .. } = recommend(answers, &Measured::default());
        let mut why: Vec<_> = first.iter().flat_map(|choice| &choice.reasons).collect();
        why.sort_by_key(|reason| -reason.points);
        let why: Vec<&str> = why.iter().take(TOLD).map(|reason| &*reason.text).collect();
        let (name, why) = (first.as_ref().map_or("none fits".to_owned(), |choice| choice.name.clone()), why.join(" "));
        [title.clone(), name, why]
    })
}

/// The title of a table, and what there is to say of it.
fn words(filled: &FilledTable<'_>) -> (String, Vec<String>) {
    let number = &filled.table.number;
    let title =
        if number.is_empty() { filled.table.title.clone() } else { format!("{number}: {}", filled.table.title) };
    let reason = |cell: &'_ StudyCell<'_>| match &cell.here {
        OwnFigure::Missing(why) => Some(why.clone()),
        _ => None,
    };
    let reasons: BTreeSet<String> = filled.cells.iter().filter_map(reason).collect();
    let one_for_all =
        reasons.len() == 1 && !filled.cells.iter().any(|cell| matches!(cell.here, OwnFigure::Figure { .. }));
    let missing = filled.cells.iter().filter_map(|cell| match one_for_all {
        true => Some(format!("Not measured here: {}", reason(cell)?)),
        false => Some(format!("Not measured here: {}: {}", not_measured(filled, cell), reason(cell)?)),
    });
    (title, [format!("What differs: {}", filled.table.differs)].into_iter().chain(once(missing)).collect())
}

/// The facility of a cell without a figure, and the row where the facility has figures of others.
fn not_measured(filled: &FilledTable<'_>, cell: &StudyCell<'_>) -> String {
    let facility = cell.facility.as_deref().unwrap_or(cell.column);
    let mut of_facility = filled.cells.iter().filter(|other| other.facility == cell.facility);
    match of_facility.any(|other| matches!(other.here, OwnFigure::Figure { .. })) {
        true => format!("{facility}, {}", cell.row),
        false => facility.to_owned(),
    }
}

/// The unit of all figures of a row.
fn scale(filled: &FilledTable<'_>, cell: &StudyCell<'_>) -> Option<Scale> {
    let of_row = filled.cells.iter().filter(|other| other.row == cell.row && other.unit == cell.unit);
    Some(Scale::of(cell.unit?, of_row.filter_map(|cell| cell.here.ends().or(theirs(cell))).map(|ends| ends[0])))
}

fn row(cell: &StudyCell<'_>, scale: Option<Scale>) -> [String; 9] {
    let share = |loss: Option<f64>| loss.map(percent).unwrap_or_default();
    let written = |value: f64| scale.map_or_else(|| value.to_string(), |scale| scale.text(value));
    let (here, interval, loss) = match &cell.here {
        OwnFigure::Figure { median, low, high, loss, .. } => {
            let interval =
                if low == high { String::new() } else { format!("{} … {}", written(*low), written(*high)) };
            (written(*median), interval, share(*loss))
        }
        OwnFigure::Missing(_) => ("–".to_owned(), String::new(), String::new()),
        OwnFigure::Nothing => Default::default(),
    };
    // A figure that could not be converted stands as it is printed.
    let comparable = cell.theirs.as_ref().and_then(|theirs| theirs.value).filter(|_| scale.is_some());
    let theirs = cell.theirs.as_ref().map(|theirs| match comparable {
        Some(value) => written(value),
        None => theirs.printed.clone(),
    });
    let times = match (&cell.here, comparable) {
        (OwnFigure::Figure { median, .. }, Some(theirs)) => format!("{:.1}", median / theirs),
        _ => String::new(),
    };
    [
        cell.row.to_owned(),
        cell.column.to_owned(),
        scale.map(|scale| scale.name.to_owned()).unwrap_or_default(),
        here,
        interval,
        loss,
        theirs.unwrap_or_default(),
        share(cell.theirs.as_ref().and_then(|t| t.loss)),
        times,
    ]
}

/// Lines of what is here, and of what the study has, where the rows are places on one axis: nothing otherwise.
fn lines(title: &str, filled: &FilledTable<'_>) -> Option<Chart> {
    let rows = &filled.table.rows;
    let xs = once(rows.iter().filter_map(|row| row.x));
    let units = once(filled.cells.iter().filter_map(|cell| cell.unit));
    let [unit] = units[..] else { return None };
    if xs.len() < FEWEST || rows.iter().any(|row| row.x.is_none()) {
        return None;
    }
    let figures = filled.cells.iter().flat_map(|cell| [cell.here.ends(), theirs(cell)]).flatten();
    let scale = Scale::of(unit, figures.map(|ends| ends[0]));
    let groups = once(rows.iter().map(|row| (&row.operation, &row.series)));
    let of = |published: bool| {
        let line = |column: &str, (operation, series): (&String, &String)| {
            let name = if groups.len() == 1 { column.to_owned() } else { format!("{column}, {series}") };
            let mut points: Vec<ChartPoint> = Vec::new();
            for row in rows.iter().filter(|row| (&row.operation, &row.series) == (operation, series)) {
                let cell = filled.cells.iter().find(|cell| cell.row == row.title && cell.column == column);
                let figure = cell.and_then(|cell| if published { theirs(cell) } else { cell.here.ends() });
                points.extend(row.x.zip(figure.map(|f| f.map(|v| v / scale.one))));
            }
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            (name, points)
        };
        let columns = filled.table.columns.iter().map(|column| column.title.as_str());
        let all = columns.flat_map(|column| groups.iter().map(move |group| line(column, *group)));
        let title = format!("{title}: {}", if published { "the study" } else { "here" });
        LineChart { title, unit: scale.name.to_owned(), lines: all.filter(|(_, points)| !points.is_empty()).collect() }
    };
    let charts: Vec<LineChart> = [of(false), of(true)].into_iter().filter(|chart| !chart.lines.is_empty()).collect();
    (!charts.is_empty()).then_some(Chart::Lines(charts))
}

/// Bars of what is here and of what the study has, row by row.
fn bar_chart(title: &str, filled: &FilledTable<'_>) -> BarChart {
    let rows = once(filled.cells.iter().filter(|cell| cell.unit.is_some()).map(|cell| cell.row));
    let groups = rows.into_iter().map(|row| {
        let cells = filled.cells.iter().filter(|cell| cell.row == row && cell.unit.is_some());
        let unit = cells.clone().find_map(|cell| scale(filled, cell));
        let bars = cells.flat_map(|cell| bars(cell, scale(filled, cell)));
        (format!("{row}, {}", unit.map_or("", |unit| unit.name)), bars.collect())
    });
    BarChart { title: title.to_owned(), groups: groups.collect() }
}

fn bars(cell: &StudyCell<'_>, scale: Option<Scale>) -> Vec<ChartBar> {
    let Some(scale) = scale else { return Vec::new() };
    let bar = |who: &str, ends: [f64; 3], published: bool| ChartBar {
        name: format!("{}, {who}", cell.column),
        figure: ends.map(|v| v / scale.one),
        text: scale.text(ends[0]),
        published,
    };
    let here = cell.here.ends().map(|ends| bar("here", ends, false));
    here.into_iter().chain(theirs(cell).map(|ends| bar("study", ends, true))).collect()
}

/// The study's figure, which has no interval.
fn theirs(cell: &StudyCell<'_>) -> Option<[f64; 3]> {
    cell.theirs.as_ref()?.value.map(|value| [value; 3])
}

/// What the conclusions come to.
fn claims(judged: &[JudgedConclusion<'_>]) -> Extra {
    let said = |JudgedConclusion { text, source, verdict, why }: &JudgedConclusion<'_>| {
        format!("{verdict}: {text} ({source}) {why}")
    };
    let method = "A conclusion is still true or no longer where the whole 95 % interval of each figure that decides lies on one \
                  side of its criterion. It cannot be said where the run moved too little of the study's data, or on another \
                  medium; and where single samples of figures that are not steady, other load on the machine or the server in \
                  front of the baseline could change the answer.";
    Extra {
        title: "What the study's conclusions come to here".into(),
        text: [method.to_owned()].into_iter().chain(judged.iter().map(said)).collect(),
        ..Extra::default()
    }
}

/// A line of the tables for machines.
pub(super) struct StudyRecord<'a> {
    table: &'a StudyTable,
    cell: StudyCell<'a>,
}

impl CsvRecord for StudyRecord<'_> {
    fn record(&self) -> Vec<(&'static str, String)> {
        let Self { table, cell: StudyCell { row, column, facility, unit, here, theirs } } = self;
        let number = |value: Option<f64>| optional(&value, |value| exact(*value));
        let [median, low, high] = here.ends().map_or([None; 3], |ends| ends.map(Some)).map(number);
        let (samples, loss, missing) = match here {
            OwnFigure::Figure { samples, loss, .. } => (samples.to_string(), *loss, String::new()),
            OwnFigure::Missing(why) => (String::new(), None, why.clone()),
            OwnFigure::Nothing => Default::default(),
        };
        vec![
            ("table", table.number.clone()),
            ("title", table.title.clone()),
            ("row", (*row).to_owned()),
            ("column", (*column).to_owned()),
            ("facility", facility.clone().unwrap_or_default()),
            ("unit", optional(unit, word)),
            ("median", median),
            ("low", low),
            ("high", high),
            ("samples", samples),
            ("loss", number(loss)),
            ("missing", missing),
            ("published", number(theirs.as_ref().and_then(|t| t.value))),
            ("published_as_printed", optional(theirs, |t| t.printed.clone())),
            ("published_loss", number(theirs.as_ref().and_then(|t| t.loss))),
        ]
    }
}
