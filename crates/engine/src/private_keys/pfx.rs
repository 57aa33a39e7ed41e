//! PFX files: PKCS#12 (RFC 7292), Windows' format for keys with their certificates.

use claviger_crypto::Secret;
use claviger_crypto::hash::{self, Hash};
use zeroize::Zeroizing;

use super::asn1::{self, DerReader, tag};
use super::key::SoftKey;
use super::pbe::{self, Password, Purpose};
use super::{Certificate, Contents, certificate, oids};
use crate::error::{Error, Result};
use crate::random;

/// The deepest nesting of bags.
const DEPTH: usize = 8;

/// Reads all keys and certificates of a file. Calls `ask` for the password unless the empty one, in either form, is right.
///
/// # Errors
/// `WrongCredential` for a wrong password, `Malformed`, `Unsupported` for an unsupported scheme, and those of `ask`.
pub fn read(bytes: &[u8], origin: &str, ask: &mut dyn FnMut() -> Result<Secret>) -> Result<Contents> {
    let file = File::read(bytes)?;
    // Reject unsupported contents before asking for a password.
    let mut contents = Contents::default();
    for password in [Password::new(&Secret::zeroed(0))?, Password::none()] {
        if file.check(&password)? {
            match file.open(&password, origin, &mut contents) {
                Err(e) if super::is_wrong(&e) && file.mac.is_none() => contents = Contents::default(),
                done => return done.map(|()| contents),
            }
        }
    }
    let password = Password::new(&ask()?)?;
    if !file.check(&password)? {
        return Err(pbe::wrong_password());
    }
    file.open(&password, origin, &mut contents)?;
    Ok(contents)
}

/// The outer structure of the file.
struct File<'a> {
    /// The AuthenticatedSafe, in DER.
    safe: std::borrow::Cow<'a, [u8]>,
    mac: Option<Mac<'a>>,
}

/// The MAC that verifies the password.
struct Mac<'a> {
    hash: &'static Hash,
    value: std::borrow::Cow<'a, [u8]>,
    salt: std::borrow::Cow<'a, [u8]>,
    /// The fields from the iteration count on.
    rest: DerReader<'a>,
}

impl<'a> File<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut fields = DerReader::new(bytes).sequence("PFX")?;
        match fields.small("version of the PFX")? {
            3 => {}
            other => return Err(Error::unsupported(format!("PFX of version {other}"))),
        }
        let mut content = fields.sequence("authenticated safe")?;
        let kind = content.oid("authenticated safe")?;
        if kind != oids::DATA {
            return Err(Error::unsupported("a PFX protected by a certificate instead of a password"));
        }
        let safe = content.inside(tag::CONTEXT_0, "authenticated safe")?.octets("authenticated safe")?;
        let mac = fields.optional(tag::SEQUENCE, "MAC")?.map(|mac| Mac::read(mac.reader())).transpose()?;
        Ok(Self { safe, mac })
    }

    /// Whether the password is right. Without a MAC, every password is accepted.
    fn check(&self, password: &Password) -> Result<bool> {
        self.mac.as_ref().map_or(Ok(true), |mac| mac.check(&self.safe, password))
    }

    fn open(&self, password: &Password, origin: &str, into: &mut Contents) -> Result<()> {
        let mut parts = DerReader::new(&self.safe).sequence("authenticated safe")?;
        while !parts.is_empty() {
            let mut part = parts.sequence("part of the safe")?;
            let kind = part.oid("part of the safe")?;
            let mut content = part.inside(tag::CONTEXT_0, "part of the safe")?;
            match kind {
                oids::DATA => {
                    let bags = content.octets("part of the safe")?;
                    read_bags(&bags, password, origin, into, DEPTH)?;
                }
                oids::ENCRYPTED_DATA => {
                    let mut data = content.sequence("encrypted part")?;
                    data.small("version of the encrypted part")?;
                    let mut data = data.sequence("encrypted part")?;
                    data.oid("kind of the encrypted part")?;
                    let algorithm = data.sequence("encryption scheme")?;
                    let ciphertext = data.any("encrypted part")?;
                    if ciphertext.tag & !tag::CONSTRUCTED != tag::CONTEXT_0_PRIMITIVE {
                        return Err(data.damaged("encrypted part", "no ciphertext"));
                    }
                    let bags = pbe::decrypt(algorithm, &ciphertext.octets("encrypted part")?, password)?;
                    read_bags(&bags, password, origin, into, DEPTH)?;
                }
                _ => into.refuse(Error::unsupported("a part of a PFX encrypted for a certificate")),
            }
        }
        Ok(())
    }
}

impl<'a> Mac<'a> {
    fn read(mut fields: DerReader<'a>) -> Result<Self> {
        let mut digest = fields.sequence("MAC")?;
        let hash = match digest.sequence("hash of the MAC")?.oid("hash of the MAC")? {
            oids::SHA1 => &hash::SHA1,
            oids::SHA256 => &hash::SHA256,
            oids::SHA384 => &hash::SHA384,
            oids::SHA512 => &hash::SHA512,
            oids::PBMAC1 => return Err(Error::unsupported("a PFX whose MAC is PBMAC1")),
            other => return Err(Error::unsupported(format!("the hash {} of a MAC", asn1::dotted(other)))),
        };
        let value = digest.octets("MAC")?;
        let salt = fields.octets("salt of the MAC")?;
        Ok(Self { hash, value, salt, rest: fields })
    }

    fn check(&self, safe: &[u8], password: &Password) -> Result<bool> {
        let mut rest = self.rest.clone();
        let iterations = if rest.is_empty() { 1 } else { pbe::iterations(&mut rest, password)? };
        let key = pbe::pkcs12_derive(self.hash, Purpose::Mac, password, &self.salt, iterations, self.hash.size);
        let mut mac = Secret::zeroed(self.hash.size);
        self.hash.hmac(&key, &[safe], &mut mac);
        Ok(mac.same_as(&self.value))
    }
}

/// Parses SafeContents.
fn read_bags(bytes: &[u8], password: &Password, origin: &str, into: &mut Contents, depth: usize) -> Result<()> {
    let mut bags = DerReader::new(bytes).sequence("bags")?;
    while !bags.is_empty() {
        let mut bag = bags.sequence("bag")?;
        let kind = bag.oid("kind of the bag")?;
        let value = bag.expect(tag::CONTEXT_0, "bag")?;
        let name = match bag.optional(tag::SET, "attributes of the bag")? {
            Some(attributes) => friendly_name(attributes.reader())?,
            None => None,
        };
        match kind.strip_prefix(oids::BAG) {
            Some([1]) => into.add(SoftKey::pkcs8(value.content, origin), name)?,
            Some([2]) => {
                let key = encrypted_pkcs8(value.content, password)?;
                into.add(SoftKey::pkcs8(&key, origin), name)?;
            }
            Some([3]) => {
                let mut certificate = value.reader().sequence("certificate")?;
                if certificate.oid("kind of the certificate")? == oids::X509_CERTIFICATE {
                    let der = certificate.inside(tag::CONTEXT_0, "certificate")?.octets("certificate")?;
                    into.certificates.push(Certificate::read(&der)?);
                }
            }
            Some([6]) if depth > 0 => read_bags(value.content, password, origin, into, depth - 1)?,
            // Lists of revoked certificates, secrets of programs, and nested bags.
            _ => {}
        }
    }
    Ok(())
}

/// The PKCS#8 key in an EncryptedPrivateKeyInfo (RFC 5958, 3).
///
/// # Errors
/// Those of [`pbe::decrypt`].
pub fn encrypted_pkcs8(bytes: &[u8], password: &Password) -> Result<Secret> {
    let mut fields = DerReader::new(bytes).sequence("encrypted private key")?;
    let algorithm = fields.sequence("encryption scheme")?;
    let ciphertext = fields.octets("encrypted private key")?;
    pbe::decrypt(algorithm, &ciphertext, password)
}

fn friendly_name(mut attributes: DerReader<'_>) -> Result<Option<String>> {
    let mut name = None;
    while !attributes.is_empty() {
        let mut attribute = attributes.sequence("attribute")?;
        if attribute.oid("attribute")? == oids::FRIENDLY_NAME {
            let value = attribute.inside(tag::SET, "attribute")?.any("name of the key")?;
            name = Some(certificate::text(value.tag, value.content));
        }
    }
    Ok(name)
}

/// A PFX file with a key and its certificate, protected by a password.
///
/// The schemes are the default of Windows since 10 1709 and Server 2019, and of OpenSSL since 3.0: PBES2 with AES-256, and a MAC
/// with SHA-256. Older Windows reads only 3DES with SHA-1, which new files should not use.
///
/// # Errors
/// `Misuse` for a password that is not UTF-8; `Io` if the system has no random bytes.
pub fn write(key: &SoftKey, certificate: &Certificate, name: &str, password: &Secret) -> Result<Secret> {
    let password = Password::new(password)?;
    let wide: Vec<u8> = name.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let of_both = [
        (oids::FRIENDLY_NAME, asn1::value(tag::BMP, &[&wide])),
        (oids::LOCAL_KEY_ID, asn1::value(tag::OCTETS, &[&[1, 0, 0, 0]])),
    ];
    // EFS requires a provider that can encrypt with the key.
    let provider: Vec<u8> =
        "Microsoft Enhanced Cryptographic Provider v1.0".encode_utf16().flat_map(u16::to_be_bytes).collect();
    let of_key = (oids::PROVIDER_NAME, asn1::value(tag::BMP, &[&provider]));
    let (algorithm, ciphertext) = pbe::encrypt(&key.to_pkcs8(), &password)?;
    let shrouded = asn1::sequence(&[&algorithm, &asn1::value(tag::OCTETS, &[&ciphertext])]);
    let key_bag = bag(2, &shrouded, of_both.iter().chain([&of_key]));
    let certified = asn1::value(tag::CONTEXT_0, &[&asn1::value(tag::OCTETS, &[&certificate.der])]);
    let certified = asn1::sequence(&[&asn1::value(tag::OID, &[oids::X509_CERTIFICATE]), &certified]);
    let certificate_bag = asn1::sequence(&[&bag(3, &certified, of_both.iter())]);
    let (algorithm, ciphertext) = pbe::encrypt(&certificate_bag, &password)?;
    let kind = asn1::value(tag::OID, &[oids::DATA]);
    let encrypted = asn1::sequence(&[&kind, &algorithm, &asn1::value(tag::CONTEXT_0_PRIMITIVE, &[&ciphertext])]);
    let encrypted = asn1::sequence(&[&asn1::integer(&[0]), &encrypted]);
    let plain = asn1::value(tag::OCTETS, &[&asn1::sequence(&[&key_bag])]);
    let safe = asn1::sequence(&[&content(oids::ENCRYPTED_DATA, &encrypted), &content(oids::DATA, &plain)]);
    let mut salt = [0; 16];
    random::fill(&mut salt)?;
    let mac_key = pbe::pkcs12_derive(&hash::SHA256, Purpose::Mac, &password, &salt, pbe::ITERATIONS_NEW, 32);
    let mut mac = [0; 32];
    hash::SHA256.hmac(&mac_key, &[&safe], &mut mac);
    let digest = asn1::algorithm(oids::SHA256, &asn1::value(tag::NULL, &[]));
    let digest = asn1::sequence(&[&digest, &asn1::value(tag::OCTETS, &[&mac])]);
    let count = asn1::integer(&pbe::ITERATIONS_NEW.to_be_bytes());
    let mac = asn1::sequence(&[&digest, &asn1::value(tag::OCTETS, &[&salt]), &count]);
    let safe = content(oids::DATA, &asn1::value(tag::OCTETS, &[&safe]));
    Ok(Secret::copy_from(&asn1::sequence(&[&asn1::integer(&[3]), &safe, &mac])))
}

/// A ContentInfo.
fn content(kind: &[u8], content: &[u8]) -> Zeroizing<Vec<u8>> {
    asn1::sequence(&[&asn1::value(tag::OID, &[kind]), &asn1::value(tag::CONTEXT_0, &[content])])
}

/// A bag of that kind with its attributes.
fn bag<'a>(
    kind: u8,
    contents: &[u8],
    attributes: impl Iterator<Item = &'a (&'static [u8], Zeroizing<Vec<u8>>)>,
) -> Zeroizing<Vec<u8>> {
    let attributes: Vec<_> = attributes
        .map(|(oid, value)| asn1::sequence(&[&asn1::value(tag::OID, &[oid]), &asn1::value(tag::SET, &[value])]))
        .collect();
    let attributes: Vec<&[u8]> = attributes.iter().map(|attribute| &attribute[..]).collect();
    let oid = asn1::value(tag::OID, &[oids::BAG, &[kind]]);
    asn1::sequence(&[&oid, &asn1::value(tag::CONTEXT_0, &[contents]), &asn1::value(tag::SET, &attributes)])
}

/// Parses bytes as a PFX file, and as its decrypted contents.
pub(super) fn fuzz(bytes: &[u8]) {
    let Ok(password) = Password::new(&Secret::copy_from(b"password")).map(Password::impatient) else { return };
    let mut contents = Contents::default();
    let _ = read_bags(bytes, &password, "here", &mut contents, DEPTH);
    let _ = encrypted_pkcs8(bytes, &password);
    if let Ok(file) = File::read(bytes) {
        let _ = file.check(&password);
        let _ = file.open(&password, "here", &mut contents);
    }
}
