//! What encryption cost in the studies: each encrypted figure against the unencrypted one of the same test.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Serialize;

use crate::model::published::{Figure, all};
use crate::model::statistics::median;

/// What a facility lost in a study.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedLoss {
    /// The encrypted figure: of several repetitions, the first, with their median as its value.
    #[serde(flatten)]
    pub figure: Figure,
    /// The unencrypted value, in the same unit: of several repetitions, the median.
    pub baseline: f64,
    /// Repetitions of the encrypted figure.
    pub repetitions: usize,
    /// Whether the document prints no figures, but only the share of the unencrypted performance that is left: the
    /// values are then per cent.
    pub share_only: bool,
    /// The share of the performance that was lost, where performance is 1 / time if times were measured; negative is a
    /// gain.
    pub loss: f64,
}

/// Tables whose unencrypted figures stand in another table: study, table, table of the baseline.
const BASELINES_ELSEWHERE: &[(&str, &str, &str)] =
    &[("bsi2010", "8", "6"), ("bsi2010", "10", "6"), ("bsi2010", "12", "7")];

/// The metric of figures that are a share of the unencrypted ones.
const SHARE: &str = "percent of baseline";

/// The losses of all figures that have an unencrypted figure beside them, in the order of the tables.
///
/// Values are taken as the tables have them: both of a pair have the same unit.
pub fn losses() -> &'static [PublishedLoss] {
    static LOSSES: LazyLock<Vec<PublishedLoss>> = LazyLock::new(|| losses_of(all()));
    &LOSSES
}

/// The losses of some figures.
pub fn losses_of(figures: &[Figure]) -> Vec<PublishedLoss> {
    let groups = repetitions(figures);
    let mut baselines: HashMap<Test<'_>, Vec<&Group<'_>>> = HashMap::new();
    for group in groups.iter().filter(|group| group.first.is_baseline()) {
        baselines.entry(Test::of(group.first, &group.first.table)).or_default().push(group);
    }
    let loss = |group: &Group<'_>| {
        let encrypted = group.first;
        if encrypted.metric == SHARE {
            return Some(of_share(encrypted));
        }
        let table = baseline_table(encrypted);
        let same = baselines.get(&Test::of(encrypted, table))?;
        let baseline = same
            .iter()
            .filter(|baseline| fits(baseline.first, encrypted))
            .max_by_key(|baseline| closeness(baseline.first, encrypted))?;
        let left = match encrypted.metric.as_str() {
            "time" => baseline.value / group.value,
            _ => group.value / baseline.value,
        };
        Some(PublishedLoss {
            figure: Figure { value: group.value, ..encrypted.clone() },
            baseline: baseline.value,
            repetitions: group.repetitions,
            share_only: false,
            loss: 1.0 - left,
        })
    };
    groups
        .iter()
        .filter(|group| !group.first.is_baseline() && !group.first.facility.is_empty())
        .filter_map(loss)
        .collect()
}

/// The loss where only the share that is left is printed.
fn of_share(figure: &Figure) -> PublishedLoss {
    // One of them is a share of the time.
    let left = if figure.note.contains("baseline time") { 100.0 / figure.value } else { figure.value / 100.0 };
    PublishedLoss { figure: figure.clone(), baseline: 100.0, repetitions: 1, share_only: true, loss: 1.0 - left }
}

fn baseline_table(figure: &Figure) -> &str {
    let elsewhere =
        BASELINES_ELSEWHERE.iter().find(|(study, table, _)| figure.study == *study && figure.table == *table);
    elsewhere.map_or(&figure.table, |(_, _, baseline)| baseline)
}

/// The repetitions of one measurement.
struct Group<'a> {
    first: &'a Figure,
    value: f64,
    repetitions: usize,
}

/// Everything of a figure but its value, its repetition and its note; ends of ranges, doubtful figures and those that
/// measure no performance are left out.
fn repetitions(figures: &[Figure]) -> Vec<Group<'_>> {
    let performance = |f: &&Figure| {
        matches!(f.metric.as_str(), "throughput" | "time" | "file create rate" | "seek rate" | SHARE)
            && !matches!(f.run.as_str(), "min" | "max")
            && !f.is_doubtful()
    };
    let mut places: HashMap<(Test<'_>, [&str; 4]), usize> = HashMap::new();
    let mut groups: Vec<(&Figure, Vec<f64>)> = Vec::new();
    for figure in figures.iter().filter(performance) {
        let more = [&figure.facility, &figure.cipher, &figure.filesystem, &figure.aes_acceleration];
        let key = (Test::of(figure, &figure.table), more.map(String::as_str));
        let place = *places.entry(key).or_insert_with(|| {
            groups.push((figure, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(figure.value);
    }
    let group = |(first, values): (_, Vec<f64>)| Group { first, value: median(&values), repetitions: values.len() };
    groups.into_iter().map(group).collect()
}

/// What two figures must have in common to be one test.
#[derive(PartialEq, Eq, Hash)]
struct Test<'a>([&'a str; 12]);

impl<'a> Test<'a> {
    fn of(figure: &'a Figure, table: &'a str) -> Self {
        // Logical volumes have a baseline of their own.
        let layer = if figure.facility.contains("logical volume") { "logical volume" } else { "" };
        let Figure { study, platform, os, cpu_mode, power_mode, workload, .. } = figure;
        let Figure { parameter, direction, metric, unit, .. } = figure;
        Self([study, table, platform, os, cpu_mode, power_mode, workload, parameter, direction, metric, unit, layer])
    }
}

/// Whether a baseline of the same test is that of the encrypted figure: what it says of file system and acceleration
/// must agree; a bare RAM disk has neither.
fn fits(baseline: &Figure, encrypted: &Figure) -> bool {
    let agrees = |base: &str, other: &str| base.is_empty() || base == other;
    let acceleration =
        encrypted.aes_acceleration.is_empty() || agrees(&baseline.aes_acceleration, &encrypted.aes_acceleration);
    agrees(&baseline.filesystem, &encrypted.filesystem) && acceleration
}

fn closeness(baseline: &Figure, encrypted: &Figure) -> usize {
    usize::from(baseline.filesystem == encrypted.filesystem)
        + usize::from(baseline.aes_acceleration == encrypted.aes_acceleration)
}
