//! Figures and names in words: the same in every message and report.

use std::fmt::Display;

use serde::Serialize;

use crate::model::case::{Axis, Case};

/// The text with `?` for every control character except newlines, and for every character that changes the writing
/// direction: names and errors in it are untrusted, and a terminal would obey them.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if obeyed(c) && c != '\n' { '?' } else { c }).collect()
}

/// Whether a terminal does something at this character instead of showing it: control characters, line separators, and what changes
/// the writing direction (UAX #9, section 2).
pub fn obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// A size: `100 KiB`, `5 MiB`, `512 bytes`.
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b > 0 && b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b > 0 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b > 0 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

/// Bytes per second as MB/s, with four digits or so.
pub(crate) fn rate(bytes_per_s: f64) -> String {
    let mb = bytes_per_s / 1e6;
    match mb {
        _ if mb >= 100.0 => format!("{mb:.0}"),
        _ if mb >= 10.0 => format!("{mb:.1}"),
        _ => format!("{mb:.2}"),
    }
}

/// A share as per cent; a dash for anything that is not a number.
pub(crate) fn percent(share: f64) -> String {
    if !share.is_finite() {
        return "–".into();
    }
    // No "-0.0".
    let value = (share * 1000.0).round() / 10.0;
    format!("{:.1}", if value == 0.0 { 0.0 } else { value })
}

/// A value in full, for machines.
pub(crate) fn number(value: f64) -> String {
    format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_string()
}

/// `random read, file of 64 MiB, blocks of 4 KiB`.
pub fn case_words(case: &Case) -> String {
    let words = [case.operation.clone(), case.series.clone(), place_words(case)];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// `blocks of 4 KiB`, `12 clients`; empty for a case that has no place on an axis.
fn place_words(case: &Case) -> String {
    let before = match case.axis {
        Axis::Block => "blocks of ",
        Axis::File => "a file of ",
        Axis::Size => "a volume of ",
        Axis::Clients | Axis::Volumes | Axis::None => "",
    };
    case.x.map(|x| format!("{before}{}", place(case.axis, x))).unwrap_or_default()
}

/// A place on an axis: `4 KiB`, `12 clients`.
pub(crate) fn place(axis: Axis, x: f64) -> String {
    match axis {
        Axis::Block | Axis::File | Axis::Size => size(x as u64),
        Axis::Clients => counted(x, "client"),
        Axis::Volumes => counted(x, "volume"),
        Axis::None => x.to_string(),
    }
}

/// `1 pass`, `3 passes`, `2 processors`.
pub(crate) fn counted(n: impl Display, what: &str) -> String {
    let n = n.to_string();
    let plural = if what.ends_with('s') { "es" } else { "s" };
    format!("{n} {what}{}", if n == "1" { "" } else { plural })
}

/// As JSON has it, which is the same word everywhere: `quick`, `{"kind":"folder","path":"/x"}`.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(e) => e.to_string(),
    }
}

/// Seconds since 1970 as a date of the Gregorian calendar and a time of day, `2012-02-07` and `11:09:05`, in UTC.
pub fn date_and_time(seconds: i64) -> (String, String) {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // In years that begin in March (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"))
}
