//! Medians, quantiles, bootstrap intervals, and the verdict over a difference.

use serde::{Deserialize, Serialize};

use crate::model::random::Random;

/// Resamples of a bootstrap: the ends of a 95 % interval are then the 50th values from either side.
const RESAMPLES: usize = 2000;

/// Share of the resampled losses inside the interval.
pub const CONFIDENCE: f64 = 0.95;

/// Fewer samples than this on either side give no verdict. With four, the interval of a loss misses the truth in 7 to 8
/// of 100 simulated cases instead of 5; from five on in 3 to 5.
pub const ENOUGH: usize = 5;

/// A sample is an outlier if it lies further from the median than this many scaled median absolute deviations (Iglewicz
/// and Hoaglin, *How to Detect and Handle Outliers*, 1993). Tukey's fences, by quartiles, cannot tell one outlier in
/// five samples: it moves the fence that it should fall outside of.
const FAR: f64 = 3.5;

/// The median absolute deviation of a normal distribution times this is its standard deviation.
const MAD_TO_DEVIATION: f64 = 1.4826;

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

/// The standard deviation as a share of the mean: 0.03 is 3 %. NaN of fewer than two samples, which show no deviation;
/// 0 where all samples are 0.
pub fn relative_deviation(samples: &[f64]) -> f64 {
    let n = samples.len() as f64;
    if n < 2.0 {
        return f64::NAN;
    }
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    if variance == 0.0 { 0.0 } else { variance.sqrt() / mean.abs() }
}

/// Which samples lie far from the others, by index: further from the median than 3.5 scaled median absolute deviations.
/// Where more than half of the samples are the same, every other one is.
pub fn outliers(samples: &[f64]) -> Vec<usize> {
    let middle = median(samples);
    let distances: Vec<f64> = samples.iter().map(|x| (x - middle).abs()).collect();
    let fence = FAR * MAD_TO_DEVIATION * median(&distances);
    (0..samples.len()).filter(|&i| distances[i] > fence).collect()
}

/// The 95 % interval of the median by an expanded percentile bootstrap. The same seed gives the same interval; of one
/// sample it is that sample.
///
/// A plain percentile bootstrap is too narrow for few samples: with seven, its interval holds the true median in 88 of
/// 100 cases. Hesterberg (*What Teachers Should Know About the Bootstrap*, 2015, section 5.3) takes percentiles further
/// out, at `Φ(-√(n/(n-1)) · t(n-1))`: simulated, that holds it in 93 (five samples, where it is the whole range) to 98
/// of 100.
pub fn median_interval(samples: &[f64], seed: u64) -> (f64, f64) {
    if samples.len() < 2 {
        return (median(samples), median(samples));
    }
    let mut random = Random::new(seed);
    let mut scratch = Vec::new();
    let mut medians: Vec<f64> = (0..RESAMPLES).map(|_| resampled_median(samples, &mut random, &mut scratch)).collect();
    medians.sort_unstable_by(f64::total_cmp);
    let tail = expanded_tail(samples.len());
    (quantile_of_sorted(&medians, tail), quantile_of_sorted(&medians, 1.0 - tail))
}

/// The median of as many samples drawn with replacement.
fn resampled_median(samples: &[f64], random: &mut Random, scratch: &mut Vec<f64>) -> f64 {
    scratch.clear();
    scratch.extend((0..samples.len()).map(|_| samples[random.below(samples.len())]));
    scratch.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(scratch, 0.5)
}

/// The share of resampled medians to leave out on either side, for `n` samples, at least two.
fn expanded_tail(n: usize) -> f64 {
    let n = n as f64;
    normal_distribution(-(n / (n - 1.0)).sqrt() * student_quantile(n - 1.0))
}

/// The 97.5 % quantile of Student's distribution, by the expansion around that of the normal one (Abramowitz and
/// Stegun, 26.7.5). Too small by 0.3 % at 4 degrees of freedom, and exact to four digits from 10 on.
fn student_quantile(degrees: f64) -> f64 {
    const Z: f64 = 1.959_964;
    let first = (Z.powi(3) + Z) / 4.0;
    let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0;
    let third = (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0;
    Z + first / degrees + second / degrees.powi(2) + third / degrees.powi(3)
}

/// The share of a normal distribution below `x`, to seven digits (Abramowitz and Stegun, 26.2.17).
fn normal_distribution(x: f64) -> f64 {
    const TERMS: [f64; 5] = [0.319_381_53, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let polynomial = TERMS.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let beyond = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * polynomial;
    if x > 0.0 { 1.0 - beyond } else { beyond }
}

/// Where samples lie, in their own unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest sample.
    pub min: f64,
    /// A quarter lies below.
    pub lower_quartile: f64,
    /// The median.
    pub median: f64,
    /// A quarter lies above.
    pub upper_quartile: f64,
    /// The largest sample.
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

/// The loss against a baseline: 0.12 is 12 %; negative is a gain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// 1 - median / median of the baseline.
    pub loss: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// What the interval says.
    pub verdict: LossVerdict,
}

/// What an interval says about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossVerdict {
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

impl LossVerdict {
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

/// What the rates `other` lose against the rates `baseline`, with a percentile bootstrap interval: both groups are
/// drawn anew from themselves, independently, and the loss between their medians is taken each time. The same seed
/// gives the same interval. The interval between two groups needs no expansion as that of one median does
/// ([`median_interval`]): simulated, it holds the truth in 95 to 97 of 100 cases from five samples on.
pub fn loss(baseline: &[f64], other: &[f64], seed: u64) -> Loss {
    loss_by(baseline, other, seed, |base, other| 1.0 - other / base)
}

/// The same for times, such as those of tasks and latencies: performance is 1 / time, so that what takes twice as long
/// has lost 50 %, and no loss is above 100 %.
pub fn loss_of_times(baseline: &[f64], other: &[f64], seed: u64) -> Loss {
    loss_by(baseline, other, seed, |base, other| 1.0 - base / other)
}

fn loss_by(baseline: &[f64], other: &[f64], seed: u64, of_medians: impl Fn(f64, f64) -> f64) -> Loss {
    let mut random = Random::new(seed);
    let mut scratch = Vec::new();
    let mut drawn = |samples: &[f64]| resampled_median(samples, &mut random, &mut scratch);
    let mut losses: Vec<f64> = (0..RESAMPLES).map(|_| of_medians(drawn(baseline), drawn(other))).collect();
    losses.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (low, high) = (quantile_of_sorted(&losses, tail), quantile_of_sorted(&losses, 1.0 - tail));
    let verdict = match () {
        () if baseline.len().min(other.len()) < ENOUGH => LossVerdict::TooFew,
        () if low > 0.0 => LossVerdict::Slower,
        () if high < 0.0 => LossVerdict::Faster,
        () => LossVerdict::Same,
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
        assert_eq!(l, Loss { loss: 0.25, low: 0.25, high: 0.25, verdict: LossVerdict::Slower });
        assert_eq!(loss(&[150.0; 5], &[200.0; 5], 1).verdict, LossVerdict::Faster);
        assert_eq!(loss(&[150.0; 5], &[150.0; 5], 1).verdict, LossVerdict::Same);
        assert_eq!(loss(&[150.0; 4], &[50.0; 4], 1).verdict, LossVerdict::TooFew);
        // Of times: twice as long is half the performance.
        assert_eq!(loss_of_times(&[2.0; 5], &[4.0; 5], 1).loss, 0.5);
        assert_eq!(loss_of_times(&[2.0; 5], &[1.0; 5], 1).verdict, LossVerdict::Faster);
    }

    #[test]
    fn deviation_and_outliers_by_hand() {
        // Mean 100, variance (25 + 25) / 2.
        close(relative_deviation(&[95.0, 100.0, 105.0]), 0.05);
        close(relative_deviation(&[0.0; 5]), 0.0);
        assert!(relative_deviation(&[1.0]).is_nan());
        // Deviations from 101: 1 0 1 2 41; their median is 1, the fence 5.19.
        assert_eq!(outliers(&[100.0, 101.0, 102.0, 99.0, 60.0]), [4]);
        assert!(outliers(&[100.0, 101.0, 102.0, 99.0, 96.0]).is_empty());
        assert_eq!(outliers(&[100.0, 100.0, 101.0, 100.0]), [2]);
        assert!(outliers(&[]).is_empty());
    }

    /// The 97.5 % quantiles and the normal distribution's values of any table.
    #[test]
    fn tails_are_those_of_the_tables() {
        for (degrees, quantile) in [(4.0, 2.776), (6.0, 2.447), (10.0, 2.228), (30.0, 2.042)] {
            assert!((student_quantile(degrees) / quantile - 1.0).abs() < 0.003, "{degrees}");
        }
        for (x, share) in [(0.0, 0.5), (1.0, 0.841_345), (-1.959_964, 0.025), (-3.0, 0.001_350)] {
            assert!((normal_distribution(x) - share).abs() < 1e-6, "{x}");
        }
    }

    #[test]
    fn intervals_of_the_median_hold_it_as_often_as_they_say() {
        const TRIALS: u64 = 1000;
        type Draw = fn(&mut Random) -> f64;
        let two_modes: Draw = |random| if random.below(10) < 7 { 1.0 } else { 0.8 } + 0.02 * normal(random);
        let mut random = Random::new(11);
        for (name, draw) in [
            ("normal", (|random| 5.0 + 0.1 * normal(random)) as Draw),
            ("log-normal", |random| (0.5 * normal(random)).exp()),
            ("bimodal", two_modes),
        ] {
            let truth = median(&(0..100_000).map(|_| draw(&mut random)).collect::<Vec<_>>());
            for n in [5, 6, 7, 8, 11, 15] {
                let held = (0..TRIALS).filter(|&seed| {
                    let samples: Vec<f64> = (0..n).map(|_| draw(&mut random)).collect();
                    let (low, high) = median_interval(&samples, seed);
                    low <= truth && truth <= high
                });
                let share = held.count() as f64 / TRIALS as f64;
                println!("{name}, {n} samples: {share}");
                // The standard error of a share of 95 % in 1000 trials is 0.7 %.
                assert!((0.915..=0.995).contains(&share), "{name}, {n} samples: held in {share}");
            }
        }
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
            let found = share(&planted, &|l| l.verdict == LossVerdict::Slower);
            let false_alarms = share(&none, &|l| l.verdict != LossVerdict::Same);
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
