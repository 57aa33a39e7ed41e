//! Stores that fail, and stores that record the order of writes, for tests of code that writes to stores.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use claviger_engine::Store;
use claviger_engine::store::MemoryStore;

use crate::random::Random;

/// The size that a disk writes atomically, in bytes.
const SECTOR: usize = 512;

/// What a [`FaultStore`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `read_at`.
    Read,
    /// `write_clobbering`.
    Write,
    /// `flush`.
    Flush,
}

/// When and how a store fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The operation that fails.
    pub operation: Operation,
    /// The number of the operation that fails, counted from 0.
    pub nth: u64,
    /// Whether all later operations of this kind fail too.
    pub for_good: bool,
    /// Bytes that a failing read or write transfers before it fails.
    pub transferred: usize,
}

/// A store that fails as planned, and counts operations.
pub struct FaultStore {
    inner: Arc<dyn Store>,
    fault: Option<Fault>,
    counts: [AtomicU64; 3],
}

impl FaultStore {
    /// Wraps `inner`, with this fault or none.
    pub fn new(inner: Arc<dyn Store>, fault: Option<Fault>) -> Self {
        Self { inner, fault, counts: Default::default() }
    }

    /// The number of operations of this kind, including failed ones.
    pub fn count(&self, operation: Operation) -> u64 {
        self.counts[operation as usize].load(Ordering::Relaxed)
    }

    /// Counts the operation. If it must fail, returns how many bytes it transfers.
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

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match self.strikes(Operation::Write) {
            None => self.inner.write_clobbering(offset, data),
            Some(some) => {
                let some = some.min(data.len());
                self.inner.write_clobbering(offset, &mut data[..some])?;
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

    fn still_whole(&self) -> io::Result<()> {
        self.inner.still_whole()
    }
}

/// A disk behind the system's page cache, as in Linux: if writeback fails, the flush reports it once, and the data then
/// count as written. They can be read from memory while the system runs, but are not on the disk.
pub struct CachedStore {
    cache: MemoryStore,
    disk: Mutex<Vec<u8>>,
    dirty: Mutex<Vec<Range<usize>>>,
    flushes_to_fail: AtomicU64,
}

impl CachedStore {
    /// A disk with the contents `bytes` whose flush number `failing`, counted from 0, fails.
    pub fn new(bytes: Vec<u8>, failing: u64) -> Self {
        let (cache, flushes_to_fail) = (MemoryStore::new(bytes.clone()), AtomicU64::new(failing));
        Self { cache, disk: Mutex::new(bytes), dirty: Mutex::default(), flushes_to_fail }
    }

    /// The contents after a power cut.
    pub fn on_disk(&self) -> Vec<u8> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn dirty(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for CachedStore {
    fn len(&self) -> u64 {
        self.cache.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.cache.read_at(offset, out)
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let at = offset as usize..offset as usize + data.len();
        self.cache.write_clobbering(offset, data)?;
        self.dirty().push(at);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let dirty = std::mem::take(&mut *self.dirty());
        // Wraps around to a number that no test reaches.
        if self.flushes_to_fail.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(planted());
        }
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        dirty.into_iter().try_for_each(|at| self.cache.read_at(at.start as u64, &mut disk[at]))
    }
}

/// A store in memory that records every write and flush, so tests can examine what a crash would leave.
pub struct CrashStore {
    before: Vec<u8>,
    now: MemoryStore,
    log: Mutex<Vec<Event>>,
}

enum Event {
    Write(u64, Vec<u8>),
    Flush,
    Settled,
}

/// How many of the possible results of a crash are examined: see [`CrashStore::each_crash`].
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// If at most this many sectors were written between two flushes, every selection of them is tried.
    pub exhaustive: usize,
    /// For more sectors: this many random selections, besides all sectors and the selections that end with a write.
    pub sampled: usize,
    /// The seed of the random selections.
    pub seed: u64,
}

impl Depth {
    /// Selections of `count` sectors that reached the disk. The empty one is left out, as the previous flush covers it.
    /// `ends` are the ends of writes.
    fn selections(self, count: usize, ends: &[usize], random: &mut Random) -> Vec<Vec<bool>> {
        if count <= self.exhaustive {
            return (1..1u32 << count).map(|bits| (0..count).map(|i| bits >> i & 1 == 1).collect()).collect();
        }
        let upto = |end: usize| (0..count).map(|i| i < end).collect::<Vec<_>>();
        let mut all: Vec<Vec<bool>> = ends.iter().map(|end| upto(*end)).collect();
        for _ in 0..self.sampled {
            let one = random.below(count);
            all.push(match random.below(4) {
                0 => upto(one),
                1 => (0..count).map(|i| i == one).collect(),
                2 => (0..count).map(|i| i != one).collect(),
                _ => (0..count).map(|_| random.below(2) == 1).collect(),
            });
        }
        all
    }
}

impl CrashStore {
    /// A store with the contents `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { now: MemoryStore::new(bytes.clone()), before: bytes, log: Mutex::default() }
    }

    /// [`CrashStore::each_crash`] examines crashes from here on: everything written before is on the disk.
    pub fn settle(&self) {
        self.log().push(Event::Settled);
    }

    /// The possible contents after a crash at every moment: everything written so far; only flushed data; and flushed
    /// data plus the newest write, which overtook the others. No write is partial.
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
                Event::Settled => {}
            }
        }
        images
    }

    /// The possible contents after a crash at every moment, if sectors of 512 bytes are written atomically and
    /// unflushed ones reach the disk in any order or never. Has all selections of up to 8 unflushed sectors; otherwise
    /// none, all, each alone, each missing, and `more` at random.
    pub fn torn_images(&self, more: usize) -> Vec<Vec<u8>> {
        let mut random = Random::new(more as u64);
        let log = self.log();
        let mut images = vec![self.before.clone()];
        let mut flushed = self.before.clone();
        let mut pending: Vec<(usize, &[u8])> = Vec::new();
        for event in log.iter() {
            match event {
                Event::Write(offset, data) => {
                    pending.extend(sectors(*offset as usize, data));
                    images.extend(selections(pending.len(), more, &mut random).map(|chosen| {
                        let mut image = flushed.clone();
                        put(&mut image, pending.iter().zip(chosen).filter(|(_, c)| *c).map(|(s, _)| s));
                        image
                    }));
                }
                Event::Flush => {
                    put(&mut flushed, &pending);
                    pending.clear();
                }
                Event::Settled => {}
            }
        }
        images
    }

    /// Visits the possible contents after a crash, up to `depth`: flushed data, and any of the 512-byte sectors written
    /// since. This covers every moment between two flushes, as unwritten sectors count as lost.
    pub fn each_crash(&self, depth: Depth, mut each: impl FnMut(&[u8])) {
        let mut random = Random::new(depth.seed);
        let log = self.log();
        let (settled, since) = log.split_at(log.iter().rposition(|e| matches!(e, Event::Settled)).unwrap_or(0));
        let mut flushed = self.before.clone();
        for event in settled {
            if let Event::Write(offset, data) = event {
                put(&mut flushed, &[(*offset as usize, data.as_slice())]);
            }
        }
        each(&flushed);
        for writes in since.split(|event| matches!(event, Event::Flush)) {
            let mut pending = Vec::new();
            let mut ends = Vec::new();
            for event in writes {
                let Event::Write(offset, data) = event else { continue };
                pending.extend(sectors(*offset as usize, data));
                ends.push(pending.len());
            }
            for chosen in depth.selections(pending.len(), &ends, &mut random) {
                let mut image = flushed.clone();
                put(&mut image, pending.iter().zip(chosen).filter(|(_, c)| *c).map(|(s, _)| s));
                each(&image);
            }
            put(&mut flushed, &pending);
        }
        each(&flushed);
    }

    fn log(&self) -> MutexGuard<'_, Vec<Event>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits a write into parts, each within one sector.
fn sectors(offset: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let first = (SECTOR - offset % SECTOR).min(data.len());
    let (head, rest) = data.split_at(first);
    let head = (!head.is_empty()).then_some((offset, head));
    let rest = rest.chunks(SECTOR).enumerate().map(move |(i, part)| (offset + first + i * SECTOR, part));
    head.into_iter().chain(rest)
}

/// Writes the parts in order, so the last of several writes to a sector wins.
fn put<'a>(image: &mut [u8], parts: impl IntoIterator<Item = &'a (usize, &'a [u8])>) {
    for (offset, part) in parts {
        image[*offset..][..part.len()].copy_from_slice(part);
    }
}

/// Selections of `count` sectors that reach the disk, all or some: see [`CrashStore::torn_images`].
fn selections(count: usize, more: usize, random: &mut Random) -> impl Iterator<Item = Vec<bool>> {
    let mut all: Vec<Vec<bool>> = Vec::new();
    if count <= 8 {
        all.extend((0..1u32 << count).map(|bits| (0..count).map(|i| bits >> i & 1 == 1).collect()));
    } else {
        all.extend([vec![false; count], vec![true; count]]);
        for one in 0..count {
            all.push((0..count).map(|i| i == one).collect());
            all.push((0..count).map(|i| i != one).collect());
        }
        all.extend((0..more).map(|_| (0..count).map(|_| random.below(2) == 1).collect()));
    }
    all.into_iter()
}

impl Store for CrashStore {
    fn len(&self) -> u64 {
        self.now.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.now.read_at(offset, out)
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.log().push(Event::Write(offset, data.to_vec()));
        self.now.write_clobbering(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.log().push(Event::Flush);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_torn_and_overtake_each_other_until_a_flush() {
        let store = CrashStore::new(vec![0; 2048]);
        store.write_clobbering(256, &mut [1; 512]).expect("there is room");
        store.flush().expect("it never fails");
        store.write_clobbering(1024, &mut [2; 1024]).expect("there is room");
        let images = store.torn_images(0);
        let has = |parts: [u8; 4]| {
            images.iter().any(|image| [256, 512, 1024, 1536].iter().zip(parts).all(|(at, byte)| image[*at] == byte))
        };
        for parts in [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 2, 0], [1, 1, 0, 2], [1, 1, 2, 2]]
        {
            assert!(has(parts), "{parts:?}");
        }
        assert!(!has([0, 1, 2, 0]) && !has([1, 0, 0, 2]), "what was flushed stays");
    }
}
