//! Waiting for descriptors.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// Waits for one of `fds`. `false` if nothing has happened after `timeout`.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    // A timeout that does not fit is for ever.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    loop {
        match poll(fds, timeout.as_ref()) {
            Ok(n) => return Ok(n > 0),
            // Interrupted waits start over: longer than asked for, and nobody measures by them.
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
