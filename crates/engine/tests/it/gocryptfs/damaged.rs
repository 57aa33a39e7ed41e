//! Folders that are damaged, or that somebody else has changed: nothing is passed over in silence, and the rest stays readable.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind as Kind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use claviger_engine::file_formats::gocryptfs::{self, ContentCipher, NameEncryption, NewFolder};
use claviger_engine::file_formats::{self, FileFormat, FolderSurvey, GOCRYPTFS, Stacked};
use claviger_engine::trees::{NewNode, Node, Tree, find};
use claviger_engine::{Credential, Error, ErrorKind, Unlock, Verdict};
use serde_json::{Value, json};

use crate::support::gocryptfs::{PASSPHRASE, Program, create, host, open, open_with, read, secret, seen};
use crate::support::noise;

const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };
const HEADER: usize = 18;

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn new_folder() -> NewFolder {
    NewFolder { log_n: 10, ..NewFolder::default() }
}

/// A folder with names in clear, and some files.
fn with_files(cipher: ContentCipher, files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &NewFolder { cipher, names: NameEncryption::None, ..new_folder() });
    let tree = open(folder.path());
    for (path, bytes) in files {
        let node = tree.create(tree.root(), name(path), &NEW).expect("created");
        tree.write_at(node, 0, bytes).expect("written");
    }
    folder
}

fn change(file: &Path, what: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).expect("read");
    what(&mut bytes);
    fs::write(file, bytes).expect("written");
}

/// Reads a file block by block: the numbers of those that cannot be read.
fn unreadable(tree: &Stacked, node: Node, plain: &[u8]) -> Vec<usize> {
    let bad = plain.chunks(4096).enumerate().filter(|(number, right)| {
        let mut out = vec![0xee; right.len()];
        match tree.read_at(node, *number as u64 * 4096, &mut out) {
            Ok(len) => {
                assert!(out[..len] == **right, "block {number} holds something else");
                false
            }
            Err(e) => {
                assert_eq!(e.kind(), Kind::InvalidData, "{e}");
                assert!(out.iter().all(|byte| *byte == 0), "nothing of block {number} is shown");
                let text = Error::from(e).to_string();
                assert!(text.contains(&format!("byte {}", number * 4096)), "{text}");
                true
            }
        }
    });
    bad.map(|(number, _)| number).collect()
}

#[test]
fn a_changed_block_is_an_error_and_the_others_stay_readable() {
    for cipher in [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha20Poly1305] {
        let overhead = if cipher == ContentCipher::XChaCha20Poly1305 { 40 } else { 32 };
        let stored = 4096 + overhead;
        let plain = noise(5 * 4096 + 100, 1);
        let other = noise(5 * 4096 + 100, 2);
        type Damage<'a> = &'a dyn Fn(&Path);
        let file = |folder: &Path| folder.join("file");
        let at = |block: usize| HEADER + block * stored;
        let damages: [(&str, Damage<'_>, &[usize]); 11] = [
            ("a nonce", &|folder| change(&file(folder), |bytes| bytes[at(1)] ^= 1), &[1]),
            ("in the middle", &|folder| change(&file(folder), |bytes| bytes[at(2) + 2000] ^= 0x80), &[2]),
            ("the end of a block", &|folder| change(&file(folder), |bytes| bytes[at(4) - 1] ^= 1), &[3]),
            ("the last block", &|folder| change(&file(folder), |bytes| *bytes.last_mut().expect("one") ^= 1), &[5]),
            (
                "two exchanged",
                &|folder| {
                    change(&file(folder), |bytes| {
                        let (front, back) = bytes.split_at_mut(at(3));
                        front[at(1)..][..stored].swap_with_slice(&mut back[..stored]);
                    });
                },
                &[1, 3],
            ),
            (
                "one of another file",
                &|folder| {
                    let theirs = fs::read(folder.join("other")).expect("read");
                    change(&file(folder), |bytes| bytes[at(2)..at(3)].copy_from_slice(&theirs[at(2)..at(3)]));
                },
                &[2],
            ),
            ("the ID", &|folder| change(&file(folder), |bytes| bytes[5] ^= 1), &[0, 1, 2, 3, 4, 5]),
            ("almost a hole", &|folder| change(&file(folder), |bytes| bytes[at(1)..at(2) - 1].fill(0)), &[1]),
            ("a short hole", &|folder| change(&file(folder), |bytes| bytes[at(5)..].fill(0)), &[5]),
            ("cut inside the last", &|folder| change(&file(folder), |bytes| bytes.truncate(at(5) + 90)), &[5]),
            ("cut inside a nonce", &|folder| change(&file(folder), |bytes| bytes.truncate(at(4) + 3)), &[4]),
        ];
        for (what, damage, expected) in damages {
            let folder = with_files(cipher, &[("file", plain.clone()), ("other", other.clone())]);
            damage(folder.path());
            let tree = open(folder.path());
            let node = find(&tree, name("file")).expect("found");
            let size = tree.attributes(node).expect("known").size as usize;
            assert_eq!(unreadable(&tree, node, &plain[..size]), expected, "{cipher:?}, {what}");
            let mut all = vec![0; size];
            assert!(tree.read_at(node, 0, &mut all).is_err() && all.iter().all(|byte| *byte == 0), "{what}");
            // A write within a block that cannot be read would make up the rest of it; a whole one heals it.
            let block = expected[0] as u64;
            let part = tree.write_at(node, block * 4096 + 1, b"x").expect_err("the block is damaged");
            assert_eq!(part.kind(), Kind::InvalidData, "{what}");
            if expected == [1] {
                tree.write_at(node, 4096, &plain[4096..8192]).expect("written");
                assert!(read(&tree, node) == plain, "{what}");
            }
            let intact = find(&tree, name("other")).expect("found");
            assert!(read(&tree, intact) == other);
        }
        let folder = with_files(cipher, &[("file", plain.clone())]);
        change(&file(folder.path()), |bytes| bytes[at(2)..at(3)].fill(0));
        let mut with_hole = plain;
        with_hole[2 * 4096..3 * 4096].fill(0);
        assert!(seen(&open(folder.path()))[name("/file")].1 == with_hole, "a block of zeros is a hole");
    }
}

#[test]
fn damaged_headers_are_errors() {
    let folder = with_files(ContentCipher::AesGcm, &[("file", noise(5000, 1))]);
    let file = folder.path().join("file");
    let whole = fs::read(&file).expect("read");
    let damages: [fn(&mut Vec<u8>); 3] = [|bytes| bytes[1] = 3, |bytes| bytes[0] = 1, |bytes| bytes[2..HEADER].fill(0)];
    for damage in damages {
        change(&file, damage);
        let tree = open(folder.path());
        let node = find(&tree, name("file")).expect("found");
        assert_eq!(tree.attributes(node).expect("it can still be seen").size, 5000);
        assert_eq!(tree.read_at(node, 0, &mut [0; 10]).expect_err("damaged").kind(), Kind::InvalidData);
        assert_eq!(tree.write_at(node, 0, &[0; 10]).expect_err("damaged").kind(), Kind::InvalidData);
        fs::write(&file, &whole).expect("written");
    }
}

#[test]
fn a_file_cut_in_its_header_is_an_error_and_one_without_bytes_is_empty() {
    let folder = with_files(ContentCipher::AesGcm, &[("file", noise(5000, 1))]);
    let file = folder.path().join("file");
    let whole = fs::read(&file).expect("read");
    for len in [0, 1, 5, HEADER - 1, HEADER] {
        fs::write(&file, &whole[..len]).expect("written");
        let tree = open(folder.path());
        let node = find(&tree, name("file")).expect("found");
        let (size, read) = (tree.attributes(node).expect("seen").size, tree.read_at(node, 0, &mut [0; 10]));
        match len {
            0 | HEADER => assert_eq!((size, read.expect("empty")), (0, 0)),
            _ => assert_eq!((size, read.expect_err("cut").kind()), (len as u64, Kind::InvalidData)),
        }
        assert_eq!(tree.write_at(node, 0, b"new").is_ok(), len == 0 || len == HEADER, "{len}");
    }
}

#[test]
fn a_symbolic_link_is_no_configuration_and_is_not_followed() {
    let folder = with_files(ContentCipher::AesGcm, &[("file", noise(10, 1))]);
    let (config, elsewhere) = (folder.path().join("gocryptfs.conf"), tempfile::tempdir().expect("a folder"));
    let moved = elsewhere.path().join("moved.conf");
    fs::copy(&config, &moved).and_then(|_| fs::remove_file(&config)).expect("moved");
    std::os::unix::fs::symlink(&moved, &config).expect("linked");
    let given = [Credential::Passphrase(secret(PASSPHRASE))];
    let opened = file_formats::open(host(folder.path()), Some("gocryptfs"), &Unlock::with(&given));
    let error = opened.err().expect("not followed");
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert!(error.hint.is_some_and(|hint| hint.contains("moved.conf")));
    let verdict = GOCRYPTFS.identify(&*host(folder.path())).expect("identified");
    assert!(matches!(&verdict, Verdict::Possible(why) if why[0].contains("symbolic link")), "{verdict:?}");
}

/// An encrypted folder with a file, a file with a long name, and a folder with a file; and where they are stored.
fn encrypted() -> (tempfile::TempDir, [PathBuf; 3]) {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &new_folder());
    let tree = open(folder.path());
    let root = tree.root();
    let stored = || -> Vec<OsString> {
        fs::read_dir(folder.path()).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect()
    };
    let mut known = stored();
    let mut new = || {
        let is_new = |name: &OsString| !known.contains(name) && !name.as_bytes().ends_with(b".name");
        let found = stored().into_iter().find(|name| is_new(name)).expect("a new one");
        known = stored();
        folder.path().join(found)
    };
    tree.create(root, name("file"), &NEW).expect("created");
    let file = new();
    tree.create(root, name(&"long".repeat(50)), &NEW).expect("created");
    let long = new();
    let inner = tree.make_folder(root, name("folder"), &NewNode::default()).expect("made");
    tree.create(inner, name("inner"), &NEW).expect("created");
    let paths = [file, long, new()];
    (folder, paths)
}

fn left_out(tree: &Stacked, folder: Node) -> Vec<(OsString, String)> {
    let listing = tree.list_all(folder).expect("listed");
    listing.left_out.into_iter().map(|left| (left.name, left.why.kind.to_string())).collect()
}

#[track_caller]
fn reported(left_out: &[(OsString, String)], name: &OsStr, word: &str) {
    let found = left_out.iter().find(|(stored, _)| stored == name).unwrap_or_else(|| panic!("{left_out:?}"));
    assert!(found.1.contains(word), "{found:?}");
}

/// The problems that a survey with the key finds.
fn survey(folder: &Path) -> Vec<String> {
    let format = file_formats::named("gocryptfs").expect("a row");
    let lower = host(folder);
    let tree = open_with(lower.clone(), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens");
    let survey = FolderSurvey::with_contents(format, &*lower, &tree, &mut |_| Ok(())).expect("surveyed");
    survey.problems.into_iter().map(|problem| problem.facts.problem.expect("a problem")).collect()
}

#[test]
fn names_that_cannot_be_shown_are_reported() {
    let (folder, [file, long, inner]) = encrypted();
    let tree = open(folder.path());
    assert_eq!((left_out(&tree, tree.root()), survey(folder.path())), (vec![], vec![]));
    let last = |path: &Path| path.file_name().expect("a name").to_owned();
    let whole = PathBuf::from(long.as_os_str().to_str().expect("text").to_owned() + ".name");

    // A name of another folder, one that nobody encrypted, and one that was shortened.
    let inside = fs::read_dir(&inner).expect("listed").map(|e| e.expect("an entry").file_name());
    let inside: Vec<_> = inside.filter(|name| name != "gocryptfs.diriv").collect();
    fs::write(folder.path().join(&inside[0]), "").expect("written");
    fs::write(folder.path().join("in clear.txt"), "").expect("written");
    fs::write(folder.path().join(&last(&file).to_str().expect("text")[1..]), "").expect("written");
    let found = left_out(&tree, tree.root());
    reported(&found, &inside[0], "does not decrypt");
    reported(&found, name("in clear.txt"), "not encrypted");
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(tree.list(tree.root()).expect("listed").len(), 3);
    assert_eq!(tree.warnings(), ["3 names do not decrypt with this key and are not shown."]);
    tree.show_stored_names();
    let clear = tree.lookup(tree.root(), name("in clear.txt")).expect("shown as stored");
    assert_eq!(tree.list(tree.root()).expect("listed").len(), 6);
    tree.forget(clear, 1);
    for stray in [&inside[0], &OsString::from("in clear.txt"), &last(&file).to_str().expect("text")[1..].into()] {
        fs::remove_file(folder.path().join(stray)).expect("removed");
    }

    // The file with the whole name: another's, an empty one, none; and then nothing but it.
    let tree = open(folder.path());
    let right = fs::read(&whole).expect("read");
    for (contents, word) in [
        (Some(&b"another"[..]), "damaged"),
        (Some(b""), "damaged"),
        (Some(&[b'A'; 5000]), "damaged"),
        (None, "missing"),
    ] {
        fs::remove_file(&whole).expect("removed");
        if let Some(contents) = contents {
            fs::write(&whole, contents).expect("written");
        }
        let found = left_out(&tree, tree.root());
        reported(&found, &last(&long), word);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(survey(folder.path()).len(), 1);
        fs::write(&whole, &right).expect("written");
    }
    fs::rename(&long, folder.path().join("gone")).expect("renamed");
    reported(&left_out(&tree, tree.root()), &last(&whole), "gone");
    assert_eq!(survey(folder.path()).len(), 2);
    fs::rename(folder.path().join("gone"), &long).expect("renamed");
    assert!(left_out(&tree, tree.root()).is_empty());
}

#[test]
fn a_folder_without_its_iv_is_an_error_and_its_files_can_be_rescued() {
    let (folder, [_, _, inner]) = encrypted();
    let iv = inner.join("gocryptfs.diriv");
    let right = fs::read(&iv).expect("read");
    for contents in [None, Some(&b"short"[..]), Some(&[0; 16]), Some(&[1; 17]), Some(b"")] {
        fs::remove_file(&iv).expect("removed");
        if let Some(contents) = contents {
            fs::write(&iv, contents).expect("written");
        }
        let tree = open(folder.path());
        let node = find(&tree, name("folder")).expect("found");
        let error = tree.list(node).expect_err("its names are lost");
        assert_eq!(error.kind(), Kind::InvalidData);
        assert!(Error::from(error).to_string().contains("gocryptfs.diriv"));
        assert_eq!(tree.lookup(node, name("inner")).expect_err("unknown").kind(), Kind::InvalidData);
        assert_eq!(tree.create(node, name("new"), &NEW).expect_err("impossible").kind(), Kind::InvalidData);
        let found = left_out(&tree, node);
        reported(&found, name(""), "gocryptfs.diriv");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(!survey(folder.path()).is_empty());
        tree.show_stored_names();
        let entries = tree.list(node).expect("as stored");
        assert_eq!(entries.len(), 1);
        let file = tree.take(node, &entries[0]).expect("taken");
        assert!(read(&tree, file).is_empty());
        fs::write(&iv, &right).expect("written");
    }
    assert_eq!(seen(&open(folder.path())).len(), 4);
}

#[test]
fn another_iv_leaves_no_name_and_another_key_neither() {
    let (folder, [_, _, inner]) = encrypted();
    fs::remove_file(inner.join("gocryptfs.diriv")).expect("removed");
    fs::write(inner.join("gocryptfs.diriv"), [7; 16]).expect("written");
    let tree = open(folder.path());
    let node = find(&tree, name("folder")).expect("found");
    assert_eq!(left_out(&tree, node).len(), 1);
    assert!(tree.list(node).expect("listed").is_empty());
}

#[test]
fn a_survey_finds_damaged_contents_links_and_leftovers() {
    let (folder, [file, _, inner]) = encrypted();
    let tree = open(folder.path());
    let node = find(&tree, name("file")).expect("found");
    tree.write_at(node, 0, &noise(9000, 1)).expect("written");
    assert_eq!(survey(folder.path()), [""; 0]);
    change(&file, |bytes| bytes[100] ^= 1);
    let problems = survey(folder.path());
    assert!(problems.len() == 1 && problems[0].contains("verification"), "{problems:?}");
    change(&file, |bytes| bytes.truncate(HEADER + 10));
    let problems = survey(folder.path());
    assert!(problems.len() == 1 && problems[0].contains("cut short"), "{problems:?}");
    change(&file, |bytes| bytes.truncate(5));
    let problems = survey(folder.path());
    assert!(problems.len() == 1 && problems[0].contains("in its header"), "{problems:?}");
    change(&file, Vec::clear);
    std::os::unix::fs::symlink("not encrypted", folder.path().join("x")).expect("linked");
    fs::create_dir(folder.path().join("gocryptfs.unfinished.0123")).expect("made");
    fs::write(inner.join("gocryptfs.diriv.rmdir.1"), [1; 16]).expect("written");
    let problems = survey(folder.path());
    for word in ["target", "left over from making", "left over from a folder"] {
        assert!(problems.iter().any(|problem| problem.contains(word)), "{word}: {problems:?}");
    }
    let format = file_formats::named("gocryptfs").expect("a row");
    let without_key = FolderSurvey::of(format, &*host(folder.path()), None, &mut |_| Ok(())).expect("surveyed");
    assert_eq!((without_key.files, without_key.problems.len()), (4, 1), "{:?}", without_key.problems);
}

/// Opens a folder whose configuration was changed.
fn with_config(what: impl FnOnce(&mut Value)) -> Error {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &new_folder());
    let path = folder.path().join("gocryptfs.conf");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    what(&mut config);
    fs::remove_file(&path).expect("removed");
    fs::write(&path, config.to_string()).expect("written");
    let given = [Credential::Passphrase(secret(PASSPHRASE))];
    let may_take = |time: Duration| match time {
        time if time < Duration::from_secs(60) => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled)),
    };
    let unlock = Unlock { may_take: Some(&may_take), memory: Some(1 << 30), ..Unlock::with(&given) };
    let opened = file_formats::open(host(folder.path()), Some("gocryptfs"), &unlock);
    opened.err().expect("it does not open")
}

#[test]
fn hostile_configurations_are_refused_by_name_and_cost_nothing() {
    use ErrorKind::{Cancelled, Malformed, TooLittleMemory, Unsupported, WrongCredential};
    let flag = |with: &'static str, without: &'static str| {
        move |config: &mut Value| {
            let flags = config["FeatureFlags"].as_array_mut().expect("flags");
            flags.retain(|flag| flag != without);
            if !with.is_empty() {
                flags.push(json!(with));
            }
        }
    };
    let unsupported = |error: Error, word: &str| {
        assert!(matches!(error.kind, Unsupported { .. }) && error.to_string().contains(word), "{error}");
    };
    unsupported(with_config(flag("FutureFeature", "")), "FutureFeature");
    unsupported(with_config(flag("", "GCMIV128")), "GCMIV128");
    unsupported(with_config(flag("", "EMENames")), "EMENames");
    unsupported(with_config(|config| config["Version"] = json!(1)), "version 1");
    unsupported(with_config(|config| config["Version"] = json!(3)), "version 3");

    let malformed = |error: Error| assert!(matches!(error.kind, Malformed { .. }), "{error}");
    malformed(with_config(flag("PlaintextNames", "")));
    malformed(with_config(flag("XChaCha20Poly1305", "")));
    malformed(with_config(flag("LongNameMax", "")));
    malformed(with_config(|config| config["LongNameMax"] = json!(99)));
    malformed(with_config(|config| *config = json!([])));
    malformed(with_config(|config| config["EncryptedKey"] = json!("not Base64!")));
    malformed(with_config(|config| config["EncryptedKey"] = json!("AAAA")));
    malformed(with_config(|config| config["FeatureFlags"] = json!(7)));
    malformed(with_config(|config| drop(config.as_object_mut().expect("an object").remove("ScryptObject"))));
    let scrypt = |field: &'static str, value: Value| move |config: &mut Value| config["ScryptObject"][field] = value;
    for (field, value) in [
        ("N", json!(512)),
        ("N", json!(1025)),
        ("N", json!(-1)),
        ("R", json!(7)),
        ("P", json!(0)),
        ("KeyLen", json!(16)),
        ("KeyLen", json!(64)),
        ("Salt", json!("AAAA")),
    ] {
        malformed(with_config(scrypt(field, value)));
    }
    let memory = |error: Error| assert!(matches!(error.kind, TooLittleMemory { .. }), "{error}");
    memory(with_config(scrypt("N", json!(1u64 << 62))));
    memory(with_config(scrypt("N", json!(1u64 << 40))));
    memory(with_config(scrypt("R", json!(1 << 21))));
    let asked = with_config(scrypt("P", json!(1 << 17)));
    assert!(matches!(asked.kind, Cancelled), "{asked}");
    let other_salt = with_config(scrypt("Salt", json!("A".repeat(43) + "=")));
    assert!(matches!(other_salt.kind, WrongCredential(_)), "{other_salt}");

    let folder = tempfile::tempdir().expect("a folder");
    for contents in [&b""[..], b"{", b"\xff", &[b' '; 100_000]] {
        fs::write(folder.path().join("gocryptfs.conf"), contents).expect("written");
        let given = [Credential::Passphrase(secret(PASSPHRASE))];
        let error = file_formats::open(host(folder.path()), Some("gocryptfs"), &Unlock::with(&given)).err();
        malformed(error.expect("it does not open"));
    }
    fs::remove_file(folder.path().join("gocryptfs.conf")).expect("removed");
    let given = [Credential::Passphrase(secret(PASSPHRASE))];
    let error = file_formats::open(host(folder.path()), Some("gocryptfs"), &Unlock::with(&given)).err();
    assert!(matches!(error.expect("there is none").kind, ErrorKind::NotThisFormat(_)));
}

#[test]
fn the_master_key_opens_a_folder_that_a_fido2_token_opens() {
    let program = Program::find();
    let folder = with_files(ContentCipher::AesGcm, &[("file", noise(9000, 1))]);
    let Some(key) = program.as_ref().and_then(|program| program.master_key(folder.path())) else { return };
    let path = folder.path().join("gocryptfs.conf");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    config["FeatureFlags"].as_array_mut().expect("flags").push(json!("FIDO2"));
    config["FIDO2"] = json!({"CredentialID": "AAAA", "HMACSalt": "AAAA"});
    fs::remove_file(&path).and_then(|()| fs::write(&path, config.to_string())).expect("written");
    let given = Credential::Passphrase(secret("another"));
    let error = open_with(host(folder.path()), given).err().expect("it is not the key's secret");
    let hint = error.hint.clone().unwrap_or_default();
    let names_key = matches!(&error.kind, ErrorKind::WrongCredential(what) if what.contains("FIDO2 key"));
    assert!(names_key && hint.contains("only the master key opens the folder"), "{error} {hint}");
    let key = || Credential::VolumeKey(secret(&key));
    let before = seen(&open_with(host(folder.path()), key()).expect("it opens"));
    // With a password, the token no longer works.
    let with = [key()];
    gocryptfs::change_passphrase(&*host(folder.path()), &secret(PASSPHRASE), None, &Unlock::with(&with))
        .expect("changed");
    assert!(seen(&open(folder.path())) == before);
    program.expect("found above").check(folder.path());
}

#[test]
fn what_we_call_damaged_gocryptfs_does_too() {
    let Some(program) = Program::find() else { return };
    let folder = with_files(ContentCipher::AesGcm, &[("file", noise(9000, 1))]);
    program.check(folder.path());
    change(&folder.path().join("file"), |bytes| bytes[5000] ^= 1);
    let checked = program.command().arg("-fsck").arg(folder.path()).output().expect("it runs");
    assert!(!checked.status.success());
}
