//! RSA keys in memory, and their PKCS#1 and PKCS#8 encodings (RFC 8017, A.1; RFC 5958).

use claviger_crypto::Secret;
use claviger_crypto::rsa;
use zeroize::Zeroizing;

use super::asn1::{self, DerReader, tag};
use super::{About, Certificate, PrivateKey, not_for_this_key, oids};
use crate::error::{Error, ErrorKind, Result};

/// A key whose numbers are in this process, in a [`Secret`].
#[derive(Debug)]
pub struct SoftKey {
    key: rsa::RsaPrivateKey,
    about: About,
}

impl SoftKey {
    /// A key found in `origin`.
    pub(super) fn new(key: rsa::RsaPrivateKey, origin: &str) -> Self {
        let (modulus, origin) = (key.public().modulus().to_vec(), origin.to_owned());
        Self { key, about: About { modulus, origin, ..About::default() } }
    }

    /// Generates a key of `bits` bits.
    ///
    /// # Errors
    /// `Misuse` for a size other than 2048, 3072 and 4096: smaller keys are too weak, and programs that read EFS do not support
    /// larger ones. `Io` if the system has no random bytes.
    pub fn generate(bits: usize) -> Result<Self> {
        if !matches!(bits, 2048 | 3072 | 4096) {
            return Err(Error::misuse(format!("RSA keys of {bits} bits")).hint("Use 2048, 3072 or 4096 bits."));
        }
        let mut failed = None;
        let key = rsa::RsaPrivateKey::generate(bits, &mut |bytes| {
            // Without random bytes the search for primes would never end. So use a pattern; the key is then discarded.
            if let Err(e) = crate::random::fill(bytes) {
                failed.get_or_insert(e);
                bytes.iter_mut().zip(0u8..).for_each(|(byte, i)| *byte = i.wrapping_mul(73) ^ 0x5a);
            }
        });
        failed.map_or_else(|| Ok(Self::new(key, "new")), Err)
    }

    /// Parses PKCS#1.
    ///
    /// # Errors
    /// `Malformed`; `Unsupported` for a key of more than two primes.
    pub fn pkcs1(bytes: &[u8], origin: &str) -> Result<Self> {
        let mut fields = DerReader::new(bytes).sequence("private key")?;
        if fields.small("version of the private key")? != 0 {
            return Err(Error::unsupported("RSA keys with more than two primes"));
        }
        let (modulus, exponent) = (fields.integer("modulus")?, fields.integer("public exponent")?);
        fields.integer("private exponent")?;
        let mut numbers = [&[][..]; 5];
        for number in &mut numbers {
            *number = fields.integer("numbers of the private key")?;
        }
        Self::of_numbers(modulus, exponent, numbers, origin)
    }

    /// Builds a key from big-endian numbers: modulus, public exponent, and the arguments of [`rsa::RsaPrivateKey::new`].
    pub(super) fn of_numbers(modulus: &[u8], exponent: &[u8], numbers: [&[u8]; 5], origin: &str) -> Result<Self> {
        let public = rsa::RsaPublicKey::new(modulus, exponent);
        let key = public.and_then(|public| rsa::RsaPrivateKey::new(public, numbers));
        Ok(Self::new(key.ok_or_else(|| damaged("the numbers of the RSA key do not match"))?, origin))
    }

    /// Builds a key from a modulus, a public exponent and two primes, all big-endian.
    pub(super) fn of_primes(modulus: &[u8], exponent: &[u8], p: &[u8], q: &[u8], origin: &str) -> Option<Self> {
        let public = rsa::RsaPublicKey::new(modulus, exponent)?;
        rsa::RsaPrivateKey::of_primes(public, p, q).map(|key| Self::new(key, origin))
    }

    /// Parses PKCS#8.
    ///
    /// # Errors
    /// `Malformed`; `Unsupported` if it is not an RSA key.
    pub fn pkcs8(bytes: &[u8], origin: &str) -> Result<Self> {
        let mut fields = DerReader::new(bytes).sequence("private key")?;
        fields.small("version of the private key")?;
        let algorithm = fields.sequence("algorithm of the private key")?.oid("algorithm of the private key")?;
        if algorithm != oids::RSA {
            return Err(not_rsa("a private key", algorithm));
        }
        // A split string would be copied to memory that is not wiped; no program writes one.
        Self::pkcs1(fields.expect(tag::OCTETS, "private key")?.content, origin)
    }

    /// The key as PKCS#8, marked for encryption, which Windows requires (the same attribute as OpenSSL's `-keyex`).
    pub(super) fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        let algorithm = asn1::algorithm(oids::RSA, &asn1::value(tag::NULL, &[]));
        let usage = asn1::value(tag::BITS, &[&[0, 0x10]]);
        let usage = asn1::sequence(&[&asn1::value(tag::OID, &[oids::KEY_USAGE]), &asn1::value(tag::SET, &[&usage])]);
        let key = asn1::value(tag::OCTETS, &[&self.to_pkcs1()]);
        asn1::sequence(&[&asn1::integer(&[0]), &algorithm, &key, &asn1::value(tag::CONTEXT_0, &[&usage])])
    }

    fn to_pkcs1(&self) -> Zeroizing<Vec<u8>> {
        let public = self.key.public();
        let exponent = self.key.exponent();
        let before = [&[0][..], public.modulus(), &public.exponent().to_be_bytes(), &exponent].map(asn1::integer);
        let numbers = self.key.numbers().map(asn1::integer);
        let all: Vec<&[u8]> = before.iter().chain(&numbers).map(|number| &number[..]).collect();
        asn1::sequence(&all)
    }

    /// The public half.
    pub fn public(&self) -> &rsa::RsaPublicKey {
        self.key.public()
    }

    /// Signs a SHA-256 digest, as for certificates (RFC 8017, 8.2.1).
    pub(super) fn sign(&self, digest: &[u8; 32]) -> Result<Vec<u8>> {
        let algorithm = asn1::algorithm(oids::SHA256, &asn1::value(tag::NULL, &[]));
        let info = asn1::sequence(&[&algorithm, &asn1::value(tag::OCTETS, &[digest])]);
        self.key.sign(&info).ok_or_else(|| Error::unsupported("signatures with so short a key"))
    }

    /// Sets the name that the key was stored under.
    pub(super) fn named(mut self, name: Option<String>) -> Self {
        self.about.names.extend(name.filter(|name| !name.is_empty()));
        self
    }

    /// Sets the name of the key's container.
    pub(super) fn in_container(mut self, name: String) -> Self {
        self.about.container = Some(name);
        self
    }

    /// Records the certificate if it belongs to this key. Returns whether it does.
    pub(super) fn certified(&mut self, certificate: &Certificate) -> bool {
        let its_own = certificate.public.as_ref() == Some(self.public());
        if its_own && self.about.thumbprint.is_none() {
            self.about.thumbprint = Some(certificate.thumbprint);
            self.about.key_identifier.clone_from(&certificate.key_identifier);
            self.about.names.insert(0, certificate.subject.clone());
        }
        its_own
    }
}

impl PrivateKey for SoftKey {
    fn about(&self) -> &About {
        &self.about
    }

    fn decrypt(&self, ciphertext: &[u8]) -> Result<Secret> {
        self.key.decrypt(ciphertext).ok_or_else(not_for_this_key)
    }
}

/// The error for a key of an unsupported algorithm.
pub(super) fn not_rsa(what: &str, algorithm: &[u8]) -> Error {
    let name = match algorithm {
        oids::EC => " (elliptic curves)".to_owned(),
        other => format!(" (algorithm {})", asn1::dotted(other)),
    };
    Error::unsupported(format!("{what} other than RSA{name}"))
}

/// The error for a damaged key.
pub(super) fn damaged(what: &str) -> Error {
    ErrorKind::Malformed { field: "private key", offset: 0, what: what.to_owned() }.into()
}
