//! The program `claviger`, which does all work of the window: its JSON output, its progress, and how it is stopped.
//! What it mounts outlives the window, and the window holds no key.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use claviger_crypto::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;

/// The exit code where no password opens the volume.
pub const WRONG_PASSWORD: i32 = 2;
/// The exit code of what was cancelled.
pub const CANCELLED: i32 = 8;

/// How long a worker waits for a line of progress before it looks whether the program has ended.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };

/// Processes are started one at a time: otherwise one could inherit the descriptors meant for another.
static STARTING: Mutex<()> = Mutex::new(());

/// One call of a program.
#[derive(Default, Debug)]
pub struct Call {
    pub words: Vec<OsString>,
    /// Secrets, each passed in a descriptor of its own by an option such as `--password-fd`.
    pub secrets: Vec<(&'static str, Secret)>,
}

impl Call {
    /// `claviger` with these words.
    pub fn new<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Self {
        Self { words: words.into_iter().map(|word| word.as_ref().to_owned()).collect(), ..Self::default() }
    }

    /// The same with a secret.
    #[must_use]
    pub fn secret(mut self, option: &'static str, secret: &Secret) -> Self {
        self.secrets.push((option, Secret::copy_from(secret)));
        self
    }

    /// The same with more words.
    #[must_use]
    pub fn with<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// The words as text.
    pub fn text(&self) -> Vec<String> {
        self.words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }
}

/// The progress of a call.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct Progress {
    /// What is done now.
    pub what: String,
    #[serde(default)]
    pub done: u64,
    #[serde(default)]
    pub all: u64,
    /// Seconds until it is done at the present speed, if the program knows.
    #[serde(default, rename = "seconds_left")]
    pub left: Option<u64>,
}

impl Progress {
    /// Which part is done, from 0 to 1; nothing where that is not known.
    pub fn share(&self) -> Option<f32> {
        (self.all > 0).then(|| (self.done as f64 / self.all as f64) as f32)
    }
}

/// The result of a call.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The exit code.
    pub code: i32,
    /// What it printed: JSON, or null.
    pub out: Value,
    /// What went wrong.
    pub error: Option<String>,
    /// Warnings and notes.
    pub warnings: Vec<String>,
}

impl Done {
    pub fn ok(&self) -> bool {
        self.code == 0
    }

    /// The result if the program did not start.
    fn failed(error: impl std::fmt::Display) -> Self {
        Self { code: 6, error: Some(error.to_string()), ..Self::default() }
    }

    fn of(status: ExitStatus, out: &[u8], err: &str) -> Self {
        #[derive(Deserialize)]
        struct ErrorLine {
            error: Failure,
        }
        #[derive(Deserialize)]
        struct Failure {
            message: String,
            hint: Option<String>,
        }
        let code = status.code().unwrap_or(CANCELLED);
        let mut done = Self { code, out: serde_json::from_slice(out).unwrap_or(Value::Null), ..Self::default() };
        for line in err.lines().filter(|line| !line.trim().is_empty()) {
            let line = line.trim_start_matches("claviger: ").trim_start_matches("warning: ");
            match serde_json::from_str::<ErrorLine>(line) {
                Ok(ErrorLine { error: Failure { message, hint } }) => {
                    done.error = Some([Some(message), hint].into_iter().flatten().collect::<Vec<_>>().join("\n"));
                }
                Err(_) => done.warnings.push(line.to_owned()),
            }
        }
        if code != 0 && done.error.is_none() && done.out.is_null() && !done.warnings.is_empty() {
            done.error = Some(std::mem::take(&mut done.warnings).join("\n"));
        }
        done
    }
}

/// The path of the program, and a call that reports progress.
#[derive(Clone)]
pub struct Programs {
    claviger: PathBuf,
    /// More of the environment, for tests.
    pub environment: Vec<(&'static str, OsString)>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Programs {
    /// `claviger` beside this program, or in the search path.
    pub fn find(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let own = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.join("claviger")));
        Self::at(own.filter(|path| path.is_file()).unwrap_or_else(|| "claviger".into()), wake)
    }

    pub fn at(claviger: PathBuf, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { claviger, environment: Vec::new(), wake: Arc::new(wake) }
    }

    /// What draws the next frame.
    pub fn wake(&self) -> Arc<dyn Fn() + Send + Sync> {
        Arc::clone(&self.wake)
    }

    /// Starts it.
    pub fn start(&self, call: Call) -> Job {
        let job = Job(Arc::default());
        let (shared, wake, path) = (job.0.clone(), self.wake.clone(), &self.claviger);
        match begin(path, &self.environment, &call) {
            Err(e) => job.lock().done = Some(Done::failed(format_args!("{}: {e}", path.display()))),
            Ok((child, told)) => {
                job.lock().pid = Some(Pid::from_child(&child));
                thread::spawn(move || {
                    let done = watch(child, told, &shared, &*wake).unwrap_or_else(Done::failed);
                    let mut state = lock(&shared);
                    state.done = Some(done);
                    drop(state);
                    wake();
                });
            }
        }
        // Its copies of secrets go here.
        drop(call);
        job
    }
}

/// A running program. It continues when this is dropped, unless it is cancelled.
pub struct Job(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// `None` before it is started and after it has ended: the number may then be another's.
    pid: Option<Pid>,
    progress: Option<Progress>,
    done: Option<Done>,
}

impl Job {
    /// The result, once it has ended.
    pub fn done(&self) -> Option<Done> {
        self.lock().done.clone()
    }

    pub fn progress(&self) -> Option<Progress> {
        self.lock().progress.clone()
    }

    /// Asks it to end. It leaves nothing behind, or something that it can resume.
    pub fn cancel(&self) {
        if let Some(pid) = self.lock().pid {
            let _ = kill_process(pid, Signal::INT);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the process, and returns the end of the pipe from which its progress is read.
fn begin(path: &std::path::Path, environment: &[(&str, OsString)], call: &Call) -> io::Result<(Child, File)> {
    let mut command = Command::new(path);
    command.args(&call.words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Programs that create file systems are only in root's search path.
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".into());
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let (told, tells) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut passed: Vec<OwnedFd> = Vec::new();
    command.args(["--json", "--ask", "nobody"]).arg(format!("--progress-fd={}", tells.as_raw_fd()));
    for (option, secret) in &call.secrets {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // A password fits into a pipe without a reader. A newline ends it, so an empty password is seen, too.
        let mut write = File::from(write);
        write.write_all(secret)?;
        write.write_all(b"\n")?;
        command.arg(format!("{option}={}", read.as_raw_fd()));
        passed.push(read);
    }
    passed.push(tells);
    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    passed.iter().try_for_each(|fd| fcntl_setfd(fd, FdFlags::empty()))?;
    let child = command.spawn();
    drop(passed);
    drop(starting);
    Ok((child?, told.into()))
}

/// Reads its output until it ends.
fn watch(mut child: Child, told: File, state: &Mutex<State>, wake: &dyn Fn()) -> io::Result<Done> {
    let reader = |from: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // On a failure, what was read before still counts.
            let _ = from.map(|mut from| from.read_to_end(&mut bytes));
            bytes
        })
    };
    let out = reader(child.stdout.take().map(|out| Box::new(out) as _));
    let err = reader(child.stderr.take().map(|err| Box::new(err) as _));
    let mut lines = BufReader::new(&told);
    let (mut line, mut open) = (String::new(), true);
    let status = loop {
        // A background process keeps its end of the pipe open, so the pipe may outlive the program.
        if let Some(status) = child.try_wait()? {
            lock(state).pid = None;
            break status;
        }
        if !open {
            thread::sleep(Duration::from_millis(30));
            continue;
        }
        match poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&TICK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        line.clear();
        // The other side writes whole lines.
        open = lines.read_line(&mut line)? > 0;
        while open {
            if let Ok(progress) = serde_json::from_str::<Progress>(&line) {
                lock(state).progress = Some(progress);
                wake();
            }
            if !lines.buffer().contains(&b'\n') {
                break;
            }
            line.clear();
            open = lines.read_line(&mut line)? > 0;
        }
    };
    let read = |reader: thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    let (out, err) = (read(out), read(err));
    Ok(Done::of(status, &out, &String::from_utf8_lossy(&err)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    #[test]
    fn an_error_is_told_by_its_message() {
        let err = "claviger: warning: slow\n{\"error\":{\"kind\":\"wrong-credential\",\"message\":\"v: no\",\"hint\":\"Try w.\",\"exit_code\":2}}\n";
        let done = Done::of(ExitStatus::from_raw(2 << 8), b"", err);
        assert_eq!(
            (done.code, done.error.as_deref(), &done.warnings[..]),
            (2, Some("v: no\nTry w."), &["slow".to_owned()][..])
        );
        // A program that knows no JSON.
        let done = Done::of(ExitStatus::from_raw(1 << 8), b"", "mkfs: no room\n");
        assert_eq!(done.error.as_deref(), Some("mkfs: no room"));
        assert_eq!(Done::of(ExitStatus::from_raw(0), b"{\"a\":1}", "").out["a"], 1);
    }

    #[test]
    fn the_time_left_is_what_the_program_says() {
        let of = |line| serde_json::from_str::<Progress>(line).expect("a line of progress");
        let (known, unknown) = (
            of(r#"{"what":"w","done":25,"all":100,"seconds_left":30}"#),
            of(r#"{"what":"Trying VeraCrypt","done":0,"all":0,"seconds_left":null}"#),
        );
        assert_eq!((known.left, known.share()), (Some(30), Some(0.25)));
        assert_eq!((unknown.left, unknown.share()), (None, None));
    }

    /// A secret comes by a descriptor, and neither in the words nor in the environment.
    #[test]
    fn secrets_come_by_descriptors() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("claviger");
        let text = "#!/bin/sh\nfor word; do case $word in --password-fd=*) fd=${word#*=} ;; --progress-fd=*) to=${word#*=} ;; esac; done\n\
                    echo '{\"what\":\"w\",\"done\":1,\"all\":4}' >/proc/self/fd/$to\nread -r line </proc/self/fd/$fd\n\
                    tr '\\0' ' ' </proc/$$/cmdline | grep -q sesame && exit 5\nenv | grep -q sesame && exit 6\n\
                    echo \"{\\\"length\\\": ${#line}}\"\n";
        std::fs::write(&script, text).expect("a script");
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("runnable");
        let programs = Programs::at(script, || {});
        let job = programs.start(Call::new(["info"]).secret("--password-fd", &Secret::copy_from(b"sesame")));
        let end = Instant::now() + Duration::from_secs(20);
        while job.done().is_none() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        let done = job.done().expect("it ends");
        assert_eq!((done.code, &done.out["length"]), (0, &Value::from(6)), "{done:?}");
        assert_eq!(job.progress().map(|p| (p.what, p.done, p.all)), Some(("w".into(), 1, 4)));
    }
}
