//! Aligned columns, bars, and CSV.

use super::CsvRecord;

/// Widest bar, in characters.
const BAR: usize = 12;

/// Widest line of text, in characters.
pub(super) const WIDTH: usize = 110;

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Columns under headings, two spaces apart.
pub(super) struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; numbers go to the right.
    pub(super) fn new(columns: &[(&str, Align)]) -> Self {
        let headings = columns.iter().map(|(heading, _)| (*heading).to_string()).collect();
        Self { columns: columns.iter().map(|(_, align)| *align).collect(), rows: vec![headings] }
    }

    /// Adds a row. Cells that are left out at its end stay empty.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        debug_assert!(cells.len() <= self.columns.len());
        self.rows.push(cells);
    }

    /// Lines, each with its newline, and a rule under the headings.
    pub(super) fn text(&self) -> String {
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, &width), &align) in row.iter().zip(&widths).zip(&self.columns) {
                let fill = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => line += &format!("{cell}{fill}  "),
                    Align::Right => line += &format!("{fill}{cell}  "),
                }
            }
            text += line.trim_end();
            text.push('\n');
            if i == 0 {
                text += &"─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
                text.push('\n');
            }
        }
        text
    }
}

/// A bar of `value` where `largest` has the full width, to an eighth of a character.
pub(super) fn bar(value: f64, largest: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if largest > 0.0 { (value / largest).clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * (BAR * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
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
        let mut table = Table::new(&[("name", Align::Left), ("MB/s", Align::Right)]);
        table.row(vec!["AES".into(), "12000".into()]);
        table.row(vec!["Serpent".into(), "7".into()]);
        assert_eq!(table.text(), "name      MB/s\n──────────────\nAES      12000\nSerpent      7\n");
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
