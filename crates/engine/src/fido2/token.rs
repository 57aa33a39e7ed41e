//! The LUKS2 token `systemd-fido2`, in which systemd records how a FIDO2 key computes a passphrase (systemd,
//! src/cryptenroll/cryptenroll-fido2.c and src/shared/libfido2-util.c).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{CLIENT_DATA_HASH, Cbor, Fido2Conditions, SECRET, Written};
use crate::error::{Error, ErrorKind, Result};

/// The token's type.
pub const TOKEN: &str = "systemd-fido2";

/// The name under which systemd makes its credentials.
pub const RELYING_PARTY: &str = "io.systemd.cryptsetup";

/// The longest credential, in bytes: longer than those of any key.
const LONGEST: usize = 1024;

/// A credential of a FIDO2 key, with everything needed for the key to compute its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fido2Token {
    /// What the key recognises its credential by. Others cannot use it.
    pub credential: Vec<u8>,
    /// What the secret is computed for.
    pub salt: [u8; SECRET],
    /// The name under which the credential was made.
    pub relying_party: String,
    /// The conditions under which the secret is computed.
    pub conditions: Fido2Conditions,
}

impl Fido2Token {
    /// A credential that another program made, with the salt that it uses: 32 bytes.
    ///
    /// # Errors
    /// `Malformed` if either has the wrong length.
    pub fn new(credential: Vec<u8>, salt: &[u8], relying_party: &str, conditions: Fido2Conditions) -> Result<Self> {
        if credential.is_empty() || credential.len() > LONGEST {
            return Err(malformed("fido2-credential", "it has the wrong length"));
        }
        let salt = salt.try_into().map_err(|_| malformed("fido2-salt", "it has the wrong length"))?;
        Ok(Self { credential, salt, relying_party: relying_party.to_owned(), conditions })
    }

    /// Parses a token. systemd 248 wrote no conditions, and gave a PIN only if the key demanded it.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn parse(token: &Map<String, Value>) -> Result<Self> {
        let text = |name: &'static str| token.get(name).and_then(Value::as_str);
        let bytes = |name: &'static str| {
            let decoded = text(name).and_then(|text| STANDARD.decode(text).ok());
            decoded.ok_or_else(|| malformed(name, "it is missing or not base64"))
        };
        let set = |name: &'static str, otherwise| match token.get(name) {
            None => Ok(otherwise),
            Some(value) => value.as_bool().ok_or_else(|| malformed(name, "it is neither true nor false")),
        };
        let conditions = Fido2Conditions {
            pin: set("fido2-clientPin-required", false)?,
            presence: set("fido2-up-required", true)?,
            verification: set("fido2-uv-required", false)?,
        };
        let (credential, salt) = (bytes("fido2-credential")?, bytes("fido2-salt")?);
        Self::new(credential, &salt, text("fido2-rp").unwrap_or(RELYING_PARTY), conditions)
    }

    /// The token without its keyslots.
    pub fn token(&self) -> Map<String, Value> {
        let Fido2Conditions { pin, presence, verification } = self.conditions;
        let token = json!({
            "type": TOKEN,
            "keyslots": [],
            "fido2-credential": STANDARD.encode(&self.credential),
            "fido2-salt": STANDARD.encode(self.salt),
            "fido2-rp": self.relying_party,
            "fido2-clientPin-required": pin,
            "fido2-up-required": presence,
            "fido2-uv-required": verification,
        });
        let Value::Object(token) = token else { unreachable!("it is an object") };
        token
    }

    /// Appends the fields of a command that name the credential.
    pub(super) fn name_credential(&self, e: &mut Cbor) -> Written {
        e.u8(1)?.str(&self.relying_party)?.u8(2)?.bytes(&CLIENT_DATA_HASH)?;
        e.u8(3)?.array(1)?.map(2)?.str("id")?.bytes(&self.credential)?.str("type")?.str("public-key")?;
        Ok(())
    }
}

fn malformed(field: &'static str, what: &str) -> Error {
    ErrorKind::Malformed { field, offset: 0, what: what.into() }.into()
}
