//! A small Debian as a disk image: made once on a machine by debootstrap, and kept.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use claviger_engine::{Error, ErrorKind, Result};

use crate::measure::lab::Lab;
use crate::measure::program;

/// Bytes of the image.
pub const SIZE: u64 = 192 << 20;

/// Where the guest's first process is in the image.
pub const INIT: &str = "/lab/init";

/// The release of Debian.
pub const SUITE: &str = "bookworm";

/// Incremented whenever older images can no longer be used.
const RECIPE: u32 = 1;

const MIRROR: &str = "http://deb.debian.org/debian";

/// The package that the guest installs: of middle size, and many files in it.
const PACKAGE: &str = "coreutils_";

/// Files the guest does not need.
const LEFT_OUT: &[&str] = &["var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"];

/// What making the image takes.
const PROGRAMS: &[&str] = &["debootstrap", "mke2fs", "unshare"];

/// Seconds that making the image takes, about: most of it is the network's.
pub const MAKING_S: f64 = 90.0;

/// Whether there is an image.
pub fn is_made() -> bool {
    cache().is_some_and(|folder| folder.join(name()).is_file())
}

/// Why there is no image and none can be made, as a sentence.
pub fn missing() -> Option<String> {
    if is_made() {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        return Some("Making a small Debian requires root, once; it is then kept.".into());
    }
    let program = PROGRAMS.iter().find(|name| program::find(name).is_none())?;
    Some(format!("The program {program}, which is needed to make a small Debian, is not installed."))
}

/// The image, made if there is none: that takes a minute and a network.
///
/// # Errors
/// `Io` with what debootstrap said; `Cancelled`.
pub fn image(lab: &Lab) -> Result<PathBuf> {
    let folder = cache().unwrap_or_else(|| lab.scratch.clone());
    let image = folder.join(name());
    if !image.is_file() {
        fs::create_dir_all(&folder).map_err(|e| Error::from(e).at(&folder))?;
        make(&image, &folder, lab)?;
    }
    Ok(image)
}

/// Where the image is kept: a folder of the user's cache.
fn cache() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("claviger/lab"))
}

fn name() -> String {
    format!("debian-{SUITE}-{RECIPE}-{}.ext4", std::env::consts::ARCH)
}

/// Makes the image in a folder beside its final place, and renames it when it is complete.
fn make(image: &Path, folder: &Path, lab: &Lab) -> Result<()> {
    let work = tempfile::Builder::new().prefix(".debian-").tempdir_in(folder).map_err(|e| Error::from(e).at(folder))?;
    let (root, unfinished) = (work.path().join("root"), work.path().join("image"));
    // In namespaces of their own, processes and mounts end with the first process, however that ends.
    let mut debootstrap = Command::new("unshare");
    debootstrap.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    debootstrap.args(["debootstrap", "--variant=minbase", "--include=python3-minimal", SUITE]).arg(&root).arg(MIRROR);
    program::run(&mut debootstrap, lab.cancelled).map_err(|e| {
        e.hint("A small Debian is downloaded once, which requires a network; only the workload `boot` needs it.")
    })?;
    furnish(&root)?;
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d"]);
    mke2fs.arg(&root).arg(&unfinished).arg(format!("{}k", SIZE >> 10));
    program::run(&mut mke2fs, lab.cancelled)?;
    fs::rename(&unfinished, image).map_err(|e| Error::from(e).at(image))?;
    work.close().map_err(Error::from)
}

/// Adds what the guest does, and removes what it does not need.
fn furnish(root: &Path) -> Result<()> {
    let at = |path: &Path, e| Error::from(e).at(path);
    let (lab, archives) = (root.join("lab"), root.join("var/cache/apt/archives"));
    fs::create_dir(&lab).map_err(|e| at(&lab, e))?;
    let packages = fs::read_dir(&archives).map_err(|e| at(&archives, e))?;
    let package = packages
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(PACKAGE))
        .ok_or_else(|| ErrorKind::Io(std::io::Error::other("debootstrap left no packages")))?;
    fs::rename(package.path(), lab.join("package.deb")).map_err(|e| at(&lab, e))?;
    for folder in LEFT_OUT.iter().map(|name| root.join(name)) {
        fs::remove_dir_all(&folder).and_then(|()| fs::create_dir(&folder)).map_err(|e| at(&folder, e))?;
    }
    let init = root.join(INIT.trim_start_matches('/'));
    fs::write(&init, include_str!("debian.init")).map_err(|e| at(&init, e))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(|e| at(&init, e))
}
