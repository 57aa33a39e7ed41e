//! What a facility costs besides throughput: time to create and open it, memory, CPU time; and running a whole system
//! on it.

mod boot;
mod ciphers;
mod debian;
mod in_place;
mod memory;
mod processes;
mod processor;
mod setup;
mod unlock;

use claviger_engine::{ErrorKind, Result};

use super::Workload;
use crate::measure::facility::FacilityTarget;
use crate::measure::lab::Lab;
use crate::measure::transfer::Data;
use crate::model::plan::{Backing, Plan};

/// All of them.
pub(super) static WORKLOADS: &[&Workload] = &[
    &setup::SETUP,
    &in_place::IN_PLACE,
    &unlock::UNLOCK,
    &memory::MEMORY,
    &processor::PROCESSOR,
    &boot::BOOT,
    &ciphers::CIPHERS,
];

/// The size of the small volumes that are measured besides the one of the plan, in bytes.
const SMALL: u64 = 64 << 20;

/// Whether several volumes can exist at once: a device holds only one, and all media must be treated alike.
fn several(plan: &Plan) -> bool {
    !plan.media().any(|medium| matches!(medium, Backing::Device(_)))
}

/// The same facility in a store of its own, for a volume of `size` bytes, not made yet.
fn another(target: &FacilityTarget, lab: &Lab, size: u64) -> Result<FacilityTarget> {
    let plan = Plan { size, ..lab.plan.clone() };
    let (program, stores, scratch) = (lab.program.clone(), lab.stores.clone(), lab.scratch.clone());
    let lab = Lab { data: Data::new(plan.seed), plan, program, stores, scratch, cancelled: lab.cancelled };
    FacilityTarget::new(target.facility(), &lab)
}

/// Does `work` with the same facility in a store of its own for a volume of `size` bytes, or, on a device, with the
/// target itself, which is made anew afterwards, as a run expects it.
fn apart<T>(
    target: &mut FacilityTarget,
    lab: &Lab,
    size: u64,
    work: impl FnOnce(&mut FacilityTarget) -> Result<T>,
) -> Result<T> {
    target.close()?;
    if several(&lab.plan) {
        return work(&mut another(target, lab, size)?);
    }
    let done = work(target);
    target.create()?;
    done
}

/// The result, or `None` if it cannot be done with this facility.
fn if_supported<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(e) if matches!(e.kind, ErrorKind::Unsupported { .. }) => Ok(None),
        other => other.map(Some),
    }
}
