//! Medians, quantiles, bootstrap intervals, and the verdict over a difference.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// Resamples of a bootstrap: the ends of a 95 % interval are then the 50th values from either side.
const RESAMPLES: usize = 2000;

/// Share of the resampled losses inside the interval.
pub const CONFIDENCE: f64 = 0.95;

/// Fewer samples than this on either side give no verdict: two groups of three are separated by pure chance in one of
/// ten cases, two of four in one of 35.
pub const ENOUGH: usize = 4;

/// The median: the middle value, or the mean of the two middle ones. NaN without samples.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The value below which the share `q` of the samples lies, interpolated linearly between neighbours (Hyndman and Fan
/// 1996, definition 7; the default of R and NumPy). NaN without samples.
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(&sorted, q)
}

fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let position = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    low + (high - low) * position.fract()
}

/// Where samples lie, in their own unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// A quarter lies below.
    pub lower_quartile: f64,
    /// The middle.
    pub median: f64,
    /// A quarter lies above.
    pub upper_quartile: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of one sample or more; all NaN of none.
    pub fn of(samples: &[f64]) -> Self {
        let at = |q| quantile(samples, q);
        Self { min: at(0.0), lower_quartile: at(0.25), median: at(0.5), upper_quartile: at(0.75), max: at(1.0) }
    }

    /// The range from the smallest to the largest as a share of the median: 0.1 is 10 %.
    pub fn relative(&self) -> f64 {
        (self.max - self.min) / self.median
    }
}

/// What was lost against a baseline: 0.12 is 12 %, negative is a gain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// 1 - median / median of the baseline.
    pub loss: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// What the interval says.
    pub verdict: Verdict,
}

/// What an interval says about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The whole interval is a loss.
    #[serde(rename = "slower")]
    Slower,
    /// The interval holds zero.
    #[serde(rename = "no measurable difference")]
    Same,
    /// The whole interval is a gain.
    #[serde(rename = "faster")]
    Faster,
    /// There are too few samples to say.
    #[serde(rename = "too few repeats")]
    TooFew,
}

impl Verdict {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Same => "no measurable difference",
            Self::Faster => "faster",
            Self::TooFew => "too few repeats",
        }
    }
}

/// What the rates `other` lose against the rates `baseline`, with a percentile bootstrap interval: both groups are drawn
/// anew from themselves, independently, and the loss between their medians is taken each time. The same seed gives the
/// same interval.
pub fn loss(baseline: &[f64], other: &[f64], seed: u64) -> Loss {
    let of_medians = |base: f64, other: f64| 1.0 - other / base;
    let mut random = Random::new(seed);
    let mut scratch = Vec::new();
    let mut resampled_median = |samples: &[f64]| {
        scratch.clear();
        scratch.extend((0..samples.len()).map(|_| samples[random.below(samples.len())]));
        scratch.sort_unstable_by(f64::total_cmp);
        quantile_of_sorted(&scratch, 0.5)
    };
    let mut losses: Vec<f64> =
        (0..RESAMPLES).map(|_| of_medians(resampled_median(baseline), resampled_median(other))).collect();
    losses.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (low, high) = (quantile_of_sorted(&losses, tail), quantile_of_sorted(&losses, 1.0 - tail));
    let verdict = match () {
        () if baseline.len().min(other.len()) < ENOUGH => Verdict::TooFew,
        () if low > 0.0 => Verdict::Slower,
        () if high < 0.0 => Verdict::Faster,
        () => Verdict::Same,
    };
    Loss { loss: of_medians(median(baseline), median(other)), low, high, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn quantiles_by_hand() {
        assert!(median(&[]).is_nan());
        close(median(&[7.0]), 7.0);
        close(median(&[3.0, 1.0, 2.0]), 2.0);
        close(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        // R: quantile(c(15, 20, 35, 40, 50), c(.05, .3, .4, .5, 1)) is 16, 23, 29, 35, 50.
        let samples = [50.0, 15.0, 40.0, 20.0, 35.0];
        for (q, value) in [(0.05, 16.0), (0.3, 23.0), (0.4, 29.0), (0.5, 35.0), (1.0, 50.0), (0.0, 15.0)] {
            close(quantile(&samples, q), value);
        }
    }

    #[test]
    fn spread_by_hand() {
        let spread = Spread::of(&[90.0, 100.0, 110.0, 95.0, 105.0]);
        let expected = Spread { min: 90.0, lower_quartile: 95.0, median: 100.0, upper_quartile: 105.0, max: 110.0 };
        assert_eq!(spread, expected);
        close(spread.relative(), 0.2);
    }

    #[test]
    fn loss_of_constants_is_exact() {
        let l = loss(&[200.0; 5], &[150.0; 5], 1);
        assert_eq!(l, Loss { loss: 0.25, low: 0.25, high: 0.25, verdict: Verdict::Slower });
        assert_eq!(loss(&[150.0; 5], &[200.0; 5], 1).verdict, Verdict::Faster);
        assert_eq!(loss(&[150.0; 5], &[150.0; 5], 1).verdict, Verdict::Same);
        assert_eq!(loss(&[150.0; 3], &[50.0; 3], 1).verdict, Verdict::TooFew);
    }

    #[test]
    fn the_interval_depends_on_the_seed_only() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.5, 3.0, 3.5, 9.0]);
        assert_eq!(loss(&a, &b, 7), loss(&a, &b, 7));
    }

    /// A normally distributed number (Box and Muller).
    fn normal(random: &mut Random) -> f64 {
        let mut uniform = || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let (u, v) = (1.0 - uniform(), uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Rates with 2 % of noise; in `stalls` of a hundred samples something else takes up to a third of the time.
    fn rates(random: &mut Random, true_rate: f64, n: usize, stalls: usize) -> Vec<f64> {
        let mut one = || {
            let stall = if random.below(100) < stalls { 1.0 - random.below(33) as f64 / 100.0 } else { 1.0 };
            true_rate * (1.0 + 0.02 * normal(random)) * stall
        };
        (0..n).map(|_| one()).collect()
    }

    #[test]
    fn a_planted_slowdown_is_found_and_none_is_not() {
        const TRIALS: u64 = 400;
        // Samples, stalls per hundred, and the share of trials in which 10 % must be found.
        for (n, stalls, power) in [(5, 0, 0.99), (5, 10, 0.6), (7, 10, 0.8), (11, 10, 0.95)] {
            let mut random = Random::new(n as u64);
            let mut losses = |true_loss: f64| -> Vec<Loss> {
                let mut group = |rate| rates(&mut random, rate, n, stalls);
                (0..TRIALS).map(|seed| loss(&group(1e9), &group(1e9 * (1.0 - true_loss)), seed)).collect()
            };
            let share = |of: &[Loss], what: &dyn Fn(&Loss) -> bool| {
                of.iter().filter(|l| what(l)).count() as f64 / of.len() as f64
            };
            let (planted, none) = (losses(0.10), losses(0.0));
            let found = share(&planted, &|l| l.verdict == Verdict::Slower);
            let false_alarms = share(&none, &|l| l.verdict != Verdict::Same);
            let covered = share(&planted, &|l| l.low <= 0.10 && 0.10 <= l.high);
            println!("{n} samples, {stalls} % stalls: found {found}, false alarms {false_alarms}, covered {covered}");
            assert!(found > power, "{n} samples, {stalls} % stalls: 10 % found in {found} of the trials");
            assert!(false_alarms < 0.06, "{n} samples, {stalls} % stalls: {false_alarms} false alarms");
            assert!(covered > 0.9, "{n} samples, {stalls} % stalls: the interval held the truth in {covered}");
        }
    }

    #[test]
    fn medians_of_known_distributions() {
        let mut random = Random::new(3);
        let samples: Vec<f64> = (0..20_000).map(|_| 5.0 + 2.0 * normal(&mut random)).collect();
        // Standard error of the median: 1.25 · 2 / √20000 = 0.018. Quartiles: 5 ± 0.6745 · 2.
        assert!((median(&samples) - 5.0).abs() < 0.08);
        assert!((quantile(&samples, 0.25) - 3.651).abs() < 0.1);
        assert!((quantile(&samples, 0.75) - 6.349).abs() < 0.1);
    }
}
