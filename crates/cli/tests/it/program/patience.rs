//! Headers that demand too much work: it is announced, confirmed, refused without a terminal, and can be cancelled at once.

use std::fs;

use crate::common::*;
use claviger_crypto::hash::SHA256;
use serde_json::{Value, json};

/// Makes a volume that opens quickly, and then asks for as much as a header can.
type Hostile = fn(&Folder) -> String;

const HOSTILE: [(&str, Hostile); 5] = [
    ("LUKS1, keyslot", |folder| luks1(folder, 208 + 4)),
    ("LUKS1, digest", |folder| luks1(folder, 164)),
    ("LUKS2, PBKDF2", |folder| {
        luks2(folder, "pbkdf2", |header| header["keyslots"]["0"]["kdf"]["iterations"] = MOST.into())
    }),
    ("LUKS2, passes", |folder| {
        luks2(folder, "argon2id", |header| header["keyslots"]["0"]["kdf"]["time"] = MOST.into())
    }),
    ("LUKS2, digest", |folder| luks2(folder, "pbkdf2", |header| header["digests"]["0"]["iterations"] = MOST.into())),
];

const MOST: u32 = u32::MAX;

fn volume(folder: &Folder, format: &str, more: &[&str]) -> String {
    let path = folder.str("hostile");
    let _ = fs::remove_file(&path);
    // A hash that no processor has instructions for.
    let create = [
        "create",
        "--format",
        format,
        "--hash",
        "Whirlpool",
        "--quick",
        "--size",
        "20M",
        "--password-file",
        &folder.password,
        &path,
    ];
    run([&create, more].concat()).succeeds();
    path
}

/// With 2^32 - 1 at this byte (LUKS1 On-Disk Format Specification 1.2.3, section 2.1).
fn luks1(folder: &Folder, at: usize) -> String {
    let path = volume(folder, "LUKS1", &["--iterations", "1000"]);
    let mut image = fs::read(&path).expect("a volume");
    image[at..at + 4].copy_from_slice(&MOST.to_be_bytes());
    fs::write(&path, image).expect("written");
    path
}

/// With both copies of its metadata edited (LUKS2 On-Disk Format Specification 1.1.1, sections 2.1 and 3.1).
fn luks2(folder: &Folder, kdf: &str, edit: fn(&mut Value)) -> String {
    let memory: &[&str] = if kdf == "pbkdf2" { &["1000"] } else { &["4", "--kdf-memory", "64K"] };
    let path = volume(folder, "LUKS2", &[&["--kdf", kdf, "--iterations"], memory].concat());
    edit_metadata(&path, edit);
    path
}

pub fn edit_metadata(path: &str, edit: impl Fn(&mut Value)) {
    let mut image = fs::read(path).expect("a volume");
    let size = u64::from_be_bytes(image[8..16].try_into().expect("eight bytes")) as usize;
    for copy in image[..2 * size].chunks_mut(size) {
        let text = copy[4096..].split(|b| *b == 0).next().expect("text");
        let mut metadata = serde_json::from_slice(text).expect("JSON");
        edit(&mut metadata);
        let text = metadata.to_string();
        copy[4096..].fill(0);
        copy[4096..][..text.len()].copy_from_slice(text.as_bytes());
        copy[448..512].fill(0);
        let mut checksum = [0; 32];
        SHA256.digest(&[copy], &mut checksum);
        copy[448..480].copy_from_slice(&checksum);
    }
    fs::write(path, image).expect("written");
}

#[test]
fn without_a_terminal_it_is_refused_by_every_verb() {
    let folder = Folder::new();
    let password = ["--password-file", &folder.password];
    let (key_file, out, dir) = (folder.str("new"), folder.str("out"), folder.str("dir"));
    fs::create_dir(&dir).expect("a folder");
    fs::write(&key_file, "new").expect("a file");
    let verbs = [
        "info VOLUME",
        "cat VOLUME",
        "ls VOLUME",
        "tree VOLUME",
        "cp -r VOLUME :/ OUT",
        "verify VOLUME",
        "explain VOLUME",
        "serve VOLUME",
        "mount VOLUME DIR",
        "keyslot add --new-password-file NEW VOLUME",
        "keyslot remove --yes VOLUME",
        "change --new-password-file NEW VOLUME",
        "convert --new-password-file NEW VOLUME OUT",
        "reencrypt VOLUME",
    ];
    for (what, hostile) in HOSTILE {
        let volume = hostile(&folder);
        let before = fs::read(&volume).expect("a volume");
        for verb in verbs {
            if verb.starts_with("reencrypt") && what.starts_with("LUKS1") {
                continue;
            }
            let words = verb.split(' ').map(|word| match word {
                "VOLUME" => &volume,
                "OUT" => &out,
                "DIR" => &dir,
                "NEW" => &key_file,
                other => other,
            });
            let done = run(words.chain(password));
            // `explain` has it among its findings.
            let said = done.err.clone() + &done.text();
            let told = done.code == 1
                && ["would take about", "all keyslots", "5 min", "--allow-slow"].iter().all(|word| said.contains(word));
            assert!(told, "{what}, {verb}: {}\n{said}", done.code);
        }
        assert!(fs::read(&volume).expect("a volume") == before, "{what}");
    }
}

#[test]
fn on_a_terminal_it_is_asked_about_and_ctrl_c_ends_it_at_once() {
    let folder = Folder::new();
    for (what, hostile) in HOSTILE {
        let volume = hostile(&folder);
        let info = ["info", "--password-file", &folder.password, &volume];
        let asked = json!({"expect": "Start? [y/N] "});
        let Some((output, code, _)) = on_terminal(json!([asked, {"send": "no\n"}]), &info) else { return };
        assert!(code == 1 && output.contains("nothing was tried"), "{what}: {code} {output}");
        let (output, code, _) =
            on_terminal(json!([asked, {"send": "yes\n"}, {"works": 0.5}, {"send": "\u{3}"}]), &info)
                .expect("as before");
        assert!(code == 8 && output.matches("Start?").count() == 1, "{what}: {code} {output}");
        // An option answers.
        let allowed = [&info[..], &["--allow-slow"]].concat();
        let (output, code, _) = on_terminal(json!([{"works": 0.5}, {"send": "\u{3}"}]), &allowed).expect("as before");
        assert!(code == 8 && !output.contains("Start?"), "{what}: {code} {output}");
    }
}

#[test]
fn a_volume_key_opens_whatever_the_keyslots_ask_for() {
    let folder = Folder::new();
    let key = folder.str("key");
    fs::write(&key, [7; 64]).expect("a key");
    for (format, at) in [("LUKS1", 208 + 4), ("LUKS1", 164)] {
        let path = volume(&folder, format, &["--iterations", "1000", "--volume-key-file", &key]);
        let mut image = fs::read(&path).expect("a volume");
        image[at..at + 4].copy_from_slice(&MOST.to_be_bytes());
        fs::write(&path, image).expect("written");
        let info = run(["info", "--volume-key-file", &key, &path]);
        match at {
            164 => drop(info.fails(1, &["would take about", "--allow-slow"])),
            _ => drop(info.succeeds()),
        }
    }
}

/// A reencryption has a digest of its own, which is examined when the passphrase is known to be right.
#[test]
fn the_digest_of_a_reencryption_is_asked_about_too() {
    let folder = Folder::new();
    let path = volume(&folder, "LUKS2", &["--kdf", "pbkdf2", "--iterations", "1000"]);
    let password = ["--password-file", &folder.password, &path];
    run([&["reencrypt", "--yes", "--init-only"], &password[..]].concat()).succeeds();
    edit_metadata(&path, |header| {
        let digests = header["digests"].as_object_mut().expect("digests").values_mut();
        for digest in digests.filter(|digest| digest["segments"] == json!([])) {
            (digest["iterations"], digest["hash"]) = (MOST.into(), "whirlpool".into());
        }
    });
    let before = fs::read(&path).expect("a volume");
    for verb in [&["info"][..], &["cat"], &["reencrypt", "--resume"]] {
        run([verb, &password].concat()).fails(1, &["would take about", "--allow-slow"]);
    }
    assert!(fs::read(&path).expect("a volume") == before);
}
