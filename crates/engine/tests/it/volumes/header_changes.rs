//! Changing, saving, restoring and checking headers of TrueCrypt and VeraCrypt volumes: what is written, what opens
//! afterwards, and what a crash leaves.

use std::sync::Arc;

use crate::support::noise;
use crate::torture::{self, Key, Scenario, Subject, Verb};
use claviger_engine::credential::HeaderChoice;
use claviger_engine::formats::{self, CopyState, HeaderEditor, NewCredential, RestoreFrom, Verified};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Edit, Error, ErrorKind, Result, Spec, Store, Unlock, Volume};
use claviger_testkit::stores::{CrashStore, Fault, FaultStore, Operation};
use claviger_testkit::tools;

const MIN: usize = 299_008;
const GROUP: usize = 131_072;
const AREA: usize = 65_536;

/// A format, the hash and the PIM that its tests use, which are its cheapest.
#[derive(Clone, Copy)]
struct Kind {
    format: &'static str,
    hash: &'static str,
    pim: Option<u32>,
}

const KINDS: [Kind; 2] = [
    Kind { format: "TrueCrypt", hash: "SHA-512", pim: None },
    Kind { format: "VeraCrypt", hash: "SHA-512", pim: Some(1) },
];

impl Kind {
    fn editor(self) -> &'static dyn HeaderEditor {
        formats::by_name(self.format).expect("it is in the table").editor().expect("it has an editor")
    }

    fn with(self, credentials: &[Credential]) -> Unlock<'_> {
        let cipher = Some("AES");
        Unlock { hash: Some(self.hash), cipher, pim: self.pim, ..Unlock::with(credentials) }
    }

    /// A volume whose data begin with something that is no noise.
    fn volume(self, len: usize, text: &str) -> Vec<u8> {
        let store = Arc::new(MemoryStore::new(noise(len, 1)));
        let spec = Spec { hash: Some(self.hash), pim: self.pim, quick: true, ..Spec::default() };
        let credentials = [passphrase(text)];
        let format = formats::by_name(self.format).expect("it is in the table");
        format.create(&*store, &spec, &credentials).expect("a new volume");
        let (_, header) =
            formats::open(&crate::support::shared(Arc::clone(&store)), Some(self.format)).expect("a header");
        let unlocked = header.unlock(&self.with(&credentials)).expect("it opens");
        let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.layout);
        volume.write_clobbering(0, &mut [0x42; 4096]).expect("it is written");
        store.to_vec()
    }

    /// Which header opens, and the beginning of the data.
    fn opens(self, bytes: &[u8], text: &str, header: HeaderChoice) -> Result<(String, Vec<u8>)> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
        let credentials = [passphrase(text)];
        let (_, locked) = formats::open(&store, Some(self.format))?;
        let unlocked = locked.unlock(&Unlock { header, ..self.with(&credentials) })?;
        let volume = Volume::new(store, unlocked.layout);
        let mut start = vec![0; 4096];
        volume.read_at(0, &mut start)?;
        Ok((unlocked.facts.header.name().to_owned(), start))
    }

    fn change(self, store: &dyn Store, old: &str, new: &str) -> Result<Edit> {
        let (old, new) = ([passphrase(old)], [passphrase(new)]);
        let new = NewCredential { credentials: &new, hash: None, pim: None, ..NewCredential::default() };
        Ok(self.editor().change(store, &self.with(&old), &new)?.edit)
    }

    fn back_up(self, bytes: &[u8], text: &str) -> Vec<u8> {
        let credentials = [passphrase(text)];
        self.editor().back_up(&MemoryStore::new(bytes.to_vec()), &self.with(&credentials), None).expect("good").bytes
    }

    /// The volume after a restoration.
    fn restored(self, bytes: &[u8], backup: Option<&[u8]>, text: &str, unproven: bool) -> Result<Vec<u8>> {
        let store = MemoryStore::new(bytes.to_vec());
        let file = backup.map(|b| MemoryStore::new(b.to_vec()));
        let from = file.as_ref().map_or(RestoreFrom::Embedded, |f| RestoreFrom::Backup(f));
        let credentials = [passphrase(text)];
        let prepared = self.editor().restore(&store, from, &self.with(&credentials), unproven)?;
        assert!(store.to_vec() == bytes, "preparing writes nothing");
        prepared.edit.carry_out(&store)?;
        Ok(store.to_vec())
    }

    fn verify(self, bytes: &[u8], text: &str) -> Result<Verified> {
        let credentials = [passphrase(text)];
        self.editor().verify(&MemoryStore::new(bytes.to_vec()), &self.with(&credentials))
    }
}

/// The volumes to change, with what opens them before and after.
pub fn subjects() -> Vec<Subject> {
    KINDS.map(subject).to_vec()
}

fn subject(kind: Kind) -> Subject {
    let image = kind.volume(MIN, "old");
    let keys = ["old", "new"].map(|text| Key::Passphrase(format!("{text:.<20}"))).to_vec();
    let (hash, cipher, pim) = (Some(kind.hash), Some("AES"), kind.pim);
    Subject { format: kind.format, image, plaintext: Vec::new(), keys, hash, cipher, pim }.with_its_plaintext()
}

pub fn scenarios() -> Vec<Scenario> {
    subjects().iter().flat_map(|subject| [changed(subject), restored(subject), created(subject)]).collect()
}

fn changed(subject: &Subject) -> Scenario {
    let prepare = |subject: &Subject, store: &dyn Store, with: &Unlock<'_>| {
        let new = [subject.keys[1].credential()];
        subject.editor().change(store, with, &NewCredential { credentials: &new, ..NewCredential::default() })
    };
    let done = |subject: &Subject, store: &Arc<dyn Store>| {
        subject.opened(store, &subject.keys[1]).is_ok() && subject.opened(store, &subject.keys[0]).is_err()
    };
    torture::change(subject, Verb::Change, "another password", prepare, done)
}

/// From a file, in which the first key opens, into a volume that the other one opens.
fn restored(subject: &Subject) -> Scenario {
    let (old, new) = (subject.keys[0].clone(), subject.keys[1].clone());
    let before = MemoryStore::new(subject.image.clone());
    let backup = subject.with_key(&old, |with| subject.editor().back_up(&before, with, None)).expect("a backup").bytes;
    let subject = subject.after(|store, with| {
        let new = [new.credential()];
        subject.editor().change(store, with, &NewCredential { credentials: &new, ..NewCredential::default() })
    });
    let prepare = move |subject: &Subject, store: &dyn Store, with: &Unlock<'_>| {
        let backup = MemoryStore::new(backup.clone());
        subject.editor().restore(store, RestoreFrom::Backup(&backup), with, false)
    };
    let done = |subject: &Subject, store: &Arc<dyn Store>| subject.opened(store, &subject.keys[0]).is_ok();
    torture::change(&subject, Verb::Restore, "from a file", prepare, done)
}

fn created(subject: &Subject) -> Scenario {
    let new = Subject { keys: vec![subject.keys[1].clone()], ..subject.clone() };
    let make = new.clone();
    torture::creation(&new, move |store| {
        let spec = Spec { hash: make.hash, pim: make.pim, ..Spec::default() };
        formats::by_name(make.format)?.create(&**store, &spec, &[make.keys[0].credential()])
    })
}

/// Long enough for VeraCrypt's smallest PIM.
fn passphrase(text: &str) -> Credential {
    crate::support::passphrase(&if text.is_empty() { String::new() } else { format!("{text:.<20}") })
}

const PRIMARY: HeaderChoice = HeaderChoice::One { hidden: false, backup: false };
const BACKUP: HeaderChoice = HeaderChoice::One { hidden: false, backup: true };

fn is_wrong_credential<T>(result: Result<T>) -> bool {
    matches!(result.map_err(|e| e.kind), Err(ErrorKind::WrongCredential(_)))
}

fn misuse<T>(result: Result<T>) -> String {
    match result.err().expect("refused") {
        Error { kind: ErrorKind::Misuse(what), .. } => what,
        other => panic!("{other}"),
    }
}

/// The ranges that differ, as whole sectors.
fn changed_sectors(a: &[u8], b: &[u8]) -> Vec<usize> {
    assert_eq!(a.len(), b.len());
    a.chunks(512).zip(b.chunks(512)).enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect()
}

#[test]
fn after_a_change_both_headers_open_with_the_new_password_only() {
    for kind in KINDS {
        let old = kind.volume(MIN, "old");
        let store = MemoryStore::new(old.clone());
        kind.change(&store, "old", "new").expect("a change").carry_out(&store).expect("it is written");
        let new = store.to_vec();
        assert_eq!(changed_sectors(&old, &new), [0, (MIN - GROUP) / 512], "{}", kind.format);
        assert_ne!(new[..64], new[MIN - GROUP..][..64], "each copy has a salt of its own");
        for (header, name) in [(PRIMARY, "primary"), (BACKUP, "backup")] {
            let (opened, data) = kind.opens(&new, "new", header).expect("it opens");
            assert!(opened == name && data == [0x42; 4096]);
            assert!(is_wrong_credential(kind.opens(&new, "old", header)));
        }
    }
}

#[test]
fn at_any_crash_a_header_opens() {
    for kind in KINDS {
        let old = kind.volume(MIN, "old");
        let store = CrashStore::new(old.clone());
        kind.change(&store, "old", "new").expect("a change").carry_out(&store).expect("it is written");
        let mut images = store.torn_images(0);
        images.extend(store.crash_images());
        let mut seen = Vec::new();
        for image in &images {
            let opens = |text, header| kind.opens(image, text, header).is_ok_and(|(_, d)| d == [0x42; 4096]);
            seen.push([opens("old", PRIMARY), opens("new", PRIMARY), opens("old", BACKUP), opens("new", BACKUP)]);
            let sectors = changed_sectors(&old, image);
            assert!(sectors.iter().all(|s| [0, (MIN - GROUP) / 512].contains(s)), "{sectors:?}");
        }
        seen.sort();
        seen.dedup();
        // Nothing, the primary header, or both have been changed, and never half a header.
        let states = [[false, true, false, true], [false, true, true, false], [true, false, true, false]];
        assert_eq!(seen, states, "{}", kind.format);
    }
}

#[test]
fn a_change_that_was_interrupted_can_be_finished_or_undone() {
    let kind = KINDS[0];
    let old = kind.volume(MIN, "old");
    let store = MemoryStore::new(old);
    let mut edit = kind.change(&store, "old", "new").expect("a change");
    edit.steps.truncate(1);
    edit.carry_out(&store).expect("the primary header is written");
    let between = store.to_vec();
    // Finished: the primary header opens with the new password, so it may be changed, and the backup goes along.
    kind.change(&store, "new", "newer").expect("a change").carry_out(&store).expect("it is written");
    for header in [PRIMARY, BACKUP] {
        assert!(kind.opens(&store.to_vec(), "newer", header).is_ok());
    }
    // Undone: the backup still opens with the old one. It is not changed before it has been restored.
    let what = misuse(kind.change(&MemoryStore::new(between.clone()), "old", "other"));
    assert!(what.contains("only the backup header opens"), "{what}");
    let undone = kind.restored(&between, None, "old", false).expect("restored");
    assert_eq!(changed_sectors(&between, &undone), [0]);
    assert!(kind.opens(&undone, "old", PRIMARY).is_ok() && is_wrong_credential(kind.opens(&undone, "new", PRIMARY)));
}

#[test]
fn a_wrong_password_changes_nothing() {
    for kind in KINDS {
        let bytes = kind.volume(MIN, "old");
        let store = FaultStore::new(Arc::new(MemoryStore::new(bytes.clone())), None);
        assert!(is_wrong_credential(kind.change(&store, "wrong", "new")));
        assert!(misuse(kind.change(&store, "old", "")).contains("empty"));
        let credentials = [passphrase("wrong")];
        assert!(is_wrong_credential(kind.editor().restore(
            &store,
            RestoreFrom::Embedded,
            &kind.with(&credentials),
            true
        )));
        assert!(is_wrong_credential(kind.verify(&bytes, "wrong").map(|_| ())));
        assert_eq!((store.count(Operation::Write), store.count(Operation::Flush)), (0, 0));
    }
}

#[test]
fn hash_and_pim_change_with_the_password_or_alone() {
    let cases = [(0, None, Some("Whirlpool"), "Whirlpool", 1000), (1, Some(2), Some("SHA-256"), "SHA-256", 17_000)];
    for (kind, pim, hash, name, iterations) in cases {
        let kind = KINDS[kind];
        let store = MemoryStore::new(kind.volume(MIN, "pw"));
        let credentials = [passphrase("pw")];
        let new = NewCredential { credentials: &credentials, hash, pim, ..NewCredential::default() };
        let prepared = kind.editor().change(&store, &kind.with(&credentials), &new).expect("a change");
        let derivation = prepared.derivation.expect("it is new");
        assert_eq!((derivation.hash, derivation.iterations), (name, iterations));
        prepared.edit.carry_out(&store).expect("it is written");
        let bytes = store.to_vec();
        assert!(is_wrong_credential(kind.opens(&bytes, "pw", HeaderChoice::Any)));
        let now = Kind { hash: name, pim, ..kind };
        for header in [PRIMARY, BACKUP] {
            assert!(now.opens(&bytes, "pw", header).is_ok(), "{name}");
        }
    }
    let kind = KINDS[0];
    let store = MemoryStore::new(kind.volume(MIN, "pw"));
    let credentials = [passphrase("pw")];
    let refused = |hash, pim| {
        let new = NewCredential { credentials: &credentials, hash, pim, ..NewCredential::default() };
        misuse(kind.editor().change(&store, &kind.with(&credentials), &new))
    };
    assert!(refused(Some("SHA-1"), None).contains("no longer"));
    assert!(refused(Some("MD5"), None).contains("MD5"));
    assert!(refused(None, Some(7)).contains("PIM"));
}

#[test]
fn what_a_volume_does_not_own_is_not_written() {
    let kind = KINDS[0];
    let volume = kind.volume(MIN, "old");
    // A volume at the beginning of a larger device: what lies at the end is not its backup header.
    let larger = [&volume[..], &noise(1 << 20, 5)].concat();
    let store = MemoryStore::new(larger.clone());
    let (old, new) = ([passphrase("old")], [passphrase("new")]);
    let new = NewCredential { credentials: &new, hash: None, pim: None, ..NewCredential::default() };
    let prepared = kind.editor().change(&store, &kind.with(&old), &new).expect("a change");
    assert!(
        prepared.warnings.iter().any(|w| w.what.contains("No backup header was written")),
        "{:?}",
        prepared.warnings
    );
    prepared.edit.carry_out(&store).expect("it is written");
    assert_eq!(changed_sectors(&larger, &store.to_vec()), [0]);
    // Its backup headers were cut off: the last 128 KiB are data.
    let cut = &volume[..MIN - GROUP];
    let store = MemoryStore::new(cut.to_vec());
    let edit = kind.editor().change(&store, &kind.with(&old), &new).expect("a change").edit;
    edit.carry_out(&store).expect("it is written");
    assert_eq!(changed_sectors(cut, &store.to_vec()), [0]);
    // Data are missing too.
    let store = MemoryStore::new(volume[..MIN - GROUP - 512].to_vec());
    let with = Unlock { truncated: true, ..kind.with(&old) };
    assert!(misuse(kind.editor().change(&store, &with, &new)).contains("cut short"));
}

#[test]
fn a_backup_in_a_file_brings_destroyed_headers_back() {
    for kind in KINDS {
        let whole = kind.volume(MIN, "pw");
        let backup = kind.back_up(&whole, "pw");
        assert_eq!(backup.len(), GROUP);
        for (a, b) in backup.chunks(16).zip(whole.chunks(16)) {
            assert!(a != b && a != [0; 16], "it shows nothing of the volume");
        }
        for filler in [0, 0x5a] {
            let mut wiped = whole.clone();
            wiped[..GROUP].fill(filler);
            wiped[MIN - GROUP..].fill(filler);
            let restored = kind.restored(&wiped, Some(&backup), "pw", false).expect("it belongs to the volume");
            assert_eq!(changed_sectors(&wiped, &restored), [0, (MIN - GROUP) / 512]);
            for header in [PRIMARY, BACKUP] {
                assert!(kind.opens(&restored, "pw", header).is_ok_and(|(_, data)| data == [0x42; 4096]));
            }
        }
        // An old backup takes the volume back to its old password.
        let store = MemoryStore::new(whole);
        kind.change(&store, "pw", "later").expect("a change").carry_out(&store).expect("it is written");
        let restored = kind.restored(&store.to_vec(), Some(&backup), "pw", false).expect("its data make sense");
        assert!(kind.opens(&restored, "pw", PRIMARY).is_ok());
        assert!(is_wrong_credential(kind.opens(&restored, "later", HeaderChoice::Any)));
    }
}

#[test]
fn the_embedded_backup_brings_the_primary_header_back() {
    for kind in KINDS {
        let whole = kind.volume(MIN, "pw");
        let same = kind.restored(&whole, None, "pw", false).expect("nothing to do");
        assert!(same == whole);
        let mut wiped = whole.clone();
        wiped[..GROUP].fill(0);
        let restored = kind.restored(&wiped, None, "pw", false).expect("restored");
        assert_eq!(changed_sectors(&wiped, &restored), [0]);
        assert!(kind.opens(&restored, "pw", PRIMARY).is_ok_and(|(_, data)| data == [0x42; 4096]));
    }
}

#[test]
fn the_backup_of_another_volume_is_refused() {
    for kind in KINDS {
        let (one, other) = (kind.volume(MIN, "pw"), kind.volume(MIN, "pw"));
        let backup = kind.back_up(&other, "pw");
        // The volume's own header opens with the same password.
        let what = misuse(kind.restored(&one, Some(&backup), "pw", false));
        assert!(what.contains("other keys"), "{what}");
        // It is gone: the data tell.
        let mut wiped = one.clone();
        wiped[..GROUP].fill(0);
        wiped[MIN - GROUP..].fill(0);
        let what = misuse(kind.restored(&wiped, Some(&backup), "pw", false));
        assert!(what.contains("nothing shows"), "{what}");
        // With force, it is done.
        let forced = kind.restored(&wiped, Some(&backup), "pw", true).expect("forced");
        assert!(kind.opens(&forced, "pw", PRIMARY).is_ok_and(|(_, data)| data != [0x42; 4096]));
        // A larger volume's never fits.
        let larger = kind.back_up(&kind.volume(MIN + 4096 * 40, "pw"), "pw");
        let what = misuse(kind.restored(&wiped, Some(&larger), "pw", true));
        assert!(what.contains("data end at byte"), "{what}");
    }
}

#[test]
fn what_is_no_backup_is_refused() {
    let kind = KINDS[0];
    let volume = kind.volume(MIN, "pw");
    let good = kind.back_up(&volume, "pw");
    for len in [0, 1, 511, 512, 1023, 1025, 65_536, GROUP - 1, GROUP + 1, MIN] {
        let file = noise(len, 3);
        let error = kind.restored(&volume, Some(&file), "pw", true).expect_err("refused");
        assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{len}: {error}");
    }
    for file in [noise(1024, 3), noise(GROUP, 3), vec![0; GROUP], vec![0xff; 1024]] {
        assert!(is_wrong_credential(kind.restored(&volume, Some(&file), "pw", true)), "{}", file.len());
    }
    // A new header in the place of an old one.
    let old_shape = [&good[..512], &noise(512, 3)].concat();
    let error = kind.restored(&volume, Some(&old_shape), "pw", true).expect_err("refused");
    assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    // Any changed byte of the header.
    for at in [0, 63, 64, 100, 255, 256, 511] {
        let mut spoilt = good.clone();
        spoilt[at] ^= 1;
        assert!(kind.restored(&volume, Some(&spoilt), "pw", true).is_err(), "byte {at}");
    }
}

#[test]
fn a_sound_volume_verifies() {
    for kind in KINDS {
        let volume = kind.volume(MIN, "pw");
        let verified = kind.verify(&volume, "pw").expect("it opens");
        assert!(!verified.damaged && verified.warnings.is_empty(), "{verified:?}");
        let states: Vec<_> = verified.copies.iter().map(|c| (c.name, c.at as usize, c.state.clone())).collect();
        let (opens, does_not) = (CopyState::Opens, CopyState::DoesNotOpen);
        let expected = [
            ("primary", 0, opens.clone()),
            ("hidden", AREA, does_not.clone()),
            ("backup", MIN - GROUP, opens),
            ("hidden backup", MIN - AREA, does_not),
        ];
        assert_eq!(states, expected);
        assert!(verified.areas.iter().all(|a| a.not_random == 0 && a.sectors > 0), "{:?}", verified.areas);
    }
}

#[test]
fn verify_tells_each_kind_of_damage() {
    let kind = KINDS[0];
    let volume = kind.volume(MIN, "pw");
    let state = |bytes: &[u8], name: &str| {
        let verified = kind.verify(bytes, "pw").expect("one of them opens");
        assert!(verified.damaged);
        verified.copies.iter().find(|c| c.name == name).expect("it is looked at").state.clone()
    };
    for (at, name) in [(0, "primary"), (MIN - GROUP, "backup")] {
        let mut spoilt = volume.clone();
        spoilt[at + 3] ^= 1;
        assert_eq!(state(&spoilt, name), CopyState::DoesNotOpen);
        spoilt[at..][..512].fill(0);
        assert_eq!(state(&spoilt, name), CopyState::NoHeader);
        // A bit in the key area: the block of 16 bytes around it decrypts to noise, and the checksum says so.
        let mut spoilt = volume.clone();
        spoilt[at + 300] ^= 1;
        assert!(matches!(state(&spoilt, name), CopyState::Damaged(what) if what.contains("checksum")));
    }
    // The backup of another volume under the same password.
    let mut mixed = volume.clone();
    mixed[MIN - GROUP..].copy_from_slice(&kind.volume(MIN, "pw")[MIN - GROUP..]);
    assert!(matches!(state(&mixed, "backup"), CopyState::Differs(what) if what.contains("keys are not those")));
    // Both are unusable: that is an error.
    let mut gone = volume;
    gone[300] ^= 1;
    gone[MIN - GROUP + 300] ^= 1;
    let error = kind.verify(&gone, "pw").expect_err("nothing opens");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
}

#[test]
fn quick_formatting_shows() {
    let kind = KINDS[0];
    let mut volume = kind.volume(1 << 20, "pw");
    volume[GROUP + 8192..1 << 19].fill(0);
    volume[1 << 19..(1 << 19) + 5120].fill(b'x');
    let verified = kind.verify(&volume, "pw").expect("it opens");
    assert!(!verified.damaged, "the headers are sound");
    let data = verified.areas.iter().find(|a| a.name == "data area").expect("it is looked at");
    let zeros = ((1 << 19) - GROUP - 8192) as u64 / 512;
    assert_eq!((data.zeros, data.not_random), (zeros, zeros + 10));
    assert!(verified.warnings.iter().any(|w| w.what.contains("do not look random")), "{:?}", verified.warnings);
}

#[test]
fn hidden_volumes_of_truecrypt_are_changed_saved_and_restored_alone() {
    let Some(path) = tools::sample("truecrypt/hidden.tc") else { return };
    let original = std::fs::read(path).expect("a sample");
    let editor = KINDS[0].editor();
    let (outer, hidden, new) = (
        [crate::support::passphrase("outer pass")],
        [crate::support::passphrase("hidden pass")],
        [crate::support::passphrase("new pass")],
    );
    let opens = |bytes: &[u8], credentials: &[Credential], hidden, backup| {
        let header = HeaderChoice::One { hidden, backup };
        let store = MemoryStore::new(bytes.to_vec());
        crate::support::unlock(store, &Unlock { header, ..Unlock::with(credentials) }).is_ok()
    };
    let (with_outer, with_hidden) = (Unlock::with(&outer), Unlock::with(&hidden));

    let store = MemoryStore::new(original.clone());
    let to = NewCredential { credentials: &new, hash: None, pim: None, ..NewCredential::default() };
    let prepared = editor.change(&store, &with_hidden, &to).expect("a change");
    assert!(prepared.hidden && prepared.warnings.is_empty(), "{:?}", prepared.warnings);
    prepared.edit.carry_out(&store).expect("it is written");
    let changed = store.to_vec();
    assert_eq!(changed_sectors(&original, &changed), [AREA / 512, (original.len() - AREA) / 512]);
    for backup in [false, true] {
        assert!(opens(&changed, &new, true, backup) && !opens(&changed, &hidden, true, backup));
        assert!(opens(&changed, &outer, false, backup));
    }

    let store = MemoryStore::new(original.clone());
    let both = editor.back_up(&store, &with_outer, Some(&with_hidden)).expect("a backup");
    assert_eq!(both.headers, ["primary", "hidden"]);
    assert!(misuse(editor.back_up(&store, &with_hidden, Some(&with_outer))).contains("outer volume's password first"));
    let mut wiped = original.clone();
    let end = wiped.len() - GROUP;
    wiped[..GROUP].fill(0);
    wiped[end..].fill(0);
    let store = MemoryStore::new(wiped);
    let file = MemoryStore::new(both.bytes);
    for with in [&with_outer, &with_hidden] {
        let prepared = editor.restore(&store, RestoreFrom::Backup(&file), with, false).expect("it has a file system");
        prepared.edit.carry_out(&store).expect("it is written");
    }
    for backup in [false, true] {
        assert!(opens(&store.to_vec(), &outer, false, backup) && opens(&store.to_vec(), &hidden, true, backup));
    }
    let data = GROUP..end;
    assert!(store.to_vec()[data.clone()] == original[data]);
}

#[test]
fn old_volumes_of_one_header_are_changed_in_one_write() {
    let Some(images) = crate::support::Images::unpacked() else { return };
    let mut names = images.list("tcrypt");
    names
        .retain(|n| n.starts_with("tc_") && ["-lrw-", "-cbc-"].iter().any(|m| n.contains(m)) || n.starts_with("tc_3-"));
    assert!(names.len() >= 5, "{names:?}");
    let editor = KINDS[0].editor();
    let mut changed = 0;
    for name in names {
        let original = std::fs::read(images.path(&format!("tcrypt/{name}"))).expect("an image");
        let hidden = name.ends_with("-hidden");
        let text = if hidden { "bbbbbbbbbbbb" } else { "aaaaaaaaaaaa" };
        let (old, new) = ([crate::support::passphrase(text)], [crate::support::passphrase("new")]);
        let store = CrashStore::new(original.clone());
        let to = NewCredential { credentials: &new, hash: None, pim: None, ..NewCredential::default() };
        let prepared = editor.change(&store, &Unlock::with(&old), &to).unwrap_or_else(|e| panic!("{name}: {e}"));
        prepared.edit.carry_out(&store).expect("it is written");
        let opens = |bytes: &[u8], with: &[Credential]| {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
            let unlocked = crate::support::unlock(Arc::clone(&store), &Unlock::with(with)).ok()?;
            Some(crate::support::plaintext(store, unlocked))
        };
        let plain = opens(&original, &old).expect("the sample opens");
        for image in store.torn_images(0) {
            let (a, b) = (opens(&image, &old), opens(&image, &new));
            assert!(a.xor(b).is_some_and(|p| p == plain), "{name}");
        }
        if prepared.edit.steps.len() == 1 {
            assert!(prepared.warnings.iter().any(|w| w.what.contains("one header")), "{name}: {:?}", prepared.warnings);
            // Its backup has the small size, and brings it back.
            let store = MemoryStore::new(original.clone());
            let backup = editor.back_up(&store, &Unlock::with(&old), None).expect("a backup").bytes;
            assert_eq!(backup.len(), 1024, "{name}");
            let at = prepared.edit.steps[0].at as usize;
            let mut wiped = original.clone();
            wiped[at..][..512].fill(0);
            let store = MemoryStore::new(wiped);
            let file = MemoryStore::new(backup);
            let back = editor.restore(&store, RestoreFrom::Backup(&file), &Unlock::with(&old), true);
            let back = back.unwrap_or_else(|e| panic!("{name}: {e}"));
            back.edit.carry_out(&store).expect("it is written");
            assert!(opens(&store.to_vec(), &old).is_some_and(|p| p == plain), "{name}");
            assert_eq!(changed_sectors(&original, &store.to_vec()), [at / 512], "{name}");
        }
        changed += 1;
    }
    assert!(changed > 0);
}

/// An encrypted system of VeraCrypt, and what opens it.
const SYSTEM: &str = "sys_vc_1_mbr_part-sha256-xts-aes";

struct System {
    disk: Vec<u8>,
    old: Vec<Credential>,
    new: [Credential; 1],
}

impl System {
    fn read() -> Option<Self> {
        let images = crate::support::Images::unpacked()?;
        let disk = std::fs::read(images.path("tcrypt").join(SYSTEM)).expect("an image");
        Some(Self { disk, old: crate::support::credentials_of(&images, SYSTEM), new: [passphrase("new")] })
    }

    fn with(credentials: &[Credential]) -> Unlock<'_> {
        Unlock { hash: Some("SHA-256"), cipher: Some("AES"), ..Unlock::with(credentials) }
    }

    fn change(&self, store: &dyn Store) -> Edit {
        let new = NewCredential { credentials: &self.new, hash: None, pim: None, ..NewCredential::default() };
        KINDS[1].editor().change(store, &Self::with(&self.old), &new).expect("a change").edit
    }

    /// The beginning of the encrypted partition.
    fn opens(disk: &[u8], credentials: &[Credential]) -> Option<Vec<u8>> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(disk.to_vec()));
        let (_, header) = formats::open(&store, Some("VeraCrypt")).ok()?;
        let unlocked = header.unlock(&Self::with(credentials)).ok()?;
        let start = unlocked.facts.data_offset;
        let mut plain = vec![0; 4096];
        Volume::new(store, unlocked.layout).read_at(start, &mut plain).expect("it can be read");
        Some(plain)
    }
}

#[test]
fn at_any_crash_a_system_opens_with_the_old_or_the_new_password() {
    let Some(system) = System::read() else { return };
    let plain = System::opens(&system.disk, &system.old).expect("it opens");
    let store = CrashStore::new(system.disk.clone());
    system.change(&store).carry_out(&store).expect("it is written");
    let mut images = store.torn_images(0);
    images.extend(store.crash_images());
    let mut seen = Vec::new();
    for image in &images {
        assert!(changed_sectors(&system.disk, image).iter().all(|sector| *sector == 62));
        let by = [&system.old[..], &system.new].map(|with| System::opens(image, with));
        assert!(by.iter().flatten().all(|start| *start == plain));
        seen.push(by.map(|opened| opened.is_some()));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, [[false, true], [true, false]]);
}

#[test]
fn a_disk_that_fails_keeps_a_header_of_its_system_that_opens() {
    let Some(system) = System::read() else { return };
    for (operation, for_good, transferred) in [
        (Operation::Write, false, 0),
        (Operation::Write, false, 300),
        (Operation::Write, true, 0),
        (Operation::Flush, false, 0),
        (Operation::Flush, true, 0),
    ] {
        let inner = Arc::new(MemoryStore::new(system.disk.clone()));
        let fault = Fault { operation, nth: 0, for_good, transferred };
        let store = FaultStore::new(Arc::clone(&inner) as Arc<dyn Store>, Some(fault));
        let error = system.change(&store).carry_out(&store).expect_err("planted");
        assert!(matches!(error.kind, ErrorKind::Io(_)), "{error}");
        let now = inner.to_vec();
        let opens = |with: &[Credential]| System::opens(&now, with).is_some();
        assert!(opens(&system.old) || opens(&system.new), "{operation:?} {for_good} {transferred}");
    }
}

#[test]
fn at_any_crash_while_the_header_of_a_system_is_restored_one_opens() {
    let Some(system) = System::read() else { return };
    let editor = KINDS[1].editor();
    let saved = editor.back_up(&MemoryStore::new(system.disk.clone()), &System::with(&system.old), None);
    let file = MemoryStore::new(saved.expect("a backup").bytes);
    let changed = MemoryStore::new(system.disk.clone());
    system.change(&changed).carry_out(&changed).expect("it is written");
    let store = CrashStore::new(changed.to_vec());
    let from = RestoreFrom::Backup(&file);
    let prepared = editor.restore(&store, from, &System::with(&system.old), true).expect("forced");
    prepared.edit.carry_out(&store).expect("it is written");
    for image in store.torn_images(0) {
        assert!(System::opens(&image, &system.old).is_some() != System::opens(&image, &system.new).is_some());
    }
    assert!(System::opens(&store.crash_images().pop().expect("an image"), &system.old).is_some());
}

#[test]
fn a_backup_of_a_volume_is_not_restored_over_a_boot_loader_unawares() {
    let Some(system) = System::read() else { return };
    let store = FaultStore::new(Arc::new(MemoryStore::new(system.disk)), None);
    let editor = KINDS[1].editor();
    let file = MemoryStore::new(KINDS[1].back_up(&KINDS[1].volume(MIN, "pw"), "pw"));
    let pw = [passphrase("pw")];
    let restored = editor.restore(&store, RestoreFrom::Backup(&file), &KINDS[1].with(&pw), false);
    assert!(misuse(restored).contains("nothing shows"));
    let forced = editor.restore(&store, RestoreFrom::Backup(&file), &KINDS[1].with(&pw), true).expect("forced");
    assert!(forced.warnings.iter().any(|w| w.what.contains("partition table")), "{:?}", forced.warnings);
    assert_eq!(store.count(Operation::Write), 0);
}
