//! Parses and formats sizes for people.

use std::time::Duration;

/// Parses `512`, `100M`, `1.5GiB`, `2TB`. The result is a whole number of bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let factor = match unit.as_str() {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1000_u64.pow(2),
        "GB" => 1000_u64.pow(3),
        "TB" => 1000_u64.pow(4),
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        _ => return Err(format!("{text:?} has an unknown unit; use K, M, G, T, KB, MB, GB, TB, KiB, MiB, GiB or TiB")),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let bad = || format!("{text:?} is not a size");
    let too_large = || format!("{text:?} is too large");
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(bad());
    }
    let whole = whole.parse::<u64>().map_err(|_| too_large())?.checked_mul(factor).ok_or_else(too_large)?;
    if fraction.is_empty() {
        return Ok(whole);
    }
    // Exact: 0.1K is not a whole number of bytes, and must not silently become 102.
    let scale = 10u128.checked_pow(fraction.len() as u32).ok_or_else(bad)?;
    let part = fraction.parse::<u128>().map_err(|_| bad())? * u128::from(factor);
    if !part.is_multiple_of(scale) {
        return Err(format!("{text:?} is not a whole number of bytes"));
    }
    whole.checked_add((part / scale) as u64).ok_or_else(too_large)
}

/// The size in whole KiB or MiB, rounded up, as an option has it: `292K`, `17M`.
pub fn at_least(bytes: u64) -> String {
    match bytes {
        ..0x400 => bytes.to_string(),
        0x400..0x10_0000 => format!("{}K", bytes.div_ceil(1 << 10)),
        _ => format!("{}M", bytes.div_ceil(1 << 20)),
    }
}

/// `147456 bytes (144 KiB)`.
pub fn exact(bytes: u64) -> String {
    if bytes < 1 << 10 { format!("{bytes} bytes") } else { format!("{bytes} bytes ({})", short(bytes)) }
}

/// `144 KiB`, `1.5 GiB`: at most one decimal.
pub fn short(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(value.fract() >= 0.05 && value.fract() < 0.95 && value < 100.0);
    format!("{value:.decimals$} {}", units[unit])
}

/// A duration for people: `12 s`, `4 min`, `1.5 h`, `12 days`, `3 years`.
pub fn duration(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 99.5 * 60.0 => format!("{:.0} min", s / 60.0),
        s if s < 99.5 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s < 999.5 * 86_400.0 => format!("{:.0} days", s / 86_400.0),
        s => format!("{:.0} years", s / (365.25 * 86_400.0)),
    }
}

/// A rate in millions of bytes per second: `512 MB/s`.
pub fn rate(bytes: u64, took: Duration) -> String {
    let rate = bytes as f64 / 1e6 / took.as_secs_f64().max(1e-9);
    if rate < 10.0 { format!("{rate:.1} MB/s") } else { format!("{rate:.0} MB/s") }
}

/// A count with its noun: `1 file`, `2 files`.
pub fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_to_what_matters() {
        for (seconds, text) in [
            (0.4, "0 s"),
            (99.0, "99 s"),
            (100.0, "2 min"),
            (5700.0, "95 min"),
            (7000.0, "1.9 h"),
            (1e6, "12 days"),
            (1e8, "3 years"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn a_size_for_an_option_is_never_too_small() {
        for (bytes, text) in [(512, "512"), (1024, "1K"), (1025, "2K"), ((16 << 20) + 4096, "17M")] {
            assert_eq!(at_least(bytes), text);
            assert!(parse(text).is_ok_and(|read| read >= bytes), "{text}");
        }
    }

    #[test]
    fn reads_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("1k", 1024),
            ("100M", 100 << 20),
            ("100 MiB", 100 << 20),
            ("1.5G", 3 << 29),
            ("2TB", 2_000_000_000_000),
            ("1KB", 1000),
            ("0.5k", 512),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in [
            "",
            "M",
            "-1",
            "1.",
            ".5M",
            "1.5",
            "1X",
            "1 2",
            "0.1K",
            "1.2.3K",
            "18446744073709551616",
            "20000000T",
            "1e3",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prints_as_people_read() {
        assert_eq!(exact(147_456), "147456 bytes (144 KiB)");
        assert_eq!(exact(12), "12 bytes");
        assert_eq!(short(3 << 29), "1.5 GiB");
        assert_eq!(short(1 << 40), "1 TiB");
        assert_eq!(rate(512_000_000, Duration::from_secs(1)), "512 MB/s");
    }
}
