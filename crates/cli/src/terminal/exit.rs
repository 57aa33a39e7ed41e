//! Exit codes: the one place that maps errors to numbers.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
use claviger_engine::{Error, ErrorKind};
use serde::Serialize;

use crate::terminal::output::{self, JSON_VERSION, ReaderGone};
use crate::terminal::{advice, foreign};

/// An exit code: the number, its name in JSON, and its meaning.
pub struct Code {
    number: u8,
    name: &'static str,
    meaning: &'static str,
}

/// Every exit code; the number is the index.
pub static CODES: &[Code] = &[
    code(0, "done", "done"),
    code(1, "misuse", "wrong usage: an unknown option, a size that does not fit, a refused overwrite"),
    code(2, "wrong-credential", "the passwords and keyfiles do not open the volume"),
    code(3, "not-this-format", "not a volume of the requested format, or of any known one"),
    code(4, "damaged", "recognised, but damaged or truncated"),
    code(5, "unsupported", "recognised, but not supported"),
    code(6, "io", "a file or device could not be read or written, or a program is not installed"),
    code(7, "too-little-memory", "the key derivation needs more memory than is free"),
    code(8, "cancelled", "cancelled (Ctrl-C, SIGTERM)"),
    code(9, "in-use", "another process has the volume open"),
];

const DONE: usize = 0;
const MISUSE: usize = 1;
const NOT_THIS_FORMAT: usize = 3;
const DAMAGED: usize = 4;
const IO: usize = 6;
const CANCELLED: usize = 8;

const fn code(number: u8, name: &'static str, meaning: &'static str) -> Code {
    Code { number, name, meaning }
}

/// Ends the program silently with this number: the error has been reported, or another program reports it.
#[derive(Debug)]
pub struct Silent(pub u8);

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended with {}", self.0)
    }
}

impl std::error::Error for Silent {}

impl Silent {
    /// The exit code for an error that has been reported.
    pub fn after(error: &anyhow::Error) -> Self {
        Self(classify(error).number)
    }

    /// The exit code for a volume that was checked and is damaged.
    pub fn damaged() -> Self {
        Self(CODES[DAMAGED].number)
    }

    /// The exit code for something that was tried and does not work.
    pub fn failed() -> Self {
        Self(CODES[IO].number)
    }

    /// The exit code for a slowdown above the limit, which has been reported.
    pub fn slower() -> Self {
        Self(CODES[MISUSE].number)
    }

    /// The exit code for a file that was checked and is not a volume.
    pub fn not_this_format() -> Self {
        Self(CODES[NOT_THIS_FORMAT].number)
    }
}

/// Reports a command line that clap rejected, or prints the help.
pub fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if let Some(known) = foreign::suggestion(error) {
        report(&known.into(), json);
        return number(MISUSE);
    }
    // clap repeats words of the command line verbatim, so it gets them in printable form.
    let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let shown: Vec<_> = words.iter().map(|word| output::printable(word)).collect();
    let again = if shown == words { None } else { crate::command().try_get_matches_from(shown).err() };
    let error = again.as_ref().unwrap_or(error);
    // Without a verb, the answer is the help, as text.
    let is_help = error.kind() == DisplayHelpOnMissingArgumentOrSubcommand && !json;
    if error.use_stderr() && !is_help {
        let text = error.render().to_string();
        report(&Error::misuse(text.trim().trim_start_matches("error: ")).into(), json);
        return number(MISUSE);
    }
    match error.print() {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => number(IO),
        _ if error.use_stderr() => number(MISUSE),
        _ => number(DONE),
    }
}

/// Reports the error, if any, and returns the exit code.
pub fn finish(result: anyhow::Result<()>, json: bool) -> ExitCode {
    let Err(error) = result else { return number(DONE) };
    if let Some(Silent(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    // The reader has closed our output: not an error.
    if error.downcast_ref::<ReaderGone>().is_some() {
        return number(DONE);
    }
    report(&error, json);
    ExitCode::from(classify(&error).number)
}

#[derive(Serialize)]
struct ErrorReport {
    json_version: u32,
    error: Failure,
}

/// An error in a report.
#[derive(Serialize)]
pub struct Failure {
    kind: &'static str,
    message: String,
    /// What to try, in whole sentences.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    pub exit_code: u8,
}

impl Failure {
    /// The error with its exit code and what to try.
    pub fn of(error: &anyhow::Error) -> Self {
        let (message, hint) = message_and_hint(error);
        let &Code { number, name, meaning: _ } = classify(error);
        Self { kind: name, message, hint, exit_code: number }
    }
}

/// Reports an error on standard error: as text, or with `json` as an object on one line.
pub fn report(error: &anyhow::Error, json: bool) {
    let error = Failure::of(error);
    let text = if json {
        let report = ErrorReport { json_version: JSON_VERSION, error };
        serde_json::to_string(&report).expect("strings and a number are JSON")
    } else {
        let lines = [Some(error.message), error.hint];
        format!("claviger: {}", lines.into_iter().flatten().collect::<Vec<_>>().join("\n"))
    };
    output::say(&text);
}

/// The exit codes as a table for people.
pub fn table() -> String {
    let rows = CODES.iter().map(|c| format!("  {}  {}\n", c.number, c.meaning));
    format!("Exit status:\n{}", rows.collect::<String>())
}

/// The number and meaning of each exit code.
pub fn rows() -> impl Iterator<Item = (u8, &'static str)> {
    CODES.iter().map(|c| (c.number, c.meaning))
}

/// The chain of causes in one line, and what to try. The engine's errors already contain their cause.
fn message_and_hint(error: &anyhow::Error) -> (String, Option<String>) {
    let mut text = String::new();
    let mut hint = None;
    for cause in error.chain() {
        if !text.is_empty() {
            text.push_str(": ");
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            let whole = error.in_words(advice::say);
            hint = error.to_try(advice::say);
            let tried = hint.as_ref().and_then(|hint| whole.strip_suffix(&**hint));
            text.push_str(tried.unwrap_or(&whole).trim_end_matches('\n'));
            break;
        }
        text.push_str(&cause.to_string());
    }
    (without_numbers(text), hint.map(|hint| without_numbers(advice::with_volume(&hint))))
}

/// Removes error numbers, which tell people nothing, from the system's messages.
pub fn without_numbers(mut text: String) -> String {
    const BEGINS: &str = " (os error ";
    while let Some(at) = text.find(BEGINS)
        && let Some(len) = text[at..].find(')')
        && text[at + BEGINS.len()..at + len].bytes().all(|byte| byte.is_ascii_digit())
    {
        text.replace_range(at..=at + len, "");
    }
    text
}

fn classify(error: &anyhow::Error) -> &'static Code {
    let index = error.chain().find_map(|cause| {
        if let Some(e) = cause.downcast_ref::<Error>() {
            return Some(of_kind(&e.kind));
        }
        cause.is::<io::Error>().then_some(IO)
    });
    &CODES[index.unwrap_or(MISUSE)]
}

/// The exit code for a kind of error.
pub fn number_of(kind: &ErrorKind) -> u8 {
    CODES[of_kind(kind)].number
}

fn of_kind(kind: &ErrorKind) -> usize {
    // The engine may have new kinds that this program does not know.
    Some(usize::from(kind.code())).filter(|code| *code < CODES.len()).unwrap_or(MISUSE)
}

fn number(index: usize) -> ExitCode {
    ExitCode::from(CODES[index].number)
}

/// The exit code of a cancelled program.
pub fn cancelled() -> i32 {
    i32::from(CODES[CANCELLED].number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn numbers_are_indices() {
        assert!(CODES.iter().enumerate().all(|(i, c)| usize::from(c.number) == i));
    }

    #[test]
    fn every_kind_has_its_number() {
        let memory = ErrorKind::TooLittleMemory { needed: 2, available: 1 };
        let malformed = ErrorKind::Malformed { field: "f", offset: 0, what: "w".into() };
        let kinds = [
            (ErrorKind::Misuse(String::new()), 1),
            (ErrorKind::CredentialKind { format: "F", kind: "keyfile" }, 1),
            (ErrorKind::WrongCredential(String::new()), 2),
            (ErrorKind::WrongHiddenCredential(String::new()), 2),
            (ErrorKind::NotThisFormat(String::new()), 3),
            (malformed, 4),
            (ErrorKind::Unsupported { what: String::new() }, 5),
            (ErrorKind::Io(io::ErrorKind::NotFound.into()), 6),
            (memory, 7),
            (ErrorKind::Cancelled, 8),
            (ErrorKind::InUse { holder: None }, 9),
        ];
        for (kind, number) in kinds {
            let error = anyhow::Error::new(Error::new(kind)).context("while testing");
            assert_eq!(classify(&error).number, number, "{error:#}");
        }
        let io = Err::<(), _>(io::Error::from(io::ErrorKind::NotFound)).context("reading").expect_err("an error");
        assert_eq!(classify(&io).number, 6);
        assert_eq!(classify(&anyhow::anyhow!("no kind")).number, 1);
    }

    #[test]
    fn causes_are_told_once() {
        let error = Error::from(io::Error::other("the disk is on fire")).at("x.tc".as_ref());
        let error = anyhow::Error::new(error.hint("Put it out.")).context("serving");
        let (message, hint) = message_and_hint(&error);
        assert_eq!((&*message, hint.as_deref()), ("serving: x.tc: the disk is on fire", Some("Put it out.")));
    }
}
