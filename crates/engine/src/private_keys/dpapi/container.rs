//! Files of private keys.
//!
//! CryptoAPI's (`Crypto\RSA\SID`), all little-endian: version (2), 4 bytes, then eight lengths: of the name, of the public and the
//! private key for signatures, of those for encryption, of a hash, of the two blobs with flags of export. Behind them lie name, hash, public key,
//! private key and flags for signatures, and those for encryption. What decrypts is an RSA key with bytes of zeros between its
//! numbers, which are little-endian too.
//!
//! CNG's (`Crypto\Keys`): version (1), 4 bytes, length of the name, type, lengths of public properties, of private ones and of the
//! private key, 16 bytes; behind them lie name, properties and key. What decrypts is a BCRYPT_RSAKEY_BLOB (bcrypt.h), big-endian.

use claviger_crypto::Secret;

use super::{Fields, MasterKeys, wide_text};
use crate::error::{Error, Result};
use crate::private_keys::key::{SoftKey, damaged};

/// What CNG puts into the blob of a private key, with the zero at the end.
const CNG_ENTROPY: &[u8] = b"xT5rZW5qVVbrvpuA\0";

/// The keys in a file: for signatures, for encryption, or both.
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

/// A decrypted key of CryptoAPI: `RSA2`, length of the modulus as it is stored, bits, bytes less one, exponent; then the numbers, with
/// eight bytes of zeros behind the modulus and four behind each of half its length.
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
    // Numbers in the other order, for as long as that takes.
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

/// A decrypted key of CNG: `RSA2` or `RSA3`, bits, lengths of exponent, modulus and primes, and these. Only `RSA3` has the rest, so
/// that it is worked out.
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

/// Reads bytes as what decrypts.
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = capi_key(bytes, "here");
    let _ = cng_key(bytes, "here");
}
