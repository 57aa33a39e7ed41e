//! The client's side of the handshake ("Fixed newstyle negotiation", "Option types", "Block size constraints").

use std::io;

use claviger_engine::deadline::Deadline;

use super::protocol::*;
use super::socket::Socket;
use super::tls::ClientTls;

/// The longest answer to an option, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// The most answers to one option.
const MAX_ANSWERS: usize = 64;

/// The result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteExport {
    /// Size of the export, in bytes.
    pub len: u64,
    /// "Transmission flags".
    pub flags: u16,
    /// Whether replies may come in chunks.
    pub structured: bool,
    /// Requests must be multiples of this many bytes: a power of two.
    pub smallest: u32,
    /// The most bytes that a request may read or write.
    pub largest: u32,
}

impl RemoteExport {
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Requests an export, over TLS if demanded, and structured replies.
///
/// # Errors
/// `NotFound` if no export has that name; `PermissionDenied` if the server refuses, requires or lacks TLS, or is not
/// the expected one; `Unsupported` for a server without fixed newstyle; `InvalidData` for one that breaks the protocol;
/// `TimedOut`; or the socket's error.
pub fn greet(
    socket: &Socket,
    tls: Option<&ClientTls>,
    export: &str,
    structured: bool,
    deadline: Deadline,
) -> io::Result<RemoteExport> {
    let mut greeting = [0; 18];
    socket.receive_by(deadline, &mut greeting)?;
    if be64(&greeting, 0) != MAGIC {
        return Err(broken("it is not an NBD server"));
    }
    let offered = be16(&greeting, 16);
    if be64(&greeting, 8) != OPTION_MAGIC || offered & handshake::FIXED_NEWSTYLE == 0 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the server lacks the fixed newstyle handshake, which NBD servers have had since 2013",
        ));
    }
    let flags = offered & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    socket.send_by(deadline, &u32::from(flags).to_be_bytes())?;
    if let Some(tls) = tls {
        tls.start(socket, deadline)?;
    }
    Greeting { socket, deadline, no_zeroes: flags & handshake::NO_ZEROES != 0 }.ask_for(export, structured)
}

struct Greeting<'a> {
    socket: &'a Socket,
    deadline: Deadline,
    no_zeroes: bool,
}

/// The last answer to an option, and the answers before it.
#[derive(Default)]
struct Answers {
    kind: u32,
    text: String,
    export: Option<(u64, u16)>,
    blocks: Option<(u32, u32)>,
}

impl Greeting<'_> {
    fn ask_for(&self, export: &str, structured: bool) -> io::Result<RemoteExport> {
        let structured = structured && self.ask(option::STRUCTURED_REPLY, &[])?.kind == reply::ACK;
        let name = export.as_bytes();
        if name.len() > MAX_STRING {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of the export is too long"));
        }
        // Requests one kind of information: block sizes.
        let request = [&(name.len() as u32).to_be_bytes(), name, &[0, 1], &info::BLOCK_SIZE.to_be_bytes()].concat();
        let answers = self.ask(option::GO, &request)?;
        let ((len, flags), blocks) = match (answers.kind, answers.export) {
            (reply::ACK, Some(export)) => (export, answers.blocks),
            (reply::ACK, None) => return Err(broken("it does not give the export's size")),
            (reply::ERR_UNSUP, _) => (self.export_name(name)?, None),
            _ => return Err(answers.refusal(export)),
        };
        let (smallest, largest) = blocks.unwrap_or((1, MAX_PAYLOAD));
        let sensible = smallest.is_power_of_two() && smallest <= 1 << 16 && largest >= smallest;
        if flags & export::HAS_FLAGS == 0 || !sensible {
            return Err(broken("impossible flags or block sizes"));
        }
        // An incomplete last block is left out.
        let (len, largest) = (len - len % u64::from(smallest), largest.min(MAX_PAYLOAD) / smallest * smallest);
        if i64::try_from(len).is_err() {
            return Err(broken("an impossible size"));
        }
        Ok(RemoteExport { len, flags, structured, smallest, largest })
    }

    /// For servers without `OPT_GO`. They end the connection if there is no such export.
    fn export_name(&self, name: &[u8]) -> io::Result<(u64, u16)> {
        self.send(option::EXPORT_NAME, name)?;
        let mut answer = [0; 134];
        let answer = &mut answer[..if self.no_zeroes { 10 } else { 134 }];
        self.socket.receive_by(self.deadline, answer)?;
        Ok((be64(answer, 0), be16(answer, 8)))
    }

    fn ask(&self, option: u32, data: &[u8]) -> io::Result<Answers> {
        self.send(option, data)?;
        let mut answers = Answers::default();
        for _ in 0..MAX_ANSWERS {
            let mut header = [0; 20];
            self.socket.receive_by(self.deadline, &mut header)?;
            let (kind, len) = (be32(&header, 12), be32(&header, 16) as usize);
            if be64(&header, 0) != OPTION_REPLY_MAGIC || be32(&header, 8) != option || len > MAX_ANSWER {
                return Err(broken("it did not answer an option"));
            }
            let mut data = vec![0; len];
            self.socket.receive_by(self.deadline, &mut data)?;
            match kind {
                reply::INFO if len == 12 && be16(&data, 0) == info::EXPORT => {
                    answers.export = Some((be64(&data, 2), be16(&data, 10)));
                }
                reply::INFO if len == 14 && be16(&data, 0) == info::BLOCK_SIZE => {
                    answers.blocks = Some((be32(&data, 2), be32(&data, 10)));
                }
                reply::INFO => {}
                _ => {
                    let text = String::from_utf8_lossy(&data).chars().filter(|c| !c.is_control()).take(200).collect();
                    return Ok(Answers { kind, text, ..answers });
                }
            }
        }
        Err(broken("too many answers to an option"))
    }

    fn send(&self, option: u32, data: &[u8]) -> io::Result<()> {
        let header = OptionHeader { option, len: data.len() as u32 }.to_bytes();
        self.socket.send_by(self.deadline, &[&header, data].concat())
    }
}

impl Answers {
    fn refusal(&self, export: &str) -> io::Error {
        let said = if self.text.is_empty() { String::new() } else { format!(" ({})", self.text) };
        let (kind, what) = match self.kind {
            reply::ERR_UNKNOWN => {
                (io::ErrorKind::NotFound, format!("the server has no export called {export:?}{said}"))
            }
            reply::ERR_TLS_REQD => {
                (io::ErrorKind::PermissionDenied, format!("the server requires TLS: use nbds instead of nbd{said}"))
            }
            reply::ERR_BLOCK_SIZE_REQD => {
                (io::ErrorKind::Unsupported, format!("the server requires other block sizes{said}"))
            }
            kind => (io::ErrorKind::PermissionDenied, format!("the server refuses with {kind:#x}{said}")),
        };
        io::Error::new(kind, what)
    }
}

pub fn broken(how: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server breaks the NBD protocol: {how}"))
}
