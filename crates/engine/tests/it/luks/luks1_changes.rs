//! Changing, saving and restoring LUKS1 headers: what is written, what opens afterwards, and what a crash leaves.

use std::process::Command;
use std::sync::Arc;

use crate::support::{described, noise, passphrase, to_file};
use crate::torture::{self, Key, Scenario, Subject, Verb};
use claviger_engine::formats::{self, HeaderAttributes, HeaderEditor, NewCredential, Prepared, Removal, RestoreFrom};
use claviger_engine::spec::Cost;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, Result, Spec, Store, Unlock};
use claviger_testkit::tools;

/// Where the last keyslot ends: the data follow at once.
const DATA: usize = 528_384;

const LEN: usize = DATA + 4096;

const UUID: &str = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";

const COST: Cost<'_> = Cost { kdf: None, time_ms: None, iterations: Some(1000), memory_kib: None, lanes: None };

/// A small one, so that a crash at every write is soon tried: the areas of AES-128 have 125 sectors each.
fn volume() -> Vec<u8> {
    let store = MemoryStore::new(vec![0; LEN]);
    create(&store).expect("a volume");
    store.to_vec()
}

fn create(store: &dyn Store) -> Result<()> {
    let spec = Spec {
        cipher: Some("aes-cbc-essiv:sha256"),
        key_bits: Some(128),
        data_offset: Some(DATA as u64),
        cost: COST,
        quick: true,
        ..Spec::default()
    };
    formats::by_name("LUKS1")?.create(store, &spec, &[passphrase("old")])
}

fn editor() -> &'static dyn HeaderEditor {
    formats::by_name("LUKS1").expect("a format").editor().expect("it has one")
}

fn opens(bytes: &[u8], text: &str) -> Result<u32> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
    let credentials = [passphrase(text)];
    let unlocked = formats::open(&store, Some("LUKS1"))?.1.unlock(&Unlock::with(&credentials))?;
    Ok(unlocked.facts.keyslot.expect("a keyslot"))
}

fn is_wrong<T>(result: Result<T>) -> bool {
    matches!(result.map_err(|e| e.kind), Err(ErrorKind::WrongCredential(_)))
}

fn misuse<T>(result: Result<T>) -> String {
    match result.err().expect("refused") {
        Error { kind: ErrorKind::Misuse(what), .. } => what,
        other => panic!("{other}"),
    }
}

/// A volume with two keyslots: the second one stays.
pub fn subject() -> Subject {
    let image = after(&volume(), &[(add, "old", "second")]);
    let keys = ["old", "new", "second"].map(|text| Key::Passphrase(text.to_owned())).to_vec();
    let (format, plaintext) = ("LUKS1", Vec::new());
    Subject { format, image, plaintext, keys, hash: None, cipher: None, pim: None }.with_its_plaintext()
}

pub fn scenarios() -> Vec<Scenario> {
    let subject = subject();
    let opens =
        |subject: &Subject, store: &Arc<dyn Store>, key: usize| subject.opened(store, &subject.keys[key]).is_ok();
    let backup = MemoryStore::new(subject.image.clone());
    let change_it = |subject: &Subject, store: &dyn Store, with: &Unlock<'_>| {
        let new = [subject.keys[1].credential()];
        editor().change(store, with, &NewCredential { credentials: &new, cost: COST, ..Default::default() })
    };
    let add_it = |subject: &Subject, store: &dyn Store, with: &Unlock<'_>| {
        let new = [subject.keys[1].credential()];
        editor().add(store, with, &NewCredential { credentials: &new, cost: COST, ..Default::default() }, None)
    };
    let first_only = |subject: &Subject| Subject { keys: subject.keys[..2].to_vec(), ..subject.clone() };
    let restore_it = move |_: &Subject, store: &dyn Store, with: &Unlock<'_>| {
        editor().restore(store, RestoreFrom::Backup(&backup), with, true)
    };
    let changed = subject.after(|store, with| change_it(&subject, store, with));
    // The free keyslots are 6, which lies in two sectors, and 7.
    let names = ["2", "3", "4", "5"].map(|name| (add as Build, "old", name));
    let six = Subject { image: after(&subject.image, &names), ..first_only(&subject) };
    // Keyslot 1 says that its key is in no stripes.
    let damaged = subject.with_bytes(208 + 48 + 44, &[0; 4]);
    let repair_it = |_: &Subject, store: &dyn Store, _: &Unlock<'_>| editor().repair(store, None, &[]);
    // A keyslot with an impossible record.
    let lost = first_only(&subject).with_bytes(208 + 48 + 8, &[0; 32]).with_bytes(208 + 48 + 44, &[0; 4]);
    let give_up = |_: &Subject, store: &dyn Store, with: &Unlock<'_>| editor().repair(store, Some(with), &[1]);
    vec![
        torture::change(&first_only(&subject), Verb::Change, "another passphrase", change_it, move |s, store| {
            opens(s, store, 1) && !opens(s, store, 0)
        }),
        torture::change(&six, Verb::Change, "from keyslot 0 to 6", change_it, move |s, store| {
            opens(s, store, 1) && !opens(s, store, 0)
        }),
        torture::change(&subject, Verb::Add, "a keyslot", add_it, move |s, store| opens(s, store, 1)),
        torture::change(&six, Verb::Add, "keyslot 6", add_it, move |s, store| opens(s, store, 1)),
        torture::change(
            &subject,
            Verb::Remove,
            "a keyslot",
            |_, store, _| editor().remove(store, Removal::Number(0, None), false),
            move |s, store| !opens(s, store, 0),
        ),
        torture::change(
            &subject,
            Verb::Set,
            "the UUID",
            |_, store, _| set_uuid(store, "", ""),
            |_, store| {
                let described = formats::open(store, Some("LUKS1")).ok().map(|(_, header)| described(&*header));
                described.is_some_and(|described| described["uuid"] == UUID)
            },
        ),
        torture::change(&damaged, Verb::Repair, "a keyslot", repair_it, move |s, store| opens(s, store, 2)),
        torture::change(&lost, Verb::Repair, "a keyslot that is lost", give_up, move |s, store| opens(s, store, 0)),
        torture::change(&changed, Verb::Restore, "from a file", restore_it, move |s, store| opens(s, store, 0)),
        torture::creation(&first_only(&subject), |store| create(&**store)),
    ]
}

/// Builds a change with a passphrase of now and, for those that take one, of then.
type Build = fn(&dyn Store, &str, &str) -> Result<Prepared>;

fn add(store: &dyn Store, now: &str, then: &str) -> Result<Prepared> {
    let (now, then) = ([passphrase(now)], [passphrase(then)]);
    let new = NewCredential { credentials: &then, cost: COST, ..Default::default() };
    editor().add(store, &Unlock::with(&now), &new, None)
}

fn change(store: &dyn Store, now: &str, then: &str) -> Result<Prepared> {
    let (now, then) = ([passphrase(now)], [passphrase(then)]);
    editor().change(store, &Unlock::with(&now), &NewCredential { credentials: &then, cost: COST, ..Default::default() })
}

fn remove(store: &dyn Store, now: &str, _then: &str) -> Result<Prepared> {
    editor().remove(store, Removal::Opened(&Unlock::with(&[passphrase(now)])), false)
}

fn set_uuid(store: &dyn Store, _now: &str, _then: &str) -> Result<Prepared> {
    let to = HeaderAttributes { uuid: Some(UUID), ..HeaderAttributes::default() };
    editor().set(store, None, &to)
}

/// The volume after changes.
fn after(bytes: &[u8], changes: &[(Build, &str, &str)]) -> Vec<u8> {
    let store = MemoryStore::new(bytes.to_vec());
    for (build, now, then) in changes {
        let before = store.to_vec();
        let prepared = build(&store, now, then).expect("a change");
        assert!(store.to_vec() == before, "preparing writes nothing");
        prepared.edit.carry_out(&store).expect("it is written");
    }
    store.to_vec()
}

#[test]
fn keyslots_come_and_go() {
    let old = volume();
    let two = after(&old, &[(add, "old", "second")]);
    assert_eq!((opens(&two, "old").expect("opens"), opens(&two, "second").expect("opens")), (0, 1));
    let changed = after(&two, &[(change, "old", "new")]);
    assert_eq!((opens(&changed, "new").expect("opens"), opens(&changed, "second").expect("opens")), (2, 1));
    assert!(is_wrong(opens(&changed, "old")));
    assert!(old[4096..4096 + 64_000] != changed[4096..4096 + 64_000], "the old area is overwritten");
    let one = after(&changed, &[(remove, "new", "")]);
    assert!(is_wrong(opens(&one, "new")) && opens(&one, "second").is_ok());
    let store = MemoryStore::new(one);
    assert!(misuse(remove(&store, "second", "")).contains("last one"));
    let none = editor().remove(&store, Removal::Number(1, None), true).expect("it may go");
    assert!(none.warnings[0].what.contains("No keyslot opens the volume any more"));
    assert!(misuse(editor().remove(&store, Removal::Number(0, None), true)).contains("not in use"));
    assert!(misuse(editor().remove(&store, Removal::Number(8, None), true)).contains("not 8"));
    let second = [passphrase("second")];
    let itself = |last| editor().remove(&store, Removal::Number(1, Some(&Unlock::with(&second))), last);
    assert!(misuse(itself(true)).contains("the one to remove"));
    assert!(misuse(itself(false)).contains("last one"));
}

#[test]
fn eight_are_all_there_are() {
    let names: Vec<_> = (1..8).map(|i| i.to_string()).collect();
    let adding: Vec<_> = names.iter().map(|name| (add as Build, "old", name.as_str())).collect();
    let full = after(&volume(), &adding);
    for (number, name) in (1..).zip(&names) {
        assert_eq!(opens(&full, name).expect("it opens"), number);
    }
    let store = MemoryStore::new(full.clone());
    assert!(
        misuse(add(&store, "old", "x")).contains("all eight")
            && misuse(change(&store, "old", "x")).contains("all eight")
    );
    assert!(store.to_vec() == full);
}

#[test]
fn backups_go_both_ways_with_cryptsetup() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let bytes = after(&volume(), &[(add, "old", "second")]);
    let file = to_file(&bytes);
    let folder = tempfile::tempdir().expect("a folder");
    let theirs = folder.path().join("theirs");
    tools::run(
        Command::new(&cryptsetup).arg("luksHeaderBackup").arg(file.path()).arg("--header-backup-file").arg(&theirs),
    );
    let theirs = std::fs::read(&theirs).expect("it is there");
    let store = MemoryStore::new(bytes.clone());
    let ours = editor().back_up(&store, &Unlock::with(&[]), None).expect("a backup").bytes;
    assert!(ours == theirs, "{} {}", ours.len(), theirs.len());

    // Ours by them.
    let backup = to_file(&ours);
    let broken = to_file(&[&vec![0; 200_000][..], &bytes[200_000..]].concat());
    tools::run(
        Command::new(&cryptsetup)
            .args(["luksHeaderRestore", "-q"])
            .arg(broken.path())
            .arg("--header-backup-file")
            .arg(backup.path()),
    );
    assert!(opens(&std::fs::read(broken.path()).expect("it is there"), "second").is_ok());

    // Theirs by us: a header that is gone, and one that was changed since.
    let from = MemoryStore::new(theirs);
    let old = [passphrase("old")];
    let restored = |bytes: Vec<u8>, credentials: &[Credential], unproven| -> Result<Vec<u8>> {
        let store = MemoryStore::new(bytes);
        let with = Unlock::with(credentials);
        editor().restore(&store, RestoreFrom::Backup(&from), &with, unproven)?.edit.carry_out(&store)?;
        Ok(store.to_vec())
    };
    let mut gone = bytes.clone();
    gone[..100_000].copy_from_slice(&noise(100_000, 1));
    // The data are zeros, which decrypt to noise.
    assert!(misuse(restored(gone.clone(), &[], false)).contains("nothing shows"));
    assert!(misuse(restored(gone.clone(), &old, false)).contains("nothing shows"));
    let back = restored(gone, &[], true).expect("forced");
    assert!(opens(&back, "second").is_ok() && back[DATA..] == bytes[DATA..]);
    let changed = after(&bytes, &[(change, "old", "new")]);
    let back = restored(changed, &[], false).expect("the digest is the same");
    assert!(opens(&back, "old").is_ok() && is_wrong(opens(&back, "new")));
    assert!(misuse(restored(volume(), &old, false)).contains("key is not that of the header"));
    assert!(misuse(restored(bytes[..DATA].to_vec(), &old, true)).contains("larger volume"));
    let wrong = [passphrase("wrong")];
    assert!(is_wrong(restored(bytes.clone(), &wrong, true)));
    let embedded = editor().restore(&MemoryStore::new(bytes), RestoreFrom::Embedded, &Unlock::with(&old), false);
    assert!(misuse(embedded).contains("no embedded backup header"));
}

#[test]
fn cryptsetup_opens_what_was_changed_and_the_other_way_round() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let (old, new, third) = (to_file(b"old"), to_file(b"new"), to_file(b"third"));
    let file = to_file(&after(&volume(), &[(change, "old", "new"), (add, "new", "old"), (set_uuid, "", "")]));
    for key in [&old, &new] {
        let open = ["open", "--test-passphrase", "--key-file"];
        tools::run(Command::new(&cryptsetup).args(open).args([key.path(), file.path()]));
    }
    let uuid = tools::run(Command::new(&cryptsetup).arg("luksUUID").arg(file.path()));
    assert_eq!(String::from_utf8_lossy(&uuid.stdout).trim(), "1b4e28ba-2fa1-41d2-883f-0016d3cca427");
    tools::run(
        Command::new(&cryptsetup).args(["luksAddKey", "-q", "--pbkdf-force-iterations", "1000", "--key-file"]).args([
            new.path(),
            file.path(),
            third.path(),
        ]),
    );
    tools::run(Command::new(&cryptsetup).args(["luksKillSlot", "-q"]).arg(file.path()).arg("0"));
    let bytes = std::fs::read(file.path()).expect("it is there");
    assert!(opens(&bytes, "third").is_ok() && opens(&bytes, "new").is_ok() && is_wrong(opens(&bytes, "old")));
}
