//! What was measured on, and what disturbed it: without these, a figure says little.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::meter::processors;
use crate::suites;

/// Facts about this machine and this run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name.
    pub cpu_model: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Processor features that the kernels can make use of, as /proc/cpuinfo names them.
    pub cpu_features: Vec<String>,
    /// For each cipher, the kernel that `AES acceleration` being on or off chooses.
    pub cipher_kernels: Vec<suites::Chosen>,
    /// Kind and release of the operating system's kernel.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: String,
    /// This program's version.
    pub program_version: String,
    /// The command line.
    pub command_line: Vec<String>,
}

/// The processor features worth telling: what AES, XTS and bit-sliced kernels choose by.
const FEATURES: &[&str] = &[
    "sse2",
    "ssse3",
    "sse4_1",
    "aes",
    "pclmulqdq",
    "avx",
    "avx2",
    "vaes",
    "vpclmulqdq",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "gfni",
    "asimd",
    "pmull",
];

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let flags = field(&cpuinfo, "flags").or_else(|| field(&cpuinfo, "Features")).unwrap_or_default();
        let has = |f: &&&str| flags.split_whitespace().any(|flag| flag == **f);
        Self {
            cpu_model: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            cpus: cpus(),
            cpu_features: FEATURES.iter().filter(has).map(ToString::to_string).collect(),
            cipher_kernels: suites::chosen(),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            memory_bytes: memory("MemTotal"),
            huge_pages: bracketed(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            program_version: env!("CARGO_PKG_VERSION").into(),
            command_line: std::env::args().collect(),
        }
    }
}

/// Processors that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Available memory in bytes, without swapping.
pub fn memory_available() -> u64 {
    memory("MemAvailable")
}

/// How busy the machine was with other things at some moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Moment {
    /// Date and time, UTC, ISO 8601.
    pub at: String,
    /// Load average of the last minute.
    pub load_1min: f64,
    /// Seconds, summed over the processors since the start of the machine, that a hypervisor took for other guests.
    pub steal_s: f64,
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

/// Seconds since 1970 as a date of the Gregorian calendar and a time of day, `2012-02-07` and `11:09:05`, in UTC.
pub fn date_and_time(seconds: i64) -> (String, String) {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // In years that begin in March (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
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
    fn this_machine_is_known() {
        let machine = Machine::this();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.cipher_kernels.is_empty());
        assert_eq!(bracketed("always [madvise] never\n"), "madvise");
    }
}
