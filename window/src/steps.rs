//! Work of one or more steps, one after the other.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::program::{CANCELLED, Call, Done, Job, Programs, Progress};

/// What takes no longer than this is not shown.
const PATIENCE: Duration = Duration::from_millis(400);

/// One step.
#[derive(Debug)]
pub enum Step {
    Call {
        call: Call,
        /// Whether it is also done after another one has failed.
        always: bool,
    },
    /// A folder that only this user enters.
    Folder(PathBuf),
}

impl Step {
    pub fn call(call: Call) -> Self {
        Self::Call { call, always: false }
    }

    pub fn always(call: Call) -> Self {
        Self::Call { call, always: true }
    }
}

/// Work at hand.
pub struct Work {
    pub title: String,
    job: Option<Job>,
    rest: VecDeque<Step>,
    /// Whether the step at work is one that the next ones need.
    counts: bool,
    /// What the first step came to, or the one that failed.
    done: Option<Done>,
    since: Instant,
    cancelled: bool,
}

impl Work {
    pub fn new(title: &str, steps: impl IntoIterator<Item = Step>, programs: &Programs) -> Self {
        let rest = steps.into_iter().collect();
        let mut work = Self {
            title: title.to_owned(),
            job: None,
            rest,
            counts: true,
            done: None,
            since: Instant::now(),
            cancelled: false,
        };
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

    /// Ends it, but for what has to be done all the same.
    pub fn cancel(&mut self) {
        self.cancelled = true;
        if let Some(job) = self.job.as_ref().filter(|_| self.counts) {
            job.cancel();
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Goes on. What it came to, once all is done.
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
        while let Some(step) = self.rest.pop_front() {
            if self.cancelled && self.done.as_ref().is_none_or(Done::ok) {
                self.done = Some(Done { code: CANCELLED, ..Done::default() });
            }
            let failed = self.done.as_ref().is_some_and(|done| !done.ok());
            match step {
                Step::Call { always: false, .. } | Step::Folder(_) if failed => {}
                Step::Call { call, always } => {
                    self.counts = !always;
                    self.job = Some(programs.start(call));
                    return;
                }
                Step::Folder(path) => {
                    if let Err(e) = private_folder(&path) {
                        let error = Some(format!("{}: {e}", path.display()));
                        self.done = Some(Done { code: 6, error, ..Done::default() });
                    }
                }
            }
        }
    }
}

/// Makes a folder, and those above it, that only this user enters. It may be there.
///
/// # Errors
/// Those of the system.
pub fn private_folder(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, always: bool) -> Step {
        let call = Call { other: Some("sh"), ..Call::new(["-c", script]) };
        Step::Call { call, always }
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
    fn what_follows_a_failure_is_left_out_but_for_what_cleans_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let (kept, made) = (folder.path().join("kept"), folder.path().join("made"));
        let steps = [
            Step::Folder(made.clone()),
            shell("echo no >&2; exit 3", false),
            shell(&format!("touch {}/wrong", folder.path().display()), false),
            shell(&format!("touch {}", kept.display()), true),
        ];
        let programs = Programs::at("claviger".into(), || {});
        let done = run(&mut Work::new("w", steps, &programs), &programs);
        assert_eq!((done.code, done.error.as_deref()), (3, Some("no")));
        assert!(kept.exists() && made.is_dir() && !folder.path().join("wrong").exists());
    }

    #[test]
    fn cancelling_ends_the_step_and_those_behind_it() {
        let programs = Programs::at("claviger".into(), || {});
        let mut work = Work::new("w", [shell("exec sleep 60", false), shell("exit 0", false)], &programs);
        work.cancel();
        let done = run(&mut work, &programs);
        assert!(!done.ok() && work.is_cancelled(), "{done:?}");
    }
}
