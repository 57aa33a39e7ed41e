//! LRW and CBC equal the slow scalar reference at every number of sectors and every place that the fast code cuts at.

use claviger_crypto::ciphers::{aes, legacy, serpent, twofish};
use claviger_crypto::modes::{IvMode, Lrw, TrueCryptCbc, cbc};
use claviger_crypto::{Acceleration, BlockCipher, Cipher, SectorCipher};
use claviger_testkit::reference::legacy as reference;

type Ciphers = &'static [&'static Cipher];
type Step<'a> = Box<dyn Fn(&mut [u8]) + 'a>;

/// Ciphers in the order in which they encrypt, as TrueCrypt combined them: LRW and outer CBC …
const UNIFORM: &[Ciphers] = &[
    &[&aes::AES],
    &[&serpent::SERPENT],
    &[&twofish::TWOFISH],
    &[&twofish::TWOFISH, &aes::AES],
    &[&serpent::SERPENT, &twofish::TWOFISH, &aes::AES],
    &[&aes::AES, &serpent::SERPENT],
    &[&legacy::BLOWFISH],
    &[&legacy::CAST5],
    &[&legacy::TRIPLE_DES],
];
/// … and inner CBC.
const MIXED: &[Ciphers] =
    &[&[&legacy::BLOWFISH, &aes::AES], &[&serpent::SERPENT, &legacy::BLOWFISH, &aes::AES], &[&aes::AES]];

/// Numbers of sectors around every size that the fast code batches by, and all the small ones, the largest last.
fn counts(sector: usize) -> impl Iterator<Item = usize> {
    (1..=40).chain(if sector == 512 { [63, 64, 65, 97].as_slice() } else { &[] }.iter().copied())
}

/// A fast mode agrees with the slow one on runs of every length from the sectors in `FIRSTS` that are `which`'s turn.
fn compare(fast: &dyn SectorCipher, which: usize, slow: impl Fn(u64, &mut [u8]), what: &str) {
    let sector = fast.sector_size();
    for first in FIRSTS.iter().copied().skip(which % 3).step_by(3) {
        let plain = bytes(counts(sector).last().expect("there are counts") * sector, which as u8);
        let mut expected = plain.clone();
        // Sectors do not depend on each other: shorter runs are the start of the longest.
        slow(first, &mut expected);
        for count in counts(sector) {
            let mut run = plain[..count * sector].to_vec();
            fast.encrypt(first, &mut run);
            assert!(run == expected[..run.len()], "{count} × {sector} from {first} with {what}");
            fast.decrypt(first, &mut run);
            assert!(run == plain[..run.len()], "{count} × {sector} from {first} back with {what}");
        }
    }
}

/// First sectors: small, one whose block indexes carry far, one past 32 bits, one at which the number wraps.
const FIRSTS: &[u64] = &[0, 1, 7, (1 << 27) - 3, 0xffff_fffe, 0x1234_5678_9abc_def0, u64::MAX - 5];

#[test]
fn lrw_equals_the_reference() {
    for (c, ciphers) in UNIFORM.iter().enumerate() {
        for sector in [512, 4096] {
            let lrw = Lrw::new(keyed(ciphers), &bytes(16, 99), sector);
            let blocks = (sector / ciphers[0].block_size) as u64;
            let slow = |first: u64, run: &mut [u8]| {
                slow_lrw(ciphers, first.wrapping_mul(blocks).wrapping_add(1).into(), run);
            };
            compare(&lrw, c, slow, &name(ciphers));
        }
        let mut header = bytes(448, 3);
        let mut expected = header.clone();
        let lrw = Lrw::new(keyed(ciphers), &bytes(16, 99), 512);
        lrw.encrypt_header(&mut header);
        slow_lrw(ciphers, 1, &mut expected);
        assert!(header == expected, "header with {}", name(ciphers));
        lrw.decrypt_header(&mut header);
        assert!(header == bytes(448, 3), "header back with {}", name(ciphers));
    }
}

/// Kernels of AES add the masks by themselves.
#[test]
fn lrw_equals_the_reference_with_every_kernel_of_aes() {
    for (which, kernel) in crate::common::usable(&aes::AES).enumerate() {
        for sector in [528, 4096] {
            let lrw = Lrw::new(vec![kernel.with_key(&bytes(32, 10))], &bytes(16, 99), sector);
            let slow = |first: u64, run: &mut [u8]| {
                slow_lrw(UNIFORM[0], first.wrapping_mul(sector as u64 / 16).wrapping_add(1).into(), run);
            };
            compare(&lrw, which, slow, kernel.name);
        }
    }
}

/// An IV of its own for each sector, as dm-crypt's `plain64` makes them; the last index before the high half changes.
#[test]
fn lrw_takes_any_index_for_a_sector() {
    let lrw = Lrw::new(keyed(UNIFORM[0]), &bytes(16, 99), 512);
    // Some continue where the one before ends, also after the last index of all.
    let last = u128::MAX;
    let indexes = [7u128 << 120, 0, last - 3, (3 << 64) - 5, 1, 33, 65, last - 63, last - 31, 0, 32, 65, 96, 128];
    let ivs = indexes.map(u128::to_be_bytes);
    let plain = bytes(ivs.len() * 512, 1);
    let mut expected = plain.clone();
    for (index, sector) in indexes.into_iter().zip(expected.chunks_exact_mut(512)) {
        for (i, block) in (0..).zip(sector.chunks_exact_mut(16)) {
            slow_lrw(UNIFORM[0], index.wrapping_add(i), block);
        }
    }
    let mut run = plain.clone();
    lrw.encrypt_sectors(&ivs, &mut run);
    assert!(run == expected);
    lrw.decrypt_sectors(&ivs, &mut run);
    assert!(run == plain);
}

#[test]
fn truecrypt_cbc_equals_the_reference() {
    let outer = UNIFORM.iter().map(|c| (*c, true));
    let inner = MIXED.iter().map(|c| (*c, false));
    let area: [u8; 32] = bytes(32, 98).try_into().expect("it is 32 bytes");
    for (c, (ciphers, outer)) in outer.chain(inner).enumerate() {
        let make = if outer { TrueCryptCbc::outer } else { TrueCryptCbc::inner };
        for sector in [512, 4096] {
            let fast = make(keyed(ciphers), &area, sector);
            let slow = |first: u64, run: &mut [u8]| {
                with_groups(ciphers, outer, true, |groups| {
                    for (i, sector) in (0..).zip(run.chunks_exact_mut(sector)) {
                        reference::truecrypt_cbc_encrypt(groups, &area, first.wrapping_add(i), sector);
                    }
                });
            };
            compare(&fast, c, slow, &name(ciphers));
        }
        let fast = make(keyed(ciphers), &area, 512);
        let mut header = bytes(448, 3);
        let mut expected = header.clone();
        fast.encrypt_header(&mut header);
        with_groups(ciphers, outer, true, |g| reference::truecrypt_cbc_encrypt_header(g, &area, &mut expected));
        assert!(header == expected, "header with {}", name(ciphers));
        let mut slowly_back = header.clone();
        with_groups(ciphers, outer, false, |g| reference::truecrypt_cbc_decrypt_header(g, &area, &mut slowly_back));
        fast.decrypt_header(&mut header);
        assert!(header == bytes(448, 3) && slowly_back == header, "header back with {}", name(ciphers));
    }
}

#[test]
fn bare_cbc_equals_the_reference_at_odd_sector_sizes() {
    for ciphers in UNIFORM.iter().filter(|c| c.len() == 1) {
        let cipher = &keyed(ciphers)[0];
        let size = cipher.block_size();
        for sector in [size, 3 * size, 48, 448, 512, 528, 1024, 2048, 2064, 4096, 8192] {
            for count in [1, 2, 5, 31, 32, 33, 70] {
                let ivs: Vec<[u8; 16]> = bytes(count * 16, 5).as_chunks().0.to_vec();
                let plain = bytes(count * sector, 6);
                let mut expected = plain.clone();
                for (iv, chain) in ivs.iter().zip(expected.chunks_exact_mut(sector)) {
                    reference::cbc_encrypt((size, &|block| cipher.encrypt_blocks(block)), iv, chain);
                }
                let mut run = plain.clone();
                cbc::encrypt_sectors(&**cipher, &ivs, sector, &mut run);
                assert!(run == expected, "{count} × {sector} with {}", name(ciphers));
                cbc::decrypt_sectors(&**cipher, &ivs, sector, &mut run);
                assert!(run == plain, "{count} × {sector} back with {}", name(ciphers));
            }
        }
    }
}

/// The standard byte order keeps to the author's vector for a key of 16 bytes, and TrueCrypt's to the standard one with
/// the bytes of each word turned around.
#[test]
fn blowfish_of_truecrypt_has_its_words_turned_around() {
    let key = bytes(56, 1);
    let mut big = *b"\x01\x23\x45\x67\x89\xab\xcd\xef";
    let mut little = *b"\x67\x45\x23\x01\xef\xcd\xab\x89";
    legacy::BLOWFISH_BE.with_key(&key, Acceleration::On).encrypt_blocks(&mut big);
    legacy::BLOWFISH.with_key(&key, Acceleration::On).encrypt_blocks(&mut little);
    little[..4].reverse();
    little[4..].reverse();
    assert_eq!(big, little);
    let key = *b"\xf0\xe1\xd2\xc3\xb4\xa5\x96\x87\x78\x69\x5a\x4b\x3c\x2d\x1e\x0f";
    let mut block = *b"\xfe\xdc\xba\x98\x76\x54\x32\x10";
    legacy::BLOWFISH_BE.with_key(&key, Acceleration::On).encrypt_blocks(&mut block);
    assert_eq!(block, *b"\x93\x14\x28\x87\xee\x3b\xe1\x5c");
}

fn slow_lrw(ciphers: &[&Cipher], index: u128, data: &mut [u8]) {
    let keyed = keyed(ciphers);
    let steps: Vec<Step<'_>> =
        keyed.iter().map(|c| Box::new(|block: &mut [u8]| c.encrypt_blocks(block)) as _).collect();
    let steps: Vec<reference::Block<'_>> = steps.iter().map(|s| &**s).collect();
    reference::lrw(ciphers[0].block_size, &steps, &bytes(16, 99), index, data);
}

/// The ciphers as the reference takes them: one group for outer CBC, one for each cipher for inner CBC.
fn with_groups(ciphers: &[&Cipher], outer: bool, encrypt: bool, then: impl FnOnce(&[&[reference::Sized<'_>]])) {
    let keyed = keyed(ciphers);
    let steps: Vec<Step<'_>> = keyed
        .iter()
        .map(|c| match encrypt {
            true => Box::new(|block: &mut [u8]| c.encrypt_blocks(block)) as _,
            false => Box::new(|block: &mut [u8]| c.decrypt_blocks(block)) as _,
        })
        .collect();
    let steps: Vec<reference::Sized<'_>> = keyed.iter().zip(&steps).map(|(c, s)| (c.block_size(), &**s as _)).collect();
    let groups: Vec<&[reference::Sized<'_>]> = if outer { vec![&steps] } else { steps.chunks(1).collect() };
    then(&groups);
}

/// Each cipher with a key of its own, the longest that it takes.
fn keyed(ciphers: &[&Cipher]) -> Vec<Box<dyn BlockCipher>> {
    let size = |c: &Cipher| *c.key_sizes.iter().max().expect("a cipher has key sizes");
    (10..).zip(ciphers).map(|(seed, c)| c.with_key(&bytes(size(c), seed), Acceleration::On)).collect()
}

fn name(ciphers: &[&Cipher]) -> String {
    ciphers.iter().rev().map(|c| c.name).collect::<Vec<_>>().join("-")
}

/// Bytes without a pattern, the same for the same seed (a linear congruential generator of Knuth's).
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}
