//! Folders of encrypted files that lie in a tree, and copies of trees.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use claviger_engine::opening::{OpenFolder, Opening};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{HeldNode, NewNode, Subtree, Tree, copy};
use claviger_engine::{Credential, ErrorKind, Opened, Result, Unlock, Verdict, diagnosis};

use crate::support::passphrase;

const PASSPHRASE: &str = "of the folder";

fn host(path: &Path, access: Access) -> Arc<dyn Tree> {
    Arc::new(HostFolder::open(path, access).expect("a folder"))
}

fn open(opening: Opening) -> Result<OpenFolder> {
    let credentials: [Credential; 1] = [passphrase(PASSPHRASE)];
    opening.find()?.unlock(&Unlock::with(&credentials)).and_then(Opened::files)
}

/// A folder of eCryptfs with a file in a folder.
fn encrypted(at: &Path) {
    fs::create_dir_all(at).expect("folders");
    let folder = open(Opening::path(at).access(Access::ReadWrite).format("eCryptfs")).expect("an empty folder").tree;
    let inner = folder.make_folder(folder.root(), "inner".as_ref(), &NewNode::default()).expect("a folder");
    let file = folder.create(inner, "file".as_ref(), &NewNode::default()).expect("a file");
    folder.write_at(file, 0, b"plaintext").expect("written");
    folder.forget(file, 1);
    folder.forget(inner, 1);
}

#[test]
fn the_folder_is_found_on_the_way_to_what_is_in_it() {
    let dir = tempfile::tempdir().expect("a folder");
    encrypted(&dir.path().join("home/me/.Private"));
    fs::write(dir.path().join("home/note"), "in clear").expect("a file");
    let tree = host(dir.path(), Access::ReadOnly);
    for way in ["/home/me/.Private", "home/me/.Private/", "/home/me/.Private/inner/file", "/home/me/.Private/none"] {
        let folder = open(Opening::tree(tree.clone()).at(way)).expect(way);
        assert_eq!(Path::new(&folder.path), Path::new(way.split(".Private").next().expect("a part")).join(".Private"));
        let file = HeldNode::find(&folder.tree as &dyn Tree, "/inner/file".as_ref()).expect("a file");
        let mut read = [0; 9];
        assert_eq!(folder.tree.read_at(file.node(), 0, &mut read).expect("read"), 9);
        assert_eq!(&read, b"plaintext");
    }
    for way in ["/home/note", "/none"] {
        let error = open(Opening::tree(tree.clone()).at(way)).map(|f| f.path).expect_err("nothing is encrypted there");
        assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{way}: {error}");
    }
    // Of a format that is named it is the last folder on the way.
    let named = Opening::tree(tree.clone()).at("/home/note").format("clear");
    assert_eq!(named.find().expect("a folder").path_inside(), "/home");
    let error = Opening::tree(tree).partition(1).find().map(drop).expect_err("no partitions").kind;
    assert!(matches!(error, ErrorKind::Misuse(_)));
}

#[test]
fn an_empty_folder_is_known_by_the_files_beside_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let (folder, beside) = (dir.path().join(".Private"), dir.path().join(".ecryptfs"));
    let known = || {
        let opinions = diagnosis::look_at_folder(&folder).expect("a folder");
        opinions.iter().any(|o| o.format == "eCryptfs" && matches!(o.verdict, Verdict::Yes(_)))
    };
    fs::create_dir(&folder).and_then(|()| fs::create_dir(&beside)).expect("folders");
    assert!(!known());
    fs::write(beside.join("Private.sig"), "0123456789abcdef\n").expect("a file");
    assert!(known());
    fs::write(folder.join("letter"), "in clear").expect("a file");
    assert!(!known());
}

#[test]
fn a_part_of_a_tree_is_a_tree() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(dir.path().join("a/b")).expect("folders");
    fs::write(dir.path().join("a/b/one"), "1").expect("a file");
    let tree = host(dir.path(), Access::ReadWrite);
    let part = Subtree::find(&tree, "/a".as_ref()).expect("a folder");
    assert_eq!(part.list(part.root()).expect("names")[0].name, "b");
    let made = part.make_folder(part.root(), "c".as_ref(), &NewNode::default()).expect("a folder");
    part.forget(made, 1);
    assert!(dir.path().join("a/c").is_dir());
    drop(tree);
    assert!(HeldNode::find(&part as &dyn Tree, "b/one".as_ref()).is_ok());
    assert!(HeldNode::find(&part as &dyn Tree, "a/b/one".as_ref()).is_err());
}

#[test]
fn a_copy_is_the_same_and_a_changed_one_is_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("inner")).expect("folders");
    fs::create_dir(&to).expect("a folder");
    fs::write(from.join("inner/one"), vec![1; 1 << 20]).expect("a file");
    fs::write(from.join("two"), "2").expect("a file");
    fs::hard_link(from.join("two"), from.join("three")).expect("a name");
    symlink("two", from.join("link")).expect("a link");
    let (source, target) = (host(&from, Access::ReadOnly), host(&to, Access::ReadWrite));
    let mut nothing = |_| Ok(());
    let done = copy::copy(&*source, &*target, &mut nothing, &mut |_, e| Err(e)).expect("a copy");
    assert_eq!((done.files, done.folders, done.bytes), (4, 1, (1 << 20) + 1));
    assert_eq!(copy::compare(&*source, &*target, &mut nothing, &HashSet::new()).expect("the same").files, 4);
    let changes: [(&str, &dyn Fn()); 4] = [
        ("a byte", &|| fs::write(to.join("two"), "3").expect("written")),
        ("a length", &|| fs::write(to.join("inner/one"), vec![1; (1 << 20) - 1]).expect("written")),
        ("a name too many", &|| fs::write(to.join("inner/more"), "").expect("written")),
        ("a kind", &|| {
            fs::remove_file(to.join("link")).expect("removed");
            fs::write(to.join("link"), "two").expect("written");
        }),
    ];
    for (what, change) in changes {
        change();
        let error = copy::compare(&*source, &*target, &mut nothing, &HashSet::new()).expect_err(what);
        assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{what}: {error}");
        let _ = fs::remove_file(to.join("inner/more"));
        copy::copy(&*source, &*target, &mut nothing, &mut |_, e| Err(e)).expect("mended");
        copy::compare(&*source, &*target, &mut nothing, &HashSet::new()).expect("the same again");
    }
    // The caller can end it.
    let error = copy::copy(&*source, &*target, &mut |_| Err(ErrorKind::Cancelled.into()), &mut |_, e| Err(e))
        .expect_err("ended");
    assert!(matches!(error.kind, ErrorKind::Cancelled));
}
