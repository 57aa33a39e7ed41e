//! `claviger keyslot`, `token`, `header set`, `repair`, `convert`, `resize` and the LUKS options of `create`.

mod common;

use std::fs;
use std::process::Command;

use claviger_testkit::tools;
use common::{Folder, run};
use serde_json::json;

/// A volume of LUKS2 with one cheap keyslot.
fn volume(folder: &Folder, name: &str, more: &[&str]) -> String {
    let path = folder.str(name);
    let args = ["create", "--quick", "--size", "20M", "--iterations", "1000", "--kdf", "pbkdf2", "--password-file"];
    let format: &[&str] = if more.contains(&"--format") { &[] } else { &["--format", "luks"] };
    run([&args[..], &[&folder.password, &path], format, more].concat()).succeeds();
    path
}

#[test]
fn keyslots_are_listed_added_tested_changed_and_killed() {
    let folder = Folder::new();
    let path = volume(&folder, "v", &["--label", "a label"]);
    let (two, three) = (folder.str("two"), folder.str("three"));
    fs::write(&two, "two").and_then(|()| fs::write(&three, "three")).expect("password files");
    let cheap = ["--kdf", "pbkdf2", "--iterations", "1000"];
    let password = ["--password-file", folder.password.as_str()];
    let add = [&["keyslot", "add", "--json", &path, "--new-password-file", &two][..], &password, &cheap].concat();
    let added = run(add).succeeds().json();
    assert_eq!((added["keyslot"].as_u64(), added["iterations"].as_u64()), (Some(1), Some(1000)));
    let listed = run(["keyslot", "list", "--json", &path]).succeeds().json();
    assert_eq!(listed["keyslots"].as_array().map(Vec::len), Some(2));
    assert!(run(["keyslot", "list", &path]).succeeds().text().contains("pbkdf2 with sha256, 1000 iterations"));
    let test = |file: &str| run(["keyslot", "test", "--json", "--password-file", file, &path]);
    assert_eq!(test(&two).succeeds().json()["keyslot"], 1);
    let change = ["keyslot", "change", &path, "--password-file", &two, "--new-password-file", &three];
    run([&change[..], &cheap].concat()).succeeds();
    test(&two).fails(2, &["opens with this passphrase"]);
    assert_eq!(test(&three).succeeds().json()["keyslot"], 1);
    run(["keyslot", "priority", &path, "1", "prefer"]).succeeds();
    run(["keyslot", "kill", &path, "1", "--yes", "--password-file", &three]).fails(2, &[]);
    run(["keyslot", "kill", &path, "1", "--password-file", &folder.password]).fails(1, &["no terminal", "--yes"]);
    run(["keyslot", "kill", &path, "1", "--yes", "--password-file", &folder.password]).succeeds();
    test(&three).fails(2, &[]);
    run(["keyslot", "kill", &path, "0", "--yes", "--unproven"]).fails(1, &["last one"]);
    run(["keyslot", "list", &folder.volume("old.tc", "300K", &[])]).fails(3, &[]);
}

#[test]
fn headers_are_set_saved_repaired_and_restored_without_a_password() {
    let folder = Folder::new();
    let path = volume(&folder, "v", &[]);
    run(["header", "set", "--label", "new", "--flag", "allow-discards", &path]).succeeds();
    run(["header", "set", &path]).fails(1, &[]);
    let backup = folder.str("backup");
    run(["header", "backup", &path, &backup]).succeeds();
    assert_eq!(fs::metadata(&backup).expect("it is there").len(), 16 << 20);
    let mut bytes = fs::read(&path).expect("it is there");
    bytes[4100] ^= 1;
    fs::write(&path, &bytes).expect("it is written");
    run(["header", "repair", "--yes", &path]).succeeds();
    bytes[..16 << 20].fill(0);
    fs::write(&path, &bytes).expect("it is written");
    run(["header", "restore", "--from", &backup, "--yes", &path]).fails(1, &["nothing shows"]);
    run(["header", "restore", "--from", &backup, "--yes", "--force", &path]).succeeds();
    let info = run(["info", "--json", "--password-file", &folder.password, &path]).succeeds().json();
    assert_eq!(info["label"], "new");
}

#[test]
fn tokens_come_and_go() {
    let folder = Folder::new();
    let path = volume(&folder, "v", &[]);
    let (file, copy) = (folder.str("token.json"), folder.str("copy.json"));
    let token = json!({"type": "acme", "keyslots": ["0"], "x": [1, "\u{1b}[31m"]});
    fs::write(&file, token.to_string()).expect("a file");
    run(["token", "import", &path, &file]).succeeds();
    run(["token", "export", &path, "0", &copy]).succeeds();
    let copied: serde_json::Value = serde_json::from_slice(&fs::read(&copy).expect("a file")).expect("JSON");
    assert_eq!(copied, token);
    assert_eq!(run(["token", "show", &path, "0"]).succeeds().json(), token);
    assert!(run(["token", "list", &path]).succeeds().text().contains("acme, keyslots: 0"));
    run(["token", "assign", "--not", &path, "0", "0"]).succeeds();
    run(["token", "remove", &path, "0"]).succeeds();
    run(["token", "remove", &path, "0"]).fails(1, &["no token 0"]);
}

#[test]
fn volumes_are_converted_resized_and_have_detached_headers() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let folder = Folder::new();
    let path = volume(&folder, "v", &["--format", "LUKS1"]);
    let backup = folder.str("backup");
    run(["header", "convert", "--to", "LUKS2", "--yes", "--backup", &backup, &path]).succeeds();
    run(["header", "convert", "--to", "luks1", "--yes", "--no-backup", &path]).succeeds();
    let size = |path: &str| {
        run(["info", "--json", "--password-file", &folder.password, path]).succeeds().json()["size"].as_u64()
    };
    run(["resize", "--size", "30M", &path]).succeeds();
    assert_eq!(size(&path), Some(30 << 20));
    run(["resize", "--size", "1M", &path]).fails(1, &["no terminal"]);
    run(["resize", "--size", "1M", "--yes", &path]).succeeds();
    assert_eq!(size(&path), Some(1 << 20));
    let header = folder.str("header");
    let data = volume(&folder, "data", &["--header", &header, "--label", "detached"]);
    let password = fs::read_to_string(&folder.password).expect("it is there");
    let key = folder.str("key");
    fs::write(&key, password.trim_end()).expect("a key file");
    let open = ["open", "--test-passphrase", "--key-file", &key, "--header", &header, &data];
    tools::run(Command::new(cryptsetup).args(open));
    assert_eq!(
        run(["keyslot", "test", "--json", "--password-file", &folder.password, &header]).succeeds().json()["keyslot"],
        0
    );
    run(["create", "--format", "TrueCrypt", "--label", "x", "--size", "1M", &folder.str("no")]).fails(1, &["--label"]);
}
