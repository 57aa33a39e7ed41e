//! Key files of cryptmount's own kind, `keyformat=builtin` (cryptmount 6.2, armour-builtin.c and utils.c; cmtab(5)).
//!
//! ```text
//! 0   7  "cm-blti"
//! 7   1  version: 0 or 1
//! 8   2  length of the key in bytes, little-endian, as all numbers are
//! 10  4  iterations, in version 1
//! .. 10  salt
//! ..     Blowfish in CBC, whole blocks of eight bytes, which are reversed: the key, zeros up to a multiple of four bytes, the
//!        32-bit words of all that, exclusive-or, then noise
//! ```

use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::hash::{self, SHA1};
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, Secret};

use crate::error::{Error, ErrorKind, Result};
use crate::formats::headerless;

const MAGIC: &[u8] = b"cm-blti";
const SALT: usize = 10;
const BLOCK: usize = 8;

/// The limit for iterations: cryptmount uses 16,384, and has no option for more.
const ITERATIONS_MAX: u32 = 1 << 24;

/// The contents of a key file.
pub(super) struct KeyFileContents {
    pub key: Secret,
    pub iterations: u32,
}

/// Whether a key file is of this kind.
pub(super) fn is_one(contents: &[u8]) -> bool {
    contents.starts_with(MAGIC)
}

/// Returns the key in a key file. Calls `go_on` now and then, and stops if it returns false.
///
/// # Errors
/// `Malformed`, `Unsupported`, `Cancelled`; `WrongCredential` if the checksum is wrong: a damaged file cannot be told from a wrong
/// passphrase.
pub(super) fn open(file: &[u8], passphrase: &[u8], go_on: &dyn Fn() -> bool) -> Result<KeyFileContents> {
    let parsed = Parsed::of(file)?;
    let (key, mut iv) = match parsed.iterations {
        None => version_0(passphrase, parsed.salt),
        Some(iterations) => {
            let fortified = fortify(passphrase, iterations, parsed.salt, 56, go_on).ok_or(ErrorKind::Cancelled)?;
            let mut iv = [0; BLOCK];
            copy_reversed(&mut iv[..4], &fortified[48..52]);
            copy_reversed(&mut iv[4..], &fortified[52..56]);
            (Secret::copy_from(&fortified[..48]), iv)
        }
    };
    let mut plain = decrypt_blocks(&key, parsed.sealed)?;
    for (block, sealed) in plain.chunks_exact_mut(BLOCK).zip(parsed.sealed.chunks_exact(BLOCK)) {
        block.iter_mut().zip(iv).for_each(|(byte, before)| *byte ^= before);
        block.reverse();
        copy_reversed(&mut iv, sealed);
    }
    let padded = parsed.key_len.next_multiple_of(4);
    let mut sum = Secret::zeroed(4);
    for word in plain[..padded].chunks_exact(4) {
        sum.iter_mut().zip(word).for_each(|(sum, byte)| *sum ^= byte);
    }
    if !sum.same_as(&plain[padded..padded + 4]) {
        let what = "the passphrase does not open the key file, or the key file is damaged (these look the same)";
        return Err(ErrorKind::WrongCredential(what.to_owned()).into());
    }
    Ok(KeyFileContents { key: Secret::copy_from(&plain[..parsed.key_len]), iterations: parsed.iterations.unwrap_or(1) })
}

struct Parsed<'a> {
    key_len: usize,
    /// `None` in version 0.
    iterations: Option<u32>,
    salt: &'a [u8],
    sealed: &'a [u8],
}

impl<'a> Parsed<'a> {
    fn of(file: &'a [u8]) -> Result<Self> {
        let malformed =
            |field, offset, what: &str| Error::new(ErrorKind::Malformed { field, offset, what: what.to_owned() });
        let short = || malformed("length of the key file", file.len() as u64, "it ends before the end of its key");
        let mut rest = file;
        let mut take = |len: usize| {
            let (taken, left) = rest.split_at_checked(len).ok_or_else(short)?;
            rest = left;
            Ok::<_, Error>(taken)
        };
        take(MAGIC.len())?;
        let version = take(1)?[0];
        if version > 1 {
            return Err(Error::unsupported(format!("cryptmount key files of version {version}")));
        }
        let key_len = usize::from(u16::from_le_bytes(take(2)?.try_into().expect("two bytes")));
        let iterations = match version {
            0 => None,
            _ => Some(u32::from_le_bytes(take(4)?.try_into().expect("four bytes"))),
        };
        let salt = take(SALT)?;
        if key_len == 0 {
            return Err(malformed("length of the key", 8, "it is 0"));
        }
        if iterations.is_some_and(|n| n == 0 || n > ITERATIONS_MAX) {
            return Err(malformed("iterations", 10, "cryptmount writes 16384"));
        }
        // The key, its checksum, and the padding of the last block (km_aug_keysz).
        let sealed = take((key_len + 8).next_multiple_of(BLOCK))?;
        Ok(Self { key_len, iterations, salt, sealed })
    }
}

/// Decrypts each block independently, with its bytes reversed.
fn decrypt_blocks(key: &[u8], sealed: &[u8]) -> Result<Secret> {
    const SECTOR: usize = 512;
    let cipher = headerless::cipher_of("blowfish-ecb", key, Sectors::default(), Acceleration::On)?;
    let mut blocks = Secret::zeroed(sealed.len().next_multiple_of(SECTOR));
    for (block, sealed) in blocks.chunks_exact_mut(BLOCK).zip(sealed.chunks_exact(BLOCK)) {
        copy_reversed(block, sealed);
    }
    cipher.decrypt(0, &mut blocks);
    Ok(Secret::copy_from(&blocks[..sealed.len()]))
}

fn copy_reversed(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from);
}

/// Version 0: SHA-1 over sixteen repetitions of passphrase and salt, followed by the salt once more. The initialisation vector
/// consists of two words of the state before that (kmblti_initcipher_v0).
fn version_0(passphrase: &[u8], salt: &[u8]) -> (Secret, [u8; BLOCK]) {
    let mut message = Secret::zeroed((passphrase.len() + salt.len()) * 16 + salt.len());
    let (rounds, last) = message.split_at_mut((passphrase.len() + salt.len()) * 16);
    for round in rounds.chunks_exact_mut(passphrase.len() + salt.len()) {
        round[..passphrase.len()].copy_from_slice(passphrase);
        round[passphrase.len()..].copy_from_slice(salt);
    }
    last.copy_from_slice(salt);
    let before = hash::sha1_state(&message[..message.len() - salt.len()]);
    let mut iv = [0; BLOCK];
    iv[..4].copy_from_slice(&before[0].to_be_bytes());
    iv[4..].copy_from_slice(&before[3].to_be_bytes());
    let mut key = Secret::zeroed(SHA1.size);
    SHA1.digest(&[&message], &mut key);
    (key, iv)
}

/// Many rounds of SHA-1 for each 20 bytes of the key, over salt that a weak random generator permutes (cm_pwd_fortify). `None` if
/// `go_on` stopped it.
fn fortify(passphrase: &[u8], iterations: u32, salt: &[u8], len: usize, go_on: &dyn Fn() -> bool) -> Option<Secret> {
    const MODULUS: u32 = 259_200;
    let mut random = 1u32;
    for byte in passphrase {
        // A signed `char` in C.
        let byte = i32::from(*byte as i8) as u32;
        random = random.wrapping_mul(69_317).wrapping_add(byte) % MODULUS;
    }
    let (salt_len, mut salt) = (salt.len(), Secret::copy_from(salt));
    let mut key = Secret::zeroed(len);
    let (mut digest, mut before) = (Secret::zeroed(SHA1.size), Secret::zeroed(SHA1.size));
    for at in (0..len).step_by(SHA1.size) {
        for index in 0..salt_len - 1 {
            salt.swap(index, index + random as usize % (salt_len - index));
            random = (421 * random + 54_773) % MODULUS;
        }
        SHA1.digest(&[&salt, &key[..at], passphrase], &mut digest);
        let end = len.min(at + SHA1.size);
        key[at..end].copy_from_slice(&digest[..end - at]);
        for round in 1..iterations {
            if round % 1024 == 0 && !go_on() {
                wipe_stack();
                return None;
            }
            std::mem::swap(&mut digest, &mut before);
            SHA1.checksum(&[&before, passphrase], &mut digest);
            key[at..end].iter_mut().zip(digest.iter()).for_each(|(key, byte)| *key ^= byte);
        }
    }
    wipe_stack();
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of cryptmount's own test (utils.c, `ut_pwfort`): 32 iterations, 1,024 bytes, of which the first and last four are
    /// known.
    #[test]
    fn passphrases_are_fortified_as_cryptmount_does() {
        for (passphrase, salt, front, back) in [
            ("Mary", "alpha", [0x46, 0x94, 0x0f, 0xb1], [0x8e, 0x0c, 0x6a, 0x6b]),
            ("had", "beta", [0x99, 0xd7, 0x51, 0x0f], [0x72, 0x23, 0x89, 0x2c]),
            ("a", "gamma", [0x6a, 0xcf, 0x38, 0xa5], [0x57, 0x95, 0x6f, 0xcc]),
            ("little", "delta", [0xe6, 0x53, 0x17, 0x26], [0x4c, 0x87, 0x05, 0xd7]),
            ("lamb", "epsilon", [0xc2, 0x16, 0xf6, 0x11], [0xf6, 0xaa, 0x02, 0x5d]),
        ] {
            let key = fortify(passphrase.as_bytes(), 32, salt.as_bytes(), 1024, &|| true).expect("nobody cancels");
            assert_eq!((&key[..4], &key[1020..]), (&front[..], &back[..]), "{passphrase}");
        }
        assert!(fortify(b"x", 5000, b"salt", 20, &|| false).is_none());
    }

    /// A key file generated by cryptmount 6.2.0 of Debian 12, and the key that it gave to the kernel.
    static MADE_BY_CRYPTMOUNT: &[u8] = b"\
        \x63\x6d\x2d\x62\x6c\x74\x69\x01\x20\x00\x00\x40\x00\x00\xd7\x66\
        \x69\xef\x87\xd4\xa5\x45\x9b\xdb\x09\xdc\x8e\xb0\x0e\xf6\x50\xe6\
        \x0f\x06\xd8\xad\x45\x4b\x6e\x92\x70\xc2\x88\x53\xc7\xe6\x40\x7a\
        \x45\x83\x48\xff\x53\x27\x69\x1d\x9c\xff\x01\x5e\x4e\x7c\x6b\x3c";

    #[test]
    fn key_files_of_cryptmount_open() {
        assert!(is_one(MADE_BY_CRYPTMOUNT));
        let opened = open(MADE_BY_CRYPTMOUNT, b"cryptmount pass", &|| true).expect("it opens");
        let key = b"\x03\xfc\x27\xc1\x59\x20\x8f\xa5\xf2\xd8\xb7\x9c\xcd\xd2\x6f\xb1\
            \x6f\x09\x38\xcd\x43\x1e\xa1\xbe\xfe\xa2\x13\x7f\x97\x22\x09\x21";
        assert!(opened.key.same_as(key) && opened.iterations == 16_384);
        let mut damaged = MADE_BY_CRYPTMOUNT.to_vec();
        damaged[30] ^= 1;
        for (file, passphrase) in [(MADE_BY_CRYPTMOUNT, &b"cryptmount past"[..]), (&damaged, b"cryptmount pass")] {
            let error = open(file, passphrase, &|| true).err().expect("it does not open");
            assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
        }
    }

    fn file(version: u8, key_len: u16, iterations: u32, rest: usize) -> Vec<u8> {
        let mut file = [MAGIC, &[version], &key_len.to_le_bytes()].concat();
        if version > 0 {
            file.extend(iterations.to_le_bytes());
        }
        file.extend(vec![7; rest]);
        file
    }

    #[test]
    fn hostile_key_files_are_refused() {
        let error = |file: &[u8]| open(file, b"pw", &|| true).err().expect("it does not open").kind;
        for file in [
            file(1, 32, 16_384, 10 + 39),
            file(1, 65_535, 16_384, 1000),
            file(1, 0, 16_384, 100),
            file(1, 32, 0, 100),
            file(1, 32, u32::MAX, 100),
            file(0, 32, 0, 9),
            MAGIC.to_vec(),
        ] {
            assert!(matches!(error(&file), ErrorKind::Malformed { .. }), "{file:?}");
        }
        assert!(matches!(error(&file(2, 32, 1, 100)), ErrorKind::Unsupported { .. }));
    }
}
