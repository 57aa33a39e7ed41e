//! The LUKS2 token `systemd-tpm2`, in which systemd stores a passphrase sealed to a TPM (systemd, src/shared/tpm2-util.c,
//! `tpm2_make_luks2_json` and `tpm2_parse_luks2_json`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::Secret;
use claviger_crypto::hash::SHA256;
use serde_json::{Map, Value, json};

use super::wire::{WireReader, odd};
use super::{Bank, Parent, Pcrs, Pin, Policy, SealedObject, Signed, Tpm};
use crate::error::{Error, ErrorKind, Result};
use crate::private_keys::{rsa_fingerprint, rsa_public_key};
use crate::{hex, random};

/// The token's type.
pub const TOKEN: &str = "systemd-tpm2";

/// The size of a secret, in bytes, before it is encoded as a passphrase (`tpm2_seal` in systemd).
const SECRET: usize = 32;

/// Iterations over a salted PIN (systemd, src/shared/tpm2-util.h).
const ITERATIONS: u32 = 10_000;

/// A passphrase sealed to a TPM, with everything needed to unseal it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The TPM key that it is sealed under.
    pub parent: Parent,
    /// The sealed object.
    pub blob: SealedObject,
    /// The conditions for unsealing.
    pub policy: Policy,
    /// The digest of the policy.
    pub digest: Option<Vec<u8>>,
    /// The salt that is hashed with the PIN.
    pub salt: Option<Vec<u8>>,
}

impl Envelope {
    /// Seals a new passphrase, which is text.
    ///
    /// # Errors
    /// Those of [`Tpm::seal`].
    pub fn seal(tpm: &mut Tpm, policy: Policy, pin: Option<&[u8]>) -> Result<(Self, Secret)> {
        let secret = random::secret(SECRET)?;
        let (parent, policy) = (Parent::Ecc, Policy { pin: pin.is_some(), ..policy });
        let (blob, digest) = tpm.seal(&parent, &secret, &policy, &pin.map_or_else(Pin::none, Pin::hashed))?;
        Ok((Self { parent, blob, policy, digest: Some(digest), salt: None }, random::as_passphrase(&secret)))
    }

    /// Unseals the passphrase. `pin` is required if the policy demands one.
    ///
    /// # Errors
    /// Those of [`Tpm::unseal`]; `Misuse` if a required PIN is missing.
    pub fn open(&self, tpm: &mut Tpm, pin: Option<&[u8]>) -> Result<Secret> {
        let pin = match (self.policy.pin, pin, &self.salt) {
            (false, ..) => Pin::none(),
            (true, None, _) => return Err(Error::misuse("the TPM needs a PIN for it")),
            (true, Some(pin), None) => Pin::hashed(pin),
            (true, Some(pin), Some(salt)) => {
                let mut salted = Secret::zeroed(32);
                SHA256.pbkdf2(pin, salt, ITERATIONS, &mut salted, &|| true);
                Pin::hashed(&random::as_passphrase(&salted))
            }
        };
        let secret = tpm.unseal(&self.parent, &self.blob, &self.policy, self.digest.as_deref(), &pin);
        Ok(random::as_passphrase(&secret?))
    }

    /// Checks without a PIN that the PCRs are as when it was sealed.
    ///
    /// # Errors
    /// `WrongCredential`, which names the PCR that changed if known; `Io`.
    pub fn check(&self, tpm: &mut Tpm) -> Result<()> {
        tpm.check(&self.blob, &self.policy, self.digest.as_deref())
    }

    /// Parses a token. Missing fields get the meaning from before systemd introduced them.
    ///
    /// # Errors
    /// `Malformed`, and `Unsupported` for unknown ways of sealing.
    pub fn parse(token: &Map<String, Value>) -> Result<Self> {
        if token.get("tpm2_pcrlock").and_then(Value::as_bool) == Some(true) {
            return Err(Error::unsupported("systemd-pcrlock policies in the TPM"));
        }
        let text = |name: &'static str| field(token, name, Value::as_str);
        let bytes = |name: &'static str| -> Result<Option<Vec<u8>>> {
            text(name)?.map(|text| STANDARD.decode(text).map_err(|_| malformed(name, "it is not base64"))).transpose()
        };
        if token.get("tpm2-blob").is_some_and(Value::is_array) {
            return Err(Error::unsupported("a passphrase sealed by a TPM in several parts"));
        }
        let blob = bytes("tpm2-blob")?.ok_or_else(|| malformed("tpm2-blob", "it is missing"))?;
        let bank = text("tpm2-pcr-bank")?.map_or(Some(Bank::Sha256), Bank::named);
        let bank = bank.ok_or_else(|| malformed("tpm2-pcr-bank", "no such PCR bank"))?;
        let parent = match (bytes("tpm2_srk")?, text("tpm2-primary-alg")?) {
            (Some(srk), _) => storage_key(&srk)?,
            (None, Some("ecc") | None) => Parent::Ecc,
            (None, Some("rsa")) => Parent::Rsa,
            (None, Some(_)) => return Err(malformed("tpm2-primary-alg", "it is neither ecc nor rsa")),
        };
        let digest = text("tpm2-policy-hash")?;
        let digest = digest
            .map(|digits| hex::decode_vec(digits).map_err(|_| malformed("tpm2-policy-hash", "it is not hexadecimal")));
        let signed = match (bytes("tpm2_pubkey")?, pcrs(token, "tpm2_pubkey_pcrs", bank)?) {
            (Some(pem), pcrs) => Some(Signed::new(pem, pcrs)?),
            (None, _) => None,
        };
        let pin = field(token, "tpm2-pin", Value::as_bool)?.unwrap_or(false);
        Ok(Self {
            parent,
            blob: SealedObject::parse(&blob)?,
            policy: Policy { pcrs: pcrs(token, "tpm2-pcrs", bank)?, signed, pin, pin_first: false },
            digest: digest.transpose()?,
            salt: bytes("tpm2_salt")?,
        })
    }

    /// The token without its keyslots, and without a salt, because [`Envelope::seal`] does not create one.
    pub fn token(&self) -> Map<String, Value> {
        let Policy { pcrs, pin, ref signed, .. } = self.policy;
        let numbers = |pcrs: Pcrs| pcrs.numbers().collect::<Vec<_>>();
        let token = json!({
            "type": TOKEN,
            "keyslots": [],
            "tpm2-blob": STANDARD.encode(self.blob.to_bytes()),
            "tpm2-pcrs": numbers(pcrs),
            "tpm2-pcr-bank": pcrs.bank.name(),
            "tpm2-primary-alg": if self.parent == Parent::Rsa { "rsa" } else { "ecc" },
            "tpm2-policy-hash": hex::digits(self.digest.as_deref().unwrap_or_default()),
            "tpm2-pin": pin,
        });
        let Value::Object(mut token) = token else { unreachable!("it is an object") };
        if let Some(signed) = signed {
            token.insert("tpm2_pubkey_pcrs".into(), numbers(signed.pcrs).into());
            token.insert("tpm2_pubkey".into(), STANDARD.encode(&signed.pem).into());
        }
        token
    }

    /// Adds the signatures from a file of systemd-measure that match this policy's PCRs, bank and key.
    ///
    /// # Errors
    /// `Misuse` if it is not such a file.
    pub fn take_signatures(&mut self, file: &[u8]) -> Result<()> {
        let Some(signed) = &mut self.policy.signed else { return Ok(()) };
        let no_file = || Error::misuse("this is not a PCR signature file");
        let file: Value = serde_json::from_slice(file).map_err(|_| no_file())?;
        let of_bank = file.as_object().ok_or_else(no_file)?.get(signed.pcrs.bank.name());
        for entry in of_bank.and_then(Value::as_array).into_iter().flatten() {
            let entry = entry.as_object().ok_or_else(no_file)?;
            let text = |name| entry.get(name).and_then(Value::as_str).ok_or_else(no_file);
            let key = hex::decode_vec(text("pkfp")?).map_err(|_| no_file())?;
            let policy = hex::decode_vec(text("pol")?).map_err(|_| no_file())?;
            let signature = STANDARD.decode(text("sig")?).map_err(|_| no_file())?;
            let of_key = key == signed.fingerprint && signature.len() == signed.modulus.len();
            if of_key && pcrs(entry, "pcrs", signed.pcrs.bank)? == signed.pcrs {
                signed.signatures.push((policy, signature));
            }
        }
        Ok(())
    }
}

impl Signed {
    /// PCRs whose values this public key (PEM) signs, without signatures so far.
    ///
    /// # Errors
    /// `Unsupported` for a key other than RSA of 1024 to 4096 bits, `Malformed`.
    pub fn new(pem: Vec<u8>, pcrs: Pcrs) -> Result<Self> {
        let key = rsa_public_key(&pem)?;
        // The key must fit into a TPM command.
        let key = key.filter(|key| matches!(key.modulus().len(), 128..=512));
        let key = key.ok_or_else(|| Error::unsupported("TPM policies signed by keys other than RSA"))?;
        let exponent =
            u32::try_from(key.exponent()).map_err(|_| malformed("tpm2_pubkey", "its exponent is too large"))?;
        let (modulus, fingerprint) = (key.modulus().to_vec(), rsa_fingerprint(&key));
        Ok(Self { pcrs, modulus, exponent, fingerprint, pem, signatures: Vec::new() })
    }
}

fn malformed(field: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Malformed { field, offset: 0, what: what.into() })
}

/// A field that may be missing, but must otherwise have the right type.
fn field<'a, T>(
    token: &'a Map<String, Value>,
    name: &'static str,
    of: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>> {
    let wrong = || malformed(name, "it is of another type");
    token.get(name).filter(|value| !value.is_null()).map(|value| of(value).ok_or_else(wrong)).transpose()
}

fn pcrs(token: &Map<String, Value>, name: &'static str, bank: Bank) -> Result<Pcrs> {
    let wrong = || malformed(name, "no such PCRs");
    let Some(numbers) = field(token, name, Value::as_array)? else { return Ok(Pcrs { bank, mask: 0 }) };
    let numbers = numbers.iter().map(|number| number.as_u64().ok_or_else(wrong)).collect::<Result<Vec<_>>>()?;
    Pcrs::new(bank, numbers).ok_or_else(wrong)
}

/// Parses tpm2-tss's description of a key in a TPM: its handle and name, then redundant data (tpm2-tss, `Esys_TR_Serialize`).
fn storage_key(bytes: &[u8]) -> Result<Parent> {
    let mut reader = WireReader(bytes);
    let (handle, name) = (reader.u32()?, reader.sized()?);
    if handle >> 24 != 0x81 {
        return Err(odd("it is sealed under a non-persistent key"));
    }
    Ok(Parent::Persistent { handle, name: Some(name.to_vec()) })
}
