//! The connection to the kernel over io_uring: a queue for each processor, and several threads for each queue. A request is answered on the
//! processor that made it, without waking another one.

use std::fs;
use std::io;
use std::iter;
use std::os::fd::OwnedFd;

use rustix::io::Errno as SystemErrno;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Shared;
use super::answers::Answer;
use super::device::End;
use super::protocol::{FuseRequest, out_header};
use super::uring_sys::{Event, RingSlot};

/// A thread that serves a processor's queue. It takes one request at a time, so the next one never waits behind it: the kernel gives that to
/// a free thread, and prefers the one that was busy last. The others sleep.
pub struct ProcessorThread {
    processor: usize,
    slot: RingSlot,
}

/// Whether the kernel allows FUSE over io_uring (`fuse.enable_uring`).
pub fn is_allowed() -> bool {
    fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|value| value.first() == Some(&b'Y'))
}

/// Creates the threads' parts of the connection. The kernel uses none of them until each queue has one that serves it.
///
/// # Errors
/// Fails if this process may not use io_uring.
pub fn threads(connection: &OwnedFd) -> io::Result<Vec<ProcessorThread>> {
    let count = possible_processors()?;
    // Memory is only used once large requests come: at most one MiB per thread.
    let of_each = (128 / count).clamp(4, 8);
    let new = |processor| {
        let slot = RingSlot::new(connection.try_clone()?, processor as u16)?;
        Ok(ProcessorThread { processor, slot })
    };
    (0..count).flat_map(|processor| iter::repeat_n(processor, of_each)).map(new).collect()
}

impl ProcessorThread {
    /// Serves requests made on this processor until the end.
    ///
    /// # Errors
    /// Errors of the kernel. Programs may then wait for an answer forever, so the caller must end the connection.
    pub fn serve(&mut self, shared: &Shared) -> io::Result<End> {
        // The thread also works on another processor, if this one is absent or not allowed.
        let mut here = CpuSet::new();
        here.set(self.processor);
        let _ = sched_setaffinity(None, &here);
        self.slot.start(shared.control.wake())?;
        loop {
            match self.slot.next()? {
                Event::Request => self.handle(shared)?,
                Event::Woken => return Ok(End::Stopped),
                // A security module may object. The kernel uses /dev/fuse if a queue has no slot.
                Event::Refused(_)
                | Event::Ended(SystemErrno::NOTCONN | SystemErrno::CONNABORTED | SystemErrno::CANCELED) => {
                    return Ok(End::Unmounted);
                }
                Event::Ended(e) => return Err(e.into()),
            }
        }
    }

    fn handle(&mut self, shared: &Shared) -> io::Result<()> {
        let mut delivered = self.slot.delivered();
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
        self.slot.commit()
    }
}

/// Number of processors that the machine can have: the number of queues.
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
