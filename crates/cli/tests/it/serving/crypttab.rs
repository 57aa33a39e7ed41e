//! Lines of /etc/crypttab that systemd takes, attached by name.

use std::fs;
use std::path::PathBuf;

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::tools::Case;

/// A machine with a table of these lines.
struct Table {
    place: MountSpace,
    path: String,
}

impl Table {
    fn new(place: MountSpace, lines: &str) -> Self {
        let path = place.folder.str("crypttab");
        fs::write(&path, lines).expect("a table");
        Self { place, path }
    }

    fn attach(&self, name: &str) -> Done {
        self.place.run(["attach", "--crypttab", &self.path, name])
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.place.runtime().join("attached").join(name)
    }

    /// The plaintext of a line, which is taken down again.
    fn plaintext(&self, name: &str) -> Vec<u8> {
        self.attach(name).succeeds();
        let bytes = fs::read(self.folder(name).join("volume")).expect("a file");
        self.place.unmount(&self.folder(name).display().to_string()).succeeds();
        bytes
    }
}

#[test]
fn a_bitlocker_volume_is_opened_by_the_password_in_a_file() {
    let Some(case) = Case::unpack("bitlocker/crypttab-bitlk.tar.xz") else { return };
    let Some(place) = MountSpace::root() else { return };
    let (volume, key) = (case.path().join("v.img"), case.path().join("key"));
    let newline = place.folder.path("newline");
    fs::write(&newline, [fs::read(&key).expect("a key"), b"\n".into()].concat()).expect("a file");
    let within = place.folder.path("within");
    fs::write(&within, [b"1234", &fs::read(&key).expect("a key")[..], b"5678"].concat()).expect("a file");
    let (v, k, len) = (volume.display(), key.display(), fs::metadata(&key).expect("a key").len());
    let lines = format!(
        "named {v} {k} bitlk\nfound {v} {k} discard\nnewline {v} {} bitlk\n\
         within {v} {} bitlk,keyfile-offset=4,keyfile-size={len}\n",
        newline.display(),
        within.display()
    );
    let table = Table::new(place, &lines);
    let wanted = run(["cat", "--password-file", &k.to_string(), &v.to_string()]).succeeds().out;
    for name in ["named", "found", "newline", "within"] {
        assert!(table.plaintext(name) == wanted, "{name}");
    }
}

#[test]
fn a_veracrypt_volume_needs_no_other_word_for_its_kind() {
    let Some(place) = MountSpace::root() else { return };
    let (volume, inner) = (place.folder.str("v.hc"), place.folder.str("inner"));
    fs::write(&inner, "the hidden one\nmore\n").expect("a password");
    let password = place.folder.password.clone();
    let create = ["create", "--format", "VeraCrypt", "--quick", "--pim", "1", "--hash", "SHA-512", "--size"];
    run(create.iter().chain(&["8M", "--password-file", &password, &volume])).succeeds();
    let lines = format!(
        "short {volume} {password} veracrypt,veracrypt-pim=1\nlong {volume} {password} tcrypt-veracrypt,veracrypt-pim=1\n\
         hidden {volume} {inner} tcrypt-hidden,veracrypt,veracrypt-pim=1\n"
    );
    let table = Table::new(place, &lines);
    let wanted = run(["cat", "--veracrypt", "--pim", "1", "--password-file", &password, &volume]).succeeds().out;
    for name in ["short", "long"] {
        assert!(table.plaintext(name) == wanted, "{name}");
    }
    // The volume has no keyfile, so only the password was tried.
    table.attach("hidden").fails(2, &["v.hc"]);
    assert!(!table.folder("hidden").exists());
}

/// With `hash=`, systemd reads as many bytes of a key file as the key has, and hashes them (crypttab(5), `keyfile-size`).
#[test]
fn a_key_file_of_a_plain_volume_is_hashed_where_the_line_says_so() {
    let Some(place) = MountSpace::root() else { return };
    let (volume, key, password) = (place.folder.str("v"), place.folder.str("key"), place.folder.str("pw"));
    let bytes: Vec<u8> = (0..100).collect();
    fs::write(&volume, vec![7; 1 << 16]).expect("a volume");
    fs::write(&key, &bytes).expect("a key");
    // The tenth byte of it is a newline.
    fs::write(&password, [&bytes[4..4 + 32], b"\n"].concat()).expect("a password");
    let lines = format!(
        "hashed {volume} {key} plain,cipher=aes-xts-plain64,size=256,hash=sha256,keyfile-offset=4,keyfile-size=9\n\
         bare {volume} {key} plain,cipher=aes-xts-plain64,size=256,keyfile-offset=4\n\
         short {volume} {key} plain,cipher=aes-xts-plain64,size=256,hash=sha256,keyfile-offset=90\n"
    );
    let table = Table::new(place, &lines);
    let plain = ["cat", "--format", "plain", "--cipher", "aes-xts-plain64", "--key-size", "256"];
    let hashed = ["--hash", "sha256", "--password-file", &password, &volume];
    let hashed = run(plain.iter().chain(&hashed)).succeeds().out;
    let bare = run(plain.iter().chain(&["--keyfile", &key, "--keyfile-offset", "4", &volume])).succeeds().out;
    assert!(table.plaintext("hashed") == hashed && table.plaintext("bare") == bare && bare != hashed);
    table.attach("short").fails(1, &["should have 32 bytes", "has only 10"]);
}

#[test]
fn a_line_that_cannot_be_attached_leaves_nothing() {
    let Some(place) = MountSpace::root() else { return };
    let (volume, wrong) = (place.folder.luks2("v.luks"), place.folder.str("wrong"));
    fs::write(&wrong, "wrong").expect("a file");
    let hidden = place.folder.volume("v.tc", "1M", &[]);
    let lines = format!(
        "password {volume} {wrong} luks\nnone /no/device {wrong} luks\nelsewhere {volume} /key:UUID=1234 luks\n\
         tmp {volume} /dev/urandom tmp=ext4\nother {hidden} {} luks\nunnamed {hidden} {} discard\n",
        place.folder.password, place.folder.password
    );
    let table = Table::new(place, &lines);
    for (name, code, named) in [
        ("password", 2, "v.luks"),
        ("none", 6, "/no/device"),
        ("elsewhere", 5, "/key:UUID=1234"),
        ("tmp", 5, "tmp"),
        ("other", 3, "v.tc"),
        ("unnamed", 1, "no kind of volume"),
    ] {
        table.attach(name).fails(code, &[named]);
        assert!(!table.folder(name).exists(), "{name}");
    }
}

/// Options that open a volume are refused beside the name of a line, which has its own; also the one for a detached header.
#[test]
fn options_that_open_a_volume_are_refused_beside_a_name() {
    let Some(place) = MountSpace::root() else { return };
    let table = Table::new(place, "one /no/device none luks\n");
    for option in ["--header=/no/such/file", "--partition=1", "--truncated", "--folder-password-file=/no/such/file"] {
        let done = table.place.run(["attach", "--crypttab", &table.path, option, "one"]);
        done.fails(1, &["options that open a volume"]);
    }
}
