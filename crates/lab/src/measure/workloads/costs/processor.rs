//! How much CPU time it takes, idle and under load.

use std::thread;
use std::time::{Duration, Instant};

use super::processes::CpuTimes;
use crate::measure::transfer::{self, Device, Transfer, TransferDirection};
use crate::measure::workloads::prelude::*;

/// Bytes of a request.
const BLOCK: usize = 1 << 20;

/// How often to check for cancellation.
const LOOK: Duration = Duration::from_millis(100);

/// Processor time of an open volume.
pub static PROCESSOR: Workload = Workload {
    name: "processor",
    title: "Processor time",
    measures: |plan| {
        format!(
            "Share of one processor used during {:.0} s while the open volume is idle, and seconds of processor time \
                per 10^9 bytes written and read in order, in requests of 1 MiB, for {:.1} s each way. One figure is \
                for the processes that serve the volume, if any. The other is for the whole machine, and includes the \
                kernel's work and the generator of data.",
            idle(plan).as_secs_f64(),
            limit(plan).as_secs_f64()
        )
    },
    not: "Reads start with an empty page cache where it can be dropped; later reads may hit it. The figures of the \
        whole machine include all other activity, in steps of a hundredth of a second; so do the baseline's. The work \
        of a facility inside the kernel appears only in them. Work that the kernel does later, when it writes to a \
        disk, is not included.",
    on: On::Bytes,
    estimate_s: |plan| (idle(plan) + 2 * limit(plan)).as_secs_f64() + 0.5,
    room: |plan| plan.level.choose([64 << 20, 256 << 20, 1 << 30]),
    run,
    ..Workload::PLAIN
};

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let surface = target.bytes()?;
    let mut measures = at_rest(target, lab)?;
    let mut device = surface.device()?;
    for direction in TransferDirection::BOTH {
        lab.go_on()?;
        lab.drop_caches()?;
        let size = surface.len.min((PROCESSOR.room)(&lab.plan));
        let transfer = Transfer { direction, block: BLOCK, size, limit: limit(&lab.plan) };
        measures.extend(under_load(target, device.as_mut(), lab, &transfer)?);
    }
    Ok(measures.into())
}

/// Duration of the idle phase.
fn idle(plan: &Plan) -> Duration {
    Duration::from_secs(plan.level.choose([1, 3, 10]))
}

/// Duration of writing, and of reading.
fn limit(plan: &Plan) -> Duration {
    Duration::from_millis(plan.level.choose([500, 2000, 10_000]))
}

/// The share of one processor when nothing is done.
fn at_rest(target: &FacilityTarget, lab: &Lab) -> Result<Vec<Measure>> {
    let serving = target.processes();
    let (meter, before, start) = (Meter::start(), CpuTimes::of(&serving)?, Instant::now());
    while start.elapsed() < idle(&lab.plan) {
        lab.go_on()?;
        thread::sleep(LOOK);
    }
    let (took, own) = (meter.elapsed(), CpuTimes::of(&serving)?.since(&before));
    let mut measures = vec![Measure::cpu_share(Case::new("idle, whole machine"), took)];
    if !serving.is_empty() {
        let own = Measure::cpu_share(Case::new("idle, its processes"), Elapsed { cpu_s: own, ..took });
        measures.push(Measure { cpu_s: None, ..own });
    }
    Ok(measures)
}

/// The speed of a transfer, and what it costs.
fn under_load(
    target: &FacilityTarget,
    device: &mut dyn Device,
    lab: &Lab,
    transfer: &Transfer,
) -> Result<Vec<Measure>> {
    let serving = target.processes();
    let (meter, before) = (Meter::start(), CpuTimes::of(&serving)?);
    let bytes = again_and_again(device, lab, transfer)?;
    let (took, own) = (meter.elapsed(), CpuTimes::of(&serving)?.since(&before));

    let direction = word(&transfer.direction);
    let per_gb = |who: &str, cpu_s: f64| Measure {
        case: Case::new(format!("{direction}, processor time per GB, {who}")),
        value: cpu_s * 1e9 / bytes as f64,
        unit: Unit::CostSeconds,
        bytes,
        seconds: took.seconds,
        cpu_s: None,
    };
    let speed = Measure::rate(Case::new(format!("{direction}, speed")), bytes, took);
    let own = (!serving.is_empty()).then(|| per_gb("its processes", own));
    Ok([speed, per_gb("whole machine", took.cpu_s)].into_iter().chain(own).collect())
}

/// Does the transfer until its time is over, and counts the bytes: processor time is counted too coarsely for a short
/// one.
fn again_and_again(device: &mut dyn Device, lab: &Lab, transfer: &Transfer) -> Result<u64> {
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < transfer.limit {
        lab.go_on()?;
        let limit = transfer.limit.saturating_sub(start.elapsed());
        bytes += transfer::run(device, &lab.data, &Transfer { limit, ..*transfer }, 1)?.bytes;
    }
    Ok(bytes)
}
