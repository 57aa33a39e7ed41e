//! System calls of the cage that have no safe form.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Closes every descriptor from 3 on, but these. Nothing may use those that are closed any more.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let ends = kept.iter().copied().chain([u32::MAX]);
    let begins = [3].into_iter().chain(kept.iter().map(|fd| fd + 1));
    for (begin, end) in begins.zip(ends) {
        // The last descriptor of all is not one that is kept.
        let last = if end == u32::MAX { end } else { end.wrapping_sub(1) };
        if begin <= last {
            // SAFETY: it changes no memory. The caller has no other owner of a descriptor that lives on.
            check(unsafe { libc::syscall(libc::SYS_close_range, begin, last, 0) })?;
        }
    }
    Ok(())
}

/// Namespaces of its own, and so no rights over what is outside of them: nobody else's files, no network. Not of processes, since that
/// is for children only, and threads could not be started any more (clone(2), `EINVAL`). Not of mounts: a copy would hold all that is
/// mounted now, however often it is unmounted outside.
pub fn unshare() -> io::Result<()> {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    // SAFETY: it takes no memory; what descriptors mean stays the same.
    check(unsafe { libc::syscall(libc::SYS_unshare, flags) })
}

/// `struct landlock_ruleset_attr` (Linux, include/uapi/linux/landlock.h).
#[repr(C)]
#[derive(Default)]
struct Ruleset {
    fs: u64,
    net: u64,
    scoped: u64,
}

const CREATE_RULESET_VERSION: u32 = 1;

/// Takes this thread, and those it starts, every right that Landlock knows of: there is no rule that gives any.
pub fn landlock() -> io::Result<()> {
    // SAFETY: this form takes no memory and gives the version.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<Ruleset>(), 0_usize, CREATE_RULESET_VERSION)
    };
    check(version)?;
    // How many rights there are in each version; later ones are kept out by the list of system calls.
    let fs = match version {
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    let two = |since| if version >= since { 0b11 } else { 0 };
    let ruleset = Ruleset { fs: (1 << fs) - 1, net: two(4), scoped: two(6) };
    let size = match version {
        ..4 => size_of::<u64>(),
        4 | 5 => 2 * size_of::<u64>(),
        _ => size_of::<Ruleset>(),
    };
    // SAFETY: the kernel reads `size` bytes of the structure, which has as many.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, size, 0_u32) };
    check(fd)?;
    // SAFETY: it takes no memory.
    let restricted = check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, fd, 0_u32) });
    // SAFETY: the descriptor came from the kernel just now, and nobody else knows it.
    unsafe { libc::close(fd as i32) };
    restricted
}

/// Ignores these signals. A handler would have the kernel save a thread's registers on its stack, round keys included.
pub fn ignore(signals: &[i32]) {
    for signal in signals {
        // SAFETY: whoever had a handler for it only set a flag, which nobody looks at any more; this runs none.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
