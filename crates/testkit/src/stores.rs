//! Stores that fail, and stores that remember in which order they were written, to test what writes to stores.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use claviger_engine::Store;
use claviger_engine::store::MemoryStore;

/// What a [`FaultStore`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `read_at`.
    Read,
    /// `write_at`.
    Write,
    /// `flush`.
    Flush,
}

/// When and how a store fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What fails.
    pub operation: Operation,
    /// Which of them, counted from 0.
    pub nth: u64,
    /// Whether all later operations of this kind fail too.
    pub for_good: bool,
    /// Bytes that a failing read or write still transfers.
    pub transferred: usize,
}

/// A store that fails as planned, and counts.
pub struct FaultStore {
    inner: Arc<dyn Store>,
    fault: Option<Fault>,
    counts: [AtomicU64; 3],
}

impl FaultStore {
    /// `inner`, failing as `fault` says, or never.
    pub fn new(inner: Arc<dyn Store>, fault: Option<Fault>) -> Self {
        Self { inner, fault, counts: Default::default() }
    }

    /// How many there have been of an operation, failed ones included.
    pub fn count(&self, operation: Operation) -> u64 {
        self.counts[operation as usize].load(Ordering::Relaxed)
    }

    /// Counts the operation. If it is to fail: how many bytes it transfers.
    fn strikes(&self, operation: Operation) -> Option<usize> {
        let n = self.counts[operation as usize].fetch_add(1, Ordering::Relaxed);
        let fault = self.fault.filter(|f| f.operation == operation)?;
        (n == fault.nth || fault.for_good && n > fault.nth).then_some(fault.transferred)
    }
}

fn planted() -> io::Error {
    io::Error::other("planted by the test")
}

impl Store for FaultStore {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.strikes(Operation::Read) {
            None => self.inner.read_at(offset, out),
            Some(some) => {
                let some = some.min(out.len());
                self.inner.read_at(offset, &mut out[..some])?;
                Err(planted())
            }
        }
    }

    fn write_at(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match self.strikes(Operation::Write) {
            None => self.inner.write_at(offset, data),
            Some(some) => {
                let some = some.min(data.len());
                self.inner.write_at(offset, &mut data[..some])?;
                Err(planted())
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.strikes(Operation::Flush) {
            None => self.inner.flush(),
            Some(_) => Err(planted()),
        }
    }
}

/// A store in memory that remembers every write and flush, so that a test can look at what a crash would have left.
pub struct CrashStore {
    before: Vec<u8>,
    now: MemoryStore,
    log: Mutex<Vec<Event>>,
}

enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

impl CrashStore {
    /// A store that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { now: MemoryStore::new(bytes.clone()), before: bytes, log: Mutex::default() }
    }

    /// What a crash can leave, at every moment: all that was written so far; only what was flushed; and what was flushed
    /// together with the newest write, which overtook the others. Of no write is there just a part.
    pub fn crash_images(&self) -> Vec<Vec<u8>> {
        let log = self.log();
        let mut images = vec![self.before.clone()];
        let (mut flushed, mut written) = (self.before.clone(), self.before.clone());
        for event in log.iter() {
            match event {
                Event::Write(offset, data) => {
                    let mut overtaking = flushed.clone();
                    for image in [&mut written, &mut overtaking] {
                        image[*offset as usize..][..data.len()].copy_from_slice(data);
                    }
                    images.push(written.clone());
                    images.push(overtaking);
                }
                Event::Flush => {
                    flushed.clone_from(&written);
                    images.push(flushed.clone());
                }
            }
        }
        images
    }

    fn log(&self) -> MutexGuard<'_, Vec<Event>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for CrashStore {
    fn len(&self) -> u64 {
        self.now.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.now.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.log().push(Event::Write(offset, data.to_vec()));
        self.now.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.log().push(Event::Flush);
        Ok(())
    }
}
