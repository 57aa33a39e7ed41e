//! dm-integrity's journal (Linux, drivers/md/dm-integrity.c: `struct journal_entry`, `struct journal_sector`,
//! `replay_journal`, `do_journal_write`, `init_journal`).
//!
//! It is a ring of sections. A section is eight sectors of entries followed by the blocks they name. The last eight
//! bytes of each sector are its commit id: one of four numbers, mixed with the sector's position, that changes each
//! time the ring wraps around. A section counts only if all of its sectors have the same number, so that a partly
//! written one is noticed; the bytes of a block that the ids displace are in its entry.

use std::collections::BTreeMap;
use std::io;

use super::superblock::{COMMIT_ID, ENTRY_SECTORS, Geometry, SECTOR};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// How many commit numbers there are; after the last comes the first again.
const NUMBERS: u8 = 4;
/// The upper half of an unused entry's sector number.
const UNUSED: u32 = u32::MAX;

/// Where a block is in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalSlot {
    pub section: u32,
    pub entry: u32,
}

/// The contents of a journal.
#[derive(Debug)]
pub(super) struct Journal {
    /// The newest version of each block in a committed section.
    pub blocks: BTreeMap<u64, JournalSlot>,
    /// How to write the next section.
    pub next: Next,
}

/// How to continue a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Continue with this section and number.
    Section(Head),
    /// A section was only partly written: first empty all of them, with this number, starting at this one.
    Clear(Head),
}

/// A section and the number to write it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub section: u32,
    pub number: u8,
}

impl Head {
    /// The next section in the ring.
    pub fn after(self, sections: u32) -> Self {
        match self.section + 1 {
            next if next < sections => Self { section: next, ..self },
            _ => Self { section: 0, number: following(self.number) },
        }
    }
}

/// Reads the whole journal and finds what Linux would replay.
///
/// `base` is the offset of the superblock in the store.
///
/// # Errors
/// `Malformed` for a sector that no journal can have; `Io`.
pub(super) fn read(geometry: &Geometry, store: &dyn Store, base: u64) -> Result<Journal> {
    let mut numbers = Vec::with_capacity(geometry.sections as usize);
    let mut newest_of = [None; NUMBERS as usize];
    let mut empty = true;
    let mut bytes = vec![0; (geometry.section_sectors() * SECTOR) as usize];
    for section in 0..geometry.sections {
        store.read_at(base + geometry.section_at(section), &mut bytes)?;
        let mut whole = None;
        for (i, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            let number = number_of(section, i as u64, sector).ok_or_else(|| {
                let offset = base + geometry.section_at(section) + i as u64 * SECTOR + (SECTOR - COMMIT_ID as u64);
                let what = "it does not belong to the journal, or the journal is encrypted".to_owned();
                Error::new(ErrorKind::Malformed { field: "commit id of the journal", offset, what })
                    .hint("The journal may hold the newest writes, so the volume does not open without it.")
            })?;
            newest_of[usize::from(number)] = Some(section);
            whole = if i == 0 { Some(number) } else { whole.filter(|w| *w == number) };
        }
        numbers.push(whole);
        empty &= (0..geometry.section_entries()).all(|entry| sector_of(entry_in(geometry, &bytes, entry)).is_none());
    }
    let order = Order::new(&numbers, &newest_of, empty).ok_or_else(|| {
        let what = "all four commit numbers occur".to_owned();
        Error::new(ErrorKind::Malformed {
            field: "commit ids of the journal",
            offset: base + geometry.section_at(0),
            what,
        })
    })?;
    let mut blocks = BTreeMap::new();
    for section in order.replayed() {
        store.read_at(base + geometry.section_at(section), &mut bytes)?;
        for entry in 0..geometry.section_entries() {
            let Some(sector) = sector_of(entry_in(geometry, &bytes, entry)) else { continue };
            if sector % geometry.block_sectors != 0 {
                let (within, _) = entry_at(geometry, entry);
                let offset = base + geometry.section_at(section) + within as u64;
                let what = format!("sector {sector} is inside a block");
                return Err(Error::new(ErrorKind::Malformed { field: "sector of a journal entry", offset, what }));
            }
            // Linux skips entries outside the data.
            if sector < geometry.provided {
                blocks.insert(sector / geometry.block_sectors, JournalSlot { section, entry });
            }
        }
    }
    Ok(Journal { blocks, next: order.next })
}

/// Which sections Linux replays after a crash, and how it continues.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    first: u32,
    count: u32,
    sections: u32,
    next: Next,
}

impl Order {
    /// `numbers` has for each section the number that all of its sectors share, if they do; `newest_of` has for each
    /// number the last section in which it occurs at all.
    ///
    /// `None` if all numbers occur, which no crash leaves behind.
    fn new(numbers: &[Option<u8>], newest_of: &[Option<u32>; NUMBERS as usize], empty: bool) -> Option<Self> {
        let sections = numbers.len() as u32;
        let used = |number: u8| newest_of[usize::from(number)].is_some();
        // The numbers that occur are consecutive; the last of them is the newest.
        let unused = match used(NUMBERS - 1) {
            true => (0..NUMBERS).find(|n| !used(*n))?,
            false => (0..NUMBERS).rev().take_while(|n| !used(*n)).last()?,
        };
        let newest = preceding(unused);
        let older = preceding(newest);
        let empty = empty || !used(older) && used(preceding(older));
        let last = newest_of[usize::from(newest)]?;
        // The oldest section follows the newest. The kernel's next write there uses the number of the sections before it.
        let first = Head { section: last, number: older }.after(sections);
        let mut head = first;
        let mut count = 0;
        while count < sections && numbers[head.section as usize] == Some(head.number) {
            head = head.after(sections);
            count += 1;
        }
        let next = match count == sections {
            true => Next::Section(head),
            false => Next::Clear(Head { section: first.section, number: preceding(older) }),
        };
        Some(Self { first: first.section, count: if empty { 0 } else { count }, sections, next })
    }

    /// The sections whose blocks count, the oldest first.
    fn replayed(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count).map(|i| ((u64::from(self.first) + u64::from(i)) % u64::from(self.sections)) as u32)
    }
}

fn following(number: u8) -> u8 {
    (number + 1) % NUMBERS
}

fn preceding(number: u8) -> u8 {
    (number + NUMBERS - 1) % NUMBERS
}

/// Where to continue after all sections were emptied with `number`, starting at the first.
pub(super) fn after_clearing(number: u8) -> Head {
    Head { section: 0, number: following(number) }
}

/// The order in which Linux empties the sections, starting at `first`: one, all but the last, the last. Each group must be on the
/// disk before the next.
pub(super) fn clearing(first: u32, sections: u32) -> [Vec<u32>; 3] {
    let nth = |i: u32| ((u64::from(first) + u64::from(i)) % u64::from(sections)) as u32;
    match sections {
        1 => [vec![0], Vec::new(), Vec::new()],
        _ => [vec![nth(0)], (1..sections - 1).map(nth).collect(), vec![nth(sections - 1)]],
    }
}

/// A section in memory.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub head: Head,
    /// Entries in use.
    pub used: u32,
    bytes: Vec<u8>,
}

impl Section {
    /// A section without blocks.
    pub fn empty(geometry: &Geometry, head: Head) -> Self {
        let mut bytes = vec![0; (geometry.section_sectors() * SECTOR) as usize];
        for entry in 0..geometry.section_entries() {
            let (at, _) = entry_at(geometry, entry);
            bytes[at + 4..at + 8].copy_from_slice(&UNUSED.to_le_bytes());
        }
        for (i, sector) in bytes.chunks_mut(SECTOR as usize).enumerate() {
            let id = commit_id(head.section, i as u64, head.number);
            sector[SECTOR as usize - COMMIT_ID..].copy_from_slice(&id.to_le_bytes());
        }
        Self { head, used: 0, bytes }
    }

    /// The entry for a block with its newest version at `slot`: its own if that is in this section. `None` if there is no room.
    pub fn entry_for(&self, geometry: &Geometry, slot: Option<&JournalSlot>) -> Option<u32> {
        let own = slot.filter(|slot| slot.section == self.head.section).map(|slot| slot.entry);
        own.or((self.used < geometry.section_entries()).then_some(self.used))
    }

    /// Stores a block in `entry`: its number, ciphertext and tag.
    pub fn put(&mut self, geometry: &Geometry, entry: u32, block: u64, data: &[u8], tag: &[u8]) {
        self.used = self.used.max(entry + 1);
        let (at, tag_at) = entry_at(geometry, entry);
        self.bytes[at..at + 8].copy_from_slice(&(block * geometry.block_sectors).to_le_bytes());
        self.bytes[tag_at..tag_at + tag.len()].copy_from_slice(tag);
        let data_at = data_at(geometry, entry);
        for (i, sector) in data.chunks(SECTOR as usize).enumerate() {
            let (kept, displaced) = sector.split_at(SECTOR as usize - COMMIT_ID);
            self.bytes[data_at + i * SECTOR as usize..][..kept.len()].copy_from_slice(kept);
            self.bytes[at + 8 + i * COMMIT_ID..][..COMMIT_ID].copy_from_slice(displaced);
        }
    }

    /// The block in `entry`: its ciphertext and its tag.
    pub fn get(&self, geometry: &Geometry, entry: u32, data: &mut [u8], tag: &mut [u8]) {
        let data_at = data_at(geometry, entry);
        data.copy_from_slice(&self.bytes[data_at..data_at + data.len()]);
        complete(geometry, &self.bytes, entry, data, tag);
    }

    /// Writes the section to its place.
    pub fn write(&mut self, geometry: &Geometry, store: &dyn Store, base: u64) -> io::Result<()> {
        store.write_clobbering(base + geometry.section_at(self.head.section), &mut self.bytes)
    }
}

/// Reads blocks with consecutive entries from the journal: their ciphertext and their tags.
pub(super) fn read_blocks(
    geometry: &Geometry,
    store: &dyn Store,
    base: u64,
    first: JournalSlot,
    data: &mut [u8],
    tags: &mut [u8],
) -> io::Result<()> {
    let section = base + geometry.section_at(first.section);
    let mut entries = [0; (ENTRY_SECTORS * SECTOR) as usize];
    store.read_at(section, &mut entries)?;
    store.read_at(section + data_at(geometry, first.entry) as u64, data)?;
    let blocks = data.chunks_mut(geometry.block()).zip(tags.chunks_mut(geometry.tag));
    (first.entry..).zip(blocks).for_each(|(entry, (data, tag))| complete(geometry, &entries, entry, data, tag));
    Ok(())
}

/// Completes a block with what its entry holds: its tag, and the bytes displaced by commit ids.
fn complete(geometry: &Geometry, entries: &[u8], entry: u32, data: &mut [u8], tag: &mut [u8]) {
    let (at, tag_at) = entry_at(geometry, entry);
    for (sector, displaced) in data.chunks_mut(SECTOR as usize).zip(entries[at + 8..tag_at].chunks(COMMIT_ID)) {
        sector[SECTOR as usize - COMMIT_ID..].copy_from_slice(displaced);
    }
    tag.copy_from_slice(&entries[tag_at..][..tag.len()]);
}

/// The offsets of an entry and of its tag in its section, in bytes. Entries are spread over the eight sectors in turn.
fn entry_at(geometry: &Geometry, entry: u32) -> (usize, usize) {
    let (sector, row) = (entry as usize % ENTRY_SECTORS as usize, entry as usize / ENTRY_SECTORS as usize);
    let at = sector * SECTOR as usize + row * geometry.entry();
    (at, at + 8 + geometry.block_sectors as usize * COMMIT_ID)
}

/// The offset of an entry's block in its section, in bytes.
fn data_at(geometry: &Geometry, entry: u32) -> usize {
    ((ENTRY_SECTORS + u64::from(entry) * geometry.block_sectors) * SECTOR) as usize
}

fn entry_in<'a>(geometry: &Geometry, section: &'a [u8], entry: u32) -> &'a [u8] {
    &section[entry_at(geometry, entry).0..][..8]
}

/// The sector that an entry names, if it is used.
fn sector_of(entry: &[u8]) -> Option<u64> {
    let sector = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
    ((sector >> 32) as u32 != UNUSED).then_some(sector)
}

/// The commit id of a sector in a section written with `number`.
fn commit_id(section: u32, sector: u64, number: u8) -> u64 {
    (0x1111_1111_1111_1111 * (u64::from(number) + 1)) ^ (u64::from(section) << 32) ^ sector
}

/// The number a sector of the journal was written with.
fn number_of(section: u32, sector: u64, bytes: &[u8]) -> Option<u8> {
    let id = u64::from_le_bytes(bytes[SECTOR as usize - COMMIT_ID..].try_into().expect("eight bytes"));
    (0..NUMBERS).find(|number| commit_id(section, sector, *number) == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(numbers: &[Option<u8>]) -> Option<Order> {
        let mut newest_of = [None; 4];
        for (section, number) in (0..).zip(numbers) {
            number.iter().for_each(|n| newest_of[usize::from(*n)] = Some(section));
        }
        Order::new(numbers, &newest_of, false)
    }

    fn head(section: u32, number: u8) -> Head {
        Head { section, number }
    }

    #[test]
    fn a_ring_goes_on_behind_its_newest_section() {
        let all = |n| Some(n);
        // A new journal: every section has number 0, so the next round has number 1.
        let fresh = order(&[all(0); 4]).expect("it is a ring");
        assert_eq!((fresh.first, fresh.count, fresh.next), (0, 4, Next::Section(head(0, 1))));
        let begun = order(&[all(1), all(1), all(0), all(0)]).expect("it is a ring");
        assert_eq!((begun.first, begun.count, begun.next), (2, 4, Next::Section(head(2, 1))));
        assert_eq!(begun.replayed().collect::<Vec<_>>(), [2, 3, 0, 1]);
        let around = order(&[all(0), all(3), all(3)]).expect("it is a ring");
        assert_eq!((around.first, around.next), (1, Next::Section(head(1, 0))));
        let one = order(&[all(2)]).expect("it is a ring");
        assert_eq!((one.first, one.count, one.next), (0, 1, Next::Section(head(0, 3))));
    }

    #[test]
    fn a_torn_section_ends_what_counts() {
        // Section 2 was being written with number 1.
        let numbers = [Some(1), Some(1), None, Some(0)];
        let torn = Order::new(&numbers, &[Some(3), Some(2), None, None], false).expect("it is a ring");
        assert_eq!(torn.replayed().collect::<Vec<_>>(), [3, 0, 1]);
        assert_eq!(torn.next, Next::Clear(head(3, 3)));
        assert_eq!(order(&[Some(0), Some(1), Some(2), Some(3)]), None);
    }

    #[test]
    fn clearing_begins_with_the_oldest_and_ends_with_the_newest() {
        assert_eq!(clearing(0, 1), [vec![0], vec![], vec![]]);
        assert_eq!(clearing(1, 2), [vec![1], vec![], vec![0]]);
        assert_eq!(clearing(2, 4), [vec![2], vec![3, 0], vec![1]]);
    }

    #[test]
    fn a_block_comes_out_of_the_journal_as_it_went_in() {
        use crate::store::MemoryStore;
        for (tag_size, block) in [(28, 512), (64, 4096), (48, 1024)] {
            let geometry = Geometry::plan(7 << 20, 8 << 20, tag_size, block).expect("there is room");
            let count = geometry.section_entries() as usize;
            let data: Vec<u8> = (0..count * block).map(|i| ((i * 31) >> 3) as u8).collect();
            let tags: Vec<u8> = (0..count * tag_size).map(|i| (i * 7) as u8).collect();
            let mut section = Section::empty(&geometry, head(0, 2));
            for (entry, (data, tag)) in (0..).zip(data.chunks(block).zip(tags.chunks(tag_size))) {
                section.put(&geometry, entry, 100 + u64::from(entry), data, tag);
            }
            let store = MemoryStore::new(vec![0; 4096 + section.bytes.len()]);
            section.clone().write(&geometry, &store, 0).expect("there is room");
            let mut one = Geometry::plan(7 << 20, 8 << 20, tag_size, block).expect("there is room");
            one.sections = 1;
            let journal = read(&one, &store, 0).expect("it is good");
            assert_eq!(journal.blocks.len(), count);
            for (i, (number, place)) in journal.blocks.iter().enumerate() {
                assert_eq!((*number, place.entry), (100 + i as u64, i as u32));
                let (mut out, mut tag) = (vec![0; block], vec![0; tag_size]);
                section.get(&one, place.entry, &mut out, &mut tag);
                assert!(out == data[i * block..][..block] && tag == tags[i * tag_size..][..tag_size]);
            }
            let (mut out, mut out_tags) = (vec![0; data.len() - block], vec![0; tags.len() - tag_size]);
            let second = JournalSlot { section: 0, entry: 1 };
            read_blocks(&one, &store, 0, second, &mut out, &mut out_tags).expect("they are there");
            assert!(out == data[block..] && out_tags == tags[tag_size..]);
        }
    }
}
