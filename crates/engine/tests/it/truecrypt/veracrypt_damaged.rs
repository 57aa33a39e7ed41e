//! What happens when a VeraCrypt volume does not open: what is tried, how often, and what is said.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::support::*;
use claviger_crypto::hash;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, Result, Spec, Unlock, Unlocked, formats};

const LEN: usize = 300_032;
const BACKUP: usize = LEN - 131_072;
const TEXT: &str = "twenty characters and more";

/// A volume with SHA-256 and a PIM that makes all derivations cheap.
fn volume() -> Vec<u8> {
    static VOLUME: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let store = MemoryStore::new(vec![0; LEN]);
        let spec = Spec { hash: Some("SHA-256"), pim: Some(1), ..Spec::default() };
        create_veracrypt(&store, &spec, &[passphrase(TEXT)]).expect("a new volume");
        store.to_vec()
    };
    VOLUME.get_or_init(make).clone()
}

/// Opens with the PIM; nothing is written.
fn open<'a>(
    format: Option<&str>,
    bytes: Vec<u8>,
    text: &str,
    change: impl FnOnce(&mut Unlock<'a>),
) -> Result<Unlocked> {
    // Leaked, so that it outlives whatever `change` borrows.
    let credentials: &'static [Credential] = Box::leak(Box::new([passphrase(text)]));
    let mut with = Unlock { pim: Some(1), ..Unlock::with(credentials) };
    change(&mut with);
    let store = Arc::new(MemoryStore::new(bytes.clone()));
    let (_, header) = formats::open(&shared(Arc::clone(&store)), format)?;
    let unlocked = header.unlock(&with);
    assert!(store.to_vec() == bytes, "the volume was changed");
    unlocked
}

fn failed(result: Result<Unlocked>) -> Error {
    result.err().expect("it does not open")
}

#[test]
fn one_derivation_suffices_where_format_and_hash_are_known() {
    let credentials = [passphrase(TEXT)];
    let store = MemoryStore::new(volume()[..131_072 + 512].to_vec());
    // A file this short has room for the primary header and a hidden volume's alone. The latter is overwritten.
    let bytes = [&store.to_vec()[..65_536], &[0; 65_536 + 512]].concat();
    let (_, header) = formats::open(&shared(MemoryStore::new(bytes)), Some("VeraCrypt")).expect("a header");
    let with = Unlock { hash: Some("SHA-256"), pim: Some(1), truncated: true, ..Unlock::with(&credentials) };
    let unlocked = header.unlock(&with).expect("the right passphrase");
    assert_eq!((unlocked.derivations, unlocked.trials), (1, 1));
}

#[test]
fn a_wrong_passphrase_takes_every_derivation_once_for_each_salt() {
    // Four salts, seven derivations: all but the first are long done when the last one begins.
    let told = Mutex::new(Vec::new());
    let progress = |done: u64, total: u64| told.lock().expect("no panic").push((done, total));
    let error = failed(open(Some("VeraCrypt"), volume(), "wrong", |w| w.progress = Some(&progress)));
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
    let told = told.into_inner().expect("no panic");
    let total = told[0].1;
    assert!(told.is_sorted() && told.last() == Some(&(total, total)));
    assert_eq!(told.iter().map(|(done, _)| done).collect::<HashSet<_>>().len(), told.len(), "each step is told once");
    // Pieces of 192 bytes of key, each of as many blocks as this processor derives at once; Argon2id derives all of them.
    let pieces = |name| {
        let hash = hash::by_name(name).expect("a hash");
        192_usize.div_ceil(hash.size).div_ceil(hash.blocks_at_once())
    };
    let hashes = ["SHA-512", "SHA-256", "BLAKE2s-256", "Whirlpool", "Streebog", "RIPEMD-160"];
    assert_eq!(told.len(), 4 * (hashes.into_iter().map(pieces).sum::<usize>() + 1));
    assert!(error.to_string().contains(&format!("after {} trials", 4 * 7 * 15)), "{error}");
}

#[test]
fn the_same_salt_is_derived_once() {
    // A file that repeats itself: the backup header is the primary one.
    let mut bytes = volume();
    bytes.copy_within(..131_072, BACKUP);
    let steps = Mutex::new(0);
    let progress = |_: u64, _: u64| *steps.lock().expect("no panic") += 1;
    let hints = |w: &mut Unlock<'_>| w.hash = Some("SHA-256");
    let error = failed(open(Some("VeraCrypt"), bytes.clone(), "wrong", |w| {
        hints(w);
        w.progress = Some(&progress);
    }));
    assert!(error.to_string().contains(&format!("after {} trials", 4 * 15)), "{error}");
    assert_eq!(*steps.lock().expect("no panic"), 2 * 6);
    assert_eq!(open(Some("VeraCrypt"), bytes, TEXT, hints).expect("it opens").facts.header.name(), "primary");
}

#[test]
fn both_formats_are_tried_where_neither_is_named() {
    let unlocked = open(None, volume(), TEXT, |w| w.hash = Some("SHA-256")).expect("the right passphrase");
    assert_eq!(unlocked.facts.format, "VeraCrypt");
    // One key of 64 bytes: what is tried with the usual iterations shall not take long.
    let usual = |w: &mut Unlock<'_>| (w.pim, w.hash, w.cipher) = (Some(0), Some("SHA-512"), Some("AES"));
    let said = failed(open(None, volume(), "wrong", usual)).to_string();
    assert!(said.contains("as TrueCrypt or as VeraCrypt") && said.contains("look the same"), "{said}");
    // A PIM, a derivation or a long passphrase that TrueCrypt does not know leave it out; what neither knows is misuse.
    let said = failed(open(None, volume(), "wrong", |w| w.hash = Some("SHA-256"))).to_string();
    assert!(!said.contains("TrueCrypt"), "{said}");
    let said = failed(open(None, volume(), &"x".repeat(100), usual)).to_string();
    assert!(!said.contains("TrueCrypt"), "{said}");
    let error = failed(open(None, volume(), "wrong", |w| w.hash = Some("MD5")));
    assert!(matches!(error.kind, ErrorKind::Misuse(_)) && error.to_string().contains("Argon2id"), "{error}");

    let store = MemoryStore::new(vec![0; LEN]);
    let spec = Spec { hash: Some("SHA-512"), quick: true, ..Spec::default() };
    create(&store, &spec, &[passphrase("old")]).expect("a TrueCrypt volume");
    let unlocked = open(None, store.to_vec(), "old", |w| w.pim = None).expect("the right passphrase");
    assert_eq!((unlocked.facts.format, &*unlocked.facts.hash_name()), ("TrueCrypt", "SHA-512"));
    let error = failed(open(Some("TrueCrypt"), store.to_vec(), "old", |_| ()));
    assert!(error.to_string().contains("TrueCrypt takes no PIM"), "{error}");
}

#[test]
fn too_little_memory_is_told_only_if_nothing_else_opens() {
    let little = |w: &mut Unlock<'_>| (w.memory, w.cipher) = (Some(1 << 20), Some("AES"));
    for format in [None, Some("VeraCrypt")] {
        assert!(open(format, volume(), TEXT, little).is_ok());
        let error = failed(open(format, volume(), "wrong", little));
        match error.kind {
            ErrorKind::TooLittleMemory { needed, available } => assert_eq!((needed, available), (64 << 20, 1 << 20)),
            other => panic!("{other}"),
        }
    }
    let error = failed(open(None, volume(), "wrong", |w| (w.memory, w.hash) = (Some(1 << 20), Some("SHA-512"))));
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
}

#[test]
fn a_damaged_header_gives_way_to_its_backup() {
    let hints = |w: &mut Unlock<'_>| (w.hash, w.cipher) = (Some("SHA-256"), Some("AES"));
    for bit in [0, 64 * 8, 100 * 8 + 3, 511 * 8 + 7] {
        let mut bytes = volume();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let unlocked = open(Some("VeraCrypt"), bytes.clone(), TEXT, hints).expect("the backup opens");
        assert_eq!(unlocked.facts.header.name(), "backup");
        assert_eq!(unlocked.warnings.len(), 1, "{:?}", unlocked.warnings);
        bytes[BACKUP + bit / 8] ^= 1 << (bit % 8);
        let error = failed(open(Some("VeraCrypt"), bytes, TEXT, hints));
        let kind = matches!(error.kind, ErrorKind::WrongCredential(_) | ErrorKind::Malformed { .. });
        assert!(kind, "{error}");
    }
}

#[test]
fn a_volume_cut_short_is_told_apart() {
    let hints = |w: &mut Unlock<'_>| (w.hash, w.cipher) = (Some("SHA-256"), Some("AES"));
    for len in [512, 65_536, 131_072, 140_000, BACKUP, LEN - 1] {
        let bytes = volume()[..len].to_vec();
        match open(Some("VeraCrypt"), bytes, TEXT, hints) {
            Ok(unlocked) => assert!(len >= BACKUP && !unlocked.warnings.is_empty(), "{len}"),
            Err(error) => assert!(len < BACKUP && matches!(error.kind, ErrorKind::Malformed { .. }), "{len}: {error}"),
        }
    }
}

#[test]
fn trials_can_be_cancelled() {
    for after in [0, 3] {
        let cancel = AtomicBool::new(after == 0);
        let calls = Mutex::new(0);
        let progress = |_: u64, _: u64| {
            let mut calls = calls.lock().expect("no panic");
            *calls += 1;
            cancel.store(*calls >= after, Ordering::Relaxed);
        };
        let error = failed(open(None, volume(), "wrong", |w| {
            w.pim = None;
            w.cancel = Some(&cancel);
            w.progress = Some(&progress);
        }));
        assert!(matches!(error.kind, ErrorKind::Cancelled), "{error}");
        // Other threads may still finish their current derivation.
        assert!(*calls.lock().expect("no panic") <= after + 64, "it went on after it was cancelled");
    }
}
