//! Sealing to a TPM 2.0: it releases a secret only on the same machine, booted in the same way, and perhaps only with a PIN.
//!
//! Only a few commands are needed, so they are built here (TCG, Trusted Platform Module Library 2.0, Part 3), without a full
//! library. Objects and sessions are removed from the TPM after use: without a resource manager it has room for three.

mod answers;
mod envelope;
mod measured;
mod session;
mod transport;
mod wire;

use claviger_crypto::Secret;
use claviger_crypto::hash::{self, Hash, SHA256};
use zeroize::Zeroizing;

pub use self::envelope::{Envelope, TOKEN};
pub use self::measured::{EventLog, LOG_MAX};
use self::session::{CONTINUE, DECRYPT, ENCRYPT, SIZE, SessionExchange, TpmSession};
pub use self::transport::{TpmAddress, TpmTransport};
use self::wire::{Bytes, WireReader, odd};
use crate::deadline::Cancel;
use crate::error::{Error, ErrorKind, Result};
use crate::random;

// Part 2, 6.3.
const ALG_RSA: u16 = 0x0001;
const ALG_AES: u16 = 0x0006;
const ALG_KEYED_HASH: u16 = 0x0008;
const ALG_SHA256: u16 = 0x000b;
const ALG_NULL: u16 = 0x0010;
const ALG_RSASSA: u16 = 0x0014;
const ALG_ECC: u16 = 0x0023;
const ALG_CFB: u16 = 0x0043;
/// Part 2, 6.4.
const P256: u16 = 0x0003;

// Part 2, 7.4.
const OWNER: u32 = 0x4000_0001;
const NULL: u32 = 0x4000_0007;
const PASSWORD: u32 = 0x4000_0009;

// Part 2, 6.9.
const SESSIONS: u16 = 0x8002;
const NO_SESSIONS: u16 = 0x8001;

// Part 2, 6.5.2.
const CREATE_PRIMARY: u32 = 0x131;
const CREATE: u32 = 0x153;
const LOAD: u32 = 0x157;
const UNSEAL: u32 = 0x15e;
const FLUSH_CONTEXT: u32 = 0x165;
const LOAD_EXTERNAL: u32 = 0x167;
const POLICY_AUTHORIZE: u32 = 0x16a;
const POLICY_AUTH_VALUE: u32 = 0x16b;
const READ_PUBLIC: u32 = 0x173;
const START_AUTH_SESSION: u32 = 0x176;
const VERIFY_SIGNATURE: u32 = 0x177;
const PCR_READ: u32 = 0x17e;
const POLICY_PCR: u32 = 0x17f;
const POLICY_GET_DIGEST: u32 = 0x189;

// Part 2, 8.3.
const FIXED_TPM: u32 = 1 << 1;
const FIXED_PARENT: u32 = 1 << 4;
const SENSITIVE_DATA_ORIGIN: u32 = 1 << 5;
const USER_WITH_AUTH: u32 = 1 << 6;
/// Wrong passwords for it do not lock the TPM.
const NO_DA: u32 = 1 << 10;
const RESTRICTED: u32 = 1 << 16;
const DECRYPTS: u32 = 1 << 17;
const SIGNS: u32 = 1 << 18;

/// An empty `TPMT_TK_VERIFIED`: the tag, the null hierarchy, no digest (Part 2, 10.7.4).
const NO_TICKET: [u8; 8] = [0x80, 0x22, 0x40, 0, 0, 7, 0, 0];

/// The number of PCRs in every TPM.
pub const PCRS: u32 = 24;

/// How often a command is repeated while the TPM is busy.
const ATTEMPTS: u32 = 100;

/// A hash. PCRs come in one bank per hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bank {
    /// SHA-1.
    Sha1,
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// Every bank with its name and its algorithm (Part 2, 6.3).
const BANKS: [(Bank, &str, u16); 4] = [
    (Bank::Sha1, "sha1", 0x0004),
    (Bank::Sha256, "sha256", ALG_SHA256),
    (Bank::Sha384, "sha384", 0x000c),
    (Bank::Sha512, "sha512", 0x000d),
];

impl Bank {
    /// The bank of this name.
    pub fn named(name: &str) -> Option<Self> {
        BANKS.iter().find(|(_, known, _)| *known == name).map(|(bank, ..)| *bank)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The bank whose digests have this size, in bytes.
    pub(crate) fn of_size(size: usize) -> Option<Self> {
        BANKS.iter().map(|(bank, ..)| *bank).find(|bank| bank.hash().size == size)
    }

    fn algorithm(self) -> u16 {
        self.row().2
    }

    /// The hash of this algorithm.
    fn of(algorithm: u16) -> Option<&'static Hash> {
        BANKS.iter().find(|(.., known)| *known == algorithm).map(|(bank, ..)| bank.hash())
    }

    fn hash(self) -> &'static Hash {
        match self {
            Self::Sha1 => &hash::SHA1,
            Self::Sha256 => &SHA256,
            Self::Sha384 => &hash::SHA384,
            Self::Sha512 => &hash::SHA512,
        }
    }

    fn row(self) -> (Self, &'static str, u16) {
        *BANKS.iter().find(|(bank, ..)| *bank == self).expect("all of them are there")
    }
}

/// PCRs of one bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pcrs {
    /// Their bank.
    pub bank: Bank,
    /// A bit for each.
    pub mask: u32,
}

impl Pcrs {
    /// The PCRs with these numbers. `None` if a number is not below [`PCRS`].
    pub fn new(bank: Bank, numbers: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut mask = 0;
        for number in numbers {
            mask |= 1 << u32::try_from(number).ok().filter(|number| *number < PCRS)?;
        }
        Some(Self { bank, mask })
    }

    /// Their numbers.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        (0..PCRS).filter(move |number| self.mask >> number & 1 == 1)
    }

    fn selection(self, bytes: Bytes) -> Bytes {
        let [a, b, c, _] = self.mask.to_le_bytes();
        bytes.u32(1).u16(self.bank.algorithm()).u8(3).raw(&[a, b, c])
    }
}

/// The conditions under which the TPM releases a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// These PCRs have the same values as at sealing.
    pub pcrs: Pcrs,
    /// Other PCRs have values signed with a key.
    pub signed: Option<Signed>,
    /// The PIN is given.
    pub pin: bool,
    /// The PIN comes before the PCRs, which makes a different policy. Windows does this.
    pub pin_first: bool,
}

impl Policy {
    /// The variants of this policy. systemd before version 255 stored the usual exponent as it is, and since then as zero, which
    /// gives the key a different name (Part 2, 12.2.3.5).
    fn forms(&self) -> Vec<Self> {
        let zero = self.signed.as_ref().filter(|signed| signed.exponent == 65537);
        let zero = zero.map(|signed| Self { signed: Some(Signed { exponent: 0, ..signed.clone() }), ..self.clone() });
        [Some(self.clone()), zero].into_iter().flatten().collect()
    }
}

/// A policy that can be updated: it accepts PCR values signed with this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The PCRs.
    pub pcrs: Pcrs,
    /// Modulus of the RSA key, big-endian.
    pub modulus: Vec<u8>,
    /// Exponent of the RSA key.
    pub exponent: u32,
    /// The key's fingerprint, which signatures refer to.
    pub fingerprint: [u8; 32],
    /// The key in PEM.
    pub pem: Vec<u8>,
    /// Known signatures, each after the digest of the policy it approves.
    pub signatures: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Signed {
    /// The public area of the key, for a TPM.
    fn public(&self) -> Bytes {
        let public = Bytes::new().u16(ALG_RSA).u16(ALG_SHA256).u32(DECRYPTS | SIGNS | USER_WITH_AUTH).sized(&[]);
        let public = public.u16(ALG_NULL).u16(ALG_NULL).u16(self.modulus.len() as u16 * 8);
        public.u32(self.exponent).sized(&self.modulus)
    }
}

/// The TPM key that a secret is sealed under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parent {
    /// A P-256 key that the TPM derives each time, always the same.
    #[default]
    Ecc,
    /// The same with RSA-2048.
    Rsa,
    /// A persistent key in the TPM.
    Persistent {
        /// Its handle.
        handle: u32,
        /// Its name, if known.
        name: Option<Vec<u8>>,
    },
}

/// An object sealed by a TPM; only that TPM can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedObject {
    /// The encrypted half (`TPM2B_PRIVATE`, without its length).
    pub private: Vec<u8>,
    /// The public half (`TPM2B_PUBLIC`, without its length).
    pub public: Vec<u8>,
}

impl SealedObject {
    /// Parses both halves, each with its length, the encrypted one first, as systemd stores them.
    ///
    /// # Errors
    /// `Io` if it is truncated or has extra data.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (blob, rest) = Self::at_front(bytes)?;
        WireReader(rest).end()?;
        Ok(blob)
    }

    /// Parses both halves from the front of `bytes`, and returns the rest.
    ///
    /// # Errors
    /// `Io` if it is truncated.
    pub(crate) fn at_front(bytes: &[u8]) -> Result<(Self, &[u8])> {
        let mut reader = WireReader(bytes);
        let blob = Self { private: reader.sized()?.to_vec(), public: reader.sized()?.to_vec() };
        // It must fit into a command with other parameters.
        if blob.private.len() + blob.public.len() > wire::LONGEST / 2 {
            return Err(odd("it is too long"));
        }
        Ok((blob, reader.0))
    }

    /// The inverse of [`SealedObject::parse`].
    pub fn to_bytes(&self) -> Vec<u8> {
        Bytes::new().sized(&self.private).sized(&self.public).to_vec()
    }
}

/// A PIN in the TPM's form: without trailing zeros (Part 1, 19.6.5).
#[derive(Debug)]
pub struct Pin(Secret);

impl Pin {
    /// No PIN.
    pub fn none() -> Self {
        Self(Secret::zeroed(0))
    }

    /// A PIN as the TPM gets it.
    pub(crate) fn raw(password: &[u8]) -> Self {
        let len = password.len() - password.iter().rev().take_while(|byte| **byte == 0).count();
        Self(Secret::copy_from(&password[..len]))
    }

    /// A PIN hashed like in systemd (systemd, src/shared/tpm2-util.c).
    pub fn hashed(typed: &[u8]) -> Self {
        let mut hash = Secret::zeroed(SIZE);
        SHA256.digest(&[typed], &mut hash);
        Self::raw(&hash)
    }
}

/// A key or a sealed secret loaded in the TPM.
struct Object {
    handle: u32,
    public: Vec<u8>,
    name: Vec<u8>,
}

impl Object {
    fn new(handle: u32, public: &[u8]) -> Result<Self> {
        Ok(Self { handle, public: public.to_vec(), name: name(public)? })
    }

    /// The digest of the policy that the TPM requires. tpm2-tools create objects without one.
    fn policy(&self) -> Result<&[u8]> {
        policy_of(&self.public)
    }
}

/// The digest of the policy in a public area.
fn policy_of(public: &[u8]) -> Result<&[u8]> {
    let mut area = WireReader(public);
    let (_kind, _name, _attributes) = (area.u16()?, area.u16()?, area.u32()?);
    area.sized()
}

/// The name of a public area (Part 1, 16).
fn name(public: &[u8]) -> Result<Vec<u8>> {
    let mut area = WireReader(public);
    if (area.u16()?, area.u16()?).1 != ALG_SHA256 {
        return Err(odd("the name algorithm of a public area is not SHA-256"));
    }
    Ok([&ALG_SHA256.to_be_bytes()[..], &sha256(&[public])].concat())
}

fn sha256(parts: &[&[u8]]) -> [u8; SIZE] {
    let mut hash = [0; SIZE];
    SHA256.checksum(parts, &mut hash);
    hash
}

/// A successful response.
struct Answer(Zeroizing<Vec<u8>>);

impl Answer {
    /// Reads what follows tag, size and code.
    fn reader(&self) -> WireReader<'_> {
        WireReader(&self.0[10..])
    }
}

/// A connection to a TPM.
pub struct Tpm {
    transport: Box<dyn TpmTransport>,
    log: Option<EventLog>,
}

impl Tpm {
    /// Uses this transport.
    pub fn new(transport: Box<dyn TpmTransport>) -> Self {
        Self { transport, log: None }
    }

    /// The same with the firmware's event log, which helps errors to say what changed.
    pub fn with_log(self, log: Option<EventLog>) -> Self {
        Self { log, ..self }
    }

    /// Connects to a TPM. Setting `cancel` ends every exchange with it.
    ///
    /// # Errors
    /// Those of [`TpmAddress::connect`].
    pub fn connect(address: &TpmAddress, cancel: Cancel) -> Result<Self> {
        Ok(Self::new(address.connect(cancel)?))
    }

    /// Checks that this key is there.
    ///
    /// # Errors
    /// `WrongCredential` if it is not; `Io`.
    pub(crate) fn find(&mut self, parent: &Parent) -> Result<()> {
        self.parent(parent).map(drop)
    }

    /// Seals a secret of at most 128 bytes. Returns what [`Tpm::unseal`] needs, and the digest of the policy.
    ///
    /// # Errors
    /// `Io` if the TPM fails, or refuses to create a storage key.
    pub fn seal(
        &mut self,
        parent: &Parent,
        secret: &[u8],
        policy: &Policy,
        pin: &Pin,
    ) -> Result<(SealedObject, Vec<u8>)> {
        let parent = self.parent(parent)?;
        self.with(parent.handle, |tpm| {
            let trial = tpm.start(Kind::Trial, None)?;
            let digest = tpm.with(trial.handle, |tpm| tpm.satisfy(&trial, policy))?;
            let session = tpm.start(Kind::Hmac, Some(&parent))?;
            // As Windows has it: without a PIN nobody can guess wrong, and a locked TPM still releases it.
            let no_lockout = if policy.pin_first && pin.0.is_empty() { NO_DA } else { 0 };
            let area = Bytes::new().u16(ALG_KEYED_HASH).u16(ALG_SHA256).u32(FIXED_TPM | FIXED_PARENT | no_lockout);
            let public = area.sized(&digest).u16(ALG_NULL).sized(&[]);
            let blob = tpm.with(session.handle, |tpm| tpm.create(&session, &parent, secret, &public, pin))?;
            Ok((blob, digest))
        })
    }

    /// Unseals a secret. `digest` is the digest of the policy, if it is recorded outside the blob: a policy with a different digest
    /// is not even tried.
    ///
    /// # Errors
    /// `WrongCredential` if PCRs have other values, the PIN is wrong, there were too many wrong ones, or another TPM sealed it;
    /// `Io`.
    pub fn unseal(
        &mut self,
        parent: &Parent,
        blob: &SealedObject,
        policy: &Policy,
        digest: Option<&[u8]>,
        pin: &Pin,
    ) -> Result<Secret> {
        let parent = self.parent(parent)?;
        self.with(parent.handle, |tpm| {
            let object = tpm.load(&parent, blob)?;
            tpm.with(object.handle, |tpm| {
                for policy in policy.forms() {
                    let session = if object.policy()?.is_empty() { Kind::Hmac } else { Kind::Policy };
                    let session = tpm.start(session, Some(&parent))?;
                    let unsealed =
                        tpm.with(session.handle, |tpm| tpm.unseal_by(&session, &object, &policy, digest, pin))?;
                    if let Some(secret) = unsealed {
                        return Ok(secret);
                    }
                }
                let changed = tpm.check(blob, policy, digest).err();
                Err(changed.unwrap_or_else(|| answers::other_state("PCRs differ from when this was sealed".into())))
            })
        })
    }

    /// Checks that the PCRs are as the object's policy demands, or the one with this digest. Takes no PIN, and checks no signature.
    ///
    /// # Errors
    /// `WrongCredential` that says which PCR changed if that can be told; `Io`.
    pub(crate) fn check(&mut self, blob: &SealedObject, policy: &Policy, digest: Option<&[u8]>) -> Result<()> {
        let wanted = digest.map_or_else(|| policy_of(&blob.public), Ok)?;
        let (forms, values) = (policy.forms(), self.pcr_values(policy.pcrs)?);
        for form in &forms {
            // tpm2-tools create objects without a policy.
            if wanted.is_empty() || measured::digest(form, &values)? == wanted {
                return Ok(());
            }
        }
        Err(measured::changed(&forms, &values, wanted, self.log.as_ref()))
    }

    /// The digest of the values of these PCRs.
    ///
    /// # Errors
    /// `WrongCredential` if the TPM lacks their bank; `Io`.
    pub(crate) fn pcr_digest(&mut self, pcrs: Pcrs) -> Result<Vec<u8>> {
        let (values, hash) = (self.pcr_values(pcrs)?, pcrs.bank.hash());
        let mut digest = vec![0; hash.size];
        hash.checksum(&values.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut digest);
        Ok(digest)
    }

    /// The values of these PCRs, in order (Part 3, `TPM2_PCR_Read`: a response has at most eight).
    fn pcr_values(&mut self, pcrs: Pcrs) -> Result<Vec<Vec<u8>>> {
        let mut values = Vec::new();
        for number in pcrs.numbers() {
            let one = Pcrs { mask: 1 << number, ..pcrs };
            let answer = self.plain(PCR_READ, one.selection(Bytes::new()))?;
            let mut reader = answer.reader();
            let _updates = reader.u32()?;
            for _ in 0..reader.u32()? {
                let (_bank, len) = (reader.u16()?, reader.u8()?);
                reader.take(len.into())?;
            }
            if reader.u32()? != 1 {
                let what =
                    format!("the TPM no longer has the {} bank of PCRs that this was sealed with", pcrs.bank.name());
                return Err(answers::other_state(what));
            }
            values.push(reader.sized()?.to_vec());
        }
        Ok(values)
    }

    /// Unseals a loaded object. `None` if this variant of its policy does not match.
    fn unseal_by(
        &mut self,
        session: &TpmSession,
        object: &Object,
        policy: &Policy,
        digest: Option<&[u8]>,
        pin: &Pin,
    ) -> Result<Option<Secret>> {
        let wanted = object.policy()?;
        let free = wanted.is_empty();
        if !free && self.satisfy(session, policy)? != digest.unwrap_or(wanted) {
            return Ok(None);
        }
        let exchange = SessionExchange::new(session, &pin.0, policy.pin || free)?;
        let answer = self.in_session(&exchange, ENCRYPT | CONTINUE, UNSEAL, object, Bytes::new())?;
        WireReader(&answer).sized().map(|secret| Some(Secret::copy_from(secret)))
    }

    /// Runs `then` with an object or a session, then removes it from the TPM unless it is persistent.
    fn with<T>(&mut self, handle: u32, then: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        /// The first byte of persistent handles (Part 2, 7.2).
        const PERSISTENT: u32 = 0x81;
        let done = then(self);
        if handle >> 24 != PERSISTENT {
            // The result is already decided; a failure here does not change it.
            let _ = self.plain(FLUSH_CONTEXT, Bytes::new().u32(handle));
        }
        done
    }

    /// The key for sealing.
    fn parent(&mut self, which: &Parent) -> Result<Object> {
        match which {
            Parent::Ecc | Parent::Rsa => self.primary(which),
            Parent::Persistent { handle, name } => {
                let answer = self.plain(READ_PUBLIC, Bytes::new().u32(*handle))?;
                let object = Object::new(*handle, answer.reader().sized()?)?;
                match name {
                    Some(name) if *name != object.name => Err(answers::failure(0x09f)),
                    _ => Ok(object),
                }
            }
        }
    }

    /// The template of tpm2-tools, and of systemd before it used the shared storage key. The TPM derives the same key from it each
    /// time.
    fn primary(&mut self, which: &Parent) -> Result<Object> {
        let attributes = FIXED_TPM | FIXED_PARENT | SENSITIVE_DATA_ORIGIN | USER_WITH_AUTH | RESTRICTED | DECRYPTS;
        let area = |kind| Bytes::new().u16(kind).u16(ALG_SHA256).u32(attributes).sized(&[]);
        let symmetric = |area: Bytes| area.u16(ALG_AES).u16(128).u16(ALG_CFB).u16(ALG_NULL);
        let template = match which {
            Parent::Rsa => symmetric(area(ALG_RSA)).u16(2048).u32(0).sized(&[]),
            _ => symmetric(area(ALG_ECC)).u16(P256).u16(ALG_NULL).sized(&[]).sized(&[]),
        };
        let nothing_sensitive = |bytes: Bytes| bytes.sized(&[]).sized(&[]);
        let parameters = Bytes::new().within(nothing_sensitive).sized(&template).sized(&[]).u32(0);
        let answer = self.by_password(CREATE_PRIMARY, OWNER, parameters).map_err(|e| match e.kind {
            ErrorKind::WrongCredential(_) => Error::unsupported("TPMs with an owner hierarchy password"),
            _ => e,
        })?;
        let mut reader = answer.reader();
        let (handle, _size) = (reader.u32()?, reader.u32()?);
        Object::new(handle, reader.sized()?)
    }

    fn load(&mut self, parent: &Object, blob: &SealedObject) -> Result<Object> {
        let parameters = Bytes::new().sized(&blob.private).sized(&blob.public);
        let answer = self.by_password(LOAD, parent.handle, parameters)?;
        Object::new(answer.reader().u32()?, &blob.public)
    }

    fn create(
        &mut self,
        session: &TpmSession,
        parent: &Object,
        secret: &[u8],
        public: &[u8],
        pin: &Pin,
    ) -> Result<SealedObject> {
        let parameters = Bytes::new().within(|bytes| bytes.sized(&pin.0).sized(secret)).sized(public).sized(&[]).u32(0);
        let exchange = SessionExchange::new(session, &[], true)?;
        let answer = self.in_session(&exchange, DECRYPT | CONTINUE, CREATE, parent, parameters)?;
        let mut reader = WireReader(&answer);
        Ok(SealedObject { private: reader.sized()?.to_vec(), public: reader.sized()?.to_vec() })
    }

    /// Starts a session, salted with the TPM's key.
    fn start(&mut self, kind: Kind, key: Option<&Object>) -> Result<TpmSession> {
        let mut nonce = [0; SIZE];
        random::fill(&mut nonce)?;
        let (salt, sealed) = key.map(|key| session::salt(&key.public)).transpose()?.unzip();
        let handles = Bytes::new().u32(key.map_or(NULL, |key| key.handle)).u32(NULL);
        let parameters = handles.sized(&nonce).sized(sealed.as_deref().unwrap_or_default()).u8(kind as u8);
        let parameters = match key {
            Some(_) => parameters.u16(ALG_AES).u16(128).u16(ALG_CFB),
            None => parameters.u16(ALG_NULL),
        };
        let answer = self.plain(START_AUTH_SESSION, parameters.u16(ALG_SHA256))?;
        let mut reader = answer.reader();
        let (handle, nonce_tpm) = (reader.u32()?, reader.sized()?.to_vec());
        let mut session_key = Secret::zeroed(salt.as_ref().map_or(0, |_| SIZE));
        if let Some(salt) = salt {
            session::kdf_a(&salt, b"ATH", &nonce_tpm, &nonce, &mut session_key);
        }
        Ok(TpmSession { handle, kind, key: session_key, nonce_tpm })
    }

    /// Satisfies the policy in the TPM, in systemd's order, and returns the resulting digest.
    fn satisfy(&mut self, session: &TpmSession, policy: &Policy) -> Result<Vec<u8>> {
        let trial = session.kind == Kind::Trial;
        let session = session.handle;
        match &policy.signed {
            // A trial session accepts any state as signed (Part 3, 23.16).
            Some(signed) if trial => self.authorize(session, signed, &[], &NO_TICKET)?,
            Some(signed) => self.satisfy_signed(session, signed)?,
            None => {}
        }
        if policy.pin && policy.pin_first {
            self.plain(POLICY_AUTH_VALUE, Bytes::new().u32(session))?;
        }
        if policy.pcrs.mask != 0 {
            self.policy_pcr(session, policy.pcrs)?;
        }
        if policy.pin && !policy.pin_first {
            self.plain(POLICY_AUTH_VALUE, Bytes::new().u32(session))?;
        }
        self.digest(session)
    }

    fn policy_pcr(&mut self, session: u32, pcrs: Pcrs) -> Result<()> {
        self.plain(POLICY_PCR, pcrs.selection(Bytes::new().u32(session).sized(&[]))).map(drop)
    }

    fn digest(&mut self, session: u32) -> Result<Vec<u8>> {
        let answer = self.plain(POLICY_GET_DIGEST, Bytes::new().u32(session))?;
        Ok(answer.reader().sized()?.to_vec())
    }

    fn satisfy_signed(&mut self, session: u32, signed: &Signed) -> Result<()> {
        self.policy_pcr(session, signed.pcrs)?;
        let approved = self.digest(session)?;
        let of_state = signed.signatures.iter().find(|(policy, _)| *policy == approved);
        let (_, signature) = of_state.ok_or_else(|| {
            Error::new(ErrorKind::WrongCredential(
                "the TPM requires a signature for this machine's PCRs, and none matches".into(),
            ))
            .hint("Give the signature file with --tpm2-signature FILE.")
        })?;
        let answer = self.plain(LOAD_EXTERNAL, Bytes::new().sized(&[]).sized(&signed.public()).u32(OWNER))?;
        let key = answer.reader().u32()?;
        self.with(key, |tpm| {
            let parameters = Bytes::new().u32(key).sized(&sha256(&[&approved]));
            let parameters = parameters.u16(ALG_RSASSA).u16(ALG_SHA256).sized(signature);
            let ticket = tpm.plain(VERIFY_SIGNATURE, parameters)?;
            tpm.authorize(session, signed, &approved, ticket.reader().0)
        })
    }

    /// Presents the TPM's own ticket, which proves that the key signed the approved state.
    fn authorize(&mut self, session: u32, signed: &Signed, approved: &[u8], ticket: &[u8]) -> Result<()> {
        let parameters = Bytes::new().u32(session).sized(approved).sized(&[]).sized(&name(&signed.public())?);
        self.plain(POLICY_AUTHORIZE, parameters.raw(ticket)).map(drop)
    }

    /// A command without authorisation.
    fn plain(&mut self, code: u32, behind: Bytes) -> Result<Answer> {
        self.exchange(NO_SESSIONS, code, &behind)
    }

    /// A command on a handle with an empty password.
    fn by_password(&mut self, code: u32, handle: u32, parameters: Bytes) -> Result<Answer> {
        let authorisation = Bytes::new().u32(PASSWORD).sized(&[]).u8(0).sized(&[]);
        let command = Bytes::new().u32(handle).u32(authorisation.len() as u32).raw(&authorisation).raw(&parameters);
        self.exchange(SESSIONS, code, &command)
    }

    /// A command on an object, authorised and encrypted by a session. Returns the decrypted parameters of the response.
    fn in_session(
        &mut self,
        exchange: &SessionExchange<'_>,
        attributes: u8,
        code: u32,
        object: &Object,
        mut parameters: Bytes,
    ) -> Result<Zeroizing<Vec<u8>>> {
        if attributes & DECRYPT != 0 {
            let first = first_parameter(&parameters)?;
            exchange.encrypt(&mut parameters.bytes_mut()[first]);
        }
        let digest = sha256(&[&code.to_be_bytes(), &object.name, &parameters]);
        let authorisation = exchange.authorisation(&digest, attributes);
        let command =
            Bytes::new().u32(object.handle).u32(authorisation.len() as u32).raw(&authorisation).raw(&parameters);
        let answer = self.exchange(SESSIONS, code, &command)?;
        let mut reader = answer.reader();
        let len = reader.u32()? as usize;
        let mut parameters = Zeroizing::new(reader.take(len)?.to_vec());
        // The response code was that of success.
        let digest = sha256(&[&[0; 4], &code.to_be_bytes(), &parameters]);
        let nonce = exchange.check(&digest, reader)?;
        if attributes & ENCRYPT != 0 {
            let first = first_parameter(&parameters)?;
            exchange.decrypt(&nonce, &mut parameters[first]);
        }
        Ok(parameters)
    }

    fn exchange(&mut self, tag: u16, code: u32, behind: &[u8]) -> Result<Answer> {
        let command = Bytes::new().u16(tag).u32(behind.len() as u32 + 10).u32(code).raw(behind);
        // Data from a false TPM may make it too long.
        if command.len() > wire::LONGEST {
            return Err(odd("the command would be too long for a TPM"));
        }
        for _ in 0..ATTEMPTS {
            let answer = Answer(Zeroizing::new(self.transport.exchange(&command)?));
            let mut reader = WireReader(&answer.0);
            let (_tag, size, code) = (reader.u16()?, reader.u32()?, reader.u32()?);
            if size as usize != answer.0.len() {
                return Err(odd("its length field is wrong"));
            }
            match code {
                0 => return Ok(answer),
                code if answers::AGAIN.contains(&code) => std::thread::sleep(std::time::Duration::from_millis(20)),
                code => return Err(answers::failure(code)),
            }
        }
        Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    }
}

/// Kinds of sessions (Part 2, 6.11).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hmac = 0,
    Policy = 1,
    Trial = 3,
}

/// The range of the first parameter, which begins with its length.
fn first_parameter(parameters: &[u8]) -> Result<std::ops::Range<usize>> {
    let len = WireReader(parameters).sized()?.len();
    Ok(2..2 + len)
}

/// Seals and unseals with a TPM whose responses are parts of these bytes, each preceded by its length.
pub(crate) fn fuzz_answers(bytes: &[u8]) {
    struct Answers(Vec<u8>, usize);
    impl TpmTransport for Answers {
        fn exchange(&mut self, _: &[u8]) -> std::io::Result<Vec<u8>> {
            let answer = WireReader(&self.0[self.1..]).sized().unwrap_or_default().to_vec();
            self.1 = (self.1 + 2 + answer.len()).min(self.0.len());
            if answer.is_empty() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
        }
    }
    let tpm = || Tpm::new(Box::new(Answers(bytes.to_vec(), 0)));
    let policy = Policy { pcrs: Pcrs { bank: Bank::Sha256, mask: 1 << 7 }, pin: true, ..Policy::default() };
    let _ = tpm().seal(&Parent::Ecc, &[7; 32], &policy, &Pin::hashed(b"pin"));
    let blob = SealedObject { private: vec![1; 16], public: vec![0, 8, 0, 11, 0, 0, 0, 0, 0, 1, 5] };
    let _ = tpm().unseal(&Parent::Rsa, &blob, &policy, None, &Pin::hashed(b"pin"));
}

/// See [`crate::fuzzing::tpm2_event_log`].
pub(crate) fn fuzz_event_log(bytes: &[u8]) {
    let Ok(log) = EventLog::parse(bytes) else { return };
    let policy = Policy { pcrs: Pcrs { bank: Bank::Sha256, mask: 1 | 1 << 4 | 1 << 7 }, ..Policy::default() };
    let values = [const { [0; SIZE] }; 3].map(Vec::from);
    let _ = measured::changed(&policy.forms(), &values, &[0; SIZE], Some(&log));
}
