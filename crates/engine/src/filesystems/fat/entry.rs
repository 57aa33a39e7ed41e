//! Directory entries: 32 bytes each.
//!
//! ```text
//!   0  alias, 11              14  made: time, 2          20  first cluster, high half, 2 (FAT32)
//!  11  attributes, 1          16  made: date, 2          22  changed: time, 2
//!  12  small letters, 1       18  read: date, 2          24  changed: date, 2
//!  13  made: hundredths, 1                               26  first cluster, low half, 2
//!                                                        28  size, 4
//! ```
//! The parts of the long name precede the entry in descending order, with 13 UTF-16 units each: number (bit 6 marks the last part
//! of the name, which is first in the folder), 5 units, attributes 0x0f, 0, checksum of the alias, 6 units, 0, 2 units. Sections
//! "FAT Directory Structure" and "FAT Long Directory Entries" of the specification.

use std::collections::HashSet;
use std::io;
use std::time::SystemTime;

use super::layout::{Damaged, EntryLayout, FoundEntry, Parsed, Record, usable};
use super::name::{self, Alias};
use super::time::Stamp;

/// The size of an entry, in bytes.
pub const LEN: usize = 32;
/// The first byte of the entry that ends a folder.
pub const END: u8 = 0;
/// The first byte of a removed entry.
pub const REMOVED: u8 = 0xe5;

pub const READ_ONLY: u8 = 0x01;
pub const VOLUME_LABEL: u8 = 0x08;
pub const FOLDER: u8 = 0x10;
pub const ARCHIVE: u8 = 0x20;
const LONG_NAME: u8 = 0x0f;
const LONG_NAME_MASK: u8 = 0x3f;

/// UTF-16 units in one part of a long name, and their offsets.
const UNITS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
const LAST_PART: u8 = 0x40;

/// The bit of byte 12 that marks an old name during a rename; no other file has it on the disk. Bits 3 and 4 mark lower case, and
/// Windows uses the lower bits for encrypted files.
const LEAVING: u8 = 0x40;

/// The entry that locates a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatEntry(pub [u8; LEN]);

impl FatEntry {
    /// An entry for a file or folder created now.
    pub fn new(alias: Alias, attributes: u8, first: u32, now: SystemTime) -> Self {
        let mut entry = Self([0; LEN]);
        entry.0[..11].copy_from_slice(&alias);
        entry.0[11] = attributes;
        entry.set_first(first);
        let stamp = Stamp::new(now);
        entry.0[13] = stamp.hundredths;
        entry.put16(14, stamp.time);
        entry.put16(16, stamp.date);
        entry.set_accessed(now);
        entry.set_modified(now);
        entry
    }

    pub fn alias(&self) -> Alias {
        let mut alias = [0; 11];
        alias.copy_from_slice(&self.0[..11]);
        alias
    }

    fn attributes(&self) -> u8 {
        self.0[11]
    }

    /// The bits that select which parts of the alias are shown in lower case.
    pub fn case(&self) -> u8 {
        self.0[12]
    }

    /// Whether the entry is not a file: `.`, `..` or a label.
    fn is_nothing(&self, at: u32, is_root: bool) -> bool {
        let itself = !is_root && matches!((at, &self.alias()), (0, b".          ") | (1, b"..         "));
        itself || self.attributes() & VOLUME_LABEL != 0
    }

    /// Why the entry cannot be shown, if it may have been a file.
    fn damage(&self, name: &str, at: u32, is_root: bool) -> Option<&'static str> {
        let label = self.attributes() & VOLUME_LABEL != 0;
        match () {
            () if label && (self.first() != 0 || self.size() != 0) => Some("a volume label with contents"),
            () if !self.is_nothing(at, is_root) && !usable(name) => Some("a name that no file can have"),
            () => None,
        }
    }

    /// This entry with another name.
    pub fn renamed(mut self, alias: Alias) -> Self {
        self.0[..11].copy_from_slice(&alias);
        self.0[12] = 0;
        self
    }

    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
}

impl Record for FatEntry {
    fn copy(&self) -> Box<dyn Record> {
        Box::new(*self)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    fn fixed(&self) -> usize {
        LEN
    }

    fn is_folder(&self) -> bool {
        self.attributes() & FOLDER != 0
    }

    fn read_only(&self) -> bool {
        self.attributes() & READ_ONLY != 0
    }

    fn first(&self) -> u32 {
        u32::from(self.get16(20)) << 16 | u32::from(self.get16(26))
    }

    fn set_first(&mut self, cluster: u32) {
        self.put16(20, (cluster >> 16) as u16);
        self.put16(26, cluster as u16);
    }

    fn size(&self) -> u64 {
        u32::from_le_bytes([self.0[28], self.0[29], self.0[30], self.0[31]]).into()
    }

    fn set_size(&mut self, size: u64, _valid: u64) {
        self.0[28..].copy_from_slice(&(size as u32).to_le_bytes());
    }

    fn set_archive(&mut self) {
        self.0[11] |= ARCHIVE;
    }

    fn created(&self) -> Option<SystemTime> {
        Stamp { date: self.get16(16), time: self.get16(14), hundredths: self.0[13] }.time()
    }

    fn modified(&self) -> Option<SystemTime> {
        Stamp { date: self.get16(24), time: self.get16(22), hundredths: 0 }.time()
    }

    fn set_modified(&mut self, time: SystemTime) {
        let stamp = Stamp::new(time);
        self.put16(22, stamp.time);
        self.put16(24, stamp.date);
    }

    fn accessed(&self) -> Option<SystemTime> {
        Stamp { date: self.get16(18), time: 0, hundredths: 0 }.time()
    }

    fn set_accessed(&mut self, time: SystemTime) {
        self.put16(18, Stamp::new(time).date);
    }

    fn with_contents_of(&self, other: &dyn Record) -> Box<dyn Record> {
        let (mut entry, other) = (*self, other.bytes());
        entry.0[13..].copy_from_slice(&other[13..]);
        entry.0[11] = other[11];
        entry.set_leaving(false);
        Box::new(entry)
    }

    fn same_contents(&self, other: &dyn Record) -> bool {
        let other = other.bytes();
        self.0[11] == other[11] && self.0[13..] == other[13..]
    }

    fn leaving(&self) -> bool {
        self.0[12] & LEAVING != 0
    }

    fn set_leaving(&mut self, leaving: bool) {
        self.0[12] = self.0[12] & !LEAVING | if leaving { LEAVING } else { 0 };
    }
}

/// FAT's entries and names.
pub struct FatLayout;

impl EntryLayout for FatLayout {
    fn name(&self) -> &'static str {
        "FAT"
    }

    fn checker(&self) -> &'static str {
        "fsck.vfat"
    }

    fn largest(&self) -> u64 {
        u32::MAX.into()
    }

    /// The specification allows at most 65,536.
    fn most_entries(&self) -> u32 {
        1 << 16
    }

    fn folded(&self, name: &str) -> String {
        name::folded(name)
    }

    fn parse(&self, folder: &[u8], is_root: bool) -> Parsed {
        parse(folder, is_root)
    }

    fn removed(&self, _first: u8) -> u8 {
        REMOVED
    }

    fn new_record(&self, is_folder: bool, now: SystemTime) -> Box<dyn Record> {
        Box::new(FatEntry::new([b' '; 11], if is_folder { FOLDER } else { ARCHIVE }, 0, now))
    }

    fn named(&self, name: &str, record: &dyn Record, aliases: &HashSet<Alias>) -> io::Result<(FoundEntry, Vec<u8>)> {
        let (alias, enough) = name::alias(name, aliases)?;
        let mut entry = FatEntry([0; LEN]);
        entry.0.copy_from_slice(&record.bytes());
        let entry = entry.renamed(alias);
        let mut slots = if enough { Vec::new() } else { long_name(name, &alias) };
        slots.push(entry.0);
        let count = slots.len() as u32;
        let found = FoundEntry {
            name: name.to_owned(),
            alias: Some(alias),
            entry: Box::new(entry),
            slots: 0..count,
            at: count - 1,
        };
        Ok((found, slots.concat()))
    }

    fn dots(&self, cluster: u32, above: u32, now: SystemTime) -> Vec<u8> {
        [FatEntry::new(*b".          ", FOLDER, cluster, now).0, FatEntry::new(*b"..         ", FOLDER, above, now).0]
            .concat()
    }
}

/// The parts of a long name, in stored order, before the entry with `alias`.
pub fn long_name(name: &str, alias: &Alias) -> Vec<[u8; LEN]> {
    let mut units: Vec<u16> = name.encode_utf16().collect();
    let parts = units.len().div_ceil(UNITS.len());
    // If there is room, a NUL ends the name, and the rest of the part is filled with ones.
    if units.len() < parts * UNITS.len() {
        units.push(0);
        units.resize(parts * UNITS.len(), 0xffff);
    }
    let checksum = name::checksum(alias);
    let part = |(i, units): (usize, &[u16])| {
        let mut bytes = [0; LEN];
        bytes[0] = (i + 1) as u8 | if i + 1 == parts { LAST_PART } else { 0 };
        bytes[11] = LONG_NAME;
        bytes[13] = checksum;
        UNITS.iter().zip(units).for_each(|(&at, unit)| bytes[at..at + 2].copy_from_slice(&unit.to_le_bytes()));
        bytes
    };
    units.chunks(UNITS.len()).enumerate().map(part).rev().collect()
}

/// The files and folders in a folder. `.`, `..` and the volume's label are neither files nor damaged.
pub fn parse(folder: &[u8], is_root: bool) -> Parsed {
    let slots = (folder.len() / LEN) as u32;
    let mut parsed = Parsed { found: Vec::new(), end: slots, damaged: Vec::new(), stray_names: Vec::new() };
    let mut long: Option<LongName> = None;
    for (at, bytes) in (0..).zip(folder.as_chunks::<LEN>().0) {
        if bytes[0] == END {
            parsed.end = at;
            break;
        }
        if bytes[0] == REMOVED {
            parsed.stray_names.extend(long.take().into_iter().flat_map(|long| long.begin..at));
        } else if bytes[11] & LONG_NAME_MASK == LONG_NAME {
            let before = long.as_ref().map_or(at, |long| long.begin);
            long = LongName::grown(long, bytes, at);
            let begin = long.as_ref().map_or(at + 1, |long| long.begin);
            parsed.stray_names.extend(before..begin);
        } else {
            let entry = FatEntry(*bytes);
            let before = long.as_ref().map_or(at, |long| long.begin);
            let long = long.take().filter(|l| l.belongs_to(&entry));
            let begin = long.as_ref().map_or(at, |l| l.begin);
            parsed.stray_names.extend(before..begin);
            let named = long.and_then(LongName::text);
            let name = named.unwrap_or_else(|| name::shown(&entry.alias(), entry.case()));
            match entry.damage(&name, at, is_root) {
                None if entry.is_nothing(at, is_root) => {}
                None => parsed.found.push(FoundEntry {
                    name,
                    alias: Some(entry.alias()),
                    entry: Box::new(entry),
                    slots: begin..at + 1,
                    at,
                }),
                Some(why) => parsed.damaged.push(Damaged { slots: begin..at + 1, why, leaving: None }),
            }
        }
    }
    let end = parsed.end;
    parsed.stray_names.extend(long.into_iter().flat_map(|long| long.begin..end));
    parsed
}

/// A partly parsed long name.
struct LongName {
    begin: u32,
    /// The number of the last part parsed.
    part: u8,
    checksum: u8,
    /// The parts, from the end of the name to its beginning.
    parts: Vec<[u16; UNITS.len()]>,
}

impl LongName {
    /// Adds a part to the name, if it is the part expected next.
    fn grown(before: Option<Self>, bytes: &[u8; LEN], at: u32) -> Option<Self> {
        let (part, checksum) = (bytes[0] & !LAST_PART, bytes[13]);
        let units = UNITS.map(|at| u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        if bytes[0] & LAST_PART != 0 {
            let sound = (1..=20).contains(&part);
            return sound.then(|| Self { begin: at, part, checksum, parts: vec![units] });
        }
        let mut name = before.filter(|b| b.part == part + 1 && part > 0 && b.checksum == checksum)?;
        name.part = part;
        name.parts.push(units);
        Some(name)
    }

    fn belongs_to(&self, entry: &FatEntry) -> bool {
        self.part == 1 && self.checksum == name::checksum(&entry.alias())
    }

    /// The name; `None` if it is unusable.
    fn text(self) -> Option<String> {
        let units = self.parts.iter().rev().flatten().copied().take_while(|u| *u != 0);
        let text: String = char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).collect();
        usable(&text).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_come_back() {
        for len in 1..=255 {
            let name: String = "long näme 🦀 of a file.with dots ".chars().cycle().take(len).collect();
            let name = if name.encode_utf16().count() > 255 { "n".repeat(len) } else { name };
            let entry = FatEntry::new(*b"LONGN~1 TXT", ARCHIVE, 7, SystemTime::now());
            let mut folder = long_name(&name, &entry.alias()).concat();
            folder.extend(entry.0);
            let Parsed { found, end, damaged, stray_names } = parse(&folder, false);
            assert!(damaged.is_empty() && stray_names.is_empty());
            assert_eq!((found.len(), end as usize), (1, folder.len() / LEN));
            assert_eq!((&found[0].name, found[0].entry.bytes(), found[0].slots.start), (&name, entry.bytes(), 0));
        }
    }

    #[test]
    fn long_names_that_belong_to_nothing_are_left_out() {
        let entry = FatEntry::new(*b"SHORT   TXT", ARCHIVE, 0, SystemTime::UNIX_EPOCH);
        let parts = long_name("a long name of three parts, not two", &entry.alias());
        let folder = |parts: &[[u8; LEN]]| [parts.concat(), entry.0.to_vec()].concat();
        let mut other = parts.clone();
        other[1][13] ^= 1;
        for parts in [&parts[1..], &parts[..2], &other, &[parts[1], parts[0], parts[2]]] {
            let Parsed { found, stray_names, .. } = parse(&folder(parts), false);
            assert_eq!(stray_names, (0..found[0].at).collect::<Vec<_>>());
            assert_eq!((found[0].name.as_str(), found[0].slots.start), ("SHORT.TXT", found[0].at));
        }
        assert_eq!(parse(&folder(&parts), false).found[0].name, "a long name of three parts, not two");
    }
}
