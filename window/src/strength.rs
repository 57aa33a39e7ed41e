//! The line about a new password: how long somebody would search for it.

use claviger_crypto::password_strength::{PasswordStrength, SearchTime, StrengthVerdict, TimeUnit};

use crate::texts::Texts;

/// How strong it is, in the window's language.
pub fn line(strength: &PasswordStrength, texts: &Texts) -> String {
    let verdict = match strength.verdict {
        StrengthVerdict::Weak => texts.weak,
        StrengthVerdict::Fair => texts.fair,
        StrengthVerdict::Strong => texts.strong,
    };
    let line = texts.strength.replace("{verdict}", verdict).replace("{time}", &time(strength.time(), texts));
    match strength.verdict {
        StrengthVerdict::Weak => format!("{line} {}", texts.stronger),
        _ => line,
    }
}

fn time(time: SearchTime, texts: &Texts) -> String {
    let (about, count) = match time {
        SearchTime::LessThanASecond => (texts.below_a_second, 0),
        SearchTime::MoreThanAMillionYears => (texts.above_a_million_years, 0),
        SearchTime::About(1, TimeUnit::Second) => (texts.about_a_second, 1),
        SearchTime::About(count, TimeUnit::Second) => (texts.about_seconds, count),
        SearchTime::About(count, TimeUnit::Minute) => (texts.about_minutes, count),
        SearchTime::About(count, TimeUnit::Hour) => (texts.about_hours, count),
        SearchTime::About(count, TimeUnit::Day) => (texts.about_days, count),
        SearchTime::About(count, TimeUnit::Year) => (texts.about_years, count),
    };
    about.replace("{}", &count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::texts::{ENGLISH, GERMAN};

    /// One guess, which takes so long.
    fn taking(seconds: f64, texts: &Texts) -> String {
        line(&PasswordStrength::new(0.0, 1.0 / seconds), texts)
    }

    #[test]
    fn times_are_told_in_both_languages() {
        const DAY: f64 = 86_400.0;
        for (seconds, english, german) in [
            (0.2, "less than a second", "weniger als eine Sekunde"),
            (1.0, "about 1 second", "etwa 1 Sekunde"),
            (59.0, "about 59 seconds", "etwa 59 Sekunden"),
            (600.0, "about 10 minutes", "etwa 10 Minuten"),
            (3.0 * 3600.0, "about 3 hours", "etwa 3 Stunden"),
            (400.0 * DAY, "about 400 days", "etwa 400 Tage"),
            (12_345.0 * 365.25 * DAY, "about 12000 years", "etwa 12000 Jahre"),
            (1e9 * 365.25 * DAY, "more than a million years", "mehr als eine Million Jahre"),
        ] {
            for (texts, words) in [(&ENGLISH, english), (&GERMAN, german)] {
                let line = taking(seconds, texts);
                assert!(line.contains(&format!(": {words} ")) && !line.contains(['{', '}']), "{line}");
            }
            // The program says the same.
            assert_eq!(PasswordStrength::new(0.0, 1.0 / seconds).time().to_string(), english);
        }
    }

    #[test]
    fn only_a_weak_password_gets_advice() {
        for texts in [&ENGLISH, &GERMAN] {
            let (weak, fair, strong) = (taking(60.0, texts), taking(1e10, texts), taking(1e15, texts));
            assert!(weak.starts_with(texts.weak) && weak.ends_with(texts.stronger), "{weak}");
            assert!(fair.starts_with(texts.fair) && !fair.contains(texts.stronger), "{fair}");
            assert!(strong.starts_with(texts.strong) && !strong.contains(texts.stronger), "{strong}");
        }
    }
}
