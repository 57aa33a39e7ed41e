//! `vault.cryptomator`, a signed JSON Web Token, and `masterkey.cryptomator`, JSON with the wrapped keys (cryptofs, VaultConfig.java;
//! cryptolib, MasterkeyFileAccess.java).

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use claviger_crypto::hash::{Hash, SHA256, SHA384, SHA512};
use claviger_crypto::scrypt::ScryptParams;
use claviger_crypto::{Secret, key_wrap};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use unicode_normalization::UnicodeNormalization;

use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::file_formats::scrypt;
use crate::random;

/// The file in the root folder that says how the vault is encrypted, since format 8.
pub const CONFIG: &str = "vault.cryptomator";

/// The file in the root folder with the keys.
pub const MASTERKEY: &str = "masterkey.cryptomator";

/// The most bytes that are read of them.
pub(super) const MOST: usize = 64 << 10;

/// Bytes of each of the two keys.
pub(super) const KEY: usize = 32;

/// The `kid` of a vault that a passphrase opens. Nobody chooses another file.
const KID: &str = "masterkeyfile:masterkey.cryptomator";

/// The version of a new vault, and the older one that is written, too.
const VERSION: u64 = 8;
const VERSION_7: u64 = 7;

/// The oldest supported version, which is only read. Before, the passphrase was not normalised (cryptofs, Version6Migrator.java).
const VERSION_6: u64 = 6;

/// The version in key files since format 8, where it no longer means anything (`DEFAULT_MASTERKEY_FILE_VERSION`).
const NO_VERSION: u32 = 999;

/// The longest stored name that is not shortened, by default and before format 8 (`DEFAULT_SHORTENING_THRESHOLD`).
const THRESHOLD: u64 = 220;

/// The cost of a new key file (`DEFAULT_SCRYPT_COST_PARAM`, `DEFAULT_SCRYPT_BLOCK_SIZE`): 32 MiB.
pub(super) const COST: ScryptParams = ScryptParams { n: 1 << 15, r: 8, p: 1 };

/// Bytes of a new salt. Cryptomator's have 8.
const SALT: usize = 32;

/// The most bytes of a salt that are taken.
const MOST_SALT: usize = 1024;

/// Base64 with or without padding: Cryptomator writes tokens without it, as RFC 7515 demands, others with it.
const TOKEN: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How names and contents are encrypted (cryptolib, CryptorProvider.java).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CipherCombo {
    /// Names in AES-SIV, contents in AES-GCM.
    #[default]
    SivGcm,
    /// Names in AES-SIV, contents in AES-CTR with HMAC-SHA256. The only one before format 8.
    SivCtrMac,
}

impl CipherCombo {
    /// Both, the default first.
    pub(super) const ALL: [Self; 2] = [Self::SivGcm, Self::SivCtrMac];

    /// As the vault's configuration calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SivGcm => "SIV_GCM",
            Self::SivCtrMac => "SIV_CTRMAC",
        }
    }

    /// The cipher of contents.
    pub(super) fn of_contents(self) -> &'static str {
        match self {
            Self::SivGcm => "AES-GCM",
            Self::SivCtrMac => "AES-CTR-HMAC",
        }
    }
}

/// A vault's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Config {
    pub version: u64,
    pub combo: CipherCombo,
    /// The longest stored name that is not shortened, in bytes.
    pub threshold: usize,
}

impl Config {
    /// Those of a vault of format 7, which has no configuration.
    pub const VERSION_7: Self =
        Self { version: VERSION_7, combo: CipherCombo::SivCtrMac, threshold: THRESHOLD as usize };

    /// Those of a vault of format 6. [`super::old`] says when it shortens names.
    pub const VERSION_6: Self = Self { version: VERSION_6, ..Self::VERSION_7 };

    /// Those of a new vault.
    pub fn new(combo: CipherCombo) -> Self {
        Self { version: VERSION, combo, threshold: THRESHOLD as usize }
    }

    /// Whether each folder holds its own ID, encrypted.
    pub fn has_ids(&self) -> bool {
        self.version >= VERSION
    }

    /// Whether entries are files alone, and their names say what they are: see [`super::old`].
    pub fn is_old(&self) -> bool {
        self.version <= VERSION_6
    }

    /// The file of an entry that leads to a folder, for messages.
    pub fn leading_file(&self) -> &'static str {
        if self.is_old() { "ID of the folder" } else { "dir.c9r" }
    }

    /// The configuration, signed.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn signed(&self, master: &Secret) -> Result<Vec<u8>> {
        let header = json!({ "kid": KID, "alg": "HS256", "typ": "JWT" });
        let claims = json!({
            "jti": uuid()?, "format": self.version, "cipherCombo": self.combo.name(), "shorteningThreshold": self.threshold,
        });
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let mut token = format!("{header}.{claims}");
        let signature = signature(&SHA256, master, &token);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(&*signature, &mut token);
        Ok(token.into_bytes())
    }
}

/// A random UUID of version 4 (RFC 9562, 5.4), as text.
pub(super) fn uuid() -> Result<String> {
    let mut bytes = [0; 16];
    random::fill(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(crate::hex::uuid(&bytes))
}

/// The configuration of a vault, whose signature was not checked yet.
pub(super) struct Token {
    /// What is signed.
    signed: String,
    hash: &'static Hash,
    signature: Vec<u8>,
    /// What it says, if it is true.
    pub config: Config,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claims {
    format: u64,
    cipher_combo: String,
    shortening_threshold: u64,
}

impl Token {
    /// Reads the file.
    ///
    /// # Errors
    /// `Malformed`; `Unsupported` with the reason.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| malformed(CONFIG, what);
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("not a token: it is no text"))?.trim_end();
        let (signed, signature) = text.rsplit_once('.').ok_or_else(|| wrong("not a token: it has no signature"))?;
        let (header, claims) =
            signed.split_once('.').ok_or_else(|| wrong("not a token: it has two parts, not three"))?;
        let Header { alg, kid } = part(header, "header")?;
        check_kid(&kid)?;
        let hash = match alg.as_str() {
            "HS256" => &SHA256,
            "HS384" => &SHA384,
            "HS512" => &SHA512,
            other => return Err(Error::unsupported(format!("a configuration signed with {other:?}"))),
        };
        let Claims { format, cipher_combo, shortening_threshold } = part(claims, "claims")?;
        if format != VERSION {
            return Err(unsupported_version(format));
        }
        let combo = CipherCombo::ALL.into_iter().find(|combo| combo.name() == cipher_combo);
        let combo = combo.ok_or_else(|| Error::unsupported(format!("the cipher {cipher_combo:?} of Cryptomator")))?;
        let threshold = usize::try_from(shortening_threshold).unwrap_or(usize::MAX);
        let signature = TOKEN.decode(signature).map_err(|_| wrong("its signature is not Base64"))?;
        Ok(Self { signed: signed.to_owned(), hash, signature, config: Config { version: format, combo, threshold } })
    }

    /// Whether the keys signed it.
    pub fn verify(&self, master: &Secret) -> bool {
        signature(self.hash, master, &self.signed).same_as(&self.signature)
    }
}

/// Whether this looks like a configuration, valid or not.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    let header = bytes.split(|byte| *byte == b'.').next().and_then(|header| TOKEN.decode(header).ok());
    let object: Option<Map<String, Value>> = header.and_then(|header| serde_json::from_slice(&header).ok());
    object.is_some_and(|object| object.contains_key("kid") && object.contains_key("alg"))
}

/// Whether this looks like a key file, valid or not.
pub(super) fn is_key_file(bytes: &[u8]) -> bool {
    let object: Option<Map<String, Value>> = serde_json::from_slice(bytes).ok();
    object.is_some_and(|object| object.contains_key("primaryMasterKey") && object.contains_key("scryptSalt"))
}

fn part<'a, T: Deserialize<'a>>(text: &str, name: &str) -> Result<T> {
    let bytes = TOKEN.decode(text).map_err(|_| malformed(CONFIG, format!("its {name} is not Base64")))?;
    // From a value, since the text does not live long enough.
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| malformed(CONFIG, format!("its {name}: {e}")))?;
    T::deserialize(value).map_err(|e| malformed(CONFIG, format!("its {name}: {e}")))
}

/// Anybody may have written the file, so it cannot choose where the keys are read from: only one place is accepted.
fn check_kid(kid: &str) -> Result<()> {
    match kid {
        KID => Ok(()),
        kid if kid.starts_with("hub+") => Err(Error::unsupported("a vault whose keys Cryptomator Hub holds")
            .hint("Its owner can export a recovery key for a vault that a passphrase opens: Cryptomator says how.")),
        kid => Err(Error::unsupported(format!("a vault whose keys are at {kid:?}, not in {MASTERKEY}"))),
    }
}

fn unsupported_version(version: u64) -> Error {
    let error = Error::unsupported(format!("format {version} of Cryptomator"));
    if version < VERSION_6 { error.hint("Cryptomator 1.5 and later upgrade it.") } else { error }
}

fn signature(hash: &Hash, master: &Secret, signed: &str) -> Secret {
    let mut signature = Secret::zeroed(hash.size);
    hash.hmac(master, &[signed.as_bytes()], &mut signature);
    signature
}

/// The fields of the key file.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    version: u32,
    scrypt_salt: String,
    scrypt_cost_param: u64,
    scrypt_block_size: u32,
    primary_master_key: String,
    hmac_master_key: String,
    version_mac: String,
}

/// A valid key file.
pub(super) struct KeyFile {
    /// The whole file: fields that are not known here stay when it is rewritten.
    file: Map<String, Value>,
    version: u32,
    version_mac: Vec<u8>,
    salt: Vec<u8>,
    cost: ScryptParams,
    /// The key for contents and the one for authentication.
    wrapped: [Vec<u8>; 2],
}

impl KeyFile {
    /// Reads the file.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = |e: serde_json::Error| malformed(MASTERKEY, format!("invalid JSON: {e}"));
        let file: Map<String, Value> = serde_json::from_slice(bytes).map_err(wrong)?;
        let fields: Fields = serde_json::from_value(Value::Object(file.clone())).map_err(wrong)?;
        let base64 = |name: &str, text: &str| {
            STANDARD.decode(text).map_err(|e| malformed(MASTERKEY, format!("the Base64 of {name} is invalid: {e}")))
        };
        let salt = base64("scryptSalt", &fields.scrypt_salt)?;
        let wrapped = [
            base64("primaryMasterKey", &fields.primary_master_key)?,
            base64("hmacMasterKey", &fields.hmac_master_key)?,
        ];
        if salt.is_empty() || salt.len() > MOST_SALT || wrapped.iter().any(|key| key.len() != KEY + key_wrap::OVERHEAD)
        {
            let lens = [salt.len(), wrapped[0].len(), wrapped[1].len()];
            return Err(malformed(MASTERKEY, format!("its salt and its wrapped keys have {lens:?} bytes")));
        }
        Ok(Self {
            version: fields.version,
            version_mac: base64("versionMac", &fields.version_mac)?,
            salt,
            cost: ScryptParams { n: fields.scrypt_cost_param, r: fields.scrypt_block_size, p: 1 },
            wrapped,
            file,
        })
    }

    /// A file without keys yet.
    pub fn new() -> Self {
        let (file, wrapped) = (Map::new(), [Vec::new(), Vec::new()]);
        Self { file, version: NO_VERSION, version_mac: Vec::new(), salt: Vec::new(), cost: COST, wrapped }
    }

    /// The configuration of a vault that has this file alone.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn config(&self) -> Result<Config> {
        if self.version == NO_VERSION {
            let what = format!("{CONFIG} is missing, and {MASTERKEY} does not say how the vault is encrypted");
            return Err(malformed(MASTERKEY, what));
        }
        match u64::from(self.version) {
            VERSION_7 => Ok(Config::VERSION_7),
            VERSION_6 => Ok(Config::VERSION_6),
            version => Err(unsupported_version(version)),
        }
    }

    /// What is said about a vault of an old format.
    pub fn about_version(&self) -> Option<String> {
        match u64::from(self.version) {
            VERSION_6 => Some("format 6, which is only read".into()),
            version if version < VERSION_6 => {
                Some(format!("format {version}, which is unsupported: Cryptomator 1.5 and later upgrade it"))
            }
            _ => None,
        }
    }

    /// The two keys, the one for contents first.
    ///
    /// # Errors
    /// `WrongCredential`; those of [`scrypt::derive`].
    pub fn master_key(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<Secret> {
        let kek = self.kek(passphrase, with)?;
        let [enc, mac] = self.wrapped.each_ref().map(|key| key_wrap::unwrap(&kek, key, with.acceleration));
        match (enc, mac) {
            (Some(enc), Some(mac)) => Ok(Secret::concat(&[&enc, &mac])),
            (None, None) => {
                let what = format!("the passphrase does not open the keys in {MASTERKEY}");
                Err(Error::new(ErrorKind::WrongCredential(what))
                    .hint("After a change of the passphrase, an older copy of that file opens with the old one."))
            }
            (_, _) => Err(malformed(MASTERKEY, "one of its two keys is damaged, and the passphrase opens the other")),
        }
    }

    /// Whether the keys authenticate the version: before format 8, nothing else does.
    pub fn verifies_version(&self, master: &Secret) -> bool {
        version_mac(master, self.version).same_as(&self.version_mac)
    }

    /// The file with the keys wrapped for another passphrase.
    ///
    /// # Errors
    /// Those of [`KeyFile::master_key`].
    pub fn rewrapped(mut self, master: &Secret, passphrase: &Secret, with: &Unlock<'_>) -> Result<Vec<u8>> {
        self.salt = vec![0; SALT];
        random::fill(&mut self.salt)?;
        let kek = self.kek(passphrase, with)?;
        let wrap = |key| STANDARD.encode(key_wrap::wrap(&kek, key, with.acceleration));
        let fields = Fields {
            version: self.version,
            scrypt_salt: STANDARD.encode(&self.salt),
            scrypt_cost_param: self.cost.n,
            scrypt_block_size: self.cost.r,
            primary_master_key: wrap(&master[..KEY]),
            hmac_master_key: wrap(&master[KEY..]),
            version_mac: STANDARD.encode(&*version_mac(master, self.version)),
        };
        if let Value::Object(fields) = serde_json::to_value(fields).map_err(std::io::Error::from)? {
            self.file.extend(fields);
        }
        Ok(serde_json::to_vec_pretty(&self.file).map_err(std::io::Error::from)?)
    }

    fn kek(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<Secret> {
        scrypt::derive(self.cost, &normalised(passphrase)?, &self.salt, MASTERKEY, with)
    }
}

fn version_mac(master: &Secret, version: u32) -> Secret {
    let mut mac = Secret::zeroed(32);
    SHA256.hmac(&master[KEY..], &[&version.to_be_bytes()], &mut mac);
    mac
}

/// The passphrase in Unicode's form NFC, as Cryptomator derives keys from it.
pub(super) fn normalised(passphrase: &Secret) -> Result<Secret> {
    let not_text = |_| Error::from(ErrorKind::WrongCredential("a passphrase of Cryptomator is text in UTF-8".into()));
    let text = std::str::from_utf8(passphrase).map_err(not_text)?;
    if text.is_ascii() {
        return Ok(Secret::copy_from(passphrase));
    }
    // A character grows to three times its size at most (Unicode Standard Annex #15, table 8). The buffer never moves.
    let (mut composed, mut len) = (Secret::zeroed(3 * text.len()), 0);
    for character in text.nfc() {
        len += character.encode_utf8(&mut composed[len..]).len();
    }
    Ok(Secret::copy_from(&composed[..len]))
}

pub(super) fn malformed(file: &'static str, what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field: file, offset: 0, what: what.into() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::copy_from(text.as_bytes())
    }

    /// cryptolib, MasterkeyFileAccessTest.java: both keys are zero.
    const OF_CRYPTOLIB: &[u8] = br#"{"version":3,"scryptSalt":"AAAAAAAAAAA=","scryptCostParam":2,"scryptBlockSize":8,
        "primaryMasterKey":"mM+qoQ+o0qvPTiDAZYt+flaC3WbpNAx1sTXaUzxwpy0M9Ctj6Tih/Q==",
        "hmacMasterKey":"mM+qoQ+o0qvPTiDAZYt+flaC3WbpNAx1sTXaUzxwpy0M9Ctj6Tih/Q==",
        "versionMac":"iUmRRHITuyJsJbVNqGNw+82YQ4A3Rma7j/y1v0DCVLA="}"#;

    #[test]
    fn the_key_file_of_cryptolibs_tests_opens_and_is_rewrapped() {
        let with = Unlock::with(&[]);
        let file = KeyFile::parse(OF_CRYPTOLIB).expect("valid");
        let master = file.master_key(&secret("asd"), &with).expect("right");
        assert!(master.same_as(&[0; 64]) && file.verifies_version(&master));
        let wrong = file.master_key(&secret("qwe"), &with).expect_err("wrong");
        assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
        assert!(matches!(file.config().expect_err("old").kind, ErrorKind::Unsupported { .. }));
        let new = file.rewrapped(&master, &secret("qwe"), &with).expect("rewrapped");
        let new = KeyFile::parse(&new).expect("valid");
        assert!(new.master_key(&secret("qwe"), &with).expect("right").same_as(&master));
        assert!(new.verifies_version(&master) && new.version == 3);
    }

    #[test]
    fn a_passphrase_is_normalised() {
        let composed = normalised(&secret("Schlu\u{308}ssel")).expect("text");
        assert!(composed.same_as("Schl\u{fc}ssel".as_bytes()));
        // U+0958 becomes two characters: NFC excludes it from composition. U+1D160 is one of those that grow most.
        let grown = normalised(&secret("\u{958}\u{1d160}\u{390}")).expect("text");
        assert!(grown.same_as("\u{915}\u{93c}\u{1d158}\u{1d165}\u{1d16e}\u{390}".as_bytes()));
        assert!(normalised(&Secret::copy_from(b"\xff")).is_err());
    }

    #[test]
    fn a_configuration_says_what_was_signed_and_only_that_verifies() {
        let master = Secret::copy_from(&[7; 64]);
        for combo in CipherCombo::ALL {
            let token = Config::new(combo).signed(&master).expect("signed");
            let parsed = Token::parse(&token).expect("valid");
            assert_eq!(parsed.config, Config { version: 8, combo, threshold: 220 });
            assert!(parsed.verify(&master));
            assert!(!parsed.verify(&Secret::copy_from(&[8; 64])));
        }
    }

    fn token(header: &str, claims: &str) -> Vec<u8> {
        [header, claims, "signature"].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".").into_bytes()
    }

    #[test]
    fn a_configuration_that_leads_elsewhere_is_unsupported() {
        let claims = r#"{"format":8,"cipherCombo":"SIV_GCM","shorteningThreshold":220}"#;
        let kid = |kid: &str| Token::parse(&token(&format!(r#"{{"alg":"HS512","kid":"{kid}"}}"#), claims));
        assert!(kid(KID).is_ok());
        for other in [
            "hub+https://example.com/api/vaults/1",
            "masterkeyfile:../masterkey.cryptomator",
            "masterkeyfile:/etc/passwd",
            "masterkeyfile:masterkey.cryptomator.12345678.bkup",
            "",
        ] {
            let error = kid(other).err().expect("refused");
            assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{other}: {error}");
        }
        for (alg, claims) in [
            ("none", claims),
            ("RS256", claims),
            ("HS256", r#"{"format":9,"cipherCombo":"SIV_GCM","shorteningThreshold":220}"#),
            ("HS256", r#"{"format":8,"cipherCombo":"ROT_13","shorteningThreshold":220}"#),
        ] {
            let header = format!(r#"{{"alg":"{alg}","kid":"{KID}"}}"#);
            let error = Token::parse(&token(&header, claims)).err().expect("refused");
            assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{alg}, {claims}: {error}");
        }
    }
}
