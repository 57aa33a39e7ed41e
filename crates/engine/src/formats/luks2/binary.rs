//! The binary header of LUKS2. There are two copies, each followed by a JSON area (LUKS2 On-Disk Format Specification 1.1.1,
//! section 2.1; names follow its `struct luks2_hdr_disk`). All numbers are big-endian.

use claviger_crypto::hash::{self, Hash};

use crate::error::{Error, ErrorKind, Result};
use crate::formats::WhichHeader;

/// The size of the part before the JSON area, in bytes (`LUKS2_HDR_BIN_LEN`).
pub const LEN: usize = 4096;

/// The possible sizes of a copy, JSON area included, in bytes. The second copy directly follows the first, so these are also its
/// possible offsets (specification, section 2.2, table 2).
pub const SIZES: [u64; 9] = [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];

/// The size of a label or subsystem, including the NUL at its end, in bytes (`LUKS2_LABEL_L`).
pub const LABEL: usize = 48;
/// The size of the salt, in bytes (`LUKS2_SALT_L`).
pub const SALT: usize = 64;
/// The size of the UUID's text, including the NUL at its end, in bytes (`LUKS2_UUID_L`).
pub const UUID: usize = 40;

/// The offsets of the fields in a copy, in bytes. Everything after the last field is zeros.
mod at {
    pub const MAGIC: usize = 0; // "LUKS\xba\xbe", "SKUL\xba\xbe" in the second copy
    pub const VERSION: usize = 6; // u16: 2
    pub const HDR_SIZE: usize = 8; // u64: of this copy, JSON area included
    pub const SEQID: usize = 16; // u64: one more with each change
    pub const LABEL: usize = 24; // 48 bytes of text
    pub const CSUM_ALG: usize = 72; // 32 bytes: name of a hash
    pub const SALT: usize = 104; // 64 bytes, other ones in each copy: what tells copies of the same header apart
    pub const UUID: usize = 168; // 40 bytes of text
    pub const SUBSYSTEM: usize = 208; // 48 bytes of text
    pub const HDR_OFFSET: usize = 256; // u64: where this copy is
    pub const PADDING: usize = 264;
    pub const CSUM: usize = 448; // 64 bytes: hash of the whole copy, with zeros here
    pub const END: usize = 512;
}

/// Where a binary header claims to be in its volume, in bytes.
pub(super) fn claimed_offset(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at::HDR_OFFSET..)?.first_chunk()?))
}

/// The size of the checksum's hash name, in bytes.
const CSUM_ALG: usize = at::SALT - at::CSUM_ALG;

/// Which of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// At the beginning.
    Primary,
    /// Right after it.
    Secondary,
}

/// The fields of a binary header. `hdr_offset` follows from which copy it is, and the checksum from all other fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// The size of this copy, JSON area included: one of [`SIZES`].
    pub hdr_size: u64,
    /// Increases with each change: of two sound copies the one with the larger number is valid.
    pub seqid: u64,
    /// The label, as bytes without a NUL: at most [`LABEL`] − 1.
    pub label: Vec<u8>,
    /// The checksum's hash, as the kernel calls it: `sha256`.
    pub csum_alg: String,
    /// The salt of this copy.
    pub salt: [u8; SALT],
    /// The UUID's text, as bytes without a NUL: at most [`UUID`] − 1.
    pub uuid: Vec<u8>,
    /// The subsystem, a second label.
    pub subsystem: Vec<u8>,
}

impl Which {
    /// The first bytes of the copy (`LUKS2_MAGIC_1ST`, `LUKS2_MAGIC_2ND`).
    pub fn magic(self) -> &'static [u8; 6] {
        match self {
            Self::Primary => b"LUKS\xba\xbe",
            Self::Secondary => b"SKUL\xba\xbe",
        }
    }

    /// Where the copy is, in bytes.
    pub fn offset(self, hdr_size: u64) -> u64 {
        match self {
            Self::Primary => 0,
            Self::Secondary => hdr_size,
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        self.copy().name()
    }

    pub(super) fn copy(self) -> WhichHeader {
        match self {
            Self::Primary => WhichHeader::Primary,
            Self::Secondary => WhichHeader::Secondary,
        }
    }
}

impl Binary {
    /// Parses the binary header at the offset `offset` of the store. [`Binary::check`] verifies the checksum, which covers the JSON
    /// area too.
    ///
    /// # Errors
    /// `Malformed`; `Unsupported` for an unknown version or checksum.
    pub fn parse(bytes: &[u8; LEN], which: Which, offset: u64) -> Result<Self> {
        let wrong = |field, at: usize, what: String| {
            Error::from(ErrorKind::Malformed { field, offset: offset + at as u64, what })
        };
        if bytes[at::MAGIC..at::VERSION] != *which.magic() {
            return Err(wrong("magic", at::MAGIC, format!("no {} header signature", which.name())));
        }
        let version = u16::from_be_bytes([bytes[at::VERSION], bytes[at::VERSION + 1]]);
        if version != 2 {
            return Err(Error::unsupported(format!("LUKS version {version}")));
        }
        let hdr_offset = number(bytes, at::HDR_OFFSET);
        if hdr_offset != offset {
            let what = format!("the {} header at byte {offset} claims to be at byte {hdr_offset}", which.name());
            return Err(wrong("hdr_offset", at::HDR_OFFSET, what));
        }
        let hdr_size = number(bytes, at::HDR_SIZE);
        if !SIZES.contains(&hdr_size) {
            return Err(wrong("hdr_size", at::HDR_SIZE, format!("{hdr_size} bytes is not a valid header size")));
        }
        if which.offset(hdr_size) != offset {
            let what = format!("the secondary header at byte {offset} claims to have {hdr_size} bytes");
            return Err(wrong("hdr_size", at::HDR_SIZE, what));
        }
        let csum_alg = String::from_utf8(text(&bytes[at::CSUM_ALG..][..CSUM_ALG]).to_vec());
        let csum_alg = csum_alg.map_err(|_| wrong("csum_alg", at::CSUM_ALG, "the hash has no name".into()))?;
        let binary = Self {
            hdr_size,
            seqid: number(bytes, at::SEQID),
            label: text(&bytes[at::LABEL..][..LABEL]).to_vec(),
            csum_alg,
            salt: bytes[at::SALT..][..SALT].try_into().expect("so many bytes were taken"),
            uuid: text(&bytes[at::UUID..][..UUID]).to_vec(),
            subsystem: text(&bytes[at::SUBSYSTEM..][..LABEL]).to_vec(),
        };
        binary.checksum().map(|_| binary)
    }

    /// Verifies the checksum of a whole copy at the offset `offset` of the store.
    ///
    /// # Errors
    /// `Malformed` if it does not match; `Unsupported` for an unknown hash.
    pub fn check(&self, whole: &[u8], offset: u64) -> Result<()> {
        let sum = sum(self.checksum()?, whole);
        let stored = &whole[at::CSUM..at::END];
        if stored[..sum.len()] == sum[..] {
            return Ok(());
        }
        let what = format!("the checksum over the header of {} bytes at byte {offset} is wrong", whole.len());
        Err(ErrorKind::Malformed { field: "csum", offset: offset + at::CSUM as u64, what }.into())
    }

    /// Returns a whole copy: this header and the JSON area, with checksum. At least one zero byte must follow the JSON.
    ///
    /// # Errors
    /// `Misuse` if the JSON or a text does not fit; `Unsupported` for an unknown hash.
    pub fn serialise(&self, which: Which, json: &[u8]) -> Result<Vec<u8>> {
        let Self { hdr_size, seqid, label, csum_alg, salt, uuid, subsystem } = self;
        let size = usize::try_from(*hdr_size).ok().filter(|_| SIZES.contains(hdr_size));
        let size = size.ok_or_else(|| Error::misuse(format!("no LUKS2 header has {hdr_size} bytes")))?;
        if json.len() >= size - LEN {
            let room = size - LEN - 1;
            return Err(Error::misuse(format!(
                "the header's metadata would need {} bytes, but only {room} fit",
                json.len()
            ))
            .hint("Remove tokens or keyslots that are no longer needed."));
        }
        let mut whole = vec![0; size];
        whole[at::MAGIC..at::VERSION].copy_from_slice(which.magic());
        whole[at::VERSION..at::HDR_SIZE].copy_from_slice(&[0, 2]);
        whole[at::HDR_SIZE..at::SEQID].copy_from_slice(&hdr_size.to_be_bytes());
        whole[at::SEQID..at::LABEL].copy_from_slice(&seqid.to_be_bytes());
        put(&mut whole[at::LABEL..][..LABEL], label, "label")?;
        put(&mut whole[at::CSUM_ALG..][..CSUM_ALG], csum_alg.as_bytes(), "hash's name")?;
        whole[at::SALT..][..SALT].copy_from_slice(salt);
        put(&mut whole[at::UUID..][..UUID], uuid, "UUID")?;
        put(&mut whole[at::SUBSYSTEM..][..LABEL], subsystem, "subsystem")?;
        whole[at::HDR_OFFSET..at::PADDING].copy_from_slice(&which.offset(*hdr_size).to_be_bytes());
        whole[LEN..][..json.len()].copy_from_slice(json);
        let sum = sum(self.checksum()?, &whole);
        whole[at::CSUM..][..sum.len()].copy_from_slice(&sum);
        Ok(whole)
    }

    fn checksum(&self) -> Result<&'static Hash> {
        let known = hash::by_name(&self.csum_alg).filter(|hash| hash.size <= at::END - at::CSUM);
        known.ok_or_else(|| Error::unsupported(format!("header checksums by {:?}", self.csum_alg)))
    }
}

/// Hashes a whole copy with zeros in place of the checksum.
fn sum(hash: &Hash, whole: &[u8]) -> Vec<u8> {
    let mut sum = vec![0; hash.size];
    hash.digest(&[&whole[..at::CSUM], &[0; at::END - at::CSUM], &whole[at::END..]], &mut sum);
    sum
}

fn number(bytes: &[u8; LEN], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..][..8].try_into().expect("eight bytes"))
}

/// Returns the bytes before the first NUL. The last byte counts as NUL (`hdr_from_disk` of cryptsetup's luks2_disk_metadata.c).
fn text(field: &[u8]) -> &[u8] {
    let field = &field[..field.len() - 1];
    &field[..field.iter().position(|b| *b == 0).unwrap_or(field.len())]
}

fn put(field: &mut [u8], text: &[u8], what: &str) -> Result<()> {
    if text.len() >= field.len() || text.contains(&0) {
        return Err(Error::misuse(format!("a {what} must have at most {} bytes, none of them NUL", field.len() - 1)));
    }
    field[..text.len()].copy_from_slice(text);
    Ok(())
}
