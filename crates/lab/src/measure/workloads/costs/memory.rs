//! How much memory open volumes take.

use std::thread;
use std::time::Duration;

use super::processes;
use super::{SMALL, another, several};
use crate::measure::transfer::{self, Transfer, TransferDirection};
use crate::measure::workloads::prelude::*;

/// How many volumes are open at once.
const VOLUMES: &[usize] = &[1, 3, 8];

/// How long servers get to settle.
const SETTLE: Duration = Duration::from_millis(200);

/// What is read before memory is looked at again.
const READ: Transfer =
    Transfer { direction: TransferDirection::Read, block: 1 << 20, size: SMALL, limit: Duration::from_secs(60) };

/// Memory of the processes that serve open volumes.
pub static MEMORY: Workload = Workload {
    name: "memory",
    title: "Memory of open volumes",
    measures,
    not: "Kernel memory, such as the page cache and its buffers for FUSE, is not counted, so a facility inside the \
        kernel has no figure. Memory that a key derivation uses while it runs is not counted either.",
    on: On::Itself,
    estimate_s: |plan| volumes(plan).last().map_or(1.0, |count| *count as f64 * 0.6),
    room: |_| SMALL,
    run,
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let volumes = match volumes(plan) {
        [] | [_] => "one open volume".to_owned(),
        _ => "1, 3 and 8 open volumes, all but the first of them 64 MiB large,".to_owned(),
    };
    format!(
        "Proportional set size (each sharing process counts its part of a shared page) of the processes that serve \
            {volumes}: at rest, just after opening, and after reading 64 MiB from one volume. Where a facility \
            provides a folder, a large file in it is read. Other processes of the same program make the figures \
            smaller."
    )
}

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    // What is read below is written before: servers that have only read are what is measured.
    target.bytes()?;
    target.close()?;
    let mut measures = Vec::new();
    for &count in volumes(&lab.plan) {
        measures.push(at_rest(target, lab, count)?);
        target.close()?;
    }
    target.open()?;
    transfer::run(target.bytes()?.device()?.as_mut(), &lab.data, &READ, 0)?;
    measures.push(taken(Case::new("one volume, after reading 64 MiB"), &serving([&*target])?)?);
    Ok(WorkloadOutcome { measures, ..WorkloadOutcome::default() })
}

/// Opens it and so many others that there are `count`. The others are gone afterwards.
fn at_rest(target: &mut FacilityTarget, lab: &Lab, count: usize) -> Result<Measure> {
    target.open()?;
    let mut others = Vec::new();
    for _ in 1..count {
        lab.go_on()?;
        let mut other = another(target, lab, SMALL)?;
        other.open()?;
        others.push(other);
    }
    thread::sleep(SETTLE);
    let serving = serving([&*target].into_iter().chain(&others))?;
    taken(Case::new("at rest").at(Axis::Volumes, count as f64), &serving)
}

/// How many are opened under this plan.
fn volumes(plan: &Plan) -> &'static [usize] {
    if several(plan) { VOLUMES } else { &VOLUMES[..1] }
}

/// The processes of all these.
fn serving<'a>(targets: impl IntoIterator<Item = &'a FacilityTarget>) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for target in targets {
        let processes = target.processes();
        if processes.is_empty() {
            return Err(Error::unsupported("the memory of work done in the kernel, which cannot be attributed"));
        }
        all.extend(processes);
    }
    Ok(all)
}

fn taken(case: Case, processes: &[u32]) -> Result<Measure> {
    let value = processes::memory(processes)? as f64;
    Ok(Measure { case, value, unit: Unit::Bytes, bytes: 0, seconds: 0.0, cpu_s: None })
}
