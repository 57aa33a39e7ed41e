//! What a run shows: medians, intervals, losses against the baseline of the same layer, verdicts.

use serde::{Deserialize, Serialize};

use crate::run::{Case, Run, Unit};
use crate::statistics::{Loss, Spread};

/// What a run shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// By workload, case and facility, in the order of the run.
    pub cells: Vec<Cell>,
    /// What was found, in whole sentences, the most telling first.
    pub findings: Vec<String>,
    /// What a reader has to know before believing the figures: throttling, steal, unsteady figures.
    pub warnings: Vec<String>,
}

/// One facility, one case of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload.
    pub workload: String,
    /// Of what.
    pub case: Case,
    /// What is counted.
    pub unit: Unit,
    /// The middle.
    pub median: f64,
    /// The 95 % interval of the median, by bootstrap: lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Standard deviation as a share of the mean.
    pub relative_deviation: f64,
    /// Whether that became small enough before the repeats ran out.
    pub steady: bool,
    /// Where the samples lie.
    pub spread: Spread,
    /// Every sample, in the order of rounds.
    pub samples: Vec<f64>,
    /// Which of them lie far from the others (by index). They are kept, and count.
    pub outliers: Vec<usize>,
    /// Name of the baseline.
    pub baseline: Option<String>,
    /// What is lost against it: the share of the performance, which is 1 / time where times are measured.
    pub loss: Option<Loss>,
    /// Seconds that the processors were busy per 10^9 bytes, median; nothing where no bytes are counted.
    pub cpu_s_per_gb: Option<f64>,
}

impl Summary {
    /// What this run shows.
    pub fn of(run: &Run) -> Self {
        let _ = run;
        unimplemented!()
    }
}
