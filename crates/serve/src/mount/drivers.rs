//! Chooses who mounts each file system: the kernel for root, a FUSE program for others, or this program itself.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use claviger_engine::filesystems::Kind;
use claviger_engine::{Error, Result};
use rustix::process::{getgid, getuid};

/// A row of the table of file systems.
pub struct Driver {
    /// The file systems this row is about.
    pub kinds: &'static [Kind],
    /// The kernel's drivers for it, the best first.
    kernel: &'static [&'static str],
    /// The option that lets the kernel mount it read-only without replaying the journal, which would write.
    pub unreplayed: Option<&'static str>,
    /// The program that serves it by FUSE.
    program: Option<Program>,
    /// Our own support.
    own: Own,
}

/// Support for a file system in this program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// Read and write.
    Writes,
    /// Read.
    Reads,
    /// Nothing.
    No,
}

/// A program that serves a file system by FUSE in the foreground.
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// The Debian package it is in.
    package: &'static str,
    /// Whether it is setuid root, which makes the kernel treat it as another user.
    pub setuid: bool,
    /// Its arguments.
    arguments: fn(&Call<'_>) -> Vec<OsString>,
}

/// A mount requested from a program.
pub struct Call<'a> {
    /// The file that holds the file system.
    pub image: &'a Path,
    /// Where to mount it.
    pub dir: &'a Path,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// The user's mount options.
    pub options: &'a [String],
}

/// Every file system known here. Others are left to the kernel.
pub static DRIVERS: &[Driver] = &[
    Driver {
        kinds: &[Kind::Ext2, Kind::Ext3, Kind::Ext4],
        kernel: &["ext4", "ext3", "ext2"],
        unreplayed: Some("noload"),
        program: Some(Program { name: "fuse2fs", package: "fuse2fs", setuid: false, arguments: fuse2fs }),
        own: Own::Reads,
    },
    Driver {
        kinds: &[Kind::Ntfs],
        kernel: &["ntfs3"],
        unreplayed: None,
        program: Some(Program { name: "ntfs-3g", package: "ntfs-3g", setuid: true, arguments: ntfs_3g }),
        own: Own::Reads,
    },
    Driver {
        kinds: &[Kind::Fat12, Kind::Fat16, Kind::Fat32],
        kernel: &["vfat"],
        unreplayed: None,
        program: None,
        own: Own::Writes,
    },
    Driver { kinds: &[Kind::ExFat], kernel: &["exfat"], unreplayed: None, program: None, own: Own::Writes },
    Driver { kinds: &[Kind::Xfs], kernel: &["xfs"], unreplayed: Some("norecovery"), program: None, own: Own::No },
    Driver {
        kinds: &[Kind::Btrfs],
        kernel: &["btrfs"],
        unreplayed: Some("rescue=nologreplay"),
        program: None,
        own: Own::No,
    },
];

/// How a file system will be mounted.
pub enum MountMethod {
    /// By the kernel, on a loop device, as a file system of this type.
    Kernel {
        /// The type for `mount -t`.
        kind: String,
        /// The option for a read-only mount that does not replay the journal.
        unreplayed: Option<&'static str>,
    },
    /// By a program that reads and writes the image.
    Program {
        /// The program's path.
        path: PathBuf,
        /// The program's row.
        program: &'static Program,
        /// The file system.
        kind: Kind,
    },
    /// By this program.
    Own(Kind),
}

/// Who mounts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mounter {
    /// Root, with loop devices for the kernel's file systems.
    Kernel,
    /// Root without loop devices, as in most containers.
    Root,
    /// Somebody else.
    User,
}

impl Mounter {
    fn is_root(self) -> bool {
        self != Self::User
    }
}

/// How `who` mounts `kind`, read-only or not.
///
/// # Errors
/// `Unsupported`; `Io` with what to install.
pub fn way(kind: Kind, who: Mounter, read_only: bool) -> Result<MountMethod> {
    let Some(driver) = DRIVERS.iter().find(|d| d.kinds.contains(&kind)) else {
        let name = kind.mount_type();
        if who == Mounter::Kernel && in_kernel(name) {
            return Ok(MountMethod::Kernel { kind: name.to_owned(), unreplayed: None });
        }
        return Err(unsupported(kind, who).hint(who.without()));
    };
    // The driver of the same name comes first: ext3 is mounted as ext3 where possible.
    let own_name = driver.kernel.iter().filter(|name| **name == kind.mount_type());
    let kernel = own_name.chain(driver.kernel).find(|name| who == Mounter::Kernel && in_kernel(name));
    if let Some(kind) = kernel {
        return Ok(MountMethod::Kernel { kind: (*kind).to_owned(), unreplayed: driver.unreplayed });
    }
    if driver.own == Own::Writes {
        return Ok(MountMethod::Own(kind));
    }
    let reads = if driver.own == Own::Reads { "--read-only works without it. " } else { "" };
    let by_program = match &driver.program {
        Some(program) => program.mounts(kind, who, &format!("{reads}{}", who.without())),
        None => Err(unsupported(kind, who).hint(who.without())),
    };
    match by_program {
        Err(_) if driver.own == Own::Reads && read_only => Ok(MountMethod::Own(kind)),
        by_program => by_program,
    }
}

/// How a FUSE program mounts `kind`, even where the kernel could.
///
/// # Errors
/// `Unsupported`; `Io` with what to install.
pub fn way_by_program(kind: Kind, who: Mounter) -> Result<MountMethod> {
    let program = DRIVERS.iter().find(|d| d.kinds.contains(&kind)).and_then(|driver| driver.program.as_ref());
    program.ok_or_else(|| unsupported(kind, who))?.mounts(kind, who, "")
}

/// How to mount the file system that the user calls `name`: a kind of ours by either of its names, otherwise whatever
/// the kernel knows.
///
/// # Errors
/// `Unsupported`.
pub fn way_by_name(name: &str, who: Mounter, read_only: bool) -> Result<MountMethod> {
    let called = |kind: &Kind| kind.mount_type() == name || kind.name().eq_ignore_ascii_case(name);
    if let Some(kind) = Kind::ALL.iter().copied().find(called) {
        return way(kind, who, read_only);
    }
    let without = |what| Error::unsupported(format!("{name} cannot be mounted without {what}")).hint(who.without());
    match who {
        Mounter::Kernel if in_kernel(name) => Ok(MountMethod::Kernel { kind: name.to_owned(), unreplayed: None }),
        Mounter::Kernel => Err(Error::unsupported(format!("the kernel knows no file system called {name}"))),
        Mounter::Root => Err(without("loop devices")),
        Mounter::User => Err(without("root")),
    }
}

impl Mounter {
    /// Advice if nothing can mount a file system, as a sentence.
    fn without(self) -> &'static str {
        match self {
            Self::Root => {
                "Show the plaintext as one file with --filesystem none, or mount it where there are loop devices."
            }
            Self::User => "Mount it as root, or show the plaintext as one file with --filesystem none.",
            Self::Kernel => "Show the plaintext as one file with --filesystem none.",
        }
    }
}

fn unsupported(kind: Kind, who: Mounter) -> Error {
    let why = match who {
        Mounter::Kernel => "this kernel has no support for it",
        Mounter::Root => "loop devices are needed",
        Mounter::User => "root is needed",
    };
    Error::unsupported(format!("{} cannot be mounted: {why}", kind.described()))
}

/// Whether the administrator lets users share their FUSE file systems (fuse.conf, mount.fuse(8)).
fn sharing_allowed() -> bool {
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

impl Program {
    /// That the program mounts `kind`. `otherwise` is what else the user can do.
    ///
    /// # Errors
    /// `Io` if it is not installed; `Unsupported` if the kernel would deny it the user's files.
    fn mounts(&'static self, kind: Kind, who: Mounter, otherwise: &str) -> Result<MountMethod> {
        let Self { name, package, setuid, arguments: _ } = self;
        let purpose = format!("mounting {}", kind.described());
        let missing = || Error::not_installed(&purpose, (name, package), otherwise);
        let path = find(name).ok_or_else(missing)?;
        if *setuid && !who.is_root() && !sharing_allowed() {
            let why = format!("{name} is setuid root, so the kernel denies it access to a user's FUSE files");
            let allow = "To allow it, the administrator can add the line user_allow_other to /etc/fuse.conf.";
            let hint = format!("{allow} {otherwise}");
            return Err(Error::unsupported(format!("{purpose}: {why}")).hint(hint.trim_end()));
        }
        Ok(MountMethod::Program { path, program: self, kind })
    }

    /// The program, ready to start.
    pub fn command(&self, path: &Path, call: &Call<'_>) -> Command {
        // If this process is killed, the program gets a signal to end: it could only fail from then on.
        let mut command = match find("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "TERM", "--"]).arg(path);
                command
            }
            None => Command::new(path),
        };
        command.args((self.arguments)(call)).env("LC_ALL", "C").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C goes to this process only, which unmounts. The program would end with files half written.
        command.process_group(0);
        command
    }
}

fn fuse2fs(call: &Call<'_>) -> Vec<OsString> {
    // fakeroot: the volume belongs to the user who opened it, whichever users own its files.
    let options = joined(&["fakeroot", "nosuid", "nodev"], call);
    vec![call.image.into(), call.dir.into(), "-f".into(), "-o".into(), options.into()]
}

fn ntfs_3g(call: &Call<'_>) -> Vec<OsString> {
    let owner = format!("uid={},gid={}", getuid().as_raw(), getgid().as_raw());
    // Its defaults would let other users in, which only root may request, and would mount over files.
    let options = joined(&["no_def_opts", "silent", "no_detach", "nosuid", "nodev", "umask=077", &owner], call);
    vec![call.image.into(), call.dir.into(), "-o".into(), options.into()]
}

fn joined(ours: &[&str], call: &Call<'_>) -> String {
    let read_only = call.read_only.then_some("ro");
    let all: Vec<&str> = ours.iter().copied().chain(read_only).chain(call.options.iter().map(String::as_str)).collect();
    all.join(",")
}

/// Whether the kernel can mount this type, possibly after loading a module.
fn in_kernel(name: &str) -> bool {
    let known = || {
        let list = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        list.lines().any(|line| line.split_whitespace().next_back() == Some(name))
    };
    known() || (load(name) && known())
}

fn load(name: &str) -> bool {
    let Some(modprobe) = find("modprobe") else { return false };
    let mut command = Command::new(modprobe);
    command.args(["-q", "--"]).arg(format!("fs-{name}"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Finds the program `name` in PATH or in the system's folders for programs, which users' PATH may omit.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    places
        .chain(["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_in_one_row() {
        for kind in Kind::ALL {
            assert!(DRIVERS.iter().filter(|d| d.kinds.contains(kind)).count() <= 1, "{kind:?}");
        }
    }

    #[test]
    fn without_root_or_loop_devices_the_kernel_mounts_nothing() {
        for kind in Kind::ALL {
            for who in [Mounter::User, Mounter::Root] {
                match way(*kind, who, false) {
                    Ok(way) => assert!(!matches!(way, MountMethod::Kernel { .. }), "{kind:?}"),
                    Err(e) => assert!(e.hint.is_some_and(|hint| hint.contains("--filesystem none")), "{kind:?}"),
                }
            }
        }
        for who in [Mounter::User, Mounter::Root, Mounter::Kernel] {
            assert!(way_by_name("no-such", who, false).is_err());
        }
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        static MISSING: Program = Program { name: "no-such", package: "package", setuid: false, arguments: fuse2fs };
        static THERE: Program = Program { name: "sh", ..MISSING };
        let error = MISSING.mounts(Kind::Ext4, Mounter::User, "Or not.").err().expect("it is missing");
        assert_eq!(error.kind.code(), 6);
        assert!(error.to_string().ends_with("`apt install package` (Debian package). Or not."), "{error}");
        assert!(THERE.mounts(Kind::Ext4, Mounter::User, "").is_ok());
    }

    #[test]
    fn what_the_person_wants_comes_last() {
        let call = Call { image: Path::new("/i"), dir: Path::new("/d"), read_only: true, options: &["noatime".into()] };
        assert_eq!(fuse2fs(&call)[4], "fakeroot,nosuid,nodev,ro,noatime");
    }
}
