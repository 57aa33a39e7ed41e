//! A progress bar on standard error, if that is a terminal, and the same progress as lines for another program.

use std::fs::{File, FileType};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::terminal::output::printable;
use crate::terminal::session::{Shown, session};
use crate::terminal::size;

/// Work that is faster than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(700);

/// The shortest time between two lines for another program.
const PACE: Duration = Duration::from_millis(50);

/// The descriptor for progress lines, if another program gets them.
pub fn told() -> Option<BorrowedFd<'static>> {
    session().progress_file.as_ref().map(AsFd::as_fd)
}

/// Writes a progress line for another program, if there is one. A single write: the line arrives whole, or not at all.
fn write_line(line: &Value) {
    let _ = session().progress_file.as_ref().map(|mut to| to.write(format!("{line}\n").as_bytes()));
}

/// Whether to show progress for output to `output`: not if a pager or another program uses the terminal.
pub fn wanted(output: &File) -> bool {
    let stored = |kind: FileType| kind.is_file() || kind.is_block_device();
    session().progress_file.is_some() || output.metadata().is_ok_and(|about| stored(about.file_type()))
}

/// A bar that appears if the work takes long, and disappears when it is dropped.
pub struct Progress {
    bar: ProgressBar,
    since: Instant,
    patience: Duration,
    /// The unit that is counted.
    unit: &'static str,
    /// When the last line for another program was written.
    told: Mutex<Option<Instant>>,
}

impl Progress {
    /// For work that is counted in bytes: shows the rate and the remaining time from the start.
    pub fn bytes(what: &'static str) -> Self {
        Self::new(
            what,
            "{prefix} {bar:30} {bytes} of {total_bytes}, {decimal_bytes_per_sec}, {eta} left",
            Duration::ZERO,
            "bytes",
        )
    }

    /// For trials of a password.
    pub fn trials(what: &'static str) -> Self {
        Self::new(what, "{prefix} {bar:30} {percent} %, {eta} left{msg}", PATIENCE, "parts")
    }

    /// For work that is counted in steps.
    pub fn steps(what: &'static str) -> Self {
        Self::new(what, "{prefix} {bar:30} {pos} of {len}, {eta} left", PATIENCE, "steps")
    }

    /// For work with many long parts: shows the current part.
    pub fn spinner() -> Self {
        Self::new("", "{spinner} {msg}", Duration::ZERO, "steps")
    }

    /// Shows the current part.
    pub fn tell(&self, what: String) {
        self.show();
        write_line(&json!({ "what": what }));
        self.bar.set_message(printable(&what));
        self.bar.tick();
    }

    fn new(what: &'static str, template: &str, patience: Duration, unit: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::with_template(template).expect("a template of ours").progress_chars("=> "));
        bar.set_prefix(what);
        Self { bar, since: Instant::now(), patience, unit, told: Mutex::new(None) }
    }

    /// Shows how many bytes of memory are in use; hides the figure for 0.
    pub fn memory(&self, bytes: u64) {
        let shown = if bytes == 0 { String::new() } else { format!(", {} of memory in use", size::short(bytes)) };
        self.bar.set_message(shown);
    }

    /// Shows that `done` of `all` units are done.
    pub fn at(&self, done: u64, all: u64) {
        self.show();
        self.bar.set_length(all);
        self.bar.set_position(done);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if done == all || told.is_none_or(|told| told.elapsed() >= PACE) {
            *told = Some(Instant::now());
            let left = if done < all { self.bar.eta().as_secs() } else { 0 };
            write_line(&json!({
                "what": self.bar.prefix(), "done": done, "all": all, "unit": self.unit,
                "per_second": self.bar.per_sec() as u64, "seconds_left": left,
            }));
        }
    }

    fn show(&self) {
        if session().shown == Shown::Bar && self.bar.is_hidden() && self.since.elapsed() >= self.patience {
            // Stays hidden where standard error is not a terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Progress {
    /// Removes the bar from the screen.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
