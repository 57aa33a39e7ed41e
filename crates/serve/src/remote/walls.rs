//! The sandbox of helpers: walls around a process that nothing inside can take down, whatever the data it reads.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use claviger_engine::deadline::Deadline;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::set_no_new_privs;
use seccompiler::{SeccompAction, apply_filter};

use crate::key_process::cage::compile;
use crate::landlock::{self, May};
use crate::mount::drivers;

/// The kind of sandbox.
pub(super) enum Walls {
    /// Access to all that the user can access, but no listening: an attempt kills the program.
    NoListener,
    /// The same, but an attempt to listen is only refused. Ceph clients continue without the admin socket that a
    /// configuration may request.
    NoListenerRefused,
    /// Access to one file and to the files of programs. No sockets except those passed to it.
    OneFile {
        /// The file or block device.
        file: OwnedFd,
        /// Whether the file may be written.
        writable: bool,
        /// A program that may be in an unusual folder.
        program: String,
    },
}

/// A program in a sandbox.
pub(super) struct Walled {
    pub(super) child: Child,
    /// The thread that started the program ends with this. nbdkit requests to end with that thread (prctl(2), `PR_SET_PDEATHSIG`).
    pub(super) parent: Sender<Infallible>,
}

/// The maximum length of a program's messages, in bytes.
const MOST: u64 = 1 << 20;

/// Folders of programs and of what they load.
const PROGRAMS: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc/alternatives"];

/// Files that every program may read, and that a shell also writes to.
const FILES: [(&str, May); 5] = [
    ("/dev/null", May::Write),
    ("/dev/urandom", May::Read),
    ("/etc/ld.so.cache", May::Read),
    ("/etc/ld-musl-x86_64.path", May::Read),
    ("/etc/ld-musl-aarch64.path", May::Read),
];

/// Starts a program in a sandbox.
///
/// # Errors
/// If the program cannot be started or a wall is refused. Without Landlock, the other walls still apply.
pub(super) fn spawn(mut command: Command, walls: Walls) -> io::Result<Walled> {
    let (parent, end) = mpsc::channel::<Infallible>();
    let (started, child) = mpsc::channel();
    // The walls apply to this thread and to programs that it starts.
    thread::Builder::new().name("helper".into()).spawn(move || {
        let begun = enter(&walls).and_then(|()| command.spawn());
        // Closes this process's copies of the descriptors passed to the program.
        drop((command, walls));
        let _ = started.send(begun);
        let _ = end.recv();
    })?;
    let child = child.recv().map_err(|_| io::Error::other("the thread that starts helpers has stopped"))??;
    Ok(Walled { child, parent })
}

/// The output of a sandboxed program and its exit status, which is an error if it was killed at the deadline.
pub(super) struct Output {
    pub(super) ended: io::Result<ExitStatus>,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a program that `start` starts in a sandbox, until the deadline.
///
/// # Errors
/// If the program cannot be started, or its output cannot be read.
pub(super) fn output(
    mut command: Command,
    deadline: Deadline,
    start: impl FnOnce(Command) -> io::Result<Walled>,
) -> io::Result<Output> {
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let Walled { mut child, parent } = start(command)?;
    let ended = ended_within(&mut child, deadline);
    if ended.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    drop(parent);
    Ok(Output { ended: ended.map(|()| status), out: text(&mut out)?, err: text(&mut err)? })
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

// Linux, include/uapi/asm-generic/unistd.h: libc does not have these for every processor.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;

/// Calls that image programs do not need: sockets, keys, and file operations outside Landlock. Those change owners,
/// modes, times and attributes and, before its third version, lengths.
const NOT_OF_AN_IMAGE: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // A read-only descriptor is enough for the calls that take one.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    FILE_SETATTR,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    libc::SYS_truncate,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

fn enter(walls: &Walls) -> io::Result<()> {
    set_no_new_privs(true)?;
    if let Walls::OneFile { file, writable, program } = walls {
        match one_file(file.as_fd(), *writable, program) {
            Err(e) if is_missing(&e) => {}
            done => done?,
        }
        refuse(NOT_OF_AN_IMAGE, SeccompAction::Errno(libc::EACCES as u32))?;
    }
    // A ring would carry out operations that a filter does not see. Programs also work without one.
    refuse(&[libc::SYS_io_uring_setup], SeccompAction::Errno(libc::ENOSYS as u32))?;
    let listening = match walls {
        Walls::NoListenerRefused => SeccompAction::Errno(libc::EACCES as u32),
        _ => SeccompAction::KillProcess,
    };
    refuse(&[libc::SYS_listen], listening)
}

/// Whether Landlock is missing: the kernel lacks or disables it, or a container's filter is too old for it.
fn is_missing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM))
}

fn one_file(file: BorrowedFd<'_>, writable: bool, program: &str) -> io::Result<()> {
    let program = drivers::find(program).and_then(|path| path.canonicalize().ok());
    let beside = program.and_then(|path| Some(path.parent()?.to_owned())).into_iter();
    let beside = beside.flat_map(|bin| [bin.join("../lib"), bin]);
    let folders = PROGRAMS.into_iter().map(PathBuf::from).chain(beside).map(|folder| (folder, May::Run));
    let files = FILES.into_iter().map(|(file, may)| (PathBuf::from(file), may));
    let opened: Vec<_> = folders.chain(files).filter_map(|(path, may)| Some((place(&path).ok()?, may))).collect();
    let mut rules: Vec<_> = opened.iter().map(|(opened, may)| (opened.as_fd(), *may)).collect();
    rules.push((file, if writable { May::Write } else { May::Read }));
    landlock::restrict(&rules)
}

/// Opens a file or folder as a mere name, without reading it.
pub(super) fn place(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::PATH.bits().cast_signed()).open(path)
}

/// Programs of the x32 ABI use different system call numbers (Linux, arch/x86/include/uapi/asm/unistd.h, `__X32_SYSCALL_BIT`).
#[cfg(target_arch = "x86_64")]
const OTHER_NUMBERS: &[i64] = &[0x4000_0000];
#[cfg(not(target_arch = "x86_64"))]
const OTHER_NUMBERS: &[i64] = &[];

fn refuse(calls: &[i64], action: SeccompAction) -> io::Result<()> {
    let numbers =
        |call: &i64| [*call].into_iter().chain(OTHER_NUMBERS.iter().map(|bit| *call | bit)).collect::<Vec<_>>();
    let rules = calls.iter().flat_map(numbers).map(|call| (call, Vec::new())).collect();
    let error = |e: &dyn fmt::Display| io::Error::other(format!("the list of system calls: {e}"));
    let program = compile(rules, action, SeccompAction::Allow).map_err(|e| error(&e))?;
    apply_filter(&program).map_err(|e| error(&e))
}

/// Waits for the end of a process.
///
/// # Errors
/// Those of [`Deadline::left`].
pub(super) fn ended_within(child: &mut Child, deadline: Deadline) -> io::Result<()> {
    while let Ok(None) = child.try_wait() {
        deadline.sleep(Duration::from_millis(5))?;
    }
    Ok(())
}
