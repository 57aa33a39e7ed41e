//! A key process that is let go for a while, and its keys with it, while the volume stays where it is: [`Lockable`], and the socket in the
//! session's folder by which [`lock`] and [`Reopening`] ask for that.
//!
//! Whoever unlocks starts the new key process, on a terminal of its own, and gets the ends of the channel that it needs. So the process
//! that serves starts no program, and what the key process is asked with is never this process's to say.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::Duration;

use claviger_engine::key_process::volume::{KeyProcess, KeylessLayout, PartAccess, StoredAccess};
use claviger_engine::opening::Stores;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown, recvmsg, sendmsg, shutdown,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::client::KeyClient;
use super::opening::{IoSide, Terms, receive, send};
use crate::sessions::short_name;
use crate::wait::wait;

/// The socket's name in the session's folder.
pub(crate) const SOCKET: &str = "keys";

/// How long somebody who asks may take to say what, and to hear the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long somebody waits before looking whether the wait is over.
const TICK: Duration = Duration::from_millis(100);

/// What becomes of requests while there are no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Meanwhile {
    /// They wait.
    Wait,
    /// They fail.
    Fail,
}

/// The key process of a layout that can be locked.
pub struct Lockable {
    state: RwLock<State>,
    /// How often it was asked for: who began to unlock before does not any more.
    locked: AtomicU64,
    /// What waits for a change of `state`.
    waiting: Mutex<()>,
    changed: Condvar,
    /// Whether nobody will unlock any more.
    ending: Box<dyn Fn() -> bool + Send + Sync>,
}

enum State {
    Open(KeyClient),
    Locked(Meanwhile),
}

impl Lockable {
    /// Open. As long as `ending` says so, requests fail instead of waiting for an unlocking that nobody will see.
    pub fn new(client: KeyClient, ending: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let (state, ending) = (RwLock::new(State::Open(client)), Box::new(ending));
        Self { state, locked: AtomicU64::new(0), waiting: Mutex::new(()), changed: Condvar::new(), ending }
    }

    /// Whether the keys are gone for now.
    pub fn locked(&self) -> bool {
        matches!(*self.state(), State::Locked(_))
    }

    /// Forgets the keys, once the requests that are being worked on are done: returns when the process that held them has ended. Where
    /// they were forgotten before, this only says what becomes of requests.
    pub fn lock(&self, meanwhile: Meanwhile) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        self.locked.fetch_add(1, Ordering::SeqCst);
        let before = std::mem::replace(&mut *state, State::Locked(meanwhile));
        drop(state);
        self.wake();
        if let State::Open(client) = before {
            client.end();
        }
    }

    /// If the volume is locked, waiting requests now fail.
    fn give_up(&self) {
        if let State::Locked(meanwhile) = &mut *self.state.write().unwrap_or_else(PoisonError::into_inner) {
            *meanwhile = Meanwhile::Fail;
        }
        self.wake();
    }

    /// How often it was locked.
    fn times(&self) -> u64 {
        self.locked.load(Ordering::SeqCst)
    }

    /// Goes on with this key process, unless it was locked again since it had been `times` times.
    fn unlock(&self, client: KeyClient, times: u64) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if self.times() != times {
            drop(state);
            client.end();
            return false;
        }
        *state = State::Open(client);
        drop(state);
        self.wake();
        true
    }

    fn wake(&self) {
        let _waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the key process, when there is one.
    fn with<T>(&self, mut work: impl FnMut(&KeyClient) -> io::Result<T>) -> io::Result<T> {
        loop {
            match &*self.state() {
                State::Open(client) => return work(client),
                State::Locked(Meanwhile::Wait) if !(self.ending)() => {}
                State::Locked(_) => return Err(io::Error::other("the volume is locked: its keys are forgotten")),
            }
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // A change that came just before is noticed after the time.
            let _ = self.changed.wait_timeout(waiting, TICK);
        }
    }
}

impl KeyProcess for Lockable {
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()> {
        self.with(|client| client.decrypt(segment, into, out, read))
    }

    fn encrypt(&self, segment: u32, into: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()> {
        self.with(|client| client.encrypt(segment, into, data, write))
    }

    fn decrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        self.with(|client| client.decrypt_tagged(segment, into, out, tags, read))
    }

    fn encrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut StoredAccess<'_>,
    ) -> io::Result<()> {
        self.with(|client| client.encrypt_tagged(segment, into, data, tags, write))
    }
}

/// What the keys make of the same bytes in each segment: no other keys do. Sectors with tags are left out, where a wrong key is told by
/// the format.
pub struct Proof(Vec<Vec<u8>>);

impl Proof {
    /// That of the keys which this key process has.
    ///
    /// # Errors
    /// Those of asking the key process.
    pub fn of(outline: &KeylessLayout, client: &KeyClient) -> io::Result<Self> {
        let decrypted = |(segment, sector)| {
            let mut out = vec![0; sector];
            let mut zeros = |_, stored: &mut [u8]| -> io::Result<()> {
                stored.fill(0);
                Ok(())
            };
            client.decrypt(segment, 0, &mut out, &mut zeros).map(|()| out)
        };
        outline.encrypted().map(decrypted).collect::<io::Result<_>>().map(Self)
    }
}

/// What is asked of the process that serves.
#[derive(Serialize, Deserialize)]
enum Wish {
    Lock(Meanwhile),
    /// Whoever waits for a locked volume is to fail.
    GiveUp,
    /// The ends of a channel for a new key process.
    Unlock,
}

/// What it says. Behind `Channel` come the key process's end of the socket and the memory.
#[derive(Serialize, Deserialize)]
enum Said {
    /// With warnings.
    Done(Vec<String>),
    Channel,
    /// The key process has ended before the volume was open.
    Ended,
    /// The keys are others.
    Wrong,
    Refused(String),
    Failed(String),
}

impl Said {
    fn error(self) -> io::Error {
        match self {
            Self::Wrong => io::Error::new(io::ErrorKind::PermissionDenied, "these are not its previous keys"),
            Self::Refused(why) => io::Error::new(io::ErrorKind::InvalidInput, why),
            Self::Failed(why) => io::Error::other(why),
            Self::Done(_) | Self::Channel | Self::Ended => io::ErrorKind::InvalidData.into(),
        }
    }
}

/// A volume that can be locked and unlocked, as it was opened first.
pub struct Locks<T> {
    /// Its key process.
    pub key_process: Arc<Lockable>,
    /// What it was opened from.
    pub stores: Stores,
    /// Its layout.
    pub outline: KeylessLayout,
    /// Of its keys.
    pub proof: Proof,
    /// What a new key process says of its layout, and its warnings.
    pub of: fn(&T) -> (&KeylessLayout, &[String]),
    /// Called once if a key process goes before it is let go.
    pub lost: fn(),
}

/// Answers [`lock`] and [`Reopening`] for its lifetime.
pub struct LockListener {
    listener: Arc<UnixListener>,
    ending: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<T: DeserializeOwned + 'static> Locks<T> {
    /// Listens in the session's folder.
    ///
    /// # Errors
    /// `Io`.
    pub fn listen(self, folder: &Path) -> io::Result<LockListener> {
        let (_held, path) = short_name(folder, SOCKET)?;
        let listener = Arc::new(UnixListener::bind(path)?);
        let ending = Arc::new(AtomicBool::new(false));
        let (accepting, stop) = (Arc::clone(&listener), Arc::clone(&ending));
        let answer = move || {
            let unlocking = Mutex::new(());
            // Ends when the listener is shut down.
            thread::scope(|scope| {
                while let Ok((socket, _)) = accepting.accept() {
                    let (locks, unlocking, stop) = (&self, &unlocking, &stop);
                    let answer = move || locks.answer(&socket, unlocking, stop);
                    let _ = thread::Builder::new().name("keys".into()).spawn_scoped(scope, answer);
                }
            });
        };
        let thread = thread::Builder::new().name("keys".into()).stack_size(64 << 10).spawn(answer)?;
        Ok(LockListener { listener, ending, thread: Some(thread) })
    }

    /// One who asks. If it cannot be told how it came out, it has gone.
    fn answer(&self, socket: &UnixStream, unlocking: &Mutex<()>, stop: &AtomicBool) {
        // Who says nothing holds up nobody's end.
        let limits = socket.set_read_timeout(Some(PATIENCE)).and_then(|()| socket.set_write_timeout(Some(PATIENCE)));
        let Ok(wish) = limits.and_then(|()| receive(socket)) else { return };
        let failed = |e: io::Error| Said::Failed(e.to_string());
        let said = match wish {
            Wish::Lock(meanwhile) => {
                self.key_process.lock(meanwhile);
                // Whoever was unlocking notices, and lets the new key process go.
                drop(unlocking.lock());
                self.stores.data.flush().map_or_else(failed, |()| Said::Done(Vec::new()))
            }
            Wish::GiveUp => {
                self.key_process.give_up();
                Said::Done(Vec::new())
            }
            Wish::Unlock => match unlocking.try_lock() {
                Ok(_alone) => self.reopen(socket, stop).unwrap_or_else(failed),
                Err(_) => Said::Refused("another process is unlocking it".to_owned()),
            },
        };
        let _ = send(socket, &said);
    }

    fn reopen(&self, socket: &UnixStream, stop: &AtomicBool) -> io::Result<Said> {
        let times = self.key_process.times();
        if !self.key_process.locked() {
            return Ok(Said::Refused("it is not locked".to_owned()));
        }
        let (io_side, key_end) = IoSide::new()?;
        give(socket, [key_end.as_fd(), io_side.memory()])?;
        drop(key_end);
        let again = || self.key_process.times() != times;
        let gone = || stop.load(Ordering::SeqCst) || again() || has_gone(socket);
        let kept = match io_side.serve_until_open::<T>(&self.stores, &Terms::reading(&gone)) {
            Ok(Some(kept)) => kept,
            Ok(None) => return Ok(Said::Ended),
            Err(e) => {
                io_side.end();
                return if again() { Ok(locked_again()) } else { Err(e) };
            }
        };
        let (outline, warnings) = (self.of)(&kept);
        if *outline != self.outline {
            io_side.end();
            return Ok(Said::Refused("this opens another volume than the locked one".to_owned()));
        }
        let client = io_side.opened(self.lost)?;
        // Not every format knows a wrong password. What waits to be written would be encrypted with its key.
        if Proof::of(outline, &client)?.0 != self.proof.0 {
            client.end();
            return Ok(Said::Wrong);
        }
        Ok(if self.key_process.unlock(client, times) { Said::Done(warnings.to_vec()) } else { locked_again() })
    }
}

fn locked_again() -> Said {
    Said::Refused("it was locked again meanwhile".to_owned())
}

impl Drop for LockListener {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Fails as the others do where they cannot be asked.
///
/// # Errors
/// Those of connecting: see [`is_missing`].
pub fn look(folder: &Path) -> io::Result<()> {
    connect(folder).map(drop)
}

/// Whether such an error says that nobody answers there: the keys are in the process that serves, or that was killed.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Has the keys of a session's volume forgotten. Returns when the process that held them has ended.
///
/// # Errors
/// Those of [`is_missing`]; others if it does not answer, or if what was written cannot be made durable: it is locked then.
pub fn lock(folder: &Path, meanwhile: Meanwhile) -> io::Result<()> {
    ask(folder, &Wish::Lock(meanwhile))
}

/// Has whoever waits for a locked volume fail, now and later. Does nothing where it is open.
///
/// # Errors
/// Those of [`is_missing`]; others if it does not answer.
pub fn give_up(folder: &Path) -> io::Result<()> {
    ask(folder, &Wish::GiveUp)
}

fn ask(folder: &Path, wish: &Wish) -> io::Result<()> {
    let socket = connect(folder)?;
    send(&socket, wish)?;
    match receive(&socket)? {
        Said::Done(_) => Ok(()),
        other => Err(other.error()),
    }
}

/// The unlocking of a session's volume, as long as it takes.
pub struct Reopening(UnixStream);

impl Reopening {
    /// Begins it. What comes with it are the socket and the memory for the key process.
    ///
    /// # Errors
    /// Those of [`is_missing`]; `InvalidInput` if it is not locked, or somebody else is unlocking it.
    pub fn begin(folder: &Path) -> io::Result<(Self, [OwnedFd; 2])> {
        let socket = connect(folder)?;
        send(&socket, &Wish::Unlock)?;
        match receive(&socket)? {
            Said::Channel => {
                let ends = take(&socket)?;
                Ok((Self(socket), ends))
            }
            other => Err(other.error()),
        }
    }

    /// Waits until the volume is open again, and returns warnings. Nothing if the key process has ended before: it has said why.
    ///
    /// # Errors
    /// `InvalidInput` if the key process opened something else, `PermissionDenied` if with other keys; others if the process that serves has
    /// gone.
    pub fn finish(self) -> io::Result<Option<Vec<String>>> {
        match receive(&self.0)? {
            Said::Done(warnings) => Ok(Some(warnings)),
            Said::Ended => Ok(None),
            other => Err(other.error()),
        }
    }
}

fn connect(folder: &Path) -> io::Result<UnixStream> {
    let (_held, path) = short_name(folder, SOCKET)?;
    UnixStream::connect(path)
}

/// Whether the other side of a socket, which says nothing more, has closed it.
fn has_gone(socket: &UnixStream) -> bool {
    wait(&mut [PollFd::new(socket, PollFlags::IN)], Some(Duration::ZERO)).unwrap_or(true)
}

/// Says that there is a channel, and sends the key process's ends of it.
fn give(socket: &UnixStream, ends: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    send(socket, &Said::Channel)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    with.push(SendAncillaryMessage::ScmRights(&ends));
    sendmsg(socket, &[IoSlice::new(&[1])], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The ends that come behind `Channel`.
fn take(socket: &UnixStream) -> io::Result<[OwnedFd; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let ends = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let ends: Vec<OwnedFd> = ends.flatten().collect();
    ends.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}
