//! Folders that gocryptfs made and changed, and those that we did: each reads what the other wrote.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind as Kind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use claviger_engine::file_formats::{self, FILE_FORMATS, FileFormat, GOCRYPTFS, gocryptfs};
use claviger_engine::trees::{HeldNode, NewNode, Node, NodeKind, Renaming, Setting, Tree, Use, find};
use claviger_engine::{Credential, ErrorKind, Unlock, Verdict};
use claviger_testkit::mounts::bounded;
use claviger_testkit::random::Random;
use claviger_testkit::tools;

use crate::support::gocryptfs::{
    PASSPHRASE, Program, Variant, create, host, open, open_with, read, secret, seen, seen_by_host, variants,
};
use crate::support::noise;

const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };
const FOLDER: NewNode = NewNode { mode: Some(0o755), owner: None };

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

/// Names of all lengths at which something changes.
fn names() -> Vec<String> {
    let longs = [60, 80, 100, 175, 176, 200, 239, 240, 255].map(|len| "n".repeat(len));
    ["a", "fifteen letters", "sixteen letters.", "\u{e4}\u{f6}\u{fc}", " .x"]
        .map(str::to_owned)
        .into_iter()
        .chain(longs)
        .collect()
}

/// Sizes around those of blocks.
const SIZES: [usize; 9] = [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 300_000];

/// Fills a folder through the system.
pub fn fill_host(folder: &Path) {
    let at = |path: &str| folder.join(path);
    for size in SIZES {
        fs::write(at(&format!("size {size}")), noise(size, size as u64)).expect("written");
    }
    for (i, name) in names().iter().enumerate() {
        fs::write(at(name), noise(100 + i, 1)).expect("written");
    }
    let hole = fs::File::create(at("hole")).expect("a file");
    hole.write_all_at(b"begin", 0).and_then(|()| hole.write_all_at(b"end", 50_000)).expect("written");
    hole.set_len(90_001).expect("extended");
    fs::write(at("cut"), noise(20_000, 3)).expect("written");
    fs::File::options().write(true).open(at("cut")).and_then(|file| file.set_len(9_999)).expect("cut");
    let long = "folder ".repeat(30);
    fs::create_dir_all(at("folder/inner")).and_then(|()| fs::create_dir(at(&long))).expect("made");
    fs::write(at("folder/inner/deep"), "deep").expect("written");
    fs::write(at(&format!("{long}/{}", "in".repeat(100))), "long in long").expect("written");
    symlink("../target/\u{e4}", at("folder/link"))
        .and_then(|()| symlink("t".repeat(600), at(&"l".repeat(200))))
        .expect("linked");
    fs::hard_link(at("size 1"), at(&"second".repeat(40))).expect("linked");
    fs::rename(at("a"), at(&"renamed".repeat(30))).expect("renamed");
    fs::rename(at(&"n".repeat(255)), at("short again")).expect("renamed");
    fs::rename(at("folder/inner"), at("folder/renamed")).expect("renamed");
    fs::create_dir(at("gone")).and_then(|()| fs::remove_dir(at("gone"))).expect("made and removed");
    fs::remove_file(at(&"n".repeat(240))).expect("removed");
}

/// Does the same through a tree.
fn fill_tree(tree: &(dyn Tree + 'static)) {
    let root = tree.root();
    let forget = |node: Node| tree.forget(node, 1);
    let write = |folder: Node, path: &str, bytes: &[u8]| {
        let node = tree.create_open(folder, name(path), &NEW, Use { read: true, write: true }).expect("created");
        tree.write_at(node, 0, bytes).and_then(|()| tree.release(node)).expect("written");
        node
    };
    for size in SIZES {
        forget(write(root, &format!("size {size}"), &noise(size, size as u64)));
    }
    for (i, name) in names().iter().enumerate() {
        forget(write(root, name, &noise(100 + i, 1)));
    }
    let hole = write(root, "hole", b"begin");
    tree.write_at(hole, 50_000, b"end").and_then(|()| tree.set_len(hole, 90_001)).expect("extended");
    forget(hole);
    let cut = write(root, "cut", &noise(20_000, 3));
    tree.set_len(cut, 9_999).expect("cut");
    forget(cut);
    let long = "folder ".repeat(30);
    let folder = tree.make_folder(root, name("folder"), &FOLDER).expect("made");
    let inner = tree.make_folder(folder, name("inner"), &FOLDER).expect("made");
    let other = tree.make_folder(root, name(&long), &FOLDER).expect("made");
    forget(write(inner, "deep", b"deep"));
    forget(write(other, &"in".repeat(100), b"long in long"));
    tree.make_link(folder, name("link"), name("../target/\u{e4}"), &NEW).map(forget).expect("linked");
    tree.make_link(root, name(&"l".repeat(200)), name(&"t".repeat(600)), &NEW).map(forget).expect("linked");
    let one = tree.lookup(root, name("size 1")).expect("found");
    tree.add_name(one, root, name(&"second".repeat(40))).map(forget).expect("linked");
    let rename = |from: Node, old: &str, to: Node, new: &str| {
        tree.rename(from, name(old), to, name(new), Renaming::Replace).expect("renamed");
    };
    rename(root, "a", root, &"renamed".repeat(30));
    rename(root, &"n".repeat(255), root, "short again");
    rename(folder, "inner", folder, "renamed");
    tree.make_folder(root, name("gone"), &FOLDER).map(forget).expect("made");
    tree.remove(root, name("gone")).expect("removed");
    tree.remove(root, name(&"n".repeat(240))).expect("removed");
    [folder, inner, other, one].into_iter().for_each(forget);
    tree.finish().expect("durable");
}

#[test]
fn what_gocryptfs_writes_we_read() {
    let Some(program) = Program::find() else { return };
    for variant in variants() {
        let folder = tempfile::tempdir().expect("a folder");
        match variant.options {
            Some(options) => program.init(folder.path(), options),
            None => create(folder.path(), &variant.new),
        }
        let mut expected = None;
        let fill = |mounted: &Path| {
            fill_host(mounted);
            expected = Some(seen_by_host(mounted));
        };
        let Some(()) = program.mounted(folder.path(), fill) else { return };
        let tree = open(folder.path());
        assert!(seen(&tree) == expected.expect("it was filled"), "{}", variant.name);
        assert!(tree.warnings().is_empty() && tree.proven(), "{:?}", tree.warnings());
    }
}

#[test]
fn what_we_write_gocryptfs_reads() {
    let program = Program::find();
    for variant in variants() {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), &variant.new);
        let tree = open(folder.path());
        fill_tree(&tree);
        let plain = tempfile::tempdir().expect("a folder");
        fill_host(plain.path());
        let expected = seen_by_host(plain.path());
        assert!(seen(&tree) == expected, "{}", variant.name);
        drop(tree);
        assert!(seen(&open(folder.path())) == expected, "{}", variant.name);
        let Some(program) = &program else { continue };
        program.check(folder.path());
        let read = |mounted: &Path| assert!(seen_by_host(mounted) == expected, "{}", variant.name);
        let _ = program.mounted(folder.path(), read);
    }
}

#[test]
fn both_change_a_folder_in_turns() {
    let Some(program) = Program::find() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    program.init(folder.path(), &[]);
    let long = "long ".repeat(40);
    let theirs = |mounted: &Path| {
        fs::create_dir(mounted.join("folder")).expect("made");
        fs::write(mounted.join(&long), noise(10_000, 1)).expect("written");
    };
    let Some(()) = program.mounted(folder.path(), theirs) else { return };
    let tree = open(folder.path());
    let file = find(&tree, name(&long)).expect("found");
    tree.write_at(file, 4000, b"ours").and_then(|()| tree.append(file, b"the end")).expect("written");
    let inside = find(&tree, name("folder")).expect("found");
    tree.rename(tree.root(), name(&long), inside, name(&long), Renaming::Replace).expect("renamed");
    [file, inside].iter().for_each(|node| tree.forget(*node, 1));
    tree.finish().expect("durable");
    drop(tree);
    program.check(folder.path());
    let mut expected = noise(10_000, 1);
    expected[4000..4004].copy_from_slice(b"ours");
    expected.extend(b"the end");
    let theirs = |mounted: &Path| {
        let path = mounted.join("folder").join(&long);
        assert!(fs::read(&path).expect("read") == expected);
        fs::File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"theirs")).expect("written");
        fs::rename(&path, mounted.join("here")).and_then(|()| fs::remove_dir(mounted.join("folder"))).expect("moved");
    };
    let Some(()) = program.mounted(folder.path(), theirs) else { return };
    let tree = open(folder.path());
    let file = find(&tree, name("here")).expect("found");
    assert!(read(&tree, file) == [&expected[..], b"theirs"].concat());
    assert_eq!(seen(&tree).len(), 1);
}

#[test]
fn attributes_are_encrypted_as_gocryptfs_does() {
    let program = Program::find();
    for variant in variants() {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), &variant.new);
        let tree = open(folder.path());
        let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
        match tree.set_extended(file, name("user.ours"), b"our value", Setting::Any) {
            Err(e) if e.kind() == Kind::Unsupported => {
                tools::skip::<()>("no extended attributes here");
                return;
            }
            set => set.expect("set"),
        }
        tree.set_extended(file, name("user.empty"), b"", Setting::Any).expect("set");
        let below = host(folder.path());
        let stored = below.list(below.root()).expect("listed");
        let stored = stored.iter().find(|entry| !entry.name.as_bytes().starts_with(b"gocryptfs.")).expect("the file");
        let stored = below.lookup(below.root(), &stored.name).expect("found");
        for attribute in below.list_extended(stored).expect("listed") {
            assert!(attribute.as_bytes().starts_with(b"user.gocryptfs."), "{}", attribute.display());
            let value = below.extended(stored, &attribute).expect("read").expect("there");
            assert!(!value.windows(3).any(|part| part == b"our"));
        }
        let theirs = |mounted: &Path| {
            let path = mounted.join("file");
            let mut value = [0; 100];
            let len = rustix::fs::getxattr(&path, "user.ours", &mut value).expect("read");
            assert_eq!(&value[..len], b"our value", "{}", variant.name);
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "user.theirs", b"their value", flags).expect("set");
        };
        let both = program.as_ref().and_then(|program| program.mounted(folder.path(), theirs));
        let mut listed = tree.list_extended(file).expect("listed");
        listed.sort();
        let value = |of: &str| tree.extended(file, name(of)).expect("read");
        assert_eq!(value("user.empty").as_deref(), Some(&b""[..]));
        if both.is_some() {
            assert_eq!(listed, ["user.empty", "user.ours", "user.theirs"], "{}", variant.name);
            assert_eq!(value("user.theirs").as_deref(), Some(&b"their value"[..]), "{}", variant.name);
        }
        tree.remove_extended(file, name("user.ours")).expect("removed");
        assert_eq!(value("user.ours"), None);
    }
}

/// A length near a border of a block, or any.
fn length(random: &mut Random) -> usize {
    match random.below(3) {
        0 => random.choose(&[0usize, 4096, 8192, 12288]).saturating_add_signed(random.below(3) as isize - 1),
        1 => random.below(600),
        _ => random.below(200_000),
    }
}

#[test]
fn whatever_is_done_to_files_a_model_agrees() {
    let program = Program::find();
    for (seed, variant) in variants().iter().enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), &variant.new);
        let mut random = Random::new(seed as u64);
        let mut tree = open(folder.path());
        let paths = ["short".to_owned(), "long ".repeat(45), "x".repeat(255)];
        let mut models: [Option<Vec<u8>>; 3] = [const { None }; 3];
        for step in 0..400 {
            let which = random.below(paths.len());
            let (path, root) = (name(&paths[which]), tree.root());
            let Some(model) = &mut models[which] else {
                tree.create(root, path, &NEW).map(|node| tree.forget(node, 1)).expect("created");
                models[which] = Some(Vec::new());
                continue;
            };
            let node = tree.lookup(root, path).expect("found");
            let (at, len) = (length(&mut random), length(&mut random));
            match random.below(12) {
                0..=3 => {
                    let data = random.bytes(len);
                    tree.write_at(node, at as u64, &data).expect("written");
                    if len > 0 {
                        model.resize(model.len().max(at + len), 0);
                        model[at..at + len].copy_from_slice(&data);
                    }
                }
                4 => {
                    let data = random.bytes(len);
                    tree.append(node, &data).expect("written");
                    model.extend(data);
                }
                5 | 6 => {
                    tree.set_len(node, len as u64).expect("resized");
                    model.resize(len, 0);
                }
                7..=9 => {
                    let mut out = vec![0xee; len];
                    let read = tree.read_at(node, at as u64, &mut out).expect("read");
                    let there = model.get(at..).unwrap_or_default();
                    assert!(out[..read] == there[..there.len().min(len)], "{}, step {step}", variant.name);
                    assert_eq!(tree.attributes(node).expect("known").size, model.len() as u64);
                }
                10 => {
                    let to = random.below(paths.len());
                    tree.rename(root, path, root, name(&paths[to]), Renaming::Replace).expect("renamed");
                    let moved = models[which].take();
                    models[to] = moved;
                }
                _ if random.below(3) == 0 => {
                    tree.remove(root, path).expect("removed");
                    models[which] = None;
                }
                _ => tree.sync(node, false).expect("durable"),
            }
            tree.forget(node, 1);
            if random.below(50) == 0 {
                tree = open(folder.path());
            }
        }
        drop(tree);
        let held: Vec<_> =
            paths.iter().zip(&models).filter_map(|(path, model)| Some((path, model.as_ref()?))).collect();
        let all = seen(&open(folder.path()));
        assert_eq!(all.len(), held.len(), "{}", variant.name);
        for (path, model) in &held {
            assert!(all[name(&format!("/{path}"))] == (NodeKind::File, model.to_vec()), "{}, {path}", variant.name);
        }
        let Some(program) = &program else { continue };
        program.check(folder.path());
        let read = |mounted: &Path| assert!(seen_by_host(mounted) == all, "{}", variant.name);
        let _ = program.mounted(folder.path(), read);
    }
}

#[test]
fn large_writes_are_shared_over_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &variants()[0].new);
    let pool = claviger_engine::Pool::for_this_machine(std::time::Duration::ZERO);
    let tree = open(folder.path()).with_pool(std::sync::Arc::new(pool));
    let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
    let bytes = noise((5 << 20) + 77, 1);
    tree.write_at(file, 0, &bytes).expect("written");
    tree.write_at(file, 100, &bytes[..3 << 20]).expect("written");
    let mut expected = bytes.clone();
    expected[100..][..3 << 20].copy_from_slice(&bytes[..3 << 20]);
    assert!(read(&tree, file) == expected);
    assert!(seen(&open(folder.path()))[name("/file")].1 == expected);
}

#[test]
fn holes_take_no_space_and_read_as_zeros() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &variants()[0].new);
    let tree = open(folder.path());
    let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
    tree.write_at(file, 0, b"begin").and_then(|()| tree.write_at(file, 1 << 40, b"end")).expect("written");
    let mut part = [0xee; 10_000];
    assert_eq!(tree.read_at(file, 1 << 39, &mut part).expect("read"), part.len());
    assert!(part.iter().all(|byte| *byte == 0));
    let of = tree.attributes(file).expect("known");
    assert_eq!(of.size, (1 << 40) + 3);
    assert!(of.stored.is_none_or(|stored| stored < 1 << 20), "{:?}", of.stored);
    tree.set_len(file, 3).expect("cut");
    assert_eq!(read(&tree, file), b"beg");
    let error = tree.write_at(file, u64::MAX - 10, b"x").expect_err("too large");
    assert_eq!(error.kind(), Kind::FileTooLarge);
    assert_eq!(read(&tree, file), b"beg");
}

#[test]
fn an_empty_file_has_no_header() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &variants()[3].new);
    let tree = open(folder.path());
    let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
    let stored = || fs::metadata(folder.path().join("file")).expect("known").len();
    tree.set_len(file, 0)
        .and_then(|()| tree.write_at(file, 5, b""))
        .and_then(|()| tree.append(file, b""))
        .expect("done");
    assert_eq!((stored(), tree.attributes(file).expect("known").size), (0, 0));
    tree.write_at(file, 0, b"x").expect("written");
    assert_eq!(stored(), 18 + 16 + 1 + 16);
    tree.set_len(file, 0).expect("emptied");
    assert_eq!((stored(), tree.attributes(file).expect("known").size), (0, 0));
    tree.set_len(file, 2).expect("extended");
    assert_eq!(read(&tree, file), [0, 0]);
}

#[test]
fn the_master_key_opens_a_folder_and_a_wrong_one_does_not() {
    let Some(program) = Program::find() else { return };
    for options in [&[][..], &["-plaintextnames"], &["-aessiv"]] {
        let folder = tempfile::tempdir().expect("a folder");
        program.init(folder.path(), options);
        let Some(digits) = program.master_key(folder.path()) else { return };
        // As gocryptfs prints it when it makes a folder.
        let groups: Vec<_> = digits.as_bytes().chunks(8).map(|group| str::from_utf8(group).expect("text")).collect();
        let key = format!("{}-\n    {}\n", groups[..4].join("-"), groups[4..].join("-"));
        let by_key = |text: &str| open_with(host(folder.path()), Credential::VolumeKey(secret(text)));
        let empty = by_key(&key).expect("it opens");
        assert!(!empty.proven() && empty.warnings().len() == 1, "{:?}", empty.warnings());
        let tree = open(folder.path());
        let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
        tree.write_at(file, 0, b"contents").expect("written");
        drop(tree);
        let tree = by_key(&key).expect("it opens");
        assert!(tree.proven());
        assert_eq!(seen(&tree)[name("/file")].1, b"contents");
        let byte = |two: &[u8]| u8::from_str_radix(str::from_utf8(two).expect("text"), 16).expect("hex");
        let raw: Vec<u8> = digits.as_bytes().chunks(2).map(byte).collect();
        assert!(open_with(host(folder.path()), Credential::VolumeKey(claviger_engine::Secret::from_vec(raw))).is_ok());
        let other = if key.starts_with('0') { "1" } else { "0" }.to_owned() + &key[1..];
        for wrong in [&other, "0123", &"0".repeat(63), &"x".repeat(64)] {
            let error = by_key(wrong).err().expect("it does not open");
            assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
        }
    }
}

#[test]
fn a_folder_whose_configuration_is_lost_opens_with_the_master_key_and_gets_another() {
    let Some(program) = Program::find() else { return };
    for Variant { name: variant, new, .. } in variants() {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), &new);
        let Some(digits) = program.master_key(folder.path()) else { return };
        let credential = || [Credential::VolumeKey(secret(&digits))];
        let by_key = || file_formats::open(host(folder.path()), Some("gocryptfs"), &Unlock::with(&credential()));
        let change = || {
            let (lower, with) = (host(folder.path()), credential());
            GOCRYPTFS.change_passphrase(&*lower, &secret("a new one"), &Unlock::with(&with))
        };
        let config = folder.path().join(gocryptfs::CONFIG);
        let lost = fs::read(&config).expect("its configuration");
        fs::remove_file(&config).expect("removed");
        // Nothing shows the properties of an empty folder.
        for refused in [by_key().err(), change().err()] {
            let error = refused.expect("nothing opens");
            assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{variant}: {error}");
        }
        fs::write(&config, &lost).expect("back");
        let tree = open(folder.path());
        fill_tree(&tree);
        let expected = seen(&tree);
        drop(tree);
        fs::remove_file(&config).expect("removed");
        let tree = by_key().expect("it opens");
        assert_eq!(seen(&tree), expected, "{variant}");
        assert!(!tree.writable() && tree.warnings().iter().any(|w| w.contains("is missing")), "{:?}", tree.warnings());
        drop(tree);
        change().expect("changed");
        let new = Credential::Passphrase(secret("a new one"));
        assert_eq!(seen(&open_with(host(folder.path()), new).expect("it opens")), expected, "{variant}");
        let passphrase = folder.path().with_extension("passphrase");
        fs::write(&passphrase, "a new one").expect("a file");
        tools::run(
            bounded(120, "gocryptfs").args(["-nosyslog", "-fsck", "-passfile"]).args([&passphrase, folder.path()]),
        );
        fs::remove_file(&passphrase).expect("removed");
    }
}

#[test]
fn a_wrong_passphrase_is_wrong_and_another_kind_refused() {
    for variant in variants() {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), &variant.new);
        let open = |credentials: &[Credential]| {
            file_formats::open(host(folder.path()), None, &Unlock::with(credentials)).err()
        };
        let passphrase = |text| Credential::Passphrase(secret(text));
        for wrong in [&[][..], &[passphrase("another")], &[passphrase("")], &[passphrase(PASSPHRASE), passphrase("b")]]
        {
            let error = open(wrong).expect("it does not open");
            assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
        }
        let error = open(&[Credential::Keyfile(secret("a"))]).expect("it does not open");
        assert!(matches!(error.kind, ErrorKind::CredentialKind { .. }), "{error}");
    }
}

#[test]
fn a_passphrase_changed_by_either_opens_for_both() {
    let Some(program) = Program::find() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &new_folder());
    let tree = open(folder.path());
    tree.create(tree.root(), name("file"), &NEW).expect("created");
    drop(tree);
    let (old, new) = ([Credential::Passphrase(secret(PASSPHRASE))], secret("new one"));
    let change = |with: &[Credential], new: &claviger_engine::Secret, log_n| {
        gocryptfs::change_passphrase(&*host(folder.path()), new, log_n, &Unlock::with(with))
    };
    let error = change(&[Credential::Passphrase(secret("wrong"))], &new, None).expect_err("wrong");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
    change(&old, &new, Some(11)).expect("changed");
    let text = fs::read_to_string(folder.path().join("gocryptfs.conf")).expect("a configuration");
    assert!(text.contains("\"N\": 2048"), "{text}");
    assert!(open_with(host(folder.path()), Credential::Passphrase(secret(PASSPHRASE))).is_err());
    let by_new = [Credential::Passphrase(secret("new one"))];
    change(&by_new, &secret(PASSPHRASE), None).expect("changed back");
    program.check(folder.path());
    assert_eq!(seen(&open(folder.path())).len(), 1);
    for log_n in [0, 9, 23, 255] {
        let error = change(&old, &new, Some(log_n)).expect_err("no such cost");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 3, "no temporary file is left");
}

fn new_folder() -> gocryptfs::NewFolder {
    gocryptfs::NewFolder { log_n: 10, ..gocryptfs::NewFolder::default() }
}

#[test]
fn only_an_empty_folder_becomes_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let make = |new: &gocryptfs::NewFolder| {
        gocryptfs::create(&*host(folder.path()), &secret(PASSPHRASE), new, &Unlock::with(&[]))
    };
    fs::write(folder.path().join("something"), "").expect("a file");
    assert!(matches!(make(&new_folder()).expect_err("not empty").kind, ErrorKind::Misuse(_)));
    fs::remove_file(folder.path().join("something")).expect("removed");
    let impossible = [
        gocryptfs::NewFolder { log_n: 9, ..new_folder() },
        gocryptfs::NewFolder { log_n: 64, ..new_folder() },
        gocryptfs::NewFolder { longest_name: Some(61), ..new_folder() },
        gocryptfs::NewFolder { longest_name: Some(100), names: gocryptfs::NameEncryption::None, ..new_folder() },
        gocryptfs::NewFolder { cipher: gocryptfs::ContentCipher::XChaCha20Poly1305, hkdf: false, ..new_folder() },
    ];
    for new in impossible {
        assert!(matches!(make(&new).expect_err("impossible").kind, ErrorKind::Misuse(_)), "{new:?}");
    }
    // What an interrupted attempt left behind.
    fs::write(folder.path().join("gocryptfs.conf.new.0123456789abcdef"), "half").expect("a file");
    fs::write(folder.path().join("gocryptfs.diriv"), "half").expect("a file");
    make(&new_folder()).expect("created");
    assert!(matches!(make(&new_folder()).expect_err("there is one").kind, ErrorKind::Misuse(_)));
    assert!(seen(&open(folder.path())).is_empty());
}

#[test]
fn a_folder_is_recognised_by_its_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let format = file_formats::named("gocryptfs").expect("a row");
    let verdict = || format.identify(&*host(folder.path())).expect("looked");
    assert!(matches!(verdict(), Verdict::No(_)));
    create(folder.path(), &new_folder());
    assert!(matches!(verdict(), Verdict::Yes(_)));
    let found = file_formats::find(&*host(folder.path()), None).expect("found");
    assert_eq!(found.name(), format.name());
    assert!(FILE_FORMATS.iter().any(|row| row.name() == format.name()));
    fs::remove_file(folder.path().join("gocryptfs.conf")).expect("removed");
    fs::write(folder.path().join("gocryptfs.conf"), "{}").expect("written");
    assert!(matches!(verdict(), Verdict::Possible(_)));
}

#[test]
fn files_of_the_format_are_neither_shown_nor_reached() {
    for variant in variants() {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), &variant.new);
        let tree = open(folder.path());
        let root = tree.root();
        assert!(tree.list(root).expect("listed").is_empty());
        let reached = tree.lookup(root, name("gocryptfs.conf")).expect_err("it is not shown").kind();
        assert!(matches!(reached, Kind::NotFound | Kind::PermissionDenied), "{reached}");
        let encrypted = variant.new.names != gocryptfs::NameEncryption::None;
        match tree.create(root, name("gocryptfs.conf"), &NEW) {
            Ok(node) if encrypted => tree.forget(node, 1),
            made => assert_eq!(made.expect_err("taken").kind(), Kind::PermissionDenied),
        }
        let inner = tree.make_folder(root, name("inner"), &FOLDER).expect("made");
        tree.create(inner, name("gocryptfs.conf"), &NEW).expect("a name like any other");
        tree.create(inner, name("gocryptfs.diriv"), &NEW).expect("a name like any other");
        let held = HeldNode::lookup(&tree, inner, name("gocryptfs.diriv")).expect("found");
        assert_eq!(tree.list(inner).expect("listed").len(), 2);
        drop(held);
        assert_eq!(tree.remove(root, name("inner")).expect_err("not empty").kind(), Kind::DirectoryNotEmpty);
        assert_eq!(tree.list(inner).expect("still there").len(), 2);
    }
}
