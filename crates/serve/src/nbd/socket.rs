//! A connected stream socket.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use claviger_engine::deadline::Deadline;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg, shutdown, sockopt};

use super::layer::TlsLayer;
pub use crate::wait::wait;

/// Kernel buffer size in each direction, in bytes. A whole request of 1 MiB and the next one fit, so that neither side
/// sleeps in the middle of one; larger buffers do not help.
const KERNEL_BUFFER: usize = 4 << 20;

/// A connected stream socket, with TLS once that has been started.
///
/// One thread receives at a time. Any thread may send; messages that must stay together are sent while holding [`Socket::turn`].
pub struct Socket {
    fd: OwnedFd,
    turn: Mutex<()>,
    tls: OnceLock<TlsLayer>,
}

impl Socket {
    /// Takes over a connected socket and gives it large buffers, if the system allows.
    pub fn new(fd: OwnedFd) -> Self {
        // Exceeding net.core.{w,r}mem_max needs a privilege. Without it, a buffer of that limit is large enough.
        if sockopt::set_socket_send_buffer_size_force(&fd, KERNEL_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&fd, KERNEL_BUFFER);
        }
        if sockopt::set_socket_recv_buffer_size_force(&fd, KERNEL_BUFFER).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&fd, KERNEL_BUFFER);
        }
        // Fails on a Unix socket, which does not need it.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        Self { fd, turn: Mutex::default(), tls: OnceLock::new() }
    }

    /// Performs the TLS handshake; everything sent and received afterwards is encrypted. If it fails, the connection is unusable.
    ///
    /// # Errors
    /// Those of [`TlsLayer::start`], and `TimedOut`.
    pub fn start_tls(&self, connection: rustls::Connection, deadline: Deadline) -> io::Result<()> {
        let layer = TlsLayer::start(connection, self.fd.as_fd(), |flags| deadline.wait(&self.fd, flags))?;
        self.tls.set(layer).map_err(|_| io::Error::other("TLS has begun already"))
    }

    /// Whether the connection is encrypted.
    pub fn has_tls(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Receives available data without waiting: `None` if there are none, 0 at the end.
    pub fn receive_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        if let Some(tls) = self.tls.get() {
            return tls.receive(self.fd.as_fd(), to, RecvFlags::DONTWAIT);
        }
        loop {
            match recv(&self.fd, &mut *to, RecvFlags::DONTWAIT) {
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
            let received = match self.tls.get() {
                Some(tls) => tls.receive(self.fd.as_fd(), to, RecvFlags::empty())?.unwrap_or(0),
                None => match recv(&self.fd, &mut *to, RecvFlags::WAITALL) {
                    Ok((n, _)) => n,
                    Err(Errno::INTR) => continue,
                    Err(e) => return Err(e.into()),
                },
            };
            match received {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => to = &mut to[n..],
            }
        }
        Ok(())
    }

    /// A lock for senders whose messages must not be mixed with others.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends everything.
    pub fn send(&self, mut what: &mut [IoSlice<'_>]) -> io::Result<()> {
        if let Some(tls) = self.tls.get() {
            return tls
                .send(self.fd.as_fd(), what, || wait(&mut [PollFd::new(&self.fd, PollFlags::OUT)], None).map(drop));
        }
        IoSlice::advance_slices(&mut what, 0);
        while let [first, rest @ ..] = &*what {
            let sent = match rest {
                [] => send(&self.fd, first, SendFlags::NOSIGNAL),
                _ => sendmsg(&self.fd, what, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL),
            };
            match sent {
                Ok(n) => IoSlice::advance_slices(&mut what, n),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Sends everything. While the peer takes nothing, `meanwhile` may receive, and returns whether it did.
    ///
    /// # Errors
    /// `TimedOut` if the peer takes nothing for this long, or an error of the socket or of `meanwhile`.
    pub fn send_or(
        &self,
        mut what: &mut [IoSlice<'_>],
        timeout: Duration,
        mut meanwhile: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<()> {
        /// Time between two checks while another thread receives.
        const PAUSE: Duration = Duration::from_millis(5);

        let mut last = Instant::now();
        let mut blocked = |moved: bool| {
            if moved {
                last = Instant::now();
            } else if last.elapsed() > timeout {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if !meanwhile()? {
                wait(&mut [PollFd::new(&self.fd, PollFlags::OUT)], Some(PAUSE))?;
            }
            Ok(())
        };
        if let Some(tls) = self.tls.get() {
            return tls.send(self.fd.as_fd(), what, || blocked(false));
        }
        IoSlice::advance_slices(&mut what, 0);
        let mut moved = false;
        while !what.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.fd, what, &mut SendAncillaryBuffer::default(), flags) {
                Ok(n) => {
                    IoSlice::advance_slices(&mut what, n);
                    moved = true;
                }
                Err(Errno::AGAIN) => blocked(std::mem::take(&mut moved))?,
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
    pub fn receive_by(&self, deadline: Deadline, mut to: &mut [u8]) -> io::Result<()> {
        while !to.is_empty() {
            deadline.left()?;
            match self.receive_now(to)? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(n) => to = &mut to[n..],
                None => deadline.wait(&self.fd, PollFlags::IN)?,
            }
        }
        Ok(())
    }

    /// Sends all of `what` before `deadline`.
    ///
    /// # Errors
    /// `TimedOut`, or the socket's error.
    pub fn send_by(&self, deadline: Deadline, mut what: &[u8]) -> io::Result<()> {
        if let Some(tls) = self.tls.get() {
            let wait = || deadline.wait(&self.fd, PollFlags::OUT);
            return tls.send(self.fd.as_fd(), &mut [IoSlice::new(what)], wait);
        }
        while !what.is_empty() {
            match send(&self.fd, what, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => what = &what[n..],
                Err(Errno::AGAIN) => deadline.wait(&self.fd, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Waits for data or the end of the stream. Returns `false` if `timeout` passes first.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        if self.tls.get().is_some_and(TlsLayer::holds_more) {
            return Ok(true);
        }
        wait(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout)
    }

    /// Stops the peer from sending more; what it has sent can still be received.
    pub fn stop_receiving(&self) {
        self.tls.get().inspect(|tls| tls.stop_receiving());
        let _ = shutdown(&self.fd, Shutdown::Read);
    }

    /// Ends the connection at once, even with requests in flight.
    pub fn cut(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Otherwise the peer takes the end for an attack.
        if let Some(tls) = self.tls.get_mut() {
            tls.close(self.fd.as_fd());
        }
    }
}
