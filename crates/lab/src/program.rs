//! Programs of others that a workload runs: found, run to their end, and ended whenever the lab ends.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::meter::{Elapsed, Meter};
use crate::workloads::Lab;

/// How often it is looked whether a program has ended, which is by how much a time can be too long.
const LOOK: Duration = Duration::from_millis(1);

/// Lines of a failed program's output that are part of the error.
const LAST_LINES: usize = 8;

/// What a program did that ended well.
#[derive(Clone, Debug)]
pub struct Finished {
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
    /// What it took, from before it was started.
    pub elapsed: Elapsed,
}

/// The program called `name`, in PATH or where programs of the system are, which users' PATH leaves out.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    places
        .chain(["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// Why a workload that needs the program `name` cannot be done, as a sentence; nothing if it can.
pub fn missing(name: &str) -> Option<String> {
    find(name).is_none().then(|| format!("The program {name} is not installed."))
}

/// The first line of what `command` prints, by which it tells its version; nothing if it prints nothing.
pub fn version(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let line = String::from_utf8_lossy(&text).lines().map(str::trim).find(|l| !l.is_empty())?.to_owned();
    Some(line)
}

/// Runs `command` to its end, with an empty standard input and its messages in English. It is in a process group of its own, all of which is
/// killed where it takes longer than `limit`, somebody wants the lab to end, or this thread panics.
///
/// # Errors
/// `Io` with the last lines of what it printed where it cannot be started, fails or takes too long; `Cancelled`.
pub fn run(command: &mut Command, lab: &Lab, limit: Duration) -> Result<Finished> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    command.env("LC_ALL", "C").process_group(0);
    let name = command.get_program().to_string_lossy().into_owned();
    let (meter, start) = (Meter::start(), Instant::now());
    let child = command.spawn().map_err(|e| io::Error::new(e.kind(), format!("{name} cannot be started: {e}")))?;
    let status = Running(child).wait(lab, start + limit);
    let elapsed = meter.elapsed();
    let (stdout, stderr) = (text(&mut stdout)?, text(&mut stderr)?);
    let why = match status? {
        Some(status) if status.success() => return Ok(Finished { stdout, stderr, elapsed }),
        Some(status) => format!("failed ({status})"),
        None => format!("was ended: it took longer than {} s", limit.as_secs()),
    };
    Err(failed(&name, &why, &[&stdout, &stderr]))
}

/// The error of a program that failed, with the last lines of what it printed.
pub fn failed(name: &str, why: &str, printed: &[&str]) -> Error {
    let lines: Vec<&str> = printed.iter().flat_map(|t| t.lines()).filter(|l| !l.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    let colon = if last.is_empty() { "" } else { ":\n" };
    io::Error::other(format!("{name} {why}{colon}{last}")).into()
}

/// A process group that is gone when this is dropped.
struct Running(Child);

impl Running {
    /// Waits for the end of the process that leads the group; nothing where it does not come in time.
    fn wait(&mut self, lab: &Lab, until: Instant) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            lab.go_on()?;
            if Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of the group something may be left when its leader is gone. Nobody else can have its number as long as that is so;
        // with nothing left, this finds no such group.
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use claviger_engine::ErrorKind;

    use super::*;
    use crate::workloads::tests::lab;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_printed_is_given_or_told() {
        let done = run(&mut shell("echo good; echo bad >&2"), &lab(), Duration::from_secs(60)).unwrap();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("good\n", "bad\n"));
        let error = run(&mut shell("seq 100; exit 3"), &lab(), Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("sh failed (exit status: 3):\n93\n") && error.ends_with("100"), "{error}");
        let error = run(&mut Command::new("/no/such"), &lab(), Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("/no/such cannot be started"), "{error}");
    }

    #[test]
    fn nothing_is_left_of_a_program_that_takes_too_long_or_is_not_wanted_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        // The shell starts another process, whose number is written down, and waits for it.
        let script = format!("sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait", pid.display());
        let error = run(&mut shell(&script), &lab(), Duration::from_millis(300)).unwrap_err();
        assert!(error.to_string().contains("took longer"), "{error}");
        let error = run(&mut shell("sleep 1000"), &Lab { cancelled: || true, ..lab() }, Duration::MAX / 4).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Cancelled));
        let Ok(pid) = std::fs::read_to_string(&pid) else { return }; // it did not even get so far
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "still there: {stat}");
    }

    #[test]
    fn programs_are_found_or_said_to_be_missing() {
        assert!(find("sh").is_some() && missing("sh").is_none());
        assert_eq!(missing("no-such-program").unwrap(), "The program no-such-program is not installed.");
        assert_eq!(version(&mut shell("echo; echo ' a 1.2 '")).unwrap(), "a 1.2");
    }
}
