//! Making LUKS2 volumes and changing their headers: what is written, what opens afterwards, and what a crash leaves.

use std::sync::Arc;

use crate::support::{noise, passphrase, shared};
use crate::torture::{self, Key, Scenario, Subject, Verb};
use claviger_engine::formats::luks2::{self, Luks2CopyState, binary::Which};
use claviger_engine::formats::{
    self, HeaderAttributes, HeaderEditor, NewCredential, Prepared, Removal, RestoreFrom, TokenChange,
};
use claviger_engine::spec::Cost;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Credential, ErrorKind, Result, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::stores::{CrashStore, Depth, Fault, FaultStore, Operation};
use serde_json::{Map, Value, json};

/// As cheap as a keyslot can be.
const CHEAP: Cost<'_> =
    Cost { kdf: Some("pbkdf2"), iterations: Some(1000), time_ms: None, memory_kib: None, lanes: None };

/// Room for four keyslots of 256 bits, and a little data after.
const SLOT: u64 = 131_072;
const DATA: u64 = 32_768 + 4 * SLOT;
const LEN: usize = DATA as usize + 65_536;

fn editor() -> &'static dyn HeaderEditor {
    formats::by_name("LUKS2").expect("it is in the table").editor().expect("it has an editor")
}

fn spec() -> Spec<'static> {
    Spec { cost: CHEAP, key_bits: Some(256), data_offset: Some(DATA), quick: true, ..Spec::default() }
}

/// A volume whose data are known.
fn volume(text: &str) -> Vec<u8> {
    volume_with(&spec(), text)
}

fn volume_with(spec: &Spec<'_>, text: &str) -> Vec<u8> {
    let store = Arc::new(MemoryStore::new(noise(LEN, 1)));
    let format = formats::by_name("LUKS2").expect("it is in the table");
    format.create(&*store, spec, &[passphrase(text)]).expect("a new volume");
    let credentials = [passphrase(text)];
    let (_, header) = formats::open(&shared(Arc::clone(&store)), None).expect("a header");
    let unlocked = header.unlock(&Unlock::with(&credentials)).expect("it opens");
    let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.layout);
    volume.write_clobbering(0, &mut [0x42; 4096]).expect("it is written");
    store.to_vec()
}

/// The keyslot that opens, if one does; the data are then what they were.
fn opens(bytes: &[u8], text: &str) -> Option<u32> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
    let credentials = [passphrase(text)];
    let (_, header) = formats::open(&store, Some("LUKS2")).ok()?;
    let unlocked = header.unlock(&Unlock::with(&credentials)).ok()?;
    let mut start = vec![0; 4096];
    Volume::new(store, unlocked.layout).read_at(0, &mut start).expect("the data can be read");
    assert_eq!(start, [0x42; 4096], "what opens has the right key");
    unlocked.facts.keyslot
}

/// A volume with two keyslots, the second of which stays, and a token.
pub fn subject() -> Subject {
    let before = MemoryStore::new(volume("one"));
    done(add(&before, "one", "two", None), &before);
    done(editor().change_tokens(&before, token_1()), &before);
    let keys = ["one", "zwei", "two"].map(|text| Key::Passphrase(text.to_owned())).to_vec();
    let (format, image, plaintext) = ("LUKS2", before.to_vec(), Vec::new());
    Subject { format, image, plaintext, keys, hash: None, cipher: None, pim: None }.with_its_plaintext()
}

pub fn scenarios() -> Vec<Scenario> {
    let subject = subject();
    let first_only = Subject { keys: subject.keys[..2].to_vec(), ..subject.clone() };
    let opens = |s: &Subject, store: &Arc<dyn Store>, key: usize| s.opened(store, &s.keys[key]).is_ok();
    let header = |store: &Arc<dyn Store>| luks2::read(&**store).ok();
    fn new<T>(subject: &Subject, with: impl FnOnce(&NewCredential<'_>) -> T) -> T {
        let credentials = [subject.keys[1].credential()];
        with(&NewCredential { credentials: &credentials, cost: CHEAP, ..NewCredential::default() })
    }
    let backup = MemoryStore::new(subject.image.clone());
    let changed = subject.after(|store, with| new(&subject, |new| editor().change(store, with, new)));
    let labelled = |_: &Subject, store: &dyn Store, _: &Unlock<'_>| {
        editor().set(store, None, &HeaderAttributes { label: Some("x"), ..HeaderAttributes::default() })
    };
    let mut scenarios = vec![
        torture::change(
            &first_only,
            Verb::Change,
            "another passphrase",
            |s, store, with| new(s, |new| editor().change(store, with, new)),
            move |s, store| opens(s, store, 1) && !opens(s, store, 0),
        ),
        torture::change(
            &subject,
            Verb::Add,
            "a keyslot",
            |s, store, with| new(s, |new| editor().add(store, with, new, None)),
            move |s, store| opens(s, store, 1),
        ),
        torture::change(
            &subject,
            Verb::Remove,
            "a keyslot",
            |_, store, _| remove(store, 0),
            move |s, store| !opens(s, store, 0),
        ),
        torture::change(&subject, Verb::Set, "a label", labelled, move |_, store| {
            header(store).is_some_and(|header| header.binary.label == b"x")
        }),
        torture::change(
            &subject,
            Verb::Tokens,
            "import",
            |_, store, _| editor().change_tokens(store, token_1()),
            move |_, store| header(store).is_some_and(|header| header.metadata.tokens.len() > 1),
        ),
        torture::change(
            &subject,
            Verb::Tokens,
            "assign",
            |_, store, _| editor().change_tokens(store, TokenChange::Assign { token: 0, keyslot: 1, assigned: true }),
            move |_, store| {
                header(store).is_some_and(|header| {
                    header.metadata.tokens[&0]["keyslots"].as_array().is_some_and(|all| all.len() > 1)
                })
            },
        ),
        torture::change(
            &subject,
            Verb::Tokens,
            "remove",
            |_, store, _| editor().change_tokens(store, TokenChange::Remove(0)),
            move |_, store| header(store).is_some_and(|header| header.metadata.tokens.is_empty()),
        ),
        torture::change(
            &changed,
            Verb::Restore,
            "from a file",
            move |_, store, with| editor().restore(store, RestoreFrom::Backup(&backup), with, true),
            move |s, store| opens(s, store, 0) && !opens(s, store, 1),
        ),
        torture::creation(&first_only, |store| {
            formats::by_name("LUKS2")?.create(&**store, &spec(), &[passphrase("one")])
        }),
    ];
    scenarios.push(replacement());
    // One copy of the header is damaged, or is an older one.
    for copy in [0, 16_384] {
        let old = subject.image[copy..copy + 16_384].to_vec();
        let damaged = subject.with_bytes(copy + 4096 + 50, &[0]);
        let stale = subject.after(|store, with| labelled(&subject, store, with)).with_bytes(copy, &old);
        for (subject, what) in [(damaged, "damaged"), (stale, "stale")] {
            let repair = |_: &Subject, store: &dyn Store, _: &Unlock<'_>| editor().repair(store, None, &[]);
            let newest = if what == "stale" { "x" } else { "" };
            let done = move |_: &Subject, store: &Arc<dyn Store>| {
                header(store).is_some_and(|header| header.binary.label == newest.as_bytes())
            };
            scenarios.push(torture::change(&subject, Verb::Repair, &format!("{what} at {copy}"), repair, done));
        }
    }
    // wipefs takes the magic of both.
    let wiped = subject.with_bytes(0, &[0; 6]).with_bytes(16_384, &[0; 6]);
    let repair = |_: &Subject, store: &dyn Store, _: &Unlock<'_>| editor().repair(store, None, &[]);
    let marked = |_: &Subject, store: &Arc<dyn Store>| {
        let mut magic = [[0; 6]; 2];
        let read = [0, 16_384].into_iter().zip(&mut magic).all(|(at, magic)| store.read_at(at, magic).is_ok());
        read && magic == [*b"LUKS\xba\xbe", *b"SKUL\xba\xbe"]
    };
    scenarios.push(torture::change(&wiped, Verb::Repair, "both without their magic", repair, marked));
    scenarios
}

/// A token for a passphrase that something else seals, which the token says here.
fn sealing(text: &str) -> Map<String, Value> {
    let Value::Object(token) = json!({"type": "acme", "keyslots": [], "seals": text}) else {
        unreachable!("an object")
    };
    token
}

fn replace(store: &dyn Store, with: &Unlock<'_>, text: &str, number: u32) -> Result<Prepared> {
    let (credentials, token) = ([passphrase(text)], sealing(text));
    let new = NewCredential { credentials: &credentials, cost: CHEAP, token: Some(&token), ..NewCredential::default() };
    editor().replace(store, with, &new, number)
}

/// A volume with a keyslot whose passphrase is sealed.
fn sealed() -> MemoryStore {
    let store = MemoryStore::new(volume("one"));
    let (one, old, token) = ([passphrase("one")], [passphrase("old")], sealing("old"));
    let new = NewCredential { credentials: &old, cost: CHEAP, token: Some(&token), ..NewCredential::default() };
    done(editor().add(&store, &Unlock::with(&one), &new, None), &store);
    store
}

/// At every moment, the passphrase and what the token seals open.
fn replacement() -> Scenario {
    let keys = ["one", "old", "new"].map(|text| Key::Passphrase(text.to_owned())).to_vec();
    let subject = Subject { image: sealed().to_vec(), keys, ..subject() }.with_its_plaintext();
    let token =
        |store: &Arc<dyn Store>| luks2::read(&**store).map(|header| header.metadata.tokens[&0]["seals"].clone());
    let mut scenario = torture::change(
        &subject,
        Verb::Replace,
        "a sealed passphrase",
        |_, store, with| replace(store, with, "new", 1),
        move |s, store| token(store).is_ok_and(|seals| seals == "new") && s.opened(store, &s.keys[1]).is_err(),
    );
    scenario.read = Box::new(move |store| {
        let sealed = if token(store)? == "new" { 2 } else { 1 };
        subject.opened(store, &subject.keys[0]).and_then(|_| subject.opened(store, &subject.keys[sealed]))
    });
    scenario
}

#[test]
fn whatever_a_crash_or_fault_leaves_of_a_replacement_both_open() {
    let scenario = replacement();
    let memory = |image: &[u8]| Arc::new(MemoryStore::new(image.to_vec())) as Arc<dyn Store>;
    let both_open = |store: &Arc<dyn Store>, what: &str| {
        assert!((scenario.read)(store).ok() == scenario.plaintext, "{what}");
    };
    let crash = Arc::new(CrashStore::new(scenario.before.clone()));
    (scenario.act)(&(Arc::clone(&crash) as Arc<dyn Store>)).expect("it is done");
    let mut crashes = 0;
    crash.each_crash(Depth { exhaustive: 3, sampled: 6, seed: 1 }, |image| {
        crashes += 1;
        both_open(&memory(image), &format!("crash {crashes}"));
    });
    assert!(crashes > 20, "{crashes}");
    for operation in [Operation::Write, Operation::Flush] {
        for (nth, for_good) in (0..4).flat_map(|nth| [(nth, false), (nth, true)]) {
            let inner = memory(&scenario.before);
            let fault = Fault { operation, nth, for_good, transferred: 512 };
            let failing: Arc<dyn Store> = Arc::new(FaultStore::new(Arc::clone(&inner), Some(fault)));
            assert!((scenario.act)(&failing).is_err(), "{fault:?}");
            both_open(&inner, &format!("{fault:?}"));
            (scenario.finish)(&inner).expect("it comes to its end");
            both_open(&inner, &format!("{fault:?}, done"));
        }
    }
}

#[test]
fn a_sealed_passphrase_is_replaced_with_its_token() {
    let store = sealed();
    let before = store.to_vec();
    let one = [passphrase("one")];
    let with = Unlock::with(&one);
    assert_eq!(done(replace(&store, &with, "new", 1), &store).keyslot, Some(1));
    let after = store.to_vec();
    assert_eq!((opens(&after, "one"), opens(&after, "new"), opens(&after, "old")), (Some(0), Some(1), None));
    let tokens = metadata(&after).tokens;
    assert_eq!((tokens.len(), &tokens[&0]["seals"], &tokens[&0]["keyslots"]), (1, &json!("new"), &json!(["1"])));
    // Of the old key nothing is left, even with the old header.
    let mut both = after;
    both[..32_768].copy_from_slice(&before[..32_768]);
    assert_eq!((opens(&both, "one"), opens(&both, "old")), (Some(0), None));
    // It opens itself, too.
    let new = [passphrase("new")];
    done(replace(&store, &Unlock { keyslot: Some(1), ..Unlock::with(&new) }, "newer", 1), &store);
    let wrong = [passphrase("wrong")];
    let refused = replace(&store, &Unlock::with(&wrong), "x", 1).expect_err("another passphrase");
    assert!(matches!(refused.kind, ErrorKind::WrongCredential(_)), "{refused}");
    assert!(misuse(replace(&store, &with, "x", 2)).contains("no keyslot 2"));
    assert!(misuse(replace(&store, &with, "x", 0)).contains("keyslot 0 has no token"));
    let assign = TokenChange::Assign { token: 0, keyslot: 0, assigned: true };
    done(editor().change_tokens(&store, assign), &store);
    assert!(misuse(replace(&store, &with, "x", 1)).contains("token 0 is also for other keyslots"));
    done(editor().change_tokens(&store, token_1()), &store);
    assert!(misuse(replace(&store, &with, "x", 0)).contains("several tokens: 0, 1"));
    assert_eq!(opens(&store.to_vec(), "newer"), Some(1));
    // An unbound key never takes the place of the volume's.
    let unbound = NewCredential { credentials: &one, cost: CHEAP, unbound_bits: Some(256), ..NewCredential::default() };
    let store = sealed();
    done(editor().add(&store, &Unlock::with(&[]), &unbound, Some(3)), &store);
    let named = Unlock { keyslot: Some(3), ..Unlock::with(&one) };
    assert!(replace(&store, &named, "x", 1).is_err());
    assert!(replace(&store, &with, "x", 3).is_err());
}

fn add(store: &dyn Store, with: &str, new: &str, at: Option<u32>) -> Result<Prepared> {
    let (with, new) = ([passphrase(with)], [passphrase(new)]);
    let new = NewCredential { credentials: &new, cost: CHEAP, ..NewCredential::default() };
    editor().add(store, &Unlock::with(&with), &new, at)
}

fn change(store: &dyn Store, with: &str, new: &str) -> Result<Prepared> {
    let (with, new) = ([passphrase(with)], [passphrase(new)]);
    let new = NewCredential { credentials: &new, cost: CHEAP, ..NewCredential::default() };
    editor().change(store, &Unlock::with(&with), &new)
}

fn remove(store: &dyn Store, number: u32) -> Result<Prepared> {
    editor().remove(store, Removal::Number(number, None), false)
}

fn done(prepared: Result<Prepared>, store: &dyn Store) -> Prepared {
    let prepared = prepared.expect("it can be done");
    prepared.edit.carry_out(store).expect("it is written");
    prepared
}

fn metadata(bytes: &[u8]) -> luks2::metadata::Metadata {
    read(bytes).metadata
}

fn read(bytes: &[u8]) -> luks2::ReadHeader {
    luks2::read(&MemoryStore::new(bytes.to_vec())).expect("a header")
}

fn misuse<T>(result: Result<T>) -> String {
    match result.err().expect("refused").kind {
        ErrorKind::Misuse(what) => what,
        other => panic!("{other}"),
    }
}

#[test]
fn keyslots_come_change_and_go() {
    let store = MemoryStore::new(volume("one"));
    assert_eq!(done(add(&store, "one", "two", None), &store).keyslot, Some(1));
    assert_eq!(done(add(&store, "two", "three", Some(7)), &store).keyslot, Some(7));
    for (text, slot) in [("one", 0), ("two", 1), ("three", 7)] {
        assert_eq!(opens(&store.to_vec(), text), Some(slot));
    }
    assert!(misuse(add(&store, "one", "x", Some(7))).contains("in use"));
    assert!(misuse(add(&store, "one", "x", Some(32))).contains("0 to 31"));
    let old = metadata(&store.to_vec()).keyslots[&1].area.clone();
    assert_eq!(done(change(&store, "two", "zwei"), &store).keyslot, Some(1));
    let bytes = store.to_vec();
    assert_eq!((opens(&bytes, "zwei"), opens(&bytes, "two")), (Some(1), None));
    assert_ne!(
        metadata(&bytes).keyslots[&1].area.offset,
        old.offset,
        "the new key never takes the place of the old one"
    );
    done(remove(&store, 0), &store);
    let bytes = store.to_vec();
    assert_eq!((opens(&bytes, "one"), opens(&bytes, "zwei"), opens(&bytes, "three")), (None, Some(1), Some(7)));
    assert!(!metadata(&bytes).keyslots.contains_key(&0));
    let three = [passphrase("three")];
    let with = Unlock::with(&three);
    let itself = editor().remove(&store, Removal::Number(7, Some(&with)), false);
    assert!(misuse(itself).contains("opens keyslot 7, the one to remove"));
    done(editor().remove(&store, Removal::Opened(&with), false), &store);
    assert!(misuse(remove(&store, 1)).contains("last one"));
    let zwei = [passphrase("zwei")];
    let last = editor().remove(&store, Removal::Number(1, Some(&Unlock::with(&zwei))), false);
    assert!(misuse(last).contains("last one"));
    let prepared = done(editor().remove(&store, Removal::Number(1, None), true), &store);
    assert!(prepared.warnings.iter().any(|w| w.what.contains("No keyslot opens")));
    assert_eq!(opens(&store.to_vec(), "zwei"), None);
    assert!(misuse(remove(&store, 1)).contains("no keyslot 1"));
}

#[test]
fn what_is_removed_or_changed_leaves_nothing_of_its_key() {
    for changed in [false, true] {
        let store = MemoryStore::new(volume("one"));
        done(add(&store, "one", "two", None), &store);
        let before = store.to_vec();
        let area = &metadata(&before).keyslots[&1].area;
        let area = area.offset.0 as usize..(area.offset.0 + area.size.0) as usize;
        done(if changed { change(&store, "two", "zwei") } else { remove(&store, 1) }, &store);
        let after = store.to_vec();
        let same = before[area.clone()].chunks(16).zip(after[area].chunks(16)).filter(|(a, b)| a == b).count();
        assert_eq!(same, 0);
        // Even the old header brings nothing back.
        let mut both = after;
        both[..32_768].copy_from_slice(&before[..32_768]);
        assert_eq!(opens(&both, "two"), None);
    }
}

#[test]
fn the_volume_key_itself_adds_keyslots() {
    let key = Secret::copy_from(&noise(32, 7));
    let store = MemoryStore::new(volume_with(&Spec { volume_key: Some(&key), ..spec() }, "one"));
    let new = [passphrase("new")];
    let new = NewCredential { credentials: &new, cost: CHEAP, ..NewCredential::default() };
    let with = [Credential::VolumeKey(Secret::copy_from(&key))];
    done(editor().add(&store, &Unlock::with(&with), &new, None), &store);
    assert_eq!(opens(&store.to_vec(), "new"), Some(1));
    let wrong = [Credential::VolumeKey(Secret::copy_from(&noise(32, 8)))];
    let refused = editor().add(&store, &Unlock::with(&wrong), &new, None).expect_err("another key");
    assert!(matches!(refused.kind, ErrorKind::WrongCredential(_)), "{refused}");
}

#[test]
fn unbound_keyslots_hold_other_keys() {
    let store = MemoryStore::new(volume("one"));
    let text = [passphrase("unbound")];
    let new = NewCredential { credentials: &text, cost: CHEAP, unbound_bits: Some(128), ..NewCredential::default() };
    done(editor().add(&store, &Unlock::with(&[]), &new, Some(3)), &store);
    let bytes = store.to_vec();
    let found = metadata(&bytes);
    assert_eq!((found.keyslots[&3].key_size, found.digests.len()), (16, 2));
    assert_eq!((opens(&bytes, "unbound"), opens(&bytes, "one")), (None, Some(0)));
    // Its passphrase changes as that of others does, if it is named.
    let with = Unlock { keyslot: Some(3), ..Unlock::with(&text) };
    let other = [passphrase("other")];
    let new = NewCredential { credentials: &other, cost: CHEAP, ..NewCredential::default() };
    done(editor().change(&store, &with, &new), &store);
    assert!(misuse(remove(&store, 0)).contains("last one"), "an unbound keyslot opens no data");
    done(remove(&store, 3), &store);
    assert_eq!(metadata(&store.to_vec()).digests.len(), 1);
}

/// A token, wherever there is room.
fn token_1() -> TokenChange<'static> {
    static TOKEN: std::sync::LazyLock<Value> =
        std::sync::LazyLock::new(|| json!({"type": "acme", "keyslots": ["0"], "ballast": "x".repeat(600)}));
    TokenChange::Import { token: &TOKEN, at: None, replace: false }
}

/// Deriving a key takes seconds, in which another program may change the header: then nothing is written.
#[test]
fn a_header_that_was_changed_meanwhile_is_left_alone() {
    let store = MemoryStore::new(volume("one"));
    let prepared = add(&store, "one", "two", None).expect("it can be added");
    let other = add(&store, "one", "three", None).expect("it can be added");
    other.edit.carry_out(&store).expect("it is the first");
    let now = store.to_vec();
    let refused = prepared.edit.carry_out(&store).expect_err("it is the second");
    assert!(matches!(refused.kind, ErrorKind::InUse { .. }), "{refused}");
    assert_eq!(store.to_vec(), now, "nothing was written");
    assert_eq!((opens(&now, "three"), opens(&now, "two")), (Some(1), None));
}

#[test]
fn wrong_passphrases_and_reading_write_nothing() {
    let store = FaultStore::new(Arc::new(MemoryStore::new(volume("one"))), None);
    for refused in [add(&store, "wrong", "x", None), change(&store, "wrong", "x")] {
        let error = refused.expect_err("wrong");
        assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
    }
    assert!(change(&store, "one", "two").is_ok() && remove(&store, 0).is_err());
    assert_eq!((store.count(Operation::Write), store.count(Operation::Flush)), (0, 0));
}

#[test]
fn labels_flags_priorities_are_kept() {
    let store = MemoryStore::new(volume("one"));
    let flags = ["allow-discards".to_owned(), "no-journal".to_owned()];
    let to = HeaderAttributes {
        uuid: Some("E67C787C-64B5-4840-B7E6-C6FC9C9610B5"),
        label: Some("Überraschung"),
        subsystem: Some("tests"),
        priority: Some((0, 2)),
        flags: Some(&flags),
    };
    done(editor().set(&store, None, &to), &store);
    let header = read(&store.to_vec());
    assert_eq!(header.binary.uuid, b"e67c787c-64b5-4840-b7e6-c6fc9c9610b5");
    assert_eq!((header.binary.label, header.binary.subsystem), ("Überraschung".into(), "tests".into()));
    assert_eq!((header.metadata.keyslots[&0].priority, header.metadata.config.flags), (Some(2), flags.to_vec()));
    assert!(editor().set(&store, None, &to).expect("nothing to do").edit.steps.is_empty());
    let to = |to: HeaderAttributes<'_>| misuse(editor().set(&store, None, &to));
    assert!(to(HeaderAttributes { uuid: Some("x"), ..HeaderAttributes::default() }).contains("not a UUID"));
    assert!(to(HeaderAttributes { label: Some(&"x".repeat(48)), ..HeaderAttributes::default() }).contains("label"));
    assert!(to(HeaderAttributes { label: Some("a\nb"), ..HeaderAttributes::default() }).contains("single line"));
    assert!(
        to(HeaderAttributes { priority: Some((0, 3)), ..HeaderAttributes::default() })
            .contains("3 is not a keyslot priority")
    );
    assert!(to(HeaderAttributes { priority: Some((5, 1)), ..HeaderAttributes::default() }).contains("no keyslot 5"));
    let unknown = ["no-such-flag".to_owned()];
    assert!(to(HeaderAttributes { flags: Some(&unknown), ..HeaderAttributes::default() }).contains("no-such-flag"));
}

#[test]
fn tokens_are_put_in_and_taken_out_as_they_are() {
    let store = MemoryStore::new(volume("one"));
    let token = json!({"type": "acme", "keyslots": ["0"], "number": 18446744073709551615u64, "deep": {"a": [1.5, null, "\u{e9}"]}});
    let import = |at, replace| TokenChange::Import { token: &token, at, replace };
    done(editor().change_tokens(&store, import(Some(4), false)), &store);
    assert_eq!(editor().tokens(&store).expect("they can be read")[&4], token);
    assert!(misuse(editor().change_tokens(&store, import(Some(4), false))).contains("token 4"));
    done(editor().change_tokens(&store, import(None, false)), &store);
    done(editor().change_tokens(&store, TokenChange::Assign { token: 0, keyslot: 0, assigned: false }), &store);
    assert_eq!(editor().tokens(&store).expect("they can be read")[&0]["keyslots"], json!([]));
    done(editor().change_tokens(&store, TokenChange::Remove(4)), &store);
    assert_eq!(editor().tokens(&store).expect("they can be read").keys().collect::<Vec<_>>(), [&0]);
    for no_token in [json!(1), json!({}), json!({"type": "x"}), json!({"type": "x", "keyslots": ["9"]})] {
        let change = TokenChange::Import { token: &no_token, at: None, replace: false };
        assert!(misuse(editor().change_tokens(&store, change)).contains("not a token"), "{no_token}");
    }
    assert!(misuse(editor().change_tokens(&store, TokenChange::Remove(4))).contains("no token 4"));
    assert!(opens(&store.to_vec(), "one").is_some());
}

#[test]
fn a_full_json_area_is_a_clear_error() {
    let store = MemoryStore::new(volume("one"));
    let token = json!({"type": "acme", "keyslots": [], "ballast": "x".repeat(3000)});
    let import = TokenChange::Import { token: &token, at: None, replace: false };
    let mut fit = 0;
    let refused = loop {
        match editor().change_tokens(&store, import) {
            Ok(prepared) => prepared.edit.carry_out(&store).expect("it is written"),
            Err(error) => break error,
        }
        fit += 1;
    };
    assert_eq!(fit, 3, "12 KiB");
    assert!(refused.to_string().contains("bytes"), "{refused}");
    assert!(opens(&store.to_vec(), "one").is_some());
    let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
    let token = json!({"type": "acme", "keyslots": [], "deep": deep});
    let import = TokenChange::Import { token: &token, at: Some(9), replace: false };
    assert!(misuse(editor().change_tokens(&store, import)).contains("would be unreadable"));
}

/// A header with members that nobody knows, everywhere.
fn with_unknown_members(bytes: &[u8]) -> Vec<u8> {
    let header = read(bytes);
    let mut json: Value = serde_json::from_slice(&header.json).expect("JSON");
    for at in [
        "",
        "/keyslots/0",
        "/keyslots/0/area",
        "/keyslots/0/kdf",
        "/keyslots/0/af",
        "/segments/0",
        "/digests/0",
        "/config",
    ] {
        let object = json.pointer_mut(at).and_then(Value::as_object_mut).expect("an object");
        object.insert("x-unknown".into(), json!({"at": at, "n": [1, "2", 3.5]}));
    }
    let json = serde_json::to_vec(&json).expect("JSON");
    let mut bytes = bytes.to_vec();
    for which in [Which::Primary, Which::Secondary] {
        let copy = header.binary.serialise(which, &json).expect("it fits");
        bytes[which.offset(header.binary.hdr_size) as usize..][..copy.len()].copy_from_slice(&copy);
    }
    bytes
}

#[test]
fn unknown_members_survive_all_edits() {
    let store = MemoryStore::new(with_unknown_members(&volume("one")));
    done(add(&store, "one", "two", None), &store);
    done(
        editor().set(
            &store,
            None,
            &HeaderAttributes { label: Some("x"), priority: Some((0, 2)), ..HeaderAttributes::default() },
        ),
        &store,
    );
    done(remove(&store, 1), &store);
    let count = |bytes: &[u8]| String::from_utf8(read(bytes).json).expect("UTF-8").matches("x-unknown").count();
    assert_eq!(count(&store.to_vec()), 8);
    done(change(&store, "one", "eins"), &store);
    assert_eq!(count(&store.to_vec()), 5, "what was said of the old key, its area and its derivation, went with it");
    let found = metadata(&store.to_vec());
    assert!(found.keyslots[&0].other.contains_key("x-unknown") && found.keyslots[&0].priority == Some(2));
}

#[test]
fn unmet_requirements_are_respected() {
    let bytes = volume("one");
    let header = read(&bytes);
    let mut metadata = header.metadata.clone();
    metadata.config.requirements =
        Some(luks2::metadata::Requirements { mandatory: vec!["time-travel".into()], ..Default::default() });
    let json = serde_json::to_vec(&metadata).expect("JSON");
    let mut bytes = bytes;
    bytes[..16_384].copy_from_slice(&header.binary.serialise(Which::Primary, &json).expect("it fits"));
    bytes[16_384..32_768].copy_from_slice(&header.binary.serialise(Which::Secondary, &json).expect("it fits"));
    let store = MemoryStore::new(bytes);
    for refused in
        [add(&store, "one", "two", None), remove(&store, 0), editor().set(&store, None, &HeaderAttributes::default())]
    {
        let error = refused.expect_err("it is required to travel").to_string();
        assert!(error.contains("time-travel"), "{error}");
    }
}

#[test]
fn a_damaged_copy_is_repaired_from_the_other() {
    let whole = volume("one");
    for (at, which) in [(4096 + 50, Which::Primary), (16_384 + 4096 + 50, Which::Secondary)] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        let store = MemoryStore::new(bytes);
        let prepared = done(editor().repair(&store, None, &[]), &store);
        let written: Vec<_> = prepared.edit.steps.iter().map(|s| s.what.clone()).collect();
        assert_eq!(written, [format!("the {} header", which.name())]);
        let header = read(&store.to_vec());
        assert!(header.primary.is_current() && header.secondary.is_current());
        assert_eq!(header.binary.seqid, read(&whole).binary.seqid, "nothing new is said");
        assert!(editor().repair(&store, None, &[]).expect("nothing to do").edit.steps.is_empty());
    }
    // In place of the primary header, there may be data that must not be overwritten.
    let mut bytes = whole.clone();
    bytes[..16_384].fill(0);
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    bytes[1024..1028].copy_from_slice(&[0, 1, 0, 0]);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    let store = MemoryStore::new(bytes.clone());
    assert!(misuse(editor().repair(&store, None, &[])).contains("the primary header's position holds"));
    assert!(misuse(add(&store, "one", "two", None)).contains("nothing was changed"));
    assert_eq!(store.to_vec(), bytes);
    let mut neither = whole;
    neither[100] ^= 1;
    neither[16_384 + 100] ^= 1;
    let error = editor().repair(&MemoryStore::new(neither), None, &[]).expect_err("nothing is sound");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
}

#[test]
fn header_backups_bring_headers_back() {
    let whole = volume("one");
    let none = Unlock::with(&[]);
    let backup = editor().back_up(&MemoryStore::new(whole.clone()), &none, None).expect("a backup").bytes;
    assert!(backup.len() == DATA as usize && backup[..] == whole[..DATA as usize]);
    let file = MemoryStore::new(backup.clone());
    let from = RestoreFrom::Backup(&file);
    // Nothing to do.
    let store = MemoryStore::new(whole.clone());
    assert!(editor().restore(&store, from, &none, false).expect("the same").edit.steps.is_empty());
    // The passphrase was changed since.
    done(change(&store, "one", "two"), &store);
    let crash = CrashStore::new(store.to_vec());
    done(editor().restore(&crash, from, &none, false), &crash);
    let mut end = vec![0; LEN];
    crash.read_at(0, &mut end).expect("it can be read");
    assert_eq!((opens(&end, "one"), opens(&end, "two")), (Some(0), None));
    // After an interruption it is repeated.
    for image in crash.crash_images() {
        let store = MemoryStore::new(image);
        done(editor().restore(&store, from, &none, true), &store);
        assert_eq!(opens(&store.to_vec(), "one"), Some(0));
    }
    // All of it was wiped: nothing shows that it belongs there.
    let mut wiped = whole.clone();
    wiped[..DATA as usize].fill(0);
    let store = MemoryStore::new(wiped);
    assert!(misuse(editor().restore(&store, from, &none, false)).contains("nothing shows"));
    // With its passphrase the data show it, as far as there are any; with another one nothing is shown.
    let (right, wrong) = ([passphrase("one")], [passphrase("two")]);
    assert!(!editor().restore(&store, from, &Unlock::with(&right), false).expect("proven").edit.steps.is_empty());
    let refused = editor().restore(&store, from, &Unlock::with(&wrong), false).expect_err("another passphrase");
    assert!(matches!(refused.kind, ErrorKind::WrongCredential(_)), "{refused}");
    let mut noisy = store.to_vec();
    noisy[DATA as usize..].copy_from_slice(&noise(LEN - DATA as usize, 9));
    let noisy = MemoryStore::new(noisy);
    assert!(misuse(editor().restore(&noisy, from, &Unlock::with(&right), false)).contains("nothing shows"));
    done(editor().restore(&store, from, &none, true), &store);
    assert_eq!(opens(&store.to_vec(), "one"), Some(0));
    // Another volume, another key, another place, too little room.
    let other = MemoryStore::new(volume("one"));
    assert!(misuse(editor().restore(&other, from, &none, false)).contains("UUID"));
    let uuid = String::from_utf8(read(&whole).binary.uuid).expect("text");
    let rekeyed = MemoryStore::new(volume_with(&Spec { uuid: Some(&uuid), ..spec() }, "one"));
    assert!(misuse(editor().restore(&rekeyed, from, &none, false)).contains("key is not that of the header"));
    let short = MemoryStore::new(whole[..DATA as usize - 4096].to_vec());
    let error = misuse(editor().restore(&short, from, &none, true));
    assert!(error.contains("fit"), "{error}");
    let no_backup = MemoryStore::new(noise(DATA as usize, 3));
    assert!(editor().restore(&store, RestoreFrom::Backup(&no_backup), &none, true).is_err());
    assert!(misuse(editor().restore(&store, RestoreFrom::Embedded, &none, false)).contains("second copy"));
}

#[test]
fn a_backup_of_a_damaged_header_is_sound() {
    let mut bytes = volume("one");
    bytes[16_384..20_480].fill(0);
    let backup = editor().back_up(&MemoryStore::new(bytes), &Unlock::with(&[]), None).expect("a backup");
    let header = read(&backup.bytes);
    assert!(header.primary.is_current() && header.secondary.is_current() && backup.warnings.len() == 2);
}

#[test]
fn stale_copies_are_told_and_written_anew() {
    let store = MemoryStore::new(volume("one"));
    let old = store.to_vec();
    done(editor().set(&store, None, &HeaderAttributes { label: Some("new"), ..HeaderAttributes::default() }), &store);
    let mut bytes = store.to_vec();
    bytes[..16_384].copy_from_slice(&old[..16_384]);
    let header = read(&bytes);
    assert!(matches!(header.primary, Luks2CopyState::Stale { .. }) && header.which == Which::Secondary);
    let store = MemoryStore::new(bytes);
    let prepared = done(add(&store, "one", "two", None), &store);
    assert_eq!(prepared.edit.steps[1].what, "the primary header", "first the copy that may be lost");
    let header = read(&store.to_vec());
    assert!(header.binary.label == b"new" && header.primary.is_current() && header.secondary.is_current());
}

#[test]
fn two_editors_cannot_both_have_the_file() {
    let file = crate::support::to_file(&volume("one"));
    let first = FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it");
    let second = FileStore::open(file.path(), Access::ReadWrite).map(|_| ()).expect_err("somebody has it");
    assert!(matches!(second.kind, ErrorKind::InUse { .. }));
    drop(first);
}

#[test]
fn what_cannot_be_made_is_refused_before_anything_is_written() {
    let key = Secret::copy_from(&noise(16, 7));
    let all: [(Spec<'_>, &str); 12] = [
        (Spec { pim: Some(1), ..spec() }, "PIM"),
        (Spec { cipher: Some("no-such-cipher"), ..spec() }, "no-such-cipher"),
        (Spec { key_bits: Some(100), ..spec() }, "100"),
        (Spec { key_bits: Some(72), ..spec() }, "72-bit key"),
        (Spec { volume_key: Some(&key), ..spec() }, "128 bits"),
        (Spec { sector_size: Some(1000), ..spec() }, "1000"),
        (Spec { data_offset: Some(1000), ..spec() }, "4096"),
        (Spec { data_offset: Some(32_768), ..spec() }, "available"),
        (Spec { data_offset: None, ..spec() }, "room"),
        (Spec { metadata_size: Some(20_000), ..spec() }, "20000"),
        (Spec { keyslots_size: Some(1 << 30), ..spec() }, "128 MiB"),
        (Spec { label: Some("\u{7}"), ..spec() }, "single line"),
    ];
    for (spec, word) in all {
        let store = FaultStore::new(Arc::new(MemoryStore::new(noise(LEN, 1))), None);
        let error = formats::by_name("LUKS2").expect("it is there").create(&store, &spec, &[passphrase("x")]);
        let error = error.expect_err(word).to_string();
        assert!(error.contains(word), "{word}: {error}");
        assert_eq!(store.count(Operation::Write), 0, "{word}");
    }
}

#[test]
fn an_interrupted_creation_opens_with_nothing() {
    let old = volume("old");
    let store = CrashStore::new(old.clone());
    formats::by_name("LUKS2").expect("it is there").create(&store, &spec(), &[passphrase("new")]).expect("a volume");
    for (nth, image) in store.crash_images().into_iter().enumerate().skip(1) {
        let (old, new) = (opens_at_all(&image, "old"), opens_at_all(&image, "new"));
        assert!(!old || nth < 3, "{nth}: what was there is gone first");
        assert!(!(old && new));
    }
}

fn opens_at_all(bytes: &[u8], text: &str) -> bool {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
    let credentials = [passphrase(text)];
    let opened = formats::open(&store, Some("LUKS2")).and_then(|(_, h)| h.unlock(&Unlock::with(&credentials)));
    opened.is_ok()
}
