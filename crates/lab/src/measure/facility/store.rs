//! Where a facility keeps its encrypted data: a file, a folder or a block device of its own.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use claviger_engine::{Error, ErrorKind, Result};
use claviger_serve::mount::LoopDevice;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use super::StoreKind;
use super::filesystem::MountedFilesystem;
use super::process::Runner;
use crate::model::parameters::FilesystemKind;
use crate::model::plan::Backing;

/// Room for headers, in bytes: those of LUKS2 take 16 MiB in front, and a file system of its own keeps some for itself.
const HEADERS: u64 = 32 << 20;

/// Space for data stored beside each sector, such as tags: a share of the volume.
const BESIDE: u64 = 8;

/// Which facility's data each of the user's devices holds, and whether the device is in use: it has room for one
/// facility only.
static DEVICES: Mutex<BTreeMap<PathBuf, (String, bool)>> = Mutex::new(BTreeMap::new());

/// Where encrypted data are kept. Dropping it removes what was created for it.
pub struct FacilityStore {
    kind: StoreKind,
    id: String,
    /// The user's device, if the data are on it.
    device: Option<PathBuf>,
    /// A folder of its own, in the backing.
    dir: PathBuf,
    /// Bytes of a file or device.
    len: u64,
    loop_device: Option<LoopDevice>,
    /// The file system on the user's device, if the facility needs a folder.
    filesystem: Option<MountedFilesystem>,
}

impl FacilityStore {
    /// Room for a volume of `size` bytes.
    ///
    /// # Errors
    /// `Io` where there is no room; `Unsupported` where that takes root.
    pub fn new(kind: StoreKind, id: &str, size: u64, backing: &Backing, stores: &Path) -> Result<Self> {
        let device = match backing {
            Backing::Device(device) => Some(device.clone()),
            Backing::Tmpfs(_) | Backing::Folder(_) => None,
        };
        let len = (size + size / BESIDE).next_multiple_of(1 << 20) + HEADERS;
        let dir = stores.join(id);
        let mut store = Self { kind, id: id.to_owned(), device, dir, len, loop_device: None, filesystem: None };
        if store.device.is_none() {
            store.prepare().inspect_err(|_| {
                let _ = fs::remove_dir_all(&store.dir);
            })?;
        }
        Ok(store)
    }

    /// What `{store}` stands for.
    pub fn path(&self) -> PathBuf {
        match (&self.device, &self.loop_device, &self.filesystem) {
            (_, _, Some(filesystem)) => filesystem.dir().join("store"),
            (Some(device), _, _) => device.clone(),
            (_, Some(device), _) => device.path().to_owned(),
            _ => self.dir.join("store"),
        }
    }

    /// The block device that holds the data, if any: the user's, or one that was made for them.
    pub fn device(&self) -> Option<&Path> {
        self.device.as_deref().or(self.loop_device.as_ref().map(LoopDevice::path))
    }

    /// Where its bytes can be read. Not through a loop device, whose page cache does not see what a mapping over it wrote.
    pub fn contents(&self) -> PathBuf {
        if self.loop_device.is_some() { self.dir.join("store") } else { self.path() }
    }

    /// Makes it empty.
    pub fn clear(&mut self, runner: &Runner) -> Result<()> {
        match (&self.device, self.kind) {
            (Some(device), StoreKind::Folder) => {
                self.filesystem = None;
                let made =
                    MountedFilesystem::make(FilesystemKind::Ext4, device, None, &runner.dir.join("backing"), runner)?;
                fs::create_dir(made.dir().join("store"))?;
                self.filesystem = Some(made);
            }
            (Some(device), StoreKind::File | StoreKind::Device) => wipe_ends(device)?,
            (None, StoreKind::Folder) => {
                fs::remove_dir_all(self.path()).map_err(|e| Error::from(e).at(&self.dir))?;
                fs::create_dir(self.path())?;
            }
            (None, StoreKind::Device) => wipe_ends(&self.path())?,
            (None, StoreKind::File) => self.new_file()?,
        }
        Ok(())
    }

    /// Takes the user's device for the time in which the facility is open. True if it holds what this facility wrote
    /// last.
    ///
    /// # Errors
    /// `InUse` if another has it open; `Io`.
    pub fn take(&mut self, runner: &Runner) -> Result<bool> {
        let Some(device) = self.device.clone() else { return Ok(true) };
        let still_there = self.claim(&device)?;
        if still_there && self.kind == StoreKind::Folder && self.filesystem.is_none() {
            self.filesystem =
                Some(MountedFilesystem::mount(FilesystemKind::Ext4, &device, &runner.dir.join("backing"), runner)?);
        }
        Ok(still_there)
    }

    /// Takes the user's device to make this facility anew in it: what it holds does not matter.
    ///
    /// # Errors
    /// `InUse` if another has it open.
    pub fn take_for_new(&self) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| self.claim(device).map(|_| ()))
    }

    /// Makes the device this facility's. True if it already was.
    fn claim(&self, device: &Path) -> Result<bool> {
        let mut holders = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, used) = holders.get(device).cloned().unwrap_or_default();
        if used && last != self.id {
            let holder = Some(format!("the facility {last}; close it first"));
            return Err(Error::new(ErrorKind::InUse { holder }).at(device));
        }
        if !used {
            // Refused if it is mounted, or part of something mounted.
            let open = OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits().cast_signed()).open(device);
            open.map_err(|e| match Errno::from_io_error(&e) {
                Some(Errno::BUSY) => Error::new(ErrorKind::InUse { holder: None }).at(device),
                _ => Error::from(e).at(device),
            })?;
        }
        holders.insert(device.to_owned(), (self.id.clone(), true));
        Ok(last == self.id)
    }

    /// Releases the user's device.
    pub fn give(&mut self) {
        if let Some(device) = &self.device {
            self.filesystem = None;
            let mut holders = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((id, used)) = holders.get_mut(device)
                && *id == self.id
            {
                *used = false;
            }
        }
    }

    /// Waits until everything is on the backing store.
    pub fn sync(&self) -> Result<()> {
        let path = self.path();
        let sync = || match self.kind {
            StoreKind::Folder => Ok(rustix::fs::syncfs(File::open(&path)?)?),
            StoreKind::File | StoreKind::Device => File::open(&path)?.sync_all(),
        };
        sync().map_err(|e: io::Error| Error::from(e).at(&path))
    }

    fn prepare(&mut self) -> Result<()> {
        fs::create_dir(&self.dir).map_err(|e| Error::from(e).at(&self.dir))?;
        match self.kind {
            StoreKind::Folder => Ok(fs::create_dir(self.path())?),
            StoreKind::File => self.new_file(),
            StoreKind::Device => {
                self.new_file()?;
                self.loop_device = Some(LoopDevice::attach(&self.dir.join("store"), false, None)?);
                Ok(())
            }
        }
    }

    /// A new file, whose space is allocated at once, so that a lack of space shows here.
    fn new_file(&self) -> Result<()> {
        let path = self.dir.join("store");
        let _ = fs::remove_file(&path);
        let make = || -> io::Result<()> {
            let file = File::create_new(&path)?;
            match fallocate(&file, FallocateFlags::empty(), 0, self.len) {
                Err(Errno::OPNOTSUPP) => file.set_len(self.len),
                done => Ok(done?),
            }
        };
        make().map_err(|e| Error::from(e).at(&path))
    }
}

impl Drop for FacilityStore {
    fn drop(&mut self) {
        self.give();
        self.loop_device = None;
        if self.device.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Overwrites the signatures of a device, at its beginning and end, because programs ask before they overwrite contents.
fn wipe_ends(device: &Path) -> Result<()> {
    const ENDS: u64 = 1 << 20;
    let wipe = || -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).write(true).open(device)?;
        let len = file.seek(SeekFrom::End(0))?;
        let zeros = vec![0; ENDS.min(len) as usize];
        file.write_all_at(&zeros, 0)?;
        file.write_all_at(&zeros, len - zeros.len() as u64)?;
        file.sync_all()
    };
    wipe().map_err(|e| Error::from(e).at(device))
}
