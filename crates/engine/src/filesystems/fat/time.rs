//! FAT's dates and times: a date in three fields, and units of two seconds or ten milliseconds.
//!
//! FAT stores local time without a time zone. This module treats it as UTC, like Linux with the mount option `tz=UTC`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// A date and time as FAT stores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Year since 1980 in the highest 7 bits, month from 1 in 4, day from 1 in 5.
    pub date: u16,
    /// Hour in the highest 5 bits, minute in 6, seconds divided by two in 5.
    pub time: u16,
    /// Hundredths of a second, 0 to 199.
    pub hundredths: u8,
}

impl Stamp {
    /// The latest stamp at or before `time`, within 1980 to 2107.
    pub fn new(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (year, month, day) = date_of((since.as_secs() / DAY) as i64);
        if year < 1980 {
            return Self { date: 1 << 5 | 1, time: 0, hundredths: 0 };
        }
        if year > 2107 {
            return Self { date: 127 << 9 | 12 << 5 | 31, time: 23 << 11 | 59 << 5 | 29, hundredths: 199 };
        }
        let second = since.as_secs() % DAY;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        Self {
            date: ((year - 1980) as u16) << 9 | (month as u16) << 5 | day as u16,
            time: (hour << 11 | minute << 5 | (second / 2)) as u16,
            hundredths: (second % 2 * 100) as u8 + (since.subsec_millis() / 10) as u8,
        }
    }

    /// The time; `None` if the date or the time of day does not exist.
    pub fn time(self) -> Option<SystemTime> {
        let (year, month, day) = (1980 + i64::from(self.date >> 9), self.date >> 5 & 15, self.date & 31);
        let (hour, minute, second) = (self.time >> 11, self.time >> 5 & 63, (self.time & 31) * 2);
        let sound = (1..=12).contains(&month) && day >= 1 && hour < 24 && minute < 60 && second < 60;
        let days = days_until(year, i64::from(month), i64::from(day));
        if !sound || self.hundredths > 199 || date_of(days) != (year, i64::from(month), i64::from(day)) {
            return None;
        }
        let seconds = days as u64 * DAY + u64::from(hour) * 3600 + u64::from(minute) * 60 + u64::from(second);
        Some(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(u64::from(self.hundredths) * 10))
    }
}

/// Days from 1970-01-01 to a date in the Gregorian calendar. Years begin in March, so that the leap day comes last; 400 years have
/// 146,097 days.
fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    let days_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + days_of_year - 719_468
}

/// The year, month and day `days` after 1970-01-01.
pub(crate) fn date_of(days: i64) -> (i64, i64, i64) {
    // The year can be off by one; the day of the year shows it.
    let mut year = 1970 + days.div_euclid(366);
    while days_until(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (1..=12).rev().find(|&m| days_until(year, m, 1) <= days).unwrap_or(1);
    (year, month, days - days_until(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_to_ten_milliseconds() {
        // Seconds of known dates, from `date -u -d … +%s`.
        for (seconds, date) in [
            (315_532_800, (1980, 1, 1)),
            (951_782_400, (2000, 2, 29)),
            (1_328_612_945, (2012, 2, 7)),
            (1_735_689_599, (2024, 12, 31)),
            (4_354_819_199, (2107, 12, 31)),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 730);
            let stamp = Stamp::new(time);
            let fields = (1980 + stamp.date / 512, stamp.date / 32 % 16, stamp.date % 32);
            assert_eq!(fields, date);
            assert_eq!(stamp.time(), Some(time));
        }
    }

    #[test]
    fn times_out_of_range_become_the_nearest_and_false_ones_none() {
        let nearest = |seconds| Stamp::new(UNIX_EPOCH + Duration::from_secs(seconds)).time();
        assert_eq!(nearest(0), Some(UNIX_EPOCH + Duration::from_secs(315_532_800)));
        assert!(nearest(5_000_000_000).is_some_and(|t| t < UNIX_EPOCH + Duration::from_secs(4_354_819_200)));
        for (date, time) in [(0, 0), (13 << 5 | 1, 0), (2 << 5 | 30, 0), (1 << 5 | 1, 24 << 11), (1 << 5 | 1, 60 << 5)]
        {
            assert_eq!(Stamp { date, time, hundredths: 0 }.time(), None);
        }
    }
}
