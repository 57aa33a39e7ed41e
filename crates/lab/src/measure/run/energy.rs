//! The energy that the processors used, where the machine counts it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Counters of energy, on processors of Intel and AMD whose kernel has the driver intel_rapl
/// (Documentation/power/powercap/powercap.rst).
const COUNTERS: &str = "/sys/class/powercap";

/// What the counters of whole processors say, by their names: microjoules, and where they begin again at 0.
#[derive(Clone, Debug, Default)]
pub struct EnergyCounters(BTreeMap<String, (u64, u64)>);

impl EnergyCounters {
    /// Now. Only root may read them.
    pub fn now() -> Self {
        Self::below(Path::new(COUNTERS))
    }

    fn below(folder: &Path) -> Self {
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        // `intel-rapl:0` is a processor; `intel-rapl:0:1` is a part of it.
        let whole = names.filter(|name| name.matches(':').count() == 1);
        let number = |name: &str, file: &str| -> Option<u64> {
            fs::read_to_string(folder.join(name).join(file)).ok()?.trim().parse().ok()
        };
        let counter = |name: String| {
            let read = (number(&name, "energy_uj")?, number(&name, "max_energy_range_uj")?);
            Some((name, read))
        };
        Self(whole.filter_map(counter).collect())
    }

    /// Joules since an earlier reading; `None` without counters. A counter may have wrapped once in between.
    pub fn since(&self, before: &Self) -> Option<f64> {
        let used = |(name, (now, range)): (&String, &(u64, u64))| {
            let (then, _) = before.0.get(name)?;
            Some(now.checked_sub(*then).unwrap_or_else(|| (range - then.min(range)).saturating_add(*now)))
        };
        let all: Vec<u64> = self.0.iter().filter_map(used).collect();
        (!all.is_empty()).then(|| all.iter().sum::<u64>() as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_summed_and_their_parts_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let set = |name: &str, energy: u64| {
            let counter = folder.path().join(name);
            fs::create_dir_all(&counter).expect("a folder");
            fs::write(counter.join("energy_uj"), format!("{energy}\n")).expect("written");
            fs::write(counter.join("max_energy_range_uj"), "1000000\n").expect("written");
        };
        let none = EnergyCounters::below(folder.path());
        assert_eq!(none.since(&none), None);
        for (name, energy) in [("intel-rapl:0", 100), ("intel-rapl:1", 999_000), ("intel-rapl:0:0", 7)] {
            set(name, energy);
        }
        let before = EnergyCounters::below(folder.path());
        set("intel-rapl:0", 500_100);
        // It began again.
        set("intel-rapl:1", 1000);
        set("intel-rapl:0:0", 900_000);
        assert_eq!(EnergyCounters::below(folder.path()).since(&before), Some(0.502));
        assert_eq!(none.since(&before), None);
    }
}
