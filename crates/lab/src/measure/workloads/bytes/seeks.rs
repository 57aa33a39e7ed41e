//! The requests that a server, or the device below the kernel's encryption, receives during simple work.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use claviger_engine::ErrorKind;

use super::events::Events;
use super::{MIB, capped, demand, drop_caches, mark, sequential};
use crate::measure::facility::Surface;
use crate::measure::transfer::{Transfer, TransferDirection, WrittenPasses};
use crate::measure::workloads::prelude::*;
use crate::model::figures::{Trace, TracedRequest};

/// Requests of a trace that are kept: all of them would fill a report.
const KEPT: usize = 4000;

/// Bytes of a sequential request, and of a random one.
const SEQUENTIAL: usize = 64 << 10;
const RANDOM: usize = 4096;

/// Bytes of a file that is created.
const FILE: usize = 10_000;

/// The folder of files that are created.
const FOLDER: &str = "claviger-seeks";

/// How much is done.
struct Extent {
    /// The size in bytes of the area that is written and read in order, and in which the random requests lie.
    sequential: u64,
    /// Random reads.
    random: u64,
    /// Files.
    files: u64,
}

impl Extent {
    fn of(plan: &Plan) -> Self {
        let levels = [(32 * MIB, 1000, 200), (128 * MIB, 2000, 1000), (1024 * MIB, 20_000, 5000)];
        let (sequential, random, files): (_, _, u64) = plan.level.choose(levels);
        Self { sequential: capped(sequential, plan), random, files: files.min(plan.size / 8 / FILE as u64) }
    }
}

/// Requests over time.
pub static SEEKS: Workload = Workload {
    name: "seeks",
    title: "Requests over time (seek trace)",
    measures,
    not: "The position of a disk's heads. With this program's servers, offsets are those of the plaintext as \
        requested; with the kernel, those of the device. Writing the trace costs time, so rates differ from those of \
        other workloads. Traces of files include the requests for mounting and unmounting the file system. Tracing \
        the kernel requires root and tracefs; other programs' servers on files have no trace.",
    on: On::Bytes,
    estimate_s: |plan| {
        let Extent { sequential, random, files } = Extent::of(plan);
        1.5 + sequential as f64 / 100e6 + random as f64 / 20e3 + files as f64 / 5e3
    },
    room: |plan| Extent::of(plan).sequential,
    run,
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let Extent { sequential, random, files } = Extent::of(plan);
    format!(
        "Opens the facility anew for each of these: {0} MiB written in order in requests of {1} KiB with an fdatasync, the \
            same read in order, {random} random reads of {RANDOM} bytes among them, and {files} files of {FILE} bytes \
            created in ext4 on it, with a sync, and read again. Our server records each request that it answered: \
            time, offset and length. For encryption in the kernel, trace events record the same of the device below. \
            The first {KEPT} requests of a trace are kept. A seek is a request that does not begin where the previous \
            one ended; the first request counts as one. Results are the rate of each part (as the client saw it), the \
            seeks per request and, for files, the bytes written per byte of a file. The drawings are those of \
            Seekwatcher, which Zhan (2010) used.",
        sequential / MIB,
        SEQUENTIAL >> 10
    )
}

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    if target.facility().trace.is_empty() && target.device().is_none() {
        return Err(Error::unsupported(format!("a trace of requests by {}", target.facility().name)));
    }
    let dir = tempfile::Builder::new().prefix("claviger-lab-trace-").tempdir_in(&lab.scratch)?;
    let mut parts = Parts { target, lab, dir: dir.path(), direct: false, outcome: WorkloadOutcome::default() };
    let done = parts.all(&Extent::of(&lab.plan));
    // The next workload gets it without a trace.
    let closed = parts.target.close();
    done?;
    closed?;
    Ok(parts.outcome)
}

/// The bytes that were requested while a trace was written, and what they took.
type Done = (u64, Elapsed);

/// The parts of a pass.
struct Parts<'a> {
    target: &'a mut FacilityTarget,
    lab: &'a Lab,
    /// For traces.
    dir: &'a Path,
    /// Whether the volume is reached around the page cache.
    direct: bool,
    outcome: WorkloadOutcome,
}

impl Parts<'_> {
    fn all(&mut self, extent: &Extent) -> Result<()> {
        let lab = self.lab;
        // Fills the volume, and finds out how it is reached, before there is a trace.
        let surface = self.target.bytes()?;
        self.direct = surface.direct;
        let len = extent.sequential.min(surface.len) / MIB * MIB;
        let mut written = WrittenPasses::default();
        self.of_bytes("sequential write", || transfer(&surface, lab, TransferDirection::Write, len, &mut written))?;
        self.of_bytes("sequential read", || transfer(&surface, lab, TransferDirection::Read, len, &mut written))?;
        self.of_bytes("random read", || random_reads(&surface, lab, len, extent.random))?;
        demand(&mut *self.target.bytes()?.device()?, &lab.data, &written, len)?;
        match self.target.folder() {
            Ok(_) => self.of_files(extent.files),
            Err(e) if matches!(e.kind, ErrorKind::Unsupported { .. }) => {
                self.outcome.notes.push("seeks: where there is no file system, no files are created.".to_owned());
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn of_bytes(&mut self, operation: &str, what: impl FnOnce() -> Result<Done>) -> Result<()> {
        let ((bytes, took), requests) = self.traced(operation, |_| what())?;
        self.keep(operation, Measure::rate(Case::new(operation), bytes, took), Vec::new(), requests);
        Ok(())
    }

    /// A file system has been created. The next workload that needs one creates it anew.
    fn of_files(&mut self, count: u64) -> Result<()> {
        let operation = "creating files";
        let create = |target: &mut FacilityTarget| create_files(&target.folder()?.join(FOLDER), count);
        let ((bytes, took), requests) = self.traced(operation, create)?;
        let written: u64 = requests.iter().filter(|r| r.write).map(|r| r.len).sum();
        let share = written as f64 / bytes as f64;
        let share = share_of("creating files, bytes written for each byte of a file", share, took);
        self.keep(operation, Measure::per_s(Case::new(operation), count, took), vec![share], requests);

        let operation = "reading files";
        let read = |target: &mut FacilityTarget| read_files(&target.folder()?.join(FOLDER), count);
        let ((_, took), requests) = self.traced(operation, read)?;
        self.keep(operation, Measure::per_s(Case::new(operation), count, took), Vec::new(), requests);
        self.target.bytes()?;
        Ok(())
    }

    /// Opens the target with a trace, does something, and closes it.
    fn traced(
        &mut self,
        operation: &str,
        what: impl FnOnce(&mut FacilityTarget) -> Result<Done>,
    ) -> Result<(Done, Vec<TracedRequest>)> {
        if self.target.facility().trace.is_empty() {
            return self.traced_by_the_kernel(what);
        }
        let path = self.dir.join(operation);
        self.target.open_traced(&path)?;
        drop_caches(self.lab, self.direct)?;
        let done = what(self.target)?;
        // The server writes the rest of its trace when it ends.
        self.target.close()?;
        let file = File::open(&path).map_err(|e| Error::from(e).at(&path))?;
        Ok((done, read(file).map_err(|e| e.at(&path))?))
    }

    fn traced_by_the_kernel(
        &mut self,
        what: impl FnOnce(&mut FacilityTarget) -> Result<Done>,
    ) -> Result<(Done, Vec<TracedRequest>)> {
        self.target.close()?;
        self.target.open()?;
        drop_caches(self.lab, self.direct)?;
        let device = self.target.device().ok_or_else(|| Error::unsupported("a trace without a device"))?;
        let events = Events::start(device)?;
        let done = what(self.target)?;
        self.target.close()?;
        Ok((done, events.stop()?))
    }

    fn keep(&mut self, operation: &str, rate: Measure, others: Vec<Measure>, requests: Vec<TracedRequest>) {
        let (seconds, cpu_s) = (rate.seconds, rate.cpu_s.unwrap_or_default());
        let seeks = seeks(&requests) as f64 / requests.len().max(1) as f64;
        let seeks = share_of(&format!("{operation}, seeks per request"), seeks, Elapsed { seconds, cpu_s });
        self.outcome.measures.extend([rate, seeks]);
        self.outcome.measures.extend(others);
        self.outcome.traces.push(trace(operation, requests));
    }
}

/// A share, without processor time.
fn share_of(operation: &str, value: f64, took: Elapsed) -> Measure {
    Measure { value, cpu_s: None, ..Measure::cpu_share(Case::new(operation), took) }
}

fn transfer(
    surface: &Surface,
    lab: &Lab,
    direction: TransferDirection,
    len: u64,
    written: &mut WrittenPasses,
) -> Result<Done> {
    let mut device = surface.device()?;
    let transfer = Transfer { direction, block: SEQUENTIAL, size: len, limit: Duration::MAX };
    let mark = mark();
    let (bytes, took) = sequential(&mut *device, &lab.data, &transfer, mark)?;
    if direction == TransferDirection::Write {
        written.add(bytes, mark);
    }
    Ok((bytes, took))
}

fn random_reads(surface: &Surface, lab: &Lab, len: u64, count: u64) -> Result<Done> {
    let mut device = surface.device()?;
    let (mut random, mut buffer) = (Random::new(lab.plan.seed), Buffer::new(RANDOM));
    let meter = Meter::start();
    for _ in 0..count {
        let block = random.below((len / RANDOM as u64) as usize);
        device.read((block * RANDOM) as u64, &mut buffer)?;
    }
    Ok((count * RANDOM as u64, meter.elapsed()))
}

/// Makes a folder with files of incompressible data.
fn create_files(folder: &Path, count: u64) -> Result<Done> {
    let mut data = vec![0; FILE];
    Random::new(count).fill(&mut data);
    let meter = Meter::start();
    fs::create_dir(folder)?;
    for number in 0..count {
        data[..8].copy_from_slice(&number.to_le_bytes());
        File::create_new(folder.join(number.to_string()))?.write_all(&data)?;
    }
    rustix::fs::syncfs(File::open(folder)?).map_err(io::Error::from)?;
    Ok((count * FILE as u64, meter.elapsed()))
}

/// Reads the files that [`create_files`] made.
fn read_files(folder: &Path, count: u64) -> Result<Done> {
    let mut data = Vec::with_capacity(FILE);
    let meter = Meter::start();
    for number in 0..count {
        data.clear();
        File::open(folder.join(number.to_string()))?.read_to_end(&mut data)?;
        if data.len() != FILE || data[..8] != number.to_le_bytes() {
            let what = format!("file {number} is not what was written");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
        }
    }
    Ok((count * FILE as u64, meter.elapsed()))
}

/// A line of a trace: seconds since the server began, when it had answered; bytes of the plaintext; `read` or `write`.
#[derive(serde::Deserialize)]
struct Line {
    seconds: f64,
    offset: u64,
    length: u64,
    direction: String,
}

/// The requests of a trace, from the time of the first on. They are in the order of time even where several threads
/// answered.
fn read(file: impl Read) -> Result<Vec<TracedRequest>> {
    let not_understood = |e: String| Error::from(io::Error::new(io::ErrorKind::InvalidData, e));
    let lines: std::result::Result<Vec<Line>, _> = csv::Reader::from_reader(file).into_deserialize().collect();
    let mut requests = Vec::new();
    for Line { seconds, offset, length, direction } in lines.map_err(|e| not_understood(e.to_string()))? {
        let write = match direction.as_str() {
            "write" => true,
            "read" => false,
            other => return Err(not_understood(format!("{other} is not the direction of a request"))),
        };
        requests.push(TracedRequest { at: seconds, offset, len: length, write });
    }
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    let first = requests.first().map_or(0.0, |first| first.at);
    // In microseconds, as the server wrote them.
    requests.iter_mut().for_each(|request| request.at = ((request.at - first) * 1e6).round() / 1e6);
    Ok(requests)
}

/// Requests that do not begin where the one before ended. The first one has none before it.
fn seeks(requests: &[TracedRequest]) -> usize {
    let moves = requests.windows(2).filter(|pair| pair[0].offset + pair[0].len != pair[1].offset).count();
    moves + requests.len().min(1)
}

/// The trace as it is stored. A long one is cut off at the end, not thinned out, so that the drawing of the rest is correct.
fn trace(operation: &str, mut requests: Vec<TracedRequest>) -> Trace {
    let all = requests.len();
    requests.truncate(KEPT);
    let title = match all - requests.len() {
        0 => operation.to_owned(),
        _ => format!("{operation}, the first {KEPT} of {all} requests"),
    };
    Trace { facility: String::new(), workload: String::new(), title, requests }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::facility::SurfaceKind;
    use crate::measure::lab::tests::lab;

    #[test]
    fn a_trace_is_read_from_its_first_request_on() {
        let text = "seconds,offset,length,direction\n2.500000,0,4096,write\n2.750000,4096,4096,write\n\
                    2.700000,8192,512,read\n";
        let requests = read(text.as_bytes()).unwrap();
        let request = |at, offset, len, write| TracedRequest { at, offset, len, write };
        assert_eq!(requests[0], request(0.0, 0, 4096, true));
        assert_eq!((requests[1].offset, requests[2].offset), (8192, 4096));
        assert!((requests[2].at - 0.25).abs() < 1e-9);
        assert!(read(&b"seconds,offset,length,direction\n"[..]).unwrap().is_empty());
        for damaged in ["1.0,0,4096,sideways", "1.0,0,4096", "1.0,-1,4096,read"] {
            assert!(read(format!("seconds,offset,length,direction\n{damaged}\n").as_bytes()).is_err(), "{damaged}");
        }
    }

    #[test]
    fn seeks_are_requests_that_do_not_follow() {
        let requests = [(0, 512), (512, 512), (0, 512), (512, 1024), (1536, 1), (9, 9)];
        let requests = requests.map(|(offset, len)| TracedRequest { at: 0.0, offset, len, write: false });
        assert_eq!((seeks(&requests), seeks(&requests[..1]), seeks(&[])), (3, 1, 0));
    }

    #[test]
    fn a_long_trace_is_cut_off_and_says_so() {
        let requests: Vec<_> =
            (0..KEPT as u64 + 5).map(|i| TracedRequest { at: i as f64, offset: i, len: 1, write: true }).collect();
        let cut = trace("random read", requests.clone());
        assert_eq!((cut.requests.len(), cut.title.as_str()), (KEPT, "random read, the first 4000 of 4005 requests"));
        assert_eq!(trace("random read", requests[..KEPT].to_vec()).title, "random read");
    }

    #[test]
    fn what_is_traced_is_done() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (bytes, _) = create_files(&dir.path().join("new"), 20).unwrap();
        assert_eq!((bytes, fs::read_dir(dir.path().join("new")).unwrap().count()), (200_000, 20));
        assert!(create_files(&dir.path().join("new"), 20).is_err(), "they are there already");
        assert_eq!(read_files(&dir.path().join("new"), 20).unwrap().0, 200_000);
        fs::write(dir.path().join("new/7"), vec![0; FILE]).unwrap();
        assert!(read_files(&dir.path().join("new"), 20).is_err(), "one is another");

        let path = dir.path().join("volume");
        fs::write(&path, vec![0; 4 << 20]).unwrap();
        let surface = Surface { way: SurfaceKind::File(path), len: 4 << 20, direct: false };
        let (lab, mut written) = (lab(), WrittenPasses::default());
        let (bytes, _) = transfer(&surface, &lab, TransferDirection::Write, 4 << 20, &mut written).unwrap();
        assert_eq!(bytes, 4 << 20);
        demand(&mut *surface.device().unwrap(), &lab.data, &written, bytes).unwrap();
        assert_eq!(random_reads(&surface, &lab, 4 << 20, 10).unwrap().0, 40960);
    }
}
