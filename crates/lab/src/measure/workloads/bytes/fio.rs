//! fio: random and sequential requests, one and many at a time, with latencies.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::{MIB, cache_note, capped, drop_caches};
use crate::measure::facility::{Surface, SurfaceKind};
use crate::measure::workloads::prelude::*;

/// What fio is asked to do.
struct Job {
    operation: &'static str,
    /// Its `rw`.
    pattern: &'static str,
    /// Bytes of a request.
    block: u64,
    /// Requests in flight at a time, of each thread.
    depth: u32,
    /// Threads, each with requests of its own: disks with several queues take them at the same time.
    threads: u32,
    /// What the figure is.
    unit: Unit,
}

const fn job(operation: &'static str, pattern: &'static str, block: u64, depth: u32, unit: Unit) -> Job {
    Job { operation, pattern, block, depth, threads: 1, unit }
}

/// Four threads at the same time, which count as one figure.
const fn of_four(job: Job) -> Job {
    Job { threads: 4, ..job }
}

static JOBS: &[Job] = &[
    job("random read, queue depth 1", "randread", 4096, 1, Unit::PerS),
    job("random write, queue depth 1", "randwrite", 4096, 1, Unit::PerS),
    job("random read, queue depth 32", "randread", 4096, 32, Unit::PerS),
    job("random write, queue depth 32", "randwrite", 4096, 32, Unit::PerS),
    job("mixed 70/30, queue depth 32", "randrw", 4096, 32, Unit::PerS),
    job("sequential read, queue depth 8", "read", MIB, 8, Unit::BytesPerS),
    job("sequential write, queue depth 8", "write", MIB, 8, Unit::BytesPerS),
    of_four(job("random read, 4 threads of queue depth 8", "randread", 4096, 8, Unit::PerS)),
    of_four(job("random write, 4 threads of queue depth 8", "randwrite", 4096, 8, Unit::PerS)),
];

/// The latencies that are reported: for each percentage of requests, the time that they did not exceed.
const PERCENTILES: &[(f64, &str)] = &[(50.0, "50 %"), (99.0, "99 %"), (99.9, "99.9 %")];

/// Seconds of a job.
fn runtime_s(plan: &Plan) -> f64 {
    plan.level.choose([0.3, 3.0, 30.0])
}

/// The size of the area that requests go to, in bytes.
fn region(plan: &Plan) -> u64 {
    capped(plan.level.choose([64 * MIB, 512 * MIB, 4096 * MIB]), plan)
}

/// What fio measures.
pub static FIO: Workload = Workload {
    name: "fio",
    title: "Random and sequential requests, with latencies (fio)",
    measures: |plan| {
        format!(
            "Runs fio on the first {} MiB, which were written before, for {} s each: random reads and writes of 4 KiB \
                with one and with 32 requests in flight, 70 % reads and 30 % writes of 4 KiB with 32, sequential \
                reads and writes of 1 MiB with 8, and random reads and writes of 4 KiB by four threads with 8 each. It bypasses the page cache where the facility allows it, with \
                io_uring or else libaio, or over NBD with fio's own client. Writes are incompressible and end with an \
                fsync that is timed. Latencies last from the submission of a request to its completion; 50 %, 99 % \
                and 99.9 % of the requests took at most the time shown.",
            region(plan) / MIB,
            runtime_s(plan)
        )
    },
    not: "Data read are not compared with the data written. Processor time includes fio's own work for creating \
        requests and random data; fio's own work in an idle run is subtracted. In a short run, the figure for \
        99.9 % is based on few requests.",
    on: On::Bytes,
    missing: || program::missing(&["fio"]),
    version: || program::version(Command::new("fio").arg("--version")),
    estimate_s: |plan| (runtime_s(plan) + 0.6) * JOBS.len() as f64 + 0.6,
    room: |plan| region(plan),
    run,
    ..Workload::PLAIN
};

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let surface = target.bytes()?;
    let len = region(&lab.plan).min(surface.len);
    let place = FioTarget { engine: engine(&surface, &engines(lab)?, io_uring_allowed())?, surface, len };
    let idle_s = program::run(&mut nothing(), lab.cancelled)?.own_cpu_s;
    let mut outcome = WorkloadOutcome::default();
    for job in JOBS {
        drop_caches(lab, place.surface.direct)?;
        outcome.measures.extend(carry_out(job, &place, idle_s, lab)?);
    }
    outcome.notes.extend(cache_note(target, place.surface.direct));
    Ok(outcome)
}

/// Where requests go.
struct FioTarget {
    engine: &'static str,
    surface: Surface,
    /// Bytes from the beginning on.
    len: u64,
}

/// The engines that this fio has.
fn engines(lab: &Lab) -> Result<String> {
    let ran = program::run(Command::new("fio").arg("--enghelp"), lab.cancelled)?;
    Ok(program::text(&ran.output))
}

/// Whether the kernel lets this process use io_uring: 0 is for all, 1 for the privileged (kernel.io_uring_disabled in
/// the kernel's documentation of sysctl).
fn io_uring_allowed() -> bool {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match disabled.trim() {
        "" | "0" => true,
        "1" => rustix::process::geteuid().is_root(),
        _ => false,
    }
}

/// The engine for this way of access, among those that fio lists. Other engines do not keep many requests in flight:
/// libaio does so only past the page cache.
fn engine(surface: &Surface, list: &str, io_uring: bool) -> Result<&'static str> {
    let has = |name: &str| list.lines().any(|line| line.trim() == name);
    match &surface.way {
        SurfaceKind::Nbd(_) if has("nbd") => Ok("nbd"),
        SurfaceKind::Nbd(_) => Err(Error::unsupported("NBD with this fio, which was built without it")),
        SurfaceKind::File(_) if io_uring && has("io_uring") => Ok("io_uring"),
        SurfaceKind::File(_) if surface.direct && has("libaio") => Ok("libaio"),
        SurfaceKind::File(_) => {
            Err(Error::unsupported("many requests at a time with this fio, which has neither io_uring nor libaio"))
        }
    }
}

/// A run of fio that moves nothing.
fn nothing() -> Command {
    const OPTIONS: &str =
        "--name=nothing --ioengine=null --thread=1 --size=4k --rw=read --bs=4k --eta=never --output-format=json";
    let mut command = Command::new("fio");
    command.args(OPTIONS.split(' '));
    command
}

/// `idle_s` is the processor time of a fio run that moves no data.
fn carry_out(job: &Job, place: &FioTarget, idle_s: f64, lab: &Lab) -> Result<Vec<Measure>> {
    let ran = program::run(&mut command(job, place, runtime_s(&lab.plan)), lab.cancelled)?;
    let cpu_s = (ran.took.cpu_s - idle_s).max(0.0);
    measures(job, &parse(&program::text(&ran.output))?, cpu_s)
}

fn command(job: &Job, place: &FioTarget, runtime_s: f64) -> Command {
    const OPTIONS: &str = "--output-format=json --eta=never --thread=1 --allow_file_create=0 --randrepeat=0 --norandommap=1 \
        --refill_buffers=1 --buffer_compress_percentage=0 --iomem_align=4096 --time_based=1 --end_fsync=1 --rwmixread=70 \
        --clat_percentiles=0 --lat_percentiles=1";
    let mut command = Command::new("fio");
    command.args(OPTIONS.split(' '));
    let list: Vec<String> = PERCENTILES.iter().map(|(share, _)| share.to_string()).collect();
    command.arg(format!("--percentile_list={}", list.join(":")));
    command.arg(format!("--name={}", job.pattern)).arg(format!("--rw={}", job.pattern));
    command.arg(format!("--bs={}", job.block)).arg(format!("--iodepth={}", job.depth));
    command.arg(format!("--numjobs={}", job.threads)).arg("--group_reporting=1");
    command.arg(format!("--size={}", place.len)).arg(format!("--runtime={}ms", (runtime_s * 1e3) as u64));
    command.arg(format!("--ioengine={}", place.engine));
    match &place.surface.way {
        SurfaceKind::Nbd(socket) => command.arg(format!("--uri={}", nbd_uri(socket))),
        SurfaceKind::File(path) => {
            // A colon would begin another file's name.
            let path = path.to_string_lossy().replace(':', "\\:");
            command.arg(format!("--direct={}", u8::from(place.surface.direct))).arg(format!("--filename={path}"))
        }
    };
    command
}

/// The address of the default export at a socket (the URI scheme of the NBD project).
fn nbd_uri(socket: &Path) -> String {
    let mut uri = "nbd+unix:///?socket=".to_owned();
    for &byte in socket.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(char::from(byte)),
            _ => write!(uri, "%{byte:02X}").unwrap_or_default(),
        }
    }
    uri
}

/// What fio prints, as far as it is used. Times are in milliseconds, latencies in nanoseconds.
#[derive(Debug, Deserialize)]
struct Printed {
    jobs: Vec<PrintedJob>,
}

#[derive(Debug, Deserialize)]
struct PrintedJob {
    error: i32,
    read: Side,
    write: Side,
}

#[derive(Debug, Deserialize)]
struct Side {
    io_bytes: u64,
    total_ios: u64,
    iops: f64,
    bw_bytes: f64,
    runtime: u64,
    lat_ns: Latencies,
}

#[derive(Debug, Deserialize)]
struct Latencies {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// The one job of a run.
fn parse(printed: &str) -> Result<PrintedJob> {
    let not_understood = |why: String| Error::from(io::Error::new(io::ErrorKind::InvalidData, format!("fio {why}")));
    // Notes for people may come first.
    let json = printed.find('{').map_or("", |start| &printed[start..]);
    let printed: Printed = serde_json::from_str(json)
        .map_err(|e| not_understood(format!("printed something that cannot be parsed: {e}")))?;
    match printed.jobs.into_iter().next() {
        Some(PrintedJob { error: error @ 1.., .. }) => {
            Err(not_understood(format!("stopped: {}", io::Error::from_raw_os_error(error))))
        }
        Some(job) => Ok(job),
        None => Err(not_understood("did nothing".into())),
    }
}

/// What a job gives: its rate, and the latencies of what it did.
fn measures(job: &Job, printed: &PrintedJob, cpu_s: f64) -> Result<Vec<Measure>> {
    let sides: Vec<(&str, &Side)> = [("reads", &printed.read), ("writes", &printed.write)]
        .into_iter()
        .filter(|(_, side)| side.total_ios > 0)
        .collect();
    let value = sides.iter().map(|(_, side)| if job.unit == Unit::PerS { side.iops } else { side.bw_bytes }).sum();
    let bytes = sides.iter().fold(0_u64, |sum, (_, side)| sum.saturating_add(side.io_bytes));
    let seconds = sides.iter().map(|(_, side)| side.runtime as f64 / 1e3).fold(0.0, f64::max);
    if bytes == 0 || seconds == 0.0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "fio moved nothing").into());
    }
    let case = Case::new(job.operation);
    let mut measures = vec![Measure { case, value, unit: job.unit, bytes, seconds, cpu_s: Some(cpu_s) }];
    for &(which, side) in &sides {
        let of = if sides.len() > 1 { format!(", {which}") } else { String::new() };
        for (share, words) in PERCENTILES {
            let nanoseconds = side.lat_ns.percentile.get(&format!("{share:.6}")).copied().ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("fio did not print the latency of {words}"))
            })?;
            let case = Case::new(format!("{}{of}, {words} latency", job.operation));
            let value = nanoseconds / 1e9;
            measures.push(Measure { case, value, unit: Unit::Seconds, bytes: 0, seconds, cpu_s: None });
        }
    }
    Ok(measures)
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;
    use crate::hostile;
    use crate::measure::lab::tests::lab;

    #[test]
    fn garbled_output_is_an_error_or_gives_figures() {
        hostile::feed(&[MIXED, FAILED], 500, |text| {
            for job in JOBS {
                let _ = parse(text).and_then(|printed| measures(job, &printed, 1.0));
            }
        });
    }

    const MIXED: &str = include_str!("../../../../tests/data/fio-mixed.json");
    const FAILED: &str = include_str!("../../../../tests/data/fio-failed.json");

    #[test]
    fn what_fio_prints_is_understood() {
        let measures = measures(&JOBS[4], &parse(MIXED).unwrap(), 0.25).unwrap();
        let rate = &measures[0];
        assert_eq!((rate.case.operation.as_str(), rate.unit, rate.cpu_s), (JOBS[4].operation, Unit::PerS, Some(0.25)));
        assert!(
            (rate.value - 30464.285714).abs() < 1e-3 && rate.bytes as f64 / rate.seconds / 4096.0 - rate.value < 1.0
        );
        let latencies: Vec<_> = measures[1..].iter().map(|m| m.value).collect();
        assert_eq!(
            latencies,
            [399_360.0, 18_743_296.0, 35_389_440.0, 528_384.0, 20_578_304.0, 35_913_728.0].map(|ns| ns / 1e9)
        );
        assert_eq!(measures[6].case.operation, "mixed 70/30, queue depth 32, writes, 99.9 % latency");
        assert!(measures[1..].iter().all(|m| m.unit == Unit::Seconds && m.cpu_s.is_none()));
        // Notes come before.
        assert!(parse(&format!("note: something\n{MIXED}")).is_ok());
    }

    #[test]
    fn what_fio_prints_when_it_fails_is_an_error() {
        let error = parse(FAILED).unwrap_err().to_string();
        assert!(error.contains("fio stopped: Input/output error"), "{error}");
        assert!(parse("").is_err() && parse("{}").is_err() && parse("{\"jobs\": []}").is_err());
        let cut = MIXED.replace("99.900000", "99.800000");
        assert!(measures(&JOBS[4], &parse(&cut).unwrap(), 0.0).is_err());
    }

    #[test]
    fn an_engine_is_chosen_that_keeps_many_requests_under_way() {
        let surface = |way, direct| Surface { way, len: MIB, direct };
        let file = |direct| surface(SurfaceKind::File("/x".into()), direct);
        let list = "Available IO engines:\n\tpsync\n\tio_uring\n\tlibaio\n";
        assert_eq!(engine(&file(false), list, true).unwrap(), "io_uring");
        assert_eq!(engine(&file(true), list, false).unwrap(), "libaio");
        assert!(engine(&file(false), list, false).is_err());
        assert!(
            engine(&surface(SurfaceKind::Nbd("/s".into()), true), list, true).unwrap_err().to_string().contains("NBD")
        );
        assert_eq!(engine(&surface(SurfaceKind::Nbd("/s".into()), true), "\tnbd\n", true).unwrap(), "nbd");
    }

    #[test]
    fn names_are_written_as_fio_reads_them() {
        assert_eq!(nbd_uri(Path::new("/run/a b&c/sock")), "nbd+unix:///?socket=/run/a%20b%26c/sock");
        let surface = Surface { way: SurfaceKind::File("/tmp/a:b".into()), len: MIB, direct: true };
        let command = command(&JOBS[0], &FioTarget { engine: "libaio", surface, len: MIB }, 0.5);
        let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        assert!(
            args.iter().any(|a| a == "--filename=/tmp/a\\:b") && args.iter().any(|a| a == "--runtime=500ms"),
            "{args:?}"
        );
    }

    #[test]
    fn fio_runs_every_job_on_a_file() {
        let Some(_) = tools::program("fio") else { return };
        let file = tempfile::Builder::new().prefix("claviger lab:").tempfile_in("/dev/shm").unwrap();
        file.as_file().set_len(MIB).unwrap();
        let surface = Surface { way: SurfaceKind::File(file.path().to_owned()), len: MIB, direct: true };
        let lab = lab();
        let engine = engine(&surface, &engines(&lab).unwrap(), io_uring_allowed()).unwrap();
        let place = FioTarget { engine, surface, len: MIB };
        for job in [&JOBS[2], &JOBS[4], &JOBS[6], &JOBS[8]] {
            let ran = program::run(&mut command(job, &place, 0.05), lab.cancelled).unwrap();
            let measures = measures(job, &parse(&program::text(&ran.output)).unwrap(), 0.0).unwrap();
            assert_eq!(measures.len(), if job.pattern == "randrw" { 7 } else { 4 });
            assert!(measures.iter().all(|m| m.value > 0.0), "{measures:?}");
        }
        assert_eq!(file.as_file().metadata().unwrap().len(), MIB);
        // A place that is not there fails with fio's words, and is not made.
        let none = Surface { way: SurfaceKind::File("/dev/shm/claviger-no-such".into()), len: MIB, direct: true };
        let error = carry_out(&JOBS[0], &FioTarget { engine, surface: none, len: MIB }, 0.0, &lab);
        assert!(error.unwrap_err().to_string().contains("file creation disallowed"));
        assert!(!Path::new("/dev/shm/claviger-no-such").exists());
    }
}
