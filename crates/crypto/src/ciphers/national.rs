//! The ciphers that VeraCrypt adds to TrueCrypt's, from well-maintained crates: Camellia from Japan and Kuznyechik from
//! Russia.
//!
//! The crates' code is not constant-time: secret bytes index Camellia's S-boxes of 256 bytes each and Kuznyechik's tables of 64
//! KiB. Our kernels are: for Camellia with AVX2 and AES instructions or GFNI, for Kuznyechik with AVX-512 VBMI and GFNI.

use super::wrapped::{portable, wrap};
use super::{BlockCipher, Cipher};

/// Camellia (RFC 3713).
pub static CAMELLIA: Cipher = Cipher {
    name: "Camellia",
    block_size: 16,
    key_sizes: &[16, 24, 32],
    kernels: &[
        #[cfg(target_arch = "x86_64")]
        super::camellia::VBMI,
        #[cfg(target_arch = "x86_64")]
        super::camellia::GFNI256,
        #[cfg(target_arch = "x86_64")]
        super::camellia::VAES256,
        #[cfg(target_arch = "x86_64")]
        super::camellia::AESNI,
        portable(camellia),
    ],
};

/// Kuznyechik, the cipher of 128-bit blocks of GOST R 34.12-2015 (RFC 7801).
pub static KUZNYECHIK: Cipher = Cipher {
    name: "Kuznyechik",
    block_size: 16,
    key_sizes: &[32],
    kernels: &[
        #[cfg(target_arch = "x86_64")]
        vbmi(super::kuznyechik::with_key),
        portable(wrap::<kuznyechik::Kuznyechik>),
    ],
};

#[cfg(target_arch = "x86_64")]
const fn vbmi(expand: fn(&[u8]) -> Box<dyn BlockCipher>) -> super::Kernel {
    super::Kernel {
        name: "vbmi-gfni",
        usable: crate::vbmi::usable,
        aes_instructions: false,
        constant_time: true,
        expand,
    }
}

fn camellia(key: &[u8]) -> Box<dyn BlockCipher> {
    match key.len() {
        16 => wrap::<camellia::Camellia128>(key),
        24 => wrap::<camellia::Camellia192>(key),
        _ => wrap::<camellia::Camellia256>(key),
    }
}
