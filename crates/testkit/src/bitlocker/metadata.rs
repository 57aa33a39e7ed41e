//! The metadata block as bytes: datums, the block's headers, and the validation after it.

use super::crypto::{ccm_seal, sha256};

/// A FILETIME of 2025, rounded to milliseconds as by Windows.
pub const TIME: u64 = 0x01DB_9C00_8000_0000 / 10_000 * 10_000;

/// The nonces of a volume's AES-CCM datums, in order.
#[derive(Clone, Debug)]
pub struct Nonces {
    next: u32,
}

impl Default for Nonces {
    fn default() -> Self {
        Self { next: 2 }
    }
}

impl From<u32> for Nonces {
    /// The nonces from this counter on.
    fn from(next: u32) -> Self {
        Self { next }
    }
}

impl Nonces {
    /// The counter of the next nonce.
    pub fn next(&self) -> u32 {
        self.next
    }

    fn take(&mut self, time: u64) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&time.to_le_bytes());
        nonce[8..].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        nonce
    }
}

/// A piece of metadata: u16 size, role, type, version, then data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datum {
    /// The role: 2 protector, 3 full volume encryption key, 7 label …
    pub role: u16,
    /// The kind of data: 1 key, 2 text, 3 stretched key …
    pub kind: u16,
    /// Usually 1.
    pub version: u16,
    /// The data after the 8 bytes of header.
    pub data: Vec<u8>,
}

impl Datum {
    /// A datum of version 1.
    pub fn new(role: u16, kind: u16, data: impl Into<Vec<u8>>) -> Self {
        Self { role, kind, version: 1, data: data.into() }
    }

    /// UTF-16 with a NUL.
    pub fn text(role: u16, text: &str) -> Self {
        Self::new(role, 2, text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect::<Vec<_>>())
    }

    /// A key in plaintext.
    pub fn key(kind: u16, key: &[u8]) -> Self {
        Self::new(0, 1, words(&[kind, 0]).chain(key.iter().copied()).collect::<Vec<_>>())
    }

    /// A key sealed with AES-CCM under another.
    pub fn sealed(role: u16, under: &[u8], nonces: &mut Nonces, kind: u16, key: &[u8]) -> Self {
        Self::sealed_at(role, under, nonces.take(TIME), kind, key)
    }

    fn sealed_at(role: u16, under: &[u8], nonce: [u8; 12], kind: u16, key: &[u8]) -> Self {
        let inside = Self { version: 0, ..Self::key(kind, key) };
        Self::new(role, 5, [&nonce[..], &ccm_seal(under, &nonce, &inside.bytes())].concat())
    }

    /// A datum with some bytes, followed by nested datums.
    pub fn with(role: u16, kind: u16, before: impl Into<Vec<u8>>, inner: &[Self]) -> Self {
        let mut data = before.into();
        inner.iter().for_each(|datum| data.extend(datum.bytes()));
        Self::new(role, kind, data)
    }

    /// The datum's bytes on disk.
    pub fn bytes(&self) -> Vec<u8> {
        let size = (8 + self.data.len()) as u16;
        words(&[size, self.role, self.kind, self.version]).chain(self.data.iter().copied()).collect()
    }

    /// Parses consecutive datums in `bytes`, up to zeros or the end.
    ///
    /// # Panics
    /// If these are not datums.
    pub fn parse_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut all = Vec::new();
        while bytes.len() >= 8 && bytes[..2] != [0, 0] {
            let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let (datum, rest) = bytes.split_at(usize::from(word(0)));
            all.push(Self { role: word(2), kind: word(4), version: word(6), data: datum[8..].to_vec() });
            bytes = rest;
        }
        all
    }
}

fn words(words: &[u16]) -> impl Iterator<Item = u8> + '_ {
    words.iter().flat_map(|word| word.to_le_bytes())
}

/// Bytes of both headers of a block, before the first datum.
pub const HEADERS: usize = 64 + 48;

/// Replaces the datums of a block and corrects its sizes. In version 1, of Windows Vista, the size is in bytes.
pub fn set_datums(block: &mut Vec<u8>, datums: &[Datum]) {
    block.truncate(HEADERS);
    datums.iter().for_each(|datum| block.extend(datum.bytes()));
    let dataset = (block.len() - 64) as u32;
    block[64..68].copy_from_slice(&dataset.to_le_bytes());
    block[76..80].copy_from_slice(&dataset.to_le_bytes());
    block.resize(block.len().next_multiple_of(16), 0);
    let unit = if block[10] == 1 { 1 } else { 16 };
    let size = (block.len() / unit) as u16;
    block[8..10].copy_from_slice(&size.to_le_bytes());
}

/// How the hash after a block is stored.
#[derive(Clone, Copy)]
pub enum Seal {
    /// Windows Vista: there is none.
    None,
    /// In plaintext, as on decrypted volumes.
    Clear,
    /// Sealed under the volume master key.
    Under([u8; 32]),
}

/// The validation directly after `block`: CRC and hash of `hashed`, which is the block itself, or other bytes for a wrong hash.
pub fn validation(block: &[u8], hashed: &[u8], area: usize, seal: Seal, nonces: &mut Nonces) -> Vec<u8> {
    let hash = sha256(hashed);
    let datum = match seal {
        Seal::None => None,
        Seal::Clear => Some(Datum::key(0x2005, &hash)),
        // The driver writes it, and sets the top bit of its times.
        Seal::Under(vmk) => Some(Datum::sealed_at(0, &vmk, nonces.take(TIME | 1 << 63), 0x2005, &hash)),
    };
    let version = if datum.is_some() { 2 } else { 1 };
    let rest = area.wrapping_sub(block.len()) as u16;
    let mut bytes: Vec<u8> = words(&[rest, version]).collect();
    bytes.extend(crc32fast::hash(block).to_le_bytes());
    bytes.extend(datum.iter().flat_map(Datum::bytes));
    bytes
}
