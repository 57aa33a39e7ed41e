//! X.509 certificates (RFC 5280): the fields that identify the recipient of a file, and new certificates for EFS.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use claviger_crypto::hash;
use claviger_crypto::rsa;
use zeroize::Zeroizing;

use super::asn1::{self, DerReader, tag};
use super::key::SoftKey;
use super::oids;
use crate::error::{Error, Result};
use crate::random;

/// How many years a new certificate is valid. EFS ignores validity when it decrypts.
const YEARS: u64 = 10;

/// A certificate that files can be encrypted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The whole certificate in DER.
    pub der: Vec<u8>,
    /// The SHA-1 hash of the certificate, which Windows identifies it by.
    pub thumbprint: [u8; 20],
    /// The subject: `CN=alice, OU=EFS File Encryption Certificate`.
    pub subject: String,
    /// Its public key. `None` if it is not an RSA key.
    pub public: Option<rsa::RsaPublicKey>,
    /// Its subject key identifier, where it has one.
    pub key_identifier: Option<Vec<u8>>,
    /// Whether its purposes include EFS, EFS recovery or any purpose.
    pub for_efs: bool,
}

impl Certificate {
    /// Reads DER. Ignores signature and dates: the holder of the private key can read the files anyway.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let mut outer = DerReader::new(bytes);
        let whole = outer.expect(tag::SEQUENCE, "certificate")?;
        let mut fields = whole.reader().sequence("certificate")?;
        fields.optional(tag::CONTEXT_0, "version of the certificate")?;
        fields.expect(tag::INTEGER, "serial number")?;
        fields.sequence("algorithm of the signature")?;
        fields.sequence("issuer")?;
        fields.sequence("validity")?;
        let subject = name(fields.sequence("subject")?)?;
        let public = public_key(fields.sequence("public key")?)?;
        let mut thumbprint = [0; 20];
        hash::SHA1.checksum(&[whole.whole], &mut thumbprint);
        let (mut key_identifier, mut usages) = (None, None);
        // Unique identifiers, which no program writes, then the extensions.
        while !fields.is_empty() {
            let item = fields.any("extensions")?;
            if item.tag != tag::CONTEXT_3 {
                continue;
            }
            let mut extensions = item.reader().sequence("extensions")?;
            while !extensions.is_empty() {
                let mut extension = extensions.sequence("extension")?;
                let oid = extension.oid("extension")?;
                let value = loop {
                    // The critical flag may come first.
                    match extension.any("extension")? {
                        item if item.tag == tag::OCTETS => break item.content,
                        _ => {}
                    }
                };
                match oid {
                    oids::KEY_IDENTIFIER => {
                        let identifier = DerReader::new(value).octets("subject key identifier")?;
                        key_identifier = Some(identifier.into_owned());
                    }
                    oids::EXTENDED_KEY_USAGE => usages = Some(for_efs(DerReader::new(value))?),
                    _ => {}
                }
            }
        }
        let for_efs = usages.unwrap_or(true);
        Ok(Self { der: whole.whole.to_vec(), thumbprint, subject, public, key_identifier, for_efs })
    }

    /// Encrypts for the holder of the private key, the inverse of [`super::PrivateKey::decrypt`]. Most significant byte first.
    ///
    /// # Errors
    /// `Unsupported` if it is not an RSA key; `Misuse` if the message is too long for the key; `Io` without random bytes.
    pub fn encrypt(&self, message: &[u8]) -> Result<Vec<u8>> {
        let public = self.public.as_ref().ok_or_else(|| {
            Error::unsupported(format!("encryption for certificates with non-RSA keys ({})", self.subject))
        })?;
        let ciphertext = public.encrypt(message, random::fill)?;
        ciphertext.ok_or_else(|| Error::misuse("the RSA key is too short for the data"))
    }
}

/// Whether one of the purposes is EFS, EFS recovery or any purpose (RFC 5280, 4.2.1.12).
fn for_efs(mut purposes: DerReader<'_>) -> Result<bool> {
    const ANY: &[u8] = b"\x55\x1d\x25\x00";
    let mut purposes = purposes.sequence("extended key usage")?;
    let mut found = false;
    while !purposes.is_empty() {
        found |= matches!(purposes.oid("extended key usage")?, oids::EFS | oids::EFS_RECOVERY | ANY);
    }
    Ok(found)
}

/// Parses a SubjectPublicKeyInfo. `None` if it is not an RSA key.
pub(super) fn lone_public_key(der: &[u8]) -> Result<Option<rsa::RsaPublicKey>> {
    public_key(DerReader::new(der).sequence("public key")?)
}

/// The key in a SubjectPublicKeyInfo. `None` if it is not an RSA key.
fn public_key(mut fields: DerReader<'_>) -> Result<Option<rsa::RsaPublicKey>> {
    if fields.sequence("algorithm of the public key")?.oid("algorithm of the public key")? != oids::RSA {
        return Ok(None);
    }
    let mut numbers = DerReader::new(fields.bits("public key")?).sequence("public key")?;
    let (modulus, exponent) = (numbers.integer("modulus")?, numbers.integer("public exponent")?);
    Ok(rsa::RsaPublicKey::new(modulus, exponent))
}

/// A name as text, in the notation of RFC 4514 but in the stored order.
fn name(mut parts: DerReader<'_>) -> Result<String> {
    let mut all = Vec::new();
    while !parts.is_empty() {
        let mut set = parts.inside(tag::SET, "name")?;
        while !set.is_empty() {
            let mut part = set.sequence("name")?;
            let oid = part.oid("name")?;
            let value = part.any("name")?;
            let known = oids::NAME_PARTS.iter().find(|(known, _)| *known == oid);
            let label = known.map_or_else(|| asn1::dotted(oid), |(_, label)| (*label).to_owned());
            all.push(format!("{label}={}", text(value.tag, value.content)));
        }
    }
    Ok(all.join(", "))
}

/// A string of a name. Control characters are replaced, because they could deceive a reader on a terminal.
pub(super) fn text(tag: u8, bytes: &[u8]) -> String {
    let text = match tag {
        tag::BMP => {
            let units: Vec<_> = bytes.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]])).collect();
            String::from_utf16_lossy(&units)
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    };
    text.replace(char::is_control, "\u{fffd}")
}

/// The contents of a new certificate.
pub struct NewCertificate<'a> {
    /// The subject's common name: a user's name.
    pub name: &'a str,
    /// Whether it is for a data recovery agent.
    pub recovery: bool,
    /// The beginning of its validity.
    pub from: SystemTime,
}

impl NewCertificate<'_> {
    /// Creates a self-signed certificate for `key`, in the form that Windows uses (`cipher /k`).
    ///
    /// # Errors
    /// `Misuse` for an empty name or one of more than 64 characters (RFC 5280, A.1, `ub-common-name`). `Io` if the system has no random
    /// bytes.
    pub fn sign(&self, key: &SoftKey) -> Result<Certificate> {
        if self.name.is_empty() || self.name.chars().count() > 64 {
            return Err(Error::misuse("the name in a certificate has 1 to 64 characters"));
        }
        let mut serial = [0; 16];
        random::fill(&mut serial)?;
        serial[0] = serial[0] & 0x3f | 0x40;
        let signature = asn1::algorithm(oids::SHA256_WITH_RSA, &asn1::value(tag::NULL, &[]));
        let unit = if self.recovery { "EFS File Recovery Certificate" } else { "EFS File Encryption Certificate" };
        let parts = [(oids::COMMON_NAME, self.name), (oids::LOCALITY, "EFS"), (oids::UNIT, unit)].map(|(oid, text)| {
            let text = asn1::value(tag::UTF8, &[text.as_bytes()]);
            asn1::value(tag::SET, &[&asn1::sequence(&[&asn1::value(tag::OID, &[oid]), &text])])
        });
        let name = asn1::sequence(&parts.each_ref().map(|part| &part[..]));
        let validity = [self.from, self.until()].map(time);
        let certified = asn1::sequence(&[
            &asn1::value(tag::CONTEXT_0, &[&asn1::integer(&[2])]),
            &asn1::integer(&serial),
            &signature,
            &name,
            &asn1::sequence(&validity.each_ref().map(|time| &time[..])),
            &name,
            &public_info(key.public()),
            &asn1::value(tag::CONTEXT_3, &[&self.extensions(key.public())]),
        ]);
        let mut digest = [0; 32];
        hash::SHA256.checksum(&[&certified], &mut digest);
        let signed = asn1::value(tag::BITS, &[&[0], &key.sign(&digest)?]);
        Certificate::read(&asn1::sequence(&[&certified, &signature, &signed]))
    }

    /// The same day and time, [`YEARS`] later.
    fn until(&self) -> SystemTime {
        let (year, month, day, second) = civil(self.from);
        // 29 February may not exist in that year: use the 28th.
        let day = if (month, day) == (2, 29) { 28 } else { day };
        UNIX_EPOCH + Duration::from_secs(days(year + YEARS, month, day) * 86_400 + second)
    }

    fn extensions(&self, public: &rsa::RsaPublicKey) -> Zeroizing<Vec<u8>> {
        let extension =
            |oid, value: &[u8]| asn1::sequence(&[&asn1::value(tag::OID, &[oid]), &asn1::value(tag::OCTETS, &[value])]);
        let mut identifier = [0; 20];
        hash::SHA1.checksum(&[&numbers(public)], &mut identifier);
        let purpose = if self.recovery { oids::EFS_RECOVERY } else { oids::EFS };
        asn1::sequence(&[
            // Key encipherment: bit 2.
            &extension(oids::KEY_USAGE, &asn1::value(tag::BITS, &[&[5, 0x20]])),
            &extension(oids::EXTENDED_KEY_USAGE, &asn1::sequence(&[&asn1::value(tag::OID, &[purpose])])),
            &extension(oids::KEY_IDENTIFIER, &asn1::value(tag::OCTETS, &[&identifier])),
        ])
    }
}

/// A public key in PKCS#1 form.
pub(super) fn numbers(public: &rsa::RsaPublicKey) -> Zeroizing<Vec<u8>> {
    asn1::sequence(&[&asn1::integer(public.modulus()), &asn1::integer(&public.exponent().to_be_bytes())])
}

/// A SubjectPublicKeyInfo.
fn public_info(public: &rsa::RsaPublicKey) -> Zeroizing<Vec<u8>> {
    let algorithm = asn1::algorithm(oids::RSA, &asn1::value(tag::NULL, &[]));
    asn1::sequence(&[&algorithm, &asn1::value(tag::BITS, &[&[0], &numbers(public)])])
}

/// A time in a certificate: two-digit years for 1950 to 2049 (RFC 5280, 4.1.2.5).
fn time(time: SystemTime) -> Zeroizing<Vec<u8>> {
    let (year, month, day, second) = civil(time);
    let rest = format!("{month:02}{day:02}{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60);
    match year {
        1950..2050 => asn1::value(tag::UTC_TIME, &[format!("{:02}{rest}", year % 100).as_bytes()]),
        _ => asn1::value(tag::TIME, &[format!("{year:04}{rest}").as_bytes()]),
    }
}

/// Year, month, day, and second of the day in UTC, after 1970.
fn civil(time: SystemTime) -> (u64, u64, u64, u64) {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let day = seconds / 86_400;
    // The first estimate is never too large; then add what is missing.
    let mut year = 1970 + day / 366;
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    let month = (1..=12).rev().find(|month| days(year, *month, 1) <= day).unwrap_or(1);
    (year, month, day - days(year, month, 1) + 1, seconds % 86_400)
}

/// Days from 1 January 1970 to a date (Gregorian).
fn days(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap_years = |year: u64| year / 4 - year / 100 + year / 400;
    let leap = leap_years(year) > leap_years(year - 1);
    let before = BEFORE[month as usize - 1] + u64::from(leap && month > 2);
    (year - 1970) * 365 + leap_years(year - 1) - leap_years(1969) + before + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Checked with `date -u -d @SECONDS`.
        for (seconds, date) in [
            (0, (1970, 1, 1, 0)),
            (951_782_399, (2000, 2, 28, 86_399)),
            (951_782_400, (2000, 2, 29, 0)),
            (1_709_251_199, (2024, 2, 29, 86_399)),
            (4_107_542_400, (2100, 3, 1, 0)),
            (1_798_761_599, (2026, 12, 31, 86_399)),
        ] {
            assert_eq!(civil(UNIX_EPOCH + Duration::from_secs(seconds)), date, "{seconds}");
        }
        let leap = NewCertificate { name: "x", recovery: false, from: UNIX_EPOCH + Duration::from_secs(951_782_400) };
        assert_eq!(civil(leap.until()), (2010, 2, 28, 0));
        assert_eq!(&time(UNIX_EPOCH)[2..], b"700101000000Z");
        assert_eq!(&time(UNIX_EPOCH + Duration::from_secs(4_107_542_400))[2..], b"21000301000000Z");
    }
}
