//! A folder of the host as a tree, and what `std::fs` says of the same folder.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{NewNode, NodeKind, Renaming, Special, Tree, Use};
use tempfile::TempDir;

const BOTH: Use = Use { read: true, write: true };
const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };

fn folder() -> (TempDir, HostFolder) {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = HostFolder::open(folder.path(), Access::ReadWrite).expect("it opens");
    (folder, tree)
}

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
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
