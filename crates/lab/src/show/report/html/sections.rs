//! The sections of a page: a workload with its charts and the tables of their figures.

use claviger_engine::Result;

use super::canvas::{self, Look};
use super::charts::{self, About, Across, Bar, Figure, Group, Line, Shape, Slice, Upward};
use super::{Looks, Table, TableCell};
use crate::model::case::{Axis, Case, Unit};
use crate::model::ciphers::CipherSpeed;
use crate::model::figures::{Trace, WorkloadRecord};
use crate::model::statistics::{LossVerdict, median};
use crate::model::words::{case_words, counted, percent, place, rate, size, word};
use crate::show::once;
use crate::show::report::panels::{
    Kind, Panel, Scale, axis_words, in_series, layer, loss_interval, loss_text, panels, plain, tick,
};
use crate::show::report::table::optional;
use crate::show::report::{Chart, LossPair, RunReport};
use crate::show::summary::Cell;

/// Rows of bars in one chart: more do not fit on a printed page.
const ROWS: usize = 36;

/// Lines in one chart: of more, each has a small chart of its own.
const LINES: usize = 6;

/// Panels of a workload that are shown at once.
const PANELS: usize = 12;

/// Slices of a trace in its table.
const SLICES: usize = 12;

/// A workload on a page.
pub(super) struct Section<'a> {
    pub(super) record: &'a WorkloadRecord,
    /// The facilities of its charts, by layer: picture and title.
    pub(super) legend: Vec<Vec<(String, String)>>,
    pub(super) figures: Vec<FigureBlock>,
    /// Panels that are shown on demand.
    pub(super) more: Vec<FigureBlock>,
}

/// Charts that share a table.
pub(super) struct FigureBlock {
    pub(super) title: String,
    /// How to read the charts.
    pub(super) hint: String,
    pub(super) charts: Vec<Drawing>,
    pub(super) wide: bool,
    pub(super) table: Table,
}

/// A chart on a page.
pub(super) struct Drawing {
    /// What stands above it; empty where the chart says all.
    pub(super) caption: String,
    /// A whole `svg` element.
    pub(super) svg: String,
    /// Whether it is one of several small ones.
    pub(super) small: bool,
}

impl Drawing {
    fn of(svg: String) -> Self {
        Self { caption: String::new(), svg, small: false }
    }
}

impl FigureBlock {
    /// Whether there is room for another one beside it.
    pub(super) fn single(&self) -> bool {
        self.charts.len() == 1 && !self.wide
    }
}

/// The section of the ciphers.
pub(super) struct Ciphers {
    pub(super) about: String,
    pub(super) figures: Vec<FigureBlock>,
}

/// The section of a workload.
pub(super) fn section<'a>(report: &RunReport<'a>, record: &'a WorkloadRecord, looks: &Looks) -> Result<Section<'a>> {
    let panels = panels(report.summary, &record.name);
    let cells = || panels.iter().flat_map(|p| &p.cells);
    let title = |name: &str| {
        let facility = report.run.facilities.iter().find(|f| f.name == name);
        facility.map_or(name.to_owned(), |f| format!("{name}: {}", f.title))
    };
    let legend = once(cells().map(|c| layer(c))).into_iter().map(|of| {
        let names = once(cells().filter(|c| layer(c) == of).map(|c| c.facility.as_str())).into_iter();
        names.map(|name| Ok((canvas::swatch(looks.look(name), name)?, title(name)))).collect::<Result<_>>()
    });
    let legend = legend.collect::<Result<_>>()?;
    let mut figures: Vec<FigureBlock> =
        panels.iter().map(|panel| block(panel, &record.title, looks)).collect::<Result<_>>()?;
    let mut more = figures.split_off(figures.len().min(PANELS));
    figures.extend(cost(report, record, looks)?);
    let traces = || report.run.traces.iter().filter(|t| t.workload == record.name && !t.requests.is_empty());
    // The first facility that encrypts, and its baseline: all facilities get the same requests from the same program.
    let baseline = |t: &Trace| report.run.facilities.iter().find(|f| f.name == t.facility)?.baseline.as_deref();
    let shown = traces().find(|t| baseline(t).is_some()).or(traces().next());
    for trace in traces() {
        if shown.is_some_and(|s| s.facility == trace.facility) {
            figures.push(trace_block(trace)?);
        } else if shown.and_then(baseline) == Some(&trace.facility) {
            more.push(trace_block(trace)?);
        }
    }
    Ok(Section { record, legend, figures, more })
}

fn block(panel: &Panel, workload: &str, looks: &Looks) -> Result<FigureBlock> {
    let scale = panel.scale();
    let (charts, hint) = match panel.kind {
        Kind::Curve => (curves(panel, scale, workload, looks)?, String::new()),
        Kind::Latency => latency(panel, scale, workload, looks)?,
        Kind::Bars => bars(panel, scale, workload, looks)?,
    };
    let lossy = panel.cells.iter().any(|c| c.loss.is_some());
    let pale = match panel.kind {
        Kind::Bars | Kind::Latency if lossy => " Pale bars: no measurable difference, or too few repeats.",
        _ => "",
    };
    let gains = panel.cells.iter().filter_map(|c| loss_figure(c)).any(|f| f.low < charts::GAIN);
    let cut = if gains { " Gains of more than 100 % are cut off at the edge of the chart." } else { "" };
    let (title, hint) = (panel.title.clone(), format!("{hint}{pale}{cut}").trim().to_owned());
    Ok(FigureBlock { title, hint, charts, wide: false, table: table(panel, scale, workload) })
}

fn figure(cell: &Cell, scale: Scale) -> Figure {
    Figure { value: cell.median / scale.one, low: cell.low / scale.one, high: cell.high / scale.one }
}

/// The loss in per cent.
fn loss_figure(cell: &Cell) -> Option<Figure> {
    let loss = cell.loss.as_ref()?;
    let figure = Figure { value: loss.loss * 100.0, low: loss.low * 100.0, high: loss.high * 100.0 };
    [figure.value, figure.low, figure.high].iter().all(|v| v.is_finite()).then_some(figure)
}

fn curves(panel: &Panel, scale: Scale, workload: &str, looks: &Looks) -> Result<Vec<Drawing>> {
    let xs = panel.xs();
    let across =
        Across { ticks: xs.iter().map(|x| (*x, tick(panel.axis, *x))).collect(), what: axis_words(panel.axis) };
    let lines = |figure: &dyn Fn(&Cell) -> Option<Figure>| -> Vec<Line> {
        let line = |name| {
            let own = panel.cells.iter().filter(|c| c.facility == name);
            let mut points: Vec<_> = own.clone().filter_map(|c| Some((c.case.x?, figure(c)?))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let of_layer = own.clone().next().map_or("", |c| layer(c));
            Line { name, layer: of_layer, look: looks.look(name), points }
        };
        panel.facilities().into_iter().map(line).filter(|l| l.points.len() > 1).collect()
    };
    let title = format!("{workload}, {}, {} by {}", panel.title, scale.name, across.what);
    let rates = lines(&|c| Some(figure(c, scale)));
    let about = About { title: &title, description: "A line for each facility, with a band for the 95 % interval." };
    let mut charts = drawn_lines(&about, scale.name, Upward::Figures, &across, &rates)?;
    let losses = lines(&loss_figure);
    if !losses.is_empty() {
        let title = format!("{workload}, {}, loss against the baseline by {}", panel.title, across.what);
        let about = About { title: &title, description: "A line for each facility that encrypts; zero is no loss." };
        charts.extend(drawn_lines(&about, "loss in %", Upward::Losses, &across, &losses)?);
    }
    Ok(charts)
}

/// One chart, or a small one for each line where there are many.
fn drawn_lines<'a>(
    about: &About,
    unit: &str,
    upward: Upward,
    across: &Across,
    lines: &[Line<'a>],
) -> Result<Vec<Drawing>> {
    match lines.len() {
        0 => Ok(Vec::new()),
        n if n <= LINES => Ok(vec![Drawing::of(charts::lines(about, unit, upward, across, lines)?)]),
        _ => {
            // Each with its baseline, which is the first of its layer.
            let own = |line: &Line<'a>| {
                let baseline = lines.iter().find(|other| other.name == line.layer && other.name != line.name);
                (line.name.to_owned(), baseline.into_iter().chain([line]).cloned().collect())
            };
            let all: Vec<(String, Vec<Line>)> = lines.iter().map(own).collect();
            small_charts(about, unit, upward, across, all)
        }
    }
}

fn small_charts(
    about: &About,
    unit: &str,
    upward: Upward,
    across: &Across,
    all: Vec<(String, Vec<Line>)>,
) -> Result<Vec<Drawing>> {
    let (captions, lines): (Vec<String>, Vec<Vec<Line>>) = all.into_iter().unzip();
    let svgs = charts::small(about, unit, upward, across, &captions, &lines)?;
    Ok(captions.into_iter().zip(svgs).map(|(caption, svg)| Drawing { caption, svg, small: true }).collect())
}

/// Bars of the figures and of the losses, and how to read them.
fn bars(panel: &Panel, scale: Scale, workload: &str, looks: &Looks) -> Result<(Vec<Drawing>, String)> {
    let groups = groups(panel, |c| Some(bar(c, looks, figure(c, scale), scale.text(c.median), true)));
    let shape = charts::shape(&groups);
    let hint = match shape {
        Shape::BarsByGroup => format!("In {}; each group has a scale of its own.", scale.name),
        _ if panel.unit == Unit::Share => "100 % is one processor.".to_owned(),
        _ => String::new(),
    };
    let mut charts = bar_charts(&format!("{workload}, {}, {}", panel.title, scale.name), scale.name, shape, &groups)?;
    charts.extend(losses(panel, workload, looks)?);
    Ok((charts, hint))
}

/// Bars of the losses; none where there are none.
fn losses(panel: &Panel, workload: &str, looks: &Looks) -> Result<Vec<Drawing>> {
    let groups = groups(panel, |c| {
        let figure = loss_figure(c)?;
        let sure = c.loss.as_ref().is_some_and(|l| matches!(l.verdict, LossVerdict::Slower | LossVerdict::Faster));
        Some(bar(c, looks, figure, format!("{} %", percent(figure.value / 100.0)), sure))
    });
    let title = format!("{workload}, {}, loss against the baseline", panel.title);
    bar_charts(&title, "loss in % against the baseline", Shape::Losses, &groups)
}

/// A group of bars for each case, where it has any.
fn groups<'a>(panel: &'a Panel, bar: impl Fn(&'a Cell) -> Option<Bar<'a>>) -> Vec<Group<'a>> {
    let of = |case: &Case| panel.cells.iter().filter(|c| c.case == *case).filter_map(|c| bar(c)).collect();
    let group = |case| Group { heading: in_series(case), bars: of(case) };
    panel.cases().into_iter().map(group).filter(|g| !g.bars.is_empty()).collect()
}

fn bar<'a>(cell: &'a Cell, looks: &Looks, figure: Figure, text: String, sure: bool) -> Bar<'a> {
    let look = looks.look(&cell.facility);
    Bar { name: &cell.facility, layer: layer(cell), look, figures: vec![figure], text, sure }
}

/// As many charts as it takes; none of a single bar.
fn bar_charts(title: &str, unit: &str, shape: Shape, groups: &[Group]) -> Result<Vec<Drawing>> {
    if groups.iter().map(|group| group.bars.len()).sum::<usize>() < 2 {
        return Ok(Vec::new());
    }
    let about = About { title, description: "Bars by operation and facility, with their 95 % intervals." };
    parts(groups).into_iter().map(|part| charts::bars(&about, unit, shape, part).map(Drawing::of)).collect()
}

/// Groups, as many as fit into one chart.
fn parts<'g, 'a>(groups: &'g [Group<'a>]) -> Vec<&'g [Group<'a>]> {
    let (mut parts, mut first, mut rows) = (Vec::new(), 0, 0);
    for (i, group) in groups.iter().enumerate() {
        if rows > 0 && rows + group.bars.len() + 1 > ROWS {
            parts.push(&groups[first..i]);
            (first, rows) = (i, 0);
        }
        rows += group.bars.len() + 1;
    }
    parts.push(&groups[first..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Splits the name of a latency into its operation and its percentile: `random read, queue depth 1` and `99 % latency`.
fn percentile(case: &Case) -> (&str, &str) {
    case.operation.rsplit_once(", ").unwrap_or((&case.operation, ""))
}

/// Latencies with the losses of the lowest percentile, and how to read them.
fn latency(panel: &Panel, scale: Scale, workload: &str, looks: &Looks) -> Result<(Vec<Drawing>, String)> {
    let percentiles = once(panel.cells.iter().map(|c| percentile(&c.case).1));
    let first: Vec<&Cell> =
        panel.cells.iter().copied().filter(|c| Some(&percentile(&c.case).1) == percentiles.first()).collect();
    let lowest = Panel { cells: first, title: panel.title.clone(), ..*panel };
    let charts =
        [Drawing::of(latencies(panel, scale, workload, looks)?)].into_iter().chain(losses(&lowest, workload, looks)?);
    let hint = format!(
        "In {}, for each facility from the full mark to the hollow one: {}. The scale is logarithmic: compare positions, \
         not lengths. Losses are drawn for the first of these; the table has all of them.",
        scale.name,
        percentiles.join(", ")
    );
    Ok((charts.collect(), hint))
}

/// A row for each facility, with a mark for each percentile.
fn latencies(panel: &Panel, scale: Scale, workload: &str, looks: &Looks) -> Result<String> {
    let of = |cell: &Cell| percentile(&cell.case).0.to_owned();
    let groups = once(panel.cells.iter().map(|c| of(c))).into_iter().map(|heading| {
        let cells = || panel.cells.iter().filter(|c| of(c) == heading);
        let bar = |name| {
            let own: Vec<&&Cell> = cells().filter(|c| c.facility == name).collect();
            let text = own.iter().map(|c| scale.text(c.median)).collect::<Vec<_>>().join(" · ");
            let figures = own.iter().map(|c| figure(c, scale)).collect();
            let of = own.first().map_or("", |c| layer(c));
            Bar { name, layer: of, look: looks.look(name), figures, text, sure: true }
        };
        let bars = once(cells().map(|c| c.facility.as_str())).into_iter().map(bar).collect();
        Group { heading, bars }
    });
    let groups: Vec<Group> = groups.collect();
    let title = format!("{workload}, latency, {}", scale.name);
    let about = About { title: &title, description: "Marks by operation and facility, one for each percentile." };
    charts::bars(&about, scale.name, Shape::Marks, &groups)
}

fn table(panel: &Panel, scale: Scale, workload: &str) -> Table {
    let first = if panel.axis == Axis::None { "operation" } else { panel.axis_name() };
    let (interval, samples_of) = (format!("95 % interval, {}", scale.name), format!("samples, {}", scale.name));
    let columns = [
        "facility",
        scale.name,
        &interval,
        "n",
        "dev. %",
        "loss %",
        "95 % interval, %",
        "verdict",
        "CPU s/GB",
        &samples_of,
    ];
    let row = |cell: &&Cell| {
        let label = if panel.axis == Axis::None {
            in_series(&cell.case)
        } else {
            place(panel.axis, cell.case.x.unwrap_or(0.0))
        };
        let deviation = match cell.relative_deviation.is_finite() {
            true => percent(cell.relative_deviation) + if cell.steady { "" } else { ", unsteady" },
            false => String::new(),
        };
        let verdict = cell.loss.as_ref().map(|l| l.verdict);
        vec![
            TableCell::new(label, "name"),
            TableCell::new(&cell.facility, "name"),
            TableCell::number(scale.text(cell.median)),
            TableCell::number(scale.interval(cell.low, cell.high)),
            TableCell::number(cell.samples.len().to_string()),
            TableCell::number(deviation),
            TableCell::number(loss_text(cell)),
            TableCell::number(loss_interval(cell)),
            TableCell::new(optional(&verdict, word), verdict.map_or("", verdict_class)),
            TableCell::number(cell.cpu_s_per_gb.filter(|v| v.is_finite()).map(plain).unwrap_or_default()),
            samples(cell, scale),
        ]
    };
    let mut cells = panel.cells.clone();
    if panel.kind == Kind::Curve {
        cells.sort_by(|a, b| a.case.x.unwrap_or(0.0).total_cmp(&b.case.x.unwrap_or(0.0)));
    }
    let caption = format!("{workload}: {}", panel.title);
    Table::new(caption, [first].into_iter().chain(columns), cells.iter().map(row).collect())
}

impl Panel<'_> {
    /// The heading of the column of places.
    fn axis_name(&self) -> &'static str {
        match self.axis {
            Axis::None => "",
            Axis::Block => "block size",
            Axis::File => "file size",
            Axis::Clients => "clients",
            Axis::Volumes => "open volumes",
            Axis::Size => "volume size",
        }
    }
}

fn verdict_class(verdict: LossVerdict) -> &'static str {
    match verdict {
        LossVerdict::Slower => "slower",
        LossVerdict::Faster => "faster",
        LossVerdict::Same | LossVerdict::TooFew => "same",
    }
}

fn samples(cell: &Cell, scale: Scale) -> TableCell {
    let one = |(i, value): (usize, &f64)| {
        let text = if value.is_finite() { scale.text(*value) } else { "–".into() };
        (text, cell.outliers.contains(&i))
    };
    TableCell { class: "samples", samples: cell.samples.iter().enumerate().map(one).collect(), ..TableCell::default() }
}

/// Processor time against throughput, where a workload has both.
fn cost(report: &RunReport, record: &WorkloadRecord, looks: &Looks) -> Result<Option<FigureBlock>> {
    let cells = report.summary.cells.iter().filter(|c| c.workload == record.name && c.unit == Unit::BytesPerS);
    let points: Vec<(&Cell, f64)> = cells
        .filter_map(|c| Some((c, c.cpu_s_per_gb.filter(|v| v.is_finite())?)))
        .filter(|(c, _)| c.median.is_finite())
        .collect();
    if points.len() < 2 {
        return Ok(None);
    }
    let title = format!("{}, processor time against throughput", record.title);
    let about = About { title: &title, description: "A mark for each figure. Better is to the right and down." };
    let marks: Vec<_> = points.iter().map(|(c, cpu)| (looks.look(&c.facility), c.median / 1e6, *cpu)).collect();
    let rows = points.iter().map(|(c, cpu)| {
        vec![
            TableCell::new(case_words(&c.case), "name"),
            TableCell::new(&c.facility, "name"),
            TableCell::number(rate(c.median)),
            TableCell::number(plain(*cpu)),
        ]
    });
    Ok(Some(FigureBlock {
        title: "processor time against throughput".into(),
        hint: "A mark for each figure above. Better is to the right and down.".into(),
        charts: vec![Drawing::of(charts::scatter(&about, ("MB/s", "CPU s/GB"), &marks)?)],
        wide: false,
        table: Table::new(title.as_str(), ["operation", "facility", "MB/s", "CPU s/GB"], rows.collect()),
    }))
}

fn trace_block(trace: &Trace) -> Result<FigureBlock> {
    let title = format!("{}: {}", trace.facility, trace.title);
    let about = About {
        title: &format!("Seek trace, {title}"),
        description: "Offsets of requests over time; below, throughput and seeks per second.",
    };
    let columns = ["from s", "to s", "requests", "MB/s read", "MB/s written", "seeks per second"];
    let row = |s: &Slice| {
        let mb = |bytes: u64| plain(bytes as f64 / 1e6 / s.seconds);
        [
            plain(s.at),
            plain(s.at + s.seconds),
            s.requests.to_string(),
            mb(s.read),
            mb(s.written),
            plain(s.seeks as f64 / s.seconds),
        ]
        .map(TableCell::number)
        .to_vec()
    };
    let moved: u64 = trace.requests.iter().map(|r| r.len).sum();
    Ok(FigureBlock {
        hint: format!(
            "{}, {} MB in all, as our server answered them. A seek is a request that does not begin where the previous one ended. \
             The traces of other facilities are in the run's JSON.",
            counted(trace.requests.len(), "request"),
            plain(moved as f64 / 1e6)
        ),
        charts: vec![Drawing::of(charts::seek_trace(&about, &trace.requests)?)],
        wide: true,
        table: Table::new(about.title, columns, charts::slices(&trace.requests, SLICES).iter().map(row).collect()),
        title,
    })
}

/// The ciphers in memory, if they were measured.
pub(super) fn ciphers(rows: &[CipherSpeed]) -> Result<Option<Ciphers>> {
    let Some(first) = rows.first() else { return Ok(None) };
    let names = once(rows.iter().map(|r| r.cipher.as_str()));
    let mut buffers = once(rows.iter().map(|r| r.buffer_bytes));
    buffers.sort_unstable();
    let lines: Vec<Line> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let mut own: Vec<&CipherSpeed> = rows.iter().filter(|r| r.cipher == *name).collect();
            own.sort_by_key(|r| r.buffer_bytes);
            let mean = |a: f64, b: f64| (a + b) / 2e6;
            let figure = |r: &&CipherSpeed| Figure {
                value: r.mean_bytes_per_s / 1e6,
                low: mean(r.encrypt_spread.min, r.decrypt_spread.min),
                high: mean(r.encrypt_spread.max, r.decrypt_spread.max),
            };
            let points = own.iter().map(|r| (r.buffer_bytes as f64, figure(r))).collect();
            Line { name, layer: "", look: Look::of_facility(i), points }
        })
        .collect();
    let about = About {
        title: "Ciphers in memory, MB/s by buffer size",
        description: "A line for each cipher: the mean of encryption and decryption.",
    };
    let charts = match buffers.as_slice() {
        [one] => {
            let bar = |l: &Line| Bar {
                figures: l.points.iter().map(|(_, f)| *f).collect(),
                text: l.points.first().map(|(_, f)| plain(f.value)).unwrap_or_default(),
                name: names.iter().find(|n| **n == l.name).copied().unwrap_or_default(),
                layer: "",
                look: l.look,
                sure: true,
            };
            let group =
                Group { heading: format!("buffer of {}", size(*one as u64)), bars: lines.iter().map(bar).collect() };
            bar_charts(about.title, "MB/s", Shape::Bars, &[group])?
        }
        _ => {
            let ticks = buffers.iter().map(|b| (*b as f64, tick(Axis::Block, *b as f64))).collect();
            let across = Across { ticks, what: "buffer size in bytes (K is 1024)" };
            drawn_lines(&about, "MB/s", Upward::Figures, &across, &lines)?
        }
    };
    let row = |r: &CipherSpeed| {
        let numbers = [
            rate(r.encrypt_bytes_per_s),
            rate(r.decrypt_bytes_per_s),
            rate(r.mean_bytes_per_s),
            r.repeats.to_string(),
            percent(r.encrypt_spread.relative().max(r.decrypt_spread.relative())),
        ];
        let names = [size(r.buffer_bytes as u64), r.cipher.clone(), r.kernel.clone()];
        names.map(|t| TableCell::new(t, "name")).into_iter().chain(numbers.map(TableCell::number)).collect()
    };
    let columns = ["buffer", "cipher", "kernels", "encryption MB/s", "decryption MB/s", "mean MB/s", "n", "spread %"];
    let figure = FigureBlock {
        title: "mean of encryption and decryption".into(),
        hint: "The band reaches from the slowest sample to the fastest.".into(),
        charts,
        wide: false,
        table: Table::new("Ciphers in memory", columns, rows.iter().map(row).collect()),
    };
    let about = format!(
        "How fast the ciphers of this engine are in memory, by the method of TrueCrypt's benchmark window: {}, sectors of {} \
         bytes, AES acceleration {}. No storage is involved: this is the best that encryption could do.",
        counted(first.threads, "thread"),
        first.sector_bytes,
        word(&first.acceleration)
    );
    Ok(Some(Ciphers { about, figures: vec![figure] }))
}

/// The losses here beside the published ones, which are drawn like a baseline.
pub(super) fn extra_charts<'a>(title: &str, chart: &'a Chart) -> Result<Vec<Drawing>> {
    let title = format!("{title}: loss here and in the study");
    let (here, theirs) = (Look::of_facility(0), Look::of_baseline(0));
    let figure = |[value, low, high]: [f64; 3]| Figure { value: value * 100.0, low: low * 100.0, high: high * 100.0 };
    match chart {
        Chart::Bars(groups) => {
            let bar = |(name, look, loss): (&'a str, Look, [f64; 3])| {
                let text = format!("{} %", percent(loss[0]));
                Bar { name, layer: "", look, figures: vec![figure(loss)], text, sure: true }
            };
            let pair = |(name, pair): &'a (String, LossPair)| {
                [(name.as_str(), here, pair.here), ("in the study", theirs, [pair.theirs; 3])].map(bar)
            };
            let groups = groups.iter();
            let groups = groups.map(|(heading, pairs)| Group {
                heading: heading.clone(),
                bars: pairs.iter().flat_map(pair).collect(),
            });
            bar_charts(&title, "loss in %", Shape::Losses, &groups.collect::<Vec<_>>())
        }
        Chart::Lines(axis, charts) => {
            let mut xs: Vec<f64> = once(charts.iter().flat_map(|(_, points)| points).map(|(x, _)| *x));
            xs.sort_by(f64::total_cmp);
            let ticks = xs.iter().map(|x| (*x, tick(*axis, *x))).collect();
            let line = |name, look, points: &[(f64, LossPair)], of: &dyn Fn(&LossPair) -> [f64; 3]| Line {
                name,
                layer: "",
                look,
                points: points.iter().map(|(x, pair)| (*x, figure(of(pair)))).collect(),
            };
            let small = |(caption, points): &(String, Vec<(f64, LossPair)>)| {
                let lines =
                    vec![line("study", theirs, points, &|p| [p.theirs; 3]), line("here", here, points, &|p| p.here)];
                (caption.clone(), lines)
            };
            let about = About { title: &title, description: "The loss at each position; zero is no loss." };
            let across = Across { ticks, what: axis_words(*axis) };
            small_charts(&about, "loss in %", Upward::Losses, &across, charts.iter().map(small).collect())
        }
    }
}

/// The losses of each facility in each workload, in one table; `None` if there are none.
pub(super) fn glance(report: &RunReport) -> Option<Table> {
    let lossy: Vec<(&Cell, f64)> = report
        .summary
        .cells
        .iter()
        .filter_map(|c| Some((c, c.loss.as_ref().map(|l| l.loss).filter(|l| l.is_finite())?)))
        .collect();
    let names = once(lossy.iter().map(|(c, _)| c.facility.as_str()));
    let workloads: Vec<&WorkloadRecord> =
        report.run.workloads.iter().filter(|w| lossy.iter().any(|(c, _)| c.workload == w.name)).collect();
    if names.is_empty() || workloads.is_empty() {
        return None;
    }
    let cell = |name: &str, workload: &WorkloadRecord| {
        let own: Vec<f64> =
            lossy.iter().filter(|(c, _)| c.facility == name && c.workload == workload.name).map(|(_, l)| *l).collect();
        match own.len() {
            0 => TableCell::number("–"),
            1 => TableCell::new(format!("{} %", percent(own[0])), shade(own[0])),
            _ => {
                let ends = own.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
                let middle = median(&own);
                let note = format!("{} … {} %", percent(ends.0), percent(ends.1));
                TableCell { note, ..TableCell::new(format!("{} %", percent(middle)), shade(middle)) }
            }
        }
    };
    let rows = workloads.iter().map(|w| {
        let first = TableCell::new(&w.title, "");
        [first].into_iter().chain(names.iter().map(|name| cell(name, w))).collect()
    });
    let caption = "Loss against the baseline of the same layer: the median of a workload's figures, and the smallest and \
                   the largest of them";
    Some(Table::new(caption, ["workload"].into_iter().chain(names.iter().copied()), rows.collect()))
}

/// A class for each step of loss.
fn shade(loss: f64) -> &'static str {
    match loss {
        l if l < 0.02 => "n l0",
        l if l < 0.1 => "n l1",
        l if l < 0.25 => "n l2",
        l if l < 0.5 => "n l3",
        l if l < 0.75 => "n l4",
        _ => "n l5",
    }
}
