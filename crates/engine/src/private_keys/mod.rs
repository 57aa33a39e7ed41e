//! Private keys that open files encrypted for a certificate, as EFS of NTFS does.
//!
//! A key may be in memory, or in a device that never reveals it, so this is a trait. [`About`], plain data, has everything that
//! tells which files a key opens.

mod asn1;
mod certificate;
pub mod dpapi;
mod key;
mod oids;
mod pbe;
mod pem;
mod pfx;
pub mod pkcs11;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_crypto::Secret;

pub use certificate::{Certificate, NewCertificate};
pub use key::SoftKey;
pub use pfx::write as write_pfx;

use crate::error::{Error, ErrorKind, Result};
use crate::internal::read_secret::read_up_to;
use asn1::{DerReader, tag};

/// The largest key or certificate file that is read, in bytes.
const FILE_MAX: usize = 4 << 20;

/// A private key that decrypts what was encrypted with its public key. Several threads may use it.
pub trait PrivateKey: Send + Sync + fmt::Debug {
    /// What is known about the key without using it.
    fn about(&self) -> &About;

    /// Decrypts `ciphertext` with RSA and removes the PKCS#1 v1.5 padding (RFC 8017, 7.2.2). The byte order is that of PKCS#1, most
    /// significant byte first; Windows stores the reverse. A ciphertext shorter than the modulus is extended with leading zeros.
    ///
    /// **Promised** by keys in memory: there is a single error for everything that does not decrypt, be it length, number or
    /// padding. The time depends on lengths alone. So an observer learns nothing about the padding. On success the length of the
    /// result is visible. A smart card gives the guarantees of its maker.
    ///
    /// # Errors
    /// [`not_for_this_key`], always the same. `Io` and `Unsupported` if a device fails, whatever the ciphertext.
    fn decrypt(&self, ciphertext: &[u8]) -> Result<Secret>;

    /// The SHA-1 hash of the certificate, which Windows identifies it by. `None` if the certificate is not known.
    fn thumbprint(&self) -> Option<[u8; 20]> {
        self.about().thumbprint
    }

    /// Names to show: the certificate's subject, and the name that the key was stored under.
    fn names(&self) -> &[String] {
        &self.about().names
    }
}

/// The public facts that identify a private key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The SHA-1 hash of the certificate, if known.
    pub thumbprint: Option<[u8; 20]>,
    /// Names to show: the certificate's subject, and the name that the key was stored under.
    pub names: Vec<String>,
    /// The RSA modulus, most significant byte first, without leading zeros.
    pub modulus: Vec<u8>,
    /// The subject key identifier of the certificate, if it has one.
    pub key_identifier: Option<Vec<u8>>,
    /// The name of the key's container in Windows' key store, if it comes from there: old EFS entries name only that.
    pub container: Option<String>,
    /// Where the key was found: a file, a profile, a smart card.
    pub origin: String,
}

/// The single error if something does not decrypt with a private key.
pub fn not_for_this_key() -> Error {
    ErrorKind::WrongCredential("this private key does not decrypt it".to_owned()).into()
}

fn is_wrong(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::WrongCredential(_))
}

/// The contents of key and certificate files.
#[derive(Debug, Default)]
pub struct Contents {
    /// Private keys, perhaps without their certificates.
    pub keys: Vec<SoftKey>,
    /// Certificates, including those of other people.
    pub certificates: Vec<Certificate>,
    /// Why other contents cannot be used.
    pub refused: Vec<Error>,
}

impl Contents {
    /// Adds a key with its stored name, or records why it cannot be used.
    fn add(&mut self, key: Result<SoftKey>, name: Option<String>) -> Result<()> {
        match key {
            Ok(key) => self.keys.push(key.named(name)),
            Err(e) if matches!(e.kind, ErrorKind::Unsupported { .. }) => self.refuse(e),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn refuse(&mut self, error: Error) {
        self.refused.push(error);
    }

    /// Adds the contents of another file.
    pub fn extend(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.certificates.extend(other.certificates);
        self.refused.extend(other.refused);
    }

    /// The private keys, each with its certificate, from whichever file that came.
    ///
    /// # Errors
    /// `Misuse` if there is no private key; if all keys were refused, the reason.
    pub fn into_keys(mut self) -> Result<Vec<Arc<dyn PrivateKey>>> {
        for key in &mut self.keys {
            self.certificates.iter().any(|certificate| key.certified(certificate));
        }
        if self.keys.is_empty() {
            let none = || {
                Error::misuse("there is no private key").hint(
                    "Give a private key: a certificate alone \
                 cannot decrypt.",
                )
            };
            return Err(self.refused.into_iter().next().unwrap_or_else(none));
        }
        Ok(self.keys.into_iter().map(|key| Arc::new(key) as Arc<dyn PrivateKey>).collect())
    }
}

/// The RSA key in a PEM file of a public key. `None` if it is another kind of key.
pub(crate) fn rsa_public_key(pem: &[u8]) -> Result<Option<claviger_crypto::rsa::RsaPublicKey>> {
    pem::first(pem, "PUBLIC KEY").map_or(Ok(None), |der| certificate::lone_public_key(&der))
}

/// systemd's fingerprint of an RSA key: a hash of its PKCS#1 form (systemd, src/shared/openssl-util.c, `pubkey_fingerprint`).
pub(crate) fn rsa_fingerprint(key: &claviger_crypto::rsa::RsaPublicKey) -> [u8; 32] {
    let mut hash = [0; 32];
    claviger_crypto::hash::SHA256.checksum(&[&certificate::numbers(key)], &mut hash);
    hash
}

/// Reads a key or certificate file: PFX, PEM, or DER of either. Calls `ask` if the file needs a password.
///
/// # Errors
/// `NotThisFormat` for any other file; `WrongCredential` for a wrong password, `Malformed`, `Unsupported`; `Io`; those of `ask`.
pub fn read_file(path: &Path, ask: &mut dyn FnMut() -> Result<Secret>) -> Result<Contents> {
    let mut read = || -> Result<Contents> {
        let mut file = File::open(path)?;
        let bytes = read_up_to(FILE_MAX + 1, |room| file.read(room))?;
        if bytes.len() > FILE_MAX {
            return Err(nothing_of_ours());
        }
        read(&bytes, &path.display().to_string(), ask)
    };
    read().map_err(|e| e.at(path))
}

/// The files at a path: the file itself, or the files in a folder with the extension of a key or certificate.
///
/// # Errors
/// `Io`; `Misuse` if the folder has no such file.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    const ENDINGS: &[&str] = &["pfx", "p12", "pem", "key", "cer", "crt", "der"];
    let list = || -> Result<Vec<PathBuf>> {
        if !std::fs::metadata(path)?.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let file = entry?.path();
            let ending = file.extension().unwrap_or_default().to_ascii_lowercase();
            if ENDINGS.iter().any(|known| ending == *known) && std::fs::metadata(&file)?.is_file() {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(Error::misuse("this folder contains no certificate")
                .hint(format!("Only files ending in {} are read.", ENDINGS.join(", "))));
        }
        Ok(files)
    };
    list().map_err(|e| e.at(path))
}

/// Reads the bytes of such a file. `origin` is its name for messages.
///
/// # Errors
/// Those of [`read_file`].
pub fn read(bytes: &[u8], origin: &str, ask: &mut dyn FnMut() -> Result<Secret>) -> Result<Contents> {
    if pem::is_one(bytes) {
        return pem::read(bytes, origin, ask);
    }
    let Ok(mut fields) = DerReader::new(bytes).sequence("file") else { return Err(nothing_of_ours()) };
    let mut contents = Contents::default();
    // PKCS#12 and keys begin with a version. A certificate begins with the signed part, an encrypted key with its algorithm.
    match (fields.any("file").map(|first| (first.tag, first.content)), fields.peek()) {
        (Ok((tag::INTEGER, [3])), _) => return pfx::read(bytes, origin, ask),
        (Ok((tag::INTEGER, _)), Some(tag::INTEGER)) => contents.add(SoftKey::pkcs1(bytes, origin), None)?,
        (Ok((tag::INTEGER, _)), Some(tag::SEQUENCE)) => contents.add(SoftKey::pkcs8(bytes, origin), None)?,
        (Ok((tag::SEQUENCE, _)), Some(tag::SEQUENCE)) => contents.certificates.push(Certificate::read(bytes)?),
        (Ok((tag::SEQUENCE, _)), Some(tag::OCTETS)) => {
            let key = pfx::encrypted_pkcs8(bytes, &pbe::Password::new(&ask()?)?)?;
            contents.add(SoftKey::pkcs8(&key, origin), None)?;
        }
        _ => return Err(nothing_of_ours()),
    }
    Ok(contents)
}

fn nothing_of_ours() -> Error {
    Error::new(ErrorKind::NotThisFormat("not a key or certificate file".to_owned()))
        .hint("Use PFX (PKCS#12), PEM or DER.")
}

/// Parses bytes as every supported encoding of keys and certificates.
pub(crate) fn fuzz(bytes: &[u8]) {
    pfx::fuzz(bytes);
    if bytes.first() != Some(&tag::SEQUENCE) {
        let _ = pem::read(bytes, "here", &mut || Ok(Secret::copy_from(b"password")));
    }
    let _ = Certificate::read(bytes);
    let _ = SoftKey::pkcs8(bytes, "here");
    let _ = SoftKey::pkcs1(bytes, "here");
}
