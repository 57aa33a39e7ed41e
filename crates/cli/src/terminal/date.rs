//! Formats dates for people.

/// Seconds since 1970 as `2012-02-07 11:09:05 UTC`.
pub fn date(seconds: i64) -> String {
    let (date, time) = claviger_lab::model::words::date_and_time(seconds);
    format!("{date} {time} UTC")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn seconds_become_dates_before_and_after_1970() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_328_612_945, "2012-02-07 11:09:05 UTC"),
            (-11_644_473_600, "1601-01-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
