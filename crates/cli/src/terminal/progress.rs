//! A progress bar on standard error, if that is a terminal, and the same progress as lines for another program.

use std::fs::{File, FileType};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::terminal::output::printable;
use crate::terminal::rate::Rate;
use crate::terminal::session::{Shown, session};
use crate::terminal::size;

/// Work that is faster than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(700);

/// The shortest time between two lines for another program.
const PACE: Duration = Duration::from_millis(50);

/// The descriptor for progress lines, if another program gets them.
pub fn descriptor() -> Option<BorrowedFd<'static>> {
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
    state: Mutex<State>,
}

/// What changes with the work.
#[derive(Default)]
struct State {
    done: u64,
    /// The speed of the part that runs now; `None` before the first report.
    rate: Option<Rate>,
    /// Bytes of memory in use; 0 if that is not shown.
    memory: u64,
    /// When the last line for another program was written.
    last_line: Option<Instant>,
}

impl Progress {
    /// For work that is counted in bytes: shows the rate and the remaining time from the start.
    pub fn bytes(what: &'static str) -> Self {
        Self::new(what, "{prefix} {bar:30} {bytes} of {total_bytes}{msg}", Duration::ZERO, "bytes")
    }

    /// For trials of a password.
    pub fn trials(what: &'static str) -> Self {
        Self::new(what, "{prefix} {bar:30} {percent} %{msg}", PATIENCE, "parts")
    }

    /// For work that is counted in steps.
    pub fn steps(what: &'static str) -> Self {
        Self::new(what, "{prefix} {bar:30} {pos} of {len}{msg}", PATIENCE, "steps")
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
        Self { bar, since: Instant::now(), patience, unit, state: Mutex::default() }
    }

    /// Shows that passwords are now tried as `format`. The speed is measured anew: another format's derivation takes longer.
    pub fn trying(&self, format: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.rate = Some(Rate::from(self.since.elapsed(), state.done));
        self.bar.set_prefix(format!("Trying {format}"));
        self.show();
        self.write(&mut state, None, true);
    }

    /// Shows how many bytes of memory are in use; hides the figure for 0.
    pub fn memory(&self, bytes: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).memory = bytes;
    }

    /// Shows that `done` of `all` units are done.
    pub fn at(&self, done: u64, all: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.since.elapsed();
        match &mut state.rate {
            Some(rate) => rate.measure(now, done),
            None => state.rate = Some(Rate::from(now, done)),
        }
        let left = state.rate.as_ref().and_then(|rate| rate.left(all));
        self.set(&mut state, (done, all), if done == all { Some(Duration::ZERO) } else { left });
    }

    /// The same, where the caller knows how long the rest takes.
    pub fn with_left(&self, done: u64, all: u64, left: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(&mut state, (done, all), Some(left));
    }

    fn set(&self, state: &mut State, (done, all): (u64, u64), left: Option<Duration>) {
        self.show();
        state.done = done;
        self.bar.set_length(all);
        self.bar.set_position(done);
        self.write(state, left, done == all);
    }

    /// Updates the text after the bar. Also writes a line for another program, if the last one is old or this one is `due`.
    fn write(&self, state: &mut State, left: Option<Duration>, due: bool) {
        let per_second = state.rate.as_ref().and_then(Rate::per_second).map(|rate| rate as u64);
        let rate = per_second.filter(|_| self.unit == "bytes").map(|rate| format!("{}/s", DecimalBytes(rate)));
        // Less than a second is not nothing.
        let left = left.map(|left| left.as_secs_f64().ceil() as u64);
        let time =
            left.filter(|left| *left > 0).map(|left| format!("{:#} left", HumanDuration(Duration::from_secs(left))));
        let memory = (state.memory > 0).then(|| format!("{} of memory in use", size::short(state.memory)));
        self.bar
            .set_message([rate, time, memory].into_iter().flatten().map(|it| format!(", {it}")).collect::<String>());
        if due || state.last_line.is_none_or(|last| last.elapsed() >= PACE) {
            state.last_line = Some(Instant::now());
            write_line(&json!({
                "what": self.bar.prefix(), "done": state.done, "all": self.bar.length().unwrap_or(0),
                "unit": self.unit, "per_second": per_second, "seconds_left": left,
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
