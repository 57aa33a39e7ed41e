//! How long somebody with a graphics card would search for a password.
//!
//! That is the number of guesses that the password withstands ([`guesses_log10`]), divided by the number of guesses per second
//! ([`GuessWork::per_second`]), which the key derivation sets. Both are estimates, and a password is only as strong as it was chosen:
//! a name, a song or an earlier password that the guesser knows is found at once, and nothing here can tell.
//!
//! The password is only read where it is. Nothing of it is copied, not even a lower-case form.
//!
//! ```
//! use claviger_crypto::password_strength::{GuessWork, StrengthVerdict, strength};
//!
//! let work = GuessWork::Argon2 { variant: "Argon2id", passes: 4, memory_kib: 1 << 20 };
//! assert_eq!(strength(b"summer2019", &work).verdict, StrengthVerdict::Weak);
//! assert_eq!(strength(b"v8Kq2xTz0bLm4Rw7", &work).verdict, StrengthVerdict::Strong);
//! ```

mod estimate;
mod guess_work;
mod words;

use std::fmt;

pub use estimate::guesses_log10;
pub use guess_work::{GraphicsCard, GuessWork, RTX_4090};

/// A year, in seconds.
const YEAR: f64 = 365.25 * 86_400.0;

/// A search that takes one card less than this many years is within reach: a thousand rented cards end it in days.
const WEAK_YEARS: f64 = 10.0;

/// A search that takes one card this many years is out of reach.
const STRONG_YEARS: f64 = 10_000.0;

/// How strong a password is against guesses at a certain cost.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PasswordStrength {
    /// How many guesses it withstands, as a power of ten.
    pub guesses_log10: f64,
    /// How long one [`RTX_4090`] takes for them, in seconds, as a power of ten.
    pub seconds_log10: f64,
    /// What that means.
    pub verdict: StrengthVerdict,
}

/// What the time of a search means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StrengthVerdict {
    /// Less than ten years with one card.
    Weak,
    /// Enough against most people.
    Fair,
    /// At least 10,000 years with one card.
    Strong,
}

impl StrengthVerdict {
    /// Its name: `Weak`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weak => "Weak",
            Self::Fair => "Fair",
            Self::Strong => "Strong",
        }
    }
}

/// How strong the password is if each guess takes this work.
pub fn strength(password: &[u8], work: &GuessWork) -> PasswordStrength {
    PasswordStrength::new(guesses_log10(password), work.per_second(&RTX_4090))
}

impl PasswordStrength {
    /// The strength of a password that withstands so many guesses, as a power of ten, if one card makes `per_second` of them.
    pub fn new(guesses_log10: f64, per_second: f64) -> Self {
        let seconds_log10 = guesses_log10 - per_second.log10();
        let verdict = match seconds_log10 {
            seconds if seconds < (WEAK_YEARS * YEAR).log10() => StrengthVerdict::Weak,
            seconds if seconds < (STRONG_YEARS * YEAR).log10() => StrengthVerdict::Fair,
            _ => StrengthVerdict::Strong,
        };
        Self { guesses_log10, seconds_log10, verdict }
    }

    /// The time of a search with one graphics card.
    pub fn time(&self) -> SearchTime {
        const UNITS: &[(f64, f64, TimeUnit)] = &[
            (99.5, 1.0, TimeUnit::Second),
            (99.5 * 60.0, 60.0, TimeUnit::Minute),
            (47.5 * 3600.0, 3600.0, TimeUnit::Hour),
            (2.0 * YEAR, 86_400.0, TimeUnit::Day),
            (1e6 * YEAR, YEAR, TimeUnit::Year),
        ];
        let seconds = 10f64.powf(self.seconds_log10);
        if seconds < 1.0 {
            return SearchTime::LessThanASecond;
        }
        let Some((_, size, unit)) = UNITS.iter().find(|(below, ..)| seconds < *below) else {
            return SearchTime::MoreThanAMillionYears;
        };
        // Two digits are more than an estimate deserves.
        let count = (seconds / size).max(1.0);
        let digits = 10f64.powf((count.log10().floor() - 1.0).max(0.0));
        SearchTime::About(((count / digits).round() * digits) as u64, *unit)
    }
}

/// How long a search takes, rounded for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchTime {
    /// Less than a second.
    LessThanASecond,
    /// About this many. One only of seconds: larger units begin with two.
    About(u64, TimeUnit),
    /// More than a million years.
    MoreThanAMillionYears,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A year.
    Year,
}

/// In English: `about 3 hours`.
impl fmt::Display for SearchTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LessThanASecond => f.write_str("less than a second"),
            Self::About(1, TimeUnit::Second) => f.write_str("about 1 second"),
            Self::About(count, unit) => write!(f, "about {count} {}", unit.plural()),
            Self::MoreThanAMillionYears => f.write_str("more than a million years"),
        }
    }
}

impl TimeUnit {
    fn plural(self) -> &'static str {
        match self {
            Self::Second => "seconds",
            Self::Minute => "minutes",
            Self::Hour => "hours",
            Self::Day => "days",
            Self::Year => "years",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One guess, which takes so long.
    fn taking(seconds: f64) -> SearchTime {
        PasswordStrength::new(0.0, 1.0 / seconds).time()
    }

    #[test]
    fn times_are_told_in_words() {
        for (seconds, words) in [
            (0.2, "less than a second"),
            (1.0, "about 1 second"),
            (59.0, "about 59 seconds"),
            (600.0, "about 10 minutes"),
            (3.0 * 3600.0, "about 3 hours"),
            (400.0 * 86_400.0, "about 400 days"),
            (12_345.0 * YEAR, "about 12000 years"),
            (1e9 * YEAR, "more than a million years"),
        ] {
            assert_eq!(taking(seconds).to_string(), words);
        }
    }

    #[test]
    fn only_seconds_are_singular() {
        for hundredths in 0..2000 {
            if let SearchTime::About(count, unit) = taking(10f64.powf(f64::from(hundredths) / 100.0)) {
                assert!(count > 1 || unit == TimeUnit::Second, "{count} {unit:?}");
            }
        }
    }

    #[test]
    fn the_key_derivation_makes_the_difference() {
        let password = b"quiet-lamp-river-9";
        let once = GuessWork::Hash { hash: "SHA-256", times: 1, compressions: 1 };
        let argon2 = GuessWork::Argon2 { variant: "Argon2id", passes: 4, memory_kib: 1 << 20 };
        let (fast, slow) = (strength(password, &once), strength(password, &argon2));
        assert_eq!(fast.guesses_log10.to_bits(), slow.guesses_log10.to_bits());
        assert!(slow.seconds_log10 - fast.seconds_log10 > 7.0 && slow.verdict > fast.verdict, "{fast:?} {slow:?}");
    }
}
