//! Waiting for descriptors.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// Waits for one of `fds`. Returns `false` if nothing happened within `timeout`.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    // A timeout that overflows means forever.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    loop {
        match poll(fds, timeout.as_ref()) {
            Ok(n) => return Ok(n > 0),
            // An interrupted wait starts over: it takes longer than requested, but nobody measures time with it.
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
