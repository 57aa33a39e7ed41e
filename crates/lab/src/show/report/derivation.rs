//! Key derivations as text and CSV.

use super::table::{bar, csv_record, table};
use super::{CsvRecord, Text};
use claviger_engine::password_strength::RTX_4090;

use crate::measure::derivation::{DerivationReport, DerivationTiming, GuessCost};
use crate::model::words::{number, percent};

csv_record!(DerivationTiming {
    hash, iterations, used_for, key_bytes, milliseconds, per_second, milliseconds_spread,
    milliseconds_samples: _ // in JSON only
} =>
    hash, iterations, used_for, key_bytes, threads: 1, milliseconds: number(*milliseconds), per_second: number(*per_second),
    milliseconds_min: number(milliseconds_spread.min), milliseconds_max: number(milliseconds_spread.max),
);

impl Text for DerivationReport {
    fn text(&self) -> String {
        let longest = self.derivations.iter().map(|d| d.milliseconds).fold(0.0, f64::max);
        let row = |d: &DerivationTiming| {
            [
                d.hash.into(),
                d.iterations.to_string(),
                format!("{:.2}", d.milliseconds),
                format!("{:.0}", d.per_second),
                percent(d.milliseconds_spread.relative()),
                format!("{:<24}", bar(d.milliseconds, longest)),
                d.used_for.into(),
            ]
        };
        let headings = ["key derivation", ">iterations", ">ms", ">per second", ">spread %", "", "used for"];
        let guess = |g: &GuessCost| {
            [g.format.into(), g.derivation.clone(), format!("{:.0}", g.per_second), format!("{:.0}", g.bits.ceil())]
        };
        let guesses =
            table(["format", "key derivation", ">guesses per second", ">bits"], self.guesses.iter().map(guess));
        let (bytes, trial) = (self.derivations.first().map_or(0, |d| d.key_bytes), &self.trial);
        let threads = if trial.threads == 1 { "1 thread".into() } else { format!("{} threads", trial.threads) };
        format!(
            "PBKDF2 with HMAC, {bytes} bytes of key, one thread:\n\n{}\nA password for a volume must be tried with {} \
             derivations. Together they take {:.1} ms on {threads}: {:.0} passwords per second can be tried on one \
             header.\nThe engine takes {:.1} ms to say that a password opens nothing: it tries every copy of the \
             header with every cipher and mode.\n\n\
             Guesses per second with one graphics card ({}), computed from its published rates, for the defaults of each format; and \
             the bits that a random password needs to withstand it for ten years on average:\n\n{guesses}",
            table(headings, self.derivations.iter().map(row)),
            trial.derivations,
            trial.milliseconds,
            trial.per_second,
            self.refusal.milliseconds,
            RTX_4090.name,
        )
    }
}
