//! A run as text, CSV and JSON.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::model::figures::{FacilityRecord, Measure, Pass, Run};
use crate::model::statistics::LossVerdict;
use crate::model::words::{case_words, percent, printable, word};
use crate::show::summary::{Cell, Summary};

use super::facts::{facts, method};
use super::missing::{failures, other_notes, unmeasured};
use super::panels::{Kind, Panel, Scale, axis_words, loss_interval, loss_text, panels, strays, tick};
use super::table::{WIDTH, bar, csv_record, exact, hanging, is_numeric, optional, table, wrapped};
use super::{CsvRecord, Extra, PagePart, Text, csv};

/// A run with its results and further sections.
#[derive(Clone, Copy, Debug)]
pub struct RunReport<'a> {
    /// The raw figures.
    pub run: &'a Run,
    /// What they show.
    pub summary: &'a Summary,
    /// Sections of their own, after the workloads.
    pub extras: &'a [Extra],
}

impl Serialize for RunReport<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("disturbance", &self.run.disturbance())?;
        map.serialize_entry("run", self.run)?;
        map.serialize_entry("summary", self.summary)?;
        if !self.extras.is_empty() {
            map.serialize_entry("extras", self.extras)?;
        }
        map.end()
    }
}

impl RunReport<'_> {
    /// One line for each cell of the summary.
    pub fn cells_csv(&self) -> String {
        csv(&self.summary.cells)
    }

    /// One line for each raw figure, including those of warm-ups.
    pub fn samples_csv(&self) -> String {
        let of = |pass| move |measure| Sample { pass, measure };
        csv(&self.run.passes.iter().flat_map(|pass| pass.measures.iter().map(of(pass))).collect::<Vec<_>>())
    }

    /// The repeated study as Markdown: its tables and conclusions; empty if no study was repeated.
    pub fn study_markdown(&self) -> String {
        let (disturbance, warnings) = self.split_warnings();
        super::study::markdown(self.run, self.summary, disturbance.as_deref(), &warnings)
    }

    /// One line for each table cell of the repeated study; empty if no study was repeated.
    pub fn study_csv(&self) -> String {
        csv(&super::study::records(self.run, self.summary))
    }
}

csv_record!(Cell {
    facility, workload, case, unit, median, low, high, relative_deviation, steady, spread, samples, rounds: _, outliers, baseline, loss,
    cpu_s_per_gb
} =>
    workload, operation: case.operation, series: case.series, axis: word(&case.axis), x: optional(&case.x, |x| exact(*x)),
    facility, unit: word(unit), median: exact(*median), low: exact(*low), high: exact(*high),
    relative_deviation: exact(*relative_deviation), steady, samples: samples.len(), outliers: outliers.len(),
    min: exact(spread.min), max: exact(spread.max), baseline: optional(baseline, String::clone),
    loss: optional(loss, |l| exact(l.loss)), loss_low: optional(loss, |l| exact(l.low)),
    loss_high: optional(loss, |l| exact(l.high)), verdict: optional(loss, |l| word(&l.verdict)),
    cpu_s_per_gb: optional(cpu_s_per_gb, |s| exact(*s)),
);

/// One raw figure with its pass.
struct Sample<'a> {
    pass: &'a Pass,
    measure: &'a Measure,
}

csv_record!(Sample<'_> {
    pass: Pass { facility, workload, round, position, at, conditions, measures: _ },
    measure: Measure { case, value, unit, bytes, seconds, cpu_s }
} =>
    workload, operation: case.operation, series: case.series, axis: word(&case.axis), x: optional(&case.x, |x| exact(*x)),
    facility, round: round.map_or("warm-up".into(), |r| r.to_string()), position, at, unit: word(unit), value: exact(*value),
    bytes, seconds: exact(*seconds), cpu_s: optional(cpu_s, |s| exact(*s)), mhz: optional(&conditions.mhz, |m| exact(*m)),
    steal_share: exact(conditions.steal_share), throttled: optional(&conditions.throttled, u64::to_string),
    energy_j: optional(&conditions.energy_j, |j| exact(*j)), caches_dropped: conditions.caches_dropped,
);

impl Text for RunReport<'_> {
    fn text(&self) -> String {
        let mut text = self.title() + "\n";
        let (disturbance, warnings) = self.split_warnings();
        text += &listed("Disturbed", disturbance.as_slice());
        text += &listed("Warnings", &warnings);
        text += &listed("Findings", &self.summary.findings);
        text += &listed("Notes", &other_notes(self.run));
        let failed = failures(self.run).into_iter().map(|(what, error)| format!("{what}: {error}"));
        text += &listed("Failed", &failed.collect::<Vec<_>>());
        let left_out = unmeasured(self.run, self.summary);
        text +=
            &listed("Not measured", &left_out.iter().map(|u| format!("{}: {}", u.what(), u.why)).collect::<Vec<_>>());
        text += "\nMachine and method\n";
        for (name, value) in facts(self.run) {
            text += &wrapped(&format!("{name}: {value}"));
        }
        method(self.run).iter().for_each(|m| text += &wrapped(m));
        text += &self.facilities_text();
        for workload in self.run.workloads.iter().filter(|w| w.left_out.is_none()) {
            text += &heading(&workload.title);
            text += &wrapped(&workload.measures);
            text += &wrapped(&format!("Not measured: {}", workload.not));
            let panels = panels(self.summary, &workload.name);
            if panels.is_empty() {
                text += "There are no figures.\n";
            }
            panels.iter().for_each(|panel| text += &panel_text(panel));
        }
        if !self.run.ciphers.is_empty() {
            text += &heading("Ciphers in memory, without any storage");
            text += &self.run.ciphers.as_slice().text();
        }
        self.extras.iter().for_each(|extra| text += &extra_text(extra));
        printable(&text)
    }
}

impl RunReport<'_> {
    /// What the report is of: the study, where one is repeated.
    pub(super) fn title(&self) -> String {
        match self.run.plan.study() {
            Some(study) => format!("{}, repeated on this machine", study.title),
            None => "What encryption costs on this machine".to_owned(),
        }
    }

    /// The summary's warnings, and one for figures that cannot be shown.
    pub(super) fn warnings(&self) -> Vec<String> {
        let stray = match strays(self.summary) {
            0 => None,
            n => Some(format!("{n} of {} figures are not numbers; they are not shown.", self.summary.cells.len())),
        };
        self.summary.warnings.iter().cloned().chain(stray).collect()
    }

    /// The disturbance by other programs, which comes first, and the other warnings.
    fn split_warnings(&self) -> (Option<String>, Vec<String>) {
        let disturbance = self.run.disturbance().message;
        let others = self.warnings().into_iter().filter(|warning| disturbance.as_ref() != Some(warning)).collect();
        (disturbance, others)
    }

    fn facilities_text(&self) -> String {
        let measured: Vec<_> = self.run.facilities.iter().filter(|f| f.left_out.is_none()).collect();
        if measured.is_empty() {
            return String::new();
        }
        let row =
            |f: &&FacilityRecord| [f.name.clone(), f.title.clone(), f.baseline.clone().unwrap_or_else(|| "–".into())];
        format!("\n{}", table(["facility", "what it is", "baseline"], measured.iter().map(row)))
    }
}

/// A title of a section, underlined.
fn heading(title: &str) -> String {
    format!("\n{title}\n{}\n", "═".repeat(title.chars().count()))
}

fn listed(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let indented = |line: &String| wrapped(&format!("- {}", line.replace('\n', " ")));
    format!("\n{title}\n{}", lines.iter().map(indented).collect::<String>())
}

fn extra_text(extra: &Extra) -> String {
    let mut text = heading(&extra.title);
    extra.text.iter().for_each(|t| text += &wrapped(t));
    if !extra.columns.is_empty() {
        let numeric = |column: usize| extra.rows.iter().all(|row| row.get(column).is_none_or(|cell| is_numeric(cell)));
        let columns = extra.columns.iter().enumerate();
        let headings = columns.map(|(i, name)| if numeric(i) { format!(">{name}") } else { name.clone() });
        let rows = match extra.page {
            PagePart::Verdicts => extra.rows.iter().map(|row| paragraph(extra, row)).collect(),
            _ => table(headings, extra.rows.iter().cloned()),
        };
        text += &format!("\n{rows}");
    }
    text
}

/// A row whose cells are sentences: first the last cell with the first one, then the others, a line each.
fn paragraph(extra: &Extra, row: &[String]) -> String {
    let [first, others @ .., last] = row else { return String::new() };
    let others = extra.columns.iter().skip(1).zip(others).filter(|(_, cell)| !cell.is_empty());
    let others = others.map(|(heading, cell)| hanging("  ", "    ", &format!("{heading}: {cell}")));
    hanging("- ", "  ", &format!("{last}: {first}")) + &others.collect::<String>()
}

fn panel_text(panel: &Panel) -> String {
    let scale = panel.scale();
    match panel.kind {
        Kind::Curve => curve_text(panel, scale),
        Kind::Bars | Kind::Latency => bars_text(panel, scale),
    }
}

/// One line per facility, with one column for each place on the axis. If the facility has a baseline, a line of losses
/// follows.
fn curve_text(panel: &Panel, scale: Scale) -> String {
    let name = |facility: &str| facility.chars().count();
    let names = panel.facilities().into_iter().map(name).max().unwrap_or(0).max("  loss %".len());
    let columns = ((WIDTH - names) / 9).max(1);
    let mut text = format!("\n{}, {} by {}\n", panel.title, scale.name, axis_words(panel.axis));
    for xs in panel.xs().chunks(columns) {
        text += &curve_table(panel, scale, xs);
    }
    text + "* no measurable difference, or too few repeats for a verdict\n"
}

fn curve_table(panel: &Panel, scale: Scale, xs: &[f64]) -> String {
    let ticks = xs.iter().map(|x| format!(">{}", tick(panel.axis, *x)));
    let mut rows = Vec::new();
    for facility in panel.facilities() {
        let at = |x: &f64| panel.cells.iter().find(|c| c.facility == facility && c.case.x == Some(*x));
        let mut row = |name: &str, of: &dyn Fn(&Cell) -> String| {
            let cells = xs.iter().map(|x| at(x).map(|c| of(c)).unwrap_or_default());
            rows.push([name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
        };
        row(facility, &|c| scale.text(c.median));
        if panel.cells.iter().any(|c| c.facility == facility && c.loss.is_some()) {
            row("  loss %", &loss_short);
        }
    }
    table([String::new()].into_iter().chain(ticks), rows)
}

fn loss_short(cell: &Cell) -> String {
    cell.loss.as_ref().filter(|l| l.loss.is_finite()).map_or(String::new(), |l| {
        let sure = matches!(l.verdict, LossVerdict::Slower | LossVerdict::Faster);
        format!("{}{}", percent(l.loss), if sure { "" } else { "*" })
    })
}

/// For each operation, a line for each facility.
fn bars_text(panel: &Panel, scale: Scale) -> String {
    let mut text = String::new();
    let unit = format!(">{}", scale.name);
    let headings = ["", &unit, ">95 % interval", ">loss %", ">95 % interval", ">CPU s/GB", "verdict", ""];
    for case in panel.cases() {
        let cells: Vec<&&Cell> = panel.cells.iter().filter(|c| c.case == *case).collect();
        let largest = cells.iter().map(|c| c.median).fold(0.0, f64::max);
        let row = |cell: &&&Cell| {
            [
                cell.facility.clone(),
                scale.text(cell.median) + if cell.steady { "" } else { "~" },
                scale.interval(cell.low, cell.high),
                loss_text(cell),
                loss_interval(cell),
                cell.cpu_s_per_gb.filter(|v| v.is_finite()).map(|v| format!("{v:.2}")).unwrap_or_default(),
                optional(&cell.loss, |l| short(l.verdict)),
                bar(cell.median, largest),
            ]
        };
        text += &format!("\n{}\n{}", case_words(case), table(headings, cells.iter().map(row)));
    }
    if panel.cells.iter().any(|c| !c.steady) {
        text += "~ still unsteady after the last pass\n";
    }
    text
}

fn short(verdict: LossVerdict) -> String {
    match verdict {
        LossVerdict::Same => "no diff.".into(),
        LossVerdict::TooFew => "too few".into(),
        LossVerdict::Slower | LossVerdict::Faster => word(&verdict),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::hostile;
    use crate::measure::run::reading;
    use crate::show::changes::RunChanges;

    #[test]
    fn a_run_that_anybody_wrote_is_refused_or_reported() {
        let mut run = sample::run();
        run.passes.retain(|pass| ["dd", "iozone-like", "dbench"].contains(&pass.workload.as_str()));
        run.failures[0].error = "\u{1b}[31mred\u{7}\nnext line".into();
        let json = serde_json::to_string(&run).expect("JSON");
        let reported = std::cell::Cell::new(0);
        hostile::feed(&[&json], 150, |text| {
            let Ok(run) = reading::parse(text.as_bytes()) else { return };
            reported.set(reported.get() + 1);
            let summary = Summary::of(&run);
            let report = RunReport { run: &run, summary: &summary, extras: &Extra::published(&run, &summary) };
            let text = report.text();
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
            assert!(report.html().is_ok() && serde_json::to_string(&report).is_ok());
            assert!(!report.cells_csv().is_empty() && !report.samples_csv().is_empty());
            let changes = RunChanges::between(&sample::run(), &run, 0.03);
            assert!(!changes.text().contains('\u{1b}'));
        });
        // The unchanged run is valid. How many of the changed ones are valid depends on the machine that the run
        // records.
        assert!(reported.get() > 1, "{} of them were runs", reported.get());
    }

    #[test]
    fn figures_that_nobody_measured_are_refused() {
        let refused = |change: &dyn Fn(&mut Run)| {
            let mut run = sample::run();
            change(&mut run);
            reading::parse(&serde_json::to_vec(&run).expect("JSON")).is_err()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|run| run.passes[0].measures[0].value = f64::NAN));
        assert!(refused(&|run| run.passes[0].measures[0].value = -1e300));
        assert!(refused(&|run| run.passes[0].measures[0].case.x = Some(-1.0)));
        assert!(refused(&|run| run.facilities[0].name = "plain\u{1b}[2J".into()));
        assert!(refused(&|run| run.passes[0].measures[0].case.operation = "write\nread".into()));
        assert!(refused(&|run| run.workloads[0].title = "x".repeat(100_000)));
    }

    #[test]
    fn the_text_holds_every_figure_and_fits() {
        let run = sample::run();
        let summary = Summary::of(&run);
        let text = RunReport { run: &run, summary: &summary, extras: &[] }.text();
        let words: std::collections::HashSet<&str> = text.split_whitespace().collect();
        for panel in run.workloads.iter().flat_map(|w| panels(&summary, &w.name)) {
            for cell in &panel.cells {
                let figure = panel.scale().text(cell.median);
                assert!(words.contains(&*figure) || words.contains(&*format!("{figure}~")), "{figure} {cell:?}");
            }
        }
        // A path of the command line is one word, and is not cut.
        let command = run.machine.command_line.join(" ");
        for line in text.lines().filter(|line| !line.split(' ').any(|w| command.contains(w) && w.len() > 40)) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
