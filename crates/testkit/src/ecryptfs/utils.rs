//! The programs of ecryptfs-utils.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::tools;

/// The passphrase in a file `wrapped-passphrase`, or the error message of `ecryptfs-unwrap-passphrase`. A reported skip
/// if it is not installed.
pub fn unwrap(wrapped: &[u8], wrapping: &str) -> Option<Result<String, String>> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), wrapped).expect("there is room");
    let (out, err, succeeds) = said("ecryptfs-unwrap-passphrase", file.path(), wrapping)?;
    Some(if succeeds { Ok(out.trim_end_matches('\n').to_owned()) } else { Err(err) })
}

/// A file `wrapped-passphrase` made by `ecryptfs-wrap-passphrase`. A reported skip if it is not installed.
///
/// # Panics
/// If it fails.
pub fn wrap(passphrase: &str, wrapping: &str) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("wrapped-passphrase");
    let (out, err, succeeds) = said("ecryptfs-wrap-passphrase", &path, &format!("{passphrase}\n{wrapping}"))?;
    assert!(succeeds, "{out}{err}");
    Some(std::fs::read(path).expect("it was made"))
}

/// The same file with another wrapping passphrase, made by `ecryptfs-rewrap-passphrase`. A reported skip if it is not installed.
///
/// # Panics
/// If it fails.
pub fn rewrap(wrapped: &[u8], old: &str, new: &str) -> Option<Vec<u8>> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), wrapped).expect("there is room");
    let (out, err, succeeds) = said("ecryptfs-rewrap-passphrase", file.path(), &format!("{old}\n{new}"))?;
    assert!(succeeds, "{out}{err}");
    Some(std::fs::read(file.path()).expect("it is there"))
}

/// A program's output for a file. The program reads `input` from standard input.
fn said(program: &str, file: &Path, input: &str) -> Option<(String, String, bool)> {
    use std::io::Write;
    let mut command = Command::new(tools::program(program)?);
    command.arg(file).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&output.stdout), text(&output.stderr), output.status.success()))
}
