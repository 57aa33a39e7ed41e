//! What a piece of work took, and in what state the machine was in the meantime.

use std::fs;
use std::time::Instant;

use crate::model::figures::Elapsed;

/// A clock that was started.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    started: Instant,
    busy_s: f64,
}

impl Meter {
    /// Starts now.
    pub fn start() -> Self {
        Self { busy_s: processors().busy_s, started: Instant::now() }
    }

    /// What it took up to now.
    pub fn elapsed(&self) -> Elapsed {
        let seconds = self.started.elapsed().as_secs_f64();
        Elapsed { seconds, cpu_s: (processors().busy_s - self.busy_s).max(0.0) }
    }
}

/// Processor time since the start of the machine, over all processors, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// Everything but idling, waiting for disks, and what a hypervisor took.
    pub busy_s: f64,
    /// What processes and kernel threads used of that: without interrupts.
    pub programs_s: f64,
    /// What a hypervisor took for other guests.
    pub steal_s: f64,
    /// All of it.
    pub total_s: f64,
}

/// Up to now: the first line of /proc/stat (proc_stat(5)), which counts hundredths of seconds: USER_HZ is 100 on every
/// architecture that this program runs on.
pub fn processors() -> Processors {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<f64> = stat
        .lines()
        .next()
        .map(|line| line.split_whitespace().skip(1).filter_map(|w| w.parse().ok()).collect())
        .unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time is in user time already.
    let at = |i: usize| ticks.get(i).copied().unwrap_or(0.0) / 100.0;
    let busy_s = [0, 1, 2, 5, 6].map(at).iter().sum();
    Processors { busy_s, programs_s: [0, 1, 2].map(at).iter().sum(), steal_s: at(7), total_s: (0..8).map(at).sum() }
}
