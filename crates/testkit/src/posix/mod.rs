//! How POSIX and Linux want files to behave: cases that any folder can be held against, call by call.
//!
//! A case counts where a folder that nobody doubts behaves so, too ([`Reference`]); where even that one does not, it is
//! skipped, and the report says so. Each case has a folder of its own, a thread of its own and umask 0.
#![allow(clippy::unnecessary_cast, reason = "what is in a `Stat` has other types on other processors")]

mod access;
mod attributes;
mod context;
mod data;
mod folders;
mod links;
mod locks;
mod nodes;
mod odd;
mod open;
mod paths;
mod read_only;
mod rename;
mod sys;
mod truncate;
mod xattr;

use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::process::{geteuid, umask};
use tempfile::TempDir;

use crate::mounts::{LoopDevice, Mount, bounded, sparse_file};
use crate::tools;
use context::{Ctx, Done, Stop, become_user, clear, mode};
pub use context::{as_user, second_group};
pub use read_only::{read_only, read_only_contents};

/// One thing that must be so.
struct Case {
    name: &'static str,
    /// Whether only root can see whether it is so.
    root: bool,
    run: fn(&Ctx) -> Done,
}

impl Case {
    const fn anyone(name: &'static str, run: fn(&Ctx) -> Done) -> Self {
        Self { name, root: false, run }
    }

    const fn root(name: &'static str, run: fn(&Ctx) -> Done) -> Self {
        Self { name, root: true, run }
    }
}

/// All cases, a table for each call.
const CASES: &[&[Case]] = &[
    paths::CASES,
    open::CASES,
    truncate::CASES,
    rename::CASES,
    links::CASES,
    folders::CASES,
    nodes::CASES,
    attributes::CASES,
    access::CASES,
    xattr::CASES,
    data::CASES,
    locks::CASES,
    odd::CASES,
];

/// What a folder is held against.
#[derive(Clone, Debug, Default)]
pub enum Reference {
    /// An ext4 in a file, made for the run, if this process is root's; otherwise a temporary folder.
    #[default]
    Own,
    /// This folder, which the user of the run can write to: best one in the file system that lies below.
    Folder(PathBuf),
    /// Nothing: each case must pass.
    None,
}

/// How the cases are run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// As whom, other than the user of this process; only root can choose. They have a second group.
    pub user: Option<u32>,
    /// What the folder is held against.
    pub reference: Reference,
    /// Only the cases whose names contain this.
    pub only: String,
    /// Names of cases that are left out, since what is held against them is known to be otherwise.
    pub without: Vec<&'static str>,
}

/// What came of it.
#[derive(Debug, Default)]
#[must_use]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// Names of those that did not, and what was expected and seen.
    pub failed: Vec<(&'static str, String)>,
    /// Names of those that could not be run, and why.
    pub skipped: Vec<(&'static str, String)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (word, cases) in [("SKIPPED", &self.skipped), ("FAILED", &self.failed)] {
            cases.iter().try_for_each(|(name, why)| writeln!(f, "{word} {name}: {why}"))?;
        }
        let (passed, failed, skipped) = (self.passed.len(), self.failed.len(), self.skipped.len());
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Holds `folder` against all cases. Each makes a folder in it and removes it afterwards.
///
/// # Panics
/// If there is no reference: the tools for it fail, or another user's run was asked for without being root.
pub fn run(folder: &Path, options: &Options) -> Report {
    let me = options.user.unwrap_or_else(|| geteuid().as_raw());
    let bare = Bare::new(&options.reference);
    let mut report = Report::default();
    let wanted = |case: &&Case| case.name.contains(&options.only) && !options.without.contains(&case.name);
    for case in CASES.iter().copied().flatten().filter(wanted) {
        let Case { name, root, .. } = *case;
        if root && me != 0 {
            report.skipped.push((name, "only root can see that".into()));
            continue;
        }
        if let Some(Err(Stop::Wrong(why) | Stop::Unsupported(why))) =
            bare.as_ref().map(|bare| attempt(case, &bare.dir, options.user, me))
        {
            report.skipped.push((name, format!("the bare folder does not do so, either: {why}")));
            continue;
        }
        match attempt(case, folder, options.user, me) {
            Ok(()) => report.passed.push(name),
            Err(Stop::Unsupported(why)) => report.skipped.push((name, why)),
            Err(Stop::Wrong(why)) => report.failed.push((name, why)),
        }
    }
    report
}

/// Runs a case in a thread, which can change its user and its umask without changing those of others.
fn attempt(case: &Case, folder: &Path, user: Option<u32>, me: u32) -> Done {
    let alone = || {
        user.map_or(Ok(()), become_user)?;
        sys::own_umask()?;
        umask(mode(0));
        let home = Home(folder.join(format!("posix-{}", std::process::id())));
        rustix::fs::mkdir(&home.0, mode(0o777))?;
        let ctx = Ctx::new(&home.0, me)?;
        let done = (case.run)(&ctx);
        clear(&home.0);
        if home.0.exists() {
            ctx.same("what it made", "left behind", "removed");
        }
        ctx.verdict(done)
    };
    thread::scope(|scope| scope.spawn(alone).join()).unwrap_or_else(|_| Err(Stop::Wrong("it panicked".into())))
}

/// The folder of a case, which is gone when the case has panicked, too.
struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        clear(&self.0);
    }
}

/// A folder that behaves well.
struct Bare {
    dir: PathBuf,
    // Unmounted before the device is detached, and that before its file is removed.
    _mount: Option<Mount>,
    _device: Option<LoopDevice>,
    _files: Option<TempDir>,
}

impl Bare {
    fn new(reference: &Reference) -> Option<Self> {
        match reference {
            Reference::None => None,
            Reference::Folder(dir) => Some(Self { dir: dir.clone(), _mount: None, _device: None, _files: None }),
            Reference::Own => Some(Self::own()),
        }
    }

    fn own() -> Self {
        let files = tempfile::tempdir().expect("a temporary folder");
        open_to_all(files.path());
        let dir = files.path().join("bare");
        fs::create_dir(&dir).expect("it is new");
        open_to_all(&dir);
        let (mut mount, mut device) = (None, None);
        if geteuid().is_root() {
            (mount, device) = formatted(files.path(), &dir, "ext4", EXT4, &[]).unzip();
            open_to_all(&dir);
        }
        Self { dir, _mount: mount, _device: device, _files: Some(files) }
    }
}

/// Blocks of the usual size: the longest symbolic link is one of them.
const EXT4: &[&str] = &["-q", "-b", "4096"];

/// A new file system in a file in `files`, made and mounted with those options. A reported skip without the tools.
pub(crate) fn formatted(
    files: &Path,
    dir: &Path,
    kind: &str,
    mkfs: &[&str],
    mount: &[&str],
) -> Option<(Mount, LoopDevice)> {
    let image = files.join("image");
    sparse_file(&image, 512 << 20);
    tools::run(bounded(60, tools::program(&format!("mkfs.{kind}"))?).args(mkfs).arg(&image));
    let device = LoopDevice::new(&image, &[])?;
    let guard = Mount::on(dir);
    tools::run(bounded(60, "mount").args(mount).arg(device.path()).arg(dir));
    Some((guard, device))
}

fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, Permissions::from_mode(0o777)).expect("it is ours");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A new file system of that kind, which everybody may write to, mounted while `test` runs.
    fn mounted(kind: &str, mkfs: &[&str], mount: &[&str], test: impl FnOnce(&Path)) {
        let files = tempfile::tempdir().expect("a temporary folder");
        open_to_all(files.path());
        let dir = files.path().join("mounted");
        fs::create_dir(&dir).expect("it is new");
        if let Some(_guards) = formatted(files.path(), &dir, kind, mkfs, mount) {
            // A file system that has no permissions cannot.
            let _ = fs::set_permissions(&dir, Permissions::from_mode(0o777));
            test(&dir);
        }
    }

    fn exfat(test: impl FnOnce(&Path)) {
        if tools::program("mount.exfat-fuse").is_some() {
            mounted("exfat", &[], &["-t", "exfat-fuse"], test);
        }
    }

    /// A `tmpfs`, likewise.
    fn in_memory(test: impl FnOnce(&Path)) {
        if tools::root().is_some() {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let mount = Mount::on(dir.path());
            tools::run(bounded(60, "mount").args(["-t", "tmpfs", "-o", "mode=777", "none"]).arg(dir.path()));
            test(mount.dir());
        }
    }

    /// All cases pass for this user, but those that only root can run and those named in `skipped`; and nothing is left.
    fn all_pass(folder: &Path, user: Option<u32>, skipped: &[&str]) {
        let before = fs::read_dir(folder).expect("it is there").count();
        let report = run(folder, &Options { user, reference: Reference::None, ..Options::default() });
        assert!(report.failed.is_empty(), "{report}");
        let of_root = |name: &str| CASES.iter().copied().flatten().any(|c| c.name == name && c.root && user.is_some());
        let seen: Vec<_> = report.skipped.iter().map(|(name, _)| *name).filter(|name| !of_root(name)).collect();
        assert_eq!(seen, skipped, "{report}");
        assert_eq!(fs::read_dir(folder).expect("it is there").count(), before, "all is removed");
    }

    #[test]
    fn each_case_has_a_name_of_its_own() {
        let names: BTreeSet<_> = CASES.iter().copied().flatten().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.iter().map(|table| table.len()).sum::<usize>());
    }

    #[test]
    fn ext4_passes_for_root_and_for_a_user() {
        mounted("ext4", EXT4, &[], |dir| [None, Some(1000)].into_iter().for_each(|user| all_pass(dir, user, &[])));
    }

    #[test]
    fn tmpfs_passes_for_root_and_for_a_user() {
        let lacks = ["truncate: more than a file may have is EFBIG", "fallocate: zeros"];
        in_memory(|dir| [None, Some(1000)].into_iter().for_each(|user| all_pass(dir, user, &lacks)));
    }

    /// exFAT knows no owners and no links, and must not pass for a file system that does.
    #[test]
    fn a_folder_that_is_mounted_read_only_is_told_from_one_that_is_not() {
        in_memory(|dir| {
            read_only_contents(dir).expect("it is writable");
            let said = read_only(dir).expect_err("it is writable");
            assert!(said.contains("expected EROFS, saw success"), "{said}");
        });
        in_memory(|dir| {
            read_only_contents(dir).expect("it is writable");
            tools::run(bounded(60, "mount").args(["-o", "remount,ro"]).arg(dir));
            assert_eq!(read_only(dir), Ok(()));
        });
    }

    #[test]
    fn what_an_exfat_cannot_do_is_found() {
        exfat(|dir| {
            let report = run(dir, &Options { only: "link".into(), ..Options::default() });
            let failed = |name: &str| report.failed.iter().any(|(failed, _)| *failed == name);
            for name in ["link: all names are one file", "symlink: holds what it was given, whatever that is"] {
                assert!(failed(name), "{name}\n{report}");
            }
            let (_, why) =
                report.failed.iter().find(|(name, _)| *name == "link: all names are one file").expect("it failed");
            assert!(why.contains("EPERM"), "{why}");
            assert!(report.to_string().contains(&format!("{} failed", report.failed.len())), "{report}");
        });
    }

    /// Held against itself, it does nothing wrong; what it cannot do is said.
    #[test]
    fn what_the_bare_folder_cannot_do_either_is_skipped() {
        exfat(|dir| {
            let reference = Reference::Folder(dir.to_owned());
            let report = run(dir, &Options { only: "link".into(), reference, ..Options::default() });
            assert!(report.failed.is_empty(), "{report}");
            assert!(
                report.skipped.iter().any(|(_, why)| why.contains("the bare folder") && why.contains("EPERM")),
                "{report}"
            );
        });
    }
}
