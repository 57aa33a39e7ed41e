//! A record of the requests that a server answered: `--trace`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use claviger_engine::store::{Growth, HeaderLock};
use claviger_engine::{Error, Result, Store};

use crate::opening::new_file;
use crate::terminal::output;

/// The column names, as the first line. Seconds are counted from the start of the server to the end of the request; offset and
/// length are bytes of the plaintext; `direction` is `read` or `write`.
const HEADING: &str = "seconds,offset,length,direction\n";

/// The option of verbs that serve.
#[derive(clap::Args)]
pub struct TraceArgs {
    /// Log each answered request to this new file (CSV): seconds since the start, offset, length, read or write
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl TraceArgs {
    /// Refuses to log anything but a store.
    ///
    /// # Errors
    /// `Misuse`.
    pub fn refuse(&self) -> Result<()> {
        match self.trace {
            Some(_) => Err(Error::misuse("--trace works only for volumes: encrypted folders have no offsets")),
            None => Ok(()),
        }
    }

    /// The store, which logs its requests if the option was given.
    ///
    /// # Errors
    /// `Misuse` if the file exists; `Io`.
    pub fn over(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>> {
        match &self.trace {
            Some(path) => Ok(Arc::new(Traced::new(store, path)?)),
            None => Ok(store),
        }
    }
}

/// A store that logs reads and writes. Failed requests are not logged.
struct Traced {
    inner: Arc<dyn Store>,
    started: Instant,
    path: PathBuf,
    record: Mutex<Record>,
}

struct Record {
    file: BufWriter<File>,
    /// The first error, after which the record is incomplete.
    failure: Option<io::Error>,
}

impl Traced {
    fn new(inner: Arc<dyn Store>, path: &Path) -> Result<Self> {
        let file = new_file::write(path, HEADING.as_bytes())?;
        // A line takes about 30 bytes: one system call per 2000 requests.
        let record = Record { file: BufWriter::with_capacity(64 << 10, file), failure: None };
        Ok(Self { inner, started: Instant::now(), path: path.to_owned(), record: Mutex::new(record) })
    }

    fn note(&self, offset: u64, len: usize, direction: &str) {
        let mut record = self.record();
        let at = self.started.elapsed();
        let (seconds, micros) = (at.as_secs(), at.subsec_micros());
        let written = writeln!(record.file, "{seconds}.{micros:06},{offset},{len},{direction}");
        record.failed(written);
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn failed(&mut self, result: io::Result<()>) {
        if let Err(e) = result {
            self.failure.get_or_insert(e);
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let mut record = self.record();
        let flushed = record.file.flush();
        record.failed(flushed);
        if let Some(e) = &record.failure {
            output::warn(&format!("{}: the request log is incomplete: {e}", self.path.display()));
        }
    }
}

impl Store for Traced {
    fn below(&self) -> Option<&dyn Store> {
        Some(&self.inner)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, out)?;
        self.note(offset, out.len(), "read");
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.inner.write_clobbering(offset, data)?;
        self.note(offset, data.len(), "write");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn lock_header(&self) -> Result<Option<HeaderLock>> {
        self.inner.lock_header()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn grow(&self, growth: &Growth) -> io::Result<()> {
        self.inner.grow(growth)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use claviger_engine::store::MemoryStore;

    use super::*;

    #[test]
    fn requests_are_written_down_as_they_were() {
        let dir = tempfile::tempdir().expect("a folder");
        let args = TraceArgs { trace: Some(dir.path().join("trace")) };
        let memory = || Arc::new(MemoryStore::new(vec![0; 8192]));
        let store = args.over(memory()).expect("a new file");
        store.write_clobbering(512, &mut [1; 1024]).expect("written");
        store.read_at(0, &mut [0; 512]).expect("read");
        assert!(store.read_at(8192, &mut [0; 1]).is_err(), "past the end");
        drop(store);
        let text = std::fs::read_to_string(dir.path().join("trace")).expect("a record");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], HEADING.trim_end());
        assert!(lines[1].ends_with(",512,1024,write") && lines[2].ends_with(",0,512,read"), "{text}");
        let seconds = |line: &str| line.split(',').next().and_then(|s| s.parse::<f64>().ok()).expect("seconds");
        assert!(seconds(lines[1]) <= seconds(lines[2]));
        assert!(args.over(memory()).is_err(), "nothing is overwritten");
    }
}
