//! Differences between logarithms of groups of samples: Welch's test, and the correction for how many are made.

use crate::model::statistics::CONFIDENCE;

/// A difference of means, with its 95 % interval and the probability of one as large by chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Contrast {
    /// The weighted sum of the groups' means.
    pub(super) estimate: f64,
    /// Lower end of the interval.
    pub(super) low: f64,
    /// Upper end of the interval.
    pub(super) high: f64,
    /// Probability of a sum as far from 0, where the truth is 0.
    pub(super) p: f64,
}

/// The sum of the groups' means, each times its weight, by Welch's test with the degrees of freedom of Satterthwaite
/// (1946), which lets groups have different spreads. Every group has two samples or more.
pub(super) fn contrast(groups: &[(f64, Vec<f64>)]) -> Contrast {
    let mut estimate = 0.0;
    let (mut variance, mut denominator) = (0.0, 0.0);
    for (weight, samples) in groups {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let square = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let part = weight * weight * square / n;
        estimate += weight * mean;
        variance += part;
        denominator += part * part / (n - 1.0);
    }
    // Samples that are all the same, up to rounding: the difference is exact.
    let error = variance.sqrt();
    if error <= 1e-12 {
        let p = if estimate.abs() <= 1e-9 { 1.0 } else { 0.0 };
        return Contrast { estimate, low: estimate, high: estimate, p };
    }
    let freedom = variance * variance / denominator;
    let reach = t_quantile(CONFIDENCE, freedom) * error;
    Contrast { estimate, low: estimate - reach, high: estimate + reach, p: t_tails(estimate / error, freedom) }
}

/// For each probability, the smallest rate of false discoveries at which it counts as a discovery, by Benjamini and
/// Hochberg (1995): among those at or below 0.05, one of 20 is expected to be false. It holds for tests that are
/// independent or that err together, as figures of one run do.
pub(super) fn false_discovery_rates(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_unstable_by(|&a, &b| p[b].total_cmp(&p[a]));
    let mut rates = vec![1.0; p.len()];
    let mut smallest = 1.0f64;
    for (from_end, &i) in order.iter().enumerate() {
        let rank = (p.len() - from_end) as f64;
        smallest = smallest.min(p[i] * p.len() as f64 / rank);
        rates[i] = smallest;
    }
    rates
}

/// Probability that Student's t with these degrees of freedom is as far from 0 as `t`, on either side: the incomplete
/// beta function of v / (v + t²) (Abramowitz and Stegun 26.7.1 and 26.5.27).
fn t_tails(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
}

/// The distance from 0 within which Student's t lies with this probability.
fn t_quantile(probability: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while t_tails(high, freedom) > 1.0 - probability && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if t_tails(middle, freedom) > 1.0 - probability { low = middle } else { high = middle }
    }
    high
}

/// I_x(a, b), by the continued fraction of Abramowitz and Stegun 26.5.8, which converges fast below (a + 1) / (a + b +
/// 2); above, I_x(a, b) = 1 - I_(1-x)(b, a).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (a * x.ln() + b * (1.0 - x).ln() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp() / a;
    front / fraction(x, a, b)
}

/// The denominator 1 + d1/(1 + d2/(1 + ...)), from the inside out.
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    let mut value = 1.0;
    for step in (1..=200).rev() {
        let m = f64::from(step / 2);
        let d = match step % 2 {
            0 => m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            _ => -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        };
        value = 1.0 + d / value;
    }
    value
}

/// The logarithm of the gamma function for positive numbers: Stirling's series (Abramowitz and Stegun 6.1.40) from 8
/// on, and the recurrence below.
fn ln_gamma(x: f64) -> f64 {
    if x < 8.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5)) - 1.0 / (1680.0 * x.powi(7));
    (x - 0.5) * x.ln() - x + (std::f64::consts::TAU).ln() / 2.0 + series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_t_by_the_tables() {
        // Abramowitz and Stegun, table 26.10: two-sided 5 % and 1 %.
        for (freedom, five, one) in [
            (1.0, 12.706, 63.657),
            (2.0, 4.303, 9.925),
            (4.0, 2.776, 4.604),
            (10.0, 2.228, 3.169),
            (30.0, 2.042, 2.750),
        ] {
            assert!((t_quantile(0.95, freedom) / five - 1.0).abs() < 5e-4, "{freedom}: {}", t_quantile(0.95, freedom));
            assert!((t_quantile(0.99, freedom) / one - 1.0).abs() < 5e-4, "{freedom}: {}", t_quantile(0.99, freedom));
        }
        assert!((t_quantile(0.95, 1e6) - 1.96).abs() < 1e-3);
        assert!((t_tails(0.0, 3.0) - 1.0).abs() < 1e-12 && t_tails(1e9, 3.0) < 1e-12);
        // One degree of freedom is Cauchy's distribution: 1 - 2/π·atan(t).
        for t in [0.1, 1.0, 3.0, 50.0f64] {
            let cauchy = 1.0 - t.atan() * std::f64::consts::FRAC_2_PI;
            assert!((t_tails(t, 1.0) - cauchy).abs() < 1e-9, "{t}");
        }
        assert!(
            (ln_gamma(5.0) - 24f64.ln()).abs() < 1e-10
                && (ln_gamma(0.5).exp().powi(2) - std::f64::consts::PI).abs() < 1e-9
        );
    }

    #[test]
    fn welch_by_hand() {
        // Means 2 and 6, variances 1 and 4: standard error √(1/3 + 4/3), 2.94 degrees of freedom.
        let both = contrast(&[(1.0, vec![4.0, 6.0, 8.0]), (-1.0, vec![1.0, 2.0, 3.0])]);
        let error = (5.0f64 / 3.0).sqrt();
        let freedom = (5.0f64 / 3.0).powi(2) / ((1.0f64 / 9.0 + 16.0 / 9.0) / 2.0);
        assert!((both.estimate - 4.0).abs() < 1e-12 && (both.p - t_tails(4.0 / error, freedom)).abs() < 1e-12);
        assert!((both.high - 4.0 - t_quantile(0.95, freedom) * error).abs() < 1e-9 && both.low < both.estimate);
    }

    #[test]
    fn what_never_varies_differs_exactly() {
        let of = |a: f64, b: f64| contrast(&[(1.0, vec![a; 5]), (-1.0, vec![b; 5])]);
        assert_eq!(of(3.0, 3.0).p, 1.0);
        assert_eq!((of(3.0, 2.0).p, of(3.0, 2.0).low, of(3.0, 2.0).high), (0.0, 1.0, 1.0));
    }

    #[test]
    fn benjamini_and_hochberg_by_hand() {
        let rates = false_discovery_rates(&[0.01, 0.04, 0.03, 0.5]);
        let expected = [0.04, 0.16 / 3.0, 0.16 / 3.0, 0.5];
        assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{rates:?}");
        assert!(false_discovery_rates(&[]).is_empty());
    }
}
