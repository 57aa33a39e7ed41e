//! The sweep on small volumes: every cell is there, and all data came back. No test looks at a time.

use claviger_engine::{Acceleration, ErrorKind};
use claviger_lab::compare::kernel::Beside;
use claviger_lab::compare::targets::Path;
use claviger_lab::compare::{self, BASELINE, Plan};
use claviger_lab::report::{Text, csv};
use claviger_lab::transfer::Direction;

fn plan(path: Path) -> Plan {
    Plan {
        path,
        queue_depth: 1,
        suites: compare::suites_named(&["AES".into(), "Serpent-AES".into()]).unwrap(),
        blocks: vec![512, 6144, 65536],
        size: 1 << 20,
        limit_s: 5.0,
        repeats: 2,
        seed: 1,
        acceleration: Acceleration::On,
        kernel: Beside::No("Not here.".into()),
    }
}

fn every_cell_is_there(plan: &Plan) {
    let report = compare::measure(plan, &|done, total| assert!(done <= total)).unwrap();
    assert_eq!(report.cells.len(), 2 * plan.blocks.len() * (plan.suites.len() + 1));
    for direction in Direction::BOTH {
        for &block in &plan.blocks {
            for target in [BASELINE].iter().chain(&plan.suites) {
                let of_cell =
                    |c: &&compare::Cell| c.direction == direction && c.block_bytes == block && c.target == *target;
                let cell = report.cells.iter().find(of_cell).unwrap();
                assert!(cell.bytes_per_s > 0.0 && cell.baseline_bytes_per_s > 0.0 && cell.cpu_s_per_gb >= 0.0);
                assert_eq!(cell.loss.is_none(), *target == BASELINE);
                assert_eq!(cell.samples.len(), plan.repeats);
                let whole = plan.size / block as u64 * block as u64;
                assert!(cell.samples.iter().all(|s| s.bytes == whole && s.seconds > 0.0), "{cell:?}");
            }
        }
    }
    assert_eq!(report.verified.len(), plan.suites.len() + 1);
    for verified in &report.verified {
        assert_eq!(verified.bytes, plan.size);
        assert_eq!(verified.encrypted_at_rest, verified.target != BASELINE);
    }
    assert_eq!(report.order.len(), plan.repeats * plan.blocks.len());
    assert!(report.order.iter().all(|o| o.targets.len() == plan.suites.len() + 1));
    // One sentence for each, and perhaps one on a restless machine.
    assert!(report.findings.len() >= plan.suites.len());
    let text = report.text();
    assert!(text.contains("Writes of 512 bytes") && text.contains("Reads of 64 KiB"), "{text}");
    assert_eq!(csv(&report.cells).lines().count(), report.cells.len() + 1);
}

#[test]
fn in_the_engine() {
    every_cell_is_there(&plan(Path::Engine));
}

#[test]
fn over_nbd() {
    every_cell_is_there(&plan(Path::Nbd));
}

#[test]
fn over_nbd_with_a_queue_and_without_aes_instructions() {
    every_cell_is_there(&Plan { queue_depth: 5, acceleration: Acceleration::Off, ..plan(Path::Nbd) });
}

#[test]
fn a_transfer_that_is_cut_short_counts_what_it_moved_and_is_verified() {
    for queue_depth in [1, 4] {
        let plan = Plan { limit_s: 1e-9, blocks: vec![512, 16384], queue_depth, ..plan(Path::Nbd) };
        let report = compare::measure(&plan, &|_, _| ()).unwrap();
        assert!(report.cells.iter().flat_map(|c| &c.samples).all(|s| s.bytes == 64 << 10));
        assert!(report.verified.iter().all(|v| v.bytes == plan.size));
    }
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let order = |seed| {
        let plan = Plan { seed, size: 64 << 10, blocks: vec![4096], repeats: 6, ..plan(Path::Engine) };
        let report = compare::measure(&plan, &|_, _| ()).unwrap();
        report.order.into_iter().map(|o| o.targets).collect::<Vec<_>>()
    };
    assert_eq!(order(5), order(5));
    assert_ne!(order(5), order(6));
}

#[test]
fn what_makes_no_sense_is_misuse() {
    let good = plan(Path::Engine);
    for bad in [
        Plan { size: 1 << 50, ..good.clone() },
        Plan { blocks: vec![500], ..good.clone() },
        Plan { blocks: vec![], ..good.clone() },
        Plan { size: 4096, ..good.clone() },
        Plan { repeats: 0, ..good.clone() },
        Plan { queue_depth: 2, ..good.clone() },
        Plan { limit_s: f64::NAN, ..good.clone() },
    ] {
        let error = compare::measure(&bad, &|_, _| ()).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{bad:?}: {error}");
    }
}
