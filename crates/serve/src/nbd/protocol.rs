//! Numbers and messages of the NBD protocol: their form on the wire, not their order.
//!
//! Source: the NBD project's `doc/proto.md`, whose section titles are quoted here. All numbers are big-endian
//! ("Conventions").

/// The server's first bytes ("Oldstyle negotiation"): `NBDMAGIC`.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The bytes that follow in newstyle and begin each option ("Newstyle negotiation"): `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each option reply ("Fixed newstyle negotiation").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins each request ("Request message").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply ("Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply ("Structured reply chunk message").
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The longest string, in bytes ("Conventions").
pub const MAX_STRING: usize = 4096;
/// The largest READ or WRITE, in bytes, which a client without other information may assume ("Block size constraints").
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// "Handshake flags" and "Client flags": the bits are the same in both.
pub mod handshake {
    /// Options may be answered.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zeros after `OPT_EXPORT_NAME` are left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// "Transmission flags".
pub mod export {
    numbers! { u16:
        HAS_FLAGS = 1 << 0, READ_ONLY = 1 << 1, SEND_FLUSH = 1 << 2, SEND_FUA = 1 << 3, SEND_TRIM = 1 << 5,
        SEND_WRITE_ZEROES = 1 << 6, SEND_DF = 1 << 7, CAN_MULTI_CONN = 1 << 8,
    }
}

/// "Option types".
pub mod option {
    numbers! { u32: EXPORT_NAME = 1, ABORT = 2, LIST = 3, STARTTLS = 5, INFO = 6, GO = 7, STRUCTURED_REPLY = 8 }
}

/// "Option reply types". Errors have bit 31.
pub mod reply {
    numbers! { u32:
        ACK = 1, SERVER = 2, INFO = 3, ERROR = 1 << 31, ERR_UNSUP = ERROR + 1, ERR_POLICY = ERROR + 2,
        ERR_INVALID = ERROR + 3, ERR_TLS_REQD = ERROR + 5, ERR_UNKNOWN = ERROR + 6,
        ERR_BLOCK_SIZE_REQD = ERROR + 8,
    }
}

/// "Option reply types", `NBD_REP_INFO`: the kinds of information.
pub mod info {
    numbers! { u16: EXPORT = 0, NAME = 1, DESCRIPTION = 2, BLOCK_SIZE = 3 }
}

/// "Request types".
pub mod command {
    numbers! { u16: READ = 0, WRITE = 1, DISC = 2, FLUSH = 3, TRIM = 4, WRITE_ZEROES = 6 }
}

/// "Command flags".
pub mod flag {
    numbers! { u16: FUA = 1 << 0, NO_HOLE = 1 << 1, DF = 1 << 2 }
}

/// "Structured reply types". Errors have bit 15.
pub mod chunk {
    /// "Structured reply flags": the last chunk of a reply.
    pub const DONE: u16 = 1;
    numbers! { u16: NONE = 0, OFFSET_DATA = 1, OFFSET_HOLE = 2, ERROR_BIT = 1 << 15, ERROR = ERROR_BIT + 1 }
}

/// A protocol error number ("Error values"), independent of this system's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdErrno(pub u32);

impl NbdErrno {
    numbers! { Self:
        EPERM = Self(1), EIO = Self(5), ENOMEM = Self(12), EINVAL = Self(22), ENOSPC = Self(28),
        EOVERFLOW = Self(75), ENOTSUP = Self(95), ESHUTDOWN = Self(108),
    }

    /// The error number that best describes a store's error.
    pub fn of(error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::EPERM,
            ErrorKind::OutOfMemory => Self::ENOMEM,
            ErrorKind::InvalidInput => Self::EINVAL,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Self::ENOSPC,
            ErrorKind::Unsupported => Self::ENOTSUP,
            _ => Self::EIO,
        }
    }

    /// A description for users, sent with the number if there is room.
    pub fn text(self) -> &'static str {
        match self {
            Self::EPERM => "not permitted: this part of the export is read-only",
            Self::EIO => "the store behind the export failed",
            Self::ENOMEM => "out of memory",
            Self::EINVAL => "invalid request",
            Self::ENOSPC => "past the end of the export, or no space left",
            Self::EOVERFLOW => "too large to be sent in one piece",
            Self::ENOTSUP => "not supported",
            Self::ESHUTDOWN => "the server is shutting down",
            _ => "failed",
        }
    }
}

/// A request of the transmission phase, without its payload.
///
/// ```text
///  at  bytes
///   0  4     magic 0x25609513
///   4  2     command flags
///   6  2     type
///   8  8     cookie: anything; comes back in the reply
///  16  8     offset in the export, in bytes
///  24  4     length, in bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

impl NbdRequest {
    /// Size on the wire, in bytes.
    pub const SIZE: usize = 28;

    /// `None` if the magic is wrong.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        (be32(bytes, 0) == REQUEST_MAGIC).then(|| Self {
            flags: be16(bytes, 4),
            command: be16(bytes, 6),
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            len: be32(bytes, 24),
        })
    }

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let Self { flags, command, cookie, offset, len } = self;
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&command.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset.to_be_bytes());
        bytes[24..].copy_from_slice(&len.to_be_bytes());
        bytes
    }
}

/// A simple reply, without the data that follow in the reply to a successful READ.
///
/// ```text
///  at  bytes
///   0  4     magic 0x67446698
///   4  4     error, or 0
///   8  8     cookie of the request
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    pub error: u32,
    pub cookie: u64,
}

impl SimpleReply {
    /// Size on the wire, in bytes.
    pub const SIZE: usize = 16;

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let Self { error, cookie } = self;
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&error.to_be_bytes());
        bytes[8..].copy_from_slice(&cookie.to_be_bytes());
        bytes
    }
}

/// The header of a structured reply chunk.
///
/// ```text
///  at  bytes
///   0  4     magic 0x668e33ef
///   4  2     flags
///   6  2     type
///   8  8     cookie of the request
///  16  4     length of what follows, in bytes
///             type OFFSET_DATA: 8 bytes offset in the export, then the data
///             type ERROR: 4 bytes error, 2 bytes length of the text, the text
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub flags: u16,
    pub kind: u16,
    pub cookie: u64,
    pub len: u32,
}

impl Chunk {
    /// Size on the wire, in bytes.
    pub const SIZE: usize = 20;

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let Self { flags, kind, cookie, len } = self;
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    /// The header of a chunk of `len` bytes of data at `offset` in the export.
    pub fn data(cookie: u64, offset: u64, len: usize, done: bool) -> [u8; Self::SIZE + 8] {
        let flags = if done { chunk::DONE } else { 0 };
        let mut bytes = [0; Self::SIZE + 8];
        bytes[..Self::SIZE]
            .copy_from_slice(&Self { flags, kind: chunk::OFFSET_DATA, cookie, len: len as u32 + 8 }.to_bytes());
        bytes[Self::SIZE..].copy_from_slice(&offset.to_be_bytes());
        bytes
    }

    /// The chunk that ends a reply with an error.
    pub fn error(cookie: u64, error: NbdErrno) -> Vec<u8> {
        let text = error.text().as_bytes();
        let len = 6 + text.len() as u32;
        let mut bytes = Self { flags: chunk::DONE, kind: chunk::ERROR, cookie, len }.to_bytes().to_vec();
        bytes.extend_from_slice(&error.0.to_be_bytes());
        bytes.extend_from_slice(&(text.len() as u16).to_be_bytes());
        bytes.extend_from_slice(text);
        bytes
    }
}

/// A handshake option, without its data.
///
/// ```text
///  at  bytes
///   0  8     magic IHAVEOPT
///   8  4     option
///  12  4     length of the data that follows, in bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    pub option: u32,
    pub len: u32,
}

impl OptionHeader {
    /// Size on the wire, in bytes.
    pub const SIZE: usize = 16;

    /// `None` if the magic is wrong.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        (be64(bytes, 0) == OPTION_MAGIC).then(|| Self { option: be32(bytes, 8), len: be32(bytes, 12) })
    }

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.option.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Appends a reply to an option.
///
/// ```text
///  at  bytes
///   0  8     magic 0x3e889045565a9
///   8  4     option that is answered
///  12  4     type of the reply
///  16  4     length of the data that follows, in bytes
/// ```
pub fn push_option_reply(to: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|d| d.len()).sum();
    to.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    to.extend_from_slice(&option.to_be_bytes());
    to.extend_from_slice(&kind.to_be_bytes());
    to.extend_from_slice(&(len as u32).to_be_bytes());
    data.iter().for_each(|d| to.extend_from_slice(d));
}

/// The data of `OPT_INFO` and `OPT_GO`.
///
/// ```text
///  at  bytes
///   0  4     length n of the name, in bytes
///   4  n     name
///      2     number m of the kinds of information that are asked for
///      2 m   the kinds
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    pub name: &'a [u8],
    kinds: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// `None` if the lengths do not add up.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let (len, rest) = data.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        let (count, kinds) = rest.split_first_chunk::<2>()?;
        let whole = kinds.len() == 2 * usize::from(u16::from_be_bytes(*count));
        (whole && name.len() <= MAX_STRING).then_some(Self { name, kinds })
    }

    pub fn asks_for(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|k| k == kind.to_be_bytes())
    }
}

/// # Panics
/// If there are fewer than two bytes at `at`; likewise for the other two functions.
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_back_as_it_was() {
        let request = NbdRequest { flags: 5, command: 6, cookie: 0x0102_0304_0506_0708, offset: u64::MAX - 9, len: 77 };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..8], [0x25, 0x60, 0x95, 0x13, 0, 5, 0, 6]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(NbdRequest::parse(&bytes), Some(request));
    }

    #[test]
    fn every_wrong_bit_of_the_magic_is_seen() {
        let request = NbdRequest { flags: 0, command: 0, cookie: 0, offset: 0, len: 0 };
        for bit in 0..32 {
            let mut bytes = request.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(NbdRequest::parse(&bytes), None);
        }
        for bit in 0..64 {
            let mut bytes = OptionHeader { option: 1, len: 0 }.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(OptionHeader::parse(&bytes), None);
        }
    }

    #[test]
    fn replies_are_laid_out_as_the_document_says() {
        assert_eq!(
            SimpleReply { error: 22, cookie: 3 }.to_bytes(),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 3]
        );
        let data = Chunk::data(7, 0x100, 512, true);
        assert_eq!(data[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!((be64(&data, 8), be32(&data, 16), be64(&data, 20)), (7, 520, 0x100));
        let error = Chunk::error(7, NbdErrno::EIO);
        assert_eq!(be16(&error, 6), 0x8001);
        assert_eq!((be32(&error, 16) as usize, be32(&error, 20)), (error.len() - Chunk::SIZE, 5));
        assert_eq!(usize::from(be16(&error, 24)), error.len() - 26);
        let mut option = Vec::new();
        push_option_reply(&mut option, 7, reply::ERR_UNKNOWN, &[b"ab", b"c"]);
        assert_eq!(option[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
        assert_eq!((be32(&option, 8), be32(&option, 12), be32(&option, 16)), (7, 0x8000_0006, 3));
        assert_eq!(&option[20..], b"abc");
    }

    #[test]
    fn requests_for_information_add_up_or_are_refused() {
        let mut data = vec![0, 0, 0, 3, b'd', b'e', b'v', 0, 2, 0, 3, 0, 1];
        let parsed = InfoRequest::parse(&data).expect("well-formed");
        assert_eq!(parsed.name, b"dev");
        assert!(
            parsed.asks_for(info::NAME) && parsed.asks_for(info::BLOCK_SIZE) && !parsed.asks_for(info::DESCRIPTION)
        );
        for cut in 0..data.len() {
            assert_eq!(InfoRequest::parse(&data[..cut]), None, "{cut} bytes");
        }
        data.push(0);
        assert_eq!(InfoRequest::parse(&data), None);
        assert_eq!(InfoRequest::parse(&[0xff; 64]), None);
        let mut long = vec![0, 0, 0x10, 1];
        long.resize(4 + 4097 + 2, 0);
        assert_eq!(InfoRequest::parse(&long), None, "a name of 4097 bytes");
    }

    #[test]
    fn errors_of_stores_are_told_apart() {
        use std::io::{Error, ErrorKind};
        let cases = [
            (13, NbdErrno::EPERM),
            (30, NbdErrno::EPERM),
            (5, NbdErrno::EIO),
            (12, NbdErrno::ENOMEM),
            (22, NbdErrno::EINVAL),
        ];
        let cases = cases.into_iter().chain([(28, NbdErrno::ENOSPC), (122, NbdErrno::ENOSPC), (27, NbdErrno::ENOSPC)]);
        for (number, expected) in cases.chain([(95, NbdErrno::ENOTSUP), (110, NbdErrno::EIO)]) {
            assert_eq!(NbdErrno::of(&Error::from_raw_os_error(number)), expected, "{number}");
        }
        assert_eq!(NbdErrno::of(&ErrorKind::UnexpectedEof.into()), NbdErrno::EIO);
    }
}
