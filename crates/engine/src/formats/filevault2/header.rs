//! The header of a physical volume, in its first sector, with a copy in its last (libfvde, "FileVault Drive Encryption (FVDE)",
//! section "Volume header"; cryptsetup 2.6.1, lib/fvault2/fvault2.c, `struct volume_header`). All numbers are little-endian.
//!
//! ```text
//!   0  4  checksum of what follows byte 8       104  8  first metadata block, three more follow
//!   4  4  its seed, FFFFFFFF                    168  4  bytes of key data, 16
//!   8  2  version, 1                            172  4  cipher of the metadata, 2: AES-XTS
//!  10  2  type of the block, 10                 176 16  key data
//!  64  8  bytes of the physical volume          304 16  UUID of the physical volume
//!  88  2  "CS"                                  320 16  UUID of the logical volume group
//!  96  4  bytes of a block
//! ```

use crate::crc32c::crc32c;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// The size of the header, in bytes.
pub(super) const SIZE: usize = 512;

/// The size of the identifiers, in bytes.
const UUID: usize = 16;

/// The offset of the signature and its bytes. They include the checksum type, since two bytes alone prove little.
const SIGNATURE: usize = 88;
const MARK: &[u8] = b"CS\x01\0\0\0";

/// The number of metadata places in the header that are known to be used.
const LABELS: usize = 4;

/// The offsets of fields, in bytes.
mod at {
    pub const SEED: usize = 4;
    pub const SUMMED: usize = 8;
    pub const VERSION: usize = 8;
    pub const VOLUME_SIZE: usize = 64;
    pub const BLOCK_SIZE: usize = 96;
    pub const LABELS: usize = 104;
    pub const KEY_SIZE: usize = 168;
    pub const KEY: usize = 176;
    pub const UUID: usize = 304;
    pub const GROUP: usize = 320;
}

/// A header that has been read.
#[derive(Clone, Debug)]
pub(super) struct VolumeHeader {
    /// Where it was read, in bytes of the store.
    pub at: u64,
    /// The size of the physical volume according to the header, in bytes.
    pub volume_size: u64,
    /// The size of a block, in bytes: the unit of other places.
    pub block_size: u64,
    /// The blocks of the metadata's labels.
    pub labels: [u64; LABELS],
    /// The key of the metadata: not a secret, since it is in this header.
    pub metadata_key: [u8; UUID],
    /// The UUID of the physical volume, which is also the second half of that key.
    pub uuid: [u8; UUID],
    /// The UUID of the group to which the volume belongs.
    pub group: [u8; UUID],
}

impl VolumeHeader {
    /// Reads the header in front, or its copy at the end if that is damaged.
    ///
    /// # Errors
    /// `NotThisFormat`, `Malformed`, `Unsupported`, `Io`.
    pub fn read(store: &dyn Store) -> Result<Self> {
        let in_front = Self::read_at(store, 0);
        match in_front {
            Err(Error { kind: ErrorKind::Malformed { .. } | ErrorKind::NotThisFormat(_), .. }) => {
                copy_at_the_end(store)?.map_or(in_front, Ok)
            }
            other => other,
        }
    }

    fn read_at(store: &dyn Store, place: u64) -> Result<Self> {
        let mut bytes = [0; SIZE];
        if store.len().saturating_sub(place) < SIZE as u64 {
            return Err(ErrorKind::NotThisFormat(format!("{} bytes are too few", store.len())).into());
        }
        store.read_at(place, &mut bytes)?;
        Self::parse(&bytes, place)
    }

    /// Parses a header that was read at the offset `place`.
    ///
    /// # Errors
    /// Those of [`VolumeHeader::read`].
    fn parse(bytes: &[u8; SIZE], place: u64) -> Result<Self> {
        if !bytes[SIGNATURE..].starts_with(&MARK[..2]) {
            return Err(ErrorKind::NotThisFormat("it has no Core Storage signature".into()).into());
        }
        let malformed =
            |field, at: usize, what: String| ErrorKind::Malformed { field, offset: place + at as u64, what };
        if !checksum_matches(bytes) {
            let what = "the checksum of the volume header is wrong".to_owned();
            return Err(malformed("checksum", 0, what).into());
        }
        let version = number(bytes, at::VERSION, 2);
        if version != 1 {
            return Err(Error::unsupported(format!("Core Storage version {version}")));
        }
        let key_size = number(bytes, at::KEY_SIZE, 4);
        if key_size != UUID as u64 {
            return Err(Error::unsupported(format!("metadata encrypted with a {key_size}-byte key")));
        }
        let block_size = number(bytes, at::BLOCK_SIZE, 4);
        if block_size == 0 {
            return Err(malformed("block size", at::BLOCK_SIZE, "it is 0".into()).into());
        }
        Ok(Self {
            at: place,
            volume_size: number(bytes, at::VOLUME_SIZE, 8),
            block_size,
            labels: std::array::from_fn(|i| number(bytes, at::LABELS + 8 * i, 8)),
            metadata_key: array(bytes, at::KEY),
            uuid: array(bytes, at::UUID),
            group: array(bytes, at::GROUP),
        })
    }

    /// Where a block begins, in bytes of the store.
    pub fn byte_of(&self, block: u64) -> Option<u64> {
        block.checked_mul(self.block_size)
    }
}

/// Returns the copy in the last sector. It is valid only if it claims to belong there: the last sector of a disk may be a
/// partition's.
fn copy_at_the_end(store: &dyn Store) -> Result<Option<VolumeHeader>> {
    let Some(last) = store.len().checked_sub(SIZE as u64) else { return Ok(None) };
    match VolumeHeader::read_at(store, last) {
        Err(Error { kind: ErrorKind::Io(error), .. }) => Err(error.into()),
        found => Ok(found.ok().filter(|header| header.volume_size == store.len())),
    }
}

/// Returns the evidence for a physical volume of Core Storage, if there is any.
///
/// # Errors
/// `Io`.
pub(super) fn mark(store: &dyn Store) -> Result<Option<&'static str>> {
    if store.len() < SIZE as u64 {
        return Ok(None);
    }
    let mut bytes = [0; SIZE];
    store.read_at(0, &mut bytes)?;
    if bytes[SIGNATURE..].starts_with(&MARK[..2]) && checksum_matches(&bytes) {
        return Ok(Some("it begins with a Core Storage volume header"));
    }
    if bytes[SIGNATURE..].starts_with(MARK) {
        return Ok(Some("it has the Core Storage signature, but its header checksum is wrong"));
    }
    Ok(copy_at_the_end(store)?.map(|_| "it ends with a Core Storage volume header, but does not begin with one"))
}

/// Whether a block matches the checksum in its first bytes.
pub(super) fn checksum_matches(block: &[u8]) -> bool {
    let seed = number(block, at::SEED, 4) as u32;
    seed == u32::MAX && u64::from(crc32c(seed, &block[at::SUMMED..])) == number(block, 0, 4)
}

/// Returns a little-endian number of `len` bytes, at most 8.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns `N` bytes.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}
