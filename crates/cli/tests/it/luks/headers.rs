//! change, header backup, header restore, verify, keyfile and --slot, as a person runs them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::*;
use claviger_testkit::tools;
use serde_json::{Value, json};

const NEW: &str = "something else, and long";

/// A folder with a cheap TrueCrypt volume and two password files.
struct Setting {
    folder: Folder,
    volume: String,
    new: String,
}

impl Setting {
    fn new() -> Self {
        let folder = Folder::new();
        let volume = folder.volume("v.tc", "1M", &[]);
        let new = folder.str("new");
        fs::write(&new, NEW).expect("a password file");
        Self { folder, volume, new }
    }

    /// Runs a verb on the volume, with the current password.
    fn run(&self, verb: &[&str], more: &[&str]) -> Done {
        self.run_as(&self.folder.password, verb, more)
    }

    fn run_as(&self, password: &str, verb: &[&str], more: &[&str]) -> Done {
        let opening = ["--truecrypt", "--password-file", password, &self.volume];
        run(verb.iter().chain(&opening).chain(more))
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.volume).expect("the volume")
    }

    fn wipe(&self, from: usize, to: usize) {
        let mut bytes = self.bytes();
        bytes[from..to].fill(0);
        fs::write(&self.volume, bytes).expect("written");
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

#[test]
fn keyfiles_are_random_private_and_never_overwrite() {
    let folder = Folder::new();
    let (one, other) = (folder.path("one"), folder.path("other"));
    let text = run([Path::new("keyfile"), &one]).succeeds().text();
    assert!(text.contains("64 bytes"), "{text}");
    let made = run(["keyfile", "--json", "--size", "1M", &folder.str("other")]).succeeds().json();
    assert_eq!(made["size"], 1 << 20);
    let bytes = fs::read(&one).expect("a keyfile");
    assert_eq!((bytes.len(), fs::metadata(&other).expect("a keyfile").len()), (64, 1 << 20));
    assert_eq!((mode(&one), mode(&other)), (0o600, 0o600));
    assert!(bytes.iter().any(|b| *b != bytes[0]) && fs::read(&other).expect("a keyfile")[..64] != bytes);
    run([Path::new("keyfile"), &one]).fails(1, &["already exists"]);
    assert!(fs::read(&one).expect("a keyfile") == bytes);
    // Nor is the target of a symbolic link created.
    std::os::unix::fs::symlink(folder.path("target"), folder.path("link")).expect("a link");
    run(["keyfile", &folder.str("link")]).fails(1, &["already exists"]);
    assert!(!folder.path("target").exists());
    for size in ["0", "1048577", "99999G"] {
        run(["keyfile", "--size", size, &folder.str("third")]).fails(1, &["1 to 1048576"]);
    }
    assert!(!folder.path("third").exists());
    run(["keyfile", &folder.str("no/such/folder")]).fails(6, &["no/such/folder"]);
}

#[test]
fn a_password_is_changed() {
    let it = Setting::new();
    let old = it.bytes();
    let text = it.run(&["change"], &["--new-password-file", &it.new]).succeeds().text();
    for words in ["opens only with the new password", "the primary header, the backup header", "header backup"] {
        assert!(text.contains(words), "{text}");
    }
    it.run(&["info"], &[]).fails(2, &[]);
    it.run(&["info"], &["--backup-header"]).fails(2, &[]);
    for slot in ["primary", "backup"] {
        let info = it.run_as(&it.new, &["info", "--json"], &["--slot", slot]).succeeds().json();
        assert_eq!(info["header"], slot);
    }
    it.run_as(&it.new, &["info"], &["--slot", "hidden"]).fails(2, &[]);
    it.run_as(&it.new, &["info"], &["--slot", "hidden-backup"]).fails(2, &[]);
    it.run_as(&it.new, &["info"], &["--slot", "third"]).fails(1, &["hidden-backup"]);
    let new = it.bytes();
    let changed = (0..new.len() / 512).filter(|s| old[s * 512..][..512] != new[s * 512..][..512]);
    assert_eq!(changed.collect::<Vec<_>>(), [0, ((1 << 20) - (128 << 10)) / 512]);
}

#[test]
fn keyfiles_and_hashes_are_changed_with_the_password_kept() {
    let it = Setting::new();
    let key = it.folder.str("key");
    run(["keyfile", &key]).succeeds();
    let more = ["--keep-password", "--new-keyfile", &key, "--new-hash", "whirlpool"];
    let changed = it.run(&["change", "--json"], &more).succeeds().json();
    assert_eq!((&changed["hash"], &changed["iterations"]), (&json!("Whirlpool"), &json!(1000)));
    assert_eq!(changed["written"], json!(["the primary header", "the backup header"]));
    it.run(&["info"], &[]).fails(2, &[]);
    let info = it.run(&["info", "--json"], &["--keyfile", &key]).succeeds().json();
    assert_eq!(info["hash"], "Whirlpool");
    // Whether the keyfile stays has to be said.
    let before = it.bytes();
    it.run(&["change"], &["--keyfile", &key, "--new-password-file", &it.new]).fails(1, &["--keep-keyfiles"]);
    it.run(&["change"], &["--keyfile", &key, "--no-new-password", "--no-new-keyfiles"]).fails(1, &["no keyfiles"]);
    assert!(it.bytes() == before);
    it.run(&["change"], &["--keyfile", &key, "--keep-keyfiles", "--new-password-file", &it.new]).succeeds();
    it.run_as(&it.new, &["info"], &["--keyfile", &key]).succeeds();
    it.run_as(&it.new, &["change"], &["--keyfile", &key, "--keep-keyfiles", "--no-new-password"]).succeeds();
    run(["info", "--truecrypt", "--no-password", "--keyfile", &key, &it.volume]).succeeds();
    let back = ["--no-password", "--keyfile", &key, "--no-new-keyfiles", "--new-password-file", &it.new];
    run(["change", "--truecrypt", &it.volume].iter().chain(&back)).succeeds();
    it.run_as(&it.new, &["info"], &[]).succeeds();
}

#[test]
fn what_cannot_be_changed_changes_nothing() {
    let it = Setting::new();
    let before = it.bytes();
    it.run_as(&it.new, &["change"], &["--new-password-file", &it.new]).fails(2, &[]);
    it.run(&["change"], &["--new-password-file", &it.new, "--new-hash", "MD5"]).fails(1, &["MD5"]);
    it.run(&["change"], &["--new-password-file", &it.new, "--new-pim", "7"]).fails(1, &["PIM"]);
    it.run(&["change"], &[]).fails(1, &["--new-password-file"]);
    it.run(&["change"], &["--new-password-file", &it.folder.str("none")]).fails(6, &["none"]);
    let twice = ["change", "--truecrypt", "--password-file", "-", "--new-password-file", "-", &it.volume];
    run_with(b"pw", twice).fails(1, &["standard input"]);
    fs::write(it.folder.path("empty"), "").expect("a file");
    it.run(&["change"], &["--new-password-file", &it.folder.str("empty")]).fails(1, &["empty"]);
    fs::write(it.folder.path("long"), "x".repeat(65)).expect("a file");
    it.run(&["change"], &["--new-password-file", &it.folder.str("long")]).fails(1, &["at most 64"]);
    assert!(it.bytes() == before);
    let error = it.run_as(&it.new, &["change", "--json"], &["--new-password-file", &it.new]).fails(2, &[]);
    assert_eq!(serde_json::from_str::<Value>(&error.err).expect("JSON")["error"]["kind"], "wrong-credential");
}

#[test]
fn headers_come_back_from_a_file() {
    let it = Setting::new();
    let file = it.folder.str("headers");
    let saved = it.run(&["header", "backup", "--json"], &[&file]).succeeds().json();
    assert_eq!((&saved["headers"], &saved["format"]), (&json!(["primary"]), &json!("TrueCrypt")));
    assert_eq!((mode(Path::new(&file)), fs::metadata(&file).expect("a file").len()), (0o600, 131_072));
    it.run(&["header", "backup"], &[&file]).fails(1, &["already exists"]);

    it.wipe(0, 128 << 10);
    it.wipe((1 << 20) - (128 << 10), 1 << 20);
    it.run(&["info"], &[]).fails(3, &[]);
    let wiped = it.bytes();
    let restore = ["header", "restore", "--from", &file];
    it.run(&restore, &[]).fails(1, &["nothing shows", "force"]);
    it.run(&restore, &["--force"]).fails(1, &["no terminal", "--yes"]);
    it.run_as(&it.new, &restore, &["--force", "--yes"]).fails(2, &[]);
    it.run(&["header", "restore", "--from", &it.new], &["--yes"]).fails(3, &["not a header backup"]);
    it.run(&["header", "restore", "--embedded"], &["--yes"]).fails(3, &[]);
    it.run(&["header", "restore"], &["--yes"]).fails(1, &["--from"]);
    assert!(it.bytes() == wiped, "nothing was written so far");
    let text = it.run(&restore, &["--force", "--yes"]).succeeds().text();
    assert!(text.contains("restored the primary header, the backup header"), "{text}");
    it.run(&["info"], &[]).succeeds();
    it.run(&["info"], &["--slot", "backup"]).succeeds();
    // While its own header is there, neither --force nor --format is needed.
    run(["header", "restore", "--from", &file, "--yes", "--password-file", &it.folder.password, &it.volume]).succeeds();

    // A backup is not touched by a change: the old password opens it, and the volume after a restoration.
    it.run(&["change"], &["--new-password-file", &it.new]).succeeds();
    it.run(&restore, &["--yes"]).fails(1, &["nothing shows"]);
    it.run(&restore, &["--yes", "--force"]).succeeds();
    it.run(&["info"], &[]).succeeds();
}

#[test]
fn the_backup_at_the_end_repairs_the_header_in_front() {
    let it = Setting::new();
    let embedded = ["header", "restore", "--embedded", "--yes"];
    let text = it.run(&embedded, &[]).succeeds().text();
    assert!(text.contains("nothing to do"), "{text}");
    it.wipe(0, 512);
    it.run(&["change"], &["--new-password-file", &it.new])
        .fails(1, &["only the backup header", "header restore --embedded"]);
    let text = it.run(&["verify"], &[]).fails(4, &[]).text();
    assert!(text.contains("header restore --embedded") && !text.contains("claviger change"), "{text}");
    let verified = it.run(&["verify", "--json"], &[]).fails(4, &[]).json();
    assert_eq!((&verified["damaged"], &verified["copies"][0]["state"]), (&json!(true), &json!("no-header")));
    let restored = it.run(&embedded, &["--json"]).succeeds().json();
    assert_eq!(restored["written"], json!(["the primary header"]));
    let text = it.run(&["verify"], &[]).succeeds().text();
    assert!(text.contains("All headers are sound"), "{text}");
}

#[test]
fn verify_says_what_each_copy_is_like() {
    let it = Setting::new();
    let before = it.bytes();
    let verified = it.run(&["verify", "--json"], &[]).succeeds().json();
    let states: Vec<_> = verified["copies"].as_array().expect("a list").iter().map(|c| &c["state"]).collect();
    assert_eq!(states, ["opens", "does-not-open", "opens", "does-not-open"]);
    // It was created quickly, in a new file.
    assert_eq!(verified["areas"][1]["zeros"], verified["areas"][1]["sectors"]);
    assert!(verified["warnings"][0].as_str().is_some_and(|w| w.contains("do not look random")), "{verified}");
    it.run_as(&it.new, &["verify"], &[]).fails(2, &[]);
    assert!(it.bytes() == before);
    it.wipe((1 << 20) - (128 << 10), 1 << 20);
    let text = it.run(&["verify"], &[]).fails(4, &[]).text();
    assert!(text.contains("no header") && text.contains("Damaged."), "{text}");
    assert!(text.contains("claviger change") && !text.contains("header restore"), "{text}");
}

#[test]
fn hidden_headers_are_saved_and_restored_too() {
    let Some(sample) = tools::sample("truecrypt/hidden.tc") else { return };
    let folder = Folder::new();
    let (volume, file) = (folder.str("v.tc"), folder.str("headers"));
    fs::copy(sample, &volume)
        .and_then(|_| fs::set_permissions(&volume, fs::Permissions::from_mode(0o600)))
        .expect("a copy");
    let (outer, hidden) = (folder.str("outer"), folder.str("hidden"));
    fs::write(&outer, "outer pass").and_then(|()| fs::write(&hidden, "hidden pass")).expect("password files");
    let backup = ["header", "backup", "--json", "--truecrypt", "--password-file", &outer, "--with-hidden"];
    let with = |password: &'static str, path: &str| {
        run(backup.iter().copied().chain(["--hidden-password-file", &folder.str(password), &volume, path]))
    };
    with("outer", &file).fails(1, &["outer volume's password first"]);
    assert!(!Path::new(&file).exists());
    assert_eq!(with("hidden", &file).succeeds().json()["headers"], json!(["primary", "hidden"]));
    let mut bytes = fs::read(&volume).expect("a volume");
    let end = bytes.len() - (128 << 10);
    bytes[..128 << 10].fill(0);
    bytes[end..].fill(0);
    fs::write(&volume, bytes).expect("written");
    for (password, whose) in [(&hidden, true), (&outer, false)] {
        let args =
            ["header", "restore", "--json", "--truecrypt", "--yes", "--from", &file, "--password-file", password];
        let restored = run(args.iter().chain([&&*volume])).succeeds().json();
        assert_eq!(restored["hidden"], whose);
        run(["info", "--truecrypt", "--password-file", password, &volume]).succeeds();
        run(["verify", "--truecrypt", "--password-file", password, &volume]).succeeds();
    }
}

#[test]
fn a_new_password_is_asked_twice_and_a_restoration_is_asked_for() {
    let it = Setting::new();
    let pair = |second: &str| [typed("New password: ", NEW), typed("Repeat: ", second)].concat();
    let steps = |pairs: &[Vec<Value>]| json!([&[typed("Password: ", PASSWORD)], pairs].concat().concat());
    let before = it.bytes();
    let change = ["change", "--truecrypt", &it.volume];
    let differ = [pair("something"), pair("else"), pair("again")];
    let Some((output, code, _)) = on_terminal(steps(&differ), &change) else { return };
    assert!(code == 1 && output.contains("passwords differ"), "{output}");
    assert!(it.bytes() == before);
    let (output, code, _) = on_terminal(steps(&[pair(NEW)]), &change).expect("as before");
    assert_eq!(code, 0, "{output}");
    it.run_as(&it.new, &["info"], &[]).succeeds();

    it.wipe(0, 512);
    let restore = ["header", "restore", "--truecrypt", "--embedded", "--password-file", &it.new, &it.volume];
    let wiped = it.bytes();
    for (answer, code) in [("no\n", 1), ("\u{3}", 8), ("yes\n", 0)] {
        assert!(it.bytes() == wiped, "it is as it was");
        let steps = json!([{"expect": "[y/N] "}, {"send": answer}]);
        let (output, ended, _) = on_terminal(steps, &restore).expect("as before");
        assert_eq!(ended, code, "{output}");
    }
    it.run_as(&it.new, &["info"], &["--slot", "primary"]).succeeds();
}
