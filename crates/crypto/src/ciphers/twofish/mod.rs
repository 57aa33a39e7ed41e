//! Twofish (Schneier, Kelsey, Whiting, Wagner, Hall, Ferguson 1998) with keys of 16, 24 or 32 bytes.
//!
//! **The table kernel is not constant time:** secret bytes index its tables, so an attacker who shares a
//! cache with it may learn about the key. The kernel for AVX-512 VBMI and GFNI is constant-time: it reads whole
//! S-boxes. For either kernel, bytes of the key index tables during key expansion.

mod key;
mod tables;
#[cfg(target_arch = "x86_64")]
mod vbmi;

pub use self::tables::interleaved;
use super::{BlockCipher, Cipher, Kernel};

/// Twofish.
pub static TWOFISH: Cipher = Cipher {
    name: "Twofish",
    block_size: 16,
    key_sizes: &[16, 24, 32],
    kernels: &[
        #[cfg(target_arch = "x86_64")]
        kernel("vbmi-gfni", crate::vbmi::usable, true, vbmi::with_key),
        kernel("portable", || true, false, interleaved::<{ tables::BEST }>),
    ],
};

const fn kernel(
    name: &'static str,
    usable: fn() -> bool,
    constant_time: bool,
    expand: fn(&[u8]) -> Box<dyn BlockCipher>,
) -> Kernel {
    Kernel { name, usable, aes_instructions: false, constant_time, expand }
}
