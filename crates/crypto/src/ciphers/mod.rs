//! Block ciphers, each with several kernels, and one table of them all.

pub mod aes;
#[cfg(target_arch = "x86_64")]
mod camellia;
mod cast6;
mod des;
#[cfg(target_arch = "x86_64")]
mod kuznyechik;
pub mod legacy;
pub mod national;
pub mod serpent;
pub mod twofish;
mod wide;
mod wrapped;

pub use crate::tweak::Sums;
use crate::{chain, tweak};

/// Bytes of the buffer for [`BlockCipher::cbc_decrypt`]: one block more than is decrypted at a time. It is small, because modes
/// with a key for each sector decrypt no more at a time, and would clear the rest for nothing.
const CHAIN_ROOM: usize = 16 + 512;

/// The same for [`BlockCipher::cbc_decrypt_abreast`].
const CHAINS_ROOM: usize = 16 + (2 << 10);

/// A block cipher with its key in place. Every method works on whole blocks in place.
///
/// A kernel implements the two ECB methods; if it can keep tweaks in registers it also implements the two XTS methods,
/// and otherwise inherits a version that uses a buffer on the stack.
///
/// # Panics
/// Every method panics if its arguments do not fit each other: kernels read and write through pointers, and one that
/// skipped half a block would leave it in clear.
pub trait BlockCipher: Send + Sync {
    /// Block size in bytes: 16, or 8 for the ciphers of the nineties.
    fn block_size(&self) -> usize;

    /// Encrypts each block by itself. `blocks.len()` is a multiple of the block size.
    fn encrypt_blocks(&self, blocks: &mut [u8]);

    /// Decrypts each block by itself. `blocks.len()` is a multiple of the block size.
    fn decrypt_blocks(&self, blocks: &mut [u8]);

    /// One layer of XTS over `tweaks.len()` sectors of `sector` bytes each. `tweaks` are the sectors' encrypted
    /// tweaks (IEEE 1619-2007, 5.3.2: the value for block 0 of each). Only for ciphers of 16-byte blocks;
    /// `sector` is a multiple of 16 and `run.len()` is `tweaks.len() * sector`.
    fn xts_encrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_sectors(self.block_size(), tweaks, sector, run);
        tweak::through_buffer(tweaks, sector, run, |blocks| self.encrypt_blocks(blocks));
    }

    /// The inverse of [`BlockCipher::xts_encrypt`].
    fn xts_decrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_sectors(self.block_size(), tweaks, sector, run);
        tweak::through_buffer(tweaks, sector, run, |blocks| self.decrypt_blocks(blocks));
    }

    /// Whether XTS runs in registers: see [`SectorCipher::in_registers`](crate::SectorCipher::in_registers).
    fn xts_in_registers(&self) -> bool {
        false
    }

    /// Encrypts each block between two additions of its mask, as LRW does.
    fn masked_encrypt(&self, masks: &Sums<'_>, run: &mut [u8]) {
        assert_masks(self.block_size(), masks, run);
        tweak::add_around(self.block_size(), masks, run, |blocks| self.encrypt_blocks(blocks));
    }

    /// The inverse of [`BlockCipher::masked_encrypt`].
    fn masked_decrypt(&self, masks: &Sums<'_>, run: &mut [u8]) {
        assert_masks(self.block_size(), masks, run);
        tweak::add_around(self.block_size(), masks, run, |blocks| self.decrypt_blocks(blocks));
    }

    /// Decrypts one chain of CBC (NIST SP 800-38A, 6.2). Only as many bytes of `iv` are used as a block has;
    /// `chain.len()` is a multiple of the block size.
    fn cbc_decrypt(&self, iv: &[u8; 16], chain: &mut [u8]) {
        let (block, len) = (self.block_size(), chain.len());
        if len > 0 {
            chain::decrypt::<CHAIN_ROOM>(block, &[*iv], len, chain, |blocks| self.decrypt_blocks(blocks));
        }
    }

    /// Encrypts one chain of CBC, block after block: the inverse of [`BlockCipher::cbc_decrypt`].
    fn cbc_encrypt(&self, iv: &[u8; 16], chain: &mut [u8]) {
        let size = self.block_size();
        assert_blocks(size, chain);
        let mut previous = *iv;
        for block in chain.chunks_exact_mut(size) {
            chain::xor(block, &previous[..size]);
            self.encrypt_blocks(block);
            previous[..size].copy_from_slice(block);
        }
    }

    /// Decrypts many chains of CBC, one of `sector` bytes for each IV. `sector` is a multiple of the block size and `run.len()` is
    /// `ivs.len() * sector`.
    fn cbc_decrypt_abreast(&self, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        chain::decrypt::<CHAINS_ROOM>(self.block_size(), ivs, sector, run, |blocks| self.decrypt_blocks(blocks));
    }

    /// The inverse of [`BlockCipher::cbc_decrypt_abreast`].
    fn cbc_encrypt_abreast(&self, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        chain::assert_chains(self.block_size(), ivs, sector, run);
        match ivs {
            [iv] => self.cbc_encrypt(iv, run),
            _ => chain::encrypt::<{ chain::LANES }>(self.block_size(), ivs, sector, run, |blocks| {
                self.encrypt_blocks(blocks);
            }),
        }
    }
}

/// Panics unless `run` is whole blocks of `block` bytes.
#[track_caller]
fn assert_blocks(block: usize, run: &[u8]) {
    assert!(run.len().is_multiple_of(block), "{} bytes are no whole blocks of {block}", run.len());
}

/// Panics unless `run` is one sector of `sector` bytes per tweak, in whole XTS blocks.
#[track_caller]
fn assert_sectors(block: usize, tweaks: &[[u8; 16]], sector: usize, run: &[u8]) {
    assert!(block == 16, "XTS takes blocks of 16 bytes, not of {block}");
    let (tweaks, len) = (tweaks.len(), run.len());
    assert!(sector > 0 && sector.is_multiple_of(16), "a sector of {sector} bytes is no whole blocks of 16");
    assert!(tweaks.checked_mul(sector) == Some(len), "{len} bytes are not {tweaks} sectors of {sector}");
}

/// Panics unless `run` is whole blocks of `block` bytes, each with a mask.
#[track_caller]
fn assert_masks(block: usize, masks: &Sums<'_>, run: &[u8]) {
    assert_blocks(block, run);
    assert!(masks.first < Sums::GROUP && masks.groups.len() * Sums::GROUP >= masks.first + run.len() / block);
}

/// Whether a cipher may use the processor's AES instructions (a setting that TrueCrypt has).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acceleration {
    /// The fastest kernel this processor can run.
    #[default]
    On,
    /// The fastest kernel without AES instructions.
    Off,
}

/// One implementation of a cipher.
pub struct Kernel {
    /// A short name: `vaes512`, `aesni`, `portable` …
    pub name: &'static str,
    /// Whether this processor can run it.
    pub usable: fn() -> bool,
    /// Whether it uses AES instructions.
    pub aes_instructions: bool,
    /// Whether its timing is independent of key and data: no table look-ups, no branches on secrets.
    pub constant_time: bool,
    /// Expands a key whose length is one of the cipher's key sizes, for a processor that can run the kernel.
    expand: fn(&[u8]) -> Box<dyn BlockCipher>,
}

impl Kernel {
    /// Expands a key whose length is one of the cipher's key sizes.
    ///
    /// # Panics
    /// If this processor cannot run the kernel, whose use of instructions relies on this check.
    pub fn with_key(&self, key: &[u8]) -> Box<dyn BlockCipher> {
        assert!((self.usable)(), "this processor cannot run {}", self.name);
        (self.expand)(key)
    }
}

/// A block cipher: its name, sizes and kernels, fastest first. The last kernel runs everywhere.
pub struct Cipher {
    /// The name as TrueCrypt prints it: `AES`, `Serpent`, `Triple DES` …
    pub name: &'static str,
    /// Block size in bytes.
    pub block_size: usize,
    /// Key sizes in bytes.
    pub key_sizes: &'static [usize],
    /// Kernels, the fastest first.
    pub kernels: &'static [Kernel],
}

/// Every supported cipher.
pub static CIPHERS: &[&Cipher] = &[
    &aes::AES,
    &serpent::SERPENT,
    &twofish::TWOFISH,
    &national::CAMELLIA,
    &national::KUZNYECHIK,
    &legacy::BLOWFISH,
    &legacy::BLOWFISH_BE,
    &legacy::CAST5,
    &legacy::CAST6,
    &legacy::TRIPLE_DES,
];

impl Cipher {
    /// The fastest kernel that this processor can run and `acceleration` allows.
    pub fn best(&self, acceleration: Acceleration) -> &'static Kernel {
        let allowed = |k: &&Kernel| (acceleration == Acceleration::On || !k.aes_instructions) && (k.usable)();
        self.kernels.iter().find(allowed).expect("the last kernel of each cipher runs everywhere")
    }

    /// Expands `key` for the best kernel.
    ///
    /// # Panics
    /// If `key.len()` is not one of `key_sizes`: key sizes come from a format's table, never from input.
    pub fn with_key(&self, key: &[u8], acceleration: Acceleration) -> Box<dyn BlockCipher> {
        assert!(self.key_sizes.contains(&key.len()), "{} takes no key of {} bytes", self.name, key.len());
        self.best(acceleration).with_key(key)
    }
}
