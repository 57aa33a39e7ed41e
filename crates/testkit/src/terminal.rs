//! Programs on a terminal of their own, where somebody answers.

use std::fmt::Display;
use std::process::Command;

use crate::tools;

/// Plays `steps` to the program and arguments that the caller adds to this command; see `terminal.py` for what they are, in JSON, and for
/// what is printed. A reported skip without Python.
pub fn played(steps: impl Display) -> Option<Command> {
    let mut command = Command::new(tools::program("python3")?);
    command.args(["-c", include_str!("terminal.py"), &steps.to_string()]).env("TERM", "xterm");
    Some(command)
}
