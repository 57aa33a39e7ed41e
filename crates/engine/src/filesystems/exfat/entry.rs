//! Sets of directory entries of 32 bytes each (section 6 of the specification): first the facts about a file, then its name.
//!
//! ```text
//!  File, 0x85 (7.4)                       Stream extension, 0xc0 (7.6)           File name, 0xc1 (7.7)
//!   1  entries that follow, 1              1  flags, 1                            1  flags, 1
//!   2  checksum of the set, 2              3  length of the name, 1               2  15 units of UTF-16, 30
//!   4  attributes, 2                       4  hash of the name, 2
//!   8  made, changed, read: 4 each         8  bytes that were written, 8
//!  20  made, changed: 10 ms, 1 each       20  first cluster, 4
//!  22  made, changed, read: zone, 1 each  24  bytes, 8
//! ```
//! In every set written here, the File and Stream extension entries lie in one sector, so that both change at once.

use std::time::{Duration, SystemTime};

use super::upcase::UpCase;
use crate::filesystems::fat::layout::{Damaged, FoundEntry, Parsed, Record, usable};
use crate::filesystems::fat::time::Stamp;
use crate::little_endian::{u16_at, u32_at, u64_at};

/// The size of an entry, in bytes.
pub const LEN: usize = 32;

/// Types of entries. The highest bit marks an entry in use (6.2.1).
pub const IN_USE: u8 = 0x80;
pub const FILE: u8 = 0x85;
const STREAM: u8 = 0xc0;
const NAME: u8 = 0xc1;
/// Type bits: the entry follows another one; an unknown entry may be ignored.
const SECONDARY: u8 = 0x40;
const BENIGN: u8 = 0x20;

/// Attributes (7.4.4).
const READ_ONLY: u16 = 1;
const FOLDER: u16 = 0x10;
const ARCHIVE: u16 = 0x20;

/// Flags of the stream extension: clusters may be allocated; they are contiguous, regardless of the table (6.3.4).
const POSSIBLE: u8 = 1;
const CONTIGUOUS: u8 = 2;

/// The UTF-16 units of a name in one entry, and the most entries after the first (7.4.2, 7.7.3).
const UNITS: usize = 15;
const MOST_FOLLOWING: usize = 18;

/// The offset of the reserved field that marks an old name during a rename, and the marker itself. No other file has it on the
/// disk.
const LEAVING: usize = 6;
const LEAVES: u16 = 0x4c63;

/// The offsets of the stream extension and of the name entries.
const SECOND: usize = LEN;
const NAMES: usize = 2 * LEN;

/// A whole set. Its checksum is computed when it is written.
#[derive(Clone)]
pub struct Set {
    bytes: Vec<u8>,
    /// Why the set cannot be used, if it cannot.
    fault: Option<&'static str>,
}

impl Set {
    /// A set without a name, for a file or folder created now.
    pub fn new(is_folder: bool, now: SystemTime) -> Self {
        let mut set = Self { bytes: vec![0; NAMES], fault: None };
        set.bytes[0] = FILE;
        set.put16(4, if is_folder { FOLDER } else { ARCHIVE });
        set.put_time(8, Some(20), 22, now);
        set.set_accessed(now);
        set.set_modified(now);
        set.bytes[SECOND] = STREAM;
        set.bytes[SECOND + 1] = POSSIBLE;
        set
    }

    /// The set of `record` under a new name. `None` if it would be too long.
    pub fn named(record: &[u8], name: &str, upcase: &UpCase) -> Option<Self> {
        let units: Vec<u16> = name.encode_utf16().collect();
        let mut set = Self { bytes: record[..NAMES].to_vec(), fault: None };
        set.bytes[SECOND + 3] = units.len() as u8;
        set.put16(SECOND + 4, hash(upcase.folded(name)));
        for part in units.chunks(UNITS) {
            let mut entry = [0; LEN];
            entry[0] = NAME;
            part.iter().enumerate().for_each(|(i, unit)| entry[2 + 2 * i..][..2].copy_from_slice(&unit.to_le_bytes()));
            set.bytes.extend(entry);
        }
        // Keep entries that another program added to the set (8.2).
        let added = record[NAMES..].chunks(LEN).filter(|entry| entry[0] != NAME);
        set.bytes.extend(added.flatten());
        let following = set.bytes.len() / LEN - 1;
        set.bytes[1] = following as u8;
        (following <= MOST_FOLLOWING).then_some(set)
    }

    /// The set at the beginning of these entries, and its name.
    fn parse(bytes: &[u8]) -> Option<(Self, String)> {
        let len = (1 + usize::from(bytes[1])) * LEN;
        let bytes = bytes.get(..len).filter(|_| len > NAMES)?;
        let entries = bytes.as_chunks::<LEN>().0;
        let parts = usize::from(bytes[SECOND + 3]).div_ceil(UNITS);
        let names = entries.get(2..2 + parts).filter(|names| names.iter().all(|entry| entry[0] == NAME))?;
        let follows = |entry: &[u8; LEN]| entry[0] & (IN_USE | SECONDARY) == IN_USE | SECONDARY;
        if entries[1][0] != STREAM || !entries[1..].iter().all(follows) {
            return None;
        }
        let units = names.iter().flat_map(|entry| (0..UNITS).map(|i| u16_at(entry, 2 + 2 * i)));
        let units = units.take(bytes[SECOND + 3].into());
        let name: String = char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).collect();
        let mut set = Self { bytes: bytes.to_vec(), fault: None };
        set.fault = match () {
            () if set.checksum() != u16_at(bytes, 2) => Some("the checksum of its entries does not match"),
            () if !entries[2 + parts..].iter().all(|entry| entry[0] & BENIGN != 0) => {
                Some("it has entries of an unknown kind")
            }
            () if set.valid() > set.size() => Some("more bytes are marked as written than it has"),
            () => None,
        };
        Some((set, name))
    }

    /// The checksum of the set, without the checksum field (6.3.3).
    fn checksum(&self) -> u16 {
        let counted = self.bytes.iter().enumerate().filter(|(i, _)| !matches!(i, 2 | 3));
        counted.fold(0, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)))
    }

    fn attributes(&self) -> u16 {
        u16_at(&self.bytes, 4)
    }

    fn time(&self, at: usize, hundredths: Option<usize>, zone: usize) -> Option<SystemTime> {
        let hundredths = hundredths.map_or(0, |at| self.bytes[at]);
        let local = Stamp { time: u16_at(&self.bytes, at), date: u16_at(&self.bytes, at + 2), hundredths }.time()?;
        // The time zone in quarters of an hour: a signed number of seven bits, valid if the eighth bit is set (7.4.10).
        let quarters = match self.bytes[zone] {
            zone if zone & 0x80 != 0 => i64::from((zone << 1) as i8 >> 1),
            _ => 0,
        };
        let offset = Duration::from_secs(quarters.unsigned_abs() * 900);
        if quarters < 0 { local.checked_add(offset) } else { local.checked_sub(offset) }
    }

    fn put_time(&mut self, at: usize, hundredths: Option<usize>, zone: usize, time: SystemTime) {
        let stamp = Stamp::new(time);
        self.put16(at, stamp.time);
        self.put16(at + 2, stamp.date);
        hundredths.into_iter().for_each(|at| self.bytes[at] = stamp.hundredths);
        self.bytes[zone] = 0x80;
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
}

impl Record for Set {
    fn copy(&self) -> Box<dyn Record> {
        Box::new(self.clone())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut sealed = self.clone();
        sealed.put16(2, self.checksum());
        sealed.bytes
    }

    fn fixed(&self) -> usize {
        NAMES
    }

    fn fault(&self) -> Option<&'static str> {
        self.fault
    }

    fn is_folder(&self) -> bool {
        self.attributes() & FOLDER != 0
    }

    fn read_only(&self) -> bool {
        self.attributes() & READ_ONLY != 0
    }

    fn first(&self) -> u32 {
        u32_at(&self.bytes, SECOND + 20)
    }

    fn set_first(&mut self, cluster: u32) {
        self.bytes[SECOND + 20..][..4].copy_from_slice(&cluster.to_le_bytes());
        // The flag needs a cluster (6.3.4.2).
        if cluster == 0 {
            self.set_linked();
        }
    }

    fn contiguous(&self) -> bool {
        self.bytes[SECOND + 1] & CONTIGUOUS != 0
    }

    fn set_linked(&mut self) {
        self.bytes[SECOND + 1] = self.bytes[SECOND + 1] & !CONTIGUOUS | POSSIBLE;
    }

    fn size(&self) -> u64 {
        u64_at(&self.bytes, SECOND + 24)
    }

    fn valid(&self) -> u64 {
        u64_at(&self.bytes, SECOND + 8)
    }

    fn set_size(&mut self, size: u64, valid: u64) {
        self.bytes[SECOND + 24..][..8].copy_from_slice(&size.to_le_bytes());
        self.bytes[SECOND + 8..][..8].copy_from_slice(&valid.to_le_bytes());
    }

    fn set_archive(&mut self) {
        self.put16(4, self.attributes() | ARCHIVE);
    }

    fn created(&self) -> Option<SystemTime> {
        self.time(8, Some(20), 22)
    }

    fn modified(&self) -> Option<SystemTime> {
        self.time(12, Some(21), 23)
    }

    fn set_modified(&mut self, time: SystemTime) {
        self.put_time(12, Some(21), 23, time);
    }

    fn accessed(&self) -> Option<SystemTime> {
        self.time(16, None, 24)
    }

    fn set_accessed(&mut self, time: SystemTime) {
        self.put_time(16, None, 24, time);
    }

    fn with_contents_of(&self, other: &dyn Record) -> Box<dyn Record> {
        let mut set = self.clone();
        let other = other.bytes();
        // Copy everything except the number of entries and the name's length and hash.
        set.bytes[4..SECOND].copy_from_slice(&other[4..SECOND]);
        set.bytes[SECOND + 1] = other[SECOND + 1];
        set.bytes[SECOND + 8..NAMES].copy_from_slice(&other[SECOND + 8..NAMES]);
        set.set_leaving(false);
        Box::new(set)
    }

    fn same_contents(&self, other: &dyn Record) -> bool {
        let other = other.bytes();
        [4..LEAVING, LEAVING + 2..SECOND, SECOND + 1..SECOND + 3, SECOND + 8..NAMES]
            .into_iter()
            .all(|part| self.bytes[part.clone()] == other[part])
    }

    fn leaving(&self) -> bool {
        u16_at(&self.bytes, LEAVING) == LEAVES
    }

    fn set_leaving(&mut self, leaving: bool) {
        if leaving || self.leaving() {
            self.put16(LEAVING, if leaving { LEAVES } else { 0 });
        }
    }
}

/// The hash of an up-cased name (7.6.4).
fn hash(units: impl Iterator<Item = u16>) -> u16 {
    units.flat_map(u16::to_le_bytes).fold(0, |hash: u16, byte| hash.rotate_right(1).wrapping_add(u16::from(byte)))
}

/// The files and folders in a folder. In the root, entries about the file system itself are not files.
pub fn parse(folder: &[u8], is_root: bool) -> Parsed {
    let slots = (folder.len() / LEN) as u32;
    let mut parsed = Parsed { found: Vec::new(), end: slots, damaged: Vec::new(), stray_names: Vec::new() };
    let mut at = 0;
    while at < slots {
        let rest = &folder[at as usize * LEN..];
        if rest[0] == 0 {
            parsed.end = at;
            break;
        }
        let set = if rest[0] == FILE { Set::parse(rest) } else { None };
        let Some((set, name)) = set else {
            let count = u32::from(rest[0] == FILE) * remains(rest);
            let slots = at..at + 1 + count;
            at = slots.end;
            match rest[0] {
                kind if kind & IN_USE == 0 => {}
                NAME => parsed.stray_names.push(slots.start),
                FILE => {
                    parsed.damaged.push(Damaged { slots, why: "an incomplete entry set", leaving: left(rest) });
                }
                STREAM => {
                    parsed.damaged.push(Damaged { slots, why: "data without a name", leaving: None });
                }
                // Entries that may be ignored. In the root, other unknown entries are a fault of the whole file system and are
                // reported there.
                kind if kind & BENIGN != 0 || is_root => {}
                _ => parsed.damaged.push(Damaged { slots, why: "an entry of an unknown kind", leaving: None }),
            }
            continue;
        };
        let end = at + (set.bytes.len() / LEN) as u32;
        if usable(&name) {
            parsed.found.push(FoundEntry { name, alias: None, entry: Box::new(set), slots: at..end, at });
        } else {
            let why = "a name that no file can have";
            parsed.damaged.push(Damaged { slots: at..end, why, leaving: None });
        }
        at = end;
    }
    parsed
}

/// The number of entries after the first of a broken set: at most as many as it declares, and only a stream extension and names.
fn remains(set: &[u8]) -> u32 {
    let following = set.as_chunks::<LEN>().0.iter().skip(1).take(set[1].into());
    let kinds = following.map(|entry| entry[0]).enumerate();
    kinds.take_while(|(i, kind)| *kind == NAME || *i == 0 && *kind == STREAM).count() as u32
}

/// The first cluster of a broken set that was marked as an old name, if it can still be read.
fn left(set: &[u8]) -> Option<u32> {
    let stream = set.get(SECOND..NAMES).filter(|stream| stream[0] == STREAM)?;
    (u16_at(set, LEAVING) == LEAVES).then(|| u32_at(stream, 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_come_back_with_names_of_every_length() {
        let upcase = UpCase::unicode();
        for len in 1..=255 {
            let name: String = "long näme of a file.with dots ".chars().cycle().take(len).collect();
            let mut set = Set::named(&Set::new(false, SystemTime::now()).bytes(), &name, &upcase).expect("it fits");
            set.set_size(1 << 40, 12_345);
            set.set_first(7);
            let folder = [&[0x05; LEN][..], &set.bytes(), &[0; LEN]].concat();
            let Parsed { found, end, damaged, stray_names } = parse(&folder, false);
            let [found] = &found[..] else { panic!("one is there") };
            assert!(damaged.is_empty() && stray_names.is_empty());
            assert_eq!((&found.name, found.slots.clone(), found.at), (&name, 1..end, 1));
            let entry = &found.entry;
            assert_eq!((entry.first(), entry.size(), entry.valid(), entry.fault()), (7, 1 << 40, 12_345, None));
        }
        assert!(Set::named(&Set::new(false, SystemTime::now()).bytes(), &"x".repeat(256), &upcase).is_none());
    }

    #[test]
    fn damage_shows_and_what_others_added_stays() {
        let upcase = UpCase::unicode();
        let mut bytes =
            Set::named(&Set::new(true, SystemTime::now()).bytes(), "name", &upcase).expect("it fits").bytes();
        bytes.extend([&[0xe0][..], &[9; LEN - 1]].concat());
        bytes[1] += 1;
        let faults =
            |bytes: &[u8]| parse(bytes, false).found.iter().map(|found| found.entry.fault()).collect::<Vec<_>>();
        assert!(faults(&bytes)[0].is_some_and(|why| why.contains("checksum")));
        let set = Set { bytes: bytes.clone(), fault: None };
        assert_eq!(faults(&set.bytes()), [None]);
        let renamed = Set::named(&set.bytes(), &"longer".repeat(5), &upcase).expect("it fits").bytes();
        assert_eq!((renamed.len(), &renamed[4 * LEN..]), (5 * LEN, &bytes[3 * LEN..]));
        // An entry of an unknown kind that must not be ignored, a missing entry, and an entry outside any set.
        bytes[3 * LEN] = 0xc2;
        assert!(
            faults(&Set { bytes: bytes.clone(), fault: None }.bytes())[0].is_some_and(|why| why.contains("unknown"))
        );
        let damaged =
            |bytes: &[u8]| parse(bytes, false).damaged.iter().map(|d| (d.slots.start, d.slots.end)).collect::<Vec<_>>();
        assert!(faults(&bytes[..3 * LEN]).is_empty());
        assert_eq!(damaged(&bytes[..3 * LEN]), [(0, 3)]);
        bytes[2 * LEN] &= !IN_USE;
        assert!(faults(&bytes).is_empty());
        assert_eq!(damaged(&bytes), [(0, 2), (3, 4)]);
        // A stream extension without a set, and names without a set.
        assert_eq!(damaged(&bytes[LEN..2 * LEN]), [(0, 1)]);
        let names = parse(&[NAME; LEN], false);
        assert!(names.damaged.is_empty() && names.stray_names == [0]);
    }

    #[test]
    fn times_are_moved_by_their_zone() {
        let mut set = Set::new(false, SystemTime::UNIX_EPOCH);
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_328_612_945_730);
        set.set_modified(time);
        assert_eq!(set.modified(), Some(time));
        // Two hours east, 3.5 hours west, unknown.
        for (zone, seconds) in [(0x88, -7200), (0xf2, 12_600), (0x02, 0)] {
            set.bytes[23] = zone;
            let moved = set.modified().expect("a time");
            let back = if seconds < 0 {
                moved + Duration::from_secs(7200)
            } else {
                moved - Duration::from_secs(seconds as u64)
            };
            assert_eq!(back, time, "{zone:#x}");
        }
    }
}
