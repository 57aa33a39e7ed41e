//! Sectors with a tag each, in dm-integrity's on-disk format below dm-crypt (Linux, drivers/md/dm-integrity.c and
//! Documentation/admin-guide/device-mapper/dm-integrity.rst).
//!
//! ```text
//! superblock | journal | tags of area 0 | blocks of area 0 | tags of area 1 | blocks of area 1 ...
//! ```
//!
//! A block and its tag are in two places, and a crash between the two writes would leave an unreadable block. So everything is
//! written twice: first to the journal and, once that is on the disk, to its place. Linux replays our journal after a crash, and we
//! replay Linux's.
//!
//! Opening a volume only reads the journal; blocks in it are read from there. The first write moves them to their places. From then
//! on, written data are collected in memory, in a section of the journal. The section is written when it is full, on a flush, or
//! after a moment (`late.rs`): some 40 KiB with blocks of 512 bytes, and 130 KiB with 4096. Blocks move to their places when the
//! journal is full or the volume is closed, which empties it.
//!
//! Readers never wait for work on the store. An index tells them for each block whether its newest version is in the journal.
//! Before blocks are moved to their places, or sections of the journal are overwritten, the writer waits for readers that used the
//! old index.

mod busy;
mod journal;
mod superblock;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use claviger_crypto::modes::AuthenticatedCipher;

use super::{Payload, Segment};
use crate::error::{Error, ErrorKind, Result};
use crate::random;
use crate::store::Store;
use busy::Busy;
pub(super) use busy::Taken;
use journal::{Head, Journal, JournalSlot, Next, Section};
pub(crate) use superblock::MAGIC;
use superblock::{Geometry, SUPERBLOCK};

/// Bytes moved from the journal to their places, or filled, at a time.
const PIECE: usize = 1 << 20;

/// Blocks with tags in part of a store. All offsets are relative to the superblock, so the part can be moved.
#[derive(Debug)]
pub struct TaggedSectors {
    geometry: Geometry,
    /// The size of the searched part of the store, from its superblock on, in bytes.
    room: u64,
    /// Held only for moments, and never during access to the store.
    index: RwLock<Index>,
    /// Held while the journal is written or emptied.
    writing: Mutex<Writing>,
    busy: Busy,
    /// Why no more writes are accepted: the first error.
    failure: OnceLock<String>,
}

/// Where the newest version of each block is.
#[derive(Debug)]
struct Index {
    /// Blocks in the journal; all others are in their places.
    in_journal: BTreeMap<u64, JournalSlot>,
    /// The section being filled. It is not in the store yet.
    collected: Option<Section>,
    /// Held shared by readers of the store that use this index. It is replaced with a new one to wait until nobody uses an older
    /// index.
    readers: Arc<RwLock<()>>,
}

/// Where the journal continues.
#[derive(Clone, Copy, Debug)]
enum Writing {
    /// The journal is as found when opened.
    NotYet(Next),
    /// Continue here. Everything in the next `free` sections is also in its place.
    Ready { head: Head, free: u32 },
}

/// Consecutive blocks in the store.
struct Stored {
    first: u64,
    count: u64,
    /// The journal slot of the first block; `None` if none of the blocks is in the journal.
    slot: Option<JournalSlot>,
}

/// Reads the superblock and the journal of the `len` bytes at `offset` of `store`. Nothing is written.
///
/// `tag` is the size of a tag and `sector` the size of a sector that has one, both in bytes.
///
/// # Errors
/// `Malformed`, naming the field and its offset; `Unsupported` for a journal with a MAC, bitmaps and whatever else
/// dm-crypt never asks for; `Io`.
pub fn open(store: &dyn Store, offset: u64, len: u64, tag: usize, sector: usize) -> Result<TaggedSectors> {
    opened(store, offset, len, Some((tag, sector)))
}

/// Like [`open`], for an area whose tags dm-integrity computes itself: the superblock has their sizes.
///
/// # Errors
/// Those of [`open`].
pub fn open_standalone(store: &dyn Store, offset: u64, len: u64) -> Result<TaggedSectors> {
    opened(store, offset, len, None)
}

fn opened(store: &dyn Store, offset: u64, len: u64, made: Option<(usize, usize)>) -> Result<TaggedSectors> {
    let end = offset.checked_add(len).filter(|end| *end <= store.len() && len >= SUPERBLOCK as u64);
    if end.is_none() {
        let what = format!("the area of {len} bytes at {offset} has no room for a superblock in {} bytes", store.len());
        return Err(ErrorKind::Malformed { field: "integrity magic", offset, what }.into());
    }
    let mut bytes = [0; SUPERBLOCK];
    store.read_at(offset, &mut bytes)?;
    let geometry = Geometry::parse(&bytes, offset, len, made)?;
    let Journal { blocks, next } = journal::read(&geometry, store, offset)?;
    let index = Index { in_journal: blocks, collected: None, readers: Arc::default() };
    Ok(TaggedSectors {
        geometry,
        room: len,
        index: RwLock::new(index),
        writing: Mutex::new(Writing::NotYet(next)),
        busy: Busy::default(),
        failure: OnceLock::new(),
    })
}

/// How many bytes of data fit into `len` bytes at the end of a store of `device` bytes, beside tags and the journal: the same as
/// with Linux.
///
/// # Errors
/// `Misuse` if there is not enough room, or if the size of tags or sectors is invalid.
pub fn capacity(len: u64, device: u64, tag: usize, sector: usize) -> Result<u64> {
    let geometry = Geometry::plan(len, device, tag, sector)?;
    Ok(geometry.provided * superblock::SECTOR)
}

/// Creates an area of `len` bytes at `offset` of `store` whose sectors all read as zeros. Every sector gets a tag, because file
/// systems read a sector before they change part of it. The superblock is written last.
///
/// Returns the number of bytes of data. `tell` is called with the bytes filled so far and the total; an error from it
/// ends the work.
///
/// # Errors
/// `Misuse` if there is not enough room; `Io`; those of `tell`. On an error there is no superblock.
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
    // While the blocks are filled, the old contents must not look like an area.
    store.write_clobbering(offset, &mut [0; SUPERBLOCK])?;
    store.flush()?;
    fill(&geometry, store, offset, cipher, tell)?;
    for section in 0..geometry.sections {
        Section::empty(&geometry, Head { section, number: 0 }).write(&geometry, store, offset)?;
    }
    store.flush()?;
    store.write_clobbering(offset, &mut geometry.superblock())?;
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
        store.write_clobbering(base + geometry.data_at(block), &mut data)?;
        store.write_clobbering(base + geometry.tag_at(block), &mut tags)?;
        block += count;
        tell(block * geometry.block() as u64, total)?;
    }
    Ok(())
}

/// Tags before encryption, which random initialisation vectors are taken from.
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

    /// The size of the searched part of the store, from its superblock on, in bytes: the argument of [`open`].
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Whether there are no data; never true with a valid superblock.
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
        self.index().in_journal.len()
    }

    /// Waits until nobody else writes these sectors, and reserves them. Every writer does this before it reads what it will write
    /// back.
    pub(super) fn take(&self, sectors: Range<u64>) -> Taken<'_> {
        self.busy.take(sectors)
    }

    /// The salt that dm-integrity hashes before each sector, if any.
    pub fn salt(&self) -> Option<[u8; 16]> {
        self.geometry.salt
    }

    /// Verifies the tag of a sector, in an area at `base` of its store.
    ///
    /// # Errors
    /// Those of reading.
    pub fn verifies(
        &self,
        store: &dyn Store,
        base: u64,
        cipher: &dyn AuthenticatedCipher,
        number: u64,
    ) -> io::Result<bool> {
        let (mut data, mut tag) = (vec![0; self.sector_size()], vec![0; self.tag_size()]);
        self.read(store, base, number, &mut data, &mut tag)?;
        Ok(cipher.decrypt(number, &mut data, &tag).is_ok())
    }

    /// Reads whole sectors from number `first` on, with their tags, as stored.
    pub(super) fn read(
        &self,
        store: &dyn Store,
        base: u64,
        first: u64,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> io::Result<()> {
        let index = self.index();
        let readers = Arc::clone(&index.readers);
        let _reading = readers.read().unwrap_or_else(PoisonError::into_inner);
        let stored = self.look_up(&index, first, data, tags);
        drop(index);
        stored.iter().try_for_each(|run| self.read_stored(store, base, first, run, data, tags))
    }

    /// Writes whole encrypted sectors from number `first` on, with their tags. After this call everybody reads the new data, and
    /// the next flush makes them durable. A crash leaves each sector old or new.
    pub(super) fn write(&self, store: &dyn Store, base: u64, first: u64, data: &[u8], tags: &[u8]) -> io::Result<()> {
        let mut writing = self.writing();
        self.unless_failed()?;
        // The journal would otherwise accept data that can no longer be moved to their places.
        let written = store.still_whole().and_then(|()| self.collect(&mut writing, store, base, first, data, tags));
        written.inspect_err(|e| self.fail(e))
    }

    /// Writes collected data to the journal, so that a crash of this program does not lose them. A flush of the store then makes
    /// them durable, because a durable journal is as good as the blocks' own places.
    pub(super) fn commit(&self, store: &dyn Store, base: u64) -> io::Result<()> {
        let _writing = self.writing();
        self.unless_failed()?;
        self.write_collected(store, base).inspect_err(|e| self.fail(e))
    }

    /// Records a failed flush. The journal on the disk is then unknown, even if a later flush succeeds: moving blocks could move
    /// the journal's former contents. Only reads continue.
    pub(super) fn flushing_failed(&self, error: &io::Error) {
        if matches!(*self.writing(), Writing::Ready { .. }) {
            self.fail(error);
        }
    }

    /// Moves written blocks to their places and empties the journal, for closing the volume. A journal that was only read stays as
    /// it is.
    pub(super) fn settle(&self, store: &dyn Store, base: u64) -> io::Result<()> {
        let mut writing = self.writing();
        let Writing::Ready { head, .. } = *writing else { return Ok(()) };
        self.unless_failed()?;
        let settled = self
            .write_collected(store, base)
            .and_then(|()| self.put_into_place(store, base))
            .and_then(|()| self.empty(store, base, head));
        let head = settled.inspect_err(|e| self.fail(e))?;
        *writing = Writing::NotYet(Next::Section(head));
        Ok(())
    }

    /// Copies what is in memory, and returns where the rest is.
    fn look_up(&self, index: &Index, first: u64, data: &mut [u8], tags: &mut [u8]) -> Vec<Stored> {
        let (block, tag) = (self.geometry.block(), self.geometry.tag);
        let end = first + (data.len() / block) as u64;
        let mut stored: Vec<Stored> = Vec::new();
        let places = |from: u64, until: u64| {
            let next = move |at: &u64| Some(at + self.geometry.together(*at)).filter(|at| *at < until);
            let runs = std::iter::successors(Some(from).filter(|from| *from < until), next);
            runs.map(move |at| Stored { first: at, count: (until - at).min(self.geometry.together(at)), slot: None })
        };
        let mut number = first;
        for (&journaled, &slot) in index.in_journal.range(first..end) {
            stored.extend(places(number, journaled));
            number = journaled + 1;
            if let Some(section) = index.collected.as_ref().filter(|section| section.head.section == slot.section) {
                let at = (journaled - first) as usize;
                section.get(&self.geometry, slot.entry, &mut data[at * block..][..block], &mut tags[at * tag..][..tag]);
                continue;
            }
            match stored.last_mut() {
                Some(run) if run.first + run.count == journaled && run.follows(slot) => run.count += 1,
                _ => stored.push(Stored { first: journaled, count: 1, slot: Some(slot) }),
            }
        }
        stored.extend(places(number, end));
        stored
    }

    /// Reads blocks from the store into the buffer that begins with block `first`.
    fn read_stored(
        &self,
        store: &dyn Store,
        base: u64,
        first: u64,
        run: &Stored,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> io::Result<()> {
        let (block, tag) = (self.geometry.block(), self.geometry.tag);
        let (at, count) = ((run.first - first) as usize, run.count as usize);
        let (data, tags) = (&mut data[at * block..][..count * block], &mut tags[at * tag..][..count * tag]);
        match run.slot {
            Some(slot) => journal::read_blocks(&self.geometry, store, base, slot, data, tags),
            None => {
                store.read_at(base + self.geometry.data_at(run.first), data)?;
                store.read_at(base + self.geometry.tag_at(run.first), tags)
            }
        }
    }

    /// Adds blocks to the collected section, and writes the section whenever it is full.
    fn collect(
        &self,
        writing: &mut Writing,
        store: &dyn Store,
        base: u64,
        first: u64,
        data: &[u8],
        tags: &[u8],
    ) -> io::Result<()> {
        let tagged = data.chunks(self.geometry.block()).zip(tags.chunks(self.geometry.tag));
        let mut blocks = (first..).zip(tagged).peekable();
        while blocks.peek().is_some() {
            if self.index().collected.is_none() {
                let head = self.head(writing, store, base)?;
                self.index_mut().collected = Some(Section::empty(&self.geometry, head));
            }
            let mut index = self.index_mut();
            let Index { in_journal, collected, .. } = &mut *index;
            let section = collected.as_mut().expect("it was begun");
            while let Some(&(number, (data, tag))) = blocks.peek() {
                let Some(entry) = section.entry_for(&self.geometry, in_journal.get(&number)) else { break };
                section.put(&self.geometry, entry, number, data, tag);
                in_journal.insert(number, JournalSlot { section: section.head.section, entry });
                blocks.next();
            }
            let full = section.used == self.geometry.section_entries();
            drop(index);
            if full {
                self.write_collected(store, base)?;
            }
        }
        Ok(())
    }

    /// Writes the collected section, if there is one. If that fails, its blocks can still be read.
    fn write_collected(&self, store: &dyn Store, base: u64) -> io::Result<()> {
        let Some(mut section) = self.index().collected.clone() else { return Ok(()) };
        store.still_whole()?;
        section.write(&self.geometry, store, base)?;
        self.index_mut().collected = None;
        Ok(())
    }

    /// The next free section of the journal.
    fn head(&self, writing: &mut Writing, store: &dyn Store, base: u64) -> io::Result<Head> {
        let sections = self.geometry.sections;
        let (head, free) = match *writing {
            Writing::Ready { head, free } if free > 0 => (head, free),
            Writing::Ready { head, .. } => {
                self.put_into_place(store, base)?;
                (head, sections)
            }
            Writing::NotYet(next) => {
                self.put_into_place(store, base)?;
                match next {
                    Next::Section(head) => (head, sections),
                    Next::Clear(from) => (self.clear(store, base, from)?, sections),
                }
            }
        };
        *writing = Writing::Ready { head: head.after(sections), free: free - 1 };
        Ok(head)
    }

    /// Moves blocks from the journal to their places. Nothing may be collected. Before and after, everything is on the disk.
    ///
    /// Meanwhile others read the blocks from the journal.
    fn put_into_place(&self, store: &dyn Store, base: u64) -> io::Result<()> {
        store.flush()?;
        self.wait_for_readers();
        let (block, tag) = (self.geometry.block(), self.geometry.tag);
        let runs = self.runs(&self.index().in_journal);
        for run in runs {
            let count = (run.end - run.start) as usize;
            let (mut data, mut tags) = (vec![0; count * block], vec![0; count * tag]);
            self.read(store, base, run.start, &mut data, &mut tags)?;
            store.write_clobbering(base + self.geometry.data_at(run.start), &mut data)?;
            store.write_clobbering(base + self.geometry.tag_at(run.start), &mut tags)?;
        }
        store.flush()?;
        self.index_mut().in_journal.clear();
        self.wait_for_readers();
        Ok(())
    }

    /// Waits for readers that use the current index.
    fn wait_for_readers(&self) {
        let before = std::mem::take(&mut self.index_mut().readers);
        let _last = before.write().unwrap_or_else(PoisonError::into_inner);
    }

    /// The blocks in the journal, in runs of consecutive blocks.
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

    /// Writes empty sections once around the ring, the oldest first (like Linux in `dm_integrity_postsuspend`).
    fn empty(&self, store: &dyn Store, base: u64, mut head: Head) -> io::Result<Head> {
        for _ in 0..self.geometry.sections {
            Section::empty(&self.geometry, head).write(&self.geometry, store, base)?;
            head = head.after(self.geometry.sections);
            if head.section == 0 {
                store.flush()?;
            }
        }
        store.flush()?;
        Ok(head)
    }

    /// Empties all sections because one is torn. After any number of these writes, nothing in the journal is valid.
    fn clear(&self, store: &dyn Store, base: u64, from: Head) -> io::Result<Head> {
        for group in journal::clearing(from.section, self.geometry.sections) {
            for section in group {
                let head = Head { section, number: from.number };
                Section::empty(&self.geometry, head).write(&self.geometry, store, base)?;
            }
            store.flush()?;
        }
        Ok(journal::after_clearing(from.number))
    }

    /// Refuses all further writes, because the state of the disk is unknown.
    fn fail(&self, error: &io::Error) {
        self.failure.get_or_init(|| error.to_string());
    }

    fn unless_failed(&self) -> io::Result<()> {
        let failed = |why: &String| {
            io::Error::other(format!("writing has stopped until the volume is reopened, because a write failed: {why}"))
        };
        self.failure.get().map_or(Ok(()), |why| Err(failed(why)))
    }

    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
    /// Whether this slot directly follows that of the last block.
    fn follows(&self, slot: JournalSlot) -> bool {
        self.slot.is_some_and(|first| {
            first.section == slot.section && u64::from(first.entry) + self.count == u64::from(slot.entry)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::store::MemoryStore;

    /// Counts writes.
    struct Counting(MemoryStore, AtomicUsize);

    impl Store for Counting {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset, out)
        }
        fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.write_clobbering(offset, data)
        }
        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }
    }

    #[test]
    fn small_writes_share_a_section() {
        const SIZE: u64 = 32 << 20;
        let geometry = Geometry::plan(SIZE, SIZE, 32, 512).expect("there is room");
        let store = Counting(MemoryStore::new(vec![0; SIZE as usize]), AtomicUsize::new(0));
        for section in 0..geometry.sections {
            Section::empty(&geometry, Head { section, number: 0 }).write(&geometry, &store, 0).expect("there is room");
        }
        store.write_clobbering(0, &mut geometry.superblock()).expect("there is room");
        let area = open(&store, 0, SIZE, 32, 512).expect("it is good");
        let before = store.1.load(Ordering::Relaxed);
        let written = || store.1.load(Ordering::Relaxed) - before;
        let write =
            |block: u64, byte: u8| area.write(&store, 0, block, &[byte; 512], &[byte; 32]).expect("it is written");
        let entries = u64::from(geometry.section_entries());
        // Writing the same block twice uses one entry.
        write(1, 1);
        (1..entries).for_each(|nth| write(nth * 3 - 2, nth as u8));
        assert_eq!((written(), area.in_journal() as u64), (0, entries - 1), "they are collected");
        area.commit(&store, 0).expect("there is room");
        area.commit(&store, 0).expect("there is nothing to write");
        assert_eq!(written(), 1, "all at once");
        (0..entries).for_each(|nth| write(nth * 3 + 2, 9));
        assert_eq!(written(), 2, "one that is full");
        let (mut data, mut tags) = ([0; 4 * 512], [0; 4 * 32]);
        area.read(&store, 0, 1, &mut data, &mut tags).expect("it is there");
        assert_eq!((data[0], data[512], data[1024], data[1536]), (1, 9, 0, 2));
        assert_eq!((tags[0], tags[32], tags[64], tags[96]), (1, 9, 0, 2));
    }
}
