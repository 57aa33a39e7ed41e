//! Every published vector holds for every kernel that this processor can run, alone and in the midst of a longer run.

use std::time::Duration;

use crate::common::{ciphers_of_16, ecb, rust_crypto, usable};
use claviger_crypto::argon2::{self, Variant};
use claviger_crypto::ciphers::{aes, legacy, national, serpent, twofish};
use claviger_crypto::hash::HASHES;
use claviger_crypto::modes::xts::Layer;
use claviger_crypto::modes::{Lrw, SectorCipher, TrueCryptCbc, Xts};
use claviger_crypto::pool::Pool;
use claviger_crypto::stretch::{Task, stretch};
use claviger_crypto::{Acceleration, BlockCipher, CIPHERS, Cipher, ccm};
use claviger_testkit::reference::{self, legacy::crc32};
use claviger_testkit::vectors::{self, Vector, hex};

/// Folders of vectors for block ciphers. (There are none for Blowfish as only TrueCrypt has it.)
const BLOCK_CIPHERS: &[(&str, &Cipher)] = &[
    ("aes", &aes::AES),
    ("serpent", &serpent::SERPENT),
    ("twofish", &twofish::TWOFISH),
    ("camellia", &national::CAMELLIA),
    ("kuznyechik", &national::KUZNYECHIK),
    ("blowfish", &legacy::BLOWFISH_BE),
    ("cast5", &legacy::CAST5),
    ("cast6", &legacy::CAST6),
    ("triple-des", &legacy::TRIPLE_DES),
];

/// More blocks than any kernel takes at a time, and no multiple of what it takes.
const COPIES: usize = 67;

#[test]
fn every_kernel_of_a_block_cipher_encrypts_as_published() {
    for (folder, cipher) in BLOCK_CIPHERS {
        let vectors = vectors::load(folder);
        for kernel in usable(cipher) {
            for v in &vectors {
                let keyed = kernel.with_key(&v.bytes("key"));
                let (plain, expected) = (v.bytes("plaintext"), v.bytes("ciphertext"));
                let times = v.number_or("times", 1);
                v.finish();
                assert!(cipher.key_sizes.contains(&v.bytes("key").len()), "{v}: {} takes no such key", cipher.name);
                let copies = if times == 1 { COPIES } else { 1 };
                for copies in [1, copies] {
                    let (plain, expected) = (plain.repeat(copies), expected.repeat(copies));
                    let mut data = plain.clone();
                    (0..times).for_each(|_| ecb(&*keyed, true, &mut data));
                    assert!(data == expected, "{v}, {} × {copies}: encrypts to {}", kernel.name, hex(&data));
                    (0..times).for_each(|_| ecb(&*keyed, false, &mut data));
                    assert!(data == plain, "{v}, {} × {copies}: decrypts to {}", kernel.name, hex(&data));
                }
            }
        }
    }
}

/// So that no value rests on our own code alone: the slow references are held to the vectors beside their definition.
#[test]
fn the_other_reference_holds_too() {
    for (cipher, _) in ciphers_of_16() {
        for v in vectors::load(folder_of(cipher)) {
            let theirs = rust_crypto(cipher.name, &v.bytes("key"));
            let mut data = v.bytes("plaintext");
            (0..v.number_or("times", 1)).for_each(|_| reference::ecb_encrypt(&*theirs, &mut data));
            assert!(data == v.bytes("ciphertext"), "{v}: the RustCrypto crate encrypts to {}", hex(&data));
        }
    }
}

#[test]
fn every_key_size_has_vectors() {
    for (cipher, _) in ciphers_of_16() {
        let vectors = vectors::load(folder_of(cipher));
        for size in cipher.key_sizes {
            assert!(vectors.iter().any(|v| v.bytes("key").len() == *size), "{}: no vector for {size}", cipher.name);
        }
    }
}

fn folder_of(cipher: &Cipher) -> &'static str {
    BLOCK_CIPHERS.iter().find(|(_, c)| c.name == cipher.name).expect("each has a folder").0
}

#[test]
fn xts_encrypts_as_published() {
    for v in vectors::load("xts") {
        let names: Vec<&str> = v.text("cipher").rsplit('-').collect();
        let ciphers: Vec<&Cipher> = names.iter().map(|n| by_name(&v, n)).collect();
        let unit = v.number("unit") as usize;
        let sector = v.number("sector");
        let (key, key2) = (v.bytes("key"), v.bytes("key2"));
        let size = key.len() / ciphers.len();
        // Every kernel of every cipher has its turn; those of the others in a cascade go round.
        let kernels: Vec<Vec<_>> = ciphers.iter().map(|c| usable(c).collect()).collect();
        for turn in 0..kernels.iter().map(Vec::len).max().expect("a cipher at least") {
            let kernels = kernels.iter().map(|k| k[turn % k.len()]);
            let layers = kernels.zip(key.chunks(size)).zip(key2.chunks(size));
            let layers = layers.map(|((k, key), key2)| Layer { data: k.with_key(key), tweak: k.with_key(key2) });
            let xts = Xts::new(layers.collect(), unit);
            check(&v, |data| xts.encrypt(sector, data), |data| xts.decrypt(sector, data));
        }
    }
}

/// The ciphers of a cascade under their keys, which lie one after the other, in the order in which they encrypt.
fn cascade(v: &Vector, acceleration: Acceleration) -> Vec<Box<dyn BlockCipher>> {
    let key = v.bytes("key");
    let mut rest = &key[..];
    let ciphers = v.text("cipher").rsplit('-').map(|name| {
        let cipher = by_name(v, name);
        let (key, others) = rest.split_at(*cipher.key_sizes.last().expect("a cipher has key sizes"));
        rest = others;
        cipher.with_key(key, acceleration)
    });
    let ciphers = ciphers.collect();
    assert!(rest.is_empty(), "{v}: {} bytes of key too many", rest.len());
    ciphers
}

/// Encrypts, compares the ciphertext or its CRC, and decrypts.
fn check(v: &Vector, encrypt: impl Fn(&mut [u8]), decrypt: impl Fn(&mut [u8])) {
    let plain = v.bytes("plaintext");
    let mut data = plain.clone();
    encrypt(&mut data);
    match v.bytes_or_none("ciphertext") {
        Some(expected) => assert!(data == expected, "{v}: encrypts to {}", hex(&data)),
        None => assert_eq!(u64::from(crc32(&data)), v.number("crc32"), "{v}: CRC of the ciphertext"),
    }
    v.finish();
    decrypt(&mut data);
    assert!(data == plain, "{v}: does not decrypt to the plaintext");
}

#[test]
fn lrw_encrypts_as_published() {
    for v in vectors::load("lrw") {
        for acceleration in [Acceleration::On, Acceleration::Off] {
            let lrw = Lrw::new(cascade(&v, acceleration), &v.bytes("tweak"), v.number_or("unit", 512) as usize);
            match v.number_or("sector", u64::MAX) {
                u64::MAX => check(&v, |data| lrw.encrypt_header(data), |data| lrw.decrypt_header(data)),
                first => check(&v, |data| lrw.encrypt(first, data), |data| lrw.decrypt(first, data)),
            }
        }
    }
}

#[test]
fn truecrypt_cbc_encrypts_as_published() {
    for v in vectors::load("cbc") {
        for acceleration in [Acceleration::On, Acceleration::Off] {
            let new = match v.text("chain") {
                "inner" => TrueCryptCbc::inner,
                "outer" => TrueCryptCbc::outer,
                other => panic!("{v}: no chain is {other}"),
            };
            let area = v.bytes("area").try_into().unwrap_or_else(|_| panic!("{v}: the area has 32 bytes"));
            let cbc = new(cascade(&v, acceleration), &area, v.number_or("unit", 512) as usize);
            match v.number_or("sector", u64::MAX) {
                u64::MAX => check(&v, |data| cbc.encrypt_header(data), |data| cbc.decrypt_header(data)),
                first => check(&v, |data| cbc.encrypt(first, data), |data| cbc.decrypt(first, data)),
            }
        }
    }
}

fn by_name(v: &Vector, name: &str) -> &'static Cipher {
    CIPHERS.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{v}: no cipher {name}"))
}

/// Hashes that no installed program uses for key derivation. `derivations.rs` computes their HMAC by its definition.
const WITHOUT_PBKDF2: &[&str] = &["RIPEMD-128", "RIPEMD-256", "RIPEMD-320", "Tiger-128", "Tiger-160", "Tiger-192"];

#[test]
fn pbkdf2_derives_the_published_keys() {
    let vectors = vectors::load("pbkdf2");
    for hash in HASHES.iter().filter(|hash| !WITHOUT_PBKDF2.contains(&hash.name)) {
        assert!(vectors.iter().any(|v| v.text("hash") == hash.name), "no vector for {}", hash.name);
    }
    for v in vectors {
        let hash = HASHES.iter().find(|h| h.name == v.text("hash")).unwrap_or_else(|| panic!("{v}: no such hash"));
        let (password, salt, expected) = (v.bytes("password"), v.bytes("salt"), v.bytes("key"));
        let iterations = v.number("iterations") as u32;
        v.finish();
        let mut key = vec![0; expected.len()];
        assert!(hash.pbkdf2(&password, &salt, iterations, &mut key, &|| true));
        assert!(key == expected, "{v}: derives {}", hex(&key));
        // Block by block, the last one first, as threads might come to it.
        let mut key = vec![0; expected.len()];
        let blocks: Vec<_> = (1..).zip(key.chunks_mut(hash.size)).collect();
        for (index, block) in blocks.into_iter().rev() {
            assert!(hash.pbkdf2_blocks(&password, &salt, iterations, index, block, &|| true));
        }
        assert!(key == expected, "{v}: derives {} block by block", hex(&key));
    }
}

#[test]
fn bitlocker_stretches_to_the_published_keys() {
    for v in vectors::load("stretch") {
        let (secret, salt, expected) = (v.bytes("secret"), v.bytes("salt"), v.bytes("key"));
        v.finish();
        let task = Task { secret: &secret, salt: salt.as_slice().try_into().expect("16 bytes") };
        let key = stretch(task, &|_| true).expect("nobody stops it");
        assert!(key.same_as(&expected), "{v}: stretches to {}", hex(&key));
    }
}

#[test]
fn aes_ccm_seals_and_opens_as_published() {
    for v in vectors::load("ccm") {
        let (key, nonce, plain) = (v.bytes("key"), v.bytes("nonce"), v.bytes("plaintext"));
        let (sealed, tag) = (v.bytes("ciphertext"), v.bytes("tag"));
        v.finish();
        let nonce = nonce.as_slice().try_into().expect("12 bytes");
        let (our_tag, ours) = ccm::seal(&key, nonce, &plain);
        assert!(ours == sealed, "{v}: encrypts to {}", hex(&ours));
        assert!(our_tag[..] == tag, "{v}: the tag is {}", hex(&our_tag));
        let opened = ccm::open(&key, nonce, &our_tag, &sealed).unwrap_or_else(|| panic!("{v}: it does not open"));
        assert!(opened.same_as(&plain), "{v}: decrypts to {}", hex(&opened));
    }
}

#[test]
fn hashes_are_those_published() {
    let vectors = vectors::load("hash");
    for hash in HASHES {
        assert!(vectors.iter().any(|v| v.text("hash") == hash.name), "no vector for {}", hash.name);
    }
    for v in vectors {
        let hash = HASHES.iter().find(|h| h.name == v.text("hash")).unwrap_or_else(|| panic!("{v}: no such hash"));
        let (message, expected) = (v.bytes("message"), v.bytes("digest"));
        v.finish();
        let mut digest = vec![0; hash.size];
        let (one, other) = message.split_at(message.len() / 2);
        for parts in [&[&message[..]][..], &[one, other]] {
            hash.digest(parts, &mut digest);
            assert!(digest == expected, "{v}: digest is {}", hex(&digest));
        }
    }
}

#[test]
fn argon2_derives_the_published_keys() {
    let pool = Pool::new(2, Duration::ZERO);
    for v in vectors::load("argon2") {
        let (secret, data) =
            (v.bytes_or_none("secret").unwrap_or_default(), v.bytes_or_none("data").unwrap_or_default());
        let variant = match v.text("variant") {
            "i" => Variant::I,
            "id" => Variant::Id,
            other => panic!("{v}: no such variant: {other}"),
        };
        let params = argon2::Params {
            variant,
            memory_kib: v.number("memory") as u32,
            passes: v.number("passes") as u32,
            lanes: v.number("lanes") as u32,
            secret: &secret,
            data: &data,
        };
        let (password, salt, expected) = (v.bytes("password"), v.bytes("salt"), v.bytes("tag"));
        v.finish();
        let mut tag = vec![0; expected.len()];
        params
            .derive(&password, &salt, params.memory(), &pool, &|| true, &mut tag)
            .unwrap_or_else(|e| panic!("{v}: {e}"));
        assert!(tag == expected, "{v}: derives {}", hex(&tag));
    }
}
