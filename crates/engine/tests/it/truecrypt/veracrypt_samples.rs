//! Volumes that VeraCrypt made open here.

use std::sync::Arc;

use crate::support::*;
use claviger_engine::{ErrorKind, Unlock, Unlocked, formats};
use claviger_testkit::tools;

/// The name of a hash in an image's name, and what VeraCrypt calls it.
const HASHES: [(&str, &str); 5] = [
    ("sha512", "SHA-512"),
    ("sha256", "SHA-256"),
    ("blake2s", "BLAKE2s-256"),
    ("stribog512", "Streebog"),
    ("argon2id", "Argon2id"),
];

/// What an image's name says: hash, cipher, PIM, whether hidden.
fn named(name: &str) -> (&'static str, String, Option<u32>, bool) {
    let parts: Vec<&str> = name.split('-').collect();
    let hash = HASHES.iter().find(|(short, _)| *short == parts[1]).expect("a known hash").1;
    let hidden = name.ends_with("-hidden");
    let cipher = parts[3..parts.len() - usize::from(hidden)].join("-");
    let pim = name.strip_prefix("vcpim_1_").map(|_| parts[0].rsplit('_').next().expect("a PIM"));
    (hash, cipher, pim.map(|pim| pim.parse().expect("a number")), hidden)
}

fn check(name: &str, unlocked: &Unlocked) {
    let (hash, cipher, pim, hidden) = named(name);
    let facts = &unlocked.facts;
    println!("{name}: {facts:?}, {} trials, {:?}", unlocked.trials, unlocked.took);
    assert_eq!((facts.format, &*facts.hash_name(), &*facts.mode, facts.pim), ("VeraCrypt", hash, "XTS", pim), "{name}");
    assert!(facts.cipher.eq_ignore_ascii_case(&cipher), "{name}: {}", facts.cipher);
    assert_eq!((facts.hidden, facts.header.name()), (hidden, if hidden { "hidden" } else { "primary" }), "{name}");
    assert_eq!((facts.header_version, facts.sector_size, facts.created), (5, 512, None), "{name}");
    let (iterations, memory) = match (hash, pim) {
        ("Argon2id", None) => (6, Some(416 << 20)),
        (_, None) => (500_000, None),
        (_, Some(pim)) => (15_000 + pim * 1000, None),
    };
    assert_eq!((facts.iterations, facts.memory), (iterations, memory), "{name}");
    assert!(unlocked.warnings.is_empty(), "{name}: {:?}", unlocked.warnings);
}

#[test]
fn veracrypt_images_of_cryptsetup_open_with_one_derivation_each_where_hints_are_given() {
    let (Some(images), Some(blkid)) = (Images::unpacked(), tools::program("blkid")) else { return };
    let mut opened = 0;
    for name in images.list("tcrypt").iter().filter(|n| n.starts_with("vc")) {
        let path = images.path("tcrypt").join(name);
        let before = digest(&path);
        let store = read_only(&path);
        let credentials = credentials_of(&images, name);
        let (hash, cipher, pim, hidden) = named(name);
        let hints = Unlock { hash: Some(hash), cipher: Some(&cipher), pim, ..Unlock::with(&credentials) };
        let unlocked = unlock_veracrypt(Arc::clone(&store), &hints).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(name, &unlocked);
        let expected = if hidden { "CAFE-BABE" } else { "DEAD-BABE" };
        assert_eq!(uuid(&blkid, &plaintext(store, unlocked)), expected, "{name}");
        assert_eq!(digest(&path), before, "{name} was changed");
        opened += 1;
    }
    assert_eq!(opened, 10, "all images were looked at");
}

#[test]
fn a_volume_of_which_nothing_is_known_opens() {
    let Some(images) = Images::unpacked() else { return };
    let name = "vc_1-sha512-xts-aes";
    let store = read_only(&images.path("tcrypt").join(name));
    let credentials = credentials_of(&images, name);
    let (_, header) = formats::open(&store, None).expect("it looks like a volume");
    let unlocked = header.unlock(&Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{name}: {e}"));
    check(name, &unlocked);
    assert!(unlocked.derivations < 7, "{} derivations: the likeliest come first", unlocked.derivations);
}

#[test]
fn the_outer_volume_opens_with_its_own_passphrase() {
    let (Some(images), Some(blkid)) = (Images::unpacked(), tools::program("blkid")) else { return };
    let name = "vc_1-sha512-xts-aes-hidden";
    let store = read_only(&images.path("tcrypt").join(name));
    let outer = [passphrase(&"a".repeat(12))];
    let hints = Unlock { hash: Some("SHA-512"), cipher: Some("AES"), ..Unlock::with(&outer) };
    let unlocked = unlock_veracrypt(Arc::clone(&store), &hints).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!((unlocked.facts.header.name(), unlocked.facts.hidden), ("primary", false));
    assert_eq!(uuid(&blkid, &plaintext(store, unlocked)), "DEAD-BABE");
}

#[test]
fn without_its_pim_a_volume_does_not_open() {
    let Some(images) = Images::unpacked() else { return };
    let name = "vcpim_1_1234-sha256-xts-aes";
    let store = read_only(&images.path("tcrypt").join(name));
    let credentials = credentials_of(&images, name);
    for (pim, advice) in [(None, "give the PIM"), (Some(1), "omit the PIM")] {
        let hints = Unlock { hash: Some("SHA-256"), cipher: Some("AES"), pim, ..Unlock::with(&credentials) };
        let error = unlock_veracrypt(Arc::clone(&store), &hints).err().expect("the PIM is wrong");
        assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    }
}
