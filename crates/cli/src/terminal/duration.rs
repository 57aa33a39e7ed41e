//! Durations on the command line: `90`, `30s`, `10m`, `2h`, `1d`.

use std::time::Duration;

/// The seconds of each unit.
const UNITS: &[(char, u64)] = &[('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];

/// Parses a duration: a number of seconds, or a number with a unit. Refuses 0.
pub fn parse(text: &str) -> Result<Duration, String> {
    parse_or_none(text)
        .and_then(|time| if time.is_zero() { Err("it must be longer than 0s".to_owned()) } else { Ok(time) })
}

/// Like [`parse`], but takes `0` and `0s`.
pub fn parse_or_none(text: &str) -> Result<Duration, String> {
    let unit = UNITS.iter().find(|(letter, _)| text.ends_with(*letter));
    let (number, seconds) = match unit {
        Some((letter, seconds)) => (&text[..text.len() - letter.len_utf8()], *seconds),
        None => (text, 1),
    };
    let total = number.parse::<u64>().ok().and_then(|n| n.checked_mul(seconds));
    total.map(Duration::from_secs).ok_or_else(|| "not a time like 90, 30s, 10m, 2h or 1d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_letters() {
        for (text, seconds) in [("90", 90), ("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86_400)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "0", "0s", "-1", "1.5h", "10x", "10mm0", "18446744073709551615d"] {
            assert!(parse(text).is_err(), "{text}");
            assert_eq!(parse_or_none(text).is_ok(), text.starts_with('0'), "{text}");
        }
    }
}
