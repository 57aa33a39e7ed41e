//! Work of one or more steps, one after the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::program::{CANCELLED, Call, Done, Job, Programs, Progress};

/// Shorter work is not shown.
const PATIENCE: Duration = Duration::from_millis(400);

/// Work at hand.
pub struct Work {
    pub title: String,
    job: Option<Job>,
    rest: VecDeque<Call>,
    /// The result of the first step, or of the one that failed.
    done: Option<Done>,
    since: Instant,
    cancelled: bool,
}

impl Work {
    pub fn new(title: &str, steps: impl IntoIterator<Item = Call>, programs: &Programs) -> Self {
        let rest = steps.into_iter().collect();
        let mut work =
            Self { title: title.to_owned(), job: None, rest, done: None, since: Instant::now(), cancelled: false };
        work.go_on(programs);
        work
    }

    /// Whether it takes long enough to be shown.
    pub fn shows(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }

    pub fn progress(&self) -> Option<Progress> {
        self.job.as_ref().and_then(Job::progress)
    }

    /// Ends it.
    pub fn cancel(&mut self) {
        self.cancelled = true;
        if let Some(job) = &self.job {
            job.cancel();
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Continues. Returns the result once everything is done.
    pub fn poll(&mut self, programs: &Programs) -> Option<Done> {
        while let Some(done) = self.job.as_ref().and_then(Job::done) {
            let before = self.done.take();
            self.done = match before {
                Some(before) if !before.ok() || done.ok() => Some(before),
                _ => Some(done),
            };
            self.go_on(programs);
        }
        self.job.is_none().then(|| self.done.take().unwrap_or_default())
    }

    fn go_on(&mut self, programs: &Programs) {
        self.job = None;
        let Some(call) = self.rest.pop_front() else { return };
        if self.cancelled && self.done.as_ref().is_none_or(Done::ok) {
            self.done = Some(Done { code: CANCELLED, ..Done::default() });
        }
        match self.done.as_ref().is_none_or(Done::ok) {
            true => self.job = Some(programs.start(call)),
            // Steps after a failure are skipped.
            false => self.rest.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Call {
        Call::new(["-c", script])
    }

    fn run(work: &mut Work, programs: &Programs) -> Done {
        loop {
            match work.poll(programs) {
                Some(done) => return done,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    #[test]
    fn what_follows_a_failure_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let touch = |name: &str| shell(&format!("touch {}/{name}", folder.path().display()));
        let steps = [touch("before"), shell("echo no >&2; exit 3"), touch("wrong"), touch("wrong")];
        let programs = Programs::at("sh".into(), || {});
        let done = run(&mut Work::new("w", steps, &programs), &programs);
        assert_eq!((done.code, done.error.as_deref()), (3, Some("no")));
        assert!(folder.path().join("before").exists() && !folder.path().join("wrong").exists());
    }

    #[test]
    fn cancelling_ends_the_step_and_those_behind_it() {
        let programs = Programs::at("sh".into(), || {});
        let mut work = Work::new("w", [shell("exec sleep 60"), shell("exit 0")], &programs);
        work.cancel();
        let done = run(&mut work, &programs);
        assert!(!done.ok() && work.is_cancelled(), "{done:?}");
    }
}
