//! What a run did not measure, by the reason, and what failed.

use std::collections::BTreeSet;

use crate::model::figures::Run;
use crate::show::study::{FAILED, OwnFigure, StudyCell, filled};
use crate::show::summary::Summary;

/// A reason, and everything that was not measured for it.
#[derive(Default)]
pub(super) struct Unmeasured {
    pub(super) why: String,
    facilities: BTreeSet<String>,
    workloads: BTreeSet<String>,
}

impl Unmeasured {
    /// The facilities, and the workloads where some are named: `dm-crypt/LUKS2, dm-crypt/plain (dd, hdparm)`.
    pub(super) fn what(&self) -> String {
        let joined = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        match (joined(&self.facilities), joined(&self.workloads)) {
            (facilities, workloads) if workloads.is_empty() => facilities,
            (facilities, workloads) if facilities.is_empty() => workloads,
            (facilities, workloads) => format!("{facilities} ({workloads})"),
        }
    }
}

/// Why, which facility and which workload.
type Reason = (String, Option<String>, Option<String>);

/// Everything that was not measured, once for each reason. What failed is in [`failures`].
pub(super) fn unmeasured(run: &Run, summary: &Summary) -> Vec<Unmeasured> {
    let facilities = run.facilities.iter().filter_map(|f| Some((f.left_out.clone()?, Some(f.name.clone()), None)));
    let workloads = run.workloads.iter().filter_map(|w| Some((w.left_out.clone()?, None, Some(w.name.clone()))));
    let notes = run.notes.iter().filter_map(|note| reason_of_note(note));
    let tables = run.plan.study().map(|study| filled(study, run, summary)).unwrap_or_default();
    let cells = tables.iter().flat_map(|table| &table.cells).filter_map(reason_of_cell);
    let mut all: Vec<Unmeasured> = Vec::new();
    for (why, facility, workload) in facilities.chain(workloads).chain(notes).chain(cells) {
        let at = all.iter().position(|one| one.why == why).unwrap_or_else(|| {
            all.push(Unmeasured { why, ..Unmeasured::default() });
            all.len() - 1
        });
        all[at].facilities.extend(facility);
        all[at].workloads.extend(workload);
    }
    all
}

/// The notes that are not about what was not measured.
pub(super) fn other_notes(run: &Run) -> Vec<String> {
    run.notes.iter().filter(|note| reason_of_note(note).is_none()).cloned().collect()
}

/// The reason that a note gives. The name of the facility is not part of it: others have the same.
fn reason_of_note(note: &str) -> Option<Reason> {
    if let Some((workload, rest)) = note.split_once(" is not done on ") {
        let (_, why) = rest.split_once(": ")?;
        return Some((why.to_owned(), None, Some(workload.to_owned())));
    }
    let (facility, rest) = note.split_once(" is not measured with ")?;
    let (workload, why) = rest.split_once(": ")?;
    let why = why.replace(&format!(" with {facility}"), "").replace(&format!(" by {facility}"), "");
    Some((why, Some(facility.to_owned()), Some(workload.to_owned())))
}

fn reason_of_cell(cell: &StudyCell<'_>) -> Option<Reason> {
    let OwnFigure::Missing(why) = &cell.here else { return None };
    let facility = cell.facility.as_deref().unwrap_or(cell.column).to_owned();
    (!why.starts_with(FAILED)).then(|| (why.clone(), Some(facility), cell.workload.map(str::to_owned)))
}

/// What failed and when, and the error.
pub(super) fn failures(run: &Run) -> Vec<(String, String)> {
    let failure = |f: &crate::model::figures::RunFailure| {
        let workload = f.workload.as_deref().unwrap_or("before any workload");
        let when = match (&f.workload, f.round) {
            (None, _) => String::new(),
            (_, Some(round)) => format!(", round {}", round + 1),
            (_, None) => ", warm-up".into(),
        };
        (format!("{}, {workload}{when}", f.facility), f.error.trim().to_owned())
    };
    run.failures.iter().map(failure).collect()
}
