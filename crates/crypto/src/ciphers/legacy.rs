//! The 64-bit block ciphers of TrueCrypt 1–4, from well-kept crates. All three look up tables by secret bytes.

use super::Cipher;
use super::wrapped::{portable, wrap};

/// Blowfish (Schneier 1993) as TrueCrypt has it: it reads and writes blocks as two *little-endian* words
/// (Common/Crypto.c, `BlowfishEncryptLE`; cryptsetup calls it `blowfish_le`). Keys of 56 bytes, in the usual order.
pub static BLOWFISH: Cipher =
    Cipher { name: "Blowfish", block_size: 8, key_sizes: &[56], kernels: &[portable(wrap::<blowfish::BlowfishLE>)] };

/// Blowfish with big-endian words, as its author, Linux and everyone but TrueCrypt have it.
pub static BLOWFISH_BE: Cipher = Cipher {
    name: "Blowfish (big-endian)",
    block_size: 8,
    key_sizes: &[16, 24, 32, 56],
    kernels: &[portable(wrap::<blowfish::Blowfish>)],
};

/// CAST5, or CAST-128 (RFC 2144, big-endian). TrueCrypt's keys are 16 bytes.
pub static CAST5: Cipher =
    Cipher { name: "CAST5", block_size: 8, key_sizes: &[16], kernels: &[portable(wrap::<cast5::Cast5>)] };

/// Triple DES in EDE order with three keys (FIPS 46-3): K1 ‖ K2 ‖ K3.
pub static TRIPLE_DES: Cipher =
    Cipher { name: "Triple DES", block_size: 8, key_sizes: &[24], kernels: &[portable(wrap::<des::TdesEde3>)] };
