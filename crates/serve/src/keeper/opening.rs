//! Until the volume is open: the keeper reads through the other process, which opens the files; both over a socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use claviger_engine::Store;
use claviger_engine::opening::Stores;
use claviger_engine::volume::kept::Keys;
use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::asking::Asking;
use super::keeping::Kept;
use super::shared_sys::{Shared, Slots};
use crate::spin::Awake;
use crate::wait::wait;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// No message is longer, in bytes. What is fixed of a layout may take some megabytes.
const LONGEST: usize = 64 << 20;

/// How long to wait before looking whether somebody has cancelled.
const TICK: Duration = Duration::from_millis(100);

/// What the keeper is told first.
#[derive(Serialize, Deserialize)]
struct Hello {
    disk: Lent,
    header: Option<Lent>,
}

/// A store that is lent.
#[derive(Clone, Serialize, Deserialize)]
struct Lent {
    len: u64,
    sector_size: u64,
    writable: bool,
}

/// What the keeper says.
#[derive(Serialize, Deserialize)]
enum Said<T> {
    /// It wants bytes: so many, from there, of the disk or of the detached header.
    Read { header: bool, offset: u64, len: u32 },
    /// The volume is open.
    Opened(T),
}

/// What it gets for `Read`: so many bytes follow, or none.
#[derive(Serialize, Deserialize)]
enum Answer {
    Bytes,
    Failed { os: Option<i32>, what: String },
}

/// The side of the process that opens the files.
pub struct Lending {
    socket: UnixStream,
    slots: Slots,
}

impl Lending {
    /// This side, and the keeper's end of the socket.
    ///
    /// # Errors
    /// `Io` if the system has no more descriptors or memory.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (socket, keepers) = UnixStream::pair()?;
        Ok((Self { socket, slots: Slots::new(Shared::create()?) }, keepers.into()))
    }

    /// The memory that the keeper is to have, too.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.slots.shared().fd()
    }

    /// Reads for the keeper until the volume is open, and returns what it says of it. Nothing if the keeper has ended: it has said
    /// why. Asks ten times a second whether to stop.
    ///
    /// # Errors
    /// `Io`, and `InvalidData` for what no keeper says.
    pub fn lend<T: DeserializeOwned>(&self, stores: &Stores, cancelled: &dyn Fn() -> bool) -> io::Result<Option<T>> {
        let lent = |store: &Arc<dyn Store>| Lent {
            len: store.len(),
            sector_size: store.sector_size(),
            writable: store.writable(),
        };
        let hello = Hello { disk: lent(&stores.disk), header: stores.header.as_ref().map(lent) };
        let said = || -> io::Result<T> {
            send(&self.socket, &hello)?;
            loop {
                while !wait(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(TICK))? {
                    if cancelled() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
                match receive(&self.socket)? {
                    Said::Opened(said) => return Ok(said),
                    Said::Read { header, offset, len } => {
                        let store = if header { stores.header.as_ref() } else { Some(&stores.disk) };
                        self.answer(store, offset, len as usize)?;
                    }
                }
            }
        };
        match said() {
            Ok(said) => Ok(Some(said)),
            Err(e) if ended(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn answer(&self, store: Option<&Arc<dyn Store>>, offset: u64, len: usize) -> io::Result<()> {
        let store = store.filter(|_| len <= PIECE).ok_or(io::ErrorKind::InvalidData)?;
        let mut bytes = vec![0; len];
        match store.read_at(offset, &mut bytes) {
            Ok(()) => {
                send(&self.socket, &Answer::Bytes)?;
                (&self.socket).write_all(&bytes)
            }
            Err(e) => send(&self.socket, &Answer::Failed { os: e.raw_os_error(), what: e.to_string() }),
        }
    }

    /// From here on the keeper encrypts and decrypts. Calls `lost` once if it ends before it is let go.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn opened(self, lost: impl FnOnce() + Send + 'static) -> io::Result<Asking> {
        Asking::new(self.slots, self.socket, lost)
    }
}

/// The keeper's side.
pub struct Borrowing {
    socket: Arc<Turns>,
    memory: Shared,
    disk: Lent,
    header: Option<Lent>,
}

impl Borrowing {
    /// Waits for what the other process has opened. Nothing if it has ended: it could not open it, and has said so.
    ///
    /// # Errors
    /// `Io`, and others if these are not what [`Lending::new`] makes.
    pub fn accept(socket: OwnedFd, memory: OwnedFd) -> io::Result<Option<Self>> {
        let (socket, memory) = (UnixStream::from(socket), Shared::open(memory)?);
        match receive(&socket) {
            Ok(Hello { disk, header }) => {
                let socket = Arc::new(Turns { socket, turn: Mutex::new(()) });
                Ok(Some(Self { socket, memory, disk, header }))
            }
            Err(e) if ended(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The descriptors that the keeper needs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.socket.as_fd(), self.memory.fd()]
    }

    /// The file or device, for reading.
    pub fn disk(&self) -> Arc<dyn Store> {
        Arc::new(Borrowed { channel: Arc::clone(&self.socket), lent: self.disk.clone(), header: false })
    }

    /// What the detached header is in, for reading.
    pub fn header(&self) -> Option<Arc<dyn Store>> {
        let lent = self.header.clone()?;
        Some(Arc::new(Borrowed { channel: Arc::clone(&self.socket), lent, header: true }))
    }

    /// Says that the volume is open, and uses its keys for whoever asks until the other process has gone or lets go. Then they are
    /// wiped. Calls `silent` before: nobody hears of this process any more.
    ///
    /// # Errors
    /// Those of `silent`; `Io` if it cannot be said, or no threads can be started.
    pub fn keep(self, keys: Keys, opened: impl Serialize, silent: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Self { socket, memory, .. } = self;
        let kept = Arc::new(Kept { shared: memory, keys: RwLock::new(Some(keys)), awake: Awake::new() });
        kept.start()?;
        silent()?;
        let mut socket = &socket.socket;
        send(socket, &Said::Opened(opened))?;
        // Nobody says anything any more: what comes is the end.
        let _ = socket.read(&mut [0]);
        kept.wipe();
        Ok(())
    }
}

/// The keeper's end of the socket. A question and its answer are one turn.
struct Turns {
    socket: UnixStream,
    turn: Mutex<()>,
}

/// A store in the other process.
struct Borrowed {
    channel: Arc<Turns>,
    lent: Lent,
    header: bool,
}

impl Store for Borrowed {
    fn len(&self) -> u64 {
        self.lent.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.lent.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let Turns { socket, turn } = &*self.channel;
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut socket = socket;
        for (piece, at) in out.chunks_mut(PIECE).zip((offset..).step_by(PIECE)) {
            send(socket, &Said::<()>::Read { header: self.header, offset: at, len: piece.len() as u32 })?;
            match receive(socket)? {
                Answer::Bytes => socket.read_exact(piece)?,
                Answer::Failed { os: Some(number), .. } => return Err(io::Error::from_raw_os_error(number)),
                Answer::Failed { os: None, what } => return Err(io::Error::other(what)),
            }
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _data: &mut [u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the process that holds the keys writes nothing"))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn sector_size(&self) -> u64 {
        self.lent.sector_size
    }

    fn writable(&self) -> bool {
        self.lent.writable
    }
}

/// Whether it is the other side's end.
fn ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// A message: its length in four bytes, and JSON.
pub(super) fn send(mut socket: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let len = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    socket.write_all(&[&len.to_le_bytes()[..], &text].concat())
}

pub(super) fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<T> {
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; len];
    socket.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
