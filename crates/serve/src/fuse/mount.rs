//! Mounting, and getting rid of mounts: by mount(2) where that is allowed, else through fusermount3.

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

/// What file systems of this program are called in `/proc/self/mountinfo`.
const KIND: &str = "fuse.claviger";

/// The program that mounts for those who may not, and what it was called before.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// How something is to be mounted.
pub struct Wish<'a> {
    pub dir: &'a Path,
    pub source: &'a str,
    pub read_only: bool,
    /// Whose file it is.
    pub uid: u32,
    /// Whether others come as far as the permissions.
    pub shared: bool,
    /// Whether devices are devices. Only where mount(2) is allowed.
    pub devices: bool,
    /// Whether programs that are setuid are that. Only where mount(2) is allowed.
    pub setuid: bool,
}

/// A mounted folder. Dropping it unmounts it, whoever uses it.
pub struct MountedFolder {
    dir: PathBuf,
    /// Device number and source in `/proc/self/mountinfo`, by which it is told from what else is mounted there.
    mark: String,
    /// Whether mount(2) was allowed.
    direct: bool,
}

/// What came of an attempt to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It is not mounted any more.
    Yes,
    /// Somebody uses it.
    Busy,
}

/// Whether this process may use FUSE, as far as it shows before anything is mounted.
///
/// # Errors
/// `Io`, with what is missing.
pub fn available() -> Result<()> {
    let Err(errno) = access(DEVICE, Access::READ_OK | Access::WRITE_OK) else { return Ok(()) };
    let why = match errno {
        Errno::NOENT => "FUSE is not available: load it with `modprobe fuse`, or expose /dev/fuse to the container.",
        _ => "You have no permission to use FUSE: ask the administrator.",
    };
    let error = Error::from(io::Error::from(errno)).at(DEVICE.as_ref());
    Err(error.hint(format!("{why} Without FUSE, use `claviger ls`, `claviger cp` or `claviger serve`.")))
}

/// Mounts. The kernel's first request waits in the descriptor, which never blocks.
pub fn mount(wish: &Wish<'_>) -> Result<(MountedFolder, OwnedFd)> {
    available()?;
    let dir = wish.dir.canonicalize().map_err(|e| Error::from(e).at(wish.dir))?;
    let (direct, fd) = match mount_directly(wish, &dir) {
        Ok(fd) => (true, fd),
        Err(Errno::PERM | Errno::ACCESS) => (false, mount_with_help(wish, &dir).map_err(|e| e.at(wish.dir))?),
        Err(e) => return Err(Error::from(io::Error::from(e)).at(wish.dir)),
    };
    let mut place = MountedFolder { dir, mark: String::new(), direct };
    place.mark = mounted_at(&place.dir)?
        .ok_or_else(|| Error::new(ErrorKind::Io(io::Error::other("mounted, and not there"))).at(&place.dir))?;
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(io::Error::from)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok((place, fd))
}

/// Another descriptor for the connection of `fd`, with a queue of its own where that is allowed.
pub fn another(fd: &OwnedFd) -> io::Result<OwnedFd> {
    if let Ok(new) = open_device()
        && super::sys::join(&new, fd).is_ok()
    {
        return Ok(new);
    }
    fd.try_clone()
}

impl MountedFolder {
    /// Unmounts, unless somebody uses it.
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
        // Its messages are for people, and translated; what counts is whether it is gone.
        let _ = helper(|name| Command::new(name).arg("-qu").arg("--").arg(&self.dir).stdin(Stdio::null()).output());
        Ok(if self.is_mounted() { Gone::Busy } else { Gone::Yes })
    }

    /// Unmounts, whoever uses it; they get errors from now on, or as soon as nobody serves.
    pub fn detach(&self) {
        if !self.is_mounted() {
            return;
        }
        if self.direct {
            // FORCE ends the connection first: nobody waits for an answer that does not come.
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            let _ = rustix::mount::unmount(&self.dir, flags);
        } else {
            let lazily =
                |name: &str| Command::new(name).arg("-quz").arg("--").arg(&self.dir).stdin(Stdio::null()).output();
            let _ = helper(lazily);
        }
    }

    /// Whether what is mounted there is still this. Asks nobody who might not answer.
    fn is_mounted(&self) -> bool {
        mounted_at(&self.dir).is_ok_and(|mark| mark.as_ref() == Some(&self.mark))
    }
}

impl Drop for MountedFolder {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Device number and source of what is mounted at `dir` on top, if it is one of ours (proc_pid_mountinfo(5)). The kernel gives
/// a number to the next mount as soon as it is free; a volume is mounted once.
fn mounted_at(dir: &Path) -> io::Result<Option<String>> {
    let ours = mountinfo::at(dir)?.filter(|mount| mount.kind == KIND);
    Ok(ours.map(|mount| format!("{} {}", mount.device, mount.source.display())))
}

fn open_device() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

fn mount_directly(wish: &Wish<'_>, dir: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = open_device()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut options = format!("fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions", fd.as_raw_fd());
    if wish.uid != uid || wish.shared {
        // The owner may, the mode of the folder keeps others out.
        options += ",allow_other";
    }
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NODEV, !wish.devices);
    flags.set(MountFlags::NOSUID, !wish.setuid);
    flags.set(MountFlags::RDONLY, wish.read_only);
    rustix::mount::mount(wish.source, dir, KIND, flags, options.as_c_str())?;
    Ok(fd)
}

/// Mounts through the helper, which passes the descriptor over a socket (util/fusermount.c of libfuse).
fn mount_with_help(wish: &Wish<'_>, dir: &Path) -> Result<OwnedFd> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(io::Error::from)?;
    let mode = if wish.read_only { "ro" } else { "rw" };
    let source = wish.source.replace('\\', "\\\\").replace(',', "\\,");
    let (_, subtype) = KIND.split_once('.').expect("it has a subtype");
    let shared = if wish.shared { ",allow_other" } else { "" };
    let options = format!("{mode},nosuid,nodev,default_permissions,fsname={source},subtype={subtype}{shared}");
    let mut child = helper(|name| {
        let mut command = Command::new(name);
        command.arg("-o").arg(&options).arg("--").arg(dir);
        // Its standard input, because that is what a program passes on without being told.
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
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    let ended = child.wait()?;
    match received? {
        Some(fd) if ended.success() => Ok(fd),
        _ => Err(Error::new(ErrorKind::Io(io::Error::other(format!("cannot mount: {}", said.trim()))))),
    }
}

/// The descriptor that comes with a message, if one does.
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

/// Calls `start` with the helper's names until one is there.
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
