//! What was measured on, and what disturbed it: without these, a figure says little.

use std::collections::BTreeSet;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use claviger_engine::{Error, Result};
use rustix::thread::CpuSet;

use crate::measure::meter::processors;
use crate::measure::suites;
use crate::model::machine::{Machine, Moment};
use crate::model::words::date_and_time;

/// The processor features that are reported: those by which kernels for AES, XTS and bit-sliced ciphers are chosen.
const FEATURES: &str =
    "sse2 ssse3 sse4_1 aes pclmulqdq avx avx2 vaes vpclmulqdq avx512f avx512bw avx512vl gfni asimd pmull";

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let flags = field(&cpuinfo, "flags").or_else(|| field(&cpuinfo, "Features")).unwrap_or_default();
        let has = |f: &&str| flags.split_whitespace().any(|flag| flag == *f);
        Self {
            cpu_model: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            cpus: cpus(),
            cpu_features: FEATURES.split(' ').filter(has).map(str::to_owned).collect(),
            cipher_kernels: suites::chosen(),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            memory_bytes: memory("MemTotal"),
            governor: governors(&|path| read(path)),
            huge_pages: bracketed(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            program_version: env!("CARGO_PKG_VERSION").into(),
            command_line: std::env::args().collect(),
        }
    }
}

/// The governors of all processors, each once, in the kernel's words (Documentation/admin-guide/pm/cpufreq.rst).
fn governors(read: &dyn Fn(&str) -> String) -> String {
    let of = |cpu| read(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")).trim().to_owned();
    let all: BTreeSet<String> = (0..cpus()).map(of).filter(|governor| !governor.is_empty()).collect();
    all.into_iter().collect::<Vec<_>>().join(", ")
}

/// Processors that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Restricts this thread, and all threads and processes that it starts from now on, to the first `count` of its processors.
///
/// # Errors
/// `Misuse` where there are fewer; `Io`.
pub fn use_only(count: usize) -> Result<()> {
    let may = rustix::thread::sched_getaffinity(None).map_err(std::io::Error::from)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu)).collect();
    let Some(chosen) = all.get(..count).filter(|chosen| !chosen.is_empty()) else {
        return Err(Error::misuse(format!("{count} processors are not available here: there are {}", all.len())));
    };
    let mut set = CpuSet::new();
    chosen.iter().for_each(|cpu| set.set(*cpu));
    Ok(rustix::thread::sched_setaffinity(None, &set).map_err(std::io::Error::from)?)
}

/// Available memory in bytes, without swapping.
pub fn memory_available() -> u64 {
    memory("MemAvailable")
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self {
            at: utc_now(),
            load_1min: read("/proc/loadavg").split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(0.0),
            steal_s: processors().steal_s,
        }
    }
}

/// The date and time, UTC, as ISO 8601.
pub fn utc_now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().filter_map(|l| l.split_once(':')).find(|(n, _)| n.trim() == name).map(|(_, v)| v.trim().to_string())
}

/// A value of /proc/meminfo, in bytes (it counts in units of 1024).
fn memory(name: &str) -> u64 {
    let value = field(&read("/proc/meminfo"), name).unwrap_or_default();
    value.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// `always` of `[always] madvise never`.
fn bracketed(text: &str) -> String {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("unknown", |(word, _)| word).to_string()
}

/// Seconds since 1970 as ISO 8601.
fn utc(seconds: u64) -> String {
    let (date, time) = date_and_time(i64::try_from(seconds).unwrap_or(i64::MAX));
    format!("{date}T{time}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates_across_leap_years() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_289_779_200, "2010-11-15T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn one_processor_is_enough_and_more_than_all_are_refused() {
        // In a thread of its own: the others keep theirs.
        let alone = std::thread::spawn(|| {
            use_only(1).expect("there is one");
            cpus()
        });
        assert_eq!(alone.join().expect("no panic"), 1);
        for count in [0, CpuSet::MAX_CPU] {
            let error = use_only(count).unwrap_err().to_string();
            assert!(error.contains("not available"), "{error}");
        }
    }

    #[test]
    fn governors_are_named_once() {
        assert_eq!(governors(&|_| String::new()), "");
        assert_eq!(governors(&|_| "powersave\n".into()), "powersave");
        let first = |path: &str| if path.contains("/cpu0/") { "performance".into() } else { String::new() };
        assert_eq!(governors(&first), "performance");
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::this();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.cipher_kernels.is_empty());
        assert_eq!(bracketed("always [madvise] never\n"), "madvise");
    }
}
