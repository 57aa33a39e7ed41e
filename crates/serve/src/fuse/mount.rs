//! Mounts and unmounts: with mount(2) where allowed, otherwise through fusermount3.

use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use claviger_engine::{Error, ErrorKind, Result};
use rustix::cmsg_space;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::thread::{CapabilitySet, capabilities};

use crate::mount::mountinfo;
use crate::mount::unmount::{Detached, detach, fusermount};

const DEVICE: &str = "/dev/fuse";

/// File system type of our mounts in `/proc/self/mountinfo`.
const KIND: &str = "fuse.claviger";

/// What to try in a container.
const CONTAINERS: &str = "Containers need `--device /dev/fuse --cap-add SYS_ADMIN`.";

/// What to do without FUSE.
const WITHOUT: &str = "Without FUSE, use `claviger ls`, `claviger cp` or `claviger serve`.";

/// A mount to be made.
pub struct NewMount<'a> {
    pub dir: &'a Path,
    pub source: &'a str,
    pub read_only: bool,
    /// The owner of the file.
    pub uid: u32,
    /// Whether the kernel checks other users' permissions instead of refusing them all.
    pub shared: bool,
    /// Whether device nodes work. Needs mount(2).
    pub devices: bool,
    /// Whether setuid bits take effect. Needs mount(2).
    pub setuid: bool,
}

/// A mounted folder. Dropping it unmounts it, even while it is in use.
pub struct MountedFolder {
    dir: PathBuf,
    /// Device number and source in `/proc/self/mountinfo`, which tell this mount from others on the same folder.
    mark: String,
}

/// Checks what can be checked before mounting: whether this process may use FUSE, and mount or have it done.
///
/// # Errors
/// `Io`, naming what is missing.
pub fn available() -> Result<()> {
    let Err(errno) = open_device() else {
        let may_mount = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        return if may_mount { Ok(()) } else { helper().map(drop) };
    };
    let to_try = match errno {
        Errno::ACCESS | Errno::PERM => "To let all users mount, as root: `chmod 666 /dev/fuse`.".to_owned(),
        _ => format!("To load FUSE, as root: `modprobe fuse`. {CONTAINERS}"),
    };
    Err(Error::from(io::Error::from(errno)).at(DEVICE.as_ref()).hint(format!("{to_try} {WITHOUT}")))
}

/// The program that mounts for unprivileged users.
///
/// # Errors
/// `Io` if it is not installed, and for root: what root may not do, the program may not do either.
fn helper() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        let why = io::Error::other("root may not mount here (CAP_SYS_ADMIN)");
        return Err(Error::from(why).hint(format!("{CONTAINERS} {WITHOUT}")));
    }
    fusermount().ok_or_else(|| Error::not_installed("a FUSE mount by a user", ("fusermount3", "fuse3"), WITHOUT))
}

/// Mounts. The kernel's first request is waiting on the returned descriptor, which never blocks.
pub fn mount(new: &NewMount<'_>) -> Result<(MountedFolder, OwnedFd)> {
    available()?;
    let dir = new.dir.canonicalize().map_err(|e| Error::from(e).at(new.dir))?;
    let fd = match mount_directly(new, &dir) {
        Err(Errno::PERM | Errno::ACCESS) => mount_with_help(new, &dir),
        tried => tried.map_err(|e| io::Error::from(e).into()),
    };
    let fd = fd.map_err(|e| e.at(new.dir))?;
    let mut place = MountedFolder { dir, mark: String::new() };
    place.mark = mounted_at(&place.dir)?
        .ok_or_else(|| Error::new(ErrorKind::Io(io::Error::other("the new mount has disappeared"))).at(&place.dir))?;
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(io::Error::from)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok((place, fd))
}

/// Opens another descriptor for the connection of `fd`, with its own queue where that is allowed.
pub fn another(fd: &OwnedFd) -> io::Result<OwnedFd> {
    if let Ok(new) = open_device()
        && super::sys::join(&new, fd).is_ok()
    {
        return Ok(new);
    }
    fd.try_clone()
}

impl MountedFolder {
    /// Unmounts, unless the folder is in use.
    ///
    /// # Errors
    /// `Io` if it is still mounted, with what to try.
    pub fn unmount(&self) -> Result<Detached> {
        if self.is_mounted() { detach(&self.dir, false) } else { Ok(Detached::Done) }
    }

    /// Unmounts even while in use. Users get errors at once, or as soon as the server has ended.
    ///
    /// # Errors
    /// `Io` if it is still mounted, with what to try.
    pub fn detach(&self) -> Result<()> {
        // FORCE ends the connection first, so nobody waits for an answer that never comes.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        if !self.is_mounted() || rustix::mount::unmount(&self.dir, flags).is_ok() {
            return Ok(());
        }
        detach(&self.dir, true).map(drop)
    }

    /// Whether the folder still has this mount. Never asks a server, which might not answer.
    fn is_mounted(&self) -> bool {
        mounted_at(&self.dir).is_ok_and(|mark| mark.as_ref() == Some(&self.mark))
    }
}

impl Drop for MountedFolder {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

/// Device number and source of the topmost mount at `dir`, if it is one of ours (proc_pid_mountinfo(5)). The kernel
/// reuses a freed number for the next mount, but a volume is mounted only once.
fn mounted_at(dir: &Path) -> io::Result<Option<String>> {
    let ours = mountinfo::at(dir)?.filter(|mount| mount.kind == KIND);
    Ok(ours.map(|mount| format!("{} {}", mount.device, mount.source.display())))
}

fn open_device() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

fn mount_directly(new: &NewMount<'_>, dir: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = open_device()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut options = format!("fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions", fd.as_raw_fd());
    if new.uid != uid || new.shared {
        // The mode of the folder allows the owner and keeps others out.
        options += ",allow_other";
    }
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NODEV, !new.devices);
    flags.set(MountFlags::NOSUID, !new.setuid);
    flags.set(MountFlags::RDONLY, new.read_only);
    rustix::mount::mount(new.source, dir, KIND, flags, options.as_c_str())?;
    Ok(fd)
}

/// Mounts through the helper, which passes the descriptor over a socket (util/fusermount.c of libfuse).
fn mount_with_help(new: &NewMount<'_>, dir: &Path) -> Result<OwnedFd> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(io::Error::from)?;
    let mode = if new.read_only { "ro" } else { "rw" };
    let source = new.source.replace('\\', "\\\\").replace(',', "\\,");
    let (_, subtype) = KIND.split_once('.').expect("it has a subtype");
    let shared = if new.shared { ",allow_other" } else { "" };
    let options = format!("{mode},nosuid,nodev,default_permissions,fsname={source},subtype={subtype}{shared}");
    let program = helper()?;
    let mut command = Command::new(&program);
    command.arg("-o").arg(&options).arg("--").arg(dir).env("LC_ALL", "C");
    // Passed as standard input, because programs pass that on by themselves.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| Error::from(e).at(&program).hint(WITHOUT))?;
    // Closes our copy of the other end: otherwise a program that ends without an answer would be waited for.
    drop(command);
    let received = receive_descriptor(&ours);
    let mut errors = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut errors);
    }
    let ended = child.wait()?;
    match received? {
        Some(fd) if ended.success() => Ok(fd),
        _ => Err(refused(&program, errors.trim())),
    }
}

/// The error for a mount that the program `helper` did not make.
fn refused(helper: &Path, why: &str) -> Error {
    let error = Error::new(ErrorKind::Io(io::Error::other(format!("cannot mount: {why}"))));
    let is_setuid = helper.metadata().is_ok_and(|m| m.mode() & 0o4000 != 0);
    match why.ends_with("not permitted") {
        true if is_setuid => error.hint(format!("{CONTAINERS} {WITHOUT}")),
        true => {
            let helper = helper.display();
            error.hint(format!("fusermount3 must be setuid root. As root: `chmod u+s {helper}`. {WITHOUT}"))
        }
        false => error,
    }
}

/// Receives the descriptor that comes with a message, if any.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => break,
        }
    }
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_by_others_is_none_of_ours() {
        assert_eq!(mounted_at(Path::new("/")).expect("there is a list"), None);
        assert_eq!(mounted_at(Path::new("/proc")).expect("there is a list"), None);
    }
}
