//! Runs of several machines together: what each facility loses on each of them.
//!
//! Speeds of two machines have nothing in common. Losses have: each is of a facility against its own baseline on the same
//! machine. Nothing is averaged into one figure with an interval: a handful of machines is not a sample.

use serde::Serialize;

use crate::model::figures::Run;
use crate::model::machine::Machine;
use crate::model::statistics::{Loss, LossVerdict, median};
use crate::model::words::counted;
use crate::show::changes::CellName;
use crate::show::once;
use crate::show::summary::{Cell, Summary};

/// Runs of several machines together.
#[derive(Clone, Debug, Serialize)]
pub struct PooledRuns {
    /// What each run was made on, in the order of the runs.
    pub machines: Vec<String>,
    /// The figures for which at least two runs have a loss.
    pub figures: Vec<PooledFigure>,
    /// The number of figures for which only one run has a loss.
    pub only_once: usize,
}

/// The loss of one figure on each machine.
#[derive(Clone, Debug, Serialize)]
pub struct PooledFigure {
    /// Which.
    #[serde(flatten)]
    pub place: CellName,
    /// In the order of the runs; `None` if a run does not have it.
    pub losses: Vec<Option<Loss>>,
    /// What the machines agree on.
    pub verdict: PooledVerdict,
}

/// The combined verdict of several machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PooledVerdict {
    /// Slower than the baseline on all.
    SlowerOnAll,
    /// Slower on some, faster on none.
    SlowerOnSome,
    /// Slower on some, faster on others.
    Contradictory,
    /// Faster on some or all, slower on none.
    Faster,
    /// No measurable difference on any.
    Same,
}

impl PooledVerdict {
    fn of(losses: &[Option<Loss>]) -> Self {
        let all: Vec<LossVerdict> = losses.iter().flatten().map(|loss| loss.verdict).collect();
        let has = |verdict| all.contains(&verdict);
        match (has(LossVerdict::Slower), has(LossVerdict::Faster)) {
            (true, true) => Self::Contradictory,
            (true, false) if all.iter().all(|verdict| *verdict == LossVerdict::Slower) => Self::SlowerOnAll,
            (true, false) => Self::SlowerOnSome,
            (false, true) => Self::Faster,
            (false, false) => Self::Same,
        }
    }
}

impl PooledRuns {
    /// These runs together.
    pub fn of(runs: &[Run]) -> Self {
        let summaries: Vec<Summary> = runs.iter().map(Summary::of).collect();
        let mut figures: Vec<PooledFigure> = Vec::new();
        for cell in summaries.iter().flat_map(|summary| &summary.cells).filter(|cell| cell.loss.is_some()) {
            let place = CellName::of(cell);
            if figures.iter().all(|figure| figure.place != place) {
                let losses: Vec<Option<Loss>> = summaries.iter().map(|summary| loss_of(summary, cell)).collect();
                figures.push(PooledFigure { place, verdict: PooledVerdict::of(&losses), losses });
            }
        }
        let all = figures.len();
        figures.retain(|figure| figure.losses.iter().flatten().count() > 1);
        let machine = |run: &Run| {
            let Machine { cpu_model, cpus, kernel, .. } = &run.machine;
            format!("{cpu_model}, {}, {kernel}", counted(*cpus, "processor"))
        };
        Self { machines: runs.iter().map(machine).collect(), only_once: all - figures.len(), figures }
    }

    /// For each facility and workload, in the order of the runs, the median loss of its figures on each machine.
    pub fn by_workload(&self) -> Vec<(&str, &str, Vec<Option<f64>>)> {
        let rows = once(self.figures.iter().map(|f| (f.place.facility.as_str(), f.place.workload.as_str())));
        let of = |(facility, workload), machine: usize| {
            let own = self.figures.iter().filter(|f| (&*f.place.facility, &*f.place.workload) == (facility, workload));
            let losses: Vec<f64> = own.filter_map(|f| Some(f.losses[machine].as_ref()?.loss)).collect();
            (!losses.is_empty()).then(|| median(&losses))
        };
        let on_each = |row| (0..self.machines.len()).map(|machine| of(row, machine)).collect();
        rows.into_iter().map(|row| (row.0, row.1, on_each(row))).collect()
    }

    /// How many figures have this verdict.
    pub fn count(&self, verdict: PooledVerdict) -> usize {
        self.figures.iter().filter(|figure| figure.verdict == verdict).count()
    }
}

fn loss_of(summary: &Summary, like: &Cell) -> Option<Loss> {
    let cell = summary.cell(&like.facility, &like.workload, &like.case)?;
    cell.loss.clone().filter(|_| cell.unit == like.unit)
}
