//! Mounts and unmounts: with mount(2) where allowed, otherwise through fusermount3.

use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use claviger_engine::{Error, ErrorKind, Result};
use rustix::cmsg_space;
use rustix::fs::{Access, Mode, OFlags, access};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use crate::mount::mountinfo;

const DEVICE: &str = "/dev/fuse";

/// File system type of our mounts in `/proc/self/mountinfo`.
const KIND: &str = "fuse.claviger";

/// The program that mounts for unprivileged users, and its former name.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

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
    /// Whether mount(2) was allowed.
    direct: bool,
}

/// The result of an attempt to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// No longer mounted.
    Yes,
    /// In use.
    Busy,
}

/// Checks what can be checked before mounting: whether this process may use FUSE.
///
/// # Errors
/// `Io`, naming what is missing.
pub fn available() -> Result<()> {
    let Err(errno) = access(DEVICE, Access::READ_OK | Access::WRITE_OK) else { return Ok(()) };
    let why = match errno {
        Errno::NOENT => "FUSE is not available: load it with `modprobe fuse`, or expose /dev/fuse to the container.",
        _ => "You have no permission to use FUSE: ask the administrator.",
    };
    let error = Error::from(io::Error::from(errno)).at(DEVICE.as_ref());
    Err(error.hint(format!("{why} Without FUSE, use `claviger ls`, `claviger cp` or `claviger serve`.")))
}

/// Mounts. The kernel's first request is waiting on the returned descriptor, which never blocks.
pub fn mount(new: &NewMount<'_>) -> Result<(MountedFolder, OwnedFd)> {
    available()?;
    let dir = new.dir.canonicalize().map_err(|e| Error::from(e).at(new.dir))?;
    let (direct, fd) = match mount_directly(new, &dir) {
        Ok(fd) => (true, fd),
        Err(Errno::PERM | Errno::ACCESS) => (false, mount_with_help(new, &dir).map_err(|e| e.at(new.dir))?),
        Err(e) => return Err(Error::from(io::Error::from(e)).at(new.dir)),
    };
    let mut place = MountedFolder { dir, mark: String::new(), direct };
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
    pub fn unmount(&self) -> io::Result<Gone> {
        if !self.is_mounted() {
            return Ok(Gone::Yes);
        }
        if self.direct {
            return match rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(Errno::INVAL) => Ok(Gone::Yes),
                Err(Errno::BUSY) => Ok(Gone::Busy),
                Err(e) => Err(e.into()),
            };
        }
        // The helper's messages are translated, so only the result counts.
        let _ = helper(|name| Command::new(name).arg("-qu").arg("--").arg(&self.dir).stdin(Stdio::null()).output());
        Ok(if self.is_mounted() { Gone::Busy } else { Gone::Yes })
    }

    /// Unmounts even while in use. Users get errors at once, or as soon as the server has ended.
    pub fn detach(&self) {
        if !self.is_mounted() {
            return;
        }
        if self.direct {
            // FORCE ends the connection first, so nobody waits for an answer that never comes.
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            let _ = rustix::mount::unmount(&self.dir, flags);
        } else {
            let lazily =
                |name: &str| Command::new(name).arg("-quz").arg("--").arg(&self.dir).stdin(Stdio::null()).output();
            let _ = helper(lazily);
        }
    }

    /// Whether the folder still has this mount. Never asks a server, which might not answer.
    fn is_mounted(&self) -> bool {
        mounted_at(&self.dir).is_ok_and(|mark| mark.as_ref() == Some(&self.mark))
    }
}

impl Drop for MountedFolder {
    fn drop(&mut self) {
        self.detach();
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
    let mut child = helper(|name| {
        let mut command = Command::new(name);
        command.arg("-o").arg(&options).arg("--").arg(dir);
        // Passed as standard input, because programs pass that on by themselves.
        command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs.try_clone()?));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    })
    .map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::new(ErrorKind::Io(io::Error::other(
            "only root may mount, and fusermount3, which mounts for other users, is not installed",
        )))
        .hint("Install fuse3, or run this as root."),
        _ => e.into(),
    })?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let mut errors = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut errors);
    }
    let ended = child.wait()?;
    match received? {
        Some(fd) if ended.success() => Ok(fd),
        _ => Err(Error::new(ErrorKind::Io(io::Error::other(format!("cannot mount: {}", errors.trim()))))),
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

/// Calls `start` with the helper's names until one exists.
fn helper<T>(start: impl Fn(&str) -> io::Result<T>) -> io::Result<T> {
    let mut result = Err(io::ErrorKind::NotFound.into());
    for name in HELPERS {
        result = start(name);
        if !matches!(&result, Err(e) if e.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    result
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
