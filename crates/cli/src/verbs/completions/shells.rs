//! The protocol of each shell. A name never reaches a shell as text that it would evaluate. Paths are left to the shell's own
//! completion. Candidates are passed one per line: zsh and fish quote them; for bash they are quoted here.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;

use clap::Command;
use clap_complete::engine::{self, CompletionCandidate};
use clap_complete::env::EnvCompleter;

use super::words::{self, Line};
use crate::terminal::output::printable;

/// Stands for paths, which the shell completes. No name contains a zero byte.
pub const PATHS: &str = "\0paths";
/// Stands for folders, which the shell completes.
pub const FOLDERS: &str = "\0folders";

/// A shell and its protocol.
pub struct Shell {
    name: &'static str,
    script: &'static str,
    /// Parses the script's arguments into the words before the cursor.
    line: fn(Vec<OsString>) -> Line,
    /// Quotes a word as the script expects it.
    quoted: fn(&str, &Line) -> String,
    /// Whether the shell shows a help text with each word.
    with_help: bool,
}

pub const BASH: Shell = Shell {
    name: "bash",
    script: include_str!("bash.sh"),
    line: Line::of_bash,
    quoted: |word, line| words::quoted(word, line.quote),
    with_help: false,
};
pub const ZSH: Shell = Shell {
    name: "zsh",
    script: include_str!("zsh.sh"),
    line: Line::of_words,
    quoted: |word, _| word.to_owned(),
    with_help: true,
};
pub const FISH: Shell = Shell { name: "fish", script: include_str!("fish.sh"), ..ZSH };

/// The words of the command line that is being completed.
pub fn words_before() -> &'static [OsString] {
    ASKED.get().map_or(&[], |line| &line.words)
}

static ASKED: OnceLock<Line> = OnceLock::new();

impl EnvCompleter for Shell {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is(&self, name: &str) -> bool {
        name == self.name
    }

    fn write_registration(&self, _: &str, _: &str, _: &str, _: &str, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.script.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let line = ASKED.get_or_init(|| (self.line)(args));
        let at = line.words.len() - 1;
        let offered = engine::complete(command, line.words.clone(), at, folder)?;
        self.write(&offered, line, out)
    }
}

impl Shell {
    fn write(&self, offered: &[CompletionCandidate], line: &Line, out: &mut dyn Write) -> io::Result<()> {
        let words: Vec<_> = offered.iter().filter(|candidate| offers(candidate, line.current())).collect();
        let own =
            |kind: &&str| offered.iter().any(|candidate| text(candidate).is_some_and(|text| text.ends_with(*kind)));
        let kind = match [PATHS, FOLDERS].iter().find(|kind| own(kind)) {
            Some(kind) if words.is_empty() => &kind[1..],
            None if words.is_empty() => return Ok(()),
            _ => "words",
        };
        writeln!(out, "{kind}")?;
        for word in words {
            let value = word.get_value().to_string_lossy();
            out.write_all((self.quoted)(value.get(line.fixed..).unwrap_or(&value), line).as_bytes())?;
            let help = word.get_help().filter(|_| self.with_help).map(ToString::to_string);
            if let Some(help) = help.as_deref().and_then(|help| help.lines().next()) {
                write!(out, "\t{help}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

fn text(candidate: &CompletionCandidate) -> Option<&str> {
    candidate.get_value().to_str()
}

/// Offers options only after a hyphen. Never offers names with control characters, or names that no shell can be given.
fn offers(candidate: &CompletionCandidate, current: &OsStr) -> bool {
    let begun = current.as_encoded_bytes().starts_with(b"-");
    text(candidate).is_some_and(|text| printable(text) == text && (begun || !text.starts_with('-')))
}
