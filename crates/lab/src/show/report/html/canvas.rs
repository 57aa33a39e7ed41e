//! Drawing charts: colours, marks, scales, texts.
//!
//! Everything is drawn at [`ZOOM`] times its size, because the crate plotters only draws at whole pixels. The colours
//! are those for light paper; [`dark_style`] turns them into those for a dark screen, by their values, which therefore
//! stand for nothing else.

use claviger_engine::{Error, Result};
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::element::{Circle, PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoTextStyle, RGBColor};

use crate::model::words::number;

/// Size of the drawing in pixels of a chart.
const ZOOM: f64 = 2.0;

/// plotters divides the size of a font by this (plotters-svg 0.3, `draw_text`).
const FONT: f64 = 1.24;

/// Size of texts in charts, in pixels.
pub(super) const TEXT: f64 = 12.0;

/// Width of a character of a text in charts, in pixels, about.
const CHARACTER: f64 = 6.4;

/// A colour on light paper, and the one in its place on a dark screen.
type Hue = (RGBColor, RGBColor);

/// Texts and axes.
pub(super) const INK: Hue = (RGBColor(0x1D, 0x23, 0x2B), RGBColor(0xE4, 0xE8, 0xEE));
/// Texts that matter less.
pub(super) const MUTED: Hue = (RGBColor(0x5B, 0x65, 0x72), RGBColor(0x9A, 0xA5, 0xB4));
/// Lines behind the figures.
pub(super) const GRID: Hue = (RGBColor(0xE1, 0xE5, 0xEA), RGBColor(0x2C, 0x35, 0x40));
/// What lies behind everything.
pub(super) const PAPER: Hue = (RGBColor(0xFE, 0xFE, 0xFE), RGBColor(0x15, 0x1A, 0x21));

/// Facilities that encrypt: the palette of Okabe and Ito (2008), which people who are blind to some colours tell apart;
/// its yellow darkened for paper.
const HUES: [Hue; 7] = [
    (RGBColor(0x00, 0x72, 0xB2), RGBColor(0x4F, 0xA8, 0xE0)),
    (RGBColor(0xD5, 0x5E, 0x00), RGBColor(0xF2, 0x84, 0x3C)),
    (RGBColor(0x00, 0x9E, 0x73), RGBColor(0x33, 0xC4, 0x97)),
    (RGBColor(0xB8, 0x5C, 0x92), RGBColor(0xE2, 0x97, 0xC4)),
    (RGBColor(0xE6, 0x9F, 0x00), RGBColor(0xF3, 0xBC, 0x45)),
    (RGBColor(0x3F, 0x9F, 0xD8), RGBColor(0x8F, 0xD0, 0xF5)),
    (RGBColor(0x8A, 0x7A, 0x00), RGBColor(0xB7, 0xC8, 0x45)),
];

/// Baselines.
const GREYS: [Hue; 3] = [
    (RGBColor(0x6B, 0x72, 0x80), RGBColor(0xAE, 0xB6, 0xC2)),
    (RGBColor(0x99, 0xA1, 0xAC), RGBColor(0x7F, 0x89, 0x97)),
    (RGBColor(0x47, 0x4D, 0x57), RGBColor(0xC9, 0xD0, 0xDA)),
];

/// What reads and writes look like where facilities do not matter.
pub(super) const READS: Look = Look { hue: HUES[0], mark: Mark::Circle };
/// See [`READS`].
pub(super) const WRITES: Look = Look { hue: HUES[1], mark: Mark::Square };

/// What a facility looks like in every chart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    hue: Hue,
    mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
}

const MARKS: [Mark; 4] = [Mark::Circle, Mark::Square, Mark::Triangle, Mark::Diamond];

impl Look {
    /// The look of the nth facility that encrypts.
    pub(super) fn of_facility(n: usize) -> Self {
        Self { hue: HUES[n % HUES.len()], mark: MARKS[n % MARKS.len()] }
    }

    /// The look of the nth baseline.
    pub(super) fn of_baseline(n: usize) -> Self {
        Self { hue: GREYS[n % GREYS.len()], mark: MARKS[n % MARKS.len()] }
    }

    /// Its colour on paper.
    pub(super) fn color(self) -> RGBColor {
        self.hue.0
    }
}

/// Rules that turn the colours of all charts into those for a dark screen.
pub(super) fn dark_style() -> String {
    let hex = |c: RGBColor| format!("#{:02X}{:02X}{:02X}", c.0, c.1, c.2);
    let rules = [INK, MUTED, GRID, PAPER].into_iter().chain(HUES).chain(GREYS).map(|(light, dark)| {
        let (light, dark) = (hex(light), hex(dark));
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}\n")
    });
    format!("@media screen and (prefers-color-scheme:dark){{\n{}}}\n", rules.collect::<String>())
}

/// A drawing that is under way. Places are in pixels of the chart, from its upper left corner.
pub(super) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

/// A place in a chart.
pub(super) type Point = (f64, f64);

/// An `svg` element of this size, with a title and a description for those who do not see it.
pub(super) fn svg(
    size: Point,
    title: &str,
    description: &str,
    draw: impl FnOnce(&Canvas) -> Result<()>,
) -> Result<String> {
    let mut text = String::new();
    {
        let whole = (zoomed(size.0) as u32, zoomed(size.1) as u32);
        let area = SVGBackend::with_string(&mut text, whole).into_drawing_area();
        let canvas = Canvas { area };
        draw(&canvas)?;
        canvas.area.present().map_err(failed)?;
    }
    // Its own opening tag has a fixed width, and no title.
    let inner = text.split_once('>').map_or("", |(_, rest)| rest);
    // Removes attributes that only repeat the defaults: a quarter of a page.
    let inner = inner.replace(" opacity=\"1\"", "").replace(" stroke=\"none\"", "");
    Ok(format!(
        "<svg role=\"img\" viewBox=\"0 0 {} {}\" style=\"--width:{}px\">\n<title>{}</title>\n<desc>{}</desc>{inner}",
        zoomed(size.0),
        zoomed(size.1),
        size.0,
        escaped(title),
        escaped(description)
    ))
}

/// A small picture of a look, for legends.
pub(super) fn swatch(look: Look, name: &str) -> Result<String> {
    svg((22.0, 12.0), name, "its colour and mark in the charts", |canvas| {
        canvas.line(&[(0.0, 6.0), (22.0, 6.0)], look.color(), 2.0)?;
        canvas.mark((11.0, 6.0), 4.5, look)
    })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn zoomed(pixels: f64) -> i32 {
    (pixels * ZOOM).round() as i32
}

fn place((x, y): Point) -> (i32, i32) {
    (zoomed(x), zoomed(y))
}

fn failed(error: DrawingAreaErrorKind<std::io::Error>) -> Error {
    Error::from(std::io::Error::other(format!("a chart cannot be drawn: {error}")))
}

impl Canvas<'_> {
    /// A line through all of these places.
    pub(super) fn line(&self, places: &[Point], color: RGBColor, width: f64) -> Result<()> {
        let places: Vec<_> = places.iter().map(|p| place(*p)).collect();
        self.area.draw(&PathElement::new(places, color.stroke_width(zoomed(width) as u32))).map_err(failed)
    }

    /// A filled outline.
    pub(super) fn fill(&self, places: &[Point], color: RGBColor, opacity: f64) -> Result<()> {
        let places: Vec<_> = places.iter().map(|p| place(*p)).collect();
        self.area.draw(&Polygon::new(places, color.mix(opacity))).map_err(failed)
    }

    /// A filled rectangle between two corners.
    pub(super) fn rectangle(&self, a: Point, b: Point, color: RGBColor, opacity: f64) -> Result<()> {
        let corners = [(a.0.min(b.0), a.1.min(b.1)), (a.0.max(b.0), a.1.max(b.1))].map(place);
        self.area.draw(&Rectangle::new(corners, color.mix(opacity).filled())).map_err(failed)
    }

    /// A mark of a radius, with a rim of paper that sets it off from others.
    pub(super) fn mark(&self, at: Point, radius: f64, look: Look) -> Result<()> {
        self.shape(at, radius + 1.0, look.mark, PAPER.0)?;
        self.shape(at, radius, look.mark, look.color())
    }

    /// A mark without an inside.
    pub(super) fn hollow_mark(&self, at: Point, radius: f64, look: Look) -> Result<()> {
        self.mark(at, radius, look)?;
        self.shape(at, radius - 1.5, look.mark, PAPER.0)
    }

    fn shape(&self, (x, y): Point, radius: f64, mark: Mark, color: RGBColor) -> Result<()> {
        // Shapes of the same area look equally large.
        let (square, corner) = (radius * 0.89, radius * 1.25);
        let outline = match mark {
            Mark::Circle => {
                let circle = Circle::new(place((x, y)), zoomed(radius), color.filled());
                return self.area.draw(&circle).map_err(failed);
            }
            Mark::Square => return self.rectangle((x - square, y - square), (x + square, y + square), color, 1.0),
            Mark::Triangle => vec![(x, y - corner), (x + corner, y + square), (x - corner, y + square)],
            Mark::Diamond => vec![(x, y - corner), (x + corner, y), (x, y + corner), (x - corner, y)],
        };
        self.fill(&outline, color, 1.0)
    }

    /// An interval from left to right or from bottom to top, with short ends.
    pub(super) fn whisker(&self, from: Point, to: Point, color: RGBColor) -> Result<()> {
        let (dx, dy) = if from.1 == to.1 { (0.0, 3.0) } else { (3.0, 0.0) };
        self.line(&[from, to], color, 1.5)?;
        [from, to].into_iter().try_for_each(|(x, y)| self.line(&[(x - dx, y - dy), (x + dx, y + dy)], color, 1.5))
    }

    /// A text in the middle of its height.
    pub(super) fn text(&self, at: Point, text: &str, color: RGBColor, anchor: HPos) -> Result<()> {
        self.write(at, text, color, anchor, FontStyle::Normal)
    }

    /// A heading.
    pub(super) fn heading(&self, at: Point, text: &str) -> Result<()> {
        self.write(at, text, INK.0, HPos::Left, FontStyle::Bold)
    }

    fn write(&self, at: Point, text: &str, color: RGBColor, anchor: HPos, style: FontStyle) -> Result<()> {
        let font = ("system-ui, sans-serif", TEXT * ZOOM * FONT, style).into_text_style(&self.area);
        let style = font.color(&color).pos(Pos::new(anchor, VPos::Center));
        self.area.draw(&Text::new(text.to_owned(), place(at), style)).map_err(failed)
    }
}

/// How wide a text is in a chart, about.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// Where values lie on an axis of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Span {
    /// An axis from zero, or from the smallest if that is below, to a bit more than the largest of the values.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) =
            values.filter(|v| v.is_finite()).fold((0.0, 0.0), |(a, b): (f64, f64), v| (a.min(v), b.max(v)));
        let step = step((high - low).max(f64::MIN_POSITIVE), 4);
        let (low, high) =
            if high > low { ((low / step).floor() * step, (high / step).ceil() * step) } else { (0.0, 1.0) };
        Self { low, high, log: false, from: 0.0, to: 1.0 }
    }

    /// An axis between these.
    pub(super) fn linear(low: f64, high: f64) -> Self {
        Self { low, high: if high > low { high } else { low + 1.0 }, log: false, from: 0.0, to: 1.0 }
    }

    /// A logarithmic axis that holds the values that are larger than zero, with some room at its ends.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|v| v.is_finite() && *v > 0.0);
        let (low, high) = values.fold((f64::MAX, 0.0), |(a, b): (f64, f64), v| (a.min(v), b.max(v)));
        let (low, high) = if low <= high { (low / 1.15, high * 1.15) } else { (1.0, 10.0) };
        Self { low, high, log: true, from: 0.0, to: 1.0 }
    }

    /// The same, drawn from one pixel to another.
    pub(super) fn over(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// The pixel of a value; that of the nearer end for a value that lies outside.
    pub(super) fn at(&self, value: f64) -> f64 {
        let along = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + along.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Values to be written at the axis: `count` or somewhat more.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        if self.log {
            return self.log_ticks();
        }
        let step = step(self.high - self.low, count);
        let first = (self.low / step - 1e-9).ceil();
        (0..200).map(|i| (first + f64::from(i)) * step).take_while(|v| *v <= self.high + step * 1e-9).collect()
    }

    /// Those values with what is written there: as many decimals as the finest of them needs.
    pub(super) fn written_ticks(&self, count: usize) -> Vec<(f64, String)> {
        let ticks = self.ticks(count);
        if self.log {
            return ticks.into_iter().map(|t| (t, number(t))).collect();
        }
        let step = ticks.get(1).zip(ticks.first()).map_or(1.0, |(b, a)| b - a);
        let decimals = (-(step * 1.0001).log10().floor()).clamp(0.0, 9.0) as usize;
        let write = |t: f64| if t == 0.0 { "0".to_owned() } else { format!("{t:.decimals$}") };
        ticks.into_iter().map(|t| (t, write(t))).collect()
    }

    /// The unit, and whether the axis is logarithmic.
    pub(super) fn described(&self, unit: &str) -> String {
        if self.log { format!("{unit}, logarithmic") } else { unit.to_owned() }
    }

    /// Powers of ten; twice and five times those where there are few.
    fn log_ticks(&self) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let factors: &[f64] = match (self.high / self.low).log10() {
            d if d > 3.5 => &[1.0],
            d if d > 1.5 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let all = decades.flat_map(|d| factors.iter().map(move |f| f * 10f64.powi(d)));
        all.filter(|v| *v >= self.low && *v <= self.high).collect()
    }
}

/// A step of 1, 2 or 5 times a power of ten, which divides the range into `count` parts or somewhat more.
fn step(range: f64, count: usize) -> f64 {
    let rough = range / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|f| f * power).find(|s| *s <= rough * 1.0001).unwrap_or(power)
}

/// A rectangle in which values are drawn, with the axes at its edges.
pub(super) struct Frame<'c, 'a> {
    pub(super) canvas: &'c Canvas<'a>,
    pub(super) x: Span,
    pub(super) y: Span,
}

impl Frame<'_, '_> {
    /// The place of two values.
    pub(super) fn at(&self, x: f64, y: f64) -> Point {
        (self.x.at(x), self.y.at(y))
    }

    /// Draws horizontal lines at the ticks of the vertical axis, the values at these ticks, and the unit above them.
    pub(super) fn vertical_axis(&self, count: usize, unit: &str) -> Result<()> {
        for (tick, text) in self.y.written_ticks(count) {
            let y = self.y.at(tick);
            let color = if tick == 0.0 { MUTED.0 } else { GRID.0 };
            self.canvas.line(&[(self.x.from, y), (self.x.to, y)], color, 1.0)?;
            self.canvas.text((self.x.from - 6.0, y), &text, MUTED.0, HPos::Right)?;
        }
        self.canvas.text((self.x.from - 6.0, self.y.to - 14.0), &self.y.described(unit), MUTED.0, HPos::Left)
    }

    /// Writes the values at these ticks of the horizontal axis, and `what` they are below. Omits values that do not
    /// fit.
    pub(super) fn horizontal_axis(&self, ticks: &[(f64, String)], what: &str) -> Result<()> {
        let bottom = self.y.from;
        self.canvas.line(&[(self.x.from, bottom), (self.x.to, bottom)], MUTED.0, 1.0)?;
        let mut free = f64::MIN;
        for (value, text) in ticks {
            let (x, half) = (self.x.at(*value), text_width(text) / 2.0);
            self.canvas.line(&[(x, bottom), (x, bottom + 4.0)], MUTED.0, 1.0)?;
            if x - half > free {
                self.canvas.text((x, bottom + 13.0), text, MUTED.0, HPos::Center)?;
                free = x + half + 4.0;
            }
        }
        self.canvas.text(((self.x.from + self.x.to) / 2.0, bottom + 31.0), what, MUTED.0, HPos::Center)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_their_values() {
        for values in [vec![0.0], vec![3.0, 97.0], vec![-12.0, 40.0], vec![1e-9, 2e-9], vec![f64::NAN, 5.0], vec![]] {
            let span = Span::from_zero(values.iter().copied()).over(10.0, 110.0);
            let ticks = span.ticks(4);
            assert!((2..=12).contains(&ticks.len()), "{values:?}: {ticks:?}");
            assert!(ticks.iter().all(|t| t.is_finite()) && ticks.contains(&0.0), "{values:?}: {ticks:?}");
            assert!(values.iter().filter(|v| v.is_finite()).all(|v| (10.0..=110.0).contains(&span.at(*v))));
        }
        let log = Span::logarithmic([512.0, 1048576.0].into_iter()).over(0.0, 100.0);
        assert!(log.at(512.0) > 0.0 && log.at(1048576.0) < 100.0 && log.ticks(4).len() >= 3);
        assert_eq!(log.at(0.0), 0.0, "what has no logarithm lies at the end");
        assert_eq!(step(100.0, 4), 20.0);
    }
}
