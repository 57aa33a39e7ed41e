//! Every specification against the real dm-crypt of a Linux kernel, both ways: it encrypts and we decrypt, we encrypt and it
//! decrypts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use claviger_crypto::Acceleration;
use claviger_crypto::dmcrypt::{DmCryptError, Sectors, Specification};
use claviger_testkit::random::Random;
use claviger_testkit::reference::elephant::Elephant;
use claviger_testkit::reference::legacy::crc32;
use claviger_testkit::vectors::{self, hex};
use claviger_testkit::{tools, uml};

/// Units of 512 bytes that each side writes of each case.
const UNITS: usize = 72;

/// What the kernel of Debian's user-mode Linux does not have.
const MISSING: &[&str] = &["serpent-cbc-essiv:blake2s-256"];

/// The kernel's modules for all of this, as far as they are not built in.
const MODULES: &str = "dm-crypt xts cbc ecb lrw ctr essiv serpent_generic twofish_generic camellia_generic cast5_generic \
                       cast6_generic blowfish_generic des_generic crc32_generic sha512_generic rmd160 wp512 adiantum \
                       nhpoly1305 chacha_generic sha3_generic streebog_generic md4 blake2b_generic aes_ti";

struct Case {
    spec: &'static str,
    /// In bytes.
    key: usize,
    sectors: Sectors,
}

const SMALL: Sectors = Sectors { size: 512, large_iv: false, iv_offset: 0 };

/// Specifications with sectors of 512 bytes, with the sizes of keys, all that there are where none is given.
const SPECIFICATIONS: &[(&str, &[usize])] = &[
    ("aes", &[]),
    ("aes-xts-plain64", &[]),
    ("aes-xts-essiv:sha256", &[64]),
    ("aes-xts-eboiv", &[64]),
    ("aes-xts-null", &[32]),
    ("aes:4-xts-plain64", &[128]),
    ("serpent-xts-plain64", &[32, 64]),
    ("twofish-xts-plain64be", &[64]),
    ("camellia-xts-plain64", &[32, 48, 64]),
    ("aes-cbc-null", &[16]),
    ("aes-cbc-plain", &[32]),
    ("aes-cbc-plain64", &[32]),
    ("aes-cbc-plain64be", &[24]),
    ("aes-cbc-benbi", &[16]),
    ("aes-cbc-essiv:sha256", &[]),
    ("aes-cbc-essiv:md5", &[32]),
    ("aes:2-cbc-essiv:sha256", &[64]),
    ("capi:essiv(cbc(aes),sha256)-plain", &[32]),
    ("capi:cbc(twofish)-essiv:sha256", &[32]),
    ("capi:xts(serpent)-plain64", &[64]),
    ("aes-cbc-eboiv", &[16, 32]),
    ("aes-cbc-elephant", &[32, 64]),
    ("serpent-cbc-essiv:blake2s-256", &[32]),
    ("aes-cbc-essiv:wp256", &[16, 32]),
    ("aes-cbc-essiv:md4", &[16]),
    ("aes-cbc-essiv:sha3-256", &[32]),
    ("aes-cbc-essiv:streebog256", &[32]),
    ("aes-cbc-essiv:blake2b-256", &[32]),
    ("cast6-cbc-essiv:sha224", &[32]),
    ("blowfish-cbc-essiv:wp384", &[16]),
    ("blowfish-cbc-essiv:rmd160", &[16]),
    ("blowfish-cbc-essiv:blake2b-160", &[16]),
    ("blowfish-cbc-essiv:blake2b-384", &[56]),
    ("camellia-cbc-essiv:sha256", &[24]),
    ("blowfish-cbc-essiv:sha256", &[16]),
    ("blowfish-cbc-essiv:sha1", &[56]),
    ("blowfish-cbc-plain64be", &[7]),
    ("blowfish-cbc-lmk", &[16]),
    ("cast5-cbc-plain64", &[5, 10, 11, 16]),
    ("cast5-cbc-essiv:md5", &[16]),
    ("cast6-xts-plain64", &[32, 56, 64]),
    ("cast6-cbc-essiv:sha256", &[20]),
    ("xchacha12,aes-adiantum-plain64", &[32]),
    ("xchacha20,aes-adiantum-plain64", &[32]),
    ("capi:adiantum(xchacha12,aes)-plain64be", &[32]),
    ("xchacha12,aes-adiantum-benbi", &[32]),
    ("des3_ede-cbc-plain", &[24]),
    ("des3_ede-cbc-benbi", &[24]),
    ("aes-ecb", &[16]),
    ("blowfish-ecb", &[32]),
    ("twofish-ecb-plain", &[32]),
    ("aes-ctr-plain64", &[16, 32]),
    ("aes-ctr-plain64be", &[32]),
    ("aes-ctr-benbi", &[32]),
    ("aes-ctr-essiv:sha256", &[32]),
    ("cast5-ctr-plain64", &[16]),
    ("aes-lrw-benbi", &[32, 40, 48]),
    ("aes-lrw-plain64", &[32]),
    ("aes-lrw-essiv:sha256", &[32]),
    ("aes-lrw-eboiv", &[32]),
    ("serpent-lrw-benbi", &[48]),
    ("twofish-lrw-benbi", &[32]),
    ("aes-cbc-tcw", &[]),
    ("serpent-cbc-tcw", &[64]),
    ("cast5-cbc-tcw", &[40]),
    ("des3_ede-cbc-tcw", &[48]),
    ("blowfish-cbc-tcw", &[80]),
    ("aes:64-cbc-lmk", &[]),
    ("capi:cbc(aes)-lmk", &[1040]),
    ("aes:16-cbc-lmk", &[16 * 16, 17 * 24]),
    ("aes-cbc-lmk", &[32]),
    ("serpent:64-cbc-lmk", &[65 * 16]),
    ("twofish:64-cbc-lmk", &[65 * 32]),
    ("blowfish:64-cbc-lmk", &[65 * 16]),
];

/// Those that are tried with larger sectors, too.
const LARGE: &[(&str, usize)] = &[
    ("aes-xts-plain64", 64),
    ("aes:2-xts-plain64", 128),
    ("aes-cbc-plain64", 32),
    ("aes-cbc-essiv:sha256", 32),
    ("aes-cbc-benbi", 32),
    ("aes-cbc-eboiv", 32),
    ("aes-cbc-elephant", 64),
    ("aes-lrw-benbi", 32),
    ("aes-ctr-plain64", 32),
    ("serpent-ecb", 32),
    ("xchacha12,aes-adiantum-plain64", 32),
    ("blowfish-cbc-plain64be", 16),
];

/// First numbers that wrap, or do not fit what an IV has room for. Of those with the IVs that wrap.
const OFFSETS: &[(&str, usize, u64)] = &[
    ("aes-xts-plain", 64, 0xffff_ffe0),
    ("aes-xts-plain64", 64, 0x12_3456_789a),
    ("aes-xts-plain64", 64, u64::MAX - 50),
    ("aes-cbc-eboiv", 32, 0x7f_ffff_ffff_fff0),
    ("twofish-lrw-benbi", 32, 0x7ff_ffff_fff8),
    ("aes-cbc-benbi", 32, 0x7ff_ffff_ffff_ffe0),
    ("aes-ctr-plain64be", 32, u64::MAX - 50),
    ("aes-ctr-benbi", 32, 0x7f_ffff_ffff_fff0),
    ("aes-cbc-tcw", 64, 1),
    ("serpent-cbc-tcw", 64, 0xffff_ff80),
    ("cast5-cbc-tcw", 40, 0x12_3456_789a),
    ("aes:64-cbc-lmk", 65 * 16, 77),
    ("aes:64-cbc-lmk", 65 * 32, 0x00ff_ffff_ffff_ffe0),
    ("aes:4-xts-plain64", 128, 3),
];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (spec, keys) in SPECIFICATIONS {
        let sizes = Specification::parse(spec).unwrap_or_else(|e| panic!("{spec}: {e}")).key_sizes();
        let keys = if keys.is_empty() { &sizes } else { *keys };
        all.extend(keys.iter().map(|&key| Case { spec, key, sectors: SMALL }));
    }
    for (spec, key) in LARGE {
        for (size, large_iv, iv_offset) in
            [(1024, false, 16), (2048, true, 16), (4096, false, 0), (4096, true, 0x1_0000_0008)]
        {
            all.push(Case { spec, key: *key, sectors: Sectors { size, large_iv, iv_offset } });
        }
    }
    for &(spec, key, iv_offset) in OFFSETS {
        all.push(Case { spec, key, sectors: Sectors { iv_offset, ..SMALL } });
    }
    all
}

#[test]
fn the_kernel_reads_what_we_write_and_writes_what_we_read() {
    // The guest loads dm-crypt and the ciphers with the host's program.
    if tools::program("modprobe").is_none() || tools::program("dmsetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let [plain, disk, read] = ["plain", "disk", "read"].map(|name| dir.path().join(name));
    let text = Random::new(1).bytes(UNITS * 512);
    let cases = cases();
    fs::write(&plain, &text).expect("a file");
    fs::write(&read, text.repeat(cases.len()).iter().map(|byte| !byte).collect::<Vec<u8>>()).expect("a file");
    // Of each case our half of the disk, then room for the kernel's.
    let halves = |case: &Case| [case.run(true, 0, &text), vec![0; text.len()]].concat();
    fs::write(&disk, cases.iter().flat_map(halves).collect::<Vec<u8>>()).expect("a file");

    let mut script = format!("for m in {MODULES}; do modprobe -q $m; done\n");
    for (i, case) in cases.iter().enumerate() {
        let table = case.table(2 * i * UNITS);
        writeln!(
            script,
            "echo '{table}' | dmsetup create c 2>/dev/null && {{\n\
             dd if=/dev/mapper/c of=/dev/ubdc bs=36864 count=1 seek={i} conv=notrunc 2>/dev/null || exit 8\n\
             dd if=/dev/ubda of=/dev/mapper/c bs=36864 count=1 seek=1 conv=fsync 2>/dev/null || exit 9\n\
             dmsetup remove c; }} || echo {i}"
        )
        .expect("strings take all");
    }
    let images: Vec<&Path> = vec![&plain, &disk, &read];
    let Some(done) = uml::run(&script, &images, 240) else { return };
    assert_eq!(done.status, 0, "{}", done.output);

    let missing: Vec<usize> = done.output.lines().map(|i| i.parse().expect("the number of a case")).collect();
    let [disk, read] = [disk, read].map(|path| fs::read(path).expect("an image"));
    let mut wrong = Vec::new();
    for (i, case) in cases.iter().enumerate().filter(|(i, _)| !missing.contains(i)) {
        let part = i * text.len()..(i + 1) * text.len();
        if read[part.clone()] != text {
            wrong.push(format!(
                "the kernel reads other than we wrote: {} with {} bytes, {:?}",
                case.spec, case.key, case.sectors
            ));
        }
        let theirs = &disk[2 * i * text.len()..][text.len()..2 * text.len()];
        if case.run(false, (text.len() / case.sectors.size) as u64, theirs) != text {
            wrong.push(format!(
                "we read other than the kernel wrote: {} with {} bytes, {:?}",
                case.spec, case.key, case.sectors
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let missing: BTreeSet<&str> = missing.into_iter().map(|i| cases[i].spec).collect();
    assert_eq!(missing.into_iter().collect::<Vec<_>>(), MISSING);
}

/// What the kernel of that test writes, by the CRC-32 of the ciphertext, for processors and machines without it.
#[test]
fn what_the_kernel_writes_stays() {
    let text = Random::new(1).bytes(UNITS * 512);
    let vectors = vectors::load("dm-crypt");
    let cases = cases();
    let there = cases.iter().filter(|case| !MISSING.contains(&case.spec)).count();
    assert_eq!(vectors.len(), there, "a record for each case that the kernel has");
    for v in vectors {
        let key = v.number("key") as usize;
        let sectors = Sectors {
            size: v.number("unit") as usize,
            large_iv: v.number("large") == 1,
            iv_offset: v.number("offset"),
        };
        let is = |case: &&Case| case.spec == v.text("cipher") && case.key == key && case.sectors == sectors;
        let case = cases.iter().find(is).unwrap_or_else(|| panic!("{v}: no such case"));
        assert_eq!(u64::from(crc32(&case.run(true, 0, &text))), v.number("crc32"), "{v}");
        v.finish();
    }
}

/// Each number of sectors that kernels cut up in another way, at the beginning of a volume and where numbers and offsets wrap.
#[test]
fn elephant_is_that_of_the_reference_at_every_number_of_sectors() {
    let mut random = Random::new(3);
    let spec = Specification::parse("aes-cbc-elephant").expect("a specification");
    for (key, size, large_iv) in
        [(32, 512, false), (64, 512, false), (64, 1024, false), (32, 2048, true), (64, 4096, false), (64, 4096, true)]
    {
        let key = random.bytes(key);
        let (data, tweak) = key.split_at(key.len() / 2);
        let slow = Elephant::new(data, tweak);
        for (iv_offset, first) in
            [(0, 0), (8, 77), (0x12_3456_7890, 0x7f_ffff_ffff_fff0), (u64::MAX - 7, 0), (0, u64::MAX - 19)]
        {
            let sectors = Sectors { size, large_iv, iv_offset };
            let number = |sector: u64| match large_iv {
                true => sector.wrapping_mul(size as u64 / 512).wrapping_add(iv_offset) / (size as u64 / 512),
                false => sector.wrapping_mul(size as u64 / 512).wrapping_add(iv_offset),
            };
            let offset = |i: usize| number(first.wrapping_add(i as u64)).wrapping_mul(size as u64);
            let plain = random.bytes(40 * size);
            let mut encrypted = plain.clone();
            for (i, sector) in encrypted.chunks_exact_mut(size).enumerate() {
                slow.encrypt(offset(i), sector);
            }
            let mut decrypted = encrypted.clone();
            for (i, sector) in decrypted.chunks_exact_mut(size).enumerate() {
                slow.decrypt(offset(i), sector);
            }
            assert!(decrypted == plain, "the reference decrypts what it encrypts");
            let cipher = spec.with_key(&key, sectors, Acceleration::On).expect("it fits");
            for count in 1..=40 {
                let mut run = plain[..count * size].to_vec();
                cipher.encrypt(first, &mut run);
                assert!(run == encrypted[..run.len()], "{count} from {first}, {sectors:?}: encrypts");
                cipher.decrypt(first, &mut run);
                assert!(run == plain[..run.len()], "{count} from {first}, {sectors:?}: decrypts");
            }
        }
    }
}

#[test]
fn a_run_may_be_cut_anywhere_and_aes_instructions_do_not_matter() {
    let mut random = Random::new(2);
    for case in cases() {
        let spec = Specification::parse(case.spec).expect("it was parsed before");
        let [with, without] = [Acceleration::On, Acceleration::Off]
            .map(|a| spec.with_key(&case.key(), case.sectors, a).expect("it fits"));
        let size = with.sector_size();
        assert_eq!(size, case.sectors.size);
        let text = random.bytes(UNITS * 512);
        let mut whole = text.clone();
        with.encrypt(5, &mut whole);
        let cut = random.below(UNITS * 512 / size + 1);
        let mut parts = text.clone();
        let (one, other) = parts.split_at_mut(cut * size);
        without.encrypt(5, one);
        without.encrypt(5 + cut as u64, other);
        assert!(parts == whole, "{} {:?} cut at {cut}: encrypts", case.spec, case.sectors);
        let cut = random.below(UNITS * 512 / size + 1);
        let (one, other) = parts.split_at_mut(cut * size);
        without.decrypt(5, one);
        with.decrypt(5 + cut as u64, other);
        assert!(parts == text, "{} {:?} cut at {cut}: decrypts", case.spec, case.sectors);
    }
}

/// Sectors of one key lie far apart and are encrypted side by side, as far as a run goes.
#[test]
fn long_runs_with_many_keys_are_what_their_sectors_are() {
    let mut random = Random::new(3);
    for (spec, key, first) in [("aes:64-cbc-lmk", 65 * 16, 7), ("serpent:4-cbc-lmk", 4 * 16, u64::MAX - 200)] {
        let sectors = Sectors { size: 512, large_iv: false, iv_offset: 0 };
        let key: Vec<u8> = random.bytes(key);
        let cipher = Specification::parse(spec).expect("it is known");
        let cipher = cipher.with_key(&key, sectors, Acceleration::On).expect("it fits");
        for count in [63, 64, 65, cipher.wide_run() / 512, cipher.wide_run() / 512 + 130] {
            let text = random.bytes(count * 512);
            let (mut whole, mut alone) = (text.clone(), text.clone());
            cipher.encrypt(first, &mut whole);
            for (i, sector) in (0..).zip(alone.chunks_exact_mut(512)) {
                cipher.encrypt(first.wrapping_add(i), sector);
            }
            assert!(whole == alone, "{spec}: {count} sectors");
            cipher.decrypt(first, &mut whole);
            assert!(whole == text, "{spec}: {count} sectors");
        }
    }
}

#[test]
fn sectors_and_keys_that_do_not_fit_are_refused() {
    let refused = |spec: &str, key: usize, size: usize| {
        let spec = Specification::parse(spec).expect(spec);
        spec.with_key(&vec![1; key], Sectors { size, ..SMALL }, Acceleration::On).err().expect("it does not fit")
    };
    for size in [0, 1, 256, 513, 768, 8192, usize::MAX] {
        assert!(matches!(refused("aes-xts-plain64", 64, size), DmCryptError::Unsupported(_)), "{size}");
    }
    for spec in ["aes-cbc-tcw", "aes:64-cbc-lmk"] {
        assert!(matches!(refused(spec, 64, 4096), DmCryptError::Unsupported(_)), "{spec}");
    }
    for key in [0, 1, 16, 63, 65, 4096] {
        assert_eq!(refused("aes-xts-plain64", key, 512), DmCryptError::KeySize(key, vec![32, 48, 64]));
    }
    assert!(matches!(refused("aes-xts-random", 64, 512), DmCryptError::Unsupported(_)));
}

impl Case {
    fn key(&self) -> Vec<u8> {
        Random::new(self.key as u64).bytes(self.key)
    }

    /// The target's line for a table of device-mapper, `at` units of 512 bytes into the disk.
    fn table(&self, at: usize) -> String {
        let Sectors { size, large_iv, iv_offset } = self.sectors;
        let options = match (size, large_iv) {
            (512, _) => String::new(),
            (_, false) => format!(" 1 sector_size:{size}"),
            (_, true) => format!(" 2 sector_size:{size} iv_large_sectors"),
        };
        format!("0 {} crypt {} {} {iv_offset} /dev/ubdb {at}{options}", 2 * UNITS, self.spec, hex(&self.key()))
    }

    /// Encrypts or decrypts as dm-crypt should.
    fn run(&self, encrypt: bool, first: u64, data: &[u8]) -> Vec<u8> {
        let spec = Specification::parse(self.spec).unwrap_or_else(|e| panic!("{}: {e}", self.spec));
        let cipher = spec.with_key(&self.key(), self.sectors, Acceleration::On);
        let cipher = cipher.unwrap_or_else(|e| panic!("{}: {e}", self.spec));
        let mut data = data.to_vec();
        match encrypt {
            true => cipher.encrypt(first, &mut data),
            false => cipher.decrypt(first, &mut data),
        }
        data
    }
}
