//! The pin `tang`: a server multiplies a point by its key. It learns nothing, because the point is masked (McCallum-Relyea
//! exchange; latchset/tang, README).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claviger_crypto::Secret;
use claviger_crypto::ec::{Curve, Point, scalar};
use claviger_crypto::hash::{SHA256, SHA512};
use serde_json::{Map, Value, json};

use super::{Helpers, base64url, malformed};
use crate::error::{Error, ErrorKind, Result};
use crate::random;

const CURVE: Curve = Curve::P521;
/// The curve's name in a JWK (RFC 7518, 6.2.1.1).
const NAME: &str = "P-521";

/// A server's key, and the data to recover the JWE's key with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tang {
    url: String,
    /// The identifier of the server's key.
    kid: String,
    server: Point,
    /// The public half of the JWE's key pair; the private half was discarded.
    client: Point,
}

impl Tang {
    pub(super) fn parse(header: &Map<String, Value>, options: &Map<String, Value>) -> Result<Self> {
        let text = |from: &Map<String, Value>, name: &'static str| {
            let text = from.get(name).and_then(Value::as_str);
            text.map(str::to_owned).ok_or_else(|| malformed(name, "it is missing"))
        };
        let kid = text(header, "kid")?;
        let keys = options.get("adv").and_then(|adv| adv.get("keys")).and_then(Value::as_array);
        let known = |jwk: &&Value| thumbprints(jwk).is_some_and(|all| all.contains(&kid));
        let server = keys.into_iter().flatten().find(known).and_then(point);
        let client = header.get("epk").and_then(point);
        let missing = || Error::unsupported("tang keys on curves other than P-521");
        Ok(Self {
            url: text(options, "url")?,
            kid,
            server: server.ok_or_else(missing)?,
            client: client.ok_or_else(missing)?,
        })
    }

    pub(super) fn key(&self, with: &dyn Helpers) -> Result<Secret> {
        let odd = || {
            Error::new(ErrorKind::WrongCredential(format!(
                "{}: the tang server's answer is not a point on the curve",
                self.url
            )))
        };
        let mask = scalar(CURVE, random::fill)?;
        let masked = Point::generated(CURVE, &mask).and_then(|public| public.plus(&self.client)).ok_or_else(odd)?;
        let request = jwk(&masked, "ECMR", "deriveKey").to_string();
        let answer = with.tang(&self.url, &format!("rec/{}", self.kid), request.as_bytes())?;
        let answer = serde_json::from_slice(&answer).ok().and_then(|answer: Value| point(&answer)).ok_or_else(odd)?;
        let shared = self.server.times(&mask).and_then(|unmask| answer.minus(&unmask)).ok_or_else(odd)?;
        Ok(derived(&shared))
    }
}

/// The keys that a tang server advertises, signed by itself. A person must check that it is the right server.
#[derive(Clone, Debug)]
pub struct Advertisement {
    /// The thumbprints of the signing keys, which people verify the server by.
    pub thumbprints: Vec<String>,
    keys: Value,
    exchange: Value,
}

impl Advertisement {
    /// Parses a server's response at `adv` below its URL, and verifies the signatures of its keys.
    ///
    /// # Errors
    /// `NotThisFormat` if it is not an advertisement, or not signed.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let no = |why: &str| Error::new(ErrorKind::NotThisFormat(format!("this is not a tang server: {why}")));
        let jws: Value = serde_json::from_slice(bytes).map_err(|_| no("its answer is not JSON"))?;
        let payload = jws.get("payload").and_then(Value::as_str).ok_or_else(|| no("its answer has no payload"))?;
        let keys: Value = serde_json::from_slice(&base64url(payload)?).map_err(|_| no("its keys are not JSON"))?;
        let all = keys.get("keys").and_then(Value::as_array).ok_or_else(|| no("it has no keys"))?;
        let with = |algorithm: &'static str| all.iter().filter(move |key| key["alg"] == algorithm);
        // A single signature is a member itself; several are in an array (RFC 7515, 7.2).
        let signatures =
            jws.get("signatures").and_then(Value::as_array).map_or(std::slice::from_ref(&jws), Vec::as_slice);
        let mut signers = Vec::new();
        for key in with("ES512") {
            let signed =
                |signature: &Value| point(key).is_some_and(|key| verifies(&key, payload, signature) == Some(true));
            if !signatures.iter().any(signed) {
                return Err(no("one of its keys did not sign the others"));
            }
            signers.extend(thumbprints(key).map(|[sha256, _]| sha256));
        }
        let exchange = with("ECMR").find(|key| point(key).is_some()).cloned();
        let exchange = exchange.ok_or_else(|| no("it has no exchange key on P-521"))?;
        if signers.is_empty() {
            return Err(no("nothing is signed"));
        }
        Ok(Self { thumbprints: signers, keys, exchange })
    }

    /// The header of a JWE for the server at `url`, and the JWE's key.
    pub(super) fn bound(&self, url: &str) -> Result<(Value, Secret)> {
        let server = point(&self.exchange).expect("it was one");
        let [kid, _] = thumbprints(&self.exchange).expect("it was one");
        let own = scalar(CURVE, random::fill)?;
        let client = Point::generated(CURVE, &own).expect("it is a scalar");
        let shared = server.times(&own).ok_or_else(|| malformed("adv", "its key is not a point on the curve"))?;
        let (x, y) = (URL_SAFE_NO_PAD.encode(client.x()), URL_SAFE_NO_PAD.encode(client.y()));
        let header = json!({
            "alg": "ECDH-ES",
            "enc": "A256GCM",
            "kid": kid,
            "epk": { "kty": "EC", "crv": NAME, "x": x, "y": y },
            "clevis": { "pin": "tang", "tang": { "url": url, "adv": self.keys } },
        });
        Ok((header, derived(&shared)))
    }
}

/// Derives the key of a JWE from a shared point (RFC 7518, 4.6.2).
fn derived(shared: &Point) -> Secret {
    const ALGORITHM: &[u8] = b"A256GCM";
    let (mut key, z) = (Secret::zeroed(32), Secret::copy_from(shared.x()));
    let length = |len: usize| (len as u32).to_be_bytes();
    let parts = [&length(1)[..], &z, &length(ALGORITHM.len()), ALGORITHM, &length(0), &length(0), &length(256)];
    SHA256.digest(&parts, &mut key);
    key
}

fn point(jwk: &Value) -> Option<Point> {
    let text = |name| jwk.get(name).and_then(Value::as_str);
    let number = |name| URL_SAFE_NO_PAD.decode(text(name)?).ok();
    if text("kty") != Some("EC") || text("crv") != Some(NAME) {
        return None;
    }
    Point::new(CURVE, &number("x")?, &number("y")?)
}

fn jwk(point: &Point, algorithm: &str, for_what: &str) -> Value {
    let number = |bytes| URL_SAFE_NO_PAD.encode(bytes);
    json!({
        "alg": algorithm, "kty": "EC", "crv": NAME, "key_ops": [for_what],
        "x": number(point.x()), "y": number(point.y()),
    })
}

/// The thumbprints of a key: SHA-256, and SHA-1 for older servers (RFC 7638, 3).
fn thumbprints(jwk: &Value) -> Option<[String; 2]> {
    let text = |name| jwk.get(name).and_then(Value::as_str);
    let members = json!({ "crv": text("crv")?, "kty": text("kty")?, "x": text("x")?, "y": text("y")? });
    // serde_json sorts the members and writes no spaces.
    let members = members.to_string();
    let (mut sha256, mut sha1) = ([0; 32], [0; 20]);
    SHA256.checksum(&[members.as_bytes()], &mut sha256);
    claviger_crypto::hash::SHA1.checksum(&[members.as_bytes()], &mut sha1);
    Some([URL_SAFE_NO_PAD.encode(sha256), URL_SAFE_NO_PAD.encode(sha1)])
}

/// Whether the signature is valid for this key (RFC 7515, 5.2, with ES512 of RFC 7518, 3.4).
fn verifies(key: &Point, payload: &str, signature: &Value) -> Option<bool> {
    let protected = signature.get("protected")?.as_str()?;
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(protected).ok()?).ok()?;
    let signature = URL_SAFE_NO_PAD.decode(signature.get("signature")?.as_str()?).ok()?;
    let (r, s) = signature.split_at_checked(CURVE.size())?;
    let mut hash = [0; 64];
    SHA512.checksum(&[protected.as_bytes(), b".", payload.as_bytes()], &mut hash);
    Some(header["alg"] == "ES512" && key.verifies(&hash, r, s))
}
