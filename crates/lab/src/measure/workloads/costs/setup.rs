//! How long it takes to make a facility.

use super::{SMALL, apart, if_supported, several};
use crate::measure::facility::Gives;
use crate::measure::workloads::prelude::*;

/// Bytes per second at which a volume is filled, about.
const FILLS: f64 = 300e6;

/// Making volumes of several sizes.
pub static SETUP: Workload = Workload {
    name: "setup",
    title: "Time to make it",
    measures: |plan| {
        let sizes: Vec<String> = sizes(plan).iter().map(|size| format!("{} MiB", size >> 20)).collect();
        format!(
            "Seconds from the command until a volume of {} exists, in three ways: quickly (cheap key derivation, not \
                filled), with its own program's defaults (full cost of the derivation, filled if that is the \
                default), and quickly with an ext4 file system, mounted. Zhan (2010, figure 4.1) gave such times for \
                a USB stick of 8 GB.",
            sizes.join(", ")
        )
    },
    not: "This is neither the time a person needs nor the time for encrypting data in place. A facility that provides \
        a folder has no size: its times do not grow.",
    on: On::Itself,
    estimate_s: |plan| sizes(plan).iter().map(|size| 5.0 + *size as f64 / FILLS).sum(),
    room: |_| SMALL,
    run: |target, lab| {
        let mut measures = Vec::new();
        for size in sizes(&lab.plan) {
            measures.extend(apart(target, lab, size, |target| made(target, lab, size))?);
        }
        Ok(measures.into())
    },
    ..Workload::PLAIN
};

/// The sizes that fit into what the plan gives a volume.
fn sizes(plan: &Plan) -> Vec<u64> {
    if !several(plan) {
        return vec![plan.size];
    }
    let all: &[u64] = plan.level.choose([&[SMALL], &[SMALL, 1 << 30], &[SMALL, 1 << 30, 4 << 30]]);
    all.iter().copied().filter(|size| *size == SMALL || *size <= plan.size).collect()
}

/// The figures of one size.
fn made(target: &mut FacilityTarget, lab: &Lab, size: u64) -> Result<Vec<Measure>> {
    let case = |operation: &str| Case::new(operation).at(Axis::Size, size as f64);
    let mut measures = Vec::new();

    lab.drop_caches()?;
    measures.push(Measure::cost(case("make as by default"), target.create_default()?));

    lab.go_on()?;
    lab.drop_caches()?;
    measures.push(Measure::cost(case("make quickly"), target.create()?));

    lab.go_on()?;
    if target.facility().gives != Gives::Folder {
        let meter = Meter::start();
        target.create()?;
        if if_supported(target.folder())?.is_some() {
            measures.push(Measure::cost(case("make quickly, with ext4"), meter.elapsed()));
        }
    }
    target.close()?;
    Ok(measures)
}
