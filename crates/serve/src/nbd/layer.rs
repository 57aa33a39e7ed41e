//! TLS between a socket and those who use it.
//!
//! One thread receives, others send. Whoever blocks holds nothing that the other direction needs: the state of the connection is
//! locked to encrypt, to decrypt, and to hand the socket what it takes at once, and never while anybody waits.

use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustls::Connection;

use super::tls::explained;

/// Bytes that are received from the system at a time: several records, which have up to 16 KiB.
const INCOMING: usize = 128 << 10;

/// Bytes that are encrypted before they are sent: few enough to be in the processor's cache still.
const OUTGOING: usize = 256 << 10;

/// TLS over a socket, from the end of the handshake on.
pub struct TlsLayer {
    connection: Mutex<Connection>,
    incoming: Mutex<Incoming>,
    /// Whether we said that no more is to come: then an end is an end.
    stopped: AtomicBool,
}

/// What was received and not yet decrypted.
struct Incoming {
    buffer: Vec<u8>,
    held: Range<usize>,
    /// Whether more may be at hand, here or decrypted already, than the system knows of.
    more: bool,
}

impl TlsLayer {
    /// Carries the handshake out. `wait` waits for the socket to be ready, or fails.
    ///
    /// # Errors
    /// `InvalidData` for a peer that does not speak TLS, `PermissionDenied` where one of the two is not who it has to be,
    /// `UnexpectedEof`, what `wait` reports, and whatever the socket does.
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
                    // The peer should hear why.
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

    /// Receives some bytes, as [`recv`] does with these flags: `None` where that would block, 0 at the end.
    ///
    /// # Errors
    /// `UnexpectedEof` if the connection ends without the peer having said so, `InvalidData` for what is not from the peer, and
    /// whatever the socket reports.
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
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was cut, not ended"));
                }
                Some(_) => {}
                None => {
                    incoming.more = false;
                    return Ok(None);
                }
            }
        }
    }

    /// Whether something may be received although the system does not know of it.
    pub fn holds_more(&self) -> bool {
        self.incoming().more
    }

    /// Sends everything. `wait` waits for the socket to take more, or fails.
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

    /// From now on, the end of what is received is a proper one.
    pub fn stop_receiving(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Tells the peer that nothing more will come, if that can be done at once.
    pub fn close(&mut self, socket: BorrowedFd<'_>) {
        let connection = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        connection.send_close_notify();
        let _ = flush(connection, socket);
    }

    /// Fills `to` with what was received already; `None` if nothing can be had from that, 0 at the end.
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
    /// Receives more, once all that was received is gone: `None` if that would block, 0 at the end.
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

    /// Has the connection take some of it.
    fn pass_to(&mut self, connection: &mut Connection) -> io::Result<()> {
        self.held.start += connection.read_tls(&mut &self.buffer[self.held.clone()])?;
        connection.process_new_packets().map(drop).map_err(|e| explained(&e))
    }
}

/// Sends what is encrypted. `false` if the socket does not take all of it now.
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

    /// A client's end and a server's, encrypted.
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
                // Two threads that send what must not be mixed, and one that receives.
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
