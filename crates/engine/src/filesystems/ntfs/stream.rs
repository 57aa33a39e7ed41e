//! The location of a stream's bytes: everything that reading needs, so that a read does not access the file's records again.
//!
//! The crate hides this information. If a file has an attribute list, it also mistakes the first piece of a stream for the whole.
//! So this module joins the pieces, and reads some fields of their headers (linux/fs/ntfs3/ntfs.h, `struct ATTR_NONRES`).

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ntfs::attribute_value::NtfsAttributeValue;
use ntfs::structured_values::NtfsAttributeList;
use ntfs::{NtfsAttribute, NtfsAttributeFlags, NtfsAttributeType, NtfsFile};

use super::lznt1;
use crate::filesystems::guard::StoreReader;
use crate::little_endian::u64_at;
use crate::store::Store;
use crate::trees::damaged;

/// The most parts of a stream on the disk. An attribute list has room for only about half as many.
const MOST_RUNS: usize = 4 << 20;

/// The largest compression unit, in bytes. Usually a unit has 16 clusters of 4096 bytes.
const LARGEST_UNIT: u64 = 1 << 20;

/// The size of a sector that EFS encrypts, in bytes.
const SECTOR: u64 = 512;

/// A stream of a file.
pub struct Stream {
    /// The size in bytes.
    pub size: u64,
    /// Whether it is compressed, encrypted or sparse.
    pub flags: NtfsAttributeFlags,
    /// The tag, for a file of a cloud service: parts that are not on the disk are in the cloud.
    pub cloud: Option<u32>,
    /// The number of bytes that were written; the rest reads as zeros.
    written: u64,
    kept: StreamData,
}

enum StreamData {
    /// The contents, stored in the file's record.
    Resident(Vec<u8>),
    /// The consecutive parts in clusters, and the compression unit.
    Runs { runs: Vec<Run>, unit: Option<Unit> },
}

struct Run {
    at: u64,
    len: u64,
    /// The offset in the store; `None` for a hole.
    stored: Option<u64>,
}

impl Run {
    fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// The unit of compression.
struct Unit {
    size: u64,
    /// The unit read last, with its offset.
    last: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Stream {
    /// The stream of type `of` with this name; `None` if there is none.
    ///
    /// # Errors
    /// Those of the store; [`damaged`].
    pub fn find(
        file: &NtfsFile<'_>,
        reader: &mut StoreReader,
        of: NtfsAttributeType,
        name: &str,
    ) -> io::Result<Option<Self>> {
        let mut found: Option<Self> = None;
        pieces(file, reader, of, &mut |piece_name, piece, reader| {
            match &mut found {
                _ if piece_name != name => {}
                Some(stream) => stream.continue_with(piece, file, reader)?,
                None => found = Some(Self::begin(piece, file, reader)?),
            }
            Ok(true)
        })?;
        Ok(found)
    }

    /// The size and flags of the contents stream with this name, from its first piece; `None` if there is none.
    ///
    /// # Errors
    /// Those of the store; [`damaged`].
    pub fn head(
        file: &NtfsFile<'_>,
        reader: &mut StoreReader,
        name: &str,
    ) -> io::Result<Option<(u64, NtfsAttributeFlags)>> {
        let mut found = None;
        pieces(file, reader, NtfsAttributeType::Data, &mut |piece_name, piece, _| {
            if piece_name == name {
                found = Some((piece.value_length(), piece.flags()));
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    fn begin(piece: &NtfsAttribute<'_, '_>, file: &NtfsFile<'_>, reader: &mut StoreReader) -> io::Result<Self> {
        let flags = piece.flags();
        let (size, written, kept) = match piece.value(reader).map_err(super::io_error)? {
            NtfsAttributeValue::Resident(_) if flags.contains(NtfsAttributeFlags::ENCRYPTED) => {
                return Err(damaged("attribute", 0, "an encrypted stream is resident in its record"));
            }
            NtfsAttributeValue::Resident(value) => {
                let data = value.data().to_vec();
                (data.len() as u64, data.len() as u64, StreamData::Resident(data))
            }
            _ => {
                let header = Header::read(piece, reader)?;
                let unit = match flags.contains(NtfsAttributeFlags::COMPRESSED) {
                    true => Some(Unit { size: header.unit(file)?, last: Mutex::default() }),
                    false => None,
                };
                (header.size, header.written.min(header.size), StreamData::Runs { runs: Vec::new(), unit })
            }
        };
        let mut stream = Self { size, flags, cloud: None, written, kept };
        if !piece.is_resident() {
            stream.continue_with(piece, file, reader)?;
        }
        Ok(stream)
    }

    /// Appends the next piece of the stream.
    fn continue_with(
        &mut self,
        piece: &NtfsAttribute<'_, '_>,
        file: &NtfsFile<'_>,
        reader: &mut StoreReader,
    ) -> io::Result<()> {
        let StreamData::Runs { runs, .. } = &mut self.kept else {
            return Err(damaged("attribute", 0, "a resident stream has more than one piece"));
        };
        let mut end = runs.last().map_or(0, Run::end);
        let first = Header::read(piece, reader)?.first;
        if first.checked_mul(file.ntfs().cluster_size().into()) != Some(end) {
            return Err(damaged("first cluster", 0, "the pieces of a stream are not contiguous"));
        }
        let NtfsAttributeValue::NonResident(value) = piece.value(reader).map_err(super::io_error)? else {
            return Err(damaged("attribute", 0, "a piece of a stream is resident"));
        };
        for run in value.data_runs() {
            let run = run.map_err(super::io_error)?;
            let (len, stored) = (run.allocated_size(), run.data_position().value().map(|at| at.get()));
            if stored.is_some_and(|at| at.checked_add(len).is_none()) {
                return Err(too_long());
            }
            let at = end;
            end = at.checked_add(len).ok_or_else(too_long)?;
            match runs.last_mut() {
                Some(last) if last.stored.map(|at| at + last.len) == stored => last.len += len,
                _ => runs.push(Run { at, len, stored }),
            }
            if runs.len() > MOST_RUNS {
                return Err(damaged("runs", 0, "a stream is in too many parts"));
            }
        }
        Ok(())
    }

    /// Whether the file system encrypts it.
    pub fn encrypted(&self) -> bool {
        self.flags.contains(NtfsAttributeFlags::ENCRYPTED)
    }

    /// The number of its parts.
    pub fn parts(&self) -> usize {
        match &self.kept {
            StreamData::Resident(_) => 1,
            StreamData::Runs { runs, .. } => runs.len(),
        }
    }

    /// Whether any part of this range is a hole.
    fn has_hole(&self, range: Range<u64>) -> bool {
        let StreamData::Runs { runs, unit: None } = &self.kept else { return false };
        let first = runs.partition_point(|run| run.end() <= range.start);
        runs[first..].iter().take_while(|run| run.at < range.end).any(|run| run.stored.is_none())
    }

    /// The sectors of an encrypted stream that were written, as ranges.
    pub fn sectors(&self) -> Vec<Range<u64>> {
        let StreamData::Runs { runs, .. } = &self.kept else { return Vec::new() };
        let end = self.written.next_multiple_of(SECTOR);
        let mut sectors: Vec<Range<u64>> = Vec::new();
        for run in runs.iter().filter(|run| run.stored.is_some() && run.at < end) {
            match sectors.last_mut() {
                Some(last) if last.end == run.at => last.end = run.end().min(end),
                _ => sectors.push(run.at..run.end().min(end)),
            }
        }
        sectors
    }

    /// Reads like [`crate::trees::Tree::read_at`]. For an encrypted stream, reads the ciphertext, to the end of its last sector.
    ///
    /// # Errors
    /// Those of the store; [`damaged`].
    pub fn read_at(&self, store: &dyn Store, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let whole = |bytes: u64| if self.encrypted() { bytes.checked_next_multiple_of(SECTOR) } else { Some(bytes) };
        let size = whole(self.size).ok_or_else(too_long)?;
        let len = size.saturating_sub(offset).min(out.len() as u64) as usize;
        if let Some(tag) = self.cloud.filter(|_| self.has_hole(offset..offset + len as u64)) {
            return Err(super::reparse::unread(tag).into());
        }
        let there = whole(self.written).ok_or_else(too_long)?.saturating_sub(offset).min(len as u64) as usize;
        let (there, behind) = out[..len].split_at_mut(there);
        behind.fill(0);
        match &self.kept {
            StreamData::Resident(data) => {
                there.copy_from_slice(data.get(offset as usize..).map_or(&[], |d| &d[..there.len()]))
            }
            StreamData::Runs { runs, unit: None } => read_runs(store, runs, offset, there)?,
            StreamData::Runs { runs, unit: Some(unit) } => unit.read(store, runs, offset, there)?,
        }
        Ok(len)
    }
}

impl Unit {
    fn read(&self, store: &dyn Store, runs: &[Run], offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let begin = at / self.size * self.size;
            let into = (at - begin) as usize;
            let len = (self.size as usize - into).min(rest.len());
            let (part, after) = rest.split_at_mut(len);
            if len as u64 == self.size {
                self.expand(store, runs, begin, part)?;
            } else {
                let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.as_ref().is_none_or(|(at, _)| *at != begin) {
                    let mut unit = vec![0; self.size as usize];
                    self.expand(store, runs, begin, &mut unit)?;
                    *last = Some((begin, unit));
                }
                part.copy_from_slice(last.as_ref().map_or(&[], |(_, unit)| &unit[into..][..len]));
            }
            (at, rest) = (at + len as u64, after);
        }
        Ok(())
    }

    /// Reads a unit, which is compressed if fewer bytes are stored than its size.
    fn expand(&self, store: &dyn Store, runs: &[Run], begin: u64, out: &mut [u8]) -> io::Result<()> {
        let end = begin + self.size;
        let parts = &runs[runs.partition_point(|run| run.end() <= begin)..];
        let mut within = parts.iter().take_while(|run| run.at < end).peekable();
        let mut stored = begin;
        while let Some(run) = within.next_if(|run| run.stored.is_some()) {
            stored = run.end().min(end);
        }
        if within.any(|run| run.stored.is_some()) {
            return Err(damaged("runs", begin, "a compressed unit has a hole before its end"));
        }
        match stored - begin {
            0 => out.fill(0),
            all if all == self.size => return read_runs(store, runs, begin, out),
            some => {
                let mut data = vec![0; some as usize];
                read_runs(store, runs, begin, &mut data)?;
                lznt1::decompress(&data, out).map_err(|what| damaged("compressed unit", begin, what))?;
            }
        }
        Ok(())
    }
}

fn read_runs(store: &dyn Store, runs: &[Run], offset: u64, out: &mut [u8]) -> io::Result<()> {
    let (mut at, mut rest) = (offset, out);
    let mut runs = runs[runs.partition_point(|run| run.end() <= offset)..].iter();
    while !rest.is_empty() {
        let run = runs.next().ok_or_else(|| damaged("runs", at, "a stream has fewer clusters than bytes"))?;
        let len = (run.end() - at).min(rest.len() as u64) as usize;
        let (part, after) = rest.split_at_mut(len);
        match run.stored {
            Some(stored) => read_stored(store, stored + (at - run.at), part)?,
            None => part.fill(0),
        }
        (at, rest) = (at + len as u64, after);
    }
    Ok(())
}

fn read_stored(store: &dyn Store, at: u64, out: &mut [u8]) -> io::Result<()> {
    match at.checked_add(out.len() as u64) {
        Some(end) if end <= store.len() => store.read_at(at, out),
        _ => Err(damaged("runs", at, "a stream has clusters past the end of the volume")),
    }
}

/// The fields of an attribute's header that the crate does not expose.
struct Header {
    /// The first cluster of this piece, counted from the stream's beginning.
    first: u64,
    /// The binary logarithm of the number of clusters in a unit.
    unit: u8,
    size: u64,
    written: u64,
}

impl Header {
    fn read(piece: &NtfsAttribute<'_, '_>, reader: &mut StoreReader) -> io::Result<Self> {
        let at = piece.position().value().ok_or_else(|| damaged("attribute", 0, "it has no position"))?.get();
        let mut bytes = [0; 64];
        reader.seek(SeekFrom::Start(at))?;
        reader.read_exact(&mut bytes)?;
        // The update sequence replaces the last two bytes of each 512. Here they are the highest bytes of a size, which are zero,
        // because attributes are aligned to 8 bytes.
        for (at, byte) in (at..).zip(&mut bytes).filter(|(at, _)| at % SECTOR >= SECTOR - 2) {
            debug_assert!(at > 0);
            *byte = 0;
        }
        Ok(Self { first: u64_at(&bytes, 16), unit: bytes[34], size: u64_at(&bytes, 48), written: u64_at(&bytes, 56) })
    }

    fn unit(&self, file: &NtfsFile<'_>) -> io::Result<u64> {
        let unit = u64::from(file.ntfs().cluster_size()).checked_shl(self.unit.into());
        match unit {
            Some(unit) if self.unit > 0 && unit <= LARGEST_UNIT => Ok(unit),
            _ => Err(damaged("compression unit", 0, format!("2^{} clusters are not a compression unit", self.unit))),
        }
    }
}

/// The names of a file's streams of type `of`, without duplicates.
///
/// # Errors
/// Those of the store; [`damaged`].
pub fn names(file: &NtfsFile<'_>, reader: &mut StoreReader, of: NtfsAttributeType) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    pieces(file, reader, of, &mut |name, _, _| {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        Ok(true)
    })?;
    Ok(names)
}

/// A function that is called with each piece's name and attribute, and returns whether to continue.
type Each<'a> = dyn FnMut(&str, &NtfsAttribute<'_, '_>, &mut StoreReader) -> io::Result<bool> + 'a;

/// Calls `each` with all attributes of type `of`, wherever they are stored. The pieces of a stream come in order.
fn pieces(file: &NtfsFile<'_>, reader: &mut StoreReader, of: NtfsAttributeType, each: &mut Each<'_>) -> io::Result<()> {
    for attribute in file.attributes_raw() {
        let attribute = attribute.map_err(super::io_error)?;
        match attribute.ty() {
            // The attribute list covers the attributes of this record too.
            Ok(NtfsAttributeType::AttributeList) => return listed(file, &attribute, reader, of, each),
            Ok(ty) if ty == of => {
                let name = attribute.name().map_err(super::io_error)?.to_string_lossy();
                if !each(&name, &attribute, reader)? {
                    break;
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

fn listed(
    file: &NtfsFile<'_>,
    list: &NtfsAttribute<'_, '_>,
    reader: &mut StoreReader,
    of: NtfsAttributeType,
    each: &mut Each<'_>,
) -> io::Result<()> {
    let list: NtfsAttributeList<'_, '_> = list.structured_value(reader).map_err(super::io_error)?;
    let mut entries = list.entries();
    while let Some(entry) = entries.next(reader) {
        let entry = entry.map_err(super::io_error)?;
        if !matches!(entry.ty(), Ok(ty) if ty == of) {
            continue;
        }
        let record = entry.to_file(file.ntfs(), reader).map_err(super::io_error)?;
        let piece = entry.to_attribute(&record).map_err(super::io_error)?;
        if !each(&entry.name().to_string_lossy(), &piece, reader)? {
            break;
        }
    }
    Ok(())
}

fn too_long() -> io::Error {
    ErrorKind::FileTooLarge.into()
}
