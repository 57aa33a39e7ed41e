//! The ciphers that VeraCrypt adds to TrueCrypt's, from well-maintained crates: Camellia from Japan and Kuznyechik from
//! Russia.
//!
//! Neither is constant-time: secret bytes index Camellia's S-boxes of 256 bytes each and Kuznyechik's tables of 64 KiB.

use super::wrapped::{portable, wrap};
use super::{BlockCipher, Cipher};

/// Camellia (RFC 3713).
pub static CAMELLIA: Cipher =
    Cipher { name: "Camellia", block_size: 16, key_sizes: &[16, 24, 32], kernels: &[portable(camellia)] };

/// Kuznyechik, the cipher of 128-bit blocks of GOST R 34.12-2015 (RFC 7801).
pub static KUZNYECHIK: Cipher = Cipher {
    name: "Kuznyechik",
    block_size: 16,
    key_sizes: &[32],
    kernels: &[portable(wrap::<kuznyechik::Kuznyechik>)],
};

fn camellia(key: &[u8]) -> Box<dyn BlockCipher> {
    match key.len() {
        16 => wrap::<camellia::Camellia128>(key),
        24 => wrap::<camellia::Camellia192>(key),
        _ => wrap::<camellia::Camellia256>(key),
    }
}
