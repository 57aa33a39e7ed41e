//! AES (FIPS 197) with keys of 128, 192 and 256 bits.
//!
//! Every kernel runs in constant time: the fast ones use the processor's AES instructions, and the software one is
//! bit-sliced and uses no tables. So does the key schedule.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod fresh;
#[cfg(target_arch = "x86_64")]
pub(crate) mod gcm;
mod s_box;
mod schedule;
mod soft;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::Cipher;

/// Makes AES derive its round keys again for each call, in vector registers, so that memory never holds them. Keys of 24 bytes are
/// an exception. Returns whether this processor supports that (it takes VAES and AVX-512); otherwise nothing changes.
pub fn keys_in_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return fresh::keys_in_registers();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// AES.
pub static AES: Cipher = Cipher {
    name: "AES",
    block_size: 16,
    key_sizes: &[16, 24, 32],
    kernels: &[
        #[cfg(target_arch = "x86_64")]
        fresh::FRESH,
        #[cfg(target_arch = "x86_64")]
        x86::VAES512,
        #[cfg(target_arch = "x86_64")]
        x86::VAES256,
        #[cfg(target_arch = "x86_64")]
        x86::AESNI,
        #[cfg(target_arch = "x86_64")]
        soft::SOFT_AVX2,
        #[cfg(target_arch = "aarch64")]
        aarch64::ARMV8,
        soft::SOFT,
    ],
};
