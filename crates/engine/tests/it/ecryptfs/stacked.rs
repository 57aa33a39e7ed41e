//! A tree over a tree, in a format made up here and in clear, against a model and across crashes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::file_format::{HEADER, TestKeys, sum};
use claviger_engine::file_formats::{self, FileKeys, NameIv, Stacked};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{
    Attributes, Entry, HeldNode, NewNode, Node, NodeKind, NodeStore, Renaming, Setting, Space, Tree, Use, copy, find,
};
use claviger_engine::{Credential, ErrorKind as Kind, Secret, Store, Unlock};
use claviger_testkit::random::Random;

const BOTH: Use = Use { read: true, write: true };
const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn host(folder: &Path) -> Arc<dyn Tree> {
    Arc::new(HostFolder::open(folder, Access::ReadWrite).expect("it opens"))
}

/// A way to see a folder, and bytes of a sector; none in clear.
type Open = fn(&Path) -> (Stacked, Option<u64>);

const WAYS: [Open; 3] = [
    |folder| (Stacked::new(host(folder), Box::new(TestKeys::new(512, 1))), Some(512)),
    |folder| (Stacked::new(host(folder), Box::new(TestKeys::new(4096, 1))), Some(4096)),
    |folder| (file_formats::open(host(folder), Some("clear"), &Unlock::with(&[])).expect("it opens"), None),
];

fn read_all(tree: &dyn Tree, node: Node) -> Vec<u8> {
    let size = tree.attributes(node).expect("known").size as usize;
    let mut bytes = vec![0xee; size + 10];
    let len = tree.read_at(node, 0, &mut bytes).expect("read");
    assert_eq!(len, size);
    bytes.truncate(len);
    bytes
}

fn compare(tree: &dyn Tree, model: &BTreeMap<String, Vec<u8>>) {
    let mut names: Vec<_> = tree.list(tree.root()).expect("listed").into_iter().map(|e| e.name).collect();
    names.sort();
    assert_eq!(names, model.keys().map(OsString::from).collect::<Vec<_>>());
    for (path, bytes) in model {
        let file = find(tree, name(path)).expect("found");
        assert!(read_all(tree, file) == *bytes, "{path} holds something else");
        tree.forget(file, 1);
    }
    assert!(tree.warnings().is_empty(), "{:?}", tree.warnings());
}

/// A length near a border of something, or any.
fn length(random: &mut Random) -> usize {
    match random.below(3) {
        0 => random.choose(&[0usize, 512, 1024, 4096, 8192, 12288]).saturating_add_signed(random.below(3) as isize - 1),
        1 => random.below(600),
        _ => random.below(20_000),
    }
}

#[test]
fn whatever_is_done_a_model_agrees() {
    for (seed, open) in WAYS.into_iter().enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut random = Random::new(seed as u64);
        let mut model = BTreeMap::<String, Vec<u8>>::new();
        let (mut tree, mut sector) = open(folder.path());
        // Some files are open while things are done to them by name, too.
        let mut opened: Vec<(Node, String)> = Vec::new();
        for step in 0..1200 {
            let path = random.choose(&["a", "b", "c", "some longer name", "\u{e4}"]).to_string();
            let root = tree.root();
            let Some(bytes) = model.get_mut(&path) else {
                let node = tree.create_open(root, name(&path), &NEW, BOTH).expect("created");
                opened.push((node, path.clone()));
                model.insert(path, Vec::new());
                continue;
            };
            let node = tree.lookup(root, name(&path)).expect("found");
            let (at, len) = (length(&mut random), length(&mut random));
            match random.below(12) {
                0..=4 => {
                    let data = random.bytes(len);
                    tree.write_at(node, at as u64, &data).expect("written");
                    if len > 0 {
                        bytes.resize(bytes.len().max(at + len), 0);
                        bytes[at..at + len].copy_from_slice(&data);
                    }
                }
                5 | 6 => {
                    tree.set_len(node, len as u64).expect("resized");
                    bytes.resize(len, 0);
                }
                7 | 8 => {
                    let mut out = vec![0; len];
                    let read = tree.read_at(node, at as u64, &mut out).expect("read");
                    let there = bytes.get(at..).unwrap_or_default();
                    assert!(out[..read] == there[..there.len().min(len)], "seed {seed}, step {step}");
                }
                9 => {
                    let to = random.choose(&["a", "b", "d"]).to_string();
                    tree.rename(root, name(&path), root, name(&to), Renaming::Replace).expect("renamed");
                    opened.retain(|(node, of)| *of == path || *of != to || tree.release(*node).is_err());
                    opened.iter_mut().filter(|(_, of)| *of == path).for_each(|(_, of)| of.clone_from(&to));
                    let bytes = model.remove(&path).expect("there");
                    model.insert(to, bytes);
                }
                10 => {
                    tree.remove(root, name(&path)).expect("removed");
                    // The open file still exists.
                    assert!(read_all(&tree, node) == *bytes);
                    opened.retain(|(node, of)| *of != path || tree.release(*node).is_err());
                    model.remove(&path);
                }
                _ if random.below(8) == 0 => {
                    compare(&tree, &model);
                    (tree, sector) = open(folder.path());
                    opened.clear();
                    continue;
                }
                _ => tree.sync(node, false).expect("durable"),
            }
            tree.forget(node, 1);
        }
        tree.finish().expect("durable");
        compare(&tree, &model);
        compare(&open(folder.path()).0, &model);
        for entry in fs::read_dir(folder.path()).expect("listed").map(|e| e.expect("an entry")) {
            let stored = fs::read(entry.path()).expect("read");
            match sector {
                None => assert!(stored == model[entry.file_name().to_str().expect("text")]),
                Some(sector) => {
                    assert!(entry.file_name().as_bytes().starts_with(b"E."));
                    let len = |plain: &Vec<u8>| HEADER + (plain.len() as u64).next_multiple_of(sector);
                    assert!(model.values().any(|plain| len(plain) == stored.len() as u64), "{}", stored.len());
                    let contents = &stored[HEADER as usize..];
                    let seen = |plain: &Vec<u8>| plain.len() > 32 && contents.windows(32).any(|w| w == &plain[..32]);
                    assert!(!model.values().any(seen), "plaintext is stored");
                }
            }
        }
    }
}

#[test]
fn names_links_and_attributes_pass_through_the_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, _) = WAYS[0](folder.path());
    let root = tree.root();
    let sub = tree.make_folder(root, name("sub"), &NEW).expect("made");
    let link = tree.make_link(sub, name("link"), name("../target"), &NEW).expect("made");
    assert_eq!(tree.link_target(link).expect("it"), "../target");
    let (of, below) = (tree.attributes(link).expect("known"), fs::read_dir(folder.path()).expect("listed").count());
    assert_eq!((of.kind, of.size, below), (NodeKind::Link, 9, 1));
    let stored = fs::read_dir(fs::read_dir(folder.path()).expect("it").next().expect("one").expect("it").path());
    let stored = fs::read_link(stored.expect("listed").next().expect("one").expect("it").path()).expect("a link");
    assert!(stored.as_os_str().as_bytes().starts_with(b"E."));
    let file = tree.create(sub, name("file"), &NEW).expect("created");
    let again = tree.add_name(file, root, name("second")).expect("linked");
    assert_eq!((again, tree.attributes(file).expect("known").links), (file, 2));
    tree.set_mode(file, 0o600).expect("set");
    assert_eq!(tree.attributes(file).expect("known").mode, Some(0o600));
    match tree.set_extended(file, name("user.mine"), b"1", Setting::Any) {
        Err(e) if e.kind() == ErrorKind::Unsupported => {}
        set => {
            set.expect("set");
            assert_eq!(tree.list_extended(file).expect("listed"), ["user.mine"]);
        }
    }
    let hidden = name("user.testformat");
    assert_eq!(tree.set_extended(file, hidden, b"", Setting::Any).expect_err("no").kind(), ErrorKind::PermissionDenied);
    assert_eq!(tree.remove_extended(file, hidden).expect_err("no").kind(), ErrorKind::PermissionDenied);
    assert_eq!(tree.extended(file, hidden).expect("none"), None);
    let long = "x".repeat(112);
    assert_eq!(tree.create(root, name(&long), &NEW).expect_err("too long").kind(), ErrorKind::InvalidFilename);
    assert!(tree.space().expect("known").longest_name == 111 && tree.create(root, name(&long[1..]), &NEW).is_ok());
    for bad in ["", ".", "..", "a/b", "a\0"] {
        assert_eq!(tree.create(root, name(bad), &NEW).expect_err("no name").kind(), ErrorKind::InvalidInput);
        assert_eq!(tree.lookup(root, name(bad)).expect_err("no name").kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn names_of_others_are_left_out_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, _) = WAYS[0](folder.path());
    tree.create(tree.root(), name("mine"), &NEW).expect("created");
    let other = Stacked::new(host(folder.path()), Box::new(TestKeys::new(512, 2)));
    other.create(other.root(), name("theirs"), &NEW).expect("created");
    fs::write(folder.path().join("in clear"), "").expect("written");
    // Somebody with the key who can write to the lower folder makes names that lead outside it.
    for evil in ["..", "a/b", "", "/etc/passwd"] {
        let stored = TestKeys::new(512, 1).stored_name(name(evil), &NameIv::default()).expect("it encrypts anything");
        fs::write(folder.path().join(stored), "").expect("written");
    }
    for _ in 0..2 {
        let names: Vec<_> = tree.list(tree.root()).expect("listed").into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["mine"]);
        let undecrypted = "2 names do not decrypt with this key and are not shown.";
        let invalid = "4 decrypted names are not valid, and are not shown. claviger verify names them.";
        assert_eq!(tree.warnings(), [undecrypted, invalid]);
    }
    let entries = tree.list(tree.root()).expect("listed");
    let taken = tree.take(tree.root(), &entries[0]).expect("taken");
    assert_eq!(tree.attributes(taken).expect("known").size, 0);
    // In a folder that is given back and found again, they are the same.
    tree.make_folder(tree.root(), name("folder"), &NewNode::default())
        .map(|folder| tree.forget(folder, 1))
        .expect("made");
    let stored = TestKeys::new(512, 1).stored_name(name("folder"), &NameIv::default()).expect("a name");
    fs::write(folder.path().join(stored).join("in clear"), "").expect("written");
    for _ in 0..3 {
        let inner = HeldNode::lookup(&tree, tree.root(), name("folder")).expect("found");
        assert_eq!(tree.list(inner.node()).expect("listed").len(), 0);
        assert_eq!(tree.left_out(), 7);
    }
}

#[test]
fn the_header_of_a_file_that_is_copied_is_read_once() {
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let keys = TestKeys::new(4096, 1);
    let layouts = keys.layouts.clone();
    let tree = Stacked::new(host(from.path()), Box::new(keys));
    let file = tree.create(tree.root(), name("file"), &NEW).expect("created");
    tree.write_at(file, 0, &vec![7; 5 << 20]).expect("written");
    layouts.store(0, Ordering::Relaxed);
    copy::copy(&tree, &*host(to.path()), &mut |_| Ok(()), &mut |_, e| Err(e)).expect("copied");
    assert!(fs::read(to.path().join("file")).expect("a copy") == vec![7; 5 << 20]);
    assert_eq!(layouts.load(Ordering::Relaxed), 2, "for its size, and to read it");
}

#[test]
fn the_headers_of_few_of_many_open_files_stay_loaded() {
    const FILES: usize = 1100;
    let folder = tempfile::tempdir().expect("a folder");
    let keys = TestKeys::new(512, 1);
    let layouts = keys.layouts.clone();
    let tree = Stacked::new(host(folder.path()), Box::new(keys));
    let contents = |number: usize| number.to_le_bytes().repeat(100);
    let files: Vec<_> = (0..FILES)
        .map(|number| {
            let file = tree.create_open(tree.root(), name(&number.to_string()), &NEW, BOTH).expect("created");
            tree.write_at(file, 0, &contents(number)).expect("written");
            file
        })
        .collect();
    let hold = |files: &[Node], from: usize| {
        files
            .iter()
            .zip(from..)
            .for_each(|(file, number)| assert!(read_all(&tree, *file) == contents(number), "{number}"));
    };
    hold(&files, 0);
    for file in &files[..50] {
        tree.write_at(*file, 3, b"more").expect("written");
        tree.append(*file, b"at the end").expect("written");
    }
    layouts.store(0, Ordering::Relaxed);
    for (number, file) in files[..50].iter().enumerate() {
        let mut expected = contents(number);
        expected[3..7].copy_from_slice(b"more");
        expected.extend(b"at the end");
        assert!(read_all(&tree, *file) == expected, "{number}");
    }
    assert_eq!(layouts.load(Ordering::Relaxed), 0);
    hold(&files[50..], 50);
    assert!(layouts.load(Ordering::Relaxed) >= FILES - 1024, "not all of them stay");
    files.iter().for_each(|file| tree.release(*file).expect("released"));
}

#[test]
fn many_at_once_see_only_what_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, _) = WAYS[1](folder.path());
    let node = tree.create_open(tree.root(), name("file"), &NEW, BOTH).expect("created");
    // Each has its own stripes of 1000 bytes, which share sectors with those of others; the file grows in the meantime.
    thread::scope(|scope| {
        for who in 0..4u64 {
            let tree = &tree;
            scope.spawn(move || {
                for round in 0..60 {
                    let at = (round * 4 + who) * 1000;
                    tree.write_at(node, at, &[who as u8 + 1; 1000]).expect("written");
                    let mut out = [0; 1000];
                    assert_eq!(tree.read_at(node, at, &mut out).expect("read"), 1000);
                    assert!(out.iter().all(|b| *b == who as u8 + 1), "{who} reads what it did not write");
                }
            });
        }
    });
    let bytes = read_all(&tree, node);
    assert!(
        bytes.len() == 240_000 && bytes.chunks(1000).enumerate().all(|(i, c)| c.iter().all(|b| *b == i as u8 % 4 + 1))
    );
    tree.release(node).expect("closed");
}

#[test]
fn hostile_headers_give_errors_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, _) = WAYS[0](folder.path());
    let node = tree.create(tree.root(), name("file"), &NEW).expect("created");
    tree.write_at(node, 0, &[7; 3000]).expect("written");
    drop(tree);
    let path = fs::read_dir(folder.path()).expect("listed").next().expect("one").expect("it").path();
    let good = fs::read(&path).expect("read");
    let with = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let sum = sum(&bytes);
        bytes[96..104].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let mut bad: Vec<Vec<u8>> = vec![good[..50].to_vec(), good[..103].to_vec(), [0; 4096].to_vec()];
    for value in [0, 1, 511, 513, 1 << 31, 1 << 63, u64::MAX] {
        bad.extend([with(0, value), with(24, value), with(8, value)]);
    }
    for size in [(1 << 50) + 1, 1 << 63, u64::MAX] {
        bad.push(with(16, size));
    }
    for (i, bytes) in bad.iter().enumerate() {
        fs::write(&path, bytes).expect("written");
        let (tree, _) = WAYS[0](folder.path());
        let node = tree.lookup(tree.root(), name("file")).expect("found");
        let refused = |e: io::Error| assert_eq!(e.kind(), ErrorKind::InvalidData, "{i}: {e}");
        refused(tree.read_at(node, 0, &mut [0; 10]).expect_err("refused"));
        refused(tree.write_at(node, 0, &[0; 10]).expect_err("refused"));
        refused(tree.set_len(node, 0).expect_err("refused"));
        assert_eq!(tree.attributes(node).expect("it can be seen").size, bytes.len() as u64);
        assert!(fs::read(&path).expect("read") == *bytes, "{i}: something was written");
        tree.remove(tree.root(), name("file")).expect("it can be removed");
    }
    // A possible size, but missing contents: the existing part can be read, and the rest is not made up.
    for (bytes, size) in [(with(16, 1 << 50), 1 << 50), (good[..HEADER as usize + 1024].to_vec(), 3000)] {
        fs::write(&path, &bytes).expect("written");
        let (tree, _) = WAYS[0](folder.path());
        let node = tree.lookup(tree.root(), name("file")).expect("found");
        let mut out = [0; 1024];
        assert_eq!((tree.read_at(node, 0, &mut out).expect("read"), out), (1024, [7; 1024]));
        assert_eq!(tree.attributes(node).expect("known").size, size);
        for refused in [
            tree.read_at(node, size - 10, &mut [0; 10]).map(drop),
            tree.write_at(node, size, &[0; 10]),
            tree.write_at(node, (size / 2).next_multiple_of(512), &[0; 512]),
            tree.set_len(node, size + 1),
            tree.set_len(node, size - 1),
        ] {
            assert!(refused.is_err());
        }
        assert!(fs::read(&path).expect("read") == bytes);
        tree.set_len(node, 1000).expect("what is there can be kept");
        assert_eq!(read_all(&tree, node), [7; 1000]);
        tree.write_at(node, 1000, &[8; 10]).expect("written");
    }
}

#[test]
fn a_file_whose_making_was_cut_short_is_empty_and_can_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let stored = TestKeys::new(512, 1).stored_name(name("file"), &NameIv::default()).expect("a name");
    fs::write(folder.path().join(&stored), "").expect("written");
    let (tree, _) = WAYS[0](folder.path());
    let node = tree.lookup(tree.root(), name("file")).expect("found");
    assert_eq!((tree.attributes(node).expect("known").size, tree.read_at(node, 0, &mut [0]).expect("read")), (0, 0));
    tree.write_at(node, 5, b"hello").expect("written");
    assert_eq!(read_all(&tree, node), b"\0\0\0\0\0hello");
    assert_eq!(fs::metadata(folder.path().join(stored)).expect("there").len(), HEADER + 512);
}

#[test]
fn clear_takes_no_credential_and_is_never_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let password = [Credential::Passphrase(Secret::copy_from(b"x"))];
    let error =
        file_formats::open(host(folder.path()), Some("Clear"), &Unlock::with(&password)).err().expect("refused");
    assert!(matches!(error.kind, Kind::CredentialKind { .. }), "{error}");
    let error = file_formats::open(host(folder.path()), None, &Unlock::with(&[])).err().expect("refused");
    assert!(matches!(error.kind, Kind::NotThisFormat(_)), "{error}");
    let error = file_formats::open(host(folder.path()), Some("none"), &Unlock::with(&[])).err().expect("refused");
    assert!(error.to_string().contains("clear"), "{error}");
}

#[test]
fn a_file_is_a_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = host(folder.path());
    let file = HeldNode::new(tree.clone(), tree.create(tree.root(), name("file"), &NEW).expect("created"));
    let store = NodeStore::new(tree.clone(), file.node());
    store.set_len(1000).expect("resized");
    store.write_clobbering(990, &mut [1; 10]).and_then(|()| store.flush()).expect("written");
    let mut out = [9; 20];
    store.read_at(980, &mut out).expect("read");
    assert_eq!((store.len(), out[9], out[10]), (1000, 0, 1));
    assert_eq!(store.read_at(981, &mut out).expect_err("past the end").kind(), ErrorKind::UnexpectedEof);
    drop(file);
    assert_eq!(store.len(), 0, "it was given back");
}

/// A tree of one file that records the calls since it was last durable.
#[derive(Default)]
struct Recorder(Mutex<Recorded>);

#[derive(Default)]
struct Recorded {
    exists: bool,
    bytes: Vec<u8>,
    durable: Vec<u8>,
    since: Vec<Done>,
    /// Changes until one fails for want of room.
    fails_after: Option<u64>,
}

#[derive(Clone)]
enum Done {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

const FILE: Node = 2;

fn apply(bytes: &mut Vec<u8>, done: &Done) {
    match done {
        Done::Write(at, data) => {
            let end = *at as usize + data.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[*at as usize..end].copy_from_slice(data);
        }
        Done::SetLen(len) => bytes.resize(*len as usize, 0),
    }
}

impl Recorded {
    fn does(&mut self, done: Done) {
        apply(&mut self.bytes, &done);
        self.since.push(done);
    }

    /// Whether the change that is to be done now fails.
    fn fails(&mut self) -> bool {
        let left = self.fails_after;
        self.fails_after = left.and_then(|left| left.checked_sub(1));
        left == Some(0)
    }
}

impl Recorder {
    /// Has a file of these bytes from now on.
    fn hold(&self, bytes: Vec<u8>) {
        *self.0.lock().expect("it") = Recorded { exists: true, durable: bytes.clone(), bytes, ..Recorded::default() };
    }

    /// States that a crash may leave now: the durable data, and some of the later writes, in sectors of 512 bytes.
    fn crashes(&self, random: &mut Random) -> Vec<Vec<u8>> {
        let recorded = self.0.lock().expect("it");
        let pieces: Vec<_> = recorded.since.iter().flat_map(torn).collect();
        let left = |chosen: &dyn Fn(usize) -> bool| {
            let mut bytes = recorded.durable.clone();
            pieces.iter().enumerate().filter(|(i, _)| chosen(*i)).for_each(|(_, done)| apply(&mut bytes, done));
            bytes
        };
        let mut all = Vec::new();
        if pieces.len() <= 7 {
            all.extend((0..1usize << pieces.len()).map(|bits| left(&|i| bits >> i & 1 == 1)));
            return all;
        }
        for one in 0..pieces.len() {
            all.extend([left(&|i| i == one), left(&|i| i != one), left(&|i| i < one)]);
        }
        for _ in 0..50 {
            let chosen: Vec<_> = pieces.iter().map(|_| random.below(2) == 1).collect();
            all.push(left(&|i| chosen[i]));
        }
        all
    }
}

fn torn(done: &Done) -> Vec<Done> {
    let Done::Write(at, data) = done else { return vec![done.clone()] };
    let mut pieces = Vec::new();
    let (mut at, mut rest) = (*at, &data[..]);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(512 - at as usize % 512));
        pieces.push(Done::Write(at, piece.to_vec()));
        (at, rest) = (at + piece.len() as u64, after);
    }
    pieces
}

impl Tree for Recorder {
    fn root(&self) -> Node {
        1
    }
    fn writable(&self) -> bool {
        true
    }
    fn lookup(&self, _folder: Node, _name: &OsStr) -> io::Result<Node> {
        if self.0.lock().expect("it").exists { Ok(FILE) } else { Err(ErrorKind::NotFound.into()) }
    }
    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        let kind = if node == FILE { NodeKind::File } else { NodeKind::Folder };
        Ok(Attributes::new(kind, self.0.lock().expect("it").bytes.len() as u64, node))
    }
    fn list(&self, _folder: Node) -> io::Result<Vec<Entry>> {
        Ok(Vec::new())
    }
    fn read_at(&self, _file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let recorded = self.0.lock().expect("it");
        let there = recorded.bytes.get(offset as usize..).unwrap_or_default();
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }
    fn write_at(&self, _file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut recorded = self.0.lock().expect("it");
        let fails = recorded.fails();
        // A disk writes each sector completely or not at all.
        let written = if fails { &data[..data.len() / 1024 * 512] } else { data };
        recorded.does(Done::Write(offset, written.to_vec()));
        if fails { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
    fn set_len(&self, _file: Node, len: u64) -> io::Result<()> {
        let mut recorded = self.0.lock().expect("it");
        if recorded.fails() {
            return Err(ErrorKind::StorageFull.into());
        }
        recorded.does(Done::SetLen(len));
        Ok(())
    }
    fn create(&self, _folder: Node, _name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        self.0.lock().expect("it").exists = true;
        Ok(FILE)
    }
    fn flush(&self) -> io::Result<()> {
        let mut recorded = self.0.lock().expect("it");
        recorded.durable = recorded.bytes.clone();
        recorded.since.clear();
        Ok(())
    }
    fn space(&self) -> io::Result<Space> {
        Ok(Space::new(1 << 40, 1 << 40, 512))
    }
}

/// A format, whether a file whose making was cut short is always known as that, and bytes of which a change may change the
/// ciphertext of all that is after it, so that the whole of it may be torn.
type Over = (fn(Arc<Recorder>) -> Stacked, bool, usize);

const FORMATS: [Over; 3] = [
    (|lower| Stacked::new(lower, Box::new(TestKeys::new(512, 3))), false, 1),
    (|lower| Stacked::new(lower, Box::new(TestKeys::new(4096, 3))), false, 1),
    (
        |lower| {
            let password = [Credential::Passphrase(Secret::copy_from(b"x"))];
            let mut with = Unlock::with(&password);
            with.folder.clear_names = true;
            file_formats::open(lower, Some("eCryptfs"), &with).expect("it opens")
        },
        true,
        4096,
    ),
];

#[test]
fn a_crash_loses_nothing_that_was_durable() {
    assert!(crashes(1) > 3000);
}

/// Looks at what crashes leave of changes of a file, and says at how many.
pub fn crashes(seed: u64) -> usize {
    let mut crashes = 0;
    for (over, always_known, chained) in FORMATS {
        let mut random = Random::new(seed);
        let left = Arc::new(Recorder::default());
        let after = over(left.clone());
        for round in 0..60 {
            let lower = Arc::new(Recorder::default());
            let tree = over(lower.clone());
            let node = tree.create_open(1, name("file"), &NEW, BOTH).expect("created");
            if round % 4 == 0 {
                // Nothing was durable: the file may be empty or damaged, but never holds data that were not written.
                for bytes in lower.crashes(&mut random) {
                    left.hold(bytes);
                    match after.read_at(FILE, 0, &mut [0; 100]) {
                        Ok(read) => assert_eq!(read, 0),
                        Err(error) => assert!(!always_known, "{error}"),
                    }
                    crashes += 1;
                }
            }
            let mut before = {
                let len = length(&mut random);
                random.bytes(len)
            };
            tree.write_at(node, 0, &before).expect("written");
            tree.sync(node, true).expect("durable");
            // Overwritten parts may be old, new or torn. All other parts that remain must be there.
            let mut kept = vec![true; before.len()];
            for _ in 0..1 + random.below(3) {
                let size = tree.attributes(node).expect("known").size as usize;
                let (at, len) = (length(&mut random), length(&mut random) % 3000);
                match random.below(4) {
                    0 => tree.write_at(node, (size + at) as u64, &random.bytes(len)).expect("written"),
                    1 => {
                        tree.write_at(node, at as u64, &random.bytes(len)).expect("written");
                        let end = if len == 0 { at } else { (at + len).next_multiple_of(chained) };
                        kept.iter_mut().take(end).skip(at).for_each(|kept| *kept = false);
                    }
                    2 => {
                        tree.set_len(node, at as u64).expect("resized");
                        kept.truncate(at);
                        before.truncate(at);
                    }
                    _ => tree.set_len(node, (size + at) as u64).expect("resized"),
                }
                for bytes in lower.crashes(&mut random) {
                    left.hold(bytes);
                    let mut out = vec![0; kept.len()];
                    let read = after.read_at(FILE, 0, &mut out).unwrap_or_else(|e| panic!("round {round}: {e}"));
                    assert_eq!(read, kept.len(), "round {round}: it is shorter than what was durable");
                    let lost = (0..read).find(|i| kept[*i] && out[*i] != before[*i]);
                    assert_eq!(lost, None, "round {round}: a byte that was durable is another");
                    crashes += 1;
                }
            }
            assert!(tree.release(node).is_ok());
        }
    }
    crashes
}

#[test]
fn a_change_that_fails_leaves_the_old_size_or_the_new_one() {
    type Change = fn(&Stacked) -> io::Result<()>;
    // Each change, and the size of the file after it.
    let changes: [(Change, usize); 4] = [
        (|tree| tree.append(FILE, &[9; 9000]), 19_000),
        (|tree| tree.write_at(FILE, 15_000, &[9; 5000]), 20_000),
        (|tree| tree.set_len(FILE, 30_000), 30_000),
        (|tree| tree.set_len(FILE, 3000), 3000),
    ];
    let before: Vec<u8> = Random::new(1).bytes(10_000);
    let mut failed = 0;
    for (over, _, _) in FORMATS {
        let lower = Arc::new(Recorder::default());
        let left = Arc::new(Recorder::default());
        let (tree, after) = (over(lower.clone()), over(left.clone()));
        for (change, new_size) in changes {
            for fails_after in 0.. {
                lower.hold(Vec::new());
                tree.write_at(FILE, 0, &before).expect("written");
                lower.0.lock().expect("it").fails_after = Some(fails_after);
                let changed = change(&tree);
                let ended = lower.0.lock().expect("it").fails_after.take().is_some();
                left.hold(lower.0.lock().expect("it").bytes.clone());
                // It is the same for who has seen it happen and for who comes later.
                let bytes = read_all(&after, FILE);
                assert!(read_all(&tree, FILE) == bytes, "{new_size}, {fails_after}");
                let kept = bytes.len().min(before.len());
                assert!(bytes[..kept] == before[..kept], "{new_size}, {fails_after}");
                assert!([before.len(), new_size].contains(&bytes.len()), "{new_size}, {fails_after}: {}", bytes.len());
                assert!(changed.is_err() || bytes.len() == new_size, "{new_size}, {fails_after}");
                failed += usize::from(changed.is_err());
                if ended {
                    break;
                }
            }
        }
    }
    assert!(failed > 20, "{failed}");
}
