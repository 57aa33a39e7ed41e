//! Text for people, CSV for spreadsheets and a page with charts, made from the structs that become JSON.
//!
//! MB/s is 10^6 bytes per second everywhere. TrueCrypt's window and hdparm call 2^20 bytes an MB: their figures are
//! smaller by 4.6 %.

use serde::Serialize;

mod benchmark;
mod changes;
mod derivation;
mod facts;
mod html;
mod missing;
mod panels;
mod pooled;
mod published;
mod recommend;
mod run;
#[cfg(test)]
#[path = "../../../tests/it/sample.rs"]
mod sample;
mod study;
mod table;

pub use run::RunReport;
pub use table::{csv, hanging};

use crate::model::case::Axis;
use crate::model::figures::Run;
use crate::show::published::{ciphers_beside, laid_beside};
use crate::show::summary::Summary;

/// What every text report ends with.
const UNITS: &str =
    "MB/s is 10^6 bytes per second. TrueCrypt's window counts 2^20 bytes as an MB: divide by 1.0486 to compare.";

/// A section of a report that is not about one workload: text and a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Extra {
    /// For people.
    pub title: String,
    /// Paragraphs before the table.
    pub text: Vec<String>,
    /// Headings of the table; empty where there is none.
    pub columns: Vec<String>,
    /// Rows of the table, each with a cell for every heading. Cells that are numbers go to the right.
    pub rows: Vec<Vec<String>>,
    /// A chart of them, on a page.
    #[serde(skip)]
    pub chart: Option<Chart>,
    /// Where it stands on a page.
    #[serde(skip)]
    pub page: PagePart,
}

/// The part of a page in which a section stands, in the order of the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PagePart {
    /// What is repeated.
    Study,
    /// What the study concluded; in each row, the verdict is last.
    Verdicts,
    /// The study's tables.
    Tables,
    /// After the run's own figures.
    #[default]
    Last,
}

/// A chart of a table: losses measured here beside published ones. Rows that have only one of the two are left out.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// Groups of bars, each with a heading and named pairs.
    Bars(Vec<(String, Vec<(String, LossPair)>)>),
    /// Small charts on one scale over this axis, each with its title and the pairs at their places.
    Lines(Axis, Vec<(String, Vec<(f64, LossPair)>)>),
}

/// What is lost here and in a study: 0.12 is 12 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossPair {
    /// The loss, and the lower and upper end of its interval.
    pub here: [f64; 3],
    /// The published loss.
    pub theirs: f64,
}

impl Extra {
    /// The tables, figures and conclusions of the study that a run repeats.
    pub fn of_study(run: &Run, summary: &Summary) -> Vec<Self> {
        study::sections(run, summary)
    }

    /// The published figures that belong beside a run: losses, and TrueCrypt's benchmark windows where the run has
    /// ciphers.
    pub fn published(run: &Run, summary: &Summary) -> Vec<Self> {
        let losses = published::losses_section(&laid_beside(run, summary));
        let ciphers = published::ciphers_section(&ciphers_beside(&run.ciphers));
        losses.into_iter().chain(ciphers).collect()
    }
}

/// Something that has one line in a CSV file.
pub trait CsvRecord {
    /// Names and values of the columns. Every record of a kind has the same names.
    fn record(&self) -> Vec<(&'static str, String)>;
}

impl<T: CsvRecord> CsvRecord for &T {
    fn record(&self) -> Vec<(&'static str, String)> {
        (**self).record()
    }
}

/// A report for people.
pub trait Text {
    /// Whole lines.
    fn text(&self) -> String;
}
