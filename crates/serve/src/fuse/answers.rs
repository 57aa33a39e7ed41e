//! Answers to the kernel's requests, over any transport.

use std::io;
use std::time::Duration;

use super::protocol::{Errno, FuseRequest};

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel expects no answer.
    None,
    /// This many bytes, at the beginning of the payload.
    Done(usize),
    /// An error.
    Refused(Errno),
}

/// Something that is shown as a mounted folder.
pub trait Answers: Send + Sync {
    /// Flags of INIT that this needs in addition to the common ones.
    fn wants(&self) -> u64;

    /// Carries out a request. The first `data` bytes of `payload` are the request's names and data; the answer's data
    /// overwrite them. `payload` has room for [`MAX_DATA`](super::protocol::MAX_DATA) bytes.
    fn answer(&self, request: &FuseRequest, payload: &mut [u8], data: usize) -> Answer;

    /// How often written data are made durable without a request to do so.
    fn flushed_every(&self) -> Option<Duration> {
        None
    }

    /// Makes written data durable.
    fn flush(&self) -> io::Result<()>;

    /// The last of all calls.
    fn finish(&self) -> io::Result<()> {
        self.flush()
    }
}
