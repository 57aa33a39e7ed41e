//! The target of a new volume: a new file, an existing file to replace, or a device.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::internal::files;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Error, Result, Store};

use super::args::LayoutArgs;
use crate::opening::full_disk;
use crate::opening::overwrite::Overwrite;
use crate::opening::remote;
use crate::terminal::{output, size};

/// The target, checked before asking for a password.
pub enum NewVolume<'a> {
    /// A file that does not exist yet.
    New { path: &'a Path, len: u64 },
    /// An existing file to replace. It stays locked and unchanged until its successor is complete.
    Instead { path: PathBuf, len: u64, old: FileStore },
    /// A block device or a remote store, whose size is fixed.
    Device(Arc<dyn Store>),
}

/// Where a new volume is created.
pub struct Target {
    pub store: Arc<dyn Store>,
    /// The new file, which is removed unless it is kept.
    file: Option<NewFile>,
}

/// A file that is removed on drop, or moved to its final name.
struct NewFile {
    at: PathBuf,
    to: PathBuf,
    store: Arc<FileStore>,
    /// The file to replace: locked until the new file has taken its place.
    old: Option<FileStore>,
}

impl<'a> NewVolume<'a> {
    /// Checks `path` without changing anything. `size` is the size of a new file, at least `min_len`.
    pub fn find(path: &'a Path, size: Option<u64>, overwrite: Overwrite, min_len: u64) -> Result<Self> {
        let fits = |len: u64| {
            if whole(len) >= min_len {
                return Ok(len);
            }
            let least = size::exact(min_len);
            Err(Error::misuse(format!("{} is too small: a volume needs {least}", size::exact(len))).at(path))
        };
        let file_fits = |len: u64| {
            let hint = || format!("Use at least --size {}; a file system in it needs more.", size::at_least(min_len));
            fits(len).map(whole).map_err(|e| e.hint(hint()))
        };
        remote::must_not_be_raw(path)?;
        if remote::is_remote(path) {
            if size.is_some() {
                return Err(Error::misuse("the size of this store is fixed: omit --size").at(path));
            }
            let old = remote::open(path, Access::ReadWrite)?;
            overwrite.check(path, &*old, "device")?;
            fits(old.len())?;
            return Ok(Self::Device(old));
        }
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let need = || Error::misuse("the size is missing; add it, for example --size 100M").at(path);
                return Ok(Self::New { path, len: file_fits(size.ok_or_else(need)?)? });
            }
            Err(e) => return Err(Error::from(e).at(path)),
        };
        let device = metadata.file_type().is_block_device();
        if device && size.is_some() {
            return Err(Error::misuse("the size of a block device is fixed: omit --size").at(path));
        }
        // Takes the lock: an open volume is never replaced.
        let old = FileStore::open(path, Access::ReadWrite)?;
        let thing = if device { "device" } else { "file" };
        overwrite.check(path, &old, thing)?;
        if device {
            fits(old.len())?;
            return Ok(Self::Device(Arc::new(old)));
        }
        let len = file_fits(size.unwrap_or(old.len()))?;
        Ok(Self::Instead { path: path.canonicalize().map_err(|e| Error::from(e).at(path))?, len, old })
    }

    /// The size of the target, in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::New { len, .. } | Self::Instead { len, .. } => *len,
            Self::Device(store) => store.len(),
        }
    }

    /// Fails if a new file is larger than the free space of its disk.
    pub fn fits_on_disk(&self) -> Result<()> {
        match self {
            Self::New { path, len } => full_disk::check(path, *len),
            Self::Instead { path, len, .. } => full_disk::check(path, *len),
            Self::Device(_) => Ok(()),
        }
    }

    /// Creates the new file. The target keeps the lock of the old one.
    pub fn make(self) -> Result<Target> {
        match self {
            Self::New { path, len } => Target::new_file(path, path, len, None),
            Self::Instead { path, len, old } => {
                let mut name = OsString::from(".");
                name.push(path.file_name().unwrap_or_default());
                name.push(format!(".new-{}", std::process::id()));
                Target::new_file(&path.with_file_name(name), &path, len, Some(old))
            }
            Self::Device(store) => Ok(Target { store, file: None }),
        }
    }
}

impl Target {
    fn new_file(at: &Path, to: &Path, len: u64, old: Option<FileStore>) -> Result<Self> {
        let store = FileStore::create(at, len);
        let store = store.map_err(|e| full_disk::explained(Error { path: Some(to.to_owned()), ..e }, to, len))?;
        let store = Arc::new(store);
        let file = NewFile { at: at.to_owned(), to: to.to_owned(), store: Arc::clone(&store), old };
        Ok(Self { store, file: Some(file) })
    }

    /// A folder with room for the image of a new file system.
    pub fn temporary_folder(&self) -> PathBuf {
        match self.file.as_ref().and_then(|file| file.to.parent()) {
            Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
            Some(folder) => folder.to_owned(),
            None => std::env::temp_dir(),
        }
    }

    /// What is left after a failure, as a hint.
    pub fn left(&self) -> &'static str {
        match &self.file {
            Some(file) if file.at == file.to => "No file was left behind.",
            Some(_) => "The old file is unchanged.",
            None => "The device's old contents may be partly overwritten.",
        }
    }

    /// Keeps the finished volume.
    pub fn keep(self) -> Result<()> {
        match self.file {
            Some(file) => file.keep(),
            None => Ok(()),
        }
    }
}

impl NewFile {
    fn keep(mut self) -> Result<()> {
        let Self { at, to, store, old } = &self;
        store.rename(at, to, old.as_ref()).map_err(|e| e.hint("Nothing was replaced."))?;
        // The file has its final name. Nothing below may remove it, or count as a failure.
        self.at.clear();
        if let Err(e) = files::sync_folder(&self.to) {
            output::warn(&format!("{}: its name may not survive a power cut: {e}", self.to.display()));
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.at.as_os_str().is_empty() && self.store.is_at(&self.at) {
            let _ = fs::remove_file(&self.at);
        }
    }
}

/// Rounds down to whole sectors: 100 MB are 195,312.5 sectors, which is not worth an error.
fn whole(len: u64) -> u64 {
    len - len % 512
}

/// A detached header, which is removed unless the volume is created.
pub struct NewHeader {
    pub store: Option<Arc<FileStore>>,
    path: PathBuf,
}

impl NewHeader {
    /// Creates a header file that is large enough for LUKS1 and LUKS2.
    pub fn create(path: &Path, args: &LayoutArgs) -> Result<Self> {
        const LEN: u64 = 16 << 20;
        let len = match (args.metadata_size, args.keyslots_size) {
            (None, None) => LEN,
            (metadata, keyslots) => {
                let metadata = metadata.unwrap_or(16 << 10).saturating_mul(2);
                metadata.saturating_add(keyslots.unwrap_or(LEN.saturating_sub(metadata).max(1 << 20))).min(256 << 20)
            }
        };
        let store = FileStore::create(path, len).map_err(|e| full_disk::explained(e, path, len))?;
        Ok(Self { store: Some(Arc::new(store)), path: path.to_owned() })
    }
}

impl Drop for NewHeader {
    fn drop(&mut self) {
        if self.store.as_ref().is_some_and(|store| store.is_at(&self.path)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use claviger_engine::ErrorKind;

    use super::*;

    const LEN: u64 = 4096;

    #[test]
    fn only_its_own_file_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new");
        drop(Target::new_file(&path, &path, LEN, None).expect("there is room"));
        assert!(!path.exists());
        let target = Target::new_file(&path, &path, LEN, None).expect("there is room");
        let other = folder.path().join("other");
        fs::write(&other, "precious").and_then(|()| fs::rename(&other, &path)).expect("it takes the place");
        assert!(matches!(target.keep().map_err(|e| e.kind), Err(ErrorKind::InUse { .. })));
        assert_eq!(fs::read(&path).expect("it is there"), b"precious");
    }

    #[test]
    fn only_the_file_that_was_asked_about_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, at) = (folder.path().join("v.tc"), folder.path().join(".v.tc.new"));
        fs::write(&path, "old").expect("a file");
        let open = || FileStore::open(&path, Access::ReadWrite).expect("nobody has it");
        let target = Target::new_file(&at, &path, LEN, Some(open())).expect("there is room");
        let newer = folder.path().join("newer");
        fs::write(&newer, "precious").and_then(|()| fs::rename(&newer, &path)).expect("it takes the place");
        assert!(target.keep().is_err());
        assert_eq!(fs::read(&path).expect("it is there"), b"precious");
        assert!(!at.exists(), "the new one is removed");
        Target::new_file(&at, &path, LEN, Some(open())).expect("there is room").keep().expect("it is the same file");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), LEN);
    }
}
