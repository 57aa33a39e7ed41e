//! The NBD client: an export of a remote server as a store.
//!
//! Each request either succeeds or fails; everything in between is handled here. A lost connection is replaced, and
//! unanswered requests are sent again. Reads are sent at once. All writes since the last flush are repeated in order,
//! because a restarted server may have lost them. If that is not safe, the store ends: a server may still carry out a
//! write that it did not answer in time, after later ones.

mod ahead;
mod line;
mod unflushed;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::deadline::{self, Cancel, Deadline};
use claviger_engine::store::{Access, SMALLEST_SECTOR, check_range};
use claviger_engine::{ErrorKind, Store};

use super::protocol::{command, export};
use super::socket::Socket;
use super::tls::ClientTls;
use ahead::{Ahead, Part, parts};
use line::{Line, RequestResult, Wanted};
use unflushed::Unflushed;

/// Time limit for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// Time limit for the handshake of an additional connection: the thread that makes it has other work.
const ANOTHER: Duration = Duration::from_secs(2);

/// Time limit for asking an export's size on a connection of its own.
const LOOK: Duration = Duration::from_secs(5);

/// Bytes of one write request.
const WRITE: u64 = 1 << 20;

/// If every connection has this many requests in progress, another one is made.
const BUSY: usize = 2;

/// Milliseconds between two attempts to connect.
const PAUSES: [u64; 6] = [50, 200, 500, 1000, 2000, 5000];

/// How patient a client is, and how many connections it makes.
#[derive(Clone, Copy, Debug)]
pub struct RemoteOptions {
    /// Time limit for an answer.
    pub timeout: Duration,
    /// Time limit for a lost connection to come back. Zero: the loss is final.
    pub reconnect: Duration,
    /// The most connections, if the server allows several.
    pub connections: usize,
    /// Once set, nobody waits for the server any more, unless something was written.
    pub cancel: Cancel,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(120), reconnect: Duration::from_secs(60), connections: 4, cancel: None }
    }
}

/// Makes connections to one server.
pub(crate) trait Reach: Send + Sync {
    /// Makes a connection, before any handshake.
    fn reach(&self, deadline: Deadline) -> io::Result<Socket>;

    /// The TLS configuration of the connection.
    fn tls(&self) -> Option<&ClientTls> {
        None
    }

    /// Fails if another client is known to have the export open for writing. Call this once a connection exists.
    ///
    /// # Errors
    /// `InUse`; `Io` if this cannot be determined.
    fn check_only_writer(&self, _deadline: Deadline) -> claviger_engine::Result<()> {
        Ok(())
    }

    /// Another way to reach the same export, if this one shows the size that it had at first.
    ///
    /// # Errors
    /// `Unsupported` if the export keeps its size while it is in use.
    fn anew(&self) -> io::Result<Option<Box<dyn Reach>>> {
        Ok(None)
    }

    /// Ends what shows the size that the export had at first. The next connection begins anew.
    fn renew(&self) {}

    /// Tells that the connection's helper may end at once without losing writes.
    fn give_up(&self) {}

    /// The host and port, or the service, that is asked: every error names it. `None` if the store is on this machine.
    fn service(&self) -> Option<String> {
        None
    }

    /// Adds what is known here about an error's cause.
    fn explain(&self, error: io::Error) -> io::Error {
        error
    }
}

/// Connections lost before they answered anything.
#[derive(Default)]
struct Vain {
    since: Option<Instant>,
    count: usize,
}

/// An export of an NBD server, as a store.
pub struct Remote {
    server: Box<dyn Reach>,
    /// Who is asked, for errors.
    service: Option<String>,
    export: String,
    options: RemoteOptions,
    /// In bytes. It never decreases.
    len: AtomicU64,
    flags: u16,
    /// Requests must be multiples of this many bytes.
    smallest: u64,
    largest: u64,
    writable: bool,
    lines: RwLock<Vec<Arc<Line>>>,
    /// Whether anything was written.
    wrote: AtomicBool,
    /// The server refuses further connections.
    no_more: AtomicBool,
    /// Locked by the thread that makes connections.
    mending: Mutex<Vain>,
    /// Why the store has ended.
    ended: OnceLock<(io::ErrorKind, String)>,
    /// Why writing has ended.
    unwritable: OnceLock<String>,
    unflushed: Mutex<Unflushed>,
    ahead: Mutex<Ahead>,
    /// Locked exclusively by a thread that writes a part of a block.
    blocks: RwLock<()>,
    /// Shared by every request, and locked exclusively while all connections are replaced by new ones.
    requests: RwLock<()>,
}

impl Remote {
    /// Opens the export.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` and `Unsupported` as the server refuses; `ReadOnlyFilesystem` if writing is
    /// requested but not possible; `InvalidData` if the server breaks the protocol; `TimedOut`; or the error of
    /// connecting.
    pub(crate) fn open(
        server: Box<dyn Reach>,
        export: &str,
        access: Access,
        options: RemoteOptions,
    ) -> io::Result<Self> {
        let service = server.service();
        let line = dial(&*server, export, options, options.cancel, HANDSHAKE).map_err(|e| match e {
            e if deadline::is_cancelled(&e) => {
                server.give_up();
                e
            }
            e => server.explain(by(service.as_deref(), e)),
        })?;
        let agreed = line.agreed;
        if access == Access::ReadWrite && agreed.has(export::READ_ONLY) {
            let refused = io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the server does not allow writing");
            return Err(by(service.as_deref(), refused));
        }
        Ok(Self {
            server,
            service,
            export: export.to_owned(),
            options,
            len: agreed.len.into(),
            flags: agreed.flags,
            smallest: agreed.smallest.into(),
            largest: agreed.largest.into(),
            writable: access == Access::ReadWrite,
            lines: RwLock::new(vec![Arc::new(line)]),
            wrote: AtomicBool::new(false),
            no_more: AtomicBool::new(false),
            mending: Mutex::default(),
            ended: OnceLock::new(),
            unwritable: OnceLock::new(),
            unflushed: Mutex::default(),
            ahead: Mutex::default(),
            blocks: RwLock::default(),
            requests: RwLock::default(),
        })
    }

    /// Fails if another client is known to write there.
    ///
    /// # Errors
    /// `InUse`; `Io` if this cannot be determined.
    pub(crate) fn check_only_writer(&self) -> claviger_engine::Result<()> {
        self.server.check_only_writer(Deadline::within(self.options.timeout, self.cancel()))
    }

    /// The flag that ends a wait. None once something was written, because cancelling must not leave a write half done.
    fn cancel(&self) -> Cancel {
        self.options.cancel.filter(|_| !self.wrote.load(Ordering::Relaxed))
    }

    /// Whether waiting has been cancelled.
    fn cancelled(&self) -> bool {
        self.cancel().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// From now on, requests in progress are completed even if cancelled.
    fn begin_to_write(&self) {
        if !self.wrote.swap(true, Ordering::Relaxed) {
            self.lines.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(|line| line.must_finish());
        }
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// A connection that is not busy, if one can be made.
    fn line(&self) -> io::Result<Arc<Line>> {
        if let Some((kind, why)) = self.ended.get() {
            return Err(io::Error::new(*kind, why.clone()));
        }
        let (line, count) = {
            let lines = self.lines.read().unwrap_or_else(PoisonError::into_inner);
            (lines.iter().min_by_key(|line| line.busy()).cloned(), lines.len())
        };
        let line = line.ok_or(io::ErrorKind::NotConnected)?;
        let more = self.has(export::CAN_MULTI_CONN)
            && count < self.options.connections
            && !self.no_more.load(Ordering::Relaxed);
        if more
            && line.busy() >= BUSY
            && line.works()
            && let Ok(_making) = self.mending.try_lock()
        {
            match self.connect(ANOTHER) {
                Ok(another) => {
                    let another = Arc::new(another);
                    self.lines.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&another));
                    return Ok(another);
                }
                // The existing connections suffice. Some servers make excess connections wait.
                Err(_) => self.no_more.store(true, Ordering::Relaxed),
            }
        }
        Ok(line)
    }

    /// The connections to flush: all with writes since the last flush, otherwise any one. Flushing one would make all
    /// writes durable on a running server. But the server may have restarted and lost writes of another connection,
    /// whose loss has not been noticed yet.
    fn to_flush(&self) -> io::Result<Vec<Arc<Line>>> {
        let one = self.line()?;
        let lines = self.lines.read().unwrap_or_else(PoisonError::into_inner);
        let written: Vec<_> = lines.iter().filter(|line| line.is_unflushed()).cloned().collect();
        Ok(if written.is_empty() { vec![one] } else { written })
    }

    /// Makes another connection to the same export.
    fn connect(&self, within: Duration) -> io::Result<Line> {
        let line = dial(&*self.server, &self.export, self.options, self.cancel(), within)?;
        let agreed = line.agreed;
        let same = agreed.len >= self.len()
            && u64::from(agreed.smallest) == self.smallest
            && u64::from(agreed.largest) >= self.largest
            && !(self.writable && agreed.has(export::READ_ONLY));
        if !same {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the export has changed its size, blocks or write access",
            ));
        }
        // After a restart of the server, another client may have connected and written in the meantime.
        match if self.writable { self.check_only_writer() } else { Ok(()) } {
            Err(e) if matches!(e.kind, ErrorKind::InUse { .. }) => {
                let why = format!("another client may write there now: {e}");
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            checked => checked.map_err(io::Error::other)?,
        }
        self.len.fetch_max(agreed.len, Ordering::AcqRel);
        Ok(line)
    }

    /// Replaces a lost connection, and repeats the writes that the server may have lost.
    fn mend(&self, lost: &Arc<Line>, error: &io::Error) -> io::Result<()> {
        let mut vain = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
        if self.cancelled() {
            return Err(deadline::cancelled());
        }
        let lines = self.lines.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Another thread has replaced it.
        if !lines.iter().any(|line| Arc::ptr_eq(line, lost)) {
            return self.ended.get().map_or(Ok(()), |(kind, why)| Err(io::Error::new(*kind, why.clone())));
        }
        lost.fail(error);
        // From now on all threads wait here. Writes on the other connections are completed first, or one could arrive late.
        *self.lines.write().unwrap_or_else(PoisonError::into_inner) = vec![Arc::clone(lost)];
        let patience = Instant::now() + self.options.timeout;
        while lines.iter().any(|line| line.is_writing()) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(5));
        }
        lines.iter().for_each(|line| drop(line.fail(error)));
        self.ahead().forget();
        if error.kind() == io::ErrorKind::TimedOut && self.unflushed().has_undone() {
            let why = "pending writes may still take effect, so nothing more is sent to it";
            let error = self.by(io::Error::new(error.kind(), error.to_string()));
            return Err(self.end(io::ErrorKind::TimedOut, &format!("{error}, and {why}")));
        }
        // A server that takes connections but answers nothing is not tried forever.
        if lost.has_answered() {
            *vain = Vain::default();
        }
        let begun = *vain.since.get_or_insert_with(Instant::now);
        loop {
            let pause = Duration::from_millis(PAUSES[vain.count.min(PAUSES.len() - 1)]);
            vain.count += 1;
            if begun.elapsed() + pause > self.options.reconnect {
                let error = self.server.explain(self.by(io::Error::new(error.kind(), error.to_string())));
                return Err(self.end(error.kind(), &format!("the connection is lost: {error}")));
            }
            Deadline::within(self.options.reconnect, self.cancel()).sleep(pause)?;
            match self.connect(HANDSHAKE).and_then(|line| self.send_again(&line).map(|()| line)) {
                Ok(line) => {
                    *self.lines.write().unwrap_or_else(PoisonError::into_inner) = vec![Arc::new(line)];
                    return Ok(());
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::ResourceBusy) => {
                    let kind = e.kind();
                    return Err(self.end(kind, &self.by(e).to_string()));
                }
                Err(e) if deadline::is_cancelled(&e) => return Err(e),
                Err(_) => {}
            }
        }
    }

    /// Replaces all connections by a new one. No request is in progress meanwhile: a server may still carry out one that was given up,
    /// after later ones.
    fn replace_all(&self) -> io::Result<()> {
        let _alone = self.requests.write().unwrap_or_else(PoisonError::into_inner);
        self.ahead().forget();
        self.flush_all()?;
        let _replacing = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
        self.server.renew();
        // If this fails, an export still has its old connections, and the next request waits for another helper.
        let new = self.connect(HANDSHAKE).map_err(|e| self.by(e))?;
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *lines, vec![Arc::new(new)]);
        drop(lines);
        old.iter().for_each(|line| line.close());
        Ok(())
    }

    /// Sends all writes since the last flush again. It flushes first, to make the server finish requests it is still
    /// working on.
    fn send_again(&self, line: &Line) -> io::Result<()> {
        let mut kept = self.unflushed();
        if kept.is_empty() {
            return Ok(());
        }
        let carry_out = |command, offset, data: &[u8]| -> io::Result<()> {
            let answer: RequestResult = line.answer(line.ask(command, offset, data.len(), data)?, &mut [])?;
            answer.map_err(of_errno)
        };
        let flush = || if self.has(export::SEND_FLUSH) { carry_out(command::FLUSH, 0, &[]) } else { Ok(()) };
        flush()?;
        kept.iter().try_for_each(|(offset, data)| carry_out(command::WRITE, offset, data))?;
        // Fewer writes are left to send again next time.
        flush()?;
        kept.clear();
        Ok(())
    }

    fn end(&self, kind: io::ErrorKind, why: &str) -> io::Error {
        let (kind, why) = self.ended.get_or_init(|| (kind, why.to_owned()));
        io::Error::new(*kind, why.clone())
    }

    /// Names who was asked.
    fn by(&self, error: io::Error) -> io::Error {
        by(self.service.as_deref(), error)
    }

    fn unflushed(&self) -> MutexGuard<'_, Unflushed> {
        self.unflushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads whole blocks.
    fn read_blocks(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            done += self.read_some(offset + done as u64, &mut out[done..])?;
        }
        Ok(())
    }

    /// Reads all, or as much as came before a connection was lost and replaced. Returns the number of bytes.
    fn read_some(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let parts = self.ask_for(offset..offset + out.len() as u64)?;
        let mut rest = &parts[..];
        let mut done = 0;
        while let Some(Part { line, .. }) = rest.first() {
            let here = rest.iter().take_while(|part| Arc::ptr_eq(&part.line, line)).count();
            let (here, after) = rest.split_at(here);
            let place = |at: u64| (at - offset) as usize;
            let wanted: Vec<_> = here
                .iter()
                .map(|Part { range, cookie, .. }| Wanted { cookie: *cookie, at: place(range.start)..place(range.end) })
                .collect();
            let answer = line.answers(&wanted, out);
            if !matches!(answer, Ok(Ok(()))) {
                after.iter().for_each(|part| part.line.abandon(part.cookie));
            }
            match answer {
                Ok(Ok(())) => done = wanted.last().map_or(done, |last| last.at.end),
                Ok(Err(errno)) => return Err(self.by(of_errno(errno))),
                // Everything from here on is requested again.
                Err(e) => {
                    let arrived = &wanted[..line.arrived(&wanted)];
                    done = arrived.last().map_or(done, |last| last.at.end);
                    self.mend(line, &e)?;
                    return Ok(done);
                }
            }
            rest = after;
        }
        Ok(done)
    }

    /// Requests a range, and reads ahead.
    fn ask_for(&self, range: Range<u64>) -> io::Result<Vec<Part>> {
        loop {
            let line = self.line()?;
            let mut ahead = self.ahead();
            let mut asked = ahead.read(&range);
            let ask = |line: &Arc<Line>, range: Range<u64>| {
                let cookie = line.ask(command::READ, range.start, (range.end - range.start) as usize, &[])?;
                Ok(Part { range, line: Arc::clone(line), cookie })
            };
            let from = asked.last().map_or(range.start, |part| part.range.end);
            let missing =
                parts(from..range.end, self.largest).try_for_each(|part| ask(&line, part).map(|part| asked.push(part)));
            if missing.is_ok() {
                // The thread that reads those data will see the connection's error.
                let _ = self.ask_ahead(&mut ahead, range.end - range.start, ask);
            }
            drop(ahead);
            match missing {
                Ok(()) => return Ok(asked),
                Err(e) => {
                    asked.iter().for_each(|part| part.line.abandon(part.cookie));
                    self.mend(&line, &e)?;
                }
            }
        }
    }

    /// Requests the data that will probably be needed next, in reads of that length.
    fn ask_ahead(
        &self,
        ahead: &mut Ahead,
        reads: u64,
        ask: impl Fn(&Arc<Line>, Range<u64>) -> io::Result<Part>,
    ) -> io::Result<()> {
        let mut wanted = ahead.wanted(self.len());
        while wanted.start < wanted.end {
            let read = wanted.start..wanted.end.min(wanted.start + reads);
            wanted.start = read.end;
            // All parts of a read use one connection, so each of several reading threads has its own.
            let line = self.line()?;
            parts(read, self.largest).try_for_each(|part| ask(&line, part).map(|part| ahead.asked(part)))?;
        }
        Ok(())
    }

    /// Writes whole blocks, as concurrent requests.
    fn write_blocks(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.begin_to_write();
        let size = WRITE.min(self.largest) as usize;
        let keep = !self.options.reconnect.is_zero();
        if keep && !self.unflushed().has_room(data.len()) {
            self.flush_all()?;
        }
        let mut left: Vec<_> = data
            .chunks(size)
            .enumerate()
            .map(|(n, data)| {
                let offset = offset + (n * size) as u64;
                Piece { offset, data, number: keep.then(|| self.unflushed().keep(offset, data)) }
            })
            .collect();
        let mut failed = None;
        while !left.is_empty() {
            let line = self.line()?;
            if let Err(lost) = self.try_to_write(&line, &mut left, &mut failed) {
                self.mend(&line, &lost)?;
                // The replacement has already repeated the writes that were recorded.
                let kept = self.unflushed();
                left.retain(|piece| !piece.number.is_some_and(|number| kept.is_done(number)));
            }
        }
        self.ahead().written(&(offset..offset + data.len() as u64));
        failed.map_or(Ok(()), Err)
    }

    /// Sends all pieces and waits for the answers. Removes answered pieces from `left`.
    ///
    /// # Errors
    /// The error that the connection failed with.
    fn try_to_write(&self, line: &Line, left: &mut Vec<Piece<'_>>, failed: &mut Option<io::Error>) -> io::Result<()> {
        let send = |piece: &Piece<'_>| line.ask(command::WRITE, piece.offset, piece.data.len(), piece.data);
        let cookies = left.iter().map(send).collect::<io::Result<Vec<_>>>()?;
        for cookie in cookies {
            let answer = line.answer(cookie, &mut [])?;
            let number = left.remove(0).number;
            match answer {
                Ok(()) => number.iter().for_each(|number| self.unflushed().done(*number)),
                Err(errno) => {
                    number.iter().for_each(|number| self.unflushed().forget(*number));
                    failed.get_or_insert(self.by(of_errno(errno)));
                }
            }
        }
        Ok(())
    }

    /// Flushes all connections with writes since the last flush.
    fn flush_all(&self) -> io::Result<()> {
        if let Some(why) = self.unwritable.get() {
            return Err(io::Error::other(why.clone()));
        }
        if !self.writable {
            return Ok(());
        }
        loop {
            let covered = self.unflushed().covered();
            let lines = self.to_flush()?;
            // A server without flush has nothing to make durable.
            if !self.has(export::SEND_FLUSH) {
                self.unflushed().flushed(&covered);
                return Ok(());
            }
            let ask = |line: &Arc<Line>| (line.written(), line.ask(command::FLUSH, 0, 0, &[]));
            let asked: Vec<_> = lines.iter().map(ask).collect();
            let (mut refused, mut lost) = (None, None);
            for (line, (written, asked)) in lines.iter().zip(asked) {
                match asked.and_then(|cookie| line.answer(cookie, &mut [])) {
                    Ok(Ok(())) => line.flushed(written),
                    Ok(Err(errno)) => refused = Some(errno),
                    Err(e) => lost = Some((line, e)),
                }
            }
            match (refused, lost) {
                (None, None) => {
                    self.unflushed().flushed(&covered);
                    return Ok(());
                }
                (Some(errno), _) => {
                    let error = self.by(of_errno(errno));
                    let why = format!(
                        "a flush failed ({error}): writes since the last one may be lost, and writing has stopped"
                    );
                    return Err(io::Error::new(error.kind(), self.unwritable.get_or_init(|| why).clone()));
                }
                (None, Some((line, e))) => self.mend(line, &e)?,
            }
        }
    }

    /// The blocks that a range touches.
    fn touched(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.smallest * self.smallest..range.end.next_multiple_of(self.smallest)
    }

    fn inside(&self, offset: u64, len: usize) -> io::Result<Range<u64>> {
        check_range(offset, len, self.len())?;
        Ok(offset..offset + len as u64)
    }
}

impl Store for Remote {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let _request = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let range = self.inside(offset, out.len())?;
        let touched = self.touched(&range);
        if touched == range {
            return self.read_blocks(offset, out);
        }
        let mut blocks = vec![0; (touched.end - touched.start) as usize];
        self.read_blocks(touched.start, &mut blocks)?;
        let from = (offset - touched.start) as usize;
        out.copy_from_slice(&blocks[from..from + out.len()]);
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if let Some(why) = self.unwritable.get() {
            return Err(io::Error::other(why.clone()));
        }
        let _request = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let range = self.inside(offset, data.len())?;
        let touched = self.touched(&range);
        if touched == range {
            let _others = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
            return self.write_blocks(offset, data);
        }
        let _alone = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = vec![0; (touched.end - touched.start) as usize];
        self.read_blocks(touched.start, &mut blocks)?;
        let from = (offset - touched.start) as usize;
        blocks[from..from + data.len()].copy_from_slice(data);
        self.write_blocks(touched.start, &blocks)
    }

    fn flush(&self) -> io::Result<()> {
        let _request = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        self.flush_all()
    }

    fn still_whole(&self) -> io::Result<()> {
        self.line().map(drop)
    }

    /// Reconnects if the export has grown, because a server reports the same size for as long as a connection lasts.
    fn measure(&self) -> io::Result<()> {
        let anew = self.server.anew()?;
        let server = anew.as_deref().unwrap_or(&*self.server);
        let line = dial(server, &self.export, self.options, self.cancel(), LOOK).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => {
                self.by(io::Error::new(e.kind(), "its size is unknown: it does not answer a second connection"))
            }
            _ => self.by(e),
        })?;
        let (present, len) = (line.agreed.len, self.len());
        line.close();
        drop((line, anew));
        match present {
            _ if present == len => Ok(()),
            _ if present < len => {
                Err(io::Error::other(format!("the remote store has shrunk: {present} of {len} bytes are left")))
            }
            _ if self.options.reconnect.is_zero() => {
                let why = "the remote store has grown, but connecting to it again was switched off";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            _ => self.replace_all(),
        }
    }

    fn sector_size(&self) -> u64 {
        self.smallest.clamp(SMALLEST_SECTOR, 4096)
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn bypasses_cache(&self) -> bool {
        true
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let lines = self.lines.get_mut().unwrap_or_else(PoisonError::into_inner);
        lines.iter().for_each(|line| line.close());
        if self.cancelled() {
            self.server.give_up();
        }
    }
}

/// A piece of the data to write.
struct Piece<'a> {
    offset: u64,
    data: &'a [u8],
    /// Its number among the recorded writes.
    number: Option<u64>,
}

fn dial(
    server: &dyn Reach,
    export: &str,
    options: RemoteOptions,
    cancel: Cancel,
    within: Duration,
) -> io::Result<Line> {
    let deadline = Deadline::within(within.min(options.timeout), cancel);
    Line::open(server.reach(deadline)?, server.tls(), export, options.timeout, cancel, deadline)
}

/// Names the service that an error comes from.
fn by(service: Option<&str>, error: io::Error) -> io::Error {
    match service {
        Some(service) => io::Error::new(error.kind(), format!("{service}: {error}")),
        None => error,
    }
}

/// Converts a server's error number ("Error values").
fn of_errno(errno: u32) -> io::Error {
    io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(5))
}
