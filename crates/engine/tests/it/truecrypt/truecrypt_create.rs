//! How volumes are created: what is written where, in which order, and what an interruption leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::*;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Error, ErrorKind, Spec, Store, Unlock, Volume, formats};
use claviger_testkit::stores::{CrashStore, Fault, FaultStore, Operation};

const MIN: usize = 299_008;
const GROUP: usize = 131_072;

fn created(len: usize, spec: &Spec<'_>, text: &str) -> Vec<u8> {
    let store = MemoryStore::new(vec![0; len]);
    create(&store, spec, &[passphrase(text)]).expect("a new volume");
    store.to_vec()
}

fn facts(bytes: &[u8], text: &str) -> formats::Facts {
    unlock(MemoryStore::new(bytes.to_vec()), &Unlock::with(&[passphrase(text)])).expect("it opens").facts
}

fn misuse(error: Error) -> String {
    match error.kind {
        ErrorKind::Misuse(what) => what,
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_created_is_read_back() {
    for len in [MIN, MIN + 512, 1 << 20] {
        let bytes = created(len, &Spec::default(), "pw");
        let facts = facts(&bytes, "pw");
        assert_eq!(
            (&*facts.cipher, &*facts.mode, &*facts.hash_name(), facts.iterations),
            ("AES", "XTS", "RIPEMD-160", 2000)
        );
        assert_eq!((facts.header_version, facts.header.name(), facts.sector_size), (5, "primary", 512));
        assert_eq!((facts.size, facts.data_offset), ((len - 2 * GROUP) as u64, GROUP as u64));
        assert_eq!((facts.created, facts.header_written), (None, None));

        let store = Arc::new(MemoryStore::new(bytes));
        let unlocked = unlock(Arc::clone(&store), &Unlock::with(&[passphrase("pw")])).expect("it opens");
        let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.layout);
        let data = noise(volume.len() as usize - 7, 1);
        volume.write_clobbering(3, &mut data.clone()).expect("it is written");
        let mut back = vec![0; data.len()];
        volume.read_at(3, &mut back).expect("it is read");
        assert!(back == data);
    }
}

#[test]
fn nothing_stays_what_it_was_and_nothing_comes_twice() {
    let one = created(MIN, &Spec::default(), "pw");
    let other = created(MIN, &Spec::default(), "pw");
    assert_ne!(one[..64], one[MIN - GROUP..][..64], "the backup has a salt of its own");
    for (sector, (a, b)) in one.chunks(512).zip(other.chunks(512)).enumerate() {
        // Salts, headers, empty header slots, data: no 16 bytes in a row are zeros, or the same in two volumes.
        for (a, b) in a.chunks(16).zip(b.chunks(16)) {
            assert!(a != [0; 16] && a != b, "sector {sector}");
        }
    }
}

#[test]
fn quick_leaves_the_data_as_they_are() {
    let store = MemoryStore::new(vec![0x5a; MIN]);
    let told = Mutex::new(0);
    let progress = |_, _| *told.lock().expect("no panic") += 1;
    let spec = Spec { quick: true, progress: Some(&progress), ..Spec::default() };
    create(&store, &spec, &[passphrase("pw")]).expect("a new volume");
    let bytes = store.to_vec();
    assert!(bytes[GROUP..MIN - GROUP].iter().all(|b| *b == 0x5a));
    assert!(bytes[..GROUP].chunks(16).chain(bytes[MIN - GROUP..].chunks(16)).all(|b| b != [0x5a; 16]));
    assert_eq!(*told.lock().expect("no panic"), 0);
    assert_eq!(facts(&bytes, "pw").header.name(), "primary");
}

#[test]
fn the_fill_cannot_be_decrypted() {
    let bytes = created(MIN, &Spec::default(), "pw");
    let store = Arc::new(MemoryStore::new(bytes));
    let unlocked = unlock(Arc::clone(&store), &Unlock::with(&[passphrase("pw")])).expect("it opens");
    let plain = plaintext(store, unlocked);
    assert!(plain.chunks(16).all(|block| block != [0; 16]));
}

#[test]
fn progress_reaches_the_total() {
    let seen = Mutex::new(Vec::new());
    let progress = |done, total| seen.lock().expect("no panic").push((done, total));
    created(10 << 20, &Spec { progress: Some(&progress), ..Spec::default() }, "pw");
    let seen = seen.into_inner().expect("no panic");
    let total = ((10 << 20) - 2 * GROUP) as u64;
    assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
    assert!(seen.is_sorted() && seen.iter().all(|(_, t)| *t == total));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let refused = |len: usize, spec: Spec<'_>, text: &str| {
        let store = FaultStore::new(Arc::new(MemoryStore::new(vec![0; len])), None);
        let why = misuse(create(&store, &spec, &[passphrase(text)]).expect_err("refused"));
        assert_eq!((store.count(Operation::Write), store.count(Operation::Flush)), (0, 0), "{why}");
        why
    };
    let spec = |cipher, hash| Spec { cipher, hash, ..Spec::default() };
    assert!(refused(MIN - 512, Spec::default(), "pw").contains("299008"));
    assert!(refused(MIN + 100, Spec::default(), "pw").contains("whole number of"));
    assert!(refused(MIN, spec(Some("Rot13"), None), "pw").contains("AES-Twofish-Serpent"));
    assert!(refused(MIN, spec(Some("Blowfish"), None), "pw").contains("new volumes"));
    assert!(refused(MIN, spec(None, Some("SHA-1")), "pw").contains("Whirlpool"));
    assert!(refused(MIN, spec(None, Some("MD5")), "pw").contains("MD5"));
    assert!(refused(MIN, Spec::default(), &"x".repeat(65)).contains("at most 64"));
    assert!(refused(MIN, Spec::default(), "").contains("empty"));
    // Names in any case will do.
    assert_eq!(facts(&created(MIN, &spec(Some("twofish"), Some("sha-512")), "pw"), "pw").cipher, "Twofish");
}

#[test]
fn cancelling_leaves_nothing_that_opens() {
    let old = created(10 << 20, &Spec { quick: true, ..Spec::default() }, "old");
    for after in [0, 1, 2] {
        let store = MemoryStore::new(old.clone());
        let cancel = AtomicBool::new(false);
        let calls = Mutex::new(0);
        let progress = |_, _| {
            let mut calls = calls.lock().expect("no panic");
            cancel.store(*calls >= after, Ordering::Relaxed);
            *calls += 1;
        };
        let spec = Spec { cancel: Some(&cancel), progress: Some(&progress), ..Spec::default() };
        let error = create(&store, &spec, &[passphrase("new")]).expect_err("cancelled");
        assert!(matches!(error.kind, ErrorKind::Cancelled), "{error}");
        assert_eq!(*calls.lock().expect("no panic"), after + 1, "it went on after it was cancelled");
        opens_with_nothing(store.to_vec(), &["old", "new"], "cancelled");
    }
    // Cancelled from the beginning: nothing was touched.
    let store = MemoryStore::new(old.clone());
    let cancel = AtomicBool::new(true);
    let spec = Spec { cancel: Some(&cancel), ..Spec::default() };
    assert!(create(&store, &spec, &[passphrase("new")]).is_err());
    assert!(store.to_vec() == old);
}

#[test]
fn a_failing_store_is_left_with_nothing_that_opens() {
    let old = created(MIN, &Spec { quick: true, ..Spec::default() }, "old");
    let spec = Spec { hash: Some("SHA-512"), ..Spec::default() };
    let count = {
        let store = FaultStore::new(Arc::new(MemoryStore::new(old.clone())), None);
        create(&store, &spec, &[passphrase("new")]).expect("a new volume");
        (store.count(Operation::Write), store.count(Operation::Flush))
    };
    let writes = (0..count.0).map(|nth| (Operation::Write, nth));
    let flushes = (0..count.1).map(|nth| (Operation::Flush, nth));
    for (operation, nth) in writes.chain(flushes) {
        for transferred in [0, 300] {
            let inner = Arc::new(MemoryStore::new(old.clone()));
            let fault = Fault { operation, nth, for_good: false, transferred };
            let store = FaultStore::new(Arc::clone(&inner) as Arc<dyn Store>, Some(fault));
            let error = create(&store, &spec, &[passphrase("new")]).expect_err("planted");
            assert!(matches!(error.kind, ErrorKind::Io(_)), "{error}");
            // Until both old header groups are gone, the old volume may still open: its data are all there.
            let old_may_be_there = operation == Operation::Write && nth < 2;
            let passphrases: &[&str] = if old_may_be_there { &["new"] } else { &["old", "new"] };
            opens_with_nothing(inner.to_vec(), passphrases, &format!("{operation:?} {nth}"));
        }
    }
}

#[test]
fn a_crash_leaves_a_whole_volume_or_none() {
    let old = created(MIN, &Spec { quick: true, ..Spec::default() }, "old");
    let store = CrashStore::new(old.clone());
    let spec = Spec { hash: Some("SHA-512"), ..Spec::default() };
    create(&store, &spec, &[passphrase("new")]).expect("a new volume");
    let images = store.crash_images();
    let mut opened = Vec::new();
    for (i, image) in images.iter().enumerate() {
        let store = Arc::new(MemoryStore::new(image.clone()));
        let old_opens = unlock(Arc::clone(&store), &Unlock::with(&[passphrase("old")])).is_ok();
        if let Ok(unlocked) = unlock(store, &Unlock::with(&[passphrase("new")])) {
            opened.push(unlocked.facts.header.name());
            assert!(!old_opens, "image {i} opens with both");
            // The data area is complete: nothing of what was there shines through.
            assert!(image[GROUP..MIN - GROUP].chunks(16).all(|b| b != [0; 16]));
        }
        // Until all old headers are gone, and that has been flushed, the old volume may be there.
        assert!(!old_opens || i <= 4, "image {i} opens with the old passphrase");
    }
    // The backup header is written and flushed, then the primary one.
    opened.dedup();
    assert_eq!(opened, ["backup", "primary"]);
}

#[test]
fn what_a_store_holds_is_named() {
    let occupied = |bytes: Vec<u8>| formats::occupied(&MemoryStore::new(bytes)).expect("it can be read");
    assert_eq!(occupied(vec![]), None);
    assert_eq!(occupied(vec![0; 100]), None);
    // The mark of ext4 in a file that ends within that sector.
    let mut short = vec![0; 1100];
    short[0x438..0x43a].copy_from_slice(b"\x53\xef");
    assert!(occupied(short).is_some());
    assert_eq!(occupied(vec![0; 5 << 20]), None);
    let random = Some("random-looking data, possibly an encrypted volume".to_owned());
    assert_eq!(occupied(created(MIN, &Spec::default(), "pw")), random);
    let mut headless = created(5 << 20, &Spec { quick: true, ..Spec::default() }, "pw");
    headless[..GROUP].fill(0);
    assert_eq!(occupied(headless), random, "the backup headers at the end are seen");
    let mut middle = vec![0; 20 << 20];
    middle[7 << 20..8 << 20].fill(b'x');
    assert_eq!(occupied(middle).as_deref(), Some("data of an unknown kind"));
    let mut boot = vec![0; 1 << 20];
    boot[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(occupied(boot).as_deref(), Some("a boot sector or partition table"));
}

#[test]
fn file_systems_of_other_programs_are_named() {
    use std::process::Command;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let cases: [(&str, &[&str], &str); 6] = [
        ("mkfs.ext4", &["-q", "-F"], "an ext4 file system"),
        ("mkfs.fat", &[], "a FAT16 file system"),
        ("mkntfs", &["-F", "-Q", "-q"], "an NTFS file system"),
        ("mkswap", &["-q"], "a swap area"),
        ("mkfs.xfs", &["-q", "-f"], "an XFS file system"),
        ("mkfs.exfat", &[], "an exFAT file system"),
    ];
    for (program, arguments, what) in cases {
        // Not all of them are oracles of ours; the marks themselves have a test of their own.
        let Some(path) =
            ["/usr/sbin", "/sbin"].map(|d| std::path::Path::new(d).join(program)).into_iter().find(|p| p.is_file())
        else {
            continue;
        };
        let file = new_file(dir.path(), program, 320 << 20);
        claviger_testkit::tools::run(Command::new(path).args(arguments).arg(&file));
        assert_eq!(formats::occupied(&*read_only(&file)).expect("it can be read").as_deref(), Some(what));
    }
}
