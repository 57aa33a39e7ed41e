//! What every workload and every facility may use.

use std::path::PathBuf;

use claviger_engine::{Error, ErrorKind, Result};

use crate::measure::transfer::Data;
use crate::model::plan::{Caches, Plan};

/// What every workload and every facility may use.
pub struct Lab {
    /// What is measured, and how thoroughly.
    pub plan: Plan,
    /// This program, which opens our own formats.
    pub program: PathBuf,
    /// A folder for stores, in the backing.
    pub stores: PathBuf,
    /// A folder in memory or on the system disk for sockets, mount points and source data.
    pub scratch: PathBuf,
    /// The data that workloads write.
    pub data: Data,
    /// Whether the run was cancelled.
    pub cancelled: fn() -> bool,
}

impl Lab {
    /// Fails if the run was cancelled.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn go_on(&self) -> Result<()> {
        if (self.cancelled)() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
    }

    /// Waits until everything written is on its final store, so that no measurement includes another's writes. Then
    /// drops the page cache, if the plan says so.
    ///
    /// # Errors
    /// `Io` if the plan says so and the cache cannot be dropped.
    pub fn drop_caches(&self) -> Result<()> {
        rustix::fs::sync();
        match self.plan.caches {
            Caches::Warm => Ok(()),
            Caches::Dropped => {
                let file = std::path::Path::new("/proc/sys/vm/drop_caches");
                std::fs::write(file, "3").map_err(|e| Error::from(e).at(file))
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::model::plan::{Backing, Level};

    /// A lab for tests, which drops no caches and is never cancelled.
    pub(crate) fn lab() -> Lab {
        let folder = PathBuf::from("/dev/shm");
        let plan = Plan {
            level: Level::Quick,
            scale: 0.001,
            backing: Backing::Tmpfs(folder.clone()),
            more: Vec::new(),
            size: 64 << 20,
            facilities: Vec::new(),
            workloads: Vec::new(),
            min_repeats: 1,
            max_repeats: 1,
            steady: 0.03,
            seed: 1,
            caches: Caches::Warm,
            repeated: None,
        };
        let data = Data::new(plan.seed);
        let program = PathBuf::from("claviger");
        Lab { plan, program, stores: folder.clone(), scratch: folder, data, cancelled: || false }
    }

    /// The programs of processes whose working folder is below this one. A killed one may take a moment to disappear.
    pub(crate) fn working_below(folder: &Path) -> Vec<PathBuf> {
        let working = || {
            let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
            let below = |process: &PathBuf| process.join("cwd").read_link().is_ok_and(|cwd| cwd.starts_with(folder));
            processes.filter(below).map(|process| process.join("exe").read_link().unwrap_or(process)).collect()
        };
        let start = Instant::now();
        loop {
            let all: Vec<_> = working();
            if all.is_empty() || start.elapsed() > Duration::from_secs(10) {
                return all;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
