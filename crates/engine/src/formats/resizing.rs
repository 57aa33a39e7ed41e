//! A volume that becomes longer or shorter, together with the file that it is in.

use super::change::Prepared;
use super::filling;
use crate::error::Result;
use crate::spec::Spec;
use crate::store::{FileStore, Store};

/// A change of a volume's size that has been prepared.
#[derive(Debug)]
#[non_exhaustive]
pub struct Resizing {
    /// What is to be written in the header: before the store is cut, or after it has grown.
    pub prepared: Prepared,
    /// What length the store of the data is to have, in bytes.
    pub len: u64,
    /// Where the volume ends in that store now, in bytes. What is behind it is not the volume's own.
    pub end: u64,
    /// The size of the plaintext now, in bytes.
    pub before: u64,
}

impl Resizing {
    /// Changes the header and the length of `file`, which holds both header and data.
    ///
    /// A volume that grows gets its room first: allocated, filled as that of a new volume is unless `spec.quick` says otherwise,
    /// and durable before the header speaks of it. The file is only ever as long as what has been filled, so whoever goes on
    /// after a crash of this program finds no part of it that merely looks done. One that shrinks is cut off last.
    ///
    /// # Errors
    /// `Io`, such as a full file system, and `Cancelled`: before the header is touched, and the file has its old length again.
    /// Those of [`crate::edit::Edit::carry_out`]; what the file then has in addition is not the volume's, or was filled.
    pub fn carry_out(&self, file: &FileStore, spec: &Spec<'_>) -> Result<()> {
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
        Ok(())
    }

    /// Makes the file long enough. It is never cut here.
    fn make_room(&self, file: &FileStore, spec: &Spec<'_>) -> Result<()> {
        let old = file.len();
        let reserved = self.len <= old || file.reserve(self.len)?;
        // Where nothing can be reserved, only what is written is sure to have room.
        if !(spec.quick && reserved) {
            filling::fill(&file.growing(self.len), self.end.min(old)..self.len, spec)?;
        }
        file.change_len(self.len.max(old))
    }
}
