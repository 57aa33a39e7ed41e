//! What the tests of ciphers share.

use std::io::Write;

use cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use claviger_crypto::{BlockCipher, CIPHERS, Cipher, Kernel};
use claviger_testkit::reference::{self, Block, Keyed};

/// Sector sizes in bytes: the usual ones, the smallest, some that leave every vector width a rest, and some beyond the
/// 4 KiB that the XTS of a plain kernel buffers.
pub const SECTOR_SIZES: &[usize] = &[16, 48, 512, 528, 1024, 4096, 4112];

/// The ciphers with blocks of 16 bytes, each with its slow reference. CAST6 has none: it is a crate's and has vectors.
pub fn ciphers_of_16() -> impl Iterator<Item = (&'static Cipher, &'static reference::Cipher)> {
    CIPHERS.iter().filter(|c| c.block_size == 16 && c.name != "CAST6").map(|c| {
        let slow = reference::cipher(c.name).unwrap_or_else(|| panic!("no reference of {}", c.name));
        (*c, slow)
    })
}

/// The kernels of a cipher that this processor can run. The others are reported: that is the processor's fault and not
/// a missing tool's, so that it is no failure, not even in CI.
pub fn usable(cipher: &'static Cipher) -> impl Iterator<Item = &'static Kernel> {
    cipher.kernels.iter().filter(|kernel| {
        // What is for a whole process to choose has a program of its own: tests/keys_in_registers.rs.
        if !(kernel.usable)() && !kernel.name.ends_with("-registers") {
            // Past the test harness, which would swallow what a passing test prints.
            let _ = writeln!(std::io::stderr(), "SKIPPED {} {}: not on this processor", cipher.name, kernel.name);
        }
        (kernel.usable)()
    })
}

/// The same cipher of the RustCrypto project, as a second reference.
pub fn rust_crypto(name: &str, key: &[u8]) -> Box<dyn Keyed> {
    match (name, key.len()) {
        ("AES", 16) => oracle::<aes::Aes128>(key),
        ("AES", 24) => oracle::<aes::Aes192>(key),
        ("AES", 32) => oracle::<aes::Aes256>(key),
        ("Serpent", _) => oracle::<serpent::Serpent>(key),
        ("Twofish", _) => oracle::<twofish::Twofish>(key),
        ("Camellia", 16) => oracle::<camellia::Camellia128>(key),
        ("Camellia", 24) => oracle::<camellia::Camellia192>(key),
        ("Camellia", 32) => oracle::<camellia::Camellia256>(key),
        ("Kuznyechik", _) => oracle::<kuznyechik::Kuznyechik>(key),
        _ => panic!("no oracle for {name}"),
    }
}

fn oracle<C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + 'static>(key: &[u8]) -> Box<dyn Keyed> {
    Box::new(Oracle(C::new_from_slice(key).expect("the cipher takes keys of this size")))
}

struct Oracle<C>(C);

impl<C: BlockCipherEncrypt + BlockCipherDecrypt> Keyed for Oracle<C> {
    fn encrypt(&self, block: &mut Block) {
        self.0.encrypt_block(block.as_mut_slice().try_into().expect("blocks of 16 bytes"));
    }
    fn decrypt(&self, block: &mut Block) {
        self.0.decrypt_block(block.as_mut_slice().try_into().expect("blocks of 16 bytes"));
    }
}

/// ECB of a kernel, in the direction wanted.
pub fn ecb(cipher: &dyn BlockCipher, encrypt: bool, blocks: &mut [u8]) {
    if encrypt { cipher.encrypt_blocks(blocks) } else { cipher.decrypt_blocks(blocks) }
}

/// XTS of a kernel, in the direction wanted.
pub fn xts(cipher: &dyn BlockCipher, encrypt: bool, tweaks: &[Block], sector: usize, run: &mut [u8]) {
    if encrypt { cipher.xts_encrypt(tweaks, sector, run) } else { cipher.xts_decrypt(tweaks, sector, run) }
}

/// The same for one block of a reference.
pub fn slow(cipher: &dyn Keyed, encrypt: bool, block: &mut Block) {
    if encrypt { cipher.encrypt(block) } else { cipher.decrypt(block) }
}

/// A buffer in which runs lie at any alignment, with guards on both sides.
pub struct Guarded(Vec<u8>);

impl Guarded {
    /// Every alignment that matters: a cache line, and the widest vector.
    pub const ALIGNMENTS: usize = 64;
    const GUARD: usize = 64;
    const GUARD_BYTE: u8 = 0xa5;

    /// For runs of up to `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self(vec![Self::GUARD_BYTE; longest + 2 * Self::GUARD + 2 * Self::ALIGNMENTS])
    }

    /// Lets `crypt` work on a copy of `input` that begins `alignment` bytes after a cache line, and compares.
    /// `what` says what failed.
    pub fn check(
        &mut self,
        alignment: usize,
        input: &[u8],
        expected: &[u8],
        crypt: impl FnOnce(&mut [u8]),
        what: &dyn Fn() -> String,
    ) {
        let start = Self::GUARD + self.0[Self::GUARD..].as_ptr().align_offset(Self::ALIGNMENTS) + alignment;
        let end = start + input.len();
        self.0[start..end].copy_from_slice(input);
        crypt(&mut self.0[start..end]);
        let found = &self.0[start..end];
        if found != expected {
            let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
            panic!("{}: wrong from byte {wrong:?} on", what());
        }
        for guard in [&self.0[start - Self::GUARD..start], &self.0[end..end + Self::GUARD]] {
            assert!(guard == [Self::GUARD_BYTE; Self::GUARD], "{}: wrote beside the run", what());
        }
        self.0[start..end].fill(Self::GUARD_BYTE);
    }
}
