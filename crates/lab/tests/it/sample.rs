//! A run for tests of reports, with something of every kind: made up, but of the shape of a real one. Tests of what is not public have
//! it, too.

use claviger_lab::measure::benchmark;
use claviger_lab::model::case::{Axis, Case, Unit};
use claviger_lab::model::ciphers::{AesAcceleration, CipherSpeed};
use claviger_lab::model::figures::{
    FacilityRecord, GeneratorRate, Measure, Pass, Run, RunFailure, RunPlan, SCHEMA, Sitting, Trace, TracedRequest,
    WorkloadRecord,
};
use claviger_lab::model::machine::{Conditions, Machine, Moment};
use claviger_lab::model::plan::{Backing, Caches, Level, Plan};
use claviger_lab::model::random::Random;
use claviger_lab::model::statistics::Spread;

/// A name that is not to be read as HTML.
pub const HOSTILE: &str = "<b>&\"'";

/// A case with its unit, and the figure of a facility of speed 1.
type Shown = (Case, Unit, f64);

/// Name, baseline, title, and how fast it is.
const FACILITIES: &[(&str, Option<&str>, &str, f64)] = &[
    ("plain", None, "a file served over NBD, not encrypted", 1.0),
    ("luks2", Some("plain"), "this engine, LUKS2 format, aes-xts-plain64", 0.82),
    ("veracrypt-serpent", Some("plain"), "this engine, VeraCrypt format, Serpent", 0.41),
    ("veracrypt-cascade", Some("plain"), "this engine, VeraCrypt format, AES-Twofish-Serpent", 0.19),
    ("truecrypt", Some("plain"), "this engine, TrueCrypt format, AES", 0.999),
    (HOSTILE, Some("plain"), "a facility with <i>markup</i> & \"quotes\" in its title", 0.6),
    ("folder", None, "a folder of the same file system, not encrypted", 1.3),
    ("gocryptfs", Some("folder"), "gocryptfs, in a folder", 0.55),
    ("ecryptfs", Some("folder"), "the kernel's eCryptfs, in a folder", 0.7),
];

/// A run with every kind of chart, a failure, and things that were left out.
pub fn run() -> Run {
    let workloads: Vec<(&str, &str, Vec<Shown>)> = vec![
        ("dd", "dd: sequential transfers by block size", sweep()),
        ("iozone-like", "Operations as IOzone's", operations()),
        ("fio", "fio: random and sequential requests", requests()),
        ("bonnie", "Bonnie++", benchmark_of_files()),
        ("dbench", "Dbench by clients", clients()),
        ("setup", "Making, unlocking and holding volumes", costs()),
    ];
    let names = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut random = Random::new(11);
    let mut passes = Vec::new();
    for (workload, _, cases) in &workloads {
        for round in [None].into_iter().chain((0..6).map(Some)) {
            for (position, (facility, _, _, speed)) in FACILITIES.iter().enumerate() {
                passes.push(pass(facility, workload, round, position, cases, *speed, &mut random));
            }
        }
    }
    let record = |(name, title, _): &(&str, &str, _)| {
        WorkloadRecord {
        name: (*name).into(),
        title: (*title).into(),
        measures: "Sequential writes and reads of 64 MiB in blocks of several sizes, the flush inside the time of writes, as in \
                   the BSI's study of 2010."
            .into(),
        not: "What a file system on top does, and what several readers at a time would see.".into(),
        version: None,
        left_out: None,
    }
    };
    let mut records: Vec<WorkloadRecord> = workloads.iter().map(record).collect();
    records.push(WorkloadRecord {
        name: "boot".into(),
        left_out: Some("debootstrap is not installed".into()),
        ..records[0].clone()
    });
    Run {
        schema: SCHEMA,
        plan: RunPlan::new(
            Plan {
                level: Level::Quick,
                scale: 0.01,
                backing: Backing::Tmpfs("/dev/shm".into()),
                more: Vec::new(),
                size: 256 << 20,
                facilities: FACILITIES.iter().map(|f| f.0.to_owned()).collect(),
                workloads: names(&["dd", "iozone-like", "fio", "bonnie", "dbench", "setup"]),
                min_repeats: 5,
                max_repeats: 12,
                steady: 0.03,
                seed: 7,
                caches: Caches::Dropped,
                repeated: None,
            },
            None,
        ),
        machine: Machine { cpu_model: "A Processor & Co. 3.0 GHz".into(), ..Machine::this() },
        facilities: facilities(),
        workloads: records,
        generator: vec![GeneratorRate { block_bytes: 1 << 20, bytes_per_s: 9.4e9 }],
        sittings: vec![Sitting { before: Moment::now(), after: Some(Moment::now()), idle_cpu: 0.02 }],
        passes,
        failures: vec![RunFailure {
            facility: "cryfs".into(),
            workload: Some("dd".into()),
            round: Some(2),
            error: "cryfs ended with exit status 11:\n  Invalid <filesystem>".into(),
        }],
        traces: vec![trace("luks2"), trace("veracrypt-cascade")],
        ciphers: ciphers(),
        notes: vec!["The volumes lie in memory: a disk would hide a part of what encryption costs.".into()],
    }
}

fn facilities() -> Vec<FacilityRecord> {
    let record = |(name, baseline, title, _): &(&str, Option<&str>, &str, f64)| FacilityRecord {
        name: (*name).into(),
        title: (*title).into(),
        baseline: baseline.map(Into::into),
        about: "Served by a process of its own, and used over a Unix socket.".into(),
        version: Some("1.2.3".into()),
        commands: vec![format!("claviger create --password-file <p> '{name}'")],
        left_out: None,
    };
    let mut all: Vec<FacilityRecord> = FACILITIES.iter().map(record).collect();
    all.push(FacilityRecord {
        name: "zfs".into(),
        left_out: Some("the program zpool is not installed".into()),
        ..all[0].clone()
    });
    all
}

fn pass(
    facility: &str,
    workload: &str,
    round: Option<usize>,
    position: usize,
    cases: &[Shown],
    speed: f64,
    random: &mut Random,
) -> Pass {
    let mut noise = || 1.0 + (random.below(1000) as f64 / 1000.0 - 0.5) * 0.06;
    let measure = |(case, unit, value): &Shown| {
        let outlier = if round == Some(3) && position == 2 { 0.6 } else { 1.0 };
        let value = match unit {
            Unit::BytesPerS | Unit::PerS => value * speed * noise() * outlier,
            Unit::Seconds => value / speed * noise(),
            Unit::CostSeconds | Unit::Bytes | Unit::Share | Unit::Count => *value * noise(),
        };
        let bytes = if *unit == Unit::BytesPerS { 64 << 20 } else { 0 };
        let cpu_s = Some(0.04 / speed * noise());
        Measure { case: case.clone(), value, unit: *unit, bytes, seconds: 0.2, cpu_s }
    };
    Pass {
        facility: facility.into(),
        workload: workload.into(),
        round,
        position,
        at: "2026-11-22T03:00:00Z".into(),
        conditions: Conditions {
            mhz: Some(2900.0 + position as f64),
            steal_share: 0.001,
            throttled: Some(0),
            energy_j: None,
            caches_dropped: true,
            others: None,
        },
        measures: cases.iter().map(measure).collect(),
    }
}

fn sweep() -> Vec<Shown> {
    let blocks = (9..=15).map(|bits| 1u64 << bits).chain([1 << 20]);
    let of = |b: u64| {
        let rate = 4e9 * b as f64 / (b as f64 + 20_000.0);
        let at = |operation| Case::new(operation).at(Axis::Block, b as f64);
        [(at("write"), Unit::BytesPerS, rate), (at("read"), Unit::BytesPerS, rate * 1.3)]
    };
    blocks.flat_map(of).collect()
}

fn operations() -> Vec<Shown> {
    let operations = ["writer", "rewriter", "random read"];
    let series = ["file of 64 MiB", "file of 1 GiB"];
    let cell = |operation: &'static str, series: &'static str| {
        [4096.0, 65536.0, 1048576.0].map(|record| {
            let case = Case::new(operation).of(series).at(Axis::Block, record);
            (case, Unit::BytesPerS, 1e6 * record.sqrt())
        })
    };
    series.into_iter().flat_map(|s| operations.into_iter().flat_map(move |o| cell(o, s))).collect()
}

fn requests() -> Vec<Shown> {
    let mut all = vec![
        (Case::new("sequential write, 1 MiB"), Unit::BytesPerS, 2.1e9),
        (Case::new("sequential read, 1 MiB"), Unit::BytesPerS, 3.4e9),
        (Case::new("mixed 70/30, 4 KiB"), Unit::PerS, 61_000.0),
    ];
    for (operation, base) in [("random read, queue depth 1", 12e-6), ("random read, queue depth 32", 90e-6)] {
        all.push((Case::new(operation), Unit::PerS, 1.0 / base));
        for (percentile, times) in [("50 %", 1.0), ("99 %", 4.0), ("99.9 %", 31.0)] {
            all.push((Case::new(format!("{operation}, {percentile} latency")), Unit::Seconds, base * times));
        }
    }
    all
}

fn benchmark_of_files() -> Vec<Shown> {
    let rates = [("sequential output", 1.1e9), ("rewrite", 7e8), ("sequential input", 2.2e9)];
    let files = [("sequential create", 24_000.0), ("random delete", 31_000.0), ("seeks", 900.0)];
    let rates = rates.into_iter().map(|(o, v)| (Case::new(o), Unit::BytesPerS, v));
    rates.chain(files.into_iter().map(|(o, v)| (Case::new(o), Unit::PerS, v))).collect()
}

fn clients() -> Vec<Shown> {
    let at = |n: f64| (Case::new("throughput").at(Axis::Clients, n), Unit::BytesPerS, 9e8 * n / (n + 8.0));
    [1.0, 6.0, 12.0, 48.0, 128.0, 256.0].into_iter().map(at).collect()
}

fn costs() -> Vec<Shown> {
    let memory = |n: f64| (Case::new("memory").at(Axis::Volumes, n), Unit::Bytes, 9e6 + 4e6 * n);
    let mut all = vec![
        (Case::new("make").at(Axis::Size, 2f64.powi(30)), Unit::Seconds, 1.9),
        (Case::new("unlock"), Unit::Seconds, 0.05),
        (Case::new("processor, idle"), Unit::Share, 0.003),
    ];
    all.extend([0.0, 1.0, 3.0, 8.0].map(memory));
    all
}

/// A file that is written from its beginning to its end, then read at random.
fn trace(facility: &str) -> Trace {
    let mut random = Random::new(3);
    let write = |i: u64| TracedRequest { at: i as f64 * 0.001, offset: i << 17, len: 1 << 17, write: true };
    let mut requests: Vec<_> = (0..2000).map(write).collect();
    requests.extend((0..3000).map(|i| TracedRequest {
        at: 2.0 + f64::from(i) * 0.0007,
        offset: (random.below(64_000) as u64) << 12,
        len: 4096,
        write: false,
    }));
    Trace {
        facility: facility.into(),
        workload: "dd".into(),
        title: "a file written and then read at random".into(),
        requests,
    }
}

fn ciphers() -> Vec<CipherSpeed> {
    let names = [("AES", 9e9), ("Serpent", 2.1e9), ("Twofish", 1.4e9), ("AES-Twofish-Serpent", 0.8e9)];
    let row = |(name, rate): (&str, f64), buffer: usize| {
        let rate = rate * if buffer < 1 << 20 { 0.6 } else { 1.0 };
        let samples: Vec<f64> = [0.97, 1.0, 1.02].map(|f| f * rate).to_vec();
        CipherSpeed {
            cipher: name.into(),
            buffer_bytes: buffer,
            threads: 2,
            piece_bytes: buffer,
            sector_bytes: 512,
            acceleration: AesAcceleration::On,
            aes_instructions: name.starts_with("AES"),
            kernel: "a kernel".into(),
            encrypt_bytes_per_s: rate,
            decrypt_bytes_per_s: rate * 1.01,
            mean_bytes_per_s: rate * 1.005,
            repeats: 3,
            passes: 9,
            encrypt_spread: Spread::of(&samples),
            decrypt_spread: Spread::of(&samples),
            encrypt_samples: samples.clone(),
            decrypt_samples: samples,
            cpu_model: "a processor".into(),
            program_version: "0".into(),
            measured_at: "2026-11-22T03:00:00Z".into(),
        }
    };
    benchmark::BUFFERS[..5].iter().flat_map(|&buffer| names.map(|name| row(name, buffer))).collect()
}
