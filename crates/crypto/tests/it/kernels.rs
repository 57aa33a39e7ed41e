//! Every kernel that this processor can run equals the slow reference and the RustCrypto crates, at every length and
//! alignment; and what the table of ciphers promises.

use crate::common::{Guarded, SECTOR_SIZES, ciphers_of_16, ecb, rust_crypto, slow, usable};
use cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use claviger_crypto::ciphers::legacy;
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::modes::{self, Xts};
use claviger_crypto::{Acceleration, BlockCipher, CIPHERS, Cipher};
use claviger_testkit::random::Random;
use claviger_testkit::reference::{self, Block, Keyed, xts};

/// The longest run or sector that is tried at every length.
const LONGEST: usize = 4112;

/// The most sectors that are tried in a run.
const MOST_SECTORS: usize = 40;

fn lengths(block: usize) -> impl Iterator<Item = usize> {
    (block..=LONGEST).step_by(block)
}

/// Lengths at which every alignment is tried: the small ones, and those around what kernels take at a time.
const ALIGNED_LENGTHS: &[usize] =
    &[16, 32, 48, 64, 80, 112, 128, 144, 240, 256, 272, 496, 512, 528, 1008, 1024, 1040, 2064, 4096, 4112];

/// Each length at four alignments without a pattern, and [`ALIGNED_LENGTHS`] at all of them.
fn lengths_and_alignments(block: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let mut all: Vec<_> =
        lengths(block).flat_map(|len| std::array::from_fn::<_, 4, _>(|_| (len, random.below(64)))).collect();
    for len in ALIGNED_LENGTHS {
        all.extend((0..Guarded::ALIGNMENTS).map(|alignment| (*len, alignment)));
    }
    all
}

/// A cipher under a key, in both references. Encrypting with one must equal encrypting with the other.
struct Slow {
    ours: Box<dyn Keyed>,
    theirs: Box<dyn Keyed>,
}

impl Slow {
    fn new(cipher: &reference::Cipher, key: &[u8]) -> Self {
        Self { ours: (cipher.with_key)(key), theirs: rust_crypto(cipher.name, key) }
    }

    fn block(&self, encrypt: bool, block: &mut Block) {
        let mut theirs = *block;
        slow(&*self.ours, encrypt, block);
        slow(&*self.theirs, encrypt, &mut theirs);
        assert_eq!(*block, theirs, "the references disagree");
    }

    fn ecb(&self, encrypt: bool, input: &[u8]) -> Vec<u8> {
        let mut data = input.to_vec();
        data.as_chunks_mut().0.iter_mut().for_each(|block| self.block(encrypt, block));
        data
    }

    fn xts(&self, encrypt: bool, tweaks: &[Block], sector: usize, input: &[u8]) -> Vec<u8> {
        let mut data = input.to_vec();
        xts::with_tweaks(|block| self.block(encrypt, block), tweaks, sector, &mut data);
        data
    }
}

/// Each cipher of 16-byte blocks with two keys of each of its key sizes, both references and what makes its inputs.
fn keys() -> impl Iterator<Item = (&'static Cipher, Vec<u8>, Slow, Random)> {
    ciphers_of_16().flat_map(|(cipher, reference)| {
        cipher.key_sizes.repeat(2).into_iter().enumerate().map(move |(seed, size)| {
            let mut random = Random::new(seed as u64);
            let key = random.bytes(size);
            let slow = Slow::new(reference, &key);
            (cipher, key, slow, random)
        })
    })
}

fn tweaks(random: &mut Random, count: usize) -> Vec<Block> {
    let mut tweaks = random.bytes(16 * count).as_chunks().0.to_vec();
    // One whose doublings reduce again and again, and one that hardly ever does.
    tweaks[0] = [0xff; 16];
    tweaks[count / 2] = [0; 16];
    tweaks[count / 2][0] = 1;
    tweaks
}

#[test]
fn ecb_equals_the_references_at_every_length_and_alignment() {
    for (cipher, key, slow, mut random) in keys() {
        let input = random.bytes(LONGEST);
        for encrypt in [true, false] {
            let expected = slow.ecb(encrypt, &input);
            check_ecb(cipher, &key, encrypt, &input, &expected, &mut random);
        }
    }
}

/// Every kernel that is not a crate's, against the crate, under two keys of each size.
#[test]
fn ecb_of_old_ciphers_equals_the_crates() {
    for (cipher, key, theirs) in old_ciphers() {
        let mut random = Random::new(key.len() as u64);
        let input = random.bytes(LONG);
        let mut expected = input.clone();
        theirs(&mut expected, true);
        for kernel in usable(cipher) {
            let keyed = kernel.with_key(&key);
            let mut memory = Guarded::new(LONG);
            for len in (0..LONG).step_by(cipher.block_size).filter(|len| len % 512 < 128 || len % 512 > 448) {
                let what = || format!("{} {} {}, {len} bytes", cipher.name, 8 * key.len(), kernel.name);
                let (input, expected) = (&input[..len], &expected[..len]);
                memory.check(random.below(64), input, expected, |run| keyed.encrypt_blocks(run), &what);
                memory.check(random.below(64), expected, input, |run| keyed.decrypt_blocks(run), &what);
            }
        }
    }
}

/// Longer than what a kernel takes at a time: 512 blocks of 8 bytes.
const LONG: usize = 9 << 10;

/// Blocks, and whether to encrypt them.
type InPlace = Box<dyn Fn(&mut [u8], bool)>;

/// Ciphers without a slow reference, under two keys of each of their sizes, and the crates' in place.
fn old_ciphers() -> impl Iterator<Item = (&'static Cipher, Vec<u8>, InPlace)> {
    [&legacy::TRIPLE_DES, &legacy::WINDOWS_DESX, &legacy::CAST6].into_iter().flat_map(|cipher| {
        cipher.key_sizes.repeat(2).into_iter().enumerate().map(move |(seed, size)| {
            let key = Random::new(seed as u64).bytes(size);
            let theirs: InPlace = match cipher.name {
                "Triple DES" => of_crate::<des::TdesEde3>(&key),
                "DESX (Windows)" => windows_desx(&key),
                "CAST6" => of_crate::<cast6::Cast6>(&key),
                name => panic!("no oracle for {name}"),
            };
            (cipher, key, theirs)
        })
    })
}

fn of_crate<C>(key: &[u8]) -> InPlace
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + 'static,
{
    let cipher = C::new_from_slice(key).expect("a size that the cipher takes");
    Box::new(move |blocks, encrypt| {
        let blocks = Array::slice_as_chunks_mut(blocks).0;
        if encrypt { cipher.encrypt_blocks(blocks) } else { cipher.decrypt_blocks(blocks) }
    })
}

/// DES runs backwards, between the two whitenings.
fn windows_desx(key: &[u8]) -> InPlace {
    let (des, whitening) = (of_crate::<des::Des>(&key[..8]), key[8..].to_vec());
    Box::new(move |blocks, encrypt| {
        let add = |blocks: &mut [u8], with: &[u8]| {
            blocks.iter_mut().zip(with.iter().cycle()).for_each(|(byte, with)| *byte ^= with);
        };
        let (first, last) = whitening.split_at(8);
        add(blocks, if encrypt { first } else { last });
        des(blocks, !encrypt);
        add(blocks, if encrypt { last } else { first });
    })
}

/// Their values are those of the vectors; here they only need to work block by block.
#[test]
fn ecb_of_ciphers_from_crates_works_at_every_length_and_alignment() {
    for cipher in CIPHERS.iter().filter(|c| c.block_size == 8 || c.name == "CAST6") {
        for size in [cipher.key_sizes[0], *cipher.key_sizes.last().expect("a key size")] {
            let mut random = Random::new(size as u64);
            let key = random.bytes(size);
            let input = random.bytes(LONGEST);
            let keyed = cipher.with_key(&key, Acceleration::On);
            let mut expected = input.clone();
            expected.chunks_exact_mut(cipher.block_size).for_each(|block| keyed.encrypt_blocks(block));
            check_ecb(cipher, &key, true, &input, &expected, &mut random);
            check_ecb(cipher, &key, false, &expected, &input, &mut random);
        }
    }
}

/// ECB is block by block: the expected bytes of any length are the first ones of the longest.
fn check_ecb(cipher: &'static Cipher, key: &[u8], encrypt: bool, input: &[u8], expected: &[u8], random: &mut Random) {
    let mut memory = Guarded::new(LONGEST);
    for kernel in usable(cipher) {
        let keyed = kernel.with_key(key);
        assert_eq!(keyed.block_size(), cipher.block_size);
        for (len, alignment) in lengths_and_alignments(cipher.block_size, random) {
            let crypt = |run: &mut [u8]| ecb(&*keyed, encrypt, run);
            let what = || {
                let bits = key.len() * 8;
                format!("{} {bits} {}, encrypt: {encrypt}, {len} bytes at {alignment}", cipher.name, kernel.name)
            };
            memory.check(alignment, &input[..len], &expected[..len], crypt, &what);
        }
    }
}

/// A chain of CBC is its blocks in ECB, each xored with the ciphertext before it.
#[test]
fn cbc_is_ecb_and_what_came_before_at_every_length_and_alignment() {
    for cipher in CIPHERS {
        let block = cipher.block_size;
        let mut random = Random::new(block as u64);
        let key = random.bytes(cipher.key_sizes[0]);
        let iv: Block = random.bytes(16).try_into().expect("a block");
        let input = random.bytes(LONGEST);
        for kernel in usable(cipher) {
            let keyed = kernel.with_key(&key);
            let mut expected = input.clone();
            keyed.decrypt_blocks(&mut expected);
            let before = iv[..block].iter().chain(&input);
            expected.iter_mut().zip(before).for_each(|(byte, before)| *byte ^= before);
            let mut memory = Guarded::new(LONGEST);
            for (len, alignment) in lengths_and_alignments(block, &mut random) {
                let what = || format!("{} {}, CBC, {len} bytes at {alignment}", cipher.name, kernel.name);
                let (stored, plain) = (&input[..len], &expected[..len]);
                memory.check(alignment, stored, plain, |run| keyed.cbc_decrypt(&iv, run), &what);
                memory.check(alignment, plain, stored, |run| keyed.cbc_encrypt(&iv, run), &what);
            }
        }
    }
}

/// Chains side by side are each what it is alone.
#[test]
fn chains_side_by_side_are_what_they_are_alone() {
    for cipher in CIPHERS {
        let block = cipher.block_size;
        let mut random = Random::new(block as u64 + 1);
        let key = random.bytes(cipher.key_sizes[0]);
        for kernel in usable(cipher) {
            let keyed = kernel.with_key(&key);
            for sector in [block, 48, 64, 128, 512, 528, 1040] {
                for count in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 23, 31, 32, 33, 40, 65, 130, 513] {
                    if count > 65 && (cipher.name != "Triple DES" || sector > 64) {
                        continue;
                    }
                    let ivs: Vec<Block> = random.bytes(16 * count).as_chunks().0.to_vec();
                    let input = random.bytes(count * sector);
                    let mut expected = input.clone();
                    for (iv, chain) in ivs.iter().zip(expected.chunks_mut(sector)) {
                        keyed.cbc_encrypt(iv, chain);
                    }
                    let what = || format!("{} {}, {count} × {sector}", cipher.name, kernel.name);
                    let crypt = |run: &mut [u8]| keyed.cbc_encrypt_abreast(&ivs, sector, run);
                    let mut memory = Guarded::new(input.len());
                    memory.check(1, &input, &expected, crypt, &what);
                    memory.check(1, &expected, &input, |run| keyed.cbc_decrypt_abreast(&ivs, sector, run), &what);
                }
            }
        }
    }
}

/// One sector, and up to nine, of each length. A shorter sector under the same tweak is the beginning of a longer one.
#[test]
fn xts_equals_the_references_at_every_sector_size() {
    const MOST: usize = 9;
    for (cipher, key, slow, mut random) in keys() {
        let tweaks = tweaks(&mut random, MOST);
        let input = random.bytes(MOST * LONGEST);
        for encrypt in [true, false] {
            let expected = slow.xts(encrypt, &tweaks, LONGEST, &input);
            let shortened = |data: &[u8], count: usize, len: usize| -> Vec<u8> {
                data.chunks_exact(LONGEST).take(count).flat_map(|sector| &sector[..len]).copied().collect()
            };
            let mut memory = Guarded::new(MOST * LONGEST);
            for kernel in usable(cipher) {
                let keyed = kernel.with_key(&key);
                let mut check = |len, count, alignment| {
                    let (input, expected) = (shortened(&input, count, len), shortened(&expected, count, len));
                    let crypt = |run: &mut [u8]| crate::common::xts(&*keyed, encrypt, &tweaks[..count], len, run);
                    let what = || xts_failed(cipher, &key, kernel.name, encrypt, count, len, alignment);
                    memory.check(alignment, &input, &expected, crypt, &what);
                };
                for (len, alignment) in lengths_and_alignments(16, &mut random) {
                    check(len, 1, alignment);
                }
                for len in lengths(16) {
                    check(len, 2 + len / 16 % (MOST - 1), random.below(Guarded::ALIGNMENTS));
                }
            }
        }
    }
}

/// A run of fewer sectors is the beginning of a run of more.
#[test]
fn xts_equals_the_references_at_every_number_of_sectors() {
    for (cipher, key, slow, mut random) in keys() {
        let tweaks = tweaks(&mut random, MOST_SECTORS);
        let input = random.bytes(MOST_SECTORS * LONGEST);
        let mut memory = Guarded::new(MOST_SECTORS * LONGEST);
        for sector in SECTOR_SIZES {
            let input = &input[..MOST_SECTORS * sector];
            for encrypt in [true, false] {
                let expected = slow.xts(encrypt, &tweaks, *sector, input);
                for kernel in usable(cipher) {
                    let keyed = kernel.with_key(&key);
                    let mut check = |count, alignment| {
                        let (input, expected) = (&input[..count * sector], &expected[..count * sector]);
                        let crypt =
                            |run: &mut [u8]| crate::common::xts(&*keyed, encrypt, &tweaks[..count], *sector, run);
                        let what = || xts_failed(cipher, &key, kernel.name, encrypt, count, *sector, alignment);
                        memory.check(alignment, input, expected, crypt, &what);
                    };
                    for count in 1..=MOST_SECTORS {
                        check(count, random.below(Guarded::ALIGNMENTS));
                    }
                    for alignment in 0..Guarded::ALIGNMENTS {
                        check(1 + alignment % 5, alignment);
                    }
                }
            }
        }
    }
}

fn xts_failed(
    cipher: &Cipher,
    key: &[u8],
    kernel: &str,
    encrypt: bool,
    count: usize,
    sector: usize,
    alignment: usize,
) -> String {
    let bits = key.len() * 8;
    format!("{} {bits} {kernel}, encrypt: {encrypt}, {count} sectors of {sector} bytes at {alignment}", cipher.name)
}

#[test]
fn nothing_is_a_run_too() {
    for cipher in CIPHERS {
        let key = Random::new(0).bytes(cipher.key_sizes[0]);
        for kernel in usable(cipher) {
            let keyed = kernel.with_key(&key);
            keyed.encrypt_blocks(&mut []);
            keyed.decrypt_blocks(&mut []);
            keyed.cbc_decrypt(&[0; 16], &mut []);
            keyed.cbc_encrypt(&[0; 16], &mut []);
            keyed.cbc_encrypt_abreast(&[], 0, &mut []);
            keyed.cbc_encrypt_abreast(&[], 512, &mut []);
            keyed.cbc_decrypt_abreast(&[], 0, &mut []);
            keyed.cbc_decrypt_abreast(&[], 512, &mut []);
            if cipher.block_size == 16 {
                keyed.xts_encrypt(&[], 512, &mut []);
                keyed.xts_decrypt(&[], 512, &mut []);
            }
        }
    }
}

/// A keyed cipher has no state of its own: threads may share it.
#[test]
fn threads_share_a_cipher() {
    for (cipher, key, slow, mut random) in keys() {
        let input = random.bytes(LONGEST);
        let expected = slow.ecb(true, &input);
        for kernel in usable(cipher) {
            let keyed: Box<dyn BlockCipher> = kernel.with_key(&key);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..20 {
                            let mut data = input.clone();
                            keyed.encrypt_blocks(&mut data);
                            assert!(data == expected, "{} {} on several threads", cipher.name, kernel.name);
                            keyed.decrypt_blocks(&mut data);
                            assert!(data == input, "{} {} on several threads", cipher.name, kernel.name);
                        }
                    });
                }
            });
        }
    }
}

mod registry {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, cipher) in CIPHERS.iter().enumerate() {
            assert!(CIPHERS[..i].iter().all(|c| c.name != cipher.name), "{} is there twice", cipher.name);
            for (i, kernel) in cipher.kernels.iter().enumerate() {
                let others = &cipher.kernels[..i];
                assert!(others.iter().all(|k| k.name != kernel.name), "{} {} is there twice", cipher.name, kernel.name);
            }
        }
    }

    #[test]
    fn sizes_are_sensible() {
        for cipher in CIPHERS {
            assert!(matches!(cipher.block_size, 8 | 16), "{}", cipher.name);
            assert!(!cipher.key_sizes.is_empty() && cipher.key_sizes.is_sorted(), "{}", cipher.name);
        }
    }

    #[test]
    fn the_last_kernel_runs_everywhere() {
        for cipher in CIPHERS {
            let last = cipher.kernels.last().expect("a cipher has kernels");
            assert!((last.usable)() && !last.aes_instructions, "{} {}", cipher.name, last.name);
        }
    }

    #[test]
    fn acceleration_chooses_the_first_kernel_that_may_run() {
        for cipher in CIPHERS {
            let on = cipher.best(Acceleration::On);
            let off = cipher.best(Acceleration::Off);
            assert!((on.usable)() && (off.usable)() && !off.aes_instructions, "{}", cipher.name);
            let first = cipher.kernels.iter().find(|k| (k.usable)()).expect("the last one is");
            assert_eq!(on.name, first.name, "{}", cipher.name);
        }
    }

    #[test]
    fn every_kernel_takes_every_key_size() {
        for cipher in CIPHERS {
            for kernel in usable(cipher) {
                for size in cipher.key_sizes {
                    let keyed = kernel.with_key(&Random::new(7).bytes(*size));
                    assert_eq!(keyed.block_size(), cipher.block_size, "{} {}", cipher.name, kernel.name);
                }
            }
        }
    }

    #[test]
    fn other_key_sizes_are_refused() {
        for cipher in CIPHERS {
            for size in [0, 1, 15, 17, 33, 64].iter().filter(|size| !cipher.key_sizes.contains(size)) {
                let refused = std::panic::catch_unwind(|| cipher.with_key(&vec![0; *size], Acceleration::On)).is_err();
                assert!(refused, "{} takes a key of {size} bytes", cipher.name);
            }
        }
    }

    /// As their modules say: AES, Serpent and DES never look anything up, Twofish, Camellia and Kuznyechik only in tables, the others
    /// always.
    #[test]
    fn constant_time_is_what_the_modules_say() {
        for cipher in CIPHERS {
            for kernel in cipher.kernels {
                let expected = match (cipher.name, cipher.block_size) {
                    ("AES" | "Serpent" | "Triple DES", _) => true,
                    ("Twofish" | "Camellia" | "Kuznyechik", _) => kernel.name != "portable",
                    ("CAST6", _) | (_, 8) => false,
                    (name, _) => panic!("what does the module of {name} say?"),
                };
                assert_eq!(kernel.constant_time, expected, "{} {}", cipher.name, kernel.name);
            }
        }
    }
}

/// Kernels that go by pointers check that what they were given is there, whatever a product wraps around to.
#[test]
fn lengths_that_do_not_fit_are_refused() {
    let aes = CIPHERS.iter().find(|c| c.name == "AES").expect("it is in the table");
    for kernel in aes.kernels.iter().filter(|k| k.aes_instructions && (k.usable)()) {
        let cipher = kernel.with_key(&[1; 32]);
        for (tweaks, sector, run) in
            [(4, (1 << 62) + 128, 512), (2, (1 << 63) + 128, 256), (1, 512, 1024), (2, 512, 512)]
        {
            let mut run = vec![0; run];
            let call = || cipher.xts_encrypt(&vec![[0; 16]; tweaks], sector, &mut run);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err(), "{}", kernel.name);
        }
    }
}

/// What another process may look at in the meantime is said of AES-XTS alone, and never where a second pass begins with what a first one has
/// left.
#[test]
fn only_what_works_in_registers_says_so() {
    let aes = || CIPHERS[0].with_key(&[7; 32], Acceleration::On);
    let in_registers = |layers: usize| {
        let layer = |_| modes::xts::Layer { data: aes(), tweak: aes() };
        modes::SectorCipher::in_registers(&Xts::new((0..layers).map(layer).collect(), 512))
    };
    assert_eq!((in_registers(1), in_registers(2)), (has_aes_instructions(), false), "one and a cascade");
    for (text, in_registers) in [
        ("aes-xts-plain64", has_aes_instructions()),
        ("aes-cbc-plain64", false),
        ("aes-lrw-benbi", false),
        ("serpent-xts-plain64", false),
        ("aes:64-cbc-lmk", false),
        ("xchacha12,aes-adiantum-plain64", false),
    ] {
        let specification = Specification::parse(text).expect("it is known");
        let key: Vec<u8> = (0..specification.key_sizes()[0]).map(|i| (i * 7 / 3) as u8).collect();
        let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("it fits");
        assert_eq!(cipher.in_registers(), in_registers, "{text}");
    }
}

fn has_aes_instructions() -> bool {
    usable(CIPHERS[0]).any(|kernel| kernel.aes_instructions)
}
