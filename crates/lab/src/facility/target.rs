//! A facility in use: made in a store of its own, opened, and used as bytes or as files.

use std::path::PathBuf;

use claviger_engine::Result;

use super::Facility;
use crate::meter::Elapsed;
use crate::transfer::Device;
use crate::workloads::Lab;

/// A facility with a store of its own. Dropping it closes it and removes the store.
pub struct Target {
    facility: Facility,
}

/// Bytes at offsets: a whole volume, or a large file in a folder.
#[derive(Clone, Debug)]
pub struct Surface {
    /// How it is reached.
    pub way: Way,
    /// Bytes, a multiple of 4096.
    pub len: u64,
    /// Whether it can be read and written around the page cache.
    pub direct: bool,
}

/// How bytes are reached.
#[derive(Clone, Debug)]
pub enum Way {
    /// A file or device.
    File(PathBuf),
    /// An NBD server at this Unix socket.
    Nbd(PathBuf),
}

impl Surface {
    /// Opens it for one thread, around the page cache where that can be.
    ///
    /// # Errors
    /// `Io`.
    pub fn device(&self) -> Result<Box<dyn Device>> {
        unimplemented!()
    }
}

impl Target {
    /// A facility with a store of its own, not made yet.
    ///
    /// # Errors
    /// `Io` where there is no room.
    pub fn new(facility: &Facility, lab: &Lab) -> Result<Self> {
        let _ = lab;
        Ok(Self { facility: facility.clone() })
    }

    /// What it is.
    pub fn facility(&self) -> &Facility {
        &self.facility
    }

    /// Makes the encrypted store anew. What was in it is gone. Closes it before.
    ///
    /// # Errors
    /// `Io` with what the command printed; `Cancelled`.
    pub fn create(&mut self) -> Result<Elapsed> {
        unimplemented!()
    }

    /// Makes it anew by [`Facility::create_default`], or as [`Target::create`] does where there is none: opening it then costs
    /// what it costs people.
    ///
    /// # Errors
    /// As [`Target::create`].
    pub fn create_default(&mut self) -> Result<Elapsed> {
        unimplemented!()
    }

    /// Tries to open it with a wrong passphrase: how long it takes to be refused. It is closed before and after.
    ///
    /// # Errors
    /// As [`Target::create`]; `Unsupported` where it opens, since it cannot tell, or where no step uses a passphrase.
    pub fn refuse(&mut self) -> Result<Elapsed> {
        unimplemented!()
    }

    /// Opens it, if it is closed. Makes it first if it was never made.
    ///
    /// # Errors
    /// As [`Target::create`].
    pub fn open(&mut self) -> Result<Elapsed> {
        unimplemented!()
    }

    /// Closes it, with the file system that was made in it: everything is in the store then.
    ///
    /// # Errors
    /// As [`Target::create`].
    pub fn close(&mut self) -> Result<()> {
        unimplemented!()
    }

    /// It as bytes: opened if need be. Of a facility that gives a folder, a large file in it, in which all bytes have been
    /// written. A file system that was made in it is gone.
    ///
    /// # Errors
    /// As [`Target::create`].
    pub fn bytes(&mut self) -> Result<Surface> {
        unimplemented!()
    }

    /// It as a folder: opened if need be. In a facility that gives bytes, an ext4 file system is made and mounted unless that was done
    /// before. The folder may hold what the last workload left.
    ///
    /// # Errors
    /// As [`Target::create`]; `Unsupported` where bytes have no folder, such as over NBD.
    pub fn folder(&mut self) -> Result<PathBuf> {
        unimplemented!()
    }

    /// The processes that serve it while it is open, as far as they are known: those that its commands left behind. Empty for
    /// what the kernel does.
    pub fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}
