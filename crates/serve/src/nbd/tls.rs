//! TLS identities and trust: certificates and keys in the same folders as for libnbd, nbdkit and qemu.
//!
//! | File | What it is | Who needs it |
//! |---|---|---|
//! | `ca-cert.pem` | the authorities that certificates of others have to come from | both; a server that takes any client does not |
//! | `ca-crl.pem` | certificates that they have revoked | optional for both |
//! | `server-cert.pem`, `server-key.pem` | the server's certificate and its key | the server |
//! | `client-cert.pem`, `client-key.pem` | the client's certificate and its key | a client of whom the server demands one |
//!
//! TLS 1.3 and 1.2 by rustls, as required by the NBD project's `doc/proto.md` ("TLS versions"). Pre-shared keys are not
//! supported, as rustls has none.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::deadline::Deadline;
use claviger_engine::{Error, Result};
use rustix::system::uname;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::protocol::*;
use super::socket::Socket;
use super::tls_error::{explained, refused};

/// A client's certificate and the authorities that it trusts.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A server's certificate and the authorities that it trusts.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    folder: PathBuf,
    certificate: CertificateDer<'static>,
}

impl ClientTls {
    /// For a server that must prove to be `name`, a host name or an IP address, with the files in `folder`.
    ///
    /// # Errors
    /// `Misuse` for a name that no certificate can have, and for a file that is missing, has the wrong contents, or is
    /// a key readable by others; `Io`.
    pub fn new(folder: &Path, name: &str) -> Result<Self> {
        let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| Error::misuse(format!("{name:?} is neither a host name nor an IP address")))?;
        let provider = provider();
        let mut verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(authorities(folder)?), Arc::clone(&provider));
        if let Some(lists) = revoked(folder)? {
            verifier = verifier.with_crls(lists).allow_unknown_revocation_status().enforce_revocation_expiration();
        }
        let verifier = verifier.build().map_err(|e| unverifiable(&e, folder))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unexpected)?
            .with_webpki_verifier(verifier);
        let mut config = match shown(folder, "client")? {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(|e| unfit(&e, folder, "client"))?,
            None => config.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), name })
    }

    /// Requests TLS from the server and starts encryption: `NBD_OPT_STARTTLS`, the first option of a handshake. If this
    /// fails, nothing more may be sent over the connection.
    ///
    /// # Errors
    /// `PermissionDenied` if the server does not offer TLS, is not the expected one, or refuses us; `InvalidData` if it
    /// breaks the protocol; `TimedOut`; or the socket's error.
    pub(super) fn start(&self, socket: &Socket, deadline: Deadline) -> io::Result<()> {
        socket.send_by(deadline, &OptionHeader { option: option::STARTTLS, len: 0 }.to_bytes())?;
        let mut header = [0; 20];
        socket.receive_by(deadline, &mut header)?;
        let (kind, len) = (be32(&header, 12), be32(&header, 16));
        if be64(&header, 0) != OPTION_REPLY_MAGIC || be32(&header, 8) != option::STARTTLS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a reply to the demand for TLS"));
        }
        // Nothing beyond the reply was received. Anything that an attacker has added in plaintext is parsed as TLS, and fails.
        match kind {
            reply::ACK if len == 0 => {}
            reply::ERR_UNSUP | reply::ERR_POLICY => {
                let why = "the server does not offer TLS, without which all data would cross the network in the clear";
                return Err(refused(why));
            }
            _ => return Err(refused(&format!("the server does not start TLS: reply type {kind:#x}"))),
        }
        self.handshake(socket, deadline)
    }

    /// Starts encryption, after the server has agreed.
    pub(super) fn handshake(&self, socket: &Socket, deadline: Deadline) -> io::Result<()> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        socket.start_tls(connection.map_err(|e| explained(&e))?.into(), deadline)
    }
}

impl ServerTls {
    /// With the files in `folder`. If `verify_peers`, each client must present a certificate of the authorities there.
    ///
    /// # Errors
    /// `Misuse` for a file that is missing, has the wrong contents, or is a key readable by others; `Io`.
    pub fn new(folder: &Path, verify_peers: bool) -> Result<Self> {
        let Some((chain, key)) = shown(folder, "server")? else {
            return Err(missing(&folder.join("server-cert.pem"), "the server's certificate"));
        };
        let provider = provider();
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unexpected)?;
        let config = if verify_peers {
            let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(folder)?), provider);
            if let Some(lists) = revoked(folder)? {
                verifier = verifier.with_crls(lists).allow_unknown_revocation_status().enforce_revocation_expiration();
            }
            config.with_client_cert_verifier(verifier.build().map_err(|e| unverifiable(&e, folder))?)
        } else {
            config.with_no_client_auth()
        };
        let certificate = chain[0].clone();
        let mut config = config.with_single_cert(chain, key).map_err(|e| unfit(&e, folder, "server"))?;
        // A connection lasts as long as the disk is used, so resuming one has no benefit.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), folder: folder.to_owned(), certificate })
    }

    /// The folder with the certificates.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The host name that clients should use for a server at `address`: one that the certificate proves, if possible.
    pub(super) fn host(&self, address: IpAddr) -> String {
        let machine = uname().nodename().to_string_lossy().into_owned();
        let local = address.is_loopback() || address.is_unspecified();
        let names = [
            (!address.is_unspecified()).then(|| address.to_string()),
            (!address.is_loopback()).then_some(machine),
            local.then(|| "localhost".to_owned()),
        ];
        let proven = names.into_iter().flatten().find(|name| self.is_for(name));
        match proven {
            Some(name) if !name.contains(':') => name,
            _ => SocketAddr::new(address, 0).to_string().trim_end_matches(":0").to_owned(),
        }
    }

    /// Whether a client that connects to this host name or IP address accepts the certificate.
    fn is_for(&self, name: &str) -> bool {
        let Ok(name) = ServerName::try_from(name) else { return false };
        ParsedCertificate::try_from(&self.certificate).is_ok_and(|c| verify_server_name(&c, &name).is_ok())
    }

    /// Starts encryption, after the reply to the client has been sent.
    pub(super) fn start(&self, socket: &Socket, deadline: Deadline) -> io::Result<()> {
        let connection = ServerConnection::new(Arc::clone(&self.config)).map_err(|e| explained(&e))?;
        socket.start_tls(connection.into(), deadline)
    }
}

/// The error for a pre-shared key (`tls-psk-file` of the NBD project's `doc/uri.md`).
pub fn no_preshared_keys() -> Error {
    Error::unsupported("TLS with a pre-shared key")
        .hint("Use certificates: tls-certificates=FOLDER, with ca-cert.pem and, if the server demands it, client-cert.pem and client-key.pem.")
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The authorities that must have issued a peer's certificate.
fn authorities(folder: &Path) -> Result<RootCertStore> {
    let path = folder.join("ca-cert.pem");
    let mut roots = RootCertStore::empty();
    let what = "the certificate of the authority";
    for certificate in certificates(&path)?.ok_or_else(|| missing(&path, what))? {
        roots.add(certificate).map_err(|e| Error::misuse(format!("no certificate of an authority: {e}")).at(&path))?;
    }
    Ok(roots)
}

/// Lists of revoked certificates; `None` if there is no such file.
fn revoked(folder: &Path) -> Result<Option<Vec<CertificateRevocationListDer<'static>>>> {
    parsed(&folder.join("ca-crl.pem"), "a list of revoked certificates")
}

/// A certificate with its chain to the authority, and its key.
type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificate that `who` presents to peers; `None` if there is neither certificate nor key.
fn shown(folder: &Path, who: &str) -> Result<Option<Shown>> {
    let (certificate, key) = (folder.join(format!("{who}-cert.pem")), folder.join(format!("{who}-key.pem")));
    match (certificates(&certificate)?, private_key(&key)?) {
        (Some(chain), Some(key)) => Ok(Some((chain, key))),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(missing(&certificate, "the certificate for the key beside it")),
        (Some(_), None) => Err(missing(&key, "the key of the certificate beside it")),
    }
}

fn certificates(path: &Path) -> Result<Option<Vec<CertificateDer<'static>>>> {
    parsed(path, "a certificate")
}

fn private_key(path: &Path) -> Result<Option<PrivateKeyDer<'static>>> {
    match fs::metadata(path) {
        Ok(found) if found.permissions().mode() & 0o007 != 0 => {
            Err(Error::misuse("everybody on this machine can read this private key")
                .hint(format!(
                    "Protect it with chmod 600 {}, and replace it if somebody may have read it.",
                    path.display()
                ))
                .at(path))
        }
        _ => Ok(parsed(path, "a private key without a password")?.and_then(|keys| keys.into_iter().next())),
    }
}

/// The contents of a PEM file, at least one item; `None` if there is no such file.
fn parsed<T: PemObject>(path: &Path, what: &str) -> Result<Option<Vec<T>>> {
    let unreadable = |e: pem::Error| match e {
        pem::Error::Io(e) => Error::from(e).at(path),
        e => Error::misuse(format!("not a PEM file: {e}")).at(path),
    };
    let found = match T::pem_file_iter(path) {
        Ok(found) => found.collect::<std::result::Result<Vec<_>, _>>().map_err(unreadable)?,
        Err(pem::Error::Io(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unreadable(e)),
    };
    match found.is_empty() {
        true => Err(Error::misuse(format!("this PEM file does not contain {what}")).at(path)),
        false => Ok(Some(found)),
    }
}

fn missing(path: &Path, what: &str) -> Error {
    Error::misuse(format!("TLS needs {what} in this file, which does not exist")).at(path)
}

fn unfit(error: &rustls::Error, folder: &Path, who: &str) -> Error {
    Error::misuse(format!("the certificate and key cannot be used: {error}"))
        .at(&folder.join(format!("{who}-cert.pem")))
}

fn unverifiable(error: &VerifierBuilderError, folder: &Path) -> Error {
    Error::misuse(format!("the list of revoked certificates cannot be used: {error}")).at(&folder.join("ca-crl.pem"))
}

/// An error that cannot occur with the provider used here.
fn unexpected(error: rustls::Error) -> Error {
    io::Error::other(error).into()
}
