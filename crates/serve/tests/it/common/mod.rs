//! Servers to test, and stores that misbehave.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Layout, Payload, Result, SectorCipher, Segment, Store, Volume};
use claviger_serve::nbd::{Client, Export, NbdAddress, Server, ServerHandle, ServerOptions};
pub use claviger_testkit::random::{Random, noise};
use tempfile::TempDir;

/// A server on a Unix socket of its own, in a thread of this process.
pub struct Serving {
    pub address: NbdAddress,
    pub handle: ServerHandle,
    _dir: TempDir,
    uri: String,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Serving {
    pub fn with(exports: Vec<Export>, options: ServerOptions) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let address = NbdAddress::Unix(dir.path().join("socket"));
        Self::at(&address, dir, exports, options)
    }

    pub fn at(address: &NbdAddress, dir: TempDir, exports: Vec<Export>, options: ServerOptions) -> Self {
        let server = Server::bind(address, exports, options).expect("it listens");
        let (address, handle, uri) = (server.address().clone(), server.handle(), server.uri("disk"));
        let thread = Some(thread::spawn(move || server.run()));
        Self { address, handle, _dir: dir, uri, thread }
    }

    /// One export, called `disk`.
    pub fn store(store: Arc<dyn Store>) -> Self {
        Self::with(vec![Export::new("disk", store)], ServerOptions::default())
    }

    pub fn uri(&self) -> &str {
        &self.uri
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.address, "disk").expect("the server answers")
    }

    /// Waits for the server, which was told to stop.
    pub fn finished(mut self) -> Result<()> {
        self.thread.take().expect("still running").join().expect("no panic")
    }

    pub fn stop(self) -> Result<()> {
        self.handle.stop();
        self.finished()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Lets this process have as many descriptors as it may.
pub fn more_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("up to the limit");
}

pub fn memory(bytes: &[u8]) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(bytes.to_vec()))
}

/// The volume of a file that holds it encrypted.
pub fn volume(path: &Path) -> Arc<dyn Store> {
    volume_on(Arc::new(FileStore::open(path, Access::ReadWrite).expect("it opens")))
}

/// The volume of a store that holds it encrypted.
pub fn volume_on(store: Arc<dyn Store>) -> Arc<dyn Store> {
    let payload = Payload::crypt(Arc::new(Toy), 7);
    let segment = Segment { at: 0, len: store.len(), stored_at: 0, payload, writable: true };
    Arc::new(Volume::new(store, Layout::new(vec![segment]).expect("it fits")))
}

/// Not a real cipher, but it shows data in the wrong sector, and data encrypted twice or not at all.
struct Toy;

impl SectorCipher for Toy {
    fn sector_size(&self) -> usize {
        512
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        for (number, sector) in (first..).zip(run.chunks_mut(512)) {
            let add = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            sector.iter_mut().enumerate().for_each(|(i, b)| *b = b.wrapping_add(add[i % 8] ^ i as u8 | 1));
        }
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        for (number, sector) in (first..).zip(run.chunks_mut(512)) {
            let add = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            sector.iter_mut().enumerate().for_each(|(i, b)| *b = b.wrapping_sub(add[i % 8] ^ i as u8 | 1));
        }
    }
}

/// Fails where it is told to, and counts.
pub struct Faulty {
    pub inner: Arc<MemoryStore>,
    /// Reads that touch this byte fail.
    pub bad_byte: AtomicU64,
    pub fail_writes: Mutex<Option<io::ErrorKind>>,
    pub fail_flush: AtomicBool,
    pub flushes: AtomicU64,
    pub discards: Mutex<Vec<(u64, u64)>>,
}

impl Faulty {
    pub fn new(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            inner: memory(bytes),
            bad_byte: AtomicU64::new(u64::MAX),
            fail_writes: Mutex::new(None),
            fail_flush: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            discards: Mutex::default(),
        })
    }
}

impl Store for Faulty {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if (offset..offset + out.len() as u64).contains(&self.bad_byte.load(Ordering::SeqCst)) {
            return Err(io::Error::other("planted"));
        }
        self.inner.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if let Some(kind) = *self.fail_writes.lock().expect("no panic") {
            return Err(kind.into());
        }
        self.inner.write_clobbering(offset, data)?;
        data.fill(0xdd); // as the trait allows
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        if self.fail_flush.load(Ordering::SeqCst) { Err(io::Error::other("planted")) } else { Ok(()) }
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.discards.lock().expect("no panic").push((offset, len));
        Ok(())
    }
}

/// Tells when a write has come, and does it when it is told to.
pub struct Gated {
    pub inner: Arc<MemoryStore>,
    came: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl Gated {
    pub fn new(bytes: &[u8]) -> (Arc<Self>, Receiver<()>, Sender<()>) {
        let ((came, has_come), (let_go, go)) = (channel(), channel());
        (Arc::new(Self { inner: memory(bytes), came: Mutex::new(came), go: Mutex::new(go) }), has_come, let_go)
    }
}

impl Store for Gated {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.came.lock().expect("no panic").send(()).expect("somebody waits");
        self.go.lock().expect("no panic").recv().expect("somebody lets go");
        self.inner.write_clobbering(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
