//! Folders for stores, mount points and sockets, and cleaning up what killed labs have left.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use claviger_engine::{Error, ErrorKind, Result};
use claviger_serve::mount::mountinfo;
use claviger_serve::sessions::FolderOwner;
use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::filesystem::take_down;
use super::process::{Left, private_file};
use crate::measure::names::{PREFIX, letters, tag};
use crate::measure::program;

/// The file in each folder that names its owner. The folder's name is too short for that: sockets and `mount.ecryptfs`
/// only take short paths.
const OWNER: &str = "owner";

/// A new folder of this user's own, which is removed when this is dropped, unless something is still mounted in it:
/// nothing is ever removed from what may be mounted there. Its name contains the tag of its lab.
pub struct Scratch {
    path: PathBuf,
}

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
        loop {
            // Short: names of sockets have 107 bytes.
            let path = folder.join(format!("{}.{}", tag(), letters(2)));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::from(e).at(folder)),
                Ok(()) => {
                    let scratch = Self { path };
                    private_file(&scratch.path.join(OWNER), FolderOwner::this().to_string().as_bytes())?;
                    return Ok(scratch);
                }
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes what killed labs of this user have left in `place`: their processes, mounts, mappings and folders. Leaves alone
/// what belongs to a running lab, or may belong to one.
///
/// Returns a sentence for each folder that was left by a killed lab or by one of another system.
pub fn tidy(place: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| tidy_one(&place.join(&name), tag_of(&name)?)).collect()
}

fn tidy_one(folder: &Path, tag: &str) -> Option<String> {
    let metadata = fs::symlink_metadata(folder).ok()?;
    let own = metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
    // Without an owner's mark it belongs to somebody else, or was just created.
    let owner = own.then(|| fs::read_to_string(folder.join(OWNER)).ok()?.parse::<FolderOwner>().ok()).flatten()?;
    if !owner.is_here() {
        let folder = folder.display();
        return Some(format!(
            "{folder} belongs to a lab of another system (this machine before a restart, a container, or another machine \
        that mounts this folder). It was left alone. Once that lab has ended, `rm -r --one-file-system {folder}` removes it"
        ));
    }
    // Locked against another lab that cleans up.
    let _lock = if owner.has_ended() { locked(folder)? } else { return None };
    for left in Left::of_lab(tag) {
        left.end_now();
    }
    let mut refused = Vec::new();
    for dir in mounts_below(folder).ok()?.iter().rev() {
        refused.extend(take_down(dir).err().map(|e| e.to_string()));
    }
    refused.extend(mappings(tag).iter().filter_map(|name| {
        let dmsetup = program::find("dmsetup").unwrap_or_else(|| "dmsetup".into());
        program::run(Command::new(dmsetup).args(["remove", "--retry", name]), || false).err().map(|e| e.to_string())
    }));
    remove(folder);
    let folder = folder.display();
    Some(match refused[..] {
        [] if !Path::new(&folder.to_string()).exists() => {
            format!("removed what a killed lab had left in {folder}")
        }
        [] => format!("a killed lab has left {folder}, which could not be removed"),
        _ => format!("a killed lab has left {folder}: {}", refused.join("; ")),
    })
}

/// The tag in the name of a folder that a lab has made.
fn tag_of(name: &str) -> Option<&str> {
    let (tag, _) = name.split_once('.')?;
    let (number, letters) = tag.strip_prefix(PREFIX)?.split_once('-')?;
    let sound = number.parse::<u32>().is_ok() && letters.len() == 6 && letters.bytes().all(|b| b.is_ascii_lowercase());
    sound.then_some(tag)
}

/// The folder itself, locked; `None` if somebody else has locked it, or it no longer exists.
fn locked(path: &Path) -> Option<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let folder = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
    folder.try_lock().ok()?;
    let (opened, there) = (folder.metadata().ok()?, fs::symlink_metadata(path).ok()?);
    ((opened.dev(), opened.ino()) == (there.dev(), there.ino())).then_some(folder)
}

/// Removes the folder with what is in it, unless something is mounted there.
fn remove(folder: &Path) {
    if mounts_below(folder).is_ok_and(|mounts| mounts.is_empty()) {
        let _ = fs::remove_dir_all(folder);
    }
}

/// The mount points in the folder, in the order of mounting.
fn mounts_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let folder = folder.canonicalize().map_err(|e| Error::from(e).at(folder))?;
    let mounts = mountinfo::mounts().map_err(|e| Error::new(ErrorKind::Io(e)))?;
    Ok(mounts.into_iter().map(|mount| mount.dir).filter(|dir| dir.starts_with(&folder)).collect())
}

/// Names of the device mapper's mappings that a lab has made.
fn mappings(tag: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/dev/mapper") else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.strip_prefix(tag).is_some_and(|rest| rest.starts_with('-'))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_killed_labs_left_goes_and_nothing_else() {
        let place = tempfile::tempdir().expect("a folder");
        let make = |name: &str, mode: u32, owner: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).expect("a folder");
            fs::write(path.join("store"), "x").expect("a file");
            fs::write(path.join(OWNER), owner).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            path
        };
        let this = FolderOwner::this();
        let mut ended = this;
        ended.process.started += 1;
        let (this, ended) = (this.to_string(), ended.to_string());
        let elsewhere = format!("{}-000000000007", ended.rsplit_once('-').expect("parts").0);
        let left = make("claviger-lab-7-abcdef.xy", 0o700, &ended);
        let used = Scratch::below(place.path()).expect("a folder");
        let kept = [
            // Of another boot or namespace, where its process may be alive; of a running lab; of an unknown owner.
            ("claviger-lab-7-abcdef.bb", 0o700, &elsewhere),
            ("claviger-lab-7-abcdef.cc", 0o700, &this),
            ("claviger-lab-7-abcdef.dd", 0o700, &String::new()),
            ("claviger-lab-7-abcdef.zz", 0o755, &ended),
            ("claviger-lab-2026-11-22-030000", 0o700, &ended),
            ("claviger-lab-7-abcde1.xy", 0o700, &ended),
            ("claviger-lab-7-abcdef", 0o700, &ended),
            ("other", 0o700, &ended),
        ];
        let kept = kept.map(|(name, mode, owner)| make(name, mode, owner));
        let link = place.path().join("claviger-lab-8-abcdef.xy");
        symlink(&kept[7], &link).expect("a link");
        let mut lines = tidy(place.path());
        lines.sort_by_key(|line| !line.starts_with("removed"));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], format!("removed what a killed lab had left in {}", left.display()));
        assert!(
            lines[1].starts_with(&format!("{} belongs to a lab of another system", kept[0].display())),
            "{lines:?}"
        );
        assert!(!left.exists() && used.path().exists() && link.exists());
        assert!(kept.iter().all(|path| path.join("store").exists()));
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }
}
