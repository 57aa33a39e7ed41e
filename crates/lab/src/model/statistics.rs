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

/// The standard deviation as a share of the mean: 0.03 is 3 %. NaN for fewer than two samples, which show no deviation;
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

/// The 95 % interval of the median by an expanded percentile bootstrap. The same seed gives the same interval; for one
/// sample, the interval is that sample.
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
    /// For one sample or more; all NaN without samples.
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
    /// For pairs, the median loss within a round; for groups, 1 - median / median of the baseline.
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
    /// What an interval from so many samples on either side says.
    fn of(samples: usize, low: f64, high: f64) -> Self {
        match () {
            () if samples < ENOUGH => Self::TooFew,
            () if low > 0.0 => Self::Slower,
            () if high < 0.0 => Self::Faster,
            () => Self::Same,
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

/// What is lost within rounds: each pair is a rate of the baseline and one of the other, measured one after the other, so
/// that whatever slows a whole round down hits both. The loss is the median of the pairs' losses, and its interval that of
/// this median ([`median_interval`]).
///
/// Five pairs lie on one side of the truth by chance in 2 of 32 cases, so that not even their whole range is an interval of
/// 95 %. There it is widened to hold Student's interval of the mean, too: simulated, equality is called a difference in 5 of
/// 100 cases at most.
pub fn loss_of_pairs(pairs: &[(f64, f64)], seed: u64) -> Loss {
    // As logarithms, a loss and the gain that makes up for it are equally far from zero.
    let ratios: Vec<f64> = pairs.iter().map(|(base, other)| (other / base).ln()).collect();
    let (mut low, mut high) = median_interval(&ratios, seed);
    if ratios.len() == ENOUGH {
        let n = ratios.len() as f64;
        let mean = ratios.iter().sum::<f64>() / n;
        let variance = ratios.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let half = student_quantile(n - 1.0) * (variance / n).sqrt();
        (low, high) = (low.min(mean - half), high.max(mean + half));
    }
    let lost = |ratio: f64| 1.0 - ratio.exp();
    let (low, high) = (lost(high), lost(low));
    Loss { loss: lost(median(&ratios)), low, high, verdict: LossVerdict::of(pairs.len(), low, high) }
}

/// The same for times: performance is 1 / time.
pub fn loss_of_paired_times(pairs: &[(f64, f64)], seed: u64) -> Loss {
    let rates: Vec<(f64, f64)> = pairs.iter().map(|(base, other)| (1.0 / base, 1.0 / other)).collect();
    loss_of_pairs(&rates, seed)
}

fn loss_by(baseline: &[f64], other: &[f64], seed: u64, of_medians: impl Fn(f64, f64) -> f64) -> Loss {
    let mut random = Random::new(seed);
    let mut scratch = Vec::new();
    let mut drawn = |samples: &[f64]| resampled_median(samples, &mut random, &mut scratch);
    let mut losses: Vec<f64> = (0..RESAMPLES).map(|_| of_medians(drawn(baseline), drawn(other))).collect();
    losses.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (low, high) = (quantile_of_sorted(&losses, tail), quantile_of_sorted(&losses, 1.0 - tail));
    let verdict = LossVerdict::of(baseline.len().min(other.len()), low, high);
    Loss { loss: of_medians(median(baseline), median(other)), low, high, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 97.5 % quantiles and the values of the normal distribution, as in any statistical table.
    #[test]
    fn tails_are_those_of_the_tables() {
        for (degrees, quantile) in [(4.0, 2.776), (6.0, 2.447), (10.0, 2.228), (30.0, 2.042)] {
            assert!((student_quantile(degrees) / quantile - 1.0).abs() < 0.003, "{degrees}");
        }
        for (x, share) in [(0.0, 0.5), (1.0, 0.841_345), (-1.959_964, 0.025), (-3.0, 0.001_350)] {
            assert!((normal_distribution(x) - share).abs() < 1e-6, "{x}");
        }
    }
}
