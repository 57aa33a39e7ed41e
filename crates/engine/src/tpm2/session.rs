//! Sessions: traffic on the bus to the TPM is encrypted and authenticated with a key that only the TPM's own key can recover (TCG,
//! TPM 2.0 Library, Part 1, sections 17 to 21, and annexes B.10.2 and C.6.1 for salts).

use claviger_crypto::ec::{Curve, Point, scalar};
use claviger_crypto::hash::SHA256;
use claviger_crypto::rsa;
use claviger_crypto::{Acceleration, CIPHERS, Secret};

use super::wire::{Bytes, WireReader, odd};
use super::{ALG_AES, ALG_CFB, ALG_ECC, ALG_NULL, ALG_RSA, ALG_SHA256, Kind, P256};
use crate::error::Result;
use crate::random;

/// The size of a nonce and of an HMAC, in bytes: that of the hash.
pub const SIZE: usize = 32;

/// The session stays open after this command.
pub const CONTINUE: u8 = 0x01;
/// The command's first parameter is encrypted.
pub const DECRYPT: u8 = 0x20;
/// The response's first parameter is encrypted.
pub const ENCRYPT: u8 = 0x40;

/// A started session.
pub struct TpmSession {
    /// Its handle.
    pub handle: u32,
    /// Its kind.
    pub(super) kind: Kind,
    /// The key that both sides derived from the salt.
    pub key: Secret,
    /// The last nonce from the TPM.
    pub nonce_tpm: Vec<u8>,
}

/// One command in a session: the session's key, the authorisation value, and the nonces.
pub struct SessionExchange<'a> {
    session: &'a TpmSession,
    value: Secret,
    hmac_key: Secret,
    nonce: [u8; SIZE],
}

impl<'a> SessionExchange<'a> {
    /// `auth` is the authorisation value of the object. If the policy does not require it, it is not `proven` and only encrypts.
    pub fn new(session: &'a TpmSession, auth: &[u8], proven: bool) -> Result<Self> {
        let mut nonce = [0; SIZE];
        random::fill(&mut nonce)?;
        let value = Secret::concat(&[&session.key, auth]);
        let hmac_key = if proven { Secret::concat(&[&session.key, auth]) } else { Secret::copy_from(&session.key) };
        Ok(Self { session, value, hmac_key, nonce })
    }

    /// Encrypts a parameter for the TPM.
    pub fn encrypt(&self, parameter: &mut [u8]) {
        cfb(&self.value, &self.nonce, &self.session.nonce_tpm, parameter, true);
    }

    /// The authorisation area of a command; `of` is the command's digest.
    pub fn authorisation(&self, of: &[u8; SIZE], attributes: u8) -> Bytes {
        let mut hmac = [0; SIZE];
        let parts = [&of[..], &self.nonce, &self.session.nonce_tpm, &[attributes]];
        SHA256.hmac(&self.hmac_key, &parts, &mut hmac);
        Bytes::new().u32(self.session.handle).sized(&self.nonce).u8(attributes).sized(&hmac)
    }

    /// Verifies the authorisation area of a response, and returns the TPM's new nonce.
    pub fn check(&self, of: &[u8; SIZE], mut authorisation: WireReader<'_>) -> Result<Vec<u8>> {
        let (nonce, attributes, hmac) = (authorisation.sized()?, authorisation.u8()?, authorisation.sized()?);
        authorisation.end()?;
        let mut right = Secret::zeroed(SIZE);
        SHA256.hmac(&self.hmac_key, &[of, nonce, &self.nonce, &[attributes]], &mut right);
        if !right.same_as(hmac) {
            return Err(odd("it was tampered with on its way from the TPM"));
        }
        Ok(nonce.to_vec())
    }

    /// Decrypts a parameter from the TPM, sent with this nonce.
    pub fn decrypt(&self, nonce_tpm: &[u8], parameter: &mut [u8]) {
        cfb(&self.value, nonce_tpm, &self.nonce, parameter, false);
    }
}

/// AES-128 in CFB mode, with key and vector derived from the session's value and both nonces.
fn cfb(value: &[u8], newer: &[u8], older: &[u8], message: &mut [u8], encrypt: bool) {
    let mut key = Secret::zeroed(32);
    kdf_a(value, b"CFB", newer, older, &mut key);
    let aes = CIPHERS.iter().find(|cipher| cipher.name == "AES").expect("it is there");
    let aes = aes.with_key(&key[..16], Acceleration::On);
    let mut stream = Secret::copy_from(&key[16..]);
    for part in message.chunks_mut(16) {
        aes.encrypt_blocks(&mut stream);
        for (byte, stream) in part.iter_mut().zip(&mut *stream) {
            let ciphertext = if encrypt { *byte ^ *stream } else { *byte };
            *byte ^= *stream;
            *stream = ciphertext;
        }
    }
}

/// The key derivation KDFa (Part 1, 11.4.10.2).
pub fn kdf_a(key: &[u8], label: &[u8], u: &[u8], v: &[u8], out: &mut [u8]) {
    let bits = (out.len() as u32 * 8).to_be_bytes();
    for (number, block) in (1u32..).zip(out.chunks_mut(SIZE)) {
        let mut whole = Secret::zeroed(SIZE);
        SHA256.hmac(key, &[&number.to_be_bytes(), label, &[0], u, v, &bits], &mut whole);
        block.copy_from_slice(&whole[..block.len()]);
    }
}

/// A new salt, and its encryption for the TPM key with this public area.
pub fn salt(public: &[u8]) -> Result<(Secret, Vec<u8>)> {
    let mut area = WireReader(public);
    let (kind, name, _attributes) = (area.u16()?, area.u16()?, area.u32()?);
    area.sized()?;
    if name != ALG_SHA256
        || [area.u16()?, area.u16()?, area.u16()?] != [ALG_AES, 128, ALG_CFB]
        || area.u16()? != ALG_NULL
    {
        return Err(odd("its key is not for AES-128 and SHA-256"));
    }
    match kind {
        ALG_ECC => {
            let (curve, kdf) = (area.u16()?, area.u16()?);
            let (x, y) = (area.sized()?, area.sized()?);
            let point = Point::new(Curve::P256, x, y).filter(|_| curve == P256 && kdf == ALG_NULL);
            salt_ecc(&point.ok_or_else(|| odd("its key is not a point on P-256"))?)
        }
        ALG_RSA => {
            let (_bits, exponent) = (area.u16()?, area.u32()?);
            // Zero stands for the default exponent (Part 2, 12.2.3.5).
            let exponent = if exponent == 0 { 65537 } else { exponent };
            let key = rsa::RsaPublicKey::new(area.sized()?, &exponent.to_be_bytes());
            salt_rsa(&key.ok_or_else(|| odd("its key is not RSA"))?)
        }
        _ => Err(odd("its key is of an unknown kind")),
    }
}

fn salt_ecc(point: &Point) -> Result<(Secret, Vec<u8>)> {
    let own = scalar(Curve::P256, random::fill)?;
    let public = Point::generated(Curve::P256, &own).expect("it is a scalar");
    let shared = point.times(&own).ok_or_else(|| odd("its key is not a point on P-256"))?;
    let shared = Secret::from_vec(shared.x().to_vec());
    let mut salt = Secret::zeroed(SIZE);
    SHA256.digest(&[&1u32.to_be_bytes(), &shared, b"SECRET\0", public.x(), point.x()], &mut salt);
    Ok((salt, Bytes::new().sized(public.x()).sized(public.y()).to_vec()))
}

fn salt_rsa(key: &rsa::RsaPublicKey) -> Result<(Secret, Vec<u8>)> {
    let salt = random::secret(SIZE)?;
    let mut seed = [0; SIZE];
    random::fill(&mut seed)?;
    let sealed = key.encrypt_oaep_sha256(b"SECRET\0", &salt, &seed);
    Ok((salt, sealed.ok_or_else(|| odd("its RSA key is too short"))?))
}
