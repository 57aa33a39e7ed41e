//! Processes, identified by ID and start time, because an ID is reused once its process has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::wait::wait;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The process ID.
    pub pid: u32,
    /// When it started, in ticks since boot (proc_pid_stat(5), field 22).
    pub started: u64,
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// `Io` if /proc is not mounted.
    pub fn this() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// The process that has this ID now.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = Stat::of(pid)?;
        Ok(Self { pid, started: stat.started })
    }

    /// Whether the process is alive. A zombie counts as alive until its last thread has ended: until then its files are
    /// open and locked.
    ///
    /// Where /proc hides processes (proc(5), `hidepid`), a server is hidden even from its own user, because it is not
    /// dumpable. A hidden process with that ID counts as this one, because mounts of a living server must not be
    /// cleaned up.
    pub fn alive(&self) -> bool {
        self.seen_alive().unwrap_or_else(|| is_there(self.pid))
    }

    /// Whether /proc reports it as alive; `None` if /proc does not show it.
    fn seen_alive(&self) -> Option<bool> {
        let stat = Stat::of(self.pid).ok()?;
        Some(stat.started == self.started && (stat.threads > 1 || !matches!(stat.state, 'Z' | 'X')))
    }

    /// A pidfd of this process, or `None` if it has ended.
    fn handle(&self) -> Option<OwnedFd> {
        let fd = handle_of(self.pid)?;
        // Checked after opening the pidfd, which therefore belongs to this process or to none.
        self.alive().then_some(fd)
    }

    /// Sends the process a signal. Returns false if it has ended or belongs to another user. A hidden process is asked
    /// to end but never killed, because it could be another one.
    pub fn signal(&self, signal: Signal) -> bool {
        if signal == Signal::KILL && self.seen_alive() != Some(true) {
            return false;
        }
        self.handle().is_some_and(|fd| pidfd_send_signal(fd, signal).is_ok())
    }

    /// Waits for the process to end. Returns false if it is still alive after `limit`.
    ///
    /// # Errors
    /// `Io` if waiting fails.
    pub fn wait_for_end(&self, limit: Option<Duration>) -> io::Result<bool> {
        match self.handle() {
            None => Ok(!self.alive()),
            Some(fd) => wait(&mut [PollFd::new(&fd, PollFlags::IN)], limit),
        }
    }

    /// A descriptor that becomes readable when the process ends; `None` if it has ended.
    pub fn watch(&self) -> Option<OwnedFd> {
        self.handle()
    }
}

/// Whether a process with that ID is alive, found in a way that `hidepid` does not affect.
fn is_there(pid: u32) -> bool {
    let Some(fd) = handle_of(pid) else { return false };
    // A pidfd is readable once the process has ended.
    !wait(&mut [PollFd::new(&fd, PollFlags::IN)], Some(Duration::ZERO)).unwrap_or(true)
}

/// A pidfd of the process that currently has this ID.
fn handle_of(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()
}

/// Fields of /proc/PID/stat (proc_pid_stat(5)).
pub(crate) struct Stat {
    /// `R`, `S`, `D` …
    pub state: char,
    /// Number of threads left; a zombie's first one counts.
    pub threads: u32,
    /// When it started, in ticks.
    pub started: u64,
}

impl Stat {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let text = std::fs::read(format!("/proc/{pid}/stat"))?;
        Self::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The name, in parentheses, may contain anything, so fields are counted from the last parenthesis.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        // The state is field 3, the number of threads field 20, the start time field 22.
        let threads = fields.nth(16)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { state, threads, started })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_no_obstacle() {
        let text = "42 (a) S 1 (b c) D 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        let stat = Stat::parse(text).expect("fields");
        assert_eq!((stat.state, stat.threads, stat.started), ('D', 17, 4711));
        assert!(Stat::parse("42 (x) S 1 2").is_none());
    }

    #[test]
    fn another_process_of_the_same_number_is_not_the_same() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("sleep, of coreutils");
        let process = Process::of(child.id()).expect("a process");
        let other = Process { started: process.started + 1, ..process };
        assert!(process.alive() && !other.alive());
        assert!(!other.signal(Signal::KILL), "somebody else's");
        assert!(!process.wait_for_end(Some(Duration::ZERO)).expect("waited"));
        assert!(other.wait_for_end(None).expect("nothing to wait for"));
        assert!(process.signal(Signal::KILL));
        assert!(process.wait_for_end(Some(Duration::from_secs(60))).expect("waited"));
        assert!(!process.alive(), "ended, and not yet taken note of");
        assert!(!is_there(process.pid) && is_there(std::process::id()));
        child.wait().expect("it has ended");
        assert!(!process.alive() && !is_there(process.pid) && !is_there(0) && !is_there(u32::MAX));
    }
}
