//! What a helper may not do, whatever it is told by what it reads: walls around its process that nobody in it can take down.

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

use claviger_engine::deadline::Deadline;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::set_no_new_privs;
use seccompiler::{SeccompAction, apply_filter};

use super::helper::ended_within;
use crate::key_process::cage::compile;
use crate::landlock::{self, May};
use crate::mount::drivers;

/// How much is left outside of the walls.
pub(super) enum Walls {
    /// What its user reaches. It may listen nowhere: who tries is ended.
    NoListener,
    /// The same; who tries is only refused. Clients of Ceph go on without the socket that a configuration may want for administrators.
    NoListenerRefused,
    /// One file, and what programs are made of. No sockets but those that it was handed.
    OneFile {
        /// The file or block device.
        file: OwnedFd,
        /// It may be written, too.
        writable: bool,
        /// A program that may lie elsewhere than programs usually do.
        program: String,
    },
}

/// A program behind walls.
pub(super) struct Walled {
    pub(super) child: Child,
    /// The thread that started it ends with this. nbdkit has itself ended when that thread is gone (prctl(2), `PR_SET_PDEATHSIG`).
    pub(super) parent: Sender<Infallible>,
}

/// The most that is taken of what a program says, in bytes.
const MOST: u64 = 1 << 20;

/// Where programs and what they load lie.
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

/// Starts a program behind walls.
///
/// # Errors
/// If it cannot be started, or a wall is refused. A kernel without Landlock has the others.
pub(super) fn spawn(mut command: Command, walls: Walls) -> io::Result<Walled> {
    let (parent, end) = mpsc::channel::<Infallible>();
    let (started, child) = mpsc::channel();
    // They are around this thread and around what it starts.
    thread::Builder::new().name("helper".into()).spawn(move || {
        let begun = enter(&walls).and_then(|()| command.spawn());
        // What was handed to the program is open nowhere else.
        drop((command, walls));
        let _ = started.send(begun);
        let _ = end.recv();
    })?;
    let child = child.recv().map_err(|_| io::Error::other("the thread that starts helpers has stopped"))??;
    Ok(Walled { child, parent })
}

/// What a program behind walls said, and how it ended: an error if it was killed at the deadline.
pub(super) struct Output {
    pub(super) ended: io::Result<ExitStatus>,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a program that `start` starts behind walls, until the deadline.
///
/// # Errors
/// If it cannot be started, or what it said cannot be read.
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

/// What the programs of an image have no use for: sockets, keys, and what Landlock leaves of files, which is their owners, modes, times
/// and attributes, and before its third version their length.
const NOT_OF_AN_IMAGE: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // A descriptor that can only be read is enough for those that take one.
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
    // A ring would carry out what a filter does not see. Programs go on without one.
    refuse(&[libc::SYS_io_uring_setup], SeccompAction::Errno(libc::ENOSYS as u32))?;
    let listening = match walls {
        Walls::NoListenerRefused => SeccompAction::Errno(libc::EACCES as u32),
        _ => SeccompAction::KillProcess,
    };
    refuse(&[libc::SYS_listen], listening)
}

/// Whether Landlock is not there: the kernel has none, or does not use it, or a container's filter is older than it is.
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

/// A file or folder that is only named, and not read.
pub(super) fn place(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::PATH.bits().cast_signed()).open(path)
}

/// A system call has another number for programs of the x32 ABI (Linux, arch/x86/include/uapi/asm/unistd.h, `__X32_SYSCALL_BIT`).
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
