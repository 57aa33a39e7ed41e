//! Cases without a pattern: any kernel, key, sector size, sector number, length and alignment, against the slow reference.

use crate::common::{Guarded, ciphers_of_16, ecb, slow, usable};
use claviger_crypto::modes::xts::Layer;
use claviger_crypto::modes::{SectorCipher, Xts};
use claviger_testkit::random::Random;
use claviger_testkit::reference::{self, xts};

/// Fixed, so that the test does the same work everywhere and always.
const CASES: u64 = 4000;

/// Bytes of the longest run.
const LONGEST: usize = 32 << 10;

#[test]
fn random_cases_equal_the_reference() {
    let ciphers: Vec<_> = ciphers_of_16().map(|(fast, slow)| (fast, slow, usable(fast).collect::<Vec<_>>())).collect();
    let mut memory = Guarded::new(LONGEST);
    for seed in 0..CASES {
        let mut random = Random::new(seed);
        let (cipher, reference, kernels) = random.choose(&ciphers);
        let kernel = random.choose(kernels);
        let size = *random.choose(cipher.key_sizes);
        let (key, key2) = (random.bytes(size), random.bytes(size));
        let encrypt = random.below(2) == 0;
        let alignment = random.below(Guarded::ALIGNMENTS);
        let first = first(&mut random);
        // Mostly short: the reference is slow.
        let longest = if random.below(16) == 0 { LONGEST } else { 2048 };
        let mode = random.below(4);
        let most = *random.choose(&[4, 40, longest / 16]);
        let sector = 16 * (1 + random.below(most));
        let len = match mode {
            0 => 16 * (1 + random.below(longest / 16)),
            _ => sector * (1 + random.below((longest / sector).max(1))),
        };
        let input = random.bytes(len);
        let what = || {
            let mode = ["ECB", "XTS of the kernel", "XTS", "XTS"][mode];
            format!(
                "seed {seed}: {} {} {}, {mode}, encrypt: {encrypt}, {len} bytes in sectors of {sector} from {first:#x} \
                 at {alignment}",
                cipher.name,
                8 * size,
                kernel.name
            )
        };

        let data = (reference.with_key)(&key);
        let tweak = (reference.with_key)(&key2);
        let mut expected = input.clone();
        if mode == 0 {
            expected.as_chunks_mut().0.iter_mut().for_each(|block| slow(&*data, encrypt, block));
        } else {
            xts::crypt(|b| slow(&*data, encrypt, b), |t| tweak.encrypt(t), sector, first, &mut expected);
        }

        let data = kernel.with_key(&key);
        match mode {
            0 => memory.check(alignment, &input, &expected, |run| ecb(&*data, encrypt, run), &what),
            1 => {
                let tweaks = xts::tweaks(|t| tweak.encrypt(t), first, len / sector);
                let crypt = |run: &mut [u8]| crate::common::xts(&*data, encrypt, &tweaks, sector, run);
                memory.check(alignment, &input, &expected, crypt, &what);
            }
            _ => {
                let tweak = random.choose(kernels).with_key(&key2);
                let xts = Xts::new(vec![Layer { data, tweak }], sector);
                let crypt = |run: &mut [u8]| if encrypt { xts.encrypt(first, run) } else { xts.decrypt(first, run) };
                memory.check(alignment, &input, &expected, crypt, &what);
            }
        }
    }
}

/// Sector numbers of small and large volumes, and those that carry or wrap.
fn first(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.number() >> 32,
        1 => random.number(),
        2 => (1 << (8 * (1 + random.below(7)))) - (random.below(40) as u64),
        _ => u64::MAX - random.below(40) as u64,
    }
}

/// Guards against a reference that has become the same as what it is to check.
#[test]
fn the_table_of_references_is_complete() {
    assert_eq!(reference::CIPHERS.len(), ciphers_of_16().count());
}
