//! The handshake, which chooses an export and its options ("Newstyle negotiation", "Fixed newstyle negotiation", "Option types").

use std::io;

use claviger_engine::deadline::Deadline;

use super::protocol::*;
use super::socket::Socket;
use super::tls::ServerTls;
use super::{Exported, Exports};

/// The longest option, in bytes. The longest sensible one, `OPT_GO` with a name of 4096 bytes, is much shorter.
const MAX_OPTION: u32 = 64 << 10;

/// The most options from a client: more than a client that queries every export sends.
const MAX_OPTIONS: usize = 1024;

/// The result of the handshake.
pub struct ChosenExport<'a> {
    pub export: &'a Exported,
    pub structured: bool,
    /// Requests must be multiples of this many bytes: 1 for a client that did not ask for it ("Block size constraints").
    pub smallest_block: u32,
}

/// Negotiates with a new client until it chooses an export; `None` if it ends the handshake properly. `admit` decides
/// whether there is room, just before the client is accepted. With `tls`, the client learns nothing before it encrypts
/// ("TLS support", FORCEDTLS mode).
///
/// # Errors
/// `InvalidData` for a client that breaks the protocol, `PermissionDenied` for one that is refused, `TimedOut` for one
/// that is too slow, or the socket's error. The connection must then be dropped.
pub fn negotiate<'a>(
    socket: &Socket,
    exports: &'a Exports,
    tls: Option<&ServerTls>,
    deadline: Deadline,
    admit: &dyn Fn() -> bool,
) -> io::Result<Option<ChosenExport<'a>>> {
    Handshake { socket, exports, tls, deadline, admit, structured: false }.run()
}

struct Handshake<'s, 'a> {
    socket: &'s Socket,
    exports: &'a Exports,
    tls: Option<&'s ServerTls>,
    deadline: Deadline,
    admit: &'s dyn Fn() -> bool,
    structured: bool,
}

impl<'a> Handshake<'_, 'a> {
    fn run(mut self) -> io::Result<Option<ChosenExport<'a>>> {
        let offered = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        let mut greeting = [0; 18];
        greeting[..8].copy_from_slice(&MAGIC.to_be_bytes());
        greeting[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        greeting[16..].copy_from_slice(&offered.to_be_bytes());
        self.send(&greeting)?;

        let flags = u32::from_be_bytes(self.receive()?);
        if flags & !u32::from(offered) != 0 {
            return Err(broken("unknown client flags"));
        }
        let fixed = flags & u32::from(handshake::FIXED_NEWSTYLE) != 0;
        let no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;

        for _ in 0..MAX_OPTIONS {
            let header = OptionHeader::parse(&self.receive()?).ok_or_else(|| broken("not an option"))?;
            if header.len > MAX_OPTION || (!fixed && header.option != option::EXPORT_NAME) {
                return Err(broken("an option that is too long, or out of place"));
            }
            let mut data = vec![0; header.len as usize];
            self.socket.receive_by(self.deadline, &mut data)?;
            let in_the_clear = self.tls.filter(|_| !self.socket.has_tls());
            match (header.option, in_the_clear) {
                (option::STARTTLS, Some(tls)) if data.is_empty() => {
                    self.answer(option::STARTTLS, reply::ACK, &[])?;
                    // Anything that the client sent before the answer is not TLS, and makes the handshake fail.
                    tls.start(self.socket, self.deadline)?;
                    continue;
                }
                // This option has no error reply.
                (option::EXPORT_NAME, Some(_)) => return Err(broken("no export without TLS")),
                (option::ABORT | option::STARTTLS, _) | (_, None) => {}
                (other, Some(_)) => {
                    self.answer(other, reply::ERR_TLS_REQD, b"this server demands TLS")?;
                    continue;
                }
            }
            match header.option {
                option::EXPORT_NAME => return self.export_name(&data, no_zeroes).map(Some),
                option::ABORT => {
                    // The client may have gone already ("Option types", NBD_OPT_ABORT).
                    let _ = self.answer(option::ABORT, reply::ACK, &[]);
                    return Ok(None);
                }
                option::LIST => self.list(&data)?,
                option::INFO => {
                    self.info(option::INFO, &data)?;
                }
                option::GO => {
                    if let Some(agreed) = self.info(option::GO, &data)? {
                        return Ok(Some(agreed));
                    }
                }
                option::STRUCTURED_REPLY if data.is_empty() => {
                    self.structured = true;
                    self.answer(header.option, reply::ACK, &[])?;
                }
                option::STRUCTURED_REPLY => self.answer(header.option, reply::ERR_INVALID, b"it takes no data")?,
                option::STARTTLS if self.tls.is_some() => {
                    self.answer(header.option, reply::ERR_INVALID, b"it takes no data, and comes once")?;
                }
                // This includes STARTTLS on a server without TLS, and metadata contexts.
                _ => self.answer(header.option, reply::ERR_UNSUP, b"not supported by this server")?,
            }
        }
        Err(broken("too many options"))
    }

    /// `OPT_EXPORT_NAME` has no error reply, so an unknown export ends the connection.
    fn export_name(&self, name: &[u8], no_zeroes: bool) -> io::Result<ChosenExport<'a>> {
        let export = self.exports.find(name).ok_or_else(|| broken("no such export"))?;
        self.let_in()?;
        let mut answer = [0; 134];
        answer[..8].copy_from_slice(&export.store.len().to_be_bytes());
        answer[8..10].copy_from_slice(&export.flags(self.structured).to_be_bytes());
        self.send(&answer[..if no_zeroes { 10 } else { 134 }])?;
        Ok(ChosenExport { export, structured: self.structured, smallest_block: 1 })
    }

    fn list(&self, data: &[u8]) -> io::Result<()> {
        if !data.is_empty() {
            return self.answer(option::LIST, reply::ERR_INVALID, b"it takes no data");
        }
        let mut answer = Vec::new();
        for export in self.exports.iter() {
            let (name, text) = (export.name.as_bytes(), export.description.as_bytes());
            let len = (name.len() as u32).to_be_bytes();
            push_option_reply(&mut answer, option::LIST, reply::SERVER, &[&len, name, text]);
        }
        push_option_reply(&mut answer, option::LIST, reply::ACK, &[]);
        self.send(&answer)
    }

    /// Answers `OPT_INFO` and `OPT_GO`; returns the result of the negotiation if the export was found.
    fn info(&self, option: u32, data: &[u8]) -> io::Result<Option<ChosenExport<'a>>> {
        let Some(request) = InfoRequest::parse(data) else {
            self.answer(option, reply::ERR_INVALID, b"the lengths do not add up")?;
            return Ok(None);
        };
        let Some(export) = self.exports.find(request.name) else {
            self.answer(option, reply::ERR_UNKNOWN, b"there is no export of this name")?;
            return Ok(None);
        };
        if option == option::GO {
            self.let_in()?;
        }
        let mut answer = Vec::new();
        let mut push = |kind: u16, data: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let data: Vec<&[u8]> = [&kind[..]].into_iter().chain(data.iter().copied()).collect();
            push_option_reply(&mut answer, option, reply::INFO, &data);
        };
        push(info::EXPORT, &[&export.store.len().to_be_bytes(), &export.flags(self.structured).to_be_bytes()]);
        if request.asks_for(info::NAME) {
            push(info::NAME, &[export.name.as_bytes()]);
        }
        if request.asks_for(info::DESCRIPTION) && !export.description.is_empty() {
            push(info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        if request.asks_for(info::BLOCK_SIZE) {
            // Smallest, preferred, and largest payload.
            let sizes = [export.smallest_block, export.block_size, MAX_PAYLOAD].map(u32::to_be_bytes);
            push(info::BLOCK_SIZE, &[sizes.as_flattened()]);
        }
        push_option_reply(&mut answer, option, reply::ACK, &[]);
        self.send(&answer)?;
        let smallest_block = if request.asks_for(info::BLOCK_SIZE) { export.smallest_block } else { 1 };
        Ok(Some(ChosenExport { export, structured: self.structured, smallest_block }))
    }

    fn let_in(&self) -> io::Result<()> {
        if (self.admit)() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, "too many clients")) }
    }

    fn answer(&self, option: u32, kind: u32, text: &[u8]) -> io::Result<()> {
        let mut answer = Vec::new();
        push_option_reply(&mut answer, option, kind, &[text]);
        self.send(&answer)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.socket.send_by(self.deadline, bytes)
    }

    fn receive<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.receive_by(self.deadline, &mut bytes)?;
        Ok(bytes)
    }
}

fn broken(how: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, how)
}
