//! Grouping in a run's report: the cells that share a chart and a table, and how their figures are formatted.

use crate::model::case::{Axis, Case, Unit};
use crate::model::words::{case_words, percent, rate};
use crate::show::once;
use crate::show::summary::{Cell, Summary};

/// Cells of one workload that share a chart.
pub(super) struct Panel<'a> {
    pub(super) kind: Kind,
    /// What is shown: `write`, `file of 64 MiB: write`.
    pub(super) title: String,
    pub(super) unit: Unit,
    pub(super) axis: Axis,
    /// By case; in each case by layer, the baseline first.
    pub(super) cells: Vec<&'a Cell>,
}

/// What kind of chart shows a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One operation over an axis: lines.
    Curve,
    /// Operations side by side: bars.
    Bars,
    /// Percentiles of latency, which lie orders of magnitude apart: marks on a logarithmic axis.
    Latency,
}

impl Panel<'_> {
    /// The facilities, each once, in the order of the cells.
    pub(super) fn facilities(&self) -> Vec<&str> {
        once(self.cells.iter().map(|c| c.facility.as_str()))
    }

    /// The places on the axis, each once, in rising order.
    pub(super) fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<f64> = self.cells.iter().filter_map(|c| c.case.x).collect();
        xs.sort_unstable_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// The cases, each once, in the order of the cells.
    pub(super) fn cases(&self) -> Vec<&Case> {
        once(self.cells.iter().map(|c| &c.case))
    }

    /// The unit that suits the figures.
    pub(super) fn scale(&self) -> Scale {
        Scale::of(self.unit, self.cells.iter().map(|c| c.median))
    }
}

/// The panels of a workload. Cells whose figures are not numbers are left out: [`strays`] counts those.
pub(super) fn panels<'a>(summary: &'a Summary, workload: &str) -> Vec<Panel<'a>> {
    let cells = || summary.cells.iter().filter(|c| c.workload == workload && is_number(c));
    let same_line = |a: &Case, b: &Case| a.operation == b.operation && a.series == b.series && a.axis == b.axis;
    let has_axis = |c: &Cell| {
        c.case.x.is_some()
            && cells().any(|d| same_line(&c.case, &d.case) && d.case.x.is_some_and(|x| Some(x) != c.case.x))
    };
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for cell in cells() {
        let kind = match cell.unit {
            _ if has_axis(cell) => Kind::Curve,
            Unit::Seconds if cell.case.operation.ends_with("latency") => Kind::Latency,
            _ => Kind::Bars,
        };
        let fits = |p: &Panel| {
            let first = p.cells[0];
            p.kind == kind
                && p.unit == cell.unit
                && first.case.series == cell.case.series
                && (kind != Kind::Curve || same_line(&first.case, &cell.case))
        };
        match panels.iter_mut().find(|p| fits(p)) {
            Some(panel) => panel.cells.push(cell),
            None => panels.push(Panel {
                kind,
                title: title(kind, cell),
                unit: cell.unit,
                axis: if kind == Kind::Curve { cell.case.axis } else { Axis::None },
                cells: vec![cell],
            }),
        }
    }
    // Shares explain the other figures and come last.
    panels.sort_by_key(|p| p.unit == Unit::Share);
    let layers = once(summary.cells.iter().map(layer));
    for panel in &mut panels {
        let cases: Vec<Case> = panel.cases().into_iter().cloned().collect();
        panel.cells.sort_by_key(|cell| {
            let place = |c: &Case| cases.iter().position(|case| case == c);
            (place(&cell.case), layers.iter().position(|l| *l == layer(cell)), cell.baseline.is_some())
        });
    }
    panels
}

/// The name of the baseline of a cell's layer; for a baseline, its own name.
pub(super) fn layer(cell: &Cell) -> &str {
    cell.baseline.as_deref().unwrap_or(&cell.facility)
}

/// How many cells cannot be shown because their figures are not numbers.
pub(super) fn strays(summary: &Summary) -> usize {
    summary.cells.iter().filter(|c| !is_number(c)).count()
}

fn is_number(cell: &Cell) -> bool {
    [cell.median, cell.low, cell.high].iter().all(|v| v.is_finite())
}

fn title(kind: Kind, cell: &Cell) -> String {
    let what = match (kind, cell.unit) {
        (Kind::Curve, _) => cell.case.operation.as_str(),
        (Kind::Latency, _) => "latency",
        (Kind::Bars, Unit::BytesPerS) => "throughput",
        (Kind::Bars, Unit::PerS) => "rate",
        (Kind::Bars, Unit::Seconds) => "time",
        (Kind::Bars, Unit::CostSeconds) => "cost in time",
        (Kind::Bars, Unit::Bytes) => "memory",
        (Kind::Bars, Unit::Share) => "shares",
        (Kind::Bars, Unit::Count) => "counts",
    };
    match cell.case.series.as_str() {
        "" => what.to_owned(),
        series => format!("{series}: {what}"),
    }
}

/// A case in words, below a title that names its series.
pub(super) fn in_series(case: &Case) -> String {
    case_words(&Case { series: String::new(), ..case.clone() })
}

/// A position on an axis, as short as possible: `4K`, `12`.
pub(super) fn tick(axis: Axis, x: f64) -> String {
    match axis {
        Axis::Block | Axis::File | Axis::Size => {
            let units = [(30, "G"), (20, "M"), (10, "K")];
            let bytes = x as u64;
            match units.iter().find(|(bits, _)| bytes >= 1 << bits && bytes.is_multiple_of(1 << bits)) {
                Some((bits, letter)) => format!("{}{letter}", bytes >> bits),
                None => plain(x),
            }
        }
        _ => plain(x),
    }
}

/// What an axis counts.
pub(super) fn axis_words(axis: Axis) -> &'static str {
    match axis {
        Axis::None => "",
        Axis::Block => "block size in bytes (K is 1024)",
        Axis::File => "file size in bytes (K is 1024)",
        Axis::Clients => "clients",
        Axis::Volumes => "open volumes",
        Axis::Size => "size of the volume in bytes (K is 1024)",
    }
}

/// A unit in which figures are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    /// Its size in the figures' own unit.
    pub(super) one: f64,
    /// What it is called.
    pub(super) name: &'static str,
}

impl Scale {
    /// The unit that suits these figures: the one in which most of them are neither long nor full of zeros.
    pub(super) fn of(unit: Unit, figures: impl Iterator<Item = f64>) -> Self {
        let mut sizes: Vec<f64> = figures.map(f64::abs).filter(|v| v.is_finite() && *v > 0.0).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        let middle = sizes.get(sizes.len() / 2).copied().unwrap_or(1.0);
        let units: &[(f64, &str)] = match unit {
            Unit::BytesPerS => &[(1e6, "MB/s")],
            Unit::PerS => &[(1.0, "per second")],
            Unit::Seconds | Unit::CostSeconds => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")],
            Unit::Bytes => &[(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")],
            Unit::Share => &[(0.01, "%")],
            Unit::Count => &[(1.0, "count")],
        };
        let fits = units.iter().find(|(one, _)| middle >= *one).or(units.last());
        let (one, name) = fits.copied().unwrap_or((1.0, ""));
        Self { one, name }
    }

    /// A figure in this unit, without the unit's name.
    pub(super) fn text(self, figure: f64) -> String {
        match figure / self.one {
            _ if self.name == "MB/s" => rate(figure),
            // Negligible beside the other figures in this unit.
            none if none.abs() < 5e-4 => "0".into(),
            value => plain(value),
        }
    }

    /// An interval in this unit.
    pub(super) fn interval(self, low: f64, high: f64) -> String {
        format!("{} … {}", self.text(low), self.text(high))
    }
}

/// The loss in per cent; empty where there is none.
pub(super) fn loss_text(cell: &Cell) -> String {
    cell.loss.as_ref().filter(|l| l.loss.is_finite()).map(|l| percent(l.loss)).unwrap_or_default()
}

/// The interval of the loss in per cent; empty where there is none.
pub(super) fn loss_interval(cell: &Cell) -> String {
    let finite = cell.loss.as_ref().filter(|l| l.low.is_finite() && l.high.is_finite());
    finite.map(|l| format!("{} … {}", percent(l.low), percent(l.high))).unwrap_or_default()
}

/// A number for people: three digits or so, all digits of large ones.
pub(super) fn plain(value: f64) -> String {
    let digits = match value.abs() {
        v if v == 0.0 || v >= 99.95 || v.fract() == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v => (2 - v.log10().floor() as i32).clamp(3, 9) as usize,
    };
    let text = format!("{value:.digits$}");
    if text.trim_start_matches('-').chars().all(|c| matches!(c, '0' | '.')) { "0".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn each_layer_stands_together_behind_its_baseline() {
        let mut run = sample::run();
        run.plan.facilities.reverse();
        let summary = Summary::of(&run);
        for panel in run.plan.workloads.iter().flat_map(|w| panels(&summary, w)) {
            for case in panel.cases() {
                let cells: Vec<&&Cell> = panel.cells.iter().filter(|c| c.case == *case).collect();
                for of_layer in cells.chunk_by(|a, b| layer(a) == layer(b)) {
                    assert_eq!(of_layer[0].facility, layer(of_layer[0]), "{}", panel.title);
                }
                let layers = cells.chunk_by(|a, b| layer(a) == layer(b)).count();
                assert_eq!(layers, once(cells.iter().map(|c| layer(c))).len(), "{}", panel.title);
            }
        }
    }

    #[test]
    fn what_is_faster_than_its_baseline_is_doubted() {
        let mut run = sample::run();
        for facility in &mut run.facilities {
            facility.baseline = (facility.name == "plain").then(|| "luks2".into());
        }
        let summary = Summary::of(&run);
        assert!(
            summary.warnings.iter().any(|w| w.contains("faster than without encryption")),
            "{:?}",
            summary.warnings
        );
    }

    #[test]
    fn figures_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (1234.5, "1234"),
            (0.01234, "0.0123"),
            (-2.5, "-2.50"),
        ] {
            assert_eq!(plain(value), text);
        }
        let micro = Scale::of(Unit::Seconds, [1e-5, 2e-5, 0.1].into_iter());
        assert_eq!((micro.name, micro.text(2e-5)), ("µs", "20.0".into()));
        assert_eq!(Scale::of(Unit::Bytes, [5.0 * 1_048_576.0].into_iter()).name, "MiB");
        assert_eq!(Scale::of(Unit::Seconds, [f64::NAN, 0.0].into_iter()).name, "s");
    }

    #[test]
    fn places_on_axes() {
        assert_eq!(tick(Axis::Block, 512.0) + &tick(Axis::Block, 4096.0) + &tick(Axis::File, 1048576.0), "5124K1M");
        assert_eq!([1.0, 6.0].map(|x| crate::model::words::place(Axis::Clients, x)), ["1 client", "6 clients"]);
    }
}
