//! Folders of eCryptfs that are damaged, or made to do harm: a clear answer, and nothing below is changed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use claviger_engine::file_formats::{self, FileState, Stacked, StoredFile, ecryptfs};
use claviger_engine::trees::{HeldNode, Setting, Tree};
use claviger_engine::{ErrorKind, Secret};
use claviger_testkit::ecryptfs::kernel::Mount;
use claviger_testkit::ecryptfs::maker::{self, Cipher, EXTENT, File, HEADER, NAME_SALT, stretched, with_header};
use claviger_testkit::operations::contents;
use claviger_testkit::random::Random;
use claviger_testkit::tools;

use crate::support::ecryptfs::{PASSPHRASE, host, mount, open, open_at};

const AES: Cipher = ("aes", 16);

/// Where packets begin in metadata, and the cipher in the first one.
const PACKETS: usize = 26;
const CIPHER: usize = PACKETS + 3;

fn plain() -> Vec<u8> {
    Random::new(1).bytes(2 * EXTENT + 100)
}

fn good() -> File {
    File::new(PASSPHRASE, AES, &plain())
}

fn in_clear(lower: &Path) -> Mount<'_> {
    Mount { of_names: None, ..mount(lower, AES) }
}

/// An open folder with one good file, and another one that others change.
struct Folder {
    tree: Stacked,
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("good"), good().stored()).expect("there is room");
        Self { tree: open_at(dir.path(), &in_clear(dir.path())), dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    fn holding(&self, bytes: &[u8]) -> HeldNode<&(dyn Tree + 'static)> {
        fs::write(self.path(), bytes).expect("there is room");
        HeldNode::find(&self.tree, OsStr::new("file")).expect("it is found")
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        fs::read(self.path()).expect("it is there") == bytes
    }
}

fn found(tree: &Stacked) -> HeldNode<&(dyn Tree + 'static)> {
    HeldNode::find(tree, OsStr::new("file")).expect("it is found")
}

/// All that could change a file is refused, and so is reading it; it can be seen and removed all the same.
fn refused(folder: &Folder, bytes: &[u8], what: &str) -> io::Error {
    let (tree, node) = (&folder.tree, folder.holding(bytes));
    let error = tree.read_at(node.node(), 0, &mut [0; 10]).expect_err(what);
    tree.write_at(node.node(), 0, &[7; 10]).expect_err(what);
    tree.append(node.node(), &[7; 10]).expect_err(what);
    tree.set_len(node.node(), 0).expect_err(what);
    tree.set_len(node.node(), 1 << 30).expect_err(what);
    tree.attributes(node.node()).expect("it can be seen");
    assert!(tree.list(tree.root()).expect("listed").iter().any(|entry| entry.name == "file"), "{what}");
    assert!(folder.holds(bytes), "{what}: something was written");
    drop(node);
    tree.remove(tree.root(), OsStr::new("file")).expect("it can be removed");
    error
}

fn patched(at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = good().stored();
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

#[test]
fn each_field_that_is_wrong_is_named() {
    let folder = Folder::new();
    let mut bad: Vec<(&str, Vec<u8>)> = Vec::new();
    for size in [1u64 << 63, u64::MAX, (1 << 63) - 1, (1 << 63) - 8192, (1 << 63) - 8191] {
        bad.push(("size", patched(0, &size.to_be_bytes())));
    }
    for version in [4, 5, 0x7f, 0xff] {
        bad.push(("version", patched(16, &[version])));
    }
    for (extent, count) in [(0u32, 2u16), (4096, 0), (4096, 1), (1, 1), (2048, 2), (u32::MAX, 0), (8191, 1)] {
        let bytes = [&extent.to_be_bytes()[..], &count.to_be_bytes()].concat();
        bad.push(("header size", patched(20, &bytes)));
    }
    for tag in [0, 0x01, 0x02, 0x46, 0x8d, 0xed, 0xff] {
        bad.push(("first packet", patched(PACKETS, &[tag])));
    }
    for len in [0u8, 1, 12, 13, 14, 28, 30, 45, 191, 192, 223, 224, 255] {
        bad.push(("length of the key's packet", patched(PACKETS + 1, &[len])));
        bad.push(("length of the signature's packet", patched(PACKETS + 32, &[len])));
    }
    bad.push(("version of the key's packet", patched(PACKETS + 2, &[3])));
    for cipher in [0, 1, 2, 5, 6, 8, 12, 100, 255] {
        bad.push(("cipher", patched(CIPHER, &[cipher])));
    }
    for tag in [0, 0x8c, 0x01, 0x46] {
        bad.push(("tag of the signature", patched(PACKETS + 31, &[tag])));
    }
    // Keys of no size that there is.
    for sealed in [0usize, 1, 15, 17, 56, 64, 512, 513, 1000, 4000] {
        let packets = maker::passphrase_packets(AES, maker::SALT, &vec![5; sealed], [6; 8]);
        let metadata = [&good().metadata()[..PACKETS], &packets].concat();
        bad.push(("size of the key", with_header(&metadata, &[])));
    }
    for (what, bytes) in &bad {
        let error = refused(&folder, bytes, what);
        let answer = error.to_string();
        assert!(answer.len() > 10, "{what}: {answer}");
        fs::write(folder.path(), bytes).expect("there is room");
        let lower = host(folder.dir.path());
        let file = HeldNode::find(&*lower, OsStr::new("file")).expect("it is there");
        let of = StoredFile { tree: &*lower, file: file.node(), contents: file.node() };
        let facts = file_formats::named("eCryptfs").and_then(|format| format.facts(of)).expect("it can be looked at");
        assert_ne!(facts.state, FileState::Encrypted, "{what}: {answer}");
    }
}

/// No byte of a header makes anything panic, and none that is refused makes anything change.
#[test]
fn any_byte_of_a_header_may_be_another() {
    let folder = Folder::new();
    let len = good().metadata().len() + 2;
    let mut read = 0;
    for at in 0..len {
        let is = good().stored()[at];
        for value in [0, 1, 0x7f, 0x80, 0xc0, 0xff, is ^ 1, is ^ 0x80].into_iter().filter(|value| *value != is) {
            let bytes = patched(at, &[value]);
            let (tree, node) = (&folder.tree, folder.holding(&bytes));
            let what = format!("byte {at} is {value:#x}");
            match tree.read_at(node.node(), 0, &mut [0; 5000]) {
                Ok(_) => read += 1,
                Err(_) => {
                    // A file that is empty, or begins as a new one does, can be begun anew; none other.
                    tree.write_at(node.node(), 0, &[7]).expect_err(&what);
                    assert!(folder.holds(&bytes), "{what}: it was written to");
                }
            }
            tree.attributes(node.node()).expect("it can be seen");
        }
    }
    // Sizes, flags, salt and what nobody reads.
    assert!(read > 50, "{read}");
}

#[test]
fn a_file_may_end_at_any_byte() {
    let folder = Folder::new();
    let (stored, plain) = (good().stored(), plain());
    let lens = (0..200).chain([4095, 4096, 4097, HEADER - 1, HEADER, HEADER + 1, HEADER + EXTENT - 1]);
    for len in lens.chain([HEADER + EXTENT, HEADER + EXTENT + 1, HEADER + 2 * EXTENT, stored.len() - 1]) {
        let (tree, node) = (&folder.tree, folder.holding(&stored[..len]));
        let what = format!("it ends at {len}");
        let there = len.saturating_sub(HEADER) / EXTENT * EXTENT;
        if len <= 6 {
            // A new file begins with a size of zero: its making may have been cut short. It is empty, and can be written.
            assert_eq!(contents(tree, node.node()).expect("read"), b"");
            tree.write_at(node.node(), 0, b"new").expect("written");
            assert_eq!(contents(tree, node.node()).expect("read"), b"new");
            continue;
        }
        // The complete extents can be read, and the rest is left out.
        let mut out = vec![0; there];
        if there > 0 {
            assert_eq!(tree.read_at(node.node(), 0, &mut out).expect("read"), there, "{what}");
            assert!(out == plain[..there], "{what}");
        }
        tree.read_at(node.node(), there as u64, &mut [0; 10]).expect_err(&what);
        tree.write_at(node.node(), plain.len() as u64, &[0; 10]).expect_err(&what);
        tree.set_len(node.node(), plain.len() as u64 + 1).expect_err(&what);
        tree.set_len(node.node(), plain.len() as u64 - 1).expect_err(&what);
        assert!(folder.holds(&stored[..len]), "{what}: something was written");
        if there > 0 {
            tree.set_len(node.node(), 1000).expect("what is there can be kept");
            assert!(contents(tree, node.node()).expect("read") == plain[..1000], "{what}");
        }
    }
}

#[test]
fn a_size_beyond_what_is_stored_is_told() {
    let folder = Folder::new();
    for size in [1u64 << 20, 1 << 40, (1 << 62) + 5] {
        let bytes = patched(0, &size.to_be_bytes());
        let (tree, node) = (&folder.tree, folder.holding(&bytes));
        assert_eq!(tree.attributes(node.node()).expect("known").size, size);
        let mut out = vec![0; 2 * EXTENT];
        tree.read_at(node.node(), 0, &mut out).expect("what is there can be read");
        assert!(out == plain()[..2 * EXTENT]);
        tree.read_at(node.node(), size - 10, &mut [0; 10]).expect_err("it is not there");
        tree.write_at(node.node(), size, &[1]).expect_err("it is damaged");
        assert!(folder.holds(&bytes));
    }
}

/// Contents may begin anywhere after the fewest bytes of a header, and the rest of it may hold anything.
#[test]
fn a_header_may_be_longer_or_have_several_keys() {
    let folder = Folder::new();
    let longer = {
        let mut metadata = good().metadata();
        metadata[24..26].copy_from_slice(&5u16.to_be_bytes());
        let mut bytes = with_header(&metadata, &[9; 3 * EXTENT]);
        bytes.extend(good().contents());
        bytes
    };
    let passphrases = ["first", "second", PASSPHRASE].map(str::to_owned).to_vec();
    let several = File { passphrases, ..good() }.stored();
    let public = {
        let metadata = good().metadata();
        let packets = [maker::public_key_packet([3; 8], &[8; 256]), metadata[PACKETS..].to_vec()].concat();
        with_header(&[&metadata[..PACKETS], &packets].concat(), &good().contents())
    };
    let salted = File { salt: *b"mysalt.!", ..good() }.stored();
    for bytes in [longer, several, public, salted] {
        drop(folder.holding(&bytes));
        let tree = open_at(folder.dir.path(), &in_clear(folder.dir.path()));
        let node = found(&tree);
        assert!(contents(&tree, node.node()).expect("read") == plain());
        tree.append(node.node(), &[7; 5000]).expect("written");
        tree.set_len(node.node(), 10_000).expect("resized");
        drop(node);
        let tree = open_at(folder.dir.path(), &in_clear(folder.dir.path()));
        let expected = [&plain()[..], &[7; 5000]].concat();
        assert!(contents(&tree, found(&tree).node()).expect("read") == expected[..10_000]);
        let stored = fs::read(folder.path()).expect("read");
        assert!(stored[8..4096] == bytes[8..4096], "the header has changed");
    }
    // For a public key alone.
    let metadata = good().metadata();
    let alone = [&metadata[..PACKETS], &maker::public_key_packet([3; 8], &[8; 256])].concat();
    let error = refused(&folder, &with_header(&alone, &good().contents()), "a public key");
    assert!(error.to_string().contains("public") && error.to_string().contains("0303030303030303"), "{error}");
}

/// Metadata in an attribute: each length of them, and what is wrong in them.
#[test]
fn attributes_that_are_wrong_are_told() {
    let folder = Folder::new();
    let (contents_below, metadata) = (good().contents(), good().metadata());
    let lower = host(folder.dir.path());
    let attribute = OsStr::new("user.ecryptfs");
    let mut bad: Vec<Vec<u8>> = (0..metadata.len()).map(|len| metadata[..len].to_vec()).collect();
    for (at, with) in
        [(0, &[0xff; 8][..]), (8, &[1]), (16, &[9]), (PACKETS, &[0]), (PACKETS + 1, &[0xc0]), (CIPHER, &[0])]
    {
        let mut bytes = metadata.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bad.push(bytes);
    }
    for value in &bad {
        drop(folder.holding(&contents_below));
        let file = HeldNode::find(&*lower, OsStr::new("file")).expect("it is there");
        match lower.set_extended(file.node(), attribute, value, Setting::Any) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return tools::skip("the folder has no extended attributes").unwrap_or_default();
            }
            set => set.expect("set"),
        }
        let error = refused(&folder, &contents_below, "the attribute is wrong");
        assert!(error.to_string().len() > 10, "{error}");
    }
    drop(folder.holding(&contents_below));
    let file = HeldNode::find(&*lower, OsStr::new("file")).expect("it is there");
    lower.set_extended(file.node(), attribute, &metadata, Setting::Any).expect("set");
    let (tree, node) = (&folder.tree, folder.holding(&contents_below));
    assert!(contents(tree, node.node()).expect("read") == plain());
    assert!(tree.list_extended(node.node()).expect("listed").is_empty());
    tree.set_len(node.node(), 5000).expect("resized");
    assert!(contents(tree, node.node()).expect("read") == plain()[..5000]);
    let now = lower.extended(file.node(), attribute).expect("read").expect("it is there");
    assert!(now[..8] == 5000u64.to_be_bytes() && now[8..] == metadata[8..]);
    assert_eq!(fs::metadata(folder.path()).expect("known").len(), 2 * EXTENT as u64);
}

#[test]
fn wrong_passphrases_are_told_and_change_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let name = maker::name("of names", AES, b"file");
    fs::write(dir.path().join(&name), good().stored()).expect("there is room");
    let at = |passphrase, of_names| Mount { passphrase, of_names, ..mount(dir.path(), AES) };
    let error = |mount: &Mount<'_>| open(host(dir.path()), mount).err().expect("it is refused");
    let wrong = error(&at("wrong", Some("of names")));
    assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
    let (_, signature) = stretched(PASSPHRASE.as_bytes(), maker::SALT);
    assert!(wrong.to_string().contains(&claviger_testkit::vectors::hex(&signature)), "{wrong}");
    for of_names in [PASSPHRASE, "wrong"] {
        let wrong = error(&at(PASSPHRASE, Some(of_names)));
        assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
        let (_, signature) = stretched(b"of names", NAME_SALT);
        assert!(wrong.to_string().contains(&claviger_testkit::vectors::hex(&signature)), "{wrong}");
    }
    let tree = open_at(dir.path(), &at(PASSPHRASE, Some("of names")));
    assert!(contents(&tree, found(&tree).node()).expect("read") == plain());
    // With names as they are stored.
    let tree = open_at(dir.path(), &at(PASSPHRASE, None));
    let node = HeldNode::find(&tree, OsStr::new(&name)).expect("it is found");
    assert!(contents(&tree, node.node()).expect("read") == plain());
    // Longer than any.
    let long = "x".repeat(65);
    let error = error(&at(&long, Some(&long)));
    assert!(error.to_string().contains("64"), "{error}");
    assert!(fs::read(dir.path().join(name)).expect("read") == good().stored());
}

/// Invalid names are left out, even if they were made with the right key.
#[test]
fn names_that_lead_elsewhere_are_left_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let (key, signature) = stretched(PASSPHRASE.as_bytes(), NAME_SALT);
    let name = |plain: &[u8]| maker::name(PASSPHRASE, AES, plain);
    fs::write(dir.path().join(name(b"file")), good().stored()).expect("there is room");
    let named = |blocks: &[u8]| maker::named(&key, signature, AES, blocks);
    let padded = maker::padded(&key, AES, b"hidden");
    let short = maker::encoded(&maker::packet(0x46, &[&signature[..], &[7]].concat()));
    let mut hostile = vec![
        name(b".."),
        name(b"."),
        name(b"a/b"),
        name(b"/etc/passwd"),
        name(b"a\0b"),
        name(b""),
        maker::name("another", AES, b"file"),
        // No zero, a filling that is not the key's, more filling than there should be, one letter of it wrong.
        named(&[1; 32]),
        named(&[&[9; 16][..], &[0], b"fifteen letters"].concat()),
        named(&[&padded[..16], &padded[..]].concat()),
        named(&[&[padded[0] ^ 1], &padded[1..]].concat()),
        maker::PREFIX.to_owned(),
        short,
        format!("{}{}", maker::PREFIX, "~~~~"),
        format!("{}{}", maker::PREFIX, "-"),
        name(b"cut")[..60].to_owned(),
        "in clear".to_owned(),
    ];
    // The packet's length, and its first byte.
    for (tag, len) in [(0x46, 0), (0x46, 255), (0x46, 200), (0x47, 41), (0, 0)] {
        let body = [&signature[..], &[7], &[3; 32]].concat();
        hostile.push(maker::encoded(&[&[tag, len], &body[..]].concat()));
    }
    for name in &hostile {
        fs::write(dir.path().join(name), "").unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let tree = open_at(dir.path(), &mount(dir.path(), AES));
    let names: Vec<_> = tree.list(tree.root()).expect("listed").into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["file"]);
    let counted = |warning: &String| warning.split(' ').next()?.parse::<usize>().ok();
    let warnings = tree.warnings();
    assert_eq!(warnings.iter().filter_map(counted).sum::<usize>(), hostile.len(), "{warnings:?}");
    for name in &hostile {
        // None can be looked up.
        assert!(tree.lookup(tree.root(), OsStr::new(name)).is_err(), "{name}");
    }
}

#[test]
fn targets_that_do_not_decrypt_are_told() {
    let dir = tempfile::tempdir().expect("a folder");
    let name = |plain: &[u8]| maker::name(PASSPHRASE, AES, plain);
    fs::write(dir.path().join(name(b"file")), good().stored()).expect("there is room");
    for (link, target) in [
        ("good", name(b"../target")),
        ("in clear", "../target".to_owned()),
        ("of another", maker::name("another", AES, b"../target")),
        ("none", maker::PREFIX.to_owned()),
    ] {
        std::os::unix::fs::symlink(target, dir.path().join(name(link.as_bytes()))).expect("there is room");
    }
    let tree = open_at(dir.path(), &mount(dir.path(), AES));
    for entry in tree.list(tree.root()).expect("listed").iter().filter(|entry| entry.name != "file") {
        let node = HeldNode::take(&tree, tree.root(), entry).expect("it is there");
        tree.attributes(node.node()).expect("it can be seen");
        match tree.link_target(node.node()) {
            Ok(target) => assert!(entry.name == "good" && target == "../target", "{entry:?}: {target:?}"),
            Err(error) => assert!(entry.name != "good" && error.kind() == io::ErrorKind::InvalidData, "{error}"),
        }
    }
}

#[test]
fn wrapped_passphrases_are_those_of_ecryptfs_utils() {
    use claviger_testkit::ecryptfs::utils;
    let secret = |text: &str| Secret::copy_from(text.as_bytes());
    for passphrase in ["x", "fifteen letters", "sixteen letters!", &"y".repeat(64)] {
        for wrapping in ["login", "a login of \u{e4} and more", &"w".repeat(64)] {
            let Some(theirs) = utils::wrap(passphrase, wrapping) else { return };
            let unwrapped = ecryptfs::unwrap_passphrase(&theirs, &secret(wrapping)).expect("it unwraps");
            assert_eq!(&*unwrapped, passphrase.as_bytes());
            let ours = ecryptfs::wrap_passphrase(&secret(passphrase), &secret(wrapping)).expect("it wraps");
            let Some(unwrapped) = utils::unwrap(&ours, wrapping) else { return };
            assert_eq!(unwrapped.as_deref(), Ok(passphrase));
        }
    }
    let Some(theirs) = utils::wrap("mount", "old") else { return };
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), &theirs).expect("there is room");
    ecryptfs::rewrap_passphrase(file.path(), &secret("old"), &secret("new")).expect("it is wrapped anew");
    let ours = fs::read(file.path()).expect("read");
    assert_eq!(utils::unwrap(&ours, "new"), Some(Ok("mount".to_owned())));
    assert!(matches!(utils::unwrap(&ours, "old"), Some(Err(_))));
    let Some(again) = utils::rewrap(&ours, "new", "newer") else { return };
    assert_eq!(&*ecryptfs::unwrap_passphrase(&again, &secret("newer")).expect("it unwraps"), b"mount");
    // Version 1, which nobody writes any more.
    let first = maker::wrapped("mount", "login", None);
    assert_eq!(&*ecryptfs::unwrap_passphrase(&first, &secret("login")).expect("it unwraps"), b"mount");
}

#[test]
fn wrapped_passphrases_that_are_none_are_told() {
    let unwrap =
        |bytes: &[u8], wrapping: &str| ecryptfs::unwrap_passphrase(bytes, &Secret::copy_from(wrapping.as_bytes()));
    let good = maker::wrapped("mount", "login", Some([1; 8]));
    assert!(unwrap(&good, "login").is_ok());
    let wrong = unwrap(&good, "wrong").expect_err("it is refused");
    assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
    for len in 0..good.len() {
        let error = unwrap(&good[..len], "login").expect_err("it is refused");
        assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{len}: {error}");
    }
    for at in 0..26 {
        let mut bytes = good.clone();
        bytes[at] ^= 0xff;
        unwrap(&bytes, "login").expect_err("it is refused");
    }
    let error = unwrap(&[&good[..], &[0; 64]].concat(), "login").expect_err("it is refused");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), &good).expect("there is room");
    let secret = |text: &str| Secret::copy_from(text.as_bytes());
    ecryptfs::rewrap_passphrase(file.path(), &secret("wrong"), &secret("new")).expect_err("it is refused");
    ecryptfs::rewrap_passphrase(file.path(), &secret("login"), &secret("")).expect_err("it is refused");
    assert!(fs::read(file.path()).expect("read") == good);
}
