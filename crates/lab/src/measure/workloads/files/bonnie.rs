//! Bonnie++, the real program.

use std::path::Path;
use std::process::Command;

use super::{in_fresh_folder, size_for};
use crate::measure::program::OutputPiece;
use crate::measure::workloads::filesystems::{self, FILESYSTEMS};
use crate::measure::workloads::prelude::*;

/// The file of the study: 4 GB, twice the memory of its machine.
const FULL: u64 = 4 << 30;

/// Bytes that it writes and reads one at a time, whatever the size of the file: found by strace in 2.00a.
const SINGLE_BYTES: u64 = 3 << 20;

/// Random seeks, its default.
const SEEKS: u64 = 8192;

/// What it does, in its order.
const STEPS: [Step; 12] = [
    step("Writing a byte at a time...", "write by character", 9, Counts::Characters),
    step("Writing intelligently...", "write", 11, Counts::Bytes),
    step("Rewriting...", "rewrite", 13, Counts::Bytes),
    step("Reading a byte at a time...", "read by character", 15, Counts::Characters),
    step("Reading intelligently...", "read", 17, Counts::Bytes),
    step("start 'em...", "random seeks", 19, Counts::Seeks),
    step("Create files in sequential order...", "create, in order", 26, Counts::Files),
    step("Stat files in sequential order...", "stat, in order", 28, Counts::Files),
    step("Delete files in sequential order...", "delete, in order", 30, Counts::Files),
    step("Create files in random order...", "create, at random", 32, Counts::Files),
    step("Stat files in random order...", "stat, at random", 34, Counts::Files),
    step("Delete files in random order...", "delete, at random", 36, Counts::Files),
];

const fn step(begins: &'static str, operation: &'static str, field: usize, counts: Counts) -> Step {
    Step { begins, operation, field, counts }
}

/// How often it is repeated if the times of its steps cannot be determined.
const TRIES: usize = 3;

/// One of its tests.
struct Step {
    /// What it says when it begins.
    begins: &'static str,
    operation: &'static str,
    /// Where the figure is in its CSV, from 0 (bon_csv2txt(1)).
    field: usize,
    counts: Counts,
}

/// What a figure counts.
#[derive(Clone, Copy, PartialEq)]
enum Counts {
    /// KiB per second, of [`SINGLE_BYTES`].
    Characters,
    /// KiB per second, of the file.
    Bytes,
    /// Per second, of [`SEEKS`].
    Seeks,
    /// Per second, of the files.
    Files,
}

/// How much of it is done.
#[derive(Clone, Copy)]
struct Extent {
    /// Size of the file in MiB.
    mib: u64,
    /// Files, in units of 1024; without any, nothing is done with files.
    files: u64,
    /// Whether characters are written and read one by one.
    characters: bool,
    /// Whether it flushes after each write (`-b`).
    synchronous: bool,
}

/// Bonnie++.
pub(super) static BONNIE: Workload = Workload {
    name: "bonnie++",
    title: "Bonnie++",
    measures: |plan| {
        let Extent { mib, files, characters, synchronous } = Extent::of(plan);
        format!(
            "A file of {mib} MiB is written, rewritten and read in blocks of 8 KiB{}; {SEEKS} random seeks in it by \
                five processes; and {} empty files are created, queried and deleted in order and at random{}, as in \
                Zhan 2010. The number of busy processors is that of the whole machine, between the program's progress \
                lines: the program's own figure omits servers and kernel threads.",
            if characters { " and byte by byte" } else { "" },
            files * 1024,
            if synchronous { ", each write followed by a flush (-b)" } else { "" },
        )
    },
    not: "Bonnie++ wants a file of twice the memory; the option -r 0 overrides that. What it reads and rewrites here \
        may come from the page cache, which involves no encryption. Files are created and deleted without a flush \
        unless a study asks for one. For a step of less than half a second the program prints +++++; the figure is \
        then the same count over the time between its lines, which agrees within a few percent wherever both exist.",
    on: On::Files,
    parameters: &["size", "count", "characters", "synchronous", FILESYSTEMS],
    missing: || program::missing(&["bonnie++"]),
    version: || {
        // bonnie++ does not know this option and prints its usage. Without an option, it would start to measure.
        let usage = Command::new(program::find("bonnie++")?).arg("--help").output().ok()?;
        let usage = String::from_utf8_lossy(&usage.stderr).into_owned();
        let version = usage.lines().find_map(|line| line.strip_prefix("Version: "))?;
        Some(format!("bonnie++ {}", version.trim()))
    },
    estimate_s: |plan| {
        let extent = Extent::of(plan);
        let characters = if extent.characters { 8.0 } else { 0.0 };
        let files = extent.files as f64 * if extent.synchronous { 5.0 } else { 0.3 };
        (4.0 + characters + extent.mib as f64 / 80.0 + files) * filesystems::times(&BONNIE, plan) as f64
    },
    room: |plan| {
        let extent = Extent::of(plan);
        (extent.mib << 20) + (extent.mib << 16) + extent.files * (1024 << 10) + (4 << 20)
    },
    run: |target, lab| {
        filesystems::on_each(&BONNIE, target, lab, |target, kind| {
            in_fresh_folder(&target.folder_of(kind)?, |folder| bonnie(folder, Extent::of(&lab.plan), lab))
        })
    },
    ..Workload::PLAIN
};

impl Extent {
    fn of(plan: &Plan) -> Self {
        let study = plan.parameters(BONNIE.name).cloned().unwrap_or_default();
        let scaled_count = |count: u64| ((count as f64 * plan.scale) as u64).max(count.min(1));
        Self {
            mib: size_for(&BONNIE, plan, FULL, 32 << 20) >> 20,
            files: study.count.map_or(plan.level.choose([8, 16, 64]), scaled_count),
            characters: study.characters.unwrap_or(plan.level != Level::Quick),
            synchronous: study.synchronous.unwrap_or_default(),
        }
    }

    /// The number of items that the step counts.
    fn count(self, counts: Counts) -> u64 {
        match counts {
            Counts::Characters => SINGLE_BYTES,
            Counts::Bytes => self.mib << 20,
            Counts::Seeks => SEEKS,
            Counts::Files => self.files * 1024,
        }
    }

    fn steps(self) -> impl Iterator<Item = &'static Step> {
        STEPS.iter().filter(move |step| match step.counts {
            Counts::Characters => self.characters,
            Counts::Files => self.files > 0,
            Counts::Bytes | Counts::Seeks => true,
        })
    }
}

fn bonnie(folder: &Path, extent: Extent, lab: &Lab) -> Result<WorkloadOutcome> {
    let mut command = Command::new(program::find("bonnie++").unwrap_or("bonnie++".into()));
    command.arg("-d").arg(folder);
    command.args(["-s", &extent.mib.to_string(), "-r", "0", "-n", &extent.files.to_string(), "-m", "claviger"]);
    command.args(["-z", &(lab.plan.seed % (1 << 31)).to_string()]);
    if !extent.characters {
        command.arg("-f");
    }
    if extent.synchronous {
        command.arg("-b");
    }
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    for _ in 0..TRIES {
        lab.drop_caches()?;
        let ran = program::run(&mut command, lab.cancelled)?;
        if let Some(measures) = measures(&program::text(&ran.output), &ran.errors, extent)? {
            return Ok(measures.into());
        }
    }
    Err(strange("a step ended before its beginning was seen"))
}

/// The figures, from its CSV and its progress lines. `None` if two of those lines were read at once, as may happen for a
/// short step on a busy machine.
fn measures(output: &str, messages: &[OutputPiece], extent: Extent) -> Result<Option<Vec<Measure>>> {
    let fields = fields(output)?;
    let mut measures = Vec::new();
    for step in extent.steps() {
        let Some(took) = took(step, messages)? else { return Ok(None) };
        let count = extent.count(step.counts);
        let case = Case::new(step.operation);
        let measure = match step.counts {
            Counts::Characters | Counts::Bytes => Measure::rate(case, count, took),
            Counts::Seeks | Counts::Files => Measure::per_s(case, count, took),
        };
        let unit = if measure.unit == Unit::BytesPerS { 1024.0 } else { 1.0 };
        let printed = printed(&fields, step)?;
        let value = printed.map_or(measure.value, |printed| printed * unit);
        measures.push(Measure { value, seconds: count as f64 / value, ..measure });
        measures.push(Measure::cpu_share(Case::new(format!("{}, processors busy", step.operation)), took));
    }
    Ok(Some(measures))
}

/// The fields of the last line of its CSV.
fn fields(output: &str) -> Result<Vec<&str>> {
    // From version 1.9x on it has 49 fields or so; the form's own version is the first.
    let is_csv = |line: &&str| line.starts_with("1.9") && line.split(',').count() > 40;
    let line = output.lines().rfind(is_csv).ok_or_else(|| strange("its output has no line of CSV"))?;
    Ok(line.split(',').collect())
}

/// Its own figure; `None` if it was too quick for one.
fn printed(fields: &[&str], step: &Step) -> Result<Option<f64>> {
    match fields.get(step.field) {
        Some(field) if field.starts_with('+') => Ok(None),
        Some(field) => match field.parse() {
            Ok(figure) if figure > 0.0 => Ok(Some(figure)),
            _ => Err(strange(&format!("{} is {field:?} in its CSV", step.operation))),
        },
        None => Err(strange("its CSV is too short")),
    }
}

/// From what it says when the step begins to its last `done` before the next step's beginning; `None` if both were
/// heard at once.
fn took(step: &Step, messages: &[OutputPiece]) -> Result<Option<Elapsed>> {
    let text = program::text(messages);
    let times = || {
        let begin = text.find(step.begins)? + step.begins.len();
        let next = STEPS.iter().filter_map(|other| text[begin..].find(other.begins)).min();
        let until = next.map_or(text.len(), |next| begin + next);
        let end = begin + text[begin..until].rfind("done")? + "done".len();
        Some(program::read_after(messages, end)?.since(program::read_after(messages, begin)?))
    };
    let took =
        times().ok_or_else(|| strange(&format!("it did not say when it began and ended: {}", step.operation)))?;
    Ok((took.seconds > 0.0).then_some(took))
}

fn strange(what: &str) -> Error {
    Error::from(std::io::Error::other(format!("cannot understand bonnie++: {what}")))
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;
    use crate::hostile;
    use crate::measure::lab::tests::lab;

    /// Version 2.00a of Debian 12, in a tmpfs: `-s 4096 -r 0 -n 160:1024:0:4`.
    #[test]
    fn garbled_output_is_an_error_or_gives_figures() {
        let messages = |text: &str| [OutputPiece { after: Elapsed { seconds: 1.0, cpu_s: 0.5 }, text: text.into() }];
        hostile::feed(&[SLOW, FAST], 1000, |text| {
            if let Ok(fields) = fields(text) {
                STEPS.iter().for_each(|step| drop(printed(&fields, step)));
            }
        });
        hostile::feed(&[TOLD], 1000, |text| STEPS.iter().for_each(|step| drop(took(step, &messages(text)))));
    }

    const SLOW: &str = include_str!("../../../../tests/data/bonnie.csv");
    /// The same: `-s 64 -r 0 -f -n 2`, all of which was too short.
    const FAST: &str = include_str!("../../../../tests/data/bonnie-fast.csv");
    const TOLD: &str = include_str!("../../../../tests/data/bonnie-fast.stderr");

    const QUICK: Extent = Extent { mib: 64, files: 2, characters: false, synchronous: false };

    /// Its progress lines, one per second. One processor was busy for half the time.
    fn messages() -> Vec<OutputPiece> {
        let words = TOLD.split_inclusive("...").flat_map(|part| part.split_inclusive('\n'));
        let piece = |(second, text): (usize, &str)| OutputPiece {
            after: Elapsed { seconds: second as f64, cpu_s: second as f64 / 2.0 },
            text: text.into(),
        };
        words.enumerate().map(piece).collect()
    }

    #[test]
    fn its_own_figures_are_taken() {
        let fields = fields(SLOW).unwrap();
        let figures: Vec<f64> = STEPS.iter().map(|step| printed(&fields, step).unwrap().unwrap()).collect();
        let expected = [
            847.0, 278190.0, 1631473.0, 1427.0, 4147761.0, 9499.0, 52253.0, 141818.0, 84466.0, 35152.0, 40443.0,
            37211.0,
        ];
        assert_eq!(figures, expected);
        let measures = measures(SLOW, &messages(), QUICK).unwrap().unwrap();
        assert_eq!((measures[0].value, measures[0].unit), (278_190.0 * 1024.0, Unit::BytesPerS));
        assert_eq!(measures[0].seconds, (64 << 20) as f64 / measures[0].value);
    }

    #[test]
    fn what_is_too_short_for_it_comes_from_the_clock() {
        let measures = measures(FAST, &messages(), QUICK).unwrap().unwrap();
        let value = |operation: &str| {
            let found: Vec<&Measure> = measures.iter().filter(|m| m.case.operation == operation).collect();
            let [one] = found[..] else { panic!("{operation}: {found:?}") };
            (one.value, one.unit, one.bytes)
        };
        assert_eq!(value("write"), ((64 << 20) as f64, Unit::BytesPerS, 64 << 20));
        assert_eq!(value("random seeks"), (8192.0 / 5.0, Unit::PerS, 0)); // five processes are done one after the other
        assert_eq!(value("delete, at random"), (2048.0, Unit::PerS, 0));
        assert_eq!(value("create, in order, processors busy"), (0.5, Unit::Share, 0));
        assert_eq!(measures.len(), 20);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let error = |output: &str, messages: &[OutputPiece]| measures(output, messages, QUICK).unwrap_err().to_string();
        assert!(error("no CSV", &messages()).contains("no line of CSV"));
        assert!(error(FAST, &messages()[..4]).contains("began and ended"));
        let at_once = [OutputPiece { after: Elapsed { seconds: 1.0, cpu_s: 0.5 }, text: TOLD.into() }];
        assert!(measures(FAST, &at_once, QUICK).unwrap().is_none());
        assert!(error(&FAST.replace(",+++++,", ",?,"), &messages()).contains("\"?\""));
        let all = Extent { characters: true, ..QUICK };
        assert!(measures(SLOW, &messages(), all).is_err());
    }

    #[test]
    fn the_program_itself_is_understood() {
        let Some(_) = program::find("bonnie++").or_else(|| tools::program("bonnie++")) else { return };
        assert!((BONNIE.version)().unwrap().starts_with("bonnie++ "));
        let folder = tempfile::tempdir().unwrap();
        let extent = Extent { mib: 16, files: 1, characters: false, synchronous: true };
        let outcome = in_fresh_folder(folder.path(), |fresh| bonnie(fresh, extent, &lab())).unwrap();
        assert_eq!(outcome.measures.len(), 20);
        assert!(outcome.measures.iter().all(|m| m.value > 0.0 || m.unit == Unit::Share), "{:?}", outcome.measures);
        let error = bonnie(&folder.path().join("none"), extent, &lab()).unwrap_err().to_string();
        assert!(error.contains("bonnie++ failed"), "{error}");
    }
}
