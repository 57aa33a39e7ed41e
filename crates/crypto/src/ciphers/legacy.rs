//! Ciphers of the nineties: the 64-bit block ciphers of TrueCrypt 1–4, CAST6, which Linux supports, and the DESX of old Windows.
//! All except DES and CAST6 come from well-maintained crates. In all except DES, secret bytes index tables.

pub use super::des::{TRIPLE_DES, WINDOWS_DESX};
use super::wrapped::{held, portable, wrap};
use super::{BlockCipher, Cipher};

/// Blowfish (Schneier 1993), TrueCrypt's variant: it reads and writes blocks as two *little-endian* words
/// (Common/Crypto.c, `BlowfishEncryptLE`; cryptsetup calls it `blowfish_le`). Keys of 56 bytes, in the usual order.
pub static BLOWFISH: Cipher =
    Cipher { name: "Blowfish", block_size: 8, key_sizes: &[56], kernels: &[portable(wrap::<blowfish::BlowfishLE>)] };

/// Blowfish with big-endian words, as used by its author, Linux and everyone but TrueCrypt.
pub static BLOWFISH_BE: Cipher = Cipher {
    name: "Blowfish (big-endian)",
    block_size: 8,
    key_sizes: &BLOWFISH_KEYS,
    kernels: &[portable(wrap::<blowfish::Blowfish>)],
};

/// CAST5, or CAST-128 (RFC 2144, big-endian). TrueCrypt's keys are 16 bytes. Keys of up to 10 bytes have fewer rounds.
pub static CAST5: Cipher =
    Cipher { name: "CAST5", block_size: 8, key_sizes: &CAST5_KEYS, kernels: &[portable(wrap::<cast5::Cast5>)] };

/// CAST6, or CAST-256 (RFC 2612). Secret bytes index its tables, too.
pub static CAST6: Cipher = Cipher {
    name: "CAST6",
    block_size: 16,
    key_sizes: &[16, 20, 24, 28, 32],
    kernels: &[portable(super::cast6::with_key)],
};

/// RC2 (RFC 2268) with `bits` effective bits of its key. It seals old certificate files but encrypts no sectors, so it is in no
/// table.
///
/// # Panics
/// If the key has no byte or more than 128, or `bits` is not from 1 to 1024.
pub fn rc2(key: &[u8], bits: usize) -> Box<dyn BlockCipher> {
    assert!((1..=128).contains(&key.len()) && (1..=1024).contains(&bits), "RC2 takes no such key");
    held(|| rc2::Rc2::new_with_eff_key_len(key, bits))
}

/// 32 to 448 bits.
const BLOWFISH_KEYS: [usize; 53] = from(4);

/// 40 to 128 bits.
const CAST5_KEYS: [usize; 12] = from(5);

/// `N` consecutive sizes, ascending.
const fn from<const N: usize>(first: usize) -> [usize; N] {
    let mut sizes = [0; N];
    let mut i = 0;
    while i < N {
        sizes[i] = first + i;
        i += 1;
    }
    sizes
}
