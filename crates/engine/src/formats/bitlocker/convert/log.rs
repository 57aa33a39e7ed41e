//! The log of a conversion, which shows after a crash which sectors of a zone are already encrypted.
//!
//! Sectors are recognised by their first bytes. The log stores those of the ciphertext in both directions, so that it never
//! contains plaintext. A disk writes sectors of 512 bytes whole or not at all; a larger sector of the volume may be torn. Only this
//! program uses the log. It is sealed with a key derived from the volume's, and lies after the block in the area of the last
//! metadata copy, where other programs have zeros.
//!
//! ```text
//!    0 "claviger convert" 16 │ 16 GUID of the volume 16 │ 32 the metadata's size of a log otherwise 4 │ 36 seal of these 32
//! 4096 where the zone begins 8 │ its length 8 │ seal of these and the marks 32 │ zeros 16 │ a mark of 8 for each sector of the disk
//! ```

use std::ops::Range;
use std::sync::Arc;

use claviger_crypto::{Secret, SectorCipher, hash};

use crate::error::{Error, Result};
use crate::formats::bitlocker::layout::{Part, ZoneState};
use crate::formats::bitlocker::metadata::{COPIES, Metadata, VISTA, area};
use crate::little_endian::{u32_at, u64_at};
use crate::store::{SMALLEST_SECTOR, Store};

/// How many bytes at the beginning of a copy's area are left to the metadata during a conversion.
const BLOCK: u64 = 16 << 10;
const VISTA_BLOCK: u64 = 8 << 10;

const MAGIC: &[u8; 16] = b"claviger convert";
const ANNOUNCEMENT: usize = 36;
const SEAL: usize = 32;

/// The offsets of a zone's record and of its marks.
const RECORD: usize = 4096;
const MARKS: usize = RECORD + 64;
/// The size of a mark, in bytes. Marks only tell sectors of one zone apart, and nobody can choose them.
const MARK: usize = 8;

/// The largest zone, in bytes.
const ZONE: u64 = 2 << 20;

/// How many bytes of a copy's area belong to the metadata during a conversion.
pub(in crate::formats::bitlocker) fn block_room(metadata: &Metadata) -> u64 {
    if metadata.version == VISTA { VISTA_BLOCK } else { BLOCK }
}

/// Checks that the metadata leave space for a log.
///
/// # Errors
/// `Misuse`.
pub(super) fn has_room(metadata: &Metadata) -> Result<()> {
    // A sector is larger than the validation of a block.
    match metadata.block()?.len() as u64 + SMALLEST_SECTOR <= block_room(metadata) {
        true => Ok(()),
        false => Err(Error::misuse("the metadata leave no room for the conversion log")
            .hint("Nothing was changed. Remove protectors that are no longer needed.")),
    }
}

/// The place of the log.
pub(super) struct Log {
    at: u64,
    len: u64,
    volume: [u8; 16],
    key: Secret,
}

/// The zone being rewritten.
pub(super) struct Record {
    pub zone: Range<u64>,
    marks: Vec<u8>,
}

impl Log {
    /// The log of a volume with this key.
    pub fn of(metadata: &Metadata, fvek: &Secret) -> Self {
        let (room, area) = (block_room(metadata), area(metadata.version));
        Self {
            at: metadata.copies[COPIES - 1].saturating_add(room),
            len: area - room,
            volume: metadata.volume.0,
            key: Secret::copy_from(fvek),
        }
    }

    /// The size of a zone, in bytes: the largest possible, or the requested one, for sectors of this size.
    ///
    /// # Errors
    /// `Misuse` if it is too large or not a multiple of the sector size.
    pub fn zone_of(&self, asked: Option<u64>, sector: u64) -> Result<u64> {
        let largest = self.largest_zone();
        let zone = asked.unwrap_or(largest);
        match zone > 0 && zone <= largest && zone.is_multiple_of(sector) {
            true => Ok(zone),
            false => {
                Err(Error::misuse(format!("the zone must be a multiple of {sector} bytes up to {largest}, not {zone}")))
            }
        }
    }

    /// The largest zone for whose marks there is space, in bytes: a power of two.
    fn largest_zone(&self) -> u64 {
        let sectors = (self.len - MARKS as u64) / MARK as u64;
        ZONE.min((sectors * SMALLEST_SECTOR + 1).next_power_of_two() / 2)
    }

    /// Writes an empty log, marked as this program's. It preserves the log size from the metadata.
    ///
    /// # Errors
    /// `Io`.
    pub fn announce(&self, store: &dyn Store, log_size: u32) -> Result<()> {
        let mut bytes = vec![0; self.len as usize];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..32].copy_from_slice(&self.volume);
        bytes[32..36].copy_from_slice(&log_size.to_le_bytes());
        let seal = self.seal(&bytes[..ANNOUNCEMENT]);
        bytes[ANNOUNCEMENT..][..SEAL].copy_from_slice(&seal);
        self.put(store, 0, &mut bytes)
    }

    /// Returns the preserved log size of the metadata, if there is a log of this program.
    ///
    /// # Errors
    /// `Io`.
    pub fn announced(&self, store: &dyn Store) -> Result<Option<u32>> {
        if self.at.checked_add(self.len).is_none_or(|end| end > store.len()) {
            return Ok(None);
        }
        let mut bytes = [0; ANNOUNCEMENT + SEAL];
        store.read_at(self.at, &mut bytes)?;
        let ours = bytes.starts_with(MAGIC)
            && bytes[16..32] == self.volume
            && self.seal(&bytes[..ANNOUNCEMENT]).same_as(&bytes[ANNOUNCEMENT..]);
        Ok(ours.then(|| u32_at(&bytes, 32)))
    }

    /// Writes the marks of a zone, `ciphertext`, and flushes them.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(&self, store: &dyn Store, zone: &Range<u64>, ciphertext: &[u8]) -> Result<()> {
        let marks = ciphertext.chunks(SMALLEST_SECTOR as usize).flat_map(|sector| &sector[..MARK]);
        self.rewrite(store, &Record { zone: zone.clone(), marks: marks.copied().collect() })
    }

    /// Writes a record that was read once more: it may have come from a cache and not be on the disk yet. Its contents do not
    /// change.
    ///
    /// # Errors
    /// `Io`.
    pub fn rewrite(&self, store: &dyn Store, record: &Record) -> Result<()> {
        let mut bytes = [record.zone.start, record.zone.end - record.zone.start].map(u64::to_le_bytes).concat();
        let seal = self.seal(&[&self.volume[..], &bytes, &record.marks].concat());
        bytes.extend(&seal[..]);
        bytes.resize(MARKS - RECORD, 0);
        bytes.extend(&record.marks);
        if (RECORD + bytes.len()) as u64 > self.len {
            return Err(Error::misuse("the zone is too large for its log"));
        }
        self.put(store, RECORD, &mut bytes)
    }

    /// Returns the last completely written record.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(&self, store: &dyn Store) -> Result<Option<Record>> {
        let mut bytes = vec![0; self.len as usize];
        store.read_at(self.at, &mut bytes)?;
        let (start, len) = (u64_at(&bytes, RECORD), u64_at(&bytes, RECORD + 8));
        let end = start
            .checked_add(len)
            .filter(|_| len > 0 && len <= self.largest_zone() && len.is_multiple_of(SMALLEST_SECTOR));
        let Some(end) = end else { return Ok(None) };
        let marks = bytes[MARKS..][..(len / SMALLEST_SECTOR) as usize * MARK].to_vec();
        let seal = self.seal(&[&self.volume[..], &bytes[RECORD..][..16], &marks].concat());
        let whole = seal.same_as(&bytes[RECORD + 16..][..SEAL]);
        Ok(whole.then_some(Record { zone: start..end, marks }))
    }

    fn put(&self, store: &dyn Store, at: usize, bytes: &mut [u8]) -> Result<()> {
        store.write_clobbering(self.at + at as u64, bytes)?;
        Ok(store.flush()?)
    }

    /// HMAC-SHA-256 with the volume's key, computed as one iteration of PBKDF2.
    fn seal(&self, bytes: &[u8]) -> Secret {
        let mut seal = Secret::zeroed(SEAL);
        hash::SHA256.pbkdf2(&self.key, bytes, 1, &mut seal, &|| true);
        seal
    }
}

impl Record {
    /// Returns the state of the zone's sectors of size `sector`.
    ///
    /// # Errors
    /// `Io`.
    pub fn parts(&self, store: &dyn Store, sector: u64, cipher: &Arc<dyn SectorCipher>) -> Result<Vec<Part>> {
        let mut stored = vec![0; (self.zone.end - self.zone.start) as usize];
        store.read_at(self.zone.start, &mut stored)?;
        let encrypted: Vec<bool> = stored
            .chunks(SMALLEST_SECTOR as usize)
            .zip(self.marks.chunks(MARK))
            .map(|(bytes, mark)| bytes.starts_with(mark))
            .collect();
        let mut parts: Vec<Part> = Vec::new();
        let sectors = stored.chunks(sector as usize).zip(encrypted.chunks((sector / SMALLEST_SECTOR) as usize));
        for (number, (bytes, encrypted)) in sectors.enumerate() {
            let at = self.zone.start + number as u64 * sector;
            let found = match (encrypted.contains(&true), encrypted.contains(&false)) {
                (true, false) => ZoneState::Encrypted,
                (false, _) => ZoneState::Plain,
                (true, true) => ZoneState::Torn(mend(bytes, encrypted, &**cipher, at / sector).into()),
            };
            match parts.last_mut().filter(|last| last.found == found && !matches!(found, ZoneState::Torn(_))) {
                Some(last) => last.at.end += sector,
                None => parts.push(Part { at: at..at + sector, found }),
            }
        }
        Ok(parts)
    }
}

/// Returns the plaintext of a partly encrypted sector. In all BitLocker modes except those with the diffuser, the ciphertext of a
/// part depends only on what precedes it.
fn mend(stored: &[u8], encrypted: &[bool], cipher: &dyn SectorCipher, number: u64) -> Vec<u8> {
    let (mut ciphertext, mut plain) = (stored.to_vec(), stored.to_vec());
    for (i, encrypted) in encrypted.iter().enumerate() {
        let part = i * SMALLEST_SECTOR as usize..(i + 1) * SMALLEST_SECTOR as usize;
        let (mut other, to) = match encrypted {
            true => (ciphertext.clone(), &mut plain),
            false => (plain.clone(), &mut ciphertext),
        };
        match encrypted {
            true => cipher.decrypt(number, &mut other),
            false => cipher.encrypt(number, &mut other),
        }
        to[part.clone()].copy_from_slice(&other[part]);
    }
    plain
}
