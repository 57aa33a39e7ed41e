//! The state of the machine while something is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::meter::{Meter, Processors, processors};
use crate::measure::processes::ProcessTimes;
use crate::measure::run::energy::EnergyCounters;
use crate::model::machine::{Conditions, OtherLoad};

/// Processor state, on systems that report it.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Seconds between two ticks, at which the kernel samples who uses a processor: usually there are 250 in a second.
const TICK_S: f64 = 0.004;

/// Seconds by which the numbers of /proc may be rounded: they are hundredths, at the beginning and the end.
const ROUNDED_S: f64 = 0.02;

/// The state of the machine before.
#[derive(Clone, Debug)]
pub struct Watch {
    before: Processors,
    times: ProcessTimes,
    began: Instant,
    /// Microseconds.
    pressure: [Option<u64>; 2],
    mhz: Option<f64>,
    throttled: Option<u64>,
    energy: EnergyCounters,
}

impl Watch {
    /// Begins now.
    pub fn start() -> Self {
        Self {
            mhz: mhz(),
            throttled: throttled(Path::new(PROCESSORS)),
            pressure: PRESSURE.map(pressure),
            energy: EnergyCounters::now(),
            times: ProcessTimes::now(),
            before: processors(),
            began: Instant::now(),
        }
    }

    /// What happened up to now. The clock frequency is the mean of its values before and after the work.
    pub fn conditions(self, caches_dropped: bool) -> Conditions {
        let (seconds, times, now) = (self.began.elapsed().as_secs_f64(), ProcessTimes::now(), processors());
        let [cpu_pressure, io_pressure] = [0, 1].map(|i| {
            let waited_us = pressure(PRESSURE[i])?.checked_sub(self.pressure[i]?)?;
            (seconds > 0.0).then(|| (waited_us as f64 / 1e6 / seconds).min(1.0))
        });
        let others = other_load(seconds, &self.before, &now, times.since(&self.times));
        let total = now.total_s - self.before.total_s;
        let steal = now.steal_s - self.before.steal_s;
        let mean = |(before, after): (f64, f64)| (before + after) / 2.0;
        let since = |(before, after): (u64, u64)| after.saturating_sub(before);
        Conditions {
            mhz: self.mhz.zip(mhz()).map(mean),
            steal_share: if total > 0.0 { (steal / total).clamp(0.0, 1.0) } else { 0.0 },
            throttled: self.throttled.zip(throttled(Path::new(PROCESSORS))).map(since),
            energy_j: EnergyCounters::now().since(&self.energy),
            caches_dropped,
            others: Some(OtherLoad { cpu_pressure, io_pressure, ..others }),
        }
    }
}

/// What other programs did in this time: the processors' time without the `own_s` seconds of the lab's processes and kernel
/// threads.
///
/// The time of processes is exact, that of processors is a sample: each tick is charged whole to the process that has
/// the processor at that moment. The deviation of such a sum is at most the square root of the number of busy ticks,
/// and half the square root of all ticks. Up to three deviations are attributed to chance.
fn other_load(seconds: f64, before: &Processors, now: &Processors, own_s: f64) -> OtherLoad {
    let used_s = now.programs_s - before.programs_s;
    let most_s = used_s.min((now.total_s - before.total_s) / 4.0).max(0.0);
    OtherLoad {
        seconds,
        cpu_s: (used_s - own_s).max(0.0),
        chance_s: 3.0 * (most_s * TICK_S).sqrt() + ROUNDED_S,
        ..OtherLoad::default()
    }
}

/// What processes may wait for.
const PRESSURE: [&str; 2] = ["cpu", "io"];

/// Microseconds since the start of the machine in which any process waited for this, where the kernel counts them
/// (Documentation/accounting/psi.rst).
fn pressure(of: &str) -> Option<u64> {
    let text = fs::read_to_string(Path::new("/proc/pressure").join(of)).ok()?;
    text.lines().find(|line| line.starts_with("some "))?.rsplit_once("total=")?.1.parse().ok()
}

/// Processor seconds that the machine uses in a second when this program does nothing, measured for so long.
pub fn idle_cpu(time: Duration) -> f64 {
    let meter = Meter::start();
    thread::sleep(time);
    let elapsed = meter.elapsed();
    elapsed.cpu_s / elapsed.seconds
}

/// The mean clock of all processors: what /proc/cpuinfo says, or what the frequency driver says.
fn mhz() -> Option<f64> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    mean(&clocks(&cpuinfo)).or_else(|| {
        let khz = |folder: PathBuf| number(&folder.join("cpufreq/scaling_cur_freq"));
        let all: Vec<f64> = each(Path::new(PROCESSORS)).filter_map(khz).map(|khz| khz as f64 / 1000.0).collect();
        mean(&all)
    })
}

/// The lines `cpu MHz : 2400.000`.
fn clocks(cpuinfo: &str) -> Vec<f64> {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(name, _)| name.trim() == "cpu MHz").filter_map(|(_, mhz)| mhz.trim().parse().ok()).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// How often any processor was throttled for its temperature since the start of the machine; `None` if the kernel does
/// not count.
fn throttled(processors: &Path) -> Option<u64> {
    let times = |folder: PathBuf| number(&folder.join("thermal_throttle/core_throttle_count"));
    each(processors).filter_map(times).reduce(|a, b| a + b)
}

/// The folders `cpu0`, `cpu1`, …
fn each(processors: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(processors).into_iter().flatten().flatten();
    let is_one = |name: &str| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_one)).map(|entry| entry.path())
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read() {
        let cpuinfo =
            "processor\t: 0\ncpu MHz\t\t: 2400.000\nmodel name : x\n\nprocessor\t: 1\ncpu MHz\t\t: 2600.500\n";
        assert_eq!(clocks(cpuinfo), [2400.0, 2600.5]);
        assert_eq!(mean(&clocks("Features : aes\n")), None);
    }

    #[test]
    fn throttling_is_summed_over_processors() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(throttled(folder.path()), None);
        for (name, count) in [("cpu0", "3\n"), ("cpu12", "4\n"), ("cpufreq", "100\n")] {
            let counters = folder.path().join(name).join("thermal_throttle");
            fs::create_dir_all(&counters).expect("a folder");
            fs::write(counters.join("core_throttle_count"), count).expect("written");
        }
        assert_eq!(throttled(folder.path()), Some(7));
    }

    #[test]
    fn others_are_what_is_busy_and_not_the_labs() {
        let processors =
            |programs_s| Processors { busy_s: programs_s, programs_s, steal_s: 0.0, total_s: 2.0 * programs_s };
        let load = |own_s| other_load(10.0, &processors(100.0), &processors(110.0), own_s);
        // First the lab uses all of the time, then all but half a processor; then others use a little less, and a
        // little more, than chance explains.
        assert!(!load(10.0).disturbs() && load(10.0).cpu_s == 0.0 && load(11.0).cpu_s == 0.0);
        assert!(load(5.0).disturbs() && (load(5.0).processors() - 0.5).abs() < 1e-9);
        // Three deviations are 0.44 s here, and 5 % of a processor is 0.5 s.
        assert!((load(10.0).chance_s - (3.0 * 0.02f64.sqrt() + 0.02)).abs() < 1e-9);
        assert!(!load(9.1).disturbs() && load(9.0).disturbs());
    }

    #[test]
    fn conditions_are_shares() {
        let watch = Watch::start();
        let mut sum = 0u64;
        while processors().total_s - watch.before.total_s < 0.03 {
            sum = std::hint::black_box(sum + 1);
        }
        let conditions = watch.conditions(true);
        assert!((0.0..=1.0).contains(&conditions.steal_share) && conditions.caches_dropped);
        let others = conditions.others.expect("they are watched");
        assert!(others.seconds > 0.0 && others.chance_s > 0.0);
    }
}
