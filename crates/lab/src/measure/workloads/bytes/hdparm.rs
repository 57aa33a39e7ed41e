//! Reads as hdparm times them, by code of our own, and by hdparm itself.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Advice, fadvise};

use super::{LARGE, MIB, drop_caches, long_enough};
use crate::measure::facility::{Surface, SurfaceKind};
use crate::measure::workloads::prelude::*;

/// What hdparm reads at a time.
const BUFFER: usize = 2 << 20;

/// Its two timings.
const BUFFERED: &str = "buffered read";
const CACHED: &str = "cached read";

/// Seconds of each timing. hdparm's own are 3 and 2.
struct Times {
    buffered_s: f64,
    cached_s: f64,
}

impl Times {
    fn of(plan: &Plan) -> Self {
        let (buffered_s, cached_s) = if plan.level == Level::Quick { (0.4, 0.2) } else { (3.0, 2.0) };
        Self { buffered_s, cached_s }
    }
}

/// Bytes that are read: in 3 s more may be read than a small volume has.
fn region(plan: &Plan) -> u64 {
    let size = plan.level.choose([64 * MIB, 512 * MIB, 4096 * MIB]);
    size.min(plan.size / 4 * 3) / BUFFER as u64 * BUFFER as u64
}

/// hdparm's timings, of anything that can be read.
pub static HDPARM_LIKE: Workload = Workload {
    name: "hdparm-like",
    title: "Buffered and cached reads (hdparm's method)",
    measures,
    not: "Where the kernel keeps plaintext in its page cache, cached reads measure memory and no encryption. Where it \
        does not, as with this engine's mounted images, they measure decryption. Whether the encrypted data below \
        come from a page cache depends on the backing.",
    on: On::Bytes,
    estimate_s: |plan| {
        let Times { buffered_s, cached_s } = Times::of(plan);
        buffered_s + cached_s + 0.2
    },
    room: |plan| region(plan),
    run,
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let Times { buffered_s, cached_s } = Times::of(plan);
    let own = if plan.level == Level::Quick { " (hdparm: 3 s and 2 s)" } else { "" };
    format!(
        "Buffered: reads the volume from its beginning in pieces of 2 MiB through the page cache, which was dropped \
            before, for {buffered_s} s or up to {} MiB. Cached: reads the first 2 MiB repeatedly for {cached_s} \
            s{own}; the time for reading the clock as often is subtracted. These are the two timings of hdparm(8), -t \
            and -T, in this program's own code, which can also read files.",
        region(plan) / MIB
    )
}

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let surface = target.bytes()?;
    let SurfaceKind::File(path) = &surface.way else {
        return Err(Error::unsupported("timings of the page cache over NBD, which has none"));
    };
    let len = region(&lab.plan).min(surface.len);
    let file = File::open(path).map_err(|e| Error::from(e).at(path))?;
    Ok(timings(&file, len, &Times::of(&lab.plan), lab)?.into())
}

/// Buffered and cached reads.
fn timings(file: &File, len: u64, times: &Times, lab: &Lab) -> Result<Vec<Measure>> {
    let mut buffer = Buffer::new(BUFFER);
    let (cached, took_cached) = cached(file, times.cached_s, &mut buffer)?;
    let (buffered, took_buffered) = long_enough(lab, || {
        // Drops what the layers below have cached, then what is cached of this file.
        drop_caches(lab, true)?;
        fadvise(file, 0, None, Advice::DontNeed).map_err(std::io::Error::from)?;
        Ok(buffered(file, len, times.buffered_s, &mut buffer)?)
    })?;
    Ok(vec![
        Measure::rate(Case::new(BUFFERED), buffered, took_buffered),
        Measure::rate(Case::new(CACHED), cached, took_cached),
    ])
}

fn buffered(file: &File, len: u64, limit_s: f64, buffer: &mut [u8]) -> std::io::Result<(u64, Elapsed)> {
    let (meter, mut at) = (Meter::start(), 0);
    let clock = std::time::Instant::now();
    while at + buffer.len() as u64 <= len && clock.elapsed().as_secs_f64() < limit_s {
        file.read_exact_at(buffer, at)?;
        at += buffer.len() as u64;
    }
    Ok((at, meter.elapsed()))
}

fn cached(file: &File, limit_s: f64, buffer: &mut [u8]) -> std::io::Result<(u64, Elapsed)> {
    file.read_exact_at(buffer, 0)?;
    let (meter, clock, mut reads) = (Meter::start(), std::time::Instant::now(), 0u64);
    while clock.elapsed().as_secs_f64() < limit_s {
        file.read_exact_at(buffer, 0)?;
        reads += 1;
    }
    let all = meter.elapsed();
    let clock = std::time::Instant::now();
    for _ in 0..reads {
        std::hint::black_box(clock.elapsed());
    }
    let looks_s = clock.elapsed().as_secs_f64();
    Ok((reads * buffer.len() as u64, Elapsed { seconds: all.seconds - looks_s, ..all }))
}

/// The program itself, on block devices.
pub static HDPARM: Workload = Workload {
    name: "hdparm",
    title: "Buffered and cached reads (hdparm itself)",
    measures: |_| {
        "Runs hdparm -t -T on the block device that the facility provides, with its own 3 s and 2 s: sequential reads \
            of 2 MiB through the page cache, which it flushes, and reads of the same 2 MiB from the cache. The data \
            were written before."
            .into()
    },
    not: "Anything but block devices. Cached reads measure memory and the kernel, but no encryption. Processor time \
        would include both timings and hdparm's pauses, so there is no figure for it.",
    on: On::Bytes,
    missing: || {
        program::missing(&["hdparm"]).or_else(|| {
            (!rustix::process::geteuid().is_root()).then(|| "hdparm requires root to read block devices.".to_owned())
        })
    },
    version: || program::version(hdparm().arg("-V")),
    estimate_s: |_| 8.0,
    room: |plan| region(plan),
    run: |target, lab| {
        let surface = target.bytes()?;
        let device = block_device(&surface)?;
        lab.drop_caches()?;
        let ran = program::run(hdparm().args(["-t", "-T"]).arg(device), lab.cancelled)?;
        Ok(parse(&program::text(&ran.output))?.into())
    },
    ..Workload::PLAIN
};

/// The program, in a folder that is not in users' PATH.
fn hdparm() -> Command {
    Command::new(program::find("hdparm").unwrap_or_else(|| "hdparm".into()))
}

/// Its path, if it is one.
fn block_device(surface: &Surface) -> Result<&Path> {
    match &surface.way {
        SurfaceKind::File(path) if path.metadata().is_ok_and(|m| m.file_type().is_block_device()) => Ok(path),
        _ => Err(Error::unsupported("hdparm on something that is not a block device")),
    }
}

/// What hdparm printed: ` Timing cached reads:   40676 MB in  1.99 seconds = 20454.35 MB/sec`. Its MB are MiB. The rate
/// has more digits than the quotient of what stands before it.
fn parse(printed: &str) -> Result<Vec<Measure>> {
    [(BUFFERED, "Timing buffered disk reads:"), (CACHED, "Timing cached reads:")]
        .into_iter()
        .map(|(operation, heading)| {
            let line = printed.lines().find_map(|line| line.trim().strip_prefix(heading));
            line.and_then(|line| timing(operation, line)).ok_or_else(|| {
                let what = format!("hdparm did not print its line \"{heading}\", but: {}", printed.trim());
                std::io::Error::new(std::io::ErrorKind::InvalidData, what).into()
            })
        })
        .collect()
}

/// `40676 MB in  1.99 seconds = 20454.35 MB/sec`; kB/sec where that is little.
fn timing(operation: &str, line: &str) -> Option<Measure> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [megabytes, "MB", "in", seconds, "seconds", "=", rate, unit] = words[..] else { return None };
    let unit = match unit {
        "MB/sec" => LARGE as f64,
        "kB/sec" => 1024.0,
        _ => return None,
    };
    let (bytes, seconds) = (megabytes.parse::<u64>().ok()?.checked_mul(MIB)?, seconds.parse().ok()?);
    let took = Elapsed { seconds, cpu_s: 0.0 };
    let measure = Measure::rate(Case::new(operation), bytes, took);
    Some(Measure { value: rate.parse::<f64>().ok()? * unit, cpu_s: None, ..measure })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile;
    use crate::measure::lab::tests::lab;

    #[test]
    fn a_file_is_read_as_hdparm_reads_a_device() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; 2 * BUFFER], 0).unwrap();
        let times = Times { buffered_s: 0.05, cached_s: 0.05 };
        let measures = timings(&file, 2 * BUFFER as u64, &times, &lab()).unwrap();
        let operations: Vec<_> = measures.iter().map(|m| m.case.operation.as_str()).collect();
        assert_eq!(operations, [BUFFERED, CACHED]);
        for measure in measures {
            assert!(measure.bytes >= BUFFER as u64 && measure.bytes.is_multiple_of(BUFFER as u64), "{measure:?}");
            assert!(measure.value > 0.0 && measure.value.is_finite(), "{measure:?}");
        }
    }

    #[test]
    fn what_hdparm_prints_is_understood() {
        let measures = parse(include_str!("../../../../tests/data/hdparm.txt")).unwrap();
        assert_eq!((measures[0].bytes, measures[0].seconds), (64 * MIB, 0.19));
        assert!((measures[0].value / MIB as f64 - 328.43).abs() < 1e-6);
        assert!((measures[1].value / MIB as f64 - 11893.17).abs() < 1e-6);
        assert_eq!(measures[1].case.operation, CACHED);
    }

    #[test]
    fn what_hdparm_prints_of_a_file_is_an_error() {
        hostile::feed(&[include_str!("../../../../tests/data/hdparm.txt")], 2000, |text| drop(parse(text)));
        let error = parse(include_str!("../../../../tests/data/hdparm-file.txt")).unwrap_err().to_string();
        assert!(error.contains("BLKGETSIZE failed"), "{error}");
    }

    #[test]
    fn slow_devices_have_another_unit() {
        let slow = timing(BUFFERED, "  2 MB in  3.20 seconds = 640.00 kB/sec").unwrap();
        assert_eq!(slow.value, 640.0 * 1024.0);
        assert!(timing(BUFFERED, "2 GB in 1 seconds = 2 GB/sec").is_none());
    }
}
