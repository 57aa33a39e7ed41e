//! Resizes a volume together with its file.

use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};

use super::change::Prepared;
use super::filling;
use crate::error::{Error, ErrorKind, Result};
use crate::spec::Spec;
use crate::store::{FileStore, Growth, Store};

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
    /// # Errors
    /// `Io`, such as a full file system, and `Cancelled`: the header is then unchanged, and the file has its old length again.
    /// Those of [`crate::edit::Edit::carry_out`]: additional space in the file is then outside the volume, or filled. `InUse` if the
    /// process that lends the file cannot use the new size.
    pub fn carry_out(&self, file: &FileStore, spec: &Spec<'_>) -> Result<()> {
        let growth = Growth { start: self.start, len: self.size, rehearse: true };
        let refused = |e: Error| e.hint("Unmount it first. Nothing was changed.");
        if file.lender().is_some() && self.len < file.len() {
            return Err(refused(in_use("its file cannot become shorter meanwhile")));
        }
        tell_lender(file, &growth).map_err(not_grown).map_err(refused)?;
        let old = file.len();
        if self.end.min(old) < self.len {
            self.make_room(file, spec).map_err(|e| match file.change_len(old) {
                Ok(()) => e.hint("The volume has its old size."),
                Err(_) => e.hint("The volume opens as before; only its file has grown."),
            })?;
        }
        self.prepared.edit.carry_out(file)?;
        if file.len() != self.len {
            file.change_len(self.len)?;
        }
        let late =
            "The volume was resized. Where it is mounted or served, it has its old size until it is opened again.";
        match tell_lender(file, &Growth { rehearse: false, ..growth }) {
            // It ended meanwhile, so nobody uses the old size.
            Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) => Ok(()),
            grown => grown.map_err(|e| not_grown(e).hint(late)),
        }
    }

    /// Tells the process that lends `store` the present size, after the file, device or remote store has grown under a volume of
    /// dynamic size. Writes nothing.
    ///
    /// # Errors
    /// `InUse` if that process cannot use the new size.
    pub fn follow(&self, store: &dyn Store) -> Result<()> {
        tell_lender(store, &Growth { start: self.start, len: self.before, rehearse: false }).map_err(not_grown)
    }

    /// Makes the file long enough. Never cuts it.
    fn make_room(&self, file: &FileStore, spec: &Spec<'_>) -> Result<()> {
        let old = file.len();
        let reserved = self.len <= old || file.reserve(self.len)?;
        // If the file system cannot reserve space, only written space is certain.
        if !(spec.quick && reserved) {
            filling::fill(&file.growing(self.len), self.end.min(old)..self.len, spec)?;
        }
        file.change_len(self.len.max(old))
    }
}

/// Tells the process that lends the store, if there is one.
fn tell_lender(store: &dyn Store, growth: &Growth) -> io::Result<()> {
    store.lender().map_or(Ok(()), |lender| lender.grow(growth))
}

/// The lender's refusal, or why it did not answer.
fn not_grown(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::Unsupported { in_use(&error.to_string()) } else { error.into() }
}

fn in_use(why: &str) -> Error {
    ErrorKind::InUse { holder: Some(format!("mounted or served by claviger: {why}")) }.into()
}
