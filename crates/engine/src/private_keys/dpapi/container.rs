//! Files of private keys.
//!
//! CryptoAPI (`Crypto\RSA\SID`), all little-endian: version (2), 4 bytes, then eight lengths: the name; the public and the private
//! signature key; the two encryption keys; a hash; the two export flag blobs. The data follow: name, hash, then public key, private
//! key and flags for signatures, and the same for encryption. The decrypted key is an RSA key with zeros between its numbers, which
//! are also little-endian.
//!
//! CNG (`Crypto\Keys`): version (1), 4 bytes, length of the name, type, lengths of public properties, private properties and private
//! key, 16 bytes. Name, properties and key follow. The decrypted key is a BCRYPT_RSAKEY_BLOB (bcrypt.h), big-endian.

use claviger_crypto::Secret;

use super::{Fields, MasterKeys, wide_text};
use crate::error::{Error, Result};
use crate::private_keys::key::{SoftKey, damaged};

/// The entropy of CNG for private keys, with the zero at the end.
const CNG_ENTROPY: &[u8] = b"xT5rZW5qVVbrvpuA\0";

/// Reads the keys in a file: for signatures, for encryption, or both.
///
/// # Errors
/// `WrongCredential` if the master key is not open; `Malformed`, `Unsupported`.
pub fn read(bytes: &[u8], keys: &MasterKeys, origin: &str) -> Result<Vec<SoftKey>> {
    let mut fields = Fields::new(bytes);
    match fields.u32("version of the container")? {
        1 => read_cng(fields, keys, origin),
        2 => read_capi(fields, keys, origin),
        other => Err(Error::unsupported(format!("a key container of version {other}"))),
    }
}

fn read_capi(mut fields: Fields<'_>, keys: &MasterKeys, origin: &str) -> Result<Vec<SoftKey>> {
    fields.u32("flags of the container")?;
    let mut lens = [0; 8];
    for len in &mut lens {
        *len = fields.u32("lengths of the container")? as usize;
    }
    let [name, public_1, private_1, public_2, private_2, hash, flags_1, flags_2] = lens;
    let name = fields.take(name, "name of the container")?;
    let name: String = name.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    fields.take(hash, "hash of the container")?;
    let mut found = Vec::new();
    for (public, private, flags) in [(public_1, private_1, flags_1), (public_2, private_2, flags_2)] {
        fields.take(public, "public key")?;
        let blob = fields.take(private, "private key")?;
        fields.take(flags, "flags of export")?;
        if !blob.is_empty() {
            let key = keys.open(blob, &[])?;
            found.push(capi_key(&key, origin)?.in_container(name.replace(char::is_control, "\u{fffd}")));
        }
    }
    Ok(found)
}

fn read_cng(mut fields: Fields<'_>, keys: &MasterKeys, origin: &str) -> Result<Vec<SoftKey>> {
    fields.u32("flags of the container")?;
    let name = fields.u32("length of the name")? as usize;
    fields.u32("type of the container")?;
    let mut lens = [0; 3];
    for len in &mut lens {
        *len = fields.u32("lengths of the container")? as usize;
    }
    let [public_properties, private_properties, key] = lens;
    fields.take(16, "container")?;
    let name = wide_text(fields.take(name, "name of the container")?);
    fields.take(public_properties, "public properties")?;
    fields.take(private_properties, "private properties")?;
    let key = keys.open(fields.take(key, "private key")?, CNG_ENTROPY)?;
    Ok(vec![cng_key(&key, origin)?.in_container(name)])
}

/// Parses a decrypted CryptoAPI key: `RSA2`, the stored length of the modulus, bits, bytes minus one, exponent, then the numbers.
/// Eight zeros follow the modulus, and four follow each number of half its length.
fn capi_key(bytes: &[u8], origin: &str) -> Result<SoftKey> {
    let mut fields = Fields::new(bytes);
    if fields.take(4, "private key")? != b"RSA2" {
        return Err(Error::unsupported("CryptoAPI private keys other than RSA"));
    }
    let stored = fields.u32("length of the modulus")? as usize;
    let bits = fields.u32("bits of the modulus")? as usize;
    let (whole, half) = (bits.div_ceil(8), bits.div_ceil(16));
    if stored < whole || !stored.is_multiple_of(2) || stored / 2 < half {
        return Err(fields.damaged("bits of the modulus", format!("{bits} in {stored} bytes")));
    }
    fields.u32("private key")?;
    let exponent = fields.u32("public exponent")?;
    // Reverses the numbers one at a time.
    let mut number = |stored: usize, len: usize| -> Result<Secret> {
        let mut number = Secret::copy_from(&fields.take(stored, "numbers of the private key")?[..len]);
        number.reverse();
        Ok(number)
    };
    let modulus = number(stored, whole)?;
    let mut numbers = Vec::new();
    for _ in 0..5 {
        numbers.push(number(stored / 2, half)?);
    }
    let numbers = std::array::from_fn(|i| &numbers[i][..]);
    SoftKey::of_numbers(&modulus, &exponent.to_be_bytes(), numbers, origin)
}

/// Parses a decrypted CNG key: `RSA2` or `RSA3`, bits, the lengths of exponent, modulus and primes, then these numbers. Only `RSA3`
/// has the other numbers, so they are always computed.
fn cng_key(bytes: &[u8], origin: &str) -> Result<SoftKey> {
    let mut fields = Fields::new(bytes);
    let magic = fields.take(4, "private key")?;
    if magic != b"RSA2" && magic != b"RSA3" {
        return Err(Error::unsupported("CNG private keys other than RSA"));
    }
    fields.u32("bits of the modulus")?;
    let mut lens = [0; 4];
    for len in &mut lens {
        *len = fields.u32("lengths of the private key")? as usize;
    }
    let [exponent, modulus, p, q] = lens;
    let exponent = fields.take(exponent, "public exponent")?;
    let modulus = fields.take(modulus, "modulus")?;
    let (p, q) = (fields.take(p, "prime")?, fields.take(q, "prime")?);
    SoftKey::of_primes(modulus, exponent, p, q, origin)
        .ok_or_else(|| damaged("the primes do not belong to the modulus"))
}

/// Parses bytes as decrypted keys.
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = capi_key(bytes, "here");
    let _ = cng_key(bytes, "here");
}
