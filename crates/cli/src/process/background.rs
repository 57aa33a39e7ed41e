//! Runs a verb in the background: the program starts itself again, and exits once the new process reports success.
//!
//! No secret is handed over: the new process asks for passwords itself, on the same terminal, and reports errors itself, with
//! its exit code. A fork would copy a process whose threads may be in any state.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::Context;
use claviger_engine::{Error, ErrorKind};
use claviger_serve::sessions::Process;
use claviger_serve::{inherited, last_signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, setsid};

use crate::terminal::cancel;
use crate::terminal::exit::Silent;

/// Options that the background process gets from the one that started it. Not for people.
#[derive(clap::Args, Clone)]
pub struct BackgroundArgs {
    /// The descriptor on which to report success
    #[arg(long, hide = true, value_name = "N")]
    ready_fd: Option<i32>,

    /// The parent of the foreground process: NUMBER-TICKS
    #[arg(long, hide = true, value_name = "PROCESS", value_parser = parse_process)]
    caller: Option<Process>,
}

fn parse_process(text: &str) -> Result<Process, String> {
    let parse = || {
        let (pid, started) = text.split_once('-')?;
        Some(Process { pid: pid.parse().ok()?, started: started.parse().ok()? })
    };
    parse().ok_or_else(|| "not NUMBER-TICKS".to_owned())
}

impl BackgroundArgs {
    /// Whether this is the background process.
    pub fn in_background(&self) -> bool {
        self.ready_fd.is_some()
    }

    /// The process for which this one runs, if it is still alive.
    pub fn caller(&self) -> anyhow::Result<Process> {
        match self.caller {
            Some(caller) => Ok(caller),
            // The parent of this process is the foreground process, which exits soon.
            None if self.in_background() => Err(Error::unsupported("watching the parent process")
                .hint("It has exited, or /proc hides it (hidepid).")
                .into()),
            None => parent(),
        }
    }

    /// Reports success, and detaches from the caller's terminal and session. Does nothing in the foreground.
    ///
    /// # Errors
    /// If the foreground process has exited: the user would not learn that this process runs.
    pub fn ready(&self) -> anyhow::Result<()> {
        let Some(number) = self.ready_fd else { return Ok(()) };
        // Reopened through /proc: this does not rely on who else owns the descriptor's number.
        let mut pipe = OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}"))?;
        std::env::set_current_dir("/")?;
        let _ = setsid();
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        pipe.write_all(b"1").context("the parent process is gone")
    }
}

/// The process that started this one.
fn parent() -> anyhow::Result<Process> {
    let gone = || Error::new(ErrorKind::Cancelled).hint("The parent process has exited.");
    let pid = getppid().ok_or_else(gone)?;
    Ok(Process::of(pid.as_raw_pid().cast_unsigned()).map_err(|_| gone())?)
}

/// Starts the program with these `words` in the background: its own name, the verb, and the rest (see [`super::command_line`]).
/// Waits until the new process works or has exited; then returns its exit code.
pub fn start(words: &[OsString], stdin: Stdio) -> anyhow::Result<()> {
    cancel::install()?;
    // The new process inherits only the write end. It must not hold the read end, to notice when this process exits.
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfd(&write, FdFlags::empty())?;
    // The parent may be hidden from this user, as sudo is. Only --with-parent needs it.
    let caller = parent().ok();
    // Process lists show the program's own path. If the file was replaced, /proc/self/exe still works.
    let own = std::env::current_exe().ok().filter(|path| path.is_file());
    let mut command = Command::new(own.unwrap_or_else(|| "/proc/self/exe".into()));
    command.args(&words[1..2]);
    command.arg(format!("--ready-fd={}", write.as_raw_fd()));
    command.args(caller.map(|caller| format!("--caller={}-{}", caller.pid, caller.started)));
    command.args(&words[2..]).stdin(stdin);
    inherited::pass_on_all();
    let mut child = command.spawn().context("starting in the background")?;
    drop(write);
    let pid = Pid::from_raw(child.id().cast_signed()).context("a process has a number")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;

    let mut passed_on = 0;
    loop {
        let mut fds = [PollFd::new(&read, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
        // A signal just before the wait does not interrupt it.
        let tick = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match poll(&mut fds, Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        if fds[0].revents().contains(PollFlags::IN) {
            File::from(read).read_exact(&mut [0])?;
            return Ok(());
        }
        if !fds[1].revents().is_empty() {
            let status = child.wait()?;
            let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(255);
            return Err(Silent(u8::try_from(code).unwrap_or(255)).into());
        }
        // Ctrl-C reaches both processes, but a signal to this one alone does not. Each is passed on, so both processes count the
        // same.
        while passed_on < last_signal::count() {
            let _ = pidfd_send_signal(&process, Signal::TERM);
            passed_on += 1;
        }
    }
}
