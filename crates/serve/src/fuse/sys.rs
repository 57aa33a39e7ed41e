//! The FUSE system call without a safe wrapper, and a call of the C library.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::ioctl::{self, Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`: attaches `new`, a freshly opened descriptor of `/dev/fuse`, to the connection of `connection`.
/// The new descriptor has its own queue of requests being worked on.
pub fn join(new: &OwnedFd, connection: impl AsFd) -> io::Result<()> {
    const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);
    // SAFETY: the kernel reads an u32 through the pointer, which is the number of a descriptor, and keeps nothing.
    let done = unsafe { ioctl(new, Setter::<CLONE, u32>::new(connection.as_fd().as_raw_fd().cast_unsigned())) };
    Ok(done?)
}

/// Returns free memory of the C library to the system. The library never does so for small free pieces between used ones.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches only what is free (malloc_trim(3)), and any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
