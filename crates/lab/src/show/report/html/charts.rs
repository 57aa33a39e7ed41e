//! The kinds of charts. Each takes plain figures in the unit that its axis shows, and gives an `svg` element.

use claviger_engine::Result;
use plotters::style::text_anchor::HPos;

use super::canvas::{Canvas, Frame, GRID, INK, Look, MUTED, Point, READS, Span, WRITES, svg, text_width};
use crate::model::figures::TracedRequest;

/// Width of a chart in pixels; two stand side by side on a page.
const WIDTH: f64 = 520.0;

/// Width of a chart that stands alone.
const WIDE: f64 = 960.0;

/// Height of a chart with two axes.
const HEIGHT: f64 = 300.0;

/// Width and height of a small one.
const SMALL: Point = (250.0, 170.0);

/// Room for names at the side of a chart: longer ones make it wider.
const NAME: f64 = 180.0;

/// Narrowest room for bars.
const BARS: f64 = 220.0;

/// Height of a bar with the space around it.
const BAR: f64 = 19.0;

/// Height of the space between bars of different layers.
const APART: f64 = 6.0;

/// Height of a heading above bars.
const HEADING: f64 = 26.0;

/// A logarithmic axis is used where figures lie farther apart than this.
const FAR: f64 = 60.0;

/// Where axes of losses end, in per cent: a gain that is larger would leave no room for the losses. It is drawn up to
/// there.
pub(super) const GAIN: f64 = -100.0;

/// The quantity on the vertical axis, which decides where the axis begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Upward {
    /// Begins at zero; logarithmic if the figures lie far apart.
    Figures,
    /// Begins at zero or below, and is never logarithmic: it must include a loss of 0.
    Losses,
}

/// What a chart is about, for its title and for those who do not see it.
pub(super) struct About<'a> {
    pub(super) title: &'a str,
    pub(super) description: &'a str,
}

/// A figure with its interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Figure {
    fn ends(&self) -> [f64; 3] {
        [self.low, self.value, self.high]
    }
}

/// A line of a chart.
#[derive(Clone)]
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// The name of its baseline, or its own; empty where there is none.
    pub(super) layer: &'a str,
    pub(super) look: Look,
    /// In rising order of x.
    pub(super) points: Vec<(f64, Figure)>,
}

impl Line<'_> {
    fn places(&self, frame: &Frame) -> Vec<Point> {
        self.points.iter().map(|(x, f)| frame.at(*x, f.value)).collect()
    }
}

/// What the horizontal axis of lines shows.
pub(super) struct Across<'a> {
    /// Values that are written.
    pub(super) ticks: Vec<(f64, String)>,
    pub(super) what: &'a str,
}

/// Lines with bands of their intervals, and names at their ends.
pub(super) fn lines(about: &About, unit: &str, upward: Upward, across: &Across, lines: &[Line]) -> Result<String> {
    let widest = lines.iter().map(|l| text_width(l.name)).fold(0.0, f64::max);
    drawn((WIDTH + (widest - NAME).max(0.0), HEIGHT), about, unit, vertical(lines, upward), across, lines)
}

/// Small charts on one scale, each with its lines and what it is of.
pub(super) fn small(
    about: &About,
    unit: &str,
    upward: Upward,
    across: &Across,
    captions: &[String],
    charts: &[Vec<Line>],
) -> Result<Vec<String>> {
    let y = vertical(&charts.concat(), upward);
    let one = |(caption, lines): (&String, &Vec<Line>)| {
        let title = format!("{}: {caption}", about.title);
        drawn(SMALL, &About { title: &title, ..*about }, unit, y, across, lines)
    };
    captions.iter().zip(charts).map(one).collect()
}

/// A single line, or one beside its baseline in a small chart, needs no name if the caption has it.
fn drawn(size: Point, about: &About, unit: &str, y: Span, across: &Across, lines: &[Line]) -> Result<String> {
    let named = size != SMALL || lines.iter().all(|line| line.layer.is_empty());
    let widest = if named { lines.iter().map(|l| text_width(l.name)).fold(0.0, f64::max) } else { 0.0 };
    let (width, height) = size;
    svg(size, about.title, about.description, |canvas| {
        let x = horizontal(across).over(58.0, width - widest - 22.0);
        let frame = Frame { canvas, x, y: y.over(height - 46.0, 30.0) };
        frame.vertical_axis(if size == SMALL { 3 } else { 4 }, unit)?;
        frame.horizontal_axis(&across.ticks, across.what)?;
        lines.iter().try_for_each(|line| band(&frame, line))?;
        lines.iter().try_for_each(|line| frame.canvas.line(&line.places(&frame), line.look.color(), 2.0))?;
        lines
            .iter()
            .try_for_each(|line| line.places(&frame).iter().try_for_each(|at| canvas.mark(*at, 3.5, line.look)))?;
        if named { names_at_ends(&frame, lines) } else { Ok(()) }
    })
}

fn vertical(lines: &[Line], upward: Upward) -> Span {
    let figures = || lines.iter().flat_map(|l| &l.points).map(|(_, f)| f);
    let (low, high) = figures().fold((f64::MAX, f64::MIN), |(a, b), f| (a.min(f.value), b.max(f.value)));
    if upward == Upward::Figures && low > 0.0 && high / low > FAR {
        return Span::logarithmic(figures().map(|f| f.value));
    }
    let end = if upward == Upward::Losses { GAIN } else { f64::MIN };
    Span::from_zero(figures().flat_map(Figure::ends).map(|v| v.max(end)))
}

/// Logarithmic, except for a short range and for one that begins at zero.
fn horizontal(across: &Across) -> Span {
    let xs = || across.ticks.iter().map(|(x, _)| *x);
    let (low, high) = xs().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    if low > 0.0 && high / low > 9.0 { Span::logarithmic(xs()) } else { Span::linear(low, high) }
}

fn band(frame: &Frame, line: &Line) -> Result<()> {
    let wide = line.points.iter().any(|(_, f)| f.high > f.low);
    if line.points.len() < 2 || !wide {
        return Ok(());
    }
    let upper = line.points.iter().map(|(x, f)| frame.at(*x, f.high));
    let lower = line.points.iter().rev().map(|(x, f)| frame.at(*x, f.low));
    let outline: Vec<_> = upper.chain(lower).collect();
    frame.canvas.fill(&outline, line.look.color(), 0.16)
}

/// The names of lines, beside their last points, moved apart where those lie close together.
fn names_at_ends(frame: &Frame, lines: &[Line]) -> Result<()> {
    const APART: f64 = 14.0;
    let ends = lines.iter().filter_map(|l| l.points.last().map(|(x, f)| (frame.at(*x, f.value), l)));
    let mut ends: Vec<_> = ends.map(|(at, line)| (at, at.1, line)).collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let bottom = frame.y.at(f64::MIN) + 6.0;
    let mut free = 20.0f64;
    for (_, y, _) in &mut ends {
        *y = y.max(free);
        free = *y + APART;
    }
    // Move names up again that were pushed below the chart.
    let mut limit = bottom;
    for (_, y, _) in ends.iter_mut().rev() {
        *y = y.min(limit);
        limit = *y - APART;
    }
    let right = ends.iter().map(|((x, _), ..)| *x).fold(0.0, f64::max);
    for ((x, at), y, line) in &ends {
        frame.canvas.line(&[(x + 6.0, *at), (right + 12.0, *y)], line.look.color(), 0.75)?;
        frame.canvas.text((right + 15.0, *y), line.name, INK.0, HPos::Left)?;
    }
    Ok(())
}

/// A group of bars under one heading.
pub(super) struct Group<'a> {
    pub(super) heading: String,
    pub(super) bars: Vec<Bar<'a>>,
}

impl Group<'_> {
    /// Height of the bars.
    fn height(&self) -> f64 {
        let apart = self.bars.windows(2).filter(|pair| pair[0].layer != pair[1].layer).count();
        self.bars.len() as f64 * BAR + apart as f64 * APART
    }
}

/// A bar, or a row of marks.
pub(super) struct Bar<'a> {
    pub(super) name: &'a str,
    /// Bars of one layer stand together.
    pub(super) layer: &'a str,
    pub(super) look: Look,
    pub(super) figures: Vec<Figure>,
    /// The text after the bar.
    pub(super) text: String,
    /// Whether the difference is certain; the bar is pale if not.
    pub(super) sure: bool,
}

/// How bars are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// From zero, all on one scale.
    Bars,
    /// The same, to both sides, for losses in per cent.
    Losses,
    /// From zero, each group on a scale of its own.
    BarsByGroup,
    /// Marks on a logarithmic scale, where a length would mean nothing.
    Marks,
}

/// How groups of bars lie side by side without hiding the small ones.
pub(super) fn shape(groups: &[Group]) -> Shape {
    let largest = |g: &Group| g.bars.iter().flat_map(|b| &b.figures).map(|f| f.value.abs()).fold(0.0, f64::max);
    let largest: Vec<f64> = groups.iter().map(largest).filter(|v| *v > 0.0).collect();
    let (low, high) = largest.iter().fold((f64::MAX, 0.0), |(a, b): (f64, f64), v| (a.min(*v), b.max(*v)));
    if high > low * 20.0 { Shape::BarsByGroup } else { Shape::Bars }
}

/// Horizontal bars with the whiskers of their intervals, or marks.
pub(super) fn bars(about: &About, unit: &str, shape: Shape, groups: &[Group]) -> Result<String> {
    let all = || groups.iter().flat_map(|g| &g.bars);
    let left = all().map(|b| text_width(b.name)).fold(0.0, f64::max) + 14.0;
    let right = all().map(|b| text_width(&b.text)).fold(0.0, f64::max) + 14.0;
    let headings = groups.iter().map(|g| text_width(&g.heading) + 10.0);
    let width = headings.fold((left + BARS + right).max(WIDTH), f64::max);
    let rows: f64 = groups.iter().map(|g| HEADING + g.height()).sum();
    let axis = if shape == Shape::BarsByGroup { 8.0 } else { 44.0 };
    let span = |bars: &mut dyn Iterator<Item = &Bar>| {
        let ends = bars.flat_map(|b| &b.figures).flat_map(|f| f.ends());
        let span = match shape {
            Shape::Marks => Span::logarithmic(ends),
            Shape::Losses => Span::from_zero(ends.map(|v| v.max(GAIN))),
            Shape::Bars | Shape::BarsByGroup => Span::from_zero(ends),
        };
        span.over(left, width - right)
    };
    svg((width, rows + axis), about.title, about.description, |canvas| {
        let whole = span(&mut all());
        if shape != Shape::BarsByGroup {
            let frame = Frame { canvas, x: whole, y: Span::linear(0.0, 1.0).over(rows + 4.0, 0.0) };
            frame.horizontal_axis(&whole.written_ticks(4), &whole.described(unit))?;
        }
        let mut y = 0.0;
        for group in groups {
            canvas.heading((4.0, y + HEADING * 0.6), &group.heading)?;
            let x = if shape == Shape::BarsByGroup { span(&mut group.bars.iter()) } else { whole };
            let (top, bottom) = (y + HEADING, y + HEADING + group.height());
            let ticks = if shape == Shape::BarsByGroup { vec![0.0] } else { x.ticks(4) };
            for tick in ticks {
                let color = if tick == 0.0 { MUTED.0 } else { GRID.0 };
                canvas.line(&[(x.at(tick), top), (x.at(tick), bottom)], color, 1.0)?;
            }
            let mut middle = top + BAR / 2.0;
            let mut layer = group.bars.first().map_or("", |bar| bar.layer);
            for bar in &group.bars {
                if bar.layer != layer {
                    middle += APART;
                    layer = bar.layer;
                }
                canvas.text((left - 8.0, middle), bar.name, INK.0, HPos::Right)?;
                let end = if shape == Shape::Marks {
                    marks(canvas, x, middle, bar)?
                } else {
                    one_bar(canvas, x, middle, bar)?
                };
                canvas.text((end + 7.0, middle), &bar.text, INK.0, HPos::Left)?;
                middle += BAR;
            }
            y = bottom;
        }
        Ok(())
    })
}

/// Returns where it ends on the right.
fn one_bar(canvas: &Canvas, x: Span, y: f64, bar: &Bar) -> Result<f64> {
    let Some(figure) = bar.figures.first() else { return Ok(x.at(0.0)) };
    let half = BAR / 2.0 - 3.0;
    let (zero, end, low, high) = (x.at(0.0), x.at(figure.value), x.at(figure.low), x.at(figure.high));
    canvas.rectangle((zero, y - half), (end, y + half), bar.look.color(), if bar.sure { 0.85 } else { 0.3 })?;
    if high - low > 1.0 {
        canvas.whisker((low, y), (high, y), INK.0)?;
    }
    Ok(zero.max(end).max(high))
}

/// The first full, the last hollow, the others small. Returns where they end on the right.
fn marks(canvas: &Canvas, x: Span, y: f64, bar: &Bar) -> Result<f64> {
    let at = |value: f64| (x.at(value), y);
    let places: Vec<_> = bar.figures.iter().map(|f| at(f.value)).collect();
    canvas.line(&places, bar.look.color(), 1.0)?;
    for figure in bar.figures.iter().filter(|f| x.at(f.high) - x.at(f.low) > 9.0) {
        canvas.whisker(at(figure.low), at(figure.high), bar.look.color())?;
    }
    for (i, place) in places.iter().enumerate() {
        match i {
            0 => canvas.mark(*place, 4.5, bar.look)?,
            _ if i + 1 == places.len() => canvas.hollow_mark(*place, 4.5, bar.look)?,
            _ => canvas.mark(*place, 3.0, bar.look)?,
        }
    }
    Ok(bar.figures.iter().map(|f| x.at(f.value).max(x.at(f.high))).fold(x.at(0.0), f64::max))
}

/// Marks at places of two axes: what belongs to one facility has one look.
pub(super) fn scatter(about: &About, units: (&str, &str), points: &[(Look, f64, f64)]) -> Result<String> {
    let axis = |values: Vec<f64>| {
        let (low, high) = values.iter().fold((f64::MAX, 0.0), |(a, b): (f64, f64), v| (a.min(*v), b.max(*v)));
        let far = low > 0.0 && high / low > FAR;
        if far { Span::logarithmic(values.into_iter()) } else { Span::from_zero(values.into_iter()) }
    };
    let x = axis(points.iter().map(|p| p.1).collect()).over(58.0, WIDTH - 24.0);
    let y = axis(points.iter().map(|p| p.2).collect()).over(HEIGHT - 46.0, 30.0);
    svg((WIDTH, HEIGHT), about.title, about.description, |canvas| {
        let frame = Frame { canvas, x, y };
        frame.vertical_axis(4, units.1)?;
        frame.horizontal_axis(&x.written_ticks(5), &x.described(units.0))?;
        points.iter().try_for_each(|(look, a, b)| canvas.mark(frame.at(*a, *b), 4.5, *look))
    })
}

/// A part of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Slice {
    /// Seconds at which it begins.
    pub(super) at: f64,
    /// How long it is, in seconds.
    pub(super) seconds: f64,
    /// Bytes that were read.
    pub(super) read: u64,
    /// Bytes that were written.
    pub(super) written: u64,
    /// Requests.
    pub(super) requests: u64,
    /// Requests that did not begin where the one before had ended.
    pub(super) seeks: u64,
}

/// A trace in this many slices of the same length; none where there are no requests.
pub(super) fn slices(requests: &[TracedRequest], count: usize) -> Vec<Slice> {
    let Some(last) = requests.iter().map(|r| r.at).filter(|at| at.is_finite()).reduce(f64::max) else {
        return Vec::new();
    };
    let seconds = (last / count as f64).max(1e-6) * (1.0 + 1e-9);
    let mut slices: Vec<Slice> =
        (0..count).map(|i| Slice { at: i as f64 * seconds, seconds, ..Slice::default() }).collect();
    let mut expected = None;
    for request in requests.iter().filter(|r| r.at.is_finite()) {
        let slice = &mut slices[((request.at.max(0.0) / seconds) as usize).min(count - 1)];
        slice.requests += 1;
        slice.seeks += u64::from(expected.is_some_and(|end| end != request.offset));
        *(if request.write { &mut slice.written } else { &mut slice.read }) += request.len;
        expected = Some(request.offset.saturating_add(request.len));
    }
    slices
}

/// As Seekwatcher draws it: offsets over time, and below them throughput and seeks per second.
pub(super) fn seek_trace(about: &About, requests: &[TracedRequest]) -> Result<String> {
    let slices = slices(requests, 160);
    let end = slices.last().map_or(1.0, |s| s.at + s.seconds);
    let x = Span::linear(0.0, end).over(64.0, WIDE - 20.0);
    let ticks = x.written_ticks(8);
    let offsets = requests.iter().map(|r| mib(r.offset.saturating_add(r.len)));
    let rates = slices.iter().flat_map(|s| [s.read, s.written].map(|b| b as f64 / s.seconds / 1e6));
    let seeks = slices.iter().map(|s| s.seeks as f64 / s.seconds);
    let panels = [
        (Span::from_zero(offsets).over(270.0, 28.0), "offset, MiB"),
        (Span::from_zero(rates).over(410.0, 318.0), "MB/s"),
        (Span::from_zero(seeks).over(550.0, 458.0), "seeks per second"),
    ];
    svg((WIDE, 600.0), about.title, about.description, |canvas| {
        for (i, (y, unit)) in panels.into_iter().enumerate() {
            let frame = Frame { canvas, x, y };
            frame.vertical_axis(if i == 0 { 5 } else { 2 }, unit)?;
            match i {
                0 => offsets_over_time(&frame, requests)?,
                1 => {
                    steps(&frame, READS, &slices, |s| s.read as f64 / s.seconds / 1e6)?;
                    steps(&frame, WRITES, &slices, |s| s.written as f64 / s.seconds / 1e6)?;
                }
                _ => {
                    steps(&frame, Look::of_facility(2), &slices, |s| s.seeks as f64 / s.seconds)?;
                    frame.horizontal_axis(&ticks, "seconds")?;
                }
            }
        }
        let legend = [("reads", READS, WIDE - 160.0), ("writes", WRITES, WIDE - 90.0)];
        legend.into_iter().try_for_each(|(name, look, x)| {
            canvas.mark((x, 13.0), 4.0, look)?;
            canvas.text((x + 9.0, 13.0), name, INK.0, HPos::Left)
        })
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

/// A dot for each request; those that touch each other are one, so that a page does not grow with a trace.
fn offsets_over_time(frame: &Frame, requests: &[TracedRequest]) -> Result<()> {
    const DOT: f64 = 2.0;
    let cell = |r: &TracedRequest| {
        let (x, y) = frame.at(r.at, mib(r.offset));
        (r.write, (x / DOT).round() as i32, (y / DOT).round() as i32)
    };
    let mut cells: Vec<_> = requests.iter().filter(|r| r.at.is_finite()).map(cell).collect();
    cells.sort_unstable();
    cells.dedup();
    let columns = cells.chunk_by(|a, b| (a.0, a.1, a.2 + 1) == *b);
    columns.filter_map(|column| Some((column.first()?, column.last()?))).try_for_each(
        |((write, x, top), (.., bottom))| {
            let look = if *write { WRITES } else { READS };
            let (x, top, bottom) = (f64::from(*x) * DOT, f64::from(*top) * DOT, f64::from(*bottom) * DOT);
            let (from, to) = ((x - DOT / 2.0, top - DOT / 2.0), (x + DOT / 2.0, bottom + DOT / 2.0));
            frame.canvas.rectangle(from, to, look.color(), 1.0)
        },
    )
}

fn steps(frame: &Frame, look: Look, slices: &[Slice], value: impl Fn(&Slice) -> f64) -> Result<()> {
    if slices.iter().all(|s| value(s) == 0.0) {
        return Ok(());
    }
    let places: Vec<_> =
        slices.iter().flat_map(|s| [frame.at(s.at, value(s)), frame.at(s.at + s.seconds, value(s))]).collect();
    frame.canvas.line(&places, look.color(), 1.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_cut_into_slices() {
        let request = |at, offset, write| TracedRequest { at, offset, len: 10, write };
        let trace = [request(0.0, 0, true), request(1.0, 10, true), request(9.0, 50, false), request(10.0, 0, false)];
        let slices = slices(&trace, 2);
        assert_eq!(slices.iter().map(|s| (s.requests, s.seeks)).collect::<Vec<_>>(), [(2, 0), (2, 2)]);
        assert_eq!(slices.iter().map(|s| (s.read, s.written)).collect::<Vec<_>>(), [(0, 20), (20, 0)]);
        assert_eq!(super::slices(&[], 2), []);
    }
}
