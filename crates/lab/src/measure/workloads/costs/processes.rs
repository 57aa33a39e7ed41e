//! What processes use: memory and processor time, from /proc.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use claviger_engine::{Error, ErrorKind, Result};

/// Memory of these processes in bytes: the proportional set size, in which a page that several processes share counts
/// as the share of each (proc_pid_smaps_rollup(5)).
///
/// # Errors
/// `Unsupported` where this user may not know; `Io` where a process is gone.
pub fn memory(processes: &[u32]) -> Result<u64> {
    processes.iter().map(|pid| proportional_set_size(*pid)).sum()
}

/// Processor time that processes have used up to some moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuTimes {
    /// Seconds of user and system time, in steps of a hundredth of a second, of all threads, those that have ended
    /// included.
    ticks_s: f64,
    /// Nanoseconds of each thread that is there.
    threads: BTreeMap<u32, u64>,
}

impl CpuTimes {
    /// Up to now.
    ///
    /// # Errors
    /// `Io` where a process is gone.
    pub fn of(processes: &[u32]) -> Result<Self> {
        let mut times = Self::default();
        for pid in processes {
            times.ticks_s += ticks(&read(proc(*pid, "stat"))?).unwrap_or(0.0);
            times.threads.extend(threads(*pid));
        }
        Ok(times)
    }

    /// Seconds from `earlier` on: exact to a few microseconds as long as no thread has ended, to a hundredth of a
    /// second otherwise.
    pub fn since(&self, earlier: &Self) -> f64 {
        let all_there = !earlier.threads.is_empty() && earlier.threads.keys().all(|t| self.threads.contains_key(t));
        if !all_there {
            return (self.ticks_s - earlier.ticks_s).max(0.0);
        }
        let before = |thread| earlier.threads.get(thread).copied().unwrap_or(0);
        let ns: u64 = self.threads.iter().map(|(thread, ns)| ns.saturating_sub(before(thread))).sum();
        ns as f64 / 1e9
    }
}

fn proportional_set_size(pid: u32) -> Result<u64> {
    let file = proc(pid, "smaps_rollup");
    let text = fs::read_to_string(&file).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => Error::unsupported("the memory of a process that may not be inspected")
            .hint("The server hides its memory from other processes of the same user. Run the lab as root."),
        _ => Error::from(e).at(&file),
    })?;
    pss(&text).ok_or_else(|| ErrorKind::Io(std::io::Error::other(format!("process {pid} has no memory"))).into())
}

/// The line `Pss:   1234 kB`, in bytes.
fn pss(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Fields 14 and 15 of proc_pid_stat(5), in seconds. The second field is a name in parentheses, which can hold
/// anything.
fn ticks(stat: &str) -> Option<f64> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some((user + system) as f64 / 100.0)
}

/// The threads of a process with the nanoseconds that each has run, the first number of its schedstat. Empty where the
/// kernel keeps no such figures. A thread that ends in the meantime is left out.
fn threads(pid: u32) -> BTreeMap<u32, u64> {
    let thread = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        Some((id, text.split_whitespace().next()?.parse().ok()?))
    };
    fs::read_dir(proc(pid, "task")).into_iter().flatten().flatten().filter_map(thread).collect()
}

fn proc(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

fn read(file: PathBuf) -> Result<String> {
    fs::read_to_string(&file).map_err(|e| Error::from(e).at(&file))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::time::{ClockId, Timespec, clock_gettime};

    use super::*;

    #[test]
    fn lines_of_proc_are_understood() {
        let rollup = "55d1c0000000-7ffd4b5fe000 ---p 00000000 00:00 0    [rollup]\nRss:    3508 kB\nPss:    1141 kB\nPss_Dirty: 8 kB\n";
        assert_eq!(pss(rollup), Some(1141 * 1024));
        assert_eq!(pss("Rss: 1 kB\n"), None);
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 1 2 3 4 150 25 7 8 20 0 1 0 100 0 0";
        assert_eq!(ticks(stat), Some(1.75));
        assert_eq!(ticks("42 (a"), None);
    }

    #[test]
    fn memory_of_two_processes_is_more_than_of_one() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (me, other) = (std::process::id(), child.id());
        let (one, two) = (memory(&[me]).unwrap(), memory(&[me, other]).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(one > 0 && two > one, "{one} {two}");
        assert!(memory(&[other]).is_err());
    }

    #[test]
    fn processor_time_is_what_the_process_says_itself() {
        let me = [std::process::id()];
        let own = || clock_gettime(ClockId::ThreadCPUTime);
        let (before, until) = (CpuTimes::of(&me).unwrap(), own() + Timespec { tv_sec: 0, tv_nsec: 50_000_000 });
        let mut sum = 0u64;
        while own() < until {
            sum = std::hint::black_box(sum + 1);
        }
        let used = CpuTimes::of(&me).unwrap().since(&before);
        // Other tests run in this process, so its time is at least what this thread used.
        assert!(used > 0.03, "{used}");
    }

    #[test]
    fn where_a_thread_has_ended_ticks_count() {
        let times = |ticks_s, threads: &[(u32, u64)]| CpuTimes { ticks_s, threads: threads.iter().copied().collect() };
        let earlier = times(1.0, &[(7, 1_000_000_000)]);
        assert_eq!(times(1.5, &[(7, 1_250_000_000), (8, 5_000_000)]).since(&earlier), 0.255);
        assert_eq!(times(1.5, &[(8, 5_000_000)]).since(&earlier), 0.5);
        assert_eq!(times(1.5, &[]).since(&times(1.0, &[])), 0.5);
    }
}
