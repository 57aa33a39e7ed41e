//! A format that encrypts file by file, made up for tests: a header of 4096 bytes in front of each file, and encrypted names.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::modes::xts::{Layer, Xts};
use claviger_engine::file_formats::{FileKeys, FileKind, FileLayout, NameIv, StoredFile};
use claviger_engine::trees::damaged;
use claviger_engine::{Acceleration, Layout, Payload, SectorCipher, Segment};

/// Bytes of a header. All of it is: magic (8), where the contents begin (8), plaintext bytes (8), bytes of a sector (8), the
/// file's own key under the folder's (64), and the same number for all but the size (8).
pub const HEADER: u64 = 4096;
const MAGIC: &[u8; 8] = b"testfile";
const PREFIX: &str = "E.";
const MOST: u64 = 1 << 50;

pub struct TestKeys {
    pub sector: u64,
    /// How often a header was read.
    pub layouts: Arc<AtomicUsize>,
    key: [u8; 64],
}

impl TestKeys {
    pub fn new(sector: u64, seed: u8) -> Self {
        Self { sector, layouts: Arc::default(), key: std::array::from_fn(|i| (i as u8).wrapping_mul(7) ^ seed) }
    }

    fn cipher(key: &[u8], sector: usize) -> Xts {
        let half = |part: &[u8]| AES.with_key(part, Acceleration::On);
        Xts::new(vec![Layer { data: half(&key[..32]), tweak: half(&key[32..]) }], sector)
    }

    fn found(&self, header: &[u8]) -> io::Result<FileLayout> {
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let (stored_at, size, sector) = (number(8), number(16), number(24));
        if &header[..8] != MAGIC || number(96) != sum(header) {
            return Err(damaged("header", 0, "it is none of this format"));
        }
        if stored_at != HEADER {
            return Err(damaged("contents", 8, format!("they begin at {stored_at}")));
        }
        if !matches!(sector, 512 | 4096) {
            return Err(damaged("sector", 24, format!("{sector} bytes")));
        }
        let mut key = header[32..96].to_vec();
        Self::cipher(&self.key, 64).decrypt(0, &mut key);
        let payload = Payload::crypt(Arc::new(Self::cipher(&key, sector as usize)), 0);
        let layout = Layout::new(vec![Segment { at: 0, len: MOST, stored_at, payload, writable: true }])?;
        FileLayout::new(layout, size)
    }

    fn decrypted(&self, stored: &OsStr) -> Option<OsString> {
        let hex = stored.to_str()?.strip_prefix(PREFIX)?;
        let byte = |i: usize| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok();
        let mut bytes = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<_>>>()?;
        if bytes.is_empty() || bytes.len() % 16 != 0 {
            return None;
        }
        Self::cipher(&self.key, bytes.len()).decrypt(1, &mut bytes);
        let len = usize::from(*bytes.first()?);
        let name = bytes.get(1..=len)?.to_vec();
        bytes[len + 1..].iter().all(|b| *b == 0).then(|| OsString::from_vec(name))
    }
}

/// Puts right what covers a header's other fields.
pub fn sum(header: &[u8]) -> u64 {
    let covered = header[..16].iter().chain(&header[24..96]);
    covered.fold(1, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte) + 1))
}

impl FileKeys for TestKeys {
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        self.layouts.fetch_add(1, Ordering::Relaxed);
        let mut header = [0; 104];
        match of.tree.read_at(of.contents, 0, &mut header)? {
            0 => Ok(FileKind::Unfinished),
            104 => self.found(&header).map(FileKind::Encrypted),
            _ => Err(damaged("header", 0, "the file ends in it")),
        }
    }

    fn begin(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        let mut key = [0; 64];
        getrandom::fill(&mut key).expect("random bytes");
        let mut header = vec![0; HEADER as usize];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&HEADER.to_le_bytes());
        header[24..32].copy_from_slice(&self.sector.to_le_bytes());
        Self::cipher(&self.key, 64).encrypt(0, &mut key);
        header[32..96].copy_from_slice(&key);
        let sum = sum(&header);
        header[96..104].copy_from_slice(&sum.to_le_bytes());
        of.tree.write_at(of.contents, 0, &header)?;
        self.found(&header).map(FileKind::Encrypted)
    }

    fn set_size(&self, of: StoredFile<'_>, size: u64) -> io::Result<()> {
        of.tree.write_at(of.contents, 16, &size.to_le_bytes())
    }

    fn plain_name(&self, stored: &OsStr, _iv: &NameIv) -> io::Result<Option<OsString>> {
        Ok(self.decrypted(stored))
    }

    fn stored_name(&self, plain: &OsStr, _iv: &NameIv) -> io::Result<OsString> {
        if plain.len() > self.longest_name(255) as usize {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let mut bytes = [&[plain.len() as u8], plain.as_bytes()].concat();
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        Self::cipher(&self.key, bytes.len()).encrypt(1, &mut bytes);
        Ok(OsString::from(PREFIX.to_owned() + &bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()))
    }

    fn longest_name(&self, _stored: u32) -> u32 {
        111
    }

    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        self.plain_name(&stored, &NameIv::default())?.ok_or_else(|| damaged("target", 0, "it does not decrypt"))
    }

    fn stored_target(&self, plain: &OsStr) -> io::Result<OsString> {
        self.stored_name(plain, &NameIv::default())
    }

    fn hides(&self, attribute: &OsStr) -> bool {
        attribute == "user.testformat"
    }
}
