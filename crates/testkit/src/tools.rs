//! Third-party programs and samples that tests need. A missing one is a *reported* skip, and a failure in CI.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Finds the program `name`; a reported skip if it is missing.
///
/// # Panics
/// In CI (`CI` is set), where everything is installed and nothing may be skipped.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = places.map(|dir| dir.join(name)).find(|p| p.is_file());
    found.or_else(|| skip(&format!("the program {name} is not installed")))
}

/// A file or folder of the samples, which are in `shared/samples` beside the checkout or where `CLAVIGER_SAMPLES` says;
/// a reported skip if it is missing.
///
/// # Panics
/// In CI, where they exist.
pub fn sample(name: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/samples");
    let path = env::var_os("CLAVIGER_SAMPLES").map_or_else(beside, PathBuf::from).join(name);
    if path.exists() { path.canonicalize().ok() } else { skip(&format!("the sample {name} is not there")) }
}

/// Continues only as root; otherwise a reported skip.
///
/// # Panics
/// In CI, which runs as root.
pub fn root() -> Option<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|l| l.strip_prefix("Uid:")).and_then(|l| l.split_whitespace().nth(1));
    if uid == Some("0") { Some(()) } else { skip("not root") }
}

/// Reports that the calling test is skipped, and why.
///
/// # Panics
/// In CI.
pub fn skip<T>(why: &str) -> Option<T> {
    assert!(env::var_os("CI").is_none(), "nothing may be skipped in CI: {why}");
    // Bypasses the test harness, which would swallow the output of a passing test.
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
    None
}

/// Runs `command` to completion.
///
/// # Panics
/// If it cannot be started or fails; the message includes its output.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
