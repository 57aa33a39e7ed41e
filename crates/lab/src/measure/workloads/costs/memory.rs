//! How much memory open volumes take.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use super::processes;
use super::{SMALL, another, several};
use crate::measure::transfer::{self, Transfer, TransferDirection};
use crate::measure::workloads::prelude::*;

/// How many volumes are open at once.
const VOLUMES: &[usize] = &[1, 3, 8];

/// How long servers get to settle.
const SETTLE: Duration = Duration::from_millis(200);

/// The bytes that are read before memory is measured again.
const READ: Transfer =
    Transfer { direction: TransferDirection::Read, block: 1 << 20, size: SMALL, limit: Duration::from_secs(60) };

/// Memory of the processes that serve open volumes.
pub static MEMORY: Workload = Workload {
    name: "memory",
    title: "Memory of open volumes",
    measures,
    not: "Kernel memory, such as the page cache and its buffers for FUSE, is not counted, so a facility inside the \
        kernel has no figure. Memory that a key derivation uses while it runs is not counted either.",
    on: On::Itself,
    estimate_s: |plan| volumes(plan).last().map_or(1.0, |count| *count as f64 * 0.6),
    room: |_| SMALL,
    run,
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let volumes = match volumes(plan) {
        [] | [_] => "one open volume".to_owned(),
        _ => "1, 3 and 8 open volumes, all but the first of them 64 MiB large,".to_owned(),
    };
    format!(
        "Proportional set size (each sharing process counts its part of a shared page) of the processes that serve \
            {volumes}: at rest, just after opening, and after reading 64 MiB from one volume. Where a facility \
            provides a folder, a large file in it is read. Other processes of the same program make the figures \
            smaller. Beside it, the bytes of the program's file and of the shared libraries that it has loaded."
    )
}

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    // Writes everything that is read below, and closes the target: the measured servers only read.
    target.bytes()?;
    target.close()?;
    let mut measures = Vec::new();
    for &count in volumes(&lab.plan) {
        measures.push(at_rest(target, lab, count)?);
        target.close()?;
    }
    target.open()?;
    transfer::run(target.bytes()?.device()?.as_mut(), &lab.data, &READ, 0)?;
    let serving = serving([&*target])?;
    measures.push(taken(Case::new("one volume, after reading 64 MiB"), &serving)?);
    measures.extend(on_disk(&serving)?);
    Ok(measures.into())
}

/// Opens it and others of the same kind, `count` in all. The others are removed afterwards.
fn at_rest(target: &mut FacilityTarget, lab: &Lab, count: usize) -> Result<Measure> {
    target.open()?;
    let mut others = Vec::new();
    for _ in 1..count {
        lab.go_on()?;
        let mut other = another(target, lab, SMALL)?;
        other.open()?;
        others.push(other);
    }
    thread::sleep(SETTLE);
    let serving = serving([&*target].into_iter().chain(&others))?;
    taken(Case::new("at rest").at(Axis::Volumes, count as f64), &serving)
}

/// How many are opened under this plan.
fn volumes(plan: &Plan) -> &'static [usize] {
    if several(plan) { VOLUMES } else { &VOLUMES[..1] }
}

/// The processes of all these.
fn serving<'a>(targets: impl IntoIterator<Item = &'a FacilityTarget>) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for target in targets {
        let processes = target.processes();
        if processes.is_empty() {
            return Err(Error::unsupported("the memory of work done in the kernel, which cannot be attributed"));
        }
        all.extend(processes);
    }
    Ok(all)
}

fn taken(case: Case, processes: &[u32]) -> Result<Measure> {
    Ok(bytes(case, processes::memory(processes)?))
}

fn bytes(case: Case, value: u64) -> Measure {
    Measure { case, value: value as f64, unit: Unit::Bytes, bytes: 0, seconds: 0.0, cpu_s: None }
}

/// The files of the programs that these processes run, and of the shared libraries that they have loaded, each once.
fn on_disk(processes: &[u32]) -> Result<[Measure; 2]> {
    let (mut programs, mut libraries) = (BTreeMap::new(), BTreeMap::new());
    for process in processes {
        let program = format!("/proc/{process}/exe");
        let len = fs::metadata(&program).map_err(|e| Error::from(e).at(program.as_ref()))?.len();
        programs.insert(fs::read_link(&program)?, len);
        let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
        for path in maps.lines().filter_map(library) {
            // A file that was replaced since then is counted with its new contents, or not at all.
            libraries.insert(path.to_owned(), fs::metadata(path).map_or(0, |data| data.len()));
        }
    }
    let sum = |files: &mut dyn Iterator<Item = &u64>| files.sum::<u64>();
    Ok([
        bytes(Case::new("the program on the disk"), sum(&mut programs.values())),
        bytes(Case::new("its shared libraries on the disk"), sum(&mut libraries.values())),
    ])
}

/// The shared library in a line of proc_pid_maps(5).
fn library(line: &str) -> Option<&str> {
    let path = &line[line.find('/')?..];
    let name = path.rsplit('/').next()?;
    (name.ends_with(".so") || name.contains(".so.")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_and_its_libraries_are_counted_once() {
        let own = std::process::id();
        let [program, libraries] = on_disk(&[own, own]).expect("this process");
        let exe = std::env::current_exe().expect("a program").metadata().expect("a file").len();
        assert_eq!(program.value, exe as f64);
        assert!(libraries.value > 0.0, "a test is linked to the C library");
        for (line, found) in [
            ("7f00-7f01 r-xp 00000000 fe:00 1234   /usr/lib/x86_64-linux-gnu/libc.so.6", true),
            ("7f00-7f01 r--p 00000000 fe:00 1235   /usr/lib/libz.so", true),
            ("7f00-7f01 r--p 00000000 fe:00 1236   /usr/bin/claviger", false),
            ("7f00-7f01 rw-p 00000000 00:00 0      [heap]", false),
        ] {
            assert_eq!(library(line).is_some(), found, "{line}");
        }
    }
}
