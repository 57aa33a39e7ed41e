//! `gocryptfs.conf`: JSON with the encrypted master key, the cost of its derivation, and the folder's features (gocryptfs 2.3,
//! internal/configfile, config_file.go, feature_flags.go and validate.go).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::modes::{MessageCipher, aead};
use claviger_crypto::scrypt::ScryptParams;
use claviger_crypto::{Acceleration, Secret};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keys::{GCM_INFO, derived};
use crate::credential::{FolderOptions, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::fido2::{Fido2Conditions, Fido2Token};
use crate::file_formats::scrypt;
use crate::password_strength::GuessWork;
use crate::random;
use crate::volume::Sealing;

/// The file in the root folder.
pub const CONFIG: &str = "gocryptfs.conf";

/// How the name of a new one begins until it is complete.
pub(super) const NEW_CONFIG: &str = "gocryptfs.conf.new.";

/// The most bytes that are read of it.
pub(super) const MOST: usize = 64 << 10;

/// The only version since gocryptfs 0.4.
const VERSION: u64 = 2;

/// Bytes of the master key, and of all keys but that of AES-SIV.
pub(super) const KEY: usize = 32;

/// Bytes of a salt.
const SALT: usize = 32;

/// The least costs that gocryptfs takes (scrypt.go).
const LEAST: ScryptParams = ScryptParams { n: 1 << 10, r: 8, p: 1 };

/// Bytes of the nonce of the master key without [`Flag::Hkdf`]: gocryptfs before 1.3.
const SHORT_NONCE: usize = 12;

/// Bytes of a nonce of GCM.
pub(super) const NONCE: usize = 16;

/// A feature of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    PlaintextNames,
    DirIv,
    EmeNames,
    GcmIv128,
    LongNames,
    LongNameMax,
    AesSiv,
    Raw64,
    Hkdf,
    Fido2,
    XChaCha20Poly1305,
}

/// The feature and the object of a folder that a FIDO2 key opens.
const FIDO2: &str = "FIDO2";

/// All features, by their names.
const FLAGS: &[(&str, Flag)] = &[
    ("PlaintextNames", Flag::PlaintextNames),
    ("DirIV", Flag::DirIv),
    ("EMENames", Flag::EmeNames),
    ("GCMIV128", Flag::GcmIv128),
    ("LongNames", Flag::LongNames),
    ("LongNameMax", Flag::LongNameMax),
    ("AESSIV", Flag::AesSiv),
    ("Raw64", Flag::Raw64),
    ("HKDF", Flag::Hkdf),
    (FIDO2, Flag::Fido2),
    ("XChaCha20Poly1305", Flag::XChaCha20Poly1305),
];

/// The file as it is stored.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Fields {
    encrypted_key: String,
    scrypt_object: ScryptFields,
    version: u64,
    feature_flags: Vec<String>,
    #[serde(default)]
    long_name_max: u8,
    #[serde(rename = "FIDO2")]
    fido2: Option<Value>,
}

/// What a FIDO2 key computes its secret for. gocryptfs 2.5 added the options, which it passes to `fido2-assert -t`.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Fido2Fields {
    #[serde(rename = "CredentialID")]
    credential_id: String,
    #[serde(rename = "HMACSalt")]
    hmac_salt: String,
    /// Go writes an empty list as `null`.
    assert_options: Option<Vec<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ScryptFields {
    salt: String,
    n: u64,
    r: u32,
    p: u32,
    key_len: u64,
}

/// The cipher of contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentCipher {
    /// AES-256-GCM.
    #[default]
    AesGcm,
    /// AES-SIV with two keys of 256 bits.
    AesSiv,
    /// XChaCha20-Poly1305.
    XChaCha20Poly1305,
}

impl ContentCipher {
    /// All of them, the default first.
    pub(super) const ALL: [Self; 3] = [Self::AesGcm, Self::AesSiv, Self::XChaCha20Poly1305];

    /// Its name, and the size of its key in bits.
    pub(super) fn name(self) -> (&'static str, u32) {
        match self {
            Self::AesGcm => ("AES-GCM", 256),
            Self::AesSiv => ("AES-SIV", 512),
            Self::XChaCha20Poly1305 => ("XChaCha20-Poly1305", 256),
        }
    }

    /// Bytes of a nonce and a tag.
    pub(super) fn overhead(self) -> usize {
        match self {
            Self::AesGcm | Self::AesSiv => NONCE + 16,
            Self::XChaCha20Poly1305 => 24 + 16,
        }
    }
}

/// How names are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameEncryption {
    /// Encrypted, in each folder with another IV.
    #[default]
    PerFolder,
    /// Encrypted. A name is stored in the same way in all folders.
    Deterministic,
    /// Not encrypted.
    None,
}

/// A valid configuration.
pub(super) struct Config {
    /// The whole file: fields that are not known here stay when it is rewritten.
    file: Map<String, Value>,
    sealed_key: Vec<u8>,
    cost: ScryptParams,
    salt: Vec<u8>,
    /// What says how a FIDO2 key computes the secret that seals the master key, instead of a passphrase. It is only looked at when
    /// the key is asked: the master key opens the folder without it.
    fido2: Option<Value>,
    pub hkdf: bool,
    pub cipher: ContentCipher,
    pub names: NameEncryption,
    /// Whether Base64 has no padding.
    pub raw64: bool,
    /// The longest stored name that is not shortened, in bytes; `None` if none is.
    pub longest_name: Option<usize>,
}

/// Whether this looks like the file, valid or not.
pub(super) fn is_config(bytes: &[u8]) -> bool {
    let object: Option<Map<String, Value>> = serde_json::from_slice(bytes).ok();
    object.is_some_and(|object| object.contains_key("EncryptedKey") && object.contains_key("ScryptObject"))
}

fn malformed(what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field: CONFIG, offset: 0, what: what.into() }.into()
}

impl Config {
    /// Reads the file.
    ///
    /// # Errors
    /// `Malformed`; `Unsupported` with the name of a feature.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let json = |e: serde_json::Error| malformed(format!("invalid JSON: {e}"));
        let file: Map<String, Value> = serde_json::from_slice(bytes).map_err(json)?;
        let version = file.get("Version").and_then(Value::as_u64);
        if version.is_some_and(|version| version != VERSION) {
            let what = format!("version {} of gocryptfs's format", version.unwrap_or_default());
            return Err(Error::unsupported(what));
        }
        let fields: Fields = serde_json::from_value(Value::Object(file.clone())).map_err(json)?;
        let flags = flags(&fields.feature_flags)?;
        let ScryptFields { salt, n, r, p, key_len } = fields.scrypt_object;
        let (sealed_key, salt) = (decoded("EncryptedKey", &fields.encrypted_key)?, decoded("Salt", &salt)?);
        let weak = n < LEAST.n || r < LEAST.r || p < LEAST.p || salt.len() < SALT;
        if weak || key_len != KEY as u64 {
            let what = format!("scrypt with N={n}, R={r}, P={p}, {} bytes of salt and a key of {key_len}", salt.len());
            return Err(malformed(format!("gocryptfs never writes {what}")));
        }
        let has = |flag| flags.contains(&flag);
        let hkdf = has(Flag::Hkdf);
        if sealed_key.len() != nonce_of_key(hkdf) + KEY + 16 {
            return Err(malformed(format!("the encrypted master key has {} bytes", sealed_key.len())));
        }
        if has(Flag::LongNameMax) != (fields.long_name_max != 0) {
            return Err(malformed(format!("LongNameMax is {}, which does not fit the flags", fields.long_name_max)));
        }
        let fido2 = has(Flag::Fido2).then(|| fields.fido2.unwrap_or(Value::Null));
        let longest = if fields.long_name_max == 0 { LONGEST_NAME } else { usize::from(fields.long_name_max) };
        Ok(Self {
            file,
            sealed_key,
            cost: ScryptParams { n, r, p },
            salt,
            fido2,
            hkdf,
            cipher: content_cipher(&has)?,
            names: name_encryption(&has)?,
            raw64: has(Flag::Raw64),
            longest_name: has(Flag::LongNames).then_some(longest),
        })
    }

    /// Whether a FIDO2 key opens the folder.
    pub fn by_fido2(&self) -> bool {
        self.fido2.is_some()
    }

    /// What the FIDO2 key needs to know; `None` if a passphrase opens the folder.
    ///
    /// # Errors
    /// `Malformed`; `Unsupported` with an option for the key.
    pub fn fido2(&self) -> Result<Option<Fido2Token>> {
        let Some(fields) = &self.fido2 else { return Ok(None) };
        if fields.is_null() {
            return Err(malformed("it has the flag FIDO2, but no FIDO2 object"));
        }
        let fields: Fido2Fields =
            serde_json::from_value(fields.clone()).map_err(|e| malformed(format!("FIDO2: {e}")))?;
        fields.token().map(Some)
    }

    /// The master key. If a FIDO2 key seals it, its secret is the passphrase.
    ///
    /// # Errors
    /// `WrongCredential`, `TooLittleMemory`, `Cancelled`, `Malformed`; those of [`Unlock::may_take`].
    pub fn master_key(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<Secret> {
        let sealing = self.sealing(&self.key_of(passphrase, with)?, with.acceleration);
        let mut key = Secret::zeroed(KEY);
        let opened = sealing.open_in(&[0; 8], &self.sealed_key, &mut key);
        opened.then_some(key).ok_or_else(|| self.not_opened())
    }

    fn not_opened(&self) -> Error {
        let wrong = |what: &str| Error::new(ErrorKind::WrongCredential(what.into()));
        match self.fido2 {
            None => wrong("the passphrase does not open the master key of this folder")
                .hint("After a change of the passphrase, an older configuration opens with the old one."),
            Some(_) => wrong("this is not the secret of the FIDO2 key that opens the folder's master key").hint(
                "Without that FIDO2 key, only the master key opens the folder: the 64 digits that gocryptfs printed.",
            ),
        }
    }

    /// The file with the master key sealed with another passphrase, and with this cost.
    ///
    /// # Errors
    /// Those of [`Config::master_key`].
    pub fn resealed(mut self, key: &Secret, passphrase: &Secret, log_n: u8, with: &Unlock<'_>) -> Result<Vec<u8>> {
        self.cost = cost(log_n)?;
        self.salt = vec![0; SALT];
        random::fill(&mut self.salt)?;
        let sealing = self.sealing(&self.key_of(passphrase, with)?, with.acceleration);
        let mut sealed = Secret::zeroed(key.len() + sealing.overhead());
        sealing.seal_in(&[0; 8], key, &mut sealed)?;
        let ScryptParams { n, r, p } = self.cost;
        let scrypt = ScryptFields { salt: STANDARD.encode(&self.salt), n, r, p, key_len: KEY as u64 };
        let scrypt = serde_json::to_value(scrypt).map_err(std::io::Error::from)?;
        self.file.insert("ScryptObject".into(), scrypt);
        self.file.insert("EncryptedKey".into(), STANDARD.encode(&*sealed).into());
        if self.fido2.is_some() {
            self.without_fido2();
        }
        let mut bytes = serde_json::to_vec_pretty(&self.file).map_err(std::io::Error::from)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Forgets the FIDO2 key: a passphrase seals the key instead.
    fn without_fido2(&mut self) {
        self.file.remove(FIDO2);
        if let Some(Value::Array(flags)) = self.file.get_mut("FeatureFlags") {
            flags.retain(|flag| flag != FIDO2);
        }
    }

    /// The cost of the derivation, as the logarithm of scrypt's N.
    pub fn log_n(&self) -> u8 {
        self.cost.n.trailing_zeros() as u8
    }

    /// The key that the passphrase gives.
    fn key_of(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<Secret> {
        scrypt::derive(self.cost, passphrase, &self.salt, CONFIG, with)
    }

    /// What seals the master key. It is a block of contents with the number 0, of no file, and always in GCM.
    fn sealing(&self, key: &Secret, with: Acceleration) -> Sealing {
        let nonce = nonce_of_key(self.hkdf);
        let cipher: Box<dyn MessageCipher> = match self.hkdf {
            true => aead::gcm(&derived(key, GCM_INFO, KEY), nonce, with),
            false => aead::gcm(key, nonce, with),
        };
        Sealing { cipher: cipher.into(), tag_first: false }
    }
}

impl Fido2Fields {
    /// What the key needs to know to compute the secret (gocryptfs 2.3, internal/fido2/fido2.go). gocryptfs asks without a PIN first.
    fn token(&self) -> Result<Fido2Token> {
        /// The name under which gocryptfs makes its credentials.
        const RELYING_PARTY: &str = "gocryptfs";
        let mut conditions = Fido2Conditions { pin: false, presence: true, verification: false };
        for option in self.assert_options.iter().flatten() {
            let condition = match option.split_once('=') {
                Some(("pin", value)) => Some((&mut conditions.pin, value)),
                Some(("up", value)) => Some((&mut conditions.presence, value)),
                Some(("uv", value)) => Some((&mut conditions.verification, value)),
                _ => None,
            };
            let set = condition.and_then(|(condition, value)| value.parse().ok().map(|value| *condition = value));
            set.ok_or_else(|| Error::unsupported(format!("the option {option} for its FIDO2 key")))?;
        }
        Fido2Token::new(
            decoded("CredentialID", &self.credential_id)?,
            &decoded("HMACSalt", &self.hmac_salt)?,
            RELYING_PARTY,
            conditions,
        )
        .map_err(|_| malformed("the FIDO2 key's credential or salt has the wrong length"))
    }
}

fn decoded(field: &str, text: &str) -> Result<Vec<u8>> {
    STANDARD.decode(text).map_err(|e| malformed(format!("the Base64 of {field} is invalid: {e}")))
}

fn nonce_of_key(hkdf: bool) -> usize {
    if hkdf { NONCE } else { SHORT_NONCE }
}

fn flags(names: &[String]) -> Result<Vec<Flag>> {
    let known = |name: &String| {
        let flag = FLAGS.iter().find(|(known, _)| known == name).map(|(_, flag)| *flag);
        flag.ok_or_else(|| Error::unsupported(format!("the feature {name} of gocryptfs")))
    };
    names.iter().map(known).collect()
}

fn content_cipher(has: &impl Fn(Flag) -> bool) -> Result<ContentCipher> {
    match [Flag::XChaCha20Poly1305, Flag::AesSiv, Flag::GcmIv128].map(has) {
        [true, false, false] if has(Flag::Hkdf) => Ok(ContentCipher::XChaCha20Poly1305),
        [false, true, true] => Ok(ContentCipher::AesSiv),
        [false, false, true] => Ok(ContentCipher::AesGcm),
        [false, false, false] => Err(deprecated("GCMIV128")),
        _ => Err(malformed("its flags name more than one cipher")),
    }
}

fn name_encryption(has: &impl Fn(Flag) -> bool) -> Result<NameEncryption> {
    let encrypted = [Flag::EmeNames, Flag::DirIv, Flag::LongNames, Flag::Raw64, Flag::LongNameMax];
    match (has(Flag::PlaintextNames), has(Flag::EmeNames), has(Flag::DirIv)) {
        (true, ..) if encrypted.into_iter().any(has) => {
            Err(malformed("its flags say that names are both encrypted and not"))
        }
        (true, ..) => Ok(NameEncryption::None),
        (false, true, true) => Ok(NameEncryption::PerFolder),
        (false, true, false) => Ok(NameEncryption::Deterministic),
        (false, false, _) => Err(deprecated("EMENames")),
    }
}

fn deprecated(flag: &str) -> Error {
    Error::unsupported(format!("a folder of gocryptfs 0.6 or older, without the feature {flag}"))
        .hint("gocryptfs 0.11 upgrades it: https://github.com/rfjakob/gocryptfs/wiki/Upgrading")
}

/// The cost with this logarithm of N.
fn cost(log_n: u8) -> Result<ScryptParams> {
    match 1u64.checked_shl(log_n.into()) {
        Some(n) if n >= LEAST.n && log_n <= MOST_LOG_N => Ok(ScryptParams { n, ..LEAST }),
        _ => Err(Error::misuse(format!("a scrypt cost of 10 to {MOST_LOG_N} can be written, not {log_n}"))),
    }
}

/// The largest logarithm of N for new passphrases: 4 GiB of memory.
const MOST_LOG_N: u8 = 22;

/// The properties of a new folder. The defaults are those of gocryptfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFolder {
    /// The cipher of contents.
    pub cipher: ContentCipher,
    /// How names are stored.
    pub names: NameEncryption,
    /// The longest stored name that is not shortened, in bytes, if it is not the default: 62 to 255.
    pub longest_name: Option<u8>,
    /// Whether keys are derived from the master key. Only versions before 1.3 did not.
    pub hkdf: bool,
    /// Whether names in Base64 have no padding. They had before version 1.2.
    pub raw64: bool,
    /// The cost of deriving a key from the passphrase: the logarithm of scrypt's N, 10 to 22. 16 takes 64 MiB.
    pub log_n: u8,
}

impl Default for NewFolder {
    fn default() -> Self {
        let (cipher, names) = (ContentCipher::default(), NameEncryption::default());
        Self { cipher, names, longest_name: None, hkdf: true, raw64: true, log_n: 16 }
    }
}

/// The usual limit for names: the longest stored one that is not shortened, in bytes.
const LONGEST_NAME: usize = 255;

/// The shortest limit for names: shortened ones have 62 bytes and more (gocryptfs(1), `-longnamemax`).
pub(super) const LEAST_LONGEST_NAME: u8 = 62;

impl NewFolder {
    /// The default with the cipher and the names that the options ask for.
    ///
    /// # Errors
    /// `Misuse` for a cipher or a key size that gocryptfs does not have.
    pub(super) fn asked(options: &FolderOptions<'_>) -> Result<Self> {
        if options.key_bytes.is_some() {
            return Err(Error::misuse("the keys of gocryptfs have a fixed size").hint("Omit --key-size."));
        }
        let names = if options.clear_names { NameEncryption::None } else { NameEncryption::default() };
        let default = if options.reverse { ContentCipher::AesSiv } else { ContentCipher::default() };
        let Some(name) = options.cipher else { return Ok(Self { cipher: default, names, ..Self::default() }) };
        let cipher = ContentCipher::ALL.into_iter().find(|cipher| cipher.name().0.eq_ignore_ascii_case(name));
        let cipher = cipher.ok_or_else(|| {
            let known = ContentCipher::ALL.map(|cipher| cipher.name().0).join(", ");
            Error::misuse(format!("gocryptfs has no cipher {name:?}")).hint(format!("It has {known}."))
        })?;
        Ok(Self { cipher, names, ..Self::default() })
    }

    /// The work of one guess of its passphrase.
    pub(super) fn guess_work(&self) -> GuessWork {
        GuessWork::Scrypt { n: 1 << self.log_n, r: LEAST.r.into() }
    }

    /// The configuration of a new folder, whose master key is random.
    ///
    /// # Errors
    /// `Misuse` for values that exclude each other; those of [`Config::master_key`].
    pub(super) fn config(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<Vec<u8>> {
        self.unsealed()?.resealed(&random::secret(KEY)?, passphrase, self.log_n, with)
    }

    /// The configuration without a master key.
    ///
    /// # Errors
    /// `Misuse` for values that exclude each other.
    pub(super) fn unsealed(&self) -> Result<Config> {
        if self.cipher == ContentCipher::XChaCha20Poly1305 && !self.hkdf {
            return Err(Error::misuse("XChaCha20-Poly1305 needs keys derived from the master key"));
        }
        let limit = self.longest_name.filter(|_| self.names != NameEncryption::None);
        if limit.is_some_and(|limit| limit < LEAST_LONGEST_NAME) || limit != self.longest_name {
            let what = "gocryptfs shortens encrypted names that are longer than 62 to 255 bytes";
            return Err(Error::misuse(what));
        }
        let file = serde_json::json!({
            "Creator": concat!("claviger ", env!("CARGO_PKG_VERSION")),
            "Version": VERSION,
            "FeatureFlags": self.flags(),
        });
        let Value::Object(mut file) = file else { return Err(Error::misuse("an object is no object")) };
        if let Some(limit) = limit {
            file.insert("LongNameMax".into(), limit.into());
        }
        Ok(Config {
            file,
            sealed_key: Vec::new(),
            cost: cost(self.log_n)?,
            salt: Vec::new(),
            fido2: None,
            hkdf: self.hkdf,
            cipher: self.cipher,
            names: self.names,
            raw64: self.raw64,
            longest_name: (self.names != NameEncryption::None).then_some(limit.map_or(LONGEST_NAME, usize::from)),
        })
    }

    /// What a folder may be whose configuration is lost, the likeliest first. `per_folder` says whether its root has an IV for names.
    pub(super) fn possible(per_folder: bool) -> impl Iterator<Item = Self> {
        use NameEncryption::{Deterministic, None, PerFolder};
        let names: &[_] = if per_folder { &[PerFolder] } else { &[Deterministic, None] };
        let ages = [(true, true), (false, true), (false, false), (true, false)];
        let all = names.iter().flat_map(move |names| ages.map(|(hkdf, raw64)| (*names, hkdf, raw64)));
        let all = all.flat_map(|(names, hkdf, raw64)| {
            ContentCipher::ALL.map(|cipher| Self { cipher, names, hkdf, raw64, ..Self::default() })
        });
        // Clear names have no padding, and the newest cipher came after derived keys.
        all.filter(|new| new.raw64 || new.names != None)
            .filter(|new| new.hkdf || new.cipher != ContentCipher::XChaCha20Poly1305)
    }

    fn flags(&self) -> Vec<&'static str> {
        let encrypted = self.names != NameEncryption::None;
        let wanted = |flag| match flag {
            Flag::PlaintextNames => !encrypted,
            Flag::DirIv => self.names == NameEncryption::PerFolder,
            Flag::EmeNames | Flag::LongNames => encrypted,
            Flag::GcmIv128 => self.cipher != ContentCipher::XChaCha20Poly1305,
            Flag::LongNameMax => self.longest_name.is_some(),
            Flag::AesSiv => self.cipher == ContentCipher::AesSiv,
            Flag::Raw64 => encrypted && self.raw64,
            Flag::Hkdf => self.hkdf,
            Flag::Fido2 => false,
            Flag::XChaCha20Poly1305 => self.cipher == ContentCipher::XChaCha20Poly1305,
        };
        FLAGS.iter().filter(|(_, flag)| wanted(*flag)).map(|(name, _)| *name).collect()
    }
}
