//! The one system call of FUSE that has no safe form, and one of the C library.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::ioctl::{self, Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`: makes `new`, a descriptor of `/dev/fuse` that was just opened, another way into the connection of
/// `connection`, with a queue of its own for requests that are being worked on.
pub fn join(new: &OwnedFd, connection: impl AsFd) -> io::Result<()> {
    const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);
    // SAFETY: the kernel reads an u32 through the pointer, which is the number of a descriptor, and keeps nothing.
    let done = unsafe { ioctl(new, Setter::<CLONE, u32>::new(connection.as_fd().as_raw_fd().cast_unsigned())) };
    Ok(done?)
}

/// Gives the system back what the C library holds of memory that is free: of small pieces between others, it never does that itself.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches only what is free (malloc_trim(3)), and any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
