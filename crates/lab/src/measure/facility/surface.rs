//! Bytes at offsets: an open facility as workloads on blocks see it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};
use claviger_serve::nbd::{Client, NbdAddress};

use crate::measure::memory::Buffer;
use crate::measure::transfer::{Device, FileDevice};

/// Size of a page, in bytes, which is the largest sector size of disks.
const PAGE: usize = 4096;

/// Bytes at offsets: a whole volume, or a large file in a folder.
#[derive(Clone, Debug)]
pub struct Surface {
    /// How it is reached.
    pub way: SurfaceKind,
    /// Bytes, a multiple of 4096.
    pub len: u64,
    /// Whether it can be read and written around the page cache, in requests of whole pages of 4096 bytes from buffers
    /// that begin on a page border. Smaller ones are refused where the sectors below are larger.
    pub direct: bool,
}

/// How bytes are reached.
#[derive(Clone, Debug)]
pub enum SurfaceKind {
    /// A file or device.
    File(PathBuf),
    /// An NBD server at this Unix socket.
    Nbd(PathBuf),
}

impl Surface {
    /// The existing part of the first `len` bytes of a file or device. They are written back unchanged to test
    /// direct I/O.
    ///
    /// # Errors
    /// `Io`.
    pub fn of_file(path: &Path, len: u64) -> Result<Self> {
        let look = || -> io::Result<Self> {
            let mut file = File::open(path)?;
            let there = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
            Ok(Self { way: SurfaceKind::File(path.to_owned()), len: whole(there.min(len)), direct: takes_direct(path) })
        };
        look().map_err(|e| Error::from(e).at(path))
    }

    /// The existing part of the first `len` bytes of an NBD export. No page cache is involved.
    ///
    /// # Errors
    /// `Io`.
    pub fn of_nbd(socket: &Path, len: u64) -> Result<Self> {
        let client = Client::connect(&NbdAddress::Unix(socket.to_owned()), "");
        let there = client.map_err(|e| Error::from(e).at(socket))?.len();
        Ok(Self { way: SurfaceKind::Nbd(socket.to_owned()), len: whole(there.min(len)), direct: true })
    }

    /// Opens it for one thread, bypassing the page cache if possible.
    ///
    /// # Errors
    /// `Io`.
    pub fn device(&self) -> Result<Box<dyn Device>> {
        Ok(match &self.way {
            SurfaceKind::File(path) => {
                Box::new(FileDevice::open(path, self.direct).map_err(|e| Error::from(e).at(path))?)
            }
            SurfaceKind::Nbd(socket) => {
                let address = NbdAddress::Unix(socket.clone());
                Box::new(Client::connect(&address, "").map_err(|e| Error::from(e).at(socket))?)
            }
        })
    }
}

fn whole(len: u64) -> u64 {
    len - len % PAGE as u64
}

/// Tries it with one page, which is written back unchanged: some file systems open a file for direct I/O and then
/// refuse it. A whole page is used because sectors of 4096 bytes must not make a facility differ from its baseline.
fn takes_direct(path: &Path) -> bool {
    let attempt = || -> io::Result<()> {
        let mut file = FileDevice::open(path, true)?;
        let mut page = Buffer::new(PAGE);
        file.read(0, &mut page)?;
        file.write(0, &mut page)
    };
    attempt().is_ok()
}
