//! Examines all files of an encrypted folder, for `info`, `explain` and `verify`.

use std::io::{self, Write};

use claviger_engine::file_formats::{FolderSurvey, Problem, Stacked};
use claviger_engine::{FileFormat, Result, trees::Tree};

use crate::opening::files;
use crate::terminal::cancel;
use crate::terminal::progress::Progress;
use crate::terminal::size::count;

/// Problems that are told one by one as text. JSON has all.
const TOLD: usize = 50;

/// Looks at every file, with progress.
pub fn of(format: &dyn FileFormat, lower: &(dyn Tree + 'static), upper: Option<&Stacked>) -> Result<FolderSurvey> {
    let bar = Progress::spinner();
    FolderSurvey::of(format, lower, upper, &mut |so_far| show(&bar, so_far))
}

/// The same, and reads all of them.
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

/// Prints what is wrong, a line for each file.
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

/// How many files each of these has: `3 by 0123456789abcdef`.
pub fn shares(of: &std::collections::BTreeMap<String, u64>) -> String {
    let shares: Vec<_> = of.iter().map(|(what, files)| format!("{what} ({})", count(*files, "file"))).collect();
    few(&shares)
}

/// A list of keys, of which there may be thousands.
pub fn few(all: &[String]) -> String {
    let shown = &all[..all.len().min(TOLD)];
    match all.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
