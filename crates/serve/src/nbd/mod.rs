//! An NBD server, through which other programs and kernels use stores as disks.
//!
//! The server speaks fixed newstyle, with simple and structured replies, over Unix sockets and loopback TCP, and with
//! TLS over any TCP. Each connection is served by one blocking thread. Source of the protocol: the NBD project's
//! `doc/proto.md`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use claviger_engine::store::{Access, FileStore};
//! use claviger_serve::nbd::{Export, NbdAddress, Server, ServerOptions};
//!
//! let store = FileStore::open("disk.img".as_ref(), Access::ReadWrite)?;
//! let export = Export::new("disk", Arc::new(store));
//! let server = Server::bind(&NbdAddress::Unix("/run/user/1000/disk".into()), vec![export], ServerOptions::default())?;
//! println!("{}", server.uri("disk"));
//! let handle = server.handle(); // .stop() ends it, from any thread
//! server.run()?;
//! # Ok::<(), claviger_engine::Error>(())
//! ```

mod client;
mod greet;
mod helpers;
mod layer;
mod listen;
mod negotiate;
mod protocol;
pub mod remote;
pub(crate) mod socket;
mod tls;
mod tls_error;
mod transmit;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io, slice};

use claviger_engine::deadline::Deadline;
use claviger_engine::store::SMALLEST_SECTOR;
use claviger_engine::{Error, Result, Store};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::durable::Durable;
use crate::spin::Awake;
pub use client::{Client, Completion, Replies};
use listen::Listener;
use protocol::{MAX_STRING, export};
use socket::Socket;
pub(crate) use socket::wait;
pub use tls::{ClientTls, ServerTls, no_preshared_keys};

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A Unix socket that only this user can connect to.
    Unix(PathBuf),
    /// An address of this machine, a loopback one unless there is TLS. Port 0 takes any free one.
    Tcp(SocketAddr),
}

/// A store to serve.
pub struct Export {
    /// The name that clients request; at most 4096 bytes. The empty name is the default; if no export has it, the first
    /// export is the default.
    pub name: String,
    /// A description for users; at most 4096 bytes, or empty.
    pub description: String,
    /// The store to serve.
    pub store: Arc<dyn Store>,
    /// Whether to refuse writes even if the store is writable.
    pub read_only: bool,
    /// Preferred request size of the store, in bytes: a power of two from 512 to 32 Mi. If the store's sectors are
    /// larger than 512 bytes, clients that ask get the sector size as minimum block size.
    pub block_size: u32,
}

impl Export {
    /// An export without a description, writable if `store` is.
    pub fn new(name: impl Into<String>, store: Arc<dyn Store>) -> Self {
        Self { name: name.into(), description: String::new(), store, read_only: false, block_size: 4096 }
    }
}

/// Limits and tuning. The defaults suit a personal machine.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Simultaneous connections that have chosen an export; further ones are closed at once.
    pub max_connections: usize,
    /// Simultaneous connections that have not chosen an export yet. A further one replaces the oldest, so unfinished
    /// handshakes cannot keep others out.
    pub max_handshakes: usize,
    /// How long a client has to choose an export.
    pub handshake_timeout: Duration,
    /// How long a connection may poll for its next request before it sleeps, while CPUs are idle. A wake-up costs more
    /// than most requests; zero never polls.
    pub spin: Duration,
    /// How long a connection may be idle before it frees its buffers.
    pub idle_after: Duration,
    /// How long requests have to finish once the server stops; slower ones are cut off.
    pub grace: Duration,
    /// If set, every client must use TLS, and other machines may connect.
    pub tls: Option<ServerTls>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 64,
            max_handshakes: 64,
            handshake_timeout: Duration::from_secs(10),
            spin: Duration::from_micros(100),
            idle_after: Duration::from_secs(1),
            grace: Duration::from_secs(5),
            tls: None,
        }
    }
}

/// A listening server.
pub struct Server {
    listener: Listener,
    shared: Arc<Shared>,
}

/// Stops a server from any thread. It keeps nothing open: when [`Server::run`] returns, the stores are released.
#[derive(Clone)]
pub struct ServerHandle(Arc<Control>);

impl Server {
    /// Listens at `address`. Clients can connect from now on, but are only served once [`Server::run`] is called.
    ///
    /// The file of a Unix socket has mode 0600. One left by a dead server is replaced.
    ///
    /// # Errors
    /// `Misuse` for invalid exports and, without TLS, for a TCP address that other machines can reach; `InUse` if
    /// another server answers at the address; `Io`.
    pub fn bind(address: &NbdAddress, exports: Vec<Export>, options: ServerOptions) -> Result<Self> {
        let encrypted = options.tls.is_some();
        let shared = Arc::new(Shared::new(Exports::new(exports)?, options)?);
        Ok(Self { listener: Listener::new(address, encrypted)?, shared })
    }

    /// The server's address; port 0 has been replaced by the actual port.
    pub fn address(&self) -> &NbdAddress {
        self.listener.address()
    }

    /// The URI for a client of the export `name` (the NBD project's `doc/uri.md`).
    pub fn uri(&self, name: &str) -> String {
        let name = percent_encoded(name.as_bytes());
        // A client may run in another folder.
        let encoded = |path: &Path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            percent_encoded(path.as_os_str().as_encoded_bytes())
        };
        let tls = self.shared.options.tls.as_ref();
        let certificates = tls.map(|tls| format!("tls-certificates={}", encoded(tls.folder())));
        match (self.address(), certificates) {
            (NbdAddress::Unix(path), None) => format!("nbd+unix:///{name}?socket={}", encoded(path)),
            (NbdAddress::Unix(path), Some(tls)) => format!("nbds+unix:///{name}?socket={}&{tls}", encoded(path)),
            (NbdAddress::Tcp(address), None) => format!("nbd://{address}/{name}"),
            (NbdAddress::Tcp(address), Some(certificates)) => {
                let host = tls.map_or_else(String::new, |tls| tls.host(address.ip()));
                format!("nbds://{host}:{}/{name}?{certificates}", address.port())
            }
        }
    }

    /// A handle that stops the server.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(Arc::clone(&self.shared.control))
    }

    /// Serves until [`ServerHandle::stop`]. Then requests already sent are answered, connections are closed, all threads end,
    /// and writes are made durable.
    ///
    /// # Errors
    /// `Io` if a store cannot be flushed at the end, or the listening socket fails.
    pub fn run(self) -> Result<()> {
        let Self { listener, shared } = self;
        let mut threads = HashMap::new();
        let served = accept_all(&listener, &shared, &mut threads);
        drop(listener);
        shared.wind_up();
        for (_, thread) in threads {
            let _ = thread.join(); // a panic has already been reported
        }
        let mut flushed = Ok(());
        for export in shared.exports.iter().filter(|e| !e.read_only) {
            flushed = flushed.and(export.flush());
        }
        Ok(served.and(flushed)?)
    }
}

impl ServerHandle {
    /// Stops the server: [`Server::run`] returns when everything is done. Never blocks.
    pub fn stop(&self) {
        self.0.enter(Phase::Stopping);
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// The phase of a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Answering requests already sent.
    Stopping,
    /// Cutting off unanswered requests.
    Cutting,
}

/// A server's phase, and what wakes its threads when it changes.
struct Control {
    /// Wakes the accepting thread.
    wake: rustix::fd::OwnedFd,
    phase: AtomicU8,
}

impl Control {
    fn phase_is(&self, at_least: Phase) -> bool {
        self.phase.load(Ordering::Acquire) >= at_least as u8
    }

    fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.wake();
    }

    fn wake(&self) {
        // This fails only if the counter overflows, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// State shared by a server's threads.
struct Shared {
    exports: Exports,
    options: ServerOptions,
    control: Arc<Control>,
    connections: Mutex<Connections>,
    /// Notified when a connection ends.
    ended: Condvar,
    /// Connection threads that are awake.
    awake: Awake,
}

#[derive(Default)]
struct Connections {
    next: u64,
    /// Connections in a handshake, the oldest first.
    greeting: BTreeMap<u64, Arc<Socket>>,
    /// Connections that have chosen an export.
    open: HashMap<u64, Arc<Socket>>,
    /// Threads that are about to end and can be joined.
    finished: Vec<u64>,
}

impl Connections {
    fn all(&self) -> impl Iterator<Item = &Arc<Socket>> {
        self.greeting.values().chain(self.open.values())
    }

    /// Adds a connection that begins its handshake.
    fn begin(&mut self, socket: Arc<Socket>, options: &ServerOptions) -> Option<u64> {
        if self.open.len() >= options.max_connections {
            return None;
        }
        while self.greeting.len() >= options.max_handshakes.max(1) {
            let (_, oldest) = self.greeting.pop_first()?;
            oldest.cut();
        }
        self.next += 1;
        self.greeting.insert(self.next, socket);
        Some(self.next)
    }

    /// Whether there is room for the connection, which has chosen an export. After that it is never displaced.
    fn admit(&mut self, id: u64, options: &ServerOptions) -> bool {
        let Some(socket) = self.greeting.remove(&id) else { return false };
        let room = self.open.len() < options.max_connections;
        if room {
            self.open.insert(id, socket);
        }
        room
    }
}

impl Shared {
    fn new(exports: Exports, options: ServerOptions) -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let control = Arc::new(Control { wake, phase: AtomicU8::new(Phase::Serving as u8) });
        let (connections, ended, awake) = (Mutex::default(), Condvar::new(), Awake::new());
        Ok(Self { exports, options, control, connections, ended, awake })
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all connections, cutting them off only after the grace period.
    fn wind_up(&self) {
        self.control.enter(Phase::Stopping);
        let deadline = Instant::now() + self.options.grace;
        let mut connections = self.connections();
        connections.all().for_each(|socket| socket.stop_receiving());
        while connections.all().next().is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            connections = self.ended.wait_timeout(connections, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if connections.all().next().is_some() {
            self.control.enter(Phase::Cutting);
            connections.all().for_each(|socket| socket.cut());
        }
    }

    /// Serves one connection to its end.
    fn serve(&self, id: u64, socket: &Socket) {
        let deadline = Deadline::within(self.options.handshake_timeout, None);
        let admit = || self.connections().admit(id, &self.options);
        let tls = self.options.tls.as_ref();
        // A broken connection only affects its client, which sees it.
        if let Ok(Some(agreed)) = negotiate::negotiate(socket, &self.exports, tls, deadline, &admit) {
            let _ = transmit::transmit(socket, &agreed, self);
        }
    }
}

/// Accepts connections until the server stops.
fn accept_all(listener: &Listener, shared: &Arc<Shared>, threads: &mut HashMap<u64, JoinHandle<()>>) -> io::Result<()> {
    while !shared.control.phase_is(Phase::Stopping) {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&shared.control.wake, PollFlags::IN)];
        wait(&mut fds, None)?;
        let [connecting, woken] = fds.map(|fd| !fd.revents().is_empty());
        if woken {
            let _ = rustix::io::read(&shared.control.wake, &mut [0; 8]);
            for id in std::mem::take(&mut shared.connections().finished) {
                threads.remove(&id).map(JoinHandle::join);
            }
        }
        if connecting && !shared.control.phase_is(Phase::Stopping) {
            match listener.accept() {
                Ok(fd) => {
                    // If no thread can be started, the client sees the connection end.
                    if let Ok(Some((id, thread))) = begin(Socket::new(fd), shared) {
                        threads.insert(id, thread);
                    }
                }
                // The client has gone already.
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                // Too many open files or too little memory may pass. Other errors do not.
                Err(e) if matches!(e.raw_os_error(), Some(12 | 23 | 24 | 105)) => {
                    wait(&mut [PollFd::new(&shared.control.wake, PollFlags::IN)], Some(Duration::from_millis(100)))?;
                }
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Serves a new connection on its own thread, unless there are too many.
fn begin(socket: Socket, shared: &Arc<Shared>) -> io::Result<Option<(u64, JoinHandle<()>)>> {
    /// Stack size, in bytes: transmission keeps its data on the heap. Cipher tables of a few KiB and the standard
    /// library fit several times over.
    const STACK: usize = 256 << 10;

    let socket = Arc::new(socket);
    let Some(id) = shared.connections().begin(Arc::clone(&socket), &shared.options) else { return Ok(None) };
    let open = Open { id, shared: Arc::clone(shared) };
    let thread = thread::Builder::new().name(format!("nbd-{id}")).stack_size(STACK).spawn(move || {
        open.shared.serve(id, &socket);
        // Closed before it counts as ended, so anyone who waits for its end sees it closed.
        drop(socket);
        drop(open);
    })?;
    Ok(Some((id, thread)))
}

/// A connection's entry in the list. Dropping it, even while a panic unwinds, removes it.
struct Open {
    id: u64,
    shared: Arc<Shared>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut connections = self.shared.connections();
        connections.greeting.remove(&self.id);
        connections.open.remove(&self.id);
        connections.finished.push(self.id);
        drop(connections);
        self.shared.ended.notify_all();
        self.shared.control.wake();
    }
}

/// A server's exports, validated.
struct Exports(Vec<Exported>);

/// An export being served.
struct Exported {
    name: String,
    description: String,
    store: Arc<dyn Store>,
    read_only: bool,
    /// Requests from clients that know the block size must be multiples of this many bytes.
    smallest_block: u32,
    block_size: u32,
    durable: Durable,
}

impl Exports {
    fn new(exports: Vec<Export>) -> Result<Self> {
        let mut names = HashSet::new();
        for Export { name, description, store: _, read_only: _, block_size } in &exports {
            for text in [name, description] {
                if text.len() > MAX_STRING || text.contains('\0') {
                    return Err(Error::misuse(
                        "names and descriptions of exports have at most 4096 bytes, none of them 0",
                    ));
                }
            }
            if !block_size.is_power_of_two() || !(512..=protocol::MAX_PAYLOAD).contains(block_size) {
                return Err(Error::misuse(format!("{block_size} bytes is not a valid block size")));
            }
            if !names.insert(name) {
                return Err(Error::misuse(format!("two exports are called {name:?}")));
            }
        }
        if exports.is_empty() {
            return Err(Error::misuse("there is nothing to serve"));
        }
        let exported = |Export { name, description, store, read_only, block_size }| {
            // Every disk has sectors of at least 512 bytes, which need not be announced.
            let sector = u32::try_from(store.sector_size()).ok().filter(|size| u64::from(*size) > SMALLEST_SECTOR);
            let read_only = read_only || !store.writable();
            let smallest_block = sector.unwrap_or(1);
            let (block_size, durable) = (block_size.max(smallest_block), Durable::default());
            Exported { name, description, store, read_only, smallest_block, block_size, durable }
        };
        Ok(Self(exports.into_iter().map(exported).collect()))
    }

    fn iter(&self) -> slice::Iter<'_, Exported> {
        self.0.iter()
    }

    /// The export of this name; the empty name means the default.
    fn find(&self, name: &[u8]) -> Option<&Exported> {
        let named = self.iter().find(|e| e.name.as_bytes() == name);
        if name.is_empty() { named.or(self.0.first()) } else { named }
    }
}

impl Exported {
    /// The transmission flags.
    fn flags(&self, structured: bool) -> u16 {
        // One store serves all connections, so a flush on one covers all.
        let mut flags = export::HAS_FLAGS | export::SEND_FLUSH | export::SEND_FUA | export::CAN_MULTI_CONN;
        flags |= if self.read_only { export::READ_ONLY } else { export::SEND_TRIM | export::SEND_WRITE_ZEROES };
        flags | if structured { export::SEND_DF } else { 0 }
    }

    /// Flushes the store and remembers failures.
    fn flush(&self) -> io::Result<()> {
        self.durable.flush(&*self.store)
    }
}

/// Serves a client that sends `bytes` and then hangs up: [`crate::fuzzing`].
pub(crate) fn fuzz(exports: Vec<Export>, bytes: &[u8]) -> Result<u64> {
    let (ours, mut clients) = UnixStream::pair()?;
    // All bytes fit into the socket, so nobody has to wait or writes to a closed connection.
    clients.write_all(&bytes[..bytes.len().min(64 << 10)])?;
    clients.shutdown(Shutdown::Write)?;
    let shared = Arc::new(Shared::new(
        Exports::new(exports)?,
        ServerOptions { spin: Duration::ZERO, ..ServerOptions::default() },
    )?);
    let sent = thread::scope(|scope| {
        let client = scope.spawn(|| received(&mut clients));
        // Closed before waiting for the client, even if this panics.
        let socket = Arc::new(Socket::new(ours.into()));
        let begun = shared.connections().begin(Arc::clone(&socket), &shared.options);
        begun.into_iter().for_each(|id| {
            let open = Open { id, shared: Arc::clone(&shared) };
            open.shared.serve(id, &socket);
        });
        drop(socket);
        client.join().expect("no panic")
    });
    Ok(sent)
}

/// Counts the bytes up to the end. That is a reset if the server has not read everything.
fn received(from: &mut UnixStream) -> u64 {
    let (mut all, mut some) = (0, vec![0; 64 << 10]);
    while let Ok(len @ 1..) = from.read(&mut some) {
        all += len as u64;
    }
    all
}

/// Percent-encodes everything but unreserved characters and `/` (RFC 3986, sections 2.1 and 2.3).
fn percent_encoded(bytes: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    bytes.iter().map(|&b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_engine::store::MemoryStore;

    fn export(name: &str) -> Export {
        Export::new(name, Arc::new(MemoryStore::new(vec![0; 512])))
    }

    #[test]
    fn exports_are_checked_and_found() {
        assert!(Exports::new(vec![]).is_err());
        assert!(Exports::new(vec![export("a"), export("a")]).is_err());
        assert!(Exports::new(vec![export(&"x".repeat(4097))]).is_err());
        assert!(Exports::new(vec![export("a\0")]).is_err());
        assert!(Exports::new(vec![Export { block_size: 1000, ..export("a") }]).is_err());
        let exports = Exports::new(vec![export("a"), export("b")]).expect("fine");
        let found = |name: &str| exports.find(name.as_bytes()).map(|e| e.name.as_str());
        assert_eq!((found("b"), found(""), found("c")), (Some("b"), Some("a"), None));
        let exports = Exports::new(vec![export("a"), export("")]).expect("fine");
        assert_eq!(exports.find(b"").map(|e| e.name.as_str()), Some(""));
    }

    #[test]
    fn uris_are_encoded() {
        assert_eq!(percent_encoded("/run/a b&c?é".as_bytes()), "/run/a%20b%26c%3F%C3%A9");
    }
}
