//! Prompts on the terminal. Answers are read byte by byte, directly into their final memory: no buffer of the standard library
//! holds a password.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use claviger_engine::internal::read_secret;
use claviger_engine::{Error, ErrorKind, Result, Secret};
use claviger_lab::model::words;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr,
};

use crate::terminal::session::{Ask, session};
use crate::terminal::{cancel, output};

/// The kernel returns at most 4096 bytes of a line, including its newline (termios(3), canonical mode).
const LINE: usize = 4096;

/// The volume that the prompts are for; a systemd agent shows it, because its user does not see the command.
static ABOUT: Mutex<String> = Mutex::new(String::new());

/// Sets the volume that the prompts are for.
pub fn about(path: &Path) {
    *ABOUT.lock().unwrap_or_else(PoisonError::into_inner) = path.display().to_string();
}

/// Where a password can be asked for.
pub enum Asker {
    /// At a terminal.
    Terminal(File),
    /// Through a systemd password agent.
    Systemd,
}

/// Where to ask for a password, if anybody can answer.
pub fn asker() -> Option<Asker> {
    match session().ask {
        Ask::Systemd => Some(Asker::Systemd),
        _ => terminal().map(Asker::Terminal),
    }
}

impl Asker {
    /// The terminal, if it is one: the person there can be asked again.
    pub fn into_terminal(self) -> Option<File> {
        if let Self::Terminal(terminal) = self { Some(terminal) } else { None }
    }

    /// Asks for a password without echo.
    ///
    /// # Errors
    /// `Cancelled` after Ctrl-C; `Misuse` if nobody answers; `Io`.
    pub fn password(&self, question: &str) -> Result<Secret> {
        match self {
            Self::Terminal(terminal) => password(terminal, question),
            Self::Systemd => by_systemd(question),
        }
    }
}

/// systemd-ask-password passes the question to systemd's agents, and prints the answer as a line.
fn by_systemd(question: &str) -> Result<Secret> {
    const PROGRAM: &str = "systemd-ask-password";
    cancel::install()?;
    let about = ABOUT.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let question = question.trim_end_matches([' ', ':']);
    let question = if about.is_empty() { format!("{question}:") } else { format!("{question} ({about}):") };
    let question = output::printable(&question);
    let mut command = Command::new(PROGRAM);
    command.args(["--no-tty", "--timeout=0", "--id=claviger", "--icon=drive-harddisk", "--", &question]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    const OTHERWISE: &str = "Ask with --ask terminal.";
    let mut child = child.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::not_installed("--ask systemd", (PROGRAM, "systemd"), OTHERWISE),
        _ => Error::from(e).at(PROGRAM.as_ref()).hint(OTHERWISE),
    })?;
    let stdout = child.stdout.take().expect("it is piped");
    let read = |room: &mut [u8]| {
        wait(&stdout)?;
        Ok(rustix::io::read(&stdout, room)?)
    };
    let answer = read_secret::read_up_to(LINE, read);
    if answer.is_err() {
        // The signal also withdraws the question from the agents.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
    }
    let ended = child.wait()?;
    let answer = answer?;
    match answer.split_last() {
        Some((b'\n', password)) if ended.success() => Ok(Secret::copy_from(password)),
        _ => Err(Error::misuse("no systemd password agent answered").hint("Ask with --ask terminal.")),
    }
}

/// The terminal of this process, if any.
pub fn terminal() -> Option<File> {
    if session().ask == Ask::Nobody {
        return None;
    }
    OpenOptions::new().read(true).write(true).open("/dev/tty").ok()
}

/// Asks for a password without echo.
///
/// # Errors
/// `Cancelled` after Ctrl-C, with the terminal's settings restored; `Io`.
pub fn password(terminal: &File, question: &str) -> Result<Secret> {
    cancel::install()?;
    let hidden = Hidden::new(terminal)?;
    let line = ask(terminal, question);
    drop(hidden);
    // The user's Enter or Ctrl-C was not echoed either.
    let _ = (&*terminal).write_all(b"\n");
    line
}

/// Tells the person at the terminal something between two questions.
pub fn tell(mut terminal: &File, line: &str) {
    let _ = terminal.write_all(format!("{}\n", words::printable(line)).as_bytes());
}

/// Asks a question to which `y` and `yes` are the only answers that say yes.
///
/// # Errors
/// `Cancelled`, `Io`.
fn yes(terminal: &File, question: &str) -> Result<bool> {
    cancel::install()?;
    // Discards what was typed before the question.
    tcflush(terminal, QueueSelector::IFlush).map_err(io::Error::from)?;
    let answer = ask(terminal, &format!("{question} [y/N] "))?;
    Ok([&b"y"[..], b"yes"].iter().any(|yes| answer.trim_ascii().eq_ignore_ascii_case(yes)))
}

/// Asks a question whose answer is not secret. `in_script` is the option that answers it in a script.
///
/// # Errors
/// `Misuse` without a terminal; `Cancelled`, `Io`.
pub fn line(question: &str, in_script: &str) -> Result<String> {
    let terminal = terminal().filter(|t| t.is_terminal()).ok_or_else(|| {
        let hint = format!("In a script, add {in_script}.");
        Error::misuse("a confirmation is needed, but there is no terminal to ask on").hint(hint)
    })?;
    cancel::install()?;
    tcflush(&terminal, QueueSelector::IFlush).map_err(io::Error::from)?;
    Ok(String::from_utf8_lossy(&ask(&terminal, question)?).into_owned())
}

/// Continues only if the user says yes to `question`, which ends with its question mark. `refused` makes the error from the reason; `in_script` is the option that says yes.
///
/// # Errors
/// That of `refused`; `Cancelled`, `Io`.
pub fn consent(question: &str, in_script: &str, refused: impl Fn(&str) -> Error) -> Result<()> {
    let no_terminal =
        || refused(", because there is no terminal to ask on").hint(format!("In a script, add {in_script}."));
    let agreed = match ELSEWHERE.get() {
        Some(Some(ask)) => ask(question).map_err(|e| cancel::check().err().unwrap_or(e.into()))?,
        Some(None) => return Err(no_terminal()),
        None => {
            let terminal = terminal().filter(|t| t.is_terminal());
            yes(&terminal.ok_or_else(no_terminal)?, question)?
        }
    };
    if agreed { Ok(()) } else { Err(refused("")) }
}

/// Passes a question to another process and waits for the answer.
type Confirm = Box<dyn Fn(&str) -> io::Result<bool> + Send + Sync>;

/// The prompt in another process, for a process that cannot reach the terminal; `None` inside if there is no terminal.
static ELSEWHERE: OnceLock<Option<Confirm>> = OnceLock::new();

/// From here on, another process asks the questions, if there is a terminal.
pub fn ask_elsewhere(ask: impl Fn(&str) -> io::Result<bool> + Send + Sync + 'static) {
    let terminal = terminal().filter(|t| t.is_terminal());
    let _ = ELSEWHERE.set(terminal.map(|_| Box::new(ask) as Confirm));
}

/// Asks on behalf of another process; true if the user says yes.
///
/// # Errors
/// `Cancelled`, `Io`.
pub fn says_yes(question: &str) -> Result<bool> {
    terminal().map_or(Ok(false), |terminal| yes(&terminal, question))
}

fn ask(mut terminal: &File, question: &str) -> Result<Secret> {
    terminal.write_all(words::printable(question).as_bytes())?;
    let mut line = Secret::zeroed(LINE);
    let mut len = 0;
    loop {
        wait(terminal)?;
        let read = rustix::io::read(terminal, &mut line[len..]).map_err(io::Error::from)?;
        if read == 0 && len == 0 {
            return Err(Error::misuse("the terminal gave no answer"));
        }
        len += read;
        if read == 0 || line[len - 1] == b'\n' || len == LINE {
            let end = if line[len - 1] == b'\n' { len - 1 } else { len };
            return Ok(Secret::copy_from(&line[..end]));
        }
    }
}

/// Waits until there is input, or a signal comes.
///
/// # Errors
/// `Cancelled`, `Io`.
pub fn wait(file: impl AsFd) -> Result<()> {
    // A signal interrupts the wait, unless it comes just before. So this checks ten times per second.
    let tick = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        cancel::check()?;
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&tick)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(ErrorKind::Io(e.into()).into()),
        }
    }
}

/// Disables the terminal's echo until it is dropped.
struct Hidden<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Hidden<'a> {
    fn new(terminal: &'a File) -> Result<Self> {
        let before = tcgetattr(terminal).map_err(io::Error::from)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        quiet.local_modes.insert(LocalModes::ICANON | LocalModes::ISIG);
        // Ctrl-\\ and Ctrl-Z would leave the terminal without echo.
        quiet.special_codes[SpecialCodeIndex::VQUIT] = 0;
        quiet.special_codes[SpecialCodeIndex::VSUSP] = 0;
        // Flush discards what was typed before the question.
        tcsetattr(terminal, OptionalActions::Flush, &quiet).map_err(io::Error::from)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}
