//! The header in front of each file, or in an extended attribute of it (Linux 6.1, fs/ecryptfs/crypto.c,
//! `ecryptfs_read_headers_virt`, `ecryptfs_write_headers_virt`; keystore.c, `ecryptfs_parse_packet_set`).
//!
//! | bytes | what, all big-endian |
//! | --- | --- |
//! | 0 … 8 | size of the plaintext |
//! | 8 … 16 | the marker: a random word, and the same word xor 0x3c81b7f5 |
//! | 16 … 20 | version in the first byte, flags in the others |
//! | 20 … 26 | size of a header extent, and their number: the contents follow them. Not in version 0 |
//! | 26 … | packets: the file's key under a passphrase's key (tag 3) and its signature (tag 11), or under a public key (tag 1) |

use serde::{Deserialize, Serialize};

use super::suite::Suite;
use super::token::{Salt, Signature};
use crate::error::{Error, ErrorKind};

/// How much of a header the kernel reads, in bytes.
pub(super) const READ: usize = 4096;

/// The size of a new header, and the smallest size of a header in front of a file, in bytes.
pub(super) const HEADER: u64 = 8192;

/// How many bytes are enough to recognise a header.
const MARKED: usize = 16;

/// Size of an extent, in bytes.
pub(super) const EXTENT: u32 = 4096;

const MARKER: u32 = 0x3c81_b7f5;

/// The version that is written, and the newest one that can be read.
const VERSION: u8 = 3;

/// The offset of the packets.
const PACKETS: usize = 26;

/// The offset of the packets in version 0.
const PACKETS_0: usize = 20;

const TAG_PUBLIC: u8 = 0x01;
const TAG_PASSPHRASE: u8 = 0x8c;
const TAG_SIGNATURE: u8 = 0xed;

/// The most bytes that an encrypted key may have.
const SEALED_MOST: usize = 512;

/// The beginning of a tag 11 packet: binary data, a file name of eight bytes, and no date.
const SIGNATURE_HEAD: [u8; 14] = *b"b\x08_CONSOLE\0\0\0\0";

/// Flag: the contents are encrypted.
const ENCRYPTED: u32 = 2;
/// Flag: the header is in an extended attribute.
const IN_ATTRIBUTE: u32 = 4;
/// Flag: names are encrypted.
const NAMES: u32 = 8;

/// Where a header is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HeaderLocation {
    /// In front of the contents.
    File,
    /// In an extended attribute; contents begin at 0.
    Attribute,
}

/// A header that was checked.
pub(super) struct Header<'a> {
    pub size: u64,
    pub version: u8,
    /// The offset of the contents.
    pub data_at: u64,
    pub keys: Vec<SealedKey<'a>>,
    /// Public keys that the file's key is encrypted for.
    pub public: Vec<Signature>,
}

/// A file's key, encrypted with the key of a passphrase.
pub(super) struct SealedKey<'a> {
    pub suite: Suite,
    pub salt: Salt,
    pub signature: Signature,
    pub bytes: &'a [u8],
}

impl SealedKey<'_> {
    /// Everything needed to decrypt the key: the signature, the cipher's code and the encrypted key.
    pub fn sealed(&self) -> Vec<u8> {
        [&self.signature, &[self.suite.code()][..], self.bytes].concat()
    }
}

/// Why there is no header.
#[derive(Clone, Debug)]
pub(super) enum NoHeader {
    /// There is no marker.
    Other,
    /// The header is incomplete.
    CutShort {
        size: u64,
    },
    Damaged {
        field: &'static str,
        offset: u64,
        what: String,
    },
    Unsupported(String),
}

impl From<NoHeader> for Error {
    fn from(why: NoHeader) -> Self {
        match why {
            NoHeader::Other => ErrorKind::NotThisFormat("it has no eCryptfs header".into()).into(),
            NoHeader::CutShort { .. } => malformed("header", 0, "the file ends within it"),
            NoHeader::Damaged { field, offset, what } => malformed(field, offset, what),
            NoHeader::Unsupported(what) => Self::unsupported(what),
        }
    }
}

fn malformed(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field, offset, what: what.into() }.into()
}

/// Whether these bytes begin with a header.
pub(super) fn is_marked(bytes: &[u8]) -> bool {
    bytes.len() >= MARKED && be32(&bytes[8..]) ^ MARKER == be32(&bytes[12..])
}

/// Parses the header at the beginning of `bytes`: the whole file or attribute, or the first [`READ`] bytes of it.
pub(super) fn parse(bytes: &[u8], place: HeaderLocation) -> Result<Header<'_>, NoHeader> {
    if !is_marked(bytes) {
        return Err(NoHeader::Other);
    }
    let size = be64(bytes);
    let mut packets = Packets { bytes, at: PACKETS, size };
    packets.need(PACKETS_0)?;
    let version = bytes[16];
    let mut data_at = HEADER;
    match version {
        0 => packets.at = PACKETS_0,
        1..=VERSION => {
            packets.need(PACKETS)?;
            data_at = u64::from(be32(&bytes[20..])) * u64::from(u16::from_be_bytes([bytes[24], bytes[25]]));
        }
        _ => return Err(NoHeader::Unsupported(format!("eCryptfs header version {version}"))),
    }
    match place {
        HeaderLocation::Attribute => data_at = 0,
        HeaderLocation::File if data_at < HEADER => {
            return damaged("header size", 20, format!("contents begin at {data_at}, within the header"));
        }
        HeaderLocation::File => {}
    }
    if i64::try_from(size).is_err() || size > largest(data_at) {
        return damaged("size", 0, format!("{size} bytes, more than a file can have"));
    }
    let mut header = Header { size, version, data_at, keys: Vec::new(), public: Vec::new() };
    while packets.next(&mut header)? {}
    match header.keys.is_empty() && header.public.is_empty() {
        true if bytes.len() <= packets.at => Err(NoHeader::CutShort { size }),
        true => damaged("packets", packets.at as u64, "it has no key, neither for a passphrase nor for a public key"),
        false => Ok(header),
    }
}

/// The largest plaintext, in bytes, of a file whose contents begin at `data_at`.
pub(super) fn largest(data_at: u64) -> u64 {
    let room = i64::MAX as u64 - data_at;
    room - room % u64::from(EXTENT)
}

/// Packets one after the other.
struct Packets<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The size of the file, for errors.
    size: u64,
}

impl<'a> Packets<'a> {
    /// Reads the next packet. Returns false if no packet follows.
    fn next(&mut self, header: &mut Header<'a>) -> Result<bool, NoHeader> {
        match self.bytes.get(self.at) {
            Some(&TAG_PASSPHRASE) => {
                let (suite, salt, sealed) = self.passphrase()?;
                header.keys.push(SealedKey { suite, salt, signature: self.signature()?, bytes: sealed });
                Ok(true)
            }
            Some(&TAG_PUBLIC) => {
                header.public.push(self.public()?);
                Ok(true)
            }
            Some(&TAG_SIGNATURE) => damaged("packets", self.at as u64, "a signature stands where a key should be"),
            _ => Ok(false),
        }
    }

    /// Tag 3: version 4, cipher, iterated and salted, MD5, salt, iterations, key. The name of the hash is wrong, but nothing reads
    /// it.
    fn passphrase(&mut self) -> Result<(Suite, Salt, &'a [u8]), NoHeader> {
        let at = self.at as u64;
        let body = self.body(TAG_PASSPHRASE)?;
        let Some(([version, cipher, how, hash, salt @ .., _iterations], sealed)) = body.split_first_chunk::<13>()
        else {
            return damaged("key", at, format!("its packet has {} bytes", body.len()));
        };
        match (version, how, hash) {
            (4, 3, 1) => {}
            (4, _, _) => return Err(NoHeader::Unsupported(format!("key derivation {how} with hash {hash}"))),
            _ => return damaged("key", at, format!("its packet has version {version}")),
        }
        if sealed.len() > SEALED_MOST {
            return damaged("key", at, format!("it has {} bytes", sealed.len()));
        }
        let suite = Suite::of_file(*cipher, sealed.len()).map_err(NoHeader::Unsupported)?;
        Ok((suite, *salt, sealed))
    }

    /// Reads the tag 11 packet that follows tag 3.
    fn signature(&mut self) -> Result<Signature, NoHeader> {
        let at = self.at as u64;
        if self.bytes.get(self.at).is_some_and(|tag| *tag != TAG_SIGNATURE) {
            return damaged("signature", at, "it does not follow the key");
        }
        let body = self.body(TAG_SIGNATURE)?;
        // The kernel ignores name and date.
        match body.split_first_chunk::<14>() {
            Some((head, signature)) if head[..2] == SIGNATURE_HEAD[..2] => match signature.try_into() {
                Ok(signature) => Ok(signature),
                Err(_) => damaged("signature", at, format!("it has {} bytes", signature.len())),
            },
            _ => damaged("signature", at, "its packet is not one of eCryptfs's"),
        }
    }

    /// Tag 1: version 3, signature, algorithm, key.
    fn public(&mut self) -> Result<Signature, NoHeader> {
        let at = self.at as u64;
        match self.body(TAG_PUBLIC)?.split_first_chunk::<10>() {
            Some(([3, signature @ .., _algorithm], sealed)) if sealed.len() <= SEALED_MOST => Ok(*signature),
            _ => damaged("key", at, "its public key packet is not one of eCryptfs's"),
        }
    }

    /// Returns the body of the next packet, and advances past it.
    fn body(&mut self, tag: u8) -> Result<&'a [u8], NoHeader> {
        self.need(self.at + 1)?;
        debug_assert_eq!(self.bytes[self.at], tag);
        let rest = &self.bytes[self.at + 1..];
        let Some((len, digits)) = packet_len(rest) else {
            // A single byte may be the first of a two-byte length.
            self.need(self.at + 2)?;
            self.need(self.at + if rest[0] < 224 { 3 } else { 2 })?;
            return damaged("packet length", self.at as u64 + 1, format!("it begins with {:#x}", rest[0]));
        };
        let from = self.at + 1 + digits;
        if from + len > READ {
            return damaged("packet length", self.at as u64 + 1, format!("{len} bytes reach past the header"));
        }
        self.need(from + len)?;
        self.at = from + len;
        Ok(&self.bytes[from..from + len])
    }

    fn need(&self, bytes: usize) -> Result<(), NoHeader> {
        if bytes <= self.bytes.len() { Ok(()) } else { Err(NoHeader::CutShort { size: self.size }) }
    }
}

/// The fields of a new header.
pub(super) struct New<'a> {
    pub place: HeaderLocation,
    pub encrypted_names: bool,
    /// Random.
    pub marker: [u8; 4],
    pub suite: Suite,
    /// The file's key under each token.
    pub keys: &'a [(Salt, Signature, Vec<u8>)],
}

impl New<'_> {
    /// The header of an empty file. In front of a file it has [`HEADER`] bytes; in an attribute, only as many as it needs.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend(self.marker);
        bytes.extend((u32::from_be_bytes(self.marker) ^ MARKER).to_be_bytes());
        let place = if self.place == HeaderLocation::Attribute { IN_ATTRIBUTE } else { 0 };
        let names = if self.encrypted_names { NAMES } else { 0 };
        bytes.extend((u32::from(VERSION) << 24 | ENCRYPTED | place | names).to_be_bytes());
        push_extents(&mut bytes);
        for (salt, signature, sealed) in self.keys {
            push_packet(&mut bytes, TAG_PASSPHRASE, &[&[4, self.suite.code(), 3, 1], salt, &[0x60], sealed]);
            push_packet(&mut bytes, TAG_SIGNATURE, &[&SIGNATURE_HEAD, signature]);
        }
        if self.place == HeaderLocation::File {
            bytes.resize(HEADER as usize, 0);
        }
        bytes
    }
}

/// Converts the header of an extended attribute to one in front of the file (`ecryptfs_copy_up_encrypted_with_header`).
pub(super) fn in_front(attribute: &[u8]) -> Vec<u8> {
    let mut bytes = attribute[..attribute.len().min(READ)].to_vec();
    bytes.resize(HEADER as usize, 0);
    bytes[19] &= !(IN_ATTRIBUTE as u8);
    if bytes[16] > 0 {
        let mut extents = Vec::new();
        push_extents(&mut extents);
        bytes[20..PACKETS].copy_from_slice(&extents);
    }
    bytes
}

fn push_extents(bytes: &mut Vec<u8>) {
    bytes.extend(EXTENT.to_be_bytes());
    bytes.extend(((HEADER / u64::from(EXTENT)) as u16).to_be_bytes());
}

/// Appends a packet: tag, length and body.
pub(super) fn push_packet(bytes: &mut Vec<u8>, tag: u8, body: &[&[u8]]) {
    let len: usize = body.iter().map(|part| part.len()).sum();
    bytes.push(tag);
    match len.checked_sub(192) {
        None => bytes.push(len as u8),
        Some(more) => bytes.extend([(192 + more / 256) as u8, (more % 256) as u8]),
    }
    body.iter().for_each(|part| bytes.extend(*part));
}

/// Decodes a packet's length. Returns the length, and how many bytes encode it.
pub(super) fn packet_len(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes {
        [short @ 0..192, ..] => Some((usize::from(short), 1)),
        [long @ 192..224, low, ..] => Some((usize::from(long - 192) * 256 + usize::from(low) + 192, 2)),
        _ => None,
    }
}

fn damaged<T>(field: &'static str, offset: u64, what: impl Into<String>) -> Result<T, NoHeader> {
    Err(NoHeader::Damaged { field, offset, what: what.into() })
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("four bytes"))
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().expect("eight bytes"))
}
