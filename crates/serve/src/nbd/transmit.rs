//! The transmission phase: requests and replies ("Transmission", "Request types").
//!
//! One thread receives as many requests as the client has sent, carries them out one after another, and sends their
//! replies together. It never holds back replies while it waits. For a slow store, it hands requests over to
//! [`WorkerThreads`], each of which sends its own replies.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::thread::{self, Scope};

use claviger_engine::volume::SPLIT;

use super::helpers::WorkerThreads;
use super::negotiate::ChosenExport;
use super::protocol::*;
use super::socket::Socket;
use super::{Exported, Phase, Shared};
use crate::aligned::Aligned;
use crate::spin::{Running, Sleeping, Spinner};

/// Bytes read from the store and sent at a time: the smallest size that a volume distributes over processors.
const CHUNK: usize = SPLIT;

/// Chunks of one request meet at multiples of this in the export, so no sector is split.
const GRAIN: u64 = 4096;

/// Room for requests that arrive together, including small payloads, in bytes.
const INBOX: usize = 64 << 10;

/// The most bytes of small replies sent together: enough to save system calls, but few enough that the client can
/// process some while the next are prepared.
const BATCH: usize = 64 << 10;

/// A reply with more data than this is sent separately from its header. The kernel then aligns the data in a new
/// buffer, which speeds up the client's copy by more than the system call costs (a sixth, at 256 KiB).
const APART: usize = 64 << 10;

/// The most replies sent together.
const BATCH_REPLIES: usize = 64;

/// Serves requests until the client disconnects or the server stops.
///
/// # Errors
/// `InvalidData` for a client that breaks the protocol, or the socket's error. The connection must then be dropped.
pub fn transmit(socket: &Socket, agreed: &ChosenExport<'_>, shared: &Shared) -> io::Result<()> {
    let _running = Running::new(&shared.awake);
    let helpers = WorkerThreads::new(shared.options.idle_after);
    thread::scope(|scope| {
        let connection = Connection {
            socket,
            export: agreed.export,
            structured: agreed.structured,
            smallest_block: agreed.smallest_block.into(),
            shared,
            helpers: &helpers,
            scope,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            payload: Payload::default(),
            spinner: Spinner::default(),
        };
        let ended = connection.run();
        helpers.end();
        ended
    })
}

struct Connection<'s, 'e> {
    socket: &'s Socket,
    export: &'s Exported,
    structured: bool,
    /// Requests must be multiples of this many bytes.
    smallest_block: u64,
    shared: &'s Shared,
    helpers: &'s WorkerThreads<Job>,
    scope: &'s Scope<'s, 'e>,
    inbox: Inbox,
    outbox: Outbox,
    payload: Payload,
    spinner: Spinner,
}

/// A READ, or a WRITE with its data, of at most a chunk: many of them are in memory at the same time.
struct Job {
    request: NbdRequest,
    payload: Aligned,
}

/// What worker threads need to carry out a job and answer it.
#[derive(Clone, Copy)]
struct Desk<'s> {
    socket: &'s Socket,
    export: &'s Exported,
    structured: bool,
    helpers: &'s WorkerThreads<Job>,
}

impl<'s> Connection<'s, '_> {
    fn run(mut self) -> io::Result<()> {
        loop {
            if let Some(bytes) = self.inbox.take_header() {
                let request = NbdRequest::parse(&bytes).ok_or(io::ErrorKind::InvalidData)?;
                if request.command == command::DISC {
                    self.helpers.wait();
                    return self.outbox.send(self.socket);
                }
                self.handle(&request)?;
            } else {
                self.outbox.send(self.socket)?;
                if !self.wait()? {
                    return Ok(());
                }
            }
        }
    }

    /// Waits for more data. `false` at the end.
    fn wait(&mut self) -> io::Result<bool> {
        loop {
            if let Some(n) = self.inbox.receive_now(self.socket)? {
                return Ok(n > 0);
            }
            if self.shared.control.phase_is(Phase::Stopping) {
                return Ok(false); // all requests are answered
            }
            if let Some(n) = self.spin()? {
                return Ok(n > 0);
            }
            let _sleeping = Sleeping::new(&self.shared.awake);
            if !self.socket.wait(Some(self.shared.options.idle_after))? {
                self.inbox.give_back();
                self.outbox = Outbox::default();
                self.payload = Payload::default();
                self.socket.wait(None)?;
            }
        }
    }

    /// Polls for more data for a while.
    fn spin(&mut self) -> io::Result<Option<usize>> {
        let Self { socket, inbox, shared, spinner, .. } = self;
        spinner.spin(&shared.awake, shared.options.spin, || inbox.receive_now(socket))
    }

    fn handle(&mut self, request: &NbdRequest) -> io::Result<()> {
        let checked = self.check(request);
        match request.command {
            command::READ => match checked {
                Ok(()) => self.read(request),
                Err(error) => self.refuse(request, error),
            },
            command::WRITE => self.write(request, checked),
            _ => {
                // Carrying this out may take long.
                self.outbox.send(self.socket)?;
                let done = checked.and_then(|()| self.carry_out(request));
                self.answer(request, done)
            }
        }
    }

    /// Whether the request can be carried out at all ("Error values").
    fn check(&self, request: &NbdRequest) -> Result<(), NbdErrno> {
        let NbdRequest { flags, command, cookie: _, offset, len } = *request;
        let allowed = flag::FUA
            | match command {
                command::READ if self.structured => flag::DF,
                command::WRITE_ZEROES => flag::NO_HOLE,
                _ => 0,
            };
        let writes = match command {
            command::READ | command::FLUSH => false,
            command::WRITE | command::TRIM | command::WRITE_ZEROES => true,
            _ => return Err(NbdErrno::EINVAL),
        };
        let inside = offset.checked_add(u64::from(len)).is_some_and(|end| end <= self.export.store.len());
        match command {
            _ if flags & !allowed != 0 => Err(NbdErrno::EINVAL),
            _ if writes && self.export.read_only => Err(NbdErrno::EPERM),
            command::FLUSH if offset != 0 || len != 0 => Err(NbdErrno::EINVAL),
            command::READ if len > MAX_PAYLOAD && flags & flag::DF != 0 => Err(NbdErrno::EOVERFLOW),
            command::READ if len > MAX_PAYLOAD => Err(NbdErrno::EINVAL),
            _ if !inside => Err(if writes { NbdErrno::ENOSPC } else { NbdErrno::EINVAL }),
            // "Block size constraints": a client that knows the block size must comply, and SHOULD get this error otherwise.
            _ if !(offset | u64::from(len)).is_multiple_of(self.smallest_block) => Err(NbdErrno::EINVAL),
            _ => Ok(()),
        }
    }

    fn read(&mut self, request: &NbdRequest) -> io::Result<()> {
        let NbdRequest { flags, command: _, cookie, offset: _, len } = *request;
        let len = len as usize;
        if len > CHUNK {
            // The reply may have to be sent in one piece.
            self.helpers.wait();
            return self.read_in_chunks(request);
        }
        if len == 0 && self.structured {
            // A chunk of data has at least one byte ("Structured reply types").
            let none = Chunk { flags: chunk::DONE, kind: chunk::NONE, cookie, len: 0 };
            return self.outbox.push(self.socket, &none.to_bytes());
        }
        debug_assert!(flags & !(flag::FUA | flag::DF) == 0);
        if self.others_could_help()? && self.hand_over(Job { request: *request, payload: Aligned::default() }).is_ok() {
            return Ok(());
        }
        self.desk().read(request, &mut self.outbox)
    }

    /// Whether the store is slow and has other requests to work on.
    fn others_could_help(&mut self) -> io::Result<bool> {
        if !self.helpers.worthwhile() {
            return Ok(false);
        }
        // Finished replies must not wait for slow requests.
        self.outbox.send(self.socket)?;
        let more = self.helpers.busy() || !self.inbox.held.is_empty();
        Ok(more || self.inbox.receive_now(self.socket)?.is_some_and(|n| n > 0))
    }

    fn hand_over(&self, job: Job) -> Result<(), Job> {
        let desk = self.desk();
        self.helpers.take(self.scope, job, move |job, outbox: &mut Outbox| desk.carry_out(job, outbox))
    }

    fn desk(&self) -> Desk<'s> {
        let Self { socket, export, structured, helpers, .. } = *self;
        Desk { socket, export, structured, helpers }
    }

    /// A READ that is larger than a chunk: each chunk is sent before the next is read.
    fn read_in_chunks(&mut self, request: &NbdRequest) -> io::Result<()> {
        let NbdRequest { flags, command: _, cookie, offset, len } = *request;
        let end = offset + u64::from(len);
        let whole = !self.structured || flags & flag::DF != 0;
        self.outbox.send(self.socket)?;
        let mut from = offset;
        while from < end {
            let to = chunk_end(from, end);
            let part = (to - from) as usize;
            let at = self.outbox.make_room(self.socket, part)?;
            let read = self.export.store.read_at(from, &mut self.outbox.buffer[at..at + part]);
            match read {
                Ok(()) if !whole => self.outbox.commit(at, &Chunk::data(cookie, from, part, to == end), part),
                // One header for the whole reply.
                Ok(()) if from > offset => self.outbox.commit(at, &[], part),
                Ok(()) if self.structured => {
                    self.outbox.commit(at, &Chunk::data(cookie, offset, len as usize, false), part);
                }
                Ok(()) => self.outbox.commit(at, &SimpleReply { error: 0, cookie }.to_bytes(), part),
                Err(e) if from == offset || !whole => return self.refuse(request, NbdErrno::of(&e)),
                // The header has already promised success ("Request types", NBD_CMD_READ, simple replies).
                Err(e) if !self.structured => return Err(e),
                Err(e) => {
                    self.pad((end - from) as usize)?;
                    return self.refuse(request, NbdErrno::of(&e));
                }
            }
            self.outbox.send(self.socket)?;
            from = to;
        }
        if whole && self.structured {
            let none = Chunk { flags: chunk::DONE, kind: chunk::NONE, cookie, len: 0 };
            self.outbox.push(self.socket, &none.to_bytes())?;
        }
        Ok(())
    }

    /// Completes a chunk whose data could not be read ("Request types", NBD_CMD_READ, structured replies).
    fn pad(&mut self, mut len: usize) -> io::Result<()> {
        while len > 0 {
            let part = len.min(CHUNK);
            let at = self.outbox.make_room(self.socket, part)?;
            self.outbox.buffer[at..at + part].fill(0);
            self.outbox.commit(at, &[], part);
            self.outbox.send(self.socket)?;
            len -= part;
        }
        Ok(())
    }

    /// Receives a whole WRITE before passing it to the store: a client that vanishes leaves nothing half-written.
    fn write(&mut self, request: &NbdRequest, checked: Result<(), NbdErrno>) -> io::Result<()> {
        let NbdRequest { flags, command: _, cookie: _, offset, len } = *request;
        if len > MAX_PAYLOAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let len = len as usize;
        self.inbox.expect_payload(len);
        if let Err(error) = checked {
            self.skip(len)?;
            return self.answer(request, Err(error));
        }
        let desk = self.desk();
        // The payload of a job for another thread is moved out of the inbox, which can then receive other requests.
        let slow = self.helpers.worthwhile() && len <= CHUNK;
        let mut written = if !slow && let Some(data) = self.inbox.take(len) {
            desk.write(offset, data)
        } else {
            self.outbox.send(self.socket)?;
            let data = self.payload.scratch(len);
            let early = self.inbox.take_some(len);
            let (first, rest) = data.split_at_mut(early.len());
            first.copy_from_slice(early);
            receive(self.socket, rest, &mut self.spinner, self.shared)?;
            if slow && self.others_could_help()? {
                let mut payload = Aligned::new(len);
                payload.copy_from_slice(&self.payload.0[..len]);
                if self.hand_over(Job { request: *request, payload }).is_ok() {
                    return Ok(());
                }
            }
            desk.write(offset, &mut self.payload.0[..len])
        };
        if flags & flag::FUA != 0 && written.is_ok() {
            self.outbox.send(self.socket)?;
            written = self.flush();
        }
        self.answer(request, written)
    }

    /// Carries out a request without a payload whose reply has no data.
    fn carry_out(&mut self, request: &NbdRequest) -> Result<(), NbdErrno> {
        let NbdRequest { flags, command, cookie: _, offset, len } = *request;
        match command {
            command::FLUSH => return self.flush(),
            command::TRIM => {
                self.export.store.discard(offset, u64::from(len)).map_err(|e| NbdErrno::of(&e))?;
            }
            command::WRITE_ZEROES => self.write_zeroes(offset, offset + u64::from(len))?,
            _ => return Err(NbdErrno::EINVAL),
        }
        if flags & flag::FUA != 0 { self.flush() } else { Ok(()) }
    }

    fn write_zeroes(&mut self, mut from: u64, end: u64) -> Result<(), NbdErrno> {
        while from < end {
            if self.shared.control.phase_is(Phase::Cutting) {
                return Err(NbdErrno::ESHUTDOWN);
            }
            let to = chunk_end(from, end);
            // Filled each time, because a volume encrypts in place.
            let zeros = self.payload.scratch((to - from) as usize);
            zeros.fill(0);
            self.export.store.write_clobbering(from, zeros).map_err(|e| NbdErrno::of(&e))?;
            from = to;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), NbdErrno> {
        self.export.flush().map_err(|e| NbdErrno::of(&e))
    }

    /// Receives `len` bytes and discards them.
    fn skip(&mut self, mut len: usize) -> io::Result<()> {
        len -= self.inbox.take_some(len).len();
        while len > 0 {
            self.outbox.send(self.socket)?;
            let part = len.min(CHUNK);
            self.socket.receive(self.payload.scratch(part))?;
            len -= part;
        }
        Ok(())
    }

    fn answer(&mut self, request: &NbdRequest, done: Result<(), NbdErrno>) -> io::Result<()> {
        self.desk().answer(request, done, &mut self.outbox)
    }

    fn refuse(&mut self, request: &NbdRequest, error: NbdErrno) -> io::Result<()> {
        self.desk().refuse(request, error, &mut self.outbox)
    }
}

impl Desk<'_> {
    /// Carries out a job on a worker thread, and sends the reply.
    fn carry_out(&self, mut job: Job, outbox: &mut Outbox) {
        let Job { request, payload } = &mut job;
        let answered = match request.command {
            command::WRITE => {
                let mut written = self.write(request.offset, payload);
                if request.flags & flag::FUA != 0 && written.is_ok() {
                    written = self.export.flush().map_err(|e| NbdErrno::of(&e));
                }
                self.answer(request, written, outbox)
            }
            _ => self.read(request, outbox),
        };
        if answered.and_then(|()| outbox.send(self.socket)).is_err() {
            // The receiving thread then sees that the connection is broken.
            self.socket.cut();
        }
    }

    /// A READ of at most a chunk.
    fn read(&self, request: &NbdRequest, outbox: &mut Outbox) -> io::Result<()> {
        let NbdRequest { flags: _, command: _, cookie, offset, len } = *request;
        let len = len as usize;
        let at = outbox.make_room(self.socket, len)?;
        match self.helpers.timed(len, || self.export.store.read_at(offset, &mut outbox.buffer[at..at + len])) {
            Ok(()) if self.structured => outbox.commit(at, &Chunk::data(cookie, offset, len, true), len),
            Ok(()) => outbox.commit(at, &SimpleReply { error: 0, cookie }.to_bytes(), len),
            Err(e) => return self.refuse(request, NbdErrno::of(&e), outbox),
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> Result<(), NbdErrno> {
        self.helpers
            .timed(data.len(), || self.export.store.write_clobbering(offset, data))
            .map_err(|e| NbdErrno::of(&e))
    }

    /// Answers any request except a successful READ.
    fn answer(&self, request: &NbdRequest, done: Result<(), NbdErrno>, outbox: &mut Outbox) -> io::Result<()> {
        match done {
            Err(error) if self.structured => self.refuse(request, error, outbox),
            _ => {
                let error = done.map_or_else(|e| e.0, |()| 0);
                outbox.push(self.socket, &SimpleReply { error, cookie: request.cookie }.to_bytes())
            }
        }
    }

    /// Answers any request with an error.
    fn refuse(&self, request: &NbdRequest, error: NbdErrno, outbox: &mut Outbox) -> io::Result<()> {
        let cookie = request.cookie;
        if self.structured {
            outbox.push(self.socket, &Chunk::error(cookie, error))
        } else {
            outbox.push(self.socket, &SimpleReply { error: error.0, cookie }.to_bytes())
        }
    }
}

/// Fills `to` with data that the client is about to send. A header and its payload arrive one after the other, and the
/// header wakes this thread. Sleeping again in between would take longer than the payload needs to arrive.
fn receive(socket: &Socket, mut to: &mut [u8], spinner: &mut Spinner, shared: &Shared) -> io::Result<()> {
    while !to.is_empty() {
        let received = match socket.receive_now(to)? {
            Some(received) => Some(received),
            None => spinner.spin(&shared.awake, shared.options.spin, || socket.receive_now(to))?,
        };
        match received {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(n) => to = &mut to[n..],
            None => return socket.receive(to),
        }
    }
    Ok(())
}

/// Requests that were received but not handled yet.
#[derive(Default)]
struct Inbox {
    buffer: Aligned,
    /// The range of unhandled bytes.
    held: Range<usize>,
    /// Whether the last payload was large. If so, the next is not received into the inbox, as it would have to be moved.
    large: bool,
}

impl Inbox {
    /// With a header at this offset, the payload is at a multiple of 64.
    const START: usize = Aligned::LINE - NbdRequest::SIZE;

    fn take_header(&mut self) -> Option<[u8; NbdRequest::SIZE]> {
        let header = *self.buffer[self.held.clone()].first_chunk::<{ NbdRequest::SIZE }>()?;
        self.held.start += NbdRequest::SIZE;
        Some(header)
    }

    /// Takes `len` bytes, if they are all here.
    fn take(&mut self, len: usize) -> Option<&mut [u8]> {
        (len <= self.held.len()).then(|| self.take_some(len))
    }

    /// Takes at most `len` bytes.
    fn take_some(&mut self, len: usize) -> &mut [u8] {
        let start = self.held.start;
        self.held.start += len.min(self.held.len());
        &mut self.buffer[start..self.held.start]
    }

    fn expect_payload(&mut self, len: usize) {
        self.large = len > INBOX / 4;
    }

    /// Receives available data and appends them to an incomplete header, if any. `None` if there are none.
    fn receive_now(&mut self, socket: &Socket) -> io::Result<Option<usize>> {
        debug_assert!(self.held.len() < NbdRequest::SIZE);
        if self.buffer.is_empty() {
            self.buffer.reserve(INBOX);
        }
        if self.held.start != Self::START {
            self.buffer.copy_within(self.held.clone(), Self::START);
            self.held = Self::START..Self::START + self.held.len();
        }
        let end = if self.large { Self::START + NbdRequest::SIZE } else { self.buffer.len() };
        let received = socket.receive_now(&mut self.buffer[self.held.end..end])?;
        self.held.end += received.unwrap_or(0);
        Ok(received)
    }

    /// Frees the memory, if the inbox is empty.
    fn give_back(&mut self) {
        if self.held.is_empty() {
            *self = Self::default();
        }
    }
}

/// Replies that are ready but not sent yet.
struct Outbox {
    buffer: Aligned,
    used: usize,
    /// The parts to send, in order.
    parts: Vec<Range<usize>>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { buffer: Aligned::default(), used: 0, parts: Vec::with_capacity(BATCH_REPLIES) }
    }
}

impl Outbox {
    /// The longest header of a reply with data.
    const HEADER: usize = Chunk::SIZE + 8;

    /// Appends a reply without data.
    fn push(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        if self.used + bytes.len() > self.buffer.len() || self.is_full() {
            self.send(socket)?;
            self.buffer.reserve(bytes.len().max(4096));
        }
        let at = self.used;
        self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
        self.append(at..at + bytes.len());
        Ok(())
    }

    /// Returns the position in the buffer for `len` bytes of data, with room for a header before them. The caller then
    /// calls [`Self::commit`], or leaves the room unused.
    fn make_room(&mut self, socket: &Socket, len: usize) -> io::Result<usize> {
        let place = |used: usize| (used + Self::HEADER).next_multiple_of(Aligned::LINE);
        if self.is_full() || (self.used > 0 && place(self.used) + len > self.buffer.len().min(BATCH)) {
            self.send(socket)?;
        }
        if self.used == 0 {
            self.buffer.reserve((place(0) + len).max(BATCH));
        }
        Ok(place(self.used))
    }

    /// Appends `len` bytes at `at`, and `header` before them.
    fn commit(&mut self, at: usize, header: &[u8], len: usize) {
        let start = at - header.len();
        self.buffer[start..at].copy_from_slice(header);
        self.append(start..at + len);
    }

    fn append(&mut self, part: Range<usize>) {
        self.used = part.end;
        match self.parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => self.parts.push(part),
        }
    }

    fn is_full(&self) -> bool {
        self.parts.len() >= BATCH_REPLIES
    }

    fn send(&mut self, socket: &Socket) -> io::Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let _turn = socket.turn();
        let mut slices = [IoSlice::new(&[]); BATCH_REPLIES];
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(&self.buffer[part.clone()]);
        }
        let slices = &mut slices[..self.parts.len()];
        if let [part] = &self.parts[..]
            && part.len() > APART
        {
            let (header, data) = self.buffer[part.clone()].split_at(part.start.wrapping_neg() % Aligned::LINE);
            socket.send(&mut [IoSlice::new(header)])?;
            slices[0] = IoSlice::new(data);
        }
        socket.send(slices)?;
        self.parts.clear();
        self.used = 0;
        Ok(())
    }
}

/// The payload of a WRITE.
#[derive(Default)]
struct Payload(Aligned);

impl Payload {
    /// Room for the largest payload. Untouched memory costs nothing. glibc returns freed memory to the system at once
    /// only from 32 MiB on (mallopt(3), M_MMAP_THRESHOLD).
    const ROOM: usize = MAX_PAYLOAD as usize + (64 << 10);

    /// `len` bytes of memory, at most [`MAX_PAYLOAD`].
    fn scratch(&mut self, len: usize) -> &mut [u8] {
        self.0.reserve(Self::ROOM);
        &mut self.0[..len]
    }
}

/// The end of the chunk that begins at `from`: a multiple of [`GRAIN`], except for the last chunk.
fn chunk_end(from: u64, end: u64) -> u64 {
    let to = from + CHUNK as u64;
    if to >= end { end } else { to - to % GRAIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_request_and_meet_at_grains() {
        for offset in [0, 1, 511, 4095, 4096, 70_001] {
            for len in [1, 100, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17] {
                let end = offset + len as u64;
                let mut from = offset;
                while from < end {
                    let to = chunk_end(from, end);
                    assert!(to > from && to - from <= CHUNK as u64);
                    assert!(to == end || to.is_multiple_of(GRAIN));
                    from = to;
                }
                assert_eq!(from, end);
            }
        }
    }
}
