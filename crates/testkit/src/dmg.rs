//! A maker of encrypted disk images of macOS, version 2, written only from documents (vilefault 2007, vfdecrypt.c; encrypteddmg's
//! README). It shares no code with the reader.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use des::TdesEde3;
use hmac::{Hmac, Mac};
use sha1::Sha1;

use crate::random::Random;
use crate::reference::Keyed;
use crate::reference::aes::Aes;

/// Where the data begin, in bytes: as hdiutil places them.
pub const DATA: usize = 0x1_de00;

/// Where the wrapped keys are, in bytes, and how far they are apart.
pub const WRAPPED: usize = 0x200;
/// See [`WRAPPED`].
pub const RECORD: usize = 0x268;

/// Description of an image.
#[derive(Clone)]
pub struct Recipe<'a> {
    /// The passphrases that open it, each with the iterations of PBKDF2.
    pub passphrases: &'a [(&'a str, u32)],
    /// Its plaintext.
    pub plaintext: &'a [u8],
    /// The size of the volume key, in bytes: 16 or 32.
    pub key: usize,
    /// The size of a chunk, in bytes.
    pub chunk: usize,
    /// The size of the AES key that wraps the volume key, in bytes; 0 for triple DES.
    pub wrapping: usize,
    /// Whether the mark `CKIE` follows the keys.
    pub marked: bool,
}

/// An image and its key.
pub struct Image {
    /// The file.
    pub bytes: Vec<u8>,
    /// The data key, then the key for IVs.
    pub volume_key: Vec<u8>,
}

impl Recipe<'_> {
    /// An image as hdiutil makes it today.
    pub fn new<'a>(passphrases: &'a [(&'a str, u32)], plaintext: &'a [u8]) -> Recipe<'a> {
        Recipe { passphrases, plaintext, key: 16, chunk: 512, wrapping: 24, marked: true }
    }

    /// Makes it. The last chunk is filled up with noise.
    ///
    /// # Panics
    /// If there are too many passphrases.
    pub fn make(&self) -> Image {
        assert!(WRAPPED + self.passphrases.len() * RECORD <= DATA);
        let mut random = Random::new(42);
        let volume_key = random.bytes(self.key + 20);
        let mut bytes = vec![0; DATA];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"encrcdsa");
        let numbers = [2, 16, 5, 0x8000_0001, 8 * self.key as u32, 91, 160];
        (0..).zip(numbers).for_each(|(i, number)| put(8 + 4 * i, &number.to_be_bytes()));
        put(36, &random.bytes(16));
        put(52, &(self.chunk as u32).to_be_bytes());
        put(56, &(self.plaintext.len() as u64).to_be_bytes());
        put(64, &(DATA as u64).to_be_bytes());
        put(72, &(self.passphrases.len() as u32).to_be_bytes());
        for (i, (passphrase, iterations)) in self.passphrases.iter().enumerate() {
            let at = WRAPPED + i * RECORD;
            let entry = [&1u32.to_be_bytes()[..], &(at as u64).to_be_bytes(), &(RECORD as u64).to_be_bytes()].concat();
            put(76 + 20 * i, &entry);
            put(at, &self.wrapped(passphrase, *iterations, &volume_key, &mut random));
        }
        let mut data = self.plaintext.to_vec();
        data.extend(random.bytes(data.len().next_multiple_of(self.chunk) - data.len()));
        for (number, chunk) in (0u32..).zip(data.chunks_mut(self.chunk)) {
            let iv = hmac(&volume_key[self.key..], &number.to_be_bytes());
            aes_cbc(&volume_key[..self.key], &iv[..16], chunk);
        }
        bytes.extend(data);
        Image { bytes, volume_key }
    }

    /// The record of a wrapped key.
    fn wrapped(&self, passphrase: &str, iterations: u32, volume_key: &[u8], random: &mut Random) -> Vec<u8> {
        let (salt, iv) = (random.bytes(20), random.bytes(8));
        let (cipher, key_len, block) = match self.wrapping {
            0 => (17, 24, 8),
            len => (0x8000_0001, len, 16),
        };
        let kek = pbkdf2(passphrase.as_bytes(), &salt, iterations, key_len);
        let mut keys = [volume_key, if self.marked { b"CKIE\0" } else { b"" }].concat();
        let padding = block - keys.len() % block;
        keys.resize(keys.len() + padding, padding as u8);
        match self.wrapping {
            0 => triple_des_cbc(&kek, &iv, &mut keys),
            _ => aes_cbc(&kek, &[&iv[..], &[0; 8]].concat(), &mut keys),
        }
        let mut record = vec![0; RECORD];
        let mut put = |at: usize, field: &[u8]| record[at..at + field.len()].copy_from_slice(field);
        let numbers = [
            (0, 103),
            (8, iterations),
            (12, 20),
            (48, 8),
            (84, 8 * key_len as u32),
            (88, cipher),
            (92, 7),
            (96, 6),
            (100, keys.len() as u32),
        ];
        numbers.iter().for_each(|(at, number): &(usize, u32)| put(*at, &number.to_be_bytes()));
        put(16, &salt);
        put(52, &iv);
        put(104, &keys);
        record
    }
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 20] {
    let keyed = Hmac::<Sha1>::new_from_slice(key).expect("any length");
    keyed.chain_update(message).finalize().into_bytes().into()
}

/// RFC 8018, section 5.2.
fn pbkdf2(passphrase: &[u8], salt: &[u8], iterations: u32, len: usize) -> Vec<u8> {
    let block = |number: u32| {
        let mut last = hmac(passphrase, &[salt, &number.to_be_bytes()].concat());
        let mut sum = last;
        for _ in 1..iterations {
            last = hmac(passphrase, &last);
            sum.iter_mut().zip(last).for_each(|(sum, byte)| *sum ^= byte);
        }
        sum
    };
    let mut all: Vec<u8> = (1..).take(len.div_ceil(20)).flat_map(block).collect();
    all.truncate(len);
    all
}

fn aes_cbc(key: &[u8], iv: &[u8], data: &mut [u8]) {
    let aes = Aes::new(key);
    cbc(iv, data, |block: &mut [u8; 16]| aes.encrypt(block));
}

fn triple_des_cbc(key: &[u8], iv: &[u8], data: &mut [u8]) {
    let des = TdesEde3::new_from_slice(key).expect("24 bytes");
    cbc(iv, data, |block: &mut [u8; 8]| des.encrypt_block(block.into()));
}

fn cbc<const N: usize>(iv: &[u8], data: &mut [u8], encrypt: impl Fn(&mut [u8; N])) {
    let mut last: [u8; N] = iv.try_into().expect("an IV of one block");
    for block in data.as_chunks_mut::<N>().0 {
        block.iter_mut().zip(last).for_each(|(byte, last)| *byte ^= last);
        encrypt(block);
        last = *block;
    }
}
