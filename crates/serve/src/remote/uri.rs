//! NBD URIs (the NBD project's `doc/uri.md`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use claviger_engine::{Error, Result};

use crate::nbd::no_preshared_keys;

/// The default port.
const PORT: u16 = 10809;

/// The schemes, whether each uses TLS, and whether each uses a Unix socket.
const SCHEMES: [(&str, bool, bool); 4] =
    [("nbd", false, false), ("nbds", true, false), ("nbd+unix", false, true), ("nbds+unix", true, true)];

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The server's address.
    pub server: ServerAddress,
    /// The name of the export; the empty one is the default.
    pub export: String,
    /// The TLS options, if the scheme demands TLS.
    pub tls: Option<Tls>,
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host, by its name or address, and a port.
    Tcp(String, u16),
}

/// TLS options of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The folder with the certificates: `tls-certificates`.
    pub certificates: Option<PathBuf>,
    /// The name in the server's certificate, if it differs from the host: `tls-hostname`.
    pub hostname: Option<String>,
}

/// Whether the text begins like an NBD URI.
pub fn is_uri(text: &[u8]) -> bool {
    text.split(|b| *b == b':').next().is_some_and(|scheme| scheme.starts_with(b"nbd"))
        && text.windows(3).any(|w| w == b"://")
}

impl Uri {
    /// Parses a URI.
    ///
    /// # Errors
    /// `Misuse` for an invalid NBD URI, `Unsupported` for parts that this client does not support; the message names them.
    pub fn parse(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| Error::misuse("an NBD URI begins with nbd://"))?;
        let known = SCHEMES.iter().find(|(name, ..)| *name == scheme);
        let &(_, tls, unix) = known.ok_or_else(|| {
            Error::unsupported(format!("{scheme}:")).hint("Use nbd://, nbds://, nbd+unix:// or nbds+unix://.")
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let mut socket = None;
        let mut with = Tls::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "socket" => socket = Some(PathBuf::from(decoded(value)?)),
                "tls-certificates" if tls => with.certificates = Some(PathBuf::from(decoded(value)?)),
                "tls-hostname" if tls => with.hostname = Some(text_of(value)?),
                "tls-psk-file" => {
                    return Err(no_preshared_keys());
                }
                "tls-certificates" | "tls-hostname" => {
                    return Err(Error::misuse(format!("{name} without TLS: use nbds instead of nbd")));
                }
                other => return Err(Error::unsupported(format!("{other:?} in an NBD URI"))),
            }
        }
        let server = match (unix, socket) {
            (true, Some(path)) if authority.is_empty() => ServerAddress::Unix(path),
            (true, _) => return Err(Error::misuse("write a Unix socket as nbd+unix:///EXPORT?socket=PATH")),
            (false, Some(_)) => return Err(Error::misuse("?socket= is only for nbd+unix://")),
            (false, None) => host(authority)?,
        };
        Ok(Self { server, export: text_of(export)?, tls: tls.then_some(with) })
    }
}

fn host(authority: &str) -> Result<ServerAddress> {
    // A user name is only for TLS with pre-shared keys.
    if authority.contains('@') {
        return Err(Error::unsupported("a user in an NBD URI").hint("Identify the client by a certificate."));
    }
    let wrong = || Error::misuse(format!("{authority:?} is not a host"));
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or_else(wrong)?;
            (address.to_owned(), after.strip_prefix(':').or(after.is_empty().then_some("")).ok_or_else(wrong)?)
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            (text_of(host)?, port)
        }
    };
    if host.is_empty() {
        return Err(wrong());
    }
    let port = if port.is_empty() { PORT } else { port.parse().map_err(|_| wrong())? };
    Ok(ServerAddress::Tcp(host, port))
}

/// Decodes percent-encoding (RFC 3986, section 2.1).
fn decoded(text: &str) -> Result<OsString> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'%' => {
                let digits = after.get(..2).and_then(|d| std::str::from_utf8(d).ok());
                let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
                rest = &after[2.min(after.len())..];
                byte.filter(|byte| *byte != 0)
                    .ok_or_else(|| Error::misuse(format!("{text:?}: % must be followed by two digits")))?
            }
            other => *other,
        });
    }
    Ok(OsString::from_vec(bytes))
}

fn text_of(text: &str) -> Result<String> {
    decoded(text)?.into_string().map_err(|_| Error::misuse(format!("{text:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(server: ServerAddress, export: &str) -> Uri {
        Uri { server, export: export.into(), tls: None }
    }

    #[test]
    fn each_kind_of_uri_comes_to_its_parts() {
        let tcp = |host: &str, port| ServerAddress::Tcp(host.into(), port);
        for (text, expected) in [
            ("nbd://example.com", uri(tcp("example.com", 10809), "")),
            ("nbd://example.com:1/", uri(tcp("example.com", 1), "")),
            ("nbd://[::1]:2/a%20b/c", uri(tcp("::1", 2), "a b/c")),
            ("nbd://[::1]", uri(tcp("::1", 10809), "")),
            ("nbd+unix:///?socket=/run/a%26b", uri(ServerAddress::Unix("/run/a&b".into()), "")),
            ("nbd+unix:///disk?socket=s", uri(ServerAddress::Unix("s".into()), "disk")),
        ] {
            assert_eq!(Uri::parse(text).expect(text), expected, "{text}");
        }
        let tls = Uri::parse("nbds://h/x?tls-certificates=/etc/pki&tls-hostname=other").expect("a URI").tls;
        assert_eq!(tls, Some(Tls { certificates: Some("/etc/pki".into()), hostname: Some("other".into()) }));
        assert_eq!(Uri::parse("nbds://h").expect("a URI").tls, Some(Tls::default()));
    }

    #[test]
    fn what_is_no_uri_or_not_there_is_said() {
        for (text, word) in [
            ("nbd:h", "begins with"),
            ("nbd+vsock://2/", "nbd+vsock"),
            ("nbd://", "host"),
            ("nbd://h:port", "host"),
            ("nbd://[::1", "host"),
            ("nbd://[::1]x", "host"),
            ("nbd://u@h", "user"),
            ("nbds://u@h?tls-psk-file=k", "pre-shared key"),
            ("nbd://h?socket=s", "nbd+unix"),
            ("nbd+unix:///x", "socket=PATH"),
            ("nbd+unix://h/x?socket=s", "socket=PATH"),
            ("nbd://h?tls-certificates=d", "nbds"),
            ("nbd://h?colour=red", "colour"),
            ("nbd://h/%4", "two digits"),
            ("nbd://h/%zz", "two digits"),
            ("nbd://h/%00", "two digits"),
            ("nbd://h/%ff", "UTF-8"),
        ] {
            let error = Uri::parse(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
