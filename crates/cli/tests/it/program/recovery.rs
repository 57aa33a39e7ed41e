//! `claviger recovery`: recovery keys are made, shown, checked and replaced, and split into shares.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::*;
use claviger_testkit::bitlocker::oracles::{self, Features, Key};
use claviger_testkit::tools;
use serde_json::json;

fn only_mine(path: &str) -> bool {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777 == 0o600
}

fn text(path: &str) -> String {
    fs::read_to_string(path).expect("text")
}

/// A small BitLocker volume with a password alone.
fn bitlocker(folder: &Folder) -> String {
    let path = folder.str("stick.bl");
    let create = ["create", "--format", "BitLocker", "--no-recovery-password", "--quick", "--size", "8M"];
    run(create.into_iter().chain(["--filesystem", "fat", "--password-file", &folder.password, &path])).succeeds();
    path
}

/// The text of a recovery key, as Windows' Notepad saves it.
fn as_windows_saves(key: &str) -> Vec<u8> {
    let text = format!("\u{feff}Recovery key of the laptop\r\n\r\n\t{}\r\nPrinted in 2026.\r\n", key.trim());
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn luks2_has_a_recovery_key_that_other_programs_know() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let [first, second] = ["first", "second"].map(|name| folder.str(name));
    let password = ["--password-file", &folder.password];
    let make = |file: &str| {
        run(["recovery", "make", "--json", "--output", file, "--password-file", &folder.password, &volume])
    };
    let made = make(&first).succeeds();
    assert_eq!((made.json()["keyslot"].as_u64(), made.json()["file"].as_str()), (Some(1), Some(&*first)));
    assert!(only_mine(&first) && !made.text().contains(text(&first).trim()));
    make(&first).fails(1, &["already exists"]);
    // As it is printed, typed and saved.
    let key = text(&first);
    for typed in [key.clone().into_bytes(), key.to_uppercase().replace('-', "\n").into_bytes(), as_windows_saves(&key)]
    {
        let checked = run_with(&typed, ["recovery", "check", "--json", "--password-file", "-", &volume]).succeeds();
        assert_eq!(checked.json()["keyslot"], 1);
        run_with(&typed, ["info", "--password-file", "-", &volume]).succeeds();
    }
    let groups: Vec<_> = key.trim().split('-').collect();
    let mistyped = [&groups[..2], &["abcdefgh"], &groups[3..]].concat().join("-");
    for verb in [&["recovery", "check"][..], &["info"], &["keyslot", "test"]] {
        let args = [verb, &["--password-file", "-", &volume]].concat();
        run_with(mistyped.as_bytes(), args).fails(2, &["the third group is mistyped", "letters"]);
    }
    let explained = run_with(mistyped.as_bytes(), ["explain", "--password-file", "-", &volume]);
    assert!(explained.code == 2 && explained.text().contains("the third group is mistyped"), "{}", explained.text());
    run(["recovery", "check", password[0], password[1], &volume]).fails(2, &["keyslot 0", "not a recovery key"]);
    run(["recovery", "show", password[0], password[1], &volume])
        .fails(5, &["LUKS2 does not store it", "recovery replace"]);

    let replace = ["recovery", "replace", "--yes", "--json", "--output", &second, password[0], password[1], &volume];
    let replaced = run(replace).succeeds().json();
    assert_eq!((replaced["keyslot"].as_u64(), replaced["removed"].as_u64()), (Some(2), Some(1)));
    run(["recovery", "check", "--password-file", &first, &volume]).fails(2, &[]);
    run(["recovery", "check", "--password-file", &second, &volume]).succeeds();
    // With the old recovery key instead of a password, and one of two.
    let [third, fourth] = ["third", "fourth"].map(|name| folder.str(name));
    run(["recovery", "replace", "--yes", "--output", &third, "--password-file", &second, &volume]).succeeds();
    make(&fourth).succeeds();
    let again = ["recovery", "replace", "--yes", "--output", &second, password[0], password[1], &volume];
    run(again).fails(1, &["already exists"]);
    fs::remove_file(&second).expect("removed");
    run(again).fails(1, &["several recovery keys, in the keyslots 1, 2", "--old"]);
    run(again.into_iter().chain(["--old", "0"])).fails(1, &["keyslot 0 has no recovery key"]);
    assert!(!folder.path("second").exists());
    run(again.into_iter().chain(["--old", "2"])).succeeds();
    run(["recovery", "check", "--password-file", &third, &volume]).succeeds();
    run(["recovery", "check", "--password-file", &fourth, &volume]).fails(2, &[]);
    let tokens = run(["token", "list", "--json", &volume]).succeeds().json();
    assert_eq!(tokens["tokens"].as_object().map(|tokens| tokens.len()), Some(2), "{tokens}");

    let Some(enroll) = tools::program("systemd-cryptenroll") else { return };
    let listed = tools::run(Command::new(enroll).arg(&volume)).stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    assert_eq!(listed.lines().filter(|row| row.ends_with("recovery")).count(), 2, "{listed}");
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    fs::write(folder.path("exact"), text(&third).trim_end()).expect("a file");
    let mut test = Command::new(cryptsetup);
    tools::run(test.args(["open", "--test-passphrase", "--key-file"]).arg(folder.path("exact")).arg(&volume));
}

#[test]
fn a_keyslot_that_gets_a_password_is_no_longer_a_recovery_keys() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let [key, sentence, other] = ["key", "sentence", "other"].map(|name| folder.str(name));
    run(["recovery", "make", "--output", &key, "--password-file", &folder.password, &volume]).succeeds();
    // A password that reads as a recovery key in another form stays as it is.
    let written = format!("my key: {}!\n", text(&key).trim().to_uppercase());
    fs::write(&sentence, written).expect("a file");
    let cheap = ["--kdf", "pbkdf2", "--iterations", "1000"];
    let change = ["keyslot", "change", "--password-file", &key, "--new-password-file", &sentence, &volume];
    let changed = run(change.into_iter().chain(cheap)).succeeds().text();
    assert!(changed.contains("keyslot 1 now opens only with the new password"), "{changed}");
    assert_eq!(run(["token", "list", "--json", &volume]).succeeds().json()["tokens"], json!({}));
    run(["keyslot", "test", "--password-file", &sentence, &volume]).succeeds();
    run(["keyslot", "test", "--password-file", &key, &volume]).fails(2, &[]);
    run(["recovery", "check", "--password-file", &sentence, &volume]).fails(2, &["keyslot 1", "not a recovery key"]);
    let replace = ["recovery", "replace", "--yes", "--output", &other, "--password-file", &sentence, &volume];
    run(replace).fails(1, &["no recovery key to replace"]);
    // The same key at another cost stays one, however it was typed.
    let [kept, typed] = ["kept", "typed"].map(|name| folder.str(name));
    run(["recovery", "make", "--output", &kept, "--password-file", &folder.password, &volume]).succeeds();
    fs::write(&typed, as_windows_saves(&text(&kept))).expect("a file");
    let change = ["keyslot", "change", "--keep-password", "--password-file", &typed, &volume];
    run(change.into_iter().chain(cheap)).succeeds();
    let checked = || run(["recovery", "check", "--json", "--password-file", &kept, &volume]).succeeds().json();
    assert_eq!(checked()["keyslot"], 2);
    // So does one that opens a volume with a new key.
    let copy = folder.str("copy.luks");
    fs::copy(&volume, &copy).expect("a copy");
    run(["reencrypt", "--yes", "--hotzone-size", "256K", "--password-file", &typed, &copy]).succeeds();
    run(["recovery", "check", "--password-file", &kept, &copy]).succeeds();
    // Where another program leaves the mark, such a password opens, too.
    let mark = json!({ "type": "systemd-recovery", "keyslots": ["1"] }).to_string();
    fs::write(folder.path("mark"), mark).expect("a file");
    run(["token", "import", &volume, &folder.str("mark")]).succeeds();
    run(["keyslot", "test", "--password-file", &sentence, &volume]).succeeds();
}

#[test]
fn bitlocker_has_one_that_other_programs_open_it_with() {
    let folder = Folder::new();
    let volume = bitlocker(&folder);
    let password = ["--password-file", &folder.password];
    let [first, second, shown] = ["first", "second", "shown"].map(|name| folder.str(name));
    run(["recovery", "make", "--output", &first, password[0], password[1], &volume]).succeeds();
    run(["recovery", "check", "--password-file", &first, &volume]).succeeds();
    run(["recovery", "check", password[0], password[1], &volume]).fails(2, &["not a recovery key"]);
    fs::write(folder.path("windows"), as_windows_saves(&text(&first))).expect("a file");
    run(["recovery", "check", "--password-file", &folder.str("windows"), &volume]).succeeds();
    let printed = run(["recovery", "show", password[0], password[1], &volume]).succeeds().text();
    assert!(printed.contains(text(&first).trim()), "{printed}");
    run(["recovery", "show", "--output", &shown, "--password-file", &first, &volume]).succeeds();
    run(["recovery", "check", "--password-file", &shown, &volume]).succeeds();
    run(["recovery", "replace", "--output", &second, password[0], password[1], &volume]).fails(1, &["--yes"]);
    assert!(!folder.path("second").exists());
    let replace = ["recovery", "replace", "--yes", "--json", "--output", &second, password[0], password[1], &volume];
    let replaced = run(replace).succeeds().json();
    assert_eq!((replaced["keyslot"].as_u64(), replaced["removed"].as_u64()), (Some(1), Some(1)), "they move up");
    run(["recovery", "check", "--password-file", &first, &volume]).fails(2, &[]);
    let plaintext = run(["cat", "--password-file", &second, &volume]).succeeds().out;
    let key = text(&second);
    let read = oracles::expect_all(
        volume.as_ref(),
        &Features { not_ntfs: true, ..Features::default() },
        &[Key::Recovery(key.trim())],
        &plaintext,
    );
    println!("{read} programs read it");
}

#[test]
fn veracrypt_has_a_header_backup_that_the_recovery_key_opens() {
    let folder = Folder::new();
    let volume = folder.volume("old.tc", "1M", &["--filesystem", "fat"]);
    let before = run(["cat", "--password-file", &folder.password, &volume]).succeeds().out;
    let [key, backup, other] = ["key", "backup", "other"].map(|name| folder.str(name));
    let make =
        ["recovery", "make", "--hash", "SHA-512", "--password-file", &folder.password, "--output", &key, &volume];
    run(make).fails(1, &["--backup FILE"]);
    let backed = [&make[..], &["--backup", &backup, "--json"]].concat();
    let made = run(&backed).succeeds().json();
    assert_eq!((made["backup"].as_str(), made["file"].as_str()), (Some(&*backup), Some(&*key)));
    assert!(only_mine(&key) && only_mine(&backup));
    let check = ["recovery", "check", "--hash", "SHA-512", "--backup", &backup, &volume, "--password-file"];
    let with = |file: &str| run(check.into_iter().chain([file]));
    with(&key).succeeds();
    // Typed with spaces, with a mistake, and the volume's own password.
    fs::write(&other, text(&key).replace('-', " ")).expect("a file");
    with(&other).succeeds();
    let first = text(&key).as_bytes()[5];
    fs::write(&other, text(&key).replacen(char::from(first), if first == b'0' { "1" } else { "0" }, 1))
        .expect("a file");
    with(&other).fails(2, &["group is mistyped"]);
    with(&folder.password).fails(2, &["not a recovery key"]);
    run(["recovery", "check", "--password-file", &key, &volume]).fails(1, &["--backup FILE"]);
    run(["recovery", "show", "--password-file", &folder.password, &volume]).fails(5, &["does not store it"]);
    let replace = ["recovery", "replace", "--yes", "--output", &other, "--password-file", &folder.password, &volume];
    run(replace).fails(1, &["already exists"]);
    fs::remove_file(&other).expect("removed");
    run(replace).fails(5, &["stays valid", "claviger convert"]);
    // The password is forgotten.
    fs::write(&other, "forgotten at once").expect("a file");
    let change =
        ["change", "--hash", "SHA-512", "--password-file", &folder.password, "--new-password-file", &other, &volume];
    run(change).succeeds();
    let restore =
        ["header", "restore", "--yes", "--from", &backup, "--hash", "SHA-512", "--password-file", &key, &volume];
    run(restore).succeeds();
    assert!(run(["cat", "--hash", "SHA-512", "--password-file", &key, &volume]).succeeds().out == before);
}

#[test]
fn an_ecryptfs_folder_shows_its_mount_passphrase() {
    let folder = Folder::new();
    let home = folder.str("home");
    run(["create", "--format", "eCryptfs", "--home", "--password-file", &folder.password, &home]).succeeds();
    let lower = format!("{home}/.Private");
    let file = folder.str("shown");
    let printed = run(["recovery", "show", "--password-file", &folder.password, &lower]).succeeds().text();
    let passphrase = printed.trim_end().rsplit(' ').next().expect("a word").to_owned();
    assert_eq!(passphrase.len(), 32, "{printed}");
    run(["recovery", "show", "--output", &file, "--password-file", &folder.password, &lower]).succeeds();
    assert!(only_mine(&file) && text(&file).contains(&passphrase));
    let check = ["recovery", "check", "--password-file", "-", &lower];
    run_with(passphrase.as_bytes(), check).succeeds();
    run_with(PASSWORD.as_bytes(), check).fails(2, &["unwraps"]);
    run_with(b"another", check).fails(2, &[]);
    let make = ["recovery", "make", "--output", &folder.str("new"), "--password-file", &folder.password, &lower];
    run(make).fails(5, &["claviger recovery show"]);
}

#[test]
fn formats_without_recovery_keys_say_what_to_do_instead() {
    let folder = Folder::new();
    let [luks1, file] = ["disk.luks1", "new"].map(|name| folder.str(name));
    let cheap = ["create", "--format", "LUKS1", "--quick", "--size", "4M", "--iterations", "1000"];
    run(cheap.into_iter().chain(["--password-file", &folder.password, &luks1])).succeeds();
    // Before a password is asked for.
    for verb in ["make", "replace"] {
        let refused = run(["recovery", verb, "--output", &file, &luks1]);
        refused.fails(5, &["recovery keys of LUKS1", "claviger keyslot add"]);
    }
    run(["recovery", "show", &luks1]).fails(5, &["recovery keys of LUKS1"]);
    assert!(!folder.path("new").exists());
    let luks2 = folder.luks2("disk.luks");
    let make = ["recovery", "make", "--password-file", &folder.password, &luks2];
    run(make).fails(1, &["no terminal", "--output"]);
    run(make.into_iter().chain(["--json"])).fails(1, &["not printed as JSON"]);
    run(make.into_iter().chain(["--output", &file, "--backup", &file])).fails(1, &["--backup is for"]);
}

#[test]
fn shares_give_the_key_back() {
    let folder = Folder::new();
    let (luks, bl) = (folder.luks2("disk.luks"), bitlocker(&folder));
    for volume in [&luks, &bl] {
        let key = folder.str("key");
        let make =
            ["recovery", "make", "--shares", "3:5", "--output", &key, "--password-file", &folder.password, volume];
        let made = run(make.into_iter().chain(["--json"])).succeeds().json();
        let shares: Vec<String> = (1..=5).map(|number| format!("{key}.{number}")).collect();
        assert_eq!(made["shares"], json!(shares.iter().map(|file| json!({ "file": file })).collect::<Vec<_>>()));
        assert!(!folder.path("key").exists() && shares.iter().all(|file| only_mine(file)));
        let joined = run(["recovery", "join", &shares[4], &shares[0], &shares[2]]).succeeds();
        run_with(&joined.out, ["recovery", "check", "--password-file", "-", volume]).succeeds();
        run(["recovery", "join", &shares[4], &shares[0]]).fails(1, &["3 shares are needed, not 2", "share 5, 1"]);
        run(["recovery", "join", &shares[4], &folder.password]).fails(2, &["no share of a recovery key", "password"]);
        // One letter is wrong.
        let wrong = folder.str("wrong");
        let line = text(&shares[1]);
        let last = line.trim_end().chars().last().expect("a letter");
        fs::write(
            &wrong,
            format!("{}{}\n", &line.trim_end()[..line.trim_end().len() - 1], if last == 'b' { 'c' } else { 'b' }),
        )
        .expect("a file");
        run(["recovery", "join", &shares[0], &wrong, &shares[2]]).fails(2, &["wrong is mistyped"]);
        // Those of another key.
        run(make).fails(1, &["already exists"]);
        let other = folder.str("other");
        let another =
            ["recovery", "make", "--shares", "3:5", "--output", &other, "--password-file", &folder.password, volume];
        run(another).succeeds();
        let mixed = ["recovery", "join", &shares[0], &format!("{other}.2"), &shares[2]];
        run(mixed).fails(1, &["key.1", "other.2", "different keys"]);
        for file in shares.iter().cloned().chain((1..=5).map(|number| format!("{other}.{number}"))) {
            fs::remove_file(file).expect("removed");
        }
    }
    run(["recovery", "make", "--shares", "6:5", &luks]).fails(1, &["3:5 makes 5 shares"]);
}

#[test]
fn a_terminal_shows_the_key_once_and_its_code() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let steps = json!([typed("Password: ", PASSWORD)].concat());
    let Some((printed, code, _)) = on_terminal(steps, &["recovery", "make", "--qr", &volume]) else { return };
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("█▀▀▀▀▀█") || printed.contains("█ ▄▄▄▄▄ █"), "{printed}");
    let key = printed.lines().find(|line| line.split('-').count() == 8).expect("a key").to_owned();
    // The question is its own.
    let steps = json!([typed("Recovery key: ", &key)].concat());
    let (printed, code, _) = on_terminal(steps, &["recovery", "check", &volume]).expect("a terminal");
    assert!(code == 0 && printed.contains("the recovery key works: it opens keyslot 1"), "{printed}");
    let replace = ["recovery", "replace", "--shares", "2:3", &volume];
    let steps =
        json!([typed("Password: ", PASSWORD), vec![json!({"expect": "[y/N] "}), json!({"send": "y\n"})]].concat());
    let (printed, code, _) = on_terminal(steps, &replace).expect("a terminal");
    assert!(code == 0 && printed.contains("which was in keyslot 1, no longer works"), "{printed}");
    let joined = run_with(printed.as_bytes(), ["recovery", "join", "-"]).succeeds();
    run_with(&joined.out, ["recovery", "check", "--password-file", "-", &volume]).succeeds();
}
