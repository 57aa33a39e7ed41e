//! Unlocking over a socket: the key process reads through the other process, which opens the files.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use claviger_engine::Store;
use claviger_engine::key_process::volume::{KeylessLayout, Keys};
use claviger_engine::opening::Stores;
use claviger_engine::trees::Node;
use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::KeyClient;
use super::server::KeyServer;
use super::shared_sys::{Shared, Slots};
use crate::messages::{receive, send};
use crate::spin::Awake;
use crate::wait::wait;

/// Maximum bytes of one read.
pub(super) const PIECE: usize = 1 << 20;

/// How long the rest of a message may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a key process may take to end.
const LAST: Duration = Duration::from_secs(2);

/// Interval of checks for cancellation.
const TICK: Duration = Duration::from_millis(100);

/// The first message to the key process.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    disk: SharedStore,
    header: Option<SharedStore>,
    /// The shared folder, if a folder is shared instead of stores.
    folder: Option<Folder>,
    /// Whether the key process may write to stores that are shared for writing.
    writes: bool,
    /// What the key process does: see [`Terms::task`].
    task: Value,
}

impl Hello {
    pub(super) fn of_folder(folder: Folder, terms: &Terms<'_>) -> Self {
        let disk = SharedStore { len: 0, sector_size: 512, writable: false };
        Self { disk, header: None, folder: Some(folder), writes: false, task: terms.task.clone() }
    }
}

/// A store that the other process reads and writes for the key process.
#[derive(Clone, Serialize, Deserialize)]
struct SharedStore {
    len: u64,
    sector_size: u64,
    writable: bool,
}

/// A message of the key process.
#[derive(Serialize, Deserialize)]
pub(super) enum KeyProcessMessage<T> {
    /// Reads this many bytes at this offset of the disk or the detached header.
    Read { header: bool, offset: u64, len: u32 },
    /// Writes the bytes that follow.
    Write { header: bool, offset: u64, len: u32 },
    /// Makes writes durable.
    Flush { header: bool },
    /// Checks that the store still has its length.
    StillWhole { header: bool },
    /// Reads a folder.
    Folder(FolderRequest),
    /// Asks whether a volume with this layout and this proof of its keys is the one in use: see [`Terms::in_use`].
    InUse { outline: KeylessLayout, proof: Vec<Vec<u8>> },
    /// Asks the user for confirmation.
    Ask(String),
    /// Removes a file that the key process made before its cage was closed, if the path still leads to this file.
    Remove { path: PathBuf, file: FileNumber },
    /// The volume is open.
    Opened(T),
    /// Unlocking failed. Only the reader of this message can still report it.
    Failed(String),
}

/// What the key process learns about a folder.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Folder {
    pub root: Node,
    pub writable: bool,
    pub format: String,
    pub wrapped_passphrase: Option<Vec<u8>>,
    pub signatures: Vec<String>,
}

/// A request of the key process about the folder.
#[derive(Serialize, Deserialize)]
pub(super) enum FolderRequest {
    List {
        folder: Node,
    },
    Lookup {
        folder: Node,
        name: Vec<u8>,
    },
    Take {
        folder: Node,
        name: Vec<u8>,
        node: Node,
        kind: u8,
    },
    Read {
        file: Node,
        offset: u64,
        len: u32,
    },
    Extended {
        node: Node,
        name: Vec<u8>,
    },
    /// The kind and the size of a node.
    Attributes {
        node: Node,
    },
    LinkTarget {
        link: Node,
    },
    Forget {
        node: Node,
        times: u64,
    },
}

/// The answer to a message: done, with the bytes of a `Read` following, or an error.
#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    No,
    Failed { os: Option<i32>, what: String },
}

/// Device and inode, which identify a file whatever its name.
pub type FileNumber = (u64, u64);

/// Compares a layout and a proof of its keys with those of the volume in use.
pub type IsInUse<'a> = dyn Fn(&KeylessLayout, &[Vec<u8>]) -> io::Result<bool> + 'a;

/// What this process does for a key process until the volume is open.
pub struct Terms<'a> {
    /// Called at least ten times a second; returns whether to stop.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Whether the key process may write to writable stores. Their headers stay locked in the meantime.
    pub writes: bool,
    /// What the key process does, in the form that its verb expects: see [`KeySide::task`].
    pub task: Value,
    /// Asks the user this question; returns whether the answer was yes.
    pub consent: &'a dyn Fn(&str) -> io::Result<bool>,
    /// Removes a file that the key process made. Its requests are not trusted.
    pub remove: &'a dyn Fn(&Path, FileNumber) -> io::Result<()>,
    /// Whether a volume with this layout and this proof of its keys is the one that this process uses.
    pub in_use: &'a IsInUse<'a>,
}

impl<'a> Terms<'a> {
    /// Read-only stores, and no user to ask.
    pub fn reading(cancelled: &'a dyn Fn() -> bool) -> Self {
        Self {
            cancelled,
            writes: false,
            task: Value::Null,
            consent: &|_| Ok(false),
            remove: &|_, _| Err(denied()),
            in_use: &|_, _| Ok(false),
        }
    }
}

/// The side of the process that opens the files.
pub struct IoSide {
    socket: UnixStream,
    slots: Slots,
}

impl IoSide {
    /// Creates this side, and the key process's end of the socket.
    ///
    /// # Errors
    /// `Io` if the system has no more descriptors or memory.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (socket, key_end) = UnixStream::pair()?;
        // The rest of a message that has begun arrives soon.
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok((Self { socket, slots: Slots::new(Shared::create()?) }, key_end.into()))
    }

    /// The memory to share with the key process.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.slots.shared().fd()
    }

    /// Reads for the key process, and writes if the terms allow it, until the volume is open. Returns the key process's
    /// description of it. None if the key process has ended: it has reported why.
    ///
    /// # Errors
    /// `Io`, and `InvalidData` for an invalid message.
    pub fn serve_until_open<T: DeserializeOwned>(&self, stores: &Stores, terms: &Terms<'_>) -> io::Result<Option<T>> {
        let both = || [Some(&stores.disk), stores.header.as_ref()].into_iter().flatten();
        let lock = |store: &Arc<dyn Store>| store.lock_header().map_err(io::Error::from);
        let _locks = both().filter(|_| terms.writes).map(lock).collect::<io::Result<Vec<_>>>()?;
        let shared = |store: &Arc<dyn Store>| SharedStore {
            len: store.len(),
            sector_size: store.sector_size(),
            writable: store.writable(),
        };
        let hello = Hello {
            disk: shared(&stores.disk),
            header: stores.header.as_ref().map(shared),
            folder: None,
            writes: terms.writes,
            task: terms.task.clone(),
        };
        let store = |header| if header { stores.header.as_ref() } else { Some(&stores.disk) };
        let written = |header| store(header).filter(|_| terms.writes);
        self.attend(&hello, terms, |message| match message {
            KeyProcessMessage::Read { header, offset, len } => self.read(store(header), offset, len as usize),
            KeyProcessMessage::Write { header, offset, len } => self.write(written(header), offset, len as usize),
            KeyProcessMessage::Flush { header } => self.answer(written(header).map_or(Err(denied()), |s| s.flush())),
            KeyProcessMessage::StillWhole { header } => {
                self.answer(store(header).map_or(Err(denied()), |s| s.still_whole()))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        })
    }

    /// Tells the key process what is shared, and calls `each` for its requests until everything is open.
    pub(super) fn attend<T: DeserializeOwned>(
        &self,
        hello: &Hello,
        terms: &Terms<'_>,
        mut each: impl FnMut(KeyProcessMessage<T>) -> io::Result<()>,
    ) -> io::Result<Option<T>> {
        let mut until_open = || -> io::Result<T> {
            send(&self.socket, hello)?;
            loop {
                loop {
                    // Checked even if the key process sends messages without end.
                    if (terms.cancelled)() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    if wait(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(TICK))? {
                        break;
                    }
                }
                match receive(&self.socket)? {
                    KeyProcessMessage::Opened(opened) => return Ok(opened),
                    KeyProcessMessage::Failed(what) => return Err(io::Error::other(what)),
                    KeyProcessMessage::Ask(question) => match (terms.consent)(&question) {
                        Ok(false) => send(&self.socket, &Answer::No)?,
                        other => self.answer(other.map(drop))?,
                    },
                    KeyProcessMessage::InUse { outline, proof } => match (terms.in_use)(&outline, &proof) {
                        Ok(false) => send(&self.socket, &Answer::No)?,
                        other => self.answer(other.map(drop))?,
                    },
                    KeyProcessMessage::Remove { path, file } => self.answer((terms.remove)(&path, file))?,
                    message => each(message)?,
                }
            }
        };
        match until_open() {
            Ok(opened) => Ok(Some(opened)),
            Err(e) if ended(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    fn read(&self, store: Option<&Arc<dyn Store>>, offset: u64, len: usize) -> io::Result<()> {
        let store = store.filter(|_| len <= PIECE).ok_or(io::ErrorKind::InvalidData)?;
        let mut bytes = vec![0; len];
        let read = store.read_at(offset, &mut bytes);
        let good = read.is_ok();
        self.answer(read)?;
        if good { (&self.socket).write_all(&bytes) } else { Ok(()) }
    }

    fn write(&self, store: Option<&Arc<dyn Store>>, offset: u64, len: usize) -> io::Result<()> {
        if len > PIECE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len];
        (&self.socket).read_exact(&mut bytes)?;
        self.answer(store.map_or(Err(denied()), |store| store.write_clobbering(offset, &mut bytes)))
    }

    pub(super) fn answer(&self, done: io::Result<()>) -> io::Result<()> {
        let failed = |e: io::Error| Answer::Failed { os: e.raw_os_error(), what: e.to_string() };
        send(&self.socket, &done.map_or_else(failed, |()| Answer::Done))
    }

    /// Tells the key process to end, and waits a moment for it.
    pub(crate) fn end(mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        let _ = self.socket.set_read_timeout(Some(LAST));
        while matches!(self.socket.read(&mut [0; 4096]), Ok(1..)) {}
    }

    /// From here on, the key process encrypts and decrypts. Calls `lost` once if it ends unexpectedly.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn opened(self, lost: impl FnOnce() + Send + 'static) -> io::Result<KeyClient> {
        KeyClient::new(self.slots, self.socket, lost)
    }
}

/// The key process's side.
pub struct KeySide {
    pub(super) socket: Arc<Turns>,
    memory: Shared,
    disk: SharedStore,
    header: Option<SharedStore>,
    pub(super) folder: Option<Folder>,
    writes: bool,
    task: Value,
}

impl KeySide {
    /// Waits until the other process has opened its files. None if it has ended: it has reported why.
    ///
    /// # Errors
    /// `Io`, and others if these descriptors are not from [`IoSide::new`].
    pub fn accept(socket: OwnedFd, memory: OwnedFd) -> io::Result<Option<Self>> {
        let (socket, memory) = (UnixStream::from(socket), Shared::open(memory)?);
        match receive(&socket) {
            Ok(Hello { disk, header, folder, writes, task }) => {
                let socket = Arc::new(Turns { socket, turn: Mutex::new(()) });
                Ok(Some(Self { socket, memory, disk, header, folder, writes, task }))
            }
            Err(e) if ended(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The descriptors that the key process needs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.socket.as_fd(), self.memory.fd()]
    }

    /// The file or device: read-only unless the other process accepts writes.
    pub fn disk(&self) -> Arc<dyn Store> {
        self.forwarded(self.disk.clone(), false)
    }

    /// The store of the detached header, with the same rule for writes.
    pub fn header(&self) -> Option<Arc<dyn Store>> {
        Some(self.forwarded(self.header.clone()?, true))
    }

    fn forwarded(&self, shared: SharedStore, header: bool) -> Arc<dyn Store> {
        Arc::new(ForwardedStore { channel: Arc::clone(&self.socket), shared, header, writes: self.writes })
    }

    /// What this process does, from the other process: see [`Terms::task`].
    ///
    /// # Errors
    /// `InvalidData` if the data have another form.
    pub fn task<T: DeserializeOwned>(&self) -> io::Result<T> {
        Ok(T::deserialize(&self.task)?)
    }

    /// Asks the user through the other process: the key process cannot reach the terminal once its cage is closed.
    pub fn asker(&self) -> impl Fn(&str) -> io::Result<bool> + Send + Sync + 'static {
        let channel = Arc::clone(&self.socket);
        move |question| channel.turn(&KeyProcessMessage::Ask(question.to_owned()), |_| Ok(()), |_| Ok(()))
    }

    /// Whether a volume with this layout and this proof of its keys is the one that the other process uses.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_in_use(&self, outline: KeylessLayout, proof: Vec<Vec<u8>>) -> io::Result<bool> {
        self.socket.turn(&KeyProcessMessage::InUse { outline, proof }, |_| Ok(()), |_| Ok(()))
    }

    /// Removes a file that was made before the cage was closed: see [`Terms::remove`].
    pub fn remover(&self) -> impl Fn(&Path, FileNumber) -> io::Result<()> + 'static {
        let channel = Arc::clone(&self.socket);
        move |path, file| {
            channel.turn(&KeyProcessMessage::Remove { path: path.to_owned(), file }, |_| Ok(()), |_| Ok(())).map(drop)
        }
    }

    /// Reports that the volume is open, and serves requests for its keys until the other process ends or closes the
    /// channel. Then wipes the keys. Calls `silent` first: from then on nobody reads this process's messages.
    ///
    /// # Errors
    /// Those of `silent`; `Io` if the report cannot be sent or no thread can be started.
    pub fn serve_keys(
        self,
        keys: Keys,
        opened: impl Serialize,
        silent: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let Self { socket, memory, .. } = self;
        let server = Arc::new(KeyServer { shared: memory.into(), keys: RwLock::new(Some(keys)), awake: Awake::new() });
        server.start()?;
        let mut socket = &socket.socket;
        let reported = silent().and_then(|()| send(socket, &KeyProcessMessage::Opened(opened)));
        if let Err(e) = reported {
            // This process's own messages may already go nowhere.
            let _ = send(socket, &KeyProcessMessage::<()>::Failed(e.to_string()));
            return Err(e);
        }
        // The other process sends nothing more: the next event is its end.
        let _ = socket.read(&mut [0]);
        server.wipe();
        Ok(())
    }
}

/// The key process's end of the socket. A question and its answer make one turn.
pub(super) struct Turns {
    socket: UnixStream,
    turn: Mutex<()>,
}

impl Turns {
    /// Sends a message with the bytes that follow it, and receives the answer with its bytes. Returns whether the
    /// answer was positive.
    pub(super) fn turn(
        &self,
        message: &KeyProcessMessage<()>,
        before: impl FnOnce(&UnixStream) -> io::Result<()>,
        after: impl FnOnce(&UnixStream) -> io::Result<()>,
    ) -> io::Result<bool> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        send(&self.socket, message)?;
        before(&self.socket)?;
        match receive(&self.socket)? {
            Answer::Done => after(&self.socket).map(|()| true),
            Answer::No => Ok(false),
            Answer::Failed { os: Some(number), .. } => Err(io::Error::from_raw_os_error(number)),
            Answer::Failed { os: None, what } => Err(io::Error::other(what)),
        }
    }
}

/// A store in the other process.
struct ForwardedStore {
    channel: Arc<Turns>,
    shared: SharedStore,
    header: bool,
    writes: bool,
}

impl ForwardedStore {
    fn within(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.shared.len);
        end.map(drop).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Store for ForwardedStore {
    fn len(&self) -> u64 {
        self.shared.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.within(offset, out.len())?;
        for (piece, at) in out.chunks_mut(PIECE).zip((offset..).step_by(PIECE)) {
            let message = KeyProcessMessage::Read { header: self.header, offset: at, len: piece.len() as u32 };
            self.channel.turn(&message, |_| Ok(()), |mut socket| socket.read_exact(piece))?;
        }
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if !self.writes {
            return Err(denied());
        }
        self.within(offset, data.len())?;
        for (piece, at) in data.chunks(PIECE).zip((offset..).step_by(PIECE)) {
            let message = KeyProcessMessage::Write { header: self.header, offset: at, len: piece.len() as u32 };
            self.channel.turn(&message, |mut socket| socket.write_all(piece), |_| Ok(()))?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let message = KeyProcessMessage::Flush { header: self.header };
        if self.writes { self.channel.turn(&message, |_| Ok(()), |_| Ok(())).map(drop) } else { Ok(()) }
    }

    fn still_whole(&self) -> io::Result<()> {
        self.channel.turn(&KeyProcessMessage::StillWhole { header: self.header }, |_| Ok(()), |_| Ok(())).map(drop)
    }

    fn sector_size(&self) -> u64 {
        self.shared.sector_size
    }

    fn writable(&self) -> bool {
        self.shared.writable
    }
}

fn denied() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the key process writes nothing")
}

/// Whether the error means that the other side has closed the connection.
fn ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use claviger_engine::store::MemoryStore;

    use super::*;

    /// Takes over a message of a key process, and returns whether it was carried out.
    fn done(socket: &UnixStream, message: &KeyProcessMessage<()>, bytes: &[u8]) -> bool {
        send(socket, message).expect("sent");
        let mut stream = socket;
        stream.write_all(bytes).expect("sent");
        matches!(receive(socket).expect("an answer"), Answer::Done)
    }

    #[test]
    fn a_key_process_writes_only_where_it_may() {
        for writes in [false, true] {
            let disk = Arc::new(MemoryStore::new(vec![7; 4096]));
            let data = Arc::clone(&disk) as Arc<dyn Store>;
            let stores = Stores { disk: Arc::clone(&data), header: None, data };
            let (io_side, socket) = IoSide::new().expect("a channel");
            let key_process = thread::spawn(move || {
                let socket = UnixStream::from(socket);
                let hello: Hello = receive(&socket).expect("a greeting");
                assert_eq!((hello.writes, hello.task), (writes, Value::from("how")));
                let write = |header, offset| KeyProcessMessage::Write { header, offset, len: 4 };
                assert_eq!(done(&socket, &write(false, 512), b"mine"), writes);
                assert_eq!(done(&socket, &KeyProcessMessage::Flush { header: false }, b""), writes);
                for (header, offset) in [(true, 0), (false, 4093), (false, u64::MAX - 1)] {
                    assert!(!done(&socket, &write(header, offset), b"mine"), "{header} {offset}");
                }
                assert!(!done(&socket, &KeyProcessMessage::Flush { header: true }, b""), "there is none");
                assert!(!done(&socket, &KeyProcessMessage::Ask("?".to_owned()), b""), "nobody says yes");
                let file = KeyProcessMessage::Remove { path: "/tmp/anything".into(), file: (0, 0) };
                assert!(!done(&socket, &file, b""), "nobody removes anything");
                // Longer than any valid message: the reader stops here.
                send(&socket, &KeyProcessMessage::<()>::Write { header: false, offset: 0, len: u32::MAX })
                    .expect("sent");
                assert!(receive::<Answer>(&socket).is_err());
            });
            let terms = Terms { writes, task: "how".into(), ..Terms::reading(&|| false) };
            assert!(io_side.serve_until_open::<()>(&stores, &terms).is_err());
            drop(io_side);
            key_process.join().expect("as expected");
            let written = disk.to_vec();
            assert_eq!(&written[512..516], if writes { b"mine" } else { &[7; 4] });
            assert_eq!(written.iter().filter(|byte| **byte != 7).count(), if writes { 4 } else { 0 });
        }
    }
}
