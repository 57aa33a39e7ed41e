//! Finds volumes anywhere on a disk: by headers and copies of headers, file systems by their superblocks, and areas that look random,
//! which may be volumes without a signature.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, LazyLock};
use std::thread;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::detect::{self, FilesystemTrace};
use crate::filesystems::{self, Filesystem, magic};
use crate::formats::{FORMATS, Format, HeaderTrace, Verdict};
use crate::store::{SliceStore, Store};

/// The alignment of everything that is found, in bytes.
const SECTOR: usize = 512;

/// How many bytes are read at a time.
const PIECE: usize = 4 << 20;

/// What is lost where a disk cannot be read.
const BLOCK: usize = 4096;

/// Whether bytes look random is judged once for each of these units, by this many of its bytes.
const UNIT: usize = 64 << 10;
const SAMPLE: usize = 4096;

/// The smallest random-looking area that is reported. Smaller ones are often compressed files.
const SMALLEST_AREA: u64 = 1 << 20;

/// The most places that are examined. Only a hostile disk has more.
const MOST: usize = 20_000;

/// How far behind its beginning the data of a volume begin at most, in bytes.
const HEADER: u64 = 32 << 20;

/// What a search of a disk found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DiskScan {
    /// Volumes, file systems and areas, by their places.
    pub found: Vec<FoundOnDisk>,
    /// How many bytes inside of file systems look random: compressed or encrypted files, or a volume that was there before.
    pub random_inside: u64,
    /// How many bytes could not be read.
    pub unreadable: u64,
    /// Whether there were too many places to examine them all.
    pub incomplete: bool,
}

/// Something that was found on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundOnDisk {
    /// Where it begins, in bytes.
    pub at: u64,
    /// Its size in bytes, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// What it is.
    #[serde(flatten)]
    pub kind: DiskFind,
    /// The copy that led to it, if its beginning is lost: `its second header`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
    /// Whether it lies in the file system before it, which may be older.
    pub inside: bool,
    /// Whether this is only one of several places where it may begin.
    pub ambiguous: bool,
}

/// A kind of finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum DiskFind {
    /// An encrypted volume.
    Volume {
        /// Its format.
        format: &'static str,
    },
    /// An unencrypted file system.
    FileSystem {
        /// Which one.
        #[serde(flatten)]
        filesystem: Filesystem,
    },
    /// An area that looks random, outside of everything else. It may be a volume without a signature.
    RandomArea {
        /// Whether it may also be data of the volume before it, whose size is unknown.
        of_volume_before: bool,
    },
}

impl DiskFind {
    /// Whether it is encrypted, or may be.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Volume { .. } | Self::RandomArea { .. })
    }
}

/// Searches a whole disk. `go_on` receives the number of bytes searched, and ends the search with an error.
///
/// # Errors
/// `Io`, except where the disk cannot be read; those of `go_on`.
pub fn scan(disk: &Arc<dyn Store>, go_on: &mut dyn FnMut(u64) -> Result<()>) -> Result<DiskScan> {
    let mut seen = Seen::new(disk.len());
    let mut unreadable = 0;
    thread::scope(|scope| -> Result<()> {
        let (send, receive) = sync_channel(2);
        scope.spawn(move || {
            for at in (0..disk.len()).step_by(PIECE) {
                let piece = read(&**disk, at);
                let ended = piece.is_err();
                // Nobody receives once the search has ended.
                if send.send((at, piece)).is_err() || ended {
                    break;
                }
            }
        });
        for (at, piece) in receive {
            let (bytes, lost) = piece?;
            unreadable += lost;
            seen.look_at(at, &bytes);
            go_on(at + bytes.len() as u64)?;
        }
        Ok(())
    })?;
    Ok(DiskScan { unreadable, incomplete: seen.leads >= MOST, ..seen.judged(disk, &mut || go_on(disk.len()))? })
}

/// A piece of the disk, with zeros for what cannot be read, and how much that is.
fn read(disk: &dyn Store, at: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut bytes = vec![0; (disk.len() - at).min(PIECE as u64) as usize];
    match disk.read_at(at, &mut bytes) {
        Err(e) if is_damage(&e) => {}
        read => return read.map(|()| (bytes, 0)),
    }
    let mut lost = 0;
    for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
        match disk.read_at(at + (number * BLOCK) as u64, block) {
            Err(e) if is_damage(&e) => {
                block.fill(0);
                lost += block.len() as u64;
            }
            read => read?,
        }
    }
    Ok((bytes, lost))
}

/// Whether the error concerns only a part of the disk.
fn is_damage(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// A format, a signature of it, and the offset in the volume of the header that has it.
type Lead = (&'static dyn Format, &'static HeaderTrace, u64);

/// What was seen and not examined yet.
struct Seen {
    /// The size of the disk, in bytes.
    len: u64,
    /// Where volumes may begin, and by what: the offset in the volume of the header that was seen.
    volumes: BTreeMap<u64, Vec<Lead>>,
    /// Where file systems may begin, by what, and whether that was a copy.
    filesystems: BTreeMap<u64, (&'static FilesystemTrace, bool)>,
    /// How many signatures led to these.
    leads: usize,
    /// Runs of units that look random, in order. Of all but the last, those that are long enough.
    random: Vec<Range<u64>>,
}

impl Seen {
    fn new(len: u64) -> Self {
        let (volumes, filesystems) = (BTreeMap::new(), BTreeMap::new());
        Self { len, volumes, filesystems, leads: 0, random: Vec::new() }
    }

    fn look_at(&mut self, at: u64, bytes: &[u8]) {
        for (number, unit) in bytes.chunks(UNIT).enumerate() {
            if unit.len() >= SAMPLE && unit[0..16] != [0; 16] && magic::looks_random(&unit[..SAMPLE]) {
                self.add_random(at + (number * UNIT) as u64);
            }
        }
        for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            // Most sectors of most disks.
            if sector == [0; SECTOR] {
                continue;
            }
            self.look_at_sector(at + (number * SECTOR) as u64, sector);
        }
    }

    fn add_random(&mut self, at: u64) {
        let end = (at + UNIT as u64).min(self.len);
        match self.random.last_mut() {
            Some(last) if last.end == at => last.end = end,
            Some(last) if last.end - last.start < SMALLEST_AREA => *last = at..end,
            _ => self.random.push(at..end),
        }
    }

    fn look_at_sector(&mut self, at: u64, sector: &[u8]) {
        if self.leads >= MOST {
            return;
        }
        for (format, trace) in traces().iter().filter(|(_, trace)| has(sector, trace.at, trace.bytes)) {
            for offset in (trace.offsets)(sector) {
                if let Some(start) = at.checked_sub(offset) {
                    self.volumes.entry(start).or_default().push((*format, trace, offset));
                    self.leads += 1;
                }
            }
        }
        for trace in detect::traces().iter().filter(|trace| has(sector, trace.at, trace.bytes)) {
            let Some(offset) = (trace.offset)(trace, sector) else { continue };
            if let Some(start) = at.checked_sub(offset) {
                let copy = offset != trace.usual;
                self.filesystems.entry(start).and_modify(|(_, known)| *known &= copy).or_insert((trace, copy));
                self.leads += 1;
            }
        }
    }

    /// Examines what was seen.
    fn judged(self, disk: &Arc<dyn Store>, go_on: &mut dyn FnMut() -> Result<()>) -> Result<DiskScan> {
        let mut found = volumes(disk, &self.volumes, go_on)?;
        let volumes: BTreeSet<u64> = found.iter().map(|found| found.at).collect();
        found.extend(filesystems(disk, self.filesystems, go_on)?.into_iter().filter(|fs| !volumes.contains(&fs.at)));
        found.sort_by_key(|found| found.at);
        let (areas, random_inside) = areas(disk, &self.random, &found)?;
        found.extend(areas);
        found.sort_by_key(|found| found.at);
        Ok(DiskScan { found, random_inside, ..DiskScan::default() })
    }
}

/// The signatures of all formats.
fn traces() -> &'static [(&'static dyn Format, &'static HeaderTrace)] {
    static TRACES: LazyLock<Vec<(&'static dyn Format, &'static HeaderTrace)>> = LazyLock::new(|| {
        FORMATS.iter().flat_map(|format| format.traces().iter().map(|trace| (*format, trace))).collect()
    });
    &TRACES
}

/// Whether these bytes are at this offset. Mostly the first one differs.
fn has(sector: &[u8], at: usize, bytes: &[u8]) -> bool {
    sector[at] == bytes[0] && sector[at..].starts_with(bytes)
}

impl FoundOnDisk {
    fn new(at: u64, len: Option<u64>, kind: DiskFind, by: Option<&'static str>) -> Self {
        Self { at, len, kind, by, inside: false, ambiguous: false }
    }

    fn end(&self) -> Option<u64> {
        self.at.checked_add(self.len?)
    }
}

fn from(disk: &Arc<dyn Store>, at: u64) -> io::Result<Arc<dyn Store>> {
    Ok(Arc::new(SliceStore::new(Arc::clone(disk), at, disk.len() - at)?))
}

/// The volumes among the places to which signatures lead.
fn volumes(
    disk: &Arc<dyn Store>,
    places: &BTreeMap<u64, Vec<Lead>>,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<FoundOnDisk>> {
    let mut found = Vec::new();
    let mut copies = Vec::new();
    for (at, leads) in places {
        go_on()?;
        let part = from(disk, *at)?;
        let volume =
            |format: &dyn Format, by| FoundOnDisk::new(*at, None, DiskFind::Volume { format: format.name() }, by);
        let mut first = None;
        for (format, ..) in leads.iter().filter(|(_, _, offset)| *offset == 0) {
            let verdict = readable(format.identify(&*part), Verdict::No(Vec::new()))?;
            first = first.or(matches!(verdict, Verdict::Yes(_)).then(|| volume(*format, None)));
        }
        for (format, trace, offset) in leads.iter().filter(|(_, _, offset)| *offset > 0) {
            let intact = readable((trace.intact)(&*part, *offset), 0)?;
            let volume = first.clone().unwrap_or_else(|| volume(*format, Some(trace.name)));
            copies.extend((intact > 0).then_some((at + offset, intact, volume)));
        }
        found.extend(first);
    }
    found.extend(by_copies(copies));
    found.sort_by_key(|found| found.at);
    found.dedup_by_key(|found| found.at);
    Ok(found)
}

/// The volumes to which copies of headers lead: where each copy is, how many are intact if the volume begins where the last field says.
/// A copy does not say which one it is, and so where its volume begins. Where most of its copies are, it does.
fn by_copies(copies: Vec<(u64, usize, FoundOnDisk)>) -> Vec<FoundOnDisk> {
    let mut most: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for (sector, intact, _) in &copies {
        let (best, places) = most.entry(*sector).or_default();
        match (*intact).cmp(best) {
            Ordering::Greater => (*best, *places) = (*intact, 1),
            Ordering::Equal => *places += 1,
            Ordering::Less => {}
        }
    }
    let is_best = |(sector, intact, volume): (u64, usize, FoundOnDisk)| {
        let (best, places) = most[&sector];
        (intact == best).then_some(FoundOnDisk { ambiguous: places > 1, ..volume })
    };
    copies.into_iter().filter_map(is_best).collect()
}

/// The file systems among the places to which signatures lead, without those that are only copies of a superblock that was found.
fn filesystems(
    disk: &Arc<dyn Store>,
    places: BTreeMap<u64, (&'static FilesystemTrace, bool)>,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<FoundOnDisk>> {
    let mut all: BTreeMap<u64, FoundOnDisk> = BTreeMap::new();
    for (at, (trace, copy)) in places {
        go_on()?;
        let Some(found) = filesystem(disk, at, trace, copy)? else { continue };
        match all.get(&found.at) {
            Some(known) if known.by.is_none() => {}
            _ => drop(all.insert(found.at, found)),
        }
    }
    let mut listed: Vec<FoundOnDisk> = Vec::new();
    // The file systems that may reach further than the last one.
    let mut around: Vec<(u64, DiskFind)> = Vec::new();
    for found in all.into_values() {
        around.retain(|(end, _)| found.at < *end);
        if around.iter().any(|(_, outer)| found.kind.is_copy_in(outer)) {
            continue;
        }
        // Where it does not say its size, its own signatures repeat at its beginning.
        around.push((found.end().unwrap_or(found.at + detect::LOOKED_AT as u64), found.kind.clone()));
        listed.push(FoundOnDisk { inside: around.len() > 1, ..found });
    }
    Ok(listed)
}

impl DiskFind {
    /// Whether a file system found in this place of another one is only a copy of that one's superblock.
    fn is_copy_in(&self, outer: &Self) -> bool {
        match (self, outer) {
            (Self::FileSystem { filesystem: inner }, Self::FileSystem { filesystem: outer }) => {
                inner.kind == outer.kind && inner.uuid == outer.uuid
            }
            _ => false,
        }
    }
}

/// The file system to which a signature at a place leads. It begins there, unless that is a copy.
fn filesystem(disk: &Arc<dyn Store>, at: u64, trace: &FilesystemTrace, copy: bool) -> Result<Option<FoundOnDisk>> {
    let part = from(disk, at)?;
    let found = |at, len, filesystem, by| FoundOnDisk::new(at, len, DiskFind::FileSystem { filesystem }, by);
    let bare = Filesystem { kind: trace.kind, label: None, uuid: None };
    let detected = filesystems::detect(&*part).map_err(Into::into).and_then(|whole| Ok((whole, detect::size(&*part)?)));
    let (whole, len) = match detected {
        Err(e) if is_lost(&e) => {
            return Ok(Some(found(at, None, bare, Some("its superblock, beside unreadable sectors"))));
        }
        detected => detected?,
    };
    let Some(whole) = whole else {
        return Ok(copy.then(|| found(at, None, bare, Some(COPY))));
    };
    // A few letters in a text are not a superblock.
    if len.is_none() && whole.kind.has_size() {
        return Ok(None);
    }
    let before = detect::before_copy(&*part)?.filter(|before| *before > 0);
    Ok(Some(match before.and_then(|before| at.checked_sub(before)) {
        Some(begins) => found(begins, len, whole, Some(COPY)),
        None => found(at, len, whole, None),
    }))
}

const COPY: &str = "a copy of its superblock";

/// `otherwise` where the disk cannot be read.
fn readable<T>(result: Result<T>, otherwise: T) -> Result<T> {
    match result {
        Err(e) if is_lost(&e) => Ok(otherwise),
        result => result,
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::Io(e) if is_damage(e) || e.kind() == io::ErrorKind::UnexpectedEof)
}

/// The random-looking areas that nothing else explains, and how many bytes of others are inside of file systems.
fn areas(disk: &Arc<dyn Store>, runs: &[Range<u64>], found: &[FoundOnDisk]) -> Result<(Vec<FoundOnDisk>, u64)> {
    let is_volume = |found: &FoundOnDisk| matches!(found.kind, DiskFind::Volume { .. });
    // The end of the file systems before, and whether the data of the last volume were seen.
    let (mut end, mut inside, mut has_data) = (0, 0, false);
    let (mut areas, mut before) = (Vec::new(), found.iter().peekable());
    let mut last: Option<&FoundOnDisk> = None;
    for run in split(runs, found).filter(|run| run.end - run.start >= SMALLEST_AREA) {
        while let Some(next) = before.next_if(|found| found.at <= run.start) {
            end = next.end().map_or(end, |next| end.max(next));
            (last, has_data) = (Some(next), false);
        }
        let volume = last.filter(|last| is_volume(last));
        if run.start < end {
            inside += run.end - run.start;
        } else if volume.is_some_and(|volume| !has_data && run.start - volume.at <= HEADER) {
            has_data = true;
        } else {
            let at = beginning(disk, run.start)?;
            let kind = DiskFind::RandomArea { of_volume_before: volume.is_some() };
            areas.push(FoundOnDisk::new(at, Some(run.end - at), kind, None));
        }
    }
    Ok((areas, inside))
}

/// The runs, cut where something begins.
fn split(runs: &[Range<u64>], found: &[FoundOnDisk]) -> impl Iterator<Item = Range<u64>> {
    runs.iter().flat_map(|run| {
        let cuts = &found[found.partition_point(|found| found.at <= run.start)..];
        let cuts = cuts.iter().map(|found| found.at).take_while(|at| *at < run.end);
        let ends = cuts.clone().chain([run.end]);
        [run.start].into_iter().chain(cuts).zip(ends).map(|(start, end)| start..end).collect::<Vec<_>>()
    })
}

/// The first sector of those that look random without a gap before `at`, in the unit before it.
fn beginning(disk: &Arc<dyn Store>, at: u64) -> Result<u64> {
    let mut unit = vec![0; (UNIT as u64).min(at) as usize];
    readable(disk.read_at(at - unit.len() as u64, &mut unit).map_err(Into::into), ())?;
    let random = unit.rchunks_exact(SECTOR).take_while(|sector| magic::looks_random(sector)).count();
    Ok(at - (random * SECTOR) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// A disk with unreadable blocks.
    struct BadDisk {
        disk: MemoryStore,
        bad: Range<u64>,
    }

    impl Store for BadDisk {
        fn len(&self) -> u64 {
            self.disk.len()
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            if offset < self.bad.end && self.bad.start < offset + out.len() as u64 {
                return Err(rustix::io::Errno::IO.into());
            }
            self.disk.read_at(offset, out)
        }

        fn write_clobbering(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unreadable_blocks_are_left_out_and_counted() {
        const AT: usize = 5 << 20;
        let mut bytes = vec![0; 9 << 20];
        // The first sector of XFS: 256 blocks of 4 KiB.
        bytes[AT..][..8].copy_from_slice(b"XFSB\0\0\x10\0");
        bytes[AT + 14] = 1;
        let scanned = |bad: Range<u64>| {
            let disk: Arc<dyn Store> = Arc::new(BadDisk { disk: MemoryStore::new(bytes.clone()), bad });
            let scan = scan(&disk, &mut |_| Ok(())).expect("scanned");
            (scan.unreadable, scan.found.iter().map(|found| (found.at, found.len, found.by)).collect::<Vec<_>>())
        };
        let (at, len) = (AT as u64, Some(1 << 20));
        assert_eq!(scanned(0..0), (0, vec![(at, len, None)]));
        assert_eq!(scanned((6 << 20)..(6 << 20) + 8192), (8192, vec![(at, len, None)]));
        // Beside the first sector: its size cannot be read.
        let beside = Some("its superblock, beside unreadable sectors");
        assert_eq!(scanned(at + 4096..at + 4097), (4096, vec![(at, None, beside)]));
        assert_eq!(scanned(at..at + 1), (4096, Vec::new()));
    }
}
