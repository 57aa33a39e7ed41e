//! The machine that something was measured on, and what disturbed it.

use serde::{Deserialize, Serialize};

use crate::model::ciphers::CipherKernels;

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
    pub cipher_kernels: Vec<CipherKernels>,
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

/// The state of the machine while something was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Mean clock frequency of the processors in MHz, if the system reports it.
    pub mhz: Option<f64>,
    /// Share of the processors' time that a hypervisor took.
    pub steal_share: f64,
    /// How often a processor was thermally throttled, if the system reports it.
    pub throttled: Option<u64>,
    /// Whether the page cache was dropped before.
    pub caches_dropped: bool,
}
