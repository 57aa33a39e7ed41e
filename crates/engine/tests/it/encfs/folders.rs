//! Folders that Debian's encfs made and filled.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use claviger_engine::file_formats::{self, FILE_FORMATS, encfs};
use claviger_engine::trees::{NewNode, Tree, Use, find};
use claviger_engine::{Credential, ErrorKind, Secret, Unlock, Verdict};
use claviger_testkit::mounts::bounded;
use claviger_testkit::tools;

use crate::support::encfs::{
    CONFIG, PASSPHRASE, Program, Recipe, STANDARD_FOLDER, host, name, open, passphrase, recipes, try_open,
};
use crate::support::gocryptfs::{read, seen, seen_by_host};
use crate::support::noise;

/// Fills a folder through the system.
fn fill(folder: &Path, recipe: &Recipe) {
    let at = |path: &str| folder.join(path);
    let (block, overhead) = (recipe.block, recipe.checksum + recipe.random);
    let data = block - overhead;
    let around = [data, 2 * data, block].into_iter().flat_map(|size| [size - 1, size, size + 1]);
    for size in [0, 1, 2, 7, 8, 9, 63, 64, 65, 129, 100_000].into_iter().chain(around) {
        fs::write(at(&format!("size {size}")), noise(size, size as u64)).expect("written");
    }
    let names = ["a", "fifteen letters", "sixteen letters.", "seven..", "\u{e4}\u{f6}\u{fc}", " .x", "..."];
    let longs = [30, 60, 100, 130].map(|len| "n".repeat(len));
    for (i, name) in names.iter().copied().chain(longs.iter().map(|name| &**name)).enumerate() {
        fs::write(at(name), noise(100 + i, 1)).expect("written");
    }
    let hole = fs::File::create(at("hole")).expect("a file");
    hole.write_all_at(b"begin", 0).and_then(|()| hole.write_all_at(b"end", 50_000)).expect("written");
    hole.set_len(90_001).expect("extended");
    fs::write(at("zeros"), vec![0; 3 * block + 5]).expect("written");
    fs::write(at("cut"), noise(20_000, 3)).expect("written");
    fs::File::options().write(true).open(at("cut")).and_then(|file| file.set_len(9_999)).expect("cut");
    let deep = "deep/".repeat(20);
    fs::create_dir_all(at(&deep)).and_then(|()| fs::create_dir(at("empty"))).expect("made");
    fs::write(at(&format!("{deep}file")), "far below").expect("written");
    symlink("../target/./\u{e4}//b/", at("deep/link"))
        .and_then(|()| symlink("/absolute/target", at("absolute")))
        .and_then(|()| symlink(".", at("here")))
        .and_then(|()| symlink("target/".repeat(9), at("long link")))
        .expect("linked");
    // Files whose header depends on the path have no second names.
    if !recipe.by_path {
        fs::hard_link(at("size 65"), at("deep/second")).expect("linked");
    }
    fs::create_dir_all(at("moved/inner/most")).expect("made");
    fs::write(at("moved/inner/most/file"), "moved").expect("written");
    fs::rename(at("moved/inner"), at("deep/renamed"))
        .and_then(|()| fs::rename(at("a"), at("empty/b")))
        .expect("renamed");
}

#[test]
fn what_encfs_writes_we_read() {
    let Some(program) = Program::find() else { return };
    for recipe in recipes() {
        let folder = recipe.folder();
        let mut expected = None;
        let fill = |mounted: &Path| {
            fill(mounted, &recipe);
            expected = Some(seen_by_host(mounted));
        };
        let Some(()) = program.mounted(folder.path(), &[], fill) else { return };
        let (tree, expected) = (open(folder.path()), expected.expect("it was filled"));
        let seen = seen(&tree);
        let paths = |seen: &crate::support::gocryptfs::Seen| seen.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(&seen), paths(&expected), "{recipe:?}");
        for (path, of) in &seen {
            assert!(of == &expected[path], "{recipe:?}: {}", path.display());
        }
        assert!(tree.proven() && tree.verifies() == (recipe.checksum > 0));
        assert_eq!(tree.encrypts_names(), recipe.naming.0 != "nameio/null");
    }
}

/// A folder of encfs 1.9.5: `--standard`, with blocks of 64 bytes, checksums of 8, 2 random bytes, and IVs that depend on the path.
#[test]
fn a_folder_that_encfs_once_made_is_read() {
    let numbers = "<keySize>192</keySize><blockSize>64</blockSize><uniqueIV>1</uniqueIV><chainedNameIV>1</chainedNameIV>\
                   <externalIVChaining>1</externalIVChaining><blockMACBytes>8</blockMACBytes>\
                   <blockMACRandBytes>2</blockMACRandBytes><allowHoles>1</allowHoles>";
    let config = format!(
        "<boost_serialization><cfg><version>20100713</version>\
         <cipherAlg><name>ssl/aes</name><major>3</major></cipherAlg><nameAlg><name>nameio/block</name><major>4</major></nameAlg>\
         {numbers}<encodedKeyData>\nW0hdUiYQTfXSct3NdjsGAqCtU8feV8wnhrS4pangUsCZgnk8qu53Brac3eQ=\n</encodedKeyData>\
         <saltData>9zs/qPJD+IizbONHWlr0yJjSXdI=</saltData><kdfIterations>372019</kdfIterations></cfg></boost_serialization>"
    );
    let stored = "ef2f733981b35fd123da811ce1f2a205118ccdec02f6b85dbe412ac35510309a9c1cd90322f6f6344c1a6e4aca29a8a8\
                  6046f0b2fb455f7fa0121bfedf2607960d62cc0a29f98384c4867d76d178c4162ecd405e539e799e67039a8347c9c44f\
                  0cb57342d0af27ac0b6f200bf8fe548dcd5a3dd05f2d243baf1321566b199427";
    let stored: Vec<u8> =
        (0..stored.len() / 2).map(|i| u8::from_str_radix(&stored[2 * i..][..2], 16).expect("hex")).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("V23r8VO3BtK9y543JCwWH0KE");
    fs::write(folder.path().join(CONFIG), config).and_then(|()| fs::create_dir(&inner)).expect("made");
    fs::write(inner.join("AhvCeha41ROGl4uWUYQQqabz"), stored).expect("written");
    symlink("+u,BSfGk-8VOU0WBxs80XxYlG", inner.join("w5PPkGRcSw-h-TbMSzyetsZt")).expect("linked");
    let tree = open(folder.path());
    let (file, link) = (find(&tree, name("folder/file")), find(&tree, name("folder/link")));
    assert_eq!(read(&tree, file.expect("found")), (0..100).collect::<Vec<u8>>());
    assert_eq!(tree.link_target(link.expect("found")).expect("a target"), "/absolute/target");
    assert_eq!(seen(&tree).len(), 3);
}

#[test]
fn folders_that_encfs_makes_itself_are_read() {
    let Some(program) = Program::find() else { return };
    for options in ["--standard", "--paranoia"] {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |mounted: &Path| {
            fs::create_dir(mounted.join("folder")).expect("made");
            fs::write(mounted.join("folder/file"), noise(5000, 5)).expect("written");
            symlink("folder/file", mounted.join("link")).expect("linked");
        };
        let Some(()) = program.mounted(folder.path(), &[options], write) else { return };
        let tree = open(folder.path());
        let file = find(&tree, name("folder/file")).expect("found");
        assert!(read(&tree, file) == noise(5000, 5), "{options}");
        let link = find(&tree, name("link")).expect("found");
        assert_eq!(tree.link_target(link).expect("a target"), "folder/file");
        assert_eq!(tree.verifies(), options == "--paranoia");
    }
}

#[test]
fn the_encrypted_view_of_a_plain_folder_is_read() {
    let Some(program) = Program::find() else { return };
    let of = STANDARD_FOLDER;
    let recipes = [Recipe { file_ivs: false, chained: false, ..of }, Recipe { chained: false, ..of }];
    for recipe in recipes {
        let plain = recipe.folder();
        fs::create_dir(plain.path().join("folder")).expect("made");
        for size in [0, 1, 1023, 1024, 1025, 5000] {
            fs::write(plain.path().join(format!("folder/{size}")), noise(size, 5)).expect("written");
        }
        symlink("folder/1", plain.path().join("link")).expect("linked");
        symlink("/folder/1", plain.path().join("absolute")).expect("linked");
        let copy = recipe.folder();
        let take = |view: &Path| {
            let from = format!("{}/.", view.display());
            tools::run(Command::new("cp").args(["-a", &from]).arg(copy.path()));
        };
        let Some(()) = program.mounted(plain.path(), &["--reverse"], take) else { return };
        fs::remove_file(plain.path().join(CONFIG)).expect("removed");
        assert!(seen(&open(copy.path())) == seen_by_host(plain.path()), "{recipe:?}");
    }
}

#[test]
fn a_folder_is_recognised_and_opened_with_its_passphrase_alone() {
    for recipe in recipes() {
        let folder = recipe.folder();
        let host = host(folder.path());
        let format = file_formats::find(&*host, None).expect("found");
        assert_eq!((format.name(), format.key_file()), ("EncFS", Some(encfs::CONFIG)));
        assert!(matches!(format.glance(&*host), Ok(Verdict::Yes(_))));
        assert!(FILE_FORMATS.iter().any(|row| row.name() == format.name()));
        let kind = |credentials: &[Credential]| {
            let opened = file_formats::open(host.clone(), None, &Unlock::with(credentials));
            opened.map(drop).map_err(|e| e.kind)
        };
        assert!(kind(&[passphrase(PASSPHRASE)]).is_ok(), "{recipe:?}");
        let wrong = kind(&[passphrase("another")]);
        assert!(
            matches!(&wrong, Err(ErrorKind::WrongCredential(what)) if what.contains(recipe.config().0)),
            "{wrong:?}"
        );
        assert!(matches!(kind(&[]), Err(ErrorKind::WrongCredential(_))));
        let twice = [passphrase(PASSPHRASE), passphrase(PASSPHRASE)];
        assert!(matches!(kind(&twice), Err(ErrorKind::WrongCredential(_))));
        let key = kind(&[Credential::VolumeKey(Secret::zeroed(32))]);
        assert!(key.is_err(), "{key:?}");
    }
}

#[test]
fn nothing_is_written() {
    let folder = Recipe { naming: ("nameio/null", 1), file_ivs: false, ..STANDARD_FOLDER }.folder();
    fs::write(folder.path().join("file"), noise(100, 1)).expect("written");
    let before = seen_by_host(folder.path());
    let tree = open(folder.path());
    let (root, file) = (tree.root(), find(&tree, name("file")).expect("found"));
    let new = NewNode { mode: Some(0o644), owner: None };
    assert!(!tree.writable());
    assert!(tree.write_at(file, 0, b"x").is_err() && tree.append(file, b"x").is_err());
    assert!(tree.set_len(file, 0).is_err() && tree.set_len(file, 500).is_err());
    assert!(tree.create(root, name("new"), &new).is_err() && tree.make_folder(root, name("new"), &new).is_err());
    assert!(tree.make_link(root, name("new"), name("target"), &new).is_err());
    assert!(tree.remove(root, name("file")).is_err());
    assert!(tree.open(file, Use { read: true, write: true }).is_err());
    assert!(seen_by_host(folder.path()) == before);
    let warnings = tree.warnings().join(" ");
    assert!(warnings.contains("audit") && warnings.contains("no checksums"), "{warnings}");
    let checked = Recipe { checksum: 8, ..STANDARD_FOLDER }.folder();
    assert!(!open(checked.path()).warnings().join(" ").contains("no checksums"));
}

#[test]
fn long_names_are_refused_before_they_are_encrypted() {
    for recipe in recipes() {
        let folder = recipe.folder();
        let tree = open(folder.path());
        let longest = tree.space().expect("known").longest_name as usize;
        assert!(longest >= 100, "{recipe:?}: {longest}");
        let error = |len: usize| tree.lookup(tree.root(), name(&"n".repeat(len))).expect_err("nothing is there").kind();
        assert_eq!(error(longest), std::io::ErrorKind::NotFound, "{recipe:?}");
        assert_eq!(error(longest + 1), std::io::ErrorKind::InvalidFilename, "{recipe:?}");
        assert_eq!(error(10_000), std::io::ErrorKind::InvalidFilename, "{recipe:?}");
    }
}

/// securefs makes its own, where it is installed; cryfs would mount it.
#[test]
fn folders_of_cryfs_and_securefs_are_named_and_not_opened() {
    for (format, config, text) in [
        ("CryFS", "cryfs.config", "cryfs.config;1;scrypt\0"),
        ("securefs", ".securefs.json", "{\"encrypted_key\": {}}"),
        ("securefs", ".config.pb", "\x0a\x02ab\x12\x01c\x1a\x01d\x22\x01e\x2a\x02\x08\x01"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        match Some("securefs")
            .filter(|program| *program == format && config == ".securefs.json")
            .and_then(tools::program)
        {
            Some(program) => {
                tools::run(bounded(120, program).args(["create", "--pass", PASSPHRASE]).arg(folder.path()));
            }
            None => fs::write(folder.path().join(config), text).expect("written"),
        }
        let host = host(folder.path());
        let found = file_formats::find(&*host, None).expect("found");
        assert_eq!((found.name(), found.opens(), found.asks_passphrase(&[])), (format, false, false));
        assert!(found.owns(name(config), true) && !found.owns(name(config), false));
        let error = try_open(folder.path()).map(drop).expect_err("another program opens it");
        assert!(matches!(&error.kind, ErrorKind::Unsupported { what } if what.contains(format)), "{error:?}");
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("MOUNTPOINT")), "{error:?}");
        fs::write(folder.path().join(config), "something else").expect("written");
        let error = try_open(folder.path()).map(drop).expect_err("it is none");
        assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error:?}");
    }
}

#[test]
fn an_older_configuration_that_is_damaged_is_named() {
    for old in [".encfs5", ".encfs4"] {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(old), b"\x02\x06cipher\x01x\x07keyData\x01y").expect("written");
        let error = try_open(folder.path()).map(drop).expect_err("it is damaged");
        assert!(matches!(&error.kind, ErrorKind::Malformed { field, .. } if *field == old), "{error:?}");
        // Somebody's other file of that name.
        fs::write(folder.path().join(old), "notes").expect("written");
        let error = try_open(folder.path()).map(drop).expect_err("it is none");
        assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error:?}");
    }
}
