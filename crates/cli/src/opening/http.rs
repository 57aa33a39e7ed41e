//! The part of HTTP that tang servers use: one request and one response per connection. The exchange needs no secrecy: points
//! are blinded, and thumbprints identify the keys.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use claviger_engine::deadline::{Deadline, Exchange};
use claviger_engine::{Error, Result};

use crate::terminal::cancel;

/// The time limit for a server, from name resolution to the last byte of its response.
const PATIENCE: Duration = Duration::from_secs(15);

/// The longest response, in bytes: keys and signatures are far shorter.
const LONGEST: u64 = 256 << 10;

/// The parts of a URL.
struct UrlParts<'a> {
    host: &'a str,
    port: u16,
    path: &'a str,
}

/// Whether two URLs name the same server.
pub fn same(one: &str, other: &str) -> bool {
    let plain = |url: &str| url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/').to_owned();
    plain(one) == plain(other)
}

/// Gets `path` below `url`, or posts a JWK to it.
///
/// # Errors
/// `Misuse` for an invalid URL, `Unsupported` for another protocol; `Io` if the server is unreachable, too slow or responds
/// with an error; `Cancelled`.
pub fn ask(url: &str, path: &str, body: Option<&[u8]>) -> Result<Vec<u8>> {
    let place = UrlParts::parse(url)?;
    exchange(&place, path, body).map_err(|e| Error::from(e).at(url.as_ref()))
}

impl<'a> UrlParts<'a> {
    fn parse(url: &'a str) -> Result<Self> {
        let wrong = || Error::misuse("this is not a tang server's URL: use http://HOST:PORT").at(url.as_ref());
        if url.starts_with("https://") {
            return Err(Error::unsupported("tang servers over https (tang needs no TLS; use http)").at(url.as_ref()));
        }
        let rest = url.strip_prefix("http://").unwrap_or(url);
        // Prevents header injection: the URL may contain only visible ASCII.
        if rest.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let port = |text: &str| text.parse().map_err(|_| wrong());
        let (host, port) = match authority.strip_prefix('[').map(|inside| inside.split_once(']')) {
            Some(Some((host, behind))) => (host, behind.strip_prefix(':').map_or(Ok(80), port)?),
            Some(None) => return Err(wrong()),
            None => authority
                .rsplit_once(':')
                .map_or(Ok((authority, 80)), |(host, text)| Ok::<_, Error>((host, port(text)?)))?,
        };
        Ok(Self { host, port, path: path.trim_end_matches('/') })
    }
}

fn exchange(place: &UrlParts<'_>, path: &str, body: Option<&[u8]>) -> std::io::Result<Vec<u8>> {
    let UrlParts { host, port, path: below } = place;
    let deadline = Deadline::within(PATIENCE, cancel::waits());
    let socket = deadline.connect_tcp(host, *port)?;
    let mut stream = Exchange::new(socket.as_fd(), deadline);
    let slash = if below.is_empty() { "" } else { "/" };
    let verb = if body.is_some() { "POST" } else { "GET" };
    let mut request = format!("{verb} {slash}{below}/{path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n");
    if let Some(body) = body {
        request += &format!("Content-Type: application/jwk+json\r\nContent-Length: {}\r\n", body.len());
    }
    stream.write_all(&[request.as_bytes(), b"\r\n", body.unwrap_or_default()].concat())?;
    answer(stream).map_err(|e| match e.kind() {
        std::io::ErrorKind::TimedOut => {
            let what = format!("the server did not answer completely within {} seconds", PATIENCE.as_secs());
            std::io::Error::new(e.kind(), what)
        }
        _ => e,
    })
}

fn answer(stream: impl Read) -> std::io::Result<Vec<u8>> {
    let odd = |what: &str| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, format!("the server's answer is not HTTP: {what}"))
    };
    let mut reader = BufReader::new(stream.take(LONGEST));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace();
    let version = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    match words.next() {
        Some("200") if version => {}
        Some("404") if version => {
            return Err(std::io::Error::other(
                "the server does not know this key: it was rotated, or this is another server",
            ));
        }
        Some(status) if version => {
            return Err(std::io::Error::other(format!("the server answered with status {status:.3}")));
        }
        _ => return Err(odd("it has no status")),
    }
    let mut length = None;
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(odd("it ends in its header"));
        }
        if line.trim_end().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| odd("a line of its header"))?;
        if name.eq_ignore_ascii_case("Content-Length") {
            length =
                Some(value.trim().parse::<u64>().ok().filter(|len| *len <= LONGEST).ok_or_else(|| odd("its length"))?);
        }
    }
    let mut body = Vec::new();
    reader.take(length.unwrap_or(LONGEST)).read_to_end(&mut body)?;
    if length.is_some_and(|length| length != body.len() as u64) {
        return Err(odd("it is cut off"));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (url, host, port, path) in [
            ("http://tang", "tang", 80, ""),
            ("tang.example:8080", "tang.example", 8080, ""),
            ("http://[::1]:7/", "::1", 7, ""),
            ("http://127.0.0.1:7/below/it/", "127.0.0.1", 7, "below/it"),
        ] {
            let place = UrlParts::parse(url).expect(url);
            assert_eq!((place.host, place.port, place.path), (host, port, path), "{url}");
        }
        for wrong in
            ["", "http://", "http://a b", "http://a\r\nX: y", "http://a:b", "http://[::1", "https://a", "a:70000"]
        {
            assert!(UrlParts::parse(wrong).is_err(), "{wrong}");
        }
        assert!(same("http://a:1/", "a:1") && !same("a:1", "a:2"));
    }

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef";
        assert_eq!(answer(&whole[..]).expect("an answer"), b"abc");
        assert_eq!(answer(&b"HTTP/1.0 200 OK\r\n\r\nabc"[..]).expect("an answer"), b"abc");
        for end in 0..whole.len() - 3 {
            assert!(answer(&whole[..end]).is_err(), "{end}");
        }
        for wrong in [
            &b"HTTP/1.1 404 Not found\r\n\r\n"[..],
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 200\r\nContent-Length: 9999999\r\n\r\n",
        ] {
            assert!(answer(wrong).is_err());
        }
    }
}
