//! The connection to the kernel through /dev/fuse: each read returns one request, and each write sends one answer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use claviger_engine::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::{Errno as SystemErrno, read, write};

use super::answers::{Answer, Answers};
use super::listening::LONG;
use super::protocol::*;
use super::{Control, Shared};
use crate::aligned::Aligned;
use crate::spin::{Running, Sleeping, Spinner};

/// Where data begin in a worker's buffer: at a page. Headers end there, so one call reads or writes both.
const DATA: usize = Aligned::PAGE;

/// Where a message from the kernel begins in the buffer, which aligns the data of a WRITE to a page.
const MESSAGE: usize = DATA - IN_HEADER - WRITE_IN;

/// The largest offset at which a message can end.
const END: usize = DATA + MAX_DATA;

/// Bytes of a worker's buffer. Data after arguments shorter than a WRITE's are moved, which needs room for the difference.
const ROOM: usize = END + DATA - MESSAGE;

/// One descriptor of a connection, with memory for one request.
pub struct Channel {
    fd: OwnedFd,
    buffer: Aligned,
}

/// The features that the kernel and this program agreed on.
pub struct FuseFeatures {
    /// Whether requests come over io_uring once its queues are registered.
    pub uring: bool,
}

/// Why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The folder was unmounted: no more requests come.
    Unmounted,
    /// The worker was asked to stop.
    Stopped,
}

/// What the kernel sent.
enum Received {
    /// A message of this many bytes.
    Message(usize),
    /// No more messages will come.
    End,
}

impl Channel {
    /// Takes over a descriptor that does not block.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, buffer: Aligned::new(ROOM) }
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Answers the kernel's first request.
    ///
    /// # Errors
    /// `Unsupported` for a kernel that is too old; otherwise `Io`.
    pub fn negotiate(&mut self, wanted: u64, uring: bool) -> Result<FuseFeatures> {
        let mut wanted = wanted
            | init::ASYNC_READ
            | init::BIG_WRITES
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT;
        if uring {
            wanted |= init::OVER_IO_URING;
        }
        loop {
            let n = self.first_message()?;
            let request = FuseRequest::of_message(&self.buffer[MESSAGE..MESSAGE + n]).map(|(request, _)| request);
            let request = request.filter(|r| r.opcode == opcode::INIT);
            let request = request.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let offer = Offer::of(&request);
            if offer.version < OLDEST {
                self.reply(request.unique, &Answer::Refused(Errno(71)))?; // EPROTO
                let (major, minor) = offer.version;
                return Err(Error::new(ErrorKind::Unsupported { what: format!("FUSE {major}.{minor}") })
                    .hint("Linux 4.20 or later is needed."));
            }
            let (len, agreed) = offer.accept(wanted, &mut self.buffer[DATA..]);
            self.reply(request.unique, &Answer::Done(len))?;
            // A newer kernel sends INIT again, with our version.
            if offer.version.0 == VERSION.0 {
                return Ok(FuseFeatures { uring: agreed & init::OVER_IO_URING != 0 });
            }
        }
    }

    fn first_message(&mut self) -> io::Result<usize> {
        /// The kernel sent the request before mount(2) returned.
        const PATIENCE: Duration = Duration::from_secs(10);
        loop {
            match read(&self.fd, &mut self.buffer[MESSAGE..END]) {
                Ok(n) => return Ok(n),
                Err(SystemErrno::INTR) => {}
                Err(SystemErrno::AGAIN) => {
                    let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
                    if !crate::nbd::wait(&mut fds, Some(PATIENCE))? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Serves requests until the end.
    ///
    /// # Errors
    /// Errors of the kernel, and `InvalidData` for an invalid message. Programs may then wait for an answer forever, so
    /// the caller must end the connection.
    pub fn serve(&mut self, shared: &Shared) -> io::Result<End> {
        let sleep = Sleep::new(&self.fd, &shared.control)?;
        let _running = Running::new(&shared.awake);
        let mut spinner = Spinner::default();
        let mut idle = false;
        loop {
            self.buffer.reserve(ROOM);
            let mut received = self.receive()?;
            if received.is_none() && !shared.control.is_ending() {
                received = spinner.spin(&shared.awake, shared.options.spin, || self.receive())?;
            }
            match received {
                Some(Received::Message(n)) => {
                    shared.listening.begin();
                    self.handle(n, shared)?;
                    shared.listening.end();
                }
                Some(Received::End) => return Ok(End::Unmounted),
                None if shared.control.is_ending() => return Ok(End::Stopped),
                // There was no request since the last wait either.
                None if idle => {
                    let _sleeping = Sleeping::new(&shared.awake);
                    shared.listening.rest();
                    idle = false;
                }
                None => {
                    let _sleeping = Sleeping::new(&shared.awake);
                    let long = shared.listening.more_than_enough().then_some(LONG);
                    idle = !sleep.until_something_happens(long)?;
                }
            }
        }
    }

    /// Receives a waiting request. Never blocks.
    fn receive(&mut self) -> io::Result<Option<Received>> {
        loop {
            match read(&self.fd, &mut self.buffer[MESSAGE..END]) {
                Ok(n) => return Ok(Some(Received::Message(n))),
                // ENOENT: the program that asked was interrupted.
                Err(SystemErrno::INTR | SystemErrno::NOENT) => {}
                Err(SystemErrno::AGAIN) => return Ok(None),
                Err(SystemErrno::NODEV | SystemErrno::CONNABORTED) => return Ok(Some(Received::End)),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn handle(&mut self, n: usize, shared: &Shared) -> io::Result<()> {
        let (unique, answer) = answer(&mut self.buffer, n, &*shared.served).ok_or(io::ErrorKind::InvalidData)?;
        self.reply(unique, &answer)
    }

    fn reply(&mut self, unique: u64, answer: &Answer) -> io::Result<()> {
        let (error, len) = match *answer {
            Answer::None => return Ok(()),
            Answer::Done(len) => (None, len),
            Answer::Refused(errno) => (Some(errno), 0),
        };
        self.buffer[DATA - OUT_HEADER..DATA].copy_from_slice(&out_header(unique, error, len));
        match write(&self.fd, &self.buffer[DATA - OUT_HEADER..DATA + len]) {
            // ENOENT: the program that asked was interrupted. The others: the folder was unmounted.
            Ok(_) | Err(SystemErrno::NOENT | SystemErrno::NODEV | SystemErrno::CONNABORTED) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Answers the message of `n` bytes in a worker's buffer. Returns the message's number and the answer, whose payload is
/// at [`DATA`]; none if the message is invalid.
fn answer(buffer: &mut [u8], n: usize, served: &dyn Answers) -> Option<(u64, Answer)> {
    let (request, skip) = FuseRequest::of_message(&buffer[MESSAGE..MESSAGE + n])?;
    if MESSAGE + skip != DATA {
        // Moves names. The data of a WRITE are there already.
        buffer.copy_within(MESSAGE + skip..MESSAGE + n, DATA);
    }
    Some((request.unique, served.answer(&request, &mut buffer[DATA..], n - skip)))
}

/// Answers consecutive messages, each of which begins with its length: [`crate::fuzzing`]. Returns how many were carried out.
pub fn fuzz(served: &dyn Answers, mut messages: &[u8]) -> usize {
    let mut buffer = Aligned::new(ROOM);
    let mut done = 0;
    while let Some(len) = messages.first_chunk::<4>() {
        let len = (u32::from_ne_bytes(*len) as usize).clamp(IN_HEADER, END - MESSAGE).min(messages.len());
        let (message, rest) = messages.split_at(len);
        buffer[MESSAGE..MESSAGE + len].copy_from_slice(message);
        let Some((_, answer)) = answer(&mut buffer, len, served) else { break };
        if let Answer::Done(len) = answer {
            assert!(len <= MAX_DATA, "it is as much as the kernel takes");
            done += 1;
        }
        messages = rest;
    }
    let _ = served.finish();
    done
}

/// Waits for a request or for the end. A request wakes only one of several workers.
struct Sleep(OwnedFd);

impl Sleep {
    fn new(fd: &OwnedFd, control: &Control) -> io::Result<Self> {
        let sleep = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&sleep, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE)?;
        epoll::add(&sleep, control.wake(), epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(Self(sleep))
    }

    /// Whether something happened before the time was over.
    fn until_something_happens(&self, time: Option<Duration>) -> io::Result<bool> {
        let mut events = [MaybeUninit::uninit(); 2];
        let time = time.map(|time| Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) });
        match epoll::wait(&self.0, &mut events, time.as_ref()) {
            Ok((events, _)) => Ok(!events.is_empty()),
            Err(SystemErrno::INTR) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }
}
