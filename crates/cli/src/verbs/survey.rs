//! Examines all files of an encrypted folder, for `info`, `explain` and `verify`.

use std::io::{self, Write};

use claviger_engine::file_formats::{FolderSurvey, Problem, Stacked};
use claviger_engine::{FileFormat, Result, trees::Tree};

use crate::opening::files;
use crate::terminal::cancel;
use crate::terminal::progress::Progress;
use crate::terminal::size::count;

/// The most problems that are listed as text. JSON has all of them.
const TOLD: usize = 50;

/// Examines every file, with progress.
pub fn of(format: &dyn FileFormat, lower: &(dyn Tree + 'static), upper: Option<&Stacked>) -> Result<FolderSurvey> {
    let bar = Progress::spinner();
    FolderSurvey::of(format, lower, upper, &mut |so_far| show(&bar, so_far))
}

/// Examines every file and reads its contents.
pub fn with_contents(format: &dyn FileFormat, lower: &(dyn Tree + 'static), upper: &Stacked) -> Result<FolderSurvey> {
    let bar = Progress::spinner();
    FolderSurvey::with_contents(format, lower, upper, &mut |so_far| show(&bar, so_far))
}

fn show(bar: &Progress, so_far: &FolderSurvey) -> Result<()> {
    cancel::check()?;
    if so_far.files.is_multiple_of(256) {
        bar.tell(format!("{} files", so_far.files));
    }
    Ok(())
}

/// Prints the problems, one line per file.
pub fn tell(problems: &[Problem], out: &mut dyn Write) -> io::Result<()> {
    for problem in problems.iter().take(TOLD) {
        writeln!(
            out,
            "  {}: {}",
            files::shown(problem.path.as_os_str()),
            problem.facts.problem.as_deref().unwrap_or_default()
        )?;
    }
    match problems.len().checked_sub(TOLD) {
        None | Some(0) => Ok(()),
        Some(more) => writeln!(out, "  and {more} more; --json lists all"),
    }
}

/// The number of files of each key: `0123456789abcdef (3 files)`.
pub fn shares(of: &std::collections::BTreeMap<String, u64>) -> String {
    let shares: Vec<_> = of.iter().map(|(what, files)| format!("{what} ({})", count(*files, "file"))).collect();
    few(&shares)
}

/// A shortened list of keys: there may be thousands.
pub fn few(all: &[String]) -> String {
    let shown = &all[..all.len().min(TOLD)];
    match all.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
