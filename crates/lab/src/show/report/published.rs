//! The published figures and losses as text and CSV, and beside a run.

use super::table::{csv_record, table};
use super::{CsvRecord, Extra, Text, UNITS};
use crate::model::figures::EncryptedLayer;
use crate::model::published::Figure;
use crate::model::words::{case_words, number, percent, rate, size, word};
use crate::show::grouped;
use crate::show::published::{CipherBeside, LossesBeside, OwnLoss, PublishedLoss, TheirLosses};

// Every column, in the order of the files.
csv_record!(Figure {
    study, table, platform, os, cpu_mode, power_mode, aes_acceleration, facility, cipher, filesystem, workload, parameter,
    direction, metric, unit, value, run, note
} =>
    study, table, platform, os, cpu_mode, power_mode, aes_acceleration, facility, cipher, filesystem, workload, parameter,
    direction, metric, unit, value: number(*value), run, note,
);

impl CsvRecord for PublishedLoss {
    fn record(&self) -> Vec<(&'static str, String)> {
        let Self { figure, baseline, repetitions, share_only, loss } = self;
        let own = [
            ("baseline", number(*baseline)),
            ("repetitions", repetitions.to_string()),
            ("share_only", share_only.to_string()),
            ("loss", number(*loss)),
        ];
        figure.record().into_iter().chain(own).collect()
    }
}

impl Text for [&Figure] {
    fn text(&self) -> String {
        let mut text = String::new();
        for of_table in self.chunk_by(|a, b| same_table(a, b)) {
            let row = |f: &&Figure| {
                let what = join(&[&f.direction, &f.metric], " ");
                vec![machine(f), facility(f), f.parameter.clone(), what, number(f.value), f.unit.clone(), f.run.clone()]
            };
            let columns = ["machine", "facility", "parameter", "what", ">value", "unit", "run"];
            text += &under_heading(of_table[0], &columns, of_table.iter().map(row).collect());
        }
        text + "\n" + FIGURES
    }
}

/// What the figures' letters mean.
const FIGURES: &str =
    "Units are those of the documents: MB/s of hdparm and TrueCrypt are 2^20 bytes, of dd 10^6, KB/s 1024.\n";

impl Text for [&PublishedLoss] {
    fn text(&self) -> String {
        let mut text = String::new();
        for of_table in self.chunk_by(|a, b| same_table(&a.figure, &b.figure)) {
            let row = |l: &&PublishedLoss| {
                let f = &l.figure;
                vec![
                    machine(f),
                    facility(f),
                    f.parameter.clone(),
                    f.direction.clone(),
                    number(l.baseline),
                    number(f.value),
                    f.unit.clone(),
                    percent(l.loss),
                ]
            };
            let columns = ["machine", "facility", "parameter", "direction", ">plain", ">encrypted", "unit", ">loss %"];
            text += &under_heading(&of_table[0].figure, &columns, of_table.iter().map(row).collect());
        }
        text + "\nThe loss is one of performance, which is 1 / time where seconds are given.\n" + FIGURES
    }
}

fn same_table(a: &Figure, b: &Figure) -> bool {
    (&a.study, &a.table, &a.workload) == (&b.study, &b.table, &b.workload)
}

/// A table under its source. A column of words that is the same in all rows is said in the heading instead.
fn under_heading(figure: &Figure, columns: &[&str], rows: Vec<Vec<String>>) -> String {
    let workload = if figure.workload.is_empty() { "workload not named" } else { &figure.workload };
    let constant = |c: usize| {
        !columns[c].starts_with('>')
            && (rows.len() > 1 || rows[0][c].is_empty())
            && rows.iter().all(|row| row[c] == rows[0][c])
    };
    let (common, varying): (Vec<usize>, Vec<usize>) = (0..columns.len()).partition(|&c| constant(c));
    let common: Vec<&str> = common.iter().map(|&c| rows[0][c].as_str()).collect();
    let varying_of = |row: &Vec<String>| varying.iter().map(|&c| row[c].clone()).collect::<Vec<_>>();
    let common = join(&common, "; ");
    let common = if common.is_empty() { common } else { format!("{common}\n") };
    let table = table(varying.iter().map(|&c| columns[c]), rows.iter().map(varying_of));
    format!("\n{}: {workload}\n{common}\n{table}", figure.source())
}

fn machine(figure: &Figure) -> String {
    let aes = match figure.aes_acceleration.as_str() {
        "" => String::new(),
        word => format!("AES {word}"),
    };
    join(&[&figure.platform, &figure.os, &figure.cpu_mode, &figure.power_mode, &aes], ", ")
}

fn facility(figure: &Figure) -> String {
    join(&[&figure.facility, &figure.cipher, &figure.filesystem], ", ")
}

fn join(parts: &[&str], with: &str) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(with)
}

impl LossesBeside {
    /// What is compared: `dd: write, blocks of 4 KiB`.
    pub fn title(&self) -> String {
        let files = if self.layer == EncryptedLayer::Files { ", file by file" } else { "" };
        format!("{}: {}{files}", self.workload, case_words(&self.case))
    }

    /// In one sentence: the machine that lost most, and this one.
    pub fn sentence(&self) -> String {
        let most = |losses: &mut dyn Iterator<Item = (f64, String)>| {
            losses.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, words)| words).unwrap_or_default()
        };
        let theirs = most(&mut self.theirs.iter().map(|t| (t.high, t.words())));
        let ours = most(&mut self.ours.iter().map(|o| (o.loss.loss, o.words())));
        format!("{theirs}; {ours}.")
    }
}

impl TheirLosses {
    fn words(&self) -> String {
        let lost = match self.settings {
            1 => lost(self.low, "lost", "gained"),
            n => format!("lost {} to {} % in {n} settings", percent(self.low), percent(self.high)),
        };
        let aes = match self.aes_acceleration.as_str() {
            "" => String::new(),
            word => format!(", AES instructions {word}"),
        };
        format!("The {} of {} {lost} ({}{aes}; {})", self.platform, self.year, self.facility, self.sources.join(", "))
    }
}

impl OwnLoss {
    fn words(&self) -> String {
        format!(
            "this machine {} ({} … {}) with {}",
            lost(self.loss.loss, "loses", "gains"),
            percent(self.loss.low),
            percent(self.loss.high),
            self.title
        )
    }
}

fn lost(loss: f64, loses: &str, gains: &str) -> String {
    if loss < 0.0 { format!("{gains} {} %", percent(-loss)) } else { format!("{loses} {} %", percent(loss)) }
}

/// The section of published losses for the report of a run; `None` if there are none for its workloads.
pub(super) fn losses_section(beside: &[LossesBeside]) -> Option<Extra> {
    let mut text = paragraphs(beside);
    text.insert(
        0,
        "The studies' losses in the same tests or in similar ones. Losses of different machines are comparable, \
         speeds are not."
            .into(),
    );
    let rows =
        beside.iter().flat_map(|b| b.rows().into_iter().map(move |row| [vec![b.title()], row.to_vec()].concat()));
    (!beside.is_empty()).then(|| Extra {
        title: "Published losses beside those of this run".into(),
        text,
        columns: ["figure", "where", "what", "loss %", "source or verdict"].map(String::from).to_vec(),
        rows: rows.collect(),
        ..Extra::default()
    })
}

/// A paragraph for the figures that stand beside the same test of a study: one of them, and what makes the tests
/// different.
fn paragraphs(beside: &[LossesBeside]) -> Vec<String> {
    let groups = grouped(beside, |a, b| (&a.workload, a.layer, a.differs) == (&b.workload, b.layer, b.differs));
    let paragraph = |group: &Vec<&LossesBeside>| {
        let highest = |b: &LossesBeside| b.theirs.iter().map(|t| t.high).fold(f64::MIN, f64::max);
        let most = group.iter().max_by(|a, b| highest(a).total_cmp(&highest(b)))?;
        let of = match group.len() {
            1 => String::new(),
            n => format!(" Of {n} figures in the table, this is the study's largest loss."),
        };
        Some(format!("{}. {}{of} {}", most.title(), most.sentence(), most.differs))
    };
    groups.iter().filter_map(paragraph).collect()
}

impl LossesBeside {
    /// The lines of a table: where, what, loss in per cent, source or verdict.
    fn rows(&self) -> Vec<[String; 4]> {
        let ours = self.ours.iter().map(|ours| {
            let (loss, verdict) = (&ours.loss, word(&ours.loss.verdict));
            let interval = format!("{} … {}", percent(loss.low), percent(loss.high));
            ["this machine".into(), ours.title.clone(), percent(loss.loss), format!("{interval}, {verdict}")]
        });
        let theirs = self.theirs.iter().map(|theirs| {
            let aes = match theirs.aes_acceleration.as_str() {
                "" => String::new(),
                word => format!(", AES {word}"),
            };
            let loss = match theirs.settings {
                1 => percent(theirs.low),
                _ => format!("{} to {}", percent(theirs.low), percent(theirs.high)),
            };
            let place = format!("{}, {}", theirs.platform, theirs.year);
            [place, format!("{}{aes}", theirs.facility), loss, theirs.sources.join(", ")]
        });
        ours.chain(theirs).collect()
    }
}

/// The section of TrueCrypt's windows for the report of a run; `None` if there are none for its ciphers.
pub(super) fn ciphers_section(beside: &[CipherBeside]) -> Option<Extra> {
    let rows: Vec<Vec<String>> = beside.iter().flat_map(cipher_rows).map(Vec::from).collect();
    (!rows.is_empty()).then(|| Extra {
        title: "TrueCrypt's benchmark window, then and now".into(),
        text: vec![CIPHERS.into()],
        columns: CIPHER_COLUMNS.map(|name| name.trim_start_matches('>').to_owned()).to_vec(),
        rows,
        ..Extra::default()
    })
}

const CIPHERS: &str =
    "Mean of encryption and decryption of a buffer in memory; for each machine of the studies, its fastest setting.";

const CIPHER_COLUMNS: [&str; 8] = ["cipher", "buffer", "machine", "AES", ">MB/s", ">here, MB/s", ">times", "source"];

fn cipher_rows(beside: &CipherBeside) -> impl Iterator<Item = [String; 8]> {
    beside.theirs.iter().map(|theirs| {
        [
            beside.cipher.clone(),
            size(beside.buffer_bytes as u64),
            format!("{}, {}", theirs.platform, theirs.year),
            theirs.aes_acceleration.clone(),
            rate(theirs.bytes_per_s),
            rate(beside.bytes_per_s),
            format!("{:.1}", theirs.times),
            theirs.source.clone(),
        ]
    })
}

impl Text for [CipherBeside] {
    fn text(&self) -> String {
        format!("{CIPHERS}\n\n{}\n{UNITS}\n", table(CIPHER_COLUMNS, self.iter().flat_map(cipher_rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::csv;
    use super::*;
    use crate::model::case::{Axis, Case};
    use crate::model::published::all;
    use crate::model::statistics::{Loss, LossVerdict};
    use crate::show::published::{Query, losses};

    #[test]
    fn csv_gives_the_figures_back() {
        let some: Vec<&Figure> = Query { study: Some("linux2013".into()), ..Query::default() }.figures().expect("some");
        let text = csv(&some);
        let back: Vec<Figure> =
            ::csv::Reader::from_reader(text.as_bytes()).into_deserialize().map(|f| f.expect("a figure")).collect();
        assert_eq!(back.iter().collect::<Vec<_>>(), some);
    }

    #[test]
    fn every_figure_and_loss_can_be_told() {
        let (figures, losses): (Vec<&Figure>, Vec<&PublishedLoss>) =
            (all().iter().collect(), losses().iter().collect());
        assert!(figures.text().contains("BSI 2010, table 8: dd sequential write, RAM disk"));
        let text = losses.text();
        let line = text.lines().find(|l| l.contains("QuadCore 64-bit, performance")).expect("a line");
        assert!(line.contains("92.6"), "{line}");
        // Dbench with 48 clients: the best of all.
        assert!(text.lines().any(|l| l.contains("48 clients") && l.ends_with("2.2")));
        assert_eq!(csv(&losses).lines().count(), losses.len() + 1);
    }

    #[test]
    fn a_sentence_names_both_machines_and_the_source() {
        let theirs = TheirLosses {
            platform: "HP EliteBook 8540p".into(),
            year: 2010,
            facility: "TrueCrypt, AES".into(),
            aes_acceleration: "off".into(),
            low: 0.92,
            high: 0.92,
            settings: 1,
            sources: vec!["BSI 2010, 5.3.3".into()],
        };
        let loss = Loss { loss: 0.12, low: 0.101, high: 0.14, verdict: LossVerdict::Slower };
        let title = "this engine, LUKS2 format, aes-xts-plain64".to_owned();
        let beside = LossesBeside {
            workload: "dd".into(),
            case: Case::new("write").at(Axis::Block, 4096.0),
            layer: EncryptedLayer::Volume,
            ours: vec![OwnLoss { facility: "LUKS2".into(), title, loss }],
            theirs: vec![theirs],
            differs: "Much.",
        };
        assert_eq!(beside.title(), "dd: write, blocks of 4 KiB");
        assert_eq!(
            beside.sentence(),
            "The HP EliteBook 8540p of 2010 lost 92.0 % (TrueCrypt, AES, AES instructions off; BSI 2010, 5.3.3); this machine \
             loses 12.0 % (10.1 … 14.0) with this engine, LUKS2 format, aes-xts-plain64."
        );
        let other = LossesBeside { case: Case::new("write").at(Axis::Block, 512.0), ..beside.clone() };
        let both = losses_section(&[beside.clone(), other]).expect("a section");
        assert!(both.text.len() == 2 && both.text[1].contains("Of 2 figures") && both.rows.len() == 4, "{both:?}");
        let section = losses_section(&[beside]).expect("a section");
        assert!(section.text[1].ends_with("Much.") && section.rows.len() == 2, "{section:?}");
        assert!(section.rows.iter().all(|row| row.len() == section.columns.len()), "{section:?}");
        assert_eq!((&section.rows[0][3], &section.rows[0][4]), (&"12.0".into(), &"10.1 … 14.0, slower".into()));
        assert_eq!(losses_section(&[]), None);
    }
}
