//! Runs a facility's commands: to completion, or in the background for as long as it is open.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::internal::files;
use claviger_engine::{Error, ErrorKind, Result};
use claviger_serve::mount::mountinfo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::CommandStep;
use crate::measure::processes;
use crate::measure::program::{MARK, find};
use crate::model::words::printable;

/// How long a program may take to become ready: on a busy machine, CryFS needs a minute to derive its key.
pub const READY: Duration = Duration::from_secs(180);

/// How long a program may take that does its work and exits: filling a large volume is slow.
const WORK: Duration = Duration::from_secs(6 * 3600);

/// How long a program that was asked to end may take to write its data.
const ENDING: Duration = Duration::from_secs(60);

/// How long a program that was asked to end because of a failure or a cancellation may take before it is killed.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// Bytes at the end of a program's output that are searched for its last lines.
const LOOKED_AT: u64 = 64 << 10;

/// Lines of a program's output that an error shows.
const TOLD: usize = 12;

/// Runs commands, and keeps a folder for their output.
#[derive(Clone, Debug)]
pub struct Runner {
    /// An existing folder.
    pub dir: PathBuf,
    /// The value of [`MARK`] in the environment of its programs, which identifies them later.
    pub id: String,
    /// Whether the run was cancelled.
    pub cancelled: fn() -> bool,
}

/// A program in the background. Dropping it kills it.
#[derive(Debug)]
pub struct Background {
    child: Child,
    line: String,
    output: PathBuf,
}

impl Runner {
    /// Runs the step to its end. A step that keeps running is returned once it is ready.
    ///
    /// # Errors
    /// `Io` with the last lines that it printed, if it fails; `Cancelled`.
    pub fn run(&self, step: &CommandStep, on: &Path) -> Result<Option<Background>> {
        let mut started = self.start(step)?;
        match &step.until_there {
            None => self.finish(started).map(|()| None),
            Some(path) => match self.wait_ready(&mut started, path, on) {
                Ok(()) => Ok(Some(started)),
                Err(e) => {
                    started.end(GIVEN_UP);
                    Err(e)
                }
            },
        }
    }

    /// Starts it, with its output going to a file.
    fn start(&self, step: &CommandStep) -> Result<Background> {
        let line = step.run.join(" ");
        let failed = |e: io::Error| Error::new(ErrorKind::Io(io::Error::new(e.kind(), format!("`{line}`: {e}"))));
        let program = step.run.first().ok_or_else(|| Error::misuse("a step has no command"))?;
        let path = match program.contains('/') {
            true => PathBuf::from(program),
            false => find(program).ok_or_else(|| failed(io::Error::new(io::ErrorKind::NotFound, "not installed")))?,
        };
        let (file, output) = tempfile::Builder::new()
            .prefix("output-")
            .tempfile_in(&self.dir)?
            .keep()
            .map_err(|e| Error::from(e.error).at(&self.dir))?;
        let mut command = match (&step.until_there, find("setpriv")) {
            // The program is asked to end when the lab is killed; strictly speaking, when the thread that started it
            // ends.
            (Some(_), Some(setpriv)) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "TERM", "--"]).arg(path);
                command
            }
            _ => Command::new(path),
        };
        command.args(&step.run[1..]).env("LC_ALL", "C").envs(&step.env).env(MARK, &self.id).current_dir("/");
        // A group of its own: Ctrl-C is for the lab, which takes things down in order.
        command.process_group(0);
        command.stdin(if step.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file));
        let mut child = command.spawn().map_err(failed)?;
        if let (Some(text), Some(mut stdin)) = (&step.stdin, child.stdin.take()) {
            // The program may end without reading.
            let _ = stdin.write_all(text.as_bytes());
        }
        Ok(Background { child, line, output })
    }

    /// Waits for a program that does its work and exits.
    fn finish(&self, mut started: Background) -> Result<()> {
        let begun = Instant::now();
        loop {
            if let Some(status) = started.ended_within(Duration::from_millis(50))? {
                return if status.success() { Ok(()) } else { Err(started.failed(&status.to_string())) };
            }
            let late = begun.elapsed() > WORK;
            if late || (self.cancelled)() {
                started.end(GIVEN_UP);
                return Err(if late {
                    started.failed("not finished after six hours")
                } else {
                    ErrorKind::Cancelled.into()
                });
            }
        }
    }

    /// Waits until `path` is there; `on`, the folder on which things are mounted, is there when something is mounted on
    /// it.
    fn wait_ready(&self, started: &mut Background, path: &Path, on: &Path) -> Result<()> {
        let begun = Instant::now();
        loop {
            if there(path, on) {
                return Ok(());
            }
            started.goes_on(Duration::from_millis(1))?;
            if begun.elapsed() > READY {
                return Err(started.failed(&format!("not ready after {} s", READY.as_secs())));
            }
            if (self.cancelled)() {
                return Err(ErrorKind::Cancelled.into());
            }
        }
    }
}

impl Background {
    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits that long, and fails if it ends in the meantime.
    ///
    /// # Errors
    /// `Io` with the last lines that it printed.
    pub fn goes_on(&mut self, wait: Duration) -> Result<()> {
        match self.ended_within(wait)? {
            Some(status) => Err(self.failed(&format!("exited too early, with {status}"))),
            None => Ok(()),
        }
    }

    /// Ends the process and waits until it has written what it holds. `closed`: it was already asked to end.
    ///
    /// # Errors
    /// `Io` if it does not end, or ends badly, with the last lines that it printed.
    pub fn close(mut self, closed: bool) -> Result<()> {
        let mut status = if closed { self.ended_within(GIVEN_UP)? } else { None };
        let begun = Instant::now();
        while status.is_none() && begun.elapsed() < ENDING {
            // Repeatedly: qemu-nbd misses a signal that comes while it starts.
            self.signal(Signal::TERM);
            status = self.ended_within(GIVEN_UP)?;
        }
        match status {
            Some(status) if fine(status) => Ok(()),
            Some(status) => Err(self.failed(&status.to_string())),
            None => {
                self.end(Duration::ZERO);
                Err(self.failed("killed, because it did not end"))
            }
        }
    }

    /// Ends it in any case: asks it first, and kills it after `patience`.
    fn end(&mut self, patience: Duration) {
        self.signal(Signal::TERM);
        if !matches!(self.ended_within(patience), Ok(Some(_))) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, signal);
        }
    }

    fn ended_within(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status));
        }
        let pid = Pid::from_raw(self.child.id().cast_signed()).ok_or_else(|| io::Error::other("a process number"))?;
        wait_for(&pidfd_open(pid, PidfdFlags::empty())?, limit)?;
        self.child.try_wait()
    }

    /// What it did, and what it printed last.
    fn failed(&self, what: &str) -> Error {
        let printed = last_bytes(&self.output, LOOKED_AT).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        let lines: Vec<&str> = printed.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let last = printable(&lines[lines.len().saturating_sub(TOLD)..].join("\n"));
        let printed = if last.is_empty() { "it printed nothing".to_owned() } else { format!("it printed:\n{last}") };
        Error::new(ErrorKind::Io(io::Error::other(format!("`{}`: {what}; {printed}", self.line))))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end(GIVEN_UP);
        }
        processes::left_behind(self.child.id());
        let _ = fs::remove_file(&self.output);
    }
}

/// Success, or the end by the signal that asked for it.
fn fine(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    // Shells, and programs that follow them, exit with 128 plus the number of the signal.
    let term = Signal::TERM.as_raw();
    status.success() || status.signal() == Some(term) || status.code() == Some(128 + term)
}

fn there(path: &Path, on: &Path) -> bool {
    // A path below a file system whose server does not answer yet must not be looked up.
    if path == on && mountinfo::at(on).is_ok_and(|mount| mount.is_some()) {
        return true;
    }
    path.symlink_metadata().is_ok_and(|metadata| path != on || !metadata.is_dir())
}

/// Waits until the process has ended, at most that long, whatever signals come.
fn wait_for(process: &OwnedFd, limit: Duration) -> io::Result<()> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// A process that a command has left behind, identified by more than its number, which may be reused.
#[derive(Debug)]
pub struct Left {
    /// The process ID.
    pub pid: u32,
    process: OwnedFd,
}

impl Left {
    /// The processes that commands of this identity have started. A process whose command line merely names a store is
    /// not one of them.
    pub fn with(id: &str) -> Vec<Self> {
        Self::marked(|mark| mark == id.as_bytes())
    }

    /// The processes of a whole lab: its programs, and those of all its facilities.
    pub fn of_lab(tag: &str) -> Vec<Self> {
        let of_it = |rest: &[u8]| rest.is_empty() || rest.starts_with(b"-");
        Self::marked(|mark| mark.strip_prefix(tag.as_bytes()).is_some_and(of_it))
    }

    fn marked(wanted: impl Fn(&[u8]) -> bool) -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = std::process::id();
        pids.filter(|pid| *pid != ours).filter_map(|pid| Self::of(pid, &wanted)).collect()
    }

    fn of(pid: u32, wanted: &impl Fn(&[u8]) -> bool) -> Option<Self> {
        let process = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        mark_in(&environment).is_some_and(wanted).then_some(Self { pid, process })
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    /// Waits for its end, then asks it to end, then kills it. False if it had to be asked.
    pub fn end(&self) -> bool {
        let _ = wait_for(&self.process, GIVEN_UP);
        self.end_now()
    }

    /// Asks it to end, then kills it. False if it had to be asked.
    pub fn end_now(&self) -> bool {
        if !self.runs() {
            return true;
        }
        for (signal, patience) in [(Signal::TERM, GIVEN_UP), (Signal::KILL, GIVEN_UP)] {
            let _ = pidfd_send_signal(&self.process, signal);
            let _ = wait_for(&self.process, patience);
            if !self.runs() {
                break;
            }
        }
        false
    }
}

/// The form of the variable [`MARK`] in an environment that /proc shows.
fn mark_in(environment: &[u8]) -> Option<&[u8]> {
    environment.split(|b| *b == 0).find_map(|pair| pair.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))
}

/// The end of a file.
fn last_bytes(path: &Path, len: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let there = file.metadata()?.len();
    file.seek(SeekFrom::Start(there.saturating_sub(len)))?;
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the kernel knows the file system, or does once it has loaded a module.
pub fn kernel_mounts(name: &str) -> bool {
    let known = || {
        let list = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        list.lines().any(|line| line.split_whitespace().next_back() == Some(name))
    };
    let load = || {
        let modprobe = find("modprobe")?;
        let mut command = Command::new(modprobe);
        command.args(["-q", "--"]).arg(format!("fs-{name}")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()
    };
    known() || (load().is_some_and(|status| status.success()) && known())
}

/// Waits a little, because the kernel may be about to release something.
pub fn retry<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    for wait_ms in [0, 1, 5, 20, 50, 100, 200, 500, 1000, 2000] {
        thread::sleep(Duration::from_millis(wait_ms));
        if let Some(done) = attempt() {
            return Some(done);
        }
    }
    None
}

/// A file that other users cannot read.
pub fn private_file(path: &Path, contents: &[u8]) -> Result<()> {
    files::replace(path, contents, 0o600).map_err(|e| Error::from(e).at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(words: &[&str]) -> CommandStep {
        CommandStep { run: words.iter().map(ToString::to_string).collect(), ..CommandStep::default() }
    }

    fn runner(dir: &Path) -> Runner {
        Runner { dir: dir.to_owned(), id: "lab-test-7".into(), cancelled: || false }
    }

    #[test]
    fn what_failed_is_named_with_what_it_printed() {
        let dir = tempfile::tempdir().expect("a folder");
        let fails = step(&["sh", "-c", "echo out; echo why >&2; exit 3"]);
        let e = runner(dir.path()).run(&fails, dir.path()).expect_err("it fails").to_string();
        assert!(e.contains("exit 3`") && e.contains("exit status: 3") && e.contains("out\nwhy"), "{e}");
        let e = runner(dir.path()).run(&step(&["no-such-program"]), dir.path()).expect_err("it fails").to_string();
        assert!(e.contains("no-such-program") && e.contains("not installed"), "{e}");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0, "no output is left");
    }

    #[test]
    fn a_program_goes_on_until_it_is_closed() {
        let dir = tempfile::tempdir().expect("a folder");
        let ready = dir.path().join("ready");
        let mut server = step(&["sh", "-c", "cat > \"$0\"; sleep 100 & wait", ready.to_str().expect("Unicode")]);
        server.stdin = Some("input".into());
        server.until_there = Some(ready.clone());
        let nowhere = Path::new("/no/such/folder");
        let running = runner(dir.path()).run(&server, nowhere).expect("it starts").expect("it goes on");
        assert!(retry(|| (fs::read(&ready).ok()? == b"input").then_some(())).is_some());
        let with = |found: Vec<Left>| found.into_iter().find(|left| left.pid == running.pid());
        let shell = with(Left::with("lab-test-7")).expect("it carries the mark");
        assert!(shell.runs() && with(Left::of_lab("lab-test")).is_some());
        assert!(with(Left::with("lab-test")).is_none() && with(Left::of_lab("lab-tes")).is_none());
        assert!(with(Left::with(ready.to_str().expect("Unicode"))).is_none(), "who names a path is not meant");
        running.close(false).expect("it ends");
        assert!(!shell.runs());

        fs::remove_file(&ready).expect("removed");
        let early = CommandStep { run: step(&["sh", "-c", "echo no; exit 1"]).run, ..server };
        let e = runner(dir.path()).run(&early, nowhere).expect_err("it ends too early").to_string();
        assert!(e.contains("exited too early") && e.contains("no"), "{e}");
    }

    #[test]
    fn somebody_who_wants_it_to_end_is_heard() {
        let dir = tempfile::tempdir().expect("a folder");
        let runner = Runner { cancelled: || true, ..runner(dir.path()) };
        for until_there in [None, Some("/no/such".into())] {
            let endless = CommandStep { until_there, ..step(&["sleep", "1000"]) };
            let e = runner.run(&endless, Path::new("/no/such/folder")).expect_err("cancelled");
            assert!(matches!(e.kind, ErrorKind::Cancelled), "{e}");
        }
    }
}
