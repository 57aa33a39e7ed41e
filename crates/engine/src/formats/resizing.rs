//! Resizes a volume together with its file.

use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};

use super::change::Prepared;
use super::filling;
use crate::error::{Error, ErrorKind, Result};
use crate::spec::Spec;
use crate::store::{FileStore, InUseResizing, Store};

/// A prepared change of a volume's size.
#[derive(Debug)]
#[non_exhaustive]
pub struct Resizing {
    /// The header's steps, to be carried out before the store is cut, or after it has grown.
    pub prepared: Prepared,
    /// The new length of the data's store, in bytes.
    pub len: u64,
    /// The present end of the volume in that store, in bytes. What follows is not the volume's own.
    pub end: u64,
    /// The present size of the plaintext, in bytes.
    pub before: u64,
    /// The new size of the plaintext, in bytes.
    pub size: u64,
    /// Where the data begin in the store, in bytes.
    pub start: u64,
}

impl Resizing {
    /// Changes the header and the length of `file`, which holds both header and data.
    ///
    /// A growing volume gets its space first: it is allocated, filled like a new volume's unless `spec.quick` is set, and durable
    /// before the header includes it. The file is never longer than what has been filled. So when the change is resumed after a
    /// crash, no part of the file merely looks done. A shrinking file is cut last.
    ///
    /// A process that lends the file hears of a smaller size before anything is changed, and of a larger one at last.
    ///
    /// # Errors
    /// `Io`, such as a full file system, and `Cancelled`: the header is then unchanged, and the file has its old length again.
    /// Those of [`crate::edit::Edit::carry_out`]: additional space in the file is then outside the volume, or filled. `InUse` if the
    /// process that lends the file cannot use the new size.
    pub fn carry_out(&self, file: &FileStore, spec: &Spec<'_>) -> Result<()> {
        let old = file.len();
        let cuts = self.size < self.before || self.len < old;
        let asked = InUseResizing { start: self.start, len: self.size, stored: self.len, rehearse: true };
        tell_lender(file, &asked).map_err(|e| not_resized(e).hint("Unmount it first. Nothing was changed."))?;
        if cuts {
            self.tell(file, "Nothing was changed in the file.")?;
        }
        self.make_room(file, spec).map_err(|e| match file.change_len(old) {
            Ok(()) => e.hint("The volume has its old size."),
            Err(_) => e.hint("The volume opens as before; only its file has grown."),
        })?;
        if let Err(e) = self.prepared.edit.carry_out(file) {
            // Best effort: whoever has it mounted shrank the file system before.
            let _ = tell_lender(file, &InUseResizing { len: self.before, stored: old, rehearse: false, ..asked });
            return Err(e);
        }
        if file.len() != self.len {
            file.change_len(self.len)?;
        }
        if cuts {
            return Ok(());
        }
        let late =
            "The volume was resized. Where it is mounted or served, it has its old size until it is opened again.";
        self.tell(file, late)
    }

    /// Tells the process that lends `file` the new size.
    fn tell(&self, file: &FileStore, hint: &str) -> Result<()> {
        match tell_lender(file, &InUseResizing { start: self.start, len: self.size, stored: self.len, rehearse: false })
        {
            // It ended meanwhile, so nobody uses the old size.
            Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) => Ok(()),
            told => told.map_err(|e| not_resized(e).hint(hint)),
        }
    }

    /// Tells the process that lends `store` the present size, after the file, device or remote store has grown under a volume of
    /// dynamic size. Writes nothing.
    ///
    /// # Errors
    /// `InUse` if that process cannot use the new size.
    pub fn follow(&self, store: &dyn Store) -> Result<()> {
        let resizing = InUseResizing { start: self.start, len: self.before, stored: store.len(), rehearse: false };
        tell_lender(store, &resizing).map_err(not_resized)
    }

    /// Makes the file long enough. Never cuts it.
    fn make_room(&self, file: &FileStore, spec: &Spec<'_>) -> Result<()> {
        let old = file.len();
        if self.end.min(old) >= self.len {
            return Ok(());
        }
        let reserved = self.len <= old || file.reserve(self.len)?;
        // If the file system cannot reserve space, only written space is certain.
        if !(spec.quick && reserved) {
            filling::fill(&file.growing(self.len), self.end.min(old)..self.len, spec)?;
        }
        file.change_len(self.len.max(old))
    }
}

/// Tells the process that lends the store, if there is one.
fn tell_lender(store: &dyn Store, resizing: &InUseResizing) -> io::Result<()> {
    store.lender().map_or(Ok(()), |lender| lender.resize(resizing))
}

/// The lender's refusal, or why it did not answer.
fn not_resized(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::Unsupported => {
            ErrorKind::InUse { holder: Some(format!("mounted or served by claviger: {error}")) }.into()
        }
        _ => error.into(),
    }
}
