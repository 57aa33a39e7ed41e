//! Locking: the key process ends for a while, and its keys with it, while the volume stays in place. [`lock`] and
//! [`Reopening`] request this from a [`Lockable`] through a socket in the session's folder.
//!
//! The user who unlocks starts the new key process on their own terminal, and gets the ends of its channel. So the
//! serving process starts no program and cannot choose what the key process asks.
//!
//! # Reencryption while the volume is in use
//!
//! The command that reencrypts starts a key process with the ends of a channel in the same way. That process opens the header with the
//! user's password, and proves that it is the one of the volume in use: the layout and what a sector of zeros decrypts to are the same.
//! Only then does it make the new volume key and write the beginning to the header, through the serving process. Then it has both keys,
//! and takes the place of the volume's key process (`Lockable::exchange`). So the new key never leaves the process that made it: the
//! serving process rewrites the zones with handles, and the command only shows the progress.
//!
//! * A zone is read, and encrypted with the new key in memory, before the header says that it is being rewritten. So a key process that
//!   ends stops the work between two zones. The server then ends, too, as always without its key process.
//! * [`Lockable::lock`] first lets the present zone become finished. The command ends with an error that says so. The header then
//!   names no interrupted zone: `unlock` opens both parts of the volume, and the reencryption can be resumed.
//! * If the command ends, the work pauses after the present zone. The key process is the server's by now, and goes on with both keys. If
//!   the command or its key process ends before the exchange, the volume keeps the key process that it has. A header that says that the
//!   reencryption has begun means the same data.
//! * If the server ends, that is a crash like any other.
//!
//! The handles of a volume that was converted count bytes of the plaintext, for each of the two keys. A key process that `unlock`
//! starts later counts the segments of the layout: `Numbering` translates.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use claviger_engine::key_process::volume::KeylessLayout;
use claviger_engine::key_process::{KeyProcess, PartAccess, StoredAccess};
use claviger_engine::opening::Stores;
use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::client::KeyClient;
use super::opening::{IoSide, Terms};
use crate::messages::{give, receive, send, take};
use crate::sessions::{KEYS_SOCKET, SessionSocket, short_name};
use crate::wait::wait;

/// Time limit for a client to send its request and to receive the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval at which a waiting thread checks whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// What happens to requests while there are no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Meanwhile {
    /// Requests wait.
    Wait,
    /// Requests fail.
    Fail,
}

/// A layout's key process that can be locked.
pub struct Lockable {
    state: RwLock<State>,
    /// What a key process must give to unlock the volume.
    identity: Mutex<(KeylessLayout, Proof)>,
    /// Whether the handles of the layout count bytes of the plaintext.
    converted: AtomicBool,
    /// Held while the volume is converted.
    converting: Mutex<()>,
    /// How many threads wait for a pause of the conversion, to lock the volume.
    pausing: AtomicU64,
    /// Called once if the key process ends unexpectedly.
    lost: fn(),
    /// How often it was locked: an unlocking that began before is then void.
    locked: AtomicU64,
    /// Held by threads that wait for a change of `state`.
    waiting: Mutex<()>,
    changed: Condvar,
    /// Whether the session ends and nobody will unlock it any more.
    ending: Box<dyn Fn() -> bool + Send + Sync>,
}

enum State {
    Open(Arc<KeyClient>, Numbering),
    Locked(Meanwhile),
}

/// How the key process counts what the handles ask for.
enum Numbering {
    /// In the same way.
    Same,
    /// By the segments of this layout, while handles count bytes of the plaintext.
    BySegments(KeylessLayout),
}

impl Numbering {
    /// The key process's segment, and the offset in it.
    fn translated(&self, segment: u32, into: u64) -> io::Result<(u32, u64)> {
        match self {
            Self::Same => Ok((segment, into)),
            Self::BySegments(outline) => outline.segment_of(into).ok_or_else(|| io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Lockable {
    /// Creates it open with the key process of `io_side`, which gave this layout. Calls `lost` once if a key process ends unexpectedly.
    /// Once `ending` returns true, requests fail instead of waiting for an unlocking that nobody will see.
    ///
    /// # Errors
    /// Those of [`IoSide::opened`] and of requests to the key process.
    pub fn new(
        io_side: IoSide,
        outline: KeylessLayout,
        lost: fn(),
        ending: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let client = Arc::new(io_side.opened(lost)?);
        let proof = Proof::of(&outline, &client)?;
        Ok(Self {
            state: RwLock::new(State::Open(client, Numbering::Same)),
            identity: Mutex::new((outline, proof)),
            converted: AtomicBool::new(false),
            converting: Mutex::new(()),
            pausing: AtomicU64::new(0),
            lost,
            locked: AtomicU64::new(0),
            waiting: Mutex::new(()),
            changed: Condvar::new(),
            ending: Box::new(ending),
        })
    }

    /// Whether the keys are forgotten at present.
    pub fn locked(&self) -> bool {
        matches!(*self.state(), State::Locked(_))
    }

    /// Forgets the keys once the requests in progress are done. Returns when the process that held them has ended. If
    /// already locked, this only sets what happens to requests. A conversion pauses before: see `Lockable::converting`. Returns false if
    /// there is nothing to lock: a decryption in use has ended.
    pub fn lock(&self, meanwhile: Meanwhile) -> bool {
        self.pausing.fetch_add(1, Ordering::SeqCst);
        let _paused = self.converting.lock().unwrap_or_else(PoisonError::into_inner);
        self.pausing.fetch_sub(1, Ordering::SeqCst);
        if self.converted.load(Ordering::SeqCst) && self.identity().0.is_plain() {
            return false;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        self.locked.fetch_add(1, Ordering::SeqCst);
        let before = std::mem::replace(&mut *state, State::Locked(meanwhile));
        drop(state);
        self.wake();
        if let State::Open(client, _) = before {
            client.end();
        }
        true
    }

    /// Keeps the volume from being locked while it is converted; `None` if it is locked. The holder must pause, and drop the guard,
    /// once [`Lockable::must_pause`] returns true.
    pub(crate) fn converting(&self) -> Option<MutexGuard<'_, ()>> {
        let converting = self.converting.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.locked()).then_some(converting)
    }

    /// Whether somebody waits to lock the volume.
    pub(crate) fn must_pause(&self) -> bool {
        self.pausing.load(Ordering::SeqCst) > 0
    }

    /// What to call once if a key process ends unexpectedly.
    pub(crate) fn lost(&self) -> fn() {
        self.lost
    }

    /// From now on, this key process is asked, and handles count bytes of the plaintext. The one before ends. No request may be in
    /// progress, and the volume must not be locked: see `Lockable::converting`.
    pub(crate) fn exchange(&self, client: Arc<KeyClient>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *state, State::Open(client, Numbering::Same));
        self.converted.store(true, Ordering::SeqCst);
        drop(state);
        if let State::Open(before, _) = before {
            before.end();
        }
    }

    /// From now on, a key process that unlocks the volume must give this.
    pub(crate) fn set_identity(&self, outline: KeylessLayout, proof: Vec<Vec<u8>>) {
        *self.identity() = (outline, Proof(proof));
    }

    fn identity(&self) -> MutexGuard<'_, (KeylessLayout, Proof)> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Continues with this key process, unless the volume was locked again since the count was `times`.
    fn unlock(&self, client: Arc<KeyClient>, outline: KeylessLayout, times: u64) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if self.times() != times {
            drop(state);
            client.end();
            return false;
        }
        let numbering = match self.converted.load(Ordering::SeqCst) {
            true => Numbering::BySegments(outline),
            false => Numbering::Same,
        };
        *state = State::Open(client, numbering);
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

    /// Calls `work` with the key process, as soon as there is one, and with what it calls this place.
    fn with<T>(
        &self,
        (segment, into): (u32, u64),
        mut work: impl FnMut(&KeyClient, u32, u64) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match &*self.state() {
                State::Open(client, numbering) => {
                    let (segment, into) = numbering.translated(segment, into)?;
                    return work(client, segment, into);
                }
                State::Locked(Meanwhile::Wait) if !(self.ending)() => {}
                State::Locked(_) => return Err(io::Error::other("the volume is locked: its keys are forgotten")),
            }
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // A change just before this wait is noticed after the timeout.
            let _ = self.changed.wait_timeout(waiting, TICK);
        }
    }
}

impl KeyProcess for Lockable {
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()> {
        self.with((segment, into), |client, segment, into| client.decrypt(segment, into, out, read))
    }

    fn encrypt(&self, segment: u32, into: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()> {
        self.with((segment, into), |client, segment, into| client.encrypt(segment, into, data, write))
    }

    fn decrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        self.with((segment, into), |client, segment, into| client.decrypt_tagged(segment, into, out, tags, read))
    }

    fn encrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut StoredAccess<'_>,
    ) -> io::Result<()> {
        self.with((segment, into), |client, segment, into| client.encrypt_tagged(segment, into, data, tags, write))
    }
}

/// The result of decrypting the same bytes in each segment, which identifies the keys. Sectors with tags are left out,
/// as the format itself detects a wrong key there.
#[derive(PartialEq, Eq)]
struct Proof(Vec<Vec<u8>>);

impl Proof {
    /// The proof for the keys of this key process.
    ///
    /// # Errors
    /// Those of requests to the key process.
    fn of(outline: &KeylessLayout, client: &KeyClient) -> io::Result<Self> {
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

/// A request to the serving process.
#[derive(Serialize, Deserialize)]
enum LockRequest {
    Lock(Meanwhile),
    /// Requests that wait for a locked volume must fail.
    GiveUp,
    /// The ends of a channel for a new key process.
    Unlock,
}

/// An answer of the serving process. After `Channel` come the key process's end of the socket and the memory.
#[derive(Serialize, Deserialize)]
enum LockAnswer {
    /// With warnings.
    Done(Vec<String>),
    Channel,
    /// The key process ended before the volume was open.
    Ended,
    /// The keys differ.
    Wrong,
    /// Nothing is encrypted any more: there is nothing to lock.
    Plain,
    Refused(String),
    Failed(String),
}

impl LockAnswer {
    fn error(self) -> io::Error {
        match self {
            Self::Wrong => io::Error::new(io::ErrorKind::PermissionDenied, "these are not its previous keys"),
            Self::Plain => io::Error::new(io::ErrorKind::Unsupported, "it is no longer encrypted"),
            Self::Refused(why) => io::Error::new(io::ErrorKind::InvalidInput, why),
            Self::Failed(why) => io::Error::other(why),
            Self::Done(_) | Self::Channel | Self::Ended => io::ErrorKind::InvalidData.into(),
        }
    }
}

/// What locking and unlocking need to know of an open volume.
pub struct Locks<T> {
    /// Its key process.
    pub key_process: Arc<Lockable>,
    /// The stores that the volume was opened from.
    pub stores: Stores,
    /// Extracts the layout and the warnings that a new key process sends.
    pub of: fn(&T) -> (&KeylessLayout, &[String]),
}

impl<T: DeserializeOwned + 'static> Locks<T> {
    /// Answers [`lock`] and [`Reopening`] in the session's folder, for the lifetime of the value returned.
    ///
    /// # Errors
    /// `Io`.
    pub fn listen(self, folder: &Path) -> io::Result<SessionSocket> {
        let unlocking = Mutex::new(());
        SessionSocket::new(folder, KEYS_SOCKET, move |socket, stop| self.answer(&socket, &unlocking, stop))
    }

    /// Answers one client. A client that does not take the result has gone.
    fn answer(&self, socket: &UnixStream, unlocking: &Mutex<()>, stop: &AtomicBool) {
        // A silent client must not delay the end.
        let limits = socket.set_read_timeout(Some(PATIENCE)).and_then(|()| socket.set_write_timeout(Some(PATIENCE)));
        let Ok(request) = limits.and_then(|()| receive(socket)) else { return };
        let failed = |e: io::Error| LockAnswer::Failed(e.to_string());
        let answer = match request {
            LockRequest::Lock(meanwhile) => match self.key_process.lock(meanwhile) {
                true => {
                    // An unlocking in progress notices this and ends the new key process.
                    drop(unlocking.lock());
                    self.stores.data.flush().map_or_else(failed, |()| LockAnswer::Done(Vec::new()))
                }
                false => LockAnswer::Plain,
            },
            LockRequest::GiveUp => {
                self.key_process.give_up();
                LockAnswer::Done(Vec::new())
            }
            LockRequest::Unlock => match unlocking.try_lock() {
                Ok(_unlocking) => self.reopen(socket, stop).unwrap_or_else(failed),
                Err(_) => LockAnswer::Refused("another process is unlocking it".to_owned()),
            },
        };
        let _ = send(socket, &answer);
    }

    fn reopen(&self, socket: &UnixStream, stop: &AtomicBool) -> io::Result<LockAnswer> {
        let times = self.key_process.times();
        if !self.key_process.locked() {
            return Ok(LockAnswer::Refused("it is not locked".to_owned()));
        }
        let (io_side, key_end) = IoSide::new()?;
        send(socket, &LockAnswer::Channel)?;
        give(socket, [key_end.as_fd(), io_side.memory()])?;
        drop(key_end);
        // A command that was killed may have grown the volume.
        if self.stores.data.file().is_some() {
            self.stores.data.measure()?;
        }
        let again = || self.key_process.times() != times;
        let gone = || stop.load(Ordering::SeqCst) || again() || has_gone(socket);
        let opened = match io_side.serve_until_open::<T>(&self.stores, &Terms::reading(&gone)) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(LockAnswer::Ended),
            Err(e) => {
                io_side.end();
                return if again() { Ok(locked_again()) } else { Err(e) };
            }
        };
        let (outline, warnings) = (self.of)(&opened);
        if !self.key_process.identity().0.may_have_become(outline) {
            io_side.end();
            return Ok(LockAnswer::Refused("this opens another volume, not the locked one".to_owned()));
        }
        let client = Arc::new(io_side.opened(self.key_process.lost)?);
        // Not every format detects a wrong password. Pending writes would be encrypted with the wrong key.
        if Proof::of(outline, &client)? != self.key_process.identity().1 {
            client.end();
            return Ok(LockAnswer::Wrong);
        }
        let unlocked = self.key_process.unlock(client, outline.clone(), times);
        Ok(if unlocked { LockAnswer::Done(warnings.to_vec()) } else { locked_again() })
    }
}

fn locked_again() -> LockAnswer {
    LockAnswer::Refused("it was locked again in the meantime".to_owned())
}

/// Checks that the serving process answers, with the same errors as the other requests.
///
/// # Errors
/// Those of connecting: see [`is_missing`].
pub fn look(folder: &Path) -> io::Result<()> {
    connect(folder).map(drop)
}

/// Whether such an error means that a decryption in use has ended: there is nothing to lock.
pub fn is_plain(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

/// Whether such an error means that nobody listens: the keys are in the serving process, or that process was killed.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Locks a session's volume: its keys are forgotten. Returns when the process that held them has ended.
///
/// # Errors
/// Those of [`is_missing`] and [`is_plain`]; others if there is no answer or if written data cannot be made durable. The volume is locked
/// even then.
pub fn lock(folder: &Path, meanwhile: Meanwhile) -> io::Result<()> {
    ask(folder, &LockRequest::Lock(meanwhile))
}

/// Fails requests that wait for a locked volume, now and later. Does nothing if it is open.
///
/// # Errors
/// Those of [`is_missing`]; others if there is no answer.
pub fn give_up(folder: &Path) -> io::Result<()> {
    ask(folder, &LockRequest::GiveUp)
}

fn ask(folder: &Path, request: &LockRequest) -> io::Result<()> {
    let socket = connect(folder)?;
    send(&socket, request)?;
    match receive(&socket)? {
        LockAnswer::Done(_) => Ok(()),
        other => Err(other.error()),
    }
}

/// An unlocking in progress.
pub struct Reopening(UnixStream);

impl Reopening {
    /// Begins to unlock. Also returns the socket and the memory for the key process.
    ///
    /// # Errors
    /// Those of [`is_missing`]; `InvalidInput` if the volume is not locked or is already being unlocked.
    pub fn begin(folder: &Path) -> io::Result<(Self, [OwnedFd; 2])> {
        let socket = connect(folder)?;
        send(&socket, &LockRequest::Unlock)?;
        match receive(&socket)? {
            LockAnswer::Channel => {
                let ends = take(&socket)?;
                Ok((Self(socket), ends))
            }
            other => Err(other.error()),
        }
    }

    /// Waits until the volume is open again, and returns warnings. None if the key process ended before: it has reported why.
    ///
    /// # Errors
    /// `InvalidInput` if the key process opened something else; `PermissionDenied` if the keys differ; others if the
    /// serving process has ended.
    pub fn finish(self) -> io::Result<Option<Vec<String>>> {
        match receive(&self.0)? {
            LockAnswer::Done(warnings) => Ok(Some(warnings)),
            LockAnswer::Ended => Ok(None),
            other => Err(other.error()),
        }
    }
}

fn connect(folder: &Path) -> io::Result<UnixStream> {
    let (_held, path) = short_name(folder, KEYS_SOCKET)?;
    UnixStream::connect(path)
}

/// Whether the other side has closed a socket on which it sends nothing more.
fn has_gone(socket: &UnixStream) -> bool {
    wait(&mut [PollFd::new(socket, PollFlags::IN)], Some(Duration::ZERO)).unwrap_or(true)
}
