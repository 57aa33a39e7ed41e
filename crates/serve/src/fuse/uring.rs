//! The connection to the kernel over io_uring: one queue and thread per processor. Each request is answered on the
//! processor that made it, without waking another one.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno as SystemErrno;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Shared;
use super::answers::Answer;
use super::device::End;
use super::protocol::{FuseRequest, out_header};
use super::uring_sys::{Event, Queue};

/// An answer with at least this many bytes is submitted at once, because the program can already work on it.
const URGENT: usize = 32 << 10;

/// A processor's queue.
pub struct Processor {
    number: usize,
    queue: Queue,
}

/// Whether the kernel allows FUSE over io_uring (`fuse.enable_uring`).
pub fn is_allowed() -> bool {
    fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|value| value.first() == Some(&b'Y'))
}

/// Creates all queues of the connection. The kernel uses none of them until all are served.
///
/// # Errors
/// Fails if this process may not use io_uring.
pub fn processors(connection: &OwnedFd) -> io::Result<Vec<Processor>> {
    let count = possible_processors()?;
    // Memory is only used once large requests come: at most one MiB per slot.
    let depth = (64 / count).clamp(2, 8);
    let new = |number| {
        let queue = Queue::new(connection.try_clone()?, number as u16, depth)?;
        Ok(Processor { number, queue })
    };
    (0..count).map(new).collect()
}

impl Processor {
    /// Serves the requests made on this processor until the end.
    ///
    /// # Errors
    /// Errors of the kernel. Programs may then wait for an answer forever, so the caller must end the connection.
    pub fn serve(&mut self, shared: &Shared) -> io::Result<End> {
        // The thread also works on another processor, if this one is absent or not allowed.
        let mut here = CpuSet::new();
        here.set(self.number);
        let _ = sched_setaffinity(None, &here);
        let mut slots = self.queue.start(shared.control.wake())?;
        while slots > 0 {
            match self.queue.next()? {
                Event::Request(slot) => self.handle(slot, shared)?,
                Event::Woken => return Ok(End::Stopped),
                // A security module may object. The kernel uses /dev/fuse if no slot is left.
                Event::Refused(_) => slots -= 1,
                Event::Ended(SystemErrno::NOTCONN | SystemErrno::CONNABORTED | SystemErrno::CANCELED) => slots -= 1,
                Event::Ended(e) => return Err(e.into()),
            }
        }
        Ok(End::Unmounted)
    }

    fn handle(&mut self, slot: usize, shared: &Shared) -> io::Result<()> {
        let mut delivered = self.queue.delivered(slot);
        let data = delivered.payload_len();
        // Names count as payload, even without arguments before them.
        let request =
            FuseRequest::parse(delivered.header(), delivered.arguments()).ok_or(io::ErrorKind::InvalidData)?;
        let answer = shared.served.answer(&request, delivered.payload, data);
        let (error, len) = match answer {
            // Such requests never come this way. If one did, it would need an answer to free its slot.
            Answer::None => (None, 0),
            Answer::Done(len) => (None, len),
            Answer::Refused(errno) => (Some(errno), 0),
        };
        delivered.answer(&out_header(request.unique, error, len), len);
        self.queue.commit(slot, data.max(len) >= URGENT)
    }
}

/// Number of processors that the machine can have, which is the number of queues.
fn possible_processors() -> io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(&list).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The highest number in a list like `0-3,8`, plus one.
fn count(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse::<usize>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_processors_are_counted_up_to_the_last() {
        assert_eq!((count("0-1\n"), count("0"), count("0-3,8-11\n")), (Some(2), Some(1), Some(12)));
        assert_eq!(count("none"), None);
    }
}
