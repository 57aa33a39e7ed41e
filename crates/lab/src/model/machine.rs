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
    /// The governor of the processors' clock, such as `performance` or `powersave`; empty if the system has none, or in a run of
    /// an older version.
    #[serde(default)]
    pub governor: String,
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
    /// Joules that the processors used, if the system counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Whether the page cache was dropped before.
    pub caches_dropped: bool,
    /// What other programs did during that time; `None` in a run of an older version.
    #[serde(default)]
    pub others: Option<OtherLoad>,
}

/// What programs that the lab did not start did while something was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherLoad {
    /// Seconds that were watched.
    pub seconds: f64,
    /// Processor seconds that other programs used. Kernel threads and interrupts do not count: they write what the lab wrote.
    pub cpu_s: f64,
    /// Processor seconds that may be missing or too many in that, because the kernel counts in ticks.
    pub chance_s: f64,
    /// Share of the time in which any process waited for a processor, the lab's included, if the system reports it.
    pub cpu_pressure: Option<f64>,
    /// The same for disks.
    pub io_pressure: Option<f64>,
    /// How many disturbed passes were made before this one and do not count.
    pub again: usize,
}

/// The processors that other programs may use before a figure counts as disturbed. A pass on one processor can lose that
/// share of its speed, and the losses that the lab is to find begin there.
pub const OTHERS_MAX: f64 = 0.05;

impl OtherLoad {
    /// Processors that other programs used: 1 is one of them, all the time.
    pub fn processors(&self) -> f64 {
        if self.seconds > 0.0 { self.cpu_s / self.seconds } else { 0.0 }
    }

    /// Whether that is more than [`OTHERS_MAX`], and more than chance.
    pub fn disturbs(&self) -> bool {
        self.cpu_s - self.chance_s > OTHERS_MAX * self.seconds
    }
}
