//! FileVault 2 volumes, as a person opens them: of the testkit's maker, with a FAT inside, which the program itself can read.

use std::fs;
use std::process::Command;

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::filevault2::{BLOCK, Image, Recipe, User};
use claviger_testkit::tools;

const RECOVERY_KEY: &str = "35AJ-AC98-TI1H-N4M3-HDUQ-UQFG";

/// Blocks of the plaintext.
const BLOCKS: usize = 64;

/// A volume in a file, opened by [`PASSWORD`] and a recovery key, and what it holds: a FAT with a file.
struct Made {
    image: Image,
    plain: Vec<u8>,
    path: String,
}

fn made(folder: &Folder) -> Option<Made> {
    let (mformat, mcopy) = (tools::program("mformat")?, tools::program("mcopy")?);
    let (plain, file) = (folder.str("plain"), folder.str("hello.txt"));
    fs::write(&plain, vec![0; BLOCKS * BLOCK]).expect("a file");
    fs::write(&file, "hello from a Mac\n").expect("a file");
    tools::run(Command::new(mformat).args([
        "-i",
        &plain,
        "-T",
        &(BLOCKS * BLOCK / 512).to_string(),
        "-h",
        "1",
        "-s",
        "8",
        "::",
    ]));
    tools::run(Command::new(mcopy).args(["-i", &plain, &file, "::hello.txt"]));
    let users = [
        User { passphrase: PASSWORD, name: "Ann", iterations: 1000 },
        User { passphrase: RECOVERY_KEY, name: "", iterations: 1000 },
    ];
    let plain = fs::read(plain).expect("the plaintext");
    let image = Recipe::new(&users, &plain).make();
    let path = folder.str("mac.img");
    fs::write(&path, image.sealed()).expect("a volume");
    Some(Made { image, plain, path })
}

#[test]
fn it_says_what_it_is_and_opens() {
    let folder = Folder::new();
    let Some(Made { image, plain, path }) = made(&folder) else { return };
    let text = run(["identify", &path]).succeeds().text();
    assert!(text.contains("mac.img: FileVault2\n"), "{text}");
    let password = ["--password-file", &folder.password];
    let with = |verb: &[&str], more: &[&str]| run(verb.iter().chain(&password).chain(&[path.as_str()]).chain(more));
    let info = with(&["info", "--json"], &[]).succeeds().json();
    assert_eq!((&info["format"], &info["opened_by"]), (&"FileVault2".into(), &"user Ann".into()));
    assert_eq!((&info["size"], &info["label"]), (&plain.len().into(), &"Test & Volume".into()));
    let text = with(&["info"], &[]).succeeds().text();
    assert!(text.contains("aes in xts-plain64 mode, key of 256 bits"), "{text}");
    let header = run(["header", "show", "--json", &path]).succeeds().json();
    assert!(header.to_string().contains("\"users\":["), "{header}");
    let explained = with(&["explain"], &[]).succeeds().text();
    assert!(explained.contains("FileVault2"), "{explained}");

    assert!(with(&["ls"], &[]).succeeds().text().contains("hello.txt"));
    let copy = folder.str("copy.txt");
    with(&["cp"], &[":/hello.txt", &copy]).succeeds();
    assert_eq!(fs::read_to_string(&copy).expect("the copy"), "hello from a Mac\n");
    assert!(with(&["cat"], &[]).succeeds().out == plain);
    for key in [RECOVERY_KEY, "35ajac98ti1hn4m3hduquqfg"] {
        assert!(run_with(key.as_bytes(), ["cat", "--password-file", "-", &path]).succeeds().out == plain, "{key}");
    }
    for len in [16, 32] {
        let key = folder.str("key");
        fs::write(&key, &image.volume_key[..len]).expect("a key");
        assert!(run(["cat", "--format", "filevault-2", "--volume-key-file", &key, &path]).succeeds().out == plain);
    }
    let served = Served::start(["--password-file", &folder.password, &path]);
    assert!(served.read_only && served.size == plain.len() as u64);
    drop(served);
    assert!(fs::read(&path).expect("it") == image.sealed(), "not a byte was changed");
}

#[test]
fn it_mounts_for_reading() {
    let Some(place) = MountSpace::root() else { return };
    let Some(Made { plain, path, .. }) = made(&place.folder) else { return };
    let dir = place.folder.path("mnt");
    fs::create_dir(&dir).expect("a folder");
    let dir = dir.to_str().expect("UTF-8");
    let password = place.folder.str("password");
    place.run(["mount", "--read-only", "--filesystem", "none", "--password-file", &password, &path, dir]).succeeds();
    assert!(fs::read(format!("{dir}/volume")).expect("the plaintext") == plain);
    place.run(["unmount", dir]).succeeds();
    place.run(["mount", "--read-only", "--password-file", &password, &path, dir]).succeeds();
    assert_eq!(fs::read_to_string(format!("{dir}/hello.txt")).expect("the file"), "hello from a Mac\n");
    place.run(["unmount", dir]).succeeds();
}

#[test]
fn what_does_not_open_says_why() {
    let folder = Folder::new();
    let Some(Made { image, path, .. }) = made(&folder) else { return };
    run_with(b"wrong", ["info", "--password-file", "-", &path])
        .fails(2, &["wrong passphrase or recovery key", "2 users"]);
    run(["info", "--no-password", "--keyfile", &folder.password, &path]).fails(1, &["FileVault2 takes no keyfile"]);
    run(["create", "--format", "FileVault2", "--size", "1M", "--password-file", &folder.password, &folder.str("new")])
        .fails(5, &["creating FileVault2 volumes"]);
    let damaged = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = image.sealed();
        edit(&mut bytes);
        fs::write(&path, bytes).expect("a volume");
        run(["info", "--password-file", &folder.password, &path])
    };
    damaged(&|bytes| bytes[Image::place(0, 0)..Image::place(0, 1) * 2 - Image::place(0, 0)].fill(1))
        .fails(4, &["damaged"]);
    damaged(&|bytes| bytes.truncate(bytes.len() / 2 + BLOCK)).fails(4, &["damaged"]);
    let warned = damaged(&|bytes| bytes[..512].fill(1)).succeeds();
    assert!(warned.err.contains("its copy at the end") || warned.text().contains("its copy at the end"), "{warned:?}");
}
