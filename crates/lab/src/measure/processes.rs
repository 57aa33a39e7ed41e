//! Which processes are the lab's, and how much processor time they have used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

/// The flag of a kernel thread (`PF_KTHREAD` of the kernel's include/linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// A process as /proc/PID/stat shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    parent: u32,
    group: u32,
    zombie: bool,
    kernel_thread: bool,
    /// Processor seconds of its own, and of all children that it has waited for.
    cpu_s: f64,
}

/// Processor time that all processes and kernel threads have used up to now.
#[derive(Clone, Debug, Default)]
pub struct ProcessTimes {
    /// Processor seconds of this program and all its descendants, including those that have been waited for.
    own_s: f64,
    /// Seconds of each kernel thread.
    kernel_s: BTreeMap<u32, f64>,
}

impl ProcessTimes {
    /// Up to now.
    pub fn now() -> Self {
        Self::of(&processes(), std::process::id())
    }

    fn of(processes: &BTreeMap<u32, Process>, lab: u32) -> Self {
        let own = processes.iter().filter(|(pid, _)| descends(processes, **pid, lab));
        let kernel = processes.iter().filter(|(_, process)| process.kernel_thread);
        Self {
            own_s: own.map(|(_, process)| process.cpu_s).sum(),
            kernel_s: kernel.map(|(pid, process)| (*pid, process.cpu_s)).collect(),
        }
    }

    /// Seconds that the lab's processes and the kernel's threads have used since then.
    pub fn since(&self, before: &Self) -> f64 {
        // A thread that has ended takes its time with it, so each is compared with itself.
        let of_thread = |(pid, now): (&u32, &f64)| (now - before.kernel_s.get(pid).unwrap_or(&0.0)).max(0.0);
        (self.own_s - before.own_s).max(0.0) + self.kernel_s.iter().map(of_thread).sum::<f64>()
    }
}

/// From here on, servers that leave their parents become children of this process: their time counts as the lab's, also
/// after they have ended.
pub fn adopt_orphans() {
    // Without it, their time counts as that of others.
    let _ = set_child_subreaper(Some(getpid()));
}

/// What the lab's programs have left behind: processes, and process groups whose first process was waited for. Nobody else
/// waits for them.
static LEFT_BEHIND: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Notes a process, or a process group, that a program of the lab has left behind.
pub fn left_behind(pid: u32) {
    LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
}

/// Collects the exit status of ended processes that the lab's programs have left behind. Other children belong to the program
/// that uses the lab.
pub fn reap() {
    let (lab, mut all) = (std::process::id(), processes());
    let mut left = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
    let of_lab = |pid: &u32, process: &Process| left.contains(pid) || left.contains(&process.group);
    all.retain(|pid, process| {
        let ended = process.zombie && process.parent == lab && of_lab(pid, process);
        if ended {
            let _ = waitpid(Pid::from_raw(pid.cast_signed()), WaitOptions::NOHANG);
        }
        !ended
    });
    // The system reuses numbers.
    left.retain(|id| all.iter().any(|(pid, process)| pid == id || process.group == *id));
}

fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // A process may end while the list is read.
    pids.filter_map(|pid| Some((pid, parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))).collect()
}

/// Parses proc_pid_stat(5), whose second field is a name in parentheses that can hold anything. It counts hundredths of
/// seconds.
fn parse(stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = [14, 15, 16, 17].map(number).into_iter().sum::<Option<u64>>()?;
    Some(Process {
        parent: number(4)? as u32,
        group: number(5)? as u32,
        zombie: *fields.first()? == "Z",
        kernel_thread: number(9)? as u32 & KERNEL_THREAD != 0,
        cpu_s: ticks as f64 / 100.0,
    })
}

fn descends(processes: &BTreeMap<u32, Process>, mut pid: u32, from: u32) -> bool {
    // If a process ended while the list was read, the parents may form a loop.
    for _ in 0..processes.len() {
        match processes.get(&pid) {
            _ if pid == from => return true,
            Some(process) => pid = process.parent,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of /proc/PID/stat.
    fn stat(pid: u32, state: char, parent: u32, flags: u32, ticks: [u64; 4]) -> (u32, Process) {
        let [own, system, waited, waited_system] = ticks;
        let line = format!(
            "{pid} (a) b ({pid}) {state} {parent} 1 1 0 -1 {flags} 0 0 0 0 {own} {system} {waited} {waited_system} 20 0 1"
        );
        (pid, parse(&line).expect("a process"))
    }

    #[test]
    fn the_labs_servers_and_kernel_threads_are_told_from_others() {
        let writeback = |ticks| stat(7, 'I', 2, KERNEL_THREAD | 0x40, [0, ticks, 0, 0]);
        let before = BTreeMap::from([
            stat(1, 'S', 0, 0, [9, 9, 500, 500]),
            stat(2, 'S', 0, KERNEL_THREAD, [0; 4]),
            writeback(100),
            stat(8, 'I', 2, KERNEL_THREAD, [0, 10_000, 0, 0]),
            stat(50, 'R', 1, 0, [100, 0, 0, 0]),
            stat(51, 'S', 50, 0, [10, 10, 0, 0]),
            stat(60, 'R', 1, 0, [1000, 0, 0, 0]),
        ]);
        // Since then, the lab has worked and has waited for its old server. It has a new server, which it started
        // through a shell. A kernel thread has ended, and another program has worked.
        let after = BTreeMap::from([
            stat(1, 'S', 0, 0, [9, 9, 700, 500]),
            stat(2, 'S', 0, KERNEL_THREAD, [0; 4]),
            writeback(130),
            stat(50, 'R', 1, 0, [120, 0, 25, 15]),
            stat(52, 'S', 50, 0, [0; 4]),
            stat(53, 'Z', 52, 0, [0, 40, 0, 0]),
            stat(60, 'R', 1, 0, [1300, 0, 0, 0]),
        ]);
        let since = ProcessTimes::of(&after, 50).since(&ProcessTimes::of(&before, 50));
        // 0.20 of the lab, 0.40 - 0.20 of the old server, 0.40 of the new server, 0.30 of writeback.
        assert!((since - 1.1).abs() < 1e-9, "{since}");
        assert!(!descends(&after, 60, 50) && descends(&after, 53, 50) && !descends(&BTreeMap::new(), 1, 50));
    }

    /// Waits until the process has ended and nobody has waited for it. Returns false if it is gone.
    fn ended(pid: u32) -> bool {
        for _ in 0..1000 {
            match processes().get(&pid) {
                Some(process) if !process.zombie => std::thread::sleep(std::time::Duration::from_millis(10)),
                other => return other.is_some(),
            }
        }
        panic!("process {pid} goes on");
    }

    #[test]
    fn only_what_the_lab_left_behind_is_collected() {
        adopt_orphans();
        let mut foreign = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().expect("a shell");
        let mut orphan = std::process::Command::new("sh");
        orphan.args(["-c", "sleep 60 >/dev/null 2>&1 & echo $!"]);
        let ran = crate::measure::program::run(&mut orphan, || false).expect("a shell");
        let left: u32 = crate::measure::program::text(&ran.output).trim().parse().expect("a number");
        assert!(ended(foreign.id()) && ended(left), "it waits for somebody to take notice");
        reap();
        assert!(!processes().contains_key(&left), "the lab's own was collected");
        assert_eq!(foreign.wait().expect("its owner still learns how it ended").code(), Some(7));
        assert!(!LEFT_BEHIND.lock().expect("no panic").contains(&left));
    }

    #[test]
    fn this_process_and_its_children_are_the_labs() {
        let before = ProcessTimes::now();
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("sh").args(["-c", burn]).status().expect("a shell");
        assert!(status.success() && ProcessTimes::now().since(&before) > 0.0);
    }
}
