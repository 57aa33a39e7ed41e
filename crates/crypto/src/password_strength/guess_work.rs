//! What one guess of a password costs: the work of each key derivation, and how fast a graphics card does it.
//!
//! The rates are those that hashcat's own benchmark published for whole cards. From them, the cost of a key derivation follows by
//! counting: how many compressions of the hash a guess takes, or how many bytes it moves to and from memory. The tests compare that
//! with what the benchmarks say about whole formats.

use std::fmt;

/// The work of one guess of a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuessWork {
    /// PBKDF2 with HMAC (RFC 8018, 5.2).
    Pbkdf2 {
        /// The hash's name: `SHA-512`.
        hash: &'static str,
        /// Iterations.
        iterations: u32,
        /// How many outputs of the hash the key takes. Each costs all iterations.
        blocks: u32,
    },
    /// Argon2 (RFC 9106).
    Argon2 {
        /// Its name: `Argon2id`.
        variant: &'static str,
        /// Passes over the memory.
        passes: u32,
        /// The memory, in KiB.
        memory_kib: u32,
    },
    /// scrypt (RFC 7914) with a parallelization of 1.
    Scrypt {
        /// The cost parameter N.
        n: u64,
        /// The block size parameter r.
        r: u64,
    },
    /// A hash, applied to its own output.
    Hash {
        /// The hash's name.
        hash: &'static str,
        /// How often.
        times: u64,
        /// How many of the hash's blocks one of these takes.
        compressions: u64,
    },
}

/// A graphics card of somebody who guesses.
#[derive(Clone, Debug)]
pub struct GraphicsCard {
    /// Its name.
    pub name: &'static str,
    /// The bandwidth of its memory, in bytes per second.
    pub memory_bandwidth: f64,
    /// Compressions per second of each hash by name. Other hashes count as the first one: the estimate must not suggest that
    /// a rare hash is slow.
    pub compressions: &'static [(&'static str, f64)],
}

/// NVIDIA's GeForce RTX 4090: 1008 GB/s (NVIDIA Ada GPU Architecture, appendix A).
///
/// SHA-1 and SHA-256 as in hashcat 6.2.6's benchmark (<https://gist.github.com/Chick3nman/32e662a5bb63bc4f51b847bb422222fd>). SHA-512
/// is not in the part of it that could be checked; it agrees with what is there of PBKDF2 with SHA-512. RIPEMD-160, Whirlpool and Streebog are 2.23 times the RTX
/// 3090's of hashcat 6.1.1 (<https://gist.github.com/Chick3nman/e4fcee00cb6d82874dace72106d73fef>), as SHA-1 is; a hash of hashcat's
/// Streebog benchmark takes three compressions. BLAKE2s is to SHA-256 as BLAKE2b is to SHA-512 there.
pub static RTX_4090: GraphicsCard = GraphicsCard {
    name: "GeForce RTX 4090",
    memory_bandwidth: 1008e9,
    compressions: &[
        ("SHA-1", 50_638.7e6),
        ("SHA-256", 21_975.5e6),
        ("SHA-512", 7_483.4e6),
        ("RIPEMD-160", 33_600e6),
        ("Whirlpool", 3_320e6),
        ("Streebog", 1_480e6),
        ("BLAKE2s-256", 43_900e6),
    ],
};

impl GuessWork {
    /// How many guesses per second the card makes.
    pub fn per_second(&self, card: &GraphicsCard) -> f64 {
        match *self {
            Self::Pbkdf2 { hash, iterations, blocks } => {
                let each = f64::from(iterations) * f64::from(blocks) * compressions_of_hmac(hash);
                card.rate(hash) / each.max(1.0)
            }
            // Each pass reads and writes all of the memory.
            Self::Argon2 { passes, memory_kib, .. } => {
                card.memory_bandwidth / (f64::from(passes) * f64::from(memory_kib) * 1024.0 * 2.0).max(1.0)
            }
            // N blocks of 128 r bytes are written and then read, each beside the block that is being mixed.
            Self::Scrypt { n, r } => card.memory_bandwidth / (n as f64 * r as f64 * 128.0 * 4.0).max(1.0),
            Self::Hash { hash, times, compressions } => card.rate(hash) / (times as f64 * compressions as f64).max(1.0),
        }
    }
}

impl GraphicsCard {
    fn rate(&self, hash: &str) -> f64 {
        let known = self.compressions.iter().find(|(name, _)| *name == hash);
        known.or(self.compressions.first()).map_or(f64::INFINITY, |(_, rate)| *rate)
    }
}

/// The compressions of an iteration of HMAC, whose key pads are computed once: both hashes begin with one more block, and those whose
/// digest fills a block need more of them to end.
fn compressions_of_hmac(hash: &str) -> f64 {
    match hash {
        // A block of padding with the length.
        "Whirlpool" => 4.0,
        // A block of padding, the length, and the sum of all blocks (RFC 6986, 6).
        "Streebog" => 8.0,
        _ => 2.0,
    }
}

/// For people: `Argon2id, 1 GiB`.
impl fmt::Display for GuessWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = |kib: u64| match kib {
            kib if kib >= 1 << 20 => format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)).replace(".0 ", " "),
            kib if kib >= 100 << 10 => format!("{:.0} MiB", kib as f64 / 1024.0),
            kib => format!("{:.1} MiB", kib as f64 / 1024.0).replace(".0 ", " "),
        };
        match *self {
            Self::Pbkdf2 { hash, iterations, .. } => write!(f, "PBKDF2 with {hash}, {iterations} iterations"),
            Self::Argon2 { variant, memory_kib, .. } => write!(f, "{variant}, {}", memory(memory_kib.into())),
            Self::Scrypt { n, r } => write!(f, "scrypt, {}", memory(n.saturating_mul(r) / 8)),
            Self::Hash { hash, times: 1, .. } => write!(f, "{hash} once"),
            Self::Hash { hash, times, .. } => write!(f, "{hash}, {times} times"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same card's rates that hashcat 6.1.1 published: <https://gist.github.com/Chick3nman/e4fcee00cb6d82874dace72106d73fef>.
    static RTX_3090: GraphicsCard = GraphicsCard {
        name: "GeForce RTX 3090",
        memory_bandwidth: 936e9,
        compressions: &[
            ("SHA-1", 22_757.6e6),
            ("SHA-256", 9_713.2e6),
            ("SHA-512", 2_863.9e6),
            ("RIPEMD-160", 15_091.4e6),
            ("Whirlpool", 1_489.6e6),
            ("Streebog", 3.0 * 220.6e6),
        ],
    };

    fn pbkdf2(hash: &'static str, iterations: u32, key: u32, digest: u32) -> GuessWork {
        GuessWork::Pbkdf2 { hash, iterations, blocks: key.div_ceil(digest) }
    }

    fn argon2id(passes: u32, memory_kib: u32) -> GuessWork {
        GuessWork::Argon2 { variant: "Argon2id", passes, memory_kib }
    }

    /// What the benchmarks say about whole modes, of which the rates above know nothing.
    #[test]
    fn whole_modes_of_hashcat_are_within_a_factor_of_three() {
        let published: &[(&GraphicsCard, &str, GuessWork, f64)] = &[
            // RTX 4090: hashcat 6.2.6, and Argon2id as in hashcat's pull request 4284, with 64 MiB and 3 passes.
            (&RTX_4090, "10900 PBKDF2-HMAC-SHA256", pbkdf2("SHA-256", 999, 32, 32), 8_865_700.0),
            (&RTX_4090, "12100 PBKDF2-HMAC-SHA512", pbkdf2("SHA-512", 999, 64, 64), 3_120_900.0),
            (&RTX_4090, "22000 WPA", pbkdf2("SHA-1", 4096, 32, 20), 2_533_300.0),
            (&RTX_4090, "8900 scrypt", GuessWork::Scrypt { n: 16_384, r: 8 }, 7126.0),
            (&RTX_4090, "34000 Argon2id", argon2id(3, 65_536), 1667.0),
            // RTX 3090.
            (&RTX_3090, "6211 TrueCrypt RIPEMD160, XTS 512 bit", pbkdf2("RIPEMD-160", 2000, 64, 20), 854_800.0),
            (&RTX_3090, "6221 TrueCrypt SHA512, XTS 512 bit", pbkdf2("SHA-512", 1000, 64, 64), 1_260_400.0),
            (&RTX_3090, "6231 TrueCrypt Whirlpool, XTS 512 bit", pbkdf2("Whirlpool", 1000, 64, 64), 176_500.0),
            (&RTX_3090, "6233 TrueCrypt Whirlpool, XTS 1536 bit", pbkdf2("Whirlpool", 1000, 192, 64), 59_426.0),
            (&RTX_3090, "13711 VeraCrypt RIPEMD160", pbkdf2("RIPEMD-160", 655_331, 64, 20), 2771.0),
            (&RTX_3090, "13721 VeraCrypt SHA512", pbkdf2("SHA-512", 500_000, 64, 64), 2837.0),
            (&RTX_3090, "13723 VeraCrypt SHA512, XTS 1536 bit", pbkdf2("SHA-512", 500_000, 192, 64), 926.0),
            (&RTX_3090, "13731 VeraCrypt Whirlpool", pbkdf2("Whirlpool", 500_000, 64, 64), 359.0),
            (&RTX_3090, "13751 VeraCrypt SHA256", pbkdf2("SHA-256", 500_000, 64, 32), 3985.0),
            (&RTX_3090, "13771 VeraCrypt Streebog-512", pbkdf2("Streebog", 500_000, 64, 64), 136.0),
            (&RTX_3090, "14600 LUKS", pbkdf2("SHA-1", 163_044, 32, 20), 28_356.0),
            (&RTX_3090, "16700 FileVault 2", pbkdf2("SHA-256", 20_000, 16, 32), 201_700.0),
            (&RTX_3090, "8900 scrypt", GuessWork::Scrypt { n: 1024, r: 1 }, 2_308_200.0),
            (&RTX_3090, "9300 scrypt", GuessWork::Scrypt { n: 16_384, r: 1 }, 85_331.0),
            (
                &RTX_3090,
                "22100 BitLocker",
                GuessWork::Hash { hash: "SHA-256", times: 1 << 20, compressions: 2 },
                4363.0,
            ),
            (
                &RTX_3090,
                "12200 eCryptfs",
                GuessWork::Hash { hash: "SHA-512", times: 65_536, compressions: 1 },
                45_432.0,
            ),
        ];
        for (card, mode, work, per_second) in published {
            let ours = work.per_second(card);
            assert!((per_second / 3.0..per_second * 3.0).contains(&ours), "{}, {mode}: {ours:.0}", card.name);
        }
    }

    #[test]
    fn it_is_told_in_few_words() {
        assert_eq!(argon2id(4, 1 << 20).to_string(), "Argon2id, 1 GiB");
        assert_eq!(argon2id(4, 1 << 16).to_string(), "Argon2id, 64 MiB");
        assert_eq!(argon2id(4, 3 << 19).to_string(), "Argon2id, 1.5 GiB");
        assert_eq!(GuessWork::Scrypt { n: 16_384, r: 8 }.to_string(), "scrypt, 16 MiB");
        assert_eq!(pbkdf2("SHA-512", 500_000, 64, 64).to_string(), "PBKDF2 with SHA-512, 500000 iterations");
        assert_eq!(GuessWork::Hash { hash: "RIPEMD-160", times: 1, compressions: 1 }.to_string(), "RIPEMD-160 once");
    }

    #[test]
    fn a_rare_hash_is_not_taken_for_a_slow_one() {
        let rare = GuessWork::Hash { hash: "Tiger-192", times: 1, compressions: 1 };
        assert!(rare.per_second(&RTX_4090) >= 50e9);
    }
}
