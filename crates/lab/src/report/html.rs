//! A run as one self-contained page.

mod canvas;
mod charts;
mod sections;

use askama::Template;
use claviger_engine::{Error, Result};

use super::Extra;
use super::facts::{facts, method, missing};
use super::run::{RunReport, is_numeric};
use crate::run::Run;
use canvas::Look;
use sections::{Ciphers, Section};

/// The page of a run.
///
/// # Errors
/// `Io` where a chart cannot be drawn.
pub(super) fn page(report: &RunReport) -> Result<String> {
    let run = report.run;
    let looks = Looks::of(run);
    let (left_out, failures) = missing(run);
    let measured = run.workloads.iter().filter(|w| w.left_out.is_none());
    let page = Page {
        style: include_str!("../../templates/run.css").to_owned() + &canvas::dark_style(),
        subtitle: subtitle(run),
        glance: sections::glance(report),
        findings: &report.summary.findings,
        warnings: report.warnings(),
        notes: &run.notes,
        failures,
        left_out,
        facilities: facilities(run, &looks)?,
        sections: measured.map(|w| sections::section(report, w, &looks)).collect::<Result<_>>()?,
        ciphers: sections::ciphers(&run.ciphers)?,
        extras: report.extras.iter().map(extra).collect(),
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
    subtitle: String,
    glance: Option<Table>,
    findings: &'a [String],
    warnings: Vec<String>,
    notes: &'a [String],
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
    columns: Vec<String>,
    rows: Vec<Vec<TableCell>>,
}

/// A cell of a table.
#[derive(Clone, Default)]
struct TableCell {
    text: String,
    /// How it is set: `name`, `n` for numbers, or a shade.
    class: &'static str,
    /// Samples instead of a text, and whether each lies far from the others.
    samples: Vec<(String, bool)>,
}

impl TableCell {
    fn new(text: impl Into<String>, class: &'static str) -> Self {
        Self { text: text.into(), class, samples: Vec::new() }
    }

    fn number(text: impl Into<String>) -> Self {
        Self::new(text, "n")
    }
}

/// A facility that was measured.
struct Facility<'a> {
    record: &'a crate::run::FacilityRecord,
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
    title: &'a str,
    text: &'a [String],
    table: Option<Table>,
}

fn extra(extra: &Extra) -> ExtraSection<'_> {
    let cell = |text: &String| TableCell::new(text, if is_numeric(text) { "n" } else { "" });
    let table = Table {
        caption: extra.title.clone(),
        columns: extra.columns.clone(),
        rows: extra.rows.iter().map(|row| row.iter().map(cell).collect()).collect(),
    };
    ExtraSection { title: &extra.title, text: &extra.text, table: (!extra.columns.is_empty()).then_some(table) }
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

    /// That of the facility of this name; of one that the run does not name, that of a baseline.
    fn look(&self, name: &str) -> Look {
        self.0.iter().find(|(n, _)| *n == name).map_or(Look::of_baseline(0), |(_, look)| *look)
    }
}
