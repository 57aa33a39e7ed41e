//! Two runs, cell by cell, as text and CSV.

use super::table::{csv_record, optional, table, wrapped};
use super::{CsvRecord, Extra, Text};
use crate::model::case::{Axis, Unit};
use crate::model::statistics::LossVerdict;
use crate::model::words::{case_words, number, percent, printable, rate, size, word};
use crate::show::changes::{Basis, CellName, FALSE_CHANGES, FigureChange, RunChanges, RunDifference};

csv_record!(FigureChange {
    place: CellName { facility, workload, case }, unit, old, new, change, low, high, false_discovery_rate, verdict
} =>
    facility, workload, operation: case.operation, series: case.series,
    axis: if case.axis == Axis::None { String::new() } else { word(&case.axis) }, x: optional(&case.x, |x| number(*x)),
    unit: format!("{unit:?}"), old: full(*old), new: full(*new), change: number(*change), change_low: number(*low),
    change_high: number(*high), false_discovery_rate: full(*false_discovery_rate), verdict: word(verdict),
);

/// A value in full, however small.
fn full(value: f64) -> String {
    format!("{value:e}")
}

impl RunChanges {
    /// What was compared, how, and the result, in whole sentences.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = self.because.clone();
        sentences.push(match self.basis {
            Basis::Speeds => "Same machine, same plan: speeds, times and costs are compared.".into(),
            Basis::Losses => {
                "So only each facility's loss against its own baseline is compared, not speeds.".to_owned()
            }
        });
        let (slower, faster) = self.counts();
        let (cells, changed) = (self.cells.len(), slower + faster);
        sentences.push(format!(
            "Of {cells} figures {slower} became slower and {faster} faster by {} % or more; the other {} show no measurable \
             difference.",
            percent(self.least),
            cells - changed
        ));
        if changed > 0 {
            sentences.push(format!(
                "At most {} % of the changes found this way are expected to be false: {:.1} of these {changed}.",
                percent(FALSE_CHANGES),
                FALSE_CHANGES * changed as f64
            ));
        }
        for (count, which) in [(self.only_old.len(), "old"), (self.only_new.len(), "new")] {
            if count > 0 {
                sentences.push(format!("{count} figures are only in the {which} run."));
            }
        }
        if let Some((place, why)) = self.not_compared.first() {
            let rest = self.not_compared.len();
            sentences.push(format!("{rest} figures cannot be compared, for example {}: {why}.", words(place)));
        }
        sentences
    }

    /// The method, for those who doubt.
    pub fn method(&self) -> String {
        format!(
            "Each figure is judged by Welch's test on the logarithms of its samples. The method of Benjamini and Hochberg corrects all of \
             them together: at most {} % of the reported changes are expected to be false. Each interval is for one figure alone \
             (95 %). No interval includes what varies only from run to run (where files lie, which memory is used), so \
             differences below {} % are not called changes.",
            percent(FALSE_CHANGES),
            percent(self.least)
        )
    }

    /// A section for the page of the new run.
    pub fn extra(&self) -> Extra {
        let (headings, rows) = self.rows();
        let differs =
            self.differences.iter().map(|d| format!("The {} differs: {} then, {} now.", d.what, d.old, d.new));
        Extra {
            title: "Compared with the old run".into(),
            text: differs.chain(self.sentences()).chain([self.method()]).collect(),
            columns: headings.map(|heading| heading.trim_start_matches('>').to_owned()).to_vec(),
            rows: rows.into_iter().map(Vec::from).collect(),
            ..Extra::default()
        }
    }

    /// Headings, as of [`table`], and rows of what changed.
    fn rows(&self) -> ([&'static str; 7], Vec<[String; 7]>) {
        let headings = match self.basis {
            Basis::Speeds => ["facility", "figure", ">old", ">new", ">change %", "interval", "verdict"],
            Basis::Losses => ["facility", "figure", ">old loss %", ">new loss %", ">change %", "interval", "verdict"],
        };
        let row = |c: &FigureChange| {
            let shown = |value: f64| match self.basis {
                Basis::Speeds => value_with_unit(value, c.unit),
                Basis::Losses => percent(value),
            };
            [
                c.place.facility.clone(),
                format!("{}: {}", c.place.workload, case_words(&c.place.case)),
                shown(c.old),
                shown(c.new),
                signed(c.change),
                format!("{} … {}", signed(c.low), signed(c.high)),
                word(&c.verdict),
            ]
        };
        (headings, self.cells.iter().filter(|c| c.verdict != LossVerdict::Same).map(row).collect())
    }
}

fn words(place: &CellName) -> String {
    format!("{}, {}, {}", place.facility, place.workload, case_words(&place.case))
}

fn signed(share: f64) -> String {
    let percent = percent(share);
    if percent.starts_with('-') || share == 0.0 { percent } else { format!("+{percent}") }
}

fn value_with_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::BytesPerS => format!("{} MB/s", rate(value)),
        Unit::PerS => format!("{value:.1} /s"),
        Unit::Seconds | Unit::CostSeconds if value < 0.1 => format!("{:.3} ms", value * 1e3),
        Unit::Seconds | Unit::CostSeconds => format!("{value:.2} s"),
        Unit::Bytes => size(value as u64),
        Unit::Share => format!("{} %", percent(value)),
        Unit::Count => format!("{value:.1}"),
    }
}

impl Text for RunChanges {
    fn text(&self) -> String {
        let mut text = String::new();
        if !self.differences.is_empty() {
            let row = |d: &RunDifference| [d.what.clone(), d.old.clone(), d.new.clone()];
            text += &(table(["differs", "old", "new"], self.differences.iter().map(row)) + "\n");
        }
        for sentence in self.sentences() {
            text += &format!("{sentence}\n");
        }
        let (headings, rows) = self.rows();
        if !rows.is_empty() {
            text += &format!("\n{}", table(headings, rows));
        }
        printable(&(text + "\n" + &wrapped(&self.method())))
    }
}
