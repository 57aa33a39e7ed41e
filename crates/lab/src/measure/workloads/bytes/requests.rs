//! Single requests at random places: how long one takes, and how many context switches it causes.

use std::fs;
use std::time::Instant;

use super::{MIB, cache_note, capped, drop_caches};
use crate::measure::transfer::{Device, TransferDirection};
use crate::measure::workloads::prelude::*;
use crate::model::statistics::{median, quantile};

/// Bytes of a request.
const BLOCK: usize = 4096;

/// The number of requests in each direction, and the size in bytes of the area in which they lie.
fn extent(plan: &Plan) -> (usize, u64) {
    let (count, size) = plan.level.choose([(500, 16 * MIB), (5000, 64 * MIB), (20_000, 256 * MIB)]);
    (count, capped(size, plan))
}

/// Single requests, one after the other.
pub static REQUESTS: Workload = Workload {
    name: "requests",
    title: "Single requests of 4 KiB: latency and context switches",
    measures: |plan| {
        let (count, size) = extent(plan);
        format!(
            "Writes, then reads, {count} blocks of {BLOCK} bytes at random places in the first {} MiB, one at a time, \
                bypassing the page cache where the facility allows it. Results are the median latency of a request, \
                the latency that 99 of 100 requests do not exceed, and the context switches of the whole machine per request (the line ctxt of /proc/stat).",
            size / MIB
        )
    },
    not: "Several requests at a time are not measured. Context switches include those of all other activity on the \
        machine.",
    on: On::Bytes,
    estimate_s: |plan| extent(plan).0 as f64 * 2.0 / 5e3,
    room: |plan| extent(plan).1,
    run,
    ..Workload::PLAIN
};

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let surface = target.bytes()?;
    let (count, size) = extent(&lab.plan);
    let blocks = size.min(surface.len) / BLOCK as u64;
    let mut device = surface.device()?;
    let mut outcome = WorkloadOutcome::default();
    for direction in TransferDirection::BOTH {
        lab.go_on()?;
        if direction == TransferDirection::Read {
            drop_caches(lab, surface.direct)?;
        }
        outcome.measures.extend(requests(&mut *device, lab, direction, (count, blocks))?);
    }
    outcome.notes.extend(cache_note(target, surface.direct));
    Ok(outcome)
}

fn requests(
    device: &mut dyn Device,
    lab: &Lab,
    direction: TransferDirection,
    (count, blocks): (usize, u64),
) -> Result<[Measure; 3]> {
    let mut random = Random::new(lab.plan.seed);
    let mut buffer = Buffer::new(BLOCK);
    let mut latencies = Vec::with_capacity(count);
    let (switches, meter) = (context_switches()?, Meter::start());
    for pass in 0..count as u64 {
        let at = random.below(blocks as usize) as u64 * BLOCK as u64;
        if direction == TransferDirection::Write {
            lab.data.fill(pass, at, &mut buffer);
        }
        let start = Instant::now();
        match direction {
            TransferDirection::Write => device.write(at, &mut buffer)?,
            TransferDirection::Read => device.read(at, &mut buffer)?,
        }
        latencies.push(start.elapsed().as_secs_f64());
    }
    let took = meter.elapsed();
    let switches = context_switches()?.saturating_sub(switches) as f64 / count as f64;
    device.flush()?;
    let case = |what: &str| Case::new(format!("{}, {what}", word(&direction))).at(Axis::Block, BLOCK as f64);
    let bytes = (count * BLOCK) as u64;
    let latency = |what, value| Measure { value, ..Measure::time(case(what), bytes, took) };
    let all = Measure::time(case("context switches"), 0, took);
    Ok([
        latency("latency", median(&latencies)),
        latency("99 % latency", quantile(&latencies, 0.99)),
        Measure { value: switches, unit: Unit::Count, ..all },
    ])
}

/// Of all processors since the start of the machine (proc_stat(5)).
fn context_switches() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let number = stat.lines().find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok());
    number.ok_or_else(|| Error::unsupported("context switches, which this kernel does not count"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::measure::transfer::tests::Memory;

    #[test]
    fn each_direction_has_a_latency_and_switches() {
        let (mut device, lab) = (Memory(vec![0; 1 << 20]), lab());
        for direction in TransferDirection::BOTH {
            let [latency, slowest, switches] = requests(&mut device, &lab, direction, (50, 256)).expect("done");
            assert!(latency.unit == Unit::Seconds && latency.value > 0.0 && latency.value <= latency.seconds);
            assert!(
                slowest.value >= latency.value && slowest.value <= slowest.seconds && slowest.bytes == latency.bytes
            );
            assert!(switches.unit == Unit::Count && switches.value.is_finite() && switches.bytes == 0);
            assert_eq!(latency.bytes, 50 * 4096);
        }
        assert!(device.0.iter().any(|byte| *byte != 0), "it was written");
    }
}
