//! Until the volume is open: the key process reads through the other process, which opens the files; both over a socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use claviger_engine::Store;
use claviger_engine::key_process::volume::Keys;
use claviger_engine::opening::{FoundFolder, Stores};
use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::KeyClient;
use super::folders::{self, Folder};
use super::server::KeyServer;
use super::shared_sys::{Shared, Slots};
use crate::spin::Awake;
use crate::wait::wait;

/// Bytes that are read at a time.
pub(super) const PIECE: usize = 1 << 20;

/// No message is longer, in bytes. What is fixed of a layout may take some megabytes.
const LONGEST: usize = 64 << 20;

/// How long the rest of a message may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a key process may take to end.
const LAST: Duration = Duration::from_secs(2);

/// How long to wait before looking whether somebody has cancelled.
const TICK: Duration = Duration::from_millis(100);

/// What the key process is told first.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    disk: SharedStore,
    header: Option<SharedStore>,
    /// Where it is a folder that is shared, and nothing else.
    folder: Option<Folder>,
    /// Whether it may write to what is shared for writing.
    writes: bool,
    /// What else there is to say.
    told: Value,
}

impl Hello {
    pub(super) fn of_folder(folder: Folder, terms: &Terms<'_>) -> Self {
        let disk = SharedStore { len: 0, sector_size: 512, writable: false };
        Self { disk, header: None, folder: Some(folder), writes: false, told: terms.told.clone() }
    }
}

/// A store that the other process reads and writes for this one.
#[derive(Clone, Serialize, Deserialize)]
struct SharedStore {
    len: u64,
    sector_size: u64,
    writable: bool,
}

/// What the key process says.
#[derive(Serialize, Deserialize)]
pub(super) enum Said<T> {
    /// It wants bytes: so many, from there, of the disk or of the detached header.
    Read { header: bool, offset: u64, len: u32 },
    /// So many bytes follow, which are to be written there.
    Write { header: bool, offset: u64, len: u32 },
    /// What was written there is to be made durable.
    Flush { header: bool },
    /// It wants to know whether that still has its length.
    StillWhole { header: bool },
    /// It wants to look at a folder.
    Look(folders::Wish),
    /// A person is to say yes.
    Ask(String),
    /// A file that it has made, when it still could, is to be removed, if it is still this one.
    Remove { path: PathBuf, file: FileNumber },
    /// The volume is open.
    Opened(T),
    /// It is not, and nobody can hear it any more but who reads this.
    Failed(String),
}

/// What it gets for that: it is done, and for `Read` so many bytes follow; or it is not.
#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    No,
    Failed { os: Option<i32>, what: String },
}

/// Device and inode: which file it is, whatever its name is.
pub type FileNumber = (u64, u64);

/// What is done for a key process until the volume is open.
pub struct Terms<'a> {
    /// Asked ten times a second, at least, whether to stop.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Whether the key process may write to those of the stores that can be written. Their headers stay locked meanwhile.
    pub writes: bool,
    /// What it is told first: see [`KeySide::told`].
    pub told: Value,
    /// Whether a person says yes to this question.
    pub consent: &'a dyn Fn(&str) -> io::Result<bool>,
    /// Removes a file that the key process has made. It may say anything.
    pub remove: &'a dyn Fn(&Path, FileNumber) -> io::Result<()>,
}

impl<'a> Terms<'a> {
    /// Stores for reading alone, and nobody to ask.
    pub fn reading(cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { cancelled, writes: false, told: Value::Null, consent: &|_| Ok(false), remove: &|_, _| Err(denied()) }
    }
}

/// The side of the process that opens the files.
pub struct IoSide {
    socket: UnixStream,
    slots: Slots,
}

impl IoSide {
    /// This side, and the key process's end of the socket.
    ///
    /// # Errors
    /// `Io` if the system has no more descriptors or memory.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (socket, key_end) = UnixStream::pair()?;
        // Of a message that has begun the rest comes soon.
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok((Self { socket, slots: Slots::new(Shared::create()?) }, key_end.into()))
    }

    /// The memory that the key process is to have, too.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.slots.shared().fd()
    }

    /// Reads for the key process, and writes if the terms allow it, until the volume is open, and returns what it says of it. Nothing if the
    /// key process has ended: it has said why.
    ///
    /// # Errors
    /// `Io`, and `InvalidData` for what no key process says.
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
            told: terms.told.clone(),
        };
        let store = |header| if header { stores.header.as_ref() } else { Some(&stores.disk) };
        let written = |header| store(header).filter(|_| terms.writes);
        self.attend(&hello, terms, |said| match said {
            Said::Read { header, offset, len } => self.read(store(header), offset, len as usize),
            Said::Write { header, offset, len } => self.write(written(header), offset, len as usize),
            Said::Flush { header } => self.answer(written(header).map_or(Err(denied()), |s| s.flush())),
            Said::StillWhole { header } => self.answer(store(header).map_or(Err(denied()), |s| s.still_whole())),
            _ => Err(io::ErrorKind::InvalidData.into()),
        })
    }

    /// Tells the key process what is shared, and does `each` thing that it wants of that until all is open.
    pub(super) fn attend<T: DeserializeOwned>(
        &self,
        hello: &Hello,
        terms: &Terms<'_>,
        mut each: impl FnMut(Said<T>) -> io::Result<()>,
    ) -> io::Result<Option<T>> {
        let mut said = || -> io::Result<T> {
            send(&self.socket, hello)?;
            loop {
                loop {
                    // However much it has to say.
                    if (terms.cancelled)() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    if wait(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(TICK))? {
                        break;
                    }
                }
                match receive(&self.socket)? {
                    Said::Opened(said) => return Ok(said),
                    Said::Failed(what) => return Err(io::Error::other(what)),
                    Said::Ask(question) => match (terms.consent)(&question) {
                        Ok(false) => send(&self.socket, &Answer::No)?,
                        other => self.answer(other.map(drop))?,
                    },
                    Said::Remove { path, file } => self.answer((terms.remove)(&path, file))?,
                    said => each(said)?,
                }
            }
        };
        match said() {
            Ok(said) => Ok(Some(said)),
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

    /// Lets it go, and waits for a moment until it has ended.
    pub(super) fn end(mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        let _ = self.socket.set_read_timeout(Some(LAST));
        while matches!(self.socket.read(&mut [0; 4096]), Ok(1..)) {}
    }

    /// From here on the key process encrypts and decrypts. Calls `lost` once if it ends before it is let go.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn opened(self, lost: impl FnOnce() + Send + 'static) -> io::Result<KeyClient> {
        KeyClient::new(self.slots, self.socket, lost)
    }
}

/// The key process's side.
pub struct KeySide {
    socket: Arc<Turns>,
    memory: Shared,
    disk: SharedStore,
    header: Option<SharedStore>,
    folder: Option<Folder>,
    writes: bool,
    told: Value,
}

impl KeySide {
    /// Waits for what the other process has opened. Nothing if it has ended: it could not open it, and has said so.
    ///
    /// # Errors
    /// `Io`, and others if these are not what [`IoSide::new`] makes.
    pub fn accept(socket: OwnedFd, memory: OwnedFd) -> io::Result<Option<Self>> {
        let (socket, memory) = (UnixStream::from(socket), Shared::open(memory)?);
        match receive(&socket) {
            Ok(Hello { disk, header, folder, writes, told }) => {
                let socket = Arc::new(Turns { socket, turn: Mutex::new(()) });
                Ok(Some(Self { socket, memory, disk, header, folder, writes, told }))
            }
            Err(e) if ended(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The descriptors that the key process needs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.socket.as_fd(), self.memory.fd()]
    }

    /// The file or device: for reading, unless the other process takes writes.
    pub fn disk(&self) -> Arc<dyn Store> {
        self.forwarded(self.disk.clone(), false)
    }

    /// What the detached header is in, as above.
    pub fn header(&self) -> Option<Arc<dyn Store>> {
        Some(self.forwarded(self.header.clone()?, true))
    }

    /// The folder, where that is what is shared: for reading alone.
    pub fn folder(&self) -> Option<FoundFolder> {
        self.folder.as_ref().map(|folder| folder.found_folder(&self.socket))
    }

    fn forwarded(&self, shared: SharedStore, header: bool) -> Arc<dyn Store> {
        Arc::new(ForwardedStore { channel: Arc::clone(&self.socket), shared, header, writes: self.writes })
    }

    /// What the other process has told of: see [`Terms::told`].
    ///
    /// # Errors
    /// `InvalidData` if that is something else.
    pub fn told<T: DeserializeOwned>(&self) -> io::Result<T> {
        Ok(T::deserialize(&self.told)?)
    }

    /// Has a person asked by the other process: this one cannot reach the terminal once its cage is closed.
    pub fn asker(&self) -> impl Fn(&str) -> io::Result<bool> + Send + Sync + 'static {
        let channel = Arc::clone(&self.socket);
        move |question| channel.turn(&Said::Ask(question.to_owned()), |_| Ok(()), |_| Ok(()))
    }

    /// Has a file removed that was made before the cage was closed: see [`Terms::remove`].
    pub fn remover(&self) -> impl Fn(&Path, FileNumber) -> io::Result<()> + 'static {
        let channel = Arc::clone(&self.socket);
        move |path, file| channel.turn(&Said::Remove { path: path.to_owned(), file }, |_| Ok(()), |_| Ok(())).map(drop)
    }

    /// Says that the volume is open, and uses its keys for whoever asks until the other process has gone or lets go. Then they are
    /// wiped. Calls `silent` before: nobody hears of this process any more.
    ///
    /// # Errors
    /// Those of `silent`; `Io` if it cannot be said, or no threads can be started.
    pub fn keep(self, keys: Keys, opened: impl Serialize, silent: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Self { socket, memory, .. } = self;
        let kept = Arc::new(KeyServer { shared: memory.into(), keys: RwLock::new(Some(keys)), awake: Awake::new() });
        kept.start()?;
        let mut socket = &socket.socket;
        let said = silent().and_then(|()| send(socket, &Said::Opened(opened)));
        if let Err(e) = said {
            // Whatever this process says itself may go nowhere already.
            let _ = send(socket, &Said::<()>::Failed(e.to_string()));
            return Err(e);
        }
        // Nobody says anything any more: what comes is the end.
        let _ = socket.read(&mut [0]);
        kept.wipe();
        Ok(())
    }
}

/// The key process's end of the socket. A question and its answer are one turn.
pub(super) struct Turns {
    socket: UnixStream,
    turn: Mutex<()>,
}

impl Turns {
    /// Says something, with what follows it, and hears the answer, with what follows that. Whether it is no no.
    pub(super) fn turn(
        &self,
        said: &Said<()>,
        before: impl FnOnce(&UnixStream) -> io::Result<()>,
        after: impl FnOnce(&UnixStream) -> io::Result<()>,
    ) -> io::Result<bool> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        send(&self.socket, said)?;
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
            let said = Said::Read { header: self.header, offset: at, len: piece.len() as u32 };
            self.channel.turn(&said, |_| Ok(()), |mut socket| socket.read_exact(piece))?;
        }
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if !self.writes {
            return Err(denied());
        }
        self.within(offset, data.len())?;
        for (piece, at) in data.chunks(PIECE).zip((offset..).step_by(PIECE)) {
            let said = Said::Write { header: self.header, offset: at, len: piece.len() as u32 };
            self.channel.turn(&said, |mut socket| socket.write_all(piece), |_| Ok(()))?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let said = Said::Flush { header: self.header };
        if self.writes { self.channel.turn(&said, |_| Ok(()), |_| Ok(())).map(drop) } else { Ok(()) }
    }

    fn still_whole(&self) -> io::Result<()> {
        self.channel.turn(&Said::StillWhole { header: self.header }, |_| Ok(()), |_| Ok(())).map(drop)
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

/// Whether it is the other side's end.
fn ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// A message: its length in four bytes, and JSON.
pub(super) fn send(mut socket: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let len = u32::try_from(text.len()).ok().filter(|len| *len as usize <= LONGEST).ok_or_else(|| {
        let what = "a message to the key process would be too long";
        io::Error::new(io::ErrorKind::InvalidData, what)
    })?;
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

#[cfg(test)]
mod tests {
    use std::thread;

    use claviger_engine::store::MemoryStore;

    use super::*;

    /// What a key process says that was taken over, and whether it is done for it.
    fn done(socket: &UnixStream, said: &Said<()>, bytes: &[u8]) -> bool {
        send(socket, said).expect("sent");
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
                assert_eq!((hello.writes, hello.told), (writes, Value::from("how")));
                let write = |header, offset| Said::Write { header, offset, len: 4 };
                assert_eq!(done(&socket, &write(false, 512), b"mine"), writes);
                assert_eq!(done(&socket, &Said::Flush { header: false }, b""), writes);
                for (header, offset) in [(true, 0), (false, 4093), (false, u64::MAX - 1)] {
                    assert!(!done(&socket, &write(header, offset), b"mine"), "{header} {offset}");
                }
                assert!(!done(&socket, &Said::Flush { header: true }, b""), "there is none");
                assert!(!done(&socket, &Said::Ask("?".to_owned()), b""), "nobody says yes");
                let file = Said::Remove { path: "/tmp/anything".into(), file: (0, 0) };
                assert!(!done(&socket, &file, b""), "nobody removes anything");
                // More than is ever sent: nobody reads on.
                send(&socket, &Said::<()>::Write { header: false, offset: 0, len: u32::MAX }).expect("sent");
                assert!(receive::<Answer>(&socket).is_err());
            });
            let terms = Terms { writes, told: "how".into(), ..Terms::reading(&|| false) };
            assert!(io_side.serve_until_open::<()>(&stores, &terms).is_err());
            drop(io_side);
            key_process.join().expect("as expected");
            let written = disk.to_vec();
            assert_eq!(&written[512..516], if writes { b"mine" } else { &[7; 4] });
            assert_eq!(written.iter().filter(|byte| **byte != 7).count(), if writes { 4 } else { 0 });
        }
    }
}
