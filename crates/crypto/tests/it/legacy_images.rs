//! Volumes that TrueCrypt 1 to 4 wrote (cryptsetup's test images): keys, modes and sector numbers are what we think.

use std::fs;
use std::path::Path;
use std::process::Command;

use claviger_crypto::ciphers::{aes, serpent, twofish};
use claviger_crypto::hash::{Hash, RIPEMD160, SHA1};
use claviger_crypto::modes::{Lrw, TrueCryptCbc};
use claviger_crypto::{Acceleration, BlockCipher, Cipher, SectorCipher};
use claviger_testkit::tools;

/// Bytes at the start of the derived key and of the key area for IVs or a tweak key; the ciphers' keys follow.
const MODE_AREA: usize = 32;

/// Offset of a hidden volume's header from the end of its host.
const HIDDEN_HEADER: usize = 1536;

/// Volumes with PBKDF2 at 2000 iterations, as all of them had then.
struct Image {
    file: &'static str,
    password: &'static str,
    hash: &'static Hash,
    /// In the order in which they encrypt.
    ciphers: &'static [&'static Cipher],
    mode: Mode,
    /// Of the header's format.
    version: u16,
    /// Of the FAT in it. Of one image cryptsetup kept the headers only.
    uuid: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Cbc,
    Lrw,
}

const OUTER: &str = "aaaaaaaaaaaa";
const HIDDEN: &str = "bbbbbbbbbbbb";

#[rustfmt::skip]
const IMAGES: &[Image] = &[
    Image { file: "tc_1-sha1-cbc-aes", password: OUTER, hash: &SHA1, ciphers: &[&aes::AES], mode: Mode::Cbc, version: 1,
        uuid: Some("DEAD-BABE") },
    Image { file: "tc_2-ripemd160-cbc-aes-hidden", password: OUTER, hash: &RIPEMD160, ciphers: &[&aes::AES],
        mode: Mode::Cbc, version: 2, uuid: Some("DEAD-BABE") },
    Image { file: "tc_2-ripemd160-cbc-aes-hidden", password: HIDDEN, hash: &RIPEMD160, ciphers: &[&aes::AES],
        mode: Mode::Cbc, version: 2, uuid: Some("CAFE-BABE") },
    Image { file: "tc_2-ripemd160-cbc-aes-twofish", password: OUTER, hash: &RIPEMD160,
        ciphers: &[&twofish::TWOFISH, &aes::AES], mode: Mode::Cbc, version: 2, uuid: None },
    Image { file: "tc_2-ripemd160-lrw-serpent", password: OUTER, hash: &RIPEMD160, ciphers: &[&serpent::SERPENT],
        mode: Mode::Lrw, version: 2, uuid: Some("DEAD-BABE") },
];

#[test]
fn volumes_of_truecrypt_1_to_4_open_and_hold_their_file_systems() {
    let Some(archive) = tools::sample("cryptsetup/images.tar.xz") else { return };
    let (Some(tar), Some(blkid)) = (tools::program("tar"), tools::program("blkid")) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    tools::run(Command::new(tar).arg("-xJSf").arg(archive).arg("-C").arg(dir.path()));
    for image in IMAGES {
        let data = image.open(&fs::read(dir.path().join("tcrypt").join(image.file)).expect("an image"));
        let plain = dir.path().join("plain");
        fs::write(&plain, data).expect("a file");
        if let Some(expected) = image.uuid {
            assert_eq!(uuid(&blkid, &plain), expected, "{} {}", image.file, image.password);
        }
    }
}

impl Image {
    /// The decrypted data area, after the header was decrypted, checked, and encrypted again to the same bytes.
    fn open(&self, image: &[u8]) -> Vec<u8> {
        let hidden = self.password == HIDDEN;
        let at = if hidden { image.len() - HIDDEN_HEADER } else { 0 };
        let (salt, encrypted) = image[at..][..512].split_at(64);
        let mut key = vec![0; MODE_AREA + 3 * 56];
        assert!(self.hash.pbkdf2(self.password.as_bytes(), salt, 2000, &mut key, &|| true));

        let mut header = encrypted.to_vec();
        match self.mode {
            Mode::Cbc => self.cbc(&key).decrypt_header(&mut header),
            Mode::Lrw => self.lrw(&key).decrypt_header(&mut header),
        }
        assert_eq!(&header[..4], b"TRUE", "{} {}", self.file, self.password);
        assert_eq!(u16::from_be_bytes([header[4], header[5]]), self.version, "{}", self.file);
        // Offsets in here are 64 less than in the volume.
        let be64 = |at: usize| u64::from_be_bytes(header[at..][..8].try_into().expect("8 bytes"));
        let (hidden_size, keys) = (be64(28), &header[192..]);
        assert_eq!(header[8..12], crc32fast::hash(keys).to_be_bytes(), "{}", self.file);
        assert_eq!(hidden_size != 0, hidden, "{}", self.file);
        let mut again = header.clone();
        match self.mode {
            Mode::Cbc => self.cbc(&key).encrypt_header(&mut again),
            Mode::Lrw => self.lrw(&key).encrypt_header(&mut again),
        }
        assert!(again == encrypted, "{}", self.file);

        let (start, end) = match hidden {
            true => (at - hidden_size as usize, at),
            false => (512, image.len()),
        };
        let mut data = image[start..end].to_vec();
        match self.mode {
            // In a hidden volume, too, the data area starts with number 1.
            Mode::Cbc => self.cbc(keys).decrypt(1, &mut data),
            Mode::Lrw => self.lrw(keys).decrypt(0, &mut data),
        }
        data
    }

    fn cbc(&self, key: &[u8]) -> TrueCryptCbc {
        let area = key.first_chunk::<MODE_AREA>().expect("the mode's area comes first");
        TrueCryptCbc::outer(self.ciphers(key), area, 512)
    }

    fn lrw(&self, key: &[u8]) -> Lrw {
        Lrw::new(self.ciphers(key), &key[..MODE_AREA], 512)
    }

    fn ciphers(&self, key: &[u8]) -> Vec<Box<dyn BlockCipher>> {
        let mut key = &key[MODE_AREA..];
        let mut next = |cipher: &Cipher| {
            let size = *cipher.key_sizes.iter().max().expect("a cipher has key sizes");
            cipher.with_key(key.split_off(..size).expect("enough key"), Acceleration::On)
        };
        self.ciphers.iter().map(|c| next(c)).collect()
    }
}

fn uuid(blkid: &Path, file: &Path) -> String {
    let output = tools::run(Command::new(blkid).args(["-p", "-o", "value", "-s", "UUID"]).arg(file));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
