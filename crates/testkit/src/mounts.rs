//! Servers, mounts and loop devices of tests, which are removed when the test ends, however it ends.
//!
//! A test's own process never serves a FUSE file system. Between fork and exec, a process that holds a copy of
//! `/dev/fuse` and a file of the mount waits forever, unkillable, once the server stops reading. So a server is a
//! child, a [`Server`]; and nothing here waits without a limit.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::tools;

/// Time limit for events that should happen at once: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds. Returns whether it did within `limit`.
#[must_use]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
}

/// A command that is killed after `seconds`: for everything that may touch a mount whose server hangs.
pub fn bounded(seconds: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &seconds.to_string()]).arg(program).stdin(Stdio::null());
    command
}

/// A command that runs as the unprivileged user nobody (65534) and is killed after `seconds`. Root only.
pub fn as_nobody(seconds: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = bounded(seconds, "setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(program).env("HOME", "/tmp");
    command
}

/// Starts `program` where nothing below the temporary folder is mounted: in a mount namespace of its own, killed after
/// `seconds`. mkfs.btrfs asks every mount of the machine for its source, and gives up when one does not answer. Root only.
pub fn without_other_mounts(seconds: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    const DETACH: &str = r#"while read -r _ dir _; do
            case $dir in "$0"/*) umount -l "$(printf "$dir")" ;; esac
        done < /proc/self/mounts
        exec "$@""#;
    let mut command = bounded(seconds, "unshare");
    command.args(["--mount", "sh", "-c", DETACH]).arg(std::env::temp_dir()).arg(program);
    command
}

/// A child process that is killed and waited for on drop. Its output goes to files, so nothing has to read it while the
/// process runs.
pub struct Server {
    child: Child,
    out: tempfile::NamedTempFile,
    err: tempfile::NamedTempFile,
}

impl Server {
    /// Starts the process with empty standard input.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let file = || tempfile::NamedTempFile::new().expect("a temporary file");
        let (out, err) = (file(), file());
        let other = |file: &tempfile::NamedTempFile| Stdio::from(file.as_file().try_clone().expect("a descriptor"));
        let child = command.stdin(Stdio::null()).stdout(other(&out)).stderr(other(&err)).spawn();
        let child = child.unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Self { child, out, err }
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output so far.
    pub fn out(&self) -> String {
        text(self.out.path())
    }

    /// Its standard error so far.
    pub fn err(&self) -> String {
        text(self.err.path())
    }

    /// Whether the process is still running.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until `ready` returns true.
    ///
    /// # Panics
    /// If the process ends first, or after `PATIENCE`; the message includes its output.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut(&Self) -> bool) {
        let mut is_ready = false;
        let _ = wait_until(PATIENCE, || {
            let running = self.running();
            is_ready = ready(self);
            is_ready || !running
        });
        assert!(is_ready, "it was not {what} ({:?}): {}{}", self.child.try_wait(), self.out(), self.err());
    }

    /// Sends the process SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        // The process may have ended already.
        let _ = kill_process(pid.expect("a child has a pid"), signal);
    }

    /// Waits for the process to end, for at most `limit`.
    pub fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        let _ = wait_until(limit, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // The process was killed, but may be in an uninterruptible system call: never wait without a limit.
        if self.ended_within(PATIENCE).is_none() {
            eprintln!("process {} does not end", self.pid());
        }
    }
}

fn text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// The mount point.
    pub dir: PathBuf,
    /// Type of the file system: `fuse.claviger`.
    pub kind: String,
    /// The mount's source.
    pub source: String,
    /// Options of the file system.
    pub options: String,
}

/// The topmost mount on `dir`, if any. Touches no file system.
pub fn mounted_on(dir: &Path) -> Option<MountInfo> {
    // Resolves only the parent: resolving the last part could hang.
    let parent = dir.parent().and_then(|p| p.canonicalize().ok());
    let dir = parent.zip(dir.file_name()).map_or_else(|| dir.to_owned(), |(parent, name)| parent.join(name));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(parse_mount).rfind(|m| m.dir == dir)
}

/// All mounts below `dir`, in the order in which they were made.
pub fn mounted_below(dir: &Path) -> Vec<MountInfo> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(parse_mount).filter(|m| m.dir.starts_with(&dir) && m.dir != dir).collect()
}

fn parse_mount(line: &str) -> Option<MountInfo> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let (major, minor) = before.next()?.split_once(':')?;
    let dir = unescaped(before.nth(1)?);
    let mut after = after.split(' ');
    Some(MountInfo {
        device: (major.parse().ok()?, minor.parse().ok()?),
        dir: dir.into(),
        kind: unescaped(after.next()?),
        source: unescaped(after.next()?),
        options: after.next().unwrap_or_default().to_owned(),
    })
}

/// Decodes space, tab, newline and backslash, which are octal in mountinfo.
fn unescaped(field: &str) -> String {
    let pairs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    pairs.iter().fold(field.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

/// A folder that may be a mount point. On drop everything is unmounted lazily and FUSE connections are aborted, so
/// nobody waits for a dead server.
pub struct Mount(PathBuf);

impl Mount {
    /// Watches `dir`, whether or not something is mounted there yet.
    pub fn on(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// The current mount on the folder.
    pub fn info(&self) -> Option<MountInfo> {
        mounted_on(&self.0)
    }

    /// Waits until something is mounted there, for at most [`PATIENCE`].
    #[must_use]
    pub fn wait(&self) -> bool {
        wait_until(PATIENCE, || self.info().is_some())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        for _ in 0..4 {
            let Some(info) = self.info() else { return };
            let quietly = |mut command: Command| {
                let command = command.arg(&self.0).stdout(Stdio::null()).stderr(Stdio::null());
                command.status().is_ok_and(|s| s.success())
            };
            let with = |program, option| {
                let mut command = bounded(20, program);
                command.arg(option);
                command
            };
            let unmounted = quietly(with("umount", "-l")) || quietly(with("fusermount3", "-uz"));
            if !unmounted && (info.kind.starts_with("fuse.") || info.kind == "fuse" || info.kind == "fuseblk") {
                let _ = abort_fuse_connection(info.device.1);
            }
        }
    }
}

/// Aborts a FUSE connection as a last resort, which fails all its requests. `minor` is the minor number of the mounted
/// file system's device. Root only.
///
/// # Errors
/// Those of mounting fusectl and of writing to it; `NotFound` if there is no such connection.
pub fn abort_fuse_connection(minor: u32) -> io::Result<()> {
    let control = Path::new("/sys/fs/fuse/connections");
    let abort = control.join(minor.to_string()).join("abort");
    if !abort.exists() && mounted_on(control).is_none() {
        let status = bounded(20, "mount").args(["-t", "fusectl", "none"]).arg(control).status()?;
        if !status.success() {
            return Err(io::Error::other("fusectl cannot be mounted"));
        }
    }
    fs::write(abort, "1")
}

/// A file as a block device, until this is dropped. Root only.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches `file`; `options` are losetup's, such as `--direct-io=on` and `--read-only`.
    /// A reported skip without root or losetup.
    ///
    /// # Panics
    /// If it cannot be attached.
    pub fn new(file: &Path, options: &[&str]) -> Option<Self> {
        tools::root()?;
        let mut command = bounded(30, tools::program("losetup")?);
        let output = tools::run(command.args(["-f", "--show"]).args(options).arg(file));
        Some(Self(String::from_utf8_lossy(&output.stdout).trim().into()))
    }

    /// The device's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    /// Waits until the kernel has released the file: `losetup -d` returns earlier while anyone else has the device
    /// open, even just to check whether it is free.
    fn drop(&mut self) {
        let name = self.0.file_name().unwrap_or_default();
        let attached = || fs::read(Path::new("/sys/block").join(name).join("loop/backing_file")).ok();
        let before = attached();
        let _ = bounded(30, "losetup").arg("-d").arg(&self.0).stderr(Stdio::null()).status();
        let _ = wait_until(Duration::from_secs(10), || before.is_none() || attached() != before);
    }
}

/// A new sparse file of `len` zero bytes.
///
/// # Panics
/// If it cannot be created.
pub fn sparse_file(path: &Path, len: u64) {
    File::create_new(path).and_then(|f| f.set_len(len)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read_with_its_escapes() {
        let line = r"36 35 0:53 / /mnt/a\040b\134c rw,noatime master:1 - fuse.claviger /old\011.tc rw,user_id=0";
        let expected = MountInfo {
            device: (0, 53),
            dir: r"/mnt/a b\c".into(),
            kind: "fuse.claviger".into(),
            source: "/old\t.tc".into(),
            options: "rw,user_id=0".into(),
        };
        assert_eq!(parse_mount(line), Some(expected));
        assert_eq!(parse_mount("nonsense"), None);
    }

    #[test]
    fn what_is_mounted_is_seen_and_unmounted() {
        if tools::root().is_none() {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(mounted_on(dir.path()), None);
        let mount = Mount::on(dir.path());
        tools::run(bounded(20, "mount").args(["-t", "tmpfs", "none"]).arg(dir.path()));
        assert!(mounted_below(dir.path().parent().expect("a folder")).iter().any(|m| m.dir == dir.path()));
        assert_eq!(mount.info().map(|m| m.kind), Some("tmpfs".into()));
        drop(mount);
        assert_eq!(mounted_on(dir.path()), None);
    }

    #[test]
    fn what_is_mounted_elsewhere_is_not_seen_without_other_mounts() {
        if tools::root().is_none() {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let mount = Mount::on(&dir.path().join("with a space"));
        fs::create_dir(mount.dir()).expect("a folder");
        tools::run(bounded(20, "mount").args(["-t", "tmpfs", "none"]).arg(mount.dir()));
        let seen = tools::run(without_other_mounts(20, "cat").arg("/proc/self/mounts"));
        let name = dir.path().to_str().expect("a name");
        assert!(!String::from_utf8_lossy(&seen.stdout).contains(name));
        assert!(mount.info().is_some(), "it stays for everybody else");
    }

    #[test]
    fn a_server_is_gone_when_its_guard_is() {
        let mut server = Server::start(Command::new("sh").args(["-c", "echo ready; echo why >&2; exec sleep 1000"]));
        server.wait_until("ready", |s| s.out() == "ready\n" && s.err() == "why\n");
        assert!(server.running());
        let pid = server.pid();
        drop(server);
        // The process was waited for, so not even its ID remains.
        assert!(!Path::new(&format!("/proc/{pid}")).exists());

        let mut server = Server::start(Command::new("sleep").arg("1000"));
        server.terminate();
        assert_eq!(
            server.ended_within(PATIENCE).and_then(|s| std::os::unix::process::ExitStatusExt::signal(&s)),
            Some(15)
        );
    }

    #[test]
    fn a_loop_device_is_there_as_long_as_its_guard() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("image");
        sparse_file(&file, 1 << 20);
        let Some(device) = LoopDevice::new(&file, &[]) else { return };
        let size = tools::run(bounded(20, "blockdev").arg("--getsize64").arg(device.path()));
        assert_eq!(String::from_utf8_lossy(&size.stdout).trim(), "1048576");
    }
}
