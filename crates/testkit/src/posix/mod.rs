//! File behaviour required by POSIX and Linux: cases that test any folder, call by call.
//!
//! A case counts only if a trusted folder passes it, too ([`Reference`]). Otherwise it is skipped, and the report says
//! so. Each case has its own folder, its own thread and umask 0.
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

/// One tested behaviour.
struct Case {
    name: &'static str,
    /// Whether only root can test it.
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

/// All cases, one table per call.
#[rustfmt::skip]
const CASES: &[&[Case]] = &[
    paths::CASES, open::CASES, truncate::CASES, rename::CASES, links::CASES, folders::CASES, nodes::CASES,
    attributes::CASES, access::CASES, xattr::CASES, data::CASES, locks::CASES, odd::CASES,
];

/// The trusted folder for comparison.
#[derive(Clone, Debug, Default)]
pub enum Reference {
    /// An ext4 in a file, made for the run, if this process is root's; otherwise a temporary folder.
    #[default]
    Own,
    /// This folder, which the run's user can write to: preferably one in the underlying file system.
    Folder(PathBuf),
    /// None: each case must pass.
    None,
}

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The user of the run, if not this process's user. Only root can choose one. The user has a second group.
    pub user: Option<u32>,
    /// The folder for comparison.
    pub reference: Reference,
    /// Only the cases whose names contain this.
    pub only: String,
    /// Names of cases to leave out, because the tested folder is known to differ.
    pub without: Vec<&'static str>,
}

/// The results of a run.
#[derive(Debug, Default)]
#[must_use]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// Names of failed cases, with the expected and the actual result.
    pub failed: Vec<(&'static str, String)>,
    /// Names of cases that could not run, and why.
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

/// Tests `folder` with all cases. Each makes a folder in it and removes it afterwards.
///
/// # Panics
/// If there is no reference because its tools fail, or if another user's run is requested without root.
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

/// Runs a case in a thread, which can change its user and its umask without affecting other threads.
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

/// The folder of a case, which is removed even if the case panics.
struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        clear(&self.0);
    }
}

/// A trusted folder.
struct Bare {
    dir: PathBuf,
    // Listed first: unmounted before the device is detached, and then the file is removed.
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

/// Blocks of the usual size, which is the maximum length of a symbolic link.
const EXT4: &[&str] = &["-q", "-b", "4096"];

/// A new file system in a file in `files`, made and mounted with these options. A reported skip without the tools.
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

    /// A new file system of this kind, writable by everybody, mounted while `test` runs.
    fn mounted(kind: &str, mkfs: &[&str], mount: &[&str], test: impl FnOnce(&Path)) {
        let files = tempfile::tempdir().expect("a temporary folder");
        open_to_all(files.path());
        let dir = files.path().join("mounted");
        fs::create_dir(&dir).expect("it is new");
        if let Some(_guards) = formatted(files.path(), &dir, kind, mkfs, mount) {
            // Fails on a file system without permissions.
            let _ = fs::set_permissions(&dir, Permissions::from_mode(0o777));
            test(&dir);
        }
    }

    fn exfat(test: impl FnOnce(&Path)) {
        if tools::program("mount.exfat-fuse").is_some() {
            mounted("exfat", &[], &["-t", "exfat-fuse"], test);
        }
    }

    /// The same with a `tmpfs`.
    fn in_memory(test: impl FnOnce(&Path)) {
        if tools::root().is_some() {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let mount = Mount::on(dir.path());
            tools::run(bounded(60, "mount").args(["-t", "tmpfs", "-o", "mode=777", "none"]).arg(dir.path()));
            test(mount.dir());
        }
    }

    /// All cases pass for this user, except those for root only and those named in `skipped`; nothing is left behind.
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

    /// exFAT has no owners and no links, and must not pass for a file system that does.
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

    /// Tested against itself, the folder has no failures; unsupported cases are reported as skipped.
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
