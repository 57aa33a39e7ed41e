//! Standard output: text and JSON of the same structs, and a reader that goes away.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::{fmt, fs::File};

use anyhow::Context;
use serde::Serialize;

/// Something a verb reports: its fields are the JSON, `text` is the same for people.
pub trait Report: Serialize {
    /// Writes it as text.
    ///
    /// # Errors
    /// Those of `out`.
    fn text(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// Whoever read our standard output has closed it.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of standard output has closed it")
    }
}

impl std::error::Error for ReaderGone {}

/// Prints the report.
pub fn print(report: &impl Report, json: bool) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    if json {
        serde_json::to_writer_pretty(&mut bytes, report)?;
        bytes.push(b'\n');
    } else {
        report.text(&mut bytes)?;
    }
    write(&mut raw()?, &bytes)
}

/// Standard output without a buffer, which would keep plaintext and cut large writes at newlines.
pub fn raw() -> anyhow::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned().context("standard output")?.into())
}

/// Writes all of `bytes` to standard output, opened by [`raw`].
pub fn write(stdout: &mut File, bytes: &[u8]) -> anyhow::Result<()> {
    match stdout.write_all(bytes) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => other.context("standard output"),
    }
}

/// Says on standard error what a person must know although the work goes on.
pub fn warn(warning: &str) {
    let _ = writeln!(io::stderr(), "claviger: warning: {warning}");
}
