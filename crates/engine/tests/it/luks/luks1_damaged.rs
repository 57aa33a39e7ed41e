//! LUKS1 headers that are damaged or hostile: one defect each, the error that it gives, and that nothing is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::{noise, passphrase, shared};
use claviger_engine::formats::{self, CopyState};
use claviger_engine::spec::Cost;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, Result, Secret, Spec, Store, Unlock, Unlocked};

const LEN: usize = (2 << 20) + 4096;

/// A volume with one keyslot in use, the first.
fn volume() -> Vec<u8> {
    let store = MemoryStore::new(vec![0; LEN]);
    let cost = Cost { iterations: Some(1000), ..Cost::default() };
    let spec = Spec { cost, quick: true, ..Spec::default() };
    formats::by_name("LUKS1").expect("a format").create(&store, &spec, &[passphrase("right")]).expect("a volume");
    store.to_vec()
}

fn unlock(store: &Arc<MemoryStore>, with: &Unlock<'_>) -> Result<Unlocked> {
    formats::open(&shared(Arc::clone(store)), Some("LUKS1"))?.1.unlock(with)
}

fn opens(bytes: &[u8], text: &str) -> Result<Unlocked> {
    let store = Arc::new(MemoryStore::new(bytes.to_vec()));
    let result = unlock(&store, &Unlock::with(&[passphrase(text)]));
    assert!(store.to_vec() == bytes, "opening writes nothing");
    result
}

fn error(bytes: &[u8]) -> Error {
    opens(bytes, "right").err().expect("it does not open")
}

/// `bytes` with a field of another value.
fn with(bytes: &[u8], at: usize, field: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + field.len()].copy_from_slice(field);
    bytes
}

const SLOT: [usize; 2] = [208, 256];
const ITERATIONS: usize = 4;
const OFFSET: usize = 40;
const STRIPES: usize = 44;

#[test]
fn fields_that_cannot_be_are_named() {
    let good = volume();
    assert!(opens(&good, "right").is_ok());
    let be = u32::to_be_bytes;
    let cases: &[(&str, u64, usize, &[u8])] = &[
        ("cipher name", 8, 8, &[b'a'; 32]),
        ("cipher name", 8, 8, &[0]),
        ("cipher name", 8, 8, b"a\xffs"),
        ("cipher mode", 40, 40, &[b'x'; 32]),
        ("cipher mode", 40, 40, &[0]),
        ("hash", 72, 72, &[1]),
        ("hash", 72, 72, b"md5\0\0\0"),
        ("payload offset", 104, 104, &be(1)),
        ("payload offset", 104, 104, &be(u32::MAX)),
        ("payload offset", 104, 104, &be(LEN as u32 / 512)),
        ("key bytes", 108, 108, &be(0)),
        ("key bytes", 108, 108, &be(u32::MAX)),
        ("key bytes", 108, 108, &be(513)),
        ("key bytes", 108, 108, &be(33)),
        ("digest iterations", 164, 164, &be(0)),
        ("iterations", 212, SLOT[0] + ITERATIONS, &be(0)),
        ("key material offset", 248, SLOT[0] + OFFSET, &be(0)),
        ("key material offset", 248, SLOT[0] + OFFSET, &be(1)),
        ("key material offset", 248, SLOT[0] + OFFSET, &be(u32::MAX)),
        ("key material offset", 248, SLOT[0] + OFFSET, &be(4000)),
        ("stripes", 252, SLOT[0] + STRIPES, &be(0)),
        ("stripes", 252, SLOT[0] + STRIPES, &be(u32::MAX)),
    ];
    for (field, offset, at, value) in cases {
        let bad = with(&good, *at, value);
        match error(&bad).kind {
            ErrorKind::Malformed { field: named, offset: named_at, .. } => {
                assert_eq!((named, named_at), (*field, *offset))
            }
            other => panic!("{field} {value:x?}: {other}"),
        }
    }
}

#[test]
fn what_is_no_luks1_or_not_known_says_so() {
    let good = volume();
    let not = |bytes: &[u8]| matches!(error(bytes).kind, ErrorKind::NotThisFormat(_));
    assert!(not(&with(&good, 6, &[0, 2])) && not(&good[..591]) && not(&[]));
    assert!(not(&with(&with(&good, 0, b"M"), 8, &[0])), "without a magic only what is whole is one");
    let warned = opens(&with(&good, 0, b"M"), "right").expect("all else is there").warnings;
    assert!(warned.iter().any(|warning| warning.what.contains("signature")), "{warned:?}");
    for (at, value, what) in [
        (6, &[0u8, 9][..], "version 9"),
        (8, b"rot13\0", "rot13"),
        (40, b"xyz-plain64\0", "xyz"),
        (72, b"sha9999\0", "sha9999"),
    ] {
        let error = error(&with(&good, at, value));
        let named = matches!(&error.kind, ErrorKind::Unsupported { what: text } if text.contains(what));
        assert!(named, "{what}: {error}");
    }
}

/// A damaged keyslot does not keep another one from opening; it is reported, and nothing is changed before a repair.
#[test]
fn other_keyslots_open_beside_a_damaged_one() {
    let good = volume();
    let editor = formats::by_name("LUKS1").expect("a format").editor().expect("it has one");
    let be = u32::to_be_bytes;
    for (what, at, value) in [
        ("0x12345678", SLOT[1], be(0x1234_5678)),
        ("inside the header", SLOT[1] + OFFSET, be(0)),
        ("the file at byte", SLOT[1] + OFFSET, be(u32::MAX)),
        ("overlaps", SLOT[1] + OFFSET, be(9)),
        ("the data begin", SLOT[1] + OFFSET, be(3600)),
        ("stripes", SLOT[1] + STRIPES, be(0)),
        ("stripes", SLOT[1] + STRIPES, be(0x7fff_ffff)),
    ] {
        let bad = with(&good, at, &value);
        let opened = opens(&bad, "right").unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(opened.facts.keyslot, Some(0));
        let store = Arc::new(MemoryStore::new(bad.clone()));
        let credentials = [passphrase("right")];
        let new = formats::NewCredential { credentials: &credentials, ..Default::default() };
        let refused = editor.add(&store, &Unlock::with(&credentials), &new, None).expect_err(what);
        assert!(matches!(refused.kind, ErrorKind::Malformed { .. }) && refused.to_string().contains(what), "{refused}");
        let verified = editor.verify(&store, &Unlock::with(&credentials)).expect("it opens");
        assert!(verified.damaged && matches!(verified.copies[0].state, CopyState::Damaged(_)), "{what}");
        assert!(store.to_vec() == bad);
        // Repairing brings the header back as it was, byte by byte; an unknown state stays one to be tried.
        editor
            .repair(&*store, None, &[])
            .unwrap_or_else(|e| panic!("{what}: {e}"))
            .edit
            .carry_out(&store)
            .expect("it is written");
        if at != SLOT[1] {
            assert!(store.to_vec() == good, "{what}");
        }
        assert!(
            !editor.verify(&store, &Unlock::with(&credentials)).expect("it opens").damaged || at == SLOT[1],
            "{what}"
        );
    }
}

#[test]
fn a_damaged_magic_is_repaired_only_if_all_else_makes_sense() {
    let good = volume();
    let editor = formats::by_name("LUKS1").expect("a format").editor().expect("it has one");
    for bad in [with(&good, 0, &[0; 8]), with(&good, 3, b"x"), with(&good, 6, &[0, 7])] {
        let store = MemoryStore::new(bad.clone());
        // No checksum says that the rest is whole: a passphrase does.
        let wrong = [passphrase("wrong")];
        assert!(matches!(editor.repair(&store, None, &[]).map(drop), Err(Error { kind: ErrorKind::Misuse(_), .. })));
        let refused = editor.repair(&store, Some(&Unlock::with(&wrong)), &[]).map(drop);
        assert!(matches!(refused, Err(Error { kind: ErrorKind::WrongCredential(_), .. })) && store.to_vec() == bad);
        let right = [passphrase("right")];
        let repaired = editor.repair(&store, Some(&Unlock::with(&right)), &[]).expect("it can be told");
        repaired.edit.carry_out(&store).expect("it is written");
        assert!(store.to_vec() == good);
    }
    let zeros = with(&good, 0, &[0; 592]);
    let random = with(&good, 0, &noise(592, 1));
    let luks2 = with(&good, 6, &[0, 2]);
    let damaged = with(&with(&good, 0, b"x"), 108, &[0; 4]);
    for bad in [zeros, random, luks2, damaged] {
        let store = Arc::new(MemoryStore::new(bad.clone()));
        assert!(editor.repair(&*store, None, &[]).is_err() && store.to_vec() == bad);
    }
    let sound = MemoryStore::new(good);
    assert!(editor.repair(&sound, None, &[]).expect("nothing to do").edit.steps.is_empty());
}

#[test]
fn a_wrong_passphrase_a_damaged_area_and_a_wrong_key_are_told() {
    let good = volume();
    let says = |error: Error, text: &str| {
        let wrong = matches!(error.kind, ErrorKind::WrongCredential(_));
        assert!(wrong && error.to_string().contains(text), "{text}: {error}");
    };
    says(opens(&good, "wrong").err().expect("wrong"), "keyslot 0, the only one tried");
    says(opens(&with(&good, 4096 + 512 * 9, &[0; 512]), "right").err().expect("damaged"), "from byte 8704 on, 512");
    says(
        opens(&with(&good, 4096 + 777, &[!good[4096 + 777]]), "right").err().expect("damaged"),
        "a single damaged bit",
    );
    says(opens(&with(&good, SLOT[0], &[0, 0, 0xde, 0xad]), "right").err().expect("none"), "no keyslot is in use");
    let store = Arc::new(MemoryStore::new(good.clone()));
    for (key, text) in [(vec![0; 64], "is not the volume key"), (vec![0; 63], "64 bytes, not 63")] {
        let key = [Credential::VolumeKey(Secret::copy_from(&key))];
        says(unlock(&store, &Unlock::with(&key)).err().expect("wrong"), text);
    }
    let credentials = [passphrase("right")];
    let only = |keyslot| unlock(&store, &Unlock { keyslot: Some(keyslot), ..Unlock::with(&credentials) });
    assert!(only(0).is_ok());
    says(only(3).err().expect("not in use"), "keyslot 3 is not in use");
    assert!(matches!(only(8).map(|_| ()), Err(Error { kind: ErrorKind::Misuse(_), .. })));
    let both = [passphrase("right"), Credential::Keyfile(Secret::zeroed(4))];
    for wrong in [&both[..], &[]] {
        assert!(matches!(
            unlock(&store, &Unlock::with(wrong)).map(|_| ()),
            Err(Error { kind: ErrorKind::Misuse(_), .. })
        ));
    }
}

/// The largest number of iterations in the field would take half an hour. The user is told, and can cancel.
#[test]
fn a_hostile_number_of_iterations_can_be_cancelled() {
    let bad = with(&volume(), SLOT[0] + ITERATIONS, &[0xff; 4]);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bad));
    let credentials = [passphrase("right")];
    let (_, header) = formats::open(&store, None).expect("a header");
    let minute = 60_000_000;
    assert!(header.effort(&Unlock::with(&credentials)) > minute, "it is known beforehand that it takes long");
    let (stop, told) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            stop.store(true, Ordering::Relaxed);
        });
        let progress = |done, _| told.store(done, Ordering::Relaxed);
        let with = Unlock { cancel: Some(&stop), progress: Some(&progress), ..Unlock::with(&credentials) };
        let cancelled = header.unlock(&with).err().expect("cancelled");
        assert!(matches!(cancelled.kind, ErrorKind::Cancelled), "{cancelled}");
    });
}

/// Any byte of the header may have any value: no panic, and nothing is written.
#[test]
fn no_byte_of_a_header_makes_it_panic() {
    let good = volume();
    for at in 0..592 {
        // Without the iterations, which would only take long.
        if (164..168).contains(&at) || (0..8).any(|slot| (212 + 48 * slot..216 + 48 * slot).contains(&at)) {
            continue;
        }
        for value in [0, 0x7f, 0xff] {
            let bad = with(&good, at, &[value]);
            let store = Arc::new(MemoryStore::new(bad.clone()));
            if let Ok((_, header)) = formats::open(&shared(Arc::clone(&store)), Some("LUKS1")) {
                assert!(header.describe().is_some());
                let key = [Credential::VolumeKey(Secret::zeroed(64))];
                let _ = header.unlock(&Unlock::with(&key));
            }
            let editor = formats::by_name("LUKS1").expect("a format").editor().expect("it has one");
            let _ = editor.repair(&*store, None, &[]);
            let _ = editor.back_up(&*store, &Unlock::with(&[]), None);
            assert!(store.to_vec() == bad);
        }
    }
}

/// The limit on work applies to all keyslots together, not to each.
#[test]
fn the_work_that_is_asked_about_is_that_of_all_keyslots() {
    for name in ["LUKS1", "LUKS2"] {
        let format = formats::by_name(name).expect("a format");
        let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(100_000), ..Cost::default() };
        let store = Arc::new(MemoryStore::new(vec![0; (16 << 20) + LEN]));
        let spec = Spec { cost, quick: true, ..Spec::default() };
        format.create(&*store, &spec, &[passphrase("right")]).expect("a volume");
        let asked = |store: &Arc<MemoryStore>| {
            let microseconds = AtomicU64::new(0);
            let may_take = |time: std::time::Duration| {
                microseconds.fetch_max(time.as_micros() as u64, Ordering::Relaxed);
                Err(Error::misuse("no"))
            };
            let with = Unlock { may_take: Some(&may_take), ..Unlock::with(&[]) };
            let credentials = [passphrase("wrong")];
            let header = formats::open(&shared(Arc::clone(store)), Some(name)).expect("a header").1;
            let refused = header.unlock(&Unlock { credentials: &credentials, ..with }).err().expect("refused");
            assert!(matches!(refused.kind, ErrorKind::Misuse(_)), "{refused}");
            microseconds.into_inner()
        };
        let one = asked(&store);
        for number in 0..3 {
            let new = formats::NewCredential {
                credentials: &[passphrase(&format!("another {number}"))],
                cost: Cost { kdf: Some("pbkdf2"), iterations: Some(100_000), ..Cost::default() },
                ..formats::NewCredential::default()
            };
            let right = [passphrase("right")];
            let added = format.editor().expect("an editor").add(&*store, &Unlock::with(&right), &new, None);
            added.expect("a keyslot").edit.carry_out(&*store).expect("written");
        }
        let four = asked(&store);
        assert!(four / 4 >= one / 2 && four / 4 <= one * 2, "{name}: {one} and {four}");
    }
}
