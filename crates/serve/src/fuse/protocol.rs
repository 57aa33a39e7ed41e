//! Messages of FUSE. Source: the Linux kernel's `include/uapi/linux/fuse.h`, version 7.42. Numbers are in native byte
//! order, offsets and lengths in bytes.

use std::io;

/// The protocol version spoken: the newest with anything used here.
pub const VERSION: (u32, u32) = (7, 42);

/// The oldest supported version: its INIT has `max_pages` (Linux 4.20).
pub const OLDEST: (u32, u32) = (7, 28);

/// Maximum data of one request, in bytes.
pub const MAX_DATA: usize = 1 << 20;

/// `struct fuse_in_header`.
pub const IN_HEADER: usize = 40;

/// `struct fuse_out_header`.
pub const OUT_HEADER: usize = 16;

/// `struct fuse_write_in`, which the data follow.
pub const WRITE_IN: usize = 40;

/// The largest arguments of a fixed size: `struct fuse_setattr_in`.
pub const ARGUMENTS: usize = 88;

/// `enum fuse_opcode`.
pub mod opcode {
    numbers! { u32:
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9,
        UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17,
        RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25,
        INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, CREATE = 35, INTERRUPT = 36,
        DESTROY = 38, BATCH_FORGET = 42, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46,
    }
}

/// Flags of INIT.
pub mod init {
    numbers! { u64:
        ASYNC_READ = 1 << 0, BIG_WRITES = 1 << 5, AUTO_INVAL_DATA = 1 << 12, DO_READDIRPLUS = 1 << 13,
        READDIRPLUS_AUTO = 1 << 14, ASYNC_DIO = 1 << 15, WRITEBACK_CACHE = 1 << 16, PARALLEL_DIROPS = 1 << 18, POSIX_ACL = 1 << 20,
        MAX_PAGES = 1 << 22, CACHE_SYMLINKS = 1 << 23, HANDLE_KILLPRIV_V2 = 1 << 28, INIT_EXT = 1 << 30,
        DIRECT_IO_ALLOW_MMAP = 1 << 36, OVER_IO_URING = 1 << 41,
    }
}

/// `FOPEN_…`, flags of an answer to OPEN.
pub mod opened {
    numbers! { u32: DIRECT_IO = 1 << 0, KEEP_CACHE = 1 << 1, PARALLEL_DIRECT_WRITES = 1 << 6 }
}

/// `FATTR_…`: the attributes that a SETATTR changes.
pub mod set {
    numbers! { u32:
        MODE = 1 << 0, UID = 1 << 1, GID = 1 << 2, SIZE = 1 << 3, ATIME = 1 << 4, MTIME = 1 << 5,
        ATIME_NOW = 1 << 7, MTIME_NOW = 1 << 8, CTIME = 1 << 10, KILL_SUIDGID = 1 << 11,
    }
}

/// `FUSE_WRITE_CACHE`: a flag of WRITE. The data come from a program's memory mapping.
pub const WRITE_CACHE: u32 = 1 << 0;

/// `FUSE_WRITE_KILL_SUIDGID`: a flag of WRITE.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    numbers! { Self:
        EPERM = Self(1), ENOENT = Self(2), EINTR = Self(4), EIO = Self(5), ENXIO = Self(6), EBADF = Self(9),
        ENOMEM = Self(12), EEXIST = Self(17), EXDEV = Self(18), ENOTDIR = Self(20), EISDIR = Self(21),
        EINVAL = Self(22), EFBIG = Self(27), ENOSPC = Self(28), EROFS = Self(30), EMLINK = Self(31),
        ERANGE = Self(34),
        /// The kernel never sends this kind of request again, for any node.
        ENOSYS = Self(38),
        ENOTEMPTY = Self(39), ENODATA = Self(61), EOPNOTSUPP = Self(95),
        /// The kernel looks up the name again.
        ESTALE = Self(116),
    }

    /// The error that a program gets when its read, write or flush fails in the store.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            // To the kernel, these numbers mean "ask again" or "never ask again", which is not meant here.
            Some(4 | 11 | 38 | 107) | None => Self::EIO,
            Some(number @ 1..=133) => Self(number),
            Some(_) => Self::EIO,
        }
    }
}

/// A request without its names and data.
pub struct FuseRequest {
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    /// User and group of the program that made the request.
    pub owner: (u32, u32),
    /// The arguments of fixed size that follow the header, padded with zeros.
    arguments: [u8; ARGUMENTS],
}

impl FuseRequest {
    /// Parses a `struct fuse_in_header` and copies the arguments after it, up to [`ARGUMENTS`] bytes.
    pub fn parse(header: &[u8], arguments: &[u8]) -> Option<Self> {
        let header = header.first_chunk::<IN_HEADER>()?;
        let mut request = Self {
            opcode: u32_at(header, 4),
            unique: u64_at(header, 8),
            node: u64_at(header, 16),
            owner: (u32_at(header, 24), u32_at(header, 28)),
            arguments: [0; ARGUMENTS],
        };
        let known = arguments.len().min(ARGUMENTS);
        request.arguments[..known].copy_from_slice(&arguments[..known]);
        Some(request)
    }

    /// Parses a message from /dev/fuse. Also returns the offset of its names or data.
    pub fn of_message(message: &[u8]) -> Option<(Self, usize)> {
        let opcode = u32_at(message.first_chunk::<IN_HEADER>()?, 4);
        let end = fixed(opcode).map_or(message.len(), |len| IN_HEADER + len);
        Some((Self::parse(message, message.get(IN_HEADER..end)?)?, end))
    }

    /// The 4-byte number at `at` in the arguments.
    pub fn u32(&self, at: usize) -> u32 {
        u32_at(&self.arguments, at)
    }

    /// The 8-byte number at `at` in the arguments.
    pub fn u64(&self, at: usize) -> u64 {
        u64_at(&self.arguments, at)
    }
}

/// Size of the fixed arguments, in bytes, if names or data follow them.
fn fixed(opcode: u32) -> Option<usize> {
    match opcode {
        opcode::LOOKUP | opcode::SYMLINK | opcode::UNLINK | opcode::RMDIR | opcode::REMOVEXATTR => Some(0),
        opcode::MKDIR | opcode::RENAME | opcode::LINK => Some(8),
        opcode::SETXATTR | opcode::GETXATTR | opcode::BATCH_FORGET => Some(8),
        opcode::MKNOD | opcode::RENAME2 | opcode::CREATE => Some(16),
        opcode::WRITE => Some(WRITE_IN),
        _ => None,
    }
}

/// Splits off a name that ends with a zero byte. Returns the name and the rest.
pub fn split_name(data: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = data.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
    Ok((&data[..end], &data[end + 1..]))
}

/// `struct fuse_out_header`, for an answer with `len` bytes of payload.
pub fn out_header(unique: u64, error: Option<Errno>, len: usize) -> [u8; OUT_HEADER] {
    let mut header = [0; OUT_HEADER];
    header[..4].copy_from_slice(&((OUT_HEADER + len) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.map_or(0, |e| -e.0).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Writes numbers one after the other. Answers of fixed size fit into any buffer.
pub struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.at
    }

    /// Whether `len` more bytes fit.
    pub fn has_room(&self, len: usize) -> bool {
        self.out.len() - self.at >= len
    }
}

/// What the kernel offers in an INIT (`struct fuse_init_in`).
pub struct Offer {
    pub version: (u32, u32),
    pub max_readahead: u32,
    pub flags: u64,
}

impl Offer {
    /// Reads the arguments of INIT.
    pub fn of(request: &FuseRequest) -> Self {
        let mut flags = u64::from(request.u32(12));
        if flags & init::INIT_EXT != 0 {
            flags |= u64::from(request.u32(16)) << 32;
        }
        Self { version: (request.u32(0), request.u32(4)), max_readahead: request.u32(8), flags }
    }

    /// Writes the answer, `struct fuse_init_out`, which accepts the offered ones of `flags`. Returns its length and the
    /// accepted flags.
    pub fn accept(&self, flags: u64, out: &mut [u8]) -> (usize, u64) {
        /// Limits of background requests: asynchronous reads and writes that no program waits for individually. From
        /// the second number on, the kernel slows programs down.
        const BACKGROUND: (u16, u16) = (64, 48);

        let agreed = self.flags & flags;
        let mut out = Writer::new(out);
        out.u32(VERSION.0).u32(VERSION.1.min(self.version.1)).u32(self.max_readahead).u32(agreed as u32);
        out.u16(BACKGROUND.0).u16(BACKGROUND.1).u32(MAX_DATA as u32);
        // The granularity of times is 1 ns.
        out.u32(1)
            .u16((MAX_DATA / rustix::param::page_size()) as u16)
            .u16(0)
            .u32((agreed >> 32) as u32)
            .bytes(&[0; 28]);
        (out.len(), agreed)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// The 8-byte number at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_init_of_linux_6_18_is_accepted_as_far_as_it_is_understood() {
        let mut message = Vec::new();
        for word in [7u32, 45, 131_072, 0x73ff_fffb, 0x0000_03f2] {
            message.extend(word.to_ne_bytes());
        }
        let mut header = [0; IN_HEADER];
        header[4..8].copy_from_slice(&opcode::INIT.to_ne_bytes());
        let request = FuseRequest::parse(&header, &message).expect("a header");
        let offer = Offer::of(&request);
        assert_eq!((offer.version, offer.flags), ((7, 45), 0x3f2_73ff_fffb));
        let mut out = [0xff; 128];
        let (len, agreed) = offer.accept(init::OVER_IO_URING | init::ASYNC_READ | init::BIG_WRITES | 1 << 63, &mut out);
        assert_eq!((len, agreed), (64, init::OVER_IO_URING | init::ASYNC_READ | init::BIG_WRITES));
        assert_eq!((u32_at(&out, 4), u32_at(&out, 20)), (42, 1 << 20));
        assert_eq!((u32_at(&out, 12), u32_at(&out, 32)), (0x21, 0x200));
    }

    #[test]
    fn short_messages_are_no_requests() {
        assert!(FuseRequest::parse(&[0; IN_HEADER - 1], &[]).is_none());
        let mut message = [0; IN_HEADER + 15];
        message[4..8].copy_from_slice(&opcode::RENAME2.to_ne_bytes());
        assert!(FuseRequest::of_message(&message).is_none());
    }

    #[test]
    fn names_and_data_follow_the_arguments() {
        let message = |opcode: u32, rest: &[u8]| {
            let mut message = vec![0; IN_HEADER];
            message[4..8].copy_from_slice(&opcode.to_ne_bytes());
            [&message, rest].concat()
        };
        let rename = message(opcode::RENAME, b"\x07\0\0\0\0\0\0\0from\0to\0");
        let (request, at) = FuseRequest::of_message(&rename).expect("a request");
        assert_eq!((request.u64(0), at), (7, IN_HEADER + 8));
        let (from, rest) = split_name(&rename[at..]).expect("a name");
        assert_eq!((from, split_name(rest).map(|(to, _)| to)), (&b"from"[..], Ok(&b"to"[..])));
        assert_eq!(split_name(b"no end"), Err(Errno::EINVAL));
        let read = message(opcode::READ, &[1; 40]);
        assert_eq!(FuseRequest::of_message(&read).expect("a request").1, read.len());
    }
}
