//! XTS as a sector cipher: cascades, sector numbers, and runs that the engine cuts up inside.

use claviger_crypto::ciphers::{aes, serpent, twofish};
use claviger_crypto::modes::xts::Layer;
use claviger_crypto::modes::{SectorCipher, Xts};
use claviger_crypto::{Acceleration, Cipher};
use claviger_testkit::random::Random;
use claviger_testkit::reference::{self, xts};

/// Single ciphers and TrueCrypt's five cascades, in the order in which they encrypt.
const CASCADES: &[&[&Cipher]] = &[
    &[&aes::AES],
    &[&serpent::SERPENT],
    &[&twofish::TWOFISH],
    &[&twofish::TWOFISH, &aes::AES],
    &[&serpent::SERPENT, &twofish::TWOFISH, &aes::AES],
    &[&aes::AES, &serpent::SERPENT],
    &[&aes::AES, &twofish::TWOFISH, &serpent::SERPENT],
    &[&serpent::SERPENT, &twofish::TWOFISH],
];

const KEY_SIZE: usize = 32;

/// A cascade, fast and slow, under the same keys.
struct Both {
    name: String,
    fast: Xts,
    layers: Vec<xts::Layer>,
    sector: usize,
}

impl Both {
    fn new(ciphers: &[&Cipher], acceleration: Acceleration, sector: usize) -> Self {
        let mut random = Random::new(ciphers.iter().map(|c| c.name.len() as u64).sum());
        let (mut fast, mut slow) = (Vec::new(), Vec::new());
        for cipher in ciphers {
            let (data, tweak) = (random.bytes(KEY_SIZE), random.bytes(KEY_SIZE));
            let with_key = reference::cipher(cipher.name).expect("a reference of each").with_key;
            slow.push(xts::Layer { data: with_key(&data), tweak: with_key(&tweak) });
            let (data, tweak) = (cipher.with_key(&data, acceleration), cipher.with_key(&tweak, acceleration));
            fast.push(Layer { data, tweak });
        }
        let name = ciphers.iter().rev().map(|c| c.name).collect::<Vec<_>>().join("-");
        Self { name: format!("{name}, {acceleration:?}"), fast: Xts::new(fast, sector), layers: slow, sector }
    }

    fn expected(&self, first: u64, run: &[u8]) -> Vec<u8> {
        let mut expected = run.to_vec();
        xts::cascade_encrypt(&self.layers, self.sector, first, &mut expected);
        expected
    }

    fn check(&self, first: u64, plain: &[u8], expected: &[u8]) {
        let what = || format!("{}: {} × {} from {first:#x}", self.name, plain.len() / self.sector, self.sector);
        let mut run = plain.to_vec();
        self.fast.encrypt(first, &mut run);
        assert!(run == expected, "{}", what());
        self.fast.decrypt(first, &mut run);
        assert!(run == plain, "{} back", what());
    }
}

/// Runs end before, at and after the places where pieces are cut, for tweaks and for a cascade's piece of the cache.
#[test]
fn cascades_equal_the_layers_one_after_the_other() {
    const COUNTS: [usize; 11] = [1, 2, 3, 4, 5, 15, 16, 17, 32, 33, 40];
    const MOST: usize = 40;
    const FIRST: u64 = 0x0123_4567_89ab_cdef;
    for ciphers in CASCADES {
        for sector in [16, 512, 528, 4096] {
            let plain = Random::new(1).bytes(MOST * sector);
            let expected = Both::new(ciphers, Acceleration::On, sector).expected(FIRST, &plain);
            for acceleration in [Acceleration::On, Acceleration::Off] {
                let both = Both::new(ciphers, acceleration, sector);
                assert_eq!(both.fast.sector_size(), sector);
                for count in COUNTS {
                    both.check(FIRST, &plain[..count * sector], &expected[..count * sector]);
                }
            }
        }
    }
}

/// After sector number 2^64 - 1 comes number 0, as in the reference. No volume gets there, but a run must not panic.
#[test]
fn sector_numbers_carry_and_wrap_around() {
    for ciphers in CASCADES {
        let both = Both::new(ciphers, Acceleration::On, 512);
        let plain = Random::new(2).bytes(35 * 512);
        for first in
            [0, 0xfe, 0xfff0, (1 << 32) - 3, (1 << 40) - 17, u64::MAX - 33, u64::MAX - 16, u64::MAX - 2, u64::MAX]
        {
            both.check(first, &plain, &both.expected(first, &plain));
        }
        let mut wrapped = plain.clone();
        both.fast.encrypt(u64::MAX - 2, &mut wrapped);
        let mut from_zero = plain[3 * 512..].to_vec();
        both.fast.encrypt(0, &mut from_zero);
        assert!(wrapped[3 * 512..] == from_zero, "{}: number 0 follows the greatest", both.name);
    }
}

#[test]
fn two_calls_equal_one() {
    for ciphers in CASCADES {
        for (sector, count) in [(16, 40), (512, 36), (4096, 6)] {
            let both = Both::new(ciphers, Acceleration::On, sector);
            let plain = Random::new(3).bytes(count * sector);
            let first = u64::MAX - 20;
            let mut whole = plain.clone();
            both.fast.encrypt(first, &mut whole);
            for split in 0..=count {
                let (mut encrypted, mut decrypted) = (plain.clone(), whole.clone());
                let second = first.wrapping_add(split as u64);
                let (a, b) = encrypted.split_at_mut(split * sector);
                both.fast.encrypt(first, a);
                both.fast.encrypt(second, b);
                assert!(encrypted == whole, "{}: split of {count} × {sector} at {split}", both.name);
                let (a, b) = decrypted.split_at_mut(split * sector);
                both.fast.decrypt(second, b);
                both.fast.decrypt(first, a);
                assert!(decrypted == plain, "{}: split of {count} × {sector} at {split}, back", both.name);
            }
        }
    }
}

/// A sector's bytes depend on its number and its contents, and on nothing around it.
#[test]
fn sectors_are_independent() {
    for ciphers in CASCADES {
        let both = Both::new(ciphers, Acceleration::On, 512);
        let plain = Random::new(4).bytes(512);
        let mut run = plain.repeat(20);
        both.fast.encrypt(1000, &mut run);
        for (i, sector) in (0..).zip(run.chunks_exact(512)) {
            let mut alone = plain.clone();
            both.fast.encrypt(1000 + i, &mut alone);
            assert!(alone == sector, "{}: sector {i}", both.name);
        }
        let unique: std::collections::HashSet<_> = run.chunks_exact(16).collect();
        assert_eq!(unique.len(), run.len() / 16, "{}: equal blocks encrypt differently", both.name);
    }
}

#[test]
fn what_no_format_may_ask_for_panics() {
    let layer = |cipher: &Cipher, size| Layer {
        data: cipher.with_key(&vec![1; size], Acceleration::On),
        tweak: cipher.with_key(&vec![2; size], Acceleration::On),
    };
    let panics = |layers: Vec<Layer>, sector| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Xts::new(layers, sector))).is_err()
    };
    assert!(panics(vec![], 512));
    assert!(panics(vec![layer(&aes::AES, 32)], 0));
    assert!(panics(vec![layer(&aes::AES, 32)], 520));
    assert!(panics(vec![layer(&claviger_crypto::ciphers::legacy::CAST5, 16)], 512));
}
