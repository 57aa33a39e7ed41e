//! Changes of entries, interrupted at every step, and refused ones.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind as Kind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claviger_engine::file_formats::{Stacked, cryptomator, cryptomator::CipherCombo};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{HeldNode, NewNode, Node, NodeKind, Renaming, Tree, find};
use claviger_engine::{Credential, ErrorKind, Unlock};

use crate::support::cryptomator::{create, open, open_with, stored, survey};
use crate::support::gocryptfs::{PASSPHRASE, host, read, secret};
use crate::support::killed::Killed;

const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };
const FOLDER: NewNode = NewNode { mode: Some(0o755), owner: None };

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn long(of: &str) -> String {
    of.repeat(200 / of.len())
}

fn killed_after(folder: &Path, left: usize) -> Arc<Killed> {
    Arc::new(Killed::new(HostFolder::open(folder, Access::ReadWrite).expect("it opens"), left))
}

fn unlocked(lower: Arc<Killed>) -> Stacked {
    open_with(lower, Credential::Passphrase(secret(PASSPHRASE))).expect("it opens")
}

/// The names of the root folder. Everything must be readable, and what is left out must be left over: nothing of anybody.
fn names(vault: &Path) -> BTreeSet<String> {
    let tree = open(vault);
    let listing = tree.list_all(tree.root()).expect("listed");
    for name in &listing.left_out {
        let (stored, why) = (name.name.to_string_lossy(), name.why.to_string());
        assert!(stored.starts_with("claviger.replaced.") || why.contains("there is no"), "{stored}: {why}");
    }
    for entry in &listing.entries {
        let node = HeldNode::take(&tree, tree.root(), entry).expect("it is there");
        match entry.kind {
            NodeKind::Folder => assert!(tree.list(node.node()).is_ok(), "{}", entry.name.display()),
            NodeKind::File => whole_or_empty(&tree, node.node()),
            NodeKind::Link => assert_eq!(tree.link_target(node.node()).expect("a target"), "target"),
            NodeKind::Special => panic!("there is none"),
        }
    }
    for (path, what) in survey(vault) {
        let harmless =
            ["left over", "about to replace", "there is no", "it is empty", "without a header", "ends in its header"];
        assert!(harmless.iter().any(|harmless| what.contains(harmless)), "{}: {what}", path.display());
    }
    listing.entries.into_iter().map(|entry| entry.name.into_string().expect("text")).collect()
}

/// The least size of a header, in bytes.
const HEADER: u64 = 68;

/// Fails if a file holds anything that nobody wrote. A header that was not complete yet is an error.
fn whole_or_empty(tree: &Stacked, file: Node) {
    let mut bytes = [0; 10];
    match tree.read_at(file, 0, &mut bytes) {
        Ok(len) => assert!(matches!(&bytes[..len], b"" | b"one" | b"two")),
        Err(e) => assert!(e.kind() == Kind::InvalidData && tree.attributes(file).expect("known").size < HEADER, "{e}"),
    }
}

/// A change of entries, from those to these.
struct Change {
    what: &'static str,
    before: Vec<String>,
    after: Vec<String>,
    /// What there is between them: only where the format allows no better.
    between: Option<Vec<String>>,
    change: fn(&Stacked) -> io::Result<()>,
}

/// Makes entries: files hold their first three letters, folders begin with "folder" and links with "link".
fn make(tree: &Stacked, names: &[String]) {
    for path in names {
        let node = match path {
            path if path.starts_with("folder") => tree.make_folder(tree.root(), name(path), &FOLDER).expect("made"),
            path if path.starts_with("link") => {
                tree.make_link(tree.root(), name(path), name("target"), &NEW).expect("made")
            }
            path => {
                let node = tree.create(tree.root(), name(path), &NEW).expect("created");
                tree.write_at(node, 0, &path.as_bytes()[..3]).expect("written");
                node
            }
        };
        tree.forget(node, 1);
    }
}

fn renamed(tree: &Stacked, from: &str, to: &str, how: Renaming) -> io::Result<()> {
    tree.rename(tree.root(), name(from), tree.root(), name(to), how)
}

fn changes() -> Vec<Change> {
    let of = |what, before: &[&str], after: &[&str], change| {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Change { what, before: strings(before), after: strings(after), between: None, change }
    };
    let (one, two, link) = (&*long("one"), &*long("two"), &*long("link"));
    let (folder, other) = (&*long("folder"), &*long("folders"));
    vec![
        of("a new file", &[], &["one"], |tree| tree.create(tree.root(), name("one"), &NEW).map(drop)),
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
        of("a file", &["one"], &["two"], |tree| renamed(tree, "one", "two", Renaming::Keep)),
        of("short to long", &["one"], &[two], |tree| renamed(tree, "one", &long("two"), Renaming::Replace)),
        of("long to short", &[one], &["two"], |tree| renamed(tree, &long("one"), "two", Renaming::Replace)),
        of("long to long", &[one], &[two], |tree| renamed(tree, &long("one"), &long("two"), Renaming::Keep)),
        of("over another", &["one", two], &[two], |tree| renamed(tree, "one", &long("two"), Renaming::Replace)),
        of("long over short", &[one, "two"], &["two"], |tree| renamed(tree, &long("one"), "two", Renaming::Replace)),
        of("exchanged", &["one", "folder"], &["one", "folder"], |tree| {
            renamed(tree, "one", "folder", Renaming::Exchange)?;
            renamed(tree, "one", "folder", Renaming::Exchange)
        }),
        of("a link", &["link"], &[link], |tree| renamed(tree, "link", &long("link"), Renaming::Replace)),
        of("a long link", &[link], &["link"], |tree| renamed(tree, &long("link"), "link", Renaming::Replace)),
        Change {
            between: Some(vec!["one".to_owned()]),
            ..of("a file over a link", &["one", "link"], &["link"], |tree| {
                renamed(tree, "one", "link", Renaming::Replace)
            })
        },
        Change {
            between: Some(vec![link.to_owned()]),
            ..of("a link over a file", &[one, link], &[one], |tree| {
                renamed(tree, &long("link"), &long("one"), Renaming::Replace)
            })
        },
        of("a folder", &["folder"], &[folder], |tree| renamed(tree, "folder", &long("folder"), Renaming::Replace)),
        of("a long folder", &[folder], &["folder"], |tree| renamed(tree, &long("folder"), "folder", Renaming::Replace)),
        of("a folder over an empty one", &["folder", other], &[other], |tree| {
            renamed(tree, "folder", &long("folders"), Renaming::Replace)
        }),
        of("a file removed", &["one"], &[], |tree| tree.remove(tree.root(), name("one"))),
        of("a long name removed", &[one], &[], |tree| tree.remove(tree.root(), name(&long("one")))),
        of("a link removed", &["link"], &[], |tree| tree.remove(tree.root(), name("link"))),
        of("a folder removed", &["folder"], &[], |tree| tree.remove(tree.root(), name("folder"))),
        of("a folder with a long name removed", &[folder], &[], |tree| tree.remove(tree.root(), name(&long("folder")))),
    ]
}

#[test]
fn a_program_killed_at_any_step_leaves_the_old_entry_or_the_new_one() {
    let empty = tempfile::tempdir().expect("a folder");
    create(empty.path(), CipherCombo::SivGcm);
    for Change { what, before, after, between, change } in changes() {
        let set = |names: &Vec<String>| names.iter().cloned().collect::<BTreeSet<_>>();
        for left in 0.. {
            let vault = tempfile::tempdir().expect("a folder");
            copy(empty.path(), vault.path());
            make(&open(vault.path()), &before);
            let below = killed_after(vault.path(), left);
            let tree = unlocked(below.clone());
            let done = change(&tree);
            let all = below.lives();
            drop(tree);
            let now = names(vault.path());
            let allowed =
                [Some(&before), Some(&after), between.as_ref()].into_iter().flatten().any(|names| set(names) == now);
            assert!(allowed, "{what}, killed after {left} changes: {now:?}");
            if done.is_ok() {
                assert_eq!(now, set(&after), "{what}, after {left} changes");
            }
            left_over_goes_with_its_folder(vault.path());
            // What is left over is in nobody's way.
            if now == set(&before) && before != after {
                change(&open(vault.path())).unwrap_or_else(|e| panic!("{what}, again after {left} changes: {e}"));
                assert_eq!(names(vault.path()), set(&after), "{what}");
            }
            if all {
                done.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(survey(vault.path()), [], "{what}");
                break;
            }
        }
    }
}

/// Moves what is left over in the root folder into another folder, which is then removed as if it were empty.
fn left_over_goes_with_its_folder(vault: &Path) {
    let copied = tempfile::tempdir().expect("a folder");
    copy(vault, copied.path());
    let places = || places(copied.path());
    let before = places();
    let tree = open(copied.path());
    tree.make_folder(tree.root(), name("outer"), &FOLDER).map(|node| tree.forget(node, 1)).expect("made");
    let outer = places().into_iter().find(|place| !before.contains(place)).expect("a new one");
    for place in &before {
        for entry in fs::read_dir(place).expect("listed").map(|entry| entry.expect("an entry")) {
            if entry.file_name().as_encoded_bytes().starts_with(b"claviger.unfinished.") {
                fs::rename(entry.path(), outer.join(entry.file_name())).expect("moved");
            }
        }
    }
    assert_eq!(tree.list(find(&tree, name("outer")).expect("found")).expect("listed"), []);
    tree.remove(tree.root(), name("outer")).expect("removed");
    assert!(!outer.exists());
}

/// The folders of a vault, where they are stored.
fn places(vault: &Path) -> Vec<PathBuf> {
    let inner = |folder: &PathBuf| -> Vec<PathBuf> {
        fs::read_dir(folder).expect("listed").map(|entry| entry.expect("an entry").path()).collect()
    };
    inner(&vault.join("d")).iter().flat_map(inner).collect()
}

#[test]
fn what_is_left_over_and_holds_more_stays() {
    for (what, holds) in [
        ("claviger.unfinished.0123456789abcdef", "photo.jpg"),
        ("claviger.unfinished.0123456789abcdef", "contents.c9r (1)"),
        ("claviger.unfinished.0123", "contents.c9r"),
        ("claviger.replaced.0123456789abcdef", "contents.c9r"),
        ("claviger.unfinished.0123456789abcdef", "dir.c9r"),
    ] {
        let vault = tempfile::tempdir().expect("a folder");
        create(vault.path(), CipherCombo::SivGcm);
        let tree = open(vault.path());
        make(&tree, &["folders".to_owned()]);
        let id = stored(vault.path()).into_iter().find(|path| path.ends_with("dir.c9r")).expect("one");
        let id = fs::read(id).expect("read");
        let inner = tree.make_folder(find(&tree, name("folders")).expect("found"), name("inner"), &FOLDER);
        inner.map(|node| tree.forget(node, 1)).expect("made");
        let before = places(vault.path());
        make(&tree, &["folder".to_owned()]);
        let place = places(vault.path()).into_iter().find(|place| !before.contains(place)).expect("a new one");
        fs::create_dir(place.join(what)).expect("made");
        fs::write(place.join(what).join(holds), id).expect("written");
        let removed = tree.remove(tree.root(), name("folder"));
        assert_eq!(removed.expect_err("not empty").kind(), Kind::DirectoryNotEmpty, "{what}, {holds}");
        assert!(place.join(what).join(holds).exists());
        if holds == "dir.c9r" {
            fs::write(place.join(what).join(holds), "leads to nothing").expect("written");
            tree.remove(tree.root(), name("folder")).expect("removed");
        }
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("listed").map(|entry| entry.expect("an entry")) {
        let to = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            fs::create_dir(&to).expect("made");
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}

#[test]
fn a_vault_whose_creation_was_killed_is_created_again() {
    for left in 0.. {
        let vault = tempfile::tempdir().expect("a folder");
        let new = |lower: &(dyn Tree + 'static)| {
            cryptomator::create(lower, &secret(PASSPHRASE), CipherCombo::SivGcm, &Unlock::with(&[]))
        };
        let below = killed_after(vault.path(), left);
        let done = new(&*below);
        if done.is_err() {
            new(&*host(vault.path())).unwrap_or_else(|e| panic!("again after {left} steps: {e}"));
        }
        assert!(names(vault.path()).is_empty());
        assert_eq!(survey(vault.path()), []);
        if below.lives() {
            done.expect("nobody stopped it");
            break;
        }
    }
}

#[test]
fn what_appears_in_the_folder_while_a_vault_is_created_stays() {
    let vault = tempfile::tempdir().expect("a folder");
    let photo = vault.path().join("Photos/one");
    let may_take = |_| {
        fs::create_dir_all(photo.parent().expect("one")).and_then(|()| fs::write(&photo, "a photo")).expect("written");
        Ok(())
    };
    let with = Unlock { may_take: Some(&may_take), ..Unlock::with(&[]) };
    let created = cryptomator::create(&*host(vault.path()), &secret(PASSPHRASE), CipherCombo::SivGcm, &with);
    assert!(matches!(created.expect_err("refused").kind, ErrorKind::Misuse(_)));
    assert_eq!(fs::read(&photo).expect("it stays"), b"a photo");
}

#[test]
fn an_empty_vault_of_a_hub_is_not_created_again() {
    let vault = tempfile::tempdir().expect("a folder");
    create(vault.path(), CipherCombo::SivGcm);
    fs::remove_file(vault.path().join(cryptomator::MASTERKEY)).expect("removed");
    let config = vault.path().join(cryptomator::CONFIG);
    let token = fs::read_to_string(&config).expect("its configuration");
    let (_, rest) = token.split_once('.').expect("a header");
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT","kid":"hub+https://example.com/vaults/1"}"#);
    let of_hub = format!("{header}.{rest}");
    fs::write(&config, &of_hub).expect("written");
    let (lower, with) = (host(vault.path()), Unlock::with(&[]));
    let created = cryptomator::create(&*lower, &secret(PASSPHRASE), CipherCombo::SivGcm, &with);
    let error = created.expect_err("refused");
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    assert_eq!(fs::read_to_string(&config).expect("it stays"), of_hub);
}

#[test]
fn a_change_of_the_passphrase_that_was_killed_leaves_one_that_opens() {
    for left in 0.. {
        let vault = tempfile::tempdir().expect("a folder");
        create(vault.path(), CipherCombo::SivGcm);
        let below = killed_after(vault.path(), left);
        let given = [Credential::Passphrase(secret(PASSPHRASE))];
        let done = cryptomator::change_passphrase(&*below, &secret("new"), &Unlock::with(&given));
        let opens = |with: &str| open_with(host(vault.path()), Credential::Passphrase(secret(with))).is_ok();
        assert_ne!(opens(PASSPHRASE), opens("new"), "after {left} steps");
        assert_eq!(opens("new"), done.is_ok());
        if below.lives() {
            done.expect("nobody stopped it");
            break;
        }
    }
}

#[test]
fn changes_that_unix_does_not_allow_are_refused() {
    let vault = tempfile::tempdir().expect("a folder");
    create(vault.path(), CipherCombo::SivGcm);
    let tree = open(vault.path());
    let root = tree.root();
    let names = ["one", "link", "folder", &long("two")].map(str::to_owned);
    make(&tree, &names);
    let folder = find(&tree, name("folder")).expect("found");
    let inner = tree.make_folder(folder, name("inner"), &FOLDER).expect("made");
    let rename = |from: (Node, &str), to: (Node, &str), how| {
        tree.rename(from.0, name(from.1), to.0, name(to.1), how).expect_err("refused").kind()
    };
    assert_eq!(rename((root, "folder"), (inner, "itself"), Renaming::Replace), Kind::InvalidInput);
    assert_eq!(rename((root, "folder"), (folder, "itself"), Renaming::Replace), Kind::InvalidInput);
    assert_eq!(rename((root, "one"), (root, "folder"), Renaming::Replace), Kind::IsADirectory);
    assert_eq!(rename((root, "folder"), (root, "one"), Renaming::Replace), Kind::NotADirectory);
    assert_eq!(rename((folder, "inner"), (root, "folder"), Renaming::Replace), Kind::DirectoryNotEmpty);
    assert_eq!(rename((root, "one"), (root, &long("two")), Renaming::Keep), Kind::AlreadyExists);
    assert_eq!(rename((root, "one"), (root, &long("two")), Renaming::Exchange), Kind::Unsupported);
    assert_eq!(rename((root, "none"), (root, "new"), Renaming::Replace), Kind::NotFound);
    assert_eq!(tree.remove(root, name("folder")).expect_err("not empty").kind(), Kind::DirectoryNotEmpty);
    assert_eq!(tree.remove(root, name("none")).expect_err("none").kind(), Kind::NotFound);
    assert_eq!(tree.lookup(root, name(&"n".repeat(255))).expect_err("none").kind(), Kind::NotFound);
    for there in &names {
        assert_eq!(
            tree.make_folder(root, name(there), &FOLDER).expect_err("there").kind(),
            Kind::AlreadyExists,
            "{there}"
        );
        assert_eq!(tree.create(root, name(there), &NEW).expect_err("there").kind(), Kind::AlreadyExists, "{there}");
    }
    assert_eq!(tree.list(root).expect("listed").len(), 4);
    assert_eq!(survey(vault.path()), []);
}

#[test]
fn an_open_file_is_read_and_written_after_it_was_moved_and_removed() {
    let vault = tempfile::tempdir().expect("a folder");
    create(vault.path(), CipherCombo::SivGcm);
    let tree = open(vault.path());
    let root = tree.root();
    let usage = claviger_engine::trees::Use { read: true, write: true };
    let file = tree.create_open(root, name("one"), &NEW, usage).expect("created");
    tree.write_at(file, 0, b"one").expect("written");
    renamed(&tree, "one", &long("two"), Renaming::Replace).expect("renamed");
    tree.append(file, b" more").expect("written");
    assert_eq!(tree.lookup(root, name(&long("two"))).expect("found"), file);
    tree.forget(file, 1);
    tree.remove(root, name(&long("two"))).expect("removed");
    tree.append(file, b" and more").expect("written");
    assert_eq!(read(&tree, file), b"one more and more");
    tree.release(file).expect("closed");
    tree.forget(file, 1);
    assert!(tree.list(root).expect("listed").is_empty());
    assert_eq!(survey(vault.path()), []);
}
