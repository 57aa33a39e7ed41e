//! A connected stream socket.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg, shutdown, sockopt};

pub use crate::wait::wait;

/// Kernel buffer size in each direction, in bytes. A whole request of 1 MiB and the next one fit, so that neither side
/// sleeps in the middle of one; larger buffers do not help.
const KERNEL_BUFFER: usize = 4 << 20;

/// A connected stream socket.
pub struct Socket(OwnedFd, Mutex<()>);

impl Socket {
    /// Takes over a connected socket and gives it large buffers, if the system allows.
    pub fn new(fd: OwnedFd) -> Self {
        // Exceeding net.core.{w,r}mem_max takes a privilege; the limit without it will do.
        if sockopt::set_socket_send_buffer_size_force(&fd, KERNEL_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&fd, KERNEL_BUFFER);
        }
        if sockopt::set_socket_recv_buffer_size_force(&fd, KERNEL_BUFFER).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&fd, KERNEL_BUFFER);
        }
        // Fails on a Unix socket, which does not need it.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        Self(fd, Mutex::default())
    }

    /// Receives what is there without waiting: `None` if there is nothing, 0 at the end.
    pub fn receive_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match recv(&self.0, &mut *to, RecvFlags::DONTWAIT) {
                Ok((n, _)) => return Ok(Some(n)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Fills `to`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the peer ends the connection first.
    pub fn receive(&self, mut to: &mut [u8]) -> io::Result<()> {
        while !to.is_empty() {
            match recv(&self.0, &mut *to, RecvFlags::WAITALL) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => to = &mut to[n..],
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Held by whoever sends what must not be mixed with what others send.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends everything.
    pub fn send(&self, mut what: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut what, 0);
        while let [first, rest @ ..] = &*what {
            let sent = match rest {
                [] => send(&self.0, first, SendFlags::NOSIGNAL),
                _ => sendmsg(&self.0, what, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL),
            };
            match sent {
                Ok(n) => IoSlice::advance_slices(&mut what, n),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Sends everything. Where the peer takes nothing, `meanwhile` may receive, and says whether there was something.
    ///
    /// # Errors
    /// `TimedOut` if the peer takes nothing for so long, or whatever sending or `meanwhile` reports.
    pub fn send_or(
        &self,
        mut what: &mut [IoSlice<'_>],
        timeout: Duration,
        mut meanwhile: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<()> {
        /// Between two looks, while another thread receives.
        const PAUSE: Duration = Duration::from_millis(5);

        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut last = Instant::now();
        IoSlice::advance_slices(&mut what, 0);
        while !what.is_empty() {
            match sendmsg(&self.0, what, &mut SendAncillaryBuffer::default(), flags) {
                Ok(n) => {
                    IoSlice::advance_slices(&mut what, n);
                    last = Instant::now();
                }
                Err(Errno::AGAIN) if last.elapsed() > timeout => return Err(io::ErrorKind::TimedOut.into()),
                Err(Errno::AGAIN) => {
                    if !meanwhile()? {
                        wait(&mut [PollFd::new(&self.0, PollFlags::OUT)], Some(PAUSE))?;
                    }
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Fills `to` before `deadline`.
    ///
    /// # Errors
    /// `TimedOut`, or `UnexpectedEof` if the peer ends the connection.
    pub fn receive_by(&self, deadline: Instant, mut to: &mut [u8]) -> io::Result<()> {
        while !to.is_empty() {
            match self.receive_now(to)? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(n) => to = &mut to[n..],
                None => self.wait_by(deadline, PollFlags::IN)?,
            }
        }
        Ok(())
    }

    /// Sends all of `what` before `deadline`.
    ///
    /// # Errors
    /// `TimedOut`, or whatever sending reports.
    pub fn send_by(&self, deadline: Instant, mut what: &[u8]) -> io::Result<()> {
        while !what.is_empty() {
            match send(&self.0, what, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => what = &what[n..],
                Err(Errno::AGAIN) => self.wait_by(deadline, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Waits for data or the end of the stream. Returns `false` if `timeout` passes first.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        wait(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout)
    }

    /// Stops the peer from sending more; what it has sent can still be received.
    pub fn stop_receiving(&self) {
        let _ = shutdown(&self.0, Shutdown::Read);
    }

    /// Ends the connection, whatever is in flight.
    pub fn cut(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    fn wait_by(&self, deadline: Instant, flags: PollFlags) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() && wait(&mut [PollFd::new(&self.0, flags)], Some(left))? {
            return Ok(());
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
