//! What a helper may not do, whatever it is told by what it reads: walls around its process that nobody in it can take down.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::env;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender};
use std::thread;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::set_no_new_privs;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::landlock::{self, May};

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
    let child = child.recv().map_err(|_| io::Error::other("the thread that starts a helper has ended"))??;
    Ok(Walled { child, parent })
}

/// Linux, include/uapi/asm-generic/unistd.h, `__NR_fchmodat2`, which libc does not have for every processor.
const FCHMODAT2: i64 = 452;

/// What the programs of an image have no use for: sockets, keys, and what Landlock leaves of files, which is their owners, modes, times
/// and attributes, and before its third version their length.
const NOT_OF_AN_IMAGE: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
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
    [Errno::NOSYS, Errno::OPNOTSUPP, Errno::PERM]
        .map(Errno::raw_os_error)
        .iter()
        .any(|e| error.raw_os_error() == Some(*e))
}

fn one_file(file: BorrowedFd<'_>, writable: bool, program: &str) -> io::Result<()> {
    let beside = found(program).and_then(|path| Some(path.parent()?.to_owned())).into_iter();
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

/// Where a program lies.
fn found(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    folders?.canonicalize().ok()
}

/// A system call has another number for programs of the x32 ABI (Linux, arch/x86/include/uapi/asm/unistd.h, `__X32_SYSCALL_BIT`).
#[cfg(target_arch = "x86_64")]
const OTHER_NUMBERS: &[i64] = &[0x4000_0000];
#[cfg(not(target_arch = "x86_64"))]
const OTHER_NUMBERS: &[i64] = &[];

fn refuse(calls: &[i64], action: SeccompAction) -> io::Result<()> {
    let numbers =
        |call: &i64| [*call].into_iter().chain(OTHER_NUMBERS.iter().map(|bit| *call | bit)).collect::<Vec<_>>();
    let rules: BTreeMap<_, _> = calls.iter().flat_map(numbers).map(|call| (call, Vec::new())).collect();
    let compile = || -> Result<BpfProgram, seccompiler::BackendError> {
        SeccompFilter::new(rules, SeccompAction::Allow, action, env::consts::ARCH.try_into()?)?.try_into()
    };
    let program = compile().map_err(|e| io::Error::other(format!("the list of system calls: {e}")))?;
    apply_filter(&program).map_err(|e| io::Error::other(format!("the list of system calls: {e}")))
}
