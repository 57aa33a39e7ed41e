//! The header of an encrypted disk image, version 2. Sources: vilefault 2007 (vfdecrypt.c, `cencrypted_v2_pwheader`), and the table of
//! wrapped keys after encrypteddmg's README (W. Hengeveld). The numbers of algorithms are those of Apple's cssmtype.h.
//!
//! ```text
//!   0  "encrcdsa"   8   version          12   IV size          16   mode            20   cipher
//!  24   key bits   28   IV algorithm     32   IV key bits      36   UUID            52   chunk size
//!  56   data size (8 bytes)              64   data offset (8)  72   wrapped keys    76   each: kind, offset (8), size (8)
//!
//! A key wrapped with a passphrase:
//!   0   derivation  4   its PRF           8   iterations       12   salt size       16   salt (32)
//!  48   IV size    52   IV (32)          84   key bits         88   cipher          92   padding
//!  96   mode      100   size of the wrapped key               104   wrapped key
//! ```

use crate::error::{Error, ErrorKind, Result};
use crate::formats::Verdict;
use crate::store::Store;

/// The first bytes of an image of version 2, and the last bytes of one of version 1.
pub(super) const MARK: &[u8; 8] = b"encrcdsa";
const MARK_OF_VERSION_1: &[u8; 8] = b"cdsaencr";

const AES: u32 = 0x8000_0001;
const TRIPLE_DES: u32 = 17;
const CBC_IV: u32 = 5;
const CBC_PADDED: u32 = 6;
const HMAC_SHA1: u32 = 91;
const PBKDF2: u32 = 103;
const PKCS7: u32 = 7;

/// The kinds of wrapped keys.
const BY_PASSPHRASE: u32 = 1;
const BY_CERTIFICATE: u32 = 2;

/// The fixed part, in bytes, and an entry of its table.
const FIXED: usize = 76;
const ENTRY: usize = 20;

/// The most wrapped keys, and the longest one, in bytes. hdiutil makes two at most, of 64 bytes.
const MOST_KEYS: u32 = 64;
const LONGEST_KEY: u32 = 512;

/// A wrapped key without its key, in bytes.
const WRAPPED: usize = 104;

/// Bytes of the key for IVs.
pub(super) const IV_KEY: usize = 20;

/// A header.
pub(super) struct ImageHeader {
    pub uuid: [u8; 16],
    /// Bytes of the volume key without that for IVs.
    pub key: usize,
    /// The size of a chunk, in bytes.
    pub chunk: u64,
    /// The size of the plaintext, in bytes.
    pub size: u64,
    /// Where the first chunk is, in bytes.
    pub offset: u64,
    /// The keys that are wrapped with passphrases: offset and size of each, in bytes.
    pub wrapped: Vec<(u64, u64)>,
    /// How many keys are wrapped with certificates.
    pub certificates: usize,
}

/// The volume key, wrapped with a passphrase.
pub(super) struct WrappedKey {
    pub iterations: u32,
    pub salt: Vec<u8>,
    pub cipher: WrappingCipher,
    pub iv: [u8; 16],
    pub key: Vec<u8>,
}

/// The cipher of a wrapped key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WrappingCipher {
    TripleDes,
    /// With keys of this many bytes.
    Aes(usize),
}

impl WrappingCipher {
    /// The size of its keys, in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::TripleDes => 24,
            Self::Aes(len) => len,
        }
    }

    /// The size of its blocks, in bytes.
    pub fn block(self) -> usize {
        match self {
            Self::TripleDes => 8,
            Self::Aes(_) => 16,
        }
    }
}

/// Numbers are big-endian.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.number(at)) << 32 | u64::from(self.number(at + 4))
    }
}

/// What the store is.
pub(super) fn identify(store: &dyn Store) -> Result<Verdict> {
    Ok(match mark(store)? {
        Some(2) => Verdict::Yes(vec!["the signature of an encrypted disk image".into()]),
        Some(version) => Verdict::Yes(vec![format!("the signature of an encrypted disk image, version {version}")]),
        None => Verdict::No(vec!["no signature of an encrypted disk image".into()]),
    })
}

/// The version, by the signature.
fn mark(store: &dyn Store) -> Result<Option<u32>> {
    let mut start = [0; 12];
    if store.len() < start.len() as u64 {
        return Ok(None);
    }
    store.read_at(0, &mut start)?;
    if start.starts_with(MARK) {
        return Ok(Some(Fields(&start).number(8)));
    }
    let mut end = [0; 8];
    store.read_at(store.len() - end.len() as u64, &mut end)?;
    Ok((&end == MARK_OF_VERSION_1).then_some(1))
}

/// Reads the header.
///
/// # Errors
/// `NotThisFormat`, `Malformed`, `Unsupported`, `Io`.
pub(super) fn read(store: &dyn Store) -> Result<ImageHeader> {
    match mark(store)? {
        Some(2) => {}
        Some(1) => {
            let what = "an encrypted disk image of version 1, as Mac OS X 10.3 made them";
            return Err(Error::unsupported(what).hint("Convert it on a Mac: `hdiutil convert`."));
        }
        Some(version) => return Err(Error::unsupported(format!("an encrypted disk image of version {version}"))),
        None => return Err(ErrorKind::NotThisFormat("no signature of an encrypted disk image".into()).into()),
    }
    let bytes = part(store, 0, FIXED, "header")?;
    let fields = Fields(&bytes);
    let usual = [
        (12, "IV size", 16),
        (16, "mode", CBC_IV),
        (20, "cipher", AES),
        (28, "IV algorithm", HMAC_SHA1),
        (32, "IV key size", 160),
    ];
    for (at, name, expected) in usual {
        let found = fields.number(at);
        if found != expected {
            return Err(Error::unsupported(format!("an encrypted disk image whose {name} is {found}, not {expected}")));
        }
    }
    let key = match fields.number(24) {
        bits @ (128 | 192 | 256) => bits as usize / 8,
        bits => return Err(malformed("key size", 24, format!("{bits} bits"))),
    };
    let chunk = u64::from(fields.number(52));
    if !chunk.is_power_of_two() || !(512..=4096).contains(&chunk) {
        return Err(Error::unsupported(format!("an encrypted disk image with chunks of {chunk} bytes")));
    }
    let (size, offset) = (fields.long(56), fields.long(64));
    let end = size.checked_next_multiple_of(chunk).and_then(|len| offset.checked_add(len));
    if size == 0 || end.is_none() || offset < FIXED as u64 {
        return Err(malformed("data size", 56, format!("{size} bytes at byte {offset}")));
    }
    if size.div_ceil(chunk) > 1 << 32 {
        return Err(Error::unsupported("an encrypted disk image with more than 2^32 chunks"));
    }
    let count = fields.number(72);
    if count > MOST_KEYS {
        return Err(malformed("number of wrapped keys", 72, count.to_string()));
    }
    let table = part(store, FIXED as u64, count as usize * ENTRY, "table of wrapped keys")?;
    let mut header = ImageHeader {
        uuid: bytes[36..52].try_into().unwrap_or_default(),
        key,
        chunk,
        size,
        offset,
        wrapped: Vec::new(),
        certificates: 0,
    };
    for entry in table.chunks_exact(ENTRY).map(Fields) {
        match entry.number(0) {
            BY_PASSPHRASE => header.wrapped.push((entry.long(4), entry.long(12))),
            BY_CERTIFICATE => header.certificates += 1,
            _ => {}
        }
    }
    Ok(header)
}

/// Reads a key that is wrapped with a passphrase, from its place in the header.
///
/// # Errors
/// `Malformed`, `Unsupported`, `Io`.
pub(super) fn wrapped(store: &dyn Store, (at, len): (u64, u64)) -> Result<WrappedKey> {
    let bytes = part(store, at, WRAPPED, "wrapped key")?;
    let fields = Fields(&bytes);
    for (field, name, expected) in
        [(0, "key derivation", PBKDF2), (4, "PRF", 0), (92, "padding", PKCS7), (96, "mode", CBC_PADDED)]
    {
        let found = fields.number(field);
        if found != expected {
            return Err(Error::unsupported(format!("a wrapped key whose {name} is {found}, not {expected}")));
        }
    }
    let cipher = match (fields.number(88), fields.number(84)) {
        (TRIPLE_DES, 192) => WrappingCipher::TripleDes,
        (AES, bits @ (128 | 192 | 256)) => WrappingCipher::Aes(bits as usize / 8),
        (cipher, bits) => {
            return Err(Error::unsupported(format!("a key wrapped with cipher {cipher} and {bits} bits")));
        }
    };
    let (iterations, salt, iv) = (fields.number(8), fields.number(12) as usize, fields.number(48) as usize);
    let key = fields.number(100);
    if iterations == 0 || salt > 32 || iv > cipher.block() {
        return Err(malformed(
            "wrapped key",
            at,
            format!("{iterations} iterations, a salt of {salt} and an IV of {iv} bytes"),
        ));
    }
    let fits = key > 0 && key <= LONGEST_KEY && (key as usize).is_multiple_of(cipher.block());
    if !fits || WRAPPED as u64 + u64::from(key) > len {
        return Err(malformed("wrapped key", at + 100, format!("{key} bytes in a record of {len}")));
    }
    let mut padded = [0; 16];
    padded[..iv].copy_from_slice(&bytes[52..52 + iv]);
    let key = part(store, at + WRAPPED as u64, key as usize, "wrapped key")?;
    Ok(WrappedKey { iterations, salt: bytes[16..16 + salt].to_vec(), cipher, iv: padded, key })
}

fn part(store: &dyn Store, at: u64, len: usize, field: &'static str) -> Result<Vec<u8>> {
    if at.checked_add(len as u64).is_none_or(|end| end > store.len()) {
        return Err(malformed(field, at, format!("it reaches past the end at byte {}", store.len())));
    }
    let mut bytes = vec![0; len];
    store.read_at(at, &mut bytes)?;
    Ok(bytes)
}

fn malformed(field: &'static str, offset: u64, what: String) -> Error {
    ErrorKind::Malformed { field, offset, what }.into()
}
