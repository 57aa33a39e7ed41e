//! Volumes that are encrypted as they are written ("encrypt on write", EOW): bitmaps say which chunks are encrypted, and a log says
//! which sectors of the chunk in progress are (dissect.fve 4.6, dissect/fve/bde/c_bde.py, `FVE_EOW_*` and `FVE_CONVLOG_*`; libbde
//! 20260916, libbde/bde_eow.h).
//!
//! ```text
//! information  0 "FVE-EOW\0" 8 │  8 header's size, 56 2 │ 10 size 2 │ 12 sector 4 │ 16 physical sector 4 │ 20 chunk 4 │ 24 log 4 │
//!             28 record of the log 4 │ 32 bitmaps 4 │ 36 CRC-32, this field 0 4 │ 40 both copies' places 8 each │ 56 bitmaps' places 8 each
//! bitmap       0 "FVE-EOWBM\0" 10 │ 10 header's size, 60 2 │ 12 size 4 │ 16 index 4 │ 20 region 8 │ 28 its length 8 │ 36 log 8 │
//!             44 two records 4 each │ 52 size of a record 4 │ 56 CRC-32 of what is in front of the first record 4
//! record       0 "FVE-EOWBR\0" 10 │ 10 header's size, 36 2 │ 12 size 4 │ 16 bits 4 │ 20 sequence 8 │ 28 flags 4 │ 32 CRC-32 4 │ 36 bits
//! log          0 "OLRDHEVF" 8 │ 8 its size, 50 2 │ …, then records, each at a sector of its own:
//!              0 32 2 │ 2 1 2 │ 4 sequence 8 │ 12 place of the chunk 8 │ 20 bytes behind 4 │ 24 their CRC-32 4 │ 28 CRC-32 of these 28 4 │
//!            512 the first 16 bytes of each of the chunk's sectors, before it was converted
//! ```
//!
//! None of this is authenticated: anyone who can write to the store can pass off plaintext as the volume's. Therefore nothing is
//! written in the clear.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::little_endian::{u16_at, u32_at, u64_at};
use crate::store::Store;

/// The contents of the structures.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Eow {
    /// The plaintext ranges, in order, in bytes of the store. Everything else is encrypted.
    pub plain: Vec<Range<u64>>,
    /// The ranges of the structures themselves, in order.
    pub structures: Vec<Range<u64>>,
    /// Whether the conversion of a chunk had begun and was not marked as done.
    pub under_way: bool,
    /// The ranges whose bitmaps are missing, in order.
    pub lost: Vec<Range<u64>>,
    /// Whether a log is unreadable.
    pub log_lost: bool,
}

/// The places of the volume's structures, and the volume's properties.
pub(super) struct About {
    /// The offsets of both copies of the information structure.
    pub at: [u64; 2],
    /// The size of a sector.
    pub sector: u64,
    /// The size of the volume.
    pub size: u64,
    /// Whether it is being decrypted, according to its state.
    pub decrypting: bool,
}

/// The limits for reading each structure. Windows uses chunks of 8 MiB and records of 512 bytes.
const MOST_INFORMATION: usize = 64 << 10;
const MOST_RECORD: u32 = 1 << 20;
const MOST_CHUNK: u32 = 256 << 20;
const MOST_LOG: u32 = 64 << 20;
/// The maximum number of plaintext runs: segments take memory.
const MOST_RUNS: usize = 1 << 18;
/// The maximum number of log records whose checksums are computed; a log has two.
const MOST_RECORDS: usize = 16;

/// How many bytes of each sector a log stores.
const LOGGED: usize = 16;

impl Eow {
    /// Reads the structures. `None` if neither copy of the information structure is intact.
    ///
    /// # Errors
    /// `Io`; `Unsupported` if there are too many plaintext runs.
    pub fn read(store: &dyn Store, about: &About) -> Result<Option<Self>> {
        let mut information = None;
        for at in about.at {
            information = information.or(Information::read(store, at, about.sector)?);
        }
        let Some(information) = information else { return Ok(None) };
        let mut this = Self::default();
        let len = (information.len as u64).next_multiple_of(about.sector);
        this.structures.extend(about.at.into_iter().filter_map(|at| within(at, len, about.size)));
        let mut regions: Vec<Region> = Vec::new();
        for at in &information.bitmaps {
            let Some(region) = Region::read(store, *at, &information, about)? else { continue };
            this.structures.extend(within(*at, region.len, about.size));
            this.structures.extend(within(region.log, information.log.into(), about.size));
            regions.push(region);
        }
        regions.sort_by_key(|region| region.at.start);
        let mut end = 0;
        for region in &regions {
            // If two overlap, the first one is used; both are equally good.
            let start = region.at.start.max(end);
            if start >= region.at.end {
                continue;
            }
            this.lose(end..start);
            this.take(region, &information, about, store, start)?;
            end = region.at.end;
        }
        this.lose(end..about.size);
        this.structures = merged(this.structures);
        Ok(Some(this))
    }

    /// Whether everything is encrypted for certain. Only then may a write go without a record.
    pub fn is_done(&self) -> bool {
        self.plain.is_empty() && self.lost.is_empty() && !self.under_way && !self.log_lost
    }

    /// Whether nothing is known about a volume of `size` bytes.
    pub fn is_lost(&self, size: u64) -> bool {
        self.lost.first().is_some_and(|lost| *lost == (0..size))
    }

    fn lose(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.lost.push(range);
        }
    }

    /// Adds the state of a region's chunks from `start` on.
    fn take(
        &mut self,
        region: &Region,
        information: &Information,
        about: &About,
        store: &dyn Store,
        start: u64,
    ) -> Result<()> {
        let Some(bits) = &region.bits else {
            self.lose(start..region.at.end);
            return Ok(());
        };
        let log = match Log::read(store, region.log, information, about)? {
            Ok(log) => log,
            Err(LogLost) => {
                self.log_lost = true;
                None
            }
        };
        self.under_way |= log.is_some();
        let chunk = u64::from(information.chunk);
        for number in 0..(region.at.end - region.at.start).div_ceil(chunk) {
            let at = region.at.start + number * chunk;
            let range = at.max(start)..(at + chunk).min(region.at.end);
            let encrypted = bits[(number / 8) as usize] >> (number % 8) & 1 == 1;
            match log.as_ref().filter(|log| log.at == at && range.start == at) {
                Some(log) => self.take_under_way(log, range, encrypted, about, store)?,
                None if !encrypted => self.add_plain(range)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Adds the state of a chunk whose conversion had begun. Sectors with their old first bytes are in the state that the bitmap
    /// gives, since a chunk is marked once all of it is converted. If there are none, the chunk was already marked, or was about to
    /// be.
    fn take_under_way(
        &mut self,
        log: &Log,
        chunk: Range<u64>,
        encrypted: bool,
        about: &About,
        store: &dyn Store,
    ) -> Result<()> {
        let sectors: Vec<_> =
            (0..(chunk.end - chunk.start) / about.sector).map(|n| chunk.start + n * about.sector).collect();
        let mut converted = Vec::with_capacity(sectors.len());
        for (at, before) in sectors.iter().zip(log.old.as_chunks::<LOGGED>().0) {
            let mut now = [0; LOGGED];
            store.read_at(*at, &mut now)?;
            converted.push(now != *before);
        }
        converted.resize(sectors.len(), false);
        let all = converted.iter().all(|converted| *converted);
        for (at, converted) in sectors.into_iter().zip(converted) {
            let plain = if all { about.decrypting } else { converted == encrypted };
            if plain {
                self.add_plain(at..at + about.sector)?;
            }
        }
        Ok(())
    }

    fn add_plain(&mut self, range: Range<u64>) -> Result<()> {
        match self.plain.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.plain.push(range),
        }
        match self.plain.len() <= MOST_RUNS {
            true => Ok(()),
            false => Err(Error::unsupported(format!("bitmaps with more than {MOST_RUNS} runs of unencrypted chunks"))),
        }
    }
}

/// An intact copy of the information structure.
pub(super) struct Information {
    len: usize,
    chunk: u32,
    log: u32,
    /// The size of a record in the log.
    record: u32,
    /// The offsets of both copies.
    pub copies: [u64; 2],
    bitmaps: Vec<u64>,
}

impl Information {
    pub const SIGNATURE: &[u8; 8] = b"FVE-EOW\0";
    const HEADER: usize = 56;
    const CRC: usize = 36;

    /// Reads a copy. `None` if it is damaged, or for another sector size.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(store: &dyn Store, at: u64, sector: u64) -> Result<Option<Self>> {
        let bytes = read_at_most(store, at, MOST_INFORMATION)?;
        Ok(Self::parse(&bytes, sector))
    }

    fn parse(bytes: &[u8], sector: u64) -> Option<Self> {
        let head = bytes.get(..Self::HEADER).filter(|head| head.starts_with(Self::SIGNATURE))?;
        let len = usize::from(u16_at(head, 10));
        let whole = bytes.get(..len).filter(|_| usize::from(u16_at(head, 8)) == Self::HEADER)?;
        let (chunk, log, count) = (u32_at(head, 20), u32_at(head, 24), u32_at(head, 32) as usize);
        let copies = [40, 48].map(|place| u64_at(head, place));
        let places = whole.get(Self::HEADER..)?.as_chunks::<8>().0.get(..count)?;
        let sound = u64::from(u32_at(head, 12)) == sector
            && (1..=MOST_CHUNK).contains(&chunk)
            && u64::from(chunk).is_multiple_of(sector)
            && log <= MOST_LOG
            && u64::from(log).is_multiple_of(sector);
        let bitmaps = places.iter().map(|place| u64::from_le_bytes(*place)).collect();
        (sound && crc_is_right(whole, Self::CRC)).then_some(Self {
            len,
            chunk,
            log,
            record: u32_at(head, 28),
            copies,
            bitmaps,
        })
    }
}

/// The region that a bitmap covers.
struct Region {
    at: Range<u64>,
    log: u64,
    /// The size of the bitmap with its records.
    len: u64,
    /// One bit for each chunk: whether it is encrypted. `None` if no record is intact.
    bits: Option<Vec<u8>>,
}

impl Region {
    const HEADER: usize = 60;
    const CRC: usize = 56;

    fn read(store: &dyn Store, at: u64, information: &Information, about: &About) -> Result<Option<Self>> {
        let head = read_at_most(store, at, Self::HEADER)?;
        if head.len() < Self::HEADER || !head.starts_with(b"FVE-EOWBM\0") || u16_at(&head, 10) != 60 {
            return Ok(None);
        }
        let (records, record_size) = ([44, 48].map(|place| u32_at(&head, place)), u32_at(&head, 52));
        let front = read_at_most(store, at, (records[0] as usize).min(MOST_INFORMATION))?;
        let len = u64::from(u32_at(&head, 12)).next_multiple_of(about.sector);
        let (start, region) = (u64_at(&head, 20), u64_at(&head, 28));
        let end = start.saturating_add(region).min(about.size);
        let sound = front.len() >= Self::HEADER
            && crc_is_right(&front, Self::CRC)
            && start.is_multiple_of(about.sector)
            && end.is_multiple_of(about.sector)
            && start < end
            && record_size <= MOST_RECORD;
        if !sound {
            return Ok(None);
        }
        let chunks = (end - start).div_ceil(information.chunk.into());
        let mut newest: Option<Record> = None;
        for place in records {
            let bytes = match at.checked_add(place.into()) {
                Some(at) => read_at_most(store, at, record_size as usize)?,
                None => continue,
            };
            let record = Record::parse(&bytes).filter(|record| u64::from(record.count) >= chunks);
            newest = match (newest, record) {
                (Some(one), Some(other)) if one.sequence >= other.sequence => Some(one),
                (one, other) => other.or(one),
            };
        }
        let bits = newest.map(|record| record.bits);
        Ok(Some(Self { at: start..end, log: u64_at(&head, 36), len, bits }))
    }
}

/// An intact record of a bitmap.
struct Record {
    sequence: u64,
    count: u32,
    bits: Vec<u8>,
}

impl Record {
    const HEADER: usize = 36;
    const CRC: usize = 32;

    fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..Self::HEADER).filter(|head| head.starts_with(b"FVE-EOWBR\0"))?;
        let whole = bytes.get(..u32_at(head, 12) as usize)?;
        let bits = whole.get(Self::HEADER..)?;
        let (count, sequence) = (u32_at(head, 16), u64_at(head, 20));
        let sound = usize::from(u16_at(head, 10)) == Self::HEADER
            && count.div_ceil(8) as usize <= bits.len()
            && crc_is_right(whole, Self::CRC);
        sound.then(|| Self { sequence, count, bits: bits.to_vec() })
    }
}

/// The log of the chunk in progress.
struct Log {
    at: u64,
    /// The first bytes of its sectors, before their conversion.
    old: Vec<u8>,
}

/// An unreadable log.
struct LogLost;

impl Log {
    /// The unit of the log's structure, whatever the sector size.
    const UNIT: usize = 512;
    const HEADER: usize = 32;

    /// Reads the newest record. `None` if no chunk was in progress.
    fn read(
        store: &dyn Store,
        at: u64,
        information: &Information,
        about: &About,
    ) -> Result<std::result::Result<Option<Self>, LogLost>> {
        if information.log == 0 {
            return Ok(Ok(None));
        }
        let bytes = read_at_most(store, at, information.log as usize)?;
        if !bytes.starts_with(b"OLRDHEVF") || bytes.len() < information.log as usize {
            return Ok(Err(LogLost));
        }
        let newest = Self::records(&bytes, information.record as usize).max_by_key(|(sequence, ..)| *sequence);
        Ok(Ok(newest
            .map(|(_, at, old)| Self { at, old: old.to_vec() })
            .filter(|log| (1..about.size).contains(&log.at))))
    }

    /// Returns sequence, chunk and contents of the intact records. For a partly written record, no sector was converted yet.
    fn records(log: &[u8], size: usize) -> impl Iterator<Item = (u64, u64, &[u8])> {
        // There are two, after the log's own header, possibly padded to whole units.
        let places = [Self::UNIT, Self::UNIT.saturating_add(size)].into_iter();
        let places = places.chain((Self::UNIT..log.len()).step_by(Self::UNIT));
        let records = places.filter_map(|at| log.get(at..)).filter(|record| {
            let head = record.get(..Self::HEADER);
            head.is_some_and(|head| {
                u16_at(head, 0) == 32 && u16_at(head, 2) == 1 && u32_at(head, 28) == crc32fast::hash(&head[..28])
            })
        });
        records.take(MOST_RECORDS).filter_map(|record| {
            let old = record.get(Self::UNIT..)?.get(..u32_at(record, 20) as usize)?;
            (crc32fast::hash(old) == u32_at(record, 24)).then_some((u64_at(record, 4), u64_at(record, 12), old))
        })
    }
}

/// Whether the field at `at` holds the CRC-32 of all bytes, computed with zeros in this field.
fn crc_is_right(bytes: &[u8], at: usize) -> bool {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..at]);
    crc.update(&[0; 4]);
    crc.update(&bytes[at + 4..]);
    crc.finalize() == u32_at(bytes, at)
}

/// Reads `len` bytes at `at`, or fewer at the end of the store.
fn read_at_most(store: &dyn Store, at: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; store.len().saturating_sub(at).min(len as u64) as usize];
    if !bytes.is_empty() {
        store.read_at(at, &mut bytes)?;
    }
    Ok(bytes)
}

/// The range, if it is in a volume of `size` bytes.
fn within(at: u64, len: u64, size: u64) -> Option<Range<u64>> {
    let end = at.checked_add(len).filter(|end| *end <= size && len > 0)?;
    Some(at..end)
}

/// Returns the ranges sorted and merged, without overlaps.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}
