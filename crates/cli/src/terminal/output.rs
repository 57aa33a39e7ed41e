//! Standard output: each report as text or JSON, and readers that close it.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::{fmt, fs::File};

use anyhow::Context;
use claviger_lab::model::words;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use serde::ser::{self, Serializer};

/// The pipe size, in bytes: the largest that ordinary users may set (pipe(7), pipe-max-size).
const PIPE: usize = 1 << 20;

/// The version of the JSON that verbs print. Within a version, fields are added, but none is renamed or removed: docs/guide/json.md.
pub const JSON_VERSION: u32 = 1;

/// The report of a verb: its fields are the JSON, and `text` writes the same for people.
pub trait Report: Serialize {
    /// Writes the report as text.
    ///
    /// # Errors
    /// Those of `out`.
    fn text(&self, out: &mut dyn Write) -> io::Result<()>;

    /// The report as JSON.
    ///
    /// # Errors
    /// Those of serde_json.
    fn json(&self) -> serde_json::Result<String>
    where
        Self: Sized,
    {
        json(self)
    }
}

/// A report as an object of JSON.
#[derive(Serialize)]
struct Versioned<'a, T> {
    json_version: u32,
    #[serde(flatten)]
    report: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    fn new(report: &'a T) -> Self {
        Self { json_version: JSON_VERSION, report }
    }
}

/// The reader of our standard output has closed it.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of standard output has closed it")
    }
}

impl std::error::Error for ReaderGone {}

/// Serializes values of the engine's types as JSON with sorted member names.
pub fn in_order_of_names<T: Serialize, S: Serializer>(facts: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serde_json::to_value(facts).map_err(ser::Error::custom)?.serialize(serializer)
}

/// Prints the report.
pub fn print(report: &impl Report, json: bool) -> anyhow::Result<()> {
    let text = if json {
        report.json()?
    } else {
        let mut text = Vec::new();
        report.text(&mut text)?;
        words::printable(&String::from_utf8_lossy(&text))
    };
    write(&mut raw()?, text.as_bytes())
}

/// A report as JSON: an object whose first field is the version.
pub fn json(report: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&Versioned::new(report))? + "\n")
}

/// Reports as JSON: a list of such objects.
pub fn json_list<T: Serialize>(reports: &[T]) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&reports.iter().map(Versioned::new).collect::<Vec<_>>())? + "\n")
}

/// Standard output without a buffer, which would keep plaintext in memory and split large writes at newlines.
pub fn raw() -> anyhow::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned().context("standard output")?.into())
}

/// Like [`raw`], for much data: a larger pipe, so that writer and reader need not take turns.
pub fn wide() -> anyhow::Result<File> {
    let stdout = raw()?;
    // Fails unless standard output is a pipe; nothing else needs it.
    let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE);
    Ok(stdout)
}

/// Writes all of `bytes` to standard output, opened by [`raw`].
pub fn write(stdout: &mut File, bytes: &[u8]) -> anyhow::Result<()> {
    match stdout.write_all(bytes) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => other.context("standard output"),
    }
}

/// Prints a warning on standard error; the work continues.
pub fn warn(warning: &str) {
    say(&format!("claviger: warning: {warning}"));
}

/// Prints a note on standard error, such as what takes long.
pub fn note(note: &str) {
    say(&format!("claviger: {note}"));
}

/// Prints lines on standard error, wrapped at words on a terminal. Escapes control characters: names in the text are untrusted.
pub fn say(text: &str) {
    let text = words::printable(text);
    let size = if io::stderr().is_terminal() { tcgetwinsize(io::stderr()).ok() } else { None };
    let text = match size.map_or(0, |size| usize::from(size.ws_col)) {
        // A terminal this narrow, or of unknown width, wraps lines itself.
        ..40 => text,
        // The help is not wider either.
        columns => text.split('\n').map(|line| wrapped(line, columns.min(100))).collect::<Vec<_>>().join("\n"),
    };
    let _ = writeln!(io::stderr(), "{text}");
}

/// Wraps the line at words after `columns` characters. A command in backticks stays on one line, for copying.
fn wrapped(line: &str, columns: usize) -> String {
    let (mut out, mut column, mut in_command) = (String::with_capacity(line.len()), 0, false);
    let at_words = |c: char| {
        in_command ^= c == '`';
        c == ' ' && !in_command
    };
    for (i, word) in line.split(at_words).enumerate() {
        let len = word.chars().count();
        let fits = column + 1 + len <= columns;
        if i > 0 {
            out.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        out.push_str(word);
        column += len;
    }
    out
}

/// A command for people to copy, with its words quoted where a shell requires it. This is the only place that quotes for
/// shells. Control characters, and bytes that are not UTF-8, are written as numbers in `$'…'` (POSIX.1-2024, 2.2.4), which
/// bash, zsh and ksh understand.
pub fn command<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> String {
    words.into_iter().map(|word| shell_word(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// The command of a verb for a volume, folder or address: `claviger unmount DIR` also cleans up after a killed server.
pub fn suggested(verb: &str, name: impl AsRef<OsStr>) -> String {
    command([OsStr::new("claviger"), OsStr::new(verb), name.as_ref()])
}

fn shell_word(word: &OsStr) -> String {
    let Some(word) = word.to_str().filter(|text| !text.chars().any(words::obeyed)) else {
        return format!("$'{}'", numbered(word.as_bytes()));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    // Some shells expand a leading `~` or `=`. `=` elsewhere is part of plain words.
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('=') {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The bytes between the quotes of `$'…'`. Octal numbers have three digits: a following digit would extend a shorter one.
fn numbered(bytes: &[u8]) -> String {
    let plain = |b: u8| (b == b' ' || b.is_ascii_graphic()) && !b"'\\".contains(&b);
    bytes.iter().map(|b| if plain(*b) { char::from(*b).to_string() } else { format!("\\{b:03o}") }).collect()
}

/// The text with `?` for every control character and every character that changes the writing direction.
pub fn printable(text: &str) -> String {
    words::printable(text).replace('\n', "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_at_words_and_commands_stay_whole() {
        let line = "claviger: v: the header is damaged. To repair it: `claviger header repair v`.";
        let lines = ["claviger: v: the", "header is damaged.", "To repair it:", "`claviger header repair v`."];
        assert_eq!(wrapped(line, 20), lines.join("\n"));
        assert_eq!(wrapped("  -x  two", 20), "  -x  two");
        assert_eq!(wrapped("one_word_that_is_longer and", 10), "one_word_that_is_longer\nand");
    }

    #[test]
    fn the_outermost_objects_have_the_version() {
        let report = serde_json::json!({"a": {"b": 1}});
        let object = "{\n  \"json_version\": 1,\n  \"a\": {\n    \"b\": 1\n  }\n}";
        assert_eq!(json(&report).expect("JSON"), format!("{object}\n"));
        let listed = object.replace('\n', "\n  ");
        assert_eq!(json_list(&[&report, &report]).expect("JSON"), format!("[\n  {listed},\n  {listed}\n]\n"));
        assert_eq!(json_list::<()>(&[]).expect("JSON"), "[]\n");
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        for (word, quoted) in [
            ("old.tc", "old.tc"),
            ("/a/b-c_d.e", "/a/b-c_d.e"),
            ("--hash=x", "--hash=x"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(reboot)", "'$(reboot)'"),
            ("~x", "'~x'"),
            ("schl\u{fc}ssel", "'schl\u{fc}ssel'"),
            ("a\u{1b}[31m\nb", r"$'a\033[31m\012b'"),
            ("a\u{202e}1", r"$'a\342\200\2561'"),
        ] {
            assert_eq!(command([word]), quoted);
        }
        assert_eq!(command(["claviger", "info", "a b"]), "claviger info 'a b'");
    }

    /// A shell must read the quoted word as the original word.
    #[test]
    fn a_shell_reads_the_word_that_was_meant() {
        for word in ["a b", "it's", "$(x) `y` \\ \" * ? [a]", "~", "#x", "a=b", "--x", "!", "schl\u{fc}ssel"] {
            assert_eq!(read_by("sh", word.as_bytes()), word.as_bytes());
        }
        let of_terminals: &[&[u8]] =
            &[b"a\nb'c\\d", b"\x1b]0;x\x07 $(y) `z`", b"\xff\xfe7", "\u{202e}7\u{2028}".as_bytes()];
        for word in of_terminals {
            assert_eq!(read_by("bash", word), *word);
        }
    }

    fn read_by(shell: &str, word: &[u8]) -> Vec<u8> {
        let script = format!("printf %s {}", command([OsStr::from_bytes(word)]));
        assert!(!script.chars().any(words::obeyed), "{script:?}");
        std::process::Command::new(shell).args(["-c", &script]).output().expect("a shell").stdout
    }
}
