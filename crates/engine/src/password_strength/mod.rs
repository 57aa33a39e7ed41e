//! How long somebody with a graphics card would search for a password.
//!
//! That is the number of guesses that the password withstands ([`guesses_log10`]), divided by the number of guesses per second
//! ([`GuessWork::per_second`]), which the key derivation sets. Both are estimates, and a password is only as strong as it was chosen:
//! a name, a song or an earlier password that the guesser knows is found at once, and nothing here can tell.
//!
//! The password is only read where it is. Nothing of it is copied, not even a lower-case form.
//!
//! ```
//! use claviger_engine::password_strength::{GuessWork, StrengthVerdict, strength};
//!
//! let work = GuessWork::Argon2 { variant: "Argon2id", passes: 4, memory_kib: 1 << 20 };
//! assert_eq!(strength(b"summer2019", &work).verdict, StrengthVerdict::Weak);
//! assert_eq!(strength(b"v8Kq2xTz0bLm4Rw7", &work).verdict, StrengthVerdict::Strong);
//! ```

mod estimate;
mod guess_work;
mod words;

pub use estimate::guesses_log10;
pub use guess_work::{GraphicsCard, GuessWork, RTX_4090};
use serde::Serialize;

/// A year, in seconds.
const YEAR: f64 = 365.25 * 86_400.0;

/// A search that takes one card less than this many years is within reach: a thousand rented cards end it in days.
const WEAK_YEARS: f64 = 10.0;

/// A search that takes one card this many years is out of reach.
const STRONG_YEARS: f64 = 10_000.0;

/// How strong a password is against guesses at a certain cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
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
    let guesses_log10 = guesses_log10(password);
    let seconds_log10 = guesses_log10 - work.per_second(&RTX_4090).log10();
    let verdict = match seconds_log10 {
        seconds if seconds < (WEAK_YEARS * YEAR).log10() => StrengthVerdict::Weak,
        seconds if seconds < (STRONG_YEARS * YEAR).log10() => StrengthVerdict::Fair,
        _ => StrengthVerdict::Strong,
    };
    PasswordStrength { guesses_log10, seconds_log10, verdict }
}

impl PasswordStrength {
    /// The time of a search with one graphics card, in words: `about 3 hours`.
    pub fn time(&self) -> String {
        const UNITS: &[(f64, f64, &str)] = &[
            (99.5, 1.0, "second"),
            (99.5 * 60.0, 60.0, "minute"),
            (47.5 * 3600.0, 3600.0, "hour"),
            (2.0 * YEAR, 86_400.0, "day"),
            (1e6 * YEAR, YEAR, "year"),
        ];
        let seconds = 10f64.powf(self.seconds_log10);
        if seconds < 1.0 {
            return "less than a second".to_owned();
        }
        let Some((_, unit, name)) = UNITS.iter().find(|(below, ..)| seconds < *below) else {
            return "more than a million years".to_owned();
        };
        // Two digits are more than an estimate deserves.
        let count = (seconds / unit).max(1.0);
        let digits = 10f64.powf((count.log10().floor() - 1.0).max(0.0));
        match ((count / digits).round() * digits) as u64 {
            1 => format!("about 1 {name}"),
            count => format!("about {count} {name}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taking(seconds: f64) -> String {
        let seconds_log10 = seconds.log10();
        PasswordStrength { guesses_log10: 0.0, seconds_log10, verdict: StrengthVerdict::Weak }.time()
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
            assert_eq!(taking(seconds), words);
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
