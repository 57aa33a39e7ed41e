//! The sandbox of the key process: it gives up files, sockets, other processes and everything else that encryption does not need.
//!
//! None of this can be undone. If the kernel lacks one of the walls, the others still apply, and [`enter`] returns the
//! missing ones. Only the system call filter is mandatory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

use super::cage_sys;
use crate::landlock;

/// A wall that is missing because the kernel lacks it or this process's own confinement forbids it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Landlock: no file can be opened, even if a system call could do so.
    Landlock,
    /// Own namespaces: no rights over the machine, even if root started the process.
    Namespaces,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Landlock => "Landlock",
            Self::Namespaces => "user namespaces",
        })
    }
}

/// Call this first, before any untrusted data are read: disables core dumps, keeps other processes of the same user
/// from looking in, and denies new privileges to started programs.
pub fn prepare() {
    // None of this fails on the supported versions of Linux.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = set_no_new_privs(true);
}

/// Limit for the numbers of new descriptors.
const DESCRIPTORS: u64 = 256;

/// Closes the cage around this process after it has read its secrets. Of its descriptors, only the standard ones and
/// `keep` stay open. The caller must have no other thread, or more walls will be missing.
///
/// # Errors
/// If the system call filter cannot be installed: then nothing may be unlocked.
pub fn enter(keep: &[BorrowedFd<'_>]) -> io::Result<Vec<Missing>> {
    prepare();
    // Without rights over the machine, this limit applies to root, too.
    let most = getrlimit(Resource::Memlock).maximum;
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })
        .or_else(|_| setrlimit(Resource::Memlock, Rlimit { current: most, maximum: most }));
    cage_sys::close_all_but(keep)?;
    // Allocating memory for secrets needs a descriptor for a moment.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) });
    let walls = [(Missing::Namespaces, cage_sys::unshare()), (Missing::Landlock, landlock::restrict(&[]))];
    filter()?;
    Ok(walls.into_iter().filter_map(|(wall, built)| built.is_err().then_some(wall)).collect())
}

/// Ignores these signals, which the key process does not need. From then on, no signal can interrupt a thread that
/// works with keys and leave them on its stack.
pub fn ignore(signals: &[i32]) {
    cage_sys::ignore(signals);
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the filters. Any call that is on none of the lists kills the process.
fn filter() -> io::Result<()> {
    let error = |e: &dyn fmt::Display| io::Error::other(format!("the list of system calls: {e}"));
    // Every filter sees each call, and the strictest answer wins. Calls for these two filters must therefore be allowed below.
    let any = |calls: &[i64]| calls.iter().map(|call| (*call, Vec::new())).collect::<Rules>();
    let denied = compile(any(DENIED), SeccompAction::Errno(libc::EACCES as u32), SeccompAction::Allow);
    let absent = compile(any(ABSENT), SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow);
    let mut left = any(&[LEFT, DENIED, ABSENT].concat());
    left.extend(narrowed().map_err(|e| error(&e))?);
    let left = compile(left, SeccompAction::Allow, SeccompAction::KillProcess);
    for program in [denied, absent, left] {
        apply_filter_all_threads(&program.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
    }
    Ok(())
}

/// A filter with one action for the listed calls and another for all others.
pub(crate) fn compile(
    rules: Rules,
    listed: SeccompAction,
    others: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, others, listed, architecture)?.try_into()
}

/// Calls needed to encrypt, to derive keys with threads, and to use the open descriptors.
const LEFT: &[i64] = &[
    // Open descriptors: the channel, standard error, a signal pipe.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_close,
    libc::SYS_dup3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_fstat,
    libc::SYS_shutdown,
    // Memory, none of it executable.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_memfd_secret,
    libc::SYS_ftruncate,
    // Threads, and waiting.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_setsid,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls that libraries try but can do without: the answer is an error that denies access.
const DENIED: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// Calls with an older form whose arguments a filter can see.
const ABSENT: &[i64] = &[libc::SYS_clone3];

/// Linux, include/uapi/linux/prctl.h.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// The allowed forms of calls that could do more.
fn narrowed() -> Result<Rules, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq};
    let when = |argument, len, op, value| SeccompCondition::new(argument, len, op, value);
    let one = |condition| SeccompRule::new(vec![condition]);
    let no_code = |argument| one(when(argument, Dword, MaskedEq(libc::PROT_EXEC as u64), 0)?);
    let ioctl = |request: libc::Ioctl| one(when(1, Dword, Eq, u64::from(request as u32))?);
    let prctl = |option: u64| one(when(0, Dword, Eq, option)?);
    let fcntl = |command: libc::c_int| one(when(1, Dword, Eq, command as u64)?);
    let threads = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
    Ok(Rules::from([
        (libc::SYS_mmap, vec![no_code(2)?]),
        (libc::SYS_mprotect, vec![no_code(2)?]),
        // No new processes.
        (libc::SYS_clone, vec![one(when(0, Qword, MaskedEq(threads), threads)?)?]),
        // The name of a thread, and the auxiliary vector for the page size.
        (libc::SYS_prctl, vec![prctl(libc::PR_SET_NAME as u64)?, prctl(PR_GET_AUXV)?]),
        // Limits may be read, only of this process.
        (libc::SYS_prlimit64, vec![SeccompRule::new(vec![when(0, Dword, Eq, 0)?, when(2, Qword, Eq, 0)?])?]),
        // Nothing that makes the kernel send signals (F_SETOWN) or changes shared open files (F_SETFL).
        (
            libc::SYS_fcntl,
            [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_GET_SEALS]
                .into_iter()
                .map(fcntl)
                .collect::<Result<_, _>>()?,
        ),
        // The width of the terminal, for progress output, and its echo, for another try of a password. No typing into it.
        (
            libc::SYS_ioctl,
            [libc::TCGETS, libc::TCGETS2, libc::TCSETSF, libc::TCSETSF2, libc::TIOCGWINSZ]
                .into_iter()
                .map(ioctl)
                .collect::<Result<_, _>>()?,
        ),
        // The process may end itself.
        (libc::SYS_tgkill, vec![one(when(0, Dword, Eq, std::process::id().into())?)?]),
    ]))
}
