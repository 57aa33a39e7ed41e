//! Forensic images of EnCase, version 1 of the format (libewf, "Expert Witness Compression Format (EWF)"): `.E01`, `.E02` …, and SMART's
//! `.s01`. They are evidence, so they are only read. Every chunk that is read is verified by its checksum.
//!
//! A segment file is a header of 13 bytes, then sections, each of which says where the next one is. `volume` gives the sizes. A `table`
//! says where each chunk is in the segment, and which of them are compressed; `table2` is a copy of the one before it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use miniz_oxide::mz_adler32_oxide;

use super::{SMALLEST_SECTOR, Store, check_range};
use crate::error::{Error, ErrorKind, Result};
use crate::little_endian::{u16_at, u32_at, u64_at};

/// What a segment begins with, and the size of its header.
const SIGNATURE: &[u8; 8] = b"EVF\x09\x0d\x0a\xff\0";
const HEADER: u64 = 13;

/// Bytes of a section's descriptor, of what the tables begin with, and of a checksum.
const DESCRIPTOR: usize = 76;
const TABLE: usize = 24;
const CHECKSUM: usize = 4;

/// The least size of the data in a `volume` section: that of SMART. EnCase's is longer.
const VOLUME: usize = 94;

/// The largest chunk, in bytes. Usual ones have 32 KiB.
const LARGEST_CHUNK: u64 = 32 << 20;

/// The most sections of a segment. One of 1 TiB has about 8,000.
const MOST_SECTIONS: usize = 1 << 20;

/// The most entries of a table. EnCase writes at most 65,534.
const MOST_ENTRIES: u32 = 1 << 20;

/// How many chunks and tables are remembered, and of how many bytes chunks are at the most.
const CHUNKS: u64 = 64;
const CHUNK_BYTES: u64 = 16 << 20;
const TABLES: usize = 8;

/// The bit of an entry for a compressed chunk. The others are its offset.
const COMPRESSED: u32 = 1 << 31;

/// The disk in such an image.
pub struct EwfStore {
    segments: Vec<Arc<dyn Store>>,
    /// In order of their first chunk.
    tables: Vec<Table>,
    len: u64,
    sector: u64,
    chunk: u64,
    recent: Mutex<Recent>,
}

/// The place of some consecutive chunks.
struct Table {
    first: u64,
    count: u32,
    segment: usize,
    /// Where the entries are in the segment, and their copy, and what their offsets are relative to.
    entries: u64,
    copy: Option<u64>,
    base: u64,
    /// Whether a checksum follows the entries. SMART writes none.
    summed: bool,
    /// Where the last chunk ends.
    end: u64,
}

/// What was read last, the latest first.
#[derive(Default)]
struct Recent {
    tables: VecDeque<(usize, Arc<[u32]>)>,
    chunks: VecDeque<(u64, Arc<[u8]>)>,
}

/// A section's descriptor.
struct Section {
    kind: [u8; 16],
    at: u64,
    next: u64,
    /// With the descriptor.
    size: u64,
}

fn malformed(segment: usize, offset: u64, what: impl Into<String>) -> Error {
    let what = format!("segment {}: {}", segment + 1, what.into());
    ErrorKind::Malformed { field: "EWF image", offset, what }.into()
}

impl EwfStore {
    /// Opens the image in these segment files, in order.
    ///
    /// # Errors
    /// `NotThisFormat` if the first one is no such file; `Malformed`, also if a segment is missing; `Unsupported`, `Io`.
    pub fn open(segments: Vec<Arc<dyn Store>>) -> Result<Self> {
        let mut reading = Reading::default();
        for (number, segment) in segments.iter().enumerate() {
            reading.segment(number, &**segment)?;
        }
        let Reading { tables, sizes, complete, .. } = reading;
        let (sectors, sector, chunk) = sizes.ok_or_else(|| malformed(0, 0, "it does not say how large the disk is"))?;
        if !complete {
            let what = format!("the image goes on in segment {}, which is missing", segments.len() + 1);
            return Err(malformed(segments.len() - 1, 0, what));
        }
        let len = sectors.checked_mul(sector).ok_or_else(|| malformed(0, 0, "its size has more than 64 bits"))?;
        let stored = tables.last().map_or(0, |table: &Table| table.first + u64::from(table.count));
        if stored < len.div_ceil(chunk) {
            let what = format!("it holds {stored} of the disk's {} chunks", len.div_ceil(chunk));
            return Err(malformed(segments.len() - 1, 0, what));
        }
        Ok(Self { segments, tables, len, sector, chunk, recent: Mutex::default() })
    }

    /// The bytes of a chunk, verified.
    fn chunk(&self, number: u64) -> io::Result<Arc<[u8]>> {
        if let Some(known) = self.recent(|recent| taken(&mut recent.chunks, &number)) {
            return Ok(known);
        }
        let chunk: Arc<[u8]> = self.read_chunk(number)?.into();
        let most = (CHUNK_BYTES / self.chunk).clamp(1, CHUNKS) as usize;
        self.recent(|recent| remember(&mut recent.chunks, most, number, &chunk));
        Ok(chunk)
    }

    fn read_chunk(&self, number: u64) -> io::Result<Vec<u8>> {
        let index = self.tables.partition_point(|table| table.first <= number) - 1;
        let table = &self.tables[index];
        let entries = self.entries(index)?;
        let place = (number - table.first) as usize;
        let offset = |entry: u32| table.base.saturating_add(u64::from(entry & !COMPRESSED));
        let start = offset(entries[place]);
        let end = entries.get(place + 1).map_or(table.end, |next| offset(*next));
        let expected = self.chunk.min(self.len - number * self.chunk) as usize;
        let damaged =
            |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("chunk {number} of the image {why}"));
        // What does not compress is stored as it is, or grows a little.
        let most = 2 * self.chunk + 1024;
        let len = end.checked_sub(start).filter(|len| (1..=most).contains(len));
        let len = len.ok_or_else(|| damaged("has no place in its segment"))? as usize;
        let mut stored = vec![0; len];
        self.segments[table.segment].read_at(start, &mut stored)?;
        let mut bytes = if entries[place] & COMPRESSED != 0 {
            let inflated = decompress_to_vec_zlib_with_limit(&stored, self.chunk as usize);
            inflated.map_err(|_| damaged("is damaged: it does not decompress, or its checksum is wrong"))?
        } else {
            let (data, checksum) = stored
                .split_at_checked(self.chunk as usize)
                .filter(|(_, rest)| rest.len() >= CHECKSUM)
                .or_else(|| stored.split_at_checked(expected).filter(|(_, rest)| rest.len() >= CHECKSUM))
                .ok_or_else(|| damaged("is damaged: it is too short"))?;
            if mz_adler32_oxide(1, data) != u32_at(checksum, 0) {
                return Err(damaged("is damaged: its checksum is wrong"));
            }
            data.to_vec()
        };
        if bytes.len() < expected {
            return Err(damaged("is damaged: it is too short"));
        }
        bytes.truncate(expected);
        Ok(bytes)
    }

    fn entries(&self, index: usize) -> io::Result<Arc<[u32]>> {
        if let Some(known) = self.recent(|recent| taken(&mut recent.tables, &index)) {
            return Ok(known);
        }
        let table = &self.tables[index];
        let read = self.read_entries(table, table.entries);
        let entries = match (read, table.copy) {
            (Err(_), Some(copy)) => self.read_entries(table, copy),
            (read, _) => read,
        }?;
        self.recent(|recent| remember(&mut recent.tables, TABLES, index, &entries));
        Ok(entries)
    }

    fn read_entries(&self, table: &Table, at: u64) -> io::Result<Arc<[u32]>> {
        let len = table.count as usize * 4;
        let mut bytes = vec![0; len + if table.summed { CHECKSUM } else { 0 }];
        self.segments[table.segment].read_at(at, &mut bytes)?;
        if table.summed && mz_adler32_oxide(1, &bytes[..len]) != u32_at(&bytes, len) {
            let what = format!("the table of the image's chunks from {} on is damaged", table.first);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(bytes[..len].chunks_exact(4).map(|entry| u32_at(entry, 0)).collect())
    }

    fn recent<T>(&self, what: impl FnOnce(&mut Recent) -> T) -> T {
        what(&mut self.recent.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was remembered under this key, which is the latest from now on.
fn taken<K: PartialEq, V: ?Sized>(kept: &mut VecDeque<(K, Arc<V>)>, key: &K) -> Option<Arc<V>> {
    let place = kept.iter().position(|(known, _)| known == key)?;
    let entry = kept.remove(place)?;
    let value = Arc::clone(&entry.1);
    kept.push_front(entry);
    Some(value)
}

fn remember<K, V: ?Sized>(kept: &mut VecDeque<(K, Arc<V>)>, most: usize, key: K, value: &Arc<V>) {
    kept.truncate(most - 1);
    kept.push_front((key, Arc::clone(value)));
}

/// What the sections said so far.
#[derive(Default)]
struct Reading {
    tables: Vec<Table>,
    /// The number of sectors, their size, and that of a chunk, in bytes.
    sizes: Option<(u64, u64, u64)>,
    chunks: u64,
    /// Where the section with the chunks of the next table ends.
    sectors_end: Option<u64>,
    /// Whether the last segment was read.
    complete: bool,
}

impl Reading {
    fn segment(&mut self, number: usize, segment: &dyn Store) -> Result<()> {
        let mut header = [0; HEADER as usize];
        if segment.len() >= HEADER {
            segment.read_at(0, &mut header)?;
        }
        match header.starts_with(SIGNATURE) {
            true if usize::from(u16_at(&header, 9)) == number + 1 => {}
            true => {
                let what = format!("this file says that it is segment {}", u16_at(&header, 9));
                return Err(malformed(number, 9, what));
            }
            false if number == 0 => return Err(ErrorKind::NotThisFormat("no image of EnCase".into()).into()),
            false => return Err(malformed(number, 0, "this file is no image of EnCase")),
        }
        if self.complete {
            return Err(malformed(number, 0, "the image ended with the segment before"));
        }
        let mut at = HEADER;
        for _ in 0..MOST_SECTIONS {
            let section = Section::read(number, segment, at)?;
            self.section(number, segment, &section)?;
            if section.next <= at {
                return Ok(());
            }
            at = section.next;
        }
        Err(malformed(number, at, format!("it has more than {MOST_SECTIONS} sections")))
    }

    fn section(&mut self, number: usize, segment: &dyn Store, section: &Section) -> Result<()> {
        let end = section.at.saturating_add(section.size);
        match section.name() {
            b"volume" | b"disk" if self.sizes.is_none() => self.volume(number, segment, section)?,
            b"sectors" => self.sectors_end = Some(end),
            b"table" => {
                let copy = Section::read(number, segment, section.next).ok().filter(|copy| copy.name() == b"table2");
                let copy = copy.map(|copy| self.table(number, segment, &copy, end)).and_then(Result::ok);
                self.push(match (self.table(number, segment, section, end), copy) {
                    (Ok(table), copy) => Table { copy: copy.map(|copy| copy.entries), ..table },
                    (Err(_), Some(copy)) => copy,
                    (Err(e), None) => return Err(e),
                });
                self.sectors_end = None;
            }
            b"done" => self.complete = true,
            _ => {}
        }
        Ok(())
    }

    fn push(&mut self, table: Table) {
        self.chunks += u64::from(table.count);
        if table.count > 0 {
            self.tables.push(table);
        }
    }

    fn volume(&mut self, number: usize, segment: &dyn Store, section: &Section) -> Result<()> {
        let data = section.size.saturating_sub(DESCRIPTOR as u64);
        let mut volume = vec![0; data.min(4096) as usize];
        if volume.len() < VOLUME {
            return Err(malformed(number, section.at, "its volume section is too short"));
        }
        segment.read_at(section.at + DESCRIPTOR as u64, &mut volume)?;
        let sum = volume.len() - CHECKSUM;
        if mz_adler32_oxide(1, &volume[..sum]) != u32_at(&volume, sum) {
            return Err(malformed(number, section.at, "the checksum of its volume section is wrong"));
        }
        let sectors = if volume.len() == VOLUME { u32_at(&volume, 16).into() } else { u64_at(&volume, 16) };
        let (per_chunk, sector) = (u64::from(u32_at(&volume, 8)), u64::from(u32_at(&volume, 12)));
        let chunk = per_chunk * sector;
        if !sector.is_power_of_two() || sector < SMALLEST_SECTOR || chunk == 0 || chunk > LARGEST_CHUNK {
            let what = format!("chunks of {per_chunk} sectors of {sector} bytes");
            return Err(Error::unsupported(format!("an image of EnCase with {what}")));
        }
        self.sizes = Some((sectors, sector, chunk));
        Ok(())
    }

    /// `own_end` is the end of the table's section: SMART keeps the chunks in it, behind the entries.
    fn table(&self, number: usize, segment: &dyn Store, section: &Section, own_end: u64) -> Result<Table> {
        let (end, summed) = (self.sectors_end.unwrap_or(own_end), self.sectors_end.is_some());
        let wrong = |what: &str| malformed(number, section.at, what);
        let at = section.at + DESCRIPTOR as u64;
        let mut start = [0; TABLE];
        segment.read_at(at, &mut start)?;
        let (count, base) = (u32_at(&start, 0), u64_at(&start, 8));
        if mz_adler32_oxide(1, &start[..TABLE - CHECKSUM]) != u32_at(&start, TABLE - CHECKSUM) {
            return Err(wrong("the checksum of a table is wrong"));
        }
        let entries = at + TABLE as u64;
        let entries_end = entries + u64::from(count) * 4 + if summed { CHECKSUM as u64 } else { 0 };
        if count > MOST_ENTRIES || entries_end > section.at.saturating_add(section.size).min(segment.len()) {
            return Err(wrong("a table is longer than its section"));
        }
        // EnCase 6.0 to 6.7 wrote offsets with more than 31 bits, whose top bit then means something else.
        if end.saturating_sub(base) > u64::from(COMPRESSED) {
            return Err(Error::unsupported("an image of EnCase with a segment of more than 2 GiB before one table"));
        }
        let end = end.min(segment.len());
        Ok(Table { first: self.chunks, count, segment: number, entries, copy: None, base, summed, end })
    }
}

impl Section {
    fn read(number: usize, segment: &dyn Store, at: u64) -> Result<Self> {
        let mut bytes = [0; DESCRIPTOR];
        if at.checked_add(DESCRIPTOR as u64).is_none_or(|end| end > segment.len()) {
            return Err(malformed(number, at, "the file ends before its last section"));
        }
        segment.read_at(at, &mut bytes)?;
        let sum = DESCRIPTOR - CHECKSUM;
        if mz_adler32_oxide(1, &bytes[..sum]) != u32_at(&bytes, sum) {
            return Err(malformed(number, at, "the checksum of a section is wrong"));
        }
        let kind = bytes[..16].try_into().expect("16 bytes");
        Ok(Self { kind, at, next: u64_at(&bytes, 16), size: u64_at(&bytes, 24) })
    }

    fn name(&self) -> &[u8] {
        let end = self.kind.iter().position(|byte| *byte == 0).unwrap_or(self.kind.len());
        &self.kind[..end]
    }
}

impl Store for EwfStore {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.len)?;
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let chunk = self.chunk(at / self.chunk)?;
            let part = &chunk[(at % self.chunk) as usize..];
            let len = part.len().min(out.len() - done);
            out[done..done + len].copy_from_slice(&part[..len]);
            done += len;
        }
        Ok(())
    }

    fn write_clobbering(&self, _offset: u64, _data: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn still_whole(&self) -> io::Result<()> {
        self.segments.iter().try_for_each(|segment| segment.still_whole())
    }

    fn sector_size(&self) -> u64 {
        self.sector
    }

    fn writable(&self) -> bool {
        false
    }
}
