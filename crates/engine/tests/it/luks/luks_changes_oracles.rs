//! LUKS volumes that were made and changed here, as cryptsetup sees them, and the other way round.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::support::{noise, passphrase, run_in_kernel, shared};
use crate::torture::{self, Key, Scenario, Subject, Verb};
use claviger_engine::formats::{
    self, HeaderAttributes, HeaderEditor, NewCredential, Prepared, Removal, RestoreFrom, TokenChange,
};
use claviger_engine::spec::Cost;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Result, Spec, Store, Unlock, Volume};
use claviger_testkit::tools;
use serde_json::json;

/// As cheap as cryptsetup makes it.
const CHEAP: Cost<'_> =
    Cost { kdf: Some("pbkdf2"), iterations: Some(1000), time_ms: None, memory_kib: None, lanes: None };

const LEN: u64 = (16 << 20) + 65_536;

fn editor(format: &str) -> &'static dyn HeaderEditor {
    formats::by_name(format).expect("it is in the table").editor().expect("it has an editor")
}

/// A volume in a file, and cryptsetup.
struct Both {
    dir: tempfile::TempDir,
    cryptsetup: PathBuf,
    path: PathBuf,
}

impl Both {
    fn new() -> Option<Self> {
        let cryptsetup = tools::program("cryptsetup")?;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = crate::support::new_file(dir.path(), "volume", LEN);
        Some(Self { path, dir, cryptsetup })
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// The passphrase in a file.
    fn key(&self, text: &str) -> PathBuf {
        self.file(&format!("key-{text}"), text.as_bytes())
    }

    fn run(&self, args: &[&str]) -> String {
        let output = tools::run(Command::new(&self.cryptsetup).arg("-q").args(args));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn path(&self) -> &str {
        self.path.to_str().expect("UTF-8")
    }

    /// Whether cryptsetup and we agree that the passphrase opens this keyslot, or none.
    #[track_caller]
    fn agree(&self, text: &str, keyslot: Option<u32>) {
        let key = self.key(text);
        let mut command = Command::new(&self.cryptsetup);
        command.args(["open", "--test-passphrase", "-v", "--key-file"]).arg(key).arg(&self.path);
        let output = command.output().expect("it starts");
        let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let theirs = (0..32).find(|n| told.contains(&format!("Key slot {n} unlocked")));
        assert_eq!(theirs, keyslot, "cryptsetup: {text}: {told}");
        let store: Arc<dyn Store> = Arc::new(FileStore::open(&self.path, Access::ReadOnly).expect("it opens"));
        let credentials = [passphrase(text)];
        let (_, header) = formats::open(&store, None).expect("a header");
        let ours = header.unlock(&Unlock::with(&credentials)).ok().and_then(|unlocked| unlocked.facts.keyslot);
        assert_eq!(ours, keyslot, "{text}");
    }

    fn edit(&self, prepare: impl FnOnce(&dyn Store) -> Result<Prepared>) -> Prepared {
        let store = FileStore::open(&self.path, Access::ReadWrite).expect("it opens");
        let prepared = prepare(&store).expect("it can be done");
        prepared.edit.carry_out(&store).expect("it is written");
        prepared
    }

    fn create(&self, format: &str, spec: &Spec<'_>, text: &str) {
        let store = FileStore::open(&self.path, Access::ReadWrite).expect("it opens");
        formats::by_name(format).expect("it is there").create(&store, spec, &[passphrase(text)]).expect("a volume");
    }

    fn add(&self, format: &str, with: &str, new: &str, cost: Cost<'_>) -> u32 {
        let (with, new) = ([passphrase(with)], [passphrase(new)]);
        let new = NewCredential { credentials: &new, cost, ..NewCredential::default() };
        self.edit(|store| editor(format).add(store, &Unlock::with(&with), &new, None)).keyslot.expect("a keyslot")
    }
}

fn cheap() -> Spec<'static> {
    Spec { cost: CHEAP, quick: true, ..Spec::default() }
}

#[test]
fn what_is_made_here_cryptsetup_opens() {
    let Some(both) = Both::new() else { return };
    let argon2 =
        Cost { kdf: Some("argon2id"), iterations: Some(4), memory_kib: Some(32), lanes: Some(1), time_ms: None };
    let uuid = "e67c787c-64b5-4840-b7e6-c6fc9c9610b5";
    let all: [(Spec<'_>, &[&str]); 5] = [
        (cheap(), &["aes-xts-plain64", "512 bits", "sector: 4096", "offset: 16777216"]),
        (Spec { cost: argon2, sector_size: Some(512), ..cheap() }, &["argon2id", "sector: 512"]),
        (
            Spec { cost: Cost { kdf: Some("argon2i"), ..argon2 }, key_bits: Some(256), ..cheap() },
            &["argon2i", "256 bits"],
        ),
        (
            Spec { label: Some("a label"), subsystem: Some("tests"), uuid: Some(uuid), ..cheap() },
            &["a label", "tests", uuid],
        ),
        (
            Spec { metadata_size: Some(64 << 10), data_offset: Some(4 << 20), hash: Some("sha512"), ..cheap() },
            &["65536 [bytes]", "sha512"],
        ),
    ];
    for (spec, told) in all {
        both.create("LUKS2", &spec, "one");
        let dump = both.run(&["luksDump", both.path()]);
        for word in told {
            assert!(dump.contains(word), "{word}: {dump}");
        }
        both.agree("one", Some(0));
        both.agree("other", None);
    }
}

#[test]
fn keyslots_labels_and_tokens_agree_both_ways() {
    let Some(both) = Both::new() else { return };
    both.create("LUKS2", &cheap(), "one");
    assert_eq!(both.add("LUKS2", "one", "two", CHEAP), 1);
    both.agree("two", Some(1));
    // Theirs.
    let (one, three, drei) = (both.key("one"), both.key("three"), both.key("drei"));
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let str = |path: &PathBuf| path.display().to_string();
    both.run(&[&["luksAddKey", "--key-file", &str(&one), both.path(), &str(&three)][..], &cheap].concat());
    both.agree("three", Some(2));
    both.run(&[&["luksChangeKey", "--key-file", &str(&three), both.path(), &str(&drei)][..], &cheap].concat());
    both.agree("drei", Some(2));
    both.run(&["config", "--label", "theirs", "--key-slot", "1", "--priority", "prefer", both.path()]);
    // Ours.
    let two = [passphrase("two")];
    let zwei = [passphrase("zwei")];
    let new = NewCredential { credentials: &zwei, cost: CHEAP, ..NewCredential::default() };
    both.edit(|store| editor("LUKS2").change(store, &Unlock::with(&two), &new));
    both.agree("zwei", Some(1));
    both.agree("two", None);
    both.edit(|store| editor("LUKS2").remove(store, Removal::Number(0, None), false));
    both.agree("one", None);
    both.agree("drei", Some(2));
    let flags = ["allow-discards".to_owned()];
    let to = HeaderAttributes {
        label: Some("ours"),
        flags: Some(&flags),
        priority: Some((2, 0)),
        ..HeaderAttributes::default()
    };
    both.edit(|store| editor("LUKS2").set(store, None, &to));
    let dump = both.run(&["luksDump", both.path()]);
    for word in ["ours", "allow-discards", "ignored", "preferred"] {
        assert!(dump.contains(word), "{word}: {dump}");
    }
    // Tokens, as they are.
    let token = json!({"type": "acme", "keyslots": ["1"], "secret-of-theirs": [1, {"x": "\u{e4}"}]});
    let import = TokenChange::Import { token: &token, at: Some(3), replace: false };
    both.edit(|store| editor("LUKS2").change_tokens(store, import));
    let theirs = both.run(&["token", "export", "--token-id", "3", both.path()]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&theirs).expect("JSON"), token);
    let file = both.file("token.json", br#"{"type":"other","keyslots":["2"],"a":1}"#);
    both.run(&["token", "import", "--token-id", "4", "--json-file", &str(&file), both.path()]);
    both.run(&["token", "remove", "--token-id", "3", both.path()]);
    let store = FileStore::open(&both.path, Access::ReadOnly).expect("it opens");
    let tokens = editor("LUKS2").tokens(&store).expect("they can be read");
    assert_eq!(tokens.into_iter().collect::<Vec<_>>(), [(4, json!({"type": "other", "keyslots": ["2"], "a": 1}))]);
    drop(store);
    // The keyslot that theirs is for goes, and the token stays.
    both.run(&["luksKillSlot", both.path(), "2"]);
    both.agree("zwei", Some(1));
    // An unbound one.
    let unbound = [passphrase("unbound")];
    let new = NewCredential { credentials: &unbound, cost: CHEAP, unbound_bits: Some(256), ..NewCredential::default() };
    both.edit(|store| editor("LUKS2").add(store, &Unlock::with(&[]), &new, Some(9)));
    assert!(both.run(&["luksDump", both.path()]).contains("9: luks2 (unbound)"));
}

#[test]
fn header_backups_are_theirs_too() {
    let Some(both) = Both::new() else { return };
    both.create("LUKS2", &cheap(), "one");
    let theirs = both.dir.path().join("theirs");
    both.run(&["luksHeaderBackup", both.path(), "--header-backup-file", theirs.to_str().expect("UTF-8")]);
    let store = FileStore::open(&both.path, Access::ReadOnly).expect("it opens");
    let ours = editor("LUKS2").back_up(&store, &Unlock::with(&[]), None).expect("a backup").bytes;
    drop(store);
    let theirs = std::fs::read(&theirs).expect("it is there");
    assert!(theirs == ours, "the same bytes");
    both.add("LUKS2", "one", "two", CHEAP);
    let file = MemoryStore::new(theirs);
    both.edit(|store| editor("LUKS2").restore(store, RestoreFrom::Backup(&file), &Unlock::with(&[]), false));
    both.agree("one", Some(0));
    both.agree("two", None);
    both.add("LUKS2", "one", "two", CHEAP);
    let ours = both.file("ours", &ours);
    both.run(&["luksHeaderRestore", both.path(), "--header-backup-file", ours.to_str().expect("UTF-8")]);
    both.agree("two", None);
    both.agree("one", Some(0));
}

#[test]
fn luks1_and_luks2_are_turned_into_each_other() {
    let Some(both) = Both::new() else { return };
    let one = both.key("one");
    let format = ["luksFormat", "--type", "luks1", "--pbkdf-force-iterations", "1000", "--key-file"];
    both.run(&[&format[..], &[one.to_str().expect("UTF-8"), both.path()]].concat());
    assert_eq!(both.add("LUKS1", "one", "two", CHEAP), 1);
    let version = || both.run(&["luksDump", both.path()]).lines().find(|l| l.starts_with("Version")).map(str::to_owned);
    for round in 0..2 {
        both.edit(|store| editor("LUKS1").convert(store, "LUKS2", false));
        assert!(version().is_some_and(|v| v.ends_with('2')), "{round}");
        both.agree("one", Some(0));
        both.agree("two", Some(1));
        both.edit(|store| editor("LUKS2").convert(store, "LUKS1", false));
        assert!(version().is_some_and(|v| v.ends_with('1')), "{round}");
        both.agree("one", Some(0));
        both.agree("two", Some(1));
    }
    // In each direction, one conversion is cryptsetup's.
    both.run(&["convert", "--type", "luks2", both.path()]);
    both.edit(|store| editor("LUKS2").convert(store, "LUKS1", false));
    both.agree("two", Some(1));
    both.edit(|store| editor("LUKS1").convert(store, "LUKS2", false));
    both.run(&["convert", "--type", "luks1", both.path()]);
    both.agree("two", Some(1));
    both.agree("one", Some(0));
}

#[test]
fn what_luks1_cannot_say_stays_luks2() {
    let store = MemoryStore::new(noise(LEN as usize, 1));
    let argon2 =
        Cost { kdf: Some("argon2id"), iterations: Some(4), memory_kib: Some(32), lanes: Some(1), time_ms: None };
    let refused = |spec: Spec<'_>, word: &str| {
        formats::by_name("LUKS2").expect("it is there").create(&store, &spec, &[passphrase("x")]).expect("a volume");
        let before = store.to_vec();
        let error = editor("LUKS2").convert(&store, "LUKS1", false).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
        assert!(store.to_vec() == before);
    };
    refused(Spec { sector_size: Some(4096), ..cheap() }, "512 bytes");
    refused(Spec { sector_size: Some(512), cost: argon2, ..cheap() }, "PBKDF2");
    refused(Spec { sector_size: Some(512), key_bits: Some(512), data_offset: Some(1 << 20), ..cheap() }, "do not fit");
    assert!(editor("LUKS2").convert(&store, "TrueCrypt", false).is_err());
}

/// From one to the other and back, in the smallest volume that both can be.
pub fn scenarios() -> Vec<Scenario> {
    let data_offset = 8 * 131_072 + 4096 + 28_672;
    let spec = Spec { key_bits: Some(256), data_offset: Some(data_offset), ..cheap() };
    let store = MemoryStore::new(noise(data_offset as usize + 8192, 1));
    formats::by_name("LUKS1").expect("it is there").create(&store, &spec, &[passphrase("one")]).expect("a volume");
    let keys = vec![Key::Passphrase("one".to_owned())];
    let (format, image, plaintext) = ("LUKS1", store.to_vec(), Vec::new());
    let one = Subject { format, image, plaintext, keys, hash: None, cipher: None, pim: None }.with_its_plaintext();
    let two = Subject { format: "LUKS2", ..one.after(|store, _| editor("LUKS1").convert(store, "LUKS2", false)) };
    vec![converted(&one, "LUKS2"), converted(&two, "LUKS1")]
}

fn converted(subject: &Subject, to: &'static str) -> Scenario {
    let from = subject.format;
    let prepare = move |_: &Subject, store: &dyn Store, _: &Unlock<'_>| editor(from).convert(store, to, false);
    let finish = move |store: &Arc<dyn Store>| {
        if formats::open(store, None)?.0.name() != to {
            // A damaged header is repaired first.
            let _ = editor(from).repair(&**store, None, &[]).and_then(|repair| repair.edit.carry_out(&**store));
            editor(from).convert(&**store, to, false)?.edit.carry_out(&**store)?;
        }
        Ok(())
    };
    let change = torture::change(subject, Verb::Convert, &format!("to {to}"), prepare, |_, _| true);
    Scenario { finish: Box::new(finish), ..change }
}

#[test]
fn the_kernel_reads_what_was_written_here() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plain = noise(65_536, 5);
    let plain_file = dir.path().join("plain");
    std::fs::write(&plain_file, &plain).expect("a file");
    let key = dir.path().join("key");
    std::fs::write(&key, "one").expect("a file");
    let make = |name: &str, format: &str, spec: &Spec<'_>, convert: Option<&str>| {
        let path = crate::support::new_file(dir.path(), name, LEN);
        let store: Arc<dyn Store> = Arc::new(FileStore::open(&path, Access::ReadWrite).expect("it opens"));
        formats::by_name(format).expect("it is there").create(&*store, spec, &[passphrase("one")]).expect("a volume");
        let credentials = [passphrase("one")];
        let unlocked =
            formats::open(&shared(Arc::clone(&store)), None).expect("a header").1.unlock(&Unlock::with(&credentials));
        let volume = Volume::new(Arc::clone(&store), unlocked.expect("it opens").layout);
        volume.write_clobbering(0, &mut plain.clone()).expect("it is written");
        if let Some(to) = convert {
            let edit = editor(format).convert(&*store, to, false).expect("it can be turned").edit;
            edit.carry_out(&*store).expect("it is written");
        }
        path
    };
    let small = Spec { sector_size: Some(512), ..cheap() };
    let luks1 = Spec { data_offset: Some(16 << 20), ..cheap() };
    let images = [
        make("a", "LUKS2", &cheap(), None),
        make("b", "LUKS2", &small, None),
        make("c", "LUKS1", &luks1, Some("LUKS2")),
        make("d", "LUKS2", &small, Some("LUKS1")),
    ];
    let images: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    run_in_kernel(&images, |i, device| {
        let (key, plain) = (key.display(), plain_file.display());
        format!(
            "cryptsetup open --key-file {key} /dev/{device} x{i}\nhead -c 65536 /dev/mapper/x{i} | cmp - {plain}\n\
             cryptsetup close x{i}\n"
        )
    });
}
