//! Files and devices past the page cache: the same bytes as through it, with any alignment and with other writers.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use claviger_engine::Store;
use claviger_engine::store::{Access, Bypass, FileStore};
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::random::Random;
use claviger_testkit::tools;
use tempfile::NamedTempFile;

/// A page, and less than one.
const PAGE: usize = 4096;
const BLOCK: usize = 512;

/// A file on a file system that takes requests past the cache, and a store that makes them.
fn direct(contents: &[u8]) -> Option<(NamedTempFile, FileStore)> {
    // /tmp can be in memory.
    let file = NamedTempFile::new_in("/var/tmp").expect("a file");
    fs::write(file.path(), contents).expect("its contents");
    let store = FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it");
    if !store.bypass_cache(Bypass::All) {
        return tools::skip("the file system of /var/tmp has no way past the page cache");
    }
    Some((file, store))
}

/// Requests of all kinds: whole blocks and parts, in aligned memory and not, up to the odd end of the file.
fn model(store: &dyn Store, path: &Path, mut expected: Vec<u8>) {
    let mut random = Random::new(expected.len() as u64);
    let mut memory = vec![0; 600 << 10];
    for round in 0..600 {
        let grain = *random.choose(&[1, BLOCK, PAGE]);
        let offset = random.below(expected.len()) / grain * grain;
        let most = (expected.len() - offset).min(if round % 20 == 0 { 500 << 10 } else { 20_000 });
        let len = match random.below(most + 1) / grain * grain {
            0 => most,
            len => len,
        };
        let memory = &mut memory[random.below(PAGE)..][..len];
        if random.below(2) == 0 {
            memory.copy_from_slice(&random.bytes(len));
            expected[offset..][..len].copy_from_slice(memory);
            store.write_clobbering(offset as u64, memory).expect("it is in the file");
        } else {
            memory.fill(0);
            store.read_at(offset as u64, memory).expect("it is in the file");
            assert!(memory == &expected[offset..][..len], "{len} bytes at {offset}");
        }
        if round % 50 == 0 {
            // By another descriptor, without a flush: nobody sees anything old.
            assert!(fs::read(path).expect("a file") == expected, "round {round}");
        }
    }
    store.flush().expect("a disk");
    assert!(fs::read(path).expect("a file") == expected);
}

#[test]
fn requests_of_all_kinds_see_what_was_written() {
    let contents = Random::new(1).bytes((1 << 20) + 12_345);
    let Some((file, store)) = direct(&contents) else { return };
    assert!(store.bypasses_cache());
    model(&store, file.path(), contents);
    assert_eq!(fs::metadata(file.path()).expect("a file").len(), (1 << 20) + 12_345, "it does not grow");
}

#[test]
fn a_device_sees_what_was_written() {
    let contents = Random::new(2).bytes(1 << 20);
    let Some((file, store)) = direct(&contents) else { return };
    drop(store);
    let Some(device) = LoopDevice::new(file.path(), &[]) else { return };
    let store = FileStore::open(device.path(), Access::ReadWrite).expect("nobody has it");
    assert!(store.bypass_cache(Bypass::All));
    model(&store, device.path(), contents);
}

/// One thread writes whole blocks and another one parts of the blocks beside them, in the same pages. What goes through the cache
/// takes a whole page with it.
#[test]
fn neighbours_in_a_page_lose_nothing() {
    const PAGES: usize = 16;
    const ROUNDS: usize = 300;
    let Some((file, store)) = direct(&[0; PAGES * PAGE]) else { return };
    drop(store);
    let Some(device) = LoopDevice::new(file.path(), &[]) else { return };
    let store = FileStore::open(device.path(), Access::ReadWrite).expect("nobody has it");
    assert!(store.bypass_cache(Bypass::All));
    let begin = Barrier::new(3);
    let at = |page: usize, block: usize| (page * PAGE + block * BLOCK) as u64;
    thread::scope(|scope| {
        for block in [1, 6] {
            let (store, begin) = (&store, &begin);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    begin.wait();
                    for page in 0..PAGES {
                        store.write_clobbering(at(page, block), &mut [round as u8; BLOCK]).expect("a block");
                    }
                }
            });
        }
        for round in 1..=ROUNDS {
            begin.wait();
            for page in 0..PAGES {
                store.write_clobbering(at(page, 3) + 7, &mut [round as u8; 100]).expect("a part of one");
            }
        }
    });
    store.flush().expect("a disk");
    for page in 0..PAGES {
        for (place, len) in [(at(page, 1), BLOCK), (at(page, 6), BLOCK), (at(page, 3) + 7, 100)] {
            let mut now = vec![0; len];
            store.read_at(place, &mut now).expect("it is there");
            assert!(now.iter().all(|byte| *byte == ROUNDS as u8), "page {page}, {len} bytes at {place}");
        }
    }
}

#[test]
fn what_is_read_and_written_is_not_kept_in_memory() {
    let Some((file, store)) = direct(&Random::new(3).bytes(4 << 20)) else { return };
    let Some(fincore) = tools::program("fincore") else { return };
    let kept = || -> u64 {
        let out =
            tools::run(Command::new(&fincore).args(["--bytes", "--noheadings", "--output", "RES"]).arg(file.path()));
        String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
    };
    store.flush().expect("a disk");
    store.forget_cached();
    let before = kept();
    let mut memory = vec![7; 4 << 20];
    store.read_at(0, &mut memory).and_then(|()| store.write_clobbering(0, &mut memory)).expect("all of it");
    assert!(kept() <= before, "{} bytes are kept, {before} before", kept());
}

#[test]
fn a_file_in_memory_is_used_as_ever() {
    let file = NamedTempFile::new_in("/dev/shm").expect("a file");
    let contents = Random::new(4).bytes(100_000);
    fs::write(file.path(), &contents).expect("its contents");
    let store = FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it");
    // Linux 6.6 and later have a way for it, which is the same.
    let _ = store.bypass_cache(Bypass::All);
    model(&store, file.path(), contents);
}

#[test]
fn a_file_that_is_cut_short_is_neither_stretched_nor_read_past_its_end() {
    let Some((file, store)) = direct(&[5; 64 << 10]) else { return };
    store.write_clobbering(32 << 10, &mut [1; 4096]).and_then(|()| store.flush()).expect("it is all there");
    file.as_file().set_len(20_000).expect("cut");
    store.write_clobbering(0, &mut [1; 4096]).expect("that is still there");
    let mut out = vec![0; 32 << 10];
    let error = store.read_at(0, &mut out).expect_err("half of it is gone");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    for lost in [store.write_clobbering(32 << 10, &mut [1; 4096]), store.flush(), store.still_whole()] {
        assert!(lost.expect_err("it is gone").to_string().contains("cut short"));
    }
    assert_eq!(file.as_file().metadata().expect("a file").len(), 20_000);
}

#[test]
fn who_opened_it_for_reading_writes_nothing_and_leaves_its_times() {
    let Some((file, store)) = direct(&[5; 64 << 10]) else { return };
    drop(store);
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
    file.as_file().set_times(times).expect("its owner may");
    let store = FileStore::open(file.path(), Access::ReadOnly).expect("readers share");
    assert!(store.bypass_cache(Bypass::All));
    let mut out = vec![0; 8192];
    store.read_at(4096, &mut out).expect("it is there");
    assert!(out.iter().all(|byte| *byte == 5));
    assert!(store.write_clobbering(0, &mut [1; 4096]).is_err());
    assert_eq!(file.as_file().metadata().expect("a file").atime(), 1_000_000);
    let mut first = [0];
    file.as_file().read_exact_at(&mut first, 0).expect("a byte");
    assert_eq!(first, [5]);
    // The lock is let go with the store, whatever else was open.
    drop(store);
    FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it any more");
}

/// While it is lent, all writes go through the cache, as the borrower's do: each half of a page has another writer.
#[test]
fn a_lent_file_has_two_writers_in_one_page() {
    let Some((file, store)) = direct(&[0; 64 << 10]) else { return };
    let (descriptor, _, lent) = store.lend().expect("a descriptor");
    thread::scope(|scope| {
        let borrower = scope.spawn(|| {
            (0..500).for_each(|round| descriptor.write_all_at(&[round as u8; BLOCK], 0).expect("written"));
        });
        for round in 0..500 {
            store.write_clobbering(BLOCK as u64, &mut [round as u8; BLOCK]).expect("written");
            let mut out = [0; BLOCK];
            store.read_at(BLOCK as u64, &mut out).expect("read");
            assert_eq!(out, [round as u8; BLOCK]);
        }
        borrower.join().expect("it writes");
    });
    drop(lent);
    store.write_clobbering(2 * BLOCK as u64, &mut [3; BLOCK]).expect("past the cache again");
    store.flush().expect("durable");
    let expected = [[243; BLOCK], [243; BLOCK], [3; BLOCK]].concat();
    assert_eq!(fs::read(file.path()).expect("a file")[..3 * BLOCK], expected);
}
