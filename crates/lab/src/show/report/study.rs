//! The tables and conclusions of a repeated study as sections of a report.

use crate::model::case::Axis;
use crate::model::figures::Run;
use crate::model::plan::Backing;
use crate::model::statistics::median;
use crate::model::study::{Repetition, Scenario, Study, StudySection, StudyTable};
use crate::model::words::{percent, printable, size, word};
use crate::show::once;
use crate::show::recommend::{Measured, Recommendation, recommend};
use crate::show::study::{FilledTable, JudgedConclusion, OwnFigure, StudyCell, conclusions, filled};
use crate::show::summary::Summary;

use super::missing::unmeasured;
use super::panels::Scale;
use super::table::{exact, optional};
use super::{Chart, CsvRecord, Extra, LossPair, PagePart};

/// Sections of the study that this run repeats; none where it repeats no study.
pub(super) fn sections(run: &Run, summary: &Summary) -> Vec<Extra> {
    let Some(study) = run.plan.study() else { return Vec::new() };
    let tables = filled(study, run, summary);
    let judged = conclusions(study, run, summary);
    let tables = tables.iter().map(|filled| table(filled, summary));
    let tables = section_by_section(study).into_iter().chain(tables).chain(costs(run, summary));
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
        () if plan.scale != extent.scale || plan.min_repeats != extent.repeats => "With an extent of its own",
        () if extent == study.thorough => "As published",
        () if extent == study.standard => "Scaled down",
        () => "A smoke test, which shows little more than that it runs",
    };
    let theirs = study.passes.map(|passes| format!(" (the study: {passes})")).unwrap_or_default();
    let size = format!(
        "{level}: data of {} % of the study's size, volumes of {}, {times} passes after a warm-up{theirs}.",
        percent(plan.scale),
        size(plan.size),
    );
    Extra {
        title: format!("{ABOUT}{}", study.title),
        text: vec![study.about.clone(), size],
        page: PagePart::Study,
        ..Extra::default()
    }
}

/// What was found, and the tables with a column for each facility, in Markdown for the documentation.
pub(super) fn markdown(run: &Run, summary: &Summary, disturbance: Option<&str>, warnings: &[String]) -> String {
    let Some(study) = run.plan.study() else { return String::new() };
    let machine = &run.machine;
    let on = format!("{}, {}, {}. {}.", machine.cpu_model, machine.kernel, media(run), super::facts::sittings(run));
    let judged = conclusions(study, run, summary);
    let head = about(study, run);
    let claims = claims(&judged);
    let title = head.title.trim_start_matches(ABOUT).to_owned();
    let mut text = section("##", &title, std::iter::empty());
    text += &disturbance.map(|message| format!("**{}**\n\n", escaped(message))).unwrap_or_default();
    text += &paragraphs(head.text.into_iter().chain([on]));
    if !warnings.is_empty() {
        let warnings: String = warnings.iter().map(|warning| format!("- {}\n", escaped(warning))).collect();
        text += &format!("{}{warnings}\n", section("###", "Warnings", std::iter::empty()));
    }
    if !judged.is_empty() {
        text += &section("###", &claims.title, claims.text.into_iter());
        text += &markdown_rows(&claims.columns, &claims.rows);
    }
    if let Some(Extra { title, text: what, columns, rows, .. }) = section_by_section(study) {
        text += &section("###", &title, what.into_iter());
        text += &markdown_rows(&columns, &rows);
    }
    let missing = unmeasured(run, summary);
    if !missing.is_empty() {
        text += &section("###", "Not measured here", std::iter::empty());
        text += &markdown_rows(&MISSING, &missing.iter().map(|u| [u.why.clone(), u.what()]).collect::<Vec<_>>());
    }
    filled(study, run, summary).iter().for_each(|filled| text += &markdown_table(filled));
    for Extra { title, text: method, columns, rows, .. } in costs(run, summary) {
        text += &section("###", &title, method.into_iter());
        text += &markdown_rows(&columns, &rows);
    }
    text
}

/// The parts of the study's document that are repeated; `None` if the study does not say.
fn section_by_section(study: &Study) -> Option<Extra> {
    let row = |StudySection { of, about, here, how }: &StudySection| {
        let here = match here {
            Repetition::Same => "the same",
            Repetition::Alike => "alike",
            Repetition::None => "not available",
        };
        vec![of.join(", "), about.clone(), here.to_owned(), how.clone()]
    };
    (!study.sections.is_empty()).then(|| Extra {
        title: "Section by section".into(),
        text: vec![
            "What the study published, by its tables, sections and appendices, and whether it is repeated here.".into(),
        ],
        columns: ["in the study", "about", "here", "how, or why not"].map(str::to_owned).to_vec(),
        rows: study.sections.iter().map(row).collect(),
        chart: None,
        page: PagePart::Tables,
    })
}

/// What each workload costs besides time: processor time and, where the machine counts it, energy.
fn costs(run: &Run, summary: &Summary) -> impl Iterator<Item = Extra> {
    let seconds = |workload: &str, facility: &str| -> Vec<f64> {
        let cells = summary.cells.iter().filter(|cell| cell.workload == workload && cell.facility == facility);
        cells.filter_map(|cell| cell.cpu_s_per_gb).collect()
    };
    let joules = |workload: &str, facility: &str| -> Vec<f64> {
        let passes = run.passes.iter().filter(|pass| pass.workload == workload && pass.facility == facility);
        passes.filter(|pass| pass.round.is_some()).filter_map(|pass| pass.conditions.energy_j).collect()
    };
    let processor_time = by_workload(
        run,
        ("Processor time by workload", "CPU s/GB"),
        "Processor time of the whole machine for each 10^9 bytes, in seconds: the median of the workload's figures. The excess over \
         the column without encryption is the cost of encryption and of its server.",
        &seconds,
    );
    let energy = by_workload(
        run,
        ("Energy by workload", "J"),
        "Energy that all processors of the machine used in a pass, in joules: the median. A pass includes work that is not timed, \
         such as creating and comparing files.",
        &joules,
    );
    processor_time.into_iter().chain(energy)
}

/// A table of medians with a row for each workload and a column for each facility; `None` if there are no figures.
fn by_workload(
    run: &Run,
    (title, unit): (&str, &str),
    what: &str,
    of: &dyn Fn(&str, &str) -> Vec<f64>,
) -> Option<Extra> {
    let facilities = run.plan.on_all_media();
    let row = |workload: &String| facilities.iter().map(|facility| of(workload, facility)).collect::<Vec<_>>();
    let rows: Vec<(&String, Vec<Vec<f64>>)> =
        run.plan.workloads.iter().map(|workload| (workload, row(workload))).collect();
    let any = |column: usize| rows.iter().any(|(_, cells)| !cells[column].is_empty());
    let columns: Vec<usize> = (0..facilities.len()).filter(|column| any(*column)).collect();
    let text = |cell: &Vec<f64>| if cell.is_empty() { "–".to_owned() } else { format!("{:.2}", median(cell)) };
    let rows: Vec<Vec<String>> = rows
        .iter()
        .filter(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()))
        .map(|(workload, cells)| {
            [format!("{workload}, {unit}")].into_iter().chain(columns.iter().map(|c| text(&cells[*c]))).collect()
        })
        .collect();
    let columns = ["workload".to_owned()].into_iter().chain(columns.iter().map(|column| facilities[*column].clone()));
    let (title, text, columns) = (title.to_owned(), vec![what.to_owned()], columns.collect());
    (!rows.is_empty()).then_some(Extra { title, text, columns, rows, chart: None, page: PagePart::Tables })
}

/// Headings of what was not measured.
const MISSING: [&str; 2] = ["why", "facilities (workloads)"];

/// A table in Markdown, and an empty line.
fn markdown_rows(columns: &[impl AsRef<str>], rows: &[impl AsRef<[String]>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = columns.iter().map(|name| escaped(name.as_ref())).collect();
    let rows = rows.iter().map(|row| line(&row.as_ref().iter().map(|cell| escaped(cell)).collect::<Vec<_>>()));
    format!("{}|{}\n{}\n", line(&head), "---|".repeat(head.len()), rows.collect::<String>())
}

fn section(level: &str, title: &str, text: impl Iterator<Item = String>) -> String {
    format!("{level} {}\n\n{}", escaped(title), paragraphs(text))
}

fn paragraphs(text: impl Iterator<Item = String>) -> String {
    text.map(|paragraph| format!("{}\n\n", escaped(&paragraph))).collect()
}

/// The rows with a figure of ours, each with its unit: our figure and its loss, and those of the study. Rows that only the
/// study has are counted.
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
        return text + &markdown_rows(&ADVISED, &advised(filled).collect::<Vec<_>>());
    }
    for (number, of) in rows.iter().enumerate() {
        if number == 0 {
            text += &line(["what"].into_iter().chain(columns.iter().copied()).map(escaped).collect());
            text += &format!("|{}\n", "---|".repeat(columns.len() + 1));
        }
        let first = columns.iter().find_map(|column| found(of, column).filter(|cell| ours(cell)));
        let unit = first.and_then(|cell| scale(filled, cell));
        let what = unit.map_or_else(|| (*of).to_owned(), |unit| format!("{of}, {}", unit.name));
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

/// The text with Markdown's special characters escaped.
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
    ["what", "with", "unit", "here", "95 % interval", "lost here %", "the study", "lost there %", "times"];

fn table(filled: &FilledTable<'_>, summary: &Summary) -> Extra {
    let (title, text) = words(filled);
    let page = PagePart::Tables;
    if !filled.table.scenarios.is_empty() {
        let rows = advised(filled).map(|cells| cells.to_vec()).collect();
        return Extra { title, text, columns: ADVISED.map(str::to_owned).to_vec(), rows, chart: None, page };
    }
    let rows = filled.cells.iter().map(|cell| row(cell, scale(filled, cell)).to_vec()).collect();
    let chart = if filled.table.chart { lines(filled, summary).or_else(|| bars(filled)) } else { None };
    Extra { title, text, columns: COLUMNS.map(str::to_owned).to_vec(), rows, chart, page }
}

/// What is advised in each scenario.
const ADVISED: [&str; 3] = ["who", "today", "what counts"];

/// Reasons that are given for each.
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

/// The title of a table, and the text below it.
fn words(filled: &FilledTable<'_>) -> (String, Vec<String>) {
    let number = &filled.table.number;
    let title =
        if number.is_empty() { filled.table.title.clone() } else { format!("{number}: {}", filled.table.title) };
    (title, vec![format!("What differs: {}", filled.table.differs)])
}

/// The unit of all figures of a row.
fn scale(filled: &FilledTable<'_>, cell: &StudyCell<'_>) -> Option<Scale> {
    let of_row = filled.cells.iter().filter(|other| other.row == cell.row && other.unit == cell.unit);
    Some(Scale::of(cell.unit?, of_row.filter_map(|cell| cell.here.ends().or(theirs(cell))).map(|ends| ends[0])))
}

fn row(cell: &StudyCell<'_>, scale: Option<Scale>) -> [String; 9] {
    let share = |loss: Option<f64>| loss.filter(|loss| loss.is_finite()).map(percent).unwrap_or_default();
    let written = |value: f64| scale.map_or_else(|| value.to_string(), |scale| scale.text(value));
    let (here, interval, loss) = match &cell.here {
        OwnFigure::Figure { median, low, high, loss, .. } => {
            let interval =
                if low == high { String::new() } else { format!("{} … {}", written(*low), written(*high)) };
            (written(*median), interval, share(loss.as_ref().map(|l| l.loss)))
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
        (OwnFigure::Figure { median, .. }, Some(theirs)) if theirs != 0.0 => format!("{:.1}", median / theirs),
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

/// Small charts of the losses, one for each column and series, if the rows are places on one axis; `None` otherwise.
fn lines(filled: &FilledTable<'_>, summary: &Summary) -> Option<Chart> {
    let rows = &filled.table.rows;
    if once(rows.iter().map(|row| row.x)).len() < FEWEST || rows.iter().any(|row| row.x.is_none()) {
        return None;
    }
    let groups = once(rows.iter().map(|row| (&row.operation, &row.series)));
    let small = |column: &str, (operation, series): (&String, &String)| {
        let title = if groups.len() == 1 { column.to_owned() } else { joined([column, operation, series]) };
        let of_group = rows.iter().filter(|row| (&row.operation, &row.series) == (operation, series));
        let mut points: Vec<(f64, LossPair)> = of_group
            .filter_map(|row| {
                let cell = filled.cells.iter().find(|cell| (cell.row, cell.column) == (&row.title, column))?;
                Some((row.x?, pair(cell)?))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (title, points)
    };
    let columns = filled.table.columns.iter().map(|column| column.title.as_str());
    let all = columns.flat_map(|column| groups.iter().map(move |group| (column, *group)));
    let charts: Vec<_> =
        all.map(|(column, group)| small(column, group)).filter(|(_, points)| points.len() > 1).collect();
    let of_table = |cell: &&crate::show::summary::Cell| {
        rows.iter().any(|row| row.workload.as_deref() == Some(&cell.workload) && row.x == cell.case.x)
    };
    let axis = summary.cells.iter().find(of_table).map_or(Axis::Block, |cell| cell.case.axis);
    (!charts.is_empty()).then_some(Chart::Lines(axis, charts))
}

/// Bars of the losses, row by row; `None` if that would be a single pair.
fn bars(filled: &FilledTable<'_>) -> Option<Chart> {
    let of = |row: &str| {
        let cells = filled.cells.iter().filter(|cell| cell.row == row);
        cells.filter_map(|cell| Some((cell.column.to_owned(), pair(cell)?))).collect::<Vec<_>>()
    };
    let rows = once(filled.cells.iter().map(|cell| cell.row)).into_iter();
    let groups: Vec<_> = rows.map(|row| (row.to_owned(), of(row))).filter(|(_, pairs)| !pairs.is_empty()).collect();
    (groups.iter().map(|(_, pairs)| pairs.len()).sum::<usize>() > 1).then_some(Chart::Bars(groups))
}

/// What is lost here and in the study, where both are known.
fn pair(cell: &StudyCell<'_>) -> Option<LossPair> {
    let OwnFigure::Figure { loss: Some(loss), .. } = &cell.here else { return None };
    let theirs = cell.theirs.as_ref()?.loss.filter(|loss| loss.is_finite())?;
    Some(LossPair { here: [loss.loss, loss.low, loss.high], theirs })
}

/// The words that are not empty.
fn joined(words: [&str; 3]) -> String {
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The study's figure, which has no interval.
fn theirs(cell: &StudyCell<'_>) -> Option<[f64; 3]> {
    cell.theirs.as_ref()?.value.map(|value| [value; 3])
}

/// Headings of the conclusions.
const VERDICTS: [&str; 4] = ["conclusion", "the study", "here", "verdict"];

/// The verdicts of the conclusions.
fn claims(judged: &[JudgedConclusion<'_>]) -> Extra {
    let row = |JudgedConclusion { text, source, verdict, why }: &JudgedConclusion<'_>| {
        vec![(*text).to_owned(), (*source).to_owned(), why.clone(), (*verdict).to_owned()]
    };
    let method = "The verdict is “Still true” or “No longer” only if the whole 95 % interval of each deciding figure lies on one \
                  side of its criterion. It is “Cannot be said” if the run moved too little of the study's data or used another \
                  medium. It is also “Cannot be said” if unsteady samples, other load on the machine or the server in front of \
                  the baseline could change the answer.";
    Extra {
        title: "What the study's conclusions come to here".into(),
        text: vec![method.to_owned()],
        columns: VERDICTS.map(str::to_owned).to_vec(),
        rows: judged.iter().map(row).collect(),
        page: PagePart::Verdicts,
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
        let Self { table, cell: StudyCell { row, column, workload: _, facility, unit, here, theirs } } = self;
        let number = |value: Option<f64>| optional(&value, |value| exact(*value));
        let [median, low, high] = here.ends().map_or([None; 3], |ends| ends.map(Some)).map(number);
        let (samples, loss, missing) = match here {
            OwnFigure::Figure { samples, loss, .. } => {
                (samples.to_string(), loss.as_ref().map(|l| l.loss), String::new())
            }
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
