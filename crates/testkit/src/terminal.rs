//! Runs programs on their own terminal, with scripted answers.

use std::fmt::Display;
use std::process::Command;

use crate::tools;

/// A command that plays `steps`; the caller adds the program and its arguments. See `terminal.py` for the steps, in
/// JSON, and the output. A reported skip without Python.
pub fn played(steps: impl Display) -> Option<Command> {
    let mut command = Command::new(tools::program("python3")?);
    command.args(["-c", include_str!("terminal.py"), &steps.to_string()]).env("TERM", "xterm");
    Some(command)
}
