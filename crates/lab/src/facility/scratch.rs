//! A folder for mount points and sockets.

use std::fs;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};

/// A new folder of this user's own, which is removed when this is dropped, unless there is still something in it: nothing is
/// ever removed from what may be mounted there.
pub struct Scratch(PathBuf);

impl Scratch {
    /// In the system's folder for temporary files.
    ///
    /// # Errors
    /// `Io`.
    pub fn new() -> Result<Self> {
        Self::below(&std::env::temp_dir())
    }

    /// In this folder.
    ///
    /// # Errors
    /// `Io`.
    pub fn below(folder: &Path) -> Result<Self> {
        // Short: names of sockets have 107 bytes.
        let made = tempfile::Builder::new().prefix("lab-").tempdir_in(folder).map_err(|e| Error::from(e).at(folder))?;
        Ok(Self(made.keep()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
