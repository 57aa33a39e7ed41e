//! LRW and CBC against the real dm-crypt of a Linux kernel, both ways: it encrypts and we decrypt, we encrypt and it
//! decrypts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use claviger_crypto::ciphers::{aes, legacy, serpent, twofish};
use claviger_crypto::modes::{Lrw, TrueCryptCbc, cbc};
use claviger_crypto::{Acceleration, Cipher, SectorCipher};
use claviger_testkit::{tools, uml};

const SECTORS: usize = 128;

/// A target of dm-crypt.
struct Case {
    cipher: &'static Cipher,
    /// dm-crypt's name of the cipher, mode and IV.
    spec: &'static str,
    mode: Mode,
    /// Bytes of the cipher's key.
    key: usize,
    /// dm-crypt's `iv_offset`: the number of the first sector.
    first: u64,
    /// In bytes.
    sector: usize,
    options: &'static str,
}

#[derive(Clone, Copy)]
enum Mode {
    /// Key, then tweak key.
    LrwBenbi,
    /// The same. The sector's number little-endian, as the big-endian index of its first block.
    LrwPlain64,
    /// Key, then seed of the IVs, then 16 bytes for the whitening: TrueCrypt's CBC.
    Tcw,
    CbcPlain64,
}

const LARGE: &str = "2 sector_size:4096 iv_large_sectors";

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { cipher: &aes::AES, spec: "aes-lrw-benbi", mode: Mode::LrwBenbi, key: 32, first: 0, sector: 512, options: "" },
    Case { cipher: &serpent::SERPENT, spec: "serpent-lrw-benbi", mode: Mode::LrwBenbi, key: 32, first: 0x12_3456_789a,
        sector: 512, options: "" },
    Case { cipher: &twofish::TWOFISH, spec: "twofish-lrw-benbi", mode: Mode::LrwBenbi, key: 32, first: 0x7ff_ffff_fff8,
        sector: 512, options: "" },
    Case { cipher: &aes::AES, spec: "aes-lrw-plain64", mode: Mode::LrwPlain64, key: 32, first: 0xfff0, sector: 512,
        options: "" },
    Case { cipher: &aes::AES, spec: "aes-lrw-benbi", mode: Mode::LrwBenbi, key: 32, first: 0, sector: 4096,
        options: "1 sector_size:4096" },
    Case { cipher: &aes::AES, spec: "aes-lrw-plain64", mode: Mode::LrwPlain64, key: 32, first: 0, sector: 4096,
        options: LARGE },
    Case { cipher: &aes::AES, spec: "aes-cbc-tcw", mode: Mode::Tcw, key: 32, first: 1, sector: 512, options: "" },
    Case { cipher: &serpent::SERPENT, spec: "serpent-cbc-tcw", mode: Mode::Tcw, key: 32, first: 0xffff_ff80,
        sector: 512, options: "" },
    Case { cipher: &legacy::CAST5, spec: "cast5-cbc-tcw", mode: Mode::Tcw, key: 16, first: 0x12_3456_789a, sector: 512,
        options: "" },
    Case { cipher: &legacy::TRIPLE_DES, spec: "des3_ede-cbc-tcw", mode: Mode::Tcw, key: 24, first: 1, sector: 512,
        options: "" },
    Case { cipher: &legacy::BLOWFISH_BE, spec: "blowfish-cbc-tcw", mode: Mode::Tcw, key: 56, first: 1, sector: 512,
        options: "" },
    Case { cipher: &aes::AES, spec: "aes-cbc-plain64", mode: Mode::CbcPlain64, key: 32, first: 77, sector: 512,
        options: "" },
    Case { cipher: &aes::AES, spec: "aes-cbc-plain64", mode: Mode::CbcPlain64, key: 32, first: 0, sector: 4096,
        options: LARGE },
    Case { cipher: &legacy::CAST5, spec: "cast5-cbc-plain64", mode: Mode::CbcPlain64, key: 16, first: 3, sector: 512,
        options: "" },
];

#[test]
fn dm_crypt_reads_what_we_write_and_writes_what_we_read() {
    // The guest loads dm-crypt and the ciphers with the host's program.
    if tools::program("modprobe").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let [plain, ours, theirs, read] = ["plain", "ours", "theirs", "read"].map(|name| dir.path().join(name));
    let text = bytes(SECTORS * 512, 1);
    let repeat = |piece: &[u8]| piece.repeat(CASES.len());
    fs::write(&plain, &text).expect("a file");
    fs::write(&theirs, repeat(&vec![0; text.len()])).expect("a file");
    fs::write(&read, repeat(&vec![0; text.len()])).expect("a file");
    let encrypted: Vec<u8> = CASES.iter().flat_map(|case| case.run(true, &text)).collect();
    fs::write(&ours, &encrypted).expect("a file");

    let mut script = String::from("set -e\nmodprobe -qa dm-crypt lrw cbc ecb serpent_generic twofish_generic ");
    script += "cast5_generic des_generic blowfish_generic crc32_generic || true\n";
    for (i, case) in CASES.iter().enumerate() {
        let key: String = case.material().iter().map(|byte| format!("{byte:02x}")).collect();
        let at = i * SECTORS;
        for (device, action) in [("ubdc", "of=/dev/mapper/c if=/dev/ubda"), ("ubdb", "if=/dev/mapper/c of=/dev/ubdd")] {
            let seek = if device == "ubdb" { format!("seek={at}") } else { String::new() };
            writeln!(
                script,
                "echo '0 {SECTORS} crypt {} {key} {} /dev/{device} {at} {}' | dmsetup create c || {{ dmesg | tail; exit {}; }}\n\
                 dd {action} bs=512 count={SECTORS} {seek} conv=fsync 2>/dev/null; dmsetup remove c",
                case.spec,
                case.first,
                case.options,
                100 + i,
            )
            .expect("strings take all");
        }
    }
    let images: Vec<&Path> = vec![&plain, &ours, &theirs, &read];
    let Some(done) = uml::run(&script, &images, 120) else { return };
    assert_eq!(done.status, 0, "{}", done.output);

    let [theirs, read] = [theirs, read].map(|path| fs::read(path).expect("an image"));
    for (i, case) in CASES.iter().enumerate() {
        let part = i * text.len()..(i + 1) * text.len();
        assert!(read[part.clone()] == text, "the kernel reads other than we wrote: {} {}", case.spec, case.options);
        let decrypted = case.run(false, &theirs[part]);
        assert!(decrypted == text, "we read other than the kernel wrote: {} {}", case.spec, case.options);
    }
}

impl Case {
    /// The key as dm-crypt takes it.
    fn material(&self) -> Vec<u8> {
        let extra = match self.mode {
            Mode::LrwBenbi | Mode::LrwPlain64 => 16,
            Mode::Tcw => self.cipher.block_size + 16,
            Mode::CbcPlain64 => 0,
        };
        bytes(self.key + extra, self.key as u8)
    }

    /// Encrypts or decrypts as dm-crypt should.
    fn run(&self, encrypt: bool, data: &[u8]) -> Vec<u8> {
        let mut data = data.to_vec();
        let material = self.material();
        let (key, extra) = material.split_at(self.key);
        let cipher = self.cipher.with_key(key, Acceleration::On);
        let plain64 = |i: usize| u128::from(self.first + i as u64).to_le_bytes();
        let ivs: Vec<[u8; 16]> = (0..data.len() / self.sector).map(plain64).collect();
        let mode: Box<dyn SectorCipher> = match self.mode {
            Mode::LrwBenbi => Box::new(Lrw::new(vec![cipher], extra, self.sector)),
            Mode::LrwPlain64 => {
                let lrw = Lrw::new(vec![cipher], extra, self.sector);
                match encrypt {
                    true => lrw.encrypt_sectors(&ivs, &mut data),
                    false => lrw.decrypt_sectors(&ivs, &mut data),
                }
                return data;
            }
            Mode::Tcw => {
                let mut area = [0; 32];
                area[..extra.len()].copy_from_slice(extra);
                Box::new(TrueCryptCbc::outer(vec![cipher], &area, self.sector))
            }
            Mode::CbcPlain64 => {
                match encrypt {
                    true => cbc::encrypt_sectors(&*cipher, &ivs, self.sector, &mut data),
                    false => cbc::decrypt_sectors(&*cipher, &ivs, self.sector, &mut data),
                }
                return data;
            }
        };
        match encrypt {
            true => mode.encrypt(self.first, &mut data),
            false => mode.decrypt(self.first, &mut data),
        }
        data
    }
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
