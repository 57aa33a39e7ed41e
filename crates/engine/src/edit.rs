//! Changes of what is on a disk, as plain data: formats build an [`Edit`], and [`Edit::carry_out`] alone writes.
//!
//! A crash, a full disk or a pulled cable must leave a volume that opens. So an edit is a list of steps in an order such that
//! after any number of them there is a header that opens, and no step begins before the one before it is on the disk.
//!
//! An edit is made for what was read, and deriving keys takes seconds in which another program may change it. So an edit can
//! say what it was made for ([`Seen`]), and is not carried out where something else is there by then.

use std::fmt;
use std::io;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// A change of a volume: what is written where, in order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// The steps, in the order in which they are to reach the disk.
    pub steps: Vec<Step>,
    /// What it was made for: where something else is there, nothing is written.
    pub seen: Vec<Seen>,
}

/// A part of a store as it was read: a checksum, or all that is to be changed.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// Where, in bytes from the beginning of the store.
    pub at: u64,
    /// What was there.
    pub bytes: Vec<u8>,
}

/// One write. What it writes is ciphertext or random bytes, never a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Step {
    /// What is written, as a person calls it: `the primary header`.
    pub what: String,
    /// Where, in bytes from the beginning of the store.
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
    /// These steps, whatever is there.
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps, seen: Vec::new() }
    }

    /// The same, but only where this is still there.
    pub fn made_for(self, seen: Vec<Seen>) -> Self {
        Self { seen, ..self }
    }

    /// Carries the steps out, one after the other: each is written, flushed, read back and compared before the next begins.
    ///
    /// What is read back may come from the system's cache: it shows that the store took the bytes, while that the disk has them
    /// is the flush's word.
    ///
    /// A step that fails is undone as well as can be: what was there before is written back. Steps that are done stay.
    ///
    /// # Errors
    /// `Misuse` before anything is written, if the store cannot be written to or a step reaches past its end; `InUse` if
    /// another program has changed what the edit was made for, or is changing it. `Io` if a step failed; the hint says what was
    /// done and what was not.
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

    /// Whether what the edit was made for is still there.
    fn nothing_else(&self, store: &dyn Store) -> Result<()> {
        for Seen { at, bytes } in &self.seen {
            let mut now = vec![0; bytes.len()];
            store.read_at(*at, &mut now)?;
            if now != *bytes {
                let holder = Some("another program has changed the header meanwhile".to_owned());
                return Err(Error::new(ErrorKind::InUse { holder }).hint("Nothing was changed. Try again."));
            }
        }
        Ok(())
    }

    /// What is there when each step's turn comes, which an earlier step may have written. Nothing is written before it is known
    /// that all of it can be read.
    fn before(&self, store: &dyn Store) -> Result<Vec<Vec<u8>>> {
        if !self.steps.is_empty() && !store.writable() {
            return Err(Error::misuse("it was opened for reading only; nothing was changed"));
        }
        let len = store.len();
        let mut before = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            if step.at.checked_add(step.bytes.len() as u64).is_none_or(|end| end > len) {
                return Err(Error::misuse(format!("{step:?} reaches past the end at {len}; nothing was changed")));
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
            true => format!("What was at byte {} before was written back.", failed.at),
            false => format!("What is at byte {} now is not known.", failed.at),
        };
        if done > 0 {
            hint += &format!(" Written before: {}.", names(&self.steps[..done]));
        }
        if done + 1 < self.steps.len() {
            hint += &format!(" Not touched: {}.", names(&self.steps[done + 1..]));
        }
        let what = format!("{} could not be written: {error}", failed.what);
        Error::new(ErrorKind::Io(io::Error::new(error.kind(), what))).hint(hint)
    }
}

impl Step {
    fn carry_out(&self, store: &dyn Store) -> io::Result<()> {
        Self::put(store, self.at, &self.bytes)
    }

    /// Puts what this step writes over `bytes`, which are those from `at` on.
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

    /// Writes, flushes, and looks whether it is there.
    fn put(store: &dyn Store, at: u64, bytes: &[u8]) -> io::Result<()> {
        // The store consumes what it writes.
        let mut buffer = bytes.to_vec();
        store.write_at(at, &mut buffer)?;
        store.flush()?;
        store.read_at(at, &mut buffer)?;
        if buffer != bytes {
            return Err(io::Error::other("what is read back is not what was written"));
        }
        Ok(())
    }
}
