//! Loop devices, because the kernel's file systems need a block device.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::loop_sys::{self, AUTOCLEAR, DIRECT_IO, READ_ONLY};

/// A loop device. It detaches itself once this is dropped and nobody else has it open, unless it is mounted.
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches `image` to a free device, with sectors of `sector_size` bytes if given and supported by the kernel.
    ///
    /// # Errors
    /// `Io` without root, or if there are no loop devices.
    pub fn attach(image: &Path, read_only: bool, sector_size: Option<u64>) -> Result<Self> {
        let backing =
            OpenOptions::new().read(true).write(!read_only).open(image).map_err(|e| Error::from(e).at(image))?;
        loop {
            let path = free()?;
            let attached = OpenOptions::new().read(true).write(!read_only).open(&path).and_then(|device| {
                configure(&device, &backing, read_only, sector_size, image)?;
                Ok(device)
            });
            match attached {
                Ok(device) => return Ok(Self { path, _open: device }),
                // Another process was faster.
                Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
                Err(e) => return Err(Error::new(ErrorKind::Io(e)).at(&path)),
            }
        }
    }

    /// The path of the device node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A device that is free, which is created if necessary.
fn free() -> Result<PathBuf> {
    let control = Path::new("/dev/loop-control");
    let number = OpenOptions::new().read(true).write(true).open(control).and_then(|open| loop_sys::free_number(&open));
    let number = number.map_err(|e| Error::from(e).at(control).hint("Mounting as root needs loop devices."))?;
    Ok(PathBuf::from(format!("/dev/loop{number}")))
}

/// Whether this machine lets us use loop devices. Most containers do not, even for root.
pub fn available() -> bool {
    free().is_ok_and(|device| File::open(device).is_ok())
}

fn configure(device: &File, backing: &File, read_only: bool, sector_size: Option<u64>, image: &Path) -> io::Result<()> {
    /// Lets the kernel choose.
    const ANY: u32 = 0;
    let flags = AUTOCLEAR | if read_only { READ_ONLY } else { 0 };
    let sectors = sector_size.and_then(|size| size.try_into().ok()).unwrap_or(ANY);
    let name = image.as_os_str().as_bytes();
    // If the underlying file does not support direct I/O, some kernels refuse it and others silently ignore it. Kernels
    // also refuse sectors larger than a page.
    let mut tried = Err(io::ErrorKind::InvalidInput.into());
    for (flags, sectors) in [(flags | DIRECT_IO, sectors), (flags, sectors), (flags | DIRECT_IO, ANY), (flags, ANY)] {
        tried = loop_sys::configure(device, backing, flags, sectors, name);
        if !matches!(&tried, Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error())) {
            break;
        }
    }
    tried
}

/// Detaches the loop devices that a killed server left behind on files in `folder`.
pub fn detach_below(folder: &Path) {
    for device in attached_below(folder) {
        if let Ok(device) = File::open(&device) {
            let _ = loop_sys::clear(&device);
        }
    }
}

/// The loop devices backed by files in `folder`. The kernel's name of the file is compared; nothing is looked up.
fn attached_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(devices) = fs::read_dir("/sys/block") else { return Vec::new() };
    let below = |device: fs::DirEntry| {
        let backing = fs::read(device.path().join("loop/backing_file")).ok()?;
        let backing = Path::new(std::ffi::OsStr::from_bytes(backing.trim_ascii_end()));
        backing.starts_with(folder).then(|| Path::new("/dev").join(device.file_name()))
    };
    devices.flatten().filter_map(below).collect()
}
