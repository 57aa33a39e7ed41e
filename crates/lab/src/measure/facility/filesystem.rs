//! A file system on a file or device: what people put into an encrypted volume.

use std::fs;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, ErrorKind, Result};
use claviger_serve::mount::LoopDevice;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::geteuid;

use super::CommandStep;
use super::process::{self, Background, Runner, retry};
use super::words::unicode;
use crate::measure::program;
use crate::model::parameters::FilesystemKind;

impl FilesystemKind {
    /// Why it cannot be made and mounted here, as a whole sentence. ext4 is not checked: its programs report what fails.
    pub fn missing(self) -> Option<String> {
        if self == Self::Ext4 {
            return None;
        }
        if !geteuid().is_root() {
            return Some("It requires root.".into());
        }
        let unknown = || format!("The kernel does not support the file system {}.", self.name());
        let mkfs = format!("mkfs.{}", self.name());
        program::missing(&[&mkfs]).or_else(|| (!process::kernel_mounts(self.name())).then(unknown))
    }
}

/// A mounted file system. Dropped, it is taken down.
pub struct MountedFilesystem {
    dir: PathBuf,
    /// The loop device below the kernel's file system, if that is in a file.
    loop_device: Option<LoopDevice>,
    /// Without root: the program that serves it.
    program: Option<Background>,
    mounted: bool,
}

impl MountedFilesystem {
    /// Creates a file system of `len` bytes, or as large as the existing file or block device, and mounts it on `dir`.
    ///
    /// # Errors
    /// `Io` with what a program printed; `Cancelled`.
    pub fn make(kind: FilesystemKind, on: &Path, len: Option<u64>, dir: &Path, runner: &Runner) -> Result<Self> {
        runner.run(&mkfs(kind, on, len)?, dir)?;
        Self::mount(kind, on, dir, runner)
    }

    /// Mounts the file system in a file or block device on `dir`: as root with the kernel's driver, through a loop
    /// device with direct I/O if it is in a file; otherwise with fuse2fs, which only supports ext4.
    pub fn mount(kind: FilesystemKind, on: &Path, dir: &Path, runner: &Runner) -> Result<Self> {
        fs::create_dir_all(dir).map_err(|e| Error::from(e).at(dir))?;
        let is_file = fs::metadata(on).map_err(|e| Error::from(e).at(on))?.is_file();
        let root = geteuid().is_root();
        let loop_device = if root && is_file { Some(LoopDevice::attach(on, false, None)?) } else { None };
        let mut made = Self { dir: dir.to_owned(), loop_device, program: None, mounted: false };
        if root {
            let device = made.loop_device.as_ref().map_or(on, LoopDevice::path);
            let mounted = mount(device, dir, kind.name(), MountFlags::NOSUID | MountFlags::NODEV, None);
            mounted.map_err(|e| Error::from(std::io::Error::from(e)).at(device))?;
        } else {
            made.program = runner.run(&fuse2fs(on, dir)?, dir)?;
        }
        made.mounted = true;
        Ok(made)
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes everything and unmounts it.
    ///
    /// # Errors
    /// `Io`; `InUse` if somebody has a file in it open: it is then detached nevertheless.
    pub fn close(mut self) -> Result<()> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<()> {
        if !self.mounted {
            return Ok(());
        }
        self.mounted = false;
        if let Some(program) = self.program.take() {
            return program.close(false);
        }
        let taken_down = take_down(&self.dir);
        self.loop_device = None;
        taken_down
    }
}

impl Drop for MountedFilesystem {
    fn drop(&mut self) {
        let _ = self.take_down();
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Unmounts what is mounted on `dir`; if it is in use, detaches it lazily.
///
/// # Errors
/// `InUse` in that case; `Io`.
pub fn take_down(dir: &Path) -> Result<()> {
    let tried = retry(|| match unmount(dir, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => None,
        done => Some(done),
    });
    match tried {
        Some(done) => done.map_err(|e| Error::from(std::io::Error::from(e)).at(dir)),
        None => {
            let _ = unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
            Err(Error::new(ErrorKind::InUse { holder: Some("a file in it is open".to_owned()) }).at(dir))
        }
    }
}

const EXT4_AT_ONCE: &str = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";

/// Creates everything at once: work that the kernel leaves for later would be measured. Discards nothing: holes would
/// be measured, too.
fn mkfs(kind: FilesystemKind, device: &Path, len: Option<u64>) -> Result<CommandStep> {
    const EXT4: &[&str] = &["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-E", EXT4_AT_ONCE];
    const XFS: &[&str] = &["mkfs.xfs", "-q", "-f", "-K"];
    const VFAT: &[&str] = &["mkfs.vfat", "-F", "32", "-I"];
    let device = unicode(device)?;
    let in_units = |unit: u64| len.map(|len| (len / unit).to_string());
    match kind {
        FilesystemKind::Ext4 => step(EXT4.iter().copied().chain([device]).chain(in_units(4096).as_deref())),
        FilesystemKind::Xfs => {
            let size = len.map(|len| format!("size={}", len - len % 4096));
            step(XFS.iter().copied().chain(size.iter().flat_map(|size| ["-d", size])).chain([device]))
        }
        FilesystemKind::Vfat => step(VFAT.iter().copied().chain([device]).chain(in_units(1024).as_deref())),
    }
}

fn fuse2fs(image: &Path, dir: &Path) -> Result<CommandStep> {
    let foreground = step(["fuse2fs", "-f", "-o", "fakeroot", unicode(image)?, unicode(dir)?])?;
    Ok(CommandStep { until_there: Some(dir.to_owned()), ..foreground })
}

fn step<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<CommandStep> {
    Ok(CommandStep { run: words.into_iter().map(ToOwned::to_owned).collect(), ..CommandStep::default() })
}
