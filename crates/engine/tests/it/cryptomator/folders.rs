//! Vaults that pycryptomator made and changed, and those that we did: each reads what the other wrote.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind as Kind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use claviger_engine::file_formats::{FILE_FORMATS, cryptomator, cryptomator::CipherCombo};
use claviger_engine::trees::{NewNode, Node, NodeKind, Renaming, Tree, Use, find};
use claviger_engine::{Credential, ErrorKind, Unlock, Verdict};
use claviger_testkit::random::Random;

use crate::support::cryptomator::{COMBOS, Program, create, make_format_7, open, open_with, survey};
use crate::support::gocryptfs::{PASSPHRASE, Seen, host, read, secret, seen, seen_by_host};
use crate::support::{fat, noise};

const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };
const FOLDER: NewNode = NewNode { mode: Some(0o755), owner: None };

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

/// Names of all lengths at which something changes. 146 bytes are stored in 220.
fn names() -> Vec<String> {
    let longs = [128, 146, 147, 148, 200, 240, 255].map(|len| "n".repeat(len));
    ["a", "two words", "\u{e4}\u{f6}\u{fc}", " .x"].map(str::to_owned).into_iter().chain(longs).collect()
}

/// Sizes around those of blocks.
const SIZES: [usize; 8] = [0, 1, 32767, 32768, 32769, 65536, 65537, 300_000];

/// Fills a folder of this machine. pycryptomator 1.15 copies no link that leads nowhere, and reads none with a shortened name: both are
/// left out of what is `simple`.
pub fn fill_host(folder: &Path, simple: bool) {
    let at = |path: &str| folder.join(path);
    fs::create_dir_all(at("folder/inner")).expect("made");
    for size in SIZES {
        fs::write(at(&format!("size{size}")), noise(size, size as u64)).expect("written");
    }
    for (i, name) in names().iter().enumerate() {
        fs::write(at(name), noise(100 + i, 1)).expect("written");
    }
    let long = "folder".repeat(40);
    fs::create_dir(at(&long)).expect("made");
    fs::write(at("folder/inner/deep"), "deep").expect("written");
    fs::write(at(&format!("{long}/{}", "in".repeat(100))), "long in long").expect("written");
    symlink("inner/deep", at("folder/link")).expect("linked");
    if !simple {
        symlink("../target/\u{e4}", at("dangling")).expect("linked");
        symlink("t".repeat(600), at(&"l".repeat(200))).expect("linked");
    }
}

/// Writes the same through a tree, in detours.
fn fill_tree(tree: &(dyn Tree + 'static), root: Node, simple: bool) {
    let forget = |node: Node| tree.forget(node, 1);
    let write = |folder: Node, path: &str, bytes: &[u8]| {
        let node = tree.create_open(folder, name(path), &NEW, Use { read: true, write: true }).expect("created");
        tree.write_at(node, 0, bytes).and_then(|()| tree.release(node)).expect("written");
        tree.forget(node, 1);
    };
    for size in SIZES {
        write(root, &format!("size{size}"), &noise(size, size as u64));
    }
    for (i, name) in names().iter().enumerate() {
        write(root, name, &noise(100 + i, 1));
    }
    let long = "folder".repeat(40);
    let folder = tree.make_folder(root, name("folder"), &FOLDER).expect("made");
    let inner = tree.make_folder(folder, name(&"i".repeat(180)), &FOLDER).expect("made");
    let other = tree.make_folder(root, name("other"), &FOLDER).expect("made");
    write(inner, "deep", b"deep");
    write(root, "elsewhere", b"long in long");
    tree.make_link(root, name(&"k".repeat(190)), name("inner/deep"), &NEW).map(forget).expect("linked");
    if !simple {
        tree.make_link(root, name("dangling"), name("../target/\u{e4}"), &NEW).map(forget).expect("linked");
        tree.make_link(root, name("x"), name(&"t".repeat(600)), &NEW).map(forget).expect("linked");
        tree.rename(root, name("x"), root, name(&"l".repeat(200)), Renaming::Keep).expect("renamed");
    }
    let rename = |from: Node, old: &str, to: Node, new: &str| {
        tree.rename(from, name(old), to, name(new), Renaming::Replace).expect("renamed");
    };
    rename(folder, &"i".repeat(180), folder, "inner");
    rename(root, "other", root, &long);
    rename(root, "elsewhere", other, &"in".repeat(100));
    rename(root, &"k".repeat(190), folder, "link");
    rename(root, &"n".repeat(255), root, "short");
    rename(root, "short", root, &"m".repeat(250));
    rename(root, &"m".repeat(250), root, &"n".repeat(255));
    tree.make_folder(root, name("gone"), &FOLDER).map(forget).expect("made");
    tree.remove(root, name("gone")).expect("removed");
    [folder, inner, other].into_iter().for_each(forget);
}

/// pycryptomator copies what a link leads to.
fn without_link(mut seen: Seen) -> Seen {
    seen.insert("/all/folder/link".into(), (NodeKind::File, b"deep".to_vec()));
    seen
}

/// In the root folder of a new vault, pycryptomator 1.15 writes a `dirid.c9r` whose tag is wrong.
fn sound_but_for_its_id(vault: &Path) {
    let found = survey(vault);
    assert!(found.len() == 1 && found[0].0.ends_with("dirid.c9r") && found[0].1.contains("verification"), "{found:#?}");
}

#[test]
fn what_pycryptomator_writes_we_read() {
    let Some(program) = Program::find() else { return };
    let (vault, plain) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    program.init(vault.path());
    fill_host(&plain.path().join("all"), true);
    let encrypt = format!("encrypt {} /", plain.path().join("all").display());
    program.shell(vault.path(), &[encrypt, "ln inner/deep /all/folder/linked".into()]);
    let tree = open(vault.path());
    let mut expected = without_link(seen_by_host(plain.path()));
    expected.insert("/all/folder/linked".into(), (NodeKind::Link, b"inner/deep".to_vec()));
    assert!(seen(&tree) == expected);
    assert!(tree.warnings().is_empty() && tree.proven(), "{:?}", tree.warnings());
    sound_but_for_its_id(vault.path());
}

#[test]
fn what_we_write_pycryptomator_reads() {
    let plain = tempfile::tempdir().expect("a folder");
    for combo in COMBOS {
        let simple = combo == CipherCombo::SivGcm;
        let expected = tempfile::tempdir().expect("a folder");
        fill_host(&expected.path().join("all"), simple);
        let expected = seen_by_host(expected.path());
        let vault = tempfile::tempdir().expect("a folder");
        create(vault.path(), combo);
        let tree = open(vault.path());
        let all = tree.make_folder(tree.root(), name("all"), &FOLDER).expect("made");
        fill_tree(&tree, all, simple);
        assert!(seen(&tree) == expected, "{combo:?}");
        drop(tree);
        assert!(seen(&open(vault.path())) == expected, "{combo:?}");
        assert_eq!(survey(vault.path()), []);
        if combo == CipherCombo::SivCtrMac {
            // pycryptomator has this cipher neither in format 8 nor in 7.
            make_format_7(vault.path());
            assert!(seen(&open(vault.path())) == expected, "format 7");
            assert_eq!(survey(vault.path()), []);
        } else if let Some(program) = Program::find() {
            program.decrypt(vault.path(), "/all", plain.path());
            assert!(seen_by_host(plain.path()) == without_link(expected));
        }
    }
}

#[test]
fn both_change_a_vault_in_turns() {
    let Some(program) = Program::find() else { return };
    let (vault, plain) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    program.init(vault.path());
    let long = "long".repeat(50);
    fs::create_dir(plain.path().join("all")).expect("made");
    fs::write(plain.path().join("all").join(&long), noise(100_000, 1)).expect("written");
    program.shell(vault.path(), &[format!("encrypt {}/all /", plain.path().display()), "mkdir /all/folder".into()]);
    let tree = open(vault.path());
    let (all, inside) = (find(&tree, name("all")).expect("found"), find(&tree, name("all/folder")).expect("found"));
    let file = tree.lookup(all, name(&long)).expect("found");
    tree.write_at(file, 32760, b"ours over a border").and_then(|()| tree.append(file, b"the end")).expect("written");
    tree.rename(all, name(&long), inside, name("short"), Renaming::Replace).expect("renamed");
    tree.rename(all, name("folder"), tree.root(), name(&long), Renaming::Replace).expect("renamed");
    [file, inside, all].iter().for_each(|node| tree.forget(*node, 1));
    tree.finish().expect("durable");
    drop(tree);
    let mut expected = noise(100_000, 1);
    expected[32760..32778].copy_from_slice(b"ours over a border");
    expected.extend(b"the end");
    let out = tempfile::tempdir().expect("a folder");
    program.decrypt(vault.path(), &format!("/{long}"), out.path());
    assert!(fs::read(out.path().join(&long).join("short")).expect("read") == expected);
    program.shell(vault.path(), &[format!("mv /{long}/short /all/theirs"), format!("rm /{long}")]);
    let all = seen(&open(vault.path()));
    assert_eq!(all.len(), 2, "{:?}", all.keys());
    assert!(all[name("/all/theirs")].1 == expected);
    sound_but_for_its_id(vault.path());
}

#[test]
fn the_keys_that_pycryptomator_prints_open_its_vault() {
    let Some(program) = Program::find() else { return };
    let vault = tempfile::tempdir().expect("a folder");
    program.init(vault.path());
    let printed = program.run(&["--print-keys", "b64"], vault.path(), "");
    let keys: Vec<_> = printed
        .lines()
        .filter_map(|line| line.split_once("key")?.1.split_once(": "))
        .map(|(_, key)| key.trim())
        .collect();
    assert_eq!(keys.len(), 2, "{printed}");
    open_with(host(vault.path()), Credential::VolumeKey(secret(&keys.join("\n")))).expect("it opens");
    let error = open_with(host(vault.path()), Credential::VolumeKey(secret(&[keys[1], keys[0]].join("")))).err();
    assert!(matches!(error.expect("refused").kind, ErrorKind::WrongCredential(_)));
    let error = open_with(host(vault.path()), Credential::VolumeKey(secret("too short"))).err();
    assert!(matches!(error.expect("refused").kind, ErrorKind::WrongCredential(_)));
}

#[test]
fn each_program_opens_what_the_other_gave_another_passphrase() {
    let vault = tempfile::tempdir().expect("a folder");
    create(vault.path(), CipherCombo::SivGcm);
    let tree = open(vault.path());
    tree.create(tree.root(), name("file"), &NEW).expect("created");
    drop(tree);
    let change = |old: &str, new: &str| {
        let given = [Credential::Passphrase(secret(old))];
        cryptomator::change_passphrase(&*host(vault.path()), &secret(new), &Unlock::with(&given))
    };
    // Both write an umlaut in their own way, and mean the same.
    change(PASSPHRASE, "Schlu\u{308}ssel").expect("changed");
    let error = change(PASSPHRASE, "another").expect_err("the old one");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
    change("Schl\u{fc}ssel", PASSPHRASE).expect("changed back");
    let names: Vec<_> =
        fs::read_dir(vault.path()).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let Some(program) = Program::find() else { return };
    assert!(program.shell(vault.path(), &["ls -b".into()]).contains("file"));
}

/// A length near a border of a block, or any.
fn length(random: &mut Random) -> usize {
    match random.below(3) {
        0 => random.choose(&[0usize, 32768, 65536, 98304]).saturating_add_signed(random.below(3) as isize - 1),
        1 => random.below(600),
        _ => random.below(200_000),
    }
}

#[test]
fn whatever_is_done_to_files_a_model_agrees() {
    for (seed, combo) in COMBOS.into_iter().enumerate() {
        let vault = tempfile::tempdir().expect("a folder");
        create(vault.path(), combo);
        let mut random = Random::new(seed as u64);
        let mut tree = open(vault.path());
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
                    assert!(out[..read] == there[..there.len().min(len)], "{combo:?}, step {step}");
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
                tree = open(vault.path());
            }
        }
        drop(tree);
        let held: Vec<_> =
            paths.iter().zip(&models).filter_map(|(path, model)| Some((path, model.as_ref()?))).collect();
        let all = seen(&open(vault.path()));
        assert_eq!(all.len(), held.len(), "{combo:?}");
        for (path, model) in held {
            assert!(all[name(&format!("/{path}"))] == (NodeKind::File, model.clone()), "{combo:?}, {path}");
        }
        assert_eq!(survey(vault.path()), []);
    }
}

#[test]
fn a_file_holds_its_header_and_its_blocks_and_nothing_else() {
    for (combo, header, overhead) in [(CipherCombo::SivGcm, 68, 28), (CipherCombo::SivCtrMac, 88, 48)] {
        let vault = tempfile::tempdir().expect("a folder");
        create(vault.path(), combo);
        let tree = open(vault.path());
        let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
        let below = host(vault.path());
        let stored = || {
            fn largest(tree: &(dyn Tree + 'static), folder: Node) -> u64 {
                let entries = tree.list(folder).expect("listed");
                let sizes = entries.iter().map(|entry| {
                    let node = tree.take(folder, entry).expect("taken");
                    match entry.kind {
                        NodeKind::Folder => largest(tree, node),
                        _ if ends(&entry.name, b"dirid.c9r") || ends(&entry.name, b".cryptomator") => 0,
                        _ => tree.attributes(node).expect("known").size,
                    }
                });
                sizes.max().unwrap_or(0)
            }
            largest(&*below, below.root())
        };
        for (len, blocks) in [(0, 0), (1, 1), (32768, 1), (32769, 2), (65536, 2), (100, 1), (0, 0), (100_000, 4)] {
            tree.set_len(file, len).expect("resized");
            assert_eq!(stored(), header + len + blocks * overhead, "{combo:?}, {len} bytes");
            let mut bytes = vec![1; len as usize];
            assert_eq!(tree.read_at(file, 0, &mut bytes).expect("read"), bytes.len());
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}

fn ends(name: &OsStr, end: &[u8]) -> bool {
    name.as_bytes().ends_with(end)
}

#[test]
fn names_are_stored_composed_and_no_name_of_unix_is_lost() {
    let vault = tempfile::tempdir().expect("a folder");
    create(vault.path(), CipherCombo::SivGcm);
    let tree = open(vault.path());
    let root = tree.root();
    let file = tree.create(root, name("u\u{308}ber"), &NEW).expect("created");
    let entries = tree.list(root).expect("listed");
    assert_eq!(entries.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), ["\u{fc}ber"]);
    for form in ["u\u{308}ber", "\u{fc}ber"] {
        assert_eq!(tree.lookup(root, name(form)).expect("found"), file);
    }
    assert_eq!(tree.create(root, name("\u{fc}ber"), &NEW).expect_err("there").kind(), Kind::AlreadyExists);
    let error = tree.create(root, OsStr::from_bytes(b"\xff"), &NEW).expect_err("no text");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ILSEQ.raw_os_error()));
    let error = tree.create(root, name(&"n".repeat(256)), &NEW).expect_err("too long");
    assert_eq!(error.kind(), Kind::InvalidFilename);
    assert_eq!(
        tree.make_link(root, name("link"), name(&"t".repeat(32768)), &NEW).expect_err("too long").kind(),
        Kind::InvalidFilename
    );
    assert_eq!(tree.add_name(file, root, name("second")).expect_err("impossible").kind(), Kind::Unsupported);
    assert_eq!(tree.make_folder(root, name(&"n".repeat(255)), &FOLDER).map(|_| ()).ok(), Some(()));
    assert_eq!(tree.list(root).expect("listed").len(), 2);
}

#[test]
fn a_vault_is_recognised_by_its_files() {
    let vault = tempfile::tempdir().expect("a folder");
    let format = FILE_FORMATS.iter().find(|format| format.name() == "Cryptomator").expect("a row");
    let verdict = || format.identify(&*host(vault.path())).expect("looked at");
    assert!(matches!(verdict(), Verdict::No(_)));
    create(vault.path(), CipherCombo::SivCtrMac);
    assert!(matches!(verdict(), Verdict::Yes(_)));
    make_format_7(vault.path());
    assert!(matches!(verdict(), Verdict::Yes(_)));
    fs::write(vault.path().join("masterkey.cryptomator"), "{}").expect("written");
    assert!(matches!(verdict(), Verdict::Possible(_)));
    let error = cryptomator::create(&*host(vault.path()), &secret("new"), CipherCombo::SivGcm, &Unlock::with(&[]));
    assert!(matches!(error.expect_err("not empty").kind, ErrorKind::Misuse(_)));
}

#[test]
fn a_vault_lives_on_fat_too() {
    let Some(image) = fat::mkfs(&["-F", "32"], 64 << 10) else { return };
    let lower: Arc<dyn Tree> = Arc::from(fat::open(image.in_memory()));
    cryptomator::create(&*lower, &secret(PASSPHRASE), CipherCombo::SivGcm, &Unlock::with(&[])).expect("created");
    let tree = open_with(lower, Credential::Passphrase(secret(PASSPHRASE))).expect("it opens");
    let all = tree.make_folder(tree.root(), name("all"), &NewNode::default()).expect("made");
    fill_tree(&tree, all, false);
    let plain = tempfile::tempdir().expect("a folder");
    fill_host(&plain.path().join("all"), false);
    assert!(seen(&tree) == seen_by_host(plain.path()));
    let file = find(&tree, name("all/size65537")).expect("found");
    assert!(read(&tree, file) == noise(65537, 65537));
}
