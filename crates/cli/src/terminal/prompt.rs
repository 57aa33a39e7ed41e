//! Questions to the person at the terminal. Answers are read byte by byte, straight to where they belong: no buffer of
//! the standard library holds a password.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use claviger_engine::{Error, ErrorKind, Result, Secret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr,
};

use crate::terminal::cancel;

/// The kernel gives at most 4096 bytes of a line, its newline included (termios(3), canonical mode).
const LINE: usize = 4096;

/// The terminal of this process, or none.
pub fn terminal() -> Option<File> {
    OpenOptions::new().read(true).write(true).open("/dev/tty").ok()
}

/// Asks for a password without showing it.
///
/// # Errors
/// `Cancelled` after Ctrl-C, with the terminal as it was before; `Io`.
pub fn password(terminal: &File, question: &str) -> Result<Secret> {
    cancel::install()?;
    let hidden = Hidden::new(terminal)?;
    let line = ask(terminal, question);
    drop(hidden);
    // The person's Enter, or Ctrl-C, was not shown either.
    let _ = (&*terminal).write_all(b"\n");
    line
}

/// Asks a question whose answer must be `yes`.
///
/// # Errors
/// `Cancelled`, `Io`.
fn yes(terminal: &File, question: &str) -> Result<bool> {
    cancel::install()?;
    // What was typed before the question is no answer to it.
    tcflush(terminal, QueueSelector::IFlush).map_err(io::Error::from)?;
    let answer = ask(terminal, question)?;
    Ok(answer.trim_ascii().eq_ignore_ascii_case(b"yes"))
}

/// Asks a question whose answer is no secret. `in_script` is the option that answers it in a script.
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

/// Goes on only if the person says yes. `refused` makes an error of why not; `in_script` is what says yes in a script.
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

/// Asks a question, and has another process wait for the answer.
type Asker = Box<dyn Fn(&str) -> io::Result<bool> + Send + Sync>;

/// Who asks for this process, which cannot reach the terminal any more; nobody, if there is none.
static ELSEWHERE: OnceLock<Option<Asker>> = OnceLock::new();

/// From here on questions go to another process, if there is a terminal.
pub fn ask_elsewhere(ask: impl Fn(&str) -> io::Result<bool> + Send + Sync + 'static) {
    let terminal = terminal().filter(|t| t.is_terminal());
    let _ = ELSEWHERE.set(terminal.map(|_| Box::new(ask) as Asker));
}

/// Whether the person says yes, for another process.
///
/// # Errors
/// `Cancelled`, `Io`.
pub fn says_yes(question: &str) -> Result<bool> {
    terminal().map_or(Ok(false), |terminal| yes(&terminal, question))
}

fn ask(mut terminal: &File, question: &str) -> Result<Secret> {
    terminal.write_all(question.as_bytes())?;
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

/// Waits until there is something to read, or a signal has come.
///
/// # Errors
/// `Cancelled`, `Io`.
pub fn wait(file: impl AsFd) -> Result<()> {
    // A signal interrupts the wait, unless it came just before: so it looks again ten times a second.
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

/// The terminal does not echo as long as this lives.
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
        // Flush: what was typed before the question is no answer to it.
        tcsetattr(terminal, OptionalActions::Flush, &quiet).map_err(io::Error::from)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}
