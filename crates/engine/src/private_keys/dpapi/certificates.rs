//! Certificates of a store: a list of properties, each with number, encoding (1) and length in four little-endian bytes. The
//! numbers are those of wincrypt.h (CERT_*_PROP_ID); 32 is the certificate itself.

use super::{Fields, wide_text};
use crate::error::Result;
use crate::private_keys::Certificate;

/// The location of the private key: CERT_KEY_PROV_INFO_PROP_ID.
const KEY_PROVIDER: u32 = 2;
/// CERT_FRIENDLY_NAME_PROP_ID.
const FRIENDLY_NAME: u32 = 11;
/// CERT_CERT_PROP_ID.
const CERTIFICATE: u32 = 32;

/// A certificate as it is stored.
pub struct StoredCertificate {
    /// The certificate.
    pub certificate: Certificate,
    /// The container of the private key.
    pub container: Option<String>,
    /// The user's name for it.
    pub name: Option<String>,
}

/// Parses a certificate file.
///
/// # Errors
/// `Malformed`.
pub fn read(bytes: &[u8]) -> Result<StoredCertificate> {
    let mut fields = Fields::new(bytes);
    let (mut certificate, mut container, mut name) = (None, None, None);
    while !fields.rest().is_empty() {
        let property = fields.u32("property")?;
        fields.u32("encoding of the property")?;
        let value = fields.counted("property")?;
        match property {
            CERTIFICATE => certificate = Some(Certificate::read(value)?),
            KEY_PROVIDER => {
                // CRYPT_KEY_PROV_INFO with offsets for pointers: the first one is the offset of the container's name.
                let at = Fields::new(value).u32("key provider")? as usize;
                container = Some(wide_text(value.get(at..).unwrap_or_default())).filter(|name| !name.is_empty());
            }
            FRIENDLY_NAME => name = Some(wide_text(value)),
            _ => {}
        }
    }
    let certificate = certificate.ok_or_else(|| fields.damaged("certificate", "there is none in the file"))?;
    Ok(StoredCertificate { certificate, container, name })
}
