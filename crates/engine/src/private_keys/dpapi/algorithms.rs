//! The algorithms of DPAPI, by CryptoAPI's numbers (wincrypt.h, ALG_ID).

use claviger_crypto::ciphers::{aes, legacy};
use claviger_crypto::hash::{self, Hash};
use claviger_crypto::{Acceleration, BlockCipher};

use crate::error::{Error, Result};

/// A hash and the size of its blocks in bytes.
pub type HashAlgorithm = (&'static Hash, usize);

/// The hash with that number. The number of HMAC means SHA-1 in master keys and SHA-512 in blobs; `of_hmac` says which.
pub fn hash(number: u32, of_hmac: HashAlgorithm) -> Result<HashAlgorithm> {
    match number {
        0x8004 => Ok(SHA1),
        0x8009 => Ok(of_hmac),
        0x800c => Ok((&hash::SHA256, 64)),
        0x800d => Ok((&hash::SHA384, 128)),
        0x800e => Ok(SHA512),
        other => Err(Error::unsupported(format!("DPAPI's hash {other:#06x}"))),
    }
}

pub const SHA1: HashAlgorithm = (&hash::SHA1, 64);
pub const SHA512: HashAlgorithm = (&hash::SHA512, 128);

/// A cipher, always in CBC mode.
#[derive(Clone, Copy)]
pub struct CbcCipher {
    /// The key size, in bytes.
    pub key: usize,
    /// The size of a block and of the initialisation vector, in bytes.
    pub block: usize,
}

impl CbcCipher {
    /// The cipher with that number.
    pub fn by_number(number: u32) -> Result<Self> {
        match number {
            0x6603 => Ok(Self { key: 24, block: 8 }),
            0x660e => Ok(Self { key: 16, block: 16 }),
            0x660f => Ok(Self { key: 24, block: 16 }),
            0x6610 => Ok(Self { key: 32, block: 16 }),
            other => Err(Error::unsupported(format!("DPAPI's cipher {other:#06x}"))),
        }
    }

    /// The cipher, keyed with the first bytes of `key`, which must be long enough.
    pub fn with_key(self, key: &[u8]) -> Box<dyn BlockCipher> {
        let cipher = if self.block == 8 { &legacy::TRIPLE_DES } else { &aes::AES };
        cipher.with_key(&key[..self.key], Acceleration::On)
    }
}
