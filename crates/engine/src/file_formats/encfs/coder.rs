//! How blocks, short pieces and checksums are computed with a key (SSL_Cipher.cpp of EncFS 1.9.5).

use claviger_crypto::ciphers::{BlockCipher, Cipher, aes, legacy, national};
use claviger_crypto::hash::SHA1;
use claviger_crypto::{Acceleration, Secret};

/// A cipher of a folder, with the size of its key.
#[derive(Clone, Copy)]
pub(super) struct Suite {
    pub cipher: &'static Cipher,
    /// The name to show.
    pub name: &'static str,
    /// Bytes of a key.
    pub key: usize,
    /// The version of its interface: 3 derives IVs with an HMAC, 1 and 2 with multiplications.
    pub version: u64,
}

/// Ciphers by the names of their interfaces, with the names to show, and what sizes of keys are multiples of, in bits.
const CIPHERS: [(&str, &str, &Cipher, u64); 3] = [
    ("ssl/aes", "AES", &aes::AES, 64),
    ("ssl/blowfish", "Blowfish", &legacy::BLOWFISH_BE, 32),
    ("ssl/camellia", "Camellia", &national::CAMELLIA, 64),
];

/// Sizes of keys, in bits.
const KEY_BITS: std::ops::RangeInclusive<u64> = 128..=256;

/// Versions of the ciphers' interfaces.
const VERSIONS: std::ops::RangeInclusive<u64> = 1..=3;

/// The most bytes that a stream turns around together.
const FLIPPED: usize = 64;

/// Bytes of a whole checksum.
const CHECKSUM: usize = 20;

/// Why there is no such [`Suite`].
pub(super) enum NoSuite {
    Unknown,
    KeySize,
}

impl Suite {
    /// The cipher with this interface.
    pub fn of(name: &str, version: u64, key_bits: u64) -> Result<Self, NoSuite> {
        let known = CIPHERS.iter().find(|(known, ..)| *known == name).filter(|_| VERSIONS.contains(&version));
        let (_, name, cipher, step) = known.ok_or(NoSuite::Unknown)?;
        if !KEY_BITS.contains(&key_bits) || !key_bits.is_multiple_of(*step) {
            return Err(NoSuite::KeySize);
        }
        Ok(Self { cipher, name, key: key_bits as usize / 8, version })
    }

    /// Bytes of a key with its IV.
    pub fn len(&self) -> usize {
        self.key + self.cipher.block_size
    }
}

/// A key in place.
pub(super) struct Coder {
    cipher: Box<dyn BlockCipher>,
    key: Secret,
    iv: Secret,
    old_ivs: bool,
}

impl Coder {
    /// `key` is followed by its IV.
    pub fn new(suite: &Suite, key: &Secret, acceleration: Acceleration) -> Self {
        let (key, iv) = key.split_at(suite.key);
        let cipher = suite.cipher.with_key(key, acceleration);
        Self { cipher, key: Secret::copy_from(key), iv: Secret::copy_from(iv), old_ivs: suite.version < 3 }
    }

    pub fn block_size(&self) -> usize {
        self.cipher.block_size()
    }

    /// The checksum of data (`MAC_64`), with what the names in a folder depend on, if they do.
    pub fn checksum(&self, parts: &[&[u8]], chain: Option<u64>) -> u64 {
        let chain = chain.map(u64::to_le_bytes);
        let parts = [parts, &[chain.as_ref().map_or(&[][..], |chain| &chain[..])]].concat();
        let mut whole = [0; CHECKSUM];
        SHA1.hmac(&self.key, &parts, &mut whole);
        // The last byte does not count.
        let mut folded = [0; 8];
        whole[..CHECKSUM - 1].iter().enumerate().for_each(|(i, byte)| folded[i % 8] ^= byte);
        u64::from_be_bytes(folded)
    }

    /// The IV for a number (`setIVec`).
    fn iv(&self, seed: u64) -> [u8; 16] {
        let mut iv = [0; 16];
        if self.old_ivs {
            iv[..self.iv.len()].copy_from_slice(&self.iv);
            // Only 32 bits count (`setIVec_old`).
            let masks = old_masks(seed as u32);
            iv[..self.iv.len()].iter_mut().zip(masks).for_each(|(byte, mask)| *byte ^= mask);
            return iv;
        }
        let mut whole = [0; CHECKSUM];
        SHA1.hmac(&self.key, &[&self.iv, &seed.to_le_bytes()], &mut whole);
        iv[..self.iv.len()].copy_from_slice(&whole[..self.iv.len()]);
        iv
    }

    /// Decrypts whole blocks, as one chain of CBC.
    pub fn decrypt_blocks(&self, seed: u64, data: &mut [u8]) {
        self.cipher.cbc_decrypt(&self.iv(seed), data);
    }

    /// The inverse of [`Coder::decrypt_blocks`].
    pub fn encrypt_blocks(&self, seed: u64, data: &mut [u8]) {
        self.cipher.cbc_encrypt(&self.iv(seed), data);
    }

    /// Decrypts data of any length (`streamDecode`): CFB twice, with the bytes turned around in between.
    pub fn decrypt_stream(&self, seed: u64, data: &mut [u8]) {
        self.cfb::<true>(seed.wrapping_add(1), data);
        unmix(data);
        data.chunks_mut(FLIPPED).for_each(<[u8]>::reverse);
        self.cfb::<true>(seed, data);
        unmix(data);
    }

    /// The inverse of [`Coder::decrypt_stream`].
    pub fn encrypt_stream(&self, seed: u64, data: &mut [u8]) {
        mix(data);
        self.cfb::<false>(seed, data);
        data.chunks_mut(FLIPPED).for_each(<[u8]>::reverse);
        mix(data);
        self.cfb::<false>(seed.wrapping_add(1), data);
    }

    /// CFB with whole blocks (NIST SP 800-38A, 6.3).
    fn cfb<const DECRYPT: bool>(&self, seed: u64, data: &mut [u8]) {
        let size = self.block_size();
        let mut previous = self.iv(seed);
        for part in data.chunks_mut(size) {
            let mut stream = previous;
            self.cipher.encrypt_blocks(&mut stream[..size]);
            if DECRYPT {
                previous[..part.len()].copy_from_slice(part);
            }
            part.iter_mut().zip(stream).for_each(|(byte, mask)| *byte ^= mask);
            if !DECRYPT {
                previous[..part.len()].copy_from_slice(part);
            }
        }
    }
}

/// Each byte becomes the sum of those up to it (`shuffleBytes`).
fn mix(data: &mut [u8]) {
    for i in 1..data.len() {
        data[i] ^= data[i - 1];
    }
}

/// The inverse of [`mix`].
fn unmix(data: &mut [u8]) {
    for i in (1..data.len()).rev() {
        data[i] ^= data[i - 1];
    }
}

/// What an IV of before version 3 is xored with.
fn old_masks(seed: u32) -> [u8; 16] {
    let [a, b, c, d] = seed.wrapping_mul(0x060a_4011).to_be_bytes();
    let [e, f, g, h] = (seed ^ 0xd3fe_a11c).wrapping_mul(0x0221_040d).to_be_bytes();
    [a, f, c, h, e, b, g, d, d, g, b, e, a, f, c, h]
}
