//! Builds the layout of a volume from its state.
//!
//! The offset on the disk decides whether a sector is encrypted, and its tweak. This also applies to the relocated first sectors of
//! the volume, whose own place is taken by the boot sector and noise. In place of the metadata the plaintext reads as zeros.

use std::ops::Range;
use std::sync::Arc;

use claviger_crypto::SectorCipher;

use super::boot::{Boot, Kind};
use super::datum::{kind, role};
use super::metadata::{Metadata, State, VISTA, area};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::detect;
use crate::filesystems::ntfs::boot_sector;
use crate::little_endian::u64_at;
use crate::store::{SMALLEST_SECTOR, Store};
use crate::volume::{Layout, Payload, Segment};

/// The places of a volume's parts, in bytes of its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// The size of the volume: whole sectors.
    pub size: u64,
    /// The size of a sector.
    pub sector: u64,
    /// The size of the volume's beginning that is relocated. On Vista's volumes it stays in place, in the clear.
    pub header: u64,
    /// The offset to which it is relocated.
    pub header_place: u64,
    /// The other ranges that are not part of the plaintext, in order, with their names: they read as zeros.
    pub reserved: Vec<(Range<u64>, &'static str)>,
    /// The watermark up to which the data are encrypted.
    pub encrypted: u64,
    /// Parts about which more is known than the watermark says, in order.
    pub apart: Vec<Part>,
    /// Whether Vista made the volume: the boot sector and the 15 sectors after it are in the clear.
    pub vista: bool,
}

/// Whole sectors on the disk, in bytes of the store, and their state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub at: Range<u64>,
    pub found: ZoneState,
}

/// The state of sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ZoneState {
    Encrypted,
    Plain,
    /// A partly encrypted sector, with its plaintext.
    Torn(Arc<[u8]>),
}

/// The largest relocated beginning, in bytes. Windows' discovery volume takes 5 MiB.
const LONGEST_HEADER: u64 = 64 << 20;

/// The number of plain sectors at the beginning of Vista's volumes.
const VISTA_CLEAR: u64 = 16;

/// How many bytes of a volume's beginning are checked for a file system.
const HEADER_LOOK: u64 = 8192;

impl Places {
    /// Reads the places from the boot sector and the metadata.
    ///
    /// # Errors
    /// `Malformed` if places overlap, are outside the volume or are not whole sectors; `Unsupported` for another state or sector
    /// size.
    pub fn of(boot: &Boot, metadata: &Metadata, store_len: u64) -> Result<Self> {
        let sector = u64::from(boot.sector_size);
        if !matches!(sector, 512 | 1024 | 2048 | 4096) {
            return Err(malformed("sector size", 11, format!("{sector} bytes")));
        }
        let vista = boot.kind == Kind::Vista;
        // The boot sector is not sealed.
        if vista != (metadata.version == VISTA) {
            let what = format!("{}, but the first sector is of {}", metadata.version, boot.kind.name());
            return Err(malformed("version of the metadata", 10, what));
        }
        if let Some(recorded) = metadata.sector_size().filter(|recorded| *recorded != boot.sector_size) {
            let what = format!("{sector} bytes according to the first sector, {recorded} according to the metadata");
            return Err(malformed("sector size", 11, what));
        }
        let whole = store_len / sector * sector;
        let (size, encrypted) = match (metadata.state, metadata.next_state) {
            // Other programs treat everything as encrypted if it is 0.
            (State::ENCRYPTED, State::ENCRYPTED) if metadata.state_offset == 0 => (whole, whole),
            // The partition may extend beyond the end of the volume.
            (State::ENCRYPTED, State::ENCRYPTED) => (metadata.state_offset, metadata.state_offset),
            (State::DECRYPTED, State::DECRYPTED) => (whole, 0),
            (State::DIRTY | State::PAUSED | State::UNDER_WAY | State::ENCRYPTED | State::DECRYPTED, _) => {
                (whole, metadata.state_offset)
            }
            (state, next) => return Err(Error::unsupported(format!("a volume that is {}", state.towards(next)))),
        };
        if encrypted > size || size == 0 || !encrypted.is_multiple_of(sector) {
            return Err(malformed("state offset", 16, format!("{encrypted}, of a volume of {size} bytes")));
        }
        let (reserved, apart) = (Vec::new(), Vec::new());
        let mut places = Self { size, sector, header: 0, header_place: 0, reserved, encrypted, apart, vista };
        let area = if vista { area(VISTA).next_multiple_of(boot.cluster) } else { area(metadata.version) };
        for at in metadata.copies {
            places.reserve(at, area, "the metadata")?;
        }
        if vista {
            places.header = VISTA_CLEAR * sector;
        } else {
            let (place, len) = header(metadata, sector)?;
            (places.header, places.header_place) = (len, place);
            places.reserve(place, len, "the position of the volume's header")?;
        }
        if metadata.state == State::DIRTY && metadata.log_size > 0 {
            places.reserve(encrypted, metadata.log_size.into(), "the log of the conversion")?;
        }
        places.check()?;
        Ok(places)
    }

    /// Adds an area that is not part of the plaintext.
    ///
    /// # Errors
    /// `Malformed` if it is outside the volume.
    pub fn reserve(&mut self, at: u64, len: u64, what: &'static str) -> Result<()> {
        let end = at.checked_add(len).filter(|end| *end <= self.size && len > 0);
        let whole = at.is_multiple_of(self.sector) && len.is_multiple_of(self.sector);
        let end = end.filter(|_| whole);
        let end = end.ok_or_else(|| {
            malformed("places", 32, format!("{what}: {len} bytes at {at}, in a volume of {} bytes", self.size))
        })?;
        self.reserved.push((at..end, what));
        self.reserved.sort_by_key(|(range, _)| range.start);
        Ok(())
    }

    /// Checks that no areas overlap.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn check(&self) -> Result<()> {
        let mut before = (0..self.header, "the beginning of the volume");
        for part in &self.reserved {
            if part.0.start < before.0.end {
                let what = format!("{} at {} overlaps {}", part.1, part.0.start, before.1);
                return Err(malformed("places", 32, what));
            }
            before = part.clone();
        }
        Ok(())
    }
}

/// Returns the offset and size of the relocated beginning.
fn header(metadata: &Metadata, sector: u64) -> Result<(u64, u64)> {
    let datum = metadata.datum(role::HEADER, kind::HEADER_PLACE).filter(|datum| datum.value.len() >= 16);
    let (place, len) = match datum {
        Some(datum) => (u64_at(&datum.value, 0), u64_at(&datum.value, 8)),
        None => (metadata.header_place, u64::from(metadata.header_sectors) * sector),
    };
    // The size is there in bytes and in sectors. The sector size comes from the first sector, which is not sealed.
    if metadata.header_sectors > 0 && u64::from(metadata.header_sectors) * sector != len {
        let what = format!("{len} bytes, but {} sectors of {sector} bytes", metadata.header_sectors);
        return Err(malformed("size of the volume's header", 28, what));
    }
    match len == 0 || len > LONGEST_HEADER || !len.is_multiple_of(sector) {
        true => Err(malformed("size of the volume's header", 28, format!("{len} bytes"))),
        false => Ok((place, len)),
    }
}

impl Places {
    /// The range of the plaintext that is stored in this part of the data.
    pub fn plaintext_of(&self, stored: &Range<u64>) -> Range<u64> {
        let moved = self.header_place..self.header_place + self.header;
        let shift = if moved.contains(&stored.start) { self.header_place } else { 0 };
        stored.start - shift..stored.end - shift
    }

    /// Returns whether the beginning shows a file system as stored, or after decryption; `None` if neither. Vista's first sectors
    /// are in the clear, so file records are checked there.
    ///
    /// # Errors
    /// `Io`.
    pub fn beginning(&self, store: &dyn Store, cipher: &Arc<dyn SectorCipher>) -> Result<Option<ZoneState>> {
        let Some(range) = self.telling(store)?.filter(|range| range.end <= store.len()) else { return Ok(None) };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        store.read_at(range.start, &mut bytes)?;
        let is_known = |bytes: &[u8]| match self.vista {
            true => bytes.starts_with(b"FILE"),
            false => detect::kind(bytes).is_some(),
        };
        if is_known(&bytes) {
            return Ok(Some(ZoneState::Plain));
        }
        cipher.decrypt(range.start / self.sector, &mut bytes);
        Ok(is_known(&bytes).then_some(ZoneState::Encrypted))
    }

    /// Returns where to look for a file system.
    fn telling(&self, store: &dyn Store) -> Result<Option<Range<u64>>> {
        if !self.vista {
            return Ok(Some(self.header_place..self.header_place + self.header.min(HEADER_LOOK)));
        }
        let mut boot = [0; SMALLEST_SECTOR as usize];
        store.read_at(0, &mut boot)?;
        let ntfs = boot_sector::NtfsBootSector::parse(&boot).ok();
        Ok(ntfs.and_then(|ntfs| Some(ntfs.mft..ntfs.mft.checked_add(self.sector)?)))
    }

    /// The layout.
    ///
    /// # Errors
    /// `Io`; `Malformed`.
    pub fn layout(&self, cipher: &Arc<dyn SectorCipher>, metadata: &Metadata, store: &dyn Store) -> Result<Layout> {
        let mut segments = Segments { places: self, cipher, all: Vec::new() };
        if self.vista {
            segments.vista_header(metadata, store)?;
        } else {
            segments.stored(self.header_place..self.header_place + self.header);
        }
        let mut at = self.header;
        for (range, _) in &self.reserved {
            segments.stored(at..range.start);
            segments.push(range.end - range.start, 0, Payload::Zero);
            at = range.end;
        }
        segments.stored(at..self.size);
        Layout::new(segments.all)
    }
}

impl Places {
    /// The layout of a range of the store that consists entirely of data, plain or encrypted.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn stored_layout(&self, cipher: &Arc<dyn SectorCipher>, range: Range<u64>) -> Result<Layout> {
        let mut segments = Segments { places: self, cipher, all: Vec::new() };
        segments.stored(range);
        Layout::new(segments.all)
    }
}

/// A layout under construction, extended at its end.
struct Segments<'a> {
    places: &'a Places,
    cipher: &'a Arc<dyn SectorCipher>,
    all: Vec<Segment>,
}

impl Segments<'_> {
    fn push(&mut self, len: u64, stored_at: u64, payload: Payload) {
        let at = self.all.last().map_or(0, |s| s.at + s.len);
        if len > 0 {
            self.all.push(Segment { at, len, stored_at, payload, writable: true });
        }
    }

    /// Adds the stored contents of a range.
    fn stored(&mut self, range: Range<u64>) {
        let places = self.places;
        let first = places.apart.partition_point(|part| part.at.end <= range.start);
        let mut at = range.start;
        for part in places.apart[first..].iter().take_while(|part| part.at.start < range.end) {
            let (start, end) = (part.at.start.max(range.start), part.at.end.min(range.end));
            self.by_watermark(at..start);
            let payload = match &part.found {
                ZoneState::Encrypted => Payload::crypt(Arc::clone(self.cipher), start / places.sector),
                ZoneState::Plain => Payload::Clear,
                ZoneState::Torn(plain) => Payload::Fixed(Arc::clone(plain)),
            };
            self.push(end - start, start, payload);
            at = end;
        }
        self.by_watermark(at..range.end);
    }

    /// Adds the stored contents of a range, encrypted up to the watermark.
    fn by_watermark(&mut self, range: Range<u64>) {
        let border = self.places.encrypted.clamp(range.start, range.end);
        let payload = Payload::crypt(Arc::clone(self.cipher), range.start / self.places.sector);
        self.push(border - range.start, range.start, payload);
        self.push(range.end - border, border, Payload::Clear);
    }

    /// Adds the beginning of a Vista volume: the boot sector as NTFS has it, and 15 plain sectors. On the disk, BitLocker's
    /// signature and metadata offset replace the name of NTFS and the cluster of the MFT mirror.
    fn vista_header(&mut self, metadata: &Metadata, store: &dyn Store) -> Result<()> {
        let mut sector = vec![0; self.places.sector as usize];
        store.read_at(0, &mut sector)?;
        let (name_at, name) = boot_sector::NAME;
        sector[name_at..][..name.len()].copy_from_slice(name);
        sector[boot_sector::MIRROR..][..8].copy_from_slice(&metadata.header_place.to_le_bytes());
        self.push(sector.len() as u64, 0, Payload::Fixed(sector.into()));
        self.push(self.places.header - self.places.sector, self.places.sector, Payload::Clear);
        Ok(())
    }
}

fn malformed(field: &'static str, offset: u64, what: String) -> Error {
    ErrorKind::Malformed { field, offset, what }.into()
}
