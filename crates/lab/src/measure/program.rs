//! Other programs that run a workload: started in a process group of their own, watched, and ended with everything they
//! started.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use claviger_engine::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::measure::meter::Meter;
use crate::measure::names::tag;
use crate::measure::processes::left_behind;
use crate::model::figures::Elapsed;
use crate::model::words::printable;

/// How often to check for cancellation. A program's time is not rounded to this.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The variable in the environment of every program that the lab starts, by which the lab knows its programs. Its value is the tag
/// of the lab, or the name of one facility in use.
pub const MARK: &str = "CLAVIGER_LAB";

/// Bytes kept of each output of a program: no program used here prints nearly as much.
const KEPT: usize = 16 << 20;

/// How long a program may take to print its version.
const VERSION: Duration = Duration::from_secs(20);

/// Letters kept of the version.
const VERSION_LETTERS: usize = 200;

/// Lines of a failed program's output that an error shows.
const LAST_LINES: usize = 6;

/// What a program did.
#[derive(Debug)]
pub struct Ran {
    /// From its start to its end.
    pub took: Elapsed,
    /// Seconds of processor time that it used itself, with what it started and waited for; in steps of a hundredth.
    pub own_cpu_s: f64,
    /// What it wrote to standard output.
    pub output: Vec<OutputPiece>,
    /// What it wrote to standard error.
    pub errors: Vec<OutputPiece>,
}

/// A piece of a program's output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputPiece {
    /// From the start of the program until this was read.
    pub after: Elapsed,
    /// As it was read: any part of a line, or several.
    pub text: String,
}

/// The pieces as one text.
pub fn text(pieces: &[OutputPiece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

/// When the first `len` bytes of the text had been read, counted from the start of the program.
pub fn read_after(pieces: &[OutputPiece], len: usize) -> Option<Elapsed> {
    let mut end = 0;
    pieces.iter().find_map(|piece| {
        end += piece.text.len();
        (end >= len).then_some(piece.after)
    })
}

/// Finds a program in `PATH` or where the system keeps root's programs.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Why something that needs these programs cannot be done, as a sentence; `None` if all are there.
pub fn missing(names: &[&str]) -> Option<String> {
    let absent: Vec<&str> = names.iter().copied().filter(|name| find(name).is_none()).collect();
    match absent[..] {
        [] => None,
        [one] => Some(format!("The program {one} is not installed.")),
        _ => Some(format!("The programs {} are not installed.", absent.join(", "))),
    }
}

/// Words that bind a program and all of its children to the life of this process. Root's program gets namespaces of its own: one
/// of processes, and those of `unshare`'s options in `more`.
pub fn bound(more: &[&'static str]) -> Vec<&'static str> {
    let mut words = vec!["setpriv", "--pdeathsig", "KILL"];
    if rustix::process::geteuid().is_root() {
        words.extend(["unshare", "--pid", "--fork", "--kill-child"].iter().chain(more));
    }
    words
}

/// The first line of what a program prints when it is asked for its version; `None` if it prints nothing.
pub fn version(command: &mut Command) -> Option<String> {
    let begun = Instant::now();
    let Ended { ran, .. } = carry_out(command, &|| begun.elapsed() > VERSION, Duration::MAX).ok()?;
    let printed = if ran.output.is_empty() { text(&ran.errors) } else { text(&ran.output) };
    let first = printed.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(first.chars().filter(|c| !c.is_control()).take(VERSION_LETTERS).collect())
}

/// Runs a program to its end, in the language C and without input. Then kills any processes that it left behind. If
/// `cancelled` returns true, kills everything at once.
///
/// # Errors
/// `Io` where it cannot be started or fails, with its last lines; `Cancelled`.
pub fn run(command: &mut Command, cancelled: impl Fn() -> bool) -> Result<Ran> {
    run_while_heard(command, Duration::MAX, cancelled)
}

/// The same for a program that reports its progress: if it is silent for `silence`, it is killed.
///
/// # Errors
/// As for [`run`].
pub fn run_while_heard(command: &mut Command, silence: Duration, cancelled: impl Fn() -> bool) -> Result<Ran> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Ended { status, silent, ran } = carry_out(command, &cancelled, silence)?;
    match (silent, status.success()) {
        (false, true) => Ok(ran),
        (true, _) => Err(failed(&name, &format!("it said nothing for {} seconds", silence.as_secs()), &ran)),
        (false, false) => Err(failed(&name, &status.to_string(), &ran)),
    }
}

/// How a program ended.
struct Ended {
    status: ExitStatus,
    /// It said nothing for too long.
    silent: bool,
    ran: Ran,
}

/// Runs it as [`run_while_heard`] does, however it ends.
fn carry_out(command: &mut Command, cancelled: &impl Fn() -> bool, silence: Duration) -> Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command.env("LC_ALL", "C").env(MARK, tag());
    let name = command.get_program().to_string_lossy().into_owned();
    let others_s = children_cpu_s();
    let started = Meter::start();
    let mut group = Group(command.spawn().map_err(|e| Error::from(e).at(name.as_ref()))?);
    let last = Arc::new(AtomicU64::new(0));
    let output = listen(group.0.stdout.take(), started, &last)?;
    let errors = listen(group.0.stderr.take(), started, &last)?;
    let silent = || started.elapsed().seconds - last.load(Ordering::Relaxed) as f64 > silence.as_secs_f64();
    let (status, took, silent) = group.wait(started, cancelled, &silent)?;
    let heard = |listener: JoinHandle<_>| listener.join().unwrap_or_default();
    let own_cpu_s = (children_cpu_s() - others_s).max(0.0);
    Ok(Ended { status, silent, ran: Ran { took, own_cpu_s, output: heard(output), errors: heard(errors) } })
}

/// Seconds of processor time of all processes that this one has started and waited for: fields 16 and 17 of
/// proc_pid_stat(5), whose second field is a name in parentheses that can hold anything.
fn children_cpu_s() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let (_, after) = stat.rsplit_once(')').unwrap_or_default();
    after.split_whitespace().skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// A child and its process group. Dropping it kills the group.
struct Group(Child);

impl Group {
    /// Waits for the child's end, or until it is silent for too long, then kills the group: only then are the pipes sure to end.
    fn wait(
        &mut self,
        started: Meter,
        cancelled: &impl Fn() -> bool,
        silent: &impl Fn() -> bool,
    ) -> Result<(ExitStatus, Elapsed, bool)> {
        let child = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).map_err(io::Error::from)?;
        let mut gave_up = false;
        while !gave_up {
            match poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&LOOK)) {
                Ok(0) if cancelled() => return Err(ErrorKind::Cancelled.into()),
                Ok(0) if silent() => gave_up = true,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        let took = started.elapsed();
        self.kill();
        let status = self.0.wait()?;
        left_behind(self.0.id());
        Ok((status, took, gave_up))
    }

    /// Kills the whole group. Its number is not reused before the child has been waited for.
    fn kill(&self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            self.kill();
            let _ = self.0.wait();
            left_behind(self.0.id());
        }
    }
}

/// Reads everything, with the time of each piece; `last` is the second in which the last one came.
fn listen(
    pipe: Option<impl Read + Send + 'static>,
    started: Meter,
    last: &Arc<AtomicU64>,
) -> io::Result<JoinHandle<Vec<OutputPiece>>> {
    let last = Arc::clone(last);
    thread::Builder::new().name("lab-listener".into()).spawn(move || {
        let mut pieces = Vec::new();
        let mut heard = 0;
        let mut buffer = [0; 8192];
        let Some(mut pipe) = pipe else { return pieces };
        while let Ok(len @ 1..) = pipe.read(&mut buffer) {
            heard += len;
            last.fetch_max(started.elapsed().seconds as u64, Ordering::Relaxed);
            // Keep reading, or the program would block on a full pipe.
            if heard > KEPT {
                continue;
            }
            let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
            pieces.push(OutputPiece { after: started.elapsed(), text });
        }
        pieces
    })
}

fn failed(name: &str, how: &str, ran: &Ran) -> Error {
    let printed = [text(&ran.output), text(&ran.errors)].concat();
    let lines: Vec<&str> = printed.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = printable(&lines[lines.len().saturating_sub(LAST_LINES)..].join("; "));
    let what = if last.is_empty() { "it printed nothing".into() } else { last };
    ErrorKind::Io(io::Error::other(format!("{name} failed ({how}): {what}"))).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn who_says_nothing_any_more_is_not_waited_for() {
        let second = Duration::from_secs(1);
        let error =
            run_while_heard(&mut shell("echo begun; exec sleep 1000"), second, || false).unwrap_err().to_string();
        assert!(error.contains("said nothing for 1 seconds") && error.contains("begun"), "{error}");
        // Slow, but heard.
        run_while_heard(&mut shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done"), 2 * second, || false).unwrap();
    }

    #[test]
    fn output_is_kept_in_pieces_with_their_times() {
        let ran = run(&mut shell("echo one; sleep 0.2; echo two; echo bad >&2"), || false).unwrap();
        assert_eq!((text(&ran.output).as_str(), text(&ran.errors).as_str()), ("one\ntwo\n", "bad\n"));
        let times: Vec<f64> = ran.output.iter().map(|piece| piece.after.seconds).collect();
        assert!(times.is_sorted() && times[0] >= 0.0, "{times:?}");
    }

    #[test]
    fn of_endless_output_a_part_is_kept() {
        let ran = run(&mut shell("head -c 40000000 /dev/zero"), || false).unwrap();
        assert!(text(&ran.output).len() <= KEPT);
        assert_eq!(version(&mut shell("printf '\\033[31m%0500d' 1")).unwrap().len(), VERSION_LETTERS);
    }

    #[test]
    fn what_a_program_uses_itself_is_known() {
        let ran = run(&mut shell("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"), || false).unwrap();
        assert!(ran.own_cpu_s > 0.0, "{ran:?}");
    }

    #[test]
    fn the_time_of_a_place_in_the_text_is_known() {
        let piece = |text: &str, seconds| OutputPiece { after: Elapsed { seconds, cpu_s: 0.0 }, text: text.into() };
        let pieces = [piece("abc", 1.0), piece("de", 2.0)];
        let at = |len| read_after(&pieces, len).map(|elapsed| elapsed.seconds);
        assert_eq!([1, 3, 4, 5, 6].map(at), [Some(1.0), Some(1.0), Some(2.0), Some(2.0), None]);
    }

    #[test]
    fn a_failed_program_is_reported_with_its_last_lines() {
        let error = run(&mut shell("seq 100; echo no room >&2; exit 3"), || false).unwrap_err().to_string();
        assert!(error.contains("sh failed (exit status: 3)") && error.contains("99; 100; no room"), "{error}");
        assert!(!error.contains("95"), "{error}");
        let error = run(&mut Command::new("/nonexistent/program"), || false).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/program"), "{error}");
    }

    #[test]
    fn whatever_it_started_ends_with_it() {
        let children = |ran: &Ran| text(&ran.output).trim().parse::<u32>().unwrap();
        let start = Instant::now();
        let left = run(&mut shell("sleep 60 & echo $!"), || false).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_ended(children(&left));

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let error = run(&mut shell(&format!("sleep 61 & echo $! > {}; wait", file.display())), || true).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Cancelled));
        if let Ok(pid) = fs::read_to_string(&file) {
            assert_ended(pid.trim().parse().unwrap());
        }
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn programs_are_found_and_say_their_version() {
        assert!(find("sh").is_some() && find("no-such-program").is_none());
        assert_eq!(missing(&["sh", "cat"]), None);
        assert_eq!(missing(&["sh", "no-such-program"]).unwrap(), "The program no-such-program is not installed.");
        assert_eq!(missing(&["none-1", "none-2"]).unwrap(), "The programs none-1, none-2 are not installed.");
        assert_eq!(version(&mut shell("echo; echo ' tool 1.2 '; echo more")).unwrap(), "tool 1.2");
        assert_eq!(version(&mut Command::new("/nonexistent/program")), None);
    }

    /// A killed orphan may stay for a moment, until the process that adopts it has taken notice.
    fn assert_ended(pid: u32) {
        let running = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains("(sleep)") && !stat.contains(") Z ")
        };
        let start = Instant::now();
        while running() {
            assert!(start.elapsed() < Duration::from_secs(10), "process {pid} goes on");
            thread::sleep(Duration::from_millis(20));
        }
    }
}
