//! Dbench, the real program.

use std::path::Path;
use std::process::Command;

use super::in_fresh_folder;
use crate::measure::program::OutputPiece;
use crate::measure::workloads::prelude::*;

/// Bytes that a client's files take, about: found with du while eight ran.
const CLIENT: u64 = 24 << 20;

/// The shortest run in seconds. The last second does not count towards the figure.
const LEAST_S: f64 = 3.0;

/// Dbench.
pub(super) static DBENCH: Workload = Workload {
    name: "dbench",
    title: "Dbench",
    measures: |plan| {
        let clients: Vec<String> = clients(plan).iter().map(ToString::to_string).collect();
        format!(
            "Throughput of {} clients that replay the load of an office file server (NetBench), {} s each, and the time of the longest \
             request. Ahlstedt and Granath Karlsson 2013 ran it with 1, 6, 12, 48, 128 and 256 clients.",
            clients.join(", "),
            seconds(plan)
        )
    },
    not: "Most of the data never leave the page cache: files are deleted before they are written back, and little is \
        flushed. The program's own default is 600 s; its figure is the mean up to the last full second. The longest \
        time is that of a single request.",
    on: On::Files,
    parameters: &["clients", "seconds"],
    missing: || program::missing(&["dbench"]),
    version: || program::version(Command::new("dbench").arg("--help")),
    estimate_s: |plan| {
        // A fifth of the time is added to warm up; to start and to delete takes longer with more clients.
        let each = |clients: &u32| f64::from(seconds(plan)) * 1.2 + 1.0 + f64::from(*clients) / 20.0;
        clients(plan).iter().map(each).sum()
    },
    room: |plan| clients(plan).iter().map(|clients| u64::from(*clients) * CLIENT).max().unwrap_or(0) + (4 << 20),
    run: |target, lab| {
        let folder = target.folder()?;
        let mut outcome = WorkloadOutcome::default();
        for clients in clients(&lab.plan) {
            let of_these = in_fresh_folder(&folder, |fresh| dbench(fresh, clients, seconds(&lab.plan), lab))?;
            outcome.measures.extend(of_these);
        }
        Ok(outcome)
    },
    ..Workload::PLAIN
};

fn clients(plan: &Plan) -> Vec<u32> {
    let level = plan.level.choose([&[1, 6][..], &[1, 6, 12, 48], &[1, 6, 12, 48, 128, 256]]);
    let Some(study) = plan.parameters(DBENCH.name).filter(|study| !study.clients.is_empty()) else {
        return level.to_vec();
    };
    // The numbers of clients whose files fit, and always the first, so that a lack of room is reported.
    let fits = |clients: u32| u64::from(clients) * CLIENT <= plan.size / 2;
    study.clients.iter().enumerate().filter(|(i, clients)| *i == 0 || fits(**clients)).map(|(_, n)| *n).collect()
}

/// Seconds to run for each number of clients. The last second does not count towards the figure.
fn seconds(plan: &Plan) -> u32 {
    let study = plan.parameters(DBENCH.name).and_then(|study| study.seconds);
    study.map_or(plan.level.choose([3, 6, 30]), |seconds| (seconds * plan.scale).max(LEAST_S) as u32)
}

fn dbench(folder: &Path, clients: u32, seconds: u32, lab: &Lab) -> Result<Vec<Measure>> {
    let mut command = Command::new("dbench");
    command.arg("-D").arg(folder).args(["-t", &seconds.to_string(), &clients.to_string()]);
    lab.drop_caches()?;
    let found = DbenchResult::in_output(&program::run(&mut command, lab.cancelled)?.output)?;
    let case = |operation: &str| Case::new(operation).at(Axis::Clients, f64::from(clients));
    let Elapsed { seconds, cpu_s } = found.took;
    let (bytes, cpu_s) = ((found.bytes_per_s * seconds) as u64, Some(cpu_s));
    let throughput =
        Measure { bytes, value: found.bytes_per_s, ..Measure::rate(case("throughput"), bytes, found.took) };
    let latency = found.longest_s;
    let longest =
        Measure { case: case("longest request"), value: latency, unit: Unit::Seconds, bytes: 0, seconds, cpu_s };
    Ok(vec![throughput, longest])
}

/// What it found.
#[derive(Debug, PartialEq)]
struct DbenchResult {
    bytes_per_s: f64,
    longest_s: f64,
    /// The time of the throughput, and its part of the processor time since the clients began. Warming up is the same work, so
    /// processor time is split evenly.
    took: Elapsed,
}

impl DbenchResult {
    /// From its last line, `Throughput 549.07 MB/sec  2 clients  2 procs  max_latency=140.086 ms`, of megabytes of 10^6
    /// bytes, and the line before, which has the time, `2  329854  549.07 MB/sec  execute  5 sec  latency 16.085 ms`.
    fn in_output(output: &[OutputPiece]) -> Result<Self> {
        let text = program::text(output);
        let found = || {
            let last = text.lines().rfind(|line| line.starts_with("Throughput "))?;
            let megabytes: f64 = between(last, "Throughput ", " MB/sec")?.parse().ok()?;
            let longest_ms: f64 = between(last, "max_latency=", " ms")?.parse().ok()?;
            let begin = text.find("releasing clients")? + "releasing clients".len();
            let progress = text.rfind(" MB/sec  execute ")?;
            let line = progress + text[progress..].find('\n')?;
            let seconds: f64 = between(&text[progress..line], "execute", "sec")?.trim().parse().ok()?;
            let whole = program::read_after(output, line)?.since(program::read_after(output, begin)?);
            let cpu_s = whole.cpu_s * (seconds / whole.seconds).min(1.0);
            let took = Elapsed { seconds, cpu_s };
            let sound = megabytes > 0.0 && seconds > 0.0 && whole.seconds > 0.0;
            sound.then_some(Self { bytes_per_s: megabytes * 1e6, longest_s: longest_ms / 1e3, took })
        };
        found().ok_or_else(|| Error::from(std::io::Error::other(strange(&text))))
    }
}

fn strange(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    format!("dbench printed no throughput: the clients did not complete a second of work. Its last line: {last}")
}

/// What stands between two words of a line.
fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(before)?;
    rest.split_once(after).map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;
    use crate::hostile;
    use crate::measure::lab::tests::lab;

    /// Version 4.00 of Debian 12, in a tmpfs: `dbench -t 6 2`.
    #[test]
    fn garbled_output_is_an_error_or_gives_figures() {
        hostile::feed(&[OUTPUT], 2000, |text| {
            let half = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
            let piece = |seconds, text: &str| OutputPiece { after: Elapsed { seconds, cpu_s: 0.5 }, text: text.into() };
            let _ = DbenchResult::in_output(&[piece(1.0, &text[..half]), piece(2.0, &text[half..])]);
        });
    }

    const OUTPUT: &str = include_str!("../../../../tests/data/dbench.txt");

    /// One line per second, during which one and a half processors were busy.
    fn pieces(text: &str) -> Vec<OutputPiece> {
        let piece = |(second, line): (usize, &str)| OutputPiece {
            after: Elapsed { seconds: second as f64, cpu_s: second as f64 * 1.5 },
            text: line.into(),
        };
        text.split_inclusive('\n').enumerate().map(piece).collect()
    }

    #[test]
    fn its_last_line_is_understood() {
        let found = DbenchResult::in_output(&pieces(OUTPUT)).unwrap();
        assert!((found.bytes_per_s / 549.07e6 - 1.0).abs() < 0.01, "{found:?}");
        assert_eq!(found.took, Elapsed { seconds: 5.0, cpu_s: 7.5 });
        assert!(found.longest_s > 0.1 && found.longest_s < 0.2, "{found:?}");
    }

    #[test]
    fn a_run_in_which_nothing_was_done_is_an_error() {
        let never = OUTPUT.lines().filter(|line| !line.contains("execute")).collect::<Vec<_>>().join("\n");
        for output in [never.as_str(), "", "Throughput 0 MB/sec  1 clients  1 procs  max_latency=0.000 ms\n"] {
            let error = DbenchResult::in_output(&pieces(output)).unwrap_err().to_string();
            assert!(error.contains("printed no throughput"), "{error}");
        }
    }

    #[test]
    fn the_program_itself_is_understood() {
        let Some(_) = tools::program("dbench") else { return };
        assert!((DBENCH.version)().unwrap().contains("dbench version"));
        let folder = tempfile::tempdir().unwrap();
        let measures = in_fresh_folder(folder.path(), |fresh| dbench(fresh, 2, 2, &lab())).unwrap();
        assert_eq!((measures[0].case.x, measures[0].case.axis), (Some(2.0), Axis::Clients));
        assert!(measures[0].value > 0.0 && measures[1].value >= 0.0);
        let error = dbench(&folder.path().join("none/none"), 1, 2, &lab()).unwrap_err().to_string();
        assert!(error.contains("dbench"), "{error}");
    }
}
