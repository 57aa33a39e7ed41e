//! Volumes in remote stores: exports of NBD servers, and stores that programs serve over NBD.

mod ceph;
mod helper;
mod image;
mod other_files;
mod uri;
mod walls;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::deadline::Deadline;
use claviger_engine::store::Access;
use claviger_engine::{Error, ErrorKind, Result, Store};

use crate::nbd::ClientTls;
use crate::nbd::remote::{Reach, Remote, RemoteOptions};
use crate::nbd::socket::Socket;
use helper::Helped;
pub use helper::{Helper, Writers, helpers};
pub use uri::{ServerAddress, Tls, Uri};

/// The address of a remote store.
#[derive(Clone, Debug)]
pub enum RemoteAddress {
    /// An export of an NBD server.
    Nbd(Uri),
    /// A store that a program serves: the row, and the part after the scheme.
    Helped(Helper, String),
}

impl RemoteAddress {
    /// Parses an address; none if the text is a path. A path with a colon needs a slash before it: `./rbd:x`.
    ///
    /// # Errors
    /// `Misuse` and `Unsupported`: the error in a URI.
    pub fn parse(text: &OsStr, helpers: &[Helper]) -> Result<Option<Self>> {
        if uri::is_uri(text.as_bytes()) {
            return Uri::parse(utf8(text)?).map(Self::Nbd).map(Some);
        }
        let scheme = text.as_bytes().split(|b| *b == b':').next().unwrap_or_default();
        match helpers.iter().find(|helper| helper.scheme.as_bytes() == scheme) {
            Some(helper) if scheme.len() < text.len() => {
                let rest = utf8(text)?[scheme.len() + 1..].to_owned();
                // Reports errors in the address before anything else is done.
                Helped::new(helper, &rest, Access::ReadOnly)?;
                Ok(Some(Self::Helped(helper.clone(), rest)))
            }
            _ => Ok(None),
        }
    }

    /// Opens the store.
    ///
    /// # Errors
    /// `Io` with the message of the server or helper; `InUse` if another client is known to write there; `Misuse`;
    /// `Unsupported`, also if an image names other files.
    pub fn open(&self, access: Access, options: RemoteOptions) -> Result<Arc<dyn Store>> {
        let (server, export): (Box<dyn Reach>, _) = match self {
            Self::Nbd(uri) => (Box::new(Dialled::new(uri)?), uri.export.as_str()),
            Self::Helped(helper, rest) => {
                if access == Access::ReadWrite && helper.writers == Writers::Nobody {
                    return Err(only_read(&helper.scheme));
                }
                let helped = Helped::new(helper, rest, access)?;
                helped.check(Deadline::within(options.timeout, options.cancel))?;
                (Box::new(helped), "")
            }
        };
        let remote = Remote::open(server, export, access, options).map_err(with_hint)?;
        if access == Access::ReadWrite {
            remote.check_only_writer()?;
        }
        Ok(Arc::new(remote))
    }

    /// What distinguishes the store from every other that has the same address in another folder or environment. Two addresses of one
    /// store may differ. It may contain secrets of the environment: compare digests.
    ///
    /// # Errors
    /// `Io` if a file or socket of the address is missing.
    pub fn identity(&self) -> Result<String> {
        let number = |path: &Path| -> Result<String> {
            let metadata = path.metadata().map_err(|e| Error::from(e).at(path))?;
            Ok(format!("{}:{}", metadata.dev(), metadata.ino()))
        };
        Ok(match self {
            Self::Nbd(uri) => match &uri.server {
                // A server that starts again makes another socket there, and sessions connect to that.
                ServerAddress::Unix(socket) => {
                    let place = socket.canonicalize().map_err(|e| Error::from(e).at(socket))?;
                    format!("{} {:?} {}", uri.export, uri.tls, place.display())
                }
                ServerAddress::Tcp(..) => format!("{uri:?}"),
            },
            Self::Helped(helper, rest) => {
                let files = match helper.image {
                    Some(_) => number(rest.as_ref())?,
                    // Options may name files.
                    None => {
                        let values = rest.split([':', '?', '&']).filter_map(|part| part.split_once('='));
                        let files = values.map(|(_, value)| Path::new(value)).filter(|file| file.exists());
                        files.map(number).collect::<Result<Vec<_>>>()?.join(" ")
                    }
                };
                let variables = helper.environment.iter().map(String::as_str).chain(["HOME"]);
                let environment: Vec<_> = variables.map(|name| (name, std::env::var_os(name))).collect();
                format!("{helper:?} {rest} {files} {environment:?}")
            }
        })
    }

    /// How concurrent writers are prevented.
    pub fn writers(&self) -> Writers {
        match self {
            Self::Nbd(_) => Writers::Unknown,
            Self::Helped(helper, _) => helper.writers,
        }
    }
}

fn utf8(text: &OsStr) -> Result<&str> {
    text.to_str().ok_or_else(|| Error::misuse("not UTF-8").at(Path::new(text)))
}

fn only_read(scheme: &str) -> Error {
    let why = format!("{scheme}: is read-only, since most servers would replace the whole file on a write");
    Error::new(ErrorKind::Io(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why)))
        .hint("Add --read-only to `mount` or `serve`. To change it, download it, change the copy, and upload that.")
}

fn with_hint(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            Error::new(ErrorKind::Io(error)).hint("No server answers there. Check that it is running.")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(ErrorKind::Io(error)).hint("To open it read-only, add --read-only.")
        }
        _ => error.into(),
    }
}

/// A server reached by its address.
struct Dialled {
    server: ServerAddress,
    tls: Option<ClientTls>,
}

impl Dialled {
    fn new(uri: &Uri) -> Result<Self> {
        let tls = uri.tls.as_ref().map(|tls| {
            let host = match &uri.server {
                ServerAddress::Tcp(host, _) => host,
                ServerAddress::Unix(_) => "localhost",
            };
            let folder = tls.certificates.clone().map_or_else(certificates, Ok)?;
            ClientTls::new(&folder, tls.hostname.as_deref().unwrap_or(host))
        });
        Ok(Self { server: uri.server.clone(), tls: tls.transpose()? })
    }
}

/// The default folder of certificates: the first existing one of those that libnbd uses.
fn certificates() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let at_home = [".config/pki/libnbd", ".pki/libnbd"].map(|folder| home.as_ref().map(|home| home.join(folder)));
    let folders = at_home.into_iter().flatten().chain([PathBuf::from("/etc/pki/libnbd")]);
    folders
        .into_iter()
        .find(|folder| folder.is_dir())
        .ok_or_else(|| Error::misuse("no certificates for TLS were given").hint("Add ?tls-certificates=FOLDER."))
}

impl Reach for Dialled {
    fn service(&self) -> Option<String> {
        match &self.server {
            ServerAddress::Tcp(host, port) if host.contains(':') => Some(format!("[{host}]:{port}")),
            ServerAddress::Tcp(host, port) => Some(format!("{host}:{port}")),
            ServerAddress::Unix(path) => Some(path.display().to_string()),
        }
    }

    fn tls(&self) -> Option<&ClientTls> {
        self.tls.as_ref()
    }

    fn reach(&self, deadline: Deadline) -> io::Result<Socket> {
        Ok(Socket::new(match &self.server {
            ServerAddress::Unix(path) => deadline.connect_unix(path)?,
            ServerAddress::Tcp(host, port) => deadline.connect_tcp(host, *port)?,
        }))
    }
}
