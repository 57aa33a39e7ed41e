//! A server's listening sockets.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use claviger_engine::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};

use super::NbdAddress;

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening socket. Dropping it removes the file of a Unix socket.
pub struct Listener {
    fd: OwnedFd,
    address: NbdAddress,
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// `Misuse` for a TCP address that other machines can reach, unless all connections are `encrypted`; for a path
    /// that is too long; or for a path with something other than a socket. `InUse` if another server answers; `Io`.
    pub fn new(address: &NbdAddress, encrypted: bool) -> Result<Self> {
        match address {
            NbdAddress::Unix(path) => Self::unix(path).map_err(|e| e.at(path)),
            NbdAddress::Tcp(address) => Self::tcp(*address, encrypted),
        }
    }

    /// The address it listens on; port 0 has been replaced by the real one.
    pub fn address(&self) -> &NbdAddress {
        &self.address
    }

    /// Waits for the next connection.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        Ok(accept_with(&self.fd, SocketFlags::CLOEXEC)?)
    }

    fn tcp(address: SocketAddr, encrypted: bool) -> Result<Self> {
        if !encrypted && !address.ip().is_loopback() {
            return Err(Error::misuse(format!(
                "other machines can reach {address}, and without TLS the plaintext would cross the network in the \
                 clear"
            ))
            .hint("Add --tls FOLDER, or serve on 127.0.0.1 or a Unix socket and tunnel it with ssh."));
        }
        let listener = TcpListener::bind(address).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => in_use(&format!("another program listens on {address}")),
            _ => e.into(),
        })?;
        let address = NbdAddress::Tcp(listener.local_addr()?);
        Ok(Self { fd: listener.into(), address, file: None })
    }

    fn unix(path: &Path) -> Result<Self> {
        let name = SocketAddrUnix::new(path)
            .map_err(|_| Error::misuse("too long for a socket's path: at most 107 bytes are allowed"))?;
        // Two servers that find the same stale file must not remove each other's new one. So a server must lock the
        // folder before it checks, removes and listens. If the folder cannot be opened or locked, this is skipped.
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::File::open(parent).ok();
        let _locked = folder.as_ref().is_some_and(locked);

        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)?;
        // On Linux the file gets the socket's mode, less the umask: private from the first moment (net/unix/af_unix.c,
        // unix_bind_bsd). Setting the process's umask would affect files that other threads create in the meantime.
        fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
        match bind(&fd, &name) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(path)?;
                bind(&fd, &name).map_err(io::Error::from)?;
            }
            bound => bound.map_err(io::Error::from)?,
        }
        let file = SocketFile::new(path)?;
        listen(&fd, BACKLOG).map_err(io::Error::from)?;
        Ok(Self { fd, address: NbdAddress::Unix(path.to_owned()), file: Some(file) })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Removed while the socket still answers, or another server could take it for stale and replace it in between.
        drop(self.file.take());
    }
}

/// Connects to a server.
pub fn connect(address: &NbdAddress) -> io::Result<OwnedFd> {
    Ok(match address {
        NbdAddress::Unix(path) => UnixStream::connect(path)?.into(),
        NbdAddress::Tcp(address) => TcpStream::connect(address)?.into(),
    })
}

/// The file of a Unix socket created by this process.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        // The path may be relative, and the process may change its working folder.
        let path = std::path::absolute(path)?;
        Ok(Self { path, identity: (metadata.dev(), metadata.ino()) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Leave a file that another process has put there since.
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks a folder. Fails if somebody holds the lock for longer than a server needs to start, as anyone with read permission can.
fn locked(folder: &fs::File) -> bool {
    (0..100).any(|_| {
        let locked = flock(folder, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(Errno::WOULDBLOCK) {
            thread::sleep(Duration::from_millis(10));
        }
        locked.is_ok()
    })
}

/// Removes a dead server's socket, and nothing else.
fn remove_stale(path: &Path) -> Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(Error::misuse("already exists and is not a socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(in_use("another server answers on this socket")),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Err(e) => Err(e.into()),
    }
}

fn in_use(holder: &str) -> Error {
    Error::new(ErrorKind::InUse { holder: Some(holder.to_owned()) }).hint("Stop it first, or serve at another address.")
}
