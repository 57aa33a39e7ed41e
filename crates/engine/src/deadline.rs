//! Waits for something outside this process, until a deadline for the whole exchange or until cancelled.
//!
//! A peer that sends a byte now and then would never trigger a timeout per read. So a caller creates a [`Deadline`] before the
//! first byte, and it limits every wait of the exchange.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};

use crate::error::{Error, ErrorKind};

/// How often a waiting thread checks for cancellation: a signal may interrupt a different thread.
const TICK: Duration = Duration::from_millis(50);

/// A flag that ends a wait early once it is set.
pub type Cancel = Option<&'static AtomicBool>;

/// The time limit of an exchange with something outside this process, and the flag that ends it earlier.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    cancel: Cancel,
}

impl Deadline {
    /// A deadline this far in the future.
    pub fn within(patience: Duration, cancel: Cancel) -> Self {
        Self { at: Instant::now() + patience, cancel }
    }

    /// The earlier of this deadline and one this far in the future.
    pub fn at_most(self, patience: Duration) -> Self {
        Self { at: self.at.min(Instant::now() + patience), ..self }
    }

    /// The time that is left.
    ///
    /// # Errors
    /// `TimedOut` if none is left; [`cancelled`] if the exchange was cancelled.
    pub fn left(&self) -> io::Result<Duration> {
        if self.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(cancelled());
        }
        match self.at.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for a complete answer")),
            left => Ok(left),
        }
    }

    /// How long to wait until the next check for cancellation.
    ///
    /// # Errors
    /// Those of [`Deadline::left`].
    pub fn tick(&self) -> io::Result<Duration> {
        let left = self.left()?;
        Ok(if self.cancel.is_some() { left.min(TICK) } else { left })
    }

    /// Sleeps for that long, or until the deadline.
    ///
    /// # Errors
    /// Those of [`Deadline::left`].
    pub fn sleep(&self, how_long: Duration) -> io::Result<()> {
        let until = Instant::now() + how_long;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.left().map(drop);
            }
            thread::sleep(left.min(self.tick()?));
        }
    }

    /// Waits until the descriptor is ready.
    ///
    /// # Errors
    /// Those of [`Deadline::left`], and what the system reports.
    pub fn wait(&self, fd: impl AsFd, flags: PollFlags) -> io::Result<()> {
        loop {
            let tick = Timespec::try_from(self.tick()?).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&fd, flags)], Some(&tick)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Resolves a host name. The resolver cannot be interrupted, so it runs in a thread, which is abandoned if it takes too long.
    ///
    /// # Errors
    /// Those of [`Deadline::left`], and those of the resolver.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let (sender, receiver) = mpsc::channel();
        let host = host.to_owned();
        thread::Builder::new().name("resolver".into()).spawn(move || {
            let _ = sender.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
        })?;
        loop {
            match receiver.recv_timeout(self.tick()?) {
                Ok(addresses) => return addresses,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the name resolver has stopped")),
            }
        }
    }

    /// Connects to the first address of a host that responds. Each address gets its share of the time.
    ///
    /// # Errors
    /// The error of the resolver or of the last address; those of [`Deadline::left`].
    pub fn connect_tcp(&self, host: &str, port: u16) -> io::Result<OwnedFd> {
        let addresses = self.resolve(host, port)?;
        let mut failed = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
        for (nth, address) in addresses.iter().enumerate() {
            let share = self.left()? / (addresses.len() - nth) as u32;
            match self.at_most(share).connect_to(address) {
                Ok(socket) => return Ok(socket),
                Err(e) => failed = e,
            }
        }
        // The share of the last address does not matter here, only cancellation and the whole deadline.
        self.left().and(Err(failed))
    }

    fn connect_to(&self, address: &SocketAddr) -> io::Result<OwnedFd> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = nonblocking(family)?;
        match connect(&socket, address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                self.wait(&socket, PollFlags::OUT).map_err(|e| match e.kind() {
                    io::ErrorKind::TimedOut => io::Error::new(e.kind(), "timed out connecting"),
                    _ => e,
                })?;
                sockopt::socket_error(&socket)??;
            }
            Err(e) => return Err(e.into()),
        }
        blocking(socket)
    }

    /// Connects to a Unix socket. Waits if its queue is full.
    ///
    /// # Errors
    /// Those of [`Deadline::left`], and what the system reports.
    pub fn connect_unix(&self, path: &Path) -> io::Result<OwnedFd> {
        let (socket, address) = (nonblocking(AddressFamily::UNIX)?, SocketAddrUnix::new(path)?);
        loop {
            match connect(&socket, &address) {
                Ok(()) => return blocking(socket),
                Err(Errno::AGAIN) => self.sleep(TICK)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn nonblocking(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

fn blocking(socket: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// The error of a cancelled exchange: [`ErrorKind::Cancelled`], once converted back to [`Error`].
pub fn cancelled() -> io::Error {
    Error::from(ErrorKind::Cancelled).into()
}

/// Whether an error is that of [`cancelled`].
pub fn is_cancelled(error: &io::Error) -> bool {
    let ours = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    ours.is_some_and(|error| matches!(error.kind, ErrorKind::Cancelled))
}

/// A connected socket during one exchange.
pub struct Exchange<'a> {
    socket: BorrowedFd<'a>,
    deadline: Deadline,
}

impl<'a> Exchange<'a> {
    /// Applies the deadline to all reads and writes through this value.
    pub fn new(socket: BorrowedFd<'a>, deadline: Deadline) -> Self {
        Self { socket, deadline }
    }
}

impl Read for Exchange<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            // Checked even if data are ready: a peer that keeps sending is not read for ever.
            self.deadline.left()?;
            match recv(self.socket, &mut *to, RecvFlags::DONTWAIT) {
                Ok((n, _)) => return Ok(n),
                Err(Errno::AGAIN) => self.deadline.wait(self.socket, PollFlags::IN)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Write for Exchange<'_> {
    fn write(&mut self, what: &[u8]) -> io::Result<usize> {
        loop {
            self.deadline.left()?;
            match send(self.socket, what, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => return Ok(n),
                Err(Errno::AGAIN) => self.deadline.wait(self.socket, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// Sends a byte at intervals until the other end closes.
    fn drip(mut to: impl Write + Send + 'static) {
        thread::spawn(move || {
            while to.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
    }

    fn flag() -> &'static AtomicBool {
        Box::leak(Box::default())
    }

    #[test]
    fn a_peer_that_sends_a_byte_now_and_then_is_not_waited_for() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        drip(theirs);
        let deadline = Deadline::within(Duration::from_millis(300), None);
        let error = Exchange::new(ours.as_fd(), deadline).read_exact(&mut [0; 1000]).expect_err("it never ends");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn whoever_waits_looks_at_cancellation() {
        let cancel = flag();
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        drip(theirs.try_clone().expect("a copy"));
        let deadline = Deadline::within(Duration::from_secs(600), Some(cancel));
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            cancel.store(true, Ordering::Relaxed);
        });
        let error = Exchange::new(ours.as_fd(), deadline).read_exact(&mut [0; 100_000]).expect_err("it never ends");
        assert!(is_cancelled(&error) && matches!(Error::from(error).kind, ErrorKind::Cancelled));
        // The same holds for sending, sleeping, resolving and connecting.
        assert!(is_cancelled(&Exchange::new(ours.as_fd(), deadline).write_all(&[0; 1 << 24]).expect_err("cancelled")));
        assert!(is_cancelled(&deadline.sleep(Duration::from_secs(600)).expect_err("cancelled")));
        assert!(is_cancelled(&deadline.connect_tcp("localhost", 9).expect_err("cancelled")));
    }

    #[test]
    fn a_full_queue_is_waited_for_no_longer_than_the_deadline() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        rustix::net::listen(&listener, 0).expect("a short queue");
        let deadline = Deadline::within(Duration::from_millis(200), None);
        let mut waiting = Vec::new();
        let error = loop {
            match deadline.connect_unix(&path) {
                Ok(one) => waiting.push(one),
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn what_answers_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let deadline = Deadline::within(Duration::from_secs(60), None);
        let socket = deadline.connect_tcp("localhost", port).expect("it listens");
        let (mut theirs, _) = listener.accept().expect("connected");
        theirs.write_all(b"hello").expect("sent");
        let mut word = [0; 5];
        Exchange::new(socket.as_fd(), deadline).read_exact(&mut word).expect("received");
        assert_eq!(&word, b"hello");
        drop(listener);
        assert_eq!(deadline.connect_tcp("127.0.0.1", port).expect_err("gone").kind(), io::ErrorKind::ConnectionRefused);
    }
}
