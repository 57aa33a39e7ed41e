//! What answers requests of the kernel, whichever way they come.

use std::io;
use std::time::Duration;

use super::protocol::{Errno, FuseRequest};

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel waits for none.
    None,
    /// So many bytes, at the beginning of the payload.
    Done(usize),
    /// An error.
    Refused(Errno),
}

/// Something that a mounted folder shows.
pub trait Answers: Send + Sync {
    /// Flags of INIT that it wants, besides those that all have.
    fn wants(&self) -> u64;

    /// Carries a request out. `payload` begins with the `data` bytes of names and data that came with it, and takes those
    /// of the answer; it has room for [`MAX_DATA`](super::protocol::MAX_DATA).
    fn answer(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answer;

    /// How often what was written is to be made durable, if nobody asks for it.
    fn flushed_every(&self) -> Option<Duration> {
        None
    }

    /// Makes durable what was written.
    fn flush(&self) -> io::Result<()>;

    /// The last of all calls.
    fn finish(&self) -> io::Result<()> {
        self.flush()
    }
}
