//! Mounted folders, each served by a process of its own, which ends with the test whatever happens.

#[path = "../../../examples/fuse_serve.rs"]
#[allow(dead_code, reason = "it has a main function, too")]
pub mod server;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use claviger_testkit::tools;
use tempfile::TempDir;

/// Whom to be, to be nobody of importance.
pub const NOBODY: u32 = 65534;

/// Long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// No server lives longer: a test that waits for one that has stopped answering fails then, and does not hang.
const LIFETIME: Duration = Duration::from_secs(600);

/// The words of a server for each transport, once this system allows both.
pub fn transports() -> Option<[&'static str; 2]> {
    tools::root()?;
    allow_all()?;
    Some(["device", "uring"])
}

/// Lets everybody use /dev/fuse, as systems do, and the kernel use io_uring. Stays so: other tests may rely on it.
fn allow_all() -> Option<()> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = fs::set_permissions("/dev/fuse", Permissions::from_mode(0o666));
        let _ = fs::write("/sys/module/fuse/parameters/enable_uring", "Y");
    });
    if !Path::new("/dev/fuse").exists() {
        return tools::skip("there is no /dev/fuse");
    }
    let uring = fs::read("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    if uring.first() == Some(&b'Y') { Some(()) } else { tools::skip("the kernel has no FUSE over io_uring") }
}

/// A folder for everybody, with a backing file and a folder to mount on.
pub struct MountedFolder {
    pub dir: TempDir,
}

impl MountedFolder {
    pub fn new(backing: &[u8]) -> Self {
        Self::new_in(&std::env::temp_dir(), backing)
    }

    pub fn new_in(place: &Path, backing: &[u8]) -> Self {
        let dir = tempfile::tempdir_in(place).expect("a temporary folder");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let place = Self { dir };
        fs::write(place.backing(), backing).expect("there is room");
        fs::create_dir(place.folder()).expect("it is new");
        place
    }

    pub fn backing(&self) -> PathBuf {
        self.dir.path().join("backing")
    }

    /// A name that is escaped in lists of mounts.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("a folder, \\ mounted")
    }

    pub fn bytes(&self) -> Vec<u8> {
        fs::read(self.backing()).expect("it is there")
    }

    pub fn give_to(&self, user: u32) {
        for path in [self.dir.path().to_owned(), self.backing(), self.folder()] {
            chown(path, Some(user), Some(user)).expect("root may");
        }
    }

    /// Serves the backing file.
    pub fn serve(&self, words: &[&str]) -> Mounted {
        Mounted::start(self, Command::new(std::env::current_exe().expect("this program")), words)
    }

    /// Serves it as the user `NOBODY`, who can reach only this folder.
    pub fn serve_as_nobody(&self, words: &[&str]) -> Mounted {
        self.serve_as_nobody_in(&[], words)
    }

    /// The same, with more groups.
    pub fn serve_as_nobody_in(&self, groups: &[u32], words: &[&str]) -> Mounted {
        self.give_to(NOBODY);
        let exe = self.dir.path().join("server");
        // By another process: what this one has open for writing, a child of another test would hold for a moment, and a program that
        // somebody writes does not start.
        tools::run(
            Command::new("install").args(["-m", "755"]).arg(std::env::current_exe().expect("this program")).arg(&exe),
        );
        let mut command = as_user_in(NOBODY, groups);
        command.arg(exe);
        Mounted::start(self, command, words)
    }

    /// What the kernel's list says of the mounted folder.
    pub fn mount_line(&self) -> Option<String> {
        let path = self.folder().canonicalize().unwrap_or_else(|_| self.folder());
        let escaped = path.to_str().expect("text").replace('\\', "\\134").replace(' ', "\\040");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("there is a list");
        mounts.lines().find(|line| line.split(' ').nth(4) == Some(&escaped)).map(str::to_owned)
    }
}

/// Begins a command of that user.
pub fn as_nobody() -> Command {
    as_user(NOBODY)
}

pub fn as_user(user: u32) -> Command {
    as_user_in(user, &[])
}

fn as_user_in(user: u32, groups: &[u32]) -> Command {
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    let others = if groups.is_empty() { "--clear-groups".into() } else { format!("--groups={}", groups.join(",")) };
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}"), others]);
    // What is installed for this user alone, in its home folder, others may not run.
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    command
}

/// A server, and what it has mounted.
pub struct Mounted {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Kept open: the test harness still has something to say at the end.
    stdout: Lines<BufReader<ChildStdout>>,
    folder: PathBuf,
    pub transport: String,
}

impl Mounted {
    fn start(place: &MountedFolder, mut command: Command, words: &[&str]) -> Self {
        let folder = place.folder();
        let mut args =
            vec![folder.to_str().expect("text").to_owned(), place.backing().to_str().expect("text").to_owned()];
        args.extend(words.iter().map(|w| (*w).to_owned()));
        command.args(["--ignored", "--exact", "mounted::serve_for_the_other_tests", "--nocapture"]);
        command.env("SERVE", args.join("\n")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let stdin = child.stdin.take();
        let mut mounted = Self { child, stdin, stdout, folder, transport: String::new() };
        while let Some(line) = mounted.stdout.next() {
            // The test harness has something to say, too.
            let line = line.expect("text");
            if line == "device" || line == "uring" {
                mounted.transport = line;
                return mounted;
            }
        }
        panic!("the server {words:?} does not serve: {:?}", mounted.ended());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join("volume")
    }

    pub fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.file()).expect("it opens")
    }

    pub fn open_direct(&self) -> File {
        const O_DIRECT: i32 = 0o40_000;
        OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(self.file()).expect("it opens")
    }

    /// Asks the server to stop; returns how it ended.
    pub fn stop(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.ended()
    }

    /// Waits for the server.
    pub fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Mostly there is nothing to do, and it says so.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).stderr(Stdio::null()).status();
    }
}

/// Not a test: the server of one, in a process of its own.
#[test]
#[ignore = "run by tests that need a server"]
fn serve_for_the_other_tests() {
    let Ok(words) = std::env::var("SERVE") else { return };
    let words: Vec<String> = words.split('\n').map(str::to_owned).collect();
    thread::spawn(|| {
        thread::sleep(LIFETIME);
        eprintln!("the test has not ended after {LIFETIME:?}: its server ends itself");
        std::process::abort();
    });
    if let Err(e) = server::serve(&words) {
        eprintln!("the server has ended: {e:?}");
        std::process::exit(1);
    }
}
