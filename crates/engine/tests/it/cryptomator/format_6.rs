//! Vaults of format 6, which another program wrote: read, checked and rescued, and never written to.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind as Kind;
use std::path::{Path, PathBuf};

use claviger_engine::file_formats::{self, FILE_FORMATS, cryptomator};
use claviger_engine::trees::{NewNode, NodeKind, Tree, find};
use claviger_engine::{Credential, ErrorKind, Unlock, Verdict};
use claviger_testkit::random::Random;
use tempfile::TempDir;

use super::damaged::{check, mutate};
use super::folders::fill_host;
use crate::support::cryptomator::{Program, open, stored, survey};
use crate::support::gocryptfs::{PASSPHRASE, host, read, secret, seen, seen_by_host};
use crate::support::noise;

/// A folder, and a vault that another program made of it. `None` if that is missing.
fn made(fill: impl FnOnce(&Path)) -> Option<(TempDir, TempDir)> {
    let program = Program::find()?;
    let [plain, vault] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    fill(plain.path());
    program.make_format_6(plain.path(), vault.path());
    Some((plain, vault))
}

/// A file of each kind, with short and with long names.
fn small(folder: &Path) {
    fs::create_dir_all(folder.join("folder/inner")).expect("made");
    fs::write(folder.join("file"), noise(70_000, 1)).expect("written");
    fs::write(folder.join("n".repeat(200)), noise(2000, 2)).expect("written");
    fs::write(folder.join("folder/inner/deep"), "deep").expect("written");
    std::os::unix::fs::symlink("file", folder.join("link")).expect("linked");
}

/// The only stored file for which this holds.
fn only(vault: &Path, of: impl Fn(&str, &[u8]) -> bool) -> PathBuf {
    let is = |path: &PathBuf| of(&path.file_name().expect("one").to_string_lossy(), &fs::read(path).expect("read"));
    let found: Vec<_> = stored(&vault.join("d")).into_iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn what_another_program_wrote_is_read_and_never_written() {
    let Some((plain, vault)) = made(|folder| fill_host(folder, false)) else { return };
    let format = FILE_FORMATS.iter().find(|format| format.name() == "Cryptomator").expect("a row");
    let verdict = format.identify(&*host(vault.path())).expect("looked at");
    assert!(matches!(&verdict, Verdict::Yes(why) if why[0].contains("format 6, which is only read")), "{verdict:?}");
    let before: Vec<_> = stored(vault.path()).iter().map(|path| fs::read(path).expect("read")).collect();
    let tree = open(vault.path());
    assert!(seen(&tree) == seen_by_host(plain.path()));
    assert_eq!(survey(vault.path()), []);
    assert!(!tree.writable());
    let (root, new) = (tree.root(), NewNode::default());
    for refused in [
        tree.create(root, OsStr::new("new"), &new).map(drop),
        tree.make_folder(root, OsStr::new("new"), &new).map(drop),
        tree.remove(root, OsStr::new("a")),
        tree.write_at(find(&tree, OsStr::new("a")).expect("found"), 0, b"new"),
    ] {
        assert_eq!(refused.expect_err("refused").kind(), Kind::ReadOnlyFilesystem);
    }
    drop(tree);
    assert!(stored(vault.path()).iter().map(|path| fs::read(path).expect("read")).eq(before));
    // Only the key file changes, and keeps its version.
    let given = [Credential::Passphrase(secret(PASSPHRASE))];
    cryptomator::change_passphrase(&*host(vault.path()), &secret("another"), &Unlock::with(&given)).expect("changed");
    let changed = [Credential::Passphrase(secret("another"))];
    let tree = file_formats::open(host(vault.path()), None, &Unlock::with(&changed)).expect("it opens");
    assert!(seen(&tree) == seen_by_host(plain.path()));
    let error = file_formats::open(host(vault.path()), None, &Unlock::with(&given)).err().expect("the old one");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
}

#[test]
fn what_is_damaged_or_foreign_is_named_and_the_rest_is_rescued() {
    let Some((_, vault)) = made(small) else { return };
    let file = only(vault.path(), |_, bytes| bytes.len() > 70_000);
    let folder = only(vault.path(), |name, _| name.starts_with('0') && file.with_file_name(name).exists());
    let long = only(vault.path(), |name, _| name.ends_with(".lng"));
    let in_root = |name: &str| file.with_file_name(name);
    let named = |path: &Path| path.file_name().expect("a name").to_str().expect("text").to_owned();

    // A copy of a sync program, something foreign, a folder among the entries, and a file with the name of the folder.
    let copy = in_root(&format!("{} (1)", named(&file)));
    fs::copy(&file, &copy).expect("copied");
    fs::write(in_root("foreign.txt"), "text").expect("written");
    fs::create_dir(in_root("0FOLDER")).expect("made");
    let same = in_root(&named(&folder)[1..]);
    fs::copy(&file, &same).expect("copied");
    // A long name whose file in `m` is missing.
    fs::remove_dir_all(vault.path().join("m")).expect("removed");
    let problems = survey(vault.path());
    let mut said: Vec<_> = problems.iter().map(|(path, what)| (named(path), what.as_str())).collect();
    said.sort();
    for (path, what) in [
        (&copy, "another version"),
        (&in_root("foreign.txt"), "not part of the vault"),
        (&in_root("0FOLDER"), "neither a file nor a folder"),
        (&same, "the same name"),
        (&long, "is missing or damaged"),
    ] {
        assert!(said.iter().any(|(name, says)| *name == named(path) && says.contains(what)), "{path:?}: {said:#?}");
    }
    assert_eq!(said.len(), 5, "{said:#?}");
    let tree = open(vault.path());
    assert!(read(&tree, find(&tree, OsStr::new("folder/inner/deep")).expect("found")) == b"deep");
    tree.show_stored_names();
    assert!(read(&tree, find(&tree, OsStr::new(&named(&long))).expect("shown as stored")) == noise(2000, 2));

    // A folder that nothing leads to: its names need its ID, but the folder inside it has its own.
    fs::remove_file(&folder).expect("removed");
    let problems = survey(vault.path());
    assert!(problems.iter().any(|(_, what)| what.starts_with("Nothing leads to this folder")), "{problems:#?}");
    let tree = open(vault.path());
    tree.show_stored_names();
    let mut found = Vec::new();
    check(&tree, tree.root(), 0, &mut |kind, bytes| found.extend(bytes.map(|bytes| (kind, bytes))));
    assert!(found.contains(&(NodeKind::File, b"deep".to_vec())), "it is rescued");

    // A folder whose contents are missing, one that leads to the root, and one whose ID was cut off.
    let Some((_, vault)) = made(small) else { return };
    let file = only(vault.path(), |_, bytes| bytes.len() > 70_000);
    let folder = only(vault.path(), |name, _| name.starts_with('0') && file.with_file_name(name).exists());
    let id = fs::read(&folder).expect("read");
    for (bytes, what) in
        [(&id[..20], "the folder that it leads to is missing"), (&[][..], "it is empty"), (&[b'x'; 40][..], "too long")]
    {
        fs::write(&folder, bytes).expect("written");
        let problems = survey(vault.path());
        assert!(problems.iter().any(|(_, says)| says.contains(what)), "{what}: {problems:#?}");
    }
}

#[test]
fn mutated_vaults_never_show_wrong_data() {
    let Some((_, sound)) = made(small) else { return };
    let whole = seen(&open(sound.path()));
    let files: Vec<_> =
        stored(sound.path()).into_iter().map(|path| (path.clone(), fs::read(path).expect("read"))).collect();
    let known: Vec<_> = whole.values().map(|(_, bytes)| bytes).chain(files.iter().map(|(_, bytes)| bytes)).collect();
    let mut random = Random::new(6);
    for round in 0..500 {
        let vault = tempfile::tempdir().expect("a folder");
        for (path, bytes) in &files {
            let path = vault.path().join(path.strip_prefix(sound.path()).expect("in it"));
            fs::create_dir_all(path.parent().expect("one")).and_then(|()| fs::write(path, bytes)).expect("copied");
        }
        (0..=random.below(2)).for_each(|_| mutate(vault.path(), &mut random));
        let given = [Credential::Passphrase(secret(PASSPHRASE))];
        let unlock = Unlock { memory: Some(1 << 28), ..Unlock::with(&given) };
        let Ok(tree) = file_formats::open(host(vault.path()), Some("Cryptomator"), &unlock) else { continue };
        tree.show_stored_names();
        check(&tree, tree.root(), 0, &mut |kind, bytes| {
            assert!(bytes.is_none_or(|bytes| bytes.is_empty() || known.contains(&&bytes)), "round {round}: {kind:?}");
        });
    }
}
