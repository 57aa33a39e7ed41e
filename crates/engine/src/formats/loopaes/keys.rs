//! The contents of key files: lines of text, each hashed to a key.

use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::hash::{self, Hash, RIPEMD160};
use claviger_crypto::{Acceleration, Secret};

use crate::error::{Error, ErrorKind, Result};
use crate::random;

/// Shorter lines end the list of keys (loop-AES, losetup, `LOOP_PASSWORD_MIN_LENGTH`).
const LINE_MIN: usize = 20;

/// Longer lines are not keys (`loDev_get_FD_pass`).
const LINE_MAX: usize = 4096;

/// The number of lines in a new key file: the keys and the seed.
const NEW_KEYS: usize = 65;

/// How many bytes each line of a new key file encodes: 60 characters of Base64 (loop-AES.README, section 7.1).
const NEW_KEY: usize = 45;

/// The value combined with the first byte of each of 64 keys, so that volumes with other initialisation vectors decrypt to noise
/// (losetup, `multiKeyBits`).
const VERSION_2: u8 = 0x55;
/// The same, for 65 keys.
const VERSION_3: u8 = 0xf4;

/// The lines of a key file: 1, 64, or 65.
pub(super) struct Keys {
    text: Secret,
    lines: Vec<std::ops::Range<usize>>,
}

/// Parameters for a single key only.
pub(super) struct Single<'a> {
    /// Appended to the line.
    pub seed: Option<&'a [u8]>,
    /// The number of encryptions, in thousands.
    pub iterations_k: Option<u32>,
    /// Called now and then; returns whether to go on.
    pub go_on: &'a dyn Fn() -> bool,
}

/// Returns the text of a new key file: 65 lines of 60 characters, for a volume of version 3.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub fn new_keyfile() -> Result<Secret> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut random = Secret::zeroed(NEW_KEY);
    let mut text = Secret::zeroed(NEW_KEYS * (NEW_KEY / 3 * 4 + 1));
    for line in text.chunks_mut(NEW_KEY / 3 * 4 + 1) {
        random::fill(&mut random)?;
        let (end, characters) = line.split_last_mut().expect("a line has its end");
        for (four, three) in characters.chunks_mut(4).zip(random.chunks(3)) {
            let bits = u32::from(three[0]) << 16 | u32::from(three[1]) << 8 | u32::from(three[2]);
            four.iter_mut().rev().enumerate().for_each(|(i, c)| *c = ALPHABET[(bits >> (6 * i)) as usize & 63]);
        }
        *end = b'\n';
    }
    Ok(text)
}

impl Keys {
    /// Uses a passphrase as the only key, however short it is.
    pub fn of_passphrase(passphrase: &[u8]) -> Self {
        Self { text: Secret::copy_from(passphrase), lines: std::iter::once(0..passphrase.len()).collect() }
    }

    /// Reads the lines of a key file. Everything after 65 lines, or after a line that is too short, is ignored.
    ///
    /// # Errors
    /// `Malformed` if the number of lines is not 1, 64 or 65.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let malformed = |offset: usize, what: String| {
            let kind = ErrorKind::Malformed { field: "keys of the key file", offset: offset as u64, what };
            Error::from(kind).hint(
                "A loop-AES key file is text of 1, 64 or 65 lines with at least 20 characters \
                 each, or such a text encrypted by gpg.",
            )
        };
        let mut lines = Vec::new();
        let mut at = 0;
        while at < text.len() && lines.len() < NEW_KEYS {
            let len = text[at..].iter().position(|b| matches!(b, b'\n' | 0)).unwrap_or(text.len() - at);
            if len < LINE_MIN {
                break;
            }
            if len >= LINE_MAX {
                return Err(malformed(at, format!("line {} has {len} bytes", lines.len() + 1)));
            }
            lines.push(at..at + len);
            at += len + 1;
        }
        match lines.len() {
            1 | 64 | 65 => Ok(Self { text: Secret::copy_from(text), lines }),
            0 => Err(malformed(0, format!("its first line has fewer than {LINE_MIN} characters"))),
            other => Err(malformed(at, format!("it has {other} keys"))),
        }
    }

    /// The number of lines.
    pub fn count(&self) -> usize {
        self.lines.len()
    }

    /// Returns the concatenated keys for dm-crypt, each of `len` bytes. `single` is for a single key.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn hashed(&self, hash: &Hashing, len: usize, single: &Single<'_>) -> Result<Secret> {
        let mut keys = Secret::zeroed(len * self.lines.len());
        if let [line] = &self.lines[..] {
            let seed = single.seed.unwrap_or_default();
            let mut text = Secret::zeroed(line.len() + seed.len());
            text[..line.len()].copy_from_slice(&self.text[line.clone()]);
            text[line.len()..].copy_from_slice(seed);
            let key = hash.single(text, single)?;
            keys.copy_from_slice(&key[..len]);
            return Ok(keys);
        }
        let change = if self.lines.len() == NEW_KEYS { VERSION_3 } else { VERSION_2 };
        for (key, line) in keys.chunks_mut(len).zip(&self.lines) {
            let mut hashed = hash.of(&self.text[line.clone()]);
            hashed[0] ^= change;
            key.copy_from_slice(&hashed[..len]);
        }
        Ok(keys)
    }
}

/// The hashing of a line to a key: losetup's `phash`.
pub(super) enum Hashing {
    /// A hash, truncated.
    Once(&'static Hash),
    /// RIPEMD-160 of the line, and of an `A` and the line.
    Twice,
    /// The first 31 bytes of the line.
    Unhashed2,
}

/// The size of a hashed key, in bytes: the longest key.
const HASHED: usize = 32;

impl Hashing {
    /// Returns the hash with this name. The default is SHA-256, SHA-384 or SHA-512 for keys of 128, 192 or 256 bits.
    ///
    /// # Errors
    /// `Misuse` for a hash that loop-AES does not have.
    pub fn parse(name: Option<&str>, bits: u32) -> Result<Self> {
        let usual = match bits {
            256 => "sha512",
            192 => "sha384",
            _ => "sha256",
        };
        match name.map(str::to_ascii_lowercase).as_deref().unwrap_or(usual).replace('-', "").as_str() {
            name @ ("sha256" | "sha384" | "sha512") => {
                let hash = hash::by_name(name);
                Ok(Self::Once(hash.ok_or_else(|| Error::unsupported(format!("the hash {name}")))?))
            }
            "rmd160" | "ripemd160" => Ok(Self::Twice),
            "unhashed2" => Ok(Self::Unhashed2),
            "unhashed1" => Err(Error::unsupported("the hash unhashed1 of loop-AES before 2001")),
            name => Err(Error::misuse(format!(
                "loop-AES has no hash {name}; it has sha256, sha384, sha512, rmd160 and unhashed2"
            ))),
        }
    }

    /// Its name.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Once(hash) => Some(hash.name),
            Self::Twice => Some(RIPEMD160.name),
            Self::Unhashed2 => None,
        }
    }

    fn of(&self, line: &[u8]) -> Secret {
        /// How much of the line the second hash covers, in bytes (`rmd160HashTwiceWithA`).
        const SECOND_MAX: usize = 129;
        let mut out = Secret::zeroed(HASHED);
        match self {
            Self::Once(hash) => {
                let mut digest = Secret::zeroed(hash.size);
                hash.digest(&[line], &mut digest);
                out.copy_from_slice(&digest[..HASHED]);
            }
            Self::Twice => {
                let mut digest = Secret::zeroed(2 * RIPEMD160.size);
                let (first, second) = digest.split_at_mut(RIPEMD160.size);
                RIPEMD160.digest(&[line], first);
                RIPEMD160.digest(&[b"A", &line[..line.len().min(SECOND_MAX)]], second);
                out.copy_from_slice(&digest[..HASHED]);
            }
            Self::Unhashed2 => {
                let used = line.len().min(HASHED - 1);
                out[..used].copy_from_slice(&line[..used]);
            }
        }
        out
    }

    /// Derives a single key, encrypted repeatedly if asked for. The cipher is AES-256, and its key is the hash of the same text
    /// with the lowest bit of the first byte flipped. It encrypts both halves, and their inner quarters are swapped each time.
    fn single(&self, mut text: Secret, single: &Single<'_>) -> Result<Secret> {
        let mut key = self.of(&text);
        let Some(thousands) = single.iterations_k else { return Ok(key) };
        if let Some(first) = text.first_mut() {
            *first ^= 1;
        }
        let cipher = AES.with_key(&self.of(&text), Acceleration::On);
        for _ in 0..thousands {
            if !(single.go_on)() {
                return Err(ErrorKind::Cancelled.into());
            }
            for _ in 0..1000 {
                cipher.encrypt_blocks(&mut key);
                let (low, high) = key.split_at_mut(16);
                low[8..].swap_with_slice(&mut high[..8]);
            }
        }
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Vec<u8> {
        (0..count).flat_map(|i| format!("{i:020}{}\n", "k".repeat(i % 7)).into_bytes()).collect()
    }

    #[test]
    fn key_files_have_one_key_or_64_or_65() {
        for (text, count) in [
            (lines(1), 1),
            (b"without an end that is a newline".to_vec(), 1),
            (lines(64), 64),
            (lines(65), 65),
            (lines(70), 65),
            ([lines(1), b"short\n".to_vec(), lines(20)].concat(), 1),
            ([lines(64), b"\n".to_vec(), lines(1)].concat(), 64),
            (lines(64).iter().map(|b| if *b == b'\n' { 0 } else { *b }).collect(), 64),
        ] {
            assert_eq!(Keys::parse(&text).expect("keys").count(), count);
        }
        let long = [b"x".repeat(LINE_MAX), b"\n".to_vec()].concat();
        for text in [Vec::new(), lines(2), lines(63), b"short".to_vec(), b"\n\n\n".to_vec(), long, vec![0; 9000]] {
            let error = Keys::parse(&text).err().expect("no keys");
            assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn new_key_files_have_65_different_lines_of_base64() {
        let text = new_keyfile().expect("random bytes");
        let keys = Keys::parse(&text).expect("keys");
        assert_eq!((keys.count(), text.len()), (65, 65 * 61));
        let lines: std::collections::BTreeSet<&[u8]> = keys.lines.iter().map(|line| &text[line.clone()]).collect();
        assert_eq!(lines.len(), 65);
        assert!(text.iter().all(|b| b.is_ascii_alphanumeric() || b"+/\n".contains(b)));
        let used: std::collections::BTreeSet<u8> = text.iter().copied().collect();
        assert_eq!(used.len(), 65, "all of the alphabet, and the newline");
    }

    fn sha(name: &str, text: &[u8]) -> Vec<u8> {
        let hash = hash::by_name(name).expect("it is there");
        let mut digest = vec![0; hash.size];
        hash.digest(&[text], &mut digest);
        digest
    }

    /// From loop-AES.README, and 18 images that cryptsetup opened: SHA-256(line)[..16] or SHA-512(line)[..32], with the first byte
    /// of each changed by 0x55 or 0xf4.
    #[test]
    fn lines_are_hashed_and_versions_told_apart() {
        let plain = Single { seed: None, iterations_k: None, go_on: &|| true };
        for (count, bits, hash, change) in [
            (1, 128, "sha256", 0),
            (64, 128, "sha256", 0x55),
            (65, 128, "sha256", 0xf4),
            (1, 256, "sha512", 0),
            (64, 256, "sha512", 0x55),
            (65, 256, "sha512", 0xf4),
        ] {
            let text = lines(count);
            let len = bits as usize / 8;
            let hashing = Hashing::parse(None, bits).expect("a hash");
            let keys = Keys::parse(&text).and_then(|k| k.hashed(&hashing, len, &plain)).expect("keys");
            for (key, line) in keys.chunks(len).zip(text.split(|b| *b == b'\n')) {
                let mut expected = sha(hash, line);
                expected[0] ^= change;
                assert_eq!(key, &expected[..len], "{count} {bits}");
            }
        }
    }

    #[test]
    fn seeds_and_iterations_change_a_single_key() {
        let hashing = Hashing::parse(None, 256).expect("a hash");
        let key = |text: &[u8], seed: Option<&[u8]>, iterations_k| {
            let single = Single { seed, iterations_k, go_on: &|| true };
            Keys::of_passphrase(text).hashed(&hashing, 32, &single).expect("a key").to_vec()
        };
        assert_eq!(key(b"passphrase", Some(b"seed"), None), key(b"passphraseseed", None, None));
        assert_eq!(key(b"passphrase", None, Some(0)), key(b"passphrase", None, None));
        let once = key(b"passphrase", None, Some(1));
        assert_ne!(once, key(b"passphrase", None, None));
        // The same, block by block.
        let mut expected = sha("sha512", b"passphrase")[..32].to_vec();
        let cipher = AES.with_key(&sha("sha512", b"qassphrase")[..32], Acceleration::Off);
        for _ in 0..1000 {
            let (low, high) = expected.split_at_mut(16);
            cipher.encrypt_blocks(low);
            cipher.encrypt_blocks(high);
            let inner = low[8..].to_vec();
            low[8..].copy_from_slice(&high[..8]);
            high[..8].copy_from_slice(&inner);
        }
        assert_eq!(once, expected);
        let cancelled = Single { seed: None, iterations_k: Some(u32::MAX), go_on: &|| false };
        assert!(Keys::of_passphrase(b"x").hashed(&hashing, 32, &cancelled).is_err());
    }

    #[test]
    fn old_hashes_are_padded_or_doubled_and_others_refused() {
        let of = |name| Hashing::parse(Some(name), 128).expect("a hash").of(b"passphrase").to_vec();
        assert_eq!(of("unhashed2"), [&b"passphrase"[..], &[0; 22]].concat());
        let twice = [sha("ripemd160", b"passphrase"), sha("ripemd160", b"Apassphrase")].concat();
        assert_eq!(of("rmd160"), twice[..32]);
        assert!(Hashing::parse(Some("md5"), 128).is_err());
    }
}
