//! `claviger keyslot`, `token`, `header set`, `repair`, `convert`, `resize` and the LUKS options of `create`.

use std::fs;
use std::process::Command;

use crate::common::{Folder, run};
use claviger_testkit::tools;
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
    run(["keyslot", "kill", &path, "1", "--yes", "--password-file", &three]).fails(1, &["opens keyslot 1, the one"]);
    run(["keyslot", "kill", &path, "1", "--password-file", &folder.password]).fails(1, &["no terminal", "--yes"]);
    run(["keyslot", "kill", &path, "1", "--yes", "--password-file", &folder.password]).succeeds();
    test(&three).fails(2, &[]);
    run(["keyslot", "kill", &path, "0", "--yes", "--unproven"]).fails(1, &["last one"]);
    run(["keyslot", "list", &folder.volume("old.tc", "300K", &[])]).fails(5, &["TrueCrypt has none"]);
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
    let before = fs::read(&header).expect("it is there");
    for size in ["1M", "30M"] {
        run(["resize", "--size", size, "--yes", &header]).fails(1, &["detached header"]);
    }
    assert!(fs::read(&header).expect("it is there") == before, "a detached header keeps its keyslots");
    run(["create", "--format", "TrueCrypt", "--label", "x", "--size", "1M", &folder.str("no")])
        .fails(1, &["TrueCrypt takes no label"]);
}

#[test]
fn four_things_that_go_wrong_have_four_exit_codes() {
    let folder = Folder::new();
    let path = volume(&folder, "v", &[]);
    let two = folder.str("two");
    fs::write(&two, "two").expect("a password file");
    let info = |password: &str, more: &[&str]| run([&["info", "--password-file", password, &path], more].concat());
    info(&two, &[]).fails(2, &["passphrase"]);
    let dear = ["--kdf", "argon2id", "--iterations", "4", "--kdf-memory", "64M", "--kdf-parallel", "1"];
    let add = ["keyslot", "add", &path, "--password-file", &folder.password, "--new-password-file", &two];
    run([&add[..], &dear].concat()).succeeds();
    info(&two, &["--memory", "32M"]).fails(7, &["memory", "may be right"]);
    info(&two, &[]).succeeds();

    let sound = fs::read(&path).expect("it is there");
    let mut damaged = sound.clone();
    for copy in [4100, 16_384 + 4100] {
        damaged[copy] ^= 1;
    }
    fs::write(&path, &damaged).expect("it is written");
    info(&folder.password, &[]).fails(4, &["checksum"]);
    assert!(fs::read(&path).expect("it is there") == damaged, "it is left as it is");
    // A version that nobody knows, in both copies.
    let mut unknown = sound;
    for copy in [0, 16_384] {
        unknown[copy + 7] = 9;
    }
    fs::write(&path, &unknown).expect("it is written");
    info(&folder.password, &[]).fails(5, &["version 9"]);
    assert!(fs::read(&path).expect("it is there") == unknown, "it is left as it is");
}

#[test]
fn the_name_luks_stands_for_both_versions() {
    let folder = Folder::new();
    for format in ["LUKS1", "LUKS2"] {
        let path = volume(&folder, format, &["--format", format]);
        for verb in ["info", "explain"] {
            let told = run([verb, "--json", "--format", "luks", "--password-file", &folder.password, &path]).succeeds();
            assert!(told.text().contains(format), "{told:?}");
        }
    }
}

#[test]
fn a_volume_key_is_given_to_a_new_volume_and_opens_it() {
    let folder = Folder::new();
    let (key, short) = (folder.str("key"), folder.str("short"));
    fs::write(&key, [0x5a; 64]).and_then(|()| fs::write(&short, [0x5a; 20])).expect("files with keys");
    let password = ["--password-file", folder.password.as_str()];
    for format in ["LUKS1", "LUKS2"] {
        let path = volume(&folder, format, &["--format", format, "--volume-key-file", &key]);
        run(["info", "--volume-key-file", &key, &path]).succeeds();
        run([&["info", "--volume-key-file", &key, &path][..], &password].concat())
            .fails(1, &["needs no other credential"]);
    }
    let create = ["create", "--quick", "--size", "20M", "--volume-key-file"];
    let no = folder.str("no");
    run([&create[..], &[&short, "--format", "LUKS2", &no], &password].concat()).fails(1, &["key"]);
    run([&create[..], &[&key, &no], &password].concat()).fails(1, &["VeraCrypt takes no volume key"]);
    assert!(!folder.path("no").exists());
}

#[test]
fn what_a_format_does_not_have_is_refused() {
    let folder = Folder::new();
    let no = folder.str("no");
    for (wish, what) in [
        (["--sector-size", "4096"], "sector size"),
        (["--key-size", "256"], "key size"),
        (["--iterations", "1000"], "iteration count"),
        (["--label", "x"], "label"),
        (["--header", "header"], "detached header"),
        (["--fresh-keyfile", "keys"], "new key file"),
    ] {
        let args = ["create", "--quick", "--size", "1M", "--password-file", &folder.password, &no];
        run([&args[..], &wish].concat()).fails(1, &[&format!("VeraCrypt takes no {what}")]);
    }
    assert!(!folder.path("no").exists());
}

#[test]
fn data_with_integrity_protection_are_written_and_read() {
    let folder = Folder::new();
    let plain: Vec<u8> = (0..1u32 << 18).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let file = folder.str("plain");
    fs::write(&file, &plain).expect("a file");
    for (name, cipher) in [
        ("hmac-sha256", "aes"),
        ("aes-gcm-random", "aes-gcm-random"),
        ("chacha20-poly1305", "chacha20-random"),
        ("aegis128-random", "aegis128-random"),
    ] {
        let path = volume(&folder, name, &["--format", "LUKS2", "--integrity", name]);
        let info = run(["info", "--json", "--password-file", &folder.password, &path]).succeeds().json();
        assert!(cipher.starts_with(info["cipher"].as_str().expect("a cipher")), "{info}");
        assert!(info["integrity"].is_string() || info["integrity"].is_object(), "{info}");
        let Some(nbdcopy) = tools::program("nbdcopy") else { return };
        let copy = format!("{} '{file}' \"$uri\"", nbdcopy.display());
        run(["serve", "--password-file", &folder.password, &path, "--run", &copy]).succeeds();
        let out = run(["cat", "--password-file", &folder.password, &path]).succeeds().out;
        assert!(out.starts_with(&plain), "{name}");
        let show = run(["header", "show", &path]).succeeds().text();
        assert!(show.contains("integrity"), "{show}");
    }
    let args = ["create", "--quick", "--size", "20M", "--format", "LUKS2", "--password-file", &folder.password];
    run([&args[..], &["--integrity", "crc-9", &folder.str("no")]].concat()).fails(1, &["crc-9", "hmac-sha256"]);
}
