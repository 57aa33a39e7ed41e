//! One connection to a server, which several threads use at the same time.
//!
//! There is no dedicated receiver: of the threads that wait for replies, one receives for all. It stores small data for
//! the thread that asked. Large data are left to that thread, which receives them in place. So nothing large is copied,
//! and a single thread needs no other to wake it.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use claviger_engine::deadline::{Cancel, Deadline};

use crate::nbd::greet::{self, RemoteExport, broken};
use crate::nbd::protocol::*;
use crate::nbd::socket::Socket;
use crate::nbd::tls::ClientTls;

/// Bytes of replies received at a time.
const INBOX: usize = 64 << 10;

/// Data of at least this many bytes are left to the thread that asked for them.
const LARGE: usize = 16 << 10;

/// Time limit for disconnecting.
const GOODBYE: Duration = Duration::from_secs(1);

/// The most buffers kept for reuse.
const SPARE: usize = 8;

/// A connection after the handshake.
pub struct Line {
    socket: Socket,
    /// The result of the handshake.
    pub agreed: RemoteExport,
    /// Time limit for an answer.
    timeout: Duration,
    /// Ends all waits once it is set.
    cancel: Cancel,
    /// Once something was written, requests in progress must finish even if cancelled.
    must_finish: AtomicBool,
    state: Mutex<State>,
    /// Locked only by the receiving thread.
    inbox: Mutex<Inbox>,
    /// Large reads in progress, whose data should not be buffered.
    large: AtomicUsize,
    /// Requests in progress, and the writes among them.
    busy: AtomicUsize,
    writing: AtomicUsize,
    /// Number of all writes requested, and how many of them a flush has covered.
    written: AtomicU64,
    flushed: AtomicU64,
}

#[derive(Default)]
struct State {
    cookie: u64,
    asked: HashMap<u64, Asked>,
    receiver: Receiver,
    failed: Option<(io::ErrorKind, String)>,
    /// Whether any request has been answered.
    answered: bool,
    /// Unused buffers.
    spare: Vec<Vec<u8>>,
}

/// The receiving thread.
#[derive(Default, PartialEq)]
enum Receiver {
    #[default]
    Nobody,
    Somebody,
    /// The next bytes are data of this request, which its thread must receive.
    Reserved(u64, Piece),
}

/// The data that come next.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    /// Their position in the requested range.
    at: Range<usize>,
    /// Whether they end the reply.
    last: bool,
}

/// A request in progress.
#[derive(Default)]
struct Asked {
    /// The range of the export that it reads; empty for other requests.
    range: Range<u64>,
    writes: bool,
    /// The thread that waits for the answer, if any yet.
    waiter: Option<Thread>,
    /// Bytes that have not arrived yet.
    missing: usize,
    /// Data that other threads have received.
    put_down: Vec<(usize, Vec<u8>)>,
    /// The server's error, until the reply ends.
    error: Option<u32>,
    done: bool,
    /// Nobody waits for the answer any more.
    abandoned: bool,
}

/// A request whose answer a thread waits for.
pub struct Wanted {
    /// Its cookie.
    pub cookie: u64,
    /// The position of its data in the buffer.
    pub at: Range<usize>,
}

/// The result of a request: the server's error number, if it failed.
pub type RequestResult = Result<(), u32>;

impl Line {
    /// Performs the handshake and opens the export.
    ///
    /// # Errors
    /// Those of [`greet::greet`].
    pub fn open(
        socket: Socket,
        tls: Option<&ClientTls>,
        export: &str,
        timeout: Duration,
        cancel: Cancel,
        deadline: Deadline,
    ) -> io::Result<Self> {
        let agreed = greet::greet(&socket, tls, export, true, deadline)?;
        let (state, inbox) = (Mutex::default(), Mutex::new(Inbox::default()));
        Ok(Self {
            socket,
            agreed,
            timeout,
            cancel,
            must_finish: AtomicBool::new(false),
            state,
            inbox,
            large: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            writing: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
        })
    }

    /// From now on cancelling ends no wait, because something is being written.
    pub fn must_finish(&self) {
        self.must_finish.store(true, Ordering::Relaxed);
    }

    /// The deadline for an answer.
    fn patience(&self) -> Deadline {
        Deadline::within(self.timeout, self.cancel.filter(|_| !self.must_finish.load(Ordering::Relaxed)))
    }

    /// Number of requests in progress.
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// Whether the connection works and has writes in progress.
    pub fn is_writing(&self) -> bool {
        self.writing.load(Ordering::Relaxed) > 0 && self.works()
    }

    /// Number of all writes requested so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// Records the success of a flush that was requested after this many writes.
    pub fn flushed(&self, written: u64) {
        self.flushed.fetch_max(written, Ordering::SeqCst);
    }

    /// Whether there are writes since the last successful flush.
    pub fn is_unflushed(&self) -> bool {
        self.written() > self.flushed.load(Ordering::SeqCst)
    }

    /// Sends a request. `data` is the payload of a WRITE. The caller must wait for the answer or abandon it.
    ///
    /// # Errors
    /// The error that the connection failed with.
    pub fn ask(&self, command: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<u64> {
        let reads = if command == command::READ { len } else { 0 };
        let cookie = {
            let mut state = self.state();
            state.check()?;
            state.cookie += 1;
            let cookie = state.cookie;
            let (range, writes) = (offset..offset + reads as u64, command == command::WRITE);
            state.asked.insert(cookie, Asked { range, writes, missing: reads, ..Asked::default() });
            cookie
        };
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.writing.fetch_add(usize::from(command == command::WRITE), Ordering::Relaxed);
        self.written.fetch_add(u64::from(command == command::WRITE), Ordering::SeqCst);
        self.large.fetch_add(usize::from(reads >= LARGE), Ordering::Relaxed);
        let header = NbdRequest { flags: 0, command, cookie, offset, len: len as u32 }.to_bytes();
        let sent = {
            let _turn = self.socket.turn();
            let patience = self.patience();
            // A server that takes a byte now and then must not delay this forever.
            let meanwhile = || patience.left().and_then(|_| self.help());
            self.socket.send_or(&mut [IoSlice::new(&header), IoSlice::new(data)], self.timeout, meanwhile)
        };
        if let Err(e) = sent {
            return Err(self.fail(&e));
        }
        Ok(cookie)
    }

    /// Waits for the answer. The data of a read are then in `out`, which has the requested length.
    ///
    /// # Errors
    /// The error that the connection failed with; `TimedOut` if the answer takes too long, which also ends the connection.
    pub fn answer(&self, cookie: u64, out: &mut [u8]) -> io::Result<RequestResult> {
        self.answers(&[Wanted { cookie, at: 0..out.len() }], out)
    }

    /// Waits for several answers, in any order. Returns the first error among them, if any.
    ///
    /// # Errors
    /// Those of [`Line::answer`]. [`Line::arrived`] then tells which data arrived.
    pub fn answers(&self, wanted: &[Wanted], out: &mut [u8]) -> io::Result<RequestResult> {
        let mut deadline = self.patience();
        let mut missing = usize::MAX;
        loop {
            let mut state = self.state();
            let open = wanted.iter().filter(|w| !state.of_mine(w).done).count();
            if open == 0 {
                let answers: Vec<_> = wanted.iter().filter_map(|w| state.asked.remove(&w.cookie)).collect();
                drop(state);
                return self.all_here(wanted, answers, out);
            }
            state.check()?;
            if std::mem::replace(&mut missing, open) > open {
                deadline = self.patience();
            }
            let begun = match &state.receiver {
                Receiver::Nobody => None,
                Receiver::Reserved(whose, piece) if wanted.iter().any(|w| w.cookie == *whose) => {
                    Some((*whose, piece.clone()))
                }
                _ => {
                    for w in wanted {
                        state.asked.entry(w.cookie).and_modify(|asked| asked.waiter = Some(thread::current()));
                    }
                    drop(state);
                    match deadline.tick() {
                        Ok(tick) => thread::park_timeout(tick),
                        Err(e) => return Err(self.fail(&too_late(e))),
                    }
                    continue;
                }
            };
            state.receiver = Receiver::Somebody;
            drop(state);
            if let Err(e) = self.receive(wanted, begun, out, deadline) {
                return Err(self.fail(&too_late(e)));
            }
        }
    }

    /// Copies data that other threads have received to their places.
    fn all_here(&self, wanted: &[Wanted], answers: Vec<Asked>, out: &mut [u8]) -> io::Result<RequestResult> {
        let mut error = None;
        for (w, answer) in wanted.iter().zip(answers) {
            self.ended(&answer);
            error = error.or(answer.error);
            for (at, bytes) in answer.put_down {
                out[w.at.start + at..][..bytes.len()].copy_from_slice(&bytes);
                self.state().spare(bytes);
            }
        }
        if error == Some(NbdErrno::ESHUTDOWN.0) {
            return Err(self.fail(&io::Error::new(io::ErrorKind::ConnectionAborted, "the server is shutting down")));
        }
        Ok(error.map_or(Ok(()), Err))
    }

    /// How many of the first of these requests have their data in `out`, after the connection has failed.
    pub fn arrived(&self, wanted: &[Wanted]) -> usize {
        let state = self.state();
        let here = |w: &&Wanted| {
            state.asked.get(&w.cookie).is_some_and(|a| a.done && a.error.is_none() && a.put_down.is_empty())
        };
        wanted.iter().take_while(here).count()
    }

    /// Abandons a request: nobody needs its answer any more.
    pub fn abandon(&self, cookie: u64) {
        let mut state = self.state();
        match state.asked.get_mut(&cookie) {
            Some(asked) if asked.done => {
                let asked = state.asked.remove(&cookie).expect("it is there");
                self.ended(&asked);
            }
            Some(asked) => (asked.abandoned, asked.put_down) = (true, Vec::new()),
            None => {}
        }
    }

    /// Disconnects after pending read-ahead replies have arrived: nbdkit 1.32 crashes if a client leaves before that.
    pub fn close(&self) {
        let until = self.patience().at_most(GOODBYE);
        while self.state().asked.values().any(|asked| !asked.done) {
            let more =
                until.tick().and_then(|tick| self.help().and_then(|got| Ok(got || self.socket.wait(Some(tick))?)));
            if more.is_err() {
                break;
            }
        }
        let bytes = NbdRequest { flags: 0, command: command::DISC, cookie: 0, offset: 0, len: 0 }.to_bytes();
        let _ = self.socket.send_by(self.patience().at_most(GOODBYE), &bytes);
        self.fail(&io::ErrorKind::NotConnected.into());
    }

    /// Whether any request has ever been answered.
    pub fn has_answered(&self) -> bool {
        self.state().answered
    }

    /// Whether the connection still works.
    pub fn works(&self) -> bool {
        self.state().failed.is_none()
    }

    /// Ends the connection, wakes all waiting threads, and returns the first reason for the failure.
    pub fn fail(&self, error: &io::Error) -> io::Error {
        self.socket.cut();
        let mut state = self.state();
        let (kind, why) = state.failed.get_or_insert_with(|| (error.kind(), error.to_string())).clone();
        state.asked.values_mut().filter_map(|asked| asked.waiter.take()).for_each(|waiter| waiter.unpark());
        io::Error::new(kind, why)
    }

    /// Receives for all until these requests are answered, or until data come that another thread must receive.
    fn receive(
        &self,
        wanted: &[Wanted],
        begun: Option<(u64, Piece)>,
        out: &mut [u8],
        mut deadline: Deadline,
    ) -> io::Result<()> {
        let mut inbox = self.inbox();
        let mut next = begun;
        loop {
            if let Some((cookie, piece)) = next {
                if let Some(w) = wanted.iter().find(|w| w.cookie == cookie) {
                    let place = &mut out[w.at.start + piece.at.start..][..piece.at.len()];
                    inbox.take_data(&self.socket, place, deadline)?;
                    self.state().got(cookie, &piece, None);
                    // Not for each piece, because a server may send one byte in each.
                    if piece.last {
                        deadline = self.patience();
                    }
                } else if self.left_to(cookie, &piece) {
                    return Ok(());
                } else {
                    self.put_down(&mut inbox, cookie, &piece, deadline)?;
                }
            }
            if self.leave_if_done(wanted) {
                return Ok(());
            }
            next = self.next(&mut inbox, deadline)?;
        }
    }

    /// Receives one message, if no other thread receives: pending replies may keep the server from taking what is sent.
    /// Returns whether any thread received.
    fn help(&self) -> io::Result<bool> {
        {
            let mut state = self.state();
            state.check()?;
            if state.receiver != Receiver::Nobody {
                return Ok(false);
            }
            state.receiver = Receiver::Somebody;
        }
        let mut inbox = self.inbox();
        if inbox.held.is_empty() && !self.socket.wait(Some(Duration::ZERO))? {
            self.leave();
            return Ok(false);
        }
        let deadline = self.patience();
        if let Some((cookie, piece)) = self.next(&mut inbox, deadline)? {
            if self.left_to(cookie, &piece) {
                return Ok(true);
            }
            self.put_down(&mut inbox, cookie, &piece, deadline)?;
        }
        self.leave();
        Ok(true)
    }

    /// Leaves large data to the thread that waits for them, which receives from then on.
    fn left_to(&self, cookie: u64, piece: &Piece) -> bool {
        let mut state = self.state();
        let Some(asked) = state.asked.get_mut(&cookie) else { return false };
        if asked.abandoned || piece.at.len() < LARGE {
            return false;
        }
        let Some(waiter) = asked.waiter.take() else { return false };
        state.receiver = Receiver::Reserved(cookie, piece.clone());
        drop(state);
        waiter.unpark();
        true
    }

    /// Receives data for another thread.
    fn put_down(&self, inbox: &mut Inbox, cookie: u64, piece: &Piece, deadline: Deadline) -> io::Result<()> {
        let mut bytes = self.state().room(piece.at.len());
        inbox.take_data(&self.socket, &mut bytes, deadline)?;
        let mut state = self.state();
        state.got(cookie, piece, Some(bytes));
        self.forget_abandoned(&mut state, cookie);
        Ok(())
    }

    /// Stops receiving if the requests are answered.
    fn leave_if_done(&self, wanted: &[Wanted]) -> bool {
        let mut state = self.state();
        let done = wanted.iter().all(|w| state.of_mine(w).done);
        drop(state);
        if done {
            self.leave();
        }
        done
    }

    /// Stops receiving: another waiting thread takes over.
    fn leave(&self) {
        let mut state = self.state();
        state.receiver = Receiver::Nobody;
        if let Some(other) = state.asked.values_mut().filter(|asked| !asked.done).find_map(|a| a.waiter.take()) {
            other.unpark();
        }
    }

    /// Returns the next data with their request; none if another message came, which has been handled.
    fn next(&self, inbox: &mut Inbox, deadline: Deadline) -> io::Result<Option<(u64, Piece)>> {
        let buffers = self.large.load(Ordering::Relaxed) == 0;
        let head = inbox.look(&self.socket, SimpleReply::SIZE, buffers, deadline)?;
        match be32(head, 0) {
            SIMPLE_REPLY_MAGIC => {
                let (error, cookie) = (be32(head, 4), be64(head, 8));
                inbox.skip(SimpleReply::SIZE);
                let mut state = self.state();
                let asked = state.of(cookie)?;
                let len = (asked.range.end - asked.range.start) as usize;
                if error == 0 && len > 0 {
                    return Ok(Some((cookie, Piece { at: asked.place(asked.range.start, len)?, last: true })));
                }
                asked.error = (error != 0).then_some(error);
                state.end(cookie)?;
                self.forget_abandoned(&mut state, cookie);
                Ok(None)
            }
            STRUCTURED_REPLY_MAGIC if self.agreed.structured => self.next_chunk(inbox, buffers, deadline),
            _ => Err(broken("not a reply")),
        }
    }

    fn next_chunk(&self, inbox: &mut Inbox, buffers: bool, deadline: Deadline) -> io::Result<Option<(u64, Piece)>> {
        let head = inbox.look(&self.socket, Chunk::SIZE, buffers, deadline)?;
        let (flags, kind, cookie) = (be16(head, 4), be16(head, 6), be64(head, 8));
        let len = be32(head, 16) as usize;
        inbox.skip(Chunk::SIZE);
        let last = flags & chunk::DONE != 0;
        match kind {
            chunk::NONE if len == 0 && last => {}
            chunk::OFFSET_DATA if len > 8 => {
                let from = be64(inbox.look(&self.socket, 8, buffers, deadline)?, 0);
                inbox.skip(8);
                let at = self.state().of(cookie)?.place(from, len - 8)?;
                return Ok(Some((cookie, Piece { at, last })));
            }
            chunk::OFFSET_HOLE if len == 12 => {
                let hole = inbox.look(&self.socket, 12, buffers, deadline)?;
                let (from, size) = (be64(hole, 0), be32(hole, 8) as usize);
                inbox.skip(12);
                let mut state = self.state();
                let asked = state.of(cookie)?;
                let at = asked.place(from, size)?;
                state.got(cookie, &Piece { at, last: false }, Some(vec![0; size]));
            }
            _ if kind & chunk::ERROR_BIT != 0 && (6..=MAX_STRING + 64).contains(&len) => {
                let error = be32(inbox.look(&self.socket, len, buffers, deadline)?, 0);
                inbox.skip(len);
                // A server that reports error number 0 has failed nevertheless.
                self.state().of(cookie)?.error.get_or_insert(if error == 0 { NbdErrno::EIO.0 } else { error });
            }
            _ => return Err(broken("an invalid chunk")),
        }
        let mut state = self.state();
        state.of(cookie)?;
        if last {
            state.end(cookie)?;
            self.forget_abandoned(&mut state, cookie);
        }
        Ok(None)
    }

    fn forget_abandoned(&self, state: &mut State, cookie: u64) {
        if state.asked.get(&cookie).is_some_and(|asked| asked.done && asked.abandoned) {
            let asked = state.asked.remove(&cookie).expect("it is there");
            self.ended(&asked);
        }
    }

    fn ended(&self, asked: &Asked) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
        self.writing.fetch_sub(usize::from(asked.writes), Ordering::Relaxed);
        let large = asked.range.end - asked.range.start >= LARGE as u64;
        self.large.fetch_sub(usize::from(large), Ordering::Relaxed);
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self) -> io::Result<()> {
        self.failed.as_ref().map_or(Ok(()), |(kind, why)| Err(io::Error::new(*kind, why.clone())))
    }

    /// A request that the calling thread waits for.
    fn of_mine(&mut self, wanted: &Wanted) -> &mut Asked {
        self.asked.get_mut(&wanted.cookie).expect("it was asked and not answered yet")
    }

    /// A buffer for this many bytes. A reused one avoids new pages each time.
    fn room(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = if len < LARGE { Vec::new() } else { self.spare.pop().unwrap_or_default() };
        bytes.resize(len, 0);
        bytes
    }

    fn spare(&mut self, bytes: Vec<u8>) {
        if bytes.len() >= LARGE && self.spare.len() < SPARE {
            self.spare.push(bytes);
        }
    }

    /// The request that a reply belongs to.
    fn of(&mut self, cookie: u64) -> io::Result<&mut Asked> {
        self.asked.get_mut(&cookie).filter(|asked| !asked.done).ok_or_else(|| broken("a reply to no request"))
    }

    /// Records that data arrived, and stores them if another thread received them.
    fn got(&mut self, cookie: u64, piece: &Piece, bytes: Option<Vec<u8>>) {
        let Some(asked) = self.asked.get_mut(&cookie) else { return };
        asked.missing -= piece.at.len();
        if !asked.abandoned {
            asked.put_down.extend(bytes.map(|bytes| (piece.at.start, bytes)));
        }
        if piece.last {
            asked.finish();
            self.answered = true;
        }
    }

    /// Records the end of a reply.
    fn end(&mut self, cookie: u64) -> io::Result<()> {
        let asked = self.of(cookie)?;
        if asked.error.is_none() && asked.missing > 0 {
            return Err(broken("a reply with less data than requested"));
        }
        asked.finish();
        // A server that is shutting down does no more work.
        self.answered |= asked.error != Some(NbdErrno::ESHUTDOWN.0);
        Ok(())
    }
}

impl Asked {
    /// The position of the export's data in the requested range.
    fn place(&self, from: u64, len: usize) -> io::Result<Range<usize>> {
        let inside = from >= self.range.start
            && from.checked_add(len as u64).is_some_and(|end| end <= self.range.end)
            && len <= self.missing;
        inside
            .then(|| (from - self.range.start) as usize)
            .map(|at| at..at + len)
            .ok_or_else(|| broken("data that were not requested"))
    }

    fn finish(&mut self) {
        if self.error.is_none() && self.missing > 0 {
            self.error = Some(NbdErrno::EIO.0);
        }
        self.done = true;
        if let Some(waiter) = self.waiter.take() {
            waiter.unpark();
        }
    }
}

/// Bytes received but not processed.
struct Inbox {
    bytes: Box<[u8]>,
    held: Range<usize>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { bytes: vec![0; INBOX].into(), held: 0..0 }
    }
}

impl Inbox {
    /// Returns the next `len` bytes without removing them. Receives more at the same time if `buffers` is set.
    fn look(&mut self, socket: &Socket, len: usize, buffers: bool, deadline: Deadline) -> io::Result<&[u8]> {
        while self.held.len() < len {
            if self.held.is_empty() || self.held.start + len > self.bytes.len() {
                self.bytes.copy_within(self.held.clone(), 0);
                self.held = 0..self.held.len();
            }
            let end = if buffers { self.bytes.len() } else { self.held.start + len };
            self.held.end += some(socket, &mut self.bytes[self.held.end..end], deadline)?;
        }
        Ok(&self.bytes[self.held.start..self.held.start + len])
    }

    fn skip(&mut self, len: usize) {
        self.held.start += len;
    }

    fn take_data(&mut self, socket: &Socket, out: &mut [u8], deadline: Deadline) -> io::Result<()> {
        let (here, mut rest) = out.split_at_mut(out.len().min(self.held.len()));
        here.copy_from_slice(&self.bytes[self.held.start..self.held.start + here.len()]);
        self.skip(here.len());
        while !rest.is_empty() {
            let received = some(socket, rest, deadline)?;
            rest = &mut rest[received..];
        }
        Ok(())
    }
}

/// Receives at least one byte.
fn some(socket: &Socket, to: &mut [u8], deadline: Deadline) -> io::Result<usize> {
    loop {
        match socket.receive_now(to)? {
            Some(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            // A server that sends a byte now and then must not delay this forever.
            Some(received) => return deadline.left().map(|_| received),
            None => drop(socket.wait(Some(deadline.tick()?))?),
        }
    }
}

fn too_late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::TimedOut => io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"),
        _ => error,
    }
}
