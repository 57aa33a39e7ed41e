//! A metadata block, of which a volume has three: the encryption method and progress, and the protectors of the key (libbde,
//! "BitLocker Drive Encryption (BDE) format", sections "FVE metadata block header", "FVE metadata header" and "FVE metadata
//! validation").
//!
//! ```text
//! block     0 "-FVE-FS-" 8 │  8 size, in units of 16 (Vista: bytes) 2 │ 10 version 2 │ 12 state 2 │ 14 next state 2 │
//!          16 state offset 8 │ 24 size of the conversion log 4 │ 28 sectors of the volume's header 4 │ 32 its three places 8 each │
//!          56 place of the header (Vista: the NTFS boot sector's place of the MFT mirror) 8
//! data set 64 size 4 │ 68 1 4 │ 72 its header's size, 48 4 │ 76 size 4 │ 80 GUID of the volume 16 │ 96 next nonce counter 4 │
//!         100 method 2 │ 102 the same or 0 2 │ 104 time 8 │ 112 datums
//! after the block: 0 size 2 │ 2 version 2 │ 4 CRC-32 of the block 4 │ 8 its SHA-256, a sealed key
//! ```

use std::fmt;

use super::datum::{Datum, kind, role};
use super::guid::Guid;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::in_place::Towards;
use crate::little_endian::{u16_at, u32_at, u64_at};
use crate::store::Store;

/// The signature of a block, and of a volume's first sector at offset 3, except on To Go, whose discovery volume is a FAT.
pub(super) const SIGNATURE: &[u8; 8] = b"-FVE-FS-";

/// Where the copies of a block are in their volume, in bytes, as the block claims. It must have 56 bytes.
pub(super) fn claimed_offsets(block: &[u8]) -> [u64; COPIES] {
    [32, 40, 48].map(|at| u64_at(block, at))
}

/// The size of the area for one copy since Windows 7, in bytes.
pub(super) const AREA: u64 = 64 << 10;
/// The same for Vista, before rounding to clusters.
const VISTA_AREA: u64 = 16 << 10;
/// The size of the area for one copy of this version, in bytes, before rounding to clusters.
pub(super) fn area(version: u16) -> u64 {
    if version == VISTA { VISTA_AREA } else { AREA }
}

/// The number of copies of the block.
pub(super) const COPIES: usize = 3;

/// The offsets of the data set and its datums.
const DATA_SET: usize = 64;
const DATUMS: usize = DATA_SET + 48;
/// The size of the part before the sealed hash, after the block, in bytes.
const VALIDATION: usize = 8;
/// The block is padded to a multiple of this, in bytes.
const UNIT: usize = 16;

/// Versions of the block.
pub(super) const VISTA: u16 = 1;
pub(super) const WINDOWS_7: u16 = 2;

/// The state of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(pub u16);

impl State {
    pub const DECRYPTED: Self = Self(1);
    /// Partly converted, with a log that says which sectors are encrypted.
    pub const DIRTY: Self = Self(2);
    pub const PAUSED: Self = Self(3);
    pub const ENCRYPTED: Self = Self(4);
    pub const UNDER_WAY: Self = Self(5);

    /// Its meaning, if the state after the conversion is `next`.
    pub fn towards(self, next: Self) -> BitLockerState {
        let towards = match next {
            Self::ENCRYPTED => Some(Towards::Encrypted),
            Self::DECRYPTED => Some(Towards::Plain),
            _ => None,
        };
        match self {
            Self::DECRYPTED if next == self => BitLockerState::Decrypted,
            Self::ENCRYPTED if next == self => BitLockerState::Encrypted,
            Self::DIRTY => BitLockerState::Interrupted(towards),
            Self::PAUSED => BitLockerState::Paused(towards),
            Self::DECRYPTED | Self::ENCRYPTED | Self::UNDER_WAY => BitLockerState::InProgress(towards),
            Self(other) => BitLockerState::Unknown(other),
        }
    }
}

/// How much of a BitLocker volume is encrypted, and the direction of a conversion, if the metadata give a valid one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BitLockerState {
    /// Nothing is encrypted.
    Decrypted,
    /// Everything is encrypted.
    Encrypted,
    /// A conversion is in progress, and continues while Windows runs.
    InProgress(Option<Towards>),
    /// A conversion was paused.
    Paused(Option<Towards>),
    /// A conversion was interrupted, and one zone may contain sectors of both kinds.
    Interrupted(Option<Towards>),
    /// An unknown state with this number.
    Unknown(u16),
}

impl fmt::Display for BitLockerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (towards, how) = match self {
            Self::Decrypted => return f.write_str("decrypted"),
            Self::Encrypted => return f.write_str("encrypted"),
            Self::Unknown(number) => return write!(f, "unknown ({number})"),
            Self::InProgress(towards) => (towards, "in progress"),
            Self::Paused(towards) => (towards, "paused"),
            Self::Interrupted(towards) => (towards, "interrupted"),
        };
        let towards = match towards {
            Some(Towards::Encrypted) => "encryption",
            Some(Towards::Plain) => "decryption",
            None => "conversion",
        };
        write!(f, "{towards} {how}")
    }
}

/// A block as stored, without its validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    pub version: u16,
    pub state: State,
    pub next_state: State,
    /// How far the data are encrypted, in bytes: their size once all are.
    pub state_offset: u64,
    /// The size of the conversion log, in bytes.
    pub log_size: u32,
    /// The number of relocated sectors of the volume's beginning.
    pub header_sectors: u32,
    /// The offsets of the copies, in bytes.
    pub copies: [u64; COPIES],
    /// The offset of the volume's relocated beginning, in bytes. On Vista: the cluster of the MFT mirror, as in an NTFS boot
    /// sector.
    pub header_place: u64,
    pub volume: Guid,
    /// The counter for the nonce of the next sealed box.
    pub next_nonce: u32,
    pub method: u16,
    /// The method's second field: the same, or 0.
    pub method_again: u16,
    /// When the volume was created, as a Windows file time.
    pub created: u64,
    pub datums: Vec<Datum>,
}

impl Metadata {
    /// Reads a block.
    ///
    /// # Errors
    /// `NotThisFormat` without its signature; `Unsupported` for another version; `Malformed`.
    pub fn parse(bytes: &[u8], offset: u64) -> Result<Self> {
        let malformed = |field, at: usize, what: String| -> Error {
            ErrorKind::Malformed { field, offset: offset + at as u64, what }.into()
        };
        if !bytes.starts_with(SIGNATURE) || bytes.len() < DATUMS {
            let what = format!("no metadata at byte {offset}");
            return Err(ErrorKind::NotThisFormat(what).into());
        }
        let version = u16_at(bytes, 10);
        if !matches!(version, VISTA | WINDOWS_7) {
            return Err(Error::unsupported(format!("version {version} of the metadata")));
        }
        let size = block_size(bytes);
        let data_set = u32_at(bytes, DATA_SET) as usize;
        let header_size = u32_at(bytes, DATA_SET + 8) as usize;
        if header_size != DATUMS - DATA_SET {
            return Err(malformed("size of the data set's header", DATA_SET + 8, format!("{header_size} bytes")));
        }
        let end = DATA_SET.checked_add(data_set).filter(|end| *end <= size && *end <= bytes.len() && *end >= DATUMS);
        let end = end.ok_or_else(|| {
            malformed("size of the data set", DATA_SET, format!("{data_set} bytes, in a block of {size}"))
        })?;
        Ok(Self {
            version,
            state: State(u16_at(bytes, 12)),
            next_state: State(u16_at(bytes, 14)),
            state_offset: u64_at(bytes, 16),
            log_size: u32_at(bytes, 24),
            header_sectors: u32_at(bytes, 28),
            copies: claimed_offsets(bytes),
            header_place: u64_at(bytes, 56),
            volume: Guid::at(bytes, 80),
            next_nonce: u32_at(bytes, 96),
            method: u16_at(bytes, 100),
            method_again: u16_at(bytes, 102),
            created: u64_at(bytes, 104),
            datums: Datum::all(&bytes[DATUMS..end], offset + DATUMS as u64)?,
        })
    }

    /// The block as it is stored, padded to its unit.
    ///
    /// # Errors
    /// `Misuse` if it does not fit its area together with its validation.
    pub fn block(&self) -> Result<Vec<u8>> {
        let mut datums = Vec::new();
        self.datums.iter().for_each(|datum| datum.put(&mut datums));
        let data_set = (DATUMS - DATA_SET + datums.len()) as u32;
        let size = (DATUMS + datums.len()).next_multiple_of(UNIT);
        let room = area(self.version);
        // The sealed hash is a datum of 80 bytes.
        if (size + VALIDATION + 80) as u64 > room {
            return Err(Error::misuse(format!("the metadata would need {size} bytes, more than fit"))
                .hint("Remove protectors that are no longer needed."));
        }
        let mut block = Vec::with_capacity(size);
        block.extend(SIGNATURE);
        block.extend(if self.version == VISTA { size as u16 } else { (size / UNIT) as u16 }.to_le_bytes());
        for field in [self.version, self.state.0, self.next_state.0] {
            block.extend(field.to_le_bytes());
        }
        block.extend(self.state_offset.to_le_bytes());
        block.extend(self.log_size.to_le_bytes());
        block.extend(self.header_sectors.to_le_bytes());
        for place in self.copies.into_iter().chain([self.header_place]) {
            block.extend(place.to_le_bytes());
        }
        for field in [data_set, 1, (DATUMS - DATA_SET) as u32, data_set] {
            block.extend(field.to_le_bytes());
        }
        block.extend(self.volume.0);
        block.extend(self.next_nonce.to_le_bytes());
        block.extend(self.method.to_le_bytes());
        block.extend(self.method_again.to_le_bytes());
        block.extend(self.created.to_le_bytes());
        block.extend(datums);
        block.resize(size, 0);
        Ok(block)
    }

    /// Returns the datums of protectors, with their indices among all datums.
    pub fn protectors(&self) -> impl Iterator<Item = (usize, &Datum)> {
        self.datums.iter().enumerate().filter(|(_, d)| d.kind == kind::PROTECTOR && d.role == role::PROTECTOR)
    }

    /// Returns the first datum of a role and type.
    pub fn datum(&self, role: u16, kind: u16) -> Option<&Datum> {
        self.datums.iter().find(|datum| (datum.role, datum.kind) == (role, kind))
    }

    /// The size of a sector, in bytes, which is there since Windows 8.
    pub fn sector_size(&self) -> Option<u32> {
        const SECTOR_SIZE: usize = 44;
        let header = &self.datum(role::HEADER, kind::HEADER_PLACE)?.value;
        let said = header.get(SECTOR_SIZE..)?.first_chunk()?;
        Some(u32::from_le_bytes(*said)).filter(|size| matches!(size, 512 | 4096))
    }

    /// The label: host, volume and date.
    pub fn label(&self) -> Option<String> {
        self.datum(role::LABEL, kind::TEXT).map(Datum::text)
    }
}

/// The size of the block at the beginning of `bytes`, in bytes: the part that CRC and hash cover.
fn block_size(bytes: &[u8]) -> usize {
    let size = usize::from(u16_at(bytes, 8));
    if u16_at(bytes, 10) == VISTA { size } else { size * UNIT }
}

/// The validation after a block: whether it is intact, and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Validation {
    pub version: u16,
    /// The SHA-256 of the block: a sealed box under the volume master key, or a clear key if nothing is encrypted.
    pub hash: Option<Datum>,
}

impl Validation {
    /// Returns it as stored after `block`.
    pub fn bytes(&self, block: &[u8]) -> Vec<u8> {
        let room = area(u16_at(block, 10));
        let mut bytes = ((room - block.len() as u64) as u16).to_le_bytes().to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(crc32fast::hash(block).to_le_bytes());
        if let Some(hash) = &self.hash {
            hash.put(&mut bytes);
        }
        bytes
    }
}

/// One copy of the metadata.
pub(super) struct Copy {
    /// Its offset, in bytes.
    pub at: u64,
    /// The block, whose CRC matches.
    pub block: Vec<u8>,
    pub metadata: Metadata,
    pub validation: Validation,
}

impl Copy {
    /// Whether nothing can prove who wrote it: Vista has no hash.
    pub fn seals_nothing(&self) -> bool {
        self.metadata.version == VISTA && self.validation.hash.is_none()
    }

    /// Reads the copy at `at`.
    ///
    /// # Errors
    /// Those of [`Metadata::parse`]; `Malformed` if it is truncated, its CRC is wrong, or it claims another offset.
    pub fn read(store: &dyn Store, at: u64) -> Result<Self> {
        let malformed = |field, offset, what: String| -> Error { ErrorKind::Malformed { field, offset, what }.into() };
        let there = store.len().saturating_sub(at).min(AREA) as usize;
        if there == 0 {
            return Err(malformed("positions of the metadata", 32, format!("byte {at} is past the end")));
        }
        let mut bytes = vec![0; there];
        store.read_at(at, &mut bytes)?;
        // A truncated block is recognised by its signature.
        let metadata = Metadata::parse(&bytes, at)?;
        let size = block_size(&bytes);
        let (Some(block), Some(behind)) = (bytes.get(..size), bytes.get(size..).filter(|b| b.len() >= VALIDATION))
        else {
            return Err(malformed(
                "size of the metadata",
                at + 8,
                format!("{size} bytes, but only {there} are present"),
            ));
        };
        let crc = u32_at(behind, 4);
        if crc != crc32fast::hash(block) {
            return Err(malformed("CRC of the metadata", at + size as u64 + 4, format!("{crc:#010x} is wrong")));
        }
        if !metadata.copies.contains(&at) {
            return Err(malformed("positions of the metadata", at + 32, "this copy is not among them".to_owned()));
        }
        // An invalid hash is reported when it is needed.
        let hash = Datum::first(&behind[VALIDATION..]);
        let validation = Validation { version: u16_at(behind, 2), hash };
        Ok(Self { at, block: block.to_vec(), metadata, validation })
    }
}
