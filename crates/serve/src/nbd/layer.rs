//! TLS on top of a socket.
//!
//! One thread receives, others send. A blocked thread holds nothing that the other direction needs. The connection's
//! state is locked only to encrypt, to decrypt and to pass the socket what it takes at once, never during a wait.

use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustls::Connection;

use super::tls_error::explained;

/// Bytes received from the system at a time: several records of up to 16 KiB.
const INCOMING: usize = 128 << 10;

/// Bytes encrypted before they are sent: few enough to stay in the processor's cache.
const OUTGOING: usize = 256 << 10;

/// TLS over a socket, after the handshake.
pub struct TlsLayer {
    connection: Mutex<Connection>,
    incoming: Mutex<Incoming>,
    /// Whether this side has stopped receiving: then the end of the stream needs no notice from the peer.
    stopped: AtomicBool,
}

/// Received data that are not decrypted yet.
struct Incoming {
    buffer: Vec<u8>,
    held: Range<usize>,
    /// Whether data may be available that the system does not know of: received or even decrypted already.
    more: bool,
}

impl TlsLayer {
    /// Performs the handshake. `wait` waits for the socket to be ready, or fails.
    ///
    /// # Errors
    /// `InvalidData` for a peer that does not speak TLS; `PermissionDenied` if one side does not accept the other's
    /// identity; `UnexpectedEof`; or an error of `wait` or of the socket.
    pub fn start(
        mut connection: Connection,
        socket: BorrowedFd<'_>,
        mut wait: impl FnMut(PollFlags) -> io::Result<()>,
    ) -> io::Result<Self> {
        connection.set_buffer_limit(Some(OUTGOING));
        let mut incoming = Incoming { buffer: vec![0; INCOMING], held: 0..0, more: true };
        loop {
            if !flush(&mut connection, socket)? {
                wait(PollFlags::OUT)?;
            } else if !connection.is_handshaking() {
                break;
            } else if !incoming.held.is_empty() {
                incoming.pass_to(&mut connection).inspect_err(|_| {
                    // Tell the peer the reason.
                    let _ = flush(&mut connection, socket);
                })?;
            } else {
                match incoming.receive(socket, RecvFlags::DONTWAIT)? {
                    Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Some(_) => {}
                    None => wait(PollFlags::IN)?,
                }
            }
        }
        Ok(Self { connection: Mutex::new(connection), incoming: Mutex::new(incoming), stopped: AtomicBool::new(false) })
    }

    /// Receives some bytes, like [`recv`] with these flags: `None` if that would block, 0 at the end.
    ///
    /// # Errors
    /// `UnexpectedEof` if the connection ends without the peer's notice, `InvalidData` for data that are not from the
    /// peer, or the socket's error.
    pub fn receive(&self, socket: BorrowedFd<'_>, to: &mut [u8], flags: RecvFlags) -> io::Result<Option<usize>> {
        let mut incoming = self.incoming();
        incoming.more = true;
        loop {
            if let Some(n) = self.decrypted(&mut incoming, socket, to)? {
                return Ok(Some(n));
            }
            match incoming.receive(socket, flags)? {
                Some(0) if self.stopped.load(Ordering::Acquire) => return Ok(Some(0)),
                Some(0) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was cut off"));
                }
                Some(_) => {}
                None => {
                    incoming.more = false;
                    return Ok(None);
                }
            }
        }
    }

    /// Whether data may be available that the system does not know of.
    pub fn holds_more(&self) -> bool {
        self.incoming().more
    }

    /// Sends everything. `wait` waits until the socket takes more, or fails.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        mut what: &mut [IoSlice<'_>],
        mut wait: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        IoSlice::advance_slices(&mut what, 0);
        loop {
            let mut connection = self.connection();
            if !what.is_empty() {
                let taken = connection.writer().write_vectored(what)?;
                IoSlice::advance_slices(&mut what, taken);
            }
            let flushed = flush(&mut connection, socket)?;
            drop(connection);
            match flushed {
                true if what.is_empty() => return Ok(()),
                true => {}
                false => wait()?,
            }
        }
    }

    /// From now on, the end of the stream is accepted without the peer's notice.
    pub fn stop_receiving(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Tells the peer that nothing more will come, if that can be done at once.
    pub fn close(&mut self, socket: BorrowedFd<'_>) {
        let connection = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        connection.send_close_notify();
        let _ = flush(connection, socket);
    }

    /// Fills `to` from data received already: `None` if they do not suffice, 0 at the end.
    fn decrypted(&self, incoming: &mut Incoming, socket: BorrowedFd<'_>, to: &mut [u8]) -> io::Result<Option<usize>> {
        let mut connection = self.connection();
        let mut filled = 0;
        loop {
            match connection.reader().read(&mut to[filled..]) {
                Ok(0) => return Ok(Some(filled)),
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if filled == to.len() {
                return Ok(Some(filled));
            }
            if incoming.held.is_empty() {
                return Ok((filled > 0).then_some(filled));
            }
            incoming.pass_to(&mut connection).inspect_err(|_| {
                let _ = flush(&mut connection, socket);
            })?;
        }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Incoming {
    /// Receives more, once all received data are used: `None` if that would block, 0 at the end.
    fn receive(&mut self, socket: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<Option<usize>> {
        debug_assert!(self.held.is_empty());
        loop {
            match recv(socket, &mut self.buffer[..], flags) {
                Ok((n, _)) => {
                    self.held = 0..n;
                    return Ok(Some(n));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Passes some of the received data to the connection.
    fn pass_to(&mut self, connection: &mut Connection) -> io::Result<()> {
        self.held.start += connection.read_tls(&mut &self.buffer[self.held.clone()])?;
        connection.process_new_packets().map(drop).map_err(|e| explained(&e))
    }
}

/// Sends encrypted data. `false` if the socket does not take all of them now.
fn flush(connection: &mut Connection, socket: BorrowedFd<'_>) -> io::Result<bool> {
    while connection.wants_write() {
        match connection.write_tls(&mut Now(socket)) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Sends without waiting.
struct Now<'a>(BorrowedFd<'a>);

impl Write for Now<'_> {
    fn write(&mut self, what: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| send(self.0, what, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))?)
    }

    fn write_vectored(&mut self, what: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(rustix::io::retry_on_intr(|| sendmsg(self.0, what, &mut SendAncillaryBuffer::default(), flags))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use claviger_engine::deadline::Deadline;
    use claviger_testkit::certificates::Authority;

    use super::super::socket::Socket;
    use super::super::tls::{ClientTls, ServerTls};

    /// The encrypted ends of a client and a server.
    fn pair() -> Option<[Socket; 2]> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Authority::with_both(folder.path())?;
        let deadline = Deadline::within(Duration::from_secs(60), None);
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let (client, server) = (Socket::new(ours.into()), Socket::new(theirs.into()));
        thread::scope(|scope| {
            scope.spawn(|| {
                ServerTls::new(folder.path(), true).expect("certificates").start(&server, deadline).expect("TLS")
            });
            ClientTls::new(folder.path(), "localhost")
                .expect("certificates")
                .handshake(&client, deadline)
                .expect("TLS");
        });
        Some([client, server])
    }

    #[test]
    fn both_sides_send_at_once() {
        const MESSAGE: usize = (1 << 20) + 12345;
        const MESSAGES: usize = 64;
        let Some(sockets) = pair() else { return };
        thread::scope(|scope| {
            for socket in &sockets {
                // Two threads send messages that must not be mixed, and one receives.
                for seed in 0..2 {
                    scope.spawn(move || {
                        let message = vec![seed; MESSAGE];
                        for _ in 0..MESSAGES / 2 {
                            let _turn = socket.turn();
                            socket
                                .send(&mut [IoSlice::new(&message[..100]), IoSlice::new(&message[100..])])
                                .expect("sent");
                        }
                    });
                }
                scope.spawn(move || {
                    let mut message = vec![0; MESSAGE];
                    let mut of_each = [0; 2];
                    for _ in 0..MESSAGES {
                        socket.receive(&mut message).expect("received");
                        assert!(message.iter().all(|b| *b == message[0]));
                        of_each[usize::from(message[0])] += 1;
                    }
                    assert_eq!(of_each, [MESSAGES / 2; 2]);
                });
            }
        });
    }

    #[test]
    fn an_end_is_told_from_a_cut() {
        for cut in [false, true] {
            let Some([client, server]) = pair() else { return };
            server.send(&mut [IoSlice::new(b"all there is")]).expect("sent");
            if cut {
                server.cut();
            }
            drop(server);
            let mut all = [0; 64];
            let mut len = 0;
            let end = loop {
                client.wait(None).expect("it waits");
                match client.receive_now(&mut all[len..]) {
                    Ok(Some(n @ 1..)) => len += n,
                    Ok(None) => {}
                    end => break end.map_err(|e| e.kind()),
                }
            };
            assert_eq!(&all[..len], b"all there is");
            assert_eq!(end, if cut { Err(std::io::ErrorKind::UnexpectedEof) } else { Ok(Some(0)) });
        }
    }

    #[test]
    fn what_was_sent_before_we_stopped_receiving_still_comes() {
        let Some([client, server]) = pair() else { return };
        client.send(&mut [IoSlice::new(&[5; 40_000])]).expect("sent");
        server.stop_receiving();
        let mut all = vec![0; 40_000];
        server.receive(&mut all).expect("received");
        assert!(all.iter().all(|b| *b == 5));
        assert_eq!(server.receive_now(&mut all).expect("a proper end"), Some(0));
    }
}
