//! The FUSE system call without a safe wrapper, and a call of the C library.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::ioctl::{self, Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`: attaches `new`, a freshly opened descriptor of `/dev/fuse`, to the connection of `connection`.
/// The new descriptor has its own queue of requests being worked on.
pub fn join(new: &OwnedFd, connection: impl AsFd) -> io::Result<()> {
    const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);
    // SAFETY: the kernel reads a u32, the number of a descriptor, through the pointer, and keeps no reference.
    let done = unsafe { ioctl(new, Setter::<CLONE, u32>::new(connection.as_fd().as_raw_fd().cast_unsigned())) };
    Ok(done?)
}

/// Returns free memory of the C library to the system. The library never does so for small free pieces between used ones.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) touches only free memory, and any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
