//! How VeraCrypt volumes are created.

use crate::support::*;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Error, ErrorKind, FORMATS, Spec, Unlock, formats};

const MIN: usize = 299_008;
const GROUP: usize = 131_072;

/// Long enough for any PIM.
const LONG: &str = "twenty characters and more";

/// A PIM that makes derivations cheap.
const CHEAP: Option<u32> = Some(1);

fn created(spec: &Spec<'_>, text: &str) -> Result<Vec<u8>, Error> {
    let store = MemoryStore::new(vec![0; MIN]);
    create_veracrypt(&store, spec, &[passphrase(text)]).map(|()| store.to_vec())
}

fn misuse(spec: &Spec<'_>, text: &str) -> String {
    match created(spec, text).expect_err("refused").kind {
        ErrorKind::Misuse(what) => what,
        other => panic!("{other}"),
    }
}

#[test]
fn the_lists_are_those_of_veracrypt() {
    let choices = formats::by_name("veracrypt").and_then(formats::creator_of).expect("it can be created").choices();
    let ciphers = [
        "AES",
        "Serpent",
        "Twofish",
        "Camellia",
        "Kuznyechik",
        "AES-Twofish",
        "AES-Twofish-Serpent",
        "Serpent-AES",
        "Serpent-Twofish-AES",
        "Twofish-Serpent",
        "Camellia-Kuznyechik",
        "Kuznyechik-Twofish",
        "Camellia-Serpent",
        "Kuznyechik-AES",
        "Kuznyechik-Serpent-Camellia",
    ];
    assert_eq!(choices.ciphers, ciphers);
    assert_eq!(choices.hashes, ["SHA-512", "SHA-256", "BLAKE2s-256", "Whirlpool", "Streebog", "Argon2id"]);
    assert_eq!(choices.min_len, MIN as u64);
    // Formats without a header come last, and so do those with a mark: neither is ever guessed before these.
    assert_eq!(FORMATS.iter().map(|f| f.name()).take(2).collect::<Vec<_>>(), ["TrueCrypt", "VeraCrypt"]);
}

#[test]
fn every_cipher_and_every_hash_is_read_back() {
    let choices = formats::by_name("VeraCrypt").and_then(formats::creator_of).expect("it can be created").choices();
    for (i, cipher) in choices.ciphers.iter().enumerate() {
        let hash = choices.hashes[i % choices.hashes.len()];
        let spec = Spec { cipher: Some(cipher), hash: Some(hash), pim: CHEAP, quick: true, ..Spec::default() };
        let store = MemoryStore::new(created(&spec, LONG).expect("a new volume"));
        let credentials = [passphrase(LONG)];
        let hints = Unlock { cipher: Some(cipher), hash: Some(hash), pim: CHEAP, ..Unlock::with(&credentials) };
        let unlocked = unlock_veracrypt(store, &hints).unwrap_or_else(|e| panic!("{cipher}, {hash}: {e}"));
        let facts = unlocked.facts;
        assert_eq!((facts.format, &*facts.cipher, &*facts.hash_name(), facts.pim), ("VeraCrypt", *cipher, hash, CHEAP));
        let (iterations, memory) = if hash == "Argon2id" { (3, Some(64 << 20)) } else { (16_000, None) };
        assert_eq!((facts.iterations, facts.memory), (iterations, memory), "{hash}");
        assert_eq!((facts.header_version, facts.header.name(), facts.sector_size), (5, "primary", 512));
        assert_eq!((facts.size, facts.data_offset), ((MIN - 2 * GROUP) as u64, GROUP as u64));
        assert!(unlocked.warnings.is_empty(), "{:?}", unlocked.warnings);
    }
}

#[test]
fn the_default_is_aes_with_sha_512_and_nothing_stays_what_it_was() {
    let one = created(&Spec::default(), "pw").expect("a new volume");
    let credentials = [passphrase("pw")];
    let hints = Unlock { hash: Some("SHA-512"), cipher: Some("AES"), ..Unlock::with(&credentials) };
    let facts = unlock_veracrypt(MemoryStore::new(one.clone()), &hints).expect("it opens").facts;
    assert_eq!((&*facts.cipher, &*facts.hash_name(), facts.iterations, facts.pim), ("AES", "SHA-512", 500_000, None));
    assert_ne!(one[..64], one[MIN - GROUP..][..64], "the backup has a salt of its own");
    assert!(one.chunks(16).all(|b| b != [0; 16]));
}

#[test]
fn a_short_passphrase_demands_a_large_pim() {
    let with = |hash, pim| Spec { hash: Some(hash), pim: Some(pim), quick: true, ..Spec::default() };
    for (hash, pim) in [("SHA-512", 484), ("Streebog", 1), ("Argon2id", 11)] {
        let what = misuse(&with(hash, pim), "nineteen characters");
        assert!(what.contains("is too low for") && what.contains("19-byte"), "{what}");
    }
    assert!(created(&with("SHA-256", 485), "pw").is_ok());
    assert!(created(&with("SHA-256", 1), "exactly twenty bytes").is_ok());
    // 0 is the same as none.
    assert!(created(&with("SHA-256", 0), "pw").is_ok());
}

#[test]
fn what_veracrypt_does_not_have_is_refused() {
    let with = |hash| Spec { hash: Some(hash), ..Spec::default() };
    assert!(misuse(&with("RIPEMD-160"), "pw").contains("new volumes cannot use RIPEMD-160"));
    assert!(misuse(&with("SHA-1"), "pw").contains("known: SHA-512"));
    assert!(misuse(&Spec { pim: Some(2_147_469), ..Spec::default() }, LONG).contains("at most 2147468"));
    assert!(misuse(&Spec::default(), &"x".repeat(129)).contains("at most 128"));
    let store = MemoryStore::new(vec![0; MIN]);
    let error = create(&store, &Spec { pim: Some(485), ..Spec::default() }, &[passphrase(LONG)]).expect_err("refused");
    assert!(error.to_string().contains("TrueCrypt takes no PIM"), "{error}");
    assert!(store.to_vec().iter().all(|b| *b == 0), "nothing was written");
}
