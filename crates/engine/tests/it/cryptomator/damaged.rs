//! Damaged, incomplete and hostile vaults: each problem is named, and what reads is right.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind as Kind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use claviger_engine::file_formats::{self, Stacked, cryptomator::CipherCombo};
use claviger_engine::trees::{self, HeldNode, NewNode, Node, NodeKind, Renaming, Tree, Use, find};
use claviger_engine::{Credential, Error, ErrorKind, Unlock};
use claviger_testkit::random::Random;
use serde_json::{Value, json};

use crate::support::cryptomator::{COMBOS, create, open, stored, stored_name, survey};
use crate::support::gocryptfs::{PASSPHRASE, host, read, secret, seen};
use crate::support::noise;

const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

/// A vault with a file in each form, a link, and a folder with a file.
struct Sample {
    vault: tempfile::TempDir,
    /// The place of the root folder.
    root: PathBuf,
    /// Where the entries are: `file`, a long name, `link`, `folder`; and the place of the folder.
    file: PathBuf,
    long: PathBuf,
    link: PathBuf,
    folder: PathBuf,
    place: PathBuf,
}

impl Sample {
    fn new(combo: CipherCombo) -> Self {
        let vault = tempfile::tempdir().expect("a folder");
        create(vault.path(), combo);
        let data = vault.path().join("d");
        let mut seen = stored(&data);
        let root =
            seen.iter().find(|path| path.ends_with("dirid.c9r")).expect("one").parent().expect("a place").to_owned();
        let tree = open(vault.path());
        let mut new = |make: &dyn Fn(&Stacked)| -> Vec<PathBuf> {
            make(&tree);
            let now = stored(&data);
            let new = now.iter().filter(|path| !seen.contains(path)).cloned().collect();
            seen = now;
            new
        };
        let write = |folder: Node, path: &str, len: usize| {
            let node = tree.create(folder, name(path), &NEW).expect("created");
            tree.write_at(node, 0, &noise(len, 1)).expect("written");
            tree.forget(node, 1);
        };
        let file = new(&|tree| write(tree.root(), "file", 70_000)).remove(0);
        let long = new(&|tree| write(tree.root(), &"long".repeat(50), 100)).remove(0).parent().expect("one").to_owned();
        let link = new(&|tree| drop(tree.make_link(tree.root(), name("link"), name("file"), &NEW))).remove(0);
        let made = new(&|tree| drop(tree.make_folder(tree.root(), name("folder"), &NewNode::default())));
        let path =
            |end: &str| made.iter().find(|path| path.ends_with(end)).expect("made").parent().expect("one").to_owned();
        let (folder, place) = (path("dir.c9r"), path("dirid.c9r"));
        write(find(&tree, name("folder")).expect("found"), "inner", 10);
        Self { link: link.parent().expect("one").to_owned(), vault, root, file, long, folder, place }
    }

    fn path(&self) -> &Path {
        self.vault.path()
    }

    /// The only problem, at a path that ends so.
    #[track_caller]
    fn only_problem(&self, end: &Path, word: &str) {
        let found = survey(self.path());
        let right = found.len() == 1 && found[0].0.ends_with(end) && found[0].1.contains(word);
        assert!(right, "{} with {word:?}: {found:#?}", end.display());
    }

    /// A problem at a path that ends so.
    #[track_caller]
    fn problem(&self, end: &Path, word: &str) {
        let found = survey(self.path());
        let right = found.iter().any(|(path, what)| path.ends_with(end) && what.contains(word));
        assert!(right, "{} with {word:?}: {found:#?}", end.display());
    }
}

fn change(path: &Path, what: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("read");
    what(&mut bytes);
    fs::write(path, bytes).expect("written");
}

fn last(path: &Path) -> &Path {
    Path::new(path.file_name().expect("a name"))
}

#[test]
fn a_sound_vault_has_no_problem() {
    for combo in COMBOS {
        let sample = Sample::new(combo);
        assert_eq!(survey(sample.path()), []);
        assert_eq!(seen(&open(sample.path())).len(), 5);
        // Copies that Cryptomator made, and its note for people.
        for own in ["masterkey.cryptomator.12AB34CD.bkup", "vault.cryptomator.00FF00FF.bkup", "IMPORTANT.rtf"] {
            fs::write(sample.path().join(own), "").expect("written");
        }
        assert_eq!(survey(sample.path()), []);
    }
}

#[test]
fn every_changed_byte_of_a_file_is_noticed_and_the_other_blocks_are_read() {
    for (combo, header, overhead) in [(CipherCombo::SivGcm, 68, 28), (CipherCombo::SivCtrMac, 88, 48)] {
        let sample = Sample::new(combo);
        let (whole, plain) = (fs::read(&sample.file).expect("read"), noise(70_000, 1));
        let second = header + 32768 + overhead;
        let places =
            (0..header).step_by(7).chain([header, header + 12, header + 100, second - 1, second, whole.len() - 1]);
        for at in places {
            change(&sample.file, |bytes| bytes[at] ^= 1);
            sample.only_problem(Path::new("file"), "verification");
            let tree = open(sample.path());
            let node = find(&tree, name("file")).expect("found");
            let mut out = vec![0xee; 70_000];
            assert_eq!(tree.read_at(node, 0, &mut out).expect_err("damaged").kind(), Kind::InvalidData);
            assert!(out.iter().all(|byte| matches!(byte, 0 | 0xee)));
            let mut middle = vec![0; 1000];
            let readable = at >= header && at < second;
            let read = tree.read_at(node, 40_000, &mut middle);
            assert_eq!(read.is_ok(), readable || at == whole.len() - 1, "{at}");
            assert!(read.is_err() || middle == plain[40_000..41_000]);
            fs::write(&sample.file, &whole).expect("written");
        }
        // No hole reads as zeros, no block stands for another, and a file that was cut is not shorter.
        let block = 32768 + overhead;
        change(&sample.file, |bytes| bytes[header..header + block].fill(0));
        sample.only_problem(Path::new("file"), "verification");
        fs::write(&sample.file, &whole).expect("written");
        change(&sample.file, |bytes| {
            let (first, second) = bytes[header..].split_at_mut(block);
            first.swap_with_slice(&mut second[..block]);
        });
        sample.only_problem(Path::new("file"), "verification");
        for (len, word) in [
            (0, "without a header"),
            (10, "ends in its header"),
            (second + 5, "inside a nonce"),
            (second + 500, "verification"),
        ] {
            fs::write(&sample.file, &whole[..len]).expect("written");
            sample.only_problem(Path::new("file"), word);
        }
    }
}

#[test]
fn a_file_without_a_header_is_damaged_and_not_empty() {
    let sample = Sample::new(CipherCombo::SivCtrMac);
    for len in [87, 1, 0] {
        change(&sample.file, |bytes| bytes.truncate(len));
        let tree = open(sample.path());
        let node = find(&tree, name("file")).expect("found");
        for refused in [
            tree.read_at(node, 0, &mut [0]).map(drop),
            tree.append(node, b"more"),
            tree.write_at(node, 0, b"more"),
            tree.set_len(node, 5),
            if len == 0 { tree.open(node, Use { read: true, write: false }) } else { Err(Kind::InvalidData.into()) },
        ] {
            assert_eq!(refused.expect_err("refused").kind(), Kind::InvalidData, "{len}");
        }
        assert_eq!(fs::read(&sample.file).expect("read").len(), len);
    }
    // A program that replaces all contents may write to it.
    fs::write(&sample.file, "").expect("written");
    let tree = open(sample.path());
    let node = find(&tree, name("file")).expect("found");
    let usage = Use { read: false, write: true };
    tree.open(node, usage).and_then(|()| tree.set_len(node, 0)).expect("emptied");
    tree.write_at(node, 0, b"new").and_then(|()| tree.release(node)).expect("written");
    assert_eq!(read(&tree, node), b"new");
    assert_eq!(survey(sample.path()), []);
}

#[test]
fn a_file_that_is_being_created_is_not_damaged() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let tree = open(sample.path());
    thread::scope(|scope| {
        let creating = scope.spawn(|| {
            for number in 0..2000 {
                let node = tree.create(tree.root(), name(&format!("new {number}")), &NEW).expect("created");
                tree.forget(node, 1);
            }
        });
        let mut number = 0;
        while !creating.is_finished() {
            let Ok(node) = tree.lookup(tree.root(), name(&format!("new {number}"))) else { continue };
            assert_eq!(tree.read_at(node, 0, &mut [0]).expect("an empty file"), 0);
            tree.forget(node, 1);
            number += 1;
        }
    });
}

#[test]
fn a_name_in_another_form_is_named_and_can_be_read() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let decomposed = "Schlu\u{308}ssel";
    let stored = stored_name(sample.path(), decomposed, b"");
    fs::copy(&sample.file, sample.root.join(&stored)).expect("copied");
    sample.only_problem(Path::new(&stored), "not in Unicode's form NFC");
    sample.only_problem(Path::new(&stored), decomposed);
    let tree = open(sample.path());
    assert_eq!(tree.list(tree.root()).expect("listed").len(), 4);
    assert!(tree.warnings()[0].starts_with("1 decrypted name is not valid"), "{:?}", tree.warnings());
    tree.show_stored_names();
    assert!(read(&tree, find(&tree, name(&stored)).expect("shown as stored")) == noise(70_000, 1));
}

#[test]
fn folders_that_nothing_leads_to_are_rescued() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let tree = open(sample.path());
    let folder = find(&tree, name("folder")).expect("found");
    let inside = tree.make_folder(folder, name("inside"), &NewNode::default()).expect("made");
    let node = tree.create(inside, name("deep"), &NEW).expect("created");
    tree.write_at(node, 0, b"deep").expect("written");
    drop(tree);
    let whole = open(sample.path());
    whole.show_stored_names();
    assert_eq!(whole.list(whole.root()).expect("listed").len(), 4, "nothing is lost");
    let id = String::from_utf8(fs::read(sample.folder.join("dir.c9r")).expect("read")).expect("text");
    fs::remove_dir_all(&sample.folder).expect("removed");
    let tree = open(sample.path());
    assert!(find(&tree, name("claviger.lost")).is_err());
    tree.show_stored_names();
    let listing = tree.list_all(find(&tree, name("claviger.lost")).expect("shown")).expect("listed");
    assert_eq!(listing.entries.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [name(&id)]);
    assert!(listing.left_out.iter().all(|name| name.listed && name.why.to_string().contains("nothing leads")));
    let at = |path: &str| find(&tree, name(&format!("claviger.lost/{id}/{path}"))).expect("found");
    assert!(read(&tree, at("inner")) == noise(10, 1) && read(&tree, at("inside/deep")) == b"deep");
    assert!(tree.lost().expect("known").is_empty());
    // Without its ID, names are as stored; but the folder inside it has its own.
    fs::remove_file(sample.place.join("dirid.c9r")).expect("removed");
    let tree = open(sample.path());
    tree.show_stored_names();
    let lost = find(&tree, name("claviger.lost")).expect("shown");
    let all: Vec<_> = tree.list_all(lost).expect("listed").entries;
    assert_eq!(all.len(), 1, "{all:?}");
    let folder = HeldNode::take(&tree, lost, &all[0]).expect("taken");
    for entry in tree.list_all(folder.node()).expect("listed").entries {
        let node = HeldNode::take(&tree, folder.node(), &entry).expect("taken");
        match entry.kind {
            NodeKind::Folder => assert!(read(&tree, tree.lookup(node.node(), name("deep")).expect("there")) == b"deep"),
            _ => assert!(read(&tree, node.node()) == noise(10, 1)),
        }
    }
    // A folder of this name is not hidden.
    let tree = open(sample.path());
    tree.make_folder(tree.root(), name("claviger.lost"), &NewNode::default()).expect("made");
    tree.show_stored_names();
    assert_eq!(tree.list(find(&tree, name("claviger.lost")).expect("found")).expect("listed"), []);
    assert!(!tree.lost().expect("known").is_empty(), "nobody copies them");
}

#[test]
fn copies_of_sync_programs_are_named_and_can_be_read() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let plain = last(&sample.file).to_str().expect("text").trim_end_matches(".c9r").to_owned();
    let copies = [
        format!("{plain} (1).c9r"),
        format!("{plain} (conflicted copy 2024-05-01).c9r"),
        format!("{plain}_Conflict.c9r"),
    ];
    for copy in &copies {
        fs::copy(&sample.file, sample.root.join(copy)).expect("copied");
        sample.only_problem(Path::new(copy), "sync program");
        let tree = open(sample.path());
        tree.show_stored_names();
        let node = find(&tree, name(copy)).expect("shown as stored");
        assert!(read(&tree, node) == noise(70_000, 1));
        fs::remove_file(sample.root.join(copy)).expect("removed");
    }
    for copy in ["masterkey (conflicted copy).cryptomator", "vault (1).cryptomator", "masterkey.cryptomator (1)"] {
        fs::write(sample.path().join(copy), "").expect("written");
        sample.only_problem(Path::new(copy), "sync program");
        fs::remove_file(sample.path().join(copy)).expect("removed");
    }
    for (folder, copy) in
        [(&sample.folder, "dir (1).c9r"), (&sample.long, "contents (1).c9r"), (&sample.long, "name (1).c9s")]
    {
        fs::write(folder.join(copy), "").expect("written");
        sample.only_problem(Path::new(copy), "another version");
        fs::remove_file(folder.join(copy)).expect("removed");
    }
    assert_eq!(survey(sample.path()), []);
}

#[test]
fn what_is_foreign_is_named() {
    let sample = Sample::new(CipherCombo::SivGcm);
    for place in [
        sample.path().to_owned(),
        sample.path().join("d"),
        sample.root.parent().expect("one").to_owned(),
        sample.root.clone(),
    ] {
        fs::write(place.join("desktop.ini"), "").expect("written");
        sample.only_problem(Path::new("desktop.ini"), "not part of the vault");
        fs::remove_file(place.join("desktop.ini")).expect("removed");
    }
    fs::create_dir(sample.path().join("m")).expect("made");
    sample.only_problem(Path::new("m"), "not part of the vault");
    fs::remove_dir(sample.path().join("m")).expect("removed");
    symlink("/etc/passwd", sample.root.join("x.c9r")).expect("linked");
    sample.only_problem(Path::new("x.c9r"), "neither a file nor a folder");
    assert_eq!(find(&open(sample.path()), name("x.c9r")).expect_err("no link is followed").kind(), Kind::NotFound);
    fs::remove_file(sample.root.join("x.c9r")).expect("removed");
    // The name of another folder, and one in another case.
    let inner = stored(&sample.place).into_iter().find(|path| !path.ends_with("dirid.c9r")).expect("a file");
    fs::copy(&inner, sample.root.join(last(&inner))).expect("copied");
    sample.only_problem(last(&inner), "does not decrypt");
    fs::remove_file(sample.root.join(last(&inner))).expect("removed");
    let lower = sample.root.join(last(&sample.file).to_str().expect("text").to_lowercase());
    fs::rename(&sample.file, &lower).expect("renamed");
    sample.only_problem(last(&lower), "does not decrypt");
}

#[test]
fn incomplete_entries_are_named() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let without = |path: &Path, each: &dyn Fn()| {
        let bytes = fs::read(path).expect("read");
        fs::remove_file(path).expect("removed");
        each();
        fs::write(path, bytes).expect("written");
        assert_eq!(survey(sample.path()), []);
    };
    without(&sample.link.join("symlink.c9r"), &|| {
        sample.only_problem(last(&sample.link), "there is no dir.c9r or symlink.c9r")
    });
    without(&sample.long.join("contents.c9r"), &|| sample.only_problem(last(&sample.long), "or contents.c9r in it"));
    without(&sample.long.join("name.c9s"), &|| {
        sample.only_problem(last(&sample.long), "name.c9s");
        let tree = open(sample.path());
        tree.show_stored_names();
        let node = find(&tree, last(&sample.long).as_os_str()).expect("shown as stored");
        assert!(read(&tree, node) == noise(100, 1));
    });
    without(&sample.place.join("dirid.c9r"), &|| sample.only_problem(last(&sample.place), "dirid.c9r is missing"));
    // Who lost dir.c9r still knows whose folder it is.
    without(&sample.folder.join("dir.c9r"), &|| {
        let tree = open(sample.path());
        tree.list(tree.root()).expect("listed");
        assert!(
            tree.warnings().iter().any(|warning| warning.starts_with("1 file or folder is")),
            "{:?}",
            tree.warnings()
        );
        sample.problem(last(&sample.folder), "Its name is folder");
        sample.problem(last(&sample.place), "It holds 1 entry, among them: inner");
    });
    for contents in [&b""[..], b"\0", b"no/id", &[b'x'; 37], b"another"] {
        change(&sample.folder.join("dir.c9r"), |bytes| *bytes = contents.to_vec());
        sample.problem(last(&sample.folder), "dir.c9r");
        assert_eq!(survey(sample.path()).len(), 2, "{:#?}", survey(sample.path()));
    }
}

#[test]
fn what_a_sync_program_left_in_an_entry_is_never_removed_with_it() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let tree = open(sample.path());
    let (root, long, longer) = (tree.root(), "long".repeat(50), "longer".repeat(40));
    tree.make_link(root, name("other"), name("file"), &NEW).map(|node| tree.forget(node, 1)).expect("made");
    let rename = |from: &str, to: &str| tree.rename(root, name(from), root, name(to), Renaming::Replace);
    for left in ["dir.c9r (conflicted copy)", "contents.c9r.part", "symlink.c9r.part"] {
        for bundle in [&sample.long, &sample.link] {
            fs::write(bundle.join(left), "somebody's").expect("written");
        }
        for refused in [
            tree.remove(root, name(&long)),
            tree.remove(root, name("link")),
            rename(&long, "short"),
            rename("link", &longer),
            rename("other", &long),
        ] {
            assert_eq!(refused.expect_err("refused").kind(), Kind::DirectoryNotEmpty);
        }
        for bundle in [&sample.long, &sample.link] {
            assert_eq!(fs::read(bundle.join(left)).expect("it stays"), b"somebody's");
            fs::remove_file(bundle.join(left)).expect("removed");
        }
    }
    assert!(read(&tree, find(&tree, name(&long)).expect("there")) == noise(100, 1));
}

#[test]
fn copies_report_what_is_stored_and_not_shown() {
    let lost = |sample: &Sample| {
        let (copy, mut lost) = (tempfile::tempdir().expect("a folder"), Vec::new());
        let to = host(copy.path());
        let mut left = |path: &Path, why: Error| {
            lost.push((path.to_owned(), why.kind.to_string()));
            Ok(())
        };
        trees::copy::copy(&open(sample.path()), &*to, &mut |_| Ok(()), &mut left).expect("copied");
        lost
    };
    let sample = Sample::new(CipherCombo::SivGcm);
    assert_eq!(lost(&sample), []);
    // Nothing of the vault.
    fs::write(sample.path().join(".DS_Store"), "").expect("written");
    fs::write(sample.root.join("file.c9u"), "").expect("written");
    assert_eq!(lost(&sample), []);
    fs::copy(&sample.file, sample.long.join("symlink.c9r")).expect("copied");
    fs::remove_dir_all(&sample.folder).expect("removed");
    change(&sample.file, |bytes| bytes.truncate(30));
    let lost = lost(&sample);
    for (path, word) in [
        (last(&sample.long), "more than one"),
        (last(&sample.place), "among them: inner"),
        (Path::new("/file"), "header"),
    ] {
        assert!(lost.iter().any(|(at, why)| at.ends_with(path) && why.contains(word)), "{word}: {lost:#?}");
    }
}

#[test]
fn folders_that_are_missing_moved_or_renamed_are_named() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let above = sample.place.parent().expect("one");
    let away = sample.path().join("d/away");
    fs::create_dir(&away).and_then(|()| fs::rename(&sample.place, away.join("here"))).expect("moved");
    sample.problem(last(&sample.folder), "the folder that it leads to is missing");
    sample.problem(Path::new("away/here"), "It belongs at d/");
    fs::rename(away.join("here"), above.join(last(&sample.place).to_str().expect("text").to_lowercase()))
        .expect("moved");
    fs::remove_dir(&away).expect("removed");
    sample.problem(last(&sample.folder), "the folder that it leads to is missing");
    sample.problem(
        above
            .join(last(&sample.place).to_str().expect("text").to_lowercase())
            .strip_prefix(sample.path())
            .expect("in it"),
        "among them: inner",
    );
    // Nobody is asked for what a link leads to.
    symlink("/etc", &sample.place).expect("linked");
    sample.problem(last(&sample.folder), "missing");
    fs::remove_file(&sample.place).expect("removed");
    change(&sample.root.join("dirid.c9r"), |bytes| bytes[20] ^= 1);
    sample.problem(Path::new("dirid.c9r"), "verification");
}

#[test]
fn a_folder_is_shown_once_and_never_in_itself() {
    let sample = Sample::new(CipherCombo::SivGcm);
    let tree = open(sample.path());
    tree.make_folder(find(&tree, name("folder")).expect("found"), name("inside"), &NewNode::default()).expect("made");
    tree.make_folder(tree.root(), name("twin"), &NewNode::default()).expect("made");
    let bundle = |folder: &Path, id: &[u8]| {
        let found = fs::read_dir(folder).expect("listed").map(|entry| entry.expect("one").path());
        found.into_iter().find(|path| fs::read(path.join("dir.c9r")).is_ok_and(|found| found == id)).expect("an entry")
    };
    let ids: Vec<Vec<u8>> = stored(&sample.path().join("d"))
        .iter()
        .filter(|path| path.ends_with("dir.c9r"))
        .map(|path| fs::read(path).expect("read"))
        .collect();
    let folder = fs::read(sample.folder.join("dir.c9r")).expect("read");
    let inside = fs::read_dir(&sample.place).expect("listed").map(|entry| entry.expect("one").path());
    let inside = inside.into_iter().find(|path| path.is_dir()).expect("a folder");
    let twin = ids
        .iter()
        .find(|id| **id != folder && **id != fs::read(inside.join("dir.c9r")).expect("read"))
        .expect("another");
    let twin = bundle(&sample.root, twin);
    drop(tree);
    let walk = |tree: &Stacked| {
        fn walk(tree: &Stacked, folder: Node, depth: usize) -> usize {
            assert!(depth < 10, "it never ends");
            let entries = tree.list(folder).expect("listed");
            let below = entries.iter().filter(|entry| entry.kind == NodeKind::Folder).map(|entry| {
                let node = HeldNode::take(tree, folder, entry).expect("taken");
                walk(tree, node.node(), depth + 1)
            });
            entries.len() + below.sum::<usize>()
        }
        walk(tree, tree.root(), 0)
    };
    assert_eq!(walk(&open(sample.path())), 7);
    // A copy, a folder in itself, one in its own child, and the root folder.
    for (entry, id) in [
        (&twin, &folder),
        (&inside, &folder),
        (&inside, &fs::read(inside.join("dir.c9r")).expect("read")),
        (&twin, &Vec::new()),
    ] {
        let right = fs::read(entry.join("dir.c9r")).expect("read");
        fs::write(entry.join("dir.c9r"), id).expect("written");
        let tree = open(sample.path());
        if right != *id {
            assert_eq!(walk(&tree), 6, "{}", entry.display());
            let found = survey(sample.path());
            assert!(found.iter().any(|(_, what)| what.contains("dir.c9r: it is")), "{found:#?}");
        }
        fs::write(entry.join("dir.c9r"), right).expect("written");
    }
    // Who moved a folder finds it at its new place.
    let tree = open(sample.path());
    let first = find(&tree, name("folder")).expect("found");
    let other = open(sample.path());
    other.rename(other.root(), name("folder"), other.root(), name("moved"), Renaming::Keep).expect("renamed");
    assert_eq!(find(&tree, name("moved")).expect("found"), first);
    assert_eq!(find(&tree, name("folder")).expect_err("gone").kind(), Kind::NotFound);
}

/// Opens a vault of which a file was changed.
fn with_changed(file: &str, change: impl FnOnce(&mut Vec<u8>)) -> Option<Error> {
    let sample = Sample::new(CipherCombo::SivGcm);
    self::change(&sample.path().join(file), change);
    let given = [Credential::Passphrase(secret(PASSPHRASE))];
    let may_take = |time: Duration| match time {
        time if time < Duration::from_secs(60) => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled)),
    };
    let unlock = Unlock { may_take: Some(&may_take), memory: Some(1 << 30), ..Unlock::with(&given) };
    file_formats::open(host(sample.path()), Some("Cryptomator"), &unlock).err()
}

#[test]
fn hostile_key_files_are_refused_and_cost_nothing() {
    use ErrorKind::{Malformed, NotThisFormat, TooLittleMemory, WrongCredential};
    let with = |field: &'static str, value: Value| {
        let changed = with_changed("masterkey.cryptomator", |bytes| {
            let mut file: Value = serde_json::from_slice(bytes).expect("JSON");
            file[field] = value;
            *bytes = file.to_string().into_bytes();
        });
        changed.expect("refused")
    };
    for (field, value) in [
        ("scryptCostParam", json!(0)),
        ("scryptCostParam", json!(1)),
        ("scryptCostParam", json!(32767)),
        ("scryptCostParam", json!(-1)),
        ("scryptBlockSize", json!(0)),
        ("scryptSalt", json!("")),
        ("scryptSalt", json!("not Base64!")),
        ("primaryMasterKey", json!("AAAA")),
        ("hmacMasterKey", json!(7)),
        ("versionMac", json!([])),
    ] {
        let error = with(field, value);
        assert!(matches!(error.kind, Malformed { .. }), "{field}: {error}");
    }
    for (field, value) in [
        ("scryptCostParam", json!(1u64 << 62)),
        ("scryptCostParam", json!(1 << 30)),
        ("scryptBlockSize", json!(1 << 23)),
    ] {
        let error = with(field, value);
        assert!(matches!(error.kind, TooLittleMemory { .. }), "{field}: {error}");
    }
    let error = with("scryptSalt", json!("AAAAAAAAAAA="));
    assert!(matches!(error.kind, WrongCredential(_)), "{error}");
    let key = "A".repeat(54) + "==";
    let error = with("primaryMasterKey", json!(key));
    assert!(matches!(error.kind, Malformed { .. }) && error.to_string().contains("damaged"), "{error}");
    for contents in [&b""[..], b"{", b"\xff", &[b' '; 100_000]] {
        for file in ["masterkey.cryptomator", "vault.cryptomator"] {
            let error = with_changed(file, |bytes| *bytes = contents.to_vec()).expect("refused");
            assert!(matches!(error.kind, Malformed { .. }), "{file}: {error}");
        }
    }
    let sample = Sample::new(CipherCombo::SivGcm);
    let given = [Credential::Passphrase(secret(PASSPHRASE))];
    let open =
        || file_formats::open(host(sample.path()), Some("Cryptomator"), &Unlock::with(&given)).err().expect("refused");
    fs::rename(sample.path().join("vault.cryptomator"), sample.path().join("kept")).expect("renamed");
    assert!(matches!(open().kind, Malformed { .. }), "{}", open());
    fs::rename(sample.path().join("kept"), sample.path().join("vault.cryptomator")).expect("renamed");
    fs::rename(&sample.root, sample.root.with_extension("away")).expect("renamed");
    assert!(open().to_string().contains("the root folder is missing"), "{}", open());
    fs::remove_file(sample.path().join("masterkey.cryptomator")).expect("removed");
    assert!(matches!(open().kind, NotThisFormat(_)), "{}", open());
    symlink("/etc/passwd", sample.path().join("masterkey.cryptomator")).expect("linked");
    assert!(open().to_string().contains("not followed"), "{}", open());
}

#[test]
fn any_change_of_the_configuration_is_noticed() {
    for at in (0..150).step_by(11) {
        let error = with_changed("vault.cryptomator", |bytes| {
            let at = at * bytes.len() / 150;
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        });
        let error = error.unwrap_or_else(|| panic!("byte {at} was changed"));
        assert!(matches!(error.kind, ErrorKind::Malformed { .. } | ErrorKind::Unsupported { .. }), "{at}: {error}");
    }
}

/// Changes anything of a vault.
pub fn mutate(vault: &Path, random: &mut Random) {
    let files = stored(vault);
    let file = &files[random.below(files.len())];
    let other = &files[random.below(files.len())];
    match random.below(8) {
        0..=2 => change(file, |bytes| {
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }),
        3 => change(file, |bytes| bytes.truncate(random.below(bytes.len() + 1))),
        4 => drop(fs::remove_file(file)),
        5 => drop(fs::copy(file, other)),
        6 => drop(fs::rename(file, other)),
        _ => drop(fs::rename(file.parent().expect("one"), other.parent().expect("one").join("moved.c9r"))),
    }
}

#[test]
fn mutated_vaults_never_show_wrong_data_nor_pass_for_sound() {
    let whole = seen(&open(Sample::new(CipherCombo::SivGcm).path()));
    let mut random = Random::new(7);
    for round in 0..500 {
        let combo = COMBOS[round % 2];
        let sample = Sample::new(combo);
        let before: Vec<_> = stored(sample.path()).iter().map(|path| fs::read(path).expect("read")).collect();
        let names = stored(sample.path());
        // A whole file may stand for another: the IDs of folders are files, too.
        let ids = names.iter().filter(|path| path.ends_with("dir.c9r")).map(|path| fs::read(path).expect("read"));
        let known: Vec<_> = whole.values().map(|(_, bytes)| bytes.clone()).chain(ids).collect();
        for _ in 0..=random.below(2) {
            mutate(sample.path(), &mut random);
        }
        let now = stored(sample.path());
        let same = now == names && now.iter().map(|path| fs::read(path).expect("read")).eq(before);
        let given = [Credential::Passphrase(secret(PASSPHRASE))];
        let unlock = Unlock { memory: Some(1 << 28), ..Unlock::with(&given) };
        let Ok(tree) = file_formats::open(host(sample.path()), Some("Cryptomator"), &unlock) else { continue };
        tree.show_stored_names();
        let mut complete = true;
        check(&tree, tree.root(), 0, &mut |kind, bytes| match bytes {
            // The format cannot show that a file was cut after its header.
            Some(bytes) if bytes.is_empty() => complete = false,
            Some(bytes) => assert!(known.contains(&bytes), "round {round}: {kind:?}"),
            None => complete = false,
        });
        drop(tree);
        let problems = survey(sample.path());
        let tree = open(sample.path());
        if problems.is_empty() && complete && !same {
            // A whole file may be missing, or stand for another: the format cannot show that.
            let shown = seen(&tree);
            assert!(shown.iter().all(|(path, _)| whole.contains_key(path)), "round {round}: {:?}", shown.keys());
        }
    }
}

/// Reads everything below a folder.
pub fn check(tree: &Stacked, folder: Node, depth: usize, each: &mut dyn FnMut(NodeKind, Option<Vec<u8>>)) {
    assert!(depth < 10, "it never ends");
    let Ok(listing) = tree.list_all(folder) else { return each(NodeKind::Folder, None) };
    if !listing.left_out.is_empty() {
        each(NodeKind::Folder, None);
    }
    for entry in listing.entries {
        let Ok(node) = HeldNode::take(tree, folder, &entry) else { return each(entry.kind, None) };
        match entry.kind {
            NodeKind::Folder => check(tree, node.node(), depth + 1, each),
            NodeKind::Link => each(NodeKind::Link, tree.link_target(node.node()).ok().map(|to| to.as_bytes().to_vec())),
            _ => {
                let mut bytes = vec![0; 100_000];
                let len = tree.read_at(node.node(), 0, &mut bytes).ok();
                each(NodeKind::File, len.map(|len| bytes[..len].to_vec()));
            }
        }
    }
}
