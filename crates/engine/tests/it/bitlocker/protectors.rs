//! Changing BitLocker's protectors: what opens afterwards, what others read, what a crash leaves, and that no nonce is used twice.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;

use crate::support::{all_of, passphrase, shared, to_file};
use crate::torture::{self, Scenario, Subject, Verb};
use claviger_engine::formats::{
    self, CopyState, HeaderAttributes, HeaderEditor, NewCredential, Prepared, Protection, Removal, RestoreFrom,
};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Advice, Credential, Error, ErrorKind, Result, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::bitlocker::maker::{self, Kind, Made, PASSWORD, Protector};
use claviger_testkit::bitlocker::metadata::{Datum, HEADERS, Nonces, Seal, set_datums, validation};
use claviger_testkit::bitlocker::oracles::{Features, Key, Reader, expect_in_turn, readers, sha256};
use claviger_testkit::random::Random;
use claviger_testkit::stores::{CrashStore, Depth};
use claviger_testkit::tools;

/// The 16 bytes of a recovery password.
const RECOVERY: [u8; 16] = *b"sixteen bytes of";
/// A recovery password that is in no volume at first.
const OTHER_RECOVERY: &str = "235818-357951-253979-013365-241120-245575-342914-591910";

const AREA: usize = 64 << 10;

fn editor() -> &'static dyn HeaderEditor {
    formats::by_name("BitLocker").expect("it is in the table").editor().expect("it has an editor")
}

/// A volume of a MiB with these protectors.
fn made(protectors: Vec<Protector>) -> Made {
    maker::Volume { size: 1 << 20, protectors, ..maker::Volume::new(Kind::Windows8) }.make()
}

/// A volume with a startup key, a recovery password and a password, in this order.
fn with_three() -> (Made, Credential) {
    let made = made(vec![Protector::StartupKey, Protector::Recovery(RECOVERY), Protector::Password(PASSWORD.into())]);
    let startup_key = startup_key_of(&made);
    (made, startup_key)
}

fn startup_key_of(made: &Made) -> Credential {
    let keys = made.unlocks.iter().filter_map(|unlock| match unlock {
        maker::Unlock::StartupKey(_, bytes) => Some(keyfile(bytes)),
        _ => None,
    });
    keys.into_iter().next().expect("it has a startup key")
}

fn keyfile(bytes: &[u8]) -> Credential {
    Credential::Keyfile(Secret::copy_from(bytes))
}

/// The contents of a startup key's file, as Windows 7 writes it.
fn startup_key(number: u8) -> Vec<u8> {
    let (guid, time) = ([number; 16], 0x01db_9c00_8000_0000u64.to_le_bytes());
    let key = Datum::key(0x2002, &[number ^ 0x55; 32]);
    let before = [&guid[..], &time].concat();
    let entry = Datum::with(6, 9, before, &[Datum::text(0, "ExternalKey"), key]).bytes();
    let size = (48 + entry.len() as u32).to_le_bytes();
    let fields: [&[u8]; 8] =
        [&size, &1u32.to_le_bytes(), &48u32.to_le_bytes(), &size, &guid, &1u32.to_le_bytes(), &[0; 4], &time];
    [fields.concat(), entry].concat()
}

/// The protector that opens, if one does; the data are then what they were.
fn opens(bytes: &[u8], plaintext: &[u8], with: &[Credential]) -> Option<u32> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
    let (_, header) = formats::open(&store, Some("BitLocker")).ok()?;
    let unlocked = header.unlock(&Unlock::with(with)).ok()?;
    let mut read = vec![0; plaintext.len()];
    Volume::new(store, unlocked.layout).read_at(0, &mut read).expect("the data can be read");
    assert!(read == plaintext, "what opens has the right key");
    unlocked.facts.keyslot
}

fn new(credential: &Credential) -> NewCredential<'_> {
    NewCredential { credentials: std::slice::from_ref(credential), ..NewCredential::default() }
}

fn add(store: &dyn Store, with: &Credential, credential: &Credential) -> Result<Prepared> {
    editor().add(store, &Unlock::with(std::slice::from_ref(with)), &new(credential), None)
}

fn change(store: &dyn Store, with: &Credential, credential: &Credential) -> Result<Prepared> {
    editor().change(store, &Unlock::with(std::slice::from_ref(with)), &new(credential))
}

fn remove(store: &dyn Store, number: u32, with: &Credential) -> Result<Prepared> {
    let with = Unlock::with(std::slice::from_ref(with));
    editor().remove(store, Removal::Number(number, Some(&with)), false)
}

fn protect(store: &dyn Store, with: &Credential, how: Protection) -> Result<Prepared> {
    editor().protect(store, &Unlock::with(std::slice::from_ref(with)), how)
}

fn label(store: &dyn Store, with: &Credential, text: &str) -> Result<Prepared> {
    let to = HeaderAttributes { label: Some(text), ..HeaderAttributes::default() };
    editor().set(store, Some(&Unlock::with(std::slice::from_ref(with))), &to)
}

fn done(prepared: Result<Prepared>, store: &dyn Store) -> Prepared {
    let prepared = prepared.expect("it can be done");
    prepared.edit.carry_out(store).expect("it is written");
    prepared
}

fn described(bytes: &[u8]) -> serde_json::Value {
    let (_, header) = formats::open(&shared(MemoryStore::new(bytes.to_vec())), None).expect("a header");
    crate::support::described(&*header)
}

fn kinds(bytes: &[u8]) -> Vec<String> {
    let described = described(bytes);
    let keyslots = described["keyslots"].as_array().expect("a list");
    keyslots.iter().map(|slot| slot["type"].as_str().expect("text").to_owned()).collect()
}

#[track_caller]
fn misuse<T>(result: Result<T>) -> String {
    let error = result.err().expect("refused");
    match error.kind {
        ErrorKind::Misuse(what) => what,
        other => panic!("{other}"),
    }
}

/// A block of metadata and what stands after it, read anew and by other code than the engine's.
fn copies(made: &Made, image: &[u8]) -> [Vec<u8>; 3] {
    made.layout.metadata.map(|at| image[at as usize..][..AREA].to_vec())
}

fn block_of(area: &[u8]) -> &[u8] {
    &area[..usize::from(u16::from_le_bytes([area[8], area[9]])) * 16]
}

fn datums(area: &[u8]) -> Vec<Datum> {
    Datum::parse_all(&block_of(area)[HEADERS..])
}

/// All sealed boxes of a copy: nonce, and what is sealed with it.
fn boxes(area: &[u8]) -> Vec<([u8; 12], Vec<u8>)> {
    fn below(datum: &Datum, found: &mut Vec<([u8; 12], Vec<u8>)>) {
        let fields = match datum.kind {
            3 => 20,
            4 => 4,
            8 => 28,
            9 => 24,
            5 => return found.push((datum.data[..12].try_into().expect("a nonce"), datum.data[12..].to_vec())),
            _ => return,
        };
        Datum::parse_all(&datum.data[fields..]).iter().for_each(|nested| below(nested, found));
    }
    let mut found = Vec::new();
    let hash = Datum::parse_all(&area[block_of(area).len() + 8..]);
    datums(area).iter().chain(&hash).for_each(|datum| below(datum, &mut found));
    found
}

#[test]
fn protectors_come_change_and_go() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    let opens = |text: &str| opens(&store.to_vec(), &made.plaintext, &[passphrase(text)]);
    let recovery = maker::recovery_text(&RECOVERY);

    let added = done(add(&store, &startup, &passphrase("Größe 12345 €")), &store);
    assert_eq!((added.keyslot, added.derivation.map(|d| d.iterations)), (Some(3), Some(1 << 20)));
    assert!(added.warnings.iter().any(|warning| warning.what.contains("Windows allows one")));
    assert_eq!(done(add(&store, &startup, &passphrase(OTHER_RECOVERY)), &store).keyslot, Some(4));
    assert_eq!(done(add(&store, &startup, &keyfile(&startup_key(7))), &store).keyslot, Some(5));
    for (text, number) in [(PASSWORD, 2), (&recovery, 1), ("Größe 12345 €", 3), (OTHER_RECOVERY, 4)] {
        assert_eq!(opens(text), Some(number), "{text}");
    }
    assert_eq!(
        kinds(&store.to_vec()),
        ["startup key", "recovery password", "password", "password", "recovery password", "startup key"]
    );

    assert_eq!(done(change(&store, &passphrase(PASSWORD), &passphrase("another one")), &store).keyslot, Some(2));
    assert_eq!((opens(PASSWORD), opens("another one")), (None, Some(2)));
    let two = passphrase("another one");
    done(editor().remove(&store, Removal::Opened(&Unlock::with(&[two])), false), &store);
    assert_eq!((opens("another one"), opens("Größe 12345 €"), opens(&recovery)), (None, Some(2), Some(1)));
    done(remove(&store, 1, &startup), &store);
    assert_eq!((opens(&recovery), opens(OTHER_RECOVERY)), (None, Some(2)));
    assert_eq!(kinds(&store.to_vec()), ["startup key", "password", "recovery password", "startup key"]);
}

#[test]
fn a_forgotten_password_is_replaced_by_whoever_opens_the_volume() {
    let (made, startup) = with_three();
    let recovery = passphrase(&maker::recovery_text(&RECOVERY));
    for with in [&recovery, &startup] {
        let store = MemoryStore::new(made.image.clone());
        assert_eq!(done(change(&store, with, &passphrase("newly chosen")), &store).keyslot, Some(2));
        let image = store.to_vec();
        assert_eq!(opens(&image, &made.plaintext, &[passphrase("newly chosen")]), Some(2));
        assert_eq!(opens(&image, &made.plaintext, &[passphrase(PASSWORD)]), None);
    }
    // Others of its kind change by themselves, too.
    let store = MemoryStore::new(made.image.clone());
    done(change(&store, &startup, &keyfile(&startup_key(9))), &store);
    done(change(&store, &recovery, &passphrase(OTHER_RECOVERY)), &store);
    let image = store.to_vec();
    assert_eq!(opens(&image, &made.plaintext, &[keyfile(&startup_key(9))]), Some(0));
    assert_eq!(opens(&image, &made.plaintext, &[passphrase(OTHER_RECOVERY)]), Some(1));
    assert_eq!(opens(&image, &made.plaintext, &[startup_key_of(&made)]), None);
    done(add(&store, &keyfile(&startup_key(9)), &passphrase("a second one")), &store);
    let refused = misuse(change(&store, &keyfile(&startup_key(9)), &passphrase("which of two")));
    assert!(refused.contains("several") && refused.contains("2, 3"), "{refused}");
}

/// A noted volume master key, or an old copy of the metadata, does not open the volume after a removal.
#[test]
fn a_removal_changes_the_volume_master_key() {
    let (made, startup) = with_three();
    let vmk = || [Credential::VolumeKey(Secret::copy_from(&made.vmk))];
    let store = MemoryStore::new(made.image.clone());
    let opens_by_vmk = |store: &MemoryStore| {
        let (_, header) = formats::open(&shared(MemoryStore::new(store.to_vec())), None).expect("a header");
        // A wrong volume master key is tried as a volume key, and nothing shows whether that is right.
        header.unlock(&Unlock::with(&vmk())).is_ok_and(|unlocked| unlocked.recognised)
    };
    done(add(&store, &startup, &passphrase("something new")), &store);
    assert!(opens_by_vmk(&store), "adding leaves it");
    done(protect(&store, &startup, Protection::NewKey), &store);
    assert!(!opens_by_vmk(&store));
    let store = MemoryStore::new(made.image.clone());
    done(remove(&store, 2, &startup), &store);
    assert!(!opens_by_vmk(&store));
    let image = store.to_vec();
    assert_eq!(opens(&image, &made.plaintext, &[startup_key_of(&made)]), Some(0));
    assert_eq!(opens(&image, &made.plaintext, &[passphrase(&maker::recovery_text(&RECOVERY))]), Some(1));
    // No box of the old metadata is left where it was wrapped anew.
    let (before, after) = (boxes(&copies(&made, &made.image)[0]), boxes(&copies(&made, &image)[0]));
    assert!(after.iter().all(|sealed| !before.contains(sealed)));
}

#[test]
fn suspending_opens_the_volume_to_all_until_it_is_resumed() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    let suspended = done(protect(&store, &startup, Protection::Suspend), &store);
    assert!(suspended.warnings.iter().any(|warning| warning.what.contains("anybody can open it")));
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[]), Some(3));
    assert_eq!(described(&store.to_vec())["suspended"], true);
    assert!(done(protect(&store, &startup, Protection::Suspend), &store).edit.steps.is_empty(), "it is already");
    let nothing = Unlock::with(&[]);
    let refused = misuse(editor().remove(&store, Removal::Opened(&nothing), false));
    assert!(refused.contains("suspended"), "{refused}");
    // A forgotten password can be replaced now.
    let replaced = passphrase("while open");
    done(editor().change(&store, &nothing, &new(&replaced)), &store);
    done(editor().protect(&store, &nothing, Protection::Resume), &store);
    let image = store.to_vec();
    assert_eq!(opens(&image, &made.plaintext, &[]), None);
    assert_eq!(opens(&image, &made.plaintext, &[replaced]), Some(2));
    assert!(protect(&store, &startup, Protection::Resume).expect("it is").edit.steps.is_empty(), "it is already");
    // The clear key that lay open for a while opens nothing any more: it had sealed another volume master key.
    assert_eq!(kinds(&image), ["startup key", "recovery password", "password"]);
}

#[test]
fn a_clear_key_alone_is_marked_as_windows_marks_it() {
    let made = made(vec![Protector::ClearKey]);
    let version = |store: &MemoryStore| {
        let all = datums(&copies(&made, &store.to_vec())[0]);
        all.iter().filter(|datum| datum.kind == 8).map(|datum| datum.version).collect::<Vec<_>>()
    };
    let store = MemoryStore::new(made.image.clone());
    let nothing = Unlock::with(&[]);
    let refused = misuse(editor().protect(&store, &nothing, Protection::Resume));
    assert!(refused.contains("only the clear key"), "{refused}");
    let password = passphrase("eight or more");
    done(editor().add(&store, &nothing, &new(&password), None), &store);
    assert_eq!(version(&store), [1, 1]);
    assert!(misuse(editor().remove(&store, Removal::Number(1, None), false)).contains("last one"));
    let removed = done(editor().remove(&store, Removal::Number(1, None), true), &store);
    assert!(removed.warnings.iter().any(|warning| warning.what.contains("anybody")));
    assert_eq!(version(&store), [3]);
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[]), Some(0));
}

#[test]
fn the_label_changes() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    for text in ["Größe", "", "KELLER D: 22.11.2026"] {
        done(label(&store, &startup, text), &store);
        assert_eq!(described(&store.to_vec())["label"], text);
        assert_eq!(opens(&store.to_vec(), &made.plaintext, &[startup_key_of(&made)]), Some(0));
    }
    assert!(misuse(label(&store, &startup, &"x".repeat(40_000))).contains("more than fit"));
    let to = HeaderAttributes { label: Some("x"), ..HeaderAttributes::default() };
    assert!(editor().set(&store, None, &to).is_err(), "the metadata are sealed");
    let to = HeaderAttributes { uuid: Some("8f595209-f5b9-49a0-85d4-cb8f80258c27"), ..HeaderAttributes::default() };
    let refused = editor().set(&store, Some(&Unlock::with(&[startup])), &to).expect_err("refused");
    assert!(matches!(refused.kind, ErrorKind::Unsupported { .. }));
}

#[test]
fn whoever_opens_the_volume_reads_the_recovery_passwords_again() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    done(add(&store, &startup, &passphrase(OTHER_RECOVERY)), &store);
    done(protect(&store, &startup, Protection::NewKey), &store);
    for credentials in [vec![startup], vec![passphrase(PASSWORD)]] {
        let all = editor().recovery_passwords(&store, &Unlock::with(&credentials)).expect("it opens");
        let all: Vec<_> =
            all.iter().map(|one| (one.keyslot, &one.guid, String::from_utf8_lossy(&one.password))).collect();
        assert_eq!((all[0].0, &*all[0].2), (1, &*maker::recovery_text(&RECOVERY)));
        assert_eq!((all[1].0, &*all[1].2, all.len()), (3, OTHER_RECOVERY, 2));
        assert_eq!(*all[0].1, maker::guid_text(&made.protectors[1]));
    }
    let wrong = [passphrase("not this one")];
    let error = editor().recovery_passwords(&store, &Unlock::with(&wrong)).expect_err("wrong");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)));
}

/// Windows 7 has no stretched key of a recovery password under the volume master key: it is stretched anew.
#[test]
fn recovery_passwords_of_windows_7_are_stretched_anew() {
    let protectors = vec![Protector::Recovery(RECOVERY), Protector::Password(PASSWORD.into())];
    let made = maker::Volume { size: 1 << 20, protectors, ..maker::Volume::new(Kind::Windows7) }.make();
    let image = &copies(&made, &made.image)[0];
    assert_eq!(
        boxes(image).len(),
        6,
        "a recovery password, its key; a stretched one, its key; the volume key, the hash"
    );
    let store = MemoryStore::new(made.image.clone());
    let recovery = passphrase(&maker::recovery_text(&RECOVERY));
    done(remove(&store, 1, &recovery), &store);
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[recovery]), Some(0));
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[passphrase(PASSWORD)]), None);
}

#[test]
fn what_cannot_be_wrapped_anew_is_told_before_anything_is_written() {
    let tpm = |pin: Option<&str>, startup_key| Protector::Tpm { pin: pin.map(str::to_owned), startup_key };
    for hardware in [tpm(None, false), tpm(Some("87654321"), false), tpm(None, true), Protector::SmartCard] {
        let made = made(vec![Protector::StartupKey, hardware.clone(), Protector::Recovery(RECOVERY)]);
        let startup = startup_key_of(&made);
        let store = MemoryStore::new(made.image.clone());
        for refused in [remove(&store, 2, &startup), protect(&store, &startup, Protection::NewKey)] {
            let refused = refused.expect_err("it cannot follow");
            assert!(refused.to_string().contains("cannot take the new one: 1 "), "{refused}");
            assert!(refused.hint.is_some());
        }
        // Changes that need no new key work, and so do their removals.
        done(add(&store, &startup, &passphrase("added beside it")), &store);
        assert_eq!(opens(&store.to_vec(), &made.plaintext, &[passphrase("added beside it")]), Some(3));
        done(remove(&store, 1, &startup), &store);
        assert_eq!(kinds(&store.to_vec()), ["startup key", "recovery password", "password"]);
        assert_eq!(opens(&store.to_vec(), &made.plaintext, &[startup]), Some(0));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    let refused = |credential: &Credential| misuse(add(&store, &startup, credential));
    assert!(refused(&passphrase("short 1")).contains("at least 8 characters, this one has 7"));
    assert!(refused(&passphrase("€€€€€€€")).contains("this one has 7"));
    assert!(refused(&Credential::Passphrase(Secret::copy_from(b"\xff\xfe no text"))).contains("UTF-8"));
    assert!(refused(&passphrase(&OTHER_RECOVERY.replace("253979", "253978"))).contains("third group"));
    assert!(refused(&startup_key_of(&made)).contains("already"));
    let both = [passphrase("long enough"), keyfile(&startup_key(3))];
    let both = NewCredential { credentials: &both, ..NewCredential::default() };
    let with = Unlock::with(std::slice::from_ref(&startup));
    assert!(misuse(editor().add(&store, &with, &both, None)).contains("takes one"));
    let one = passphrase("long enough");
    assert!(misuse(editor().add(&store, &with, &new(&one), Some(7))).contains("the new one is 3"));
    let hashed = NewCredential { hash: Some("SHA-512"), ..new(&one) };
    assert!(misuse(editor().add(&store, &with, &hashed, None)).contains("takes no hash"));
    let unbound = NewCredential { unbound_bits: Some(256), ..new(&one) };
    assert!(misuse(editor().add(&store, &with, &unbound, None)).contains("only the volume's own key"));
    assert!(misuse(remove(&store, 9, &startup)).contains("no protector 9"));
    assert!(misuse(remove(&store, 0, &startup)).contains("the one to remove"));
    assert!(misuse(editor().remove(&store, Removal::Number(0, None), false)).contains("give a password"));
    let fvek = [Credential::VolumeKey(Secret::copy_from(&made.fvek))];
    assert!(misuse(editor().add(&store, &Unlock::with(&fvek), &new(&one), None)).contains("FVEK"));
    let wrong = change(&store, &passphrase("wrong password"), &one).expect_err("wrong");
    assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
    let refused = editor().back_up(&store, &with, None).expect_err("there are three copies");
    assert_eq!(refused.advice.as_deref(), Some(&Advice::RepairHeader));
    let refused = editor().restore(&store, RestoreFrom::Embedded, &with, false).expect_err("there are three copies");
    assert!(matches!(refused.kind, ErrorKind::Unsupported { .. }));
    let other = MemoryStore::new(vec![0; 4096]);
    let refused = editor().restore(&other, RestoreFrom::Embedded, &with, false).expect_err("none of BitLocker");
    assert!(matches!(refused.kind, ErrorKind::NotThisFormat(_)));
    assert!(store.to_vec() == made.image, "nothing was written");
}

#[test]
fn the_last_protector_is_not_removed() {
    let made = made(vec![Protector::StartupKey]);
    let startup = startup_key_of(&made);
    let store = MemoryStore::new(made.image.clone());
    let with = Unlock::with(std::slice::from_ref(&startup));
    assert!(misuse(editor().remove(&store, Removal::Opened(&with), false)).contains("last one"));
    let removed = done(editor().remove(&store, Removal::Opened(&with), true), &store);
    assert!(removed.warnings.iter().any(|warning| warning.what.contains("No protector opens")));
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[startup_key_of(&made)]), None);
}

/// Puts other datums into all copies, with a hash that is right or not.
fn rewritten(made: &Made, at: &[u64], seal: Option<[u8; 32]>, datums: impl Fn(&mut Vec<Datum>)) -> Vec<u8> {
    let mut image = made.image.clone();
    for at in at {
        let area = &mut image[*at as usize..][..AREA];
        let mut block = block_of(area).to_vec();
        let mut all = Datum::parse_all(&block[HEADERS..]);
        datums(&mut all);
        set_datums(&mut block, &all);
        let hashed = if seal.is_some() { block.clone() } else { vec![0] };
        let seal = Seal::Under(seal.unwrap_or(made.vmk));
        block.extend(validation(&block, &hashed, AREA, seal, &mut Nonces::default()));
        block.resize(AREA, 0);
        area.copy_from_slice(&block);
    }
    image
}

#[test]
fn metadata_that_are_damaged_or_differ_are_mended_or_refused() {
    let (made, startup) = with_three();
    let all = made.layout.metadata;
    let relabelled = |datums: &mut Vec<Datum>| datums[0] = Datum::text(7, "forged");
    for at in all {
        let mut damaged = made.image.clone();
        damaged[at as usize + 300] ^= 1;
        let sealed = rewritten(&made, &[at], Some(made.vmk), relabelled);
        let unsealed = (at != all[0]).then(|| rewritten(&made, &[at], None, relabelled));
        for image in [damaged, sealed].into_iter().chain(unsealed) {
            let store = MemoryStore::new(image);
            let added = done(add(&store, &startup, &keyfile(&startup_key(1))), &store);
            assert!(!added.warnings.is_empty());
            let verified = editor().verify(&store, &Unlock::with(&[keyfile(&startup_key(1))])).expect("it opens");
            assert!(!verified.damaged, "{at}");
        }
    }
    // Somebody without the key has changed all copies, or a field outside the protectors.
    let unsealed = [&all[..1], &all].map(|at| rewritten(&made, at, None, relabelled));
    let elsewhere = made.layout.metadata[1] as usize;
    let mut differing = made.image.clone();
    let mut area = copies(&made, &differing)[1].clone();
    area[16..24].copy_from_slice(&512u64.to_le_bytes());
    let block = block_of(&area).to_vec();
    area.truncate(block.len());
    area.extend(validation(&block, &block, AREA, Seal::Under(made.vmk), &mut Nonces::default()));
    differing[elsewhere..][..area.len()].copy_from_slice(&area);
    for (number, image) in unsealed.into_iter().chain([differing]).enumerate() {
        let store = MemoryStore::new(image.clone());
        let added = passphrase("never added");
        let one = [startup_key_of(&made)];
        let attempts = [
            add(&store, &startup, &added),
            change(&store, &startup, &added),
            remove(&store, 2, &startup),
            protect(&store, &startup, Protection::NewKey),
            label(&store, &startup, "x"),
        ];
        for refused in attempts {
            let refused: Error = refused.expect_err("it is damaged");
            assert_eq!(refused.advice.as_deref(), Some(&Advice::RepairHeader), "{number}: {refused}");
        }
        assert!(store.to_vec() == image, "nothing was written");
        let verified = editor().verify(&store, &Unlock::with(&one)).expect("it opens");
        assert!(verified.damaged, "{number}");
    }
    let whole = MemoryStore::new(made.image.clone());
    let verified = editor().verify(&whole, &Unlock::with(&[startup])).expect("it opens");
    assert!(!verified.damaged && verified.copies.iter().all(|copy| copy.state == CopyState::Opens));
    assert_eq!(verified.copies.iter().map(|copy| copy.at).collect::<Vec<_>>(), all);
}

/// Unknown entries stay, byte for byte. Metadata that are not understood are not overwritten.
#[test]
fn unknown_entries_stay() {
    let volume = maker::Volume {
        size: 1 << 20,
        protectors: vec![Protector::StartupKey, Protector::Recovery(RECOVERY)],
        more_datums: vec![Datum::new(0x77, 0x99, b"nobody knows".to_vec()), Datum::new(0x0b, 0x42, vec![7; 30])],
        unknown_property: true,
        ..maker::Volume::new(Kind::Windows8)
    };
    let made = volume.make();
    let startup = startup_key_of(&made);
    let store = MemoryStore::new(made.image.clone());
    done(add(&store, &startup, &passphrase("added to them")), &store);
    done(remove(&store, 1, &startup), &store);
    let unknown = |image: &[u8]| {
        let all = datums(&copies(&made, image)[0]);
        let property = Datum::parse_all(&all.iter().find(|datum| datum.kind == 8).expect("a protector").data[28..]);
        let known = [1, 2, 3, 4, 5];
        let inside: Vec<_> = property.into_iter().filter(|datum| !known.contains(&datum.kind)).collect();
        let outside: Vec<_> = all.into_iter().filter(|datum| [0x99, 0x42].contains(&datum.kind)).collect();
        (inside, outside)
    };
    let before = unknown(&made.image);
    assert_eq!((before.0.len(), before.1.len()), (1, 2));
    assert_eq!(unknown(&store.to_vec()), before);
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[startup]), Some(0));
}

#[test]
fn metadata_that_do_not_fit_are_refused() {
    let made = made(vec![Protector::StartupKey]);
    let startup = startup_key_of(&made);
    let store = MemoryStore::new(made.image.clone());
    done(label(&store, &startup, &"x".repeat(31_000)), &store);
    let refused = (0..=255).find_map(|number| {
        let before = store.to_vec();
        let refused = match add(&store, &startup, &keyfile(&startup_key(number))) {
            Ok(prepared) => return prepared.edit.carry_out(&store).map_or(None, |()| None),
            Err(refused) => refused,
        };
        assert!(store.to_vec() == before, "nothing was written");
        Some(refused)
    });
    let refused = refused.expect("the room comes to an end");
    assert!(refused.to_string().contains("more than fit"), "{refused}");
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[startup]), Some(0));
}

#[test]
fn vista_is_left_alone() {
    let volume = maker::Volume { protectors: vec![Protector::StartupKey], ..maker::Volume::new(Kind::Vista) };
    let made = volume.make();
    let store = MemoryStore::new(made.image.clone());
    let refused = add(&store, &startup_key_of(&made), &passphrase("never added")).expect_err("refused");
    assert!(refused.to_string().contains("Vista"), "{refused}");
}

/// Every box ever sealed, through many changes: a nonce is never used for two of them, nor a counter, and the next is above all.
#[test]
fn no_nonce_is_used_twice() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    let (mut by_nonce, mut by_counter) = (HashMap::new(), HashMap::new());
    let mut look = |store: &MemoryStore| {
        let image = store.to_vec();
        let copies = copies(&made, &image);
        assert!(copies.iter().all(|copy| *copy == copies[0]));
        let next = u32::from_le_bytes(copies[0][96..100].try_into().expect("4 bytes"));
        for (nonce, sealed) in boxes(&copies[0]) {
            let counter = u32::from_le_bytes(nonce[8..].try_into().expect("4 bytes"));
            assert!(counter < next, "{counter} of {next}");
            let before = by_nonce.entry(nonce).or_insert_with(|| sealed.clone());
            assert!(*before == sealed, "the nonce {nonce:?} sealed two boxes");
            let before = by_counter.entry(counter).or_insert_with(|| sealed.clone());
            assert!(*before == sealed, "the counter {counter} sealed two boxes");
        }
        by_counter.len()
    };
    look(&store);
    let mut random = Random::new(13);
    let mut password = 0;
    for round in 0..60u8 {
        let count = kinds(&store.to_vec()).len();
        match random.below(8) {
            0 | 1 => drop(done(add(&store, &startup, &keyfile(&startup_key(round + 1))), &store)),
            2 if count > 3 => drop(done(remove(&store, 3 + random.below(count - 3) as u32, &startup), &store)),
            3 => drop(done(protect(&store, &startup, Protection::Suspend), &store)),
            4 => drop(done(protect(&store, &startup, Protection::Resume), &store)),
            5 => drop(done(label(&store, &startup, &format!("round {round}")), &store)),
            6 if password < 3 => {
                password += 1;
                drop(done(change(&store, &startup, &passphrase(&format!("password {round}"))), &store));
            }
            _ => drop(done(protect(&store, &startup, Protection::NewKey), &store)),
        }
        look(&store);
    }
    assert!(look(&store) > 300);
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[startup_key_of(&made)]), Some(0));
    let recovery = passphrase(&maker::recovery_text(&RECOVERY));
    assert_eq!(opens(&store.to_vec(), &made.plaintext, &[recovery]), Some(1));
}

/// A counter that others were careless with is not believed.
#[test]
fn the_next_nonce_is_above_all_whatever_the_metadata_say() {
    let (made, startup) = with_three();
    let mut image = made.image.clone();
    let area = copies(&made, &image)[0].clone();
    for (next, kept) in [(2u32, false), (900, true), (u32::MAX - 9, true)] {
        for at in made.layout.metadata {
            let mut block = block_of(&area).to_vec();
            block[96..100].copy_from_slice(&next.to_le_bytes());
            let mut nonces = Nonces::default();
            block.extend(validation(&block.clone(), &block.clone(), AREA, Seal::Under(made.vmk), &mut nonces));
            block.resize(AREA, 0);
            image[at as usize..][..AREA].copy_from_slice(&block);
        }
        let counters = |image: &[u8]| -> Vec<u32> {
            let counter = |nonce: [u8; 12]| u32::from_le_bytes(nonce[8..].try_into().expect("4 bytes"));
            boxes(&copies(&made, image)[0]).into_iter().map(|(nonce, _)| counter(nonce)).collect()
        };
        let highest = counters(&image).into_iter().max().expect("there are some");
        let expected = if kept { next } else { highest + 1 };
        let store = MemoryStore::new(image.clone());
        let added = add(&store, &startup, &keyfile(&startup_key(1)));
        if next > 900 {
            assert!(added.expect_err("it is used up").to_string().contains("counter"));
            continue;
        }
        done(added, &store);
        let new: Vec<_> = counters(&store.to_vec()).into_iter().filter(|counter| *counter >= expected).collect();
        assert_eq!(new, [expected, expected + 1, expected + 2], "the key, the volume master key, the hash");
    }
}

type Act = fn(&dyn Store, &Credential) -> Result<Prepared>;

/// Changes that no password has to be stretched for, and what opens the volume after each.
fn acts() -> [(&'static str, Act, Option<u8>); 7] {
    [
        ("add", |store, with| add(store, with, &keyfile(&startup_key(1))), Some(1)),
        ("change", |store, with| change(store, with, &keyfile(&startup_key(2))), Some(2)),
        ("remove", |store, with| remove(store, 1, with), None),
        ("suspend", |store, with| protect(store, with, Protection::Suspend), None),
        ("renew", |store, with| protect(store, with, Protection::NewKey), None),
        ("label", |store, with| label(store, with, "another"), None),
        ("long", |store, with| label(store, with, &"long ".repeat(5000)), None),
    ]
}

/// With a startup key and a recovery password, and what opens it after a change: nothing has to be stretched.
pub fn subject() -> Subject {
    let made = made(vec![Protector::StartupKey, Protector::Recovery(RECOVERY)]);
    let first = made.unlocks.iter().find_map(|unlock| match unlock {
        maker::Unlock::StartupKey(_, bytes) => Some(bytes.clone()),
        _ => None,
    });
    let keys =
        [first.expect("it has a startup key"), startup_key(1), startup_key(2)].map(torture::Key::Keyfile).to_vec();
    let (format, image, plaintext) = ("BitLocker", made.image, made.plaintext);
    Subject { format, image, plaintext, keys, hash: None, cipher: None, pim: None }
}

pub fn scenarios() -> Vec<Scenario> {
    let subject = subject();
    let verbs = [Verb::Add, Verb::Change, Verb::Remove, Verb::Protect, Verb::Protect, Verb::Set, Verb::Set];
    let mut scenarios: Vec<_> = acts()
        .into_iter()
        .zip(verbs)
        .map(|((name, act, new), verb)| {
            let prepare = move |_: &Subject, store: &dyn Store, with: &Unlock<'_>| act(store, &with.credentials[0]);
            // The tests of each verb check its result. Here, an interrupted verb must succeed when repeated.
            let after = subject.after(|store, with| act(store, &with.credentials[0]));
            let done = move |subject: &Subject, store: &Arc<dyn Store>| {
                let mut now = vec![0; store.len() as usize];
                store.read_at(0, &mut now).expect("it can be read");
                let like = |image: &[u8]| {
                    let described = described(image);
                    (kinds(image), described["label"].clone(), described["protection"].clone())
                };
                let opened = new.is_none_or(|number| subject.opened(store, &subject.keys[usize::from(number)]).is_ok());
                opened && (new.is_some() || like(&now) == like(&after.image))
            };
            torture::change(&subject, verb, name, prepare, done)
        })
        .collect();
    let damaged = subject.with_bytes(made(vec![Protector::StartupKey]).layout.metadata[0] as usize + 200, &[0xff; 8]);
    let repair = |_: &Subject, store: &dyn Store, with: &Unlock<'_>| editor().repair(store, Some(with), &[]);
    scenarios.push(torture::change(&damaged, Verb::Repair, "a copy", repair, |_, _| true));
    scenarios.push(torture::creation(&subject, |store| {
        let format = formats::by_name("BitLocker")?;
        format.create(&**store, &Spec { quick: true, ..Spec::default() }, &[self::subject().keys[0].credential()])
    }));
    scenarios
}

/// Killed after any copy, or within one: the same change again comes to what it would have come to.
#[test]
fn a_change_that_was_killed_is_finished_by_the_same_change() {
    let second = || keyfile(&startup_key(7));
    let remove_itself: Act = |store, _| {
        let with = [keyfile(&startup_key(7))];
        editor().remove(store, Removal::Opened(&Unlock::with(&with)), false)
    };
    let others: [(&str, Act); 5] = [
        ("remove another", |store, with| remove(store, 2, with)),
        ("remove itself", remove_itself),
        ("add a recovery password", |store, with| add(store, with, &passphrase(OTHER_RECOVERY))),
        ("replace by another kind", |store, with| change(store, with, &passphrase(OTHER_RECOVERY))),
        ("resume", |store, with| protect(store, with, Protection::Resume)),
    ];
    let all = acts().map(|(name, act, _)| (name, act)).into_iter().chain(others);
    for (name, act) in all.filter(|(name, _)| *name != "long") {
        let made = made(vec![Protector::StartupKey, Protector::Recovery(RECOVERY)]);
        let startup = startup_key_of(&made);
        let before = MemoryStore::new(made.image.clone());
        done(add(&before, &startup, &second()), &before);
        if name == "resume" {
            done(protect(&before, &startup, Protection::Suspend), &before);
        }
        let whole = MemoryStore::new(before.to_vec());
        let prepared = done(act(&whole, &startup), &whole);
        let steps = prepared.edit.steps;
        for (killed, cut) in [(0, 512), (0, AREA), (1, 512), (1, AREA), (2, 512)] {
            let what = format!("{name}, killed at byte {cut} of copy {killed}");
            let store = MemoryStore::new(before.to_vec());
            for (number, step) in steps.iter().take(killed + 1).enumerate() {
                let len = if number == killed { cut } else { AREA };
                store.write_clobbering(step.at, &mut step.bytes[..len].to_vec()).expect("a write");
            }
            let was = store.to_vec();
            let torn = copies(&made, &was)[killed] != copies(&made, &before.to_vec())[killed] && cut < AREA;
            let again = act(&store, &startup);
            // Nothing shows whether the number is the one before the removal or the one after it.
            if (killed, cut) == (2, 512) && torn && ["remove", "remove another"].contains(&name) {
                assert!(misuse(again).contains("the protector was already removed"), "{what}");
                assert!(store.to_vec() == was, "{what}");
                continue;
            }
            // It is gone already, wherever a copy tells.
            if (killed, cut) == (2, 512) && name == "remove itself" {
                again.expect_err("it opens nothing");
                continue;
            }
            let again = again.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(!again.warnings.is_empty(), "{what}: it is said");
            again.edit.carry_out(&store).unwrap_or_else(|e| panic!("{what}: {e}"));
            let now = store.to_vec();
            let [first, rest @ ..] = copies(&made, &now);
            assert!(rest.iter().all(|copy| *copy == first), "{what}: all copies say the same");
            assert_eq!(kinds(&now), kinds(&whole.to_vec()), "{what}");
            assert_eq!(described(&now)["label"], described(&whole.to_vec())["label"], "{what}");
            for key in [startup_key_of(&made), second(), keyfile(&startup_key(1)), keyfile(&startup_key(2))] {
                let key = std::slice::from_ref(&key);
                assert_eq!(opens(&now, &made.plaintext, key), opens(&whole.to_vec(), &made.plaintext, key), "{what}");
            }
        }
    }
}

/// Another change than the one that was killed undoes nothing of it, and removes nothing that was not meant.
#[test]
fn another_change_after_one_that_was_killed_keeps_all_protectors() {
    let made = made(vec![Protector::StartupKey, Protector::Recovery(RECOVERY)]);
    let startup = startup_key_of(&made);
    let killed = |act: &dyn Fn(&dyn Store) -> Result<Prepared>, copies: usize| {
        let store = MemoryStore::new(made.image.clone());
        done(add(&store, &startup, &keyfile(&startup_key(7))), &store);
        for step in act(&store).expect("it can be done").edit.steps.iter().take(copies) {
            store.write_clobbering(step.at, &mut step.bytes.clone()).expect("a write");
        }
        store
    };
    for count in [1, 2] {
        // A startup key was being changed: the new one stays where another is added.
        let store = killed(&|store| change(store, &startup, &keyfile(&startup_key(2))), count);
        done(add(&store, &keyfile(&startup_key(2)), &keyfile(&startup_key(3))), &store);
        for (key, opened) in [(startup_key(2), Some(0)), (startup_key(7), Some(2)), (startup_key(3), Some(3))] {
            assert_eq!(opens(&store.to_vec(), &made.plaintext, &[keyfile(&key)]), opened);
        }
        // It is the one that is meant by its number.
        let store = killed(&|store| change(store, &startup, &keyfile(&startup_key(2))), count);
        done(remove(&store, 0, &keyfile(&startup_key(7))), &store);
        assert_eq!(opens(&store.to_vec(), &made.plaintext, &[keyfile(&startup_key(2))]), None);
        assert_eq!(kinds(&store.to_vec()), ["recovery password", "startup key"]);
        // One was being added: it is kept, and removed by its number.
        let added = || killed(&|store| add(store, &startup, &keyfile(&startup_key(1))), count);
        let store = added();
        done(add(&store, &startup, &keyfile(&startup_key(3))), &store);
        for (key, opened) in [(startup_key(1), Some(3)), (startup_key(3), Some(4))] {
            assert_eq!(opens(&store.to_vec(), &made.plaintext, &[keyfile(&key)]), opened);
        }
        let store = added();
        done(remove(&store, 3, &startup), &store);
        assert_eq!(kinds(&store.to_vec()), ["startup key", "recovery password", "startup key"]);
        assert!(misuse(remove(&added(), 4, &startup)).contains("no protector 4"));
        // One was being removed: no other goes for it, and a second one can.
        let removed = || killed(&|store| remove(store, 1, &startup), count);
        let store = removed();
        done(remove(&store, 2, &startup), &store);
        assert_eq!(kinds(&store.to_vec()), ["startup key"]);
        let store = removed();
        done(remove(&store, 1, &startup), &store);
        assert_eq!(kinds(&store.to_vec()), ["startup key", "startup key"]);
    }
}

/// All sectors of one copy torn in every way that is tried.
#[test]
fn a_torn_copy_is_never_taken_for_a_whole_one() {
    let made = made(vec![Protector::StartupKey]);
    let old = startup_key_of(&made);
    let store = CrashStore::new(made.image.clone());
    done(label(&store, &old, &"another label ".repeat(400)), &store);
    store.each_crash(Depth { exhaustive: 8, sampled: 100, seed: 20 }, |image| {
        assert_eq!(opens(image, &made.plaintext, std::slice::from_ref(&old)), Some(0));
    });
}

/// Another program changed the metadata in the meantime: nothing is written.
#[test]
fn metadata_that_were_changed_meanwhile_are_left_alone() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    let prepared = label(&store, &startup, "mine").expect("it can be done");
    done(label(&store, &startup, "theirs"), &store);
    let now = store.to_vec();
    let refused = prepared.edit.carry_out(&store).expect_err("it is the second");
    assert!(matches!(refused.kind, ErrorKind::InUse { .. }), "{refused}");
    assert!(store.to_vec() == now);
}

/// Whoever of the others can reads the changed volume, each with another protector; in each turn with the next.
#[track_caller]
fn others_read(image: &[u8], plaintext: &[u8], features: &Features, keys: &[Key], turn: usize) {
    let file = to_file(image);
    assert!(expect_in_turn(readers(), file.path(), features, keys, plaintext, turn) > 0);
}

#[test]
fn others_open_what_was_added_and_changed() {
    for (turn, kind) in [Kind::Windows7, Kind::Windows8, Kind::ToGo].into_iter().enumerate() {
        let protectors = vec![Protector::StartupKey, Protector::Password(PASSWORD.into())];
        let made = maker::Volume { protectors, ..maker::Volume::new(kind) }.make();
        let startup = startup_key_of(&made);
        let store = MemoryStore::new(made.image.clone());
        done(add(&store, &startup, &passphrase(OTHER_RECOVERY)), &store);
        done(change(&store, &startup, &passphrase("another password")), &store);
        done(label(&store, &startup, "another label"), &store);
        let dir = tempfile::tempdir().expect("a folder");
        let bek = dir.path().join("07070707-0707-0707-0707-070707070707.BEK");
        std::fs::write(&bek, startup_key(7)).expect("it is written");
        done(change(&store, &startup, &keyfile(&startup_key(7))), &store);
        let keys = [Key::Password("another password"), Key::Recovery(OTHER_RECOVERY), Key::StartupKey(&bek)];
        others_read(&store.to_vec(), &made.plaintext, &made.features, &keys, turn);
    }
}

#[test]
fn others_open_what_a_new_volume_master_key_was_given_to() {
    let (made, startup) = with_three();
    let store = MemoryStore::new(made.image.clone());
    done(add(&store, &startup, &keyfile(&startup_key(7))), &store);
    done(remove(&store, 0, &keyfile(&startup_key(7))), &store);
    let dir = tempfile::tempdir().expect("a folder");
    let bek = dir.path().join("07070707-0707-0707-0707-070707070707.BEK");
    std::fs::write(&bek, startup_key(7)).expect("it is written");
    let recovery = maker::recovery_text(&RECOVERY);
    let keys = [Key::Password(PASSWORD), Key::Recovery(&recovery), Key::StartupKey(&bek)];
    others_read(&store.to_vec(), &made.plaintext, &made.features, &keys, 0);
    done(protect(&store, &keyfile(&startup_key(7)), Protection::Suspend), &store);
    let features = Features { clear_beside_others: true, ..made.features };
    others_read(&store.to_vec(), &made.plaintext, &features, &[Key::Clear, keys[0], keys[1], keys[2]], 0);
    let nothing = Unlock::with(&[]);
    done(editor().protect(&store, &nothing, Protection::Resume), &store);
    others_read(&store.to_vec(), &made.plaintext, &made.features, &keys, 1);
}

/// Volumes that Windows made: what opens them before a change opens them after it, and so does what was added, and the data are the same.
#[test]
fn volumes_of_windows_are_changed() {
    let Some(archive) = tools::sample("cryptsetup/images.tar.xz") else { return };
    let Some(tar) = tools::program("tar") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    tools::run(Command::new(tar).arg("-xJSf").arg(archive).arg("-C").arg(dir.path()).arg("bitlk"));
    let dir = dir.path().join("bitlk");
    let conf = std::fs::read_to_string(dir.join("images.conf")).expect("a description");
    let mut seen = 0;
    for section in conf.split('[').skip(1) {
        let (name, lines) = section.split_once("]\n").expect("a heading");
        let value = |key: &str| lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or("");
        let store = Arc::new(MemoryStore::new(std::fs::read(dir.join(format!("{name}.img"))).expect("an image")));
        let hash = |with: &[Credential]| {
            let (_, header) = formats::open(&shared(Arc::clone(&store)), Some("BitLocker")).expect("a header");
            let unlocked = header.unlock(&Unlock::with(with)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(unlocked.warnings.is_empty(), "{name}: {:?}", unlocked.warnings);
            sha256(&all_of(&Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.layout)))
        };
        let recovery: Vec<_> = Some(value("RP")).filter(|text| !text.is_empty()).map(passphrase).into_iter().collect();
        let (with, added) = (Unlock::with(&recovery), passphrase("added by us"));
        let new = NewCredential { credentials: std::slice::from_ref(&added), ..NewCredential::default() };
        // All but the suspended one have a password; dislocker tries the first alone.
        let suspended = recovery.is_empty();
        match suspended {
            true => done(editor().add(&*store, &with, &new, None), &*store),
            false => done(editor().change(&*store, &with, &new), &*store),
        };
        let another = keyfile(&startup_key(7));
        let beside = NewCredential { credentials: std::slice::from_ref(&another), ..NewCredential::default() };
        done(editor().add(&*store, &with, &beside, None), &*store);
        let how = if suspended { Protection::Resume } else { Protection::NewKey };
        done(editor().protect(&*store, &with, how), &*store);
        assert_eq!(hash(std::slice::from_ref(&added)), value("SHA256SUM"), "{name}");
        assert_eq!(hash(std::slice::from_ref(&another)), value("SHA256SUM"), "{name}");
        if !suspended {
            assert_eq!(hash(&recovery), value("SHA256SUM"), "{name}");
        }
        seen += 1;
        // Megabytes of both kinds of ciphers; the rest is read from small volumes.
        if !["bitlk-aes-xts-128", "bitlk-aes-cbc-elephant-128"].contains(&name) {
            continue;
        }
        let file = to_file(&store.to_vec());
        let mut keys = [Key::Password("added by us"), Key::Recovery(value("RP"))];
        if name == "bitlk-aes-xts-128" {
            keys.reverse();
        }
        let readers = [Reader::Dislocker, Reader::Cryptsetup].into_iter().zip(keys);
        for (reader, key) in readers.filter(|(reader, _)| reader.installed()) {
            let read = reader.sha256(file.path(), key);
            assert_eq!(read.as_deref(), Ok(value("SHA256SUM")), "{name}, {} with {key:?}", reader.name());
        }
    }
    assert_eq!(seen, 6);
}
