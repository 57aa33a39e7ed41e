//! Lending a store in use: a server holds the lock on its volume, and a command that changes the header needs it.
//!
//! The server hands over a descriptor that shares its lock, and the command works as on an unused volume: it finds the header, proves
//! the credential and writes step by step. So the server needs no verb's options, and no passphrase leaves the process that asks for
//! it. A writer's lock is held all the time. If the server ends first, the command still holds it and finishes. If the
//! command is killed, the header is in a state that opens, as after any kill.
//!
//! A remote store has no lock that could be shared. The command reads and writes it through the server, which knows of no other
//! borrower. If the server ends first, the command fails between two requests: after any number of steps, a header opens.
//!
//! This is possible because a header's changes leave the layout alone, and because the server writes only where the data are. A
//! growing volume only gets a longer last segment. The server learns the new size after everything has reached the disk.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::deadline::{Deadline, Exchange};
use claviger_engine::formats::{KeyProcesses, KeylessConversion, VolumeInUse};
use claviger_engine::key_process::KeyProcess;
use claviger_engine::key_process::volume::KeylessLayout;
use claviger_engine::opening::Stores;
use claviger_engine::store::{
    Access, ConvertedInUse, FileStore, Growth, Handover, InUseConversion, Lender, Loan, check_range,
};
use claviger_engine::volume::Volume;
use claviger_engine::{Advice, Credential, Error, ErrorKind, Result, Secret, Store, Unlock};
use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Runtime, Session, SessionSocket, short_name};
use crate::key_process::locking::Lockable;
use crate::key_process::{CONVERT_IN_USE, IoSide, KeyClient, Terms};
use crate::messages::{give, receive_at_most, send, take};
use crate::wait::wait;

/// The socket's name in the session's folder.
pub(super) const SOCKET: &str = "loans";

/// The version of the messages.
const VERSION: u32 = 6;

/// The longest message, in bytes.
const LONGEST: usize = 4096;

/// Time limit for each message.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time limit for the outcome of a wish.
const WORK: Duration = Duration::from_secs(60);

/// Time limit for a request to a remote store: that store's own time limits, several times over.
const REMOTE_WORK: Duration = Duration::from_secs(600);

/// The longest read or write of a lent remote store, in bytes.
const PIECE: usize = 1 << 20;

/// How often a server reports the progress of a conversion.
const REPORT: Duration = Duration::from_millis(200);

/// The longest volume key, in bytes.
const LONGEST_KEY: usize = 1024;

/// Interval at which a lender checks whether to end.
const TICK: Duration = Duration::from_millis(100);

/// Asks for a store. The loan lasts until the borrower closes the connection.
#[derive(Serialize, Deserialize)]
struct Request {
    version: u32,
    /// Device and inode; those of no file for the remote store of the session's volume, so that version 3 has nothing to lend.
    file: (u64, u64),
    /// Whether the remote store will be written to; `None` to borrow a file.
    #[serde(default)]
    remote: Option<bool>,
}

/// What a borrower asks of the server.
#[derive(Serialize, Deserialize)]
enum Wish {
    Grow(Growth),
    /// Only asks whether it can.
    MayConvert(InUseConversion, HandedOver),
    Convert(InUseConversion, HandedOver),
    /// The same with another key process, which begins or resumes the conversion.
    ConvertWithKeyProcess(HandedOver),
    /// Pauses the conversion.
    Pause,
    /// Requests to a remote store, within [`PIECE`]. The bytes follow the answer, or this.
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        len: usize,
    },
    Flush,
    /// Asks for the present size.
    Measure,
}

/// What comes after a wish.
#[derive(Serialize, Deserialize)]
struct HandedOver {
    /// Volume keys of these lengths, in bytes.
    keys: Vec<usize>,
    /// Whether then comes the descriptor of a detached header.
    header: bool,
}

/// The answers to a [`Wish`]. During a conversion, others come before the last one.
#[derive(Serialize, Deserialize)]
enum Outcome {
    Done,
    Refused(String),
    /// An error in the middle of the work.
    Failed {
        why: String,
        /// Whether a part of the volume is closed since.
        closed: bool,
    },
    /// How many bytes are converted, and of how many.
    Progress(u64, u64),
    Paused,
    /// Refused, since a key process holds the keys, or since none does.
    Keys {
        isolated: bool,
    },
    /// Refused, since the volume is locked.
    Locked,
    /// A lock has interrupted the work.
    WasLocked,
    /// Then come the ends of a key process's channel: socket and memory.
    Channel,
    /// A conversion with a key process is done.
    Converted(ConvertedInUse),
    /// The size of a remote store, in bytes.
    Measured(u64),
}

/// The answer of a server.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// Then comes the descriptor of the file, and that of the backing file of a loop device.
    Lent {
        behind: bool,
        /// Whether the volume's keys are in a key process. Then no key may be handed over.
        isolated: bool,
    },
    LentRemote(LentRemote),
    /// This server has another file, or one that cannot be lent.
    NotHere,
    /// Another process has borrowed it.
    Busy,
    /// The server knows another version of the messages.
    Version(u32),
    Failed(String),
}

/// A remote store that is lent.
#[derive(Serialize, Deserialize)]
struct LentRemote {
    /// In bytes.
    len: u64,
    /// In bytes.
    sector_size: u64,
    /// See [`Answer::Lent`].
    isolated: bool,
}

/// What a server does once its volume has grown to this many bytes, in its session's folder.
pub type AfterGrowth = fn(&Path, u64) -> io::Result<()>;

/// What a server lends.
struct Lending {
    /// The session's volume lies in the first one. Each is lent to one borrower at a time.
    stores: Vec<(Weak<dyn Store>, Mutex<()>)>,
    /// The key process of the session's volume, if that has its keys.
    key_process: Option<Weak<Lockable>>,
    folder: PathBuf,
    after_growth: AfterGrowth,
}

/// Lends these stores for the lifetime of the value returned. The session's volume lies in the first one.
pub(super) fn lend(
    folder: &Path,
    stores: Vec<Weak<dyn Store>>,
    key_process: Option<Weak<Lockable>>,
    after_growth: AfterGrowth,
) -> io::Result<SessionSocket> {
    let stores = stores.into_iter().map(|store| (store, Mutex::new(()))).collect();
    let lending = Lending { stores, key_process, folder: folder.to_owned(), after_growth };
    SessionSocket::new(folder, SOCKET, move |client, stop| {
        if let Ok(request) = heard(&client, PATIENCE) {
            let _ = lending.answer(&client, &request, stop);
        }
    })
}

impl Lending {
    fn answer(&self, client: &UnixStream, request: &Request, stop: &AtomicBool) -> io::Result<()> {
        for (n, (store, lending)) in self.stores.iter().enumerate() {
            let Some(store) = store.upgrade() else { continue };
            let is_it = match &request.remote {
                None => store.file().is_some_and(|file| is(file, request.file)),
                Some(to_write) => n == 0 && store.file().is_none() && (!to_write || bottom(&*store).writable()),
            };
            if !is_it {
                continue;
            }
            if request.version != VERSION {
                return send(client, &Answer::Version(VERSION));
            }
            let Ok(_lending) = lending.try_lock() else { return send(client, &Answer::Busy) };
            return match store.file() {
                Some(file) => self.lend(client, &*store, file, stop),
                None => self.lend_remote(client, &*store, stop),
            };
        }
        send(client, &Answer::NotHere)
    }

    /// Lends the file until the borrower hangs up.
    fn lend(&self, client: &UnixStream, store: &dyn Store, file: &FileStore, stop: &AtomicBool) -> io::Result<()> {
        let (descriptor, behind, lent) = match file.lend() {
            Ok(lent) => lent,
            Err(e) => return send(client, &Answer::Failed(e.to_string())),
        };
        send(client, &Answer::Lent { behind: behind.is_some(), isolated: self.key_process.is_some() })?;
        match &behind {
            Some(behind) => give(client, [descriptor.as_fd(), behind.as_fd()])?,
            None => give(client, [descriptor.as_fd()])?,
        }
        drop((descriptor, behind));
        loop {
            while !wait(&mut [PollFd::new(client, PollFlags::IN)], Some(TICK))? {
                if stop.load(Ordering::SeqCst) {
                    lent.leave();
                    return Ok(());
                }
            }
            // Fails at the end of the loan.
            let wish = heard(client, PATIENCE)?;
            self.fulfil(client, store, wish, stop)?;
        }
    }

    /// Reads and writes the remote store for the borrower, until it hangs up. If the server has to end, a change that was begun is
    /// completed first: up to its flush.
    fn lend_remote(&self, client: &UnixStream, store: &dyn Store, stop: &AtomicBool) -> io::Result<()> {
        let remote = bottom(store);
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let (len, sector_size, isolated) = (remote.len(), remote.sector_size(), self.key_process.is_some());
        send(client, &Answer::LentRemote(LentRemote { len, sector_size, isolated }))?;
        let mut unflushed = false;
        let mut last = Instant::now();
        loop {
            while !wait(&mut [PollFd::new(client, PollFlags::IN)], Some(TICK))? {
                if stop.load(Ordering::SeqCst) && (!unflushed || last.elapsed() > PATIENCE) {
                    return Ok(());
                }
            }
            let wish = heard(client, PATIENCE)?;
            unflushed = matches!(wish, Wish::Write { .. }) || unflushed && !matches!(wish, Wish::Flush);
            match wish {
                Wish::Read { .. } | Wish::Write { .. } | Wish::Flush | Wish::Measure => request(client, remote, &wish)?,
                wish => self.fulfil(client, store, wish, stop)?,
            }
            last = Instant::now();
        }
    }

    /// Does what the borrower asks for with the volume in the store, and sends the outcome.
    fn fulfil(&self, client: &UnixStream, store: &dyn Store, wish: Wish, stop: &AtomicBool) -> io::Result<()> {
        let outcome = match wish {
            Wish::Grow(growth) => self.grow(store, &growth).map_err(|e| Error::unsupported(e.to_string())),
            Wish::MayConvert(request, handed_over) => {
                let received = Received::from(client, &handed_over)?;
                if self.key_process.is_some() {
                    return send(client, &Outcome::Keys { isolated: true });
                }
                let with = Unlock::with(&received.keys);
                received.in_use(store).and_then(|volume| volume.may_be_converted(&with, &request))
            }
            Wish::Convert(request, handed_over) => {
                let received = Received::from(client, &handed_over)?;
                if self.key_process.is_some() {
                    return send(client, &Outcome::Keys { isolated: true });
                }
                let in_use = received.in_use(store);
                in_use.and_then(|volume| convert(client, volume, &request, &received.keys, stop))
            }
            Wish::ConvertWithKeyProcess(handed_over) => {
                let received = Received::from(client, &handed_over)?;
                let Some(key_process) = self.key_process.as_ref().and_then(Weak::upgrade) else {
                    return send(client, &Outcome::Keys { isolated: false });
                };
                let in_use = received.in_use(store).map_err(NotConverted::Failed);
                match in_use.and_then(|volume| convert_with_key_process(client, volume, &key_process, stop)) {
                    Ok(converted) => return send(client, &Outcome::Converted(converted)),
                    Err(NotConverted::Locked) => return send(client, &Outcome::Locked),
                    Err(NotConverted::WasLocked) => return send(client, &Outcome::WasLocked),
                    Err(NotConverted::Failed(e)) => Err(e),
                }
            }
            // It came after the end of the conversion.
            Wish::Pause => return Ok(()),
            // The borrower of a file has its descriptor.
            Wish::Read { .. } | Wish::Write { .. } | Wish::Flush | Wish::Measure => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        let outcome = match outcome {
            Ok(()) => Outcome::Done,
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => Outcome::Paused,
            Err(Error { kind: ErrorKind::Unsupported { what } | ErrorKind::Misuse(what), .. }) => {
                Outcome::Refused(what)
            }
            Err(e) => {
                let closed = store.volume().is_some_and(Volume::has_failed);
                Outcome::Failed { why: e.to_string(), closed }
            }
        };
        send(client, &outcome)
    }

    fn grow(&self, store: &dyn Store, growth: &Growth) -> io::Result<()> {
        store.grow(growth)?;
        if growth.rehearse { Ok(()) } else { (self.after_growth)(&self.folder, store.len()) }
    }
}

/// The store at the bottom.
fn bottom(mut store: &dyn Store) -> &dyn Store {
    while let Some(below) = store.below() {
        store = below;
    }
    store
}

/// Carries out a borrower's request to a remote store, and answers.
fn request(mut client: &UnixStream, remote: &dyn Store, wish: &Wish) -> io::Result<()> {
    let failed = |e: io::Error| Outcome::Failed { why: e.to_string(), closed: false };
    let buffer =
        |len: usize| if len <= PIECE { Ok(vec![0; len]) } else { Err(io::Error::from(io::ErrorKind::InvalidData)) };
    let outcome = match *wish {
        Wish::Read { offset, len } => {
            let mut bytes = buffer(len)?;
            match remote.read_at(offset, &mut bytes) {
                Ok(()) => {
                    send(client, &Outcome::Done)?;
                    return client.write_all(&bytes);
                }
                Err(e) => failed(e),
            }
        }
        Wish::Write { offset, len } => {
            let mut bytes = buffer(len)?;
            client.read_exact(&mut bytes)?;
            remote.write_clobbering(offset, &mut bytes).map_or_else(failed, |()| Outcome::Done)
        }
        Wish::Measure => remote.measure().map_or_else(failed, |()| Outcome::Measured(remote.len())),
        _ => remote.flush().map_or_else(failed, |()| Outcome::Done),
    };
    send(client, &outcome)
}

/// What a borrower has handed over for a conversion.
struct Received {
    keys: Vec<Credential>,
    header: Option<Arc<dyn Store>>,
}

impl Received {
    /// Receives it. The kernel never swaps the buffers of a socket.
    fn from(mut client: &UnixStream, handed_over: &HandedOver) -> io::Result<Self> {
        let HandedOver { keys, header } = handed_over;
        if keys.len() > 2 || keys.iter().any(|len| *len > LONGEST_KEY) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        client.set_read_timeout(Some(PATIENCE))?;
        let key = |len: &usize| {
            let mut key = Secret::zeroed(*len);
            client.read_exact(&mut key)?;
            Ok(Credential::VolumeKey(key))
        };
        let keys = keys.iter().map(key).collect::<io::Result<_>>()?;
        let header = header.then(|| take(client)).transpose()?;
        let header = header.map(|[header]| FileStore::handed_over(File::from(header))).transpose();
        let header = header.map_err(io::Error::other)?;
        Ok(Self { keys, header: header.map(|header| Arc::new(header) as Arc<dyn Store>) })
    }

    /// The volume directly in the lent file.
    fn in_use<'a>(&'a self, store: &'a dyn Store) -> Result<VolumeInUse<'a>> {
        let volume = store.volume().ok_or_else(|| Error::unsupported("its process does not decrypt it"))?;
        Ok(VolumeInUse::new(volume, self.header.as_ref()))
    }
}

/// Converts the volume with the keys that the borrower has handed over.
fn convert(
    client: &UnixStream,
    volume: VolumeInUse<'_>,
    request: &InUseConversion,
    keys: &[Credential],
    stop: &AtomicBool,
) -> Result<()> {
    let must_end = || stop.load(Ordering::SeqCst);
    attended(client, &must_end, &|progress, cancel| volume.convert(&Unlock::with(keys), request, progress, cancel))
}

/// Why a conversion with a key process did not finish.
enum NotConverted {
    /// The volume is locked.
    Locked,
    /// A lock has interrupted it.
    WasLocked,
    Failed(Error),
}

impl From<Error> for NotConverted {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<io::Error> for NotConverted {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Converts the volume with a key process that the borrower starts, and that is the volume's own from then on: see
/// [`crate::key_process::locking`].
fn convert_with_key_process(
    client: &UnixStream,
    volume: VolumeInUse<'_>,
    key_process: &Arc<Lockable>,
    stop: &AtomicBool,
) -> std::result::Result<ConvertedInUse, NotConverted> {
    volume.may_follow_key_process()?;
    let Some(_converting) = key_process.converting() else { return Err(NotConverted::Locked) };
    let must_end = || stop.load(Ordering::SeqCst) || key_process.must_pause();
    let by_lock = |e: Error| match e.kind {
        ErrorKind::Cancelled if key_process.must_pause() => NotConverted::WasLocked,
        _ => e.into(),
    };
    let (keyless, io_side) = new_key_process(client, volume, &must_end).map_err(by_lock)?;
    // From now on the header says that it has begun.
    send(client, &Outcome::Progress(0, keyless.request.len))?;
    let end = Arc::new(EndOfNext { in_charge: false.into(), reported: false.into(), lost: key_process.lost() });
    let next = {
        let end = Arc::clone(&end);
        Arc::new(io_side.opened(move || end.report())?)
    };
    let asked: Arc<dyn KeyProcess> = Arc::<KeyClient>::clone(&next);
    let current: Arc<dyn KeyProcess> = Arc::<Lockable>::clone(key_process);
    let done = attended(client, &must_end, &|progress, cancel| {
        let mut exchange = || {
            end.in_charge.store(true, Ordering::SeqCst);
            key_process.exchange(Arc::clone(&next));
            if next.is_gone() {
                end.report();
            }
        };
        let key_processes = KeyProcesses { current: &current, next: &asked, exchange: &mut exchange };
        volume.convert_with_key_process(&keyless, key_processes, progress, cancel)
    });
    // A part that is closed for good has no layout. Without its key process, the server ends.
    if end.in_charge.load(Ordering::SeqCst)
        && let Ok((outline, proof)) = volume.identity()
    {
        key_process.set_identity(outline, proof);
    }
    match done {
        Ok(()) => Ok(ConvertedInUse { kind: keyless.kind, size: keyless.request.len, ended_keyslots: keyless.ending }),
        Err(e) => Err(by_lock(e)),
    }
}

/// Reports the unexpected end of a new key process once. Before the exchange, the volume has its own.
struct EndOfNext {
    in_charge: AtomicBool,
    reported: AtomicBool,
    lost: fn(),
}

impl EndOfNext {
    fn report(&self) {
        if self.in_charge.load(Ordering::SeqCst) && !self.reported.swap(true, Ordering::SeqCst) {
            (self.lost)();
        }
    }
}

/// Reads and writes for a key process that the borrower starts, until that has begun or resumed the conversion.
fn new_key_process(
    client: &UnixStream,
    volume: VolumeInUse<'_>,
    must_end: &dyn Fn() -> bool,
) -> Result<(KeylessConversion, IoSide)> {
    let (io_side, key_end) = IoSide::new()?;
    send(client, &Outcome::Channel)?;
    give(client, [key_end.as_fd(), io_side.memory()])?;
    drop(key_end);
    let data = Arc::clone(volume.data());
    let stores = Stores { disk: Arc::clone(&data), header: volume.header().cloned(), data };
    // Until the key process is ready, the borrower only speaks to pause, or hangs up.
    let spoke = || wait(&mut [PollFd::new(client, PollFlags::IN)], Some(Duration::ZERO)).unwrap_or(true);
    let in_use =
        |outline: &KeylessLayout, proof: &[Vec<u8>]| volume.is_opened_by(outline, proof).map_err(io::Error::from);
    let cancelled = || must_end() || spoke();
    let terms = Terms { writes: true, task: CONVERT_IN_USE.into(), in_use: &in_use, ..Terms::reading(&cancelled) };
    let error = match io_side.serve_until_open(&stores, &terms) {
        Ok(Some(keyless)) => return Ok((keyless, io_side)),
        Ok(None) => io::Error::other("the key process has exited").into(),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => ErrorKind::Cancelled.into(),
        Err(e) => e.into(),
    };
    // It may have the keys of the volume by now.
    io_side.end();
    Err(error)
}

/// A conversion that reports its progress and pauses once the flag is set.
type Work<'a> = dyn Fn(&dyn Fn(u64, u64), &AtomicBool) -> Result<()> + 'a;

/// Does the work and sends its progress, until the borrower asks for a pause or hangs up, or this process `must_end` it.
fn attended(client: &UnixStream, must_end: &(dyn Fn() -> bool + Sync), work: &Work<'_>) -> Result<()> {
    let cancel = AtomicBool::new(false);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ended = SetOnDrop(&ended);
        let watch = || {
            while !ended.load(Ordering::SeqCst) {
                let asked = wait(&mut [PollFd::new(client, PollFlags::IN)], Some(TICK));
                if asked.is_ok_and(|asked| !asked) && !must_end() {
                    continue;
                }
                cancel.store(true, Ordering::SeqCst);
                return;
            }
        };
        thread::Builder::new().spawn_scoped(scope, watch)?;
        let last_report = Cell::new(None::<Instant>);
        let progress = |done, all| {
            let due = last_report.get().is_none_or(|at| at.elapsed() >= REPORT);
            // A stopped borrower must not hold up the volume. If it is gone, the other thread notices.
            if due && wait(&mut [PollFd::new(client, PollFlags::OUT)], Some(Duration::ZERO)).unwrap_or(false) {
                let _ = send(client, &Outcome::Progress(done, all));
                last_report.set(Some(Instant::now()));
            }
        };
        work(&progress, &cancel)
    })
}

/// Sets a flag on drop, also after a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Receives a message, within a time limit: neither side can hold up the other.
fn heard<T: DeserializeOwned>(socket: &UnixStream, limit: Duration) -> io::Result<T> {
    receive_at_most(Exchange::new(socket.as_fd(), Deadline::within(limit, None)), LONGEST)
}

fn is(file: &FileStore, number: (u64, u64)) -> bool {
    file.number().is_ok_and(|of_it| of_it == number)
}

/// Borrows the file at `path` from the process of this user that mounts or serves the volume in it; `None` if no such process lends
/// it. Waits a little for another borrower.
///
/// # Errors
/// `InUse` if another process has borrowed it; `Io`.
pub fn borrow(path: &Path) -> Result<Option<Loan>> {
    let metadata = fs::metadata(path)?;
    let request = Request { version: VERSION, file: (metadata.dev(), metadata.ino()), remote: None };
    let attempt = || {
        for session in alive() {
            // A server that lends nothing has no such socket, or does not answer.
            let Ok((socket, answer)) = ask(&session.folder, &request) else { continue };
            if let Some(answer) = lent(answer)? {
                return Ok(Some((socket, answer)));
            }
        }
        Ok(None)
    };
    let Some((socket, answer)) = patiently(attempt)? else { return Ok(None) };
    let (file, behind, isolated) = match answer {
        Answer::Lent { behind: true, isolated } => {
            take(&socket).map(|[file, behind]| (file, Some(behind), isolated))?
        }
        Answer::Lent { behind: false, isolated } => take(&socket).map(|[file]| (file, None, isolated))?,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    };
    Ok(Some(Loan {
        file: file.into(),
        behind: behind.map(File::from),
        lender: Box::new(Borrowed::new(socket, isolated)),
    }))
}

/// Borrows the remote store whose identity has this digest ([`SessionRecord::remote`](super::SessionRecord)) from the process of this user that mounts or
/// serves the volume in it; `None` if there is no such process, or it only reads. Waits a little for another borrower.
///
/// # Errors
/// `InUse` if another process has borrowed it, or if the process does not lend it; `Io`.
pub fn borrow_remote(identity: &str, access: Access) -> Result<Option<Arc<dyn Store>>> {
    let writable = access == Access::ReadWrite;
    let request = Request { version: VERSION, file: (0, 0), remote: Some(writable) };
    let attempt = || {
        let Some(session) = alive().find(|session| session.record.remote.as_deref() == Some(identity)) else {
            return Ok(None);
        };
        let pid = session.record.server.pid;
        // Nothing else would notice that somebody writes beside it.
        let unanswered = |e| in_use(&format!("process {pid} of claviger, which does not lend it: {e}"));
        let (socket, answer) = match ask(&session.folder, &request) {
            Err(_) if !writable => return Ok(None),
            asked => asked.map_err(|e| unanswered(e).hint("Unmount it first. Nothing was changed."))?,
        };
        Ok(lent(answer)?.map(|answer| (socket, answer)))
    };
    let Some((socket, answer)) = patiently(attempt)? else { return Ok(None) };
    let Answer::LentRemote(LentRemote { len, sector_size, isolated }) = answer else {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    };
    Ok(Some(Arc::new(BorrowedRemote {
        lender: Borrowed::new(socket, isolated),
        len: len.into(),
        sector_size,
        writable,
    })))
}

/// Tries again for a while if another command has borrowed the store.
fn patiently<T>(attempt: impl Fn() -> Result<Option<T>>) -> Result<Option<T>> {
    let deadline = Deadline::within(PATIENCE, None);
    loop {
        match attempt() {
            Err(e) if is_busy(&e) && deadline.sleep(TICK).is_ok() => {}
            borrowed => return borrowed,
        }
    }
}

/// The sessions of this user whose servers run.
fn alive() -> impl Iterator<Item = Session> {
    let sessions = Runtime::of_this_user().and_then(|runtime| runtime.sessions());
    sessions.unwrap_or_default().into_iter().filter(Session::alive)
}

/// The answer of a process that lends the store; `None` if it has another one.
fn lent(answer: Answer) -> Result<Option<Answer>> {
    match answer {
        Answer::Lent { .. } | Answer::LentRemote(_) => Ok(Some(answer)),
        Answer::NotHere => Ok(None),
        Answer::Busy => Err(in_use(BUSY).hint("Wait until it is done.")),
        Answer::Version(_) => {
            let holder = "another version of claviger, which cannot lend it to this one";
            Err(in_use(holder).hint("Use that version, or unmount the volume first."))
        }
        Answer::Failed(why) => Err(io::Error::other(why).into()),
    }
}

/// The holder of a file that another command has borrowed.
const BUSY: &str = "another claviger command that works on its header";

/// Whether the file is in use by another borrower, and only for a while.
pub fn is_busy(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::InUse { holder } if holder.as_deref() == Some(BUSY))
}

fn in_use(holder: &str) -> Error {
    ErrorKind::InUse { holder: Some(holder.to_owned()) }.into()
}

fn ask(folder: &Path, request: &Request) -> io::Result<(UnixStream, Answer)> {
    let (_held, path) = short_name(folder, SOCKET)?;
    let socket = UnixStream::from(Deadline::within(PATIENCE, None).connect_unix(path.as_ref())?);
    socket.set_read_timeout(Some(PATIENCE))?;
    send(&socket, request)?;
    let answer = heard(&socket, PATIENCE)?;
    Ok((socket, answer))
}

/// A loan. Ends on drop, and waits until the lender knows: the next loan may begin at once.
struct Borrowed {
    socket: UnixStream,
    /// Whether the volume's keys are in a key process.
    isolated: bool,
    /// Locked while a wish waits for its outcome.
    turn: Mutex<()>,
}

impl Borrowed {
    fn new(socket: UnixStream, isolated: bool) -> Self {
        Self { socket, isolated, turn: Mutex::default() }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a wish, and what comes after it.
    fn wish(&self, wish: impl FnOnce(HandedOver) -> Wish, with: &Handover<'_>) -> io::Result<()> {
        let mut socket = &self.socket;
        let keys = with.keys.iter().map(|key| key.len()).collect();
        send(socket, &wish(HandedOver { keys, header: with.header.is_some() }))?;
        with.keys.iter().try_for_each(|key| socket.write_all(key))?;
        with.header.map_or(Ok(()), |header| give(socket, [header.as_fd()]))
    }

    /// Hears the only outcome of a wish, and returns why it is refused, if it is.
    fn refusal(&self) -> io::Result<Option<String>> {
        match heard(&self.socket, WORK)? {
            Outcome::Done => Ok(None),
            Outcome::Refused(why) | Outcome::Failed { why, .. } => Ok(Some(why)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Lender for Borrowed {
    fn grow(&self, growth: &Growth) -> io::Result<()> {
        let _turn = self.turn();
        send(&self.socket, &Wish::Grow(*growth))?;
        match self.refusal()? {
            Some(why) => Err(io::Error::new(io::ErrorKind::Unsupported, why)),
            None => Ok(()),
        }
    }

    fn may_convert(&self, request: &InUseConversion, with: &Handover<'_>) -> Result<()> {
        if self.isolated {
            return Err(otherwise(true));
        }
        let _turn = self.turn();
        self.wish(|handed_over| Wish::MayConvert(*request, handed_over), with)?;
        match heard(&self.socket, WORK)? {
            Outcome::Done => Ok(()),
            Outcome::Refused(why) | Outcome::Failed { why, .. } => {
                Err(refused(&why).hint("Nothing was changed. Unmount it first."))
            }
            Outcome::Keys { isolated } => Err(otherwise(isolated)),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    fn convert(
        &self,
        request: &InUseConversion,
        with: &Handover<'_>,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()> {
        if self.isolated {
            return Err(otherwise(true));
        }
        let _turn = self.turn();
        self.wish(|handed_over| Wish::Convert(*request, handed_over), with).map_err(|_| ended())?;
        match self.conversion(true, progress, cancel, &mut |_| Err(ended()))? {
            None => Ok(()),
            Some(_) => Err(ended()),
        }
    }

    fn convert_with_key_process(
        &self,
        header: Option<&FileStore>,
        start: &mut dyn FnMut([OwnedFd; 2]) -> Result<()>,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<ConvertedInUse> {
        let _turn = self.turn();
        self.wish(Wish::ConvertWithKeyProcess, &Handover { keys: &[], header }).map_err(|_| ended())?;
        self.conversion(false, progress, cancel, start)?.ok_or_else(ended)
    }
}

impl Borrowed {
    /// Waits for the end of a conversion, and returns what it has done if a key process was asked for. `begun` says whether the header says so already.
    fn conversion(
        &self,
        mut begun: bool,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
        start: &mut dyn FnMut([OwnedFd; 2]) -> Result<()>,
    ) -> Result<Option<ConvertedInUse>> {
        let socket = &self.socket;
        let mut asked = false;
        loop {
            if cancel.load(Ordering::Relaxed) && !std::mem::replace(&mut asked, true) {
                send(socket, &Wish::Pause).map_err(|_| ended())?;
            }
            if !wait(&mut [PollFd::new(socket, PollFlags::IN)], Some(TICK))? {
                continue;
            }
            match heard(socket, WORK).map_err(|_| ended())? {
                Outcome::Progress(done, all) => {
                    begun = true;
                    progress(done, all);
                }
                Outcome::Done => return Ok(None),
                Outcome::Converted(done) => return Ok(Some(done)),
                Outcome::Channel => start(take(socket).map_err(|_| ended())?)?,
                Outcome::Keys { isolated } => return Err(otherwise(isolated)),
                Outcome::Paused if asked => {
                    return Err(Error::from(ErrorKind::Cancelled).advise(Advice::ResumeReencryption));
                }
                Outcome::Paused | Outcome::Measured(_) => return Err(ended()),
                Outcome::Locked => {
                    let why = "it is locked: its keys are forgotten";
                    return Err(refused(why).hint("Unlock it first: `claviger unlock VOLUME`."));
                }
                Outcome::WasLocked => {
                    return Err(Error::from(io::Error::other("the volume was locked")).hint(TO_UNLOCK));
                }
                Outcome::Refused(why) if !begun => {
                    return Err(refused(&why).hint("No data were changed. Unmount it first."));
                }
                Outcome::Failed { why, .. } if !begun => {
                    return Err(Error::from(io::Error::other(why)).hint("No data were changed."));
                }
                Outcome::Refused(why) => {
                    return Err(refused(&why).hint("Unmount it first.").advise(Advice::ResumeReencryption));
                }
                Outcome::Failed { why, closed } => {
                    let hint = match closed {
                        true => "Requests to the part that was being rewritten fail now. Unmount the volume first.",
                        false => "All data are still there.",
                    };
                    return Err(Error::from(io::Error::other(why)).hint(hint).advise(Advice::ResumeReencryption));
                }
            }
        }
    }
}

/// What to try after a lock that has interrupted the work.
const TO_UNLOCK: &str =
    "Unlock it with `claviger unlock VOLUME`, then run `claviger reencrypt --resume --isolate-keys VOLUME`.";

/// The error for a command whose keys are not where those of the volume are.
fn otherwise(isolated: bool) -> Error {
    match isolated {
        true => refused("its keys are in a key process").hint("Nothing was changed. Add --isolate-keys."),
        false => {
            refused("its keys are in the process that serves it").hint("Nothing was changed. Omit --isolate-keys.")
        }
    }
}

fn refused(why: &str) -> Error {
    Error::unsupported(format!("converting it while it is in use: {why}"))
}

fn ended() -> Error {
    let error = Error::from(io::Error::other("the process that uses the volume has ended"));
    error.hint("Nothing is lost.").advise(Advice::ResumeReencryption)
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        let _ = (&self.socket).read(&mut [0]);
    }
}

/// A remote store, read and written through the process that uses it.
struct BorrowedRemote {
    lender: Borrowed,
    len: AtomicU64,
    sector_size: u64,
    writable: bool,
}

impl BorrowedRemote {
    /// Sends a request with its data, and receives the answer's data.
    fn request(&self, wish: &Wish, data: &[u8], out: &mut [u8]) -> io::Result<Outcome> {
        let _turn = self.lender.turn();
        self.exchange(wish, data, out).map_err(|e| match e.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => {
                let why = "the process that mounts or serves it has ended; check the header with `claviger verify`";
                io::Error::new(e.kind(), why)
            }
            _ => e,
        })
    }

    fn exchange(&self, wish: &Wish, data: &[u8], out: &mut [u8]) -> io::Result<Outcome> {
        let mut socket = &self.lender.socket;
        send(socket, wish)?;
        socket.write_all(data)?;
        match heard(socket, REMOTE_WORK)? {
            Outcome::Failed { why, .. } => Err(io::Error::other(why)),
            outcome => socket.read_exact(out).map(|()| outcome),
        }
    }
}

impl Store for BorrowedRemote {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.len())?;
        out.chunks_mut(PIECE).enumerate().try_for_each(|(n, out)| {
            let wish = Wish::Read { offset: offset + (n * PIECE) as u64, len: out.len() };
            self.request(&wish, &[], out).map(drop)
        })
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "opened read-only"));
        }
        check_range(offset, data.len(), self.len())?;
        data.chunks(PIECE).enumerate().try_for_each(|(n, data)| {
            let wish = Wish::Write { offset: offset + (n * PIECE) as u64, len: data.len() };
            self.request(&wish, data, &mut []).map(drop)
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.request(&Wish::Flush, &[], &mut []).map(drop)
    }

    fn sector_size(&self) -> u64 {
        self.sector_size
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn lender(&self) -> Option<&dyn Lender> {
        Some(&self.lender)
    }

    fn measure(&self) -> io::Result<()> {
        match self.request(&Wish::Measure, &[], &mut [])? {
            Outcome::Measured(len) => self.len.fetch_max(len, Ordering::AcqRel),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(())
    }
}

/// Lends a file, and the same bytes as a remote store, to a command that sends these bytes and then hangs up: [`crate::fuzzing`].
pub(crate) fn fuzz(store: &dyn Store, file: &FileStore, bytes: &[u8]) -> io::Result<u64> {
    let (stores, folder) = (Vec::new(), PathBuf::new());
    let lending = Lending { stores, key_process: None, folder, after_growth: |_, _| Ok(()) };
    let stop = AtomicBool::new(false);
    let lend = |lend: &dyn Fn(&UnixStream) -> io::Result<()>| -> io::Result<u64> {
        let (client, mut borrower) = UnixStream::pair()?;
        borrower.write_all(&bytes[..bytes.len().min(64 << 10)])?;
        borrower.shutdown(Shutdown::Write)?;
        if let Ok(request) = receive_at_most(&client, LONGEST) {
            lending.answer(&client, &request, &stop)?;
        }
        let _ = lend(&client);
        drop(client);
        let mut received = Vec::new();
        // If some bytes were never read, an error follows the answers.
        let _ = borrower.read_to_end(&mut received);
        Ok(received.len() as u64)
    };
    let as_file = lend(&|client| lending.lend(client, store, file, &stop))?;
    Ok(as_file + lend(&|client| lending.lend_remote(client, store, &stop))?)
}
