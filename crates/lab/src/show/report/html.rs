//! A run as one self-contained page.

mod canvas;
mod charts;
mod sections;

use askama::Template;
use claviger_engine::{Error, Result};

use super::facts::{facts, method};
use super::missing::{failures, other_notes, unmeasured};
use super::table::is_numeric;
use super::{Extra, PagePart, RunReport};
use crate::model::figures::Run;
use canvas::Look;
use sections::{Ciphers, Drawing, Section};

/// The number of findings, and of notes, that are shown at once.
const AT_ONCE: usize = 8;

/// A cell with more characters than this is set as running text.
const LONG: usize = 40;

impl RunReport<'_> {
    /// One self-contained page with charts. It has no script, and fetches nothing.
    ///
    /// # Errors
    /// `Io` where a chart cannot be drawn.
    pub fn html(&self) -> Result<String> {
        page(self)
    }
}

fn page(report: &RunReport) -> Result<String> {
    let run = report.run;
    let looks = Looks::of(run);
    let mut extras: Vec<&Extra> = report.extras.iter().collect();
    extras.sort_by_key(|extra| extra.page);
    let of_study = extras.iter().take_while(|extra| extra.page != PagePart::Last).count();
    let mut study = extras.into_iter().enumerate().map(extra).collect::<Result<Vec<_>>>()?;
    let last = study.split_off(of_study);
    let notes = other_notes(run);
    let measured = run.workloads.iter().filter(|w| w.left_out.is_none());
    let page = Page {
        style: include_str!("../../../templates/run.css").to_owned() + &canvas::dark_style(),
        title: report.title(),
        subtitle: subtitle(run),
        study,
        glance: sections::glance(report),
        findings: first(&report.summary.findings),
        warnings: report.warnings(),
        notes: first(&notes),
        failures: failures(run),
        left_out: unmeasured(run, report.summary).into_iter().map(|u| (u.what(), u.why)).collect(),
        facilities: facilities(run, &looks)?,
        sections: measured.map(|w| sections::section(report, w, &looks)).collect::<Result<_>>()?,
        ciphers: sections::ciphers(&run.ciphers)?,
        extras: last,
        facts: facts(run),
        method: method(run),
        version: env!("CARGO_PKG_VERSION"),
    };
    page.render().map_err(|e| Error::from(std::io::Error::other(e)))
}

#[derive(Template)]
#[template(path = "run.html")]
struct Page<'a> {
    style: String,
    title: String,
    subtitle: String,
    /// What comes first: the study, its conclusions and its tables.
    study: Vec<ExtraSection<'a>>,
    glance: Option<Table>,
    /// The findings that are shown at once, and the others; the same for notes.
    findings: (&'a [String], &'a [String]),
    warnings: Vec<String>,
    notes: (&'a [String], &'a [String]),
    failures: Vec<(String, String)>,
    left_out: Vec<(String, String)>,
    facilities: Vec<Facility<'a>>,
    sections: Vec<Section<'a>>,
    ciphers: Option<Ciphers>,
    extras: Vec<ExtraSection<'a>>,
    facts: Vec<(&'static str, String)>,
    method: Vec<String>,
    version: &'static str,
}

/// A table of a page. Cells are escaped by the template.
struct Table {
    caption: String,
    columns: Vec<TableCell>,
    rows: Vec<Vec<TableCell>>,
}

impl Table {
    /// A table with these headings, which are aligned like the cells below them.
    fn new<'c>(
        caption: impl Into<String>,
        columns: impl IntoIterator<Item = &'c str>,
        rows: Vec<Vec<TableCell>>,
    ) -> Self {
        let numeric = |column: usize| {
            let mut cells = rows.iter().filter_map(|row| row.get(column)).peekable();
            cells.peek().is_some() && cells.all(|cell| cell.class.starts_with('n') && cell.class != "name")
        };
        let samples = |column: usize| rows.iter().any(|row| row.get(column).is_some_and(|c| c.class == "samples"));
        let heading = |(i, text): (usize, &str)| match () {
            () if samples(i) => TableCell::new(text, "samples"),
            () if numeric(i) => TableCell::new(text, "n"),
            () => TableCell::new(text, ""),
        };
        let columns = columns.into_iter().enumerate().map(heading).collect();
        Self { caption: caption.into(), columns, rows }
    }
}

/// A cell of a table.
#[derive(Clone, Default)]
struct TableCell {
    text: String,
    /// How it is set: `name`, `n` for numbers, or a shade.
    class: &'static str,
    /// What is written below, in small letters.
    note: String,
    /// Samples instead of a text, and whether each lies far from the others.
    samples: Vec<(String, bool)>,
}

impl TableCell {
    fn new(text: impl Into<String>, class: &'static str) -> Self {
        Self { text: text.into(), class, ..Self::default() }
    }

    fn number(text: impl Into<String>) -> Self {
        Self::new(text, "n")
    }
}

/// A facility that was measured.
struct Facility<'a> {
    record: &'a crate::model::figures::FacilityRecord,
    swatch: String,
}

fn facilities<'a>(run: &'a Run, looks: &Looks) -> Result<Vec<Facility<'a>>> {
    let measured = run.facilities.iter().filter(|f| f.left_out.is_none());
    measured
        .map(|record| Ok(Facility { record, swatch: canvas::swatch(looks.look(&record.name), &record.name)? }))
        .collect()
}

/// An extra with its table.
struct ExtraSection<'a> {
    id: String,
    title: &'a str,
    text: &'a [String],
    charts: Vec<Drawing>,
    table: Option<Table>,
}

fn extra((number, extra): (usize, &Extra)) -> Result<ExtraSection<'_>> {
    let class = |text: &str| match text.chars().count() {
        _ if is_numeric(text) => "n",
        n if n > LONG => "words",
        _ => "",
    };
    let cell = |text: &String| TableCell::new(text, class(text));
    let rows = extra.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let table = Table::new(&extra.title, extra.columns.iter().map(String::as_str), rows);
    let charts = extra.chart.as_ref().map(|chart| sections::extra_charts(&extra.title, chart)).transpose()?;
    let table = (!extra.columns.is_empty()).then_some(table);
    let (id, charts) = (format!("e-{number}"), charts.unwrap_or_default());
    Ok(ExtraSection { id, title: &extra.title, text: &extra.text, charts, table })
}

fn first(sentences: &[String]) -> (&[String], &[String]) {
    sentences.split_at(sentences.len().min(AT_ONCE))
}

fn subtitle(run: &Run) -> String {
    let date = run.sittings.first().map(|s| s.before.at.get(..10).unwrap_or(&s.before.at).to_owned());
    let parts = [Some(run.machine.cpu_model.clone()), Some(run.machine.kernel.clone()), date];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// What each facility looks like, the same in every chart.
struct Looks<'a>(Vec<(&'a str, Look)>);

impl<'a> Looks<'a> {
    fn of(run: &'a Run) -> Self {
        let (mut encrypting, mut plain) = (0.., 0..);
        let measured = run.facilities.iter().filter(|f| f.left_out.is_none());
        let look = measured.map(|f| {
            let look = match f.baseline {
                Some(_) => Look::of_facility(encrypting.next().unwrap_or(0)),
                None => Look::of_baseline(plain.next().unwrap_or(0)),
            };
            (f.name.as_str(), look)
        });
        Self(look.collect())
    }

    /// The look of the facility of this name; that of a baseline if the run does not name the facility.
    fn look(&self, name: &str) -> Look {
        self.0.iter().find(|(n, _)| *n == name).map_or(Look::of_baseline(0), |(_, look)| *look)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::show::summary::Summary;

    #[test]
    fn every_figure_is_in_a_table() {
        let run = sample::run();
        let summary = Summary::of(&run);
        let page = page(&RunReport { run: &run, summary: &summary, extras: &[] }).expect("a page");
        let rows: Vec<&str> = page.split("<tr>").collect();
        for panel in run.workloads.iter().flat_map(|w| crate::show::report::panels::panels(&summary, &w.name)) {
            let scale = panel.scale();
            for cell in &panel.cells {
                let median = format!(">{}</td>", scale.text(cell.median));
                let interval = format!(">{}</td>", scale.interval(cell.low, cell.high));
                assert!(rows.iter().any(|row| row.contains(&median) && row.contains(&interval)), "{cell:?}");
            }
        }
        assert!(page.contains("<mark"), "outliers are marked");
        assert!(page.contains("There are 2 layers"), "files and volumes are told apart");
        assert!(!page.contains("NaN") && !page.contains(">inf"));
    }
}
