//! Two runs, cell by cell, as text and CSV.

use super::table::{Align, Table, wrapped};
use super::{CsvRecord, Extra, Text};
use crate::model::figures::{Axis, Unit};
use crate::model::statistics::LossVerdict;
use crate::model::words::{case_words, number, percent, printable, rate, size};
use crate::show::changes::{Basis, CellName, FALSE_CHANGES, FigureChange, RunChanges};

impl CsvRecord for FigureChange {
    fn record(&self) -> Vec<(&'static str, String)> {
        // Every field is named, so that a new one is not forgotten here.
        let Self { place, unit, old, new, change, low, high, false_discovery_rate, verdict } = self;
        let CellName { facility, workload, case } = place;
        vec![
            ("facility", facility.clone()),
            ("workload", workload.clone()),
            ("operation", case.operation.clone()),
            ("series", case.series.clone()),
            ("axis", axis(case.axis).into()),
            ("x", case.x.map(number).unwrap_or_default()),
            ("unit", format!("{unit:?}")),
            ("old", full(*old)),
            ("new", full(*new)),
            ("change", number(*change)),
            ("change_low", number(*low)),
            ("change_high", number(*high)),
            ("false_discovery_rate", full(*false_discovery_rate)),
            ("verdict", verdict.words().into()),
        ]
    }
}

fn axis(axis: Axis) -> &'static str {
    match axis {
        Axis::None => "",
        Axis::Block => "block",
        Axis::File => "file",
        Axis::Clients => "clients",
        Axis::Volumes => "volumes",
        Axis::Size => "size",
    }
}

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
            "Each figure is judged by Welch's test on the logarithms of its samples; all of them together are corrected by the method of \
             Benjamini and Hochberg, so that at most {} % of the reported changes are expected to be false. Intervals are those of \
             each figure alone (95 %). What lies between two runs and in neither of them (where files lie, which memory is \
             used) is in no interval: differences below {} % are not called changes.",
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
            columns: headings.map(String::from).to_vec(),
            rows: rows.into_iter().map(Vec::from).collect(),
            chart: None,
        }
    }

    /// Headings and rows of what changed.
    fn rows(&self) -> ([&'static str; 7], Vec<[String; 7]>) {
        let headings = match self.basis {
            Basis::Speeds => ["facility", "figure", "old", "new", "change %", "interval", "verdict"],
            Basis::Losses => ["facility", "figure", "old loss %", "new loss %", "change %", "interval", "verdict"],
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
                c.verdict.words().into(),
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
            let mut table = Table::new(&[("differs", Align::Left), ("old", Align::Left), ("new", Align::Left)]);
            for difference in &self.differences {
                table.row(vec![difference.what.clone(), difference.old.clone(), difference.new.clone()]);
            }
            text += &(table.text() + "\n");
        }
        for sentence in self.sentences() {
            text += &format!("{sentence}\n");
        }
        let (headings, rows) = self.rows();
        if !rows.is_empty() {
            use Align::{Left, Right};
            let aligned: Vec<_> = headings.into_iter().zip([Left, Left, Right, Right, Right, Left, Left]).collect();
            let mut table = Table::new(&aligned);
            for row in rows {
                table.row(row.to_vec());
            }
            text += &format!("\n{}", table.text());
        }
        printable(&(text + "\n" + &wrapped(&self.method())))
    }
}

#[cfg(test)]
mod tests {
    use super::super::csv;
    use super::*;
    use crate::model::figures::Case;
    use crate::show::changes::RunDifference;

    fn changes(basis: Basis) -> RunChanges {
        let place = |facility: &str| CellName {
            facility: facility.into(),
            workload: "dd".into(),
            case: Case::new("write").at(Axis::Block, 4096.0),
        };
        let change = |facility: &str, change: f64, verdict| FigureChange {
            place: place(facility),
            unit: Unit::BytesPerS,
            old: 1e9,
            new: 1e9 * (1.0 + change),
            change,
            low: change - 0.01,
            high: change + 0.01,
            false_discovery_rate: 1e-9,
            verdict,
        };
        RunChanges {
            basis,
            because: Vec::new(),
            differences: vec![RunDifference {
                what: "kernel".into(),
                old: "Linux 6.1".into(),
                new: "Linux 6.18".into(),
            }],
            least: 0.03,
            cells: vec![change("LUKS2", -0.1, LossVerdict::Slower), change("plain", 0.001, LossVerdict::Same)],
            only_old: vec![place("VeraCrypt")],
            only_new: Vec::new(),
            not_compared: Vec::new(),
        }
    }

    #[test]
    fn what_differs_comes_first_and_what_did_not_change_is_counted() {
        let text = changes(Basis::Speeds).text();
        let (differs, changed) =
            (text.find("Linux 6.18").expect("the kernel"), text.find("LUKS2").expect("the change"));
        assert!(differs < changed, "{text}");
        assert!(text.contains("Of 2 figures 1 became slower and 0 faster by 3.0 % or more; the other 1"), "{text}");
        assert!(text.contains("1 figures are only in the old run.") && !text.contains("VeraCrypt"), "{text}");
        let line = text.lines().find(|line| line.starts_with("LUKS2")).expect("a line");
        for cell in ["1000 MB/s", "900 MB/s", "-10.0", "-11.0 … -9.0", "slower"] {
            assert!(line.contains(cell), "{cell} is not in {line}");
        }
        assert!(!text.lines().any(|line| line.starts_with("plain")));
    }

    #[test]
    fn csv_has_every_cell() {
        let changes = changes(Basis::Speeds);
        let text = csv(&changes.cells);
        let rows: Vec<::csv::StringRecord> =
            ::csv::Reader::from_reader(text.as_bytes()).into_records().map(|r| r.expect("a record")).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!((&rows[0][0], &rows[1][13]), ("LUKS2", "no measurable difference"));
    }
}
