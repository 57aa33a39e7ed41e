//! Sectors with tags: what a crash leaves, what damage does, and how it is said.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::modes::AuthenticatedCipher;
use claviger_crypto::modes::aead::{AeadSpecification, WrongTag};
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::volume::integrity::{self, TaggedSectors};
use claviger_engine::{Acceleration, ErrorKind, Layout, Result, Store, Volume};
use claviger_testkit::random::Random;
use claviger_testkit::stores::{CrashStore, Depth, Fault, FaultStore, Operation};

/// Blocks of the small areas of these tests.
const BLOCKS: u64 = 24;
const BLOCK: usize = 512;
/// Bytes of the toy's tags: so long that a section of the journal has eight blocks only.
const TAG: usize = 424;

/// A cipher that hides nothing, whose tags depend on all of a sector, its number and their first eight bytes, which are random.
struct Toy;

impl Toy {
    fn tag(number: u64, data: &[u8], tag: &mut [u8]) {
        let parts = [&number.to_le_bytes(), &tag[..8], data].concat();
        let mut sum = parts
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        for part in tag[8..].chunks_mut(8) {
            sum = sum.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            part.copy_from_slice(&sum.to_le_bytes()[..part.len()]);
        }
    }
}

impl AuthenticatedCipher for Toy {
    fn sector_size(&self) -> usize {
        BLOCK
    }

    fn tag_size(&self) -> usize {
        TAG
    }

    fn encrypt(&self, first: u64, run: &mut [u8], tags: &mut [u8]) {
        let blocks = run.chunks_mut(BLOCK).zip(tags.chunks_mut(TAG));
        (first..).zip(blocks).for_each(|(number, (data, tag))| Self::tag(number, data, tag));
    }

    fn decrypt(&self, first: u64, run: &mut [u8], tags: &[u8]) -> std::result::Result<(), WrongTag> {
        for (number, (data, tag)) in (first..).zip(run.chunks_mut(BLOCK).zip(tags.chunks(TAG))) {
            let mut right = tag.to_vec();
            Self::tag(number, data, &mut right);
            if right != tag {
                return Err(WrongTag(number));
            }
        }
        Ok(())
    }
}

/// An area of the toy's with three areas of eight blocks and so many sections of journal, made without the code under test: all
/// blocks hold their version 0.
fn small(sections: u32) -> Vec<u8> {
    let section = 16 * 512;
    let journal = sections as usize * section;
    let mut bytes = vec![0; 4096 + journal + 3 * 8192];
    bytes[..8].copy_from_slice(b"integrt\0");
    bytes[8] = 4;
    bytes[9] = 3;
    bytes[10..12].copy_from_slice(&(TAG as u16).to_le_bytes());
    bytes[12..16].copy_from_slice(&sections.to_le_bytes());
    bytes[16] = BLOCKS as u8;
    bytes[24] = 8;
    for at in 0..sections as usize {
        for sector in 0..16 {
            let begin = 4096 + at * section + sector * 512;
            if sector < 8 {
                bytes[begin + 4..begin + 8].fill(0xff);
            }
            let id = 0x1111_1111_1111_1111u64 ^ ((at as u64) << 32) ^ sector as u64;
            bytes[begin + 504..begin + 512].copy_from_slice(&id.to_le_bytes());
        }
    }
    for block in 0..BLOCKS as usize {
        let (area, into) = (block / 8, block % 8);
        let begin = 4096 + journal + area * 8192;
        let (data, mut tag) = (version(block as u64, 0), [0; TAG]);
        Toy::tag(block as u64, &data, &mut tag);
        bytes[begin + into * TAG..][..TAG].copy_from_slice(&tag);
        bytes[begin + 4096 + into * BLOCK..][..BLOCK].copy_from_slice(&data);
    }
    bytes
}

fn version(block: u64, version: u8) -> [u8; BLOCK] {
    let mut data = [version; BLOCK];
    data[0] = block as u8;
    data
}

fn area_of(store: &dyn Store, cipher: &dyn AuthenticatedCipher) -> Result<TaggedSectors> {
    integrity::open(store, 0, store.len(), cipher.tag_size(), cipher.sector_size())
}

fn opened(store: Arc<dyn Store>, cipher: Arc<dyn AuthenticatedCipher>) -> Result<Volume> {
    let area = Arc::new(area_of(&*store, &*cipher)?);
    let layout = Layout::new(vec![integrity::segment(area, 0, cipher, true)?])?;
    Ok(Volume::new(store, layout))
}

/// The version of each block in an image. Panics if one is not readable or is torn.
fn versions(image: &[u8]) -> Vec<u8> {
    let volume = opened(Arc::new(MemoryStore::new(image.to_vec())), Arc::new(Toy)).expect("it opens");
    let mut all = vec![0; BLOCKS as usize * BLOCK];
    volume.read_at(0, &mut all).expect("all of it is good");
    let one = |(at, data): (usize, &[u8])| {
        assert!(data == version(at as u64, data[1]), "block {at} is torn");
        data[1]
    };
    all.chunks(BLOCK).enumerate().map(one).collect()
}

/// Writes version after version, from `first` on, to runs of blocks, and says which versions each block had.
fn write(volume: &Volume, first: u8, count: u8, seed: u64, flushes: bool) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let mut had = vec![Vec::new(); BLOCKS as usize];
    for number in first..first + count {
        let at = random.below(BLOCKS as usize) as u64;
        let end = (at + 1 + random.below(11) as u64).min(BLOCKS);
        let mut data: Vec<u8> = (at..end).flat_map(|block| version(block, number)).collect();
        volume.write_clobbering(at * BLOCK as u64, &mut data).expect("it is written");
        (at..end).for_each(|block| had[block as usize].push(number));
        if flushes && random.below(3) == 0 {
            volume.flush().expect("it is flushed");
        }
    }
    had
}

#[test]
fn after_a_crash_each_sector_is_old_or_new_and_what_was_flushed_is_there() {
    crashes(Depth { exhaustive: 6, sampled: 4, seed: 1 });
}

/// Looks at what crashes leave of writes to sectors with tags, and says at how many.
pub fn crashes(depth: Depth) -> usize {
    let mut crashes = 0;
    for (sections, flushes) in [(1, false), (2, true), (3, false), (3, true), (5, false)] {
        let store = Arc::new(CrashStore::new(small(sections)));
        let before = {
            let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
            let had = write(&volume, 1, 4, depth.seed, false);
            volume.flush().expect("it is flushed");
            had
        };
        store.settle();
        let had = {
            let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
            write(&volume, 20, 16, depth.seed + u64::from(sections), flushes)
        };
        let mut kinds = std::collections::BTreeSet::new();
        let mut last = Vec::new();
        store.each_crash(depth, |image| {
            crashes += 1;
            let found = versions(image);
            for (block, version) in found.iter().enumerate() {
                let flushed = before[block].last().copied().unwrap_or(0);
                assert!(*version == flushed || had[block].contains(version), "{crashes}, block {block}: {version}");
            }
            // A crash while the journal of a crash is carried out and emptied, and the first write after it.
            if kinds.insert(found.clone()) && kinds.len() % 3 == 0 {
                let store = Arc::new(CrashStore::new(image.to_vec()));
                let again = {
                    let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
                    write(&volume, 100, 2, crashes as u64, false)
                };
                store.each_crash(depth, |image| {
                    crashes += 1;
                    for (block, version) in versions(image).iter().enumerate() {
                        assert!(*version == found[block] || again[block].contains(version), "block {block}: {version}");
                    }
                });
            }
            last = found;
        });
        assert!(kinds.len() > 4, "crashes were seen in between: {}", kinds.len());
        let newest = before.iter().zip(&had).map(|(before, had)| *before.iter().chain(had).last().unwrap_or(&0));
        assert_eq!(last, newest.collect::<Vec<_>>());
    }
    crashes
}

#[test]
fn reading_writes_nothing_and_a_crash_is_read_through_the_journal() {
    let store = Arc::new(CrashStore::new(small(3)));
    let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
    let had = write(&volume, 1, 1, 2, false);
    volume.flush().expect("it is flushed");
    let mut image = vec![0; store.len() as usize];
    store.read_at(0, &mut image).expect("it is there");
    let faulty = FaultStore::new(Arc::new(MemoryStore::new(image.clone())), None);
    let left = Arc::new(faulty);
    {
        let volume = opened(Arc::clone(&left) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
        let blocks = had.iter().filter(|had| !had.is_empty()).count();
        assert_eq!(area_of(&*left, &Toy).expect("it opens").in_journal(), blocks);
        volume.read_at(0, &mut vec![0; BLOCKS as usize * BLOCK]).expect("all is good");
        volume.flush().expect("there is nothing to flush");
    }
    assert_eq!(left.count(Operation::Write), 0);
    let newest: Vec<u8> = had.iter().map(|had| had.last().copied().unwrap_or(0)).collect();
    assert_eq!(versions(&image), newest);
}

#[test]
fn a_write_that_fails_is_an_error_and_nothing_is_written_after_it() {
    for nth in 0..12 {
        let memory = Arc::new(MemoryStore::new(small(2)));
        let fault = Fault { operation: Operation::Write, nth, for_good: false, transferred: 700 };
        let store = Arc::new(FaultStore::new(Arc::clone(&memory) as Arc<dyn Store>, Some(fault)));
        let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
        let mut failed = false;
        let mut newest = vec![0; BLOCKS as usize];
        let mut possible = newest.clone();
        for number in 1..8u8 {
            let at = u64::from(number) * 5 % 16;
            let mut data: Vec<u8> = (at..at + 8).flat_map(|block| version(block, number)).collect();
            // A write by itself may only be collected.
            let written = volume.write_clobbering(at * BLOCK as u64, &mut data).and_then(|()| volume.flush());
            assert!(written.is_err() || !failed, "write {number} after one that failed");
            if written.is_ok() {
                newest[at as usize..at as usize + 8].fill(number);
            } else if !failed {
                failed = true;
                possible.clone_from(&newest);
                possible[at as usize..at as usize + 8].fill(number);
                assert!(volume.flush().is_err(), "a flush does not call it good");
            }
        }
        assert!(failed, "the fault struck");
        // Reading continues, here and for later readers.
        for found in [versions_of(&volume), {
            drop(volume);
            versions(&memory.to_vec())
        }] {
            for (block, version) in found.iter().enumerate() {
                assert!([newest[block], possible[block]].contains(version), "write {nth}, block {block}");
            }
        }
    }
}

/// Readers see each sector as it was or as it is to be, whole, and never an older version after a newer one: not while others are
/// collected, written to the journal, moved to their places and written over there. And of writes into parts of a sector none is lost.
#[test]
fn readers_and_writers_at_once_agree() {
    const ROUNDS: u8 = 200;
    for sections in [1, 2, 5] {
        let store = Arc::new(MemoryStore::new(small(sections)));
        let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
        let writing = AtomicUsize::new(2);
        thread::scope(|scope| {
            // Blocks 0 to 7, 8 to 15: each by one writer alone. Block 16 by both, each in its own bytes.
            for writer in 0..2 {
                let (volume, writing) = (&volume, &writing);
                scope.spawn(move || {
                    let mut random = Random::new(writer);
                    for number in 1..=ROUNDS {
                        let at = writer * 8 + random.below(8) as u64;
                        let end = (at + 1 + random.below(3) as u64).min(writer * 8 + 8);
                        let mut data: Vec<u8> = (at..end).flat_map(|block| version(block, number)).collect();
                        volume.write_clobbering(at * BLOCK as u64, &mut data).expect("it is written");
                        volume
                            .write_clobbering(16 * BLOCK as u64 + 200 * writer + 1, &mut [number; 30])
                            .expect("it is written");
                    }
                    writing.fetch_sub(1, Ordering::SeqCst);
                });
            }
            let (volume, writing) = (&volume, &writing);
            scope.spawn(move || {
                while writing.load(Ordering::SeqCst) > 0 {
                    volume.flush().expect("it is flushed");
                    thread::yield_now();
                }
            });
            for _ in 0..2 {
                scope.spawn(move || {
                    let mut newest = [0; 16];
                    let mut data = vec![0; 17 * BLOCK];
                    while writing.load(Ordering::SeqCst) > 0 {
                        volume.read_at(0, &mut data).expect("all of it is good");
                        for (at, block) in data.chunks(BLOCK).take(16).enumerate() {
                            assert!(block == version(at as u64, block[1]) && block[1] >= newest[at], "block {at}");
                            newest[at] = block[1];
                        }
                    }
                });
            }
        });
        let check = |volume: &Volume| {
            let mut data = [0; BLOCK];
            volume.read_at(16 * BLOCK as u64, &mut data).expect("it is good");
            assert!(data[1..31] == [ROUNDS; 30] && data[201..231] == [ROUNDS; 30], "both are there");
        };
        check(&volume);
        let before: Vec<u8> = versions_of_some(&volume, 0..16);
        drop(volume);
        let volume = opened(store, Arc::new(Toy)).expect("it opens");
        check(&volume);
        assert_eq!(versions_of_some(&volume, 0..16), before);
    }
}

/// Unflushed data do not stay in memory for long.
#[test]
fn a_write_reaches_the_store_by_itself() {
    let store = Arc::new(MemoryStore::new(small(2)));
    let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
    for number in 1..4 {
        volume.write_clobbering(3 * BLOCK as u64, &mut version(3, number)).expect("it is written");
        let begun = Instant::now();
        while versions(&store.to_vec())[3] != number {
            assert!(begun.elapsed() < Duration::from_secs(60), "version {number} is in memory only");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A later flush that succeeds does not make good one that failed: nothing is moved out of a journal that may not be on the disk.
#[test]
fn a_flush_that_fails_ends_writing_and_leaves_all_in_its_place() {
    let memory = Arc::new(MemoryStore::new(small(3)));
    let before = {
        let store = Arc::new(FaultStore::new(Arc::clone(&memory) as Arc<dyn Store>, None));
        let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
        volume.write_clobbering(0, &mut version(0, 1)).expect("it is written");
        store.count(Operation::Flush)
    };
    let memory = Arc::new(MemoryStore::new(small(3)));
    let fault = Fault { operation: Operation::Flush, nth: before, for_good: false, transferred: 0 };
    let store = Arc::new(FaultStore::new(Arc::clone(&memory) as Arc<dyn Store>, Some(fault)));
    let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
    volume.write_clobbering(0, &mut version(0, 1)).expect("it is written");
    assert!(volume.flush().is_err(), "the fault strikes");
    assert!(volume.flush().is_err() && volume.write_clobbering(0, &mut version(0, 2)).is_err(), "and stays");
    let writes = store.count(Operation::Write);
    drop(volume);
    assert_eq!(store.count(Operation::Write), writes, "closing moves nothing");
}

fn versions_of(volume: &Volume) -> Vec<u8> {
    let mut all = vec![0; BLOCKS as usize * BLOCK];
    volume.read_at(0, &mut all).expect("all of it is good");
    all.chunks(BLOCK).map(|block| block[1]).collect()
}

#[test]
fn requests_of_any_shape_agree_with_an_array() {
    for (encryption, kind, sector) in [
        ("aes-xts-plain64", "hmac(sha256)", 4096),
        ("aes-gcm-random", "aead", 512),
        ("chacha20-random", "poly1305", 1024),
    ] {
        let specification = AeadSpecification::parse(encryption, kind).expect("it is known");
        let key = Random::new(1).bytes(*specification.key_sizes().last().expect("a size"));
        let sectors = Sectors { size: sector, ..Sectors::default() };
        let cipher = specification.with_key(&key, sectors, Acceleration::On).expect("it fits");
        let store = Arc::new(MemoryStore::new(vec![0x55; 2 << 20]));
        let size = integrity::format(&*store, 0, 2 << 20, &*cipher, &mut |_, _| Ok(())).expect("there is room");
        assert_eq!(size, integrity::capacity(2 << 20, 2 << 20, cipher.tag_size(), sector).expect("there is room"));
        let mut model = vec![0; size as usize];
        let mut random = Random::new(7);
        let mut volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&cipher)).expect("it opens");
        assert_eq!(volume.len(), size);
        for round in 0..120 {
            let at = random.below(size as usize);
            let len =
                random.below(*random_choice(&mut Random::new(round), &[5, 700, 9000, 300_000])).min(size as usize - at);
            let mut data = random.bytes(len);
            model[at..at + len].copy_from_slice(&data);
            volume.write_clobbering(at as u64, &mut data).expect("it is written");
            let at = random.below(size as usize);
            let len = random.below(200_000).min(size as usize - at);
            let mut out = vec![0; len];
            volume.read_at(at as u64, &mut out).expect("it is good");
            assert!(out == model[at..at + len], "{encryption} round {round}");
            if round % 40 == 39 {
                drop(volume);
                volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&cipher)).expect("it opens");
            }
        }
        let mut all = vec![0; size as usize];
        volume.read_at(0, &mut all).expect("it is good");
        assert!(all == model, "{encryption}");
    }
}

fn random_choice<'a>(random: &mut Random, choices: &'a [usize]) -> &'a usize {
    random.choose(choices)
}

#[test]
fn each_damaged_byte_is_an_error_for_its_sector_alone() {
    let good = small(1);
    let (tags, data) = (4096 + 8192, 4096 + 8192 + 4096);
    for (at, sector) in [(tags, 0), (tags + 3 * TAG + 423, 3), (data + 5 * BLOCK, 5), (data + 8192 + 511, 8)] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        let before = bytes.clone();
        let store = Arc::new(MemoryStore::new(bytes));
        let volume = opened(Arc::clone(&store) as Arc<dyn Store>, Arc::new(Toy)).expect("it opens");
        for block in 0..BLOCKS {
            let mut out = [1; BLOCK];
            let read = volume.read_at(block * BLOCK as u64, &mut out);
            assert_eq!(read.is_err(), block == sector, "byte {at}, block {block}");
            if let Err(error) = read {
                let expected = format!(
                    "sector {sector} has been changed or damaged: its tag is wrong (byte {} of the segment)",
                    sector * BLOCK as u64
                );
                assert_eq!(error.to_string(), expected);
                assert_eq!(out, [0; BLOCK], "nothing of it leaves");
            }
        }
        // A part of it cannot be changed, since the rest is not known; all of it can.
        assert!(volume.write_clobbering(sector * BLOCK as u64 + 1, &mut [0; 9]).is_err());
        assert!(store.to_vec() == before, "nothing was written");
        volume.write_clobbering(sector * BLOCK as u64, &mut version(sector, 9)).expect("whole sectors can be written");
        assert_eq!(versions_of(&volume)[sector as usize], 9);
    }
}

#[test]
fn a_damaged_journal_is_refused_and_left_alone() {
    let refused = |damage: &dyn Fn(&mut [u8])| {
        let mut bytes = small(2);
        damage(&mut bytes);
        let store = MemoryStore::new(bytes.clone());
        let error = area_of(&store, &Toy).map(|_| ()).map_err(|e| e.kind);
        assert!(store.to_vec() == bytes, "nothing was written");
        match error {
            Err(ErrorKind::Malformed { field, offset, .. }) => format!("{field} at {offset}"),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(refused(&|_| ()), "Ok(())");
    assert_eq!(refused(&|bytes| bytes[4096 + 511] ^= 1), "commit id of the journal at 4600");
    assert_eq!(refused(&|bytes| bytes[4096 + 8192 * 2 - 8] ^= 1), "commit id of the journal at 20472");
    // Sections that changed places.
    assert_eq!(refused(&|bytes| bytes[4096..4096 + 16384].rotate_left(8192)), "commit id of the journal at 4600");
    assert_eq!(refused(&|bytes| bytes[0] = 0), "integrity magic at 0");
    let ids = |bytes: &mut [u8]| {
        for (sector, number) in [(0, 1u64), (1, 2), (2, 3), (3, 4)] {
            let id = (0x1111_1111_1111_1111 * number) ^ sector;
            bytes[4096 + sector as usize * 512 + 504..][..8].copy_from_slice(&id.to_le_bytes());
        }
    };
    assert_eq!(refused(&ids), "commit ids of the journal at 4096");
    let short = MemoryStore::new(vec![0; 100]);
    assert!(matches!(area_of(&short, &Toy).map_err(|e| e.kind), Err(ErrorKind::Malformed { .. })));
}

/// The versions of some blocks.
fn versions_of_some(volume: &Volume, blocks: std::ops::Range<u64>) -> Vec<u8> {
    let mut data = [0; BLOCK];
    let mut version = |block| {
        volume.read_at(block * BLOCK as u64, &mut data).expect("it is good");
        data[1]
    };
    blocks.map(&mut version).collect()
}

/// Where the journal could still take what its place cannot any more.
#[test]
fn a_file_that_is_cut_short_takes_no_more_writes() {
    for written_before in [false, true] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let bytes = small(2);
        let len = bytes.len() as u64;
        std::fs::write(file.path(), bytes).expect("written");
        let open = || FileStore::open(file.path(), Access::ReadWrite).map(Arc::new).expect("nobody has it");
        let volume = opened(open(), Arc::new(Toy)).expect("it opens");
        let write = |block: u64, number| volume.write_clobbering(block * BLOCK as u64, &mut version(block, number));
        if written_before {
            write(3, 1).and_then(|()| volume.flush()).expect("all of it is there");
        }
        // The last area is gone, and it was of that length before it was opened.
        file.as_file().set_len(len - 8192).expect("cut");
        let before = std::fs::read(file.path()).expect("it is there");
        for block in [3, 20] {
            assert!(write(block, 2).is_err());
        }
        let error = volume.flush().expect_err("it was not taken").to_string();
        assert!(error.contains("a write failed") && error.contains("cut short"), "{error}");
        file.as_file().set_len(len).expect("its length");
        assert!(write(3, 3).is_err(), "zeros took the place of what was cut off");
        assert_eq!(versions_of_some(&volume, 0..16)[3], u8::from(written_before), "reading goes on");
        drop(volume);
        assert!(std::fs::read(file.path()).expect("it is there")[..before.len()] == before, "nothing was written");

        let volume = opened(open(), Arc::new(Toy)).expect("it opens");
        assert_eq!(versions_of_some(&volume, 0..16)[3], u8::from(written_before));
        assert!(volume.read_at(16 * BLOCK as u64, &mut [0; BLOCK]).is_err(), "a sector without its tag");
        drop(volume);
        file.as_file().set_len(len - 8192).expect("cut");
        let error = opened(open(), Arc::new(Toy)).map(|_| ()).expect_err("it has no end");
        assert!(
            error.hint.is_some_and(|hint| hint.contains("cut short"))
                && matches!(error.kind, ErrorKind::Malformed { .. })
        );
    }
}

/// Cut short after the last write that was made durable: the journal has it, and only the length is told.
#[test]
fn a_file_that_is_cut_short_after_its_last_write_keeps_its_journal() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let bytes = small(2);
    let len = bytes.len() as u64;
    std::fs::write(file.path(), bytes).expect("written");
    let open =
        || opened(Arc::new(FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it")), Arc::new(Toy));
    let volume = open().expect("it opens");
    for block in [3, 20] {
        volume.write_clobbering(block * BLOCK as u64, &mut version(block, 1)).expect("there is room");
    }
    volume.flush().expect("it is flushed");
    file.as_file().set_len(len - 8192).expect("cut");
    let error = volume.flush().expect_err("a part of it is gone");
    assert!(error.to_string().contains("cut short"), "{error}");
    drop(volume);
    assert_eq!(file.as_file().metadata().expect("it is there").len(), len - 8192, "it is not stretched");
    file.as_file().set_len(len).expect("its length");
    let volume = open().expect("it opens");
    let mut block = [0; BLOCK];
    volume.read_at(20 * BLOCK as u64, &mut block).expect("it is in the journal");
    assert!(block == version(20, 1));
}

#[test]
fn entries_of_a_hostile_journal_reach_nowhere() {
    // A sector far outside is passed over, as Linux does.
    let mut bytes = small(1);
    bytes[4096..4104].copy_from_slice(&(1u64 << 62).to_le_bytes());
    bytes[4096 + 512..4096 + 520].copy_from_slice(&BLOCKS.to_le_bytes());
    let store = MemoryStore::new(bytes);
    assert_eq!(area_of(&store, &Toy).expect("it opens").in_journal(), 0);
}

#[test]
fn there_is_no_volume_before_all_of_it_has_tags() {
    let specification = AeadSpecification::parse("aes-xts-plain64", "hmac(sha256)").expect("it is known");
    let cipher = specification.with_key(&[7; 96], Sectors::default(), Acceleration::On).expect("it fits");
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new(vec![0x55; 2 << 20]));
    integrity::format(&*inner, 4096, (2 << 20) - 4096, &*cipher, &mut |_, _| Ok(())).expect("there is room");
    let fault = Fault { operation: Operation::Write, nth: 3, for_good: true, transferred: 100 };
    let failing = FaultStore::new(Arc::clone(&inner), Some(fault));
    assert!(integrity::format(&failing, 4096, (2 << 20) - 4096, &*cipher, &mut |_, _| Ok(())).is_err());
    let opened = integrity::open(&*inner, 4096, (2 << 20) - 4096, 32, 512);
    assert!(matches!(opened.map_err(|e| e.kind), Err(ErrorKind::Malformed { field: "integrity magic", .. })));
    let misuse = |len| matches!(integrity::capacity(len, len, 32, 512).map_err(|e| e.kind), Err(ErrorKind::Misuse(_)));
    assert!(misuse(0) && misuse(40_000) && !misuse(2 << 20));
}
