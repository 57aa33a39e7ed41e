//! PEM: DER in base64 between two lines (RFC 7468), and OpenSSL's format before PKCS#8 (RFC 1421, 4.6).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::ciphers::{aes, legacy};
use claviger_crypto::hash;
use claviger_crypto::{Acceleration, Secret};

use super::key::{SoftKey, damaged};
use super::pbe::{self, Password};
use super::{Certificate, Contents, pfx};
use crate::error::{Error, Result};
use crate::hex;

/// The beginning of a block.
const BEGIN: &[u8] = b"-----BEGIN ";

/// Whether these bytes contain a PEM block.
pub fn is_one(bytes: &[u8]) -> bool {
    bytes.windows(BEGIN.len()).any(|window| window == BEGIN)
}

/// Reads all keys and certificates. Calls `ask` for the password of encrypted keys.
///
/// # Errors
/// `WrongCredential`, `Malformed`, `Unsupported`, and those of `ask`.
pub fn read(bytes: &[u8], origin: &str, ask: &mut dyn FnMut() -> Result<Secret>) -> Result<Contents> {
    let mut contents = Contents::default();
    let mut lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(b"-----")) else { continue };
        let (mut text, mut key_info) = (Secret::zeroed(bytes.len()), None);
        let mut len = 0;
        let ended = loop {
            let Some(line) = lines.next() else { break false };
            match line.iter().position(|byte| *byte == b':') {
                _ if line.starts_with(b"-----END ") => break true,
                // A header: `DEK-Info: AES-256-CBC,0123…`.
                Some(colon) => {
                    if line[..colon].eq_ignore_ascii_case(b"DEK-Info") {
                        key_info = Some(line[colon + 1..].trim_ascii());
                    }
                }
                None => {
                    text[len..len + line.len()].copy_from_slice(line);
                    len += line.len();
                }
            }
        };
        if !ended {
            return Err(damaged("the PEM has a begin line without an end line"));
        }
        let mut der = Secret::zeroed(len.div_ceil(4) * 3);
        let len = STANDARD.decode_slice(&text[..len], &mut der).map_err(|_| damaged("the PEM is not base64"))?;
        block(label, &der[..len], key_info, origin, ask, &mut contents)?;
    }
    Ok(contents)
}

/// The DER of the first block with this label.
pub fn first(bytes: &[u8], label: &str) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (_, behind) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (inside, _) = behind.split_once("-----END ")?;
    STANDARD.decode(inside.split_ascii_whitespace().collect::<String>()).ok()
}

fn block(
    label: &[u8],
    der: &[u8],
    key_info: Option<&[u8]>,
    origin: &str,
    ask: &mut dyn FnMut() -> Result<Secret>,
    into: &mut Contents,
) -> Result<()> {
    match (label, key_info) {
        (b"RSA PRIVATE KEY", None) => into.add(SoftKey::pkcs1(der, origin), None),
        (b"RSA PRIVATE KEY", Some(info)) => {
            let der = decrypted(der, info, &ask()?)?;
            into.add(SoftKey::pkcs1(&der, origin), None)
        }
        (b"PRIVATE KEY", _) => into.add(SoftKey::pkcs8(der, origin), None),
        (b"ENCRYPTED PRIVATE KEY", _) => {
            let der = pfx::encrypted_pkcs8(der, &Password::new(&ask()?)?)?;
            into.add(SoftKey::pkcs8(&der, origin), None)
        }
        (b"CERTIFICATE" | b"X509 CERTIFICATE" | b"TRUSTED CERTIFICATE", _) => {
            into.certificates.push(Certificate::read(der)?);
            Ok(())
        }
        (other, _) if other.ends_with(b"PRIVATE KEY") => {
            into.refuse(Error::unsupported(format!("a private key of the kind {}", String::from_utf8_lossy(other))));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Decrypts a key in OpenSSL's own format: CBC with a key from chained MD5 over password and salt (OpenSSL, `EVP_BytesToKey`). The
/// salt is the first half of the initialisation vector.
fn decrypted(ciphertext: &[u8], info: &[u8], password: &[u8]) -> Result<Secret> {
    let mut parts = info.splitn(2, |byte| *byte == b',').map(<[u8]>::trim_ascii);
    let (name, digits) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let key_len = match name {
        b"AES-128-CBC" => 16,
        b"AES-192-CBC" | b"DES-EDE3-CBC" => 24,
        b"AES-256-CBC" => 32,
        other => return Err(Error::unsupported(format!("the cipher {} of a PEM", String::from_utf8_lossy(other)))),
    };
    let triple_des = name == b"DES-EDE3-CBC";
    let mut iv = [0; 16];
    let len = if triple_des { 8 } else { 16 };
    if digits.len() != 2 * len || hex::decode(digits, &mut iv).is_err() {
        return Err(damaged("the initialisation vector of the PEM has the wrong length"));
    }
    let mut key = Secret::zeroed(32);
    hash::MD5.digest(&[password, &iv[..8]], &mut key[..16]);
    let (first, second) = key.split_at_mut(16);
    hash::MD5.digest(&[first, password, &iv[..8]], second);
    let cipher = match triple_des {
        true => legacy::TRIPLE_DES.with_key(&key[..key_len], Acceleration::On),
        false => aes::AES.with_key(&key[..key_len], Acceleration::On),
    };
    pbe::decrypted(&*cipher, &iv, ciphertext)
}
