//! Plain folders, shown encrypted: the view is what gocryptfs shows, and gocryptfs opens a copy of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind as Kind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::SystemTime;

use claviger_engine::credential::FolderOptions;
use claviger_engine::file_formats::gocryptfs::{self, ContentCipher, NameEncryption, NewFolder};
use claviger_engine::file_formats::{self, FileFormat, GOCRYPTFS, Stacked};
use claviger_engine::trees::{HeldNode, NewNode, Node, NodeKind, Renaming, Tree, Use, find};
use claviger_engine::{Credential, ErrorKind, Result, Unlock, Verdict};

use super::folders::fill_host;
use crate::support::gocryptfs::{
    PASSPHRASE, Program, Seen, Variant, host, open, read, secret, seen, seen_by_host, variants,
};
use crate::support::noise;

const CONFIG: &str = ".gocryptfs.reverse.conf";
const HEADER: usize = 18;

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn reversed<'a>(given: &'a [Credential]) -> Unlock<'a> {
    Unlock { folder: FolderOptions { reverse: true, ..FolderOptions::default() }, ..Unlock::with(given) }
}

/// Makes the configuration of a plain folder.
fn create(folder: &Path, new: &NewFolder) -> Result<()> {
    gocryptfs::create(&*host(folder), &secret(PASSPHRASE), new, &reversed(&[]))
}

fn view_with(folder: &Path, given: Credential) -> Result<Stacked> {
    file_formats::open(host(folder), Some("gocryptfs"), &reversed(&[given]))
}

fn view(folder: &Path) -> Stacked {
    view_with(folder, Credential::Passphrase(secret(PASSPHRASE))).expect("it opens")
}

/// The variants that reverse mode has: those with AES-SIV.
fn reverse_variants() -> Vec<Variant> {
    let with_siv = |variant: Variant| {
        let new = NewFolder { cipher: ContentCipher::AesSiv, ..variant.new };
        Variant { new, ..variant }
    };
    variants().into_iter().filter(|variant| !["aessiv", "xchacha"].contains(&variant.name)).map(with_siv).collect()
}

/// A plain folder with everything that a view can have.
fn fill(folder: &Path) {
    fill_host(folder);
    let long = "deep ".repeat(48);
    fs::create_dir_all(folder.join(&long).join(&long)).expect("folders");
    fs::write(folder.join(&long).join(&long).join("end"), noise(5000, 9)).expect("written");
    symlink("../elsewhere", folder.join(&long).join("link")).expect("linked");
    fs::create_dir(folder.join("with a configuration")).expect("made");
    fs::write(folder.join("with a configuration").join(CONFIG), "not one").expect("written");
    fs::File::create(folder.join("all hole")).and_then(|file| file.set_len(1_000_000)).expect("a hole");
    for (path, mode) in [("size 4097", 0o600), ("folder", 0o750), ("size 1", 0o4755)] {
        fs::set_permissions(folder.join(path), fs::Permissions::from_mode(mode)).expect("its mode");
    }
    assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().is_ok_and(|status| status.success()));
}

/// Numbers of names, modes, owners and times of a folder, by path.
type Facts = BTreeMap<OsString, (u32, u16, u32, Option<SystemTime>)>;

fn facts(tree: &(dyn Tree + 'static), seen: &Seen) -> Facts {
    let of = |path: &OsString| {
        let node = HeldNode::find(tree, path).expect("found");
        let of = tree.attributes(node.node()).expect("known");
        (of.links, of.mode.expect("a mode"), of.owner.expect("an owner").0, of.modified)
    };
    seen.keys().map(|path| (path.clone(), of(path))).collect()
}

fn facts_by_host(folder: &Path, seen: &Seen) -> Facts {
    let of = |path: &OsString| {
        let of = fs::symlink_metadata(folder.join(OsStr::from_bytes(&path.as_bytes()[1..]))).expect("known");
        (of.nlink() as u32, of.mode() as u16 & 0o7777, of.uid(), Some(of.modified().expect("a time")))
    };
    seen.keys().map(|path| (path.clone(), of(path))).collect()
}

/// Copies what a tree shows.
fn copy(tree: &(dyn Tree + 'static), folder: Node, to: &Path) {
    for entry in tree.list(folder).expect("listed") {
        let (node, to) = (HeldNode::take(tree, folder, &entry).expect("there"), to.join(&entry.name));
        match entry.kind {
            NodeKind::File => fs::write(&to, read(tree, node.node())).expect("written"),
            NodeKind::Link => symlink(tree.link_target(node.node()).expect("a target"), &to).expect("linked"),
            NodeKind::Folder => {
                fs::create_dir(&to).expect("made");
                copy(tree, node.node(), &to);
            }
            NodeKind::Special => {}
        }
    }
}

#[test]
fn the_view_is_the_one_of_gocryptfs_byte_for_byte() {
    let Some(program) = Program::find() else { return };
    for variant in reverse_variants() {
        let plain = tempfile::tempdir().expect("a folder");
        match variant.options {
            Some(options) => program.init(plain.path(), &[&["-reverse"], options].concat()),
            None => create(plain.path(), &variant.new).expect("created"),
        }
        fill(plain.path());
        let ours = view(plain.path());
        let seen = seen(&ours);
        let mounted = program.mounted_with(&["-reverse"], plain.path(), |mounted| {
            let theirs = seen_by_host(mounted);
            let paths = |seen: &Seen| seen.keys().cloned().collect::<Vec<_>>();
            assert_eq!(paths(&seen), paths(&theirs), "{}", variant.name);
            let facts = facts(&ours, &seen);
            for (path, of) in &theirs {
                // Which of several names gives the contents depends on what was looked up first.
                let several = of.0 == NodeKind::File && facts[path].0 > 1;
                let same = if several { seen[path].1.len() == of.1.len() } else { seen[path] == *of };
                assert!(same, "{}: {}: {:?} {}", variant.name, path.display(), of.0, of.1.len());
            }
            assert_eq!(facts, facts_by_host(mounted, &seen), "{}", variant.name);
        });
        let Some(()) = mounted else { return };
    }
}

#[test]
fn a_copy_of_the_view_opens_as_an_encrypted_folder() {
    let program = Program::find();
    for variant in reverse_variants() {
        let (plain, copied) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fill(plain.path());
        create(plain.path(), &variant.new).expect("created");
        let tree = view(plain.path());
        copy(&tree, tree.root(), copied.path());
        let mut expected = seen_by_host(plain.path());
        expected.remove(name("/pipe"));
        expected.remove(name(&format!("/{CONFIG}")));
        assert!(seen(&open(copied.path())) == expected, "{}", variant.name);
        if let Some(program) = &program {
            program.mounted(copied.path(), |mounted| assert!(seen_by_host(mounted) == expected, "{}", variant.name));
            program.check(copied.path());
        }
    }
}

#[test]
fn parts_of_a_file_are_parts_of_the_whole() {
    let plain = tempfile::tempdir().expect("a folder");
    create(
        plain.path(),
        &NewFolder { cipher: ContentCipher::AesSiv, names: NameEncryption::None, log_n: 10, ..NewFolder::default() },
    )
    .expect("created");
    fs::write(plain.path().join("file"), noise(300_000, 1)).expect("written");
    let tree = view(plain.path());
    let file = find(&tree, name("file")).expect("found");
    let whole = read(&tree, file);
    for at in [0, 1, 17, 18, 19, 4145, 4146, 4147, 132_000, 263_000, whole.len() - 1, whole.len(), whole.len() + 9] {
        for len in [0, 1, 17, 18, 19, 4128, 140_000, 400_000] {
            let mut part = vec![0; len];
            let got = tree.read_at(file, at as u64, &mut part).expect("read");
            let expected = whole.get(at..).unwrap_or_default();
            let expected = &expected[..expected.len().min(len)];
            assert!(part[..got] == *expected, "{len} bytes at {at}");
        }
    }
}

#[test]
fn nothing_can_be_written_through_the_view() {
    let plain = tempfile::tempdir().expect("a folder");
    fs::write(plain.path().join("file"), "plain").expect("written");
    fs::create_dir(plain.path().join("folder")).expect("made");
    create(
        plain.path(),
        &NewFolder { cipher: ContentCipher::AesSiv, names: NameEncryption::None, log_n: 10, ..NewFolder::default() },
    )
    .expect("created");
    let before = seen_by_host(plain.path());
    let tree = view(plain.path());
    let (root, new) = (tree.root(), NewNode::default());
    let [file, config] = ["file", "gocryptfs.conf"].map(|path| find(&tree, name(path)).expect("found"));
    for file in [file, config] {
        let refused = [
            tree.write_at(file, 0, b"new"),
            tree.append(file, b"new"),
            tree.set_len(file, 0),
            tree.set_len(file, 99),
            tree.open(file, Use { read: true, write: true }),
            tree.set_mode(file, 0o777),
            tree.set_times(file, None, None),
            tree.set_owner(file, Some(0), None),
        ];
        refused
            .into_iter()
            .for_each(|refused| assert_eq!(refused.expect_err("refused").kind(), Kind::ReadOnlyFilesystem));
    }
    let refused = [
        tree.create(root, name("new"), &new).map(drop),
        tree.make_folder(root, name("new"), &new).map(drop),
        tree.make_link(root, name("new"), name("file"), &new).map(drop),
        tree.add_name(file, root, name("new")).map(drop),
        tree.rename(root, name("file"), root, name("new"), Renaming::Replace),
        tree.remove(root, name("file")),
        tree.remove(root, name("folder")),
    ];
    refused.into_iter().for_each(|refused| assert_eq!(refused.expect_err("refused").kind(), Kind::ReadOnlyFilesystem));
    assert!(!tree.writable() && seen_by_host(plain.path()) == before);
}

#[test]
fn files_that_change_while_they_are_read_give_the_ciphertext_of_what_was_read() {
    let plain = tempfile::tempdir().expect("a folder");
    create(
        plain.path(),
        &NewFolder { cipher: ContentCipher::AesSiv, names: NameEncryption::None, log_n: 10, ..NewFolder::default() },
    )
    .expect("created");
    let path = plain.path().join("file");
    fs::write(&path, noise(100_000, 1)).expect("written");
    let (tree, ended) = (view(plain.path()), AtomicBool::new(false));
    let file = find(&tree, name("file")).expect("found");
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2000 {
                let len = [0, 3, 100_000, 4096, 250_000][round % 5];
                let file = fs::File::options().write(true).open(&path).expect("opened");
                file.set_len(len).expect("cut or extended");
            }
            ended.store(true, Ordering::Release);
        });
        while !ended.load(Ordering::Acquire) {
            let mut bytes = vec![0; 300_000];
            let len = tree.read_at(file, 0, &mut bytes).expect("read");
            assert!(len == 0 || len > HEADER, "{len}");
            // The file that was read is whole, wherever it ended.
            let copied = tempfile::tempdir().expect("a folder");
            fs::copy(plain.path().join(CONFIG), copied.path().join("gocryptfs.conf")).expect("copied");
            fs::write(copied.path().join("file"), &bytes[..len]).expect("written");
            let opened = open(copied.path());
            let there = find(&opened, name("file")).expect("found");
            let plain = read(&opened, there);
            assert_eq!(plain.len() as u64, opened.attributes(there).expect("known").size);
        }
    });
    // Replaced and removed ones.
    fs::remove_file(&path).expect("removed");
    assert_eq!(tree.lookup(tree.root(), name("file")).expect_err("gone").kind(), Kind::NotFound);
    fs::create_dir(&path).expect("made");
    let folder = find(&tree, name("file")).expect("found");
    assert!(tree.list(folder).expect("listed").is_empty());
}

#[test]
fn hard_links_have_the_same_contents_under_each_name() {
    let plain = tempfile::tempdir().expect("a folder");
    fs::write(plain.path().join("one"), noise(9000, 1)).expect("written");
    fs::hard_link(plain.path().join("one"), plain.path().join("two")).expect("linked");
    create(
        plain.path(),
        &NewFolder { cipher: ContentCipher::AesSiv, names: NameEncryption::None, log_n: 10, ..NewFolder::default() },
    )
    .expect("created");
    let tree = view(plain.path());
    let [two, one] = ["two", "one"].map(|path| find(&tree, name(path)).expect("found"));
    assert!(read(&tree, two) == read(&tree, one));
    let of = |node| tree.attributes(node).expect("known");
    assert_eq!((of(one).number, of(one).links), (of(two).number, 2));
    let Some(program) = Program::find() else { return };
    program.mounted_with(&["-reverse"], plain.path(), |mounted| {
        assert!(fs::read(mounted.join("two")).expect("read") == read(&tree, two));
        assert!(fs::read(mounted.join("one")).expect("read") == read(&tree, one));
    });
}

#[test]
fn names_that_the_view_does_not_have_are_not_found() {
    let plain = tempfile::tempdir().expect("a folder");
    fs::write(plain.path().join("file"), "plain").expect("written");
    fs::write(plain.path().join("gocryptfs.conf"), "somebody's").expect("written");
    let new = NewFolder { cipher: ContentCipher::AesSiv, log_n: 10, ..NewFolder::default() };
    create(plain.path(), &new).expect("created");
    let tree = view(plain.path());
    let encrypted = tree.list(tree.root()).expect("listed");
    assert_eq!(encrypted.len(), 4, "the configuration, the IV and two files: {encrypted:?}");
    let missing = ["file", CONFIG, "AAAA", "gocryptfs.longname.x", "gocryptfs.longname.x.name", "\u{e4}"];
    for missing in missing {
        assert_eq!(tree.lookup(tree.root(), name(missing)).expect_err("not found").kind(), Kind::NotFound, "{missing}");
    }
    let iv = find(&tree, name("gocryptfs.diriv")).expect("found");
    assert_eq!(tree.lookup(iv, name("gocryptfs.diriv")).expect_err("no folder").kind(), Kind::NotADirectory);

    // With names in clear, the configuration takes the name of another file.
    fs::remove_file(plain.path().join(CONFIG)).expect("removed");
    create(plain.path(), &NewFolder { names: NameEncryption::None, ..new }).expect("created");
    let tree = view(plain.path());
    let listing = tree.list_all(tree.root()).expect("listed");
    assert_eq!((listing.entries.len(), listing.left_out.len()), (2, 1), "{listing:?}");
    assert!(listing.left_out[0].why.kind.to_string().contains("rename this file"));
    let config = find(&tree, name("gocryptfs.conf")).expect("found");
    assert!(read(&tree, config) == fs::read(plain.path().join(CONFIG)).expect("read"));
}

#[test]
fn the_configuration_is_made_once_and_its_password_changes() {
    let plain = tempfile::tempdir().expect("a folder");
    fs::write(plain.path().join("file"), "plain").expect("written");
    let lower = host(plain.path());
    let no = |verdict: Verdict| matches!(verdict, Verdict::No(_));
    assert!(no(GOCRYPTFS.identify(&*lower).expect("identified")));
    let given = || Credential::Passphrase(secret(PASSPHRASE));
    let error = view_with(plain.path(), given()).err().expect("there is no configuration");
    assert!(matches!(&error.kind, ErrorKind::NotThisFormat(what) if what.contains(CONFIG)), "{error}");

    let other = NewFolder { log_n: 10, ..NewFolder::default() };
    assert!(matches!(create(plain.path(), &other).expect_err("no AES-SIV").kind, ErrorKind::Misuse(_)));
    let new = NewFolder { cipher: ContentCipher::AesSiv, ..other };
    create(plain.path(), &new).expect("created");
    assert!(matches!(create(plain.path(), &new).expect_err("there is one").kind, ErrorKind::Misuse(_)));
    let verdict = GOCRYPTFS.identify(&*lower).expect("identified");
    assert!(matches!(&verdict, Verdict::Possible(why) if why[0].contains(CONFIG)), "{verdict:?}");
    let before = seen(&view(plain.path()));
    assert_eq!(fs::read_dir(plain.path()).expect("listed").count(), 2);

    let with = [given()];
    gocryptfs::change_passphrase(&*lower, &secret("another"), None, &reversed(&with)).expect("changed");
    assert!(matches!(view_with(plain.path(), given()).err().expect("changed").kind, ErrorKind::WrongCredential(_)));
    let after = seen(&view_with(plain.path(), Credential::Passphrase(secret("another"))).expect("it opens"));
    let contents = |seen: Seen| seen.into_iter().filter(|(path, _)| path != "/gocryptfs.conf").collect::<Vec<_>>();
    assert!(contents(before) == contents(after), "the key is the same");
    assert_eq!(fs::read_dir(plain.path()).expect("listed").count(), 2);

    // Nothing proves a master key.
    let tree = view_with(plain.path(), Credential::VolumeKey(secret(&"ab".repeat(32)))).expect("it opens");
    assert!(!tree.proven() && tree.warnings()[0].contains("could not be checked"), "{:?}", tree.warnings());
    let with = [Credential::VolumeKey(secret(&"ab".repeat(32)))];
    let changed = gocryptfs::change_passphrase(&*lower, &secret("another"), None, &reversed(&with));
    assert!(matches!(changed.expect_err("unproven").kind, ErrorKind::Misuse(_)));

    // A configuration for another cipher is refused: nonces repeat.
    fs::remove_file(plain.path().join(CONFIG)).expect("removed");
    let forward = tempfile::tempdir().expect("a folder");
    crate::support::gocryptfs::create(forward.path(), &other);
    fs::copy(forward.path().join("gocryptfs.conf"), plain.path().join(CONFIG)).expect("copied");
    let error = view_with(plain.path(), given()).err().expect("unsafe");
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
}
