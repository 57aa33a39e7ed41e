//! IOzone's operations on a file, by record size and file size, by code of our own.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{MIB, SAMPLE, cache_note, damaged, drop_caches, long_enough, mark, smallest};
use crate::measure::facility::{Gives, Surface};
use crate::measure::transfer::Device;
use crate::measure::workloads::filesystems::{self, FILESYSTEMS};
use crate::measure::workloads::prelude::*;

/// The clock is read once per this many bytes.
const LOOK: u64 = 64 << 10;

/// The stride of a strided read, in records, as in IOzone.
const STRIDE: u64 = 17;

/// What is done with a file.
struct Operation {
    name: &'static str,
    does: Does,
    /// In which order records are taken.
    order: fn(u64, &mut Random) -> Vec<u64>,
    /// Whether the operation always takes all records, however long that is.
    whole: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Does {
    /// Writes a file that is new, where there are files.
    WriteNew,
    Write,
    /// Reads after the page cache was dropped.
    Read,
    /// Reads what may be in the page cache.
    ReadAgain,
}

/// In IOzone's order. Each record is taken once, but for the record rewrite, which takes the first one as often as
/// there are records.
static OPERATIONS: &[Operation] = &[
    Operation { name: "writer", does: Does::WriteNew, order: forwards, whole: true },
    Operation { name: "rewriter", does: Does::Write, order: forwards, whole: true },
    Operation { name: "reader", does: Does::Read, order: forwards, whole: false },
    Operation { name: "rereader", does: Does::ReadAgain, order: forwards, whole: false },
    Operation { name: "random read", does: Does::Read, order: random, whole: false },
    Operation { name: "random write", does: Does::Write, order: random, whole: false },
    Operation { name: "backwards read", does: Does::Read, order: backwards, whole: false },
    Operation { name: "record rewrite", does: Does::Write, order: always_first, whole: false },
    Operation { name: "stride read", does: Does::Read, order: strided, whole: false },
];

fn forwards(count: u64, _: &mut Random) -> Vec<u64> {
    (0..count).collect()
}

fn backwards(count: u64, _: &mut Random) -> Vec<u64> {
    (0..count).rev().collect()
}

fn random(count: u64, random: &mut Random) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    random.shuffle(&mut order);
    order
}

fn always_first(count: u64, _: &mut Random) -> Vec<u64> {
    vec![0; count as usize]
}

/// Every 17th record from the first on, then every 17th from the second on, and so on.
fn strided(count: u64, _: &mut Random) -> Vec<u64> {
    (0..STRIDE).flat_map(|first| (first..count).step_by(STRIDE as usize)).collect()
}

/// Name of the file that it is done in, where there are files.
const FILE: &str = "claviger-iozone-like";

/// Which sizes.
struct Extent {
    files: Vec<u64>,
    records: Vec<u64>,
    /// Seconds after which an operation ends, unless it must be complete.
    limit_s: f64,
}

impl Extent {
    fn of(plan: &Plan) -> Self {
        let powers = |from: u64, to: u64, factor: u64| {
            std::iter::successors(Some(from), |size| Some(size * factor)).take_while(|&size| size <= to).collect()
        };
        let (files, records, limit_s): (Vec<u64>, Vec<u64>, _) = plan.level.choose([
            (vec![8 * MIB], vec![4 << 10, 64 << 10, MIB], 0.1),
            (powers(MIB, 64 * MIB, 8), powers(4 << 10, 16 * MIB, 8), 0.2),
            (powers(64 << 10, 1 << 30, 2), powers(4 << 10, 16 * MIB, 2), 2.0),
        ]);
        let study = plan.parameters(IOZONE_LIKE.name);
        let files = study.filter(|study| !study.files.is_empty()).map_or(files, |study| {
            let largest = study.files.iter().copied().max().unwrap_or_default() as f64 * plan.scale;
            let kept = study.files.iter().enumerate().filter(|(i, file)| *i == 0 || **file as f64 <= largest);
            kept.map(|(_, file)| *file).collect()
        });
        let records = study
            .filter(|study| !study.blocks.is_empty())
            .map_or(records, |study| study.blocks.iter().map(|block| *block as u64).collect());
        let limit_s = study.and_then(|study| study.seconds).unwrap_or(limit_s);
        // The smallest is always there: without it, a lack of room would go unreported.
        let fits = |(i, file): &(usize, u64)| *i == 0 || *file <= plan.size / 4 * 3;
        Self { files: files.into_iter().enumerate().filter(fits).map(|(_, file)| file).collect(), records, limit_s }
    }

    /// Sizes of a file and of a record that fits into it.
    fn cells(&self) -> impl Iterator<Item = (u64, u64)> {
        self.files.iter().flat_map(|&file| self.records.iter().filter(move |&&r| r <= file).map(move |&r| (file, r)))
    }
}

/// The operations on a file of this many records: a stride needs at least two rounds.
fn operations(records: u64) -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().filter(move |operation| operation.name != "stride read" || records >= 2 * STRIDE)
}

/// Operations of IOzone, by code of our own.
pub static IOZONE_LIKE: Workload = Workload {
    name: "iozone-like",
    title: "Operations on a file by record size (as IOzone's)",
    measures,
    not: "This is not IOzone but its access pattern, repeated by our own code. IOzone itself reads and writes through the \
        page cache, so that its figures for small files are those of memory. Several clients at a time, stdio, pread variants and mapped files are not measured.",
    on: On::Bytes,
    parameters: &["files", "blocks", "seconds", FILESYSTEMS],
    estimate_s: |plan| {
        let extent = Extent::of(plan);
        let cell = |(file, record): (u64, u64)| {
            let whole = (file as f64 / 200e6).max(file as f64 / record as f64 / 25e3).max(super::LEAST_S);
            let limited = whole.clamp(super::LEAST_S, extent.limit_s.max(super::LEAST_S));
            3.0 * whole + 7.0 * limited
        };
        extent.cells().map(cell).sum::<f64>() * filesystems::times(&IOZONE_LIKE, plan) as f64
    },
    room: |plan| Extent::of(plan).files.into_iter().max().unwrap_or_default(),
    run: |target, lab| {
        if lab.plan.parameters(IOZONE_LIKE.name).is_none_or(|study| study.filesystems.is_empty()) {
            return on_place(&IozoneTarget::of(target)?, target, lab);
        }
        filesystems::on_each(&IOZONE_LIKE, target, lab, |target, kind| {
            let file = IozoneTarget::File(target.folder_of(kind)?.join(FILE));
            on_place(&file, target, lab)
        })
    },
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let Extent { files, records, limit_s } = Extent::of(plan);
    let range = |sizes: &[u64]| match sizes {
        [one] => size(*one),
        [first, .., last] => format!("{} to {}", size(*first), size(*last)),
        [] => String::new(),
    };
    format!(
        "On a file of {}, in records of {}: writer, rewriter, reader, rereader, random read and write (each record \
            once), backwards read, record rewrite (the first record repeatedly) and stride read (every {STRIDE}th \
            record; files of {} records or more), one request at a time, with a timed fsync for each write, bypassing \
            the page cache where the facility allows it. A facility that provides a folder gets a new file for the \
            writer; so does each file system that a study names. On a facility that provides bytes, the beginning is \
            used, and the writer differs from the rewriter only in its turn. Operations other than the first two stop \
            after {limit_s} s, and the data moved by then count; one shorter than {} s is repeated. A sample of the \
            records is compared with the data written. After the BSI's study (2010), Zhan (2010) and the Swedish \
            study of 2013.",
        range(&files),
        range(&records),
        2 * STRIDE,
        super::LEAST_S,
    )
}

/// All sizes there.
fn on_place(place: &IozoneTarget, target: &FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let extent = Extent::of(&lab.plan);
    let mut outcome = WorkloadOutcome::default();
    for (file, record) in extent.cells() {
        let mut cell = Cell::new(place, file, record, lab)?;
        if smallest(&mut *cell.open.device)? as u64 > record {
            outcome.notes.push("iozone-like: records smaller than a facility's sectors are left out.".into());
            continue;
        }
        outcome.measures.extend(cell.measure(extent.limit_s)?);
        outcome.notes.extend(cache_note(target, cell.open.direct));
    }
    outcome.notes.dedup();
    Ok(outcome)
}

/// `64 KiB`, `8 MiB`.
fn size(bytes: u64) -> String {
    match bytes {
        GIB.. => format!("{} GiB", bytes / GIB),
        MIB.. => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes >> 10),
    }
}

const GIB: u64 = 1 << 30;

/// Where it is done.
enum IozoneTarget {
    /// At the beginning of a volume.
    Bytes(Surface),
    /// In a file, which is removed in the end.
    File(PathBuf),
}

impl IozoneTarget {
    fn of(target: &mut FacilityTarget) -> Result<Self> {
        match target.facility().gives {
            Gives::Folder => Ok(Self::File(target.folder()?.join(FILE))),
            Gives::Bytes | Gives::Nbd => Ok(Self::Bytes(target.bytes()?)),
        }
    }

    /// The file, made anew, or the volume.
    fn open(&self) -> Result<Open> {
        let surface = match self {
            Self::Bytes(surface) => surface.clone(),
            Self::File(path) => {
                let new = || File::create(path)?.write_all(&[0; 4096]);
                new().map_err(|e| Error::from(e).at(path))?;
                // Tries direct I/O on what it was just given.
                Surface::of_file(path, u64::MAX)?
            }
        };
        Ok(Open { device: surface.device()?, direct: surface.direct })
    }
}

/// A file or volume in use.
struct Open {
    device: Box<dyn Device>,
    /// Whether the page cache is bypassed.
    direct: bool,
}

impl Drop for IozoneTarget {
    fn drop(&mut self) {
        if let Self::File(path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// One size of a file and of a record.
struct Cell<'a> {
    lab: &'a Lab,
    reopen: Box<dyn Fn() -> Result<Open> + 'a>,
    open: Open,
    file: u64,
    record: u64,
    /// The mark that each record was written with last.
    marks: Vec<u64>,
    random: Random,
}

impl<'a> Cell<'a> {
    fn new(place: &'a IozoneTarget, file: u64, record: u64, lab: &'a Lab) -> Result<Self> {
        Self::over(Box::new(|| place.open()), file, record, lab)
    }

    fn over(reopen: Box<dyn Fn() -> Result<Open> + 'a>, file: u64, record: u64, lab: &'a Lab) -> Result<Self> {
        let open = reopen()?;
        let random = Random::new(lab.plan.seed ^ file ^ record);
        Ok(Self { lab, reopen, open, file, record, marks: vec![0; (file / record) as usize], random })
    }

    /// All operations.
    fn measure(&mut self, limit_s: f64) -> Result<Vec<Measure>> {
        let mut measures = Vec::new();
        let mut buffer = Buffer::new(self.record as usize);
        for operation in operations(self.file / self.record) {
            let limit = if operation.whole { Duration::MAX } else { Duration::from_secs_f64(limit_s) };
            let lab = self.lab;
            let (bytes, took) = long_enough(lab, || self.once(operation, limit, &mut buffer))?;
            let case = Case::new(operation.name).of(format!("file of {}", size(self.file)));
            measures.push(Measure::rate(case.at(Axis::Block, self.record as f64), bytes, took));
        }
        self.compare(&mut buffer)?;
        Ok(measures)
    }

    /// An operation on all records, or on as many as there is time for.
    fn once(&mut self, operation: &Operation, limit: Duration, buffer: &mut [u8]) -> Result<(u64, Elapsed)> {
        let order = (operation.order)(self.file / self.record, &mut self.random);
        match operation.does {
            Does::WriteNew => self.open = (self.reopen)()?,
            Does::Read => drop_caches(self.lab, self.open.direct)?,
            Does::Write | Does::ReadAgain => {}
        }
        let writes = matches!(operation.does, Does::Write | Does::WriteNew);
        let mark = mark();
        let (meter, start, mut moved) = (Meter::start(), Instant::now(), 0);
        let mut next_look = LOOK;
        for record in order {
            if writes {
                self.lab.data.fill(mark, record * self.record, buffer);
                self.open.device.write(record * self.record, buffer)?;
                self.marks[record as usize] = mark;
            } else {
                self.open.device.read(record * self.record, buffer)?;
            }
            moved += self.record;
            if moved >= next_look {
                next_look = moved + LOOK;
                if start.elapsed() >= limit {
                    break;
                }
            }
        }
        if writes {
            self.open.device.flush()?;
        }
        Ok((moved, meter.elapsed()))
    }

    /// Reads a sample of the records and compares them with what was written.
    fn compare(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut expected = Buffer::new(buffer.len());
        let sample = (SAMPLE / self.record).max(1);
        for record in random(self.file / self.record, &mut self.random).into_iter().take(sample as usize) {
            self.open.device.read(record * self.record, buffer)?;
            self.lab.data.fill(self.marks[record as usize], record * self.record, &mut expected);
            if *buffer != *expected {
                return Err(damaged(self.record));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::{fs, io};

    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::model::case::Unit;

    #[test]
    fn orders_take_each_record_once() {
        for operation in OPERATIONS.iter().filter(|o| o.name != "record rewrite") {
            for count in [1, 16, 17, 18, 40, 1000] {
                let order = (operation.order)(count, &mut Random::new(3));
                let all: BTreeSet<u64> = order.iter().copied().collect();
                assert_eq!((order.len() as u64, all), (count, (0..count).collect()), "{} of {count}", operation.name);
            }
        }
        assert_eq!(always_first(3, &mut Random::new(1)), [0, 0, 0]);
        assert_eq!(strided(40, &mut Random::new(1))[..5], [0, 17, 34, 1, 18]);
        assert_ne!(random(100, &mut Random::new(1)), random(100, &mut Random::new(2)));
        assert_eq!(backwards(3, &mut Random::new(1)), [2, 1, 0]);
    }

    #[test]
    fn every_operation_is_measured_on_a_file_that_is_gone_then() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("file");
        let (place, lab) = (IozoneTarget::File(path.clone()), lab());
        let reopen = || -> Result<Open> {
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
            Ok(Open { device: Box::new(Plain(file)), direct: false })
        };
        let mut cell = Cell::over(Box::new(reopen), 256 << 10, 4 << 10, &lab).unwrap();
        let measures = cell.measure(0.01).unwrap();
        let names: Vec<_> = measures.iter().map(|m| m.case.operation.as_str()).collect();
        assert_eq!(names, OPERATIONS.iter().map(|o| o.name).collect::<Vec<_>>());
        for measure in &measures {
            assert!(measure.unit == Unit::BytesPerS && measure.value > 0.0, "{measure:?}");
            assert_eq!((measure.case.series.as_str(), measure.case.x), ("file of 256 KiB", Some(4096.0)));
        }
        fs::write(&path, vec![0; 256 << 10]).unwrap();
        let error = cell.compare(&mut Buffer::new(4 << 10)).unwrap_err();
        assert!(error.to_string().contains("differ from what was written"), "{error}");
        drop(cell);
        drop(place);
        assert!(!path.exists());
    }

    /// A file through the page cache.
    struct Plain(File);

    impl Device for Plain {
        fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            std::os::unix::fs::FileExt::read_exact_at(&self.0, out, offset)
        }
        fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            std::os::unix::fs::FileExt::write_all_at(&self.0, data, offset)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.0.sync_data()
        }
    }

    #[test]
    fn sizes_are_those_of_the_level_and_fit() {
        let plan = |level, size| Plan { level, size, ..lab().plan };
        let thorough = Extent::of(&plan(Level::Thorough, 2 << 30));
        assert_eq!((thorough.files.len(), thorough.records.len()), (15, 13));
        assert_eq!((thorough.files[14], thorough.records[12]), (1 << 30, 16 * MIB));
        assert_eq!(Extent::of(&plan(Level::Thorough, 100 * MIB)).files.last(), Some(&(64 * MIB)));
        assert_eq!(Extent::of(&plan(Level::Standard, MIB)).files, [MIB]);
        assert!(thorough.cells().all(|(file, record)| record <= file));
        assert!((IOZONE_LIKE.estimate_s)(&lab().plan) < 10.0);
        assert!(operations(16).all(|o| o.name != "stride read") && operations(34).count() == OPERATIONS.len());
    }
}
