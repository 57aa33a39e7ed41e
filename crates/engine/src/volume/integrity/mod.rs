//! Sectors with a tag each, in dm-integrity's on-disk format below dm-crypt (Linux, drivers/md/dm-integrity.c and
//! Documentation/admin-guide/device-mapper/dm-integrity.rst).
//!
//! ```text
//! superblock | journal | tags of area 0 | blocks of area 0 | tags of area 1 | blocks of area 1 ...
//! ```
//!
//! A block and its tag are in two places, and a crash between the two writes would leave a block that cannot be read.
//! So everything is written twice: first to the journal and, once that is on the disk, to its place. Linux replays our
//! journal after a crash, and we replay Linux's.
//!
//! Opening a volume only reads the journal: blocks that are in it are read from there. The first write moves them to
//! their places. From then on each write goes to journal sections of its own, and to its place when the journal is full
//! or the volume is closed, which empties it. A write of one block costs a whole section, which is some 40 KiB with
//! blocks of 512 bytes and 130 KiB with 4096; a long one costs twice its size. Linux collects writes in memory, which
//! saves that but loses what it has collected if it stops.

mod journal;
mod superblock;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use claviger_crypto::modes::AuthenticatedCipher;

use super::{Payload, Segment};
use crate::error::{Error, ErrorKind, Result};
use crate::random;
use crate::store::Store;
use journal::{Head, Journal, JournalSlot, Next};
use superblock::{Geometry, SUPERBLOCK};

/// Bytes that are moved from the journal to their places, or filled, at a time.
const PIECE: usize = 1 << 20;

/// Blocks with tags in part of a store. All offsets are relative to the superblock, so that the part may be moved.
#[derive(Debug)]
pub struct TaggedSectors {
    geometry: Geometry,
    /// Bytes of the store that it was looked for in, from its superblock on.
    room: u64,
    state: RwLock<State>,
    /// Why nothing is written any more: the first error.
    failure: OnceLock<String>,
}

#[derive(Debug)]
struct State {
    /// Blocks whose newest version is in the journal.
    in_journal: BTreeMap<u64, JournalSlot>,
    writing: Writing,
}

/// What the next write has to do first.
#[derive(Clone, Copy, Debug)]
enum Writing {
    /// The journal is as it was found.
    NotYet(Next),
    /// Continue here; the next `free` sections hold nothing that is not in its place too.
    Ready { head: Head, free: u32 },
    /// A write failed, and what is on the disk is unknown: only reads go on.
    Failed,
}

/// Reads the superblock and the journal of the `len` bytes at `offset` of `store`. Nothing is written.
///
/// `tag` is the size of a tag and `sector` the size of a sector that has one, both in bytes.
///
/// # Errors
/// `Malformed`, naming the field and its offset; `Unsupported` for a journal with a MAC, bitmaps and whatever else
/// dm-crypt never asks for; `Io`.
pub fn open(store: &dyn Store, offset: u64, len: u64, tag: usize, sector: usize) -> Result<TaggedSectors> {
    let end = offset.checked_add(len).filter(|end| *end <= store.len() && len >= SUPERBLOCK as u64);
    if end.is_none() {
        let what = format!("the area of {len} bytes at {offset} has no room for a superblock in {} bytes", store.len());
        return Err(ErrorKind::Malformed { field: "integrity magic", offset, what }.into());
    }
    let mut bytes = [0; SUPERBLOCK];
    store.read_at(offset, &mut bytes)?;
    let geometry = Geometry::parse(&bytes, offset, len, tag, sector)?;
    let Journal { blocks, next } = journal::read(&geometry, store, offset)?;
    let state = State { in_journal: blocks, writing: Writing::NotYet(next) };
    Ok(TaggedSectors { geometry, room: len, state: RwLock::new(state), failure: OnceLock::new() })
}

/// How many bytes of data fit into `len` bytes at the end of a store of `device` bytes, beside tags and the journal: as
/// many as Linux would provide.
///
/// # Errors
/// `Misuse` if there is no room, or tags or sectors cannot have that size.
pub fn capacity(len: u64, device: u64, tag: usize, sector: usize) -> Result<u64> {
    let geometry = Geometry::plan(len, device, tag, sector)?;
    Ok(geometry.provided * superblock::SECTOR)
}

/// Makes an area of `len` bytes at `offset` of `store` whose sectors all read as zeros: every sector gets a tag, or a
/// file system could not read a sector in order to change part of it. The superblock is written last.
///
/// Returns the number of bytes of data. `tell` is called with the bytes filled so far and the total; an error from it
/// ends the work.
///
/// # Errors
/// `Misuse` if there is no room; `Io`; those of `tell`. In each case there is no superblock.
pub fn format(
    store: &dyn Store,
    offset: u64,
    len: u64,
    cipher: &dyn AuthenticatedCipher,
    tell: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<u64> {
    if offset.checked_add(len).is_none_or(|end| end > store.len()) {
        return Err(Error::misuse(format!("{len} bytes at {offset} reach past the end at {}", store.len())));
    }
    let geometry = Geometry::plan(len, store.len(), cipher.tag_size(), cipher.sector_size())?;
    // The old contents must not look like an area while the blocks are filled.
    store.write_at(offset, &mut [0; SUPERBLOCK])?;
    store.flush()?;
    fill(&geometry, store, offset, cipher, tell)?;
    for section in 0..geometry.sections {
        let mut empty = journal::section(&geometry, Head { section, number: 0 }, std::iter::empty());
        store.write_at(offset + geometry.section_at(section), &mut empty)?;
    }
    store.flush()?;
    store.write_at(offset, &mut geometry.superblock())?;
    store.flush()?;
    Ok(geometry.provided * superblock::SECTOR)
}

/// Writes zeros to every block, encrypted and tagged.
fn fill(
    geometry: &Geometry,
    store: &dyn Store,
    base: u64,
    cipher: &dyn AuthenticatedCipher,
    tell: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let total = geometry.provided * superblock::SECTOR;
    let mut block = 0;
    tell(0, total)?;
    while block < geometry.blocks() {
        let count = (geometry.blocks() - block).min(geometry.together(block)).min((PIECE / geometry.block()) as u64);
        let mut data = vec![0; count as usize * geometry.block()];
        let mut tags = random_tags(count as usize * geometry.tag)?;
        cipher.encrypt(block, &mut data, &mut tags);
        store.write_at(base + geometry.data_at(block), &mut data)?;
        store.write_at(base + geometry.tag_at(block), &mut tags)?;
        block += count;
        tell(block * geometry.block() as u64, total)?;
    }
    Ok(())
}

/// Tags before encryption: random initialisation vectors come from them.
pub(super) fn random_tags(len: usize) -> io::Result<Vec<u8>> {
    let mut tags = vec![0; len];
    random::fill(&mut tags)?;
    Ok(tags)
}

/// A whole area at `offset` of its store, as the only segment of a volume.
///
/// # Errors
/// `Misuse` if the cipher's tags or sectors differ in size from the area's.
pub fn segment(
    area: Arc<TaggedSectors>,
    offset: u64,
    cipher: Arc<dyn AuthenticatedCipher>,
    writable: bool,
) -> Result<Segment> {
    if area.sector_size() != cipher.sector_size() || area.tag_size() != cipher.tag_size() {
        return Err(Error::misuse("the cipher's tags or sectors differ in size from the area's"));
    }
    let len = area.len();
    let payload = Payload::Authenticated { area, cipher, first: 0, kernel: None };
    Ok(Segment { at: 0, len, stored_at: offset, payload, writable })
}

impl TaggedSectors {
    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.geometry.provided * superblock::SECTOR
    }

    /// Bytes of the store that it was looked for in, from its superblock on: what [`open`] was told.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Whether there is no data, which no valid superblock says.
    pub fn is_empty(&self) -> bool {
        self.geometry.provided == 0
    }

    /// Bytes of a sector that has a tag.
    pub fn sector_size(&self) -> usize {
        self.geometry.block()
    }

    /// Bytes of a tag.
    pub fn tag_size(&self) -> usize {
        self.geometry.tag
    }

    /// How many blocks are in the journal and not yet in their places, as after a crash.
    pub fn in_journal(&self) -> usize {
        self.read_state().in_journal.len()
    }

    /// Reads whole sectors from number `first` on, with their tags, as they are stored.
    pub(super) fn read(
        &self,
        store: &dyn Store,
        base: u64,
        first: u64,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> io::Result<()> {
        let state = self.read_state();
        self.read_newest(&state.in_journal, store, base, first, data, tags)
    }

    /// Writes whole encrypted sectors from number `first` on, with their tags. On return the store has taken them: a
    /// crash of this program loses none, and a crash of the machine leaves each as it was or as it should be.
    pub(super) fn write(&self, store: &dyn Store, base: u64, first: u64, data: &[u8], tags: &[u8]) -> io::Result<()> {
        let mut state = self.write_state();
        // The journal comes first and would accept what can no longer be moved to its place.
        let written =
            store.still_whole().and_then(|()| self.write_into_journal(&mut state, store, base, first, data, tags));
        written.inspect_err(|e| self.fail(&mut state, e))
    }

    /// Makes writes durable. A durable journal is as good as the blocks' own places.
    pub(super) fn flush(&self) -> io::Result<()> {
        match self.read_state().writing {
            Writing::Failed => Err(self.failed()),
            Writing::NotYet(_) | Writing::Ready { .. } => Ok(()),
        }
    }

    /// A flush failed, so what the disk has of the journal is unknown, and a later flush that succeeds says nothing
    /// about it: moving blocks from the journal could move what it held before. Only reads go on.
    pub(super) fn flushing_failed(&self, error: &io::Error) {
        let mut state = self.write_state();
        if matches!(state.writing, Writing::Ready { .. }) {
            self.fail(&mut state, error);
        }
    }

    /// Moves what was written to its place and empties the journal, as when the volume is closed. A journal that was
    /// only read stays as it is.
    pub(super) fn settle(&self, store: &dyn Store, base: u64) -> io::Result<()> {
        let mut state = self.write_state();
        let Writing::Ready { head, .. } = state.writing else { return Ok(()) };
        let settled = self.put_into_place(&mut state, store, base).and_then(|()| self.empty(store, base, head));
        match &settled {
            Ok(head) => state.writing = Writing::NotYet(Next::Section(*head)),
            Err(e) => self.fail(&mut state, e),
        }
        settled.map(|_| ())
    }

    fn read_newest(
        &self,
        in_journal: &BTreeMap<u64, JournalSlot>,
        store: &dyn Store,
        base: u64,
        first: u64,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> io::Result<()> {
        let (block, tag) = (self.geometry.block(), self.geometry.tag);
        let end = first + (data.len() / block) as u64;
        let mut number = first;
        while number < end {
            let at = (number - first) as usize;
            let journaled = in_journal.range(number..end).next();
            let count = match journaled {
                Some((next, place)) if *next == number => {
                    let (data, tag) = (&mut data[at * block..][..block], &mut tags[at * tag..][..tag]);
                    journal::read_block(&self.geometry, store, base, *place, data, tag)?;
                    1
                }
                other => {
                    let until = other.map_or(end, |(next, _)| *next);
                    let count = (until - number).min(self.geometry.together(number));
                    store.read_at(
                        base + self.geometry.data_at(number),
                        &mut data[at * block..][..count as usize * block],
                    )?;
                    store
                        .read_at(base + self.geometry.tag_at(number), &mut tags[at * tag..][..count as usize * tag])?;
                    count
                }
            };
            number += count;
        }
        Ok(())
    }

    fn write_into_journal(
        &self,
        state: &mut State,
        store: &dyn Store,
        base: u64,
        first: u64,
        data: &[u8],
        tags: &[u8],
    ) -> io::Result<()> {
        let entries = self.geometry.section_entries() as usize;
        let data = data.chunks(entries * self.geometry.block());
        let tags = tags.chunks(entries * self.geometry.tag);
        for (first, (data, tags)) in (first..).step_by(entries).zip(data.zip(tags)) {
            let head = self.head(state, store, base)?;
            let numbered = (first..).zip(data.chunks(self.geometry.block()).zip(tags.chunks(self.geometry.tag)));
            let mut section = journal::section(&self.geometry, head, numbered.map(|(n, (data, tag))| (n, data, tag)));
            store.write_at(base + self.geometry.section_at(head.section), &mut section)?;
            let places = (0..).map(|entry| JournalSlot { section: head.section, entry });
            state.in_journal.extend((first..first + (data.len() / self.geometry.block()) as u64).zip(places));
        }
        Ok(())
    }

    /// The next section of the journal; it holds nothing that is still needed.
    fn head(&self, state: &mut State, store: &dyn Store, base: u64) -> io::Result<Head> {
        let sections = self.geometry.sections;
        let (head, free) = match state.writing {
            Writing::Failed => return Err(self.failed()),
            Writing::Ready { head, free } if free > 0 => (head, free),
            Writing::Ready { head, .. } => {
                self.put_into_place(state, store, base)?;
                (head, sections)
            }
            Writing::NotYet(next) => {
                self.put_into_place(state, store, base)?;
                match next {
                    Next::Section(head) => (head, sections),
                    Next::Clear(from) => (self.clear(store, base, from)?, sections),
                }
            }
        };
        state.writing = Writing::Ready { head: head.after(sections), free: free - 1 };
        Ok(head)
    }

    /// Moves what is in the journal to its place. Before and after, everything is on the disk.
    fn put_into_place(&self, state: &mut State, store: &dyn Store, base: u64) -> io::Result<()> {
        store.flush()?;
        let (block, tag) = (self.geometry.block(), self.geometry.tag);
        for run in self.runs(&state.in_journal) {
            let count = (run.end - run.start) as usize;
            let (mut data, mut tags) = (vec![0; count * block], vec![0; count * tag]);
            self.read_newest(&state.in_journal, store, base, run.start, &mut data, &mut tags)?;
            store.write_at(base + self.geometry.data_at(run.start), &mut data)?;
            store.write_at(base + self.geometry.tag_at(run.start), &mut tags)?;
        }
        store.flush()?;
        state.in_journal.clear();
        Ok(())
    }

    /// The blocks in the journal, in runs that are contiguous in their places.
    fn runs(&self, in_journal: &BTreeMap<u64, JournalSlot>) -> Vec<Range<u64>> {
        let longest = (PIECE / self.geometry.block()) as u64;
        let mut runs: Vec<Range<u64>> = Vec::new();
        for &block in in_journal.keys() {
            match runs.last_mut() {
                Some(run)
                    if run.end == block
                        && block - run.start < longest
                        && block - run.start < self.geometry.together(run.start) =>
                {
                    run.end += 1;
                }
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// Goes once around the ring writing empty sections, the oldest first (as Linux does in
    /// `dm_integrity_postsuspend`).
    fn empty(&self, store: &dyn Store, base: u64, mut head: Head) -> io::Result<Head> {
        for _ in 0..self.geometry.sections {
            let mut empty = journal::section(&self.geometry, head, std::iter::empty());
            store.write_at(base + self.geometry.section_at(head.section), &mut empty)?;
            head = head.after(self.geometry.sections);
            if head.section == 0 {
                store.flush()?;
            }
        }
        store.flush()?;
        Ok(head)
    }

    /// Empties all sections if one is torn. After any number of writes nothing in the journal counts any more.
    fn clear(&self, store: &dyn Store, base: u64, from: Head) -> io::Result<Head> {
        for group in journal::clearing(from.section, self.geometry.sections) {
            for section in group {
                let head = Head { section, number: from.number };
                let mut empty = journal::section(&self.geometry, head, std::iter::empty());
                store.write_at(base + self.geometry.section_at(section), &mut empty)?;
            }
            store.flush()?;
        }
        Ok(journal::after_clearing(from.number))
    }

    /// Refuses every write from now on.
    fn fail(&self, state: &mut State, error: &io::Error) {
        state.writing = Writing::Failed;
        self.failure.get_or_init(|| error.to_string());
    }

    fn failed(&self) -> io::Error {
        let why = self.failure.get().map_or("", String::as_str);
        io::Error::other(format!("nothing more is written until the volume is reopened, because a write failed: {why}"))
    }

    fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
