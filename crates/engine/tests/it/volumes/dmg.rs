//! Encrypted disk images of macOS: two that macOS made, and those of the testkit's maker.

use std::path::PathBuf;
use std::sync::Arc;

use claviger_engine::formats::dmg::DMG;
use claviger_engine::store::MemoryStore;
use claviger_engine::{
    Credential, Error, ErrorKind, Format, Result, Secret, Store, Unlock, Unlocked, Verdict, Volume, formats,
};
use claviger_testkit::dmg::{DATA, Image, Recipe, WRAPPED};
use claviger_testkit::tools;

use crate::support::{all_of, noise, passphrase, shared};

const PASSPHRASES: &[(&str, u32)] = &[("a passphrase", 1001), ("p\u{e4}ssword", 77)];

/// What looks like a boot sector, and noise.
fn plaintext(len: usize) -> Vec<u8> {
    let mut bytes = noise(len, 9);
    bytes[..512].fill(0);
    bytes[510..512].copy_from_slice(b"\x55\xaa");
    bytes
}

fn in_memory(bytes: &[u8]) -> Arc<dyn Store> {
    shared(MemoryStore::new(bytes.to_vec()))
}

fn unlock(bytes: &[u8], credential: Credential) -> Result<Unlocked> {
    DMG.open(&in_memory(bytes))?.unlock(&Unlock::with(&[credential]))
}

fn opened(bytes: &[u8], credential: Credential) -> Result<Vec<u8>> {
    Ok(all_of(&Volume::new(in_memory(bytes), unlock(bytes, credential)?.layout)))
}

fn refused(bytes: &[u8], credential: Credential) -> Error {
    opened(bytes, credential).map(drop).expect_err("it does not open")
}

/// Every key size, size of chunks and wrapping cipher, with lengths that are not whole chunks.
#[test]
fn each_passphrase_and_key_opens_each_kind() {
    let plaintext = plaintext(70_000);
    for (key, chunk, wrapping, marked, len) in [
        (16, 512, 24, true, 64 << 10),
        (32, 512, 24, true, 70_000),
        (16, 4096, 0, true, 64 << 10),
        (32, 4096, 0, true, 5),
        (32, 1024, 32, false, 65_535),
        (16, 512, 16, false, 700),
    ] {
        let recipe = Recipe { key, chunk, wrapping, marked, ..Recipe::new(PASSPHRASES, &plaintext[..len]) };
        let Image { bytes, volume_key } = recipe.make();
        let phrases = PASSPHRASES.iter().map(|(text, _)| passphrase(text));
        for credential in phrases.chain([Credential::VolumeKey(Secret::copy_from(&volume_key))]) {
            let kind = credential.kind();
            let plain = opened(&bytes, credential).unwrap_or_else(|e| panic!("{key} {chunk} {wrapping} {kind}: {e}"));
            assert!(plain == plaintext[..len], "{key} {chunk} {wrapping} {kind}");
        }
        let by_key = unlock(&bytes, Credential::VolumeKey(Secret::copy_from(&volume_key))).expect("it opens");
        assert_eq!(by_key.recognised, len >= 512, "{key} {chunk} {wrapping}");
        let mut other = volume_key.clone();
        other[3] ^= 1;
        let by_key = unlock(&bytes, Credential::VolumeKey(Secret::copy_from(&other))).expect("nothing checks a key");
        assert!(!by_key.recognised);
        let wrong = refused(&bytes, passphrase("another"));
        assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
    }
}

/// Where `make test` puts them: tools/install-deps.sh.
fn sample(name: &str) -> Option<Vec<u8>> {
    let folder = PathBuf::from(std::env::var_os("HOME")?).join(".cache/claviger-test-images");
    std::fs::read(folder.join(name))
        .ok()
        .or_else(|| tools::skip(&format!("{name} is missing: tools/install-deps.sh test")))
}

/// A FAT under a key that AES wraps, and a compressed image under one that triple DES wraps.
#[test]
fn what_macos_made_opens() {
    if let Some(bytes) = sample("encrcdsa_aes128_fat12_hunter2.dmg") {
        let plain = opened(&bytes, passphrase("hunter2")).expect("it opens");
        assert_eq!((plain.len(), &plain[54..62], &plain[510..512]), (64 << 10, &b"FAT12   "[..], &b"\x55\xaa"[..]));
        assert!(matches!(refused(&bytes, passphrase("hunter3")).kind, ErrorKind::WrongCredential(_)));
    }
    if let Some(bytes) = sample("input_aes256.dmg") {
        let plain = opened(&bytes, passphrase("test123")).expect("it opens");
        assert_eq!((plain.len(), &plain[plain.len() - 512..][..8]), (13_654, &b"koly\0\0\0\x04"[..]));
    }
}

/// Damage, and what this program does not know, are said before a derivation, and a wrong password afterwards.
#[test]
fn damage_and_unknown_values_are_told_apart() {
    let made = Recipe::new(&PASSPHRASES[..1], &plaintext(8192)).make().bytes;
    let changed = |at: usize, value: u32| {
        let mut bytes = made.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        bytes
    };
    for (at, value, unsupported, words) in [
        (8, 3, true, "version 3"),
        (16, 6, true, "mode is 6"),
        (20, 17, true, "cipher is 17"),
        (24, 129, false, "129 bits"),
        (28, 90, true, "IV algorithm is 90"),
        (52, 8192, true, "chunks of 8192 bytes"),
        (52, 500, true, "chunks of 500 bytes"),
        (56, 1, false, "cut short"),
        (56, 0x8000_0000, true, "more than 2^32 chunks"),
        (60, 0, false, "0 bytes"),
        (64, u32::MAX, false, "data size"),
        (72, 65, false, "65"),
        (72, 0, true, "no passphrase opens"),
        (76, 2, true, "only with a certificate"),
        (84, 0x7fff_0000, false, "past the end"),
        (92, 100, false, "48 bytes in a record of 100"),
        (WRAPPED, 104, true, "key derivation is 104"),
        (WRAPPED + 8, 0, false, "0 iterations"),
        (WRAPPED + 12, 33, false, "a salt of 33"),
        (WRAPPED + 48, 17, false, "an IV of 17"),
        (WRAPPED + 88, 2, true, "cipher 2"),
        (WRAPPED + 100, 50, false, "50 bytes"),
    ] {
        let error = refused(&changed(at, value), passphrase(PASSPHRASES[0].0));
        let is = matches!(error.kind, ErrorKind::Unsupported { .. });
        assert!(is == unsupported && (is || matches!(error.kind, ErrorKind::Malformed { .. })), "{at}: {error}");
        assert!(error.to_string().contains(words), "{at}: {error}");
    }
    // In its last block, where the mark is.
    let mut damaged = made.clone();
    damaged[WRAPPED + 104 + 40] ^= 1;
    assert!(matches!(refused(&damaged, passphrase(PASSPHRASES[0].0)).kind, ErrorKind::WrongCredential(_)));
    for len in [0, 7, 8, 40, 76, WRAPPED + 20] {
        assert!(opened(&made[..len], passphrase(PASSPHRASES[0].0)).is_err(), "{len}");
    }
}

/// The first chunks of a file that was cut short are there if the caller accepts that.
#[test]
fn a_truncated_image_opens_read_only_as_far_as_it_reaches() {
    let plaintext = plaintext(8192);
    let made = Recipe::new(&PASSPHRASES[..1], &plaintext).make().bytes;
    let short = in_memory(&made[..DATA + 3000]);
    let credentials = [passphrase(PASSPHRASES[0].0)];
    let error = DMG.open(&short).expect("a header").unlock(&Unlock::with(&credentials)).err().expect("cut short");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
    let with = Unlock { truncated: true, ..Unlock::with(&credentials) };
    let unlocked = DMG.open(&short).expect("a header").unlock(&with).expect("it opens");
    assert_eq!(unlocked.warnings.len(), 1);
    assert!(all_of(&Volume::new(short, unlocked.layout)) == plaintext[..2560]);
}

#[test]
fn version_1_is_named_and_nothing_else_is_taken_for_an_image() {
    let old = [&noise(4096, 3)[..], b"cdsaencr"].concat();
    let error = DMG.open(&in_memory(&old)).err().expect("version 1");
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("hdiutil"), "{error}");
    assert!(matches!(DMG.identify(&*in_memory(&old)).expect("it is read"), Verdict::Yes(_)));
    for other in [&noise(4096, 3)[..], b"encrcds", b""] {
        assert!(matches!(DMG.identify(&*in_memory(other)).expect("it is read"), Verdict::No(_)));
    }
    let made = Recipe::new(&PASSPHRASES[..1], &plaintext(512)).make().bytes;
    assert_eq!(formats::open(&in_memory(&made), None).map(|(format, _)| format.name()).ok(), Some("DMG"));
}
