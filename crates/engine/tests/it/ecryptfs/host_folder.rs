//! A folder of the host as a tree, and what `std::fs` says of the same folder.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{HeldNode, NewNode, Node, NodeKind, Renaming, Setting, Special, Tree, Use, find};
use claviger_testkit::random::Random;
use claviger_testkit::tools::{much, root, skip};
use rustix::fs::{CWD, Gid, RenameFlags, Uid, XattrFlags, renameat_with};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;

const BOTH: Use = Use { read: true, write: true };
const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };
const NOBODY: u32 = 65534;

fn code(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

fn folder() -> (TempDir, HostFolder) {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = HostFolder::open(folder.path(), Access::ReadWrite).expect("it opens");
    (folder, tree)
}

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

/// Runs `what` in a thread that is nobody: no user that owns anything, and no group, and no capability.
fn as_nobody(what: impl FnOnce() + Send) {
    let become_nobody = || {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[]).expect("no groups");
        set_thread_res_gid(group, group, group).expect("its group");
        set_thread_res_uid(user, user, user).expect("its user");
        what();
    };
    thread::scope(|scope| scope.spawn(become_nobody).join()).expect("it ends well");
}

/// All nodes: kind, permissions, links, and the contents or the target.
type Seen = BTreeMap<OsString, (NodeKind, u32, u64, Vec<u8>)>;

fn seen_by_tree(tree: &HostFolder) -> Seen {
    fn walk(tree: &HostFolder, folder: Node, path: &OsStr, seen: &mut Seen) {
        for entry in tree.list(folder).expect("listed") {
            let node = HeldNode::take(tree, folder, &entry).expect("it is there");
            let of = tree.attributes(node.node()).expect("known");
            let path = [path.as_bytes(), b"/", entry.name.as_bytes()].concat();
            let path = OsStr::from_bytes(&path);
            let bytes = match of.kind {
                NodeKind::File => read(tree, node.node(), of.size),
                NodeKind::Link => tree.link_target(node.node()).expect("a target").as_bytes().to_vec(),
                _ => Vec::new(),
            };
            assert_eq!((of.kind, of.size), (entry.kind, bytes.len() as u64));
            seen.insert(path.to_owned(), (of.kind, of.mode.expect("a mode").into(), of.links.into(), bytes));
            if of.kind == NodeKind::Folder {
                walk(tree, node.node(), path, seen);
            }
        }
    }
    let mut seen = Seen::new();
    walk(tree, tree.root(), OsStr::new(""), &mut seen);
    seen
}

fn read(tree: &HostFolder, node: Node, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize + 1];
    let len = tree.read_at(node, 0, &mut bytes).expect("read");
    bytes.truncate(len);
    bytes
}

fn seen_by_host(folder: &Path) -> Seen {
    fn walk(folder: &Path, path: &OsStr, seen: &mut Seen) {
        for entry in fs::read_dir(folder).expect("listed") {
            let at = entry.expect("an entry").path();
            let of = fs::symlink_metadata(&at).expect("known");
            let path = [path.as_bytes(), b"/", at.file_name().expect("a name").as_bytes()].concat();
            let path = OsStr::from_bytes(&path);
            let (kind, bytes) = match of.file_type() {
                kind if kind.is_file() => (NodeKind::File, fs::read(&at).expect("read")),
                kind if kind.is_dir() => (NodeKind::Folder, Vec::new()),
                kind if kind.is_symlink() => {
                    (NodeKind::Link, fs::read_link(&at).expect("a target").as_os_str().as_bytes().to_vec())
                }
                _ => (NodeKind::Special, Vec::new()),
            };
            seen.insert(path.to_owned(), (kind, of.permissions().mode() & 0o7777, of.nlink(), bytes));
            if kind == NodeKind::Folder {
                walk(&at, path, seen);
            }
        }
    }
    let mut seen = Seen::new();
    walk(folder, OsStr::new(""), &mut seen);
    seen
}

/// If both paths of a call are wrong, either may be reported first.
fn kind(error: io::Error) -> ErrorKind {
    match error.kind() {
        ErrorKind::NotADirectory => ErrorKind::NotFound,
        kind => kind,
    }
}

/// Does random things twice: in one folder through the tree, in another through `std::fs`. Both must answer the same, and hold
/// the same in the end.
fn exercise(ours: &Path, theirs: &Path, seed: u64) {
    let mut random = Random::new(seed);
    let tree = HostFolder::open(ours, Access::ReadWrite).expect("it opens");
    let at = |path: &str| theirs.join(path);
    let places = ["", "one", "two", "one/in"];
    let names = ["a", "b", "c", "one", "two", "in"];
    let mut done = [0; 2];
    for step in 0..1500 {
        let place = |random: &mut Random| (*random.choose(&places), *random.choose(&names));
        let ((folder, last), (to_folder, to_last)) = (place(&mut random), place(&mut random));
        let path =
            |folder: &str, last: &str| if folder.is_empty() { last.to_owned() } else { format!("{folder}/{last}") };
        let (here, there) = (path(folder, last), path(to_folder, to_last));
        let holds = |path: &str| HeldNode::find(&tree, name(path)).map_err(kind);
        let result = |done: io::Result<()>| done.map_err(kind);
        let within =
            |path: &str, what: &dyn Fn(Node) -> io::Result<()>| holds(path).and_then(|at| result(what(at.node())));
        let given_back = |node: io::Result<Node>| node.map(|node| tree.forget(node, 1));
        let (mode, len, byte) = (0o700 | random.below(0o100) as u16, random.below(9000), random.below(256) as u8);
        let what = random.below(9);
        let (ours, theirs) = match what {
            0 | 1 => {
                let new = NewNode { mode: Some(0o600), owner: None };
                let ours = within(folder, &|at| {
                    let node = tree.create_open(at, name(last), &new, BOTH)?;
                    let written = tree.write_at(node, len as u64, &[byte]);
                    tree.release(node)?;
                    tree.forget(node, 1);
                    written
                });
                let file = fs::OpenOptions::new().write(true).create_new(true).open(at(&here));
                let theirs = file.and_then(|file| {
                    file.set_permissions(fs::Permissions::from_mode(0o600))?;
                    std::os::unix::fs::FileExt::write_all_at(&file, &[byte], len as u64)
                });
                (ours, result(theirs))
            }
            2 => {
                let new = NewNode { mode: Some(mode), owner: None };
                let ours = within(folder, &|at| given_back(tree.make_folder(at, name(last), &new)));
                let made = fs::create_dir(at(&here));
                let made = made.and_then(|()| fs::set_permissions(at(&here), fs::Permissions::from_mode(mode.into())));
                (ours, result(made))
            }
            3 => {
                let ours = within(folder, &|at| given_back(tree.make_link(at, name(last), name("../a"), &NEW)));
                (ours, result(symlink("../a", at(&here))))
            }
            4 => {
                let ours = holds(&here).and_then(|from| {
                    within(to_folder, &|to| given_back(tree.add_name(from.node(), to, name(to_last))))
                });
                (ours, result(fs::hard_link(at(&here), at(&there))))
            }
            5 => {
                let ours = holds(folder).and_then(|from| {
                    within(to_folder, &|to| tree.rename(from.node(), name(last), to, name(to_last), Renaming::Replace))
                });
                (ours, result(fs::rename(at(&here), at(&there))))
            }
            6 => {
                let ours = within(folder, &|at| tree.remove(at, name(last)));
                let path = at(&here);
                let is_folder = fs::symlink_metadata(&path).is_ok_and(|of| of.is_dir());
                (ours, result(if is_folder { fs::remove_dir(path) } else { fs::remove_file(path) }))
            }
            7 => {
                let is_file = fs::symlink_metadata(at(&here)).is_ok_and(|of| of.is_file());
                let ours = within(&here, &|node| if is_file { tree.set_len(node, len as u64) } else { Ok(()) });
                let theirs = match is_file {
                    true => fs::OpenOptions::new().write(true).open(at(&here)).and_then(|f| f.set_len(len as u64)),
                    false => fs::symlink_metadata(at(&here)).map(drop),
                };
                (ours, result(theirs))
            }
            _ => {
                let is_link = fs::symlink_metadata(at(&here)).is_ok_and(|of| of.is_symlink());
                let ours = within(&here, &|node| if is_link { Ok(()) } else { tree.set_mode(node, mode) });
                let theirs = match is_link {
                    true => Ok(()),
                    false => fs::set_permissions(at(&here), fs::Permissions::from_mode(mode.into())),
                };
                (ours, result(theirs))
            }
        };
        assert_eq!(ours, theirs, "seed {seed}, step {step}: {what} of {here}, {there}");
        done[usize::from(ours.is_ok())] += 1;
    }
    assert!(done[0] > 100 && done[1] > 100, "nothing was tried: {done:?}");
    tree.finish().expect("durable");
    let ours_now = seen_by_host(ours);
    assert!(ours_now == seen_by_host(theirs), "seed {seed}: the two folders differ");
    assert!(ours_now == seen_by_tree(&tree), "seed {seed}: the tree shows something else");
}

#[test]
fn whatever_is_done_the_host_would_have_done_the_same() {
    let (ours, theirs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    exercise(ours.path(), theirs.path(), 1);
    if root().is_none() {
        return;
    }
    let (ours, theirs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    for folder in [&ours, &theirs] {
        std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    as_nobody(|| exercise(ours.path(), theirs.path(), 2));
}

#[test]
fn what_is_made_is_what_the_host_has() {
    let (folder, tree) = folder();
    let at = |name: &str| folder.path().join(name);
    let root = tree.root();
    let file = tree.create_open(root, name("file"), &NEW, BOTH).expect("created");
    tree.write_at(file, 3, b"hello").expect("written");
    assert_eq!(fs::read(at("file")).expect("it"), b"\0\0\0hello");
    tree.set_len(file, 5).expect("shortened");
    let mut out = [0xff; 8];
    assert_eq!((tree.read_at(file, 1, &mut out).expect("read"), &out[..4]), (4, &b"\0\0he"[..]));
    tree.sync(file, true).and_then(|()| tree.sync(file, false)).expect("durable");
    let linked = tree.add_name(file, root, name("second")).expect("linked");
    assert_eq!((linked, fs::metadata(at("second")).expect("it").nlink()), (file, 2));
    let sub = tree.make_folder(root, name("sub"), &NewNode { mode: Some(0o1777), owner: None }).expect("made");
    assert_eq!(fs::metadata(at("sub")).expect("it").permissions().mode() & 0o7777, 0o1777);
    tree.sync(sub, false).expect("durable");
    let link = tree.make_link(sub, name("link"), name("../file"), &NEW).expect("made");
    assert_eq!(tree.link_target(link).expect("it"), "../file");
    assert_eq!(fs::read_link(at("sub/link")).expect("it"), Path::new("../file"));
    let pipe = tree.make_special(sub, name("pipe"), Special::Pipe, &NEW).expect("made");
    assert!(fs::metadata(at("sub/pipe")).expect("it").file_type().is_fifo());
    assert_eq!(tree.attributes(pipe).expect("it").special, Some(Special::Pipe));
    let (then, before) = (SystemTime::UNIX_EPOCH + Duration::new(1, 5), SystemTime::UNIX_EPOCH - Duration::new(1, 5));
    for node in [file, sub, link, pipe] {
        tree.set_times(node, Some(then), Some(before)).expect("set");
        let now = tree.attributes(node).expect("it");
        assert_eq!((now.modified, now.accessed), (Some(then), Some(before)));
    }
    tree.rename(root, name("second"), sub, name("moved"), Renaming::Keep).expect("moved");
    assert!(!at("second").exists() && at("sub/moved").exists());
    tree.rename(root, name("file"), sub, name("link"), Renaming::Exchange).expect("exchanged");
    assert!(fs::symlink_metadata(at("file")).expect("it").is_symlink());
    let refused = tree.rename(root, name("file"), sub, name("moved"), Renaming::Keep).expect_err("it is there");
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    let mut names: Vec<_> = tree.list(sub).expect("listed").into_iter().map(|e| (e.name, e.kind)).collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [("link", NodeKind::File), ("moved", NodeKind::File), ("pipe", NodeKind::Special)];
    assert_eq!(names, expected.map(|(name, kind)| (OsString::from(name), kind)));
    assert_eq!(tree.remove(root, name("sub")).expect_err("not empty").kind(), ErrorKind::DirectoryNotEmpty);
    for left in ["link", "moved", "pipe"] {
        tree.remove(sub, name(left)).expect("removed");
    }
    tree.remove(root, name("sub")).and_then(|()| tree.remove(root, name("file"))).expect("removed");
    assert_eq!(fs::read_dir(folder.path()).expect("it").count(), 0);
    // Removed, but open.
    tree.write_at(file, 0, b"still").expect("written");
    assert_eq!(tree.attributes(file).expect("it").links, 0);
    tree.flush().and_then(|()| tree.finish()).expect("durable");
}

#[test]
fn links_and_names_do_not_lead_out() {
    let (folder, tree) = folder();
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("secret"), "secret").expect("a file");
    symlink(outside.path(), folder.path().join("out")).expect("a link");
    symlink("/proc/self/root", folder.path().join("magic")).expect("a link");
    for link in ["out", "magic"] {
        let node = tree.lookup(tree.root(), name(link)).expect("the link itself");
        assert_eq!(tree.attributes(node).expect("known").kind, NodeKind::Link);
        assert_eq!(code(&tree.lookup(node, name("secret")).expect_err("not followed")), Some(Errno::NOTDIR));
        assert_eq!(code(&tree.create(node, name("new"), &NEW).expect_err("not followed")), Some(Errno::NOTDIR));
        assert_eq!(code(&tree.list(node).expect_err("not followed")), Some(Errno::NOTDIR));
        assert!(tree.open(node, BOTH).is_err() && tree.read_at(node, 0, &mut [0]).is_err());
        assert!(find(&tree, name(&format!("{link}/secret"))).is_err());
    }
    for bad in ["", ".", "..", "../x", "a/b", "/", "/etc/passwd", "a\0b"] {
        let root = tree.root();
        let results = [
            tree.lookup(root, name(bad)).map(drop),
            tree.create(root, name(bad), &NEW).map(drop),
            tree.make_folder(root, name(bad), &NEW).map(drop),
            tree.make_link(root, name(bad), name("x"), &NEW).map(drop),
            tree.remove(root, name(bad)),
            tree.rename(root, name("out"), root, name(bad), Renaming::Replace),
            tree.rename(root, name(bad), root, name("out"), Renaming::Replace),
        ];
        assert!(
            results.iter().all(|r| r.as_ref().is_err_and(|e| code(e) == Some(Errno::INVAL))),
            "{bad:?}: {results:?}"
        );
    }
    assert_eq!(fs::read_dir(outside.path()).expect("listed").count(), 1);
}

#[test]
fn names_may_hold_any_bytes() {
    let (folder, tree) = folder();
    let all: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
    for bytes in all.chunks(100).chain([&b"\xff\xfe"[..], b"...", b" ", b"a\nb", &[b'x'; 255]]) {
        let name = OsStr::from_bytes(bytes);
        let made = tree.create(tree.root(), name, &NEW).expect("created");
        assert!(folder.path().join(name).is_file());
        assert!(tree.list(tree.root()).expect("listed").iter().any(|e| e.name == name));
        assert_eq!(tree.lookup(tree.root(), name).expect("found"), made);
        tree.remove(tree.root(), name).expect("removed");
    }
    let long = OsString::from("x".repeat(256));
    assert_eq!(code(&tree.create(tree.root(), &long, &NEW).expect_err("too long")), Some(Errno::NAMETOOLONG));
}

#[test]
fn a_folder_that_becomes_a_link_between_two_steps_leads_nowhere_else() {
    let (folder, tree) = folder();
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("file"), "outside").expect("a file");
    fs::create_dir(folder.path().join("a")).expect("a folder");
    fs::write(folder.path().join("a/file"), "inside").expect("a file");
    symlink(outside.path(), folder.path().join("b")).expect("a link");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (folder.path().join("a"), folder.path().join("b"));
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).expect("exchanged");
            }
        });
        let mut read = 0;
        for _ in 0..3000 {
            let found = HeldNode::find(&tree, name("a/file"));
            let Ok(file) = found else { continue };
            let mut out = [0; 7];
            let len = tree.read_at(file.node(), 0, &mut out).expect("read");
            assert_eq!(&out[..len], b"inside");
            read += 1;
        }
        stop.store(true, Ordering::Relaxed);
        println!("{read} of 3000 were the folder");
    });
    // A node stays the same, even if its name refers to another file by then.
    let names = ["a", "b"].map(|name| tree.lookup(tree.root(), OsStr::new(name)).expect("found"));
    let node = names.into_iter().find(|n| tree.attributes(*n).expect("known").kind == NodeKind::Folder);
    let node = node.expect("one is the folder");
    fs::rename(folder.path().join("a"), folder.path().join("c")).expect("renamed");
    fs::rename(folder.path().join("b"), folder.path().join("d")).expect("renamed");
    assert!(tree.lookup(node, name("file")).is_ok());
}

#[test]
fn what_is_replaced_or_removed_behind_its_back_is_still_the_same_node() {
    let (folder, tree) = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "old").and_then(|()| fs::create_dir(at("sub"))).expect("made");
    let (file, sub) = (tree.lookup(1, name("file")).expect("found"), tree.lookup(1, name("sub")).expect("found"));
    fs::write(at("new"), "new!").and_then(|()| fs::rename(at("new"), at("file"))).expect("replaced");
    fs::remove_dir(at("sub")).expect("removed");
    assert_eq!(read(&tree, file, 10), b"old");
    assert_eq!(tree.attributes(file).expect("known").links, 0);
    let new = tree.lookup(1, name("file")).expect("found");
    assert!(new != file && read(&tree, new, 10) == b"new!");
    assert!(tree.list(sub).expect("still a folder").is_empty());
    assert_eq!(code(&tree.create(sub, name("x"), &NEW).expect_err("it is gone")), Some(Errno::NOENT));
    assert_eq!(code(&tree.add_name(file, 1, name("again")).expect_err("it is gone")), Some(Errno::NOENT));
}

/// Descriptors of this process that lead into the folder.
fn descriptors(folder: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").expect("listed").flatten();
    all.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(folder))).count()
}

#[test]
fn a_folder_of_many_names_takes_few_descriptors_and_forgetting_gives_them_back() {
    let many = much(10_000, 100_000);
    let (folder, tree) = folder();
    let before = descriptors(folder.path());
    for number in 0..many {
        symlink("x", folder.path().join(number.to_string())).expect("made");
    }
    let list = tree.list(tree.root()).expect("listed");
    assert_eq!((list.len(), descriptors(folder.path())), (many, before));
    let some = &list[..100];
    let mut taken: Vec<_> = some.iter().map(|e| tree.take(tree.root(), e).expect("taken")).collect();
    for (entry, node) in some.iter().zip(&taken) {
        assert_eq!(tree.attributes(*node).expect("known").number, entry.node);
        assert_eq!(tree.take(tree.root(), entry).expect("taken again"), *node);
    }
    assert_eq!(descriptors(folder.path()), before + 100);
    taken.iter().for_each(|node| tree.forget(*node, 1));
    assert_eq!(descriptors(folder.path()), before + 100, "each was taken twice");
    let last = taken.pop().expect("one");
    taken.iter().for_each(|node| tree.forget(*node, 1));
    assert_eq!(descriptors(folder.path()), before + 1);
    tree.forget(last, 7);
    assert_eq!(descriptors(folder.path()), before);
    assert_eq!(code(&tree.attributes(last).expect_err("given back")), Some(Errno::NOENT));
}

#[test]
fn extended_attributes_pass() {
    let (folder, tree) = folder();
    fs::write(folder.path().join("file"), "").expect("a file");
    let node = tree.lookup(tree.root(), name("file")).expect("found");
    let attribute = name("user.some");
    match tree.set_extended(node, attribute, b"value", Setting::Replace) {
        Err(e) if code(&e) == Some(Errno::OPNOTSUPP) => {
            skip::<()>("no extended attributes here");
            return;
        }
        replaced => assert_eq!(code(&replaced.expect_err("there is none")), Some(Errno::NODATA)),
    }
    assert_eq!(tree.extended(node, attribute).expect("asked"), None);
    let long = vec![7; 2000];
    for value in [&b""[..], b"value", &long] {
        tree.set_extended(node, attribute, value, Setting::Any).expect("set");
        assert_eq!(tree.extended(node, attribute).expect("asked").as_deref(), Some(value));
    }
    let again = tree.set_extended(node, attribute, b"", Setting::Create).expect_err("it is there");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert!(tree.list_extended(node).expect("listed").contains(&attribute.to_owned()));
    tree.remove_extended(node, attribute).expect("removed");
    assert_eq!(code(&tree.remove_extended(node, attribute).expect_err("it is gone")), Some(Errno::NODATA));
}

#[test]
fn what_only_reads_changes_nothing() {
    let (folder, _) = folder();
    fs::write(folder.path().join("file"), "contents").expect("a file");
    let tree = HostFolder::open(folder.path(), Access::ReadOnly).expect("it opens");
    let root = tree.root();
    let node = tree.lookup(root, name("file")).expect("found");
    let accessed = fs::metadata(folder.path().join("file")).expect("known").accessed().expect("a time");
    assert_eq!(read(&tree, node, 8), b"contents");
    assert_eq!(fs::metadata(folder.path().join("file")).expect("known").accessed().expect("a time"), accessed);
    let results = [
        tree.write_at(node, 0, b"x"),
        tree.set_len(node, 0),
        tree.open(node, BOTH),
        tree.set_mode(node, 0o600),
        tree.set_owner(node, Some(1), None),
        tree.set_times(node, Some(SystemTime::now()), None),
        tree.create(root, name("new"), &NEW).map(drop),
        tree.make_folder(root, name("new"), &NEW).map(drop),
        tree.make_link(root, name("new"), name("x"), &NEW).map(drop),
        tree.make_special(root, name("new"), Special::Pipe, &NEW).map(drop),
        tree.add_name(node, root, name("new")).map(drop),
        tree.rename(root, name("file"), root, name("new"), Renaming::Replace),
        tree.remove(root, name("file")),
        tree.set_extended(node, name("user.x"), b"", Setting::Any),
        tree.remove_extended(node, name("user.x")),
    ];
    for (i, result) in results.into_iter().enumerate() {
        assert_eq!(result.expect_err("refused").kind(), ErrorKind::ReadOnlyFilesystem, "{i}");
    }
}

#[test]
fn what_a_listing_calls_a_file_is_taken_as_what_it_is_now() {
    let (folder, tree) = folder();
    let at = |name: &str| folder.path().join(name);
    for file in ["file", "link", "pipe"] {
        fs::write(at(file), "contents").expect("a file");
    }
    let entries = tree.list(tree.root()).expect("listed");
    assert!(entries.iter().all(|entry| entry.kind == NodeKind::File));
    for replaced in ["link", "pipe"] {
        fs::remove_file(at(replaced)).expect("removed");
    }
    symlink("file", at("link")).expect("a link");
    // Nobody writes to it: waiting for a writer would never end.
    tree.make_special(tree.root(), name("pipe"), Special::Pipe, &NEW).expect("a pipe");
    let before = fs::metadata(at("file")).expect("known").accessed().expect("a time");
    for entry in &entries {
        let node = HeldNode::take(&tree, tree.root(), entry).expect("it is there");
        let now = tree.attributes(node.node()).expect("known").kind;
        let expected = [("file", NodeKind::File), ("link", NodeKind::Link), ("pipe", NodeKind::Special)];
        assert!(expected.iter().any(|(name, kind)| entry.name == *name && now == *kind), "{}", entry.name.display());
        if now == NodeKind::File {
            assert_eq!(read(&tree, node.node(), 8), b"contents");
        } else {
            assert!(tree.read_at(node.node(), 0, &mut [0]).is_err());
        }
    }
    assert_eq!(fs::metadata(at("file")).expect("known").accessed().expect("a time"), before);
}

#[test]
fn what_is_made_belongs_to_whom_it_is_made_for() {
    if root().is_none() {
        return;
    }
    let (folder, tree) = folder();
    let at = |name: &str| folder.path().join(name);
    let root = tree.root();
    let new = |mode| NewNode { mode: Some(mode), owner: Some((1234, 2345)) };
    let of = |path: &str| {
        let of = fs::symlink_metadata(at(path)).expect("made");
        (of.uid(), of.gid(), of.permissions().mode() & 0o7777)
    };
    // With all permissions, whatever the umask of this process says; and though nobody else may write in the folder.
    let file = tree.create_open(root, name("file"), &new(0o666), BOTH).expect("created");
    tree.write_at(file, 0, b"x").expect("it is open");
    tree.make_folder(root, name("sub"), &new(0o777)).expect("made");
    tree.make_special(root, name("pipe"), Special::Pipe, &new(0o622)).expect("made");
    tree.make_special(root, name("device"), Special::CharacterDevice(0x103), &new(0o666)).expect("made");
    tree.make_link(root, name("link"), name("x"), &new(0o777)).expect("made");
    let expected = [("file", 0o666), ("sub", 0o777), ("pipe", 0o622), ("device", 0o666), ("link", 0o777)];
    for (name, mode) in expected {
        assert_eq!(of(name), (1234, 2345, mode), "{name}");
    }
    let closed = tree.create_open(root, name("closed"), &new(0), BOTH).expect("created");
    tree.write_at(closed, 0, b"x").expect("it is open");
    // A folder that hands its group on.
    let shared = tree.make_folder(root, name("shared"), &new(0o755)).expect("made");
    tree.set_owner(shared, Some(0), Some(777)).and_then(|()| tree.set_mode(shared, 0o2775)).expect("changed");
    tree.create(shared, name("file"), &new(0o640)).expect("created");
    tree.make_folder(shared, name("sub"), &new(0o700)).expect("made");
    assert_eq!((of("shared/file"), of("shared/sub")), ((1234, 777, 0o640), (1234, 777, 0o2700)));
    // One that says what new nodes permit: u::rwx, g::r-x, o::--- (linux/posix_acl_xattr.h).
    let entry = |tag: u16, permits: u16| [&tag.to_le_bytes()[..], &permits.to_le_bytes(), &[0xff; 4]].concat();
    let list = [2u32.to_le_bytes().to_vec(), entry(1, 7), entry(4, 5), entry(0x20, 0)].concat();
    let asked = rustix::fs::setxattr(at("sub"), "system.posix_acl_default", &list, XattrFlags::empty());
    if asked == Err(Errno::OPNOTSUPP) {
        skip::<()>("no access control lists here");
        return;
    }
    asked.expect("set");
    let sub = tree.lookup(root, name("sub")).expect("found");
    tree.create(sub, name("file"), &new(0o666)).expect("created");
    tree.make_folder(sub, name("sub"), &new(0o777)).expect("made");
    assert_eq!((of("sub/file"), of("sub/sub")), ((1234, 2345, 0o640), (1234, 2345, 0o750)));
    // This thread is root again.
    assert!(rustix::process::geteuid().is_root() && rustix::process::getegid().is_root());
    tree.create(root, name("own"), &NewNode { mode: Some(0o600), owner: None }).expect("created");
    assert_eq!(of("own"), (0, 0, 0o600));
}

#[test]
fn permissions_are_asked_when_a_file_is_opened() {
    if root().is_none() {
        return;
    }
    let (folder, _) = folder();
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("given away");
    as_nobody(|| {
        let tree = HostFolder::open(folder.path(), Access::ReadWrite).expect("it opens");
        let new = NewNode { mode: Some(0), owner: Some((0, 0)) };
        let node = tree.create_open(tree.root(), name("file"), &new, BOTH).expect("created");
        tree.write_at(node, 0, b"written").expect("it is open");
        assert_eq!(read(&tree, node, 7), b"written");
        let denied = |usage| tree.open(node, usage).expect_err("not permitted").kind();
        assert_eq!(denied(BOTH), ErrorKind::PermissionDenied);
        assert_eq!(denied(Use { read: true, write: false }), ErrorKind::PermissionDenied);
        assert_eq!(tree.attributes(node).expect("known").owner, Some((NOBODY, NOBODY)));
        tree.set_mode(node, 0o200).expect("its owner may");
        tree.release(node).expect("closed");
        let writing = Use { read: false, write: true };
        tree.open(node, writing).expect("permitted");
        tree.write_at(node, 0, b"W").expect("written");
        assert_eq!(tree.read_at(node, 0, &mut [0]).expect_err("closed").kind(), ErrorKind::PermissionDenied);
        tree.sync(node, false).and_then(|()| tree.release(node)).expect("durable");
    });
}

#[test]
fn a_folder_is_one_file_system_and_one_at_a_time_may_have_it() {
    let proc = HostFolder::open("/".as_ref(), Access::ReadOnly).expect("it opens");
    let inside = proc.lookup(proc.root(), name("proc")).expect_err("another file system");
    assert_eq!(code(&inside), Some(Errno::XDEV));
    let (folder, tree) = folder();
    tree.lock().expect("nobody has it");
    let other = HostFolder::open(folder.path(), Access::ReadOnly).expect("it opens");
    let error = other.lock().expect_err("it is in use");
    assert!(matches!(error.kind, claviger_engine::ErrorKind::InUse { .. }));
    drop(tree);
    other.lock().expect("it is free");
    let error = HostFolder::open(&folder.path().join("none"), Access::ReadOnly).err().expect("there is none");
    assert!(error.path.is_some());
}
