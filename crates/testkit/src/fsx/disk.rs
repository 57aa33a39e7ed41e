//! A disk, or a file as one: reads, writes, flushes, resizes, closes and reopens.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::Store;

use super::{Failure, Log, Plan, difference, some_range};
use crate::random::Random;

/// The disk under test.
pub trait Disk {
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Fills `out`.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes all of `data`.
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Flushes.
    fn flush(&mut self) -> io::Result<()>;
    /// The largest size that the disk supports; `None` if it cannot be resized.
    fn grows_to(&self) -> Option<u64> {
        None
    }
    /// Resizes the disk.
    fn set_len(&mut self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Closes and reopens the disk.
    fn reopen(&mut self) -> io::Result<()>;
}

/// A store, and a function that reopens it.
pub struct StoreDisk<F> {
    store: Arc<dyn Store>,
    open: F,
}

impl<F: FnMut() -> io::Result<Arc<dyn Store>>> StoreDisk<F> {
    /// Calls `open` now and for each reopening.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn new(mut open: F) -> io::Result<Self> {
        Ok(Self { store: open()?, open })
    }
}

impl<F: FnMut() -> io::Result<Arc<dyn Store>>> Disk for StoreDisk<F> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.store.len())
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.store.read_at(offset, out)
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        // A store may consume the data it writes.
        self.store.write_clobbering(offset, &mut data.to_vec())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.store.flush()
    }
    fn reopen(&mut self) -> io::Result<()> {
        self.store = (self.open)()?;
        Ok(())
    }
}

/// An ordinary path: a file in a mounted file system, the image file of a volume, or a block device.
pub struct FileDisk {
    path: PathBuf,
    file: File,
    grows_to: Option<u64>,
}

impl FileDisk {
    /// A file of fixed size.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn fixed(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: open(path)?, grows_to: None })
    }

    /// A file that may be resized up to `most` bytes.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn resizable(path: &Path, most: u64) -> io::Result<Self> {
        Ok(Self { grows_to: Some(most), ..Self::fixed(path)? })
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

impl Disk for FileDisk {
    fn size(&self) -> io::Result<u64> {
        // Seeks to the end, because a block device's metadata has no size.
        io::Seek::seek(&mut &self.file, io::SeekFrom::End(0))
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn grows_to(&self) -> Option<u64> {
        self.grows_to
    }
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        Ok(())
    }
}

/// Does random operations on `disk`, whose contents are `model`, and updates both. At the end the disk is flushed,
/// reopened and compared. Returns the number of operations.
///
/// # Errors
/// The first operation that fails, or the first byte that differs from the model.
pub fn exercise(disk: &mut dyn Disk, model: &mut Vec<u8>, plan: &Plan<'_>) -> Result<u64, Failure> {
    let mut log = Log::new(plan.seed);
    let mut random = Random::new(plan.seed);
    let mut last = (0, 0);
    while plan.goes_on(log.done) {
        let operation = Operation::some(&mut random, model.len() as u64, disk.grows_to(), plan.longest, &mut last);
        log.note(operation.to_string());
        carry_out(&operation, disk, model, &mut random).map_err(|what| log.failure(what))?;
    }
    for operation in [Operation::Flush, Operation::Reopen, Operation::Compare] {
        log.note(operation.to_string());
        carry_out(&operation, disk, model, &mut random).map_err(|what| log.failure(what))?;
    }
    Ok(log.done)
}

#[derive(Debug)]
enum Operation {
    Read(u64, usize),
    Write(u64, usize),
    SetLen(u64),
    Flush,
    Reopen,
    Compare,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(at, len) => write!(f, "read {len} bytes at {at}"),
            Self::Write(at, len) => write!(f, "write {len} bytes at {at}"),
            Self::SetLen(len) => write!(f, "set the size to {len}"),
            Self::Flush => f.write_str("flush"),
            Self::Reopen => f.write_str("close and open anew"),
            Self::Compare => f.write_str("compare all of it"),
        }
    }
}

impl Operation {
    fn some(random: &mut Random, len: u64, grows_to: Option<u64>, longest: usize, last: &mut (u64, usize)) -> Self {
        let room = grows_to.unwrap_or(len);
        let writes = |random: &mut Random, last: &mut (u64, usize)| {
            *last = some_range(random, room, longest, last);
            Self::Write(last.0, last.1)
        };
        match random.below(1000) {
            0..=449 if len > 0 => {
                *last = some_range(random, len, longest, last);
                Self::Read(last.0, last.1)
            }
            0..=929 => writes(random, last),
            930..=959 if grows_to.is_some() => Self::SetLen(random.number() % (room + 1)),
            960..=989 => Self::Flush,
            990..=996 => Self::Reopen,
            997 => Self::Compare,
            _ => writes(random, last),
        }
    }
}

fn carry_out(
    operation: &Operation,
    disk: &mut dyn Disk,
    model: &mut Vec<u8>,
    random: &mut Random,
) -> Result<(), String> {
    let failed = |e: io::Error| e.to_string();
    match *operation {
        Operation::Read(at, len) => {
            // Not zeros, which unread data could match by accident.
            let mut out = vec![0xee; len];
            disk.read(at, &mut out).map_err(failed)?;
            difference(&model[at as usize..][..len], &out, at).map_or(Ok(()), Err)
        }
        Operation::Write(at, len) => {
            let data = random.bytes(len);
            let end = at as usize + len;
            if end > model.len() {
                model.resize(end, 0);
            }
            model[at as usize..end].copy_from_slice(&data);
            disk.write(at, &data).map_err(failed)
        }
        Operation::SetLen(len) => {
            model.resize(len as usize, 0);
            disk.set_len(len).map_err(failed)
        }
        Operation::Flush => disk.flush().map_err(failed),
        Operation::Reopen => disk.reopen().map_err(failed),
        Operation::Compare => compare(disk, model),
    }
}

fn compare(disk: &mut dyn Disk, model: &[u8]) -> Result<(), String> {
    let len = disk.size().map_err(|e| e.to_string())?;
    if len != model.len() as u64 {
        return Err(format!("its size is {len} bytes instead of {}", model.len()));
    }
    let mut out = Vec::new();
    for (at, expected) in (0..).step_by(1 << 20).zip(model.chunks(1 << 20)) {
        out.clear();
        out.resize(expected.len(), 0xee);
        disk.read(at, &mut out).map_err(|e| e.to_string())?;
        if let Some(what) = difference(expected, &out, at) {
            return Err(what);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use claviger_engine::store::MemoryStore;

    use super::*;

    #[test]
    fn a_sound_file_passes_whatever_its_size_becomes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        std::fs::write(&path, "").expect("a file");
        let mut model = Vec::new();
        let mut disk = FileDisk::resizable(&path, 300_000).expect("it opens");
        let done = exercise(&mut disk, &mut model, &Plan::operations(1, 3000)).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(done, 3003);
        assert!(std::fs::read(&path).expect("it can be read") == model);
    }

    /// Loses the last byte of every write, starting with a given one.
    struct Forgetful {
        inner: MemoryStore,
        writes: AtomicU64,
        loses_from: u64,
    }

    impl Store for Forgetful {
        fn len(&self) -> u64 {
            self.inner.len()
        }
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.inner.read_at(offset, out)
        }
        fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            let lost = usize::from(self.writes.fetch_add(1, Ordering::Relaxed) >= self.loses_from);
            let len = data.len() - lost;
            self.inner.write_clobbering(offset, &mut data[..len])
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn failure_with(seed: u64) -> Failure {
        let mut model = Random::new(9).bytes(100_000);
        let inner = MemoryStore::new(model.clone());
        let store = Arc::new(Forgetful { inner, writes: AtomicU64::new(0), loses_from: 100 });
        let mut disk = StoreDisk::new(|| Ok(Arc::clone(&store) as Arc<dyn Store>)).expect("it opens");
        exercise(&mut disk, &mut model, &Plan::operations(seed, 2000)).expect_err("bytes are lost")
    }

    #[test]
    fn lost_bytes_are_found_and_come_again_with_the_same_seed() {
        let failure = failure_with(5);
        assert!(failure.what.contains("wrong bytes"), "{failure}");
        assert!(failure.to_string().contains("FSX_SEED=5") && failure.last.len() > 1, "{failure}");
        assert_eq!(failure.to_string(), failure_with(5).to_string());
        assert_ne!(failure.to_string(), failure_with(6).to_string());
    }
}
