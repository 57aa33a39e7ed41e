//! The key derivations that TrueCrypt and VeraCrypt ever had, as plain data, and the cost of each.

use std::time::Duration;

use claviger_crypto::argon2::{self, Params};
use claviger_crypto::hash::{self, Hash};
use claviger_crypto::pool::Pool;

use crate::error::{Error, ErrorKind, Result};
use crate::password_strength::GuessWork;

/// A key derivation.
pub(super) struct Kdf {
    /// The program's name for it: the hash of PBKDF2, or the derivation's own name.
    pub name: &'static str,
    pub algorithm: Algorithm,
    /// Whether new volumes can use it.
    pub creatable: bool,
    /// Whether it was dropped before TrueCrypt 6.0, so that only headers at the positions of older versions use it.
    pub old: bool,
}

/// The algorithm.
pub(super) enum Algorithm {
    /// PBKDF2 with HMAC of a hash (RFC 8018, 5.2).
    Pbkdf2 {
        hash: &'static Hash,
        /// The iterations for volumes.
        volume: Rounds,
        /// The iterations for systems, partitions and disks that a boot loader opens.
        system: Rounds,
        /// The estimated time for one iteration of one piece on a current processor, in nanoseconds. Only ratios matter.
        nanoseconds: u64,
    },
    /// Argon2id (RFC 9106) with one lane, for volumes only.
    Argon2id,
}

/// A password shorter than this, in bytes, requires a PIM that makes a derivation no cheaper than usual (VeraCrypt 1.26,
/// Password.h, `PASSWORD_LEN_WARNING`).
const SHORT_PASSWORD: usize = 20;

/// The iterations, which VeraCrypt's PIM changes: `default` without a PIM, `base` plus the PIM times `per_pim` with one.
pub(super) struct Rounds {
    default: u32,
    base: u32,
    per_pim: u32,
}

impl Rounds {
    /// TrueCrypt has no PIM.
    const fn fixed(default: u32) -> Self {
        Self { default, base: default, per_pim: 0 }
    }

    const fn veracrypt(default: u32, base: u32, per_pim: u32) -> Self {
        Self { default, base, per_pim }
    }

    fn with(&self, pim: Option<u32>) -> u32 {
        match pim {
            None | Some(0) => self.default,
            Some(pim) => self.base.saturating_add(pim.saturating_mul(self.per_pim)),
        }
    }
}

/// The largest PIM: with a larger one the iterations would not fit 31 bits (VeraCrypt 1.26, Password.h, `MAX_PIM_VALUE`).
pub(super) const PIM_MAX: u32 = 2_147_468;

const fn truecrypt(hash: &'static Hash, iterations: u32, system: u32, nanoseconds: u64) -> Kdf {
    Kdf {
        name: hash.name,
        algorithm: Algorithm::Pbkdf2 {
            hash,
            volume: Rounds::fixed(iterations),
            system: Rounds::fixed(system),
            nanoseconds,
        },
        creatable: true,
        old: false,
    }
}

/// TrueCrypt's key derivations (7.1a, Pkcs5.c, `get_pkcs5_iteration_count`), its own default first.
pub(super) static TRUECRYPT: &[Kdf] = &[
    truecrypt(&hash::RIPEMD160, 2000, 1000, RIPEMD160_TAKES),
    truecrypt(&hash::SHA512, 1000, 1000, SHA512_TAKES),
    truecrypt(&hash::WHIRLPOOL, 1000, 1000, WHIRLPOOL_TAKES),
    Kdf { creatable: false, old: true, ..truecrypt(&hash::SHA1, 2000, 1000, SHA1_TAKES) },
];

/// With SHA-512 and Whirlpool a system has as many iterations as any volume. With the others it has fewer, since boot loaders of
/// old computers are slow.
const LIKE_VOLUMES: Rounds = Rounds::veracrypt(500_000, 15_000, 1000);

const FEW_FOR_SYSTEMS: Rounds = Rounds::veracrypt(200_000, 0, 2048);

const fn veracrypt(hash: &'static Hash, system: Rounds, nanoseconds: u64) -> Kdf {
    Kdf {
        name: hash.name,
        algorithm: Algorithm::Pbkdf2 { hash, volume: LIKE_VOLUMES, system, nanoseconds },
        creatable: true,
        old: false,
    }
}

/// VeraCrypt's key derivations (1.26, Pkcs5.c, `get_pkcs5_iteration_count`), its own default first. 1.26 dropped RIPEMD-160.
pub(super) static VERACRYPT: &[Kdf] = &[
    veracrypt(&hash::SHA512, LIKE_VOLUMES, SHA512_TAKES),
    veracrypt(&hash::SHA256, FEW_FOR_SYSTEMS, SHA256_TAKES),
    veracrypt(&hash::BLAKE2S_256, FEW_FOR_SYSTEMS, BLAKE2S_256_TAKES),
    veracrypt(&hash::WHIRLPOOL, LIKE_VOLUMES, WHIRLPOOL_TAKES),
    veracrypt(&hash::STREEBOG_512, FEW_FOR_SYSTEMS, STREEBOG_512_TAKES),
    Kdf { name: "Argon2id", algorithm: Algorithm::Argon2id, creatable: true, old: false },
    Kdf {
        name: hash::RIPEMD160.name,
        algorithm: Algorithm::Pbkdf2 {
            hash: &hash::RIPEMD160,
            volume: Rounds::veracrypt(655_331, 15_000, 1000),
            system: Rounds::veracrypt(327_661, 0, 2048),
            nanoseconds: RIPEMD160_TAKES,
        },
        creatable: false,
        old: false,
    },
];

// Measured with this program's hashes on an AMD EPYC with SHA instructions and AVX-512.
const SHA1_TAKES: u64 = 140;
const SHA256_TAKES: u64 = 135;
const SHA512_TAKES: u64 = 450;
const RIPEMD160_TAKES: u64 = 270;
const BLAKE2S_256_TAKES: u64 = 275;
const WHIRLPOOL_TAKES: u64 = 530;
const STREEBOG_512_TAKES: u64 = 1470;
/// Nanoseconds for a KiB in a pass.
const ARGON2ID_TAKES: u64 = 1000;

/// Argon2id's default PIM, and the passes and memory in MiB that follow from a PIM (VeraCrypt 1.26.29, Pkcs5.c,
/// `get_argon2_params`).
mod by_pim {
    pub const DEFAULT: u32 = 12;

    pub fn mebibytes(pim: u32) -> u32 {
        64 + (pim - 1).min(30) * 32
    }

    pub fn passes(pim: u32) -> u32 {
        if pim <= 31 { 3 + (pim - 1) / 3 } else { 13 + (pim - 31) }
    }

    /// How many bytes are derived, whatever the cipher needs: Argon2id's output depends on its length, and VeraCrypt always derives
    /// enough for three ciphers (`GetMaxPkcs5OutSize`).
    pub const OUTPUT: usize = 192;
}

/// A key derivation with its final parameters.
#[derive(Clone, Copy)]
pub(super) struct Derivation {
    pub kdf: &'static Kdf,
    /// Iterations, or passes over the memory.
    pub iterations: u32,
    /// How much memory it fills, in bytes, where that matters.
    pub memory: Option<u64>,
}

impl Kdf {
    /// The derivation for a volume, or for a system, under a PIM.
    pub fn derivation(&'static self, pim: Option<u32>, system: bool) -> Derivation {
        match &self.algorithm {
            Algorithm::Pbkdf2 { volume, system: of_systems, .. } => {
                let rounds = if system { of_systems } else { volume };
                Derivation { kdf: self, iterations: rounds.with(pim), memory: None }
            }
            Algorithm::Argon2id => {
                let pim = pim.filter(|pim| *pim > 0).unwrap_or(by_pim::DEFAULT);
                let memory = Some(u64::from(by_pim::mebibytes(pim)) << 20);
                Derivation { kdf: self, iterations: by_pim::passes(pim), memory }
            }
        }
    }
}

impl Kdf {
    /// Whether encrypted systems can use it: boot loaders have no memory for Argon2id.
    pub fn of_systems(&self) -> bool {
        match self.algorithm {
            Algorithm::Pbkdf2 { .. } => true,
            Algorithm::Argon2id => false,
        }
    }

    /// The smallest PIM of a new header of a volume or a system, with a passphrase of `len` bytes (VeraCrypt 1.26, Password.c,
    /// `CheckPasswordLength`). For short passphrases it is the PIM of the usual cost.
    pub fn least_pim(&self, len: usize, system: bool) -> u32 {
        match &self.algorithm {
            _ if len >= SHORT_PASSWORD => 1,
            Algorithm::Pbkdf2 { system: rounds, .. } if system && rounds.base == 0 => 98,
            Algorithm::Pbkdf2 { .. } => 485,
            Algorithm::Argon2id => by_pim::DEFAULT,
        }
    }
}

impl Derivation {
    /// Whether both derive the same key from the same salt.
    pub fn same_as(&self, other: &Self) -> bool {
        std::ptr::eq(self.kdf, other.kdf) && self.iterations == other.iterations
    }

    /// The work of one guess for a header key of this length.
    pub fn guess_work(&self, key_len: usize) -> GuessWork {
        match &self.kdf.algorithm {
            Algorithm::Pbkdf2 { hash, .. } => GuessWork::Pbkdf2 {
                hash: hash.name,
                iterations: self.iterations,
                blocks: key_len.div_ceil(hash.size) as u32,
            },
            Algorithm::Argon2id => GuessWork::Argon2 {
                variant: self.kdf.name,
                passes: self.iterations,
                memory_kib: (self.memory.unwrap_or(0) >> 10) as u32,
            },
        }
    }

    /// How many bytes to derive if `needed` are used: a derivation's output may depend on its length.
    pub fn output(&self, needed: usize) -> usize {
        match &self.kdf.algorithm {
            Algorithm::Pbkdf2 { .. } => needed,
            Algorithm::Argon2id => needed.max(by_pim::OUTPUT),
        }
    }

    /// The size of an independently derived piece of the key, in bytes. Threads share the work in such pieces.
    pub fn piece(&self, key_len: usize) -> usize {
        match &self.kdf.algorithm {
            Algorithm::Pbkdf2 { hash, .. } => (hash.blocks_at_once() * hash.size).min(key_len),
            Algorithm::Argon2id => key_len,
        }
    }

    /// The estimated time for one piece on one thread, in nanoseconds.
    pub fn effort(&self) -> u64 {
        match &self.kdf.algorithm {
            Algorithm::Pbkdf2 { nanoseconds, .. } => u64::from(self.iterations) * nanoseconds,
            Algorithm::Argon2id => u64::from(self.iterations) * self.memory.unwrap_or(0) / 1024 * ARGON2ID_TAKES,
        }
    }

    /// Derives piece number `index`, counted from 0, into `out`. Returns false if `go_on` stopped it.
    ///
    /// Argon2id uses at most `memory` bytes.
    ///
    /// # Errors
    /// `TooLittleMemory`.
    pub fn derive(
        &self,
        password: &[u8],
        salt: &[u8],
        index: usize,
        out: &mut [u8],
        memory: Option<u64>,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool> {
        match &self.kdf.algorithm {
            Algorithm::Pbkdf2 { hash, .. } => {
                let first = index * hash.blocks_at_once() + 1;
                Ok(hash.pbkdf2_blocks(password, salt, self.iterations, first as u32, out, go_on))
            }
            Algorithm::Argon2id => {
                let memory_kib = (self.memory.unwrap_or(0) >> 10) as u32;
                let params = Params { memory_kib, passes: self.iterations, lanes: 1, ..Params::default() };
                let available = crate::memory::available().min(memory.unwrap_or(u64::MAX));
                // One lane occupies one thread.
                match params.derive(password, salt, available, &Pool::new(1, Duration::ZERO), go_on, out) {
                    Ok(()) => Ok(true),
                    Err(argon2::Argon2Error::Stopped) => Ok(false),
                    Err(error) => Err(too_little_memory(error)),
                }
            }
        }
    }
}

fn too_little_memory(error: argon2::Argon2Error) -> Error {
    match error {
        argon2::Argon2Error::TooLittleMemory { needed, available } => {
            Error::new(ErrorKind::TooLittleMemory { needed, available }).hint(
                "Argon2id could not be tried. Free some memory, allow more, or name the volume's key derivation if \
                 it is another one.",
            )
        }
        other => Error::misuse(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iterations(table: &'static [Kdf], name: &str, pim: Option<u32>, system: bool) -> u32 {
        table.iter().find(|k| k.name == name).expect("it is in the table").derivation(pim, system).iterations
    }

    #[test]
    fn the_pim_changes_veracrypts_iterations_only() {
        assert_eq!(iterations(VERACRYPT, "SHA-512", None, false), 500_000);
        assert_eq!(iterations(VERACRYPT, "SHA-512", Some(0), true), 500_000);
        assert_eq!(iterations(VERACRYPT, "SHA-512", Some(485), false), 500_000);
        assert_eq!(iterations(VERACRYPT, "SHA-512", Some(1), true), 16_000);
        assert_eq!(iterations(VERACRYPT, "SHA-256", None, true), 200_000);
        assert_eq!(iterations(VERACRYPT, "SHA-256", Some(98), true), 98 * 2048);
        assert_eq!(iterations(VERACRYPT, "RIPEMD-160", None, false), 655_331);
        assert_eq!(iterations(VERACRYPT, "RIPEMD-160", None, true), 327_661);
        assert_eq!(iterations(VERACRYPT, "Whirlpool", Some(PIM_MAX), false), 2_147_483_000);
        assert_eq!(iterations(TRUECRYPT, "RIPEMD-160", Some(7), false), 2000);
    }

    #[test]
    fn the_pim_sets_argon2ids_memory_and_passes() {
        let kdf = VERACRYPT.iter().find(|k| k.name == "Argon2id").expect("it is in the table");
        let with = |pim| {
            let derivation = kdf.derivation(pim, false);
            (derivation.memory.expect("it takes memory") >> 20, derivation.iterations)
        };
        // VeraCrypt's documentation, "PIM".
        assert_eq!(with(None), (416, 6));
        assert_eq!(with(Some(0)), (416, 6));
        assert_eq!(with(Some(1)), (64, 3));
        assert_eq!(with(Some(12)), (416, 6));
        assert_eq!(with(Some(31)), (1024, 13));
        assert_eq!(with(Some(32)), (1024, 14));
        assert_eq!(with(Some(PIM_MAX)), (1024, PIM_MAX - 18));
    }

    #[test]
    fn names_are_told_apart() {
        for table in [TRUECRYPT, VERACRYPT] {
            for (i, kdf) in table.iter().enumerate() {
                assert!(table[..i].iter().all(|k| k.name != kdf.name));
            }
        }
    }
}
