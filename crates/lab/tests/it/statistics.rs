//! Medians, intervals and verdicts: against figures computed by hand, and right as often as they claim.

use claviger_lab::model::random::Random;
use claviger_lab::model::statistics::{
    Loss, LossVerdict, Spread, loss, loss_of_paired_times, loss_of_pairs, loss_of_times, median, median_interval,
    outliers, quantile, relative_deviation,
};

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
        let share =
            |of: &[Loss], what: &dyn Fn(&Loss) -> bool| of.iter().filter(|l| what(l)).count() as f64 / of.len() as f64;
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
fn pairs_keep_their_false_alarms_and_see_through_drift() {
    const TRIALS: u64 = 2000;
    for (n, stalls, power) in [(5, 0, 0.98), (7, 0, 0.98), (7, 10, 0.6), (11, 10, 0.9)] {
        let mut random = Random::new(n as u64 + 100);
        let mut share = |true_loss: f64, what: &dyn Fn(&Loss) -> bool| {
            let mut one = |seed| {
                // Each round is up to a third slower than another, for both.
                let pair = |random: &mut Random| {
                    let round = 1.0 - random.below(33) as f64 / 100.0;
                    let rate = |random: &mut Random, rate| rates(random, rate * round, 1, stalls)[0];
                    (rate(random, 1e9), rate(random, 1e9 * (1.0 - true_loss)))
                };
                loss_of_pairs(&(0..n).map(|_| pair(&mut random)).collect::<Vec<_>>(), seed)
            };
            (0..TRIALS).map(&mut one).filter(|loss| what(loss)).count() as f64 / TRIALS as f64
        };
        let false_alarms = share(0.0, &|l| l.verdict != LossVerdict::Same);
        let found = share(0.1, &|l| l.verdict == LossVerdict::Slower);
        let covered = share(0.1, &|l| l.low <= 0.1 && 0.1 <= l.high);
        println!("{n} pairs, {stalls} % stalls: found {found}, false alarms {false_alarms}, covered {covered}");
        // The standard error of a share of 5 % in 2000 trials is 0.5 %.
        assert!(false_alarms < 0.06 && covered > 0.93, "{n} pairs: {false_alarms}, {covered}");
        assert!(found > power, "{n} pairs, {stalls} % stalls: 10 % found in {found} of the trials");
    }
    // By hand: within rounds, it is always half; times that double lose as much.
    let pairs = [(2.0, 1.0), (20.0, 10.0), (3.0, 1.5), (8.0, 4.0), (6.0, 3.0)];
    let lost = loss_of_pairs(&pairs, 1);
    assert!([lost.loss, lost.low, lost.high].iter().all(|share| (share - 0.5).abs() < 1e-9), "{lost:?}");
    let swapped = pairs.map(|(base, other)| (other, base));
    close(loss_of_paired_times(&swapped, 1).loss, 0.5);
    assert_eq!(loss_of_pairs(&pairs[..4], 1).verdict, LossVerdict::TooFew);
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
