//! NTFS images, and ntfs-3g.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use claviger_testkit::tools;

/// An empty file of `size` MiB.
pub fn empty(dir: &Path, size: u64) -> PathBuf {
    let image = dir.join("image");
    File::create(&image).and_then(|f| f.set_len(size << 20)).expect("an empty image");
    image
}

/// The file system of an image, mounted by a program of others. It is unmounted when this is dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn ntfs(image: &Path, options: &str) -> Option<Self> {
        tools::root()?;
        let ntfs_3g = tools::program("ntfs-3g")?;
        if !Path::new("/dev/fuse").exists() {
            return tools::skip("there is no /dev/fuse");
        }
        let dir = image.with_extension("mounted");
        let _ = fs::create_dir(&dir);
        tools::run(Command::new("timeout").arg("60").arg(ntfs_3g).args(["-o", options]).arg(image).arg(&dir));
        Some(Self(dir))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Unmounts, and waits until all is written.
    pub fn end(self, image: &Path) {
        tools::run(Command::new("timeout").args(["60", "umount"]).arg(&self.0));
        // The server writes and ends after umount has returned; it holds a lock until then.
        let until = Instant::now() + Duration::from_secs(60);
        while claviger_engine::store::FileStore::open(image, claviger_engine::store::Access::ReadWrite).is_err() {
            assert!(Instant::now() < until, "ntfs-3g does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("timeout")
            .args(["10", "umount", "-l"])
            .arg(&self.0)
            .stderr(std::process::Stdio::null())
            .status();
    }
}

/// A new NTFS of `size` MiB.
pub fn ntfs_image(dir: &Path, size: u64, more: &[&str]) -> Option<PathBuf> {
    let mkntfs = tools::program("mkntfs")?;
    let image = empty(dir, size);
    tools::run(Command::new(mkntfs).args(["-F", "-Q", "-q", "-L", "label"]).args(more).arg(&image));
    Some(image)
}
