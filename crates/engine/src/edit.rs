//! Changes to a disk, as plain data: formats build an [`Edit`], and only [`Edit::carry_out`] writes.
//!
//! A crash, a full disk or a pulled cable must leave a volume that opens. So an edit is a list of steps in an order such that some
//! header opens after any number of them. No step begins before the previous one is on the disk.
//!
//! An edit is based on what was read, but deriving keys takes seconds, in which another program may change the store. So an edit
//! can record what it is based on ([`Seen`]), and fails if that has changed.

use std::fmt;
use std::io;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// A change to a volume: what is written where, in order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// The steps, in the order in which they must reach the disk.
    pub steps: Vec<Step>,
    /// What it is based on: if any of this has changed, nothing is written.
    pub seen: Vec<Seen>,
}

/// Part of a store as it was read: a checksum, or everything that will be changed.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// Offset in the store, in bytes.
    pub at: u64,
    /// What was there.
    pub bytes: Vec<u8>,
}

/// One write. What it writes is ciphertext or random bytes, never a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Step {
    /// What is written, in the user's words: `the primary header`.
    pub what: String,
    /// Offset in the store, in bytes.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes at {})", self.what, self.bytes.len(), self.at)
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.bytes.len(), self.at)
    }
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.steps).finish()
    }
}

impl Edit {
    /// An edit without a check of the current contents.
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps, seen: Vec::new() }
    }

    /// Makes the edit depend on `seen`: it fails if that has changed.
    pub fn made_for(self, seen: Vec<Seen>) -> Self {
        Self { seen, ..self }
    }

    /// Carries out the steps in order: each is written, flushed, read back and compared before the next begins.
    ///
    /// Reading back may use the system's cache: it shows that the store accepted the bytes. The flush guarantees that they are on
    /// the disk.
    ///
    /// A step that fails is undone if possible, by writing back what was there before. Completed steps stay.
    ///
    /// # Errors
    /// `Misuse` before anything is written, if the store cannot be written to or a step reaches past its end; `InUse`
    /// if another program has changed what the edit is based on, or is changing it. `Io` if a step failed; the hint
    /// says what was done and what was not.
    pub fn carry_out(&self, store: &dyn Store) -> Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let _locked = store.lock_header()?;
        self.nothing_else(store)?;
        let before = self.before(store)?;
        for (done, (step, before)) in self.steps.iter().zip(&before).enumerate() {
            step.carry_out(store).map_err(|error| {
                let undone = step.undo(store, before);
                self.failure(done, &error, undone.is_ok())
            })?;
        }
        Ok(())
    }

    /// Checks that what the edit is based on has not changed.
    fn nothing_else(&self, store: &dyn Store) -> Result<()> {
        for Seen { at, bytes } in &self.seen {
            let mut now = vec![0; bytes.len()];
            store.read_at(*at, &mut now)?;
            if now != *bytes {
                let holder = Some("another program has just changed the header".to_owned());
                return Err(Error::new(ErrorKind::InUse { holder }).hint("Nothing was changed. Try again."));
            }
        }
        Ok(())
    }

    /// What each step will overwrite, which may include data of an earlier step. Everything is read before anything is written.
    fn before(&self, store: &dyn Store) -> Result<Vec<Vec<u8>>> {
        if !self.steps.is_empty() && !store.writable() {
            return Err(Error::misuse("it was opened read-only; nothing was changed"));
        }
        let len = store.len();
        let mut before = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            if step.at.checked_add(step.bytes.len() as u64).is_none_or(|end| end > len) {
                return Err(Error::misuse(format!("{step:?} reaches past the end (byte {len}); nothing was changed")));
            }
            let mut bytes = vec![0; step.bytes.len()];
            store.read_at(step.at, &mut bytes)?;
            self.steps[..number].iter().for_each(|earlier| earlier.put_over(step.at, &mut bytes));
            before.push(bytes);
        }
        Ok(before)
    }

    fn failure(&self, done: usize, error: &io::Error, undone: bool) -> Error {
        let names = |steps: &[Step]| steps.iter().map(|s| s.what.as_str()).collect::<Vec<_>>().join(", ");
        let failed = &self.steps[done];
        let mut hint = match undone {
            true => format!("The old contents at byte {} were restored.", failed.at),
            false => format!("The contents at byte {} are now unknown.", failed.at),
        };
        if done > 0 {
            hint += &format!(" Already written: {}.", names(&self.steps[..done]));
        }
        if done + 1 < self.steps.len() {
            hint += &format!(" Unchanged: {}.", names(&self.steps[done + 1..]));
        }
        let what = format!("{} could not be written: {error}", failed.what);
        Error::new(ErrorKind::Io(io::Error::new(error.kind(), what))).hint(hint)
    }
}

impl Step {
    fn carry_out(&self, store: &dyn Store) -> io::Result<()> {
        Self::put(store, self.at, &self.bytes)
    }

    /// Applies this step to `bytes`, which were read at offset `at`.
    fn put_over(&self, at: u64, bytes: &mut [u8]) {
        let (from, to) = (self.at.max(at), (self.at + self.bytes.len() as u64).min(at + bytes.len() as u64));
        if from < to {
            let source = &self.bytes[(from - self.at) as usize..(to - self.at) as usize];
            bytes[(from - at) as usize..(to - at) as usize].copy_from_slice(source);
        }
    }

    fn undo(&self, store: &dyn Store, before: &[u8]) -> io::Result<()> {
        Self::put(store, self.at, before)
    }

    /// Writes, flushes, and reads back to compare.
    fn put(store: &dyn Store, at: u64, bytes: &[u8]) -> io::Result<()> {
        // The store consumes the data it writes.
        let mut buffer = bytes.to_vec();
        store.write_clobbering(at, &mut buffer)?;
        store.flush()?;
        store.read_at(at, &mut buffer)?;
        if buffer != bytes {
            return Err(io::Error::other("the data read back differ from the data written"));
        }
        Ok(())
    }
}
