//! The pin `tpm2`: a JWK sealed to a TPM, under the default key of tpm2-tools (clevis, src/pins/tpm2).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claviger_crypto::Secret;
use serde_json::{Map, Value, json};

use super::{base64url, direct, malformed};
use crate::error::{Error, Result};
use crate::tpm2::{Bank, Parent, Pcrs, Pin, Policy, SealedObject, Tpm};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedKey {
    parent: Parent,
    blob: SealedObject,
    /// The PCRs that must be as at sealing.
    pub(super) pcrs: Pcrs,
}

impl SealedKey {
    pub fn parse(options: &Map<String, Value>) -> Result<Self> {
        let text = |name: &str| options.get(name).and_then(Value::as_str);
        let blob = |name| text(name).map(base64url).transpose()?.ok_or_else(|| malformed("tpm2", "a part is missing"));
        let parent = match (text("key"), text("hash")) {
            (Some("ecc"), Some("sha256")) => Parent::Ecc,
            (Some("rsa"), Some("sha256")) => Parent::Rsa,
            _ => return Err(Error::unsupported("TPM keys other than ecc or rsa with sha256")),
        };
        let no_pcrs = || malformed("pcr_ids", "no such PCRs");
        let bank = Bank::named(text("pcr_bank").unwrap_or("sha1")).ok_or_else(no_pcrs)?;
        let numbers = text("pcr_ids").unwrap_or_default().split(',').filter(|number| !number.is_empty());
        let numbers = numbers.map(|number| number.trim().parse().map_err(|_| no_pcrs())).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            parent,
            blob: SealedObject::parse(&[blob("jwk_priv")?, blob("jwk_pub")?].concat())?,
            pcrs: Pcrs::new(bank, numbers).ok_or_else(no_pcrs)?,
        })
    }

    /// Seals a key.
    pub fn seal(tpm: &mut Tpm, pcrs: Pcrs, key: &[u8]) -> Result<Self> {
        if pcrs.mask == 0 {
            return Err(Error::misuse("clevis needs at least one PCR here"));
        }
        let (before, behind) = (br#"{"alg":"A256GCM","k":""#, br#"","kty":"oct"}"#);
        let encoded = Secret::from_vec(URL_SAFE_NO_PAD.encode(key).into_bytes());
        let jwk = Secret::from_vec([&before[..], &encoded, behind].concat());
        let policy = Policy { pcrs, ..Policy::default() };
        let parent = Parent::Ecc;
        let (blob, _) = tpm.seal(&parent, &jwk, &policy, &Pin::none())?;
        Ok(Self { parent, blob, pcrs })
    }

    /// The header of the JWE with the sealed key.
    pub fn header(&self) -> Value {
        let sized = |half: &[u8]| URL_SAFE_NO_PAD.encode([&(half.len() as u16).to_be_bytes(), half].concat());
        let numbers = self.pcrs.numbers().map(|number| number.to_string()).collect::<Vec<_>>();
        let options = json!({
            "hash": "sha256",
            "key": if self.parent == Parent::Rsa { "rsa" } else { "ecc" },
            "jwk_pub": sized(&self.blob.public),
            "jwk_priv": sized(&self.blob.private),
            "pcr_bank": self.pcrs.bank.name(),
            "pcr_ids": numbers.join(","),
        });
        direct("tpm2", options)
    }

    fn policy(&self) -> Policy {
        Policy { pcrs: self.pcrs, ..Policy::default() }
    }

    /// Checks that the PCRs are as at sealing.
    pub fn check(&self, tpm: &mut Tpm) -> Result<()> {
        tpm.check(&self.blob, &self.policy(), None)
    }

    /// Unseals the key in the JWK.
    pub fn key(&self, tpm: &mut Tpm) -> Result<Secret> {
        let policy = self.policy();
        let jwk = tpm.unseal(&self.parent, &self.blob, &policy, None, &Pin::none())?;
        /// Only the field that is needed: the JSON parser then keeps no copy of the key.
        #[derive(serde::Deserialize)]
        struct Jwk<'a> {
            k: &'a str,
        }
        let no_jwk = || malformed("tpm2", "the TPM's sealed data is not a JWK");
        let jwk: Jwk<'_> = serde_json::from_slice(&jwk).map_err(|_| no_jwk())?;
        let mut key = Secret::zeroed(base64::decoded_len_estimate(jwk.k.len()));
        let len = URL_SAFE_NO_PAD.decode_slice(jwk.k, &mut key).map_err(|_| no_jwk())?;
        Ok(Secret::copy_from(&key[..len]))
    }
}
