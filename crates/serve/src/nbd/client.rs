//! A small blocking client, for measurements and for tests of servers.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::time::Duration;

use claviger_engine::deadline::Deadline;

use super::NbdAddress;
use super::greet::{self, RemoteExport, broken};
use super::listen::connect;
use super::protocol::*;
use super::socket::Socket;
use super::tls::ClientTls;
use crate::aligned::Aligned;

/// Bytes of replies received at a time.
const INBOX: usize = 128 << 10;

/// Reply data of at least this size is received in place; anything smaller is copied.
const LARGE: usize = 16 << 10;

/// How long the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The kind of replies that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// A header and the data.
    Simple,
    /// Chunks, as many as the server chooses, if it supports them.
    Structured,
}

/// A connection to an export.
///
/// Requests are either made one by one, or submitted and completed with several in flight. Offsets and lengths are in
/// bytes; one request reads or writes at most 32 MiB. Errors reported by the server have the kinds of the system errors
/// of the same name.
pub struct Client {
    socket: Socket,
    len: u64,
    flags: u16,
    structured: bool,
    next_cookie: u64,
    pending: HashMap<u64, Pending>,
    /// Headers submitted but not yet sent.
    outgoing: Vec<u8>,
    inbox: Aligned,
    held: Range<usize>,
}

/// A request in flight.
struct Pending {
    /// The range that a read covers; empty for other requests.
    reads: Range<u64>,
}

/// A completed request.
#[derive(Debug)]
pub struct Completion {
    /// The value returned when it was submitted.
    pub cookie: u64,
    /// Bytes read; 0 for other requests.
    pub len: usize,
    /// The server's result.
    pub result: io::Result<()>,
}

impl Client {
    /// Connects to the export `name` and asks for structured replies.
    ///
    /// # Errors
    /// `NotFound` if there is no such export, `InvalidData` for a server that breaks the protocol, `Unsupported` for
    /// one without fixed newstyle, or the socket's error.
    pub fn connect(address: &NbdAddress, name: &str) -> io::Result<Self> {
        Self::connect_with(address, name, Replies::Structured)
    }

    /// Connects to the export `name`.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &NbdAddress, name: &str, replies: Replies) -> io::Result<Self> {
        Self::connect_over(None, address, name, replies)
    }

    /// Connects to the export `name`, over TLS if given.
    ///
    /// # Errors
    /// As [`Client::connect`], and `PermissionDenied` if one side does not accept the other.
    pub fn connect_over(
        tls: Option<&ClientTls>,
        address: &NbdAddress,
        name: &str,
        replies: Replies,
    ) -> io::Result<Self> {
        let socket = Socket::new(connect(address)?);
        let structured = replies == Replies::Structured;
        let RemoteExport { len, flags, structured, .. } =
            greet::greet(&socket, tls, name, structured, Deadline::within(HANDSHAKE, None))?;
        let (pending, outgoing, mut inbox) = (HashMap::new(), Vec::new(), Aligned::default());
        inbox.reserve(INBOX);
        Ok(Self { socket, len, flags, structured, next_cookie: 1, pending, outgoing, inbox, held: 0..0 })
    }

    /// Size of the export in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the export has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the server reports the export as read-only.
    pub fn read_only(&self) -> bool {
        self.flags & export::READ_ONLY != 0
    }

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// The server's error, or the socket's.
    pub fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let cookie = self.submit_read(offset, out.len() as u32);
        self.finish(cookie, out)
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// As [`Client::read_at`].
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let cookie = self.submit_write(offset, data)?;
        self.finish(cookie, &mut [])
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// As [`Client::read_at`].
    pub fn flush(&mut self) -> io::Result<()> {
        let cookie = self.submit(command::FLUSH, 0, 0);
        self.finish(cookie, &mut [])
    }

    /// Tells the server that a range is no longer needed.
    ///
    /// # Errors
    /// As [`Client::read_at`].
    pub fn trim(&mut self, offset: u64, len: u32) -> io::Result<()> {
        let cookie = self.submit(command::TRIM, offset, len);
        self.finish(cookie, &mut [])
    }

    /// Writes zeros.
    ///
    /// # Errors
    /// As [`Client::read_at`].
    pub fn write_zeroes(&mut self, offset: u64, len: u32) -> io::Result<()> {
        let cookie = self.submit(command::WRITE_ZEROES, offset, len);
        self.finish(cookie, &mut [])
    }

    /// Disconnects properly.
    ///
    /// # Errors
    /// The socket's error.
    pub fn disconnect(mut self) -> io::Result<()> {
        self.submit(command::DISC, 0, 0);
        self.send(&[])
    }

    /// Submits a read. It is sent with the next write or the next call of [`Client::complete`].
    pub fn submit_read(&mut self, offset: u64, len: u32) -> u64 {
        self.submit(command::READ, offset, len)
    }

    /// Submits a write and sends `data` at once.
    ///
    /// # Errors
    /// The socket's error.
    pub fn submit_write(&mut self, offset: u64, data: &[u8]) -> io::Result<u64> {
        let cookie = self.submit(command::WRITE, offset, data.len() as u32);
        self.send(data)?;
        Ok(cookie)
    }

    /// Number of requests not yet completed.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Waits for the next reply, to whichever request. Data read is then at the beginning of `out`, which must have
    /// room for the largest read in flight.
    ///
    /// # Errors
    /// If the connection fails or the server breaks the protocol; the client is then unusable. A failed request is
    /// reported in its completion.
    pub fn complete(&mut self, out: &mut [u8]) -> io::Result<Completion> {
        self.send(&[])?;
        let mut chunked = None;
        let mut failed = None;
        let mut filled = 0;
        loop {
            let magic = be32(self.held(SimpleReply::SIZE)?, 0);
            match magic {
                SIMPLE_REPLY_MAGIC if chunked.is_none() => {
                    let header = self.take(SimpleReply::SIZE)?;
                    let (error, cookie) = (be32(header, 4), be64(header, 8));
                    let reads = self.reads_of(cookie)?;
                    if error != 0 {
                        return Ok(self.done(cookie, 0, Some(error)));
                    }
                    let len = (reads.end - reads.start) as usize;
                    self.take_data(out.get_mut(..len).ok_or_else(|| broken("no room for the data"))?)?;
                    return Ok(self.done(cookie, len, None));
                }
                STRUCTURED_REPLY_MAGIC if self.structured => {
                    let header = self.take(Chunk::SIZE)?;
                    let (flags, kind, cookie) = (be16(header, 4), be16(header, 6), be64(header, 8));
                    let len = be32(header, 16) as usize;
                    if chunked.is_some_and(|c| c != cookie) {
                        return Err(broken("interleaved chunks of several replies"));
                    }
                    chunked = Some(cookie);
                    let reads = self.reads_of(cookie)?;
                    match kind {
                        chunk::NONE if len == 0 => {}
                        chunk::OFFSET_DATA if len > 8 => {
                            let from = be64(self.take(8)?, 0);
                            let part = place(&reads, from, (len - 8) as u64)?;
                            filled += part.len();
                            self.take_data(out.get_mut(part).ok_or_else(|| broken("no room for the data"))?)?;
                        }
                        chunk::OFFSET_HOLE if len == 12 => {
                            let hole = self.take(12)?;
                            let part = place(&reads, be64(hole, 0), u64::from(be32(hole, 8)))?;
                            filled += part.len();
                            out.get_mut(part).ok_or_else(|| broken("no room for the data"))?.fill(0);
                        }
                        _ if kind & chunk::ERROR_BIT != 0 && (6..=MAX_STRING + 64).contains(&len) => {
                            failed = Some(be32(self.take(len)?, 0));
                        }
                        _ => return Err(broken("an invalid chunk")),
                    }
                    if flags & chunk::DONE != 0 {
                        let len = (reads.end - reads.start) as usize;
                        if failed.is_none() && filled != len {
                            return Err(broken("a reply with less data than requested"));
                        }
                        return Ok(self.done(cookie, if failed.is_none() { len } else { 0 }, failed));
                    }
                }
                _ => return Err(broken("not a reply")),
            }
        }
    }

    fn submit(&mut self, command: u16, offset: u64, len: u32) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let reads = if command == command::READ { offset..offset.saturating_add(len.into()) } else { 0..0 };
        self.outgoing.extend_from_slice(&NbdRequest { flags: 0, command, cookie, offset, len }.to_bytes());
        self.pending.insert(cookie, Pending { reads });
        cookie
    }

    /// Sends what was submitted, and then `data`.
    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        if !self.outgoing.is_empty() {
            self.socket.send(&mut [IoSlice::new(&self.outgoing), IoSlice::new(data)])?;
            self.outgoing.clear();
        }
        Ok(())
    }

    /// Waits for the reply to the only request in flight.
    fn finish(&mut self, cookie: u64, out: &mut [u8]) -> io::Result<()> {
        let done = self.complete(out)?;
        if done.cookie != cookie {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "other requests are in flight"));
        }
        done.result
    }

    fn done(&mut self, cookie: u64, len: usize, error: Option<u32>) -> Completion {
        self.pending.remove(&cookie);
        // The protocol uses Linux's numbers ("Error values").
        let result = error.map_or(Ok(()), |e| Err(io::Error::from_raw_os_error(e as i32)));
        Completion { cookie, len, result }
    }

    fn reads_of(&self, cookie: u64) -> io::Result<Range<u64>> {
        let pending = self.pending.get(&cookie).ok_or_else(|| broken("a reply to no request"))?;
        Ok(pending.reads.clone())
    }

    /// Waits until at least `len` bytes are buffered, and returns them.
    fn held(&mut self, len: usize) -> io::Result<&[u8]> {
        while self.held.len() < len {
            if self.held.end + len > self.inbox.len() || self.held.is_empty() {
                self.inbox.copy_within(self.held.clone(), 0);
                self.held = 0..self.held.len();
            }
            // Large data are received in place, so none of them may be buffered here.
            let large = self.pending.values().any(|p| p.reads.end - p.reads.start >= LARGE as u64);
            let end = if large { self.held.start + len } else { self.inbox.len() };
            match self.receive_some(self.held.end..end)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.held.end += n,
            }
        }
        Ok(&self.inbox[self.held.start..self.held.start + len])
    }

    fn take(&mut self, len: usize) -> io::Result<&[u8]> {
        self.held(len)?;
        self.held.start += len;
        Ok(&self.inbox[self.held.start - len..self.held.start])
    }

    fn take_data(&mut self, out: &mut [u8]) -> io::Result<()> {
        let here = out.len().min(self.held.len());
        let (first, rest) = out.split_at_mut(here);
        first.copy_from_slice(&self.inbox[self.held.start..self.held.start + here]);
        self.held.start += here;
        self.socket.receive(rest)
    }

    fn receive_some(&mut self, to: Range<usize>) -> io::Result<usize> {
        loop {
            if let Some(n) = self.socket.receive_now(&mut self.inbox[to.clone()])? {
                return Ok(n);
            }
            self.socket.wait(None)?;
        }
    }
}

/// The position of a chunk of `len` bytes at `from` in the buffer for `reads`.
fn place(reads: &Range<u64>, from: u64, len: u64) -> io::Result<Range<usize>> {
    match from.checked_add(len) {
        Some(end) if from >= reads.start && end <= reads.end => {
            Ok((from - reads.start) as usize..(end - reads.start) as usize)
        }
        _ => Err(broken("a chunk outside the request")),
    }
}
