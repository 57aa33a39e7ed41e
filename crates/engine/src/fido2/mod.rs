//! FIDO2 keys: a secret that only one key computes, for one salt, perhaps only when touched or with its PIN (FIDO Alliance, Client to
//! Authenticator Protocol (CTAP) 2.1, of June 2021; the extension `hmac-secret` is section 12.5).
//!
//! Only four commands are needed, so they are built here. The libraries for Rust find keys by a C library and take no other
//! transport, which leaves nothing to test them with.

mod answers;
mod pin;
mod token;
mod transport;

use claviger_crypto::Secret;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder};

use self::answers::failure;
pub use self::answers::{demands_pin, is_not_enrolled, is_pin_refusal, not_enrolled};
use self::pin::{PinProtocol, SharedSecret};
pub use self::token::{Fido2Token, TOKEN};
pub use self::transport::{Fido2Address, Fido2Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::random;
pub use crate::random::as_passphrase as passphrase;

// Section 6, the commands.
const MAKE_CREDENTIAL: u8 = 0x01;
const GET_ASSERTION: u8 = 0x02;
const GET_INFO: u8 = 0x04;
const CLIENT_PIN: u8 = 0x06;

// Section 6.5.5, the subcommands of CLIENT_PIN.
const GET_RETRIES: u8 = 0x01;
const GET_KEY_AGREEMENT: u8 = 0x02;
const GET_TOKEN: u8 = 0x05;
const GET_TOKEN_WITH_PERMISSIONS: u8 = 0x09;

/// What a PIN's token permits (section 6.5.5.7).
#[derive(Clone, Copy)]
enum Permission {
    MakeCredential = 0x01,
    GetAssertion = 0x02,
}

/// The extension's name.
const HMAC_SECRET: &str = "hmac-secret";

/// What systemd signs instead of a hash of data: nobody verifies the signature (systemd, src/shared/libfido2-util.c).
const CLIENT_DATA_HASH: [u8; 32] = [0; 32];

/// ECDSA with P-256 and SHA-256 (RFC 9053, 2.1).
const ES256: i8 = -7;

/// The size of a salt and of the secret for it, in bytes.
const SECRET: usize = 32;

/// The conditions under which a key computes the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fido2Conditions {
    /// Its PIN is given.
    pub pin: bool,
    /// It is touched.
    pub presence: bool,
    /// It recognises its user, as by a fingerprint.
    pub verification: bool,
}

/// A connected key.
pub struct Fido2Key {
    transport: Box<dyn Fido2Transport>,
    protocol: PinProtocol,
    options: Options,
    touch: Box<dyn Fn()>,
}

/// What a key can do and is set up for (section 6.4, `options`).
#[derive(Default)]
struct Options {
    /// Whether it has a PIN.
    pin: bool,
    /// Whether it can recognise its user, and is set up for that.
    verification: bool,
    /// Whether it cannot be touched.
    untouchable: bool,
    /// Whether its PIN's tokens have permissions.
    permissions: bool,
}

impl Fido2Key {
    /// Asks the key what it can do. Calls `touch` whenever it waits to be touched.
    ///
    /// # Errors
    /// `Unsupported` if it is not a FIDO2 key with the extension; `Malformed`; `Io`.
    pub fn new(mut transport: Box<dyn Fido2Transport>, touch: Box<dyn Fn()>) -> Result<Self> {
        let answer = transport.call(&[GET_INFO], &|| {})?;
        let (mut extension, mut protocols, mut options) = (false, Vec::new(), Options::default());
        let mut fields = Fields::of(body(&answer)?)?;
        while let Some(field) = fields.next()? {
            let value = &mut fields.decoder;
            match field {
                2 => extension = each(value, Decoder::str)?.contains(&HMAC_SECRET),
                4 => options = Options::read(value).map_err(malformed)?,
                6 => protocols = each(value, Decoder::u64)?,
                _ => value.skip().map_err(malformed)?,
            }
        }
        if !extension {
            return Err(Error::unsupported("a FIDO2 key without the extension hmac-secret"));
        }
        // Keys from before the field existed have the first one.
        let protocol = if protocols.contains(&2) { PinProtocol::Two } else { PinProtocol::One };
        Ok(Self { transport, protocol, options, touch })
    }

    /// Whether it has a PIN.
    pub fn has_pin(&self) -> bool {
        self.options.pin
    }

    /// Whether the secret for this token takes its PIN.
    pub fn needs_pin(&self, token: &Fido2Token) -> bool {
        token.conditions.pin && self.has_pin()
    }

    /// How many wrong PINs it still accepts.
    ///
    /// # Errors
    /// `Io`, `Malformed`.
    pub fn retries(&mut self) -> Result<u64> {
        let answer = self.client_pin(GET_RETRIES, 2, |_| Ok(()))?;
        value(&answer, 3, |retries| retries.u64())
    }

    /// Makes a credential and a salt, and returns the secret for them, like [`Fido2Key::secret`].
    ///
    /// # Errors
    /// `Misuse` if the key cannot keep the conditions, or the PIN is missing; those of [`Fido2Key::secret`].
    pub fn enroll(
        &mut self,
        conditions: Fido2Conditions,
        user: &str,
        pin: Option<&[u8]>,
    ) -> Result<(Fido2Token, Secret)> {
        if conditions.pin && !self.has_pin() {
            return Err(Error::misuse("this FIDO2 key has no PIN").hint("To set one: fido2-token -S DEVICE"));
        }
        if conditions.verification && !self.options.verification {
            return Err(Error::misuse("this FIDO2 key does not recognise its user")
                .hint("Enroll a fingerprint in the key first, or omit --fido2-with-verification."));
        }
        let conditions = Fido2Conditions { presence: conditions.presence && !self.options.untouchable, ..conditions };
        // A key with a PIN may demand it for this, whatever is required later.
        let pin_for_making = pin.filter(|_| self.has_pin());
        let proof =
            pin_for_making.map(|pin| self.prove(pin, Permission::MakeCredential, token::RELYING_PARTY)).transpose()?;
        let mut id = [0; 32];
        random::fill(&mut id)?;
        let request = encode(|e| {
            e.map(if proof.is_some() { 7 } else { 5 })?;
            e.u8(1)?.bytes(&CLIENT_DATA_HASH)?;
            e.u8(2)?.map(2)?.str("id")?.str(token::RELYING_PARTY)?.str("name")?.str("Encrypted volume")?;
            e.u8(3)?.map(3)?.str("id")?.bytes(&id)?.str("name")?.str(user)?.str("displayName")?.str(user)?;
            e.u8(4)?.array(1)?.map(2)?.str("alg")?.i8(ES256)?.str("type")?.str("public-key")?;
            e.u8(6)?.map(1)?.str(HMAC_SECRET)?.bool(true)?;
            append_proof(e, 8, proof.as_deref(), self.protocol)
        });
        let answer = self.command(MAKE_CREDENTIAL, &request)?;
        let credential = AuthenticatorData::read(&bytes(&answer, 2)?)?.credential;
        let credential = credential.ok_or_else(|| odd("it has made no credential"))?;
        let mut salt = [0; SECRET];
        random::fill(&mut salt)?;
        let token = Fido2Token { credential, salt, relying_party: token::RELYING_PARTY.to_owned(), conditions };
        let secret = self.secret(&token, pin.filter(|_| conditions.pin))?;
        Ok((token, secret))
    }

    /// Whether this key made the credential, without being touched. A key may answer `false` and have it, if it hides the credential
    /// until its PIN is given; and `true` if it does not tell.
    ///
    /// # Errors
    /// `Io`.
    pub fn shows(&mut self, token: &Fido2Token) -> Result<bool> {
        let options = self.presence(false);
        let request = encode(|e| {
            token.name_credential(e.map(if options.is_empty() { 3 } else { 4 })?)?;
            append_options(e, &options)
        });
        let answer = self.transport.call(&[&[GET_ASSERTION], &request[..]].concat(), &|| {})?;
        Ok(answer.first() != Some(&answers::NO_CREDENTIALS))
    }

    /// Computes the secret for the token's salt: 32 bytes. It may wait to be touched. With a PIN it may be another secret than without.
    ///
    /// # Errors
    /// `WrongCredential` for another key, a wrong PIN and a key that is locked or was not touched; `Misuse` if the PIN is missing;
    /// `Cancelled`, `Io`, `Malformed`.
    pub fn secret(&mut self, token: &Fido2Token, pin: Option<&[u8]>) -> Result<Secret> {
        let Fido2Conditions { presence, verification, .. } = token.conditions;
        if self.needs_pin(token) && pin.is_none() {
            return Err(Error::misuse("the FIDO2 key needs its PIN for it"));
        }
        if verification && pin.is_none() && !self.options.verification {
            let unable = || Error::misuse("this FIDO2 key must verify its user, but has no fingerprint and no PIN");
            // The PIN verifies the user, too.
            return Err(if self.has_pin() { failure(answers::PIN_REQUIRED) } else { unable() });
        }
        let proof = pin.map(|pin| self.prove(pin, Permission::GetAssertion, &token.relying_party)).transpose()?;
        let shared = self.agree()?;
        let salt = shared.encrypt(&token.salt)?;
        let authenticated = shared.authenticate(&salt);
        let mut options = self.presence(presence);
        // The PIN verifies the user, too.
        options.extend((verification && proof.is_none()).then_some(("uv", true)));
        let request = encode(|e| {
            let fields = [!options.is_empty(), proof.is_some(), proof.is_some()];
            token.name_credential(e.map(4 + fields.into_iter().filter(|there| *there).count() as u64)?)?;
            e.u8(4)?.map(1)?.str(HMAC_SECRET)?.map(if self.protocol == PinProtocol::Two { 4 } else { 3 })?;
            shared.append_public(e.u8(1)?)?;
            e.u8(2)?.bytes(&salt)?.u8(3)?.bytes(&authenticated)?;
            if self.protocol == PinProtocol::Two {
                e.u8(4)?.u8(self.protocol as u8)?;
            }
            append_options(e, &options)?;
            append_proof(e, 6, proof.as_deref(), self.protocol)
        });
        let answer = self.command(GET_ASSERTION, &request)?;
        let encrypted = AuthenticatorData::read(&bytes(&answer, 2)?)?.hmac_secret;
        let encrypted = encrypted.ok_or_else(|| odd("it has computed no secret"))?;
        let secret = shared.decrypt(&encrypted).filter(|secret| secret.len() == SECRET);
        secret.ok_or_else(|| odd("its secret has the wrong length"))
    }

    /// The option for a touch. A key that cannot be touched takes it for an error.
    fn presence(&self, wanted: bool) -> Vec<(&'static str, bool)> {
        if self.options.untouchable { Vec::new() } else { vec![("up", wanted)] }
    }

    /// Proves the PIN for one command: a MAC by the token that the key gives for it (section 6.5.5.7).
    fn prove(&mut self, pin: &[u8], permission: Permission, relying_party: &str) -> Result<Vec<u8>> {
        let shared = self.agree()?;
        let hashed = shared.encrypt(&pin::hashed(pin)?)?;
        let with = self.options.permissions;
        let subcommand = if with { GET_TOKEN_WITH_PERMISSIONS } else { GET_TOKEN };
        let answer = self.client_pin(subcommand, if with { 6 } else { 4 }, |e| {
            shared.append_public(e.u8(3)?)?;
            e.u8(6)?.bytes(&hashed)?;
            if with {
                e.u8(9)?.u8(permission as u8)?.u8(10)?.str(relying_party)?;
            }
            Ok(())
        });
        let answer = match answer {
            Err(e) if answers::is_wrong_pin(&e) => return Err(answers::wrong_pin(self.retries().ok())),
            answer => answer?,
        };
        let token = shared.decrypt(&bytes(&answer, 2)?).filter(|token| token.len() >= 16);
        let token = token.ok_or_else(|| odd("the token for its PIN has the wrong length"))?;
        Ok(self.protocol.mac(&token, &CLIENT_DATA_HASH))
    }

    fn agree(&mut self) -> Result<SharedSecret> {
        let answer = self.client_pin(GET_KEY_AGREEMENT, 2, |_| Ok(()))?;
        SharedSecret::agree(self.protocol, &value(&answer, 1, pin::coordinates)?)
    }

    /// `fields` counts also the protocol and the subcommand.
    fn client_pin(&mut self, subcommand: u8, fields: u64, more: impl FnOnce(&mut Cbor) -> Written) -> Result<Vec<u8>> {
        let protocol = self.protocol as u8;
        let request = encode(|e| {
            e.map(fields)?.u8(1)?.u8(protocol)?.u8(2)?.u8(subcommand)?;
            more(e)
        });
        self.command(CLIENT_PIN, &request)
    }

    fn command(&mut self, command: u8, request: &[u8]) -> Result<Vec<u8>> {
        let answer = self.transport.call(&[&[command], request].concat(), &*self.touch)?;
        body(&answer).map(<[u8]>::to_vec)
    }
}

impl Options {
    fn read(value: &mut Decoder<'_>) -> Decoded<Self> {
        let mut options = Self::default();
        for _ in 0..definite(value.map()?)? {
            let name = value.str()?;
            let set = value.bool()?;
            match name {
                "clientPin" => options.pin = set,
                "uv" => options.verification = set,
                "up" => options.untouchable = !set,
                "pinUvAuthToken" => options.permissions = set,
                _ => {}
            }
        }
        Ok(options)
    }
}

/// The part of an answer that both commands have (section 6.1, `authData`; WebAuthn, 6.1).
#[derive(Default)]
struct AuthenticatorData {
    credential: Option<Vec<u8>>,
    hmac_secret: Option<Vec<u8>>,
}

impl AuthenticatorData {
    fn read(bytes: &[u8]) -> Result<Self> {
        const HAS_CREDENTIAL: u8 = 0x40;
        const HAS_EXTENSIONS: u8 = 0x80;
        let mut data = Self::default();
        let short = || odd("its answer is too short");
        // The hash of the relying party, the flags, the counter.
        let (flags, mut rest) = (*bytes.get(32).ok_or_else(short)?, bytes.get(37..).ok_or_else(short)?);
        if flags & HAS_CREDENTIAL != 0 {
            // The kind of key, then the credential's length.
            let len =
                usize::from(u16::from_be_bytes([*rest.get(16).ok_or_else(short)?, *rest.get(17).ok_or_else(short)?]));
            data.credential = Some(rest.get(18..18 + len).ok_or_else(short)?.to_vec());
            let mut public = Decoder::new(&rest[18 + len..]);
            public.skip().map_err(malformed)?;
            rest = &rest[18 + len + public.position()..];
        }
        if flags & HAS_EXTENSIONS != 0 {
            let mut extensions = Decoder::new(rest);
            for _ in 0..definite(extensions.map().map_err(malformed)?).map_err(malformed)? {
                let name = extensions.str().map_err(malformed)?;
                if name == HMAC_SECRET && matches!(extensions.datatype(), Ok(Type::Bytes)) {
                    data.hmac_secret = Some(extensions.bytes().map_err(malformed)?.to_vec());
                } else {
                    extensions.skip().map_err(malformed)?;
                }
            }
        }
        Ok(data)
    }
}

type Cbor = Encoder<Vec<u8>>;
type Written = std::result::Result<(), minicbor::encode::Error<std::convert::Infallible>>;
type Decoded<T> = std::result::Result<T, minicbor::decode::Error>;

fn encode(write: impl FnOnce(&mut Cbor) -> Written) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new());
    write(&mut encoder).expect("a vector takes everything");
    encoder.into_writer()
}

/// The options of an assertion, if there are any.
fn append_options(e: &mut Cbor, options: &[(&str, bool)]) -> Written {
    if options.is_empty() {
        return Ok(());
    }
    e.u8(5)?.map(options.len() as u64)?;
    for (name, set) in options {
        e.str(name)?.bool(*set)?;
    }
    Ok(())
}

/// The last two fields of a command, if the PIN is proven.
fn append_proof(e: &mut Cbor, field: u8, proof: Option<&[u8]>, protocol: PinProtocol) -> Written {
    let Some(proof) = proof else { return Ok(()) };
    e.u8(field)?.bytes(proof)?.u8(field + 1)?.u8(protocol as u8)?;
    Ok(())
}

/// The fields of a map whose keys are small numbers.
struct Fields<'a> {
    decoder: Decoder<'a>,
    left: u64,
}

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self> {
        let mut decoder = Decoder::new(bytes);
        let left = decoder.map().and_then(definite).map_err(malformed)?;
        Ok(Self { decoder, left })
    }

    /// The number of the next field. Its value is to be read before the next call.
    fn next(&mut self) -> Result<Option<u64>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.decoder.u64().map(Some).map_err(malformed)
    }
}

/// CTAP2 has no maps or arrays of indefinite length (section 8).
fn definite(len: Option<u64>) -> Decoded<u64> {
    len.ok_or_else(|| minicbor::decode::Error::message("indefinite length"))
}

fn each<'a, T>(value: &mut Decoder<'a>, item: impl Fn(&mut Decoder<'a>) -> Decoded<T>) -> Result<Vec<T>> {
    let mut read = || -> Decoded<Vec<T>> { (0..definite(value.array()?)?).map(|_| item(value)).collect() };
    read().map_err(malformed)
}

/// The map after the status of an answer.
fn body(answer: &[u8]) -> Result<&[u8]> {
    match answer.split_first() {
        Some((0, body)) => Ok(body),
        Some((status, _)) => Err(failure(*status)),
        None => Err(odd("its answer is empty")),
    }
}

fn bytes(answer: &[u8], wanted: u64) -> Result<Vec<u8>> {
    value(answer, wanted, |value| Ok(value.bytes()?.to_vec()))
}

fn value<T>(answer: &[u8], wanted: u64, read: impl FnOnce(&mut Decoder<'_>) -> Decoded<T>) -> Result<T> {
    let mut fields = Fields::of(answer)?;
    while let Some(field) = fields.next()? {
        if field == wanted {
            return read(&mut fields.decoder).map_err(malformed);
        }
        fields.decoder.skip().map_err(malformed)?;
    }
    Err(odd(&format!("its answer lacks field {wanted}")))
}

fn malformed(error: minicbor::decode::Error) -> Error {
    odd(&format!("its answer is malformed: {error}"))
}

fn odd(what: &str) -> Error {
    ErrorKind::Malformed { field: "FIDO2 key", offset: 0, what: what.to_owned() }.into()
}

/// Enrolls with a key whose answers are these bytes, and asks it for secrets: each answer follows its length, in two bytes.
pub(crate) fn fuzz_answers(bytes: &[u8]) {
    struct Answers(Vec<u8>);
    impl Fido2Transport for Answers {
        fn call(&mut self, _: &[u8], _: &dyn Fn()) -> Result<Vec<u8>> {
            let end = self.0.get(..2).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
            let answer =
                self.0.get(2..2 + end).ok_or(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?.to_vec();
            self.0.drain(..2 + end);
            Ok(answer)
        }
    }
    let Ok(mut key) = Fido2Key::new(Box::new(Answers(bytes.to_vec())), Box::new(|| {})) else { return };
    let conditions = Fido2Conditions { pin: key.has_pin(), presence: true, verification: false };
    if let Ok((token, _)) = key.enroll(conditions, "user", Some(b"1234")) {
        let _ = key.shows(&token);
        let _ = key.secret(&token, Some(b"1234"));
    }
}
