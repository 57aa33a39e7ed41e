//! Every kernel of every cipher against vectors, against the slow references, and against crates of another project.

use claviger_crypto::modes::xts::Layer;
use claviger_crypto::modes::{SectorCipher, Xts};
use claviger_crypto::{CIPHERS, Cipher, Kernel};
use claviger_testkit::random::Random;
use claviger_testkit::reference::{self, Block, Reference};
use claviger_testkit::vectors::{self, Record};
use twofish::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, array::sizes::U16};

/// The longest run in bytes: 257 blocks, more than any kernel takes at a time.
const LONGEST: usize = 4112;

/// What lies around a run and must stay.
const GUARD: u8 = 0xC3;

/// Every cipher of 16-byte blocks with every kernel that this processor can run.
fn each_kernel(mut check: impl FnMut(&Cipher, &Kernel)) {
    for cipher in CIPHERS.iter().filter(|c| c.block_size == 16) {
        for kernel in cipher.kernels {
            if (kernel.usable)() {
                check(cipher, kernel);
            } else {
                eprintln!("skipped: {} {} (this processor cannot run it)", cipher.name, kernel.name);
            }
        }
    }
}

#[test]
fn block_vectors() {
    for (name, folder) in [("AES", "aes"), ("Serpent", "serpent"), ("Twofish", "twofish")] {
        for record in vectors::folder(folder).iter().flat_map(|file| &file.records) {
            let (key, plain, expected) = (record.bytes("key"), record.bytes("plain"), record.bytes("cipher"));
            let slow = follow(record, key.clone(), plain.clone(), |key, block| {
                let slow = reference::by_name(name, key).expect("a reference of each cipher that has vectors");
                block.copy_from_slice(&slow.encrypt((&*block).try_into().expect("a block")));
            });
            assert_eq!(slow, expected, "{}: the reference", record.place);
            each_kernel(|cipher, kernel| {
                if cipher.name != name || !cipher.key_sizes.contains(&key.len()) {
                    return;
                }
                let context = format!("{}: {} {}", record.place, cipher.name, kernel.name);
                let got = follow(record, key.clone(), plain.clone(), |key, block| {
                    (kernel.with_key)(key).encrypt_blocks(block);
                });
                assert_eq!(got, expected, "{context}");
            });
            // The plaintext back, where one key made the ciphertext.
            if record.get("iterated").is_none() {
                each_kernel(|cipher, kernel| {
                    if cipher.name == name && cipher.key_sizes.contains(&key.len()) {
                        let keyed = (kernel.with_key)(&key);
                        let mut back = expected.clone();
                        (0..record.number("times", 1)).for_each(|_| keyed.decrypt_blocks(&mut back));
                        assert_eq!(back, plain, "{}: {} {}", record.place, cipher.name, kernel.name);
                    }
                });
            }
        }
    }
}

/// Encrypts as often and with such keys as the record says.
fn follow(record: &Record, mut key: Vec<u8>, mut block: Vec<u8>, encrypt: impl Fn(&[u8], &mut [u8])) -> Vec<u8> {
    for _ in 0..record.number("times", 1) {
        for _ in 0..record.number("iterated", 1) {
            let plain = block.clone();
            encrypt(&key, &mut block);
            if record.get("iterated").is_some() {
                key = [&plain[..], &key].concat()[..key.len()].to_vec();
            }
        }
    }
    block
}

#[test]
fn xts_vectors() {
    for record in vectors::folder("xts").iter().flat_map(|file| &file.records) {
        let (key, plain, expected) = (record.bytes("key"), record.bytes("plain"), record.bytes("cipher"));
        let sector = record.number("sector", 0);
        let (key1, key2) = key.split_at(key.len() / 2);
        let (data, tweak) = (reference::aes::Aes::new(key1), reference::aes::Aes::new(key2));
        let mut unit = plain.clone();
        reference::xts::data_unit(reference::xts::tweak(&tweak, sector), &mut unit, |b| data.encrypt(b));
        assert_eq!(unit, expected, "{}: the reference", record.place);
        each_kernel(|cipher, kernel| {
            if cipher.name == "AES" && cipher.key_sizes.contains(&key1.len()) {
                let layer = Layer { data: (kernel.with_key)(key1), tweak: (kernel.with_key)(key2) };
                let xts = Xts::new(vec![layer], plain.len());
                let mut unit = plain.clone();
                xts.encrypt(sector, &mut unit);
                assert_eq!(unit, expected, "{}: {}", record.place, kernel.name);
                xts.decrypt(sector, &mut unit);
                assert_eq!(unit, plain, "{}: {}", record.place, kernel.name);
            }
        });
    }
}

/// The references and the other project's crates are independent of each other, and of our kernels.
#[test]
fn references_equal_the_crates() {
    let mut random = Random::new(1);
    for cipher in CIPHERS.iter().filter(|c| c.block_size == 16) {
        for key_size in [16, 24, 32] {
            for _ in 0..20 {
                let (key, block) = (random.bytes(key_size), random.bytes(16).try_into().expect("a block"));
                let slow = reference::by_name(cipher.name, &key).expect("a reference of each cipher");
                let other = oracle(cipher.name, &key);
                let encrypted = slow.encrypt(block);
                assert_eq!(encrypted, other.encrypt(block), "{}", cipher.name);
                assert_eq!(slow.decrypt(encrypted), block, "{}", cipher.name);
                assert_eq!(other.decrypt(encrypted), block, "{}", cipher.name);
            }
        }
    }
}

#[test]
fn kernels_at_every_length() {
    each_kernel(|cipher, kernel| {
        for &key_size in cipher.key_sizes {
            let mut random = Random::new(key_size as u64);
            let key = random.bytes(key_size);
            let (keyed, oracle) = ((kernel.with_key)(&key), oracle(cipher.name, &key));
            for blocks in 1..=LONGEST / 16 {
                let plain = random.bytes(16 * blocks);
                let expected: Vec<u8> = plain.chunks(16).flat_map(|b| oracle.encrypt(block(b))).collect();
                // Three alignments for each length, so that each alignment comes with many lengths.
                for alignment in [0, (blocks * 7) % 64, random.below(64)] {
                    let context = format!("{} {}, {blocks} blocks at +{alignment}", cipher.name, kernel.name);
                    compare(&plain, &expected, alignment, &context, &|run| keyed.encrypt_blocks(run));
                    compare(&expected, &plain, alignment, &context, &|run| keyed.decrypt_blocks(run));
                }
            }
        }
    });
}

#[test]
fn xts_at_every_length() {
    each_kernel(|cipher, kernel| {
        for &key_size in cipher.key_sizes {
            let mut random = Random::new(100 + key_size as u64);
            let key = random.bytes(key_size);
            let (keyed, oracle) = ((kernel.with_key)(&key), oracle(cipher.name, &key));
            let check = |random: &mut Random, sectors: usize, sector: usize, alignment: usize| {
                let plain = random.bytes(sectors * sector);
                let tweaks: Vec<Block> = (0..sectors).map(|_| block(&random.bytes(16))).collect();
                let mut expected = plain.clone();
                for (unit, tweak) in expected.chunks_mut(sector).zip(&tweaks) {
                    reference::xts::data_unit(*tweak, unit, |b| oracle.encrypt(b));
                }
                let context = format!("{} {}, {sectors} x {sector} at +{alignment}", cipher.name, kernel.name);
                compare(&plain, &expected, alignment, &context, &|run| keyed.xts_encrypt(&tweaks, sector, run));
                compare(&expected, &plain, alignment, &context, &|run| keyed.xts_decrypt(&tweaks, sector, run));
            };
            // One sector of every length; and as many sectors of many lengths as the longest run holds.
            for blocks in 1..=LONGEST / 16 {
                let alignment = random.below(64);
                check(&mut random, 1, 16 * blocks, alignment);
            }
            for sector in [16, 32, 48, 112, 256, 496, 512, 528, 1024, 2048] {
                for sectors in [2, 3, 5, 8, 16, 17].into_iter().filter(|n| n * sector <= 2 * LONGEST) {
                    for alignment in [0, 16, random.below(64)] {
                        check(&mut random, sectors, sector, alignment);
                    }
                }
            }
            check(&mut random, 16, 4096, 0);
        }
    });
}

/// Every alignment, at lengths around the widths of the kernels, against the slow references.
#[test]
fn kernels_at_every_alignment() {
    each_kernel(|cipher, kernel| {
        let mut random = Random::new(7);
        let key = random.bytes(*cipher.key_sizes.last().expect("a key size"));
        let keyed = (kernel.with_key)(&key);
        let slow = reference::by_name(cipher.name, &key).expect("a reference of each cipher");
        let plain = random.bytes(16 * 66);
        let expected: Vec<u8> = plain.chunks(16).flat_map(|b| slow.encrypt(block(b))).collect();
        for alignment in 0..64 {
            for len in [1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66].map(|blocks| 16 * blocks) {
                let context = format!("{} {}, {len} bytes at +{alignment}", cipher.name, kernel.name);
                let (plain, expected) = (&plain[..len], &expected[..len]);
                compare(plain, expected, alignment, &context, &|run| keyed.encrypt_blocks(run));
                compare(expected, plain, alignment, &context, &|run| keyed.decrypt_blocks(run));
            }
        }
    });
}

/// Runs `work` on `from` at `alignment` bytes past a boundary of 64, with guards on both sides.
fn compare(from: &[u8], expected: &[u8], alignment: usize, context: &str, work: &dyn Fn(&mut [u8])) {
    let mut room = vec![GUARD; from.len() + 256];
    let start = room.as_ptr().align_offset(64) + 64 + alignment;
    room[start..start + from.len()].copy_from_slice(from);
    work(&mut room[start..start + from.len()]);
    let (before, rest) = room.split_at(start);
    let (run, after) = rest.split_at(from.len());
    assert!(run == expected, "{context}: wrong bytes");
    assert!(before.iter().chain(after).all(|&b| b == GUARD), "{context}: bytes beyond the run were written");
}

fn block(bytes: &[u8]) -> Block {
    bytes.try_into().expect("a block")
}

/// The cipher as the RustCrypto project has it.
fn oracle(cipher: &str, key: &[u8]) -> Box<dyn Reference> {
    fn keyed<C>(key: &[u8]) -> Box<dyn Reference>
    where
        C: KeyInit + BlockCipherEncrypt<BlockSize = U16> + BlockCipherDecrypt + 'static,
    {
        Box::new(Oracle(C::new_from_slice(key).expect("a key size of the cipher")))
    }
    match (cipher, key.len()) {
        ("AES", 16) => keyed::<aes::Aes128>(key),
        ("AES", 24) => keyed::<aes::Aes192>(key),
        ("AES", 32) => keyed::<aes::Aes256>(key),
        ("Serpent", _) => keyed::<serpent::Serpent>(key),
        ("Twofish", _) => keyed::<twofish::Twofish>(key),
        _ => panic!("no oracle for {cipher}"),
    }
}

struct Oracle<C>(C);

impl<C: BlockCipherEncrypt<BlockSize = U16> + BlockCipherDecrypt> Reference for Oracle<C> {
    fn encrypt(&self, block: Block) -> Block {
        let mut block = Array(block);
        self.0.encrypt_block(&mut block);
        block.0
    }

    fn decrypt(&self, block: Block) -> Block {
        let mut block = Array(block);
        self.0.decrypt_block(&mut block);
        block.0
    }
}
