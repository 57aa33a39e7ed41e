//! Damaged, truncated and foreign volumes, and wrong credentials: each has its own clear answer, and nothing is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::support::*;
use claviger_engine::credential::HeaderChoice;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, Secret, Spec, Store, Unlock, Unlocked, Verdict, Volume, formats};
use claviger_testkit::stores::{Fault, FaultStore, Operation};

const LEN: usize = 1 << 20;
const GROUP: usize = 131_072;
/// Where the backup header is.
const BACKUP: usize = LEN - GROUP;

/// A good volume.
fn volume() -> Vec<u8> {
    static VOLUME: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let store = MemoryStore::new(vec![0; LEN]);
        let spec = Spec { hash: Some("SHA-512"), ..Spec::default() };
        create(&store, &spec, &[passphrase("pw")]).expect("a new volume");
        store.to_vec()
    };
    VOLUME.get_or_init(make).clone()
}

/// Unlocks from memory, narrowed to what the volume has so that it is quick, and checks that nothing was written.
fn open_with<'a>(bytes: Vec<u8>, text: &str, change: impl FnOnce(&mut Unlock<'a>)) -> Result<Unlocked, Error> {
    // Leaked, so that it outlives whatever `change` borrows.
    let credentials: &'static [Credential] = Box::leak(Box::new([passphrase(text)]));
    let mut with = Unlock { hash: Some("sha-512"), ..Unlock::with(credentials) };
    change(&mut with);
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new(bytes)), None));
    let unlocked = unlock(Arc::clone(&store), &with);
    assert_eq!((store.count(Operation::Write), store.count(Operation::Flush)), (0, 0));
    unlocked
}

fn open(bytes: Vec<u8>) -> Result<Unlocked, Error> {
    open_with(bytes, "pw", |_| ())
}

fn failed(result: Result<Unlocked, Error>) -> Error {
    match result {
        Ok(unlocked) => panic!("it opened: {:?}", unlocked.facts),
        Err(error) => {
            assert_eq!(error.format, Some("TrueCrypt"), "{error}");
            error
        }
    }
}

fn is_wrong_credential(error: &Error) {
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
    assert!(error.to_string().contains("no signature") && error.hint.is_some(), "{error}");
}

/// A name, the bytes that a flipped bit garbles together, and the field that the message names, with its offset.
type Damage = (&'static str, std::ops::Range<usize>, Option<(&'static str, u64)>);

const DAMAGE: [Damage; 5] = [
    ("salt", 0..64, None),
    ("magic and version", 64..80, None),
    ("sizes, flags", 80..240, Some(("header checksum", 252))),
    ("header checksum", 240..256, Some(("header checksum", 252))),
    ("keys", 256..512, Some(("key checksum", 72))),
];

#[test]
fn a_bit_flipped_in_both_headers() {
    for (what, range, field) in DAMAGE {
        for at in [range.start, (range.start + range.end) / 2, range.end - 1] {
            let mut bytes = volume();
            bytes[at] ^= 0x08;
            bytes[BACKUP + at] ^= 0x08;
            let error = failed(open(bytes));
            match (&error.kind, field) {
                (ErrorKind::WrongCredential(_), None) => is_wrong_credential(&error),
                (ErrorKind::Malformed { field: named, offset, .. }, Some(expected)) => {
                    assert_eq!((*named, *offset), expected, "{what}, byte {at}");
                }
                (other, _) => panic!("{what}, byte {at}: {other}"),
            }
        }
    }
}

#[test]
fn a_bit_flipped_in_the_primary_header() {
    let good = open(volume()).expect("a good volume");
    assert_eq!((good.facts.header.name(), good.warnings), ("primary", vec![]));
    for (what, range, field) in DAMAGE {
        let mut bytes = volume();
        bytes[range.start] ^= 1;
        let unlocked = open(bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((unlocked.facts.header.name(), unlocked.facts.size), ("backup", (LEN - 2 * GROUP) as u64));
        let [warning] = &unlocked.warnings[..] else { panic!("{what}: {:?}", unlocked.warnings) };
        match field {
            Some((field, _)) => assert!(warning.what.contains("primary") && warning.what.contains(field), "{warning}"),
            None => assert!(warning.what.contains("primary header is damaged or has another password"), "{warning}"),
        }
    }
}

#[test]
fn the_header_that_was_asked_for_is_taken() {
    let unlocked = open_with(volume(), "pw", |w| w.header = HeaderChoice::Backup).expect("it has a backup");
    assert_eq!((unlocked.facts.header.name(), unlocked.warnings), ("backup", vec![]));
    // With the backups gone, the primary header is not examined either.
    let mut bytes = volume();
    bytes[BACKUP] ^= 1;
    is_wrong_credential(&failed(open_with(bytes.clone(), "pw", |w| w.header = HeaderChoice::Backup)));
    let unlocked = open(bytes).expect("the primary header is good");
    assert_eq!(
        (unlocked.facts.header.name(), unlocked.warnings),
        ("primary", vec![]),
        "a backup is not looked at without need"
    );
}

#[test]
fn truncated_at_many_lengths() {
    let whole = volume();
    let lengths =
        (0..BACKUP).step_by(37_777).chain([0, 1, 511, 512, 513, GROUP, GROUP + 512, BACKUP - 512, BACKUP - 1]);
    for len in lengths {
        let cut = whole[..len].to_vec();
        if len < 512 {
            assert!(matches!(failed_any(cut), ErrorKind::NotThisFormat(_)), "{len}");
            continue;
        }
        let error = failed(open(cut.clone()));
        let ErrorKind::Malformed { field, offset, what } = &error.kind else { panic!("{len}: {error}") };
        assert_eq!((*field, *offset), ("size of the volume", 100));
        assert!(what.contains(&format!("{} bytes are missing", BACKUP - len)), "{error}");
        assert!(error.hint.is_some());

        // The remaining part can be read, and nothing written.
        let unlocked = open_with(cut.clone(), "pw", |w| w.truncated = true).expect("it was allowed");
        let [warning] = &unlocked.warnings[..] else { panic!("{:?}", unlocked.warnings) };
        assert!(warning.what.contains("Read-only") && warning.what.contains("cut short"), "{warning}");
        assert_eq!(unlocked.facts.size, (LEN - 2 * GROUP) as u64);
        let volume = Volume::new(Arc::new(MemoryStore::new(cut)), unlocked.layout);
        assert!(!volume.writable() && volume.write_clobbering(0, &mut [0; 512]).is_err());
        if len >= GROUP + 512 {
            volume.read_at(0, &mut [0; 512]).expect("the first sector is there");
        }
        assert!(volume.read_at(volume.len() - 512, &mut [0; 512]).is_err());
    }
    // Only the backups are missing: the volume is whole.
    for len in [BACKUP, BACKUP + 512, LEN - 512] {
        let unlocked = open(whole[..len].to_vec()).unwrap_or_else(|e| panic!("{len}: {e}"));
        let [warning] = &unlocked.warnings[..] else { panic!("{:?}", unlocked.warnings) };
        assert!(warning.what.contains("no complete backup headers"), "{warning}");
        assert!(unlocked.layout.segments()[0].writable);
    }
}

fn failed_any(bytes: Vec<u8>) -> ErrorKind {
    open(bytes).err().expect("it does not open").kind
}

#[test]
fn wrong_passphrases_and_hints_are_told_from_misuse() {
    is_wrong_credential(&failed(open_with(volume(), "wrong", |_| ())));
    is_wrong_credential(&failed(open_with(volume(), "pw ", |w| w.hash = None)));
    is_wrong_credential(&failed(open_with(volume(), "pw", |w| w.hash = Some("Whirlpool"))));
    is_wrong_credential(&failed(open_with(volume(), "pw", |w| w.cipher = Some("Serpent"))));
    let misuse = |error: Error| assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    let long = failed(open_with(volume(), &"x".repeat(65), |_| ()));
    assert!(long.to_string().contains("65 bytes") && long.to_string().contains("at most 64"), "{long}");
    misuse(long);
    misuse(failed(open_with(volume(), "", |_| ())));
    misuse(failed(open_with(volume(), "pw", |w| w.hash = Some("MD5"))));
    misuse(failed(open_with(volume(), "pw", |w| w.cipher = Some("AES-AES"))));
    let right = open_with(volume(), "pw", |w| w.cipher = Some("aes")).expect("the right cipher");
    // One in the primary header, in XTS first; other threads may have tried the 4 other places in the meantime, of which one
    // could have a header of an old volume, which has 3 modes.
    assert!((1..=7).contains(&right.trials), "{} trials of one hash and one cipher", right.trials);
}

#[test]
fn all_keyfiles_and_the_passphrase_are_needed() {
    let keyfile = |contents: &[u8]| Credential::Keyfile(Secret::copy_from(contents));
    let store = Arc::new(MemoryStore::new(vec![0; 299_008]));
    let spec = Spec { hash: Some("SHA-512"), quick: true, ..Spec::default() };
    create(&*store, &spec, &[passphrase("pw"), keyfile(b"one"), keyfile(b"two")]).expect("a new volume");
    let opens = |credentials: &[Credential]| {
        let with = Unlock { hash: Some("SHA-512"), ..Unlock::with(credentials) };
        unlock(Arc::clone(&store), &with)
    };
    assert!(opens(&[keyfile(b"two"), keyfile(b"one"), passphrase("pw")]).is_ok());
    let wrong: [&[Credential]; 4] = [
        &[passphrase("pw"), keyfile(b"one")],
        &[passphrase("pw"), keyfile(b"one"), keyfile(b"twp")],
        &[passphrase("pw")],
        &[keyfile(b"one"), keyfile(b"two")],
    ];
    for credentials in wrong {
        is_wrong_credential(&failed(opens(credentials)));
    }
    let error = failed(opens(&[passphrase("pw"), keyfile(b"")]));
    assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
}

#[test]
fn what_is_no_volume_is_not_taken_for_one() {
    let format = formats::by_name("TrueCrypt").expect("it is in the table");
    let verdict = |bytes: Vec<u8>| format.identify(&MemoryStore::new(bytes)).expect("it can be read");
    assert!(matches!(verdict(volume()), Verdict::Possible(_)));
    let no = |bytes: Vec<u8>| match verdict(bytes) {
        Verdict::No(why) => why.concat(),
        other => panic!("{other:?}"),
    };
    assert!(no(volume()[..18_432].to_vec()).contains("too few"));
    let Verdict::Possible(why) = verdict(volume()[..300_001].to_vec()) else { panic!("cut short, it is still one") };
    assert!(why.len() == 2 && why[1].contains("cut short"), "{why:?}");
    assert!(no(vec![0; LEN]).contains("random-looking"));
    assert!(no(b"Some text. ".repeat(10_000)[..102_400].to_vec()).contains("random-looking"));
    let mut zip = volume();
    zip[..4].copy_from_slice(b"PK\x03\x04");
    assert!(no(zip).contains("zip"));
    // A container formatted quickly in a sparse file: all but the headers are holes.
    let mut sparse = volume();
    sparse[512..BACKUP].fill(0);
    assert!(matches!(verdict(sparse), Verdict::Possible(_)));

    let error = formats::open(&shared(MemoryStore::new(vec![0; LEN])), None).err().expect("nothing is there");
    assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    let error =
        formats::open(&shared(MemoryStore::new(vec![0; LEN])), Some("truecrypt")).err().expect("nothing is there");
    assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
}

#[test]
fn a_store_that_cannot_be_read_is_an_io_error() {
    for nth in 0..5 {
        let fault = Fault { operation: Operation::Read, nth, for_good: false, transferred: 0 };
        let store = FaultStore::new(Arc::new(MemoryStore::new(volume())), Some(fault));
        let error = unlock(store, &Unlock::with(&[passphrase("pw")])).err().expect("planted");
        assert!(matches!(error.kind, ErrorKind::Io(_)), "{error}");
    }
}

#[test]
fn trials_can_be_cancelled_and_tell_their_progress() {
    let seen = Mutex::new(Vec::new());
    let progress = |done, total| seen.lock().expect("no panic").push((done, total));
    is_wrong_credential(&failed(open_with(volume(), "wrong", |w| {
        w.progress = Some(&progress);
        w.hash = None;
    })));
    let steps = std::mem::take(&mut *seen.lock().expect("no panic"));
    let total = steps[0].1;
    assert!(steps.len() > 20 && steps.is_sorted() && steps.iter().all(|s| s.1 == total), "{steps:?}");
    assert_eq!(steps.last(), Some(&(total, total)));

    open_with(volume(), "pw", |w| {
        w.progress = Some(&progress);
        w.hash = None;
    })
    .expect("the right passphrase");
    let steps = seen.into_inner().expect("no panic");
    assert!(steps.is_sorted() && steps.last() == Some(&(total, total)));

    for after in [1, total / 10, total / 2] {
        let cancel = AtomicBool::new(false);
        let late = Mutex::new(0);
        let progress = |done, _| {
            *late.lock().expect("no panic") += usize::from(cancel.load(Ordering::Relaxed));
            if done >= after {
                cancel.store(true, Ordering::Relaxed);
            }
        };
        let error = failed(open_with(volume(), "wrong", |w| {
            w.hash = None;
            w.cancel = Some(&cancel);
            w.progress = Some(&progress);
        }));
        assert!(matches!(error.kind, ErrorKind::Cancelled), "{error}");
        // Other threads may still finish their current derivation.
        assert!(*late.lock().expect("no panic") <= 64, "it went on after it was cancelled");
    }
}

#[test]
fn a_file_is_the_same_before_and_after() {
    let file = to_file(&volume());
    let before = digest(file.path());
    for text in ["pw", "wrong"] {
        let store = read_only(file.path());
        assert!(!store.writable());
        let unlocked = unlock(Arc::clone(&store), &Unlock::with(&[passphrase(text)]));
        if let Ok(unlocked) = unlocked {
            let volume = Volume::new(Arc::clone(&store), unlocked.layout);
            assert!(!volume.writable());
            assert!(volume.write_clobbering(0, &mut [1; 512]).is_err());
        }
    }
    assert_eq!(digest(file.path()), before);
}
