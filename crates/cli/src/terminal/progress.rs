//! A bar on standard error while something takes long, only where that is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal::size;

/// What takes no longer than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(700);

/// A bar that appears when its work takes long, and goes when it is dropped.
pub struct Progress {
    bar: ProgressBar,
    since: Instant,
    patience: Duration,
}

impl Progress {
    /// For work that is counted in bytes: shows rate and remaining time, at once.
    pub fn bytes(what: &'static str) -> Self {
        Self::new(
            what,
            "{prefix} {bar:30} {bytes} of {total_bytes}, {decimal_bytes_per_sec}, {eta} left",
            Duration::ZERO,
        )
    }

    /// For trials of a password.
    pub fn trials(what: &'static str) -> Self {
        Self::new(what, "{prefix} {bar:30} {percent} %, {eta} left{msg}", PATIENCE)
    }

    /// For steps of any kind.
    pub fn steps(what: &'static str) -> Self {
        Self::new(what, "{prefix} {bar:30} {pos} of {len}, {eta} left", PATIENCE)
    }

    /// For work of many parts that take long: says what is done now.
    pub fn spinner() -> Self {
        Self::new("", "{spinner} {msg}", Duration::ZERO)
    }

    /// What is done now.
    pub fn tell(&self, what: String) {
        self.show();
        self.bar.set_message(what);
        self.bar.tick();
    }

    fn new(what: &'static str, template: &str, patience: Duration) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::with_template(template).expect("a template of ours").progress_chars("=> "));
        bar.set_prefix(what);
        Self { bar, since: Instant::now(), patience }
    }

    /// Shows how many bytes of memory are in use, unless it is none.
    pub fn memory(&self, bytes: u64) {
        let shown = if bytes == 0 { String::new() } else { format!(", {} of memory in use", size::short(bytes)) };
        self.bar.set_message(shown);
    }

    /// `done` of `all` are done.
    pub fn at(&self, done: u64, all: u64) {
        self.show();
        self.bar.set_length(all);
        self.bar.set_position(done);
    }

    fn show(&self) {
        if self.bar.is_hidden() && self.since.elapsed() >= self.patience {
            // Stays hidden where standard error is not a terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Progress {
    /// Takes the bar off the screen.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
