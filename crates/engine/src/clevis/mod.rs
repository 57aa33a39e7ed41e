//! clevis bindings of LUKS2 volumes: a passphrase in a JWE (RFC 7516). The key comes from a tang server, from a TPM, or from
//! several of these together (latchset/clevis, src/pins).

mod tang;
mod tpm2;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claviger_crypto::{Secret, gcm, shares};
use serde_json::{Map, Value, json};

pub use self::tang::{Advertisement, Tang};
use self::tpm2::SealedKey;
use crate::error::{Error, ErrorKind, Result};
use crate::fido2::Fido2Token;
use crate::random;
use crate::tpm2::{Pcrs, Tpm};

/// The token's type.
pub const TOKEN: &str = "clevis";

/// The deepest nesting of pins, and the most pins at one level.
const DEEPEST: usize = 4;
const MOST: usize = 32;

/// Access to TPMs and servers. Anybody can write a header that names a server, so the implementation decides which one to contact.
pub trait Helpers {
    /// The TPM to use.
    ///
    /// # Errors
    /// `Misuse` if there is no TPM.
    fn tpm(&self) -> Result<Tpm>;

    /// Has a FIDO2 key compute the secret for this token.
    ///
    /// # Errors
    /// Those of [`Fido2Key::secret`](crate::fido2::Fido2Key::secret); `Misuse` if there is no key.
    fn fido2(&self, token: &Fido2Token) -> Result<Secret>;

    /// Sends `body`, a JWK, to a tang server at `path` below its `url`, and returns the response.
    ///
    /// # Errors
    /// `Misuse` if this server may not be contacted; `Io`.
    fn tang(&self, url: &str, path: &str, body: &[u8]) -> Result<Vec<u8>>;
}

/// A ciphertext, and the pin that recovers its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwe {
    /// The header, exactly as authenticated.
    protected: String,
    nonce: [u8; gcm::NONCE],
    ciphertext: Vec<u8>,
    tag: [u8; gcm::TAG],
    pin: Pin,
}

/// The means to recover a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pin {
    Tang(Box<Tang>),
    Tpm(Box<SealedKey>),
    /// Not a pin of clevis, which has none for these keys.
    Fido2(Box<Fido2Token>),
    /// The threshold, the prime, and the JWEs with shares of the key.
    Shares(usize, Box<[u8; shares::SIZE]>, Vec<Jwe>),
}

impl Jwe {
    /// Parses a token.
    ///
    /// # Errors
    /// `Malformed`, and `Unsupported` for unknown pins and ciphers.
    pub fn parse(token: &Map<String, Value>) -> Result<Self> {
        let jwe = token.get("jwe").and_then(Value::as_object).ok_or_else(|| malformed("jwe", "it is not an object"))?;
        let text = |name| jwe.get(name).and_then(Value::as_str).ok_or_else(|| malformed("jwe", "a part is missing"));
        Self::of_parts([text("protected")?, text("iv")?, text("ciphertext")?, text("tag")?], 0)
    }

    /// Parses the single line that `clevis encrypt` writes.
    ///
    /// # Errors
    /// `NotThisFormat` if it is not a JWE, `Malformed`, and `Unsupported` for unknown pins and ciphers.
    pub fn parse_line(line: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(line).ok().map(str::trim_ascii).filter(|text| text.split('.').count() == 5);
        let no_jwe = || Error::new(ErrorKind::NotThisFormat("this is not a JWE made by clevis".into()));
        Self::compact(text.ok_or_else(no_jwe)?, 0)
    }

    /// Parses compact form: five parts separated by dots. The second part, an encrypted key, is empty.
    fn compact(text: &str, depth: usize) -> Result<Self> {
        let parts: Vec<_> = text.split('.').collect();
        let [protected, "", iv, ciphertext, tag] = parts[..] else {
            return Err(malformed("jwe", "it does not have five parts"));
        };
        Self::of_parts([protected, iv, ciphertext, tag], depth)
    }

    fn of_parts([protected, iv, ciphertext, tag]: [&str; 4], depth: usize) -> Result<Self> {
        let header = serde_json::from_slice(&base64url(protected)?);
        let header: Map<String, Value> = header.map_err(|_| malformed("protected", "it is not JSON"))?;
        let header_text = |name| header.get(name).and_then(Value::as_str).unwrap_or_default();
        if header_text("enc") != "A256GCM" || header.contains_key("zip") {
            return Err(Error::unsupported("a JWE encrypted with anything but A256GCM"));
        }
        let clevis = header.get("clevis").ok_or_else(|| malformed("protected", "it names no pin"))?;
        let kind = clevis.get("pin").and_then(Value::as_str).unwrap_or_default();
        let options = clevis.get(kind).and_then(Value::as_object);
        let options = options.ok_or_else(|| malformed("protected", "its pin has no settings"))?;
        let pin = match (kind, header_text("alg")) {
            ("tang", "ECDH-ES") => Pin::Tang(Box::new(Tang::parse(&header, options)?)),
            ("tpm2", "dir") => Pin::Tpm(Box::new(SealedKey::parse(options)?)),
            ("fido2", "dir") => Pin::Fido2(Box::new(Fido2Token::parse(options)?)),
            ("sss", "dir") if depth < DEEPEST => Self::shares(options, depth)?,
            _ => return Err(Error::unsupported("clevis pins other than tang, tpm2, fido2 and sss")),
        };
        let array = |what| malformed("jwe", what);
        Ok(Self {
            protected: protected.to_owned(),
            nonce: base64url(iv)?.try_into().map_err(|_| array("its initialisation vector has the wrong length"))?,
            ciphertext: base64url(ciphertext)?,
            tag: base64url(tag)?.try_into().map_err(|_| array("its tag has the wrong length"))?,
            pin,
        })
    }

    fn shares(options: &Map<String, Value>, depth: usize) -> Result<Pin> {
        let prime = options.get("p").and_then(Value::as_str).ok_or_else(|| malformed("p", "it is missing"))?;
        let prime: [u8; shares::SIZE] =
            base64url(prime)?.try_into().map_err(|_| Error::unsupported("shares that are not 256 bits long"))?;
        let parts = options.get("jwe").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let threshold = options.get("t").and_then(Value::as_u64).unwrap_or(0) as usize;
        if threshold == 0 || threshold > parts.len() || parts.len() > MOST {
            return Err(malformed("t", "it is not among the shares"));
        }
        let parts = parts.iter().map(|part| {
            Self::compact(part.as_str().ok_or_else(|| malformed("jwe", "a share is not text"))?, depth + 1)
        });
        Ok(Pin::Shares(threshold, Box::new(prime), parts.collect::<Result<_>>()?))
    }

    /// The PCRs, if it is bound to a TPM alone.
    pub fn tpm_pcrs(&self) -> Option<Pcrs> {
        if let Pin::Tpm(sealed) = &self.pin { Some(sealed.pcrs) } else { None }
    }

    /// Checks that the PCRs are as when it was bound; `None` if it is not bound to a TPM alone.
    pub(crate) fn check(&self, tpm: &mut Tpm) -> Option<Result<()>> {
        if let Pin::Tpm(sealed) = &self.pin { Some(sealed.check(tpm)) } else { None }
    }

    /// Decrypts the contents.
    ///
    /// # Errors
    /// Those of the helpers: if too few of several succeeded, the last error. `WrongCredential` if a helper's result is wrong.
    pub fn open(&self, with: &dyn Helpers) -> Result<Secret> {
        let key = match &self.pin {
            Pin::Tang(tang) => tang.key(with)?,
            Pin::Tpm(sealed) => sealed.key(&mut with.tpm()?)?,
            Pin::Fido2(token) => with.fido2(token)?,
            Pin::Shares(threshold, prime, parts) => combined(*threshold, prime, parts, with)?,
        };
        let wrong = || Error::new(ErrorKind::WrongCredential("the key that clevis recovered does not open it".into()));
        if key.len() != 32 {
            return Err(wrong());
        }
        let opened = gcm::open(&key, &self.nonce, self.protected.as_bytes(), &self.ciphertext, &self.tag);
        opened.ok_or_else(wrong)
    }
}

/// A new binding: the header of a JWE, and the key that it leads to.
pub struct Binding {
    header: Value,
    key: Secret,
}

impl Binding {
    /// Binds to the tang server at `url`, which sent this advertisement.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn tang(url: &str, advertisement: &Advertisement) -> Result<Self> {
        let (header, key) = advertisement.bound(url)?;
        Ok(Self { header, key })
    }

    /// Binds to a TPM and to the current values of these PCRs.
    ///
    /// # Errors
    /// `Misuse` if no PCR is given; those of [`Tpm::seal`].
    pub fn tpm(tpm: &mut Tpm, pcrs: Pcrs) -> Result<Self> {
        let key = random::secret(32)?;
        Ok(Self { header: SealedKey::seal(tpm, pcrs, &key)?.header(), key })
    }

    /// Binds to a FIDO2 key, which computes this secret for the token.
    pub fn fido2(token: &Fido2Token, secret: Secret) -> Self {
        Self { header: direct("fido2", Value::Object(token.token())), key: secret }
    }

    /// Binds to any `threshold` of these bindings.
    ///
    /// # Errors
    /// `Misuse` if there are fewer than that, or more than 32; `Io`.
    pub fn shares(parts: &[Self], threshold: usize) -> Result<Self> {
        if !(1..=parts.len()).contains(&threshold) || parts.len() > MOST {
            return Err(Error::misuse(format!(
                "{threshold} of {} shares are needed, but too few are available",
                parts.len()
            )));
        }
        let (key, shares) = shares::share(threshold, parts.len(), random::fill)?;
        let jwe = parts.iter().zip(&shares).map(|(part, share)| part.line(share)).collect::<Result<Vec<_>>>()?;
        let options = json!({ "t": threshold, "p": URL_SAFE_NO_PAD.encode(shares::PRIME), "jwe": jwe });
        Ok(Self { header: direct("sss", options), key })
    }

    /// Creates a passphrase, and the token that leads to it, without its keyslots.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn bind(&self) -> Result<(Map<String, Value>, Secret)> {
        let passphrase = random::passphrase()?;
        let [protected, iv, ciphertext, tag] = self.seal(&passphrase)?;
        let jwe =
            json!({ "protected": protected, "encrypted_key": "", "iv": iv, "ciphertext": ciphertext, "tag": tag });
        let token = json!({ "type": TOKEN, "keyslots": [], "jwe": jwe });
        let Value::Object(token) = token else { unreachable!("it is an object") };
        Ok((token, passphrase))
    }

    /// Seals a secret, in the single line that `clevis encrypt` writes.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn line(&self, secret: &[u8]) -> Result<String> {
        let [protected, iv, ciphertext, tag] = self.seal(secret)?;
        Ok(format!("{protected}..{iv}.{ciphertext}.{tag}"))
    }

    /// The parts of a JWE without the encrypted key, which is empty.
    fn seal(&self, message: &[u8]) -> Result<[String; 4]> {
        let protected = URL_SAFE_NO_PAD.encode(self.header.to_string());
        let mut nonce = [0; gcm::NONCE];
        random::fill(&mut nonce)?;
        let (ciphertext, tag) = gcm::seal(&self.key, &nonce, protected.as_bytes(), message);
        let [iv, ciphertext, tag] = [&nonce[..], &ciphertext, &tag].map(|part| URL_SAFE_NO_PAD.encode(part));
        Ok([protected, iv, ciphertext, tag])
    }
}

/// The header of a JWE whose key comes directly from a pin.
fn direct(pin: &str, options: Value) -> Value {
    json!({ "alg": "dir", "enc": "A256GCM", "clevis": { "pin": pin, pin: options } })
}

/// The key recovered from shares in `parts`.
fn combined(threshold: usize, prime: &[u8; shares::SIZE], parts: &[Jwe], with: &dyn Helpers) -> Result<Secret> {
    let (mut found, mut error) = (Vec::with_capacity(threshold), None);
    for part in parts {
        match part.open(with) {
            Ok(share) => found.push(share),
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => return Err(e),
            Err(e) => error = Some(e),
        }
        if found.len() == threshold {
            let key = shares::combine(prime, &found);
            return key.ok_or_else(|| malformed("jwe", "its parts are not shares"));
        }
    }
    Err(error.unwrap_or_else(|| malformed("t", "there are too few shares")))
}

fn malformed(field: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Malformed { field, offset: 0, what: what.into() })
}

fn base64url(text: &str) -> Result<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed("jwe", "a part is not base64"))
}
