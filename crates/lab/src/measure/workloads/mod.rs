//! What is done with a facility: the studies' tests, and others that show what encryption costs.

pub mod bytes;
pub mod costs;
pub mod files;
pub mod filesystems;

use crate::model::figures::Trace;
use prelude::*;

/// What nearly every workload uses.
mod prelude {
    pub(super) use claviger_engine::{Error, Result};

    pub(super) use super::{On, Workload, WorkloadOutcome};
    pub(super) use crate::measure::facility::FacilityTarget;
    pub(super) use crate::measure::lab::Lab;
    pub(super) use crate::measure::memory::Buffer;
    pub(super) use crate::measure::meter::Meter;
    pub(super) use crate::measure::program;
    pub(super) use crate::model::case::{Axis, Case, Unit};
    pub(super) use crate::model::figures::{Elapsed, Measure};
    pub(super) use crate::model::plan::{Level, Plan};
    pub(super) use crate::model::random::Random;
    pub(super) use crate::model::words::word;
}

/// All workloads, in the order of a report.
pub fn all() -> impl Iterator<Item = &'static Workload> {
    [bytes::WORKLOADS, files::WORKLOADS, costs::WORKLOADS].into_iter().flatten().copied()
}

/// Something that is done with a facility and measured.
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its title for people.
    pub title: &'static str,
    /// What it measures, in whole sentences, with the sizes of this plan, and the study that it comes from.
    pub measures: fn(&Plan) -> String,
    /// What it does not measure, in whole sentences.
    pub not: &'static str,
    /// What it is done with.
    pub on: On,
    /// Which parameters it takes from a study, by their names.
    pub parameters: &'static [&'static str],
    /// Why it cannot be done here at all, such as a program that is not installed.
    pub missing: fn() -> Option<String>,
    /// The version of the program that does it, where that is another's.
    pub version: fn() -> Option<String>,
    /// Seconds that a pass will take on a facility of moderate speed, about.
    pub estimate_s: fn(&Plan) -> f64,
    /// Estimated additional seconds to make what this machine does not have yet, such as a small Debian; 0 if nothing
    /// must be made.
    pub once_s: fn() -> f64,
    /// Bytes of room that it needs in a volume.
    pub room: fn(&Plan) -> u64,
    /// Does it once. It leaves nothing in a folder, and checks what it read where that does not disturb what it
    /// measures. Fails with `Io` where the facility or a program fails, and with `Cancelled`.
    pub run: fn(&mut FacilityTarget, &Lab) -> Result<WorkloadOutcome>,
}

impl Workload {
    /// A workload without programs, parameters and steps. Others are based on it; it cannot be run itself.
    const PLAIN: Self = Self {
        name: "",
        title: "",
        measures: |_| String::new(),
        not: "",
        on: On::Itself,
        parameters: &[],
        missing: || None,
        version: || None,
        estimate_s: |_| 0.0,
        once_s: || 0.0,
        room: |_| 0,
        run: |_, _| Err(Error::unsupported("a workload without steps")),
    };
}

/// What a workload is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Bytes: every facility has them.
    Bytes,
    /// Files: every facility but those over NBD has them.
    Files,
    /// The facility itself, which is made, opened and closed.
    Itself,
}

/// What a workload found.
#[derive(Clone, Debug, Default)]
pub struct WorkloadOutcome {
    /// Figures. Every pass of a workload under one plan gives the same cases.
    pub measures: Vec<Measure>,
    /// Requests over time, with `facility` and `workload` filled in by the caller.
    pub traces: Vec<Trace>,
    /// Notes for the reader, in whole sentences that are the same in each pass: they are shown once.
    pub notes: Vec<String>,
}

impl From<Vec<Measure>> for WorkloadOutcome {
    fn from(measures: Vec<Measure>) -> Self {
        Self { measures, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_there_once() {
        let mut names: Vec<&str> = all().map(|workload| workload.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_workload_says_what_it_is() {
        for workload in all() {
            let Workload { name, title, not, .. } = workload;
            assert!(!name.is_empty() && !title.is_empty() && !not.is_empty(), "{name}");
        }
    }
}
