//! Workloads on bytes at offsets.
//!
//! They use what [`Surface::device`](crate::measure::facility::Surface::device) gives, which goes around the page cache
//! where the facility lets us. All of it has been written before, because holes in the container would be read faster.

mod dd;
mod events;
mod fio;
mod hdparm;
mod iozone;
mod requests;
mod scratch;
mod seeks;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use claviger_engine::{Error, Result};

use super::Workload;
use crate::measure::facility::FacilityTarget;
use crate::measure::lab::Lab;
use crate::measure::meter::Meter;
use crate::measure::transfer::{self, Compared, Data, Device, Transfer, WrittenPasses};
use crate::model::figures::Elapsed;
use crate::model::plan::{Backing, Plan};

/// All of them.
pub(super) static WORKLOADS: &[&Workload] = &[
    &dd::DD,
    &dd::TRESOR_SGX,
    &hdparm::HDPARM_LIKE,
    &hdparm::HDPARM,
    &iozone::IOZONE_LIKE,
    &fio::FIO,
    &requests::REQUESTS,
    &seeks::SEEKS,
    &scratch::SCRATCH,
];

const MIB: u64 = 1 << 20;

/// The blocks in which what was written is compared.
const LARGE: usize = 1 << 20;

/// Processor time is counted in hundredths of a second. Shorter work is repeated until it has used this much.
const LEAST_S: f64 = 0.1;

/// Short work is not repeated beyond this time.
const MOST: Duration = Duration::from_millis(500);

/// Bytes that are compared with what was written.
const SAMPLE: u64 = 2 * MIB;

/// A size in whole MiB that leaves a quarter of the volume free.
fn capped(size: u64, plan: &Plan) -> u64 {
    size.min(plan.size / 4 * 3) / MIB * MIB
}

/// Drops the page cache before reads, if the plan says so. Not needed for direct reads of data in memory: the page
/// cache cannot hold any of these. `direct` says whether reads are direct.
fn drop_caches(lab: &Lab, direct: bool) -> Result<()> {
    match lab.plan.backing {
        Backing::Tmpfs(_) if direct => Ok(()),
        _ => lab.drop_caches(),
    }
}

/// A note for the reader if a facility cannot bypass the page cache.
fn cache_note(target: &FacilityTarget, direct: bool) -> Option<String> {
    (!direct).then(|| {
        format!(
            "{} cannot bypass the page cache here: its byte figures include the effect of the page cache, even where \
                those of its baseline do not.",
            target.facility().name
        )
    })
}

/// A mark for written data that is unique in this process.
fn mark() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Fails unless the first bytes are what was written last.
fn demand(device: &mut dyn Device, data: &Data, written: &WrittenPasses, upto: u64) -> Result<()> {
    let Compared { bytes, same } = written.compare(device, data, LARGE, upto.min(SAMPLE))?;
    if same == bytes { Ok(()) } else { Err(damaged(bytes - same)) }
}

/// The error for bytes that came back changed.
fn damaged(bytes: u64) -> Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{bytes} bytes read differ from what was written")).into()
}

/// Repeats the work until its processor time is meaningful, or until the overhead is too long: caches are dropped before
/// each of many short reads. Returns the bytes and their time.
fn long_enough(lab: &Lab, mut once: impl FnMut() -> Result<(u64, Elapsed)>) -> Result<(u64, Elapsed)> {
    let (mut bytes, mut all) = (0, Elapsed { seconds: 0.0, cpu_s: 0.0 });
    let start = Instant::now();
    while all.seconds < LEAST_S && start.elapsed() < MOST {
        lab.go_on()?;
        let (more, took) = once()?;
        bytes += more;
        all = Elapsed { seconds: all.seconds + took.seconds, cpu_s: all.cpu_s + took.cpu_s };
    }
    Ok((bytes, all))
}

/// A sequential transfer, and what it took.
fn sequential(device: &mut dyn Device, data: &Data, transfer: &Transfer, mark: u64) -> Result<(u64, Elapsed)> {
    let meter = Meter::start();
    let moved = transfer::run(device, data, transfer, mark)?;
    Ok((moved.bytes, Elapsed { seconds: moved.took.as_secs_f64(), ..meter.elapsed() }))
}

/// The smallest request a device takes. Direct I/O needs whole sectors of the disk below, which may have 4096 bytes.
fn smallest(device: &mut dyn Device) -> Result<usize> {
    match device.read(512, &mut crate::measure::memory::Buffer::new(512)) {
        Ok(()) => Ok(512),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(4096),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::measure::transfer::TransferDirection;
    use crate::measure::transfer::tests::Memory;

    #[test]
    fn short_work_is_done_again() {
        let mut times = 0;
        let once = || {
            times += 1;
            Ok((10, Elapsed { seconds: LEAST_S / 3.5, cpu_s: 0.01 }))
        };
        let (bytes, took) = long_enough(&lab(), once).unwrap();
        assert_eq!((bytes, times), (40, 4));
        assert!((took.cpu_s - 0.04).abs() < 1e-9);
    }

    #[test]
    fn damage_is_found() {
        let (mut device, lab) = (Memory(vec![0; 4 << 20]), lab());
        let whole = Transfer { direction: TransferDirection::Write, block: LARGE, size: 4 << 20, limit: Duration::MAX };
        let (mark, mut written) = (mark(), WrittenPasses::default());
        written.add(sequential(&mut device, &lab.data, &whole, mark).unwrap().0, mark);
        demand(&mut device, &lab.data, &written, 4 << 20).unwrap();
        device.0[1_000_000] ^= 1;
        let error = demand(&mut device, &lab.data, &written, 4 << 20).unwrap_err();
        assert!(error.to_string().contains("512 bytes"), "{error}");
    }
}
