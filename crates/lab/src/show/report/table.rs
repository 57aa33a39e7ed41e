//! Aligned columns, bars, and CSV.

use std::iter;

use super::CsvRecord;
use crate::model::words::number;

/// Widest bar, in characters.
const BAR: usize = 12;

/// Widest line of text, in characters.
pub(super) const WIDTH: usize = 110;

/// Columns under headings and a rule, two spaces apart, in lines that end with a newline. A heading that begins with `>` is that of
/// a column of numbers, which goes to the right. A row may end early.
pub(super) fn table(
    headings: impl IntoIterator<Item = impl Into<String>>,
    rows: impl IntoIterator<Item = impl Into<Vec<String>>>,
) -> String {
    let mut headings: Vec<String> = headings.into_iter().map(Into::into).collect();
    let right: Vec<bool> = headings.iter_mut().map(|h| h.starts_with('>').then(|| h.remove(0)).is_some()).collect();
    let rows: Vec<Vec<String>> = iter::once(headings).chain(rows.into_iter().map(Into::into)).collect();
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..right.len()).map(width).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(&widths).zip(&right) {
            let fill = " ".repeat(width - cell.chars().count());
            line += &if *right { format!("{fill}{cell}  ") } else { format!("{cell}{fill}  ") };
        }
        text += &format!("{}\n", line.trim_end());
        if i == 0 {
            text += &format!("{}\n", "─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)));
        }
    }
    text
}

/// Whether a cell of a table is a number, an interval of numbers or nothing, and goes to the right.
pub(super) fn is_numeric(cell: &str) -> bool {
    cell.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '–' | '−' | '+' | '…' | ' ' | '%' | '*'))
}

/// A figure in full: latencies of microseconds are seconds here. Empty for anything that is not a number.
pub(super) fn exact(value: f64) -> String {
    match value {
        v if !v.is_finite() => String::new(),
        v if v != 0.0 && v.abs() < 1e-3 => format!("{v:e}"),
        v => number(v),
    }
}

/// A bar of `value` where `largest` has the full width, to an eighth of a character.
pub(super) fn bar(value: f64, largest: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if largest > 0.0 { (value / largest).clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * (BAR * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// Writes the columns of a record. All fields must be named, so that a new one is not forgotten. A column has the name
/// of a field, or a cell of its own.
macro_rules! csv_record {
    ($type:ty { $($fields:tt)* } => $($column:ident $(: $cell:expr)?),* $(,)?) => {
        impl CsvRecord for $type {
            fn record(&self) -> Vec<(&'static str, String)> {
                let Self { $($fields)* } = self;
                vec![$((stringify!($column), csv_record!(@cell $column $(, $cell)?))),*]
            }
        }
    };
    (@cell $column:ident) => { $column.to_string() };
    (@cell $column:ident, $cell:expr) => { $cell.to_string() };
}
pub(super) use csv_record;

/// The cell of an optional value; empty for `None`.
pub(super) fn optional<T>(value: &Option<T>, cell: impl Fn(&T) -> String) -> String {
    value.as_ref().map(cell).unwrap_or_default()
}

/// Lines of comma-separated values under a line of names (RFC 4180, with \n).
pub fn csv<R: CsvRecord>(records: &[R]) -> String {
    let mut text = String::new();
    for (i, record) in records.iter().map(CsvRecord::record).enumerate() {
        if i == 0 {
            text += &line(record.iter().map(|(name, _)| *name));
        }
        text += &line(record.iter().map(|(_, value)| value.as_str()));
    }
    text
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted = |cell: &str| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_string(),
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

/// Lines of at most [`WIDTH`] characters, the second and later ones indented.
pub(super) fn wrapped(line: &str) -> String {
    hanging("", " ", line)
}

/// The same lines, with `first` in front of the first one and `others` in front of the others.
pub fn hanging(first: &str, others: &str, text: &str) -> String {
    let (mut lines, mut used) = (first.to_owned(), first.chars().count());
    for (i, word) in text.split(' ').enumerate() {
        let len = word.chars().count();
        if i > 0 && used + 1 + len > WIDTH {
            lines += &format!("\n{others}");
            used = others.chars().count();
        } else if i > 0 {
            lines.push(' ');
            used += 1;
        }
        lines += word;
        used += len;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["AES", "12000"], ["Serpent", "7"]].map(|row| row.map(String::from));
        assert_eq!(table(["name", ">MB/s"], rows), "name      MB/s\n──────────────\nAES      12000\nSerpent      7\n");
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(1.0, 1.0).chars().count(), BAR);
        assert_eq!(bar(0.0, 1.0), "");
        assert_eq!(bar(1.0, 2.0), "█".repeat(BAR / 2));
        assert_eq!(bar(5.0, 0.0), "");
    }

    #[test]
    fn cells_are_quoted_where_needed() {
        struct One(&'static str);
        impl CsvRecord for One {
            fn record(&self) -> Vec<(&'static str, String)> {
                vec![("a", self.0.into()), ("b", "2".into())]
            }
        }
        assert_eq!(csv(&[One("x"), One("say \"hi\", you")]), "a,b\nx,2\n\"say \"\"hi\"\", you\",2\n");
    }
}
