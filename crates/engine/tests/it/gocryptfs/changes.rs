//! Changes of names, interrupted at every step, and refused ones.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind as Kind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use claviger_engine::file_formats::Stacked;
use claviger_engine::file_formats::gocryptfs::{self, NameEncryption, NewFolder};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{Attributes, Entry, HeldNode, NewNode, Node, NodeKind, Renaming, Space, Tree, find};
use claviger_engine::{Credential, Unlock};

use crate::support::fat;
use crate::support::gocryptfs::{PASSPHRASE, create, open, open_with, read, secret, seen};
use crate::support::killed::Killed;
use crate::support::noise;

const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };
const FOLDER: NewNode = NewNode { mode: Some(0o755), owner: None };

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn long(of: &str) -> String {
    of.repeat(200 / of.len())
}

fn killed_after(folder: &Path, left: usize) -> (Arc<Killed>, Stacked) {
    let folder = HostFolder::open(folder, Access::ReadWrite).expect("it opens");
    let below = Arc::new(Killed::new(folder, left));
    let tree = open_with(below.clone(), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens");
    (below, tree)
}

/// The names of a folder. What is left out must be left over: nothing of anybody.
fn names(tree: &Stacked) -> BTreeSet<String> {
    let listing = tree.list_all(tree.root()).expect("listed");
    for name in &listing.left_out {
        let stored = name.name.as_bytes();
        assert!(stored.starts_with(b"gocryptfs.unfinished.") || stored.ends_with(b".name"), "{name:?}");
    }
    for entry in &listing.entries {
        let node = HeldNode::take(tree, tree.root(), entry).expect("it is there");
        match entry.kind {
            NodeKind::Folder => assert!(tree.list(node.node()).is_ok(), "{}", entry.name.display()),
            NodeKind::File => assert!(matches!(&read(tree, node.node())[..], b"" | b"one" | b"two")),
            NodeKind::Link => assert_eq!(tree.link_target(node.node()).expect("a target"), "target"),
            NodeKind::Special => panic!("there is none"),
        }
    }
    listing.entries.into_iter().map(|entry| entry.name.into_string().expect("text")).collect()
}

/// A change of names, from those to these.
struct Change {
    what: &'static str,
    before: Vec<String>,
    after: Vec<String>,
    /// What there is between them: only where the format allows no better.
    between: Option<Vec<String>>,
    change: fn(&Stacked) -> io::Result<()>,
}

/// Makes the names of a change: files hold their first three letters, folders begin with "folder".
fn make(tree: &Stacked, names: &[String]) {
    for path in names {
        let node = match path.starts_with("folder") {
            true => tree.make_folder(tree.root(), name(path), &FOLDER).expect("made"),
            false => {
                let node = tree.create(tree.root(), name(path), &NEW).expect("created");
                tree.write_at(node, 0, &path.as_bytes()[..3]).expect("written");
                node
            }
        };
        tree.forget(node, 1);
    }
}

fn changes() -> Vec<Change> {
    let of = |what, before: &[&str], after: &[&str], change| {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Change { what, before: strings(before), after: strings(after), between: None, change }
    };
    fn renamed(tree: &Stacked, from: &str, to: &str, how: Renaming) -> io::Result<()> {
        tree.rename(tree.root(), name(from), tree.root(), name(to), how)
    }
    let (one, two) = (&*long("one"), &*long("two"));
    let (folder, other) = (&*long("folder"), &*long("folders"));
    vec![
        of("a new long name", &[], &[one], |tree| tree.create(tree.root(), name(&long("one")), &NEW).map(drop)),
        of("a new link", &[], &["link"], |tree| {
            tree.make_link(tree.root(), name("link"), name("target"), &NEW).map(drop)
        }),
        of("a new folder", &[], &["folder"], |tree| tree.make_folder(tree.root(), name("folder"), &FOLDER).map(drop)),
        of("a new closed folder", &[], &["folder"], |tree| {
            let new = NewNode { mode: Some(0o500), owner: None };
            tree.make_folder(tree.root(), name("folder"), &new).map(drop)
        }),
        of("a new folder with a long name", &[], &[folder], |tree| {
            tree.make_folder(tree.root(), name(&long("folder")), &FOLDER).map(drop)
        }),
        of("a hard link", &["one"], &["one", two], |tree| {
            let one = HeldNode::lookup(tree, tree.root(), name("one"))?;
            tree.add_name(one.node(), tree.root(), name(&long("two"))).map(drop)
        }),
        of("short to long", &["one"], &[two], |tree| renamed(tree, "one", &long("two"), Renaming::Replace)),
        of("long to short", &[one], &["two"], |tree| renamed(tree, &long("one"), "two", Renaming::Replace)),
        of("long to long", &[one], &[two], |tree| renamed(tree, &long("one"), &long("two"), Renaming::Keep)),
        of("over another", &[one, two], &[two], |tree| renamed(tree, &long("one"), &long("two"), Renaming::Replace)),
        of("exchanged", &[one, "two"], &[one, "two"], |tree| renamed(tree, &long("one"), "two", Renaming::Exchange)),
        of("a folder", &["folder"], &[folder], |tree| renamed(tree, "folder", &long("folder"), Renaming::Replace)),
        Change {
            between: Some(vec![folder.to_owned()]),
            ..of("a folder over an empty one", &[folder, other], &[other], |tree| {
                renamed(tree, &long("folder"), &long("folders"), Renaming::Replace)
            })
        },
        of("a long name removed", &[one], &[], |tree| tree.remove(tree.root(), name(&long("one")))),
        of("a folder removed", &["folder"], &[], |tree| tree.remove(tree.root(), name("folder"))),
        of("a folder with a long name removed", &[folder], &[], |tree| tree.remove(tree.root(), name(&long("folder")))),
    ]
}

#[test]
fn a_program_killed_at_any_step_leaves_the_old_name_or_the_new_one() {
    for kind in [NameEncryption::PerFolder, NameEncryption::Deterministic] {
        for Change { what, before, after, between, change } in changes() {
            let set = |names: &Vec<String>| names.iter().cloned().collect::<BTreeSet<_>>();
            for left in 0.. {
                let folder = tempfile::tempdir().expect("a folder");
                create(folder.path(), &NewFolder { log_n: 10, names: kind, ..NewFolder::default() });
                make(&open(folder.path()), &before);
                let (below, tree) = killed_after(folder.path(), left);
                let done = change(&tree);
                let all = below.lives();
                drop(tree);
                let now = names(&open(folder.path()));
                let allowed =
                    [Some(&before), Some(&after), between.as_ref()].into_iter().flatten().any(|set_| set(set_) == now);
                assert!(allowed, "{what}, killed after {left} changes: {now:?}");
                if done.is_ok() {
                    assert_eq!(now, set(&after), "{what}, after {left} changes");
                }
                // What is left over is in nobody's way.
                let tree = open(folder.path());
                let again = change(&tree);
                if now == set(&before) && before != after {
                    again.unwrap_or_else(|e| panic!("{what}, again after {left} changes: {e}"));
                    assert_eq!(names(&tree), set(&after), "{what}");
                }
                if all {
                    done.unwrap_or_else(|e| panic!("{what}: {e}"));
                    let stored = tree.list_all(tree.root()).expect("listed");
                    assert!(stored.left_out.is_empty(), "{what}: {:?}", stored.left_out);
                    break;
                }
            }
        }
    }
}

#[test]
fn a_file_that_is_extended_keeps_its_other_blocks_when_the_program_is_killed() {
    let old: Vec<u8> = (0..10_000).map(|i| (i / 7) as u8).collect();
    let changes: [fn(&Stacked, Node) -> io::Result<()>; 4] = [
        |tree, node| tree.append(node, &[1; 20_000]),
        |tree, node| tree.write_at(node, 50_000, b"far away"),
        |tree, node| tree.set_len(node, 100_001),
        |tree, node| tree.set_len(node, 9000),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for left in 0.. {
            let folder = tempfile::tempdir().expect("a folder");
            create(folder.path(), &NewFolder { log_n: 10, ..NewFolder::default() });
            let tree = open(folder.path());
            let node = tree.create(tree.root(), name("file"), &NEW).expect("created");
            tree.write_at(node, 0, &old).expect("written");
            drop(tree);
            let (below, tree) = killed_after(folder.path(), left);
            let file = find(&tree, name("file")).expect("found");
            let done = change(&tree, file);
            let all = below.lives();
            drop(tree);
            let tree = open(folder.path());
            let file = find(&tree, name("file")).expect("found");
            // The last block is written anew, and may be lost: the format has no place for two.
            let mut whole = vec![0; 8192];
            assert_eq!(tree.read_at(file, 0, &mut whole).expect("read"), 8192);
            assert!(whole == old[..8192], "change {number}, killed after {left} steps");
            if all {
                done.expect("nobody stopped it");
                break;
            }
        }
    }
}

/// A folder in which a file cannot have more than so many bytes.
struct Full {
    below: Arc<dyn Tree>,
    /// Whether nothing at all is written after a write that failed.
    for_good: bool,
    failed: AtomicBool,
}

impl Full {
    fn new(folder: &Path, for_good: bool) -> Arc<Self> {
        Arc::new(Self { below: crate::support::gocryptfs::host(folder), for_good, failed: AtomicBool::new(false) })
    }
}

impl Tree for Full {
    fn root(&self) -> Node {
        self.below.root()
    }
    fn writable(&self) -> bool {
        true
    }
    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.below.lookup(folder, name)
    }
    fn forget(&self, node: Node, times: u64) {
        self.below.forget(node, times);
    }
    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.below.attributes(node)
    }
    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        self.below.list(folder)
    }
    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.below.read_at(file, offset, out)
    }
    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset + data.len() as u64 > 12_000 || self.for_good && self.failed.load(Ordering::Relaxed) {
            self.failed.store(true, Ordering::Relaxed);
            return Err(Kind::StorageFull.into());
        }
        self.below.write_at(file, offset, data)
    }
    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
        self.below.set_len(file, len)
    }
    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

/// A new folder, with a file of 5000 bytes.
fn create_with_a_file(folder: &Path) {
    create(folder, &NewFolder { log_n: 10, ..NewFolder::default() });
    let tree = open(folder);
    let node = tree.create(tree.root(), name("file"), &NEW).expect("created");
    tree.write_at(node, 0, &[7; 5000]).expect("written");
}

/// The last block was sealed as a whole one by then, and stays so.
#[test]
fn a_write_that_fails_and_cannot_be_undone_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    create_with_a_file(folder.path());
    let below = Full::new(folder.path(), true);
    let tree = open_with(below.clone(), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens");
    let file = find(&tree, name("file")).expect("found");
    assert_eq!(tree.append(file, &[1; 30_000]).expect_err("full").kind(), Kind::StorageFull);
    let left = read(&tree, file);
    assert!(left.starts_with(&[7; 5000]) && left[5000..].iter().all(|byte| [0, 1].contains(byte)), "{}", left.len());
    // There is room again, and a program writes the end anew.
    below.failed.store(false, Ordering::Relaxed);
    tree.write_at(file, 4096, &[8; 904]).expect("there is room");
    let expected = [&[7; 4096][..], &[8; 904], &left[5000..]].concat();
    assert_eq!(read(&tree, file), expected);
    drop(tree);
    let tree = open(folder.path());
    assert_eq!(read(&tree, find(&tree, name("file")).expect("found")), expected);
}

#[test]
fn a_write_that_fails_leaves_the_file_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    create_with_a_file(folder.path());
    let tree =
        open_with(Full::new(folder.path(), false), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens");
    let file = find(&tree, name("file")).expect("found");
    let stored = || {
        let files = fs::read_dir(folder.path()).expect("listed").map(|entry| entry.expect("an entry"));
        let encrypted = files.filter(|entry| !entry.file_name().as_bytes().starts_with(b"gocryptfs."));
        encrypted.map(|entry| entry.metadata().expect("known").len()).next().expect("one")
    };
    let before = stored();
    for _ in 0..2 {
        assert_eq!(tree.append(file, &[1; 30_000]).expect_err("full").kind(), Kind::StorageFull);
        assert_eq!(tree.write_at(file, 40_000, b"x").expect_err("full").kind(), Kind::StorageFull);
        assert_eq!(tree.set_len(file, 40_001).expect_err("full").kind(), Kind::StorageFull);
        assert_eq!((stored(), read(&tree, file)), (before, vec![7; 5000]));
    }
    tree.append(file, &[8; 100]).expect("there is room");
    assert_eq!(read(&tree, file).len(), 5100);
}

#[test]
fn folders_are_removed_only_when_empty_and_come_back_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &NewFolder { log_n: 10, ..NewFolder::default() });
    let tree = open(folder.path());
    let root = tree.root();
    for of in ["folder".to_owned(), long("folder")] {
        let node = tree.make_folder(root, name(&of), &FOLDER).expect("made");
        let again = tree.make_folder(root, name(&of), &FOLDER).expect_err("it is there");
        assert_eq!(again.kind(), Kind::AlreadyExists);
        tree.create(node, name("file"), &NEW).map(|file| tree.forget(file, 1)).expect("created");
        assert_eq!(tree.remove(root, name(&of)).expect_err("not empty").kind(), Kind::DirectoryNotEmpty);
        let other = tree.make_folder(root, name("other"), &FOLDER).expect("made");
        let over = tree.rename(root, name("other"), root, name(&of), Renaming::Replace).expect_err("not empty");
        assert_eq!(over.kind(), Kind::DirectoryNotEmpty);
        tree.remove(root, name("other")).expect("removed");
        tree.forget(other, 1);
        tree.remove(node, name("file")).expect("removed");
        tree.set_mode(node, 0o500).expect("closed");
        tree.forget(node, 1);
        tree.remove(root, name(&of)).expect("removed");
        assert_eq!(tree.remove(root, name(&of)).expect_err("gone").kind(), Kind::NotFound);
    }
    let stored: Vec<_> =
        fs::read_dir(folder.path()).expect("listed").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(stored.len(), 2, "only the folder's own files are left: {stored:?}");
}

#[test]
fn the_mode_of_a_new_folder_is_the_one_that_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &NewFolder { log_n: 10, ..NewFolder::default() });
    let tree = open(folder.path());
    for mode in [0o755, 0o700, 0o500, 0o000, 0o070] {
        let path = format!("{mode:o}");
        let new = NewNode { mode: Some(mode), owner: None };
        let node = tree.make_folder(tree.root(), name(&path), &new).expect("made");
        assert_eq!(tree.attributes(node).expect("known").mode, Some(mode), "{path}");
        tree.forget(node, 1);
    }
    let names: Vec<OsString> = tree.list(tree.root()).expect("listed").into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn a_long_name_that_is_one_of_two_of_a_file_stays_when_it_is_renamed_to_the_other() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &NewFolder { log_n: 10, ..NewFolder::default() });
    let tree = open(folder.path());
    let root = tree.root();
    make(&tree, &[long("one")]);
    let one = tree.lookup(root, name(&long("one"))).expect("found");
    tree.add_name(one, root, name(&long("two"))).expect("linked");
    // rename(2) does nothing then.
    tree.rename(root, name(&long("one")), root, name(&long("two")), Renaming::Replace).expect("done");
    assert_eq!(names(&tree), BTreeSet::from([long("one"), long("two")]));
    assert!(tree.list_all(root).expect("listed").left_out.is_empty());
    tree.rename(root, name(&long("one")), root, name(&long("one")), Renaming::Replace).expect("done");
    assert_eq!(names(&tree).len(), 2);
    assert_eq!(tree.create(root, name(&long("one")), &NEW).expect_err("it is there").kind(), Kind::AlreadyExists);
    assert_eq!(names(&tree).len(), 2);
}

/// FAT has neither permissions nor holes, and finds names in any letter case.
#[test]
fn a_folder_can_be_on_fat() {
    let Some(image) = fat::mkfs(&["-F", "32"], 64 << 10) else { return };
    let lower: Arc<dyn Tree> = Arc::from(fat::open(image.in_memory()));
    let new = NewFolder { log_n: 10, ..NewFolder::default() };
    gocryptfs::create(&*lower, &secret(PASSPHRASE), &new, &Unlock::with(&[])).expect("created");
    let again = || open_with(lower.clone(), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens");
    let tree = again();
    let root = tree.root();
    let file = tree.create(root, name(&long("file")), &NEW).expect("created");
    tree.write_at(file, 0, &noise(10_000, 1)).and_then(|()| tree.write_at(file, 50_000, b"end")).expect("written");
    tree.set_len(file, 60_000).and_then(|()| tree.set_len(file, 55_001)).expect("resized");
    let mut expected = noise(10_000, 1);
    expected.resize(50_000, 0);
    expected.extend(b"end");
    expected.resize(55_001, 0);
    assert!(read(&tree, file) == expected);
    for (of, mode) in [("folder".to_owned(), 0o755), (long("folder"), 0o500)] {
        let made = tree.make_folder(root, name(&of), &NewNode { mode: Some(mode), owner: None }).expect("made");
        tree.rename(root, name(&long("file")), made, name("inner"), Renaming::Replace).expect("renamed");
        assert!(read(&tree, file) == expected);
        assert_eq!(tree.remove(root, name(&of)).expect_err("not empty").kind(), Kind::DirectoryNotEmpty);
        tree.rename(made, name("inner"), root, name(&long("file")), Renaming::Replace).expect("renamed");
        tree.rename(root, name(&of), root, name("renamed"), Renaming::Replace).expect("renamed");
        tree.create(made, name(&long("in")), &NEW).expect("its IV went with it");
        tree.remove(made, name(&long("in"))).and_then(|()| tree.remove(root, name("renamed"))).expect("removed");
    }
    tree.finish().expect("durable");
    drop(tree);
    let all = seen(&again());
    assert_eq!(all.len(), 1);
    assert!(all[name(&format!("/{}", long("file")))].1 == expected);
    assert_eq!(lower.list(lower.root()).expect("listed").len(), 4, "nothing else is left");
}

#[test]
fn a_block_that_is_read_while_it_is_written_is_the_old_one_or_the_new_one() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &NewFolder { log_n: 10, ..NewFolder::default() });
    let tree = open(folder.path());
    let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
    tree.write_at(file, 0, &[0; 20_000]).expect("written");
    thread::scope(|scope| {
        for writer in 1..=2u8 {
            let tree = &tree;
            scope.spawn(move || {
                for round in 0..200usize {
                    let at = round * 37 % 12_000;
                    tree.write_at(file, at as u64, &[writer; 8000]).expect("written");
                    if round % 20 == 0 {
                        tree.set_len(file, 20_000 + round as u64).expect("resized");
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..400u64 {
                    let mut part = [0xee; 9000];
                    let len = tree.read_at(file, round * 31 % 11_000, &mut part).expect("every block verifies");
                    assert!(len == part.len() && part.iter().all(|byte| *byte <= 2));
                }
            });
        }
    });
    drop(tree);
    assert!(seen(&open(folder.path()))[name("/file")].1.iter().all(|byte| *byte <= 2));
}

#[test]
fn threads_that_make_and_remove_the_same_long_name_leave_it_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    create(folder.path(), &NewFolder { log_n: 10, ..NewFolder::default() });
    let tree = open(folder.path());
    let (root, path) = (tree.root(), long("one"));
    thread::scope(|scope| {
        for worker in 0..3 {
            let (tree, path) = (&tree, &path);
            scope.spawn(move || {
                for round in 0..150 {
                    let done = match (round + worker) % 3 {
                        0 => tree.create(root, name(path), &NEW).map(|node| tree.forget(node, 1)),
                        1 => tree.remove(root, name(path)),
                        _ => tree.rename(root, name(path), root, name(&format!("{path}{worker}")), Renaming::Replace),
                    };
                    let kind = done.map_err(|e| e.kind());
                    assert!(matches!(kind, Ok(()) | Err(Kind::NotFound | Kind::AlreadyExists)), "{kind:?}");
                }
            });
        }
    });
    let listing = tree.list_all(root).expect("listed");
    assert!(listing.left_out.is_empty(), "{:?}", listing.left_out);
}
