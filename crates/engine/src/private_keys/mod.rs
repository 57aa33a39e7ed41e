//! Private keys with which files open that were encrypted for a certificate: NTFS's EFS.
//!
//! A key may be in memory, or in a device that never hands it out, so it is a trait and not bytes. All that tells which file a key
//! is for is [`About`], plain data.

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

use crate::credential::read_up_to;
use crate::error::{Error, ErrorKind, Result};
use asn1::{DerReader, tag};

/// The longest file of keys and certificates that is read.
const FILE_MAX: usize = 4 << 20;

/// A private key that decrypts what was encrypted for its public half. It may be used from several threads.
pub trait PrivateKey: Send + Sync + fmt::Debug {
    /// What is known of it without using it.
    fn about(&self) -> &About;

    /// Decrypts `ciphertext` with RSA and takes the padding of PKCS#1 v1.5 off (RFC 8017, 7.2.2). The bytes are in the order of
    /// PKCS#1, the most significant one first; Windows stores them the other way round. A ciphertext that is shorter than the
    /// modulus has zeros in front.
    ///
    /// **Promised** by keys in memory: there is one answer to everything that does not decrypt, be it the length, the number or the
    /// padding, and the time that takes depends on lengths alone, so that nobody who watches learns about the padding. What
    /// succeeds does show in the length of the result. A smart card promises what its maker does.
    ///
    /// # Errors
    /// [`not_for_this_key`], always the same. `Io` and `Unsupported` where a device fails, whatever the ciphertext is.
    fn decrypt(&self, ciphertext: &[u8]) -> Result<Secret>;

    /// SHA-1 of the whole certificate, by which Windows names it. None for a key whose certificate is not at hand.
    fn thumbprint(&self) -> Option<[u8; 20]> {
        self.about().thumbprint
    }

    /// What people call it: the subject of its certificate and the name that it was stored under.
    fn names(&self) -> &[String] {
        &self.about().names
    }
}

/// What tells private keys apart. Nothing in it is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// SHA-1 of the whole certificate, where there is one.
    pub thumbprint: Option<[u8; 20]>,
    /// What people call it: the subject of its certificate and the name that it was stored under.
    pub names: Vec<String>,
    /// The RSA modulus, the most significant byte first and not 0.
    pub modulus: Vec<u8>,
    /// The subject key identifier of its certificate, where that has one.
    pub key_identifier: Option<Vec<u8>>,
    /// The name of its container in Windows' key store, where it comes from there: old entries of EFS name that alone.
    pub container: Option<String>,
    /// Where it was found: a file, a profile, a smart card.
    pub origin: String,
}

/// The one answer where something does not decrypt with a private key.
pub fn not_for_this_key() -> Error {
    ErrorKind::WrongCredential("this private key does not decrypt it".to_owned()).into()
}

fn is_wrong(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::WrongCredential(_))
}

/// What is in files of keys and certificates.
#[derive(Debug, Default)]
pub struct Contents {
    /// Private keys, some perhaps without their certificate.
    pub keys: Vec<SoftKey>,
    /// Certificates, also those of others.
    pub certificates: Vec<Certificate>,
    /// What is there, too, and cannot be used.
    pub refused: Vec<Error>,
}

impl Contents {
    /// Notes a key with the name that it was stored under, or that it cannot be used.
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

    /// Adds what another file has.
    pub fn extend(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.certificates.extend(other.certificates);
        self.refused.extend(other.refused);
    }

    /// The private keys, each with its certificate, wherever among all this that was.
    ///
    /// # Errors
    /// `Misuse` if there is no private key, or what was said of the only ones that are there.
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

/// The RSA key in a PEM of a public key. None if it is another one.
pub(crate) fn rsa_public_key(pem: &[u8]) -> Result<Option<claviger_crypto::rsa::RsaPublicKey>> {
    pem::first(pem, "PUBLIC KEY").map_or(Ok(None), |der| certificate::lone_public_key(&der))
}

/// By what systemd knows an RSA key: the hash of it as PKCS#1 has it (systemd, src/shared/openssl-util.c, `pubkey_fingerprint`).
pub(crate) fn rsa_fingerprint(key: &claviger_crypto::rsa::RsaPublicKey) -> [u8; 32] {
    let mut hash = [0; 32];
    claviger_crypto::hash::SHA256.checksum(&[&certificate::numbers(key)], &mut hash);
    hash
}

/// Reads a file of keys and certificates: PFX, PEM, or DER of either. `ask` is asked for its password, if it needs one.
///
/// # Errors
/// `NotThisFormat` for a file of something else; `WrongCredential` for a wrong password, `Malformed`, `Unsupported`; `Io`; what `ask`
/// says.
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

/// The files that a path stands for: itself, or those of a folder that look like keys and certificates by their names.
///
/// # Errors
/// `Io`; `Misuse` if the folder has none.
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

/// Reads the bytes of such a file. `origin` is what people call it.
///
/// # Errors
/// Those of [`read_file`].
pub fn read(bytes: &[u8], origin: &str, ask: &mut dyn FnMut() -> Result<Secret>) -> Result<Contents> {
    if pem::is_one(bytes) {
        return pem::read(bytes, origin, ask);
    }
    let Ok(mut fields) = DerReader::new(bytes).sequence("file") else { return Err(nothing_of_ours()) };
    let mut contents = Contents::default();
    // PKCS#12 and keys begin with a version; a certificate and an encrypted key with what was signed, and how it was encrypted.
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

/// Reads bytes as everything that keys and certificates come in.
pub(crate) fn fuzz(bytes: &[u8]) {
    pfx::fuzz(bytes);
    if bytes.first() != Some(&tag::SEQUENCE) {
        let _ = pem::read(bytes, "here", &mut || Ok(Secret::copy_from(b"password")));
    }
    let _ = Certificate::read(bytes);
    let _ = SoftKey::pkcs8(bytes, "here");
    let _ = SoftKey::pkcs1(bytes, "here");
}
