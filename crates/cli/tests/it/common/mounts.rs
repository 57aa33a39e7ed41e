//! What tests of mounting share: a place where everything that a test mounts is taken down when it ends, however it ends.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use claviger_testkit::tools;
use serde_json::Value;

use super::{Done, Folder, done};

/// Nobody: a user without any privilege.
pub const USER: u32 = 65534;

/// The longest that a test may take.
const LIFETIME: Duration = Duration::from_secs(300);

/// A folder, a runtime folder of its own, and a user.
pub struct MountSpace {
    pub folder: Folder,
    user: Option<u32>,
    /// Hung up on by the end of the test, which nobody has to end by force then.
    deadline: Option<Sender<()>>,
}

impl MountSpace {
    /// For root, or a reported skip.
    pub fn root() -> Option<Self> {
        tools::root()?;
        for program in ["mke2fs", "mount", "umount", "losetup", "timeout"] {
            tools::program(program)?;
        }
        if !Path::new("/dev/fuse").exists() {
            return tools::skip("there is no /dev/fuse");
        }
        let mut place = Self { folder: Folder::new(), user: None, deadline: None };
        place.end_by_force_after(LIFETIME);
        Some(place)
    }

    /// Kills the servers then, so that a test that waits for one fails and does not hang.
    fn end_by_force_after(&mut self, time: Duration) {
        let (sender, receiver) = channel::<()>();
        let (runtime, below) = (self.runtime(), self.folder.path(""));
        std::thread::spawn(move || {
            if receiver.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test has not ended after {time:?}: its servers are killed");
                end_by_force(&runtime, &below);
            }
        });
        self.deadline = Some(sender);
    }

    /// For commands that take long and have a watchdog of their own.
    pub fn without_a_deadline(mut self) -> Self {
        self.deadline = None;
        self
    }

    /// For a user without privileges, or a reported skip.
    pub fn user() -> Option<Self> {
        let mut place = Self::root()?;
        for program in ["setpriv", "fusermount3"] {
            tools::program(program)?;
        }
        // Left as it is then: other tests want the same.
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).expect("root may");
        place.user = Some(USER);
        for path in [place.folder.path(""), place.folder.path("password")] {
            chown(path, Some(USER), Some(USER)).expect("root may");
        }
        Some(place)
    }

    /// A program as this place's user, ended after two minutes.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_as(self.user, program)
    }

    /// A program as root.
    pub fn root_command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_as(None, program)
    }

    fn command_as(&self, user: Option<u32>, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]);
        if let Some(user) = user {
            let id = user.to_string();
            command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
        }
        command.arg("setsid").arg("--wait").arg(program);
        command.env("CLAVIGER_RUNTIME_DIR", self.runtime()).env("HOME", self.folder.path("")).current_dir("/");
        command.stdin(Stdio::null());
        command
    }

    pub fn runtime(&self) -> PathBuf {
        self.folder.path("runtime")
    }

    /// Runs the program under test.
    pub fn run<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Done {
        done(self.command(env!("CARGO_BIN_EXE_claviger")).args(args).output().expect("it starts"))
    }

    /// Runs a shell command as the user; `$dir`s are up to the caller.
    pub fn shell(&self, script: &str) -> Done {
        done(self.command("sh").args(["-ec", script]).output().expect("it starts"))
    }

    /// A new, empty folder.
    pub fn dir(&self, name: &str) -> String {
        let path = self.folder.path(name);
        fs::create_dir(&path).expect("a folder");
        chown(&path, self.user, self.user).expect("root may");
        path.display().to_string()
    }

    /// Mounts the volume, with hints for its format and hash, because no test here needs a search.
    pub fn mount(&self, volume: &str, dir: &str, more: &[&str]) -> Done {
        let args = ["mount", "--json", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file"];
        self.run(args.iter().chain([&&*self.folder.password, &volume, &dir]).chain(more))
    }

    pub fn unmount(&self, target: &str) -> Done {
        self.run(["unmount", target])
    }

    pub fn list(&self) -> Vec<Value> {
        let list = self.run(["list", "--json"]).succeeds().json();
        list["volumes"].as_array().expect("a list").clone()
    }

    /// A volume with a file system that `mkfs` makes of the file whose path follows.
    pub fn volume(&self, name: &str, size: &str, mkfs: &[&str]) -> String {
        let args =
            ["create", "--quick", "--format", "TrueCrypt", "--size", size, "--hash", "SHA-512", "--password-file"];
        let path = self.folder.str(name);
        self.run(args.iter().chain([&&*self.folder.password, &&*path])).succeeds();
        if let [program, args @ ..] = mkfs {
            let dir = self.dir(&format!("{name}-mkfs"));
            self.mount(&path, &dir, &["--filesystem", "none"]).succeeds();
            let made = self.command(program).args(args).arg(format!("{dir}/volume")).output().expect("it starts");
            self.unmount(&dir).succeeds();
            done(made).succeeds();
        }
        path
    }

    pub fn ext4(&self, name: &str) -> String {
        self.volume(name, "20M", &["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0"])
    }

    /// Waits until the runtime folder is empty: a server that is no longer listed may still be tidying up.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        wait_until("nothing is left", || fs::read_dir(self.runtime()).expect("a folder").count() == 0);
    }

    /// Kills every server of this place, as the kernel does when memory runs out. What they served stays mounted.
    pub fn kill_servers(&self) {
        kill_servers(&self.runtime());
    }

    /// Whether something is mounted there.
    pub fn mounted(&self, dir: &str) -> bool {
        mounts().iter().any(|m| m == Path::new(dir))
    }
}

impl Drop for MountSpace {
    fn drop(&mut self) {
        quietly(self.command(env!("CARGO_BIN_EXE_claviger")).args(["unmount", "--all", "--force", "--timeout", "10s"]));
        // What is left then has failed.
        end_by_force(&self.runtime(), &self.folder.path(""));
    }
}

/// Kills all servers of a runtime folder.
fn kill_servers(runtime: &Path) {
    for folder in fs::read_dir(runtime).into_iter().flatten().flatten() {
        if let Some((pid, _)) = folder.file_name().to_string_lossy().split_once('-') {
            quietly(Command::new("kill").args(["-KILL", pid]));
        }
    }
}

/// Kills all servers of a runtime folder and takes away what they served `below`, the last mount first.
fn end_by_force(runtime: &Path, below: &Path) {
    kill_servers(runtime);
    let below = below.canonicalize().unwrap_or_else(|_| below.to_owned());
    for dir in mounts().iter().rev().filter(|dir| dir.starts_with(&below)) {
        quietly(Command::new("timeout").args(["10", "umount", "-l"]).arg(dir));
    }
    for device in loops_below(&below) {
        quietly(Command::new("timeout").args(["10", "losetup", "-d"]).arg(device));
    }
}

fn quietly(command: &mut Command) {
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Where something is mounted.
fn mounts() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("procfs");
    text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

/// Loop devices on files below the folder.
pub fn loops_below(folder: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").expect("sysfs").flatten();
    let below = |device: &fs::DirEntry| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        Path::new(file.trim_end()).starts_with(folder)
    };
    devices.filter(below).map(|device| Path::new("/dev").join(device.file_name())).collect()
}

/// Waits until it is so, for a minute at most.
#[track_caller]
pub fn wait_until(what: &str, so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not after a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
