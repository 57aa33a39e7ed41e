//! System calls of the cage without a safe form.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Closes every descriptor from 3 on except these. Nothing may use the closed ones any more.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let ends = kept.iter().copied().chain([u32::MAX]);
    let begins = [3].into_iter().chain(kept.iter().map(|fd| fd + 1));
    for (begin, end) in begins.zip(ends) {
        // The descriptor `u32::MAX` is never one of those to keep.
        let last = if end == u32::MAX { end } else { end.wrapping_sub(1) };
        if begin <= last {
            // SAFETY: the call changes no memory. The caller guarantees that no closed descriptor still has an owner.
            check(unsafe { libc::syscall(libc::SYS_close_range, begin, last, 0) })?;
        }
    }
    Ok(())
}

/// Enters new namespaces, and so loses rights over everything outside them: other users' files, the network. A PID
/// namespace is left out, as it applies only to children and new threads would fail (clone(2), `EINVAL`). A mount
/// namespace is left out, too: its copies would keep all current mounts alive after they are unmounted outside.
pub fn unshare() -> io::Result<()> {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    // SAFETY: the call takes no memory, and descriptors keep their meaning.
    check(unsafe { libc::syscall(libc::SYS_unshare, flags) })
}

/// Ignores these signals. For a handler, the kernel would save a thread's registers on its stack, round keys included.
pub fn ignore(signals: &[i32]) {
    for signal in signals {
        // SAFETY: earlier handlers only set flags, which nothing reads any more; this call installs no handler.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
