//! FAT and exFAT images, and the programs that make, change and check them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use claviger_engine::Store;
use claviger_engine::filesystems;
use claviger_engine::store::MemoryStore;
use claviger_engine::trees::{Node, NodeKind, Tree};
use claviger_testkit::mounts::{LoopDevice, wait_until};
use claviger_testkit::tools;

/// An image in a folder of its own.
pub struct Image {
    dir: tempfile::TempDir,
    checker: &'static str,
}

/// A new FAT of `size` KiB.
pub fn mkfs(args: &[&str], size: u64) -> Option<Image> {
    tools::program("mcopy")?;
    let image = Image::empty(size, "fsck.vfat")?;
    tools::run(Command::new(tools::program("mkfs.vfat")?).args(args).arg(image.path()));
    Some(image)
}

/// A new exFAT of `size` KiB. The last of the arguments is its sector size, which takes root unless it is 512.
pub fn mkfs_exfat(args: &[&str], size: u64) -> Option<Image> {
    let image = Image::empty(size, "fsck.exfat")?;
    let mkfs = tools::program("mkfs.exfat")?;
    let (sector, args) = args.split_last().expect("a sector size");
    let device = match *sector {
        "512" => None,
        larger => Some(LoopDevice::new(&image.path(), &["-b", larger])?),
    };
    let path = device.as_ref().map_or_else(|| image.path(), |device| device.path().to_owned());
    tools::run(Command::new(mkfs).args(args).arg(path));
    Some(image)
}

/// Opens what is in a store, whatever it is.
pub fn open(store: Arc<dyn Store>) -> Box<dyn Tree> {
    filesystems::open(store).expect("it opens").1
}

impl Image {
    fn empty(size: u64, checker: &'static str) -> Option<Self> {
        tools::program(checker)?;
        let image = Self { dir: tempfile::tempdir().expect("a temporary folder"), checker };
        std::fs::File::create(image.path()).and_then(|f| f.set_len(size << 10)).expect("an empty image");
        Some(image)
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).expect("the image can be read")
    }

    pub fn put(&self, bytes: &[u8]) {
        std::fs::write(self.path(), bytes).expect("the image can be written");
    }

    pub fn in_memory(&self) -> Arc<MemoryStore> {
        Arc::new(MemoryStore::new(self.bytes()))
    }

    /// Fails unless the program that checks it finds nothing to say.
    pub fn check(&self, what: &str) {
        let (clean, text) = self.fsck();
        assert!(clean, "{what}: {text}");
    }

    /// Whether the program that checks it is content, and what it says.
    pub fn fsck(&self) -> (bool, String) {
        let fsck = tools::program(self.checker).expect("found before");
        let output = Command::new(fsck).args(["-n", "-v"]).arg(self.path()).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    }

    /// Runs a program of mtools on the image.
    pub fn mtools(&self, program: &str, args: &[&str]) -> String {
        let mut command = self.command(program);
        let output = tools::run(command.arg("-i").arg(self.path()).args(args));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(tools::program(program).expect("found before"));
        // It refuses sizes that are no multiple of its idea of a track, and takes names as of the locale.
        command.env("MTOOLS_SKIP_CHECK", "1").env("LC_ALL", "C.UTF-8");
        command
    }

    /// Writes a file with mtools.
    pub fn mcopy_in(&self, bytes: &[u8], to: &str) {
        let from = self.dir.path().join("in");
        std::fs::write(&from, bytes).expect("written");
        self.mtools("mcopy", &["-o", &from.display().to_string(), to]);
    }

    /// Every file, as mtools reads it.
    pub fn mtools_files(&self) -> BTreeMap<String, Vec<u8>> {
        let out = self.dir.path().join("out");
        std::fs::create_dir(&out).expect("a folder");
        self.mtools("mcopy", &["-s", "-n", "-m", "-Q", "::", &out.display().to_string()]);
        let files = files_below(&out);
        std::fs::remove_dir_all(&out).expect("removed");
        files
    }

    /// Mounts an exFAT by the program `mount.exfat-fuse`, or by the kernel where it can, and does something there. A reported
    /// skip where neither is possible.
    pub fn mounted<T>(&self, work: impl FnOnce(&Path) -> T) -> Option<T> {
        let dir = self.dir.path().join("mounted");
        std::fs::create_dir_all(&dir).expect("a folder");
        let sector = 1u32 << self.bytes()[108];
        let device = LoopDevice::new(&self.path(), &["-b", &sector.to_string()])?;
        let mut by_kernel = Command::new("mount");
        by_kernel.args(["-t", "exfat"]).arg(device.path()).arg(&dir).stderr(Stdio::null());
        if !by_kernel.status().is_ok_and(|status| status.success()) {
            let program = tools::program("mount.exfat-fuse")?;
            tools::run(Command::new(program).arg(device.path()).arg(&dir).stdin(Stdio::null()));
        }
        let is_mounted = || Command::new("mountpoint").arg("-q").arg(&dir).status().is_ok_and(|s| s.success());
        assert!(wait_until(Duration::from_secs(60), is_mounted), "it does not mount");
        let done = work(&dir);
        tools::run(Command::new("umount").arg(&dir));
        Some(done)
    }
}

/// Every file below a folder.
pub fn files_below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((path, name)) = folders.pop() {
        for entry in std::fs::read_dir(path).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = format!("{name}/{}", entry.file_name().to_str().expect("UTF-8"));
            if entry.file_type().expect("a type").is_dir() {
                folders.push((entry.path(), name));
            } else {
                files.insert(name, std::fs::read(entry.path()).expect("a file"));
            }
        }
    }
    files
}

/// Every file of a tree.
pub fn read_all(tree: &dyn Tree) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders: Vec<(Node, String)> = vec![(tree.root(), String::new())];
    while let Some((folder, path)) = folders.pop() {
        for entry in tree.list(folder).expect("the folder is listed") {
            let name = format!("{path}/{}", entry.name.to_str().expect("Unicode"));
            assert_eq!(tree.lookup(folder, OsStr::new(&entry.name)).expect("it is found"), entry.node);
            match entry.kind {
                NodeKind::Folder => folders.push((entry.node, name)),
                _ => drop(files.insert(name, contents(tree, entry.node))),
            }
        }
    }
    files
}

/// A whole file.
pub fn contents(tree: &dyn Tree, file: Node) -> Vec<u8> {
    let mut bytes = vec![0; tree.attributes(file).expect("attributes").size as usize];
    let read = tree.read_at(file, 0, &mut bytes).expect("the file is read");
    assert_eq!(read, bytes.len());
    assert_eq!(tree.read_at(file, read as u64, &mut [0]).expect("at its end"), 0);
    bytes
}
