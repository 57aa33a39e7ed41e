//! Password-based encryption in key files: PKCS#12's own schemes (RFC 7292, appendices B and C), and PBES2 (RFC 8018, 6.2).

use claviger_crypto::ciphers::{aes, legacy};
use claviger_crypto::hash::{self, Hash};
use claviger_crypto::modes::cbc;
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, BlockCipher, Secret};
use zeroize::Zeroizing;

use super::asn1::{self, DerReader, tag};
use super::oids;
use crate::error::{Error, ErrorKind, Result};
use crate::random;

/// The most iterations accepted. Programs write thousands, but a hostile file could demand hours.
const ITERATIONS_MAX: u32 = 5_000_000;

/// Iterations of new files: half a second at most. More would fail on systems that limit them in files from elsewhere (600,000 in
/// total, since .NET of 2023).
pub(super) const ITERATIONS_NEW: u32 = 100_000;

/// A password in both forms that the schemes use.
pub struct Password {
    /// The password as typed, in UTF-8.
    text: Secret,
    /// Big-endian UTF-16, with a zero at the end (RFC 7292, B.1).
    wide: Secret,
    /// The most iterations accepted with it.
    patience: u32,
}

impl Password {
    /// A password from what was typed.
    ///
    /// # Errors
    /// `Misuse` if it is not UTF-8.
    pub fn new(text: &Secret) -> Result<Self> {
        let mut wide = utf16(text)?;
        wide.chunks_exact_mut(2).for_each(|unit| unit.swap(0, 1));
        let mut ended = Secret::zeroed(wide.len() + 2);
        ended[..wide.len()].copy_from_slice(&wide);
        Ok(Self { text: Secret::copy_from(text), wide: ended, patience: ITERATIONS_MAX })
    }

    /// The other form of the empty password, without the final zero, which some programs use.
    pub fn none() -> Self {
        Self { text: Secret::zeroed(0), wide: Secret::zeroed(0), patience: ITERATIONS_MAX }
    }

    /// Limits the iterations, for fuzz targets.
    pub(super) fn impatient(self) -> Self {
        Self { patience: 1000, ..self }
    }
}

/// A password in little-endian UTF-16, as Windows uses it.
///
/// # Errors
/// `Misuse` if it is not UTF-8.
pub fn utf16(text: &[u8]) -> Result<Secret> {
    let text = std::str::from_utf8(text).map_err(|_| Error::misuse("a Windows password must be UTF-8"))?;
    let mut wide = Secret::zeroed(2 * text.encode_utf16().count());
    for (room, unit) in wide.chunks_exact_mut(2).zip(text.encode_utf16()) {
        room.copy_from_slice(&unit.to_le_bytes());
    }
    Ok(wide)
}

/// Decrypts with the scheme in `algorithm`, the contents of an AlgorithmIdentifier.
///
/// # Errors
/// Usually `WrongCredential` if the password is wrong; `Unsupported`; `Malformed`.
pub fn decrypt(mut algorithm: DerReader<'_>, ciphertext: &[u8], password: &Password) -> Result<Secret> {
    let oid = algorithm.oid("encryption scheme")?;
    let mut parameters = algorithm.sequence("parameters of the encryption")?;
    let (cipher, iv) = match oid.split_last() {
        _ if oid == oids::PBES2 => pbes2(parameters, password)?,
        Some((scheme, oids::PKCS12_PBE)) => {
            let salt = parameters.octets("salt")?;
            let iterations = iterations(&mut parameters, password)?;
            pkcs12_scheme(*scheme, password, &salt, iterations)?
        }
        _ => return Err(Error::unsupported(format!("the encryption {}", asn1::dotted(oid)))),
    };
    decrypted(&*cipher, &iv, ciphertext)
}

/// Decrypts in CBC mode and removes the padding (RFC 8018, 6.1.1, step 4).
pub(super) fn decrypted(cipher: &dyn BlockCipher, iv: &[u8; 16], ciphertext: &[u8]) -> Result<Secret> {
    let block = cipher.block_size();
    if ciphertext.is_empty() || !ciphertext.len().is_multiple_of(block) {
        let what = format!("{} bytes are not whole {block}-byte blocks", ciphertext.len());
        return Err(ErrorKind::Malformed { field: "ciphertext", offset: 0, what }.into());
    }
    let mut plain = Secret::copy_from(ciphertext);
    cipher.cbc_decrypt(iv, &mut plain);
    wipe_stack();
    let padding = usize::from(plain[plain.len() - 1]);
    let len = plain.len().checked_sub(padding).filter(|_| (1..=block).contains(&padding));
    let len = len.filter(|len| plain[*len..].iter().all(|byte| usize::from(*byte) == padding));
    len.map(|len| Secret::copy_from(&plain[..len])).ok_or_else(wrong_password)
}

/// The error if a password opens nothing.
pub fn wrong_password() -> Error {
    ErrorKind::WrongCredential("wrong password, or a damaged file".to_owned()).into()
}

/// Reads an iteration count and checks it against the limit.
pub(super) fn iterations(fields: &mut DerReader<'_>, password: &Password) -> Result<u32> {
    match fields.small("iterations")? {
        0 => Err(fields.damaged("iterations", "there is none")),
        count if count > password.patience => Err(fields.damaged("iterations", format!("{count} are too many"))),
        count => Ok(count),
    }
}

/// The cipher and initialisation vector of a PKCS#12 scheme (RFC 7292, C).
fn pkcs12_scheme(
    scheme: u8,
    password: &Password,
    salt: &[u8],
    iterations: u32,
) -> Result<(Box<dyn BlockCipher>, [u8; 16])> {
    let derive = |purpose, len| pkcs12_derive(&hash::SHA1, purpose, password, salt, iterations, len);
    let cipher = match scheme {
        3 => triple_des(&derive(Purpose::Key, 24)),
        4 => triple_des(&derive(Purpose::Key, 16)),
        5 => legacy::rc2(&derive(Purpose::Key, 16), 128),
        6 => legacy::rc2(&derive(Purpose::Key, 5), 40),
        1 | 2 => return Err(Error::unsupported("RC4-encrypted keys")),
        other => return Err(Error::unsupported(format!("PKCS#12's encryption scheme {other}"))),
    };
    let mut iv = [0; 16];
    iv[..8].copy_from_slice(&derive(Purpose::Iv, 8));
    Ok((cipher, iv))
}

/// Triple DES with three keys, or with two keys and the first one repeated.
fn triple_des(key: &[u8]) -> Box<dyn BlockCipher> {
    let mut whole = Secret::zeroed(24);
    whole[..key.len()].copy_from_slice(key);
    if key.len() == 16 {
        whole[16..].copy_from_slice(&key[..8]);
    }
    legacy::TRIPLE_DES.with_key(&whole, Acceleration::On)
}

/// The purpose of a derived key (RFC 7292, B.3).
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Key = 1,
    Iv = 2,
    Mac = 3,
}

/// PKCS#12's key derivation (RFC 7292, B.2).
pub(super) fn pkcs12_derive(
    hash: &Hash,
    purpose: Purpose,
    password: &Password,
    salt: &[u8],
    iterations: u32,
    len: usize,
) -> Secret {
    let block = if hash.size > 32 { 128 } else { 64 };
    let fill = |room: &mut [u8], with: &[u8]| {
        if !with.is_empty() {
            room.iter_mut().zip(with.iter().cycle()).for_each(|(byte, with)| *byte = *with);
        }
    };
    let salted = salt.len().next_multiple_of(block);
    let mut input = Secret::zeroed(salted + password.wide.len().next_multiple_of(block));
    let (salts, passwords) = input.split_at_mut(salted);
    fill(salts, salt);
    fill(passwords, &password.wide);
    let (mut out, mut digest, mut next) =
        (Secret::zeroed(len.next_multiple_of(hash.size)), Secret::zeroed(hash.size), Secret::zeroed(hash.size));
    let mut addend = Secret::zeroed(block);
    for room in out.chunks_exact_mut(hash.size) {
        hash.checksum(&[&vec![purpose as u8; block], &input], &mut digest);
        for _ in 1..iterations {
            hash.checksum(&[&digest], &mut next);
            std::mem::swap(&mut digest, &mut next);
        }
        room.copy_from_slice(&digest);
        fill(&mut addend, &digest);
        for block in input.chunks_exact_mut(block) {
            let mut carry = 1;
            for (byte, addend) in block.iter_mut().zip(&addend[..]).rev() {
                carry += u16::from(*byte) + u16::from(*addend);
                *byte = carry as u8;
                carry >>= 8;
            }
        }
    }
    wipe_stack();
    Secret::copy_from(&out[..len])
}

/// The cipher and initialisation vector of PBES2 with these parameters (RFC 8018, A.4).
fn pbes2(mut parameters: DerReader<'_>, password: &Password) -> Result<(Box<dyn BlockCipher>, [u8; 16])> {
    let mut kdf = parameters.sequence("key derivation")?;
    let mut scheme = parameters.sequence("cipher")?;
    let (cipher, key_len) = match scheme.oid("cipher")? {
        oids::AES128_CBC => (Cipher::Aes, 16),
        oids::AES192_CBC => (Cipher::Aes, 24),
        oids::AES256_CBC => (Cipher::Aes, 32),
        oids::TRIPLE_DES_CBC => (Cipher::TripleDes, 24),
        oids::RC2_CBC => return Err(Error::unsupported("RC2 in PBES2")),
        other => return Err(Error::unsupported(format!("the cipher {}", asn1::dotted(other)))),
    };
    let vector = scheme.octets("initialisation vector")?;
    let oid = kdf.oid("key derivation")?;
    if oid != oids::PBKDF2 {
        return Err(Error::unsupported(format!("the key derivation {}", asn1::dotted(oid))));
    }
    let mut kdf = kdf.sequence("key derivation")?;
    let salt = kdf.octets("salt")?;
    let iterations = iterations(&mut kdf, password)?;
    if let Some(len) = kdf.optional(tag::INTEGER, "length of the key")?
        && len.content != [key_len as u8]
    {
        return Err(kdf.damaged("length of the key", "not the cipher's"));
    }
    let hash = match kdf.is_empty() {
        true => &hash::SHA1,
        false => match kdf.sequence("hash of the key derivation")?.oid("hash of the key derivation")? {
            oids::HMAC_SHA1 => &hash::SHA1,
            oids::HMAC_SHA224 => &hash::SHA224,
            oids::HMAC_SHA256 => &hash::SHA256,
            oids::HMAC_SHA384 => &hash::SHA384,
            oids::HMAC_SHA512 => &hash::SHA512,
            other => return Err(Error::unsupported(format!("the hash {}", asn1::dotted(other)))),
        },
    };
    let mut key = Secret::zeroed(key_len);
    hash.pbkdf2(&password.text, &salt, iterations, &mut key, &|| true);
    let (cipher, block) = match cipher {
        Cipher::Aes => (aes::AES.with_key(&key, Acceleration::On), 16),
        Cipher::TripleDes => (triple_des(&key), 8),
    };
    let mut iv = [0; 16];
    match vector.len() == block {
        true => iv[..block].copy_from_slice(&vector),
        false => return Err(kdf.damaged("initialisation vector", "not as long as a block")),
    }
    Ok((cipher, iv))
}

enum Cipher {
    Aes,
    TripleDes,
}

/// Encrypts with PBES2, AES-256 and PBKDF2-SHA-256. Returns the AlgorithmIdentifier and the ciphertext.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub(super) fn encrypt(plain: &[u8], password: &Password) -> Result<(Zeroizing<Vec<u8>>, Vec<u8>)> {
    let (mut salt, mut iv) = ([0; 16], [0; 16]);
    random::fill(&mut salt)?;
    random::fill(&mut iv)?;
    let mut key = Secret::zeroed(32);
    hash::SHA256.pbkdf2(&password.text, &salt, ITERATIONS_NEW, &mut key, &|| true);
    let padding = 16 - plain.len() % 16;
    let mut padded = Zeroizing::new(Vec::with_capacity(plain.len() + padding));
    padded.extend_from_slice(plain);
    padded.resize(plain.len() + padding, padding as u8);
    let len = padded.len();
    cbc::encrypt_sectors(&*aes::AES.with_key(&key, Acceleration::On), &[iv], len, &mut padded);
    wipe_stack();
    let prf = asn1::algorithm(oids::HMAC_SHA256, &asn1::value(tag::NULL, &[]));
    let count = asn1::integer(&ITERATIONS_NEW.to_be_bytes());
    let kdf = asn1::sequence(&[&asn1::value(tag::OCTETS, &[&salt]), &count, &prf]);
    let kdf = asn1::algorithm(oids::PBKDF2, &kdf);
    let cipher = asn1::algorithm(oids::AES256_CBC, &asn1::value(tag::OCTETS, &[&iv]));
    Ok((asn1::algorithm(oids::PBES2, &asn1::sequence(&[&kdf, &cipher])), padded.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7292 has no test vectors; the integration tests use OpenSSL's files. Here a round trip: the right password decrypts,
    /// another does not, for each padding length.
    #[test]
    fn what_was_encrypted_comes_back() {
        let password = |text: &[u8]| Password::new(&Secret::copy_from(text)).expect("UTF-8");
        let (right, wrong) = (password("pässword".as_bytes()), password(b"wrong"));
        for len in [0, 15, 16, 17] {
            let plain = vec![7; len];
            let (algorithm, ciphertext) = encrypt(&plain, &right).expect("random bytes");
            let open = |password| {
                decrypt(DerReader::new(&algorithm).sequence("it").expect("a sequence"), &ciphertext, password)
            };
            assert!(open(&right).expect("the password is right").same_as(&plain));
            // One in 256 wrong keys produces valid padding by chance.
            assert!(open(&wrong).map_or(true, |other| !other.same_as(&plain)));
        }
        assert!(Password::new(&Secret::copy_from(&[0xff])).is_err());
    }
}
